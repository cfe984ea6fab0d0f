"""Kernels from arrays, iterables, labelled objects and files, read one after another in one order of samples."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dmkl.arrays import Index, Lazy, Mask, Matrix, fingerprint, is_instance
from dmkl.errors import first_names, refuse
from dmkl.inputs.columns import ROLES, axis_names, plain_title
from dmkl.inputs.formats.file_arrays import ELSEWHERE, OBJECTS, PROBLEMS, FileArray, shape_text, stamp
from dmkl.inputs.formats.registry import PathLike, check_file, expected_files, find_files, names_of_arrays, short_names
from dmkl.inputs.label_tables import OF_AXES, given_data, read_names, sort_arrays
from dmkl.inputs.labels import OF_SAMPLES, Labels, SideData, align, gather
from dmkl.inputs.matrices import Layer, Reordered, StripBuffer, is_sparse, n_condensed
from dmkl.inputs.objects import holds_arrays, recognize
from dmkl.names import Join, Named, Names, all_names, joined, note_of_order, places
from dmkl.settings import check_memory

if TYPE_CHECKING:
    import xarray as xr

_KERNEL_BYTES = 512  # Memory that the name and the record of a kernel take.


@dataclass(frozen=True)
class _Part:
    """The kernels of one array of a file or in memory."""

    array: FileArray
    axis: int | None  # the axis of the kernels; None for a matrix
    shape: tuple[int, int]  # rows and columns of a kernel
    n_kernels: int
    axes: Named  # names of the samples
    stamp: dict[str, Any]  # differs for any other content of its file; empty in memory

    @classmethod
    def of(cls, array: FileArray, axis: int | None, ordered: Named | None = None, file: Path | None = None) -> _Part:
        """Return the kernels of an array, of a file, along an axis; `ordered` names their rows."""
        rows, cols = (length for position, length in enumerate(array.shape) if position != axis)
        axes = Named(array.where, array.rows, array.numbers, array.columns, rows == cols)
        if ordered is not None:
            axes = ordered._replace(columns=ordered.names if rows == cols else array.columns, square=rows == cols)
        _check_length(axes.where, axes.names, rows, "rows")
        _check_length(array.where, axes.columns, cols, "columns")
        identity = {**stamp(file), **({"variable": array.name} if array.name else {})} if file else {}
        return cls(array, axis, (rows, cols), 1 if axis is None else array.shape[axis], axes, identity)


def _part(j: int, kernel: Any) -> _Part:
    """Return kernel j in memory, or a part as it is."""
    if isinstance(kernel, _Part):
        return kernel
    array, *others = recognize("a kernel", kernel)
    if others or len(array.shape) != 2:
        refuse(f"kernel {j} must be a matrix, got an array of shape {array.shape}")
    return _Part.of(array, None)


class KernelSource:
    """The matrices of a set, read one after another: a list of them can be read again, a generator only once.

    The memory of an array of files is freed when the next one is opened. After `join` each is in the order of the set.
    """

    names: Sequence[str] | None = None  # of the kernels, if the source has any
    n_kernels: int | None = None  # None if it is known only at the end
    n_kept: int = 0  # how many of them are kept as factors
    axes: Sequence[Named] = ()  # of all kernels, or of those that were read; empty if no kernel has names of samples
    notes: Sequence[str] = ()  # on parts that were left out and on choices that could have been otherwise
    symmetric: bool | None = None  # whether names show that rows and columns are the same samples; None if none do
    side_data: Sequence[SideData] = ()  # labels and splits that came with the kernels
    samples: Names = None  # names of the joined samples in order, if anything has names
    train_samples: Names = None  # those of the columns
    labels: Labels  # of the joined samples
    order_notes: Sequence[str] = ()  # on kernels and labels without names, if other kernels have names
    _tables: Sequence[Named] = ()  # names that are matched
    _wanted: tuple[Names, Names] = (None, None)  # names of rows and columns in order
    _train: Mask | None = None

    def __init__(self, kernels: Iterable[Any], names: Sequence[str] | None = None) -> None:
        self.names, parts = names, map(_part, count(), kernels)
        self._kernels: list[tuple[_Part, int]] = []  # part of each kernel, and place there; none of a generator
        if isinstance(kernels, Sequence):
            self._parts: Iterable[_Part] = list(parts)
            self._kernels = [(part, j) for part in self._parts for j in range(part.n_kernels)]
            self.n_kernels, self.axes = len(self._kernels), [part.axes for part, _ in self._kernels]
            if not kernels:
                refuse("a kernel set needs at least one kernel, got none")
            return
        # The first kernel of a generator gives the names, which all others must have.
        first = list(islice(parts, 1))
        self.axes = [part.axes for part in first]
        self._parts = chain((first.pop() for _ in self.axes[:1]), parts)  # no list holds the first while others come

    def join(
        self,
        join: Join,
        samples: Names = None,
        train_samples: Names = None,
        *,
        read_data: Sequence[SideData] = (),
        given: Sequence[SideData] = (),
        symmetric: bool | None = None,
        shape: tuple[int | None, int | None] = (None, None),
    ) -> None:
        """Join the samples of the kernels and of their labels, and put both into the order of the set.

        With join="outer" a sample that lacks a kernel gets a mean (see `Reordered`) of the training samples of the
        first split, or of all samples. Arguments are as in `dmkl.create` and `align`; `shape` are the (rows, columns)
        of the kernels, if known.
        """
        notes, numbers = list[str](), range(len(self.axes))
        if self.n_kernels is None and join != "exact" and any(axes.names or axes.columns for axes in self.axes):
            refuse(f"join={join!r} needs the names of all kernels before the first is read; give a list or a mapping")
        self.symmetric = self._find_symmetry(symmetric)
        # The names of the kernels are known before any labels are read.
        tables = [self._named(j)[0] for j in numbers]
        aligned = align(tables, join, samples, read_data, given, notes, shape=shape)
        self._tables, self.samples, side_data, self.order_notes = aligned
        self.train_samples, self._wanted = train_samples, (self.samples, self.samples)
        if self.symmetric is False:
            self.train_samples = joined([self._named(j)[1] for j in numbers], join, train_samples)
            self._wanted = self.samples, self.train_samples
            if join == "outer" and any(map(self.n_missing, numbers)):
                refuse("join='outer' is for square kernels; take join='inner', or build kernels of features")
        axes = ((self._title(j), at) for j in numbers for at in self._places(j) if at is not None)
        if moved := dict.fromkeys(title for title, at in axes if (np.diff(at, prepend=-1) <= 0).any()):
            notes.append(f"{', '.join(moved)}: put into the order of the samples, by name")
        n_rows = shape[0] if shape[0] is None or self.samples is None else len(self.samples)
        self.labels, names = gather(side_data, self.n_kernels, n_rows, self.samples, notes)
        self.labels.train_samples = self.train_samples
        if names is not None and self.names is not None:
            pairs = first_names((f"{old} is {new}" for old, new in zip(self.names, names, strict=False)), 3)
            notes.append(f"the kernels were named in the order in which they stand: {pairs}")
        self.names, self.notes = self.names if names is None else names, tuple(dict.fromkeys(notes))
        if self.labels.splits is not None and self.samples is not None:
            self._train = np.asarray(self.labels.splits)[0] == 0

    def matrices(self) -> Iterator[Matrix]:
        """Return the matrices in order; each is read before the next is requested."""
        return map(self._put, count(), self.unordered())  # which holds no kernel while the next is read

    def unordered(self) -> Iterator[Matrix]:
        """Return the matrices with samples in their own order."""
        for k, part in enumerate(self._parts):
            if self.n_kernels is None and k >= len(self.axes):
                self.axes = [*self.axes, part.axes]
            whole: Any = part.array.open()
            for index in range(part.n_kernels):
                if part.axis is not None and hasattr(whole, "check_written"):  # a shape may state any number of kernels
                    whole.check_written(part.axis, index)
                yield _in_strips(whole if part.axis is None else Layer(whole, part.axis, index))
            del whole, part  # before the next array is read

    def dtypes(self) -> list[np.dtype[Any]]:
        """Return the types of the kernels that are known before these are read: none of a generator."""
        return [part.array.dtype for part in self._parts] if isinstance(self._parts, Sequence) else []

    def identity(self, j: int) -> dict[str, Any] | None:
        """Return a record that differs for other content or order of kernel j, for resumed imports; None if unknown."""
        identity, (rows, cols) = self.content(j), self._places(j)
        if identity is None or self.is_in_order(j):
            return identity
        order_of = [rows, cols, self._train if self.n_missing(j) else None]
        order = b"".join(b"-" if at is None else np.ascontiguousarray(at, "<i8").tobytes() for at in order_of)
        return {**identity, "order": hashlib.blake2b(order, digest_size=16).hexdigest()}

    def content(self, j: int) -> dict[str, Any] | None:
        """Return a record that differs for other content of kernel j with samples in its own order; None if unknown."""
        if not self._kernels:
            return None
        part, index = self._kernels[j]
        place = {} if part.axis is None else {"axis": part.axis, "index": index}
        if part.stamp:
            return part.stamp | place
        whole: Any = part.array.open()
        if is_instance(whole, "dask.array", "Array"):
            return {"dask": whole.name, **place}
        kernel = whole if part.axis is None else Layer(whole, part.axis, index)
        return {"array": fingerprint(kernel)} if isinstance(whole, np.ndarray | Lazy) else None

    def n_missing(self, j: int) -> int:
        """Return the number of samples that lack kernel j and get means."""
        return max(0 if at is None else int((at < 0).sum()) for at in self._places(j))

    def is_in_order(self, j: int) -> bool:
        """Whether the samples of kernel j are in the order of the set."""
        return all(at is None for at in self._places(j))

    def record(self, j: int) -> dict[str, Any]:
        """Return what is known of how kernel j was made."""
        return {}

    def begin(self, writer: Any) -> None:
        """Write what a set has besides its kernels, before these: nothing."""

    def link(self, writer: Any, j: int, provenance: dict[str, Any], diagonal: Any) -> bool:
        """Write kernel j from a stored set without reading it; False if it has to be read."""
        return False

    def _title(self, j: int) -> str:
        return f"kernel {j}" if self.names is None or j >= len(self.names) else f"kernel {str(self.names[j])!r}"

    def _find_symmetry(self, symmetric: bool | None) -> bool | None:
        """Return whether the kernels are symmetric; None if names do not show it."""
        for j, axes in enumerate(self.axes):
            others = set(axes.names) ^ set(axes.columns) if axes.names and axes.columns else set[str]()
            if symmetric and others:
                what = f"the same samples in rows and columns, but {self._title(j)} has {min(others)!r} in one of them"
                refuse(f"a symmetric kernel has {what} alone; leave symmetric= out, or name the rows (--order FILE)")
            if symmetric is None and (others or not axes.square):
                return False
        return symmetric

    def _named(self, j: int) -> tuple[Named, Named]:
        """Return the names of the rows and columns of kernel j; those of a square one are the same."""
        axes = self.axes[j] if j < len(self.axes) else Named("", None)
        names = axes.names or (axes.columns if self.symmetric is not False else None)
        rows = self._tables[j] if j < len(self._tables) else Named(self._title(j), names, axes.numbers)
        cols = None if rows.names in axes.numbers else axes.columns
        return rows, rows if cols is None and self.symmetric is not False else Named(rows.where, cols)

    def _places(self, j: int) -> list[Index | None]:
        """Return the positions of the samples in the rows and columns of kernel j; None for unchanged order."""
        return [
            None if named.names is None or wanted is None or named.names == wanted else places(named.names, wanted)
            for named, wanted in zip(self._named(j), self._wanted, strict=True)
        ]

    def _put(self, j: int, matrix: Matrix) -> Matrix:
        for named, wanted in zip(self._named(j), self._wanted, strict=True):
            if wanted is not None and self.n_kernels is None:
                joined([named], "exact", wanted)  # the names of a generator come with its kernels
        rows, cols = self._places(j)
        if rows is None and cols is None:
            return matrix
        rows, cols = (np.arange(n) if at is None else at for at, n in zip((rows, cols), matrix.shape, strict=True))
        train = np.ones(len(rows), bool) if self._train is None else self._train
        return Reordered(matrix, rows, cols, train, self._title(j))


def _in_strips(matrix: Matrix) -> Matrix:
    """Return a matrix whose chunks span several tiles as one that is read in strips of rows, or as a whole."""
    # Each read of a Dask block computes whole chunks: strips of rows touch each chunk fewest times.
    if is_instance(matrix.array if isinstance(matrix, Layer) else matrix, "dask.array", "Array"):
        return StripBuffer(matrix)
    # A tile would take whole rows, and a chunk of half the kernel would be decoded for each strip of tiles.
    tall, wide = (2 * n >= m for n, m in zip(getattr(matrix, "chunks", None) or (0, 0), matrix.shape, strict=True))
    return StripBuffer(matrix, whole=tall) if wide else matrix


def as_source(kernels: Any, names: Sequence[str] | None = None) -> KernelSource:
    """Return an object that `dmkl.create` accepts as a source."""
    if isinstance(kernels, KernelSource):
        return kernels
    if is_instance(kernels, "xarray", "Dataset"):
        return _source_of_dataset(kernels, names)
    own_names: Sequence[str] | None = None
    what = "the array of kernels"
    if is_instance(kernels, "xarray", "DataArray") and kernels.ndim == 3:
        kernels = kernels.transpose("kernel", ..., missing_dims="ignore")
        own_names, kernels = axis_names(kernels, 0), list(kernels)
    elif holds_arrays(kernels):
        arrays = [array for array in recognize(what, kernels) if array.holds == "kernel"]
        if not arrays:
            refuse("there are no kernels in obsp of this annotated data; compute some of its features (dmkl.build)")
        kernels, own_names = [_Part.of(array, None) for array in arrays], short_names(array.name for array in arrays)
    elif isinstance(kernels, Mapping):
        kernels, own_names = list(kernels.values()), list(kernels)
    elif hasattr(kernels, "shape") or is_instance(kernels, "dask.delayed", "Delayed"):  # NumPy, Dask, Zarr, h5py …
        (array,) = recognize(what, kernels)
        if len(array.shape) != 3:
            kind = "a sparse matrix" if is_sparse(kernels) else "an array"
            kind = "a data frame" if is_instance(kernels, "pandas", "DataFrame") else kind
            what = f"got {kind} of shape {array.shape}; give one kernel as [K]"
            refuse(f"kernels must be (kernel, row, column), {what}")
        kernels = [_Part.of(array, 0)]
    elif not isinstance(kernels, Iterable) or isinstance(kernels, str | bytes):
        refuse(f"kernels must be an array (n, m, m) or an iterable of arrays (m, m), got {type(kernels).__name__}")
    return KernelSource(kernels, own_names if names is None else names)


def _source_of_dataset(dataset: xr.Dataset, names: Sequence[str] | None) -> KernelSource:
    """Return the variable (kernel, row, column) of a dataset, or the square ones, with its labels and splits."""
    roles = {str(name): ROLES.get(plain_title(str(name))) for name in dataset.data_vars}
    free = [name for name, role in roles.items() if role in (None, "names")]
    matrices = {name: dataset[name] for name in free if dataset[name].ndim > 1}
    stacks = [values for values in matrices.values() if values.ndim == 3]
    square = {name: values for name, values in matrices.items() if values.ndim == 2 and len(set(values.shape)) == 1}
    if len(stacks) + bool(square) != 1:
        found = ", ".join(f"{name} {values.dims}" for name, values in dataset.data_vars.items())
        expected = "one variable (kernel, row, column) or square ones (row, column)"
        refuse(f"a dataset holds {expected}, got {found or 'none'}")
    source = as_source(stacks[0] if stacks else square, names)
    source.side_data = given_data(*((role, dataset[name]) for name, role in roles.items() if role in OF_SAMPLES))
    return source


def open_files(
    paths: PathLike | Sequence[PathLike],
    *,
    kernel_axis: int | None = None,
    variables: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    order: PathLike | None = None,
    join: Join = "exact",
    symmetric: bool | None = None,
    **given: PathLike | None,
) -> tuple[KernelSource, Labels]:
    """Find the kernels in data files, and labels, splits and names of the samples. No kernel is read yet.

    `paths` are as in `find_files`. In a file with several arrays, one array of three dimensions holds all kernels; else
    each square matrix is one. `variables` names the arrays to take from each file, which may be rectangular;
    `kernel_axis` is the axis of the kernels in arrays of three dimensions, as the software that wrote the file counts
    its axes; `names` replace those in the files.

    Arrays and files whose name is in `ROLES` have that role, unless a file for it is `given`. `order` is a file of the
    names of the rows of the kernels, as they stand, in place of names in the kernels; `join` and `symmetric` are as in
    `dmkl.create`. `KernelSource.notes` list what was left out and which choices were made.

    Memory holds a few tiles for .npy, HDF5 and Zarr; whole rows for text, for chunks that span the rows, and for
    samples in another order; one kernel for .npz and for chunks that span a kernel; one variable for MATLAB files
    before version 7.3.
    """
    notes: list[str] = []
    files, side_files = find_files(paths, "kernels", set(ROLES.values()), notes)
    if not files:
        listing = ", ".join(map(str, [paths] if isinstance(paths, str | os.PathLike) else paths)) or "no files"
        refuse(f"there are no kernels in {listing}; expected {expected_files('kernels')}")
    ordered = None if order is None else Named(str(order), read_names(Path(order)))
    parts, inside = list[_Part](), list[SideData]()
    for path in files:
        arrays = check_file(path, "kernels").arrays(path)
        chosen = _choose_arrays(path, arrays, variables)
        along = [_kernel_axis(variable, kernel_axis, notes) for variable in chosen]
        data, side_arrays = sort_arrays(path, arrays, chosen, notes, along, ordered=ordered is not None)
        parts += [_Part.of(variable, axis, ordered, path) for variable, axis in zip(data, along, strict=True)]
        for item in side_arrays:
            item.name_rows(data[0].rows)
        inside += side_arrays
    n_kernels = sum(part.n_kernels for part in parts)
    way_out = "name the arrays or the kernel axis that are meant (variables=[…], kernel_axis=)"
    check_memory(f"the list of {n_kernels:,} kernels", n_kernels * _KERNEL_BYTES, way_out)
    # Shapes may differ if names match the samples.
    if any(part.axes.names is None for part in parts) and len({part.shape for part in parts}) > 1:
        shapes = [f"{part.array.name or part.array.path.name} {shape_text(part.shape)}" for part in parts]
        place = files[0] if len(files) == 1 else os.path.commonpath([path.absolute() for path in files])
        what = f"the kernels in {place} differ in shape: {first_names(shapes, 8)}; all kernels of a set have one"
        refuse(f"{what}; name the arrays, or give the files, of one shape (variables=[…], --variable)")
    kernel_names = None if names is None else list(map(str, names))
    if names is None and not (len(parts) == 1 and parts[0].axis is not None):  # an array of kernels gives them no names
        titles = names_of_arrays([(part.array.path, part.array.name) for part in parts], files)
        titled = [(title, part, j) for title, part in zip(titles, parts, strict=True) for j in range(part.n_kernels)]
        kernel_names = [title if part.axis is None else f"{title}_{j}" for title, part, j in titled]
    replaced = {role: Path(file) for role, file in given.items() if file is not None}
    ignored = {*replaced, *([] if names is None else ["names"])}
    side_files = [*((role, path) for role, path in side_files if role not in ignored), *replaced.items()]
    wanted, wanted_cols = (_wanted(dict(side_files), axis, parts, notes) for axis in (0, 1))
    read_data = [item for item in inside if item.role not in ignored]
    in_files = given_data(*((role, path) for role, path in side_files if role not in OF_AXES))
    source, shape = KernelSource(parts, kernel_names), parts[0].shape
    source.join(join, wanted, wanted_cols, read_data=read_data, given=in_files, symmetric=symmetric, shape=shape)
    source.notes = tuple(dict.fromkeys([*notes, *source.notes, *source.order_notes]))
    return source, source.labels


def _check_length(source: str, names: Names, length: int, axis: str) -> None:
    if names is not None and len(names) != length:
        refuse(f"{source}: found {len(names)} names of samples, expected one for each of the {length} {axis}")


def _wanted(files: Mapping[str, Path], axis: int, parts: Sequence[_Part], notes: list[str]) -> Names:
    """Return the samples in a separate file; they name the rows of kernels without names, one after another."""
    file = files.get(OF_AXES[axis])
    if file is None:
        return None
    names = read_names(file, all_names(part.axes.names for part in parts) or None)
    pairs = [(part.axes.columns, part.axes.names)[:: 2 * axis - 1] for part in parts]  # of this axis, and the other
    if not any(own or (part.axes.square and other) for part, (own, other) in zip(parts, pairs, strict=True)):
        _check_length(str(file), names, parts[0].shape[axis], ("rows", "columns")[axis])
        if axis == 0:
            notes.append(note_of_order(str(file), names))
    return names


def _choose_arrays(path: Path, arrays: Sequence[FileArray], names: Sequence[str] | None) -> list[FileArray]:
    """Return the arrays of a file that hold kernels: those with the requested names, or by their shapes."""
    by_name = {variable.name: variable for variable in arrays}
    for name in names or ():
        if name not in by_name:
            refuse(f"{path} has no variable {name!r}; it has {', '.join(map(repr, by_name)) or 'none'}")
    chosen = _find_kernels(path, arrays) if names is None else [by_name[name] for name in names]
    for variable in chosen:
        if variable.holds == "distances":
            refuse(f"{variable.where} holds distances, which are no kernel; dmkl build makes one, --function distance")
        if variable.problem or variable.dtype.kind not in "fiub":
            variable.refuse(f"is {variable}, expected real numbers")
        if len(variable.shape) not in (2, 3):
            refuse(f"{variable.where} has shape {variable.shape}, expected one kernel (m, m) or several")
    return chosen


def _find_kernels(path: Path, arrays: Sequence[FileArray]) -> list[FileArray]:
    """Return the kernels among arrays: one of three dimensions, the square ones, or one that is refused."""
    arrays = [variable for variable in arrays if variable.role is None]
    if len(arrays) == 1 and not (arrays[0].name or arrays[0].holds == "features") and len(arrays[0].shape) in (2, 3):
        return arrays  # the one array of such a file is meant, even if it is rectangular
    shaped = [variable for variable in arrays if variable.looks_like_kernels and not variable.is_text]
    likely = [variable for variable in shaped if not variable.problem]
    refused = [variable for variable in shaped if variable.problem in PROBLEMS]
    if not likely and not refused:  # no shape shows whether it is a kernel
        refused = [variable for variable in arrays if variable.problem in (ELSEWHERE, OBJECTS)]
    if refused:
        return refused[:1]
    if likely and (len(likely) == 1 or all(len(variable.shape) != 3 for variable in likely)):
        return likely
    n = n_condensed(arrays[0].shape[0]) if len(arrays) == 1 and len(arrays[0].shape) == 1 else None
    if likely:
        what = f"{path} holds several arrays that may be kernels: {first_names(likely, 12)}"
        refuse(f"{what}; name them (variables=[…], --variable)")
    if n:
        what = f"{path} holds distances of the pairs of {n} samples, no kernel"
        refuse(f"{what}; dmkl build --function distance makes one")
    what = f"there are no kernels in {path}: expected an array (n, m, m), or square matrices; found "
    way_out = "Name rectangular kernels (variables=[…], --variable); a table of features is for dmkl build"
    refuse(f"{what}{first_names(arrays, 12) or 'none'}. {way_out}")


def _kernel_axis(variable: FileArray, asked: int | None, notes: list[str]) -> int | None:
    """Return the axis of the kernels, the requested one or that of the shape; None for a matrix."""
    if asked not in (None, 0, 1, 2):
        refuse(f"the kernel axis must be 0, 1 or 2, got {asked!r}")
    lengths = variable.shape
    note = ""
    if len(lengths) == 2:
        axis, n = None, n_condensed(lengths[1])
        if lengths[0] != lengths[1] and n is not None:
            note = f"taken as a rectangular kernel. If its rows are distances of the pairs of {n} samples "
            note += "(SciPy's pdist), save each as an .npy for dmkl build --function distance"
    elif variable.cell or asked is not None:
        axis = 0 if variable.cell else asked
    elif variable.matlab and len(set(lengths)) == 3:
        axis, note = 2, f"taken as {lengths[2]} rectangular kernels, along MATLAB's last axis"
    else:
        a, b, c = lengths
        fitting = [axis for axis, is_square in ((0, b == c), (2, a == b), (1, a == c)) if is_square]
        if not fitting:
            what = f"{variable.where} has shape {lengths}: expected n square kernels, (n, m, m), (m, m, n) or (m, n, m)"
            refuse(f"{what}; for rectangular kernels give the axis that counts the kernels")
        axis = 2 if len(fitting) == 3 and variable.matlab else fitting[0]
        if len(fitting) == 3:
            note = f"its kernels were taken along axis {axis}; give the kernel axis if they lie along another"
    if note:
        notes.append(f"{variable.where} is {shape_text(lengths)}: {note}")
    return axis
