"""Sources of the matrices of a new kernel set: one interface over arrays, iterables and files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import dask.array as da
import numpy as np
import zarr

from dmkl.arrays import Array
from dmkl.errors import InputError

__all__ = [
    "ArraySource",
    "IterableSource",
    "KernelSource",
    "Matrix",
    "StripBuffer",
    "as_source",
    "fingerprint",
    "kernel_axis",
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


class KernelSource(Protocol):
    """The matrices of a set, read one after another."""

    names: Sequence[str] | None
    """The kernels' names; None where the source has none."""
    n_kernels: int | None
    """How many; None where that shows only at the end."""

    def matrices(self) -> Iterator[Matrix]:
        """The matrices in order; each is read before the next is asked for."""

    def identity(self, j: int) -> dict[str, Any] | None:
        """What tells kernel j from any other content, so that a resumed import skips it; None if unknown."""


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

    def __getitem__(self, key: tuple[slice, slice]) -> Array:
        rows, cols = key
        if self._rows != (rows.start, rows.stop):
            self._strip = np.asarray(self._matrix[rows, slice(0, self.shape[1])])
            self._rows = (rows.start, rows.stop)
        return self._strip[:, cols]


class ArraySource:
    """A three-dimensional array, of which `axis` counts the kernels: NumPy, a memory map, Dask, Zarr, h5py."""

    def __init__(self, array: Any, *, axis: int = 0, names: Sequence[str] | None = None) -> None:
        if len(array.shape) != 3:
            msg = (
                f"kernels must be three-dimensional, (kernel, row, column), got an array of shape {tuple(array.shape)}"
            )
            raise InputError(msg)
        self._array, self._axis, self.names = array, axis, names
        self.n_kernels: int | None = int(array.shape[axis])

    def matrices(self) -> Iterator[Matrix]:
        """See `KernelSource.matrices`."""
        assert self.n_kernels is not None
        for j in range(self.n_kernels):
            layer = _Layer(self._array, self._axis, j)
            # A Dask block costs the chunks that it touches: whole strips touch each chunk fewest times.
            yield StripBuffer(layer) if isinstance(self._array, da.Array) else layer

    def identity(self, j: int) -> dict[str, Any] | None:
        """See `KernelSource.identity`."""
        if isinstance(self._array, np.ndarray):
            return {"array": fingerprint(_Layer(self._array, self._axis, j))}
        if isinstance(self._array, da.Array):
            return {"dask": self._array.name, "index": j}
        return None


class IterableSource:
    """Matrices that come one at a time; a list can be gone through again, a generator only once."""

    def __init__(self, kernels: Iterable[Any], names: Sequence[str] | None = None) -> None:
        self._kernels = kernels
        self._sequence: Sequence[Any] | None = kernels if isinstance(kernels, Sequence) else None
        self.names = names
        self.n_kernels: int | None = None if self._sequence is None else len(self._sequence)

    def matrices(self) -> Iterator[Matrix]:
        """See `KernelSource.matrices`."""
        for j, kernel in enumerate(self._kernels):
            if isinstance(kernel, da.Array):
                yield StripBuffer(kernel)
                continue
            matrix = kernel if hasattr(kernel, "shape") and hasattr(kernel, "dtype") else np.asarray(kernel)
            if len(matrix.shape) != 2:
                msg = f"kernel {j} must be a matrix, got an array of shape {tuple(matrix.shape)}"
                raise InputError(msg)
            yield matrix

    def identity(self, j: int) -> dict[str, Any] | None:
        """See `KernelSource.identity`."""
        if self._sequence is None:
            return None
        kernel = self._sequence[j]
        if isinstance(kernel, np.ndarray):
            return {"array": fingerprint(kernel)}
        return {"dask": kernel.name} if isinstance(kernel, da.Array) else None


def as_source(kernels: Any, names: Sequence[str] | None = None) -> KernelSource:
    """Turn what `dmkl.create` accepts into a source."""
    if hasattr(kernels, "matrices") and hasattr(kernels, "identity"):
        return kernels  # type: ignore[no-any-return]
    source: KernelSource
    if isinstance(kernels, Mapping):
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
