"""Predicting by a fitted learner: scores of new samples, and what makes them up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import xarray as xr
from sklearn.exceptions import NotFittedError

from dmkl.arrays import Array, Float, Index
from dmkl.errors import InputError
from dmkl.estimators.combined import combined_kernel, kernel_pca
from dmkl.estimators.contributions import contributions, feature_weights
from dmkl.estimators.problems import DecisionRule, Statistics, side_by_side
from dmkl.features.build import Missing
from dmkl.features.cross import TrainingFeatures, cross_tiles
from dmkl.inputs.names import Join
from dmkl.kernelset import KernelSet
from dmkl.numerics.covariates import Covariates, of_new
from dmkl.numerics.steps import FittedStep
from dmkl.passes.blas import one_blas_thread
from dmkl.passes.statistics import measure_new
from dmkl.passes.view import View
from dmkl.solvers.driver import drive
from dmkl.solvers.requests import CombinedProduct, EachProduct, Solver
from dmkl.stores import Kernels, as_kernel_set
from dmkl.variables import describe

__all__ = ["Predicting"]

Ask = Callable[[DecisionRule, KernelSet, Any], Solver[Float]]
"""Makes a solver for new rows of a decision rule, the kernels of these rows, and what was prepared in fitting."""


class _OfNew(NamedTuple):
    """What solvers have found of new rows, the kernels that were read, and their positions in the model."""

    parts: list[Float]
    kernels: KernelSet
    used: Index


class Predicting:
    """What a fitted learner says of new samples; see `KernelLearner` for the scores."""

    kernel_names_: tuple[str, ...]
    train_samples_: Array
    weights_: xr.DataArray
    dual_coef_: xr.DataArray
    intercept_: xr.DataArray
    statistics_: tuple[Statistics, ...]
    features_: TrainingFeatures | str
    kind_: str
    classes_: Array
    tasks_: Array | None
    n_prediction_passes_: float
    _prepared: Any = None
    """What `_preparation` found, for learners that predict with it."""
    _HAS_INTERCEPT = False
    """Whether solutions have a bias."""

    def _steps(self) -> tuple[str | Covariates, ...]:
        """The steps that the kernels were learnt after."""
        raise NotImplementedError

    def _scores(self, rule: DecisionRule, new: KernelSet, prepared: Any) -> Solver[Float]:
        """Scores of new rows, (rows, classes or tasks); one column for two classes."""
        found: Float = (yield CombinedProduct(rule.dual, rule.weights, exact=True)) + rule.bias
        return found

    def _offsets(self, samples: Array, covariates: Any) -> Float:
        """What scores of rows have beside the kernels' part and the intercept, (1,) or (rows, columns)."""
        return np.zeros(1)

    def _shares(self, rule: DecisionRule, new: KernelSet, prepared: Any) -> Solver[Float]:
        """The share of each kernel in the scores of new rows, (kernels, rows, columns): they sum to them, less b."""
        products = yield EachProduct(rule.dual)
        return np.asarray(rule.weights[:, None, :] * products)

    def _decision(self, K: Kernels | None, **new: Any) -> xr.DataArray:
        """See `KernelClassifier.decision_function`."""
        new_rows = self._found_of_new(K, self._scores, **new)
        samples = new_rows.kernels.samples.astype(str)
        found = side_by_side(new_rows.parts, [part.columns for part in self.statistics_])
        found = found + self._offsets(samples, new.get("covariates"))
        coords: dict[str, Any] = {"sample": samples}
        dim = self._score_dim()
        if dim is None:
            return describe(xr.DataArray(found[:, 0], dims=("sample",), coords=coords, name="score"))
        labels = self.classes_ if dim == "class" else self.tasks_
        return describe(xr.DataArray(found, dims=("sample", dim), coords={**coords, dim: labels}, name="score"))

    def _found_of_new(self, K: Kernels | None, ask: Ask, *, covariates: Any = None, **new: Any) -> _OfNew:
        """What a solver made by `ask` finds of new rows, for each part of the columns with statistics of its own."""
        self._check_fitted()
        if new:
            if K is not None:
                msg = "give kernels or features, not both"
                raise InputError(msg)
            return self._found_of_new(self.cross_kernels(**new), ask, covariates=covariates)
        K = as_kernel_set(K, "prediction", self.train_samples_)
        chosen, used = self._matching(self._new_source(K))
        rule = self._rule(used)
        rules = [rule.of(part.columns, part.rows) for part in self.statistics_]
        solvers = [ask(some, chosen, self._prepared) for some in rules]
        return _OfNew(self._through(chosen, used, solvers, covariates), chosen, used)

    def _score_dim(self) -> str | None:
        """The dimension of scores beside the sample: "class", "task" or "target"; None where there is one column."""
        if self.tasks_ is not None:
            return "target" if self.kind_ == "regression" else "task"
        return "class" if self.kind_ == "multiclass" else None

    def _through(self, K: KernelSet, used: Index, solvers: Sequence[Solver[Any]], covariates: Any = None) -> list[Any]:
        """What solvers find through kernels of new rows, each with statistics of training."""
        lenses, extra = [], 0.0
        for part in self.statistics_:
            some = K if part.rows is None else K[np.arange(K.shape[1]), part.rows]
            lens, more = measure_new(some.view, self._trained_steps(part, used, K.samples, covariates))
            lenses.append(lens)
            extra += more
        found, passes = drive(list(zip(lenses, solvers, strict=True)))
        self.n_prediction_passes_ = passes + extra
        return found

    def _trained_steps(self, part: Statistics, used: Index, samples: Array, covariates: Any) -> list[FittedStep]:
        """The steps of a part with the statistics of training, for rows that are these samples.

        `covariates` are those of the rows, for the steps that take covariates out; what they lack is looked up in those
        that the step was made of.
        """
        asked = [step if isinstance(step, Covariates) else None for step in self._steps()]
        if covariates is not None and not any(asked):
            msg = (
                f"this {type(self).__name__} has no covariates to take out; leave them out, or fit with residualize(Z)"
            )
            raise InputError(msg)
        if covariates is not None:
            asked = [None if step is None else of_new(covariates, step, samples) for step in asked]
        return [step.select(used).of_samples(samples, own) for step, own in zip(part.steps, asked, strict=True)]

    def _rule(self, used: Index) -> DecisionRule:
        """The decision rule of the fitted attributes, over some of the kernels."""
        dual = np.asarray(self.dual_coef_.values, dtype=np.float64)
        weights = np.asarray(self.weights_.values, dtype=np.float64)[used]
        if "kernel" in self.weights_.dims and self.weights_.ndim == 1:
            weights = weights[:, None]
        if weights.shape[-1] != dual.shape[1]:
            weights = np.repeat(weights, dual.shape[1], axis=-1)
        bias = self.intercept_.values if self._HAS_INTERCEPT else np.zeros(dual.shape[1])
        return DecisionRule(weights, dual, bias, str(self.dual_coef_.dims[1]))

    @one_blas_thread
    def contributions(self, K: Kernels | None = None, **new: Any) -> xr.DataArray:
        """What each kernel contributes to the scores of new samples: β_j Σ_i k_j(x, x_i) α_i, after the steps.

        Over all kernels they sum to the score, less the intercept of machines that have one, which is a coordinate. In
        a regression with covariates the coordinate is what the covariates of each sample predict.
        What a score means for labels, the prior probabilities and rules of `predict`, comes after it.

        Parameters
        ----------
        K, **new
            As in `decision_function`. One pass over the kernels that have weight.

        Returns
        -------
        xarray.DataArray
            (sample, kernel, class), class being pair, task or target where the dual variables are; (sample, kernel)
            for two classes and for one target.

        Raises
        ------
        InputError
            As in `decision_function`.
        """
        return contributions(self, K, **new)

    @one_blas_thread
    def feature_weights(self, kernel: str) -> xr.DataArray:
        """The weights w of the features of a linear kernel, whose share in a score is w·x and a constant.

        w = β_j Xᵀc, X being the features of the training samples, (samples, features), and c the dual variables taken
        back through the steps (centered, and multiplied by the factor of a normalization).

        Parameters
        ----------
        kernel
            The name of a kernel that `dmkl.build` made by the function ``"linear"``.

        Returns
        -------
        xarray.DataArray
            (feature, class), as the columns of `contributions`, by the names of the features' columns; (feature,) for
            two classes and for one target.

        Raises
        ------
        InputError
            If the kernel is not known, or not linear in features that are stored with the model; if a step divides each
            sample by its norm ("cosine"), or weights are those of groups of samples.
        """
        return feature_weights(self, kernel)

    @one_blas_thread
    def combined_kernel(self, K: Kernels, *, covariates: Any = None, chunk: int | None = None) -> xr.DataArray:
        """The weighted kernel Σ_j β_j K_j, each kernel after the steps of the model by its training samples.

        Nothing is kept in memory: it is a lazy array whose blocks are computed as they are asked for, each from the
        tiles of the kernels that have weight; ``.compute()`` takes all of it, ``.to_zarr`` writes it block by block.
        What steps need of the rows is measured now, in one pass at most for each of them.

        Parameters
        ----------
        K
            A square set with the training samples and any others, by name: the weighted kernel of all of them, by the
            statistics of the training samples alone. Or ``K[test, train]``: new rows against the training samples.
        covariates
            As in `decision_function`.
        chunk
            Side of a block in samples; the stored tile by default. Rows in the order of the store read each tile once.

        Returns
        -------
        xarray.DataArray
            (sample, sample_2) of a square set, (sample, train_sample) otherwise, float64; before these a dimension
            class, task, pair or target where each has weights of its own. Rows against training samples whose label
            is unknown in a task are NaN for that task.

        Raises
        ------
        InputError
            If training samples or kernels with weight are missing, or weights are those of groups of samples.
        """
        return combined_kernel(self, K, covariates, chunk)

    @one_blas_thread
    def kernel_pca(self, K: Kernels, n_components: int = 2, *, covariates: Any = None) -> xr.DataArray:
        """Coordinates of samples in the principal directions of the weighted kernel (see `combined_kernel`).

        The directions are those of the training samples, and the others are projected on them: Σ_i k̃(x, x_i)v_i/√λ for
        the eigenvalue λ and the eigenvector v of the kernel centered over the training samples.

        Parameters
        ----------
        K
            A square set with the training samples and any others.
        n_components
            How many, fewer than training samples.
        covariates
            As in `decision_function`.

        Returns
        -------
        xarray.DataArray
            (sample, component), and class, task, pair or target before them where each has weights of its own. The
            coordinate ``explained`` is the share of each component in the trace, ``is_training`` says on which samples
            the directions were found.

        Raises
        ------
        InputError
            As `combined_kernel`, or if `n_components` is out of range.
        IndefiniteKernelError
            If the weighted kernel is not positive semidefinite.
        MemoryBudgetError
            If the rows against the training samples do not fit in memory.

        References
        ----------
        Schölkopf, Smola, Müller: Nonlinear component analysis as a kernel eigenvalue problem. Neural Computation 10
        (1998).
        """
        return kernel_pca(self, K, n_components, covariates)

    def _new_source(self, K: KernelSet) -> KernelSet:
        """The kernels of new rows that prediction is made from, of those that are given."""
        return K

    def cross_kernels(
        self,
        features: Any,
        *,
        samples: Sequence[Any] | Array | None = None,
        present: Mapping[str, npt.ArrayLike] | None = None,
        join: Join = "exact",
        missing: Missing | None = None,
    ) -> KernelSet:
        """The kernels of new samples against the training samples that prediction needs, computed as they are read.

        Parameters
        ----------
        features, samples, present, join, missing
            As in `dmkl.build_cross`.

        Raises
        ------
        InputError
            If the training kernels were not built from features, or these features are others than in training.
        """
        self._check_fitted()
        needed = self._kernels_needed()
        if isinstance(self.features_, str):
            raise InputError(self.features_)
        lacking = [name for name in needed if name not in self.features_.recipes]
        if lacking:
            msg = (
                f"the model gives weight to kernel {lacking[0]!r}, which was not computed from features; predict from "
                "kernels instead"
            )
            raise InputError(msg)
        source, _ = cross_tiles(self.features_.select(needed), features, samples, present, join, missing)
        rows, cols = np.arange(len(source.samples)), np.arange(len(source.train_samples))
        return KernelSet(View(source, np.arange(len(source.names)), rows, cols))

    def _kernels_used(self) -> list[str]:
        """The model's kernels that prediction reads."""
        weights = self.weights_.values.reshape(len(self.kernel_names_), -1)
        return [name for name, used in zip(self.kernel_names_, np.any(weights != 0, axis=1), strict=True) if used]

    def _kernels_needed(self) -> list[str]:
        """The kernels of new samples that prediction is made from."""
        return self._kernels_used()

    def _check_fitted(self) -> None:
        if not hasattr(self, "weights_"):
            msg = f"this {type(self).__name__} is not fitted yet; call fit first"
            raise NotFittedError(msg)

    def _selecting(self, K: KernelSet) -> tuple[KernelSet, Index]:
        """The kernels that prediction reads, and their positions."""
        needed = self._kernels_used()
        used = np.array([self.kernel_names_.index(name) for name in needed], dtype=np.int64)
        missing = [name for name in needed if name not in K.names]
        if missing:
            msg = (
                f"the model gives weight to kernel {missing[0]!r}, which this set does not have; its kernels are "
                f"{', '.join(K.names[:10])}. Kernels are matched by name: give these the names of the model's (names=, "
                "--names at import)"
            )
            raise InputError(msg)
        return K.select(needed), used

    def _matching(self, K: KernelSet) -> tuple[KernelSet, Index]:
        """The kernels that prediction reads, of the training samples in their order, and their positions."""
        found = self._selecting(K)
        samples = K.train_samples.astype(str)
        if not np.array_equal(samples, self.train_samples_):
            same = len(samples) == len(self.train_samples_) and set(samples) == set(self.train_samples_)
            seen = "the same samples in another order" if same else f"{len(samples)} others"
            if not same and set(K.samples.astype(str)) >= set(self.train_samples_):
                seen += ", and these as rows: the kernels are the wrong way round"
            msg = (
                f"the columns must be the {len(self.train_samples_)} training samples in the order of training, found "
                f"{seen}; take K[test, train] with the train of fit"
            )
            raise InputError(msg)
        return found
