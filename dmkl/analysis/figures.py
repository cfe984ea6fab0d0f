"""Figures of an analysis: the map of alignments, alignments with the labels, spectra."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from dmkl.errors import refuse
from dmkl.pictures import bars, color_bar, dress, kernel_labels, panels, set_title, shortened, widest

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_alignment(analysis: Any, *, ax: Axes | None = None) -> Axes:
    """Draw the map of unbiased alignments, ordered by hierarchical clustering: similar kernels are side by side.

    After Yan et al., JMLR 13 (2012), Fig. 5. The colors begin at the smallest alignment, and are symmetric (the
    diverging map "RdBu_r") if some are negative; missing alignments are gray.
    """
    data = analysis.data
    order = data["order"].values
    kind = "unbiased_alignment" if "unbiased_alignment" in data else "alignment"  # saved results may lack it
    values = data[kind].values[np.ix_(order, order)]
    names, shared = kernel_labels(data["kernel"].values)
    names, n = [names[j] for j in order], len(names)
    for margin in (0.075 * max(map(len, names)), 0.4):  # with names if there is room for them
        side = min(max(2.6, 0.26 * n), widest.get() - margin - 1.3)
        if (cell := side / n) >= 0.13:  # inches
            break
    (ax,) = panels(ax, {"the map": (side + margin + 1.3, side + margin + 0.7)})
    low = float(np.nanmin(values, initial=1.0))
    least = 0.0 if low == 1.0 else low  # a single kernel, or copies of one
    colors: dict[str, Any] = {"vmin": least, "cmap": "viridis"} if low >= 0 else {"vmin": -1.0, "cmap": "RdBu_r"}
    image = ax.imshow(values, interpolation="nearest", vmax=1.0, **colors)
    ax.set_facecolor("#d0d0d0")
    if n <= 60 and cell >= 0.13:
        ax.set_xticks(range(n), names, rotation=90)
        ax.set_yticks(range(n), names)
    else:
        ax.set(xticks=[], yticks=[])
        ax.set_xlabel(f"{n} kernels, similar kernels side by side", fontsize=9)
    for (a, b), value in np.ndenumerate(values) if cell >= 0.25 and n <= 14 else ():
        if np.isfinite(value):
            red, green, blue, _ = image.cmap(image.norm(value))
            dark = 0.3 * red + 0.59 * green + 0.11 * blue < 0.5
            text = f"{value:.2f}".replace("0.", ".", 1).replace("1.00", "1")
            ax.text(b, a, text, ha="center", va="center", fontsize=8, color="white" if dark else "black")
    dress(ax, hidden="all")
    color_bar(ax, image, "")
    set_title([ax], f"{kind.replace('_', ' ').capitalize()} of {_title(data)}", shared)
    return ax


def plot_targets(analysis: Any, task: str | None = None, *, ax: Axes | None = None, top: int | None = None) -> Axes:
    """Draw the alignment of each kernel with the ideal kernel of the labels, the best on top.

    Bars are means over the tasks of a multilabel problem, with a dot for each, unless `task` names one. Estimates have
    lines of one standard error. The `top` kernels are drawn, the best 20 by default. InputError if there were no
    labels, or there is no such task.
    """
    data = analysis.data
    if "target_alignment" not in data:
        refuse("this analysis had no labels to align with; give them to dmkl.analyze(K, y)")
    analysis._check_task(task)
    fit, error = data["target_alignment"], data.get("target_alignment_error")
    of_task = "the labels" if task is None else shortened(task)
    if task is not None:
        fit, error = fit.sel(task=task), None if error is None else error.sel(task=task)
    elif "task" in fit.dims:
        error = None
    columns = fit.transpose("kernel", ...).values.reshape(data.sizes["kernel"], -1)
    title, label = f"Alignment of {_title(data)} with {of_task}", "alignment with the ideal kernel"
    errors = None if error is None else error.values
    return bars(data["kernel"].values, columns, "task", title, ax=ax, top=top, label=label, error=errors)


def plot_spectra(analysis: Any, *, ax: Axes | None = None) -> Axes:
    """Draw the leading eigenvalues of each kernel as shares of its trace: bands between their proven bounds.

    A line for each kernel with a band from lower to upper bounds, dark if the effective rank is small. The ten kernels
    with the smallest effective ranks are named.
    """
    from matplotlib import colormaps
    from matplotlib.ticker import MaxNLocator

    data = analysis.data
    share, upper = ((data[name] / data["trace"]).values for name in ("eigenvalue", "eigenvalue_upper"))
    rank, component = data["effective_rank"].values, data["component"].values
    shown = np.flatnonzero(np.isfinite(share).all(axis=1) & np.isfinite(rank))
    shown = shown[np.argsort(rank[shown], kind="stable")]
    names, shared = kernel_labels(data["kernel"].values)
    (ax,) = panels(ax, {"the lines": (6.4, 4.0)})
    colors = [colormaps["viridis"](0.9 * place / max(len(shown) - 1, 1)) for place in range(len(shown))]
    for place, j in enumerate(shown):
        label = f"{names[j]}: {rank[j]:.3g}" if place < 10 else None
        # A logarithmic scale has no zeros: the spectrum ends there.
        line = np.where(share[j] > 1e-12, share[j], np.nan)
        ax.plot(component, line, "o-", color=colors[place], markersize=2.5, linewidth=1.0, label=label)
        ax.fill_between(component, line, upper[j], color=colors[place], alpha=0.12, linewidth=0)
    ax.set_yscale("log")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    dress(ax, "component", "share of the trace", hidden="top right", grid="y", ends="y" if len(shown) else "")
    if len(shown):
        title = "effective rank" if len(shown) <= 10 else "effective rank (the smallest 10)"
        beside: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1, 0.5)}
        ax.legend(title=title, fontsize=8, title_fontsize=8, frameon=False, **beside)
    set_title([ax], f"Leading eigenvalues of {_title(data)}, between proven bounds", shared)
    return ax


def _title(data: xr.Dataset) -> str:
    about = "centered kernels" if data.attrs["centered"] else "the kernels as they are"
    return about if data.attrs["method"] == "exact" else f"{about} ({data.attrs['method']})"
