"""Figures of an analysis: the map of alignments, alignments with the labels, spectra."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dmkl.arrays import Float
from dmkl.pictures import MOST_BARS, RED, SKY, dress, name_rows, picture, shortened

__all__ = ["plot_alignment", "plot_spectra", "plot_targets"]


MOST_NAMES = 60
"""Most rows of a map with names."""
MOST_NUMBERS = 14
"""Most rows of a map with numbers."""
LONGEST_NAME = 32


def plot_alignment(data: xr.Dataset) -> Figure:
    """Draw the map of alignments, ordered by hierarchical clustering, as `data["order"]` has it.

    After Yan et al., JMLR 13 (2012), Fig. 5. The colors begin at the smallest alignment, and are symmetric (the
    diverging map "RdBu_r") if some are negative; missing alignments are gray.
    """
    order = data["order"].values
    values = data["alignment"].values[np.ix_(order, order)]
    names = [shortened(str(name), LONGEST_NAME) for name in data["kernel"].values[order]]
    n = len(names)
    side = min(max(2.6, 0.26 * n), 12.0)
    named = n <= MOST_NAMES
    margin = 0.075 * max(map(len, names)) if named else 0.4
    figure = picture(side + margin + 1.3, side + margin + 0.5)
    ax = figure.subplots()
    low = float(np.nanmin(values, initial=1.0))
    span: dict[str, Any] = (
        {"vmin": low, "vmax": 1.0, "cmap": "viridis"} if low >= 0 else {"vmin": -1.0, "vmax": 1.0, "cmap": "RdBu_r"}
    )
    if low == 1.0:  # a single kernel, or copies of one
        span["vmin"] = 0.0
    image = ax.imshow(values, interpolation="nearest", **span)
    ax.set_facecolor("#d0d0d0")
    if named:
        ax.set_xticks(range(n), names, rotation=90)
        ax.set_yticks(range(n), names)
    else:
        ax.set_xticks([])
        ax.set_yticks([])
        ax.set_xlabel(f"{n} kernels, similar kernels side by side", fontsize=9)
    if n <= MOST_NUMBERS:
        _write_numbers(ax, values, image)
    dress(ax, ":")
    bar = figure.colorbar(image, ax=ax, shrink=0.8)
    bar.ax.tick_params(labelsize=8)
    ax.set_title(f"Alignment of {_title(data)}", fontsize=10, loc="left")
    return figure


def _write_numbers(ax: Axes, values: Float, image: Any) -> None:
    for (a, b), value in np.ndenumerate(values):
        if np.isfinite(value):
            red, green, blue, _ = image.cmap(image.norm(value))
            dark = 0.3 * red + 0.59 * green + 0.11 * blue < 0.5
            text = f"{value:.2f}".replace("0.", ".", 1).replace("1.00", "1")
            ax.text(b, a, text, ha="center", va="center", fontsize=8, color="white" if dark else "black")


def plot_targets(data: xr.Dataset, task: str | None = None) -> Figure:
    """Draw the alignment of each kernel with the ideal kernel of the labels, the best on top.

    Parameters
    ----------
    task
        A task of a multilabel problem. By default the bars are means over the tasks, with a dot for each task.

    Returns
    -------
    Figure
        The best 40 kernels if there are more, which its title says; estimates have lines of one standard error.
    """
    fit = data["target_alignment"]
    error = data.get("target_alignment_error")
    dots: Float | None = None
    if task is not None:
        fit, error = fit.sel(task=task), None if error is None else error.sel(task=task)
    elif "task" in fit.dims:
        dots, fit, error = fit.values, fit.mean("task"), None
    values = fit.values
    shown = np.argsort(-np.nan_to_num(values, nan=-np.inf), kind="stable")[:MOST_BARS]
    names = [shortened(str(name), LONGEST_NAME) for name in data["kernel"].values[shown]]
    figure = picture(5.0 + 0.075 * max(map(len, names)), 1.3 + 0.24 * len(shown))
    ax = figure.subplots()
    rows = np.arange(len(shown))
    ax.barh(rows, values[shown], height=0.72, color=SKY, xerr=None if error is None else error.values[shown])
    if dots is not None:
        ax.plot(dots[shown], rows, "o", color=RED, markersize=3.5, markeredgecolor="white", markeredgewidth=0.4)
    name_rows(ax, names)
    several = "" if dots is None else f", mean of {dots.shape[1]} tasks, a dot each"
    ax.set_xlabel(f"alignment with the ideal kernel{several}", fontsize=9)
    dress(ax, ["top", "right"], grid="x")
    title = f"Fit to {'the labels' if task is None else shortened(task, LONGEST_NAME)}: {_title(data)}"
    if len(shown) < len(values):
        title += f"\nthe best {len(shown)} of {len(values)}"
    ax.set_title(title, fontsize=10, loc="left")
    return figure


def plot_spectra(data: xr.Dataset) -> Figure:
    """Draw the leading eigenvalues of each kernel as shares of its trace: bands between their proven bounds.

    A line for each kernel with a band from lower to upper bounds, dark if the effective rank is small. The ten kernels
    with the smallest effective ranks are named.
    """
    share = data["eigenvalue"] / data["trace"]
    upper = (data["eigenvalue_upper"] / data["trace"]).values
    rank = data["effective_rank"].values
    component = data["component"].values
    shown = np.flatnonzero(np.isfinite(share.values).all(axis=1) & np.isfinite(rank))
    shown = shown[np.argsort(rank[shown], kind="stable")]
    figure = picture(6.4, 4.0)
    ax = figure.subplots()
    colors = [colormaps["viridis"](0.9 * place / max(len(shown) - 1, 1)) for place in range(len(shown))]
    for place, j in enumerate(shown):
        name = shortened(str(data["kernel"].values[j]), LONGEST_NAME)
        label = f"{name}: {rank[j]:.3g}" if place < 10 else None
        # A logarithmic scale has no zeros: the spectrum ends there.
        line = np.where(share.values[j] > 1e-12, share.values[j], np.nan)
        ax.plot(component, line, "o-", color=colors[place], markersize=2.5, linewidth=1.0, label=label)
        ax.fill_between(component, line, upper[j], color=colors[place], alpha=0.12, linewidth=0)
    ax.set_yscale("log")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("component", fontsize=9)
    ax.set_ylabel("share of the trace", fontsize=9)
    dress(ax, ["top", "right"], grid="y")
    if len(shown):
        more = "" if len(shown) <= 10 else " (the smallest 10)"
        ax.legend(
            title=f"effective rank{more}",
            fontsize=8,
            title_fontsize=8,
            frameon=False,
            loc="center left",
            bbox_to_anchor=(1, 0.5),
        )
    ax.set_title(f"Leading eigenvalues of {_title(data)}, between proven bounds", fontsize=10, loc="left")
    return figure


def _title(data: xr.Dataset) -> str:
    about = "centered kernels" if data.attrs["centered"] else "the kernels as they are"
    return about if data.attrs["method"] == "exact" else f"{about}\n{data.attrs['method']}"
