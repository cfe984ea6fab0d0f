"""Decisions from regression scores: Fisher's nearest class mean, the largest score, and out-of-sample scores.

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

    argmax_k of  log q_k + a L_k + b f_k,     a, b ≥ 0 of the least log loss (`dmkl.learners.decisions`).

Training scores are no sample of new ones: at small λ they reproduce the targets, W vanishes, and what lies between the
classes comes out as certain. So means and covariances are those of scores that each row gets from the regression on
all others, which follow from one factor (`leave_one_out`). Neither are rows new to the means and W that they are in: a
and b are those for L_k without the row itself (`left_out_densities`; stacking, Wolpert, Neural Networks 5, 1992).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dmkl.arrays import Float, Index, Mask

_RIDGE = 1e-10
"""Of the total variance: what keeps the covariance within classes regular, as scores of several classes, which sum to a
constant, need it. In the direction of that sum the classes have one mean, so nothing is decided by it."""
_SINGULAR = 1e-9
"""The least share of the covariance within classes that is left in a direction when a row is left out."""
_DETERMINED = 0.99
"""The leverage P_ii above which unpenalized directions determine row i: the error of a prediction of it from the other
rows has 1/(1 − P_ii) times the variance of the errors of the regression."""


def indicators(index: Index, n_classes: int) -> Float:
    """Y (rows, classes): one where the row is of the class, zero elsewhere; for two classes the second column alone."""
    whole = np.eye(n_classes)[index]
    return whole[:, 1:] if n_classes == 2 else whole


def excess(sizes: Float) -> Float:
    """The factors, one for each column of the targets, that turn regression scores f into g = P(k | x) − π_k.

    √π_k for several classes (JMLR Eq. 18), 1/(1/m⁺ + 1/m⁻) for the single column of two (JMLR Eq. 4), from the
    number of training rows of each class, (classes,).
    """
    return np.array([sizes.prod() / sizes.sum()]) if len(sizes) == 2 else np.sqrt(sizes / sizes.sum())


def null_leverages(null_vectors: Float) -> Float:
    """The diagonal of P = N(NᵀN)⁻¹Nᵀ, (m,)."""
    q = np.linalg.qr(null_vectors)[0]
    return np.asarray(np.einsum("mk,mk->m", q, q))


def is_determined(leverage: Float) -> Mask:
    """Whether unpenalized directions determine a row, so that the other rows say nothing about it: (m,)."""
    return np.asarray(leverage > _DETERMINED)


def leave_one_out(
    alpha: Float,
    diagonal: Float,
    index: Index,
    n_classes: int,
    null_vectors: Float | None = None,
    weights: Float | None = None,
    of_ones: Float | None = None,
) -> Float:
    """The estimates g of each training row by the regression on all other rows, from one factor.

    With A = ½(I + K/λ) and Aα = H, the error of the regression without row i is α_i/(A⁻¹)_ii. If steps project out the
    constant or covariates, K maps vectors N to zero, so A⁻¹N = 2N: these directions are not penalized, and the
    projection changes with row i. The error of the regression on [K, N] without row i is

        e_i = [(I − P)α]_i / ((A⁻¹)_ii − [A⁻¹N(NᵀA⁻¹N)⁻¹NᵀA⁻¹]_ii) = [(I − P)α]_i / ((A⁻¹)_ii − 2P_ii),

    with P = N(NᵀN)⁻¹Nᵀ: the dual variables of that regression are orthogonal to N, and α also has the part 2PH.

    Scores contain what K explains and not what N explains. The ordinary least squares of Y on N, which errs by
    o_i = [(I − P)Y]_i/(1 − P_ii) without row i, is part of both, and so

        g_i = o_i − s e_i,     s = `excess`:

    what training without row i gives, with the kernels projected anew. The scale of normalized kernels and their
    weights stay as they are. Rows that N determines (`is_determined`) are NaN: both quotients are 0/0 at a leverage of
    one, and extrapolate from the other rows near it. Where N is only the constant, Y_i − o_i is the share of each class
    among the other rows.

    Without N the targets of training without row i are Y less the shares π₋ᵢ of the classes among the other rows, in
    place of their shares π among all. The regression is linear in its targets, so that

        g_i = Y_i − π − s e_i + u_i (π − π₋ᵢ),     u_i = 1 − (A⁻¹1)_i/(A⁻¹)_ii,

    where u_i is the estimate of row i by the regression of ones on the other rows.

    Where rows have weights d, A = ½(I + D^{1/2}KD^{1/2}/λ) and A(D^{−1/2}α) = D^{1/2}H. The row that is left out goes
    with all its weight: D^{1/2}Y and D^{1/2}1 take the place of Y and 1, and errors are divided by d_i^{1/2}.

    `alpha` (m, columns) solves for the targets H of the classes `index` (m,). The `diagonal` of A⁻¹ is (m,), or
    (m, columns) if each column has its own kernel weights, and so are `of_ones`, A⁻¹D^{1/2}1, which only kernels
    without N need; where None, π₋ᵢ counts as π. N (m, k) has full column rank, and belongs to
    D^{1/2}KD^{1/2} if rows have weights; None if no such vectors are known. Returns g, (m, columns).
    """
    root = np.sqrt(np.ones(len(index)) if weights is None else weights)[:, None]
    sizes = np.bincount(index, root[:, 0] ** 2, minlength=n_classes).astype(np.float64)
    scale, truth, alpha = excess(sizes), indicators(index, n_classes), alpha / root
    diagonal = diagonal.reshape(len(diagonal), -1)
    if null_vectors is None:
        totals = sizes[1:] if n_classes == 2 else sizes
        shares, d = totals / sizes.sum(), root**2
        estimates = truth - shares - scale * alpha / (root * diagonal)
        if of_ones is not None:
            ones = 1.0 - of_ones.reshape(diagonal.shape) / (root * diagonal)
            estimates += ones * (shares - (totals - d * truth) / (sizes.sum() - d))
        return np.asarray(estimates)
    q = np.linalg.qr(null_vectors)[0]
    leverage = np.einsum("mk,mk->m", q, q)[:, None]
    leverage = np.where(is_determined(leverage), np.nan, leverage)

    def without_null_part(v: Float) -> Float:
        return np.asarray(v - q @ (q.T @ v))

    least_squares = without_null_part(root * truth) / (root * (1.0 - leverage))
    return np.asarray(least_squares - scale * without_null_part(alpha) / (root * (diagonal - 2.0 * leverage)))


@dataclass(frozen=True, eq=False)
class Discriminant:
    """Class means, and coordinates in which the covariance within classes is the identity."""

    means: Float  # (classes, columns), of scores
    scalings: Float
    """(columns, r), r ≤ classes − 1: the discriminant coordinates of scores s are (s − x̄)ᵀ scalings, the most
    discriminative first, where x̄ is the mean of the class means by prior probability."""

    @classmethod
    def of(cls, estimates: ClassEstimates, priors: Float) -> Discriminant:
        """Coordinates in the order in which they separate the classes, weighted by `priors` (classes,)."""
        means, white, _ = estimates
        between = np.sqrt(priors)[..., None] * ((means - priors[..., None, :] @ means) @ white)
        _, _, turned = np.linalg.svd(between, full_matrices=False)
        return cls(means, white @ turned.mT[..., : means.shape[-2] - 1])

    @classmethod
    def unordered(cls, estimates: ClassEstimates) -> Discriminant:
        """The same but for the order of the coordinates, which takes most of the time, and no function depends on."""
        means, white, _ = estimates
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


class ClassEstimates(NamedTuple):
    """Estimates from scores of rows whose classes are known."""

    means: Float  # (classes, columns)
    white: Float  # B, (columns, columns), with BᵀWB = I, W the covariance within classes
    inside: Float  # (columns, rows), deviations from the mean of the class


def whitened(scores: Float, index: Index, n_classes: int, weights: Float | None) -> ClassEstimates:
    """Estimate class means and the covariance within classes; each class has a row; `weights` count rows."""
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
    return ClassEstimates(means, np.linalg.inv(np.linalg.cholesky(within)).mT, inside)


def left_out_densities(
    scores: Float, index: Index, n_classes: int, weights: Float | None = None, of_all: ClassEstimates | None = None
) -> Float:
    """Fisher's L_k of each row by the class means and the covariance of all other rows, (rows, classes).

    Without row i of class k, whose deviation from its mean is r, weight d, and weights S_k of its class and S of all,
    the mean moves by −d r/(S_k − d), and the covariance becomes (S W − d S_k/(S_k − d) r rᵀ)/(S − d), whose inverse is
    one of rank one more (Friedman: Regularized discriminant analysis, JASA 84, 1989). Values of a row
    are determined up to a constant that all classes share. They are NaN for the only row of a class. `of_all` is the
    result of `whitened` for all rows, if it is available.
    """
    d = np.ones(len(index)) if weights is None else weights
    means, white, inside = whitened(scores, index, n_classes, weights) if of_all is None else of_all
    r, centers, rows = white.mT @ inside, means @ white, np.arange(len(index))
    total, of_class = d.sum(axis=-1)[..., None], (d @ np.eye(n_classes)[index])[..., index]
    rest = np.where(np.bincount(index, minlength=n_classes)[index] < 2, np.nan, of_class - d)
    moved, length = of_class / rest, np.einsum("...cn,...cn->...n", r, r)
    taken = d * moved / total
    gained = taken / np.maximum(1.0 - taken * length, _SINGULAR)
    # The squared distance of a row from the mean of class k, which is D from the mean of its own class, is
    # |r|² + 2e + D², and |r|² + e along r.
    along = centers @ r
    np.subtract((along[..., index, rows] + length)[..., None, :], along, out=along)
    along[..., index, rows] = moved * length
    centers -= centers.mean(axis=-2, keepdims=True)
    apart = centers @ centers.mT
    squares = np.einsum("...kk->...k", apart).copy()
    apart = squares[..., None] + squares[..., None, :] - 2.0 * apart
    values = along * gained[..., None, :]
    values += 2.0
    values *= along
    values += np.take(apart, index, axis=-1)
    # The squared distance from the moved mean of its own class is |moved r|²; −|r|² is shared by the other classes.
    values[..., index, rows] += (moved**2 - 2.0 * moved + 1.0) * length
    values *= (-0.5 * (total - d) / total)[..., None, :]
    return np.asarray(values.mT)


def directions(scores: Float) -> Float:
    """f_k, (rows, classes): the scores, or −f and f for a single column of two classes."""
    return np.concatenate([-scores, scores], axis=-1) if scores.shape[-1] == 1 else scores
