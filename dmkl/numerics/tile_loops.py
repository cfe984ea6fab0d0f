"""Compiled products with weighted sums of many matrices, and their traces with outer products.

BLAS would make the sums of a few rows, as products of small matrices, and multiply them, as products of small matrices
again, of which the first wait for memory and the second for calls. Here four rows of the sums of four targets are made
and used while they are in the first cache level, and all that takes time is done by two loops over columns, which hold
their factors in registers: `_add` and `_add_dots`. Both take rows by fours, so that each number that is loaded is used
four times.

Arrays are padded: rows to whole cache lines, which is where they begin too, because loads and stores that cross one
take twice as long; rows of matrices, kernels, targets and columns of X to fours. What is padded is zero.
"""

from __future__ import annotations

import numpy as np

from dmkl.arrays import Array
from dmkl.numerics.compiling import compiled

__all__ = ["COLUMNS", "FOUR", "add_multiplied", "add_products", "add_traces", "put_dots"]

FOUR = 4
"""Rows, targets and columns of X that go together; the loops below are written for four."""
COLUMNS = 16
"""Rows have multiples of so many columns: cache lines in single precision, and in double."""

# Sums may be rearranged, which is what it takes to keep sixteen of them in registers, many numbers wide.
_compiled = compiled({"reassoc", "contract", "nsz"})


@_compiled
def _add(
    out: Array, row: int, step: int, at: int, rows: Array, first: int, start: int, by: Array, length: int, fresh: bool
) -> None:
    """Add Σ_k by[i, k] rows[first + k, start:] to out[row + i step, at:], for so many columns and four i and k.

    Or put it there, if what is there is not to be kept.
    """
    y0, y1 = out[row, at : at + length], out[row + step, at : at + length]
    y2, y3 = out[row + 2 * step, at : at + length], out[row + 3 * step, at : at + length]
    v0, v1 = rows[first, start : start + length], rows[first + 1, start : start + length]
    v2, v3 = rows[first + 2, start : start + length], rows[first + 3, start : start + length]
    b00, b01, b02, b03 = by[0, 0], by[0, 1], by[0, 2], by[0, 3]
    b10, b11, b12, b13 = by[1, 0], by[1, 1], by[1, 2], by[1, 3]
    b20, b21, b22, b23 = by[2, 0], by[2, 1], by[2, 2], by[2, 3]
    b30, b31, b32, b33 = by[3, 0], by[3, 1], by[3, 2], by[3, 3]
    if fresh:
        for j in range(length):
            p0, p1, p2, p3 = v0[j], v1[j], v2[j], v3[j]
            y0[j] = b00 * p0 + b01 * p1 + b02 * p2 + b03 * p3
            y1[j] = b10 * p0 + b11 * p1 + b12 * p2 + b13 * p3
            y2[j] = b20 * p0 + b21 * p1 + b22 * p2 + b23 * p3
            y3[j] = b30 * p0 + b31 * p1 + b32 * p2 + b33 * p3
        return
    for j in range(length):
        p0, p1, p2, p3 = v0[j], v1[j], v2[j], v3[j]
        # All loads come before the first store: the compiler cannot know that rows are not the same.
        u0, u1, u2, u3 = y0[j], y1[j], y2[j], y3[j]
        y0[j] = u0 + b00 * p0 + b01 * p1 + b02 * p2 + b03 * p3
        y1[j] = u1 + b10 * p0 + b11 * p1 + b12 * p2 + b13 * p3
        y2[j] = u2 + b20 * p0 + b21 * p1 + b22 * p2 + b23 * p3
        y3[j] = u3 + b30 * p0 + b31 * p1 + b32 * p2 + b33 * p3


@_compiled
def _add_dots(
    left: Array,
    first: int,
    step: int,
    right: Array,
    row: int,
    far: int,
    start: int,
    length: int,
    count: int,
    out: Array,
) -> None:
    """Add Σ_r left[first + r + i step, :length] · right[row + r far + k, start:] to out[k, i], for four i and k."""
    zero = left.dtype.type(0)
    s00, s01, s02, s03, s10, s11, s12, s13 = zero, zero, zero, zero, zero, zero, zero, zero
    s20, s21, s22, s23, s30, s31, s32, s33 = zero, zero, zero, zero, zero, zero, zero, zero
    for r in range(count):
        a, b = first + r, row + r * far
        x0, x1 = left[a, :length], left[a + step, :length]
        x2, x3 = left[a + 2 * step, :length], left[a + 3 * step, :length]
        y0, y1 = right[b, start : start + length], right[b + 1, start : start + length]
        y2, y3 = right[b + 2, start : start + length], right[b + 3, start : start + length]
        for j in range(length):
            p0, p1, p2, p3 = x0[j], x1[j], x2[j], x3[j]
            q0, q1, q2, q3 = y0[j], y1[j], y2[j], y3[j]
            s00 += q0 * p0
            s01 += q0 * p1
            s02 += q0 * p2
            s03 += q0 * p3
            s10 += q1 * p0
            s11 += q1 * p1
            s12 += q1 * p2
            s13 += q1 * p3
            s20 += q2 * p0
            s21 += q2 * p1
            s22 += q2 * p2
            s23 += q2 * p3
            s30 += q3 * p0
            s31 += q3 * p1
            s32 += q3 * p2
            s33 += q3 * p3
    out[0, 0] += s00
    out[0, 1] += s01
    out[0, 2] += s02
    out[0, 3] += s03
    out[1, 0] += s10
    out[1, 1] += s11
    out[1, 2] += s12
    out[1, 3] += s13
    out[2, 0] += s20
    out[2, 1] += s21
    out[2, 2] += s22
    out[2, 3] += s23
    out[3, 0] += s30
    out[3, 1] += s31
    out[3, 2] += s32
    out[3, 3] += s33


@_compiled
def add_products(
    matrices: Array, weights: Array, X: Array, out: Array, room: Array, dots: Array, strip: int, symmetric: bool
) -> None:
    """Add X_t (Σ_j w_tj K_j)ᵀ, whose rows are vectors, to out (t, c, rows).

    Parameters
    ----------
    matrices
        K_j row by row, (rows, n, columns); of symmetric ones only what is on the diagonal and to the right is read.
    weights, X
        (t, n) and (t, c, columns).
    room
        Where sums are made, (16, width).
    dots
        Where inner products are added up, (c, 4).
    strip
        Rows of the matrices that stay in the second cache level while all targets are taken.
    """
    rows, n, columns = matrices.shape
    targets, c, _ = X.shape
    flat, x, y = matrices.reshape(rows * n, columns), X.reshape(targets * c, columns), out.reshape(targets * c, -1)
    width = room.shape[1]
    for top in range(0, rows, strip):
        for left in range(top // COLUMNS * COLUMNS if symmetric else 0, columns, width):
            right = min(columns, left + width)
            for t in range(0, targets, 4):
                for i in range(top, min(rows, top + strip), 4):
                    start = max(left, i // COLUMNS * COLUMNS) if symmetric else left
                    if start >= right:
                        continue
                    length = right - start
                    # Row by row: four sums stay in the first cache level, sixteen may not.
                    for r in range(4):
                        for j in range(0, n, 4):
                            by = weights[t : t + 4, j : j + 4]
                            _add(room, r, 4, 0, flat, (i + r) * n + j, start, by, length, j == 0)
                    here = symmetric and start < i + 4
                    for u in range(4):
                        first = (t + u) * c
                        if here:
                            # What is to the left of these rows was taken with those above.
                            room[4 * u : 4 * u + 4, : i - start] = 0
                        dots[:] = 0
                        for k in range(0, c, 4):
                            _add_dots(room, 4 * u, 1, x, first + k, 0, start, length, 1, dots[k : k + 4])
                        for k in range(c):
                            for v in range(4):
                                y[first + k, i + v] += dots[k, v]
                        if symmetric:
                            if here:
                                room[4 * u : 4 * u + 4, i - start : i - start + 4] = 0
                            for k in range(0, c, 4):
                                by = x[first + k : first + k + 4, i : i + 4]
                                _add(y, first + k, 1, start, room, 4 * u, 0, by, length, False)


@_compiled
def add_traces(matrices: Array, X: Array, out: Array, room: Array, dots: Array, strip: int) -> None:
    """Add ½ Σ_c x_cᵀK_j x_c, for X (t, c, m), to out (t, n), of symmetric matrices; dots are (4, 4)."""
    rows, n, columns = matrices.shape
    targets, c, _ = X.shape
    flat, x = matrices.reshape(rows * n, columns), X.reshape(targets * c, columns)
    width = room.shape[1]
    for top in range(0, rows, strip):
        for left in range(top // COLUMNS * COLUMNS, columns, width):
            right = min(columns, left + width)
            for t in range(0, targets, 4):
                for i in range(top, min(rows, top + strip), 4):
                    start = max(left, i // COLUMNS * COLUMNS)
                    if start >= right:
                        continue
                    length = right - start
                    for u in range(4):
                        first = (t + u) * c
                        for k in range(0, c, 4):
                            by = x[first + k : first + k + 4, i : i + 4].T
                            _add(room, 4 * u, 1, 0, x, first + k, start, by, length, k == 0)
                    if start < i + 4:
                        room[:, : i - start] = 0
                        # Of what is at the diagonal both halves are there.
                        room[:, i - start : i - start + 4] *= 0.5
                    for j in range(0, n, 4):
                        dots[:] = 0
                        _add_dots(room, 0, 4, flat, i * n + j, n, start, length, 4, dots)
                        for u in range(4):
                            for v in range(4):
                                out[t + u, j + v] += dots[v, u]


@_compiled
def add_multiplied(matrix: Array, X: Array, out: Array, dots: Array, strip: int) -> None:
    """Add X_t Aᵀ, whose rows are vectors, for A (rows, columns) and X (t, c, columns), to out (t, c, rows)."""
    rows, columns = matrix.shape
    targets, c, _ = X.shape
    x, y = X.reshape(targets * c, columns), out.reshape(targets * c, -1)
    for top in range(0, rows, strip):
        for t in range(0, targets):
            for i in range(top, min(rows, top + strip), 4):
                dots[:] = 0
                for k in range(0, c, 4):
                    _add_dots(matrix, i, 1, x, t * c + k, 0, 0, columns, 1, dots[k : k + 4])
                for k in range(c):
                    for v in range(4):
                        y[t * c + k, i + v] += dots[k, v]


@_compiled
def put_dots(A: Array, B: Array, out: Array) -> None:
    """Put Σ_k a_ijk b_ijk, in double precision, to out (i, j)."""
    for i in range(A.shape[0]):
        for j in range(A.shape[1]):
            a, b, total = A[i, j], B[i, j], 0.0
            for k in range(len(a)):
                total += np.float64(a[k]) * np.float64(b[k])
            out[i, j] = total
