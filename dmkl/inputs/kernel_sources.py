"""Sources of the matrices of a new kernel set: one interface over arrays, iterables, labeled objects and files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple, Protocol

import dask.array as da
import numpy as np
import pandas as pd
import xarray as xr
import zarr

from dmkl.arrays import Array
from dmkl.errors import InputError
from dmkl.inputs.annotated_objects import is_annotated, parts_of
from dmkl.inputs.labels import axis_names, index_names
from dmkl.inputs.sparse import SparseMatrix, is_sparse

__all__ = [
    "ArraySource",
    "Axes",
    "IterableSource",
    "KernelSource",
    "LabeledArray",
    "Matrix",
    "StripBuffer",
    "as_source",
    "fingerprint",
    "kernel_axis",
    "short_names",
]


class Matrix(Protocol):
    """A matrix, or several in one array, that is read in parts: NumPy, memory maps, h5py, Zarr."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(rows, cols) of a matrix."""

    @property
    def dtype(self) -> Any:
        """Type of the entries."""

    def __getitem__(self, key: Any) -> Any:
        """A part, as anything that `numpy.asarray` takes."""


class Axes(NamedTuple):
    """Names of the samples of a kernel's rows and columns; None where it has none."""

    rows: tuple[str, ...] | None = None
    cols: tuple[str, ...] | None = None
    square: bool = True  # whether it has as many rows as columns


class KernelSource:
    """The matrices of a set, read one after another."""

    names: Sequence[str] | None = None
    """The kernels' names; None where the source has none."""
    n_kernels: int | None = None
    """How many; None where that shows only at the end."""
    axes: Sequence[Axes] = ()
    """Names of samples, by kernel: of all kernels, or of those that have come; none where no kernel has any."""
    notes: Sequence[str] = ()
    """What was left out, and what was taken in one of several ways that were possible; one sentence each."""
    symmetric: bool | None = None
    """Whether the names say that rows and columns are the same samples; None where the shape has to tell."""

    def matrices(self) -> Iterator[Matrix]:
        """The matrices in order; each is read before the next is asked for."""
        raise NotImplementedError

    def identity(self, j: int) -> dict[str, Any] | None:
        """What tells kernel j from any other content, so that a resumed import skips it; None if unknown."""
        raise NotImplementedError

    def n_missing(self, j: int) -> int:
        """How many samples lack kernel j; means stand in their place."""
        return 0


def kernel_axis(shape: Sequence[int], where: str, *, last_when_cubic: bool = False) -> int:
    """Which axis of a stack of square matrices counts the kernels: the one whose length differs."""
    a, b, c = shape
    if a == b == c:
        return 2 if last_when_cubic else 0
    if b == c:
        return 0
    if a == b:
        return 2
    if a == c:
        return 1
    msg = (
        f"{where} has shape {tuple(shape)}: expected n square kernels, (n, m, m), (m, m, n) or (m, n, m). "
        "For rectangular kernels (new samples against training samples) give the axis that counts the "
        "kernels"
    )
    raise InputError(msg)


def fingerprint(matrix: Matrix) -> str:
    """A digest of a matrix: BLAKE2b over its type, shape and rows."""
    digest = hashlib.blake2b(f"{np.dtype(matrix.dtype).str} {tuple(matrix.shape)}".encode(), digest_size=16)
    rows, cols = matrix.shape
    step = max(1, 2**20 // max(1, cols))  # a few megabytes at a time: the matrix may be a memory map
    for start in range(0, rows, step):
        digest.update(np.ascontiguousarray(matrix[start : min(start + step, rows), 0:cols]).tobytes())
    return digest.hexdigest()


class _Layer:
    """One kernel of a three-dimensional array, read in blocks."""

    def __init__(self, array: Any, axis: int, j: int) -> None:
        self._array, self._axis, self._j = array, axis, j
        self.shape = tuple(length for position, length in enumerate(array.shape) if position != axis)
        self.dtype = np.dtype(array.dtype)
        chunks = getattr(array, "chunks", None)
        self.chunks = None if chunks is None else [c for position, c in enumerate(chunks) if position != axis]

    def __getitem__(self, key: tuple[slice, slice]) -> Array:
        index: list[Any] = list(key)
        index.insert(self._axis, self._j)
        return np.asarray(self._array[tuple(index)])


class StripBuffer:
    """Serve blocks of a matrix that is best read a strip of rows at a time (a Dask array, a text file)."""

    def __init__(self, matrix: Matrix) -> None:
        self._matrix = matrix
        self._rows: tuple[int, int] | None = None
        self._strip: Array = np.empty((0, 0))
        self.shape = matrix.shape
        self.dtype = matrix.dtype
        self.chunks = getattr(matrix, "chunks", None)

    def __getitem__(self, key: tuple[slice, slice]) -> Array:
        rows, cols = key
        if self._rows != (rows.start, rows.stop):
            self._strip = np.asarray(self._matrix[rows, slice(0, self.shape[1])])
            self._rows = (rows.start, rows.stop)
        return self._strip[:, cols]


class LabeledArray:
    """An xarray array as a plain one, of which only what is asked for is read."""

    def __init__(self, array: xr.DataArray) -> None:
        self._array, self.shape, self.dtype = array, array.shape, array.dtype

    def __getitem__(self, key: Any) -> Any:
        return self._array[key].to_numpy()


class ArraySource(KernelSource):
    """A three-dimensional array, of which `axis` counts the kernels: NumPy, a memory map, Dask, Zarr, h5py."""

    def __init__(self, array: Any, *, axis: int = 0, names: Sequence[str] | None = None) -> None:
        if len(array.shape) != 3:
            msg = (
                f"kernels must be three-dimensional, (kernel, row, column), got an array of shape {tuple(array.shape)}"
            )
            raise InputError(msg)
        self._array, self._axis, self.names = array, axis, names
        self.n_kernels = int(array.shape[axis])

    @classmethod
    def labeled(cls, array: xr.DataArray, names: Sequence[str] | None) -> ArraySource:
        """An xarray array: its dimension called kernel, or the first, counts the kernels; its coordinates are names."""
        axis = list(array.dims).index("kernel") if "kernel" in array.dims else 0
        told = axis_names(array, axis) if names is None else names
        source = cls(array.data if array.chunks is not None else LabeledArray(array), axis=axis, names=told)
        rows, cols = (other for other in range(3) if other != axis)
        square = array.shape[rows] == array.shape[cols]
        source.axes = [Axes(axis_names(array, rows), axis_names(array, cols), square)] * int(array.shape[axis])
        return source

    def matrices(self) -> Iterator[Matrix]:
        """See `KernelSource.matrices`."""
        assert self.n_kernels is not None
        for j in range(self.n_kernels):
            layer = _Layer(self._array, self._axis, j)
            # A Dask block costs the chunks that it touches: whole strips touch each chunk fewest times.
            yield StripBuffer(layer) if isinstance(self._array, da.Array) else layer

    def identity(self, j: int) -> dict[str, Any] | None:
        """See `KernelSource.identity`."""
        if isinstance(self._array, np.ndarray | LabeledArray):
            return {"array": fingerprint(_Layer(self._array, self._axis, j))}
        if isinstance(self._array, da.Array):
            return {"dask": self._array.name, "index": j}
        return None


class IterableSource(KernelSource):
    """Matrices that come one at a time; a list can be gone through again, a generator only once."""

    def __init__(self, kernels: Iterable[Any], names: Sequence[str] | None = None) -> None:
        self._kernels = kernels
        self._sequence: Sequence[Any] | None = kernels if isinstance(kernels, Sequence) else None
        self.names = names
        if self._sequence is not None:
            self.n_kernels = len(self._sequence)
            self.axes = list(map(_axes, self._sequence))
            return
        # Of a generator the first kernel tells the names: all others must have the same.
        rest = iter(kernels)
        first = list(islice(rest, 1))
        self._kernels, self.axes = chain(_emptied(first), rest), list(map(_axes, first))

    def matrices(self) -> Iterator[Matrix]:
        """See `KernelSource.matrices`."""
        for j, kernel in enumerate(self._kernels):
            if j >= len(self.axes):
                self.axes = [*self.axes, _axes(kernel)]
            yield _matrix(j, kernel)

    def identity(self, j: int) -> dict[str, Any] | None:
        """See `KernelSource.identity`."""
        if self._sequence is None:
            return None
        kernel = _plain(self._sequence[j])
        if isinstance(kernel, np.ndarray | LabeledArray | SparseMatrix):
            return {"array": fingerprint(kernel)}
        return {"dask": kernel.name} if isinstance(kernel, da.Array) else None


def _emptied(held: list[Any]) -> Iterator[Any]:
    """What a list holds, which lets go of it."""
    while held:
        yield held.pop()


def _axes(kernel: Any) -> Axes:
    if isinstance(kernel, pd.DataFrame):
        return Axes(index_names(kernel.index), index_names(kernel.columns), len(kernel.index) == len(kernel.columns))
    if isinstance(kernel, xr.DataArray) and kernel.ndim == 2:
        return Axes(axis_names(kernel, 0), axis_names(kernel, 1), kernel.shape[0] == kernel.shape[1])
    return Axes()


def _plain(kernel: Any) -> Any:
    """A kernel without its names."""
    if isinstance(kernel, pd.DataFrame):
        return kernel.to_numpy()
    if isinstance(kernel, xr.DataArray):
        return kernel.data if kernel.chunks is not None else LabeledArray(kernel)
    return SparseMatrix(kernel) if is_sparse(kernel) else kernel


def _matrix(j: int, kernel: Any) -> Matrix:
    found = _plain(kernel)
    if isinstance(found, da.Array):
        return StripBuffer(found)
    matrix: Matrix = found if hasattr(found, "shape") and hasattr(found, "dtype") else np.asarray(found)
    if len(matrix.shape) != 2:
        msg = f"kernel {j} must be a matrix, got an array of shape {tuple(matrix.shape)}"
        raise InputError(msg)
    return matrix


def _annotated(data: Any, names: Sequence[str] | None) -> KernelSource:
    """The kernels of AnnData or MuData, each with the names of its samples."""
    entries = [(part, *entry) for part in parts_of(data) for entry in part.squares()]
    found = [(name, matrix, part.samples) for part, name, matrix, holds in entries if holds == "kernel"]
    if not found:
        msg = (
            "there are no kernels in obsp of this annotated data; compute some of its features, dmkl.build(path, data, "
            "specs), or give distances to the function distance of dmkl.build"
        )
        raise InputError(msg)
    told, matrices, samples = zip(*found, strict=True)
    source = IterableSource(list(matrices), names=short_names(told) if names is None else names)
    source.axes = [Axes(own, own) for own in samples]
    return source


def short_names(names: Sequence[str]) -> list[str]:
    """Names in a file or object without the folder that all of them lie in."""
    return [name.rpartition("/")[2] for name in names] if len({n.rpartition("/")[0] for n in names}) == 1 else [*names]


def as_source(kernels: Any, names: Sequence[str] | None = None) -> KernelSource:
    """Turn what `dmkl.create` accepts into a source."""
    if isinstance(kernels, KernelSource):
        return kernels
    if isinstance(kernels, pd.DataFrame) or is_sparse(kernels):
        what = "a data frame" if isinstance(kernels, pd.DataFrame) else "a sparse matrix"
        msg = f"kernels must be three-dimensional, got {what} of shape {kernels.shape}; give one kernel as [K]"
        raise InputError(msg)
    source: KernelSource
    if isinstance(kernels, xr.DataArray):
        source = ArraySource.labeled(kernels, names)
    elif is_annotated(kernels):
        source = _annotated(kernels, names)
    elif isinstance(kernels, Mapping):
        source = IterableSource(list(kernels.values()), names=list(kernels) if names is None else names)
    elif isinstance(kernels, np.ndarray | da.Array | zarr.Array) or (
        hasattr(kernels, "shape") and hasattr(kernels, "dtype") and hasattr(kernels, "__getitem__")
    ):
        source = ArraySource(kernels, names=names)
    elif isinstance(kernels, Iterable) and not isinstance(kernels, str | bytes):
        source = IterableSource(kernels, names=names)
    else:
        msg = (
            "kernels must be an array (n, m, m), an iterable of (m, m) arrays, a Dask array or a Zarr "
            f"array, got {type(kernels).__name__}"
        )
        raise InputError(msg)
    if source.n_kernels == 0:
        msg = "a kernel set needs at least one kernel, got none"
        raise InputError(msg)
    return source
