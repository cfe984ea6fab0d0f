"""Solver "stacked": against the subspace solver, held-out scores, subsets of kernels, states, and what it refuses."""

from __future__ import annotations

import dask
import numpy as np
import pytest

import dmkl
from dmkl.errors import IndefiniteKernelError, MemoryBudgetError
from dmkl.numerics.fisher import dual_norm
from dmkl.numerics.slope_model import weights_by_slopes
from dmkl.solvers.fisher import stacked
from dmkl.solvers.fisher.grid_in_memory import solve_grid
from dmkl.solvers.masters import newton_master
from dmkl.solvers.semidefinite import UNKNOWN
from dmkl.solvers.weight_sets.balls import Ball

pytestmark = pytest.mark.usefixtures("synchronous")


def kernels(m=40, n=5, seed=0):
    x = np.random.default_rng(seed).standard_normal((m, n))
    return np.stack([np.exp(-0.5 * (x[:, [j]] - x[:, j]) ** 2) for j in range(n)])


@pytest.mark.parametrize("kind", ["multiclass", "multilabel"])
def test_searches_find_the_same(kind):
    K, rng = kernels(), np.random.default_rng(1)
    y = rng.integers(0, 3, 40) if kind == "multiclass" else rng.integers(0, 2, (40, 2))
    grid = {"p": [1.0, 1 + 2**-6, 1.5, np.inf], "lam": [1e-6, 1e-2, 10.0]}
    found = [
        dmkl.search(dmkl.MKFDA(solver=solver, tol=1e-6), K, y, grid, 2, refit=False).scores
        for solver in ("subspace", "stacked")
    ]
    assert (found[1]["status"] == 0).all()
    for name, tolerance in (("objective", 2e-6), ("weight", 5e-3), ("score", 1e-9)):
        np.testing.assert_allclose(found[1][name], found[0][name], rtol=tolerance, atol=tolerance)


def test_gaps_are_those_of_the_pairs_that_come_back():
    K, h = kernels(), np.random.default_rng(0).standard_normal((40, 2))
    K = K + 1e-3 * np.eye(40)
    points = [(1.25, 1e-2), (1.0, 1.0)]
    (found,) = solve_grid(K, [h], points, 1e-6, 50, UNKNOWN)
    for (p, lam), one in found.items():
        q = np.einsum("mc,nmk,kc->n", one.alpha, K, one.alpha) / (4 * lam)
        linear = 0.25 * np.sum(one.alpha**2) - np.sum(h * one.alpha)
        residual = h - 0.5 * one.alpha - np.tensordot(one.beta, K, 1) @ one.alpha / (2 * lam)
        objective, upper = linear + one.beta @ q, linear + dual_norm(q, p)
        assert one.objective == pytest.approx(objective)
        assert one.gap == pytest.approx((upper - objective + np.sum(residual**2)) / abs(objective), abs=1e-12)
        assert one.left <= 1e-6


def test_many_targets_with_several_points_are_its_by_default():
    K, y = kernels(36), np.random.default_rng(0).integers(0, 2, (36, 33))
    y[:2], y[18:20] = [[0], [1]], [[0], [1]]
    grid = {"p": [1.5, 2.0], "lam": [0.1]}
    assert (
        dmkl.search(dmkl.MKFDA(), K, y, grid, [(np.arange(18), np.arange(18, 36))], refit=False).scores.solver
        == "stacked"
    )
    assert dmkl.search(dmkl.MKFDA(), K, y[:, :2], grid, 2, refit=False).scores.solver == "subspace"


def test_some_targets_whose_columns_fill_the_space_are_its_by_default():
    K, y = kernels(36), np.random.default_rng(0).integers(0, 2, (36, 10))
    y[:2], y[18:20] = [[0], [1]], [[0], [1]]
    fold = [(np.arange(18), np.arange(18, 36))]
    grid = {"p": [1.5, 2.0], "lam": [0.1]}
    for n_tasks, solver in ((10, "stacked"), (7, "subspace")):
        assert dmkl.search(dmkl.MKFDA(), K, y[:, :n_tasks], grid, fold, refit=False).scores.solver == solver


def test_points_that_stay_open_tell_the_gap_of_their_pair():
    K, rng = kernels() + 1e-3 * np.eye(40), np.random.default_rng(0)
    targets = [rng.standard_normal((40, 2)) for _ in range(3)]
    found = solve_grid(K, targets, [(1.25, 1e-2)], 1e-12, 1, UNKNOWN)
    for h, mine in zip(targets, found, strict=True):
        (one,) = mine.values()
        residual = h - 0.5 * one.alpha - np.tensordot(one.beta, K, 1) @ one.alpha / 2e-2
        assert one.left > 1e-12
        assert one.excess == pytest.approx(np.sum(residual**2), abs=1e-20)
        assert one.gap == pytest.approx((one.upper - one.objective + one.excess) / abs(one.objective))


@pytest.mark.parametrize("p", [1 + 2**-6, 1.5, 3.0])
def test_weights_by_a_model_agree_with_the_cone_program_where_slopes_hardly_change(p):
    rng = np.random.default_rng(0)
    q, a = rng.uniform(1, 2, (2, 6)), rng.standard_normal((2, 6, 6))
    curvature, beta = 1e-7 * a @ a.transpose(0, 2, 1), np.full((2, 6), 6 ** (-1 / p))
    found = weights_by_slopes(q, curvature, beta, p)
    expected = [newton_master(*each, Ball(p)) for each in zip(q, curvature, beta, strict=True)]
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_what_is_not_semidefinite_or_too_large_is_refused():
    K, y = kernels(), np.arange(40) % 2
    bad = K - 5.0 * np.eye(40)
    with pytest.raises(IndefiniteKernelError):
        solve_grid(bad, [np.ones((40, 1))], [(2.0, 0.1)], 1e-6, 50, UNKNOWN)
    with dask.config.set({"dmkl.memory": 100_000}), pytest.raises(MemoryBudgetError, match="solver='stacked' holds"):
        dmkl.search(dmkl.MKFDA(solver="stacked"), K, y, {"lam": [0.1], "p": [2.0, 3.0]}, 2, refit=False)


@pytest.mark.slow
def test_tasks_take_some_ridges_of_many_targets_and_all_of_few(monkeypatch):
    """Each point of each target is solved once, whichever task it is of."""
    taken, plain = [], stacked._solve_chunk

    def solve(*given):
        taken.append((given[2], len(given[6])))
        return plain(*given)

    monkeypatch.setattr(stacked, "_solve_chunk", solve)
    K, rng = kernels(36), np.random.default_rng(0)
    y = np.stack([rng.permutation(np.arange(36) % 2) for _ in range(300)], axis=1)
    y[:2], y[18:20] = [[0], [1]], [[0], [1]]
    grid, folds = {"p": [1.5, np.inf], "lam": [1e-2, 0.1, 1.0]}, [(np.arange(18), np.arange(18, 36))]
    model = dmkl.MKFDA(solver="stacked")
    many = dmkl.search(model, K, y, grid, folds, refit=False).scores
    assert sorted({lam for points, _ in taken for _, lam in points}) == grid["lam"]
    assert all(len({lam for _, lam in points}) == 1 for points, _ in taken)
    assert sum(len(points) * n for points, n in taken) == 300 * 6
    taken.clear()
    few = dmkl.search(model, K, y[:, :5], grid, folds, refit=False).scores
    assert [(len(points), n) for points, n in taken] == [(6, 5)]
    np.testing.assert_allclose(many["objective"][..., :5], few["objective"], rtol=2e-4)
