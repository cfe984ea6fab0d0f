"""Support vector machines on combined kernels: one pass adds up the kernels, and tasks train the SVMs.

The sums are written to disk tile by tile, half a matrix each, and are removed when their SVMs are trained. A task loads
the whole matrix if that fits its memory, and otherwise the columns of a working set.

With u = α∘y the C-SVM (Cortes, Vapnik 1995) with the hinge loss and a free bias is

    dual    maximize D(u) = yᵀu − ½ uᵀKu      subject to 0 ≤ y_iu_i ≤ C, Σu = 0,
    primal  minimize P(u, b) = ½ uᵀKu + C Σ max(0, 1 − y_i((Ku)_i + b)),

and for each u of the dual's box, with f = y − Ku its gradient,

    P − D = Σ_i [C max(0, y_i(f_i − b)) − u_i(f_i − b)],

with every term at least 0, also if each sample has its own C_i. For a positive semidefinite K the gap bounds the gain
of any better u; for any other K it vanishes where no small change of u gains anything, and proves no more than that.

In the signed variables u the dual of every support vector machine is the same problem,

    maximize yᵀu − ½ uᵀKu   subject to   lower ≤ u ≤ upper,  Σu fixed,

and a step of sequential minimal optimization moves weight from one variable to another, without cases for their labels.

On kernels that are products of factors, K = ZZᵀ, Z (m, D), no kernel matrix is formed. The dual with w = Zᵀu, maximize
yᵀu − ½‖w‖² − ½δ‖u‖² subject to lower ≤ u ≤ upper and Σu = 0, is solved by a primal-dual interior-point method (Ferris
and Munson, SIAM Journal on Optimization 13, 2003; Mehrotra's predictor and corrector, SIAM Journal on Optimization 2,
1992). With multipliers s, t ≥ 0 of the bounds,

    Zw + δu + b − y = s − t,     s_i(u_i − lower_i) = t_i(upper_i − u_i) = μ,

and θ = s/(u − lower) + t/(upper − u) + δ a step solves a system of D + 1 unknowns, (I + ZᵀΘ⁻¹Z, ZᵀΘ⁻¹1; 1ᵀΘ⁻¹Z,
1ᵀΘ⁻¹1), in mD² operations; some 20 to 60 steps end it. (LIBLINEAR's coordinate descent penalizes the bias.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve

from dmkl.arrays import Array, Float, Index
from dmkl.errors import IndefiniteKernelError, MemoryBudgetError
from dmkl.numerics.cholesky import Cholesky, add_gram, pivoted_root
from dmkl.numerics.compiling import compiled
from dmkl.numerics.fisher import relative_gap
from dmkl.numerics.steps import CosineScaling, Fitted
from dmkl.passes.blas import blas_threads, pinned_blas
from dmkl.passes.execute import check_memory, machine, run_tasks, shared_folder
from dmkl.passes.sums import Combination, StoredSum, SumColumns, combine_pass
from dmkl.passes.view import Lens, strips
from dmkl.solvers.interface import SVM, CombinedKernel, EachProduct, Root, Task

Bounds = float | Float  # C: one for all samples, or (m,), one for each

# Fraction of the trace of the kernel over free vectors that keeps it regular if rows are equal.
_RIDGE = 1e-12


@dataclass(frozen=True, eq=False)
class SVMSolution:
    """A support vector machine with its certificate, or regularized least squares, whose samples are all free.

    All values are computed from the returned u and scores, so that the gap is proven for them.
    """

    u: Float  # α∘y, (m,): 0 ≤ y_iu_i ≤ C, and Σu = 0 up to rounding
    bias: float  # b, the minimizer of the primal for this u
    dual: float  # D(u)
    primal: float  # P(u, b)
    scores: Float  # Ku, (m,), without the bias
    free: npt.NDArray[np.intp]  # the samples with 0 < y_iu_i < C, in order
    free_kernel: Float | None = field(default=None, repr=False)
    """K over the free samples, (f, f); None if it did not fit the memory"""
    concave: bool | None = None
    """Whether D is proven concave (`is_concave`), as the gap assumes; None if K was not tested."""

    @property
    def gap(self) -> float:
        """(P − D)/|P|, at least 0."""
        return relative_gap(self.primal, self.dual, self.primal)

    def of_free(self, products: Array) -> tuple[Float | None, Float]:
        """The arguments of `curvature`, from the products K_ju, (n, m)."""
        return self.free_kernel, np.asarray(products[:, self.free], dtype=np.float64)


def curvature(free_kernel: Float | None, products: Float) -> Float | None:
    """The second derivatives of the optimal value J in the weights, (n, n), as long as the same vectors are free.

    With F the free vectors and B the leading block of the inverse of [K_FF 1; 1ᵀ 0], a change of weight j changes the
    free part of u by −B(K_ju)_F, hence ∂²J/∂β_i∂β_j = (K_iu)_FᵀB(K_ju)_F, from `products` (K_ju)_F, (n, f). It is zero
    if fewer than two vectors are free, since u cannot move then; None if K_FF is missing or is not positive
    semidefinite.
    """
    n, f = products.shape
    if free_kernel is None:
        return None
    if f < 2:
        return np.zeros((n, n))
    # B annihilates constants, since Σu is fixed: their removal first keeps the solution on vectors of sum zero.
    inside = (products - products.mean(axis=1, keepdims=True)).T
    try:
        return np.asarray(inside.T @ solve_among_free(free_kernel, inside))
    except np.linalg.LinAlgError:
        return None


def best_bias(scores: Float, y: Float, C: Bounds) -> float:
    """The b that minimizes Σ C_i max(0, 1 − y_i(s_i + b)).

    The sum is piecewise linear in b, with a kink at each y_i − s_i where its derivative rises by C_i, from −Σ₊C_i to
    Σ₋C_i. The minimum is at the kink where the derivative changes its sign, or between two where it is zero, and b is
    their middle: for equal C between the m₊-th and the next of the sorted kinks.
    """
    kinks, rises = y - scores, np.asarray(C) if np.ndim(C) else np.ones(len(y))
    order = np.argsort(kinks)
    risen = np.cumsum(rises[order])
    target = float(np.sum(rises[y > 0]))
    level = 1e-12 * risen[-1]  # equal parts may be summed in another order
    first = int(np.searchsorted(risen, target - level))
    last = min(int(np.searchsorted(risen, target + level)), len(y) - 1)
    return 0.5 * float(kinks[order[first]] + kinks[order[last]])


def hinge(scores: Float, bias: float, y: Float, C: Bounds) -> float:
    """Σ C_i max(0, 1 − y_i(s_i + b))."""
    return float(np.sum(C * np.maximum(0.0, 1.0 - y * (scores + bias))))


def feasible(start: Float | None, y: Float, C: Bounds) -> Float:
    """Clip the start to the box 0 ≤ y_iu_i ≤ C, and scale its heavier side down until Σu = 0; zeros by default."""
    if start is None:
        return np.zeros(len(y))
    u = y * np.clip(y * start, 0.0, C)
    # Scaling down keeps every u_i in its box; scaling the lighter side up could not.
    up, down = float(u[u > 0].sum()), float(-u[u < 0].sum())
    if up > down:
        u[u > 0] *= down / up
    elif down > up:
        u[u < 0] *= up / down
    return u


def box(y: Float, C: Bounds) -> tuple[Float, Float]:
    """The smallest and the largest u of the box 0 ≤ y_iu_i ≤ C."""
    return np.where(y > 0, 0.0, -C), np.where(y > 0, C, 0.0)


def certify(u: Float, scores: Float, y: Float, C: Bounds) -> SVMSolution:
    """The SVM of u with its gap, from u and its scores Ku alone."""
    # For any u with Σu = 0 in the box D(u) is below the optimum, and for any b P(u, b) is above it: the pair is a
    # proof, however it was produced.
    bias = best_bias(scores, y, C)
    energy = 0.5 * float(u @ scores)
    primal, free = energy + hinge(scores, bias, y, C), np.flatnonzero((u != 0) & (np.abs(u) < C))
    return SVMSolution(u, bias, float(y @ u) - energy, primal, scores, free)


def is_concave(kernel: Float, noise: float) -> bool:
    """Whether xᵀKx ≥ −noise·‖x‖² for all x of sum zero, proven by a Cholesky factor of the centered kernel.

    D is then concave on Σu = 0, and P − D bounds the gain of any better u. Kernels need not be positive semidefinite
    for that: negative squared distances are an example.
    """
    try:
        _factor_on_sum_zero(kernel, noise)
    except np.linalg.LinAlgError:
        return False
    return True


def _factor_on_sum_zero(kernel: Float, noise: float | None = None) -> Cholesky:
    """A factor of HKH, H = I − 11ᵀ/m, with a ridge of at least `noise`; LinAlgError if it is not positive definite."""
    means = kernel.mean(axis=0)
    centered = kernel - means
    centered -= (means - means.mean())[:, None]
    # The vector of ones, which centering makes null, and further null vectors get a ridge. It does not change solutions
    # for right sides in the range of the centered kernel (up to its size relative to the eigenvalues there).
    size = float(np.trace(centered))
    ridge = _RIDGE * size if size > 0 else float(noise is None or not centered.any())
    centered[np.diag_indices_from(centered)] += max(ridge, noise or 0.0)
    # The matrix is symmetric, so its transpose has the same factor, and is column-major: LAPACK needs no copy.
    return Cholesky.of(centered.T)


def solve_among_free(kernel: Float, right: Float) -> Float:
    """B times a right side with column sums zero: the inverse on the vectors of sum zero, by a Cholesky factor."""
    solved = _factor_on_sum_zero(kernel).solve(right)
    return np.asarray(solved - solved.mean(axis=0))


# --- training, as tasks -----------------------------------------------------------------------------------------------


def train_together(requests: Sequence[tuple[Lens, SVM]]) -> tuple[list[SVMSolution], float]:
    """Train several SVMs, each through its lens; returns the solutions in their order.

    SVMs with the same weights share a sum; sums share a pass, as many as a task can add up at once. Also returns the
    number of passes over the stored kernels.
    """
    host = machine()
    sums: dict[tuple[int, bytes, bytes], list[int]] = {}
    for number, (lens, request) in enumerate(requests):
        groups = b"" if request.groups is None else request.groups.tobytes()
        sums.setdefault((id(lens), request.weights.tobytes(), groups), []).append(number)
    side = requests[0][0].view.source.tiling.tile
    most = max(1, host.task_bytes // 4 // (8 * side * side))
    shared = list(sums.values())
    solutions: dict[int, SVMSolution] = {}
    batches = [shared[start : start + most] for start in range(0, len(shared), most)]
    for batch in batches:
        with shared_folder("where the combined kernels of this step are written") as folder:
            combinations = [_combination(*requests[numbers[0]]) for numbers in batch]
            # Sums are written by the workers, so the folder must be one that all of them can reach.
            totals = combine_pass(combinations, [f"{folder}/sum-{k}" for k in range(len(batch))])
            members = [(k, number) for k, numbers in enumerate(batch) for number in numbers]
            # A machine with few tasks gives each of them more than its usual share of memory.
            allowed = max(host.task_bytes, host.total_bytes // min(len(members), host.slots_per_host))
            work = [
                partial(_train, totals[k], allowed, host.slots_per_host, requests[number][1]) for k, number in members
            ]
            machines = run_tasks("train", work)
        solutions |= {number: trained for (_, number), trained in zip(members, machines, strict=True)}
    return [solutions[number] for number in range(len(requests))], float(len(batches))


def _combination(lens: Lens, request: SVM) -> Combination:
    """The sum of a request. Weights of the groups of a composite kernel scale its samples, after all other steps."""
    if request.groups is None:
        return Combination(lens, request.weights)
    of_samples = request.weights[:, request.groups]
    chain = Fitted((*lens.fitted.steps, CosineScaling(of_samples, of_samples)))
    return Combination(Lens(lens.view, chain), np.ones(len(of_samples)))


def train(kernel: Float, request: SVM) -> SVMSolution:
    """Train an SVM, or fit least squares, on the combined kernel of its samples, (m, m)."""
    if request.lam is not None:
        return fit_square(kernel, request.y, request.lam)
    assert request.C is not None
    concave = None
    if request.ridge:
        kernel = np.array(kernel)
        kernel[np.diag_indices(len(kernel))] += request.ridge
    if request.noise is not None:
        concave = is_concave(kernel, request.noise)  # its copy is freed before K_FF takes memory
    return replace(solve_dense(kernel, request.y, request.C, request.tol, request.start), concave=concave)


def _train(total: StoredSum, task_bytes: int, tasks_per_machine: int, request: SVM) -> SVMSolution:
    rows, ridge = request.rows, request.ridge
    # The matrix, a second time if its rows are reordered, and the working memory of the SVM.
    needed = 16 * total.lens.view.shape[1] ** 2 + dense_bytes(len(request.y))
    with pinned_blas(blas_threads(tasks_per_machine)):
        if request.C is None:
            way_out = "Set dmkl.memory higher, give the workers more memory, or take loss='hinge'"
            check_memory("least squares on the combined kernel", {"matrices": needed}, task_bytes, way_out)
        if request.C is None or needed <= task_bytes:
            kernel = total.whole()
            return train(kernel if rows is None else kernel[np.ix_(rows, rows)], request)
        # The solver gets half of the memory: the other half is for tiles of the sum and for the columns of a request.
        columns = SumColumns(total)
        chosen = np.arange(columns.size) if rows is None else rows

        def of_rows(index: Index) -> Float:
            kernel = columns(chosen[index])[chosen]
            kernel[index, np.arange(len(index))] += ridge
            return kernel

        problem = columns.diagonal[chosen] + ridge, request.y, request.C, request.tol
        return solve_by_columns(of_rows, *problem, task_bytes // 2, request.start)


# --- sequential minimal optimization ----------------------------------------------------------------------------------

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


FIRST_EPS = 1e-3
"""Violation of optimality to which SMO runs first, in units of the margin; each further run divides it by ten."""
# SMO steps for each variable between two Newton steps, and the largest number of such runs.
_STEPS_A_TURN, _MAX_TURNS = 10, 100
_LOW_RANK = 300  # Rank of kernels that a factor takes little time and memory for, whatever the number of samples


# --- a kernel in memory -----------------------------------------------------------------------------------------------


def dense_bytes(m: int) -> int:
    """Peak bytes of `solve_dense` in addition to the kernel matrix: K_FF and its factor, 16 m², and some vectors.

    A kernel matrix that is not float64 with contiguous rows is copied, which takes another 8 m².
    """
    return 16 * m * m + 400 * m


def solve_dense(K: Float, y: Float, C: Bounds, tol: float = 1e-6, start: Float | None = None) -> SVMSolution:
    """Train a support vector machine on a kernel matrix in memory.

    SMO in float64 alternates with Newton steps of the free vectors; its tolerance is reduced until the relative gap (P
    − D)/|P|, recomputed from Ku, is within tol. (LIBSVM stores kernels in float32, and for large C it gets no closer to
    the optimum than 1e-3.) The gap of the result is above tol if the arithmetic resolves no more (the primal contains C
    times the rounding error of every score), or if SMO used all of its 1,000 m steps and the rank of K is above m/2
    and 300: up to that `solve_linear` goes on.

    K (m, m) is symmetric; positive semidefinite, or the result is only a point that no small change improves. y are
    labels 1 and −1, (m,), both present. `start` is the initial u, (m,), from any weights or C; zeros by default.
    """
    K = np.ascontiguousarray(K, dtype=np.float64)
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
        if not converged and (Z := pivoted_root(K)).shape[1] <= max(_LOW_RANK, len(y) // 2):
            # Pairs of samples take many steps along few long directions, and an interior point method does not.
            u = solve_linear(Z, y, C, tol).u
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


# --- decomposition, for kernels that do not fit in memory -------------------------------------------------------------

# Largest number of working sets.
_MAX_ROUNDS = 1000

ReadColumns = Callable[[Index], Float]


def solve_by_columns(
    columns: ReadColumns, diagonal: Float, y: Float, C: Bounds, tol: float, max_bytes: int, start: Float | None = None
) -> SVMSolution:
    """Train a support vector machine on a kernel matrix with too many columns for the memory.

    Decomposition (Osuna, Freund, Girosi 1997; Joachims 1999) with a working set as large as the memory allows: the
    pairs that violate optimality most, then the free vectors and other cached samples. The columns of new members are
    requested in one call; the problem over the working set is solved as in `solve_dense`, and the gradient of all
    samples is updated from the cached columns.

    `columns` returns the columns of K at some positions, (m, len(positions)) float64, and is expensive: it is called
    with as many positions as possible, and never with one that is cached. `diagonal` is that of K, (m,). `max_bytes` is
    the memory for all arrays: 40 m bytes for each column of the working set, for the column itself, another that a call
    returns, K over the working set, and its factor.

    Scores and gap of the solution are recomputed from columns. The gap is above tol if the arithmetic resolves no more,
    or after 1,000 working sets: decomposition is slow if there are more free vectors than the working set holds.
    MemoryBudgetError is raised if not even two columns fit.
    """
    m = len(y)
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
                return best
            u, f = fresh.u.copy(), y - fresh.scores
        eps *= 0.1
    return min(best, certified(u), key=lambda solution: solution.gap)


def _violators(u: Float, f: Float, lower: Float, upper: Float, eps: float) -> Index:
    """The variables that violate optimality by eps, the worst to rise and to fall in turn; none if no pair does."""
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
        self._samples = np.zeros(0, dtype=np.intp)  # whose columns the first rows are

    def working_set(self, violators: Index, free: npt.NDArray[np.bool_]) -> Index:
        """The next samples to optimize: at least half violators, the worst first, then cached free samples."""
        free_held, bound_held = self._samples[free[self._samples]], self._samples[~free[self._samples]]
        share = max(self._size // 2, self._size - len(free_held))
        ordered = np.concatenate([violators[:share], free_held, violators[share:], bound_held])
        _, first = np.unique(ordered, return_index=True)
        return np.asarray(ordered[np.sort(first)[: self._size]])

    def hold(self, among: Index) -> tuple[Index, Float]:
        """Cache the columns of these samples, requesting the missing ones; returns all cached samples and their rows.

        Other columns are evicted only if there is no room, so that the working set may be larger than requested.
        """
        missing, n_held = among[~np.isin(among, self._samples)], len(self._samples)
        if len(missing):
            # Empty rows first, then rows of columns that are not in the new working set.
            others = np.flatnonzero(~np.isin(self._samples, among))
            spare = np.concatenate([np.arange(n_held, self._size), others])[: len(missing)]
            self._rows[spare] = self._columns(missing).T
            self._samples = np.resize(self._samples, min(n_held + len(missing), self._size))
            self._samples[spare] = missing
        return self._samples, self._rows[: len(self._samples)]

    def product(self, u: Float, free: Index) -> tuple[Float, Float | None]:
        """Ku from columns alone, and K over the free vectors if it takes no more memory than the cached columns."""
        small = len(free) ** 2 <= self._rows.size
        free_kernel = np.empty((len(free), len(free))) if small else None
        total = np.zeros(len(u))

        def add(samples: Index, rows: Float) -> None:
            total[...] += u[samples] @ rows
            if free_kernel is not None:
                _, of_free, of_rows = np.intersect1d(free, samples, return_indices=True)
                free_kernel[of_free] = rows[np.ix_(of_rows, free)]

        support = np.flatnonzero(u)
        missing = support[~np.isin(support, self._samples)]
        # As many as fit are kept, free vectors first: they are in the next working set.
        missing = missing[np.argsort(~np.isin(missing, free), kind="stable")]
        room = self._size - len(self._samples)
        add(*self.hold(missing[:room]))
        for start in range(room, len(missing), self._size):
            # The rest is read in batches as large as the cache, and not kept.
            batch = missing[start : start + self._size]
            add(batch, self._columns(batch).T)
        return total, free_kernel


def fit_square(K: Float, h: Float, lam: float) -> SVMSolution:
    """Minimize Σ_i (h_i − f(x_i))² + λ‖w‖², f(x) = wᵀφ(x) + bias, for any targets h (m,) and λ > 0.

    (K + λI)u + bias·1 = h and 1ᵀu = 0, w = Φᵀu; the dual is max over Σu = 0 of 2λhᵀu − λ²‖u‖² − λuᵀKu.
    IndefiniteKernelError is raised if K + λI is not positive definite.
    """
    try:
        factor = Cholesky.of(K + lam * np.eye(len(K)))
    except np.linalg.LinAlgError as error:
        msg = (
            f"the combined kernel plus lam={lam:g} is not positive definite, as the square loss needs it; run `dmkl "
            "check` for kernels with negative eigenvalues, take a larger lam, or loss='hinge'"
        )
        raise IndefiniteKernelError(msg) from error
    # With v = (K + λI)⁻¹h and w = (K + λI)⁻¹1, u = v − bias·w, and Σu = 0 gives the bias: one factor, two right sides.
    solved = factor.solve(np.column_stack([h, np.ones(len(h))]))
    bias = float(solved[:, 0].sum() / solved[:, 1].sum())
    u = solved[:, 0] - bias * solved[:, 1]
    # Both objectives are computed from u and K itself, so that their difference shows the rounding error.
    product = K @ u
    regularizer = lam * float(u @ product)
    dual = 2.0 * lam * float(h @ u) - lam * lam * float(u @ u) - regularizer
    primal = regularizer + float(np.sum((h - product - bias) ** 2))
    return SVMSolution(u, bias, dual, primal, product, np.arange(len(u)))


# --- kernels that are products of factors -----------------------------------------------------------------------------


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
        """The answer of `dmkl.solvers.driver` to requests of support vector machines, and of smooth losses."""
        match request:
            case SVM(rows=None, noise=None, groups=None, lam=None, C=C) if C is not None:
                Z = self._combined(request.weights)
                return solve_linear(Z, request.y, C, request.tol, request.ridge)
            case CombinedKernel():
                return Root(self._combined(request.weights))
            case EachProduct(columns=None):
                return np.stack([Z @ (Z.T @ request.block) for Z in self.factors])
            case Task():
                return request.function(*request.arguments)
        msg = f"a problem on factors in memory cannot ask for {type(request).__name__}"
        raise NotImplementedError(msg)

    def _combined(self, weights: Float) -> Float:
        """A with K(β) = AAᵀ, (m, D): the factors of kernels of weight, side by side."""
        pairs = zip(weights, self.factors, strict=True)
        return np.concatenate([np.sqrt(w) * Z for w, Z in pairs if w > 0] or [0.0 * self.factors[0]], axis=1)


_FIRST_AIM = 1e-6  # the gap at which it is mostly clear which samples are at bounds


def solve_linear(Z: Float, y: Float, C: Bounds, tol: float = 1e-6, ridge: float = 0.0) -> SVMSolution:
    """Train a support vector machine on K = ZZᵀ + δI, for Z (m, D) and the ridge δ; otherwise as `solve_dense`.

    Near the solution, samples whose multipliers say that they are at a bound are set to it exactly, and the others, no
    more than D + 1 unless rows of Z are equal, are optimized as in `solve_dense`. The gap is that of the returned u.
    """
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
        # [1, Z]ᵀΘ⁻¹[1, Z] plus the identity for w, the upper triangle.
        normal = np.diag(np.append(0.0, np.ones(Z.shape[1]))).copy(order="F")
        for strip in strips(len(normal), slice(0, len(Z))):
            root = np.sqrt(1.0 / theta[strip])[:, None]
            add_gram(normal, np.concatenate([root, Z[strip] * root], axis=1))
        system = cho_factor(normal, overwrite_a=True)
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
