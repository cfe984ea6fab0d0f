"""`dmkl.compare`, `dmkl.auto`: several models on the same folds, the choice of one, and estimators of scikit-learn."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr
from sklearn.base import clone, is_regressor

import dmkl
from dmkl import progress
from dmkl.arrays import is_known
from dmkl.building import features_of
from dmkl.description import Column, Description, Figure, Key, Table, count, listed, with_error
from dmkl.errors import refuse
from dmkl.kernelset import Kernels, KernelSet, as_kernel_set, given_labels
from dmkl.learners.learner import KernelLearner
from dmkl.learners.plan import labeled_targets
from dmkl.learners.saving import models as classes_of_models
from dmkl.learners.saving import read
from dmkl.numerics.fisher import Targets
from dmkl.passes.blas import one_blas_thread
from dmkl.passes.statistics import sharing_means
from dmkl.searching import figures
from dmkl.searching.baselines import verdict
from dmkl.searching.evaluation import EvaluationResult, evaluate_on
from dmkl.searching.fits import Arguments, GridFits, Part, Question, values_of
from dmkl.searching.folds import Fold, nest_folds
from dmkl.searching.grid import Rule, mean_and_margin, mean_over_folds
from dmkl.searching.paired import compare_predictions, row_test
from dmkl.searching.scoring import limits
from dmkl.searching.search import SearchResult, refit_choice, search_on
from dmkl.searching.texts import chosen_text, cost_and_proof
from dmkl.store.saved import Result, Saved
from dmkl.variables import describe

SUM, SINGLE, AUTO = "sum", "single", "auto"
DEFAULT = {
    "compare": (("mkfda", "mklogistic", "mksvm", "stack", SUM, SINGLE), ("mkridge", "stack", SUM, SINGLE)),
    AUTO: ((SUM, "mkfda", "mkridge", "mksvm", "stack"), (SUM, "mkridge", "stack")),
}
"""By function, the models that it takes by default: for classes, and for numbers."""
N_ERRORS = 2.0
"""The standard errors by which a model must be ahead of the plain sum to be chosen (`pipelines/choice_rules.py`)."""
COMPETITORS = ("hist-gradient-boosting", "random-forest", "logistic", "ridge")


class ModelComparison(Result):
    """Several models on the same nested folds.

    `dmkl.compare` and `dmkl.load` make it.

    Parameters
    ----------
    data
        A Dataset:

        ==================== =================== =====================================================================
        test_score[_NAME]    model, fold[, task] on the test rows, which no choice depends on, by the first scorer, and
                                                 by others
        seconds              model               that the model took
        row_p_value          model               of the model and the best one on the same test rows
        auto_model           fold                that the inner folds chose, if "auto" is among the models
        part                 fold, sample        0 train, 2 test, -1 none
        ==================== =================== =====================================================================

        Attributes: scoring, measures (JSON list), n_competitors (the last models, of scikit-learn), row_test, n_passes,
        seconds.
    evaluations
        By model, its `EvaluationResult`: all but competitors.
    """

    FORMAT, TITLE = "dmkl-comparison", "comparison of models"
    NEEDED_ATTRIBUTES = ("scoring", "measures", "n_competitors", "n_passes", "seconds")
    NEEDED = ("test_score", "seconds", "row_p_value", "part")

    def __init__(self, data: xr.Dataset, evaluations: Mapping[str, EvaluationResult]) -> None:
        super().__init__(data)
        self._evaluations = dict(evaluations)

    @property
    def evaluations(self) -> dict[str, EvaluationResult]:
        """By model, its evaluation on the common folds: choices, inner searches, predictions, tested models."""
        return dict(self._evaluations)

    @property
    def best(self) -> str:
        """The name of the model with the largest mean test score, the first of equal ones, or of all without scores."""
        return _best(self.data)

    def table(self) -> pd.DataFrame:
        """A row for each model, the best first.

        model, score and standard_error (means over the outer folds), difference (the best minus this model, paired over
        the folds) and margin (half the width of its 95 % confidence interval; see `SearchResult.comparison`), p_value
        (of the two models on the same rows), seconds, and the choices of the outer folds in words.
        """
        score = _by_fold(self.data)
        mean, error = mean_over_folds(score)
        difference, margin = mean_and_margin(score.sel(model=self.best) - score, self.data, "test")
        names = self.data["model"].values.tolist()
        frame = pd.DataFrame({"model": names, "score": mean.values, "standard_error": error.values})
        frame["difference"], frame["margin"] = difference.values, margin.values
        frame["p_value"], frame["seconds"] = self.data["row_p_value"].values, self.data["seconds"].values
        frame["choices"] = [self._choices(name) for name in names]
        frame.loc[frame["model"] == self.best, ["difference", "margin"]] = np.nan
        return frame.sort_values("score", ascending=False, kind="stable", ignore_index=True)

    def choices(self) -> pd.DataFrame:
        """A row for each model and outer fold: model, fold, score, inner_score, and the point that the fold chose."""
        parts = []
        for name, evaluation in self._evaluations.items():
            frame = evaluation.table()
            chosen = [
                ", ".join(f"{key}={value}" for key, value in zip(evaluation.parameters, row, strict=True))
                for row in zip(*(_values(evaluation, key) for key in evaluation.parameters), strict=True)
            ]
            kept = frame[[each for each in frame if each not in evaluation.parameters]]
            parts.append(kept.assign(model=name, point=chosen))
        return pd.concat(parts, ignore_index=True)

    def _choices(self, name: str) -> str:
        evaluation = self._evaluations.get(name)
        if evaluation is None:
            return chosen_text("model", values_of(self.data["auto_model"])) if name == AUTO else ""
        return "; ".join(chosen_text(key, _values(evaluation, key)) for key in evaluation.parameters)

    plot = figures.plot_comparison

    def describe(self) -> Description:
        """The best model, differences, the costs; see `Result.describe`."""
        table, attrs, ends = self.table(), self.data.attrs, limits(self.data.attrs["scoring"], of_difference=True)
        best, *others = table.to_dict("records")
        scoring = str(attrs["scoring"])
        lines = [f"{best['model']} is ahead: {scoring} {with_error(best['score'], best['standard_error'])} in test"]
        if np.isnan(best["score"]):
            lines = [f"{scoring} is undefined in the test rows of all folds: take larger ones, or another scorer"]
        for row in others:
            value = with_error(row["score"], row["standard_error"])
            text = verdict(row["difference"], row["margin"], ends, best["model"])
            lines.append(f"{row['model']}: {value}; {text}")
        sentences: dict[Key, list[str]] = {
            "scores": lines[:1],
            "baselines": lines[1:],
            "choice": [f"Chosen by {row['model']}: {row['choices']}" for row in (best, *others) if row["choices"]],
            "notes": ["The largest of several scores is optimistic: new samples decide, or inner folds"],
            "costs": [cost_and_proof(self.n_passes_, attrs["seconds"], np.nan)],
        }
        n_models, n_folds = len(table), self.data.sizes["fold"]
        if self.best in self.data["model"].values[n_models - int(attrs["n_competitors"]) :]:
            note = f"{self.best} of scikit-learn, on the features, is ahead of all models on kernels"
            sentences["notes"] = [*sentences["notes"], note]
        facts = {"best": self.best, "models": table.to_dict("records"), "outer_folds": n_folds}
        pictures = {"Models": Figure("Test scores of each model on the same outer folds, and their means.", self.plot)}
        scope = f"the same {count(n_folds, 'outer fold')} and inner folds for all"
        title = f"Comparison of {count(n_models, 'model')}"
        return Description(title, scope, sentences, lambda: facts, {"comparison": self._table}, pictures)

    def _table(self) -> Table:
        scoring = str(self.data.attrs["scoring"])
        columns = [
            Column("model"),
            Column("score", f"{scoring} in test".replace("_", " "), error="standard_error"),
            Column("difference", form="signed", error="margin", limits=limits(scoring, of_difference=True)),
            Column("p_value", "p"),
            Column("seconds"),
        ]
        note = (
            "Means over the folds ± one standard error. Difference: the first minus this model, paired over folds, ± "
            f"half the width of its 95 % confidence interval. p: {self.data.attrs['row_test']} of the two models on "
            "the same test rows."
        )
        return Table(self.table(), columns, "Models on the same folds", note=note)

    def _write(self, path: Path) -> None:
        for number, evaluation in enumerate(self._evaluations.values()):
            evaluation._write(path / f"evaluation-{number}")
        super()._write(path)

    @classmethod
    def _from_saved(cls, data: xr.Dataset, saved: Saved) -> Self:
        names = data["model"].values.tolist()
        names = [name for name in names[: len(names) - int(data.attrs["n_competitors"])] if name != AUTO]
        return cls(data, {name: read(saved.part(f"evaluation-{number}")) for number, name in enumerate(names)})


def _by_fold(data: xr.Dataset) -> xr.DataArray:
    """Test scores over model and fold; means over the tasks."""
    score = data["test_score"]
    return score.mean([dim for dim in score.dims if dim not in ("model", "fold")])


def _best(data: xr.Dataset) -> str:
    mean, _ = mean_over_folds(_by_fold(data))
    return str(data["model"].values[np.argmax(np.nan_to_num(mean.values, nan=-np.inf))])


def _values(evaluation: EvaluationResult, parameter: str) -> list[Any]:
    """The values of a parameter that the outer folds chose; of weights of one kernel its name."""
    values = values_of(evaluation.scores[parameter])
    if parameter != "weights":
        return values
    return [next((name for name, weight in value.items() if weight), "") for value in values]


@one_blas_thread
@sharing_means()
def compare(
    models: Iterable[str | KernelLearner] | Mapping[str, str | KernelLearner] | None,
    K: Kernels,
    y: npt.ArrayLike | None = None,
    grids: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    outer: Any = None,
    inner: Any = None,
    scoring: Any = None,
    groups: npt.ArrayLike | None = None,
    unknown: Any = None,
    rule: Rule = "best",
    competitors: Iterable[str] | Mapping[str, Any] = (),
    state: str | Path | None = None,
) -> ModelComparison:
    """Compare models on the same nested folds.

    Each model is evaluated as by `dmkl.evaluate` without baselines: the inner folds of each outer fold choose a point
    of its grid, and the model refitted there is scored on the test rows. All models have the same outer and inner
    folds, so that differences are paired.

    Parameters
    ----------
    models
        Learners, or names: those of `dmkl fit --model`, "sum" (the plain sum of the kernels, by discriminants or ridge
        regression) and "single" (one kernel, which the inner folds choose together with λ). For numbers "stack" and
        "mkfda" are the regressions of that kind, and for classes "mkridge" is least squares by the largest score,
        ``MKFDA(decision="largest")``. "auto" is the model that the inner folds of each outer fold choose from the
        others, as `dmkl.auto` does. Or a mapping from names of your own to them. None: those that suit the labels.
    K, y
        As in `dmkl.search`.
    grids
        By model, its grid as in `dmkl.search`; default values where missing.
    outer, inner, scoring, groups, unknown, rule
        As in `dmkl.evaluate`.
    competitors
        Estimators of scikit-learn that are fitted to the features of the kernels, side by side, on the training rows
        of the same outer folds: a mapping from names, or names: "hist-gradient-boosting", "random-forest", "logistic"
        (standardized, C by three inner folds), "ridge" (standardized, its λ by leaving out each row).
    state
        A folder that all workers see, with a folder for each model; the same call continues from there.

    Raises
    ------
    InputError
        If a name is no model, two have the same name, kernels have no features for competitors, or as in
        `dmkl.evaluate`.

    Notes
    -----
    `dmkl.evaluate` has the references. The best of several models on the same test rows is optimistic by the choice.

    A model that differs from one before it by ``decision="largest"`` alone, as "mkridge" from "mkfda" for classes,
    reads the inner fits of that one: its passes and seconds are those of the refits. All models share the statistics of
    the training sets, which the first one measures; their solvers have passes of their own.

    Examples
    --------
    >>> import dmkl
    >>> K = dmkl.open("kernels.zarr")
    >>> grids = {"mkfda": {"p": [1, 2], "lam": [0.1, 1]}, "sum": {"lam": [0.1, 1]}}
    >>> result = dmkl.compare(["mkfda", "stack", "sum"], K, grids=grids, outer=3, inner=2)
    >>> sorted(result.table()["model"])
    ['mkfda', 'stack', 'sum']
    """
    started = time.monotonic()
    K = as_kernel_set(K, "compare")
    asked, chooses = _named_models(models, K, y, unknown, grids, "compare")
    targets, _ = labeled_targets(next(iter(asked.values()))[0], K, y, "compare", unknown)
    rivals, features = _named_competitors(competitors, targets, K, {*asked, *[AUTO] * chooses})
    folds: list[Fold] = []
    question: Question | None = None
    evaluations: dict[str, EvaluationResult] = {}
    to_read = _to_read(asked)

    def make(*args: Any, **of_rows: Any) -> list[Fold]:
        return folds or nest_folds(outer, inner, *args, **of_rows)  # splitters may be random

    for name, (learner, default) in asked.items():
        progress.current().part(f"model {name}")
        grid = (grids or {}).get(name, default)
        folder = None if state is None else Path(state) / name
        arguments = Arguments(learner, K, y, grid, scoring, groups, unknown, folder)
        evaluations[name], question, folds = evaluate_on(make, "compare", arguments, rule, "none", to_read)
    assert question is not None
    first = next(iter(evaluations.values())).scores
    measures = [name for name in map(str, first.data_vars) if name.startswith("test_score")]
    scores = {name: each.scores[measures].drop_attrs() for name, each in evaluations.items()}
    seconds = {name: each.scores.attrs["seconds"] for name, each in evaluations.items()}
    predictions = {name: each.predictions for name, each in evaluations.items() if "held_out_sample" in each.scores}
    chosen: dict[str, str] = {}
    if chooses:
        chosen = {
            fold.name: choose_model({name: each.searches[fold.name] for name, each in evaluations.items()})[0]
            for fold in folds
        }
        kinds = xr.DataArray([*chosen.values()], {"fold": first["fold"].values}, name="model")
        every = xr.concat(scores.values(), xr.Variable("model", [*scores]))
        scores[AUTO], seconds[AUTO] = every.sel(model=kinds).drop_vars("model"), sum(seconds.values())
        if predictions:
            predictions[AUTO] = _predictions_of(chosen, predictions)
    for name, estimator in rivals.items():
        progress.current().part(f"competitor {name}")
        before = time.monotonic()
        scores[name], predictions[name] = _compete(estimator, features, question, folds)
        seconds[name] = time.monotonic() - before
    data = xr.concat(scores.values(), xr.Variable("model", np.array([*scores], dtype=str)))
    kept = [name for name in ("part", "sample_group") if name in first]
    data = data.assign({name: first[name].variable for name in kept}).assign(seconds=("model", [*seconds.values()]))
    if chosen:
        data["auto_model"] = ("fold", np.array([*chosen.values()]))
    best = _best(data)
    tests = {
        name: row_test(compare_predictions(predictions[best], each), first.attrs["scoring"])
        for name, each in predictions.items()
        if best in predictions and name != best
    }
    data["row_p_value"] = ("model", [tests.get(name, ("", np.nan))[1] for name in scores])
    attrs = {
        "scoring": first.attrs["scoring"],
        "measures": first.attrs["measures"],
        "asked": first.attrs["asked"],
        "n_competitors": len(scores) - len(evaluations) - chooses,
        "row_test": next((title for title, _ in tests.values() if title), ""),
        "n_passes": sum(each.n_passes_ for each in evaluations.values()),
        "seconds": time.monotonic() - started,
    }
    return ModelComparison(data.assign_coords(sample=first["sample"].values).assign_attrs(attrs), evaluations)


def _predictions_of(chosen: Mapping[str, str], predictions: Mapping[str, xr.Dataset]) -> xr.Dataset:
    """The predictions of the test rows of each fold by the model that it chose."""
    of_folds = []
    for name, model in chosen.items():
        rows = np.flatnonzero(predictions[model]["sample_fold"] == name)
        of_folds.append(predictions[model].isel(sample=rows))
    shared = set.intersection(*(set(each) for each in of_folds))
    return xr.concat([each[sorted(map(str, shared))] for each in of_folds], "sample")


@one_blas_thread
@sharing_means()
def auto(
    K: Kernels,
    y: npt.ArrayLike | None = None,
    models: Iterable[str | KernelLearner] | Mapping[str, str | KernelLearner] | None = None,
    grids: Mapping[str, Mapping[str, Any]] | None = None,
    cv: Any = None,
    *,
    scoring: Any = None,
    groups: npt.ArrayLike | None = None,
    unknown: Any = None,
    rule: Rule = "best",
    state: str | Path | None = None,
) -> SearchResult:
    """Choose a model and its parameters by cross-validation, and fit it.

    Each model is searched as by `dmkl.search` without baselines, all on the same folds. With s_kf the score of model k
    in validation fold f at the point that it chooses, and d_kf = s_kf − s_0f the difference to the plain sum of the
    kernels, the sum is the choice unless another has

        mean_f d_kf > 2 · standard error of the mean over the folds;

    of those the largest mean is chosen, of equal ones the first. Without "sum" among the models it is the largest mean.
    `dmkl.compare` with "auto" among the models estimates the performance of this whole choice by nested folds.

    Parameters
    ----------
    K, y
        As in `dmkl.search`.
    models, grids
        As in `dmkl.compare`. None: "sum", "mkfda", "mkridge", "mksvm" and "stack" for classes, "sum", "mkridge" and
        "stack" for numbers.
    cv, scoring, groups, unknown, rule
        As in `dmkl.search`; all folds choose one model and point.
    state
        A folder that all workers see, with a folder for each model; the same call continues from there.

    Returns
    -------
    SearchResult
        That of the chosen model, fitted as `best_`; `model_score` in `scores` has the scores of all models, and
        `model_chosen` in ``scores.attrs`` is the name. Passes and seconds are those of all searches.

    Raises
    ------
    InputError
        If a name is no model, two have the same name, a fold tests on rows that another trains or validates on (such
        folds choose a model each by `dmkl.compare`), or as in `dmkl.search`.

    Notes
    -----
    `pipelines/choice_rules.py` measures this rule and others on published sets: there the largest mean, and one
    standard error, chose models that were worse than the plain sum on new samples.

    Examples
    --------
    >>> import dmkl
    >>> K = dmkl.open("kernels.zarr")
    >>> grids = {"sum": {"lam": [0.1, 1]}, "mkfda": {"p": [1, 2], "lam": [0.1, 1]}}
    >>> result = dmkl.auto(K, models=["sum", "mkfda"], grids=grids, cv=3)
    >>> result.scores.attrs["model_chosen"] in ("sum", "mkfda")
    True
    """
    K = as_kernel_set(K, "auto")
    asked, _ = _named_models(models, K, y, unknown, grids, AUTO)
    searches: dict[str, SearchResult] = {}
    fits, to_read = dict[str, GridFits](), _to_read(asked)
    # After the sum, only the model that was searched last can become the choice, so that the fits of one are kept.
    for name in sorted(asked, key=lambda name: name != SUM):
        progress.current().part(f"model {name}")
        learner, default = asked[name]
        folds = next((each.folds for each in searches.values()), cv)  # splitters may be random
        grid, folder = (grids or {}).get(name, default), None if state is None else Path(state) / name
        arguments = Arguments(learner, K, y, grid, scoring, groups, unknown, folder)
        fits[name], searches[name] = search_on(arguments, folds, rule, "joint", "none", refit=True, kept=to_read)
        chosen, _ = choose_model(searches)
        fits = {chosen: fits[chosen]}
    name, scores = choose_model({name: searches[name] for name in asked})
    first, result = next(iter(searches.values())), refit_choice(fits[name], searches[name])
    totals = {key: sum(each.scores.attrs[key] for each in searches.values()) for key in ("n_passes", "seconds")}
    attrs = totals | {"model_chosen": name, "splitter": first.scores.attrs["splitter"]}
    result._data = describe(result.scores.assign(model_score=scores).assign_attrs(attrs))
    return result


def choose_model(searches: Mapping[str, SearchResult]) -> tuple[str, xr.DataArray]:
    """The choice of `auto`, and the scores of the models at their points over model and fold."""
    chosen = [each.chosen["score"].reset_coords(drop=True) for each in searches.values()]
    of_folds = [score.mean([dim for dim in score.dims if dim != "fold"]) for score in chosen]
    scores = xr.concat(of_folds, xr.Variable("model", np.array([*searches], dtype=str)))
    mean, error = mean_over_folds(scores - scores.sel(model=SUM) if SUM in searches else scores)
    better = mean.where(mean > N_ERRORS * error.fillna(0.0), drop=True) if SUM in searches else mean
    return str(better.idxmax("model").item()) if better.size else SUM, scores


# --- models by name --------------------------------------------------------------------------------------------------

_Asked = dict[str, tuple[Any, Mapping[str, Any] | None]]  # By name, a learner and its default grid.


def _named_models(models: Any, K: Any, y: Any, unknown: Any, grids: Any, caller: str) -> tuple[_Asked, bool]:
    """The learners by name, and whether "auto" is to choose from them."""
    labels = given_labels(K, y)[0]
    if labels is None:
        refuse(f"{caller} needs labels: give y, or store them with the kernels (labels=, --labels)")
    given = models if isinstance(models, Mapping) else None
    learners = [] if models is None else list(models.values() if given is not None else models)
    known = np.asarray(labels)[is_known(np.asarray(labels))]
    # Labels are numbers to predict if some of them, but for a code of unknown ones, have a fraction.
    fractions = known.dtype.kind == "f" and bool((known[known != unknown] % 1 != 0).any())
    numbers = fractions or any(is_regressor(each) for each in learners if isinstance(each, KernelLearner))
    learners = learners or list(DEFAULT[caller][numbers])
    names = list(given or (each if isinstance(each, str) else type(each).__name__.lower() for each in learners))
    if repeated := [name for k, name in enumerate(names) if name in names[:k]]:
        refuse(f"models has {repeated[0]!r} twice; give a mapping from names of your own to the models")
    by_name = dict(zip(names, learners, strict=True))
    choice = by_name.pop(AUTO, None)
    if not by_name or choice not in (None, AUTO):
        refuse("'auto' is the choice from the other models; name at least one other, and no learner of your own 'auto'")
    if strange := [name for name in grids or {} if name not in by_name]:
        refuse(f"grids has {strange[0]!r}, which is none of the models compared: {', '.join(by_name)}")
    asked = {name: _as_learner(each, K.names, numbers=numbers) for name, each in by_name.items()}
    return asked, choice is not None


def _to_read(asked: _Asked) -> dict[str, GridFits] | None:
    """A place for fits that another model may read again, by the largest score; None if none does."""
    return {} if any(getattr(learner, "decision", None) == "largest" for learner, _ in asked.values()) else None


def _as_learner(model: Any, kernels: Sequence[str], *, numbers: bool) -> tuple[Any, Mapping[str, Any] | None]:
    """A learner, and its grid if that is not its default one."""
    if isinstance(model, KernelLearner):
        return model, None
    word = str(model).replace("-", "").lower()
    least_squares: Any = dmkl.MKRidge if numbers else dmkl.MKFDA
    if word == SUM:
        return least_squares(np.inf), {"lam": None}
    if word == SINGLE:
        alone = [dict(zip(kernels, row, strict=True)) for row in np.eye(len(kernels)).tolist()]
        return least_squares(np.inf), {"weights": alone, "lam": None}
    if word == "mkridge" and not numbers:
        return dmkl.MKFDA(decision="largest"), None
    named = {"mkfda": "mkridge", "stack": "stackregressor"}.get(word, word) if numbers else word
    classes = {name.lower(): kind for name, kind in classes_of_models().items()}
    if named not in classes:
        refuse(
            f"there is no model {model!r}; models are {listed(sorted(classes), len(classes))}, 'sum', 'single', and "
            "learners"
        )
    return classes[named](), None


def _named_competitors(
    competitors: Any, targets: Targets, K: KernelSet, models: Collection[str]
) -> tuple[dict[str, Any], Any]:
    """The estimators by name, and the features of the samples, (m, features), if there are estimators."""
    competitors = competitors if isinstance(competitors, Mapping) else list(competitors)
    if not competitors:
        return {}, None
    if both := [name for name in competitors if name in models]:
        refuse(f"{both[0]!r} is both a model and a competitor; give a mapping from names of your own to competitors")
    first = next(iter(competitors))
    if targets.dim is not None:
        refuse(f"competitor {first!r} predicts one label, and there are several tasks or targets; compare one by one")
    if not isinstance(competitors, Mapping):
        competitors = _by_name(competitors, targets.kind)
    features = features_of(K)
    if isinstance(features, str):
        refuse(
            f"competitor {first!r} needs the features of the kernels, and there are none; build the set from features "
            "by dmkl.build (dmkl build), without center and normalize, or leave competitors out"
        )
    return dict(competitors), features.side_by_side()


def _by_name(competitors: Iterable[str], kind: str) -> dict[str, Any]:
    from sklearn import ensemble, linear_model
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    powers, suited = 10.0 ** np.arange(-3, 4), dict[str, Any]()
    if kind == "regression":
        suited["hist-gradient-boosting"] = ensemble.HistGradientBoostingRegressor(random_state=0)
        suited["random-forest"] = ensemble.RandomForestRegressor(random_state=0)
        suited["ridge"] = make_pipeline(StandardScaler(), linear_model.RidgeCV(powers))
    else:
        suited["hist-gradient-boosting"] = ensemble.HistGradientBoostingClassifier(random_state=0)
        suited["random-forest"] = ensemble.RandomForestClassifier(random_state=0)
        logistic = GridSearchCV(linear_model.LogisticRegression(max_iter=1000), {"C": powers}, cv=3)
        suited["logistic"] = make_pipeline(StandardScaler(), logistic)
    if unsuited := [name for name in competitors if name not in suited]:
        refuse(
            f"there is no competitor {unsuited[0]!r} for these labels; there are {', '.join(COMPETITORS)} (logistic "
            "for classes, ridge for numbers), or give a mapping from names to estimators of scikit-learn"
        )
    return {name: suited[name] for name in competitors}


def _compete(estimator: Any, X: Any, question: Question, folds: Sequence[Fold]) -> tuple[xr.Dataset, xr.Dataset]:
    """The test scores of an estimator on features, over fold, and its predictions of the test rows."""
    parts = list[Part]()
    for fold in folds:
        targets = question.targets_of(fold.train)
        fitted = clone(estimator).fit(X[fold.train], question.labels[fold.train])
        if targets.kind == "regression":
            decided = np.asarray(fitted.predict(X[fold.test]), dtype=np.float64)
        elif hasattr(fitted, "predict_proba"):  # logarithms of probabilities, of two classes their difference
            with np.errstate(divide="ignore"):
                logs = np.maximum(np.log(fitted.predict_proba(X[fold.test])), -700.0)
            decided = logs[:, 1] - logs[:, 0] if targets.kind == "binary" else logs
        else:
            decided = np.asarray(fitted.decision_function(X[fold.test]))
        parts.append(Part(fold.test, targets, decided, decided))
    predictions = question.predictions(parts)
    fold_names = np.array([fold.name for fold in folds], dtype=str)
    predictions = predictions.assign_coords(sample=question.K.samples[predictions["sample"].values].astype(str))
    predictions = predictions.assign(sample_fold=("sample", fold_names[predictions["sample_fold"].values]))
    return xr.Dataset(question.score_variables("test_score", question.score(parts)), {"fold": fold_names}), predictions
