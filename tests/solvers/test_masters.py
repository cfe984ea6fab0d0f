"""The restricted masters against cvxpy."""

import cvxpy as cp
import numpy as np
import pytest
from helpers.optima import norm

from dmkl.numerics.fisher import onto_sphere
from dmkl.solvers.masters import CuttingPlane, exact_master, taylor_master
from dmkl.solvers.weight_sets import Ball

EXPONENTS = [1.0, 1 + 2**-6, 1.5, 2.0, 3.0, 8.0, np.inf]
N = 6


def cuts_at(seed, rounds):
    """Planes above the concave −‖Bβ − 1‖², as from the rounds of an algorithm."""
    rng = np.random.default_rng(seed)
    b = rng.uniform(0, 0.5, (N, N))
    cuts = []
    for beta in rng.dirichlet(np.ones(N), rounds):
        slopes = -2 * b.T @ (b @ beta - 1)
        cuts.append(CuttingPlane(float(-np.sum((b @ beta - 1) ** 2) - slopes @ beta), slopes))
    return cuts


@pytest.mark.parametrize(("p", "rounds"), list(zip(EXPONENTS, [1, 2, 9, 1, 2, 9, 9], strict=True)))
@pytest.mark.parametrize("master", [exact_master, taylor_master])
def test_masters_of_cutting_planes(master, p, rounds):
    """Taylor's constraint is Eq. 11 of the JMLR paper at the current weights, the norm itself for p = 1 and ∞."""
    for seed in range(3):
        cuts, beta = cuts_at(seed, rounds), cp.Variable(N)
        at = onto_sphere(np.random.default_rng(seed + 99).uniform(0.1, 1, N), p)
        weights = exact_master(cuts, Ball(p))[0] if master is exact_master else taylor_master(cuts, at, Ball(p))
        assert (weights >= 0).all()
        assert norm(weights, p) == pytest.approx(1, rel=1e-12)
        size = cp.norm_inf(beta) if np.isinf(p) else cp.pnorm(beta, p, approx=False)
        if master is taylor_master and 1 < p < np.inf:
            a, slope, constant = p * (p - 1) / 2 * at ** (p - 2), -p * (p - 2) * at ** (p - 1), p * (p - 3) / 2 + 1
            size = cp.sum(cp.multiply(a, beta**2)) + slope @ beta + constant
            # The master's own point, before it was scaled onto the sphere: ν(s·weights) = 1.
            weights = weights * max(np.roots([a @ weights**2, slope @ weights, constant - 1]))
        height = cp.Variable()
        planes = [cut.constant + cut.gradient @ beta >= height for cut in cuts]
        best = cp.Problem(cp.Maximize(height), [beta >= 0, size <= 1, *planes]).solve(solver=cp.CLARABEL)
        lowest = min(cut.constant + cut.gradient @ weights for cut in cuts)
        assert lowest == pytest.approx(best, rel=1e-7, abs=1e-8)
