"""New basis vectors: the dominant directions of what the points of a grid still lack."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.linalg

from dmkl.arrays import Array, Float
from dmkl.files.arrays import load_array
from dmkl.passes.blas import pinned_blas
from dmkl.solvers.fisher.subspace.strips import Strips, keep

__all__ = ["choose_directions", "dominant_block", "orthonormal_to"]


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


def choose_directions(
    basis: str,
    before: Strips | None,
    width: int,
    seed: Sequence[int],
    path: str | None,
    found: Sequence[Strips],
) -> tuple[Float | str, int]:
    """The dominant directions of matrices that count alike, orthonormal and orthogonal to a basis; and how many.

    Parameters
    ----------
    basis
        The file of V, empty where there is none.
    before
        Columns that were chosen already, which come first in what is returned.
    width
        Most columns, with those of before.
    seed
        Of what is drawn at random.
    path
        The file that keeps them, where there is one.
    found
        The matrices, each (m, c).
    """
    chosen = [] if before is None else [before.array()]
    v = load_array(basis) if basis else np.zeros((found[0].rows, 0))
    v = np.concatenate([v, *chosen], axis=1) if chosen else v
    sizes = [(x, float(np.linalg.norm(x))) for x in (one.array() for one in found)]
    scaled = [x / size for x, size in sizes if size]
    with pinned_blas(1):
        if scaled:
            room = width - sum(block.shape[1] for block in chosen)
            rng = np.random.default_rng(seed)
            chosen.append(dominant_block(v, np.concatenate(scaled, axis=1), room, 1e-6, rng))
    block = np.concatenate([*chosen, v[:, :0]], axis=1)
    return keep(block, path), block.shape[1]


def _eigh(gram: Array) -> tuple[Array, Array]:
    with pinned_blas(1):
        values, vectors = np.linalg.eigh(gram)
    return values, vectors
