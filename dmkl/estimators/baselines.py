"""The baselines of the papers: the single best kernel, and the product of all."""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import xarray as xr
from sklearn.metrics import accuracy_score
from sklearn.model_selection import check_cv

from dmkl.errors import InputError
from dmkl.estimators.base import check_kernel_set
from dmkl.estimators.fisher import SolverName, _FisherClassifier
from dmkl.estimators.mkfda import MKFDA
from dmkl.estimators.solving import check_resolution
from dmkl.kernelset import KernelSet
from dmkl.passes.combine import direct_bytes, fits_in_memory
from dmkl.passes.execute import machine
from dmkl.passes.run import run_pass
from dmkl.passes.sweep import Columns
from dmkl.solvers.driver import drive
from dmkl.solvers.fisher.wrapper import CGStep, Problem
from dmkl.solvers.requests import CombinedFactor, Solver

__all__ = ["Product", "SingleBest"]

Array = npt.NDArray[Any]
Float = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]


class SingleBest(_FisherClassifier):
    """Fisher discriminant analysis on the one kernel that predicts best in cross-validation.

    Parameters
    ----------
    lam
        λ > 0, the ridge.
    center, normalize, solver, tol, max_iter
        As in `MKFDA`.
    cv
        Number of folds (stratified where the labels are classes), or a scikit-learn splitter.

    Attributes
    ----------
    best_ : str
        Name of the chosen kernel, the first of those that tie.
    scores_ : DataArray
        Accuracy of every kernel on every fold.
    weights_, dual_coef_, gap_, ...
        As in `MKFDA`; the weight of the chosen kernel is one, all others are zero.
    """

    def __init__(
        self,
        lam: float = 1e-2,
        *,
        center: bool = True,
        normalize: str | None = "trace",
        solver: SolverName = "auto",
        tol: float = 1e-4,
        max_iter: int = 200,
        cv: Any = 3,
    ) -> None:
        super().__init__(lam, center=center, normalize=normalize, solver=solver, tol=tol, max_iter=max_iter)
        self.cv = cv

    _SOLVERS = ("auto", "direct", "cg")

    def _exponents(self) -> list[float]:
        return [1.0]

    def fit(self, K: KernelSet, y: npt.ArrayLike | None = None) -> Self:
        """Choose a kernel and learn the discriminant on it; see `MKFDA.fit` for the parameters.

        `n_passes_` counts what the choice cost too.
        """
        self._check_parameters()
        training = self._training(K, y)
        check_resolution(training.kernels.lens(), self._ridges()[0])
        labels = np.asarray(K.labels if y is None else y)
        scores, choice_passes = self._scores(K, labels)
        best = int(np.argmax(scores.mean("fold").values))
        self.best_ = self.kernel_names_[best]
        self.scores_ = scores
        chosen = training.__class__(training.kernels.select(best), training.targets, training.own, 0)
        solutions, passes, self.solver_ = self._solve(chosen)
        # The last fit reads one kernel of n.
        self.n_passes_ = training.n_passes + choice_passes + math.ceil(passes / len(K))
        weights = np.zeros(len(K))
        weights[best] = 1.0
        self._keep(solutions, [weights] * len(solutions), depth=3)
        return self

    def _scores(self, K: KernelSet, labels: npt.NDArray[Any]) -> tuple[xr.DataArray, float]:
        """Accuracy of each kernel alone on each fold, and the passes that took."""
        splitter = check_cv(self.cv, labels, classifier=labels.ndim == 1)
        folds = list(splitter.split(np.zeros(len(labels)), labels))
        scores, passes = np.empty((len(K), len(folds))), 0.0
        for f, (train, test) in enumerate(folds):
            _check_fold(f, labels, train, test)
        for f, (train, test) in enumerate(folds):
            scores[:, f], read = self._fold_scores(K, labels, train, test)
            passes += read
        coords = {"kernel": np.array(K.names, dtype=str), "fold": np.arange(len(folds))}
        return xr.DataArray(scores, dims=("kernel", "fold"), coords=coords, name="accuracy"), passes

    def _fold_scores(self, K: KernelSet, labels: Array, train: Index, test: Index) -> tuple[Float, float]:
        """Accuracy of each kernel alone on one fold: all kernels side by side, in a pass or two for each stage."""
        model = MKFDA(1.0, self.lam, center=self.center, normalize=self.normalize)
        training = model._training(K[train, train], labels[train])
        view = training.kernels.view
        lens = training.kernels.lens()
        n, n_problems = len(K), len(training.targets.problems)
        solvers: list[Solver[Float]] = [
            self._alone(h, weights) for weights in np.eye(n) for h in training.targets.problems
        ]
        where = machine()
        direct = self.solver != "cg" and fits_in_memory(view, 1, where)
        if not direct:
            solvers = [
                self._iterated(Problem(h, self._ridges()[0], 1.0), weights)
                for weights in np.eye(n)
                for h in training.targets.problems
            ]
        lanes = max(1, where.total_bytes // direct_bytes(view, 1)) if direct else None
        alphas, passes = drive([(lens, solver) for solver in solvers], lanes=lanes)
        columns = alphas[0].shape[1]
        new, extra = model._prediction_lens(K[test, train], np.arange(n))
        owner = np.repeat(np.eye(n), n_problems * columns, axis=1)
        ride = Columns(np.concatenate(alphas, axis=1), "sum", owner, K.dtype)
        (found,), read = run_pass([new], [ride], "predict")
        by_kernel = found.reshape(len(test), n, n_problems * columns)
        if training.targets.kind == "binary":
            by_kernel = by_kernel[:, :, 0]
        accuracy = [accuracy_score(labels[test], model.labels_of(by_kernel[:, j])) for j in range(n)]
        return np.array(accuracy), training.n_passes + passes + extra + read

    def _alone(self, h: Float, weights: Float) -> Solver[Float]:
        factor = yield CombinedFactor(weights, self._ridges()[0])
        return np.asarray(factor.solve(h))

    def _iterated(self, problem: Problem, weights: Float) -> Solver[Float]:
        return (yield from CGStep(problem, self.tol).begin(weights))

    def _more_state(self) -> dict[str, Any]:
        return {**super()._more_state(), "best_": self.best_}


def _check_fold(number: int, labels: Array, train: Index, test: Index) -> None:
    """Told before anything runs."""
    if not len(test):
        msg = f"fold {number} of cv has no test samples; use fewer folds"
        raise InputError(msg)
    for column in labels.reshape(len(labels), -1).T:
        missing = np.setdiff1d(column, column[train])
        if len(missing):
            msg = (
                f"fold {number} of cv has no training samples of class {missing[0]!r}; use fewer or stratified folds, "
                "or leave that class out"
            )
            raise InputError(msg)


class Product(_FisherClassifier):
    """Fisher discriminant analysis on the entrywise geometric mean of all kernels, (∏_j K_j)^(1/n).

    The kernels must have no negative entries (RBF, χ², histogram intersection …), and must not be centred or
    normalised before. The product is computed tile by tile in each pass and never stored.

    Parameters
    ----------
    lam
        λ > 0, the ridge.
    center, normalize, solver, tol, max_iter
        As in `MKFDA`, applied to the product.

    Attributes
    ----------
    factors_ : tuple of str
        The kernels that were multiplied.
    weights_, dual_coef_, gap_, ...
        As in `MKFDA`, for a single kernel named "product".
    """

    _SOLVERS = ("auto", "direct", "cg")

    def _exponents(self) -> list[float]:
        return [float(np.inf)]

    def fit(self, K: KernelSet, y: npt.ArrayLike | None = None) -> Self:
        """Learn the discriminant; see `MKFDA.fit`."""
        check_kernel_set(K, "fit")
        self._fit(K.product(), y)
        self.factors_ = K.names
        return self

    def decision_function(self, K: KernelSet | None = None, **new: Any) -> xr.DataArray:
        """Scores of the row samples; see `MKFDA.decision_function`."""
        self._check_fitted()
        if new:
            return super().decision_function(K, **new)
        check_kernel_set(K, "prediction")
        assert K is not None
        if K.names != ("product",):
            missing = [name for name in self.factors_ if name not in K.names]
            if missing:
                msg = f"the product was learnt with kernel {missing[0]!r}, which this set does not have"
                raise InputError(msg)
            K = K.select(self.factors_).product()
        return super().decision_function(K)

    def _kernels_used(self) -> list[str]:
        return list(self.factors_)

    def _more_state(self) -> dict[str, Any]:
        return {**super()._more_state(), "factors_": list(self.factors_)}

    def _set_more_state(self, state: dict[str, Any]) -> Self:
        state["factors_"] = tuple(state["factors_"])
        return super()._set_more_state(state)
