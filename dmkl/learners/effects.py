"""Effects of covariates that are fitted together with the kernels, which the step `residualize` takes them out of.

Predictions of learners with the trait `covariate_effects` include b₀ + zᵀb, with covariates z.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from dmkl.arrays import Array, Float
from dmkl.errors import warn
from dmkl.learners.plan import Statistics, side_by_side
from dmkl.numerics.covariates import of_new
from dmkl.numerics.steps import Fitted, Residualizing


def set_effects(model: Any, fits: Sequence[Float]) -> None:
    """Set `intercept_` and `covariate_effects_` from coefficients of [1, z] without kernels, for each part."""
    parts = [fit - _shared_with_kernels(model, part) for fit, part in zip(fits, model.statistics_, strict=True)]
    effects = side_by_side(parts, [part.columns for part in model.statistics_])
    dim = str(model.dual_coef_.dims[1])
    of_target = (dim, model.dual_coef_[dim].values)
    model.intercept_ = xr.DataArray(effects[0], [of_target], name="intercept")
    of_covariate = ("covariate", np.array(model._covariates().columns, dtype=str))
    model.covariate_effects_ = xr.DataArray(effects[1:], [of_covariate, of_target], name="covariate_effect")


def _shared_with_kernels(model: Any, part: Statistics) -> Float:
    """The difference of the least squares fit of y on [1, Z] and b, (1 + covariates, columns), which is that of Kc.

    Kc is taken without its mean over the training samples, which belongs to the intercept. If a later step scales
    each sample separately, kernels are not orthogonal to covariates: b is the least squares fit, the difference 0.
    """
    place = next(k for k, step in enumerate(part.steps) if isinstance(step, Residualizing))
    step, later = part.steps[place], part.steps[place + 1 :]
    assert isinstance(step, Residualizing)
    dual = model.dual_coef_.values if part.rows is None else model.dual_coef_.values[part.rows]
    dual, weights = dual[:, part.columns], model._score_function(np.arange(len(model.kernel_names_))).weights
    shared = np.zeros((step.basis.shape[1], dual.shape[1]))
    if not any(after.scales_columns for after in later):
        for j in np.flatnonzero(weights[:, part.columns].any(axis=1)):
            factors = Fitted(later).factor(int(j)) * weights[j, part.columns]
            shared += factors * (step.projected[j].T @ dual)
    shared[0] = 0.0
    return np.asarray(step.coefficients @ shared)


def offsets(model: Any, samples: Array, covariates: Any) -> Float:
    """The part zᵀb of predictions of samples, (1,) or (samples, columns); zero without covariates."""
    trained = model._covariates()
    if trained is None or not model.traits.covariate_effects:
        return np.zeros(1)
    if not hasattr(model, "covariate_effects_"):
        warn(
            f"this {type(model).__name__} was saved by a version without effects of covariates: predictions lack "
            "them. Fit it again",
            UserWarning,
        )
        return np.zeros(1)
    design = (trained if covariates is None else of_new(covariates, trained, samples)).of(samples)
    parts = [design @ _shared_with_kernels(model, part) for part in model.statistics_]
    shared = side_by_side(parts, [part.columns for part in model.statistics_])
    return np.asarray(design[:, 1:] @ model.covariate_effects_.values + shared)


def residualizing(steps: Sequence[Any]) -> Residualizing:
    """The last step that takes covariates out: steps of the kernel set come before those of the learner."""
    return next(step for step in reversed(steps) if isinstance(step, Residualizing))
