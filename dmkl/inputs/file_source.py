"""The kernels of data files: which arrays they are, what they are called, and reading one after another."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dmkl.arrays import Array
from dmkl.errors import InputError
from dmkl.inputs.condensed import n_condensed
from dmkl.inputs.formats.file_arrays import ELSEWHERE, FileArray, listed, shape_text, stamp, stem, where
from dmkl.inputs.formats.text import TextMatrix
from dmkl.inputs.kernel_sources import ArraySource, Axes, KernelSource, Matrix, StripBuffer, kernel_axis, short_names

__all__ = ["FileSource", "KernelArray", "check_shapes", "choose_arrays", "kernel_array", "kernel_names"]


@dataclass(frozen=True)
class KernelArray:
    """The kernels of one array."""

    variable: FileArray
    axis: int | None  # the axis that counts its kernels; None for a matrix
    shape: tuple[int, int]  # rows and columns of a kernel; -1 rows where they are not counted yet
    n_kernels: int
    stamp: dict[str, Any]  # tells the content of its file from any other

    def matrices(self) -> Iterator[Matrix]:
        """The kernels in order; what the array holds in memory goes when the next array is opened."""
        array: Any = self.variable.open()
        if isinstance(array, TextMatrix):
            yield StripBuffer(array)
            return
        chunks: Sequence[int] | None = getattr(array, "chunks", None)
        if self.axis is None:
            yield _in_strips(array, chunks)
            return
        if chunks is not None:
            chunks = [length for axis, length in enumerate(chunks) if axis != self.axis]
        check = getattr(array, "check_written", None)
        for j, layer in enumerate(ArraySource(array, axis=self.axis).matrices()):
            if check is not None:  # a shape may claim any number of kernels
                check(self.axis, j)
            yield _in_strips(layer, chunks)

    def identity(self, j: int) -> dict[str, Any]:
        """What tells kernel j of this array from any other content."""
        identity = dict(self.stamp)
        if self.variable.name:
            identity["variable"] = self.variable.name
        return identity if self.axis is None else {**identity, "axis": self.axis, "index": j}


class FileSource(KernelSource):
    """The kernels of data files, as a source for `dmkl.create`; `axes` has the names of the samples of each part."""

    def __init__(self, parts: Sequence[KernelArray], names: Sequence[str] | None, axes: Sequence[Axes]) -> None:
        self._parts = tuple(parts)
        self.names = names
        self.n_kernels = sum(part.n_kernels for part in parts)
        self.axes = [own for part, own in zip(parts, axes, strict=True) for _ in range(part.n_kernels)]

    def matrices(self) -> Iterator[Matrix]:
        """See `KernelSource.matrices`."""
        for part in self._parts:
            yield from part.matrices()

    def identity(self, j: int) -> dict[str, Any] | None:
        """See `KernelSource.identity`."""
        for part in self._parts:
            if j < part.n_kernels:
                return part.identity(j)
            j -= part.n_kernels
        return None


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


# --- choosing and naming the arrays -----------------------------------------------------------------------------------


def choose_arrays(
    path: Path, held: Sequence[FileArray], roles: Sequence[str | None], names: Sequence[str] | None
) -> list[FileArray]:
    """The arrays of a file that hold kernels: those of the names that were asked for, or else as their shapes tell."""
    if names is not None:
        return _arrays_named(path, held, names)
    return _find_kernels(path, [variable for variable, role in zip(held, roles, strict=True) if role is None])


def _arrays_named(path: Path, held: Iterable[FileArray], names: Sequence[str]) -> list[FileArray]:
    """The arrays of these names."""
    by_name = {variable.name: variable for variable in held}
    chosen = []
    for name in names:
        if name not in by_name:
            msg = f"{path} has no variable {name!r}; it has {', '.join(map(repr, by_name)) or 'none'}"
            raise InputError(msg)
        variable = by_name[name]
        _refuse(variable)
        _check_dimensions(variable)
        chosen.append(variable)
    return chosen


def _check_dimensions(variable: FileArray) -> None:
    if len(variable.shape) not in (2, 3):
        msg = f"{where(variable)} has shape {variable.shape}, expected one kernel (m, m) or several"
        raise InputError(msg)


def _find_kernels(path: Path, held: Sequence[FileArray]) -> list[FileArray]:
    """The arrays that are kernels by their shapes: one of three dimensions, or the square matrices."""
    if len(held) == 1 and not held[0].name and len(held[0].shape) in (2, 3):
        _refuse(held[0])  # the one array of such a file is meant, also where it is rectangular
        return list(held)
    likely = [variable for variable in held if variable.looks_like_kernels and not variable.is_text]
    for variable in likely:
        if variable.problem in _NAMED_PROBLEMS:
            _refuse(variable)
    likely = [variable for variable in likely if not variable.problem]
    for variable in likely:  # a kernel by its place has any shape
        _check_dimensions(variable)
    if len(likely) > 1 and any(len(variable.shape) == 3 for variable in likely):
        msg = (
            f"{path} holds several arrays that may be the kernels: {listed(likely)}; say which, "
            "by their names (variables=[…], --variable)"
        )
        raise InputError(msg)
    if not likely:
        for variable in held:
            if variable.problem == ELSEWHERE[0]:  # no shape tells whether it is a kernel
                _refuse(variable)
        if len(held) == 1 and len(held[0].shape) == 1 and n_condensed(held[0].shape[0]):
            msg = (
                f"{path} holds one number for each pair of {n_condensed(held[0].shape[0])} samples, as SciPy's pdist "
                "gives distances, which are no kernel; dmkl build makes one, --function distance"
            )
            raise InputError(msg)
        msg = (
            f"there are no kernels in {path}: expected an array of kernels (n, m, m), or square matrices; "
            f"found {listed(held) or 'nothing'}. Rectangular kernels must be named "
            "(variables=[…], --variable); from features, compute the kernel matrices first"
        )
        raise InputError(msg)
    return likely


_NAMED_PROBLEMS = {
    "sparse": "is sparse, but kernels are stored dense; save full({name})",
    "complex": "is complex, expected real numbers; save real({name}) if the imaginary part is rounding",
    "Python objects": "holds Python objects, never unpickled: they can run any code; save numbers",
    ELSEWHERE[0]: ELSEWHERE[1],
}


def _refuse(variable: FileArray) -> None:
    """Refuse what cannot be a kernel."""
    if variable.holds == "distances":
        msg = f"{where(variable)} holds distances, which are no kernel; dmkl build makes one, --function distance"
        raise InputError(msg)
    if not variable.problem and variable.dtype.kind in "fiub":
        return
    problem = _NAMED_PROBLEMS.get(variable.problem, "is {what}, expected real numbers")
    msg = f"{where(variable)} {problem.format(name=variable.name or 'it', what=variable)}"
    raise InputError(msg)


def kernel_array(variable: FileArray, asked: int | None, notes: list[str]) -> KernelArray:
    """The kernels of an array, along the axis that was asked for or that its shape tells."""
    if asked not in (None, 0, 1, 2):
        msg = f"the kernel axis must be 0, 1 or 2, got {asked!r}"
        raise InputError(msg)
    shape, mark = variable.shape, stamp(variable.path)
    if len(shape) == 2:
        n = n_condensed(shape[1])
        if shape[0] not in (-1, shape[1]) and n is not None:
            notes.append(
                f"{where(variable)} is {shape_text(shape)}: taken as a rectangular kernel. If its rows are distances "
                f"of the pairs of {n} samples (SciPy's pdist), save each as an .npy for dmkl build --function distance"
            )
        return KernelArray(variable, None, (shape[0], shape[1]), 1, mark)
    if variable.cell:
        axis = 0
    elif asked is not None:
        axis = asked
    elif variable.matlab and len(set(shape)) == 3:
        axis = 2
        notes.append(
            f"{where(variable)} is {shape_text(shape)}: taken as {shape[2]} rectangular kernels, along MATLAB's last "
            "axis"
        )
    else:
        axis = kernel_axis(shape, where(variable), last_when_cubic=variable.matlab)
        if len(set(shape)) == 1:
            notes.append(
                f"{where(variable)} is {shape_text(shape)}: its kernels were taken along axis {axis}; give the "
                "kernel axis if they lie along another"
            )
    rows, cols = (length for position, length in enumerate(shape) if position != axis)
    return KernelArray(variable, axis, (rows, cols), shape[axis], mark)


def check_shapes(parts: Sequence[KernelArray]) -> None:
    """Refuse kernels of different shapes; the rows of a text file are counted when it is read."""
    rows = {part.shape[0] for part in parts} - {-1}
    cols = {part.shape[1] for part in parts}
    if len(rows) <= 1 and len(cols) <= 1:
        return
    listed = [f"{part.variable.name or part.variable.path.name} {shape_text(part.shape)}" for part in parts]
    files = {part.variable.path for part in parts}
    place = files.pop() if len(files) == 1 else os.path.commonpath([path.absolute() for path in files])
    msg = (
        f"the kernels in {place} differ in shape: "
        f"{', '.join(listed[:8])}{f' … ({len(listed)} in all)' if len(listed) > 8 else ''}; all kernels of a "
        "set have one shape. Name the arrays, or give the files, that belong together (variables=[…], "
        "--variable)"
    )
    raise InputError(msg)


def kernel_names(parts: Sequence[KernelArray], files: Sequence[Path]) -> list[str] | None:
    """Names from files and variables; None for one array of several kernels, which tells none."""
    if len(parts) == 1 and parts[0].axis is not None:
        return None
    stems = _file_names(files)
    inner = short_names([part.variable.name for part in parts])
    names = []
    for part, name in zip(parts, inner, strict=True):
        stem = stems[part.variable.path]
        alone = sum(other.variable.path == part.variable.path for other in parts) == 1
        base = (name or stem) if len(files) == 1 else stem if alone else f"{stem}/{name}"
        names += [base] if part.axis is None else [f"{base}_{j}" for j in range(part.n_kernels)]
    return names


def _file_names(files: Sequence[Path]) -> dict[Path, str]:
    """Short names that tell the files apart: their stems, or their paths below the common folder."""
    root = os.path.commonpath([path.absolute().parent for path in files])
    inside = {path: path.absolute().relative_to(root) for path in files}
    for names in ({path: stem(path) for path in files}, {p: str(inside[p].with_name(stem(p))) for p in files}):
        if len(set(names.values())) == len(files):
            return names
    return {path: str(inside[path]) for path in files}
