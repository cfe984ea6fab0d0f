"""Which point of a grid a search chooses, and who chooses: rules on arrays of mean scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from dmkl.arrays import Array, Float, Index
from dmkl.errors import InputError
from dmkl.estimators.checks import check_choice
from dmkl.searching.folds import Fold, check_joint

__all__ = [
    "Choice",
    "Rule",
    "as_choice",
    "choose",
    "choose_each",
    "mean_and_error",
    "simplicity",
    "within_one_standard_error",
]

Bool = npt.NDArray[np.bool_]
Rule = Literal["best", "one_standard_error"]
Choice = Literal["fold", "joint"]
"""Whether each fold chooses for itself, or all folds choose one point by their mean scores."""

_ROUNDING = 1e-12
"""Means that differ by less, relative to the best, tie: the same fold scores in another order sum to as much."""


def as_choice(choice: Choice | None, folds: Sequence[Fold], samples: Array) -> Choice:
    """Who chooses: as asked, or each fold for itself where several have test rows, and all together otherwise.

    Raises
    ------
    InputError
        If it is none of these, or one choice for all folds would be tested on samples that it has seen.
    """
    if choice is None:
        choice = "fold" if len(folds) > 1 and any(len(fold.test) for fold in folds) else "joint"
    check_choice("choice", choice, get_args(Choice))
    if choice == "joint":
        check_joint(folds, samples)
    return choice


def choose(
    mean: Float, standard_error: Float, rule: Rule = "best", *, lam: npt.ArrayLike = 0.0, p: npt.ArrayLike = 0.0
) -> tuple[int, ...]:
    """Position of the chosen point of a grid.

    Parameters
    ----------
    mean
        Mean score of every point over the folds, larger is better. Points that are not finite are never chosen.
    standard_error
        Its standard error, of the same shape; NaN (a single fold) counts as zero.
    rule
        "best": the largest mean. "one_standard_error": any mean ≥ max − s will do, s being the standard error of the
        best point. The simplest of them is chosen: the largest lam (the most regularised), then the smallest p (the
        fewest kernels), then the first.
    lam, p
        Those parameters of every point, of a shape that broadcasts to that of `mean`; equal for all where the grid
        does not vary them.

    Raises
    ------
    InputError
        If the rule is none of these, or no point can be chosen.

    Notes
    -----
    Breiman, Friedman, Olshen, Stone: Classification and regression trees, 1984, Section 3.4.3; Hastie, Tibshirani,
    Friedman: The elements of statistical learning, 2nd ed., 2009, Section 7.10.
    """
    check_choice("rule", rule, get_args(Rule))
    if rule == "best":
        return _best(mean, lam, p)
    return _simplest(within_one_standard_error(mean, standard_error, lam=lam, p=p), lam, p)


def choose_each(
    mean: Float,
    standard_error: Float,
    grid: Mapping[str, npt.ArrayLike],
    rule: Rule = "best",
    whose: Callable[[tuple[int, ...]], str] = str,
) -> Index:
    """Position of the chosen point for each of several that choose for themselves.

    Parameters
    ----------
    mean, standard_error
        As in `choose`, with dimensions behind those of the grid along which each chooses.
    grid
        The values of each parameter, in the order of the dimensions.
    whose
        What a place along the others is called in messages.

    Returns
    -------
    ndarray
        (parameter, …)

    Raises
    ------
    InputError
        If no point can be chosen, naming for whom.
    """
    found = np.zeros((len(grid), *mean.shape[len(grid) :]), dtype=np.int64)
    simple = simplicity(grid)
    for place in np.ndindex(found.shape[1:]):
        try:
            found[:, *place] = choose(mean[..., *place], standard_error[..., *place], rule, **simple)
        except InputError as error:
            if not place:
                raise
            msg = f"{whose(place)}: {error}"
            raise InputError(msg) from error
    return found


def simplicity(grid: Mapping[str, npt.ArrayLike]) -> dict[str, Float]:
    """What tells the simpler of equally good points: lam and p of `choose`, where the grid has such."""
    found: dict[str, Float] = {}
    for axis, (name, values) in enumerate(grid.items()):
        if name in ("lam", "p", "C"):
            along = np.asarray(values, dtype=np.float64).reshape(-1, *(1,) * (len(grid) - axis - 1))
            # The smaller C, the more regularized.
            found |= {"lam": 1.0 / along} if name == "C" else {name: along}
    return found


def mean_and_error(score: Float) -> tuple[Float, Float]:
    """Mean over the folds, the last dimension, and its standard error; see `dmkl.searching.means.mean_and_error`."""
    known = ~np.isnan(score)
    n = known.sum(axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(known, score, 0.0).sum(axis=-1) / n
        squares = np.where(known, (score - mean[..., None]) ** 2, 0.0).sum(axis=-1)
        return mean, np.sqrt(squares / np.where(n > 1, n * (n - 1), np.nan))


def within_one_standard_error(
    mean: Float, standard_error: Float, *, lam: npt.ArrayLike = 0.0, p: npt.ArrayLike = 0.0
) -> Bool:
    """Which points have a mean within one standard error, that of the best point, of the best mean.

    The parameters are those of `choose`; lam and p tell which of equally good points is the best.
    """
    found = _best(mean, lam, p)
    return _at_least(mean, mean[found] - np.nan_to_num(standard_error[found]))


def _best(mean: Float, lam: npt.ArrayLike, p: npt.ArrayLike) -> tuple[int, ...]:
    eligible = np.isfinite(mean)
    if not eligible.any():
        msg = (
            f"no point of the grid can be chosen: none of the {mean.size} has a mean score. A measure is NaN where the "
            "validation rows leave it undefined: take folds with rows of every class, or another scoring"
        )
        raise InputError(msg)
    return _simplest(_at_least(mean, mean[eligible].max()), lam, p)


def _at_least(mean: Float, threshold: float) -> Bool:
    chosen: Bool = np.isfinite(mean) & (mean >= threshold - _ROUNDING * abs(threshold))
    return chosen


def _simplest(candidates: Bool, lam: npt.ArrayLike, p: npt.ArrayLike) -> tuple[int, ...]:
    lams, ps = (np.broadcast_to(values, candidates.shape)[candidates] for values in (lam, p))
    first = np.lexsort((ps, -lams))[0]  # the last key counts first, and equals keep their order
    return tuple(int(place[first]) for place in np.nonzero(candidates))
