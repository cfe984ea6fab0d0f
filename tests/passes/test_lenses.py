"""Passes shared by several lenses, their statistics, and combined kernels, against single lenses and dense formulas."""

import itertools
from dataclasses import replace

import dask
import numpy as np
import pytest
from distributed import Client
from helpers.references import Counting, dense_view, error, in_memory, over, psd, stepped
from hypothesis import given
from hypothesis import strategies as st

from dmkl.kernelset import KernelSet
from dmkl.kernelset import measure as measure_sets
from dmkl.passes.execute import Machine, active_client, computing_here
from dmkl.passes.run import pass_graph, run_pass
from dmkl.passes.statistics import measure
from dmkl.passes.sums import Combination, SumColumns, combine_pass, inverse_diagonals
from dmkl.passes.sweep import Columns

M, N = 31, 3
DOUBLE, SINGLE = np.dtype(np.float64), np.dtype(np.float32)
SHUFFLED = np.random.default_rng(5).permutation(M)
TRAIN, HELD_OUT = SHUFFLED[:14], SHUFFLED[14:20]
BOTH = np.concatenate([TRAIN, HELD_OUT])
OTHERS = SHUFFLED[9:27]
SOME = (np.array([7, 1, 3, 0, 12, 5]),) * 2
ACROSS = (np.array([15, 2, 19, 4]), np.array([11, 0, 8, 3, 6]))
AGAIN = np.array([3, 3, 28, 0, 12, 28])

# Rows, columns and steps of each lens; steps are names or pairs of positions to take.
LENSES = {
    "plain": (None, None, ()),
    "a fold with its held-out rows": (BOTH, TRAIN, ("center", "trace")),
    "another fold, unit norm": (SHUFFLED, OTHERS, ("center", "cosine")),
    "steps before a fold": (None, None, ("cosine", (BOTH, TRAIN), "center", "trace")),
    "steps between": (BOTH, TRAIN, ("multiplicative", "center", ACROSS, "cosine", "center")),
    "a training set": (TRAIN, TRAIN, ("center", "trace")),
    "some of a training set": (OTHERS, OTHERS, ("center", SOME, "trace", "center")),
    "some of unit norm": (TRAIN, TRAIN, ("center", SOME, "center", "cosine")),
    "samples again": (AGAIN, AGAIN, ("center", "multiplicative")),
    "again after centering": (None, None, ("center", (AGAIN, AGAIN), "center")),
}
SQUARE = ["plain", *list(LENSES)[5:]]


@pytest.fixture(scope="module")
def kernels():
    return psd(N, M, seed=4)


def viewed(K, name):
    rows, cols, steps = LENSES[name]
    return stepped(K if rows is None else K[rows, cols], steps)


def lens(K, name):
    return viewed(K, name).lens()


def dense(kernels, name):
    return dense_view(kernels, *LENSES[name])


def lenses_and_columns(K):
    """All lenses on a set, and a block of every possible kind for each of them."""
    rng, columns = np.random.default_rng(6), []
    lenses = [lens(K, name) for name in LENSES]
    for number, seen in enumerate(lenses):
        _, _, n_cols = seen.view.shape
        columns.append(Columns(rng.standard_normal((n_cols, 2)), "each", None, DOUBLE, number))
        columns.append(Columns(rng.standard_normal((n_cols, 3)), "sum", rng.random((N, 3)), DOUBLE, number))
        if seen.view.is_square:
            columns.append(Columns(rng.standard_normal((n_cols, 2)), "project", None, DOUBLE, number))
    return lenses, columns


def check_products(kernels, columns, computed):
    """Check products through all lenses against the formulas, in the precision of each block."""
    for c, result in zip(columns, computed, strict=True):
        seen, V = dense(kernels, list(LENSES)[c.lens]), c.block
        if c.want == "sum":
            reference, result = np.einsum("jab,bc,jc->ac", seen, V, c.weights)[None], result[None]
        else:
            reference = seen @ V if c.want == "each" else V.T @ seen @ V
        assert error(result, reference) < (1e-5 if c.dtype == SINGLE else 1e-12)


def check_view(lens, reference):
    """Check the products of one lens with a few vectors against the matrices of its view."""
    V = np.random.default_rng(7).standard_normal((reference.shape[2], 2))
    (product,), _ = run_pass([lens], [Columns(V, "each", None, DOUBLE)])
    assert error(product, reference @ V) < 1e-12


# --- products -----------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("cutting")
def test_lenses_that_share_a_pass_have_the_products_of_dense_matrices(kernels):
    lenses, columns = lenses_and_columns(in_memory(kernels, 9))
    together, passes = run_pass(lenses, columns)
    assert passes == 1
    check_products(kernels, columns, together)


@pytest.mark.usefixtures("cutting", "tasks_of_parts")
def test_kernels_in_parts(kernels):
    """With several tasks per kernel, offsets of rectangular centrings are added once, and sums have a fixed order."""
    lenses, columns = lenses_and_columns(in_memory(kernels, 5))
    units, computed = [], []
    for slots in (1, 8):
        with dask.config.set(scheduler="threads", num_workers=slots):
            units.append(len(pass_graph(lenses, columns, "apply-pass").units))
            computed.append(run_pass(lenses, columns)[0])
    assert units[0] == units[1] > N
    for result, again in zip(*computed, strict=True):
        np.testing.assert_array_equal(result, again)
    check_products(kernels, columns, computed[0])


@pytest.mark.usefixtures("cutting", "tasks_of_parts")
def test_tiles_held_in_memory(kernels):
    """Some of the tiles are in memory; the others are read."""
    K = in_memory(kernels, 9).persist()
    part = K[:20, :20].persist().view.source
    for held in (K, KernelSet(replace(K.view, source=part))):
        lenses, columns = lenses_and_columns(held)
        check_products(kernels, columns, run_pass(lenses, columns)[0])


@pytest.mark.parametrize("width", [512, 25])
def test_many_narrow_sums_fill_their_passes(kernels, width):
    """They are concatenated, with other columns between them, and split if a pass is full."""
    lenses, all_columns = lenses_and_columns(in_memory(kernels.astype(np.float32), 9))
    rng, columns = np.random.default_rng(8), []
    for _ in range(4):
        columns += [replace(c, block=rng.standard_normal(c.block.shape)) for c in all_columns if c.want != "project"]
        columns += [replace(c, dtype=SINGLE) for c in columns[-2:]]
    with dask.config.set({"dmkl.block-width": width}):
        computed, passes = run_pass(lenses, columns)
    assert passes == -(-sum(c.width for c in columns) // width)
    check_products(kernels.astype(np.float32), columns, computed)


# --- statistics ---------------------------------------------------------------------------------------------
def test_views_are_measured_in_shared_passes(kernels):
    """A grid over the steps of several folds needs as many passes as the most demanding view."""
    K, source = over(in_memory(kernels, 9), Counting)
    chains = {
        (): 0,
        ("trace",): 0,
        ("center", "cosine"): 1,
        ("cosine", "center", "trace"): 1,
        ("center", "cosine", "center"): 2,
        ("multiplicative", "center", "center"): 1,
    }
    folds, every = [(BOTH, TRAIN), (SHUFFLED, OTHERS), (TRAIN, TRAIN)], []
    for steps, passes in [*chains.items(), (None, 2)]:
        views = every if steps is None else [stepped(K[rows, cols], steps).view for rows, cols in folds]
        source.reads.clear()
        lenses, n_passes = measure(views)
        assert isinstance(n_passes, float)
        assert n_passes == passes
        assert set(source.reads.values()) == ({passes} if passes else set())
        assert all(lens.view is view for lens, view in zip(lenses, views, strict=True))
        every += [] if steps is None else views
    for lens, (steps, (rows, cols)) in zip(lenses, itertools.product(chains, folds), strict=True):
        check_view(lens, dense_view(kernels, rows, cols, steps))


def test_sets_are_measured_together_and_stay_as_they_were(kernels):
    K = in_memory(kernels, 9)
    measured, _ = K[TRAIN, TRAIN].center().measured()
    sets = [K[TRAIN, TRAIN].center(), measured, K[BOTH, TRAIN].normalize("cosine").center(), K]
    computed, n_passes = measure_sets(sets)
    assert n_passes == 1
    assert computed[1] is measured
    for before, after in zip(sets, computed, strict=True):
        assert after.measured()[1] == 0
        assert after.names == before.names
        V = np.eye(after.shape[2])
        np.testing.assert_allclose(after.apply(V).compute(), before.apply(V).compute(), rtol=1e-12, atol=1e-13)
    assert sets[0].measured()[1] == 1
    assert measure_sets([]) == ([], 0.0)


@pytest.mark.parametrize(
    ("before", "own", "passes"),
    [
        ((), ("center", "trace"), (0, 0)),
        ((), ("center", "cosine", "center", "cosine"), (2, 2)),
        (("multiplicative",), ("center", "cosine"), (2, 1)),
    ],
)
def test_new_samples_are_seen_through_steps_of_training(kernels, before, own, passes):
    """Other samples and the training samples need a pass only for the means of cosine scales."""
    K = in_memory(kernels, 9)
    trained = stepped(K[TRAIN, TRAIN], (*before, *own)).lens().fitted.steps[len(before) :]
    for rows, expected_passes in zip((HELD_OUT, TRAIN), passes, strict=True):
        (seen,), n_passes = measure([stepped(K[rows, TRAIN], before).view], trained)
        assert n_passes == expected_passes
        check_view(seen, dense_view(kernels, rows, TRAIN, (*before, *own)))


# --- some of the rows ---------------------------------------------------------------------------------------
@given(
    st.integers(0, 2**16),
    st.integers(1, 14),
    st.booleans(),
    st.lists(st.sampled_from(["center", "trace", "multiplicative", "cosine", "take"]), max_size=5),
)
def test_parts_after_any_steps(seed, tile, square, kinds):
    """Steps of every kind, with selections of rows and columns between them, against the dense matrix."""
    rng = np.random.default_rng(seed)
    m, n_cols = 12, int(rng.integers(5, 13))
    cols = rng.permutation(m)[:n_cols]
    rows = cols if square else rng.permutation(m)[: rng.integers(1, m)]
    n_rows, steps = len(rows), []
    for kind in kinds:
        if kind == "take":
            n_cols -= n_cols > 4
            kept = rng.permutation(n_cols)
            steps.append((kept if square else rng.integers(0, n_rows, 5), kept))
            n_rows = len(steps[-1][0])
        else:
            steps.append(kind)
    kernels = psd(2, m, seed)
    positions, V = rng.integers(0, n_rows, 3), rng.standard_normal((n_cols, 2))
    reference = dense_view(kernels, rows, cols, steps)
    whole = stepped(in_memory(kernels, tile)[rows, cols], steps).lens()
    (computed,), _ = run_pass([whole.rows(positions)], [Columns(V, "each", None, DOUBLE)])
    assert np.linalg.norm(computed - reference[:, positions] @ V) <= 1e-10 * np.linalg.norm(reference)
    if whole.view.is_square:
        W = V[:3]
        (computed,), _ = run_pass([whole.columns(positions)], [Columns(W, "each", None, DOUBLE)])
        assert np.linalg.norm(computed - reference[:, :, positions] @ W) <= 1e-10 * np.linalg.norm(reference)


# --- combined kernels ---------------------------------------------------------------------------------------
def check_sums(kernels, combinations, totals):
    for c, name, total in zip(combinations, 2 * SQUARE, totals, strict=True):
        reference = np.tensordot(c.weights, dense(kernels, name), axes=1)
        assert error(total.whole()[None], reference[None]) < 1e-12


def weightings(K):
    """Two combinations through each of the lenses of square views."""
    rng, lenses = np.random.default_rng(8), [lens(K, name) for name in SQUARE]
    weights = [rng.random(N), np.array([0.0, 2.0, 0.0]), np.ones(N)]
    return [Combination(through, weights[(k + turn) % 3]) for turn in range(2) for k, through in enumerate(lenses)]


def test_stored_sums_are_the_dense_ones(kernels, scheduler, tmp_path):
    """Several weightings through several lenses, written in one pass, with uniform and cosine chains of steps."""
    K, source = over(in_memory(kernels, 7), Counting)
    combinations = weightings(K)
    source.reads.clear()
    totals = combine_pass(combinations, [str(tmp_path / f"sum-{k}") for k in range(len(combinations))])
    assert set(source.reads.values()) == (set() if scheduler == "processes" else {1})  # a worker counts its own reads
    check_sums(kernels, combinations, totals)
    there = {path.name.rpartition("sum-")[2].split("-")[0] for path in tmp_path.iterdir()}
    assert there == {str(k) for k in range(len(combinations))}


@pytest.mark.parametrize("name", SQUARE)
@pytest.mark.parametrize("weighed", [False, True])
def test_columns_of_a_stored_sum_are_those_of_the_dense_matrix(kernels, name, weighed, tmp_path):
    rng, K = np.random.default_rng(0), viewed(in_memory(kernels, 7), name)
    weights = rng.random(N) / M  # so that entries have a size of 1
    of_samples = rng.random(K.shape[1]) if weighed else np.ones(K.shape[1])
    lens = (K.weighed(of_samples) if weighed else K).lens()
    (total,) = combine_pass([Combination(lens, weights)], [str(tmp_path / "sum")])
    matrix = np.tensordot(weights, dense(kernels, name), axes=1) * np.sqrt(np.outer(of_samples, of_samples))
    columns = SumColumns(total)
    asked, vector = rng.integers(0, len(matrix), 9), rng.standard_normal(len(matrix))
    assert columns.size == len(matrix)
    np.testing.assert_allclose(columns(asked), matrix[:, asked], atol=1e-13)
    np.testing.assert_allclose(columns.diagonal, matrix.diagonal(), atol=1e-13)
    np.testing.assert_allclose(columns.product(vector), matrix @ vector, atol=1e-12)


@pytest.mark.parametrize("shared", [True, False])
def test_diagonals_of_inverses_take_one_pass_if_workers_share_a_disk(kernels, client, monkeypatch, shared):
    """Tiles of sums in the memory of workers would take a pass for each sum here."""
    monkeypatch.setattr("dmkl.passes.sums.machine", lambda: Machine(2, 2, 2**14, 2**14))
    if not shared:
        monkeypatch.setattr("dmkl.passes.sums.workers_without", lambda folder: ["tcp://elsewhere"])
    lenses, rng = [lens(in_memory(kernels, 7), name) for name in SQUARE], np.random.default_rng(3)
    combinations = [Combination(seen, rng.random(N)) for seen in lenses]
    vectors, lams = [rng.standard_normal(seen.view.shape[1]) for seen in lenses], (0.3, 2.0)
    answers, n_passes = inverse_diagonals(combinations, [lams] * len(lenses), vectors)
    assert n_passes == (1 if shared else len(lenses))
    for seen, name, c, v, answer in zip(lenses, SQUARE, combinations, vectors, answers, strict=True):
        null = seen.null_vectors()
        projection = np.zeros((len(v), len(v))) if null is None else null @ np.linalg.pinv(null)
        for lam, (diagonal, solved) in zip(lams, answer, strict=True):
            inverse = np.linalg.inv(0.5 * (np.eye(len(v)) + np.tensordot(c.weights, dense(kernels, name), 1) / lam))
            np.testing.assert_allclose(diagonal, np.diagonal(inverse - 2.0 * projection), rtol=1e-8, atol=1e-10)
            if null is None:  # the steps project nothing out
                np.testing.assert_allclose(solved, inverse @ v, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(("dtype", "beside"), [(np.float32, 1), (np.float64, 2), (np.float32, 8)])
def test_sums_by_compiled_loops(kernels, tmp_path, monkeypatch, dtype, beside):
    """Sums over many samples add some kernels at once, in double precision for kernels of any precision."""
    monkeypatch.setattr("dmkl.passes.sums.SMALL", 0)
    monkeypatch.setattr("dmkl.passes.sums._BESIDE", beside)
    kernels = kernels.astype(dtype)
    combinations = weightings(in_memory(kernels, 7))
    stems = [str(tmp_path / f"sum-{k}") for k in range(len(combinations))]
    check_sums(kernels.astype(np.float64), combinations, combine_pass(combinations, stems))


# --- passes inside tasks ------------------------------------------------------------------------------------
def product_in_a_task(K, V):
    """Run a pass inside a task; return the product and whether the task has no client."""
    with computing_here(Machine(1, 2, 2**28, 2**28)):
        view = K.center()
        (computed,), _ = run_pass([view.lens()], [Columns(V, "each", None, DOUBLE)])
        return computed, active_client() is None


def test_a_pass_inside_a_task(kernels, scheduler):
    """The pass runs in the thread of its task; the scheduler of other tasks and of the caller is unchanged."""
    K, V = in_memory(kernels, 9)[TRAIN, TRAIN], np.eye(len(TRAIN))[:, :2]
    before = active_client()
    tasks = [dask.delayed(product_in_a_task, pure=False)(K, (k + 1) * V) for k in range(3)]
    for k, (computed, alone) in enumerate(dask.compute(*tasks)):
        assert alone
        assert error(computed, (k + 1) * dense_view(kernels, TRAIN, TRAIN, ["center"])[:, :, :2]) < 1e-12
    assert active_client() is before
    assert isinstance(before, Client) == (scheduler == "processes")
