"""Figures of searches and evaluations: scores, kernel weights, confusions and out-of-fold predictions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import xarray as xr
from scipy.stats import rankdata
from sklearn.metrics import (
    ConfusionMatrixDisplay,
    average_precision_score,
    precision_recall_curve,
    r2_score,
    roc_auc_score,
    roc_curve,
)

from dmkl import pictures
from dmkl.arrays import Array, Float, check_choice, is_known, plain_repr, weight_shares
from dmkl.errors import InputError, refuse
from dmkl.numerics.survival import kaplan_meier, log_rank
from dmkl.searching.assessing import class_scores
from dmkl.searching.grid import best_index, choose, grid_points, mean_over_folds, within_one_standard_error
from dmkl.searching.scoring import limits
from dmkl.searching.targets import least_drawn
from dmkl.store.saved import of_task, task_dim

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LINE = 56  # Characters in a line above a panel.
_AXES = {"p": "norm p", "lam": "ridge λ", "C": "cost C"}  # Labels of axes by parameter.
_MOST_NUMBERS = 20  # Most classes whose confusion matrix has numbers.
_LONGEST_CLASS = 20
_MOST_RINGS = 12  # Most points of a map with a ring.


def _choices(result: Any, task: str | None) -> tuple[dict[str, xr.DataArray], list[str]]:
    """The chosen positions, of one task if it is named; and the dimensions with separate choices."""
    index, by = result.best_index_, list(result.choosers)
    if task is not None:
        dim = task_dim(result.scores)
        index, by = {name: at.sel({dim: task}) for name, at in index.items()}, [other for other in by if other != dim]
    return index, by


def plot_scores(result: Any, ax: Axes | Sequence[Axes] | None = None, *, task: str | None = None) -> Any:
    """Draw the mean validation scores of a search.

    Left, the map over two parameters: a ring around the chosen point, dots in the points with a mean within one
    standard error of the best. Right, the curve over the first of them, at the best value of the other, with bars of
    one standard error; the chosen value has a ring at its score, and the dotted line is one standard error below the
    best. If folds have test rows, squares are the test means of the same points, which validation has chosen, with
    their bars. A grid of one parameter has the curve only. Of three or more parameters the two with the most values are
    drawn (p and lam if several have as many), the others at their chosen values. Each chain of steps has a map of its
    own, of the values of λ that it has; the curve is that of the chain that is chosen most often.

    `ax` are the axes of maps and curve, or those of the curve for one parameter; those of a new figure by default. They
    are returned, several as an array; ``figure`` of each is the figure, which notebooks show. `task` is a task of a
    multilabel problem. By default the scores are means over the tasks, with the standard error of these means, and each
    chosen point has a ring with the number of tasks, the 12 most frequent of many; likewise for folds with separate
    choices. Points with an R² below -0.2 have the color of -0.2. InputError if there is no such task, no point can be
    chosen, or `ax` has a wrong number of axes.
    """
    result._check_task(task)
    index, by = _choices(result, task)
    names, points = _drawn_parameters(result), _points(result, task, by, index)
    others = {name: np.ravel(at.values).tolist() for name, at in index.items() if name not in names}
    fixed = {name: Counter(at).most_common(1)[0][0] for name, at in others.items()}
    for name in names:
        order, labels = _ordered(result.scores[name])
        points = points.isel({name: order}).assign_coords({name: labels})
    several = len(names) > 1 and "steps" in fixed and points.sizes["steps"] > 1  # a map for each chain
    parts = [fixed | {"steps": k} for k in range(points.sizes["steps"])] if several else [fixed]
    points["times"] = points["times"].sum([name for name in fixed if not (several and name == "steps")])
    curve = points.isel(fixed).transpose(*names)
    if several:  # the curve has the choices of all chains
        curve["times"] = points["times"].sum("steps")
    side, rows = max(4.2, 1.6 + 0.34 * points.sizes[names[0]]) + 0.8, points.sizes[names[-1]]
    maps = [f"map of {_setting('steps', value)}" for value in result.grid["steps"]] if several else ["map"]
    sizes = dict.fromkeys([*maps, "curve"], (side, max(3.6, 1.2 + 0.3 * rows)))
    axes = pictures.panels(ax, sizes if len(names) > 1 else {"the curve": (side, 3.6)})
    scoring = str(result.scores.attrs["scoring"])
    ends, lowest, scoring = limits(scoring), least_drawn(scoring), pictures.shortened(scoring.replace("_", " "))
    if result.tasks is not None:
        mean = f"mean of {len(result.tasks)} {task_dim(result.scores)}s"
        scoring = f"{scoring}, {mean if task is None else pictures.shortened(task)}"
    folds = result.scores.sizes["fold"]
    scored = " and ".join(map(pictures.symbol, names))
    pictures.set_title(axes, f"Validation score over {scored}{f', mean of {folds} folds' if folds > 1 else ''}")
    for panel, part in zip(axes[:-1], parts, strict=False):
        shown = points.isel(part).transpose(*names)
        if several:  # of the points that this chain has
            for name in names:
                shown = shown.dropna(name, how="all", subset=["mean_score"])
        rings = "ring: chosen"
        if shown["times"].sum() > 1:
            rings = f"rings: chosen by a {' and '.join(by)}, or as many as the number says"
            n_chosen = np.count_nonzero(shown["times"])
            rings += f"; of {n_chosen} points the {_MOST_RINGS} chosen most" if n_chosen > _MOST_RINGS else ""
        legend = [*_settings(result, part), rings, "dots: within one standard error of the best"]
        _draw_map(panel, shown, scoring, lowest)
        _label_panel(panel, names, shown, legend)
    scoring += f", best {pictures.symbol(names[1])}" if len(names) > 1 else ""
    settings = _settings(result, fixed) if several or len(names) == 1 else []  # a single map has them
    _label_panel(axes[-1], [names[0], scoring], curve, [*settings, *_draw_curve(axes[-1], curve, ends)])
    return axes if len(axes) > 1 else axes[0]


def _settings(result: Any, places: Mapping[str, int]) -> list[str]:
    return [_setting(name, result.grid[name][place]) for name, place in places.items()]


def _points(result: Any, task: str | None, by: Sequence[str], index: Mapping[str, xr.DataArray]) -> xr.Dataset:
    """Means and standard errors over the parameters, also on test rows, and whether a mean is `near` the best.

    `times` are how often each point is among those at `index`; the attribute threshold is one standard error below the
    best.
    """
    scores = of_task(result.scores, task)
    means = scores["mean_score"], scores["standard_error"]
    if by:
        means = mean_over_folds(scores["score"].mean([dim for dim in by if dim != "fold"]))
    points = xr.Dataset(dict(zip(("mean_score", "standard_error"), means, strict=True)))
    of_rule = grid_points(points, result.parameters)
    best = choose(**of_rule)
    points["near"] = (result.parameters, within_one_standard_error(**of_rule))
    points.attrs["threshold"] = float(of_rule["mean"][best] - np.nan_to_num(of_rule["standard_error"][best]))
    times = np.zeros([points.sizes[name] for name in result.parameters], dtype=np.int64)
    np.add.at(times, tuple(np.ravel(index[name].values) for name in result.parameters), 1)
    points["times"] = (result.parameters, times)
    if "test_score" in scores and bool(scores["test_score"].notnull().any()):
        tasks = [dim for dim in scores["test_score"].dims if dim not in (*result.parameters, "fold")]
        points["test_score"], points["test_error"] = mean_over_folds(scores["test_score"].mean(tasks))
    return points


def _drawn_parameters(result: Any) -> list[str]:
    """The parameter along x, and that along y if two vary."""
    sizes = result.scores.sizes
    ranked = sorted(result.parameters, key=lambda name: (-sizes[name], {"p": 0, "lam": 1}.get(name, 2)))
    chosen = [ranked[0], *(name for name in ranked[1:2] if sizes[name] > 1)]
    # p along x and lam along y, whatever the other is.
    return sorted(chosen, key=lambda name: {"p": 0, "lam": 2}.get(name, 1))


def _ordered(values: xr.DataArray) -> tuple[npt.NDArray[np.int64], list[str]]:
    """The order of the values of a parameter, which ascends if they are numbers, and their labels in this order."""
    name = str(values.name)
    if values.dtype.kind not in "iuf":
        return np.arange(values.size), [pictures.shortened(str(value)) for value in values.values]
    order = np.argsort(values.values, kind="stable")
    for digits in (2 if name == "lam" else 3, 3, 6, 17):  # the shortest that differ
        labels = [_number(name, float(value), digits) for value in values.values[order]]
        if len(set(labels)) == len(labels):
            break
    return order, labels


def _number(name: str, value: float, digits: int) -> str:
    """A label such as 8, 1.5, 1e-8, ∞, and 1+2⁻⁶ for norms close to one."""
    if np.isinf(value):
        return "∞" if value > 0 else "-∞"
    exponent = np.log2(value - 1) if name == "p" and value > 1 else 0.0
    if exponent <= -3 and exponent == round(exponent):
        return f"1+2$^{{{int(exponent)}}}$"
    plain, scientific = f"{value:.{digits}g}", np.format_float_scientific(value, digits - 1, trim="-", exp_digits=1)
    return scientific if "e" in plain or (abs(value) < 1 and len(scientific) < len(plain)) else plain


def _setting(name: str, value: Any) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{pictures.symbol(name)} = {_number(name, value, 3) if number else pictures.shortened(str(value))}"


def _draw_map(ax: Axes, points: xr.Dataset, scoring: str, lowest: float) -> None:
    ax.set_facecolor("#dddddd")  # for points without a score
    mean = np.ma.masked_invalid(points["mean_score"].values.T)
    low = bool(mean.count()) and mean.min() < lowest < mean.max()
    image = ax.pcolormesh(mean, cmap="viridis", vmin=lowest if low else None, edgecolors="white", linewidth=0.4)
    x_near, y_near = np.nonzero(points["near"].values)
    (dots,) = ax.plot(x_near + 0.5, y_near + 0.5, ".", color="black", markersize=4, markeredgewidth=0)
    dots.set_path_effects(_outline(1.2))
    for (column, row), times in _most_chosen(points["times"].values):
        _ring(ax, column + 0.5, row + 0.5, times)
    pictures.color_bar(ax, image, scoring, "min" if low else "neither")
    columns, rows = (points[name].values for name in points["mean_score"].dims)
    ax.set_xticks(np.arange(len(columns)) + 0.5, columns)
    ax.set_yticks(np.arange(len(rows)) + 0.5, rows)
    pictures.dress(ax, hidden="all")


def _most_chosen(times: Array) -> list[tuple[Sequence[int], int]]:
    """The positions with a ring, and how often each is chosen."""
    order = np.argsort(-times, axis=None, kind="stable")[: min(_MOST_RINGS, np.count_nonzero(times))]
    return list(zip(np.stack(np.unravel_index(order, times.shape), axis=1).tolist(), times.flat[order], strict=True))


def _draw_curve(ax: Axes, points: xr.Dataset, ends: tuple[float, float]) -> list[str]:
    """Draw the scores over the first parameter, at the best value of the second; return the legend."""
    filled = points["mean_score"].fillna(-np.inf)
    best = points.isel({name: filled.argmax(str(name)) for name in filled.dims[1:]})
    mean, error, places = best["mean_score"].values, best["standard_error"].values, np.arange(len(filled))
    style: dict[str, Any] = {"markersize": 4, "linewidth": 1.4, "elinewidth": 1}
    bars_of = np.abs(pictures.interval(mean, error, ends) - mean)
    ax.errorbar(places, mean, bars_of, color=pictures.BLUE, marker="o", label="validation", **style)
    legend = []
    if "test_score" in best:
        test, deviation = (best[name].where(np.isfinite(mean)).values for name in ("test_score", "test_error"))
        style |= {"color": "#333333", "marker": "s", "linestyle": "--"}
        ax.errorbar(places, test, np.abs(pictures.interval(test, deviation, ends) - test), label="test", **style)
        legend += ["blue: validation", "squares: test, at the same points"]
    if np.any(error > 0):
        ax.axhline(points.attrs["threshold"], color=pictures.GRAY, linestyle=":", linewidth=1.2, zorder=0)
        legend += ["bars: one standard error", "dotted: one below the best"]
    # A single choice is at its score; choices of tasks or folds, whose scores are not drawn, are on the curve.
    times, others = points["times"], filled.dims[1:]
    scores = points["mean_score"].where(times > 0).max(others).values if times.sum() == 1 else mean
    for (column,), n in _most_chosen(times.sum(others).values):
        _ring(ax, column, float(scores[column]), n, zorder=1)
    ax.set_xticks(places, points[filled.dims[0]].values)
    pictures.dress(ax, hidden="top right", grid="y", ends="y")
    ax.tick_params(length=3.5)
    return legend


def _outline(width: float) -> list[Any]:
    from matplotlib.patheffects import Normal, Stroke

    return [Stroke(linewidth=width, foreground="white"), Normal()]


def _ring(ax: Axes, x: float, y: float, times: int, zorder: float = 5) -> None:
    effects = _outline(4.5)
    (ring,) = ax.plot(x, y, "o", label="chosen", zorder=zorder, markersize=12, markeredgewidth=2.2)
    ring.set(markerfacecolor="none", markeredgecolor=pictures.RED, path_effects=effects)
    if times > 1:
        style: dict[str, Any] = {"fontsize": 8, "color": pictures.RED, "path_effects": effects}
        ax.annotate(str(times), (x, y), (8, 6), textcoords="offset points", **style)


def _label_panel(ax: Axes, names: Sequence[str], points: xr.Dataset, legend: Sequence[str]) -> None:
    """Name both axes, which may be of parameters, and write the legend above."""
    labels = points[names[0]].values.tolist()
    ax.set_xlabel(_AXES.get(names[0], names[0]), fontsize=9)
    ax.set_ylabel(_AXES.get(names[1], names[1]), fontsize=9)
    ax.set_title(fill("; ".join(legend), _LINE), fontsize=8, color="#555555", loc="left")
    if (longest := pictures.longest_shown(labels)) * len(labels) > pictures.ROOM_FOR_LABELS:
        ax.tick_params(axis="x", rotation=90 if longest > 8 else 45)


def plot_weights(
    result: Any,
    task: str | None = None,
    at: Mapping[str, Any] | None = None,
    *,
    ax: Axes | None = None,
    top: int | None = None,
) -> Axes:
    """Draw the kernel weights of a point: bars for their means over the folds, dots for the folds.

    Before means the weights of each fold are divided by their sum: weights have another scale at each p. The kernels of
    the largest weights are first, the `top` 20 by default, and the sum of the others is one bar. The title has what all
    names of kernels begin and end with; labels have the rest.

    `task` is a task of a multilabel problem; by default the means are over the tasks too, each at its chosen point.
    `at` has values of parameters; missing ones have their chosen values, of each fold if folds have separate choices.
    InputError if there is no such task or point.
    """
    result._check_task(task)
    tasks = [task] if task is not None or result.tasks is None else list(result.tasks)
    columns = np.concatenate([_weights(result, name, at or {}) for name in tasks]).T
    names = result.scores["kernel"].values.astype(str).tolist()
    index, by = _choices(result, task)
    if by:
        parts, params = [f"each {' and '.join(by)} at its own choice"], dict(at or {})
    else:
        parts, params = [], {name: result.grid[name][int(place)] for name, place in index.items()} | dict(at or {})
    title = ", ".join([*parts, *(_setting(name, value) for name, value in params.items())])
    of_task = "" if task is None else f" of {pictures.shortened(task)}"
    over = "fold" if len(tasks) == 1 else f"fold and {task_dim(result.scores)}"
    return pictures.bars(names, columns, over, f"Kernel weights{of_task}{',' if by else ' at'} {title}", ax=ax, top=top)


def _weights(result: Any, task: str | None, at: Mapping[str, Any]) -> Float:
    """The weights of a point, (fold, kernel)."""
    scores = of_task(result.scores, task)
    index: dict[str, Any] = dict(_choices(result, task)[0])
    for name, value in at.items():
        if name not in result.parameters:
            refuse(f"{name!r} was not searched; at takes {', '.join(result.parameters)}")
        if value not in result.grid[name]:
            refuse(f"{name}={plain_repr(value)} is not in the grid; its values of {name} are {result.grid[name]}")
        index[name] = result.grid[name].index(value)
    return np.asarray(scores["weight"].isel(index).transpose("fold", "kernel").values, dtype=np.float64)


def plot_weights_over(
    result: Any, name: str = "p", task: str | None = None, *, ax: Axes | None = None, top: int | None = None
) -> Axes:
    """Draw the kernel weights along a parameter, by default the norm: from few kernels at p = 1 to equal at p = ∞.

    Each column is a value of the parameter `name`, with the others at the best mean validation score; weights are means
    of the shares in each fold (and task, each at its best, unless one is named), divided by the largest of the column.
    The kernels of the largest means over the columns are first, the `top` 20 by default; names as in `plot_weights`.
    InputError if there is no such task, or the search has fewer than two values of the parameter.
    """
    result._check_task(task)
    n_values = len(result.grid.get(name, []))
    if n_values < 2:
        searched = ", ".join(f"{key} ({len(values)})" for key, values in result.grid.items())
        refuse(
            f"weights are drawn over two values of {name} or more, and this search has {n_values}; it has {searched}"
        )
    order, labels = _ordered(result.scores[name])
    scores = of_task(result.scores[["mean_score", "standard_error", "weight", "gap"]], task)
    by, columns = _choices(result, task)[1], []
    for place in order:
        part = scores.isel({name: [int(place)]})
        try:
            index = best_index(part, result.parameters, by, "best")
        except InputError:  # no point has a score
            columns.append(np.full(part.sizes["kernel"], np.nan))
            continue
        of_folds = part["weight"].isel(index).transpose("kernel", ...).values
        columns.append(weight_shares(of_folds.reshape(len(of_folds), -1), 0).mean(axis=1))
    weights = np.stack(columns, axis=1)
    largest = np.abs(weights).max(axis=0)
    relative = weights / np.where(largest > 0, largest, 1.0)
    rest = [pictures.symbol(other) for other in result.parameters if other != name and len(result.grid[other]) > 1]
    best = f", each at its best {' and '.join(rest)}" if rest else ""
    title = (
        f"Kernel weights{'' if task is None else f' of {pictures.shortened(task)}'} over {pictures.symbol(name)}{best}"
    )
    kernels = result.scores["kernel"].values.astype(str).tolist()
    label = "weight / largest of the column"
    return pictures.heat_map(kernels, labels, relative, _AXES.get(name, name), label, title, ax=ax, top=top)


def plot_evaluation(result: Any, task: str | None = None, *, ax: Axes | None = None) -> Axes:
    """Draw the test scores of an evaluation and of its baselines: means, one standard error, and outer folds.

    A line joins the scores of an outer fold, whose models are tested on the same rows. Of a multilabel problem the
    scores of `task` are drawn, means over all tasks by default; InputError if there is no such task.
    """
    result._check_task(task)
    baselines = result.baselines
    models = {result.scores.attrs["estimator"]: result.scores}
    if baselines is not None:
        models |= {title: baselines.sel(baseline=title) for title in baselines["baseline"].values.tolist()}
    scores = {name: of_task(model[["test_score"]], task)["test_score"] for name, model in models.items()}
    return _draw_test_scores(scores, result.scores, "" if task is None else f", {pictures.shortened(task)}", ax)


def plot_comparison(result: Any, *, ax: Axes | None = None) -> Axes:
    """Draw the test scores of all models, the best first: means, one standard error, and outer folds."""
    scores = {name: result.data["test_score"].sel(model=name) for name in result.table()["model"]}
    return _draw_test_scores(scores, result.data, "", ax)


def _draw_test_scores(of_models: Mapping[str, xr.DataArray], data: xr.Dataset, task: str, ax: Axes | None) -> Axes:
    """Draw scores of models over the outer folds of `data`, by name; `task` ends the label of the axis."""
    scores = [score.mean([dim for dim in score.dims if dim != "fold"]) for score in of_models.values()]
    rows = np.arange(len(scores))
    (ax,) = pictures.panels(ax, {"the scores": (6.1, 1.2 + 0.5 * len(rows))})
    ax.plot(np.array(scores), rows, ".-", color=pictures.GRAY, linewidth=0.6, markersize=5, alpha=0.6)
    mean, error = np.array([mean_over_folds(score) for score in scores]).T
    style: dict[str, Any] = {"color": pictures.BLUE, "markersize": 6, "elinewidth": 2, "zorder": 3}
    scoring = str(data.attrs["scoring"])
    ax.errorbar(mean, rows, xerr=np.abs(pictures.interval(mean, error, limits(scoring)) - mean), fmt="o", **style)
    pictures.name_rows(ax, [fill(name, 24) for name in of_models])
    label, folds = pictures.shortened(scoring.replace("_", " ")) + task, data.sizes["fold"]
    pictures.dress(ax, label, hidden="top right left", grid="x", ends="x")
    pictures.set_title([ax], f"Test scores, means of {folds} outer folds ± one standard error (gray: each fold)")
    return ax


def plot_tested_weights(result: Any, *, ax: Axes | None = None, top: int | None = None) -> Axes:
    """Draw the `top` largest kernel weights of the tested models, on `ax` if given; see `dmkl.pictures.bars`."""
    weights = result.scores["weight"].transpose("kernel", "fold", ...)
    columns = weights.values.reshape(len(weights), -1)
    names, over = weights["kernel"].values.tolist(), " and ".join(["outer fold", *map(str, weights.dims[2:])])
    return pictures.bars(names, columns, over, "Kernel weights of the tested models", ax=ax, top=top)


def plot_confusion(counts: Any, *, ax: Axes | Sequence[Axes] | None = None) -> Any:
    """Draw a confusion matrix, with the recall and precision of each class.

    Several tasks have no common matrix: the recall and precision of each are drawn.

    Parameters
    ----------
    counts
        An `EvaluationResult`, the result of `assess` for classes, or counts (true, predicted) or (task, true,
        predicted); InputError for others, as those of a regression.
    ax
        Two axes to draw on, one for tasks; a new figure by default.

    Returns
    -------
    Axes or array of Axes
        An array of two, or those for tasks. A class without samples has no recall, one that is never predicted no
        precision. The matrix of more than 20 classes has colors only.
    """
    counts = getattr(counts, "confusion", counts)
    if not isinstance(counts, xr.DataArray) or not {"true", "predicted"} <= set(counts.dims):
        given = getattr(counts, "dims", type(counts).__name__)
        refuse(
            "confusions are drawn from the result of dmkl.assess for classes, or from counts (true, predicted) or "
            f"(task, true, predicted), got {given}"
        )
    scores, tasks = class_scores(counts), "task" in counts.dims
    labels = [pictures.shortened(str(label), _LONGEST_CLASS) for label in scores["task" if tasks else "class"].values]
    # A row has 0.26 inches, and so has a column of the matrix.
    side, names = max(2.2, 0.26 * len(labels)), 0.075 * max(map(len, labels))
    sizes = {} if tasks else {"matrix": (side + names, side + 1.1 + names)}
    sizes["recall and precision"] = (names + 3.2 if tasks else 3.2, side + 1.1)
    axes = pictures.panels(ax, sizes, sharey=True)
    if tasks:
        _draw_class_scores(axes[0], scores, labels)
        axes[0].set_ylabel("task", fontsize=9)
        pictures.set_title(axes, "Recall and precision of each task")
        return axes[0]
    matrix, of_classes = axes
    width = matrix.figure.get_figwidth() - names
    display = ConfusionMatrixDisplay(counts.transpose("true", "predicted").values, display_labels=labels)
    fits = len(labels) <= min(_MOST_NUMBERS, 4 * width)
    numbers = {"include_values": fits, "text_kw": {"fontsize": 8}, "values_format": "d"}
    display.plot(ax=matrix, cmap="Blues", colorbar=False, **numbers)
    matrix.set_aspect("auto")  # so that its rows have the height of those of the scores
    pictures.dress(matrix, "predicted class", "true class")
    at = pictures.spread(len(labels), -(-len(labels) // int(8 * width)))
    matrix.set_xticks(at, [labels[k] for k in at])
    if len(labels) * max(map(len, labels)) > 30:
        matrix.tick_params(axis="x", rotation=90)
    _draw_class_scores(of_classes, scores, labels)
    pictures.set_title(axes, f"True and predicted classes of {int(counts.sum()):,} samples")
    return axes


def _draw_class_scores(ax: Axes, scores: xr.Dataset, labels: list[str]) -> None:
    rows = np.arange(len(labels))
    style: dict[str, Any] = {"markersize": 5, "clip_on": False, "linestyle": "none", "alpha": 0.85}
    for name, color, marker in (("recall", pictures.BLUE, "o"), ("precision", pictures.RED, "s")):
        ax.plot(scores[name].values, rows, marker, color=color, label=name, **style)
    pictures.name_rows(ax, labels)
    ax.set_ylim(len(labels) - 0.5, -0.5)  # the rows of the matrix
    ax.set_xlim(0, 1)
    ax.legend(ncols=2, fontsize=8, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), handletextpad=0.1)
    label = "share of its samples (recall),\nof those predicted as it (precision)"
    pictures.dress(ax, label, hidden="top right left", grid="both")


_Kind = Literal["roc", "precision_recall", "calibration", "observed", "confusion"]
_CURVE_AXES = {
    "roc": ("false positive rate", "true positive rate"),
    "precision_recall": ("recall", "precision"),
    "calibration": ("mean predicted probability", "share of the class"),
    "observed": ("observed", "predicted"),
    "confusion": ("predicted class", "true class"),
}
_AT = np.linspace(0.0, 1.0, 201)


def plot_predictions(
    predictions: Any, kind: _Kind = "roc", ax: Axes | None = None, *, of: Any = None, by: str = "fold"
) -> Axes:
    """Draw out-of-fold predictions.

    Parameters
    ----------
    predictions
        A search, an evaluation, or its `predictions`, also of some samples, such as those of a site:
        ``predictions.isel(sample=predictions.sample_group == "A")``.
    kind
        "roc" or "precision_recall": the mean curve over the folds, with a band and areas of one standard deviation; of
        all folds together "calibration": shares of the class in ten bins of its probability, "observed": predicted
        against observed numbers, "confusion": the number of samples by true and predicted class.
    ax
        The axes; those of a new figure by default.
    of
        The class (against the rest), task or target; all of them by default, of two classes the second.
    by
        "fold", or "group" for a curve of each group, such as a site or donor. Folds and groups in which the class is
        all or nothing have no curve.

    Raises
    ------
    InputError
        If these predictions cannot be drawn so, or there is no such class, task, target or group.
    """
    data = getattr(predictions, "predictions", predictions)
    check_choice("kind", kind, get_args(_Kind))
    needed = {"calibration": "probability", "observed": "prediction", "confusion": "predicted_label"}.get(kind, "score")
    for name in (needed, f"sample_{by}"):
        if name not in data:
            refuse(f"kind={kind!r}, by={by!r} draws {name}, and these predictions have {', '.join(data.data_vars)}")
    (ax,) = pictures.panels(ax, {"the curves": (4.8, 4.4)})
    for label, truth, values, parts in _outputs(data, needed, of, by):
        _draw_curves(ax, kind, label, truth, values, parts, pooled=by == "fold")
    x, y = _CURVE_AXES[kind]
    if kind == "confusion":
        ax.set_xlabel(x, fontsize=9)
        ax.set_ylabel(y, fontsize=9)
        return ax
    ax.legend(fontsize=8, frameon=False)
    if kind != "precision_recall":
        ax.axline((0.0, 0.0), slope=1.0, color=pictures.GRAY, linestyle=":", linewidth=1.0, zorder=0)
    pictures.dress(ax, x, y, hidden="top right", ends="xy" if kind == "observed" else "")
    return ax


def plot_survival(predictions: Any, n_groups: int = 3, ax: Axes | None = None) -> Axes:
    """Draw the survival of groups of equal size by their predicted risk, out of fold, by Kaplan and Meier.

    Groups are made within each fold, since risks of different models have no common zero. The log-rank test in the
    title takes the groups as given. Models of different folds share training rows, so that it rejects too often; the
    p-value of the evaluation, under permuted labels, does not.

    Parameters
    ----------
    predictions
        A search or an evaluation of `MKCox`, or its `predictions`, also of some samples; InputError for others.
    n_groups
        The number of groups, 2 or more (InputError for fewer).
    ax
        The axes; those of a new figure by default.
    """
    from matplotlib import colormaps

    data = getattr(predictions, "predictions", predictions)
    if n_groups < 2 or "prediction" not in data or data["prediction"].ndim > 1:
        refuse(f"plot_survival draws two groups or more of predicted risks, got {n_groups!r} and {', '.join(data)}")
    labels, risk, folds = (data[name].values for name in ("true_label", "prediction", "sample_fold"))
    group = np.empty(len(labels), dtype=np.int64)
    for fold in np.unique(folds):
        rows = folds == fold
        group[rows] = (rankdata(risk[rows]) - 0.5) * n_groups // np.count_nonzero(rows)
    (ax,) = pictures.panels(ax, {"the curves": (5.2, 3.8)})
    for k, color in enumerate(colormaps["viridis_r"](np.linspace(0.15, 1.0, n_groups))):
        own = labels[group == k]
        curve = kaplan_meier(own)
        name = {0: "lowest risk", n_groups - 1: "highest risk"}.get(k, f"group {k + 1}" if n_groups > 3 else "between")
        text = f"{name}: {np.count_nonzero(own > 0)} events in {len(own)} samples"
        ax.step(np.append(0.0, curve.times), np.append(1.0, curve.values), where="post", color=color, label=text)
    ax.legend(fontsize=8, frameon=False)
    ax.set_ylim(0.0, 1.02)
    pictures.dress(ax, "time", "share without the event", hidden="top right")
    p = log_rank(labels, group)
    pictures.set_title([ax], f"Survival by predicted risk, out of fold; log-rank test p = {p:.2g}")
    return ax


def _outputs(data: xr.Dataset, needed: str, of: Any, by: str) -> Iterator[tuple[str, Array, Array, Array]]:
    """Label, true values, predictions and folds or groups of each class, task or target, where the truth is known."""
    values = data["probability"] if needed == "score" and "probability" in data else data[needed]
    dim = str(values.dims[1]) if values.ndim == 2 else ""
    labels = values[dim].values.tolist() if dim else ["" if needed != "score" else data["class"].values[-1]]
    labels = labels[1:] if dim == "class" and len(labels) == 2 and of is None else labels
    chosen = [label for label in labels if of is None or str(label) == str(of)]
    if not chosen or (needed == "predicted_label" and len(chosen) > 1):  # one matrix would be drawn over another
        check_choice("of", of, [*map(str, labels)])
    for label in chosen:
        truth = data["true_label"].sel({dim: label}) if dim in data["true_label"].dims else data["true_label"]
        column = values.sel({dim: label}).values if dim else values.values
        rows = is_known(truth.values)
        of_class = dim == "class" or (needed == "score" and not dim)
        true_values = truth.values[rows]
        matches = true_values == label if of_class else true_values
        yield str(label), matches, column[rows], data[f"sample_{by}"].values[rows]


def _draw_curves(ax: Axes, kind: str, label: str, truth: Array, values: Array, parts: Array, *, pooled: bool) -> None:
    start = f"{pictures.shortened(label)}, " if label else ""
    each = [(pictures.shortened(str(part)), truth[parts == part], values[parts == part]) for part in np.unique(parts)]
    if kind == "confusion":
        labels = (truth.astype(str), values.astype(str))
        ConfusionMatrixDisplay.from_predictions(*labels, ax=ax, cmap="Blues", colorbar=False)
        return
    if kind in ("observed", "calibration"):
        from sklearn.calibration import calibration_curve

        for part, t, f in [("all folds", truth, values)] if pooled else each:
            if kind == "observed":
                ax.plot(t, f, ".", label=f"{start}{part}" + (f": R² {r2_score(t, f):.3f}" if len(t) > 1 else ""))
            else:
                ax.plot(*calibration_curve(t, f, n_bins=10)[::-1], "o-", markersize=3.5, label=f"{start}{part}")
        return
    curves = [(part, *_curve(kind, t.astype(int), s)) for part, t, s in each if 0 < t.sum() < len(t)]
    area = "AUC" if kind == "roc" else "AP"
    if not pooled:
        for part, y, size in curves:
            ax.plot(_AT, y, label=f"{start}{part}: {area} {size:.3f}")
    elif curves:
        y, sizes = (np.array(values) for values in list(zip(*curves, strict=True))[1:])
        deviation, wide = (np.std(v, axis=0, ddof=1) if len(v) > 1 else 0 * v[0] for v in (y, sizes))
        (line,) = ax.plot(_AT, y.mean(axis=0), label=f"{start}{area} {sizes.mean():.3f} ± {wide:.2g}")
        band = pictures.interval(y.mean(axis=0), deviation, (0.0, 1.0))
        ax.fill_between(_AT, *band, color=line.get_color(), alpha=0.2, linewidth=0)


def _curve(kind: str, truth: Array, scores: Array) -> tuple[Float, float]:
    """A curve at the places `_AT`, and its area."""
    if kind == "roc":
        x, y, _ = roc_curve(truth, scores)
        return np.interp(_AT, x, y), float(roc_auc_score(truth, scores))
    precision, recall, _ = precision_recall_curve(truth, scores)
    # Precision is no linear function between two recalls: that of the next larger one is taken.
    return precision[::-1][np.searchsorted(recall[::-1], _AT)], float(average_precision_score(truth, scores))
