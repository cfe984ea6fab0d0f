"""Compiled sums over columns that BLAS does not have: χ² distances, minima, absolute differences.

Each adds Σ_k f(x_ik, y_jk) to an array (i, j). Neighboring j lie in one vector register, k in the loop around, so that
no sum has to be rearranged to be vectorized; `_STRIP` columns of the result stay in the first cache level. Zeros of x
are passed over without a division: histograms are full of them.

Compiled when first called, for each precision, and kept on disk.
"""

from __future__ import annotations

from dmkl.arrays import Array
from dmkl.numerics.compiling import compiled

__all__ = ["add_chi2", "add_l1", "add_minimum"]

_STRIP = 1024

# No care for signed zeros, and nothing that reorders or contracts: every operation rounds as IEEE 754 says, whatever
# machine the loops were compiled for. `compiled` leaves out the test for a division by zero, which would keep the loop
# from being vectorized.
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
