"""The pass that multiplies basis vectors of all subspaces with all kernels.

New vectors ride it, and those whose products turned out to be too coarse for what is to be proven. The first block of a
subspace is multiplied in double precision, together with the probes that measure the rounding of those that follow in
the kernels' own (see `rounding`): it holds most of what the solutions are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dmkl.arrays import Array
from dmkl.passes.execute import execute, machine
from dmkl.passes.run import pass_bytes, pass_graph
from dmkl.passes.sweep import Columns, Last
from dmkl.passes.view import Lens
from dmkl.solvers.fisher.subspace.rounding import PROBES
from dmkl.solvers.fisher.subspace.space import Block, Subspace
from dmkl.solvers.fisher.subspace.tasks import Keeping, Made, ProductFiles, Strips, group_file, keep_products
from dmkl.solvers.requests import Pass, Solver, Tasks

__all__ = ["extend"]

_DOUBLE = np.dtype(np.float64)


@dataclass(frozen=True, eq=False)
class _Rider:
    """A block of a basis that rides a pass."""

    space: Subspace
    block: Strips
    """U, (m, b)"""
    columns: tuple[int, int]
    """Which columns of the basis it is."""
    dtype: np.dtype[Any]
    """Of the products."""
    probes: bool = False
    """Whether the probes Z, (m, s), come along."""

    @property
    def new(self) -> bool:
        """Whether the basis is without the block."""
        return self.columns[0] == self.space.width

    @property
    def riding(self) -> list[Strips]:
        """All columns that go through the pass, side by side."""
        rows = self.block.rows
        return [self.block, *([Strips((self.space.probes,), rows, (0, PROBES))] if self.probes else [])]


def extend(
    spaces: Sequence[Subspace], blocks: Sequence[Strips], number: int, passed: Callable[[], None]
) -> Solver[None]:
    """Extend each basis by its block, and repeat products in double precision where needed.

    This takes one pass, or as few as memory allows.

    Parameters
    ----------
    blocks
        For each space (m, b), orthonormal and orthogonal to its basis; none where b is zero.
    number
        Of the round, for names.
    passed
        Called after each pass.
    """
    riders = [rider for space, block in zip(spaces, blocks, strict=True) for rider in _riders(space, block)]
    for load in _loads(riders):
        new = {id(rider.space): rider.block for rider in load if rider.new}
        widths = {id(space): space.width + (new[id(space)].width if id(space) in new else 0) for space in _spaces(load)}
        writing = [task for space in _spaces(load) for task in space.widen_basis(new.get(id(space)), number)]
        yield Tasks("widen-basis", writing)
        found = yield Pass("extend", partial(_pass, load, number))
        work, own, blocks_of = list[Any](), list[Any](), list[list[Block]]()
        for space in _spaces(load):
            mine = [made for rider, made in zip(load, found, strict=True) if rider.space is space]
            mine.sort(key=lambda made: not made[0].single)
            work += [space.widening(number, widths[id(space)]), space.projecting(number)]
            own += [[made for _, made in mine], space.targets]
            blocks_of.append([block for block, _ in mine])
        yield Tasks("project", work, own=own)
        for space, made in zip(_spaces(load), blocks_of, strict=True):
            space.take(number, widths[id(space)], made)
        number += 1
        passed()


def _riders(space: Subspace, block: Strips) -> list[_Rider]:
    own = space.training.whole.view.source.dtype
    riders = [
        _Rider(space, space.columns(*space.blocks[k].columns), space.blocks[k].columns, _DOUBLE)
        for k in space.hidden_by_rounding
    ]
    if block.width:
        columns = (space.width, space.width + block.width)
        if space.double or not space.blocks:
            riders.insert(0, _Rider(space, block, columns, _DOUBLE, probes=not space.double))
        else:
            riders.insert(0, _Rider(space, block, columns, own))
    return riders


def _spaces(load: Sequence[_Rider]) -> list[Subspace]:
    return list({id(rider.space): rider.space for rider in load}.values())


def _loads(riders: Sequence[_Rider]) -> list[list[_Rider]]:
    """Blocks side by side as far as a task has memory for their columns."""
    loads: list[list[_Rider]] = []
    where = machine()
    for rider in riders:
        together = [*loads[-1], rider] if loads else [rider]
        if loads and sum(pass_bytes(*_columns(together), where).values()) <= where.task_bytes:
            loads[-1] = together
        else:
            loads.append([rider])
    return loads


def _columns(load: Sequence[_Rider]) -> tuple[list[Lens], list[Columns]]:
    """What a pass takes, but for the vectors, which a task of its own reads."""
    columns = []
    for place, rider in enumerate(load):
        shape = rider.block.rows, sum(part.width for part in rider.riding)
        columns.append(Columns(np.broadcast_to(0.0, shape), "each", None, rider.dtype, place))
    return [rider.space.training.whole for rider in load], columns


def _vectors(riding: Sequence[Sequence[Strips]]) -> list[Array]:
    """The vectors of a pass."""
    return [np.concatenate([part.array() for part in parts], axis=1) for parts in riding]


def _pass(load: Sequence[_Rider], number: int) -> list[tuple[Block, Made]]:
    """Of each rider VᵀK_jU, and where K_jU lies: the products are written where they are made, and stay there."""
    slots_per_host, name = machine().slots_per_host, f"extend-pass-{number}"
    kept = [rider.space.round_file() for rider in load]

    def then(group: int, kernels: tuple[int, ...]) -> Last:
        keepings = [
            _keeping(rider, number, group, kernels, None if stem is None else f"{stem}-{group}")
            for rider, stem in zip(load, kept, strict=True)
        ]
        return partial(keep_products, keepings=keepings, kernels=kernels, tasks_per_machine=slots_per_host)

    graph = pass_graph(*_columns(load), name, then=then, vectors=partial(_vectors, [rider.riding for rider in load]))
    found: list[Any] = execute([kept for _, kept in graph.groups], graph.units, name)
    made = []
    for place, rider in enumerate(load):
        mine = [kept[place] for kept in found]
        files = [(group, kernels) for group, (kernels, _) in enumerate(graph.groups)]
        groups = tuple((group_file(rider.space.folder, number, rider.columns[0], g), kernels) for g, kernels in files)
        if rider.probes:
            rider.space.probed = tuple((_ahead(rider.space.folder, number, g), kernels) for g, kernels in files)
        hidden = None if mine[0][1] is None else tuple(one for _, one in mine)
        block = Block(rider.columns, groups, rider.dtype != _DOUBLE)
        made.append((block, Made(rider.columns, tuple(cross for cross, _ in mine), hidden)))
    return made


def _keeping(rider: _Rider, number: int, group: int, kernels: tuple[int, ...], results: str | None) -> Keeping:
    space = rider.space
    single = rider.dtype != _DOUBLE
    double = tuple((b.columns, ProductFiles((b.groups,)).of(kernels)) for b in space.blocks if single and not b.single)
    return Keeping(
        group_file(space.folder, number, rider.columns[0], group),
        space.file("basis", number),
        rider.columns,
        space.probes,
        _ahead(space.folder, number, group) if rider.probes else "",
        ProductFiles((space.probed,)).of(kernels) if single else None,
        double,
        results,
    )


def _ahead(folder: Path, number: int, group: int) -> str:
    return str(folder / f"probed-{number}-{group}.npy")
