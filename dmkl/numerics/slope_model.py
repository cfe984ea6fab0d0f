"""Kernel weights over the ℓp ball by a model of the slopes, for many problems at once.

For 1 < p < ∞ no weight of the optimum is zero where its slope is positive, and it is optimal where q(b) is proportional
to b^(p−1). With the model log q_j(b) = log q_j − [C(b − β)]_j / q_j of the slopes near β, −C being their derivative,

    log q_j(b) = log μ + (p − 1) log b_j,   Σ_j b_j^p = 1

is solved by Newton's method for log b and log μ. Weights that all but vanish, as they do for p near 1, are then like
all others, and slopes stay positive however far a step goes.
"""

from __future__ import annotations

import numpy as np

from dmkl.arrays import Array, Float

__all__ = ["weights_by_slopes"]

_STEPS = 60
_LARGEST_STEP = 2.0
"""By how much the logarithm of a weight may grow in a step; it may fall by any."""
_LEAST_LOG = -600.0


def weights_by_slopes(q: Float, curvature: Array, beta: Float, p: float) -> Float:
    """The b > 0 with ‖b‖_p = 1 that are optimal by the model, (t, n), for 1 < p < ∞.

    Parameters
    ----------
    q, beta
        Positive slopes, and the weights that they were taken at, (t, n).
    curvature
        C, (t, n, n), positive semidefinite.
    """
    t, n = q.shape
    relative = curvature / q[:, :, None]
    fixed = np.log(q / q.max(axis=1, keepdims=True)) + np.matmul(relative, beta[:, :, None])[:, :, 0]
    u = np.log(np.maximum(beta, np.exp(_LEAST_LOG)))
    u -= np.log(np.sum(np.exp(p * u), axis=1, keepdims=True)) / p
    v = np.zeros(t)
    system = np.zeros((t, n + 1, n + 1))
    every = np.arange(n)
    for _ in range(_STEPS):
        b = np.exp(u)
        slope = fixed - np.matmul(relative, b[:, :, None])[:, :, 0]
        powers = np.exp(p * u)
        left = np.concatenate([slope - v[:, None] - (p - 1.0) * u, -np.log(powers.sum(axis=1))[:, None] / p], 1)
        system[:, :n, :n] = relative * b[:, None, :]
        system[:, every, every] += p - 1.0
        system[:, :n, n] = 1.0
        system[:, n, :n] = powers / powers.sum(axis=1, keepdims=True)
        step = np.linalg.solve(system, left[:, :, None])[:, :, 0]
        size = np.minimum(1.0, _LARGEST_STEP / np.maximum(step[:, :n].max(axis=1), _LARGEST_STEP))
        u = np.maximum(u + size[:, None] * step[:, :n], _LEAST_LOG)
        v += size * step[:, n]
        if float(np.abs(b * step[:, :n]).max()) < 1e-9:
            break
    b = np.exp(u)
    return np.asarray(b / np.sum(b**p, axis=1, keepdims=True) ** (1.0 / p))
