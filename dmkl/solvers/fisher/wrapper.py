"""ℓp MK-FDA by the wrapper method: the α-step for fixed weights and a master for the weights in turn.

JMLR Algorithms 1 and 2, with two changes. The stopping rule is the proven gap of `dmkl.numerics.fisher.Certificate`
instead of the change between two steps. The default master is Newton's (see `dmkl.solvers.masters`): at p = 1 cutting
planes need a hundred α-steps where it needs some five.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from dmkl import progress
from dmkl.arrays import Array, Float
from dmkl.numerics.fisher import Certificate, certify
from dmkl.solvers.fisher.problem import FisherOptions, FisherProblem, certificate_step, certified_outcome
from dmkl.solvers.line_search import LineSearch
from dmkl.solvers.masters import CuttingPlane, ascent_direction, exact_master, newton_master, taylor_master
from dmkl.solvers.outcome import Outcome, Status, Step
from dmkl.solvers.requests import EachProduct, Request
from dmkl.solvers.semidefinite import UNKNOWN, KernelFacts, check_forms, lowest_on_span, tell_indefinite

__all__ = ["AlphaStep", "wrapper"]


class AlphaStep(Protocol):
    """Solves ½(I + K(β)/λ) α = H for one β after another."""

    def begin(self, beta: Float) -> Generator[Request, Any, Float]:
        """α for a new β."""

    def refine(self, beta: Float, alpha: Float, residual: Float, target: float) -> Generator[Request, Any, Float]:
        """A better α for the same β, from the true residual."""

    def curvature(self, beta: Float, products: Array) -> Generator[Request, Any, Float]:
        """Σ_k W_ikᵀA⁻¹W_jk for the last β and W = K_jα_k, (n, m, c); a model of it where no factor is there."""

    def inverse(self, beta: Float) -> Generator[Request, Any, Float | None]:
        """The diagonal of A⁻¹ for these weights, (m,), where there is a factor and it is wanted."""

    @property
    def products(self) -> int:
        """Products with the combined kernel so far."""


def wrapper(
    problem: FisherProblem,
    n_kernels: int,
    alpha_step: AlphaStep,
    options: FisherOptions,
    facts: KernelFacts = UNKNOWN,
) -> Generator[Request, Any, Outcome]:
    """Solve one problem; yields requests, returns an `Outcome`.

    Parameters
    ----------
    problem
        Targets, ridge and the weights that may be.
    n_kernels
        n
    alpha_step
        How α is found for fixed weights.
    options
        `tol`, `max_iter` (most weightings tried) and `master`.
    facts
        What is known of the kernels.

    Raises
    ------
    IndefiniteKernelError
        If a quadratic form αᵀK_jα comes out negative.
    """
    watch, tol = progress.current(), options.tol
    beta = problem.weights.start(n_kernels) if problem.start is None else problem.start
    fixed = problem.weights.decided(n_kernels)
    best: tuple[Float, Float, Certificate] | None = None
    steps: list[Step] = []
    cuts: list[CuttingPlane] = []
    candidate = beta
    ascent: LineSearch | None = None
    last: tuple[Float, Array] | None = None
    careful, status = False, Status.ITERATIONS
    for _ in range(options.max_iter):
        alpha, products, certificate = yield from _evaluate(problem, candidate, alpha_step, tol, careful, facts)
        last = alpha.T @ alpha, alpha.T @ products
        steps.append(certificate_step(certificate, candidate, products=alpha_step.products))
        careful = careful or (
            best is not None
            and certificate.gap > 0.5 * best[2].gap
            and certificate.alpha_gap > _tolerable(0.0, certificate.weights_gap, careful=True)
        )
        if best is None or certificate.gap < best[2].gap:
            best = (alpha, candidate, certificate)
        watch.note(f"{problem.name}α-step {len(steps)}: gap {certificate.gap:.2e}, aim {tol:.0e}")
        if certificate.gap <= tol:
            status = Status.CERTIFIED
            break
        if fixed or certificate.weights_gap <= 0.1 * tol:
            # No other weights would help, and the α-step can do no better.
            status = Status.STALLED
            break
        if options.master == "newton":
            q, slack = certificate.slopes, certificate.residual_sq
            # J rises as a concave function should, up to the error that the α-steps leave.
            if ascent is None or ascent.accepts(certificate.objective, slack):
                curvature = yield from alpha_step.curvature(candidate, products)
                aim = newton_master(q, curvature / (4.0 * problem.lam**2), candidate, problem.weights)
                direction = ascent_direction(aim, q, candidate, problem.weights)
                ascent = LineSearch(candidate, direction, q, certificate.objective, slack=slack)
            else:
                ascent.shorten()
            if ascent.point is None:
                status = Status.STALLED
                break
            candidate = ascent.point
        else:
            cuts.append(CuttingPlane(certificate.objective - float(candidate @ certificate.slopes), certificate.slopes))
            exact, weights = options.master == "exact", problem.weights
            candidate = exact_master(cuts, weights) if exact else taylor_master(cuts, candidate, weights)
    assert best is not None
    assert last is not None
    tell_indefinite(lowest_on_span(*last), facts)
    inverse = yield from alpha_step.inverse(best[1])
    return replace(certified_outcome(*best, status, steps), inverse=inverse)


def _evaluate(
    problem: FisherProblem, beta: Float, alpha_step: AlphaStep, tol: float, careful: bool, facts: KernelFacts
) -> Generator[Request, Any, tuple[Float, Array, Certificate]]:
    """α for these weights, accurate enough that its error does not hide what the weights still lack."""
    alpha = yield from alpha_step.begin(beta)
    products = yield EachProduct(alpha)
    certificate, residual = certify(alpha, products, beta, problem.h, problem.lam, problem.weights)
    for _ in range(5):
        check_forms(certificate.slopes, facts, float(np.sum(alpha * alpha)) / (4.0 * problem.lam))
        if certificate.alpha_gap <= _tolerable(tol, certificate.weights_gap, careful=careful):
            break
        target = 0.1 * _tolerable(tol, 0.0, careful=careful) * abs(certificate.objective)
        better = yield from alpha_step.refine(beta, alpha, residual, target)
        better_products = yield EachProduct(better)
        refined, better_residual = certify(better, better_products, beta, problem.h, problem.lam, problem.weights)
        if not refined.residual_sq < 0.5 * certificate.residual_sq:
            break  # as accurate as the arithmetic allows
        alpha, products, certificate, residual = better, better_products, refined, better_residual
    return alpha, products, certificate


def _tolerable(tol: float, weights_gap: float, *, careful: bool) -> float:
    """The relative ‖R‖² that an α-step may leave.

    ‖R‖² is of second order in the error of α, the slopes are of first order. Where F has kinks (p = 1, or near it) that
    error can show in the weights' gap: once the gap stops shrinking (`careful`), ‖R‖ itself is kept below it.
    """
    return (0.1 * max(tol, weights_gap)) ** 2 if careful else max(0.1 * tol, 0.01 * weights_gap)
