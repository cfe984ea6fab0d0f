"""Multiple kernel k-means: weights of the kernels, and clusters relaxed to eigenvectors, in turn.

H (m, k) with HᵀH = I stands for the indicators of k clusters, each divided by the root of its size:

    min over H and γ ≥ 0, Σγ = 1 of  tr K_γ(I − HHᵀ) = Σ_j γ_j² d_j,   K_γ = Σ_j γ_j² K_j,   d_j = tr K_j(I − HHᵀ).

Given γ, H are the leading eigenvectors of K_γ (Ky Fan). Given H, γ_j ∝ 1/d_j, since 1 = (Σγ)² ≤ Σγ²d · Σ1/d by Cauchy
and Schwarz. The objective falls in every step, also with inexact eigenvectors: they are Ritz vectors of a space that
contains the last H.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np

from dmkl.arrays import Float
from dmkl.errors import IndefiniteKernelError, refuse
from dmkl.numerics.semidefinite import WAY_OUT, KernelFacts, check_forms
from dmkl.solvers.interface import CombinedProduct, EachProduct, Outcome, Status, Step

_BLOCKS, _KEPT = 8, 3  # most blocks of k vectors in the basis of the eigenvectors, and those kept of a full one
_ROUNDING = 1e-12  # share of a trace that is rounding in double precision


def kernel_k_means(
    traces: Float, start: Float, weights: Float, facts: KernelFacts, *, learns: bool, tol: float, max_iter: int
) -> Generator[Any, Any, Outcome]:
    """H for given weights (n,), or both in turn from these, with tr K_j (n,) and first vectors (m, k).

    The outcome has the weights w (γ² where learnt), the dual variables HΛ⁻¹, and H. The iteration ends when no γ_j
    changes by more than `tol` times the largest, and the residuals of the eigenvectors are at most `tol` times the
    largest eigenvalue; or after `max_iter` changes of γ, or blocks of vectors for H. ``extra["least"]`` is an upper
    bound of the least eigenvalue of K_w where it is negative, beyond rounding; else zero.
    """
    noise = max(_ROUNDING, facts.precision) * (traces if facts.traces is None else facts.traces)
    negative = int(np.argmin(traces + noise))
    if traces[negative] < -noise[negative]:
        msg = (
            f"kernel {facts.name(negative)} is not positive semidefinite: its trace over these samples is "
            f"{traces[negative]:.3g} after its steps. {WAY_OUT}"
        )
        raise IndefiniteKernelError(msg)
    if (traces <= noise).any():
        name = facts.name(int(np.argmax(traces <= noise)))
        refuse(
            f"kernel {name} is constant over these samples after its steps, or not positive semidefinite: its trace is "
            "zero; leave it out with select()"
        )
    gamma, change, steps = np.sqrt(weights), np.inf if learns else 0.0, list[Step]()
    if learns:
        gamma /= gamma.sum()
        weights = gamma**2
    H = np.linalg.qr(start)[0]
    product = yield CombinedProduct(H, weights, exact=True)
    while True:
        accuracy = max(tol, min(1e-3, 0.1 * change))
        values, H, is_exact, least = yield from _leading(H, product, weights, accuracy, max_iter)
        objective = float(weights @ traces - values.sum())
        steps.append(Step(weights, {"objective": objective}))
        if change <= tol or len(steps) > max_iter:
            break
        products = yield EachProduct(H)
        d = traces - np.einsum("mk,nmk->n", H, products)
        check_forms(d, facts, len(H) - H.shape[1])
        # A kernel of rank k or less may have d = 0, and then has all weight.
        inverse = 1.0 / np.maximum(d, noise)
        last, gamma = gamma, inverse / inverse.sum()
        change = float(np.abs(gamma - last).max() / gamma.max())
        weights = gamma**2
        product = np.tensordot(weights, products, 1)
    # The coordinates of a new sample are k(x, ·)HΛ⁻¹; directions without variance have none.
    kept = values > max(1e-10, facts.precision) * values[0]
    H, dual = np.where(kept, H, 0.0), np.where(kept, H / np.where(kept, values, 1.0), 0.0)
    status = Status.CONVERGED if change <= tol and is_exact else Status.FALLING
    is_indefinite = least < -2.0 * float(weights @ noise)
    extra = {"embedding": H, "least": np.array(least if is_indefinite else 0.0)}
    return Outcome(status, weights, dual, objective, steps=steps, extra=extra)


def _leading(
    H: Float, product: Float, weights: Float, accuracy: float, max_iter: int
) -> Generator[Any, Any, tuple[Float, Float, bool, float]]:
    """The leading eigenvalues of K(w), the eigenvectors, whether they are accurate, and the least Ritz value.

    Block Lanczos from H and K(w)H with full orthogonalization, one product with a block for each step: the residuals of
    the Ritz vectors extend the basis. A full basis restarts from its leading Ritz vectors.
    """
    k, basis, products, least = H.shape[1], H, product, np.inf
    for count in range(max_iter + 1):
        values, vectors = (part[..., ::-1] for part in np.linalg.eigh(basis.T @ products))
        H, least = basis @ vectors[:, :k], min(least, float(values[-1]))
        residual = products @ vectors[:, :k] - H * values[:k]
        is_exact = bool(np.linalg.norm(residual, axis=0).max() <= accuracy * abs(values[0]))
        if basis.shape[1] >= _BLOCKS * k:
            basis, products = basis @ vectors[:, : _KEPT * k], products @ vectors[:, : _KEPT * k]
        # Residuals that are rounding add no direction.
        block, sizes, _ = np.linalg.svd(residual - basis @ (basis.T @ residual), full_matrices=False)
        block = block[:, sizes > _ROUNDING * abs(values[0])]
        if is_exact or count == max_iter or not block.size:
            break
        block = np.linalg.qr(block - basis @ (basis.T @ block))[0]
        basis = np.concatenate([basis, block], axis=1)
        products = np.concatenate([products, (yield CombinedProduct(block, weights, exact=True))], axis=1)
    return values[:k], H, is_exact, least
