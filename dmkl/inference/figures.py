"""Figures of inference: losses and Shapley values of kernels, weights over resamples, scores of permuted labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from dmkl.arrays import Array
from dmkl.errors import refuse
from dmkl.inference.permutation import p_value_text
from dmkl.pictures import BLUE, GRAY, LONGEST_NAME, MOST_BARS, RED, SKY, dress, name_rows, picture, shortened
from dmkl.searching.grid import mean_and_margin
from dmkl.store.results import of_task, task_dim

__all__ = ["plot_importance", "plot_permutations", "plot_stability"]


# --- importance ------------------------------------------------------------------------------------------------------


def plot_importance(result: Any, task: str | None) -> Figure:
    """See `dmkl.Importance.plot`."""
    result._check_task(task)
    data, dim = result.data, task_dim(result.data)
    values = of_task(data, task)
    values = values if task is not None or dim is None else values.mean(dim)
    rows = str(data.attrs.get("rows", "validation"))
    loss, error = mean_and_margin(values["score"] - values["score_without"], values, rows)
    shown = np.argsort(-loss.round(12).values, kind="stable")[:MOST_BARS]
    names = data["source"].values[shown]
    longest = max(min(len(str(name)), LONGEST_NAME) for name in names)
    n_panels = 3 if "shapley" in data else 2
    figure = picture(0.6 + 2.9 * n_panels + 0.075 * longest, 1.5 + 0.24 * len(names))
    axes = figure.subplots(1, n_panels, sharey=True)
    for ax in axes:
        dress(ax, ["top", "right", "bottom", "left"], grid="x")
    colors = np.where(np.isin(names, data["kernel"].values), SKY, BLUE)
    scoring = shortened(str(data.attrs["scoring"]).replace("_", " "))
    _draw_bars(axes[0], loss.round(12)[shown], error[shown], colors, f"loss in {scoring} without it")
    _draw_scores(axes[1], values, rows, shown, colors, f"{scoring} of it alone")
    if "shapley" in data:
        shapley = values[["shapley", "shapley_standard_error"]].rename(player="source").reindex(source=names)
        label = f"Shapley value, {scoring}"
        _draw_bars(axes[2], shapley["shapley"], shapley["shapley_standard_error"], colors, label)
    name_rows(axes[0], [shortened(str(name)) for name in names])
    figure.suptitle(_importance_title(data, task, len(shown)), fontsize=9, x=0.01, ha="left")
    if data.sizes["source"] > data.sizes["kernel"]:
        kinds = [Patch(color=BLUE, label="groups of kernels"), Patch(color=SKY, label="kernels")]
        axes[0].legend(handles=kinds, fontsize=8, frameon=False, loc="lower right")
    return figure


def _draw_bars(ax: Axes, mean: xr.DataArray, error: xr.DataArray, colors: Array, label: str) -> None:
    """Bars of the sources with a value, with their errors."""
    rows = np.flatnonzero(np.isfinite(mean.values))
    spread = np.nan_to_num(error.values[rows])
    ax.barh(rows, mean.values[rows], height=0.72, color=colors[rows], xerr=spread, error_kw={"elinewidth": 1})
    ax.axvline(0.0, color=GRAY, linewidth=0.8)
    ax.xaxis.set_major_locator(MaxNLocator(5))
    ax.set_xlabel(label, fontsize=9)


def _draw_scores(ax: Axes, values: xr.Dataset, rows: str, shown: Array, colors: Array, label: str) -> None:
    """Scores of single sources with that of all kernels; the axis need not begin at zero."""
    whole, spread = (float(value) for value in mean_and_margin(values["score"], values, rows))
    ax.axvspan(whole - np.nan_to_num(spread), whole + np.nan_to_num(spread), color="#eeeeee", zorder=0)
    ax.axvline(whole, color=GRAY, linestyle=":", linewidth=1.2)
    mean, error = (part[shown].values for part in mean_and_margin(values["score_alone"], values, rows))
    places = np.arange(len(shown))
    ax.hlines(places, mean - np.nan_to_num(error), mean + np.nan_to_num(error), color="#555555", linewidth=1)
    ax.scatter(mean, places, color=colors, s=22, zorder=3)
    ax.set_xlabel(label, fontsize=9)


def _importance_title(data: xr.Dataset, task: str | None, n_shown: int) -> str:
    dim, n_sources = task_dim(data), data.sizes["source"]
    parts = [] if dim is None else [f"mean of {data.sizes[dim]} {dim}s" if task is None else shortened(task)]
    if data.sizes["fold"] > 1:
        of_shapley = ", of Shapley values one standard error by the sampled orders" if "shapley" in data else ""
        parts.append(f"bars: 95 % intervals, of losses paired over folds{of_shapley}")
    parts.append("dotted: all kernels")
    parts += [f"the {n_shown} largest losses of {n_sources}"] if n_shown < n_sources else []
    return "; ".join(parts)


# --- stability -------------------------------------------------------------------------------------------------------


def plot_stability(result: Any, task: str | None) -> Figure:
    """See `dmkl.Stability.plot`."""
    result._check_task(task)
    dim = task_dim(result.data)
    values = of_task(result.data[["mean_weight", "lower", "upper", "selection_frequency"]], task)
    values = values if task is not None or dim is None else values.mean(dim)
    mean = values["mean_weight"].values
    shown = np.sort(np.argsort(-mean, kind="stable")[:MOST_BARS])
    part = values.isel(kernel=shown)
    names = [shortened(str(name)) for name in part["kernel"].values]
    figure = picture(7.4 + 0.075 * max(map(len, names)), 1.5 + 0.24 * len(shown))
    weights, shares = figure.subplots(1, 2, sharey=True, width_ratios=[1.5, 1.0])
    rows = np.arange(len(shown))
    weights.hlines(rows, part["lower"], part["upper"], color=SKY, linewidth=4.5, zorder=2)
    weights.plot(mean[shown], rows, "o", color=BLUE, markersize=5, markeredgecolor="white", clip_on=False, zorder=3)
    weights.set_xlabel("kernel weight: mean, and 95 % of the resamples", fontsize=9)
    name_rows(weights, names)
    weights.set_xlim(left=0)
    shares.barh(rows, part["selection_frequency"], height=0.72, color=SKY, zorder=2)
    shares.axvline(result.threshold, color=RED, linestyle=":", linewidth=1.4, zorder=3)
    shares.set_xlabel(f"selected, share of resamples; dotted: {result.threshold:g}", fontsize=9)
    shares.set_xlim(0, 1)
    for ax in (weights, shares):
        dress(ax, ["top", "right", "bottom"], grid="x")
        ax.spines["left"].set_color(GRAY)
    title = result.summary().split("\n")[0]
    if dim is not None:
        title += f"; {shortened(task)}" if task is not None else f"; means over the {dim}s"
    if len(shown) < len(mean):
        title += f"\nthe {len(shown)} largest mean weights of {len(mean)} kernels"
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    return figure


# --- permutation tests -----------------------------------------------------------------------------------------------


def plot_permutations(data: xr.Dataset, ax: Axes | None = None, task: str | None = None) -> Figure:
    """Draw a histogram of the scores of permuted labels, with the observed score as a line.

    Parameters
    ----------
    data
        The data of a `dmkl.PermutationTest`.
    ax
        Axes to draw on; a new figure if None.
    task
        The task or target; by default a panel for each, if there are several.

    Raises
    ------
    InputError
        If there is no such task, or none is named for the axes although there are several.
    """
    dim = task_dim(data)
    tasks = [] if dim is None else list(map(str, data[dim].values))
    if (task is not None and task not in tasks) or (ax is not None and tasks and task is None):
        names = ", ".join(tasks) or "none to name"
        refuse(f"task must name one of several tasks or targets, of which there are {names}, got {task!r}")
    shown = tasks if task is None and tasks else [task]
    axes = [ax] if ax is not None else picture(5.0, 3.2 * len(shown)).subplots(len(shown), squeeze=False)[:, 0]
    for panel, name in zip(axes, shown, strict=True):
        _draw_null(panel, of_task(data, name), name)
    figure = axes[0].figure
    assert isinstance(figure, Figure)
    return figure


def _draw_null(ax: Axes, values: xr.Dataset, task: str | None) -> None:
    null, attrs = values["null_score"].values, values.attrs
    style: dict[str, Any] = {"color": SKY, "edgecolor": "white", "linewidth": 0.5}
    ax.hist(null, bins=min(MOST_BARS, max(10, len(null) // 8)), label=f"{len(null):,} permutations", **style)
    ax.axvline(float(values["score"]), color=RED, linewidth=1.6, label="original labels")
    ax.set_xlabel(f"{attrs['scoring']}, mean of {attrs['n_folds']} folds", fontsize=9)
    ax.set_ylabel("permutations", fontsize=9)
    dress(ax, ["top", "right", "left"], grid="y")
    ax.legend(frameon=False, fontsize=8)
    title = p_value_text(values)
    ax.set_title(title if task is None else f"{shortened(task)}: {title}", fontsize=10, loc="left")
