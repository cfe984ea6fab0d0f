"""The protocol of a set of kernel weights, as solvers use it."""

from __future__ import annotations

from typing import Protocol

from dmkl.arrays import Float, Index
from dmkl.solvers.cones import ConicProgram

__all__ = ["WeightSet"]


class WeightSet(Protocol):
    """A closed, convex and bounded set of weights β ≥ 0 (n,).

    Masters solve conic programs over it in the variables x = β/`units`, which `program`, `clean` and `polish` use.
    """

    @property
    def p(self) -> float:
        """The norm, which orders neighbors in a grid: for a larger p a solution depends less on the kernels."""

    @property
    def smooth(self) -> bool:
        """Whether the support function is differentiable wherever q > 0."""

    def is_fixed(self, n: int) -> bool:
        """Whether the same weights are optimal for every q ≥ 0, so that there is nothing to learn."""

    def start(self, n: int, near: Float | None = None) -> Float:
        """Initial weights: equal if the set has such, or those close to `near`."""

    def support(self, q: Float) -> float:
        """The maximum of βᵀq, or an upper bound that is as close as the arithmetic allows."""

    def steepest(self, q: Float) -> Float:
        """The β that maximizes βᵀq."""

    def select(self, kernels: Index) -> WeightSet:
        """The set of these kernels' weights, with zero weight for all others."""

    def units(self, n: int) -> Float:
        """The scale β/x of the variables, (n,)."""

    def program(self, n: int) -> ConicProgram:
        """A new program with x in the set, for its first n variables; the caller does not change it."""

    def add_to(self, program: ConicProgram, n: int) -> None:
        """Require the first n variables of a program, with `spares` more after them, to be in the set."""

    def spares(self, n: int) -> int:
        """Number of further variables for that."""

    def clean(self, x: Float) -> Float:
        """The solution of an interior point method, (n,), moved to a point of the set."""

    def polish(self, aim: Float, q: Float, curvature: Float, x: Float) -> Float:
        """The maximizer of qᵀ(b − x) − ½(b − x)ᵀC(b − x) from a point near it, to rounding if possible."""
