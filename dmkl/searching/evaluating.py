"""`dmkl.evaluate`: how good a learner is whose parameters are chosen, by nested cross-validation."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import xarray as xr

from dmkl._version import __version__
from dmkl.arrays import Array
from dmkl.errors import InputError
from dmkl.estimators.checks import check_choice
from dmkl.estimators.decisions import predicted_labels
from dmkl.estimators.engine import run
from dmkl.estimators.learner import KernelLearner
from dmkl.estimators.plan import Answers, Fit, FitOutcome, Plan
from dmkl.passes.blas import one_blas_thread
from dmkl.searching.baselines import SUM, fit_beside_sum, named
from dmkl.searching.choice import Rule
from dmkl.searching.confusion import confusion
from dmkl.searching.dataset import as_dataset, fold_data
from dmkl.searching.evaluation import EvaluationResult
from dmkl.searching.fits import GridFits, Question, ask, fit_grid, per_task, state_claimed
from dmkl.searching.folds import OuterFold, nest_folds
from dmkl.searching.labeled import as_variable
from dmkl.searching.refit import chosen_fit, scored
from dmkl.searching.result import SearchResult
from dmkl.stores import Kernels

__all__ = ["evaluate"]


@one_blas_thread
def evaluate(
    estimator: KernelLearner,
    K: Kernels,
    y: npt.ArrayLike | None = None,
    grid: Mapping[str, Any] | None = None,
    *,
    outer: Any = None,
    inner: Any = None,
    scoring: Any = None,
    groups: npt.ArrayLike | None = None,
    unknown: Any = None,
    rule: Rule = "best",
    baselines: Literal["sum", "none"] = "sum",
    state: str | Path | None = None,
) -> EvaluationResult:
    """Estimate by nested cross-validation how good an estimator is whose parameters are chosen by cross-validation.

    In the training rows of each outer fold the inner folds choose a point of the grid; the estimator is fitted anew at
    that point on all training rows of the outer fold, and scored on its test rows, which no choice has seen. The inner
    fits of all outer folds share passes over the kernels, and so do the fits at the chosen points.

    Parameters
    ----------
    estimator, K, y, grid
        As in `dmkl.search`.
    outer
        What is tested: a number of folds, a splitter of scikit-learn, an iterable of (train, test), one such tuple, a
        mapping of names to such, or "splits": training and validation rows of each stored split against its test rows.
        5 folds by default.
    inner
        What chooses: a number of folds or a splitter, for the training rows of each outer fold. 3 folds by default;
        with outer="splits" the training and validation rows of each split, where it has validation rows.
    scoring
        As in `dmkl.search`; the first decides.
    groups
        (m,) what no fold may split, neither an outer nor an inner one. Integers then make folds of whole groups.
    unknown, rule
        As in `dmkl.search`.
    baselines
        What is evaluated beside the estimator, to compare with (`EvaluationResult.baselines`), in the passes of the
        inner folds and few more:
        "sum", the plain sum of the kernels, whose λ (or C, and whatever else does not concern weights) the inner folds
        choose as well; "none".
    state
        A folder that all workers see, where the inner fits are kept after every pass; the same call goes on from there.

    Returns
    -------
    EvaluationResult
        Scores and choices by outer fold, class-wise tables, and the inner searches.

    Raises
    ------
    InputError
        If an argument breaks a rule, no point can be chosen in an outer fold, or `state` holds other work.
    IndefiniteKernelError
        If a kernel proves not to be positive semidefinite.
    WorkerLostError
        If workers died again and again.

    Notes
    -----
    Varma, Simon: Bias in error estimation when using cross-validation for model selection. BMC Bioinformatics 7:91
    (2006); Cawley, Talbot: On over-fitting in model selection and subsequent selection bias in performance evaluation.
    JMLR 11 (2010), Section 5. The standard error of the mean over outer folds takes them for independent, which folds
    that share training rows are not: Bengio, Grandvalet: No unbiased estimator of the variance of k-fold
    cross-validation. JMLR 5 (2004).
    """
    started = time.monotonic()
    check_choice("rule", rule, get_args(Rule))
    check_choice("baselines", baselines, ("sum", "none"))
    question, folds = ask(
        "evaluate",
        estimator,
        K,
        y,
        grid,
        partial(nest_folds, outer, inner),
        scoring=scoring,
        groups=groups,
        unknown=unknown,
        refit=True,
    )
    found, plain = (fit_grid(question, state), None) if baselines == "none" else fit_beside_sum(question, state)
    searches = _searches(question, found, folds, rule, time.monotonic() - started)
    fits = _at_choices(question, searches, folds)
    sums: dict[str, SearchResult] = {}
    if plain is not None:
        sums = _searches(plain.question, plain.found, folds, rule, 0.0)
        searches = {name: _beside(search, sums[name]) for name, search in searches.items()}
    with state_claimed(state):
        answers = run(Plan(question.K, fits))
    if plain is not None:
        # Apart: beside other points another solver is chosen, which may have no scores of rows left out, so that rules
        # of decision would be learnt from other rows than without baselines.
        with state_claimed(state):
            of_sum = run(Plan(question.K, _at_choices(plain.question, sums, folds)))
        answers.tally.n_passes += of_sum.tally.n_passes
    scores = _as_dataset(question, searches, answers)
    of_folds = fold_data(question, [one.fold for one in folds])
    scores = scores.merge(of_folds, join="exact").assign_attrs(of_folds.attrs)
    if plain is not None:
        values = _tested(plain.question, sums, of_sum.fits)
        scores = scores.assign({f"{SUM}_{name}": value for name, value in values.items()})
    scores.attrs["seconds"] = time.monotonic() - started
    if question.hint:
        scores.attrs["hint"] = question.hint
    return EvaluationResult(scores, searches)


def _searches(
    question: Question, found: GridFits, folds: Sequence[OuterFold], rule: Rule, seconds: float
) -> dict[str, SearchResult]:
    """What the inner folds of each outer fold have found."""
    searches, first = {}, 0
    for one in folds:
        own = replace(question, folds=one.inner)
        scores = as_dataset(own, found.of_folds(first, len(one.inner)), "joint", seconds)
        searches[one.fold.name] = SearchResult(scores, rule=rule)
        first += len(one.inner)
    return searches


def _beside(search: SearchResult, of_sum: SearchResult) -> SearchResult:
    """What inner folds found, with the scores of the plain sum beside it."""
    scores = named(SUM, of_sum.scores)
    scores = scores.isel(dict.fromkeys(set(scores.dims) - set(search.scores.dims), 0))  # what is not searched
    told = {name: values.variable for name, values in scores.data_vars.items()}
    return SearchResult(search.scores.assign(told), rule=search.rule)


def _at_choices(question: Question, searches: Mapping[str, SearchResult], folds: Sequence[OuterFold]) -> list[Fit]:
    """The fits on the training rows of each outer fold at the point that its inner folds have chosen."""
    return [_at_choice(question, search, one) for search, one in zip(searches.values(), folds, strict=True)]


def _at_choice(question: Question, search: SearchResult, one: OuterFold) -> Fit:
    try:
        return chosen_fit(question, search, one.fold.train, one.fold.test, title=f"{one.fold.title}: ")
    except InputError as error:
        msg = f"{one.fold.title}: {error}"
        raise InputError(msg) from error


def _as_dataset(question: Question, searches: Mapping[str, SearchResult], answers: Answers) -> xr.Dataset:
    """What was chosen in each outer fold, and what the models fitted there make of its test rows."""
    dim = question.targets.dim
    found = answers.fits
    variables = _tested(question, searches, found)
    weight, *_, status = _by_task(question, found)
    dims = ("fold", "kernel") if dim is None else ("fold", "kernel", dim)
    variables["weight"] = (dims, weight[:, 0] if dim is None else weight.swapaxes(1, 2))
    variables["status"] = (dims[:1] + dims[2:], (status[:, 0] if dim is None else status).astype(np.int8))
    for name, rows in (("n_train", "train"), ("n_test", "held_out")):
        variables[name] = ("fold", np.array([len(getattr(one.data.fit, rows)) for one in found]))
    first = next(iter(searches.values())).scores
    kept = (
        "estimator",
        "parameters",
        "scoring",
        "kind",
        "parameters_searched",
        "solver",
        "bandwidths_from_all_samples",
    )
    coords = {"fold": np.array(list(searches), dtype=str), "kernel": first["kernel"].values}
    if question.targets.kind != "regression":
        variables["confusion"] = xr.concat([_confusion(question, one) for one in found], "fold")
    dataset = xr.Dataset(
        variables,
        coords=coords | ({} if dim is None else {dim: first[dim].values}),
        attrs={name: first.attrs[name] for name in kept},
    )
    dataset.attrs |= {
        "measures": json.dumps(list(question.metrics)),
        "n_passes": first.attrs["n_passes"] + answers.tally.n_passes,
        "n_refit_passes": answers.tally.n_passes,
        "created_by": f"dmkl {__version__}",
    }
    return dataset


def _tested(question: Question, searches: Mapping[str, SearchResult], found: Sequence[FitOutcome]) -> dict[str, Any]:
    """What was chosen in each outer fold, its scores on the test rows, and what is proven of it, as variables."""
    dim = question.targets.dim
    dims = ("fold",) if dim is None else ("fold", dim)
    variables: dict[str, Any] = {f"test_score{end}": (dims, values) for end, values in scored(question, found).items()}
    chosen = [search.chosen for search in searches.values()]
    variables["inner_score"] = (dims, np.stack([one["mean_score"].values for one in chosen]))
    shape = variables["inner_score"][1].shape
    for name, grid in question.grid.items():
        if name in question.by_class:  # as a command line takes it
            values = [",".join(f"{k}={v}" for k, v in one.best_params_[name].items()) for one in searches.values()]
        else:
            places = np.stack([search.best_index_[name].values for search in searches.values()])
            values = [grid[place] for place in places.ravel()]
        variables[name] = as_variable(name, dims, values, shape)
    _, gap, objective, _ = _by_task(question, found)
    for name, array in (("gap", gap), ("objective", objective)):
        variables[name] = (dims, array[:, 0] if dim is None else array)
    return variables


def _by_task(question: Question, found: Sequence[FitOutcome]) -> tuple[Array, Array, Array, Array]:
    """Weights (fold, task, kernel), gap, objective and status (fold, task) of the fits of the outer folds."""
    return per_task(found, len(question.K), question.n_tasks)


def _confusion(question: Question, one: FitOutcome) -> xr.DataArray:
    fit = one.data.fit
    predicted = predicted_labels(fit.targets.kind, fit.targets.classes, one.decided)
    truth: Array = question.labels[fit.held_out]
    tasks = np.arange(question.n_tasks) if question.tasks is None else question.tasks
    return confusion(truth, predicted, question.targets.classes, tasks)
