"""Pictures of what kernels add: bars of losses, of scores alone and of Shapley values, with their errors."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from dmkl.arrays import Array
from dmkl.errors import InputError
from dmkl.pictures import BLUE, GRAY, LONGEST_NAME, MOST_BARS, SKY, picture, shortened
from dmkl.searching.means import mean_and_margin, of_task, task_dim, tasks_of

__all__ = ["plot_importance"]


def plot_importance(data: xr.Dataset, task: str | None) -> Figure:
    """See `dmkl.Importance.plot`."""
    tasks, dim = tasks_of(data), task_dim(data)
    if task is not None and task not in (tasks or ()):
        known = "has no tasks" if tasks is None else f"has the tasks {', '.join(tasks[:10])}"
        msg = f"there is no task {task!r}: this importance {known}; leave task out, or name one of them"
        raise InputError(msg)
    of = of_task(data, task)
    of = of if task is not None or dim is None else of.mean(dim)
    rows = str(data.attrs.get("rows", "validation"))
    loss, error = mean_and_margin(of["score"] - of["score_without"], of, rows)
    shown = np.argsort(-loss.round(12).values, kind="stable")[:MOST_BARS]
    names = data["source"].values[shown]
    figure = _figure(names, 3 if "shapley" in data else 2)
    axes = figure.axes
    colors = np.where(np.isin(names, data["kernel"].values), SKY, BLUE)
    measure = shortened(str(data.attrs["scoring"]).replace("_", " "), LONGEST_NAME)
    _bars(axes[0], loss.round(12)[shown], error[shown], colors, f"loss in {measure} without it")
    _points(axes[1], of, rows, shown, colors, f"{measure} of it alone")
    if "shapley" in data:
        values = of[["shapley", "shapley_standard_error"]].rename(player="source").reindex(source=names)
        _bars(axes[2], values["shapley"], values["shapley_standard_error"], colors, f"Shapley value, {measure}")
    axes[0].set_yticks(np.arange(len(names)), [shortened(str(name), LONGEST_NAME) for name in names])
    figure.suptitle(_title(data, task, len(shown)), fontsize=9, x=0.01, ha="left")
    if data.sizes["source"] > data.sizes["kernel"]:
        kinds = [Patch(color=BLUE, label="groups of kernels"), Patch(color=SKY, label="kernels")]
        axes[0].legend(handles=kinds, fontsize=8, frameon=False, loc="lower right")
    return figure


def _figure(names: Array, n_panels: int) -> Figure:
    longest = max(min(len(str(name)), LONGEST_NAME) for name in names)
    figure = picture(0.6 + 2.9 * n_panels + 0.075 * longest, 1.5 + 0.24 * len(names))
    for ax in figure.subplots(1, n_panels, sharey=True):
        ax.set_ylim(len(names) - 0.4, -0.6)
        ax.tick_params(axis="both", length=0, labelsize=8)
        ax.spines[["top", "right", "bottom", "left"]].set_visible(False)
        ax.grid(axis="x", color="#e4e4e4", linewidth=0.7)
        ax.set_axisbelow(True)
    return figure


def _bars(ax: Axes, mean: xr.DataArray, error: xr.DataArray, colors: Array, label: str) -> None:
    """Bars of the sources that have a value, with their errors."""
    rows = np.flatnonzero(np.isfinite(mean.values))
    spread = np.nan_to_num(error.values[rows])
    ax.barh(rows, mean.values[rows], height=0.72, color=colors[rows], xerr=spread, error_kw={"elinewidth": 1})
    ax.axvline(0.0, color=GRAY, linewidth=0.8)
    ax.xaxis.set_major_locator(MaxNLocator(5))
    ax.set_xlabel(label, fontsize=9)


def _points(ax: Axes, of: xr.Dataset, rows: str, shown: Array, colors: Array, label: str) -> None:
    """Scores alone beside that of all kernels, whose axis need not begin at zero."""
    whole, spread = (float(value) for value in mean_and_margin(of["score"], of, rows))
    ax.axvspan(whole - np.nan_to_num(spread), whole + np.nan_to_num(spread), color="#eeeeee", zorder=0)
    ax.axvline(whole, color=GRAY, linestyle=":", linewidth=1.2)
    mean, error = (values[shown].values for values in mean_and_margin(of["score_alone"], of, rows))
    places = np.arange(len(shown))
    ax.hlines(places, mean - np.nan_to_num(error), mean + np.nan_to_num(error), color="#555555", linewidth=1)
    ax.scatter(mean, places, color=colors, s=22, zorder=3)
    ax.set_xlabel(label, fontsize=9)


def _title(data: xr.Dataset, task: str | None, n_shown: int) -> str:
    dim = task_dim(data)
    of = (
        ""
        if dim is None
        else f"mean of {data.sizes[dim]} {dim}s; "
        if task is None
        else f"{shortened(task, LONGEST_NAME)}; "
    )
    some = f"; the {n_shown} largest losses of {data.sizes['source']}" if n_shown < data.sizes["source"] else ""
    bars = "bars: 95 % intervals, of losses paired over folds" if data.sizes["fold"] > 1 else ""
    bars += ", of Shapley values one standard error by the orders sampled" if bars and "shapley" in data else ""
    bars += "; " if bars else ""
    return f"{of}{bars}dotted: all kernels{some}"
