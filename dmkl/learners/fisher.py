"""ℓp-norm multiple kernel Fisher discriminant analysis, and its baselines: sum, product and single best kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass, replace
from itertools import chain
from operator import itemgetter
from typing import Any, cast

import numpy as np
import xarray as xr
from sklearn.base import clone

from dmkl import settings
from dmkl.arrays import Array, Float
from dmkl.errors import CovariateWarning, first_names, refuse, warn
from dmkl.kernelset import Kernels, KernelSet
from dmkl.learners.checks import RULES, Constraints, Given, KernelGroups, Prices, one_of
from dmkl.learners.decisions import (
    INTERPOLATED,
    LEFT_OUT,
    Decision,
    DecisionRule,
    Priors,
    class_index,
    predicted_labels,
)
from dmkl.learners.learner import KernelClassifier, KernelLearner, label_accuracy
from dmkl.learners.plan import (
    ClassWeight,
    Fit,
    FitOutcome,
    Problems,
    Sharing,
    TrainingSet,
    fits_of_folds,
    held_out_among,
    total_sample_weights,
)
from dmkl.learners.traits import TEXT, TEXTS, json_value, labeled_array
from dmkl.numerics.discriminant import excess, is_determined, leave_one_out, null_leverages
from dmkl.numerics.fisher import Targets
from dmkl.passes.blas import one_blas_thread
from dmkl.passes.view import Lens, has_thin_factors
from dmkl.solvers.fisher.problem import (
    AUTO,
    CG,
    ConfiguredSolver,
    Direct,
    Dual,
    FisherOptions,
    FisherProblem,
    SolverChoice,
    Subspace,
)
from dmkl.solvers.fisher.registry import FACTORS, SOLVERS, FisherMethod, check_solver, least_lam, name_of
from dmkl.solvers.jobs import Job, Training
from dmkl.variables import describe

_TOGETHER = 2**22  # Bytes of scores from which rules are learnt together: arrays of this size fit in the cache.
_THREADS = 2
"""Number of threads that learn rules; more threads gain nothing, since Python works between the array operations."""


@dataclass(eq=False, repr=False)
class LeastSquares(KernelLearner, abstract=True):
    """Fisher discriminants and ridge regression: the problem S(α, β) of `dmkl.numerics.fisher` with other targets."""

    _: KW_ONLY
    steps: str | Sequence[str] = ("center", "trace")
    solver: SolverChoice = "auto"
    tol: float = 1e-4
    max_iter: int = 200

    traits = KernelLearner.traits.but(
        takes_sample_weight=True,
        weight_set=True,
        rules=RULES,
    )

    @classmethod
    def _upgrade_parameters(cls, parameters: dict[str, Any]) -> dict[str, Any]:
        options = {name: parameters[name] for name in _MOVED & parameters.keys() - set(cls._get_param_names())}
        if not options:
            return parameters
        solver = parameters.get("solver", AUTO)
        if options.get("mu") is not None:
            solver = Dual(options["mu"])
        elif solver in (AUTO, "subspace") and (options.get("basis"), options.get("finish", "auto")) != (None, "auto"):
            solver = Subspace(options.get("basis"), options.get("finish", "auto"))
        elif solver in (AUTO, "direct", "cg") and options.get("master", "newton") != "newton":
            solver = (CG if solver == "cg" else Direct)(options["master"])
        kept = {name: value for name, value in parameters.items() if name not in options}
        return kept | {"solver": solver}

    def _options(self) -> FisherOptions:
        options = self.solver.options() if isinstance(self.solver, ConfiguredSolver) else {}
        by_largest = getattr(self, "decision", None) == "largest"
        return FisherOptions(
            self.tol, self.max_iter, leave_one_out=self.traits.leaves_one_out, only_for_fits=by_largest, **options
        )

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_solver(name_of(self.solver), self._options(), self._exponents(), self._weight_rules().beyond)

    def _of_plain_sum(self, grid: Mapping[str, tuple[Any, ...]]) -> tuple[KernelLearner, dict[str, Any]] | None:
        plain = super()._of_plain_sum(grid)
        if plain is not None:
            plain[0].set_params(solver=self.solver if self._options().mu is None else "dual")
        return plain

    def _parameter_texts(self, names: Sequence[str]) -> dict[str, str]:
        # Options that decide how long a search goes on, not its result, are left out.
        options = self._options()
        solver = {"solver": repr(name_of(self.solver)), "master": repr(options.master), "mu": repr(options.mu)}
        return super()._parameter_texts(names) | solver

    def _weighted(self, targets: Targets, sample_weight: Float | None = None) -> Targets:
        # Least squares of D^{1/2}(H − f) is that of D^{1/2}KD^{1/2} and D^{1/2}H.
        weights = total_sample_weights(targets, sample_weight, self.class_weight) if targets.weights is None else None
        if weights is None:
            return targets
        return targets.weighted([d if rows is None else d[rows] for d, rows in zip(weights, targets.rows, strict=True)])

    def _least_lam(self, lens: Lens) -> float:
        # The solver for factors rounds no kernel: it reads the features as they are.
        return 0.0 if self._by_factors(lens) else least_lam(lens)

    def _by_factors(self, lens: Lens) -> bool:
        """Whether the kernels are solved by the solver for factors, if it accepts them."""
        return name_of(self.solver) in (AUTO, FACTORS.name) and has_thin_factors(lens.view)

    def _needs_statistics(self, lens: Lens) -> bool:
        return not self._by_factors(lens)

    def _method(self) -> FisherMethod:
        return FisherMethod(name_of(self.solver), self._options())

    def _jobs(self, data: TrainingSet, prepared: Any) -> list[Job]:
        points = self._points(data)

        def problem_of(k: int) -> FisherProblem:
            (lam, weights, start, title), (h, offset) = points[k], self._target(data, k)
            return FisherProblem(h, lam, weights, title, start, offset)

        return data.jobs(problem_of)

    def _target(self, data: TrainingSet, number: int) -> tuple[Float, Float | float]:
        """H of a problem, and the part of predictions for the held-out rows that is not the kernels'."""
        return data.problems.h[number], 0.0


PLAIN_SUM = {"p": np.inf, "kernel_groups": None, "sigma": 1.0, "constraints": None, "weights": None}
"""The plain sum of all kernels, of learners whose set of weights the user chooses."""
_MOVED = frozenset({"basis", "finish", "master", "mu"})
"""Parameters of saved models of earlier versions that are options of solvers now."""


@dataclass(eq=False, repr=False)
class FisherClassifier(LeastSquares, KernelClassifier, abstract=True):
    """Fisher discriminant analysis on a weighted sum of kernels, the weights learnt in an ℓp ball."""

    _: KW_ONLY
    priors: Priors = None
    decision: Decision | None = None
    class_weight: ClassWeight = None

    traits = LeastSquares.traits.but(leaves_one_out=True, rules=KernelClassifier.traits.rules)
    sharing = "classes"

    def _check_data(self, K: KernelSet, targets: Targets) -> None:
        super()._check_data(K, targets)
        self._priors(targets)

    def _problems(self, targets: Targets, tasks: Array | None) -> Problems:
        return Problems.of_classes(targets, tasks, cast(Sharing, self.sharing))

    def _units(self, targets: Targets) -> list[Float]:
        # Scores Σ_j β_j K_j α = 2λf become g = P(k | x) − π_k = s·f with s of `excess`.
        if self.sharing == "none" and targets.kind == "multiclass":
            return [excess(targets.sizes[0]) / (2.0 * np.array(self._of_problems("lam", len(targets.classes))))]
        ridges = self._of_problems("lam", len(targets.sizes))
        return [excess(sizes) / (2.0 * lam) for sizes, lam in zip(targets.sizes, ridges, strict=True)]

    @one_blas_thread
    def transform(self, K: Kernels | None = None, **new: Any) -> xr.DataArray:
        """Discriminant coordinates of the row samples, (sample, discriminant): classes − 1, or one for each task.

        The covariance within classes is the identity in them, and the first separates the classes most; the mean of the
        class means, weighted by prior probabilities, is zero. Parameters are those of `decision_function`.
        """
        scores = self.decision_function(K, **new)
        coordinates = self.decider_.coordinates(scores.values.reshape(len(scores), -1))
        coords = {"sample": scores.sample.values}
        return describe(xr.DataArray(coordinates, coords, ("sample", "discriminant"), "coordinate"))

    def _decision_rule(self, outcome: FitOutcome) -> DecisionRule:
        names = list(dict.fromkeys(chain.from_iterable(map(_determined_samples, outcome.data.trainings))))
        if names and any(solution.inverse is not None for solution in outcome.outcomes):
            warn(
                f"the covariates determine the training samples {first_names(names)}: their scores without themselves "
                "say nothing, and decisions and probabilities are learnt without them. Look for codes of missing "
                "values and for categories of one sample",
                CovariateWarning,
            )
        return _rule([outcome], itemgetter(0))

    def _comparable_columns(self, scores: Array) -> Float:
        # Scores are 2λf: where each class has a λ of its own, f is compared.
        return scores / np.asarray(self.lam) if np.ndim(self.lam) and scores.ndim == 2 else scores

    def _decide(self, outcomes: Sequence[FitOutcome]) -> list[Float]:
        # Each fit by the rule of its training rows, as in `predict`.
        if not len(outcomes[0].scores):
            return [outcome.decision for outcome in outcomes]
        size = sum(h.nbytes for h in outcomes[0].data.problems.targets.problems)
        together = max(1, _TOGETHER // size)
        groups = [outcomes[start : start + together] for start in range(0, len(outcomes), together)]
        # Exponentials and products of many scores, during which other threads run.
        with ThreadPoolExecutor(min(_THREADS, settings.available_cores(), len(groups))) as pool:
            return [decision for group in pool.map(_decision_values, groups) for decision in group]


# --- the decision rule ---------------------------------------------------------------------------------------------


def _decision_values(outcomes: Sequence[FitOutcome]) -> list[Float]:
    learners = [cast(FisherClassifier, outcome.data.fit.learner) for outcome in outcomes]
    decided = [each._comparable_columns(outcome.decision) for each, outcome in zip(learners, outcomes, strict=True)]
    by_means = [k for k, learner in enumerate(learners) if learner._decides_by() == "means"]
    if by_means:
        chosen = [outcomes[k] for k in by_means]
        decisions = _rule(chosen, np.stack).decision(np.stack([outcome.scores for outcome in chosen]))
        for k, decision in zip(by_means, decisions, strict=True):
            decided[k] = decision.reshape(decided[k].shape)
    return decided


def _rule(fits: Sequence[FitOutcome], join: Callable[[Sequence[Float]], Float]) -> DecisionRule:
    """The decision rule of fits on the same training rows; `join` adds the axis of fits if there are several."""

    def of_problems(values: Sequence[Sequence[Float]]) -> list[Float]:
        return [join(of_fits) for of_fits in zip(*values, strict=True)]

    targets = [fit.data.problems.targets for fit in fits]
    pairs = [(cast(FisherClassifier, fit.data.fit.learner), target) for fit, target in zip(fits, targets, strict=True)]
    units = of_problems([learner._units(target) for learner, target in pairs])
    priors = of_problems([learner._priors(target) for learner, target in pairs])
    weights: list[Float | None] = [None] * len(priors)
    if any(target.weights is not None for target in targets):
        weights = [*of_problems([target.weights or [np.ones(len(h)) for h in target.problems] for target in targets])]
    kind, classes, labels = targets[0].kind, targets[0].classes, targets[0].labels
    index = [numbers[numbers >= 0] for numbers in class_index(kind, classes, labels)]
    solutions = [solution for fit in fits for solution in fit.outcomes]
    learnt_on = ""
    if all(solution.inverse is not None for solution in solutions):
        learnt_on = INTERPOLATED if any(solution.interpolated for solution in solutions) else LEFT_OUT
    scores = of_problems([_training_scores(fit) for fit in fits])
    for k, (part, numbers) in enumerate(zip(scores, index, strict=True)):
        # Rows that covariates determine are left out; where no row of a class would be left, they say nothing: zero.
        kept = np.isfinite(part).all(axis=(*range(part.ndim - 2), -1))
        kept |= ~np.isin(numbers, numbers[kept])
        scores[k], index[k] = np.nan_to_num(part[..., kept, :], copy=False), numbers[kept]
        if (d := weights[k]) is not None:
            weights[k] = d[..., kept]
    rule = DecisionRule.learn(kind, scores, index, priors, learnt_on, weights, units, ordered=len(fits) == 1)
    return rule.scaled(units)


def _determined_samples(training: Training) -> list[str]:
    """Names of the samples that covariates determine; see `dmkl.numerics.discriminant.is_determined`."""
    vectors, view = training.square.null_vectors(), training.square.view
    if vectors is None or vectors.shape[1] < 2:
        return []
    columns = view.final_positions()[1][is_determined(null_leverages(vectors))]
    return [str(view.source.samples[at]) for at in columns]


def _training_scores(fit: FitOutcome) -> list[Float]:
    """The estimates g = P(k | x) − π_k of the training rows of each problem, those whose class is known.

    By the regression on all other rows if the diagonal of A⁻¹ is known for every problem; otherwise by the regression
    on all rows, s(H − ½D⁻¹α), whose residuals are smaller than those of new rows.
    """
    targets, n_classes = fit.data.problems.targets, len(fit.data.problems.targets.classes)
    left_out = all(outcome.inverse is not None for outcome in fit.outcomes)
    estimates = []
    for k, index in enumerate(class_index(targets.kind, targets.classes, targets.labels)):
        h, training = targets.problems[k], fit.data.trainings[k]
        # Classes with weights of their own are problems with one column each.
        outcomes = fit.outcomes if fit.data.problems.dim == "class" else fit.outcomes[k : k + 1]
        alpha = np.concatenate([np.asarray(outcome.dual) for outcome in outcomes], axis=1)
        d = None if targets.weights is None else targets.weights[k]
        if len(h) < len(alpha):
            alpha, index = alpha[index >= 0], index[index >= 0]
        if left_out:
            inverse = np.stack([np.asarray(outcome.inverse) for outcome in outcomes], axis=1)
            diagonals, of_ones = (inverse, None) if inverse.ndim == 2 else (inverse[..., 0], inverse[..., 1])
            scores = leave_one_out(alpha, diagonals, index, n_classes, training.square.null_vectors(), d, of_ones)
        else:
            scores = excess(targets.sizes[k]) * (h - 0.5 * (alpha if d is None else alpha / d[:, None]))
        estimates.append(scores.astype(alpha.dtype, copy=False))
    return estimates


@dataclass(eq=False, repr=False)
class MKFDA(FisherClassifier):
    """ℓp-norm multiple kernel Fisher discriminant analysis.

    Learns weights β of the kernels together with the discriminant on K(β) = Σ_j β_j K_j:

        max over β ≥ 0, ‖β‖_p ≤ 1 of  min over α of  Σ_k [ ¼ α_kᵀα_k + (1/4λ) α_kᵀK(β)α_k − h_kᵀα_k ].

    Parameters
    ----------
    p
        Norm of the weights, from 1 (few kernels) to ∞ (all alike; from 1e6 on every weight is one). For a multilabel
        problem also one for each task.
    lam
        Ridge λ > 0, in units of the normalized kernels' eigenvalues. For a multilabel problem also one for each task.
    sharing
        "classes", one set of weights for all classes, as in the papers, or "none", weights of its own for each of three
        classes or more: column h_k of the targets is then a problem of its own. Two classes have one column.
    priors
        Prior probabilities of the classes in `predict` and `predict_proba`, as in scikit-learn's discriminants: their
        shares in training ("empirical", or None), "uniform", or numbers that sum to one, either one for each of the
        sorted classes or a mapping from classes to numbers. Weights and scores do not depend on them.
    decision
        How scores become labels, in `predict` and where folds are scored. "means", which discriminants do by default:
        by the nearest class mean of out-of-sample scores together with the largest score, and by the prior
        probabilities (see Notes). "largest", which machines do by default: the class with the largest one-against-rest
        score (the most votes of "ovo"), of two classes and of tasks by the sign; prior probabilities have no say.
        Machines learn "means" from scores that five folds of the training rows leave out, fewer if a class has fewer
        rows: six fits in place of one, with the shares of the classes as prior probabilities.
    class_weight
        Weight of each class, multiplied by the `sample_weight` of `fit`: "balanced" (m divided by the number of classes
        and by the samples of the class, as in scikit-learn), a weight for each class by its label, or None. With
        weights d the problem and its certificate are those of D^{1/2}K(β)D^{1/2} and D^{1/2}H, and shares of classes
        are shares of the weights. Each task of a multilabel problem is balanced separately.
    steps
        Preprocessing of the kernels, in this order, by statistics of the training samples: "center" (in feature space;
        the method assumes it), "trace" (unit trace), "cosine" (unit norm of each sample), "multiplicative" (unit
        variance). The papers have two chains: ("center", "trace"), for λ of 1e-8 to 10 (CVPR Section 4), and
        ("cosine", "center"), for λ of 4⁻⁵ to 4⁴ (JMLR Section 3). () leaves the kernels unchanged.
    solver
        Solver, one of those below, or "auto"; `solver_` names the one that was used. To set options of a solver, give
        an object, `dmkl.Direct`, `dmkl.CG`, `dmkl.Subspace` or `dmkl.Dual`, as in
        ``solver=dmkl.Subspace(basis="8GiB", finish="report")``. Auto takes "stacked" for 32 targets and more
        with several points each whose kernels fit in memory (from 8 on where five times their columns are as many as
        the training samples), "anchored" for as many with one point, "subspace" where three or more points of a search
        share a training set, "direct" where the combined kernel fits the memory budget, and otherwise "dual"
        ("interleaved" for p = 1) for one problem whose λ is 1/1,000 of tr K(β) or more, "subspace" for several problems
        and for smaller λ.

        {solvers}
    tol
        Relative gap to prove.
    max_iter
        Maximum number of weight vectors tried; for the solvers "subspace", "interleaved" and "dual" of passes. Beyond
        it the gap that is proven is returned with a warning.
    kernel_groups
        Groups of kernels, such as several bandwidths of one source: names of kernels, or a pattern of names ("rna_*"),
        by group; or the group of each kernel, in their order. The norm is then Σ_g ‖β_g‖_p ≤ 1, over groups g: few
        groups have weight, and p says how it is spread within them. A kernel of no group is one of its own.
    sigma
        Prices σ > 0 of the kernels: one for each, or by name for prices that are not 1. The norm is that of σ∘β, so
        that an expensive kernel must improve the objective more.
    constraints
        Prior knowledge about the weights: a function that returns constraints of cvxpy, such as
        ``lambda d: [d["rna"] >= d["noise"], cp.sum(d) <= 3]``; d is a vector that is indexed by names of kernels, lists
        of names, or positions. Constraints that bound all weights replace the norm, whatever p is; other constraints
        hold together with the norm. A saved model keeps only the text of the function: it predicts, but a fit needs
        the function again.
    weights
        β, if the weights are given and not learnt: a number for each kernel, or a mapping or DataArray by name, such as
        `dmkl.aligned_weights` returns. `p` has no effect then. None: the weights are learnt.

    Attributes
    ----------
    weights_ : DataArray
        β, over kernel; over kernel and task for a multilabel problem.
    dual_coef_ : DataArray
        α, over sample and class (one column for two classes) or task; with weights, that of (½D⁻¹ + K(β)/2λ)α = H.
    gap_ : float or DataArray
        The proven relative gap, ``(F(α) − S(α, β) + ‖R‖²)/min(|S|, ‖H‖² − |S|)``, computed from the returned pair. It
        is relative to what weights can change: for large λ, S is almost −‖H‖² for any weights. The subspace solver
        proves a sharper bound than ‖R‖² where it has combined kernels. With `dmkl.Dual(mu=...)` it holds for the
        Tikhonov form and for the bound ‖β‖_p ≤ ‖``weights_``‖_p alike.
    weights_error_ : float or DataArray
        Estimated error of the weights, relative to the largest: the largest entry of Newton's next step. The solvers
        "direct" and "cg", and "factors" by one of them, go on until it is at most 1e-3, or until other weights are as
        good. Other solvers do not set it: they know the curvature in their directions alone, where Newton's step may be
        short while weights are far off, by 1e-3 to 1e-2 at the default tolerance.
    objective_ : float or DataArray
        S(α, β); with `dmkl.Dual(mu=...)`, without the penalty.
    status_ : str
        How the solver ended, with advice.
    solver_ : str
        The solver's name.
    n_passes_ : float
        Passes over the stored kernels; a partial pass counts as the share of the tiles that it read.
    n_iter_ : int
        Weight vectors tried.
    history_ : Dataset
        Objective, upper bound, gap, weights … of every step; for the solvers "interleaved" and "dual" also the
        `passes` so far; for "direct" and "cg" also `violation`, ``|1 − S/θ|`` of JMLR Algorithms 1 and 2.
    classes_ : ndarray
        The labels, sorted.
    priors_ : ndarray
        The prior probabilities, a row for each problem.
    calibrated_on_ : str or None
        The rows that probabilities were calibrated on; None, and no `predict_proba`, without out-of-sample scores.
    train_samples_, kernel_names_ : ndarray, tuple
        Names of the training samples and of the kernels, which prediction checks.

    Notes
    -----
    `predict` adds the log prior probabilities, Fisher's rule (the nearest class mean in the metric of the covariance
    within classes) and the regression scores, with weights of the least log loss that are never negative.
    `decision_function` returns the regression scores, proportional to estimates of P(k | x) − π_k, and `transform` the
    discriminant coordinates.

    Means, covariance and weights are those of leave-one-out scores of the training rows (`calibrated_on_`), which also
    calibrate the probabilities, if the combined kernel fits the memory budget. A search learns the rule of each point
    from the same scores as its fit, as long as m³ summed over points and folds is at most 2³⁶. In larger grids the
    diagonal of A⁻¹ is interpolated between points; the chosen point and the best others are scored exactly before the
    choice, and `approximate` of `SearchResult.scores` marks the rest. Rules of many tasks that one fit learns together
    (Σ m³ > 2³⁶) may be approximate too: `calibrated_on_` says so. Kernels are centered, and targets encoded, without
    the row that is left out; the weights and the scale of the kernels depend on it. Call `calibrate` with rows of
    groups that were left out if samples come in groups, and after the solvers "cg", "dual" and "interleaved", which
    learn the rule from scores of the training rows, optimistic at small λ.

    Yan, Kittler, Mikolajczyk, Tahir: Non-sparse multiple kernel Fisher discriminant analysis. JMLR 13 (2012), Eqs. 10
    to 22, Algorithms 1 and 2; Section 2.3 for the interleaved and the dual solver, Eqs. 25 and 26 for `dmkl.Dual`.

    Examples
    --------
    >>> import dmkl
    >>> K = dmkl.open("kernels.zarr")
    >>> train, _, test = K.split(0)
    >>> model = dmkl.MKFDA(p=1.5, lam=1e-2).fit(K[train, train])
    >>> model.gap_ <= 1e-4
    True
    >>> model.score(K[test, train]) > 0.9
    True
    """

    p: float | Sequence[float] = 2.0
    lam: float | Sequence[float] = 1e-2
    _: KW_ONLY
    kernel_groups: KernelGroups = None
    sigma: Prices = 1.0
    constraints: Constraints = None
    weights: Given = None
    sharing: Sharing = "classes"

    traits = FisherClassifier.traits.but(plain_sum=PLAIN_SUM, rules={"sharing": one_of("classes", "none")})


assert MKFDA.__doc__ is not None
MKFDA.__doc__ = MKFDA.__doc__.replace(
    "{solvers}", "\n        ".join(f'- "{name}": {solver.title}' for name, solver in SOLVERS.items())
)


@dataclass(eq=False, repr=False)
class Uniform(FisherClassifier):
    """Fisher discriminant on the unweighted sum of all kernels.

    Parameters and attributes are those of `MKFDA` with p = ∞, where the optimal weights are all one.

    Parameters
    ----------
    lam, priors, decision, class_weight, steps, solver, tol, max_iter
        As in `MKFDA`.
    """

    lam: float | Sequence[float] = 1e-2


@dataclass(eq=False, repr=False)
class SingleBest(FisherClassifier):
    """Fisher discriminant on the kernel with the best CV accuracy.

    Parameters
    ----------
    lam
        Ridge λ > 0.
    priors, decision, class_weight, steps, solver, tol, max_iter
        As in `MKFDA`.
    cv
        Number of folds (stratified where the labels are classes), or a scikit-learn splitter.

    Attributes
    ----------
    best_ : str
        Name of the chosen kernel; the first if several tie.
    scores_ : DataArray
        Accuracy of every kernel on every fold.
    weights_, dual_coef_, gap_, ...
        As in `MKFDA`; only the chosen kernel has weight, one. `n_passes_` includes the passes of the choice.
    """

    traits = FisherClassifier.traits.but(
        takes_unknown_labels=False,
        takes_subsets=False,
        fitted={"best_": json_value(TEXT), "scores_": labeled_array("kernel", "fold", root="accuracy")},
    )
    p = 1.0

    lam: float = 1e-2
    _: KW_ONLY
    cv: Any = 3

    def _nested(self, fit: Fit, K: KernelSet) -> Mapping[tuple[int, int], Fit]:
        learner = MKFDA(1.0, **{name: getattr(self, name) for name in Uniform().get_params()})
        return {
            (j, f): replace(row, learner=learner, kernels=np.array([j]))
            for f, row in enumerate(fits_of_folds(fit, self.cv))
            for j in range(len(K))
        }

    def _apply_nested(self, fit: Fit, outcomes: Mapping[tuple[int, int], FitOutcome]) -> Fit:
        labels = fit.targets.labels
        weights = np.ones(len(labels)) if fit.sample_weight is None else fit.sample_weight
        scores = np.empty(np.max([*outcomes], axis=0) + 1)
        for f in range(scores.shape[1]):
            of_fold = [outcomes[j, f] for j in range(len(scores))]
            targets, test = of_fold[0].data.problems.targets, held_out_among(fit, of_fold[0].data.fit)
            for j, decision in enumerate(self._decide(of_fold)):
                predicted = predicted_labels(targets.classes, decision)
                scores[j, f] = label_accuracy(labels[test], predicted, weights[test])
        best = int(np.argmax(scores.mean(axis=1)))
        return replace(fit, kernels=np.array([best]), nested=scores)

    def _set_attributes(self, outcome: FitOutcome) -> None:
        scores = outcome.data.fit.nested
        assert outcome.data.fit.kernels is not None
        (best,) = outcome.data.fit.kernels
        self.best_ = self.kernel_names_[best]
        coords = [("kernel", np.array(self.kernel_names_, dtype=str)), ("fold", np.arange(scores.shape[1]))]
        self.scores_ = xr.DataArray(scores, coords, name="accuracy")


class Product(Uniform):
    """Fisher discriminant on the geometric mean of all kernels.

    The mean is entrywise, (∏_j K_j)^(1/n). The kernels must have no negative entries (RBF, χ², histogram intersection
    …), and must not be centered or normalized before. The product is computed tile by tile in each pass, not stored.

    Parameters
    ----------
    lam, priors, decision, class_weight, steps, solver, tol, max_iter
        As in `MKFDA`; the steps are applied to the product.

    Attributes
    ----------
    factors_ : tuple of str
        Names of the factors.
    weights_, dual_coef_, gap_, ...
        As in `MKFDA`, for a single kernel named "product".
    """

    traits = Uniform.traits.but(takes_subsets=False, fitted={"factors_": json_value(TEXTS)})

    def _set_attributes(self, outcome: FitOutcome) -> None:
        self.factors_ = outcome.data.given

    def _source(self, K: KernelSet) -> KernelSet:
        factors = getattr(self, "factors_", None)
        if factors is not None and K.names == ("product",):
            return K
        missing = [name for name in factors or () if name not in K.names]
        if missing:
            refuse(f"the product was learnt with kernel {missing[0]!r}, which this set does not have")
        return K.select(factors or K.names).product()

    def _kernels_needed(self) -> list[str]:
        return list(self.factors_)


def Weighted(weights: Given, learner: KernelLearner | None = None) -> KernelLearner:
    """A learner at given weights of the kernels: a copy of `learner` with ``weights=weights``.

    Parameters
    ----------
    weights
        β, a number for each kernel, or a mapping or DataArray by name, such as `dmkl.aligned_weights` returns.
    learner
        An `MKFDA` (the default), `MKRidge` or `MKSVM`.

    Examples
    --------
    >>> import dmkl
    >>> K = dmkl.open("kernels.zarr")
    >>> train, _, test = K.split(0)
    >>> weights = dmkl.aligned_weights(K[train, train])
    >>> model = dmkl.Weighted(weights, dmkl.MKSVM(C=4.0)).fit(K[train, train])
    >>> bool((model.weights_ == weights).all())
    True
    """
    copy: KernelLearner = clone(MKFDA() if learner is None else learner)
    if "weights" not in copy.get_params(deep=False):
        refuse(f"{type(copy).__name__} has no parameter weights; take MKFDA, MKRidge or MKSVM")
    copy.set_params(weights=weights)
    return copy
