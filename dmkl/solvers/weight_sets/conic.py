"""Sets of weights described by cones, and sets whose kernels have prices σ: σ∘β is in another set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import clarabel
import numpy as np

from dmkl.arrays import Float, Index
from dmkl.solvers.weight_sets.base import ConicError, ConicProgram, Entries, WeightSet

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


def _dual(name: str, arguments: tuple[Any, ...]) -> tuple[int, Float | None]:
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
    """{β : b − Gx ∈ K for some x = (β, …)} over n kernels, as plain data.

    `rows` are the entries of G, whose first n of `width` columns are those of β, and b is (height,). `cones` are the
    names of the cones of K, as in `CONES`, each with the arguments of Clarabel's constructor.
    """

    n: int
    rows: Entries
    b: Float
    cones: tuple[tuple[str, tuple[Any, ...]], ...]
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
            height, to_cone = _dual(name, arguments)
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
        linear = np.pad(np.full(self.n, -1.0), (0, self.width - self.n))
        try:
            x, z = program.minimize(linear)
        except ConicError as error:
            # −Σβ without a lower bound: the dual of the program is infeasible.
            if "DualInfeasible" not in str(error):
                raise
            msg = "the set of weights is not bounded"
            raise UnboundedSetError(msg) from error
        largest = float(x[: self.n].sum())
        # The bound by the multipliers makes `total` a proven maximum; the set {0} gets a tiny size to divide by.
        return max((1.0 + 1e-8) * max(largest, program.dual(linear, z)[0]), 1e-12)

    def support(self, q: Float) -> float:
        """An upper bound by the multipliers of the conic program.

        With multipliers z of the dual cone, r = Gᵀz − (q, 0) and s = b − Gx in the cone, any x of the set has
        βᵀq = (b − s)ᵀz − rᵀx ≤ bᵀz − rᵀx. The solver's tolerance leaves a small r, Σβ ≤ `total`, and β ≥ 0.
        """
        if not (size := float(np.abs(q).max(initial=0.0))):
            return 0.0
        linear, x, z = self._best(q / size)
        value, residual = self.program(self.n).dual(linear, z)
        # −rᵀx ≤ max(−r, 0)·Σβ for β ≥ 0. The other variables have no such bound: twice their values at the solution.
        rest = float(np.maximum(-residual[: self.n], 0.0).max(initial=0.0))
        rest += 2.0 * float(np.abs(residual[self.n :]) @ np.abs(x[self.n :]))
        return size * self.total * (value + rest)

    def steepest(self, q: Float) -> Float:
        size = float(np.abs(q).max(initial=0.0)) or 1.0
        return self.total * self.clean(self._best(q / size)[1][: self.n])

    def _best(self, q: Float) -> tuple[Float, Float, Float]:
        """The linear function −qᵀx, its minimizer and the multipliers, in units of the set."""
        program = self.program(self.n)
        linear = np.pad(-q, (0, program.width - self.n))
        return linear, *program.minimize(linear)

    def units(self, n: int) -> Float:
        return np.full(n, self.total)

    def new_program(self, n: int) -> ConicProgram:
        program = ConicProgram(self.width)
        self.demand(program, self.total, self.n)
        return program

    def clean(self, x: Float) -> Float:
        # The constraints hold to the solver's tolerance, some 1e-9 of the largest weight.
        return np.where(x > 1e-9 * float(x.max(initial=0.0)), x, 0.0)


# --- prices -----------------------------------------------------------------------------------------------------------


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
