"""Stacks: a ridge regression on each kernel, and the non-negative weights of their leave-one-out predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from dmkl.arrays import Array, Float
from dmkl.errors import refuse
from dmkl.learners.checks import check_positive
from dmkl.learners.decisions import Decision
from dmkl.learners.fisher import LeastSquares
from dmkl.learners.functions import FunctionOfEachKernel
from dmkl.learners.learner import KernelClassifier, KernelRegressor
from dmkl.learners.plan import ClassWeight, FitOutcome, Problems, TrainingSet
from dmkl.learners.traits import labeled_array
from dmkl.numerics.fisher import Targets, class_of
from dmkl.numerics.grouping import GivenGroups
from dmkl.numerics.semidefinite import tell_indefinite
from dmkl.solvers.fisher.registry import least_lam
from dmkl.solvers.stack import StackMethod, StackProblem

LAMS = tuple(10.0 ** (k / 2) for k in range(-12, 3))
"""λ that each kernel chooses from by default, in units of its trace: 1e-6 to 10, two for each power of ten."""


def _check_lams(name: str, value: Any) -> list[float]:
    """The positive numbers of a list, or those of "auto"."""
    return [*LAMS] if isinstance(value, str) and value == "auto" else check_positive(name, value)


@dataclass(eq=False, repr=False)
class StackedRidge(FunctionOfEachKernel, abstract=True):
    """A ridge regression on each kernel, and weights of their leave-one-out predictions."""

    lams: Sequence[float] | str = "auto"
    _: KW_ONLY
    steps: str | Sequence[str] = ("center", "trace")
    kept_together: Mapping[str, Any] | None = None

    traits = FunctionOfEachKernel.traits.but(
        takes_sample_weight=True,
        weights_are_copies=False,
        takes_unknown_labels=False,
        grid={"lams": ("auto",)},
        rules={"lams": _check_lams},
        fitted={"lam_": labeled_array()},
    )
    _weighted = LeastSquares._weighted

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self._covariates() is not None:
            refuse(
                f"{type(self).__name__} takes no covariates out; take MKRidge or MKFDA, or add a kernel of the "
                "covariates, such as a linear one"
            )

    def _method(self) -> StackMethod:
        return StackMethod(factors=True)

    def _values(self, targets: Targets, number: int) -> Float:
        """The values that a problem regresses on, (m, c): of a regression the numbers."""
        return targets.values[number]

    def _problem(self, data: TrainingSet, number: int) -> StackProblem:
        training, targets = data.trainings[number], data.problems.targets
        y, null_vectors = self._values(targets, number), training.square.null_vectors()
        d = np.ones(len(y)) if targets.weights is None else targets.weights[number]
        mean = np.zeros(y.shape[1]) if null_vectors is None else np.average(y, axis=0, weights=d)
        groups = self.kept_together
        return StackProblem(
            np.sqrt(d)[:, None] * y,
            _check_lams("lams", self.lams),
            isinstance(self.lams, str),
            least_lam(training.square),
            training.n_kernels,
            data.positions,
            mean,
            null_vectors,
            None if groups is None else GivenGroups.of_samples(groups, data.kernels.train_samples).labels,
            data.facts,
        )

    def _set_attributes(self, outcome: FitOutcome) -> None:
        lams = np.stack([solution.extra["lam"] for solution in outcome.outcomes], axis=-1)
        self.lam_ = self.weights_.copy(data=lams.reshape(self.weights_.shape)).rename("lam")
        lowest = [solution.extra["lowest"] for solution in outcome.outcomes]
        tell_indefinite(np.min(lowest, axis=0), outcome.data.facts)


@dataclass(eq=False, repr=False)
class Stack(StackedRidge, KernelClassifier):
    """Stack of ridge regressions on single kernels, weighted by least squares of leave-one-out scores.

    With f_j the regression of the classes on kernel j alone, y_ik = 1 where sample i is of class k and 0 elsewhere
    (1 and −1 for two classes and for tasks), and f_j⁽⁻ⁱ⁾ the one without sample i, both without their intercepts,

        f(x) = b + Σ_j w_j f_j(x),    w = argmin over w ≥ 0 of Σ_ik (y_ik − ȳ_k⁽⁻ⁱ⁾ − Σ_j w_j f_jk⁽⁻ⁱ⁾(x_i))²,

    where ȳ⁽⁻ⁱ⁾ is the mean without sample i, and b that of all. All classes share the weights. Each kernel has the λ of
    the least leave-one-out error. Nothing else is chosen, so that a fit needs no search.

    Parameters
    ----------
    lams
        λ > 0 that each kernel chooses from, in units of its eigenvalues after the steps; "auto": 15 values from 1e-6 to
        10 times its trace. Those that the stored precision does not resolve are left out, and for a kernel that is not
        positive semidefinite those up to the size of its lowest eigenvalue.
    class_weight, decision, steps
        As in `MKSVM`; ("center", "trace") by default. Without "center" there are no intercepts.
    kept_together
        The group of each sample by name, such as its patient: samples of a group are left out together. Searches and
        evaluations with `groups` set it. None: one by one.

    Attributes
    ----------
    weights_ : DataArray
        w, over kernel; over kernel and task for a multilabel problem.
    lam_ : DataArray
        λ of each kernel, in the dimensions of the weights; 0 for constant kernels.
    dual_coef_, intercept_ : DataArray
        The dual variables of each regression, over sample and machine (``kernel: class``), 0 at zero weight; and b,
        with the first kernel.
    objective_ : float or DataArray
        The mean squared leave-one-out error, summed over the classes.
    gap_, status_, history_, classes_, n_passes_, ...
        As in `MKSVM`; the gap is NaN, since λ has the least error of a list and nothing is proven.

    Notes
    -----
    Breiman: Stacked regressions. Machine Learning 24 (1996). The leave-one-out scores are exact, from one eigenvalue
    decomposition of each kernel, except that normalizing steps keep their statistics. Samples that covariates of the
    kernel set determine have none, and take no part in the choices.

    As for `MKLogistic`, kernels that fit the memory of a task, or are kept as factors of few columns, are read in one
    pass. Otherwise each takes a pass and some 32 m² bytes of memory in this process; a larger set is refused.
    Prediction multiplies each kernel by the coefficients of all.

    Examples
    --------
    >>> import dmkl
    >>> K = dmkl.open("kernels.zarr")
    >>> train, _, test = K.split(0)
    >>> model = dmkl.Stack().fit(K[train, train])
    >>> bool((model.weights_ >= 0).all())
    True
    >>> labels = model.predict(K[test, train])
    """

    _: KW_ONLY
    class_weight: ClassWeight = None
    decision: Decision | None = None

    traits = StackedRidge.traits.but(rules=KernelClassifier.traits.rules)
    sharing = "classes"

    def _problems(self, targets: Targets, tasks: Array | None) -> Problems:
        return Problems.of_classes(targets, tasks)

    def _values(self, targets: Targets, number: int) -> Float:
        index = class_of(targets.problems[number])
        return np.asarray(
            np.eye(len(targets.classes))[index] if targets.kind == "multiclass" else 2.0 * index[:, None] - 1.0
        )


@dataclass(eq=False, repr=False)
class StackRegressor(StackedRidge, KernelRegressor):
    """Stack of ridge regressions of numbers on single kernels, weighted by least squares of what is left out.

    Formulas and attributes are those of `Stack`, with numbers y; each of several targets has its own weights.

    Parameters
    ----------
    lams, kept_together, steps
        As in `Stack`.

    Examples
    --------
    >>> import dmkl
    >>> K = dmkl.open("kernels.zarr")
    >>> train, _, test = K.split(0)
    >>> y = K.labels.astype(float)
    >>> model = dmkl.StackRegressor().fit(K[train, train], y[train])
    >>> predicted = model.predict(K[test, train])
    """
