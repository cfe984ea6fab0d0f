"""Multiple kernel learning as one scikit-learn estimator on a table of features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pandas as pd
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from dmkl import settings
from dmkl.arrays import Array
from dmkl.errors import InputError
from dmkl.estimators.front import ClassifierFront, Front, RegressorFront, in_this_process
from dmkl.estimators.learner import KernelLearner
from dmkl.features.build import Missing, build
from dmkl.features.specs import plan
from dmkl.inputs.features import as_features
from dmkl.numerics.fisher import encode_targets, encode_values, with_unknown
from dmkl.numerics.tiling import Tiling
from dmkl.passes.execute import check_memory, machine

__all__ = ["MKLClassifier", "MKLRegressor", "TableFront"]


DEFAULT_KERNELS: dict[str, Any] = {"function": "rbf", "bandwidth": [0.1, 0.3, 1, 3, 10]}
"""What is made of every block where nothing else is asked for."""


class TableFront(Front):
    """A front that makes kernels of the columns of a table, each a function of one block of them."""

    def __init__(
        self,
        estimator: KernelLearner | None = None,
        kernels: Any = None,
        blocks: Mapping[str, Any] | None = None,
        *,
        missing: Missing = "refuse",
        dtype: npt.DTypeLike | None = None,
    ) -> None:
        self.estimator = estimator
        self.kernels = kernels
        self.blocks = blocks
        self.missing = missing
        self.dtype = dtype

    def fit(self, X: Any, y: Any, **fit_params: Any) -> Self:
        """Make the kernels and learn their weights.

        Parameters
        ----------
        X
            (m, columns), an array or a data frame of numbers.
        y
            Of a classifier (m,) integers or strings, two classes or more, or (m, tasks) of 0 and 1 for independent
            binary problems; of a regression (m,) or (m, targets) numbers.
        **fit_params
            For the `fit` of the estimator, such as its `sample_weight` and `unknown`.

        Raises
        ------
        InputError
            If X, y or a parameter breaks a rule.
        MemoryBudgetError
            If the kernels do not fit the memory; nothing was computed.
        """
        estimator = self._unfitted()
        # A copy, since prediction needs the training samples as they are now. Two classes take two samples.
        X, y = validate_data(self, X, y, **self._checks(), copy=True, multi_output=True, ensure_min_samples=2)
        # What is wrong with y is told before kernels are computed.
        y = self._checked(y, fit_params.get("unknown"))
        features = self._features(X)
        specs = DEFAULT_KERNELS if self.kernels is None else self.kernels
        with in_this_process():
            self._check_plan(specs, features, X)
            K = build(None, features, specs, missing=self.missing, dtype=self.dtype)
            self._fit_on(estimator, K.persist(), y, fit_params)
        return self

    def _checked(self, y: Any, unknown: Any) -> Array:
        """What is to be learnt, refused where it breaks a rule; `unknown` is a code of labels that are unknown."""
        raise NotImplementedError

    def _found(self, method: str, X: Any) -> npt.NDArray[np.float64]:
        check_is_fitted(self, "estimator_")
        X = validate_data(self, X, reset=False, **self._checks())
        with in_this_process():
            found = getattr(self.estimator_, method)(features=self._features(X), missing=self.missing)
        values: npt.NDArray[np.float64] = found.values
        return values

    def _checks(self) -> dict[str, Any]:
        finite = "allow-nan" if self.missing == "zero" else True
        return {"dtype": (np.float64, np.float32), "ensure_all_finite": finite}

    def _features(self, X: Array) -> dict[str, pd.DataFrame]:
        """The columns of each block."""
        frame = pd.DataFrame(X, columns=getattr(self, "feature_names_in_", None), copy=False)
        if self.blocks is None:
            return {"X": frame}
        blocks: Any = self.blocks
        if not isinstance(blocks, Mapping) or not blocks:
            msg = f"blocks maps the name of each block to its columns of X, got {blocks!r:.100}"
            raise InputError(msg)
        return {name: frame.iloc[:, self._places(name, asked)] for name, asked in blocks.items()}

    def _places(self, name: str, asked: Any) -> Array:
        """Positions of the columns of a block."""
        key = asked if isinstance(asked, slice) else np.ravel(asked)
        told = (asked.start, asked.stop) if isinstance(asked, slice) else np.ravel(asked)
        by_name = any(isinstance(item, str) for item in told)
        named = hasattr(self, "feature_names_in_")
        places = pd.Series(np.arange(self.n_features_in_), index=self.feature_names_in_ if named else None)
        try:
            found = places.loc[key].to_numpy() if by_name and named else places.to_numpy()[key]
        except (KeyError, IndexError, TypeError) as error:
            hint = "; X has no names of columns, give a data frame" if by_name and not named else ""
            msg = (
                f"blocks[{name!r}] must be names, positions, a slice or a mask of the {self.n_features_in_} columns of "
                f"X, got {asked!r:.100} ({error}){hint}"
            )
            raise InputError(msg) from error
        if not len(found):
            msg = f"blocks[{name!r}] takes no column of X, got {asked!r:.100}; give it some, or leave the block out"
            raise InputError(msg)
        return found

    def _check_plan(self, specs: Any, features: Mapping[str, pd.DataFrame], X: Array) -> None:
        """Refuse kernels that make no sense here or do not fit the memory, before anything is computed."""
        planned, _ = plan(specs, as_features(features).blocks)
        for item in planned:
            if item.feature is None:
                msg = (
                    f"kernel {item.name!r} is a function of the names of the samples, and rows of X have none; leave "
                    "it out, or use dmkl.build"
                )
                raise InputError(msg)
        tile, where = settings.tile_size(len(X)), machine()
        n_tiles = sum(1 for _ in Tiling(len(X), len(X), tile, upper=True).pairs())
        n_bytes = len(planned) * n_tiles * tile**2 * np.dtype(X.dtype if self.dtype is None else self.dtype).itemsize
        check_memory(
            f"holding {len(planned)} kernels of {len(X):,} samples",
            {"kernels": n_bytes},
            where.task_bytes * where.slots,
            "Build them on disk with dmkl.build and fit the estimator itself on those, take fewer kernels or "
            "dtype='float32', or set dmkl.memory higher",
        )


class MKLClassifier(TableFront, ClassifierFront):
    """Multiple kernel learning on a table of features, for pipelines and searches of scikit-learn.

    ``fit`` makes kernels of the columns of X, each a function of one block of them, and learns their weights;
    ``predict`` computes the kernels that got weight between new and training samples. All kernels of the training
    samples are held in memory, n·m²/2 entries: for more, build them on disk with `dmkl.build` and fit the estimator on
    them.

    Parameters
    ----------
    estimator
        Any classifier of dmkl, `dmkl.MKFDA()` by default. Its parameters are set as ``estimator__p``,
        ``estimator__lam`` …
    kernels
        What to compute, as the `specs` of `dmkl.build`, their `feature` being the name of a block. By default
        exp(−‖x − y‖²/(b·D̄)) of every block for b = 0.1, 0.3, 1, 3 and 10, D̄ being the mean of ‖x − y‖² over the
        pairs of training samples.
    blocks
        Columns of X by the name of the block: names, positions, a slice or a mask. By default all columns are one
        block "X".
    missing
        Whether samples may lack blocks, their columns being NaN: "refuse" them, or "zero", which gives them the mean of
        the training samples in the block's feature spaces.
    dtype
        Precision of the kernels, "float32" or "float64"; that of X by default.

    Attributes
    ----------
    estimator_ : KernelClassifier
        The fitted estimator. Its `save` writes the model; what `dmkl.load` reads predicts from
        ``features={block: columns}``.
    weights_ : DataArray
        β, over kernel; over kernel and task for a multilabel problem.
    kernel_names_ : tuple of str
        The kernels.
    classes_ : ndarray
        The labels, sorted; 0 and 1 for a multilabel problem.
    n_iter_ : int
        Weightings tried, where the estimator counts them.
    n_features_in_ : int
        Columns of X.
    feature_names_in_ : ndarray
        Their names, where X is a data frame whose columns have names.

    Notes
    -----
    Everything is computed in this process, never on a `distributed` client: a fit is a part of a larger job, whose
    parts joblib hands out (``n_jobs=``). In the main thread it takes all cores, in a worker process of joblib its share
    of the cores and of `dmkl.memory`, in any other thread that thread alone.

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

    def _checked(self, y: Any, unknown: Any) -> Array:
        check_classification_targets(y)
        labels = y.toarray() if hasattr(y, "toarray") else y  # sparse, as of many tasks
        if labels.ndim == 2 and labels.shape[1] == 1:
            labels = column_or_1d(labels, warn=True)
        encode_targets(with_unknown(labels, unknown), len(labels))
        return np.asarray(labels)


class MKLRegressor(TableFront, RegressorFront):
    """Multiple kernel ridge regression on a table of features, for pipelines and searches of scikit-learn.

    As `MKLClassifier`, with targets that are numbers.

    Parameters
    ----------
    estimator
        Any regression of dmkl, `dmkl.MKRidge()` by default. Its parameters are set as ``estimator__p``,
        ``estimator__lam`` …
    kernels, blocks, missing, dtype
        As in `MKLClassifier`.

    Attributes
    ----------
    weights_ : DataArray
        β, over kernel; over kernel and target for several targets.
    estimator_, kernel_names_, n_iter_, n_features_in_, feature_names_in_
        As in `MKLClassifier`.

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

    def _checked(self, y: Any, unknown: Any) -> Array:
        encode_values(with_unknown(y, unknown), len(y))
        return np.asarray(y)
