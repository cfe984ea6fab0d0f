"""Generalized MKL: a C-SVM on K(d) = Σ_j d_j K_j whose weights pay for themselves and obey linear constraints.

Varma and Ray, ICCV 2007, method page. With σ (n,) the price of each kernel, and k rows A d ≥ b of what is known before,

    min over d ≥ 0, A d ≥ b of  T(d) = σᵀd + W(d),
    W(d) = max over 0 ≤ α ≤ C, αᵀy = 0 of  Σ_i α_i − ½ Σ_j d_j uᵀK_ju,   u = α∘y.

T is a maximum of functions that are linear in d, hence convex; where α is unique its gradient is σ_j − ½ uᵀK_ju. Its
Hessian comes from the support vectors between the bounds (see `dmkl.solvers.margin.mksvm`).

Lower bounds
------------
Weak duality: for every feasible u, and every t with 0 ≤ t·max α ≤ C, tu is feasible as well. With v_j = uᵀK_ju,

    T(d) ≥ t Σα + dᵀ(σ − ½t²v)   for all d ≥ 0.

Minimized over the polyhedron by linear programming duality, and maximized over t,

    T* ≥ max { t Σα + bᵀp :  p ≥ 0,  Aᵀp + ½t²v ≤ σ,  0 ≤ t ≤ C/max α },

a small conic program. For t = 1 the minimum can be −∞ (without rows: as soon as one v_j > 2σ_j). Some t > 0 has a
finite one if σᵀr > 0 for each direction r ≥ 0, Ar ≥ 0 in which the polyhedron is unbounded. This is asked for: else
T would fall without end along r, or have no minimizer. Without rows t² = min_j 2σ_j/v_j, and the bound is tΣα.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import clarabel
import numpy as np
import numpy.typing as npt
import scipy.linalg
import scipy.sparse as sp
from scipy.optimize import linprog

from dmkl import progress
from dmkl.errors import InputError
from dmkl.solvers.outcome import Outcome, Status, Step, check_slopes, relative_gap
from dmkl.solvers.requests import SVM, EachProduct

__all__ = ["ConicOptimum", "GeneralizedProblem", "Method", "conic_optimum", "gmkl"]

Float = npt.NDArray[np.float64]
Method = Literal["newton", "gradient"]


@dataclass(frozen=True)
class GeneralizedProblem:
    """One binary problem, checked when it is made.

    Parameters
    ----------
    y
        (m,), 1 and −1.
    C
        The price of a unit of hinge loss.
    sigma
        (n,), the price of a unit of weight for each kernel.
    A, b
        (k, n) and (k,): the rows of A d ≥ b; an upper bound d_j ≤ c is the row −d_j ≥ −c. No rows where missing.
    rows
        Names of the rows, for messages.
    name
        What this problem is called in reports.

    Raises
    ------
    InputError
        If shapes or values are wrong, if rows contradict each other (an irreducible set of them is named: without any
        one of them the others agree), or if weights could grow without end at no price (the kernels are named).
    """

    y: Float
    C: float
    sigma: Float
    A: Float = field(default_factory=lambda: np.zeros((0, 0)))
    b: Float = field(default_factory=lambda: np.zeros(0))
    rows: tuple[str, ...] = ()
    name: str = ""

    def __post_init__(self) -> None:
        y, sigma = np.asarray(self.y, dtype=np.float64), np.asarray(self.sigma, dtype=np.float64)
        if y.ndim != 1 or not np.isin(y, (-1.0, 1.0)).all() or len(np.unique(y)) != 2:
            msg = f"y holds {np.unique(y)[:5]} in shape {y.shape}, expected a vector of 1 and −1 with both in it"
            raise InputError(msg)
        if not (np.isfinite(self.C) and self.C > 0):
            msg = f"C must be a positive number, got {self.C!r}"
            raise InputError(msg)
        if sigma.ndim != 1 or len(sigma) == 0 or not np.isfinite(sigma).all():
            msg = (
                f"sigma must hold a finite price for each kernel (got shape {sigma.shape}); select() leaves kernels out"
            )
            raise InputError(msg)
        n = len(sigma)
        A, b = np.asarray(self.A, dtype=np.float64), np.asarray(self.b, dtype=np.float64)
        A = A.reshape(0, n) if A.size == 0 else A
        if (
            A.ndim != 2
            or A.shape[1] != n
            or b.shape != (len(A),)
            or not (np.isfinite(A).all() and np.isfinite(b).all())
        ):
            msg = f"A has shape {A.shape} and b {b.shape}, expected finite numbers in (k, {n}) and (k,): A d ≥ b"
            raise InputError(msg)
        if self.rows and len(self.rows) != len(b):
            msg = f"rows holds {len(self.rows)} names, expected one for each of the {len(b)} rows of A"
            raise InputError(msg)
        for key, value in (("y", y), ("sigma", sigma), ("A", A), ("b", b)):
            object.__setattr__(self, key, value)
        if conflict := _conflict(A, b):
            named = ", ".join(f"{self.rows[k] if self.rows else f'row {k}'} (times {p:.3g})" for k, p in conflict)
            msg = (
                f"no weights d ≥ 0 satisfy all rows of A d ≥ b, for these contradict each other: {named}; added up "
                "with these factors they ask d ≥ 0 for what it cannot do. Drop or loosen one, and the others agree"
            )
            raise InputError(msg)
        if (free := _free_direction(sigma, A)) is not None:
            named = ", ".join(str(j) for j in np.flatnonzero(free > 1e-9)[:10])
            msg = (
                f"the weights of kernels {named} may grow together without end and without a price (sigma times that "
                f"direction is {sigma @ free:.3g}, expected more than zero), so there are no best weights: give them a "
                "sigma > 0, or bound them by a row such as −d_j ≥ −c"
            )
            raise InputError(msg)


# --- the polyhedron ----------------------------------------------------------------------------------------------


def _conflict(A: Float, b: Float) -> list[tuple[int, float]]:
    """An irreducible set of rows that no d ≥ 0 satisfies, with Farkas' multipliers; empty where there is none."""
    p = _contradiction(A, b)
    if p is None:
        return []
    # A vertex of all contradictions leaves few rows; of these each is left out that the contradiction can do without
    # (the deletion filter of Chinneck and Dravnieks, ORSA Journal on Computing 3, 1991).
    kept = np.flatnonzero(p > 0)
    for k in kept.copy():
        rest = kept[kept != k]
        if _contradiction(A[rest], b[rest]) is not None:
            kept = rest
    p = _contradiction(A[kept], b[kept])
    assert p is not None
    return [(int(k), float(size)) for k, size in zip(kept, p / p.max(), strict=True)]


def _contradiction(A: Float, b: Float) -> Float | None:
    """Multipliers p ≥ 0 with Aᵀp ≤ 0 and bᵀp > 0, a proof that no d ≥ 0 has A d ≥ b; None where there are none."""
    if not (b > 0).any():
        return None  # d = 0 will do
    # Rows of length one and b of size one: the solver's tolerances are absolute.
    size = _heights(A)
    rows, demands = A / size[:, None], b / size
    demands = demands / np.abs(demands).max()
    found = linprog(
        np.ones(len(b)), A_ub=rows.T, b_ub=np.zeros(A.shape[1]), A_eq=demands[None], b_eq=[1.0], method="highs-ds"
    )
    return np.asarray(found.x) / size if found.status == 0 else None


def _free_direction(sigma: Float, A: Float) -> Float | None:
    """A direction r ≥ 0 with Ar ≥ 0, Σr = 1 and σᵀr ≤ 0, if there is one."""
    n = len(sigma)
    found = linprog(sigma, A_ub=-A, b_ub=np.zeros(len(A)), A_eq=np.ones((1, n)), b_eq=[1.0], method="highs")
    if found.status != 0 or found.fun > 1e-12 * np.abs(sigma).max():
        return None
    return np.asarray(found.x)


def _largest_sum(problem: GeneralizedProblem, objective: float) -> float:
    """A bound of Σd for all d of the polyhedron with σᵀd ≤ T, among them the optimum, since W ≥ 0."""
    rows = np.vstack([-problem.A, problem.sigma[None]])
    found = linprog(-np.ones(len(problem.sigma)), A_ub=rows, b_ub=np.append(-problem.b, objective), method="highs")
    return float(np.asarray(found.x).sum()) if found.status == 0 else np.inf


class _Cone:
    """Rows of Clarabel's A x + s = b, s in a product of cones."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.b: list[Float] = []
        self.cones: list[Any] = []

    def add(self, rows: Any, b: npt.ArrayLike, cone: Any) -> None:
        """Demand that b − rows x lie in the cone."""
        self.rows.append(sp.csc_array(rows))
        self.b.append(np.atleast_1d(np.asarray(b, dtype=np.float64)))
        self.cones.append(cone)

    def nonnegative(self, rows: Any, b: npt.ArrayLike) -> None:
        """Demand rows x ≤ b."""
        rows = np.atleast_2d(rows)
        if len(rows):
            self.add(rows, b, clarabel.NonnegativeConeT(len(rows)))

    def bounded_square(self, root: Float, shift: Float, row: Float, constant: float) -> None:
        """Demand ½‖root x − shift‖² ≤ row x + constant: (s + ½, s − ½, z) in the Lorentz cone is ‖z‖² ≤ 2s."""
        b = np.concatenate([[constant + 0.5, constant - 0.5], -shift])
        self.add(np.vstack([-row, -row, -root]), b, clarabel.SecondOrderConeT(len(b)))

    def minimize(self, linear: Float) -> tuple[Float, Float] | None:
        """The minimizer of qᵀx and the multipliers of the rows; None where Clarabel finds none."""
        options = clarabel.DefaultSettings()
        options.verbose = False
        options.max_iter = 200
        options.tol_gap_abs = options.tol_gap_rel = options.tol_feas = 1e-10
        nothing = sp.csc_matrix((len(linear), len(linear)))
        rows = sp.csc_matrix(sp.vstack(self.rows, format="csc"))
        solution = clarabel.DefaultSolver(nothing, linear, rows, np.concatenate(self.b), self.cones, options).solve()
        x = np.asarray(solution.x, dtype=np.float64)
        # Any other status is good enough whose point is usable: what comes of it is certified by the full problem.
        if not np.isfinite(x).all() or "Infeasible" in str(solution.status) or str(solution.status) == "Unsolved":
            return None
        return x, np.asarray(solution.z, dtype=np.float64)


# --- the certificate ---------------------------------------------------------------------------------------------


def _lower_bound(problem: GeneralizedProblem, point: _Point, widest: float) -> float:
    """The bound max { tΣα + bᵀp : p ≥ 0, Aᵀp + ½t²v ≤ σ, 0 ≤ t ≤ C/max α }, safe against the solver's tolerance.

    Parameters
    ----------
    point
        u and uᵀK_ju.
    widest
        A bound of Σd at the optimum: where the constraint is violated by at most e, the bound is off by at most
        e·widest.
    """
    A, b, sigma = problem.A, problem.b, problem.sigma
    v, k, most = np.maximum(point.v, 0.0), len(b), point.most(problem)
    # Variables (p, t, s), s ≥ t².
    cone = _Cone()
    cone.nonnegative(np.hstack([A.T, np.zeros((len(v), 1)), 0.5 * v[:, None]]), sigma)
    cone.nonnegative(np.hstack([-np.eye(k), np.zeros((k, 2))]), np.zeros(k))
    cone.nonnegative(np.array([[0.0] * k + [1.0, 0.0], [0.0] * k + [-1.0, 0.0]]), [most, 0.0])
    last = np.eye(k + 2)
    cone.bounded_square(last[k : k + 1], np.zeros(1), 0.5 * last[k + 1], 0.0)
    found = cone.minimize(-np.concatenate([b, [point.total, 0.0]]))
    if found is None:
        return -np.inf
    p, t = np.maximum(found[0][:k], 0.0), float(np.clip(found[0][k], 0.0, most))
    excess = max(float(np.max(A.T @ p + 0.5 * t * t * v - sigma)), 0.0)
    return t * point.total + float(b @ p) - (excess * widest if excess else 0.0)


# --- the weights -------------------------------------------------------------------------------------------------

# t = 1 among them, exactly.
_SCALES = 2.0 ** np.arange(-4.0, 4.5, 0.5)


@dataclass(frozen=True)
class _Point:
    """One weighting and all that is known there."""

    d: Float
    u: Float
    bias: float
    objective: float
    gradient: Float
    total: float
    v: Float
    curvature: Float | None

    def promised(self, d: Float) -> float:
        """By how much T falls on the way to d, to first order; never less than zero."""
        return max(float(self.gradient @ (self.d - d)), 0.0)

    def most(self, problem: GeneralizedProblem) -> float:
        """The largest t for which tu is feasible."""
        return problem.C / (float(np.abs(self.u).max()) or problem.C)

    def cuts(self, problem: GeneralizedProblem) -> tuple[Float, Float]:
        """Linear functions below T, from u and its multiples: constants (r,) and slopes (r, n).

        The multiples say what a change of all weights alike would do, which a first guess of their size needs.
        """
        t = _SCALES[self.most(problem) >= _SCALES]
        return t * self.total, problem.sigma - 0.5 * (t * t)[:, None] * self.v


def _heights(A: Float) -> Float:
    """The rows' lengths, (k,); one for a row of zeros."""
    size = np.linalg.norm(A, axis=1)
    return np.where(size > 0, size, 1.0)


def _size(problem: GeneralizedProblem, d: Float) -> float:
    """A unit for d: its largest entry, or what the rows demand at least."""
    return max(float(d.max()), float((problem.b / _heights(problem.A)).max(initial=0.0))) or 1.0


def _master(problem: GeneralizedProblem, at: _Point, curvature: Float, cuts: list[tuple[Float, Float]]) -> Float | None:
    """The minimizer over the polyhedron of the larger of the quadratic model and the cuts, in units of d and T."""
    n = len(at.d)
    unit, size = _size(problem, at.d), abs(at.objective) or 1.0
    values, vectors = np.linalg.eigh(0.5 * (curvature + curvature.T) * (unit * unit / size))
    root = np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T
    root = root[values > 1e-14 * max(float(values.max()), 1e-300)]
    # Variables (d/unit, θ/size).
    cone = _Cone()
    wide = np.zeros(n + 1)
    wide[:n], wide[n] = -at.gradient * unit / size, 1.0
    cone.nonnegative(np.hstack([-np.eye(n), np.zeros((n, 1))]), np.zeros(n))
    if len(problem.b):
        height = _heights(problem.A)
        rows = np.hstack([-problem.A / height[:, None], np.zeros((len(height), 1))])
        cone.nonnegative(rows, -problem.b / height / unit)
    root = np.hstack([root, np.zeros((len(root), 1))])
    constant = float(at.gradient @ at.d) / size - at.objective / size
    cone.bounded_square(root, root[:, :n] @ at.d / unit, wide, constant)
    for constants, slopes in cuts:
        cone.nonnegative(np.hstack([slopes * unit / size, -np.ones((len(slopes), 1))]), -constants / size)
    found = cone.minimize(np.eye(n + 1)[n])
    if found is None:
        return None
    d = found[0][:n]
    # What an interior point leaves of weights that are zero is made zero.
    return np.where(d > 1e-9 * float(d.max(initial=0.0)), d, 0.0) * unit


def gmkl(
    problem: GeneralizedProblem,
    n_kernels: int,
    *,
    method: Method = "newton",
    tol: float = 1e-3,
    max_iter: int = 100,
    names: tuple[str, ...] = (),
    start: Float | None = None,
) -> Generator[SVM | EachProduct, Any, Outcome]:
    """Solve one problem; yields `SVM` and `EachProduct`, two passes a weighting, and returns an `Outcome`.

    Parameters
    ----------
    problem
        Labels, prices and constraints.
    n_kernels
        n
    method
        "newton": the quadratic model of T from the curvature of the SVM (or from a spectral step where the answer to
        `SVM` has none), floored by every cutting plane so far, is minimized over the polyhedron; a step that fails
        adds its cutting plane and with it corrects the next. "gradient": Varma and Ray's projected gradient under
        Armijo's rule, with spectral first lengths (Birgin, Martínez and Raydan, SIAM Journal on Optimization 10,
        2000); on hard cases it stays open after a hundred weightings where Newton takes ten.
    tol
        The relative gap to prove.
    max_iter
        Most weightings tried, at least one.
    names
        The kernels' names, for messages.
    start
        d to begin with, (n,), moved to the nearest point of the polyhedron; 1/n each where missing.

    Raises
    ------
    InputError
        If n_kernels is not the number of prices, or `start` does not fit.
    IndefiniteKernelError
        If a quadratic form uᵀK_ju comes out negative.

    Notes
    -----
    `objective` is the primal objective of (d, u, bias), σᵀd + ½ Σ_j d_j uᵀK_ju + C Σ max(0, 1 − y_i f(x_i)), from the
    products K_ju in float64: T(d) is at most that, and the optimum is at least `bound`.

    The weights satisfy the rows of A to the interior-point solver's tolerance, some 1e-9 of their size.
    """
    if n_kernels != len(problem.sigma):
        msg = f"sigma holds {len(problem.sigma)} prices for {n_kernels} kernels, expected one for each"
        raise InputError(msg)
    first = np.full(n_kernels, 1.0 / n_kernels) if start is None else np.asarray(start, dtype=np.float64)
    if first.shape != (n_kernels,) or not np.isfinite(first).all():
        msg = f"start has shape {first.shape}, expected {n_kernels} finite weights"
        raise InputError(msg)
    watch = progress.current()
    steps: list[Step] = []
    cuts: list[tuple[Float, Float]] = []
    candidate = _project(problem, first)
    best: _Point | None = None
    lower, widest, accuracy = -np.inf, np.inf, 0.1 * tol
    length = 0.0

    def ended(status: Status) -> Outcome:
        assert best is not None
        gap = relative_gap(best.objective - lower, best.objective)
        return Outcome(status, best.d, best.u[:, None], best.objective, lower, gap, np.array([best.bias]), steps)

    for _ in range(max_iter):
        point = yield from _evaluate(problem, candidate, accuracy, best, names)
        widest = widest if np.isfinite(widest) else _largest_sum(problem, point.objective)
        lower = max(lower, _lower_bound(problem, point, widest))
        steps.append(Step(candidate, {"objective": point.objective, "lower": lower}))
        cuts.append(point.cuts(problem))
        if best is None or point.objective < best.objective - 1e-4 * best.promised(point.d):
            length = _spectral_length(best, point)
            best = point
        else:
            length = 0.25 * length
        gap = relative_gap(best.objective - lower, best.objective)
        watch.note(f"{problem.name}weighting {len(steps)}: gap {gap:.2e}, aim {tol:.0e}")
        if gap <= tol:
            return ended(Status.CERTIFIED)
        curvature = best.curvature if method == "newton" else None
        curvature = np.eye(n_kernels) / length if curvature is None else curvature
        found = _master(problem, best, curvature, cuts if method == "newton" else [])
        if found is None:
            return ended(Status.STALLED)
        # At d = 0 any α that maximizes Σα will do, and most certify nothing; the one next to zero does.
        candidate = found if found.any() else 1e-6 * best.d
        if np.abs(candidate - best.d).max() <= 1e-8 * best.d.max():
            # Nothing better in sight, and not proven: the SVM's own gap is what is left.
            accuracy *= 0.1
            if accuracy < 1e-4 * tol:
                return ended(Status.STALLED)
    return ended(Status.ITERATIONS)


def _spectral_length(old: _Point | None, new: _Point) -> float:
    """The length of the next gradient step, from the change of the gradient over the last (Barzilai and Borwein)."""
    if old is None:
        return 0.1 * float(np.linalg.norm(new.d)) / max(float(np.linalg.norm(new.gradient)), 1e-300)
    s, y = new.d - old.d, new.gradient - old.gradient
    return float(s @ s / max(s @ y, 1e-12 * (s @ s)))


def _project(problem: GeneralizedProblem, d: Float) -> Float:
    """The nearest point of the polyhedron."""
    zero, size = np.zeros_like(d), _size(problem, d)
    at = _Point(d, zero, 0.0, size * size, zero, 0.0, zero, None)  # a constant of the size that the squares have
    found = _master(problem, at, np.eye(len(d)), [])
    assert found is not None
    return found


def _evaluate(
    problem: GeneralizedProblem, d: Float, tol: float, near: _Point | None, names: tuple[str, ...]
) -> Generator[Any, Any, _Point]:
    answer = yield SVM(d, problem.y, problem.C, tol, None if near is None else near.u)
    u = np.asarray(answer.u, dtype=np.float64)
    products = (yield EachProduct(u[:, None]))[:, :, 0]
    v = products @ u
    check_slopes(v, names)
    hinge = float(np.maximum(1.0 - problem.y * (d @ products + answer.bias), 0.0).sum())
    objective = float(problem.sigma @ d) + 0.5 * float(d @ v) + problem.C * hinge
    curvature = answer.curvature(products) if hasattr(answer, "curvature") else None
    return _Point(d, u, float(answer.bias), objective, problem.sigma - 0.5 * v, float(problem.y @ u), v, curvature)


# --- the exact dual ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ConicOptimum:
    """The optimum of a small problem: its value T*, d (n,), u (m,) and the bias."""

    value: float
    weights: Float
    u: Float
    bias: float


def conic_optimum(kernels: Sequence[npt.ArrayLike], problem: GeneralizedProblem) -> ConicOptimum:
    """Solve the dual of Varma and Ray as it stands, a second-order cone program, by an interior-point method.

        max Σα + bᵀp   over   0 ≤ α ≤ C,  αᵀy = 0,  p ≥ 0,   ½ uᵀK_ju + (Aᵀp)_j ≤ σ_j  for all j,   u = α∘y

    The multipliers of the last constraints are the weights. For small sets: it factors each kernel, K_j = L_jL_jᵀ,
    holds all of the factors, up to n m² numbers, and its time grows as n m³.

    Parameters
    ----------
    kernels
        n matrices (m, m), positive semidefinite; eigenvalues below 1e-12 of the largest are left out.
    problem
        Labels, prices and constraints.

    Raises
    ------
    InputError
        If the kernels do not fit the problem, or the solver finds no optimum.
    """
    m, n, k = len(problem.y), len(problem.sigma), len(problem.b)
    shapes = {np.shape(K) for K in kernels}
    if len(kernels) != n or shapes != {(m, m)}:
        msg = (
            f"got {len(kernels)} kernels of shapes {sorted(shapes)}, expected {n} of ({m}, {m}), as sigma and y have it"
        )
        raise InputError(msg)
    cone = _Cone()
    none = np.zeros((m, k))
    cone.add(np.concatenate([np.ones(m), np.zeros(k)])[None], 0.0, clarabel.ZeroConeT(1))
    signs = np.diag(problem.y)
    cone.nonnegative(np.hstack([-signs, none]), np.zeros(m))
    cone.nonnegative(np.hstack([signs, none]), np.full(m, problem.C))
    cone.nonnegative(np.hstack([none.T, -np.eye(k)]), np.zeros(k))
    heads, first = [], 1 + 2 * m + k
    for j, K in enumerate(kernels):
        values, vectors = scipy.linalg.eigh(np.asarray(K, dtype=np.float64))
        kept = values > 1e-12 * values[-1]
        root = (np.sqrt(values[kept]) * vectors[:, kept]).T
        row = np.concatenate([np.zeros(m), -problem.A[:, j]])
        root = np.hstack([root, np.zeros((len(root), k))])
        cone.bounded_square(root, np.zeros(len(root)), row, float(problem.sigma[j]))
        heads.append(first)
        first += len(root) + 2
    found = cone.minimize(-np.concatenate([problem.y, problem.b]))
    if found is None:
        msg = "the conic dual ended without a solution: scale the kernels to unit trace, or use gmkl"
        raise InputError(msg)
    x, z = found
    u, p = x[:m], x[m:]
    # σ_j stands in the first two rows of its cone, so what a unit of it is worth, d_j, is the sum of their multipliers.
    weights = np.maximum(z[heads] + z[np.asarray(heads) + 1], 0.0)
    return ConicOptimum(float(problem.y @ u + problem.b @ p), weights, u, float(z[0]))
