"""Features from files or objects in memory, aligned to one order of samples."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dmkl.arrays import Array, Mask
from dmkl.errors import InputError
from dmkl.inputs.feature_files import from_files
from dmkl.inputs.feature_matrices import FeatureMatrix, SourceMatrix, UnalignedFeatures, aligned
from dmkl.inputs.feature_objects import from_memory
from dmkl.inputs.formats.limits import check_memory
from dmkl.inputs.joins import Join, Named, check_join, joined, left_out, places, warn_of_positions
from dmkl.inputs.labels import Labels, sample_names
from dmkl.inputs.side_data import OF_SAMPLES, KernelShape, SideData, gather, names_beside

__all__ = ["Features", "as_features"]


@dataclass
class Features:
    """Feature matrices over the same samples."""

    blocks: dict[str, FeatureMatrix]  # by name; all have the same number of rows, row i being sample i
    samples: list[str] | None  # names of the samples; None where nothing tells them
    labels: Labels  # names, labels, tasks and splits of the samples, as far as they were found beside the features
    notes: list[str]  # what was left out, or taken for what


def as_features(
    features: Any,
    *,
    samples: Sequence[Any] | Array | None = None,
    present: Mapping[str, Any] | None = None,
    join: Join = "exact",
    beside: Sequence[SideData] = (),
) -> Features:
    """Take features from files or memory and align their rows to one order of samples; no value is read yet.

    Understood are

    - a mapping from names to matrices (samples, columns): NumPy arrays (of a masked one a row that is masked
      throughout is missing), Dask, Zarr and xarray arrays, h5py data sets, pandas data frames;
    - one such matrix, called X;
    - an xarray Dataset, of which each variable of two dimensions is a matrix of features;
    - AnnData and MuData: X, layers and obsm, with obs_names and var_names;
    - files: each matrix of numbers in .npy, .npz, .mat, .h5, .hdf5 files and Zarr folders is one, and so is each
      .csv, .tsv and .parquet file; .h5ad and .h5mu, and their Zarr form, as AnnData and MuData; or a folder of them.

    Arrays, columns and files called labels, y, samples, ids, splits or tasks are taken for what they say. In a
    table file the first column of words without repetition holds the names of the samples.

    A data frame has the names of its samples in its index, unless that only counts; an xarray array in the
    coordinate of its first dimension. Rows with names are put in the order of `samples`, or else of the first matrix
    that has names; `join` says which samples are taken. Rows without names are those of the samples, one after another.

    In memory is what `FeatureMatrix.read` is asked for; and of .npz, MATLAB files before version 7.3, CSV and Parquet
    the one matrix that was read last.

    Parameters
    ----------
    features
        As above, or `Features` that were taken before: they stay in their order, and `samples` names them.
    samples
        Names of the samples that are wanted, in this order.
    present
        For some matrices, by name, which samples have them: (samples,) of booleans, in the order of the result. The
        rows of all other samples are NaN.
    join
        "exact": all matrices, labels and splits that have names have the same samples (or all of `samples`), in any
        order. "inner": the samples that all have. "outer": the samples that any matrix has; one that a matrix lacks is
        a row of NaN.
    beside
        Labels, splits and names of tasks, in place of those found beside the features.

    Returns
    -------
    Features
        Matrices of float32 (from booleans, integers to 16 bits and floats to 32) or float64 (from other real numbers).

    Raises
    ------
    InputError
        If features are no matrix of real numbers, names of samples are not unique, matrices do not fit together, or a
        file is missing, damaged or of an unknown kind.

    Warns
    -----
    SampleOrderWarning
        If something without names is matched by position, though names have changed the order of something else.
    """
    check_join(join)
    if isinstance(features, Features) and present is None:
        return _renamed(features, samples, beside)
    unaligned = from_files(features) if _are_paths(features) else from_memory(features)
    if not unaligned.matrices:
        msg = "kernels are computed from at least one matrix of features (samples, columns), got none"
        raise InputError(msg)
    wanted = sample_names("samples", None if samples is None else np.asarray(samples).tolist())
    sources, first = _named(unaligned)
    # What has no names stands in the order of its source; what was given, in that of the samples asked for.
    found = [item.held(first) for item in unaligned.found if item.role not in _replaced(beside)]
    unnamed = [item.where for item in beside if item.role in OF_SAMPLES and item.read().row_names is None]
    n_given = sources[0].shape[0] if wanted is None else len(wanted)
    beside = [item.without_header(n_given, unaligned.notes) for item in beside]
    found += [item.held(first if wanted is None else wanted) for item in beside]
    named = [Named(f"features {matrix.name!r}", matrix.samples) for matrix in sources if matrix.samples is not None]
    labeled = names_beside(found, join) if named else []
    order = joined(named, join, unaligned.samples if wanted is None else wanted, labeled)
    if join == "inner" and wanted is None:
        unaligned.notes += left_out([*named, *labeled], order)
    unnamed += [f"features {matrix.name!r}" for matrix in sources if matrix.samples is None]
    if wanted is None:
        warn_of_positions(unnamed, [*named, *labeled], order)
    n_rows = _common_length(sources, order)
    check_memory(f"the order of {n_rows:,} samples", 8 * n_rows, "allow more, or look whether the features are damaged")
    masks = _masks(present or {}, [matrix.name for matrix in sources], n_rows)
    blocks = {matrix.name: _aligned(matrix, order, masks.get(matrix.name), unaligned.notes) for matrix in sources}
    labels, _ = gather(found, KernelShape(len(blocks), n_rows, n_rows, order), unaligned.notes)
    names = None if labels.samples is None else [str(name) for name in labels.samples]
    return Features(blocks, names, labels, unaligned.notes)


def _replaced(beside: Sequence[SideData]) -> set[str]:
    """The roles that are not looked for beside the features; other labels have other tasks."""
    roles = {item.role for item in beside}
    return roles | {"tasks"} if "labels" in roles else roles


def _renamed(found: Features, samples: Sequence[Any] | Array | None, beside: Sequence[SideData]) -> Features:
    """Features that were taken before, with other names, labels or splits."""
    names = found.samples if samples is None else [str(name) for name in samples]
    if not beside:
        return replace(found, samples=names)
    n_rows = next(iter(found.blocks.values())).shape[0]
    held = [item.held(names) for item in beside]
    given, _ = gather(held, KernelShape(len(found.blocks), n_rows, n_rows, names), found.notes)
    kept, roles = found.labels, _replaced(beside)
    labels = Labels(
        samples=given.samples,
        labels=given.labels if "labels" in roles else kept.labels,
        tasks=given.tasks if "tasks" in roles else kept.tasks,
        splits=given.splits if "splits" in roles else kept.splits,
    )
    return replace(found, samples=None if given.samples is None else list(map(str, given.samples)), labels=labels)


def _are_paths(features: Any) -> bool:
    if isinstance(features, str | os.PathLike):
        return True
    return isinstance(features, list | tuple) and all(isinstance(path, str | os.PathLike) for path in features)


def _named(unaligned: UnalignedFeatures) -> tuple[list[SourceMatrix], tuple[str, ...] | None]:
    """The matrices with names of samples found beside them, and the order of what has no names."""
    matrices, beside = unaligned.matrices, unaligned.samples
    if beside is None:
        return matrices, next((matrix.samples for matrix in matrices if matrix.samples is not None), None)
    for matrix in matrices:
        if matrix.samples is None:
            sample_names(f"features {matrix.name!r}", beside, matrix.shape[0])
    return [replace(matrix, samples=beside) if matrix.samples is None else matrix for matrix in matrices], beside


def _common_length(matrices: Sequence[SourceMatrix], samples: tuple[str, ...] | None) -> int:
    """The number of samples, which is that of the rows of each matrix without names."""
    nameless = [matrix for matrix in matrices if matrix.samples is None]
    n_rows = nameless[0].shape[0] if samples is None else len(samples)
    for matrix in nameless:
        if matrix.shape[0] != n_rows:
            other = f"there are {n_rows} samples" if samples is not None else f"{matrices[0].name!r} have {n_rows} rows"
            msg = (
                f"features {matrix.name!r} have {matrix.shape[0]} rows, {other}; without names of samples rows belong "
                "together by their position. Give all the same rows (NaN in all columns where a sample lacks it), or "
                "names of samples (the index of a data frame)"
            )
            raise InputError(msg)
    return n_rows


def _masks(present: Mapping[str, Any], names: Sequence[str], n_rows: int) -> dict[str, Mask]:
    masks = {name: np.asarray(mask) for name, mask in present.items()}
    for name, mask in masks.items():
        if name not in names:
            msg = f"present names {name!r}, but the features are {', '.join(map(repr, names))}"
            raise InputError(msg)
        if mask.dtype != bool or mask.shape != (n_rows,):
            msg = f"present[{name!r}] is {mask.dtype} of shape {mask.shape}, expected booleans of shape ({n_rows},)"
            raise InputError(msg)
    return masks


def _aligned(
    matrix: SourceMatrix, samples: tuple[str, ...] | None, mask: Mask | None, notes: list[str]
) -> FeatureMatrix:
    if matrix.samples is None or samples is None or matrix.samples == samples:
        order = np.arange(matrix.shape[0])
    else:
        order = places(matrix.samples, samples)
        lacking = int((order < 0).sum())
        if lacking == len(samples):
            msg = (
                f"features {matrix.name!r} have none of the {len(samples)} samples: their names begin with "
                f"{', '.join(map(repr, matrix.samples[:3]))}, expected are {', '.join(map(repr, samples[:3]))} …; use "
                "the same names, or leave this matrix out"
            )
            raise InputError(msg)
        if lacking:
            notes.append(f"features {matrix.name!r} lack {lacking} of the {len(samples)} samples")
        extra = matrix.shape[0] - (len(samples) - lacking)
        if extra:
            notes.append(f"features {matrix.name!r}: left out {extra} rows that are none of the samples")
    if mask is not None:
        order = np.where(mask, order, -1)
    # As they come, rows need no second array to be put in order.
    return matrix if np.array_equal(order, np.arange(matrix.shape[0])) else aligned(matrix, order)
