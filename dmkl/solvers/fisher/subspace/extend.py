"""The pass that multiplies basis vectors of all subspaces with all kernels.

New vectors ride it, and those whose products turned out to be too coarse for what is to be proven. The first block of a
subspace is multiplied in double precision, together with the probes that measure the rounding of those that follow in
the kernels' own (see `rounding`): it holds most of what the solutions are.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from dask.delayed import Delayed, delayed

from dmkl.arrays import Float
from dmkl.files.arrays import save_array
from dmkl.passes.execute import again, execute, machine
from dmkl.passes.riders import Columns
from dmkl.passes.run import pass_bytes, pass_graph
from dmkl.passes.view import Lens
from dmkl.solvers.fisher.subspace.rounding import PROBES
from dmkl.solvers.fisher.subspace.space import Block, Groups, Subspace
from dmkl.solvers.fisher.subspace.tasks import Keeping, ProductFiles, group_file, keep_products

__all__ = ["extend"]

_DOUBLE = np.dtype(np.float64)


@dataclass(frozen=True, eq=False)
class _Rider:
    """A block of a basis that rides a pass."""

    space: Subspace
    block: Float
    """U, (m, b)"""
    columns: tuple[int, int]
    """Which columns of the basis it is."""
    dtype: np.dtype[Any]
    """Of the products."""
    probes: Float | None = None
    """Z, (m, s), where they come along."""

    @property
    def riding(self) -> Float:
        """All columns that go through the pass."""
        return self.block if self.probes is None else np.concatenate([self.block, self.probes], axis=1)


def extend(spaces: Sequence[Subspace], blocks: Sequence[Float], number: int) -> Iterator[None]:
    """Extend each basis by its block, and multiply again what has to be: one pass, or as few as memory allows.

    Yields after each of them.

    Parameters
    ----------
    blocks
        For each space (m, b), orthonormal and orthogonal to its basis; none where b is zero.
    number
        Of the round, for names.
    """
    riders = [rider for space, block in zip(spaces, blocks, strict=True) for rider in _riders(space, block)]
    for load in _loads(riders):
        widened: dict[int, Float] = {}
        for rider in load:
            space = rider.space
            new = rider.columns[0] == space.width
            if new or id(space) not in widened:
                widened[id(space)] = np.concatenate([space.basis, rider.block], axis=1) if new else space.basis
        for space in _spaces(load):
            save_array(space.folder / f"basis-{number}.npy", widened[id(space)])
        found = again(partial(_pass, load, number), "extend")
        for space in _spaces(load):
            mine = [made for rider, made in zip(load, found, strict=True) if rider.space is space]
            space.widen(widened[id(space)], number, sorted(mine, key=lambda made: not made[0].single))
        number += 1
        yield


def _riders(space: Subspace, block: Float) -> list[_Rider]:
    own = space.training.whole.view.source.dtype
    riders = [
        _Rider(space, space.basis[:, slice(*space.blocks[k].columns)], space.blocks[k].columns, _DOUBLE)
        for k in space.hidden_by_rounding
    ]
    if block.shape[1]:
        columns = (space.width, space.width + block.shape[1])
        if space.double:
            riders.insert(0, _Rider(space, block, columns, _DOUBLE))
        elif space.blocks:
            riders.insert(0, _Rider(space, block, columns, own))
        else:
            rng = np.random.default_rng(len(block))
            riders.insert(0, _Rider(space, block, columns, _DOUBLE, rng.standard_normal((len(block), PROBES))))
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
    return (
        [rider.space.training.whole for rider in load],
        [Columns(rider.riding, "each", None, rider.dtype, place) for place, rider in enumerate(load)],
    )


def _pass(load: Sequence[_Rider], number: int) -> list[tuple[Block, Float, Float | None]]:
    """Of each rider VᵀK_jU, and where K_jU lies: the products are written where they are made, and stay there."""
    slots_per_host, name = machine().slots_per_host, f"extend-pass-{number}"
    graph = pass_graph(*_columns(load), name)
    starts = np.cumsum([0, *graph.group_sizes()]).tolist()
    kernels = [tuple(range(first, last)) for first, last in itertools.pairwise(starts)]
    keep = delayed(keep_products, pure=False)
    wanted: list[Delayed] = []
    blocks: list[Block] = []
    for place, rider in enumerate(load):
        paths = [group_file(rider.space.folder, number, rider.columns[0], g) for g in range(len(kernels))]
        groups: Groups = tuple(zip(paths, kernels, strict=True))
        blocks.append(Block(rider.columns, groups, rider.dtype != _DOUBLE))
        for g, (total, path) in enumerate(zip(graph.total(place), paths, strict=True)):
            keeping = _keeping(rider, path, number, g)
            wanted.append(
                keep(total, keeping, kernels[g], slots_per_host, dask_key_name=f"{name}-keep-{place}.{g}-{graph.token}")
            )
    found: list[Any] = execute(wanted, [(task, size) for _, task, size in graph.units], name)
    made = []
    for place, (rider, block) in enumerate(zip(load, blocks, strict=True)):
        mine = found[place * len(kernels) : (place + 1) * len(kernels)]
        if rider.probes is not None:
            ahead = [_ahead(rider.space.folder, number, g) for g in range(len(kernels))]
            rider.space.probed = tuple(zip(ahead, kernels, strict=True))
        errors = None if mine[0][1] is None else np.concatenate([one for _, one in mine])
        made.append((block, np.concatenate([cross for cross, _ in mine]), errors))
    return made


def _keeping(rider: _Rider, path: str, number: int, group: int) -> Keeping:
    space = rider.space
    probes = str(space.folder / "probes.npy")
    if rider.probes is not None and not group:
        save_array(probes, rider.probes)
    single = rider.dtype != _DOUBLE
    double = tuple((b.columns, ProductFiles((b.groups,))) for b in space.blocks if single and not b.single)
    return Keeping(
        path,
        str(space.folder / f"basis-{number}.npy"),
        rider.columns,
        probes,
        _ahead(space.folder, number, group) if rider.probes is not None else "",
        ProductFiles((space.probed,)) if single else None,
        double,
    )


def _ahead(folder: Path, number: int, group: int) -> str:
    return str(folder / f"probed-{number}-{group}.npy")
