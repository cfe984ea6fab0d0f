"""Figures of a fitted model: kernel weights, the proven gap after each step, and contributions to a score."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from dmkl import pictures
from dmkl.arrays import weight_shares
from dmkl.errors import refuse

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_weights(model: Any, *, ax: Axes | None = None, top: int | None = None) -> Axes:
    """Draw the kernel weights of a fitted model, the largest first; the others are summed in one bar.

    Weights of several classes, tasks or groups of samples are divided by their sums. Bars are means of these shares,
    with a dot for each, or with a line from the 5th to the 95th percentile if there are more than 20.

    Parameters
    ----------
    ax, top
        Axes to draw on, a new figure by default; and the number of kernels that are drawn, the largest 20 by default.

    Returns
    -------
    Axes
        The title has what all names of kernels begin and end with; labels have the rest.
    """
    model._check_fitted()
    weights = model.weights_.transpose("kernel", ...)
    columns = weights.values.reshape(len(model.kernel_names_), -1)
    over = " and ".join(map(str, weights.dims[1:]))
    title = f"Kernel weights of {type(model).__name__}"
    ax = pictures.bars(model.kernel_names_, columns, over, title, ax=ax, top=top)
    if "components_" in model.traits.fitted and columns.shape[1] == 1:
        ax.set_xlabel("variance σ²", fontsize=9)
    return ax


def plot_weight_map(model: Any, of: Any = None, *, ax: Axes | None = None, top: int | None = None) -> Axes:
    """Draw the weights of each group of samples, class, pair or task as a map, with a row for each kernel.

    Parameters
    ----------
    of
        The class, if groups have weights for each class; by default the mean over classes of shares of the weight.
    ax, top
        Axes to draw on, a new figure by default; and the number of kernels that are drawn, the largest 20 by default.

    Raises
    ------
    InputError
        If there is one weight for each kernel, or no such class.
    """
    model._check_fitted()
    weights = model.weights_.transpose("kernel", ...)
    weights = weights.isel({dim: 0 for dim in weights.dims[1:] if weights.sizes[dim] == 1})
    if weights.ndim == 1:
        refuse("this model has one weight for each kernel, which plot_weights draws")
    _, across, *rest = map(str, weights.dims)
    title, label = f"Kernel weights of {type(model).__name__} by {across}", "kernel weight β"
    if of is not None:
        names = [] if not rest else weights[rest[0]].values.astype(str).tolist()
        if str(of) not in names:
            choices = (
                f"there are {', '.join(names[:10])}" if names else f"its weights are by {across} alone; leave of out"
            )
            refuse(f"this model has no groups' weights of {of!r}: {choices}")
        weights, title = weights.isel({rest[0]: names.index(str(of))}), f"{title}, {rest[0]} {of}"
    elif rest:
        label, weights = "share of the weight", weights.copy(data=weight_shares(weights.values, 0)).mean(rest)
        title += f", mean over {pictures.plural(rest[0])}"
    heads = [pictures.shortened(str(name)) for name in weights[across].values]
    return pictures.heat_map(model.kernel_names_, heads, weights.values, across, label, title, ax=ax, top=top)


def plot_convergence(model: Any, *, ax: Axes | None = None) -> Axes:
    """Draw the proven relative gap after each step of a fit, and the tolerance as a dotted line.

    Parameters
    ----------
    ax
        The axes to draw on; a new figure by default.

    Raises
    ------
    InputError
        If the history has no proven gap.
    """
    from matplotlib.ticker import MaxNLocator

    model._check_fitted()
    if "compact" in model.history_.attrs:
        refuse(
            f"this {type(model).__name__} is compact, and has lost its history; draw that of the model that it was "
            "written from"
        )
    if "gap" not in model.history_:
        refuse(
            f"{type(model).__name__} has no proven gap in its history, which holds "
            f"{', '.join(map(str, model.history_.data_vars))}; draw those with model.history_"
        )
    gap = model.history_["gap"].transpose("iteration", ...)
    (ax,) = pictures.panels(ax, {"the gap": (5.6, 3.2)})
    lines = gap.values.reshape(gap.sizes["iteration"], -1)
    shown, each = np.where(lines > 0, lines, np.nan), ""
    if shown.shape[1] > _MOST_LINES:
        shown = np.nanquantile(shown, [0.05, 0.5, 1.0], axis=1).T
        each = f" (5th percentile, median and largest of {lines.shape[1]:,} {pictures.plural(str(gap.dims[1]))})"
    elif shown.shape[1] > 1:
        each = f" (a line for each {gap.dims[1]})"
    ax.semilogy(
        gap["iteration"], shown, color=pictures.BLUE if shown.shape[1] == 1 else pictures.SKY, marker="o", markersize=3
    )
    ax.axhline(model.tol, color=pictures.RED, linestyle=":", linewidth=1)
    place = (0, model.tol), (3, 3), ("axes fraction", "data"), "offset points"
    ax.annotate("tolerance", *place, color=pictures.GRAY, fontsize=8)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    pictures.set_title([ax], f"Proven relative gap after each step of {type(model).__name__}{each}")
    pictures.dress(ax, "step", "proven relative gap", hidden="top right", ends="y")
    ax.tick_params(length=3.5)
    return ax


_MOST_LINES = 30  # Most classes, tasks or targets with a line each.


def plot_contributions(
    contributions: Any, sample: Any, of: Any = None, *, ax: Axes | None = None, top: int | None = None
) -> Axes:
    """Draw what each kernel contributes to a score of a sample: bars that begin where the one before ended.

    From zero the bars lead to the score, their sum: blue ones support the class (of two the second), orange oppose it.

    Parameters
    ----------
    contributions
        (sample, kernel) or (sample, kernel, class), as `contributions` of a fitted model gives them.
    sample
        The name of one of its samples.
    of
        Class, pair, task or target whose score is drawn, where there are several: that of the largest score by default.
    ax, top
        Axes to draw on, a new figure by default; and the number of kernels that are drawn, the largest 20 by default.

    Returns
    -------
    Axes
        The kernels of the largest shares first; the others are one bar.

    Raises
    ------
    InputError
        If these are no contributions, or there is no such sample, or no such class.
    """
    if not isinstance(contributions, xr.DataArray) or contributions.dims[:2] != ("sample", "kernel"):
        given = getattr(contributions, "dims", type(contributions).__name__)
        refuse(f"contributions must be (sample, kernel[, class]), as model.contributions(K) gives them, got {given}")
    chosen = _chosen(contributions, "sample", sample)
    if chosen.ndim == 2:
        dim = str(chosen.dims[1])
        if of is None:
            constant = chosen["intercept"].values if "intercept" in chosen.coords else 0.0
            of = chosen[dim].values[int(np.argmax(chosen.sum("kernel").values + constant))]
        chosen = _chosen(chosen, dim, of)
        score = f"score of {dim} {of}"
    elif of is not None:
        refuse(f"these contributions are to one score, and of={of!r} names another; leave it out")
    else:
        score = "score"
    values = np.asarray(chosen.values, dtype=np.float64)
    shown, labels, _, shared = pictures.largest(chosen["kernel"].values, np.abs(values), top)
    n_shown = np.count_nonzero(values[shown])  # those without a contribution are the last
    names, parts, n_others = labels[:n_shown], [*values[shown[:n_shown]]], np.count_nonzero(values) - n_shown
    if n_others:
        names.append(f"{n_others} others")
        parts.append(values.sum() - sum(parts))
    if "intercept" in chosen.coords:
        names.append("intercept")
        parts.append(float(chosen["intercept"]))
    if not names:
        names, parts, shared = ["no kernel"], [0.0], ""
    shares = np.array(parts)
    rows, ends = np.arange(len(names)), np.cumsum(shares)
    (ax,) = pictures.panels(ax, {"the bars": (4.6 + 0.075 * max(map(len, names)), 1.4 + 0.26 * len(names))})
    colors = np.where(shares > 0, pictures.BLUE, pictures.RED)
    colors[-1] = pictures.GRAY if "intercept" in chosen.coords else colors[-1]
    ax.barh(rows, shares, left=ends - shares, height=0.72, color=colors)
    ax.vlines(ends[:-1], rows[:-1], rows[1:], color=pictures.GRAY, linewidth=0.6)
    ax.axvline(0.0, color=pictures.GRAY, linewidth=0.8)
    ax.axvline(ends[-1], color="black", linestyle=":", linewidth=1.2)
    pictures.name_rows(ax, names)
    label = f"contributions to the {score} (dotted: their sum, {ends[-1]:.4g})"
    pictures.dress(ax, label, hidden="all", grid="x", ends="x")
    sample = pictures.shortened(str(sample))
    pictures.set_title([ax], f"Contribution of each kernel to the {score} of sample {sample}", shared)
    return ax


def plot_components(coordinates: Any, y: Any = None, *, ax: Axes | None = None) -> Axes:
    """Draw the first two principal components of samples, colored by label.

    Parameters
    ----------
    coordinates
        (sample, component), as `kernel_pca` of a fitted model gives them.
    y
        (samples,) labels or numbers, matched by name if they have names of samples; one color where missing.
    ax
        Axes to draw on, a new figure by default.

    Raises
    ------
    InputError
        If these are no two components or more, or `y` has another number of samples.
    """
    from dmkl.inputs.label_tables import matched_to

    if not isinstance(coordinates, xr.DataArray) or coordinates.dims != ("sample", "component"):
        given = getattr(coordinates, "dims", type(coordinates).__name__)
        refuse(f"coordinates must be (sample, component), as model.kernel_pca(K) gives them, got {given}")
    if coordinates.sizes["component"] < 2:
        refuse("a picture needs two components, got one; take n_components=2")
    labels = None if y is None else matched_to(coordinates, y)
    (ax,) = pictures.panels(ax, {"the points": (5.4, 4.2)})
    horizontal, vertical = coordinates.values[:, 0], coordinates.values[:, 1]
    if labels is not None and labels.dtype.kind == "f":
        points = ax.scatter(horizontal, vertical, s=14, c=labels, cmap="viridis")
        pictures.color_bar(ax, points, "label")
    elif labels is None:
        ax.scatter(horizontal, vertical, s=14, color=pictures.BLUE)
    else:
        classes = labels.astype(str)
        for k, name in enumerate(np.unique(classes)):
            of_class = classes == name
            color, marker = f"C{k % 10}", "osD^v"[k // 10 % 5]
            ax.scatter(horizontal[of_class], vertical[of_class], s=14, color=color, marker=marker, label=name)
        ax.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    shares = coordinates["explained"].values[:2] if "explained" in coordinates.coords else (np.nan, np.nan)
    for k, (share, axis) in enumerate(zip(shares, ("x", "y"), strict=True), start=1):
        title = f"component {k}" if np.isnan(share) else f"component {k} ({100 * share:.3g} % of the trace)"
        ax.set(**{f"{axis}label": title})
    pictures.dress(ax)
    pictures.set_title([ax], "Principal components of the weighted kernel")
    return ax


def _chosen(values: xr.DataArray, dim: str, label: Any) -> xr.DataArray:
    labels = values[dim].values.tolist()
    same = [k for k, name in enumerate(labels) if name == label or str(name) == str(label)]
    if not same:
        refuse(f"there is no {dim} {label!r} among these contributions; there are {', '.join(map(str, labels[:10]))}")
    return values.isel({dim: same[0]})
