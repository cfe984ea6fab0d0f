"""Localized multiple kernel learning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import xarray as xr
from scipy.special import softmax

from dmkl.arrays import Float, Index
from dmkl.building.cross import row_features
from dmkl.estimators.decisions import Decision
from dmkl.estimators.groups import feature_table
from dmkl.estimators.margin import MarginClassifier
from dmkl.estimators.plan import ClassWeight, FitOutcome, ScoreFunction, TrainingSet, features_of
from dmkl.kernelset import KernelSet
from dmkl.solvers.groups import GroupProblem, localized_mkl
from dmkl.solvers.in_memory import InMemory
from dmkl.solvers.jobs import Job
from dmkl.solvers.outcome import Outcome
from dmkl.solvers.requests import CombinedProduct, Solver


class LocalizedMKL(MarginClassifier):
    """Localized multiple kernel learning: the weights of the kernels are a function of the sample.

    A support vector machine is learnt on Σ_j η_j(x) k_j(x, x') η_j(x'), together with the gating function

        η_j(x) = exp(v_jᵀg(x) + c_j) / Σ_l exp(v_lᵀg(x) + c_l)

    of the gating features g(x), by descent in v and c. `GSMKL` has weights for groups of samples instead.

    Parameters
    ----------
    C
        SVM penalty C > 0 on margin violations. For several problems also one for each.
    gating
        The gating features: "kernel" (the row of the sample in the mean of the kernels, a number for each training
        sample), or the name of a feature table that the kernels were built from.
    class_weight, decision, steps
        As in `MKSVM`.
    tol, max_iter
        As in `GSMKL`.

    Attributes
    ----------
    weights_ : DataArray
        The mean of η over the training samples, over kernel; over kernel and class or task for several problems.
    gating_ : Dataset
        `weight`, η of each training sample, over kernel, sample and class (the second of two classes) or task;
        `gating_slope`, v, over kernel, gating feature and class; `gating_constant`, c, over kernel and class.
    dual_coef_, intercept_, objective_, gap_, history_, status_, ...
        As in `GSMKL`: nothing is proven, since the problem is not convex.

    Notes
    -----
    Gönen and Alpaydın, ICML 2008; Pattern Recognition 46 (2013). With equal weights, at which the descent starts, the
    kernel is Σ_j K_j/n², so that a C of the plain sum corresponds to n²C here. Nothing but C regularizes the gating:
    with many gating features, as "kernel" has, choose C on validation rows, and compare with `MKSVM`.

    Examples
    --------
    >>> import dmkl
    >>> model = dmkl.LocalizedMKL(C=10.0)
    """

    _TAKES_UNKNOWN_LABELS = False
    _TAKES_KERNELS = False
    _TABLES = ("gating_",)

    def __init__(
        self,
        C: float | Sequence[float] = 1.0,
        gating: str = "kernel",
        *,
        class_weight: ClassWeight = None,
        decision: Decision | None = None,
        steps: str | Sequence[str] = ("center", "multiplicative"),
        tol: float = 1e-4,
        max_iter: int = 100,
    ) -> None:
        self.C = C
        self.gating = gating
        self.class_weight = class_weight
        self.decision = decision
        self.steps = steps
        self.tol = tol
        self.max_iter = max_iter

    def _method(self) -> InMemory:
        return InMemory()

    def _gating_features(self, kernels: KernelSet, features: Callable[[KernelSet], Any]) -> Float | None:
        """The gating features of the row samples, (rows, q); None for rows of the mean kernel."""
        if self.gating == "kernel":
            return None
        return feature_table(f"gating={self.gating!r}", features(kernels), self.gating, kernels.names)

    def _jobs(self, data: TrainingSet, prepared: Any) -> list[Job]:
        gating, everyone = self._gating_features(data.kernels, features_of), data.training.n_train

        def solver_of(k: int) -> partial[Solver[Outcome]]:
            C, name = self._prices(data, k), data.problems.title(k)
            problem = GroupProblem(data.problems.h[k], np.arange(everyone), everyone, C=C, name=name)
            rule = partial(localized_mkl, problem, data.n_kernels, gating, data.facts)
            return partial(rule, tol=self.tol, max_iter=self.max_iter)

        return data.jobs(solver_of)

    def _set_attributes(self, outcome: FitOutcome) -> None:
        dim, m, weights = str(self.dual_coef_.dims[1]), len(self.train_samples_), outcome.score_function.weights
        coords = {"kernel": list(self.kernel_names_), "sample": self.train_samples_, dim: self.dual_coef_[dim].values}
        self.gating_ = xr.Dataset(
            {
                "weight": (("kernel", "sample", dim), weights[:, :m]),
                "gating_slope": (("kernel", "gating_feature", dim), weights[:, m:-1]),
                "gating_constant": (("kernel", dim), weights[:, -1]),
            },
            coords,
        )
        # The first entry of the history is the objective before the first step.
        self.history_ = self.history_.assign_coords(iteration=self.history_.iteration - 1)
        self.n_iter_ -= 1

    # --- predicting ----------------------------------------------------------------------------------------------

    def _score_function(self, used: Index) -> ScoreFunction:
        local, slopes, constants = (self.gating_[name].values for name in ("weight", "gating_slope", "gating_constant"))
        weights = np.concatenate([local, slopes, constants[:, None]], axis=1)
        return replace(super()._score_function(used), weights=weights)

    def _scores(self, function: ScoreFunction, new: KernelSet, prepared: Any) -> Solver[Float]:
        shares = yield from self._shares(function, new, prepared)
        return np.asarray(shares.sum(axis=0) + function.bias)

    def _shares(self, function: ScoreFunction, new: KernelSet, prepared: Any) -> Solver[Float]:
        (m, k), n = function.dual.shape, len(function.weights)
        local, slopes, constants = np.split(function.weights, [m, function.weights.shape[1] - 1], axis=1)
        gating = self._gating_features(new, row_features)
        if gating is None:
            block = slopes.transpose(1, 0, 2).reshape(m, n * k)
            logits = (yield CombinedProduct(block, np.full(n, 1.0 / n), exact=True)).reshape(-1, n, k)
        else:
            logits = np.einsum("rq,nqk->rnk", gating, slopes)
        weights = softmax(logits + constants[:, 0], axis=1)
        # A column for each kernel and class: Σ_i k_j(x, x_i) η_j(x_i) u_i.
        block = (local * function.dual).transpose(1, 0, 2).reshape(m, n * k)
        products = yield CombinedProduct(block, np.repeat(np.eye(n), k, axis=1), exact=True)
        return np.asarray((weights * products.reshape(-1, n, k)).transpose(1, 0, 2))

    def _kernels_used(self) -> list[str]:
        # The gating may need all kernels, and its weights are never zero.
        return list(self.kernel_names_)
