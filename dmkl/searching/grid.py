"""Grids of parameters, means of scores over the folds, and the rules that choose a point of a grid."""

from __future__ import annotations

import itertools
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import signature
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import xarray as xr
from scipy.special import stdtrit

from dmkl.arrays import Array, Float, Index, check_choice
from dmkl.description import number
from dmkl.errors import InputError, refuse
from dmkl.kernelset import KernelSet
from dmkl.numerics.fisher import as_exponent
from dmkl.numerics.steps import NORMALIZATIONS, STEPS, as_steps
from dmkl.searching.folds import TEST, TRAIN, VALIDATION, Fold, sample_numbers
from dmkl.searching.texts import p_text
from dmkl.variables import describe

P_VALUES = (1.0, *(1 + 2.0**-k for k in range(6, 0, -1)), 2.0, 3.0, 4.0, 8.0, np.inf)
"""The twelve norms of the papers, with ∞ for their 10⁶ (JMLR Section 3.3, CVPR Section 4.1)."""

LAM_TRACE = (1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0)
"""λ for kernels of unit trace (CVPR Section 4.1); on few samples those that the stored precision resolves.

A small search without the smallest is faster, and worse if labels have no noise (`pipelines/small_ridges.py`).
"""

LAM_DENSE = (*LAM_TRACE[:4], *(float(f"{10 ** (k / 3):.3g}") for k in range(-12, 1)), 10.0)
"""The same with two more in each decade from 1e-4 to 1, where noisy targets choose. Of kernels that are decomposed once
for all λ a value takes little time, and at one in each decade the mean R² of noisy targets is lower by 0.01."""

LAM_COSINE = tuple(4.0**k for k in range(-5, 5))
"""λ for kernels with ones on the diagonal, 4⁻⁵ to 4⁴ (JMLR Section 3.3)."""

CHAINS = (("center", "trace"), ("cosine", "center"))
"""The chains of steps in the papers: the default (CVPR Section 4.1), and JMLR Section 3.3."""

MOST_VARIATION = 0.1
"""Up to this coefficient of variation of a kernel's diagonal, the two chains hardly differ except by a factor."""

N_GROUPS = (1, 2, 3, 4, 5)
"""Numbers of groups in each class (GS-MKL Section 5.3)."""

C_VALUES = tuple(2.0**k for k in range(-2, 8))
"""C of the support vector machines of the papers, 2⁻² to 2⁷ (JMLR Section 3.3)."""


def as_grid(grid: Mapping[str, Any] | None, estimator: Any) -> dict[str, tuple[Any, ...]]:
    """Check a grid of parameters, or make that of the papers; tuples of values in the order of the results.

    A single value means a list of one, and None the default values of p, lam or C. The default λ are `LAM_COSINE` if
    the steps leave k(x, x) near one ("cosine" or "multiplicative" is the last step that normalizes), `LAM_TRACE`
    otherwise (`LAM_DENSE` for ``weights="shared"``), and with several chains of steps those of each. p from 1e6 on is
    ∞.

    JMLR: Yan, Kittler, Mikolajczyk, Tahir: Non-sparse multiple kernel Fisher discriminant analysis, JMLR 13 (2012).
    CVPR: Yan, Mikolajczyk, Barnard, Cai, Kittler: ℓp norm multiple kernel Fisher discriminant analysis for object and
    image categorisation, CVPR 2010. GS-MKL: Yang, Li, Tian, Duan, Gao: Group-sensitive multiple kernel learning for
    object categorization, ICCV 2009.
    """
    parameters, title = estimator.get_params(), type(estimator).__name__
    chosen: Any = grid
    steps = grid.get("steps") if isinstance(grid, Mapping) else None
    chains = [parameters.get("steps")] if steps is None else _values("steps", steps, parameters, title)
    lam = tuple(sorted({lam for chain in chains for lam in lams_of(chain, estimator)}))
    defaults = {"p": P_VALUES, "lam": lam, "C": C_VALUES, **estimator.traits.grid}
    if grid is None:
        papers = [*defaults.items(), ("n_groups", N_GROUPS)]
        # The hinge loss has C, the square loss λ; candidates of weights have no norm, given groups no number.
        idle = (
            {"hinge": "lam", "square": "C"}.get(str(parameters.get("loss"))),
            "p" if getattr(estimator, "_decomposes", False) else None,
            "n_groups" if isinstance(parameters.get("grouping"), Mapping) else None,
        )
        chosen = {name: values for name, values in papers if name in parameters and name not in idle}
        chosen = (
            chosen
            or estimator.traits.grid
            or {name: (parameters[name],) for name in [*signature(type(estimator)).parameters][:1]}
        )
    if not isinstance(chosen, Mapping) or not chosen:
        refuse(f"grid must map parameters to their values, as {{'p': [1, 2], 'lam': [0.1, 1]}}, got {grid!r}")
    return {
        name: _values(name, defaults.get(name) if values is None else values, parameters, title)
        for name, values in {**estimator._own_grid(), **chosen}.items()
    }


def second_chain(estimator: Any) -> tuple[tuple[Any, ...], ...]:
    """The chain of steps of an estimator and the papers' other one; nothing if its steps are not the default.

    Learners whose default steps do not center, or differ from those of the papers in more than a scale, have one chain.
    """
    chain, declared = as_steps(getattr(estimator, "steps", ())), signature(type(estimator)).parameters.get("steps")
    default = declared is not None and chain == as_steps(declared.default)
    return (chain, CHAINS[1]) if default and chain in (CHAINS[0], ("center", "multiplicative")) else ()


def with_chains(
    grid: Mapping[str, Any] | None, estimator: Any, K: KernelSet, *, several: bool
) -> tuple[Mapping[str, Any] | None, str, str]:
    """The grid with both chains of steps of the papers where their choice matters, a note that says so, and a hint.

    Both are tried if no steps were chosen, lam or C is searched by its default values, and the diagonal of a kernel
    varies by more than `MOST_VARIATION`. If values of lam or C were given, the hint is a sentence that recommends it;
    otherwise it is empty. `several` tasks or targets have one chain in common.
    """
    values, chains = as_grid(grid, estimator), second_chain(estimator)
    scales = [name for name in ("lam", "lams", "C") if name in values]
    if "steps" in values or several or not scales or not chains:
        return grid, "", ""
    first, second = ("+".join(chain) for chain in chains)
    variation, tried = diagonal_variation(K), f"--grid steps={first},{second}"
    if grid is not None and any(grid.get(name) is not None for name in scales):
        names = [name for name in ("p", "lam", "C") if name in values]
        asked: dict[str, Any] = {**dict.fromkeys(names), "steps": [first, second]}
        hint = (
            f"Samples differ in k(x, x), by a coefficient of variation of up to {variation:.2g}: the steps {second} "
            f"may do better; compare by grid={asked}, or {tried}"
        )
        return grid, "", hint if variation > MOST_VARIATION and scales != ["lams"] else ""
    if variation <= MOST_VARIATION:
        return grid, f"one chain of steps is tried, {first}; to compare it with another: {tried}", ""
    of_chains = ", each with its own values of lam" if "lam" in scales and lams_of(first) != lams_of(second) else ""
    note = (
        f"the samples differ in k(x, x), by a coefficient of variation of up to {variation:.2g}, so that the steps "
        f"{first} and {second} are both tried{of_chains}: twice as many fits, in the same passes. "
        f"--steps {first}, or steps in the grid, tries that chain only"
    )
    return {**values, **dict.fromkeys(scales), "steps": list(chains)}, note, ""


def lams_of(steps: Any, estimator: Any = None) -> tuple[float, ...]:
    """The default values of λ for kernels after these steps."""
    scales = [step for step in as_steps(steps) if step in NORMALIZATIONS]
    of_trace = LAM_DENSE if getattr(estimator, "_decomposes", False) else LAM_TRACE
    return LAM_COSINE if scales and scales[-1] != "trace" else of_trace


def _values(name: str, given: Any, parameters: Mapping[str, Any], title: str) -> tuple[Any, ...]:
    if name not in parameters:
        refuse(f"{name!r} is no parameter of {title}; its parameters are {', '.join(sorted(parameters))}")
    several = isinstance(given, Iterable) and not isinstance(given, str) and getattr(given, "ndim", 1) > 0
    if several:
        given = list(given)
        if name == "steps" and given and all(isinstance(step, str) and step in STEPS for step in given):
            refuse(
                f"steps={given!r} in a grid may be one chain of steps or several of one step each; write "
                f"{[tuple(given)]!r} or {[(step,) for step in given]!r}"
            )
    values = tuple(_value(name, value) for value in (given if several else [given]))
    if not values:
        refuse(f"the grid has no values for {name}; give one at least, or leave {name} out")
    for position, value in enumerate(values):
        if value in values[:position]:
            note = " (from 1e6 on it counts as infinite)" if name == "p" else ""
            refuse(f"the grid has {value!r} twice among the values of {name}{note}; leave one out")
    return values


def _value(name: str, value: Any) -> Any:
    """The value as plain Python; values of steps, p, lam and C are checked."""
    if isinstance(value, np.generic | np.ndarray) and np.ndim(value) == 0:
        value = value.item()
    if name == "steps":
        return as_steps(value)
    if name not in ("p", "lam", "C"):
        return value
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        refuse(f"the values of {name} must be numbers, got {value!r}")
    real = float(value)
    if name == "p":
        return as_exponent(real)
    if not (np.isfinite(real) and real > 0):
        refuse(f"the values of {name} must be positive and finite, got {value!r}")
    return real


def diagonal_variation(K: KernelSet) -> float:
    """Largest coefficient of variation of a diagonal k(x, x); 0 if they are unknown, or the set has steps already."""
    diagonal = K.view.source.diagonal(K.view.kernels)
    if diagonal is None or K.view.steps:
        return 0.0
    shown = diagonal[:, K.view.rows]
    size = np.abs(shown).mean(axis=1)
    return float((shown.std(axis=1) / np.where(size > 0, size, 1.0)).max())


def shape(grid: Mapping[str, tuple[Any, ...]]) -> tuple[int, ...]:
    """The number of values of each parameter."""
    return tuple(len(values) for values in grid.values())


def points(grid: Mapping[str, tuple[Any, ...]]) -> list[dict[str, Any]]:
    """All combinations in C order: the last parameter varies fastest, as in an array of `shape`."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


Bool = npt.NDArray[np.bool_]
Rule = Literal["best", "one_standard_error"]
Choice = Literal["fold", "joint"]
"""Whether each fold has its own choice, or all folds share one by their mean scores."""

_ROUNDING = 1e-12
"""Means with a smaller relative difference from the best are ties: the order of a sum changes it by as much."""


def as_choice(choice: Choice | None, folds: Sequence[Fold], samples: Array) -> Choice:
    """The choice as given; by default "fold" if several folds have test rows, and "joint" otherwise.

    A joint choice is refused if a fold tests on rows that another trains or validates on.
    """
    if choice is None:
        choice = "fold" if len(folds) > 1 and any(len(fold.test) for fold in folds) else "joint"
    check_choice("choice", choice, get_args(Choice))
    testing = [fold for fold in folds if len(fold.test)]
    if choice == "fold" or not testing:
        return choice
    numbers = sample_numbers(samples)
    for fold, other in itertools.product(folds, testing):
        if n_shared := len(np.intersect1d(numbers[fold.seen], numbers[other.test])):
            refuse(
                f"{n_shared} training and validation rows of {fold.title} are test rows of {other.title}: a joint "
                "choice would be tested on rows that it was made from; take folds without test rows, or a choice for "
                'each fold, choice="fold" of dmkl.search'
            )
    return choice


def joint_choices(choice: Choice, n_folds: int) -> list[slice]:
    """The folds that choose a point together: all of them, or each alone."""
    return [slice(n_folds)] if choice == "joint" else [slice(fold, fold + 1) for fold in range(n_folds)]


def choose(
    mean: Float, standard_error: Float, rule: Rule = "best", *, lam: npt.ArrayLike = 0.0, p: npt.ArrayLike = 0.0
) -> tuple[int, ...]:
    """Position of the chosen point of a grid; InputError if no point can be chosen.

    The rule "best" chooses the largest mean score over the folds; among equal ones the median lam, the middle of a
    plateau, then the smallest p, then the first. "one_standard_error" chooses the simplest point with
    mean ≥ max − s, where s is the standard error of the best point. Simplest is the largest lam (the most regularized),
    then the smallest p (the fewest kernels), then the first. `mean` and `standard_error` have one shape, to which lam
    and p of every point broadcast. Means that are not finite are never chosen, and a standard error of NaN (a single
    fold) counts as zero.

    Breiman, Friedman, Olshen, Stone: Classification and regression trees, 1984, Section 3.4.3; Hastie, Tibshirani,
    Friedman: The elements of statistical learning, 2nd ed., 2009, Section 7.10.
    """
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
    """Positions of the points that several folds or tasks choose, (parameter, …), as `choose` does for each.

    Their dimensions follow those of the grid; `chooser` names one, from its position, if it can choose no point.
    """
    chosen = np.zeros((len(grid), *mean.shape[len(grid) :]), dtype=np.int64)
    simple = _simplicity(grid)
    for place in np.ndindex(chosen.shape[1:]):
        try:
            chosen[:, *place] = choose(mean[..., *place], standard_error[..., *place], rule, **simple)
        except InputError as error:
            if not place:
                raise
            refuse(f"{chooser(place)}: {error}", error)
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
    """Which points have a mean within one standard error of the best; lam and p decide among equals as in `choose`."""
    best = _best(mean, lam, p)
    return _at_least(mean, mean[best] - np.nan_to_num(standard_error[best]))


def _at_least(mean: Float, threshold: float) -> Bool:
    return np.asarray(np.isfinite(mean) & (mean >= threshold - _ROUNDING * abs(threshold)))


def _best(mean: Float, lam: npt.ArrayLike, p: npt.ArrayLike) -> tuple[int, ...]:
    eligible = np.isfinite(mean)
    if not eligible.any():
        refuse(
            f"no point of the grid can be chosen: none of the {mean.size} has a mean score. A score is NaN where the "
            "validation rows leave it undefined: take folds with rows of every class, or another scoring"
        )
    candidates = _at_least(mean, mean[eligible].max())
    tied = np.unique(np.broadcast_to(lam, mean.shape)[candidates])
    return _simplest(candidates & (lam == tied[len(tied) // 2]), lam, p)


def _simplest(candidates: Bool, lam: npt.ArrayLike, p: npt.ArrayLike) -> tuple[int, ...]:
    lams, ps = (np.broadcast_to(values, candidates.shape)[candidates] for values in (lam, p))
    first = np.lexsort((ps, -lams))[0]  # the last key counts first, and equals keep their order
    return tuple(int(place[first]) for place in np.nonzero(candidates))


def grid_points(scores: xr.Dataset, names: Sequence[str]) -> dict[str, Any]:
    """The arguments of `choose`, arrays over the parameters `names`."""
    mean, error = (scores[name].transpose(*names).values for name in ("mean_score", "standard_error"))
    simple = _simplicity({name: scores[name].values for name in names})
    return {"mean": mean, "standard_error": error} | {k: np.broadcast_to(v, mean.shape) for k, v in simple.items()}


def best_index(scores: xr.Dataset, names: Sequence[str], by: Sequence[str], rule: Rule) -> dict[str, xr.DataArray]:
    """Position of the chosen value of each of the parameters `names`, over the dimensions `by` of separate choices.

    Points with approximate scores are chosen only where a choice has no others.
    """
    mean, error = (scores[name].transpose(*names, *by).values for name in ("mean_score", "standard_error"))
    if "approximate" in scores:
        approximate = scores["approximate"] if "fold" in by else scores["approximate"].max("fold")
        exact = np.isfinite(mean) & ~(approximate.transpose(*names, *by).values > 0)
        mean = np.where(exact | ~exact.any(axis=tuple(range(len(names)))), mean, np.nan)

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

    `scores` has class_score over the parameters, fold and class. Of equally good `values` the smallest is chosen. A
    class with undefined scores, since no fold validates it, has the value at `index`, which was chosen for all classes.
    """
    of_classes = scores["class_score"].isel({other: at for other, at in index.items() if other != name})
    of_classes = of_classes if "fold" in of_classes.dims else of_classes.expand_dims("fold")
    means, errors = (of.transpose("class", name).values for of in mean_over_folds(of_classes))
    chosen = {}
    for label, mean, error in zip(scores["class"].values.tolist(), means, errors, strict=True):
        undefined = np.isnan(mean).all()
        (place,) = (index[name],) if undefined else choose(mean, error, rule, p=values)
        chosen[label] = values[place]
    return chosen


def mean_and_error(score: Float) -> tuple[Float, Float]:
    """Mean over the folds, the last dimension, and its standard error; see `mean_over_folds`."""
    defined = ~np.isnan(score)
    n = defined.sum(axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(defined, score, 0.0).sum(axis=-1) / n
        squares = np.where(defined, (score - mean[..., None]) ** 2, 0.0).sum(axis=-1)
        return mean, np.sqrt(squares / np.where(n > 1, n * (n - 1), np.nan))


def mean_over_folds(score: xr.DataArray) -> tuple[xr.DataArray, xr.DataArray]:
    """Mean over the folds and its standard error s/√n, NaN for a single fold; NaN folds are skipped."""
    mean, error = xr.apply_ufunc(mean_and_error, score, input_core_dims=[["fold"]], output_core_dims=[[], []])
    return mean, error


def mean_and_margin(score: xr.DataArray, scores: xr.Dataset, rows: str) -> tuple[xr.DataArray, xr.DataArray]:
    """Mean over the folds and half the width of its 95 % confidence interval; NaN folds are skipped.

    The half width is t · s · √(1/n + n_test/n_train) with the standard deviation s over n folds, and t the 97.5 percent
    point of Student's distribution with n − 1 degrees of freedom. The second term under the root corrects for folds
    that share training rows. In simulations, intervals of 3 to 10 folds covered the mean over data sets in 92 to 98 of
    100 cases, without the second term in 88 to 95, and ±1.96 s/√n in 71 to 90. It is NaN for fewer than three folds,
    which say next to nothing about s. Folds with other training rows give other models: the interval is about the
    procedure, and of a difference about two procedures, not about two models on these rows. Where it leaves the range
    of the score (`scoring.limits`), tables and figures cut it off there: scores are not transformed, since the
    correction is of variances of the scores themselves.

    `score` has scores, or differences of scores, of the `rows` "test" or "validation". The variable "part" of `scores`,
    the result that they are from, gives the numbers of training and held-out rows. Results of older versions lack it:
    folds are then assumed to be a partition, of which n_test/n_train is 1/(n − 1).

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
    return mean, error.where(n > 2) * stdtrit(np.maximum(n - 1, 1), 0.975) * np.sqrt(1.0 + n * ratio)


def chance_notes(score: xr.DataArray, scores: xr.Dataset, rows: str) -> list[str]:
    """A sentence about the p-value of held-out scores, or `constant_note` and why there is none."""
    if "chance_p_value" not in scores or not np.isfinite(scores["chance_p_value"]).any():
        too_slow = "chance_permutations" in scores and not scores["chance_permutations"].any()
        return [*constant_note(score, scores, rows), *([_TOO_SLOW] if too_slow else [])]
    p, mean = scores["chance_p_value"], float(scores["chance_score"].mean())
    permuted = f"Permuted labels of the rows held out score {number(mean)}"
    choice = "" if rows == "test" else ", the choice of the point included"
    noise = "" if p.min() <= 0.05 else "; weights may be those of noise, which dmkl permute tests"
    counts = "covariates" in scores.attrs and ("residual_p_value" not in scores or "residual_score" in scores)
    covariates = "; what labels owe to the covariates counts too" if counts else ""
    lines = [f"{permuted}: {p_text(np.ravel(p))}{choice}{covariates}{noise}"]
    labels = scores.get("held_out_true_label")
    if float(score.mean()) < mean and "held_out_predicted_label" in scores and labels is not None and labels.ndim == 1:
        # Whether no fold holds out two classes while all together do, as leave-one-out does.
        index, folds = np.unique(labels.values, return_inverse=True)[1], scores["held_out_fold"].values
        if index.any() and len(np.unique(np.stack([folds, index]), axis=1).T) == len(np.unique(folds)):
            lines.append(_ONE_CLASS)
    return lines


_TOO_SLOW = (
    "No p-value under permuted labels: scores of every point and permutation would take too long; let a scorer of dmkl "
    "decide, such as accuracy or roc_auc, or search fewer points"
)
_ONE_CLASS = (
    "Each fold holds out rows of one class: the priors of its training rows favour the other classes, by which scores "
    "fall below chance; take stratified folds, or priors='uniform' where the learner has priors"
)


def constant_note(score: xr.DataArray, scores: xr.Dataset, rows: str) -> list[str]:
    """A sentence if held-out scores are known not to be clearly above that of a constant decision."""
    if "constant_score" not in scores:
        return []
    above = score - scores["constant_score"]
    mean, margin = map(float, mean_and_margin(above.mean([dim for dim in above.dims if dim != "fold"]), scores, rows))
    if not np.isfinite(margin) or mean > margin:
        return []
    constant = number(float(scores["constant_score"].mean()))
    return [
        f"That is not clearly above {constant}, the score of one decision for all rows: weights may be those of "
        "noise, which dmkl permute (dmkl.permutation_test) tests"
    ]
