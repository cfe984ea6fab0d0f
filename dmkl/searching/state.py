"""What a search that broke off has left in the folder of its state, from which `dmkl.search(state=...)` goes on."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dmkl.errors import DamagedFileError, InputError, StoreError
from dmkl.files.arrays import check_file
from dmkl.files.urls import resolved
from dmkl.solvers.workspace import read_state_file

__all__ = ["SearchState", "damage_of_state", "is_empty", "read_state", "remove_state"]


@dataclass(frozen=True)
class SearchState:
    """How far a search came. It is false where there is none.

    Parameters
    ----------
    parts
        The states as they are stored: of the search, and of its parts that have solvers of their own.
    n_outcomes
        Problems that are done, beside those that the parts tell of.
    """

    parts: tuple[Mapping[str, Any], ...]
    n_outcomes: int = 0

    def __bool__(self) -> bool:
        return bool(self.parts)

    @property
    def n_passes(self) -> int:
        """Passes that need not be done again."""
        counts = [part[name]["n_passes"] for part in self.parts for name in ("statistics", "solver") if name in part]
        return int(max(counts, default=0))

    @property
    def has_solutions(self) -> bool:
        """Whether more is kept than the statistics of the kernels."""
        return self.n_outcomes > 0 or any("solver" in part for part in self.parts)


def read_state(folder: Path) -> SearchState:
    """The state that a folder holds; what is no state, or damaged, or goes while it is read, counts as none."""
    found = []
    with suppress(FileNotFoundError):
        for file in _state_files(folder):
            with suppress(OSError, StoreError):
                found.append(read_state_file(file)["state"])
        return SearchState(tuple(found), sum(1 for _ in folder.rglob("outcome-*.npz")))
    return SearchState((), 0)


def _state_files(folder: Path) -> list[Path]:
    """The files that say what is done: of the search, and of its parts that have solvers of their own."""
    return [folder / "state.json", *sorted(folder.glob("part-*/**/state.json"))]


def is_empty(folder: Path) -> bool:
    """Whether there is a folder, and no file in it."""
    return folder.is_dir() and all(entry.is_dir() for entry in folder.rglob("*"))


def remove_state(folder: Path) -> None:
    """Remove the folder of a state, if there is one.

    Raises
    ------
    InputError
        If it holds something else.
    """
    if not folder.exists():
        return
    if not (read_state(folder) or is_empty(folder)):
        msg = f"{folder} is to keep the state of a search, and holds something else; move it away, or choose another"
        raise InputError(msg)
    shutil.rmtree(resolved(folder))  # which refuses links


def damage_of_state(folder: Path) -> Iterator[str]:
    """One sentence for each file of a state that is missing or is not what was written."""
    for file in _state_files(folder):
        try:
            read_state_file(file)
        except StoreError as error:
            yield str(error)
    for file in sorted(folder.rglob("*.np[yz]")):
        if file.relative_to(folder).parts[0].startswith("dmkl-"):  # temporary files of a process that was killed
            continue
        try:
            check_file(file)
        except DamagedFileError as error:
            yield str(error)
