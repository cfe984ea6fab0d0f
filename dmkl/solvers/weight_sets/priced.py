"""A price for each kernel: σ∘β is in another set."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dmkl.arrays import Float, Index
from dmkl.solvers.cones import ConicProgram
from dmkl.solvers.weight_sets.base import WeightSet

__all__ = ["Priced"]


@dataclass(frozen=True)
class Priced:
    """{β : (σ_1β_1, …, σ_nβ_n) in `inner`}, which equals the inner set for the kernels K_j/σ_j.

    Parameters
    ----------
    inner
        The other set.
    prices
        σ > 0, the price of each kernel.
    """

    inner: WeightSet
    prices: tuple[float, ...]

    @property
    def p(self) -> float:
        """See `WeightSet`."""
        return self.inner.p

    @property
    def smooth(self) -> bool:
        """See `WeightSet`."""
        return self.inner.smooth

    @property
    def _sigma(self) -> Float:
        return np.array(self.prices)

    def is_fixed(self, n: int) -> bool:
        """See `WeightSet`."""
        return self.inner.is_fixed(n)

    def start(self, n: int, near: Float | None = None) -> Float:
        """See `WeightSet`: weights of equal cost."""
        return self.inner.start(n, None if near is None else near * self._sigma) / self._sigma

    def support(self, q: Float) -> float:
        """See `WeightSet`: the support function of the inner set at q/σ."""
        # With b = σ∘β, βᵀq = bᵀ(q/σ).
        return self.inner.support(q / self._sigma)

    def steepest(self, q: Float) -> Float:
        """See `WeightSet`."""
        return self.inner.steepest(q / self._sigma) / self._sigma

    def select(self, kernels: Index) -> Priced:
        """See `WeightSet`."""
        return Priced(self.inner.select(kernels), tuple(self.prices[j] for j in kernels))

    def units(self, n: int) -> Float:
        """See `WeightSet`."""
        return self.inner.units(n) / self._sigma

    def program(self, n: int) -> ConicProgram:
        """See `WeightSet`."""
        return self.inner.program(n)

    def add_to(self, program: ConicProgram, n: int) -> None:
        """See `WeightSet`."""
        self.inner.add_to(program, n)

    def spares(self, n: int) -> int:
        """See `WeightSet`."""
        return self.inner.spares(n)

    def clean(self, x: Float) -> Float:
        """See `WeightSet`."""
        return self.inner.clean(x)

    def polish(self, aim: Float, q: Float, curvature: Float, x: Float) -> Float:
        """See `WeightSet`."""
        return self.inner.polish(aim, q, curvature, x)
