"""The next basis vectors of each subspace: what its open points lack, and what they will ask for next."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dmkl.arrays import Float
from dmkl.numerics.fisher import uniform_weights
from dmkl.solvers.fisher.subspace.anchors import rough_ridge
from dmkl.solvers.fisher.subspace.directions import dominant_block
from dmkl.solvers.fisher.subspace.problem import Point, of_space
from dmkl.solvers.fisher.subspace.residuals import OpenPoint
from dmkl.solvers.fisher.subspace.space import Subspace, Unsolved, solve_by_anchors

__all__ = ["Growth"]


@dataclass(frozen=True)
class Growth:
    """Chooses blocks of new basis vectors, orthonormal and orthogonal to the bases.

    Parameters
    ----------
    spaces, points
        The subspaces, and all points.
    width
        Most columns of a block.
    step
        The factor by which ridges are rounded (see `anchors`).
    """

    spaces: Sequence[Subspace]
    points: Sequence[Point]
    width: int
    step: float

    def first_blocks(self, number: int, *, anchored: bool) -> list[Float]:
        """The solutions for uniform weights at some ridges; without anchors the targets themselves.

        Parameters
        ----------
        number
            Of the round, which fixes what is drawn at random.
        anchored
            Whether the first anchor of every space is the uniform weighting.
        """
        wanted: dict[tuple[int, int, float], Unsolved] = {}
        for point in self.points:
            # Through the uniform weighting of this norm: K(β) is `scale` times the sum of all kernels.
            space = self.spaces[point.space]
            scale = float(uniform_weights(space.n_kernels, point.p)[0])
            rho = rough_ridge(point.lam, scale, self.step) if anchored else 0.0
            h = space.targets[point.target]
            wanted.setdefault((point.space, point.target, rho), Unsolved(point.space, 0, rho, h))
        items = list(wanted.values())
        found = [x for x, _ in solve_by_anchors(self.spaces, items)] if anchored else [item.columns for item in items]
        blocks = []
        for f, space in enumerate(self.spaces):
            # Of several passes that the first blocks took, one may have been the last before a kill.
            if space.width:
                blocks.append(space.basis[:, :0])
                continue
            mine = [x / np.linalg.norm(x) for item, x in zip(items, found, strict=True) if item.space == f]
            blocks.append(self._dominant(number, f, space.basis, mine, self._room(space)))
        return blocks

    def next_blocks(
        self, number: int, opened: Mapping[int, OpenPoint], more: Mapping[int, Sequence[Float]]
    ) -> list[Float]:
        """What the open points lack, filled up with what they will ask for next.

        Parameters
        ----------
        number
            Of the round.
        opened
            The open points.
        more
            For each space further directions that its anchors have given.
        """
        return [
            self._next_block(number, f, of_space(self.points, opened, f), list(more.get(f, ())))
            for f in range(len(self.spaces))
        ]

    def _next_block(self, number: int, f: int, mine: dict[int, OpenPoint], more: list[Float]) -> Float:
        space = self.spaces[f]
        width = self._room(space)
        if not mine or not width:
            return np.zeros((space.training.n_train, 0))
        block = self._dominant(number, f, space.basis, [r.wanted for r in mine.values()], width)
        if block.shape[1] < width:
            basis = np.concatenate([space.basis, block], axis=1)
            more = more if space.anchors else self._newest(number, f, width - block.shape[1])
            more = [x / np.linalg.norm(x) for x in more if x.any()]
            more_block = self._dominant(number, f, basis, more, width - block.shape[1])
            block = np.concatenate([block, more_block], axis=1)
        return block

    def _room(self, space: Subspace) -> int:
        """Columns of the next block: never more than there are dimensions left."""
        return max(0, min(self.width, space.training.n_train - space.width))

    @staticmethod
    def _dominant(number: int, f: int, basis: Float, columns: list[Float], width: int) -> Float:
        if not columns or width < 1:
            return np.zeros((len(basis), 0))
        rng = np.random.default_rng([number, f])
        return dominant_block(basis, np.concatenate(columns, axis=1), width, 1e-6, rng)

    def _newest(self, number: int, f: int, width: int) -> list[Float]:
        """What single kernels make of the newest basis vectors: without anchors, which know more, a Krylov block."""
        space = self.spaces[f]
        rng = np.random.default_rng([number, f, 1])
        newest = np.eye(space.width)[:, -min(self.width, space.width) :]
        picked = [newest[:, [u % newest.shape[1]]] for u in range(max(math.ceil(1.5 * width), newest.shape[1]))]
        return space.products([(rng.standard_normal(space.n_kernels), column) for column in picked], held_out=False)
