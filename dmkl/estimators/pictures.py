"""Pictures of a fitted model: its weights, also by group or class, and how the proven gap shrank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dmkl.errors import InputError
from dmkl.pictures import BLUE, GRAY, LONGEST_NAME, RED, SKY, bars, heat_map, picture, shortened

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot_convergence", "plot_weight_map", "plot_weights"]


def plot_weights(model: Any) -> Figure:
    """Draw the kernel weights of a fitted model, the largest 40 of many kernels.

    Weights of several classes, tasks or groups of samples are bars for their means and dots for each.
    """
    model._check_fitted()
    weights = model.weights_.transpose("kernel", ...)
    each = weights.values.reshape(len(model.kernel_names_), -1)
    others = [str(dim) for dim in weights.dims[1:]]
    label = "kernel weight" if not others else f"kernel weight: mean over {' and '.join(others)}, a dot each"
    return bars(model.kernel_names_, each.mean(axis=1), each if others else None, label)


def plot_weight_map(model: Any, of: Any = None) -> Figure:
    """Draw the weights of each group of samples, class, pair or task as a map: kernels downwards, the others across.

    Parameters
    ----------
    of
        Where groups have weights in the problem of each class: the class. By default groups have means over these.

    Raises
    ------
    InputError
        If all share their weights, or there is no such class.
    """
    model._check_fitted()
    weights = model.weights_.transpose("kernel", ...)
    weights = weights.isel({dim: 0 for dim in weights.dims[1:] if weights.sizes[dim] == 1})
    if weights.ndim == 1:
        msg = "this model has one weight for each kernel, which plot_weights draws"
        raise InputError(msg)
    label, (_, across, *rest) = "kernel weight", map(str, weights.dims)
    if of is not None:
        names = [] if not rest else weights[rest[0]].values.astype(str).tolist()
        if str(of) not in names:
            found = f"there are {', '.join(names[:10])}" if names else f"it has weights by {across} alone; leave of out"
            msg = f"this model has no groups' weights of {of!r}: {found}"
            raise InputError(msg)
        weights, label = weights.isel({rest[0]: names.index(str(of))}), f"kernel weight, {rest[0]} {of}"
    elif rest:
        weights, label = weights.mean(rest), f"kernel weight, mean over {rest[0]}"
    heads = [shortened(str(name), LONGEST_NAME) for name in weights[across].values]
    return heat_map(model.kernel_names_, heads, weights.values, across, label)


def plot_convergence(model: Any) -> Figure:
    """Draw the proven relative gap after each step of a fit; dotted the tolerance.

    Raises
    ------
    InputError
        If the fit proved no gap, or has no history.
    """
    from matplotlib.ticker import MaxNLocator

    model._check_fitted()
    if "gap" not in model.history_:
        msg = (
            f"{type(model).__name__} has no proven gap in its history, which holds "
            f"{', '.join(map(str, model.history_.data_vars))}; draw those with model.history_"
        )
        raise InputError(msg)
    gap = model.history_["gap"].transpose("iteration", ...)
    figure = picture(5.6, 3.2)
    ax = figure.subplots()
    lines = gap.values.reshape(gap.sizes["iteration"], -1)
    shown = np.where(lines > 0, lines, np.nan)
    ax.semilogy(gap["iteration"], shown, color=BLUE if shown.shape[1] == 1 else SKY, marker="o", markersize=3)
    ax.axhline(model.tol, color=RED, linestyle=":", linewidth=1)
    ax.annotate(
        "tolerance", (1, model.tol), (-3, 3), ("axes fraction", "data"), "offset points", ha="right", color=GRAY
    )
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("step" if shown.shape[1] == 1 else f"step, a line for each {gap.dims[1]}", fontsize=9)
    ax.set_ylabel("proven relative gap", fontsize=9)
    ax.tick_params(labelsize=8)
    ax.spines[["top", "right"]].set_visible(False)
    return figure
