"""Passes that several lenses share, their statistics, and combined kernels: against each alone and dense formulas."""

from __future__ import annotations

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
from dmkl.passes.elements import whole_kernels
from dmkl.passes.execute import Machine, active_client, computing_here, execute, machine
from dmkl.passes.run import pass_graph, run_pass
from dmkl.passes.statistics import measure, measure_new
from dmkl.passes.sums import Combination, combine_pass, factor_pass, solve_by_factors
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
}
SQUARE = ["plain", *list(LENSES)[5:]]


@pytest.fixture(scope="module")
def kernels():
    return psd(N, M, seed=4)


def viewed(K, name):
    rows, cols, steps = LENSES[name]
    every = slice(None)
    square = rows is cols
    rows, cols = (every if chosen is None else chosen for chosen in (rows, cols))
    return stepped(K if square and rows is every else K[rows, rows if square else cols], steps)


def lens(K, name):
    view = viewed(K, name)
    return view.lens()


def dense(kernels, name):
    return dense_view(kernels, *LENSES[name])


def riders(lenses, dtype=DOUBLE):
    """For each lens a block of every kind that it can carry."""
    rng = np.random.default_rng(6)
    columns = []
    for number, seen in enumerate(lenses):
        _, _, n_cols = seen.view.shape
        columns.append(Columns(rng.standard_normal((n_cols, 2)), "each", None, dtype, number))
        columns.append(Columns(rng.standard_normal((n_cols, 3)), "sum", rng.random((N, 3)), DOUBLE, number))
        if seen.view.is_square:
            columns.append(Columns(rng.standard_normal((n_cols, 2)), "project", None, DOUBLE, number))
    return columns


def expected(kernels, c):
    if c.want == "sum":
        return np.einsum("jab,bc,jc->ac", kernels, c.block, c.weights)[None]
    return kernels @ c.block if c.want == "each" else c.block.T @ kernels @ c.block


def batched(found, c):
    return found[None] if c.want == "sum" else found


def test_whole_kernels_are_read_once_for_all_lenses(kernels):
    K, source = over(in_memory(kernels, 9), Counting)
    lenses = [lens(K, name) for name in LENSES]
    source.reads.clear()
    for k in range(N):
        for name, found in zip(LENSES, whole_kernels(lenses, k), strict=True):
            assert error(found[None], dense(kernels, name)[[k]]) < 1e-12
    assert set(source.reads.values()) == {1}
    assert len(source.reads) == N * sum(1 for _ in source.tiling.pairs())


# --- products -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("cutting", "synchronous")
def test_a_shared_pass_is_each_lens_alone(kernels):
    check_shared_pass(kernels)


@pytest.mark.usefixtures("cutting")
@pytest.mark.parametrize("cutting", ["together"], indirect=True)
def test_a_shared_pass_is_each_lens_alone_everywhere(kernels, scheduler):
    check_shared_pass(kernels)


def check_shared_pass(kernels):
    K = in_memory(kernels, 9)
    lenses = [lens(K, name) for name in LENSES]
    columns = riders(lenses)
    together, passes = run_pass(lenses, columns)
    assert passes == 1
    for number, (name, seen) in enumerate(zip(LENSES, lenses, strict=True)):
        mine = [k for k, c in enumerate(columns) if c.lens == number]
        alone, _ = run_pass([seen], [replace(columns[k], lens=0) for k in mine])
        for k, by_itself in zip(mine, alone, strict=True):
            reference = expected(dense(kernels, name), columns[k])
            assert error(batched(together[k], columns[k]), reference) < 1e-12
            assert error(batched(by_itself, columns[k]), reference) < 1e-12


@pytest.mark.usefixtures("cutting", "tasks_of_parts")
@pytest.mark.parametrize("tile", [5, 16])
def test_kernels_in_parts(kernels, tile):
    """Several tasks for each kernel: the offsets of rectangular centrings are added once, sums always in one order."""
    K = in_memory(kernels, tile)
    lenses = [lens(K, name) for name in LENSES]
    columns = riders(lenses)
    units, found = [], []
    for slots in (1, 8):
        with dask.config.set(scheduler="threads", num_workers=slots):
            units.append(len(pass_graph(lenses, columns, "apply-pass").units))
            found.append(run_pass(lenses, columns)[0])
    assert units[0] == units[1] > N
    for c, result, again in zip(columns, *found, strict=True):
        np.testing.assert_array_equal(result, again)
        assert error(batched(result, c), expected(dense(kernels, list(LENSES)[c.lens]), c)) < 1e-12


@pytest.mark.usefixtures("synchronous", "cutting", "tasks_of_parts")
def test_tiles_held_in_memory(kernels):
    """Some of them: those of the rest are read."""
    K = in_memory(kernels, 9).persist()
    part = K[:20, :20].persist().view.source
    for held in (K, KernelSet(replace(K.view, source=part))):
        lenses = [lens(held, name) for name in LENSES]
        columns = riders(lenses)
        found, _ = run_pass(lenses, columns)
        for c, result in zip(columns, found, strict=True):
            assert error(batched(result, c), expected(dense(kernels, list(LENSES)[c.lens]), c)) < 1e-12


@pytest.mark.usefixtures("synchronous", "cutting", "tasks_of_parts")
def test_precisions_side_by_side(kernels):
    """Blocks in the precision of float32 kernels, and others in double precision, through the same lenses."""
    K = in_memory(kernels.astype(np.float32), 9)
    lenses = [lens(K, name) for name in LENSES]
    columns = riders(lenses, SINGLE)
    found, _ = run_pass(lenses, columns)
    for c, result in zip(columns, found, strict=True):
        assert result.dtype == c.dtype
        reference = expected(dense(kernels.astype(np.float32), list(LENSES)[c.lens]), c)
        assert error(batched(result, c), reference) < (1e-5 if c.dtype == SINGLE else 1e-12)


@pytest.mark.usefixtures("synchronous")
@pytest.mark.parametrize("width", [512, 25, 4])
def test_many_narrow_sums_fill_their_passes(kernels, width):
    """They are put side by side, with other columns between them, and cut where a pass is full."""
    K = in_memory(kernels.astype(np.float32), 9)
    lenses = [lens(K, name) for name in LENSES]
    rng = np.random.default_rng(8)
    columns = []
    for _ in range(4):
        columns += [replace(c, block=rng.standard_normal(c.block.shape)) for c in riders(lenses) if c.want != "project"]
        columns += [replace(c, dtype=SINGLE) for c in columns[-2:]]
    with dask.config.set({"dmkl.block-width": width}):
        found, passes = run_pass(lenses, columns)
    assert passes == -(-sum(c.width for c in columns) // width)
    for c, result in zip(columns, found, strict=True):
        reference = expected(dense(kernels.astype(np.float32), list(LENSES)[c.lens]), c)
        assert error(batched(result, c), reference) < (1e-5 if c.dtype == SINGLE else 1e-12)


@pytest.mark.usefixtures("synchronous")
def test_a_shared_pass_reads_each_tile_once(kernels):
    """And none that no lens needs: samples of the first and the last of four rows of tiles."""
    K, source = over(in_memory(kernels, 8), Counting)
    corner = np.array([30, 1, 25])
    lenses = [view.lens() for view in (K[:5, :5], K[corner, corner])]
    source.reads.clear()
    run_pass(lenses, riders(lenses))
    assert source.reads == {(k, i, j): 1 for k in range(N) for i, j in [(0, 0), (0, 3), (3, 3)]}


@given(st.integers(0, 2**16), st.integers(1, 12), st.lists(st.sampled_from(["center", "trace", "cosine"]), max_size=3))
def test_any_folds_of_any_tiles(seed, tile, steps):
    rng = np.random.default_rng(seed)
    m = int(rng.integers(4, 12))
    kernels = psd(2, m, seed)
    K, views, references = in_memory(kernels, tile), [], []
    for _ in range(3):
        order = rng.permutation(m)
        cols = order[: rng.integers(2, m)]
        rows = np.concatenate([cols, order[len(cols) :]])
        views.append(stepped(K[rows, cols], steps).view)
        references.append(dense_view(kernels, rows, cols, steps))
    with dask.config.set(scheduler="synchronous"):
        lenses, _ = measure(views)
        columns = [
            Columns(rng.standard_normal((seen.view.shape[2], 2)), "each", None, DOUBLE, k)
            for k, seen in enumerate(lenses)
        ]
        found, _ = run_pass(lenses, columns)
    for c, result, reference in zip(columns, found, references, strict=True):
        assert np.linalg.norm(result - reference @ c.block) <= 1e-10 * np.linalg.norm(reference)


# --- statistics ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("synchronous")
@pytest.mark.parametrize(
    ("steps", "passes"),
    [
        ((), 0),
        (("trace",), 0),
        (("cosine",), 0),
        (("center", "trace"), 1),
        (("center", "cosine"), 1),
        (("cosine", "center", "trace"), 1),
        (("center", "cosine", "center"), 2),
        (("multiplicative", "center", "center"), 1),
    ],
)
def test_measure_as_alone_in_shared_passes(kernels, steps, passes):
    K = in_memory(kernels, 9)
    counted, source = over(K, Counting)
    folds = [(BOTH, TRAIN), (SHUFFLED, OTHERS), (TRAIN, TRAIN)]
    views = [stepped(counted[rows, cols], steps).view for rows, cols in folds]
    lenses, n_passes = measure(views)
    assert n_passes == passes
    assert set(source.reads.values()) == ({passes} if passes else set())
    for found, (rows, cols), view in zip(lenses, folds, views, strict=True):
        assert found.view is view
        alone = stepped(K[rows, cols], steps).lens().fitted
        for one, other in zip(found.fitted.steps, alone.steps, strict=True):
            assert one.described() == other.described()
            values, references = one.arrays(), other.arrays()
            assert set(values) == set(references)
            for name, value in values.items():
                np.testing.assert_allclose(value, references[name], rtol=1e-12, atol=1e-13)
        V = np.random.default_rng(7).standard_normal((len(cols), 2))
        (product,), _ = run_pass([found], [Columns(V, "each", None, DOUBLE)])
        assert error(product, dense_view(kernels, rows, cols, steps) @ V) < 1e-12


@pytest.mark.usefixtures("synchronous")
def test_views_with_other_steps_are_measured_in_the_same_passes(kernels):
    """A grid over the steps of several folds: as many passes as the view that needs most of them."""
    K, source = over(in_memory(kernels, 9), Counting)
    chains = [(), ("trace",), ("center",), ("center", "cosine", "center"), ("cosine", "center"), ("multiplicative",)]
    cases = [(rows, cols, steps) for rows, cols in [(BOTH, TRAIN), (OTHERS, OTHERS)] for steps in chains]
    lenses, n_passes = measure([stepped(K[rows, cols], steps).view for rows, cols, steps in cases])
    assert n_passes == 2
    assert isinstance(n_passes, float)
    assert set(source.reads.values()) == {2}
    for (rows, cols, steps), found in zip(cases, lenses, strict=True):
        V = np.random.default_rng(7).standard_normal((len(cols), 2))
        (product,), _ = run_pass([found], [Columns(V, "each", None, DOUBLE)])
        assert error(product, dense_view(kernels, rows, cols, steps) @ V) < 1e-12


@pytest.mark.usefixtures("synchronous")
def test_sets_are_measured_together_and_stay_as_they_were(kernels):
    K = in_memory(kernels, 9)
    known, _ = K[TRAIN, TRAIN].center().measured()
    sets = [K[TRAIN, TRAIN].center(), known, K[BOTH, TRAIN].normalize("cosine").center(), K]
    found, n_passes = measure_sets(sets)
    assert n_passes == 1
    assert found[1] is known
    for before, after in zip(sets, found, strict=True):
        assert after.measured()[1] == 0
        assert after.names == before.names
        V = np.eye(after.shape[2])
        np.testing.assert_allclose(after.apply(V).compute(), before.apply(V).compute(), rtol=1e-12, atol=1e-13)
    assert sets[0].measured()[1] == 1
    assert measure_sets([]) == ([], 0.0)


@pytest.mark.usefixtures("synchronous")
@pytest.mark.parametrize(
    ("before", "own", "passes"),
    [
        ((), ("center", "trace"), (0, 0)),
        ((), ("cosine", "center"), (0, 0)),
        ((), ("center", "cosine", "center", "cosine"), (2, 2)),
        (("multiplicative",), ("center", "trace"), (1, 1)),
        (("multiplicative",), ("center", "cosine"), (2, 1)),
    ],
)
def test_new_samples_are_seen_through_steps_of_training(kernels, before, own, passes):
    """Other samples, and the training samples themselves: a pass only for means that cosine scales need."""
    K = in_memory(kernels, 9)
    trained = stepped(K[TRAIN, TRAIN], (*before, *own)).lens().fitted.steps[len(before) :]
    for rows, expected_passes in zip((HELD_OUT, TRAIN), passes, strict=True):
        seen, n_passes = measure_new(stepped(K[rows, TRAIN], before).view, trained)
        assert n_passes == expected_passes
        (product,), _ = run_pass([seen], [Columns(np.eye(len(TRAIN)), "each", None, DOUBLE)])
        assert error(product, dense_view(kernels, rows, TRAIN, (*before, *own))) < 1e-12


@pytest.mark.usefixtures("synchronous")
def test_statistics_over_all_samples_cost_nothing(kernels):
    K, source = over(in_memory(kernels, 9), Counting)
    order = np.argsort(SHUFFLED)
    views = [stepped(part, ("center", "cosine")).view for part in (K, K[SHUFFLED, SHUFFLED], K[order, SHUFFLED])]
    _, passes = measure(views)
    assert passes == 0
    assert not source.reads


@pytest.mark.usefixtures("synchronous")
@pytest.mark.parametrize("name", LENSES)
def test_the_training_lens_is_the_square_view(kernels, name):
    """Of the column samples, whatever the rows are: products as those of the set K[cols, cols] and of the formula."""
    _, cols, steps = LENSES[name]
    found = lens(in_memory(kernels, 9), name).training()
    assert found.view.is_square
    square = [(step[1], step[1]) if isinstance(step, tuple) else step for step in steps]
    reference = dense_view(kernels, cols, cols, square)
    assert found.view.shape == reference.shape
    for c in riders([found]):
        (product,), _ = run_pass([found], [c])
        assert error(batched(product, c), expected(reference, c)) < 1e-12


# --- some of the rows ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("synchronous", "cutting")
@pytest.mark.parametrize("name", LENSES)
def test_some_rows_are_those_of_the_whole_lens(kernels, name):
    """In any order and more than once; K[test, train] where only the training columns have statistics."""
    whole = lens(in_memory(kernels, 9), name)
    n_rows = whole.view.shape[1]
    for positions in (np.arange(n_rows)[::-2], np.array([2, 0, 2]), np.arange(n_rows), np.array([], dtype=np.int64)):
        some = whole.rows(positions)
        assert some.view.shape == (N, len(positions), whole.view.shape[2])
        np.testing.assert_array_equal(some.view.final_positions()[0], whole.view.final_positions()[0][positions])
        np.testing.assert_array_equal(some.view.final_positions()[1], whole.view.final_positions()[1])
        columns = [c for c in riders([whole]) if c.want != "project"]
        found, _ = run_pass([some], columns)
        for c, result in zip(columns, found, strict=True):
            reference = expected(dense(kernels, name), c)[:, positions]
            assert np.abs(batched(result, c) - reference).max(initial=0) < 1e-12 * np.abs(reference).max(initial=1)


@pytest.mark.usefixtures("synchronous", "cutting")
@pytest.mark.parametrize("name", SQUARE)
def test_some_columns_are_those_of_the_whole_lens(kernels, name):
    """K_j[:, B] V, though centering is over all columns: alone, and beside the whole lens in one pass."""
    whole = lens(in_memory(kernels, 9), name)
    m = whole.view.shape[1]
    for positions in (np.arange(m)[::-2], np.array([2, 0, 2]), np.arange(m)):
        some = whole.columns(positions)
        assert some.view.shape == (N, m, len(positions))
        np.testing.assert_array_equal(some.view.final_positions()[1], whole.view.final_positions()[1][positions])
        V = np.random.default_rng(7).standard_normal((len(positions), 2))
        rides = [Columns(V, "each", None, DOUBLE), Columns(V, "sum", np.ones((N, 2)), DOUBLE)]
        found, _ = run_pass([some], rides)
        beside, passes = run_pass([some, whole], [*rides, *(replace(c, lens=1) for c in riders([whole]))])
        assert passes == 1
        reference = dense(kernels, name)[:, :, positions]
        for each, total in (found, beside[:2]):
            assert error(each, reference @ V) < 1e-12
            assert error(total[None], (reference @ V).sum(axis=0)[None]) < 1e-12


@pytest.mark.usefixtures("synchronous")
@pytest.mark.parametrize("steps", [(), ("center", "trace"), ("cosine", (BOTH, TRAIN), "center")])
def test_only_the_tiles_of_the_rows_chosen_are_read(kernels, steps):
    K, source = over(in_memory(kernels, 4), Counting)
    held_out = np.array([1, 0, 3])
    whole = stepped(K if len(steps) == 3 else K[BOTH, TRAIN], steps).lens()
    stored = whole.view.final_positions()[0][held_out]
    source.reads.clear()
    run_pass([whole.rows(held_out)], [Columns(np.ones((len(TRAIN), 1)), "each", None, DOUBLE)])
    assert {(i, j) for _, i, j in source.reads} == {
        (min(i, j), max(i, j)) for i in stored // 4 for j in (TRAIN if len(steps) < 3 else np.arange(M)) // 4
    }


@given(
    st.integers(0, 2**16),
    st.integers(1, 14),
    st.booleans(),
    st.lists(st.sampled_from(["center", "trace", "multiplicative", "cosine", "take"]), max_size=5),
)
def test_parts_after_any_steps(seed, tile, square, kinds):
    """Steps of every kind, positions taken anywhere between them: rows and columns against the dense matrix."""
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
    with dask.config.set(scheduler="synchronous"):
        whole = stepped(in_memory(kernels, tile)[rows, cols], steps).lens()
        (found,), _ = run_pass([whole.rows(positions)], [Columns(V, "each", None, DOUBLE)])
        assert np.linalg.norm(found - reference[:, positions] @ V) <= 1e-10 * np.linalg.norm(reference)
        if whole.view.is_square:
            W = V[:3]
            (found,), _ = run_pass([whole.columns(positions)], [Columns(W, "each", None, DOUBLE)])
            assert np.linalg.norm(found - reference[:, :, positions] @ W) <= 1e-10 * np.linalg.norm(reference)


# --- combined kernels ---------------------------------------------------------------------------------------


def whole(total):
    """The matrix of a stored sum, its samples in the order of the view."""
    lower, order = total.matrix()
    lower = np.tril(lower)
    matrix = lower + np.tril(lower, -1).T
    if order is None:
        return matrix
    unsorted = np.empty_like(matrix)
    unsorted[np.ix_(order, order)] = matrix
    return unsorted


def weightings(n_lenses):
    rng = np.random.default_rng(8)
    weights = [rng.random(N), np.array([0.0, 2.0, 0.0]), np.ones(N)]
    return [Combination(k, weights[(k + turn) % 3]) for turn in range(2) for k in range(n_lenses)]


def test_stored_sums_are_the_dense_ones(kernels, scheduler, tmp_path):
    """Several weightings through several lenses, written in one pass: chains alike for all kernels, and cosine ones."""
    K, source = in_memory(kernels, 7), None
    if scheduler != "processes":
        K, source = over(K, Counting)
    lenses = [lens(K, name) for name in SQUARE]
    if source is not None:
        source.reads.clear()
    combinations = weightings(len(lenses))
    stems = [str(tmp_path / f"sum-{k}") for k in range(len(combinations))]
    totals = combine_pass(lenses, combinations, stems)
    if source is not None:
        assert set(source.reads.values()) == {1}
    for c, total in zip(combinations, totals, strict=True):
        reference = np.tensordot(c.weights, dense(kernels, SQUARE[c.lens]), axes=1)
        assert error(whole(total)[None], reference[None]) < 1e-12
    there = {path.name.rpartition("sum-")[2].split("-")[0] for path in tmp_path.iterdir()}
    assert there == {str(k) for k in range(len(combinations))}


@pytest.mark.usefixtures("synchronous")
@pytest.mark.parametrize("beside", [1, 2, 8])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_by_compiled_loops(kernels, tmp_path, monkeypatch, dtype, beside):
    """Those of many samples are added so: of some kernels at once, in double precision whatever theirs is."""
    monkeypatch.setattr("dmkl.passes.sums.SMALL", 0)
    monkeypatch.setattr("dmkl.passes.sums._BESIDE", beside)
    kernels = kernels.astype(dtype)
    K = in_memory(kernels, 7)
    lenses = [lens(K, name) for name in SQUARE]
    combinations = weightings(len(lenses))
    stems = [str(tmp_path / f"sum-{k}") for k in range(len(combinations))]
    for c, total in zip(combinations, combine_pass(lenses, combinations, stems), strict=True):
        reference = np.tensordot(c.weights, dense(kernels.astype(np.float64), SQUARE[c.lens]), axes=1)
        assert error(whole(total)[None], reference[None]) < 1e-12


def test_factors_through_several_lenses(kernels, scheduler):
    K = in_memory(kernels, 9)
    lenses = [lens(K, name) for name in SQUARE]
    combinations = weightings(len(lenses))
    lams = np.geomspace(1e-3, 10, len(combinations))
    rng = np.random.default_rng(9)
    blocks = [rng.standard_normal((len(dense(kernels, SQUARE[c.lens])[0]), 2)) for c in combinations]
    solved = solve_by_factors(factor_pass(lenses, combinations, lams), blocks)
    for c, lam, b, x in zip(combinations, lams, blocks, solved, strict=True):
        combined = np.tensordot(c.weights, dense(kernels, SQUARE[c.lens]), axes=1)
        system = 0.5 * (np.eye(len(combined)) + combined / lam)
        assert error((system @ x)[None], b[None]) < 1e-10 * np.linalg.cond(system)


# --- passes inside tasks ------------------------------------------------------------------------------------


def product_in_a_task(K, V):
    """What a task does whose work is itself a pass, and which client it sees then."""
    with computing_here(Machine(1, 2, 2**28, 2**28)):
        view = K.center()
        (found,), _ = run_pass([view.lens()], [Columns(V, "each", None, DOUBLE)])
        return found, active_client() is None


def test_a_pass_inside_a_task(kernels, scheduler):
    """It runs in the task's own thread: tasks beside it and the caller keep where they compute."""
    K, V = in_memory(kernels, 9)[TRAIN, TRAIN], np.eye(len(TRAIN))[:, :2]
    before = active_client()
    tasks = [dask.delayed(product_in_a_task, pure=False)(K, (k + 1) * V) for k in range(3)]
    for k, (found, alone) in enumerate(dask.compute(*tasks)):
        assert alone
        assert error(found, (k + 1) * dense_view(kernels, TRAIN, TRAIN, ["center"])[:, :, :2]) < 1e-12
    assert active_client() is before
    assert isinstance(before, Client) == (scheduler == "processes")


def test_what_is_computed_here_ends_with_the_context():
    here = Machine(3, 3, 1, 1)
    outside = machine().slots

    def fail():
        assert machine() is here
        raise RuntimeError

    with pytest.raises(RuntimeError), computing_here(here):
        fail()
    assert machine().slots == outside


@pytest.mark.usefixtures("cutting", "tasks_of_parts")
def test_vectors_that_each_process_makes_once(kernels):
    """Those of a pass whose client holds none: the first task makes them, and the others take the same."""
    K = in_memory(kernels, 5)
    lenses = [lens(K, name) for name in LENSES]
    columns = [c for c in riders(lenses) if c.want == "each"]
    made = []

    def vectors():
        made.append(1)
        return [c.block for c in columns]

    hollow = [replace(c, block=np.broadcast_to(0.0, c.block.shape)) for c in columns]
    with dask.config.set(scheduler="threads", num_workers=4):
        graph = pass_graph(lenses, hollow, "apply-pass", vectors=vectors)
        found = execute([found for _, found in graph.groups], graph.units, "apply-pass")
        expected_ones = run_pass(lenses, columns)[0]
    assert len(graph.units) > N
    assert len(made) == 1
    for position, reference in enumerate(expected_ones):
        np.testing.assert_array_equal(np.concatenate([of_group[position] for of_group in found]), reference)
