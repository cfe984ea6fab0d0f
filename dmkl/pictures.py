"""Shared parts of figures: empty figures, dressed axes, bars and maps by name, colors, shortened names."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from dmkl.arrays import Float

__all__ = [
    "BLUE",
    "GRAY",
    "LONGEST_NAME",
    "MOST_BARS",
    "RED",
    "ROOM_FOR_LABELS",
    "SKY",
    "bars",
    "color_bar",
    "dress",
    "heat_map",
    "longest_shown",
    "name_rows",
    "picture",
    "shortened",
]

# Wong: Points of view: color blindness, Nature Methods 8 (2011).
BLUE, SKY, RED, GRAY = "#0072b2", "#56b4e9", "#d55e00", "#8a8a8a"
MOST_BARS = 40
LONGEST_NAME = 48
ROOM_FOR_LABELS = 50
"""Total characters of labels that fit along an axis."""


class _Picture(Figure):
    """A figure that notebooks show even if pyplot, which would enable that, was never imported."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png")
        return file.getvalue()


def picture(width: float, height: float) -> Figure:
    """An empty figure; its size and the padding of its panels are in inches."""
    return _Picture(figsize=(width, height), dpi=110, layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08))


def shortened(name: str, longest: int = LONGEST_NAME) -> str:
    """Shorten a long name in its middle, and escape mathematical markup."""
    half = (longest - 1) // 2
    short = name if len(name) <= longest else f"{name[:half]}…{name[-half:]}"
    return short.replace("$", r"\$")


def longest_shown(labels: Sequence[str]) -> int:
    """Characters of the longest label without the markup of powers, as in 2$^{-6}$."""
    return max(len(label.strip("$}").replace("$^{", "")) for label in labels)


def dress(ax: Axes, hidden: Any = (), grid: Literal["x", "y", "both"] | None = None) -> None:
    """Hide ticks and some of the spines (":" for all), and draw a light grid along some axes."""
    ax.tick_params(axis="both", length=0, labelsize=8)
    if hidden == ":":
        ax.spines[:].set_visible(False)
    elif hidden:
        ax.spines[hidden].set_visible(False)
    if grid:
        ax.grid(axis=grid, color="#e4e4e4", linewidth=0.7)
        ax.set_axisbelow(True)


def name_rows(ax: Axes, names: Sequence[str]) -> None:
    """Names of rows from top to bottom."""
    ax.set_yticks(np.arange(len(names)), names)
    ax.set_ylim(len(names) - 0.4, -0.6)


def color_bar(ax: Axes, image: Any, label: str) -> None:
    """The scale of colors of a map."""
    bar = ax.figure.colorbar(image, ax=ax, pad=0.02)
    bar.set_label(label, fontsize=9)
    bar.ax.tick_params(labelsize=8, length=2)
    bar.outline.set_visible(False)


def bars(names: Sequence[str], values: Float, dots: Float | None, label: str) -> Figure:
    """Bars from top to bottom in the order of names, the largest of many; with dots, (names, dots)."""
    shown = np.sort(np.argsort(-values, kind="stable")[:MOST_BARS])
    labels = [shortened(str(names[j])) for j in shown]
    figure = picture(5.0 + 0.075 * max(map(len, labels)), 1.3 + 0.24 * len(shown))
    ax = figure.subplots()
    rows = np.arange(len(shown))
    ax.barh(rows, values[shown], height=0.72, color=SKY)
    if dots is not None:
        style: dict[str, Any] = {
            "markersize": 3.5,
            "markeredgecolor": "white",
            "markeredgewidth": 0.4,
            "clip_on": False,
        }
        ax.plot(dots[shown], rows, "o", color=RED, **style)
    name_rows(ax, labels)
    ax.set_xlim(left=min(0.0, float(values[shown].min())))
    ax.set_xlabel(label, fontsize=9)
    dress(ax, ["top", "right", "bottom"], grid="x")
    if len(shown) < len(values):
        rest = 100 * (1 - values[shown].sum() / values.sum())
        ax.set_title(
            f"the {len(shown)} largest of {len(values)} kernels; the others have {rest:.0f} % of the weight",
            fontsize=10,
            loc="left",
        )
    return figure


def heat_map(names: Sequence[str], columns: Sequence[str], values: Float, across: str, label: str) -> Figure:
    """Values (names, columns) as colors, names from top to bottom; of many those with the largest values.

    Labels of columns may have mathematical markup; of many columns only some are labeled.
    """
    most = np.nanmax(np.abs(values), axis=1, initial=0.0)
    shown = np.sort(np.argsort(-most, kind="stable")[:MOST_BARS])
    labels = [shortened(str(names[j])) for j in shown]
    every = -(-len(columns) // MOST_BARS)
    heads, turned = columns[::every], len(columns) * longest_shown(columns) > ROOM_FOR_LABELS
    height = 1.1 + 0.24 * max(len(shown), 5) + (0.06 * max(map(len, heads)) if turned else 0.0)
    figure = picture(2.2 + 0.075 * max(map(len, labels)) + min(max(2.4, 0.36 * len(columns)), 10.0), height)
    ax = figure.subplots()
    ax.set_facecolor("#dddddd")  # for missing values
    part = np.ma.masked_invalid(values[shown])
    lowest = min(0.0, float(part.min())) if part.count() else 0.0
    image = ax.pcolormesh(part, cmap="viridis", edgecolors="white", linewidth=0.4, vmin=lowest)
    color_bar(ax, image, label)
    ax.set_xticks(np.arange(0, len(columns), every) + 0.5, heads, rotation=90 if turned else 0)
    ax.set_yticks(np.arange(len(shown)) + 0.5, labels)
    ax.invert_yaxis()
    ax.set_xlabel(across, fontsize=9)
    dress(ax, ":")
    if len(shown) < len(names):
        ax.set_title(f"the {len(shown)} largest of {len(names)} kernels", fontsize=9, loc="left")
    return figure
