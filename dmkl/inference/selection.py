"""Which kernels resamples select, and how many that are seldom selected are expected among those often selected."""

from __future__ import annotations

import math
import numbers
from typing import Any

import numpy as np
import numpy.typing as npt

from dmkl.arrays import Float, plain_repr
from dmkl.errors import InputError

__all__ = ["LEAST_SHARE", "agreement", "check_threshold", "error_bound", "select", "unimodal_error_bound"]

LEAST_SHARE = 0.01
"""Of the largest weight, from which a kernel counts as selected.

Weights that a sparse norm makes zero come out of the solvers as zeros, or as what the gap that is proven leaves open.
"""


def select(weights: Float, n_selected: int | None = None) -> npt.NDArray[np.bool_]:
    """Whether each resample selects each kernel.

    Parameters
    ----------
    weights
        (resamples, n), not negative.
    n_selected
        The number q of kernels that a resample selects: those of the largest weights, fewer where weights are zero or
        equal. None: those with more than `LEAST_SHARE` of the largest weight of the resample.

    Returns
    -------
    ndarray
        Booleans, (resamples, n).
    """
    if n_selected is None:
        return np.asarray(weights > LEAST_SHARE * weights.max(axis=1, keepdims=True))
    n = weights.shape[1]
    if n_selected >= n:
        return np.asarray(weights > 0)
    first_left = np.partition(weights, n - 1 - n_selected, axis=1)[:, n - 1 - n_selected]
    return np.asarray(weights > first_left[:, None])


def check_threshold(threshold: Any) -> None:
    """Refuse a share of the resamples that no bound is known for.

    Raises
    ------
    InputError
        If it is not in (1/2, 1].
    """
    if isinstance(threshold, bool) or not isinstance(threshold, numbers.Real) or not 0.5 < float(threshold) <= 1.0:
        msg = (
            "threshold, the share of the resamples that has to select a kernel, must be above 0.5 and at most 1, got "
            f"{plain_repr(threshold)}; 0.6 to 0.9 is usual"
        )
        raise InputError(msg)


def error_bound(q: float, n: int, threshold: float) -> float:
    """E|Ŝ_π ∩ L| ≤ q²/((2π − 1)n).

    Ŝ_π are the kernels that the share π of the half-samples selects; L those that one half-sample selects with
    probability q/n or less, where q = E|Ŝ| is the number that it selects of n kernels. Nothing is assumed but that the
    samples are independent. Where the kernels of noise are selected with equal probabilities, and not more often than
    at random, L holds all of them, and this bounds the expected number of false selections.

    Notes
    -----
    Meinshausen, Bühlmann: Stability selection. Journal of the Royal Statistical Society B 72 (2010), Theorem 1. Shah,
    Samworth: Variable selection with error control: another look at stability selection. Journal of the Royal
    Statistical Society B 75 (2013), Theorem 1 with θ = q/n, for pairs of halves that share no sample.
    """
    return q**2 / ((2.0 * threshold - 1.0) * n)


def unimodal_error_bound(q: float, n: int, threshold: float, n_pairs: int) -> float:
    """E|Ŝ_π ∩ L| ≤ C(π, B) q²/n for B pairs of halves, sharper than `error_bound`.

    C = 1/(2(2π − 1 − 1/2B)) up to π = 3/4, and 4(1 − π + 1/2B)/(1 + 1/B) beyond. It assumes that, for each kernel of L,
    the share of the pairs of which both halves select it has a unimodal distribution.

    Returns
    -------
    float
        NaN where the theorem says nothing: for q/n above 1/√3, and for π at or below
        1/2 + min(θ², 1/2B + ¾θ²) with θ = q/n.

    Notes
    -----
    Shah, Samworth (2013), Theorem 2.
    """
    theta, grain = q / n, 1.0 / (2.0 * n_pairs)
    if theta > 1.0 / math.sqrt(3.0) or threshold <= 0.5 + min(theta**2, grain + 0.75 * theta**2):
        return math.nan
    if threshold <= 0.75:
        factor = 1.0 / (2.0 * (2.0 * threshold - 1.0 - grain))
    else:
        factor = 4.0 * (1.0 - threshold + grain) / (1.0 + 2.0 * grain)
    return factor * q**2 / n


def agreement(weights: Float) -> float:
    """Kendall's coefficient of concordance W of the order of the kernels, corrected for ties.

    1 where all resamples order the kernels alike, near 1/B where B of them have nothing in common. Friedman's statistic
    is B(n − 1)W. Weights up to `LEAST_SHARE` of the largest of the resample are ties.

    Parameters
    ----------
    weights
        (B, n)

    Returns
    -------
    float
        NaN for fewer than three kernels, and where no resample orders them.
    """
    from scipy.stats import friedmanchisquare

    n_resamples, n = weights.shape
    weights = np.where(select(weights), weights, 0.0)
    if n < 3 or not np.ptp(weights, axis=1).any():
        return math.nan
    statistic = float(np.asarray(friedmanchisquare(*weights.T).statistic))
    return statistic / float(n_resamples * (n - 1))
