"""Pictures of a search: mean scores over the grid, kernel weights of a point, and along a parameter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import Normal, Stroke

from dmkl.arrays import Float, plain_repr
from dmkl.errors import InputError
from dmkl.pictures import (
    BLUE,
    GRAY,
    LONGEST_NAME,
    RED,
    ROOM_FOR_LABELS,
    bars,
    heat_map,
    longest_shown,
    picture,
    shortened,
)
from dmkl.searching.choice import choose, within_one_standard_error
from dmkl.searching.means import best_index, grid_points, mean_and_error, of_task, task_dim

__all__ = ["plot_scores", "plot_weights", "plot_weights_over"]


_LINE = 70
"""Characters above a panel."""


class Searched(Protocol):
    """What pictures need of a `dmkl.SearchResult`; see there."""

    @property
    def scores(self) -> xr.Dataset: ...
    @property
    def parameters(self) -> tuple[str, ...]: ...
    @property
    def grid(self) -> dict[str, list[Any]]: ...
    @property
    def tasks(self) -> tuple[str, ...] | None: ...
    @property
    def choosers(self) -> tuple[str, ...]: ...
    @property
    def best_index_(self) -> dict[str, xr.DataArray]: ...


def _choices(result: Searched, task: str | None) -> tuple[dict[str, xr.DataArray], list[str]]:
    """The positions that were chosen, of a task where one is named; and the dimensions that chose each for itself."""
    index, by = result.best_index_, list(result.choosers)
    if task is not None:
        own = task_dim(result.scores)
        index, by = {name: at.sel({own: task}) for name, at in index.items()}, [dim for dim in by if dim != own]
    return index, by


# --- scores --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Axis:
    """Values of a parameter, from small to large where they are numbers."""

    name: str
    order: npt.NDArray[np.int64]
    labels: list[str]

    def place(self, position: int) -> int:
        """Where a value of the grid is drawn."""
        return int(np.flatnonzero(self.order == position)[0])


@dataclass(frozen=True)
class _Surface:
    """What is drawn: mean and standard error (x, y), and which points were chosen how often."""

    x: _Axis
    y: _Axis | None
    mean: Float
    error: Float
    near: npt.NDArray[np.bool_]
    """Within one standard error of the best."""
    threshold: float
    """One standard error below the best."""
    test: tuple[Float, Float] | None
    """Mean and standard error on the test rows, where folds have any."""
    chosen: Counter[tuple[int, ...]]
    """How often each place was."""
    fixed: tuple[str, ...]
    """The other parameters."""
    choosers: str
    """Who chose each for itself, in words."""


def plot_scores(result: Searched, ax: Axes | Sequence[Axes] | None = None, *, task: str | None = None) -> Figure:
    """Draw the mean validation scores of a search.

    Left the map over two parameters: a ring around the chosen point, dots in the points whose mean is within one
    standard error of the best. Right the curve over the first of them, for each of its values the best of the other,
    with bars of one standard error; the chosen value has a ring at its own score, and the dotted line lies one standard
    error below the best. Where folds have test rows, squares are the means over these of the same points, which
    validation has chosen, with bars of their own. A grid of one parameter has the curve alone. Of three parameters or
    more, the two with the most values are drawn (p and lam if several have as many), the others being at their chosen
    values.

    Parameters
    ----------
    ax
        Where to draw: the axes of map and curve, or those of the curve alone for one parameter. A figure of its own
        by default.
    task
        Of a multilabel problem. By default the scores are means over the tasks, their standard error is that of these
        means, and each point that a task chose has a ring with the number of tasks; so it is with folds that choose
        each for itself.

    Returns
    -------
    Figure
        A matplotlib figure; notebooks show it, ``savefig`` saves it.

    Raises
    ------
    InputError
        If there is no such task, no point can be chosen, or `ax` has not the number of axes that is needed.
    """
    surface = _surface(result, task)
    needed = 1 if surface.y is None else 2
    if ax is None:
        side, ratios = max(4.2, 1.6 + 0.34 * len(surface.x.order)), [0.95, 1.0][-needed:]
        if surface.y is None:
            figure = picture(side + 0.8, 3.6)
        else:
            figure = picture(2 * side + 1.6, max(3.6, 1.2 + 0.3 * len(surface.y.order)))
        axes = list(figure.subplots(1, needed, squeeze=False, width_ratios=ratios)[0])
    else:
        axes = list(np.ravel(np.asarray(ax, dtype=object)))
        if len(axes) != needed:
            msg = f"ax must hold {needed} axes, {'map and curve' if needed == 2 else 'the curve'}, got {len(axes)}"
            raise InputError(msg)
        figure = axes[0].figure
    measure = shortened(str(result.scores.attrs["scoring"]).replace("_", " "), LONGEST_NAME)
    if result.tasks is not None:
        of = (
            f"mean of {len(result.tasks)} {task_dim(result.scores)}s" if task is None else shortened(task, LONGEST_NAME)
        )
        measure = f"{measure}, {of}"
    if surface.y is not None:
        _draw_map(axes[0], surface, surface.y, measure)
    _draw_curve(axes[-1], surface, measure)
    return figure


def _surface(result: Searched, task: str | None) -> _Surface:
    _check_task(result, task)
    scores = of_task(result.scores, task)
    tested = None
    if "test_score" in scores and bool(scores["test_score"].notnull().any()):
        one_each = [dim for dim in scores["test_score"].dims if dim not in (*result.parameters, "fold")]
        tested = mean_and_error(scores["test_score"].mean(one_each))
    index, by = _choices(result, task)
    positions = [dict(zip(index, places, strict=True)) for places in zip(*map(_flat, index.values()), strict=True)]
    if by:
        mean, error = mean_and_error(scores["score"].mean([dim for dim in by if dim != "fold"]))
        scores = xr.Dataset({"mean_score": mean, "standard_error": error})
    points = grid_points(scores, result.parameters)
    best = choose(**points)
    names = _drawn(result)
    rest = [name for name in result.parameters if name not in names]
    common = {name: Counter(pick[name] for pick in positions).most_common(1)[0][0] for name in rest}
    axes = [_axis(scores[name]) for name in names]

    def drawn(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        part = xr.DataArray(values, dims=result.parameters).isel(common).transpose(*names)
        return part.values[np.ix_(*(axis.order for axis in axes))].reshape(len(axes[0].order), -1)

    return _Surface(
        x=axes[0],
        y=axes[1] if len(axes) == 2 else None,
        mean=drawn(points["mean"]),
        error=drawn(points["standard_error"]),
        near=drawn(within_one_standard_error(**points)),
        test=None if tested is None else _both(drawn(each.transpose(*result.parameters).values) for each in tested),
        threshold=float(points["mean"][best] - np.nan_to_num(points["standard_error"][best])),
        chosen=Counter((*(axis.place(pick[axis.name]) for axis in axes), 0)[:2] for pick in positions),
        fixed=tuple(_setting(name, result.grid[name][place]) for name, place in common.items()),
        choosers=" and ".join(by),
    )


def _both(parts: Iterator[Float]) -> tuple[Float, Float]:
    return next(parts), next(parts)


def _flat(at: xr.DataArray) -> list[int]:
    return [int(place) for place in np.ravel(at.values)]


def _check_task(result: Searched, task: str | None) -> None:
    if task is not None and (result.tasks is None or task not in result.tasks):
        found = "has no tasks" if result.tasks is None else f"has the tasks {', '.join(result.tasks[:10])}"
        msg = f"there is no task {task!r}: this search {found}; leave task out, or name one of them"
        raise InputError(msg)


def _drawn(result: Searched) -> list[str]:
    """The parameter across, and the one upwards if two vary."""
    sizes = result.scores.sizes
    ranked = sorted(result.parameters, key=lambda name: (-sizes[name], {"p": 0, "lam": 1}.get(name, 2)))
    chosen = [ranked[0], *(name for name in ranked[1:2] if sizes[name] > 1)]
    # p across and lam upwards, whatever the other is.
    return sorted(chosen, key=lambda name: {"p": 0, "lam": 2}.get(name, 1))


def _axis(values: xr.DataArray) -> _Axis:
    name = str(values.name)
    if values.dtype.kind not in "iuf":
        return _Axis(name, np.arange(values.size), [shortened(str(value), LONGEST_NAME) for value in values.values])
    order = np.argsort(values.values, kind="stable")
    for digits in (3, 6, 17):  # as short as they can be and still differ
        labels = [_number(name, float(value), digits) for value in values.values[order]]
        if len(set(labels)) == len(labels):
            break
    return _Axis(name, order, labels)


def _number(name: str, value: float, digits: int) -> str:
    """Such as 8, 1.5, 1e-8, ∞, and 1+2⁻⁶ for norms close to one."""
    if np.isinf(value):
        return "∞" if value > 0 else "-∞"
    exponent = np.log2(value - 1) if name == "p" and value > 1 else 0.0
    if exponent <= -3 and exponent == round(exponent):
        return f"1+2$^{{{int(exponent)}}}$"
    plain, scientific = f"{value:.{digits}g}", np.format_float_scientific(value, digits - 1, trim="-", exp_digits=1)
    return scientific if "e" in plain or (abs(value) < 1 and len(scientific) < len(plain)) else plain


def _setting(name: str, value: Any) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{name} = {_number(name, value, 3) if number else shortened(str(value), LONGEST_NAME)}"


def _draw_map(ax: Axes, surface: _Surface, y: _Axis, measure: str) -> None:
    ax.set_facecolor("#dddddd")  # where there is no score
    image = ax.pcolormesh(np.ma.masked_invalid(surface.mean.T), cmap="viridis", edgecolors="white", linewidth=0.4)
    x_near, y_near = np.nonzero(surface.near)
    (dots,) = ax.plot(x_near + 0.5, y_near + 0.5, ".", color="black", markersize=4, markeredgewidth=0)
    dots.set_path_effects([Stroke(linewidth=1.2, foreground="white"), Normal()])
    for (column, row), times in surface.chosen.items():
        _ring(ax, column + 0.5, row + 0.5, times)
    bar = ax.figure.colorbar(image, ax=ax, pad=0.02)
    bar.set_label(measure, fontsize=9)
    bar.ax.tick_params(labelsize=8, length=2)
    bar.outline.set_visible(False)
    ax.set_xticks(np.arange(len(surface.x.labels)) + 0.5, surface.x.labels)
    ax.set_yticks(np.arange(len(y.labels)) + 0.5, y.labels)
    several = f"rings: chosen by a {surface.choosers}, or as many as the number says"
    rings = "ring: chosen" if surface.chosen.total() == 1 else several
    _dress(ax, surface.x, y.name, *surface.fixed, rings, "dots: within one standard error of the best")
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)


def _draw_curve(ax: Axes, surface: _Surface, measure: str) -> None:
    where = np.arange(len(surface.mean))
    best = np.argmax(np.where(np.isfinite(surface.mean), surface.mean, -np.inf), axis=1)
    mean, error = surface.mean[where, best], surface.error[where, best]
    look: dict[str, Any] = {"markersize": 4, "linewidth": 1.4, "elinewidth": 1}
    ax.errorbar(where, mean, np.nan_to_num(error), color=BLUE, marker="o", label="validation", **look)
    if surface.test is not None:
        test, spread = (np.where(np.isfinite(mean), part[where, best], np.nan) for part in surface.test)
        look |= {"color": "#333333", "marker": "s", "linestyle": "--"}
        ax.errorbar(where, test, np.nan_to_num(spread), label="test", **look)
    legend = [] if surface.y is not None else list(surface.fixed)
    legend += [] if surface.test is None else ["blue: validation", "squares: test, at the same points"]
    if np.any(error > 0):
        ax.axhline(surface.threshold, color=GRAY, linestyle=":", linewidth=1.2, zorder=0)
        legend += ["bars: one standard error", "dotted: one below the best"]
    # A single choice at its own score; those of many tasks or folds, whose scores are not drawn, on the curve.
    single = surface.chosen.total() == 1
    rings = {place[0]: surface.mean[place] if single else mean[place[0]] for place in surface.chosen}
    for column, score in rings.items():
        _ring(ax, column, float(score), sum(n for place, n in surface.chosen.items() if place[0] == column), zorder=1)
    ax.set_xticks(where, surface.x.labels)
    upwards = measure if surface.y is None else f"{measure}, best {surface.y.name}"
    _dress(ax, surface.x, upwards, *legend)
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", color="#e4e4e4", linewidth=0.7)
    ax.set_axisbelow(True)


def _ring(ax: Axes, x: float, y: float, times: int, zorder: float = 5) -> None:
    effects = [Stroke(linewidth=4.5, foreground="white"), Normal()]
    (ring,) = ax.plot(x, y, "o", label="chosen", zorder=zorder, markersize=12, markeredgewidth=2.2)
    ring.set(markerfacecolor="none", markeredgecolor=RED, path_effects=effects)
    if times > 1:
        ax.annotate(str(times), (x, y), (8, 6), textcoords="offset points", fontsize=8, color=RED, path_effects=effects)


def _dress(ax: Axes, x: _Axis, upwards: str, *legend: str) -> None:
    ax.set_xlabel(x.name, fontsize=9)
    ax.set_ylabel(upwards, fontsize=9)
    ax.set_title(fill("; ".join(legend), _LINE), fontsize=8, color="#555555", loc="left")
    ax.tick_params(labelsize=8)
    if (longest := longest_shown(x.labels)) * len(x.labels) > ROOM_FOR_LABELS:
        ax.tick_params(axis="x", rotation=90 if longest > 8 else 45)


# --- weights -------------------------------------------------------------------------------------------------------


def plot_weights(result: Searched, task: str | None = None, at: Mapping[str, Any] | None = None) -> Figure:
    """Draw the kernel weights of a point: bars for their means over the folds, dots for the folds.

    Parameters
    ----------
    task
        Of a multilabel problem. By default the weights are means over the tasks, each at its own chosen point. Folds
        that choose each for itself are at theirs.
    at
        Values of parameters; those left out are the chosen ones.

    Returns
    -------
    Figure
        A matplotlib figure with kernels from top to bottom as they are stored; the largest 40 if there are more, which
        its title says.

    Raises
    ------
    InputError
        If there is no such task or point.
    """
    _check_task(result, task)
    tasks = [task] if task is not None or result.tasks is None else list(result.tasks)
    by_fold = np.mean([_weights(result, each, at or {}) for each in tasks], axis=0)
    names = result.scores["kernel"].values.astype(str).tolist()
    mean = xr.DataArray(by_fold, dims=("fold", "kernel")).mean("fold").values
    n_folds = len(by_fold)
    label = "kernel weight" if n_folds == 1 else f"kernel weight: mean of {n_folds} folds, a dot each"
    figure = bars(names, mean, by_fold.T if n_folds > 1 else None, label)
    (ax,) = figure.axes
    index, by = _choices(result, task)
    if by:
        many = (
            ""
            if task is not None or result.tasks is None
            else f"mean of {len(result.tasks)} {task_dim(result.scores)}s, "
        )
        title = f"{many}each {' and '.join(by)} at its own choice"
        told = [_setting(name, value) for name, value in (at or {}).items()]
    else:
        title, params = "", {name: result.grid[name][int(place)] for name, place in index.items()} | dict(at or {})
        told = [_setting(name, value) for name, value in params.items()]
    title = ", ".join([*([title] if title else []), *told])
    if task is not None:
        title = f"{shortened(task, LONGEST_NAME)}: {title}"
    if few := ax.get_title(loc="left"):
        title += f"\n{few}"
    ax.set_title(title, fontsize=10, loc="left")
    return figure


def _weights(result: Searched, task: str | None, at: Mapping[str, Any]) -> Float:
    """The weights of a point, (fold, kernel)."""
    scores = of_task(result.scores, task)
    index: dict[str, Any] = dict(_choices(result, task)[0])
    for name, value in at.items():
        if name not in result.parameters:
            msg = f"{name!r} was not searched; at takes {', '.join(result.parameters)}"
            raise InputError(msg)
        if value not in result.grid[name]:
            msg = f"{name}={plain_repr(value)} is not in the grid; its values of {name} are {result.grid[name]}"
            raise InputError(msg)
        index[name] = result.grid[name].index(value)
    return np.asarray(scores["weight"].isel(index).transpose("fold", "kernel").values, dtype=np.float64)


def plot_weights_over(result: Searched, name: str = "p", task: str | None = None) -> Figure:
    """Draw the kernel weights along a parameter, by default the norm: from few kernels at p = 1 to all alike at p = ∞.

    Each column is a value of the parameter, with the others at the values of the best mean validation score there;
    weights are means over folds (and tasks, each at its own best), divided by the largest of the column.

    Parameters
    ----------
    name
        The parameter.
    task
        Of a multilabel problem; means over all tasks by default.

    Returns
    -------
    Figure
        A matplotlib figure with kernels from top to bottom as they are stored; the largest 40 if there are more, which
        its title says.

    Raises
    ------
    InputError
        If there is no such task, or the search has not at least two values of the parameter.
    """
    _check_task(result, task)
    n_values = len(result.grid.get(name, []))
    if n_values < 2:
        searched = ", ".join(f"{key} ({len(values)})" for key, values in result.grid.items())
        msg = f"weights are drawn over two values of {name} or more, and this search has {n_values}; it has {searched}"
        raise InputError(msg)
    axis = _axis(result.scores[name])
    weights = np.stack([_weights_of(result, task, name, int(place)) for place in axis.order], axis=1)
    largest = np.abs(weights).max(axis=0)
    relative = weights / np.where(largest > 0, largest, 1.0)
    others = " and ".join(other for other in result.parameters if other != name and len(result.grid[other]) > 1)
    across = f"{name}, each at its best {others}" if others else name
    kernels = result.scores["kernel"].values.astype(str).tolist()
    figure = heat_map(kernels, axis.labels, relative, across, "weight / largest of the column")
    if task is not None:
        figure.axes[0].set_title(shortened(task, LONGEST_NAME), fontsize=9, loc="left")
    return figure


def _weights_of(result: Searched, task: str | None, name: str, place: int) -> Float:
    """Mean weights (kernel,) at a value of a parameter, the others at their best; NaN where no point has a score."""
    by = _choices(result, task)[1]
    part = of_task(result.scores[["mean_score", "standard_error", "weight", "gap"]], task).isel({name: [place]})
    try:
        found = part["weight"].isel(best_index(part, result.parameters, by, "best"))
    except InputError:
        return np.full(part.sizes["kernel"], np.nan)
    return np.asarray(found.mean([dim for dim in found.dims if dim != "kernel"]).values, dtype=np.float64)
