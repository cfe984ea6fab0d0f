"""Figures of inference: losses and Shapley values of kernels, weights over resamples, scores of permuted labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from dmkl.arrays import Array
from dmkl.errors import refuse
from dmkl.pictures import (
    BLUE,
    GRAY,
    RED,
    SKY,
    dress,
    interval,
    kernel_labels,
    label_ends,
    largest,
    name_rows,
    panels,
    plural,
    set_title,
    shortened,
)
from dmkl.searching.grid import mean_and_margin
from dmkl.searching.scoring import limits
from dmkl.searching.texts import p_value_text
from dmkl.store.saved import of_task, task_dim

_MOST_PANELS, _MOST_LABELS = 6, 5
"""Most tasks with a panel each; most kernels with a name at their point."""


def plot_importance(result: Any, task: str | None, ax: Any, top: int | None) -> Any:
    """See `dmkl.Importance.plot`."""
    result._check_task(task)
    data, dim = result.data, task_dim(result.data)
    values = of_task(data, task)
    values = values if task is not None or dim is None else values.mean(dim)
    rows = str(data.attrs.get("rows", "validation"))
    loss, error = mean_and_margin(values["score"] - values["score_without"], values, rows)
    shown, few = largest(loss.round(12).values, top)
    names = data["source"].values[shown]
    labels, shared = kernel_labels(data["kernel"].values)
    by_name = dict(zip(data["kernel"].values.tolist(), labels, strict=True))
    labels = [by_name.get(name, shortened(str(name))) for name in names]
    height = 1.4 + 0.24 * len(names)
    sizes = {"losses": (3.2 + 0.075 * max(map(len, labels)), height), "scores alone": (2.9, height)}
    axes = panels(ax, sizes | ({"Shapley values": (2.9, height)} if "shapley" in data else {}), sharey=True)
    for panel in axes:
        dress(panel, ":", grid="x")
    colors = np.where(np.isin(names, data["kernel"].values), SKY, BLUE)
    scorer = str(data.attrs["scoring"])
    scoring, ends = shortened(scorer.replace("_", " ")), limits(scorer)
    of_difference = limits(scorer, of_difference=True)
    _draw_bars(axes[0], loss.round(12)[shown], error[shown], colors, f"loss in {scoring} without it", of_difference)
    # Scores of single sources with that of all kernels; the axis need not begin at zero.
    whole, spread = (part.values for part in mean_and_margin(values["score"], values, rows))
    axes[1].axvspan(*interval(whole, spread, ends), color="#eeeeee", zorder=0)
    axes[1].axvline(float(whole), color=GRAY, linestyle=":", linewidth=1.2)
    alone, margin = (part[shown].values for part in mean_and_margin(values["score_alone"], values, rows))
    places = np.arange(len(shown))
    axes[1].hlines(places, *interval(alone, margin, ends), color="#555555", linewidth=1)
    axes[1].scatter(alone, places, color=colors, s=22, zorder=3, clip_on=False)
    label_ends(axes[1].xaxis)
    axes[1].set_xlabel(f"{scoring} of it alone (dotted: of all)", fontsize=9)
    if "shapley" in data:
        shapley = values[["shapley", "shapley_standard_error"]].rename(player="source").reindex(source=names)
        label = f"Shapley value, {scoring}"
        _draw_bars(axes[2], shapley["shapley"], shapley["shapley_standard_error"], colors, label)
    for panel in axes:
        name_rows(panel, labels)
    of_tasks = "" if dim is None else f", mean of {data.sizes[dim]} {plural(dim)}" if task is None else f", {task}"
    paired = " (± 95 % interval, paired over folds)" if data.sizes["fold"] > 2 else ""
    sources = "kernel or group (darker)" if data.sizes["source"] > data.sizes["kernel"] else "kernel"
    lines = [f"Loss in {scoring} without each {sources}{shortened(of_tasks)}{paired}"]
    lines += ["Shapley values: ± 1 s.e. by the sampled orders"] if "shapley" in data else []
    set_title(axes, *lines, few and f"{few}, by loss", shared)
    return axes


def _draw_bars(
    ax: Axes,
    mean: xr.DataArray,
    error: xr.DataArray,
    colors: Array,
    label: str,
    ends: tuple[float, float] = (-np.inf, np.inf),
) -> None:
    """Bars of the sources with a value, with their errors, as intervals between `ends`."""
    rows = np.flatnonzero(np.isfinite(mean.values))
    value = mean.values[rows]
    spread = np.abs(interval(value, error.values[rows], ends) - value)
    ax.barh(rows, value, height=0.72, color=colors[rows], xerr=spread, error_kw={"elinewidth": 1})
    ax.axvline(0.0, color=GRAY, linewidth=0.8)
    label_ends(ax.xaxis)
    ax.set_xlabel(label, fontsize=9)


def plot_stability(result: Any, task: str | None, ax: Any, top: int | None, note: str) -> Any:
    """See `dmkl.Stability.plot`; `note` is a line of the title."""
    result._check_task(task)
    dim = task_dim(result.data)
    values = of_task(result.data[["mean_weight", "lower", "upper", "selection_frequency"]], task)
    unit = "kernel weight β"
    if task is None and dim is not None:  # tasks may have different p
        total, unit = values["mean_weight"].sum("kernel"), "share of the weight"
        values = values.assign({k: values[k] / total.where(total > 0, 1) for k in ("mean_weight", "lower", "upper")})
        values = values.mean(dim)
    mean = values["mean_weight"].values
    shown, few = largest(mean, top)
    part = values.isel(kernel=shown)
    labels, shared = kernel_labels(values["kernel"].values)
    labels, height = [labels[j] for j in shown], 1.4 + 0.24 * len(shown)
    sizes = {"weights": (4.4 + 0.075 * max(map(len, labels)), height), "shares": (3.0, height)}
    axes = panels(ax, sizes, sharey=True)
    weights, shares = axes
    rows = np.arange(len(shown))
    weights.hlines(rows, part["lower"], part["upper"], color=SKY, linewidth=4.5, zorder=2)
    weights.plot(mean[shown], rows, "o", color=BLUE, markersize=5, markeredgecolor="white", clip_on=False, zorder=3)
    weights.set_xlabel(unit, fontsize=9)
    weights.update_datalim([(0.0, 0.0)])
    weights.set_xlim(left=0)  # weights that are zero may be rounded below
    label_ends(weights.xaxis)
    shares.barh(rows, part["selection_frequency"], height=0.72, color=SKY, zorder=2)
    shares.axvline(result.threshold, color=RED, linestyle=":", linewidth=1.4, zorder=3)
    shares.set_xlabel(f"selection frequency (dotted: {result.threshold:g})", fontsize=9)
    shares.set_xlim(0, 1)
    for panel in axes:
        name_rows(panel, labels)
        dress(panel, ["top", "right", "bottom"], grid="x")
        panel.spines["left"].set_color(GRAY)
    about = "" if dim is None else f", mean of {plural(dim)}" if task is None else f", {shortened(task)}"
    title = f"Kernel weights over resamples{about} (dots: means, lines: 95 % of the resamples)"
    if few:
        few += f"; the others have {100 * (1 - mean[shown].sum() / mean.sum()):.0f} % of the weight"
    set_title(axes, title, note, few, shared)
    return axes


def plot_permutations(data: xr.Dataset, ax: Any = None, task: str | None = None) -> Any:
    """Draw a histogram of the scores of permuted labels, with the observed score as a line.

    By default there is a panel, on axes of its own in `ax` if given, for each task or target, and the result is an
    array of axes if there are several; of more than six tasks a histogram of the p-values is drawn. InputError if there
    is no such `task`, or `ax` has a wrong number of axes.
    """
    dim = task_dim(data)
    tasks = [] if dim is None else list(map(str, data[dim].values))
    if task is not None and task not in tasks:
        names = ", ".join(tasks) or "none to name"
        refuse(f"task must name one of several tasks or targets, of which there are {names}, got {task!r}")
    shown = tasks if task is None and tasks else [task]
    if len(shown) > _MOST_PANELS:  # without any dependence all bars have the same height
        (ax,), p, noun = panels(ax, {"p-values": (5.0, 3.2)}), data["p_value"].values, plural(str(dim))
        ax.hist(p, bins=20, range=(0, 1), color=SKY, edgecolor="white", linewidth=0.5)
        ax.axhline(len(p) / 20, color=GRAY, linestyle=":", linewidth=1.2)
        ax.set_xlabel("p-value", fontsize=9)
        ax.set_ylabel(noun, fontsize=9)
        dress(ax, ["top", "right", "left"], grid="y")
        set_title([ax], f"p-values of {len(p):,} {noun} (dotted: expected if no label depends on the kernels)")
        return ax
    axes = panels(ax, {f"scores of {name or 'permuted labels'}": (6.1, 3.2) for name in shown})
    scoring, n_folds = str(data.attrs["scoring"]).replace("_", " "), data.attrs["n_folds"]
    style: dict[str, Any] = {"color": SKY, "edgecolor": "white", "linewidth": 0.5}
    for panel, name in zip(axes, shown, strict=True):
        values = of_task(data, name)
        null = values["null_score"].values
        panel.hist(null, bins=min(40, max(10, len(null) // 8)), label=f"{len(null):,} permutations", **style)
        panel.axvline(float(values["score"]), color=RED, linewidth=1.6, label="original labels")
        panel.set_xlabel(f"{scoring}, mean of {n_folds} folds", fontsize=9)
        panel.set_ylabel("permutations", fontsize=9)
        dress(panel, ["top", "right", "left"], grid="y")
        label_ends(panel.xaxis, panel.yaxis)
        panel.legend(frameon=False, fontsize=8)
        about = "" if name is None else f" of {shortened(name)}"
        panel.set_title(f"Scores{about} with permuted labels\n{p_value_text(values)}", fontsize=9, loc="left")
    return axes if len(axes) > 1 else axes[0]


def plot_association(data: xr.Dataset, ax: Any) -> Any:
    """−log₁₀ p of each kernel over its excess, the smallest with their names; see `dmkl.Association.plot`."""
    ax = panels(ax, {"kernels": (5.0, 3.6)})[0]
    dress(ax, grid="both")
    p, excess = data["p_value"].values, data["excess"].values
    size = -np.log10(np.maximum(p, 1e-300))
    selected = data["q_value"].values <= 0.05
    ax.scatter(excess[~selected], size[~selected], s=14, color=GRAY)
    ax.scatter(excess[selected], size[selected], s=18, color=BLUE)
    labels, shared = kernel_labels(data["kernel"].values)
    for k in np.argsort(p, kind="stable")[:_MOST_LABELS]:
        if selected[k]:
            left = excess[k] < 0.6 * np.nanmax(excess)  # of the panel: the name goes to the right of the point
            where = {"xytext": (4 if left else -4, 2), "textcoords": "offset points", "ha": "left" if left else "right"}
            ax.annotate(labels[k], (excess[k], size[k]), fontsize=8, **where)
    ax.set_xlabel("statistic over its mean without association", fontsize=9)
    ax.set_ylabel("−log₁₀ p", fontsize=9)
    label_ends(ax.xaxis, ax.yaxis)
    n = np.count_nonzero(selected)
    set_title([ax], f"{n} of {len(p)} kernels associated at a false discovery rate of 5 % (blue)", shared)
    return ax
