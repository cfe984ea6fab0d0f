"""Solver "stacked": against dense arithmetic, other solvers and single problems; precision, far targets, errors."""

from types import SimpleNamespace

import dask
import numpy as np
import pytest
from helpers.optima import bounds, proven_gap, scale, slopes, system, value
from helpers.references import dense_view
from sklearn.metrics.pairwise import rbf_kernel

import dmkl
from dmkl.errors import IndefiniteKernelError, InputError, MemoryBudgetError
from dmkl.numerics.semidefinite import UNKNOWN
from dmkl.solvers.fisher import many
from dmkl.solvers.fisher.many import solve_grid

M = 45
POINTS = [(p, lam) for p in (1.0, 1 + 2**-6, 1.5, 4.0, np.inf) for lam in (1e-8, 1e-4, 1e-2, 1.0)]


def kernels():
    """Centered kernels of unit trace over the training rows, ten held-out rows below."""
    x = np.random.default_rng(0).standard_normal((M + 10, 6))
    stacked = np.stack([rbf_kernel(part, gamma=g) for g in (0.05, 0.3, 2.0) for part in (x, x[:, :2])])
    return dense_view(stacked, cols=range(M), steps=("center", "trace"))


def permuted(n, seed=1):
    rng = np.random.default_rng(seed)
    labels = np.arange(M) % 3
    return [np.eye(3)[rng.permutation(labels)] - 1 / 3 for _ in range(n)]


def solve(K, targets, points, tol, max_steps=200):
    """Solve on kernels (n, rows, m), whose first m rows are the training rows."""
    m = K.shape[2]
    square, held_out = (np.ascontiguousarray(part) for part in (K[:, :m], K[:, m:]))
    tables = solve_grid(square, held_out, targets, points, tol, max_steps, UNKNOWN, np.float64)
    return [
        {
            point: SimpleNamespace(**{name: table[t, g] for name, table in tables.items()})
            for g, point in enumerate(points)
        }
        for t in range(len(targets))
    ]


def check_solutions(K, targets, solved, tol):
    """Compare the results with dense arithmetic in double precision."""
    square = K[:, :M]
    for h, of_target in zip(targets, solved, strict=True):
        for (p, lam), solution in of_target.items():
            beta, alpha = solution.weights, solution.dual
            A, of_kernels = system(square, beta, lam), beta @ slopes(square, alpha, lam)
            rounding = 2e-5 * of_kernels
            assert np.linalg.norm(beta, p) == pytest.approx(1.0)
            assert solution.objective == pytest.approx(value(square, alpha, beta, h, lam), abs=rounding)
            assert solution.upper == pytest.approx(bounds(square, alpha, beta, h, lam, p)[1], abs=rounding)
            residual = h - A @ alpha
            excess = 0.5 * np.sum(residual * np.linalg.solve(A, residual))
            proven = solution.gap * scale(solution.objective, h) - (solution.upper - solution.objective)
            assert excess <= proven + 1e-2 * rounding
            assert solution.gap <= tol
            scores = np.tensordot(beta, K[:, M:], 1) @ alpha
            np.testing.assert_allclose(solution.scores, scores, atol=2e-5 * np.abs(scores).max())


DEPENDENT = np.random.default_rng(2).standard_normal((14, 3, 5))
"""Targets of three columns times these have five columns of rank two."""


@pytest.mark.parametrize(
    ("tol", "n_targets", "turned", "points"),
    [
        (1e-5, 1, np.eye(3), POINTS),
        (1e-5, 14, np.eye(3), POINTS),
        (1e-9, 14, np.eye(3), POINTS),
        (1e-5, 14, 1e-18 * np.eye(3), POINTS),
        (1e-5, 14, DEPENDENT, POINTS[::3]),  # from p = ∞ to 1 + 2⁻⁶ at once, too far for a model of the gradient
    ],
)
def test_solutions_are_proven_by_dense_arithmetic(tol, n_targets, turned, points):
    K, targets = kernels(), list(np.stack(permuted(n_targets)) @ turned)
    check_solutions(K, targets, solve(K, targets, points, tol), tol)


def gaussian(m=40, n=5, seed=0):
    x = np.random.default_rng(seed).standard_normal((m, n))
    return np.stack([np.exp(-0.5 * (x[:, [j]] - x[:, j]) ** 2) for j in range(n)])


def test_targets_unlike_the_others_get_factors_of_their_own(monkeypatch):
    K, targets = kernels(), permuted(14)
    values, vectors = np.linalg.eigh(K[1, :M])
    targets[0] = np.concatenate([vectors[:, -2:] * np.sqrt(values[-2:]), np.zeros((M, 1))], axis=1)
    monkeypatch.setattr(many, "_SHARED_STEPS", 1)
    check_solutions(K, targets, solve(K, targets, POINTS, 1e-7), 1e-7)


def test_the_bound_of_a_residual_holds_and_is_sharp_in_the_directions_of_a_kernel_that_loses_weight():
    """S(α, β) − min S = ½rᵀW⁻¹r in whitened coordinates, which the bound rᵀW̄⁻¹r/2μ may not be below."""
    m, rng = 12, np.random.default_rng(4)
    kernels = np.zeros((3, m, m))
    for j in range(3):  # kernels of separate samples: W ≈ (β_j/β̄_j) W̄ over those of kernel j, if λ is small
        block = slice(4 * j, 4 * j + 4)
        kernels[j, block, block] = 0.25 * np.eye(4) + 0.05 * np.cov(rng.normal(size=(4, 9)))
    mean, smallest = np.full(3, 1 / 3), np.array([0.02, 0.5, 0.48])
    problems = SimpleNamespace(kernels=kernels, held_out=np.zeros((3, 0, m)), facts=UNKNOWN, targets=[np.eye(m)[:, :1]])
    white = many._Whitened(problems, 1e-6, mean, np.float64)
    betas = np.vstack([smallest, rng.dirichlet(np.ones(3), 40)])
    h = rng.normal(size=(len(betas), 1, m))
    h[0, 0] = np.r_[rng.normal(size=4), np.zeros(8)]  # in the samples of the kernel that loses weight
    _, bound = many._Mean(white, mean).solve(betas, h, np.zeros_like(h), np.full(len(betas), np.inf))
    excess = [0.5 * r[0] @ np.linalg.solve(white.system(beta), r[0]) for beta, r in zip(betas, h, strict=True)]
    assert (bound >= np.array(excess) * (1 - 1e-9)).all()
    assert bound[0] == pytest.approx(excess[0], rel=1e-3)


def test_points_that_stay_open_have_the_gap_of_their_pair():
    K, rng = gaussian() + 1e-3 * np.eye(40), np.random.default_rng(0)
    targets = [rng.standard_normal((40, 2)) for _ in range(3)]
    for h, of_target in zip(targets, solve(K, targets, [(1.25, 1e-2)], 1e-12, 1), strict=True):
        (solution,) = of_target.values()
        assert solution.gap > 1e-12
        expected = proven_gap(K, solution.dual, solution.weights, h, 1e-2, 1.25)
        assert solution.gap == pytest.approx(expected, rel=1e-6)


def test_targets_that_fill_the_space_are_its_by_default():
    K, rng = gaussian(36), np.random.default_rng(0)
    y = rng.integers(0, 2, (36, 33))
    y[:2], y[18:20] = [[0], [1]], [[0], [1]]
    fold = [(np.arange(18), np.arange(18, 36))]
    grid = {"p": [1.5, 2.0], "lam": [0.1]}
    for n_tasks, solver in ((10, "stacked"), (7, "subspace")):
        assert dmkl.search(dmkl.MKFDA(), K, y[:, :n_tasks], grid, fold, refit=False).scores.solver == solver


def test_kernels_that_are_not_semidefinite_are_refused():
    K = kernels()
    K[2, :M] -= 0.5 * np.eye(M)
    with pytest.raises(IndefiniteKernelError):
        solve(K, permuted(14), [(2.0, 1e-3)], 1e-5)
    with pytest.raises(IndefiniteKernelError):
        solve(gaussian() - 5.0 * np.eye(40), [np.ones((40, 1))], [(2.0, 0.1)], 1e-6)


def test_sets_of_weights_and_kernels_that_do_not_fit_are_refused():
    K, y, model = gaussian(), np.arange(40) % 2, dmkl.MKFDA(solver="stacked")
    with dask.config.set({"dmkl.memory": 100_000}), pytest.raises(MemoryBudgetError, match="'stacked' would take"):
        dmkl.search(model, K, y, {"lam": [0.1], "p": [2.0, 3.0]}, 2, refit=False)
    with pytest.raises(InputError, match="solver='stacked' learns weights in the ball of a norm only"):
        dmkl.search(model.set_params(kernel_groups=[0, 0, 1, 1, 1]), K, y, {"p": [2.0], "lam": [0.1]}, 2, refit=False)
