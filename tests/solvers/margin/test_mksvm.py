"""The kernel weights of ℓp MK-SVM against cvxpy, scikit-learn and their own certificate."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers.margin import made, optimum
from helpers.optima import conjugate, norm
from sklearn.svm import SVC

from dmkl.errors import IndefiniteKernelError
from dmkl.numerics.semidefinite import KernelFacts
from dmkl.solvers.in_memory import answer
from dmkl.solvers.interface import SVM, Status, run_with
from dmkl.solvers.margin.mksvm import certify_margin, mk_svm
from dmkl.solvers.margin.svm import solve_dense

EXPONENTS = [1.0, 1.0625, 1.5, 2.0, 8.0, np.inf]
BOUNDS = [0.25, 4.0, 64.0]


def unchanged(machine):
    return machine


def without_curvature(machine):
    return replace(machine, free_kernel=None)


def upper_bound(solution):
    """The primal value of the returned step."""
    return min(solution.steps, key=lambda step: step.figures["gap"]).figures["upper"]


def solved(kernels, y, C, p, *, change=unchanged, **options):
    """Run the solver, with modified machines, and check its certificate by the definitions."""

    def changed_answer(request):
        return change(answer(kernels, request)) if isinstance(request, SVM) else answer(kernels, request)

    solution = run_with(mk_svm(y, C, p, len(kernels), **options), changed_answer)
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
    # Clarabel's value is accurate to 1e-6.
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
        tol = 10 ** rng.uniform(-6, 0)  # any machine is accepted, finished or not
        u = solve_dense(np.tensordot(rng.dirichlet(np.ones(4)), kernels, axes=1), y, C, tol).u
        certificate = certify_margin(u[:, None], (kernels @ u)[:, :, None], beta, y[:, None], C, p)
        assert certificate.lower <= best * (1 + 1e-6)
        assert certificate.upper >= best * (1 - 1e-6)
        assert certificate.lower <= certificate.objective + 1e-12


@pytest.mark.parametrize(
    ("p", "change"), [(1.0, unchanged), (1.0625, without_curvature), (1.5, unchanged), (2.0, without_curvature)]
)
def test_the_objective_falls(p, change):
    kernels, y = made(12, 80, seed=3)
    for C in BOUNDS:
        solution = solved(kernels, y, C, p, tol=1e-4, change=change, max_iter=30)
        uppers = [step.figures["upper"] for step in solution.steps]
        assert solution.objective <= min(uppers)
        assert uppers[-1] < uppers[0]


@pytest.mark.parametrize("p", [1.0, 8.0])
def test_without_curvature_the_closed_form_gets_there(p):
    kernels, y = made(5, 40, seed=4)
    solution = solved(kernels, y, 4.0, p, tol=1e-3, change=without_curvature)
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
    for p in (1.0, 2.0):
        solution = solved(kernels, y, 4.0, p, tol=1e-6, change=lambda machine: replace(machine, u=0.95 * machine.u))
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
