"""Kernel weights as a picture: a panel of horizontal bars for each model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import xarray as xr

from dmkl.pictures import picture

__all__ = ["draw_weights"]


def draw_weights(
    path: Path, names: Sequence[str], weights: Mapping[str, xr.DataArray], title: str, *, muted: Collection[str] = ()
) -> None:
    """Draw one panel for each set of weights, kernels from top to bottom.

    Parameters
    ----------
    names
        The kernels.
    weights
        For each panel's title the weights of the kernels, not negative; drawn as shares of their sum, since
        models of different norms have weights of different size.
    muted
        Kernels to draw in gray.
    """
    figure = picture(2.2 + 2.1 * len(weights), 1.4 + 0.26 * len(names))
    panels = figure.subplots(1, len(weights), sharey=True, sharex=True, squeeze=False)[0]
    rows = np.arange(len(names))
    colors = ["#a9a9a9" if name in muted else "#2f6f9f" for name in names]
    for panel, (label, values) in zip(panels, weights.items(), strict=True):
        shares = 100 * values.values / values.values.sum()
        panel.barh(rows, shares, height=0.72, color=colors)
        for row, share in zip(rows, shares, strict=True):
            told = f" {share:.0f}" if share >= 0.5 else " <1" if share >= 0.05 else " 0"
            panel.text(share, row, told, va="center", fontsize=8, color="#444444")
        panel.set_title(label, fontsize=10)
        panel.set_xlabel("share of the weights, %", fontsize=8)
        panel.tick_params(axis="both", length=0, labelsize=8)
        panel.spines[["top", "right", "bottom"]].set_visible(False)
        panel.grid(axis="x", color="#e4e4e4", linewidth=0.7)
        panel.set_axisbelow(True)
        panel.margins(x=0.18)
    panels[0].set_yticks(rows, names, fontsize=9)
    for label, name in zip(panels[0].get_yticklabels(), names, strict=True):
        label.set_color("#777777" if name in muted else "black")
    panels[0].set_ylim(len(names) - 0.4, -0.6)
    figure.suptitle(title, fontsize=11, fontweight="bold", x=0.008, ha="left")
    figure.savefig(path, dpi=150)
