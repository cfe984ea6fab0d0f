"""Many targets at a norm, by the factors of a few centers amid their weights.

Targets that are permutations of the same labels have weights that are near one another, so that one with weights β is
near the solution W̄⁻¹L⁻¹H of its center (see `whitened` and `centers`), and conjugate gradients that W̄ preconditions
end after a step, mostly. Nothing of the order m³ is computed for a target. With μW̄ ⪯ W ⪯ νW̄ it is proven that

- S(α, β) − min_α S = ½ rᵀW⁻¹r ≤ rᵀW̄⁻¹r/2μ for the residual r = L⁻¹H − Wx;
- a step x + 2W̄⁻¹r/(μ + ν) leaves at most the share ((ν − μ)/(ν + μ))² of rᵀW̄⁻¹r: where this is enough the product that
  would tell the new residual is not computed;
- the solution of the center leaves so little that no residual is needed, where weights hardly differ (`_of_change`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dmkl.arrays import Array, Float, Index
from dmkl.numerics.tile_loops import put_dots
from dmkl.numerics.tiles import PART
from dmkl.solvers.fisher.centers import Centers
from dmkl.solvers.fisher.kernels_in_memory import Solved
from dmkl.solvers.fisher.whitened import Whitened
from dmkl.solvers.semidefinite import check_forms

__all__ = ["NearCenters"]

_STEPS = 20
"""Most steps of conjugate gradients for weights that are tried; targets that need more are too far from all centers."""
_INEXACT = 0.5
"""Share of the tolerance that α may leave open."""
_FIRST_ORDER, _SECOND_ORDER = 5.0, 4.0
"""Of `_sensitivity`: with more, slopes err so often too much that weightings are tried again."""
_FARTHEST = 4.0
"""Most that targets are taken to be farther from their centers than at the last norm, and have differed as much."""
_FORETOLD = 2.0
"""What is foretold by the slopes of the last norm may be as many times as much."""
_TINY = float(np.finfo(np.float64).tiny)


class _Task(NamedTuple):
    """Some targets whose x is asked for.

    Parameters
    ----------
    at
        Their numbers, (t,).
    change
        β − β̄, (t, n).
    half, length, shrink
        1/2μ, 2/(μ + ν) and ((ν − μ)/(ν + μ))², (t,).
    need
        How far S may be above the least over α, (t,).
    excess
        How far it is at most, (t,); ∞ of those that are not solved, NaN of those that are where they began.
    """

    at: Index
    change: Float
    half: Float
    length: Float
    shrink: Float
    need: Float
    excess: Float


class NearCenters:
    """Targets at a norm, by the factors of centers amid their weights.

    Parameters
    ----------
    of
        The targets at their ridge.
    p
        The norm of the weights.
    expected
        Weights at which each is expected, (t, n).
    tol
        What `Solved.left` is to be.
    """

    def __init__(self, of: Whitened, p: float, expected: Float, tol: float) -> None:
        self._of, self.p, self._tol = of, p, tol
        self._centers = Centers(of, expected)
        self._begun = np.zeros(len(of.x), dtype=bool)
        self._middle = np.zeros_like(of.x)
        self.lost: set[int] = set()
        """Targets that are too far from all centers."""

    def keep(self, t: int) -> None:
        """Begin with the x that is there, for a target."""
        self._middle[t] = self._centers.solved(self._of.h[[t]], np.array([t]))[0]
        self._begun[t] = True

    def evaluate(self, betas: Float, which: Sequence[int]) -> list[Solved]:
        """Slopes and what they prove, of some targets at weights (t, n), with x for these weights."""
        of, at = self._of, np.asarray(which)
        task = self._settle(betas, at)
        slopes, squares, inner = np.empty(betas.shape), np.empty(len(at)), np.empty(len(at))
        for on in _parts(np.arange(len(at)), PART):
            x, h = of.x[at[on]], of.h[at[on]]
            slopes[on] = 0.5 * of.tiles.traces(x)
            squares[on], inner[on] = _dots(x, x).sum(axis=1), _dots(x, h).sum(axis=1)
        # Not settled yet are those whose change is so small that no residual is needed.
        excess = np.where(np.isnan(task.excess), self._of_change(task, betas, slopes), task.excess)
        of.slopes[at], linear = slopes, 0.5 * squares - inner - slopes @ of.beta
        of.sizes[at] = np.abs(linear + np.sum(betas * slopes, axis=1))
        # ‖α‖²/4λ, for which large terms cancel.
        norms = np.maximum(0.5 * squares - slopes @ of.beta, 0.0) / of.lam
        found = []
        for k, beta in enumerate(betas):
            noise = float(np.finfo(of.dtype).eps * squares[k] / of.beta.min())
            check_forms(slopes[k], of.stack.facts, float(norms[k]), noise)
            found.append(Solved.by_slopes(beta.copy(), slopes[k], float(linear[k]), self.p, float(excess[k])))
        return found

    def told(self, one: Solved, t: int) -> Solved:
        """The same with all that is left of it: as it is."""
        return one

    def curvature(self, beta: Float, t: int) -> Float:
        """C of a target at weights that it is solved for, (n, n)."""
        return self._of.curvature(beta, t)

    def _settle(self, betas: Float, at: Index) -> _Task:
        """Solve for x at weights of some targets, from what there is, with a bound of S(α, β) − min_α S of each."""
        of = self._of
        least, most = self._centers.bounds(betas, at)
        need = _INEXACT * self._tol * _sensitivity(self.p, self._tol) * np.sum(betas * of.slopes[at], axis=1)
        shrink = ((most - least) / (most + least)) ** 2
        task = _Task(at, betas - of.beta, 0.5 / least, 2.0 / (most + least), shrink, need, np.full(len(at), np.inf))
        near = ~self._begun[at] & (_FORETOLD * self._of_change(task, betas, of.slopes[at]) <= need)
        task.excess[near] = np.nan
        # The vectors of a few targets, of one center if can be, stay in the cache.
        order = np.argsort(self._centers.label[at], kind="stable")
        for on in _parts(order[near[order]], PART):
            self._begin(at[on], None)
        left = [(order[:0], of.x[:0], of.x[:0], np.empty((0, of.x.shape[1])))]
        for on in _parts(order[~near[order]], PART):
            self._begin(at[on], betas[on])
            x = of.x[at[on]]
            r = of.h[at[on]] - x
            if task.change[on].any():
                r -= of.tiles.products(task.change[on], x)
            z = self._centers.solved(r, at[on], roughly=True)
            along = _dots(r, z)
            going = ~self._taken(task, on, x, z, along)
            left.append((on[going], r[going], z[going], along[going]))
        on = np.concatenate([some[0] for some in left])
        r, z, along = (np.concatenate([some[k] for some in left]) for k in (1, 2, 3))
        for part in _parts(np.arange(len(on)), PART):
            self._by_gradients(task, on[part], r[part], z[part], along[part])
        self.lost |= set(at[np.isinf(task.excess)].tolist())
        return task

    def _of_change(self, task: _Task, betas: Float, slopes: Float) -> Float:
        """What the solution at its center leaves of a target at most, (t,), by its slopes there.

        Of the residual r = −Σ_j δ_jÃ_jx for weights that are δ off, and W̄ ⪰ Σ_j β̄_jÃ_j, the joint convexity of the
        matrix-fractional function tells ½ rᵀW̄⁻¹r ≤ ½ Σ_j δ_j² xᵀÃ_jx/β̄_j = Σ_j δ_j²q_j/β̄_j.
        """
        center = self._centers.of(task.at)
        return np.asarray(2.0 * task.half * np.sum((betas - center) ** 2 * slopes / center, axis=1))

    def _taken(self, task: _Task, on: Index, x: Array, z: Array, along: Float) -> npt.NDArray[np.bool_]:
        """Mark the targets that x is good enough for, or will be with one more step, and keep it of these."""
        bound = task.half[on] * along.sum(axis=1)
        fine, by_step = bound <= task.need[on], bound * task.shrink[on] <= task.need[on]
        for i in np.flatnonzero(fine | by_step).tolist():
            k = on[i]
            task.excess[k] = bound[i] if fine[i] else bound[i] * task.shrink[k]
            self._of.x[task.at[k]] = x[i] if fine[i] else x[i] + z.dtype.type(task.length[k]) * z[i]
        return np.asarray(fine | by_step)

    def _by_gradients(self, task: _Task, on: Index, r: Array, z: Array, along: Float) -> None:
        """Conjugate gradients for some targets of a task, from residuals r and z = W̄⁻¹r, (t, c, m), on."""
        of = self._of
        x, d = of.x[task.at[on]], z.copy()
        for _ in range(_STEPS):
            q = d + of.tiles.products(task.change[on], d)
            far = (along / np.maximum(_dots(d, q), _TINY)).astype(of.dtype)[:, :, None]
            x += far * d
            r -= far * q
            z, last = self._centers.solved(r, task.at[on], roughly=True), along
            along = _dots(r, z)
            going = ~self._taken(task, on, x, z, along)
            if not going.any():
                return
            d *= (along / np.maximum(last, _TINY)).astype(of.dtype)[:, :, None]
            d += z
            if not going.all():
                on, along = on[going], along[going]
                x, r, d = (some[going] for some in (x, r, d))

    def _begin(self, at: Index, betas: Float | None) -> None:
        """Targets that are met first begin as far from the solution of their center as they were at the last norm.

        Without weights they begin there.
        What weights that are a little off make of x is linear in them, and the differences of two norms are much alike.
        """
        first = np.flatnonzero(~self._begun[at])
        if not len(first):
            return
        of, which = self._of, at[first]
        x = self._centers.solved(of.h[which], which, roughly=betas is not None)
        self._middle[which] = x
        if of.apart is not None and betas is not None:
            betas_apart, x_apart = of.apart
            root = np.sqrt(of.slopes[which])
            now, last = (betas[first] - self._centers.of(which)) * root, betas_apart[which] * root
            share = np.sum(now * last, axis=1) / np.maximum(np.sum(last * last, axis=1), _TINY)
            x = x + np.clip(share, -_FARTHEST, _FARTHEST).astype(of.dtype)[:, None, None] * x_apart[which]
        of.x[which] = x
        self._begun[which] = True

    def leave(self, betas: Float) -> None:
        """Keep for the next norm how far all targets, solved at weights (t, n), are from their centers."""
        self._of.apart = (betas - self._centers.of(np.arange(len(betas))), self._of.x - self._middle)


def _sensitivity(p: float, tol: float) -> float:
    """Share of a tolerance for F − S that S may be above the least over α.

    Slopes err by the root of what is left of S, and F by them: to first order for p = 1, where it is the largest slope,
    and to second order divided by p − 1 otherwise. What is proven in the end is F of the slopes as they are.
    """
    return min(1.0, max(_SECOND_ORDER * (p - 1.0), _FIRST_ORDER * tol))


def _parts(numbers: Index, size: int) -> Iterator[Index]:
    """So many numbers at a time."""
    return (numbers[i : i + size] for i in range(0, len(numbers), size))


def _dots(a: Array, b: Array) -> Float:
    """Inner products of rows, (t, c), in double precision: small squares would vanish in single, and prove too much."""
    found = np.empty(a.shape[:2])
    put_dots(a, b, found)
    return found
