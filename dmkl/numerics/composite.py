"""Sums of kernels in memory, (n, m, m), with one weight for each kernel or for each kernel and sample."""

from __future__ import annotations

import numpy as np

from dmkl.arrays import Array, Float
from dmkl.numerics.compiling import compiled

__all__ = ["combined", "composite", "group_forms"]

_compiled = compiled({"contract", "nsz"})


def combined(K: Float, weights: Float) -> Float:
    """Σ_j w_j K_j for w (n,), (m, m)."""
    used = np.flatnonzero(weights)
    # Copying the used kernels pays off only if most have no weight; otherwise one product reads all of them in place.
    if 2 * len(used) < len(weights):
        K, weights = K[used], weights[used]
    return np.asarray(np.tensordot(weights, K, axes=1))


def composite(K: Float, weights: Float) -> Float:
    """Σ_k w_ki w_kj K_k(i, j) for w (n, m), (m, m)."""
    total = np.zeros(K.shape[1:])
    _add_composite(K, weights, total)
    return total


@_compiled
def _add_composite(K: Array, weights: Array, total: Array) -> None:
    m = len(total)
    for i in range(m):
        row = total[i]
        for k in range(len(K)):
            weight, entries, across = weights[k, i], K[k, i], weights[k]
            if weight != 0:
                # The sum is symmetric: the lower triangle is added and copied, half the operations.
                for j in range(i + 1):
                    row[j] += weight * across[j] * entries[j]
        for j in range(i):
            total[j, i] = row[j]


def group_forms(K: Float, block: Float) -> Float:
    """BᵀK_jB for a block B (m, b), (n, b, b)."""
    if (np.count_nonzero(block, axis=1) > 1).any():
        return np.asarray(block.T @ (K @ block))
    # Vectors with disjoint samples, such as groups: each entry K(i, j) belongs to one pair of groups, so the forms need
    # one multiplication for each entry, and samples with zeros none.
    used = np.flatnonzero(block.any(axis=1))
    group = np.argmax(block[used] != 0, axis=1)
    forms = np.zeros((len(K), block.shape[1], block.shape[1]))
    _add_forms(K, used, group, block[used, group], forms)
    return forms


@_compiled
def _add_forms(K: Array, used: Array, group: Array, values: Array, forms: Array) -> None:
    for k in range(len(K)):
        for a in range(len(used)):
            row, g = K[k, used[a]], group[a]
            row_forms = forms[k, g]
            for b in range(len(used)):
                row_forms[group[b]] += values[a] * values[b] * row[used[b]]
