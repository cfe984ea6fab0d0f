"""The pass that multiplies the new basis vectors of all subspaces with all kernels."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from dask.delayed import Delayed, delayed

from dmkl.arrays import Float
from dmkl.passes.execute import again, execute, machine
from dmkl.passes.run import pass_bytes, pass_graph
from dmkl.passes.sweep import Columns
from dmkl.passes.view import Lens
from dmkl.solvers.fisher.subspace.space import Groups, Subspace
from dmkl.solvers.fisher.subspace.tasks import group_file, keep_products
from dmkl.solvers.workspace import save_array

__all__ = ["extend"]


def extend(spaces: Sequence[Subspace], blocks: Sequence[Float], number: int) -> Iterator[None]:
    """Extend each basis by its block: one pass, or as few as memory allows; yields after each of them.

    Parameters
    ----------
    blocks
        For each space (m, b), orthonormal and orthogonal to its basis; none where b is zero.
    number
        Of the round, for names.
    """
    riding = [(space, block) for space, block in zip(spaces, blocks, strict=True) if block.shape[1]]
    for load in _loads(riding):
        widened = [np.concatenate([space.basis, block], axis=1) for space, block in load]
        for (space, _), basis in zip(load, widened, strict=True):
            save_array(space.folder / f"basis-{number}.npy", basis)
        found = again(partial(_pass, load, number), "extend")
        for (space, _), basis, (cross, groups) in zip(load, widened, found, strict=True):
            space.widen(basis, cross, groups, number)
        number += 1
        yield


Load = list[tuple[Subspace, Float]]


def _loads(riding: Load) -> list[Load]:
    """Subspaces side by side as far as a task has memory for their columns."""
    loads: list[Load] = []
    where = machine()
    for item in riding:
        together = [*loads[-1], item] if loads else [item]
        if loads and sum(pass_bytes(*_columns(together), where).values()) <= where.task_bytes:
            loads[-1] = together
        else:
            loads.append([item])
    return loads


def _columns(load: Load) -> tuple[list[Lens], list[Columns]]:
    # In float64: the certificate of small λ needs K_jα to more digits than single precision sums have.
    double = np.dtype(np.float64)
    return (
        [space.training.whole for space, _ in load],
        [Columns(block, "each", None, double, place) for place, (_, block) in enumerate(load)],
    )


def _pass(load: Load, number: int) -> list[tuple[Float, Groups]]:
    """Of each space VᵀK_jU, and where K_jU lies: the products are written where they are made, and stay there."""
    slots_per_host, name = machine().slots_per_host, f"extend-pass-{number}"
    graph = pass_graph(*_columns(load), name)
    starts = np.cumsum([0, *graph.group_sizes()]).tolist()
    kernels = [tuple(range(first, last)) for first, last in itertools.pairwise(starts)]
    wanted: list[Delayed] = []
    layout: list[Groups] = []
    for place, (space, _) in enumerate(load):
        paths = [group_file(space.folder, number, g) for g in range(len(kernels))]
        layout.append(tuple(zip(paths, kernels, strict=True)))
        basis = str(space.folder / f"basis-{number}.npy")
        wanted += [
            delayed(keep_products, pure=False)(
                total, path, basis, slots_per_host, dask_key_name=f"{name}-keep-{place}.{g}-{graph.token}"
            )
            for g, (total, path) in enumerate(zip(graph.total(place), paths, strict=True))
        ]
    found: list[Any] = execute(wanted, [(task, size) for _, task, size in graph.units], name)
    n_groups = len(kernels)
    return [
        (np.concatenate(found[place * n_groups : (place + 1) * n_groups]), groups)
        for place, groups in enumerate(layout)
    ]
