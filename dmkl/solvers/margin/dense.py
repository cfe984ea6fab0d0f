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
"""The violation of optimality that SMO is first run to, where margins are one; a tenth of it each time after."""
_STEPS_A_TURN, _MAX_TURNS = 10, 100
"""SMO takes this many steps for each variable between Newton's, and that many times at most."""


def dense_bytes(m: int) -> int:
    """The most bytes that `solve_dense` takes beside the kernel matrix: K_FF and its factor, 16 m², and some vectors.

    A kernel matrix that is not float64 with contiguous rows is copied, which takes 8 m² more.
    """
    return 16 * m * m + 400 * m


def solve_dense(
    K: Float, y: npt.ArrayLike, C: Bounds, tol: float = 1e-6, start: npt.ArrayLike | None = None
) -> SVMSolution:
    """Train a support vector machine on a kernel matrix in memory.

    SMO in float64, with Newton's steps of the free vectors in between, its own tolerance tightened until the gap,
    computed anew from Ku, is within tol. (LIBSVM holds kernels in float32, and from some C on can get no closer to the
    optimum than 1e-3.)

    Parameters
    ----------
    K
        (m, m), symmetric; positive semidefinite, or the result is a point that no small change improves.
    y
        (m,), 1 and −1.
    C
        The bound on α, or one for each sample, (m,).
    tol
        The relative gap (P − D)/|P| to reach.
    start
        u to begin with, (m,), of any weights or C; 0 where missing.

    Returns
    -------
    SVMSolution
        With the gap that was reached. It is above tol where the arithmetic resolves no more (the primal holds C times
        the rounding of every score), or SMO ran out of its 1,000 m steps.

    Raises
    ------
    InputError
        If y holds anything but 1 and −1, or one of them only, C is not positive, or a shape does not fit.
    """
    y = as_signs(y, C)
    K = np.ascontiguousarray(K, dtype=np.float64)
    if K.shape != (len(y), len(y)):
        msg = f"the kernel matrix must be square with a row for each label, ({len(y)}, {len(y)}); found {K.shape}"
        raise InputError(msg)
    lower, upper = box(y, C)
    u = feasible(start, y, C)
    found = certify(u, K @ u, y, C)
    eps = FIRST_EPS
    while found.gap > tol:
        u, f = found.u.copy(), y - found.scores
        converged = optimize(K, lower, upper, u, f, eps)
        found = min(found, certify(u, K @ u, y, C), key=lambda solution: solution.gap)
        if not converged or eps < rounding_error(K.diagonal(), u):
            break
        eps *= 0.1
    return replace(found, free_kernel=K[np.ix_(found.free, found.free)])


def _polish(K: Float, lower: Float, upper: Float, u: Float, f: Float) -> None:
    """Newton's step of the free variables, as far as the bounds allow.

    Where the right variables are free it ends at the optimum of the arithmetic; SMO, which finds them, converges as
    slowly there as K is ill-conditioned.
    """
    free = np.flatnonzero((lower < u) & (u < upper))
    if len(free) < 2:
        return
    gradient = f[free] - f[free].mean()
    try:
        step = solve_among_free(K[np.ix_(free, free)], gradient)
    except np.linalg.LinAlgError:
        return  # not positive definite among the free ones: SMO alone goes on
    if not gradient @ step > 0:
        return
    room = np.where(step > 0, upper[free] - u[free], u[free] - lower[free])
    moving = step != 0
    reach = room[moving] / np.abs(step[moving])
    length = min(1.0, float(reach.min()))
    moved = u[free] + length * step
    if length < 1:
        stopped = np.flatnonzero(moving)[reach <= length]
        moved[stopped] = np.where(step[stopped] > 0, upper[free[stopped]], lower[free[stopped]])
    change = np.zeros(len(u))
    change[free] = moved - u[free]
    f -= K @ change
    u[free] = moved


def optimize(K: Float, lower: Float, upper: Float, u: Float, f: Float, eps: float) -> bool:
    """Maximize the dual until no pair violates optimality by more than eps; changes u and f. False if steps ran out."""
    most = _STEPS_A_TURN * len(u)
    for _ in range(_MAX_TURNS):
        taken = ascend(K, lower, upper, u, f, eps, most)
        _polish(K, lower, upper, u, f)
        if taken < most:
            return ascend(K, lower, upper, u, f, eps, most) < most
    return False


def rounding_error(diagonal: Float, u: Float) -> float:
    """What rounding leaves of a gradient: no violation below this can be told from none."""
    return 1e-15 * (1.0 + float(np.abs(diagonal).max()) * float(np.abs(u).sum()))
