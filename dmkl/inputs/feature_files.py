"""Feature matrices in files, and the labels, splits and names beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from dmkl.errors import InputError
from dmkl.inputs.feature_matrices import LABEL_ROLES, SourceMatrix, UnalignedFeatures, array_matrix
from dmkl.inputs.file_source import KernelArray, kernel_names
from dmkl.inputs.folders import PathLike, find_files
from dmkl.inputs.formats.file_arrays import ELSEWHERE, FileArray, listed, role_of, stem, vector, where
from dmkl.inputs.formats.registry import Format, arrays_in, format_of
from dmkl.inputs.formats.tables import LastOpened
from dmkl.inputs.formats.text import read_array
from dmkl.inputs.formats.views import matrices_of_cells
from dmkl.inputs.label_files import read_file
from dmkl.inputs.labels import sample_names
from dmkl.inputs.side_data import SideData

__all__ = ["from_files"]

_REFUSED = {
    "sparse": "is sparse, but kernels are computed from dense rows; save it dense",
    "complex": "is complex, expected real numbers; save real and imaginary parts as columns of their own",
    "Python objects": "holds Python objects, never unpickled: they can run any code; save numbers",
    ELSEWHERE[0]: ELSEWHERE[1],
}


def from_files(paths: PathLike | Sequence[PathLike]) -> UnalignedFeatures:
    """Find feature matrices in files, and labels, splits and names beside them; only headers are read."""
    unaligned = UnalignedFeatures()
    last = LastOpened()
    files, beside = find_files(paths, Format.holds_features, {"samples", *LABEL_ROLES}, unaligned.notes)
    # Blocks get their names last: they depend on what else there is.
    parts: list[tuple[SourceMatrix, KernelArray]] = []
    for path in files:
        read_as_table = getattr(format_of(path), "table", None)
        if read_as_table is not None:
            matrix, found = read_as_table(path, last, unaligned.notes)
            whole = FileArray(path, "", matrix.shape, matrix.dtype, partial(np.empty, 0), partial(np.empty, 0))
            parts.append((matrix, KernelArray(whole, None, matrix.shape, 1, {})))
            unaligned.found += found
        else:
            parts += _array_file(path, last, unaligned)
    if not parts:
        msg = (
            f"there are no features in {', '.join(map(str, files)) or 'no files'}: expected matrices (samples, "
            "columns) of numbers; give a column as (samples, 1), or in a mapping from names to arrays"
        )
        raise InputError(msg)
    names = kernel_names([part for _, part in parts], files) or []
    unaligned.matrices = [replace(matrix, name=name) for (matrix, _), name in zip(parts, names, strict=True)]
    for role, path in beside:
        if role == "samples":
            table = read_file(path)
            unaligned.samples = sample_names(str(path), table.row_names or np.ravel(table.values).tolist())
        else:
            unaligned.found.append(SideData(role, str(path), partial(read_file, path)))
    return unaligned


def _array_file(path: Path, last: LastOpened, unaligned: UnalignedFeatures) -> list[tuple[SourceMatrix, KernelArray]]:
    held = arrays_in(path)
    roles = [None if not variable.name else role_of(variable) for variable in held]
    labels = [variable for variable, role in zip(held, roles, strict=True) if role == "labels"]
    n_labels = [length for variable in labels for length in (*variable.views, variable)[0].shape[:2]]
    n_labels = [length for length in n_labels if length > 1]
    chosen, left_out = [], []
    named: FileArray | None = None
    beside: list[tuple[str, FileArray]] = []
    for variable, role in zip(held, roles, strict=True):
        if role == "samples" and named is None and not variable.problem:
            named = variable
        elif role in LABEL_ROLES and not variable.problem:
            beside.append((role, variable))
        elif role is None and variable.views:
            chosen += matrices_of_cells(variable, n_labels, unaligned.notes)
        elif role is None and _is_feature_matrix(variable):
            chosen.append(variable)
        elif variable.shape not in ((), (1,), (1, 1)):
            left_out.append(str(variable))
    if left_out:
        unaligned.notes.append(f"{path}: left out {listed(left_out)}")
    samples = None
    if named is not None:
        samples = sample_names(where(named), np.ravel(vector(named.read(), where(named))).tolist())
    for role, variable in beside:
        unaligned.found.append(SideData(role, where(variable), partial(read_array, variable, samples)))
    parts = []
    for variable in chosen:
        matrix = array_matrix(
            variable.name or stem(path),
            variable,
            samples=samples if variable.rows is None else variable.rows,
            columns=variable.columns,
            holds=variable.holds if variable.holds != "features" else "",
            open=partial(last.get, (path, variable.name), variable.open),
        )
        parts.append((matrix, KernelArray(variable, None, matrix.shape, 1, {})))
    return parts


def _is_feature_matrix(variable: FileArray) -> bool:
    """Whether an array is a feature matrix; the one array of a file without names is meant for one."""
    unknown = variable.problem == ELSEWHERE[0]  # no shape tells whether it is a matrix
    if not unknown and variable.name and (len(variable.shape) != 2 or variable.is_text):
        return False
    if variable.problem in _REFUSED:
        msg = f"{where(variable)} {_REFUSED[variable.problem]}"
        raise InputError(msg)
    # MATLAB shows vectors, and what is empty, with two dimensions.
    return not variable.problem and not (variable.matlab and min(variable.shape) <= 1)
