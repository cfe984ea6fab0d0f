"""Places of inputs and outputs: paths of this machine, and URLs in object stores, which fsspec reads and writes.

`Url` wraps the few operations that dmkl needs, many objects at a time, and turns errors of every file system into
dmkl's; `universal_pathlib.UPath` has single objects only, and their own errors.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload
from urllib.parse import unquote

from dmkl.errors import DmklError, StoreError, one_line, refuse


@dataclass(frozen=True)
class Url:
    """A place in an object store, with some of the methods of a path.

    Objects cannot be renamed, and a "folder" is a common prefix of their names. An object is written completely or not
    at all. Listings are not cached.
    """

    text: str

    def __str__(self) -> str:
        return self.text

    def __truediv__(self, name: str) -> Url:
        return Url(f"{self.text}/{name}")

    @property
    def name(self) -> str:
        """The last part."""
        return self.text.rsplit("/", 1)[-1]

    def with_name(self, name: str) -> Url:
        """Another place in the same folder."""
        return Url(self.text.rsplit("/", 1)[0]) / name

    def exists(self) -> bool:
        """Whether there is an object of this name, or a folder."""
        with self._file_system() as (fs, path):
            return bool(fs.exists(path))

    def is_file(self) -> bool:
        """Whether there is an object of this name."""
        with self._file_system() as (fs, path):
            return bool(fs.isfile(path))

    def read_bytes(self) -> bytes:
        """An object; FileNotFoundError if there is none."""
        with self._file_system() as (fs, path):
            return bytes(fs.cat_file(path))

    def write_bytes(self, data: bytes) -> None:
        """Write an object in one step."""
        with self._file_system() as (fs, path):
            fs.pipe_file(path, data)

    def files(self) -> dict[str, int]:
        """The objects of a folder by their names in it, and their bytes."""
        with self._file_system() as (fs, path):
            entries = fs.find(path, detail=True)
            return {name.removeprefix(path).lstrip("/"): int(entry["size"]) for name, entry in entries.items()}

    def remove(self, names: list[str]) -> None:
        """Remove objects of a folder by their names in it."""
        with self._file_system() as (fs, path):
            if names:
                fs.rm([f"{path}/{name}" for name in names])

    def unlink(self, *, missing_ok: bool = False) -> None:
        """Remove an object."""
        with self._file_system() as (fs, path):
            if not missing_ok or fs.exists(path):
                fs.rm_file(path)

    def copy_from(self, folder: Place, names: list[str]) -> None:
        """Copy files of a local folder, or objects of another within the same store, into this one, concurrently."""
        with self._file_system() as (fs, path):
            copies = [f"{path}/{name}" for name in names]
            if isinstance(folder, Path):
                fs.put([str(folder / name) for name in names], copies)
                return
            with folder._file_system() as (_, source):
                fs.copy([f"{source}/{name}" for name in names], copies)

    @contextmanager
    def _file_system(self) -> Iterator[tuple[Any, str]]:
        """The file system of fsspec and the path in it; its errors are turned into dmkl's."""
        from fsspec.core import url_to_fs

        try:
            yield url_to_fs(self.text, **storage_options())
        except (DmklError, FileNotFoundError, FileExistsError):
            raise
        except ImportError as error:
            way_out = "for s3://, pip install 'dmkl[s3]'"
            refuse(f"{self} needs a package that is not installed: {one_line(error)}; {way_out}", error)
        except Exception as error:  # each file system raises its own
            if "Protocol not known" in str(error):
                kind = self.text.split("://", 1)[0]
                refuse(f"fsspec knows no {kind}:// ({self}); give a folder, or a URL such as s3://bucket/name", error)
            way_out = "check its bucket, the endpoint (such as AWS_ENDPOINT_URL) and the credentials on this machine"
            refuse(f"{self} cannot be read or written: {one_line(error)}; {way_out}", error, StoreError)


Place = Path | Url
_LOST_SLASH = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+:)/(?=[^/])")
"""The beginning of a URL that was converted to a path."""


def is_url(path: object) -> bool:
    """Whether a path is a URL, other than a URL of a local file."""
    text = str(path)
    return "://" in text and not text.startswith("file://")


def as_given(path: object) -> str:
    """A path as a user would write it here: as it was given, or relative to the current folder if that contains it."""
    text = str(path)
    with suppress(ValueError, OSError):  # it is elsewhere, or the current folder is gone
        return text if is_url(text) else str(Path(text).relative_to(Path.cwd()))
    return text


def as_place(path: str | os.PathLike[str] | Url) -> Place:
    """The place of a URL or a path, made absolute; InputError for a whole bucket, or a URL that has lost a slash."""
    if isinstance(path, Url):
        return path
    text = os.fspath(path)
    if text.startswith("file://"):
        text = unquote(text.removeprefix("file://"))
    if not is_url(text):
        if _LOST_SLASH.match(text):  # nobody names a folder "s3:"
            what = f"{text} is a URL that has lost a slash, as in a pathlib.Path"
            refuse(f"{what}; give it as text, such as s3://bucket/name")
        return Path(text).expanduser().absolute()
    text = text.rstrip("/")
    if "/" not in text.split("://", 1)[1]:
        refuse(f"{text} is a whole bucket; name something in it, such as {text}/name")
    return Url(text)


@overload
def resolved(path: Path) -> Path: ...
@overload
def resolved(path: str | os.PathLike[str] | Url) -> Place: ...
def resolved(path: str | os.PathLike[str] | Url) -> Place:
    """The place of a path or a URL; for a symbolic link, the place of its target.

    An output that replaces another by renaming is renamed to the target: otherwise it would replace the link and leave
    the target unchanged. InputError if links lead to each other in a circle.
    """
    place = as_place(path)
    if isinstance(place, Url) or not place.is_symlink():
        return place
    target = Path(os.path.realpath(place))
    if target.is_symlink():
        refuse(f"{place} is a symbolic link that leads back to itself; remove it, or choose another path")
    return target


def files_in(place: Place) -> dict[str, int]:
    """The sizes in bytes of all files or objects of a folder, by their names in it; that of a single file."""
    if isinstance(place, Url):
        return place.files()
    if place.is_file():
        return {"": place.stat().st_size}
    files = [file for file in place.rglob("*") if file.is_file()]
    return {file.relative_to(place).as_posix(): file.stat().st_size for file in files}


def local_path(path: str | os.PathLike[str], what: str, way_out: str = "") -> Path:
    """A path of this machine, for content that cannot be at a URL; `what` and `way_out` complete its InputError."""
    text = _LOST_SLASH.sub(r"\1//", os.fspath(path))
    if is_url(text):
        way_out = way_out or "copy it. Kernel sets, models, results of searches and predictions may be at URLs"
        refuse(f"{text} is a URL, and {what} has to be a file or folder of this machine; {way_out}")
    return Path(path)


def file_and_name(path: Path) -> tuple[Path, str | None]:
    """The file of FILE:NAME and the name of what is asked for in it; None if there is a file of the whole name."""
    text, at = str(path), str(path).find(":")
    while at > 0 and not path.exists():
        if Path(text[:at]).exists():
            return Path(text[:at]), text[at + 1 :]
        at = text.find(":", at + 1)
    return path, None


def storage_options() -> dict[str, Any]:
    """Options of fsspec for every URL, in addition to its own configuration: the setting ``dmkl.storage``."""
    from dmkl import settings  # which imports Dask

    options = settings.get("storage")
    if not isinstance(options, Mapping):
        refuse(f"dmkl.storage must be a mapping of options for fsspec, such as {{'endpoint_url': …}}, got {options!r}")
    # Objects that other processes write meanwhile have to be seen.
    return {"use_listings_cache": False, **options}
