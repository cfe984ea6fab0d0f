"""Covariates of samples, as residualizing takes them: a design of numbers, and an orthonormal basis of its columns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np

from dmkl.arrays import Array
from dmkl.errors import InputError

__all__ = ["Covariates", "basis", "of_new", "residualize"]

_TOLERANCE = 1e-8
"""Singular values of the standardized design under this part of the largest count as zero: columns are collinear."""


@dataclass(frozen=True, eq=False)
class Covariates:
    """Numbers about samples that have names: a step, where it stands among the names of steps (see `residualize`)."""

    samples: tuple[str, ...]
    columns: tuple[str, ...]
    """Names of the covariates, and of the levels of those that are categories."""
    design: Array
    """(samples, columns)"""

    @cached_property
    def digest(self) -> str:
        """It differs wherever a name or a number does."""
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
        """The rows [1, z] of samples by their names, (samples, 1 + columns); InputError if one is not there."""
        names = [str(name) for name in samples]
        missing = [name for name in names if name not in self._positions]
        if missing:
            msg = (
                f"residualize needs the covariates of every sample, but {len(missing)} of {len(names)} have no row, "
                f"the first being {missing[0]!r}; give residualize a table with a row for every sample learned from "
                "or predicted, by its name (an array is for samples without names, in their order), or those of new "
                "samples to predict (covariates=, --covariates)"
            )
            raise InputError(msg)
        rows = self.design[[self._positions[name] for name in names]]
        return np.column_stack([np.ones(len(names)), rows])


def residualize(Z: Any) -> Covariates:
    """The step that takes covariates out of kernels: K ↦ PKP, P = I − Z̃(Z̃ᵀZ̃)⁻¹Z̃ᵀ, Z̃ = [1, Z] over training samples.

    It stands among the names of steps in place of "center", which is the case without covariates:
    ``MKFDA(steps=(dmkl.residualize(Z), "trace"))``. A row of a new sample x becomes
    [k(x, ·) − z̃(x)(Z̃ᵀZ̃)⁻¹Z̃ᵀK] P: what the training samples tell of z is taken from it. In folds P is that of
    each fold's own training samples. Collinear columns (dummies of sites, say) do no harm; of a site that no training
    sample has nothing is known, and a mixture of the known sites' means is taken from its samples.

    Parameters
    ----------
    Z
        A pandas DataFrame with a row for each sample, its index being their names. Columns of numbers are taken as they
        are, others as categories. It may hold more samples than are trained on, and has to hold those that are
        predicted. An array (samples, covariates) or (samples,) of numbers is for samples without names, in their order.

    Raises
    ------
    InputError
        If a value is missing or infinite, a name is there twice, or Z has other than one or two dimensions.
    """
    import pandas as pd

    if not isinstance(Z, pd.DataFrame | pd.Series) and np.ndim(Z) not in (1, 2):
        msg = f"residualize takes (samples, covariates), a DataFrame or an array, got {np.ndim(Z)} dimensions"
        raise InputError(msg)
    table = pd.DataFrame(Z)
    samples, columns = [str(name) for name in table.index], [str(name) for name in table.columns]
    for name, twice in zip(samples, table.index.astype(str).duplicated(), strict=True):
        if twice:
            msg = f"residualize needs one row for each sample, but {name!r} has several; keep one of them"
            raise InputError(msg)
    names, parts = [], [np.zeros((len(table), 0))]
    for position, column in enumerate(columns):
        values = table.iloc[:, position]
        numbers = pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)
        bad = np.array(values.isna())
        if numbers and not bad.any():
            bad = ~np.isfinite(values.to_numpy(np.float64))
        if bad.any():
            at = int(np.argmax(bad))
            msg = (
                f"residualize needs every covariate of every sample, but {column!r} of sample {samples[at]!r} is "
                f"{values.iloc[at]} ({bad.sum()} such); fill it in, or leave out the column or the samples"
            )
            raise InputError(msg)
        if numbers:
            names.append(column)
            parts.append(values.to_numpy(np.float64)[:, None])
        else:
            text = values.astype(str).to_numpy(dtype=str)
            levels = np.unique(text)
            names += [f"{column}={level}" for level in levels]
            parts.append((text[:, None] == levels).astype(np.float64))
    return Covariates(tuple(samples), tuple(names), np.hstack(parts))


def of_new(Z: Any, trained: Covariates, samples: Array) -> Covariates:
    """Covariates of new samples in the columns of those that a model was trained with, whose samples stay known.

    Parameters
    ----------
    Z
        A DataFrame by sample, as `residualize` takes it, for some or all of the samples; an array has a row for each
        of them, in their order. A category that training did not have is none of those that it had; further columns
        are left alone.

    Raises
    ------
    InputError
        If a covariate is missing, or is a category where training had numbers; as `residualize`.
    """
    import pandas as pd

    if isinstance(Z, Covariates):
        found = Z
    elif isinstance(Z, pd.DataFrame | pd.Series):
        found = residualize(Z)
    else:
        rows = np.asarray(Z)
        if len(rows) != len(samples) or rows.ndim not in (1, 2):
            msg = (
                f"covariates must be an array with a row for each of the {len(samples)} samples that are predicted, or "
                f"a DataFrame by their names, got shape {rows.shape}"
            )
            raise InputError(msg)
        found = residualize(pd.DataFrame(rows, index=[str(name) for name in samples]))
    place = {name: position for position, name in enumerate(found.columns)}
    categories = {name.partition("=")[0] for name in found.columns if "=" in name}
    columns = []
    for name in trained.columns:
        if name in place:
            columns.append(found.design[:, place[name]])
        elif "=" in name and name.partition("=")[0] in categories:
            columns.append(np.zeros(len(found.samples)))
        else:
            known = ", ".join(map(repr, trained.columns[:10]))
            msg = (
                f"the model takes out the covariate {name!r}, which is not among those given, "
                f"{', '.join(map(repr, found.columns[:10])) or 'none'}; give all of {known}"
            )
            raise InputError(msg)
    design = np.column_stack([np.zeros((len(found.samples), 0)), *columns])
    given = set(found.samples)
    others = [k for k, name in enumerate(trained.samples) if name not in given]
    names = (*found.samples, *(trained.samples[k] for k in others))
    return Covariates(names, trained.columns, np.vstack([design, trained.design[others]]))


def basis(design: Array, weights: Array | None = None) -> Array:
    """B, (1 + columns, rank), such that Q = [1, Z]B has Qᵀdiag(w)Q = I and the ones for its first column.

    `design` is [1, Z], (samples, 1 + columns); w sums to one, 1/m for each sample where `weights` is None. Columns that
    are constant, and directions whose singular values are under `_TOLERANCE` of the largest, are left out.
    """
    m, width = design.shape
    w = np.full(m, 1.0 / m) if weights is None else weights / weights.sum()
    Z = design[:, 1:]
    mean = w @ Z
    centered = Z - mean
    scale = np.sqrt(w @ centered**2)
    varies = scale > _TOLERANCE * np.sqrt(w @ Z**2)
    inverse = np.where(varies, 1.0 / np.where(varies, scale, 1.0), 0.0)
    _, sizes, directions = np.linalg.svd(np.sqrt(w)[:, None] * (centered * inverse), full_matrices=False)
    kept = sizes > _TOLERANCE * max(sizes.max(initial=0.0), 1e-300)
    found = np.zeros((width, 1 + np.count_nonzero(kept)))
    found[1:, 1:] = inverse[:, None] * (directions[kept].T / sizes[kept])
    found[0, 1:] = -mean @ found[1:, 1:]
    found[0, 0] = 1.0
    if found.shape[1] >= m:
        msg = (
            f"residualize leaves nothing of {m} training samples: the mean and the covariates span "
            f"{found.shape[1]} dimensions, expected fewer than samples; give fewer covariates, or more samples"
        )
        raise InputError(msg)
    return found
