"""Anchors: weightings whose combined kernel is at hand, and what they say about the weightings near them.

An anchor is a weighting β̄ with K(β̄) on disk. For a point (β, λ) let γ = min_j β_j/β̄_j over the support of β̄. Then
K(β) ⪰ γK(β̄), hence A(β, λ) = ½(I + K(β)/λ) ⪰ ½(I + K(β̄)/ρ) =: M with the ridge ρ = λ/γ, and for the residual R of
any α

    S(α, β) − J(β) = ½ tr(RᵀA⁻¹R) ≤ ½ tr(RᵀM⁻¹R) ≤ ‖R‖²:

a bound that stays sharp as λ → 0, where ‖R‖² is too large by a factor of the order of κ/λ. The same M⁻¹R that gives the
bound is the best guess of the error of α, and so the direction that the basis needs.

Ridges are rounded up by powers of one step, so that few factorizations serve all points; rounding up keeps the bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dmkl.arrays import Float

__all__ = ["Closeness", "choose_anchors", "closeness", "conditions", "grid_step", "ridge", "rough_ridge"]


_FAR = 1e9
_USEFUL = 30.0
"""A γ this many times below the mean ratio makes a bound of no use, and a poor preconditioner."""


class Closeness:
    """How an anchor lies to a weighting.

    Parameters
    ----------
    lowest, mean, highest
        Of the ratios β_j/β̄_j over the anchor's support.
    total
        The ratio of the sums, Σβ_j/Σβ̄_j, over the support.
    """

    def __init__(self, lowest: float, mean: float, highest: float, total: float) -> None:
        self.bounds = lowest * _USEFUL >= mean > 0
        """Whether M bounds A from below to any use."""
        self.condition = float(_condition(np.array(lowest), np.array(highest)))
        """Bound of the condition number of K(β̄)⁻¹K(β)."""
        # Not the mean ratio: a kernel that the anchor all but lacks would make it astronomical, and the ridge λ/scale
        # smaller than what the kernels' own rounding leaves positive definite.
        self.scale = lowest if self.bounds else max(total, 1e-12)
        """K(β) is like this many times K(β̄); at least as large, where M bounds."""


def _condition(lowest: Float, highest: Float) -> Float:
    usable = (highest > 0) & (highest < np.inf)
    highest = np.where(usable, highest, 1.0)
    return np.where(usable, np.minimum(highest / np.maximum(lowest, highest / _FAR), _FAR), _FAR)


def conditions(betas: Float, anchor: Float) -> Float:
    """`Closeness.condition` of many weightings (k, n) to one anchor (n,), which costs hardly more than that of one."""
    support = anchor > 0
    ratios = betas[:, support] / anchor[support]
    outside = betas[:, ~support].sum(axis=1) > 1e-9 * betas.sum(axis=1)
    return _condition(ratios.min(axis=1), np.where(outside, np.inf, ratios.max(axis=1)))


def closeness(beta: Float, anchor: Float) -> Closeness:
    """Compare a weighting with an anchor's, both (n,)."""
    support = anchor > 0
    ratios = beta[support] / anchor[support]
    # Weight on kernels that the anchor lacks: nothing bounds the condition number.
    outside = float(beta[~support].sum()) > 1e-9 * float(beta.sum())
    total = float(beta[support].sum() / anchor[support].sum())
    return Closeness(float(ratios.min()), float(ratios.mean()), np.inf if outside else float(ratios.max()), total)


def grid_step(lams: Sequence[float]) -> float:
    """The factor by which ridges are rounded: that of neighboring λ, so that the ridges of one λ serve the next."""
    values = np.unique(lams)
    if len(values) < 2:
        return 10.0
    return float(np.clip(np.median(values[1:] / values[:-1]), 3.0, 10.0))


def ridge(lam: float, scale: float, step: float) -> float:
    """The smallest λ·stepᵏ that is at least λ/scale, to twelve digits."""
    power = math.ceil(-math.log(scale) / math.log(step) - 1e-9)
    return float(f"{lam * step**power:.12g}")


def rough_ridge(lam: float, scale: float, step: float) -> float:
    """The smallest power of step² that is at least λ/scale, to twelve digits: few factors for many λ.

    For the first directions, which prove nothing: solutions at λ from a grid twice as coarse span those between them.
    """
    power = math.ceil(0.5 * math.log(lam / scale) / math.log(step) - 1e-9)
    return float(f"{step ** (2 * power):.12g}")


def choose_anchors(
    betas: Sequence[Float], gaps: Sequence[float], anchors: Sequence[Float], most: int, far: float = 3.0
) -> list[Float]:
    """New anchors among the weightings of points, each the one worst served by those before (farthest first).

    Parameters
    ----------
    betas, gaps
        Of the open points.
    anchors
        Those at hand.
    most
        How many may be added.
    far
        Points whose condition number is below this are served well enough.
    """
    if not betas:
        return []
    points = np.array(betas)
    lowest = np.min([np.full(len(points), _FAR), *(conditions(points, anchor) for anchor in anchors)], axis=0)
    chosen: list[Float] = []
    while len(chosen) < most:
        worst = max(range(len(betas)), key=lambda k: (lowest[k], gaps[k]))
        if lowest[worst] <= far:
            break
        chosen.append(betas[worst])
        lowest = np.minimum(lowest, conditions(points, betas[worst]))
    return chosen
