"""The two ends of a symmetric matrix's spectrum from a few products with vectors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.linalg

from dmkl.arrays import Array

__all__ = ["Extremes", "extreme_eigenvalues"]


@dataclass(frozen=True)
class Extremes:
    """Ritz values at both ends of a spectrum."""

    lowest: float
    lowest_bound: float
    highest: float
    """Rayleigh quotients of vectors at hand, so proven: the matrix has an eigenvalue of at most `lowest`, and one of at
    least `highest`."""
    highest_bound: float
    """Residual norms ‖Kx − θx‖: within this distance of the Ritz value lies an eigenvalue (not always the last one)."""
    steps: int
    """Products that were taken."""

    def scaled(self, factor: float) -> Extremes:
        """Those of the matrix times a positive factor."""
        lowest, lowest_bound = self.lowest * factor, self.lowest_bound * factor
        return Extremes(lowest, lowest_bound, self.highest * factor, self.highest_bound * factor, self.steps)


def extreme_eigenvalues(
    matvec: Callable[[Array], Array], size: int, *, n_steps: int, rng: np.random.Generator
) -> Extremes:
    """Estimate the lowest and the highest eigenvalue by Lanczos' method with full re-orthogonalization.

    From a random start q_1 build an orthonormal basis of the Krylov space in which K is tridiagonal,

        K q_k = β_{k−1} q_{k−1} + α_k q_k + β_k q_{k+1},

    and take the extreme eigenvalues θ of that tridiagonal matrix. With s the last entry of θ's eigenvector
    the residual is β_k |s|.

    `matvec` maps v to Kv, of length `size` in float64; at most n_steps products are taken, and the basis takes
    n_steps × size × 8 bytes.
    """
    basis = np.empty((min(n_steps, size), size))
    diagonal: list[float] = []
    beside: list[float] = []
    vector = rng.standard_normal(size)
    vector /= np.linalg.norm(vector)
    for k in range(len(basis)):
        basis[k] = vector
        # A copy: the product may be a buffer of the caller's.
        product = np.array(matvec(vector), dtype=np.float64)
        diagonal.append(float(vector @ product))
        # Against the whole basis, not the last two vectors as in exact arithmetic: otherwise found
        # eigenvalues come again as ghosts. Twice, because once loses what was nearly parallel to the basis.
        for _ in range(2):
            product -= basis[: k + 1].T @ (basis[: k + 1] @ product)
        beside.append(float(np.linalg.norm(product)))
        # The space is invariant: all that this start vector can show is known, and what is left is rounding.
        if beside[-1] <= 1e-13 * max(*map(abs, diagonal), *beside[:-1], 0.0):
            break
        vector = product / beside[-1]
    values, vectors = scipy.linalg.eigh_tridiagonal(np.array(diagonal), np.array(beside[:-1]))
    residuals = beside[-1] * np.abs(vectors[-1])
    return Extremes(float(values[0]), float(residuals[0]), float(values[-1]), float(residuals[-1]), steps=len(diagonal))
