"""Small conic programs, solved by Clarabel's interior point method: the one place that knows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import clarabel
import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dmkl.arrays import Float, Index
from dmkl.errors import DmklError

__all__ = ["ConicError", "ConicProgram", "Entries"]


Entries = tuple[Index, Index, Float]
"""Row, column and value of the entries of a matrix that may be other than zero."""


class ConicError(DmklError, RuntimeError):
    """A conic program could not be solved to use."""


class ConicProgram:
    """Minimize ½ xᵀPx + qᵀx over x, of length `width`, with b − rows x in a product of cones."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._entries: list[Entries] = []
        self._b: list[Float] = []
        self._cones: list[Any] = []
        self._height = 0
        self._rows: Any = None
        """The matrix of all rows, once it has been asked for."""
        self.violation = np.inf
        """By how much the last minimizer violates the constraints, relative to their size; infinite before."""

    def add(self, rows: Float | Entries, b: npt.ArrayLike, *cones: Any) -> None:
        """Demand that b − rows x lie in the product of these cones of Clarabel's."""
        i, j, values = rows if isinstance(rows, tuple) else _entries(rows)
        self._entries.append((self._height + i, j, values))
        self._b.append(np.atleast_1d(np.asarray(b, dtype=np.float64)))
        self._cones.extend(cones)
        self._height += len(self._b[-1])
        self._rows = None

    def at_most(self, rows: Float | Entries, b: npt.ArrayLike) -> None:
        """Demand rows x ≤ b; there may be no rows."""
        if n := np.size(b):
            self.add(rows, b, clarabel.NonnegativeConeT(n))

    def bounded_square(self, root: Float, shift: Float, row: Float, constant: float) -> None:
        """Demand ½‖root x − shift‖² ≤ row x + constant: (s + ½, s − ½, z) in the Lorentz cone is ‖z‖² ≤ 2s."""
        b = np.concatenate([[constant + 0.5, constant - 0.5], -shift])
        self.add(np.vstack([-row, -row, -root]), b, clarabel.SecondOrderConeT(len(b)))

    def minimize(self, linear: Float, quadratic: Float | None = None) -> tuple[Float, Float]:
        """The minimizer x and the multipliers of the rows, in the order in which these were added.

        Any point that can be used is returned, optimal to Clarabel's tolerances or not: the caller certifies what comes
        of it by the full problem. q is `linear`, and P, positive semidefinite, `quadratic`, none where missing.
        ConicError is raised if Clarabel finds no point at all.
        """
        options = clarabel.DefaultSettings()
        options.verbose = False
        options.max_iter = 200
        options.tol_gap_abs = options.tol_gap_rel = options.tol_feas = 1e-10
        self.violation = np.inf
        square = (self.width, self.width)
        upper = sp.csc_matrix(square) if quadratic is None else _sparse([_entries(np.triu(quadratic))], square)
        if self._rows is None:
            self._rows = _sparse(self._entries, (self._height, self.width))
        rows = self._rows
        solution = clarabel.DefaultSolver(upper, linear, rows, np.concatenate(self._b), self._cones, options).solve()
        x, status = np.asarray(solution.x, dtype=np.float64), str(solution.status)
        if not np.isfinite(x).all() or "Infeasible" in status or status == "Unsolved":
            msg = f"the conic program ended without a solution (Clarabel: {status})"
            raise ConicError(msg)
        self.violation = float(solution.r_prim)
        return x, np.asarray(solution.z, dtype=np.float64)

    def nearest(self, aim: Float) -> Float:
        """The feasible x whose first variables have the least distance from `aim`."""
        n = len(aim)
        quadratic, linear = np.zeros((self.width, self.width)), np.zeros(self.width)
        quadratic[:n, :n] = np.eye(n)
        linear[:n] = -aim
        return self.minimize(linear, quadratic)[0]

    def dual(self, linear: Float, multipliers: Float) -> tuple[float, Float]:
        """bᵀz and q + rowsᵀz for multipliers z: where the latter is zero, the former bounds the maximum of −qᵀx."""
        return float(np.concatenate(self._b) @ multipliers), np.asarray(linear + self._rows.T @ multipliers)


def _entries(rows: Float) -> Entries:
    i, j = np.nonzero(rows)
    return i, j, rows[i, j]


def _sparse(parts: Sequence[Entries], shape: tuple[int, int]) -> Any:
    """The matrix of these entries, as Clarabel wants it; SciPy's own ways there take longer than small programs."""
    i, j, values = (np.concatenate(some) for some in zip(*parts, strict=True))
    order = np.lexsort((i, j))
    starts = np.append(0, np.cumsum(np.bincount(j, minlength=shape[1])))
    return sp.csc_matrix((values[order], i[order], starts), shape=shape)
