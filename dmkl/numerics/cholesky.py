"""Cholesky factors that leave the interpreter to other threads while LAPACK computes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dmkl.arrays import Array
from dmkl.numerics.lapack import call, status

__all__ = ["Cholesky"]

_BLOCK = 64
"""Rows or columns that are taken at once."""
_PREFIX = {np.dtype(np.float32): "s", np.dtype(np.float64): "d"}


@dataclass(frozen=True, eq=False)
class Cholesky:
    """A = LLᵀ of a positive definite matrix, in single or double precision.

    Parameters
    ----------
    lower
        (m, m), column-major; what is above the diagonal means nothing.
    """

    lower: Array

    @property
    def _prefix(self) -> str:
        return _PREFIX[self.lower.dtype]

    @classmethod
    def of(cls, matrix: Array) -> Cholesky:
        """Factorize a symmetric matrix of which the lower triangle is read; a column-major one is overwritten.

        Raises
        ------
        LinAlgError
            If it is not positive definite.
        """
        lower = np.asfortranarray(matrix)
        info = status(_PREFIX[lower.dtype] + "potrf", b"L", len(lower), lower, len(lower))
        if info:
            msg = f"the leading minor of order {info} is not positive"
            raise np.linalg.LinAlgError(msg)
        return cls(lower)

    def solve(self, b: Array) -> Array:
        """A⁻¹B for B (m,) or (m, c)."""
        m = len(self.lower)
        solved = np.array(b, dtype=self.lower.dtype, order="F")
        status(self._prefix + "potrs", b"L", m, solved.size // max(m, 1), self.lower, m, solved, m)
        return solved

    def half_solve(self, b: Array) -> Array:
        """L⁻¹B for B (m, c), so that (L⁻¹B)ᵀL⁻¹B = BᵀA⁻¹B: half the flops of A⁻¹B; a column-major B is overwritten."""
        return self._half_solved(b, b"N")

    def half_solve_transposed(self, b: Array) -> Array:
        """L⁻ᵀB for B (m, c); a column-major B is overwritten."""
        return self._half_solved(b, b"T")

    def _half_solved(self, b: Array, how: bytes) -> Array:
        m = len(self.lower)
        solved = np.asfortranarray(b, dtype=self.lower.dtype)
        status(self._prefix + "trtrs", b"L", how, b"N", m, solved.shape[1], self.lower, m, solved, m)
        return solved

    def half_product_transposed(self, b: Array) -> Array:
        """LᵀB for B (m, c)."""
        m = len(self.lower)
        product = np.array(b, dtype=self.lower.dtype, order="F")
        one = np.ones(1, dtype=self.lower.dtype)
        call(self._prefix + "trmm", b"L", b"L", b"T", b"N", m, product.shape[1], one, self.lower, m, product, max(m, 1))
        return product

    def inverse(self) -> Array:
        """A⁻¹, (m, m)."""
        m = len(self.lower)
        found = self.lower.copy(order="F")
        status(self._prefix + "potri", b"L", m, found, m)
        return _mirrored(found)

    def congruent(self, matrix: Array) -> Array:
        """L⁻¹BL⁻ᵀ of a symmetric B, (m, m): half the flops of two products with L⁻¹."""
        m = len(self.lower)
        found = np.array(matrix, dtype=self.lower.dtype, order="F")
        status(self._prefix + "sygst", 1, b"L", m, found, m, self.lower, m)
        return _mirrored(found)

    def inverse_diagonal(self) -> Array:
        """The diagonal of A⁻¹, (m,): the squared lengths of the columns of L⁻¹."""
        m = len(self.lower)
        inverse, diagonal = self.lower.copy(order="F"), np.empty(m, self.lower.dtype)
        status(self._prefix + "trtri", b"L", b"N", m, inverse, m)
        for start in range(0, m, _BLOCK):
            columns = np.tril(inverse[start:, start : start + _BLOCK])
            diagonal[start : start + _BLOCK] = np.einsum("ij,ij->j", columns, columns)
        return diagonal


def _mirrored(lower: Array) -> Array:
    """A symmetric matrix, column-major, of which the lower triangle is known; in its place."""
    for i in range(0, len(lower), _BLOCK):
        j = min(i + _BLOCK, len(lower))
        square = lower[i:j, i:j]
        square[:] = np.tril(square) + np.tril(square, -1).T
        lower[i:j, j:] = lower[j:, i:j].T
    return lower
