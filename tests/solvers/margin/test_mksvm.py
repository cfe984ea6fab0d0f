"""The kernel weights of ℓp MK-SVM against cvxpy, scikit-learn and their own certificate."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers.generators import finish
from helpers.margin import made, optimum
from helpers.optima import conjugate, norm
from sklearn.svm import SVC

from dmkl.errors import IndefiniteKernelError, InputError
from dmkl.numerics.semidefinite import KernelFacts
from dmkl.solvers.interface import SVM, EachProduct, Status
from dmkl.solvers.margin.mksvm import MarginProblem, certify_margin, mk_svm
from dmkl.solvers.margin.svm import solve_dense

EXPONENTS = [1.0, 1.0625, 1.5, 2.0, 8.0, np.inf]
BOUNDS = [0.25, 4.0, 64.0]


def in_memory(kernels, request):
    return solve_dense(np.tensordot(request.weights, kernels, axes=1), request.y, request.C, request.tol, request.start)


def without_curvature(kernels, request):
    return replace(in_memory(kernels, request), free_kernel=None)


def upper_bound(solution):
    """The primal of the step that is returned."""
    return min(solution.steps, key=lambda step: step.figures["gap"]).figures["upper"]


def solved(kernels, y, C, p, *, machine=in_memory, **options):
    """Drive the solver, and check its certificate by the definitions."""

    def answer(request):
        if isinstance(request, SVM):
            return machine(kernels, request)
        assert isinstance(request, EachProduct)
        return kernels @ request.block

    solution = finish(mk_svm(MarginProblem(y, C, p), len(kernels), **options), answer)
    u, beta, upper = solution.dual[:, 0], solution.weights, upper_bound(solution)
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


@pytest.mark.parametrize(("p", "C"), list(zip(EXPONENTS, 2 * BOUNDS, strict=True)))
def test_reaches_the_optimum(p, C):
    kernels, y = made(5, 40)
    best = optimum(kernels, y, C, p)
    solution = solved(kernels, y, C, p, tol=1e-4)
    assert solution.status is Status.CERTIFIED
    assert solution.gap <= 1e-4
    # Clarabel's own value is good to 1e-6.
    assert solution.bound <= best * (1 + 1e-6)
    assert upper_bound(solution) >= best * (1 - 1e-6)
    assert solution.objective == pytest.approx(best, rel=1e-4)
    if p == np.inf:
        np.testing.assert_array_equal(solution.weights, np.ones(5))


@pytest.mark.parametrize(("p", "C"), [(1.0, 64.0), (1.0625, 0.25), (1.5, 64.0), (8.0, 4.0)])
def test_few_weightings(p, C):
    kernels, y = made(30, 120, seed=1)
    solution = solved(kernels, y, C, p, tol=1e-4)
    assert solution.status is Status.CERTIFIED
    assert len(solution.steps) <= 15


@pytest.mark.parametrize("p", [1.0, 2.0])
def test_the_gap_of_any_pair_encloses_the_optimum(p):
    kernels, y = made(4, 30, seed=2)
    C, rng = 4.0, np.random.default_rng(0)
    best = optimum(kernels, y, C, p)
    for _ in range(20):
        beta = rng.dirichlet(np.ones(4))
        beta /= norm(beta, p)
        tol = 10 ** rng.uniform(-6, 0)  # any machine will do, finished or not
        u = solve_dense(np.tensordot(rng.dirichlet(np.ones(4)), kernels, axes=1), y, C, tol).u
        certificate = certify_margin(u[:, None], (kernels @ u)[:, :, None], beta, y[:, None], C, p)
        assert certificate.lower <= best * (1 + 1e-6)
        assert certificate.upper >= best * (1 - 1e-6)
        assert certificate.lower <= certificate.objective + 1e-12


@pytest.mark.parametrize(
    ("p", "machine"), [(1.0, in_memory), (1.0625, without_curvature), (1.5, in_memory), (2.0, without_curvature)]
)
def test_the_objective_falls(p, machine):
    kernels, y = made(12, 80, seed=3)
    for C in BOUNDS:
        solution = solved(kernels, y, C, p, tol=1e-4, machine=machine, max_iter=30)
        uppers = [step.figures["upper"] for step in solution.steps]
        assert solution.objective <= min(uppers)
        assert uppers[-1] < uppers[0]


@pytest.mark.parametrize("p", [1.0, 8.0])
def test_without_curvature_the_closed_form_gets_there(p):
    kernels, y = made(5, 40, seed=4)
    solution = solved(kernels, y, 4.0, p, tol=1e-3, machine=without_curvature)
    assert solution.status is Status.CERTIFIED
    assert solution.objective == pytest.approx(optimum(kernels, y, 4.0, p), rel=1e-3)


@pytest.mark.parametrize("p", [1.0, np.inf])
def test_one_kernel_is_a_support_vector_machine(p):
    kernels, y = made(1, 100, noisy=0)
    theirs = SVC(kernel="precomputed", C=4.0, tol=1e-8).fit(kernels[0], y)
    solution = solved(kernels, y, 4.0, p, tol=1e-9)
    assert solution.status is Status.CERTIFIED
    assert len(solution.steps) == 1
    np.testing.assert_allclose(
        kernels[0] @ solution.dual[:, 0] + solution.bias, theirs.decision_function(kernels[0]), atol=1e-3
    )


def test_a_machine_that_can_do_no_better_ends_the_descent():
    kernels, y = made(5, 60)

    def coarse(kernels, request):
        solution = in_memory(kernels, request)
        return replace(solution, u=0.95 * solution.u)

    for p in (1.0, 2.0):
        solution = solved(kernels, y, 4.0, p, tol=1e-6, machine=coarse)
        assert solution.status is Status.STALLED
        assert solution.objective - solution.bound <= 1e-7 * upper_bound(solution)
        assert solution.gap > 1e-6


def test_the_cap_is_told():
    kernels, y = made(6, 60)
    solution = solved(kernels, y, 4.0, 1.0, tol=1e-6, max_iter=2)
    assert solution.status is Status.ITERATIONS
    assert solution.gap == min(step.figures["gap"] for step in solution.steps) > 1e-6


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
    with pytest.raises(InputError, match="max_iter must be at least 1"):
        solved(kernels, y, 1.0, 2.0, max_iter=0)
