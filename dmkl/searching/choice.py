"""Means of scores over the folds, their intervals, and the rules that choose a point of a grid."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import xarray as xr
from scipy.special import stdtrit

from dmkl.arrays import Array, Float, Index
from dmkl.errors import InputError
from dmkl.estimators.checks import check_choice
from dmkl.searching.folds import TEST, TRAIN, VALIDATION, Fold, check_joint
from dmkl.variables import describe

__all__ = [
    "Choice",
    "Rule",
    "as_choice",
    "best_index",
    "choose",
    "choose_each",
    "class_values",
    "constant_note",
    "grid_points",
    "mean_and_error",
    "mean_and_margin",
    "mean_over_folds",
    "within_one_standard_error",
]

Bool = npt.NDArray[np.bool_]
Rule = Literal["best", "one_standard_error"]
Choice = Literal["fold", "joint"]
"""Whether each fold has its own choice, or all folds share one by their mean scores."""

_ROUNDING = 1e-12
"""Means with a smaller relative difference from the best are ties: the order of a sum changes it by as much."""


def as_choice(choice: Choice | None, folds: Sequence[Fold], samples: Array) -> Choice:
    """The choice as given; by default "fold" if several folds have test rows, and "joint" otherwise.

    Raises
    ------
    InputError
        If it is neither, or a joint choice would be tested on samples that it was made from.
    """
    if choice is None:
        choice = "fold" if len(folds) > 1 and any(len(fold.test) for fold in folds) else "joint"
    check_choice("choice", choice, get_args(Choice))
    if choice == "joint":
        check_joint(folds, samples)
    return choice


# --- the rules -------------------------------------------------------------------------------------------------------


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
        "best": the largest mean. "one_standard_error": the simplest point with mean ≥ max − s, where s is the standard
        error of the best point. Simplest is the largest lam (the most regularized), then the smallest p (the fewest
        kernels), then the first.
    lam, p
        Those parameters of every point, of a shape that broadcasts to that of `mean`; constant if the grid does not
        vary them.

    Raises
    ------
    InputError
        If the rule is unknown, or no point can be chosen.

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
    chooser: Callable[[tuple[int, ...]], str] = str,
) -> Index:
    """Positions of the chosen points of several folds or tasks with separate choices.

    Parameters
    ----------
    mean, standard_error
        As in `choose`, with the dimensions of the choosers behind those of the grid.
    grid
        The values of each parameter, in the order of the dimensions.
    chooser
        The name of a chooser in messages, from its position.

    Returns
    -------
    ndarray
        (parameter, …)

    Raises
    ------
    InputError
        If no point can be chosen; the message names the chooser.
    """
    chosen = np.zeros((len(grid), *mean.shape[len(grid) :]), dtype=np.int64)
    simple = _simplicity(grid)
    for place in np.ndindex(chosen.shape[1:]):
        try:
            chosen[:, *place] = choose(mean[..., *place], standard_error[..., *place], rule, **simple)
        except InputError as error:
            if not place:
                raise
            msg = f"{chooser(place)}: {error}"
            raise InputError(msg) from error
    return chosen


def _simplicity(grid: Mapping[str, npt.ArrayLike]) -> dict[str, Float]:
    """The arguments lam and p of `choose`, for the parameters that the grid has."""
    arguments: dict[str, Float] = {}
    for axis, (name, values) in enumerate(grid.items()):
        if name in ("lam", "p", "C"):
            along = np.asarray(values, dtype=np.float64).reshape(-1, *(1,) * (len(grid) - axis - 1))
            # A smaller C regularizes more.
            arguments |= {"lam": 1.0 / along} if name == "C" else {name: along}
    return arguments


def within_one_standard_error(
    mean: Float, standard_error: Float, *, lam: npt.ArrayLike = 0.0, p: npt.ArrayLike = 0.0
) -> Bool:
    """Which points have a mean within one standard error (that of the best point) of the best mean.

    The parameters are those of `choose`; lam and p decide which of equally good points is the best.
    """
    best = _best(mean, lam, p)
    return _at_least(mean, mean[best] - np.nan_to_num(standard_error[best]))


def _best(mean: Float, lam: npt.ArrayLike, p: npt.ArrayLike) -> tuple[int, ...]:
    eligible = np.isfinite(mean)
    if not eligible.any():
        msg = (
            f"no point of the grid can be chosen: none of the {mean.size} has a mean score. A score is NaN where the "
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


# --- the rules on labeled scores -------------------------------------------------------------------------------------


def grid_points(scores: xr.Dataset, names: Sequence[str]) -> dict[str, Any]:
    """The arguments of `choose`, arrays over the parameters `names`."""
    mean, error = (scores[name].transpose(*names).values for name in ("mean_score", "standard_error"))
    simple = _simplicity({name: scores[name].values for name in names})
    return {"mean": mean, "standard_error": error} | {k: np.broadcast_to(v, mean.shape) for k, v in simple.items()}


def best_index(scores: xr.Dataset, names: Sequence[str], by: Sequence[str], rule: Rule) -> dict[str, xr.DataArray]:
    """Position of the chosen value of each parameter, over the dimensions `by` that have separate choices.

    Parameters
    ----------
    scores
        With mean_score and standard_error over the parameters `names` and the dimensions `by`.

    Raises
    ------
    InputError
        If no point can be chosen; the message names the chooser.
    """
    mean, error = (scores[name].transpose(*names, *by).values for name in ("mean_score", "standard_error"))

    def chooser(place: tuple[int, ...]) -> str:
        return ", ".join(f"{dim} {str(scores[dim].values[k])!r}" for dim, k in zip(by, place, strict=True))

    chosen = choose_each(mean, error, {name: scores[name].values for name in names}, rule, chooser)
    coords = {dim: scores[dim].values for dim in by}
    about = {name: {"long_name": f"position of the chosen value of {name} in the grid", "units": "1"} for name in names}
    return {
        name: describe(xr.DataArray(at, coords, by, name, about[name])) for name, at in zip(names, chosen, strict=True)
    }


def class_values(
    scores: xr.Dataset, index: Mapping[str, int], name: str, values: Sequence[float], rule: Rule
) -> dict[Any, Any]:
    """The value of a parameter that each class chooses by its own scores, the other parameters at `index`.

    Parameters
    ----------
    scores
        With class_score over the parameters, fold and class.
    index
        Position of the value of each parameter that was chosen for all classes.
    name, values
        The parameter and its values; of equally good values the smallest is chosen.

    Returns
    -------
    dict
        By class. A class with undefined scores, since no fold validates it, has the value at `index`.
    """
    of_classes = scores["class_score"].isel({other: at for other, at in index.items() if other != name})
    of_classes = of_classes if "fold" in of_classes.dims else of_classes.expand_dims("fold")
    mean, error = mean_over_folds(of_classes)
    chosen = {}
    for k, label in enumerate(scores["class"].values.tolist()):
        of_class = {"class": k}
        place = index[name]
        if mean.isel(of_class).notnull().any():
            (place,) = choose(mean.isel(of_class).values, error.isel(of_class).values, rule, p=values)
        chosen[label] = values[place]
    return chosen


# --- means over folds ------------------------------------------------------------------------------------------------


def mean_and_error(score: Float) -> tuple[Float, Float]:
    """Mean over the folds, the last dimension, and its standard error; see `mean_over_folds`."""
    defined = ~np.isnan(score)
    n = defined.sum(axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(defined, score, 0.0).sum(axis=-1) / n
        squares = np.where(defined, (score - mean[..., None]) ** 2, 0.0).sum(axis=-1)
        return mean, np.sqrt(squares / np.where(n > 1, n * (n - 1), np.nan))


def mean_over_folds(score: xr.DataArray) -> tuple[xr.DataArray, xr.DataArray]:
    """Mean over the folds and its standard error, s/√n with the sample standard deviation s; NaN folds are skipped.

    The standard error of a single fold is NaN.
    """
    mean, error = xr.apply_ufunc(mean_and_error, score, input_core_dims=[["fold"]], output_core_dims=[[], []])
    return mean, error


def mean_and_margin(score: xr.DataArray, scores: xr.Dataset, rows: str) -> tuple[xr.DataArray, xr.DataArray]:
    """Mean over the folds and half the width of its 95 % confidence interval; NaN folds are skipped.

    The half width is t · s · √(1/n + n_test/n_train) with the standard deviation s over n folds, and t the 97.5 percent
    point of Student's distribution with n − 1 degrees of freedom. The second term under the root corrects for folds
    that share training rows. In simulations, intervals of 3 to 10 folds covered the mean over data sets in 92 to 98 of
    100 cases, without the second term in 88 to 95, and ±1.96 s/√n in 71 to 90.

    Parameters
    ----------
    score
        Scores, or differences of scores, over "fold" and other dimensions.
    scores
        The result that they are from. Its variable "part" gives the numbers of training and held-out rows. Results of
        older versions lack it: folds are then assumed to be a partition, of which n_test/n_train is 1/(n − 1).
    rows
        Which rows were scored, "test" or "validation".

    Returns
    -------
    tuple of DataArray
        The half width is NaN for a single fold.

    Notes
    -----
    Nadeau, Bengio: Inference for the generalization error. Machine Learning 52 (2003), Section 3.
    """
    mean, error = mean_over_folds(score)
    n = score.notnull().sum("fold")
    if "part" in scores:
        part = scores["part"]
        held_out = (part == (TEST if rows == "test" else VALIDATION)).sum("sample")
        ratio = float((held_out / (part == TRAIN).sum("sample")).mean())
    else:
        ratio = 1.0 / max(scores.sizes["fold"] - 1, 1)
    return mean, error * stdtrit(np.maximum(n - 1, 1), 0.975) * np.sqrt(1.0 + n * ratio)


def constant_note(score: xr.DataArray, scores: xr.Dataset, rows: str) -> list[str]:
    """A sentence if held-out scores are not above that of a constant decision; see `mean_and_margin`.

    There is none for results of older versions, callable scorers, and a single fold, of which this is unknown.
    """
    if "constant_score" not in scores:
        return []
    above = score - scores["constant_score"]
    mean, margin = map(float, mean_and_margin(above.mean([dim for dim in above.dims if dim != "fold"]), scores, rows))
    if not np.isfinite(margin) or mean > margin:
        return []
    constant = float(scores["constant_score"].mean())
    return [
        f"That is not clearly above {constant:.4g}, the score of one decision for all rows: weights may be those of "
        "noise, which dmkl permute (dmkl.permutation_test) tests"
    ]
