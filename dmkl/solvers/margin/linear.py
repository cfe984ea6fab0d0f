"""Support vector machines on kernels that are products of factors, K = ZZᵀ, Z (m, D): no kernel matrix is formed.

The dual of `dmkl.solvers.margin.svm` with w = Zᵀu, maximize yᵀu − ½‖w‖² − ½δ‖u‖² subject to lower ≤ u ≤ upper and
Σu = 0, is solved by a primal-dual interior-point method (Ferris and Munson, SIAM Journal on Optimization 13, 2003;
Mehrotra's predictor and corrector, SIAM Journal on Optimization 2, 1992). With multipliers s, t ≥ 0 of the bounds,

    Zw + δu + b − y = s − t,     s_i(u_i − lower_i) = t_i(upper_i − u_i) = μ,

and θ = s/(u − lower) + t/(upper − u) + δ a step solves a system of D + 1 unknowns, (I + ZᵀΘ⁻¹Z, ZᵀΘ⁻¹1; 1ᵀΘ⁻¹Z,
1ᵀΘ⁻¹1), in mD² operations; some 20 to 60 steps end it. (LIBLINEAR's coordinate descent penalizes the bias.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve

from dmkl.arrays import Float, Index
from dmkl.errors import refuse
from dmkl.numerics.cholesky import add_gram
from dmkl.passes.factors import strips
from dmkl.solvers.margin.svm import FIRST_EPS, Bounds, SVMSolution, as_signs, box, certify, feasible, optimize
from dmkl.solvers.requests import SVM, EachProduct, Task


@dataclass(frozen=True, eq=False)
class FactoredKernels:
    """Kernels K_j = Z_jZ_jᵀ in memory, as Z_1, Z_2, ..., (m, d_j)."""

    factors: list[Float]

    @classmethod
    def of(cls, Z: Float, widths: Index, kernels: Index | None, rows: Index | None) -> FactoredKernels:
        """Some kernels, over some samples, from the factors of all side by side."""
        factors = np.split(Z if rows is None else Z[rows], np.cumsum(widths)[:-1], axis=1)
        return cls(factors if kernels is None else [factors[k] for k in kernels])

    def answer(self, request: Any) -> Any:
        """The answer of `dmkl.solvers.driver` to requests of support vector machines."""
        match request:
            case SVM(rows=None, noise=None):
                pairs = zip(request.weights, self.factors, strict=True)
                Z = np.concatenate([np.sqrt(w) * Z for w, Z in pairs if w > 0] or [0.0 * self.factors[0]], axis=1)
                return solve_linear(Z, request.y, request.C, request.tol, request.ridge)
            case EachProduct(columns=None):
                return np.stack([Z @ (Z.T @ request.block) for Z in self.factors])
            case Task():
                return request.function(*request.arguments)
        msg = f"a problem on factors in memory cannot ask for {type(request).__name__}"
        raise NotImplementedError(msg)


_FIRST_AIM = 1e-6  # the gap at which it is mostly clear which samples are at bounds


def solve_linear(Z: Float, y: npt.ArrayLike, C: Bounds, tol: float = 1e-6, ridge: float = 0.0) -> SVMSolution:
    """Train a support vector machine on K = ZZᵀ + δI, for Z (m, D) and the ridge δ; otherwise as `solve_dense`.

    Near the solution, samples whose multipliers say that they are at a bound are set to it exactly, and the others, no
    more than D + 1 unless rows of Z are equal, are optimized as in `solve_dense`. The gap is that of the returned u.
    """
    y = as_signs(y, C)
    if Z.ndim != 2 or len(Z) != len(y):
        refuse(f"the factors must have a row for each label, ({len(y)}, D); found {Z.shape}")
    point = _Point.central(Z, y, C, ridge)
    best, aim = point.machine(Z, y, C, ridge), max(tol, _FIRST_AIM)
    for _ in range(200):  # mostly 20 to 60 are enough
        dual = float(y @ point.u) - 0.5 * float(point.w @ point.w + ridge * point.u @ point.u)
        if point.gap <= aim * (dual + point.gap):
            best = min(best, _at_bounds(point, Z, y, C, ridge), key=lambda machine: machine.gap)
            aim *= 0.1
        if best.gap <= tol:
            return best
        try:
            last, point = point, point.next(Z, y, ridge)
        except np.linalg.LinAlgError:
            break
        if aim < _FIRST_AIM and not point.gap < last.gap:  # the arithmetic resolves no more
            point = last
            break
    return min(best, point.machine(Z, y, C, ridge), key=lambda machine: machine.gap)


@dataclass(frozen=True, eq=False)
class _Point:
    """A strictly feasible u, w = Zᵀu and the bias, with the multipliers s and t of the bounds."""

    u: Float
    w: Float
    bias: float
    s: Float
    t: Float
    # u − lower and upper − u, kept apart: differences would lose the digits of small distances.
    below: Float
    above: Float

    @property
    def gap(self) -> float:
        """The distance of the primal from the dual."""
        return float(self.s @ self.below + self.t @ self.above)

    @classmethod
    def central(cls, Z: Float, y: Float, C: Bounds, ridge: float) -> _Point:
        """The best point on the ray to the middle of the box, and multipliers that make it stationary."""
        u, (lower, upper) = feasible(0.5 * C * y, y, C), box(y, C)
        u *= min(1.0, float(y @ u) / max(float(np.sum((Z.T @ u) ** 2) + ridge * u @ u), np.finfo(float).tiny))
        w = Z.T @ u
        slope = Z @ w + ridge * u - y
        return cls(u, w, 0.0, np.maximum(slope, 0.0) + 1.0, np.maximum(-slope, 0.0) + 1.0, u - lower, upper - u)

    def machine(self, Z: Float, y: Float, C: Bounds, ridge: float) -> SVMSolution:
        """The machine of u, which is mostly inside the box."""
        u = feasible(self.u, y, C)
        return certify(u, Z @ (Z.T @ u) + ridge * u, y, C)

    def next(self, Z: Float, y: Float, ridge: float) -> _Point:
        """Newton's step for the conditions with the products of the multipliers and distances reduced."""
        theta = self.s / self.below + self.t / self.above + ridge
        system = cho_factor(_normal_matrix(Z, 1.0 / theta), overwrite_a=True)
        rest = Z @ self.w + ridge * self.u + self.bias - y - self.s + self.t

        def change(of_s: Float, of_t: Float) -> tuple[Float, Float, Float, Float]:
            """The changes of (b, w), u, s and t that change s(u − lower) and t(upper − u) by these amounts."""
            g = (of_s / self.below - of_t / self.above - rest) / theta
            dw = cho_solve(system, np.append(g.sum() + self.u.sum(), Z.T @ (g + self.u) - self.w))
            du = g - (dw[0] + Z @ dw[1:]) / theta
            return dw, du, (of_s - self.s * du) / self.below, (of_t + self.t * du) / self.above

        def room(du: Float, ds: Float, dt: Float) -> float:
            pairs = ((self.below, du), (self.above, -du), (self.s, ds), (self.t, dt))
            return min(1.0, *(float((v[d < 0] / -d[d < 0]).min(initial=np.inf)) for v, d in pairs))

        # The predictor shows how far the gap can fall, and its second-order terms correct the step.
        _, du, ds, dt = change(-self.s * self.below, -self.t * self.above)
        r = room(du, ds, dt)
        fallen = (self.s + r * ds) @ (self.below + r * du) + (self.t + r * dt) @ (self.above - r * du)
        center = (fallen / self.gap) ** 3 * self.gap / (2 * len(y))
        dw, du, ds, dt = change(center - self.s * self.below - ds * du, center - self.t * self.above + dt * du)
        r = 0.995 * room(du, ds, dt)
        changes: tuple[Any, ...] = (du, dw[1:], float(dw[0]), ds, dt, du, -du)
        return _Point(*(value + r * change for value, change in zip(vars(self).values(), changes, strict=True)))


def _normal_matrix(Z: Float, scale: Float) -> Float:
    """[1, Z]ᵀ diag(scale) [1, Z], its upper triangle, plus the identity for w."""
    total = np.diag(np.append(0.0, np.ones(Z.shape[1]))).copy(order="F")
    for strip in strips(len(total), slice(0, len(Z))):
        root = np.sqrt(scale[strip])
        rows = np.concatenate([root[:, None], Z[strip] * root[:, None]], axis=1)
        add_gram(total, rows)
    return total


def _at_bounds(point: _Point, Z: Float, y: Float, C: Bounds, ridge: float) -> SVMSolution:
    """The machine with the samples set to their bounds that belong there, and the best u of the others."""
    (lower, upper), u = box(y, C), point.u.copy()
    # Of the distance from a bound and its multiplier one tends to zero; the units are those of u and of the margin.
    unit = np.minimum(C, np.abs(u).max())
    at_lower, at_upper = point.below < unit * point.s, point.above < unit * point.t
    u[at_lower], u[at_upper] = lower[at_lower], upper[at_upper]
    free = np.flatnonzero(~at_lower & ~at_upper)
    # Σu = 0 again, within the bounds of the free samples.
    room = np.where(u.sum() > 0, u - lower, upper - u)[free]
    if len(free) ** 2 > Z.size or room.sum() <= abs(u.sum()):
        return point.machine(Z, y, C, ridge)
    u[free] -= room * (u.sum() / room.sum())
    inside = Z[free]
    part, slope = u[free], (y - Z @ (Z.T @ u) - ridge * u)[free]
    K = inside @ inside.T + ridge * np.eye(len(free))
    optimize(K, lower[free], upper[free], part, slope, 1e-6 * FIRST_EPS)
    u[free] = part
    machine = certify(u, Z @ (Z.T @ u) + ridge * u, y, C)
    kept = np.isin(free, machine.free)
    return replace(machine, free_kernel=K[np.ix_(kept, kept)])
