"""The kernels of data files, read one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dmkl.errors import InputError
from dmkl.inputs.formats.file_arrays import FileArray
from dmkl.inputs.formats.text import TextMatrix
from dmkl.inputs.kernel_sources import ArraySource, Matrix, StripBuffer

__all__ = ["FileSource", "KernelArray"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class KernelArray:
    """The kernels of one array."""

    variable: FileArray
    axis: int | None  # the axis that counts its kernels; None for a matrix
    shape: tuple[int, int]  # rows and columns of a kernel; -1 rows where they are not counted yet
    n_kernels: int
    stamp: dict[str, Any]  # tells the content of its file from any other

    def matrices(self, check_rows: Callable[[TextMatrix], None]) -> Iterator[Matrix]:
        """The kernels in order; what the array holds in memory goes when the next array is opened."""
        array: Any = self.variable.open()
        if isinstance(array, TextMatrix):
            check_rows(array)
            yield StripBuffer(array)
            return
        chunks: Sequence[int] | None = getattr(array, "chunks", None)
        if self.axis is None:
            yield _in_strips(array, chunks)
            return
        if chunks is not None:
            chunks = [length for axis, length in enumerate(chunks) if axis != self.axis]
        for layer in ArraySource(array, axis=self.axis).matrices():
            yield _in_strips(layer, chunks)

    def identity(self, j: int) -> dict[str, Any]:
        """What tells kernel j of this array from any other content."""
        identity = dict(self.stamp)
        if self.variable.name:
            identity["variable"] = self.variable.name
        return identity if self.axis is None else {**identity, "axis": self.axis, "index": j}


class FileSource:
    """The kernels of data files, as a source for `dmkl.create`. Made by `open_files`.

    Attributes
    ----------
    names
        The kernels' names; None where the files give none.
    n_kernels
        How many there are.
    notes
        What was left out, and what was taken in one of several ways that were possible; one sentence each.
    """

    def __init__(self, parts: Sequence[KernelArray], names: Sequence[str] | None, notes: Sequence[str]) -> None:
        self._parts = tuple(parts)
        self.names = names
        self.notes = tuple(notes)
        self.n_kernels: int | None = sum(part.n_kernels for part in parts)

    def matrices(self) -> Iterator[Matrix]:
        """See `KernelSource.matrices`."""
        rows = _SameRows()
        for part in self._parts:
            yield from part.matrices(rows)

    def identity(self, j: int) -> dict[str, Any] | None:
        """See `KernelSource.identity`."""
        for part in self._parts:
            if j < part.n_kernels:
                return part.identity(j)
            j -= part.n_kernels
        return None


class _SameRows:
    """Refuses text files that name rows or columns otherwise than the first: entries would be mixed up."""

    def __init__(self) -> None:
        self._first: tuple[Path, list[tuple[str, list[str] | None]]] | None = None

    def __call__(self, matrix: TextMatrix) -> None:
        header = matrix.layout.header
        found = [("row", matrix.row_names), ("column", None if header is None else list(header))]
        if self._first is None:
            self._first = matrix.path, found
            return
        path, expected = self._first
        for (what, names), (_, others) in zip(found, expected, strict=True):
            if names is None or others is None or names == others:
                continue
            pairs = enumerate(zip(names, others, strict=False), start=1)
            at = next(((i, a, b) for i, (a, b) in pairs if a != b), None)
            differ = f"{len(names)} {what}s, not {len(others)}" if at is None else "{} is {!r}, not {!r}".format(*at)
            msg = f"{matrix.path} names its {what}s otherwise than {path}: {what} {differ}; put them into one order"
            raise InputError(msg)


def _in_strips(matrix: Matrix, chunks: Sequence[int] | None) -> Matrix:
    """Read whole rows, or the whole kernel, where a tile would cost them anyway."""
    rows, cols = matrix.shape
    if chunks is None or 2 * chunks[1] < cols:
        return matrix
    # A chunk of half the kernel would be decoded anew for each strip of tiles.
    return StripBuffer(matrix) if 2 * chunks[0] < rows else _Whole(matrix)


class _Whole:
    """A matrix that is read as a whole when something of it is asked for."""

    def __init__(self, matrix: Matrix) -> None:
        self._matrix = matrix
        self._values: Array | None = None
        self.shape, self.dtype = matrix.shape, matrix.dtype

    def __getitem__(self, key: tuple[slice, slice]) -> Array:
        if self._values is None:
            self._values = np.asarray(self._matrix[0 : self.shape[0], 0 : self.shape[1]])
        return np.asarray(self._values[key])
