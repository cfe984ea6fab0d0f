"""Matrices that are read in parts: sparse, condensed and labelled arrays, with rows and columns in any order."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from dmkl.arrays import Array, Float, Index, Lazy, Mask, Matrix, is_instance, unmasked
from dmkl.errors import refuse
from dmkl.settings import check_memory

_STRIP_ENTRIES = 2**20  # Entries of a kernel that are in memory at a time while means are computed.


def plain(values: Any) -> Any:
    """Return a matrix without the names of its rows and columns, of any library that exchanges arrays by DLPack."""
    if is_instance(values, "pandas", "DataFrame"):
        return values.to_numpy()
    if is_instance(values, "xarray", "DataArray"):
        if not isinstance(values.dtype, np.dtype):  # a type of pandas, such as of strings
            return values.to_numpy()
        in_parts = Lazy(values.shape, values.dtype, lambda key: values[key].to_numpy())
        return values.data if values.chunks is not None else in_parts
    if isinstance(values, np.ndarray):
        return unmasked(values)
    if is_sparse(values) or not hasattr(values, "__dlpack__"):
        return dense_rows(values) if is_sparse(values) else values
    try:
        return np.from_dlpack(values)  # the same memory
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        what = f"an array of {type(values).__module__.partition('.')[0]} must be in the memory of the processor, of a"
        way_out = "give a copy there, such as tensor.detach().cpu()"
        refuse(f"{what} type that NumPy has, and without a gradient ({error}); {way_out}", error)


def open_alone(last: list[Any], key: Any, open: Callable[[], Any]) -> Any:
    """Return the array of a key; only the one that was opened last stays in memory, in `last` with its key."""
    held = tuple(last)  # another thread may change it
    if held[:1] == (key,):
        return held[1]
    last.clear()
    del held  # before the next array is read
    array = open()
    last[:] = key, array
    return array


def is_sparse(values: Any) -> bool:
    """Whether this is a sparse matrix or array of SciPy."""
    return is_instance(values, "scipy.sparse", "spmatrix", "sparray")


def dense_rows(matrix: Any) -> Lazy:
    """Return a sparse matrix of SciPy as a dense one, of which some rows are made at a time."""
    rows = matrix.tocsr()
    return Lazy(matrix.shape, matrix.dtype, lambda key: rows[key[0]][:, key[1]].toarray())


def n_condensed(length: int) -> int | None:
    """Return the number of samples, at least 3, with this number of pairs; None if there is none."""
    n = (1 + math.isqrt(1 + 8 * length)) // 2
    return n if n >= 3 and n * (n - 1) // 2 == length else None


def square(values: Any, n: int) -> Lazy:
    """Return distances of pairs i < k in a vector, at ni − i(i + 1)/2 + k − i − 1 as SciPy's pdist, as (n, n)."""

    def distances_of(key: tuple[Any, slice]) -> Array:
        rows, cols = (np.arange(n)[part] for part in key)
        low, high = np.minimum(rows[:, None], cols), np.maximum(rows[:, None], cols)
        at = n * low - low * (low + 1) // 2 + high - low - 1
        distances = np.zeros(at.shape, dtype=values.dtype)
        distances[low < high] = np.asarray(values[:])[at[low < high]]
        return distances

    return Lazy((n, n), values.dtype, distances_of)


def transposed(array: Any) -> Lazy:
    """Return an array whose last axis is read as its first: of a matrix the columns as rows."""
    return Lazy(array.shape[::-1], array.dtype, lambda key: np.asarray(array[key[::-1]]).T)


def upper_triangles(what: str, stack: Any) -> Lazy:
    """Return symmetric matrices (n, m, m) as rows of their entries above the diagonal, (n, m(m − 1)/2)."""
    n, m = stack.shape[:2]
    check_memory(f"the pairs in {what}", 32 * m * m, "allow more")
    pairs = np.triu_indices(m, 1)

    def rows_of(key: tuple[Any, Any]) -> Array:
        matrices = np.asarray(stack[key[0], :, :])
        upper, lower = (matrices[:, i, k] for i, k in (pairs, pairs[::-1]))
        if not np.allclose(upper, lower, equal_nan=True):
            refuse(f"{what} are matrices that are not symmetric; give their entries as rows, (samples, columns)")
        return np.asarray(upper[:, key[1]])

    return Lazy((n, len(pairs[0])), stack.dtype, rows_of)


class Layer(Lazy):
    """One kernel of a three-dimensional array, read in blocks."""

    def __init__(self, array: Any, axis: int, j: int) -> None:
        self.array = array
        shape, chunks = [*array.shape[:axis], *array.shape[axis + 1 :]], getattr(array, "chunks", None)
        chunks = None if chunks is None else [*chunks[:axis], *chunks[axis + 1 :]]
        super().__init__(shape, array.dtype, lambda key: array[(*key[:axis], j, *key[axis:])], chunks)


class StripBuffer:
    """Read blocks of a matrix that is best read a strip of rows at a time, such as a Dask array, or as a `whole`."""

    def __init__(self, matrix: Matrix, *, whole: bool = False) -> None:
        self._matrix, self._whole = matrix, whole
        self._last: list[Any] = []
        self.shape, self.dtype = matrix.shape, matrix.dtype
        self.chunks = None if whole else getattr(matrix, "chunks", None)

    def __getitem__(self, key: tuple[slice, slice]) -> Array:
        rows, cols = key
        strip = (0, self.shape[0]) if self._whole else (rows.start, rows.stop)
        values = open_alone(self._last, strip, lambda: self._read(*strip))
        return np.asarray(values[rows if self._whole else slice(None), cols])

    def _read(self, start: int, stop: int) -> Array:
        return np.asarray(self._matrix[start:stop, 0 : self.shape[1]])


def _read_rows(matrix: Matrix, wanted: Index) -> Array:
    """Read whole rows of a matrix in any order, (wanted, cols); neighbors and rows of one chunk are read together."""
    rows = np.empty((len(wanted), matrix.shape[1]), dtype=matrix.dtype)
    order = np.argsort(wanted, kind="stable")  # HDF5 reads rows in increasing order only
    chunks: Any = getattr(matrix, "chunks", None)
    height = int(np.max(chunks[0])) if chunks else 1
    inside = wanted[order]
    apart = (np.diff(inside) > 1) & (np.diff(inside // height) > 0)
    for run in np.split(order, np.flatnonzero(apart) + 1):
        if len(run):
            start, stop = int(wanted[run[0]]), int(wanted[run[-1]]) + 1
            part = np.asarray(matrix[start:stop, 0 : matrix.shape[1]])
            rows[run] = part[wanted[run] - start]
    return rows


class Reordered(StripBuffer):
    """A kernel with its rows and columns in another order, and means for missing samples.

    A sample a that lacks the kernel gets the mean, in the kernel's feature space, of the training samples P that have
    it: k(a, x) = Σ_{y ∈ P} k(x, y)/|P|, and k(a, b) = Σ_{x, y ∈ P} k(x, y)/|P|² with another that lacks it. The kernel
    stays positive semidefinite, and centered over the training samples its row of a is zero.

    `rows` and `cols` are the row and column of `matrix` for each sample, -1 for a sample that it lacks; `train` is the
    mask of training samples, `title` its name in messages.
    """

    def __init__(self, matrix: Matrix, rows: Index, cols: Index, train: Mask, title: str) -> None:
        super().__init__(matrix)
        self._order, self._cols, self._train, self._title = rows, cols, train, title
        self.shape, self.chunks = (len(rows), len(cols)), None
        self._lacks = bool((rows < 0).any())
        # Means of whole numbers are fractions.
        self.dtype = np.result_type(matrix.dtype, np.float32) if self._lacks else np.dtype(matrix.dtype)

    def _read(self, start: int, stop: int) -> Array:
        wanted = self._order[start:stop]
        if not self._lacks:
            return _read_rows(self._matrix, wanted)[:, self._cols]
        strip = np.empty((len(wanted), self.shape[1]), dtype=self.dtype)
        here, present = wanted >= 0, self._cols >= 0
        means, mean = self._training_means
        strip[np.ix_(here, present)] = _read_rows(self._matrix, wanted[here])[:, self._cols[present]]
        strip[np.ix_(here, ~present)] = means[start:stop][here, None]
        strip[np.ix_(~here, present)] = means[present]
        strip[np.ix_(~here, ~present)] = mean
        return strip

    @cached_property
    def _training_means(self) -> tuple[Float, float]:
        """The mean of each row, and of all entries, over training samples that have the kernel."""
        counted = np.flatnonzero(self._train & (self._cols >= 0))
        if not len(counted):
            refuse(f"no training sample has {self._title}, so nothing stands for those that lack it; leave it out")
        means = np.zeros(self.shape[0])
        here = np.flatnonzero(self._order >= 0)
        step = max(1, _STRIP_ENTRIES // self._matrix.shape[1])
        for start in range(0, len(here), step):
            at = here[start : start + step]
            # Sums follow the order of the set, so that no bit depends on the order in which the matrix was given.
            entries = np.take(_read_rows(self._matrix, self._order[at]), self._cols[counted], axis=1)
            means[at] = entries.sum(axis=1, dtype=np.float64) / len(counted)
        return means, float(means[counted].mean())
