"""Covariates of samples for residualizing, an orthonormal basis of their columns, and other facts about samples."""

from __future__ import annotations

import itertools
import reprlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np

from dmkl.arrays import Array, Float, note_of_code, refuse_codes
from dmkl.errors import FeatureWarning, refuse, warn
from dmkl.numerics.discriminant import is_determined

if TYPE_CHECKING:
    import pandas as pd

# Singular values of the standardized design below this fraction of the largest are zero: columns are collinear.
_TOLERANCE = 1e-8
_SOME_SAMPLES = 10  # samples from which a category has to have fewer levels than half of them


@dataclass(frozen=True, eq=False)
class Covariates:
    """Numbers about named samples. It is a step, and is used in place of the name of a step (see `residualize`)."""

    samples: tuple[str, ...]
    columns: tuple[str, ...]  # names of the covariates, and of the levels of categorical ones
    design: Array  # (samples, columns)

    @cached_property
    def digest(self) -> str:
        """A hash that changes with every name and number."""
        text = "\0".join((str(self.design.shape), *self.samples, *self.columns))
        return sha256(text.encode() + self.design.tobytes()).hexdigest()[:16]

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {name: position for position, name in enumerate(self.samples)}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Covariates) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"residualize({', '.join(self.columns)}; {len(self.samples)} samples, {self.digest})"

    def of(self, samples: Array) -> Array:
        """The rows [1, z] of samples by name, (samples, 1 + columns); InputError if a sample has no row."""
        names = [str(name) for name in samples]
        missing = [name for name in names if name not in self._positions]
        if missing:
            refuse(
                f"residualize needs the covariates of every sample, but {len(missing)} of {len(names)} have no row, "
                f"the first being {missing[0]!r}; give residualize a table with a row for every sample of training and "
                "prediction, by its name (an array is for samples without names, in their order), or the covariates of "
                "new samples to predict (covariates=, --covariates)"
            )
        rows = self.design[[self._positions[name] for name in names]]
        return np.column_stack([np.ones(len(names)), rows])


def residualize(Z: Any) -> Covariates:
    """The step that removes covariates from kernels: K ↦ PKP, P = I − Z̃(Z̃ᵀZ̃)⁻¹Z̃ᵀ, Z̃ = [1, Z] of training samples.

    It is used in place of the step name "center", which is the case without covariates:
    ``MKFDA(steps=(dmkl.residualize(Z), "trace"))``. A row of a new sample x becomes
    [k(x, ·) − z̃(x)(Z̃ᵀZ̃)⁻¹Z̃ᵀK] P: the part that the regression on the training samples predicts from z is removed.
    In a fold P is computed from the training samples of that fold. Collinear columns (dummies of sites, say) do no
    harm. For a site without training samples nothing can be estimated: its samples lose a mixture of the means of the
    other sites.

    Parameters
    ----------
    Z
        A pandas DataFrame with a row for each sample, indexed by sample names. Numeric columns are used as they are,
        others as categories. It may hold more samples than the training set, and must hold the samples to predict. An
        array (samples, covariates) or (samples,) of numbers is for samples without names, in their order.

    Raises
    ------
    InputError
        If a value is missing or infinite, a name is there twice, or Z has neither one nor two dimensions. If texts such
        as "-" stand among numbers, or a category of ten samples or more has more levels than half of the samples.
    """
    import pandas as pd

    if not isinstance(Z, pd.DataFrame | pd.Series) and np.ndim(Z) not in (1, 2):
        refuse(f"residualize takes (samples, covariates), a DataFrame or an array, got {np.ndim(Z)} dimensions")
    table = pd.DataFrame(Z)
    for column, numbers in table.select_dtypes("number").items():
        if note := note_of_code(f"the covariate {column!r}", numbers):
            warn(note, FeatureWarning)
    for column, values in table.select_dtypes(exclude=["number", "bool"]).items():
        way_out = "fill it in, or leave out the column or these samples"
        refuse_codes(f"the covariate {column!r} has", values[values.notna()], way_out)
        if len(table) >= _SOME_SAMPLES and values.nunique() > len(table) / 2:
            refuse(
                f"the covariate {column!r} is a category of {values.nunique()} levels for {len(table)} samples, which "
                "would explain the labels of most samples; give numbers, or leave the column out"
            )
    return _encoded(table)


def _encoded(table: pd.DataFrame) -> Covariates:
    """The columns as they are, categories as indicators of their levels; see `residualize`."""
    import pandas as pd

    samples, columns = [str(name) for name in table.index], [str(name) for name in table.columns]
    for name, twice in zip(samples, table.index.astype(str).duplicated(), strict=True):
        if twice:
            refuse(f"residualize needs one row for each sample, but {name!r} has several; keep one of them")
    names, parts = list[str](), [np.zeros((len(table), 0))]
    for position, column in enumerate(columns):
        values = table.iloc[:, position]
        numbers = pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)
        bad = np.array(values.isna())
        if numbers and not bad.any():
            # Numbers may be infinite as well as missing; categories can only be missing.
            bad = ~np.isfinite(values.to_numpy(np.float64))
        if bad.any():
            at = int(np.argmax(bad))
            refuse(
                f"residualize needs every covariate of every sample, but {column!r} of sample {samples[at]!r} is "
                f"{values.iloc[at]} ({bad.sum()} such); fill it in, or leave out the column or the samples"
            )
        # One indicator for each level. Their sum is constant, as the intercept is; `basis` drops what is collinear.
        part = values.to_frame() if numbers else pd.get_dummies(values.astype(str), prefix=column, prefix_sep="=")
        names += map(str, part.columns)
        parts.append(part.to_numpy(np.float64))
    return Covariates(tuple(samples), tuple(names), np.hstack(parts))


def of_new(Z: Any, trained: Covariates, samples: Array) -> Covariates:
    """Covariates of new samples, in the columns of a trained model; its training samples are kept.

    Z is a DataFrame by sample, as `residualize` takes it, for some or all of the samples; an array has a row for each
    sample, in their order. A category that was absent from training has zeros for all trained levels; further columns
    are ignored. InputError as by `residualize`, and for a covariate that is missing, or was numeric in training alone.
    """
    import pandas as pd

    if isinstance(Z, Covariates):
        given_covariates = Z
    elif isinstance(Z, pd.DataFrame | pd.Series):
        given_covariates = _encoded(pd.DataFrame(Z))
    else:
        rows = np.asarray(Z)
        if len(rows) != len(samples) or rows.ndim not in (1, 2):
            rule = f"covariates must be an array with a row for each of the {len(samples)} samples to predict"
            refuse(f"{rule}, or a DataFrame by their names, got shape {rows.shape}")
        given_covariates = _encoded(pd.DataFrame(rows, index=[str(name) for name in samples]))
    place = {name: position for position, name in enumerate(given_covariates.columns)}
    categories = {name.partition("=")[0] for name in given_covariates.columns if "=" in name}
    for name in trained.columns:
        if name not in place and not ("=" in name and name.partition("=")[0] in categories):
            expected = ", ".join(map(repr, trained.columns[:10]))
            refuse(
                f"the model removes the covariate {name!r}, which is not among those given, "
                f"{', '.join(map(repr, given_covariates.columns[:10])) or 'none'}; give all of {expected}"
            )
    # Levels that new samples lack have the last column.
    padded = np.column_stack([given_covariates.design, np.zeros(len(given_covariates.samples))])
    design = padded[:, [place.get(name, -1) for name in trained.columns]]
    given = set(given_covariates.samples)
    # Training samples keep the covariates that the model was trained with; the new table may redefine them.
    others = [k for k, name in enumerate(trained.samples) if name not in given]
    names = (*given_covariates.samples, *(trained.samples[k] for k in others))
    return Covariates(names, trained.columns, np.vstack([design, trained.design[others]]))


def facts_of(samples: Array, values: Any, new: Any, kind: Callable[[Any], Any], rule: str, more: str) -> list[Any]:
    """Facts about samples, from those that a learner has and those of `new` samples, by name or in their order.

    InputError, that begins with the rule, for a sample without one; `more` says where those of new samples are given.
    """
    names = [str(name) for name in samples]
    given = {} if values is None else _facts_by_name(values, map(str, itertools.count()), kind, rule)
    if new is not None:
        given |= _facts_by_name(itertools.repeat(new) if np.isscalar(new) else new, names, kind, rule)
    missing = [name for name in names if name not in given]
    if missing:
        refuse(
            f"{rule}, and {len(missing)} of {len(names)} have none, the first being {missing[0]!r}; give them by name "
            f"(an array is for samples without names, in their order), and those of new samples to {more}"
        )
    return [given[name] for name in names]


def _facts_by_name(values: Any, names: Iterable[str], kind: Callable[[Any], Any], rule: str) -> dict[str, Any]:
    """Facts by sample: a mapping or a series as it is, others in the order of the names; InputError for others."""
    if isinstance(values, Covariates):  # of a file
        return dict(zip(values.samples, values.design[:, 0].tolist(), strict=True))
    try:
        items = values.items() if hasattr(values, "items") else zip(names, values, strict=False)
        return {str(name): kind(value) for name, value in items}
    except (TypeError, ValueError) as error:
        refuse(f"{rule}, got {reprlib.repr(values)}", error)


def basis(design: Array, weights: Array | None = None) -> Array:
    """B, (1 + columns, rank), such that Q = [1, Z]B has Qᵀdiag(w)Q = I and a first column of ones.

    `design` is [1, Z], (samples, 1 + columns); w sums to one, with 1/m for each sample by default. Constant columns,
    and directions with singular values below `_TOLERANCE` of the largest, are left out.
    """
    m, width = design.shape
    w = np.full(m, 1.0 / m) if weights is None else weights / weights.sum()
    Z = design[:, 1:]
    mean = w @ Z
    centered = Z - mean
    scale = np.sqrt(w @ centered**2)
    # Standardized columns make the tolerance independent of units. With w^{1/2}(Z − 1 mean)/scale = UΣVᵀ the columns of
    # U = w^{1/2}(Z − 1 mean)(V/scale)Σ⁻¹ are orthonormal, so Q = (Z − 1 mean)(V/scale)Σ⁻¹, which is [1, Z]B.
    varies = scale > _TOLERANCE * np.sqrt(w @ Z**2)
    inverse = np.where(varies, 1.0 / np.where(varies, scale, 1.0), 0.0)
    _, sizes, directions = np.linalg.svd(np.sqrt(w)[:, None] * (centered * inverse), full_matrices=False)
    kept = sizes > _TOLERANCE * max(sizes.max(initial=0.0), 1e-300)
    combination = np.zeros((width, 1 + np.count_nonzero(kept)))
    combination[1:, 1:] = inverse[:, None] * (directions[kept].T / sizes[kept])
    combination[0, 1:] = -mean @ combination[1:, 1:]
    combination[0, 0] = 1.0
    # As many dimensions as samples would leave kernels of zero.
    if combination.shape[1] >= m:
        what = f"the mean and the covariates span {combination.shape[1]} dimensions, expected fewer than samples"
        refuse(f"residualize leaves nothing of {m} training samples: {what}; give fewer covariates, or more samples")
    return combination


def regress(design: Array, values: Float, new: Array) -> tuple[Float, Float]:
    """Least squares of each column of `values`, (m, columns), on [1, Z] over the rows where it is not NaN.

    Returns the predictions for the rows [1, z] of `new`, (rows, columns), and the leave-one-out predictions
    (f − hy)/(1 − h) of the rows of `design`, (m, columns), f the fit and h the leverage. These are NaN where the value
    is unknown, and where the covariates determine the row. InputError as from `basis`.
    """
    predicted, left_out = np.empty((len(new), values.shape[1])), np.full(values.shape, np.nan)
    masks, which = np.unique(~np.isnan(values), axis=1, return_inverse=True)
    for k, mask in enumerate(masks.T):
        rows, columns = np.flatnonzero(mask), np.flatnonzero(which == k)
        B, y = basis(design[rows]), values[np.ix_(rows, columns)]
        Q = design[rows] @ B
        coefficients = Q.T @ y / len(rows)
        predicted[:, columns] = new @ (B @ coefficients)
        leverage = np.vecdot(Q, Q) / len(rows)
        kept = ~is_determined(leverage)
        h = leverage[kept, None]
        left_out[np.ix_(rows[kept], columns)] = (Q[kept] @ coefficients - h * y[kept]) / (1.0 - h)
    return predicted, left_out
