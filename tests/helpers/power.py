"""Power cuts: files lose what was not synced, and keep their names."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dmkl.files import syncing


class PowerCut(BaseException):
    """Ends a process at once: nothing handles it."""


@contextmanager
def losing_power(folder: Path) -> Iterator[None]:
    """Empty each file in a folder that was not synced after its last change, at the end of this context.

    File systems write names early and contents late: what was renamed has its new name, and no content. That is the
    case of ext4, XFS and others if nothing is synced.
    """
    synced: dict[tuple[int, int], bytes] = {}

    def record(*paths: Path) -> None:
        for path in paths:
            if path.is_file() and not path.is_symlink():
                synced[_identity(path)] = path.read_bytes()

    def fsync(descriptor: int, before=os.fsync) -> None:
        before(descriptor)
        record(Path(os.readlink(f"/proc/self/fd/{descriptor}")))

    def syncfs(_: object) -> bool:
        record(*folder.rglob("*"))
        return True

    record(*folder.rglob("*"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        patch.setattr(syncing, "_syncfs", syncfs)
        yield
    for path in list(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and synced.get(_identity(path)) != path.read_bytes():
            path.unlink()  # it may be mapped by this process
            path.touch()


def _identity(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_dev, stat.st_ino


class Disk:
    """An ext4 file system in an image file, of which copies are what a power cut would leave on a disk."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._mounted = folder, list[Path]()
        self._image = folder / "disk.img"
        with self._image.open("wb") as file:
            file.truncate(64 * 2**20)
        _run("mkfs.ext4", "-q", "-F", self._image)
        self.path = self._mount(self._image)

    def _mount(self, image: Path) -> Path:
        place = image.with_suffix("")
        place.mkdir()
        _run("mount", "-o", "loop", image, place)
        self._mounted.append(place)
        return place

    def after_power_cut(self) -> Path:
        """The file system as it is on the disk now, mounted elsewhere."""
        image = self._folder / f"cut-{len(self._mounted)}.img"
        shutil.copyfile(self._image, image)
        return self._mount(image)

    def close(self) -> None:
        for place in self._mounted:
            _run("umount", place)


def _run(*command: object) -> None:
    subprocess.run([str(word) for word in command], check=True, capture_output=True)
