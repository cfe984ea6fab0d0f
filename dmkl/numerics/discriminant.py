"""The decision on regression scores: Fisher's nearest class mean beside the largest score, and honest scores for both.

MK-FDA solves a ridge regression of class indicators. With π_k = m_k/m and the targets of JMLR Eq. 18 or Eq. 4 its
scores Σ_j β_j K_j α/2λ = f estimate, for every class k,

    g_k(x) = P(k | x) − π_k,     g_k = √π_k f_k for several classes,     g = f / (1/m⁺ + 1/m⁻) for the second of two.

These estimates span the discriminant space (spectral regression: Cai, He, Han, ICDM 2007; penalized discriminant
analysis: Hastie, Buja, Tibshirani, Annals of Statistics 23, 1995), but the largest of them is neither Bayes' decision
nor Fisher's: least squares moves a class that lies between others, or a small one, toward the rest. Fisher's decision
takes them as coordinates, and among the classes the one whose mean is nearest in the metric of the covariance within
classes, prior probabilities given: the largest of log q_k + L_k,

    L_k = −½ (g − ḡ_k)ᵀ W⁻¹ (g − ḡ_k).

Its means and covariance are estimates, from a few dozen rows a class, and scores are not normal: where no class
lies between others the largest score, which estimates nothing, is as good or better. Each is a linear function of the
scores for every class, and the decision takes both, as in a conditional logit (McFadden 1974):

    argmax_k of  log q_k + a L_k + b f_k,     a, b ≥ 0 of the least log loss (`weigh`).

Training scores are no sample of new ones: at small λ they reproduce the targets, W vanishes, and what lies between the
classes comes out as certain. So means and covariances are those of scores that each row gets from the regression on
all others, which follow from one factor (`leave_one_out`). Neither are rows new to the means and W that they are in: a
and b are those for L_k without the row itself (`left_out_densities`; stacking, Wolpert, Neural Networks 5, 1992).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dmkl.arrays import Float, Index

__all__ = [
    "Discriminant",
    "directions",
    "excess",
    "indicators",
    "leave_one_out",
    "left_out_densities",
    "weigh",
    "whitened",
]

_CENTERED = 1e-2
"""How far A⁻¹1 may be from 2·1, relative, for the kernel to count as centered."""
_RIDGE = 1e-10
"""Of the total variance: what keeps the covariance within classes regular, as scores of several classes, which sum to a
constant, need it. In the direction of that sum the classes have one mean, so nothing is decided by it."""
_LEAST = 1e-6
"""The least weight of Fisher's functions, in their standard deviations, so that something always decides."""
_SINGULAR = 1e-9
"""The least share of the covariance within classes that is left in a direction when a row is left out, and of the
curvature that a step is taken along."""
_MOST_STEPS, _NOTHING, _ENOUGH, _SHORTEST = 100, 1e-13, 1e-4, 1e-12
"""Newton's steps at most, the promised decrease that they end at, the least share of a promise that counts as kept, and
the shortest share of a step."""


def indicators(index: Index, n_classes: int) -> Float:
    """Y (rows, classes): one where the row is of the class, zero elsewhere; for two classes the second column alone."""
    whole = np.eye(n_classes)[index]
    return whole[:, 1:] if n_classes == 2 else whole


def excess(sizes: Float) -> Float:
    """What turns regression scores f into g = P(k | x) − π_k: a factor for each column of the targets.

    √π_k for several classes (JMLR Eq. 18), 1/(1/m⁺ + 1/m⁻) for the single column of two (JMLR Eq. 4), from the
    number of training rows of each class, (classes,).
    """
    return np.array([sizes.prod() / sizes.sum()]) if len(sizes) == 2 else np.sqrt(sizes / sizes.sum())


def leave_one_out(
    alpha: Float, diagonal: Float, of_ones: Float, index: Index, n_classes: int, weights: Float | None = None
) -> Float:
    """The estimates g of each training row by the regression on all other rows, from one factor.

    With A = ½(I + K/λ) and Aα = H the regression that leaves row i out errs by α_i/(A⁻¹)_ii. Where the kernel is
    centered (then A⁻¹1 = 2·1) the row takes part in the mean too. The regression that is centered anew without it is
    the one with a free bias, which errs by

        e_i = α_i / ((A⁻¹)_ii − (A⁻¹1)_i²/1ᵀA⁻¹1),

    and the share of the class among the others is subtracted from its estimate, as the targets of a new fit have it:

        g_ik = Y_ik − s_k e_ik − (m_k − Y_ik)/(m − 1),     s = `excess`.

    So this is what training without row i gives, but for the scale of normalized kernels and their weights, which stay
    as they are. Where rows have weights d, A = ½(I + D^{1/2}KD^{1/2}/λ) and A(D^{−1/2}α) = D^{1/2}H, and the row that
    is left out goes with all its weight: α_i/d_i takes the place of α_i, A⁻¹D^{1/2}1 that of A⁻¹1 with the product
    1ᵀD^{1/2}A⁻¹D^{1/2}1, and sums of weights that of numbers of rows.

    Parameters
    ----------
    alpha
        (m, columns), the solution for the targets H.
    diagonal
        (m,), of A⁻¹.
    of_ones
        (m,), A⁻¹1; with weights A⁻¹D^{1/2}1.
    index
        (m,), the class of each row.
    n_classes
        The number of classes.
    weights
        d, (m,); ones where None.

    Returns
    -------
    ndarray
        (m, columns)
    """
    d = np.ones(len(index)) if weights is None else weights
    sizes = np.bincount(index, d, minlength=n_classes).astype(np.float64)
    m, scale, truth, root = sizes.sum(), excess(sizes), indicators(index, n_classes), np.sqrt(d)
    totals, alpha = sizes[1:] if n_classes == 2 else sizes, alpha / d[:, None]
    if np.abs(of_ones / root - 2.0).max() > 2.0 * _CENTERED:
        return np.asarray(truth - totals / m - scale * alpha / diagonal[:, None])
    error = alpha / (diagonal - of_ones**2 / (of_ones @ root))[:, None]
    return np.asarray(truth - scale * error - (totals - d[:, None] * truth) / (m - d)[:, None])


@dataclass(frozen=True, eq=False)
class Discriminant:
    """Class means, and coordinates in which the covariance within classes is the identity.

    Parameters
    ----------
    means
        (classes, columns), of scores.
    scalings
        (columns, r), r ≤ classes − 1: the discriminant coordinates of scores s are (s − x̄)ᵀ scalings, the most
        discriminative first, where x̄ is the mean of the class means by prior probability.
    """

    means: Float
    scalings: Float

    @classmethod
    def of(
        cls, scores: Float, index: Index, n_classes: int, priors: Float, weights: Float | None = None
    ) -> Discriminant:
        """Estimate means and covariance from scores (rows, columns) of rows whose classes are known.

        Every class has a row at least. `priors` (classes,) weight the classes in the order of the coordinates;
        `weights` (rows,) say how often a row counts, once where None.
        """
        return cls.of_whitened(*whitened(scores, index, n_classes, weights), priors)

    @classmethod
    def of_whitened(cls, means: Float, white: Float, priors: Float) -> Discriminant:
        """The same from what `whitened` has found."""
        between = np.sqrt(priors)[:, None] * ((means - priors @ means) @ white)
        _, _, turned = np.linalg.svd(between, full_matrices=False)
        return cls(means, white @ turned.T[:, : len(means) - 1])

    def scaled(self, factor: Float) -> Discriminant:
        """The same for scores s of which these are s·factor, column by column."""
        return Discriminant(self.means / factor, self.scalings * factor[:, None])

    def coordinates(self, scores: Float, priors: Float) -> Float:
        """Discriminant coordinates, (rows, r), with the mean of the class means at zero."""
        return np.asarray((scores - priors @ self.means) @ self.scalings)

    def log_densities(self, scores: Float) -> Float:
        """Log p(s | k), (rows, classes), up to what all classes share: Fisher's functions, linear in the scores."""
        rows, means = scores @ self.scalings, self.means @ self.scalings
        return np.asarray(rows @ means.T - 0.5 * (means**2).sum(axis=1))


def whitened(scores: Float, index: Index, n_classes: int, weights: Float | None) -> tuple[Float, Float]:
    """Estimate class means (classes, columns), and B (columns, columns) with BᵀWB = I, W the covariance in classes."""
    counted = np.eye(n_classes)[index]
    if weights is not None:
        counted *= weights[:, None]
    sizes, d = counted.sum(axis=0), counted.sum(axis=1)[:, None]
    means = (counted / sizes).T @ scores
    mean, n = sizes / sizes.sum() @ means, sizes.sum()
    inside = scores - means[index]
    total = float((d * (scores - mean) ** 2).sum()) / n / scores.shape[1]
    within = (d * inside).T @ inside / n
    within.flat[:: len(within) + 1] += _RIDGE * total if total > 0 else 1.0
    values, vectors = np.linalg.eigh(within)
    return means, vectors / np.sqrt(values)


def left_out_densities(
    scores: Float,
    index: Index,
    n_classes: int,
    weights: Float | None = None,
    of_all: tuple[Float, Float] | None = None,
) -> Float:
    """Fisher's L_k of each row by the class means and the covariance of all other rows, (rows, classes).

    Without row i of class k, whose deviation from its mean is r, weight d, and weights S_k of its class and S of all,
    the mean moves by −d r/(S_k − d), and the covariance becomes (S W − d S_k/(S_k − d) r rᵀ)/(S − d), whose inverse is
    one of rank one more (Friedman: Regularized discriminant analysis, JASA 84, 1989). NaN for the only row of a class.
    `of_all` is what `whitened` finds of all rows, where that is known.
    """
    d = np.ones(len(index)) if weights is None else weights
    means, white = whitened(scores, index, n_classes, weights) if of_all is None else of_all
    x, centers, rows = scores @ white, means @ white, np.arange(len(index))
    r, total, own = x - centers[index], d.sum(), np.bincount(index, d, minlength=n_classes)[index]
    alone = np.bincount(index, minlength=n_classes)[index] < 2
    rest = np.where(alone, np.nan, own - d)
    moved = r * (own / rest)[:, None]
    squares = (x**2).sum(axis=1)[:, None] - 2.0 * x @ centers.T + (centers**2).sum(axis=1)
    along = (r * x).sum(axis=1)[:, None] - r @ centers.T
    squares[rows, index], along[rows, index] = (moved**2).sum(axis=1), (r * moved).sum(axis=1)
    taken = d * own / rest / total
    gained = taken / np.maximum(1.0 - taken * (r**2).sum(axis=1), _SINGULAR)
    return np.asarray(-0.5 * ((total - d) / total)[:, None] * (squares + gained[:, None] * along**2))


def directions(scores: Float) -> Float:
    """f_k, (rows, classes): the scores themselves; of a single column, for two classes, −f and f."""
    return np.hstack([-scores, scores]) if scores.shape[1] == 1 else scores


def weigh(densities: Float, scores: Float, index: Index, weights: Float | None = None) -> tuple[float, float]:
    """Find a, b ≥ 0 for which softmax_k(log π_k + a L_k + b f_k) has the least log loss, π the shares of the classes.

    Where nothing is ever mistaken the loss falls for ever as a and b grow. So one row more is counted, which nothing is
    known of: spread over all others it is of every class by its share, and the loss of a certain decision is never
    zero (as in Platt: Probabilistic outputs for support vector machines, 1999).

    Parameters
    ----------
    densities
        L, (rows, classes), of `left_out_densities`; rows of NaN are left out.
    scores
        f, (rows, classes), of `directions`: of rows that the machine was not trained on.
    index
        (rows,), the class of each.
    weights
        (rows,), how often they count; once where None.
    """
    kept = np.isfinite(densities).all(axis=1)
    if not kept.any():
        return 1.0, 0.0
    d = np.ones(len(index)) if weights is None else weights
    shares = np.bincount(index, d, minlength=densities.shape[1]) / d.sum()
    index, d = index[kept], d[kept] / d[kept].sum()
    one = 1.0 / len(index)
    # (2, classes, rows): sums over the classes, the shorter side, run along memory.
    terms = np.stack([np.ascontiguousarray(each[kept].T) for each in (densities, scores)])
    terms -= terms.mean(axis=1, keepdims=True)
    scale = np.sqrt((terms**2).mean(axis=(1, 2)))
    scale[scale == 0.0] = 1.0
    terms /= scale[:, None, None]
    flat, prior = terms.reshape(2, -1), np.log(shares)[:, None]
    truth = (np.eye(len(shares))[:, index] + one * shares[:, None]) / (1.0 + one)
    true = flat @ (d * truth).reshape(-1)

    def loss(coefficients: Float) -> tuple[float, Float, Float]:
        """Log loss up to a constant, its slope and its curvature."""
        logits = (coefficients @ flat).reshape(truth.shape) + prior
        highest = logits.max(axis=0)
        likely = np.exp(logits - highest)
        total = likely.sum(axis=0)
        likely *= d / total
        each = terms * likely
        means = each.sum(axis=1)
        curvature = each.reshape(2, -1) @ flat.T - (means / d) @ means.T
        return float(d @ (np.log(total) + highest) - coefficients @ true), means.sum(axis=1) - true, curvature

    a, b = _least(loss, np.ones(2), np.array([_LEAST, 0.0])) / scale
    return float(a), float(b)


def _least(function: Callable[[Float], tuple[float, Float, Float]], start: Float, low: Float) -> Float:
    """Where a smooth convex function of a few variables, each above its bound, is least.

    Newton's steps in the variables that are free, cut off at the bounds (Bertsekas: Projected Newton methods, SIAM
    Journal on Control and Optimization 20, 1982).
    """
    x = start
    value, slope, curvature = function(x)
    for _ in range(_MOST_STEPS):
        free = (x > low) | (slope < 0.0)
        if not free.any():
            break
        values, vectors = np.linalg.eigh(curvature * free * free[:, None])
        # Where terms are multiples of one another the curvature is singular along the direction that changes nothing.
        kept = values > _SINGULAR * values[-1]
        step = np.where(free, vectors[:, kept] @ (slope @ vectors[:, kept] / values[kept]), 0.0)
        if slope @ step <= _NOTHING * (1.0 + abs(value)):  # what rounding hides
            break
        size = 1.0
        while True:
            trial = np.maximum(x - size * step, low)
            there = function(trial)
            if there[0] <= value - _ENOUGH * float(slope @ (x - trial)):
                break
            size *= 0.5
            if size < _SHORTEST:
                return x
        x, (value, slope, curvature) = trial, there
    return x
