"""The kernel weights of ℓp MK-SVM against cvxpy, scikit-learn and their own certificate."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import cvxpy as cp
import numpy as np
import pytest
from helpers.generators import finish
from helpers.margin import made, optimum
from helpers.optima import conjugate, norm
from sklearn.svm import SVC

from dmkl.errors import IndefiniteKernelError, InputError
from dmkl.solvers.margin.mksvm import MarginProblem, certify_margin, closed_form_weights, mk_svm
from dmkl.solvers.margin.svm import solve_by_columns, solve_dense
from dmkl.solvers.outcome import Status
from dmkl.solvers.requests import SVM, EachProduct
from dmkl.solvers.semidefinite import KernelFacts

EXPONENTS = [1.0, 1.0625, 1.5, 2.0, 8.0, np.inf]
BOUNDS = [0.25, 4.0, 64.0]


def in_memory(kernels, request):
    return solve_dense(np.tensordot(request.weights, kernels, axes=1), request.y, request.C, request.tol, request.start)


def out_of_core(kernels, request):
    combined = np.tensordot(request.weights, kernels, axes=1)
    m = len(request.y)
    return solve_by_columns(
        lambda positions: combined[:, positions],
        combined.diagonal(),
        request.y,
        request.C,
        request.tol,
        24 * m * m,
        request.start,
    )[0]


def without_curvature(kernels, request):
    return replace(in_memory(kernels, request), free_kernel=None)


def solved(kernels, y, C, p, *, machine=in_memory, **options):
    """Drive the solver, and check its certificate by the definitions."""

    def answer(request):
        if isinstance(request, SVM):
            return machine(kernels, request)
        assert isinstance(request, EachProduct)
        return kernels @ request.block

    solution = finish(mk_svm(MarginProblem(y, C, p), len(kernels), **options), answer)
    u, beta, upper = solution.dual[:, 0], solution.weights, solution.certificate.upper
    assert beta.min() >= 0
    assert norm(beta, p) == pytest.approx(1, rel=1e-9)
    assert (y * u).min() >= 0
    assert (y * u).max() <= C
    assert abs(u.sum()) <= 1e-10 * C * len(y)
    forms = np.array([u @ kernel @ u for kernel in kernels])
    slack = np.maximum(0, 1 - y * (np.tensordot(beta, kernels, axes=1) @ u + solution.bias[0])).sum()
    assert upper == pytest.approx(beta @ forms / 2 + C * slack, rel=1e-9)
    assert solution.objective == pytest.approx(y @ u - beta @ forms / 2, rel=1e-9)
    assert solution.bound == pytest.approx(y @ u - norm(forms, conjugate(p)) / 2, rel=1e-9)
    assert solution.gap == max(upper - solution.bound, 0) / abs(upper)
    return solution


@pytest.mark.parametrize("C", BOUNDS)
@pytest.mark.parametrize("p", EXPONENTS)
def test_reaches_the_optimum(p, C):
    kernels, y = made(5, 40)
    best = optimum(kernels, y, C, p)
    solution = solved(kernels, y, C, p, tol=1e-4)
    assert solution.status is Status.CERTIFIED
    assert solution.gap <= 1e-4
    # Clarabel's own value is good to 1e-6.
    assert solution.bound <= best * (1 + 1e-6)
    assert solution.certificate.upper >= best * (1 - 1e-6)
    assert solution.objective == pytest.approx(best, rel=1e-4)


@pytest.mark.parametrize("C", BOUNDS)
@pytest.mark.parametrize("p", EXPONENTS)
def test_few_weightings(p, C):
    kernels, y = made(30, 200, seed=1)
    solution = solved(kernels, y, C, p, tol=1e-4)
    assert solution.status is Status.CERTIFIED
    assert len(solution.steps) <= 15


@pytest.mark.parametrize("p", [1.0, 1.0625, 2.0])
def test_the_gap_of_any_pair_encloses_the_optimum(p):
    kernels, y = made(4, 30, seed=2)
    C, rng = 4.0, np.random.default_rng(0)
    best = optimum(kernels, y, C, p)
    for _ in range(20):
        beta = rng.dirichlet(np.ones(4))
        beta /= norm(beta, p)
        tol = 10 ** rng.uniform(-6, 0)  # any machine will do, finished or not
        u = solve_dense(np.tensordot(rng.dirichlet(np.ones(4)), kernels, axes=1), y, C, tol).u
        certificate = certify_margin(u, kernels @ u, beta, y, C, p)
        assert certificate.lower <= best * (1 + 1e-6)
        assert certificate.upper >= best * (1 - 1e-6)
        assert certificate.lower <= certificate.objective + 1e-12
        assert certificate.gap >= certificate.machine_gap


@pytest.mark.parametrize("machine", [in_memory, without_curvature])
@pytest.mark.parametrize("p", [1.0, 1.0625, 1.5, 2.0])
def test_the_objective_falls(p, machine):
    kernels, y = made(12, 80, seed=3)
    for C in BOUNDS:
        solution = solved(kernels, y, C, p, tol=1e-4, machine=machine, max_iter=30)
        accepted = [step for step in solution.steps if step.accepted]
        assert accepted
        for before, after in pairwise(accepted):
            assert after.figures["objective"] <= before.figures["upper"]


@pytest.mark.parametrize("p", [1.0, 1.5, 8.0])
def test_without_curvature_the_closed_form_gets_there(p):
    kernels, y = made(5, 40, seed=4)
    solution = solved(kernels, y, 4.0, p, tol=1e-3, machine=without_curvature)
    assert solution.status is Status.CERTIFIED
    assert solution.objective == pytest.approx(optimum(kernels, y, 4.0, p), rel=1e-3)


def test_closed_form_weights_are_the_best_for_given_norms():
    rng = np.random.default_rng(0)
    for p in (1.0, 1.5, 3.0):
        beta, slopes = rng.dirichlet(np.ones(4)), rng.uniform(0, 1, 4)
        squares = beta**2 * slopes
        best = np.sum(squares / closed_form_weights(beta, slopes, p))
        weights = cp.Variable(4)
        cost = cp.sum(cp.multiply(squares, cp.inv_pos(weights)))
        least = cp.Problem(cp.Minimize(cost), [cp.pnorm(weights, p, approx=False) <= 1]).solve(solver=cp.CLARABEL)
        assert best == pytest.approx(least, rel=1e-6)


def test_out_of_core_machines():
    kernels, y = made(6, 90, seed=5)
    for p in (1.0, 2.0):
        inside, outside = (solved(kernels, y, 4.0, p, tol=1e-4, machine=kind) for kind in (in_memory, out_of_core))
        assert outside.gap <= 1e-4
        assert outside.objective == pytest.approx(inside.objective, rel=1e-4)


@pytest.mark.parametrize("p", [1.0, 2.0, np.inf])
def test_one_kernel_is_a_support_vector_machine(p):
    kernels, y = made(1, 100, noisy=0)
    theirs = SVC(kernel="precomputed", C=4.0, tol=1e-8).fit(kernels[0], y)
    solution = solved(kernels, y, 4.0, p, tol=1e-9)
    assert solution.status is Status.CERTIFIED
    assert len(solution.steps) == 1
    np.testing.assert_allclose(
        kernels[0] @ solution.dual[:, 0] + solution.bias, theirs.decision_function(kernels[0]), atol=1e-3
    )


def test_infinite_p_weighs_all_alike():
    kernels, y = made(4, 60)
    solution = solved(kernels, y, 4.0, np.inf, tol=1e-9)
    np.testing.assert_array_equal(solution.weights, np.ones(4))
    assert solution.objective == pytest.approx(solve_dense(kernels.sum(axis=0), y, 4.0, 1e-10).dual, rel=1e-8)


def test_low_rank_kernels_and_no_free_vectors():
    rng = np.random.default_rng(1)
    x = rng.standard_normal((60, 8, 2))
    y = np.where(x[:, 0, 0] + x[:, 1, 0] + 0.5 * rng.standard_normal(60) > 0, 1.0, -1.0)
    kernels = np.einsum("ijk,ljk->jil", x, x) / 2
    for p in (1.0, 1.0625, 2.0):
        for C in (1e-4, 0.25, 16.0):
            assert solved(kernels, y, C, p, tol=1e-4).status is Status.CERTIFIED


def test_a_machine_that_can_do_no_better_ends_the_descent():
    kernels, y = made(5, 60)

    def coarse(kernels, request):
        solution = in_memory(kernels, request)
        return replace(solution, u=0.95 * solution.u)

    for p in (1.0, 2.0):
        solution = solved(kernels, y, 4.0, p, tol=1e-6, machine=coarse)
        assert solution.status is Status.STALLED
        assert solution.certificate.weights_gap <= 1e-7
        assert solution.gap > 1e-6


def test_equal_kernels_at_p_one():
    kernels, y = made(3, 60, noisy=0)
    solution = solved(np.concatenate([kernels, kernels]), y, 4.0, 1.0, tol=1e-4)
    assert solution.objective == pytest.approx(solved(kernels, y, 4.0, 1.0, tol=1e-6).objective, rel=1e-4)


def test_start_at_the_solution_ends_at_once():
    kernels, y = made(6, 80)
    solution = solved(kernels, y, 4.0, 1.5, tol=1e-6)
    assert len(solved(kernels, y, 4.0, 1.5, tol=1e-3, start=3 * solution.weights).steps) == 1


def test_the_cap_is_told():
    kernels, y = made(6, 60)
    solution = solved(kernels, y, 4.0, 1.0, tol=1e-6, max_iter=2)
    assert solution.status is Status.ITERATIONS
    assert solution.gap == min(step.figures["gap"] for step in solution.steps) > 1e-6


def test_what_the_arithmetic_does_not_resolve_is_told():
    kernels, y = made(3, 60)
    for p in (1.0, 2.0, np.inf):
        solution = solved(kernels, y, 64.0, p, tol=1e-17, max_iter=60)
        assert solution.status in (Status.STALLED, Status.ITERATIONS)
        assert solution.gap < 1e-6


def test_an_indefinite_kernel_is_named():
    kernels, y = made(3, 40)
    kernels[1] = -kernels[1]
    with pytest.raises(IndefiniteKernelError, match="'b' is not positive semidefinite"):
        solved(kernels, y, 4.0, 2.0, facts=KernelFacts(("a", "b", "c")))


def test_refusals():
    kernels, y = made(3, 10)
    with pytest.raises(InputError, match="p must be at least 1"):
        MarginProblem(y, 1.0, 0.5)
    with pytest.raises(InputError, match="C must be a positive finite number"):
        MarginProblem(y, 0.0, 2.0)
    with pytest.raises(InputError, match="both present"):
        MarginProblem(np.ones(4), 1.0, 2.0)
    for start in (np.ones(2), np.array([1.0, -1.0, 1.0]), np.zeros(3), np.full(3, np.nan)):
        with pytest.raises(InputError, match="start must hold 3 finite weights"):
            solved(kernels, y, 1.0, 2.0, start=start)
    with pytest.raises(InputError, match="max_iter must be at least 1"):
        solved(kernels, y, 1.0, 2.0, max_iter=0)
