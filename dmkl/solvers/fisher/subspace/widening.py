"""What a new block of a basis V changes: the tasks that write V, N = VᵀV, VᵀH and G_j = VᵀK_jV anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dmkl.arrays import Array, Float
from dmkl.files.arrays import load_array, save_array
from dmkl.passes.blas import pinned_blas
from dmkl.solvers.fisher.subspace.rounding import PROBES
from dmkl.solvers.fisher.subspace.strips import Strips
from dmkl.solvers.outcome import check_finite
from dmkl.solvers.semidefinite import lowest_on_span

__all__ = ["Made", "basis_times", "lowest", "probe_file", "project", "widen_basis", "widen_gram"]


def probe_file(path: str, n_rows: int) -> None:
    """Draw the probes Z, (m, s), and write them."""
    save_array(path, np.random.default_rng(n_rows).standard_normal((n_rows, PROBES)))


def widen_basis(before: str, path: str, block: Strips) -> None:
    """Write V with a block of new columns, (m, r)."""
    parts = [load_array(before)] if before else []
    save_array(path, np.concatenate([*parts, block.array()], axis=1))


def basis_times(basis: str, coefficients: Float) -> Float:
    """α = V a, (m, c)."""
    with pinned_blas(1):
        return np.asarray(load_array(basis) @ coefficients)


def project(basis: str, inner: str, projected: str, targets: Sequence[Float]) -> None:
    """Write N = VᵀV, (r, r), and VᵀH of all targets side by side, (r, columns)."""
    v = load_array(basis)
    with pinned_blas(1):
        save_array(inner, v.T @ v)
        save_array(projected, np.concatenate([v.T @ h for h in targets], axis=1))


@dataclass(frozen=True, eq=False)
class Made:
    """Products of one pass with some columns of a basis, as they are projected onto it.

    Parameters
    ----------
    columns
        The first, and the one after the last.
    cross
        VᵀK_jU, (n, r, b), in groups of kernels: arrays, or files.
    hidden
        ZᵀE_j, (n, s, b), in the same groups; None where rounding was not measured.
    """

    columns: tuple[int, int]
    cross: tuple[Float | str, ...]
    hidden: tuple[Float | str, ...] | None


def widen_gram(gram: tuple[str, str], errors: tuple[str, str], shape: tuple[int, int], made: Sequence[Made]) -> None:
    """Write G_j and ZᵀE_j with new products, of new basis vectors or in place of those of a block that was there.

    Parameters
    ----------
    gram, errors
        The files of before, empty where there are none, and the new ones.
    shape
        Kernels n and basis vectors r.
    made
        The products, those in single precision first.
    """
    n, r = shape
    g, e = np.empty((n, r, r)), np.zeros((n, PROBES, r))
    if gram[0]:
        known = load_array(gram[0])
        g[:, : known.shape[1], : known.shape[2]] = known
        known = load_array(errors[0])
        e[:, :, : known.shape[2]] = known
    for one in made:
        first, last = one.columns
        start = 0
        for part in one.cross:
            cross = _there(part)
            check_finite(cross)
            kernels = slice(start, start + len(cross))
            g[kernels, :, first:last] = cross
            g[kernels, first:last, :] = cross.transpose(0, 2, 1)
            g[kernels, first:last, first:last] += cross[:, first:last]
            g[kernels, first:last, first:last] *= 0.5
            start += len(cross)
        e[:, :, first:last] = 0.0 if one.hidden is None else np.concatenate([_there(part) for part in one.hidden])
    save_array(gram[1], g)
    save_array(errors[1], e)


def _there(part: Array | str) -> Array:
    return load_array(part) if isinstance(part, str) else part


def lowest(inner: str, gram: str, width: int) -> Float:
    """An upper bound of the lowest eigenvalue of each kernel, (n,), by the first columns of its basis."""
    n, g = load_array(inner)[:width, :width], load_array(gram)[:, :width, :width]
    return lowest_on_span(np.array(n), np.array(g))
