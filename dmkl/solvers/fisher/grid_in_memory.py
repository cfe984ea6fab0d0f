"""All points (p, λ) of many targets on kernels in memory: what a task of the solver "stacked" computes.

A few targets go through the grid with a factor for each weighting that is tried (`kernels_in_memory`). Where there are
many, these few side by side are one target, the anchor, whose weights are amid those of all: its factor then solves the
others (`near_anchor`), and those that are too far from it get factors of their own.

The next weights come from a model of the slopes. Its curvature, which needs all products K_jα, is that of one target
for all to begin with, in units of their slopes (targets that are permuted labels are much alike), and becomes their own
by the slopes at the weightings that are tried, which cost nothing more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np

from dmkl.arrays import Float
from dmkl.numerics.fisher import onto_sphere, uniform_weights
from dmkl.numerics.slope_model import weights_by_slopes
from dmkl.numerics.tiles import Tiles
from dmkl.solvers.fisher.kernels_in_memory import KernelStack, OwnFactors, Solved
from dmkl.solvers.fisher.near_anchor import Carried, Kernels, NearAnchor, sensitivity
from dmkl.solvers.masters import newton_master
from dmkl.solvers.semidefinite import KernelFacts
from dmkl.solvers.weight_sets.balls import Ball

__all__ = ["TOGETHER", "solve_grid"]

_NO_FALL = 1e-8
"""Share of the fall of the slopes that the curvature foretells, below which what is seen is rounding."""
_SHORTER = 0.3
"""What is left of a step that did not raise S."""
_SMALL = 0.05
"""Share of S that the kernels make below which slopes change so little with the weights that a model of them holds from
one norm to the next."""
_LEAST = 1e-12
"""Slopes are no smaller than this share of the largest, for their logarithms."""
TOGETHER = 16
"""Targets whose sums of kernels are made together where each has factors of its own."""
_MANY = 12
"""From so many targets on an anchor saves more than it costs."""
_ANCHOR = 4
"""Targets side by side that make the anchor."""
_ANCHOR_TOL = 1e-3
"""What may be left of the anchor, whose weights need only be near those of the others."""
_NEAR_STEPS = 8
"""Most weightings tried near an anchor."""
_ALL = 0.99
"""Share of S that the kernels make from which on solutions are looked at for the next λ."""
_DEPENDENT = 1e-13
"""Singular values of targets below this share of the largest are zero."""
_ROUNDING = 0.3
"""Share of the tolerance that single precision may take from slopes."""
_CHANGE = 0.1
"""How far weights are from those of an anchor, roughly; and the share of what α may leave open for rounding."""


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
        Most weightings tried for a point, by the factor of an anchor and by those of its own alike.
    facts
        What is known of the kernels.
    duals
        Whether dual variables are kept.

    Raises
    ------
    IndefiniteKernelError
        If I + K(β)/λ is not positive definite, or a form αᵀK_jα comes out negative.
    """
    stack = KernelStack(kernels, facts, min(TOGETHER, len(targets)))
    limits = _Limits(tol, max_steps)
    turned, back = _independent(targets)
    if len(targets) < _MANY:
        solved = _each(stack, Tiles(kernels, np.float64), turned, points, limits)
    else:
        solved = _near(stack, _Precisions(kernels), turned, points, limits)
    found: list[dict[tuple[float, float], Solved]] = [{} for _ in targets]
    for point, every in solved:
        for mine, one, Q in zip(found, every, back, strict=True):
            alpha = np.asarray(one.alpha) @ Q if duals else None
            mine[point] = replace(one, alpha=alpha, scores=(np.asarray(one.scores) @ Q).astype(np.float32))
    return found


def _independent(targets: Sequence[Float]) -> tuple[list[Float], list[Float]]:
    """HQᵀ of each target, (m, r), and Q, (r, c), with QQᵀ = I and HQᵀQ = H: targets of c classes have rank c − 1.

    S depends on α and H through ααᵀ and Hαᵀ alone, so that the solution of H is that of HQᵀ times Q.
    """
    parts = [np.linalg.svd(h, full_matrices=False) for h in targets]
    rank = max(1, *(int(np.count_nonzero(v > _DEPENDENT * v.max(initial=0.0))) for _, v, _ in parts))
    back = [Q[:rank] for _, _, Q in parts]
    return [np.asfortranarray(h @ Q.T) for h, Q in zip(targets, back, strict=True)], back


class _Limits(NamedTuple):
    """What `Solved.left` is to be, and how many weightings may be tried for it."""

    tol: float
    max_steps: int


_Point = tuple[float, float]


def _each(
    stack: KernelStack, tiles: Tiles, targets: Sequence[Float], points: Sequence[_Point], limits: _Limits
) -> Iterator[tuple[_Point, list[Solved]]]:
    """Each point with all targets solved, by factors of their own, and their scores."""
    for point, solved in _walk(stack, targets, points, limits):
        _score(tiles, solved)
        yield point, solved


def _near(
    stack: KernelStack,
    precisions: _Precisions,
    targets: Sequence[Float],
    points: Sequence[_Point],
    limits: _Limits,
) -> Iterator[tuple[_Point, list[Solved]]]:
    """The same, by the factor of an anchor wherever that is near enough."""
    # The last ones: where something is compared with what chance makes of it, it comes first and is unlike the others.
    anchor = np.asfortranarray(np.concatenate(targets[-_ANCHOR:], axis=1) / np.sqrt(_ANCHOR))
    rows = np.ascontiguousarray(np.stack([h.T for h in targets]))
    before: dict[float, list[Carried | None]] = {}
    for (p, lam), (amid,) in _walk(stack, [anchor], points, _Limits(max(_ANCHOR_TOL, limits.tol), limits.max_steps)):
        known = before.get(p, [None] * len(targets))
        carried = [None if one is None else one.to(lam, p, h) for one, h in zip(known, targets, strict=True)]
        solved = [None if one is None or one.solved.left > limits.tol else one.solved for one in carried]
        if todo := [t for t, one in enumerate(solved) if one is None]:
            mine = [targets[t] for t in todo]
            found, inner = _near_point(
                stack, precisions.enough(amid, p, lam, limits.tol), mine, rows[todo], amid, (p, lam), limits
            )
            for t, one, length in zip(todo, found, inner, strict=True):
                solved[t] = one
                carried[t] = Carried(one, np.asarray(one.alpha), lam, float(length))
        before[p] = [one if one is not None and np.isfinite(one.inner) else None for one in carried]
        yield (p, lam), [one for one in solved if one is not None]


def _near_point(
    stack: KernelStack,
    kernels: Kernels,
    targets: Sequence[Float],
    rows: Float,
    amid: Solved,
    point: _Point,
    limits: _Limits,
) -> tuple[list[Solved], Float]:
    """A point of some targets, (m, c) and (t, c, m), beside an anchor, and αᵀM⁻¹α of each at most."""
    p, lam = point
    every = list(range(len(targets)))
    at = NearAnchor(stack, kernels, rows, p, lam, amid.beta, limits.tol)
    curvature: Float | None = None
    starts = np.repeat(amid.beta[None], len(targets), axis=0)
    if stack.n > 1 and not np.isinf(p):
        places = [_Place(amid.beta, q) for q in at.slopes_at_anchor]
        curvature = _alike(places, at.curvature(amid.beta, every[-1]), places[-1])
        starts = _aims(places, curvature, p)
    near = limits._replace(max_steps=min(_NEAR_STEPS, limits.max_steps))
    solved, curvature = _solve_point(at, every, starts, near, curvature)
    # Where the kernels make all of S, weights and α/λ change so little with λ that it may be proven of the next.
    inner = at.inner(solved) if amid.share > _ALL else np.full(len(targets), np.inf)
    if far := [t for t, one in enumerate(solved) if one.left > limits.tol]:
        own = OwnFactors(stack, targets, p, lam, limits.tol)
        starts = np.stack([solved[t].beta for t in far])
        inner[far] = np.inf
        for t, one in zip(far, _solve_point(own, far, starts, limits)[0], strict=True):
            solved[t] = one
    _score(kernels.slopes, solved)
    return solved, inner


class _Precisions:
    """The kernels in tiles, in single precision wherever that is enough."""

    def __init__(self, kernels: Float) -> None:
        self._kernels = kernels
        self._single = Tiles(kernels, np.float32)
        self._double: Tiles | None = None

    def enough(self, amid: Solved, p: float, lam: float, tol: float) -> Kernels:
        """What a point asks for, by what single precision makes of the slopes of the anchor, which are known.

        A relative error ε of slopes is one of ε in F − S for p = 1. Products err alike, with the change of the weights
        only, and come into what is proven by their squares.
        """
        alpha = np.ascontiguousarray(np.asarray(amid.alpha).T)[None]
        slopes = self._single.traces(alpha)[0] / (4.0 * lam)
        error = float(np.abs(slopes - amid.slopes).max() / amid.slopes.max())
        if error <= _ROUNDING * tol:
            self._double = None
            return Kernels(self._single, self._single)
        if self._double is None:
            self._double = Tiles(self._kernels, np.float64)
        rough = (_CHANGE * error) ** 2 <= _CHANGE * tol * sensitivity(p, tol)
        return Kernels(self._double, self._single if rough else self._double)


def _score(tiles: Tiles, solved: Sequence[Solved]) -> None:
    """Σ_j β_j K_j α on the held-out rows of each."""
    alphas = np.stack([np.asarray(one.alpha).T for one in solved])
    for one, scores in zip(solved, tiles.held_out(np.stack([one.beta for one in solved]), alphas), strict=True):
        one.scores = scores.T


def _walk(
    stack: KernelStack, targets: Sequence[Float], points: Sequence[_Point], limits: _Limits
) -> Iterator[tuple[_Point, list[Solved]]]:
    """Each point with all targets solved, by factors of their own.

    From small λ on, below which weights hardly change, and from equal weights to sparse ones.
    """
    found: list[dict[_Point, Solved]] = [{} for _ in targets]
    every = list(range(len(targets)))
    before: float | None = None
    for lam in sorted({lam for _, lam in points}):
        larger: float | None = None
        curvature: Float | None = None
        for p in sorted({p for p, at in points if at == lam}, reverse=True):
            own = OwnFactors(stack, targets, p, lam, limits.tol)
            if larger is not None and max(mine[larger, lam].share for mine in found) < _SMALL:
                last = [mine[larger, lam] for mine in found]
                if curvature is None:
                    curvature = _alike(last, own.curvature(last[0].beta, 0), last[0])
                solved, curvature = _solve_point(own, every, _aims(last, curvature, p), limits, curvature)
            else:
                starts = np.stack([_start(mine, p, lam, larger, before, stack.n) for mine in found])
                solved, curvature = _solve_point(own, every, starts, limits)
            for mine, one in zip(found, solved, strict=True):
                mine[p, lam] = one
            yield (p, lam), solved
            larger = p
        before = lam


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


class _Solver(Protocol):
    """Targets at a point."""

    p: float

    @property
    def lost(self) -> Set[int]:
        """Targets that this way does not solve."""
        ...

    def evaluate(self, betas: Float, which: Sequence[int]) -> list[Solved]:
        """α, q and what they prove, of some targets at weights (t, n)."""
        ...

    def told(self, one: Solved, t: int) -> Solved:
        """The same with all that is left of it."""
        ...

    def curvature(self, beta: Float, t: int) -> Float:
        """C of a target at these weights, (n, n)."""
        ...


def _solve_point(
    at: _Solver, which: Sequence[int], starts: Float, limits: _Limits, curvature: Float | None = None
) -> tuple[list[Solved], Float | None]:
    """A point of some targets, each by quasi-Newton steps with shortening, from its start.

    And the curvature of each, which is made, where it is needed and not given, of that of the first that needs it.
    """
    tol, p = limits.tol, at.p
    best = at.evaluate(starts, which)
    aims, shares = starts.copy(), np.ones(len(which))
    rose, step = list(range(len(which))), 1
    while left := [i for i, one in enumerate(best) if one.left > tol and which[i] not in at.lost]:
        if step >= limits.max_steps or starts.shape[1] == 1 or np.isinf(p):
            break
        if curvature is None:
            one = best[left[0]]
            curvature = _alike(best, at.curvature(one.beta, which[left[0]]), one)
        if moved := [i for i in rose if i in left]:
            aims[moved] = _aims([best[i] for i in moved], curvature[moved], p)
        tried = np.stack([_between(best[i].beta, aims[i], shares[i], p) for i in left])
        rose = []
        for i, one in zip(left, at.evaluate(tried, [which[i] for i in left]), strict=True):
            curvature[i] = _updated(curvature[i], one.beta - best[i].beta, best[i].slopes - one.slopes)
            if one.objective >= best[i].objective - 1e-13 * abs(one.objective):
                best[i], shares[i] = one, 1.0
                rose.append(i)
            else:
                shares[i] *= _SHORTER
        step += 1
    for i in left:  # open: the gap is told with all that it has
        best[i] = at.told(best[i], which[i])
    return best, curvature


class _Known(Protocol):
    """Weights, and the slopes at them."""

    @property
    def beta(self) -> Float: ...

    @property
    def slopes(self) -> Float: ...


class _Place(NamedTuple):
    beta: Float
    slopes: Float


def _alike(found: Sequence[_Known], curvature: Float, of: _Known) -> Float:
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


def _aims(found: Sequence[_Known], curvature: Float, p: float) -> Float:
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
