"""Pictures of resampling: kernel weights with their intervals, and how often each kernel is selected."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dmkl.errors import InputError
from dmkl.pictures import BLUE, GRAY, LONGEST_NAME, MOST_BARS, RED, SKY, picture, shortened
from dmkl.searching.means import task_dim

if TYPE_CHECKING:
    from dmkl.inference.stability import Stability

__all__ = ["plot_stability"]


def plot_stability(found: Stability, task: str | None) -> Figure:
    """See `Stability.plot`."""
    data, dim = found.data, task_dim(found.data)
    if task is not None and (found.tasks is None or task not in found.tasks):
        what = "there are no tasks" if found.tasks is None else f"the {dim}s are {', '.join(found.tasks[:10])}"
        msg = f"there is no task {task!r}: {what}; leave task out, or name one of them"
        raise InputError(msg)
    drawn = data[["mean_weight", "lower", "upper", "selection_frequency"]]
    if task is not None:
        drawn = drawn.sel({dim: task})
    elif dim is not None:
        drawn = drawn.mean(dim)
    mean = drawn["mean_weight"].values
    shown = np.sort(np.argsort(-mean, kind="stable")[:MOST_BARS])
    part = drawn.isel(kernel=shown)
    names = [shortened(str(name), LONGEST_NAME) for name in part["kernel"].values]
    figure = picture(7.4 + 0.075 * max(map(len, names)), 1.5 + 0.24 * len(shown))
    weights, shares = figure.subplots(1, 2, sharey=True, width_ratios=[1.5, 1.0])
    rows = np.arange(len(shown))
    weights.hlines(rows, part["lower"], part["upper"], color=SKY, linewidth=4.5, zorder=2)
    weights.plot(mean[shown], rows, "o", color=BLUE, markersize=5, markeredgecolor="white", clip_on=False, zorder=3)
    _dress(weights, "kernel weight: mean, and 95 % of the resamples")
    weights.set_yticks(rows, names)
    weights.set_ylim(len(shown) - 0.4, -0.6)
    weights.set_xlim(left=0)
    shares.barh(rows, part["selection_frequency"], height=0.72, color=SKY, zorder=2)
    shares.axvline(found.threshold, color=RED, linestyle=":", linewidth=1.4, zorder=3)
    _dress(shares, f"selected, share of resamples; dotted: {found.threshold:g}")
    shares.set_xlim(0, 1)
    title = found.summary().split("\n")[0]
    if dim is not None:
        title += f"; {shortened(task, LONGEST_NAME)}" if task is not None else "; means over them"
    if len(shown) < len(mean):
        title += f"\nthe {len(shown)} largest mean weights of {len(mean)} kernels"
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    return figure


def _dress(ax: Axes, across: str) -> None:
    ax.set_xlabel(across, fontsize=9)
    ax.tick_params(axis="both", length=0, labelsize=8)
    ax.spines[["top", "right", "bottom"]].set_visible(False)
    ax.spines["left"].set_color(GRAY)
    ax.grid(axis="x", color="#e4e4e4", linewidth=0.7)
    ax.set_axisbelow(True)
