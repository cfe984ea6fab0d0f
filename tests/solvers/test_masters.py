"""The restricted masters against cvxpy."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
from helpers.optima import norm

from dmkl.numerics.fisher import onto_sphere, uniform_weights
from dmkl.solvers.masters import CuttingPlane, exact_master, newton_master, taylor_form, taylor_master
from dmkl.solvers.weight_sets.balls import Ball

EXPONENTS = [1.0, 1 + 2**-6, 1.5, 2.0, 3.0, 8.0, np.inf]
N = 6


def ball(beta, p):
    """‖β‖_p ≤ 1 and β ≥ 0, as cvxpy has it."""
    return [beta >= 0, cp.norm_inf(beta) <= 1 if np.isinf(p) else cp.pnorm(beta, p, approx=False) <= 1]


def solved(objective, constraints):
    return cp.Problem(cp.Maximize(objective), constraints).solve(solver=cp.CLARABEL)


def cuts_at(seed, rounds):
    """Planes above the concave −‖Bβ − 1‖², as rounds of an algorithm would find them."""
    rng = np.random.default_rng(seed)
    b = rng.uniform(0, 0.5, (N, N))
    cuts = []
    for beta in rng.dirichlet(np.ones(N), rounds):
        slopes = -2 * b.T @ (b @ beta - 1)
        cuts.append(CuttingPlane(float(-np.sum((b @ beta - 1) ** 2) - slopes @ beta), slopes))
    return cuts


def lowest(cuts, beta):
    return min(cut.constant + cut.gradient @ beta for cut in cuts)


def best_under(cuts, constraints, beta):
    height = cp.Variable()
    planes = [cut.constant + cut.gradient @ beta >= height for cut in cuts]
    return solved(height, planes + constraints)


@pytest.mark.parametrize("rounds", [1, 2, 9])
@pytest.mark.parametrize("p", EXPONENTS)
def test_exact_master(p, rounds):
    for seed in range(3):
        cuts, beta = cuts_at(seed, rounds), cp.Variable(N)
        found = exact_master(cuts, Ball(p))
        assert (found >= 0).all()
        assert norm(found, p) == pytest.approx(1, rel=1e-12)
        assert lowest(cuts, found) == pytest.approx(best_under(cuts, ball(beta, p), beta), rel=1e-7, abs=1e-8)


@pytest.mark.parametrize("rounds", [1, 2, 9])
@pytest.mark.parametrize("p", EXPONENTS)
def test_taylor_master(p, rounds):
    """The constraint is Eq. 11 of the JMLR paper at the current weights, the norm itself for p = 1 and ∞."""
    for seed in range(3):
        cuts, beta = cuts_at(seed, rounds), cp.Variable(N)
        at = onto_sphere(np.random.default_rng(seed + 99).uniform(0.1, 1, N), p)
        found = taylor_master(cuts, at, Ball(p))
        assert (found >= 0).all()
        assert norm(found, p) == pytest.approx(1, rel=1e-12)
        constraints = ball(beta, p)
        if 1 < p < np.inf:
            a, slope, constant = p * (p - 1) / 2 * at ** (p - 2), -p * (p - 2) * at ** (p - 1), p * (p - 3) / 2 + 1
            constraints = [beta >= 0, cp.sum(cp.multiply(a, beta**2)) + slope @ beta + constant <= 1]
            # The master's own point, before it was scaled onto the sphere: ν(s·found) = 1.
            found = found * max(np.roots([a @ found**2, slope @ found, constant - 1]))
        assert lowest(cuts, found) == pytest.approx(best_under(cuts, constraints, beta), rel=1e-7, abs=1e-8)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("p", EXPONENTS)
def test_newton_master(p, scale):
    """A strictly concave model has one maximum: the weights are its own, whatever the units of the objective."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        q, root = rng.uniform(1, 3, N), rng.uniform(0, 0.4, (N, N))
        curvature = root @ root.T + 0.05 * np.eye(N)
        at = onto_sphere(rng.random(N), p)
        beta = cp.Variable(N)
        model = q @ (beta - at) - 0.5 * cp.quad_form(beta - at, cp.psd_wrap(curvature))
        highest = solved(model, ball(beta, p))
        found = newton_master(scale * q, scale * curvature, at, Ball(p))
        assert norm(found, p) == pytest.approx(1, rel=1e-12)
        np.testing.assert_allclose(found, onto_sphere(beta.value, p), atol=1e-4)
        assert q @ (found - at) - 0.5 * (found - at) @ curvature @ (found - at) == pytest.approx(highest, abs=1e-7)


@pytest.mark.parametrize("p", EXPONENTS)
def test_one_kernel_has_weight_one(p):
    cut, one = CuttingPlane(-1.0, np.array([2.0])), np.ones(1)
    for found in (
        exact_master([cut], Ball(p)),
        taylor_master([cut], one, Ball(p)),
        newton_master(one, np.eye(1), one, Ball(p)),
    ):
        np.testing.assert_array_equal(found, one)


@pytest.mark.parametrize("p", [1.0, 1 + 2**-6, 1.5, 2.0, 3.0, 8.0])
def test_taylor_form_agrees_to_second_order(p):
    """What ν leaves of ‖β‖_p^p shrinks with the cube of the step; for p = 1 and 2 it is exact."""
    rng = np.random.default_rng(2)
    at = onto_sphere(rng.uniform(0.2, 1, N), p)
    step = rng.standard_normal(N)
    step *= 0.5 * at.min() / np.abs(step).max()
    a, slope, constant = taylor_form(at, p)

    def left(length):
        b = at + length * step
        return abs(a @ b**2 + slope @ b + constant - np.sum(b**p))

    assert left(0.0) < 1e-13
    if p in (1, 2):
        assert left(1.0) < 1e-13
    else:
        assert left(0.5) / left(0.05) == pytest.approx(1000, rel=0.3)


@pytest.mark.parametrize("p", [1 + 2**-6, 1.5, 3.0])
def test_a_weight_of_zero_comes_back(p):
    """For p < 2 the form grows without bound at zero; its floor keeps the master finite and the weight alive."""
    at = onto_sphere(np.array([1.0, 0.0, 0.5]), p)
    assert all(np.isfinite(part).all() for part in taylor_form(at, p))
    found = taylor_master([CuttingPlane(0.0, np.array([0.1, 5.0, 0.1]))], at, Ball(p))
    assert norm(found, p) == pytest.approx(1, rel=1e-12)
    assert found[1] > 0


@pytest.mark.parametrize("p", [1.02, 1.5, 2.0, 8.0])
@pytest.mark.parametrize("n", [1, 4, 30])
def test_rounding_does_not_show_in_the_newton_master(p, n):
    rng = np.random.default_rng(n)
    A, q, beta = rng.standard_normal((n, n)), rng.standard_normal(n) + 0.5, uniform_weights(n, p)
    q[0] = abs(q[0])
    found = newton_master(q, A @ A.T, beta, Ball(p))
    np.testing.assert_allclose(newton_master(q * (1 + 1e-15 * rng.random(n)), A @ A.T, beta, Ball(p)), found, atol=1e-8)
    slopes = q - A @ A.T @ (found - beta)
    present = found > 1e-3
    multiplier = slopes[present] / found[present] ** (p - 1)
    np.testing.assert_allclose(multiplier, multiplier[0], rtol=1e-5)
