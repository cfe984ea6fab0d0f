"""What speaks for a sample: the share of each kernel in its scores, and the features behind linear kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from dmkl.arrays import Array, Float
from dmkl.errors import InputError
from dmkl.estimators.problems import side_by_side
from dmkl.variables import describe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dmkl.estimators.predicting import Predicting
    from dmkl.features.cross import TrainingFeatures
    from dmkl.features.specs import Recipe
    from dmkl.store.features import FeatureTable
    from dmkl.stores import Kernels

__all__ = ["contributions", "feature_weights", "plot_contributions"]

_STRIP_BYTES = 2**26
"""Features that are read at a time."""


def contributions(model: Predicting, K: Kernels | None, **new: Any) -> xr.DataArray:
    """See `KernelLearner.contributions`."""
    found = model._found_of_new(K, model._shares, **new)
    # (kernels, rows, columns) with rows first, as columns are put in order behind them.
    parts = [part.transpose(1, 2, 0) for part in found.parts]
    shares = side_by_side(parts, [part.columns for part in model.statistics_])
    dim = str(model.dual_coef_.dims[1])
    whole = np.zeros((len(shares), len(model.kernel_names_), shares.shape[1]))
    whole[:, found.used] = shares.transpose(0, 2, 1)
    coords: dict[str, Any] = {"sample": found.kernels.samples.astype(str), "kernel": list(model.kernel_names_)}
    result = xr.DataArray(
        whole,
        dims=("sample", "kernel", dim),
        coords={**coords, dim: model.dual_coef_[dim].values},
        name="contribution",
        attrs={"long_name": "share of each kernel in the score", "units": "score"},
    )
    if model._HAS_INTERCEPT:
        constant = model.intercept_.values + model._offsets(coords["sample"], new.get("covariates"))
        result = result.assign_coords(intercept=(("sample", dim) if constant.ndim == 2 else (dim,), constant))
    return _squeezed(describe(result), model)


def _squeezed(found: xr.DataArray, model: Predicting) -> xr.DataArray:
    """Without the dimension of scores where there is one column, as of two classes."""
    dim = str(model.dual_coef_.dims[1])
    one = model._score_dim() is None and found.sizes[dim] == 1
    return found.isel({dim: 0}).drop_vars(dim) if one else found


def plot_contributions(contributions: xr.DataArray, sample: Any, of: Any = None) -> Figure:
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
    from dmkl.estimators import contribution_plot

    return contribution_plot.plot_contributions(contributions, sample, of)


def feature_weights(model: Predicting, kernel: str) -> xr.DataArray:
    """See `KernelLearner.feature_weights`."""
    model._check_fitted()
    place = _place(model, kernel)
    recipe, table = _linear_features(model, kernel)
    columns = np.arange(table.shape[1]) if recipe.columns is None else np.array(recipe.columns)
    rule = model._rule(np.array([place]))
    if rule.weights.ndim == 3:
        msg = (
            f"{type(model).__name__} weighs each kernel by groups of samples, so that no single weight of a feature "
            "stands behind its scores; see contributions"
        )
        raise InputError(msg)
    parts = []
    for part in model.statistics_:
        own = rule.of(part.columns, part.rows)
        effective = _over_features(model, kernel, part.steps, own.dual, place)
        rows = np.arange(table.shape[0]) if part.rows is None else part.rows
        parts.append(own.weights[0] * _projected(table, kernel, rows, columns, effective))
    dim = str(model.dual_coef_.dims[1])
    weights = xr.DataArray(
        side_by_side(parts, [part.columns for part in model.statistics_]),
        dims=("feature", dim),
        coords={"feature": _names(table, columns), dim: model.dual_coef_[dim].values},
        name="feature_weight",
        attrs={"long_name": f"weight of each feature of kernel {kernel}", "units": "score per unit of the feature"},
    )
    return _squeezed(describe(weights), model)


def _place(model: Predicting, kernel: str) -> int:
    if kernel not in model.kernel_names_:
        msg = f"there is no kernel {kernel!r}; those of the model are {', '.join(model.kernel_names_[:10])}"
        raise InputError(msg)
    return model.kernel_names_.index(kernel)


def _linear_features(model: Predicting, kernel: str) -> tuple[Recipe, FeatureTable]:
    """How a linear kernel was made, and of what features of the training samples."""
    features: TrainingFeatures | str = model.features_
    if isinstance(features, str):
        raise InputError(features)
    recipe = features.recipes.get(kernel)
    if recipe is None or recipe.function != "linear" or recipe.feature is None:
        made = "was not computed from features" if recipe is None else f"is of the function {recipe.function!r}"
        msg = f"weights of features stand behind linear kernels alone, and {kernel!r} {made}; see contributions"
        raise InputError(msg)
    table = features.tables[recipe.feature]
    if table.n_missing:
        msg = (
            f"{table.n_missing} training samples lack the feature {recipe.feature!r} of kernel {kernel!r}, whose "
            "entries were filled in; weights of features need all of them"
        )
        raise InputError(msg)
    return recipe, table


def _over_features(model: Predicting, kernel: str, steps: Any, dual: Float, place: int) -> Float:
    """The c for which scores are k(x, ·)c and a constant, k before the steps, (samples, columns)."""
    found = dual
    for step in reversed(steps):
        if step.needs_row_diagonal:
            msg = (
                f"the step {step.name!r} divides each sample by its own norm, so that no weights of features stand "
                f"behind the scores of kernel {kernel!r}; fit without it, or see contributions"
            )
            raise InputError(msg)
        found = step.right(place, found) * step.scalar(place)
    return found


def _projected(table: FeatureTable, kernel: str, rows: Any, columns: Any, effective: Float) -> Float:
    """Xᵀc, (features, columns), some samples at a time."""
    total = np.zeros((len(columns), effective.shape[1]))
    strip = max(1, _STRIP_BYTES // (8 * max(1, table.shape[1])))
    for start in range(0, len(rows), strip):
        values = np.asarray(table.read(rows[start : start + strip], columns), dtype=np.float64)
        total += values.T @ effective[start : start + strip]
    return total


def _names(table: FeatureTable, columns: Any) -> Array:
    return np.array([str(k) for k in columns] if table.columns is None else [table.columns[k] for k in columns])
