"""Multiple kernel learning with support vector machines: ℓp norms, prices and constraints, EasyMKL, LP-β and LP-B."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr
from scipy.optimize import linprog
from scipy.sparse import csr_array, hstack

from dmkl.arrays import Array, Float, Index
from dmkl.errors import refuse
from dmkl.kernelset import KernelSet
from dmkl.learners.checks import (
    RULES,
    Constraints,
    Given,
    WeightRules,
    check_numbers,
    check_positive,
    check_share,
    one_for_each,
    one_of,
)
from dmkl.learners.decisions import Decision, predicted_labels
from dmkl.learners.functions import FunctionOfEachKernel
from dmkl.learners.learner import KernelClassifier, KernelLearner, label_accuracy
from dmkl.learners.plan import (
    ClassWeight,
    Fit,
    FitOutcome,
    Multiclass,
    Problems,
    Sharing,
    TrainingSet,
    fits_of_folds,
    held_out_among,
)
from dmkl.learners.traits import labeled_array
from dmkl.numerics.fisher import Targets
from dmkl.solvers.in_memory import InMemory
from dmkl.solvers.interface import Outcome, Solver, Step, spread, worst
from dmkl.solvers.jobs import SideBySide, together
from dmkl.solvers.margin.gmkl import Method, PricedSet, gmkl
from dmkl.solvers.margin.mksvm import easy_mkl, mk_svm
from dmkl.solvers.weight_sets import GivenWeights

MACHINE_RULES = RULES | {
    "multiclass": one_of("ovr", "ovo"),
    "sharing": one_of("none", "classes"),
    "loss": one_of("hinge", "square"),
}


@dataclass(eq=False, repr=False)
class WeightedMachines(KernelClassifier, abstract=True):
    """Support vector machines whose samples and classes may have weights."""

    _: KW_ONLY
    class_weight: ClassWeight = None
    decision: Decision | None = None
    steps: str | Sequence[str] = ("center", "multiplicative")
    tol: float = 1e-3
    max_iter: int = 100

    traits = KernelClassifier.traits.but(takes_sample_weight=True, rules=MACHINE_RULES)

    def _method(self) -> SideBySide:
        return InMemory(factors=True)

    def _check_weights(self) -> None:
        loss = getattr(self, "loss", "hinge")
        if loss != "hinge":
            refuse(
                f"weights of samples and classes are for the hinge loss, and this is loss={loss!r}; take loss='hinge', "
                "leave sample_weight and class_weight out, or take MKFDA, whose least squares have weights"
            )


@dataclass(eq=False, repr=False)
class MKSVM(WeightedMachines):
    """ℓp-norm multiple kernel learning with the hinge loss.

    Learns weights β of the kernels together with a support vector machine on K(β) = Σ_j β_j K_j:

        min over β ≥ 0, ‖β‖_p ≤ 1 of  max over 0 ≤ α ≤ C, αᵀy = 0 of  Σα − ½ Σ_j β_j uᵀK_ju,   u = α∘y.

    Parameters
    ----------
    p
        Norm of the weights, from 1 (few kernels) to ∞ (all alike). For several problems also one for each.
    C
        SVM penalty C > 0 on margin violations. For several problems also one for each.
    multiclass
        More than two classes: "ovr", one against the rest, the largest score wins; "ovo", one against one, by votes.
        Each binary problem has its own weights, unless they are shared.
    sharing
        "none", weights of its own for each class, or "classes", one set of weights for all classes against the rest:
        min over β of the sum of their objectives. Tasks of a multilabel problem have their own weights.
    class_weight
        Weight of each class, which multiplies C: "balanced" (m divided by the number of classes and by the samples of
        the class, as in scikit-learn), a weight for each class by its label, or None. In every binary problem a sample
        has the weight of its own class; each task of a multilabel problem is balanced separately.
    decision
        As in `MKFDA`; the largest score decides by default.
    steps
        As in `MKFDA`; ("center", "multiplicative") by default, so that C is in units of the variance of the kernels.
    tol
        The relative gap to prove.
    max_iter
        Maximum number of weight vectors tried; beyond it the gap that is proven is returned with a warning.
    weights
        β, if the weights are given and not learnt, as in `MKFDA`.

    Attributes
    ----------
    weights_ : DataArray
        β, over kernel; over kernel and class, pair or task for several problems.
    dual_coef_ : DataArray
        u = α∘y, over sample and class, pair or task.
    intercept_ : DataArray
        The bias of each machine; the middle of the optimal ones where all support vectors are at their bounds.
    gap_ : float or DataArray
        The proven relative gap ``(P − D)/min(P, ½Σβ_jv_j)`` of each problem: P = ½Σβ_jv_j + C Σ max(0, 1 − y_if(x_i))
        and D = Σα − ½‖v‖_p*, v_j = uᵀK_ju, both computed from the returned numbers. It is relative to what weights can
        change: for small C, P is almost C times the number of samples for any weights.
    weights_error_ : float or DataArray
        Estimated error of the weights of a problem, relative to the largest: the largest entry of Newton's next step,
        at most 1e-3 unless other weights are as good. NaN where the last machine has no curvature.
    objective_, n_passes_, n_iter_, status_, history_, classes_
        As in `MKFDA`; the objective is Σα − ½ Σ_j β_jv_j, and all problems share the passes.

    Notes
    -----
    Sources: Yan et al., JMLR 13 (2012), Eq. 1; Kloft, Brefeld, Sonnenburg, Zien, JMLR 12 (2011); shared weights:
    Sonnenburg, Rätsch, Schäfer, Schölkopf, JMLR 7 (2006). p = 1 is SimpleMKL's problem. The weights are found
    by Newton steps over the norm ball (`dmkl.solvers.margin.mksvm`), which reach p = 1 too.

    If 8 (n + 4) m² bytes fit the memory of one task, all kernels of a training set are read in one pass, and problems
    are solved in memory (`dmkl.solvers.in_memory`). Otherwise each step takes passes, and a machine is trained
    on the combined kernel in the memory of one task, 32 m² bytes, or on the columns of a working set.

    Kernels kept as factors Z (m, D), with fewer columns in all than training samples, are not formed: if some 24 mD
    bytes fit the memory of one task, one pass reads Z after the steps, and interior points train the same machines in
    2 mD² operations a step (`dmkl.solvers.margin.svm`).
    """

    traits = WeightedMachines.traits.but(weight_set=True, plain_sum={"p": np.inf, "weights": None})

    p: float | Sequence[float] = 2.0
    C: float | Sequence[float] = 1.0
    _: KW_ONLY
    multiclass: Multiclass = "ovr"
    sharing: Sharing = "none"
    weights: Given = None

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.sharing == "classes" and self.multiclass != "ovr":
            refuse("sharing='classes' is for each class against the rest; take multiclass='ovr', or sharing='none'")

    def _problems(self, targets: Targets, tasks: Array | None) -> Problems:
        return Problems.binary(targets, tasks, self.multiclass, self.sharing)

    def _method(self) -> SideBySide:
        fixed = self.weights is not None or all(map(np.isinf, self._exponents()))
        return InMemory(factors=True, fixed_weights=fixed)

    def _problem(self, data: TrainingSet, number: int) -> Any:
        p = one_for_each("p", self._exponents(), len(data.problems))[number]
        weights = self._weight_rules().weights(p, data.training.names)
        if data.fit.kernels is not None:
            weights = weights.select(data.fit.kernels)
        problem = data.problems.h[number], self._prices(data, number), weights, data.n_kernels
        title = data.problems.title(number)
        return partial(mk_svm, *problem, title=title, tol=self.tol, max_iter=self.max_iter, facts=data.facts)


@dataclass(eq=False, repr=False)
class GMKL(WeightedMachines):
    """Generalized multiple kernel learning of Varma and Ray, with prices and constraints on the weights.

    Learns weights d of the kernels together with a support vector machine on K(d) = Σ_j d_j K_j:

        min over d ≥ 0, A d ≥ b of  σᵀd + max over 0 ≤ α ≤ C, αᵀy = 0 of  Σα − ½ Σ_j d_j uᵀK_ju,   u = α∘y.

    Parameters
    ----------
    C, class_weight, decision, steps, tol, max_iter
        As in `MKSVM`.
    sigma
        (kernels,) or one number: the price of a unit of weight, from prior knowledge. A kernel with a large price gets
        no weight.
    A, b
        (rows, kernels) and (rows,): linear constraints A d ≥ b, such as d_1 ≥ 2 d_2. None: only d ≥ 0.
    constraints
        A function that returns constraints of cvxpy by names of kernels, ``lambda d: [d["rna"] >= d["noise"]]``, as in
        `MKFDA`: any convex set of weights, which may be unbounded if prices are positive.
    multiclass
        "ovo" (1-vs-1): majority vote, ties broken by the larger sum of scores; "ovr" (1-vs-All): the largest score f,
        which is the distance from the hyperplane times ‖w_k‖. Each binary problem has its own weights.
    method
        "newton", or the paper's projected "gradient" with Armijo's rule, which needs many more passes.

    Attributes
    ----------
    weights_, dual_coef_, intercept_, gap_, objective_, ...
        As in `MKSVM`; `objective_` is the primal value.

    Notes
    -----
    Source: Varma and Ray, Learning the discriminative power-invariance trade-off, ICCV 2007. The lower bound that
    proves the gap is in `dmkl.solvers.margin.gmkl`. It also proves weights of zero, or near zero, if no kernel is
    worth its price; the scores are then close to the bias.

    As for `MKSVM`, kernels that fit the memory of a task are read in one pass.

    Examples
    --------
    >>> import dmkl
    >>> model = dmkl.GMKL(C=10.0, sigma=0.5, A=[[1.0, -2.0]], b=[0.0])  # the first weighs twice the second at least
    """

    C: float | Sequence[float] = 1.0
    sigma: float | Sequence[float] = 1.0
    A: npt.ArrayLike | None = None
    b: npt.ArrayLike | None = None
    multiclass: Multiclass = "ovr"
    _: KW_ONLY
    method: Method = "newton"
    constraints: Constraints = None

    traits = WeightedMachines.traits.but(rules={"method": one_of("newton", "gradient")})

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if (self.A is None) != (self.b is None):
            refuse("A and b define A d ≥ b together; give both or neither")
        WeightRules(constraints=self.constraints).check()

    def _parameter_texts(self, names: Sequence[str]) -> dict[str, str]:
        return super()._parameter_texts(names) | WeightRules(constraints=self.constraints).texts(names)

    def _check_data(self, K: KernelSet, targets: Targets) -> None:
        super()._check_data(K, targets)
        self._weight_set(K.names)

    def _weight_set(self, names: Sequence[str], kernels: Index | None = None) -> PricedSet:
        """Prices and constraints of the weights of the chosen kernels, from those of all kernels."""
        n = len(names)
        prices = check_numbers("sigma", self.sigma)
        sigma = np.full(n, prices[0]) if np.ndim(self.sigma) == 0 else np.array(prices)
        if sigma.shape != (n,):
            refuse(f"sigma has shape {sigma.shape}, expected one number, or a price for each of the {n} kernels")
        A = np.zeros((0, n)) if self.A is None else np.asarray(self.A, dtype=np.float64)
        b = np.zeros(0) if self.b is None else np.asarray(self.b, dtype=np.float64)
        chosen = slice(None) if kernels is None else kernels
        A = A.reshape(0, n) if A.size == 0 else A
        rows: tuple[str, ...] = ()
        cones = None
        if self.constraints is not None and A.shape[1:] == (n,):
            from dmkl.solvers.knowledge import rows_and_cones

            # A, b and texts of the rows A d ≥ b for linear constraints; cones for the others.
            more, demands, texts, cones = rows_and_cones(self.constraints, names)
            rows = (*(f"row {k}" for k in range(len(b))), *texts)
            A, b = np.concatenate([A, more]), np.concatenate([b, demands])
        if cones is not None and kernels is not None:
            cones = cones.select(kernels)
        A = A[:, chosen] if A.ndim == 2 else A
        return PricedSet(sigma[chosen], A, b, rows, cones)

    def _problem(self, data: TrainingSet, number: int) -> Any:
        weights, title = self._weight_set(data.training.names, data.fit.kernels), data.problems.title(number)
        problem = partial(gmkl, data.problems.h[number], self._prices(data, number), weights, title=title)
        return partial(problem, facts=data.facts, method=self.method, tol=self.tol, max_iter=self.max_iter)


@dataclass(eq=False, repr=False)
class EasyMKL(KernelClassifier):
    """EasyMKL of Aiolli and Donini: weights from the distance between the classes on the sum of all kernels.

    With γ ≥ 0 that sums to one over each class and v = γ∘y, γ minimizes (1 − λ) vᵀ(Σ_j K_j)v + λ vᵀv. The weights are
    η_j ∝ vᵀK_jv with ‖η‖_2 = 1, and the classifier solves the same problem on Σ_j η_jK_j. The weights are not optimal
    for this classifier: they take two problems, however many kernels there are.

    Parameters
    ----------
    lam
        λ between 0 (a hard margin) and 1 (the means of the classes), both excluded. For several problems also one for
        each. It is the paper's λ for kernels with a mean diagonal of one, which the default steps make.
    multiclass, decision
        As in `MKSVM`; each binary problem has its own weights.
    steps
        As in `MKFDA`; ("center", "multiplicative") by default: centered kernels with a mean diagonal of one. Weights
        grow with the scale of a kernel. After ("center", "trace") entries are of size 1/m for m samples, and λ acts as
        mλ/(1 − λ + mλ) does by default: 0.1 as 0.98 for 500 samples.
    tol
        The relative gap of the two distances to prove.

    Attributes
    ----------
    weights_ : DataArray
        η, over kernel; over kernel and class, pair or task for several problems.
    dual_coef_ : DataArray
        v, over sample and class, pair or task.
    intercept_ : DataArray
        Minus the score halfway between the classes.
    gap_ : float or DataArray
        The proven relative gap of the squared distances of the two problems, the larger of them.
    objective_, status_, history_, classes_, ...
        As in `MKSVM`; the objective is (1 − λ) vᵀ(Σ_j η_jK_j)v + λ vᵀv.

    Notes
    -----
    Aiolli and Donini, EasyMKL: a scalable multiple kernel learning algorithm. Neurocomputing 169 (2015).
    """

    traits = KernelClassifier.traits.but(
        rules=MACHINE_RULES | {"lam": check_share}, grid={"lam": (0.02, 0.1, 0.3, 0.6, 0.9)}
    )

    lam: float | Sequence[float] = 0.1
    _: KW_ONLY
    multiclass: Multiclass = "ovr"
    decision: Decision | None = None
    steps: str | Sequence[str] = ("center", "multiplicative")
    tol: float = 1e-6

    def _method(self) -> SideBySide:
        return InMemory(factors=True)

    def _problem(self, data: TrainingSet, number: int) -> Any:
        lam = self._of_problems("lam", len(data.problems))[number]
        return partial(easy_mkl, data.problems.h[number], lam, data.n_kernels, tol=self.tol, facts=data.facts)


@dataclass(eq=False, repr=False)
class LPBoost(FunctionOfEachKernel, KernelClassifier):
    """LP-β and LP-B of Gehler and Nowozin: weights of the scores of one support vector machine for each kernel.

    A machine f_jc is trained on each kernel j for each class c against the rest. Their out-of-sample scores on the
    folds of `cv` give weights of the scores by a linear program: for LP-β (``sharing="classes"``)

        min over β ≥ 0, Σ_j β_j = 1, ξ ≥ 0, ρ of  −ρ + 1/(νm) Σ_i ξ_i
        with  Σ_j β_j (f_jc(x_i) − f_jk(x_i)) + ξ_i ≥ ρ  for each sample i of class c and each other class k,

    and for LP-B (``sharing="none"``) with β_jc in place of β_j, Σ_j β_jc = 1 for each class c. For two classes, and for
    each task of a multilabel problem, the left side is y_i Σ_j β_j f_j(x_i) + ξ_i. The score of class c is
    Σ_j β_j f_jc(x) with machines that are trained on all samples.

    Parameters
    ----------
    C
        SVM penalty C > 0; of several values, each kernel takes the one with the best out-of-sample accuracy, the first
        if several tie.
    nu
        ν between 0 and 1: about the largest share of samples with margin below ρ.
    sharing
        "classes" (LP-β), or "none" (LP-B).
    steps
        As in `MKSVM`.
    tol
        The relative gap of each machine to prove.
    cv
        Number of folds (stratified where the labels are classes), or a scikit-learn splitter.

    Attributes
    ----------
    weights_ : DataArray
        β, over kernel; over kernel and class for LP-B, over kernel and task for a multilabel problem.
    C_, accuracy_ : DataArray
        C of each kernel, and its out-of-sample accuracy, over kernel.
    dual_coef_, intercept_ : DataArray
        u and the bias of each machine, over machine: ``kernel: class``. Zero for kernels of zero weight.
    gap_ : float
        The largest proven relative gap of the machines. The linear program is solved to the tolerance of HiGHS.
    objective_, status_, history_, classes_, n_passes_, ...
        As in `MKSVM`; the objective is that of the linear program, and `n_passes_` includes the passes of the folds.

    Notes
    -----
    Gehler and Nowozin, On feature combination for multiclass object classification, ICCV 2009, Eqs. 9 to 14.
    """

    traits = KernelClassifier.traits.but(
        rules=MACHINE_RULES | {"nu": check_share},
        bounded="the objective of each machine",
        takes_unknown_labels=False,
        by_problem=(),
        fitted={"C_": labeled_array("kernel"), "accuracy_": labeled_array("kernel")},
    )

    C: float | Sequence[float] = 1.0
    nu: float = 0.5
    _: KW_ONLY
    sharing: Sharing = "classes"
    steps: str | Sequence[str] = ("center", "multiplicative")
    tol: float = 1e-3
    cv: Any = 5

    def _of_plain_sum(self, grid: Mapping[str, tuple[Any, ...]]) -> tuple[KernelLearner, dict[str, Any]] | None:
        # Candidates of C are no values for several problems: the sum has one of them, chosen by its scores.
        candidates = tuple(dict.fromkeys(check_positive("C", self.C)))
        machine = MKSVM(np.inf, candidates[0], steps=self.steps)
        return machine, {"C": grid.get("C", candidates)} | {name: grid[name] for name in ("steps",) if name in grid}

    # --- weights from out-of-sample scores -----------------------------------------------------------------------

    def _nested(self, fit: Fit, K: KernelSet) -> Mapping[tuple[int, int, int], Fit]:
        machines = [MKSVM(np.inf, C, steps=self.steps, tol=self.tol) for C in check_positive("C", self.C)]
        kernels = np.arange(len(K)) if fit.kernels is None else fit.kernels
        return {
            (price, place, fold): replace(row, learner=machine, kernels=np.array([j]))
            for fold, row in enumerate(fits_of_folds(fit, self.cv))
            for price, machine in enumerate(machines)
            for place, j in enumerate(kernels)
        }

    def _apply_nested(self, fit: Fit, outcomes: Mapping[tuple[int, int, int], FitOutcome]) -> Fit:
        """With β (n, problems), the minima of the programs, and C and accuracy of each kernel (n,) as `nested`."""
        targets, prices, first = fit.targets, np.array(check_positive("C", self.C)), outcomes[0, 0, 0]
        n = 1 + max(place for _, place, _ in outcomes)
        scores = np.full((len(prices), n, len(targets.labels), first.scores.shape[1]), np.nan)
        for (price, place, _), outcome in outcomes.items():
            scores[price, place, held_out_among(fit, outcome.data.fit)] = outcome.scores
        # A splitter may leave rows out of all test folds: they have no out-of-sample scores.
        tested = np.flatnonzero(~np.isnan(scores[0, 0, :, 0]))
        labels = targets.labels[tested]
        decisions = (scores[..., 0] if targets.one_column else scores)[:, :, tested]
        predicted = partial(predicted_labels, targets.classes)
        accuracies = np.array([[label_accuracy(labels, predicted(f)) for f in of_price] for of_price in decisions])
        chosen = accuracies.argmax(axis=0), np.arange(n)
        signs = np.stack(Problems.binary(targets, fit.tasks).h, axis=1)[tested]
        weights, objectives = self._weights(scores[chosen][:, tested], signs, targets.kind)
        table = np.column_stack([prices[chosen[0]], accuracies[chosen], weights])
        if fit.kernels is not None:
            table = spread(table, fit.kernels, first.data.training.n_kernels)
        return replace(fit, nested=(table[:, 2:], objectives, table[:, 0], table[:, 1]))

    def _weights(self, scores: Float, signs: Float, kind: str) -> tuple[Float, Float]:
        """β of each problem, (n, problems), and the minima, from scores (n, m, problems) and labels 1 and −1."""
        n, m, n_problems = scores.shape
        if kind != "multiclass":
            programs = [
                _best_weights((scores[:, :, k] * signs[:, k]).T, np.arange(m), self.nu) for k in range(n_problems)
            ]
            return np.stack([beta for beta, _ in programs], axis=1), np.array([value for _, value in programs])
        class_of = signs.argmax(axis=1)
        samples, others = np.nonzero(signs < 0)
        of_own, of_other = scores[:, samples, class_of[samples]].T, scores[:, samples, others].T
        if self.sharing == "classes":
            beta, value = _best_weights(of_own - of_other, samples, self.nu)
            return np.repeat(beta[:, None], n_problems, axis=1), np.full(n_problems, value)
        margins = np.zeros((len(samples), n_problems, n))
        margins[np.arange(len(samples)), class_of[samples]] = of_own
        margins[np.arange(len(samples)), others] = -of_other
        beta, value = _best_weights(margins.reshape(len(samples), -1), samples, self.nu, n_problems)
        return beta.reshape(n_problems, n).T, np.full(n_problems, value)

    # --- machines on all samples ---------------------------------------------------------------------------------

    def _method(self) -> SideBySide:
        return InMemory(factors=True)

    def _problem(self, data: TrainingSet, number: int) -> Any:
        return partial(self._machines, data, number)

    def _machines(self, data: TrainingSet, k: int) -> Solver[Outcome]:
        """The machines of one problem, with a column of dual variables for each kernel."""
        weights, objectives, prices, _ = data.fit.nested
        y, beta, facts = data.problems.h[k], weights[:, k], data.training.facts
        n, used, single = len(beta), np.flatnonzero(beta), np.eye(len(beta))
        solvers: list[Solver[Outcome]] = [
            mk_svm(y, prices[j], GivenWeights(tuple(single[j])), n, tol=self.tol, facts=facts) for j in used
        ]
        machines = yield from together(solvers)
        dual, bias = np.zeros((len(y), n)), np.zeros(n)
        for j, machine in zip(used, machines, strict=True):
            assert machine.dual is not None
            dual[:, j], bias[j] = machine.dual[:, 0], beta[j] * np.squeeze(machine.bias)
        objective = float(objectives[k])
        end = machines[worst(machines)]
        steps = [Step(beta, {"objective": objective, "gap": end.gap})]
        extra = {"column_weights": np.diag(beta)}
        return Outcome(end.status, beta, dual, objective, gap=end.gap, bias=bias, steps=steps, extra=extra)

    def _set_attributes(self, outcome: FitOutcome) -> None:
        _, objectives, prices, accuracies = outcome.data.fit.nested
        coords = {"kernel": np.array(self.kernel_names_, dtype=str)}
        self.C_ = xr.DataArray(prices, coords, ("kernel",), "C")
        self.accuracy_ = xr.DataArray(accuracies, coords, ("kernel",), "accuracy")
        self.gap_ = max(solution.gap for solution in outcome.outcomes)
        if self.kind_ == "multiclass":
            self.objective_ = float(objectives[0])
            if self.sharing == "classes":
                self.weights_ = self.weights_.isel({"class": 0}, drop=True)


def _best_weights(margins: Float, samples: Index, nu: float, n_simplices: int = 1) -> tuple[Float, float]:
    """The β of the linear program, and its minimum, from margins (rows, n) of samples that may have several rows.

    β is divided into `n_simplices` blocks of equal size, and each sums to one.
    """
    rows, n = margins.shape
    m = int(samples.max()) + 1
    slack = csr_array((np.ones(rows), (np.arange(rows), samples)), shape=(rows, m))
    # The variables are β, ξ and ρ: ρ − margins β − ξ ≤ 0.
    above = hstack([csr_array(-margins), -slack, csr_array(np.ones((rows, 1)))])
    cost = np.concatenate([np.zeros(n), np.full(m, 1 / (nu * m)), [-1.0]])
    blocks = np.repeat(np.eye(n_simplices), n // n_simplices, axis=1)
    sums = hstack([csr_array(blocks), csr_array((n_simplices, m + 1))])
    bounds = [(0, None)] * (n + m) + [(None, None)]
    solution: Any = linprog(cost, above, np.zeros(rows), sums, np.ones(n_simplices), bounds, method="highs")  # type: ignore[call-overload]
    if solution.x is None:
        refuse(f"the linear program of the weights was not solved: {solution.message}")
    beta = np.maximum(solution.x[:n], 0.0)
    return beta / (blocks.T @ (blocks @ beta)), float(solution.fun)
