"""Opening data files as the source of a kernel set: which arrays are kernels, which are labels and names."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dmkl.errors import InputError
from dmkl.store.files.hdf5 import hdf5_variables
from dmkl.store.files.labels import Found, Frame, assemble
from dmkl.store.files.matlab import matlab_variables
from dmkl.store.files.numpy_files import npy_variables, npz_variables
from dmkl.store.files.text import Table, read_table, text_variables
from dmkl.store.files.variables import ROLES, Variable, role_of, stamp, times, vector, where
from dmkl.store.files.zarr_folders import is_zarr, zarr_variables
from dmkl.store.ingest import Labels
from dmkl.store.sources import ArraySource, Matrix, StripBuffer, kernel_axis

__all__ = ["FileSource", "open_files", "read_vector"]

Array = npt.NDArray[Any]
PathLike = str | os.PathLike[str]

_TEXT = (".txt", ".csv", ".tsv", ".dat")
_FORMATS: dict[str, Callable[[Path], list[Variable]]] = {
    ".npy": npy_variables,
    ".npz": npz_variables,
    ".mat": matlab_variables,
    ".h5": hdf5_variables,
    ".hdf5": hdf5_variables,
    **dict.fromkeys(_TEXT, text_variables),
}
_KNOWN = ", ".join(_FORMATS) + " or a Zarr folder"


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
) -> tuple[FileSource, Labels]:
    """Find the kernels in data files, and what the files say of the samples. No kernel is read yet.

    Understood are NumPy's .npy and .npz, MATLAB's .mat, HDF5 (.h5, .hdf5), text (.txt, .csv, .tsv, .dat), Zarr folders,
    a folder with one kernel a file (in natural order, named as the files), and several such files.

    Of a file with several arrays, one array of three dimensions holds all kernels; else each square matrix is one.
    Arrays called labels, y, samples, ids, train_samples, splits, names, tasks or diagonal are taken for what they say,
    and so are files of these names in a folder. What was left out or taken one way of several is said in
    `FileSource.notes`.

    Memory: a few tiles for .npy, HDF5 and Zarr; whole rows for text and for arrays whose chunks span whole rows; one
    kernel for .npz; one variable for MATLAB files before version 7.3.

    Parameters
    ----------
    paths
        A file, a folder, or several files.
    kernel_axis
        The axis, 0 to 2, that counts the kernels in arrays of three dimensions, as the software that wrote the file
        counts its axes; found out for square kernels.
    variables
        The arrays to take, by name, in this order; also rectangular matrices.
    names
        The kernels' names, in place of those in the files.
    labels, samples, train_samples, splits, diagonal
        Files to take these from (see `read_vector`), in place of what is found beside the kernels.

    Returns
    -------
    tuple
        The kernels, and the labels.

    Raises
    ------
    InputError
        If a file is missing, damaged or of an unknown kind; if there is no kernel in it, or it cannot be told which
        arrays are; if kernels differ in shape, are sparse or complex, or are no numbers.
    """
    data, beside, notes = _expanded(paths)
    parts: list[_Part] = []
    found = [Found(role, str(path), partial(_table, path)) for role, path in beside]
    for path in data:
        held = _scan(path)
        roles = {id(variable): role_of(variable) for variable in held}
        if variables is not None:
            chosen = _wanted(path, held, variables)
        else:
            chosen = _kernels(path, [variable for variable in held if roles[id(variable)] is None])
        taken = {id(variable) for variable in chosen}
        for variable in held:
            role = roles[id(variable)]
            if role is not None and id(variable) not in taken:
                found.append(Found(role, where(variable), _reader(variable)))
        left = [str(v) for v in held if id(v) not in taken and roles[id(v)] is None and v.shape]
        if left:
            notes.append(f"{path}: left out {', '.join(left)}")
        parts += [_part(variable, kernel_axis, notes) for variable in chosen]
    _check_shapes(parts)
    given = {
        "labels": labels,
        "samples": samples,
        "train_samples": train_samples,
        "splits": splits,
        "diagonal": diagonal,
    }
    for role, path in given.items():
        if path is not None:
            found = [other for other in found if other.role != role]
            found.append(Found(role, str(path), partial(_table, Path(path))))
    if names is not None:
        found = [other for other in found if other.role != "names"]
    known, own_names = assemble(found, _frame(parts), notes)
    if names is None:
        names = _names(parts, data)
        if own_names is not None:
            if names is not None:
                pairs = ", ".join(f"{old} is {new}" for old, new in zip(names[:3], own_names, strict=False))
                notes.append(
                    f"the kernels were named in the order in which they stand: {pairs}{' …' if len(names) > 3 else ''}"
                )
            names = own_names
    return FileSource(parts, names, notes), known


def read_vector(path: PathLike, variable: str | None = None) -> Array:
    """Labels, names or splits from a file: text (one value a line, a line of values, a table), .npy, or a container.

    Parameters
    ----------
    path
        The file.
    variable
        Which array of a container (.npz, .mat, .h5, Zarr); needed where it holds several.

    Returns
    -------
    numpy.ndarray
        (rows,), or (rows, columns) for a table; integers, floats or strings. A table's names of rows and columns are
        left out.

    Raises
    ------
    InputError
        If the file is missing, damaged or of an unknown kind, or its lines differ in length.
    """
    return _table(Path(path), variable).values


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

    def __init__(self, parts: Sequence[_Part], names: Sequence[str] | None, notes: Sequence[str]) -> None:
        self._parts = list(parts)
        self.names = names
        self.notes = tuple(notes)
        self.n_kernels: int | None = sum(part.n_kernels for part in parts)
        self._row_names: list[str] | None = None

    def matrices(self) -> Iterator[Matrix]:
        """See `KernelSource.matrices`."""
        for part in self._parts:
            yield from part.matrices(self._same_rows)

    def _same_rows(self, path: Path, row_names: list[str]) -> None:
        """Refuse text files whose rows are named differently: entries would be mixed up."""
        if self._row_names is None:
            self._row_names = row_names
        elif row_names != self._row_names:
            at = next(
                (
                    i
                    for i, pair in enumerate(zip(row_names, self._row_names, strict=False))
                    if len(set(pair)) > 1
                ),
                None,
            )
            differ = (
                f"{len(row_names)} rows, not {len(self._row_names)}"
                if at is None
                else f"row {at + 1} is {row_names[at]!r}, not {self._row_names[at]!r}"
            )
            msg = f"{path} names its rows otherwise than {self._parts[0].variable.path}: {differ}; sort them alike"
            raise InputError(msg)

    def identity(self, j: int) -> dict[str, Any] | None:
        """See `KernelSource.identity`."""
        for part in self._parts:
            if j < part.n_kernels:
                return part.identity(j)
            j -= part.n_kernels
        return None


@dataclass(frozen=True)
class _Part:
    """The kernels of one variable."""

    variable: Variable
    axis: int | None
    shape: tuple[int, int]
    n_kernels: int
    stamp: dict[str, Any]

    def matrices(self, check_rows: Callable[[Path, list[str]], None]) -> Iterator[Matrix]:
        array: Any = self.variable.open()
        row_names = getattr(array, "row_names", None)
        if row_names is not None:
            check_rows(self.variable.path, row_names)
        chunks: Sequence[int] | None = getattr(array, "chunks", None)
        if self.axis is None:
            yield _in_strips(array, chunks, self.variable)
            return
        if chunks is not None:
            chunks = [length for axis, length in enumerate(chunks) if axis != self.axis]
        for layer in ArraySource(array, axis=self.axis).matrices():
            yield _in_strips(layer, chunks, self.variable)

    def identity(self, j: int) -> dict[str, Any]:
        identity = dict(self.stamp)
        if self.variable.name:
            identity["variable"] = self.variable.name
        return identity if self.axis is None else {**identity, "axis": self.axis, "index": j}


def _in_strips(matrix: Matrix, chunks: Sequence[int] | None, variable: Variable) -> Matrix:
    """Read whole rows where a tile would cost them anyway: in text, and where chunks span half the columns."""
    if chunks is None:
        return StripBuffer(matrix) if variable.path.suffix.lower() in _TEXT else matrix
    rows, cols = matrix.shape
    if 2 * chunks[1] < cols:
        return matrix
    # A chunk of half the kernel would be decoded anew for each strip.
    return _Whole(matrix) if 2 * chunks[0] > rows else StripBuffer(matrix)


class _Whole:
    """A matrix that is read as a whole when something of it is asked for."""

    def __init__(self, matrix: Matrix) -> None:
        self._matrix = matrix
        self._values: Array | None = None
        self.shape, self.dtype = matrix.shape, matrix.dtype

    def __getitem__(self, key: tuple[slice, slice]) -> Array:
        if self._values is None:
            self._values = np.asarray(self._matrix[0 : self.shape[0], 0 : self.shape[1]])
        return self._values[key]


# --- which files -----------------------------------------------------------------------------------------------------


def _expanded(paths: PathLike | Sequence[PathLike]) -> tuple[list[Path], list[tuple[str, Path]], list[str]]:
    """The files with kernels, the files with labels and such, and what was left out."""
    notes: list[str] = []
    if isinstance(paths, str | os.PathLike):
        single = Path(paths).expanduser()
        if not single.is_dir() or is_zarr(single):
            return [_known(single)], [], notes
        entries = sorted(
            (entry for entry in single.iterdir() if not entry.name.startswith(".")), key=_natural
        )
        unknown = [entry.name for entry in entries if not _is_known(entry)]
        if unknown:
            notes.append(f"{single}: left out {', '.join(unknown)} (expected {_KNOWN})")
        entries = [entry for entry in entries if _is_known(entry)]
    else:
        entries = [_known(Path(path).expanduser()) for path in paths]
        single = Path(os.path.commonpath([entry.absolute() for entry in entries])) if entries else Path()
    roles = [ROLES.get(entry.stem.casefold().replace("-", "_")) for entry in entries]
    # "kernel.npy" is a kernel; its names are in "names.txt".
    roles = [
        None if entry.stem.casefold().startswith("kernel") and "name" not in entry.stem.casefold() else role
        for entry, role in zip(entries, roles, strict=True)
    ]
    data = [entry for entry, role in zip(entries, roles, strict=True) if role is None]
    if not data:
        msg = f"there are no kernels in {single}; expected one kernel a file, {_KNOWN}"
        raise InputError(msg)
    return (
        data,
        [(role, entry) for entry, role in zip(entries, roles, strict=True) if role is not None],
        notes,
    )


def _is_known(path: Path) -> bool:
    return is_zarr(path) if path.is_dir() else path.suffix.lower() in _FORMATS


def _known(path: Path) -> Path:
    if not path.exists():
        msg = f"there is no file {path}"
        raise InputError(msg)
    if not _is_known(path):
        what = (
            "is a folder without Zarr metadata"
            if path.is_dir()
            else f"has the unknown extension {path.suffix!r}"
        )
        msg = f"{path} {what}; expected {_KNOWN}"
        raise InputError(msg)
    return path


def _natural(path: Path) -> list[tuple[int, int | str]]:
    """K2 before K10."""
    return _natural_key(path.name)


def _natural_key(text: str) -> list[tuple[int, int | str]]:
    parts = re.split(r"(\d+)", text)
    return [(0, int(part)) if part.isdigit() else (1, part.casefold()) for part in parts if part] + [
        (2, text)
    ]


def _scan(path: Path) -> list[Variable]:
    if path.is_dir():
        return sorted(zarr_variables(path), key=lambda variable: _natural_key(variable.name))
    held = _FORMATS[path.suffix.lower()](path)
    # HDF5 lists its members by name; .npz and MATLAB files in the order in which they were saved, which counts.
    return (
        sorted(held, key=lambda variable: _natural_key(variable.name))
        if path.suffix in (".h5", ".hdf5")
        else held
    )


# --- which arrays ----------------------------------------------------------------------------------------------------


def _wanted(path: Path, held: Iterable[Variable], wanted: Sequence[str]) -> list[Variable]:
    by_name = {variable.name: variable for variable in held}
    chosen = []
    for name in wanted:
        if name not in by_name:
            msg = f"{path} has no variable {name!r}; it has {', '.join(map(repr, by_name)) or 'none'}"
            raise InputError(msg)
        _refuse(by_name[name])
        if len(by_name[name].shape) not in (2, 3):
            msg = f"{where(by_name[name])} has shape {by_name[name].shape}, expected one kernel (m, m) or several"
            raise InputError(msg)
        chosen.append(by_name[name])
    return chosen


def _refuse(variable: Variable) -> None:
    """Refuse what cannot be a kernel."""
    name = variable.name or "it"
    if variable.problem == "sparse":
        msg = f"{where(variable)} is sparse; kernels are stored dense: save full({name})"
    elif variable.problem == "complex":
        msg = f"{where(variable)} is complex, expected real numbers; save its real part if the imaginary one is rounding"
    elif variable.problem == "Python objects":
        msg = f"{where(variable)} holds Python objects, which are never unpickled: they can run any code. Save it as numbers"
    elif variable.problem or variable.dtype.kind not in "fiub":
        msg = (
            f"{where(variable)} holds {variable.problem or 'no numbers'} ({variable}), expected real numbers"
        )
    else:
        return
    raise InputError(msg)


def _kernels(path: Path, held: Sequence[Variable]) -> list[Variable]:
    """The variables that are kernels, by their shapes."""
    if len(held) == 1 and len(held[0].shape) in (2, 3) and not held[0].name:
        _refuse(held[0])  # the one array of such a file is meant, also where it is rectangular
        return list(held)
    likely = [variable for variable in held if variable.looks_like_kernels and not variable.is_text]
    for variable in likely:
        if variable.problem in ("sparse", "complex", "Python objects"):
            _refuse(variable)
    likely = [variable for variable in likely if not variable.problem]
    stacks = [variable for variable in likely if len(variable.shape) == 3]
    if len(stacks) > 1 or (stacks and len(likely) > 1):
        msg = (
            f"{path} holds several arrays that may be the kernels: {', '.join(map(str, likely))}; say which, by their names "
            "(variables=[…], --variables)"
        )
        raise InputError(msg)
    if not likely:
        msg = (
            f"there are no kernels in {path}: expected an array of kernels (n, m, m), or square matrices; found "
            f"{', '.join(map(str, held)) or 'nothing'}. Rectangular kernels must be named (variables=[…], --variables)"
        )
        raise InputError(msg)
    return likely


def _part(variable: Variable, asked: int | None, notes: list[str]) -> _Part:
    shape = variable.shape
    if asked is not None and (isinstance(asked, bool) or asked not in (-3, -2, -1, 0, 1, 2)):
        msg = f"the kernel axis must be 0, 1 or 2, got {asked!r}"
        raise InputError(msg)
    mark = stamp(variable.path)
    if len(shape) == 2:
        return _Part(variable, None, (shape[0], shape[1]), 1, mark)
    if variable.cell:
        axis = 0
    elif asked is not None:
        axis = asked % 3
    elif variable.matlab and len(set(shape)) == 3:
        axis = 2
        notes.append(
            f"{where(variable)} is {times(shape)}: taken as {shape[2]} rectangular kernels, along MATLAB's last axis"
        )
    else:
        axis = kernel_axis(shape, where(variable), last_when_cubic=variable.matlab)
        if len(set(shape)) == 1:
            notes.append(
                f"{where(variable)} is {times(shape)}: its kernels were taken along axis {axis}; give the axis if not so"
            )
    rest = [length for position, length in enumerate(shape) if position != axis]
    return _Part(variable, axis, (rest[0], rest[1]), shape[axis], mark)


def _check_shapes(parts: Sequence[_Part]) -> None:
    """Refuse kernels of different shapes; the rows of a text file are counted when it is read."""
    rows = {part.shape[0] for part in parts} - {-1}
    cols = {part.shape[1] for part in parts}
    if len(rows) > 1 or len(cols) > 1:
        listed = [f"{part.variable.name or part.variable.path.name} {times(part.shape)}" for part in parts]
        more = f", … ({len(listed)} in all)" if len(listed) > 8 else ""
        msg = (
            f"the kernels in {parts[0].variable.path if len(rows) else parts[0].variable.path.parent} differ in shape: "
            f"{', '.join(listed[:8])}{more}; name those that belong together (variables=[…], --variables)"
        )
        raise InputError(msg)


def _frame(parts: Sequence[_Part]) -> Frame:
    n_kernels, (n_rows, n_cols) = sum(part.n_kernels for part in parts), parts[0].shape
    if n_rows >= 0:
        return Frame(n_kernels, n_rows, n_cols)
    text: Any = parts[0].variable.open()
    return Frame(n_kernels, *text.shape, text.row_names, text.layout.header)


def _names(parts: Sequence[_Part], files: Sequence[Path]) -> list[str] | None:
    """Names from files and variables; None for one array of several kernels, which tells none."""
    if len(parts) == 1 and parts[0].axis is not None:
        return None
    stems = _file_names(files)
    n_variables = {path: sum(part.variable.path == path for part in parts) for path in files}
    inner = [part.variable.name for part in parts]
    if len({name.rpartition("/")[0] for name in inner}) == 1:
        inner = [name.rpartition("/")[2] for name in inner]
    names = []
    for part, name in zip(parts, inner, strict=True):
        stem = stems[part.variable.path]
        if len(files) > 1:
            base = stem if n_variables[part.variable.path] == 1 else f"{stem}/{name}"
        else:
            base = name or stem
        names += [base] if part.axis is None else [f"{base}_{j}" for j in range(part.n_kernels)]
    return names


def _file_names(files: Sequence[Path]) -> dict[Path, str]:
    """What tells the files apart: the name, with its folders and extension where that is not enough."""
    for tell in (
        lambda path: path.stem,
        lambda path: str(path.absolute().relative_to(root).with_suffix("")),
        lambda path: str(path.absolute().relative_to(root)),
    ):
        root = Path(os.path.commonpath([path.absolute().parent for path in files]))
        names = {path: str(tell(path)) for path in files}
        if len(set(names.values())) == len(files):
            break
    return names


# --- labels and names ------------------------------------------------------------------------------------------------


def _reader(variable: Variable) -> Callable[[], Table]:
    return lambda: Table(vector(variable.read(), where(variable)))


def _table(path: Path, name: str | None = None) -> Table:
    path = _known(path.expanduser())
    if path.suffix.lower() in _TEXT:
        return read_table(path)
    held = _scan(path)
    if name is not None:
        held = [variable for variable in held if variable.name == name]
    if len(held) != 1:
        msg = (
            f"{path} has no variable {name!r}"
            if name is not None
            else f"{path} holds {len(held)} arrays ({', '.join(map(str, held))}), expected one; say which"
        )
        raise InputError(msg)
    return Table(vector(held[0].read(), where(held[0])))
