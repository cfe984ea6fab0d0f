"""What the rounding of single-precision products may hide from a certificate, measured by random probes.

Products of single-precision kernels come out as W = K_jV + E. Of E nothing is known but this: for vectors z whose
products K_jz are known in double precision,

    zᵀE = zᵀW − (K_jz)ᵀV

is known too, to double precision. With s independent standard normal z, which nothing else depends on, ‖ZᵀEa‖² is
‖Ea‖² times a chi-square variable of s degrees of freedom, for any coefficients a. So

    ‖Ea‖² ≤ ‖ZᵀEa‖² / χ²_s(δ)

but for a probability of δ, χ²_s(δ) being the quantile. (Of several columns the sum of squares mixes such variables,
and is less likely to come out small than one alone.) A worst case over all roundings would be larger by orders of
magnitude, and this one is true of any error of the products, wherever it comes from.

With ε ≥ ‖Σ_j β_j E_j a‖ the residual is wrong by at most ε/2λ =: d, and as A ⪰ ½I,

    ½ tr(RᵀA⁻¹R) ≤ (√B + d)²

where B bounds the same of the residual that was computed. The quadratic forms q_j = αᵀK_jα/4λ come from G_j = VᵀW:
blocks k of the basis, of which the later are multiplied with the earlier, make them wrong by at most

    δ_j = Σ_k ‖2α_1 + … + 2α_(k−1) + α_k‖ ‖E_jk a_k‖ / 4λ,          α_k = V_k a_k,

over blocks in single precision, and with them h(q) − βᵀq by h(δ) + βᵀδ, h being the support function.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.stats

from dmkl.arrays import Float
from dmkl.files.arrays import load_array
from dmkl.numerics.fisher import Support
from dmkl.passes.blas import pinned_blas

__all__ = ["PROBES", "Rounding", "rounding", "rounding_of"]

PROBES = 24
"""s: twice as many would bring the bound from 3.4 to 2.3 times the error itself, and cost as many columns of a pass."""
_UNLIKELY = 1e-9
"""δ, of each figure: a search makes some thousands."""


@dataclass(frozen=True)
class Rounding:
    """What rounding may hide of one point.

    Parameters
    ----------
    residual
        d: the residual is at most so far from the one that was computed.
    weights
        The same of F − S.
    """

    residual: float
    weights: float


def rounding_of(
    errors: str,
    blocks: Sequence[tuple[int, int]],
    points: tuple[Sequence[tuple[Float, Float]], Sequence[float], Sequence[Support]],
) -> list[Rounding]:
    """The same as `rounding` of a file of ZᵀE_j, and of points as pairs, λ and weights that may be."""
    with pinned_blas(1):
        return rounding(load_array(errors), blocks, *points)


def rounding(
    errors: Float,
    blocks: Sequence[tuple[int, int]],
    pairs: Sequence[tuple[Float, Float]],
    lams: Sequence[float],
    sets: Sequence[Support],
) -> list[Rounding]:
    """Bound what rounding hides of some points of one subspace.

    Parameters
    ----------
    errors
        ZᵀE_j, (n, s, r).
    blocks
        Where each block of the basis in single precision begins and ends.
    pairs
        β (n,) and a (r, c) of each point.
    lams, sets
        λ and the weights that may be of each.
    """
    if not blocks or not pairs:
        return [Rounding(0.0, 0.0) for _ in pairs]
    n, s, _ = errors.shape
    stretch = 1.0 / float(scipy.stats.chi2.ppf(_UNLIKELY, s))
    starts = np.cumsum([0, *(a.shape[1] for _, a in pairs)]).tolist()
    coefficients = np.concatenate([a for _, a in pairs], axis=1)
    total = np.zeros((n, s, starts[-1]))
    forms = np.zeros((len(pairs), n))
    before = np.zeros_like(coefficients)
    for first, last in blocks:
        mine = coefficients[first:last]
        hidden = (errors[:, :, first:last].reshape(n * s, -1) @ mine).reshape(n, s, -1)
        total += hidden
        before[first:last] = mine
        for place, (start, stop) in enumerate(itertools.pairwise(starts)):
            size = float(np.linalg.norm(before[:, start:stop]))
            forms[place] += size * np.sqrt(stretch * np.sum(hidden[:, :, start:stop] ** 2, axis=(1, 2)))
        before[first:last] *= 2.0
    found = []
    for place, ((beta, _), lam, weights) in enumerate(zip(pairs, lams, sets, strict=True)):
        mine = np.tensordot(beta, total[:, :, starts[place] : starts[place + 1]], axes=1)
        delta = forms[place] / (4.0 * lam)
        residual = float(np.sqrt(stretch * np.sum(mine * mine))) / (2.0 * lam)
        found.append(Rounding(residual, weights.support(delta) + float(beta @ delta)))
    return found
