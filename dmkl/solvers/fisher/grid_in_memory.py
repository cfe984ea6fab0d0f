"""All points (p, λ) of some targets on kernels in memory: what a task of the solver "stacked" computes.

A few targets go through the grid with a factor for each weighting that is tried (`kernels_in_memory`). Where there are
many they go together, from p = ∞ to p = 1 at each λ: one of them, the pilot, by factors of its own, and the others by
what it tells of them and by factors that they share (`near_centers`). Those that turn out to be too far from all others
get factors of their own too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from dmkl.arrays import Float
from dmkl.numerics.fisher import onto_sphere, uniform_weights
from dmkl.solvers.fisher.kernels_in_memory import KernelStack, OwnFactors, Solved
from dmkl.solvers.fisher.near_centers import NearCenters
from dmkl.solvers.fisher.weightings import (
    Limits,
    Place,
    aims,
    alike,
    expected,
    foretold,
    halfway,
    logs,
    positive,
    solve_point,
    start,
)
from dmkl.solvers.fisher.whitened import Whitened
from dmkl.solvers.semidefinite import KernelFacts

__all__ = ["TOGETHER", "solve_grid"]

_SMALL = 0.05
"""Share of S that the kernels make below which slopes change so little with the weights that a model of them holds from
one norm to the next."""
TOGETHER = 16
"""Targets whose sums of kernels are made together where each has factors of its own."""
_MANY = 8
"""From so many targets on shared factors save more than the coordinates for them cost."""
_NEAR_STEPS = 8
"""Most weightings tried by shared factors."""
_DEPENDENT = 1e-13
"""Singular values of targets below this share of the largest are zero."""
_SENSIBLE = 0.1
"""Where more is left, weights are no better to begin with than those of the last norm."""
_FORETOLD = 1.2
"""Norms p > 1 up to which a model of the slopes at the last norm tells as much of the next as the way there does."""
_ROUNDING = 0.3
"""Share of the tolerance that single precision may take from slopes."""

_TINY = float(np.finfo(np.float64).tiny)

_Point = tuple[float, float]


def solve_grid(
    kernels: Float,
    targets: Sequence[Float],
    points: Sequence[_Point],
    tol: float,
    max_steps: int,
    facts: KernelFacts,
    *,
    duals: bool = True,
) -> list[dict[_Point, Solved]]:
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
        Most weightings tried for a point, by shared factors and by those of its own alike.
    facts
        What is known of the kernels.
    duals
        Whether dual variables are kept.

    Raises
    ------
    IndefiniteKernelError
        If I + K(β)/λ is not positive definite, or a form αᵀK_jα comes out negative.
    """
    turned, back, scales = _independent(targets)
    stack, limits = KernelStack(kernels, facts, min(TOGETHER, len(targets))), Limits(tol, max_steps)
    few, rows = _Few(stack, turned, limits), np.ascontiguousarray(np.stack([h.T for h in turned]))
    found: list[dict[_Point, Solved]] = [{} for _ in targets]
    for lam in sorted({lam for _, lam in points}):
        norms = sorted({p for p, at in points if at == lam}, reverse=True)
        if len(targets) < _MANY:
            solved = few.through(norms, lam)
        else:
            solved = _Many(few, rows, lam, norms[0]).through(norms, duals=duals)
        for p, every in solved:
            for mine, one, Q, scale in zip(found, every, back, scales, strict=True):
                alpha = np.asarray(one.alpha) @ Q if duals else None
                scores = (np.asarray(one.scores) @ Q).astype(np.float32)
                mine[p, lam] = replace(one.scaled(scale**2), alpha=alpha, scores=scores)
    return found


def _independent(targets: Sequence[Float]) -> tuple[list[Float], list[Float], list[float]]:
    """HQᵀ/s of each target, (m, r), sQ, (r, c), and s = ‖H‖, with QQᵀ = I and HQᵀQ = H.

    S depends on α and H through ααᵀ and Hαᵀ alone, so that the solution of H is that of HQᵀ/s times sQ, and S grows
    with s². Targets of c classes have rank c − 1, and squares of tiny units would be nothing in single precision.
    """
    parts = [np.linalg.svd(h, full_matrices=False) for h in targets]
    rank = max(1, *(int(np.count_nonzero(v > _DEPENDENT * v.max(initial=0.0))) for _, v, _ in parts))
    scales = [float(np.linalg.norm(v)) or 1.0 for _, v, _ in parts]
    turned = [np.asfortranarray(h @ Q[:rank].T / s) for h, (_, _, Q), s in zip(targets, parts, scales, strict=True)]
    return turned, [s * Q[:rank] for (_, _, Q), s in zip(parts, scales, strict=True)], scales


class _Few:
    """Targets by factors of their own, from small λ on, below which weights hardly change, to sparse weights.

    Parameters
    ----------
    stack
        The kernels.
    targets
        H of each, (m, c).
    limits
        Where a point is done.
    """

    def __init__(self, stack: KernelStack, targets: Sequence[Float], limits: Limits) -> None:
        self.stack, self.targets, self.limits = stack, targets, limits
        self._found: list[dict[_Point, Place]] = [{} for _ in targets]
        self._before: float | None = None

    def through(self, norms: Sequence[float], lam: float) -> Iterator[tuple[float, list[Solved]]]:
        """All targets at norms that fall, with their scores and dual variables."""
        larger, curvature = None, None
        every = list(range(len(self.targets)))
        for p in norms:
            at = self.at(p, lam)
            last: list[Place] = [] if larger is None else [found[larger, lam] for found in self._found]
            if last and max(one.share for one in last) < _SMALL:
                if curvature is None:
                    curvature = alike(last, at.curvature(last[0].beta, 0), last[0])
                begin = aims(last, curvature, p)
            else:
                curvature = None
                begin = np.stack([self._start(found, p, lam, larger) for found in self._found])
            solved, curvature = solve_point(at, every, begin, self.limits, curvature)
            for mine, one in zip(self._found, solved, strict=True):
                mine[p, lam] = Place(one.beta, one.slopes, one.share)
                self.score(one)
            yield p, solved
            larger = p
        self._before = lam

    def at(self, p: float, lam: float) -> OwnFactors:
        """The targets at a point."""
        return OwnFactors(self.stack, self.targets, p, lam, self.limits.tol)

    def score(self, one: Solved) -> None:
        """Σ_j β_j K_j α on the held-out rows."""
        one.scores = np.tensordot(one.beta, self.stack.kernels[:, self.stack.m :], 1) @ np.asarray(one.alpha)

    def _start(self, found: dict[_Point, Place], p: float, lam: float, larger: float | None) -> Float:
        """Weights to begin with, by the last norm that was solved at this λ, if any, and what the λ before has found.

        At an optimum β_j^(p−1) ∝ q_j, and slopes at two norms change alike from one λ to the next.
        """
        at_norm = None if larger is None else found[larger, lam]
        at_ridge = None if self._before is None else found.get((p, self._before))
        if at_ridge is None:
            return uniform_weights(self.stack.n, p) if at_norm is None else onto_sphere(at_norm.beta, p)
        both = None if larger is None or self._before is None else found.get((larger, self._before))
        if at_norm is None or both is None or p == 1 or np.isinf(p):
            return onto_sphere(at_ridge.beta, p)
        change = np.log(positive(at_norm.slopes) / positive(both.slopes)) / (p - 1.0)
        there = logs(at_ridge.beta) + change
        return onto_sphere(np.exp(there - there.max()), p)


class _Many:
    """Targets together at a λ, on their way from large norms to small ones.

    Parameters
    ----------
    few
        The same targets by factors of their own.
    rows
        H of each, (t, c, m).
    lam
        λ.
    largest
        The norm to begin with; its equal weights are those of the coordinates.
    """

    def __init__(self, few: _Few, rows: Float, lam: float, largest: float) -> None:
        self._few, self._lam, self._every = few, lam, list(range(len(rows)))
        equal = uniform_weights(few.stack.n, largest)
        self._white = Whitened(few.stack, rows, lam, equal, np.float32)
        self._last = self._at_equal(largest)
        slopes = np.log(np.stack([positive(one.slopes) for one in self._last]))
        self._pilot = int(np.argmin(np.sum((slopes - slopes.mean(axis=0)) ** 2, axis=1)))
        if self._is_rough(few.at(largest, lam).evaluate(equal[None], [self._pilot])[0], self._last):
            self._white = self._white.doubled()
            self._last = self._at_equal(largest)
        self._before = self._last
        self._curvature: Float | None = None
        """C of the pilot at the last norm."""

    def _at_equal(self, p: float) -> list[Solved]:
        """All targets at the weights of the coordinates."""
        betas = np.repeat(self._white.beta[None], len(self._every), axis=0)
        return NearCenters(self._white, p, betas, self._few.limits.tol).evaluate(betas, self._every)

    def _is_rough(self, pilot: Solved, solved: Sequence[Solved]) -> bool:
        """Whether single precision shows in the slopes of the pilot, which are known in double."""
        error = np.abs(solved[self._pilot].slopes - pilot.slopes).max() / pilot.slopes.max(initial=_TINY)
        return bool(error > _ROUNDING * self._few.limits.tol) and self._white.dtype == np.float32

    def through(self, norms: Sequence[float], *, duals: bool) -> Iterator[tuple[float, list[Solved]]]:
        """All targets at norms that fall, with their scores and, if asked for, dual variables."""
        for p in norms:
            # Of p = ∞, and of a single kernel, weights are equal.
            solved = self._last if np.isinf(p) or self._few.stack.n == 1 else self._solved(p)
            betas = np.stack([one.beta for one in solved])
            for one, scores in zip(solved, self._white.scores(betas, self._every), strict=True):
                one.scores = scores.T if one.scores is None else one.scores
            if duals:
                for one, alpha in zip(solved, self._white.alphas(self._every), strict=True):
                    one.alpha = alpha.T if one.alpha is None else one.alpha
            yield p, solved
            self._before, self._last = self._last, solved

    def _solved(self, p: float) -> list[Solved]:
        """All targets at a norm: together, in double precision where single is not enough, and those that are far."""
        try:
            found = self._near(p)
        except np.linalg.LinAlgError:
            if self._white.dtype == np.float64:
                raise
            self._white = self._white.doubled()
            found = self._near(p)
        few, limits = self._few, self._few.limits
        far = [t for t, one in enumerate(found) if one.left > limits.tol]
        if far:
            best = [found[t] if found[t].left < _SENSIBLE else self._last[t] for t in far]
            begin = np.stack([onto_sphere(one.beta, p) for one in best])
            for t, one in zip(far, solve_point(few.at(p, self._lam), far, begin, limits)[0], strict=True):
                few.score(one)
                found[t] = one
        return found

    def _near(self, p: float) -> list[Solved]:
        """All targets at a norm, as far as shared factors tell.

        Raises
        ------
        LinAlgError
            If the precision is not enough.
        """
        limits = self._few.limits
        pilot, begin, curvature = self._expected(p)
        near = NearCenters(self._white, p, begin, limits.tol)
        near.keep(self._pilot)
        steps = limits._replace(max_steps=min(_NEAR_STEPS, limits.max_steps))
        solved, _ = solve_point(near, self._every, begin, steps, curvature)
        if self._is_rough(pilot, solved):
            msg = "single precision errs in slopes by more than the tolerance allows"
            raise np.linalg.LinAlgError(msg)
        near.leave(np.stack([one.beta for one in solved]))
        return solved

    def _expected(self, p: float) -> tuple[Solved, Float, Float]:
        """The pilot, solved, the weights at which all are expected, and the curvature of each there."""
        at, pilot, last = self._few.at(p, self._lam), self._pilot, self._last
        known = self._white.curvature(last[pilot].beta, pilot) if self._curvature is None else self._curvature
        begin = start([last[pilot]], known[None], p)
        (now,), _ = solve_point(at, [pilot], begin, self._few.limits, known[None].copy())
        self._white.place(pilot, np.asarray(now.alpha))
        self._curvature = self._white.curvature(now.beta, pilot)
        there = expected(last, self._before, pilot, now, p)
        curvature = alike(there, self._curvature, now)
        begin = start(there, curvature, p)
        if 1 < p <= _FORETOLD:
            begin = halfway(begin, foretold(last, known, pilot, now, p), p)
        begin[pilot] = now.beta
        return now, begin, curvature
