"""Many targets at a ridge, in coordinates in which the system at some weights is the identity.

With M̄ = M(β̄) = LLᵀ at weights β̄, x = Lᵀα and Ã_j = L⁻¹K_jL⁻ᵀ/2λ, solutions, slopes and objective are

    M(β)α = H  ⇔  W(β)x = L⁻¹H,  W(β) = I + Σ_j (β_j − β̄_j)Ã_j,   q_j = αᵀK_jα/4λ = ½ xᵀÃ_jx,
    S(α, β) = ½‖x‖² − xᵀL⁻¹H + Σ_j (β_j − β̄_j)q_j.

How small λ is no longer matters: no eigenvalue of W is below the least ratio of weights β_j/β̄_j, so that single
precision is enough for all that is computed of a target. That is little. Targets that are permutations of the same
labels have weights that are near one another. A few weights amid them are *centers*, whose W̄ is factored; a target with
weights β near a center is solved by conjugate gradients that W̄ preconditions, mostly in one step from W̄⁻¹L⁻¹H. Nothing
of the order m³ is computed for it. What is proven:

- μW̄ ⪯ W ⪯ νW̄, by the ratios of weights, where these are large, by Ã_j ⪯ I/β̄_j, where weights all but vanish, and
  where this is not enough by a Cholesky factor of W − μW̄ at weights that are below those of several targets (`bounds`).
- S(α, β) − min_α S = ½ rᵀW⁻¹r ≤ rᵀW̄⁻¹r/2μ for the residual r = L⁻¹H − Wx.
- A step x + 2W̄⁻¹r/(μ + ν) leaves at most the share ((ν − μ)/(ν + μ))² of rᵀW̄⁻¹r: where this is enough the product that
  would tell the new residual is not computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dmkl.arrays import Array, Float, Index
from dmkl.numerics.cholesky import Cholesky
from dmkl.numerics.tiles import SUMS, TRACES, Tiles
from dmkl.solvers.fisher.kernels_in_memory import KernelStack, Solved
from dmkl.solvers.semidefinite import check_forms

__all__ = ["NearCenters", "Whitened", "centers", "sensitivity", "spread"]

_STEPS = 20
"""Most steps of conjugate gradients for weights that are tried; targets that need more are too far from all centers."""
_INEXACT = 0.5
"""Share of the tolerance that α may leave open."""
_FIRST_ORDER, _SECOND_ORDER = 5.0, 4.0
"""Of `sensitivity`: with more, slopes err so often too much that weightings are tried again."""
_APART, _PER_CENTER = 0.2, 20
"""How far from its center a target may be, by the part of S that differs, and how many targets a center has at least:
that many share the seven milliseconds of its factor, for 900 samples, and more would take a step more each."""
_POOR, _USELESS = 0.1, 1e-3
"""Bounds μ that are worth a factor that finds a better one, and that are worth nothing."""
_BELOW = 0.1
"""Share of the targets that may have smaller weights than those at which W is bounded."""
_ROUNDS = 4
"""Most factors of a center for bounds at weights that are tried together."""
_HIGHEST, _RATIO = 0.9, 1.5
"""The largest bound that is tried, and the ratio of those that are tried one after the other."""
_FARTHEST = 4.0
"""Most that targets are taken to be farther from their centers than at the last norm, and have differed as much."""
_FORETOLD = 2.0
"""What is foretold by the slopes of the last norm may be as many times as much."""
_TINY = float(np.finfo(np.float64).tiny)


class Whitened:
    """Targets at a ridge, in the coordinates of weights β̄.

    Parameters
    ----------
    stack
        The kernels.
    targets
        H of each, (t, c, m).
    lam
        λ.
    beta
        β̄ > 0, (n,).
    dtype
        The precision of what is computed of targets.
    """

    def __init__(self, stack: KernelStack, targets: Float, lam: float, beta: Float, dtype: npt.DTypeLike) -> None:
        self.stack, self.targets, self.lam, self.beta, self.dtype = stack, targets, lam, beta, np.dtype(dtype)
        self._factor = stack.factor(beta, lam)
        self._square, held_out = self._whitened()
        self.tiles = Tiles(self._square, held_out, self.dtype)
        self.h = _by_columns(self._factor.half_solve, targets.copy()).astype(self.dtype)
        """L⁻¹H of each, (t, c, m)."""
        self.x = self.h.copy()
        """x of each, (t, c, m), at the weights that it was solved for last: those of the coordinates."""
        self.slopes = np.zeros((len(targets), stack.n))
        """q of each at x, (t, n)."""
        self.sizes = np.ones(len(targets))
        """|S| of each there, (t,)."""
        self.apart: tuple[Float, Array] | None = None
        """By how much weights, (t, n), and x, (t, c, m), differed at the last norm from those of the centers."""

    def _whitened(self) -> tuple[Array, Array]:
        """Ã_j, (n, m, m), and K_jL⁻ᵀ of the held-out rows, (n, rows, m)."""
        n, rows, m = self.stack.kernels.shape
        square, held_out = np.empty((n, m, m), dtype=self.dtype), np.empty((n, rows - m, m), dtype=self.dtype)
        for kernel, white, other in zip(self.stack.kernels, square, held_out, strict=True):
            np.multiply(self._factor.congruent(kernel[:m].T).T, 0.5 / self.lam, out=white, casting="same_kind")
            if len(other):
                other[:] = self._factor.half_solve(np.array(kernel[m:].T, order="F")).T
        return square, held_out

    def doubled(self) -> Whitened:
        """The same in double precision, from the solutions at the weights of the coordinates on."""
        other = Whitened(self.stack, self.targets, self.lam, self.beta, np.float64)
        other.slopes = self.slopes.copy()
        return other

    def system(self, beta: Float) -> Array:
        """W at weights (n,), (m, m)."""
        system = np.tensordot((beta - self.beta).astype(self.dtype), self._square, 1)
        system[np.diag_indices(len(system))] += 1.0
        return np.asarray(system)

    def scores(self, betas: Float, which: Sequence[int]) -> Array:
        """Σ_j β_jK_jα on the held-out rows, of some targets at weights (t, n), (t, c, rows)."""
        return self.tiles.held_out(betas, self.x[list(which)])

    def alphas(self, which: Sequence[int]) -> Float:
        """α = L⁻ᵀx of some targets, (t, c, m)."""
        return _by_columns(self._factor.half_solve_transposed, self.x[list(which)].astype(np.float64))

    def place(self, t: int, alpha: Float) -> None:
        """Begin with α, (m, c), for a target."""
        self.x[t] = self._factor.half_product_transposed(alpha).T

    def curvature(self, beta: Float, t: int) -> Float:
        """C_ij = xᵀÃ_iW⁻¹Ã_jx of a target that is solved at weights β, (n, n): minus the derivative of the slopes."""
        n, m = self.stack.n, self.stack.m
        products = np.matmul(self.x[t], self._square).reshape(-1, m)
        rows = Cholesky.of(self.system(beta).T).half_solve(products.T).T.reshape(n, -1).astype(np.float64)
        return np.asarray(rows @ rows.T)


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
        self._label, self._centers = centers(expected, of.slopes, of.sizes)
        # The coordinates themselves are a center that has no factor.
        self._plain = bool(np.array_equal(self._centers, of.beta[None]))
        self._systems = [of.system(beta) for beta in self._centers]
        self._factors = [] if self._plain else [Cholesky.of(system.T.copy(order="F")) for system in self._systems]
        self._guess = _HIGHEST
        self._least = [
            self._lowest(beta, system, None) for beta, system in zip(self._centers, self._systems, strict=True)
        ]
        self._low: dict[int, list[tuple[Float, float]]] = {}
        self._begun = np.zeros(len(of.x), dtype=bool)
        self._middle = np.zeros_like(of.x)
        self.lost: set[int] = set()
        """Targets that are too far from all centers."""

    def place(self, t: int, alpha: Float) -> None:
        """Begin with α, (m, c), for a target."""
        self._middle[t] = self._solved(self._of.h[[t]], np.array([t]))[0]
        self._of.place(t, alpha)
        self._begun[t] = True

    def evaluate(self, betas: Float, which: Sequence[int]) -> list[Solved]:
        """Slopes and what they prove, of some targets at weights (t, n), with x for these weights."""
        of, at = self._of, np.asarray(which)
        task = self._settle(betas, at)
        slopes, squares, inner = np.empty(betas.shape), np.empty(len(at)), np.empty(len(at))
        for on in _parts(np.arange(len(at)), TRACES):
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
            found.append(Solved.told(beta.copy(), slopes[k], float(linear[k]), self.p, float(excess[k])))
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
        least, most = self.bounds(betas, at)
        half = np.divide(0.5, least, out=np.full(len(at), np.inf), where=least > 0)
        need = _INEXACT * self._tol * sensitivity(self.p, self._tol) * np.sum(betas * of.slopes[at], axis=1)
        shrink = ((most - least) / (most + least)) ** 2
        task = _Task(at, betas - of.beta, half, 2.0 / (most + least), shrink, need, np.full(len(at), np.inf))
        near = ~self._begun[at] & (_FORETOLD * self._of_change(task, betas, of.slopes[at]) <= need)
        task.excess[near] = np.nan
        # The vectors of a few targets, of one center if can be, stay in the cache.
        order = np.argsort(self._label[at], kind="stable")
        for on in _parts(order[near[order]], SUMS):
            self._begin(at[on], None)
        left = [(order[:0], of.x[:0], of.x[:0], np.empty((0, of.x.shape[1])))]
        for on in _parts(order[~near[order]], SUMS):
            self._begin(at[on], betas[on])
            x = of.x[at[on]]
            r = of.h[at[on]] - x
            if task.change[on].any():
                r -= of.tiles.products(task.change[on], x)
            z = self._solved(r, at[on])
            along = _dots(r, z)
            going = ~self._taken(task, on, x, z, along)
            left.append((on[going], r[going], z[going], along[going]))
        on = np.concatenate([some[0] for some in left])
        r, z, along = (np.concatenate([some[k] for some in left]) for k in (1, 2, 3))
        for part in _parts(np.arange(len(on)), SUMS):
            self._by_gradients(task, on[part], r[part], z[part], along[part])
        self.lost |= set(at[np.isinf(task.excess)].tolist())
        return task

    def _of_change(self, task: _Task, betas: Float, slopes: Float) -> Float:
        """What the solution at its center leaves of a target at most, (t,), by its slopes there.

        Of the residual r = −Σ_j δ_jÃ_jx for weights that are δ off, and W̄ ⪰ Σ_j β̄_jÃ_j, the joint convexity of the
        matrix-fractional function tells ½ rᵀW̄⁻¹r ≤ ½ Σ_j δ_j² xᵀÃ_jx/β̄_j = Σ_j δ_j²q_j/β̄_j.
        """
        center = self._centers[self._label[task.at]]
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
            z, last = self._solved(r, task.at[on]), along
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
        x = self._solved(of.h[which], which)
        self._middle[which] = x
        if of.apart is not None and betas is not None:
            betas_apart, x_apart = of.apart
            root = np.sqrt(of.slopes[which])
            now, last = (betas[first] - self._centers[self._label[which]]) * root, betas_apart[which] * root
            share = np.sum(now * last, axis=1) / np.maximum(np.sum(last * last, axis=1), _TINY)
            x = x + np.clip(share, -_FARTHEST, _FARTHEST).astype(of.dtype)[:, None, None] * x_apart[which]
        of.x[which] = x
        self._begun[which] = True

    def leave(self, betas: Float) -> None:
        """Keep for the next norm how far all targets, solved at weights (t, n), are from their centers."""
        self._of.apart = (betas - self._centers[self._label], self._of.x - self._middle)

    def _solved(self, b: Array, at: Index) -> Array:
        """W̄⁻¹B of some targets, (t, c, m), each by its center."""
        if self._plain:
            return b
        if len(self._factors) == 1:
            return _by_columns(self._factors[0].solve, b)
        found, label = np.empty_like(b), self._label[at]
        for k in np.unique(label).tolist():
            mine = np.flatnonzero(label == k)
            found[mine] = _by_columns(self._factors[k].solve, b[mine])
        return found

    def bounds(self, betas: Float, which: Index) -> tuple[Float, Float]:
        """μ and ν of μW̄ ⪯ W ⪯ νW̄ of some targets at weights (t, n), (t,) each; where μ ≤ 0 nothing is known."""
        label, least, most = self._label[which], np.empty(len(which)), np.empty(len(which))
        for k in np.unique(label).tolist():
            mine, center = label == k, self._centers[k]
            change, norms = betas[mine] - center, 1.0 / (self._of.beta * self._least[k])
            least[mine] = 1.0 - spread(np.minimum(change, 0.0), center, norms)
            most[mine] = 1.0 + spread(np.maximum(change, 0.0), center, norms)
            least[mine] = self._by_factors(k, betas[mine], least[mine])
        return least, most

    def _by_factors(self, center: int, betas: Float, least: Float) -> Float:
        """Bounds μ, (t,), where those that are known are poor, by factors at weights that several targets are above."""
        known = self._low.setdefault(center, [])
        for low, bound in known:
            least = np.maximum(least, bound * _share_above(betas, low))
        for _ in range(_ROUNDS):
            # Once there is a factor only those that it says nothing of are worth another.
            rest = betas[least < (_USELESS if known else _POOR)]
            if not len(rest):
                break
            low = np.quantile(rest, _BELOW, axis=0, method="lower")
            known.append((low, self._lowest(low, self._of.system(low), center)))
            least = np.maximum(least, known[-1][1] * _share_above(betas, low))
        return least

    def _lowest(self, beta: Float, system: Array, center: int | None) -> float:
        """A μ with μW̄ ⪯ W at weights, for W̄ of a center, or with μI ⪯ W where None; 0 where none is of use."""
        of = self._of
        reference = np.eye(len(system), dtype=of.dtype) if center is None else self._systems[center]
        known = float(min(1.0, (beta / of.beta).min())) if center is None else 0.0
        rounding = len(system) * float(np.finfo(of.dtype).eps * system.diagonal().max())
        if center is not None:
            rounding /= self._least[center]
        bound = min(_HIGHEST, self._guess * _RATIO**2)
        while bound > max(known, _USELESS):
            try:
                Cholesky.of((system - np.asarray(bound, dtype=of.dtype) * reference).T)
            except np.linalg.LinAlgError:
                bound /= _RATIO
                continue
            self._guess = bound
            return max(bound - rounding, known)
        return known


def _parts(numbers: Index, size: int) -> Iterator[Index]:
    """So many numbers at a time."""
    return (numbers[i : i + size] for i in range(0, len(numbers), size))


def centers(betas: Float, slopes: Float, sizes: Float) -> tuple[Index, Float]:
    """For each target the number of its center, (t,), and the weights of these, (k, n), which are positive.

    Targets are apart by Σ_j |β_j − β'_j|q_j of |S|. The one in their midst is the first center; the one that is
    farthest from all centers is the next (Gonzalez: Clustering to minimize the maximum intercluster distance, 1985),
    until none is far, or there are as many as pay. Weights of a center are the mean of those that are nearest to it.

    Parameters
    ----------
    betas, slopes
        Weights and slopes of the targets, (t, n).
    sizes
        |S| of each, (t,).
    """
    units = slopes / np.maximum(sizes, _TINY)[:, None]

    def apart(t: int) -> Float:
        return np.asarray(np.sum(np.abs(betas - betas[t]) * units, axis=1))

    midst = int(np.argmin(np.sum(np.abs(betas - betas.mean(axis=0)) * units, axis=1)))
    label, nearest, n_centers = np.zeros(len(betas), dtype=np.int64), apart(midst), 1
    while nearest.max() > _APART and n_centers < len(betas) // _PER_CENTER:
        distance = apart(int(np.argmax(nearest)))
        label[distance < nearest] = n_centers
        nearest, n_centers = np.minimum(nearest, distance), n_centers + 1
    kept, label = np.unique(label, return_inverse=True)
    found = np.stack([betas[label == k].mean(axis=0) for k in range(len(kept))])
    return label, np.maximum(found, _USELESS * found.max(axis=1, keepdims=True))


def sensitivity(p: float, tol: float) -> float:
    """Share of a tolerance for F − S that S may be above the least over α.

    Slopes err by the root of what is left of S, and F by them: to first order for p = 1, where it is the largest slope,
    and to second order divided by p − 1 otherwise. What is proven in the end is F of the slopes as they are.
    """
    return min(1.0, max(_SECOND_ORDER * (p - 1.0), _FIRST_ORDER * tol))


def spread(change: Float, beta: Float, norms: Float) -> Float:
    """θ of −θM̄ ⪯ Σ_j δ_jA_j ⪯ θM̄, (t,), for M̄ = B + Σ_j β̄_jA_j, all of which are positive semidefinite.

    A kernel counts by |δ_j|/β̄_j, of which the largest is enough for all, or by |δ_j| times its norm, which add up.

    Parameters
    ----------
    change
        δ, (t, n).
    beta
        β̄, (n,).
    norms
        ω_j of A_j ⪯ ω_jM̄, (n,).
    """
    size = np.abs(change)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(size > 0, size / beta, 0.0)
    order = np.argsort(-ratio, axis=1)
    ratio = np.take_along_axis(ratio, order, axis=1)
    apart = np.cumsum(np.take_along_axis(size * norms, order, axis=1), axis=1)
    # The first k by their norms, the others by the largest of what is left of the ratios.
    zero = np.zeros((len(change), 1))
    both = np.concatenate([zero, apart], axis=1) + np.concatenate([ratio, zero], axis=1)
    return np.asarray(both.min(axis=1))


def _share_above(betas: Float, low: Float) -> Float:
    """The largest s ≤ 1 with β ≥ s·low of each, (t,)."""
    some = low > 0
    return np.asarray(np.min(betas[:, some] / low[some], axis=1, initial=1.0))


def _by_columns(solve: Callable[[Array], Array], b: Array) -> Array:
    """What a function of a matrix of columns makes of B (t, c, m), whose rows are vectors."""
    return solve(b.reshape(-1, b.shape[-1]).T).T.reshape(b.shape)


def _dots(a: Array, b: Array) -> Float:
    """Inner products of rows, (t, c), in double precision: small squares would vanish in single, and prove too much."""
    return np.stack([np.vecdot(x, y, dtype=np.float64) for x, y in zip(a, b, strict=True)])
