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

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dmkl.arrays import Array, Float, Index

__all__ = [
    "Discriminant",
    "Whitened",
    "directions",
    "excess",
    "indicators",
    "leave_one_out",
    "left_out_densities",
    "weigh",
    "whitened",
]

_Loss = Callable[[Float, Index], tuple[Float, Float, Float]]
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
_MOST_STEPS, _NOTHING, _ENOUGH, _SHORTEST = 100, 1e-8, 1e-4, 1e-6
"""Newton's steps at most, the promised decrease whose step is the last, the least share of a promise that counts as
kept, and the shortest share of a step."""
_CORRECTIONS, _RESOLVED = 5, 1e-14
"""Steps in double precision at most, with the curvature of single precision, and the promise whose step is the last."""
_ROUNDING = 16.0 * float(np.finfo(np.float32).eps)
"""What sums in single precision are exact to: no rise by less counts as one."""


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
        return cls.of_whitened(whitened(scores, index, n_classes, weights), priors)

    @classmethod
    def of_whitened(cls, found: Whitened, priors: Float) -> Discriminant:
        """The same from what `whitened` has found."""
        means, white, _ = found
        between = np.sqrt(priors)[..., None] * ((means - priors[..., None, :] @ means) @ white)
        _, _, turned = np.linalg.svd(between, full_matrices=False)
        return cls(means, white @ turned.mT[..., : means.shape[-2] - 1])

    @classmethod
    def unordered(cls, found: Whitened) -> Discriminant:
        """The same but for the order of the coordinates, which takes most of the time, and no function depends on."""
        means, white, _ = found
        apart = (means[..., 1:, :] - means[..., :1, :]) @ white
        return cls(means, white @ np.linalg.qr(apart.mT).Q)

    def scaled(self, factor: Float) -> Discriminant:
        """The same for scores s of which these are s·factor, column by column."""
        return Discriminant(self.means / factor[..., None, :], self.scalings * factor[..., None])

    def coordinates(self, scores: Float, priors: Float) -> Float:
        """Discriminant coordinates, (rows, r), with the mean of the class means at zero."""
        return np.asarray((scores - priors[..., None, :] @ self.means) @ self.scalings)

    def functions(self) -> tuple[Float, Float]:
        """Fisher's functions, linear in the scores: slopes (columns, classes), and values at zero (classes,)."""
        means = self.means @ self.scalings
        return np.asarray(self.scalings @ means.mT), np.asarray(-0.5 * (means**2).sum(axis=-1))

    def log_densities(self, scores: Float) -> Float:
        """Log p(s | k), (rows, classes), up to what all classes share: the values of Fisher's functions."""
        slopes, constants = self.functions()
        return np.asarray(scores @ slopes + constants[..., None, :])


class Whitened(NamedTuple):
    """Estimates from scores of rows whose classes are known.

    Parameters
    ----------
    means
        (classes, columns), of each class.
    white
        B, (columns, columns), with BᵀWB = I, W the covariance within classes.
    inside
        (columns, rows), deviations from the mean of the class.
    """

    means: Float
    white: Float
    inside: Float


def whitened(scores: Float, index: Index, n_classes: int, weights: Float | None) -> Whitened:
    """Estimate class means and the covariance within classes."""
    d = np.ones(len(index)) if weights is None else weights
    counted = np.eye(n_classes)[:, index] * d[..., None, :]
    sizes, n = counted.sum(axis=-1), d.sum(axis=-1)
    means = (counted / sizes[..., None]) @ scores
    shares = sizes / n[..., None]
    # Sums over the columns, the shorter side, run along memory.
    inside: Float = np.take(np.ascontiguousarray(means.mT), index, axis=-1)
    np.subtract(scores.mT, inside, out=inside)
    within = (inside if weights is None else inside * d[..., None, :]) @ inside.mT / n[..., None, None]
    diagonal = np.einsum("...cc->...c", within)
    # The variance of all rows is that within classes and that between their means.
    between = shares[..., None] * (means - shares[..., None, :] @ means) ** 2
    total = (diagonal.sum(axis=-1) + between.sum(axis=(-2, -1))) / scores.shape[-1]
    diagonal += np.where(total > 0, _RIDGE * total, 1.0)[..., None]
    return Whitened(means, np.linalg.inv(np.linalg.cholesky(within)).mT, inside)


def left_out_densities(
    scores: Float,
    index: Index,
    n_classes: int,
    weights: Float | None = None,
    of_all: Whitened | None = None,
) -> Float:
    """Fisher's L_k of each row by the class means and the covariance of all other rows, (rows, classes).

    Without row i of class k, whose deviation from its mean is r, weight d, and weights S_k of its class and S of all,
    the mean moves by −d r/(S_k − d), and the covariance becomes (S W − d S_k/(S_k − d) r rᵀ)/(S − d), whose inverse is
    one of rank one more (Friedman: Regularized discriminant analysis, JASA 84, 1989). Each row is told up to what all
    classes share. NaN for the only row of a class. `of_all` is what `whitened` finds of all rows, where that is known.
    """
    d = np.ones(len(index)) if weights is None else weights
    means, white, inside = whitened(scores, index, n_classes, weights) if of_all is None else of_all
    r, centers, rows = white.mT @ inside, means @ white, np.arange(len(index))
    total, own = d.sum(axis=-1)[..., None], (d @ np.eye(n_classes)[index])[..., index]
    rest = np.where(np.bincount(index, minlength=n_classes)[index] < 2, np.nan, own - d)
    moved, length = own / rest, np.einsum("...cn,...cn->...n", r, r)
    taken = d * moved / total
    gained = taken / np.maximum(1.0 - taken * length, _SINGULAR)
    # From the mean of class k, at distance D from that of its own, a row is |r|² + 2e + D² away, and |r|² + e along r.
    along = centers @ r
    np.subtract((along[..., index, rows] + length)[..., None, :], along, out=along)
    along[..., index, rows] = moved * length
    centers -= centers.mean(axis=-2, keepdims=True)
    apart = centers @ centers.mT
    squares = np.einsum("...kk->...k", apart).copy()
    apart = squares[..., None] + squares[..., None, :] - 2.0 * apart
    found = along * gained[..., None, :]
    found += 2.0
    found *= along
    found += np.take(apart, index, axis=-1)
    # Of its own class the distance is |moved r|² from where the mean then is; what the others share is −|r|².
    found[..., index, rows] += (moved**2 - 2.0 * moved + 1.0) * length
    found *= (-0.5 * (total - d) / total)[..., None, :]
    return np.asarray(found.mT)


def directions(scores: Float) -> Float:
    """f_k, (rows, classes): the scores themselves; of a single column, for two classes, −f and f."""
    return np.concatenate([-scores, scores], axis=-1) if scores.shape[-1] == 1 else scores


def weigh(densities: Float, scores: Float, index: Index, weights: Float | None = None) -> tuple[Float, Float]:
    """Find a, b ≥ 0 for which softmax_k(log π_k + a L_k + b f_k) has the least log loss, π the shares of the classes.

    Where nothing is ever mistaken the loss falls for ever as a and b grow. So one row more is counted, which nothing is
    known of: spread over all others it is of every class by its share, and the loss of a certain decision is never
    zero (as in Platt: Probabilistic outputs for support vector machines, 1999).

    Parameters
    ----------
    densities
        L, (rows, classes), of `left_out_densities`; rows of NaN are left out, for all machines alike.
    scores
        f, (rows, classes), of `directions`: of rows that the machine was not trained on.
    index
        (rows,), the class of each.
    weights
        (rows,), how often they count; once where None.
    """
    *stack, n_rows, n_classes = densities.shape
    # (machines, classes, rows): sums over the classes, the shorter side, run along memory.
    parts = [each.mT.reshape(-1, n_classes, n_rows) for each in (densities, scores)]
    means = [part.mean(axis=1, keepdims=True) for part in parts]
    d = (np.ones(n_rows) if weights is None else weights).reshape(-1, n_rows)
    shares = d @ np.eye(n_classes)[index] / d.sum(axis=1, keepdims=True)
    kept = np.isfinite(means[0]).all(axis=(0, 1))
    if not kept.any():
        return np.ones(stack), np.zeros(stack)
    if not kept.all():
        parts, means = ([each[..., kept] for each in some] for some in (parts, means))
        d, index = d[:, kept], index[kept]
    one = 1.0 / len(index)
    truth = (np.eye(n_classes)[:, index] + one * shares[..., None]) / (1.0 + one)
    counted, prior = d / d.sum(axis=1, keepdims=True), np.log(shares)[..., None]
    # Steps in single precision take half the time. Where it resolves no more, what is left is mostly one step.
    terms: Array = np.empty((len(parts[0]), 2, *parts[0].shape[1:]), dtype=np.float32)
    for number, (part, mean) in enumerate(zip(parts, means, strict=True)):
        np.subtract(part, mean, out=terms[:, number], casting="same_kind")
    loss, scale = _log_loss(terms, truth, counted, prior)
    low = np.array([_LEAST, 0.0])
    found, curvature = _least(loss, np.zeros((len(terms), 2)), low)
    going = np.arange(len(terms))
    for _ in range(_CORRECTIONS):
        mine = [part if len(part) == len(going) else part[going] for part in parts]
        others = (each if len(each) == 1 else each[going] for each in (truth, counted, prior))
        slope = _slope(mine, found[going] / scale[going], *others) / scale[going]
        step = _newton_step(slope, curvature[going], (found[going] > low) | (slope < 0.0))
        found[going] = np.maximum(found[going] - step, low)
        going = going[(slope * step).sum(axis=1) > _RESOLVED]
        if not len(going):
            break
    found /= scale
    a, b = found.T.reshape(2, *stack)
    return a, b


def _log_loss(terms: Array, truth: Float, d: Float, prior: Float) -> tuple[_Loss, Float]:
    """The log loss that `weigh` makes least, and the standard deviations that its coefficients count in.

    Parameters
    ----------
    terms
        L and f, (machines, 2, classes, rows), the mean over the classes being zero; in single precision.
    truth
        How much each row is of each class, (machines, classes, rows).
    d
        What rows count, (machines, rows); they sum to one.
    prior
        (machines, classes, 1), logarithms. All of these three may be one for all machines.

    Returns
    -------
    function
        Of coefficients (n, 2) and the numbers (n,) of the machines whose they are: the loss up to a constant, (n,), its
        slope and its curvature.
    ndarray
        (machines, 2)
    """
    n_machines, precision = len(terms), terms.dtype
    flat = terms.reshape(n_machines, 2, -1)
    scale = np.sqrt(np.vecdot(flat, flat) / flat.shape[-1])
    scale[scale == 0.0] = 1.0
    true = np.vecdot(flat, (truth * d[:, None]).astype(precision).reshape(-1, 1, flat.shape[-1])) / scale
    d, prior = d.astype(precision), prior.astype(precision)
    # Memory that is new at every step costs as much as what is computed in it.
    room = np.empty((2, *terms[:, 0].shape), dtype=precision)

    def loss(coefficients: Float, which: Index) -> tuple[Float, Float, Float]:
        n, every = len(which), len(which) == n_machines
        mine = terms if every else terms[which]
        weight, base = (part if every or len(part) == 1 else part[which] for part in (d, prior))
        likely, product = room[:, :n]
        rows, size = mine.reshape(n, 2, -1), scale[which]
        if coefficients.any():
            np.matmul((coefficients / size)[:, None].astype(precision), rows, out=likely.reshape(n, 1, -1))
            logs = _normalized(likely, base, weight)
        else:  # where it begins, each row is as likely of a class as the class is large
            likely, logs = np.exp(base) * weight[:, None], np.zeros((1, 1), dtype=precision)
        means, curvature = np.empty((n, 2, weight.shape[1]), dtype=precision), np.empty((n, 2, 2))
        for j in range(2):
            np.multiply(mine[:, j], likely, out=product)
            product.sum(axis=1, out=means[:, j])
            for k in range(j + 1):
                curvature[:, j, k] = curvature[:, k, j] = np.vecdot(product.reshape(n, -1), rows[:, k])
        curvature -= _products(means / weight[:, None], means)
        value = (weight * logs).sum(axis=1) - (coefficients * true[which]).sum(axis=1)
        slope = means.sum(axis=2) / size - true[which]
        return value, slope, curvature / (size[:, :, None] * size[:, None])

    return loss, scale


def _slope(parts: Sequence[Float], coefficients: Float, truth: Float, d: Float, prior: Float) -> Float:
    """The slope of the log loss in coefficients (machines, 2), from L and f, each (machines, classes, rows)."""
    first, second = (part * each[:, None, None] for part, each in zip(parts, coefficients.T, strict=True))
    first += second
    _normalized(first, prior, d)
    first -= truth * d[:, None]
    return np.stack([np.vecdot(first.reshape(len(first), -1), part.reshape(len(first), -1)) for part in parts], axis=1)


def _normalized(logits: Float, prior: Float, d: Float) -> Float:
    """Turn logits less the prior, (machines, classes, rows), into probabilities times d, and return logs of sums."""
    logits += prior
    highest = logits.max(axis=1)
    logits -= highest[:, None]
    np.exp(logits, out=logits)
    total = logits.sum(axis=1)
    logits *= (d / total)[:, None]
    return np.asarray(np.log(total) + highest)


def _least(function: _Loss, start: Float, low: Float) -> tuple[Float, Float]:
    """Where smooth convex functions of a few variables, each above its bound, are least, and their curvatures there.

    Newton's steps in the variables that are free, cut off at the bounds (Bertsekas: Projected Newton methods, SIAM
    Journal on Control and Optimization 20, 1982). All functions take them together, each until its own end.

    Parameters
    ----------
    function
        Values (n,), slopes (n, variables) and curvatures (n, variables, variables), at a point each, of those of some
        positions; in single precision.

    Returns
    -------
    ndarray, ndarray
        (functions, variables); (functions, variables, variables), of the points before the last steps.
    """
    x, active = start.copy(), np.arange(len(start))
    value, slope, curvature = (np.asarray(each, dtype=np.float64) for each in function(x, active))
    for _ in range(_MOST_STEPS):
        step = _newton_step(slope[active], curvature[active], (x[active] > low) | (slope[active] < 0.0))
        size = 1.0 + np.abs(value[active])
        going = (slope[active] * step).sum(axis=1) > _NOTHING * size
        x[active[~going]] = np.maximum(x[active[~going]] - step[~going], low)
        active, step, slack = active[going], step[going], _ROUNDING * size[going]
        if not len(active):
            break
        share, searching = 1.0, active
        while len(searching) and share >= _SHORTEST:
            trial = np.maximum(x[searching] - share * step, low)
            there = function(trial, searching)
            least = _ENOUGH * (slope[searching] * (x[searching] - trial)).sum(axis=1)
            kept = there[0] <= value[searching] - least + slack
            for array, new in zip((x, value, slope, curvature), (trial, *there), strict=True):
                array[searching[kept]] = new[kept]
            searching, step, slack = searching[~kept], step[~kept], slack[~kept]
            share *= 0.5
        if len(searching):
            active = np.setdiff1d(active, searching)
    return x, curvature


def _newton_step(slope: Float, curvature: Float, free: npt.NDArray[np.bool_]) -> Float:
    """The steps down, (functions, variables), in the variables that are free."""
    values, vectors = np.linalg.eigh(curvature * free[:, None] * free[..., None])
    # Where terms are multiples of one another the curvature is singular along the direction that changes nothing.
    kept = values > _SINGULAR * values[:, -1:]
    along = np.einsum("bi,bij->bj", slope, vectors)
    along = np.divide(along, values, out=np.zeros_like(along), where=kept)
    return np.where(free, np.einsum("bij,bj->bi", vectors, along), 0.0)


def _products(some: Float, others: Float) -> Float:
    """Inner products of a few long rows with others."""
    return np.asarray(np.vecdot(some[..., :, None, :], others[..., None, :, :]))
