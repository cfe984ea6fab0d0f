"""Weights of targets on kernels in memory: quasi-Newton steps by a model of the slopes, and where to begin.

The next weights come from a model of the slopes. Its curvature, which needs all products K_jα, is that of one target
for all to begin with, in units of their slopes (targets that are permuted labels are much alike), and becomes their own
by the slopes at the weightings that are tried, which cost nothing more.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import NamedTuple, Protocol

import numpy as np

from dmkl.arrays import Float
from dmkl.numerics.fisher import onto_sphere
from dmkl.numerics.slope_model import weights_by_slopes
from dmkl.solvers.fisher.kernels_in_memory import Solved
from dmkl.solvers.masters import newton_master
from dmkl.solvers.weight_sets.balls import Ball

__all__ = [
    "Known",
    "Limits",
    "Place",
    "aims",
    "alike",
    "expected",
    "foretold",
    "halfway",
    "logs",
    "positive",
    "solve_point",
    "start",
]

_NO_FALL = 1e-8
"""Share of the fall of the slopes that the curvature foretells, below which what is seen is rounding."""
_SHORTER = 0.3
"""What is left of a step that did not raise S."""
_LEAST = 1e-12
"""Slopes are no smaller than this share of the largest, for their logarithms."""
_HOME = 3.0
"""By how much logarithms of weights may change at first."""
_FARTHEST = 2.0
"""Most that targets go on, in units of their last way."""


class Limits(NamedTuple):
    """What `Solved.left` is to be, and how many weightings may be tried for it."""

    tol: float
    max_steps: int


class Known(Protocol):
    """Weights, and the slopes at them."""

    @property
    def beta(self) -> Float:
        """β, (n,)."""
        ...

    @property
    def slopes(self) -> Float:
        """q, (n,)."""
        ...


class Place(NamedTuple):
    """Weights of a target, the slopes at them, and what the kernels make of S."""

    beta: Float
    slopes: Float
    share: float = 1.0


class Solver(Protocol):
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


def solve_point(
    at: Solver, which: Sequence[int], starts: Float, limits: Limits, curvature: Float | None = None
) -> tuple[list[Solved], Float | None]:
    """A point of some targets, each by quasi-Newton steps with shortening, from its start.

    And the curvature of each, which is made, where it is needed and not given, of that of the first that needs it.
    """
    tol, p = limits.tol, at.p
    best = at.evaluate(starts, which)
    towards, shares = starts.copy(), np.ones(len(which))
    rose, step = list(range(len(which))), 1
    while left := [i for i, one in enumerate(best) if one.left > tol and which[i] not in at.lost]:
        if step >= limits.max_steps or starts.shape[1] == 1 or np.isinf(p):
            break
        if curvature is None:
            one = best[left[0]]
            curvature = alike(best, at.curvature(one.beta, which[left[0]]), one)
        if moved := [i for i in rose if i in left]:
            towards[moved] = aims([best[i] for i in moved], curvature[moved], p)
        tried = np.stack([_between(best[i].beta, towards[i], shares[i], p) for i in left])
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


def expected(last: Sequence[Known], before: Sequence[Known], pilot: int, now: Known, p: float) -> list[Place]:
    """Where targets are expected at the next norm, by where one of them, the pilot, is now.

    Each goes on as it went from the norm before the last one to the last, as far as suits the pilot best, and the pilot
    tells what is missing: in logarithms of weights and slopes, or in weights for p = 1, where they may be zero.

    Parameters
    ----------
    last, before
        The targets at the last norm, and at the one before; the same where there is none.
    pilot, now
        The number of the pilot, and where it is.
    p
        The norm.
    """
    betas, slopes = _coordinates(last, p)
    way, rise = (there[0] - here[pilot] for here, there in zip((betas, slopes), _coordinates([now], p), strict=True))
    old_betas, old_slopes = _coordinates(before, p)
    went, rose = betas - old_betas, slopes - old_slopes
    counts = np.ones(len(way)) if p == 1 else last[pilot].beta * last[pilot].slopes
    length = float(np.sum(counts * went[pilot] ** 2))
    share = min(max(float(np.sum(counts * way * went[pilot])) / length, 0.0), _FARTHEST) if length > 0 else 0.0
    way, rise = way + share * (went - went[pilot]), rise + share * (rose - rose[pilot])
    if p == 1:
        found = np.maximum(betas + way, 0.0)
    else:
        found = betas + way
        found = np.exp(found - found.max(axis=1, keepdims=True))
    return [Place(onto_sphere(beta, p), np.exp(q)) for beta, q in zip(found, slopes + rise, strict=True)]


def foretold(last: Sequence[Known], curvature: Float, pilot: int, now: Known, p: float) -> Float:
    """Weights at a norm p > 1, (t, n), by a model of the slopes at the last norm, of which the pilot tells the error.

    `expected` errs where a target bends its way, this where slopes are far from the model: halfway between the two the
    error is less than that of either, where norms are near 1.

    Parameters
    ----------
    last, curvature
        The targets at the last norm, and the curvature of the pilot there.
    pilot, now
        The number of the pilot, and where it is.
    """
    found = logs(start(last, alike(last, curvature, last[pilot]), p))
    found += logs(now.beta) - found[pilot]
    return np.stack([onto_sphere(beta, p) for beta in np.exp(found - found.max(axis=1, keepdims=True))])


def halfway(some: Float, others: Float, p: float) -> Float:
    """Weights between some and others, (t, n)."""
    return np.stack([_between(beta, other, 0.5, p) for beta, other in zip(some, others, strict=True)])


def _coordinates(places: Sequence[Known], p: float) -> tuple[Float, Float]:
    """Weights, of p = 1, or their logarithms, and logarithms of slopes, (t, n) each."""
    betas = np.stack([one.beta for one in places])
    return betas if p == 1 else logs(betas), np.log(np.stack([positive(one.slopes) for one in places]))


def alike(found: Sequence[Known], curvature: Float, of: Known) -> Float:
    """The curvature of one target for each, (t, n, n): C_ij grows with what the kernels i and j are to a target."""
    sizes = np.sqrt(np.stack([positive(one.slopes) for one in found]) / positive(of.slopes))
    return curvature * sizes[:, :, None] * sizes[:, None, :]


def _updated(curvature: Float, step: Float, fall: Float) -> Float:
    """The update of Broyden, Fletcher, Goldfarb and Shanno: along the step slopes fall as they did.

    J is concave, so that a fall that is not positive along the step is rounding, and tells nothing.
    """
    along = curvature @ step
    foretold, seen = float(step @ along), float(step @ fall)
    if seen <= _NO_FALL * foretold or foretold <= 0:
        return curvature
    return curvature - np.outer(along, along) / foretold + np.outer(fall, fall) / seen


def aims(found: Sequence[Known], curvature: Float, p: float) -> Float:
    """Where the model of each has its optimum, (t, n)."""
    if p == 1:
        return np.stack(
            [newton_master(one.slopes, c, one.beta, Ball(p)) for one, c in zip(found, curvature, strict=True)]
        )
    slopes = np.stack([positive(one.slopes) for one in found])
    return weights_by_slopes(slopes, curvature, np.stack([one.beta for one in found]), p)


def start(found: Sequence[Known], curvature: Float, p: float) -> Float:
    """Weights to begin with at a norm, (t, n): those of `aims`, but not far from where targets are now.

    A model that is asked too far from home lets weights vanish that are needed, and from there is no way back.
    """
    found_aims = aims(found, curvature, p)
    if p == 1:
        return found_aims
    here = logs(np.stack([one.beta for one in found]))
    there = here + np.clip(logs(found_aims) - here, -_HOME, _HOME)
    return np.stack([onto_sphere(beta, p) for beta in np.exp(there - there.max(axis=1, keepdims=True))])


def _between(beta: Float, aim: Float, share: float, p: float) -> Float:
    """A share of the way: of weights for p = 1, where they may be zero, and of their logarithms otherwise."""
    if p == 1:
        return onto_sphere(beta + share * (aim - beta), p)
    ends = logs(np.stack([beta, aim]))
    return onto_sphere(np.exp(ends[0] + share * (ends[1] - ends[0])), p)


def logs(beta: Float) -> Float:
    """Logarithms of weights, those of zeros finite."""
    return np.asarray(np.log(np.maximum(beta, np.finfo(np.float64).tiny)))


def positive(slopes: Float) -> Float:
    """Slopes that have a logarithm."""
    return np.maximum(slopes, max(_LEAST * float(slopes.max()), float(np.finfo(np.float64).tiny)))
