"""Weights amid those of many targets, whose systems are factored, and what that proves of the others' systems.

For the W of a target and the W̄ of its center (see `whitened`) μW̄ ⪯ W ⪯ νW̄ holds

- by the ratios of weights, where these are large, and by Ã_j ⪯ I/β̄_j, where weights all but vanish (`spread`);
- where this is not enough, by a Cholesky factor of W − μW̄ at weights that are below those of several targets.
"""

from __future__ import annotations

import numpy as np

from dmkl.arrays import Array, Float, Index
from dmkl.numerics.cholesky import Cholesky
from dmkl.numerics.tiles import Dense
from dmkl.solvers.fisher.whitened import Whitened, by_columns

__all__ = ["Centers", "grouped", "spread"]

_APART, _PER_CENTER = 0.2, 20
"""How far from its center a target may be, by the part of S that differs, and how many targets a center has at least:
that many share the seven milliseconds of its factor, for 900 samples, and more would take a step more each."""
_WORTH = 50
"""From so many targets on the inverse of a center, two more of its factors, takes less time than it saves."""
_POOR, _USELESS = 0.1, 1e-3
"""Bounds μ that are worth a factor that finds a better one, and that are worth nothing."""
_BELOW = 0.1
"""Share of the targets that may have smaller weights than those at which W is bounded."""
_ROUNDS = 4
"""Most factors of a center for bounds at weights that are tried together."""
_HIGHEST, _RATIO = 0.9, 1.5
"""The largest bound that is tried, and the ratio of those that are tried one after the other."""
_LEAST = 1e-30
"""What μ is where nothing is known of it: W is positive definite, and never so little."""
_TINY = float(np.finfo(np.float64).tiny)


class Centers:
    """Centers of some targets.

    Parameters
    ----------
    white
        The targets in their coordinates.
    expected
        Weights at which each is expected, (t, n).

    Raises
    ------
    IndefiniteKernelError
        If a system has no Cholesky factor.
    LinAlgError
        If rounding hides it.
    """

    def __init__(self, white: Whitened, expected: Float) -> None:
        self._white = white
        self.label, self._weights = grouped(expected, white.slopes, white.sizes)
        # The coordinates themselves are a center that has no factor.
        self._plain = bool(np.array_equal(self._weights, white.beta[None]))
        self._systems = [white.system(beta) for beta in self._weights]
        pairs = list(zip(self._weights, self._systems, strict=True))
        self._factors = [] if self._plain else [white.factor(*pair) for pair in pairs]
        sizes = np.bincount(self.label)
        self._inverses = [Dense(f.inverse()) if sizes[k] >= _WORTH else None for k, f in enumerate(self._factors)]
        self._guess = _HIGHEST
        identity = np.eye(white.stack.m, dtype=white.dtype)
        # β_j ≥ sβ̄_j for all j makes W ⪰ sI.
        self._least = [self._bound(W, identity, float(min(1.0, (b / white.beta).min()))) for b, W in pairs]
        self._low: dict[int, list[tuple[Float, float]]] = {}

    def of(self, at: Index) -> Float:
        """The weights of the centers of some targets, (t, n)."""
        return np.asarray(self._weights[self.label[at]])

    def solved(self, b: Array, at: Index, *, roughly: bool = False) -> Array:
        """W̄⁻¹B of some targets, (t, c, m), each by its center.

        Roughly is by the inverse, in two thirds of the time, with residuals of rounding times the condition of W̄.
        """
        if self._plain:
            return b
        label = self.label[at]
        centers = np.unique(label).tolist()
        if len(centers) == 1:
            return self._solved(centers[0], b, roughly=roughly)
        found = np.empty_like(b)
        for k in centers:
            found[label == k] = self._solved(k, b[label == k], roughly=roughly)
        return found

    def _solved(self, center: int, b: Array, *, roughly: bool) -> Array:
        inverse = self._inverses[center] if roughly else None
        return by_columns(self._factors[center].solve, b) if inverse is None else inverse.products(b)

    def bounds(self, betas: Float, at: Index) -> tuple[Float, Float]:
        """μ > 0 and ν of μW̄ ⪯ W ⪯ νW̄ of some targets at weights (t, n), (t,) each."""
        label, least, most = self.label[at], np.empty(len(at)), np.empty(len(at))
        for k in np.unique(label).tolist():
            mine, center = label == k, self._weights[k]
            change, norms = betas[mine] - center, 1.0 / (self._white.beta * self._least[k])
            known = 1.0 - spread(np.minimum(change, 0.0), center, norms)
            least[mine] = self._by_factors(k, betas[mine], np.maximum(known, _LEAST))
            most[mine] = 1.0 + spread(np.maximum(change, 0.0), center, norms)
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
            bound = self._bound(self._white.system(low), self._systems[center], 0.0, self._least[center])
            known.append((low, bound))
            least = np.maximum(least, bound * _share_above(betas, low))
        return least

    def _bound(self, system: Array, reference: Array, known: float, least: float = 1.0) -> float:
        """The largest μ ≥ `known` of those tried with μ·reference ⪯ system; `least` bounds the reference from below."""
        rounding = len(system) * float(np.finfo(system.dtype).eps * system.diagonal().max()) / least
        bound = min(_HIGHEST, self._guess * _RATIO**2)
        while bound > max(known, _USELESS):
            try:
                Cholesky.of((system - np.asarray(bound, dtype=system.dtype) * reference).T)
            except np.linalg.LinAlgError:
                bound /= _RATIO
                continue
            self._guess = bound
            return max(bound - rounding, known)
        return known


def grouped(betas: Float, slopes: Float, sizes: Float) -> tuple[Index, Float]:
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
