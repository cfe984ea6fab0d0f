"""The interleaved solver: against exact optima, what it reads, products of tile columns against dense matrices."""

from __future__ import annotations

from collections import Counter

import dask
import numpy as np
import pytest
from helpers.optima import STEPS, bounds, case, few_digits, norm, optimum, pairwise_covered, value
from helpers.references import Counting, dense_view, error, in_memory, over, psd, stepped

import dmkl
from dmkl.errors import ConvergenceWarning, IndefiniteKernelError, MemoryBudgetError
from dmkl.numerics.fisher import uniform_weights
from dmkl.solvers.driver import drive
from dmkl.solvers.fisher.descent import WorkingSetSource, descend, least_columns
from dmkl.solvers.fisher.problem import FisherOptions, FisherProblem
from dmkl.solvers.fisher.working_sets import working_sets
from dmkl.solvers.outcome import Status
from dmkl.solvers.requests import CombinedEntries, EachProduct
from dmkl.solvers.weight_sets.balls import Ball

EXPONENTS = [1.0, 1.0625, 1.5, 2.0, 8.0, np.inf]
LAMBDAS = [1.0, 1e-2, 1e-3]


def lens_of(K):
    return K.lens()


def single(request):
    """A solver that asks once and returns the answer."""
    return (yield request)


# --- against exact solutions ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("synchronous")
@pytest.mark.parametrize(("p", "lam", "kind"), pairwise_covered(EXPONENTS, LAMBDAS))
def test_agrees_with_the_optimum_and_proves_it(p, lam, kind):
    kernels, labels, targets = case(kind)
    K, source = over(in_memory(few_digits()[0], 8), Counting)
    # S hardly depends on β where λ is large: its weights need a small gap.
    model = dmkl.MKFDA(p, lam, solver="interleaved", tol=1e-4 if lam < 1e-2 else 1e-7).fit(K, labels)
    direct = dmkl.MKFDA(p, lam, solver="direct", tol=1e-8).fit(in_memory(few_digits()[0], 20), labels)
    expected = direct.weights_.values.reshape(len(kernels), -1)
    assert model.solver_ == "interleaved"
    assert model.status_ == Status.CERTIFIED.advice
    weights = model.weights_.values.reshape(len(kernels), -1)
    alphas = np.split(model.dual_coef_.values, weights.shape[1], axis=1)
    gaps, objectives = np.atleast_1d(model.gap_), np.atleast_1d(model.objective_)
    for k, h in enumerate(targets):
        exact = optimum(kernels, h, lam, p)
        lower, upper = bounds(kernels, alphas[k], weights[:, k], h, lam, p)
        assert gaps[k] <= model.tol
        assert gaps[k] == pytest.approx((upper - lower) / abs(objectives[k]), rel=1e-3, abs=1e-10)
        assert objectives[k] == pytest.approx(value(kernels, alphas[k], weights[:, k], h, lam), rel=1e-9)
        assert lower - 2e-6 * abs(exact) <= exact <= upper + 2e-6 * abs(exact)
        assert objectives[k] == pytest.approx(exact, rel=1e-4)
        assert norm(weights[:, k], p) == pytest.approx(1.0)
        np.testing.assert_allclose(weights[:, k], expected[:, k], atol=3e-3 if lam < 1e-2 else 1e-3)
    # What it says it has read is what was read.
    read = sum(source.reads.values()) / (len(K) * len(K.view.tile_tasks()))
    assert model.n_passes_ == pytest.approx(read)


@pytest.mark.usefixtures("synchronous")
@pytest.mark.parametrize("tile", [3, 7, 20, 64])
def test_tiles_of_any_size(tile):
    """Several tile columns a set, ragged ones, and all in one."""
    _, labels, _ = case("multiclass")
    K, source = over(in_memory(few_digits()[0], tile), Counting)
    model = dmkl.MKFDA(1.5, 1e-2, solver="interleaved", tol=1e-6).fit(K, labels)
    direct = dmkl.MKFDA(1.5, 1e-2, solver="direct", tol=1e-8).fit(K, labels)
    np.testing.assert_allclose(model.weights_, direct.weights_, atol=1e-3)
    assert model.objective_ == pytest.approx(direct.objective_, rel=1e-5)
    assert model.history_.passes.values[-1] == pytest.approx(model.n_passes_)
    assert len(working_sets(lens_of(K), 10**6)) == min(16, -(-45 // tile))
    assert source.reads


def test_everywhere(scheduler):
    _, labels, _ = case("binary")
    K = in_memory(few_digits()[0], 64)
    model = dmkl.MKFDA(2.0, 1.0, solver="interleaved", tol=1e-3).fit(K, labels)
    with dask.config.set(scheduler="synchronous"):
        here = dmkl.MKFDA(2.0, 1.0, solver="interleaved", tol=1e-3).fit(K, labels)
    assert model.gap_ <= 1e-3
    assert model.n_passes_ == here.n_passes_
    np.testing.assert_allclose(model.weights_, here.weights_, rtol=1e-9)


# --- what a step reads ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("synchronous")
def test_a_step_reads_its_tile_columns_and_no_more():
    _, _, (h,) = case("multiclass")
    shuffled = np.random.default_rng(0).permutation(45)
    K, source = over(in_memory(few_digits()[0], 8), Counting)
    K = K[shuffled, shuffled].center().normalize("trace")
    h, lens = h[shuffled], lens_of(K)
    kernels = dense_view(few_digits()[0], shuffled, shuffled, STEPS)
    sets = working_sets(lens, 10**6)
    solver = descend(
        FisherProblem(h, 1e-3, Ball(1.5)), len(K), WorkingSetSource(sets, 1e-3, 3, 9), FisherOptions(1e-6), capacity=45
    )
    seen, answer = Counter(), None
    while True:
        try:
            request = solver.send(answer)
        except StopIteration as stop:
            solution = stop.value
            break
        index = request.columns if isinstance(request, EachProduct) else request.index
        (number,) = [k for k, one in enumerate(sets) if np.array_equal(one.index, index)]
        # All samples of one tile column, the most violating of all; its factor is asked for once.
        (tile,) = set((shuffled[index] // 8).tolist())
        source.reads.clear()
        (answer,), read = drive([(lens, single(request))])
        tiles = {(i, j) for _, i, j in source.reads}
        if isinstance(request, CombinedEntries):
            assert number not in seen
            assert tiles == {(tile, tile)}
            assert read == pytest.approx(sets[number].block_passes)
            np.testing.assert_allclose(
                answer, np.tensordot(request.weights, kernels[:, index][:, :, index], axes=1), atol=1e-12
            )
        else:
            assert tiles == {(min(i, tile), max(i, tile)) for i in range(6)}
            assert read == pytest.approx(sets[number].column_passes) == pytest.approx(6 / 21)
            seen[number] += 1
            assert request.block.shape[1] <= 5
        assert set(source.reads.values()) == {1}
        assert len(source.reads) == len(K) * len(tiles)
    assert solution.status is Status.CERTIFIED
    assert set(seen) == set(range(6))
    assert sum(seen.values()) == len(solution.steps) == solution.steps[-1].figures["products"]


@pytest.mark.usefixtures("synchronous")
def test_the_most_violating_set_goes_first():
    kernels, _, (h,) = case("multiclass")
    sets = working_sets(lens_of(in_memory(kernels, 8)), 10**6)
    solver = descend(
        FisherProblem(h, 1e-2, Ball(2.0)),
        len(kernels),
        WorkingSetSource(sets, 1e-2, 3, 9),
        FisherOptions(),
        capacity=45,
    )
    beta, residual, alpha, directions, request = uniform_weights(5, 2.0), h, None, [], next(solver)
    for _ in range(8):
        violation = [np.sum(residual[one.index] ** 2) for one in sets]
        chosen = sets[int(np.argmax(violation))].index
        if isinstance(request, CombinedEntries):
            np.testing.assert_array_equal(request.index, chosen)
            request = solver.send(np.tensordot(request.weights, kernels[:, chosen][:, :, chosen], axes=1))
        np.testing.assert_array_equal(request.columns, chosen)
        direction = np.zeros((45, request.block.shape[1]))
        direction[chosen] = request.block
        directions.append(direction)
        request = solver.send(kernels[:, :, chosen] @ request.block)
        # α is the exact solution on the span of all directions, with the weights that go with it.
        basis = np.linalg.svd(np.concatenate(directions, axis=1), full_matrices=False)
        basis = basis[0][:, basis[1] > 1e-8 * basis[1][0]]
        reduced = basis.T @ kernels @ basis
        beta = solver.gi_frame.f_locals["beta"]
        alpha = basis @ np.linalg.solve(
            0.5 * np.eye(basis.shape[1]) + np.tensordot(beta, reduced, 1) / 0.02, basis.T @ h
        )
        residual = h - 0.5 * alpha - np.tensordot(beta, kernels @ alpha, axes=1) / 0.02


@pytest.mark.usefixtures("synchronous")
def test_problems_share_what_they_read():
    _, labels, _ = case("multilabel")
    K = in_memory(few_digits()[0], 8)
    together = dmkl.MKFDA(2.0, 1e-2, solver="interleaved").fit(K, labels)
    alone = [dmkl.MKFDA(2.0, 1e-2, solver="interleaved").fit(K, column) for column in labels.T]
    assert max(one.n_passes_ for one in alone) <= together.n_passes_ < sum(one.n_passes_ for one in alone)
    assert drive([], at_once=2) == ([], 0)


# --- products of tile columns -----------------------------------------------------------------------------------

SHUFFLED = np.random.default_rng(5).permutation(31)
SOME = (np.array([7, 1, 3, 0, 12, 5, 9]),) * 2
AGAIN = np.array([3, 3, 28, 0, 12, 28, 5])
CHAINS = {
    "raw": (None, ()),
    "center": (None, ("center",)),
    "training": (SHUFFLED[:14], ("center", "trace")),
    "variance": (SHUFFLED[:14], ("center", "multiplicative")),
    "unit norm": (SHUFFLED[:14], ("center", "cosine")),
    "unit norm first": (SHUFFLED, ("cosine", "center", "trace")),
    "some of a training set": (SHUFFLED[3:21], ("center", SOME, "trace", "center")),
    "some of unit norm": (SHUFFLED[3:21], ("cosine", "center", SOME, "cosine", "center", "multiplicative")),
    "samples again": (AGAIN, ("center", "trace")),
}


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.usefixtures("synchronous")
def test_columns_and_blocks_of_any_view(chain):
    rows, steps = CHAINS[chain]
    kernels = psd(3, 31, seed=4)
    K, source = over(in_memory(kernels, 6), Counting)
    K = stepped(K if rows is None else K[rows, rows], steps)
    expected = dense_view(kernels, rows, rows, steps)
    rng, lens = np.random.default_rng(1), lens_of(K)
    tiles = K.view.final_positions()[0] // 6
    index = np.flatnonzero(np.isin(tiles, tiles[[0, -1]]))
    v, beta = rng.standard_normal((len(index), 2)), np.array([0.7, 0.0, 0.4])
    source.reads.clear()
    asked = [
        single(EachProduct(v, index)),
        single(CombinedEntries(beta, index)),
        single(EachProduct(v[:2, :1], index[:2])),
    ]
    answers, _ = drive([(lens, one) for one in asked])
    used = set(tiles[index].tolist())
    assert all(used & {i, j} for _, i, j in source.reads)
    assert error(answers[0], expected[:, :, index] @ v) < 1e-12
    assert error(answers[1][None], np.tensordot(beta, expected, 1)[index][:, index][None]) < 1e-12
    assert error(answers[2], expected[:, :, index[:2]] @ v[:2, :1]) < 1e-12


def test_columns_beside_whole_passes(scheduler):
    """Both kinds of request in one pass, through two lenses."""
    kernels = psd(3, 31, seed=4)
    K = in_memory(kernels, 6)
    sets = [stepped(K[rows, rows], STEPS) for rows in (SHUFFLED[:14], SHUFFLED[9:])]
    exact = [dense_view(kernels, rows, rows, STEPS) for rows in (SHUFFLED[:14], SHUFFLED[9:])]
    v, index = np.random.default_rng(1).standard_normal((22, 2)), np.array([4, 0, 11])
    lenses = [lens_of(one) for one in sets]
    jobs = [
        (lenses[0], single(EachProduct(v[:3], index))),
        (lenses[1], single(EachProduct(v))),
        (lenses[1], single(EachProduct(v[:3], index))),
    ]
    answers, passes = drive(jobs)
    assert passes == 1
    assert error(answers[0], exact[0][:, :, index] @ v[:3]) < 1e-12
    assert error(answers[1], exact[1] @ v) < 1e-12
    assert error(answers[2], exact[1][:, :, index] @ v[:3]) < 1e-12


@pytest.mark.usefixtures("synchronous")
def test_working_sets_follow_the_tiles():
    K = stepped(in_memory(psd(2, 31), 2)[SHUFFLED[:25], SHUFFLED[:25]], STEPS)
    for largest in (1, 4, 10**6):
        sets = working_sets(lens_of(K), largest)
        np.testing.assert_array_equal(np.sort(np.concatenate([one.index for one in sets])), np.arange(25))
        tiles = [set((SHUFFLED[one.index] // 2).tolist()) for one in sets]
        assert sum(map(len, tiles)) == len(set().union(*tiles))
        # 16 sets at least where there are as many tile columns, and no set larger than allowed but by whole tiles.
        n_tiles = len(set().union(*tiles))
        assert len(sets) == min(n_tiles, 16 if largest > 1 else n_tiles)
        for one in sets:
            assert 0 < one.block_passes <= one.column_passes <= 1


# --- memory, endings, neighbours ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("synchronous")
def test_certifies_with_the_least_memory():
    """One factor, and the fewest directions there may be."""
    kernels, _, (h,) = case("multiclass")
    lens = lens_of(in_memory(kernels, 8))
    sets = working_sets(lens, 10**6)
    steps = WorkingSetSource(sets, 1e-2, 3, 1)
    capacity = least_columns(3, steps.width)
    (solution,), _ = drive(
        [(lens, descend(FisherProblem(h, 1e-2, Ball(1.5)), 5, steps, FisherOptions(), capacity=capacity))]
    )
    assert solution.status is Status.CERTIFIED
    lower, upper = bounds(kernels, solution.dual, solution.weights, h, 1e-2, 1.5)
    assert (upper - lower) / abs(solution.objective) <= 1.001e-4


@pytest.mark.usefixtures("synchronous")
def test_what_does_not_fit_is_refused():
    K, labels = in_memory(few_digits()[0], 5), case("multiclass")[1]
    with dask.config.set({"dmkl.memory": "30kB"}), pytest.raises(MemoryBudgetError, match="solver='subspace'"):
        dmkl.MKFDA(1.5, 1e-2, solver="interleaved").fit(K, labels)


@pytest.mark.usefixtures("synchronous")
def test_what_is_left_is_told():
    K, labels = in_memory(few_digits()[0], 8), case("multiclass")[1]
    with pytest.warns(ConvergenceWarning, match="raise max_iter"):
        early = dmkl.MKFDA(2.0, 1e-3, solver="interleaved", max_iter=1).fit(K, labels)
    assert 1 <= early.n_passes_ + 1e-9 < 1.4
    assert early.gap_ > 1e-4
    with pytest.warns(ConvergenceWarning, match="arithmetic resolves no more"):
        stalled = dmkl.MKFDA(2.0, 1e-3, solver="interleaved", tol=1e-30).fit(K, labels)
    assert stalled.gap_ < 1e-8


@pytest.mark.usefixtures("synchronous")
def test_an_indefinite_kernel_is_named():
    kernels, y = few_digits()
    bad = kernels.copy()
    bad[2] -= 3 * np.outer(bad[2][0], bad[2][0]) / bad[2][0, 0]
    with pytest.raises(IndefiniteKernelError, match="dmkl check"):
        dmkl.MKFDA(2.0, 1e-2, solver="interleaved", steps=("center",)).fit(in_memory(bad, 8), y)


@pytest.mark.usefixtures("synchronous")
def test_searches_and_reads_memory(tmp_path):
    K, labels = in_memory(few_digits()[0], 12), case("multiclass")[1]
    found = dmkl.search(dmkl.MKFDA(solver="interleaved"), K, labels, {"p": [1, 2], "lam": [1e-2, 1e-1]}, cv=2)
    assert (found.scores.gap.values <= 1e-4).all()
    assert found.best_.solver_ == "interleaved"
    held = dmkl.MKFDA(1.5, solver="interleaved").fit(K.persist(), labels)
    fresh = dmkl.MKFDA(1.5, solver="interleaved").fit(K, labels)
    np.testing.assert_allclose(held.weights_, fresh.weights_, rtol=1e-9)
    assert held.objective_ == pytest.approx(fresh.objective_, rel=1e-9)
    held.save(tmp_path / "model")
    assert dmkl.load(tmp_path / "model").n_passes_ == held.n_passes_
