"""Models and results as tables for people, and as mappings for JSON.

It is imported by functions, after a model or a result was made or read: help and imports of kernels do without pandas
and xarray.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr
from rich.table import Table
from rich.text import Text

from dmkl.arrays import Array, Float, weight_shares
from dmkl.cli.output import bar, number, say, show, table
from dmkl.errors import InputError
from dmkl.estimators.learner import label_accuracy
from dmkl.estimators.plan import tell_new_classes
from dmkl.searching.assessing import class_scores, confusion, measures_of
from dmkl.searching.texts import count, with_interval
from dmkl.solvers.interface import WORDS

if TYPE_CHECKING:
    from dmkl.inference.importance import Importance
    from dmkl.inference.permutation import PermutationTest
    from dmkl.inference.stability import Stability
    from dmkl.searching.evaluation import EvaluationResult
    from dmkl.searching.search import SearchResult

_MOST_COLUMNS = 4
"""Columns of weights that fit a terminal of 80 characters."""
MOST_CHOICES = 30
"""Most choices of folds and tasks that are printed as a table."""

ON_WEIGHTS = (
    "Weights depend on p, on λ or C, and on the spectra of the kernels, also of noise: dmkl permute has p-values, and "
    "dmkl stability the spread."
)
"""A warning that is printed below weights."""


def weights_table(weights: xr.DataArray) -> Table:
    """A row for each kernel: its weight with a bar, in a column for each class, pair, task or model.

    If there are many, the weights of each are divided by their sum, with columns for the mean and the largest, and for
    the class that has the largest.
    """
    columns, largest_at = {"weight": weights}, list[xr.DataArray]()
    if weights.ndim > 1:
        flat = _by_column(weights)
        dim = str(flat.dims[1])
        columns = {str(label): flat.sel({dim: label}) for label in flat[dim].values}
        if len(columns) > _MOST_COLUMNS:
            averaged = " × ".join(count(size, str(name)) for name, size in weights.sizes.items() if name != "kernel")
            shares = flat.copy(data=weight_shares(flat.values, 0))
            columns = {f"share, mean of {averaged}": shares.mean(dim), "largest": shares.max(dim)}
            largest_at = [flat[dim][shares.argmax(dim)]]
    titles = [*columns] if len(columns) > 1 else ["weight"]
    rows = (
        [str(name), *(_with_bar(array, k, 30 if len(columns) == 1 else 6) for array in columns.values())]
        + [str(labels[k].item()) for labels in largest_at]
        for k, name in enumerate(weights.kernel.values)
    )
    made = table("kernel", *titles, last=[str(labels.name) for labels in largest_at], rows=rows)
    for column in made.columns[1 : len(titles) + 1]:
        column.no_wrap = True
    return made


def _with_bar(weights: xr.DataArray, k: int, width: int) -> Text:
    value, largest = float(weights[k]), float(weights.max())
    return Text.assemble(f"{value:.4f} ", (bar(value / largest if largest > 0 else 0.0, width), "cyan"))


def estimate_tables(estimator: Any) -> list[Table]:
    """The change of the prediction by one unit of each covariate, a column for each target.

    Of a model of variance components, variances and fixed effects of each target.
    """
    if hasattr(estimator, "components_"):
        return [made for target in _of_targets(estimator) for made in _component_tables(*target)]
    if not hasattr(estimator, "covariate_effects_"):
        return []
    effects = estimator.covariate_effects_
    numbers = ["effect"] if effects.shape[1] == 1 else list(map(str, effects.target.values))
    by_covariate = zip(effects.covariate.values, effects.values, strict=True)
    rows = ([str(name), *(f"{value:.4g}" for value in values)] for name, values in by_covariate)
    return [table("covariate", numbers=numbers, rows=rows)]


_COMPONENT_COLUMNS = (
    "variance",
    "variance_se",
    "share_unit",
    "variance_share",
    "variance_share_se",
    "liability_share",
    "liability_share_se",
    "p_value",
)


def _component_tables(name: str, components: xr.Dataset, effects: xr.Dataset) -> tuple[Table, Table]:
    columns = [column for column in _COMPONENT_COLUMNS if column in components]
    if "share_unit" in columns and (components["share_unit"].values[:-1] == 1).all():
        columns.remove("share_unit")
    short = (column.replace("variance_share", "share").replace("share_unit", "mean diagonal") for column in columns)
    titles = [column.replace("_", " ") for column in short]
    frame = components[[*columns, "boundary"]].to_dataframe()
    fixed = effects[["effect", "effect_se"]].to_dataframe()
    rows = (
        [str(term), *map(_cell, values), "on the boundary" if boundary else ""]
        for term, *values, boundary in frame.itertuples()
    )
    return (
        table(f"variance of {name}" if name else "variance", numbers=[*titles, ""], rows=rows),
        table(
            "fixed effect",
            numbers=["effect", "effect se"],
            rows=([str(effect), *map(_cell, values)] for effect, *values in fixed.itertuples()),
        ),
    )


def _of_targets(estimator: Any) -> Iterator[tuple[str, xr.Dataset, xr.Dataset]]:
    """The name of each target, its variance components and its fixed effects; no name for a single target."""
    components, effects = estimator.components_, estimator.fixed_effects_
    if "target" not in components.dims:
        yield "", components, effects
        return
    for k, name in enumerate(components.target.values):
        yield str(name), components.isel(target=k, drop=True), effects.isel(target=k, drop=True)


def effects_as_mapping(estimator: Any) -> dict[str, Any]:
    """The intercept and the effects of covariates, by target if there are several; empty for other models.

    Of a model of variance components, the tables of these and of its fixed effects.
    """
    if hasattr(estimator, "components_"):
        tables = {
            name: {
                "variance_components": components.drop_dims("term_2").to_dataframe().T.to_dict(),
                "fixed_effects": fixed.to_dataframe().T.to_dict(),
            }
            for name, components, fixed in _of_targets(estimator)
        }
        return tables.get("", {"targets": tables})
    if not hasattr(estimator, "covariate_effects_"):
        return {}

    def by_target(values: xr.DataArray) -> Any:
        return values.item() if values.size == 1 else values.to_series().to_dict()

    by_name = {str(values.covariate.item()): by_target(values) for values in estimator.covariate_effects_}
    return {"intercept": by_target(estimator.intercept_), "covariate_effects": by_name}


def _by_column(weights: xr.DataArray) -> xr.DataArray:
    """Weights (kernel, group, class) as (kernel, class), with a column for each group and class; others unchanged."""
    if weights.ndim < 3:
        return weights
    group, dim = (str(name) for name in weights.dims[1:])
    names = [f"{label}, group {g}" for g in weights[group].values for label in weights[dim].values]
    coords = {"kernel": weights.kernel.values, dim: names}
    return xr.DataArray(weights.values.reshape(len(weights), -1), coords, name=weights.name)


def summary_table(
    models: Mapping[str, Any], seconds: Mapping[str, float], accuracy: Mapping[str, float] | None = None
) -> Table:
    """A row for each model: accuracy if given, proven gap, passes, solver, time."""
    fitted = list(models.values())
    columns = {
        "accuracy": [f"{100 * share:.2f} %" for share in (accuracy or {}).values()],
        "proven gap": [_gap(float(np.max(np.asarray(model.gap_)))) for model in fitted],
        "passes": [f"{model.n_passes_:.4g}" for model in fitted],
        "solver": [getattr(model, "solver_", "") for model in fitted],  # some learners have one solver only
        "seconds": [f"{value:.2f}" for value in seconds.values()],
    }
    columns = {title: cells for title, cells in columns.items() if any(cells)}
    return table("model", numbers=[*columns], rows=zip(models, *columns.values(), strict=True))


def _gap(value: float) -> str:
    return "none" if math.isnan(value) else "< 1e-12" if value < 1e-12 else f"{value:.1e}"


def model_as_mapping(estimator: Any, path: str, n_samples: int, seconds: float) -> dict[str, Any]:
    """A fitted model that was saved at `path`, for JSON."""
    return {
        "model": type(estimator).__name__,
        "parameters": estimator.get_params(deep=False),
        "path": path,
        "training_samples": n_samples,
        "weights": _by_column(estimator.weights_).to_pandas().T.to_dict(),
        **effects_as_mapping(estimator),
        "gap": np.asarray(estimator.gap_),
        "objective": np.asarray(estimator.objective_),
        "passes": estimator.n_passes_,
        "solver": getattr(estimator, "solver_", None),  # SVMs have one solver only
        "status": estimator.status_,
        "seconds": seconds,
    }


def points_table(result: SearchResult, most: int = 10) -> Table:
    """A row for each of the best points of a search, and for the chosen one.

    If each fold or task chooses for itself, a row for the chosen point of each, with its test score if there is one.
    """
    frame, by = result.table(), list(result.choosers)
    chosen = _is_chosen(result, frame)
    shown = frame[chosen if by else chosen | (np.arange(len(frame)) < most)]
    scoring = result.scores.attrs["scoring"]
    tested = {}
    if "fold" in by:
        titles = {"test_score": f"test {scoring}", "refit_test_score": "refitted"}
        tested = {title: name for name, title in titles.items() if name in result.scores}
    rows: list[list[str | Text]] = []
    for place, row in zip(shown.index, shown.to_dict("records"), strict=True):
        if not by and place > most:
            rows.append(["…"])
        choice = result.chosen.sel({dim: row[dim] for dim in by}) if tested else {}
        rows.append(
            [
                *(_cell(row[name]) for name in [*by, *result.parameters]),
                _with_error(row["mean_score"], row["standard_error"]),
                *(f"{float(choice[name]):.4f}" for name in tested.values()),
                _gap(row["gap"]),
                row["status"],
                Text("chosen" if chosen[place] and not by else "", style="green"),
            ]
        )
    if not by:
        rows += _baseline_rows(result)
    return table(*by, numbers=[*result.parameters, scoring, *tested, "worst gap"], last=("status", ""), rows=rows)


def _with_error(mean: float, error: float) -> str:
    return f"{mean:.4f} ± {error:.4f}" if math.isfinite(error) else f"{mean:.4f}"


def _baseline_rows(result: SearchResult) -> Iterator[list[str | Text]]:
    """A row for each baseline of a search whose folds choose together."""
    from dmkl.searching.grid import mean_over_folds

    baselines = _chosen(result, "baselines")
    for k in range(0 if baselines is None else baselines.sizes["baseline"]):
        baseline = baselines.isel(baseline=k)
        kernel, title = str(baseline["best_kernel"].values), str(baseline["baseline"].values)
        if "C" in baseline and "C" not in result.parameters and not math.isnan(cost := float(baseline["C"])):
            title += f", C = {cost:g}"
        yield [
            *(_cell(baseline[name].item()) if name in baseline else "" for name in result.parameters),
            _with_error(*map(float, mean_over_folds(baseline["score"]))),
            _gap(float(baseline["gap"].max())) if "gap" in baseline else "",
            "",
            Text(f"{kernel} alone" if kernel else title, style="cyan"),
        ]


def _cell(value: Any) -> str:
    return "" if value != value else f"{value:g}" if isinstance(value, float) else str(value)


def _is_chosen(result: SearchResult, frame: pd.DataFrame) -> pd.Series[bool]:
    """Which rows of the table of a search are chosen points."""
    same, chosen = pd.Series(True, index=frame.index), _chosen(result, "chosen")
    if chosen is None:
        return ~same
    choosers = {dim: xr.DataArray(frame[dim].to_numpy(dtype=str), dims="row") for dim in result.choosers}
    for name in result.parameters:  # the value that the fold, task or class of the row has chosen
        same &= frame[name].to_numpy() == chosen[name].sel(choosers).values
    return same


def search_as_mapping(result: SearchResult) -> dict[str, Any]:
    """A search for JSON."""
    scores, attrs = result.scores, result.scores.attrs
    status = scores["status"].values
    statuses = np.bincount(status[status >= 0], minlength=len(WORDS))
    return {
        "grid": result.grid,
        "folds": scores.sizes["fold"],
        "rule": result.rule,
        "choice": attrs["choice"],
        "best": _chosen(result, "best_params_"),
        "best_score": _chosen(result, "best_score_"),
        "points": result.table().to_dict("records"),
        "baselines": _records(_chosen(result, "baselines")),
        **_of_held_out_rows(scores),
        "fits": dict(zip(WORDS, statuses.tolist(), strict=True)),
        "largest_gap": float(scores["gap"].max()),
        "solver": attrs["solver"],
        **{str(name): scores[name].values for name in scores.data_vars if str(name).startswith("refit_test_score")},
    }


def _of_held_out_rows(scores: xr.Dataset) -> dict[str, Any]:
    """p-values under permuted labels, and the score of the kernels' part given covariates."""
    names = ("chance_p_value", "residual_score", "residual_p_value")
    return {name: scores[name].values for name in names if name in scores}


def _records(data: xr.Dataset | None) -> list[dict[Hashable, Any]]:
    """A mapping for each combination of labels, such as baseline, fold and task."""
    return [] if data is None else data.to_dataframe().reset_index().to_dict("records")


def _chosen(result: SearchResult, attribute: str) -> Any:
    """An attribute of the choice; None if no point has a score."""
    try:
        return getattr(result, attribute)
    except InputError:
        return None


# --- measures ------------------------------------------------------------------------------------------------------

_MOST_CLASSES = 12
"""Classes of a confusion matrix that fit a terminal of 80 characters."""


def measures_tables(classes: xr.Dataset, counts: xr.DataArray) -> list[Table]:
    """A row of measures for each class, or task, and unless there are many classes, or tasks, the confusion matrix."""
    (dim,) = classes["recall"].dims
    frame = classes[["recall", "precision", "support"]].to_dataframe()
    lines = ([str(label), number(r), number(p), f"{n:.0f}"] for label, r, p, n in frame.itertuples())
    measures = table(str(dim), numbers=["recall", "precision", "samples"], rows=lines)
    if "task" in counts.dims or counts.sizes["predicted"] > _MOST_CLASSES:
        return [measures]
    rows = zip(counts["true"].values, counts.transpose("true", ...).values, strict=True)
    cells = ([str(label), *(str(int(n)) for n in row)] for label, row in rows)
    titles = [str(label) for label in counts["predicted"].values]
    return [measures, table("true \\ predicted", numbers=titles, rows=cells)]


def measures_as_mapping(classes: xr.Dataset, counts: xr.DataArray) -> dict[str, Any]:
    """Class-wise measures, and the confusion matrix as a row of counts for each true class (or task)."""
    (dim,) = classes["recall"].dims
    rows = "task" if "task" in counts.dims else "true"
    return {
        "classes": _records(classes.rename({dim: "name"})),
        "confusion": {str(label): counts.sel({rows: label}).values for label in counts[rows].values},
    }


# --- results: their tables, and their mappings for JSON ------------------------------------------------------------

TablesAndMapping = tuple[list[Table], dict[str, Any]]


def present_evaluation(result: EvaluationResult) -> TablesAndMapping:
    """A row for each outer fold (and task): its choice and its test scores; and the measures of each class."""
    frame, has_classes = result.table(), "confusion" in result.scores
    mapping = {
        "grid": next(iter(result.searches.values())).grid,
        "outer_folds": result.scores.sizes["fold"],
        "mean_score": np.asarray(result.mean_score_),
        "standard_error": np.asarray(result.standard_error_),
        "folds": frame.to_dict("records"),
        "choices": result.choices.to_dict("records"),
        "baselines": _records(result.baselines),
        **_of_held_out_rows(result.scores),
        **(measures_as_mapping(result.classes, result.confusion) if has_classes else {}),
    }
    if not has_classes and result.scores["test_score"].size > MOST_CHOICES:
        return [], mapping
    names = [name for name in ("fold", "task", "target") if name in frame]
    scores = ["inner_score", *result.measures]
    rows = (
        [
            *(_cell(row[name]) for name in [*names, *result.parameters]),
            *(f"{row[name]:.4f}" for name in scores),
            _gap(row["gap"]),
            row["status"],
        ]
        for row in frame.to_dict("records")
    )
    of_folds = table(*names, numbers=[*result.parameters, *scores, "gap"], last=["status"], rows=rows)
    return [of_folds, *(measures_tables(result.classes, result.confusion) if has_classes else [])], mapping


def present_importance(result: Importance) -> TablesAndMapping:
    """A row for each source (and task), the largest loss first."""
    from dmkl.searching.scoring import limits

    frame = result.table()
    names = [name for name in ("source", "task", "target") if name in frame]
    errors = {"loss": "loss_margin", "alone": "alone_margin", "shapley": "shapley_standard_error"}
    columns = {name: error for name, error in errors.items() if name in frame}
    scoring = result.data.attrs["scoring"]
    ends = {"loss": limits(scoring, of_difference=True), "alone": limits(scoring), "shapley": (-math.inf, math.inf)}
    rows = (
        [str(row[name]) for name in names]
        + [
            "" if math.isnan(row[name]) else with_interval(row[name], row[error], ends[name])
            for name, error in columns.items()
        ]
        for row in frame.to_dict("records")
    )
    titles = ["loss without" if name == "loss" else name for name in columns]
    attrs = {name: result.data.attrs[name] for name in ("rows", "choose", "choice")}
    return [table(*names, numbers=titles, rows=rows)], attrs | {"sources": frame.to_dict("records")}


_MOST_ROWS = 30
"""Most kernels that the table of a permutation test shows."""


def present_permutation_test(result: PermutationTest) -> TablesAndMapping:
    """A row for each kernel, in the order of the p-values."""
    frame = result.table()
    names = [name for name in frame.columns if frame[name].dtype == object]
    numbers = [name for name in frame.columns if name not in names]
    rows = frame.head(_MOST_ROWS).to_dict("records")
    cells = ([*(str(row[name]) for name in names), *(f"{row[name]:.3g}" for name in numbers)] for row in rows)
    return [table(*names, numbers=numbers, rows=cells)], {
        "choose": result.data.attrs["choose"],
        "permutations": result.n_permutations,
        **{name: result.data[name].values for name in ("score", "p_value", "p_value_error")},
        "kernels": frame.to_dict("records"),
    }


def present_stability(result: Stability) -> TablesAndMapping:
    """A row for each kernel; means over tasks or targets if there are several."""
    frame = result.table().groupby("kernel", sort=False).mean(numeric_only=True)
    rows = (
        [
            str(row["kernel"]),
            f"{row['mean_weight']:.4f}",
            f"{row['standard_error']:.4f}",
            f"{row['lower']:.4f} to {row['upper']:.4f}",
            Text.assemble(f"{100 * row['selection_frequency']:3.0f} % ", (bar(row["selection_frequency"], 12), "cyan")),
        ]
        for row in frame.reset_index().to_dict("records")
    )
    made = table("kernel", numbers=["weight", "± s.e.", "95 % of resamples"], last=["selected"], rows=rows)
    made.columns[-1].no_wrap = True
    data, attrs, stable = result.data, result.data.attrs, result.stable()
    return [made], {
        **{name: attrs[name] for name in ("how", "threshold", "random_state")},
        "resamples": data.sizes["resample"],
        "distinct_resamples": attrs["n_distinct"],
        "kernels": result.table().to_dict("records"),
        "stable": stable["kernel"].values[stable.values] if stable.ndim == 1 else stable.to_series().to_dict(),
        "mean_selected": np.asarray(result.mean_selected_),
        "error_bound": np.asarray(result.error_bound()),
        "unimodal_error_bound": np.asarray(result.error_bound(unimodal=True)),
        "rank_agreement": data["rank_agreement"].values,
        "scores": data["score"].values,
        "largest_gap": float(data["gap"].max()),
    }


PRESENT: dict[str, Callable[[Any], TablesAndMapping]] = {
    "EvaluationResult": present_evaluation,
    "Importance": present_importance,
    "PermutationTest": present_permutation_test,
    "Stability": present_stability,
}
"""Functions that present a result, by the name of its class."""

# --- scores of a model on other samples ----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ModelScores:
    """The scores of a fitted model on samples whose labels are known."""

    accuracy: float | None
    """Share of samples with the right label, or with all tasks right; None for a regression."""
    scores: dict[str, Any]
    """Other measures by name: a number, or (task,)."""
    counts: xr.DataArray | None
    """The confusion matrix; None for a regression."""
    residual_scores: dict[str, Any] = field(default_factory=dict)
    """Those of the kernels' part of a regression on covariates."""

    @property
    def mapping(self) -> dict[str, Any]:
        """The scores for JSON."""
        if self.counts is None:
            return {"scores": self.scores} | ({"residual_scores": self.residual_scores} if self.residual_scores else {})
        scores = {"accuracy": self.accuracy, "scores": self.scores}
        return scores | measures_as_mapping(class_scores(self.counts), self.counts)

    def print(self, samples: str) -> None:
        """Print sentences and tables; `samples` describes the samples."""
        if self.accuracy is not None:
            say("Accuracy ", (f"{100 * self.accuracy:.2f} %", "bold"), f" on {samples}.")
        outputs = "targets" if self.accuracy is None else "tasks"
        of_kernels = " of the kernels' part: the prediction and y without what covariates predict"
        on = f" on {samples}" if self.accuracy is None else ""
        for scores, of_what in ((self.scores, on), (self.residual_scores, of_kernels)):
            for name, value in scores.items():
                mean = float(np.nanmean(value))
                say(f"{name} ", (f"{mean:.4g}", "bold"), f", mean over {outputs}" if np.ndim(value) else "", of_what)
        if self.counts is not None:
            show(*measures_tables(class_scores(self.counts), self.counts))


def score_model(
    estimator: Any,
    decision: Float,
    truth: Array,
    scoring: Any,
    unknown: str | None,
    of_covariates: Float | None = None,
) -> ModelScores:
    """Score the decision scores of a fitted model; `unknown` is the code of unknown labels.

    `of_covariates` is the part of these scores that is the covariates'.
    Labels are compared by their texts: a file may store them with another type than those of the training set. Measures
    other than the accuracy need truths of classes that the model has.
    """
    truth = estimator._truth(None, truth, unknown=unknown)
    if estimator.kind_ == "clusters":
        from dmkl.estimators.clustering import cluster_agreement

        agreement = cluster_agreement(estimator.labels_of(decision), truth) if truth.ndim == 1 else {}
        return ModelScores(None, agreement, None)
    if estimator.kind_ == "regression":
        scores, residual_scores = measures_of(estimator, decision, truth, scoring), {}
        if of_covariates is not None:
            without = truth - of_covariates.reshape(truth.shape)
            residual_scores = measures_of(estimator, decision - of_covariates, without, scoring)
        return ModelScores(None, scores, None, residual_scores)
    predicted = estimator.labels_of(decision)
    right = truth.astype(str) == predicted.astype(str)
    accuracy = float(right.mean()) if truth.ndim == 1 else label_accuracy(truth, predicted)
    if estimator.kind_ != "multilabel":
        tell_new_classes(truth.reshape(-1), estimator.classes_)
        truth, by_text = truth.reshape(-1), {str(label): label for label in estimator.classes_.tolist()}
        if set(truth.astype(str)) <= set(by_text):  # a new class keeps the type of all
            truth = np.array([by_text[str(label)] for label in truth.tolist()], dtype=estimator.classes_.dtype)
    scores = {} if scoring is None else measures_of(estimator, decision, truth, scoring)
    return ModelScores(accuracy, scores, confusion(truth, predicted, estimator.classes_, estimator.tasks_))
