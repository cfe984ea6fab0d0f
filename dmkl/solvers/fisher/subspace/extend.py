"""The pass that multiplies new basis vectors of all subspaces with all kernels.

It repeats blocks whose products were too coarse for the certificate. The first block of a subspace is multiplied in
double precision, together with the probes that measure the rounding of later blocks, which are multiplied in the
precision of the kernels (see `rounding`): the first block makes up most of the solutions.
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
from dmkl.solvers.fisher.subspace.space import Block, TrainingSubspace
from dmkl.solvers.fisher.subspace.tasks import Keeping, Made, ProductFiles, Strips, group_file, keep_products
from dmkl.solvers.requests import Pass, Solver, Tasks

__all__ = ["extend"]

_DOUBLE = np.dtype(np.float64)


@dataclass(frozen=True, eq=False)
class _Factor:
    """A block of a basis that a pass multiplies."""

    space: TrainingSubspace
    block: Strips
    """U, (m, b)"""
    columns: tuple[int, int]
    """Its columns in the basis."""
    dtype: np.dtype[Any]
    """The precision of the products."""
    probes: bool = False
    """Whether the probes Z, (m, s), are multiplied too."""

    @property
    def new(self) -> bool:
        """Whether the block is not in the basis yet."""
        return self.columns[0] == self.space.width

    @property
    def multiplied(self) -> list[Strips]:
        """The block, and the probes if they are multiplied too."""
        rows = self.block.rows
        return [self.block, *([Strips((self.space.probes,), rows, (0, PROBES))] if self.probes else [])]


def extend(
    spaces: Sequence[TrainingSubspace], blocks: Sequence[Strips], number: int, passed: Callable[[], None]
) -> Solver[None]:
    """Extend each basis by its block, and repeat products in double precision where needed.

    This takes one pass, or as few as memory allows.

    Parameters
    ----------
    blocks
        For each space (m, b), orthonormal and orthogonal to its basis; b may be zero.
    number
        The number of the round, for names of files and tasks.
    passed
        Called after each pass.
    """
    factors = [factor for space, block in zip(spaces, blocks, strict=True) for factor in _factors(space, block)]
    for load in _loads(factors):
        new = {id(factor.space): factor.block for factor in load if factor.new}
        widths = {id(space): space.width + (new[id(space)].width if id(space) in new else 0) for space in _spaces(load)}
        writing = [task for space in _spaces(load) for task in space.widen_basis(new.get(id(space)), number)]
        yield Tasks("widen-basis", writing)
        products = yield Pass("extend", partial(_pass, load, number))
        work, own, blocks_of = list[Any](), list[Any](), list[list[Block]]()
        for space in _spaces(load):
            of_space = [pair for factor, pair in zip(load, products, strict=True) if factor.space is space]
            of_space.sort(key=lambda pair: not pair[0].single)
            work += [space.widening(number, widths[id(space)]), space.projecting(number)]
            own += [[made for _, made in of_space], space.targets]
            blocks_of.append([block for block, _ in of_space])
        yield Tasks("project", work, own=own)
        for space, made in zip(_spaces(load), blocks_of, strict=True):
            space.take(number, widths[id(space)], made)
        number += 1
        passed()


def _factors(space: TrainingSubspace, block: Strips) -> list[_Factor]:
    stored = space.training.whole.view.source.dtype
    factors = [
        _Factor(space, space.columns(*space.blocks[k].columns), space.blocks[k].columns, _DOUBLE)
        for k in space.hidden_by_rounding
    ]
    if block.width:
        columns = (space.width, space.width + block.width)
        if space.double or not space.blocks:
            factors.insert(0, _Factor(space, block, columns, _DOUBLE, probes=not space.double))
        else:
            factors.insert(0, _Factor(space, block, columns, stored))
    return factors


def _spaces(load: Sequence[_Factor]) -> list[TrainingSubspace]:
    return list({id(factor.space): factor.space for factor in load}.values())


def _loads(factors: Sequence[_Factor]) -> list[list[_Factor]]:
    """Group blocks into passes: as many in one as a task has memory for."""
    loads: list[list[_Factor]] = []
    host = machine()
    for factor in factors:
        together = [*loads[-1], factor] if loads else [factor]
        if loads and sum(pass_bytes(*_columns(together), host).values()) <= host.task_bytes:
            loads[-1] = together
        else:
            loads.append([factor])
    return loads


def _columns(load: Sequence[_Factor]) -> tuple[list[Lens], list[Columns]]:
    """Views and shapes of the right-hand sides of a pass; a task of its own reads the vectors."""
    columns = []
    for number, factor in enumerate(load):
        shape = factor.block.rows, sum(part.width for part in factor.multiplied)
        columns.append(Columns(np.broadcast_to(0.0, shape), "each", None, factor.dtype, number))
    return [factor.space.training.whole for factor in load], columns


def _vectors(blocks: Sequence[Sequence[Strips]]) -> list[Array]:
    """Read the right-hand sides of a pass."""
    return [np.concatenate([part.array() for part in parts], axis=1) for parts in blocks]


def _pass(load: Sequence[_Factor], number: int) -> list[tuple[Block, Made]]:
    """Compute VᵀK_jU of each block; tasks write the products K_jU to files, where they stay."""
    slots_per_host, name = machine().slots_per_host, f"extend-pass-{number}"
    kept = [factor.space.round_file() for factor in load]

    def then(group: int, kernels: tuple[int, ...]) -> Last:
        keepings = [
            _keeping(factor, number, group, kernels, None if stem is None else f"{stem}-{group}")
            for factor, stem in zip(load, kept, strict=True)
        ]
        return partial(keep_products, keepings=keepings, kernels=kernels, tasks_per_machine=slots_per_host)

    # The products, n × rows × b, are by far the largest result. They stay where tasks compute them; only VᵀK_jU,
    # n × r × b, comes back.
    graph = pass_graph(
        *_columns(load), name, then=then, vectors=partial(_vectors, [factor.multiplied for factor in load])
    )
    by_group: list[Any] = execute([results for _, results in graph.groups], graph.units, name)
    made = []
    for number_in_load, factor in enumerate(load):
        results = [of_group[number_in_load] for of_group in by_group]
        files = [(group, kernels) for group, (kernels, _) in enumerate(graph.groups)]
        groups = tuple((group_file(factor.space.folder, number, factor.columns[0], g), kernels) for g, kernels in files)
        if factor.probes:
            factor.space.probed = tuple((_ahead(factor.space.folder, number, g), kernels) for g, kernels in files)
        hidden = None if results[0][1] is None else tuple(errors for _, errors in results)
        block = Block(factor.columns, groups, factor.dtype != _DOUBLE)
        made.append((block, Made(factor.columns, tuple(cross for cross, _ in results), hidden)))
    return made


def _keeping(factor: _Factor, number: int, group: int, kernels: tuple[int, ...], results: str | None) -> Keeping:
    space = factor.space
    single = factor.dtype != _DOUBLE
    double = tuple((b.columns, ProductFiles((b.groups,)).of(kernels)) for b in space.blocks if single and not b.single)
    return Keeping(
        group_file(space.folder, number, factor.columns[0], group),
        space.file("basis", number),
        factor.columns,
        space.probes,
        _ahead(space.folder, number, group) if factor.probes else "",
        ProductFiles((space.probed,)).of(kernels) if single else None,
        double,
        results,
    )


def _ahead(folder: Path, number: int, group: int) -> str:
    return str(folder / f"probed-{number}-{group}.npy")
