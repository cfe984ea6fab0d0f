"""Descent on the dual of MK-FDA: directions from wherever they come, and exact minimization over those at hand.

A step asks for the products of a few new directions (`DirectionSource`), takes them into the span of those it has
(`span`), solves the problem there for α and β, and certifies the pair by the full problem. The objective F
falls in every step.

Tikhonov form (JMLR Eqs. 25, 26)
--------------------------------
With the penalty (μ/2)‖β‖_p² instead of the constraint, and the substitution α → (C/2)α, C = 1/λ, which turns Eq. 24
into Eq. 19, the saddle problem of Eq. 25 becomes, divided by −1/(2λ),

    max over β ≥ 0 of min over α of  S(α, β) − λμ‖β‖_p².

For fixed α the weights are β = ρ b with b the maximizer of bᵀq over the unit ball, b_j ∝ q_j^(1/(p−1)), and
ρ = ‖q‖_p*/(2λμ), which leaves the dual of Eq. 26,

    F_μ(α) = ¼‖α‖² − tr(Hᵀα) + ‖q(α)‖_p*²/(4λμ).

(The paper's αᵀK_jα is q_j/λ in this scaling.) Its solution also solves the problem with the constraint ‖β‖_p ≤ ρ,
which is the one with ‖b‖_p ≤ 1 and λ/ρ, since K(ρb)/λ = K(b)/(λ/ρ). Back: the problem with ‖β‖_p ≤ 1 and λ has the
solution of the penalty μ = ‖q‖_p*/(2λ), q being that of its α. For a pair with ρ = ‖q(α)‖_p*/(2λμ) exactly, which is
what is returned, the two forms have the same gap F − S + ‖R‖²:

    F_μ(α) − [S(α, β) − λμρ²] = (‖q‖_p* − 2λμρ)²/(4λμ) + ρ‖q‖_p* − βᵀq,

of which the square is zero and the rest is F − S of the constraint ‖β‖_p ≤ ρ.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from dmkl import progress
from dmkl.arrays import Float
from dmkl.numerics.fisher import certify
from dmkl.passes.blas import pinned_blas
from dmkl.passes.execute import check_memory, machine
from dmkl.solvers.fisher.mkfda import solve_restricted
from dmkl.solvers.fisher.newton import Solution, certificate_step
from dmkl.solvers.fisher.problem import FisherOptions, FisherProblem
from dmkl.solvers.fisher.span import Span
from dmkl.solvers.jobs import Context, Job
from dmkl.solvers.outcome import Outcome, Status, Step
from dmkl.solvers.requests import Request
from dmkl.solvers.semidefinite import UNKNOWN, KernelFacts, check_forms

__all__ = ["DirectionSource", "Place", "descend", "descend_jobs", "least_columns"]


@dataclass(frozen=True)
class Place:
    """Where a descent is: β, R (m, c), and K_jα (n, m, c), which is None at α = 0."""

    beta: Float
    residual: Float
    products: Float | None


class DirectionSource(Protocol):
    """Where new directions come from."""

    width: int
    """The most directions of one step."""

    def __call__(self, at: Place) -> Generator[Request, Any, tuple[Float, Float, float]]:
        """Directions (m, b), K_j times them (n, m, b), and the passes' worth of tiles that were read for them."""


def least_columns(n_classes: int, width: int) -> int:
    """The fewest directions that a span must hold: the current α, one step before, and a new one."""
    return n_classes + 2 * width


def descend(
    problem: FisherProblem,
    n_kernels: int,
    source: DirectionSource,
    options: FisherOptions,
    *,
    capacity: int,
    facts: KernelFacts = UNKNOWN,
) -> Generator[Request, Any, Outcome]:
    """Solve one problem; yields requests, returns an `Outcome`.

    Parameters
    ----------
    problem
        Targets, ridge and the weights that may be.
    n_kernels
        n
    source
        Where new directions come from.
    options
        `tol`, `mu`, and `max_iter`: no step begins when as many passes' worth of tiles have been read.
    capacity
        The most directions that are kept, at least `least_columns`.
    facts
        What is known of the kernels.

    Raises
    ------
    IndefiniteKernelError
        If a quadratic form αᵀK_jα comes out negative, or I + K(β)/λ is not positive definite.
    """
    watch, tol = progress.current(), options.tol
    beta = problem.weights.start(n_kernels) if problem.start is None else problem.start
    rho = 1.0
    span = Span(problem.h, n_kernels, capacity)
    coefficients = np.zeros((0, problem.h.shape[1]))
    at = Place(beta, problem.h, None)
    best: Solution | None = None
    steps: list[Step] = []
    read, status = 0.0, Status.ITERATIONS
    while read < options.max_iter:
        directions, products, more = yield from source(at)
        read += more
        if not span.extend(directions, products, coefficients):
            # Of the residual, rounding is all that is left.
            status = Status.ITERATIONS if read >= options.max_iter else Status.STALLED
            break
        with pinned_blas(1):  # the problem on the span is too small for threads, which would wait for one another
            found, rho = _saddle(span, problem, beta, rho, options.mu, 0.1 * tol, facts)
        coefficients, beta = found.alpha, found.beta
        alpha, products = span.combine(coefficients)
        # The bound ρ and λ are the bound one and λ/ρ.
        certificate, residual = certify(alpha, products, beta, problem.h, problem.lam / rho, problem.weights)
        check_forms(certificate.gradient, facts, float(np.sum(alpha * alpha)) / (4.0 * problem.lam / rho))
        at = Place(rho * beta, residual, products)
        steps.append(certificate_step(certificate, at.beta, products=len(steps) + 1, passes=read))
        if best is None or certificate.gap < best.certificate.gap:
            best = Solution(alpha, at.beta, certificate, status)
        watch.note(f"{problem.name}{read:.1f} passes: gap {certificate.gap:.2e}, aim {tol:.0e}")
        if certificate.gap <= tol:
            status = Status.CERTIFIED
            break
    assert best is not None
    return replace(best, status=status, steps=steps).outcome()


_ROUNDS = 40


def _saddle(
    span: Span, problem: FisherProblem, beta: Float, rho: float, mu: float | None, tol: float, facts: KernelFacts
) -> tuple[Solution, float]:
    """The solution on the span, for weights of norm one, and the bound ρ that it belongs to.

    ρ is the fixed point of ρ ↦ ‖q‖_p*/(2λμ), where q belongs to the bound ρ. There ‖q‖ falls with ρ, and slower than
    ρ⁻² (for one kernel, αᵀKα = Σ_i κ_i h_i²/(½ + ρκ_i/2λ)²), so that half a step in log ρ at least halves the error.
    """
    if mu is None:
        return solve_restricted(span.oracle(problem.lam, problem.weights, facts), beta, tol), 1.0
    for _ in range(_ROUNDS):
        found = solve_restricted(span.oracle(problem.lam / rho, problem.weights, facts), beta, tol)
        beta = found.beta
        c = found.certificate
        scaled = c.upper - c.objective + c.kernel_part  # ρ‖q‖_p*
        ratio = scaled / (2.0 * problem.lam * mu * rho**2)
        if abs(np.log(ratio)) <= 0.1 * tol:
            break
        rho *= float(np.sqrt(ratio))
    return found, rho * ratio


# --- as a solver of jobs -----------------------------------------------------------------------------------------

_COLUMNS = 400
"""More directions than this make the small problem slower, and the convergence hardly faster."""

SourceOf = Callable[[Job, int, int], DirectionSource]
"""Makes the source of directions of a job, from how many jobs run at once and the memory budget in bytes."""


def descend_jobs(
    jobs: Sequence[Job], options: FisherOptions, context: Context, name: str, extra_width: int, source_of: SourceOf
) -> list[Outcome]:
    """Solve jobs by descent, as many side by side as half of the memory budget has room for.

    That half holds the directions and their products; what the sources hold is theirs.

    Parameters
    ----------
    name
        The solver, for messages.
    extra_width
        The most directions of a step beyond those of the classes.
    source_of
        Where new directions come from.

    Raises
    ------
    MemoryBudgetError
        If the fewest directions do not fit.
    """
    widest = max((job.problem.h for job in jobs), key=lambda h: h.size)
    (m, c), budget = widest.shape, machine().total_bytes
    column_bytes = 8 * (max(job.n_kernels for job in jobs) + 1) * m
    least_bytes = column_bytes * least_columns(c, c + extra_width)
    check_memory(
        f"solver={name!r}",
        {"the least number of directions and their products": least_bytes},
        budget // 2,
        "Set dmkl.memory higher, or take solver='subspace', which keeps them on disk, or 'cg'",
    )
    at_once = min(len(jobs), budget // 2 // least_bytes)
    capacity = min(_COLUMNS + c, budget // 2 // at_once // column_bytes)

    def solver_of(job: Job) -> Generator[Request, Any, Outcome]:
        source = source_of(job, at_once, budget)
        return descend(job.problem, job.n_kernels, source, options, capacity=capacity, facts=job.facts)

    return context.drive(jobs, solver_of, at_once=at_once)
