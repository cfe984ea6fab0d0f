"""Master problems: the next kernel weights, from the values and gradients of the objective so far.

Three forms (Yan et al., JMLR 13, 2012, section 2.1, and beyond):

taylor
    Cutting planes S(α^(r), β) ≥ θ under the second-order Taylor form ν(β) ≤ 1 of the norm (Eqs. 11 and 16): a linear
    program for p = 1, one quadratic constraint otherwise. The form breaks down as β_j → 0 for p < 2, where
    β_j^(p−2) grows without bound.
exact
    The same cutting planes over the set of weights itself, by cones.
newton
    The quadratic model of the concave J(β) = min_α S(α, β) over the set. Its gradient is q, its Hessian
    −(1/4λ²) Σ_k (K_iα_k)ᵀA⁻¹(K_jα_k) with A = ½(I + K(β)/λ). For many kernels it is given by a factor (`Factored`),
    whose rank is at most that of the problem, and a master over a ball takes time linear in the kernels.

`LineSearch` shortens a step that raises the objective too little (Armijo's rule).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import clarabel
import numpy as np
import scipy.linalg

from dmkl.arrays import Float
from dmkl.numerics.fisher import onto_sphere
from dmkl.solvers.weight_sets import Ball, ConicError, ConicProgram, WeightSet

WEIGHTS_ERROR = 1e-3  # Newton's last step, relative to the largest weight
FLAT = 1e-10  # A gap of weights at which Newton's next step is rounding, or leads to weights that are as good
_SHORTEST = 1e-6
_TINY = float(np.finfo(np.float64).tiny)


@dataclass(eq=False)
class LineSearch:
    """Successively shorter steps in one direction from the best point so far, until the objective rises enough."""

    start: Float
    direction: Float
    gradient: Float  # At the start
    value: float  # The objective at the start; if only an interval is known its lower end, or a value in it
    slack: float = 0.0  # By how much the value may be too high
    share: float = 1e-3  # That of gradient times step by which the objective has to rise
    length: float = 1.0  # That of the first step, in units of the direction
    factor: float = 0.5  # By which a refused step is shortened
    point: Float | None = field(init=False)  # The next to evaluate; None when steps have become too short to matter

    def __post_init__(self) -> None:
        self._go(self.length)

    def _go(self, length: float) -> None:
        self.length = length
        self.point = None if length < _SHORTEST else self.start + length * self.direction

    def accepts(self, value: float, slack: float = 0.0) -> bool:
        """Whether the objective rises enough from the start to `point`, with this value there.

        If only an interval of the value is known, `value` is its upper end; `slack` is the largest amount by which
        another value may be too low.
        """
        assert self.point is not None
        # The uncertainties of both values are added: a step is refused only if it certainly rises too little.
        promised = float(np.vdot(self.gradient, self.point - self.start))
        return value >= self.value + self.share * promised - self.slack - slack

    def shorten(self) -> None:
        """Shorten a step that was refused, by the factor."""
        self._go(self.factor * self.length)


_SAME_SUM = 1e-14  # Rounding of sums of weights


@dataclass(frozen=True)
class CuttingPlane:
    """S(α, β) = constant + gradientᵀβ for one α: an upper bound of J."""

    constant: float
    gradient: Float


class Factored(NamedTuple):
    """A curvature C = RRᵀ by its factor R, (n, r), for so many kernels that C itself is too large to compute with."""

    root: Float

    def dense(self) -> Float:
        """C, (n, n)."""
        return np.asarray(self.root @ self.root.T)


def newton_master(q: Float, curvature: Float | Factored, beta: Float, weights: WeightSet) -> Float:
    """The b in the set that maximizes qᵀ(b − β) − ½ (b − β)ᵀ C (b − β).

    q (n,) is the gradient of J at β, where the model is taken, and C (n, n), positive semidefinite, minus its Hessian.
    If C is factored and the set is a ball with 1 < p < ∞, a model of log q is maximized instead (`_maximize_smooth`),
    which has the same derivatives at β.
    """
    if isinstance(curvature, Factored):
        if isinstance(weights, Ball) and weights.p < np.inf:
            maximizer = _maximize_sparse if weights.p == 1 else _maximize_smooth
            return maximizer(q, curvature.root, beta, weights)
        curvature = curvature.dense()
    n = len(q)
    # Variables in units of the set, and an objective with entries near one: the solver's tolerances are absolute.
    units = weights.units(n)
    q, curvature, x = q * units, curvature * np.outer(units, units), beta / units
    scale = float(np.abs(q).max()) or 1.0
    q, curvature = q / scale, curvature / scale
    program = weights.program(n)
    # −qᵀ(b − x) + ½(b − x)ᵀC(b − x) without its constant: linear term −(q + Cx), quadratic term C.
    minimizer, _ = program.minimize(-(q + curvature @ x), 0.5 * (curvature + curvature.T))
    return units * weights.polish(weights.clean(minimizer[:n]), q, curvature, x)


_KERNELS_AT_ONCE = 50
_LEFT = 0.1  # Share of the rise of the model that may be left: Newton's method takes further steps anyway
_OPTIMAL = 1e-9  # Excess of a gradient over the multiplier, relative to the largest gradient, that is rounding.


def _maximize_sparse(q: Float, root: Float, beta: Float, weights: WeightSet) -> Float:
    """`newton_master` for p = 1, where few weights are positive: conic programs over a growing set of kernels.

    The maximizer over some kernels is that over all of them if no other kernel has a larger derivative of the model.
    """
    kernels = np.union1d(np.argsort(-beta)[:_KERNELS_AT_ONCE], np.argsort(-q)[:_KERNELS_AT_ONCE])
    # The model's derivative at b = 0: other kernels than these may have weight in β.
    at_zero, aim = q + root @ (beta @ root), np.zeros_like(beta)
    while True:
        some = root[kernels]
        aim[kernels] = newton_master(at_zero[kernels], some @ some.T, np.zeros(len(kernels)), weights)
        gradient = at_zero - root @ (aim @ root)
        excess = gradient - aim @ gradient
        excess[kernels] = 0.0
        # The model is concave and the weights sum to one: over all kernels it is higher by the largest excess at most.
        step = aim - beta
        rise = q @ step - 0.5 * np.sum((step @ root) ** 2)
        above = np.flatnonzero(excess > max(_OPTIMAL * np.abs(q).max(), _LEFT * rise))
        if not len(above):
            return aim
        kernels = np.union1d(kernels, above[np.argsort(-excess[above])[:_KERNELS_AT_ONCE]])


MODEL_STEPS, MODEL_STEP, MODEL_ERROR, LEAST_LOG = 60, 2.0, 1e-9, -600.0
"""Newton's method in logarithms of weights: most steps, the largest rise, the error, and the least logarithm."""
_LEAST_GRADIENT = 1e-12


def positive(q: Float) -> Float:
    """Gradients (…, n) that have logarithms: none is below a tiny share of the largest."""
    return np.asarray(np.maximum(q, np.maximum(_LEAST_GRADIENT * q.max(axis=-1, keepdims=True), _TINY)))


def _maximize_smooth(q: Float, root: Float, beta: Float, weights: WeightSet) -> Float:
    """The b > 0 on the sphere with log q_j − [C(b − β)]_j/q_j = log μ + (p − 1) log b_j, for 1 < p < ∞.

    Newton's method for u = log b and v = log μ, as `dmkl.solvers.fisher.many` takes it for many targets. Its matrix is
    (p − 1)I + diag(1/q) RRᵀ diag(b) with a border for Σ b^p = 1; by Woodbury's formula the systems that are solved have
    the size r of the factor.
    """
    p, q = weights.p, positive(q)
    relative = root / q[:, None]
    # log μ absorbs a factor of q.
    fixed = np.log(q / q.max()) + relative @ (beta @ root)
    u, v = np.log(np.maximum(beta, _TINY)), 0.0
    for _ in range(MODEL_STEPS):
        b, powers = np.exp(u), np.exp(p * u)
        size = powers.sum()
        left = np.stack([fixed - relative @ (b @ root) - v - (p - 1.0) * u, np.ones_like(u)], axis=1)
        scaled = root * np.sqrt(b / q)[:, None]
        small = scaled.T @ scaled  # NumPy computes half of it where both are the same array
        small[np.diag_indices(len(small))] += p - 1.0
        solved = (left - relative @ scipy.linalg.solve(small, root.T @ (b[:, None] * left), assume_a="pos")) / (p - 1.0)
        first, border = powers @ solved / size
        change = (first + np.log(size) / p) / border
        step = solved[:, 0] - change * solved[:, 1]
        # A logarithm may rise by the largest step, and fall by any.
        length = min(1.0, MODEL_STEP / max(float(step.max()), MODEL_STEP))
        u, v = np.maximum(u + length * step, LEAST_LOG), v + length * change
        if float(np.abs(b * step).max()) < MODEL_ERROR:
            break
    return onto_sphere(np.exp(u - u.max()), p)


def newton_direction(q: Float, curvature: Float | Factored | None, beta: Float, weights: WeightSet) -> Float:
    """The direction from β to the maximizer of the quadratic model; see `newton_master` and `ascent_direction`.

    On a ball, without a curvature or where Clarabel fails, it is that of the closed form for the present w_j,
    β_j ∝ (β_j²q_j)^(1/(p+1)), ‖w_j‖² ∝ β_j²q_j (Kloft et al., JMLR 12, 2011, Eq. 25), along which J rises slowly.
    """
    if curvature is not None:
        with suppress(*[ConicError] if isinstance(weights, Ball) else []):
            return ascent_direction(newton_master(q, curvature, beta, weights), q, beta, weights)
    # The scale of the squares cancels on the sphere; dividing by the largest keeps the power in [0, 1].
    squares = beta**2 * np.maximum(q, 0.0)
    aim = onto_sphere((squares / (squares.max() or 1.0)) ** (1.0 / (weights.p + 1.0)), weights.p)
    return ascent_direction(aim, q, beta, weights)


def ascent_direction(aim: Float, q: Float, beta: Float, weights: WeightSet) -> Float:
    """The direction from β to a master's solution, or to the steepest point of the set if J does not rise along it."""
    # J is concave: along a direction with qᵀ(aim − β) ≤ 0 it cannot rise. The tolerance of the conic solver can exceed
    # the remaining rise while the gap is still open.
    direction = aim - beta
    # Weights of the same sum, as for p = 1: a constant in q changes nothing but the rounding of the product.
    level = float(q.max()) if abs(float(direction.sum())) < _SAME_SUM else 0.0
    return direction if (q - level) @ direction > 0 else weights.steepest(q) - beta


def _cutting_planes(program: ConicProgram, planes: Sequence[CuttingPlane], units: Float) -> Float:
    """Add θ ≤ S(α^(r), β) to a program in the variables (β/units, …, θ), and return the objective that maximizes θ."""
    n, width = len(units), program.width
    gradients = np.array([plane.gradient for plane in planes]) * units
    constants = np.array([plane.constant for plane in planes])
    # θ and the planes are divided by a common scale, which does not change the minimizer.
    scale = max(float(np.abs(gradients).max()), float(np.abs(constants).max())) or 1.0
    rows = np.zeros((len(planes), width))
    rows[:, :n], rows[:, -1] = -gradients / scale, 1.0
    program.at_most(rows, constants / scale)
    linear = np.zeros(width)
    linear[-1] = -1.0
    return linear


def exact_master(planes: Sequence[CuttingPlane], weights: WeightSet) -> tuple[Float, Float]:
    """Maximize the minimum of the planes over the set; returns β, (n,), and the multipliers of the planes.

    The multipliers, 0 or more with the sum one, are those of the mean of the planes that has the same maximum.
    """
    n = len(planes[0].gradient)
    units = weights.units(n)
    program = weights.program(n).widened(1)
    x, multipliers = program.minimize(_cutting_planes(program, planes, units))
    shares = np.maximum(multipliers[-len(planes) :], 0.0)
    return units * weights.clean(x[:n]), shares / (shares.sum() or 1.0)


def taylor_master(planes: Sequence[CuttingPlane], beta: Float, weights: WeightSet) -> Float:
    """Maximize the minimum of the planes over b ≥ 0, ν(b) ≤ 1; returns b on the sphere, (n,).

    ν(b) = Σ a_j b_j² + Σ l_j b_j + c is the second-order Taylor form of ‖b‖_p^p at β. By JMLR Eq. 11,
    a_j = p(p−1)/2 β_j^(p−2), l_j = −p(p−2) β_j^(p−1), c = p(p−3)/2 + 1, for ‖β‖_p = 1. The set is a ball, with or
    without prices: a linear program for p = 1, a quadratically constrained one otherwise.
    """
    n, p = len(beta), weights.p
    if p == 1 or np.isinf(p):
        return exact_master(planes, weights)[0]
    units = weights.units(n)
    program = ConicProgram(n + 1)
    linear = _cutting_planes(program, planes, units)
    program.nonnegative(n)
    # For p < 2 the form is infinite at zero; this floor keeps it finite, so that a weight can become positive again.
    floored = np.maximum(beta / units, 1e-6 * float((beta / units).max()))
    a, slope = 0.5 * p * (p - 1.0) * floored ** (p - 2.0), -p * (p - 2.0) * floored ** (p - 1.0)
    constant = 0.5 * p * (p - 3.0) + 1.0
    # bᵀDb + lᵀb + c ≤ 1 as a second-order cone: with r = 1 − c − lᵀb, ‖(2 D^½ b, r − 1)‖ ≤ r + 1.
    rows = np.zeros((n + 2, program.width))
    rows[[0, -1], :n] = slope
    rows[1:-1, :n] = -2.0 * np.diag(np.sqrt(a))
    b = np.concatenate([[2.0 - constant], np.zeros(n), [-constant]])
    program.add(rows, b, clarabel.SecondOrderConeT(n + 2))
    return units * onto_sphere(program.minimize(linear)[0][:n], p)
