"""`dmkl.search`: a grid of parameters, cross-validated; the choice, the refitted model, and the result."""

from __future__ import annotations

import json
import math
import time
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial, reduce
from itertools import islice, product
from operator import getitem
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, get_args

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr
from sklearn.base import clone

from dmkl.arrays import Array, Float, Index, check_choice
from dmkl.description import MOST_ROWS, Column, Description, Figure, Key, Table, count, number, with_error
from dmkl.errors import InputError, first_names, refuse
from dmkl.kernelset import Kernels, as_kernel_set
from dmkl.learners import conformal
from dmkl.learners.decisions import SEARCHED, HeldOut, class_index
from dmkl.learners.learner import KernelLearner, fitted
from dmkl.learners.plan import Fit, FitOutcome
from dmkl.learners.saving import model_class, read, write_model
from dmkl.passes.blas import one_blas_thread
from dmkl.searching import figures
from dmkl.searching.assessing import records
from dmkl.searching.baselines import SUM, TITLES, Baselines, choose_baselines, compare, comparison, fit_with_baselines
from dmkl.searching.fits import (
    MOST_OUTPUTS,
    OF_TASKS,
    Arguments,
    GridFits,
    Part,
    Question,
    judge_predictions,
    make_question,
    values_of,
    with_statuses,
)
from dmkl.searching.folds import TEST, TRAIN, VALIDATION, Fold, copies_between_folds, make_folds
from dmkl.searching.grid import (
    LAM_TRACE,
    Choice,
    Rule,
    as_choice,
    best_index,
    chance_notes,
    class_values,
    mean_and_error,
    mean_over_folds,
)
from dmkl.searching.paired import paired_variables
from dmkl.searching.targets import FEW, ManyTargets
from dmkl.searching.texts import (
    approximate_notes,
    chosen_text,
    cost_and_proof,
    data_notes,
    edge_notes,
    p_text,
    point_text,
)
from dmkl.solvers.interface import WORDS
from dmkl.solvers.refinement import check_refinement
from dmkl.store.saved import Result, Saved, task_dim
from dmkl.variables import describe

BEST = "best"
"""The subgroup of the refitted model in a saved result."""
NOT_FITTED = "not fitted"
MOST_LINES = 10
"""Most choices that a summary lists."""


class _NoModel(InputError, AttributeError):
    """There is no refitted model; hasattr(result, "best_") is then false."""


class ChosenPoint(xr.Dataset):  # type: ignore[no-untyped-call]
    """The chosen point, or that of each fold and task, which prints as a table of parameters and scores."""

    __slots__ = ()

    def __repr__(self) -> str:
        names = [*json.loads(self.attrs.get("parameters_searched", "[]")), "mean_score", "standard_error"]
        if not {*names} <= {*self.variables}:
            return super().__repr__()
        shown = self[names].reset_coords()[names]
        others = ", ".join(str(name) for name in self.data_vars if name not in names)
        frame = shown.to_dataframe() if shown.sizes else pd.DataFrame([{name: shown[name].item() for name in names}])
        return (
            f"{frame.to_string(max_rows=MOST_LINES, index=bool(shown.sizes))}\nAlso has {others}; .data_vars shows all"
        )


class GridResult(Result):
    """A result over folds, with parameters that are chosen from a grid."""

    _models: Mapping[str, KernelLearner] = MappingProxyType({})

    @property
    def models_(self) -> dict[str, KernelLearner]:
        """By the name of the fold, the model refitted at its choice, which its test scores are of.

        Empty without such models. They predict from kernels: the features of their training samples are not kept.
        """
        return dict(self._models)

    def predict(self, K: Kernels, *, coverage: float) -> Any:
        """Prediction sets or intervals of new samples by the models of all folds (CV+).

        Each model was chosen and trained without the rows that it tests, so that sets hold the true label with a
        probability of at least about 2·coverage − 1, whatever was chosen, and near `coverage` as a rule. See
        `dmkl.learners.conformal`.

        Parameters
        ----------
        K
            Kernels of the new samples with those of this result, by name: K[new, :].
        coverage
            The probability, such as 0.9, above 0.5.

        Returns
        -------
        xarray.DataArray or xarray.Dataset
            Whether each label is in the set, (sample, class) or (sample, task, class), as
            `KernelClassifier.sets_of`; of a regression the mean prediction with the ends of its interval, `lower` and
            `upper`, (sample,) or (sample, target).

        Raises
        ------
        InputError
            If there are no models of folds, their predictions have no probabilities or are hazards, a training sample
            has no column, or `coverage` is not between 0.5 and 1.
        """
        if not 0.5 < coverage < 1.0:
            refuse(f"coverage must lie between 0.5 and 1, such as 0.9, got {coverage!r}")
        if not self._models:
            refuse("there are no models of folds, which need test rows; take dmkl.evaluate, or predict by best_")
        if not self._has_errors:
            refuse("log hazard ratios have no intervals that hold times; take a loss of numbers, such as 'huber'")
        table = conformal.of_predictions(self.predictions, list(self._models))
        if table is None:
            refuse("prediction sets are of probabilities, which these predictions lack; take decision='means'")
        K = as_kernel_set(K, "prediction", self._data["sample"].values)
        position, new = {str(name): j for j, name in enumerate(K.train_samples)}, []
        is_regression = "held_out_prediction" in self._data
        for model in self._models.values():
            lacking = [sample for sample in model.train_samples_.tolist() if sample not in position]
            if lacking:
                refuse(f"the kernels have no columns for {first_names(lacking)}, on which models of folds were trained")
            rows = K[np.arange(K.shape[1]), [position[sample] for sample in model.train_samples_.tolist()]]
            new.append(model.predict(rows, as_xarray=True) if is_regression else model.predict_proba(rows))
        return (conformal.intervals if is_regression else conformal.sets)(new, table, coverage)

    def _write(self, path: Path) -> None:
        for place, model in enumerate(self._models.values()):
            write_model(model, path / f"model-{place}")
        super()._write(path)

    @classmethod
    def _read(cls, saved: Saved) -> Self:
        result = super()._read(saved)
        parts = {name: f"model-{number}" for number, name in enumerate(result.scores["fold"].values.tolist())}
        result._models = {name: read(saved.part(part)) for name, part in parts.items() if part in saved.group}
        return result

    @property
    def scores(self) -> xr.Dataset:
        """Scores, weights and gaps, and the costs; the same as `data`."""
        return self._data

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the parameters, in the order of the grid."""
        return tuple(json.loads(self._data.attrs["parameters_searched"]))

    @property
    @abstractmethod
    def baselines(self) -> xr.Dataset | None:
        """Simpler learners on the same folds."""

    def comparison(self) -> pd.DataFrame:
        """The chosen model and the `baselines`, a row for each, on test rows if there are any (``attrs["rows"]``).

        model, its parameters if all folds agree, score and standard_error (means over the folds and tasks); difference,
        the mean over the folds of the score of the choice minus that of the baseline, and margin, half the width of its
        95 % confidence interval, of two procedures (`dmkl.searching.grid.mean_and_margin`); attrs["limits"] are the
        limits of a difference, at which intervals are cut off. p_value is that of the two models that were fitted, row
        by row, by the test of `dmkl.compare_predictions` that suits the scorer: McNemar's of labels, DeLong's of scores
        of two classes, paired losses of probabilities and numbers. Of several tasks, whose tests are in `baselines`, it
        is the smallest times their number (Bonferroni). It is NaN on validation rows, by which points were chosen.
        """
        chosen = self.chosen if isinstance(self, SearchResult) else self._data
        return comparison(chosen, self.baselines, self.parameters)

    def baseline_lines(self) -> list[str]:
        """A sentence for each of the `baselines`: its score, and whether the choice has a better one.

        Raises InputError if no point can be chosen.
        """
        return compare(self.comparison())

    def _comparison_table(self) -> Table:
        compared, kernels = self.comparison(), self._data["kernel"].values
        frame = compared.assign(parameters=compared["parameters"].str.replace("lam=", "λ="))
        of_rows = f"{self._data.attrs['scoring']} in {compared.attrs['rows']}".replace("_", " ")
        columns = [
            Column("model"),
            Column("parameters"),
            Column("score", of_rows, error="standard_error"),
            Column("difference", form="signed", error="margin", limits=compared.attrs["limits"]),
        ]
        note = (
            "Means over the folds ± one standard error. Difference: the chosen model minus this one, paired over "
            "folds, ± half the width of its 95 % confidence interval, or its ends where the limits of the score cut "
            "it off."
        )
        if compared["p_value"].notna().any():
            columns += [Column("test", "same rows"), Column("p_value", "p")]
            note += " Same rows: a test of the two models as they were fitted, by the test rows one by one."
        return Table(frame, columns, "Compared with simpler models", kernels=kernels, note=note)

    @property
    def _has_errors(self) -> bool:
        kind = model_class(str(self._data.attrs["estimator"]))
        return kind is None or bool(kind._has_errors())

    def _many_targets(self) -> ManyTargets | None:
        """The mean scores of many targets over the folds; None of few, or where no point can be chosen."""
        if task_dim(self._data) != "target" or self._data.sizes["target"] <= FEW:
            return None
        data = self.chosen if isinstance(self, SearchResult) else self._data
        rows, baselines = "test" if "test_score" in data else "validation", self.baselines
        name = "test_score" if rows == "test" else "score"
        parts, of_parts = data.get("kernel_r2"), "part in R²"
        if parts is None:
            parts, of_parts = data["weight"] / abs(data["weight"]).sum("kernel"), "share of the weight"
        if not bool((score := data[name].mean("fold")).notnull().any()):
            return None
        parts = parts.mean([dim for dim in parts.dims if dim not in ("kernel", "target")]).broadcast_like(score)
        of_sum = None
        if baselines is not None and TITLES[SUM] in baselines["baseline"].values:
            of_sum = baselines[name].sel(baseline=TITLES[SUM]).mean("fold")
        return ManyTargets(score, str(data.attrs["scoring"]), rows, parts, of_parts, of_sum)

    def _shared_facts(self) -> dict[str, Any]:
        """Baselines, p-values under permuted labels, and the score of the kernels' part given covariates."""
        names = ("chance_p_value", "residual_score", "residual_p_value")
        return {name: self._data[name].values for name in names if name in self._data}

    def residual_lines(self) -> list[str]:
        """A sentence with the score of the kernels' part given covariates, and its p-value; none without covariates."""
        score = self._data.get("residual_score")
        scoring, p = self._data.attrs["scoring"], p_text(np.ravel(self._data.get("residual_p_value", np.nan)))
        if score is None and p:
            return [f"The score is that of the kernels alone, without the covariates; permuted labels: {p}"]
        if score is None or not np.isfinite(score).any():
            return []
        value = with_error(*mean_over_folds(score.mean([dim for dim in score.dims if dim != "fold"])))
        permuted = f"; permuted y − Zb: {p}" if p else ""
        return [
            f"{scoring} {value} of the kernels' part: the prediction − Zb against y − Zb, b from the covariates alone"
            f"{permuted}"
        ]

    def coverage_lines(self, coverage: float = 0.9) -> list[str]:
        """A sentence on prediction sets or intervals of this coverage, of each fold from the other folds, if known.

        See `KernelClassifier.sets_of` and `KernelRegressor.intervals_of`.
        """
        if "held_out_sample" not in self._data or not self._has_errors:
            return []
        if (observed := conformal.out_of_fold(self.predictions, coverage)) is None:
            return []
        share, size = observed
        kind, of_size = "sets", f"{number(size)} labels on average"
        if "held_out_prediction" in self._data:
            kind, of_size = "intervals", f"mean width {number(size)}"
        observed_text = f"{number(share)} of them hold the true label; {of_size}"
        return [f"Prediction {kind} of coverage {coverage:g}, of each fold from the other folds: {observed_text}"]

    @property
    def folds(self) -> dict[str, tuple[Index, ...]]:
        """The folds by name: rows of `scores.sample` that train, validate and test, if the folds have such rows.

        As `cv` of `dmkl.search` or `outer` of `dmkl.evaluate` they give the same folds again. InputError if an older
        version of dmkl made this result, which did not keep them.
        """
        if "part" not in self._data:
            refuse("this result has no folds, since an older version of dmkl made it; search or evaluate again")
        parts = self._data["part"].transpose("fold", "sample").values
        held_out = [part for part in (VALIDATION, TEST) if (parts == part).any()]
        return {
            str(name): tuple(np.flatnonzero(row == part) for part in (TRAIN, *held_out))
            for name, row in zip(self._data["fold"].values, parts, strict=True)
        }

    @property
    def predictions(self) -> xr.Dataset:
        """Out-of-fold predictions: a row for each sample that a fold holds out, by a model that it did not train.

        Of an evaluation the test rows, by the models that are tested. Of a search the fits at the chosen points, on the
        test rows if folds have any; otherwise on the validation rows, by which the points were chosen. Rows are in the
        order of the set if no sample is held out twice; otherwise in that of the folds.

        Over sample: sample_fold, sample_group (if there are groups), true_label, predicted_label, score (of the second
        of two classes; else over class or task) and, if class means decide, probability over class or task; of a
        regression prediction in place of the last three; with covariates also covariate_prediction, b₀ + Zb by least
        squares of y on Z in the training rows, and kernel_prediction, the prediction minus that.
        `dmkl.prediction_table` makes a DataFrame of it.

        Raises InputError if there are none: for more than 100 tasks or targets, or if no point could be chosen.
        """
        data = self._data
        if "held_out_sample" not in data:
            refuse(
                f"this result has no predictions: it has more than {MOST_OUTPUTS} tasks or targets, no point could be "
                "chosen, or an earlier version of dmkl made it"
            )
        kept = [str(name) for name in data.data_vars if str(name).startswith("held_out_")]
        held_out = data[kept].rename({name: name.removeprefix("held_out_") for name in kept})
        samples, folds = held_out["sample"].values, held_out["fold"].values
        variables: dict[str, Any] = {"sample_fold": ("sample", data["fold"].values[folds])}
        if "sample_group" in data:
            variables["sample_group"] = ("sample", data["sample_group"].values[samples])
        predictions = held_out.drop_vars(["sample", "fold"]).rename(held_out="sample").assign(variables)
        # Scores of two classes are of the second, which only the coordinate names.
        coords = {"class": data["class"].values} if "class" in data.coords else {}
        predictions = predictions.assign_coords(coords | {"sample": data["sample"].values[samples]}).drop_attrs()
        once = len(np.unique(samples)) == len(samples)
        predictions = predictions.isel(sample=np.argsort(samples)) if once else predictions
        return describe(predictions.assign_attrs(estimator=data.attrs["estimator"]))


class SearchResult(GridResult):
    """The result of a search over a grid of parameters.

    `dmkl.search` and `dmkl.load` make it; everything is in `scores`, a Dataset.

    Parameters
    ----------
    scores
        One dimension for each parameter of the grid by its name, "fold", "kernel", "task" ("target" of a regression)
        and "round" (one for each pass of the search). With P for the parameters' dimensions:

        ============================ ======================= =========================================================
        score, score_NAME            P, fold[, task]         on the validation rows, by the first scorer, which decides,
                                                             and by others
        test_score, test_score_NAME  P, fold[, task]         on the test rows, if folds have any
        mean_score, standard_error   P[, fold][, task]       of `score` over the folds with a joint choice, where it
                                                             is defined; added if missing
        class_score                  P, fold, class          average precision of each class against the rest,
                                                             validation rows, if classes choose a parameter
        weight                       P, fold, kernel[, task] β
        gap, objective               P, fold[, task]         proven relative gap (NaN if nothing is proven), and
                                                             objective
        status                       P, fold[, task]         0 certified, 1 finished, 2 converged, 3 open; −1 if the
                                                             point was not fitted (each chain of steps may have
                                                             different values of λ), and all else is NaN there
        refit_test_score[_NAME]      fold[, task]            of the chosen point, refitted on training and validation
                                                             rows
        sum_score, alone_score,      [kernel,] lam …, fold   of the plain sum of the kernels and of each kernel alone;
        sum_test_score, sum_gap …                            see `baselines`
        svm_score, svm_test_score …  C, fold                 of the support vector machine on the sum, if fitted
        covariates_score,            fold[, task]            of least squares on the covariates alone, if steps have any
        covariates_test_score …
        residual_score[_NAME]        fold[, task]            of kernel_prediction against y minus covariate_prediction
                                                             (see `predictions`), of a regression with covariates
        largest_own_score,           P, … fold               where the largest score decides: of the fits of the search,
        largest_sum_score …                                  the sum and the machine (svm)
        ``round_…``                  round                   kind, seconds, bytes, basis, certified, worst_gap of a
                                                             pass
        phase_seconds                phase                   seconds of each of `dmkl.progress.PHASES`
        ``held_out_…``               held_out[, class]       of `predictions`
        refined_score                fold[, task]            on the validation rows at refined_weight, if refined
        refined_weight               [fold,] kernel[, task]  weights refined after the choice (parameter `refine`)
        approximate                  P, fold[, task]         1 where the score is by a decision rule from
                                                             interpolated leave-one-out scores; missing without such
        model_score                  model, fold             of `dmkl.auto`: of each model at the point that it chooses
        part                         fold, sample            0 train, 1 validation, 2 test, -1 none; see `folds`
        sample_group                 sample                  the groups that no fold splits, if any
        chance_p_value, chance_score [task]                  under permuted labels of the rows held out; see
        chance_permutations                                  `dmkl.searching.chance.chance`
        residual_p_value             [task]                  of residual_score, under permuted y − Zb, labels minus
                                                             covariate_prediction; of classes, which are predicted
                                                             without the covariates, chance_p_value
        sum_mcnemar_p_value …        [task]                  `dmkl.compare_predictions` of the choice and a baseline on
                                                             the test rows
        constant_score               fold[, task]            of one decision for all rows, on the test rows if there
                                                             are any; missing for callable scorers
        ============================ ======================= =========================================================

        Attributes: estimator, parameters (JSON), scoring, kind, choice ("fold" or "joint"; joint if missing),
        parameters_searched (JSON list of P in order), parameters_by_class (those that each class chooses), n_passes,
        seconds, n_points, solver, created_by, created_on (the day); n_baseline_passes, the passes of baselines after
        the search; hint, a sentence about a grid that may do better; splitter (the text of scikit-learn's, "splits" for
        stored ones, "" for given rows) and asked (JSON: whether labels were given, their name and the sizes of classes,
        the set (`KernelSet.origin`), the source of groups, grid, scoring, unknown, options); svm_left_out, the reason
        why there is no SVM; model_chosen, the name of the model that `dmkl.auto` chose; bandwidths_from_all_samples,
        the number of kernels whose bandwidth or landmarks depend on all samples.
    best
        The model with the chosen parameters; None if there is none.
    rule
        The rule of the choice, "best" or "one_standard_error"; see `dmkl.searching.grid.choose`. The attribute choice
        decides whether the folds have a joint or separate choices; the tasks of a multilabel problem have separate
        choices.

    Raises
    ------
    InputError
        If the rule is unknown, or `scores` lacks something of the above.
    """

    FORMAT, FORMAT_VERSION, TITLE = "dmkl-search", 2, "search"
    NEEDED_ATTRIBUTES = ("estimator", "scoring", "parameters_searched", "n_passes", "seconds")
    NEEDED = ("score", "weight", "gap", "objective", "status")

    def __init__(self, scores: xr.Dataset, *, best: KernelLearner | None = None, rule: Rule = "best") -> None:
        check_choice("rule", rule, get_args(Rule))
        super().__init__(scores)
        dims = set(json.loads(scores.attrs.get("parameters_searched", "[]")))
        if not dims or not {*dims, "fold"} <= set(scores["score"].dims):
            refuse(
                "scores must have the score over 'fold' and the dimensions of the attribute 'parameters_searched', "
                f"found {', '.join(map(str, scores.dims)) or 'no dimensions'}; dmkl.search and dmkl.load make such"
            )
        self._by_fold = str(scores.attrs.get("choice", "joint")) == "fold"  # older files are joint without saying so
        scores = with_statuses(self._data)
        if not {"mean_score", "standard_error"} <= set(scores.data_vars):
            score = scores["score"].drop_attrs(deep=False)
            # With separate choices, the mean of a fold is its score, without an error.
            mean, error = (score, xr.full_like(score, np.nan)) if self._by_fold else mean_over_folds(score)
            scores = scores.assign(mean_score=mean, standard_error=error)
        if "round_bytes" in scores:
            # NetCDF 3 has no integers of 64 bits; counts up to 2⁵³ are exact as floats.
            scores = scores.assign(round_bytes=scores["round_bytes"].astype(np.float64))
        self._data = describe(scores)
        self._best = best
        self._rule: Rule = rule
        self._indices: dict[Rule, dict[str, xr.DataArray]] = {}

    @property
    def rule(self) -> Rule:
        """The rule of the choice."""
        return self._rule

    @property
    def grid(self) -> dict[str, list[Any]]:
        """Values of each searched parameter."""
        return {name: values_of(self._data[name]) for name in self.parameters}

    @property
    def grid_asked(self) -> dict[str, list[Any] | None]:
        """The argument `grid` that repeats the search: lam is None if each chain of steps has different values.

        If the values of λ for unit trace were given for all chains, and some were not resolved, it is all of them.
        """
        grid: dict[str, list[Any] | None] = dict(self.grid)
        if "lam" in grid and bool((self._data["status"] < 0).any()):
            grid["lam"] = list(LAM_TRACE) if set(self.grid["lam"]) <= set(LAM_TRACE) else None
        return grid

    @property
    def choosers(self) -> tuple[str, ...]:
        """Dimensions with separate choices: "fold", "task" (or "target"), both or none."""
        dim = task_dim(self._data)
        return (*(("fold",) if self._by_fold else ()), *(() if dim is None else (dim,)))

    @property
    def by_class(self) -> tuple[str, ...]:
        """Names of the parameters that each class chooses separately; see `best_params_`."""
        return tuple(json.loads(self._data.attrs.get("parameters_by_class", "[]")))

    @property
    def best_(self) -> KernelLearner:
        """The model with the chosen parameters; InputError, which is an AttributeError too, if there is none.

        If folds have test rows or separate choices, it is fitted to the training and validation rows of the first fold,
        otherwise to all rows of the folds.
        """
        if self._best is None:
            msg = (
                "this search has no fitted model, since it ran with refit=False; search with refit=True, or fit an "
                "estimator with best_params_"
            )
            raise _NoModel(msg)
        return self._best

    @property
    def best_index_(self) -> dict[str, xr.DataArray]:
        """Position of the chosen value of each parameter, over the `choosers`; ``scores.isel(best_index_)``."""
        return self._index(self._rule)

    @property
    def chosen(self) -> xr.Dataset:
        """The chosen point: what `scores` has of points, at `best_index_`, over fold and task if these choose alone.

        It prints as a short table of parameters and scores.
        """
        of_any = {*self._data["score"].dims, *self._data["weight"].dims} - {*self.parameters}
        of_points = [n for n, of in self._data.items() if {*self.parameters} & {*of.dims} or of_any >= {*of.dims}]
        chosen = self._data[of_points].isel(self.best_index_)
        return ChosenPoint(chosen.data_vars, chosen.coords, chosen.attrs)

    @property
    def best_params_(self) -> dict[str, Any]:
        """Chosen value of each parameter; by fold and by task if these have separate choices.

        The value of a parameter in `by_class` is a mapping from classes to values. First the point with one value for
        all classes is chosen, and its other parameters are kept; then each class takes the value with the largest
        `class_score`, the average precision of its scores against the rest on the validation rows. These are from fits
        in which all classes had the same value. `best_score_`, `chosen` and `test_score` are of one value for all
        classes; only `refit_test_score`, of the refitted model, is of the mapping.
        """
        return self.choose(self._rule)

    @property
    def best_score_(self) -> Any:
        """Mean validation score of the chosen point; by fold and by task if these have separate choices."""
        mean = self._data["mean_score"].isel(self.best_index_)
        return _by_label({"mean": mean}, self.choosers, lambda at: float(at["mean"]))

    @property
    def baselines(self) -> xr.Dataset | None:
        """The plain sum of the kernels and, if `dmkl.search` was asked for it, the best single kernel.

        Each chooses the parameters that do not concern weights (λ, C, the steps …), and the kernel, by its own
        validation scores, under the same rule and by the same choosers as the search: no tested row has an influence.
        Of more than ten kernels the five with the largest weights of the search at its smallest p are tried alone. The
        plain sum has weight one for each kernel, the same loss and the same solver: it is the Fisher discriminant,
        kernel ridge regression or the support vector machine on the sum.

        score, test_score (if folds have test rows), gap, objective over baseline, fold and task, as in `scores`; the
        chosen parameters, and best_kernel (empty for the sum), over baseline and the `choosers`. None if the search ran
        without baselines. A discriminant also has the support vector machine on the sum, with C. If steps have
        covariates, "covariates alone" are the least squares of y on all of them, or of ±1 for each class with the
        decision rule of the classifier; no parameters are chosen and no gap is needed (NaN).
        """
        return choose_baselines(self._data, self._rule, self.choosers)

    def choose(self, rule: Rule) -> dict[str, Any]:
        """`best_params_` under another rule, "best" or "one_standard_error" (`dmkl.searching.grid.choose`).

        Raises InputError if the rule is unknown, or no point can be chosen.
        """
        grid, by_class = self.grid, self.by_class

        def values_at(at: dict[str, Any]) -> dict[str, Any]:
            """The values at the positions of a chooser."""
            places = {name: int(at[name]) for name in self.parameters}
            scores = self._data.isel(fold=at["fold"]) if by_class and self._by_fold else self._data
            return {
                name: class_values(scores, places, name, grid[name], rule) if name in by_class else grid[name][place]
                for name, place in places.items()
            }

        params: dict[str, Any] = _by_label(self._index(rule), self.choosers, values_at)
        return params

    def _index(self, rule: Rule) -> dict[str, xr.DataArray]:
        check_choice("rule", rule, get_args(Rule))
        if rule not in self._indices:  # figures ask for the choice of each target, and there may be thousands
            self._indices[rule] = best_index(self._data, self.parameters, self.choosers, rule)
        return self._indices[rule]

    def table(self) -> pd.DataFrame:
        """The points of the grid, best mean score first; of each fold or task one after the other if these choose.

        The parameters, mean_score, standard_error, gap (the largest of the folds with a joint choice) and status (the
        worst).
        """
        scores, by = self._data, list(self.choosers)
        gap, status = ((scores[name] if self._by_fold else scores[name].max("fold")) for name in ("gap", "status"))
        values = scores[["mean_score", "standard_error"]].assign(
            gap=gap, status=status.copy(data=np.array([*WORDS, NOT_FITTED])[status.values])
        )
        dims = [*by, *self.parameters]
        frame = values.to_dataframe(dim_order=dims).reset_index()[[*dims, *values.data_vars]]
        n_points = math.prod(scores.sizes[name] for name in self.parameters)
        order = np.lexsort((-frame["mean_score"], np.arange(len(frame)) // n_points))  # the last key counts first
        return frame.iloc[order].loc[frame["status"] != NOT_FITTED].reset_index(drop=True)

    def describe(self) -> Description:
        """The search, the choice, its score, the costs; see `Result.describe`."""
        scores, attrs = self._data, self._data.attrs
        grid = " × ".join(f"{scores.sizes[name]} {name}" for name in self.parameters)
        tasks = "" if self.tasks is None else f", {len(self.tasks)} {task_dim(scores)}s"
        sentences: dict[Key, list[str]] = {}
        try:
            rows = "test" if "test_score" in scores else "validation"
            sentences |= self._choice_and_scores()
            if "model_score" in scores:  # the chosen model, and the scores of all that it was chosen from
                means = (with_error(*mean_over_folds(score)) for score in scores["model_score"])
                of_models = [f"{name} {mean}" for name, mean in zip(scores["model"].values, means, strict=True)]
                model = f"Chosen model: {attrs['model_chosen']}; {attrs['scoring']} {', '.join(of_models)}"
                sentences["choice"] = [model, *sentences["choice"]]
            sentences["coverage"] = self.coverage_lines()
            sentences["chance"] = chance_notes(self.chosen["test_score" if rows == "test" else "score"], scores, rows)
            sentences["kernels_part"] = self.residual_lines()
            sentences |= {"baselines": self.baseline_lines(), "notes": self.notes()}
        except InputError as error:
            sentences["notes"] = [str(error)]
        of_targets = self._many_targets() if "choice" in sentences else None
        tables = {"points": self._points_table} if of_targets is None else of_targets.tables()
        if sentences.get("baselines"):
            tables["comparison"] = self._comparison_table
        sentences["notes"] += [attrs["hint"]] if "hint" in attrs else []
        fits = self._count_fits()
        statuses = ", ".join(f"{n} {word}" for word, n in fits.items() if n)
        costs = cost_and_proof(self.n_passes_, attrs["seconds"], float(scores["gap"].max()))
        sentences["costs"] = [f"{sum(fits.values())} fits ({statuses}) in {costs}"]
        if "phase_seconds" in scores:  # results of older versions have none
            phases = scores["phase_seconds"].to_series().sort_values(ascending=False)
            most = [f"{phase} {number(s)} s" for phase, s in phases.items() if s >= 0.01 * phases.sum()]
            sentences["time"] = [f"Time: {', '.join(most)}"]
        title, folds = f"Search of {attrs['estimator']}", count(scores.sizes["fold"], "fold")
        pictures = {
            "Weights": Figure("Kernel weights of the chosen point.", self.plot_weights),
            "Scores": Figure("Mean validation scores over the grid; a ring marks the choice.", self.plot_scores),
        }
        if of_targets is not None:
            pictures = of_targets.figures()
        if scores.sizes.get("p", 1) > 1:
            pictures["Weights over p"] = Figure("From few kernels to equal weights.", self.plot_weights_over)
        return Description(title, f"{grid}, {folds}{tasks}", sentences, self._facts, tables, pictures)

    def _facts(self) -> dict[str, Any]:
        scores, attrs = self._data, self._data.attrs
        return {
            "grid": self.grid,
            "folds": scores.sizes["fold"],
            "rule": self.rule,
            "choice": attrs.get("choice", "joint"),
            **({"model_chosen": attrs["model_chosen"]} if "model_chosen" in attrs else {}),
            "best": self._if_chosen("best_params_"),
            "best_score": self._if_chosen("best_score_"),
            "baselines": records(self._if_chosen("baselines")),
            **self._shared_facts(),
            "fits": self._count_fits(),
            "largest_gap": float(scores["gap"].max()),
            "solver": attrs.get("solver"),
            **{str(name): scores[name].values for name in scores.data_vars if str(name).startswith("refit_test_score")},
        }

    def _count_fits(self) -> dict[str, int]:
        """The number of fits by their status."""
        status = self._data["status"].values
        return dict(zip(WORDS, np.bincount(status[status >= 0], minlength=len(WORDS)).tolist(), strict=True))

    def _if_chosen(self, attribute: str) -> Any:
        """An attribute of the choice; None if no point has a score."""
        with suppress(InputError):
            return getattr(self, attribute)
        return None

    def _points_table(self) -> Table:
        """The points, of which a terminal shows the best and the chosen one; or the choice of each fold or task."""
        frame, by, chosen = self.table(), list(self.choosers), self._if_chosen("chosen")
        choosers = {dim: xr.DataArray(frame[dim].to_numpy(dtype=str), dims="row") for dim in by}
        marked, tested = np.full(len(frame), chosen is not None), dict[str, str]()
        for name in self.parameters if chosen is not None else ():
            # The value that the fold or the task of the row has chosen.
            marked &= frame[name].to_numpy() == chosen[name].sel(choosers).values
        if "fold" in by and chosen is not None:
            titles = {"test_score": f"test {self._data.attrs['scoring']}", "refit_test_score": "refitted"}
            tested = {name: title for name, title in titles.items() if name in chosen}
        of_choice = {name: np.where(marked, chosen[name].sel(choosers).values, np.nan) for name in tested}
        columns = [
            *(Column(name, form="text") for name in by),
            *(Column(name, form="exact") for name in self.parameters),
            Column("mean_score", str(self._data.attrs["scoring"]), error="standard_error"),
            *(Column(name, title) for name, title in tested.items()),
            Column("gap", "worst gap", form="gap"),
            Column("status"),
            Column("chosen", form="mark"),
        ]
        shown = marked if by else marked | (np.arange(len(frame)) < MOST_LINES)
        return Table(
            frame.assign(**of_choice, chosen=marked), columns, "Scores", np.flatnonzero(shown)[:MOST_ROWS].tolist()
        )

    def notes(self) -> list[str]:
        """The gain of refined weights; choices at an end of the grid of λ or C, bandwidths, missing baselines.

        Raises InputError if no point can be chosen.
        """
        left_out = self._data.attrs.get("svm_left_out")
        machine = [] if left_out is None else [f"The SVM on the sum of kernels was not fitted: {left_out}"]
        return [
            *self._refined_lines(),
            *approximate_notes([self.count_approximate()]),
            *edge_notes(self.grid, self.rising_edges()),
            *data_notes(self._data.attrs),
            *machine,
        ]

    def count_approximate(self) -> tuple[int, int, int]:
        """The numbers of scores, of approximate ones, and of those of chosen points among these; see `scores`."""
        if "approximate" not in self._data:
            return int((self._data["status"] >= 0).sum()), 0, 0
        fitted, chosen = self._data["status"] >= 0, self.chosen["approximate"]
        return int(fitted.sum()), int(self._data["approximate"].sum()), int(chosen.sum())

    def rising_edges(self) -> dict[str, list[float]]:
        """Values of λ and C that the `choosers` choose, NaN where no larger or smaller value promises a higher score.

        A value does so at an end of its grid if the score rises from the value before it by more than its standard
        error over the folds, with the other parameters at their choice; the error of a single fold counts as zero.
        """
        edges = {}
        for name in {"lam", "C"} & set(self.parameters):
            values, index = self._data[name].values, self.best_index_
            others = {other: at for other, at in index.items() if other != name}
            score = self._data["score"].isel(others).transpose("fold", ..., name).values
            score = score.reshape(len(score), -1, len(values))  # (fold, task, value)
            tasks = np.arange(score.shape[1])
            chosen = index[name].transpose("fold", ..., missing_dims="ignore").values.reshape(-1, len(tasks))
            rising = np.full(chosen.shape, np.nan)
            for order in (np.argsort(values), np.argsort(values)[::-1]):
                fitted = np.isfinite(score[..., order]).any(axis=0)
                first = fitted.argmax(axis=1)
                fitted[tasks, first] = False
                end, before = order[first], order[fitted.argmax(axis=1)]
                rise, error = mean_and_error((score[:, tasks, end] - score[:, tasks, before]).T)
                rising = np.where((chosen == end) & (rise > np.nan_to_num(error)), values[end], rising)
            edges[name] = rising.ravel().tolist()
        return edges

    def _choice_and_scores(self) -> dict[Key, list[str]]:
        scoring, by = self._data.attrs["scoring"], "" if self.rule == "best" else " (one-standard-error rule)"
        scores, chosen, params, means = self._data, self.chosen, self.best_params_, self.best_score_
        classes = f", with one {' and '.join(self.by_class)} for all classes" if self.by_class else ""
        if not self.choosers:
            mean = with_error(chosen["mean_score"], chosen["standard_error"])
            of_scores = [f"{scoring} {mean} in validation{classes}", *self._test_lines(chosen, classes)]
            return {"choice": [f"Chosen{by}: {point_text(params)}"], "scores": of_scores}
        every = product(*(map(str, scores[dim].values) for dim in self.choosers))
        choices = [(labels, reduce(getitem, labels, params), reduce(getitem, labels, means)) for labels in every]
        places = {name: np.ravel(at) for name, at in self.best_index_.items()}
        values = "; ".join(chosen_text(name, [self.grid[name][k] for k in at]) for name, at in places.items())
        choice = [f"Chosen{by} by each {' and '.join(self.choosers)}: {values}"]
        if self.tasks is not None and len(choices) > MOST_LINES:
            distribution = self._distribution(np.array([mean for *_, mean in choices], dtype=np.float64))
            return {"choice": choice, "scores": [distribution]}
        lines = [
            f"{', '.join(labels)}: {point_text(point)}, {scoring} {number(mean)}"
            for labels, point, mean in choices[:MOST_LINES]
        ]
        if len(choices) > MOST_LINES:
            lines.append(f"… and {len(choices) - MOST_LINES} more")
        if self.tasks is not None:
            over = f"mean over {' and '.join(f'{dim}s' for dim in self.choosers)}"
            of_scores = [f"{scoring} {number(np.mean([mean for *_, mean in choices]))} in validation, {over}"]
        else:
            mean = with_error(*mean_over_folds(chosen["score"]))
            of_scores = [f"{scoring} {mean} in validation, mean over folds{classes}"]
            of_scores += self._test_lines(chosen, classes)
        return {"choice": choice, "choices": lines, "scores": of_scores}

    def _refined_lines(self) -> list[str]:
        if "refined_score" not in self._data:
            return []
        kept, *scores = self.chosen["weight"], self.chosen["score"], self._data["refined_score"]
        if not self._by_fold:
            kept, scores = kept.isel(fold=0), [score.mean("fold") for score in scores]
        better = (self._data["refined_weight"] != kept).any("kernel").values
        gain = (scores[1] - scores[0]).values[better]
        mean = " → ".join(number(float(score.mean())) for score in scores)
        most = f", by {number(np.median(gain))} (median) and up to {number(gain.max())}" if better.any() else ""
        scoring, what = self._data.attrs["scoring"], f"{better.sum()} of {count(better.size, 'choice')}"
        return [f"Refined weights: {scoring} {mean} in validation; better for {what}{most}"]

    def _distribution(self, scores: Array) -> str:
        scoring = str(self._data.attrs["scoring"])
        title = "R²" if scoring == "r2" else scoring
        quartiles = ", ".join(map(number, np.quantile(scores, [0.25, 0.5, 0.75])))
        text = f"Mean {title} {number(scores.mean())} in validation (quartiles {quartiles})"
        if self._data.attrs.get("kind") == "regression" and "fold" not in self.choosers:
            text += f"; {np.count_nonzero(scores > 0)} of {len(scores)} targets above 0"
        return text

    def _test_lines(self, chosen: xr.Dataset, classes: str) -> list[str]:
        scoring = chosen.attrs["scoring"]
        rows = {"test_score": f"in test{classes}", "refit_test_score": "in test, refitted with the validation rows"}
        return [
            f"{scoring} {with_error(*mean_over_folds(chosen[name]))} {text}"
            for name, text in rows.items()
            if name in chosen
        ]

    plot_scores = figures.plot_scores
    plot_weights = figures.plot_weights
    plot_weights_over = figures.plot_weights_over

    def _write(self, path: Path) -> None:
        if self._best is not None:
            write_model(self._best, path / BEST)
        super()._write(path)

    def _saved_attrs(self) -> dict[str, Any]:
        return super()._saved_attrs() | {"rule": self._rule, "has_model": self._best is not None}

    @classmethod
    def _from_saved(cls, data: xr.Dataset, saved: Saved) -> Self:
        rule, has_model = (data.attrs.pop(name) for name in ("rule", "has_model"))
        return cls(data, best=read(saved.part(BEST)) if has_model else None, rule=rule)


def _by_label(values: Mapping[str, xr.DataArray], by: Sequence[str], value_of: Callable[[dict[str, Any]], Any]) -> Any:
    """`value_of` the elements of arrays and the positions along the dimensions `by`, by name, in dicts by label."""
    # As NumPy's arrays: there may be thousands of labels.
    arrays = {name: array.transpose(*by).values for name, array in values.items()}
    labels = [list(map(str, next(iter(values.values()))[dim].values)) for dim in by]

    def nested(place: tuple[int, ...]) -> Any:
        if len(place) == len(by):
            return value_of({name: array[place] for name, array in arrays.items()} | dict(zip(by, place, strict=True)))
        return {label: nested((*place, k)) for k, label in enumerate(labels[len(place)])}

    return nested(())


@one_blas_thread
def search(
    estimator: KernelLearner,
    K: Kernels,
    y: npt.ArrayLike | None = None,
    grid: Mapping[str, Any] | None = None,
    cv: Any = None,
    *,
    scoring: Any = None,
    groups: npt.ArrayLike | None = None,
    unknown: Any = None,
    refit: bool = True,
    rule: Rule = "best",
    choice: Choice | None = None,
    baselines: Baselines = "sum",
    state: str | Path | None = None,
) -> SearchResult:
    """Fit an estimator for every point of a grid and every fold, score the rows held out, and choose.

    All points, folds and tasks share passes over the kernels, whatever the estimator. Discriminants are solved in
    shared subspaces: some ten passes for the whole grid of the papers, each point with a proven gap. Results that do
    not depend on the point (weights by cuts, groups of samples) are computed once for each fold.

    Parameters
    ----------
    estimator
        The learner to fit; its other parameters hold for all points. It is not changed.
    K
        The kernels of all samples, square: a set, or matrices in memory as `dmkl.create` takes them.
    y
        (m,) labels, or (m, tasks) of 0 and 1, matched by name if it has names of samples; by default those stored with
        the kernels. The tasks of a multilabel problem, and the targets of a regression, have separate weights and
        separate choices.
    grid
        Values by parameter. None for a parameter means the papers' values, and so does None for the grid: p = 1,
        1 + 2⁻⁶ … 1 + 2⁻¹, 2, 3, 4, 8, ∞; ten values of λ, 1e-8 to 10 for kernels of unit trace, 4⁻⁵ to 4⁴ for cosine
        normalization (JMLR 3.3, CVPR 4.1), but for those that kernels stored in single precision do not resolve (on
        some 200 samples the smallest). With several chains of steps, as in
        ``{"p": None, "lam": None, "steps": ["center+trace", "cosine+center"]}``, each has its own values of λ, and the
        points with other values are not fitted (NaN). If samples differ in k(x, x) (the diagonal of a kernel has a
        coefficient of variation above 0.1), and steps and lam or C are the default, "cosine+center" is tried too, with
        twice the fits in the same passes; if values are given, the summary recommends it. Several tasks have one chain.
    cv
        Folds: the stored splits if they have validation rows, 5 otherwise; an integer, a scikit-learn splitter,
        "splits", an iterable of (train, validation) or (train, validation, test), one such tuple, or a mapping of
        names to such.
    scoring
        A scorer by name or a callable, as in scikit-learn; those of the papers are "mean_class_accuracy",
        "average_precision_voc", "mean_average_precision", "matthews" … (`searching.scoring`). Several in a list or a
        dict; the first decides. Accuracy by default; average precision for multilabel problems, R² for
        regressions.
    groups
        (m,) groups that no fold may split, such as the subject of a scan. An integer `cv` then makes folds of whole
        groups.
    unknown
        A code of unknown labels, in addition to NaN, as in the `fit` of every learner.
    refit
        Refit the chosen point: if folds have test rows or separate choices, on the training and validation rows of each
        fold, with the scores `refit_test_score`, the models as `models_` and the first as `best_`; otherwise on all
        rows of the folds.
    rule
        "best", or "one_standard_error": the simplest point within one standard error of the best.
    choice
        "fold": each fold chooses by its validation rows, as in the papers with predefined splits. "joint": all folds
        choose one point, by their mean score; it is refused if a training or validation row of one fold is a test row
        of another. By default "fold" if several folds have test rows.
    baselines
        Fits to compare with, each at its best λ (or C, and other parameters that mean the same there); see
        `SearchResult.baselines`. "sum": the plain sum of the kernels, which costs next to nothing, and for a
        discriminant the support vector machine on that sum, at three C, in three or four passes after the search (left
        out with a note if it needs more memory than the budget, or many passes). "rules": for a learner that decides by
        class means of scores (its parameter `decision`), the same baselines by class means, and the learner and each of
        them by the largest score, at points that this rule chooses. "all": the best single kernel too,
        which takes a few more passes, and several times the seconds. "none". All but the last also have least squares
        on the covariates alone, if steps have any (`dmkl.residualize`).
    state
        A folder that all workers see. The search is saved there after every pass, and the same call continues from
        there; a folder with another search is refused. Temporary if None.

    Raises
    ------
    InputError
        If an argument breaks a rule, or `state` has another search.
    IndefiniteKernelError
        If a kernel proves not to be positive semidefinite.
    WorkerLostError
        If workers died repeatedly.
    """
    arguments = Arguments(estimator, K, y, grid, scoring, groups, unknown, state)
    fits, result = search_on(arguments, cv, rule, choice, baselines, refit=refit)
    return refit_choice(fits, result) if refit else result


def search_on(
    arguments: Arguments,
    cv: Any,
    rule: Rule,
    choice: Choice | None,
    baselines: Baselines,
    *,
    refit: bool,
    kept: dict[str, GridFits] | None = None,
) -> tuple[GridFits, SearchResult]:
    """Search as `search` does, but for the refitted model, for which `refit` makes checks.

    `kept` is as in `dmkl.searching.baselines.fit_with_sum`.
    """
    started = time.monotonic()
    check_choice("rule", rule, get_args(Rule))
    check_choice("baselines", baselines, get_args(Baselines))
    question, folds = make_question("search", arguments, partial(make_folds, cv), refit=refit)
    choice = as_choice(choice, folds, question.K.individuals)
    check_memory_of_refinement(question, [[fold] for fold in folds] if choice == "fold" else [folds])
    fits, of_baselines, predictions = fit_with_baselines(question, choice, rule, baselines, kept)
    scores = fits.to_dataset(choice, time.monotonic() - started)
    scores = scores.merge(of_baselines, join="exact").assign_attrs(of_baselines.attrs)
    scores.attrs |= copies_between_folds(question.K, folds)
    if question.hint:
        scores.attrs["hint"] = question.hint
    result = SearchResult(scores, rule=rule)
    with suppress(InputError):  # of no point that can be chosen
        tested = any(len(fold.test) for fold in folds)
        parts = held_out_parts(fits, result)
        held_out = question.held_out_variables(parts) | chance_of_search(fits, parts, by_fold=choice == "fold")
        if fits.judged is not None and question.on_covariates:
            of_kernels = fits.residual_scores(result.best_index_, tested=tested)
            held_out |= question.score_variables("residual_score", of_kernels)
        if tested and question.estimator._has_errors():
            held_out |= paired_variables(question.predictions(parts), predictions)
        result = SearchResult(result.scores.assign(held_out), rule=rule)
    return fits, refine(question, result)


def held_out_parts(fits: GridFits, result: SearchResult) -> list[Part]:
    """`GridFits.parts` at the choice, with the part of covariates; none of many targets without covariates."""
    question, index, parts = fits.question, result.best_index_, list[Part]()
    wanted = question.n_tasks <= MOST_OUTPUTS or question.on_covariates
    for f, part in enumerate(fits.parts(index) if wanted else ()):
        learners = [question.models[number] for number in question.fit_numbers(index, f)]
        of_covariates = question.covariate_part(learners, question.folds[f].train, part.rows)
        parts.append(part._replace(of_covariates=of_covariates))
    return parts


def chance_of_search(fits: GridFits, parts: Sequence[Part], *, by_fold: bool) -> dict[str, Any]:
    """p-values on the test rows at the choice, or on the validation rows by which all points were compared.

    Those of the kernels' part of a regression need the same covariates at all points that are compared.
    """
    question = fits.question
    if any(len(fold.test) for fold in question.folds):
        return question.p_values(parts, by_fold=by_fold)
    if len({question.covariates_of(model) for model in question.models}) > 1:
        parts = [part._replace(of_covariates=None) for part in parts]
    of_folds = zip(fits.decided, parts, strict=False)  # no parts of many targets
    compared = [[values[: len(part.rows)] for values in decided] for decided, part in of_folds]
    return question.p_values(parts, compared, by_fold=by_fold)


def check_memory_of_refinement(question: Question, groups: Sequence[Sequence[Fold]]) -> None:
    """MemoryBudgetError if weights are to be refined over folds, of which a group chooses together, and do not fit."""
    for folds in groups if getattr(question.estimator, "refine", 0) else ():
        check_refinement(len(question.K), [(len(fold.train), len(fold.validation)) for fold in folds])


def refine(question: Question, result: SearchResult) -> SearchResult:
    """Refine the weights at the choice of each target over its folds, if the estimator asks for it."""
    if not getattr(question.estimator, "refine", 0):
        return result
    by_fold, weights, scores = "fold" in result.choosers, [], []
    for folds in [[fold] for fold in question.folds] if by_fold else [question.folds]:
        fits = []
        for fold in folds:
            rows, chooser = fold.validation, fold.name if by_fold else None
            truth = question.labels[rows].reshape(len(rows), -1)
            fit = chosen_fit(question, result, fold.train, rows, chooser, f"{fold.title}: ")
            fits.append(replace(fit, truth=truth, judge=partial(judge_predictions, question.metrics, truth, len(rows))))
        extras = [fit.outcomes[0].extra for fit in question.run(fits, duals=False).fits]
        weights.append(extras[0]["weights"].T)
        scores += [extra["scores"] for extra in extras]
    of_weights = question.variable(("fold", "kernel", "task"), np.stack(weights))
    if not by_fold:
        of_weights = of_weights[0][1:], of_weights[1][0]
    of_scores = question.variable(("fold", "task"), np.stack(scores))
    return SearchResult(result.scores.assign(refined_weight=of_weights, refined_score=of_scores), rule=result.rule)


def refit_choice(searched: GridFits, result: SearchResult) -> SearchResult:
    """Add the model of the chosen point, and its scores on the test rows."""
    question, folds = searched.question, searched.question.folds
    if "fold" in result.choosers or any(len(fold.test) for fold in folds):
        fits = [chosen_fit(question, result, fold.seen, fold.test, fold.name) for fold in folds]
    else:
        fits = [chosen_fit(question, result, np.unique(np.concatenate([fold.seen for fold in folds])))]
    outcomes = question.run(fits).fits
    scores = result.scores
    if any(len(fit.held_out) for fit in fits):
        scores = scores.assign(question.score_variables("refit_test_score", question.score(map(Part.of, outcomes))))
    best = fitted(outcomes[0])
    # The model of the first fold uses only the scores of that fold: other folds test on rows of it.
    n_used = 1 if len(fits) > 1 else len(folds)
    parts = list(islice(searched.parts(result.best_index_, tested=False), n_used))
    if question.targets.kind != "regression":
        groups, held_out = np.arange(len(question.labels)) if question.groups is None else question.groups, []
        for f, (rows, targets, decision, *_) in enumerate(parts):
            columns = _scores_of_classes(searched, result, f)[: len(rows)] if result.by_class else decision
            index = class_index(targets.kind, targets.classes, question.labels[rows])
            held_out.append(HeldOut(columns.reshape(len(rows), -1), index, groups=groups[rows]))
        best._calibrate_on(held_out, searched.targets[:n_used], fits[0].targets)
    by_rule = getattr(best, "calibrated_on_", None) == SEARCHED  # which has the nonconformity of these rows already
    if not (by_rule or result.by_class or question.n_tasks > MOST_OUTPUTS or not best._has_errors()):
        predictions = question.predictions(parts)
        if "true_label" in predictions and (table := conformal.of_predictions(predictions)) is not None:
            best.nonconformity_ = table
    refitted_result = SearchResult(scores, best=best, rule=result.rule)
    if len(fits) > 1 or len(fits[0].held_out):
        refitted_result._models = fold_models([fold.name for fold in folds], outcomes)
    return refitted_result


def fold_models(names: Sequence[str], outcomes: Sequence[FitOutcome]) -> dict[str, KernelLearner]:
    """The fitted model of each fold, by its name, without the features of its training samples."""
    with warnings.catch_warnings():  # gaps and statuses of folds are in the result
        warnings.simplefilter("ignore")
        models = dict(zip(names, map(fitted, outcomes), strict=True))
    for model in models.values():
        model.features_ = "models of folds are kept without the features of training; take kernels, K[test, train]"
    return models


def _scores_of_classes(fits: GridFits, result: SearchResult, fold: int) -> Float:
    """Scores of the held-out rows of a fold, of each class at the point that it chooses."""
    question, params = fits.question, dict[Any, Any](result.best_params_)
    params = params[question.folds[fold].name] if "fold" in result.choosers else params
    by_class = {name: list(params[name].values()) for name in result.by_class}
    choices = [{name: values[k] for name, values in by_class.items()} for k in range(len(question.targets.classes))]
    learnt = np.searchsorted(question.targets.classes, fits.targets[fold].classes)
    numbers = (question.fit_number(result.best_index_, fold, 0, choices[k]) for k in learnt)
    columns = [fits.decisions[fold][number] for number in numbers]
    # The scores of two classes are one column, of the second.
    return np.stack([c[:, k] for k, c in enumerate(columns)], axis=1) if columns[0].ndim > 1 else columns[1]


def chosen_fit(
    question: Question,
    result: SearchResult,
    train: Index,
    test: Index | None = None,
    fold: str | None = None,
    title: str = "",
) -> Fit:
    """The row of a plan that fits the chosen point of a search to the rows `train`, and scores the rows `test`.

    It is the choice of the `fold`, whose weights are the starting values; the joint choice and mean weights if None.
    """
    chosen, params = result.chosen, dict[Any, Any](result.best_params_)
    weight = chosen.get("refined_weight", chosen["weight"])
    if "fold" in weight.dims:
        weight = weight.mean("fold") if fold is None else weight.sel(fold=fold)
    if "fold" in result.choosers:
        params = params[fold]
    if result.tasks is not None:
        choices = list(params.values())
        params = {name: shared_value(name, [choice[name] for choice in choices]) for name in question.grid}
        starts = list(weight.transpose(question.targets.dim, "kernel").values)
    else:
        starts = [weight.values]
    model = clone(question.estimator).set_params(**params)
    held_out = np.zeros(0, dtype=np.int64) if test is None else test
    return Fit(model, train, question.targets_of(train), question.tasks, held_out, starts=starts, title=title)


def shared_value(name: str, values: list[Any]) -> Any:
    """The common value of all tasks, or a tuple of their values if the model accepts one."""
    if all(value == values[0] for value in values):
        return values[0]
    if name not in OF_TASKS:
        refuse(
            f"the tasks choose different values of {name}, and one model has one for all; search with refit=False and "
            "fit the tasks one by one"
        )
    return tuple(values)
