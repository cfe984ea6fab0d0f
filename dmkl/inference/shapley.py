"""Shapley values by sampled orders: what each player adds, averaged over the orders in which they may join."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dmkl.arrays import Array, Float
from dmkl.inference.sources import Sources

__all__ = ["Orders"]


@dataclass(frozen=True)
class Orders:
    """Orders in which the players join, drawn uniformly and independently.

    Parameters
    ----------
    sources
        Who holds which kernels.
    players
        Names of those who join, who hold all kernels between them.
    orders
        (order, player) positions among the players.
    """

    sources: Sources
    players: tuple[str, ...]
    orders: Array

    @classmethod
    def sample(cls, sources: Sources, n_orders: int, seed: int) -> Orders:
        """Draw orders."""
        players = sources.players() if n_orders else ()
        rng = np.random.default_rng(seed)
        drawn = [rng.permutation(len(players)) for _ in range(n_orders)]
        return cls(sources, players, np.array(drawn, dtype=np.int64).reshape(n_orders, len(players)))

    def coalitions(self) -> Iterator[tuple[int, ...]]:
        """The kernels of those who have joined, after each but the last, of every order."""
        for order in self.orders:
            for n in range(1, len(order)):
                yield self._kernels(order[:n])

    def _kernels(self, some: Sequence[int]) -> tuple[int, ...]:
        return self.sources.together([self.players[place] for place in some])

    def marginals(self, score_of: Callable[[tuple[int, ...]], Float], nothing: Float, everything: Float) -> Float:
        """v(S ∪ {i}) − v(S) for every order and player i, S being those who joined before: (order, player, …).

        Parameters
        ----------
        score_of
            v of a coalition, by its kernels; an array, of folds and tasks.
        nothing, everything
            v of no player, and of all.
        """
        found = np.full((*self.orders.shape, *np.shape(everything)), np.nan)
        for row, order in zip(found, self.orders, strict=True):
            before = nothing
            for n, place in enumerate(order, start=1):
                after = everything if n == len(order) else score_of(self._kernels(order[:n]))
                row[place] = after - before
                before = after
        return found
