"""MK-FDA on plain arrays: the Newton iteration over the kernel weights, and the oracle of kernels in memory.

The iteration maximizes J(β) = min_α S(α, β) over a set of kernel weights. S is quadratic in α and linear in β
(`dmkl.numerics.fisher`), so J is concave. With A = ½(I + K(β)/λ) and α = A⁻¹H

    ∂J/∂β_j        = q_j  = (1/4λ) Σ_k α_kᵀK_jα_k,
    −∂²J/∂β_i∂β_j  = C_ij = (1/4λ²) Σ_k (K_iα_k)ᵀA⁻¹(K_jα_k).

A step maximizes the model qᵀ(b − β) − ½(b − β)ᵀC(b − β) over the set (the restricted master, a small conic program, or
for many kernels a problem of the rank of C) and searches along b − β until J rises enough. The iteration ends when the
certificate proves the gap and the next step is short: J is flat at its maximum, so that a small gap leaves larger
errors of the weights, which the length of Newton's next step estimates. JMLR Algorithms 1 and 2 take cutting planes as
the master instead (`master`), which at p = 1 need a hundred α-steps where Newton's method needs some five.

The iteration does not depend on how α is computed. An oracle computes it for given weights: by matrices in memory here,
by a Cholesky factor of the combined kernel (`wrapper`), by conjugate gradients through passes (`cg`), or for many
targets at once (`many`).

The subspace solver restricts MK-FDA to α = Va. With G_j = VᵀK_jV, N = VᵀV and T = VᵀH the restricted problem

    min_a Σ_k [ ¼ a_kᵀN a_k + (1/4λ) a_kᵀG(β) a_k − t_kᵀa_k ],   G(β) = Σ_j β_j G_j,

has the form of the full one, N in place of the identity. S and F are those of the full problem at α = Va, also where
rounding leaves V not quite orthonormal, since G_j and N are computed from the V that is used.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from dmkl import progress
from dmkl.arrays import Array, Float
from dmkl.errors import refuse
from dmkl.numerics.cholesky import compressed, definite_factor
from dmkl.numerics.fisher import Certificate, as_exponent, row_space
from dmkl.numerics.semidefinite import UNKNOWN, KernelFacts, check_forms
from dmkl.solvers import masters
from dmkl.solvers.interface import Outcome, Result, Status, Step, Task, run_with
from dmkl.solvers.masters import WEIGHTS_ERROR, CuttingPlane, Factored, LineSearch
from dmkl.solvers.weight_sets import Ball, WeightSet

Master = Literal["newton", "taylor", "exact"]
_ASYMMETRY = 1e-4  # Share of the largest entry that is taken for rounding in single precision
DENSE = 100
"""Most kernels whose curvature is a matrix: a conic program takes longer than the factored master for more."""


def solve_mkfda(
    kernels: npt.ArrayLike,
    H: npt.ArrayLike,
    p: float = 2.0,
    lam: float = 1e-2,
    *,
    tol: float = 1e-4,
    max_iter: int = 200,
    start: npt.ArrayLike | None = None,
) -> Outcome:
    r"""Solve ℓp-norm multiple kernel Fisher discriminant analysis on plain arrays.

    With targets H (m, c), dual variables α (m, c), kernel weights β (n,) and the ridge λ the problem is

    .. math::
        \max_{β ≥ 0,\; ‖β‖_p ≤ 1} \; \min_α \; S(α, β)
        = \sum_k \left[ \tfrac14 α_k^⊤α_k + \tfrac{1}{4λ} α_k^⊤ K(β) α_k - h_k^⊤α_k \right],
        \quad K(β) = \sum_j β_j K_j

    (Yan, Kittler, Mikolajczyk, Tahir: JMLR 13, 2012, Eqs. 10 and 19). The score of a sample x for column k is
    Σ_j β_j Σ_i k_j(x, x_i) α_ik. `MKFDA` solves the same problem on kernels that do not fit in memory, and centers the
    kernels and encodes labels first; here both are taken as they are.

    Parameters
    ----------
    kernels
        K_j, (n, m, m), symmetric and positive semidefinite.
    H
        Targets, (m, c) or (m,).
    p
        Norm of the weights, 1 ≤ p ≤ ∞.
    lam
        Ridge λ > 0, in the units of the kernels' eigenvalues.
    tol
        Relative gap to prove.
    max_iter
        Most weights β that are tried.
    start
        β ≥ 0 to begin with, (n,), scaled to ‖β‖_p = 1; equal weights where None.

    Returns
    -------
    dmkl.solvers.interface.Outcome
        With `weights` β, `dual` α, `objective` S(α, β), `bound` F(α) ≥ the optimum, the proven relative `gap`,
        `status` and the history `steps`.

    Raises
    ------
    InputError
        If shapes do not fit, a number is not finite, a kernel is not symmetric, p is below 1, λ is not positive,
        `max_iter` is below 1, or a weight of `start` is negative.
    IndefiniteKernelError
        If a kernel proves not to be positive semidefinite.

    Examples
    --------
    >>> import numpy as np, dmkl
    >>> X = np.random.default_rng(0).normal(size=(2, 30, 4))
    >>> kernels = X @ X.transpose(0, 2, 1)
    >>> H = X[0, :, :1] - X[0, :, 0].mean()
    >>> solution = dmkl.solve_mkfda(kernels, H, p=1, lam=0.1)
    >>> solution.gap <= 1e-4, solution.weights.round(2)
    (True, array([0.93, 0.07]))
    """
    K, h = checked_arrays(kernels, H, "H", lam, max_iter)
    weights = Ball(as_exponent(p))
    oracle = MemoryOracle(K, h, lam, weights)
    return run_here(maximize(oracle, weights, first_weights(start, weights, len(K)), tol, max_steps=max_iter)).outcome()


def checked_arrays(
    kernels: npt.ArrayLike, columns: npt.ArrayLike, name: str, lam: float, max_iter: int
) -> tuple[Float, Float]:
    """K_j (n, m, m) and columns (m, c) in double precision, which messages call `name`.

    InputError unless shapes fit, all numbers are finite, kernels are symmetric, λ > 0 and `max_iter` is 1 or more.
    """
    K, h = np.asarray(kernels, dtype=np.float64), np.asarray(columns, dtype=np.float64)
    h = h[:, None] if h.ndim == 1 else h
    if h.ndim != 2 or not K.size or K.shape[1:] != (len(h), len(h)):
        given = f"{K.shape} and {np.shape(columns)}"
        refuse(f"kernels must have the shape (n, m, m) and {name} (m,) or (m, c), got {given}")
    if not (np.isfinite(K).all() and np.isfinite(h).all()):
        refuse(f"kernels and {name} must be finite numbers: leave out samples of which some are unknown")
    for j, kernel in enumerate(K):
        if np.abs(kernel - kernel.T).max() > _ASYMMETRY * np.abs(kernel).max():
            refuse(f"kernels must be symmetric, and number {j} is not: take the mean of it and its transpose")
    if not 0 < lam < np.inf:
        refuse(f"lam must be positive and finite, got {lam!r}")
    if max_iter < 1:
        refuse(f"max_iter must be 1 or more, got {max_iter!r}")
    return K, h


def first_weights(start: npt.ArrayLike | None, weights: WeightSet, n: int) -> Float:
    """Given weights, moved into the set, or equal ones for None; InputError unless they are n numbers ≥ 0."""
    near = None if start is None else np.asarray(start, dtype=np.float64)
    if near is not None and not (near.shape == (n,) and np.isfinite(near).all() and (near >= 0).all()):
        refuse(f"start must be {n} finite weights of 0 or more, one for each kernel, got {start!r}")
    return weights.start(n, near)


# --- the Newton iteration ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Evaluation:
    """α for some weights, in the form that the oracle keeps it, and the certificate of the pair (α, β)."""

    alpha: Any
    certificate: Certificate
    state: Any = None  # That from which the oracle computes the curvature at these weights: a factor, say
    counts: Mapping[str, float] = field(default_factory=dict)
    """Figures for the history, by name: products with the combined kernel so far, say."""


class Oracle(Protocol):
    """Computes α, S and the gradient q at given weights, by generators: who runs `maximize` answers their requests."""

    def evaluate(self, beta: Float, tol: float, *, careful: bool) -> Generator[Any, Any, Evaluation]:
        """Solve the α-step at β, (n,), so accurately that its error does not hide a gap of `tol`.

        `careful` says that the error of α shows in the gradient: ‖R‖ itself, not ‖R‖², has to stay below the gap.
        """

    def curvature(self, evaluation: Evaluation) -> Generator[Any, Any, Float | Factored | None]:
        """C at the weights of an evaluation, (n, n) or by a factor, or a positive semidefinite model of it, if any."""


@dataclass(frozen=True, eq=False)
class Solution:
    """The best pair (α, β) of an iteration, α in the form that the oracle keeps it, and what is proven about it."""

    alpha: Any
    beta: Float
    certificate: Certificate
    status: Status
    steps: Sequence[Step] = ()
    weights_error: float = math.nan
    """The largest entry of Newton's next step relative to the largest weight: an estimate, not a bound."""

    def outcome(self, **more: Any) -> Outcome:
        """The pair as a solver returns it: S(α, β) is the objective, F(α) its bound."""
        c, steps = self.certificate, self.steps or [certificate_step(self.certificate, self.beta)]
        given = self.status, self.beta, self.alpha, c.objective, c.upper, c.gap
        return Outcome(*given, steps=steps, weights_error=self.weights_error, **more)


def maximize(
    oracle: Oracle,
    weights: WeightSet,
    start: Float,
    tol: float,
    *,
    max_steps: int = 200,
    master: Master = "newton",
    of_kernels: bool = False,
    kink: float = -math.inf,
    name: str | None = None,
) -> Generator[Any, Any, Solution]:
    """Maximize J over a set of weights; yields what the oracle asks for, and the restricted master as a `Task`.

    It begins with the weights `start`, (n,), of the set, evaluates at most `max_steps` weights, and ends when the
    relative gap `tol` is proven and, with Newton's master, the next step is at most `WEIGHTS_ERROR` of the largest
    weight, or J rises by rounding alone. `master` chooses the next weights: "newton", or by the cutting planes of JMLR,
    "exact" or in Taylor's form. With `of_kernels` the gap is relative to βᵀq, the part of S that the kernels make,
    which a subspace knows and which is at most `Certificate.scale`, and the next step is not computed. If S − ‖R‖²
    rises by no more than the share `kink` of the scale in a step while the gap is open, the iteration ends: J is not
    smooth there, and Newton's model does not describe it. Progress is shown of a problem with a `name`.
    """
    # A set of one element (one kernel, p = ∞) leaves only the α-step to be solved.
    fixed = weights.is_fixed(len(start))
    estimated = master == "newton" and not of_kernels and not fixed
    best: Solution | None = None
    steps: list[Step] = []
    planes: list[CuttingPlane] = []
    search: LineSearch | None = None
    beta, careful, status, reached = start, False, Status.ITERATIONS, -math.inf
    while len(steps) < max_steps:
        # S(α, β) ≤ J(β) + error of α and F(α) ≥ the optimum hold for the same α, so the certificate needs no exact α.
        evaluation = yield from oracle.evaluate(beta, tol, careful=careful)
        certificate = evaluation.certificate
        # With of_kernels both gaps are relative to βᵀq = share · scale.
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
        # The returned pair is the one with the smallest proven gap, which need not be the last one; once the gap is
        # proven, the last one at which J rose enough.
        if best is None or (status != Status.CERTIFIED and certificate.gap < best.certificate.gap):
            best = Solution(evaluation.alpha, beta, certificate, status)
        if name is not None:
            progress.current().note(f"{name}{progress.error_text(certificate.gap)}")
        if gap <= tol:
            status = Status.CERTIFIED
            if not estimated:
                break
        elif status != Status.CERTIFIED and (fixed or weights_gap <= 0.1 * tol):
            # No other weights would help, and the α-step can do no better.
            status = Status.STALLED
            break
        if master == "newton":
            # ‖R‖² bounds the error that an inexact α leaves in S, the second term its rounding.
            slack = certificate.residual_sq + 1e-14 * abs(objective)
            if search is None or search.accepts(objective, slack):
                lower = objective - certificate.residual_sq
                if gap > tol and lower - reached <= kink * certificate.scale:
                    status = Status.CERTIFIED if status == Status.CERTIFIED else Status.STALLED
                    break
                reached = lower
                # A new model is made only at accepted weights: C costs as much as an α-step.
                curvature = yield from oracle.curvature(evaluation)
                direction = yield Task("restricted-master", masters.newton_direction, (q, curvature, beta, weights))
                search = LineSearch(beta, direction, q, objective, slack=slack)
                if gap <= tol:
                    if curvature is None:  # the direction estimates no error
                        break
                    error = float(np.abs(direction).max()) / (float(beta.max()) or 1.0)
                    best = Solution(evaluation.alpha, beta, certificate, status, weights_error=error)
                    # Of equal kernels any mixture is optimal: the step may be long where J is flat.
                    if error <= WEIGHTS_ERROR or weights_gap <= masters.FLAT:
                        break
            else:
                search.shorten()
            if search.point is None:
                status = Status.CERTIFIED if status == Status.CERTIFIED else Status.STALLED
                break
            # The point is inside the set, which is convex: between the last accepted weights and the master's solution.
            beta = search.point
        elif master == "exact":
            beta, _ = yield Task("restricted-master", masters.exact_master, (planes, weights))
        else:
            beta = yield Task("restricted-master", masters.taylor_master, (planes, beta, weights))
        del evaluation  # its state may be a factor as large as a kernel, which the next one takes the place of
    assert best is not None
    return replace(best, status=status, steps=steps)


def certificate_step(certificate: Certificate, beta: Float, **counts: float) -> Step:
    """A step of the history: S, F, the gap, ‖R‖², and counts."""
    c = certificate
    figures = {"objective": c.objective, "upper": c.upper, "gap": c.gap, "residual_sq": c.residual_sq, **counts}
    return Step(beta, figures)


# --- kernels in memory ------------------------------------------------------------------------------------------------


class MemoryOracle:
    """α, S and its gradient from kernels (n, m, m) in memory (see `Oracle`).

    In a subspace the kernels are G_j, H is VᵀH, and `inner` is N = VᵀV, (m, m); the residual is not computed there,
    since it belongs to the full space. `inner` is None for the identity.
    """

    def __init__(
        self,
        kernels: Array,
        h: Float,
        lam: float,
        weights: WeightSet,
        inner: Float | None = None,
        facts: KernelFacts = UNKNOWN,
    ) -> None:
        self.kernels, self.lam, self.weights, self.inner, self.facts = kernels, lam, weights, inner, facts
        # S depends on α and H through ααᵀ and Hαᵀ alone: with HQᵀQ = H, α is the solution of HQᵀ times Q.
        self._row_space = row_space(h)
        self.h = h @ self._row_space.T
        # For α in the null space of all kernels every quadratic form is rounding, of this size times m‖α‖².
        diagonals = np.einsum("jkk->jk", kernels)
        self._unit = float(np.finfo(np.float64).eps) * float(np.abs(diagonals).max(initial=0.0))

    def evaluate(self, beta: Float, tol: float, *, careful: bool) -> Generator[Any, Any, Evaluation]:
        """Solve Aα = H by a Cholesky factor of A = ½(N + K(β)/λ)."""
        # No request is made; the statement makes this function a generator, as `Oracle` requires.
        yield from ()
        n, m, _ = self.kernels.shape
        # One matrix-vector product over all kernels: each kernel is read once, and no temporary is made for each.
        system = (beta @ self.kernels.reshape(n, m * m)).reshape(m, m)
        system *= 0.5 / self.lam
        if self.inner is None:
            system[np.diag_indices(m)] += 0.5
        else:
            system += 0.5 * self.inner
        factor = definite_factor(system.T, self.lam)  # column-major, so not copied
        alpha = factor.solve(self.h)
        # (K_jα)ᵀ, (n, c, m): kernels are symmetric, and αᵀ from the left reads their rows as they lie in memory.
        products = np.matmul(alpha.T, self.kernels)
        q = products.reshape(n, -1) @ alpha.T.ravel() / (4.0 * self.lam)
        size = float(np.sum(alpha * alpha)) / (4.0 * self.lam)
        check_forms(q, self.facts, size, m * self._unit * size)
        # S and F use ¼aᵀNa in a subspace, since ‖α‖² = aᵀNa for α = Va.
        residual_sq, rest, image = 0.0, np.inf, alpha if self.inner is None else self.inner @ alpha
        if self.inner is None:
            rest = float(np.sum((self.h - 0.5 * alpha) ** 2))
            residual = self.h.T - 0.5 * alpha.T - np.tensordot(beta, products, 1) / (2.0 * self.lam)
            residual_sq = float(np.sum(residual * residual))
        linear = 0.25 * float(np.sum(alpha * image)) - float(np.sum(self.h * alpha))
        certificate = Certificate.of(beta, q, linear, self.weights, residual_sq, rest)
        return Evaluation(alpha @ self._row_space, certificate, (factor, products))

    def curvature(self, evaluation: Evaluation) -> Generator[Any, Any, Float | Factored]:
        """C = (1/4λ²) Σ_k (K_iα_k)ᵀA⁻¹(K_jα_k) from L⁻¹K_jα, A = LLᵀ; for many kernels its factor."""
        yield from ()
        # With A = LLᵀ, C_ij is the inner product of L⁻¹K_iα and L⁻¹K_jα: half the solves of A⁻¹K_jα, and C comes out
        # symmetric and positive semidefinite whatever rounding does, which the conic solver needs.
        factor, products = evaluation.state
        n, c, m = products.shape
        rows = factor.half_solve(products.reshape(n * c, m).T).T.reshape(n, c * m) / (2.0 * self.lam)
        if n <= DENSE:
            return np.asarray(rows @ rows.T)
        return Factored(compressed(rows))


def solve_restricted(oracle: MemoryOracle, beta: Float, tol: float, max_steps: int = 60) -> Solution:
    """Maximize J in a subspace from β, until F − S ≤ tol · βᵀq; the history is left out."""
    solution = run_here(maximize(oracle, oracle.weights, beta, tol, max_steps=max_steps, of_kernels=True))
    return replace(solution, steps=())


def run_here(iteration: Generator[Task, Any, Result]) -> Result:
    """Run an iteration in this thread: of what it yields only masters are left, which are called here."""
    return run_with(iteration, lambda task: task.function(*task.arguments))
