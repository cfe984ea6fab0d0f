"""Figures of out-of-fold predictions: curves with bands over folds, calibration, predicted numbers, confusions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import xarray as xr
from sklearn.calibration import calibration_curve
from sklearn.metrics import (
    ConfusionMatrixDisplay,
    average_precision_score,
    precision_recall_curve,
    r2_score,
    roc_auc_score,
    roc_curve,
)

from dmkl.arrays import Array, Float
from dmkl.errors import refuse
from dmkl.estimators.checks import check_choice
from dmkl.unknown import is_known

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_predictions"]

_Kind = Literal["roc", "precision_recall", "calibration", "observed", "confusion"]
_AXES = {
    "roc": ("false positive rate", "true positive rate"),
    "precision_recall": ("recall", "precision"),
    "calibration": ("mean predicted probability", "share of the class"),
    "observed": ("observed", "predicted"),
    "confusion": ("predicted class", "true class"),
}
_AT = np.linspace(0.0, 1.0, 201)


def plot_predictions(
    predictions: Any, kind: _Kind = "roc", ax: Axes | None = None, *, of: Any = None, by: str = "fold"
) -> Axes:
    """Draw out-of-fold predictions.

    Parameters
    ----------
    predictions
        A search, an evaluation, or its `predictions`, also of some samples, such as those of a site:
        ``predictions.isel(sample=predictions.sample_group == "A")``.
    kind
        "roc" or "precision_recall": the mean curve over the folds, with a band and areas of one standard deviation; of
        all folds together "calibration": shares of the class in ten bins of its probability, "observed": predicted
        against observed numbers, "confusion": the number of samples by true and predicted class.
    ax
        The axes; those of a new figure by default.
    of
        The class (against the rest), task or target; all of them by default, of two classes the second.
    by
        "fold", or "group" for a curve of each group, such as a site or donor. Folds and groups in which the class is
        all or nothing have no curve.

    Returns
    -------
    Axes

    Raises
    ------
    InputError
        If these predictions cannot be drawn so, or there is no such class, task, target or group.
    """
    from dmkl.pictures import GRAY, dress, panels

    data = getattr(predictions, "predictions", predictions)
    check_choice("kind", kind, get_args(_Kind))
    needed = {"calibration": "probability", "observed": "prediction", "confusion": "predicted_label"}.get(kind, "score")
    for name in (needed, f"sample_{by}"):
        if name not in data:
            refuse(f"kind={kind!r}, by={by!r} draws {name}, and these predictions have {', '.join(data.data_vars)}")
    (ax,) = panels(ax, {"the curves": (4.8, 4.4)})
    for label, truth, values, parts in _outputs(data, needed, of, by):
        _draw(ax, kind, label, truth, values, parts, pooled=by == "fold")
    if kind != "confusion":
        ax.legend(fontsize=8, frameon=False)
        if kind != "precision_recall":
            ax.axline((0.0, 0.0), slope=1.0, color=GRAY, linestyle=":", linewidth=1.0, zorder=0)
        dress(ax, ["top", "right"])
    ax.set_xlabel(_AXES[kind][0], fontsize=9)
    ax.set_ylabel(_AXES[kind][1], fontsize=9)
    return ax


def _outputs(data: xr.Dataset, needed: str, of: Any, by: str) -> Iterator[tuple[str, Array, Array, Array]]:
    """Label, true values, predictions and folds or groups of each class, task or target, where the truth is known."""
    values = data["probability"] if needed == "score" and "probability" in data else data[needed]
    dim = str(values.dims[1]) if values.ndim == 2 else ""
    labels = values[dim].values.tolist() if dim else ["" if needed != "score" else data["class"].values[-1]]
    labels = labels[1:] if dim == "class" and len(labels) == 2 and of is None else labels
    chosen = [label for label in labels if of is None or str(label) == str(of)]
    if not chosen or (needed == "predicted_label" and len(chosen) > 1):  # one matrix would be drawn over another
        check_choice("of", of, [*map(str, labels)])
    for label in chosen:
        truth = data["true_label"].sel({dim: label}) if dim in data["true_label"].dims else data["true_label"]
        column = values.sel({dim: label}).values if dim else values.values
        rows = is_known(truth.values)
        of_class = dim == "class" or (needed == "score" and not dim)
        known = truth.values[rows]
        yield str(label), known == label if of_class else known, column[rows], data[f"sample_{by}"].values[rows]


def _draw(ax: Axes, kind: str, label: str, truth: Array, values: Array, parts: Array, *, pooled: bool) -> None:
    """Draw the predictions of a class, task or target."""
    from dmkl.pictures import shortened

    start = f"{shortened(label)}, " if label else ""
    each = [(shortened(str(part)), truth[parts == part], values[parts == part]) for part in np.unique(parts)]
    if kind == "confusion":
        labels = (truth.astype(str), values.astype(str))
        ConfusionMatrixDisplay.from_predictions(*labels, ax=ax, cmap="Blues", colorbar=False)
        return
    if kind in ("observed", "calibration"):
        for part, t, f in [("all folds", truth, values)] if pooled else each:
            if kind == "observed":
                ax.plot(t, f, ".", label=f"{start}{part}" + (f": R² {r2_score(t, f):.3f}" if len(t) > 1 else ""))
            else:
                ax.plot(*calibration_curve(t, f, n_bins=10)[::-1], "o-", markersize=3.5, label=f"{start}{part}")
        return
    curves = [(part, *_curve(kind, t.astype(int), s)) for part, t, s in each if 0 < t.sum() < len(t)]
    area = "AUC" if kind == "roc" else "AP"
    if not pooled:
        for part, y, size in curves:
            ax.plot(_AT, y, label=f"{start}{part}: {area} {size:.3f}")
    elif curves:
        y, sizes = (np.array(values) for values in list(zip(*curves, strict=True))[1:])
        spread, wide = (np.std(v, axis=0, ddof=1) if len(v) > 1 else 0 * v[0] for v in (y, sizes))
        (line,) = ax.plot(_AT, y.mean(axis=0), label=f"{start}{area} {sizes.mean():.3f} ± {wide:.2g}")
        edges = (y.mean(axis=0) - spread, y.mean(axis=0) + spread)
        ax.fill_between(_AT, *edges, color=line.get_color(), alpha=0.2, linewidth=0)


def _curve(kind: str, truth: Array, scores: Array) -> tuple[Float, float]:
    """A curve at the places `_AT`, and its area."""
    if kind == "roc":
        x, y, _ = roc_curve(truth, scores)
        return np.interp(_AT, x, y), float(roc_auc_score(truth, scores))
    precision, recall, _ = precision_recall_curve(truth, scores)
    # Precision is no linear function between two recalls: that of the next larger one is taken.
    return precision[::-1][np.searchsorted(recall[::-1], _AT)], float(average_precision_score(truth, scores))
