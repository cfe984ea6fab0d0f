"""Kernels whose rows and columns are put into one order of samples by name, as they are read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dmkl.arrays import Array, Float, Index, Mask
from dmkl.errors import InputError
from dmkl.inputs.joins import Join, Named, joined, places, same_order
from dmkl.inputs.kernel_sources import KernelSource, Matrix

__all__ = ["JoinedSource", "Reordered"]

_STRIP_ENTRIES = 2**20
"""Entries of a kernel that are in memory at a time while means are taken."""


class JoinedSource(KernelSource):
    """The kernels of a source over the samples that its kernels make together.

    A kernel is read in the order of the samples, a strip of whole rows at a time where that is not its own. With
    join="outer" a sample a that lacks a kernel gets the mean, in the kernel's feature space, of the training samples P
    that have it: k(a, x) = Σ_{y ∈ P} k(x, y)/|P|, and k(a, b) = Σ_{x, y ∈ P} k(x, y)/|P|² with another that lacks it.
    The kernel stays positive semidefinite, and centered over the training samples its row of a is zero.

    Parameters
    ----------
    source
        The kernels.
    join
        How the names of their samples are joined (see `dmkl.inputs.joins.joined`).
    samples, train_samples
        Names of the row and column samples that are wanted, in this order.
    beside
        Names of the samples of labels and splits.
    symmetric
        Whether rows and columns are the same samples; told by names and shape where None.

    Attributes
    ----------
    samples, train_samples
        The names, in order; None where nothing tells them.
    row_names
        The names of the row samples of each kernel that has any.
    without
        The kernels whose samples have none, as messages say it.
    train
        Which samples are training samples, (samples,), for those means; all of them where None.

    Raises
    ------
    InputError
        If names repeat, the kernels cannot be joined so, or a symmetric kernel has other rows than columns.
    """

    train: Mask | None = None

    def __init__(
        self,
        source: KernelSource,
        join: Join,
        *,
        samples: tuple[str, ...] | None = None,
        train_samples: tuple[str, ...] | None = None,
        beside: Sequence[Named] = (),
        symmetric: bool | None = None,
    ) -> None:
        self._source = source
        self.names, self.n_kernels = source.names, source.n_kernels
        if source.n_kernels is None and join != "exact" and any(axes.rows or axes.cols for axes in source.axes):
            msg = f"join={join!r} needs the names of all kernels before the first is read; give a list or a mapping"
            raise InputError(msg)
        self.symmetric = self._told(symmetric)
        rows, cols = ([self._named(j, axis) for j in range(len(source.axes))] for axis in (0, 1))
        self.row_names = [named for named in rows if named is not None]
        self.without = [self._title(j) for j, named in enumerate(rows) if named is None]
        self.samples = joined(self.row_names, join, samples, beside)
        self.train_samples = train_samples
        if self.symmetric is False:
            self.train_samples = joined([named for named in cols if named is not None], join, train_samples)
            if join == "outer" and any(map(self.n_missing, range(len(source.axes)))):
                msg = (
                    "join='outer' is for square kernels: the mean that stands for a sample is not known from "
                    "rectangular ones. Take join='inner', or compute these kernels from features (dmkl.build_cross)"
                )
                raise InputError(msg)

    @property
    def moved(self) -> list[str]:
        """The kernels whose samples stand in another order, as messages say it."""
        return [self._title(j) for j in range(len(self._source.axes)) if self._is_moved(j)]

    def matrices(self) -> Iterator[Matrix]:
        """See `KernelSource.matrices`."""
        matrices, j = self._source.matrices(), 0
        while (matrix := next(matrices, None)) is not None:
            put = self._put(j, matrix)
            del matrix  # let go of a kernel before the next is read
            yield put
            del put
            j += 1

    def identity(self, j: int) -> dict[str, Any] | None:
        """See `KernelSource.identity`: the order belongs to it, and where samples are missing the training samples."""
        identity, (rows, cols) = self._source.identity(j), self._places(j)
        if identity is None or (rows is None and cols is None):
            return identity
        parts = [rows, cols, self.train if self.n_missing(j) else None]
        order = b"".join(b"-" if part is None else np.ascontiguousarray(part, "<i8").tobytes() for part in parts)
        return {**identity, "order": hashlib.blake2b(order, digest_size=16).hexdigest()}

    def n_missing(self, j: int) -> int:
        """See `KernelSource.n_missing`."""
        missing = (0 if at is None else int((at < 0).sum()) for at in self._places(j))
        return max(missing)

    def _title(self, j: int) -> str:
        return f"kernel {j}" if self.names is None or j >= len(self.names) else f"kernel {str(self.names[j])!r}"

    def _told(self, symmetric: bool | None) -> bool | None:
        """Whether the kernels are symmetric, as far as names tell."""
        for j, (rows, cols, square) in enumerate(self._source.axes):
            differ = rows is not None and cols is not None and set(rows) != set(cols)
            if symmetric and differ:
                own = next(iter(set(rows or ()) ^ set(cols or ())))
                msg = (
                    f"a symmetric kernel has the same samples in rows and columns, but {self._title(j)} has {own!r} in "
                    "one of them alone; leave symmetric= out for new samples against training samples"
                )
                raise InputError(msg)
            if symmetric is None and (differ or not square):
                return False
        return symmetric

    def _names(self, j: int, axis: int) -> tuple[str, ...] | None:
        """The names along an axis of kernel j; those of a square kernel are the same, whichever axis has them."""
        if j >= len(self._source.axes):
            return None
        rows, cols, _ = self._source.axes[j]
        names, other = (rows, cols) if axis == 0 else (cols, rows)
        return other if names is None and self.symmetric is not False else names

    def _wanted(self, axis: int) -> tuple[str, ...] | None:
        return self.train_samples if axis == 1 and self.symmetric is False else self.samples

    def _named(self, j: int, axis: int) -> Named | None:
        names = self._names(j, axis)
        return None if names is None else Named(self._title(j), names)

    def _is_moved(self, j: int) -> bool:
        both = [(self._names(j, axis), self._wanted(axis)) for axis in (0, 1)]
        return any(names and wanted and names != wanted and not same_order(names, wanted) for names, wanted in both)

    def _places(self, j: int) -> tuple[Index | None, Index | None]:
        """Where the samples of the set stand in the rows and columns of kernel j; None where they stand in order."""
        return self._places_along(j, 0), self._places_along(j, 1)

    def _places_along(self, j: int, axis: int) -> Index | None:
        names, wanted = self._names(j, axis), self._wanted(axis)
        return None if names is None or wanted is None or names == wanted else places(names, wanted)

    def _put(self, j: int, matrix: Matrix) -> Matrix:
        for axis, length in enumerate(matrix.shape):
            named, wanted = self._named(j, axis), self._wanted(axis)
            if named is not None and len(named.names) != length:
                msg = f"{named.where} has {length} {('rows', 'columns')[axis]} and {len(named.names)} names for them"
                raise InputError(msg)
            if named is not None and self.n_kernels is None and wanted is not None:
                joined([named], "exact", wanted)  # of a generator, names come with the kernels
        rows, cols = self._places(j)
        if rows is None and cols is None:
            return matrix
        rows, cols = (np.arange(n) if at is None else at for at, n in zip((rows, cols), matrix.shape, strict=True))
        train = np.ones(len(rows), dtype=bool) if self.train is None else self.train
        return Reordered(matrix, rows, cols, train, self._title(j))


class Reordered:
    """A matrix with its rows and columns in another order, and means for those that it lacks (see `JoinedSource`).

    Parameters
    ----------
    matrix
        The matrix, read some rows at a time.
    rows, cols
        The row and column of `matrix` that stand at each place; -1 for a sample that it lacks.
    train
        Which places are training samples.
    title
        What it is called in messages.
    """

    def __init__(self, matrix: Matrix, rows: Index, cols: Index, train: Mask, title: str) -> None:
        self._matrix, self._rows, self._cols, self._train, self._title = matrix, rows, cols, train, title
        self.shape: tuple[int, ...] = (len(rows), len(cols))
        self._lacks = bool((rows < 0).any())
        # Means of whole numbers are fractions.
        self.dtype = np.result_type(matrix.dtype, np.float32) if self._lacks else np.dtype(matrix.dtype)
        self._held: tuple[tuple[int, int], Array] | None = None
        self._means: tuple[Float, float] | None = None

    def __getitem__(self, key: tuple[slice, slice]) -> Array:
        rows, cols = key
        if self._held is None or self._held[0] != (rows.start, rows.stop):
            self._held = None  # let go of the last strip before the next is read
            self._held = (rows.start, rows.stop), self._strip(np.arange(self.shape[0])[rows])
        return self._held[1][:, cols]

    def _strip(self, at: Index) -> Array:
        """Whole rows at some places."""
        wanted = self._rows[at]
        if not self._lacks:
            return self._read(wanted)[:, self._cols]
        strip = np.empty((len(at), self.shape[1]), dtype=self.dtype)
        here, present = wanted >= 0, self._cols >= 0
        means, mean = self._known_means()
        strip[np.ix_(here, present)] = self._read(wanted[here])[:, self._cols[present]]
        strip[np.ix_(here, ~present)] = means[at[here], None]
        strip[np.ix_(~here, present)] = means[present]
        strip[np.ix_(~here, ~present)] = mean
        return strip

    def _read(self, wanted: Index) -> Array:
        """Some rows of the matrix, in any order; neighbors are read together, and so is what shares a chunk."""
        found = np.empty((len(wanted), self._matrix.shape[1]), dtype=self._matrix.dtype)
        order = np.argsort(wanted, kind="stable")
        inside, height = wanted[order], _chunk_rows(self._matrix)
        apart = (np.diff(inside) > 1) & (np.diff(inside // height) > 0)
        for run in np.split(order, np.flatnonzero(apart) + 1):
            if len(run):
                start, stop = int(wanted[run[0]]), int(wanted[run[-1]]) + 1
                part = np.asarray(self._matrix[start:stop, 0 : self._matrix.shape[1]])
                found[run] = part[wanted[run] - start]
        return found

    def _known_means(self) -> tuple[Float, float]:
        """Mean of each row, and of all entries, over the training samples that have the kernel; (rows,) and a number.

        They are summed in the order of the places, so that no bit tells in which order the matrix was given.
        """
        if self._means is None:
            counted = np.flatnonzero(self._train & (self._cols >= 0))
            if not len(counted):
                msg = f"no training sample has {self._title}, so nothing stands for those that lack it; leave it out"
                raise InputError(msg)
            means = np.zeros(self.shape[0])
            here = np.flatnonzero(self._rows >= 0)
            step = max(1, _STRIP_ENTRIES // self._matrix.shape[1])
            for start in range(0, len(here), step):
                at = here[start : start + step]
                entries = np.take(self._read(self._rows[at]), self._cols[counted], axis=1)
                means[at] = entries.sum(axis=1, dtype=np.float64) / len(counted)
            self._means = means, float(means[counted].mean())
        return self._means


def _chunk_rows(matrix: Matrix) -> int:
    """Rows of a chunk, which is read as a whole whatever is asked of it."""
    chunks: Any = getattr(matrix, "chunks", None)
    return int(np.max(chunks[0])) if chunks else 1
