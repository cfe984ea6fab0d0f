"""Steps with their statistics: see `dmkl.numerics.steps`, which makes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from dmkl.arrays import Array, Index
from dmkl.numerics.chain import ChainState, FittedStep, KernelSum
from dmkl.numerics.residualizing import Residualizing

__all__ = ["Centering", "CenteringOfColumns", "CosineScaling", "Scaling", "Take", "Weighing", "load_step", "mean_over"]


def mean_over(values: Array, weights: Array | None) -> Array:
    """The mean over samples, (kernel,), of values (kernel, samples)."""
    return np.asarray(values.mean(axis=1) if weights is None else values @ (weights / weights.sum()))


@dataclass(frozen=True)
class Centering(FittedStep):
    """Subtract the means over the column samples."""

    name = "center"
    needs_row_means = True
    shared = frozenset({"weights"})

    col_mean: Array | None
    """(kernel, cols): mean over the column samples of each column sample's row, before this step; None where only
    products with a square kernel are needed."""
    row_mean: Array | None = None
    """(kernel, rows): the same of each row; None where the rows differ and it was not needed."""
    square: bool = True
    """Whether the rows are the column samples."""
    weights: Array | None = None
    """w, (cols,), that sum to one; all alike where None."""

    def fit(self, state: ChainState) -> Centering:
        return replace(self, row_mean=state.row_mean, square=False)

    def mirrored(self, places: Index) -> Centering:
        # The mean of the means over the training samples is that of all, of which the others have no weight.
        assert self.row_mean is not None
        weights = np.zeros(self.row_mean.shape[1])
        weights[places] = 1.0 / len(places) if self.weights is None else self.weights
        return Centering(self.row_mean, weights=weights)

    def training(self) -> Centering:
        return replace(self, row_mean=self.col_mean, square=True)

    def for_rows(self, rows: Index) -> tuple[Centering, Index]:
        assert self.col_mean is not None
        mean = self.col_mean if self.square else self.row_mean
        return replace(self, row_mean=None if mean is None else mean[:, rows], square=False), rows

    def for_columns(self, cols: Index) -> tuple[CenteringOfColumns, Index]:
        assert self.square
        assert self.col_mean is not None
        return CenteringOfColumns(self.col_mean, self.weights), cols

    @property
    def has_offset(self) -> bool:
        return not self.square

    def right(self, j: int, v: Array) -> Array:
        if self.weights is None:
            return np.asarray(v - v.mean(axis=0, keepdims=True))
        return np.asarray(v - np.outer(self.weights, v.sum(axis=0)))

    def left(self, j: int, y: Array, v: Array | None = None) -> Array:
        if self.square:
            return _less_mean(y, self.weights)
        if v is not None:
            assert self.col_mean is not None
            y -= self.col_mean[j] @ v
        return y

    def elementwise(self, j: int, block: Array, rows: Index, cols: Index) -> Array:
        assert self.col_mean is not None
        row_mean = self.col_mean if self.square else self.row_mean
        assert row_mean is not None
        mean = self.col_mean[j]
        grand = mean.mean() if self.weights is None else mean @ self.weights
        return np.asarray(block - row_mean[j][rows][:, None] - mean[cols][None, :] + grand)

    def diagonal(self, diagonal: Array, *, rows: bool = False) -> Array | None:
        assert self.col_mean is not None
        mean = self.row_mean if rows else self.col_mean
        return None if mean is None else diagonal - 2.0 * mean + mean_over(self.col_mean, self.weights)[:, None]

    def means(self, mean: Array) -> Array:
        return np.zeros_like(mean)

    def null_vectors(self, vectors: Array | None, n_cols: int) -> Array:
        # C K Cᵀ w = 0, since Cᵀw = 0 for C = I − 1wᵀ.
        return np.ones((n_cols, 1)) if self.weights is None else self.weights[:, None]

    def apply_to(self, total: KernelSum) -> None:
        total.center(self.weights)

    def removed(self, removed: Array | float) -> Array | float:
        assert self.col_mean is not None
        return removed + mean_over(np.abs(self.col_mean), self.weights)

    def for_products(self) -> Centering:
        return replace(self, col_mean=None if self.square else self.col_mean, row_mean=None)


@dataclass(frozen=True)
class CenteringOfColumns(FittedStep):
    """Some columns of square kernels that are centered over all.

    Centering spreads V over all columns; with C = I − 1wᵀ and μ = Kw, C K Cᵀ V = C (KV − μ 1ᵀV), where w = 1/m unless
    samples have weights.
    """

    name = "center columns"
    shared = frozenset({"weights"})

    mean: Array
    """μ of each kernel, (kernel, rows)."""
    weights: Array | None = None
    """w, (rows,)"""

    @property
    def has_offset(self) -> bool:
        return True

    def left(self, j: int, y: Array, v: Array | None = None) -> Array:
        if v is not None:
            y -= self.mean[j][:, None] * v.sum(axis=0)
        return _less_mean(y, self.weights)


def _less_mean(y: Array, weights: Array | None) -> Array:
    """Take the mean of its rows, by weights that sum to one, from Y, which is overwritten."""
    y -= y.mean(axis=0, keepdims=True, dtype=np.float64) if weights is None else weights @ y
    return y


@dataclass(frozen=True)
class Scaling(FittedStep):
    """Multiply each kernel by its factor, (kernel,)."""

    name = "scale"

    factor: Array

    def scalar(self, j: int) -> float:
        return float(self.factor[j])

    def null_vectors(self, vectors: Array | None, n_cols: int) -> Array | None:
        return vectors

    def left(self, j: int, y: Array, v: Array | None = None) -> Array:
        y *= self.factor[j]
        return y

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
    needs_row_diagonal = forgets_means = scales_columns = True
    same_for_all = False

    col_scale: Array
    """(kernel, cols)"""
    row_scale: Array | None = None
    """(kernel, rows); None while it is not known for which rows."""

    def fit(self, state: ChainState) -> CosineScaling:
        diagonal = state.need("diag_rows")
        state.check_diagonal(diagonal)
        return replace(self, row_scale=diagonal**-0.5)

    def mirrored(self, places: Index) -> CosineScaling:
        assert self.row_scale is not None
        return CosineScaling(self.row_scale, self.row_scale)

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
        y *= self.row_scale[j][:, None]
        return y

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
class Weighing(FittedStep):
    """Multiply rows and columns by numbers that all kernels have in common: a step without statistics."""

    name = "weigh"
    forgets_means = scales_columns = True
    shared = frozenset({"col_scale", "row_scale"})

    col_scale: Array
    """(cols,)"""
    row_scale: Array
    """(rows,)"""

    def training(self) -> Weighing:
        return replace(self, row_scale=self.col_scale)

    def for_rows(self, rows: Index) -> tuple[Weighing, Index]:
        return replace(self, row_scale=self.row_scale[rows]), rows

    def for_columns(self, cols: Index) -> tuple[Weighing, Index]:
        return replace(self, col_scale=self.col_scale[cols]), cols

    def right_alone(self) -> Weighing:
        return replace(self, row_scale=np.ones(1))

    def right(self, j: int, v: Array) -> Array:
        return np.asarray(v * self.col_scale[:, None])

    def left(self, j: int, y: Array, v: Array | None = None) -> Array:
        y *= self.row_scale[:, None]
        return y

    def elementwise(self, j: int, block: Array, rows: Index, cols: Index) -> Array:
        return np.asarray(block * self.row_scale[rows][:, None] * self.col_scale[cols][None, :])

    def diagonal(self, diagonal: Array, *, rows: bool = False) -> Array:
        return np.asarray(diagonal * (self.row_scale if rows else self.col_scale) ** 2)

    def counts(self, counts: Array) -> Array:
        return np.asarray(counts * self.col_scale**2)

    def null_vectors(self, vectors: Array | None, n_cols: int) -> Array | None:
        return None if vectors is None else np.asarray(vectors / self.col_scale[:, None])

    def apply_to(self, total: KernelSum) -> None:
        total.scale(self.row_scale)

    def removed(self, removed: Array | float) -> Array | float:
        return removed * float((self.col_scale**2).mean())


@dataclass(frozen=True)
class Take(FittedStep):
    """Keep some rows and columns: a step without statistics."""

    name = "take"
    changes_entries = False
    shared = frozenset({"rows", "cols", "before"})
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


_FITTED: dict[str, type[FittedStep]] = {
    kind.name: kind for kind in (Centering, Residualizing, Scaling, CosineScaling, Weighing, Take)
}


def load_step(described: Mapping[str, Any], arrays: Mapping[str, Array]) -> FittedStep:
    """The step of which `FittedStep.described` and `FittedStep.arrays` were saved; KeyError or TypeError if none."""
    kind = _FITTED[described["kind"]]
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    return kind(**arrays, **{name: value for name, value in described.items() if name in names})
