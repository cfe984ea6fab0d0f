"""Models and results on disk: folders of labeled arrays that are put in place whole, and checked as they are read."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xarray as xr
import zarr
from zarr.codecs import Crc32cCodec, ZstdCodec

from dmkl.errors import (
    DmklError,
    FormatVersionError,
    IncompleteStoreError,
    StoreError,
    StoreExistsError,
    StoreNotFoundError,
)
from dmkl.files.locks import claim, confirm
from dmkl.files.urls import Place, Url, as_place, resolved
from dmkl.files.writing import beside, clear_beside, full_disk
from dmkl.store.metadata import is_sealed, open_group
from dmkl.store.objects import root_attributes, upload, zarr_store
from dmkl.variables import describe

__all__ = ["Saved", "check_version", "has_format", "put_in_place", "write_dataset"]


# --- writing -------------------------------------------------------------------------------------------------------


def put_in_place(path: Any, write: Callable[[Path], None], form: str, what: str, *, overwrite: bool) -> None:
    """Write beside `path` and rename, so that what is there is whole, the old or the new.

    What goes to a URL is written to a temporary folder first; there is no renaming in an object store, where the old is
    removed before the new is put there (see `dmkl.store.objects`).

    Parameters
    ----------
    write
        Writes a Zarr group at the path that it is given.
    form
        The attribute "format" of what may be replaced.
    what
        Its name in messages.

    Raises
    ------
    StoreExistsError
        If something is at `path` and `overwrite` was not given, or it is of another format.
    LockedError
        If another process writes there, or has taken the path over meanwhile.
    DiskFullError
        If the disk ran full.
    """
    final = resolved(path)
    with claim(final):
        if isinstance(final, Path):
            clear_beside(final)
        _refuse_in_the_way(final, form, what, overwrite=overwrite)
        if isinstance(final, Url):
            with tempfile.TemporaryDirectory(prefix="dmkl-") as folder:
                written = Path(folder) / "written"
                with full_disk(folder, "Free some space, or choose another TMPDIR, and save it again"):
                    write(written)
                confirm(final)
                upload(written, final, {"format": form})
        else:
            _put_in_place(final, write)


def _refuse_in_the_way(final: Place, form: str, what: str, *, overwrite: bool) -> None:
    if final.exists():
        if not overwrite:
            msg = (
                f"{final} exists already; choose another path, or ask for it to be replaced (overwrite=True, "
                "--overwrite)"
            )
            raise StoreExistsError(msg)
        if not has_format(final, form):
            msg = f"{final} is not a {what}, and nothing else is replaced; choose another path, or move it away"
            raise StoreExistsError(msg)


def _put_in_place(final: Path, write: Callable[[Path], None]) -> None:
    written, replaced = beside(final), beside(final, "replaced")
    try:
        with full_disk(final, "Free some space, or choose another place, and save it again"):
            write(written)
        confirm(final)
    except BaseException:
        shutil.rmtree(written, ignore_errors=True)
        raise
    if final.exists():
        final.rename(replaced)
    written.rename(final)
    shutil.rmtree(replaced, ignore_errors=True)


def has_format(path: Place, form: str) -> bool:
    """Whether there is a Zarr group at `path` whose attribute "format" is this."""
    if isinstance(path, Url):
        return root_attributes(path).get("format") == form
    try:
        return zarr.open_group(zarr_store(path), mode="r", zarr_format=3).attrs.get("format") == form
    except (OSError, ValueError, KeyError, TypeError):
        return False


def write_dataset(dataset: xr.Dataset, path: Path, mode: Any, group: str | None) -> None:
    """Write labeled arrays as a Zarr group whose chunks carry checksums; `seal` does the same for its metadata.

    What the registry of `dmkl.variables` knows of each is written with it.
    """
    dataset = describe(dataset.copy())
    # Names as variable-length strings: Zarr warns of fixed-length ones that their v3 encoding is not settled.
    plain = dataset.assign(
        {
            name: (variable.dims, variable.values.astype(object), variable.attrs)
            for name, variable in dataset.variables.items()
            if variable.dtype.kind == "U"
        }
    )
    encoding = {name: {"compressors": [ZstdCodec(), Crc32cCodec()]} for name in plain.variables}
    # A chunk that holds the fill value alone is written too, so that one that is missing is damage.
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
    """A model or a result on disk, or a part of one: a Zarr group, its metadata checked."""

    path: Place
    """The folder of the whole."""
    group: Any = field(repr=False)
    within: str = ""
    """Where the part is in it."""

    @classmethod
    def open(cls, path: Any) -> Saved:
        """What is saved at a path.

        Raises
        ------
        StoreNotFoundError
            If there is nothing.
        IncompleteStoreError
            If it was not written whole, at a URL.
        DamagedFileError, StoreError
            If it is damaged, or no Zarr group.
        """
        final = as_place(path)
        try:
            group = open_group(final)
            if not is_sealed(group):
                # What was saved before there were seals has no metadata of all its parts at its root.
                group = zarr.open_group(zarr_store(final), mode="r", use_consolidated=False)
        except DmklError:
            raise
        except FileNotFoundError as error:
            msg = f"there is no model at {final}"
            raise StoreNotFoundError(msg) from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            msg = f"{final} is not a model: {error}"
            raise StoreError(msg) from error
        if isinstance(final, Url) and group.attrs.get("complete") is False:
            msg = (
                f"{final} is not finished: what wrote it was interrupted; write it again (overwrite=True, --overwrite)"
            )
            raise IncompleteStoreError(msg)
        return cls(final, group)

    @property
    def place(self) -> Place:
        """The folder of the part, as messages name it."""
        return self.path / self.within if self.within else self.path

    @property
    def attrs(self) -> dict[str, Any]:
        """Attributes of the group."""
        return dict(self.group.attrs)

    def part(self, name: str) -> Saved:
        """A group in it; KeyError if there is none."""
        return Saved(self.path, self.group[name], f"{self.within}/{name}".lstrip("/"))

    def dataset(self) -> xr.Dataset:
        """Read the labeled arrays of the group.

        Raises
        ------
        ValueError, RuntimeError
            If a chunk is missing, or is not what was written.
        """
        for name, array in self.group.arrays():
            if array.nchunks_initialized < array.nchunks:
                msg = f"{name} has missing values"
                raise ValueError(msg)
        with xr.open_dataset(xr.backends.ZarrStore(self.group, mode="r")) as opened:
            return opened.load()


def check_version(saved: Saved, newest: int, what: str) -> None:
    """Refuse what a newer dmkl wrote.

    Raises
    ------
    FormatVersionError
        If the attribute "format_version" is above `newest`.
    """
    version = saved.attrs.get("format_version", 0)
    if version > newest:
        msg = (
            f"{saved.place} has {what} format version {version}, and this dmkl reads up to {newest}; install a newer "
            "dmkl"
        )
        raise FormatVersionError(msg)
