"""Multiple kernel learning with a smooth convex loss: logistic regression, generalized linear models, survival."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, NoReturn

import numpy as np
import numpy.typing as npt
import xarray as xr
from dask.base import tokenize
from scipy.special import expit, log_expit
from sklearn.utils.metaestimators import available_if

from dmkl.arrays import Array, Float, is_known, plain_repr
from dmkl.errors import refuse
from dmkl.kernelset import Kernels, KernelSet
from dmkl.learners.checks import RULES, Constraints, Given, KernelGroups, Prices, one_of
from dmkl.learners.decisions import HeldOut
from dmkl.learners.effects import residualizing, set_effects
from dmkl.learners.fisher import PLAIN_SUM
from dmkl.learners.learner import KernelClassifier, KernelLearner, KernelRegressor
from dmkl.learners.plan import ClassWeight, FitOutcome, Problems, Sharing, TrainingSet
from dmkl.learners.traits import labeled_array
from dmkl.numerics.covariates import Covariates, facts_of
from dmkl.numerics.fisher import Targets
from dmkl.numerics.losses import Cox, JointLoss, Logistic, Ordinal, as_loss
from dmkl.numerics.survival import Steps, concordance, cumulative_hazard, survival_labels
from dmkl.passes.blas import one_blas_thread
from dmkl.solvers.fisher.problem import FisherOptions, Subspace
from dmkl.solvers.interface import Outcome
from dmkl.solvers.jobs import Job
from dmkl.solvers.smooth import SmoothProblem, solve_mkglm
from dmkl.solvers.smooth_subspace import SmoothMethod
from dmkl.variables import describe

SmoothSolver = Literal["auto", "memory", "factors", "subspace"] | Subspace


def _check_solver(name: str, value: Any) -> None:
    if isinstance(value, Subspace) and value.finish in ("auto", "report"):
        return
    if value not in ("auto", "memory", "factors", "subspace"):
        refuse(
            f"{name} must be 'auto', 'memory', 'factors', 'subspace', or dmkl.Subspace with finish='auto' or 'report', "
            f"got {plain_repr(value)}"
        )


@dataclass(eq=False, repr=False)
class SmoothLearner(KernelLearner, abstract=True):
    """Weights, functions and fixed effects that minimize a smooth convex loss with a ridge."""

    _: KW_ONLY
    kernel_groups: KernelGroups = None
    sigma: Prices = 1.0
    constraints: Constraints = None
    weights: Given = None
    steps: str | Sequence[str] = ("center", "multiplicative")
    solver: SmoothSolver = "auto"
    tol: float = 1e-4
    max_iter: int = 200

    traits = KernelLearner.traits.but(
        covariate_effects=True,
        takes_sample_weight=True,
        weight_set=True,
        plain_sum=PLAIN_SUM,
        bounded="the loss with its ridge",
        rules=RULES | {"solver": _check_solver},
    )

    def _loss(self, samples: Array | None = None) -> JointLoss:
        """The loss, which may depend on facts about the samples."""
        raise NotImplementedError

    def _method(self) -> SmoothMethod:
        solver = Subspace() if self.solver == "subspace" else self.solver
        name, room = (solver.name, solver.options()) if isinstance(solver, Subspace) else (solver, {})
        return SmoothMethod(solver=name, options=FisherOptions(self.tol, self.max_iter, **room))

    def _parameter_texts(self, names: Sequence[str]) -> dict[str, str]:
        # As for least squares, the room that a solver has is no part of a result.
        return super()._parameter_texts(names) | {"solver": repr(getattr(self.solver, "name", self.solver))}

    def _labels_of(self, data: TrainingSet, number: int) -> Float:
        """The labels of a problem as the loss takes them, (m,) or (m, columns)."""
        return data.problems.h[number]

    def _offset_of(self, samples: Array, new: Any = None) -> Float | float:
        """The offsets of the predictors of samples, (rows,), or 0; `new` is given for some or all of them."""
        return 0.0

    def _jobs(self, data: TrainingSet, prepared: Any) -> list[Job]:
        points = self._points(data)

        def problem(number: int) -> SmoothProblem:
            (lam, weights, start, title), training = points[number], data.trainings[number]
            y, d = self._labels_of(data, number), self._sample_weights(data, number)
            rows = data.problems.labeled[number]
            samples = data.kernels.samples if rows is None else data.kernels.samples[rows]
            loss, offset, of_new = self._loss(samples), self._offset_of(samples), self._offset_of(data.new.samples)
            width = int(loss.has_intercept)
            fixed, new = np.ones((len(y), width)), np.ones((len(data.new.samples), width)) if np.ndim(of_new) else None
            if self._covariates() is not None:
                step, first = residualizing(training.whole.fitted.steps), 1 - width  # the first column is constant
                assert step.row_basis is not None
                fixed, new = step.basis[:, first:], step.row_basis[training.n_train :, first:]
            given = y.reshape(len(y), -1), loss, lam, weights, fixed, data.n_kernels, 1.0 if d is None else d
            return SmoothProblem(*given, offset, title, start, self.tol, self.max_iter, data.facts, new, of_new)

        return data.jobs(problem)

    def _set_attributes(self, outcome: FitOutcome) -> None:
        if self._covariates() is not None:
            first, fits = int(not self._loss().has_intercept), []
            for part, of_part in zip(outcome.data.parts, self.statistics_, strict=True):
                effects = np.hstack([outcome.outcomes[k].extra["effects"] for k in part.members])
                fits.append(residualizing(of_part.steps).coefficients[:, first:] @ effects)
            set_effects(self, fits)
        elif outcome.score_function.bias.ndim > 1 and self._loss().has_intercept:  # offsets of rows
            effects = np.hstack([solution.extra["effects"][0] for solution in outcome.outcomes])
            columns = self.dual_coef_[self.dual_coef_.dims[1]]
            self.intercept_ = columns.copy(data=effects).rename("intercept")


@dataclass(frozen=True)
class _OwnRule:
    """Decisions and probabilities that follow from log odds η by the model itself; see `DecisionRule`.

    Of several classes, each against the rest, p_k = σ(η_k)/Σ_l σ(η_l).
    """

    kind: str

    def decision(self, scores: Float) -> Float:
        """Logarithms of probabilities up to a constant of each row, (rows, classes); otherwise the log odds."""
        return np.asarray(log_expit(scores)) if self.kind == "multiclass" else scores

    def probabilities(self, scores: Float) -> Float:
        """(rows, classes), of the second class of each task (rows, tasks)."""
        p = np.asarray(expit(scores))
        if self.kind == "multiclass":
            return np.asarray(p / p.sum(axis=1, keepdims=True))
        return p if self.kind == "multilabel" else np.hstack([expit(-scores), p])

    def arrays(self) -> dict[str, Any]:
        return {}  # nothing to save


@dataclass(eq=False, repr=False)
class MKLogistic(SmoothLearner, KernelClassifier):
    """ℓp-norm multiple kernel logistic regression.

    Learns weights β of the kernels together with a logistic regression on K(β) = Σ_j β_j K_j:

        min over β ≥ 0, ‖β‖_p ≤ 1, f, b of  Σ_i d_i log(1 + exp(−y_i(f(x_i) + b))) + (λ/2)‖f‖²,    y_i = ±1,

    where f lies in the space of functions whose kernel is K(β), and d are weights of samples and classes. The intercept
    b is not penalized. Each class against the rest is a problem, and so is each task. `predict_proba` is the model's
    own, P(y = 1) = 1/(1 + exp(−f − b)); of several classes those of the problems, divided by their sum.

    With the step `dmkl.residualize` (Z) in place of "center", b becomes b₀ + zᵀb, and predictions include it.

    Parameters
    ----------
    p
        Norm of the weights, from 1 (few kernels) to ∞ (all alike). For several problems also one for each.
    lam
        Ridge λ > 0, in units of the normalized kernels' eigenvalues: 1/C of a support vector machine. For several
        problems also one for each.
    sharing
        "none", weights of its own for each class, or "classes", one set of weights for all classes against the rest:
        the sum of their objectives is minimized. Tasks of a multilabel problem have their own weights.
    class_weight
        Weight of each class in d, as in `MKSVM`.
    steps
        As in `MKFDA`; ("center", "multiplicative") by default, so that λ is in units of the variance of the kernels.
    solver
        "memory", "factors" or "subspace" (see the notes), or "auto", the fastest of those that fit; `solver_` names the
        one that was used. ``dmkl.Subspace(basis="8GiB", finish="report")`` sets the options of the subspace: in memory,
        where that fits, "auto" finishes problems that are still open.
    tol, max_iter, kernel_groups, sigma, constraints, weights
        As in `MKFDA`.

    Attributes
    ----------
    weights_ : DataArray
        β, over kernel; over kernel and class or task for several problems.
    dual_coef_ : DataArray
        α with f = Σ_j β_j K_jα, over sample and class or task.
    intercept_ : DataArray
        b, over class or task; with covariates b₀.
    covariate_effects_ : DataArray
        The effects of covariates, in log odds per unit of the covariate, as in `MKRidge`.
    gap_ : float or DataArray
        The proven relative gap ``(P − D)/min(P, P₀ − P)`` of each problem: P (`objective_`) is the objective above at
        the returned numbers, D = Σdℓ + uᵀf − max over β of uᵀK(β)u/2λ with the gradient u of the losses is at most the
        optimum, and P₀ is P without kernels, so that P₀ − P is what weights can change.
    weights_error_, status_, solver_, n_passes_, n_iter_, history_, classes_, calibrated_on_
        As in `MKFDA`.

    Notes
    -----
    Yan et al., JMLR 13 (2012), Eqs. 23 to 35: multiple kernel learning for convex losses. The method is Newton's over
    the weights, as that of `MKFDA`; (f, b) for given weights take Newton's steps too (`dmkl.solvers.smooth`).

    In memory, kernels that fit the memory of a task, or their factors of few columns Z (m, D), are read in one pass;
    otherwise each weight vector takes two passes, which all fits share, and some 32 m² bytes in this process. From sums
    over the samples ("factors", `dmkl.solvers.smooth_factors`) each point takes some twenty short passes over Z, which
    folds and classes share. In a subspace (`dmkl.solvers.smooth_subspace`) all points and folds of a search share some
    ten passes, with a basis on disk: grids on thousands of samples take less time there than in memory.

    Examples
    --------
    >>> import dmkl
    >>> K = dmkl.open("kernels.zarr")
    >>> train, _, test = K.split(0)
    >>> model = dmkl.MKLogistic(p=1.5).fit(K[train, train])
    >>> bool((model.gap_ <= 1e-4).all())
    True
    >>> probabilities = model.predict_proba(K[test, train])
    """

    p: float | Sequence[float] = 2.0
    lam: float | Sequence[float] = 1.0
    _: KW_ONLY
    sharing: Sharing = "none"
    class_weight: ClassWeight = None

    traits = SmoothLearner.traits.but(rules={"sharing": one_of("none", "classes")})

    def _loss(self, samples: Array | None = None) -> JointLoss:
        return Logistic()

    def _problems(self, targets: Targets, tasks: Array | None) -> Problems:
        return Problems.binary(targets, tasks, "ovr", self.sharing)

    # --- probabilities -------------------------------------------------------------------------------------------

    @property
    def decider_(self) -> Any:  # type: ignore[override]
        """The decision rule, which follows from the model."""
        return _OwnRule(self.kind_)

    def _decides_by(self) -> Any:
        return "means"  # of which decisions are logarithms of probabilities too

    def _decision_rule(self, outcome: FitOutcome) -> Any:
        return _OwnRule(outcome.data.problems.targets.kind)

    def _set_decisions(self, outcome: FitOutcome) -> None:
        self.calibrated_on_ = "the training rows, by the likelihood of the model"

    def _calibrate_on(self, folds: Sequence[HeldOut], targets: Sequence[Targets], own: Targets) -> None:
        """Leave probabilities as they are."""

    def calibrate(self, K: Any = None, y: npt.ArrayLike | None = None, *, unknown: Any = None, **new: Any) -> NoReturn:
        """Raise InputError: probabilities are the model's own."""
        refuse("the probabilities of MKLogistic are its own; MKFDA and MKSVM are calibrated")


class SmoothRegressor(SmoothLearner, KernelRegressor, abstract=True):
    """A learner with a smooth loss of numbers."""

    def _check_data(self, K: KernelSet, targets: Targets) -> None:
        super()._check_data(K, targets)
        loss, _ = self._loss(K.samples), self._offset_of(K.samples)
        if not all(loss.accepts(_given_labels(targets, number)) for number in range(len(targets.rows))):
            refuse(f"y has other labels than {loss.labels}, for which the loss {type(loss).__name__} is; take another")

    def _labels_of(self, data: TrainingSet, number: int) -> Float:
        return _given_labels(data.problems.targets, number)

    def _has_residuals(self) -> bool:
        # Neither a mean of counts, nor a level, nor a hazard ratio is a sum of parts.
        loss = type(self._loss())
        return loss.prediction is JointLoss.prediction and loss.accepts is JointLoss.accepts

    def _regress(self, design: Float, labels: Float, new: Float, samples: Array) -> tuple[Float, Float]:
        if self._has_residuals():
            return super()._regress(design, labels, new, samples)
        predicted = []
        for column in labels.T:
            known = ~np.isnan(column)
            loss = self._loss(samples[known])
            y, none = column[known], np.zeros((1, known.sum(), known.sum()))
            effects = solve_mkglm(none, y, loss, covariates=design[known, 1:]).extra["effects"][:, 0]
            of_rows, eta = (of[:, 1 - loss.has_intercept :] @ effects for of in (design[known], new))
            levels = loss.thresholds(y, of_rows, np.ones(len(y))) if isinstance(loss, Ordinal) else None
            predicted.append(loss.prediction(eta) if levels is None else Ordinal.median(eta, *levels))
        return np.stack(predicted, axis=1), np.full(labels.shape, np.nan)


@dataclass(eq=False, repr=False)
class MKGLM(SmoothRegressor):
    """ℓp-norm multiple kernel learning with a smooth convex loss: counts, outliers, quantiles, margins.

    Learns weights β of the kernels together with a function on K(β) = Σ_j β_j K_j:

        min over β ≥ 0, ‖β‖_p ≤ 1, f, b of  Σ_i d_i ℓ(y_i, f(x_i) + b + o_i) + (λ/2)‖f‖²,

    where f lies in the space of functions whose kernel is K(β), d are weights of samples, and o the given offsets, 0
    without any. The intercept b is not penalized. With the step `dmkl.residualize` (Z), which takes the place of
    "center", b becomes b₀ + zᵀb, and predictions include it. Each of several targets is a problem with its own weights.

    Parameters
    ----------
    loss
        "huber" (numbers with outliers), "squared_epsilon_insensitive" (small errors do not count), "quantile" (the
        median, smoothed), "poisson" (counts; `predict` returns their mean exp(f + b)), "squared_hinge" (labels 1 and
        −1; `predict` returns f + b, whose sign decides), "ordinal" (numbers that are ordered levels; their thresholds
        θ are learnt, P(y ≥ level) = σ(f − θ_level); `predict` returns the median level), or an object with
        other options: `dmkl.Huber`, `dmkl.SquaredEpsilonInsensitive`, `dmkl.SmoothedQuantile`, or a `dmkl.Loss` of
        your own.
    p
        Norm of the weights, from 1 (few kernels) to ∞ (all alike). For several targets also one for each.
    lam
        Ridge λ > 0, in units of the loss times the normalized kernels' eigenvalues. With the loss ½(y − η)² it is that
        of `MKRidge`. For several targets also one for each.
    offset
        o, added to the predictor of each sample, f + b + o: for counts the logarithm of the exposure, such as years or
        persons, so that rates are compared. A mapping from the names of samples or a series, which may have more
        samples; or an array, for samples without names. New samples that are not in it have theirs in
        ``predict(K, offset=)``, by name, in their order, or one number, 0 for the rate per unit of exposure.
    steps, solver, tol, max_iter, kernel_groups, sigma, constraints, weights
        As in `MKLogistic`.

    Attributes
    ----------
    thresholds_ : DataArray
        θ of the loss "ordinal", over level, −∞ for the lowest.
    weights_, dual_coef_, intercept_, covariate_effects_, gap_, objective_, weights_error_, ...
        As in `MKLogistic`, over target. Effects of covariates are those on the linear predictor f + b.

    Notes
    -----
    As for `MKLogistic`. A saved model keeps only the text of a loss of your own: to predict, set `loss` again.

    Examples
    --------
    >>> import dmkl
    >>> K = dmkl.open("kernels.zarr")
    >>> train, _, test = K.split(0)
    >>> counts = K.labels.astype(float)
    >>> model = dmkl.MKGLM("poisson").fit(K[train, train], counts[train])
    >>> predicted = model.predict(K[test, train])
    """

    loss: str | JointLoss = "huber"
    p: float | Sequence[float] = 2.0
    lam: float | Sequence[float] = 1.0
    _: KW_ONLY
    offset: Mapping[str, float] | Sequence[float] | Covariates | None = None

    traits = SmoothRegressor.traits.but(
        of_rows=("covariates", "offset"), fitted={"thresholds_": labeled_array("level")}
    )

    def _loss(self, samples: Array | None = None) -> JointLoss:
        return as_loss(self.loss)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if isinstance(self._loss(), Cox):
            refuse("the loss 'cox' is that of MKCox, which has survival curves; take it (--model mkcox)")

    def _check_data(self, K: KernelSet, targets: Targets) -> None:
        super()._check_data(K, targets)
        if isinstance(self._loss(), Ordinal) and targets.dim is not None:
            refuse(f"the loss 'ordinal' takes one column of levels, got {len(targets.values)}; fit each by itself")

    # --- offsets -------------------------------------------------------------------------------------------------

    def _offset_of(self, samples: Array, new: Any = None) -> Float | float:
        if self.offset is None and new is None:
            return 0.0
        rule = "an offset is a number for every sample"
        more = "predict(offset=, --offset), where 0 is an exposure of one unit"
        values = np.array(facts_of(samples, self.offset, new, float, rule, more))
        if not (finite := np.isfinite(values)).all():
            found = f"that of {str(samples[~finite][0])!r} is {values[~finite][0]}"
            refuse(f"an offset is a finite number, and {found}; leave out samples without one")
        return values

    def _offsets(self, samples: Array, *, offset: Any = None, **more: Any) -> Float:
        rest, own = super()._offsets(samples, **more), self._offset_of(samples, offset)
        return np.asarray(rest + own[:, None]) if isinstance(own, np.ndarray) else rest

    def _parameter_texts(self, names: Sequence[str]) -> dict[str, str]:
        return super()._parameter_texts(names) | {"offset": tokenize(self.offset)}

    # --- ordered levels ----------------------------------------------------------------------------------------

    def _response(self, scores: Float, data: TrainingSet | None = None, outcomes: Sequence[Outcome] = ()) -> Float:
        loss = self._loss()
        if not isinstance(loss, Ordinal):
            return loss.prediction(scores)
        thresholds = self.thresholds_ if data is None else self._thresholds(loss, data, outcomes)
        return Ordinal.median(scores, thresholds.level.values, thresholds.values)

    def _thresholds(self, loss: Ordinal, data: TrainingSet, outcomes: Sequence[Outcome]) -> xr.DataArray:
        y, d = self._labels_of(data, 0), self._sample_weights(data, 0)
        eta = outcomes[0].extra["predictor"][:, 0]
        levels, theta = loss.thresholds(y, eta, np.ones(len(y)) if d is None else d)
        return xr.DataArray(theta, [("level", levels)], name="threshold")

    def _set_attributes(self, outcome: FitOutcome) -> None:
        super()._set_attributes(outcome)
        if isinstance(loss := self._loss(), Ordinal):
            self.thresholds_ = self._thresholds(loss, outcome.data, outcome.outcomes)

    @available_if(lambda self: isinstance(self._loss(), Ordinal))  # type: ignore[untyped-decorator]
    @one_blas_thread
    def predict_proba(self, K: Kernels | None = None, **new: Any) -> xr.DataArray:
        """Probabilities of the levels of row samples, (sample, level), of the loss "ordinal".

        Parameters are those of `KernelClassifier.decision_function`.
        """
        eta, levels = self._decision(K, response=False, **new), self.thresholds_.level
        at_least = expit(eta.values[:, None] - np.append(self.thresholds_.values, np.inf))
        coords = {"sample": eta["sample"], "level": levels}
        return describe(xr.DataArray(-np.diff(at_least, axis=1), coords, name="probability"))


def _given_labels(targets: Targets, number: int) -> Float:
    """The labels of a problem, not the sum of target and mean, whose rounding would separate equal ones."""
    column, rows = targets.labels.reshape(len(targets.labels), -1)[:, number], targets.rows[number]
    return np.asarray(column if rows is None else column[rows], dtype=np.float64)


@dataclass(eq=False, repr=False)
class MKCox(SmoothRegressor):
    """ℓp-norm multiple kernel Cox regression: survival, times of an event with right censoring.

    The hazard of a sample x is h(t, x) = h₀(t) exp(f(x)). Learns weights β of the kernels together with f:

        min over β ≥ 0, ‖β‖_p ≤ 1, f of  ℓ(f) + (λ/2)‖f‖²,

    where f lies in the space of functions whose kernel is K(β) = Σ_j β_j K_j, and ℓ is the negative logarithm of Cox's
    partial likelihood (`dmkl.Cox`), in which the baseline hazard h₀ cancels. With the step `dmkl.residualize` (Z),
    which takes the place of "center", f(x) + zᵀb takes the place of f(x), and b is not penalized. With `strata`, such
    as centers, each stratum has its own baseline hazard h₀, and ℓ is the sum of their partial likelihoods.

    Labels are two columns, the time and the event (1 where it was seen, 0 where the sample was censored), in either
    order, or `dmkl.signed_times`. Folds of a number have equal shares of events.

    Parameters
    ----------
    p
        Norm of the weights, from 1 (few kernels) to ∞ (all alike).
    lam
        Ridge λ > 0, in units of the loss times the normalized kernels' eigenvalues.
    ties
        Events at the same time: "efron", or "breslow", for which a whole weight of a sample is so many copies.
    strata
        The stratum of each sample, a name or a number: a mapping from the names of samples or a series, which may have
        more samples; or an array, for samples without names. Those of new samples that are not in it are given to
        `predict_survival`; `predict` needs none.
    steps, solver, tol, max_iter, kernel_groups, sigma, constraints, weights
        As in `MKLogistic`.

    Attributes
    ----------
    baseline_hazard_ : DataArray
        The cumulative baseline hazard H₀(t), over the times of events in training: Breslow's
        Σ_{s ≤ t} d_s/Σ_{at risk at s} d_i exp(f_i), d_s the weight of the events at s. With strata, over stratum too.
    covariate_effects_ : DataArray
        b, in log hazard ratios per unit of the covariate.
    weights_, dual_coef_, gap_, objective_, weights_error_, status_, ...
        As in `MKLogistic`; P₀ is the loss without kernels.

    Notes
    -----
    `predict` returns log hazard ratios f, the larger the earlier. `score`, searches and evaluations take Harrell's
    concordance index, of pairs of samples in equal and in different strata. Cox: Regression models and life-tables,
    JRSS B 34 (1972), with Breslow in the discussion. The method is that of `MKLogistic`; the second derivative of ℓ is
    a matrix, so that m samples take some 64 m² bytes.

    Examples
    --------
    >>> import dmkl
    >>> K = dmkl.open("kernels.zarr")
    >>> train, _, test = K.split(0)
    >>> y = dmkl.signed_times(1 + K.labels, K.labels > 0)
    >>> model = dmkl.MKCox(p=1.5).fit(K[train, train], y[train])
    >>> ratios = model.predict(K[test, train])
    >>> curves = model.predict_survival(K[test, train], times=[1, 2, 3])
    """

    p: float | Sequence[float] = 2.0
    lam: float | Sequence[float] = 1.0
    _: KW_ONLY
    ties: Literal["efron", "breslow"] = "efron"
    strata: Mapping[str, Any] | Sequence[Any] | None = None

    traits = SmoothRegressor.traits.but(
        weights_are_copies=False,  # of ties after Efron
        scorer="concordance_index",
        fitted={"baseline_hazard_": labeled_array(needed=True)},  # over time, or stratum and time
    )

    def _loss(self, samples: Array | None = None) -> JointLoss:
        return Cox(self.ties, None if samples is None else self._stratum_of(samples))

    def _stratum_of(self, samples: Array, new: Any = None) -> Array | None:
        """The names of the strata of samples, (m,), of which `new` are given for some or all; None without strata."""
        if self.strata is None:
            if new is not None:
                refuse("this MKCox has no strata; leave those of new samples out, or fit it with strata=")
            return None
        rule, more = "strata are a name or a number for every sample", "predict_survival(strata=, --strata)"
        strata = np.array(facts_of(samples, self.strata, new, lambda value: value, rule, more), dtype=object)
        if not (known := is_known(strata)).all():
            refuse(f"{rule}, and that of {str(samples[~known][0])!r} is unknown; leave out samples without one")
        return strata.astype(str)

    def _parameter_texts(self, names: Sequence[str]) -> dict[str, str]:
        return super()._parameter_texts(names) | {"strata": tokenize(self.strata)}

    def _targets(self, labels: npt.ArrayLike, n_samples: int, tasks: Array | None) -> Targets:
        return super()._targets(survival_labels(labels), n_samples, None)

    def _truth(self, *args: Any, **options: Any) -> Array:
        return survival_labels(super()._truth(*args, **options))

    def _strata(self, labels: Array) -> Array:
        return labels > 0

    def _set_attributes(self, outcome: FitOutcome) -> None:
        super()._set_attributes(outcome)
        risk, d = outcome.outcomes[0].extra["predictor"][:, 0], self._sample_weights(outcome.data, 0)
        labels, d = self._labels_of(outcome.data, 0), np.ones(len(risk)) if d is None else d
        strata, times = self._stratum_of(outcome.data.kernels.samples), np.unique(labels[labels > 0])
        members = {"": slice(None)} if strata is None else {name: strata == name for name in np.unique(strata)}
        values = np.stack([cumulative_hazard(labels[of], risk[of], d[of])(times) for of in members.values()])
        hazard = xr.DataArray(values, [("stratum", [*members]), ("time", times)], name="baseline_hazard")
        self.baseline_hazard_ = hazard.isel(stratum=0, drop=True) if strata is None else hazard

    @one_blas_thread
    def predict_survival(
        self, K: Kernels | None = None, times: npt.ArrayLike | None = None, *, strata: Any = None, **new: Any
    ) -> xr.DataArray:
        """P(T > t) = exp(−H₀(t) exp(f)) of the row samples, (sample, time), with H₀ of their stratum.

        Parameters
        ----------
        K, **new
            As in `predict`.
        times
            Times t, 0 or more; those of `baseline_hazard_` by default. After the last of these nothing is known of
            the hazard: curves stay constant.
        strata
            The strata of samples that are not in those of the learner: by name, in their order, or one for all.

        Raises
        ------
        InputError
            If a time is negative or not finite, a stratum is not one of training, or as by `predict`.
        """
        return self.survival_of(self._decision(K, **new), times, strata)

    def survival_of(self, risks: xr.DataArray, times: npt.ArrayLike | None = None, strata: Any = None) -> xr.DataArray:
        """P(T > t) that log hazard ratios of `predict`, (sample,), mean; see `predict_survival`."""
        self._check_fitted()
        hazard = self.baseline_hazard_
        at = hazard["time"].values if times is None else np.asarray(times, dtype=np.float64).reshape(-1)
        if not (np.isfinite(at).all() and (at >= 0).all()):
            refuse(f"times of survival must be finite numbers, 0 or more, got {plain_repr(times)}")
        curves, place = np.atleast_2d(hazard.values), np.zeros(len(risks), dtype=np.intp)
        if (own := self._stratum_of(risks["sample"].values, strata)) is not None:
            learnt = hazard["stratum"].values
            if len(strange := np.setdiff1d(own, learnt)):
                refuse(
                    f"the stratum {str(strange[0])!r} had no training samples, and so has no baseline hazard; strata "
                    f"are {', '.join(learnt[:10])}"
                )
            place = np.searchsorted(learnt, own)
        with np.errstate(divide="ignore"):
            logs = np.log([Steps(hazard["time"].values, curve, 0.0)(at) for curve in curves])[place]
        values = np.exp(-np.exp(np.minimum(risks.values[:, None] + logs, 700.0)))  # exp overflows above
        return describe(xr.DataArray(values, [risks["sample"], ("time", at)], name="survival"))

    def _score(self, truth: Array, scores: Array, sample_weight: Any) -> float:
        return float(concordance(truth.astype(np.float64), scores, weights=sample_weight))
