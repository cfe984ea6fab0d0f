"""Writing computed kernels into a kernel set, in Dask tasks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dmkl import progress
from dmkl.arrays import Array, Float
from dmkl.errors import InputError
from dmkl.features.tile_tasks import TileIndex, batches, check_task_memory, run_batch
from dmkl.features.tiles import FeatureTiles
from dmkl.files.checksums import crc32c
from dmkl.passes.execute import check_shared
from dmkl.store.tiles import TileWriter
from dmkl.store.writer import StoreWriter

__all__ = ["write_kernels"]


@dataclass(frozen=True)
class _TilePart:
    """Checksum and sums of one written tile."""

    checksum: int
    row_sum: Float
    col_sum: Float | None
    diagonal: Float | None


def write_kernels(source: FeatureTiles, writer: StoreWriter, provenances: Sequence[dict[str, Any]]) -> None:
    """Write all kernels of a source that are not written yet.

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
    check_task_memory(source, "building these kernels")
    if writer.folder is not None:
        way_out = "write to a file system that all machines share, or compute on this machine"
        check_shared(writer.folder, "where the kernels are written", way_out)
    tiling, n_kernels = source.tiling, len(source.recipes)
    todo = [k for k in range(n_kernels) if not writer.is_done(k, provenances[k]["identity"])]
    tiles, tile_bytes = list(tiling.pairs()), tiling.tile**2 * source.dtype.itemsize
    watch, started, done = progress.current(), time.monotonic(), 0
    for batch in batches(source, todo, len(tiles)):
        chosen = [k for group in batch for k in group]
        writer.begin_kernels({k: provenances[k] for k in chosen})
        with writer.writing():
            parts = run_batch(source, batch, tiles, _write_tile, writer.tiles, "build")
        for k in chosen:
            _end(source, writer, k, tiles, parts[k])
        done += len(chosen)
        rate = done * len(tiles) * tile_bytes / (time.monotonic() - started)
        left = (len(todo) - done) * len(tiles) * tile_bytes / rate
        watch.note(
            f"{done + n_kernels - len(todo):,} of {n_kernels:,} kernels built, "
            f"{done * len(tiles):,} tiles at {rate / 1e9:.2f} GB/s, about {left:.0f} s left"
        )


def _write_tile(source: FeatureTiles, tiles: TileWriter, kernels: tuple[int, ...], tile: TileIndex) -> list[_TilePart]:
    """Compute and write one tile of some kernels."""
    i, j = tile
    parts: dict[int, _TilePart] = {}
    for k in kernels:
        standing = tiles.standing(k, i, j)
        if standing is not None:
            parts[k] = _part(source, k, tile, standing, crc32c(standing))
    with np.errstate(over="ignore", invalid="ignore"):  # `_part` tells what overflows
        for (k, _, _), block in source.stream([(k, i, j) for k in kernels if k not in parts]):
            part = _part(source, k, tile, block, 0)  # checks it before anything is written
            parts[k] = _TilePart(tiles.write(k, i, j, block), part.row_sum, part.col_sum, part.diagonal)
    return [parts[k] for k in kernels]


def _part(source: FeatureTiles, k: int, tile: TileIndex, block: Array, checksum: int) -> _TilePart:
    i, j = tile
    row_sum = block.sum(axis=1, dtype=np.float64)
    if not np.isfinite(row_sum).all():
        a, b = np.argwhere(~np.isfinite(block))[0]
        row, col = source.tiling.row_slice(i).start + a, source.tiling.col_slice(j).start + b
        msg = (
            f"kernel {source.names[k]!r}: the entry of samples {str(source.samples[row])!r} and "
            f"{str(source.train_samples[col])!r} overflows {source.dtype}; scale the features, take another "
            "function, or store the kernels as float64"
        )
        raise InputError(msg)
    if not source.symmetric:
        return _TilePart(checksum, row_sum, None, None)
    if i == j:
        return _TilePart(checksum, row_sum, None, block.diagonal().astype(np.float64))
    return _TilePart(checksum, row_sum, block.sum(axis=0, dtype=np.float64), None)


def _end(
    source: FeatureTiles, writer: StoreWriter, k: int, tiles: Sequence[TileIndex], parts: Sequence[_TilePart]
) -> None:
    """Record a kernel from the parts of its tiles."""
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
