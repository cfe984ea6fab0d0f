"""Residualizing, the step: K ↦ PKPᵀ, where P takes covariates and the mean out of the training samples.

With w the weights of the column samples (1/m each), [1, Z] has a basis Q with Qᵀdiag(w)Q = I (`covariates.basis`).
With G = diag(w)Q the projector is P = I − QGᵀ. What it needs of a kernel is T = KG, a block of columns in one pass,
where centering needs its first column, the means. For new rows with basis q(x): [k(x, ·) − q(x)Tᵀ] Pᵀ.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dmkl.arrays import Array, Index
from dmkl.numerics.chain import ChainState, FittedStep, Step
from dmkl.numerics.covariates import Covariates, basis

__all__ = ["Residualize", "Residualizing", "ResidualizingOfColumns"]


@dataclass(frozen=True)
class Residualize(Step):
    """Take the mean and the covariates out, by a regression over the column samples."""

    name = "residualize"
    needs_training = needs_means = needs_row_means = True

    covariates: Covariates
    cols: Array
    rows: Array
    """[1, Z] of the columns and of the rows, (samples, 1 + covariates)."""
    weights: Array | None = None

    @cached_property
    def _coefficients(self) -> Array:
        return basis(self.cols, self.weights)

    @cached_property
    def vectors(self) -> Array:
        share = np.full(len(self.cols), 1.0 / len(self.cols)) if self.weights is None else self.weights
        return np.asarray((share / share.sum())[:, None] * (self.cols @ self._coefficients))

    def training(self) -> Residualize:
        return replace(self, rows=self.cols)

    def for_rows(self, rows: Index) -> tuple[Residualize, Index]:
        return replace(self, rows=self.rows[rows]), rows

    def fit(self, state: ChainState) -> Residualizing:
        projected, coefficients = state.need("col_mean"), self._coefficients
        return Residualizing(
            self.cols @ coefficients,
            self.vectors,
            projected,
            coefficients,
            np.array(self.covariates.samples),
            self.covariates.design,
            self.rows @ coefficients,
            state.row_mean,
            state.square,
        )


@dataclass(frozen=True)
class Residualizing(FittedStep):
    """Residualize with its statistics."""

    name = "residualize"
    needs_row_means = True
    same_for_all = False
    shared = frozenset({"basis", "dual", "coefficients", "samples", "design", "row_basis"})

    basis: Array
    """Q, (cols, rank)"""
    dual: Array
    """G = diag(w)Q, (cols, rank)"""
    projected: Array
    """T = KG, (kernel, cols, rank), of the kernels before this step."""
    coefficients: Array
    """B, (1 + covariates, rank): q(x) = [1, z(x)]B."""
    samples: Array
    """Names of the samples whose covariates are known."""
    design: Array
    """Their covariates, (samples, covariates)."""
    row_basis: Array | None = None
    """q of each row, (rows, rank); None while it is not known for which rows."""
    row_projected: Array | None = None
    """(kernel, rows, rank): T of the rows; None where the rows differ and it was not needed."""
    square: bool = True
    """Whether the rows are the column samples."""

    @property
    def vectors(self) -> Array:
        return self.dual

    def of_samples(self, samples: Array, covariates: Covariates | None = None) -> Residualizing:
        known = covariates or Covariates(tuple(map(str, self.samples)), (), self.design)
        return replace(self, row_basis=known.of(samples) @ self.coefficients, row_projected=None, square=False)

    def fit(self, state: ChainState) -> Residualizing:
        return replace(self, row_projected=state.row_mean, square=False)

    def mirrored(self, places: Index) -> Residualizing:
        assert self.row_basis is not None
        assert self.row_projected is not None
        dual = np.zeros((len(self.row_basis), self.dual.shape[1]))
        dual[places] = self.dual
        return replace(self, basis=self.row_basis, dual=dual, projected=self.row_projected, square=True)

    def training(self) -> Residualizing:
        return replace(self, row_basis=self.basis, row_projected=self.projected, square=True)

    def for_rows(self, rows: Index) -> tuple[Residualizing, Index]:
        near, mine = (self.projected, self.basis) if self.square else (self.row_projected, self.row_basis)
        assert mine is not None
        near = None if near is None else near[:, rows]
        return replace(self, row_projected=near, row_basis=mine[rows], square=False), rows

    def for_columns(self, cols: Index) -> tuple[ResidualizingOfColumns, Index]:
        assert self.square
        return ResidualizingOfColumns(self.projected, self.basis, self.dual, self.basis[cols]), cols

    @property
    def has_offset(self) -> bool:
        return not self.square

    def right(self, j: int, v: Array) -> Array:
        return np.asarray(v - self.dual @ (self.basis.T @ v))

    def left(self, j: int, y: Array, v: Array | None = None) -> Array:
        if self.square:
            y -= self.basis @ (self.dual.T @ y)
        elif v is not None:
            assert self.row_basis is not None
            y -= self.row_basis @ (self.projected[j].T @ v)
        return y

    def elementwise(self, j: int, block: Array, rows: Index, cols: Index) -> Array:
        near, mine = (self.projected, self.basis) if self.square else (self.row_projected, self.row_basis)
        assert near is not None
        assert mine is not None
        inner, q, other = self.dual.T @ self.projected[j], mine[rows], self.basis[cols]
        return np.asarray(block - q @ self.projected[j][cols].T - near[j][rows] @ other.T + q @ inner @ other.T)

    def diagonal(self, diagonal: Array, *, rows: bool = False) -> Array | None:
        near, q = (self.row_projected, self.row_basis) if rows else (self.projected, self.basis)
        if near is None or q is None:
            return None
        inner = np.einsum("ma,nmb->nab", self.dual, self.projected)
        return np.asarray(diagonal - 2 * np.einsum("ma,nma->nm", q, near) + np.einsum("ma,nab,mb->nm", q, inner, q))

    def means(self, mean: Array) -> Array:
        return np.zeros(mean.shape[:2])

    def null_vectors(self, vectors: Array | None, n_cols: int) -> Array:
        return self.dual  # PᵀG = 0 for P = I − QGᵀ, since QᵀG = I

    def removed(self, removed: Array | float) -> Array | float:
        return np.asarray(removed + np.abs(np.einsum("ma,nma->nm", self.dual, self.projected)).sum(axis=1))


@dataclass(frozen=True)
class ResidualizingOfColumns(FittedStep):
    """Some columns of square kernels that are residualized over all: P K Pᵀ V = P (KV − T QᵀV), V in these columns."""

    name = "residualize columns"
    same_for_all = False
    shared = frozenset({"basis", "dual", "chosen"})

    projected: Array
    """T, (kernel, rows, rank)"""
    basis: Array
    """Q, (rows, rank)"""
    dual: Array
    """G, (rows, rank)"""
    chosen: Array
    """Q of the columns, (cols, rank)"""

    @property
    def has_offset(self) -> bool:
        return True

    def left(self, j: int, y: Array, v: Array | None = None) -> Array:
        if v is not None:
            y -= self.projected[j] @ (self.chosen.T @ v)
        y -= self.basis @ (self.dual.T @ y)
        return y
