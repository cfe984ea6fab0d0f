"""`dmkl.stability`: kernel weights over resamples of the rows, and how often each kernel is selected."""

from __future__ import annotations

import json
import math
import numbers
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr
from sklearn.model_selection import GroupKFold, KFold, StratifiedGroupKFold, StratifiedKFold

from dmkl.arrays import Array, Float, Index, check_choice, plain_repr
from dmkl.description import MOST_ROWS, Column, Description, Figure, Key, Table, count, listed, number, short_names
from dmkl.errors import InputError, refuse
from dmkl.inference import figures
from dmkl.kernelset import Kernels
from dmkl.learners.checks import check_count, check_is_learner
from dmkl.learners.engine import run
from dmkl.learners.learner import KernelLearner
from dmkl.learners.plan import Answers
from dmkl.passes.blas import one_blas_thread
from dmkl.searching.fits import STATUS_FLAGS, Arguments, Part, Question, make_question
from dmkl.searching.folds import Fold, make_folds
from dmkl.searching.texts import cost_and_proof
from dmkl.store.saved import Result, task_dim

How = Literal["half", "bootstrap", "folds"]
N_RESAMPLES: dict[How, int] = {"half": 100, "bootstrap": 100, "folds": 10}
"""Default numbers of resamples."""
TITLES = {"half": "half-samples", "bootstrap": "bootstrap samples", "folds": "samples without a fold"}
_MAX_DRAWS = 100  # Draws of one resample before it counts as impossible to keep all classes on both sides.
LEAST_SHARE = 0.01
"""A kernel counts as selected with more than this share of the largest weight.

Weights that are zero under a sparse norm come out of the solvers as zeros, or as small as the proven gap allows.
"""
_MOST_NAMES = 10  # Most names that a sentence lists.
_CAUTION = (
    "Stable weights can be wrong: if λ is small, each resample gives weight to a kernel of noise with many equal "
    "eigenvalues"
)


class Stability(Result):
    """Kernel weights over resamples of the rows, and how often resamples select each kernel.

    `dmkl.stability` and `dmkl.load` make it. With n kernels; for a multilabel problem or a regression of several
    targets everything is over task or target as well:

    ============================= =====================================================================================
    weight (resample, kernel)     β of the fit to a resample; the mean over several classes against the rest, or pairs
    mean_weight (kernel)          their mean over the resamples
    standard_error (kernel)       of the weight of a fit to all rows: the standard deviation over the resamples, times
                                  √(k − 1) for k folds (the jackknife)
    lower, upper (kernel)         2.5 and 97.5 percent points of the weights over the resamples
    selected (resample, kernel)   whether the resample selects the kernel
    selection_frequency (kernel)  share of the resamples that select the kernel
    rank_agreement                Kendall's W of the order of the kernels by weight: 1 if all resamples agree
    score[_NAME] (resample)       on the rows left out, by the first scorer and by others
    gap, objective, status        of each fit, as in `SearchResult.scores`
    n_train, n_test (resample)    distinct training rows, and rows left out
    part (resample, sample)       0 if the sample trains, 1 if it is left out
    n_drawn (resample, sample)    for a bootstrap, how often the sample was drawn
    sample_group (sample)         the groups that no resample splits, if any
    constant_score (resample)     of one decision for all rows left out
    ============================= =====================================================================================

    Attributes: how, threshold, n_selected (0 if a share of the largest weight decides), random_state, n_distinct
    (the number of distinct resamples; results of older versions lack it), estimator, parameters (JSON), scoring,
    measures (JSON list), kind, n_passes, seconds, solver, asked (JSON, as in `SearchResult.scores`), default_price (a
    sentence if λ or C was the default).
    """

    FORMAT, TITLE = "dmkl-stability", "result of resampling"
    NEEDED = ("weight", "mean_weight", "standard_error", "selected", "selection_frequency", "score", "gap", "status")
    MEANINGS: ClassVar[Mapping[str, str]] = {
        "mean_weight": "mean kernel weight",
        "standard_error": "standard error of the kernel weight",
        "lower": "2.5 percent point of the kernel weight",
        "upper": "97.5 percent point of the kernel weight",
        "selected": "whether the resample selects the kernel",
        "selection_frequency": "share of the resamples that select the kernel",
        "rank_agreement": "Kendall's W of the order of the kernels",
        "score": "score on the rows left out",
        "n_train": "different training rows",
        "n_test": "rows left out",
    }

    @property
    def _resamples(self) -> str:
        """The number and the kind of the resamples, such as "100 half-samples"."""
        return f"{self.data.sizes['resample']} {TITLES[self.data.attrs['how']]}"

    @property
    def threshold(self) -> float:
        """The share π of the resamples that must select a kernel for it to count as stable."""
        return float(self.data.attrs["threshold"])

    def stable(self, threshold: float | None = None) -> xr.DataArray:
        """Whether at least the share π of the resamples selects each kernel: (kernel[, task]).

        The `threshold` π is that of the call by default; InputError if not in (1/2, 1]. `error_bound` is valid for
        a threshold that is chosen beforehand.
        """
        pi = self.threshold if threshold is None else check_threshold(threshold)
        return (self.data["selection_frequency"] >= pi).drop_attrs().rename("stable")

    def error_bound(self, threshold: float | None = None, *, unimodal: bool = False) -> Any:
        """An upper bound of the expected number of stable kernels with low selection probability.

        q²/((2π − 1)n), where q is the mean number of kernels that a half-sample selects. It bounds the stable kernels
        that a half-sample selects with probability q/n or less, and assumes only that samples are independent (whole
        groups, if they are drawn). If the useless kernels are selected with equal probabilities, and not more often
        than at random, it bounds the number of useless ones. Above n it says nothing; take a smaller `n_selected` or a
        larger threshold.

        The `threshold` π is that of the call by default; InputError if it is not in (1/2, 1]. `unimodal` gives the
        sharper bound, if the share of pairs that select a kernel twice has a unimodal distribution: Shah and Samworth
        (2013), Theorem 2; `dmkl.stability` has the references. The bound is over task or target if there are several,
        and NaN for other resamples than half-samples, without a known bound.
        """
        sizes, q = self.data.sizes, self.mean_selected_
        n_pairs = sizes["resample"] // 2 if unimodal else None
        pi = self.threshold if threshold is None else check_threshold(threshold)
        bound_of = partial(error_bound, n=sizes["kernel"], threshold=pi, n_pairs=n_pairs)
        bounds = xr.apply_ufunc(bound_of, q, vectorize=True) if self.data.attrs["how"] == "half" else np.nan * q
        if self.tasks is None:
            return float(bounds)
        meaning = "upper bound of the expected number of stable kernels that are rarely selected"
        return bounds.rename("error_bound").assign_attrs(long_name=meaning, units="1")

    @property
    def mean_selected_(self) -> Any:
        """q: the mean number of kernels that a resample selects; over task or target if there are several."""
        q = self.data["selected"].sum("kernel").mean("resample").drop_attrs(deep=False)
        q = q.assign_attrs(long_name="kernels that a resample selects on average", units="1")
        return float(q) if self.tasks is None else q

    def table(self) -> pd.DataFrame:
        """A row for each kernel (and task): mean_weight, standard_error, lower, upper, selection_frequency."""
        names = ["mean_weight", "standard_error", "lower", "upper", "selection_frequency"]
        dim = task_dim(self.data)
        by = ["kernel"] if dim is None else ["kernel", dim]
        return self.data[names].to_dataframe(dim_order=by).reset_index()

    def describe(self) -> Description:
        """The resamples, the score of the fits, the stable kernels, the costs; see `Result.describe`."""
        data, attrs = self.data, self.data.attrs
        tasks = "" if self.tasks is None else f", {len(self.tasks)} {task_dim(data)}s"
        notes, of_kernels = [], list[str]()
        if (n_distinct := attrs.get("n_distinct", data.sizes["resample"])) < data.sizes["resample"]:
            few = "groups or samples as few as these can be drawn in few ways, and more resamples add little"
            notes.append(f"Only {n_distinct} of the {self._resamples} are distinct: {few}")
        score = data["score"]
        score = score.mean([dim for dim in score.dims if dim != "resample"])
        spread = f"{attrs['scoring']} {number(float(score.mean()))} on the rows left out"
        notes += [_CAUTION, *([attrs["default_price"]] if attrs.get("default_price") else [])]
        if np.isfinite(agreed := float(data["rank_agreement"].mean())):
            of_kernels.append(f"Agreement on the order of the kernels (Kendall's W): {number(agreed)}")
        elif data.sizes["kernel"] > 2:
            of_kernels.append("All weights are equal, and their order says nothing: choose a smaller p")
        costs = cost_and_proof(self.n_passes_, attrs["seconds"], float(data["gap"].max()))
        sentences: dict[Key, list[str]] = {
            "scores": [f"{spread}, standard deviation over the resamples {number(float(score.std(ddof=1)))}"],
            "notes": notes,
            "kernels": [*of_kernels, *self._stable_lines()],
            "costs": [f"{count(data.sizes['resample'], 'fit')} in {costs}"],
        }
        scope = f"{self._resamples}, {count(data.sizes['kernel'], 'kernel')}{tasks}"
        title, pictures = f"Stability of {attrs['estimator']}", {"Weights over resamples": Figure(scope, self.plot)}
        return Description(title, scope, sentences, self._facts, {"kernels": self._kernels_table}, pictures)

    def _facts(self) -> dict[str, Any]:
        data, attrs, stable = self.data, self.data.attrs, self.stable()
        return {
            **{name: attrs[name] for name in ("how", "threshold", "random_state")},
            "resamples": data.sizes["resample"],
            "distinct_resamples": attrs.get("n_distinct"),
            "stable": stable["kernel"].values[stable.values] if stable.ndim == 1 else stable.to_series().to_dict(),
            "mean_selected": np.asarray(self.mean_selected_),
            "error_bound": np.asarray(self.error_bound()),
            "unimodal_error_bound": np.asarray(self.error_bound(unimodal=True)),
            "rank_agreement": data["rank_agreement"].values,
            "scores": data["score"].values,
            "largest_gap": float(data["gap"].max()),
        }

    def _kernels_table(self) -> Table:
        """The largest weights, if there are many; their data are in the order of the set."""
        frame = self.table()
        columns = [
            Column("kernel", form="kernel"),
            *(Column(name) for name in frame.columns[1:2] if name == task_dim(self.data)),
            Column("mean_weight", "weight ± s.e.", error="standard_error"),
            Column("lower", "95 % of resamples", upper="upper"),
            Column("selection_frequency", "selected", form="share", bar=1.0),
        ]
        largest = np.argsort(-frame["mean_weight"].to_numpy(), kind="stable")[:MOST_ROWS]
        order = None if len(frame) <= MOST_ROWS else largest
        return Table(frame, columns, "Weights over resamples", order, self.data["kernel"].values)

    def _stable_lines(self) -> list[str]:
        stable, dim = self.stable(), task_dim(self.data)
        if dim is None:
            names = np.array(list(short_names(stable["kernel"].values).values()))
            selected = listed(names[stable.values], _MOST_NAMES) or "none"
        else:
            n_stable = stable.sum("kernel")
            selected = f"{int(n_stable.min())} to {int(n_stable.max())} kernels by {dim}"
        lines = [f"Selected by {100 * self.threshold:g} % of the resamples or more: {selected}"]
        over = "" if dim is None else f", averaged over the {dim}s"
        mean = f"A resample selects {float(np.mean(self.mean_selected_)):.3g} of {self.data.sizes['kernel']}{over}"
        bound, most = float(np.max(self.error_bound())), int(stable.sum("kernel").max())
        if np.isfinite(bound) and 0 < most <= bound:
            of_stable = f"{number(bound)} for {count(most, 'kernel')}"
            way_out = "lower n_selected or raise threshold"
            lines.append(f"{mean}: too many for a bound of rare selections, which is {of_stable}; {way_out}")
        elif np.isfinite(bound):
            chance = float(np.max(self.mean_selected_)) / self.data.sizes["kernel"]
            lines.append(
                f"{mean}. The expected number of stable kernels that a half-sample selects with a probability of "
                f"{number(chance)} or less is at most {number(bound)}; noise that it selects more often is not counted"
            )
        else:
            lines.append(f"{mean}; a bound of rare selections is known for how='half' only")
        return lines

    plot = figures.plot_stability


@one_blas_thread
def stability(
    estimator: KernelLearner,
    K: Kernels,
    y: npt.ArrayLike | None = None,
    n_resamples: int | None = None,
    *,
    how: How = "half",
    n_selected: int | None = None,
    threshold: float = 0.9,
    groups: npt.ArrayLike | None = None,
    scoring: Any = None,
    unknown: Any = None,
    random_state: int = 0,
    state: str | Path | None = None,
) -> Stability:
    """Fit an estimator to resamples of the rows, to show how far its kernel weights can be trusted.

    All resamples share passes over the kernels: a hundred fits take few more passes than one. Each fit is independent,
    with the statistics of its rows, and is scored on the rows that it leaves out.

    Parameters
    ----------
    estimator
        The learner to fit, with its parameters. It is not changed. Scores are too optimistic if a search has chosen the
        parameters on the same rows; `dmkl.evaluate` estimates them without bias.
    K, y
        As in `dmkl.search`.
    n_resamples
        100 by default, 10 for folds; even for halves.
    how
        The training rows of a resample:

        - "half": one of two random halves of the rows; the other half is the next resample. Stability selection has
          guarantees for these.
        - "bootstrap": as many rows as there are, drawn with replacement. Rows are weighted by
          their number of draws, by `sample_weight`, which the learner must accept. See its `fit`: with MKFDA and
          MKRidge this is the same as repeating rows; machines with margins normalize the kernels on each row once.
        - "folds": all rows except one of `n_resamples` folds, as in a cross-validation.

        Classes keep their shares if each row has one label. Draws that lack a class, or leave out no row, are
        rejected and drawn again.
    n_selected
        Number of kernels with the largest weights that each resample selects. By default those with more than a
        hundredth of its largest weight, which is meaningful for sparse norms (p near 1).
    threshold
        Share π of the resamples, above 1/2, that must select a kernel for it to count as stable.
    groups
        (m,) groups that no resample may split: whole groups are drawn. Few groups have few halves: the summary and
        ``data.n_distinct`` have the number of distinct resamples.
    scoring, unknown
        As in `dmkl.search`.
    random_state
        Seed of the draws.
    state
        As in `dmkl.search`.

    Raises
    ------
    InputError
        If an argument breaks a rule, or `state` has other work.
    IndefiniteKernelError, WorkerLostError
        As in `dmkl.search`.

    Notes
    -----
    Meinshausen, Bühlmann: Stability selection. Journal of the Royal Statistical Society B 72 (2010). Shah, Samworth:
    Variable selection with error control: another look at stability selection. Journal of the Royal Statistical Society
    B 75 (2013). The weights of half-samples, as those of a bootstrap, vary around the fit to all rows as much as that
    fit varies around its limit, if weights depend smoothly on the rows (the delete-d jackknife with d = m/2: Shao, Wu:
    A general theory for jackknife variance estimation. Annals of Statistics 17 (1989)); weights at zero do not.

    Correlated kernels share their weight, or have it in turn from resample to resample: a kernel that is seldom
    selected need not be useless (`dmkl.analyze` shows similar kernels).

    Examples
    --------
    >>> import dmkl, numpy as np
    >>> y = np.arange(24) % 2
    >>> F = np.random.default_rng(0).normal(size=(3, 24, 4)) + np.array([2, 0, 0])[:, None, None] * y[:, None]
    >>> result = dmkl.stability(dmkl.MKFDA(p=1), F @ F.transpose(0, 2, 1), y, n_resamples=10, n_selected=1)
    >>> float(result.data.selection_frequency[0])
    1.0
    """
    started = time.monotonic()
    check_choice("how", how, get_args(How))
    n_resamples = N_RESAMPLES[how] if n_resamples is None else n_resamples
    check_count("n_resamples", n_resamples, least=2)
    check_count("random_state", random_state, least=0)
    check_threshold(threshold)
    if n_selected is not None:
        check_count("n_selected", n_selected, least=1)
    check_is_learner(estimator, "stability")
    if how == "bootstrap" and not estimator.traits.takes_sample_weight:
        refuse(
            f"how='bootstrap' weights rows by their number of draws, and {type(estimator).__name__} does not weight "
            "samples; take how='half'"
        )
    resampling = partial(draw_resamples, how, n_resamples, random_state)
    arguments = Arguments(estimator, K, y, None, scoring, groups, unknown, state)
    question, folds = make_question("stability", arguments, resampling, has_grid=False)
    pairs = zip(question.plan_fits(), folds, strict=True)
    fits = [replace(fit, sample_weight=fold.counts, judge=None) for fit, fold in pairs]
    with question.open_workspace({"what is asked": "stability"}) as workspace:
        answers = run(question.K, fits, workspace)
    data = _to_dataset(question, answers, how, n_selected)
    options = {"how": how, "n_selected": n_selected, "threshold": threshold, "random_state": random_state}
    of_folds = question.with_folds(xr.Dataset(), folds, n_resamples=n_resamples, **options)
    of_folds = of_folds.rename_dims(fold="resample").drop_vars("fold")
    if how == "bootstrap":
        n_drawn = np.zeros(of_folds["part"].shape, dtype=np.int32)
        for row, fold in zip(n_drawn, folds, strict=True):
            row[fold.train] = fold.counts
        of_folds["n_drawn"] = (("resample", "sample"), n_drawn)
    distinct = {(fold.train.tobytes(), None if fold.counts is None else fold.counts.tobytes()) for fold in folds}
    attrs = {
        "how": how,
        "n_selected": n_selected or 0,
        "threshold": float(threshold),
        "random_state": random_state,
        "n_distinct": len(distinct),
        "default_price": question.estimator._default_price(),
        "asked": of_folds.attrs["asked"],
        "seconds": time.monotonic() - started,
    }
    return Stability(data.merge(of_folds).assign_attrs(attrs))


def _to_dataset(question: Question, answers: Answers, how: How, n_selected: int | None) -> xr.Dataset:
    outcomes = answers.fits
    weight, gap, objective, status = question.per_task(outcomes)
    selected = np.stack([select(weight[:, k], n_selected) for k in range(question.n_tasks)], axis=1)
    spread = weight.std(axis=0, ddof=1)
    if how == "folds":  # resamples that share most rows vary less than independent samples
        spread = weight.std(axis=0) * np.sqrt(len(outcomes) - 1)
    lower, upper = np.quantile(weight, (0.025, 0.975), axis=0)
    agreed = [agreement(weight[:, k]) for k in range(question.n_tasks)]

    def of_kernels(values: Array, *first: str) -> tuple[tuple[str, ...], Array]:
        return question.variable((*first, "kernel", "task"), values.swapaxes(-1, -2))

    variables: dict[str, Any] = {
        "weight": of_kernels(weight, "resample"),
        "mean_weight": of_kernels(weight.mean(axis=0)),
        "standard_error": of_kernels(spread),
        "lower": of_kernels(lower),
        "upper": of_kernels(upper),
        "selected": of_kernels(selected, "resample"),
        "selection_frequency": of_kernels(selected.mean(axis=0)),
        "rank_agreement": question.variable(("task",), np.array(agreed)),
        "gap": question.variable(("resample", "task"), gap),
        "objective": question.variable(("resample", "task"), objective),
        "status": (*question.variable(("resample", "task"), status.astype(np.int8)), STATUS_FLAGS),
        "n_train": ("resample", np.array([len(fold.train) for fold in question.folds])),
        "n_test": ("resample", np.array([len(fold.validation) for fold in question.folds])),
    }
    variables |= question.score_variables("score", question.score(map(Part.of, outcomes)), "resample")
    coords = {"kernel": list(question.K.names), **question.task_coords()}
    attrs = {
        **question.attrs,
        "measures": json.dumps(list(question.metrics)),
        "kind": question.targets.kind,
        "n_passes": answers.tally.n_passes,
        "solver": ", ".join(dict.fromkeys(outcome.solver or "own" for outcome in outcomes)),
    }
    return xr.Dataset(variables, coords, attrs)


def draw_resamples(how: How, n_resamples: int, seed: int, labels: npt.ArrayLike, **of_rows: Any) -> list[Fold]:
    """Draw the training rows of resamples, as folds "0", "1" … whose rows left out validate.

    `how` is as in `stability`; halves 2b and 2b + 1 are a pair, and folds of a bootstrap have the number of draws of
    each row. Halves of groups have equal shares of the groups by their most frequent class; a bootstrap of groups keeps
    shares on average only. InputError after 100 draws of a resample without a class, or that leave out no row. The
    labels and what follows are as in `make_folds`.
    """
    if how == "half" and n_resamples % 2:
        refuse(f"n_resamples must be even for how='half', whose halves come in pairs, got {n_resamples}")
    y, rng = np.asarray(labels), np.random.default_rng(seed)
    groups, strata = of_rows.get("groups"), of_rows.get("strata")
    stratified = strata is not None or (of_rows.get("classes", True) and y.ndim == 1)
    by = y if strata is None else strata

    def draw_once() -> list[Fold]:
        if how == "bootstrap":
            counts = _draw_counts(rng, by, groups, stratified=stratified)
            (fold,) = make_folds((np.flatnonzero(counts), np.flatnonzero(counts == 0)), y, **of_rows)
            return [replace(fold, counts=counts[fold.train].astype(np.float64))]
        if how == "half" and groups is not None:
            half = _draw_halves_of_groups(rng, by, groups, stratified=stratified)
            cv: Any = [(np.flatnonzero(half == k), np.flatnonzero(half != k)) for k in range(2)]
        else:
            plain, of_groups = (StratifiedKFold, StratifiedGroupKFold) if stratified else (KFold, GroupKFold)
            splitter: Any = plain if groups is None else of_groups
            n_splits = 2 if how == "half" else n_resamples
            cv = splitter(n_splits, shuffle=True, random_state=int(rng.integers(2**31)))
        return make_folds(cv, y, **of_rows)

    folds, n_failed = list[Fold](), 0
    while len(folds) < n_resamples:
        try:
            folds += draw_once()
            n_failed = 0
        except InputError as error:
            n_failed += 1
            if n_failed == _MAX_DRAWS:
                refuse(f"how={how!r}: {error}", error)
    return [replace(fold, name=str(k), title=f"resample {k}") for k, fold in enumerate(folds)]


def _draw_halves_of_groups(rng: np.random.Generator, y: Array, groups: Array, *, stratified: bool) -> Index:
    """The half, 0 or 1, of each row: groups in random order, sorted by class, alternate between the halves.

    `StratifiedGroupKFold` does not help: it assigns groups greedily by their class counts, and shuffling only breaks
    ties, so that it draws the same few halves repeatedly.
    """
    _, unit = np.unique(groups, return_inverse=True)
    order = rng.permutation(int(unit.max()) + 1)
    if stratified:
        _, index = np.unique(y.astype(str) if y.dtype == object else y, return_inverse=True)
        table = np.zeros((len(order), int(index.max()) + 1))
        np.add.at(table, (unit, index), 1)
        of_class = rng.permutation(table.shape[1])[table.argmax(axis=1)]  # so that the half with the odd group varies
        order = order[np.argsort(of_class[order], kind="stable")]
    half = np.empty(len(order), dtype=np.int64)
    half[order] = np.arange(len(order)) % 2
    return half[unit]


def _draw_counts(rng: np.random.Generator, y: Array, groups: Array | None, *, stratified: bool) -> Index:
    """Number of draws of each row in a bootstrap, (m,): with replacement among groups, or the rows of each class."""
    _, unit = np.unique(np.arange(len(y)) if groups is None else groups, return_inverse=True)
    _, index = np.unique(y if stratified and groups is None else np.zeros(len(y)), return_inverse=True)
    counts = np.zeros(int(unit.max()) + 1, dtype=np.int64)
    for k in range(int(index.max()) + 1):
        members = np.unique(unit[index == k])
        counts[members] = rng.multinomial(len(members), np.full(len(members), 1.0 / len(members)))
    return np.asarray(counts[unit])


def select(weights: Float, n_selected: int | None = None) -> npt.NDArray[np.bool_]:
    """Whether each resample selects each kernel, (resamples, n), from weights of that shape that are not negative.

    Each selects the `n_selected` kernels with the largest weights, fewer if weights are zero or equal; if None, those
    with more than `LEAST_SHARE` of its largest weight.
    """
    if n_selected is None:
        return np.asarray(weights > LEAST_SHARE * weights.max(axis=1, keepdims=True))
    n = weights.shape[1]
    if n_selected >= n:
        return np.asarray(weights > 0)
    largest_left_out = np.partition(weights, n - 1 - n_selected, axis=1)[:, n - 1 - n_selected]
    return np.asarray(weights > largest_left_out[:, None])


def check_threshold(threshold: Any) -> float:
    """The share of the resamples; InputError if it is without a known bound, outside (1/2, 1]."""
    if isinstance(threshold, bool) or not isinstance(threshold, numbers.Real) or not 0.5 < float(threshold) <= 1.0:
        refuse(
            "threshold, the share of the resamples that must select a kernel, must be above 0.5 and at most 1, got "
            f"{plain_repr(threshold)}; 0.6 to 0.9 is usual"
        )
    return float(threshold)


def error_bound(q: float, n: int, threshold: float, n_pairs: int | None = None) -> float:
    """E|Ŝ_π ∩ L| ≤ q²/((2π − 1)n), or a sharper bound for B pairs of halves: see `Stability.error_bound`.

    Ŝ_π are the kernels that at least the share π of the half-samples selects, L those that one selects with probability
    q/n or less. Meinshausen, Bühlmann (2010), Theorem 1; Shah, Samworth (2013), Theorem 1 with θ = q/n, for pairs of
    halves that share no sample; see `dmkl.stability`.

    With `n_pairs`, B, it is C(π, B) q²/n of Theorem 2 of the latter: C = 1/(2(2π − 1 − 1/2B)) up to π = 3/4, and
    4(1 − π + 1/2B)/(1 + 1/B) beyond. The assumption is that, for each kernel of L, the share of pairs of which both
    halves select it has a unimodal distribution. NaN if the theorem does not apply: for q/n above 1/√3, and for π at or
    below 1/2 + min(θ², 1/2B + ¾θ²).
    """
    if n_pairs is None:
        return q**2 / ((2.0 * threshold - 1.0) * n)
    theta, grain = q / n, 1.0 / (2.0 * n_pairs)
    if theta > 1.0 / math.sqrt(3.0) or threshold <= 0.5 + min(theta**2, grain + 0.75 * theta**2):
        return math.nan
    if threshold <= 0.75:
        factor = 1.0 / (2.0 * (2.0 * threshold - 1.0 - grain))
    else:
        factor = 4.0 * (1.0 - threshold + grain) / (1.0 + 2.0 * grain)
    return factor * q**2 / n


def agreement(weights: Float) -> float:
    """Kendall's coefficient of concordance W of the order of the kernels, from weights (B, n), corrected for ties.

    1 if all resamples order the kernels alike, near 1/B for B unrelated orders; Friedman's statistic is B(n − 1)W.
    Weights up to `LEAST_SHARE` of the largest of the resample are ties. NaN for fewer than three kernels, and if no
    resample orders them.
    """
    from scipy.stats import friedmanchisquare

    n_resamples, n = weights.shape
    weights = np.where(select(weights), weights, 0.0)
    if n < 3 or not np.ptp(weights, axis=1).any():
        return math.nan
    statistic = float(np.asarray(friedmanchisquare(*weights.T).statistic))
    return statistic / float(n_resamples * (n - 1))
