"""Feature matrices in memory: arrays, data frames, xarray, mappings of these."""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from dmkl.errors import InputError
from dmkl.inputs.annotated_objects import columns_of, is_annotated, parts_of
from dmkl.inputs.feature_matrices import (
    LABEL_ROLES,
    SourceMatrix,
    UnalignedFeatures,
    array_matrix,
    frame_matrix,
)
from dmkl.inputs.formats.annotated import role_of_column
from dmkl.inputs.formats.file_arrays import FileArray, role_of, shape_text, vector
from dmkl.inputs.kernel_sources import LabeledArray, short_names
from dmkl.inputs.labels import LabelTable, axis_names, sample_names
from dmkl.inputs.side_data import SideData

__all__ = ["from_memory"]


def from_memory(features: Any) -> UnalignedFeatures:
    """Take an array, a data frame, an xarray Dataset, AnnData, MuData, or a mapping from names to such as features."""
    if is_annotated(features):
        return _annotated(features)
    if isinstance(features, xr.Dataset):
        return _dataset(features)
    if isinstance(features, Mapping):
        return UnalignedFeatures([_as_matrix(str(name), values) for name, values in features.items()])
    if hasattr(features, "shape"):
        return UnalignedFeatures([_as_matrix("X", features)])
    msg = (
        "features must be a mapping from names to arrays (samples, columns), one array, a data frame, an xarray "
        f"Dataset, AnnData, MuData, a path or a list of paths, got {type(features).__name__}"
    )
    raise InputError(msg)


def _as_matrix(name: str, values: Any) -> SourceMatrix:
    if isinstance(values, pd.DataFrame):
        return frame_matrix(name, values)
    if isinstance(values, xr.DataArray):
        return array_matrix(name, LabeledArray(values), samples=axis_names(values, 0), columns=axis_names(values, 1))
    if isinstance(values, str | os.PathLike):
        msg = f"features {name!r} are the path {values}; give a list of paths, each matrix being named by its file"
        raise InputError(msg)
    try:
        np.dtype(values.dtype)
    except (AttributeError, TypeError):
        try:
            values = np.asarray(values)
        except ValueError as error:
            msg = f"features {name!r} are no matrix, {error}; every row must be as long"
            raise InputError(msg) from error
    return array_matrix(name, values)


def _annotated(data: Any) -> UnalignedFeatures:
    unaligned = UnalignedFeatures()
    for part in parts_of(data):
        samples = sample_names("obs", part.samples)
        for name, values in part.features():
            columns = part.variables if np.shape(values)[1:] == (len(part.variables or ()),) else None
            matrix = _as_matrix(name, values)
            unaligned.matrices.append(replace(matrix, samples=samples, columns=columns or matrix.columns))
        for name, values, holds in part.squares():
            unaligned.matrices.append(array_matrix(name, values, samples=samples, columns=samples, holds=holds))
    names = short_names([matrix.name for matrix in unaligned.matrices])
    unaligned.matrices = [replace(own, name=name) for own, name in zip(unaligned.matrices, names, strict=True)]
    for name, values, samples in columns_of(data):
        role = role_of_column(name)
        if role is not None:
            where_from = f"column {name!r} of obs"
            unaligned.notes.append(f"{where_from} was taken for {role}")
            unaligned.found.append(SideData(role, where_from, partial(_table, values, where_from, samples, None)))
    return unaligned


def _dataset(dataset: xr.Dataset) -> UnalignedFeatures:
    unaligned = UnalignedFeatures()
    first: tuple[str, Hashable] | None = None
    left_out = []
    names: tuple[str, xr.DataArray] | None = None
    beside: list[tuple[str, str, xr.DataArray]] = []
    for key, array in dataset.variables.items():
        name, values = str(key), dataset[key]
        kind = np.dtype("U1") if array.dtype.kind not in "fiubc" else array.dtype
        role = role_of(FileArray(Path(), name, array.shape, kind, partial(np.empty, 0), partial(np.empty, 0)))
        if role == "samples" and array.ndim == 1:
            names = (name, values)
        elif role in LABEL_ROLES and array.ndim in (1, 2):
            beside.append((role, name, values))
        elif array.ndim == 2 and role is None:
            if first is not None and array.dims[0] != first[1]:
                msg = (
                    f"features {name!r} have the dimensions {array.dims}, {first[0]!r} begins with {first[1]!r}; all "
                    "begin with that of the samples, so transpose or rename"
                )
                raise InputError(msg)
            first = first or (name, array.dims[0])
            unaligned.matrices.append(_as_matrix(name, values))
        elif key not in dataset.dims:
            left_out.append(f"{name} ({shape_text(array.shape) or 'one'} {array.dtype})")
    if left_out:
        unaligned.notes.append(f"the dataset: left out {', '.join(left_out)}")
    dimension = None if first is None else first[1]
    if names is not None and names[1].dims == (dimension,):
        unaligned.samples = sample_names("the samples of the dataset", names[1].to_numpy())
    # Those of all matrices, which share the dimension.
    samples = next((matrix.samples for matrix in unaligned.matrices), None) or unaligned.samples
    for role, name, values in beside:
        if role != "tasks" and dimension in values.dims:
            values = values.transpose(dimension, ...)
        where_from = f"variable {name!r} of the dataset"
        titles = axis_names(values, 1)
        own = samples if dimension in values.dims else None
        unaligned.found.append(SideData(role, where_from, partial(_table, values, where_from, own, titles)))
    return unaligned


def _table(values: Any, where_from: str, names: tuple[str, ...] | None, columns: tuple[str, ...] | None) -> LabelTable:
    return LabelTable(vector(values, where_from), names, columns)
