"""Find matrices that are the same up to a positive factor, from a few numbers of each."""

from __future__ import annotations

import numpy as np

from dmkl.arrays import Array

__all__ = ["centered_probes", "proportional_groups"]


def centered_probes(size: int, width: int, rng: np.random.Generator) -> Array:
    """Random vectors (size, width) whose entries sum to zero, so that RᵀKR sees K as centering leaves it."""
    probes = rng.standard_normal((size, width))
    return np.asarray(probes - probes.mean(axis=0))


def proportional_groups(projections: Array, noise: Array) -> list[list[int]]:
    """Group the matrices whose projections RᵀK_jR, (n, b, b), on the same probes point in the same direction.

    `noise` (n,) says how far rounding of K_j's entries may have moved its projections (Frobenius norm). Returns groups
    of two or more positions, each in ascending order. A matrix whose projections rounding could explain, or could turn
    by more than a thousandth, is in none.
    """
    flat = projections.reshape(len(projections), -1)
    size = np.linalg.norm(flat, axis=1)
    # NaN (a matrix that could not be read) fails this comparison too.
    clear = np.flatnonzero(1e-3 * size > noise)
    directions = flat[clear] / size[clear, None]
    doubt = noise[clear] / size[clear]
    groups: list[list[int]] = []
    taken: set[int] = set()
    for a in range(len(clear)):
        if a in taken:
            continue
        distance = np.linalg.norm(directions - directions[a], axis=1)
        members = [b for b in np.flatnonzero(distance <= doubt + doubt[a]).tolist() if b not in taken]
        taken.update(members)
        if len(members) > 1:
            groups.append([int(clear[b]) for b in members])
    return groups
