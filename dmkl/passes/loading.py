"""Vectors as the products of tiles take them: carried through the steps, cut and put side by side for each lane.

Where the chain of steps is the same for every kernel up to a factor, this is done once for a whole pass, and tasks
receive the result; otherwise each task does it for each of its kernels.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dmkl.arrays import Array, Index
from dmkl.passes.lanes import Lane
from dmkl.passes.riders import Columns
from dmkl.passes.view import Lens

__all__ = ["Loaded", "is_whole", "loaded", "offsets_of"]


@dataclass(frozen=True)
class Loaded:
    """The vectors of all columns of a pass, for kernels that see them alike."""

    blocks: list[list[tuple[Array, Index]]]
    """For each lane and each of its blocks the vectors over the samples of its segment, and where those of each tile
    begin."""
    offsets: list[list[Array | None]]
    """For each of the columns what the offsets of its steps need (see `Fitted.left`)."""

    def __sizeof__(self) -> int:
        vectors = [v for lane in self.blocks for v, _ in lane]
        return sum(array.nbytes for array in [*vectors, *itertools.chain(*self.offsets)] if array is not None)

    def aligned(self) -> Loaded:
        """The same, aligned in memory.

        What has come from another process may lie unaligned: NumPy then copies it for each product, into another
        layout, for which BLAS takes another kernel that rounds otherwise.
        """
        return Loaded([[(_aligned(v), starts) for v, starts in lane] for lane in self.blocks], self.offsets)


def loaded(lenses: Sequence[Lens], columns: Sequence[Columns], lanes: Sequence[Lane], kernel: int) -> Loaded:
    """Load the vectors of a pass for the kernel at this position."""
    carried = [_carried(lenses[c.lens], kernel, c) for c in columns]
    return Loaded(
        [_cut(lane, [carried[position][0] for position in lane.columns]) for lane in lanes],
        [offsets for _, offsets in carried],
    )


def offsets_of(lens: Lens, kernel: int, c: Columns) -> list[Array | None]:
    """What the offsets of the steps need of the vectors, for the kernel at this position."""
    return lens.fitted.right(kernel, _aligned(c.block))[1]


def _carried(lens: Lens, kernel: int, c: Columns) -> tuple[Array, list[Array | None]]:
    """V over all columns of the source, zero where the view has no sample; and what the offsets need of it."""
    view = lens.view
    carried, offsets = lens.fitted.right(kernel, _aligned(c.block))
    n_cols = view.source.tiling.cols
    if is_whole(view.cols, n_cols):
        return np.ascontiguousarray(carried, dtype=c.dtype), offsets
    once = np.bincount(view.cols, minlength=n_cols).max() <= 1
    wide = np.zeros((n_cols, c.width), dtype=c.dtype if once else np.float64)
    if once:
        wide[view.cols] = carried
    else:
        np.add.at(wide, view.cols, carried)
    return np.ascontiguousarray(wide, dtype=c.dtype), offsets


def _cut(lane: Lane, wides: Sequence[Array]) -> list[tuple[Array, Index]]:
    wide = wides[0] if len(wides) == 1 else np.concatenate(wides, axis=1)
    found = []
    for block in lane.blocks:
        stored, starts = lane.cols.of_segment(block.cols)
        chosen = wide if len(stored) == len(wide) else wide[stored]
        if sum(part.stop - part.start for part in block.vectors) < wide.shape[1]:
            chosen = np.concatenate([chosen[:, part] for part in block.vectors], axis=1)
        found.append((chosen, starts))
    return found


def _aligned(array: Array) -> Array:
    return np.require(array, requirements=["ALIGNED"])


def is_whole(positions: Index, length: int) -> bool:
    """Whether the positions are all there are, in order: nothing has to be moved then."""
    return len(positions) == length and bool(np.all(positions == np.arange(length)))
