"""Leading eigenvalues of a positive semidefinite matrix from one product with random vectors, and what bounds them.

With an orthonormal block Q and W = KQ, Nyström's approximation K̂ = W(QᵀW)⁻¹Wᵀ has 0 ⪯ K̂ ⪯ K (Tropp, Yurtsever, Udell,
Cevher, Fixed-rank approximation of a positive-semidefinite matrix from streaming data, NeurIPS 2017). So each of its
eigenvalues λ̂_i is at most λ_i, and trace and norm of K tell how far below it may be:

    Σ_{l=j..i} λ_l ≤ Σ_{l=j..i} λ̂_l + (tr K − Σ_l λ̂_l)             since no other λ_l − λ̂_l is negative,
    Σ_{l=j..i} λ_l² ≤ Σ_{l=j..i} λ̂_l² + (‖K‖_F² − Σ_l λ̂_l²)        likewise,

for every j ≤ i, and λ_i, the smallest of these λ_l, is at most their mean. The second is sharp for what stands out of a
long flat spectrum, the first for kernels of low rank.
"""

from __future__ import annotations

import numpy as np
import scipy.linalg

from dmkl.arrays import Float

__all__ = ["captured", "least_captured", "nystrom_eigenvalues", "participation_ratio", "upper_bounds"]


def nystrom_eigenvalues(block: Float, product: Float, noise: float) -> Float:
    """λ̂ of Nyström's approximation from Q and W = KQ, (m, b), in descending order, (b,); NaN where K is not PSD.

    `noise` is the spectral norm of what rounding of its entries may have added to K. That much, at least, is added to
    all eigenvalues while they are computed, so that rounding does not look like a negative eigenvalue.
    """
    size = float(np.linalg.norm(product))
    if size == 0.0:
        return np.zeros(block.shape[1])
    shift = noise + float(np.finfo(np.float64).eps) * np.sqrt(len(block)) * size
    shifted = product + shift * block
    core = block.T @ shifted
    try:
        factor = scipy.linalg.cholesky(0.5 * (core + core.T), lower=False)
    except np.linalg.LinAlgError:
        return np.full(block.shape[1], np.nan)
    # K̂ + shift·I = BBᵀ with B = (W + shift·Q)R⁻¹, RᵀR the core: no inverse of the core, which is nearly singular.
    root = scipy.linalg.solve_triangular(factor, shifted.T, trans="T", lower=False)
    return np.asarray(np.maximum(scipy.linalg.svdvals(root) ** 2 - shift, 0.0))


def upper_bounds(eigenvalues: Float, trace: Float, frobenius: Float | None = None) -> Float:
    """The largest that each λ_i can be, (n, b), from λ̂ (n, b), tr K (n,) and, where it is known, ‖K‖_F (n,)."""
    bound = _smallest_means(eigenvalues, np.maximum(trace - eigenvalues.sum(axis=1), 0.0))
    if frobenius is not None:
        squares = eigenvalues**2
        left = np.maximum(frobenius**2 - squares.sum(axis=1), 0.0)
        bound = np.minimum(bound, np.sqrt(_smallest_means(squares, left)))
    return bound


def _smallest_means(values: Float, left: Float) -> Float:
    """The smallest of (Σ_{l=j..i} values_l + left)/(i − j + 1) over j ≤ i, (n, b)."""
    sums = np.cumsum(values, axis=1)
    bound = np.empty_like(values)
    for i in range(values.shape[1]):
        before = np.concatenate([np.zeros((len(values), 1)), sums[:, :i]], axis=1)
        bound[:, i] = ((sums[:, i : i + 1] - before + left[:, None]) / np.arange(i + 1, 0, -1)).min(axis=1)
    return bound


def captured(eigenvalues: Float, trace: Float, share: float) -> Float:
    """How many leading eigenvalues make up `share` of the trace, (n,): at most that many do, λ̂ being lower bounds.

    NaN where those at hand do not.
    """
    enough = np.cumsum(eigenvalues, axis=1) >= share * trace[:, None]
    return np.where(enough.any(axis=1), enough.argmax(axis=1) + 1.0, np.nan)


def least_captured(ratio: Float, share: float) -> Float:
    """How many leading eigenvalues make up `share` of the trace at least, (n,), from the participation ratio.

    k of them sum up to √k‖K‖_F at most (Cauchy and Schwarz), so share · tr K takes share² (tr K)²/‖K‖_F² of them.
    """
    return np.ceil(share**2 * ratio * (1 - 1e-12))


def participation_ratio(trace: Float, frobenius: Float) -> Float:
    """(tr K)²/‖K‖_F² = (Σλ)²/Σλ², (n,): m for the identity, 1 for rank one.

    The effective number of dimensions of the samples in feature space (Bell, Dean, Discussions of the Faraday Society
    50, 1970), exact without a single eigenvalue.
    """
    return np.asarray(trace**2 / frobenius**2)
