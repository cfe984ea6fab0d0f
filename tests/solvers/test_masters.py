"""The restricted masters against cvxpy."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
from helpers.optima import norm

from dmkl.numerics.fisher import onto_sphere, uniform_weights
from dmkl.solvers.masters import (
    CuttingPlane,
    Factored,
    LineSearch,
    exact_master,
    newton_master,
    taylor_form,
    taylor_master,
)
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


@pytest.mark.parametrize(("p", "rounds"), list(zip(EXPONENTS, [1, 2, 9, 1, 2, 9, 9], strict=True)))
def test_exact_master(p, rounds):
    for seed in range(3):
        cuts, beta = cuts_at(seed, rounds), cp.Variable(N)
        weights = exact_master(cuts, Ball(p))
        assert (weights >= 0).all()
        assert norm(weights, p) == pytest.approx(1, rel=1e-12)
        assert lowest(cuts, weights) == pytest.approx(best_under(cuts, ball(beta, p), beta), rel=1e-7, abs=1e-8)


@pytest.mark.parametrize(("p", "rounds"), list(zip(EXPONENTS, [9, 1, 2, 9, 1, 2, 9], strict=True)))
def test_taylor_master(p, rounds):
    """The constraint is Eq. 11 of the JMLR paper at the current weights, the norm itself for p = 1 and ∞."""
    for seed in range(3):
        cuts, beta = cuts_at(seed, rounds), cp.Variable(N)
        at = onto_sphere(np.random.default_rng(seed + 99).uniform(0.1, 1, N), p)
        weights = taylor_master(cuts, at, Ball(p))
        assert (weights >= 0).all()
        assert norm(weights, p) == pytest.approx(1, rel=1e-12)
        constraints = ball(beta, p)
        if 1 < p < np.inf:
            a, slope, constant = p * (p - 1) / 2 * at ** (p - 2), -p * (p - 2) * at ** (p - 1), p * (p - 3) / 2 + 1
            constraints = [beta >= 0, cp.sum(cp.multiply(a, beta**2)) + slope @ beta + constant <= 1]
            # The master's own point, before it was scaled onto the sphere: ν(s·found) = 1.
            weights = weights * max(np.roots([a @ weights**2, slope @ weights, constant - 1]))
        assert lowest(cuts, weights) == pytest.approx(best_under(cuts, constraints, beta), rel=1e-7, abs=1e-8)


@pytest.mark.parametrize(("p", "scale"), list(zip(EXPONENTS, [1.0, 1e-6, 1e6, 1.0, 1e-6, 1e6, 1.0], strict=True)))
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
        weights = newton_master(scale * q, scale * curvature, at, Ball(p))
        assert norm(weights, p) == pytest.approx(1, rel=1e-12)
        np.testing.assert_allclose(weights, onto_sphere(beta.value, p), atol=1e-4)
        assert q @ (weights - at) - 0.5 * (weights - at) @ curvature @ (weights - at) == pytest.approx(
            highest, abs=1e-7
        )


@pytest.mark.parametrize("p", [1 + 2**-6, 1.5, 3.0])
def test_a_weight_of_zero_comes_back(p):
    """For p < 2 the form grows without bound at zero; its floor keeps the master finite and the weight alive."""
    at = onto_sphere(np.array([1.0, 0.0, 0.5]), p)
    assert all(np.isfinite(part).all() for part in taylor_form(at, p))
    weights = taylor_master([CuttingPlane(0.0, np.array([0.1, 5.0, 0.1]))], at, Ball(p))
    assert norm(weights, p) == pytest.approx(1, rel=1e-12)
    assert weights[1] > 0


@pytest.mark.parametrize(("p", "n"), [(1.02, 30), (1.5, 4), (2.0, 1), (8.0, 30)])
def test_rounding_does_not_show_in_the_newton_master(p, n):
    rng = np.random.default_rng(n)
    A, q, beta = rng.standard_normal((n, n)), rng.standard_normal(n) + 0.5, uniform_weights(n, p)
    q[0] = abs(q[0])
    weights = newton_master(q, A @ A.T, beta, Ball(p))
    np.testing.assert_allclose(
        newton_master(q * (1 + 1e-15 * rng.random(n)), A @ A.T, beta, Ball(p)), weights, atol=1e-8
    )
    slopes = q - A @ A.T @ (weights - beta)
    present = weights > 1e-3
    multiplier = slopes[present] / weights[present] ** (p - 1)
    np.testing.assert_allclose(multiplier, multiplier[0], rtol=1e-5)


def test_the_factored_newton_master_of_few_weights():
    """For p = 1 the maximizer over all kernels, also if those of the largest gradients at first are not enough."""
    rng = np.random.default_rng(0)
    q, root, at = rng.uniform(1, 3, 300), rng.standard_normal((300, 20)), uniform_weights(300, 1.0)
    root[q > 2.2] *= 5.0  # kernels of large gradients exclude one another
    weights = newton_master(q, Factored(root), at, Ball(1.0))
    np.testing.assert_allclose(weights, newton_master(q, root @ root.T, at, Ball(1.0)), atol=1e-7)
    slopes = q - root @ (root.T @ (weights - at))
    assert slopes.max() <= weights @ slopes + 1e-7


@pytest.mark.parametrize("p", [1 + 2**-6, 1.5, 2.0, 8.0])
def test_the_factored_newton_master_is_stationary(p):
    """log q_j − [C(b − β)]_j/q_j − (p − 1) log b_j is the same for all kernels."""
    rng = np.random.default_rng(1)
    q, root, at = rng.uniform(1, 3, 120), 0.3 * rng.random((120, 20)), onto_sphere(rng.uniform(0.1, 1, 120), p)
    weights = newton_master(q, Factored(root), at, Ball(p))
    assert norm(weights, p) == pytest.approx(1, rel=1e-12)
    multiplier = np.log(q) - root @ (root.T @ (weights - at)) / q - (p - 1) * np.log(weights)
    np.testing.assert_allclose(multiplier, multiplier[0], atol=1e-7)


# --- line searches on functions of known shape -----------------------------------------------------------------


def test_steps_are_halved_until_the_objective_rises():
    """f(x) = −x² from x = −1 by steps of 8: 7, 3, then 1 and 0 give −1 and 0."""
    search = LineSearch(np.array([-1.0]), np.array([8.0]), np.array([2.0]), -1.0)
    tried = []
    while not search.accepts(-float(search.point[0] ** 2)):
        tried.append(float(search.point[0]))
        search.shorten()
    assert tried == [7.0, 3.0, 1.0]
    assert search.point == 0.0


def test_a_refused_step_is_cut_to_where_the_slope_vanishes():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(3, 3))
    hessian, start, direction = root @ root.T, rng.normal(size=3), rng.normal(size=3)
    gradient = -hessian @ start
    direction *= np.sign(gradient @ direction)
    best = (gradient @ direction) / (direction @ hessian @ direction)
    search = LineSearch(start, direction, gradient, -0.5 * start @ hessian @ start, length=3.0 * best)
    search.shorten(-hessian @ search.point)
    np.testing.assert_allclose(search.point, start + best * direction)
    assert search.accepts(-0.5 * search.point @ hessian @ search.point)


@pytest.mark.parametrize(("slope", "length"), [(-1e3, 0.1), (-1e-3, 0.9), (0.0, 0.5), (2.0, 0.5)])
def test_how_far_a_step_is_cut(slope, length):
    search = LineSearch(np.zeros(1), np.ones(1), np.ones(1), 0.0)
    search.shorten(np.array([slope]))
    assert search.point == pytest.approx(length)
