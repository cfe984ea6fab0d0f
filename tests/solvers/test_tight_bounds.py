"""Proven bounds on problems where they equal the optimum, which is known in closed form.

Kernel j is κ z_jz_jᵀ for orthonormal z_j. Then problems fall apart into one for each kernel, and a bound that lacks a
term, or has it with the other sign, is not the optimum.
"""

import itertools
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import cvxpy as cp
import numpy as np
import pytest
from helpers.optima import conjugate, norm, proven_gap, scale, system, value
from helpers.references import in_memory

import dmkl
from dmkl.errors import ConvergenceWarning
from dmkl.numerics import fisher
from dmkl.numerics.cholesky import refined_and_bounded
from dmkl.solvers import shared
from dmkl.solvers.fisher import mkfda
from dmkl.solvers.fisher.subspace import rounding
from dmkl.solvers.fisher.subspace.certify import OpenPoint
from dmkl.solvers.in_memory import answer
from dmkl.solvers.interface import SVM, run_with
from dmkl.solvers.knowledge import rows_and_cones
from dmkl.solvers.margin import gmkl
from dmkl.solvers.margin.mksvm import certify_margin, easy_mkl, mk_svm
from dmkl.solvers.margin.svm import fit_square
from dmkl.solvers.weight_sets import Ball, GivenWeights, GroupBall, Priced

# --- MK-FDA -----------------------------------------------------------------------------------------------------------
KAPPA, N, M = 2.0, 3, 7
Z = np.linalg.qr(np.random.default_rng(0).standard_normal((M, N + 1)))[0].T
"""z_1, z_2, z_3, and a vector that all kernels map to zero."""
KERNELS = KAPPA * np.einsum("ja,jb->jab", Z[:N], Z[:N])
LAMS = [0.05, 30.0]
"""The objective is nearer to 0, and nearer to −‖H‖²."""


def fisher_problem(p, lam):
    """H, the best β, α for it, and the optimum.

    With H = Σ_j a_jz_j, J(β) = −Σ_j a_j²/(1 + β_jκ/λ), where β = 0 for the vector in the null space. For p = 1 the best
    1 + β_jκ/λ is proportional to a_j; for equal a_j the best weights are equal.
    """
    a = np.array([1.0, 1.1, 0.95, 0.7]) if p == 1 else np.array([1.0, 1.0, 1.0, 0.7])
    if p == 1 and lam > 1:
        a[:N] = 1.0  # otherwise only the kernel of the largest a_j has weight
    beta = (a[:N] * (N + KAPPA / lam) / a[:N].sum() - 1) * lam / KAPPA if p == 1 else np.full(N, N ** (-1 / p))
    shrunk = 1 + np.append(beta, 0.0) * KAPPA / lam
    return (a @ Z)[:, None], beta, (2 * a / shrunk @ Z)[:, None], -np.sum(a**2 / shrunk)


def by_certify(alpha, beta, h, lam, p):
    return fisher.certify(alpha, KERNELS @ alpha, beta, h, lam, Ball(p))[0]


def by_memory(alpha, beta, h, lam, p, monkeypatch):
    """The certificate of an α-step that returns this α."""
    monkeypatch.setattr(mkfda, "definite_factor", lambda *_: SimpleNamespace(solve=lambda right: alpha))
    monkeypatch.setattr(mkfda, "row_space", lambda _: np.eye(1))
    oracle = mkfda.MemoryOracle(KERNELS, h, lam, Ball(p))
    return mkfda.run_here(oracle.evaluate(beta, 1e-4, careful=False)).certificate


@pytest.mark.parametrize("lam", LAMS)
@pytest.mark.parametrize("p", [1.0, 1.5, 4.0])
@pytest.mark.parametrize("how", ["certify", "memory"])
def test_the_bounds_of_mk_fda_are_the_optimum_at_the_optimum(how, p, lam, monkeypatch):
    """Along the null space S − ‖R‖² remains min_α S, and F rises by ‖R‖²."""
    certified = by_certify if how == "certify" else partial(by_memory, monkeypatch=monkeypatch)
    h, beta, alpha, optimum = fisher_problem(p, lam)
    assert norm(beta, p) == pytest.approx(1)
    exact = certified(alpha, beta, h, lam, p)
    assert exact.objective == pytest.approx(optimum, rel=1e-12)
    assert exact.upper == pytest.approx(optimum, rel=1e-12)
    assert exact.residual_sq <= 1e-24
    assert exact.scale == pytest.approx(scale(optimum, h), rel=1e-9)
    assert exact.gap <= 1e-12
    # F depends on α alone: with other weights it is above S.
    other = fisher.onto_sphere(beta * [1.0, 0.5, 2.0], p)
    below = certified(alpha, other, h, lam, p)
    assert below.upper == pytest.approx(optimum, rel=1e-12)
    assert below.objective == pytest.approx(value(KERNELS, alpha, other, h, lam), rel=1e-12)
    step = 0.1
    rough = certified(alpha + step * Z[-1:].T, beta, h, lam, p)
    assert rough.objective - rough.residual_sq == pytest.approx(optimum, rel=1e-12)
    assert rough.residual_sq == pytest.approx(step**2 / 4, rel=1e-9)
    assert rough.upper == pytest.approx(optimum + step**2 / 4, rel=1e-12)
    assert rough.gap == pytest.approx(step**2 / 4 / scale(rough.objective, h), rel=1e-9)


@pytest.mark.parametrize("lam", LAMS)
def test_a_basis_that_is_not_orthonormal_has_the_same_bounds(lam):
    h, beta, _, optimum = fisher_problem(1.5, lam)
    V = np.random.default_rng(1).standard_normal((M, M))
    oracle = mkfda.MemoryOracle(V.T @ KERNELS @ V, V.T @ h, lam, Ball(1.5), V.T @ V)
    certificate = mkfda.run_here(oracle.evaluate(beta, 1e-4, careful=False)).certificate
    assert certificate.objective == pytest.approx(optimum, rel=1e-9)
    assert certificate.upper == pytest.approx(optimum, rel=1e-9)


@pytest.mark.parametrize("solver", ["direct", "cg", "dual", "interleaved", "anchored"])
@pytest.mark.parametrize("lam", [0.01, 3.0])
def test_gaps_of_solvers_that_stop_early_are_those_of_their_pairs(solver, lam):
    """(F − S + ‖R‖²)/min(|S|, ‖H‖² − |S|) of the returned α and β, by their definitions."""
    rng, p = np.random.default_rng(3), 1.5
    X = rng.standard_normal((4, 20, 6))
    kernels, y = X @ X.transpose(0, 2, 1) / 20, X[0, :, 0] + 0.3 * rng.standard_normal(20)
    model = dmkl.MKRidge(p, lam, solver=solver, steps=(), tol=1e-13, max_iter=2)
    with pytest.warns(ConvergenceWarning):
        model.fit(in_memory(kernels, 9), y)
    h, beta, alpha = y[:, None], model.weights_.values, 2 * lam * model.dual_coef_.values.reshape(-1, 1)
    assert float(model.objective_) == pytest.approx(value(kernels, alpha, beta, h, lam), rel=1e-9)
    assert float(model.gap_) == pytest.approx(proven_gap(kernels, alpha, beta, h, lam, p), rel=1e-6)
    assert float(model.gap_) > 1e-9


def test_the_gap_of_given_weights_is_that_of_alpha_alone():
    """F = S at given weights: what is left is ‖R‖², which is S − min_α S in the null space of all kernels."""
    h, _, _, _ = fisher_problem(2.0, 0.05)
    beta = np.array([0.5, 0.1, 0.3])
    exact = np.linalg.solve(system(KERNELS, beta, 0.05), h)
    alpha = exact + 0.1 * Z[-1:].T
    certificate, _ = fisher.certify(alpha, KERNELS @ alpha, beta, h, 0.05, GivenWeights(tuple(beta)))
    assert certificate.gap * certificate.scale == pytest.approx(0.0025, rel=1e-9)
    assert certificate.objective - certificate.residual_sq == pytest.approx(-0.5 * np.sum(h * exact), rel=1e-12)


def test_the_gap_of_shared_weights_is_what_an_inexact_solution_loses(monkeypatch):
    """Eigenvalues of the null space that are wrong change the solution there, where the bound is the optimum."""
    lam, beta, wrong = 0.5, np.array([0.5, 0.1, 0.3]), 0.2
    h = (np.array([1.0, 1.0, 1.0, 0.7]) @ Z)[:, None]
    total, eigh = np.tensordot(beta, KERNELS, 1), np.linalg.eigh

    def rough(matrix):
        values, vectors = eigh(matrix)
        return np.where(np.abs(values) < 1e-9, wrong, values), vectors

    monkeypatch.setattr(np.linalg, "eigh", rough)
    problem = shared.SharedProblem(h, lam, beta, np.zeros(1), np.zeros(1, dtype=int), None)
    (outcome,) = shared._solve_group(total, [problem], 1e-4)
    best = -np.sum(np.array([1.0, 1.0, 1.0, 0.7]) ** 2 / (1 + np.append(beta, 0.0) * KAPPA / lam))
    assert outcome.bound == pytest.approx(best, rel=1e-12)
    assert outcome.gap == pytest.approx((outcome.objective - best) / scale(outcome.objective, h), rel=1e-9)
    assert outcome.objective - best == pytest.approx((0.7 * wrong / (lam + wrong)) ** 2, rel=1e-9)


# --- MK-FDA in a subspace ---------------------------------------------------------------------------------------------
def test_the_bound_of_a_rough_factor_is_exact_in_the_null_space():
    """bᵀM⁻¹b = xᵀ(b + r) + rᵀM⁻¹r, with M⁻¹r = 2r where K maps r to zero."""
    ridge, b = 0.3, np.random.default_rng(0).standard_normal((M, 2))
    kernel, exact = KERNELS.sum(axis=0), np.linalg.solve(system(KERNELS, np.ones(N), ridge), b)
    x = exact - np.outer(Z[-1], Z[-1] @ exact)  # the error is Z[-1], which a step along x leaves
    _, bound = refined_and_bounded(x, np.zeros_like, kernel.__matmul__, ridge, b)
    np.testing.assert_allclose(bound, np.sum(b * exact, axis=0), rtol=1e-12)


def test_rounding_that_adds_up_is_all_of_the_bound(monkeypatch):
    """Errors of products along R and along α: the bounds of the residual and of F − S are equalities."""
    monkeypatch.setattr(rounding, "gammaincinv", lambda *_: 0.5)  # a quantile of one: all m probes measure the error
    rng, lam = np.random.default_rng(0), 0.2
    V = np.linalg.qr(rng.standard_normal((M, 4)))[0]
    a = rng.standard_normal((4, 1))
    # Two blocks; errors of the second are parallel to 2α_1 + α_2.
    along = 2 * V[:, :2] @ a[:2] + V[:, 2:] @ a[2:]
    E = np.zeros((2, M, 4))
    for error, size in zip(E, (0.03, -0.02), strict=True):
        error[:, 2:] = size * along @ a[2:].T / np.sum(a[2:] ** 2)
    beta = np.array([0.0, 1.0])
    (bound,) = rounding.rounding(E, [(0, 2), (2, 4)], [(beta, a)], [lam], [Ball(1.0)])
    hidden = np.tensordot(beta, E, 1) @ a / (2 * lam)
    assert bound.residual == pytest.approx(np.linalg.norm(hidden), rel=1e-12)
    # The form of the first kernel, the largest, is too high, and that of the second too low.
    delta = np.array([0.03, 0.02]) * np.sum(along**2) / (4 * lam)
    q = np.array([5.0, 1.0])
    changed = q + [1, -1] * delta
    assert bound.weights == pytest.approx((changed.max() - changed[1]) - (q.max() - q[1]), rel=1e-12)
    # S − min_α S of the residual with its error, where A = ½I and both are parallel.
    h, weights, alpha, _ = fisher_problem(1.0, 0.05)
    certificate = by_certify(alpha, weights, h, 0.05, 1.0)
    point = OpenPoint(
        mkfda.Solution(alpha, weights, certificate, mkfda.Status.CERTIFIED),
        None,
        bound=0.3**2 / certificate.scale,
        rounding=rounding.Rounding(0.1 / np.sqrt(certificate.scale), 0.05),
    )
    assert point.alpha_gap == pytest.approx(0.4**2 / certificate.scale, rel=1e-12)
    assert point.gap == pytest.approx(point.alpha_gap + 0.05, rel=1e-9)


# --- sets of weights --------------------------------------------------------------------------------------------------
SETS = {
    "groups": (GroupBall(2.0, ((0, 3), (1, 2))), lambda b: cp.norm(b[[0, 3]]) + cp.norm(b[[1, 2]])),
    "prices": (Priced(Ball(2.0), (1.0, 2.0, 0.5, 3.0)), lambda b: cp.norm(cp.multiply(b, [1.0, 2.0, 0.5, 3.0]))),
}


@pytest.mark.parametrize("name", SETS)
def test_support_functions_are_attained(name):
    weights, size = SETS[name]
    q = np.array([1.0, 0.4, 0.9, 0.2])
    b = cp.Variable(4, nonneg=True)
    best = cp.Problem(cp.Maximize(q @ b), [size(b) <= 1]).solve(solver=cp.CLARABEL)
    assert weights.support(q) == pytest.approx(best, rel=1e-6)
    assert weights.steepest(q) @ q == pytest.approx(weights.support(q), rel=1e-12)


# --- support vector machines ------------------------------------------------------------------------------------------
PAIRS = 4
SIGNS = np.tile([1.0, -1.0], PAIRS)
OF_PAIRS = np.repeat(np.eye(PAIRS), 2, axis=1) * SIGNS / 2  # z_j: ½ and −½ of a pair of samples
MACHINES = KAPPA * np.einsum("ja,jb->jab", OF_PAIRS, OF_PAIRS)
"""Kernel j tells a pair of samples apart, whose u = ±t has uᵀK_ju = κt²."""


def pairs(t):
    return np.repeat(t, 2) * SIGNS


@pytest.mark.parametrize("C", [0.3, 50.0])
@pytest.mark.parametrize("p", [1.0, 2.0, np.inf])
def test_the_bounds_of_machines_are_the_optimum_at_the_optimum(p, C):
    """J* = Σ_j max over t ≤ C of 2t − ½β_jκt², at equal weights."""
    beta = np.full(PAIRS, PAIRS ** (-1 / p))
    t = np.minimum(C, 2 / (beta * KAPPA))
    u, optimum = pairs(t), np.sum(2 * t - 0.5 * beta * KAPPA * t**2)
    for weights in (Ball(p), GivenWeights(tuple(beta))):
        c, _ = certify_margin(u[:, None], (MACHINES @ u)[:, :, None], beta, SIGNS[:, None], C, weights)
        assert (c.size, -c.objective, -c.upper) == pytest.approx((optimum,) * 3, rel=1e-12)
        assert c.gap <= 1e-12
    solution = run_with(mk_svm(SIGNS, C, Ball(p), PAIRS, tol=1e-9), partial(answer, MACHINES))
    assert (solution.objective, solution.bound) == pytest.approx((optimum,) * 2, rel=1e-8)


@pytest.mark.parametrize("C", [0.3, 50.0])
def test_gaps_of_machines_are_those_of_their_definitions(C):
    """P, D and Σα − ½‖v‖_p*, relative to the smaller of P and ½Σβ_jv_j, for machines that are not the best."""
    rng, beta, p = np.random.default_rng(0), np.array([0.1, 0.2, 0.3, 0.4]), 1.5
    beta = beta / norm(beta, p)
    u = pairs(C * rng.uniform(0.2, 0.9, PAIRS))
    c, _ = certify_margin(u[:, None], (MACHINES @ u)[:, :, None], beta, SIGNS[:, None], C, Ball(p))
    forms = np.array([u @ kernel @ u for kernel in MACHINES])
    scores, alpha = np.tensordot(beta, MACHINES, 1) @ u, np.abs(u).sum()
    losses = min(C * np.maximum(0, 1 - SIGNS * (scores + b)).sum() for b in SIGNS - scores)
    upper, lower = 0.5 * beta @ forms + losses, alpha - 0.5 * norm(forms, conjugate(p))
    assert (c.size, -c.upper, -c.objective) == pytest.approx((upper, lower, alpha - 0.5 * beta @ forms), rel=1e-12)
    assert c.gap == pytest.approx((upper - lower) / min(upper, 0.5 * beta @ forms), rel=1e-9)


def test_the_bounds_of_easy_mkl_are_the_distances():
    """All pairs are alike: γ = 1/n, and equal weights η = 1/√n, with q = vᵀKv + δvᵀv."""
    lam = 0.3
    solution = run_with(easy_mkl(SIGNS, lam, PAIRS, tol=1e-9), partial(answer, MACHINES))
    expected = (1 - lam) * KAPPA / PAIRS**1.5 + 2 * lam / PAIRS
    assert (solution.objective, solution.bound) == pytest.approx((expected,) * 2, rel=1e-8)
    assert solution.gap <= 1e-8
    np.testing.assert_allclose(solution.weights, PAIRS**-0.5, rtol=1e-6)
    # A machine that is not the best has the gap of its own bound, in either of the two problems.
    for rough in (0, 1):
        machines = itertools.count()

        def answered(request, rough=rough, machines=machines):
            reply = answer(MACHINES, request)
            if not isinstance(request, SVM) or next(machines) != rough:
                return reply
            return replace(reply, primal=1.25 * reply.primal)  # which proves 0.8 of the squared distance

        solution = run_with(easy_mkl(SIGNS, lam, PAIRS, tol=1e-9), answered)
        assert solution.gap == pytest.approx(0.25, rel=1e-6)


def test_the_bounds_of_least_squares_are_the_optimum():
    """P = D at the solution of (K + λI)u + b = h, 1ᵀu = 0, computed without the package."""
    rng, lam = np.random.default_rng(1), 0.3
    X, h = rng.standard_normal((9, 4)), rng.standard_normal(9)
    K = X @ X.T
    system = np.block([[K + lam * np.eye(9), np.ones((9, 1))], [np.ones((1, 9)), np.zeros((1, 1))]])
    u, (b,) = np.split(np.linalg.solve(system, np.append(h, 0.0)), [9])
    optimum = np.sum((h - K @ u - b) ** 2) + lam * (u @ K @ u)
    solution = fit_square(K, h, lam)
    assert (solution.primal, solution.dual) == pytest.approx((optimum,) * 2, rel=1e-10)


# --- generalized MKL --------------------------------------------------------------------------------------------------
def least(d, sigma):
    """σΣd + Σ_j max over t of 2t − ½d_jκt²."""
    return sigma * np.sum(d) + np.sum(2 / (np.asarray(d) * KAPPA))


SIGMA = 0.5
FREE = np.sqrt(2 / (SIGMA * KAPPA))
"""The best weight of each kernel."""
GMKL_SETS = {
    "free": (lambda d: [d >= 0], np.full(PAIRS, FREE)),
    "a row": (lambda d: [d[0] >= 3 * FREE], np.array([3.0, 1.0, 1.0, 1.0]) * FREE),
    "a ball": (lambda d: [cp.norm(d) <= FREE], np.full(PAIRS, FREE / 2)),
}


def priced(name):
    """The set of weights, and the optimum over it."""
    constraints, best = GMKL_SETS[name]
    A, b, _, cones = rows_and_cones(constraints, list("abcd"))
    return gmkl.PricedSet(np.full(PAIRS, SIGMA), A, b, cones=cones), least(best, SIGMA)


@pytest.mark.parametrize("name", GMKL_SETS)
def test_bounds_of_generalized_mkl_enclose_the_optimum_and_reach_it(name):
    weights, optimum = priced(name)
    solution = run_with(gmkl.gmkl(SIGNS, 50.0, weights, tol=1e-7), partial(answer, MACHINES))
    assert (solution.objective, solution.bound) == pytest.approx((optimum,) * 2, rel=1e-6)
    assert solution.gap == pytest.approx((solution.objective - solution.bound) / solution.objective, abs=1e-12)
    for step in solution.steps:
        assert step.figures["lower"] <= optimum * (1 + 1e-9)
        assert step.figures["objective"] >= optimum * (1 - 1e-9)


@pytest.mark.parametrize("name", GMKL_SETS)
@pytest.mark.parametrize("errors", [(-1e-4, 0.0), (1e-4, 0.0), (0.0, 1e-4)])
def test_a_mixture_that_breaks_its_constraints_still_proves_a_bound(name, errors, monkeypatch):
    """As Clarabel's tolerance leaves them: a mixture, or multipliers of rows, that are too large cost their excess."""
    weights, optimum = priced(name)
    minimum, best = gmkl._minimum, GMKL_SETS[name][1]
    t = 2 / (best * KAPPA)  # the machine at the best weights
    U = pairs(t)[:, None]
    V = np.einsum("mr,jmn,ns->jrs", U, MACHINES, U)
    share = np.array([np.abs(U).max() / 50.0])

    def changed(program, linear):
        x, z = minimum(program, linear)
        return np.append(x[:1] * (1 + errors[0]), x[1:] * (1 + errors[1])), z

    exact, _, mixture = gmkl._lower_bound(weights, V, SIGNS @ U, share, best.sum())
    monkeypatch.setattr(gmkl, "_minimum", changed)
    rough, _, other = gmkl._lower_bound(weights, V, SIGNS @ U, share, best.sum())
    assert other == pytest.approx(mixture * (1 + errors[0]), rel=1e-9)
    assert exact == pytest.approx(optimum, rel=1e-7)
    assert optimum * (1 - 1e-3) <= rough <= optimum * (1 + 1e-8)


def test_a_mixture_outside_the_box_is_scaled_into_it(monkeypatch):
    """Where no kernel is worth its price, all α are C at the optimum T* = CΣ1, and no more of them proves more."""
    C = 0.3
    weights = gmkl.PricedSet(np.full(PAIRS, SIGMA))
    U = pairs(np.full(PAIRS, C))[:, None]
    V, minimum = np.einsum("mr,jmn,ns->jrs", U, MACHINES, U), gmkl._minimum
    monkeypatch.setattr(gmkl, "_minimum", lambda *a: [1.1 * part for part in minimum(*a)])
    lower, _, mixture = gmkl._lower_bound(weights, V, SIGNS @ U, np.ones(1), 1.0)
    assert mixture == pytest.approx(1.0, rel=1e-6)
    assert lower == pytest.approx(2 * PAIRS * C, rel=1e-6)
    assert lower <= 2 * PAIRS * C * (1 + 1e-12)


def test_the_largest_sum_of_weights_is_that_of_the_constraints():
    """Σd over σᵀd ≤ T and ‖d‖ ≤ r, and the least cost over the set: their optima are known."""
    weights, _ = priced("free")
    assert 6.0 / SIGMA <= gmkl.largest_sum(weights, 6.0) <= 1.02 * 6.0 / SIGMA
    costs = np.array([1.0, -2.0, 0.5, -0.5])
    assert gmkl.least_cost(weights, costs, 3.0) == pytest.approx(-6.0, rel=1e-7)
    ball, _ = priced("a ball")
    bound = -FREE * np.sqrt(2.0**2 + 0.5**2)
    assert gmkl.least_cost(ball, costs, 2 * FREE) == pytest.approx(bound, rel=1e-6)
