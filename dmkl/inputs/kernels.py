"""Kernels from arrays, iterables, labelled objects and files, read one after another in one order of samples."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
import pandas as pd
import xarray as xr

from dmkl.arrays import Index, Mask
from dmkl.errors import InputError
from dmkl.inputs.annotated_objects import is_annotated, parts_of
from dmkl.inputs.columns import ROLES
from dmkl.inputs.find import PathLike, find_files, names_of_arrays, short_names, sort_arrays
from dmkl.inputs.formats.file_arrays import ELSEWHERE, FileArray, listed, role_of, shape_text, stamp, where
from dmkl.inputs.formats.limits import check_memory
from dmkl.inputs.formats.registry import Format, arrays_in, expected_files
from dmkl.inputs.label_tables import read_file, read_names
from dmkl.inputs.labels import Labels
from dmkl.inputs.matrices import (
    Layer,
    Lazy,
    Matrix,
    Reordered,
    StripBuffer,
    fingerprint,
    is_sparse,
    n_condensed,
    plain,
)
from dmkl.inputs.names import (
    Join,
    Named,
    axis_names,
    index_names,
    joined,
    left_out,
    names_of_pairs,
    need_families,
    note_of_positions,
    only_counts,
    places,
    taken_by_position,
)
from dmkl.inputs.side_data import OF_SAMPLES, KernelShape, SideData, gather, names_beside, of_rows

__all__ = ["ArraySource", "Axes", "IterableSource", "JoinedSource", "KernelSource", "as_source", "open_files"]


_AXES = ("rows", "columns")


class Axes(NamedTuple):
    """Names of the samples of a kernel's rows and columns; None where it has none."""

    rows: tuple[str, ...] | None = None
    cols: tuple[str, ...] | None = None
    square: bool = True  # whether it has as many rows as columns
    families: tuple[str, ...] | None = None  # of the rows, where these are individuals
    numbers: tuple[str, ...] | None = None  # of the rows of a data frame whose index only counts


class KernelSource:
    """The matrices of a set, read one after another."""

    names: Sequence[str] | None = None
    """The kernels' names; None where the source has none."""
    n_kernels: int | None = None
    """How many; None where that shows only at the end."""
    axes: Sequence[Axes] = ()
    """Names of samples, by kernel: of all kernels, or of those that have come; none where no kernel has any."""
    notes: Sequence[str] = ()
    """Notes: parts that were left out, and choices that could have been otherwise; one sentence each."""
    symmetric: bool | None = None
    """Whether names show that rows and columns are the same samples; None where only the shape can."""

    def matrices(self) -> Iterator[Matrix]:
        """The matrices in order; each is read before the next is asked for."""
        raise NotImplementedError

    def identity(self, j: int) -> dict[str, Any] | None:
        """A record that differs for other content of kernel j: a resumed import skips those; None if unknown."""
        raise NotImplementedError

    def n_missing(self, j: int) -> int:
        """How many samples lack kernel j; means stand in their place."""
        return 0


# --- objects in memory ---------------------------------------------------------------------------------------------


class IterableSource(KernelSource):
    """Matrices that come one at a time; a list can be gone through again, a generator only once."""

    def __init__(self, kernels: Iterable[Any], names: Sequence[str] | None = None) -> None:
        self.names, self._kernels = names, kernels
        if isinstance(kernels, Sequence):
            self.n_kernels, self.axes = len(kernels), list(map(_axes, kernels))
            if not kernels:
                msg = "a kernel set needs at least one kernel, got none"
                raise InputError(msg)
            return
        # Of a generator the first kernel tells the names: all others must have the same.
        rest = iter(kernels)
        first = list(islice(rest, 1))
        self.axes = list(map(_axes, first))
        self._kernels = chain((first.pop() for _ in self.axes[:1]), rest)  # no list holds the first while others come

    def matrices(self) -> Iterator[Matrix]:
        """See `KernelSource.matrices`."""
        for j, kernel in enumerate(self._kernels):
            if j >= len(self.axes):
                self.axes = [*self.axes, _axes(kernel)]
            matrix = plain(kernel)
            if not (hasattr(matrix, "shape") and hasattr(matrix, "dtype")):
                matrix = np.asarray(matrix)
            if len(matrix.shape) != 2:
                msg = f"kernel {j} must be a matrix, got an array of shape {tuple(matrix.shape)}"
                raise InputError(msg)
            # A Dask block costs the chunks that it touches: whole strips touch each chunk fewest times.
            yield StripBuffer(matrix) if isinstance(_whole(matrix), da.Array) else matrix

    def identity(self, j: int) -> dict[str, Any] | None:
        """See `KernelSource.identity`."""
        if not isinstance(self._kernels, Sequence):
            return None
        kernel = plain(self._kernels[j])
        whole = _whole(kernel)
        if isinstance(whole, da.Array):
            return {"dask": whole.name, **({} if kernel is whole else {"index": j})}
        return {"array": fingerprint(kernel)} if isinstance(whole, np.ndarray | Lazy) else None


class ArraySource(IterableSource):
    """A three-dimensional array, of which `axis` counts the kernels: NumPy, a memory map, Dask, Zarr, h5py."""

    def __init__(self, array: Any, *, axis: int = 0, names: Sequence[str] | None = None) -> None:
        if len(array.shape) != 3:
            is_frame = isinstance(array, pd.DataFrame)
            what = "a sparse matrix" if is_sparse(array) else "a data frame" if is_frame else "an array"
            msg = (
                f"kernels must be three-dimensional, (kernel, row, column), got {what} of shape {tuple(array.shape)}; "
                "give one kernel as [K]"
            )
            raise InputError(msg)
        super().__init__([Layer(array, axis, j) for j in range(int(array.shape[axis]))], names)


def _whole(matrix: Any) -> Any:
    """The array that holds a matrix."""
    return matrix.array if isinstance(matrix, Layer) else matrix


def _axes(kernel: Any, rows: int = 0, cols: int = 1) -> Axes:
    """The names along two axes of an object."""
    if isinstance(kernel, pd.DataFrame):
        numbers = tuple(map(str, kernel.index)) if only_counts(kernel.index) else None
        names = index_names(kernel.index), index_names(kernel.columns)
        return Axes(*names, kernel.shape[0] == kernel.shape[1], numbers=numbers)
    if isinstance(kernel, xr.DataArray) and kernel.ndim > cols:
        return Axes(axis_names(kernel, rows), axis_names(kernel, cols), kernel.shape[rows] == kernel.shape[cols])
    return Axes()


def _annotated(data: Any, names: Sequence[str] | None) -> KernelSource:
    """The kernels of AnnData or MuData, each with the names of its samples."""
    entries = [(part.samples, *entry) for part in parts_of(data) for entry in part.squares()]
    kernels = [(name, matrix, samples) for samples, name, matrix, holds in entries if holds == "kernel"]
    if not kernels:
        msg = (
            "there are no kernels in obsp of this annotated data; compute some of its features, dmkl.build(path, data, "
            "specs), or give distances to the function distance of dmkl.build"
        )
        raise InputError(msg)
    own, matrices, samples = zip(*kernels, strict=True)
    source = IterableSource(matrices, names=short_names(own) if names is None else names)
    source.axes = [Axes(each, each) for each in samples]
    return source


def as_source(kernels: Any, names: Sequence[str] | None = None) -> KernelSource:
    """Turn an object that `dmkl.create` accepts into a source."""
    if isinstance(kernels, KernelSource):
        return kernels
    if isinstance(kernels, xr.DataArray):
        axis = list(kernels.dims).index("kernel") if "kernel" in kernels.dims else 0
        source = ArraySource(plain(kernels), axis=axis, names=axis_names(kernels, axis) if names is None else names)
        source.axes = [_axes(kernels, *(other for other in range(3) if other != axis))] * len(source.axes)
        return source
    if is_annotated(kernels):
        return _annotated(kernels, names)
    if isinstance(kernels, Mapping):
        return IterableSource(list(kernels.values()), names=list(kernels) if names is None else names)
    # NumPy, Dask, Zarr, h5py …, or one matrix, which is refused
    if isinstance(kernels, pd.DataFrame) or (hasattr(kernels, "shape") and hasattr(kernels, "dtype")):
        return ArraySource(kernels, names=names)
    if isinstance(kernels, Iterable) and not isinstance(kernels, str | bytes):
        return IterableSource(kernels, names=names)
    msg = (
        "kernels must be an array (n, m, m), an iterable of (m, m) arrays, a Dask array or a Zarr array, got "
        f"{type(kernels).__name__}"
    )
    raise InputError(msg)


# --- one order of samples ------------------------------------------------------------------------------------------


class JoinedSource(KernelSource):
    """The kernels of a source over the samples that its kernels make together, each in the order of these.

    Strips of whole rows are read of a kernel whose own order is another. With join="outer" a sample that lacks a kernel
    gets a mean (see `Reordered`) of the training samples: `train`, (samples,), or all of them where that is None.

    `join`, `samples`, `train_samples` and `symmetric` are as in `dmkl.create`, `beside` the names that labels and
    splits have. Then `samples` and `train_samples` are the names in order, None where nothing has names; `row_names`
    are those of the rows of each kernel that has any, `without` the other kernels, as messages say it.

    InputError is raised where names repeat, the kernels cannot be joined so, or a symmetric kernel has other rows than
    columns.
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
        self._source, self.names, self.n_kernels = source, source.names, source.n_kernels
        # An index that only counts names the rows where other names are the same numbers in another order.
        axes = source.axes
        shuffled = {
            numbers
            for numbers in {own.numbers for own in axes if own.numbers is not None}
            if any(own.rows is not None and set(own.rows) == set(numbers) for own in axes)
        }
        axes = [own._replace(rows=own.numbers, cols=None) if own.numbers in shuffled else own for own in axes]
        source.axes = axes
        if source.n_kernels is None and join != "exact" and any(own.rows or own.cols for own in axes):
            msg = f"join={join!r} needs the names of all kernels before the first is read; give a list or a mapping"
            raise InputError(msg)
        of_rows = [Named(self._title(j), own.rows, own.families) for j, own in enumerate(axes) if own.rows is not None]
        self._by_pairs = need_families([*of_rows, *beside])
        self.symmetric = self._is_symmetric(symmetric)
        named = [self._named(j) for j in range(len(axes))]
        self.row_names = [rows for rows, _ in named if rows is not None]
        self.without = [self._title(j) for j, (rows, _) in enumerate(named) if rows is None]
        self.samples = joined(self.row_names, join, samples, [self.named_beside(each) for each in beside])
        self.train_samples, self._wanted = train_samples, (self.samples, self.samples)
        if self.symmetric is False:
            self.train_samples = joined([cols for _, cols in named if cols is not None], join, train_samples)
            self._wanted = self.samples, self.train_samples
        if self.symmetric is False and join == "outer" and any(map(self.n_missing, range(len(axes)))):
            msg = (
                "join='outer' is for square kernels: the mean that stands for a sample is not known from "
                "rectangular ones. Take join='inner', or compute these kernels from features (dmkl.build_cross)"
            )
            raise InputError(msg)

    def named_beside(self, named: Named) -> Named:
        """Names of labels or splits as the samples of the set have them: FID_IID where IID alone is not unique."""
        return Named(named.where, names_of_pairs(named.names, named.families)) if self._by_pairs else named

    @property
    def moved(self) -> list[str]:
        """The kernels whose samples stand in another order, as messages say it."""
        return [self._title(j) for j in range(len(self._source.axes)) if self._is_moved(j)]

    def _is_moved(self, j: int) -> bool:
        return any(at is not None and (np.diff(at, prepend=-1) <= 0).any() for at in self._places(j))

    def matrices(self) -> Iterator[Matrix]:
        """See `KernelSource.matrices`."""
        return map(self._put, count(), self._source.matrices())  # which holds no kernel while the next is read

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
        return max(0 if at is None else int((at < 0).sum()) for at in self._places(j))

    def _title(self, j: int) -> str:
        return f"kernel {j}" if self.names is None or j >= len(self.names) else f"kernel {str(self.names[j])!r}"

    def _is_symmetric(self, symmetric: bool | None) -> bool | None:
        """Whether the kernels are symmetric, as far as names tell."""
        for j, (rows, cols, square, *_) in enumerate(self._source.axes):
            others = set() if rows is None or cols is None else set(rows) ^ set(cols)
            if symmetric and others:
                msg = (
                    f"a symmetric kernel has the same samples in rows and columns, but {self._title(j)} has "
                    f"{min(others)!r} in one of them alone; leave symmetric= out for new samples against training "
                    "samples, or give the names of the rows as they stand (--order FILE) if both are the same samples"
                )
                raise InputError(msg)
            if symmetric is None and (others or not square):
                return False
        return symmetric

    def _named(self, j: int) -> tuple[Named | None, Named | None]:
        """The names of the rows and columns of kernel j; of a square one they are the same, whichever axis has them."""
        rows, cols, _, families, _ = self._source.axes[j] if j < len(self._source.axes) else Axes()
        if self._by_pairs and rows is not None:
            rows = names_of_pairs(rows, families)
        if self.symmetric is not False:
            rows, cols = cols if rows is None else rows, rows if cols is None else cols
        title = self._title(j)
        return None if rows is None else Named(title, rows), None if cols is None else Named(title, cols)

    def _places(self, j: int) -> list[Index | None]:
        """Where the samples of the set stand in the rows and columns of kernel j; None where they stand in order."""
        return [
            None if named is None or wanted is None or named.names == wanted else places(named.names, wanted)
            for named, wanted in zip(self._named(j), self._wanted, strict=True)
        ]

    def _put(self, j: int, matrix: Matrix) -> Matrix:
        """Kernel j in the order of the samples."""
        for named, wanted, length, axis in zip(self._named(j), self._wanted, matrix.shape, _AXES, strict=True):
            if named is not None and len(named.names) != length:
                msg = f"{named.where} has {length} {axis} and {len(named.names)} names for them"
                raise InputError(msg)
            if named is not None and wanted is not None and self.n_kernels is None:
                joined([named], "exact", wanted)  # of a generator, names come with the kernels
        at = self._places(j)
        if all(each is None for each in at):
            return matrix
        rows, cols = (np.arange(n) if each is None else each for each, n in zip(at, matrix.shape, strict=True))
        train = np.ones(len(rows), bool) if self.train is None else self.train
        return Reordered(matrix, rows, cols, train, self._title(j))


# --- files ---------------------------------------------------------------------------------------------------------

_KERNEL_BYTES = 512
"""Memory that the name and the record of a kernel take."""
_NAMED_PROBLEMS = {
    "sparse": "is sparse, but kernels are stored dense; save full({name})",
    "complex": "is complex, expected real numbers; save real({name}) if the imaginary part is rounding",
    "Python objects": "holds Python objects, never unpickled: they can run any code; save numbers",
    ELSEWHERE[0]: ELSEWHERE[1],
}
_OF_AXES = ("samples", "train_samples")
"""The roles of files that name the samples of rows and columns."""


@dataclass(frozen=True)
class _KernelArray:
    """The kernels of one array."""

    variable: FileArray
    axis: int | None  # the axis that counts its kernels; None for a matrix
    shape: tuple[int, int]  # rows and columns of a kernel
    n_kernels: int
    axes: Axes  # names of the samples
    identity: dict[str, Any]  # differs for any other content of its file

    def matrices(self) -> Iterator[Matrix]:
        """The kernels in order; what the array holds in memory goes when the next array is opened."""
        array: Any = self.variable.open()
        check = getattr(array, "check_written", None)
        for j in range(self.n_kernels):
            if check is not None and self.axis is not None:  # a shape may claim any number of kernels
                check(self.axis, j)
            yield _in_strips(array if self.axis is None else Layer(array, self.axis, j))


class _FileSource(KernelSource):
    """The kernels of the arrays of files."""

    def __init__(self, arrays: Sequence[_KernelArray], names: Sequence[str] | None) -> None:
        self._arrays, self.names = arrays, names
        self._places = [(array, j) for array in arrays for j in range(array.n_kernels)]
        self.n_kernels, self.axes = len(self._places), [array.axes for array, _ in self._places]

    def matrices(self) -> Iterator[Matrix]:
        """See `KernelSource.matrices`."""
        return chain.from_iterable(array.matrices() for array in self._arrays)

    def identity(self, j: int) -> dict[str, Any] | None:
        """See `KernelSource.identity`."""
        if j >= len(self._places):
            return None
        array, index = self._places[j]
        return array.identity if array.axis is None else {**array.identity, "axis": array.axis, "index": index}


def _in_strips(matrix: Matrix) -> Matrix:
    """Read whole rows, or the whole kernel, where a tile would cost them anyway."""
    rows, cols = matrix.shape
    chunks: Sequence[int] | None = getattr(matrix, "chunks", None)
    if chunks is None or 2 * chunks[1] < cols:
        return matrix
    # A chunk of half the kernel would be decoded anew for each strip of tiles.
    return StripBuffer(matrix, whole=2 * chunks[0] >= rows)


def open_files(
    paths: PathLike | Sequence[PathLike],
    *,
    kernel_axis: int | None = None,
    variables: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    labels: PathLike | None = None,
    samples: PathLike | None = None,
    train_samples: PathLike | None = None,
    splits: PathLike | None = None,
    diagonal: PathLike | None = None,
    order: PathLike | None = None,
    join: Join = "exact",
    symmetric: bool | None = None,
) -> tuple[JoinedSource, Labels]:
    """Find the kernels in data files, and what the files say of the samples. No kernel is read yet.

    Understood are the files of `FORMATS`, prefixes of relationship matrices of GCTA and PLINK, a folder with one kernel
    a file (in natural order, named as the files), and several such files. Of a file with several arrays, one array of
    three dimensions holds all kernels; else each square matrix is one. Arrays and files whose name is in `ROLES` have
    that role. `KernelSource.notes` list what was left out and which choices were made. Names of samples are matched as
    in `dmkl.create`.

    In memory are a few tiles for .npy, HDF5 and Zarr; whole rows for text, for chunks that span the rows, and where
    samples are put into another order; one kernel for .npz and for chunks that span a kernel; one variable for MATLAB
    files before version 7.3.

    Parameters
    ----------
    paths
        A file, a folder, or several files.
    kernel_axis
        The axis, 0 to 2, that counts the kernels in arrays of three dimensions, as the software that wrote the file
        counts its axes; found out for square kernels.
    variables
        The arrays to take from each file, by name, in this order; they may be rectangular.
    names
        The kernels' names, in place of those in the files.
    labels, splits, diagonal, samples, train_samples
        Files to take these from (see `read_vector`), in place of what is found beside the kernels.
    order
        A file of the names of the rows of the kernels, as they stand, in place of any that the kernels carry: labels,
        splits and `samples` are matched by these.
    join, symmetric
        As in `dmkl.create`.

    Returns
    -------
    tuple
        The kernels, in the order of the samples, and what is known of these.

    Raises
    ------
    InputError
        If a file is missing, damaged or of an unknown kind; if it cannot be told which arrays are the kernels; if these
        differ in shape or in their samples, are sparse or complex, or are no numbers.
    """
    notes: list[str] = []
    files, beside = find_files(paths, Format.holds_kernels, set(ROLES.values()), notes)
    if not files:
        asked = ", ".join(map(str, [paths] if isinstance(paths, str | os.PathLike) else paths)) or "no files"
        msg = f"there are no kernels in {asked}; expected {expected_files(Format.holds_kernels)}"
        raise InputError(msg)
    ordered = None if order is None else Named(str(order), read_names(Path(order)))
    parts: list[_KernelArray] = []
    inside: list[SideData] = []
    for path in files:
        held = arrays_in(path)
        arrays = sort_arrays(path, held, _choose_arrays(path, held, variables), notes)
        parts += [_kernel_array(variable, kernel_axis, ordered, notes) for variable in arrays.data]
        inside += [item.held(arrays.data[0].rows) for item in arrays.beside]
    n_kernels = sum(part.n_kernels for part in parts)
    way_out = "name the arrays or the kernel axis that are meant (variables=[…], kernel_axis=)"
    check_memory(f"the list of {n_kernels:,} kernels", n_kernels * _KERNEL_BYTES, way_out)
    if any(part.axes.rows is None for part in parts):  # others may differ: names tell what belongs together
        _check_shapes(parts)
    numbers_of = [(part.variable, None if part.axis is None else part.n_kernels) for part in parts]
    kernel_names = names_of_arrays(numbers_of, files) if names is None else [str(name) for name in names]
    given = {"labels": labels, "samples": samples, "train_samples": train_samples, "splits": splits}
    replaced = {role: Path(file) for role, file in {**given, "diagonal": diagonal}.items() if file is not None}
    ignored = {*replaced, *([] if names is None else ["names"])}
    beside = [*((role, path) for role, path in beside if role not in ignored), *replaced.items()]
    # The names of the kernels are known before any other table is read.
    named_rows = [(part.axes.rows, part.axes.families) for part in parts if part.axes.rows is not None]
    carried = {name for rows, families in named_rows for name in (*rows, *names_of_pairs(rows, families))}
    wanted, wanted_cols = (_wanted(dict(beside), axis, parts, carried, notes) for axis in (0, 1))
    known = carried or set(wanted or ()) or None
    shape = n_rows, n_cols = parts[0].shape
    separate = [
        SideData(role, str(path), partial(read_file, path, samples=known)).without_header(n_rows, notes)
        for role, path in beside
        if role not in _OF_AXES
    ]
    # Data without names is in the order of its own file, or else of the first kernels with names.
    first = wanted or next((rows for rows, _ in named_rows), None)
    unnamed = [item.where for item in separate if item.role in OF_SAMPLES and item.read().row_names is None]
    side = [item for item in inside if item.role not in ignored]
    side += [item.held(first, notes, by_position=not carried) for item in separate]
    side = of_rows(side, shape, notes)
    named = names_beside(side, join)
    kernels = _FileSource(parts, kernel_names)
    source = JoinedSource(kernels, join, samples=wanted, train_samples=wanted_cols, beside=named, symmetric=symmetric)
    if wanted is None:
        notes += note_of_positions([*source.without, *unnamed], source.row_names, source.samples)
        if join == "inner":
            notes += left_out([*source.row_names, *map(source.named_beside, named)], source.samples)
    if moved := source.moved:
        notes.append(f"{', '.join(moved)}: put into the order of the samples, by name")
    n_samples = n_rows if source.samples is None else len(source.samples)
    n_cols = n_samples if n_rows == n_cols else n_cols
    frame = KernelShape(n_kernels, n_samples, n_cols, source.samples, source.train_samples)
    result, own_names = gather(side, frame, notes)
    if result.splits is not None:
        source.train = np.asarray(result.splits)[0] == 0
    if own_names is not None and kernel_names is not None:
        pairs = ", ".join(f"{old} is {new}" for old, new in zip(kernel_names[:3], own_names, strict=False))
        more = " …" if len(kernel_names) > 3 else ""
        notes.append(f"the kernels were named in the order in which they stand: {pairs}{more}")
    source.names = kernel_names if own_names is None else own_names
    source.notes = tuple(dict.fromkeys(notes))
    return source, result


def _check_length(source: str, names: tuple[str, ...] | None, length: int, axis: int) -> None:
    """Refuse names of samples that are not as many as the rows or columns."""
    if names is not None and len(names) != length:
        msg = (
            f"{source}: found {len(names)} names of samples, expected a name for each of the {length} {_AXES[axis]} of "
            "the kernels"
        )
        raise InputError(msg)


def _wanted(
    beside: Mapping[str, Path], axis: int, parts: Sequence[_KernelArray], known: set[str], notes: list[str]
) -> tuple[str, ...] | None:
    """The samples that a file of their own names: of kernels without names, they are theirs one after another."""
    file = beside.get(_OF_AXES[axis])
    if file is None:
        return None
    names = read_names(file, known or None)
    if not any(part.axes[axis] or (part.axes.square and part.axes[1 - axis]) for part in parts):
        _check_length(str(file), names, parts[0].shape[axis], axis)
        if axis == 0:
            notes.append(taken_by_position(str(file), names))
    return names


def _choose_arrays(path: Path, held: Sequence[FileArray], names: Sequence[str] | None) -> list[FileArray]:
    """The arrays of a file that hold kernels: those of the names that were asked for, or else by their shapes."""
    by_name = {variable.name: variable for variable in held}
    for name in names or ():
        if name not in by_name:
            msg = f"{path} has no variable {name!r}; it has {', '.join(map(repr, by_name)) or 'none'}"
            raise InputError(msg)
    chosen = _find_kernels(path, held) if names is None else [by_name[name] for name in names]
    for variable in chosen:
        _refuse(variable)
    return chosen


def _find_kernels(path: Path, held: Sequence[FileArray]) -> list[FileArray]:
    """The arrays that are kernels by their shapes: one of three dimensions, or the square matrices.

    Where some cannot be read, one of these is returned, for its problem to be said.
    """
    held = [variable for variable in held if role_of(variable) is None]
    if len(held) == 1 and not held[0].name and len(held[0].shape) in (2, 3):
        return held  # the one array of such a file is meant, also where it is rectangular
    shaped = [variable for variable in held if variable.looks_like_kernels and not variable.is_text]
    likely = [variable for variable in shaped if not variable.problem]
    refused = [variable for variable in shaped if variable.problem in _NAMED_PROBLEMS]
    if not likely and not refused:  # no shape tells whether it is a kernel
        refused = [variable for variable in held if variable.problem in (ELSEWHERE[0], "Python objects")]
    if refused:
        return refused[:1]
    if likely and (len(likely) == 1 or all(len(variable.shape) != 3 for variable in likely)):
        return likely
    n = n_condensed(held[0].shape[0]) if len(held) == 1 and len(held[0].shape) == 1 else None
    if likely:
        msg = (
            f"{path} holds several arrays that may be the kernels: {listed(likely)}; say which, "
            "by their names (variables=[…], --variable)"
        )
    elif n:
        msg = (
            f"{path} holds one number for each pair of {n} samples, as SciPy's pdist gives distances, which are no "
            "kernel; dmkl build makes one, --function distance"
        )
    else:
        msg = (
            f"there are no kernels in {path}: expected an array of kernels (n, m, m), or square matrices; "
            f"found {listed(held) or 'nothing'}. Rectangular kernels must be named "
            "(variables=[…], --variable); from features, compute the kernel matrices first"
        )
    raise InputError(msg)


def _refuse(variable: FileArray) -> None:
    """Refuse an array that cannot be a kernel."""
    problem = _NAMED_PROBLEMS.get(variable.problem, "is {what}, expected real numbers")
    if variable.holds == "distances":
        problem = "holds distances, which are no kernel; dmkl build makes one, --function distance"
    elif not variable.problem and variable.dtype.kind in "fiub":
        if len(variable.shape) in (2, 3):
            return
        problem = f"has shape {variable.shape}, expected one kernel (m, m) or several"
    msg = f"{where(variable)} {problem.format(name=variable.name or 'it', what=variable)}"
    raise InputError(msg)


def _kernel_array(variable: FileArray, asked: int | None, ordered: Named | None, notes: list[str]) -> _KernelArray:
    """The kernels of an array, along the axis that was asked for or that its shape shows.

    `ordered` names the rows, in place of the names that the file has.
    """
    if asked not in (None, 0, 1, 2):
        msg = f"the kernel axis must be 0, 1 or 2, got {asked!r}"
        raise InputError(msg)
    lengths = variable.shape
    note = ""
    if len(lengths) == 2:
        axis, n = None, n_condensed(lengths[1])
        if lengths[0] != lengths[1] and n is not None:
            note = (
                "taken as a rectangular kernel. If its rows are distances of the pairs of "
                f"{n} samples (SciPy's pdist), save each as an .npy for dmkl build --function distance"
            )
    elif variable.cell or asked is not None:
        axis = 0 if variable.cell else asked
    elif variable.matlab and len(set(lengths)) == 3:
        axis, note = 2, f"taken as {lengths[2]} rectangular kernels, along MATLAB's last axis"
    else:
        a, b, c = lengths
        fitting = [axis for axis, is_square in ((0, b == c), (2, a == b), (1, a == c)) if is_square]
        if not fitting:
            msg = (
                f"{where(variable)} has shape {lengths}: expected n square kernels, (n, m, m), (m, m, n) or (m, n, m). "
                "For rectangular kernels (new samples against training samples) give the axis that counts the kernels"
            )
            raise InputError(msg)
        axis = 2 if len(fitting) == 3 and variable.matlab else fitting[0]
        if len(fitting) == 3:
            note = f"its kernels were taken along axis {axis}; give the kernel axis if they lie along another"
    if note:
        notes.append(f"{where(variable)} is {shape_text(lengths)}: {note}")
    rows, cols = (length for position, length in enumerate(lengths) if position != axis)
    axes = Axes(variable.rows, variable.columns, rows == cols, variable.families)
    if ordered is not None:
        axes = Axes(ordered.names, ordered.names if rows == cols else variable.columns, rows == cols)
    _check_length(where(variable) if ordered is None else ordered.where, axes.rows, rows, 0)
    _check_length(where(variable), axes.cols, cols, 1)
    identity = {**stamp(variable.path), **({"variable": variable.name} if variable.name else {})}
    return _KernelArray(variable, axis, (rows, cols), 1 if axis is None else lengths[axis], axes, identity)


def _check_shapes(parts: Sequence[_KernelArray]) -> None:
    """Refuse kernels of different shapes."""
    if len({part.shape for part in parts}) > 1:
        shapes = [f"{part.variable.name or part.variable.path.name} {shape_text(part.shape)}" for part in parts]
        files = {part.variable.path for part in parts}
        place = files.pop() if len(files) == 1 else os.path.commonpath([path.absolute() for path in files])
        msg = (
            f"the kernels in {place} differ in shape: {listed(shapes, 8)}; all kernels of a set have one shape. Name "
            "the arrays, or give the files, that belong together (variables=[…], --variable)"
        )
        raise InputError(msg)
