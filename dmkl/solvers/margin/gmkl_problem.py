"""A problem of generalized MKL: labels, prices and linear constraints, and the check that it has a solution."""

from __future__ import annotations

from dataclasses import dataclass, field

import clarabel
import numpy as np
from scipy.optimize import linprog

from dmkl.arrays import Float
from dmkl.errors import refuse
from dmkl.solvers.margin.svm import Bounds
from dmkl.solvers.weight_sets.base import ConicError, ConicProgram
from dmkl.solvers.weight_sets.conic import Cones

__all__ = ["GeneralizedProblem", "largest_sum", "least_cost", "region", "row_lengths"]


@dataclass(frozen=True)
class GeneralizedProblem:
    """One binary problem; its values are checked on construction.

    Raises
    ------
    InputError
        If shapes or values are wrong, if rows contradict each other (the message names an irreducible set of them,
        which agrees without any one of them), or if weights could grow without bound for free (it names the kernels).
    """

    y: Float
    """(m,), 1 and −1."""
    C: Bounds
    """The price of a unit of hinge loss, or that of each sample, (m,)."""
    sigma: Float
    """(n,), the price of a unit of weight for each kernel."""
    A: Float = field(default_factory=lambda: np.zeros((0, 0)))
    b: Float = field(default_factory=lambda: np.zeros(0))
    """(k, n) and (k,): the rows of A d ≥ b; an upper bound d_j ≤ c is the row −d_j ≥ −c. The default is no rows."""
    rows: tuple[str, ...] = ()
    """Names of the rows, for messages."""
    name: str = ""
    """The name of the problem in reports."""
    cones: Cones | None = None
    """A convex set that must contain d, for prior knowledge that is not linear."""

    def __post_init__(self) -> None:
        y, sigma = np.asarray(self.y, dtype=np.float64), np.asarray(self.sigma, dtype=np.float64)
        if y.ndim != 1 or not np.isin(y, (-1.0, 1.0)).all() or len(np.unique(y)) != 2:
            refuse(f"y holds {np.unique(y)[:5]} in shape {y.shape}, expected a vector of 1 and −1 with both in it")
        if not (np.isfinite(self.C) & (np.asarray(self.C) > 0)).all() or np.shape(self.C) not in ((), y.shape):
            refuse(f"C must be a positive number, or one for each sample, got {self.C!r}")
        if sigma.ndim != 1 or len(sigma) == 0 or not np.isfinite(sigma).all():
            refuse(
                f"sigma must hold a finite price for each kernel (got shape {sigma.shape}); select() leaves kernels out"
            )
        n = len(sigma)
        A, b = np.asarray(self.A, dtype=np.float64), np.asarray(self.b, dtype=np.float64)
        A = A.reshape(0, n) if A.size == 0 else A
        if (
            A.ndim != 2
            or A.shape[1] != n
            or b.shape != (len(A),)
            or not (np.isfinite(A).all() and np.isfinite(b).all())
        ):
            refuse(f"A has shape {A.shape} and b {b.shape}, expected finite numbers in (k, {n}) and (k,): A d ≥ b")
        if self.rows and len(self.rows) != len(b):
            refuse(f"rows holds {len(self.rows)} names, expected one for each of the {len(b)} rows of A")
        for key, value in (("y", y), ("sigma", sigma), ("A", A), ("b", b)):
            object.__setattr__(self, key, value)
        if conflict := _conflict(A, b):
            named = ", ".join(f"{self.rows[k] if self.rows else f'row {k}'} (times {p:.3g})" for k, p in conflict)
            refuse(
                f"no weights d ≥ 0 satisfy all rows of A d ≥ b, for these contradict each other: {named}; added up "
                "with these factors they exclude every d ≥ 0. Drop or loosen one, and the others agree"
            )
        if self.cones is not None and not _agree(A, b, self.cones):
            refuse("no weights d ≥ 0 satisfy A d ≥ b and the constraints together; loosen one of either")
        if (free := _free_direction(sigma, A, self.cones)) is not None:
            named = ", ".join(str(j) for j in np.flatnonzero(free > 1e-9)[:10])
            refuse(
                f"the weights of kernels {named} may grow together without end and without a price (sigma times that "
                f"direction is {sigma @ free:.3g}, expected more than zero), so there are no best weights: give them a "
                "sigma > 0, or bound them by a row such as −d_j ≥ −c"
            )


# --- the polyhedron ----------------------------------------------------------------------------------------------


def row_lengths(A: Float) -> Float:
    """The lengths of the rows, (k,); one for a row of zeros."""
    # Divided by its length, a row measures the distance from its hyperplane, so that one tolerance serves all rows.
    size = np.linalg.norm(A, axis=1)
    return np.where(size > 0, size, 1.0)


def _conflict(A: Float, b: Float) -> list[tuple[int, float]]:
    """An irreducible set of rows that no d ≥ 0 satisfies, with Farkas' multipliers; empty if all rows agree."""
    p = _contradiction(A, b)
    if p is None:
        return []
    # A vertex of the set of contradictions uses few rows. Each of these is dropped if the others contradict each other
    # without it (the deletion filter of Chinneck and Dravnieks, ORSA Journal on Computing 3, 1991).
    kept = np.flatnonzero(p > 0)
    for k in kept.copy():
        rest = kept[kept != k]
        if _contradiction(A[rest], b[rest]) is not None:
            kept = rest
    p = _contradiction(A[kept], b[kept])
    assert p is not None
    return [(int(k), float(size)) for k, size in zip(kept, p / p.max(), strict=True)]


def _contradiction(A: Float, b: Float) -> Float | None:
    """Multipliers p ≥ 0 with Aᵀp ≤ 0 and bᵀp > 0, which prove that no d ≥ 0 has A d ≥ b; None if there are none."""
    if not (b > 0).any():
        return None  # d = 0 satisfies all rows
    # Rows of length one and b of size one, since the solver's tolerances are absolute. bᵀp is fixed to one: the
    # multipliers of a contradiction may be scaled.
    size = row_lengths(A)
    rows, demands = A / size[:, None], b / size
    demands = demands / np.abs(demands).max()
    result = linprog(
        np.ones(len(b)), A_ub=rows.T, b_ub=np.zeros(A.shape[1]), A_eq=demands[None], b_eq=[1.0], method="highs-ds"
    )
    return np.asarray(result.x) / size if result.status == 0 else None


def region(
    A: Float, b: Float, cones: Cones | None, unit: float = 1.0, *, n_more: int = 0, recession: bool = False
) -> ConicProgram:
    """A program over (d/unit, n_more more variables, those of the cones) with d ≥ 0, A d ≥ b and the cones.

    With `recession`, d is a direction in which this set is unbounded.
    """
    n, height = A.shape[1], row_lengths(A)
    width = n + n_more
    program = ConicProgram(width if cones is None else width + cones.width - cones.n)
    program.at_most((np.arange(n), np.arange(n), np.full(n, -1.0)), np.zeros(n))
    rows = np.hstack([-A / height[:, None], np.zeros((len(A), program.width - n))])
    program.at_most(rows, np.zeros(len(b)) if recession else -b / height / unit)
    if cones is not None:
        cones.demand(program, unit, width, recession=recession)
    return program


def _agree(A: Float, b: Float, cones: Cones) -> bool:
    program = region(A, b, cones)
    try:
        program.minimize(np.append(np.ones(A.shape[1]), np.zeros(program.width - A.shape[1])))
    except ConicError:
        return False
    return True


def _free_direction(sigma: Float, A: Float, cones: Cones | None) -> Float | None:
    """A direction r ≥ 0 of the set with Σr = 1 and σᵀr ≤ 0, or None."""
    n = len(sigma)
    if cones is not None:
        program = region(A, np.zeros(len(A)), cones, recession=True)
        size = float(np.abs(sigma).max()) or 1.0
        rest = np.zeros(program.width - n)
        program.add(np.append(np.ones(n), rest)[None], 1.0, clarabel.ZeroConeT(1))
        try:
            r = program.minimize(np.append(sigma / size, rest))[0][:n]
        except ConicError:
            return None
        return r if sigma @ r <= 1e-8 * size else None
    result = linprog(sigma, A_ub=-A, b_ub=np.zeros(len(A)), A_eq=np.ones((1, n)), b_eq=[1.0], method="highs")
    if result.status != 0 or result.fun > 1e-12 * np.abs(sigma).max():
        return None
    return np.asarray(result.x)


def largest_sum(problem: GeneralizedProblem, objective: float) -> float:
    """An upper bound of Σd over all d of the set with σᵀd ≤ T; the optimum is among them, since W ≥ 0."""
    if problem.cones is not None:
        return _widest(problem, objective)
    rows = np.vstack([-problem.A, problem.sigma[None]])
    result = linprog(-np.ones(len(problem.sigma)), A_ub=rows, b_ub=np.append(-problem.b, objective), method="highs")
    return float(np.asarray(result.x).sum()) if result.status == 0 else np.inf


def _widest(problem: GeneralizedProblem, objective: float) -> float:
    n, unit = len(problem.sigma), abs(objective) / (float(np.abs(problem.sigma).max()) or 1.0) or 1.0
    program = region(problem.A, problem.b, problem.cones, unit)
    rest = np.zeros(program.width - n)
    size = abs(objective) or 1.0
    program.at_most(np.append(problem.sigma * unit / size, rest)[None], objective / size)
    linear = np.append(-np.ones(n), rest)
    try:
        x, z = program.minimize(linear)
    except ConicError:
        return np.inf
    # The dual value is at least the maximum up to the solver's tolerance, for which one percent is ample.
    return 1.01 * unit * max(float(x[:n].sum()), program.dual(linear, z)[0])


def least_cost(problem: GeneralizedProblem, costs: Float, widest: float) -> float:
    """A lower bound of costsᵀd over all d of the set with Σd ≤ widest; −∞ if the program has no solution.

    It follows from the multipliers z of the conic program: with r = costs + Gᵀz, costsᵀd ≥ rᵀx − bᵀz for any d of the
    set. The solver's tolerance leaves a small r. Its part for d ≥ 0 is bounded by Σd ≤ `widest`; its part for the other
    variables, which only the cones bound, is taken as twice its value at the solution (as in `ConicSet.support`).
    """
    n, size = len(costs), float(np.abs(costs).max()) or 1.0
    program = region(problem.A, problem.b, problem.cones, widest)
    rest = np.zeros(program.width - n)
    program.at_most(np.append(np.ones(n), rest)[None], 1.0)
    linear = np.append(costs / size, rest)
    try:
        x, z = program.minimize(linear)
    except ConicError:
        return -np.inf
    value, residual = program.dual(linear, z)
    loss = float(np.maximum(-residual[:n], 0.0).max()) + 2.0 * float(np.abs(residual[n:]) @ np.abs(x[n:]))
    return size * widest * (-value - loss)
