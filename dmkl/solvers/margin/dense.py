"""A support vector machine on a kernel matrix in memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from dmkl.arrays import Float
from dmkl.errors import InputError
from dmkl.solvers.margin.machine import Bounds, SVMSolution, as_signs, box, certify, feasible, solve_among_free
from dmkl.solvers.margin.smo import ascend

__all__ = ["FIRST_EPS", "dense_bytes", "optimize", "rounding_error", "solve_dense"]

FIRST_EPS = 1e-3
"""Violation of optimality to which SMO runs first, in units of the margin; each further run divides it by ten."""
# SMO steps for each variable between two Newton steps, and the largest number of such runs.
_STEPS_A_TURN, _MAX_TURNS = 10, 100


def dense_bytes(m: int) -> int:
    """Peak bytes of `solve_dense` in addition to the kernel matrix: K_FF and its factor, 16 m², and some vectors.

    A kernel matrix that is not float64 with contiguous rows is copied, which takes another 8 m².
    """
    return 16 * m * m + 400 * m


def solve_dense(
    K: Float, y: npt.ArrayLike, C: Bounds, tol: float = 1e-6, start: npt.ArrayLike | None = None
) -> SVMSolution:
    """Train a support vector machine on a kernel matrix in memory.

    SMO in float64 alternates with Newton steps of the free vectors; its tolerance is reduced until the gap, recomputed
    from Ku, is within tol. (LIBSVM stores kernels in float32, and for large C it gets no closer to the optimum than
    1e-3.)

    Parameters
    ----------
    K
        (m, m), symmetric; positive semidefinite, or the result is only a point that no small change improves.
    y
        (m,), 1 and −1.
    C
        The bound on α, or one for each sample, (m,).
    tol
        The relative gap (P − D)/|P| to reach.
    start
        The initial u, (m,), from any weights or C; zeros by default.

    Returns
    -------
    SVMSolution
        The solution with its gap. The gap is above tol if the arithmetic resolves no more (the primal contains C times
        the rounding error of every score), or if SMO used all of its 1,000 m steps.

    Raises
    ------
    InputError
        If y holds other values than 1 and −1 or only one of them, C is not positive, or a shape does not match.
    """
    y = as_signs(y, C)
    K = np.ascontiguousarray(K, dtype=np.float64)
    if K.shape != (len(y), len(y)):
        msg = f"the kernel matrix must be square with a row for each label, ({len(y)}, {len(y)}); found {K.shape}"
        raise InputError(msg)
    lower, upper = box(y, C)
    u = feasible(start, y, C)
    # Each attempt starts from the best u so far and from a gradient that is recomputed, not carried along: rounding
    # errors of many small updates would limit the gap.
    best = certify(u, K @ u, y, C)
    eps = FIRST_EPS
    while best.gap > tol:
        u, f = best.u.copy(), y - best.scores
        converged = optimize(K, lower, upper, u, f, eps)
        best = min(best, certify(u, K @ u, y, C), key=lambda solution: solution.gap)
        if not converged or eps < rounding_error(K.diagonal(), u):
            break
        eps *= 0.1
    return replace(best, free_kernel=K[np.ix_(best.free, best.free)])


def _polish(K: Float, lower: Float, upper: Float, u: Float, f: Float) -> None:
    """Take a Newton step of the free variables, as far as the bounds allow.

    If the right variables are free, the step ends at the optimum up to rounding; SMO identifies these variables, but
    converges slowly for an ill-conditioned K.
    """
    free = np.flatnonzero((lower < u) & (u < upper))
    if len(free) < 2:
        return
    # The step keeps Σu fixed, so the gradient counts only up to a constant.
    gradient = f[free] - f[free].mean()
    try:
        step = solve_among_free(K[np.ix_(free, free)], gradient)
    except np.linalg.LinAlgError:
        return  # K is not positive definite over the free variables: SMO continues alone
    if not gradient @ step > 0:
        return
    room = np.where(step > 0, upper[free] - u[free], u[free] - lower[free])
    moving = step != 0
    reach = room[moving] / np.abs(step[moving])
    length = min(1.0, float(reach.min()))
    moved = u[free] + length * step
    # Variables that reach a bound are set to it exactly: membership in the free set is decided by comparison.
    if length < 1:
        stopped = np.flatnonzero(moving)[reach <= length]
        moved[stopped] = np.where(step[stopped] > 0, upper[free[stopped]], lower[free[stopped]])
    change = np.zeros(len(u))
    change[free] = moved - u[free]
    f -= K @ change
    u[free] = moved


def optimize(K: Float, lower: Float, upper: Float, u: Float, f: Float, eps: float) -> bool:
    """Maximize the dual, updating u and f, until no pair violates optimality by eps; False if out of steps."""
    # A Newton step costs a factorization of K_FF, so it comes only after many cheap steps of SMO.
    most = _STEPS_A_TURN * len(u)
    for _ in range(_MAX_TURNS):
        taken = ascend(K, lower, upper, u, f, eps, most)
        _polish(K, lower, upper, u, f)
        if taken < most:
            return ascend(K, lower, upper, u, f, eps, most) < most
    return False


def rounding_error(diagonal: Float, u: Float) -> float:
    """Rounding error of a gradient entry: a smaller violation of optimality is not significant."""
    return 1e-15 * (1.0 + float(np.abs(diagonal).max()) * float(np.abs(u).sum()))
