"""Master problems: the next kernel weights, from what is known of the objective so far.

Three forms (Yan et al., JMLR 13, 2012, section 2.1, and beyond):

taylor
    Cutting planes S(α^(r), β) ≥ θ under the second-order Taylor form ν(β) ≤ 1 of the norm (Eqs. 11 and 16): a linear
    program for p = 1, one quadratic constraint otherwise. The form breaks down as β_j → 0 for p < 2, where
    β_j^(p−2) grows without bound.
exact
    The same cutting planes under ‖β‖_p ≤ 1 itself, by power cones.
newton
    The quadratic model of the concave J(β) = min_α S(α, β) over the ball. Its gradient is q, its Hessian
    −(1/4λ²) Σ_k (K_iα_k)ᵀA⁻¹(K_jα_k) with A = ½(I + K(β)/λ).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import clarabel
import numpy as np

from dmkl.arrays import Float
from dmkl.numerics.fisher import onto_sphere, steepest
from dmkl.solvers.cones import ConicProgram, Entries

__all__ = ["CuttingPlane", "ascent_direction", "exact_master", "newton_master", "taylor_form", "taylor_master"]


@dataclass(frozen=True)
class CuttingPlane:
    """S(α, β) = constant + slopesᵀβ for one α: a bound of J from above."""

    constant: float
    slopes: Float


def _selector(n: int, sign: float = -1.0) -> Entries:
    return np.arange(n), np.arange(n), np.full(n, sign)


def _add_ball(program: ConicProgram, n: int, p: float) -> None:
    """β ≥ 0 and ‖β‖_p ≤ 1 for x = (β, …); with `_spares` of p further variables after β."""
    program.at_most(_selector(n), np.zeros(n))
    if np.isinf(p):
        program.at_most(_selector(n, 1.0), np.ones(n))
    elif p == 1:
        program.at_most(_total(0, n), 1.0)
    elif p == 2:
        i, j, signs = _selector(n)
        program.add((1 + i, j, signs), np.concatenate([[1.0], np.zeros(n)]), clarabel.SecondOrderConeT(n + 1))
    else:
        # Σ t_j ≤ 1 with (t_j, 1, β_j) in the power cone of exponent 1/p: t_j^(1/p) ≥ β_j.
        program.at_most(_total(n, n), 1.0)
        first = 3 * np.arange(n)
        rows = np.append(first, first + 2), np.append(n + np.arange(n), np.arange(n)), np.full(2 * n, -1.0)
        program.add(rows, np.tile([0.0, 1.0, 0.0], n), *[clarabel.PowerConeT(1.0 / p)] * n)


def _total(first: int, n: int) -> Entries:
    return np.zeros(n, dtype=np.int64), first + np.arange(n), np.ones(n)


def _weights(x: Float, p: float) -> Float:
    """The solution on the sphere; at p = 1 what an interior point leaves of weights that are zero is made zero."""
    if p == 1:
        x = np.where(x > 1e-9 * float(x.max()), x, 0.0)
    return onto_sphere(x, p)


def _spares(n: int, p: float) -> int:
    return 0 if p in (1, 2) or np.isinf(p) else n


def newton_master(q: Float, curvature: Float, beta: Float, p: float) -> Float:
    """The b that maximizes qᵀ(b − β) − ½ (b − β)ᵀ C (b − β) over the ball, on the sphere ‖b‖_p = 1.

    q (n,) is the gradient of J at β, where the model was taken, and C (n, n), positive semidefinite, minus its Hessian.
    """
    n = len(q)
    scale = float(np.abs(q).max()) or 1.0
    q, curvature = q / scale, curvature / scale
    width = n + _spares(n, p)
    program = ConicProgram(width)
    _add_ball(program, n, p)
    quadratic = np.zeros((width, width))
    quadratic[:n, :n] = 0.5 * (curvature + curvature.T)
    linear = np.zeros(width)
    linear[:n] = -(q + curvature @ beta)
    return _weights(program.minimize(linear, quadratic)[0][:n], p)


def ascent_direction(aim: Float, q: Float, beta: Float, p: float) -> Float:
    """From β to a master's solution; to the steepest corner of the ball where J does not rise on that way.

    A master's own tolerance can hide the way up while the gap is open. q is the gradient of J at β.
    """
    direction = aim - beta
    return direction if q @ direction > 0 else steepest(q, p) - beta


def _cutting_planes(planes: Sequence[CuttingPlane], n: int, spares: int) -> tuple[ConicProgram, Float]:
    """Variables (β, spare …, θ): maximize θ under S(α^(r), β) ≥ θ."""
    width = n + spares + 1
    program = ConicProgram(width)
    scale = max(max(float(np.abs(plane.slopes).max()), abs(plane.constant)) for plane in planes) or 1.0
    rows = np.zeros((len(planes), width))
    for r, plane in enumerate(planes):
        rows[r, :n] = -plane.slopes / scale
        rows[r, -1] = 1.0
    program.at_most(rows, np.array([plane.constant / scale for plane in planes]))
    linear = np.zeros(width)
    linear[-1] = -1.0
    return program, linear


def exact_master(planes: Sequence[CuttingPlane], p: float) -> Float:
    """Maximize the lowest of the planes over β ≥ 0, ‖β‖_p ≤ 1; returns β on the sphere, (n,)."""
    n = len(planes[0].slopes)
    program, linear = _cutting_planes(planes, n, _spares(n, p))
    _add_ball(program, n, p)
    return _weights(program.minimize(linear)[0][:n], p)


def taylor_form(beta: Float, p: float) -> tuple[Float, Float, float]:
    """The second-order Taylor form of ‖b‖_p^p at β (JMLR Eq. 11), ν(b) = Σ a_j b_j² + Σ l_j b_j + c.

    a_j = p(p−1)/2 β_j^(p−2), l_j = −p(p−2) β_j^(p−1), c = p(p−3)/2 + 1, for ‖β‖_p = 1.
    """
    # For p < 2 the form has no value at zero; this floor keeps it finite and lets a weight come back.
    floored = np.maximum(beta, 1e-6 * float(beta.max()))
    quadratic = 0.5 * p * (p - 1.0) * floored ** (p - 2.0)
    linear = -p * (p - 2.0) * floored ** (p - 1.0)
    return quadratic, linear, 0.5 * p * (p - 3.0) + 1.0


def taylor_master(planes: Sequence[CuttingPlane], beta: Float, p: float) -> Float:
    """Maximize the lowest of the planes over b ≥ 0, ν(b) ≤ 1, the form taken at β; returns b on the sphere, (n,).

    As in the papers: a linear program for p = 1, a quadratically constrained one for 1 < p < ∞.
    """
    n = len(beta)
    if p == 1 or np.isinf(p):
        return exact_master(planes, p)
    program, linear = _cutting_planes(planes, n, 0)
    program.at_most(_selector(n), np.zeros(n))
    a, slope, constant = taylor_form(beta, p)
    # bᵀDb + lᵀb + c ≤ 1 as a second-order cone: with r = 1 − c − lᵀb, ‖(2 D^½ b, r − 1)‖ ≤ r + 1.
    rows = np.zeros((n + 2, program.width))
    rows[0, :n] = slope
    rows[1:-1, :n] = -2.0 * np.diag(np.sqrt(a))
    rows[-1, :n] = slope
    b = np.concatenate([[2.0 - constant], np.zeros(n), [-constant]])
    program.add(rows, b, clarabel.SecondOrderConeT(n + 2))
    return _weights(program.minimize(linear)[0][:n], p)
