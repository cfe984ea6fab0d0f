"""Compiled sums over columns that BLAS does not have: χ² distances, minima, absolute differences.

Each adds Σ_k f(x_ik, y_jk) to an array (i, j). Neighboring j lie in one vector register, with k in the loop around, so
that no sum has to be reordered for vectorization; `_STRIP` columns of the result fit in the first-level cache. Zeros of
x, which are most entries of a histogram, need no division.

The loops are compiled on the first call, for each precision, and cached on disk.
"""

from __future__ import annotations

from dmkl.arrays import Array
from dmkl.numerics.compiling import compiled

__all__ = ["add_chi2", "add_l1", "add_minimum"]

_STRIP = 1024

# The sign of zeros may be lost, but no operation is reordered or contracted: each rounds as IEEE 754 says, so the
# result does not depend on the machine that compiles. `compiled` leaves out the test for a division by zero, which
# would prevent vectorization.
_compiled = compiled({"nsz"})


@_compiled
def add_chi2(X: Array, YT: Array, out: Array) -> None:
    """Add Σ_k (x_ik − y_jk)²/(x_ik + y_jk), 0/0 being 0, for X (r, d) and Yᵀ (d, c), both ≥ 0, to out (r, c)."""
    for start in range(0, YT.shape[1], _STRIP):
        stop = min(YT.shape[1], start + _STRIP)
        for i in range(X.shape[0]):
            total = out[i, start:stop]
            for k in range(X.shape[1]):
                x = X[i, k]
                y = YT[k, start:stop]
                if x == 0:
                    # (0 − y)²/(0 + y) = y, and 0 for y = 0: no division.
                    for j in range(stop - start):
                        total[j] += y[j]
                else:
                    for j in range(stop - start):
                        apart = x - y[j]
                        total[j] += apart * apart / (x + y[j])


@_compiled
def add_minimum(X: Array, YT: Array, out: Array) -> None:
    """Add Σ_k min(x_ik, y_jk) for X (r, d) and Yᵀ (d, c), both ≥ 0, to out (r, c)."""
    for start in range(0, YT.shape[1], _STRIP):
        stop = min(YT.shape[1], start + _STRIP)
        for i in range(X.shape[0]):
            total = out[i, start:stop]
            for k in range(X.shape[1]):
                x = X[i, k]
                y = YT[k, start:stop]
                # min(0, y) = 0 for y ≥ 0.
                if x != 0:
                    for j in range(stop - start):
                        total[j] += min(x, y[j])


@_compiled
def add_l1(X: Array, YT: Array, out: Array) -> None:
    """Add Σ_k |x_ik − y_jk| for X (r, d) and Yᵀ (d, c) to out (r, c)."""
    for start in range(0, YT.shape[1], _STRIP):
        stop = min(YT.shape[1], start + _STRIP)
        for i in range(X.shape[0]):
            total = out[i, start:stop]
            for k in range(X.shape[1]):
                x = X[i, k]
                y = YT[k, start:stop]
                for j in range(stop - start):
                    total[j] += abs(x - y[j])
