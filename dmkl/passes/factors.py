"""Kernels that are products of factors, K_j = X_jZ_jᵀ, such as linear kernels of few features.

A product with b vectors, X_j(Z_jᵀV), takes 4·m·d_j·b operations instead of 2·m²·b. A square kernel has factors after
the steps too: a step maps K to s·LKLᵀ for a scalar s and a matrix L, so that Z becomes √s·LZ.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dmkl.arrays import Array, Float, Index
from dmkl.numerics.discriminant import null_leverages
from dmkl.passes.execute import machine
from dmkl.passes.view import Factors, Lens, View

__all__ = ["factor_products", "has_thin_factors", "inverse_diagonals_by_factors", "stepped_factors"]

_STRIP_BYTES = 2**25
"""Bytes of a factor that are read and multiplied together."""


def factor_products(view: View, k: int, V: Array, *, products: bool) -> tuple[Array, Array | None]:
    """ZᵀV, (d, b), and if wanted X(ZᵀV) over all rows of the source, for the kernel at a position of the view.

    V is over all columns of the source. The sum ZᵀV is in float64 over strips in the precision of V.
    """
    factors, kernel, tiling = _factors(view), int(view.kernels[k]), view.source.tiling
    width = int(factors.widths[kernel])

    def strips(n_samples: int) -> Iterator[slice]:
        side = max(1, _STRIP_BYTES // (8 * max(width, 1)))
        return (slice(start, min(start + side, n_samples)) for start in range(0, n_samples, side))

    inner = np.zeros((width, V.shape[1]))
    for strip in strips(tiling.cols):
        inner += factors.read(kernel, 1, strip).astype(V.dtype, copy=False).T @ V[strip]
    if not products:
        return inner, None
    result, coefficients = np.empty((tiling.rows, V.shape[1])), inner.astype(V.dtype, copy=False)
    for strip in strips(tiling.rows):
        result[strip] = factors.read(kernel, 0, strip).astype(V.dtype, copy=False) @ coefficients
    return inner, result


def _factors(view: View) -> Factors:
    factors = view.source.factors
    assert factors is not None
    return factors


def has_thin_factors(view: View) -> bool:
    """Whether the kernels of a square view have factors of fewer columns than samples, which fit a task's memory."""
    widths = view.factor_widths
    if widths is None or not view.is_square:
        return False
    n_columns, m = int(widths.sum()), view.shape[1]
    return n_columns < m and 8 * (3 * m * n_columns + 4 * n_columns**2) <= machine().task_bytes


def stepped_factors(lens: Lens, kernels: Index | None = None) -> tuple[Float, Index]:
    """Z = [Z_1 … Z_n] of a square view after its steps, (m, D), in float64, and the kernel of each column, (D,).

    The kernels are those at some positions of the view, and are numbered in that order; all where None.
    """
    view = lens.view
    factors, blocks = _factors(view), []
    kernels = np.arange(len(view.kernels)) if kernels is None else kernels
    for k in kernels:
        Z = factors.read(int(view.kernels[k]), 1, slice(0, view.source.tiling.cols))[view.cols].astype(np.float64)
        # `left` applies L and the scalar factors of the steps. LKLᵀ has each factor once, so Z gets its square root.
        Z = lens.fitted.left(int(k), Z, [None] * len(lens.fitted.steps))
        blocks.append(Z / np.sqrt(lens.fitted.factor(int(k))))
    owner = np.repeat(np.arange(len(kernels)), [block.shape[1] for block in blocks])
    return np.concatenate(blocks, axis=1), owner


def inverse_diagonals_by_factors(lens: Lens, weights: Float, lams: tuple[float, ...]) -> Float:
    """The diagonal of A⁻¹ − 2P, A = ½(I + K(β)/λ), at several λ, (λ, m): see `dmkl.passes.sums`.

    With K(β) = YYᵀ and YᵀY = UDUᵀ it is 2(1 − p_i − Σ_k (YU)_ik²/(λ + D_k)).
    """
    used = np.flatnonzero(weights)
    Z, owner = stepped_factors(lens, used)
    Y = Z * np.sqrt(weights[used])[owner]
    values, vectors = np.linalg.eigh(Y.T @ Y)
    null = lens.fitted.null_vectors(len(Y))
    projected = 0.0 if null is None else null_leverages(null)
    leverages = (Y @ vectors) ** 2 @ (1.0 / (np.maximum(values, 0.0)[:, None] + np.array(lams)))
    return np.asarray(2.0 * (1.0 - projected - leverages.T))
