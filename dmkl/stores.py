"""Kernel sets in stores: create one, open one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dmkl.arrays import Array
from dmkl.inputs.kernel_sources import as_source
from dmkl.inputs.labels import Labels
from dmkl.kernelset import KernelSet
from dmkl.numerics.psd import Repair
from dmkl.passes.view import View
from dmkl.store.ingest import ingest
from dmkl.store.reader import Location, StoreReader

__all__ = ["create", "open"]


def open(path: Location) -> KernelSet:
    """Open a stored kernel set; nothing but its labels is read.

    Parameters
    ----------
    path
        A folder, a URL or a Zarr store.

    Raises
    ------
    StoreNotFoundError, IncompleteStoreError, FormatVersionError, StoreError
        If there is no finished kernel set of a known format version.
    """
    reader = StoreReader(path)
    _, n_rows, n_cols = reader.shape
    rows = np.arange(n_rows)
    view = View(reader, np.arange(reader.shape[0]), rows, rows if reader.symmetric else np.arange(n_cols))
    return KernelSet(view, labels=reader.labels, tasks=reader.tasks, splits=reader.splits, provenance=reader.provenance)


def create(
    path: Location,
    kernels: Any,
    *,
    names: Sequence[str] | None = None,
    samples: Sequence[Any] | Array | None = None,
    labels: Sequence[Any] | Array | None = None,
    splits: Sequence[Any] | Array | None = None,
    tile: int | None = None,
    dtype: npt.DTypeLike | None = None,
    train_samples: Sequence[Any] | Array | None = None,
    tasks: Sequence[Any] | Array | None = None,
    symmetric: bool | None = None,
    full: bool = False,
    diagonal: npt.ArrayLike | None = None,
    repair: Repair | None = None,
    symmetry_tol: float | None = None,
    overwrite: bool = False,
) -> KernelSet:
    """Store kernel matrices as a kernel set, reading them one at a time and a tile at a time.

    Interrupted at any moment, the same call goes on with the first kernel that is not whole yet (matrices from a
    generator, which cannot be identified, are taken in anew).

    Parameters
    ----------
    path
        Where to write: a folder, a URL or a Zarr store.
    kernels
        An array (n, m, m), an iterable of (m, m) arrays read one at a time, a mapping from names to such arrays,
        a Dask array or a Zarr array. Rectangular kernels (n, rows, columns) are new samples against training samples.
    names
        The kernels' names, unique; ``kernel_0``, ``kernel_1`` … where missing.
    samples, train_samples
        Names of the row and column samples, unique; numbers where missing.
    labels
        (rows,) classes, or (rows, tasks) of 0 and 1.
    splits
        (splits, rows): 0 train, 1 validation, 2 test, -1 in no part.
    tile
        Side of a tile in samples; the setting ``dmkl.tile`` by default.
    dtype
        float32 or float64; by default that of `kernels` (float64 for integers). Kernels of mixed precision need it.
    tasks
        Names of the tasks of multilabel labels.
    symmetric
        Whether the kernels are symmetric; square ones are taken to be.
    full
        Store both halves of symmetric kernels, for readers other than dmkl.
    diagonal
        (n, rows), k(x, x) of the row samples of rectangular kernels: cosine normalization needs it.
    repair
        "clip", "flip" or "shift" negative eigenvalues of each kernel (see `dmkl.numerics.psd.repair_psd`); takes one
        kernel whole into memory.
    symmetry_tol
        How far two mirrored entries may differ, relative to the largest entry; 1e-5 for float32, 1e-8 for float64.
    overwrite
        Replace a finished set; it stays in its place until the new one is complete.

    Returns
    -------
    KernelSet
        The stored set, opened.

    Raises
    ------
    InputError
        If a kernel holds NaN or infinity, is not symmetric, or has another shape than the first; if names are
        not unique; if a length does not fit. What was at `path` is as it was.
    StoreExistsError
        If a finished set is there and `overwrite` was not given.
    DiskFullError
        If the disk ran full; the same call goes on from there.
    """
    written = ingest(
        path,
        as_source(kernels, names),
        Labels(samples, train_samples, labels, tasks, splits),
        tile=tile,
        dtype=dtype,
        symmetric=symmetric,
        full=full,
        diagonal=None if diagonal is None else np.asarray(diagonal),
        repair=repair,
        symmetry_tol=symmetry_tol,
        overwrite=overwrite,
    )
    return open(written)
