"""Descent on the dual of MK-FDA over a span of directions in memory: solvers "dual", "interleaved" and "anchored".

With the weights eliminated, MK-FDA minimizes over α

    F(α) = ¼‖α‖² − tr(Hᵀα) + ‖q(α)‖_p*,   q_j = (1/4λ) Σ_k α_kᵀK_jα_k

(JMLR Section 2.3.2 and Appendix B). F is smooth for p > 1; its gradient is ½α − H + (1/2λ)K(β)α = −R(α, β), where β is
the maximizer of βᵀq over the ball, β_j ∝ q_j^(1/(p−1)).

A step computes the products of a few new directions with all kernels, adds them to the span of those it has, minimizes
F over the whole span, α and β together (`mkfda.solve_restricted`), and certifies the pair by the full problem. The
products K_jα = (K_jD)a of α = Da cost nothing once the K_jD are known, so such a step is exact for any number of
directions: on a quadratic F two blocks of directions give block conjugate gradients, and more directions make up for
changes of β and limited memory. F decreases in every step. The solvers differ in the rule for new directions:

dual
    The residual R, the negative gradient of F: one pass for each step. The paper proposes a quasi-Newton method of
    limited memory. The same memory is used here for an exact minimization over the span of all gradients, which takes
    two thirds of the passes of L-BFGS with exact line searches, and half of them for p near 1: F then nearly has kinks,
    which a quadratic model of F does not represent and the small problem on the span does.
interleaved
    The step A_BB⁻¹R_B on a working set B (JMLR Section 2.3.1), all samples of one or a few tile columns, with
    A_BB = ½I + K(β)_BB/2λ. It reads the tiles on B, and the tile columns of B for its effect on all residuals; no
    combined kernel exists except on one working set. The set with the largest ‖R_B‖ is chosen. Such steps alone (block
    Gauss-Seidel, and SMO if a set is one sample) converge slowly for small λ, since all sets share the leading
    eigenvectors of the kernels and correct them repeatedly. As directions of a span they do not, and a factor of A_BB
    at other weights does as well: one is kept for each set.
anchored
    The preconditioned residual M⁻¹R with M = ½(I + K(β̄)/λ) at uniform weights β̄, which is factored once for all targets
    on the same kernels. M⁻¹H is the solution of a target at these weights, and M⁻¹R is the first-order error of α at
    others. A pass multiplies one direction of every target, and a few passes suffice, whatever the number of targets. A
    basis that hundreds of unlike targets share would be as large as the kernels, and a factor for each target and β, as
    in "direct", takes m³/3 operations. The fewer kernels a solution has, the less it resembles uniform weights: p = 1
    takes more passes. The preconditioner affects the number of passes, not what is proven.

Tikhonov form (JMLR Eqs. 25, 26)
--------------------------------
With the penalty (μ/2)‖β‖_p² instead of the constraint, and the substitution α → (C/2)α, C = 1/λ, which turns Eq. 24
into Eq. 19, the saddle problem of Eq. 25 becomes, divided by −1/(2λ),

    max over β ≥ 0 of min over α of  S(α, β) − λμ‖β‖_p².

For fixed α the weights are β = ρ b with b the maximizer of bᵀq over the unit ball, b_j ∝ q_j^(1/(p−1)), and
ρ = ‖q‖_p*/(2λμ), which gives the dual of Eq. 26,

    F_μ(α) = ¼‖α‖² − tr(Hᵀα) + ‖q(α)‖_p*²/(4λμ).

(The paper's αᵀK_jα is q_j/λ in this scaling.) Its solution also solves the problem with the constraint ‖β‖_p ≤ ρ,
which is the one with ‖b‖_p ≤ 1 and λ/ρ, since K(ρb)/λ = K(b)/(λ/ρ). Conversely, the problem with ‖β‖_p ≤ 1 and λ has
the solution of the penalty μ = ‖q‖_p*/(2λ), where q belongs to its α. For a pair with ρ = ‖q(α)‖_p*/(2λμ) exactly,
which is what is returned, the two forms have the same gap F − S + ‖R‖²:

    F_μ(α) − [S(α, β) − λμρ²] = (‖q‖_p* − 2λμρ)²/(4λμ) + ρ‖q‖_p* − βᵀq,

where the square is zero and the rest is F − S of the constraint ‖β‖_p ≤ ρ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import scipy.linalg

from dmkl import progress
from dmkl.arrays import Array, Float, Index
from dmkl.numerics.cholesky import Factor
from dmkl.numerics.fisher import certify
from dmkl.numerics.semidefinite import KernelFacts, check_forms
from dmkl.passes.blas import pinned_blas
from dmkl.passes.elements import fraction_of_tiles, samples_view
from dmkl.passes.execute import check_memory, machine
from dmkl.passes.sums import FactorHandle
from dmkl.solvers import interface
from dmkl.solvers.driver import drive
from dmkl.solvers.fisher.cg import InverseModel
from dmkl.solvers.fisher.mkfda import MemoryOracle, Solution, certificate_step, solve_restricted
from dmkl.solvers.fisher.problem import FisherOptions, FisherProblem, FisherSolver
from dmkl.solvers.fisher.wrapper import needed_bytes, side_by_side
from dmkl.solvers.interface import EachProduct, Outcome, Request, Status, Step
from dmkl.solvers.jobs import Context, Job
from dmkl.solvers.weight_sets import WeightSet

_DEPENDENT = 1e-7
"""Share of a direction that must be new: with less, normalizing it multiplies the rounding of products by over 1e7."""


class Span:
    """At most `capacity` orthonormal directions D, (m, r), with the products K_jD in float64, 8 (n + 1) m bytes each.

    D and the products are changed by the same linear maps, so that K_jD stays the product. The certificate is computed
    from α and K_jα as they are returned, and does not rely on D being orthonormal. If more directions are added, all
    but the current α and the latest ones are dropped.
    """

    def __init__(self, h: Float, n_kernels: int, capacity: int) -> None:
        m = len(h)
        self._h, self._capacity = h, capacity
        # Directions are rows, so that the pages of memory are used one after another as directions are added.
        self._d, self._w = np.empty((capacity, m)), np.empty((n_kernels, capacity, m))
        self._gram = np.empty((n_kernels, 0, 0))

    @property
    def size(self) -> int:
        """Directions, r."""
        return int(self._gram.shape[1])

    def extend(self, directions: Float, products: Array, coefficients: Float) -> bool:
        """Add directions (m, b) with their products (n, m, b); return whether any of them is new.

        `coefficients` are a of the current α, (r, c), which stays in the span whatever is dropped.
        """
        # Directions are dropped before new ones are added, so that memory never exceeds the capacity.
        if self.size + directions.shape[1] > self._capacity:
            self._condense(coefficients, directions.shape[1])
        r = self.size
        d, w = directions.T, products.transpose(0, 2, 1)
        size = np.linalg.norm(d, axis=1)
        d, w = d[size > 0] / size[size > 0, None], w[:, size > 0] / size[size > 0, None]
        for _ in range(2):  # the second projection removes the rounding of the first
            inside = d @ self._d[:r].T
            rest = d - inside @ self._d[:r]
            # Pivoted QR of restᵀ = QR: the rows of R⁻ᵀPᵀrest are orthonormal, without those that depend on others or
            # are almost zero. Only R and the pivots are needed, not Q, since the same map is applied to the products.
            upper, pivots = scipy.linalg.qr(rest.T, mode="r", pivoting=True)
            kept = int(np.count_nonzero(np.abs(np.diag(upper)) > _DEPENDENT))
            change = scipy.linalg.solve_triangular(upper[:kept, :kept], np.eye(len(d))[pivots[:kept]], trans="T")
            d = change @ rest
            w = change @ (w - inside @ self._w[:, :r])
        if not (b := len(d)):
            return False
        self._d[r : r + b], self._w[:, r : r + b] = d, w
        # Only the rows of the new directions are computed: DᵀK_jD of the others is known.
        gram = np.empty((len(w), r + b, r + b))
        gram[:, :r, :r] = self._gram
        for j, of_kernel in enumerate(w):
            gram[j, r:] = of_kernel @ self._d[: r + b].T
        gram[:, :r, r:] = gram[:, r:, :r].transpose(0, 2, 1)
        gram[:, r:, r:] = 0.5 * (gram[:, r:, r:] + gram[:, r:, r:].transpose(0, 2, 1))
        self._gram = gram
        return True

    def oracle(self, lam: float, weights: WeightSet, facts: KernelFacts) -> MemoryOracle:
        """The oracle of the problem restricted to the span."""
        d = self._d[: self.size]
        return MemoryOracle(self._gram, d @ self._h, lam, weights, d @ d.T, facts)

    def combine(self, coefficients: Float) -> tuple[Float, Float]:
        """α = D a, (m, c), and K_jα, (n, m, c)."""
        r = self.size
        alpha = self._d[:r].T @ coefficients
        products = np.empty((len(self._w), *alpha.shape))
        for j, of_kernel in enumerate(self._w):
            np.matmul(of_kernel[:r].T, coefficients, out=products[j])
        return alpha, products

    def _condense(self, coefficients: Float, n_more: int) -> None:
        """Keep α and half of the latest directions, and leave room for `n_more`."""
        r, c = coefficients.shape
        # Half of the room: the other half is filled by new directions before the next call.
        latest = max(0, (self._capacity - n_more - c) // 2)
        chosen = np.concatenate([coefficients, np.eye(r)[:, r - latest :]], axis=1)
        basis, upper, _ = scipy.linalg.qr(chosen / np.linalg.norm(chosen, axis=0), mode="economic", pivoting=True)
        kept = basis[:, np.abs(np.diag(upper)) > _DEPENDENT].T
        k = len(kept)
        self._d[:k] = kept @ self._d[:r]
        for of_kernel in self._w:
            of_kernel[:k] = kept @ of_kernel[:r]
        self._gram = kept @ self._gram @ kept.T


@dataclass(frozen=True)
class Iterate:
    """The present point of a descent: β, R (m, c), and K_jα (n, m, c), which is None at α = 0."""

    beta: Float
    residual: Float
    products: Float | None


DirectionRule = Callable[[Iterate], Generator[Request, Any, tuple[Float, Float, float]]]
"""Computes new directions (m, b) and their products (n, m, b); also returns the passes that this takes."""


def descend(job: Job, rule: DirectionRule, options: FisherOptions, capacity: int) -> Generator[Request, Any, Outcome]:
    """Solve one problem by a rule for new directions; yields requests, returns an `Outcome`.

    Of the options it takes `tol`, `mu`, and `max_iter`: no step begins after this number of passes. At most `capacity`
    directions are kept, with room for the current α, the step before, and a new one.
    """
    problem, facts, tol = job.problem, job.facts, options.tol
    beta = problem.weights.start(job.n_kernels) if problem.start is None else problem.start
    rho = 1.0
    span = Span(problem.h, job.n_kernels, capacity)
    coefficients = np.zeros((0, problem.h.shape[1]))
    at = Iterate(beta, problem.h, None)
    best: Solution | None = None
    steps: list[Step] = []
    read, status = 0.0, Status.ITERATIONS
    while read < options.max_iter:
        directions, products, more = yield from rule(at)
        read += more
        if not span.extend(directions, products, coefficients):
            # Only rounding is left of the residual.
            status = Status.ITERATIONS if read >= options.max_iter else Status.STALLED
            break
        with pinned_blas(1):  # the problem on the span is too small for threads, which would wait for one another
            # A tenth of the tolerance: the rest is for the residual outside the span.
            solution, rho = _solve_on_span(span, problem, beta, rho, options.mu, 0.1 * tol, facts)
        coefficients, beta = solution.alpha, solution.beta
        alpha, products = span.combine(coefficients)
        # The problem with ‖β‖_p ≤ ρ and λ is the one with ‖β‖_p ≤ 1 and λ/ρ.
        certificate, residual = certify(alpha, products, beta, problem.h, problem.lam / rho, problem.weights)
        check_forms(certificate.gradient, facts, float(np.sum(alpha * alpha)) / (4.0 * problem.lam / rho))
        at = Iterate(rho * beta, residual, products)
        steps.append(certificate_step(certificate, at.beta, products=len(steps) + 1, passes=read))
        # F decreases in every step, the gap need not: S is evaluated at other weights each time.
        if best is None or certificate.gap < best.certificate.gap:
            best = Solution(alpha, at.beta, certificate, status)
        progress.current().note(f"{problem.name}{progress.error_text(certificate.gap)}")
        if certificate.gap <= tol:
            status = Status.CERTIFIED
            break
    assert best is not None
    return replace(best, status=status, steps=steps).outcome()


_ROUNDS = 40


def _solve_on_span(
    span: Span, problem: FisherProblem, beta: Float, rho: float, mu: float | None, tol: float, facts: KernelFacts
) -> tuple[Solution, float]:
    """Solve the problem on the span; return weights of norm one, and the bound ρ.

    In Tikhonov form ρ is the fixed point of ρ ↦ ‖q‖_p*/(2λμ), where q belongs to the bound ρ. ‖q‖ decreases with ρ, and
    slower than ρ⁻² (for one kernel, αᵀKα = Σ_i κ_i h_i²/(½ + ρκ_i/2λ)²), so that half a step in log ρ at least halves
    the error.
    """
    if mu is None:
        return solve_restricted(span.oracle(problem.lam, problem.weights, facts), beta, tol), 1.0
    for _ in range(_ROUNDS):
        solution = solve_restricted(span.oracle(problem.lam / rho, problem.weights, facts), beta, tol)
        beta, c = solution.beta, solution.certificate
        scaled = c.upper - c.objective + c.kernel_part  # ρ‖q‖_p*
        # ρ‖q‖_p* over its value at the fixed point, 2λμρ².
        ratio = scaled / (2.0 * problem.lam * mu * rho**2)
        if abs(np.log(ratio)) <= 0.1 * tol:
            break
        rho *= float(np.sqrt(ratio))
    return solution, rho * ratio


_COLUMNS = 400  # Most directions: more make the problem on the span slower, and the convergence hardly faster


def descend_jobs(
    jobs: Sequence[Job],
    options: FisherOptions,
    context: Context,
    name: str,
    extra_width: int,
    rule_of: Callable[[Job, int, int], DirectionRule],
) -> list[Outcome]:
    """Solve problems by descent, as many side by side as half of the memory budget has room for.

    That half holds the directions and their products; the other half is for the rules, which `rule_of` makes from a
    job, the number of problems that run at once and the memory in bytes. A step has at most one direction for each
    column of H and `extra_width` more.
    """
    widest = max((job.problem.h for job in jobs), key=lambda h: h.size)
    (m, c), budget = widest.shape, machine().total_bytes
    # A direction, and its product with each kernel.
    column_bytes = 8 * (max(job.n_kernels for job in jobs) + 1) * m
    # The current α, the step before, and a new one.
    least_bytes = column_bytes * (c + 2 * (c + extra_width))
    check_memory(
        f"solver={name!r}",
        {"the least number of directions and their products": least_bytes},
        budget // 2,
        "Set dmkl.memory higher, or take solver='subspace', which keeps them on disk, or 'cg'",
    )
    at_once = min(len(jobs), budget // 2 // least_bytes)
    capacity = min(_COLUMNS + c, budget // 2 // at_once // column_bytes)

    def solver_of(job: Job) -> Generator[Request, Any, Outcome]:
        return descend(job, rule_of(job, at_once, budget), options, capacity)

    return context.drive(jobs, solver_of, at_once=at_once)


# --- residuals: dual -----------------------------------------------------------------------------------------------


def residual_directions(
    at: Iterate, factor: FactorHandle | None = None
) -> Generator[Request, Any, tuple[Float, Float, float]]:
    """The residual R, which is minus the gradient of F, or M⁻¹R by a factor of M: one pass."""
    solved = None if factor is None else (yield interface.OfFactor(factor, Factor.solve, (at.residual,)))
    directions = at.residual if solved is None else solved
    products = yield EachProduct(directions)
    return directions, products, 1.0


DUAL = FisherSolver(
    "dual",
    "the weights eliminated, one gradient a pass, out of core; p above 1",
    partial(descend_jobs, name="dual", extra_width=0, rule_of=lambda *_: residual_directions),
)


# --- working sets: interleaved -------------------------------------------------------------------------------------


COMPANIONS = 2
"""Directions in addition to the step: its changes with the weights, which save a sixth of the passes."""


_MOST_SETS = 16  # Most sets: with more the number of steps is the same, and more is read


class WorkingSetRule:
    """The step on the most violating of disjoint working sets that together contain all samples.

    It reads the tile columns of the set, and the tiles on the set when it is first chosen. A quarter of the memory is
    for factors; the oldest is dropped for another.
    """

    def __init__(self, job: Job, at_once: int, budget: int) -> None:
        self._sets: list[tuple[Index, float, float]] = []
        """The samples of each set, and the fractions of a pass that their columns and their block take."""
        lens, view = job.training.square, job.training.square.view
        tile = view.final_positions()[1] // view.source.tiling.tile
        used = np.unique(tile)
        # Sets follow tile columns, since a part of a tile costs as much to read as all of it.
        n_sets = min(len(used), max(_MOST_SETS, math.ceil(len(tile) / int(np.sqrt(budget / 256)))))
        for tiles in np.array_split(used, n_sets):
            index = np.flatnonzero(np.isin(tile, tiles))
            columns, block = lens.columns(index).view, samples_view(lens, index)
            self._sets.append((index, fraction_of_tiles(columns, view), fraction_of_tiles(block, view)))
        factor_bytes = 8 * max(len(index) for index, *_ in self._sets) ** 2
        self._lam, self._most = job.problem.lam, max(1, budget // 4 // at_once // factor_bytes)
        self._factors: dict[int, Factor] = {}

    def __call__(self, at: Iterate) -> Generator[Request, Any, tuple[Float, Float, float]]:
        """The step on the chosen set, and its products."""
        # R_B is minus the gradient on the set, so its norm measures how much a step on the set can gain.
        number = int(np.argmax([np.sum(at.residual[index] ** 2) for index, *_ in self._sets]))
        chosen, read, block_passes = self._sets[number]
        if number not in self._factors:
            if len(self._factors) == self._most:
                del self._factors[next(iter(self._factors))]
            self._factors[number] = Factor((yield interface.CombinedEntries(at.beta, chosen)), self._lam)
            read += block_passes * float(np.mean(at.beta != 0))
        right = at.residual[chosen]
        if at.products is not None:
            # The step is A_BB⁻¹R_B, and the derivative of R in β_j is −K_jα/2λ.
            change = side_by_side(at.products[:, chosen])
            right = np.concatenate([right, InverseModel().outside(change, COMPANIONS)], axis=1)
        step = self._factors[number].solve(right)
        products = yield EachProduct(step, chosen)
        directions = np.zeros((len(at.residual), step.shape[1]))
        directions[chosen] = step
        return directions, products, read


INTERLEAVED = FisherSolver(
    "interleaved",
    "subsets of α and the weights updated in turn, a few tile columns at a time, out of core",
    partial(descend_jobs, name="interleaved", extra_width=COMPANIONS, rule_of=WorkingSetRule),
)


# --- preconditioned residuals: anchored ----------------------------------------------------------------------------


def _factor_key(job: Job) -> tuple[int, bytes, float]:
    """The factor of a problem: a training set, kernels, and a ridge that is scaled by the mean weight, n^(−1/p).

    Ridges are rounded to powers of √10, so that the points of a grid share a few factors; M is as good.
    """
    # ½(I + sK/λ) with equal weights s has the factor of ½(I + K/(λ/s)): only the ratio λ/s needs a factor of its own.
    scale = float(job.problem.weights.start(job.n_kernels).mean())
    ridge = 10.0 ** (round(2.0 * math.log10(job.problem.lam / scale)) / 2.0)
    return *job.kernels_key, ridge


def _check_anchored(jobs: Sequence[Job]) -> None:
    m = max(job.training.n_train for job in jobs)
    kernels_bytes = needed_bytes(jobs) + 8 * m * m * (len({_factor_key(job) for job in jobs}) - 1)
    # All factors take half of the memory budget; the other half is for the directions.
    parts, way_out = {"combined kernels": kernels_bytes}, "Take solver='subspace', or set dmkl.memory higher"
    check_memory("solver='anchored'", parts, machine().total_bytes // 2, way_out, "at once")


def _solve_anchored(jobs: Sequence[Job], options: FisherOptions, context: Context) -> list[Outcome]:
    examples = {_factor_key(job): job for job in jobs}
    asking = [
        (job.training.square, interface.ask(interface.CombinedFactor(job.spread(np.ones(job.n_kernels)), ridge)))
        for (_, _, ridge), job in examples.items()
    ]
    factors, _ = drive(asking, tally=context.tally)
    factor_of = dict(zip(examples, factors, strict=True))

    def rule_of(job: Job, *_: int) -> DirectionRule:
        return partial(residual_directions, factor=factor_of[_factor_key(job)])

    return descend_jobs(jobs, options, context, "anchored", 0, rule_of)


ANCHORED = FisherSolver(
    "anchored",
    "one factor for many targets, and a few directions of each; in memory",
    _solve_anchored,
    check=_check_anchored,
    leaves_out=True,
)
