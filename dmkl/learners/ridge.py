"""ℓp multiple kernel ridge regression."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import xarray as xr
from sklearn.base import clone

from dmkl.arrays import Float, is_instance
from dmkl.errors import LabelWarning, refuse, warn
from dmkl.inputs.columns import axis_names
from dmkl.kernelset import KernelSet
from dmkl.learners.checks import (
    Constraints,
    Given,
    KernelGroups,
    Prices,
    WeightRules,
    check_count,
    check_numbers,
    given_weights,
    one_for_each,
)
from dmkl.learners.effects import residualizing, set_effects
from dmkl.learners.fisher import PLAIN_SUM, LeastSquares
from dmkl.learners.learner import KernelLearner, KernelRegressor
from dmkl.learners.plan import FitOutcome, TrainingSet
from dmkl.numerics.fisher import Targets
from dmkl.passes.view import Lens
from dmkl.solvers.fisher.registry import FisherMethod, name_of
from dmkl.solvers.interface import Outcome
from dmkl.solvers.jobs import Context, Job
from dmkl.solvers.refinement import RefinedProblem
from dmkl.solvers.shared import SharedMethod, SharedProblem, candidate_weights

_EXPLAINED = 1e-7  # Residuals of y on covariates below this share of its deviations from the mean are rounding.
_PATTERNS = 10  # Sets of samples with known values from which targets that share weights take much longer.

OfTargets = Sequence[Sequence[float]] | Mapping[str, Sequence[float]] | xr.DataArray
"""Weights of each target: (kernels, targets), or by the name of the kernel."""


def _is_several(value: Any) -> bool:
    return np.ndim(value) > 0


def _by_target(weights: Any) -> bool:
    """Whether weights are numbers for each target."""
    return any(map(np.ndim, weights.values())) if isinstance(weights, Mapping) else np.ndim(weights) == 2


def _of_targets(weights: Any, targets: Sequence[str]) -> list[Any]:
    """The weights of each target, by the name of the kernel where they have names.

    InputError if they have names of targets in another order than the `targets` of a fit.
    """
    if is_instance(weights, "pandas", "DataFrame") and axis_names(weights, 0) is not None:
        weights = xr.DataArray(weights, dims=("kernel", "target"))
    if isinstance(weights, xr.DataArray):
        if "kernel" not in weights.coords:
            refuse(f"weights must be over kernel, with names of kernels, and target, got {weights.dims}")
        kernels = weights.transpose("kernel", ...)
        given = kernels["target"].values.astype(str).tolist() if "target" in kernels.coords else []
        if sorted(given) == sorted(targets) and given != list(targets):
            order = f"give them in the order of y: {', '.join(targets)}"
            refuse(f"weights are those of the targets {', '.join(given)}; {order}")
        weights = dict(zip(kernels["kernel"].values.tolist(), kernels.values, strict=True))
    if isinstance(weights, Mapping):
        return [dict(zip(weights, of_target, strict=True)) for of_target in zip(*weights.values(), strict=True)]
    return list(np.asarray(weights, dtype=np.float64).T)


class RidgeMethod(FisherMethod):
    """Solve problems of MK-FDA with H = y − ȳ, or residuals of y on covariates, as those of ridge regression.

    The α-step (½I + K(β)/2λ)α = H is (K(β) + λI)c = H with c = α/2λ: the dual variables of ridge regression.
    """

    def solve(self, jobs: Sequence[Job], context: Context) -> list[Outcome]:
        """See `Method.solve`."""
        outcomes = []
        for job, outcome in zip(jobs, super().solve(jobs, context), strict=True):
            scale, offset = 2.0 * job.problem.lam, job.problem.offset
            dual = None if outcome.dual is None else outcome.dual / scale
            scores = None if outcome.scores is None else outcome.scores / scale + offset
            outcomes.append(replace(outcome, dual=dual, bias=offset, scores=scores))
        return outcomes


@dataclass(eq=False, repr=False)
class MKRidge(LeastSquares, KernelRegressor):
    """ℓp-norm multiple kernel ridge regression.

    Learns weights β of the kernels together with kernel ridge regression on K(β) = Σ_j β_j K_j:

        min over β ≥ 0, ‖β‖_p ≤ 1, f, b of  Σ_i (y_i − f(x_i) − b)² + λ‖f‖²,

    where f lies in the space of functions whose kernel is K(β). With a `sample_weight` d in `fit` the squares are
    multiplied by d_i, and ȳ and the means of centering are weighted. Targets have weights, p and λ of their own.

    With the step `dmkl.residualize` (Z) the model is y = b₀ + Zb + g + e: the term b becomes b₀ + z_iᵀb, which is not
    penalized. b₀ and b are generalized least squares with the covariance K(β) + λI (K(β) + λD⁻¹ with weights of
    samples). Predictions are b₀ + zᵀb + g(x), so that `score`, searches and evaluations include the prediction of the
    covariates. A permutation test permutes the residuals of y on Z.

    Parameters
    ----------
    p
        Norm of the weights, from 1 (few kernels) to ∞ (all alike; from 1e6 on every weight is one). For several targets
        also one for each.
    lam
        Ridge λ > 0, in units of the normalized kernels' eigenvalues: the `alpha` of scikit-learn's KernelRidge on
        K(β). For several targets also one for each.
    steps
        As in `MKFDA`. The regression has an intercept only if kernels are centered, by "center" or by
        `dmkl.residualize`, which may occur once.
    weights
        None (they are learnt); given weights as in `MKFDA`, or those of each target, as an array (kernels, targets), a
        DataArray over kernel and target such as `weights_`, or a mapping from kernels to a number for each target; or
        "shared": all targets share candidates γ, and `dmkl.search` chooses one of them and λ for each target by its own
        R² in validation. The search has an axis "candidate" in addition to its grid, and decomposes K(γ) once for each
        candidate and fold, for all targets and all λ.
    n_candidates
        Number of random candidates on the simplex for weights="shared". The first one is uniform, the others are from
        Dirichlet distributions of concentrations 0.1 and 1 in turn.
    candidates
        Own candidates in place of random ones: an array (candidates, kernels), each as `weights`; or their number.
    random_state
        Seed of the random candidates.
    candidate
        Position of the candidate that is fitted, for several targets also one for each; a search sets it.
    refine
        Maximum number of Gauss-Newton steps with which `dmkl.search` and `dmkl.evaluate` refine the weights of each
        target, for weights="shared"; 0 for none. The steps start at the chosen candidate and λ, and minimize the
        squared validation error over the logarithms of the weights, which change by 5 at most; refined weights need not
        sum to one. A target keeps its candidate if its validation score does not rise, or if its squared errors, as if
        each validation row were left out of the steps, do not fall by more than the standard error of their fall. The
        kernels of all folds must fit in the memory of a task.
    solver, tol, max_iter, kernel_groups, sigma, constraints
        As in `MKFDA`.

    Attributes
    ----------
    weights_ : DataArray
        β, over kernel; over kernel and target for several targets.
    dual_coef_ : DataArray
        c = (K(β) + λI)⁻¹H, or (K(β) + λD⁻¹)⁻¹H, over sample and target, zero where values are unknown. H = y − ȳ, or
        the least squares residuals of y on covariates.
    intercept_ : DataArray
        b = ȳ, over target; with covariates b₀ = ȳ − z̄ᵀb, so that g has mean zero over the training samples.
    covariate_effects_ : DataArray
        b, over covariate and target, in units of y per unit of the covariate, if there are covariates. For collinear
        covariates (such as the levels of a category) the solution of least norm in units of their standard deviations.
        If "cosine" comes after the covariates, b is the ordinary least squares fit.
    gap_ : float or DataArray
        The proven relative gap ``(F(α) − S(α, β) + ‖R‖²)/min(|S|, ‖H‖² − |S|)`` of `MKFDA` with this H and α = 2λc.
    objective_ : float or DataArray
        S(α, β), which is −½Hᵀα for the exact α = 2λc. The minimum of the problem above is −S.
    weights_error_, status_, solver_, n_passes_, n_iter_, history_, train_samples_, kernel_names_
        As in `MKFDA`.

    Notes
    -----
    Yan, Kittler, Mikolajczyk, Tahir: Non-sparse multiple kernel Fisher discriminant analysis. JMLR 13 (2012): Eq. 24 is
    this problem, with real targets in place of labels. Cortes, Mohri, Rostamizadeh: L2 regularization for learning
    kernels. UAI 2009, for p = 2. Ruppert, Wand, Carroll: Semiparametric regression. Cambridge University Press 2003:
    covariates together with a penalized function. Dupré la Tour, Eickenberg, Nunez-Elizalde, Gallant: Feature-space
    selection with banded ridge regression. NeuroImage 264 (2022): weights="shared", their random search; refine has the
    objective of their "hyper-gradient", and other steps (`dmkl.solvers.refinement`).

    Examples
    --------
    >>> import dmkl
    >>> import numpy as np
    >>> K = dmkl.open("kernels.zarr")
    >>> train, _, test = K.split(0)
    >>> y = K.labels.astype(float)
    >>> model = dmkl.MKRidge(p=1.5, lam=1e-2).fit(K[train, train], y[train])
    >>> model.gap_ <= 1e-4
    True
    >>> predicted = model.predict(K[test, train])

    Thousands of targets share candidates of weights:

    >>> learner = dmkl.MKRidge(weights="shared", n_candidates=5)
    >>> Y = np.stack([y, y**2, -y], axis=1)
    >>> result = dmkl.search(learner, K, Y, {"lam": [1e-2, 0.1]}, cv=3)
    >>> result.best_.weights_.sizes["target"]
    3
    """

    p: float | Sequence[float] = 2.0
    lam: float | Sequence[float] = 1e-2
    _: KW_ONLY
    kernel_groups: KernelGroups = None
    sigma: Prices = 1.0
    constraints: Constraints = None
    weights: Given | OfTargets | Literal["shared"] = None
    n_candidates: int = 50
    candidates: int | Sequence[Sequence[float]] | None = None
    random_state: int = 0
    candidate: int | Sequence[int] | None = None
    refine: int = 0

    traits = LeastSquares.traits.but(
        plain_sum=PLAIN_SUM | {"candidates": None, "candidate": None, "refine": 0},
        rules={"refine": partial(check_count, least=0)},
        covariate_effects=True,
    )

    # --- weights that targets share ------------------------------------------------------------------------------

    @property
    def _judges(self) -> bool:
        return isinstance(self.weights, str) and not _is_several(self.candidate)  # otherwise each target is a fit

    @property
    def _decomposes(self) -> bool:
        """Whether targets have given weights or candidates, whose combined kernels are decomposed."""
        return isinstance(self.weights, str) or _by_target(self.weights)

    def _given(self, names: Sequence[str], targets: Sequence[str] = ()) -> Float:
        """The candidates, or the weights of each of the targets, (…, kernels)."""
        rows: Any = self.candidates if isinstance(self.weights, str) else _of_targets(self.weights, targets)
        if _is_several(rows):
            return np.stack([given_weights(row, names) for row in rows])
        return candidate_weights(len(names), self._count(), self.random_state)

    def _count(self) -> int:
        """The number of candidates."""
        given: Any = self.candidates
        if _is_several(given):
            return len(given)
        return check_count("n_candidates", self.n_candidates) if given is None else check_count("candidates", given)

    def _own_grid(self) -> dict[str, tuple[Any, ...]]:
        searched = isinstance(self.weights, str) and self.candidate is None
        return {"candidate": tuple(range(self._count()))} if searched else {}

    def _weight_rules(self) -> WeightRules:
        return replace(super()._weight_rules(), given=None) if self._decomposes else super()._weight_rules()

    def _needs_statistics(self, lens: Lens) -> bool:
        return self._decomposes or super()._needs_statistics(lens)

    def _parameter_texts(self, names: Sequence[str]) -> dict[str, str]:
        own = "candidates" if isinstance(self.weights, str) else "weights"
        is_given = self._decomposes and (own == "weights" or _is_several(self.candidates))
        return super()._parameter_texts(names) | ({own: repr(self._given(names).tolist())} if is_given else {})

    def _of_plain_sum(self, grid: Mapping[str, tuple[Any, ...]]) -> tuple[KernelLearner, dict[str, Any]] | None:
        plain = super()._of_plain_sum(grid)
        if plain is None or not self._judges:
            return plain
        random = None if _is_several(self.candidates) else self.candidates  # of which the first is the sum
        return clone(self).set_params(candidates=random, candidate=0, refine=0), plain[1]

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if not isinstance(self.weights, str):
            if self.candidates is not None:
                refuse("candidates are weights to choose from, for weights='shared'; give both, or neither")
            if self.candidate is not None:
                refuse("candidate is a position among the candidates of weights='shared'; give both, or neither")
            if self.refine:
                refuse("refine starts at the candidates of weights='shared'; give both, or leave refine out")
        if not self._decomposes:
            return
        shared = isinstance(self.weights, str)
        if shared and self.weights != "shared":
            refuse(f"weights must be 'shared', or a weight for each kernel, got {self.weights!r}")
        what = "weights='shared' takes random weights" if shared else "weights of each target are given"
        for name in ("sigma", "kernel_groups", "constraints", *(("p", "solver") if shared else ())):
            if repr(getattr(self, name)) != repr(type(self)().get_params()[name]):
                refuse(f"{what}, which {name} has no effect on; leave {name} out")
        if not shared:
            return
        n = self._count()
        if self.candidate is None:
            refuse(
                "with weights='shared' targets choose among candidates by validation; let dmkl.search (dmkl search) "
                f"choose, or give candidate=, from 0 to {n - 1}"
            )
        wrong = [value for value in check_numbers("candidate", self.candidate) if value not in range(n)]
        if wrong:
            refuse(f"candidate must be whole numbers from 0 to {n - 1} (n_candidates={n}), got {wrong[0]:g}")

    def _check_data(self, K: KernelSet, targets: Targets) -> None:
        super()._check_data(K, targets)
        if self.refine and any(rows is not None for rows in targets.rows):
            refuse("refine takes targets without unknown values; fill them in, or leave these samples or refine out")
        n = len({id(rows) for rows in targets.rows})
        if self._judges and n > _PATTERNS:
            warn(
                f"{len(targets.rows)} targets have {n} patterns of unknown values, each of which takes decompositions "
                "of its own; fill in single values, or leave samples with unknown values out",
                LabelWarning,
            )

    def _shared_jobs(self, data: TrainingSet) -> list[Job]:
        """A job for each target, or with `Fit.judge` one for all targets with the same samples.

        With `Fit.truth` its weights are refined, and a fit of a search after that takes them from `Fit.starts`.
        """
        problems, judge = data.problems, data.fit.judge
        weights = self._given(data.training.names, problems.names.tolist())
        weights[:, np.setdiff1d(np.arange(data.training.n_kernels), data.positions)] = 0.0
        own = [*range(len(weights))] if self.candidate is None else check_numbers("candidate", self.candidate)
        chosen = one_for_each("weights" if self.candidate is None else "candidate", own, len(problems))
        ridges = self._of_problems("lam", len(problems))
        if self.refine and judge is None:
            if data.fit.starts is None:
                refuse(
                    "refine minimizes the validation error over folds, and a plain fit has no folds; let dmkl.search "
                    "choose the weights, or set refine=0 for those of the candidate"
                )
            weights, chosen = np.array(data.fit.starts), [float(k) for k in range(len(problems))]
        # Once for all points of a search, which makes hundreds of jobs.
        key = "shared", id(data.training), judge is None
        if key not in problems.computed:
            targets = [self._target(data, k) for k in range(len(problems))]
            members = [np.array([k]) for k in range(len(problems))]
            if judge is not None:
                members = [part.members for part in data.parts]
            joined = [[np.hstack([targets[k][i] for k in of]) for i in range(2)] for of in members]
            problems.computed[key] = list(zip(members, joined, strict=True))
        if judge is not None and data.fit.truth is not None:
            ((of, (h, offset)),) = problems.computed[key]
            gamma, lam = weights[np.array(chosen, dtype=int)], np.array(ridges)
            refined = RefinedProblem(h, offset, data.fit.truth, judge, of, lam, gamma, self.refine)
            return [Job(data.training, refined)]
        return [
            Job(data.trainings[of[0]], SharedProblem(h, ridges[of[0]], weights[int(chosen[of[0]])], offset, of, judge))
            for of, (h, offset) in problems.computed[key]
        ]

    def _method(self) -> Any:
        return SharedMethod(self.tol) if self._decomposes else RidgeMethod(name_of(self.solver), self._options())

    def _jobs(self, data: TrainingSet, prepared: Any) -> list[Job]:
        return self._shared_jobs(data) if self._decomposes else super()._jobs(data, prepared)

    def _target(self, data: TrainingSet, number: int) -> tuple[Float, Float]:
        # Problems with the same object H are points of one target for solvers: they share directions and passes.
        key, cache = (id(data.trainings[number]), number), data.problems.computed
        if key not in cache:
            cache[key] = self._centered(data, number)
        target: tuple[Float, Float] = cache[key]
        return target

    def _centered(self, data: TrainingSet, k: int) -> tuple[Float, Float]:
        """The target of a problem.

        With covariates the problem is min over f and b of Σ_i d_i (y_i − z̃_iᵀb − f(x_i))² + λ‖f‖², z̃ = [1, z]. Its dual
        variables c have Z̃ᵀc = 0, so that c = Pᵀc and (PKPᵀ + λD⁻¹)c = Py with the projector P of the step: H = Py, the
        residuals of least squares. Z̃b = Q Gᵀ(y − Kc) gives for a new sample
        z̃ᵀb + k(x, ·)c = q(x)Gᵀy + [k(x, ·) − q(x)Tᵀ]c: the least squares fit of y, and the score by the step's kernels.
        """
        targets, training = data.problems.targets, data.trainings[k]
        if self._covariates() is None:
            # Without centering there is no intercept, as in scikit-learn's KernelRidge.
            centered = "center" in self._steps()
            mean = targets.means[k] if centered else 0.0
            return (data.problems.h if centered else targets.scaled_values)[k], np.array([mean])
        y, step = targets.values[k], residualizing(training.whole.fitted.steps)
        assert step.row_basis is not None
        coefficients = step.dual.T @ y
        residual = y - step.basis @ coefficients
        if np.linalg.norm(residual) <= _EXPLAINED * np.linalg.norm(y - targets.means[k]):
            refuse(
                f"{training.title}{data.problems.title(k)}the covariates of residualize explain y completely, so that "
                "nothing is left for kernels to learn; leave out the covariate that is computed from y"
            )
        weights = data.problems.weights[k]
        h = residual if weights is None else np.sqrt(weights)[:, None] * residual
        return h, step.row_basis[training.n_train :] @ coefficients

    # --- effects of covariates -----------------------------------------------------------------------------------

    def _set_attributes(self, outcome: FitOutcome) -> None:
        targets = outcome.data.problems.targets
        if self._covariates() is not None:
            steps = [residualizing(part.steps) for part in self.statistics_]
            values = [np.hstack([targets.values[k] for k in part.columns]) for part in self.statistics_]
            set_effects(self, [step.coefficients @ (step.dual.T @ y) for step, y in zip(steps, values, strict=True)])
