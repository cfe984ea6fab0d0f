"""Figures of a fitted model: kernel weights, the proven gap after each step, and contributions to a score."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from dmkl.arrays import Array, Float
from dmkl.errors import refuse

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot_contributions", "plot_convergence", "plot_weight_map", "plot_weights"]


def plot_weights(model: Any) -> Figure:
    """Draw the kernel weights of a fitted model, the largest 40 of many kernels.

    Weights of several classes, tasks or groups of samples are bars for their means and dots for each.
    """
    from dmkl import pictures

    model._check_fitted()
    weights = model.weights_.transpose("kernel", ...)
    columns = weights.values.reshape(len(model.kernel_names_), -1)
    others = [str(dim) for dim in weights.dims[1:]]
    label = "kernel weight" if not others else f"kernel weight: mean over {' and '.join(others)}, a dot each"
    return pictures.bars(model.kernel_names_, columns.mean(axis=1), columns if others else None, label)


def plot_weight_map(model: Any, of: Any = None) -> Figure:
    """Draw the weights of each group of samples, class, pair or task as a map, with a row for each kernel.

    Parameters
    ----------
    of
        The class, if groups have weights for each class; by default the mean over classes.

    Raises
    ------
    InputError
        If there is one weight for each kernel, or no such class.
    """
    from dmkl import pictures

    model._check_fitted()
    weights = model.weights_.transpose("kernel", ...)
    weights = weights.isel({dim: 0 for dim in weights.dims[1:] if weights.sizes[dim] == 1})
    if weights.ndim == 1:
        refuse("this model has one weight for each kernel, which plot_weights draws")
    label, (_, across, *rest) = "kernel weight", map(str, weights.dims)
    if of is not None:
        names = [] if not rest else weights[rest[0]].values.astype(str).tolist()
        if str(of) not in names:
            choices = (
                f"there are {', '.join(names[:10])}" if names else f"its weights are by {across} alone; leave of out"
            )
            refuse(f"this model has no groups' weights of {of!r}: {choices}")
        weights, label = weights.isel({rest[0]: names.index(str(of))}), f"kernel weight, {rest[0]} {of}"
    elif rest:
        weights, label = weights.mean(rest), f"kernel weight, mean over {rest[0]}"
    heads = [pictures.shortened(str(name), pictures.LONGEST_NAME) for name in weights[across].values]
    return pictures.heat_map(model.kernel_names_, heads, weights.values, across, label)


def plot_convergence(model: Any) -> Figure:
    """Draw the proven relative gap after each step of a fit, and the tolerance as a dotted line.

    Raises
    ------
    InputError
        If the history has no proven gap.
    """
    from matplotlib.ticker import MaxNLocator

    from dmkl import pictures

    model._check_fitted()
    if "gap" not in model.history_:
        refuse(
            f"{type(model).__name__} has no proven gap in its history, which holds "
            f"{', '.join(map(str, model.history_.data_vars))}; draw those with model.history_"
        )
    gap = model.history_["gap"].transpose("iteration", ...)
    figure = pictures.picture(5.6, 3.2)
    ax = figure.subplots()
    lines = gap.values.reshape(gap.sizes["iteration"], -1)
    shown = np.where(lines > 0, lines, np.nan)
    ax.semilogy(
        gap["iteration"], shown, color=pictures.BLUE if shown.shape[1] == 1 else pictures.SKY, marker="o", markersize=3
    )
    ax.axhline(model.tol, color=pictures.RED, linestyle=":", linewidth=1)
    ax.annotate(
        "tolerance",
        (1, model.tol),
        (-3, 3),
        ("axes fraction", "data"),
        "offset points",
        ha="right",
        color=pictures.GRAY,
    )
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("step" if shown.shape[1] == 1 else f"step, a line for each {gap.dims[1]}", fontsize=9)
    ax.set_ylabel("proven relative gap", fontsize=9)
    ax.tick_params(labelsize=8)
    ax.spines[["top", "right"]].set_visible(False)
    return figure


_MOST = 20
"""Kernels that have a bar of their own."""


def plot_contributions(contributions: Any, sample: Any, of: Any = None) -> Figure:
    """Draw what each kernel contributes to a score of a sample: bars that begin where the one before ended.

    From zero the bars lead to the score, which is their sum: blue ones speak for the class (of two the
    second), orange ones against it.

    Parameters
    ----------
    contributions
        (sample, kernel) or (sample, kernel, class), as `contributions` of a fitted model gives them.
    sample
        The name of one of its samples.
    of
        Class, pair, task or target whose score is drawn, where there are several: that of the largest score by default.

    Returns
    -------
    Figure
        A matplotlib figure with the kernels of the largest shares first; beyond 20 the others are one bar.

    Raises
    ------
    InputError
        If these are no contributions, or there is no such sample, or no such class.
    """
    from dmkl import pictures

    if not isinstance(contributions, xr.DataArray) or contributions.dims[:2] != ("sample", "kernel"):
        given = getattr(contributions, "dims", type(contributions).__name__)
        refuse(f"contributions must be (sample, kernel[, class]), as model.contributions(K) gives them, got {given}")
    chosen = _chosen(contributions, "sample", sample)
    if chosen.ndim == 2:
        dim = str(chosen.dims[1])
        of = (
            chosen[dim].values[int(np.argmax((chosen.sum("kernel") + _intercept(chosen)).values))] if of is None else of
        )
        chosen = _chosen(chosen, dim, of)
        score = f"score of {dim} {of}"
    elif of is not None:
        refuse(f"these contributions are to one score, and of={of!r} names another; leave it out")
    else:
        score = "score"
    names, shares = _bars(chosen)
    figure = pictures.picture(4.6 + 0.075 * max(len(name) for name in names), 1.2 + 0.26 * len(names))
    _draw(figure.subplots(), names, shares, score)
    figure.suptitle(f"sample {pictures.shortened(str(sample), pictures.LONGEST_NAME)}", fontsize=9, x=0.01, ha="left")
    return figure


def _chosen(values: xr.DataArray, dim: str, label: Any) -> xr.DataArray:
    labels = values[dim].values.tolist()
    same = [k for k, name in enumerate(labels) if name == label or str(name) == str(label)]
    if not same:
        refuse(f"there is no {dim} {label!r} among these contributions; there are {', '.join(map(str, labels[:10]))}")
    return values.isel({dim: same[0]})


def _intercept(chosen: xr.DataArray) -> Any:
    return chosen["intercept"].drop_vars("intercept") if "intercept" in chosen.coords else 0.0


def _bars(chosen: xr.DataArray) -> tuple[list[str], Float]:
    """Names and shares from top to bottom, the intercept last; kernels without a share have no bar."""
    from dmkl import pictures

    values = np.asarray(chosen.values, dtype=np.float64)
    order = np.argsort(-np.abs(values), kind="stable")
    order = order[values[order] != 0]
    shown, others = order[:_MOST], order[_MOST:]
    names = [pictures.shortened(str(chosen["kernel"].values[k]), pictures.LONGEST_NAME) for k in shown]
    shares = [*values[shown]]
    if len(others):
        names.append(f"{len(others)} others")
        shares.append(values[others].sum())
    if "intercept" in chosen.coords:
        names.append("intercept")
        shares.append(float(chosen["intercept"]))
    return (names, np.array(shares)) if names else (["no kernel"], np.zeros(1))


def _draw(ax: Axes, names: list[str], shares: Float, score: str) -> None:
    from dmkl import pictures

    rows, ends = np.arange(len(names)), np.cumsum(shares)
    starts = ends - shares
    colors: Array = np.where(shares > 0, pictures.BLUE, pictures.RED)
    colors[[name == "intercept" for name in names]] = pictures.GRAY
    ax.barh(rows, shares, left=starts, height=0.72, color=colors)
    ax.vlines(ends[:-1], rows[:-1], rows[1:], color=pictures.GRAY, linewidth=0.6)
    ax.axvline(0.0, color=pictures.GRAY, linewidth=0.8)
    ax.axvline(ends[-1], color="black", linestyle=":", linewidth=1.2)
    ax.set_yticks(rows, names)
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.set_title(f"dotted: {score}, {ends[-1]:.4g}", fontsize=8, color="#555555", loc="left")
    ax.set_xlabel(f"contributions to the {score}", fontsize=9)
    ax.tick_params(axis="both", length=0, labelsize=8)
    ax.spines[["top", "right", "bottom", "left"]].set_visible(False)
    ax.grid(axis="x", color="#e4e4e4", linewidth=0.7)
    ax.set_axisbelow(True)
