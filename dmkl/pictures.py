"""Shared parts of figures: panels, titles, dressed axes, bars and maps by name, colors, labels of kernels.

Matplotlib is imported when the first figure is drawn, so that classes of results have functions that draw as methods.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from textwrap import fill
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dmkl.arrays import Array, Float, Index, weight_shares
from dmkl.description import human_names
from dmkl.errors import FontWarning, printable, refuse, warn

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Wong: Points of view: color blindness, Nature Methods 8 (2011).
BLUE, SKY, RED, GRAY = "#0072b2", "#56b4e9", "#d55e00", "#8a8a8a"
MOST_BARS = 20
"""Rows of a figure, if it is not asked for others."""
LONGEST_NAME = 48
ROOM_FOR_LABELS = 50
"""Total characters of labels that fit along an axis."""
Names = Sequence[Any] | Array
widest: ContextVar[float] = ContextVar("widest", default=12.0)
"""Greatest width of a figure in inches; panels that do not fit side by side are one below the other."""


def image_of(axes: Any, form: str, **options: Any) -> bytes:
    """The figure of axes as a file of a format, with the fonts of this machine that have the characters of its texts.

    `options` are those of ``Figure.savefig``. FontWarning is issued for characters that no font has.
    """
    from matplotlib.text import Text

    figure = figure_of(axes)
    image, missing = _saved(figure, form, options)
    if not missing:
        return image
    families, without = _fonts_with(missing)
    if families:
        for text in figure.findobj(Text):
            if missing & {*text.get_text()}:
                text.set_fontfamily([*text.get_fontfamily(), *families])
        image, _ = _saved(figure, form, options)
    if without:
        shown = " ".join(sorted(without)[:5])
        what = f"no font of this machine has {len(without)} characters of names in a picture, such as {shown}"
        warn(f"{what}; install one that has, such as Noto Sans CJK", FontWarning)
    return image


_NO_GLYPH = re.compile(r"Glyph (\d+) .* missing from")


def _saved(figure: Figure, form: str, options: Mapping[str, Any]) -> tuple[bytes, set[str]]:
    """The figure as a file, and the characters that its fonts lack, of which Matplotlib warns one by one."""
    file, missing = io.BytesIO(), set[str]()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figure.savefig(file, format=form, **options)
    for warning in caught:
        if found := _NO_GLYPH.match(str(warning.message)):
            missing.add(chr(int(found[1])))
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return file.getvalue(), missing


def _fonts_with(characters: set[str]) -> tuple[list[str], set[str]]:
    """Names of installed fonts that have some characters, and those that none has."""
    from matplotlib import font_manager

    families, without = list[str](), set(characters)
    # Those that are likely to have them are opened first: there may be thousands.
    fonts = sorted(font_manager.fontManager.ttflist, key=lambda font: not re.search("CJK|Noto|Unicode", font.name))
    for font in fonts:
        if not without:
            break
        if font.name.startswith("Last Resort") or font.style != "normal":  # boxes with numbers
            continue
        with suppress(OSError, RuntimeError):  # a file that is gone or damaged
            had = {c for c in without if ord(c) in font_manager.get_font(font.fname).get_charmap()}
            families += [font.name] if had and font.name not in families else []
            without -= had
    return families, without


def _png(axes: Any) -> bytes:
    return image_of(axes, "png")


class _Panels(np.ndarray[Any, Any]):
    """An array of axes whose figure notebooks show even if pyplot, which would enable that, was never imported."""

    _repr_png_ = _png

    @property
    def figure(self) -> Figure:
        """The figure that the axes share."""
        return figure_of(self)


def figure_of(axes: Any) -> Figure:
    """The figure of axes, or of an array of them."""
    figure: Figure = np.ravel(np.asarray(axes, dtype=object))[0].figure
    return figure


def panels(ax: Any, sizes: Mapping[str, tuple[float, float]], *, sharey: bool = False) -> Any:
    """The axes of panels: those that are given, or new ones of these widths and heights in inches."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    if ax is not None:
        axes = np.ravel(np.asarray(ax, dtype=object)).view(_Panels)
        if len(axes) != len(sizes):
            refuse(f"ax must hold {len(sizes)} axes, {' and '.join(sizes)}, got {len(axes)}")
        return axes
    widths, heights = np.array(list(sizes.values())).T
    width, height, ratios = widths.sum(), heights.max(), {"ncols": len(sizes), "width_ratios": widths}
    if width > widest.get():
        width, height, ratios = widths.max(), heights.sum(), {"nrows": len(sizes), "height_ratios": heights}
    layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08)
    figure = Figure(figsize=(min(width, widest.get()), height), dpi=110, layout=layout)
    axes = figure.subplots(squeeze=False, sharey=sharey, **ratios).ravel().view(_Panels)
    for panel in axes:
        panel._repr_png_ = partial(_png, panel)  # notebooks show a panel in the same way
    return axes


def set_title(axes: Any, *lines: str) -> None:
    """Write a title of whole lines above the figure of the panels, or above the first of axes that were given."""
    figure = axes[0].figure
    is_own = hasattr(axes[0], "_repr_png_")  # of `panels`
    width = int(14 * (figure if is_own else axes[0]).bbox.width / figure.dpi)  # characters
    text = "\n".join(fill(printable(line), width) for line in lines if line)
    if is_own:
        figure.suptitle(text, fontsize=9, x=0.01, ha="left")
    else:
        axes[0].set_title(text, fontsize=9, loc="left")


def symbol(name: str) -> str:
    """The symbol of a parameter."""
    return "λ" if name == "lam" else name


def plural(noun: str) -> str:
    """The plural of the name of a dimension."""
    return f"{noun}es" if noun.endswith("s") else f"{noun}s"


def shortened(name: str, longest: int = LONGEST_NAME) -> str:
    """Shorten a long name in its middle, more in narrow figures, and escape mathematical markup and what is hidden."""
    name = printable(name).replace("\n", " ")
    longest = min(longest, int(5.5 * widest.get()))
    half = (longest - 1) // 2
    short = name if len(name) <= longest else f"{name[:half]}…{name[-half:]}"
    return short.replace("$", r"\$")


def kernel_labels(names: Iterable[Any]) -> tuple[list[str], str]:
    """Labels as `dmkl.description.human_names` makes them, and a line of a title with what names have in common.

    Examples
    --------
    >>> kernel_labels(["layers/rbf-T_CELL", "layers/rbf-B_CELL"])
    (['T cell', 'B cell'], 'Kernels: layers/rbf-…')
    """
    labels, start, end = human_names(names)
    return list(map(shortened, labels)), f"Kernels: {shortened(start)}…{shortened(end)}" if start or end else ""


def largest(
    names: Names, values: Array, top: int | None = None, kernels: Names | None = None
) -> tuple[Array, list[str], str, str]:
    """The positions of the `top` largest values, the largest first, their labels, and two lines of a title.

    These are how many there are, and what names have in common: the names of `kernels`, or all `names`.
    """
    if top is not None and top < 1:
        refuse(f"top is the number of kernels that are drawn, 1 or more, got {top}")
    most = MOST_BARS if top is None else top
    order = np.argsort(-np.nan_to_num(values, nan=-np.inf), kind="stable")[:most]
    labels, shared = kernel_labels(names if kernels is None else kernels)
    label_of = dict(zip(map(str, names if kernels is None else kernels), labels, strict=True))
    shown = [label_of.get(str(names[k])) or shortened(str(names[k])) for k in order]
    return order, shown, f"The {most} largest of {len(values)}" if most < len(values) else "", shared


def longest_shown(labels: Sequence[str]) -> int:
    """Characters of the longest label without the markup of powers, as in 2$^{-6}$."""
    return max(len(label.strip("$}").replace("$^{", "")) for label in labels)


def dress(
    ax: Axes,
    x: str | None = None,
    y: str | None = None,
    *,
    hidden: str = "",
    grid: Literal["x", "y", "both"] | None = None,
    ends: str = "",
) -> None:
    """Label the axes, hide ticks and some of the spines, draw a light grid along some axes, and end others at numbers.

    It is called when all is drawn. `hidden` are the names of spines, or "all"; `ends` are "x", "y" or "xy".
    """
    for axis, label in ((ax.xaxis, x), (ax.yaxis, y)):
        if label is not None:
            axis.set_label_text(label, fontsize=9)
    ax.tick_params(axis="both", length=0, labelsize=8)
    for side in ax.spines if hidden == "all" else hidden.split():
        ax.spines[side].set_visible(False)
    if grid:
        ax.grid(axis=grid, color="#e4e4e4", linewidth=0.7)
        ax.set_axisbelow(True)
    label_ends(*(getattr(ax, f"{name}axis") for name in ends))


def name_rows(ax: Axes, names: Sequence[str]) -> None:
    """Names of rows from top to bottom."""
    ax.set_yticks(np.arange(len(names)), names)
    ax.set_ylim(len(names) - 0.4, -0.6)


def label_ends(*axes: Any) -> None:
    """End axes, when all is drawn, at the ticks that enclose their data; at powers of ten if they are logarithmic."""
    from matplotlib.ticker import MaxNLocator

    for axis in axes:
        low, high = sorted(axis.get_view_interval())
        if axis.get_scale() == "log":
            ticks: Any = 10.0 ** np.array([np.floor(np.log10(low)), np.ceil(np.log10(high))])
        else:
            # Margins around data would take the ends beyond what a score or a logarithm of p can be.
            ends = sorted(np.clip(axis.get_data_interval(), low, high).tolist())
            ticks = MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]).tick_values(*ends)
            axis.set_ticks(ticks)
        getattr(axis.axes, f"set_{axis.axis_name}lim")(ticks[0], ticks[-1])


def spread(n: int, every: int) -> Index:
    """Positions of about one in `every` of n labels, the first and the last included."""
    return np.linspace(0, n - 1, -(-n // every)).round().astype(np.int64)


def interval(mean: Any, margin: Any, ends: tuple[float, float]) -> Float:
    """The lower and the upper end, between the ends of the score; both are the mean where the margin is unknown."""
    signs = np.array([-1.0, 1.0]).reshape(2, *(1,) * np.ndim(mean))
    return np.asarray(np.clip(mean + np.nan_to_num(margin) * signs, *ends))


def color_bar(ax: Axes, image: Any, label: str, extend: str = "neither") -> None:
    """The scale of colors of a map, with numbers at both ends; `extend` draws arrows for values beyond them."""
    bar = ax.figure.colorbar(image, ax=ax, pad=0.02, extend=extend)
    low, high = image.get_clim()
    if None not in (low, high) and low < high:
        bar.set_ticks(ticks := np.linspace(low, high, 5).tolist(), labels=[f"{tick:.3g}" for tick in ticks])
    bar.set_label(label, fontsize=9)
    bar.ax.tick_params(labelsize=8, length=2)
    bar.outline.set_visible(False)


def bars(
    names: Names,
    columns: Float,
    over: str,
    title: str,
    *,
    ax: Axes | None = None,
    top: int | None = None,
    label: str = "",
    error: Float | None = None,
) -> Axes:
    """Bars of mean kernel weights (names, columns), the largest first; those below the first `top` are summed.

    Several columns are fits, which `over` names. The weights of each are divided by their sum, since p may differ. Each
    has a dot, or all have a line from the 5th to the 95th percentile if there are over 20.
    With a `label` other values are drawn, with standard errors, and the others are left out.
    """
    n_columns = columns.shape[1]
    columns = weight_shares(columns, 0) if n_columns > 1 and not label else columns
    values = columns.mean(axis=1)
    if top is None and not label:  # bars that are too short to be seen are among the others
        top = min(MOST_BARS, max(5, int(np.sum(np.abs(values) > 1e-3 * np.abs(values).max()))))
    shown, labels, few, shared = largest(names, np.abs(values), top)
    if few and not label:
        labels.append("1 other" if (n := len(values) - len(shown)) == 1 else f"{n:,} others")
    height = 1.1 + 0.24 * len(labels) + 0.15 * bool(shared) + 0.15 * bool(few)
    (ax,) = panels(ax, {"the bars": (4.4 + 0.075 * max(map(len, labels)), height)})
    rows, drawn = np.arange(len(shown)), columns[shown]
    ax.barh(rows, values[shown], height=0.72, color=SKY, xerr=None if error is None else error[shown])
    means, each = "", ""
    if n_columns > 1:
        means = f", mean of {n_columns:,} {'fits' if ' and ' in over else plural(over)}"
        if n_columns <= MOST_BARS:
            style: dict[str, Any] = {"markersize": 3.5, "markeredgecolor": "white", "markeredgewidth": 0.4}
            ax.plot(drawn, rows, "o", color=RED, clip_on=False, **style)
            each = " (dots)"
        else:
            ax.hlines(rows, *np.quantile(drawn, [0.05, 0.95], axis=1), color=RED, linewidth=1.2)
            each = " (lines: 5th to 95th percentile)"
    ax.margins(x=0)
    right = ax.get_xlim()[1]
    if few and not label:
        rest = np.abs(np.delete(values, shown)).sum()
        share = 100 * rest / np.abs(values).sum()
        few += f"; the others have {'less than 1' if 0 < share < 0.5 else f'{share:.0f}'} % of the weight"
        ax.barh(len(shown), rest, height=0.72, color="#c4c4c4")
        ax.set_xlim(right=max(right, min(1.05 * rest, 2 * right)))  # with a long bar the others remain legible
    name_rows(ax, labels)
    ax.set_xlim(left=min(0.0, ax.get_xlim()[0]))
    unit = label or (f"share of the weight in each {over}" if n_columns > 1 else "kernel weight β")
    dress(ax, unit, hidden="top right bottom", grid="x", ends="x")
    set_title([ax], f"{title}{means}{each}", few, shared)
    return ax


def heat_map(
    names: Names,
    columns: Sequence[str],
    values: Float,
    across: str,
    label: str,
    title: str,
    *,
    ax: Axes | None = None,
    top: int | None = None,
) -> Axes:
    """Values (names, columns) as colors, those of the largest means on top; of many columns only some are labeled."""
    absolute = np.ma.masked_invalid(np.abs(values))
    shown, labels, few, shared = largest(names, absolute.mean(axis=1).filled(-np.inf), top)
    margin = 2.2 + 0.075 * max(map(len, labels))
    across_width = min(max(2.4, 0.36 * len(columns)), 10.0, widest.get() - margin + 1.4)
    at = spread(len(columns), -(-len(columns) // min(MOST_BARS, int(7 * across_width))))
    heads = [columns[k] for k in at]
    turned = len(columns) * longest_shown(columns) > min(ROOM_FOR_LABELS, 12 * across_width)
    height = 1.3 + 0.24 * max(len(shown), 5) + (0.06 * max(map(len, heads)) if turned else 0.0)
    width = margin + across_width
    (ax,) = panels(ax, {"the map": (width, height)})
    ax.set_facecolor("#dddddd")  # for missing values
    part = np.ma.masked_invalid(values[shown])
    lowest = min(0.0, float(part.min())) if part.count() else 0.0
    edges: dict[str, Any] = {"edgecolors": "white", "linewidth": 0.4} if len(columns) <= 60 else {"rasterized": True}
    image = ax.pcolormesh(part, cmap="viridis", vmin=lowest, **edges)
    color_bar(ax, image, label)
    ax.set_xticks(at + 0.5, heads, rotation=90 if turned else 0)
    ax.set_yticks(np.arange(len(shown)) + 0.5, labels)
    ax.invert_yaxis()
    dress(ax, across, hidden="all")
    set_title([ax], title, few, shared)
    return ax
