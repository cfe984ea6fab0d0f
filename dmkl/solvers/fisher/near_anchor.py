"""Many targets at a point by one factor: their weights are near those of an anchor, and so are their solutions.

Targets that are permutations of the same labels have weights that differ by some hundredths. With M̄ = M(β̄) factored at
weights β̄ amid theirs, a target with weights β = β̄ + δ is solved by conjugate gradients that M̄ preconditions: of
M(β) = M̄ + D, D = Σ_j δ_j K_j/2λ, the error that is left of α falls with every step by about θ = ‖M̄^(−½) D M̄^(−½)‖.
Nothing of the order m³ is computed for a target. What is proven:

- −θM̄ ⪯ D ⪯ θM̄ for θ ≤ max_j |δ_j|/β̄_j, and for kernels whose weight all but vanishes, for |δ_j|‖K_j‖/λ in place of
  their share of the maximum, because I ⪯ 2M̄ (`spread`).
- S(α, β) − min_α S = ½ Rᵀ M⁻¹ R is then at most ½ Rᵀ M̄⁻¹ R/(1 − θ), and at most ‖R‖², because M ⪰ ½I.
- A step α + M̄⁻¹R leaves the residual −D M̄⁻¹R, whose ½ Rᵀ M̄⁻¹ R is at most θ² of what it was: where this is enough the
  product that would tell R is not computed.
- At the solution for the anchor's weights, M̄α = H, the residual is −Dα, whose ½ Rᵀ M̄⁻¹ R the slopes there bound
  (`behind_anchor`). Where weights are so near that this is enough (p from about 1.5 on, or large λ), a target takes one
  product with M̄⁻¹ and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dmkl.arrays import Array, Float, Index
from dmkl.numerics.cholesky import Cholesky
from dmkl.numerics.tiles import Tiles
from dmkl.solvers.fisher.kernels_in_memory import KernelStack, Solved
from dmkl.solvers.semidefinite import check_forms

__all__ = ["Carried", "Kernels", "NearAnchor", "behind_anchor", "sensitivity", "spread"]

_PRODUCTS = 8
"""Most steps of conjugate gradients for weights that are tried; targets that need more are too far from the anchor."""
_INEXACT = 0.5
"""Share of the tolerance that α may leave open."""
_SECOND_ORDER = 4.0
"""Of `sensitivity`: with more, slopes err so often too much that weightings are tried again."""
_ROUNDED = 1e-4
"""Most that a factor in single precision may take from a preconditioned residual."""
_FAR = 1e-3
"""1 − θ from which on it bounds anything."""
_TINY = float(np.finfo(np.float64).tiny)


class Kernels(NamedTuple):
    """The kernels in tiles, in the precision that each purpose asks for.

    Parameters
    ----------
    slopes, products
        For αᵀK_jα, and for products with the change of K(β), which is so small that less will do.
    """

    slopes: Tiles
    products: Tiles


class Carried(NamedTuple):
    """A solution at λ, for what it is at a larger ridge.

    With s = λ'/λ and the same weights, M' = M/s + ½(1 − 1/s)I ⪰ M/s, so that sα leaves a residual R' = R − ½(s − 1)α,
    of which ½ R'ᵀM'⁻¹R' is at most (√(s·excess) + ½(s − 1)√(½ s αᵀM⁻¹α))². All else of it is a multiple.

    Parameters
    ----------
    solved
        At λ.
    alpha
        α, (m, c).
    lam
        λ.
    inner
        Σ_k α_kᵀM⁻¹α_k, or more.
    """

    solved: Solved
    alpha: Float
    lam: float
    inner: float

    def to(self, lam: float, p: float, h: Float) -> Carried:
        """The same weights and sα at a larger λ, and what they prove there."""
        one, s = self.solved, lam / self.lam
        excess = (np.sqrt(s * one.excess) + 0.5 * (s - 1.0) * np.sqrt(0.5 * s * self.inner)) ** 2
        found = Solved.of(one.beta, h, s * self.alpha, s * one.slopes, p, float(excess))
        found.scores = None if one.scores is None else s * one.scores
        return Carried(found, s * self.alpha, lam, s**3 * self.inner)


class NearAnchor:
    """Targets at a point, solved by the factor of an anchor.

    Parameters
    ----------
    stack, kernels
        The kernels, for factors and for products.
    targets
        H of each, (t, c, m).
    p, lam
        The point.
    beta
        β̄, weights of the anchor.
    tol
        What `Solved.left` is to be.
    """

    def __init__(
        self, stack: KernelStack, kernels: Kernels, targets: Float, p: float, lam: float, beta: Float, tol: float
    ) -> None:
        self.stack, self.kernels, self.targets = stack, kernels, targets
        self.p, self.lam, self.beta, self.tol = p, lam, beta, tol
        self._factor = stack.factor(beta, lam)
        self._preconditioner = self._factor
        single = np.dtype(np.float32)
        condition = 1.0 + float(beta @ stack.norms) / lam
        if kernels.slopes.dtype == single and condition * np.finfo(single).eps <= _ROUNDED:
            self._preconditioner = Cholesky(self._factor.lower.astype(single))
        self.alphas = _solved(self._factor, targets)
        # H − M̄α of each.
        self._behind = np.zeros_like(targets)
        self._moved: set[int] = set()
        self.lost: set[int] = set()
        """Targets that are too far from the anchor."""

    @cached_property
    def slopes_at_anchor(self) -> Float:
        """The slopes of M̄⁻¹H of each, (t, n); asked for before α is another."""
        return np.asarray(self.kernels.slopes.traces(self.alphas) / (4.0 * self.lam))

    def evaluate(self, betas: Float, which: Sequence[int]) -> list[Solved]:
        """α, q and what they prove, of some targets at weights (t, n)."""
        known = self._at_anchor(betas, which)
        others = [k for k, one in enumerate(known) if one is None]
        found = iter(self._evaluate(betas[others], [which[k] for k in others]) if others else ())
        return [next(found) if one is None else one for one in known]

    def _at_anchor(self, betas: Float, which: Sequence[int]) -> list[Solved | None]:
        """What M̄⁻¹H of some targets proves at weights (t, n); None where that is not enough, or α is another by now."""
        change, slopes = betas - self.beta, self.slopes_at_anchor[list(which)]
        excess = behind_anchor(change, self.beta, slopes, self.stack.norms / self.lam) / self._near(change)
        found: list[Solved | None] = [None] * len(which)
        for k, t in enumerate(which):
            if t not in self._moved and np.isfinite(excess[k]):
                one = self._told(t, betas[k], self.alphas[t], slopes[k], float(excess[k]))
                found[k] = one if one.left <= self.tol else None
        return found

    def _evaluate(self, betas: Float, which: Sequence[int]) -> list[Solved]:
        """α, q and what they prove, of some targets at weights (t, n), with α for these weights."""
        at = np.asarray(which)
        excess = self._settle(betas, at)
        alphas = self.alphas[at]
        slopes = self.kernels.slopes.traces(alphas) / (4.0 * self.lam)
        return [
            self._told(t, beta, alpha, q, float(over))
            for t, beta, alpha, q, over in zip(which, betas, alphas, slopes, excess, strict=True)
        ]

    def _told(self, t: int, beta: Float, alpha: Float, q: Float, excess: float) -> Solved:
        """What α, (c, m), and its slopes say of a target, once they are those of semidefinite kernels."""
        size = float(np.vecdot(alpha, alpha).sum()) / (4.0 * self.lam)
        noise = float(np.finfo(self.kernels.slopes.dtype).eps) * size * float(self.stack.norms.max())
        check_forms(q, self.stack.facts, size, noise)
        return Solved.of(beta.copy(), self.targets[t].T, alpha.T, q, self.p, excess)

    def inner(self, solved: Sequence[Solved]) -> Float:
        """αᵀM⁻¹α of every target, summed over columns, or more, (t,); ∞ where nothing bounds it."""
        alphas = np.stack([np.asarray(one.alpha).T for one in solved])
        length = np.vecdot(alphas, _solved(self._factor, alphas)).sum(axis=1)
        near = self._near(np.stack([one.beta for one in solved]) - self.beta)
        return np.asarray(np.where(np.isfinite(near), length / near, np.inf))

    def _near(self, change: Float) -> Float:
        """1 − θ of M ⪰ (1 − θ)M̄, by the weights that fell; NaN where they all but vanish, which bounds nothing."""
        near = 1.0 - spread(np.minimum(change, 0.0), self.beta, self.stack.norms / self.lam)
        return np.asarray(np.where(near > _FAR, near, np.nan))

    def told(self, one: Solved, t: int) -> Solved:
        """The same with all that is left of it: as it is."""
        return one

    def curvature(self, beta: Float, t: int) -> Float:
        """C of a target at the weights of the anchor, (n, n), which are near enough."""
        products = np.matmul(self.alphas[t], self.stack.square)
        rows = self._factor.half_solve(products.reshape(-1, self.stack.m).T).T.reshape(self.stack.n, -1)
        return np.asarray(rows @ rows.T / (4.0 * self.lam**2))

    def _settle(self, betas: Float, at: Index) -> Float:
        """Solve for α at weights of some targets, from what there is; a bound of S(α, β) − min_α S of each."""
        change = betas - self.beta
        theta, near = spread(change, self.beta, self.stack.norms / self.lam), self._near(change)
        weights, need = change / (2.0 * self.lam), self._need(betas, at)
        excess = np.full(len(at), np.inf)

        def step_is_enough(on: Index, along: Float) -> npt.NDArray[np.bool_]:
            """Mark those of which what is left after one more step of M̄ is known to be little enough."""
            bound = 0.5 * along.sum(axis=1) * theta[on] ** 2 / near[on]
            fine = np.asarray(bound <= need[on])
            excess[on[fine]] = bound[fine]
            return fine

        # In what follows a target after the other takes what is computed of all: its vectors stay in the cache.
        on, products = np.arange(len(at)), self.kernels.products
        r = products.products(-weights, self.alphas[at]).astype(self._preconditioner.lower.dtype, copy=False)
        for k, t in enumerate(at.tolist()):
            if t in self._moved:
                r[k] += self._behind[t]
        z = _solved(self._preconditioner, r)
        along = _dots(r, z)
        fine = step_is_enough(on, along)
        for k in on[fine].tolist():
            self.alphas[at[k]] += z[k]
            self._behind[at[k]] -= r[k]
        self._moved |= set(at[fine].tolist())
        on = on[~fine]
        # Md = M̄d + Dd, of which M̄d is what the recurrence of d does to r.
        going = {
            k: _Going(self.alphas[at[k]].copy(), self._behind[at[k]].copy(), r[k], z[k], r[k].copy())
            for k in on.tolist()
        }
        for _ in range(_PRODUCTS):
            if not len(on):
                break
            d = np.stack([going[k].d for k in on.tolist()])
            q = products.products(weights[on], d).astype(d.dtype, copy=False)
            for k, mine in zip(on.tolist(), q, strict=True):
                mine += going[k].md
            curved = _dots(d, q)
            rises = (curved >= 0).all(axis=1)
            on, q, length = on[rises], q[rises], along[on[rises]] / np.maximum(curved[rises], _TINY)
            for k, mine, far in zip(on.tolist(), q, length, strict=True):
                going[k].go(far.astype(d.dtype)[:, None], mine)
            if not len(on):
                break
            r = np.stack([going[k].r for k in on.tolist()])
            left = _dots(r, r).sum(axis=1)
            z = _solved(self._preconditioner, r)
            new = _dots(r, z)
            left = np.fmin(left, 0.5 * new.sum(axis=1) / near[on])
            fine = left <= need[on]
            excess[on[fine]] = left[fine]
            by_step = np.zeros_like(fine)
            by_step[~fine] = step_is_enough(on[~fine], new[~fine])
            ratio = new / np.maximum(along[on], _TINY)
            along[on] = new
            for i, k in enumerate(on.tolist()):
                if by_step[i]:
                    going[k].x += z[i]
                    going[k].behind -= r[i]
                if fine[i] or by_step[i]:
                    self.alphas[at[k]], self._behind[at[k]] = going[k].x, going[k].behind
                    self._moved.add(int(at[k]))
                else:
                    going[k].turn(z[i], ratio[i].astype(d.dtype)[:, None])
            on = on[~(fine | by_step)]
        self.lost |= set(at[np.isinf(excess)].tolist())
        return excess

    def _need(self, betas: Float, at: Index) -> Float:
        """How far S may be above the least over α, of each."""
        part = np.sum(betas * self.slopes_at_anchor[at], axis=1)
        return np.asarray(_INEXACT * self.tol * sensitivity(self.p, self.tol) * part)


@dataclass(eq=False)
class _Going:
    """A target on the way of conjugate gradients: α, H − M̄α, the residual, the direction d and M̄d, (c, m)."""

    x: Float
    behind: Float
    r: Array
    d: Array
    md: Array

    def go(self, length: Array, q: Array) -> None:
        """A step along d, of which q is the product with M."""
        self.x += length * self.d
        self.behind -= length * self.md
        self.r -= length * q

    def turn(self, z: Array, ratio: Array) -> None:
        """The next direction, for z that M̄ makes of the residual."""
        self.d *= ratio
        self.d += z
        self.md *= ratio
        self.md += self.r


def _solved(factor: Cholesky, b: Array) -> Array:
    """M̄⁻¹B, (t, c, m), in the precision of the factor."""
    return factor.solve(b.reshape(-1, b.shape[-1]).T).T.reshape(b.shape)


def _dots(a: Array, b: Array) -> Float:
    """Inner products of rows, (t, c), in double precision: small squares would vanish in single, and prove too much."""
    return np.stack([np.vecdot(x, y, dtype=np.float64) for x, y in zip(a, b, strict=True)])


def behind_anchor(change: Float, beta: Float, slopes: Float, norms: Float) -> Float:
    """A bound of ½ tr RᵀM̄⁻¹R for M̄α = H and R = H − M(β̄ + δ)α, (t,).

    R = −Σ_j δ_jA_jα with A_j = K_j/2λ, and M̄ is at least the sum of W_j = ½w_jI + β̄_jA_j for any shares w that sum to
    one. The matrix-fractional function is jointly convex, (Σ_j x_j)ᵀ(Σ_j W_j)⁻¹(Σ_j x_j) ≤ Σ_j x_jᵀW_j⁻¹x_j, and so

        ½ tr RᵀM̄⁻¹R ≤ Σ_j δ_j² q_j/(β̄_j + w_jλ/‖K_j‖),

    since a/(½w_j + β̄_ja) grows with the eigenvalue a of A_j, which is no more than ‖K_j‖/2λ. Shares are those that are
    best where the kernels make little of M̄.

    Parameters
    ----------
    change
        δ, (t, n).
    beta
        β̄, (n,).
    slopes
        q_j = αᵀK_jα/4λ of each, (t, n).
    norms
        ‖K_j‖/λ, or more, (n,).
    """
    terms = change**2 * np.maximum(slopes, 0.0)
    shares = np.sqrt(terms * norms)
    total = shares.sum(axis=1, keepdims=True)
    shares = np.divide(shares, total, out=np.zeros_like(shares), where=total > 0)
    least = beta + np.divide(shares, norms, out=np.zeros_like(shares), where=norms > 0)
    return np.asarray(np.divide(terms, least, out=np.where(terms > 0, np.inf, 0.0), where=least > 0).sum(axis=1))


def sensitivity(p: float, tol: float) -> float:
    """Share of a tolerance for F − S that S may be above the least over α.

    Slopes err by the root of what is left of S, and F by them: to first order for p = 1, where it is the largest slope,
    and to second order divided by p − 1 otherwise. What is proven in the end is F of the slopes as they are.
    """
    return min(1.0, max(_SECOND_ORDER * (p - 1.0), tol))


def spread(change: Float, beta: Float, norms: Float) -> Float:
    """θ of −θM̄ ⪯ Σ_j δ_j K_j/2λ ⪯ θM̄, (t,), for M̄ = ½(I + Σ_j β̄_j K_j/λ).

    Parameters
    ----------
    change
        δ, (t, n).
    beta
        β̄, (n,).
    norms
        ‖K_j‖/λ, or more, (n,).
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
