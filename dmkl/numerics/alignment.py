"""Alignments of matrices from their inner products, and groups of matrices that are equal up to a positive factor.

Inner products are exact, or estimated from projections on random probes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dmkl.arrays import Array, Float
from dmkl.errors import refuse


def alignments(gram: Float, floor: Float | float = 0.0) -> Float:
    """⟨K_i, K_j⟩/(‖K_i‖‖K_j‖) from G_ij = ⟨K_i, K_j⟩, (n, n); NaN for a norm that is not above its floor."""
    norm = np.sqrt(gram.diagonal())
    size = np.where(norm > floor, norm, np.nan)
    # The outer product of the norms comes first: the result is then symmetric to the last bit.
    values = gram / (size[:, None] * size[None, :])
    # The alignment of a matrix with itself is exactly one, in spite of rounding.
    np.fill_diagonal(values, np.where(np.isnan(size), np.nan, 1.0))
    return np.asarray(np.clip(values, -1.0, 1.0))


def unbiased_alignments(gram: Float, diagonal: Float, sums: Float | None, floor: Float | float = 0.0) -> Float:
    """Alignments without the bias of the diagonals, (n, n), from ⟨K_i, K_j⟩, the diagonals and row sums, (n, m).

    K̃ is K without its diagonal, with row sums r̃ and sum s̃. With

        U(K, L) = ⟨K̃, L̃⟩ + s̃ᴷs̃ᴸ/((m − 1)(m − 2)) − 2/(m − 2) r̃ᴷᵀr̃ᴸ

    m(m − 3) times the unbiased estimate of the Hilbert-Schmidt independence criterion (Song, Smola, Gretton, Bedo,
    Borgwardt, Feature selection via dependence maximization, JMLR 13, 2012, Eq. 5), it is U(K, L)/√(U(K, K) U(L, L)).
    Its mean is near 0 for kernels of independent features, of which the alignment tends to 1 where there are more
    features than samples. U does not depend on the kernels' centers. For kernels that are not to be centered
    (`sums` = None) U is ⟨K̃, L̃⟩. NaN where all of a kernel is on its diagonal, up to rounding.
    """
    m = diagonal.shape[1]
    between = gram - diagonal @ diagonal.T
    if sums is not None:
        if m < 4:
            return np.full(gram.shape, np.nan)
        off = sums - diagonal
        total = off.sum(axis=1)
        between = between + np.outer(total, total) / ((m - 1) * (m - 2)) - 2.0 / (m - 2) * (off @ off.T)
    # U(K, K) is a squared norm, and the difference of sums of the size of ‖K‖², of which rounding leaves 1e-12.
    np.fill_diagonal(between, np.maximum(between.diagonal(), 0.0))
    return alignments(between, np.maximum(floor, 1e-6 * np.sqrt(np.maximum(gram.diagonal(), 0.0))))


def unbiased_projections(projections: Array, probes: Float, diagonal: Float, sums: Float | None) -> Float:
    """ZᵀŨ_jZ, (n, b, b), from ZᵀK_jZ; ⟨Ũ_i, Ũ_j⟩ is U(K_i, K_j) of `unbiased_alignments`.

    Ũ has zeros on its diagonal, and k_ab − (r̃_a + r̃_b)/(m − 2) + s̃/((m − 1)(m − 2)) elsewhere. Estimates from it have
    errors of the size of Ũ, which may be much smaller than the diagonal of K.
    """
    m = diagonal.shape[1]
    results = np.array(projections, dtype=np.float64)
    if sums is not None and m < 4:
        return np.full(results.shape, np.nan)
    off = np.zeros_like(diagonal) if sums is None else (sums - diagonal) / (m - 2)
    ones = probes.sum(axis=0)
    for result, own, of_rows in zip(results, diagonal, off, strict=True):
        rows, shift = probes.T @ of_rows, of_rows.sum() / max(m - 1, 1)
        result -= np.outer(rows, ones) + np.outer(ones, rows) - shift * np.outer(ones, ones)
        result -= (probes * (own - 2.0 * of_rows + shift)[:, None]).T @ probes
    return results


def sign_probes(size: int, width: int, seed: int) -> Float:
    """Random vectors with independent entries ±1, (size, width), for `estimated`; InputError for width below 3."""
    if width < 3:
        refuse(f"an estimate from random probes and its standard error need at least 3 of them, got {width}")
    return np.asarray(2.0 * np.random.default_rng(seed).integers(0, 2, (size, width)) - 1.0)


def estimated(projections: Array, statistic: Callable[[Float], Float]) -> tuple[Float, Float]:
    """A function of the inner products, and its standard error by the jackknife over probes.

    Inner products ⟨K_i, K_j⟩, (n, n), are estimated from P_i = ZᵀK_iZ, (n, b, b), b ≥ 3, for independent probes z with
    E zzᵀ = I. For a ≠ b, E[(z_aᵀK_iz_b)(z_aᵀK_jz_b)] = E[z_aᵀK_iK_jz_a] = tr K_iK_j, so the mean over all pairs of
    different columns is unbiased; a pair of equal columns would add E(zᵀK_iz)(zᵀK_jz) instead. The mean is a
    U-statistic of second order: with M = ½(K_iK_j + K_jK_i) its variance is (4/b)·Var(zᵀMz) + O(b⁻²), where Var(zᵀMz)
    is 2‖M‖_F² for normal probes and 2(‖M‖_F² − Σ_a M_aa²), which is never larger, for probes of random signs.

    Products of pairs share probes, 2(b − 2) others with each, so the scatter over pairs underestimates the error. The
    jackknife leaves out one probe at a time, with all of its pairs. With θ_a the statistic without probe a, the squared
    error is (b − 1)/b · Σ_a (θ_a − mean θ)² (Arvesen, Jackknifing U-statistics, Annals of Mathematical Statistics 40,
    1969). It is too large rather than too small: it counts the part of the variance that pairs add beyond single
    probes, which falls as 1/b², twice (Efron, Stein, The jackknife estimate of variance, Annals of Statistics 9, 1981).
    """
    b = projections.shape[1]
    off = np.array(projections, dtype=np.float64)
    off[:, range(b), range(b)] = 0.0
    flat = off.reshape(len(off), -1)
    sums = flat @ flat.T  # a Gram matrix, so that the estimated alignments are within [−1, 1] too
    value = statistic(sums / (b * (b - 1)))
    mean, scatter = np.zeros_like(value), np.zeros_like(value)
    for a in range(b):
        # P is symmetric: probe a occurs in row a and in column a, so its pairs are subtracted twice.
        of_a = np.delete(projections[:, a, :], a, axis=1)
        without = statistic((sums - 2.0 * of_a @ of_a.T) / ((b - 1) * (b - 2)))
        # Welford's recurrence: the b matrices of n × n need not all be stored.
        change = without - mean
        mean += change / (a + 1)
        scatter += change * (without - mean)
    return value, np.sqrt((b - 1) / b * scatter)


def proportional_groups(projections: Array, noise: Array) -> list[list[int]]:
    """Group the matrices whose projections RᵀK_jR, (n, b, b), on the same probes point in the same direction.

    `noise` (n,) is the Frobenius norm of the change of K_j's projections that rounding of its entries may cause.
    Returns groups of two or more positions, each in ascending order. A matrix is in no group if rounding could turn its
    projections by more than a thousandth.
    """
    flat = projections.reshape(len(projections), -1)
    size = np.linalg.norm(flat, axis=1)
    # NaN (a matrix that could not be read) fails this comparison as well.
    clear = np.flatnonzero(1e-3 * size > noise)
    directions = flat[clear] / size[clear, None]
    doubt = noise[clear] / size[clear]
    groups: list[list[int]] = []
    taken: set[int] = set()
    for a in range(len(clear)):
        if a in taken:
            continue
        # Equal directions differ by at most the sum of their relative errors; a group's first matrix is its reference.
        distance = np.linalg.norm(directions - directions[a], axis=1)
        members = [b for b in np.flatnonzero(distance <= doubt + doubt[a]).tolist() if b not in taken]
        taken.update(members)
        if len(members) > 1:
            groups.append([int(clear[b]) for b in members])
    return groups
