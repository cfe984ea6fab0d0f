"""Means of scores over the folds, and what the rules of choice ask of the points of a grid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

__all__ = ["grid_points", "mean_and_error"]


def grid_points(scores: xr.Dataset, names: Sequence[str]) -> dict[str, Any]:
    """What the rules of `dmkl.searching.choice` ask of the points: arrays over the parameters `names`, by argument."""
    mean = scores["mean_score"]
    points = {"mean": mean, "standard_error": scores["standard_error"]}
    points |= {name: scores[name].broadcast_like(mean) for name in ("lam", "p") if name in names}
    if "C" in names:  # the smaller, the more regularized
        points["lam"] = 1.0 / scores["C"].broadcast_like(mean)
    return {name: values.transpose(*names).values for name, values in points.items()}


def mean_and_error(score: xr.DataArray) -> tuple[xr.DataArray, xr.DataArray]:
    """Mean over the folds and its standard error, s/√n with the sample standard deviation s; NaN folds are skipped.

    The standard error of a single fold is NaN.
    """
    n = score.count("fold")
    spread = score.std("fold", ddof=1).where(n > 1)
    return score.mean("fold"), spread / np.sqrt(n)
