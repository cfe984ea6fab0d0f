"""LP-β and LP-B: a machine for each kernel, and weights of their scores from a linear program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from scipy.optimize import linprog
from scipy.sparse import csr_array, hstack

from dmkl.arrays import Float, Index
from dmkl.errors import refuse
from dmkl.estimators.checks import check_choice, check_positive
from dmkl.estimators.decisions import predicted_labels
from dmkl.estimators.learner import KernelClassifier, label_accuracy
from dmkl.estimators.margin import MKSVM, MarginClassifier
from dmkl.estimators.plan import (
    Fit,
    FitOutcome,
    Problems,
    ScoreFunction,
    Sharing,
    TrainingSet,
    fits_of_folds,
    inner_folds,
)
from dmkl.kernelset import KernelSet
from dmkl.solvers.jobs import Job, together
from dmkl.solvers.margin.mksvm import MarginProblem, mk_svm
from dmkl.solvers.outcome import Outcome, Status, Step, worst
from dmkl.solvers.requests import Solver
from dmkl.stores import Kernels
from dmkl.variables import describe


class _Choice(NamedTuple):
    """The result of the linear programs."""

    weights: Float
    """β, (n, problems)"""
    objectives: Float
    """The minimum of each program, (problems,)"""
    prices: Float
    """C of each kernel, (n,)"""
    accuracies: Float
    """Out-of-sample accuracy of each kernel at its C, (n,)"""


class LPBoost(MarginClassifier):
    """LP-β and LP-B of Gehler and Nowozin: weights of the scores of one support vector machine for each kernel.

    A machine f_jc is trained on each kernel j for each class c against the rest. Their out-of-sample scores on the
    folds of `cv` give weights of the scores by a linear program: for LP-β (``sharing="classes"``)

        min over β ≥ 0, Σ_j β_j = 1, ξ ≥ 0, ρ of  −ρ + 1/(νm) Σ_i ξ_i
        with  Σ_j β_j (f_jc(x_i) − f_jk(x_i)) + ξ_i ≥ ρ  for each sample i of class c and each other class k,

    and for LP-B (``sharing="none"``) with β_jc in place of β_j, Σ_jc β_jc = 1. For two classes, and for each task of a
    multilabel problem, the left side is y_i Σ_j β_j f_j(x_i) + ξ_i. The score of class c is Σ_j β_j f_jc(x) with
    machines that are trained on all samples.

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
    objective_ : float or DataArray
        The minimum of the linear program.
    status_, history_, classes_, n_passes_, ...
        As in `MKSVM`; `n_passes_` includes the passes of the folds.

    Notes
    -----
    Gehler and Nowozin, On feature combination for multiclass object classification, ICCV 2009, Eqs. 9 to 14.

    Examples
    --------
    >>> import dmkl
    >>> model = dmkl.LPBoost(C=[1.0, 10.0], nu=0.3)
    """

    _TAKES_WEIGHTS = False
    _TAKES_UNKNOWN_LABELS = False
    _OF_TASKS = ()

    def __init__(
        self,
        C: float | Sequence[float] = 1.0,
        nu: float = 0.5,
        *,
        sharing: Sharing = "classes",
        steps: str | Sequence[str] = ("center", "multiplicative"),
        tol: float = 1e-3,
        cv: Any = 5,
    ) -> None:
        self.C = C
        self.nu = nu
        self.sharing = sharing
        self.steps = steps
        self.tol = tol
        self.cv = cv

    def _check_parameters(self) -> None:
        KernelClassifier._check_parameters(self)
        check_positive("tol", self.tol)
        check_positive("C", self.C)
        check_choice("sharing", self.sharing, ("none", "classes"))
        if not 0 < check_positive("nu", self.nu)[0] < 1:
            refuse(f"nu must lie between 0 and 1, both excluded, got {self.nu!r}")

    # --- weights from out-of-sample scores -----------------------------------------------------------------------

    def _nested(self, fit: Fit, K: KernelSet) -> Sequence[Fit]:
        machines = [MKSVM(np.inf, C, steps=self.steps, tol=self.tol) for C in check_positive("C", self.C)]
        kernels = np.arange(len(K)) if fit.kernels is None else fit.kernels
        return [
            replace(row, learner=machine, kernels=np.array([j]))
            for row in fits_of_folds(fit, self.cv)
            for machine in machines
            for j in kernels
        ]

    def _apply_nested(self, fit: Fit, outcomes: Sequence[FitOutcome]) -> Fit:
        targets, prices, folds = fit.targets, np.array(check_positive("C", self.C)), inner_folds(fit, self.cv)
        n = len(outcomes) // (len(folds) * len(prices))
        scores = np.full((len(prices), n, len(targets.labels), outcomes[0].scores.shape[1]), np.nan)
        remaining = iter(outcomes)
        for _, test in folds:
            for price, kernel in np.ndindex(len(prices), n):
                scores[price, kernel, test] = next(remaining).scores
        # A splitter may leave rows out of all test folds: they have no out-of-sample scores.
        tested = np.flatnonzero(~np.isnan(scores[0, 0, :, 0]))
        labels = targets.labels[tested]
        decisions = (scores[..., 0] if targets.one_column else scores)[:, :, tested]
        predicted = partial(predicted_labels, targets.kind, targets.classes)
        accuracies = np.array([[label_accuracy(labels, predicted(f)) for f in of_price] for of_price in decisions])
        chosen = accuracies.argmax(axis=0), np.arange(n)
        signs = np.stack(Problems.binary(targets, fit.tasks).h, axis=1)[tested]
        weights, objectives = self._weights(scores[chosen][:, tested], signs, targets.kind)
        table = np.column_stack([prices[chosen[0]], accuracies[chosen], weights])
        if fit.kernels is not None:
            whole = np.zeros((outcomes[0].data.training.n_kernels, table.shape[1]))
            whole[fit.kernels] = table
            table = whole
        return replace(fit, nested=_Choice(table[:, 2:], objectives, table[:, 0], table[:, 1]))

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
        beta, value = _best_weights(margins.reshape(len(samples), -1), samples, self.nu)
        return beta.reshape(n_problems, n).T, np.full(n_problems, value)

    # --- machines on all samples ---------------------------------------------------------------------------------

    def _jobs(self, data: TrainingSet, prepared: Any) -> list[Job]:
        # The outcome has a column for each kernel, so that weights of zero select kernels, not the job.
        return [Job(training, partial(self._machines, data, k), None) for k, training in enumerate(data.trainings)]

    def _machines(self, data: TrainingSet, k: int) -> Solver[Outcome]:
        """The machines of one problem, with a column of dual variables for each kernel."""
        choice: _Choice = data.fit.nested
        y, beta, facts = data.problems.h[k], choice.weights[:, k], data.training.facts
        n, used, single = len(beta), np.flatnonzero(beta), np.eye(len(beta))

        problems = [MarginProblem(y, choice.prices[j], np.inf, given=single[j]) for j in used]
        solvers: list[Solver[Outcome]] = [mk_svm(problem, n, tol=self.tol, facts=facts) for problem in problems]
        machines = yield from together(solvers)
        dual, bias = np.zeros((len(y), n)), np.zeros(n)
        for j, machine in zip(used, machines, strict=True):
            assert machine.dual is not None
            dual[:, j], bias[j] = machine.dual[:, 0], beta[j] * np.squeeze(machine.bias)
        objective = float(choice.objectives[k])
        # LP-B may give a class no weight: its scores are zero, and it has no machines.
        nothing = Outcome(Status.CERTIFIED, beta, dual, objective, gap=0.0)
        end = machines[worst(machines)] if machines else nothing
        steps = [Step(beta, {"objective": objective, "gap": end.gap})]
        extra = {"column_weights": np.diag(beta)}
        return Outcome(end.status, beta, dual, objective, gap=end.gap, bias=bias, steps=steps, extra=extra)

    def _take(self, outcome: FitOutcome) -> None:
        _, labels = outcome.data.problems.columns
        names = np.array([f"{kernel}: {label}" for label in labels for kernel in outcome.data.given])
        problems = replace(outcome.data.problems, columns=("machine", names))
        super()._take(replace(outcome, data=replace(outcome.data, problems=problems)))

    def _set_attributes(self, outcome: FitOutcome) -> None:
        choice: _Choice = outcome.data.fit.nested
        coords = {"kernel": np.array(self.kernel_names_, dtype=str)}
        self.C_ = xr.DataArray(choice.prices, coords, ("kernel",), "C")
        self.accuracy_ = xr.DataArray(choice.accuracies, coords, ("kernel",), "accuracy")
        self.gap_ = max(solution.gap for solution in outcome.outcomes)
        if self.kind_ == "multiclass":
            self.objective_ = float(choice.objectives[0])
            if self.sharing == "classes":
                self.weights_ = self.weights_.isel({"class": 0}, drop=True)

    def _score_function(self, used: Index) -> ScoreFunction:
        n, k = len(self.kernel_names_), self.dual_coef_.shape[1] // len(self.kernel_names_)
        beta = np.broadcast_to(self.weights_.values.reshape(n, -1), (n, k))
        weights = np.zeros((n, k, n))
        weights[np.arange(n), :, np.arange(n)] = beta
        function = super()._score_function(used)
        return replace(function, weights=weights.reshape(n, k * n)[used], sums=np.repeat(np.arange(k), n))

    def contributions(self, K: Kernels | None = None, **new: Any) -> xr.DataArray:
        """Contributions β_j f_j of kernels to the scores of new samples, without the biases: see `MKSVM`."""
        of_machines = super().contributions(K, **new)
        labels = self.classes_[1:] if self.kind_ == "binary" else self.classes_ if self.tasks_ is None else self.tasks_
        dim = self._score_dim() or "class"

        def of_classes(values: Float) -> Float:
            return np.asarray(values.reshape(*values.shape[:-1], len(labels), -1).sum(axis=-1))

        coords = {"sample": of_machines.sample.values, "kernel": of_machines.kernel.values, dim: labels}
        result = xr.DataArray(
            of_classes(of_machines.values), coords, ("sample", "kernel", dim), "contribution", of_machines.attrs
        )
        result = describe(result.assign_coords(intercept=(dim, of_classes(of_machines.intercept.values))))
        return result if self._score_dim() else result.isel({dim: 0}, drop=True)


def _best_weights(margins: Float, samples: Index, nu: float) -> tuple[Float, float]:
    """The β of the linear program, and its minimum, from margins (rows, n) of samples that may have several rows."""
    rows, n = margins.shape
    m = int(samples.max()) + 1
    slack = csr_array((np.ones(rows), (np.arange(rows), samples)), shape=(rows, m))
    # The variables are β, ξ and ρ: ρ − margins β − ξ ≤ 0.
    above = hstack([csr_array(-margins), -slack, csr_array(np.ones((rows, 1)))])
    cost = np.concatenate([np.zeros(n), np.full(m, 1 / (nu * m)), [-1.0]])
    simplex = np.concatenate([np.ones(n), np.zeros(m + 1)])[None]
    bounds = [(0, None)] * (n + m) + [(None, None)]
    solution: Any = linprog(cost, above, np.zeros(rows), simplex, [1.0], bounds, method="highs")  # type: ignore[call-overload]
    if solution.x is None:
        refuse(f"the linear program of the weights was not solved: {solution.message}")
    beta = np.maximum(solution.x[:n], 0.0)
    return beta / beta.sum(), float(solution.fun)
