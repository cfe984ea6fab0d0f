"""Kernel sets in stores: create one, open one."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
from zarr.storage import MemoryStore

from dmkl.arrays import Array
from dmkl.errors import SampleOrderWarning, refuse, warn
from dmkl.inputs.kernels import JoinedSource, as_source
from dmkl.inputs.label_tables import given_data, matched
from dmkl.inputs.names import Join, sample_names
from dmkl.kernelset import KernelSet
from dmkl.numerics.spectrum import Repair
from dmkl.passes.blas import one_blas_thread
from dmkl.passes.view import View
from dmkl.store.groups import Location
from dmkl.store.ingest import ingest
from dmkl.store.reader import StoreReader

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["Kernels", "as_kernel_set", "create", "given_labels", "open"]

Kernels: TypeAlias = "KernelSet | xr.DataArray | Array | Sequence[Any] | Mapping[str, Any]"
"""A kernel set, or matrices in memory as `dmkl.create` takes them."""


def open(path: Location) -> KernelSet:
    """Open a stored kernel set; only its names and labels are read.

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
    if reader.kept:
        from dmkl.features.stored import FactorReader  # sets of tiles need no recipes

        reader = FactorReader(reader)
    _, n_rows, n_cols = reader.shape
    rows = np.arange(n_rows)
    view = View(reader, np.arange(reader.shape[0]), rows, rows if reader.symmetric else np.arange(n_cols))
    return KernelSet(view, labels=reader.labels, tasks=reader.tasks, splits=reader.splits, provenance=reader.provenance)


@one_blas_thread
def create(
    path: Location | None,
    kernels: Any,
    *,
    names: Sequence[str] | None = None,
    samples: Sequence[Any] | Array | None = None,
    labels: Any = None,
    splits: Any = None,
    join: Join = "exact",
    tile: int | None = None,
    dtype: npt.DTypeLike | None = None,
    train_samples: Sequence[Any] | Array | None = None,
    tasks: Sequence[Any] | Array | None = None,
    symmetric: bool | None = None,
    full: bool = False,
    diagonal: npt.ArrayLike | None = None,
    repair: Repair | None = None,
    symmetry_tol: float | None = None,
    symmetrize: bool = False,
    overwrite: bool = False,
) -> KernelSet:
    """Store kernel matrices as a kernel set, reading them one at a time and a tile at a time.

    After an interruption the same call continues with the first kernel that is not complete (matrices from a generator
    cannot be identified, and are imported again).

    Where kernels, labels and splits carry the names of their samples, these are matched by name: in the index and the
    columns of a data frame (unless they only count), in the coordinates of an xarray array, in an index or a column of
    names of labels and splits. The stored order is that of `samples`, or else of the first kernel with names, so that
    arrays without names in that order still fit. Without names, samples are matched by their position.

    Parameters
    ----------
    path
        Where to write: a folder, a URL or a Zarr store; None keeps the set in memory.
    kernels
        An array (n, m, m), an iterable of (m, m) arrays or data frames read one at a time, a mapping from names to
        such, a Dask array, a Zarr array, or an xarray array, with the kernels along the dimension "kernel" or the
        first; AnnData or MuData with kernels in ``obsp``. Rectangular kernels (n, rows, columns) are new
        samples against training samples.
    names
        The kernels' names, unique; ``kernel_0``, ``kernel_1`` … by default.
    samples, train_samples
        Names of the row and column samples, unique. If the kernels carry names, the samples to keep, in this order. By
        default the names of the kernels, or numbers from 0.
    labels
        (rows,) classes or numbers, or (rows, tasks) of 0 and 1 or of numbers, NaN where unknown; a data frame or an
        xarray array names the tasks too. A path is that of a file, FILE:NAME that of a column or array in it.
    splits
        (splits, rows): 0 train, 1 validation, 2 test, -1 in no part. A data frame has a column for each split. A path
        as for labels.
    join
        "exact": all kernels, labels and splits name the same samples, in any order. "inner": the samples that all have,
        and whose label is not missing. "outer": the samples of any kernel, for square ones. A sample that lacks a
        kernel gets the mean of the training samples that have it, in that kernel's feature space: the kernel stays
        positive semidefinite, and its row is zero after centering over the training samples, so that the sample is
        predicted from its other kernels. Training samples are those of the first split, or all.
    tile
        Side of a tile in samples; the setting ``dmkl.tile`` by default.
    dtype
        float32 or float64; by default that of `kernels` (float64 for integers). Kernels of mixed precision need it.
    tasks
        Names of the columns of `labels`, if there are several.
    symmetric
        Whether the kernels are symmetric; by default square kernels are.
    full
        Store both halves of symmetric kernels, for other programs.
    diagonal
        (n, rows), k(x, x) of the row samples of rectangular kernels: cosine normalization needs it.
    repair
        "clip", "flip" or "shift" negative eigenvalues of each kernel (see `dmkl.numerics.spectrum.repair_psd`);
        needs memory for one kernel.
    symmetry_tol
        Largest difference of mirrored entries, relative to the largest entry; 1e-5 for float32, 1e-8 for float64.
    symmetrize
        Store (K + Kᵀ)/2 of kernels whose mirrored entries differ; `provenance` records the largest difference.
    overwrite
        Replace a finished set; it stays until the new one is complete.

    Returns
    -------
    KernelSet
        The stored set, opened.

    Raises
    ------
    InputError
        If a kernel holds NaN or infinity, is not symmetric, or has another shape than the first; if names are not
        unique, hold control characters, or cannot be joined; if a length does not fit; if the entries of a kernel
        depend only on the classes of both samples. `path` is unchanged.
    StoreExistsError
        If there is a finished set at `path` and `overwrite` was not given.
    DiskFullError
        If the disk is full; the same call continues from there.

    Warns
    -----
    SampleOrderWarning
        If kernels, labels or splits without names are matched by position with samples that have names.
    """
    source = JoinedSource(
        as_source(kernels, names),
        join,
        samples=sample_names("samples", samples),
        train_samples=sample_names("train_samples", train_samples),
        given=given_data(labels=labels, splits=splits),
        symmetric=symmetric,
    )
    for note in source.order_notes:
        warn(note, SampleOrderWarning)
    if tasks is not None:
        source.labels.tasks = tasks
    written = ingest(
        MemoryStore() if path is None else path,
        source,
        source.labels,
        tile=tile,
        dtype=dtype,
        symmetric=symmetric,
        full=full,
        diagonal=None if diagonal is None else np.asarray(diagonal),
        repair=repair,
        symmetry_tol=symmetry_tol,
        symmetrize=symmetrize,
        overwrite=overwrite,
    )
    return open(written)


def as_kernel_set(K: Any, what: str, train_samples: Array | None = None) -> KernelSet:
    """Return a kernel set unchanged, and convert matrices as `dmkl.create` takes them to a set in memory.

    Parameters
    ----------
    train_samples
        The samples of the columns if the rows are new samples: columns with names are put in this order, and columns
        without names must be in it.

    Raises
    ------
    InputError
        If `K` is neither.
    """
    if isinstance(K, KernelSet):
        return K
    if K is None or isinstance(K, str | os.PathLike):
        refuse(
            f"{what} takes a kernel set, or matrices as dmkl.create takes them, got {type(K).__name__}; open a stored "
            "set with dmkl.open(path)"
        )
    if len(getattr(K, "shape", ())) == 2:
        of_features = "make kernels of its columns with dmkl.build, take dmkl.MKLClassifier or dmkl.MKLRegressor"
        refuse(
            f"{what} takes kernels (kernel, row, column), got a table of shape {K.shape}; "
            f"{of_features if train_samples is None else 'give features of new samples as features='}, or give a "
            "single kernel as [K]"
        )
    return create(None, K, symmetric=train_samples is None, train_samples=train_samples)


def given_labels(K: KernelSet, y: Any) -> tuple[Array | None, Array | None]:
    """Labels of the row samples and names of their tasks: those of `y`, matched by name, or the stored ones."""
    if y is None:
        return K.labels, K.tasks
    table = matched("y", y, K.samples, named=K.view.has_names, stored=K.labels)
    return table.values, None if table.columns is None else np.array(table.columns, dtype=object)
