"""One support vector machine on one kernel matrix, to a gap that is computed and not assumed.

With u = α∘y the C-SVM (Cortes, Vapnik 1995) with the hinge loss and a free bias is

    dual    maximize D(u) = yᵀu − ½ uᵀKu      subject to 0 ≤ y_iu_i ≤ C, Σu = 0,
    primal  minimize P(u, b) = ½ uᵀKu + C Σ max(0, 1 − y_i((Ku)_i + b)),

and for each u of the dual's box, with f = y − Ku its gradient,

    P − D = Σ_i [C max(0, y_i(f_i − b)) − u_i(f_i − b)],

every term of which is at least 0. For positive semidefinite K that bounds what a better u would gain; for any other it
vanishes where no small change of u gains anything, which is then all that a gap within the tolerance says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg

from dmkl.errors import InputError, MemoryBudgetError
from dmkl.solvers.margin.smo import ascend

__all__ = ["SVMSolution", "best_bias", "dense_bytes", "feasible", "hinge", "solve_by_columns", "solve_dense"]

Array = npt.NDArray[Any]
Float = npt.NDArray[np.float64]

_FIRST_EPS = 1e-3
"""The violation of optimality that SMO is first run to, where margins are one; a tenth of it each time after."""
_STEPS_A_TURN, _MAX_TURNS = 10, 100
"""SMO takes this many steps for each variable between Newton's, and that many times at most."""
_MAX_ROUNDS = 1000
"""Most working sets."""
_RIDGE = 1e-12
"""Of the trace of the kernel among free vectors: what keeps it regular where rows are equal."""


@dataclass(frozen=True, eq=False)
class SVMSolution:
    """A support vector machine with its certificate.

    The values are those of the returned u and scores to the last bit, so that the gap is proven for them.
    """

    u: Float
    """α∘y, (m,): 0 ≤ y_iu_i ≤ C, and Σu = 0 but for rounding"""
    bias: float
    """b, the minimizer of the primal for this u"""
    dual: float
    """D(u)"""
    primal: float
    """P(u, b)"""
    scores: Float
    """Ku, (m,), without the bias"""
    free: npt.NDArray[np.intp]
    """The samples with 0 < y_iu_i < C, in order."""
    free_kernel: Float | None = field(default=None, repr=False)
    """K among the free samples, (f, f); None where it did not fit the memory"""

    @property
    def gap(self) -> float:
        """(P − D)/|P|, at least 0."""
        return _relative(self.primal, self.dual)

    def curvature(self, products: Array) -> Float | None:
        """The second derivatives of the optimal value J in the kernel weights, while the same vectors stay free.

        With F the free vectors and B the leading block of the inverse of [K_FF 1; 1ᵀ 0], the free part of u answers
        to a weight's change by −B(K_ju)_F, hence ∂²J/∂β_i∂β_j = (K_iu)_FᵀB(K_ju)_F.

        Parameters
        ----------
        products
            K_ju for each kernel, (n, m).

        Returns
        -------
        ndarray or None
            (n, n), positive semidefinite; zero where fewer than two vectors are free, since u cannot move then. None
            where `free_kernel` is missing, or not positive semidefinite.
        """
        if self.free_kernel is None:
            return None
        if len(self.free) < 2:
            return np.zeros((len(products), len(products)))
        inside = np.asarray(products[:, self.free], dtype=np.float64).T
        inside = inside - inside.mean(axis=0)
        try:
            return np.asarray(inside.T @ _among_free(self.free_kernel, inside))
        except np.linalg.LinAlgError:
            return None


def _relative(primal: float, dual: float) -> float:
    return max(primal - dual, 0.0) / (abs(primal) or float(np.finfo(np.float64).tiny))


def best_bias(scores: Float, y: Float) -> float:
    """The b that minimizes Σ max(0, 1 − y_i(s_i + b)).

    The sum is piecewise linear in b, with a kink at each y_i − s_i where its slope rises by one from −m₊ to m₋. So the
    minimum lies between the m₊-th and the next of the sorted kinks, in the middle of which b is taken.
    """
    kinks = y - scores
    n_positive = int(np.count_nonzero(y > 0))
    around = np.partition(kinks, (n_positive - 1, n_positive))
    return 0.5 * float(around[n_positive - 1] + around[n_positive])


def hinge(scores: Float, bias: float, y: Float) -> float:
    """Σ max(0, 1 − y_i(s_i + b))."""
    return float(np.maximum(0.0, 1.0 - y * (scores + bias)).sum())


def feasible(start: npt.ArrayLike | None, y: Float, C: float) -> Float:
    """The start cut to the box 0 ≤ y_iu_i ≤ C, its heavier side then scaled down until Σu = 0; zeros where missing.

    Raises
    ------
    InputError
        If the start has another length than y, or holds NaN or infinity.
    """
    if start is None:
        return np.zeros(len(y))
    u = np.asarray(start, dtype=np.float64)
    if u.shape != y.shape or not np.isfinite(u).all():
        msg = f"start must hold {len(y)} finite numbers, one u_i a sample; found shape {u.shape}, or NaN or infinity"
        raise InputError(msg)
    u = y * np.clip(y * u, 0.0, C)
    up, down = float(u[u > 0].sum()), float(-u[u < 0].sum())
    if up > down:
        u[u > 0] *= down / up
    elif down > up:
        u[u < 0] *= up / down
    return u


def as_signs(y: npt.ArrayLike, C: float) -> Float:
    """The labels as float64.

    Raises
    ------
    InputError
        If a label is neither 1 nor −1, one of them is missing, or C is not a positive number.
    """
    signs = np.asarray(y, dtype=np.float64)
    if signs.ndim != 1 or not np.array_equal(np.unique(signs), [-1.0, 1.0]):
        msg = (
            f"the labels of a support vector machine are 1 and −1, both present, in a vector; found shape "
            f"{signs.shape} with {np.unique(signs)[:5]}. Turn classes into signs, one class against others"
        )
        raise InputError(msg)
    if not (np.isfinite(C) and C > 0):
        msg = f"C must be a positive finite number, got {C!r}; a hard margin is a large C"
        raise InputError(msg)
    return signs


def _bounds(y: Float, C: float) -> tuple[Float, Float]:
    return np.where(y > 0, 0.0, -C), np.where(y > 0, C, 0.0)


def _certified(u: Float, scores: Float, y: Float, C: float) -> SVMSolution:
    bias = best_bias(scores, y)
    energy = 0.5 * float(u @ scores)
    return SVMSolution(
        u=u,
        bias=bias,
        dual=float(y @ u) - energy,
        primal=energy + C * hinge(scores, bias, y),
        scores=scores,
        free=np.flatnonzero((u != 0) & (np.abs(u) < C)),
    )


def _among_free(kernel: Float, right: Float) -> Float:
    """B times a right side of column sums zero: the inverse on the vectors of sum zero, by a Cholesky factor."""
    means = kernel.mean(axis=0)
    centered = kernel - means
    centered -= (means - means.mean())[:, None]
    # The vector of ones, which centering makes null, and what else is null get a ridge; right sides that lie in the
    # range of the centered kernel are answered as if there were none.
    size = float(np.trace(centered))
    centered[np.diag_indices_from(centered)] += _RIDGE * size if size > 0 else 1.0
    # Symmetric, so its transpose may be factorized for it, which is in the order that LAPACK takes without a copy.
    factor = scipy.linalg.cho_factor(centered.T, overwrite_a=True, check_finite=False)
    solved = scipy.linalg.cho_solve(factor, right, check_finite=False)
    return np.asarray(solved - solved.mean(axis=0))


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
        step = _among_free(K[np.ix_(free, free)], gradient)
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


def _optimize(K: Float, lower: Float, upper: Float, u: Float, f: Float, eps: float) -> bool:
    """The dual on a kernel matrix in memory, to a violation of eps; changes u and f. False if steps ran out."""
    most = _STEPS_A_TURN * len(u)
    for _ in range(_MAX_TURNS):
        taken = ascend(K, lower, upper, u, f, eps, most)
        _polish(K, lower, upper, u, f)
        if taken < most:
            return ascend(K, lower, upper, u, f, eps, most) < most
    return False


def _noise(diagonal: Float, u: Float) -> float:
    """What rounding leaves of a gradient: no violation below this can be told from none."""
    return 1e-15 * (1.0 + float(np.abs(diagonal).max()) * float(np.abs(u).sum()))


def dense_bytes(m: int) -> int:
    """The most bytes that `solve_dense` takes beside the kernel matrix: K_FF and its factor, 16 m², and some vectors.

    A kernel matrix that is not float64 with contiguous rows is copied, which takes 8 m² more.
    """
    return 16 * m * m + 400 * m


def solve_dense(
    K: Float, y: npt.ArrayLike, C: float, tol: float = 1e-6, start: npt.ArrayLike | None = None
) -> SVMSolution:
    """Solve on a kernel matrix in memory.

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
        The bound on α.
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
    lower, upper = _bounds(y, C)
    u = feasible(start, y, C)
    found = _certified(u, K @ u, y, C)
    eps = _FIRST_EPS
    while found.gap > tol:
        u, f = found.u.copy(), y - found.scores
        converged = _optimize(K, lower, upper, u, f, eps)
        found = min(found, _certified(u, K @ u, y, C), key=lambda solution: solution.gap)
        if not converged or eps < _noise(K.diagonal(), u):
            break
        eps *= 0.1
    return replace(found, free_kernel=K[np.ix_(found.free, found.free)])


Columns = Callable[[npt.NDArray[np.intp]], Float]


def solve_by_columns(
    columns: Columns,
    diagonal: Float,
    y: npt.ArrayLike,
    C: float,
    tol: float,
    max_bytes: int,
    start: npt.ArrayLike | None = None,
) -> tuple[SVMSolution, int]:
    """Solve on a kernel matrix of which no more than some columns fit the memory.

    Decomposition (Osuna, Freund, Girosi 1997; Joachims 1999) with a working set as large as the memory: the pairs
    that violate optimality most, then the free vectors and whatever else is held. The columns of those that join are
    asked for in one call; the problem among the working set is solved as in `solve_dense`, and the gradient of all
    samples follows from the columns that are held.

    Parameters
    ----------
    columns
        Gives the columns of K at some positions, (m, len(positions)) float64. Dear: it is called with as many
        positions as can be, and never with one that is held.
    diagonal
        (m,), of K.
    y
        (m,), 1 and −1.
    C
        The bound on α.
    tol
        The relative gap to reach.
    max_bytes
        What all arrays of the solver may take: 40 m a column of the working set, for the column itself, another that
        a call brings, K among the working set, and its factor.
    start
        u to begin with, (m,), as in `solve_dense`; the columns of its support vectors are asked for.

    Returns
    -------
    tuple
        The solution, its scores and gap computed anew from columns, and the number of columns that were asked for.
        With a gap above tol where that is what the arithmetic resolves, or after 1,000 working sets: decomposition is
        slow where the free vectors are more than the working set.

    Raises
    ------
    InputError
        As `solve_dense`.
    MemoryBudgetError
        If not even two columns fit.
    """
    y = as_signs(y, C)
    m = len(y)
    diagonal = np.asarray(diagonal, dtype=np.float64)
    if diagonal.shape != (m,):
        msg = f"the diagonal must have a value for each label, ({m},); found {diagonal.shape}"
        raise InputError(msg)
    size = min(m, max_bytes // (40 * m))
    if size < 2:
        msg = f"a working set of two columns takes {80 * m} bytes, max_bytes is {max_bytes}: allow more"
        raise MemoryBudgetError(msg)
    held = _Held(columns, m, size)
    lower, upper = _bounds(y, C)

    def certified(u: Float) -> SVMSolution:
        free = np.flatnonzero((lower < u) & (u < upper))
        scores, free_kernel = held.product(u, free)
        return replace(_certified(u, scores, y, C), free_kernel=free_kernel)

    found = certified(feasible(start, y, C))
    u, f, eps = found.u.copy(), y - found.scores, _FIRST_EPS
    for _ in range(_MAX_ROUNDS):
        violators = _violators(u, f, lower, upper, eps)
        if len(violators):
            among, rows = held.hold(held.working_set(violators, (lower < u) & (u < upper)))
            before, part, slope = u[among], u[among], f[among]
            _optimize(np.take(rows, among, axis=1), lower[among], upper[among], part, slope, eps)
            u[among] = part
            f -= (part - before) @ rows
            continue
        # Optimal to eps by the gradient that was carried along. What counts is the gap by a fresh one.
        finest = eps < _noise(diagonal, u)
        if finest or _certified(u, y - f, y, C).gap <= tol:
            fresh = certified(u)
            found = min(found, fresh, key=lambda solution: solution.gap)
            if finest or found.gap <= tol:
                return found, held.asked
            u, f = fresh.u.copy(), y - fresh.scores
        eps *= 0.1
    return min(found, certified(u), key=lambda solution: solution.gap), held.asked


def _violators(u: Float, f: Float, lower: Float, upper: Float, eps: float) -> npt.NDArray[np.intp]:
    """The variables that violate optimality by eps: the worst that should rise, the worst that should fall, and so on.

    None if no pair does.
    """
    may_rise, may_fall = u < upper, u > lower
    middle = 0.5 * (f[may_rise].max(initial=-np.inf) + f[may_fall].min(initial=np.inf))
    # Ties are broken at random: samples are often sorted so that like stands beside like.
    shuffled = np.random.default_rng(0).permutation(len(u))
    rising = shuffled[(may_rise & (f > middle + 0.5 * eps))[shuffled]]
    falling = shuffled[(may_fall & (f < middle - 0.5 * eps))[shuffled]]
    ordered = np.concatenate(
        [rising[np.argsort(-f[rising], kind="stable")], falling[np.argsort(f[falling], kind="stable")]]
    )
    ranks = np.concatenate([np.arange(len(rising)), np.arange(len(falling))])
    return np.asarray(ordered[np.argsort(ranks, kind="stable")])


class _Held:
    """The columns that are held in memory, as rows: those of the working set."""

    def __init__(self, columns: Columns, m: int, size: int) -> None:
        self._columns, self._size = columns, size
        self._rows = np.empty((size, m))
        self._slot = np.full(m, -1)  # where a sample's column is held
        self._holder = np.full(size, -1)  # whose column a slot holds
        self.asked = 0

    def working_set(self, violators: npt.NDArray[np.intp], free: npt.NDArray[np.bool_]) -> npt.NDArray[np.intp]:
        """At least half of it violators, the worst first; then free vectors that are held, then whatever is held."""
        held = self._holder[self._holder >= 0]
        free_held, bound_held = held[free[held]], held[~free[held]]
        share = max(self._size // 2, self._size - len(free_held))
        ordered = np.concatenate([violators[:share], free_held, violators[share:], bound_held])
        _, first = np.unique(ordered, return_index=True)
        return np.asarray(ordered[np.sort(first)[: self._size]])

    def hold(self, among: npt.NDArray[np.intp]) -> tuple[npt.NDArray[np.intp], Float]:
        """Hold the columns of these samples, asking for those that are missing; what is held then, and its rows.

        Others give way only where there is no room, so that a working set is all that is held.
        """
        wanted = np.zeros(len(self._slot), bool)
        wanted[among] = True
        missing = among[self._slot[among] < 0]
        if len(missing):
            spare = np.concatenate([np.flatnonzero(self._holder < 0), np.flatnonzero(~wanted[self._holder])])
            spare = spare[: len(missing)]
            evicted = self._holder[spare]
            self._slot[evicted[evicted >= 0]] = -1
            self._rows[spare] = self._ask(missing).T
            self._slot[missing], self._holder[spare] = spare, missing
        used = int(np.count_nonzero(self._holder >= 0))  # slots fill from the first on
        return self._holder[:used], self._rows[:used]

    def product(self, u: Float, free: npt.NDArray[np.intp]) -> tuple[Float, Float | None]:
        """Ku from columns alone, and K among the free vectors where it takes no more than the held columns do."""
        support = np.flatnonzero(u)
        small = len(free) ** 2 <= self._rows.size
        free_kernel = np.empty((len(free), len(free))) if small else None
        missing = support[self._slot[support] < 0]
        # What there is room for is kept, free vectors first: they make the next working set.
        missing = missing[np.argsort(~np.isin(missing, free), kind="stable")]
        room = int(np.count_nonzero(self._holder < 0))
        if room and len(missing):
            self.hold(missing[:room])
            missing = missing[room:]
        total = np.zeros(len(u))

        def add(samples: npt.NDArray[np.intp], rows: Float) -> None:
            total[...] += u[samples] @ rows
            if free_kernel is not None:
                _, of_free, of_rows = np.intersect1d(free, samples, return_indices=True)
                free_kernel[of_free] = rows[np.ix_(of_rows, free)]

        used = int(np.count_nonzero(self._holder >= 0))
        add(self._holder[:used], self._rows[:used])
        for start in range(0, len(missing), self._size):
            batch = missing[start : start + self._size]
            add(batch, self._ask(batch).T)
        return total, free_kernel

    def _ask(self, samples: npt.NDArray[np.intp]) -> Float:
        self.asked += len(samples)
        return np.asarray(self._columns(samples), dtype=np.float64)
