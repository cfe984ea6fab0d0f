"""Feature tables in a kernel set or a model, as section 8 of storage/FORMAT.md has them, for kernels of new samples."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Self

import numpy as np
from zarr.abc.store import Store
from zarr.core.sync import sync

from dmkl.arrays import Array, Float, Index, Mask
from dmkl.errors import DmklError, StoreError, damage, refuse
from dmkl.files.plain import check_chunks
from dmkl.inputs.features import FeatureMatrix
from dmkl.numerics.determined import LabelColumns, TargetColumns
from dmkl.store.format import check_tables, create_array, write_array
from dmkl.store.tiles import root_version
from dmkl.store.zarr_groups import open_group

FEATURES = "features"

_STRIP_BYTES = 32 * 2**20
_CHUNK_COLUMNS = 1024
_CHUNK_BYTES = 2**20
_SMALL_BYTES = 4 * 2**20


@dataclass(frozen=True)
class FeatureTable:
    """A feature table that was scanned, read in parts by tasks."""

    name: str
    shape: tuple[int, int]
    dtype: np.dtype[Any]
    columns: tuple[str, ...] | None
    content: str  # a digest of the values
    center: Float  # the column means, (columns,), subtracted before distances are computed
    n_missing: int  # samples that lack the table; an upper bound for some rows of a table

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key not in ("_opened", "_whole", "computed")}

    @cached_property
    def computed(self) -> dict[Any, Any]:
        """Small values that were computed from the table, for the next prediction of a model that keeps it."""
        return {}

    @property
    def chunk_rows(self) -> int:
        """Rows that are read and unpacked together."""
        return 1

    def read(self, rows: slice | Index, columns: slice | Index | None = None) -> Array:
        """Some rows and columns; rows of NaN for samples that lack the table."""
        raise NotImplementedError

    def reopen(self) -> Self:
        """The same table opened again; StoreError if its values have changed."""
        return self


@dataclass(frozen=True)
class ArrayTable(FeatureTable):
    """A table in memory: `values` is an array (samples, columns)."""

    values: Array

    @classmethod
    def of(cls, name: str, values: Array, scanned: Scan) -> Self:
        """The table of these values, which were scanned."""
        columns, n_missing = scanned.table.columns, int(scanned.absent.sum())
        return cls(name, values.shape, values.dtype, columns, scanned.content, scanned.center, n_missing, values)

    def read(self, rows: slice | Index, columns: slice | Index | None = None) -> Array:
        return self.values[rows] if columns is None else self.values[rows][:, columns]


@dataclass(frozen=True)
class StoredTable(FeatureTable):
    """A table in a group of a Zarr store; its values are opened at the first read."""

    location: str | Store
    path: str

    @classmethod
    def open(cls, location: str | Store, path: str) -> Self:
        """Open the table in a group; StoreError if it is damaged."""
        with damage(f"the features {path} of {location} are damaged", "build the kernels again", but=DmklError):
            group = open_group(location)[path]
            values = group["values"]
            check_tables(values, group.get("column"), group["center"], f"{path} of {location}")
            names = group["column"][:] if "column" in group else None
            center: Float = np.asarray(group["center"][:], dtype=np.float64)
            name, content = str(group.attrs["name"]), str(group.attrs["content"])
            n_missing = int(group.attrs["n_missing"])
        columns = None if names is None else tuple(str(column) for column in names)
        return cls(name, values.shape, np.dtype(values.dtype), columns, content, center, n_missing, location, path)

    @property
    def _values(self) -> Any:
        """The array, opened again if the root of the store is another file than before; one `stat`."""
        version, state = root_version(self.location), vars(self)
        if "_opened" not in state or state["_opened"][0] != version:
            with damage(f"the features {self.name!r} are gone from {self.location}", "build the kernels again"):
                group = open_group(self.location)[self.path]
                content, values = group.attrs.get("content"), group["values"]
            if content != self.content:
                what = f"{self.location} holds other features {self.name!r} now than when it was opened"
                refuse(f"{what}; open the set again, and fit models again", kind=StoreError)
            state["_opened"] = version, values
        return state["_opened"][1]

    @property
    def chunk_rows(self) -> int:
        return int(self._values.chunks[0])

    @cached_property
    def _whole(self) -> Array | None:
        """All values of a small table: Zarr takes at least a millisecond for each part, however small."""
        if self.shape[0] * self.shape[1] * self.dtype.itemsize > _SMALL_BYTES:
            return None
        values = self._read_part(slice(None), None)
        values.flags.writeable = False
        return values

    def read(self, rows: slice | Index, columns: slice | Index | None = None) -> Array:
        if self._whole is None:
            return self._read_part(rows, columns)
        _ = self._values  # which refuses a store that was replaced
        return self._whole[rows] if columns is None else self._whole[rows][:, columns]

    def _read_part(self, rows: slice | Index, columns: slice | Index | None) -> Array:
        what, key = f"the features {self.name!r} in {self.location}", rows if columns is None else (rows, columns)
        with damage(f"{what} cannot be read", "build the kernels again"):
            check_chunks(self._values, key, what)
            values = np.asarray(self._values.oindex[rows, slice(None) if columns is None else columns])
        _ = self._values  # the store may have been replaced meanwhile
        # The fill value, which no stored table holds, shows a missing chunk: in one column of each chunk already.
        if np.isposinf(values[:, :: self._values.chunks[1]] if columns is None else values).any():
            refuse(f"a part of {what} is missing; build the kernels again", kind=StoreError)
        return values

    def reopen(self) -> Self:
        """A table in a folder whose root is unchanged stays, with the values that it has read."""
        table = replace(self) if root_version(self.location) is None else self
        _ = table._values
        return table


@dataclass(frozen=True)
class TableOfRows(FeatureTable):
    """Some rows of a table."""

    table: FeatureTable
    rows: Index

    @classmethod
    def of(cls, table: FeatureTable, rows: Index) -> Self:
        """The rows at some positions.

        The center is that of the whole table, so that kernels of its rows equal those of the whole to the last bit.
        """
        digest = hashlib.blake2b(rows.astype("<i8").tobytes(), digest_size=16).hexdigest()
        shape, content = (len(rows), table.shape[1]), f"{table.content}[{digest}]"
        return cls(table.name, shape, table.dtype, table.columns, content, table.center, table.n_missing, table, rows)

    def reopen(self) -> Self:
        return replace(self, table=self.table.reopen())

    def read(self, rows: slice | Index, columns: slice | Index | None = None) -> Array:
        return self.table.read(self.rows[rows], columns)


@dataclass(frozen=True)
class Scan:
    """A table with its digest, column means and missing samples, found by reading it once."""

    table: FeatureMatrix | FeatureTable
    content: str  # a digest of its values
    center: Float  # column means over the samples that have the table
    absent: Mask  # samples that lack it, (samples,)
    lowest: tuple[float, int, int]  # the smallest value, its row and its column
    highest: float  # the largest value


def scan(
    table: FeatureMatrix | FeatureTable,
    samples: Sequence[str] | Array | None,
    watching: Sequence[LabelColumns | TargetColumns] = (),
) -> Scan:
    """Read a table once, in strips, which `watching` receive; the values of a row must be finite, or NaN throughout."""
    rows, columns = table.shape
    names = None if samples is None else [str(sample) for sample in samples]
    digest = _digest(table)
    absent, total = np.zeros(rows, dtype=bool), np.zeros(columns)
    lowest, highest = (np.inf, 0, 0), -np.inf
    for strip in strips(table):
        values = table.read(strip)
        digest.update(np.ascontiguousarray(values).data)
        absent[strip] = check_rows(table.name, values, strip.start, names, table.columns)
        if values.dtype == np.float16:
            values = values.astype(np.float32)  # NumPy compares numbers in half precision one at a time
        for watcher in watching:
            watcher.take(strip, values)
        present = values if not absent[strip].any() else values[~absent[strip]]
        if len(present):
            total += present.sum(axis=0, dtype=np.float64)
            highest = max(highest, float(present.max()))
            i, k = np.unravel_index(int(present.argmin()), present.shape)
            if present[i, k] < lowest[0]:
                lowest = (float(present[i, k]), strip.start + int(np.flatnonzero(~absent[strip])[i]), int(k))
    return Scan(table, digest.hexdigest(), total / max(1, rows - int(absent.sum())), absent, lowest, highest)


def table_in_memory(
    name: str, values: Array, columns: tuple[str, ...] | None = None, center: Float | None = None
) -> ArrayTable:
    """A table of an array, by default with its own mean as the center."""
    bare = ArrayTable(name, values.shape, values.dtype, columns, "", np.zeros(values.shape[1]), 0, values)
    scanned = scan(bare, None)
    return ArrayTable.of(name, values, scanned if center is None else replace(scanned, center=center))


def _digest(table: FeatureMatrix | FeatureTable) -> Any:
    return hashlib.blake2b(f"{table.dtype.str} {table.shape[0]} {table.shape[1]}".encode(), digest_size=16)


def content_of(table: FeatureTable) -> str:
    """The digest of the values that a table has now."""
    digest = _digest(table)
    for strip in strips(table):
        digest.update(np.ascontiguousarray(table.read(strip)).data)
    return str(digest.hexdigest())


def check_rows(
    name: str, values: Array, first_row: int, samples: Sequence[str] | None, columns: Sequence[str] | None
) -> Mask:
    """Return the mask of the rows from `first_row` on that are NaN throughout; InputError if others are not finite."""
    bad = ~np.isfinite(values)
    if not bad.any():
        return np.zeros(len(values), dtype=bool)
    missing = np.asarray(np.isnan(values).all(axis=1))
    bad[missing] = False
    if bad.any():
        i, k = (int(position) for position in np.argwhere(bad)[0])
        row = first_row + i
        sample = f"row {row}" if samples is None else f"sample {samples[row]!r} (row {row})"
        column = str(k) if columns is None else f"{columns[k]!r} ({k})"
        if values.dtype == np.float16 and not np.isnan(values[i, k]):
            what = f"features {name!r}: {sample} is infinite or exceeds the largest float16, 65504, in column {column}"
            refuse(f"{what}; scale the features, or store them as float32 (dtype)")
        count = int(bad.any(axis=1).sum())
        those = f"{count} of the rows {first_row} to {first_row + len(values) - 1} {'is' if count == 1 else 'are'}"
        refuse(
            f"features {name!r}: {sample} is {values[i, k]} in column {column}; {those} NaN in part or infinite. A "
            "sample has finite values in all columns of a source, or NaN in all where it lacks the source: drop the "
            "sample, or let the transform impute what is missing (transform='impute', --transform impute)"
        )
    return missing


def strips(table: FeatureMatrix | FeatureTable, multiple: int = 1) -> Iterator[slice]:
    """Cut the rows of a table into parts of some megabytes."""
    rows, columns = table.shape
    side = max(1, _STRIP_BYTES // (columns * table.dtype.itemsize) // multiple) * multiple
    for start in range(0, rows, side):
        yield slice(start, min(start + side, rows))


def write_table(root: Any, number: int, scanned: Scan, chunk_rows: int | None) -> None:
    """Write a table into the group `features` of a kernel set or a model, unless it is there already.

    It is written in the precision of its dtype, in chunks of `chunk_rows`, the rows that a task reads at a time, or of
    about 1 MiB if None.
    """
    table, path, (rows, columns) = scanned.table, f"{FEATURES}/{number}", scanned.table.shape
    if chunk_rows is None:  # Zarr takes about a millisecond for each chunk
        chunk_rows = max(1, _CHUNK_BYTES // (min(columns, _CHUNK_COLUMNS) * table.dtype.itemsize))
    chunks = (min(rows, chunk_rows), min(columns, _CHUNK_COLUMNS))
    if _is_written(root, path, scanned, chunks):
        return
    # Folders rather than groups: a killed process may have left parts of them, and a power cut empty files.
    sync(root.store.delete_dir(f"{root.path}/{path}".lstrip("/")))
    try:
        group = root.require_group(FEATURES).create_group(str(number))
    except ValueError:
        sync(root.store.delete_dir(f"{root.path}/{FEATURES}".lstrip("/")))
        group = root.require_group(FEATURES).create_group(str(number))
    # NaN is a possible value, of a sample that lacks the table; infinity is not, and shows a missing chunk.
    create = partial(create_array, group, fill=np.inf, compressed=True)
    dims, dtype, meaning = ("sample", "feature"), table.dtype.name, "values of the features"
    values = create("values", table.shape, chunks, dtype, dims=dims, meaning=meaning)
    for strip in strips(table, chunks[0]):
        values[strip] = table.read(strip)
    meaning = "mean of the feature in training"
    center = create("center", (columns,), (columns,), "float64", dims=("feature",), meaning=meaning)
    center[:] = scanned.center
    if table.columns is not None:
        write_array(group, "column", np.array(table.columns, dtype=object), ("feature",), "names of the features")
    # The digest last: it marks the table as complete.
    group.update_attributes({"name": table.name, "n_missing": int(scanned.absent.sum()), "content": scanned.content})


def _is_written(root: Any, path: str, scanned: Scan, chunks: tuple[int, int]) -> bool:
    """Whether an earlier run has written this table, and its files are whole."""
    try:
        if root[path].attrs.get("content") != scanned.content:
            return False
        written = StoredTable.open(root.store, f"{root.path}/{path}".lstrip("/"))
        expected = (scanned.table.name, scanned.table.columns, chunks[0])
        same = (written.name, written.columns, written.chunk_rows) == expected
        return same and root[f"{path}/values"].chunks == chunks and content_of(written) == scanned.content
    except (DmklError, KeyError, ValueError):
        return False


def read_tables(location: str | Store, within: str = "") -> dict[str, FeatureTable]:
    """The feature tables of a kernel set, or of a model `within` the group, by name; empty if there are none."""
    path = f"{within}/{FEATURES}".lstrip("/")
    with damage(f"the features of {location} are damaged", "build the kernels again"):
        try:
            keys = sorted(open_group(location)[path].group_keys(), key=int)
        except (FileNotFoundError, KeyError):
            return {}
    tables = [StoredTable.open(location, f"{path}/{key}") for key in keys]
    return {table.name: table for table in tables}
