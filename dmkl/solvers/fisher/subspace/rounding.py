"""Bounds of the rounding of single-precision products, measured by random probes, for certificates.

Products of single-precision kernels are W = K_jV + E with an unknown error E. For vectors z whose products K_jz are
known in double precision,

    zᵀE = zᵀW − (K_jz)ᵀV

is known to double precision. With s independent standard normal z, on which nothing else depends, ‖ZᵀEa‖² is ‖Ea‖²
times a chi-square variable of s degrees of freedom, for any coefficients a. So

    ‖Ea‖² ≤ ‖ZᵀEa‖² / χ²_s(δ)

except with probability δ, where χ²_s(δ) is the quantile. (For several columns the sum of squares is a mixture of such
variables, which is less likely to be small than a single one.) A worst case over all roundings would be larger by
orders of magnitude; this bound holds for any error of the products, whatever its source.

With ε ≥ ‖Σ_j β_j E_j a‖ the error of the residual is at most ε/2λ =: d, and since A ⪰ ½I,

    ½ tr(RᵀA⁻¹R) ≤ (√B + d)²

where B bounds the left side for the computed residual. The quadratic forms q_j = αᵀK_jα/4λ come from G_j = VᵀW. Its
blocks k are the products of later basis vectors with earlier ones, so that the error of q_j is at most

    δ_j = Σ_k ‖2α_1 + … + 2α_(k−1) + α_k‖ ‖E_jk a_k‖ / 4λ,          α_k = V_k a_k,

over blocks in single precision, and with them h(q) − βᵀq by h(δ) + βᵀδ, h being the support function.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaincinv

from dmkl.arrays import Float
from dmkl.files.arrays import load_array
from dmkl.numerics.fisher import Support
from dmkl.passes.blas import pinned_blas

PROBES = 24
"""s. With twice as many the bound would be 2.3 instead of 3.4 times the error, at the cost of as many more columns."""
_UNLIKELY = 1e-9  # δ for each bound, of which a search computes some thousands


@dataclass(frozen=True)
class Rounding:
    """Error bounds for one point: d, of the norm of the error of the residual, and that of the error of F − S."""

    residual: float
    weights: float


def rounding_of(
    errors: str,
    blocks: Sequence[tuple[int, int]],
    points: tuple[Sequence[tuple[Float, Float]], Sequence[float], Sequence[Support]],
) -> list[Rounding]:
    """Apply `rounding` to a file of ZᵀE_j."""
    with pinned_blas(1):
        return rounding(load_array(errors), blocks, *points)


def rounding(
    errors: Float,
    blocks: Sequence[tuple[int, int]],
    pairs: Sequence[tuple[Float, Float]],
    lams: Sequence[float],
    sets: Sequence[Support],
) -> list[Rounding]:
    """Bound the errors of rounding for points of one subspace, given by pairs of β (n,) and a (r, c), λ, and sets.

    `errors` are ZᵀE_j, (n, s, r), and `blocks` the first and last columns of the blocks of the basis in single
    precision.
    """
    n, s, _ = errors.shape
    # The same factor bounds ‖Ea‖² for every point: its probability δ is for each bound, not for all together.
    stretch = 0.5 / float(gammaincinv(0.5 * s, _UNLIKELY))  # the quantile of χ² with s degrees of freedom
    starts = np.cumsum([0, *(a.shape[1] for _, a in pairs)]).tolist()
    coefficients = np.concatenate([a for _, a in pairs], axis=1)
    total = np.zeros((n, s, starts[-1]))
    forms = np.zeros((len(pairs), n))
    before = np.zeros_like(coefficients)
    for first, last in blocks:
        block = coefficients[first:last]
        # ZᵀE_ja of all kernels, probes and points: one product for each block.
        hidden = (errors[:, :, first:last].reshape(n * s, -1) @ block).reshape(n, s, -1)
        total += hidden
        # ‖2α_1 + … + α_k‖: the vectors of V are orthonormal, so the norm of α is that of its coefficients.
        before[first:last] = block
        for number, (start, stop) in enumerate(itertools.pairwise(starts)):
            size = float(np.linalg.norm(before[:, start:stop]))
            forms[number] += size * np.sqrt(stretch * np.sum(hidden[:, :, start:stop] ** 2, axis=(1, 2)))
        before[first:last] *= 2.0
    bounds = []
    for number, ((beta, _), lam, weights) in enumerate(zip(pairs, lams, sets, strict=True)):
        # Errors of the kernels are added before the norm is taken, since Σ_j β_jE_ja is what the residual has. The sum
        # of their norms would be larger by about √n.
        probed = np.tensordot(beta, total[:, :, starts[number] : starts[number + 1]], axes=1)
        delta = forms[number] / (4.0 * lam)
        residual = float(np.sqrt(stretch * np.sum(probed * probed))) / (2.0 * lam)
        bounds.append(Rounding(residual, weights.support(delta) + float(beta @ delta)))
    return bounds
