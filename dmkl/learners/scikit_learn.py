"""Learners as estimators of scikit-learn, on kernel matrices in memory or on tables of features.

Everything is computed in this process.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import dask
import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.sparse import issparse
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    ClassNamePrefixFeaturesOutMixin,
    MultiOutputMixin,
    RegressorMixin,
    TransformerMixin,
    clone,
)
from sklearn.utils import _safe_indexing
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, column_or_1d, validate_data

from dmkl import settings
from dmkl.arrays import Array, Tiling, is_known
from dmkl.building import Missing, build
from dmkl.errors import refuse
from dmkl.inputs.features import as_features
from dmkl.kernelset import KernelSet, create
from dmkl.learners.fisher import MKFDA
from dmkl.learners.learner import KernelClassifier, KernelLearner, KernelRegressor
from dmkl.learners.ridge import MKRidge
from dmkl.numerics.fisher import encode_targets, encode_values, with_unknown
from dmkl.passes.execute import Machine, active_client, check_memory, computing_here, machine


class Front(BaseEstimator):  # type: ignore[misc]
    """Base class: an estimator of scikit-learn that makes kernels of X and fits an estimator of dmkl on them."""

    estimator: Any
    estimator_: Any
    _DEFAULT: ClassVar[type[KernelLearner]]  # The default estimator.
    _KIND: ClassVar[tuple[type[KernelLearner], str]]  # The base class of estimators, and its name in messages.
    _FITTED: ClassVar[tuple[str, ...]] = ("weights_", "n_iter_")
    """The fitted attributes of the estimator that the front has too."""

    def set_params(self, **params: Any) -> Self:
        """Set parameters, also those of the default estimator (``estimator__lam``)."""
        if self.estimator is None and "estimator" not in params and any(k.startswith("estimator__") for k in params):
            self.estimator = self._DEFAULT()
        super().set_params(**params)
        return self

    def fit(self, X: Any, y: Any, sample_weight: npt.ArrayLike | None = None, *, unknown: Any = None) -> Self:
        """Make the kernels of a table of features, and learn the weights of the kernels.

        Parameters
        ----------
        X
            (m, columns), an array or a data frame of numbers; or kernels (m, m, kernels) of the training samples.
        y, unknown
            As in `KernelLearner.fit`.
        sample_weight
            As in `KernelLearner.fit`, (m,), or one for all. Weights do not change the kernels of a table: each sample
            that is not left out counts once in the mean distances that bandwidths multiply.

        Raises
        ------
        InputError
            If X, y or a parameter breaks a rule.
        MemoryBudgetError
            If the kernels of a table do not fit the memory; nothing was computed.
        """
        for name in [name for name in vars(self) if name.endswith("_")]:  # of an earlier fit
            delattr(self, name)
        estimator: Any = self._DEFAULT() if self.estimator is None else self.estimator
        kind, name = self._KIND
        if not isinstance(estimator, kind):
            refuse(f"estimator must be a {name} of dmkl such as {self._DEFAULT.__name__}(), got {estimator!r:.100}")
        weights = None if sample_weight is None else _check_sample_weight(sample_weight, X, ensure_non_negative=True)
        if weights is not None and not weights.any():  # releases of scikit-learn before 1.9 let them pass
            refuse("sample_weight is zero for all samples; give non-zero weights to samples of each class")
        # Positions of the samples that are not left out, None for all.
        self._rows = None if weights is None or weights.all() else np.flatnonzero(weights)
        with in_this_process():
            K, y = self._training_kernels(X, y, unknown)
            of_rows = {} if weights is None else {"sample_weight": weights[weights > 0]}
            self.estimator_ = clone(estimator).fit(K, y, **of_rows, unknown=unknown)
        self.kernel_names_ = K.names
        for name in self._FITTED:
            if hasattr(self.estimator_, name):
                setattr(self, name, getattr(self.estimator_, name))
        if self.estimator_.tasks_ is not None and "classes_" in self._FITTED:
            # As of OneVsRestClassifier: cross_val_predict has a column for each of them.
            self.classes_ = np.arange(len(self.estimator_.tasks_))
        return self

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the fitted estimator, which `dmkl.load` reads; see `KernelLearner.save`."""
        check_is_fitted(self, "estimator_")
        self.estimator_.save(path, overwrite=overwrite)

    def _training_kernels(self, X: Any, y: Any, unknown: Any) -> tuple[KernelSet, Array]:
        """The training kernels and the labels or targets; `unknown` is a code of unknown labels."""
        raise NotImplementedError

    def _of_estimator(self, method: str, X: Any, **options: Any) -> Any:
        """The result of a method of the estimator for new samples."""
        check_is_fitted(self, "estimator_")
        with in_this_process():
            return getattr(self.estimator_, method)(**self._new_samples(X), **options)

    def _new_samples(self, X: Any) -> dict[str, Any]:
        """New samples as arguments of the methods of the estimator."""
        raise NotImplementedError


class ClassifierFront(ClassifierMixin, Front):  # type: ignore[misc]
    """A classifier of dmkl as one of scikit-learn."""

    _DEFAULT, _KIND = MKFDA, (KernelClassifier, "classifier")
    _FITTED = (*Front._FITTED, "classes_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    def decision_function(self, X: Any) -> npt.NDArray[np.float64]:
        """Decision values: (n,) for two classes, (n, classes), or (n, tasks) of a multilabel problem.

        A positive value means the second of two classes, or label 1 of a task; of several classes the largest value
        wins. These are the scores of the estimator after its `decisions_of`. X has new samples in the form of training,
        (n, columns) of features, or (n, m, kernels) of new and training samples; InputError if it breaks a rule.
        """
        scores = self._of_estimator("decision_function", X)
        return np.asarray(self.estimator_.decisions_of(scores.values))

    def predict(self, X: Any, coverage: float | None = None) -> Any:
        """Labels of new samples, (n,), or (n, tasks) of 0 and 1; see `MKFDA` for the rule and its `priors`.

        With a `coverage` sets of labels; see `KernelClassifier.sets_of`.
        """
        return self._of_estimator("predict", X, coverage=coverage)

    @available_if(lambda self: getattr(self.estimator_, "calibrated_on_", None) is not None)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """Calibrated probabilities of new samples, (n, classes), or (n, tasks) of a multilabel problem.

        Available if the fitted estimator has them, as Fisher discriminants have; see its `calibrated_on_`.
        """
        return np.asarray(self._of_estimator("predict_proba", X).values)


class RegressorFront(MultiOutputMixin, RegressorMixin, Front):  # type: ignore[misc]
    """A regression of dmkl as one of scikit-learn."""

    _DEFAULT, _KIND = MKRidge, (KernelRegressor, "regression")

    def predict(self, X: Any) -> npt.NDArray[np.float64]:
        """Predictions for new samples, (n,), or (n, targets)."""
        return np.asarray(self._of_estimator("predict", X).values)


@contextmanager
def in_this_process() -> Iterator[None]:
    """Run passes in this process, on the share of the host that this fit has."""
    cores, budget = settings.available_cores(), settings.memory_budget_bytes()
    if threading.current_thread() is not threading.main_thread():
        # Other fits run in other threads of joblib or of a Dask worker. A task that waits for tasks of its own cluster
        # may wait for ever, and Dask's configuration is shared by all threads.
        with computing_here(Machine(1, cores, budget, budget)):
            yield
        return
    changes: dict[str, Any] = {}
    if active_client() is not None:
        changes["scheduler"] = "threads"
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if multiprocessing.parent_process() is not None and threads.isdecimal() and 0 < int(threads) < cores:
        # joblib sets this to the share of cores of a worker process.
        share = int(threads)
        changes |= {"num_workers": share, "dmkl.blas-threads": 1, "dmkl.memory": max(1, budget * share // cores)}
    with dask.config.set(changes):
        yield


@dataclass(eq=False, repr=False)
class PrecomputedFront(Front):
    """Base class for kernel matrices in memory, the third dimension of X."""

    estimator: KernelLearner | None = None
    names: Sequence[str] | None = None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = True
        tags.input_tags.three_d_array = True
        tags.input_tags.two_d_array = False
        return tags

    def _training_kernels(self, X: Any, y: Any, unknown: Any) -> tuple[KernelSet, Array]:
        kernels = _kernels_first(X)
        self.n_features_in_ = kernels.shape[2]
        if self._rows is not None:
            kernels = kernels[:, self._rows[:, None], self._rows]
        return create(None, kernels, names=self.names, symmetric=True), np.asarray(_safe_indexing(y, self._rows))

    def _new_samples(self, X: Any) -> dict[str, Any]:
        kernels = _kernels_first(X)
        m, n = self.n_features_in_, len(self.kernel_names_)
        if kernels.shape[::2] != (n, m):
            refuse(
                f"X has shape {np.shape(X)}, expected (samples, {m}, {n}): training samples and kernels as in training"
            )
        kernels = kernels if self._rows is None else kernels[:, :, self._rows]
        return {"K": create(None, kernels, names=self.kernel_names_, symmetric=False)}


class PrecomputedMKLClassifier(PrecomputedFront, ClassifierFront):
    """Multiple kernel learning on kernel matrices in memory, for `cross_val_score` and searches of scikit-learn.

    scikit-learn selects rows and columns of X, as for ``SVC(kernel="precomputed")``; the kernels are the third
    dimension: ``X = np.stack([K_1, K_2], axis=2)``. Kernels that do not fit in memory: `dmkl.search`, `dmkl.evaluate`.

    Parameters
    ----------
    estimator
        Any classifier of dmkl, `dmkl.MKFDA()` by default. Its parameters are set as ``estimator__p``,
        ``estimator__lam`` …
    names
        The kernels' names; ``kernel_0``, ``kernel_1`` … by default.

    Attributes
    ----------
    estimator_ : KernelClassifier
        The fitted estimator.
    weights_ : DataArray
        β, over kernel; over kernel and task for a multilabel problem.
    classes_ : ndarray
        The labels, sorted; the positions of the tasks for a multilabel problem.
    n_features_in_ : int
        Training samples.

    Examples
    --------
    >>> import dmkl
    >>> import numpy as np
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.metrics.pairwise import linear_kernel, rbf_kernel
    >>> from sklearn.model_selection import cross_val_score
    >>> X, y = load_iris(return_X_y=True)
    >>> kernels = np.stack([linear_kernel(X), rbf_kernel(X)], axis=2)
    >>> bool(cross_val_score(dmkl.PrecomputedMKLClassifier(), kernels, y, cv=3).mean() > 0.9)
    True
    """


class PrecomputedMKLRegressor(PrecomputedFront, RegressorFront):
    """Multiple kernel ridge regression on kernel matrices in memory, as `PrecomputedMKLClassifier` with numbers.

    Parameters
    ----------
    estimator
        Any regression of dmkl, `dmkl.MKRidge()` by default.
    names
        As in `PrecomputedMKLClassifier`, and so are the attributes; each of several targets has its own weights.

    Examples
    --------
    >>> import dmkl
    >>> import numpy as np
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.metrics.pairwise import linear_kernel, rbf_kernel
    >>> from sklearn.model_selection import cross_val_score
    >>> X, y = load_diabetes(return_X_y=True)
    >>> kernels = np.stack([linear_kernel(X), rbf_kernel(X)], axis=2)
    >>> model = dmkl.PrecomputedMKLRegressor(dmkl.MKRidge(lam=1e-2))
    >>> bool(cross_val_score(model, kernels, y, cv=3).mean() > 0.4)
    True
    """


def _kernels_first(X: npt.ArrayLike) -> Array:
    """X as (kernels, samples, training samples)."""
    array = np.asarray(X)
    if array.ndim != 3:
        refuse(
            f"X has {array.ndim} dimensions, expected 3: samples, training samples, kernels, such as "
            "np.stack([K_1, K_2], axis=2)"
        )
    return np.moveaxis(array, 2, 0)


DEFAULT_KERNELS: dict[str, Any] = {"function": "rbf", "bandwidth": [0.1, 0.3, 1, 3, 10]}
"""The default kernels of every block."""


@dataclass(eq=False, repr=False)
class TableFront(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Front):  # type: ignore[misc]
    """Base class for a table of features: each kernel is a function of one block of columns."""

    estimator: KernelLearner | None = None
    kernels: Any = None
    blocks: Mapping[str, Any] | None = None
    _: KW_ONLY
    missing: Missing = "refuse"
    dtype: npt.DTypeLike | None = None
    n_components: int = 2

    def transform(self, X: Any) -> npt.NDArray[np.float64]:
        """Principal components of the weighted kernel, (n, components), or of one after the other of several.

        Each call decomposes the weighted kernel of the training samples, m × m, each of which counts once whatever its
        weight; see `KernelLearner.kernel_pca`. InputError if X, (n, columns), or `n_components` breaks a rule.
        """
        components = self._of_estimator("kernel_pca", X, n_components=self.n_components)
        values = np.moveaxis(components.values, -2, 0)
        return np.asarray(values.reshape(len(values), -1))

    @property
    def _n_features_out(self) -> int:
        return int(self.n_components * self.weights_.size // len(self.kernel_names_))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _training_kernels(self, X: Any, y: Any, unknown: Any) -> tuple[KernelSet, Array]:
        # A copy, since prediction needs the training samples unchanged. Two classes need two samples.
        # scikit-learn refuses NaN, which is an unknown label of a task.
        labels = None if y is None or issparse(y) else np.asarray(y)
        tasks = None if labels is None or labels.ndim < 2 or is_known(labels).all() else labels
        checks = self._checks() | {"copy": True, "ensure_min_samples": 2}
        if tasks is None:
            X, y = validate_data(self, X, y, **checks, multi_output=True)
        else:
            X, y = validate_data(self, X, **checks), tasks
        # Errors in y are raised before kernels are computed.
        X, y = _safe_indexing(X, self._rows), self._check_targets(_safe_indexing(y, self._rows), unknown)
        features = self._features(X)
        specs = DEFAULT_KERNELS if self.kernels is None else self.kernels
        self._check_plan(specs, features, X)
        return build(None, features, specs, missing=self.missing, dtype=self.dtype).persist(), y

    def _check_targets(self, y: Any, unknown: Any) -> Array:
        """The labels or targets as an array, refused if they break a rule; `unknown` is a code of unknown labels."""
        raise NotImplementedError

    def _new_samples(self, X: Any) -> dict[str, Any]:
        X = validate_data(self, X, reset=False, **self._checks())
        return {"features": self._features(X), "missing": self.missing}

    def _checks(self) -> dict[str, Any]:
        finite = "allow-nan" if self.missing == "zero" else True
        return {"dtype": (np.float64, np.float32), "ensure_all_finite": finite, "accept_sparse": "csr"}

    def _features(self, X: Any) -> dict[str, Any]:
        """The columns of each block: data frames, or sparse if X is."""
        frame: Any = X if issparse(X) else pd.DataFrame(X, columns=getattr(self, "feature_names_in_", None), copy=False)
        if self.blocks is None:
            return {"X": frame}
        blocks: Any = self.blocks
        if not isinstance(blocks, Mapping) or not blocks:
            refuse(f"blocks maps the name of each block to its columns of X, got {blocks!r:.100}")
        return {name: self._block(frame, name, columns) for name, columns in blocks.items()}

    def _block(self, frame: Any, name: str, columns: Any) -> Any:
        """The columns of a block."""
        key = columns if isinstance(columns, slice) else np.ravel(columns)
        try:
            block = _safe_indexing(frame, key, axis=1)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            by_name = np.asarray(key).dtype.kind in "UO" and not hasattr(self, "feature_names_in_")
            hint = "; X has no names of columns, give a data frame" if by_name else ""
            refuse(
                f"blocks[{name!r}] must be names, positions, a slice or a mask of the {self.n_features_in_} columns of "
                f"X, got {columns!r:.100} ({error}){hint}",
                error,
            )
        if not block.shape[1]:
            refuse(f"blocks[{name!r}] has no column of X, got {columns!r:.100}; give columns, or leave the block out")
        return block

    def _check_plan(self, specs: Any, features: Mapping[str, Any], X: Any) -> None:
        """Refuse kernels that rows of X cannot have or that do not fit the memory, before they are computed."""
        from dmkl.features.specs import plan

        planned, _ = plan(specs, as_features(features).blocks)
        for item in planned:
            if item.feature is None:
                refuse(
                    f"kernel {item.name!r} is a function of the names of the samples, and rows of X have none; leave "
                    "it out, or use dmkl.build"
                )
        tile, host = settings.tile_size(X.shape[0]), machine()
        n_tiles = sum(1 for _ in Tiling(X.shape[0], X.shape[0], tile, upper=True).pairs())
        n_bytes = len(planned) * n_tiles * tile**2 * np.dtype(X.dtype if self.dtype is None else self.dtype).itemsize
        check_memory(
            f"holding {len(planned)} kernels of {X.shape[0]:,} samples",
            {"kernels": n_bytes},
            host.task_bytes * host.slots,
            "Build them on disk with dmkl.build and fit the estimator itself on those, take fewer kernels or "
            "dtype='float32', or set dmkl.memory higher",
        )


class MKLClassifier(TableFront, ClassifierFront):
    """Multiple kernel learning on a table of features, for pipelines and searches of scikit-learn.

    ``fit`` computes kernels of the columns of X, each a function of one block of columns, and learns their weights;
    ``predict`` computes the kernels with weight between new and training samples. All kernels of the training samples
    are kept in memory, n·m²/2 entries; to fit more, build them on disk with `dmkl.build` and fit the estimator on them.

    Parameters
    ----------
    estimator
        Any classifier of dmkl, `dmkl.MKFDA()` by default. Its parameters are set as ``estimator__p``,
        ``estimator__lam`` …
    kernels
        The kernels, as the `specs` of `dmkl.build`, where `feature` is the name of a block. By default
        exp(−‖x − y‖²/(b·D̄)) of every block for b = 0.1, 0.3, 1, 3 and 10, where D̄ is the mean of ‖x − y‖² over the
        pairs of training samples.
    blocks
        Columns of X by the name of the block: names, positions, a slice or a mask. By default all columns are one
        block "X".
    missing
        Treatment of samples whose columns of a block are NaN: "refuse" them, or "zero", which gives them the mean of
        the training samples in the feature spaces of the block.
    dtype
        Precision of the kernels, "float32" or "float64"; that of X by default.
    n_components
        Number of principal components that `transform` computes, for pictures of samples and as features.

    Attributes
    ----------
    estimator_ : KernelClassifier
        The fitted estimator. Its `save` writes the model; the model that `dmkl.load` reads predicts from
        ``features={block: columns}``.
    weights_ : DataArray
        β, over kernel; over kernel and task for a multilabel problem.
    kernel_names_ : tuple of str
        The kernels.
    classes_ : ndarray
        The labels, sorted; the positions of the tasks for a multilabel problem.
    n_iter_ : int
        Weight vectors tried, if the estimator counts them.
    n_features_in_ : int
        Columns of X.
    feature_names_in_ : ndarray
        Names of the columns, if X is a data frame with names.

    Notes
    -----
    Everything is computed in this process, never on a `distributed` client: a fit is part of a larger job that joblib
    distributes (``n_jobs=``). A fit uses all cores in the main thread, its share of the cores and of `dmkl.memory` in a
    worker process of joblib, and one thread in any other thread.

    Examples
    --------
    >>> import dmkl
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.model_selection import GridSearchCV
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> model = make_pipeline(StandardScaler(), dmkl.MKLClassifier(blocks={"sepals": [0, 1], "petals": [2, 3]}))
    >>> grid = {"mklclassifier__estimator__lam": [1e-3, 1e-1]}
    >>> search = GridSearchCV(model, grid).fit(*load_iris(return_X_y=True))
    >>> bool(search.best_score_ > 0.9)
    True
    """

    def _check_targets(self, y: Any, unknown: Any) -> Array:
        labels = np.asarray(y.toarray() if hasattr(y, "toarray") else y)  # sparse, as of many tasks
        check_classification_targets(labels[is_known(labels).all(axis=1)] if labels.ndim == 2 else labels)
        if labels.ndim == 2 and labels.shape[1] == 1 and is_known(labels).all():
            labels = column_or_1d(labels, warn=True)
        encode_targets(with_unknown(labels, unknown), len(labels))
        return labels


class MKLRegressor(TableFront, RegressorFront):
    """Multiple kernel ridge regression on a table of features, for pipelines and searches of scikit-learn.

    As `MKLClassifier`, with numbers as targets.

    Parameters
    ----------
    estimator
        Any regression of dmkl, `dmkl.MKRidge()` by default.
    kernels, blocks, missing, dtype, n_components
        As in `MKLClassifier`, and so are the attributes; each of several targets has its own weights.

    Examples
    --------
    >>> import dmkl
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.model_selection import cross_val_score
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = dmkl.MKLRegressor(dmkl.MKRidge(lam=1e-2), blocks={"body": [0, 1, 2, 3], "serum": [4, 5, 6, 7, 8, 9]})
    >>> bool(cross_val_score(model, X, y, cv=3).mean() > 0.4)
    True
    """

    def _check_targets(self, y: Any, unknown: Any) -> Array:
        encode_values(with_unknown(y, unknown), len(y))
        return np.asarray(y)
