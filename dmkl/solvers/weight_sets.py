"""Sets of kernel weights over which S(α, β) is maximized: norm balls, mixed norms, prices, and sets written in cvxpy.

Solvers use a set B through its support function h(q) = max over β in B of βᵀq. For any α the optimum is at most

    F(α) = ¼‖α‖² − tr(Hᵀα) + h(q(α)),

since S(α, β) = ¼‖α‖² − tr(Hᵀα) + βᵀq(α); and for any β in B it is at least S(α, β) − ‖R‖² (`dmkl.numerics.fisher`).
One certificate therefore serves all sets. Their support functions:

- ‖β‖_p ≤ 1: h(q) = ‖q‖_p*, 1/p + 1/p* = 1, by Hölder's inequality.
- Σ_g ‖β_g‖_p ≤ 1, groups g of kernels: with s_g = ‖β_g‖_p, βᵀq ≤ Σ_g s_g‖q_g‖_p* ≤ max_g ‖q_g‖_p*, attained where
  one group with the largest ‖q_g‖_p* has all the weight. The corresponding norm of the functions is mixed as well: the
  minimum of Σ_j ‖f_j‖²/β_j over these weights is (Σ_g ‖(‖f_j‖)_{j∈g}‖_{2p/(p+1)})².
- prices σ: σ∘β in B. With b = σ∘β, βᵀq = bᵀ(q/σ): h_σ(q) = h(q/σ).
- cones, {β : b − Gx ∈ K, x = (β, …)}: h(q) = min of bᵀz over z in the dual cone with Gᵀz = (q, 0); any such z bounds h
  from above.

Sources: Szafranski, Grandvalet, Rakotomamonjy: Composite kernel learning, Machine Learning 79 (2010), for groups.
Kloft, Brefeld, Sonnenburg, Zien: ℓp-norm multiple kernel learning, JMLR 12 (2011), for norms. Varma and Ray, ICCV 2007,
for prices.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Self

import clarabel
import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dmkl.arrays import Float, Index
from dmkl.errors import DmklError, refuse
from dmkl.numerics.fisher import dual_norm, norm, onto_sphere, steepest, uniform_weights

# --- conic programs ---------------------------------------------------------------------------------------------------

Entries = tuple[Index, Index, Float]  # Row, column and value of the entries of a matrix that may be nonzero


class ConicError(DmklError, RuntimeError):
    """A conic program has no usable solution."""


class ConicProgram:
    """Minimize ½ xᵀPx + qᵀx over x, of length `width`, with b − rows x in a product of cones."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._entries: list[Entries] = []
        self._b: list[Float] = []
        self._cones: list[Any] = []
        self._height = 0
        self._rows: Any = None  # The matrix of all rows, after its first use
        self.violation = np.inf
        """Violation of the constraints by the last minimizer, relative to their size; infinite before the first."""

    def add(self, rows: Float | Entries, b: npt.ArrayLike, *cones: Any) -> None:
        """Require b − rows x to lie in the product of these cones of Clarabel's."""
        i, j, values = rows if isinstance(rows, tuple) else _entries(rows)
        self._entries.append((self._height + i, j, values))
        self._b.append(np.atleast_1d(np.asarray(b, dtype=np.float64)))
        self._cones.extend(cones)
        self._height += len(self._b[-1])
        self._rows = None

    def at_most(self, rows: Float | Entries, b: npt.ArrayLike) -> None:
        """Require rows x ≤ b; there may be no rows."""
        if n := np.size(b):
            self.add(rows, b, clarabel.NonnegativeConeT(n))

    def widened(self, n_more: int) -> ConicProgram:
        """A copy with more variables after these."""
        copy = ConicProgram(self.width + n_more)
        copy._entries, copy._b, copy._cones = [*self._entries], [*self._b], [*self._cones]
        copy._height = self._height
        return copy

    def nonnegative(self, n: int) -> None:
        """Require the first n variables to be 0 or more."""
        self.at_most((np.arange(n), np.arange(n), np.full(n, -1.0)), np.zeros(n))

    def norm_at_most(self, p: float, members: Index, size: int | None = None) -> None:
        """Require ‖x_members‖_p ≤ x_size, or ≤ 1 where None, of x_members ≥ 0; some p take more variables."""
        k, each = len(members), np.arange(len(members))

        def add(rows: Index, columns: Index, sign: float, of_size: Index, height: int, *cones: Any) -> None:
            values, b = np.full(len(rows), sign), np.zeros(height)
            if size is None:
                b[of_size] = 1.0
            else:
                rows, columns = np.append(rows, of_size), np.append(columns, np.full(len(of_size), size))
                values = np.append(values, np.full(len(of_size), -1.0))
            self.add((rows, columns, values), b, *cones)

        if np.isinf(p) or k == 1:
            add(each, members, 1.0, each, k, clarabel.NonnegativeConeT(k))
        elif p == 1:
            add(0 * each, members, 1.0, each[:1], 1, clarabel.NonnegativeConeT(1))
        elif p == 2:
            add(1 + each, members, -1.0, each[:1], k + 1, clarabel.SecondOrderConeT(k + 1))
        else:
            # Σ t_j ≤ s with (t_j, s, x_j) in the power cone of exponent 1/p: t_j s^(p−1) ≥ x_j^p.
            # They are homogeneous in (t, s, x), so that with s = 0 all are zero.
            t = self.width + each
            self.width += k
            add(0 * each, t, 1.0, each[:1], 1, clarabel.NonnegativeConeT(1))
            rows, columns = np.append(3 * each, 3 * each + 2), np.append(t, members)
            add(rows, columns, -1.0, 3 * each + 1, 3 * k, *[clarabel.PowerConeT(1.0 / p)] * k)

    def bounded_square(self, root: Float, shift: Float, row: Float, constant: float) -> None:
        """Require ½‖root x − shift‖² ≤ row x + constant."""
        # With z = root x − shift and s = row x + constant: (s + ½, s − ½, z) is in the second-order cone if and only if
        # (s − ½)² + ‖z‖² ≤ (s + ½)², that is ‖z‖² ≤ 2s.
        b = np.concatenate([[constant + 0.5, constant - 0.5], -shift])
        self.add(np.vstack([-row, -row, -root]), b, clarabel.SecondOrderConeT(len(b)))

    def minimize(self, linear: Float, quadratic: Float | None = None) -> tuple[Float, Float]:
        """The minimizer x, and the multipliers of the rows in the order in which these were added.

        Any finite point is returned, optimal to Clarabel's tolerances or not: the caller certifies its result on the
        full problem. q is `linear`; P is `quadratic`, positive semidefinite, or zero. Both may be those of the first
        variables alone, if the others have zeros. ConicError is raised if Clarabel returns no point.
        """
        self.violation = np.inf
        square = (self.width, self.width)
        i, j, values = _entries(np.zeros((0, 0)) if quadratic is None else np.triu(quadratic))
        upper = sp.csc_matrix((values, (i, j)), shape=square)
        # Programs over the same set differ in the objective alone, so the matrix of the rows is kept.
        if self._rows is None:
            i, j, values = map(np.concatenate, zip(*self._entries, strict=True))
            self._rows = sp.csc_matrix((values, (i, j)), shape=(self._height, self.width))
        q, b = self._padded(linear), np.concatenate(self._b)
        options = clarabel.DefaultSettings()
        options.verbose = False
        options.max_iter = 200
        # Clarabel's default of 1e-8 would limit the gap of a fit. Some programs with power cones do not reach a lower
        # tolerance: their last steps increase the violation of the constraints, so that they are solved again.
        for tolerance in (1e-10, 1e-8):
            options.tol_gap_abs = options.tol_gap_rel = options.tol_feas = tolerance
            solution = clarabel.DefaultSolver(upper, q, self._rows, b, self._cones, options).solve()
            x, status = np.asarray(solution.x, dtype=np.float64), str(solution.status)
            if not np.isfinite(x).all() or "Infeasible" in status or status == "Unsolved":
                msg = f"the conic program ended without a solution (Clarabel: {status})"
                raise ConicError(msg)
            if solution.r_prim <= 1e-8:
                break
        self.violation = float(solution.r_prim)
        return x, np.asarray(solution.z, dtype=np.float64)

    def nearest(self, aim: Float) -> Float:
        """The feasible x whose first variables are closest to `aim`."""
        return self.minimize(-aim, np.eye(len(aim)))[0]  # ½‖x − aim‖² without its constant

    def dual(self, multipliers: Float) -> float:
        """bᵀz for the multipliers z of a minimizer, which bounds the maximum of −qᵀx if q + rowsᵀz is zero."""
        return float(np.concatenate(self._b) @ multipliers)

    def highest(self, linear: Float) -> float:
        """An upper bound of the maximum of −qᵀx for a q of the first variables, which are ≥ 0 with a sum of at most 1.

        With the multipliers z of a minimizer, r = q + rowsᵀz and b − rows x in the cones, −qᵀx ≤ bᵀz − rᵀx. The
        solver's tolerance leaves a small r. Its part for the first variables is bounded by their sum; its part for the
        others, which only the cones bound, is taken as twice its value at the solution.
        """
        n = len(linear)
        x, z = self.minimize(linear)
        r = self._padded(linear) + self._rows.T @ z
        first, others = np.maximum(-r[:n], 0.0).max(initial=0.0), 2.0 * np.abs(r[n:]) @ np.abs(x[n:])
        return self.dual(z) + float(first + others)

    def _padded(self, linear: Float) -> Float:
        return np.pad(linear, (0, self.width - len(linear)))


def _entries(rows: Float) -> Entries:
    i, j = np.nonzero(rows)
    return i, j, rows[i, j]


class WeightSet(ABC):
    """A closed, convex and bounded set of weights β ≥ 0 (n,).

    Masters solve conic programs over it in the variables x = β/`units`, which `program`, `clean` and `polish` use.
    """

    if TYPE_CHECKING:  # plain attributes in some sets, properties in others

        @property
        def p(self) -> float:
            """The norm, which orders neighbors in a grid: for a larger p a solution depends less on the kernels."""

        @property
        def smooth(self) -> bool:
            """Whether the support function is differentiable wherever q > 0."""

    @abstractmethod
    def is_fixed(self, n: int) -> bool:
        """Whether the same weights are optimal for every q ≥ 0, so that there is nothing to learn."""

    @abstractmethod
    def start(self, n: int, near: Float | None = None) -> Float:
        """Initial weights: equal if the set has such, or those close to `near`."""

    @abstractmethod
    def support(self, q: Float) -> float:
        """The maximum of βᵀq, or an upper bound that is as close as the arithmetic allows."""

    @abstractmethod
    def steepest(self, q: Float) -> Float:
        """The β that maximizes βᵀq."""

    @abstractmethod
    def select(self, kernels: Index) -> WeightSet:
        """The set of these kernels' weights, with zero weight for all others."""

    def units(self, n: int) -> Float:
        """The scale β/x of the variables, (n,)."""
        return np.ones(n)

    def program(self, n: int) -> ConicProgram:
        """A program with x in the set, for its first n variables. It is shared: `widened` makes a copy to change."""
        return _program(self, n)

    def new_program(self, n: int) -> ConicProgram:
        """Make the program; sets that are fixed need none."""
        raise NotImplementedError

    def clean(self, x: Float) -> Float:
        """The solution of an interior point method, (n,), moved to a point of the set."""
        raise NotImplementedError

    def polish(self, aim: Float, q: Float, curvature: Float, x: Float) -> Float:
        """The maximizer of qᵀ(b − x) − ½(b − x)ᵀC(b − x) from a point near it, to rounding if possible."""
        return aim


@lru_cache(maxsize=64)
def _program(weights: WeightSet, n: int) -> ConicProgram:
    """The program of a set. Making it takes longer than solving it; a search solves thousands."""
    return weights.new_program(n)


# --- balls of norms, and given weights --------------------------------------------------------------------------------


# Fraction of the largest weight below which a weight of an interior point of a sparse solution is set to zero.
_ABSENT = 1e-9


@dataclass(frozen=True)
class Ball(WeightSet):
    """‖β‖_p ≤ 1. S grows with every weight, so that solutions are on the sphere."""

    p: float

    @property
    def smooth(self) -> bool:
        return self.p > 1

    def is_fixed(self, n: int) -> bool:
        return n == 1 or bool(np.isinf(self.p))

    def start(self, n: int, near: Float | None = None) -> Float:
        return uniform_weights(n, self.p) if near is None or np.isinf(self.p) else onto_sphere(near, self.p)

    def support(self, q: Float) -> float:
        return dual_norm(q, self.p)

    def steepest(self, q: Float) -> Float:
        return steepest(q, self.p)

    def select(self, kernels: Index) -> Ball:
        return self

    def new_program(self, n: int) -> ConicProgram:
        program = ConicProgram(n)
        program.nonnegative(n)
        program.norm_at_most(self.p, np.arange(n))
        return program

    def clean(self, x: Float) -> Float:
        # For p = 1 solutions are sparse, and what an interior point leaves of zero weights is cut off; for p > 1 small
        # weights are part of the solution.
        return onto_sphere(without_rounding(x) if self.p == 1 else x, self.p)

    def polish(self, aim: Float, q: Float, curvature: Float, x: Float) -> Float:
        return _exact(aim, q, curvature, x) if self.p == 1 else _polish(aim, q, curvature, x, self.p)


@dataclass(frozen=True)
class GroupBall(WeightSet):
    """Σ_g ‖β_g‖_p ≤ 1 with 1 < p ≤ ∞: few groups have weight, and a group's weight is spread over its kernels."""

    p: float
    groups: tuple[tuple[int, ...], ...]  # the positions of the kernels of each group; each kernel is in one

    smooth = False

    def is_fixed(self, n: int) -> bool:
        return n == 1

    def start(self, n: int, near: Float | None = None) -> Float:
        if near is not None:
            return self.clean(near)
        beta = np.zeros(n)
        for group in self._members():
            beta[group] = uniform_weights(len(group), self.p) / len(self.groups)
        return beta

    def support(self, q: Float) -> float:
        return max(dual_norm(q[group], self.p) for group in self._members())

    def steepest(self, q: Float) -> Float:
        # Σ_g s_g‖q_g‖_p* with Σs_g ≤ 1 is largest if one group with the largest dual norm has everything.
        best = max(self._members(), key=lambda group: dual_norm(q[group], self.p))
        beta = np.zeros(len(q))
        beta[best] = steepest(q[best], self.p)
        return beta

    def select(self, kernels: Index) -> Ball | GroupBall:
        place = {int(kernel): position for position, kernel in enumerate(kernels)}
        kept = [[place[j] for j in group if j in place] for group in self.groups]
        return grouped(self.p, [group for group in kept if group])

    def new_program(self, n: int) -> ConicProgram:
        # After β come s_g ≥ ‖β_g‖_p of each group.
        sizes = n + np.arange(len(self.groups))
        program = ConicProgram(n + len(sizes))
        program.nonnegative(n)
        program.norm_at_most(1.0, sizes)
        for size, group in zip(sizes.tolist(), self._members(), strict=True):
            program.norm_at_most(self.p, group, size)
        return program

    def clean(self, x: Float) -> Float:
        # Scaled to the sphere, with tiny groups set to zero.
        x = np.maximum(x, 0.0)
        sizes = np.array([norm(x[group], self.p) for group in self._members()])
        if not (total := float(without_rounding(sizes).sum())) > 0:
            return self.start(len(x))
        beta = x / total
        for size, group in zip(sizes, self._members(), strict=True):
            if not size > _ABSENT * float(sizes.max()):
                beta[group] = 0.0
        return beta

    def _members(self) -> list[Index]:
        return [np.array(group) for group in self.groups]


def grouped(p: float, groups: Sequence[Sequence[int]]) -> Ball | GroupBall:
    """The set Σ_g ‖β_g‖_p ≤ 1 over groups that partition the kernels.

    For p = 1, or groups of one kernel each, it is ‖β‖_1 ≤ 1; for a single group it is ‖β‖_p ≤ 1.
    """
    if p == 1 or all(len(group) == 1 for group in groups):
        return Ball(1.0)
    if len(groups) == 1:
        return Ball(p)
    return GroupBall(p, tuple(tuple(int(j) for j in group) for group in groups))


@dataclass(frozen=True)
class GivenWeights(WeightSet):
    """The set of one element β, so that nothing is learnt; masters, and with them conic programs, are never needed."""

    beta: tuple[float, ...]

    p = np.inf
    smooth = True

    def is_fixed(self, n: int) -> bool:
        return True

    def start(self, n: int, near: Float | None = None) -> Float:
        return np.array(self.beta)

    def support(self, q: Float) -> float:
        return float(np.dot(self.beta, q))

    def steepest(self, q: Float) -> Float:
        return np.array(self.beta)

    def select(self, kernels: Index) -> GivenWeights:
        beta = tuple(self.beta[int(j)] for j in kernels)
        if not any(beta):
            refuse(
                "weights are given, and a fit to some of the kernels has only kernels of weight zero; leave these out "
                "of the set by select(), or give them a weight"
            )
        return GivenWeights(beta)


def without_rounding(x: Float) -> Float:
    """The weights of an interior point, with tiny ones set to zero."""
    return np.where(x > _ABSENT * float(x.max(initial=0.0)), x, 0.0)


_POLISHING = 5
# Fraction of the largest weight above which a weight takes part in polishing.
_PRESENT = 1e-6


def _polish(aim: Float, q: Float, curvature: Float, beta: Float, p: float) -> Float:
    """The solution of the quadratic model over the ball, 1 < p < ∞, to rounding, from a point near it.

    An interior point that is optimal to g in the objective is optimal only to √g in the weights, and its last digits
    depend on rounding. Newton's method solves the optimality conditions over the weights that are not tiny:

        q − C(b − β) = μ b^(p−1),   Σ b^p = 1.
    """
    there = aim > _PRESENT * float(aim.max())
    # Tiny weights are fixed: b^(p−2) would overflow there for p < 2, and their part of Σb^p is constant.
    b, size = aim[there], float(np.sum(aim[~there] ** p))
    fixed = (q - curvature[:, ~there] @ aim[~there] + curvature @ beta)[there]
    inner = curvature[np.ix_(there, there)]
    powers = b ** (p - 1.0)
    mu = float((fixed - inner @ b) @ powers / (powers @ powers))
    # A multiplier that is not positive means that the constraint is not active: no such system then.
    if mu <= 0:
        return aim
    error = np.inf
    best = aim
    for _ in range(_POLISHING):
        powers = b ** (p - 1.0)
        left = np.append(fixed - inner @ b - mu * powers, (np.sum(b * powers) + size - 1.0) / p)
        # Newton's method converges quadratically: a residual that is not halved is rounding error.
        if not (now := float(np.abs(left).max())) < 0.5 * error:
            break
        best, error = aim.copy(), now
        best[there] = b
        system = np.zeros((len(b) + 1, len(b) + 1))
        system[:-1, :-1] = inner + np.diag(mu * (p - 1.0) * b ** (p - 2.0))
        system[:-1, -1], system[-1, :-1] = powers, -powers
        try:
            step = np.linalg.solve(system, left)
        except np.linalg.LinAlgError:  # powers of small weights that vanish
            break
        # A step that halves a weight may leave β > 0; the best point so far is kept.
        if not np.all(b + step[:-1] > 0.5 * b):
            break
        b, mu = b + step[:-1], mu + float(step[-1])
    return onto_sphere(best, p)


def _exact(aim: Float, q: Float, curvature: Float, beta: Float) -> Float:
    """The solution of the quadratic model over Σ b = 1, b ≥ 0, from an interior point, which errs as above."""
    # On the kernels that have weight q − C(b − β) is the same for all.
    there = np.flatnonzero(aim > _PRESENT * float(aim.max()))
    system = np.ones((len(there) + 1, len(there) + 1))
    system[:-1, :-1], system[-1, -1] = curvature[np.ix_(there, there)], 0.0
    exact = np.zeros_like(aim)
    exact[there] = np.linalg.lstsq(system, np.append((q + curvature @ beta)[there], 1.0))[0][:-1]
    return onto_sphere(exact, 1.0) if exact.min() >= 0 else aim


# --- sets described by cones ------------------------------------------------------------------------------------------


CONES: dict[str, Callable[..., object]] = {
    "zero": clarabel.ZeroConeT,
    "nonnegative": clarabel.NonnegativeConeT,
    "second order": clarabel.SecondOrderConeT,
    "semidefinite": clarabel.PSDTriangleConeT,
    "exponential": clarabel.ExponentialConeT,
    "power": clarabel.PowerConeT,
    "powers": clarabel.GenPowerConeT,
}
"""The cones by name, since Clarabel's own objects cannot be sent to another process."""


def _scaled(shares: Sequence[float], n_rows: int) -> Float:
    """The matrix that divides the first coordinates by the powers, which maps the dual of a power cone to the cone."""
    factors = np.ones(n_rows)
    factors[: len(shares)] = 1.0 / np.asarray(shares)
    return np.diag(factors)


def dual_cone(name: str, arguments: tuple[Any, ...]) -> tuple[int, Float | None]:
    """Rows of a cone K, and M such that z is in its dual if and only if Mz is in K; None if K is its own dual."""
    if name == "exponential":
        # K: y exp(x/y) ≤ z. Its dual: −u exp(v/u) ≤ e w, which is K at x = u − v, y = −u, z = w.
        return 3, np.array([[1.0, -1.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    if name == "power":
        return 3, _scaled([arguments[0], 1.0 - arguments[0]], 3)
    if name == "powers":
        return len(arguments[0]) + arguments[1], _scaled(arguments[0], len(arguments[0]) + arguments[1])
    return arguments[0] * (arguments[0] + 1) // 2 if name == "semidefinite" else arguments[0], None


class UnboundedSetError(ConicError):
    """A set of weights is not bounded."""


@dataclass(frozen=True, eq=False)
class Cones:
    """{β : b − Gx ∈ K for some x = (β, …)} over n kernels, as plain data."""

    n: int
    rows: Entries  # Those of G, whose first n of `width` columns are those of β
    b: Float  # (height,)
    cones: tuple[tuple[str, tuple[Any, ...]], ...]  # The names as in `CONES`, and arguments of Clarabel's constructors
    width: int

    def select(self, kernels: Index) -> Self:
        """The set of these kernels' weights, with zero weight for all others."""
        # Weights of zero drop out: their columns of G are removed, and the others keep their order.
        place = np.full(self.width, -1, dtype=np.int64)
        place[kernels] = np.arange(len(kernels))
        place[self.n :] = np.arange(len(kernels), len(kernels) + self.width - self.n)
        i, j, values = self.rows
        kept = place[j] >= 0
        rows = i[kept], place[j[kept]], values[kept]
        return replace(self, n=len(kernels), rows=rows, width=len(kernels) + self.width - self.n)

    def demand(self, program: ConicProgram, unit: float, first: int, *, recession: bool = False) -> None:
        """Require `unit` times the first n variables to be in the set; the others of x are those from `first` on.

        With `recession`, require them to be a direction in which the set is unbounded.
        """
        i, j, values = self.rows
        place = np.append(np.arange(self.n), np.arange(first, first + self.width - self.n))
        b = np.zeros_like(self.b) if recession else self.b
        # The rows are scaled to entries of size one, since Clarabel's tolerances are absolute.
        size = max(float(np.abs(b).max(initial=0.0)), unit)
        cones = [CONES[name](*arguments) for name, arguments in self.cones]
        program.add((i, place[j], values * (unit / size)), b / size, *cones)

    def demand_dual(self, program: ConicProgram, first: int) -> None:
        """Require the variables from `first` on, one for each row, to be in the dual cone of K."""
        row = 0
        for name, arguments in self.cones:
            height, to_cone = dual_cone(name, arguments)
            if name != "zero":  # its dual is the whole space
                # M times the variables must be in K; for a self-dual cone M is the identity.
                i, j = np.indices((height, height)).reshape(2, -1)
                values = np.eye(height) if to_cone is None else to_cone
                program.add((i, first + row + j, -values.ravel()), np.zeros(height), CONES[name](*arguments))
            row += height

    def matrix(self) -> Float:
        """G, (height, width)."""
        matrix = np.zeros((len(self.b), self.width))
        np.add.at(matrix, self.rows[:2], self.rows[2])
        return matrix


@dataclass(frozen=True, eq=False)
class ConicSet(Cones, WeightSet):
    """A bounded set that is described by cones and contained in β ≥ 0."""

    p = 1.0
    smooth = False

    def is_fixed(self, n: int) -> bool:
        return False

    def start(self, n: int, near: Float | None = None) -> Float:
        # The nearest point of the set.
        aim = np.full(n, 1.0 / n) if near is None else near / self.total
        return self.total * self.clean(self.program(n).nearest(aim)[:n])

    @cached_property
    def total(self) -> float:
        """The maximum of Σβ, or a slightly larger number: the unit of size for the set.

        UnboundedSetError is raised if there is no maximum, ConicError if the set is empty.
        """
        program = ConicProgram(self.width)
        self.demand(program, 1.0, self.n)
        try:
            x, z = program.minimize(np.full(self.n, -1.0))
        except ConicError as error:
            # −Σβ without a lower bound: the dual of the program is infeasible.
            if "DualInfeasible" not in str(error):
                raise
            msg = "the set of weights is not bounded"
            raise UnboundedSetError(msg) from error
        largest = float(x[: self.n].sum())
        # The bound by the multipliers makes `total` a proven maximum; the set {0} gets a tiny size to divide by.
        return max((1.0 + 1e-8) * max(largest, program.dual(z)), 1e-12)

    def support(self, q: Float) -> float:
        size = float(np.abs(q).max(initial=0.0))
        return size * self.total * self.program(self.n).highest(-q / size) if size else 0.0

    def steepest(self, q: Float) -> Float:
        size = float(np.abs(q).max(initial=0.0)) or 1.0
        return self.total * self.clean(self.program(self.n).minimize(-q / size)[0][: self.n])

    def units(self, n: int) -> Float:
        return np.full(n, self.total)

    def new_program(self, n: int) -> ConicProgram:
        program = ConicProgram(self.width)
        self.demand(program, self.total, self.n)
        return program

    def clean(self, x: Float) -> Float:
        return without_rounding(x)


@dataclass(frozen=True)
class Priced(WeightSet):
    """{β : (σ_1β_1, …, σ_nβ_n) in `inner`}, for prices σ > 0, which is the inner set for the kernels K_j/σ_j."""

    inner: WeightSet
    prices: tuple[float, ...]

    @property
    def p(self) -> float:
        return self.inner.p

    @property
    def smooth(self) -> bool:
        return self.inner.smooth

    @property
    def _sigma(self) -> Float:
        return np.array(self.prices)

    def is_fixed(self, n: int) -> bool:
        return self.inner.is_fixed(n)

    def start(self, n: int, near: Float | None = None) -> Float:
        return self.inner.start(n, None if near is None else near * self._sigma) / self._sigma

    def support(self, q: Float) -> float:
        # With b = σ∘β, βᵀq = bᵀ(q/σ).
        return self.inner.support(q / self._sigma)

    def steepest(self, q: Float) -> Float:
        return self.inner.steepest(q / self._sigma) / self._sigma

    def select(self, kernels: Index) -> Priced:
        return Priced(self.inner.select(kernels), tuple(self.prices[j] for j in kernels))

    def units(self, n: int) -> Float:
        return self.inner.units(n) / self._sigma

    def program(self, n: int) -> ConicProgram:
        return self.inner.program(n)

    def clean(self, x: Float) -> Float:
        return self.inner.clean(x)

    def polish(self, aim: Float, q: Float, curvature: Float, x: Float) -> Float:
        return self.inner.polish(aim, q, curvature, x)
