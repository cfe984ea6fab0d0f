"""Which classes are taken for which, as a picture, with recall and precision beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sklearn.metrics import ConfusionMatrixDisplay

from dmkl.errors import InputError
from dmkl.pictures import BLUE, RED, picture, shortened
from dmkl.searching.confusion import class_scores

__all__ = ["plot_confusion"]

_MOST_NUMBERS = 20
"""Classes with which numbers still fit into the squares."""
_LONGEST = 20


def plot_confusion(found: Any) -> Figure:
    """See `dmkl.plot_confusion`."""
    counts = found["confusion"] if isinstance(found, xr.Dataset) and "confusion" in found else found
    if not isinstance(counts, xr.DataArray) or not {"true", "predicted"} <= set(counts.dims):
        what = getattr(counts, "dims", type(counts).__name__)
        msg = (
            "confusions are drawn from what dmkl.assess returns for classes, or from counts (true, predicted) or "
            f"(task, true, predicted), got {what}"
        )
        raise InputError(msg)
    scores, tasks = class_scores(counts), "task" in counts.dims
    labels = [shortened(str(label), _LONGEST) for label in scores["task" if tasks else "class"].values]
    n = len(labels)
    # A row has 0.26 inches, a column as many where there is a matrix.
    side, names = max(2.2, 0.26 * n), 0.075 * max(map(len, labels))
    figure = picture((0 if tasks else side) + names + 3.2, side + (0.9 if tasks else 0.9 + names))
    panels = figure.subplots(1, 1 if tasks else 2, sharey=True, squeeze=False, width_ratios=[1] if tasks else [side, 2])
    if not tasks:
        _draw_counts(panels[0, 0], counts, labels)
    _draw_scores(panels[0, -1], scores, labels, "task" if tasks else "true class")
    if not tasks:
        panels[0, -1].set_ylabel("")
    return figure


def _draw_counts(ax: Axes, counts: xr.DataArray, labels: list[str]) -> None:
    display = ConfusionMatrixDisplay(counts.transpose("true", "predicted").values, display_labels=labels)
    numbers = len(labels) <= _MOST_NUMBERS
    display.plot(
        ax=ax, cmap="Blues", colorbar=False, include_values=numbers, text_kw={"fontsize": 8}, values_format="d"
    )
    ax.set_aspect("auto")  # so that its rows stand beside those of the scores
    ax.set_xlabel("predicted class", fontsize=9)
    ax.set_ylabel("true class", fontsize=9)
    ax.tick_params(labelsize=8, length=0)
    if len(labels) * max(map(len, labels)) > 30:
        ax.tick_params(axis="x", rotation=90)


def _draw_scores(ax: Axes, scores: xr.Dataset, labels: list[str], upwards: str) -> None:
    rows = np.arange(len(labels))
    for name, color, marker in (("recall", BLUE, "o"), ("precision", RED, "s")):
        look: dict[str, Any] = {"markersize": 5, "clip_on": False, "linestyle": "none", "alpha": 0.85}
        ax.plot(scores[name].values, rows, marker, color=color, label=name, **look)
    ax.set_yticks(rows, labels)
    ax.set_ylim(len(labels) - 0.5, -0.5)
    ax.set_xlim(0, 1)
    ax.set_ylabel(upwards, fontsize=9)
    ax.set_xlabel("share of its samples (recall),\nof those taken for it (precision)", fontsize=9)
    ax.legend(ncols=2, fontsize=8, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), handletextpad=0.1)
    ax.tick_params(labelsize=8, length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.grid(color="#e4e4e4", linewidth=0.7)
    ax.set_axisbelow(True)
