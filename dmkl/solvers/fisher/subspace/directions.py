"""New basis vectors: the dominant directions of what the points of a grid still lack."""

from __future__ import annotations

import numpy as np
import scipy.linalg

from dmkl.arrays import Array
from dmkl.passes.blas import pinned_blas

__all__ = ["dominant_block", "orthonormal_to"]


_SKETCH = 4
"""Blocks with more than this many times the wanted columns are sketched first: an SVD of all would cost more than a
pass, and the range of a random combination of twice as many columns as are wanted is as good."""


def orthonormal_to(basis: Array, block: Array) -> Array:
    """An orthonormal basis of the part of the span of `block` outside the span of `basis`, in the precision of both.

    Classical Gram-Schmidt in blocks, twice with a Householder QR in between: the first round leaves an error of the
    order of unit roundoff times the cancellation, the second removes it (Giraud, Langou, Rozložník, van den Eshof,
    Numer. Math. 101, 2005). Columns that are inside the span of the basis to the precision are dropped, as what is
    left of them would be rounding.

    Parameters
    ----------
    basis
        (m, r), orthonormal.
    block
        (m, b)

    Returns
    -------
    ndarray
        (m, at most b)
    """
    unit = float(np.finfo(block.dtype).eps)
    sizes = np.linalg.norm(block, axis=0)
    rest = block[:, sizes > 0] / sizes[sizes > 0]
    if not rest.size:
        return np.asarray(rest)
    for _ in range(2):
        rest = rest - basis @ (basis.T @ rest)
        # With pivots, so that a column which depends on others comes last and takes nothing of them along.
        # With one thread, as it is a chain of small products: threads that share their cores with other programs would
        # wait for one another at each.
        with pinned_blas(1):
            rest, upper, _ = scipy.linalg.qr(rest, mode="economic", pivoting=True, check_finite=False)
        pivots = np.abs(np.diag(upper))
        rest = rest[:, pivots > 1e3 * unit * np.sqrt(len(basis))]
    return np.asarray(rest - basis @ (basis.T @ rest))


def dominant_block(basis: Array, wanted: Array, width: int, cutoff: float, rng: np.random.Generator) -> Array:
    """The leading left singular vectors of (I − VVᵀ)X, at most `width`: orthonormal and orthogonal to the basis.

    Parameters
    ----------
    basis
        V, (m, r), orthonormal.
    wanted
        X, (m, k), its columns scaled by how much each matters.
    width
        Most columns of the result.
    cutoff
        Singular values below this share of the largest are left out.
    rng
        For the sketch of an X of very many columns.
    """
    if wanted.shape[1] > _SKETCH * width:
        wanted = wanted @ rng.standard_normal((wanted.shape[1], 2 * width))
    # What rounding leaves of an X inside the span of the basis is no direction.
    floor = 1e-24 * float(np.sum(wanted * wanted))
    for _ in range(2):
        wanted = wanted - basis @ (basis.T @ wanted)
    # The Gram matrix of the smaller side squares the singular values, which a cutoff far above the square root of the
    # unit roundoff allows.
    if wanted.shape[1] <= wanted.shape[0]:
        values, vectors = _eigh(wanted.T @ wanted)
        keep = values > max(cutoff**2 * float(values.max(initial=0.0)), floor)
        leading = wanted @ vectors[:, keep][:, -width:]
    else:
        values, vectors = _eigh(wanted @ wanted.T)
        keep = values > max(cutoff**2 * float(values.max(initial=0.0)), floor)
        leading = vectors[:, keep][:, -width:]
    return orthonormal_to(basis, leading[:, ::-1])


def _eigh(gram: Array) -> tuple[Array, Array]:
    with pinned_blas(1):
        values, vectors = np.linalg.eigh(gram)
    return values, vectors
