"""Features in whatever they come as, in one order of samples."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from dmkl.errors import InputError
from dmkl.inputs.feature_files import from_files
from dmkl.inputs.feature_matrices import (
    AlignedMatrix,
    FeatureMatrix,
    UnalignedFeatures,
    UnalignedMatrix,
    sample_names,
)
from dmkl.inputs.feature_objects import from_memory
from dmkl.inputs.formats.text import LabelTable
from dmkl.inputs.labels import Labels
from dmkl.inputs.side_data import KernelShape, SideData, gather

__all__ = ["Features", "as_features"]

Mask = npt.NDArray[np.bool_]


@dataclass
class Features:
    """Blocks of features over the same samples.

    Parameters
    ----------
    blocks
        By name; all have the same number of rows, row i being sample i.
    samples
        Names of the samples; None where nothing tells them.
    labels
        Names, labels, tasks and splits of the samples, as far as they were found beside the features.
    notes
        What was left out, or taken for what.
    """

    blocks: dict[str, FeatureMatrix]
    samples: list[str] | None
    labels: Labels
    notes: list[str]


def as_features(
    features: Any,
    *,
    samples: Sequence[Any] | npt.NDArray[Any] | None = None,
    present: Mapping[str, Any] | None = None,
) -> Features:
    """Take features as they come, and put their rows into one order of samples. No value is read yet.

    Understood are

    - a mapping from names to matrices (samples, columns): NumPy arrays (of a masked one a row that is masked
      throughout is missing), Dask, Zarr and xarray arrays, h5py data sets, pandas data frames;
    - one such matrix, called X;
    - an xarray Dataset, each variable of two dimensions a block;
    - files: .npy, .npz, .mat, .h5, .hdf5 and Zarr folders, each matrix of numbers a block; .csv, .tsv and
      .parquet, each file a block; or a folder of them.

    Arrays, columns and files called labels, y, samples, ids, splits or tasks are taken for what they say. In a
    table file the first column of words without repetition holds the names of the samples.

    A data frame has the names of its samples in its index, unless that only counts; an xarray array in the
    coordinate of its first dimension. Rows with names are put in the order of `samples`, or else of the first block
    that has names, followed by samples that only later blocks have. A sample that a block lacks is a row of NaN. Rows
    without names are those of the samples, one after another.

    In memory is what `FeatureMatrix.read` is asked for; and of .npz, MATLAB files before version 7.3, CSV and Parquet
    the one matrix that was read last.

    Parameters
    ----------
    features
        What is understood, or `Features` that were taken before: they stay in their order, and `samples` names them.
    samples
        Names of the samples that are wanted, in this order.
    present
        For some blocks, by name, which samples have this source: (samples,) of booleans, in the order of the result.
        The others' rows are NaN.

    Returns
    -------
    Features
        Blocks of float32 (from booleans, integers to 16 bits and floats to 32) or float64 (from other real numbers).

    Raises
    ------
    InputError
        If a block is no matrix of real numbers, names of samples are not unique, blocks do not fit together, or a file
        is missing, damaged or of an unknown kind.
    """
    if isinstance(features, Features) and present is None:
        return features if samples is None else replace(features, samples=[str(name) for name in samples])
    gathered = from_files(features) if _are_paths(features) else from_memory(features)
    if not gathered.blocks:
        msg = "kernels are computed from at least one block of features (samples, columns), got none"
        raise InputError(msg)
    wanted = sample_names("samples", None if samples is None else np.asarray(samples).tolist())
    sources, natural = _named(gathered)
    order = natural if wanted is None else wanted
    n_rows = _common_length(sources, order)
    masks = _masks(present or {}, [block.name for block in sources], n_rows)
    blocks = {block.name: _aligned(block, order, masks.get(block.name), gathered.notes) for block in sources}
    found = [replace(item, read=partial(_of_samples, item, natural, order, gathered.notes)) for item in gathered.found]
    labels, _ = gather(found, KernelShape(len(blocks), n_rows, n_rows, order), gathered.notes)
    names = None if labels.samples is None else [str(name) for name in labels.samples]
    return Features(blocks, names, labels, gathered.notes)


def _are_paths(features: Any) -> bool:
    if isinstance(features, str | os.PathLike):
        return True
    return isinstance(features, list | tuple) and all(isinstance(path, str | os.PathLike) for path in features)


def _named(gathered: UnalignedFeatures) -> tuple[list[UnalignedMatrix], tuple[str, ...] | None]:
    """The blocks with names of samples found beside them, and the order of samples that follows from the names."""
    blocks = gathered.blocks
    beside = gathered.samples
    if beside is not None:
        for block in blocks:
            if block.samples is None:
                sample_names(f"features {block.name!r}", beside, block.shape[0])
        blocks = [replace(block, samples=beside) if block.samples is None else block for block in blocks]
        return blocks, beside
    named = [block.samples for block in blocks if block.samples is not None]
    return blocks, tuple(dict.fromkeys(name for names in named for name in names)) if named else None


def _common_length(blocks: Sequence[UnalignedMatrix], samples: tuple[str, ...] | None) -> int:
    """The number of samples, which is that of the rows of each block without names."""
    nameless = [block for block in blocks if block.samples is None]
    n_rows = nameless[0].shape[0] if samples is None else len(samples)
    for block in nameless:
        if block.shape[0] != n_rows:
            other = f"there are {n_rows} samples" if samples is not None else f"{blocks[0].name!r} have {n_rows} rows"
            msg = (
                f"features {block.name!r} have {block.shape[0]} rows, {other}; without names of samples rows belong "
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
    block: UnalignedMatrix, samples: tuple[str, ...] | None, mask: Mask | None, notes: list[str]
) -> FeatureMatrix:
    if block.samples is None or samples is None or block.samples == samples:
        order = np.arange(block.shape[0])
    else:
        order = pd.Index(block.samples, dtype=object).get_indexer(pd.Index(samples, dtype=object))
        lacking = int((order < 0).sum())
        if lacking == len(samples):
            msg = (
                f"features {block.name!r} have none of the {len(samples)} samples: their names begin with "
                f"{', '.join(map(repr, block.samples[:3]))}, expected are {', '.join(map(repr, samples[:3]))} …; use "
                "the same names, or leave this block out"
            )
            raise InputError(msg)
        if lacking:
            notes.append(f"features {block.name!r} lack {lacking} of the {len(samples)} samples")
        extra = block.shape[0] - (len(samples) - lacking)
        if extra:
            notes.append(f"features {block.name!r}: left out {extra} rows that are none of the samples")
    if mask is not None:
        order = np.where(mask, order, -1)
    # As they come, rows need no second array to be put in order.
    return block if np.array_equal(order, np.arange(block.shape[0])) else AlignedMatrix(block, order)


def _of_samples(
    item: SideData, natural: tuple[str, ...] | None, samples: tuple[str, ...] | None, notes: list[str]
) -> LabelTable:
    """What was found beside the features, its rows being the samples."""
    table = item.read()
    values = table.values
    names = natural if table.row_names is None else table.row_names
    if item.role == "tasks" or names is None or samples is None:
        return table
    if values.ndim == 2 and len(values) != len(names):
        values = values.T
    if len(values) != len(names):
        return table  # `gather` tells the lengths
    place = {name: row for row, name in enumerate(names)}
    missing = [name for name in samples if name not in place]
    if missing:
        msg = (
            f"{item.where} lacks {len(missing)} of the {len(samples)} samples, the first of them {missing[0]!r}; give "
            "each a value, or choose the samples (samples=[…])"
        )
        raise InputError(msg)
    if tuple(names) != samples:
        notes.append(f"{item.where} was put into the order of the samples, by name")
    return LabelTable(values[[place[name] for name in samples]], samples, table.columns)
