"""The saved state of an interrupted search, from which `dmkl.search(state=...)` continues."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dmkl.errors import DamagedFileError, StoreError, refuse
from dmkl.files.arrays import check_file
from dmkl.files.urls import resolved
from dmkl.solvers.workspace import read_state_file


@dataclass(frozen=True)
class SearchState:
    """The progress of a search; false if there is no state."""

    parts: tuple[Mapping[str, Any], ...]
    """The stored states: of the search, and of its parts with separate solvers."""
    n_outcomes: int = 0
    """Number of solved problems with separate files."""

    def __bool__(self) -> bool:
        return bool(self.parts)

    @property
    def n_passes(self) -> int:
        """Passes that need not be repeated."""
        counts = [part[name]["n_passes"] for part in self.parts for name in ("statistics", "solver") if name in part]
        return int(max(counts, default=0))

    @property
    def has_solutions(self) -> bool:
        """Whether the state has more than the statistics of the kernels."""
        return self.n_outcomes > 0 or any("solver" in part for part in self.parts)


def read_state(folder: Path) -> SearchState:
    """The state in a folder; files that are no states, are damaged or disappear meanwhile are ignored."""
    parts = []
    with suppress(FileNotFoundError):
        for file in _state_files(folder):
            with suppress(OSError, StoreError):
                parts.append(read_state_file(file)["state"])
        return SearchState(tuple(parts), sum(1 for _ in folder.rglob("outcome-*.npz")))
    return SearchState((), 0)


def _state_files(folder: Path) -> list[Path]:
    """The state files of the search, and of its parts with separate solvers."""
    return [folder / "state.json", *sorted(folder.glob("part-*/**/state.json"))]


def is_empty(folder: Path) -> bool:
    """Whether the folder exists and has no file."""
    return folder.is_dir() and all(entry.is_dir() for entry in folder.rglob("*"))


def remove_state(folder: Path) -> None:
    """Remove the folder of a state, if there is one; InputError if it has other files."""
    if not folder.exists():
        return
    if not (read_state(folder) or is_empty(folder)):
        refuse(
            f"{folder} must be empty or have the state of a search, and has other files; move it away, or take another"
        )
    shutil.rmtree(resolved(folder))  # rmtree refuses links


def damage_of_state(folder: Path) -> Iterator[str]:
    """A sentence for each file of a state that is missing or damaged."""
    for file in _state_files(folder):
        try:
            read_state_file(file)
        except StoreError as error:
            yield str(error)
    for file in sorted(folder.rglob("*.np[yz]")):
        if file.relative_to(folder).parts[0].startswith("dmkl-"):  # temporary files of a killed process
            continue
        try:
            check_file(file)
        except DamagedFileError as error:
            yield str(error)
