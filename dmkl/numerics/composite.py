"""Sums of kernels in memory, (n, m, m): weighted each as a whole, or sample by sample."""

from __future__ import annotations

import numpy as np

from dmkl.arrays import Array, Float
from dmkl.numerics.compiling import compiled

__all__ = ["combined", "composite", "group_forms"]

_compiled = compiled({"contract", "nsz"})


def combined(K: Float, weights: Float) -> Float:
    """Σ_j w_j K_j for w (n,), (m, m)."""
    used = np.flatnonzero(weights)
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
            own, here, across = weights[k, i], K[k, i], weights[k]
            if own != 0:
                for j in range(i + 1):
                    row[j] += own * across[j] * here[j]
        for j in range(i):
            total[j, i] = row[j]


def group_forms(K: Float, block: Float) -> Float:
    """BᵀK_jB for a block B (m, b), (n, b, b)."""
    if (np.count_nonzero(block, axis=1) > 1).any():
        return np.asarray(block.T @ (K @ block))
    # Vectors that share no sample, as those of groups: every entry is needed once, and those of zeros not at all.
    used = np.flatnonzero(block.any(axis=1))
    group = np.argmax(block[used] != 0, axis=1)
    found = np.zeros((len(K), block.shape[1], block.shape[1]))
    _add_forms(K, used, group, block[used, group], found)
    return found


@_compiled
def _add_forms(K: Array, used: Array, group: Array, values: Array, found: Array) -> None:
    for k in range(len(K)):
        for a in range(len(used)):
            row, g = K[k, used[a]], group[a]
            own = found[k, g]
            for b in range(len(used)):
                own[group[b]] += values[a] * values[b] * row[used[b]]
