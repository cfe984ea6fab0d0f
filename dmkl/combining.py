"""One kernel set of the kernels of several: samples are matched by name, and stored tiles are linked, not read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from dmkl.arrays import Array, Lazy, Matrix
from dmkl.errors import SampleOrderWarning, refuse, warn
from dmkl.inputs.kernels import KernelSource
from dmkl.inputs.labels import OF_SAMPLES, LabelTable, SideData
from dmkl.kernelset import KernelSet
from dmkl.kernelset import open as open_set
from dmkl.names import Join, Named, Names, places
from dmkl.passes.blas import one_blas_thread
from dmkl.passes.elements import raw_block
from dmkl.passes.view import View
from dmkl.store.features import StoredTable, read_tables
from dmkl.store.format import kept_as_factors
from dmkl.store.ingest import ingest
from dmkl.store.reader import StoreReader
from dmkl.store.writer import StoreWriter
from dmkl.store.zarr_groups import Location

_FACTS = ("n_missing", "repair", "indefinite", "mirrored", "symmetrized")
"""Fields of the record of a kernel besides its recipe."""


@one_blas_thread
def combine(
    path: Location,
    *sets: KernelSet | Location,
    names: Sequence[str] | None = None,
    join: Join = "exact",
    overwrite: bool = False,
) -> KernelSet:
    """Store the kernels of several sets as one set, samples matched by name.

    Tiles of kernels whose samples are in the order of the new set are hard-linked where the file system can, or else
    copied; other kernels are read once. After an interruption the same call resumes. Features of a set, from which
    kernels of new samples are computed, are taken over if its samples are in the order of the new set and no set
    before it has features of the same name and other values; kernels kept as factors stay so if all kernels have
    features.

    Parameters
    ----------
    path
        Where to write: a folder, a URL or a Zarr store. It may be that of one of the sets, with `overwrite`.
    *sets
        Stored sets, or some of their kernels (`KernelSet.select`), all square or all of new samples against training
        samples. The order of samples is that of the first.
    names
        New names of all kernels; by default they keep theirs, which must be unique.
    join
        As in `dmkl.create`: "exact", "inner" or "outer".
    overwrite
        Replace a finished set at `path`; it stays until the new one is complete.

    Returns
    -------
    KernelSet
        The stored set, opened, with the labels and splits of the sets.

    Raises
    ------
    InputError
        If samples cannot be joined, names of kernels are not unique, labels or splits of two sets differ, or a set is
        not stored, has steps, or only some of its samples.
    StoreExistsError
        If there is a finished set at `path` and `overwrite` was not given.

    Warns
    -----
    SampleOrderWarning
        If the samples of one set have no names and those of another have.
    """
    if not sets or path is None:
        refuse("combine() takes a path and one or more sets; K.join(...) reads sets where they are, and writes none")
    opened = [K if isinstance(K, KernelSet) else open_set(K) for K in sets]
    stored: list[tuple[KernelSet, StoreReader]] = []
    for K in opened:
        view, reader = K.view, K.view.source
        whole = np.arange(reader.tiling.rows), np.arange(reader.tiling.cols)
        is_whole = not view.steps and all(map(np.array_equal, (view.rows, view.cols), whole))
        if not isinstance(reader, StoreReader) or not is_whole or K.is_square != opened[0].is_square:
            refuse(
                "combine() takes stored sets with all of their samples in their order and without steps, all square "
                f"or all of new samples, found {K!r}; give it paths, or what dmkl.open returns and select() of it"
            )
        stored.append((K, reader))
    source, symmetric = _StoredKernels(stored, names), opened[0].is_square
    source.join(join, read_data=source.side_data, symmetric=symmetric)
    for note in source.order_notes:
        warn(note, SampleOrderWarning)
    if not symmetric:
        diagonals = [_diagonal(K, source.samples) for K in opened]
        with_all = all(diagonal is not None for diagonal in diagonals)
        source.labels.diagonal = np.concatenate(diagonals) if with_all else None  # type: ignore[arg-type]
    source.choose_features(source.samples)
    ingest(
        path,
        source,
        source.labels,
        tile=stored[0][1].tiling.tile,
        symmetric=symmetric,
        full=all(reader.full for _, reader in stored),
        overwrite=overwrite,
    )
    return open_set(path)


def _diagonal(K: KernelSet, samples: Names) -> Array | None:
    """k(x, x) of new samples, (kernel, sample), in the order of the samples; None if the set has none."""
    values = K.view.source.diagonal(K.view.kernels)
    if values is None or samples is None or not K.view.has_names:
        return values
    return values[:, places(tuple(map(str, K.samples)), samples)]


class _StoredKernels(KernelSource):
    def __init__(self, sets: Sequence[tuple[KernelSet, StoreReader]], names: Sequence[str] | None) -> None:
        self.sets, self.parts = sets, [(K, reader, k) for K, reader in sets for k in range(len(K))]
        self.names = [K.names[k] for K, _, k in self.parts] if names is None else list(map(str, names))
        self.n_kernels = len(self.parts)
        if len(self.names) != self.n_kernels:
            refuse(f"names= has {len(self.names)} names, expected one for each of the {self.n_kernels} kernels")
        self.axes = [axes for K, reader in sets for axes in [_axes_of(K, reader)] * len(K)]
        self.side_data = [item for role in OF_SAMPLES for item in _side_data(sets, role)]
        self.records: list[dict[str, Any]] = []

    def choose_features(self, samples: Names) -> None:
        """Choose the tables and the records that the new set, with these samples, takes over."""
        self.tables: dict[str, StoredTable] = {}
        for K, reader in self.sets:
            same = samples is None or not K.view.has_names or list(samples) == list(map(str, K.samples))
            tables: Any = read_tables(reader.location) if same and K.is_square else {}
            same &= all(self.tables.get(name, table).content == table.content for name, table in tables.items())
            self.tables |= tables if same else {}
            taken = (lambda key: key not in ("name", "identity")) if same else _FACTS.__contains__
            for record in K.provenance:
                self.records.append({key: value for key, value in record.items() if taken(key)})
                origin = record.get("origin", record.get("identity"))
                if origin is not None and "function" not in record:
                    self.records[-1]["origin"] = origin
        # Tiles of all kernels, if one has no features or another type.
        if any("function" not in record for record in self.records) or len(set(self.dtypes())) > 1:
            for record in self.records:
                record.pop("storage", None)
        self.kept = kept_as_factors(self.records)
        self.n_kept = len(self.kept)

    def begin(self, writer: StoreWriter) -> None:
        writer.copy_features(list(self.tables.values()))
        writer.keep_factors({j: self.records[j] | {"identity": self.identity(j)} for j in self.kept})

    def record(self, j: int) -> dict[str, Any]:
        """See `KernelSource`: that of another order holds positions of samples, but for the origin."""
        record = self.records[j]
        return record if self.is_in_order(j) else {key: value for key, value in record.items() if key == "origin"}

    def link(self, writer: StoreWriter, j: int, provenance: dict[str, Any], diagonal: Array | None) -> bool:
        """See `KernelSource`: no kernel is linked whose samples are in another order."""
        if not self.is_in_order(j):
            return False
        K, reader, k = self.parts[j]
        return j in self.kept or writer.link_kernel(j, provenance, reader, int(K.view.kernels[k]), diagonal)

    def unordered(self) -> Iterator[Matrix]:
        for K, _, k in self.parts:
            yield Lazy(K.shape[1:], K.dtype, partial(_entries, K.view, int(K.view.kernels[k])))

    def dtypes(self) -> list[np.dtype[Any]]:
        return [K.dtype for K, _, _ in self.parts]

    def content(self, j: int) -> dict[str, Any]:
        K, _, k = self.parts[j]
        return {"set": K.content_id, "kernel": K.names[k], "features": "function" in self.records[j]}


def _entries(view: View, kernel: int, key: tuple[slice, slice]) -> Array:
    """A part of a stored kernel, by its position in the set."""
    return raw_block(view, kernel, view.rows[key[0]], view.cols[key[1]])


def _axes_of(K: KernelSet, reader: StoreReader) -> Named:
    """The names of the rows and columns of the kernels of a set, without those that only count."""
    rows, columns = (tuple(map(str, names)) for names in (K.samples, K.train_samples))
    counted = [names == tuple(map(str, range(len(names)))) for names in (rows, columns)]
    numbers = [rows] if counted[0] else []
    of_columns = None if K.is_square or counted[1] else columns
    return Named(str(reader.location), None if numbers else rows, numbers, of_columns, K.is_square)


def _side_data(sets: Sequence[tuple[KernelSet, StoreReader]], role: str) -> list[SideData]:
    """The labels or splits of the samples of all sets, each by name; InputError if those of two sets differ."""
    named, values = next((K for K, _ in sets if K.view.has_names), None), dict[str, Any]()
    labeled = [(K, reader) for K, reader in sets if getattr(K, role) is not None]
    columns = dict.fromkeys(None if K.tasks is None else tuple(K.tasks) for K, _ in labeled)
    for K, reader in labeled:
        names = K.samples if named is None or K.view.has_names else named.samples
        rows = getattr(K, role) if role == "labels" else getattr(K, role).T
        for name, value in zip(map(str, names), rows, strict=False):
            other = values.setdefault(name, value)
            if len(columns) > 1 or not np.array_equal(*np.array([other, value], dtype=str)):
                refuse(
                    f"the {role} of the sets must agree, and sample {name!r} has {value} in {reader.location} and "
                    f"{other} in another; take {role} from one set: write the others without, or with the same"
                )
    table = LabelTable(np.array([*values.values()]), tuple(values) if named else None, next(iter(columns), None))
    return [SideData(role, f"{role} of the sets", lambda _: table)] if values else []
