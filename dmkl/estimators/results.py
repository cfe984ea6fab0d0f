"""The fitted attributes that all learners share: labeled weights, dual variables, gaps, history, and a warning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from dmkl.arrays import Array
from dmkl.errors import ConvergenceWarning, warn
from dmkl.estimators.plan import FitOutcome
from dmkl.estimators.problems import Problems
from dmkl.solvers.outcome import Outcome, worst

__all__ = ["set_results", "warn_if_open"]


def set_results(model: Any, found: FitOutcome) -> None:
    """Set what a fit has found on a learner, labeled by kernel, sample, and class, pair or task."""
    problems, outcomes, rule = found.data.problems, found.outcomes, found.rule
    kernels, samples = np.array(model.kernel_names_, dtype=str), model.train_samples_
    dim, labels = _labels(*problems.columns)
    model.weights_ = labeled_weights(outcomes, problems, kernels)
    # In the order that a file gives back, so that a loaded model predicts the same to the last bit.
    model.dual_coef_ = xr.DataArray(
        np.ascontiguousarray(rule.dual), dims=("sample", dim), coords={"sample": samples, dim: labels}, name="dual_coef"
    )
    if model._HAS_INTERCEPT and rule.bias.ndim == 1:  # of covariates the learner makes it
        model.intercept_ = xr.DataArray(rule.bias, dims=(dim,), coords={dim: labels}, name="intercept")
    model.gap_ = by_problem(problems, [outcome.gap for outcome in outcomes], "gap")
    model.objective_ = by_problem(problems, [outcome.objective for outcome in outcomes], "objective")
    model.status_ = outcomes[worst(outcomes)].status.advice
    model.n_iter_ = max(len(outcome.steps) for outcome in outcomes)
    model.n_passes_ = float(found.n_passes)
    model.history_ = history(outcomes, problems, kernels)


def _labels(dim: str, names: Array) -> tuple[str, Array]:
    """Names as NumPy strings, as a file gives them back; numbers as they are."""
    return dim, names.astype(str) if names.dtype.kind in "OU" else names


def by_problem(problems: Problems, values: Sequence[float], name: str) -> Any:
    """A number where there is one problem, a labeled array otherwise."""
    if problems.dim is None:
        return float(values[0])
    dim, labels = _labels(problems.dim, problems.names)
    return xr.DataArray(np.array(values), dims=(dim,), coords={dim: labels}, name=name)


def labeled_weights(outcomes: Sequence[Outcome], problems: Problems, kernels: Array) -> xr.DataArray:
    """Weights over kernel; over kernel and class, pair or task for several problems.

    Weights of groups of samples are over kernel, group, and class or task, of a single problem too.
    """
    weights = np.stack([outcome.weights for outcome in outcomes], axis=-1)
    grouped = weights.ndim == 3
    if problems.dim is None and not grouped:
        return xr.DataArray(weights[:, 0], dims=("kernel",), coords={"kernel": kernels}, name="weight")
    dim, labels = _labels(*(problems.columns if problems.dim is None else (problems.dim, problems.names)))
    groups = {"group": np.arange(weights.shape[1])} if grouped else {}
    coords = {"kernel": kernels, **groups, dim: labels}
    return xr.DataArray(weights, dims=tuple(coords), coords=coords, name="weight")


def history(outcomes: Sequence[Outcome], problems: Problems, kernels: Array) -> xr.Dataset:
    """One row a step; shorter histories of several problems end in NaN."""
    length = max(len(outcome.steps) for outcome in outcomes)
    names = list(outcomes[0].steps[0].figures)
    dim = problems.dim or "problem"
    table = {name: np.full((len(outcomes), length), np.nan) for name in names}
    weights = np.full((len(outcomes), length, len(kernels)), np.nan)
    for k, outcome in enumerate(outcomes):
        for r, step in enumerate(outcome.steps):
            for name, values in table.items():
                values[k, r] = step.figures.get(name, np.nan)
            if step.weights is not None:
                weights[k, r] = step.weights
    found = xr.Dataset(
        {name: ((dim, "iteration"), values) for name, values in table.items()},
        coords={"iteration": np.arange(1, length + 1)},
    )
    if outcomes[0].steps[0].weights is not None:
        found = found.assign(weight=((dim, "iteration", "kernel"), weights)).assign_coords(kernel=kernels)
    return found.isel({dim: 0}) if problems.dim is None else found.assign_coords({dim: _labels(dim, problems.names)[1]})


def warn_if_open(model: Any, found: FitOutcome) -> None:
    """Tell of a gap that is proven to be above the tolerance, on the user's line."""
    problems, outcomes = found.data.problems, found.outcomes
    place = worst(outcomes)
    outcome = outcomes[place]
    if outcome.status.word != "open" or np.isnan(outcome.gap):
        return
    where = "" if problems.dim is None else f" ({problems.dim} {problems.names[place]})"
    warn(
        f"{type(model).__name__} ended with a relative gap of {outcome.gap:.2e}{where}, above tol={model.tol:g}. "
        f"{outcome.status.advice}",
        ConvergenceWarning,
    )
