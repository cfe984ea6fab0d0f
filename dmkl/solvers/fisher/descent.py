"""Descent on the dual of MK-FDA: directions from wherever they come, and exact minimisation over those at hand.

A step asks for the products of a few new directions (`Steps`), takes them into the span of those it has
(`span`), solves the problem there for α and β, and certifies the pair by the full problem. The objective F
falls in every step.

Tikhonov form (JMLR Eqs. 25, 26)
--------------------------------
With the penalty (μ/2)‖β‖_p² instead of the constraint, and the substitution α → (C/2)α, C = 1/λ, which turns Eq. 24
into Eq. 19, the saddle problem of Eq. 25 becomes, divided by −1/(2λ),

    max over β ≥ 0 of min over α of  S(α, β) − λμ‖β‖_p².

For fixed α the weights are β = ρ b with b the maximiser of bᵀq over the unit ball, b_j ∝ q_j^(1/(p−1)), and
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

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dmkl import progress
from dmkl.numerics.fisher import Certificate, certify, uniform_weights
from dmkl.solvers.fisher.span import Span
from dmkl.solvers.fisher.subspace.reduced import ReducedSolution, solve_reduced
from dmkl.solvers.fisher.wrapper import Problem, Solution, Step
from dmkl.solvers.outcome import Status, check_slopes
from dmkl.solvers.requests import Request

__all__ = ["PartStep", "Point", "Steps", "descend", "least_columns"]

Float = npt.NDArray[np.float64]


@dataclass
class PartStep(Step):
    """A step with the passes' worth of tiles that were read up to it: parts of a pass count as parts."""

    passes: float = 0.0


@dataclass(frozen=True)
class Point:
    """Where a descent is: β, R (m, c), and K_jα (n, m, c), which is None at α = 0."""

    beta: Float
    residual: Float
    products: Float | None


class Steps(Protocol):
    """Where new directions come from."""

    width: int
    """The most directions of one step."""

    def __call__(self, at: Point) -> Generator[Request, Any, tuple[Float, Float, float]]:
        """Directions (m, b), K_j times them (n, m, b), and the passes' worth of tiles that were read for them."""


def least_columns(n_classes: int, width: int) -> int:
    """The fewest directions that a span must hold: the current α, one step before, and a new one."""
    return n_classes + 2 * width


def descend(
    problem: Problem,
    n_kernels: int,
    steps: Steps,
    *,
    capacity: int,
    tol: float = 1e-4,
    max_passes: float = 200,
    mu: float | None = None,
    names: tuple[str, ...] = (),
    start: Float | None = None,
) -> Generator[Request, Any, Solution]:
    """Solve one problem; yields requests, returns a `Solution`.

    Parameters
    ----------
    problem
        Targets, ridge and norm.
    n_kernels
        n
    steps
        Where new directions come from.
    capacity
        The most directions that are kept, at least `least_columns`.
    tol
        The relative gap to prove.
    max_passes
        No step begins when as many passes' worth of tiles have been read.
    mu
        μ of the Tikhonov form; ‖β‖_p ≤ 1 where missing.
    names
        The kernels' names, for messages.
    start
        β to begin with, of norm one; uniform weights where missing.

    Raises
    ------
    IndefiniteKernelError
        If a quadratic form αᵀK_jα comes out negative, or I + K(β)/λ is not positive definite.
    """
    watch = progress.current()
    beta, rho = uniform_weights(n_kernels, problem.p) if start is None else start, 1.0
    span = Span(problem.h, n_kernels, capacity)
    coefficients = np.zeros((0, problem.h.shape[1]))
    at = Point(beta, problem.h, None)
    best: Solution | None = None
    history: list[Step] = []
    read = 0.0
    while read < max_passes:
        directions, products, more = yield from steps(at)
        read += more
        if not span.extend(directions, products, coefficients):
            break  # of the residual, rounding is all that is left
        found, rho = _saddle(span, problem, beta, rho, mu, 0.1 * tol, names)
        coefficients, beta = found.coefficients, found.beta
        alpha, products = span.combine(coefficients)
        # The bound ρ and λ are the bound one and λ/ρ.
        certificate, residual = certify(alpha, products, beta, problem.h, problem.lam / rho, problem.p)
        check_slopes(certificate.slopes, names)
        at = Point(rho * beta, residual, products)
        history.append(_recorded(certificate, at.beta, len(history) + 1, read))
        if best is None or certificate.gap < best.certificate.gap:
            best = Solution(alpha, at.beta, certificate, Status.ITERATIONS, history)
        watch.note(f"{problem.name}{read:.1f} passes: gap {certificate.gap:.2e}, aim {tol:.0e}")
        if certificate.gap <= tol:
            return Solution(alpha, at.beta, certificate, Status.CERTIFIED, history)
    assert best is not None
    status = Status.ITERATIONS if read >= max_passes else Status.STALLED
    return Solution(best.alpha, best.beta, best.certificate, status, history)


def _recorded(certificate: Certificate, beta: Float, number: int, read: float) -> PartStep:
    c = certificate
    return PartStep(c.objective, c.upper, c.gap, c.residual_sq, number, beta, read)


_ROUNDS = 40


def _saddle(
    span: Span, problem: Problem, beta: Float, rho: float, mu: float | None, tol: float, names: tuple[str, ...]
) -> tuple[ReducedSolution, float]:
    """The solution on the span, for weights of norm one, and the bound ρ that it belongs to.

    ρ is the fixed point of ρ ↦ ‖q‖_p*/(2λμ), where q belongs to the bound ρ. There ‖q‖ falls with ρ, and slower than
    ρ⁻² (for one kernel, αᵀKα = Σ_i κ_i h_i²/(½ + ρκ_i/2λ)²), so that half a step in log ρ at least halves the error.
    """
    if mu is None:
        return solve_reduced(span.problem(problem.lam, problem.p), beta, tol, names), 1.0
    for _ in range(_ROUNDS):
        found = solve_reduced(span.problem(problem.lam / rho, problem.p), beta, tol, names)
        beta = found.beta
        scaled = found.upper - found.objective + found.kernel_part  # ρ‖q‖_p*
        ratio = scaled / (2.0 * problem.lam * mu * rho**2)
        if abs(np.log(ratio)) <= 0.1 * tol:
            break
        rho *= float(np.sqrt(ratio))
    return found, rho * ratio
