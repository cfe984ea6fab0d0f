"""What a set of kernel weights is to solvers."""

from __future__ import annotations

from typing import Protocol

from dmkl.arrays import Float, Index
from dmkl.solvers.cones import ConicProgram

__all__ = ["WeightSet"]


class WeightSet(Protocol):
    """A closed, convex and bounded set of weights β ≥ 0 (n,).

    Masters solve conic programs over it in variables x = β/`units`; `program`, `settled` and `polished` speak of x.
    """

    @property
    def p(self) -> float:
        """The norm, by which neighbors in a grid are told: the larger, the less a solution depends on the kernels."""

    @property
    def smooth(self) -> bool:
        """Whether the support function has a gradient wherever q > 0."""

    def decided(self, n: int) -> bool:
        """Whether the same weights are best for any q ≥ 0: there is nothing to learn."""

    def start(self, n: int, near: Float | None = None) -> Float:
        """Weights to begin with: all alike, as far as the set has such, or those close to `near`."""

    def support(self, q: Float) -> float:
        """The maximum of βᵀq, or an upper bound that is as close as the arithmetic gives."""

    def steepest(self, q: Float) -> Float:
        """The β that maximizes βᵀq."""

    def select(self, kernels: Index) -> WeightSet:
        """The set of those kernels' weights where all others are zero."""

    def units(self, n: int) -> Float:
        """β/x, (n,)."""

    def program(self, n: int) -> ConicProgram:
        """That x is in the set, for the first n variables of a new program; the caller does not change it."""

    def add_to(self, program: ConicProgram, n: int) -> None:
        """Demand that the first n variables, with `spares` more after them, be in the set."""

    def spares(self, n: int) -> int:
        """Further variables that this takes."""

    def settled(self, x: Float) -> Float:
        """What an interior point method has found, (n,), as a point of the set."""

    def polished(self, aim: Float, q: Float, curvature: Float, x: Float) -> Float:
        """The maximizer of qᵀ(b − x) − ½(b − x)ᵀC(b − x) from one near it, to rounding where that can be done."""
