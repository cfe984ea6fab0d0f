"""The Newton iteration of MK-FDA: maximize J(β) = min_α S(α, β) over a set of kernel weights.

S is quadratic in α and linear in β (`dmkl.numerics.fisher`), so J is concave. With A = ½(I + K(β)/λ) and α = A⁻¹H

    ∂J/∂β_j        = q_j  = (1/4λ) Σ_k α_kᵀK_jα_k,
    −∂²J/∂β_i∂β_j  = C_ij = (1/4λ²) Σ_k (K_iα_k)ᵀA⁻¹(K_jα_k).

A step maximizes the model qᵀ(b − β) − ½(b − β)ᵀC(b − β) over the set (the restricted master, a small conic program, or
for many kernels a problem of the rank of C) and searches along b − β until J rises enough. The iteration ends when the
certificate proves the gap: no stopping rule compares two steps. JMLR Algorithms 1 and 2 take cutting planes as the
master instead (`master`), which at p = 1 need a hundred α-steps where Newton's method needs some five.

The loop does not depend on how α is computed. An oracle computes it for given weights: by a Cholesky factor of the
combined kernel (`direct`), by conjugate gradients through passes (`cg`), by matrices in memory (`mkfda`), or for many
targets at once (`many`).
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from dmkl import progress
from dmkl.arrays import Float
from dmkl.numerics.fisher import Certificate
from dmkl.solvers.masters import CuttingPlane, Factored, LineSearch, exact_master, newton_direction, taylor_master
from dmkl.solvers.outcome import Outcome, Status, Step
from dmkl.solvers.requests import Task
from dmkl.solvers.weight_sets.base import WeightSet

Master = Literal["newton", "taylor", "exact"]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """α for some weights, in the form that the oracle keeps it, and the certificate of the pair (α, β)."""

    alpha: Any
    certificate: Certificate
    counts: Mapping[str, float] = field(default_factory=dict)
    """Figures for the history, by name: products with the combined kernel so far, say."""


class Oracle(Protocol):
    """Computes α, S and the gradient q at given weights, by generators: who runs `maximize` answers their requests."""

    def evaluate(self, beta: Float, tol: float, *, careful: bool) -> Generator[Any, Any, Evaluation]:
        """Solve the α-step at β, (n,), so accurately that its error does not hide a gap of `tol`.

        `careful` says that the error of α shows in the gradient: ‖R‖ itself, not ‖R‖², has to stay below the gap.
        """

    def curvature(self) -> Generator[Any, Any, Float | Factored]:
        """C at the weights that were evaluated last, (n, n) or by a factor, or a positive semidefinite model of it."""


@dataclass(frozen=True, eq=False)
class Solution:
    """The best pair (α, β) of an iteration, α in the form that the oracle keeps it, and what is proven about it."""

    alpha: Any
    beta: Float
    certificate: Certificate
    status: Status
    steps: Sequence[Step] = ()

    def outcome(self, **more: Any) -> Outcome:
        """The pair as a solver returns it: S(α, β) is the objective, F(α) its bound."""
        c, steps = self.certificate, self.steps or [certificate_step(self.certificate, self.beta)]
        return Outcome(self.status, self.beta, self.alpha, c.objective, c.upper, c.gap, steps=steps, **more)


def maximize(
    oracle: Oracle,
    weights: WeightSet,
    start: Float,
    tol: float,
    *,
    max_steps: int = 200,
    master: Master = "newton",
    of_kernels: bool = False,
    name: str | None = None,
) -> Generator[Any, Any, Solution]:
    """Maximize J over a set of weights; yields what the oracle asks for, and the restricted master as a `Task`.

    It begins with the weights `start`, (n,), of the set, evaluates at most `max_steps` weights, and ends when the
    relative gap `tol` is proven. `master` chooses the next weights: "newton", or by the cutting planes of JMLR, "exact"
    or in Taylor's form. With `of_kernels` the gap is relative to βᵀq, the part of S that the kernels make, instead of
    |S|: for large λ, S hardly depends on the weights, and a small gap relative to |S| says little about them. Progress
    is shown of a problem with a `name`.
    """
    # A set of one element (one kernel, p = ∞) leaves only the α-step to be solved.
    fixed = weights.is_fixed(len(start))
    best: Solution | None = None
    steps: list[Step] = []
    planes: list[CuttingPlane] = []
    search: LineSearch | None = None
    beta, careful, status = start, False, Status.ITERATIONS
    while len(steps) < max_steps:
        # S(α, β) ≤ J(β) + error of α and F(α) ≥ the optimum hold for the same α, so the certificate needs no exact α.
        evaluation = yield from oracle.evaluate(beta, tol, careful=careful)
        certificate = evaluation.certificate
        # With of_kernels both gaps are relative to βᵀq = share · |S|.
        scale = certificate.share if of_kernels else 1.0
        gap, weights_gap = certificate.gap / scale, certificate.weights_gap / scale
        q, objective = certificate.gradient, certificate.objective
        # JMLR's criterion |1 − S/θ|, θ the least S(α, β) of earlier α: Eq. 16 where a cutting plane method chose β.
        theta = min((plane.constant + float(plane.gradient @ beta) for plane in planes), default=-math.inf)
        steps.append(certificate_step(certificate, beta, violation=abs(1.0 - objective / theta), **evaluation.counts))
        # S(α, ·) is linear in β and at least J: a plane above J that touches it at β.
        planes.append(CuttingPlane(objective - float(beta @ q), q))
        if best is not None and certificate.gap > 0.5 * best.certificate.gap:
            # The gap has stopped shrinking: perhaps the error of α shows in it to first order.
            careful = careful or certificate.alpha_gap > (0.1 * certificate.weights_gap) ** 2
        # The returned pair is the one with the smallest proven gap, which need not be the last one.
        if best is None or certificate.gap < best.certificate.gap:
            best = Solution(evaluation.alpha, beta, certificate, status)
        if name is not None:
            progress.current().note(f"{name}step {len(steps)}, {progress.error_text(certificate.gap)}")
        if gap <= tol:
            status = Status.CERTIFIED
            break
        if fixed or weights_gap <= 0.1 * tol:
            # No other weights would help, and the α-step can do no better.
            status = Status.STALLED
            break
        if master == "newton":
            # ‖R‖² bounds the error that an inexact α leaves in S, the second term its rounding.
            slack = certificate.residual_sq + 1e-14 * abs(objective)
            if search is None or search.accepts(objective, slack):
                # A new model is made only at accepted weights: C costs as much as an α-step.
                curvature = yield from oracle.curvature()
                direction = yield Task("restricted-master", newton_direction, (q, curvature, beta, weights))
                search = LineSearch(beta, direction, q, objective, slack=slack)
            else:
                search.shorten()
            if search.point is None:
                status = Status.STALLED
                break
            # The point is inside the set, which is convex: between the last accepted weights and the master's solution.
            beta = search.point
        elif master == "exact":
            beta = yield Task("restricted-master", exact_master, (planes, weights))
        else:
            beta = yield Task("restricted-master", taylor_master, (planes, beta, weights))
    assert best is not None
    return Solution(best.alpha, best.beta, best.certificate, status, steps)


def certificate_step(certificate: Certificate, beta: Float, **counts: float) -> Step:
    """A step of the history: S, F, the gap, ‖R‖², and counts."""
    c = certificate
    figures = {"objective": c.objective, "upper": c.upper, "gap": c.gap, "residual_sq": c.residual_sq, **counts}
    return Step(beta, figures)
