"""Figures of inference: losses and Shapley values of kernels, weights over resamples, scores of permuted labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from dmkl import pictures
from dmkl.arrays import Array
from dmkl.searching.grid import mean_and_margin
from dmkl.searching.scoring import limits
from dmkl.searching.texts import p_value_text
from dmkl.store.saved import of_task, task_dim

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_PANELS, _MOST_LABELS = 6, 5
"""Most tasks with a panel each; most kernels with a name at their point."""


def plot_importance(
    result: Any, task: str | None = None, *, ax: Axes | Sequence[Axes] | None = None, top: int | None = None
) -> Any:
    """Draw the loss without each source, and the score of each source alone, with 95 % intervals.

    Left, the losses in score, paired over folds, the largest first; groups are darker than kernels. Right, the score of
    each source alone with that of all kernels (the line, with its interval), and then the Shapley values, if they were
    computed. `ax` are two axes, or three with Shapley values, which are returned.

    Means over all tasks or targets unless `task` names one; the `top` sources, 20 by default. The title has what all
    names of kernels begin and end with; labels have the rest. InputError if there is no such task, or `ax` has a wrong
    number of axes.
    """
    result._check_task(task)
    data, dim = result.data, task_dim(result.data)
    values = of_task(data, task)
    values = values if task is not None or dim is None else values.mean(dim)
    rows = str(data.attrs.get("rows", "validation"))
    loss, error = mean_and_margin(values["score"] - values["score_without"], values, rows)
    loss, sources = loss.round(12), data["source"].values
    shown, labels, few, shared = pictures.largest(sources, loss.values, top, data["kernel"].values)
    names = sources[shown]
    height = 1.4 + 0.24 * len(names)
    sizes = {"losses": (3.2 + 0.075 * max(map(len, labels)), height), "scores alone": (2.9, height)}
    axes = pictures.panels(ax, sizes | ({"Shapley values": (2.9, height)} if "shapley" in data else {}), sharey=True)
    colors = np.where(np.isin(names, data["kernel"].values), pictures.SKY, pictures.BLUE)
    scorer = str(data.attrs["scoring"])
    scoring, ends = pictures.shortened(scorer.replace("_", " ")), limits(scorer)
    of_difference = limits(scorer, of_difference=True)
    _draw_bars(axes[0], loss[shown], error[shown], colors, f"loss in {scoring} without it", of_difference)
    # Scores of single sources with that of all kernels; the axis need not begin at zero.
    whole, spread = (part.values for part in mean_and_margin(values["score"], values, rows))
    axes[1].axvspan(*pictures.interval(whole, spread, ends), color="#eeeeee", zorder=0)
    axes[1].axvline(float(whole), color=pictures.GRAY, linestyle=":", linewidth=1.2)
    alone, margin = (part[shown].values for part in mean_and_margin(values["score_alone"], values, rows))
    places = np.arange(len(shown))
    axes[1].hlines(places, *pictures.interval(alone, margin, ends), color="#555555", linewidth=1)
    axes[1].scatter(alone, places, color=colors, s=22, zorder=3, clip_on=False)
    pictures.dress(axes[1], f"{scoring} of it alone (dotted: of all)", hidden="all", grid="x", ends="x")
    if "shapley" in data:
        shapley = values[["shapley", "shapley_standard_error"]].rename(player="source").reindex(source=names)
        label = f"Shapley value, {scoring}"
        _draw_bars(axes[2], shapley["shapley"], shapley["shapley_standard_error"], colors, label)
    for panel in axes:
        pictures.name_rows(panel, labels)
    of_all = "" if dim is None else f", mean of {data.sizes[dim]} {pictures.plural(dim)}"
    of_tasks = of_all if task is None else f", {task}"
    paired = " (± 95 % interval, paired over folds)" if data.sizes["fold"] > 2 else ""
    each = "kernel or group (darker)" if data.sizes["source"] > data.sizes["kernel"] else "kernel"
    lines = [f"Loss in {scoring} without each {each}{pictures.shortened(of_tasks)}{paired}"]
    lines += ["Shapley values: ± 1 s.e. by the sampled orders"] if "shapley" in data else []
    pictures.set_title(axes, *lines, few and f"{few}, by loss", shared)
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
    spread = np.abs(pictures.interval(value, error.values[rows], ends) - value)
    ax.barh(rows, value, height=0.72, color=colors[rows], xerr=spread, error_kw={"elinewidth": 1})
    ax.axvline(0.0, color=pictures.GRAY, linewidth=0.8)
    pictures.dress(ax, label, hidden="all", grid="x", ends="x")


def plot_stability(
    result: Any, *, task: str | None = None, ax: Axes | Sequence[Axes] | None = None, top: int | None = None
) -> Any:
    """Draw the weights with their intervals, and the selection frequencies, on two axes, which are returned.

    Means over all tasks or targets unless `task` names one; the `top` kernels, the largest 20 by default. The title has
    what all names of kernels begin and end with; labels have the rest. InputError if there is no such task, or `ax` has
    a wrong number of axes.
    """
    result._check_task(task)
    n = result.data.sizes["resample"]
    n_distinct = result.data.attrs.get("n_distinct", n)
    note = f"{n_distinct} of {result._resamples} are distinct" if n_distinct < n else ""
    dim = task_dim(result.data)
    values = of_task(result.data[["mean_weight", "lower", "upper", "selection_frequency"]], task)
    unit = "kernel weight β"
    if task is None and dim is not None:  # tasks may have different p
        total, unit = values["mean_weight"].sum("kernel"), "share of the weight"
        values = values.assign({k: values[k] / total.where(total > 0, 1) for k in ("mean_weight", "lower", "upper")})
        values = values.mean(dim)
    mean = values["mean_weight"].values
    shown, labels, few, shared = pictures.largest(values["kernel"].values, mean, top)
    part, height = values.isel(kernel=shown), 1.4 + 0.24 * len(shown)
    sizes = {"weights": (4.4 + 0.075 * max(map(len, labels)), height), "shares": (3.0, height)}
    axes = pictures.panels(ax, sizes, sharey=True)
    weights, shares = axes
    rows = np.arange(len(shown))
    weights.hlines(rows, part["lower"], part["upper"], color=pictures.SKY, linewidth=4.5, zorder=2)
    weights.plot(
        mean[shown], rows, "o", color=pictures.BLUE, markersize=5, markeredgecolor="white", clip_on=False, zorder=3
    )
    weights.update_datalim([(0.0, 0.0)])
    weights.set_xlim(left=0)  # weights that are zero may be rounded below
    shares.barh(rows, part["selection_frequency"], height=0.72, color=pictures.SKY, zorder=2)
    shares.axvline(result.threshold, color=pictures.RED, linestyle=":", linewidth=1.4, zorder=3)
    shares.set_xlim(0, 1)
    frequency = f"selection frequency (dotted: {result.threshold:g})"
    for panel, label, ends in ((weights, unit, "x"), (shares, frequency, "")):
        pictures.name_rows(panel, labels)
        pictures.dress(panel, label, hidden="top right bottom", grid="x", ends=ends)
        panel.spines["left"].set_color(pictures.GRAY)
    about = (
        "" if dim is None else f", mean of {pictures.plural(dim)}" if task is None else f", {pictures.shortened(task)}"
    )
    title = f"Kernel weights over resamples{about} (dots: means, lines: 95 % of the resamples)"
    if few:
        few += f"; the others have {100 * (1 - mean[shown].sum() / mean.sum()):.0f} % of the weight"
    pictures.set_title(axes, title, note, few, shared)
    return axes


def plot_permutations(result: Any, ax: Axes | Sequence[Axes] | None = None, *, task: str | None = None) -> Any:
    """Draw a histogram of the scores of permuted labels, with the observed score as a line.

    By default there is a panel, on axes of its own in `ax` if given, for each task or target, and the result is an
    array of axes if there are several; of more than six tasks a histogram of the p-values is drawn. InputError if there
    is no such `task`, or `ax` has a wrong number of axes.
    """
    result._check_task(task)
    data, dim = result.data, task_dim(result.data)
    shown = list(result.tasks) if task is None and result.tasks else [task]
    style: dict[str, Any] = {"color": pictures.SKY, "edgecolor": "white", "linewidth": 0.5}
    if len(shown) > _MOST_PANELS:  # without any dependence all bars have the same height
        axes, p, noun = pictures.panels(ax, {"p-values": (5.0, 3.2)}), data["p_value"].values, pictures.plural(str(dim))
        axes[0].hist(p, bins=20, range=(0, 1), **style)
        axes[0].axhline(len(p) / 20, color=pictures.GRAY, linestyle=":", linewidth=1.2)
        pictures.dress(axes[0], "p-value", noun, hidden="top right left", grid="y")
        pictures.set_title(axes, f"p-values of {len(p):,} {noun} (dotted: expected if no label depends on the kernels)")
        return axes[0]
    axes = pictures.panels(ax, {f"scores of {name or 'permuted labels'}": (6.1, 3.2) for name in shown})
    scoring, n_folds = str(data.attrs["scoring"]).replace("_", " "), data.attrs["n_folds"]
    for panel, name in zip(axes, shown, strict=True):
        values = of_task(data, name)
        null = values["null_score"].values
        panel.hist(null, bins=min(40, max(10, len(null) // 8)), label=f"{len(null):,} permutations", **style)
        panel.axvline(float(values["score"]), color=pictures.RED, linewidth=1.6, label="original labels")
        score = f"{scoring}, mean of {n_folds} folds"
        pictures.dress(panel, score, "permutations", hidden="top right left", grid="y", ends="xy")
        panel.legend(frameon=False, fontsize=8)
        about = "" if name is None else f" of {pictures.shortened(name)}"
        panel.set_title(f"Scores{about} with permuted labels\n{p_value_text(values)}", fontsize=9, loc="left")
    return axes if len(axes) > 1 else axes[0]


def plot_association(result: Any, task: str | None = None, *, ax: Axes | None = None) -> Axes:
    """Draw −log₁₀ p over the excess of each kernel, the smallest with names; InputError if there is no such task.

    Of several tasks or targets all are drawn, a point for each and each kernel, unless `task` names one.
    """
    result._check_task(task)
    data = of_task(result.data, task)
    (ax,) = pictures.panels(ax, {"kernels": (5.0, 3.6)})
    p, excess, q = (data[name].transpose("kernel", ...).values.ravel() for name in ("p_value", "excess", "q_value"))
    size, selected = -np.log10(np.maximum(p, 1e-300)), q <= 0.05
    ax.scatter(excess[~selected], size[~selected], s=14, color=pictures.GRAY)
    ax.scatter(excess[selected], size[selected], s=18, color=pictures.BLUE)
    labels, shared = pictures.kernel_labels(data["kernel"].values)
    dim, of_points = task_dim(data), "kernels"
    if dim is not None:
        of_points = f"pairs of a kernel and a {dim}"
        labels = [f"{label}, {pictures.shortened(str(name))}" for label in labels for name in data[dim].values]
    for k in np.argsort(p, kind="stable")[:_MOST_LABELS]:
        if selected[k]:
            left = excess[k] < 0.6 * np.nanmax(excess)  # of the panel: the name goes to the right of the point
            where: dict[str, Any] = {
                "xytext": (4 if left else -4, 2),
                "textcoords": "offset points",
                "ha": "left" if left else "right",
            }
            ax.annotate(labels[k], (excess[k], size[k]), fontsize=8, **where)
    pictures.dress(ax, "statistic over its mean without association", "−log₁₀ p", grid="both", ends="xy")
    n = np.count_nonzero(selected)
    pictures.set_title([ax], f"{n} of {len(p)} {of_points} associated at a false discovery rate of 5 % (blue)", shared)
    return ax
