"""Certificates of products in single precision: the rounding error is measured and included in every gap."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from helpers.optima import bounds, scale, solve
from helpers.references import in_memory
from helpers.subspaces import Problem
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics.pairwise import rbf_kernel

from dmkl.numerics.fisher import dual_norm
from dmkl.solvers.fisher.subspace.rounding import PROBES, rounding
from dmkl.solvers.weight_sets import Ball

NORMS = [1.0, 1.25, np.inf]
LAMBDAS = [1e-8, 1e-7, 1e-6, 1e-4, 1e-2, 10.0]
M, TRAIN = 240, 160

pytestmark = pytest.mark.usefixtures("rounds")


@given(st.integers(0, 2**32), st.integers(1, 4), st.sampled_from([1.0, 1.5, np.inf]), st.floats(-8, 1))
def test_errors_are_bounded(seed, n_blocks, p, exponent):
    """For products with any error, the residual and F − S deviate from the exact ones by at most the bound."""
    rng = np.random.default_rng(seed)
    n, m, c, lam = 3, 30, 2, 10.0**exponent
    ends = np.cumsum(rng.integers(1, 6, n_blocks + 1))
    blocks = [(0, int(ends[0])), *((int(a), int(b)) for a, b in itertools.pairwise(ends))]
    r = int(ends[-1])
    V, _ = np.linalg.qr(rng.standard_normal((m, r)))
    X = rng.standard_normal((n, m, m))
    K = X @ X.transpose(0, 2, 1)
    E = 10.0 ** rng.uniform(-9, -3) * rng.standard_normal((n, m, r)) * rng.random((n, 1, r)) ** 4
    E[:, :, : blocks[0][1]] = 0.0  # the first block is in double precision
    Z = rng.standard_normal((m, PROBES))
    W, errors = K @ V + E, Z.T @ E
    G = np.empty((n, r, r))
    for k, (first, last) in enumerate(blocks):
        cross = V.T @ W[:, :, first:last]
        if k:
            cross[:, : blocks[0][1]] = ((K @ V)[:, :, : blocks[0][1]]).transpose(0, 2, 1) @ V[:, first:last]
        G[:, :last, first:last] = cross[:, :last]
        G[:, first:last, :last] = cross[:, :last].transpose(0, 2, 1)
        G[:, first:last, first:last] = 0.5 * (cross[:, first:last] + cross[:, first:last].transpose(0, 2, 1))
    beta, a = rng.random(n), rng.standard_normal((r, c)) * 10.0 ** rng.uniform(-3, 0, (r, 1))
    (bound,) = rounding(errors, blocks[1:], [(beta, a)], [lam], [Ball(p)])
    hidden = np.tensordot(beta, E, axes=1) @ a / (2 * lam)
    assert np.linalg.norm(hidden) <= bound.residual
    exact, computed = (np.einsum("rc,nrs,sc->n", a, g, a) / (4 * lam) for g in (V.T @ K @ V, G))
    apart = abs((dual_norm(exact, p) - beta @ exact) - (dual_norm(computed, p) - beta @ computed))
    assert apart <= bound.weights + 1e-9 * np.abs(exact).sum()


def gaussian(rng, y):
    X = rng.standard_normal((4, M, 10)) + np.array([0.8, 0.0, 0.4, 0.0])[:, None, None] * y[None, :, None]
    return np.stack([rbf_kernel(table, gamma=0.05) for table in X])


def linear(rng, y):
    """Kernels of rank three: rounding is as large in their null space as in their range.

    Features are multiples of 1/16, so that the kernels are exact in single precision and positive semidefinite.
    """
    X = rng.standard_normal((4, M, 3)) + 0.5 * np.arange(4)[:, None, None] * y[None, :, None]
    X = np.round(16 * X) / 16
    return X @ X.transpose(0, 2, 1)


def offset(rng, y):
    """Kernels with a large offset, which centering removes; single precision leaves eigenvalues of about −1e-6."""
    return 30.0 + gaussian(rng, y)


def problem(kind, n_classes=2):
    rng = np.random.default_rng(0)
    y = rng.integers(0, n_classes, M)
    kernels = kind(rng, y).astype(np.float32)
    rows = rng.permutation(M)
    lams = [lam for lam in LAMBDAS if lam >= 1e-4 or kind is not offset]
    return Problem.of(in_memory(kernels, 64), kernels, y, [(rows[:TRAIN], rows[TRAIN:])], NORMS, lams)


RESIDUALS = {"use_preconditioners": False, "block": 24}


@pytest.mark.parametrize(
    ("kind", "n_classes", "options"),
    [
        (gaussian, 2, {}),
        (gaussian, 3, RESIDUALS),
        (linear, 2, RESIDUALS),
        (linear, 3, {}),
        (offset, 2, {}),
        (offset, 3, RESIDUALS),
    ],
)
def test_gaps_are_never_below_the_true_ones(kind, n_classes, options):
    """F(α) − J(β) ≤ gap · min(|S|, ‖H‖² − |S|) in double precision at the returned pair, for λ from 1e-8 to 10."""
    grid = problem(kind, n_classes)
    for k, outcome in enumerate(grid.run(finish="report", **options).results):
        kernels, h, lam, p = grid.parts(k)
        _, upper = bounds(kernels, outcome.dual, outcome.weights, h, lam, p)
        _, lower = solve(kernels, outcome.weights, h, lam)
        # The dense formulas resolve S to about ε/λ, relatively.
        size, unit = abs(outcome.objective), scale(outcome.objective, h)
        assert (upper - lower) / unit <= outcome.gap + (1e-9 + 1e-15 / lam) * size / unit
        assert outcome.gap <= 1e-4


def test_gaps_do_not_depend_on_the_unit_of_targets():
    """A power of two, so that every number is the same but for its exponent."""
    grid = problem(linear, 3)
    grid = grid._replace(jobs=grid.jobs[::5])
    h = 2.0**10 * grid.jobs[0].problem.h  # one array for all of them
    scaled = grid._replace(jobs=[replace(job, problem=replace(job.problem, h=h)) for job in grid.jobs])
    results, others = (some.run(finish="report", **RESIDUALS).results for some in (grid, scaled))
    for outcome, other in zip(results, others, strict=True):
        np.testing.assert_allclose(other.gap, outcome.gap, rtol=1e-9)
        np.testing.assert_array_equal(other.weights, outcome.weights)
