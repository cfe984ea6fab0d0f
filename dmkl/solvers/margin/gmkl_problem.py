"""A problem of generalized MKL: labels, prices and linear constraints, and the check that it has a solution."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import linprog

from dmkl.arrays import Float
from dmkl.errors import InputError
from dmkl.solvers.margin.machine import Bounds

__all__ = ["GeneralizedProblem", "largest_sum", "row_lengths"]


@dataclass(frozen=True)
class GeneralizedProblem:
    """One binary problem, checked when it is made.

    Raises
    ------
    InputError
        If shapes or values are wrong, if rows contradict each other (an irreducible set of them is named: without any
        one of them the others agree), or if weights could grow without end at no price (the kernels are named).
    """

    y: Float
    """(m,), 1 and −1."""
    C: Bounds
    """The price of a unit of hinge loss, or that of each sample, (m,)."""
    sigma: Float
    """(n,), the price of a unit of weight for each kernel."""
    A: Float = field(default_factory=lambda: np.zeros((0, 0)))
    b: Float = field(default_factory=lambda: np.zeros(0))
    """(k, n) and (k,): the rows of A d ≥ b; an upper bound d_j ≤ c is the row −d_j ≥ −c. No rows where missing."""
    rows: tuple[str, ...] = ()
    """Names of the rows, for messages."""
    name: str = ""
    """What this problem is called in reports."""

    def __post_init__(self) -> None:
        y, sigma = np.asarray(self.y, dtype=np.float64), np.asarray(self.sigma, dtype=np.float64)
        if y.ndim != 1 or not np.isin(y, (-1.0, 1.0)).all() or len(np.unique(y)) != 2:
            msg = f"y holds {np.unique(y)[:5]} in shape {y.shape}, expected a vector of 1 and −1 with both in it"
            raise InputError(msg)
        if not (np.isfinite(self.C) & (np.asarray(self.C) > 0)).all() or np.shape(self.C) not in ((), y.shape):
            msg = f"C must be a positive number, or one for each sample, got {self.C!r}"
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


def row_lengths(A: Float) -> Float:
    """The rows' lengths, (k,); one for a row of zeros."""
    size = np.linalg.norm(A, axis=1)
    return np.where(size > 0, size, 1.0)


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
    size = row_lengths(A)
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


def largest_sum(problem: GeneralizedProblem, objective: float) -> float:
    """A bound of Σd for all d of the polyhedron with σᵀd ≤ T, among them the optimum, since W ≥ 0."""
    rows = np.vstack([-problem.A, problem.sigma[None]])
    found = linprog(-np.ones(len(problem.sigma)), A_ub=rows, b_ub=np.append(-problem.b, objective), method="highs")
    return float(np.asarray(found.x).sum()) if found.status == 0 else np.inf
