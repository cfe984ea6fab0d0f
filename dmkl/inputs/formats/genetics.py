"""Kernels of geneticists: relationship matrices of GCTA and PLINK, with the names of individuals beside them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dmkl.arrays import Array
from dmkl.errors import InputError
from dmkl.inputs.formats.file_arrays import FileArray, damaged_as
from dmkl.inputs.formats.limits import check_memory, lines_of
from dmkl.inputs.formats.phenotypes import individual_names

__all__ = ["gcta_arrays", "plink_arrays", "plink_text_arrays"]

_TEXT = np.dtype("U1")


def gcta_arrays(path: Path) -> list[FileArray]:
    """The relationship matrix of GCTA in NAME.grm.bin, of the individuals in NAME.grm.id.

    It holds the lower triangle as float32, row after row: entry (i, k), i ≥ k from 0, is number i(i + 1)/2 + k. How
    many variants two individuals share (NAME.grm.N.bin) is not needed.
    """
    names = _individuals(path, path.name[: -len(".bin")] + ".id")
    n = len(names)
    _check_size(path, n, {2 * n * (n + 1)})
    return _with_names(path, _Packed(path, n, np.dtype("<f4")), names)


def plink_arrays(path: Path) -> list[FileArray]:
    """The relationship matrix of PLINK in NAME.rel.bin, square or its lower triangle, as float64 or float32 (bin4)."""
    names = _individuals(path, path.name[: -len(".bin")] + ".id")
    n = len(names)
    forms = {8 * n * n: "<f8", 4 * n * n: "<f4", 4 * n * (n + 1): "<f8", 2 * n * (n + 1): "<f4"}
    _check_size(path, n, set(forms))
    size = path.stat().st_size
    dtype = np.dtype(forms[size])
    if size == n * n * dtype.itemsize:
        matrix: Any = partial(np.memmap, path, dtype, "r", 0, (n, n))
        return _with_names(path, matrix(), names)
    return _with_names(path, _Packed(path, n, dtype), names)


def plink_text_arrays(path: Path) -> list[FileArray]:
    """The relationship matrix of PLINK in text, NAME.rel: rows that end at the diagonal, or whole ones."""
    names = _individuals(path, path.name + ".id")
    n = len(names)
    return _with_names(path, _TextTriangle(path, n), names)


def _with_names(path: Path, matrix: Any, names: tuple[str, ...]) -> list[FileArray]:
    held = np.array(names, dtype=str)
    return [
        FileArray(
            path, "", tuple(matrix.shape), np.dtype(matrix.dtype), lambda: matrix, lambda: np.asarray(matrix[:, :])
        ),
        FileArray(path, "samples", (len(names),), _TEXT, lambda: held, lambda: held),
    ]


def _individuals(path: Path, name: str) -> tuple[str, ...]:
    """The names of the individuals in a file of FID and IID, or IID alone, beside the matrix."""
    beside = path.with_name(name)
    if not beside.is_file():
        msg = f"{path} says nothing of its individuals without {beside.name}, which is not beside it; copy it there"
        raise InputError(msg)
    pairs = []
    with damaged_as(f"{beside} is not written in UTF-8", UnicodeDecodeError), beside.open("rb") as file:
        for raw in lines_of(beside, file):
            cells = raw.decode().split()
            if cells and not cells[0].startswith("#"):
                pairs.append((cells[0], cells[min(1, len(cells) - 1)]))
    if not pairs:
        msg = f"{beside} names no individuals, expected a line of FID and IID for each"
        raise InputError(msg)
    return individual_names(pairs)


def _check_size(path: Path, n: int, expected: set[int]) -> None:
    size = path.stat().st_size
    if size not in expected:
        sizes = " or ".join(map(str, sorted(expected)))
        msg = f"{path} has {size} bytes, expected {sizes} for the {n} individuals of the .id file beside it"
        raise InputError(msg)


class _Packed:
    """A symmetric matrix of which the lower triangle is stored, row after row."""

    def __init__(self, path: Path, n: int, dtype: np.dtype[Any]) -> None:
        self._path, self.shape, self.dtype = path, (n, n), dtype

    def __getitem__(self, key: tuple[slice, slice]) -> Array:
        rows, cols = (np.arange(self.shape[0])[part] for part in key)
        stored = np.memmap(self._path, self.dtype, "r")
        low = np.minimum(rows[:, None], cols)
        high = np.maximum(rows[:, None], cols)
        return np.asarray(stored[high * (high + 1) // 2 + low])


class _TextTriangle:
    """A matrix in text whose rows may end at the diagonal; it is read as a whole."""

    def __init__(self, path: Path, n: int) -> None:
        self._path, self.shape, self.dtype = path, (n, n), np.dtype(np.float64)
        self._values: Array | None = None

    def __getitem__(self, key: Any) -> Array:
        if self._values is None:
            self._values = self._read()
        return np.asarray(self._values[key])

    def _read(self) -> Array:
        n = self.shape[0]
        check_memory(str(self._path), 8 * n * n, "save it with --make-rel bin, which is read in parts, or allow more")
        values = np.full((n, n), np.nan)
        i = -1
        with self._path.open("rb") as file:
            for i, raw in enumerate(lines_of(self._path, file)):
                try:
                    row = [float(cell) for cell in raw.split()]
                except ValueError as error:
                    msg = f"{self._path}, line {i + 1}: {error}; expected numbers parted by tabs"
                    raise InputError(msg) from error
                if i >= n or len(row) not in (i + 1, n):
                    msg = (
                        f"{self._path}, line {i + 1}: found {len(row)} numbers, expected {min(i, n - 1) + 1}, as far "
                        f"as the diagonal, or {n}: one for each individual of the .id file beside it"
                    )
                    raise InputError(msg)
                values[i, : len(row)] = row
        if i + 1 != n:
            msg = f"{self._path} has {i + 1} lines, expected {n}: one for each individual of the .id file beside it"
            raise InputError(msg)
        above = np.isnan(values) & np.triu(np.ones((n, n), dtype=bool), 1)
        return np.where(above, values.T, values)
