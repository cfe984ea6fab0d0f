"""Prediction by a fitted learner: scores of new samples, contributions of kernels, and the weighted kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import dask.array as da
import numpy as np
import numpy.typing as npt
import xarray as xr
from sklearn.exceptions import NotFittedError

from dmkl.arrays import Array, Float, Index
from dmkl.errors import IndefiniteKernelError, InputError
from dmkl.estimators.plan import Learner
from dmkl.estimators.problems import DecisionRule, Statistics, side_by_side
from dmkl.features.build import Missing
from dmkl.features.cross import TrainingFeatures, cross_tiles
from dmkl.inputs.names import Join
from dmkl.kernelset import KernelSet
from dmkl.numerics.covariates import Covariates, of_new
from dmkl.numerics.steps import FittedStep
from dmkl.passes.blas import one_blas_thread
from dmkl.passes.elements import weighted_blocks
from dmkl.passes.execute import check_memory, machine
from dmkl.passes.statistics import measure_new
from dmkl.passes.view import Lens, View
from dmkl.solvers.driver import drive
from dmkl.solvers.requests import EachProduct, Solver
from dmkl.stores import Kernels, as_kernel_set
from dmkl.variables import describe

if TYPE_CHECKING:
    from dmkl.features.specs import Recipe
    from dmkl.store.features import FeatureTable

__all__ = ["Predicting"]


Ask = Callable[[DecisionRule, KernelSet, Any], Solver[Float]]
"""Makes a solver for new rows of a decision rule, the kernels of these rows, and what was prepared in fitting."""


class _OfNew(NamedTuple):
    """What solvers have found of new rows, the kernels that were read, and their positions in the model."""

    parts: list[Float]
    kernels: KernelSet
    used: Index


class Predicting(Learner):
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

    def _offsets(self, samples: Array, covariates: Any) -> Float:
        """What scores of rows have beside the kernels' part and the intercept, (1,) or (rows, columns)."""
        return np.zeros(1)

    def _shares(self, rule: DecisionRule, new: KernelSet, prepared: Any) -> Solver[Float]:
        """The share of each kernel in the scores of new rows, (kernels, rows, columns): they sum to them, less b."""
        products = yield EachProduct(rule.dual)
        return np.asarray(rule.weights[:, None, :] * products)

    def _decision(self, K: Kernels | None, **new: Any) -> xr.DataArray:
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
        found = self._found_of_new(K, self._shares, **new)
        # (kernels, rows, columns) with rows first, as columns are put in order behind them.
        parts = [part.transpose(1, 2, 0) for part in found.parts]
        shares = side_by_side(parts, [part.columns for part in self.statistics_])
        dim = str(self.dual_coef_.dims[1])
        whole = np.zeros((len(shares), len(self.kernel_names_), shares.shape[1]))
        whole[:, found.used] = shares.transpose(0, 2, 1)
        coords: dict[str, Any] = {"sample": found.kernels.samples.astype(str), "kernel": list(self.kernel_names_)}
        result = xr.DataArray(
            whole,
            dims=("sample", "kernel", dim),
            coords={**coords, dim: self.dual_coef_[dim].values},
            name="contribution",
            attrs={"long_name": "share of each kernel in the score", "units": "score"},
        )
        if self._HAS_INTERCEPT:
            constant = self.intercept_.values + self._offsets(coords["sample"], new.get("covariates"))
            result = result.assign_coords(intercept=(("sample", dim) if constant.ndim == 2 else (dim,), constant))
        return _squeezed(describe(result), self)

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
        self._check_fitted()
        place = _place(self, kernel)
        recipe, table = _linear_features(self, kernel)
        columns = np.arange(table.shape[1]) if recipe.columns is None else np.array(recipe.columns)
        rule = self._rule(np.array([place]))
        if rule.weights.ndim == 3:
            msg = (
                f"{type(self).__name__} weighs each kernel by groups of samples, so that no single weight of a feature "
                "stands behind its scores; see contributions"
            )
            raise InputError(msg)
        parts = []
        for part in self.statistics_:
            own = rule.of(part.columns, part.rows)
            effective = _over_features(self, kernel, part.steps, own.dual, place)
            rows = np.arange(table.shape[0]) if part.rows is None else part.rows
            parts.append(own.weights[0] * _projected(table, kernel, rows, columns, effective))
        dim = str(self.dual_coef_.dims[1])
        weights = xr.DataArray(
            side_by_side(parts, [part.columns for part in self.statistics_]),
            dims=("feature", dim),
            coords={"feature": _names(table, columns), dim: self.dual_coef_[dim].values},
            name="feature_weight",
            attrs={"long_name": f"weight of each feature of kernel {kernel}", "units": "score per unit of the feature"},
        )
        return _squeezed(describe(weights), self)

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
        given = _source(self, K)
        places = _places(self, given)
        chosen, used = (self._matching if places is None else self._selecting)(given)
        weights, dim = _weight_sets(self, used)
        parts = []
        for part in self.statistics_:
            own = weights if dim is None else weights[part.columns]
            if places is None:
                parts.append(_against_training(self, chosen, used, part, own, covariates, chunk))
            else:
                parts.append(weighted_blocks(_among(self, chosen, used, part, places, covariates), own, chunk))
        whole = parts[0]
        if len(parts) > 1:
            order = np.argsort(np.concatenate([part.columns for part in self.statistics_]))
            whole = da.concatenate(parts)[order]
        across = "train_sample" if places is None else "sample_2"
        coords: dict[str, Any] = {"sample": given.samples.astype(str), across: given.train_samples.astype(str)}
        if dim is None:
            return describe(xr.DataArray(whole[0], dims=("sample", across), coords=coords, name="combined"))
        coords[dim] = self.weights_[dim].values
        return describe(xr.DataArray(whole, dims=(dim, "sample", across), coords=coords, name="combined"))

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
        given = _source(self, K)
        places = _places(self, given)
        if places is None:
            msg = "kernel_pca needs the training samples beside the others: a square set with all of them, got new rows"
            raise InputError(msg)
        if not 1 <= n_components < len(places):
            msg = (
                f"n_components must be from 1 to {len(places) - 1}, one less than training samples, got {n_components}"
            )
            raise InputError(msg)
        n, m = given.shape[1], len(places)
        n_sets = len(_weight_sets(self, np.arange(len(self.kernel_names_)))[0])
        check_memory(
            "kernel_pca",
            {
                "rows against training samples": 8 * n_sets * n * m,
                "their centered copy": 8 * n * m,
                "training": 16 * m * m,
            },
            machine().task_bytes,
            "Take fewer rows, or write the weighted kernel and decompose it elsewhere",
            "in this process",
        )
        cross = self.combined_kernel(given[np.arange(n), places], covariates=covariates)
        values, training = cross.values, given.samples[places].astype(str)
        found = list(_components(values.reshape(-1, n, m), places, n_components))
        dim = cross.dims[:-2]
        shape = values.shape[:-2]
        coordinates = np.stack([one for one, _ in found]).reshape(*shape, n, n_components)
        explained = np.stack([share for _, share in found]).reshape(*shape, n_components)
        coords: dict[str, Any] = {str(name): cross[name].values for name in (*dim, "sample")}
        coords |= {"component": np.arange(1, n_components + 1), "explained": ((*dim, "component"), explained)}
        coords["is_training"] = ("sample", np.isin(coords["sample"], training))
        return describe(xr.DataArray(coordinates, dims=(*dim, "sample", "component"), coords=coords, name="principal"))

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


_STRIP_BYTES = 2**26
"""Features that are read at a time."""


def _squeezed(found: xr.DataArray, model: Predicting) -> xr.DataArray:
    """Without the dimension of scores where there is one column, as of two classes."""
    dim = str(model.dual_coef_.dims[1])
    one = model._score_dim() is None and found.sizes[dim] == 1
    return found.isel({dim: 0}).drop_vars(dim) if one else found


def _place(model: Predicting, kernel: str) -> int:
    if kernel not in model.kernel_names_:
        msg = f"there is no kernel {kernel!r}; those of the model are {', '.join(model.kernel_names_[:10])}"
        raise InputError(msg)
    return model.kernel_names_.index(kernel)


def _linear_features(model: Predicting, kernel: str) -> tuple[Recipe, FeatureTable]:
    """How a linear kernel was made, and of what features of the training samples."""
    features: TrainingFeatures | str = model.features_
    if isinstance(features, str):
        raise InputError(features)
    recipe = features.recipes.get(kernel)
    if recipe is None or recipe.function != "linear" or recipe.feature is None:
        made = "was not computed from features" if recipe is None else f"is of the function {recipe.function!r}"
        msg = f"weights of features stand behind linear kernels alone, and {kernel!r} {made}; see contributions"
        raise InputError(msg)
    table = features.tables[recipe.feature]
    if table.n_missing:
        msg = (
            f"{table.n_missing} training samples lack the feature {recipe.feature!r} of kernel {kernel!r}, whose "
            "entries were filled in; weights of features need all of them"
        )
        raise InputError(msg)
    return recipe, table


def _over_features(model: Predicting, kernel: str, steps: Any, dual: Float, place: int) -> Float:
    """The c for which scores are k(x, ·)c and a constant, k before the steps, (samples, columns)."""
    found = dual
    for step in reversed(steps):
        if step.needs_row_diagonal:
            msg = (
                f"the step {step.name!r} divides each sample by its own norm, so that no weights of features stand "
                f"behind the scores of kernel {kernel!r}; fit without it, or see contributions"
            )
            raise InputError(msg)
        found = step.right(place, found) * step.scalar(place)
    return found


def _projected(table: FeatureTable, kernel: str, rows: Any, columns: Any, effective: Float) -> Float:
    """Xᵀc, (features, columns), some samples at a time."""
    total = np.zeros((len(columns), effective.shape[1]))
    strip = max(1, _STRIP_BYTES // (8 * max(1, table.shape[1])))
    for start in range(0, len(rows), strip):
        values = np.asarray(table.read(rows[start : start + strip], columns), dtype=np.float64)
        total += values.T @ effective[start : start + strip]
    return total


def _names(table: FeatureTable, columns: Any) -> Array:
    return np.array([str(k) for k in columns] if table.columns is None else [table.columns[k] for k in columns])


def _source(model: Predicting, K: Kernels) -> KernelSet:
    """The kernels as a set; matrices in memory are square where they have a column for each row."""
    model._check_fitted()
    return model._new_source(as_kernel_set(K, "combined_kernel"))


def _places(model: Predicting, K: KernelSet) -> Index | None:
    """Where the training samples are among those of a square set; None where rows are new samples, columns training."""
    if not K.is_square:
        return None
    at = {str(name): position for position, name in enumerate(K.samples)}
    missing = [name for name in model.train_samples_.tolist() if name not in at]
    if missing:
        msg = (
            f"the weighted kernel has the means and scales of the model's training samples, of which this square set "
            f"lacks {len(missing)}, the first being {missing[0]!r}; give a set with all of them, or K[rows, train]"
        )
        raise InputError(msg)
    return np.array([at[name] for name in model.train_samples_.tolist()], dtype=np.int64)


def _weight_sets(model: Predicting, used: Index) -> tuple[Float, str | None]:
    """The weights of the kernels used, (sets, kernels), and the dimension that labels the sets where there are some."""
    weights = model.weights_.transpose("kernel", ...).values[used].astype(np.float64)
    if weights.ndim == 1:
        return weights[None], None
    if weights.ndim > 2:
        msg = (
            f"{type(model).__name__} weighs each kernel by groups of samples, so that its scores have no one weighted "
            "kernel behind them; see contributions"
        )
        raise InputError(msg)
    (dim,) = (str(name) for name in model.weights_.dims if name != "kernel")
    return weights.T, dim


def _against_training(
    model: Predicting, K: KernelSet, used: Index, part: Statistics, weights: Float, covariates: Any, chunk: int | None
) -> da.Array:
    """Rows against the training samples; NaN against those that the problems of the part were not trained on."""
    _, n_rows, n_cols = K.shape
    some = K if part.rows is None else K[np.arange(n_rows), part.rows]
    lens, _ = measure_new(some.view, model._trained_steps(part, used, K.samples, covariates), elements=True)
    found = weighted_blocks(lens, weights, chunk)
    if part.rows is None:
        return found
    at = np.full(n_cols, len(part.rows))
    at[part.rows] = np.arange(len(part.rows))
    unknown = da.full((len(weights), n_rows, 1), np.nan)
    padded: da.Array = da.concatenate([found, unknown], axis=2)[:, :, at]
    return padded


def _among(model: Predicting, K: KernelSet, used: Index, part: Statistics, places: Index, covariates: Any) -> Lens:
    """The lens of a square set by the statistics of the training samples that are in it."""
    mine = places if part.rows is None else places[part.rows]
    cross = K[np.arange(K.shape[1]), mine]
    steps = model._trained_steps(part, used, K.samples, covariates)
    fitted = measure_new(cross.view, steps, elements=True)[0].fitted.steps if steps else ()
    before = K.lens()
    own = tuple(step.mirrored(mine) for step in fitted[len(fitted) - len(steps) :])
    return Lens(before.view, type(before.fitted)((*before.fitted.steps, *own)))


def _components(sets: Float, places: Index, n_components: int) -> Iterator[tuple[Float, Array]]:
    """Coordinates of the rows in the leading principal directions of the training samples, and the share of each."""
    from sklearn.decomposition import KernelPCA

    for cross in sets:
        known = ~np.isnan(cross).any(axis=0)  # the samples that the problem was trained on
        train = cross[np.ix_(places[known], known)]
        pca = KernelPCA(n_components, kernel="precomputed", eigen_solver="dense")
        try:
            pca.fit(train)
        except ValueError as error:
            msg = (
                f"the weighted kernel has no principal directions, as it is not positive semidefinite: {error}; "
                "dmkl check names the kernels that are not"
            )
            raise IndefiniteKernelError(msg) from error
        trace = np.trace(train) - train.mean(axis=0).sum()
        yield pca.transform(cross[:, known]), pca.eigenvalues_ / trace
