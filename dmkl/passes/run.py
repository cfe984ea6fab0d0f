"""A pass as a Dask graph: its tasks, their keys, and how their results are combined.

If work fails as sound kernels cannot make it fail, `looking_for_damage` searches for tiles that were damaged on disk
after their first check, before another cause is reported.
"""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from dask.delayed import Delayed

from dmkl import settings
from dmkl.arrays import Array, TileKey
from dmkl.errors import DegenerateKernelError, DmklError, IndefiniteKernelError, refuse
from dmkl.numerics.steps import Fitted
from dmkl.passes.execute import (
    FAN_IN,
    Machine,
    Task,
    add_in_tree,
    again,
    check_memory,
    execute,
    graph_token,
    machine,
    run_tasks,
    send_all,
    task,
)
from dmkl.passes.memory import HeldTiles
from dmkl.passes.sweep import (
    Buffers,
    Columns,
    Lane,
    Last,
    Loaded,
    Partial,
    Workbench,
    add_rows,
    aligned,
    lanes_of,
    loaded,
    merge,
    merge_partials,
    sweep,
)
from dmkl.passes.view import Lens, Unit, View, covering, units_of
from dmkl.store.reader import StoreReader

Then = Callable[[int, tuple[int, ...]], Last]
"""Maps a group of kernels, by its number and positions, to a function of their results that runs where they are."""


@dataclass(frozen=True)
class PassGraph:
    """The tasks of one pass, none of them run."""

    units: list[tuple[Task, int]]  # The tasks that read tiles, each with the bytes that it reads.
    groups: list[tuple[tuple[int, ...], Task]]
    """Positions of kernels, and their results for the columns that are not sums over all kernels (or the values that
    `then` computes from them)."""
    sums: Task | None  # The results for the columns that are sums over all kernels.
    token: str  # The last part of every key.


def pass_graph(
    lenses: Sequence[Lens],
    columns: Sequence[Columns],
    name: str,
    token: str | None = None,
    fitted: Delayed | None = None,
    then: Then | None = None,
    vectors: Callable[[], Sequence[Array]] | None = None,
) -> PassGraph:
    """Build the tasks of one pass without computing anything.

    The lenses are views of the same kernels of one source; each of the columns goes through one of them. `name` is the
    prefix of every key, such as ``apply-pass-3``, and `token` the last part, new for each call by default. A graph with
    a token is kept for later: it has one block of columns, and groups have its result itself instead of a list.
    `fitted` replaces the statistics of a single lens if they are not computed yet. `then` returns, for a group of
    kernels, a function that the task with their results calls on them, so that the results move nowhere; the columns
    then contain no sums. `vectors` returns the blocks of the columns, which then give their shapes alone: it is called
    by each process with tasks.
    """
    host = machine()
    view = covering([lens.view for lens in lenses])
    _check_pass(lenses, columns, host)
    # A graph that is kept for later shares no buffers: they would live as long as the graph.
    lazy = token is not None
    bench = None if lazy else Workbench()
    token = uuid.uuid4().hex if token is None else graph_token(host, token)
    cut = _units(lenses, columns, host)
    given = columns if vectors is None else [c.without_vectors() for c in columns]
    through = [replace(lens, statistics=lens.fitted.for_products()) for lens in lenses]
    lanes = lanes_of(lenses, columns) if view.factor_widths is None else []
    # All tasks take one node: the graph holds it once, and a worker receives it once.
    shared_value = _Shared(through, list(given), [unit for unit, _ in cut], lanes, bench, vectors)
    (shared,) = send_all({f"{name}-shared-{token}": shared_value}, lazy=lazy)
    members: dict[tuple[int, ...], list[int]] = {}
    for number, (unit, _) in enumerate(cut):
        members.setdefault(tuple(unit.kernels.tolist()), []).append(number)
    # Sums over all kernels are added in a tree over all tasks; other results are put together by group of kernels.
    sums = [k for k, c in enumerate(columns) if c.want == "sum"]
    others = [k for k, c in enumerate(columns) if c.want != "sum"]
    units: list[tuple[Task, int]] = []
    groups: list[tuple[tuple[int, ...], Task]] = []
    for group, (kernels, numbers) in enumerate(members.items()):
        last = _first if lazy else then(group, kernels) if then else None
        whole = cut[numbers[0]][0].whole
        parts = []
        for number in numbers:
            (unit, tiles), key = cut[number], f"{name}-{number}-{token}"
            of_unit = (shared, fitted, number, host.slots_per_host, tiles, last if whole else None)
            sweeping = task(_sweep_part, *of_unit, key=key, lazy=lazy)
            units.append((sweeping, view.bytes_of(unit)))
            if others:
                parts.append(_of_columns(sweeping, others, columns, f"{name}-part-{number}", lazy))
        if others and not whole:
            # Parts of one kernel are merged before the steps are applied: centering a part would need the column sums
            # of the whole product. The last few are merged by the task that applies the steps.
            parts = add_in_tree(parts, f"{name}-add", merge_partials, most=FAN_IN, lazy=lazy)
            key = f"{name}-finish-{group}-{token}"
            parts = [task(_finish, shared, fitted, kernels[0], others, parts, last, key=key, lazy=lazy)]
        groups += [(kernels, part) for part in parts]
    total = None
    if sums:
        parts = [_of_columns(u, sums, columns, f"{name}-sums-{number}", lazy) for number, (u, _) in enumerate(units)]
        (total,) = add_in_tree(parts, f"{name}-add", merge_partials, lazy=lazy)
    return PassGraph(units, groups, total, token)


def _first(results: Partial, buffers: Buffers) -> Any:
    return results[0]


def _of_columns(unit: Task, positions: list[int], columns: Sequence[Columns], name: str, lazy: bool) -> Task:
    """The results of some of the columns; the task itself if it has no others, which would have to be moved as well."""
    if len(positions) < len(columns):
        unit = task(_pick, unit, positions, key=f"{name}-{unit.key}", lazy=lazy)
    return unit


def _pick(partial: Partial, positions: list[int]) -> Partial:
    return [partial[position] for position in positions]


_LOADING = threading.Lock()


@dataclass(frozen=True)
class _Shared:
    lenses: list[Lens]
    columns: list[Columns]
    units: list[Unit]
    lanes: list[Lane]
    bench: Workbench | None
    vectors: Callable[[], Sequence[Array]] | None
    """The function that makes the blocks of the columns, if they are not here yet."""

    def ready(self, fitted: Fitted | None) -> tuple[list[Lens], list[Columns], Loaded | None]:
        """Lenses, columns, and the vectors in the form that products take, if all kernels share them.

        The first task of a process makes them, and the others wait for it. A separate task for the vectors would leave
        them on one worker. Dask would then prefer that worker for all tasks that need them, and the other workers would
        be idle until it has time to send them.
        """
        with _LOADING:
            if not self._ready:
                # `fitted` are the statistics of a single lens, computed after the graph was built.
                lenses = self.lenses if fitted is None else [replace(self.lenses[0], statistics=fitted)]
                columns, vectors = self.columns, None
                if self.vectors is not None:
                    columns = [replace(c, block=block) for c, block in zip(columns, self.vectors(), strict=True)]
                factored = lenses[0].view.factor_widths is not None  # products with factors take whole vectors
                if not factored and all(lens.fitted.same_for_all for lens in lenses):
                    vectors = loaded(lenses, columns, self.lanes, 0)
                    columns = [c.without_vectors() for c in columns]
                self._ready.append((lenses, columns, vectors))
            return self._ready[0]

    @cached_property
    def _ready(self) -> list[tuple[list[Lens], list[Columns], Loaded | None]]:
        return []

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_ready"}

    def __sizeof__(self) -> int:
        # Dask and `send_all` estimate the time of sending from this size.
        return sum(c.block.nbytes for c in self.columns) + sum(lens.fitted.n_bytes for lens in self.lenses)


def _sweep_part(
    shared: _Shared,
    fitted: Fitted | None,
    number: int,
    tasks_per_machine: int,
    tiles: dict[TileKey, Array] | None,
    last: Last | None,
) -> Any:
    lenses, columns, vectors = shared.ready(fitted)
    unit, lanes, bench = shared.units[number], shared.lanes, shared.bench
    return sweep(lenses, unit, columns, tasks_per_machine, tiles, lanes=lanes, vectors=vectors, bench=bench, last=last)


def _finish(
    shared: _Shared, fitted: Fitted | None, kernel: int, positions: list[int], parts: list[Partial], last: Last | None
) -> Any:
    """The results of a kernel whose tiles are divided among several tasks, which left out the steps."""
    (lenses, columns, vectors), results = shared.ready(fitted), list[Any]()
    for position, same in zip(positions, zip(*parts, strict=True), strict=True):
        c = columns[position]
        if c.want != "each":
            results.append(merge(list(same)))
            continue
        chain = lenses[c.lens].fitted
        offsets = chain.right(kernel, aligned(c.block))[1] if vectors is None else vectors.offsets[position]
        product = chain.left(kernel, add_rows(same, len(lenses[c.lens].view.rows)), offsets)
        results.append(product.astype(c.dtype, copy=False)[None])
    return results if last is None else last(results, Buffers())


def _units(lenses: Sequence[Lens], columns: Sequence[Columns], host: Machine) -> list[tuple[Unit, Any]]:
    """The tasks, each with its tiles if these are in memory."""
    view = covering([lens.view for lens in lenses])
    if isinstance(view.source, HeldTiles):
        return view.source.units(view)
    # A task holds the K_jV of all its kernels at its end; they may take a quarter of its memory.
    most = max(1, host.task_bytes // 4 // max(1, _bytes_per_kernel(lenses, columns)))
    return [(unit, None) for unit in units_of(view, most)]


def _bytes_per_kernel(lenses: Sequence[Lens], columns: Sequence[Columns]) -> int:
    return sum(c.width * c.dtype.itemsize * lenses[c.lens].view.shape[1] for c in columns if c.want == "each")


def _check_pass(lenses: Sequence[Lens], columns: Sequence[Columns], host: Machine) -> None:
    source = lenses[0].view.source
    for c in columns:
        view = lenses[c.lens].view
        _, n_rows, n_cols = view.shape
        if c.want == "project" and not view.is_square:
            way_out = "take K[rows, rows] first" if source.symmetric else "this set is rectangular; use apply"
            refuse(
                f"project needs the same samples as rows and columns, got {n_rows} rows and {n_cols} columns; {way_out}"
            )
    check_memory(
        "this pass",
        pass_bytes(lenses, columns, host),
        host.task_bytes,
        "Set dmkl.memory higher or dmkl.block-width lower, give the workers more memory, or store the set with "
        "smaller tiles",
    )


def pass_bytes(lenses: Sequence[Lens], columns: Sequence[Columns], host: Machine) -> dict[str, int]:
    """Bytes that one task of a pass holds, by name."""
    view = covering([lens.view for lens in lenses])
    tiling, dtype = view.source.tiling, view.source.dtype
    width, tile_bytes = sum(c.width for c in columns), tiling.tile**2 * dtype.itemsize
    group = max(len(unit.kernels) for unit, _ in _units(lenses, columns, host))
    return {
        # One tile is read while another is multiplied, either as stored or as a copy that is cut and cast.
        "tiles": 2 * tile_bytes + tiling.tile**2 * max(c.dtype.itemsize for c in columns) + view.source.scratch_bytes,
        # The given block and its carried copy, in up to float64 each; then the running totals and one product.
        "vectors": tiling.cols * width * 16,
        "products": tiling.rows * width * 8 * 2,
        "results": group * _bytes_per_kernel(lenses, columns),
    }


_COUNTER = itertools.count(1)


def run_pass(lenses: Sequence[Lens], columns: Sequence[Columns], verb: str = "apply") -> tuple[list[Array], int]:
    """Run one pass and return its results, and the number of passes run.

    Columns beyond the setting ``dmkl.block-width`` go through further passes. Results are (kernels, rows, b),
    (rows, b) or (kernels, b, b), as `Columns.want` says.
    """
    wide, places = _joined(columns)
    results: list[list[Array]] = [[] for _ in wide]
    loads = _loads(wide)
    for load in loads:
        name = f"{verb}-pass-{next(_COUNTER)}"
        run = again(partial(_run, lenses, [c for _, c in load], name), name)
        for (owner, _), result in zip(load, run, strict=True):
            results[owner].append(result)
    # A block that was split between passes is put together along its columns.
    whole = [np.concatenate(r, axis=-1) if len(r) > 1 else r[0] for r in results]
    return [np.ascontiguousarray(whole[k][..., part]) for _, (k, part) in sorted(places.items())], len(loads)


def _run(lenses: Sequence[Lens], columns: Sequence[Columns], name: str) -> list[Array]:
    graph = pass_graph(lenses, columns, name)
    wanted = [result for _, result in graph.groups] + ([] if graph.sums is None else [graph.sums])
    results = execute(wanted, graph.units, name)
    sums = iter(() if graph.sums is None else results.pop())
    others = iter([np.concatenate(pieces) for pieces in zip(*results, strict=True)])
    return [next(sums) if c.want == "sum" else next(others) for c in columns]


def _joined(columns: Sequence[Columns]) -> tuple[list[Columns], dict[int, tuple[int, slice]]]:
    """Put the columns of one kind, precision and lens side by side; return them, and the place of each given block.

    The steps are applied to all of them at once: for many narrow blocks this would take longer than the products.
    """
    alike: dict[Any, list[int]] = {}
    for k, c in enumerate(columns):
        alike.setdefault(k if c.want == "project" else (c.want, c.lens, c.dtype), []).append(k)
    wide: list[Columns] = []
    places: dict[int, tuple[int, slice]] = {}
    for members in alike.values():
        group = [columns[k] for k in members]
        for k, c, end in zip(members, group, np.cumsum([c.width for c in group]).tolist(), strict=True):
            places[k] = (len(wide), slice(end - c.width, end))
        if len(group) > 1:
            weights = [c.weights for c in group if c.weights is not None]
            together = np.concatenate(weights, axis=1) if weights else None
            group = [replace(group[0], block=np.concatenate([c.block for c in group], axis=1), weights=together)]
        wide += group
    return wide, places


def _loads(columns: Sequence[Columns]) -> list[list[tuple[int, Columns]]]:
    """Distribute the columns over as few passes as the block width allows, with positions among those given."""
    width = settings.block_width()
    loads: list[list[tuple[int, Columns]]] = []
    room = 0
    for owner, c in enumerate(columns):
        start, end = 0, -1
        # A projection VᵀKV needs all columns of V in one pass; other blocks may be split between passes.
        while end < c.width:
            if room == 0 or (c.want == "project" and c.width > room):
                loads.append([])
                room = width
            end = c.width if c.want == "project" else min(c.width, start + room)
            part = slice(start, end)
            weights = None if c.weights is None else c.weights[:, part]
            loads[-1].append((owner, replace(c, block=c.block[:, part], weights=weights)))
            room = max(0, room - (end - start))
            start = end
    return loads


# --- damage that appears during work ----------------------------------------------------------------------------------


@contextmanager
def looking_for_damage(view: View) -> Iterator[None]:
    """If work on a view fails in a way that sound kernels cannot cause, check its tiles on disk first.

    CorruptTileError is raised if a tile is missing or differs from what was written, otherwise the original error.
    """
    try:
        yield
    except Exception as error:
        # Errors that dmkl raises on purpose concern arguments and machines. The exceptions are an indefinite or a
        # degenerate kernel, which damaged tiles can imitate.
        if isinstance(error, IndefiniteKernelError | DegenerateKernelError) or not isinstance(error, DmklError):
            refuse_damage(view, error)
        raise


def refuse_damage(view: View, reason: Exception | None = None) -> None:
    """Read all tiles of the kernels of a view again: one pass; CorruptTileError if one is not what was written."""
    source = view.source
    if not isinstance(source, StoreReader):
        return
    n_bytes = source.tiling.tile**2 * source.dtype.itemsize * sum(1 for _ in source.tiling.pairs())
    # One task for each kernel, which returns an error instead of raising it: one damaged tile must not hide the others'
    # tasks.
    work = [partial(StoreReader.verify, kernel=int(kernel)) for kernel in view.kernels]
    for error in run_tasks("verify", work, source, task_bytes=n_bytes):
        if error is not None:
            raise error from reason
