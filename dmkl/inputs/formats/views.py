"""Feature matrices in the cells of one array: whether their rows or their columns are the samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dmkl.errors import InputError
from dmkl.inputs.formats.file_arrays import FileArray, listed, where
from dmkl.inputs.matrices import Transposed

__all__ = ["matrices_of_cells"]


def matrices_of_cells(variable: FileArray, n_labels: Sequence[int], notes: list[str]) -> list[FileArray]:
    """The matrices of a cell array, each (samples, columns); notes get which way they were taken.

    The samples are the axis along which all are as long as the labels (`n_labels`, one of these lengths); without
    labels, the axis along which all are equally long, rows before columns.

    InputError is raised where neither axis is.
    """
    lengths = [{view.shape[axis] for view in variable.views} for axis in (0, 1)]
    fitting = [axis for axis in (0, 1) if len(lengths[axis]) == 1 and (not n_labels or lengths[axis] <= set(n_labels))]
    if not fitting:
        n = n_labels[0] if n_labels else 0
        wanted = f"{n} rows, or {n} columns, as there are labels" if n else "equally many rows or columns"
        msg = (
            f"{where(variable)} is a cell array of {listed(variable.views)}; expected views of {wanted}. Save the "
            "views that belong together as variables of their own, (samples, columns)"
        )
        raise InputError(msg)
    axis, why = fitting[0], "as many as labels" if n_labels else "equally many in all"
    notes.append(
        f"{where(variable)}: {len(variable.views)} feature matrices, of which the {('rows', 'columns')[axis]} were "
        f"taken for samples ({lengths[axis].pop()}, {why})"
        + (", though the columns are as many" if len(fitting) > 1 else "")
    )
    return list(variable.views) if axis == 0 else [_transposed(view) for view in variable.views]


def _transposed(view: FileArray) -> FileArray:
    return replace(view, shape=view.shape[::-1], open=lambda: Transposed(view.open()), whole=None)
