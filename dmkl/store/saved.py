"""Models and results on disk: Zarr groups of labeled arrays, replaced as a whole and checked when they are read."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xarray as xr
from zarr.codecs import Crc32cCodec, ZstdCodec

from dmkl._version import __version__
from dmkl.errors import (
    DmklError,
    FormatVersionError,
    IncompleteStoreError,
    StoreExistsError,
    StoreNotFoundError,
    damage,
)
from dmkl.files.urls import Place, Url, as_place, resolved
from dmkl.files.writing import lock, refuse_existing, remove_leftovers, replacing_path, reporting_full_disk
from dmkl.store.groups import consolidate, open_group, root_attributes, upload
from dmkl.variables import describe

# --- writing -------------------------------------------------------------------------------------------------------


def replace_group(path: Any, write: Callable[[Path], None], form: str, what: str, *, overwrite: bool) -> None:
    """Write a Zarr group under a temporary name and rename it, so that `path` is always the old or the new group.

    `write` writes it at the path of its argument. A group for a URL is written to a temporary folder first. Object
    stores cannot rename: the old group is removed before the new one is uploaded (see `dmkl.store.groups`).

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
            msg = f"{final} is not a {what}, and nothing else is replaced; choose another path, or move it away"
            raise StoreExistsError(msg)
        if isinstance(final, Url):
            with tempfile.TemporaryDirectory(prefix="dmkl-") as folder:
                written = Path(folder) / "written"
                with reporting_full_disk(folder, "Free some space, or choose another TMPDIR, and save it again"):
                    write(written)
                upload(written, final, {"format": form})
            return
        with replacing_path(final, "Free some space, or choose another path, and save it again") as written:
            write(written)


def save_dataset(path: Any, dataset: xr.Dataset, form: str, what: str, *, overwrite: bool) -> None:
    """Save labeled arrays as the Zarr group of a format, version 1; see `replace_group`."""
    attrs = {"format": form, "format_version": 1, "created_by": f"dmkl {__version__}", **dataset.attrs}

    def write(written: Path) -> None:
        write_dataset(dataset.assign_attrs(attrs), written, "w-", None)
        consolidate(written)

    replace_group(path, write, form, what, overwrite=overwrite)


def has_format(path: Place, form: str) -> bool:
    """Whether there is a Zarr group with this attribute "format" at `path`."""
    return root_attributes(path).get("format") == form


def write_dataset(dataset: xr.Dataset, path: Path, mode: Any, group: str | None) -> None:
    """Write labeled arrays as a Zarr group whose chunks carry checksums; `consolidate` does the same for its metadata.

    Their attributes come from the registry of `dmkl.variables`.
    """
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
        path,
        mode=mode,
        group=group,
        zarr_format=3,
        consolidated=False,
        encoding=encoding,
        write_empty_chunks=True,
    )


# --- reading -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Saved:
    """A model or a result on disk, or a part of one: a Zarr group whose metadata were checked."""

    path: Place
    """The folder of the model or the result."""
    group: Any = field(repr=False)
    within: str = ""
    """Path of the part in this folder."""

    @classmethod
    def open(cls, path: Any) -> Saved:
        """Open a model or a result.

        StoreNotFoundError is raised if there is nothing at the path, IncompleteStoreError if it was not written
        completely (at a URL), DamagedFileError or StoreError if it is damaged or no Zarr group.
        """
        final = as_place(path)
        with damage(f"{final} is not a model", but=DmklError):
            try:
                group = open_group(final)
            except FileNotFoundError as error:
                msg = f"there is no model at {final}"
                raise StoreNotFoundError(msg) from error
        if isinstance(final, Url) and group.attrs.get("complete") is False:
            msg = f"{final} is not finished: its writer was interrupted; write it again (overwrite=True, --overwrite)"
            raise IncompleteStoreError(msg)
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
        for name, array in self.group.arrays():
            if array.nchunks_initialized < array.nchunks:
                msg = f"{name} has missing values"
                raise ValueError(msg)
        with xr.open_dataset(xr.backends.ZarrStore(self.group, mode="r")) as opened:
            return opened.load()


def check_version(saved: Saved, newest: int, what: str) -> None:
    """Raise FormatVersionError if the attribute "format_version" is above `newest`."""
    version = saved.attrs.get("format_version", 0)
    if version > newest:
        msg = (
            f"{saved.place} has {what} format version {version}, and this dmkl reads up to {newest}; install a newer "
            "dmkl"
        )
        raise FormatVersionError(msg)
