"""Sequential minimal optimization, compiled: the support vector machine's dual on a kernel matrix in memory.

In the signed variables u = α∘y the dual of every support vector machine is the same problem,

    maximize yᵀu − ½ uᵀKu   subject to   lower ≤ u ≤ upper,  Σu fixed,

and a step moves weight from one variable to another, without cases for their labels.
"""

from __future__ import annotations

import numpy as np

from dmkl.arrays import Array
from dmkl.numerics.compiling import compiled

__all__ = ["ascend"]

_LEAST_CURVATURE = 1e-12
_SHRINK_EVERY = 1000


@compiled({"contract", "nsz"})
def ascend(K: Array, lower: Array, upper: Array, u: Array, f: Array, eps: float, max_steps: int) -> int:
    """Ascend until no pair of variables violates optimality by more than eps; u and f are changed in place.

    The pair (i, j) of a step is chosen by second-order information (Fan, Chen, Lin, JMLR 6, 2005, WSS 2): i has the
    largest gradient of the variables that may rise, and j has, together with i, the largest predicted gain of those
    that may fall. A curvature K_ii + K_jj − 2K_ij that is not positive (equal rows, or a kernel that is not positive
    semidefinite) is replaced by 1e-12, so that the step ends at a bound and still gains.

    Variables at a bound whose gradient points outwards are left out until the others are optimal; then their gradients
    are brought up to date, and all variables are considered again.

    K (w, w) is symmetric with contiguous rows; u is within its bounds lower and upper, (w,) each; f is the gradient
    y − Ku of the dual, of the whole problem if this is a part of one. Returns the number of steps, at most max_steps.
    """
    n = len(u)
    u_start, f_start = u.copy(), f.copy()
    active = np.arange(n)
    n_active = n
    for step in range(max_steps):
        # The pair with the largest f of those that may rise and the smallest f of those that may fall violates
        # optimality by their difference: at an optimum one threshold (the bias) separates the two sets.
        i, highest, lowest = -1, -np.inf, np.inf
        for k in active[:n_active]:
            if u[k] < upper[k] and f[k] > highest:
                i, highest = k, f[k]
            if u[k] > lower[k] and f[k] < lowest:
                lowest = f[k]
        if i < 0 or highest - lowest <= eps:
            if n_active == n:
                return step
            # Back to all variables: the gradients of those left out are updated by all changes since their last value.
            for k in active[n_active:]:
                f[k] = f_start[k]
            for k in range(n):
                change = u[k] - u_start[k]
                if change != 0:
                    row = K[k]
                    for a in active[n_active:]:
                        f[a] -= change * row[a]
            n_active = n
            continue
        j, best = -1, -np.inf
        row_i = K[i]
        for k in active[:n_active]:
            # The gain along e_i − e_k is (f_i − f_k)²/(2·curvature); the factor ½ does not matter for the choice.
            apart = highest - f[k]
            if u[k] > lower[k] and apart > 0:
                gain = apart * apart / max(row_i[i] + K[k, k] - 2.0 * row_i[k], _LEAST_CURVATURE)
                if gain > best:
                    j, best = k, gain
        length = (highest - f[j]) / max(row_i[i] + K[j, j] - 2.0 * row_i[j], _LEAST_CURVATURE)
        up, down = upper[i] - u[i], u[j] - lower[j]
        length = min(length, up, down)
        # Bounds are met exactly, since the free variables are identified by comparison.
        u[i] = upper[i] if length == up else u[i] + length
        u[j] = lower[j] if length == down else u[j] - length
        row_j = K[j]
        for k in active[:n_active]:
            f[k] -= length * (row_i[k] - row_j[k])
        if (step + 1) % _SHRINK_EVERY == 0:
            kept = 0
            for a in range(n_active):
                k = active[a]
                pressed = (u[k] == upper[k] and f[k] > highest) or (u[k] == lower[k] and f[k] < lowest)
                if not pressed:
                    active[a], active[kept] = active[kept], k
                    kept += 1
            n_active = kept
    # Out of steps: all gradients are brought up to date before returning.
    for k in active[n_active:]:
        f[k] = f_start[k]
        for a in range(n):
            f[k] -= (u[a] - u_start[a]) * K[k, a]
    return max_steps
