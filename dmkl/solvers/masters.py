"""The restricted master: the small problem over the kernel weights that one central place solves.

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
from typing import Any

import clarabel
import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dmkl.errors import DmklError
from dmkl.numerics.fisher import onto_sphere

__all__ = ["CuttingPlane", "MasterError", "exact_master", "newton_master", "taylor_form", "taylor_master"]

Float = npt.NDArray[np.float64]


class MasterError(DmklError, RuntimeError):
    """The restricted master could not be solved to use."""


@dataclass(frozen=True)
class CuttingPlane:
    """S(α, β) = constant + slopesᵀβ for one α: a bound of J from above."""

    constant: float
    slopes: Float


class _Cone:
    """Rows of Clarabel's A x + s = b, s in a product of cones, over x with `width` variables."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._rows: list[Any] = []
        self._b: list[Float] = []
        self._cones: list[Any] = []

    def add(self, rows: Any, b: Float, *cones: Any) -> None:
        """Demand that b − rows x lie in the product of the cones."""
        self._rows.append(sp.csc_array(rows))
        self._b.append(np.asarray(b, dtype=np.float64))
        self._cones.extend(cones)

    def minimize(self, quadratic: Any, linear: Float) -> Float:
        """Minimize ½ xᵀPx + qᵀx.

        Raises
        ------
        MasterError
            If Clarabel finds no point at all.
        """
        options = clarabel.DefaultSettings()
        options.verbose = False
        options.max_iter = 200
        options.tol_gap_abs = options.tol_gap_rel = options.tol_feas = 1e-10
        upper = sp.triu(sp.csc_array(quadratic), format="csc")
        rows = sp.vstack(self._rows, format="csc")
        solver = clarabel.DefaultSolver(
            sp.csc_matrix(upper), linear, sp.csc_matrix(rows), np.concatenate(self._b), self._cones, options
        )
        solution = solver.solve()
        x = np.asarray(solution.x, dtype=np.float64)
        # Any status is good enough whose point is usable: the caller scales it onto the ball and certifies the
        # result by the full problem, not by the master.
        if not np.isfinite(x).all() or str(solution.status) in (
            "PrimalInfeasible",
            "DualInfeasible",
            "Unsolved",
        ):
            msg = f"the restricted master ended without a solution (Clarabel: {solution.status})"
            raise MasterError(msg)
        return x


def _selector(width: int, first: int, n: int, sign: float = -1.0) -> Any:
    return sp.csc_array((np.full(n, sign), (np.arange(n), first + np.arange(n))), shape=(n, width))


def _add_ball(cone: _Cone, n: int, p: float, spare: int) -> None:
    """β ≥ 0 and ‖β‖_p ≤ 1 for x = (β, …); `spare` is the first of n spare variables, used where p needs them."""
    width = cone.width
    cone.add(_selector(width, 0, n), np.zeros(n), clarabel.NonnegativeConeT(n))
    if np.isinf(p):
        cone.add(_selector(width, 0, n, 1.0), np.ones(n), clarabel.NonnegativeConeT(n))
    elif p == 1:
        row = sp.csc_array((np.ones(n), (np.zeros(n, dtype=int), np.arange(n))), shape=(1, width))
        cone.add(row, np.ones(1), clarabel.NonnegativeConeT(1))
    elif p == 2:
        rows = sp.vstack([sp.csc_array((1, width)), _selector(width, 0, n)])
        cone.add(rows, np.concatenate([[1.0], np.zeros(n)]), clarabel.SecondOrderConeT(n + 1))
    else:
        # Σ t_j ≤ 1 with (t_j, 1, β_j) in the power cone of exponent 1/p: t_j^(1/p) ≥ β_j.
        row = sp.csc_array((np.ones(n), (np.zeros(n, dtype=int), spare + np.arange(n))), shape=(1, width))
        cone.add(row, np.ones(1), clarabel.NonnegativeConeT(1))
        first = 3 * np.arange(n)
        at = (np.concatenate([first, first + 2]), np.concatenate([spare + np.arange(n), np.arange(n)]))
        rows = sp.csc_array((np.full(2 * n, -1.0), at), shape=(3 * n, width))
        cone.add(rows, np.tile([0.0, 1.0, 0.0], n), *[clarabel.PowerConeT(1.0 / p)] * n)


def _weights(x: Float, p: float) -> Float:
    """The solution on the sphere; at p = 1 what an interior point leaves of weights that are zero is made zero."""
    if p == 1:
        x = np.where(x > 1e-9 * float(x.max()), x, 0.0)
    return onto_sphere(x, p)


def _spares(n: int, p: float) -> int:
    return 0 if p in (1, 2) or np.isinf(p) else n


def newton_master(q: Float, curvature: Float, beta: Float, p: float) -> Float:
    """Maximize qᵀ(b − β) − ½ (b − β)ᵀ C (b − β) over the ball.

    Parameters
    ----------
    q
        (n,), the gradient of J at β.
    curvature
        C, (n, n), positive semidefinite: minus the Hessian.
    beta
        (n,), where the model was taken.
    p
        Exponent of the norm.

    Returns
    -------
    ndarray
        (n,), on the sphere ‖b‖_p = 1.
    """
    n = len(q)
    scale = float(np.abs(q).max()) or 1.0
    q, curvature = q / scale, curvature / scale
    width = n + _spares(n, p)
    cone = _Cone(width)
    _add_ball(cone, n, p, n)
    quadratic = np.zeros((width, width))
    quadratic[:n, :n] = 0.5 * (curvature + curvature.T)
    linear = np.zeros(width)
    linear[:n] = -(q + curvature @ beta)
    return _weights(cone.minimize(quadratic, linear)[:n], p)


def _cutting_planes(cuts: Sequence[CuttingPlane], n: int, spares: int) -> tuple[_Cone, Float]:
    """Variables (β, spare …, θ): maximize θ under S(α^(r), β) ≥ θ."""
    width = n + spares + 1
    cone = _Cone(width)
    scale = max(max(float(np.abs(cut.slopes).max()), abs(cut.constant)) for cut in cuts) or 1.0
    rows = np.zeros((len(cuts), width))
    for r, cut in enumerate(cuts):
        rows[r, :n] = -cut.slopes / scale
        rows[r, -1] = 1.0
    cone.add(rows, np.array([cut.constant / scale for cut in cuts]), clarabel.NonnegativeConeT(len(cuts)))
    linear = np.zeros(width)
    linear[-1] = -1.0
    return cone, linear


def exact_master(cuts: Sequence[CuttingPlane], p: float) -> Float:
    """Maximize the lowest of the cuts over β ≥ 0, ‖β‖_p ≤ 1; returns β on the sphere, (n,)."""
    n = len(cuts[0].slopes)
    cone, linear = _cutting_planes(cuts, n, _spares(n, p))
    _add_ball(cone, n, p, n)
    return _weights(cone.minimize(sp.csc_array((cone.width, cone.width)), linear)[:n], p)


def taylor_form(beta: Float, p: float) -> tuple[Float, Float, float]:
    """The second-order Taylor form of ‖b‖_p^p at β (JMLR Eq. 11), ν(b) = Σ a_j b_j² + Σ l_j b_j + c.

    a_j = p(p−1)/2 β_j^(p−2), l_j = −p(p−2) β_j^(p−1), c = p(p−3)/2 + 1, for ‖β‖_p = 1.
    """
    # For p < 2 the form has no value at zero; this floor keeps it finite and lets a weight come back.
    floored = np.maximum(beta, 1e-6 * float(beta.max()))
    quadratic = 0.5 * p * (p - 1.0) * floored ** (p - 2.0)
    linear = -p * (p - 2.0) * floored ** (p - 1.0)
    return quadratic, linear, 0.5 * p * (p - 3.0) + 1.0


def taylor_master(cuts: Sequence[CuttingPlane], beta: Float, p: float) -> Float:
    """Maximize the lowest of the cuts over b ≥ 0, ν(b) ≤ 1, the form taken at β; returns b on the sphere, (n,).

    As in the papers: a linear program for p = 1, a quadratically constrained one for 1 < p < ∞.
    """
    n = len(beta)
    if p == 1 or np.isinf(p):
        return exact_master(cuts, p)
    cone, linear = _cutting_planes(cuts, n, 0)
    cone.add(_selector(cone.width, 0, n), np.zeros(n), clarabel.NonnegativeConeT(n))
    a, slope, constant = taylor_form(beta, p)
    # bᵀDb + lᵀb + c ≤ 1 as a second-order cone: with r = 1 − c − lᵀb, ‖(2 D^½ b, r − 1)‖ ≤ r + 1.
    rows = np.zeros((n + 2, cone.width))
    rows[0, :n] = slope
    rows[1:-1, :n] = -2.0 * np.diag(np.sqrt(a))
    rows[-1, :n] = slope
    b = np.concatenate([[2.0 - constant], np.zeros(n), [-constant]])
    cone.add(rows, b, clarabel.SecondOrderConeT(n + 2))
    return _weights(cone.minimize(sp.csc_array((cone.width, cone.width)), linear)[:n], p)
