"""Models and searches as tables for people, and as mappings for JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from dmkl.cli.output import bar, number, table
from dmkl.errors import InputError
from dmkl.searching.texts import count

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from dmkl.searching.evaluation import EvaluationResult
    from dmkl.searching.result import SearchResult

__all__ = [
    "ON_WEIGHTS",
    "choices_table",
    "classes_table",
    "confusion_table",
    "effects_as_mapping",
    "effects_table",
    "evaluation_as_mapping",
    "measures_as_mapping",
    "model_as_mapping",
    "points_table",
    "search_as_mapping",
    "summary_table",
    "weights_table",
]


_MOST_COLUMNS = 4
"""Of weights: what fits a terminal of 80 characters."""


ON_WEIGHTS = (
    "Weights depend on p, on λ or C, and on the spectra of the kernels, also of noise: dmkl permute has p-values, and "
    "dmkl stability the spread."
)
"""What whoever reads weights has to know."""


def weights_table(weights: Mapping[str, xr.DataArray]) -> Table:
    """A row for each kernel, a column for each model: the weight, and a bar of its share.

    Of a model with weights for several classes, pairs or tasks a column for each; of many their mean, the largest, and
    whose that is.
    """
    columns: dict[str, xr.DataArray] = {}
    whose: xr.DataArray | None = None
    for title, array in weights.items():
        if array.ndim == 1:
            columns[title] = array
            continue
        averaged = " × ".join(count(size, str(name)) for name, size in array.sizes.items() if name != "kernel")
        array = _by_column(array)
        dim = str(array.dims[1])
        if array.sizes[dim] <= _MOST_COLUMNS:
            columns |= {str(label): array.sel({dim: label}) for label in array[dim].values}
        else:
            columns |= {f"mean of {averaged}": array.mean(dim), "largest": array.max(dim)}
            whose = array[dim][array.argmax(dim)]
    found = table("kernel")
    for title in columns:
        found.add_column("weight" if len(columns) == 1 else title, no_wrap=True)
    if whose is not None:
        found.add_column(str(whose.name), overflow="fold")
    width = 30 if len(columns) == 1 else 6
    for name in next(iter(weights.values())).kernel.values:
        cells = []
        for array in columns.values():
            value, largest = float(array.sel(kernel=name)), float(array.max())
            share = value / largest if largest > 0 else 0.0
            cells.append(Text.assemble(f"{value:.4f} ", (bar(share, width), "cyan")))
        if whose is not None:
            cells.append(Text(str(whose.sel(kernel=name).item())))
        found.add_row(Text(str(name)), *cells)
    return found


def effects_table(estimator: Any) -> Table:
    """A row for each covariate of a regression, with the change of the prediction by one unit; a column a target."""
    effects = estimator.covariate_effects_
    found = table("covariate", numbers=["effect"] if effects.shape[1] == 1 else list(map(str, effects.target.values)))
    for name, row in zip(effects.covariate.values, effects.values, strict=True):
        found.add_row(Text(str(name)), *(f"{value:.4g}" for value in row))
    return found


def effects_as_mapping(estimator: Any) -> dict[str, Any]:
    """The intercept and the effects of covariates, of several targets each by target; nothing of other models."""
    if not hasattr(estimator, "covariate_effects_"):
        return {}
    effects, targets = estimator.covariate_effects_, [str(name) for name in estimator.intercept_.target.values]

    def by_target(row: list[float]) -> Any:
        return row[0] if len(row) == 1 else dict(zip(targets, row, strict=True))

    by_name = zip(effects.covariate.values, effects.values.tolist(), strict=True)
    return {
        "intercept": by_target(estimator.intercept_.values.tolist()),
        "covariate_effects": {str(name): by_target(row) for name, row in by_name},
    }


def _by_column(weights: xr.DataArray) -> xr.DataArray:
    """Weights of groups as columns of their own: (kernel, group, class) as (kernel, class), named with the group."""
    if weights.ndim < 3:
        return weights
    group, dim = (str(name) for name in weights.dims[1:])
    import xarray as xr

    names = [f"{label}, group {g}" for g in weights[group].values for label in weights[dim].values]
    return xr.DataArray(
        weights.values.reshape(len(weights), -1),
        dims=("kernel", dim),
        coords={"kernel": weights.kernel.values, dim: names},
        name=weights.name,
    )


def summary_table(
    models: Mapping[str, Any], seconds: Mapping[str, float], accuracy: Mapping[str, float] | None = None
) -> Table:
    """A row for each model: accuracy where known, proven gap, passes, time."""
    import numpy as np

    solvers = any(hasattr(model, "solver_") for model in models.values())  # some learners have one alone
    optional = {"accuracy": bool(accuracy), "solver": solvers}
    columns = ("accuracy", "proven gap", "passes", "solver", "seconds")
    found = table("model", numbers=[name for name in columns if optional.get(name, True)])
    for name, model in models.items():
        gap = float(np.max(np.asarray(model.gap_)))
        found.add_row(
            Text(name),
            *([f"{100 * accuracy[name]:.2f} %"] if accuracy else []),
            _gap(gap),
            f"{model.n_passes_:.4g}",
            *([getattr(model, "solver_", "")] if solvers else []),
            f"{seconds[name]:.2f}",
        )
    return found


def _gap(value: float) -> str:
    import numpy as np

    return "none" if np.isnan(value) else "< 1e-12" if value < 1e-12 else f"{value:.1e}"


def model_as_mapping(estimator: Any, path: Path | str, n_samples: int, seconds: float) -> dict[str, Any]:
    """What is told of a fitted model that was saved at `path`."""
    import numpy as np

    weights = _by_column(estimator.weights_)
    rows: list[Any] = weights.values.tolist()
    if weights.ndim == 2:  # over classes, pairs or tasks
        labels = [str(label) for label in weights[weights.dims[1]].values]
        rows = [dict(zip(labels, row, strict=True)) for row in rows]
    return {
        "model": type(estimator).__name__,
        "parameters": estimator.get_params(deep=False),
        "path": str(path),
        "training_samples": n_samples,
        "weights": {str(name): row for name, row in zip(weights.kernel.values, rows, strict=True)},
        **effects_as_mapping(estimator),
        "gap": np.asarray(estimator.gap_).tolist(),
        "objective": np.asarray(estimator.objective_).tolist(),
        "passes": estimator.n_passes_,
        "solver": getattr(estimator, "solver_", None),  # machines have one alone
        "status": estimator.status_,
        "seconds": seconds,
    }


def points_table(result: SearchResult, most: int = 10) -> Table:
    """A row for each of the best points of a search, and for the chosen one.

    Where folds or tasks choose each for itself, the chosen point of each alone, with its test score if there is one.
    """
    import numpy as np

    frame, by = result.table(), list(result.choosers)
    chosen = _is_chosen(result, frame)
    shown = frame[chosen if by else chosen | (np.arange(len(frame)) < most)]
    scoring = result.scores.attrs["scoring"]
    tested = {}
    if "fold" in by:
        titles = {"test_score": f"test {scoring}", "refit_test_score": "refitted"}
        tested = {title: name for name, title in titles.items() if name in result.scores}
    found = table(*by, numbers=[*result.parameters, scoring, *tested, "worst gap"])
    for name in ("status", ""):
        found.add_column(name, overflow="fold")
    for place, row in zip(shown.index, shown.to_dict("records"), strict=True):
        if not by and place > most:
            found.add_row("…")
        error = row["standard_error"]
        own = result.chosen.sel({dim: row[dim] for dim in by}) if tested else {}
        found.add_row(
            *(Text(_cell(row[name])) for name in [*by, *result.parameters]),
            f"{row['mean_score']:.4f}" + (f" ± {error:.4f}" if np.isfinite(error) else ""),
            *(f"{float(own[name]):.4f}" for name in tested.values()),
            _gap(row["gap"]),
            row["status"],
            Text("chosen" if chosen[place] and not by else "", style="green"),
        )
    if not by:
        _add_baselines(found, result)
    return found


def _add_baselines(found: Table, result: SearchResult) -> None:
    """A row for each baseline, where all folds choose together."""
    import numpy as np

    from dmkl.searching.means import mean_and_error

    baselines = _chosen(result, "baselines")
    for k in range(0 if baselines is None else baselines.sizes["baseline"]):
        one = baselines.isel(baseline=k)
        mean, error = map(float, mean_and_error(one["score"]))
        kernel = str(one["best_kernel"].values)
        found.add_row(
            *(Text(_cell(one[name].item()) if name in one else "") for name in result.parameters),
            f"{mean:.4f}" + (f" ± {error:.4f}" if np.isfinite(error) else ""),
            _gap(float(one["gap"].max())),
            "",
            Text(f"{kernel} alone" if kernel else _baseline_title(one, result.parameters), style="cyan"),
        )


def _baseline_title(one: xr.Dataset, columns: Sequence[str]) -> str:
    """The baseline's title, with C where that is no column."""
    cost = float(one["C"]) if "C" in one and "C" not in columns else float("nan")
    return str(one["baseline"].values) + ("" if cost != cost else f", C = {cost:g}")


def _cell(value: Any) -> str:
    return "" if value != value else f"{value:g}" if isinstance(value, float) else str(value)


def _is_chosen(result: SearchResult, frame: pd.DataFrame) -> pd.Series[bool]:
    """Which rows of the table of a search are chosen points."""
    import pandas as pd
    import xarray as xr

    try:
        index = result.best_index_
    except InputError:  # no point has a score
        return pd.Series(False, index=frame.index)
    same = pd.Series(True, index=frame.index)
    for name, at in index.items():
        # The value that was chosen by whom the row is about.
        values = xr.DataArray(result.scores[name].values[at.values], at.coords, at.dims)
        if result.choosers:
            whose = {dim: xr.DataArray(frame[dim].to_numpy(dtype=str), dims="row") for dim in result.choosers}
            values = values.sel(whose)
        same &= frame[name].to_numpy() == values.values
    return same


def search_as_mapping(result: SearchResult) -> dict[str, Any]:
    """What is told of a search."""
    import numpy as np

    from dmkl.solvers.outcome import WORDS

    scores, attrs = result.scores, result.scores.attrs
    status = scores["status"].values
    statuses = np.bincount(status[status >= 0], minlength=len(WORDS))
    mapping: dict[str, Any] = {
        "estimator": attrs["estimator"],
        "grid": result.grid,
        "folds": scores.sizes["fold"],
        "scoring": attrs["scoring"],
        "rule": result.rule,
        "choice": scores.attrs["choice"],
        "best": _chosen(result, "best_params_"),
        "best_score": _chosen(result, "best_score_"),
        "points": result.table().to_dict("records"),
        "baselines": _baselines_as_rows(result),
        "fits": dict(zip(WORDS, statuses.tolist(), strict=True)),
        "largest_gap": float(scores["gap"].max()),
        "passes": result.n_passes_,
        "solver": attrs["solver"],
        "seconds": attrs["seconds"],
    }
    for name in scores.data_vars:
        if str(name).startswith("refit_test_score"):
            mapping[str(name)] = scores[name].values
    return mapping


def _baselines_as_rows(result: SearchResult) -> list[dict[str, Any]]:
    """A mapping for each baseline and fold (and task)."""
    baselines = _chosen(result, "baselines")
    return [] if baselines is None else baselines.to_dataframe().reset_index().to_dict("records")


def _chosen(result: SearchResult, attribute: str) -> Any:
    """What is known of the choice; None where no point has a score."""
    try:
        return getattr(result, attribute)
    except InputError:
        return None


# --- measures ------------------------------------------------------------------------------------------------------


_MOST_CLASSES = 12
"""Of a confusion matrix: what fits a terminal of 80 characters."""


def classes_table(classes: xr.Dataset) -> Table:
    """A row for each class, or task: recall, precision, and samples."""
    (dim,) = classes["recall"].dims
    found = table(str(dim), numbers=["recall", "precision", "samples"])
    for label in classes[dim].values:
        one = classes.sel({dim: label})
        found.add_row(
            Text(str(label)), number(float(one["recall"])), number(float(one["precision"])), str(int(one["support"]))
        )
    return found


def confusion_table(counts: xr.DataArray) -> Table | None:
    """A row for each true class, a column for each that was predicted; None where they are too many, or tasks."""
    if "task" in counts.dims or counts.sizes["predicted"] > _MOST_CLASSES:
        return None
    found = table("true \\ predicted", numbers=[str(label) for label in counts["predicted"].values])
    for label in counts["true"].values:
        found.add_row(Text(str(label)), *(str(int(n)) for n in counts.sel(true=label).values))
    return found


def measures_as_mapping(classes: xr.Dataset, counts: xr.DataArray) -> dict[str, Any]:
    """Class-wise measures, and the confusion matrix as a row of counts for each true class (or task)."""
    (dim,) = classes["recall"].dims
    rows = "task" if "task" in counts.dims else "true"
    return {
        "classes": classes.to_dataframe().reset_index().rename(columns={str(dim): "name"}).to_dict("records"),
        "confusion": {str(label): counts.sel({rows: label}).values for label in counts[rows].values},
    }


# --- evaluations ---------------------------------------------------------------------------------------------------


def choices_table(result: EvaluationResult) -> Table:
    """A row for each outer fold (and task): what was chosen there, and what it is worth on the test samples."""
    frame = result.table()
    names = [name for name in ("fold", "task", "target") if name in frame]
    scores = ["inner_score", *result.measures]
    found = table(*names, numbers=[*result.parameters, *scores, "gap"])
    found.add_column("status", overflow="fold")
    for row in frame.to_dict("records"):
        found.add_row(
            *(Text(_cell(row[name])) for name in [*names, *result.parameters]),
            *(f"{row[name]:.4f}" for name in scores),
            _gap(row["gap"]),
            row["status"],
        )
    return found


def evaluation_as_mapping(result: EvaluationResult) -> dict[str, Any]:
    """What is told of an evaluation."""
    import numpy as np

    scores, attrs = result.scores, result.scores.attrs
    mean, error = (np.asarray(value).tolist() for value in (result.mean_score_, result.standard_error_))
    return {
        "estimator": attrs["estimator"],
        "grid": next(iter(result.searches.values())).grid,
        "outer_folds": scores.sizes["fold"],
        "scoring": attrs["scoring"],
        "mean_score": mean,
        "standard_error": error,
        "folds": result.table().to_dict("records"),
        "choices": result.choices.to_dict("records"),
        "baselines": []
        if result.baselines is None
        else result.baselines.to_dataframe().reset_index().to_dict("records"),
        **(measures_as_mapping(result.classes, result.confusion) if "confusion" in scores else {}),
        "passes": result.n_passes_,
        "seconds": attrs["seconds"],
    }
