"""All points (p, λ) of many targets on kernels in memory: what a task of the solver "stacked" computes.

With K(β) factored for each weighting that is tried, α and the slopes q are exact, and what is left to prove is F − S.
Targets go through the grid together: their K(β), and their q_j = tr(K_j Σ_k α_kα_kᵀ)/4λ, are products of one matrix
with the kernels as its rows, which costs a tenth of the products K_jα. The curvature, which needs these, is that of one
target for all to begin with, in units of their slopes (targets that are permuted labels are much alike), and becomes
their own by the slopes at the weightings that are tried, which cost nothing more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dmkl.arrays import Float
from dmkl.errors import IndefiniteKernelError
from dmkl.numerics import packed
from dmkl.numerics.fisher import dual_norm, onto_sphere, uniform_weights
from dmkl.numerics.slope_model import weights_by_slopes
from dmkl.solvers.masters import newton_master
from dmkl.solvers.semidefinite import KernelFacts, check_forms
from dmkl.solvers.weight_sets.balls import Ball

__all__ = ["Solved", "solve_grid"]

_NO_FALL = 1e-8
"""Share of the fall of the slopes that the curvature foretells, below which what is seen is rounding."""
_SHORTER = 0.3
"""What is left of a step that did not raise S."""
_SMALL = 0.05
"""Share of S that the kernels make below which slopes change so little with the weights that a model of them holds from
one norm to the next."""
_LEAST = 1e-12
"""Slopes are no smaller than this share of the largest, for their logarithms."""


@dataclass(eq=False)
class Solved:
    """The best pair of a target at a point, and what is proven of it.

    Parameters
    ----------
    beta, slopes
        β and q, (n,).
    objective, upper
        S(α, β) and F(α).
    residual_sq
        ‖R‖², of the factor's rounding; ∞ where it was not computed, because more is left in any case.
    share
        βᵀq/|S|, the part of S that the kernels make.
    alpha
        (m, c); None once it is solved, where dual variables are not asked for.
    scores
        Of the held-out rows, (rows, c), once it is solved.
    """

    beta: Float
    slopes: Float
    objective: float
    upper: float
    residual_sq: float
    share: float
    alpha: Float | None
    scores: Float | None = None

    @property
    def gap(self) -> float:
        """(F − S + ‖R‖²)/|S|."""
        return (max(self.upper - self.objective, 0.0) + self.residual_sq) / (abs(self.objective) or 1.0)

    @property
    def left(self) -> float:
        """What is left relative to the part of S that the kernels make."""
        return self.gap / self.share


class _Stack:
    """The kernels of a training set in memory, (n, rows, m): training rows first, then those held out.

    Sums and slopes take the triangles alone, in LAPACK's rectangular full packed form, which halves what is read.
    """

    def __init__(self, kernels: Float, facts: KernelFacts, together: int) -> None:
        self.n, rows, self.m = kernels.shape
        self.facts = facts
        self.square = kernels[:, : self.m]
        self.packed: Float = np.stack([packed.pack(kernel.T) for kernel in self.square])
        self.held_out: Float = np.ascontiguousarray(kernels[:, self.m :]).reshape(self.n, (rows - self.m) * self.m)
        self._diagonal = packed.diagonal(self.m)
        # Taken once: memory that is new for every step costs more than what is computed in it.
        self._sums, self._work = np.empty((2, together, self.packed.shape[1]))
        self._held_out_sums = np.empty((together, self.held_out.shape[1]))
        self._whole = np.empty((self.m, self.m), order="F")

    def evaluate(self, betas: Float, targets: Sequence[Float], lam: float, p: float, enough: float) -> list[Solved]:
        """α, q and what they prove, of each target at its weights; ‖R‖² where no more than `enough` is left."""
        systems, work = self._systems(betas, lam), self._work[: len(betas)]
        alphas = []
        for system, place, h in zip(systems, work, targets, strict=True):
            self._factorize(system, place, lam)
            alpha = packed.solve(self.m, place, h)
            # Each product of two rows of α stands once there and twice in the trace, but for those on the diagonal.
            packed.add_outer(self.m, 2.0, alpha, 0.0, place)
            alphas.append(alpha)
        work[:, self._diagonal] *= 0.5
        slopes = work @ self.packed.T / (4.0 * lam)
        found = []
        for beta, h, q, alpha, system in zip(betas, targets, slopes, alphas, systems, strict=True):
            size = float(np.sum(alpha * alpha))
            check_forms(q, self.facts, size / (4.0 * lam))
            linear, part = 0.25 * size - float(np.sum(h * alpha)), float(beta @ q)
            objective = linear + part
            share = min(1.0, max(part / abs(objective), float(np.finfo(np.float64).tiny)))
            one = Solved(beta.copy(), q, objective, linear + dual_norm(q, p), 0.0, share, alpha)
            one.residual_sq = self._residual_sq(system, h, alpha) if one.left <= enough else np.inf
            found.append(one)
        return found

    def _systems(self, betas: Float, lam: float) -> Float:
        """A = ½(I + K(β)/λ) of each, packed, in memory that the next call takes again."""
        systems = np.matmul(betas * (0.5 / lam), self.packed, out=self._sums[: len(betas)])
        systems[:, self._diagonal] += 0.5
        return systems

    def _factorize(self, system: Float, place: Float, lam: float) -> None:
        """Put the Cholesky factor of A, packed, in another place."""
        place[:] = system
        if not packed.factorize(self.m, place):
            msg = (
                f"I + K(β)/λ is not positive definite at λ = {lam:g}: a kernel has an eigenvalue below −λ over these "
                "samples. Run `dmkl check`; mend such kernels with repair='clip', 'flip' or 'shift', leave them out "
                "with select(), or take a larger λ"
            )
            raise IndefiniteKernelError(msg)

    def _residual_sq(self, system: Float, h: Float, alpha: Float) -> float:
        residual = h - packed.product(self.m, system, alpha, self._whole)
        return float(np.sum(residual * residual))

    def curvature(self, beta: Float, h: Float, lam: float) -> Float:
        """C = (1/4λ²) Σ_k (K_iα_k)ᵀA⁻¹(K_jα_k), (n, n), of a target at these weights."""
        (system,), factor = self._systems(beta[None], lam), self._work[0]
        self._factorize(system, factor, lam)
        alpha = packed.solve(self.m, factor, h)
        # The rows of a kernel are the columns of its product.
        products = np.matmul(np.ascontiguousarray(alpha.T), self.square)
        packed.half_solve(self.m, factor, products.reshape(-1, self.m).T)
        rows = products.reshape(self.n, -1)
        return np.asarray(rows @ rows.T / (4.0 * lam**2))

    def score(self, found: Sequence[Solved]) -> None:
        """Σ_j β_j K_j α on the held-out rows of each."""
        betas = np.stack([one.beta for one in found])
        sums = np.matmul(betas, self.held_out, out=self._held_out_sums[: len(found)])
        for one, total in zip(found, sums.reshape(len(found), -1, self.m), strict=True):
            one.scores = total @ one.alpha


def solve_grid(
    kernels: Float,
    targets: Sequence[Float],
    points: Sequence[tuple[float, float]],
    tol: float,
    max_steps: int,
    facts: KernelFacts,
    *,
    duals: bool = True,
) -> list[dict[tuple[float, float], Solved]]:
    """Solve all points (p, λ) of some targets.

    Parameters
    ----------
    kernels
        (n, rows, m), the training rows first.
    targets
        H of each, (m, c).
    points
        Pairs (p, λ).
    tol
        What `Solved.left` is to be.
    max_steps
        Most weightings tried for a point.
    facts
        What is known of the kernels.
    duals
        Whether dual variables are kept.

    Raises
    ------
    IndefiniteKernelError
        If I + K(β)/λ is not positive definite, or a form αᵀK_jα comes out negative.
    """
    stack = _Stack(kernels, facts, len(targets))
    found: list[dict[tuple[float, float], Solved]] = [{} for _ in targets]
    before: float | None = None
    # From small λ on, below which weights hardly change, and from equal weights to sparse ones.
    for lam in sorted({lam for _, lam in points}):
        larger: float | None = None
        curvature: Float | None = None
        for p in sorted({p for p, at in points if at == lam}, reverse=True):
            limits = _Limits(p, lam, tol, max_steps)
            if larger is not None and max(mine[larger, lam].share for mine in found) < _SMALL:
                last = [mine[larger, lam] for mine in found]
                if curvature is None:
                    curvature = _alike(last, stack.curvature(last[0].beta, targets[0], lam), last[0])
                starts = _aims(last, curvature, p)
                solved, curvature = _solve_point(stack, targets, starts, limits, curvature)
            else:
                starts = np.stack([_start(mine, p, lam, larger, before, stack.n) for mine in found])
                solved, curvature = _solve_point(stack, targets, starts, limits)
            stack.score(solved)
            for mine, one in zip(found, solved, strict=True):
                one.alpha = one.alpha if duals else None
                mine[p, lam] = one
            larger = p
        before = lam
    return found


def _start(
    found: dict[tuple[float, float], Solved], p: float, lam: float, larger: float | None, before: float | None, n: int
) -> Float:
    """Weights to begin with, by the last norm that was solved at this λ, if any, and what the λ before has found.

    At an optimum β_j^(p−1) ∝ q_j, and slopes at two norms change alike from one λ to the next.
    """
    at_norm = None if larger is None else found[larger, lam]
    at_ridge = None if before is None else found.get((p, before))
    if at_ridge is None:
        return uniform_weights(n, p) if at_norm is None else onto_sphere(at_norm.beta, p)
    both = None if larger is None or before is None else found.get((larger, before))
    if at_norm is None or both is None or p == 1 or np.isinf(p):
        return onto_sphere(at_ridge.beta, p)
    change = np.log(_positive(at_norm.slopes) / _positive(both.slopes)) / (p - 1.0)
    logs = _logs(at_ridge.beta) + change
    return onto_sphere(np.exp(logs - logs.max()), p)


class _Limits(NamedTuple):
    """A point, what `Solved.left` is to be there, and how many weightings may be tried."""

    p: float
    lam: float
    tol: float
    max_steps: int


def _solve_point(
    stack: _Stack,
    targets: Sequence[Float],
    starts: Float,
    limits: _Limits,
    curvature: Float | None = None,
) -> tuple[list[Solved], Float | None]:
    """One point of all targets, each by quasi-Newton steps with shortening, from its start.

    And the curvature of each, which is made, where it is needed and not given, of that of the first that needs it.
    """
    p, lam, tol, max_steps = limits
    best = stack.evaluate(starts, targets, lam, p, tol)
    aims, shares = starts.copy(), np.ones(len(targets))
    rose, step = list(range(len(targets))), 1
    while left := [t for t, one in enumerate(best) if one.left > tol]:
        if step >= max_steps or stack.n == 1 or np.isinf(p):
            break
        if curvature is None:
            one = best[left[0]]
            curvature = _alike(best, stack.curvature(one.beta, targets[left[0]], lam), one)
        if moved := [t for t in rose if t in left]:
            aims[moved] = _aims([best[t] for t in moved], curvature[moved], p)
        tried = np.stack([_between(best[t].beta, aims[t], shares[t], p) for t in left])
        rose = []
        for t, one in zip(left, stack.evaluate(tried, [targets[t] for t in left], lam, p, tol), strict=True):
            curvature[t] = _updated(curvature[t], one.beta - best[t].beta, best[t].slopes - one.slopes)
            if one.objective >= best[t].objective - 1e-13 * abs(one.objective):
                best[t], shares[t] = one, 1.0
                rose.append(t)
            else:
                shares[t] *= _SHORTER
        step += 1
    for t in left:  # open: the gap is told with all that it has
        (best[t],) = stack.evaluate(best[t].beta[None], [targets[t]], lam, p, np.inf)
    return best, curvature


def _alike(found: Sequence[Solved], curvature: Float, of: Solved) -> Float:
    """The curvature of one target for each, (t, n, n): C_ij grows with what the kernels i and j are to a target."""
    sizes = np.sqrt(np.stack([_positive(one.slopes) for one in found]) / _positive(of.slopes))
    return curvature * sizes[:, :, None] * sizes[:, None, :]


def _updated(curvature: Float, step: Float, fall: Float) -> Float:
    """The update of Broyden, Fletcher, Goldfarb and Shanno: along the step slopes fall as they did.

    J is concave, so that a fall that is not positive along the step is rounding, and tells nothing.
    """
    along = curvature @ step
    expected, seen = float(step @ along), float(step @ fall)
    if seen <= _NO_FALL * expected or expected <= 0:
        return curvature
    return curvature - np.outer(along, along) / expected + np.outer(fall, fall) / seen


def _logs(beta: Float) -> Float:
    return np.asarray(np.log(np.maximum(beta, np.finfo(np.float64).tiny)))


def _positive(slopes: Float) -> Float:
    """Slopes that have a logarithm."""
    return np.maximum(slopes, _LEAST * float(slopes.max()))


def _aims(found: Sequence[Solved], curvature: Float, p: float) -> Float:
    """Where the model of each has its optimum."""
    if p == 1:
        return np.stack(
            [newton_master(one.slopes, c, one.beta, Ball(p)) for one, c in zip(found, curvature, strict=True)]
        )
    slopes = np.stack([_positive(one.slopes) for one in found])
    return weights_by_slopes(slopes, curvature, np.stack([one.beta for one in found]), p)


def _between(beta: Float, aim: Float, share: float, p: float) -> Float:
    """A share of the way: of weights for p = 1, where they may be zero, and of their logarithms otherwise."""
    if p == 1:
        return onto_sphere(beta + share * (aim - beta), p)
    logs = _logs(np.stack([beta, aim]))
    return onto_sphere(np.exp(logs[0] + share * (logs[1] - logs[0])), p)
