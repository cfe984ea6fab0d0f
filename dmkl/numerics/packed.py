"""Symmetric matrices in LAPACK's rectangular full packed form: half the memory, and factors by whole-matrix routines.

A triangle of order m is a vector of m(m + 1)/2 numbers in double precision, so that weighted sums of many matrices, and
inner products with them, are products of one matrix that has them as its rows.

Gustavson, Waśniewski, Dongarra, Langou: Rectangular full packed format for Cholesky's algorithm, ACM TOMS 37 (2010).
"""

from __future__ import annotations

import numpy as np

from dmkl.arrays import Array, Float
from dmkl.numerics.cholesky import call, status

__all__ = ["add_outer", "diagonal", "factorize", "half_solve", "pack", "product", "solve", "unpack"]

_FORM = (b"N", b"U")


def pack(matrix: Array) -> Float:
    """A symmetric matrix (m, m), of which one triangle is taken."""
    m = len(matrix)
    packed = np.empty(m * (m + 1) // 2)
    status("dtrttf", *_FORM, m, np.asfortranarray(matrix, dtype=np.float64), m, packed)
    return packed


def diagonal(m: int) -> Array:
    """Where the diagonal lies, (m,)."""
    return np.flatnonzero(pack(np.eye(m)))


def factorize(m: int, matrix: Float) -> bool:
    """Put the Cholesky factor in the place of a matrix; False where it is not positive definite."""
    return not status("dpftrf", *_FORM, m, matrix)


def solve(m: int, factor: Float, b: Float) -> Float:
    """A⁻¹B for B (m, c), by the factor of A."""
    solved = np.array(b, dtype=np.float64, order="F")
    status("dpftrs", *_FORM, m, solved.shape[1], factor, solved, m)
    return solved


def half_solve(m: int, factor: Float, b: Float) -> None:
    """Put L⁻¹B in the place of B (m, c), column-major, A = LLᵀ, so that (L⁻¹B)ᵀL⁻¹B = BᵀA⁻¹B."""
    call("dtfsm", b"N", b"L", b"U", b"T", b"N", m, b.shape[1], 1.0, factor, b, m)


def add_outer(m: int, factor: float, a: Float, keep: float, out: Float) -> None:
    """Put factor·AAᵀ + keep·C in the place of C, for A (m, c), column-major."""
    call("dsfrk", *_FORM, b"N", m, a.shape[1], factor, a, m, keep, out)


def product(m: int, matrix: Float, x: Float, work: Float) -> Float:
    """AX for X (m, c), column-major; `work` is (m, m), column-major, and is overwritten."""
    status("dtfttr", *_FORM, m, matrix, work, m)
    found = np.empty(x.shape, order="F")
    call("dsymm", b"L", b"U", m, x.shape[1], 1.0, work, m, x, m, 0.0, found, m)
    return found


def unpack(m: int, matrix: Float) -> Float:
    """The triangle as the upper one of a matrix (m, m), column-major; what is below the diagonal means nothing."""
    found = np.zeros((m, m), order="F")
    status("dtfttr", *_FORM, m, matrix, found, m)
    return found
