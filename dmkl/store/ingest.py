"""Taking matrices into a new kernel set: checked, cut into tiles, written kernel after kernel."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from zarr.abc.store import Store

from dmkl import progress, settings
from dmkl.blocks.psd import Repair, repair_psd, worst_minor
from dmkl.errors import IndefiniteKernelWarning, InputError
from dmkl.store.reader import Location
from dmkl.store.sources import KernelSource, Matrix
from dmkl.store.writer import Header, StoreWriter

__all__ = ["Labels", "ingest"]

Array = npt.NDArray[Any]


@dataclass
class Labels:
    """What is known of the samples of a set; every field may be missing.

    Parameters
    ----------
    samples, train_samples
        Names, unique; numbers from 0 where missing.
    labels
        (sample,) classes, or (sample, task) of 0 and 1.
    tasks
        Names of the tasks of multilabel labels.
    splits
        (split, sample): 0 train, 1 validation, 2 test, -1 in no part.
    """

    samples: Sequence[Any] | Array | None = None
    train_samples: Sequence[Any] | Array | None = None
    labels: Sequence[Any] | Array | None = None
    tasks: Sequence[Any] | Array | None = None
    splits: Sequence[Any] | Array | None = None

    def checked(self, rows: int, cols: int, *, rectangular: bool) -> dict[str, Array | None]:
        """The nodes to write, each checked against the shape of the kernels.

        Raises
        ------
        InputError
            If a length is wrong, a name occurs twice, or splits hold other numbers than -1, 0, 1, 2.
        """
        labels = None if self.labels is None else _checked_labels(np.asarray(self.labels), rows)
        tasks = None
        if labels is not None and labels.ndim == 2:
            tasks = _names(self.tasks, labels.shape[1], "task")
        return {
            "sample": _names(self.samples, rows, "sample"),
            "train_sample": _names(self.train_samples, cols, "train_sample") if rectangular else None,
            "label": labels,
            "task": tasks,
            "split": None if self.splits is None else _checked_splits(np.asarray(self.splits), rows),
        }


def _names(values: Sequence[Any] | Array | None, length: int, what: str) -> Array:
    if values is None:
        return np.array([str(i) for i in range(length)], dtype=object)
    names = [str(value) for value in np.asarray(values).tolist()]
    if len(names) != length:
        msg = f"{what} names: found {len(names)}, expected one for each of the {length} {what}s"
        raise InputError(msg)
    seen: set[str] = set()
    for name in names:
        if name in seen:
            msg = f"{what} names must be unique, but {name!r} occurs more than once"
            raise InputError(msg)
        seen.add(name)
    return np.array(names, dtype=object)


def _checked_labels(labels: Array, rows: int) -> Array:
    if labels.ndim not in (1, 2) or labels.shape[0] != rows:
        msg = f"labels have shape {labels.shape}, expected ({rows},) or ({rows}, tasks): one for each sample"
        raise InputError(msg)
    if labels.ndim == 2:
        if not np.isin(labels, (0, 1)).all():
            msg = "multilabel labels (sample, task) must be 0 or 1"
            raise InputError(msg)
        return labels.astype(np.int8)
    if labels.dtype.kind == "f":
        if not np.array_equal(labels, np.round(labels)):
            msg = "labels must be classes (integers or strings), found fractions; round or bin them first"
            raise InputError(msg)
        labels = labels.astype(np.int64)
    if labels.dtype.kind in "iub":
        return labels.astype(np.int64)
    return np.array([str(value) for value in labels.tolist()], dtype=object)


def _checked_splits(splits: Array, rows: int) -> Array:
    splits = splits[None, :] if splits.ndim == 1 else splits
    if splits.ndim != 2 or splits.shape[1] != rows:
        msg = f"splits have shape {splits.shape}, expected (splits, {rows}): a part for each sample"
        raise InputError(msg)
    if not np.isin(splits, (-1, 0, 1, 2)).all():
        msg = f"splits must hold 0 (train), 1 (validation), 2 (test) or -1 (none), found {sorted(set(splits.ravel().tolist()))}"
        raise InputError(msg)
    return splits.astype(np.int8)


def ingest(
    location: Location,
    source: KernelSource,
    labels: Labels,
    *,
    tile: int | None = None,
    dtype: npt.DTypeLike | None = None,
    symmetric: bool | None = None,
    full: bool = False,
    diagonal: Array | None = None,
    repair: Repair | None = None,
    symmetry_tol: float | None = None,
    overwrite: bool = False,
) -> str | Store:
    """Write a kernel set; an interrupted one goes on where it stopped. See `dmkl.create` for the parameters."""
    iterator = iter(source.matrices())
    try:
        first = next(iterator)
    except StopIteration:
        msg = "a kernel set needs at least one kernel, got none"
        raise InputError(msg) from None
    rows, cols = (int(length) for length in first.shape)
    if symmetric is None:
        symmetric = rows == cols
    if symmetric and rows != cols:
        msg = f"a symmetric set needs square kernels, the first is {rows} × {cols}"
        raise InputError(msg)
    if rows == 0 or cols == 0:
        msg = f"kernels must have at least one row and one column, the first is {rows} × {cols}"
        raise InputError(msg)
    header = Header(rows, cols, _stored_dtype(dtype, first).name, settings.tile_size(max(rows, cols), tile), symmetric, full)
    nodes = labels.checked(rows, cols, rectangular=not symmetric or full)
    if nodes["train_sample"] is not None and symmetric and labels.train_samples is None:
        nodes["train_sample"] = nodes["sample"]
    if source.names is not None:
        _names(source.names, len(source.names) if source.n_kernels is None else source.n_kernels, "kernel")
    if diagonal is not None:
        diagonal = _checked_diagonal(diagonal, source.n_kernels, rows)
    writer = StoreWriter(location, header, source.n_kernels, overwrite=overwrite)
    intake = _Intake(writer, repair, _symmetry_tolerance(symmetry_tol, header))
    watch = progress.current()
    kernel_bytes = sum(1 for _ in writer.tiling.pairs()) * header.tile**2 * np.dtype(header.dtype).itemsize
    watch.begin("import", kernel_bytes * (source.n_kernels or 0))
    names: list[str] = []
    try:
        for j, matrix in enumerate(itertools.chain([first], iterator)):
            name = _name_of(source, j)
            names.append(name)
            identity = source.identity(j)
            if identity is not None and repair is not None:
                identity = {**identity, "repair": repair}
            if writer.is_done(j, identity):
                watch.advance(kernel_bytes)
                continue
            intake.take(j, name, matrix, {"identity": identity}, None if diagonal is None else diagonal[j])
    finally:
        watch.end()
    _names(names, len(names), "kernel")
    if source.names is not None and len(names) != len(source.names):
        msg = f"found {len(names)} kernels but {len(source.names)} names"
        raise InputError(msg)
    return writer.finish(names, nodes)


def _name_of(source: KernelSource, j: int) -> str:
    if source.names is None:
        return f"kernel_{j}"
    if j >= len(source.names):
        msg = f"found more kernels than the {len(source.names)} names"
        raise InputError(msg)
    return str(source.names[j])


def _stored_dtype(dtype: npt.DTypeLike | None, first: Matrix) -> np.dtype[Any]:
    found = np.dtype(first.dtype) if dtype is None else np.dtype(dtype)
    if dtype is None:
        if found.kind not in "fiub":
            msg = f"kernels must hold real numbers, found {found}"
            raise InputError(msg)
        found = np.dtype(np.float32 if found in (np.dtype(np.float32), np.dtype(np.float16)) else np.float64)
    if found not in (np.dtype(np.float32), np.dtype(np.float64)):
        msg = f"kernels are stored as float32 or float64, not {found}"
        raise InputError(msg)
    return found


def _symmetry_tolerance(asked: float | None, header: Header) -> float:
    """Relative to the largest entry: what different orders of summation leave in two halves of one kernel."""
    if asked is not None:
        return asked
    return 1e-5 if header.dtype == "float32" else 1e-8


def _checked_diagonal(diagonal: Array, n_kernels: int | None, rows: int) -> Array:
    diagonal = np.asarray(diagonal, dtype=np.float64)
    if diagonal.ndim != 2 or diagonal.shape[1] != rows or (n_kernels is not None and diagonal.shape[0] != n_kernels):
        msg = f"diagonal has shape {diagonal.shape}, expected ({n_kernels or 'kernels'}, {rows}): k(x, x) of every sample"
        raise InputError(msg)
    return diagonal


class _Intake:
    """Takes in one matrix after another."""

    def __init__(self, writer: StoreWriter, repair: Repair | None, symmetry_tol: float) -> None:
        self.writer, self.repair, self.symmetry_tol = writer, repair, symmetry_tol
        self.header = writer.header

    def take(
        self, j: int, name: str, matrix: Matrix, provenance: dict[str, Any], diagonal: Array | None
    ) -> None:
        """Check matrix j and write it, a tile at a time."""
        header = self.header
        if tuple(matrix.shape) != (header.rows, header.cols):
            msg = f"kernel {name!r} is {' × '.join(map(str, matrix.shape))}, expected {header.rows} × {header.cols} as the first"
            raise InputError(msg)
        if self.repair is not None:
            if not header.symmetric:
                msg = f"repair={self.repair!r} is for symmetric kernels; these are rectangular"
                raise InputError(msg)
            matrix, lowest = self._repaired(name, matrix)
            provenance = {**provenance, "repair": {"method": self.repair, "lowest_eigenvalue": lowest}}
        self.writer.begin_kernel(j, provenance)
        if header.symmetric:
            row_sum, diagonal = self._symmetric(j, name, matrix)
        else:
            row_sum = self._rectangular(j, name, matrix)
        self.writer.end_kernel(j, row_sum, diagonal)

    def _block(self, name: str, matrix: Matrix, rows: slice, cols: slice) -> Array:
        raw = np.asarray(matrix[rows, cols])
        with np.errstate(over="ignore"):
            block = raw.astype(self.header.dtype, copy=False)
        finite = np.isfinite(block)
        if not finite.all():
            i, k = np.argwhere(~finite)[0]
            value = raw[i, k]
            cause = (
                f"overflows {self.header.dtype}; store it as float64"
                if np.isfinite(value)
                else "is not finite; mend or drop that sample or kernel"
            )
            msg = f"kernel {name!r}: entry ({rows.start + i}, {cols.start + k}) is {value}, which {cause}"
            raise InputError(msg)
        return block

    def _rectangular(self, j: int, name: str, matrix: Matrix) -> Array:
        tiling, watch = self.writer.tiling, progress.current()
        row_sum = np.zeros(self.header.rows)
        for row, col in tiling.pairs():
            rows, cols = tiling.row_slice(row), tiling.col_slice(col)
            block = self._block(name, matrix, rows, cols)
            self.writer.write_tile(j, row, col, block)
            row_sum[rows] += block.sum(axis=1, dtype=np.float64)
            watch.advance(tiling.tile**2 * block.itemsize)
        return row_sum

    def _symmetric(self, j: int, name: str, matrix: Matrix) -> tuple[Array, Array]:
        """Go down the matrix strip by strip, left to right, as it lies in most files: what is right of the diagonal
        is written, what is left of it is compared with the tile written before.
        """
        tiling, watch = self.writer.tiling, progress.current()
        row_sum, diagonal = np.zeros(self.header.rows), np.zeros(self.header.rows)
        largest, proof = 0.0, (0.0, 0, 0)
        for row in range(tiling.shape[0]):
            rows = tiling.row_slice(row)
            # The diagonal tile first: the check for indefinite minors needs the diagonal of both samples.
            for col in (row, *range(row), *range(row + 1, tiling.shape[1])):
                cols = tiling.col_slice(col)
                block = self._block(name, matrix, rows, cols)
                if col < row:
                    above = self.writer.read_tile(j, col, row)
                    self._check_symmetric(name, block, above.T, rows, cols, largest)
                    if self.header.full:
                        self.writer.write_tile(j, row, col, above.T)
                else:
                    largest = max(largest, float(np.abs(block).max()))
                    if row == col:
                        self._check_symmetric(name, block, block.T, rows, cols, largest)
                        # The half above is the one that counts, in the diagonal tile too.
                        block = np.triu(block) + np.triu(block, 1).T
                        diagonal[rows] = block.diagonal()
                    else:
                        row_sum[cols] += block.sum(axis=0, dtype=np.float64)
                    row_sum[rows] += block.sum(axis=1, dtype=np.float64)
                    self.writer.write_tile(j, row, col, block)
                    watch.advance(tiling.tile**2 * block.itemsize)
                if col <= row:
                    minor = worst_minor(block, diagonal[rows], diagonal[cols], 1e-4)
                    if minor is not None and minor[0] < proof[0]:
                        proof = (minor[0], rows.start + minor[1], cols.start + minor[2])
        if proof[0] < 0:
            warnings.warn(
                f"kernel {name!r} is not positive semidefinite: samples {proof[1]} and {proof[2]} alone prove an "
                f"eigenvalue of at most {proof[0]:.3g} (largest entry {largest:.3g}). Learners that need positive "
                "semidefinite kernels may refuse it; repair='clip', 'flip' or 'shift' mends it while it is imported",
                IndefiniteKernelWarning,
                stacklevel=2,
            )
        return row_sum, diagonal

    def _check_symmetric(
        self, name: str, block: Array, mirrored: Array, rows: slice, cols: slice, largest: float
    ) -> None:
        difference = np.abs(block - mirrored)
        scale = max(largest, float(np.abs(block).max()))
        if float(difference.max()) <= self.symmetry_tol * scale:
            return
        i, k = np.unravel_index(int(difference.argmax()), difference.shape)
        a, b = rows.start + int(i), cols.start + int(k)
        msg = (
            f"kernel {name!r} is not symmetric: entry ({a}, {b}) is {block[i, k]:.8g} and entry ({b}, {a}) is "
            f"{mirrored[i, k]:.8g}, further apart than {self.symmetry_tol:g} of the largest entry ({scale:.3g}). "
            "Symmetrise it ((K + K.T)/2), or say symmetric=False if its rows and columns are different samples"
        )
        raise InputError(msg)

    def _repaired(self, name: str, matrix: Matrix) -> tuple[Array, float]:
        assert self.repair is not None
        whole = self._block(name, matrix, slice(0, self.header.rows), slice(0, self.header.cols))
        self._check_symmetric(name, whole, whole.T, slice(0, self.header.rows), slice(0, self.header.cols), 0.0)
        return repair_psd(whole, self.repair)
