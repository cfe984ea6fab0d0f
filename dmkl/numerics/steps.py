"""The steps: centering, normalizing, taking samples.

    center          K ↦ (I − 11ᵀ/m) K (I − 11ᵀ/m)              mean over the training (column) samples
    trace           K ↦ K / tr K                                unit trace
    multiplicative  K ↦ K / (tr K/m − 1ᵀK1/m²)                  unit variance in feature space
    cosine          K ↦ D K D,  D_ii = K_ii^(−1/2)              unit norm in feature space (spherical)
    take            K ↦ K[rows, cols]

A step that is asked for by name is a `Step` with an entry in `STEPS`; what becomes of it once its statistics are known
is a `FittedStep` with an entry in `_FITTED`, which reads it back from files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from dmkl.arrays import Array, Index
from dmkl.errors import InputError
from dmkl.numerics.chain import ChainState, FittedStep, KernelSum, Step

__all__ = ["NORMALIZATIONS", "STEPS", "Take", "as_steps", "load_step"]


# --- as they are asked for ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Center(Step):
    """Center in feature space, by the means over the column samples."""

    name = "center"
    needs_training = needs_means = needs_row_means = True

    def fit(self, state: ChainState) -> Centering:
        return Centering(state.need("col_mean"), state.row_mean, state.square)


@dataclass(frozen=True)
class Trace(Step):
    """Divide by the trace over the column samples."""

    name = "trace"
    needs_training = True

    def fit(self, state: ChainState) -> Scaling:
        diagonal = state.need("diag_cols")
        size = diagonal.sum(axis=1)
        state.check_size(size, state.fitted.removed() * diagonal.shape[1], "trace")
        return Scaling(1.0 / size)


@dataclass(frozen=True)
class Multiplicative(Step):
    """Divide by the variance in feature space of the column samples."""

    name = "multiplicative"
    needs_training = needs_means = True

    def fit(self, state: ChainState) -> Scaling:
        diagonal, mean = state.need("diag_cols"), state.need("col_mean")
        size = diagonal.mean(axis=1) - mean.mean(axis=1)
        removed = state.fitted.removed() + np.abs(mean).mean(axis=1)
        state.check_size(size, removed, "variance in feature space")
        return Scaling(1.0 / size)


@dataclass(frozen=True)
class Cosine(Step):
    """Bring every sample to unit norm in feature space."""

    name = "cosine"
    needs_row_diagonal = forgets_means = True

    def fit(self, state: ChainState) -> CosineScaling:
        diagonal = state.need("diag_cols")
        state.check_diagonal(diagonal)
        columns = CosineScaling(diagonal**-0.5)
        return columns.training() if state.square else columns.fit(state)


STEPS: dict[str, Step] = {step.name: step for step in (Center(), Trace(), Multiplicative(), Cosine())}
"""The steps that can be asked for by name."""
NORMALIZATIONS = ("trace", "cosine", "multiplicative")
"""Those that bring kernels to one scale."""


def as_steps(steps: str | Iterable[str] | None) -> tuple[str, ...]:
    """The names of steps in the order in which they are applied.

    Parameters
    ----------
    steps
        Names of `STEPS`, or a text with commas or + between them, as "cosine,center"; no step for None, () and "none".

    Raises
    ------
    InputError
        If a name is none of theirs.
    """
    if isinstance(steps, str):
        steps = [] if steps.strip() in ("", "none") else [name.strip() for name in re.split("[,+]", steps)]
    found = () if steps is None else tuple(steps)
    for name in found:
        if name not in STEPS:
            msg = (
                f"steps takes names of steps in the order in which they are applied, of {', '.join(STEPS)}, such as "
                f"('center', 'trace'); got {name!r}"
            )
            raise InputError(msg)
    return found


# --- with their statistics ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Centering(FittedStep):
    """Subtract the means over the column samples."""

    name = "center"
    needs_row_means = True

    col_mean: Array | None
    """(kernel, cols): mean over the column samples of each column sample's row, before this step; None where only
    products with a square kernel are needed."""
    row_mean: Array | None = None
    """(kernel, rows): the same of each row; None where the rows differ and it was not needed."""
    square: bool = True
    """Whether the rows are the column samples."""

    def fit(self, state: ChainState) -> Centering:
        return Centering(self.col_mean, state.row_mean, square=False)

    def training(self) -> Centering:
        return Centering(self.col_mean, self.col_mean)

    def for_rows(self, rows: Index) -> tuple[Centering, Index]:
        assert self.col_mean is not None
        mean = self.col_mean if self.square else self.row_mean
        return Centering(self.col_mean, None if mean is None else mean[:, rows], square=False), rows

    def for_columns(self, cols: Index) -> tuple[CenteringOfColumns, Index]:
        assert self.square
        assert self.col_mean is not None
        return CenteringOfColumns(self.col_mean), cols

    @property
    def has_offset(self) -> bool:
        return not self.square

    def right(self, j: int, v: Array) -> Array:
        return np.asarray(v - v.mean(axis=0, keepdims=True))

    def left(self, j: int, y: Array, v: Array | None = None) -> Array:
        if self.square:
            return np.asarray(y - y.mean(axis=0, keepdims=True, dtype=np.float64))
        if v is None:
            return y
        assert self.col_mean is not None
        return np.asarray(y - self.col_mean[j] @ v)

    def elementwise(self, j: int, block: Array, rows: Index, cols: Index) -> Array:
        assert self.col_mean is not None
        row_mean = self.col_mean if self.square else self.row_mean
        assert row_mean is not None
        mean = self.col_mean[j]
        return np.asarray(block - row_mean[j][rows][:, None] - mean[cols][None, :] + mean.mean())

    def diagonal(self, diagonal: Array, *, rows: bool = False) -> Array | None:
        assert self.col_mean is not None
        mean = self.row_mean if rows else self.col_mean
        return None if mean is None else diagonal - 2.0 * mean + self.col_mean.mean(axis=1, keepdims=True)

    def means(self, mean: Array) -> Array:
        return np.zeros_like(mean)

    def apply_to(self, total: KernelSum) -> None:
        total.center()

    def removed(self, removed: Array | float) -> Array | float:
        assert self.col_mean is not None
        return removed + np.asarray(np.abs(self.col_mean).mean(axis=1))

    def for_products(self) -> Centering:
        return Centering(None if self.square else self.col_mean, None, self.square)


@dataclass(frozen=True)
class CenteringOfColumns(FittedStep):
    """Some columns of square kernels that are centered over all.

    Centering spreads V over all columns; with C = I − 11ᵀ/m and μ = K1/m, C K C V = C (KV − μ 1ᵀV).
    """

    name = "center columns"

    mean: Array
    """μ of each kernel, (kernel, rows)."""

    @property
    def has_offset(self) -> bool:
        return True

    def left(self, j: int, y: Array, v: Array | None = None) -> Array:
        if v is not None:
            y = y - self.mean[j][:, None] * v.sum(axis=0)
        return np.asarray(y - y.mean(axis=0, keepdims=True, dtype=np.float64))


@dataclass(frozen=True)
class Scaling(FittedStep):
    """Multiply each kernel by its factor, (kernel,)."""

    name = "scale"

    factor: Array

    def scalar(self, j: int) -> float:
        return float(self.factor[j])

    def left(self, j: int, y: Array, v: Array | None = None) -> Array:
        return np.asarray(y * self.factor[j])

    def elementwise(self, j: int, block: Array, rows: Index, cols: Index) -> Array:
        return np.asarray(block * self.factor[j])

    def diagonal(self, diagonal: Array, *, rows: bool = False) -> Array:
        return np.asarray(diagonal * self.factor[:, None])

    def means(self, mean: Array) -> Array:
        return np.asarray(mean * self.factor[:, None])

    def removed(self, removed: Array | float) -> Array | float:
        return np.asarray(removed * self.factor)


@dataclass(frozen=True)
class CosineScaling(FittedStep):
    """Multiply the rows and the columns of each kernel by numbers."""

    name = "cosine"
    needs_row_diagonal = forgets_means = True
    same_for_all = False

    col_scale: Array
    """(kernel, cols)"""
    row_scale: Array | None = None
    """(kernel, rows); None while it is not known for which rows."""

    def fit(self, state: ChainState) -> CosineScaling:
        diagonal = state.need("diag_rows")
        state.check_diagonal(diagonal)
        return replace(self, row_scale=diagonal**-0.5)

    def training(self) -> CosineScaling:
        return replace(self, row_scale=self.col_scale)

    def for_rows(self, rows: Index) -> tuple[CosineScaling, Index]:
        assert self.row_scale is not None
        return replace(self, row_scale=self.row_scale[:, rows]), rows

    def for_columns(self, cols: Index) -> tuple[CosineScaling, Index]:
        return replace(self, col_scale=self.col_scale[:, cols]), cols

    def right_alone(self) -> CosineScaling:
        return replace(self, row_scale=np.ones((len(self.col_scale), 1)))

    def right(self, j: int, v: Array) -> Array:
        return np.asarray(v * self.col_scale[j][:, None])

    def left(self, j: int, y: Array, v: Array | None = None) -> Array:
        assert self.row_scale is not None
        return np.asarray(y * self.row_scale[j][:, None])

    def elementwise(self, j: int, block: Array, rows: Index, cols: Index) -> Array:
        assert self.row_scale is not None
        return np.asarray(block * self.row_scale[j][rows][:, None] * self.col_scale[j][cols][None, :])

    def diagonal(self, diagonal: Array, *, rows: bool = False) -> Array:
        scale = self.row_scale if rows else self.col_scale
        assert scale is not None
        return np.asarray(diagonal * scale**2)

    def removed(self, removed: Array | float) -> Array | float:
        return np.asarray(removed * (self.col_scale**2).mean(axis=1))


@dataclass(frozen=True)
class Take(FittedStep):
    """Keep some rows and columns: a step without statistics."""

    name = "take"
    changes_entries = False
    forgets_means = True  # a mean over fewer columns is another mean

    rows: Index
    cols: Index
    """Their positions among those before the step; they may repeat and come in any order."""
    before: Index
    """How many rows and columns there were."""

    @property
    def keeps_square(self) -> bool:
        return np.array_equal(self.rows, self.cols)

    def shape(self, n_rows: int, n_cols: int) -> tuple[int, int]:
        return len(self.rows), len(self.cols)

    def taken(self, rows: Index, cols: Index) -> tuple[Index, Index]:
        return rows[self.rows], cols[self.cols]

    def training(self) -> Take:
        return Take(self.cols, self.cols, self.before[[1, 1]])

    def for_rows(self, rows: Index) -> tuple[Take, Index]:
        return Take(np.arange(len(rows)), self.cols, np.array([len(rows), self.before[1]])), self.rows[rows]

    def for_columns(self, cols: Index) -> tuple[Take, Index]:
        return Take(self.rows, np.arange(len(cols)), np.array([self.before[0], len(cols)])), self.cols[cols]

    def right(self, j: int, v: Array) -> Array:
        wide = np.zeros((self.before[1], v.shape[1]), dtype=v.dtype)
        np.add.at(wide, self.cols, v)  # positions may repeat, as in NumPy's indexing
        return wide

    def left(self, j: int, y: Array, v: Array | None = None) -> Array:
        return y[self.rows]

    def origins(self, rows: Index, cols: Index) -> tuple[Index, Index]:
        return self.rows[rows], self.cols[cols]

    def diagonal(self, diagonal: Array, *, rows: bool = False) -> Array:
        return diagonal[:, self.rows if rows else self.cols]

    def apply_to(self, total: KernelSum) -> None:
        total.take(self.rows)

    def select(self, kernels: Index) -> Take:
        return self


_FITTED: dict[str, type[FittedStep]] = {kind.name: kind for kind in (Centering, Scaling, CosineScaling, Take)}


def load_step(described: Mapping[str, Any], arrays: Mapping[str, Array]) -> FittedStep:
    """The step of which `FittedStep.described` and `FittedStep.arrays` were saved; KeyError or TypeError if none."""
    kind = _FITTED[described["kind"]]
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    return kind(**arrays, **{name: value for name, value in described.items() if name in names})
