"""Pages of predictions: scores, calibration, the least sure samples, and differences from training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import date
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

import dmkl
from dmkl.arrays import Array, is_known
from dmkl.description import Column, Description, Figure, Key, Table, count, listed, short_names, with_error
from dmkl.searching.assessing import measures_of
from dmkl.searching.targets import FEW, KernelScores, ManyTargets

_LEAST_SURE = 20  # Samples with a row in the table of the least sure ones.
_SURE = 3.0  # Standard errors by which means differ more than by chance.


def lines_that_predict(loaded: str, opened: str, *, every: bool) -> str:
    """Code that predicts by a model for new rows of a set, or `every` row; the two are given as code."""
    lines = ["", f"model = {loaded}", f"K = {opened}", "model.predict(K)"]
    if not every:
        chosen = "new = ~np.isin(K.samples.astype(str), model.train_samples_)"
        lines = ["import numpy as np", *lines[:-1], chosen, "model.predict(K[new, :])"]
    return "\n".join(["import dmkl", *lines])


def describe_prediction(
    model: Any,
    scores: xr.DataArray,
    truth: Array | None,
    scored: Description | None,
    of: str,
    lines: list[str],
    by_kernel: KernelScores | None = None,
    code: Mapping[str, str] = MappingProxyType({}),
) -> Description:
    """A prediction of the samples `of` a place in words, tables and figures, with further `lines`.

    `scores` are decision scores or predicted numbers, and `scored` compares them with the true labels. Probabilities of
    classes, and errors of numbers, are compared with those of rows that training held out.
    """
    tables, figures = dict(scored.tables if scored else {}), dict(scored.figures if scored else {})
    said = [*(scored.lines() if scored else ["The true labels are not known."])]
    held_out, regression = getattr(model, "nonconformity_", None), model.kind_ == "regression"
    data = xr.Dataset({"sample_group": ("sample", np.full(len(scores), "these samples"))}, {"sample": scores["sample"]})
    if truth is not None:
        data["true_label"] = scores.dims[: np.ndim(truth)], truth
    drift: dict[Key, list[str]] = {}
    if regression and truth is not None:
        data["prediction"] = scores
        several, of_targets = scores.size > FEW * len(scores), None if by_kernel is None else by_kernel.by_target
        if several and of_targets is None:
            of_targets = _by_target(model, scores, truth)
        if of_targets is not None:
            tables, figures = tables | of_targets.tables(), figures | of_targets.figures()
        if not several:
            draw = partial(dmkl.plot_predictions, data, "observed", by="group")
            figures["Observed and predicted"] = Figure("Predicted against observed numbers.", draw)
        errors = np.abs(np.asarray(truth, dtype=float).reshape(scores.shape) - scores.values)
        drift = _drift("The mean absolute error", errors[np.isfinite(errors)], held_out, lambda table: table)
    elif model.kind_ in ("binary", "multiclass") and getattr(model, "calibrated_on_", None) is not None:
        data["probability"] = probability = model.probabilities_of(scores)
        if truth is not None:
            caption = "Share of each class in ten bins of its probability."
            figures["Calibration"] = Figure(caption, partial(dmkl.plot_predictions, data, "calibration", by="group"))
        tables |= {
            "least_sure": lambda: _least_sure(probability, truth),
            "drift": lambda: _classes(probability, held_out),
        }
        # If probabilities are right, the true class of a sample has Σ_k p_k² on average.
        expected = (probability**2).sum("class").values
        drift = _drift("The probability of the true class", expected, held_out, lambda table: 1.0 - table)
    facts = {
        "set": of,
        "trait": f"{model.kind_}{': ' if len(model.classes_) else ''}{listed(model.classes_, 12)}",
        "samples": f"{len(scores):,}",
        "date": date.today().isoformat(),
        "model": f"{type(model).__name__}, trained on {count(len(model.train_samples_), 'sample')}",
        "kernels": listed(short_names(model.kernel_names_).values(), 12),
        "probabilities": f"calibrated on {model.calibrated_on_}" if "probability" in data else "none",
    }
    title = f"Prediction by {type(model).__name__} of {count(len(scores), 'sample')}"
    return Description(title, "", {"scores": [*said, *lines], **drift}, lambda: facts, tables, figures, code)


def _by_target(model: Any, scores: xr.DataArray, truth: Array) -> ManyTargets:
    """R² of each target, and the shares of the kernels in its weights."""
    r2 = measures_of(model, scores.values, np.asarray(truth, dtype=float), "r2")["r2"]
    score = xr.DataArray(r2, {"target": scores["target"].values.astype(str)})
    shares = (model.weights_ / np.abs(model.weights_).sum("kernel")).drop_vars("target", errors="ignore")
    return ManyTargets(score, "r2", "", shares.broadcast_like(score), "share of the weight")


def _drift(what: str, here: Array, held_out: xr.Dataset | None, of_training: Any) -> dict[Key, list[str]]:
    """A sentence on a mean over these samples and over rows that training held out; empty if it has none."""
    if held_out is None or not len(here):
        return {}
    parts = here, of_training(held_out["nonconformity"].values)
    means = [float(np.mean(part)) for part in parts]
    errors = [float(np.std(part, ddof=1) / np.sqrt(len(part))) if len(part) > 1 else np.nan for part in parts]
    of_here, of_there = (with_error(mean, error) for mean, error in zip(means, errors, strict=True))
    line = f"{what} is {of_here} here and {of_there} of {held_out.attrs['learnt_on']}"
    if abs(means[0] - means[1]) > _SURE * math.hypot(*errors):
        return {"notes": [f"{line}: these samples are unlike those of training."]}
    return {"inner_scores": [f"{line}: no drift is seen"]}


def _least_sure(probability: xr.DataArray, truth: Array | None) -> Table:
    """The samples whose largest probability is least, with the class that is next."""
    classes, values = probability["class"].values.astype(str), probability.values
    first, second = np.argsort(-values, axis=1, kind="stable").T[:2]
    rows = np.arange(len(values))
    frame = pd.DataFrame({"sample": probability["sample"].values, "predicted": classes[first]})
    frame["probability"], frame["next"], frame["of next"] = values[rows, first], classes[second], values[rows, second]
    if truth is not None:
        frame["true"] = np.where(is_known(truth), np.asarray(truth).astype(str), "")
    frame = frame.sort_values("probability", kind="stable").head(_LEAST_SURE)
    return Table(frame, title="Least sure samples", note="The samples whose largest probability is least.")


def _classes(probability: xr.DataArray, held_out: xr.Dataset | None) -> Table:
    """How often each class is predicted, its mean probability, and its share of the rows that training held out."""
    classes = probability["class"].values.astype(str)
    share = np.bincount(probability.values.argmax(axis=1), minlength=len(classes)) / len(probability)
    frame = pd.DataFrame({"class": classes, "predicted": share, "probability": probability.mean("sample").values})
    columns = [
        Column("class"),
        Column("predicted", "share predicted", "share"),
        Column("probability", "mean probability", "share"),
    ]
    if held_out is not None:
        counted = np.bincount(held_out["true_class"].values, minlength=len(classes))
        frame["training"] = counted / counted.sum()
        columns.append(Column("training", "share in training", "share"))
    return Table(frame, columns, "Classes here and in training")
