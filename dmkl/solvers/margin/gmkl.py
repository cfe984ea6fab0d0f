"""Generalized MKL: a C-SVM on K(d) = Σ_j d_j K_j, with prices and constraints on the weights.

Varma and Ray, ICCV 2007, method page. With σ (n,) the price of each kernel, and k rows A d ≥ b of prior knowledge,

    min over d ≥ 0, A d ≥ b of  T(d) = σᵀd + W(d),
    W(d) = max over 0 ≤ α ≤ C, αᵀy = 0 of  Σ_i α_i − ½ Σ_j d_j uᵀK_ju,   u = α∘y.

T is a maximum of functions that are linear in d, hence convex; if α is unique its gradient is σ_j − ½ uᵀK_ju. Its
Hessian comes from the support vectors between the bounds (see `dmkl.solvers.margin.mksvm`).

Without a lower bound T may have no minimizer: σᵀr > 0 is required for each direction r ≥ 0, Ar ≥ 0 in which the
polyhedron is unbounded.

Lower bounds from all SVMs
--------------------------
Each u that an SVM has returned is feasible, as is tu for 0 ≤ t ≤ t_u = min C/α, and so is every point of the convex
hull of zero and all t_u u. With those u as columns of U, a their Σα, and V_j = UᵀK_jU,

    T* ≥ max { aᵀλ + bᵀp :  λ, p ≥ 0,  Σ λ_u/t_u ≤ 1,  ½λᵀV_jλ + (Aᵀp)_j ≤ σ_j for all j }.

This is the dual of Varma and Ray over a part of its feasible set, a small conic program. For one SVM it is the bound of
weak duality; several reach the optimum even if no single one does, as around d = 0: there many α have the same Σα, and
the proof that no kernel is worth its price needs a mixture of them with ½uᵀK_ju ≤ σ_j for all j.

If d must also be in a convex set {d : b' − Gx ∈ K, x = (d, …)}, its multipliers z ∈ K* enter: −b'ᵀz in the objective,
(Aᵀp)_j − (Gᵀz)_j in the constraints, and Gᵀz = 0 in the columns of the further variables. From the resulting mixture
the bound is computed again as aᵀλ + min over d of (σ − ½(λᵀV_jλ)_j)ᵀd, whose proof needs the multipliers of that
program alone.

The multipliers of the last constraints are weights d: they minimize over the polyhedron the lower model of T from all
SVMs, σᵀd + max over λ of aᵀλ − ½ Σ_j d_j λᵀV_jλ. An SVM trained there corrects the model where it is lowest.

All programs over the weights run as tasks, on arrays that do not grow with the samples.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import clarabel
import numpy as np
from scipy.optimize import linprog

from dmkl import progress
from dmkl.arrays import Float, Index
from dmkl.errors import refuse
from dmkl.numerics.fisher import relative_gap
from dmkl.numerics.semidefinite import UNKNOWN, KernelFacts, check_forms
from dmkl.solvers.interface import SVM, EachProduct, Outcome, Status, Step, Task
from dmkl.solvers.margin.svm import Bounds, curvature, hinge
from dmkl.solvers.weight_sets import Cones, ConicError, ConicProgram, without_rounding

Method = Literal["newton", "gradient"]


@dataclass(frozen=True, eq=False)
class PricedSet:
    """Prices of the weights and the set that must contain them; InputError on construction for those of no minimum."""

    sigma: Float  # (n,), the price of a unit of weight for each kernel
    A: Float = field(default_factory=lambda: np.zeros((0, 0)))
    b: Float = field(default_factory=lambda: np.zeros(0))
    """(k, n) and (k,): the rows of A d ≥ b; an upper bound d_j ≤ c is the row −d_j ≥ −c. The default is no rows.

    They are kept divided by their lengths, so that a row measures the distance from its hyperplane, and one tolerance
    serves all rows.
    """
    rows: tuple[str, ...] = ()  # names of the rows, for messages
    cones: Cones | None = None  # a convex set that must contain d, for prior knowledge that is not linear

    def __post_init__(self) -> None:
        sigma, n, b = self.sigma, len(self.sigma), self.b
        if len(infinite := sigma[~np.isfinite(sigma)]):
            refuse(f"sigma must hold a finite price for each kernel, got {infinite[0]}; select() leaves kernels out")
        A = self.A.reshape(0, n) if self.A.size == 0 else self.A
        if A.shape != (b.size, n) or b.ndim != 1 or not (np.isfinite(A).all() and np.isfinite(b).all()):
            refuse(f"A has shape {A.shape} and b {b.shape}, expected finite numbers in (k, {n}) and (k,): A d ≥ b")
        size = np.linalg.norm(A, axis=1)
        lengths = np.where(size > 0, size, 1.0)
        A, b = A / lengths[:, None], b / lengths
        if (p := _conflict(A, b)) is not None:
            factors = p / lengths
            factors = factors / factors.max()
            names = self.rows or [f"row {k}" for k in range(len(b))]
            named = ", ".join(f"{names[k]} (times {factors[k]:.3g})" for k in np.flatnonzero(p))
            refuse(
                f"no weights d ≥ 0 satisfy all rows of A d ≥ b, for these contradict each other: {named}; added up "
                "with these factors they exclude every d ≥ 0. Drop or loosen one, and the others agree"
            )
        object.__setattr__(self, "A", A)
        object.__setattr__(self, "b", b)
        if self.cones is not None and _minimum(self.program(), np.ones(n)) is None:
            refuse("no weights d ≥ 0 satisfy A d ≥ b and the constraints together; loosen one of either")
        if (free := self._free_direction()) is not None:
            named = ", ".join(str(j) for j in np.flatnonzero(free > 1e-9)[:10])
            refuse(
                f"the weights of kernels {named} may grow together without end and without a price (sigma times that "
                f"direction is {sigma @ free:.3g}, expected more than zero), so there are no best weights: give them a "
                "sigma > 0, or bound them by a row such as −d_j ≥ −c"
            )

    def program(self, unit: float = 1.0, *, n_more: int = 0, recession: bool = False) -> ConicProgram:
        """A program over (d/unit, n_more more variables, those of the cones) with d in the set.

        With `recession`, d is a direction in which the set is unbounded.
        """
        n, cones = len(self.sigma), self.cones
        width = n + n_more
        program = ConicProgram(width if cones is None else width + cones.width - cones.n)
        program.nonnegative(n)
        # Without columns of zeros at the end.
        program.at_most(-self.A, np.zeros(len(self.b)) if recession else -self.b / unit)
        if cones is not None:
            cones.demand(program, unit, width, recession=recession)
        return program

    def _free_direction(self) -> Float | None:
        """A direction r ≥ 0 of the set with Σr = 1 and σᵀr ≤ 0, or None."""
        sigma, n, size = self.sigma, len(self.sigma), np.abs(self.sigma).max()
        if self.cones is not None:
            size = size or 1.0
            program = self.program(recession=True)
            program.add(np.ones((1, n)), 1.0, clarabel.ZeroConeT(1))
            solution = _minimum(program, sigma / size)
            return None if solution is None or sigma @ solution[0][:n] > 1e-8 * size else solution[0][:n]
        result = linprog(sigma, A_ub=-self.A, b_ub=np.zeros(len(self.b)), A_eq=np.ones((1, n)), b_eq=[1.0])
        return np.asarray(result.x) if result.status == 0 and result.fun <= 1e-12 * size else None


def gmkl(
    y: Float,
    C: Bounds,
    weights: PricedSet,
    *,
    title: str = "",
    method: Method = "newton",
    tol: float = 1e-3,
    max_iter: int = 100,
    facts: KernelFacts = UNKNOWN,
) -> Generator[SVM | EachProduct | Task, Any, Outcome]:
    """Solve one problem of generalized MKL: a generator that requests two passes in each step, and conic programs.

    y are labels 1 and −1, (m,), and C is the price of a unit of hinge loss, or that of each sample, (m,). Reports begin
    with the `title` of the problem.

    "newton" minimizes, over the polyhedron, the maximum of the cutting planes so far and the quadratic model of T from
    the curvature of the SVM (or from a spectral step if the answer to `SVM` has no curvature). A step that fails adds
    its cutting plane, which corrects the next one, and the step after it goes to the weights at which the lower bound
    is attained, which leads out of kinks and to d = 0. "gradient" is Varma and Ray's projected gradient under Armijo's
    rule, with spectral first lengths (Birgin, Martínez and Raydan, SIAM Journal on Optimization 10, 2000); on hard
    cases it remains open after a hundred steps where Newton takes ten. Each of at most `max_iter` steps evaluates
    weights once.

    `objective` is the primal objective of (d, u, bias), σᵀd + ½ Σ_j d_j uᵀK_ju + C Σ max(0, 1 − y_i f(x_i)), from the
    products K_ju in float64: T(d) is at most that, and the optimum is at least `bound`. All weights that are evaluated
    are projected onto the set. Weights that violate its constraints by more than 1e-7 of their size are never
    certified: their objective may be lower than that of all feasible weights.

    Raises IndefiniteKernelError if a form uᵀK_ju is negative.
    """
    watch, n_kernels = progress.current(), len(weights.sigma)
    steps: list[Step] = []
    planes: list[_Plane] = []
    hull = _Hull(y, C, weights)
    candidate, violation = yield Task("restricted-master", _project, (weights, np.full(n_kernels, 1.0 / n_kernels)))
    best: _Trial | None = None
    lower, widest, accuracy = -np.inf, np.inf, 0.1 * tol
    length, newton = 0.0, method == "newton"
    for _ in range(max_iter):
        trial, products = yield from _evaluate(y, C, weights.sigma, candidate, violation, accuracy, best, facts)
        hull.add(trial.u, products)
        # Each step yields as many requests as every other, so that problems side by side keep sharing their passes.
        proven, lowest, widest = yield from hull.bound(widest, trial.objective)
        # Every lower bound holds for the same optimum, so the largest one is kept.
        lower = max(lower, proven)
        steps.append(Step(candidate, {"objective": trial.objective, "lower": lower}))
        planes.append((_share_of_box(trial.u, C), float(y @ trial.u), trial.v))
        falls = best is None or trial.objective < best.objective
        if best is not None:  # Armijo's rule; along an ascent direction nothing is promised
            promised = max(float(best.gradient @ (best.d - trial.d)), 0.0)
            falls = falls and trial.objective <= best.objective - 1e-4 * promised
        length = _spectral_length(best, trial) if falls else 0.25 * length
        best = trial if best is None or falls else best
        # Relative to T: prices may leave all weights at zero, where the kernels have no part in T. Weights outside the
        # set prove nothing.
        gap = relative_gap(best.objective, lower, best.objective) if best.violation <= _FEASIBLE else np.inf
        pair = best.d, best.u[:, None], best.objective
        outcome = Outcome(Status.ITERATIONS, *pair, lower, gap, np.array([best.bias]), steps)
        watch.note(f"{title}{progress.error_text(outcome.gap)}")
        if outcome.gap <= tol:
            return replace(outcome, status=Status.CERTIFIED)
        previous = candidate
        second = best.curvature if newton and best.curvature is not None else np.eye(n_kernels) / length
        model = _Model(best.d, best.objective, best.gradient, second, planes if newton else [])
        refused = newton and not falls
        candidate, violation = yield Task("restricted-master", _next_weights, (weights, model, lowest, refused))
        if _same(candidate, best.d) or _same(candidate, previous):
            # No new weights to evaluate, and no proof yet: only the SVM's own gap is left to reduce.
            accuracy *= 0.1
            if accuracy < 1e-4 * tol:
                return replace(outcome, status=Status.STALLED)
    return outcome


# --- the polyhedron ----------------------------------------------------------------------------------------------


def _minimum(program: ConicProgram, linear: Float) -> tuple[Float, Float] | None:
    """The minimizer of a function of the first variables of a program, and the multipliers; None without a solution."""
    try:
        return program.minimize(linear)
    except ConicError:
        return None


def _conflict(A: Float, b: Float) -> Float | None:
    """Multipliers p ≥ 0 with Aᵀp ≤ 0 and bᵀp > 0 (Farkas), which prove that no d ≥ 0 has A d ≥ b; None if one has.

    The rows with p > 0 are an irreducible set: without any one of them, the others agree.
    """

    def contradiction(rows: Index) -> Float | None:
        """The multipliers of a contradiction among some rows."""
        if not (b[rows] > 0).any():
            return None  # d = 0 satisfies all rows
        # b of size one, since the solver's tolerances are absolute. bᵀp is fixed to one: the multipliers of a
        # contradiction may be scaled.
        demands, zeros = b[rows] / np.abs(b[rows]).max(), np.zeros(A.shape[1])
        result = linprog(np.ones(len(rows)), A[rows].T, zeros, demands[None], [1.0], method="highs-ds")
        if result.status != 0:
            return None
        p = np.zeros(len(b))
        p[rows] = result.x
        return p

    p = contradiction(np.arange(len(b)))
    if p is None:
        return None
    # A vertex of the set of contradictions uses few rows. Each of these is dropped if the others contradict each other
    # without it (the deletion filter of Chinneck and Dravnieks, ORSA Journal on Computing 3, 1991).
    for k in np.flatnonzero(p > 0):
        others = np.flatnonzero(p > 0)
        fewer = contradiction(others[others != k])
        p = p if fewer is None else fewer
    return p


def largest_sum(weights: PricedSet, objective: float) -> float:
    """An upper bound of Σd over all d of the set with σᵀd ≤ T; the optimum is among them, since W ≥ 0."""
    n, unit = len(weights.sigma), abs(objective) / (float(np.abs(weights.sigma).max()) or 1.0) or 1.0
    program = weights.program(unit)
    size = abs(objective) or 1.0
    program.at_most(weights.sigma[None] * unit / size, objective / size)
    solution = _minimum(program, -np.ones(n))
    if solution is None:
        return np.inf
    x, z = solution
    # The dual value is at least the maximum up to the solver's tolerance, for which one percent is ample.
    return 1.01 * unit * max(float(x[:n].sum()), program.dual(z))


def least_cost(weights: PricedSet, costs: Float, widest: float) -> float:
    """A lower bound of costsᵀd over all d of the set with Σd ≤ widest; −∞ if the program has no solution."""
    n, size = len(costs), float(np.abs(costs).max()) or 1.0
    program = weights.program(widest)
    program.at_most(np.ones((1, n)), 1.0)
    try:
        return -size * widest * program.highest(costs / size)
    except ConicError:
        return -np.inf


# Largest violation of the constraints, relative to their size, with which weights can be certified.
_FEASIBLE = 1e-7
# Powers of √2; t = 1 is among them exactly.
_SCALES = 2.0 ** np.arange(-4.0, 4.5, 0.5)


@dataclass(frozen=True)
class _Trial:
    """Weights that were evaluated, with the values of T and its model there."""

    d: Float
    violation: float
    u: Float
    bias: float
    objective: float
    gradient: Float
    v: Float
    curvature: Float | None


def _evaluate(
    y: Float, C: Bounds, sigma: Float, d: Float, violation: float, tol: float, near: _Trial | None, facts: KernelFacts
) -> Generator[Any, Any, tuple[_Trial, Float]]:
    """Train the SVM for d, from the best u so far; returns the evaluation in float64, and the products K_ju (n, m)."""
    answer = yield SVM(d, y, C, tol, None if near is None else near.u)
    u = np.asarray(answer.u, dtype=np.float64)
    products = (yield EachProduct(u[:, None]))[:, :, 0]
    v = products @ u
    check_forms(v, facts, float(u @ u))
    # The primal for the bias of the SVM: any bias gives an upper bound of T(d).
    objective = float(sigma @ d) + 0.5 * float(d @ v) + hinge(d @ products, answer.bias, y, C)
    second = yield Task("curvature", curvature, answer.of_free(products))
    return _Trial(d, violation, u, float(answer.bias), objective, sigma - 0.5 * v, v, second), products


def _share_of_box(u: Float, C: Bounds) -> float:
    """The largest α/C, by which u may be divided; one for u = 0."""
    return float(np.max(np.abs(u) / C)) or 1.0


_Plane = tuple[float, float, Float]
"""Linear functions below T from the u of an SVM: the largest α/C, Σα, and uᵀK_ju, (n,)."""


class _Model(NamedTuple):
    """A model of T: the maximum of a quadratic function around d and of linear ones."""

    d: Float
    objective: float
    gradient: Float
    curvature: Float
    planes: list[_Plane]


def _next_weights(weights: PricedSet, model: _Model, lowest: Float | None, refused: bool) -> tuple[Float, float]:
    """The next weights and their violation, as `_project` returns them.

    They minimize the model. If they are no step, or the last step was `refused`, they are the weights `lowest` at which
    the lower bound is attained, if there are any.
    """
    if lowest is not None and refused:
        return _project(weights, lowest)
    try:
        d = _master(weights, model)
    except ConicError:
        d = model.d
    stuck = _same(d, model.d) or not d.any()
    return _project(weights, lowest if lowest is not None and stuck else d)


def _size(weights: PricedSet, d: Float) -> float:
    """A unit for d: its largest entry, or the smallest value that the rows require."""
    return max(float(d.max()), float(weights.b.max(initial=0.0))) or 1.0


def _same(d: Float, other: Float) -> bool:
    return float(np.abs(d - other).max()) <= 1e-8 * float(other.max())


def _master(weights: PricedSet, at: _Model) -> Float:
    """The minimizer over the polyhedron of the maximum of the quadratic model and the cutting planes."""
    n, curvature = len(at.d), at.curvature
    unit, size = _size(weights, at.d), abs(at.objective) or 1.0
    # The model ½(d − d₀)ᵀC(d − d₀) = ½‖root (d − d₀)‖² enters as a cone; directions of no curvature are left out.
    values, vectors = np.linalg.eigh(0.5 * (curvature + curvature.T) * (unit * unit / size))
    root = np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T
    root = root[values > 1e-14 * max(float(values.max()), 1e-300)]
    # Variables (d/unit, θ/size), in units of d and T.
    program = weights.program(unit, n_more=1)
    wide = np.append(-at.gradient * unit / size, 1.0)
    root = np.pad(root, ((0, 0), (0, 1)))
    constant = float(at.gradient @ at.d) / size - at.objective / size
    # The quadratic model bounds θ from below as well: ½‖root (d − d₀)‖² ≤ θ − T(d₀) − gradientᵀ(d − d₀).
    program.bounded_square(root, root[:, :n] @ at.d / unit, wide, constant)
    for share, total, v in at.planes:
        # For tu the dual objective is tΣα − ½t²Σ_j d_j uᵀK_ju, a lower bound of W(d) for every d as long as tu is in
        # the box, so that it bounds θ from below. The multiples describe a common change of all weights, which the
        # first guess of their size needs.
        t = _SCALES[_SCALES * share <= 1.0]
        gradients = weights.sigma - 0.5 * (t * t)[:, None] * v
        rows = np.hstack([gradients * unit / size, -np.ones((len(t), 1))])
        program.at_most(rows, -t * total / size)
    d = program.minimize(np.eye(program.width)[n])[0][:n]
    return without_rounding(d) * unit


def _spectral_length(old: _Trial | None, new: _Trial) -> float:
    """The length of the next gradient step, from the change of the gradient over the last (Barzilai and Borwein)."""
    if old is None:
        return 0.1 * float(np.linalg.norm(new.d)) / max(float(np.linalg.norm(new.gradient)), 1e-300)
    # sᵀs/sᵀy estimates the inverse curvature along the last step; a flat or concave change is limited to a large
    # length.
    s, y = new.d - old.d, new.gradient - old.gradient
    return float(s @ s / max(s @ y, 1e-12 * (s @ s)))


def _project(weights: PricedSet, d: Float) -> tuple[Float, float]:
    """The nearest point of the set, and its violation of the constraints, relative to their size.

    Without other constraints, weights that satisfy all rows are returned unchanged to the last bit. The violation is
    infinite if the program has no solution.
    """
    if weights.cones is None and d.min() >= 0.0 and _row_violation(weights, d) <= 0.0:
        return d, 0.0
    unit = _size(weights, d)
    program = weights.program(unit)
    try:
        near = without_rounding(program.nearest(d / unit)[: len(d)]) * unit
    except ConicError:
        return d, np.inf
    return near, max(_row_violation(weights, near), 0.0 if weights.cones is None else program.violation)


def _row_violation(weights: PricedSet, d: Float) -> float:
    """The largest b − A d of rows of length one, relative to the size of d and b."""
    return float((weights.b - weights.A @ d).max(initial=0.0)) / _size(weights, d)


# --- bounds over the hull ---------------------------------------------------------------------------------------------

# Largest number of SVMs that are kept; mixtures use few.
_MOST = 40


class _Hull:
    """The SVMs of one problem so far: U (m, r), the forms V_j = UᵀK_jU, (n, r, r), and the largest α/C of each."""

    def __init__(self, y: Float, C: Bounds, weights: PricedSet) -> None:
        self._y, self._C, self._weights = y, C, weights
        self._U: Float = np.zeros((len(y), 0))
        self._V: Float = np.zeros((len(weights.sigma), 0, 0))
        self._share: Float = np.zeros(0)
        self._mixture: Float = np.zeros(0)

    def add(self, u: Float, products: Float) -> None:
        """Add an SVM: u (m,) and K_ju (n, m)."""
        if len(self._mixture) == _MOST:
            # The SVM with the smallest part in the last mixture is dropped; new ones count as infinite until then.
            kept = np.delete(np.arange(_MOST), np.argmin(self._mixture))
            self._U, self._V = self._U[:, kept], self._V[np.ix_(np.arange(len(self._V)), kept, kept)]
            self._share, self._mixture = self._share[kept], self._mixture[kept]
        self._U = np.column_stack([self._U, u])
        # One row and one column are added to each V_j: the products K_ju with all u so far are known.
        across = products @ self._U
        V = np.concatenate([self._V, across[:, None, :-1]], axis=1)
        self._V = np.concatenate([V, across[:, :, None]], axis=2)
        self._share = np.append(self._share, _share_of_box(u, self._C))
        self._mixture = np.append(self._mixture, np.inf)

    def bound(self, widest: float, objective: float) -> Generator[Task, Any, tuple[float, Float | None, float]]:
        """A lower bound of T*, the weights that minimize the lower model of T, (n,), and a bound of Σd at the optimum.

        `widest` is the last such bound, infinite at first, and `objective` bounds T*. See `_lower_bound`.
        """
        # The optimum has σᵀd ≤ T(d') for every d' evaluated, so one finite bound of Σd serves all further steps.
        if not np.isfinite(widest):
            widest = yield Task("restricted-master", largest_sum, (self._weights, objective))
        given = self._weights, self._V, self._y @ self._U, self._share, widest
        lower, d, mixture = yield Task("restricted-master", _lower_bound, given)
        self._mixture = self._mixture if mixture is None else mixture
        return lower, d, widest


def _lower_bound(
    weights: PricedSet, V: Float, totals: Float, share: Float, widest: float
) -> tuple[float, Float | None, Float | None]:
    """A lower bound of T*, the weights that minimize the lower model of T, (n,), and the mixture λ of SVMs, (r,).

    `totals` are the Σα of the SVMs, and `widest` bounds Σd at the optimum: if the solver's tolerance leaves violations
    of up to e in the constraints, e·widest is subtracted from the bound. −∞, None and None if the program has no
    solution.
    """
    sigma, rows, demands, cones = weights.sigma, weights.A, weights.b, weights.cones
    n, r, k = len(sigma), len(share), len(demands)
    size = float(np.abs(totals).max()) or 1.0
    # Variables (λ, p/scale), in units that make constraints and objective of size one. p balances the gradient
    # σ_j − ½uᵀK_ju, which may be much larger than the prices.
    units = np.maximum(np.einsum("nrr->nr", V).max(axis=1), np.abs(sigma))
    units = np.where(units > 0, units, 1.0)
    scale = float(units.max())
    # The multipliers z ∈ K* of cones b − Gx ∈ K, x = (d, …), are the last variables: Gᵀz is added to σ as Aᵀp is,
    # and is zero in the other columns.
    extra = 0 if cones is None else len(cones.b)
    program = ConicProgram(r + k + extra)
    program.at_most(-np.eye(r + k), np.zeros(r + k))
    program.at_most(share[None], 1.0)
    # ½λᵀV_jλ = ½‖root λ‖² enters as a second-order cone; directions of no curvature are left out of the root.
    values, vectors = np.linalg.eigh(V / units[:, None, None])
    first, heads = r + k + 1, []
    G = np.zeros((0, n)) if cones is None else cones.matrix()
    linear = np.append(totals, demands * scale)
    for j in range(n):
        chosen = values[j] > 1e-14 * max(float(values[j, -1]), 1e-300)
        root = np.sqrt(values[j, chosen])[:, None] * vectors[j][:, chosen].T
        root = np.pad(root, ((0, 0), (0, k + extra)))
        row = np.concatenate([np.zeros(r), np.append(-rows[:, j], G[:, j]) * scale / units[j]])
        program.bounded_square(root, np.zeros(len(root)), row, float(sigma[j] / units[j]))
        heads.append(first)
        first += len(root) + 2
    if cones is not None:
        other = np.pad(G[:, n:].T, ((0, 0), (r + k, 0)))
        if len(other):
            program.add(other, np.zeros(len(other)), clarabel.ZeroConeT(len(other)))
        cones.demand_dual(program, r + k)
        linear = np.append(linear, -cones.b * scale)
    solution = _minimum(program, -linear / size)
    if solution is None:
        return -np.inf, None, None
    x, multipliers = solution
    mixture, p = np.maximum(x[:r], 0.0), np.maximum(x[r : r + k], 0.0) * scale
    # The bound is computed from λ and p, not taken from the solver: their simple constraints are made to hold
    # exactly, and the excess of the others is subtracted.
    mixture = mixture / max(1.0, float(share @ mixture))
    forms = np.einsum("r,nrs,s->n", mixture, V, mixture)
    if cones is None:
        # For any d of the set, aᵀλ + bᵀp ≤ σᵀd + W(d) + excess·Σd.
        excess = max(float(np.max(0.5 * forms + rows.T @ p - sigma)), 0.0)
        lower = float(totals @ mixture + demands @ p) - (excess * widest if excess else 0.0)
    elif np.isfinite(widest):
        lower = float(totals @ mixture) + least_cost(weights, sigma - 0.5 * forms, widest)
    else:
        lower = -np.inf
    # σ_j is in the first two rows of its cone, so its shadow price is the sum of their multipliers.
    d = (multipliers[heads] + multipliers[np.add(heads, 1)]) * size / units
    return lower, without_rounding(d), mixture
