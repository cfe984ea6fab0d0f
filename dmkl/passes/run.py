"""A pass as a Dask graph: which tasks there are, what they are called, how their results are put together."""

from __future__ import annotations

import itertools
import operator
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from dask.delayed import Delayed, delayed

from dmkl import settings
from dmkl.arrays import Array
from dmkl.errors import InputError
from dmkl.numerics.chain import Fitted
from dmkl.passes.execute import Machine, again, check_memory, execute, graph_token, machine, send_all
from dmkl.passes.lanes import Lane, lanes_of
from dmkl.passes.loading import Loaded, loaded
from dmkl.passes.memory import HeldTiles
from dmkl.passes.riders import Columns
from dmkl.passes.sweep import Partial, Workbench, merge, sweep
from dmkl.passes.units import Unit, units_of
from dmkl.passes.view import Lens, TileKey, covering

__all__ = ["PassGraph", "add_in_tree", "pass_bytes", "pass_graph", "run_pass"]

_FAN_IN = 8
"""Results added by one task: few enough to bound its memory, many enough to keep the tree flat."""


@dataclass(frozen=True)
class PassGraph:
    """The tasks of one pass, none of them run."""

    units: list[tuple[Unit, Delayed, int]]
    """Each with the kernels it covers and the bytes it reads."""
    parts: list[list[Delayed]]
    """For each unit and each of the columns, that unit's part of the result."""
    columns: list[Columns]
    name: str
    token: str
    """Prefix and end of every key."""

    def total(self, position: int) -> list[Delayed]:
        """The results for the columns at `position`: one Delayed for a sum, one for each group of kernels otherwise."""
        name = f"{self.name}-add-{position}"
        if self.columns[position].want == "sum":
            return [add_in_tree([parts[position] for parts in self.parts], name)]
        groups: dict[int, list[Delayed]] = {}
        for (unit, _, _), parts in zip(self.units, self.parts, strict=True):
            groups.setdefault(int(unit.kernels[0]), []).append(parts[position])
        return [add_in_tree(group, name) for group in groups.values()]

    def group_sizes(self) -> list[int]:
        """Kernels in each group of `total`."""
        return [len(unit.kernels) for unit, _, _ in self.units if unit.first]


def add_in_tree(parts: list[Delayed], name: str) -> Delayed:
    """The sum of some results, by tasks that add a few each; `name` is the prefix of their keys."""
    for level in itertools.count():
        if len(parts) == 1:
            break
        chunks = [parts[start : start + _FAN_IN] for start in range(0, len(parts), _FAN_IN)]
        parts = [
            chunk[0]
            if len(chunk) == 1
            else delayed(merge, pure=False)(chunk, dask_key_name=f"{name}.{level}-{chunk[0].key}")
            for chunk in chunks
        ]
    return parts[0]


def pass_graph(
    lenses: Sequence[Lens],
    columns: Sequence[Columns],
    name: str,
    token: str | None = None,
    fitted: Delayed | None = None,
) -> PassGraph:
    """Build the tasks of one pass; nothing is computed.

    The lenses are views of the same kernels of one source; each of the columns goes through one of them. `name` is the
    prefix of every key, such as ``apply-pass-3``, and `token` identifies the work for its end, a new one each time
    where it is missing. `fitted` stands in for the statistics of a single lens where they are still to be computed.
    """
    where = machine()
    view = covering([lens.view for lens in lenses])
    _check_pass(lenses, columns, where)
    # A graph that is kept for later keeps no buffers: they would live as long as it does.
    bench = Workbench() if token is None else None
    token = uuid.uuid4().hex if token is None else graph_token(where, token)
    cut = _units(lenses, columns, where)
    # One node for what every task takes: the graph holds it once, a worker receives it once.
    parts_of = [unit for unit, _ in cut]
    (shared,) = send_all({f"{name}-shared-{token}": _shared(lenses, columns, parts_of, fitted, bench)})
    units, parts = [], []
    for number, (unit, held) in enumerate(cut):
        task = delayed(_sweep_part, pure=False)(
            shared, fitted, number, where.slots_per_host, held, dask_key_name=f"{name}-{number}-{token}"
        )
        units.append((unit, task, len(unit.kernels) * len(unit.tiles) * view.bytes_per_tile))
        parts.append(
            [
                delayed(operator.getitem, pure=False)(task, k, dask_key_name=f"{name}-part-{number}.{k}-{token}")
                for k in range(len(columns))
            ]
        )
    return PassGraph(units, parts, list(columns), name, token)


@dataclass(frozen=True)
class _Shared:
    """What all tasks of a pass take."""

    lenses: list[Lens]
    columns: list[Columns]
    units: list[Unit]
    lanes: list[Lane]
    ready: Loaded | None
    """The vectors, where all kernels see them alike; the columns are without them then."""
    bench: Workbench | None


def _shared(
    lenses: Sequence[Lens],
    columns: Sequence[Columns],
    units: list[Unit],
    fitted: Delayed | None,
    bench: Workbench | None,
) -> _Shared:
    through = [replace(lens, fitted=lens.fitted.for_products()) for lens in lenses]
    lanes, ready, riding = lanes_of(lenses, columns), None, list(columns)
    if fitted is None and all(lens.fitted.same_for_all for lens in lenses):
        ready, riding = loaded(through, columns, lanes, 0), [c.without_vectors() for c in columns]
    return _Shared(through, riding, units, lanes, ready, bench)


def _sweep_part(
    shared: _Shared, fitted: Fitted | None, number: int, tasks_per_machine: int, held: dict[TileKey, Array] | None
) -> Partial:
    lenses = shared.lenses if fitted is None else [replace(shared.lenses[0], fitted=fitted)]
    return sweep(
        lenses,
        shared.units[number],
        shared.columns,
        tasks_per_machine,
        held,
        lanes=shared.lanes,
        ready=shared.ready,
        bench=shared.bench,
    )


def _units(lenses: Sequence[Lens], columns: Sequence[Columns], where: Machine) -> list[tuple[Unit, Any]]:
    """The tasks, each with its tiles where they are held in memory."""
    view = covering([lens.view for lens in lenses])
    if isinstance(view.source, HeldTiles):
        return view.source.units(view)
    # The K_jV of a task's kernels are all in memory at its end: no more of them than a quarter of it holds.
    most = max(1, where.task_bytes // 4 // max(1, _bytes_per_kernel(lenses, columns)))
    return [(unit, None) for unit in units_of(view, most)]


def _bytes_per_kernel(lenses: Sequence[Lens], columns: Sequence[Columns]) -> int:
    return sum(c.width * c.dtype.itemsize * lenses[c.lens].view.shape[1] for c in columns if c.want == "each")


def _check_pass(lenses: Sequence[Lens], columns: Sequence[Columns], where: Machine) -> None:
    source = lenses[0].view.source
    for c in columns:
        view = lenses[c.lens].view
        _, n_rows, n_cols = view.shape
        if c.block.ndim != 2 or c.block.shape[0] != n_cols:
            msg = f"V has shape {c.block.shape}, expected ({n_cols}, b): one row for each column of the kernels"
            raise InputError(msg)
        if c.want == "project" and not view.is_square:
            way_out = "take K[rows, rows] first" if source.symmetric else "this set is rectangular; use apply"
            msg = (
                f"project needs the same samples as rows and columns, got {n_rows} rows and {n_cols} columns; {way_out}"
            )
            raise InputError(msg)
    check_memory(
        "this pass",
        pass_bytes(lenses, columns, where),
        where.task_bytes,
        "Set dmkl.memory higher or dmkl.block-width lower, give the workers more memory, or store the set with "
        "smaller tiles",
    )


def pass_bytes(lenses: Sequence[Lens], columns: Sequence[Columns], where: Machine) -> dict[str, int]:
    """Bytes that one task of a pass holds, by what they are."""
    view = covering([lens.view for lens in lenses])
    tiling, dtype = view.source.tiling, view.source.dtype
    width, tile_bytes = sum(c.width for c in columns), tiling.tile**2 * dtype.itemsize
    group = max(len(unit.kernels) for unit, _ in _units(lenses, columns, where))
    return {
        # One is read while the other is multiplied, as it lies or cut and cast.
        "tiles": 2 * tile_bytes + tiling.tile**2 * max(c.dtype.itemsize for c in columns) + view.source.scratch_bytes,
        "vectors": tiling.cols * width * 16,
        "products": tiling.rows * width * 8 * 2,
        "results": group * _bytes_per_kernel(lenses, columns),
    }


_COUNTER = itertools.count(1)


def run_pass(lenses: Sequence[Lens], columns: Sequence[Columns], verb: str = "apply") -> tuple[list[Array], int]:
    """Run one pass and bring its results here, and the number of passes run.

    Columns beyond the setting ``dmkl.block-width`` ride further passes. Results are (kernels, rows, b), (rows, b) or
    (kernels, b, b), as `Columns.want` says.
    """
    wide, places = _joined(columns)
    results: list[list[Array]] = [[] for _ in wide]
    loads = _loads(wide)
    for load in loads:
        name = f"{verb}-pass-{next(_COUNTER)}"
        run = again(partial(_run, lenses, [c for _, c in load], name), name)
        for (owner, _), result in zip(load, run, strict=True):
            results[owner].append(result)
    axis = {"each": 2, "sum": 1, "project": 0}
    whole = [np.concatenate(r, axis=axis[c.want]) if len(r) > 1 else r[0] for r, c in zip(results, wide, strict=True)]
    found = [whole[k] if part is None else np.ascontiguousarray(whole[k][..., part]) for k, part in places]
    return found, len(loads)


def _run(lenses: Sequence[Lens], columns: Sequence[Columns], name: str) -> list[Array]:
    graph = pass_graph(lenses, columns, name)
    totals = [graph.total(position) for position in range(len(columns))]
    flat = execute([d for total in totals for d in total], [(task, size) for _, task, size in graph.units], name)
    found = iter(flat)
    pieces = [[next(found) for _ in total] for total in totals]
    return [p[0] if c.want == "sum" else np.concatenate(p) for c, p in zip(columns, pieces, strict=True)]


def _joined(columns: Sequence[Columns]) -> tuple[list[Columns], list[tuple[int, slice | None]]]:
    """The columns of one kind and precision through one lens side by side, and where each of those given is there.

    A graph has tasks for each of the columns: for many narrow ones these would cost more than the products.
    """
    alike: dict[Any, list[int]] = {}
    for k, c in enumerate(columns):
        alike.setdefault(k if c.want == "project" else (c.want, c.lens, c.dtype), []).append(k)
    wide: list[Columns] = []
    places: list[tuple[int, slice | None]] = [(0, None)] * len(columns)
    for members in alike.values():
        some = [columns[k] for k in members]
        if len(some) == 1:
            places[members[0]] = (len(wide), None)
            wide += some
            continue
        ends = np.cumsum([c.width for c in some]).tolist()
        for k, c, end in zip(members, some, ends, strict=True):
            places[k] = (len(wide), slice(end - c.width, end))
        weights = [c.weights for c in some if c.weights is not None]
        together = np.concatenate(weights, axis=1) if weights else None
        wide.append(replace(some[0], block=np.concatenate([c.block for c in some], axis=1), weights=together))
    return wide, places


def _loads(columns: Sequence[Columns]) -> list[list[tuple[int, Columns]]]:
    """Distribute the columns over as few passes as the block width allows, each with its place among those given."""
    width = settings.block_width()
    loads: list[list[tuple[int, Columns]]] = []
    room = 0
    for owner, c in enumerate(columns):
        start, end = 0, -1
        while end < c.width:
            if room == 0 or (c.want == "project" and c.width > room):
                loads.append([])
                room = width
            end = c.width if c.want == "project" else min(c.width, start + room)
            loads[-1].append((owner, c if end - start == c.width else _part(c, slice(start, end))))
            room = max(0, room - (end - start))
            start = end
    return loads


def _part(c: Columns, chosen: slice) -> Columns:
    return replace(c, block=c.block[:, chosen], weights=None if c.weights is None else c.weights[:, chosen])
