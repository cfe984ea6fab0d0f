"""What speaks for a sample, as bars that add up to its score."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dmkl.arrays import Array, Float
from dmkl.errors import InputError
from dmkl.pictures import BLUE, GRAY, LONGEST_NAME, RED, picture, shortened

__all__ = ["plot_contributions"]

_MOST = 20
"""Kernels that have a bar of their own."""


def plot_contributions(contributions: Any, sample: Any, of: Any) -> Figure:
    """See `dmkl.plot_contributions`."""
    if not isinstance(contributions, xr.DataArray) or contributions.dims[:2] != ("sample", "kernel"):
        what = getattr(contributions, "dims", type(contributions).__name__)
        msg = f"contributions must be (sample, kernel[, class]), as model.contributions(K) gives them, got {what}"
        raise InputError(msg)
    found = _chosen(contributions, "sample", sample)
    if found.ndim == 2:
        dim = str(found.dims[1])
        of = found[dim].values[int(np.argmax((found.sum("kernel") + _intercept(found)).values))] if of is None else of
        found = _chosen(found, dim, of)
        score = f"score of {dim} {of}"
    elif of is not None:
        msg = f"these contributions are to one score, and of={of!r} names another; leave it out"
        raise InputError(msg)
    else:
        score = "score"
    names, shares = _bars(found)
    figure = picture(4.6 + 0.075 * max(len(name) for name in names), 1.2 + 0.26 * len(names))
    _draw(figure.subplots(), names, shares, score)
    figure.suptitle(f"sample {shortened(str(sample), LONGEST_NAME)}", fontsize=9, x=0.01, ha="left")
    return figure


def _chosen(values: xr.DataArray, dim: str, label: Any) -> xr.DataArray:
    labels = values[dim].values.tolist()
    same = [k for k, one in enumerate(labels) if one == label or str(one) == str(label)]
    if not same:
        msg = f"there is no {dim} {label!r} among these contributions; there are {', '.join(map(str, labels[:10]))}"
        raise InputError(msg)
    return values.isel({dim: same[0]})


def _intercept(found: xr.DataArray) -> Any:
    return found["intercept"].drop_vars("intercept") if "intercept" in found.coords else 0.0


def _bars(found: xr.DataArray) -> tuple[list[str], Float]:
    """Names and shares from top to bottom, the intercept last; kernels without a share have no bar."""
    values = np.asarray(found.values, dtype=np.float64)
    order = np.argsort(-np.abs(values), kind="stable")
    order = order[values[order] != 0]
    shown, others = order[:_MOST], order[_MOST:]
    names = [shortened(str(found["kernel"].values[k]), LONGEST_NAME) for k in shown]
    shares = [*values[shown]]
    if len(others):
        names.append(f"{len(others)} others")
        shares.append(values[others].sum())
    if "intercept" in found.coords:
        names.append("intercept")
        shares.append(float(found["intercept"]))
    return (names, np.array(shares)) if names else (["no kernel"], np.zeros(1))


def _draw(ax: Axes, names: list[str], shares: Float, score: str) -> None:
    rows, ends = np.arange(len(names)), np.cumsum(shares)
    starts = ends - shares
    colors: Array = np.where(shares > 0, BLUE, RED)
    colors[[name == "intercept" for name in names]] = GRAY
    ax.barh(rows, shares, left=starts, height=0.72, color=colors)
    ax.vlines(ends[:-1], rows[:-1], rows[1:], color=GRAY, linewidth=0.6)
    ax.axvline(0.0, color=GRAY, linewidth=0.8)
    ax.axvline(ends[-1], color="black", linestyle=":", linewidth=1.2)
    ax.set_yticks(rows, names)
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.set_title(f"dotted: {score}, {ends[-1]:.4g}", fontsize=8, color="#555555", loc="left")
    ax.set_xlabel(f"contributions to the {score}", fontsize=9)
    ax.tick_params(axis="both", length=0, labelsize=8)
    ax.spines[["top", "right", "bottom", "left"]].set_visible(False)
    ax.grid(axis="x", color="#e4e4e4", linewidth=0.7)
    ax.set_axisbelow(True)
