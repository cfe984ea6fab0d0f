"""Small conic programs, solved by Clarabel's interior point method: the one place that knows it."""

from __future__ import annotations

from typing import Any

import clarabel
import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dmkl.arrays import Float
from dmkl.errors import DmklError

__all__ = ["ConicError", "ConicProgram"]


class ConicError(DmklError, RuntimeError):
    """A conic program could not be solved to use."""


class ConicProgram:
    """Minimize ½ xᵀPx + qᵀx over x, of length `width`, with b − rows x in a product of cones."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._rows: list[Any] = []
        self._b: list[Float] = []
        self._cones: list[Any] = []

    def add(self, rows: Any, b: npt.ArrayLike, *cones: Any) -> None:
        """Demand that b − rows x lie in the product of these cones of Clarabel's."""
        self._rows.append(sp.csc_array(rows))
        self._b.append(np.atleast_1d(np.asarray(b, dtype=np.float64)))
        self._cones.extend(cones)

    def at_most(self, rows: Any, b: npt.ArrayLike) -> None:
        """Demand rows x ≤ b; there may be no rows."""
        if rows.shape[0]:
            self.add(rows, b, clarabel.NonnegativeConeT(rows.shape[0]))

    def bounded_square(self, root: Float, shift: Float, row: Float, constant: float) -> None:
        """Demand ½‖root x − shift‖² ≤ row x + constant: (s + ½, s − ½, z) in the Lorentz cone is ‖z‖² ≤ 2s."""
        b = np.concatenate([[constant + 0.5, constant - 0.5], -shift])
        self.add(np.vstack([-row, -row, -root]), b, clarabel.SecondOrderConeT(len(b)))

    def minimize(self, linear: Float, quadratic: Any = None) -> tuple[Float, Float]:
        """The minimizer x and the multipliers of the rows, in the order in which these were added.

        Any point that can be used is returned, optimal to Clarabel's tolerances or not: the caller certifies what comes
        of it by the full problem. q is `linear`, and P, positive semidefinite, `quadratic`, none where missing.
        ConicError is raised if Clarabel finds no point at all.
        """
        options = clarabel.DefaultSettings()
        options.verbose = False
        options.max_iter = 200
        options.tol_gap_abs = options.tol_gap_rel = options.tol_feas = 1e-10
        if quadratic is None:
            quadratic = sp.csc_array((self.width, self.width))
        upper = sp.csc_matrix(sp.triu(sp.csc_array(quadratic), format="csc"))
        rows = sp.csc_matrix(sp.vstack(self._rows, format="csc"))
        solution = clarabel.DefaultSolver(upper, linear, rows, np.concatenate(self._b), self._cones, options).solve()
        x, status = np.asarray(solution.x, dtype=np.float64), str(solution.status)
        if not np.isfinite(x).all() or "Infeasible" in status or status == "Unsolved":
            msg = f"the conic program ended without a solution (Clarabel: {status})"
            raise ConicError(msg)
        return x, np.asarray(solution.z, dtype=np.float64)
