"""Regularized least squares with a bias: the square loss instead of the hinge loss."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dmkl.arrays import Float
from dmkl.errors import IndefiniteKernelError
from dmkl.numerics.cholesky import Cholesky

__all__ = ["SquareSolution", "fit_square"]


@dataclass(frozen=True)
class SquareSolution:
    """Regularized least squares: u (m,) with Σu = 0, the bias, both objectives, and the scores Ku."""

    u: Float
    bias: float
    dual: float
    primal: float
    scores: Float


def fit_square(K: Float, h: Float, lam: float) -> SquareSolution:
    """Minimize Σ_i (h_i − f(x_i))² + λ‖w‖², f(x) = wᵀφ(x) + bias, for any targets h (m,) and λ > 0.

    (K + λI)u + bias·1 = h and 1ᵀu = 0, w = Φᵀu; the dual is max over Σu = 0 of 2λhᵀu − λ²‖u‖² − λuᵀKu.
    IndefiniteKernelError is raised if K + λI is not positive definite.
    """
    try:
        factor = Cholesky.of(K + lam * np.eye(len(K)))
    except np.linalg.LinAlgError as error:
        msg = (
            f"the combined kernel plus lam={lam:g} is not positive definite, as the square loss needs it; run `dmkl "
            "check` for kernels with negative eigenvalues, take a larger lam, or loss='hinge'"
        )
        raise IndefiniteKernelError(msg) from error
    # With v = (K + λI)⁻¹h and w = (K + λI)⁻¹1, u = v − bias·w, and Σu = 0 gives the bias: one factor, two right sides.
    solved = factor.solve(np.column_stack([h, np.ones(len(h))]))
    bias = float(solved[:, 0].sum() / solved[:, 1].sum())
    u = solved[:, 0] - bias * solved[:, 1]
    # Both objectives are computed from u and K itself, so that their difference shows the rounding error.
    product = K @ u
    regularizer = lam * float(u @ product)
    dual = 2.0 * lam * float(h @ u) - lam * lam * float(u @ u) - regularizer
    return SquareSolution(u, bias, dual, regularizer + float(np.sum((h - product - bias) ** 2)), product)
