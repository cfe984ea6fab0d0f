"""Pictures of findings."""

from __future__ import annotations

from typing import Any

import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dmkl.errors import InputError
from dmkl.pictures import picture, shortened

__all__ = ["plot_permutations"]

# Wong: Points of view: color blindness, Nature Methods 8 (2011).
_SKY, _RED = "#56b4e9", "#d55e00"
_MOST_BARS, _LONGEST_NAME = 40, 48


def plot_permutations(data: xr.Dataset, ax: Axes | None = None, task: str | None = None) -> Figure:
    """Draw a histogram of the scores of permuted labels, with the observed score as a line.

    Parameters
    ----------
    data
        Of a `dmkl.PermutationTest`.
    ax
        Axes to draw on; a figure of its own where None.
    task
        The task or target, where there are several.

    Raises
    ------
    InputError
        If there is no such task, or none is named where there are several.
    """
    dim = next((str(dim) for dim in data["score"].dims), None)
    if (dim is None) != (task is None) or (dim is not None and task not in data[dim].values):
        there = "none to name" if dim is None else ", ".join(map(str, data[dim].values))
        msg = f"task must name one of several tasks or targets, of which there are {there}, got {task!r}"
        raise InputError(msg)
    one = data if dim is None else data.sel({dim: task})
    null, score = one["null_score"].values, float(one["score"])
    if ax is None:
        figure = picture(5.0, 3.2)
        axes = figure.subplots()
    else:
        axes, found = ax, ax.figure
        assert isinstance(found, Figure)
        figure = found
    values, n_bars = {"color": _SKY, "edgecolor": "white", "linewidth": 0.5}, min(_MOST_BARS, max(10, len(null) // 8))
    style: dict[str, Any] = {**values, "bins": n_bars}
    axes.hist(null, label=f"{len(null):,} permutations", **style)
    axes.axvline(score, color=_RED, linewidth=1.6, label="labels as they are")
    axes.set_xlabel(f"{data.attrs['scoring']}, mean of {data.attrs['n_folds']} folds", fontsize=9)
    axes.set_ylabel("permutations", fontsize=9)
    axes.tick_params(axis="both", length=0, labelsize=8)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.legend(frameon=False, fontsize=8)
    title = f"p = {float(one['p_value']):.3g} ± {float(one['p_value_error']):.1g}"
    axes.set_title(title if task is None else f"{shortened(task, _LONGEST_NAME)}: {title}", fontsize=10, loc="left")
    return figure
