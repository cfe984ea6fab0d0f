"""Effects of covariates that are fitted together with the kernels, which the step `residualize` takes them out of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from dmkl.arrays import Array, Float
from dmkl.errors import refuse, warn
from dmkl.learners.learner import KernelLearner
from dmkl.learners.plan import Statistics, side_by_side
from dmkl.learners.traits import labeled_array
from dmkl.numerics.covariates import Covariates, of_new
from dmkl.numerics.steps import Fitted, Residualizing


class CovariateEffects(KernelLearner, abstract=True):
    """A learner whose predictions include b₀ + zᵀb, with covariates z that its step residualizes."""

    traits = KernelLearner.traits.but(fitted={"covariate_effects_": labeled_array(root="covariate_effect")})

    def _check_parameters(self) -> None:
        super()._check_parameters()
        several = [step for step in self._steps() if isinstance(step, Covariates)]
        if len(several) > 1:
            refuse(
                f"steps of {type(self).__name__} may take covariates out once, since their effects are fitted "
                f"together, and {len(several)} steps do; put all covariates into one table for residualize(Z)"
            )

    def _set_effects(self, fits: Sequence[Float]) -> None:
        """Set `intercept_` and `covariate_effects_` from coefficients of [1, z] without kernels, for each part."""
        covariates = self._covariates()
        assert covariates is not None
        parts = [fit - self._shared_with_kernels(part) for fit, part in zip(fits, self.statistics_, strict=True)]
        effects = side_by_side(parts, [part.columns for part in self.statistics_])
        dim = str(self.dual_coef_.dims[1])
        of_target = (dim, self.dual_coef_[dim].values)
        self.intercept_ = xr.DataArray(effects[0], [of_target], name="intercept")
        of_covariate = ("covariate", np.array(covariates.columns, dtype=str))
        self.covariate_effects_ = xr.DataArray(effects[1:], [of_covariate, of_target], name="covariate_effect")

    def _shared_with_kernels(self, part: Statistics) -> Float:
        """The difference of the least squares fit of y on [1, Z] and b, (1 + covariates, columns), which is that of Kc.

        Kc is taken without its mean over the training samples, which belongs to the intercept. If a later step scales
        each sample separately, kernels are not orthogonal to covariates: b is the least squares fit, the difference 0.
        """
        place = next(k for k, step in enumerate(part.steps) if isinstance(step, Residualizing))
        step, later = part.steps[place], part.steps[place + 1 :]
        assert isinstance(step, Residualizing)
        dual = self.dual_coef_.values if part.rows is None else self.dual_coef_.values[part.rows]
        dual, weights = dual[:, part.columns], self._score_function(np.arange(len(self.kernel_names_))).weights
        shared = np.zeros((step.basis.shape[1], dual.shape[1]))
        if not any(after.scales_columns for after in later):
            for j in np.flatnonzero(weights[:, part.columns].any(axis=1)):
                factors = Fitted(later).factor(int(j)) * weights[j, part.columns]
                shared += factors * (step.projected[j].T @ dual)
        shared[0] = 0.0
        return np.asarray(step.coefficients @ shared)

    def _offsets(self, samples: Array, *, covariates: Any = None, **more: Any) -> Float:
        trained = self._covariates()
        if trained is None:
            return np.zeros(1)
        if not hasattr(self, "covariate_effects_"):
            warn(
                f"this {type(self).__name__} was saved by a version without effects of covariates: predictions lack "
                "them. Fit it again",
                UserWarning,
            )
            return np.zeros(1)
        design = (trained if covariates is None else of_new(covariates, trained, samples)).of(samples)
        parts = [design @ self._shared_with_kernels(part) for part in self.statistics_]
        shared = side_by_side(parts, [part.columns for part in self.statistics_])
        return np.asarray(design[:, 1:] @ self.covariate_effects_.values + shared)


def residualizing(steps: Sequence[Any]) -> Residualizing:
    """The last step that takes covariates out: steps of the kernel set come before those of the learner."""
    return next(step for step in reversed(steps) if isinstance(step, Residualizing))
