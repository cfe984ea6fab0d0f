"""ℓp multiple kernel ridge regression."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from dmkl.estimators.fisher import OF_WEIGHTS, FisherLearner
from dmkl.estimators.norms import Constraints, KernelGroups, Prices
from dmkl.estimators.plan import TrainingSet
from dmkl.estimators.regressor import KernelRegressor
from dmkl.numerics.covariates import Covariates
from dmkl.solvers.fisher.problem import Finish, FisherProblem, Master
from dmkl.solvers.fisher.registry import FisherMethod
from dmkl.solvers.fisher.solver import SolverName
from dmkl.solvers.jobs import Context, Job
from dmkl.solvers.outcome import Outcome

__all__ = ["MKRidge", "RidgeMethod", "RidgeProblem"]


@dataclass(frozen=True, eq=False)
class RidgeProblem(FisherProblem):
    """A problem with H = y − ȳ.

    Parameters
    ----------
    mean
        ȳ, which predictions get back.
    """

    mean: float = 0.0


class RidgeMethod(FisherMethod):
    """Solve `RidgeProblem`s as problems of MK-FDA, and tell their solutions as ridge regression does.

    The α-step (½I + K(β)/2λ)α = H is (K(β) + λI)c = H with c = α/2λ: the dual variables of ridge regression.
    """

    def solve(self, jobs: Sequence[Job], context: Context) -> list[Outcome]:
        """See `Method.solve`."""
        outcomes = super().solve(jobs, context)
        return [_as_ridge(job.problem, outcome) for job, outcome in zip(jobs, outcomes, strict=True)]


def _as_ridge(problem: RidgeProblem, found: Outcome) -> Outcome:
    scale = 2.0 * problem.lam
    return replace(
        found,
        dual=None if found.dual is None else found.dual / scale,
        bias=np.array([problem.mean]),
        scores=None if found.scores is None else found.scores / scale + problem.mean,
    )


class MKRidge(FisherLearner, KernelRegressor):
    """ℓp-norm multiple kernel ridge regression.

    Learns weights β of the kernels together with kernel ridge regression on K(β) = Σ_j β_j K_j:

        min over β ≥ 0, ‖β‖_p ≤ 1, f, b of  Σ_i (y_i − f(x_i) − b)² + λ‖f‖²,

    where f lies in the space of functions whose kernel is K(β). With a `sample_weight` d in `fit` the squares are
    multiplied by d_i, and ȳ and the means of centering are weighted by it. Several targets have weights, p and λ of
    their own, and share the passes.

    Parameters
    ----------
    p
        Norm of the weights, from 1 (few kernels) to ∞ (all alike; from 1e6 on every weight is one). For several targets
        also one for each.
    lam
        Ridge λ > 0, in units of the normalized kernels' eigenvalues: the `alpha` of scikit-learn's KernelRidge on
        K(β). For several targets also one for each.
    steps
        As in `MKFDA`. Centered kernels give the regression an intercept; without "center" there is none.
    solver, tol, max_iter, master, finish, basis, kernel_groups, sigma, constraints
        As in `MKFDA`.

    Attributes
    ----------
    weights_ : DataArray
        β, over kernel; over kernel and target for several targets.
    dual_coef_ : DataArray
        c = (K(β) + λI)⁻¹(y − ȳ), over sample and target, with weights of samples (K(β) + λD⁻¹)⁻¹(y − ȳ); zero where the
        target's value is unknown.
    intercept_ : DataArray
        b = ȳ, over target.
    gap_ : float or DataArray
        The proven relative gap ``(F(α) − S(α, β) + ‖R‖²)/|S|`` of `MKFDA`, with H = y − ȳ and α = 2λc; see there.
    objective_ : float or DataArray
        S(α, β) = −½(y − ȳ)ᵀα where α is exact, α = 2λc. The least value of the problem above is −S.
    status_, solver_, n_passes_, n_iter_, history_, train_samples_, kernel_names_
        As in `MKFDA`.

    Notes
    -----
    Yan, Kittler, Mikolajczyk, Tahir: Non-sparse multiple kernel Fisher discriminant analysis. JMLR 13 (2012): Eq. 24 is
    this problem, with real targets in place of labels. Cortes, Mohri, Rostamizadeh: L2 regularization for learning
    kernels. UAI 2009, for p = 2.

    Examples
    --------
    >>> import dmkl
    >>> K = dmkl.open("kernels.zarr")
    >>> train, _, test = K.split(0)
    >>> y = K.labels.astype(float)
    >>> model = dmkl.MKRidge(p=1.5, lam=1e-2).fit(K[train, train], y[train])
    >>> model.gap_ <= 1e-4
    True
    >>> predicted = model.predict(K[test, train])
    """

    def __init__(
        self,
        p: float | Sequence[float] = 2.0,
        lam: float | Sequence[float] = 1e-2,
        *,
        steps: str | Sequence[str] = ("center", "trace"),
        solver: SolverName = "auto",
        tol: float = 1e-4,
        max_iter: int = 200,
        master: Master = "newton",
        finish: Finish = "auto",
        basis: int | str | None = None,
        kernel_groups: KernelGroups = None,
        sigma: Prices = 1.0,
        constraints: Constraints = None,
    ) -> None:
        super().__init__(lam, steps=steps, solver=solver, tol=tol, max_iter=max_iter)
        self.p = p
        self.master = master
        self.finish = finish
        self.basis = basis
        self.kernel_groups = kernel_groups
        self.sigma = sigma
        self.constraints = constraints

    _HAS_INTERCEPT = True
    _OF_WEIGHTS: ClassVar = OF_WEIGHTS

    def _method(self) -> RidgeMethod:
        return RidgeMethod(self.solver, self._options())

    def _jobs(self, data: TrainingSet, prepared: Any) -> list[Job]:
        targets = data.problems.targets
        # Kernels that are not centered leave no room for an intercept, as in scikit-learn's KernelRidge.
        centered = any(step == "center" or isinstance(step, Covariates) for step in self._steps())
        h = data.problems.h if centered else targets.scaled_values
        means = targets.means if centered else np.zeros(len(h))
        jobs = super()._jobs(data, prepared)
        return [
            replace(job, problem=RidgeProblem(**{**vars(job.problem), "h": own, "mean": float(mean)}))
            for job, own, mean in zip(jobs, h, means, strict=True)
        ]
