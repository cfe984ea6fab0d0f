"""All points (p, λ) of many targets on kernels in memory: what a task of the solver "stacked" computes.

A few targets go through the grid with a factor for each weighting that is tried (`kernels_in_memory`). Where there are
many, those that are alike share one: the target in their midst, the anchor, is solved so, and the factor at its weights
solves the others (`near_anchor`). Those that are like no others get factors of their own, and so do those that turn out
to be too far from the anchor.

The next weights come from a model of the slopes. Its curvature, which needs all products K_jα, is that of one target
for all to begin with, in units of their slopes (targets that are permuted labels are much alike), and becomes their own
by the slopes at their weights for the last norm and at the weightings that are tried, which cost nothing more.
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
_MANY = 4
"""From so many targets on an anchor saves more than it costs."""
_LIKE, _REACH = 0.1, 0.8
"""How far logarithms of slopes may be apart for an anchor to be shared: by `_LIKE`, or `_REACH` (p − 1) where that is
more, for which weights, that grow with the power 1/(p − 1), are apart by `_REACH`."""
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
    turned, back = _independent(targets)
    walk = _Walk(kernels, turned, facts, _Limits(tol, max_steps))
    found: list[dict[tuple[float, float], Solved]] = [{} for _ in targets]
    for point, every in walk.through(points):
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


class _Place(NamedTuple):
    """Weights of a target, the slopes at them, and what the kernels make of S."""

    beta: Float
    slopes: Float
    share: float


class _Walk:
    """Targets on their way through the points: from small λ on, below which weights hardly change, to sparse weights.

    Parameters
    ----------
    kernels
        (n, rows, m), the training rows first.
    targets
        H of each, (m, c).
    facts
        What is known of the kernels.
    limits
        Where a point is done.
    """

    def __init__(self, kernels: Float, targets: Sequence[Float], facts: KernelFacts, limits: _Limits) -> None:
        self._stack = KernelStack(kernels, facts, min(TOGETHER, len(targets)))
        self._precisions = _Precisions(kernels)
        self._targets, self._limits = targets, limits
        self._rows = np.ascontiguousarray(np.stack([h.T for h in targets]))
        self._found: list[dict[_Point, _Place]] = [{} for _ in targets]
        self._carried: dict[float, list[Carried | None]] = {}
        self._before: float | None = None
        self._larger: float | None = None
        self._curvature: tuple[list[int], Float] | None = None

    def through(self, points: Sequence[_Point]) -> Iterator[tuple[_Point, list[Solved]]]:
        """Each point with all targets solved, and their scores."""
        for lam in sorted({lam for _, lam in points}):
            self._larger = self._curvature = None
            equal = self._slopes(lam)
            for p in sorted({p for p, at in points if at == lam}, reverse=True):
                groups = [[t] for t in range(len(self._targets))] if equal is None else alike(equal, p)
                solved = self._point((p, lam), groups)
                for mine, one in zip(self._found, solved, strict=True):
                    mine[p, lam] = _Place(one.beta, one.slopes, one.share)
                yield (p, lam), solved
                self._larger = p
            self._before = lam

    def _slopes(self, lam: float) -> Float | None:
        """The slopes of each target at equal weights, (t, n), roughly; None where few targets need no anchor."""
        if len(self._targets) < _MANY:
            return None
        equal, last = np.ones((1, self._stack.n)), len(self._targets) - 1
        known = OwnFactors(self._stack, self._targets, np.inf, lam, 0.0).evaluate(equal, [last])
        kernels = self._precisions.enough(known, np.inf, lam, _LIKE)
        at = NearAnchor(self._stack, kernels, self._rows, np.inf, lam, equal[0], self._limits.tol)
        return at.slopes_at_anchor

    def _point(self, point: _Point, groups: Sequence[Sequence[int]]) -> list[Solved]:
        """A point of all targets: what is proven of the last λ, the anchors, those beside them, those that are far."""
        (p, lam), tol, n_targets = point, self._limits.tol, len(self._targets)
        known = self._carried.get(p, [None] * n_targets)
        carried = [None if one is None else one.to(lam, p, h) for one, h in zip(known, self._targets, strict=True)]
        solved = {t: one.solved for t, one in enumerate(carried) if one is not None and one.solved.left <= tol}
        carried = [one if t in solved else None for t, one in enumerate(carried)]
        many = [group for group in groups if len(group) >= _MANY]
        alone = [t for group in groups for t in (group[:1] if len(group) >= _MANY else group) if t not in solved]
        if alone:
            solved |= zip(alone, self._own(point, alone), strict=True)
        kernels = self._precisions.enough([solved[group[0]] for group in many], p, lam, tol)
        far: dict[int, Float] = {}
        for first, *others in many:
            rest = [t for t in others if t not in solved]
            for t, one, inner in self._beside(point, kernels, solved[first], rest):
                if one.left > tol:
                    far[t] = one.beta
                    continue
                solved[t] = one
                if np.isfinite(inner):
                    carried[t] = Carried(one, np.asarray(one.alpha), lam, inner)
        if far:
            own = OwnFactors(self._stack, self._targets, p, lam, tol)
            solved |= zip(far, _solve_point(own, list(far), np.stack(list(far.values())), self._limits)[0], strict=True)
        self._carried[p] = carried
        _score(kernels.slopes, [one for one in solved.values() if one.scores is None])
        return [solved[t] for t in range(n_targets)]

    def _own(self, point: _Point, which: list[int]) -> list[Solved]:
        """Some targets at a point, by factors of their own."""
        p, lam = point
        own = OwnFactors(self._stack, self._targets, p, lam, self._limits.tol)
        last = [] if self._larger is None else [self._found[t][self._larger, lam] for t in which]
        if last and max(one.share for one in last) < _SMALL:
            if self._curvature is None or self._curvature[0] != which:
                curvature = _alike(last, own.curvature(last[0].beta, which[0]), last[0])
            else:
                curvature = self._curvature[1]
            solved, updated = _solve_point(own, which, _aims(last, curvature, p), self._limits, curvature)
            self._curvature = None if updated is None else (which, updated)
            return solved
        starts = [_start(self._found[t], p, lam, self._larger, self._before, self._stack.n) for t in which]
        return _solve_point(own, which, np.stack(starts), self._limits)[0]

    def _beside(
        self, point: _Point, kernels: Kernels, first: Solved, others: list[int]
    ) -> Iterator[tuple[int, Solved, float]]:
        """Targets by the factor of one that is solved, and αᵀM⁻¹α of each at most."""
        if not others:
            return
        p, lam = point
        every = list(range(len(others)))
        at = NearAnchor(self._stack, kernels, self._rows[others], p, lam, first.beta, self._limits.tol)
        curvature: Float | None = None
        starts = np.repeat(first.beta[None], len(others), axis=0)
        if self._stack.n > 1 and not np.isinf(p):
            places = [_Place(first.beta, q, 1.0) for q in at.slopes_at_anchor]
            curvature = _alike(places, at.curvature(first.beta, 0), places[0])
            if self._larger is not None:
                for i, (t, place) in enumerate(zip(others, places, strict=True)):
                    last = self._found[t][self._larger, lam]
                    curvature[i] = _updated(curvature[i], last.beta - place.beta, place.slopes - last.slopes)
            starts = _aims(places, curvature, p)
        near = self._limits._replace(max_steps=min(_NEAR_STEPS, self._limits.max_steps))
        solved, _ = _solve_point(at, every, starts, near, curvature)
        # Where the kernels make all of S, weights and α/λ change so little with λ that it may be proven of the next.
        inner = at.inner(solved) if first.share > _ALL else np.full(len(others), np.inf)
        yield from zip(others, solved, inner.tolist(), strict=True)


def alike(slopes: Float, p: float) -> list[list[int]]:
    """Targets in groups that an anchor each can serve, the target in the midst of a group first.

    Weights grow with the power 1/(p − 1) of slopes. So logarithms of the slopes at equal weights are compared, up to
    what all kernels share: their root mean square difference over kernels, by the part that each makes of all slopes.
    The target with the most others about it gathers these, and so does the next of those that are left; groups too
    small for an anchor come apart. Random labels have groups where few samples make most of the slopes, as pairs of
    samples that hardly differ do at small λ: what counts then is whether they share a label.

    Parameters
    ----------
    slopes
        At equal weights, (t, n).
    p
        Norm of the weights.
    """
    slopes = np.maximum(slopes, np.finfo(np.float64).tiny)
    logs = np.log(np.stack([_positive(mine) for mine in slopes]))
    parts = (slopes / slopes.sum(axis=1, keepdims=True)).mean(axis=0)
    logs -= (logs @ parts)[:, None]
    apart = np.sqrt(np.stack([(logs - mine) ** 2 @ parts for mine in logs]))
    near, left = apart <= max(_LIKE, _REACH * (p - 1.0)), np.ones(len(logs), dtype=bool)
    groups: list[list[int]] = []
    while left.any():
        most = int(np.argmax(np.where(left, (near & left).sum(axis=1), 0)))
        members = np.flatnonzero(near[most] & left)
        midst = int(np.argmin((apart[np.ix_(members, members)] ** 2).sum(axis=1)))
        group = [int(members[midst]), *np.delete(members, midst).tolist()]
        groups += [group] if len(group) >= _MANY else [[t] for t in group]
        left[members] = False
    return groups


class _Precisions:
    """The kernels in tiles, in single precision wherever that is enough."""

    def __init__(self, kernels: Float) -> None:
        self._kernels = kernels
        self.single = Tiles(kernels, np.float32)
        self._double: Tiles | None = None

    def enough(self, known: Sequence[Solved], p: float, lam: float, tol: float) -> Kernels:
        """What a point asks for, by what single precision makes of slopes that are known; double where none are.

        A relative error ε of slopes is one of ε in F − S for p = 1. Products err alike, with the change of the weights
        only, and come into what is proven by their squares.
        """
        error = np.inf
        if known:
            slopes = self.single.traces(np.stack([np.asarray(one.alpha).T for one in known])) / (4.0 * lam)
            exact = np.stack([one.slopes for one in known])
            error = float((np.abs(slopes - exact).max(axis=1) / exact.max(axis=1)).max())
        if error <= _ROUNDING * tol:
            self._double = None
            return Kernels(self.single, self.single)
        if self._double is None:
            self._double = Tiles(self._kernels, np.float64)
        rough = (_CHANGE * error) ** 2 <= _CHANGE * tol * sensitivity(p, tol)
        return Kernels(self._double, self.single if rough else self._double)


def _score(tiles: Tiles, solved: Sequence[Solved]) -> None:
    """Σ_j β_j K_j α on the held-out rows of each."""
    if not solved:
        return
    alphas = np.stack([np.asarray(one.alpha).T for one in solved])
    for one, scores in zip(solved, tiles.held_out(np.stack([one.beta for one in solved]), alphas), strict=True):
        one.scores = scores.T


def _start(
    found: dict[_Point, _Place], p: float, lam: float, larger: float | None, before: float | None, n: int
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
            # What is proven is taken, though rounding of slopes may hide that S rose.
            if one.left <= tol or one.objective >= best[i].objective - 1e-13 * abs(one.objective):
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
