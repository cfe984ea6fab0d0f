"""What an inference found: labeled data with a summary, which is saved, read back and shown in notebooks."""

from __future__ import annotations

import html
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import xarray as xr

from dmkl._version import __version__
from dmkl.errors import InputError, StoreError
from dmkl.estimators.saving import READERS
from dmkl.searching.labeled import read_dataset
from dmkl.store.groups import consolidate
from dmkl.store.saved import Saved, check_version, replace_group, write_dataset
from dmkl.variables import describe

__all__ = ["Finding"]


class Finding(ABC):
    """What an inference found, as labeled data.

    A kind of finding says what it is called and what its variables mean; saving, reading and showing are the same for
    all, and `dmkl.load` knows each kind by its format.

    Parameters
    ----------
    data
        With the variables that the kind needs, and the attribute n_passes.

    Raises
    ------
    InputError
        If a variable is missing.
    """

    FORMAT: ClassVar[str]
    """The attribute "format" of what is saved."""
    FORMAT_VERSION: ClassVar[int] = 1
    TITLE: ClassVar[str]
    """What it is called in messages."""
    NEEDED: ClassVar[tuple[str, ...]]
    """Variables that there always are."""
    MEANINGS: ClassVar[Mapping[str, str]]
    """The attribute "long_name" of each variable; all of them are without dimension, of units 1."""

    def __init_subclass__(cls) -> None:
        READERS[cls.FORMAT] = partial(_read, cls)

    def __init__(self, data: xr.Dataset) -> None:
        missing = [name for name in self.NEEDED if name not in data]
        if missing:
            found = ", ".join(map(str, data.data_vars)) or "nothing"
            msg = f"the data of a {self.TITLE} must have {', '.join(self.NEEDED)}, found {found}; dmkl.load reads such"
            raise InputError(msg)
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
        """All that was found."""
        return self._data

    @property
    def n_passes_(self) -> float:
        """Passes over the stored kernels that all of it took."""
        return float(self._data.attrs["n_passes"])

    @abstractmethod
    def summary(self) -> str:
        """A few lines: what was asked, the answer, what it took."""

    def __repr__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        lines = "<br>".join(map(html.escape, self.summary().split("\n")))
        return f"<div>{lines}</div>{self._data._repr_html_()}"

    def save(self, path: Any, *, overwrite: bool = False) -> None:
        """Write it as a Zarr group with JSON attributes: no pickle.

        `dmkl.load` reads it, and ``xarray.open_zarr`` its data.

        Raises
        ------
        StoreExistsError
            If something is at `path` and `overwrite` was not given, or it is of another kind.
        """
        replace_group(path, self._write, self.FORMAT, self.TITLE, overwrite=overwrite)

    def _write(self, path: Path) -> None:
        own = {"format": self.FORMAT, "format_version": self.FORMAT_VERSION}
        write_dataset(self._data.assign_attrs(own), path, "a", None)
        consolidate(path)


def _read(kind: type[Finding], saved: Saved) -> Finding:
    check_version(saved, kind.FORMAT_VERSION, kind.TITLE)
    try:
        data = read_dataset(saved)
        for name in ("format", "format_version"):
            data.attrs.pop(name)
        return kind(data)
    except (OSError, KeyError, ValueError, TypeError, RuntimeError) as error:
        msg = f"the {kind.TITLE} at {saved.place} is damaged ({error!r}); save it again"
        raise StoreError(msg) from error
