"""Making a symmetric matrix positive semidefinite, and proving that one is not."""

from __future__ import annotations

from typing import Literal

import numpy as np
import scipy.linalg

from dmkl.arrays import Array, Float

__all__ = ["Repair", "repair_psd", "worst_minor"]

Repair = Literal["clip", "flip", "shift"]


def repair_psd(kernel: Array, method: Repair) -> tuple[Float, float]:
    """Replace the negative part of the spectrum of a symmetric matrix (m, m); also its lowest eigenvalue, at most 0.

    With the eigendecomposition K = U diag(w) Uᵀ: "clip" sets negative w to zero (the nearest positive semidefinite
    matrix in Frobenius norm), "flip" takes |w|, "shift" adds −min(w) to every eigenvalue when min(w) < 0.
    """
    symmetric = np.array(kernel, dtype=np.float64)
    symmetric += symmetric.T
    symmetric *= 0.5
    if method == "shift":
        lowest = float(scipy.linalg.eigh(symmetric, eigvals_only=True, subset_by_index=[0, 0])[0])
        if lowest < 0:
            symmetric[np.diag_indices_from(symmetric)] -= lowest
        return symmetric, min(lowest, 0.0)
    values, vectors = scipy.linalg.eigh(symmetric)
    lowest = float(values[0])
    if lowest >= 0:
        return symmetric, 0.0
    mended = np.abs(values) if method == "flip" else np.maximum(values, 0.0)
    repaired = (vectors * mended) @ vectors.T
    return 0.5 * (repaired + repaired.T), lowest


def worst_minor(block: Array, diag_rows: Array, diag_cols: Array, tolerance: float) -> tuple[float, int, int] | None:
    """Look for a 2 × 2 principal minor that proves a matrix indefinite: K_ij² > K_ii K_jj for i ≠ j.

    A negative K_ii proves it alone, and is for the caller to look at; in a block on the diagonal its own entries count
    as pairs of equal samples, and only those with K_ii < 0 are ever reported.

    The block (r, c) holds entries K_ij of rows and columns whose diagonal entries are given; `tolerance` is the
    relative excess that rounding explains. Returns the lower eigenvalue of the worst such minor, an upper bound of the
    matrix's lowest eigenvalue, with its row and column in the block.
    """
    limit = np.sqrt(np.maximum(diag_rows, 0.0))[:, None] * np.sqrt(np.maximum(diag_cols, 0.0))[None, :]
    excess = np.abs(block) - (1.0 + tolerance) * limit
    i, j = np.unravel_index(int(np.argmax(excess)), excess.shape)
    if not excess[i, j] > tolerance * max(float(np.abs(diag_rows).max()), float(np.abs(diag_cols).max())):
        return None
    a, b, k = float(diag_rows[i]), float(diag_cols[j]), float(block[i, j])
    return 0.5 * (a + b) - float(np.hypot(0.5 * (a - b), k)), int(i), int(j)
