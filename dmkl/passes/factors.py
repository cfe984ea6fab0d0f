"""Products with kernels that are products of factors, K_j = X_jZ_jᵀ, such as linear kernels of few features.

A product with b vectors, X_j(Z_jᵀV), takes 4·m·d_j·b operations instead of 2·m²·b.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dmkl.arrays import Array
from dmkl.passes.view import Factors, View

__all__ = ["factor_products", "factors_of", "strips"]

_STRIP_BYTES = 2**25
"""Bytes of a factor that are read and multiplied together."""


def factor_products(view: View, k: int, V: Array, *, products: bool) -> tuple[Array, Array | None]:
    """ZᵀV, (d, b), and if wanted X(ZᵀV) over all rows of the source, for the kernel at a position of the view.

    V is over all columns of the source. The sum ZᵀV is in float64 over strips in the precision of V.
    """
    factors, kernel, tiling = factors_of(view), view.kernels[[k]], view.source.tiling
    width = int(factors.widths[kernel[0]])
    inner = np.zeros((width, V.shape[1]))
    for strip in strips(width, slice(0, tiling.cols)):
        inner += factors.read(kernel, 1, strip).astype(V.dtype, copy=False).T @ V[strip]
    if not products:
        return inner, None
    result, coefficients = np.empty((tiling.rows, V.shape[1])), inner.astype(V.dtype, copy=False)
    for strip in strips(width, slice(0, tiling.rows)):
        result[strip] = factors.read(kernel, 0, strip).astype(V.dtype, copy=False) @ coefficients
    return inner, result


def factors_of(view: View) -> Factors:
    """The factors of the kernels of a view that has some."""
    factors = view.source.factors
    assert factors is not None
    return factors


def strips(width: int, rows: slice) -> Iterator[slice]:
    """Rows of a factor of so many columns that are read and multiplied together."""
    side = max(1, _STRIP_BYTES // (8 * max(width, 1)))
    return (slice(start, min(start + side, rows.stop)) for start in range(rows.start, rows.stop, side))
