"""Results as labeled data: one class that saves, reads and shows them, whatever they are results of."""

from __future__ import annotations

import html
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import xarray as xr

from dmkl._version import __version__
from dmkl.errors import StoreError, refuse
from dmkl.store.groups import CHECKSUM, consolidate
from dmkl.store.saved import Saved, check_version, replace_group, write_dataset
from dmkl.variables import describe

READERS: dict[str, Callable[[Saved], Any]] = {}
"""Functions that read saved data, by the attribute "format"; `dmkl.load` looks here."""


class Result(ABC):
    """A result as labeled data, with a summary and a table.

    A subclass states its format, its title and its variables. Saving, reading and showing are the same for all.

    Parameters
    ----------
    data
        The labeled data, with the variables of `NEEDED` and the attribute n_passes.

    Raises
    ------
    InputError
        If a variable is missing.
    """

    FORMAT: ClassVar[str]
    """The attribute "format" of saved results."""
    FORMAT_VERSION: ClassVar[int] = 1
    TITLE: ClassVar[str]
    """The name of the result in messages."""
    NEEDED: ClassVar[tuple[str, ...]]
    """Variables that are always present."""
    MEANINGS: ClassVar[Mapping[str, str]] = {}
    """The attribute "long_name" of variables that are not described as in `dmkl.variables`; their units are 1."""

    def __init_subclass__(cls) -> None:
        if hasattr(cls, "FORMAT"):
            READERS[cls.FORMAT] = cls._read

    def __init__(self, data: xr.Dataset) -> None:
        missing = [name for name in self.NEEDED if name not in data]
        if missing:
            present = ", ".join(map(str, data.data_vars)) or "nothing"
            refuse(
                f"the data of a {self.TITLE} must have {', '.join(self.NEEDED)}, found {present}; dmkl.load reads such"
            )
        self._data = data.copy()
        self._data.attrs.setdefault("created_by", f"dmkl {__version__}")
        for name, variable in self._data.variables.items():
            if name in self.MEANINGS:
                variable.attrs.setdefault("long_name", self.MEANINGS[str(name)])
                if variable.dtype.kind in "iuf" and "flag_values" not in variable.attrs:
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

    # --- showing -----------------------------------------------------------------------------------------------------

    @abstractmethod
    def summary(self) -> str:
        """A few lines: the question, the answer, the cost."""

    def __repr__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        lines = "<br>".join(map(html.escape, self.summary().split("\n")))
        return f"<div>{lines}</div>{self._data._repr_html_()}"

    def _check_task(self, task: str | None) -> None:
        if task is not None and task not in (self.tasks or ()):
            present = "has no tasks" if self.tasks is None else f"has the tasks {', '.join(self.tasks[:10])}"
            refuse(f"there is no task {task!r}: this {self.TITLE} {present}; leave task out, or name one of them")

    # --- saving and reading ------------------------------------------------------------------------------------------

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
        check_version(saved, cls.FORMAT_VERSION, cls.TITLE)
        try:
            data = _read_dataset(saved)
            for name in ("format", "format_version"):
                data.attrs.pop(name)
            return cls._from_saved(data, saved)
        except (OSError, KeyError, ValueError, TypeError, RuntimeError) as error:
            msg = f"the {cls.TITLE} at {saved.place} is damaged ({error!r}); save it again"
            raise StoreError(msg) from error

    @classmethod
    def _from_saved(cls, data: xr.Dataset, saved: Saved) -> Self:
        """The result, from its data and from the other parts of the saved group."""
        return cls(data)


def _read_dataset(saved: Saved) -> xr.Dataset:
    """The labeled arrays of a result, with names as NumPy strings; raises as `Saved.dataset`."""
    stored = saved.dataset().drop_encoding()
    stored.attrs.pop(CHECKSUM, None)
    strings = {
        name: (variable.dims, variable.values.astype(object).astype(str), variable.attrs)
        for name, variable in stored.variables.items()
        if variable.dtype.kind in "OT"
    }
    return stored.assign(strings)


def task_dim(data: xr.Dataset) -> str | None:
    """The dimension of outputs that have separate choices, "task" or "target"; None for a single output."""
    return next((dim for dim in ("task", "target") if dim in data.dims), None)


def of_task(data: xr.Dataset, task: str | None) -> xr.Dataset:
    """The data of one task or target; all data if None."""
    return data if task is None else data.sel({task_dim(data): task})
