"""`dmkl.evaluate`: nested cross-validation of a learner whose parameters are chosen, and its result."""

from __future__ import annotations

import itertools
import json
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from dmkl.arrays import check_choice
from dmkl.description import Column, Description, Figure, Key, Table, count, number, with_error
from dmkl.errors import InputError, refuse
from dmkl.kernelset import Kernels
from dmkl.learners.decisions import predicted_labels
from dmkl.learners.learner import KernelLearner, KernelRegressor
from dmkl.learners.plan import Answers, Fit, FitOutcome
from dmkl.learners.saving import read
from dmkl.passes.blas import one_blas_thread
from dmkl.passes.execute import machine
from dmkl.searching import figures
from dmkl.searching.assessing import (
    class_facts,
    class_scores,
    class_tables,
    confusion,
    kernel_scores,
    records,
    survival_scores,
)
from dmkl.searching.baselines import COVARIATES, TITLES, concat_baselines, fit_with_sum, prefixed
from dmkl.searching.fits import (
    Arguments,
    GridFits,
    Part,
    Question,
    as_variable,
    make_question,
    values_of,
    with_statuses,
)
from dmkl.searching.folds import Fold, copies_between_folds, nest_folds
from dmkl.searching.grid import Rule, chance_notes, mean_over_folds
from dmkl.searching.paired import paired_variables
from dmkl.searching.search import GridResult, SearchResult, check_memory_of_refinement, chosen_fit, fold_models, refine
from dmkl.searching.targets import FEW
from dmkl.searching.texts import approximate_notes, chosen_text, cost_and_proof, data_notes, edge_notes
from dmkl.solvers.interface import WORDS
from dmkl.store.saved import Saved, task_dim
from dmkl.variables import describe


class EvaluationResult(GridResult):
    """The result of a nested cross-validation.

    `dmkl.evaluate` and `dmkl.load` make it.

    Parameters
    ----------
    scores
        A Dataset with the dimension "fold" for the outer folds:

        ====================== ================================ ========================================================
        test_score[_NAME]      fold[, task]                     on the test rows, which no choice depends on, of the
                                                                model refitted on all training rows at the chosen point;
                                                                by the first scorer, which decides, and by others
        inner_score            fold[, task]                     mean validation score of the inner folds at that point
        name of a parameter    fold[, task]                     its chosen value
        confusion              fold[, task], true, predicted    number of test rows by true and predicted class
        weight                 fold, kernel[, task]             β of the tested model
        kernel_r2              fold, kernel, target             of more than 12 targets, as in `dmkl.kernel_scores`
        gap, objective, status fold[, task]                     of that model, as in `SearchResult.scores`
        n_train, n_test        fold                             rows
        ``held_out_…``         held_out[, class]                of `predictions`
        part                   fold, sample                     0 train, 2 test, -1 none; see `folds`
        sample_group           sample                           the groups that no fold splits, if any
        chance_p_value …       [task]                           under permuted labels of the test rows
        constant_score         fold[, task]                     of one decision for all test rows
        sum_test_score[_NAME], fold[, task]                     of the plain sum of the kernels, at the choice of the
        sum_gap, sum_lam …                                      inner folds for it; see `baselines`
        sum_mcnemar_p_value …  [task]                           `dmkl.compare_predictions` of the learner and the sum
        covariates_test_score  fold[, task]                     of least squares on the covariates alone
        residual_score[_NAME]  fold[, task]                     as in `SearchResult.scores`, and so is residual_p_value
        ``largest_own_…``,     fold[, task]                     of the estimator and the sum by the largest score
        ``largest_sum_…``
        ====================== ================================ ========================================================

        Attributes: those of `SearchResult.scores`, measures (JSON list of scorers), n_refit_passes (the passes of the
        fits at the chosen points, included in n_passes).
    searches
        By outer fold, the search of its inner folds, without a model: a `SearchResult` with scores, weights, gaps and
        statuses of every point. Its passes are shared by all of them.

    Raises
    ------
    InputError
        If `scores` lacks something of the above, or has other folds than `searches`.
    """

    FORMAT, TITLE = "dmkl-evaluation", "evaluation"
    NEEDED_ATTRIBUTES = ("estimator", "scoring", "parameters_searched", "n_passes", "seconds")
    NEEDED = ("test_score", "inner_score", "weight", "gap", "status")

    def __init__(self, scores: xr.Dataset, searches: Mapping[str, SearchResult]) -> None:
        super().__init__(scores)
        names = scores["fold"].values.tolist() if "fold" in scores else []
        if names != list(searches):
            refuse(
                f"scores must be over the folds of searches, {', '.join(searches)}, found "
                f"{', '.join(names) or 'no folds'}; dmkl.evaluate and dmkl.load make such"
            )
        self._data = with_statuses(self._data)
        self._searches = dict(searches)

    @property
    def searches(self) -> dict[str, SearchResult]:
        """The searches of the inner folds, by outer fold; `folds` are the outer ones."""
        return dict(self._searches)

    @property
    def measures(self) -> tuple[str, ...]:
        """Names of the scorers; the first decides."""
        return tuple(json.loads(self._data.attrs["measures"]))

    @property
    def mean_score_(self) -> Any:
        """Mean test score over the outer folds where it is defined; over task for a multilabel problem."""
        return self._mean_and_error()[0]

    @property
    def standard_error_(self) -> Any:
        """Its standard error s/√n over the outer folds, assumed to be independent (see `dmkl.evaluate`)."""
        return self._mean_and_error()[1]

    def _mean_and_error(self) -> tuple[Any, Any]:
        mean, error = mean_over_folds(self._data["test_score"])
        return (float(mean), float(error)) if self.tasks is None else (mean, error)

    @property
    def choices(self) -> pd.DataFrame:
        """The chosen points and the number of "folds" that chose each, the most frequent first.

        For a multilabel problem the tasks of the outer folds are counted.
        """
        chosen = pd.DataFrame({name: values_of(self._data[name]) for name in self.parameters}, dtype=object)
        return chosen.value_counts(dropna=False).rename("folds").reset_index()

    @property
    def baselines(self) -> xr.Dataset | None:
        """The plain sum of the kernels, and labels by the largest score, chosen and tested on the same rows.

        test_score, inner_score, gap, objective and the chosen parameters over baseline, fold and task, as in `scores`.
        None if there are no baselines.
        """
        chosen = {}
        for prefix, title in TITLES.items():
            names = [str(name) for name in self._data.data_vars if str(name).startswith(f"{prefix}_")]
            if names:
                values = self._data[names].rename({name: name.removeprefix(f"{prefix}_") for name in names})
                chosen[title] = values
        return concat_baselines(chosen)

    @property
    def confusion(self) -> xr.DataArray:
        """Number of test rows by true and predicted class, over all outer folds.

        Raises InputError if it was a regression.
        """
        if "confusion" not in self._data:
            refuse("a regression predicts numbers, which no confusion matrix counts; its scores are in scores")
        return self._data["confusion"].sum("fold", keep_attrs=True)

    @property
    def classes(self) -> xr.Dataset:
        """Recall, precision and support of each class on the test rows of all outer folds."""
        return class_scores(self.confusion)

    plot = figures.plot_evaluation
    plot_weights = figures.plot_tested_weights
    plot_confusion = figures.plot_confusion
    plot_survival = figures.plot_survival

    def survival_scores(self, times: npt.ArrayLike | None = None) -> xr.Dataset:
        """Brier scores and areas under ROC curves of the outer folds of `MKCox`; see `dmkl.survival_scores`.

        Curves are those of the tested models, with the baseline hazards of their training rows, from which the curve of
        censoring is estimated too.

        Parameters
        ----------
        times
            Increasing; by default the times of events between their first and last decile, or all if there are few.

        Raises
        ------
        InputError
            If the result is not of `MKCox`, or has no models.
        """
        if self._data.attrs["estimator"] != "MKCox" or not self._models:
            refuse("survival_scores are of evaluations of MKCox, whose models have baseline hazards")
        held_out = self.predictions
        labels, folds = held_out["true_label"].values, held_out["sample_fold"].values.astype(str)
        events = np.unique(labels[labels > 0])
        first, last = np.quantile(events, [0.1, 0.9])
        within = events[(first <= events) & (events <= last)]
        at = times if times is not None else within if len(within) > 1 else events
        parts = []
        for name, model in self._models.items():
            curves = model.survival_of(held_out["prediction"][folds == name], at)
            trained = np.isin(held_out["sample"].values.astype(str), model.train_samples_)
            parts.append(survival_scores(curves, labels[folds == name], labels[trained]))
        return describe(xr.concat(parts, pd.Index(list(self._models), name="fold")))

    def table(self) -> pd.DataFrame:
        """The outer folds in their order.

        fold, task (of a multilabel problem), the chosen parameters, inner_score, each test score by the name of its
        scorer, gap and status of the tested model.
        """
        scores, dim = self._data, task_dim(self._data)
        by = ["fold"] if dim is None else ["fold", dim]
        names = {f"test_score{'' if k == 0 else f'_{name}'}": name for k, name in enumerate(self.measures)}
        values = scores[["inner_score", *names, "gap"]].rename(names)
        frame = values.to_dataframe(dim_order=by).reset_index()
        chosen = {name: values_of(scores[name]) for name in self.parameters}
        frame = frame.assign(**chosen, status=np.array(WORDS)[scores["status"].values.ravel()])
        return frame[[*by, *self.parameters, "inner_score", *self.measures, "gap", "status"]]

    def describe(self) -> Description:
        """The evaluation, the scores, the choices, the costs; see `Result.describe`."""
        scores, attrs, searches = self._data, self._data.attrs, list(self._searches.values())
        first = searches[0].scores
        grid = " × ".join(f"{first.sizes[name]} {name}" for name in self.parameters)
        inner = sorted({search.scores.sizes["fold"] for search in searches})
        folds = f"{count(scores.sizes['fold'], 'outer fold')} × {' or '.join(map(str, inner))} inner"
        tasks = "" if self.tasks is None else f", {len(self.tasks)} {task_dim(scores)}s"
        of_scores = []
        for k, name in enumerate(self.measures):
            score = scores[f"test_score{'' if k == 0 else f'_{name}'}"]
            over_tasks = score.mean([dim for dim in score.dims if dim != "fold"])
            rows = "in test, on rows that no choice depends on" if k == 0 else "in test"
            of_scores.append(f"{name} {with_error(*mean_over_folds(over_tasks))} {rows}")
        with suppress(InputError):  # other learners, or all events at one time
            of_times = self.survival_scores()
            names = ("integrated_brier_score", "mean_dynamic_auc")
            of_scores += [f"{name} {with_error(*mean_over_folds(of_times[name]))} in test" for name in names]
        n_fits = sum(int((search.scores["status"] >= 0).sum()) for search in searches)
        gap = float(max(search.scores["gap"].max() for search in searches))
        costs = cost_and_proof(self.n_passes_, attrs["seconds"], gap)
        inner_score = number(float(scores["inner_score"].mean()))
        choices = "; ".join(chosen_text(name, values_of(scores[name])) for name in self.parameters)
        sentences: dict[Key, list[str]] = {
            "scores": of_scores,
            "coverage": self.coverage_lines(),
            "chance": chance_notes(scores["test_score"], scores, "test"),
            "kernels_part": self.residual_lines(),
            "baselines": self.baseline_lines(),
            "inner_scores": [f"{attrs['scoring']} {inner_score} in the folds that chose"],
            "choice": [f"Chosen: {choices}"],
            "notes": [*([attrs["hint"]] if "hint" in attrs else []), *self.notes()],
            "costs": [f"{n_fits} fits and {count(scores.sizes['fold'], 'refit')} in {costs}"],
        }
        of_targets = self._many_targets()
        tables = {"folds": self._folds_table, "choices": self._choices_table}
        tables = tables if of_targets is None else of_targets.tables()
        tables |= {"comparison": self._comparison_table} if sentences["baselines"] else {}
        compared = Figure("Test scores of each outer fold, and their means.", self.plot)
        pictures = {"Compared with simpler models": compared}
        if of_targets is None:
            pictures["Weights"] = Figure("Kernel weights of the tested models.", self.plot_weights)
        else:
            pictures |= of_targets.figures()
        if attrs["estimator"] == "MKCox":
            caption = "Test samples in thirds by predicted risk. The log-rank test takes the thirds as given."
            pictures["Survival by predicted risk"] = Figure(caption, self.plot_survival)
        if "confusion" in scores:
            tables |= class_tables(self.confusion)
        if "confusion" in tables:
            caption = "Counts of test samples; recall and precision of each class."
            pictures["Confusion matrix"] = Figure(caption, self.plot_confusion)
        title, scope = f"Evaluation of {attrs['estimator']}", f"{grid}, {folds}{tasks}"
        return Description(title, scope, sentences, self._facts, tables, pictures)

    def _facts(self) -> dict[str, Any]:
        return {
            "grid": next(iter(self._searches.values())).grid,
            "outer_folds": self._data.sizes["fold"],
            "mean_score": np.asarray(self.mean_score_),
            "standard_error": np.asarray(self.standard_error_),
            "baselines": records(self.baselines),
            **self._shared_facts(),
            **(class_facts(self.confusion) if "confusion" in self._data else {}),
        }

    def _folds_table(self) -> Table:
        frame = self.table()
        columns = [Column("gap", form="gap") if name == "gap" else Column(name) for name in map(str, frame)]
        columns = [replace(c, form="exact") if c.value in self.parameters else c for c in columns]
        return Table(frame, columns, "Outer folds")

    def _choices_table(self) -> Table:
        frame = self.choices
        columns = [*(Column(name, form="exact") for name in self.parameters), Column("folds")]
        return Table(frame, columns, "Choices", note="The number of outer folds that chose each point.")

    def notes(self) -> list[str]:
        """Cautions: choices at an end of the grid of λ or C, bandwidths from held-out samples."""
        grid, edges = next(iter(self._searches.values())).grid, defaultdict[str, list[float]](list)
        for search in self._searches.values():
            for name, values in search.rising_edges().items():
                edges[name] += values
        approximate = approximate_notes(search.count_approximate() for search in self._searches.values())
        return [*approximate, *edge_notes(grid, edges), *data_notes(self._data.attrs)]

    def _write(self, path: Path) -> None:
        for place, search in enumerate(self._searches.values()):
            search._write(path / f"search-{place}")
        super()._write(path)

    @classmethod
    def _from_saved(cls, data: xr.Dataset, saved: Saved) -> Self:
        names = data["fold"].values.tolist()
        return cls(data, {name: read(saved.part(f"search-{number}")) for number, name in enumerate(names)})


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
    baselines: Literal["sum", "rules", "none"] = "sum",
    state: str | Path | None = None,
) -> EvaluationResult:
    """Estimate the performance of an estimator whose parameters are chosen by cross-validation, by nested folds.

    The inner folds of each outer fold choose a point of the grid on its training rows. The estimator is refitted at
    that point on all training rows of the outer fold, and scored on its test rows, which no choice depends on. The
    inner fits of all outer folds share passes over the kernels, and so do the fits at the chosen points.

    Parameters
    ----------
    estimator, K, y, grid
        As in `dmkl.search`.
    outer
        The folds that test: a number of folds, a splitter of scikit-learn, an iterable of (train, test), one such
        tuple, a mapping from names to such tuples, or "splits": training and validation rows of each stored split
        against its test rows. 5 folds by default.
    inner
        The folds that choose: a number of folds or a splitter, for the training rows of each outer fold. 3 folds by
        default; with outer="splits" the training and validation rows of each split, if it has validation rows.
    scoring, groups, unknown, rule, state
        As in `dmkl.search`; neither outer nor inner folds split groups.
    baselines
        A baseline to compare with (`EvaluationResult.baselines`), in the passes of the inner folds and a few more:
        "sum", the plain sum of the kernels, whose λ (or C, and all other parameters that do not concern weights) the
        inner folds choose as well; "rules", as in `dmkl.search` but for the support vector machine: the sum, and the
        estimator and the sum by the largest score in place of class means; "none". The first two also have least
        squares on the covariates alone, if steps have any.

    Raises
    ------
    InputError
        If an argument breaks a rule, no point can be chosen in an outer fold, or `state` has other work.
    IndefiniteKernelError, WorkerLostError
        As in `dmkl.search`.

    Notes
    -----
    Varma, Simon: Bias in error estimation when using cross-validation for model selection. BMC Bioinformatics 7:91
    (2006); Cawley, Talbot: On over-fitting in model selection and subsequent selection bias in performance evaluation.
    JMLR 11 (2010), Section 5. The standard error of the mean over outer folds assumes that they are independent; folds
    that share training rows are not: Bengio, Grandvalet: No unbiased estimator of the variance of k-fold
    cross-validation. JMLR 5 (2004).
    """
    arguments = Arguments(estimator, K, y, grid, scoring, groups, unknown, state)
    return evaluate_on(partial(nest_folds, outer, inner), "evaluate", arguments, rule, baselines)[0]


def evaluate_on(
    make_folds: Callable[..., list[Fold]],
    caller: str,
    arguments: Arguments,
    rule: Rule,
    baselines: Literal["sum", "rules", "none"],
    kept: dict[str, GridFits] | None = None,
) -> tuple[EvaluationResult, Question, list[Fold]]:
    """Evaluate as `evaluate` does, on folds that `make_folds` makes as `nest_folds` does.

    `caller` is for messages, and `kept` is as in `fit_with_sum`.
    """
    started = time.monotonic()
    check_choice("rule", rule, get_args(Rule))
    check_choice("baselines", baselines, ("sum", "rules", "none"))
    question, folds = make_question(caller, arguments, make_folds, refit=True)
    check_memory_of_refinement(question, [fold.inner for fold in folds])
    ends = np.cumsum([0, *(len(fold.inner) for fold in folds)]).tolist()
    choosing = list(itertools.starmap(slice, itertools.pairwise(ends)))
    fits, of_baselines = fit_with_sum(question, choosing, rule, baselines, kept)
    searches = _inner_searches(fits, folds, choosing, rule, time.monotonic() - started)
    for fold in folds:
        searches[fold.name] = refine(replace(question, folds=fold.inner), searches[fold.name])
    answers = question.run(_fits_at_choices(question, searches, folds))
    tests: dict[str, Any] = {}
    predictions: dict[str, xr.Dataset] = {}
    for prefix, baseline in of_baselines.items():
        inner = _inner_searches(baseline, folds, choosing, rule)
        # As a separate plan: together with other points, another solver is chosen, which may have no leave-one-out
        # scores, so that decision rules would be learnt from other rows than without baselines.
        tested = question.run(_fits_at_choices(baseline.question, inner, folds))
        answers.tally.n_passes += tested.tally.n_passes
        values = _test_variables(baseline.question, inner, tested.fits)
        predictions[prefix] = baseline.question.predictions(map(Part.of, tested.fits))
        tests |= {f"{prefix}_{name}": value for name, value in values.items()}
        for name, search in searches.items():
            of_inner = prefixed(prefix, inner[name].scores)
            own = dict.fromkeys(set(of_inner.dims) - set(search.scores.dims), 0)  # parameters of the sum only
            variables = {key: of.variable for key, of in of_inner.isel(own).data_vars.items()}
            searches[name] = SearchResult(search.scores.assign(variables), rule=search.rule)
    if baselines != "none":
        of_covariates, parts = question.covariates_alone(folds)
        predictions[COVARIATES] = question.predictions(parts)
        tests |= {f"{COVARIATES}_{name}": values for name, values in of_covariates.items()}
    if question.estimator._has_errors():
        tests |= paired_variables(question.predictions(map(Part.of, answers.fits)), predictions)
    models = fold_models(list(searches), answers.fits)
    tests |= _split_r2(question, models, folds, answers)
    scores = question.with_folds(_to_dataset(question, searches, answers), folds).assign(tests)
    scores.attrs["seconds"] = time.monotonic() - started
    scores.attrs |= copies_between_folds(question.K, folds)
    if question.hint:
        scores.attrs["hint"] = question.hint
    result = EvaluationResult(scores, searches)
    result._models = models
    return result, question, folds


def _inner_searches(
    fits: GridFits, folds: Sequence[Fold], choosing: Sequence[slice], rule: Rule, seconds: float = 0.0
) -> dict[str, SearchResult]:
    whole, searches = fits.to_dataset("joint", seconds), dict[str, SearchResult]()
    for fold, inner in zip(folds, choosing, strict=True):
        scores = fits.question.with_folds(whole.isel(fold=inner), fold.inner)
        scores.attrs["n_points"] = len(fold.inner) * whole.attrs["n_points"] // whole.sizes["fold"]
        searches[fold.name] = SearchResult(scores, rule=rule)
    return searches


def _fits_at_choices(question: Question, searches: Mapping[str, SearchResult], folds: Sequence[Fold]) -> list[Fit]:
    """The fits on the training rows of each outer fold at the choice of its inner folds."""
    fits = []
    for search, fold in zip(searches.values(), folds, strict=True):
        try:
            fits.append(chosen_fit(question, search, fold.train, fold.test, title=f"{fold.title}: "))
        except InputError as error:
            refuse(f"{fold.title}: {error}", error)
    return fits


def _split_r2(
    question: Question, models: Mapping[str, KernelLearner], folds: Sequence[Fold], answers: Answers
) -> dict[str, Any]:
    """R² of many targets on the test rows, split by kernel: a pass over the kernels of these rows.

    Empty for few targets, models that do not predict the sum of the parts of kernels, and parts that do not fit in the
    memory of a task.
    """
    n_bytes = 8 * len(question.K) * question.n_tasks * max(len(fold.test) for fold in folds)
    many = question.n_tasks > FEW and 2 * n_bytes <= machine().task_bytes
    kinds = {type(model) for model in models.values()}
    sums = all(issubclass(kind, KernelRegressor) and kind._response is KernelLearner._response for kind in kinds)
    if not many or not sums:
        return {}
    parts = []
    for model, fold in zip(models.values(), folds, strict=True):
        shares = model.contributions(question.K[fold.test, fold.train])
        answers.tally.n_passes += model.n_prediction_passes_
        parts.append(kernel_scores(shares, question.labels[fold.test])["kernel_r2"].transpose("target", "kernel"))
    return {"kernel_r2": question.variable(("fold", "task", "kernel"), np.stack(parts))}


def _to_dataset(question: Question, searches: Mapping[str, SearchResult], answers: Answers) -> xr.Dataset:
    """The choices of the outer folds, and the results of the models fitted there, as labeled data."""
    outcomes, fits = answers.fits, [outcome.data.fit for outcome in answers.fits]
    variables = _test_variables(question, searches, outcomes)
    weight, *_, status = question.per_task(outcomes)
    variables["weight"] = question.variable(("fold", "kernel", "task"), weight.swapaxes(1, 2))
    variables["status"] = question.variable(("fold", "task"), status.astype(np.int8))
    variables["n_train"] = ("fold", np.array([len(fit.train) for fit in fits]))
    variables["n_test"] = ("fold", np.array([len(fit.held_out) for fit in fits]))
    of_covariates = [question.covariate_part([fit.learner], fit.train, fit.held_out) for fit in fits]
    parts = [Part.of(fit)._replace(of_covariates=of) for fit, of in zip(outcomes, of_covariates, strict=True)]
    variables |= question.held_out_variables(parts) | question.p_values(parts)
    if question.targets.kind != "regression":
        tasks = np.arange(question.n_tasks) if question.tasks is None else question.tasks
        counts = []
        for part in parts:
            called = predicted_labels(part.targets.classes, part.decided)
            counts.append(confusion(question.labels[part.rows], called, question.targets.classes, tasks))
        variables["confusion"] = xr.concat(counts, "fold")
    first = next(iter(searches.values())).scores
    kept = ("estimator", "parameters", "scoring", "kind", "parameters_searched", "solver")
    attrs = {name: first.attrs[name] for name in (*kept, "bandwidths_from_all_samples")} | {
        "measures": json.dumps(list(question.metrics)),
        "n_passes": first.attrs["n_passes"] + answers.tally.n_passes,
        "n_refit_passes": answers.tally.n_passes,
    }
    return xr.Dataset(variables, {"kernel": first["kernel"].values, **question.task_coords()}, attrs)


def _test_variables(
    question: Question, searches: Mapping[str, SearchResult], outcomes: Sequence[FitOutcome]
) -> dict[str, Any]:
    """The choice of each outer fold, its test scores, and the certificate of the tested model, as variables."""
    dims, scores = ("fold", *question.task_coords()), question.score(map(Part.of, outcomes))
    variables = question.score_variables("test_score", scores)
    inner = np.stack([search.chosen["mean_score"].values for search in searches.values()])
    variables["inner_score"] = (dims, inner)
    for name, grid in question.grid.items():
        if name in question.by_class:  # in the notation of the command line
            by_class = [search.best_params_[name] for search in searches.values()]
            values = [",".join(f"{label}={value}" for label, value in chosen.items()) for chosen in by_class]
        else:
            places = np.stack([search.best_index_[name].values for search in searches.values()])
            values = [grid[place] for place in places.ravel()]
        variables[name] = as_variable(name, dims, values, inner.shape)
    _, gap, objective, _ = question.per_task(outcomes)
    variables["gap"] = question.variable(("fold", "task"), gap)
    variables["objective"] = question.variable(("fold", "task"), objective)
    return variables
