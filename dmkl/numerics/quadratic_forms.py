"""Tail probabilities of weighted sums of χ² variables: the null distributions of score tests of kernels."""

from __future__ import annotations

import numpy as np
from scipy.optimize import brentq

from dmkl.arrays import Array, Float

_STEP = 0.05
_T = np.arange(_STEP / 2, 20.0, _STEP)
"""Nodes of the midpoint rule, which converges exponentially: 1e-9 with twice the step, and 1e-13 with this one."""


def upper_tail(weights: Float, x: float = 0.0, counts: Array | None = None) -> float:
    """P(Σ_i w_i χ²_i > x) for independent χ² variables of one degree of freedom each, or of `counts`, (variables,).

    It is the integral of exp(K(s) − xs)/s over s, divided by 2πi, with K(s) = −½ Σ_i c_i log(1 − 2w_is), on any path
    from below to above that crosses the real axis between 0 and 1/(2 max w). On the path through the saddlepoint the
    integrand is largest there, so that the relative error does not depend on the probability; on the imaginary axis,
    where the formulas of Imhof and Davies integrate, the absolute error does not. The path is a hyperbola, along which
    exp(−xs) falls, with nodes that grow exponentially, since of few variables K grows slowly.

    Rice: Distribution of quadratic forms in normal random variables, SIAM Journal on Scientific and Statistical
    Computing 1 (1980). Helstrom: Calculating error probabilities by saddlepoint integration of the Laplace transform,
    IEEE Transactions on Aerospace and Electronic Systems 22 (1986).
    """
    largest = float(weights.max(initial=0.0))
    if largest <= 0.0:
        return 1.0 - upper_tail(-weights, -x, counts) if x < 0.0 and weights.any() else float(x < 0.0)
    w, x = weights / largest, x / largest
    if x <= 0.0 and w.min() >= 0.0:
        return 1.0
    c = np.ones(len(w)) if counts is None else counts

    def slope(s: float) -> float:
        return float(np.sum(c * w / (1.0 - 2.0 * w * s))) - x - 1.0 / s

    # Below this s the terms with w > 0 are at most doubled, so that −1/s is larger than all others.
    least = 1.0 / (4.0 + 2.0 * float(c @ np.maximum(w, 0.0)) + max(-x, 0.0))
    at, nodes = brentq(slope, least, 0.5 - 1e-15, xtol=1e-12 * least), _T
    length = 1.0 / np.sqrt(np.sum(2.0 * c * (w / (1.0 - 2.0 * w * at)) ** 2) + at**-2)
    bend = 0.5 if x > 0.0 else 0.0
    path = at + length * (bend * (np.cosh(nodes) - 1.0) + 1j * np.sinh(nodes))
    change = length * (bend * np.sinh(nodes) + 1j * np.cosh(nodes))
    log_values = -0.5 * c @ np.log(1.0 - 2.0 * np.outer(w, path)) - x * path - np.log(path)
    return float(np.clip(np.sum(np.exp(log_values) * change).imag * _STEP / np.pi, 0.0, 1.0))
