"""Products with kernels that are products of factors, K_j = X_jZ_jᵀ, such as linear kernels of few features.

A product with b vectors, X_j(Z_jᵀV), takes 4·m·d_j·b operations instead of 2·m²·b.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from dmkl.arrays import Array, Index
from dmkl.passes.execute import temporary_root
from dmkl.passes.view import Factors, View

_STRIP_BYTES = 2**25
"""Bytes of a factor that are read and multiplied together."""


_PRODUCT_BYTES = 2**26
"""Bytes of products of kernels whose factors are read together, from a table that these may have in common."""


def factor_products(
    view: View, kernels: Index, vectors_of: Callable[[int], Array], *, products: bool
) -> Iterator[tuple[Array, Array | None]]:
    """ZᵀV, (d, b), and if wanted X(ZᵀV) over all rows of the source, for the kernels at some positions of the view.

    The V of a kernel is over all columns of the source. The sum ZᵀV is in float64 over strips in the precision of V.
    """
    factors, tiling = factors_of(view), view.source.tiling
    width = vectors_of(int(kernels[0])).shape[1]
    together = max(1, _PRODUCT_BYTES // (8 * max(tiling.rows, tiling.cols) * max(1, width)))
    for group in (kernels[start : start + together] for start in range(0, len(kernels), together)):
        stored, vectors = view.kernels[group], [vectors_of(int(k)) for k in group]
        ends = np.cumsum(factors.widths[stored])
        inner = np.zeros((ends[-1], width))
        blocks = np.split(inner, ends[:-1])
        for strip in strips(len(inner), slice(0, tiling.cols)):
            Z = factors.read(stored, 1, strip).astype(vectors[0].dtype, copy=False)
            for block, part, V in zip(blocks, np.split(Z, ends[:-1], axis=1), vectors, strict=True):
                block += part.T @ V[strip]
        if not products:
            yield from ((block, None) for block in blocks)
            continue
        coefficients = [block.astype(vectors[0].dtype, copy=False) for block in blocks]
        results = [np.empty((tiling.rows, width)) for _ in group]
        for strip in strips(len(inner), slice(0, tiling.rows)):
            X = factors.read(stored, 0, strip).astype(vectors[0].dtype, copy=False)
            for result, part, block in zip(results, np.split(X, ends[:-1], axis=1), coefficients, strict=True):
                result[strip] = part @ block
        yield from zip(blocks, results, strict=True)


def factors_of(view: View) -> Factors:
    """The factors of the kernels of a view that has some."""
    factors = view.source.factors
    assert factors is not None
    return factors


READ_BYTES = 2**27
"""Bytes of stored factors that are read at a time."""


def strips(
    width: int, rows: slice, n_bytes: int = _STRIP_BYTES, itemsize: int = 8, multiple: int = 1
) -> Iterator[slice]:
    """Rows of a factor of so many columns that are read or multiplied together.

    They begin at multiples of `multiple`, the rows of a chunk, unless chunks are larger than a strip: parts of chunks
    would be unpacked several times.
    """
    side = max(1, n_bytes // (itemsize * max(width, 1)))
    multiple = multiple if 2 * side >= multiple else 1
    side = max(1, side // multiple) * multiple
    first = rows.start - rows.start % multiple
    return (slice(max(start, rows.start), min(start + side, rows.stop)) for start in range(first, rows.stop, side))


def on_disk(values: Array) -> Array:
    """The values in a temporary file, which stays until the array is gone."""
    with tempfile.TemporaryFile(dir=temporary_root()) as file:
        order: Any = "F" if values.flags.f_contiguous else "C"
        mapped: Array = np.memmap(file, values.dtype, "w+", shape=values.shape, order=order)
    mapped[:] = values
    return mapped
