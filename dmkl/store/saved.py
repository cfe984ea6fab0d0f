"""Models and results on disk: Zarr groups of labeled arrays, replaced as a whole and checked when they are read."""

from __future__ import annotations

import json
import math
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, ClassVar, Self

import xarray as xr
from zarr.codecs import Crc32cCodec, ZstdCodec

from dmkl._version import version
from dmkl.arrays import n_bytes
from dmkl.description import Description
from dmkl.errors import DmklError, IncompleteStoreError, StoreError, StoreNotFoundError, damage, refuse
from dmkl.files.plain import TEXT_BYTES, check_chunks
from dmkl.files.urls import Place, Url, as_place, resolved
from dmkl.files.writing import current, lock, refuse_existing, remove_leftovers, replacing_path, reporting_full_disk
from dmkl.settings import check_memory
from dmkl.store.zarr_groups import CHECKSUM, check_version, consolidate, open_group, put, root_attributes
from dmkl.variables import describe


def replace_group(path: Any, write: Callable[[Path], None], form: str, what: str, *, overwrite: bool) -> None:
    """Write a Zarr group under a temporary name and rename it, so that `path` is always the old or the new group.

    `write` writes it at the path of its argument. A group for a URL is written to a temporary folder first. Object
    stores cannot rename: the old group is removed before the new one is uploaded (see `dmkl.store.zarr_groups`).

    StoreExistsError is raised if something is at `path` and `overwrite` is false, or its attribute "format" is not
    `form`; LockedError if another process writes there; DiskFullError if the disk is full.
    """
    final = resolved(path)
    with lock(final):
        if isinstance(final, Path):
            remove_leftovers(final)
        if final.exists() and not overwrite:
            refuse_existing(final)
        if final.exists() and not has_format(final, form):
            refuse_existing(final, what)
        if isinstance(final, Url):
            with tempfile.TemporaryDirectory(prefix="dmkl-") as folder:
                written = Path(folder) / "written"
                with reporting_full_disk(folder, "Free some space, or choose another TMPDIR, and save it again"):
                    write(written)
                put(written, final, {"format": form})
            return
        with replacing_path(final, "Free some space, or choose another path, and save it again") as written:
            write(written)


def save_dataset(path: Any, dataset: xr.Dataset, form: str, what: str, *, overwrite: bool) -> None:
    """Save labeled arrays as the Zarr group of a format, version 1; see `replace_group`."""
    attrs = {"format": form, "format_version": 1, "created_by": f"dmkl {version()}", **dataset.attrs}

    def write(written: Path) -> None:
        write_dataset(dataset.assign_attrs(attrs), written, "w-", None)
        consolidate(written)

    replace_group(path, write, form, what, overwrite=overwrite)


def has_format(path: Place, form: str) -> bool:
    """Whether there is a Zarr group with this attribute "format" at `path`."""
    return root_attributes(path).get("format") == form


def write_dataset(dataset: xr.Dataset, path: Path, mode: Any, group: str | None) -> None:
    """Write labeled arrays as a Zarr group whose chunks carry checksums, with the attributes of `dmkl.variables`."""
    dataset = describe(dataset.copy())
    # Variable-length strings: Zarr warns that fixed-length ones are not part of the specification of v3.
    plain = dataset.assign(
        {
            name: (variable.dims, variable.values.astype(object), variable.attrs)
            for name, variable in dataset.variables.items()
            if variable.dtype.kind == "U"
        }
    )
    encoding = {name: {"compressors": [ZstdCodec(), Crc32cCodec()]} for name in plain.variables}
    # Chunks of fill values are written too, so that a missing chunk is known as damage.
    plain.to_zarr(
        path, mode=mode, group=group, zarr_format=3, consolidated=False, encoding=encoding, write_empty_chunks=True
    )


@dataclass(frozen=True)
class Saved:
    """A model or a result on disk, or a part of one: a Zarr group whose metadata were checked."""

    path: Place  # the folder of the model or the result
    group: Any = field(repr=False)
    within: str = ""  # path of the part in this folder

    @classmethod
    def open(cls, path: Any) -> Saved:
        """Open a model or a result.

        StoreNotFoundError is raised if there is nothing at the path, IncompleteStoreError if it was not written
        completely (at a URL), DamagedFileError or StoreError if it is damaged or no Zarr group.
        """
        final = as_place(path)
        final = current(final) if isinstance(final, Path) else final
        with damage(f"{final} is not a model", but=DmklError):
            try:
                group = open_group(final)
            except FileNotFoundError as error:
                if final.is_file():
                    raise
                refuse(f"there is no model at {final}", error, StoreNotFoundError)
        if isinstance(final, Url) and group.attrs.get("complete") is False:
            what = f"{final} is not finished: its writer was interrupted"
            refuse(f"{what}; write it again (overwrite=True, --overwrite)", kind=IncompleteStoreError)
        return cls(final, group)

    @property
    def place(self) -> Place:
        """The folder of the part, for messages."""
        return self.path / self.within if self.within else self.path

    @property
    def attrs(self) -> dict[str, Any]:
        """Attributes of the group."""
        return dict(self.group.attrs)

    def part(self, name: str) -> Saved:
        """A group in it; KeyError if there is none."""
        return Saved(self.path, self.group[name], f"{self.within}/{name}".lstrip("/"))

    def dataset(self) -> xr.Dataset:
        """Read the labeled arrays of the group; ValueError or RuntimeError if a chunk is missing or damaged."""
        arrays = dict(self.group.arrays())
        sizes = (
            (array, TEXT_BYTES if array.dtype.kind in "OTU" else array.dtype.itemsize) for array in arrays.values()
        )
        needed_bytes = sum(max(n_bytes(array.shape, size), n_bytes(array.chunks, size)) for array, size in sizes)
        check_memory(str(self.place), needed_bytes, "it is damaged, or allow more")
        for name, array in arrays.items():
            check_chunks(array, (slice(None),) * array.ndim, f"{name} of {self.place}")
            if array.nchunks_initialized < array.nchunks:
                msg = f"{name} has missing values"
                raise ValueError(msg)
        with xr.open_dataset(xr.backends.ZarrStore(self.group, mode="r")) as opened:
            return opened.load()


def unreadable(saved: Saved, what: str, error: Exception) -> StoreError:
    """The exception for a model or a result of which a part cannot be read: damage, or what a newer dmkl has added."""
    here, writer = f"dmkl {version()}", str(saved.attrs.get("created_by"))
    if writer == here:
        return StoreError(f"the {what} at {saved.place} is damaged ({error!r}); save it again")
    return StoreError(
        f"the {what} at {saved.place} is damaged, or of a newer dmkl ({error!r}): {writer!r:.60} wrote it, and this is "
        f"{here}; install a newer dmkl, or save it again"
    )


READERS: dict[str, Callable[[Saved], Any]] = {}
"""Functions that read saved data, by the attribute "format"; `dmkl.load` looks here."""


class Result(ABC):
    """A result as labeled data, with a summary and a table: saving, reading and showing are the same for all.

    A subclass states its format, its title and its variables. InputError is raised if the data lack a variable.
    """

    FORMAT: ClassVar[str]  # the attribute "format" of saved results
    FORMAT_VERSION: ClassVar[int] = 1
    TITLE: ClassVar[str]  # the name of the result in messages
    NEEDED: ClassVar[tuple[str, ...]]  # variables that are always present
    NEEDED_ATTRIBUTES: ClassVar[tuple[str, ...]] = ("n_passes",)  # attributes that are always present
    MEANINGS: ClassVar[Mapping[str, str]] = {}
    """The attribute "long_name" of variables that are not described as in `dmkl.variables`; their units are 1."""

    def __init_subclass__(cls) -> None:
        if hasattr(cls, "FORMAT"):
            READERS[cls.FORMAT] = cls._read

    def __init__(self, data: xr.Dataset) -> None:
        missing = [name for name in self.NEEDED if name not in data]
        if missing:
            present = ", ".join(map(str, data.data_vars)) or "nothing"
            rule = f"the data of a {self.TITLE} must have {', '.join(self.NEEDED)}"
            refuse(f"{rule}, found {present}; dmkl.load reads such")
        self._data = data.copy()
        self._data.attrs.setdefault("created_by", f"dmkl {version()}")
        self._data.attrs.setdefault("created_on", date.today().isoformat())
        for name, variable in self._data.variables.items():
            if name in self.MEANINGS:
                variable.attrs.setdefault("long_name", self.MEANINGS[str(name)])
                if variable.dtype.kind in "iuf":
                    variable.attrs.setdefault("units", "1")
        describe(self._data)

    @property
    def data(self) -> xr.Dataset:
        """All variables and attributes of the result."""
        return self._data

    @property
    def tasks(self) -> tuple[str, ...] | None:
        """Names of the tasks of a multilabel problem, or of several targets of a regression; None otherwise."""
        dim = task_dim(self._data)
        return None if dim is None else tuple(map(str, self._data[dim].values))

    @property
    def n_passes_(self) -> float:
        """Passes over the stored kernels. An incomplete pass counts by the share of the tiles that it reads."""
        return float(self._data.attrs["n_passes"])

    @abstractmethod
    def describe(self) -> Description:
        """The question, the answer and the cost in sentences by key."""

    def summary(self) -> str:
        """A few lines: the question, the answer, the cost."""
        return str(self.describe())

    def __repr__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        return f"{self.describe()._repr_html_()}{self._data._repr_html_()}"

    def _check_task(self, task: str | None) -> None:
        if task is not None and task not in (self.tasks or ()):
            present = "has no tasks" if self.tasks is None else f"has the tasks {', '.join(self.tasks[:10])}"
            refuse(f"there is no task {task!r}: this {self.TITLE} {present}; leave task out, or name one of them")

    def save(self, path: Any, *, overwrite: bool = False) -> None:
        """Write the result as a Zarr group with JSON attributes, without pickles.

        `dmkl.load` reads it, and ``xarray.open_zarr`` reads its data.

        Raises
        ------
        StoreExistsError
            If something is at `path`, and `overwrite` is false or it is a file of another kind.
        """
        replace_group(path, self._write, self.FORMAT, self.TITLE, overwrite=overwrite)

    def _write(self, path: Path) -> None:
        """Write the result at a path where nothing is."""
        write_dataset(self._data.assign_attrs(self._saved_attrs()), path, "a", None)
        consolidate(path)

    def _saved_attrs(self) -> dict[str, Any]:
        """Attributes of a saved result, in addition to those of the data."""
        return {"format": self.FORMAT, "format_version": self.FORMAT_VERSION}

    @classmethod
    def _read(cls, saved: Saved) -> Self:
        check_version(saved.attrs, saved.place, cls.FORMAT_VERSION, cls.TITLE)
        try:
            data = saved.dataset().drop_encoding()
            for name in ("format", "format_version"):
                data.attrs.pop(name)
            data.attrs.pop(CHECKSUM, None)
            data.attrs.setdefault("created_on", "")  # earlier versions did not keep the day
            _check_attributes(data.attrs, cls.NEEDED_ATTRIBUTES)
            strings = {  # names are NumPy strings
                name: (variable.dims, variable.values.astype(object).astype(str), variable.attrs)
                for name, variable in data.variables.items()
                if variable.dtype.kind in "OT"
            }
            return cls._from_saved(data.assign(strings), saved)
        except (OSError, KeyError, ValueError, TypeError, RuntimeError) as error:
            raise unreadable(saved, cls.TITLE, error) from error

    @classmethod
    def _from_saved(cls, data: xr.Dataset, saved: Saved) -> Self:
        """The result, from its data and from the other parts of the saved group."""
        return cls(data)


_TEXTS = {"estimator", "scoring", "kind", "choice", "solver", "created_by", "splitter", "steps", "method", "rows"}
_TEXTS |= {"choose", "permuted", "default_price", "hint", "asked", "parameters", "parameters_searched"}
_TEXTS |= {"how", "parameters_by_class", "measures", "set", "created_on"}
_OBJECTS, _LISTS = {"asked", "parameters"}, {"parameters_searched", "parameters_by_class", "measures"}
_NUMBERS = {"seconds", "threshold", "centered", "bandwidths_from_all_samples", "largest_gap", "has_model"}
_NUMBERS |= {"covariates", "folds_without_a_class"}
"""Names of attributes of results that are texts, texts of JSON objects and lists, and numbers, as those in n_."""


def _check_attributes(attrs: Mapping[str, Any], needed: Sequence[str]) -> None:
    """Refuse attributes of a result that are missing or of another type, by ValueError."""
    if missing := [name for name in needed if name not in attrs]:
        refuse(f"it lacks the attributes {', '.join(missing)}")
    for name, value in attrs.items():
        form = "a text" if name in _TEXTS else "a number" if name in _NUMBERS or name.startswith("n_") else ""
        is_number = isinstance(value, int | float) and (math.isfinite(value) or name == "largest_gap")
        is_so = isinstance(value, str) if form == "a text" else is_number or not form
        if is_so and name in _OBJECTS | _LISTS:
            form = "a JSON object" if name in _OBJECTS else "a JSON list"
            is_so = isinstance(json.loads(value), dict if name in _OBJECTS else list)
        if not is_so:
            refuse(f"its attribute {name} must be {form}, got {value!r:.60}")


def task_dim(data: xr.Dataset) -> str | None:
    """The dimension of outputs that have separate choices, "task" or "target"; None for a single output."""
    return next((dim for dim in ("task", "target") if dim in data.dims), None)


def of_task(data: xr.Dataset, task: str | None) -> xr.Dataset:
    """The data of one task or target; all data if None."""
    return data if task is None else data.sel({task_dim(data): task})
