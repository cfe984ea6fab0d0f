"""Writing computed tiles into a kernel set, in Dask tasks: each a tile of the kernels that share a source."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
from dask.delayed import delayed

from dmkl import progress
from dmkl.errors import InputError
from dmkl.features.tiles import FeatureTiles
from dmkl.passes.blas import pinned_blas
from dmkl.passes.execute import again, check_memory, check_shared, execute, graph_token, machine, send_all
from dmkl.store.tiles import TileWriter, crc32c
from dmkl.store.writer import StoreWriter

__all__ = ["write_kernels"]

Array = npt.NDArray[Any]
Float = npt.NDArray[np.float64]

_PARTS_BYTES = 256 * 2**20
"""Row sums of single tiles that are held until a kernel is whole."""


@dataclass(frozen=True)
class _Piece:
    """Kernels of one source, whose tiles are computed together."""

    kernels: tuple[int, ...]


@dataclass(frozen=True)
class _TilePart:
    """What a written tile adds to its kernel's record."""

    checksum: int
    row_sum: Float
    col_sum: Float | None
    diagonal: Float | None


def write_kernels(source: FeatureTiles, writer: StoreWriter, provenances: Sequence[dict[str, Any]]) -> None:
    """Write all kernels of a source that do not stand yet.

    A kernel of which an interrupted run has written some tiles goes on with the others: tiles that stand are read back
    for their sums, and not computed again.

    Raises
    ------
    InputError
        If an entry overflows the stored precision.
    MemoryBudgetError
        If a task would take more than its share of the memory; nothing is written.
    DiskFullError
        If the disk ran full; the same build goes on from there.
    """
    where, tiling = machine(), source.tiling
    check_memory(
        "building these kernels",
        {"tiles": 2 * tiling.tile**2 * source.dtype.itemsize, "features and distances": source.scratch_bytes},
        where.task_bytes,
        "Set dmkl.memory higher, give the workers more memory, or build with a smaller tile",
    )
    if writer.folder is not None:
        way_out = "write to a file system that all machines share, or compute on this machine"
        check_shared(writer.folder, "where the kernels are written", way_out)
    todo = [k for k in range(len(source.recipes)) if not writer.is_done(k, provenances[k]["identity"])]
    tile_bytes, tiles = tiling.tile**2 * source.dtype.itemsize, list(tiling.pairs())
    watch, started, done = progress.current(), time.monotonic(), 0
    for batch in _batches(_pieces(source, todo, len(tiles), where.slots), len(tiles), where.slots):
        chosen = [k for piece in batch for k in piece.kernels]
        writer.begin_kernels({k: provenances[k] for k in chosen})
        work = [(piece, tile) for piece in batch for tile in tiles]
        with writer.full_disk():
            parts = again(partial(_run, source, writer.tiles, work, tile_bytes), "build")
        for piece in batch:
            mine = [part for (owner, _), part in zip(work, parts, strict=True) if owner is piece]
            for position, k in enumerate(piece.kernels):
                _end(source, writer, k, tiles, [part[position] for part in mine])
        done += len(chosen)
        rate = done * len(tiles) * tile_bytes / (time.monotonic() - started)
        left = (len(todo) - done) * len(tiles) * tile_bytes / rate
        watch.note(
            f"{done + len(source.recipes) - len(todo):,} of {len(source.recipes):,} kernels built, "
            f"{done * len(tiles):,} tiles at {rate / 1e9:.2f} GB/s, about {left:.0f} s left"
        )


def _pieces(source: FeatureTiles, todo: Sequence[int], n_tiles: int, slots: int) -> Iterator[_Piece]:
    """Kernels of one source in an order in which those that share a statistic are neighbors.

    Together they read their rows once; but there must be tasks for all, and sums of tiles are held until the end.
    """
    order = sorted(todo, key=lambda k: (str(source.recipes[k].feature), str(source.recipes[k].statistic), k))
    held = max(1, _PARTS_BYTES // (n_tiles * source.tiling.tile * 16))
    for _, group in groupby(order, key=lambda k: source.recipes[k].feature):
        kernels = list(group)
        # Kernels that share a statistic are not taken apart while other cuts make enough tasks.
        runs = [list(run) for _, run in groupby(kernels, key=lambda k: source.recipes[k].statistic)]
        wanted = max(-(-len(kernels) // held), min(len(runs), -(-4 * slots // n_tiles)))
        longest = -(-len(kernels) // wanted)
        piece: list[int] = []
        for run in runs:
            if piece and len(piece) + len(run) > longest:
                yield _Piece(tuple(piece))
                piece = []
            piece += run
            while len(piece) > held:
                yield _Piece(tuple(piece[:held]))
                piece = piece[held:]
        if piece:
            yield _Piece(tuple(piece))


def _batches(pieces: Iterator[_Piece], n_tiles: int, slots: int) -> Iterator[list[_Piece]]:
    """Enough tasks to keep every worker busy; kernels are recorded as done after each batch."""
    batch: list[_Piece] = []
    for piece in pieces:
        batch.append(piece)
        if len(batch) * n_tiles >= 16 * slots:
            yield batch
            batch = []
    if batch:
        yield batch


def _run(
    source: FeatureTiles,
    tiles: TileWriter,
    work: Sequence[tuple[_Piece, tuple[int, int]]],
    tile_bytes: int,
) -> list[list[_TilePart]]:
    token = graph_token(machine(), source, [(piece.kernels, tile) for piece, tile in work])
    shared, target = send_all({f"build-features-{token}": source, f"build-store-{token}": tiles})
    tasks = [
        delayed(_write_tile, pure=False)(
            shared, target, piece.kernels, tile, dask_key_name=f"build-tile-{number}-{token}"
        )
        for number, (piece, tile) in enumerate(work)
    ]
    sizes = [len(piece.kernels) * tile_bytes for piece, _ in work]
    return execute(tasks, list(zip(tasks, sizes, strict=True)), "build")


def _write_tile(
    source: FeatureTiles, tiles: TileWriter, kernels: tuple[int, ...], tile: tuple[int, int]
) -> list[_TilePart]:
    """Compute and write one tile of some kernels."""
    i, j = tile
    parts: dict[int, _TilePart] = {}
    for k in kernels:
        standing = tiles.standing(k, i, j)
        if standing is not None:
            parts[k] = _part(source, k, tile, standing, crc32c(standing))
    # What overflows is told by `_part`.
    # One thread, however many cores there are: others would round otherwise, and the set be another one.
    with pinned_blas(1), np.errstate(over="ignore", invalid="ignore"):
        for (k, _, _), block in source.stream([(k, i, j) for k in kernels if k not in parts]):
            part = _part(source, k, tile, block, 0)  # checks it before anything is written
            parts[k] = _TilePart(tiles.write(k, i, j, block), part.row_sum, part.col_sum, part.diagonal)
    return [parts[k] for k in kernels]


def _part(source: FeatureTiles, k: int, tile: tuple[int, int], block: Array, checksum: int) -> _TilePart:
    i, j = tile
    row_sum = block.sum(axis=1, dtype=np.float64)
    if not np.isfinite(row_sum).all():
        a, b = np.argwhere(~np.isfinite(block))[0]
        rows, cols = source.tiling.row_slice(i), source.tiling.col_slice(j)
        msg = (
            f"kernel {source.names[k]!r}: the entry of samples {source.samples[rows.start + a]!r} and "
            f"{source.train_samples[cols.start + b]!r} overflows {source.dtype}; scale the features, take another "
            "function, or store the kernels as float64"
        )
        raise InputError(msg)
    if not source.symmetric:
        return _TilePart(checksum, row_sum, None, None)
    if i == j:
        return _TilePart(checksum, row_sum, None, block.diagonal().astype(np.float64))
    return _TilePart(checksum, row_sum, block.sum(axis=0, dtype=np.float64), None)


def _end(
    source: FeatureTiles, writer: StoreWriter, k: int, tiles: Sequence[tuple[int, int]], parts: Sequence[_TilePart]
) -> None:
    """Put the parts of a kernel together, in an order of its own, so that sums do not depend on who was first."""
    tiling = source.tiling
    row_sum, checksums = np.zeros(tiling.rows), np.zeros(tiling.shape, dtype=np.uint32)
    diagonal = np.zeros(tiling.rows) if source.symmetric else None
    for (i, j), part in zip(tiles, parts, strict=True):
        checksums[i, j] = part.checksum
        row_sum[tiling.row_slice(i)] += part.row_sum
        if part.col_sum is not None:
            row_sum[tiling.col_slice(j)] += part.col_sum
        if diagonal is not None and part.diagonal is not None:
            diagonal[tiling.row_slice(i)] = part.diagonal
    if diagonal is None:
        found = source.diagonal(np.array([k]))
        diagonal = None if found is None else found[0]
    writer.end_kernel(k, row_sum, diagonal, checksums)
