"""The base class of sets of kernel weights, and conic programs over it, solved by Clarabel's interior point method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import clarabel
import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dmkl.arrays import Float, Index
from dmkl.errors import DmklError

# --- conic programs ---------------------------------------------------------------------------------------------------

Entries = tuple[Index, Index, Float]
"""Row, column and value of the entries of a matrix that may be nonzero."""


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
        self._rows: Any = None
        """The matrix of all rows, after its first use."""
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

    def bounded_square(self, root: Float, shift: Float, row: Float, constant: float) -> None:
        """Require ½‖root x − shift‖² ≤ row x + constant."""
        # With z = root x − shift and s = row x + constant: (s + ½, s − ½, z) is in the second-order cone if and only if
        # (s − ½)² + ‖z‖² ≤ (s + ½)², that is ‖z‖² ≤ 2s.
        b = np.concatenate([[constant + 0.5, constant - 0.5], -shift])
        self.add(np.vstack([-row, -row, -root]), b, clarabel.SecondOrderConeT(len(b)))

    def minimize(self, linear: Float, quadratic: Float | None = None) -> tuple[Float, Float]:
        """The minimizer x, and the multipliers of the rows in the order in which these were added.

        Any finite point is returned, optimal to Clarabel's tolerances or not: the caller certifies its result on the
        full problem. q is `linear`; P is `quadratic`, positive semidefinite, or zero. ConicError is raised if Clarabel
        returns no point.
        """
        options = clarabel.DefaultSettings()
        options.verbose = False
        options.max_iter = 200
        # Below Clarabel's defaults of 1e-8, which would limit the gap of a fit.
        options.tol_gap_abs = options.tol_gap_rel = options.tol_feas = 1e-10
        self.violation = np.inf
        square = (self.width, self.width)
        upper = sp.csc_matrix(square) if quadratic is None else _sparse([_entries(np.triu(quadratic))], square)
        # Programs over the same set differ in the objective alone, so the matrix of the rows is kept.
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
        """The feasible x whose first variables are closest to `aim`."""
        others = (0, self.width - len(aim))
        # ½‖x − aim‖² without its constant.
        return self.minimize(np.pad(-aim, others), np.diag(np.pad(np.ones(len(aim)), others)))[0]

    def dual(self, linear: Float, multipliers: Float) -> tuple[float, Float]:
        """bᵀz and q + rowsᵀz for multipliers z: if the latter is zero, the former bounds the maximum of −qᵀx."""
        return float(np.concatenate(self._b) @ multipliers), np.asarray(linear + self._rows.T @ multipliers)


def _entries(rows: Float) -> Entries:
    i, j = np.nonzero(rows)
    return i, j, rows[i, j]


def _sparse(parts: Sequence[Entries], shape: tuple[int, int]) -> Any:
    """The matrix of these entries in Clarabel's form; SciPy's own conversion takes longer than small programs do."""
    i, j, values = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    # Sorted by column, then by row: the compressed column format.
    order = np.lexsort((i, j))
    starts = np.append(0, np.cumsum(np.bincount(j, minlength=shape[1])))
    return sp.csc_matrix((values[order], i[order], starts), shape=shape)


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
