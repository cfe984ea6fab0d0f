"""A support vector machine on a kernel matrix with too many columns for the memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from dmkl.arrays import Float, Index
from dmkl.errors import InputError, MemoryBudgetError
from dmkl.solvers.margin.dense import FIRST_EPS, optimize, rounding_error
from dmkl.solvers.margin.machine import Bounds, SVMSolution, as_signs, box, certify, feasible

__all__ = ["ReadColumns", "solve_by_columns"]

# Largest number of working sets.
_MAX_ROUNDS = 1000

ReadColumns = Callable[[Index], Float]


def solve_by_columns(
    columns: ReadColumns,
    diagonal: Float,
    y: npt.ArrayLike,
    C: Bounds,
    tol: float,
    max_bytes: int,
    start: npt.ArrayLike | None = None,
) -> tuple[SVMSolution, int]:
    """Train a support vector machine on a kernel matrix with too many columns for the memory.

    Decomposition (Osuna, Freund, Girosi 1997; Joachims 1999) with a working set as large as the memory allows: the
    pairs that violate optimality most, then the free vectors and other cached samples. The columns of new members are
    requested in one call; the problem over the working set is solved as in `solve_dense`, and the gradient of all
    samples is updated from the cached columns.

    Parameters
    ----------
    columns
        Returns the columns of K at some positions, (m, len(positions)) float64. It is expensive: it is called with as
        many positions as possible, and never with one that is cached.
    diagonal
        The diagonal of K, (m,).
    y
        (m,), 1 and −1.
    C
        The bound on α, or one for each sample, (m,).
    tol
        The relative gap to reach.
    max_bytes
        Memory for all arrays of the solver: 40 m bytes for each column of the working set, for the column itself,
        another that a call returns, K over the working set, and its factor.
    start
        The initial u, (m,), as in `solve_dense`; the columns of its support vectors are requested.

    Returns
    -------
    tuple
        The solution, with scores and gap recomputed from columns, and the number of columns requested. The gap is above
        tol if the arithmetic resolves no more, or after 1,000 working sets: decomposition is slow if there are more
        free vectors than the working set holds.

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
    cached = _HeldColumns(columns, m, size)
    lower, upper = box(y, C)

    def certified(u: Float) -> SVMSolution:
        free = np.flatnonzero((lower < u) & (u < upper))
        scores, free_kernel = cached.product(u, free)
        return replace(certify(u, scores, y, C), free_kernel=free_kernel)

    best = certified(feasible(start, y, C))
    # f = y − Ku is the gradient of the dual; it is updated from here on, and recomputed whenever a gap is reported.
    u, f, eps = best.u.copy(), y - best.scores, FIRST_EPS
    for _ in range(_MAX_ROUNDS):
        violators = _violators(u, f, lower, upper, eps)
        if len(violators):
            among, rows = cached.hold(cached.working_set(violators, (lower < u) & (u < upper)))
            before, part, slope = u[among], u[among], f[among]
            optimize(np.take(rows, among, axis=1), lower[among], upper[among], part, slope, eps)
            u[among] = part
            # Only variables of the working set have moved, so their cached columns update the gradient of all samples.
            f -= (part - before) @ rows
            continue
        # Optimal to eps by the updated gradient, which drifts. Only the gap by a recomputed gradient counts.
        finest = eps < rounding_error(diagonal, u)
        if finest or certify(u, y - f, y, C).gap <= tol:
            fresh = certified(u)
            best = min(best, fresh, key=lambda solution: solution.gap)
            if finest or best.gap <= tol:
                return best, cached.asked
            u, f = fresh.u.copy(), y - fresh.scores
        eps *= 0.1
    return min(best, certified(u), key=lambda solution: solution.gap), cached.asked


def _violators(u: Float, f: Float, lower: Float, upper: Float, eps: float) -> Index:
    """The variables that violate optimality by eps: the worst that should rise, the worst that should fall, and so on.

    The result is empty if no pair does.
    """
    may_rise, may_fall = u < upper, u > lower
    # The threshold in the middle of the violation plays the part of the bias: variables on the wrong side of it by
    # eps/2 form pairs that violate optimality by eps.
    middle = 0.5 * (f[may_rise].max(initial=-np.inf) + f[may_fall].min(initial=np.inf))
    # Ties are broken at random: samples are often sorted, and a tie in order would choose neighbors that are alike.
    shuffled = np.random.default_rng(0).permutation(len(u))
    rising = shuffled[(may_rise & (f > middle + 0.5 * eps))[shuffled]]
    falling = shuffled[(may_fall & (f < middle - 0.5 * eps))[shuffled]]
    ordered = np.concatenate(
        [rising[np.argsort(-f[rising], kind="stable")], falling[np.argsort(f[falling], kind="stable")]]
    )
    # Both lists are merged alternately, so that every prefix has pairs of a rising and a falling variable.
    ranks = np.concatenate([np.arange(len(rising)), np.arange(len(falling))])
    return np.asarray(ordered[np.argsort(ranks, kind="stable")])


class _HeldColumns:
    """The cached columns, as rows: those of the working set."""

    def __init__(self, columns: ReadColumns, m: int, size: int) -> None:
        self._columns, self._size = columns, size
        self._rows = np.empty((size, m))
        self._slot = np.full(m, -1)  # the slot of each sample's column
        self._holder = np.full(size, -1)  # the sample whose column is in each slot
        self.asked = 0

    def working_set(self, violators: Index, free: npt.NDArray[np.bool_]) -> Index:
        """The next samples to optimize: at least half violators, the worst first, then cached free samples."""
        cached = self._holder[self._holder >= 0]
        free_held, bound_held = cached[free[cached]], cached[~free[cached]]
        share = max(self._size // 2, self._size - len(free_held))
        ordered = np.concatenate([violators[:share], free_held, violators[share:], bound_held])
        _, first = np.unique(ordered, return_index=True)
        return np.asarray(ordered[np.sort(first)[: self._size]])

    def hold(self, among: Index) -> tuple[Index, Float]:
        """Cache the columns of these samples, requesting the missing ones; returns all cached samples and their rows.

        Other columns are evicted only if there is no room, so that the working set may be larger than requested.
        """
        wanted = np.zeros(len(self._slot), bool)
        wanted[among] = True
        missing = among[self._slot[among] < 0]
        if len(missing):
            # Empty slots first, then slots of columns that are not in the new working set.
            spare = np.concatenate([np.flatnonzero(self._holder < 0), np.flatnonzero(~wanted[self._holder])])
            spare = spare[: len(missing)]
            evicted = self._holder[spare]
            self._slot[evicted[evicted >= 0]] = -1
            self._rows[spare] = self._ask(missing).T
            self._slot[missing], self._holder[spare] = spare, missing
        used = int(np.count_nonzero(self._holder >= 0))  # slots fill from the first on
        return self._holder[:used], self._rows[:used]

    def product(self, u: Float, free: Index) -> tuple[Float, Float | None]:
        """Ku from columns alone, and K over the free vectors if it takes no more memory than the cached columns."""
        support = np.flatnonzero(u)
        small = len(free) ** 2 <= self._rows.size
        free_kernel = np.empty((len(free), len(free))) if small else None
        missing = support[self._slot[support] < 0]
        # As many as fit are kept, free vectors first: they are in the next working set.
        missing = missing[np.argsort(~np.isin(missing, free), kind="stable")]
        room = int(np.count_nonzero(self._holder < 0))
        if room and len(missing):
            self.hold(missing[:room])
            missing = missing[room:]
        total = np.zeros(len(u))

        def add(samples: Index, rows: Float) -> None:
            total[...] += u[samples] @ rows
            if free_kernel is not None:
                _, of_free, of_rows = np.intersect1d(free, samples, return_indices=True)
                free_kernel[of_free] = rows[np.ix_(of_rows, free)]

        used = int(np.count_nonzero(self._holder >= 0))
        add(self._holder[:used], self._rows[:used])
        for start in range(0, len(missing), self._size):
            # The rest is read in batches as large as the cache, and not kept.
            batch = missing[start : start + self._size]
            add(batch, self._ask(batch).T)
        return total, free_kernel

    def _ask(self, samples: Index) -> Float:
        self.asked += len(samples)
        return np.asarray(self._columns(samples), dtype=np.float64)
