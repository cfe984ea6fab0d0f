"""Importing matrices into a new kernel set: they are checked, cut into tiles, and written one kernel at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
from zarr.abc.store import Store

from dmkl import progress, settings
from dmkl.arrays import Array, Index, Lazy, Matrix, check_choice, fingerprint
from dmkl.errors import IndefiniteKernelWarning, InputError, refuse, warn
from dmkl.inputs.kernels import KernelSource
from dmkl.inputs.labels import Labels, labels_in
from dmkl.names import as_text, unique_names
from dmkl.numerics.determined import LabelKernel, label_codes
from dmkl.numerics.semidefinite import Repair, repair_psd, worst_minor
from dmkl.store.format import Header, check_dtype, check_names
from dmkl.store.memory import MemorySet
from dmkl.store.writer import StoreWriter, writing_set
from dmkl.store.zarr_groups import Location


def ingest(
    location: Location | None,
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
    symmetrize: bool = False,
    overwrite: bool = False,
) -> str | Store | MemorySet:
    """Write a kernel set, or continue an interrupted import. See `dmkl.create` for the parameters."""
    check_choice("repair", repair, (*get_args(Repair), None))
    iterator = iter(source.matrices())
    first = next(iterator, None)
    if first is None:
        refuse("a kernel set needs at least one kernel, got none")
    rows, cols = (int(length) for length in first.shape)
    if symmetric is None:
        symmetric = rows == cols if source.symmetric is None else source.symmetric
    full = full and symmetric and location is not None
    if symmetrize and not symmetric:
        refuse("symmetrize=True (--symmetrize) is for symmetric kernels; these are rectangular")
    if symmetric and rows != cols:
        refuse(f"a symmetric set needs square kernels, the first is {rows} × {cols}")
    if rows == 0 or cols == 0:
        refuse(f"kernels must have at least one row and one column, the first is {rows} × {cols}")
    stored = check_dtype(_narrowest([first.dtype, *source.dtypes()]) if dtype is None else dtype)
    header = Header(rows, cols, stored.name, settings.tile_size(max(rows, cols), tile), symmetric, full)
    check_names(header, source.n_kernels)
    nodes = labels.checked(rows, cols, rectangular=not symmetric or full)
    if nodes["train_sample"] is not None and symmetric and labels.train_samples is None:
        nodes["train_sample"] = nodes["sample"]
    if source.names is not None:
        unique_names(source.names, len(source.names) if source.n_kernels is None else source.n_kernels, "kernel")
    diagonal = labels.diagonal if diagonal is None else diagonal
    diagonal = None if symmetric or diagonal is None else _check_diagonal(diagonal, source.n_kernels, rows)
    stored_set: AbstractContextManager[StoreWriter | MemorySet] = (
        nullcontext(MemorySet(header))
        if location is None
        else writing_set(location, header, source.n_kernels, kept=source.n_kept, overwrite=overwrite)
    )
    with stored_set as writer:
        if symmetry_tol is None:
            symmetry_tol = 1e-5 if header.dtype == "float32" else 1e-8  # rounding
        tol = np.inf if symmetrize else symmetry_tol
        intake = _Intake(writer, repair, tol, symmetrize, dtype is not None, label_codes(labels_in(nodes)))
        watch = progress.current()
        kernel_bytes = sum(1 for _ in writer.tiling.pairs()) * header.tile**2 * np.dtype(header.dtype).itemsize
        watch.begin("import", kernel_bytes * (source.n_kernels or 0))
        names: list[str] = []
        matrices = _all(first, iterator)
        del first
        source.begin(writer)
        try:
            for j, matrix in enumerate(matrices):
                if source.names is not None and j >= len(source.names):
                    refuse(f"found more kernels than the {len(source.names)} names")
                name = f"kernel_{j}" if source.names is None else as_text(source.names[j])
                names.append(name)
                if diagonal is not None and j >= len(diagonal):
                    refuse(f"found more kernels than the {len(diagonal)} rows of the diagonal")
                diagonal_row = None if diagonal is None else np.asarray(diagonal[j])
                identity = None if location is None else source.identity(j)  # which takes a hash of all entries
                if identity is not None:
                    identity = identity | ({} if repair is None else {"repair": repair})
                    identity |= {"symmetrized": True} if symmetrize else {}
                    identity |= {} if diagonal_row is None else {"diagonal": fingerprint(diagonal_row[None, :])}
                if writer.is_done(j, identity):
                    watch.advance(kernel_bytes)
                    continue
                missing = source.n_missing(j)
                provenance = source.record(j) | ({} if location is None else {"identity": identity})
                provenance |= {"n_missing": missing} if missing else {}
                if source.link(writer, j, provenance, diagonal_row):
                    watch.advance(kernel_bytes)
                else:
                    intake.take(j, name, matrix, provenance, diagonal_row)
            unique_names(names, len(names), "kernel")
            if source.names is not None and len(names) != len(source.names):
                refuse(f"found {len(names)} kernels but {len(source.names)} names")
        finally:
            watch.end()
        return writer.finish(names, nodes)


def _all(first: Matrix, others: Iterator[Matrix]) -> Iterator[Matrix]:
    yield first
    del first  # `itertools.chain` would keep the kernel in memory until the end
    yield from others


def _narrowest(dtypes: Iterable[Any]) -> np.dtype[Any]:
    """The smallest stored type that represents entries of all these types exactly."""
    short = all(dtype.kind == "f" and dtype.itemsize <= 4 for dtype in map(np.dtype, dtypes))
    return np.dtype(np.float32 if short else np.float64)


def _check_diagonal(diagonal: Array, n_kernels: int | None, rows: int) -> Array:
    diagonal = np.asarray(diagonal, dtype=np.float64)
    if diagonal.ndim != 2 or diagonal.shape[1] != rows or (n_kernels is not None and diagonal.shape[0] != n_kernels):
        expected = f"({n_kernels or 'kernels'}, {rows}): k(x, x) of every sample"
        refuse(f"diagonal has shape {diagonal.shape}, expected {expected}")
    if not np.isfinite(diagonal).all():
        j, i = np.argwhere(~np.isfinite(diagonal))[0]
        refuse(f"diagonal: entry ({j}, {i}) is {diagonal[j, i]}, which is not finite")
    return diagonal


@dataclass(frozen=True)
class _Intake:
    writer: StoreWriter | MemorySet
    repair: Repair | None
    symmetry_tol: float  # largest difference of the halves of a kernel, relative to its largest entry
    symmetrize: bool
    asked_dtype: bool
    codes: Sequence[Index]

    def take(self, j: int, name: str, matrix: Matrix, provenance: dict[str, Any], diagonal: Array | None) -> None:
        """Check matrix j and write it, a tile at a time."""
        header = self.writer.header
        if tuple(matrix.shape) != (header.rows, header.cols):
            shape = " × ".join(map(str, matrix.shape))
            refuse(f"kernel {name!r} is {shape}, expected {header.rows} × {header.cols} as the first")
        dtype = np.dtype(matrix.dtype)
        if dtype.kind not in "fiub":
            way_out = "; take the real part if the imaginary one is rounding" * (dtype.kind == "c")
            refuse(f"kernel {name!r} holds {dtype}, expected real numbers{way_out}")
        if not self.asked_dtype and _narrowest([dtype]).itemsize > np.dtype(header.dtype).itemsize:
            what = f"kernel {name!r} is {dtype}, but the set would be stored as {header.dtype}, as its first kernel is"
            refuse(f"{what}; choose one, dtype='float32' or dtype='float64'")
        lower = self._is_lower_triangle(matrix) if self.symmetrize else None
        try:
            self._write(j, name, matrix if lower is None else _mirrored(matrix, lower=lower), provenance, diagonal)
        except InputError:
            # Only kernels that are refused are read again to see whether one half of them is 0 or NaN.
            lower = self._is_lower_triangle(matrix) if header.symmetric and not self.symmetrize else None
            if lower is None:
                raise
            self._write(j, name, _mirrored(matrix, lower=lower), provenance, diagonal)
        if lower is not None:
            self.writer.add_provenance(j, {"mirrored": "lower" if lower else "upper"})

    def _write(self, j: int, name: str, matrix: Matrix, provenance: dict[str, Any], diagonal: Array | None) -> None:
        header = self.writer.header
        if self.repair is not None:
            if not header.symmetric:
                refuse(f"repair={self.repair!r} is for symmetric kernels; these are rectangular")
            matrix, facts = self._repair(name, matrix)
            provenance |= facts
        self.writer.begin_kernels({j: provenance})
        if header.symmetric:
            row_sum, diagonal = self._symmetric(j, name, matrix)
        else:
            tiling, watch, row_sum = self.writer.tiling, progress.current(), np.zeros(header.rows)
            for row, col in tiling.pairs():
                rows, cols = tiling.row_slice(row), tiling.col_slice(col)
                block = self._block(name, matrix, rows, cols)
                self.writer.write_tile(j, row, col, block)
                row_sum[rows] += block.sum(axis=1, dtype=np.float64)
                watch.advance(tiling.tile**2 * block.itemsize)
        self.writer.end_kernel(j, row_sum, diagonal)

    def _is_lower_triangle(self, matrix: Matrix) -> bool | None:
        """Whether all entries above the diagonal, or all below it, are 0 or NaN; None for any other matrix."""
        tiling, above, below = self.writer.tiling, False, False
        for row, col in np.ndindex(tiling.shape):
            block = np.asarray(matrix[tiling.row_slice(row), tiling.col_slice(col)])
            given = (block != 0) & (block == block)
            above |= bool((np.triu(given, 1) if row == col else given).any() and row <= col)
            below |= bool((np.tril(given, -1) if row == col else given).any() and row >= col)
            if above and below:  # most kernels show it in their first tile
                return None
        return below if above or below else None

    def _block(self, name: str, matrix: Matrix, rows: slice, cols: slice) -> Array:
        raw = np.asarray(matrix[rows, cols])
        with np.errstate(over="ignore"):
            block = raw.astype(self.writer.header.dtype, copy=False)
        finite = np.isfinite(block)
        if not finite.all():
            i, k = np.argwhere(~finite)[0]
            value = raw[i, k]
            cause = (
                f"overflows {self.writer.header.dtype}; store it as float64"
                if np.isfinite(value)
                else "is not finite; correct or drop that sample or kernel. If a sample lacks a kernel, leave it out "
                "of that kernel's file, and match samples by name (join='outer', --join outer)"
            )
            refuse(f"kernel {name!r}: entry ({rows.start + i}, {cols.start + k}) is {value}, which {cause}")
        return block

    def _symmetric(self, j: int, name: str, matrix: Matrix) -> tuple[Array, Array]:
        """Write the tiles on and above the diagonal, and compare those below it with their mirror images.

        The matrix is read in strips of rows, left to right, the order of most files.
        """
        tiling, watch = self.writer.tiling, progress.current()
        row_sum, diagonal = np.zeros(self.writer.header.rows), np.zeros(self.writer.header.rows)
        largest, proof, difference = 0.0, (0.0, 0, 0), _NO_DIFFERENCE
        like_labels = [LabelKernel(codes, np.dtype(self.writer.header.dtype)) for codes in self.codes]
        for row in range(tiling.shape[0]):
            rows = tiling.row_slice(row)
            # The diagonal tile first: the check for indefinite minors needs the diagonal of both samples.
            for col in (row, *range(row), *range(row + 1, tiling.shape[1])):
                cols = tiling.col_slice(col)
                block = self._block(name, matrix, rows, cols)
                largest = max(largest, float(np.abs(block).max()))
                if col < row:
                    above = self.writer.read_tile(j, col, row).T
                    difference = max(difference, _largest_difference(block, above, rows, cols))
                    if self.symmetrize:
                        mean = _mean(block, above)
                        self.writer.write_tile(j, col, row, mean.T)
                        row_sum[rows] += mean.sum(axis=1, dtype=np.float64) - above.sum(axis=1, dtype=np.float64)
                        row_sum[cols] += mean.sum(axis=0, dtype=np.float64) - above.sum(axis=0, dtype=np.float64)
                        above = mean
                    block = above
                    if self.writer.header.full:
                        self.writer.write_tile(j, row, col, block)
                else:
                    if row == col:
                        difference = max(difference, _largest_difference(block, block.T, rows, cols))
                        # The upper half is stored, in the diagonal tile too.
                        upper = np.triu(block) + np.triu(block, 1).T
                        block = _mean(block, block.T) if self.symmetrize else upper
                        diagonal[rows] = block.diagonal()
                    else:
                        row_sum[cols] += block.sum(axis=0, dtype=np.float64)
                    row_sum[rows] += block.sum(axis=1, dtype=np.float64)
                    for kernel in like_labels:
                        kernel.take(rows, cols, block)
                    self.writer.write_tile(j, row, col, block)
                    watch.advance(tiling.tile**2 * block.itemsize)
                if col <= row:
                    minor = worst_minor(block, diagonal[rows], diagonal[cols], 1e-4)
                    if minor is not None:
                        a, b = rows.start + minor[1], cols.start + minor[2]
                        # A negative diagonal entry is a minor of one sample, and bounds the eigenvalue.
                        proof = min(proof, (diagonal[a] if a == b else minor[0], a, b))
        # The tolerance is relative to the largest entry, which is known only now.
        self._check_symmetric(name, difference, largest)
        if any(kernel.result() for kernel in like_labels):
            why = "its entries depend only on the classes of both samples"
            way_out = "Leave it out. If it is intended, import without labels, and give them to `fit` (y)"
            refuse(f"kernel {name!r} is the labels under another name: {why}. {way_out}")
        if self.symmetrize and self.repair is None:
            self.writer.add_provenance(j, {"symmetrized": {"largest_asymmetry": difference[0]}})
        if proof[0] < 0:
            bound, a, b = proof
            self.writer.add_provenance(j, {"indefinite": {"samples": [a, b], "eigenvalue_at_most": float(bound)}})
            witness = f"sample {a} alone proves" if a == b else f"samples {a} and {b} alone prove"
            what = f"kernel {name!r} is not positive semidefinite: {witness} an eigenvalue of at most {bound:.3g}"
            warn(
                f"{what} (largest entry {largest:.3g}). Learners that need positive semidefinite kernels may refuse "
                "it; repair='clip', 'flip' or 'shift' repairs it during import",
                IndefiniteKernelWarning,
            )
        return row_sum, diagonal

    def _check_symmetric(self, name: str, difference: _Difference, largest: float) -> None:
        size, a, b, value, mirrored = difference
        if size <= self.symmetry_tol * largest:
            return
        refuse(
            f"kernel {name!r} is not symmetric: entry ({a}, {b}) is {value:.8g} and entry ({b}, {a}) is "
            f"{mirrored:.8g}, which differ by more than {self.symmetry_tol:g} of the largest entry ({largest:.3g}). "
            "Symmetrize it ((K + Kᵀ)/2, or mirror a triangle: symmetrize=True, --symmetrize), or give symmetric=False "
            "(--rectangular) if its rows and columns are different samples"
        )

    def _repair(self, name: str, matrix: Matrix) -> tuple[Array, dict[str, Any]]:
        assert self.repair is not None
        whole = self._block(name, matrix, slice(0, self.writer.header.rows), slice(0, self.writer.header.cols))
        everything = slice(0, self.writer.header.rows)
        difference = _largest_difference(whole, whole.T, everything, everything)
        self._check_symmetric(name, difference, float(np.abs(whole).max()))
        repaired, lowest = repair_psd(whole, self.repair)  # which symmetrizes it
        facts = {"repair": {"method": self.repair, "lowest_eigenvalue": lowest}}
        return repaired, facts | ({"symmetrized": {"largest_asymmetry": difference[0]}} if self.symmetrize else {})


_Difference = tuple[float, int, int, float, float]
"""The absolute difference of two mirrored entries, their row and column, and their values."""

_NO_DIFFERENCE: _Difference = (-1.0, 0, 0, 0.0, 0.0)


def _mirrored(matrix: Matrix, *, lower: bool) -> Lazy:
    """The symmetric matrix of which one triangle is given."""

    def read(key: tuple[slice, slice]) -> Array:
        rows, cols = (np.arange(length)[part] for length, part in zip(matrix.shape, key, strict=True))
        given = rows[:, None] >= cols if lower else rows[:, None] <= cols
        if given.all():
            return np.asarray(matrix[key])
        mirrored = np.asarray(matrix[key[::-1]]).T
        return np.where(given, np.asarray(matrix[key]), mirrored) if given.any() else mirrored

    return Lazy(matrix.shape, matrix.dtype, read)


def _mean(block: Array, mirrored: Array) -> Array:
    return 0.5 * block + 0.5 * mirrored  # their sum may overflow


def _largest_difference(block: Array, mirrored: Array, rows: slice, cols: slice) -> _Difference:
    difference = np.abs(block - mirrored)
    i, k = np.unravel_index(int(difference.argmax()), difference.shape)
    a, b = rows.start + int(i), cols.start + int(k)
    return float(difference[i, k]), a, b, float(block[i, k]), float(mirrored[i, k])
