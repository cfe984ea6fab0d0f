"""The next basis vectors of each subspace: what its open points lack, and what they will ask for next."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from dmkl.arrays import Float
from dmkl.solvers.fisher.subspace.anchors import rough_ridge
from dmkl.solvers.fisher.subspace.directions import choose_directions
from dmkl.solvers.fisher.subspace.problem import Point, of_space
from dmkl.solvers.fisher.subspace.products import products
from dmkl.solvers.fisher.subspace.residuals import OpenPoint
from dmkl.solvers.fisher.subspace.space import Subspace, Unsolved, solve_by_anchors
from dmkl.solvers.fisher.subspace.strips import Strips, numbered
from dmkl.solvers.running import run_tasks

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

    def first_blocks(self, number: int, *, anchored: bool) -> list[Strips]:
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
            # Through weights that are alike: K(β) is about `scale` times the sum of all kernels.
            space = self.spaces[point.space]
            n_kernels = space.n_kernels if point.kernels is None else len(point.kernels)
            scale = float(point.weights.start(n_kernels).mean())
            rho = rough_ridge(point.lam, scale, self.step) if anchored else 0.0
            h = Strips.of(space.targets[point.target])
            wanted.setdefault((point.space, point.target, rho), Unsolved(point.space, 0, rho, h))
        items = list(wanted.values())
        found = [x for x, _ in solve_by_anchors(self.spaces, items)] if anchored else [item.columns for item in items]
        # Of several passes that the first blocks took, one may have been the last before a kill.
        new = [f for f, space in enumerate(self.spaces) if not space.width]
        mine = {f: [x for item, x in zip(items, found, strict=True) if item.space == f] for f in new}
        return self._chosen(number, mine, {})

    def next_blocks(
        self, number: int, opened: Mapping[int, OpenPoint], more: Mapping[int, Sequence[Strips]]
    ) -> list[Strips]:
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
        lacking = {f: [r.wanted for r in of_space(self.points, opened, f).values()] for f in range(len(self.spaces))}
        blocks = self._chosen(number, lacking, {})
        short = [f for f, block in enumerate(blocks) if lacking[f] and block.width < self._room(self.spaces[f])]
        further = {
            f: list(more.get(f, ())) if self.spaces[f].anchors else self._newest(number, f, blocks[f].width)
            for f in short
        }
        return self._chosen(number, further, {f: blocks[f] for f in short if blocks[f].width}, blocks)

    def _room(self, space: Subspace) -> int:
        """Columns of the next block: never more than there are dimensions left."""
        return max(0, min(self.width, space.training.n_train - space.width))

    def _chosen(
        self,
        number: int,
        found: Mapping[int, Sequence[Strips]],
        before: Mapping[int, Strips],
        otherwise: Sequence[Strips] | None = None,
    ) -> list[Strips]:
        """For each space a block of the dominant directions of what was found, after columns of before, if any.

        Where nothing was found, or there is no room, it is the one that it is `otherwise`, or has no columns.
        """
        blocks = [space.columns(0, 0) for space in self.spaces] if otherwise is None else list(otherwise)
        places = [f for f, mine in found.items() if mine and self._room(self.spaces[f])]
        work = [self._choosing(number, f, before.get(f)) for f in places]
        own = [found[f] for f in places]
        chosen = run_tasks("choose-directions", work, own=own)
        for f, (block, width) in zip(places, chosen, strict=True):
            blocks[f] = Strips((block,), self.spaces[f].training.n_train, (0, width))
        return blocks

    def _choosing(self, number: int, f: int, before: Strips | None) -> partial[tuple[Float | str, int]]:
        space = self.spaces[f]
        basis, path = space.file("basis") if space.width else "", numbered(space.round_file(), 0)
        return partial(choose_directions, basis, before, self._room(space), [number, f], path)

    def _newest(self, number: int, f: int, known: int) -> list[Strips]:
        """What single kernels make of the newest basis vectors: without anchors, which know more, a Krylov block.

        So many as fill a block of which some are `known`.
        """
        space = self.spaces[f]
        rng, width = np.random.default_rng([number, f, 1]), self._room(space) - known
        newest = np.eye(space.width)[:, -min(self.width, space.width) :]
        picked = [newest[:, [u % newest.shape[1]]] for u in range(max(math.ceil(1.5 * width), newest.shape[1]))]
        return products(space, [(rng.standard_normal(space.n_kernels), column) for column in picked])
