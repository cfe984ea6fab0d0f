"""The checkpoint of a plan of fits on disk, which outlives its workers, its scheduler and its process.

    state.json                       progress of the work: written last, by rename, after each pass and round of solving
    state-before.json                the same of the pass before, whose files are kept too
    statistics.npz                   the statistics of each fold's steps
    points-<n>.npz                   weights, gap, objective … of every point of the subspace solver
    scores-<point>.npy               decision scores of the held-out rows of a finished point
    alpha-<point>.npy                its dual variables, if they were requested
    extra-<point>.npz                its fixed effects and the like, of smooth losses
    outcome-<n>.npz                  the outcome of a problem that another solver has finished
    prepared-<n>-<k>.npz             a part of a preparation that fits share, such as the groups of samples of a task
    part-<name>/                     the same for a part of the plan with its own solver
    dmkl-<random>/                   temporary files of refits and of single steps, left by a killed process
    fold-<f>/basis-<n>.npy           V, (m, r)
    fold-<f>/inner-<n>.npy           VᵀV, (r, r)
    fold-<f>/projected-<n>.npy       VᵀH of all targets, (r, columns)
    fold-<f>/gram-<n>.npy            G, (n, r, r)
    fold-<f>/products-<round>-<c>-<k>.npy  K_jV of a block of columns, from column c on, for a group of kernels,
                                     (kernels, rows, b)
    fold-<f>/probes.npy              Z, (m, s), the probes that measure rounding
    fold-<f>/probed-<round>-<k>.npy  K_jZ for a group of kernels, (kernels, m, s)
    fold-<f>/errors-<n>.npy          ZᵀE, (n, s, r)
    fold-<f>/anchor-<a>-<i>-<j>.npy  tiles of combined kernels
    fold-<f>/anchor-<a>-factor-<ridge>-<c>.npy  a factor of such a sum, from column c on; its lower triangle alone
    fold-<f>/anchor-<a>-factor-<ridge>-order.npy  the order of its rows, written last: it marks the factor as complete
    fold-<f>/round-<k>-<i>.npy       exchange between tasks of different processes, until the next round

Before state.json is replaced, all files are synced to the disk. If it or the files that are new with it are damaged
nevertheless, work continues from state-before.json. Files that neither names are left over from interrupted work and
are written anew, except for outcomes, preparations, and factors of the anchors that they name: these are read if they
are undamaged, and made again otherwise. Workers write products, anchors and preparations themselves, so all of them
must be able to reach the folder. Each file carries checksums: those of arrays follow them (see `dmkl.files.arrays`),
that of state.json is one of its keys.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from dmkl import progress
from dmkl.arrays import Array
from dmkl.errors import DamagedFileError, StoreError, refuse
from dmkl.files.arrays import check_file, json_crc32c, kept_arrays, load_arrays, save_arrays
from dmkl.files.documents import check_size, parse_json
from dmkl.files.regular import check_plain
from dmkl.files.syncing import sync_tree
from dmkl.files.urls import local_path, resolved
from dmkl.files.writing import replacing, reporting_full_disk
from dmkl.numerics.steps import Fitted, load_step
from dmkl.passes.execute import check_shared, sync_on_hosts, temporary_root
from dmkl.solvers.interface import Outcome, Status, Step

FORMAT, FORMAT_VERSION = "dmkl-search-state", 4  # Version 3 had no checksums
_STATE, _BEFORE = "state.json", "state-before.json"


def read_state_file(file: Path) -> dict[str, Any]:
    """Read the content of a file state.json; StoreError if it is another file, DamagedFileError if it was changed."""
    way_out = "move the folder away to start anew"
    check_size(f"the state {file}", check_plain(file.parent, file.name))
    try:
        stored = parse_json(file.read_bytes())
    except ValueError as error:
        msg = f"{file} is not the state of a search, or damaged ({error}); {way_out}"
        raise DamagedFileError(msg) from error
    content = {key: value for key, value in stored.items() if key != "crc32c"}
    if "crc32c" in stored and stored["crc32c"] != json_crc32c(content):
        msg = f"{file} is damaged: its checksum is not the one that it carries; {way_out}"
        raise DamagedFileError(msg)
    if content.get("format") != FORMAT or content.get("format_version") != FORMAT_VERSION or "crc32c" not in stored:
        msg = (
            f"{file} is not a state that this dmkl reads (format {content.get('format')!r}, version "
            f"{content.get('format_version')}, {'with' if 'crc32c' in stored else 'without'} a checksum); {way_out}"
        )
        raise StoreError(msg)
    return content


def state_folder(folder: str | Path) -> Path:
    """The folder of a state as an absolute path, with links resolved; InputError for a URL."""
    return resolved(local_path(folder, "the state of a search", "give one that all workers see"))


@dataclass(frozen=True)
class Prepared:
    """The files of a preparation that fits share, one for each of its parts; tasks write them when they end."""

    folder: Path | None  # None: nothing is kept
    number: int

    def _file(self, part: int) -> Path | None:
        return self.folder and self.folder / f"prepared-{self.number}-{part}.npz"

    def load(self, part: int) -> dict[str, Array] | None:
        """The arrays of a part, if an earlier run of the same work kept them."""
        return kept_arrays(file) if (file := self._file(part)) else None

    def save(self, part: int, arrays: Mapping[str, Array]) -> None:
        """Keep the arrays of a part for a later run."""
        if file := self._file(part):
            save_arrays(file, dict(arrays), synced=True)


class Workspace:
    """The folder of the checkpoint of a plan of fits.

    None stands for a temporary folder in `dmkl.passes.execute.temporary_root`, which `close` removes. `identity` holds
    properties of the computation by name (data, grid, folds …), and `unsaid` the values of those that an earlier dmkl
    did not write: the defaults of its parameters. InputError is raised for a folder with other properties, or with
    other files.
    """

    def __init__(
        self, folder: str | Path | None, identity: dict[str, str], *, unsaid: Mapping[str, str] | None = None
    ) -> None:
        self.temporary = folder is None
        self.identity, self._unsaid = identity, unsaid or {}
        self.state: dict[str, Any] = {}
        """The state from which the work continues; its "files" are the files that are new with it."""
        self._unsynced = False
        if folder is None:
            return
        self.path = state_folder(folder)
        for parent, folders, files in os.walk(self.path):  # everything in it may be read and written to
            for name in (*folders, *files):
                check_plain(parent, name)
        stored = list(_stored_states(self.path))
        for content in stored:
            self._check(content["identity"])
        if stored:
            self.state = next((content["state"] for content in stored if _is_whole(self.path, content["state"])), {})
        elif self.path.exists() and not all(entry.name.startswith(_OURS) for entry in self.path.iterdir()):
            # A folder of other files is never used: `remove_state` deletes a folder as a whole.
            refuse(
                f"{self.path} is to keep the state of a search, but holds other files; give a folder of its own, "
                "or an empty one"
            )
        # The folder is made only after the checks, so that a rejected call leaves nothing behind.
        self.path.mkdir(parents=True, exist_ok=True)

    @cached_property
    def path(self) -> Path:
        """The folder; a temporary one is made when it is needed, since many fits keep no files."""
        return Path(tempfile.mkdtemp(prefix="dmkl-", dir=temporary_root()))

    def _check(self, before: dict[str, str]) -> None:
        # A property that an older version did not write has the default value that it had then. The release that
        # version 0.1.0 wrote does not count: whatever release solved a problem, its solution has a proven gap.
        before = {name: value for name, value in before.items() if name != "dmkl"}
        were = {**self._unsaid, **before}
        changed = [name for name in {**before, **self.identity} if were.get(name) != self.identity.get(name)]
        if changed:
            changes = [_change(name, were.get(name), self.identity.get(name)) for name in changed[:_MOST_CHANGES]]
            refuse(
                f"{self.path} holds the state of a search that differs in: {', '.join(changed)}. {'; '.join(changes)}. "
                "To resume it, give its own arguments; to start again, move the folder away or give another"
            )

    def commit(self, state: dict[str, Any]) -> None:
        """Make `state` the point from which a later run continues, or the present one if the new files are damaged."""
        if self.temporary:
            self.state = state
            return
        if self.state:
            self._write(_BEFORE, self.state, synced=False)
        sync_on_hosts(self.path)
        self._write(_STATE, state)
        self.state = state

    def _write(self, name: str, state: Mapping[str, Any], *, synced: bool = True) -> None:
        content = {"format": FORMAT, "format_version": FORMAT_VERSION, "identity": self.identity, "state": state}
        content |= {"crc32c": json_crc32c(content)}
        # Written to another name and renamed: a killed process leaves the old state or the new one, never a part.
        with replacing(self.path / name, synced=synced) as file:
            file.write(json.dumps(content).encode())

    def part(self, name: str) -> Workspace:
        """The workspace of a part of the work, in a subfolder."""
        part = Workspace(self.path / f"part-{name}", self.identity, unsaid=self._unsaid)
        part.temporary = self.temporary
        return part

    def fold(self, number: int) -> Path:
        """The folder of a training set."""
        folder = self.path / f"fold-{number}"
        folder.mkdir(exist_ok=True)
        return folder

    def keep_outcome(self, number: int, outcome: Outcome) -> None:
        """Keep the outcome of a problem for a later run, on the disk after `sync`; not in a temporary folder."""
        if self.temporary:
            return
        self._unsynced = True
        steps = outcome.steps
        # All steps of a solver have the same figures, so that the history is one table.
        names = list(steps[0].figures) if steps else []
        arrays = {
            "weights": outcome.weights,
            "bias": np.asarray(outcome.bias),
            "values": np.array([outcome.objective, outcome.bound, outcome.gap]),
            "status": np.array(outcome.status.name),
            "names": np.array(names, dtype=str),
            "figures": np.array([[step.figures[name] for name in names] for step in steps]),
        }
        # Absent arrays stay absent: an empty array would look like a result of no rows.
        arrays |= {
            name: value for name in ("dual", "scores", "inverse") if (value := getattr(outcome, name)) is not None
        }
        arrays |= {f"extra_{name}": value for name, value in outcome.extra.items()}
        if steps and all(step.weights is not None for step in steps):
            arrays["step_weights"] = np.stack([np.asarray(step.weights) for step in steps])
        save_arrays(self._outcome_file(number), arrays)

    def outcome(self, number: int) -> Outcome | None:
        """The outcome of a problem, if an earlier run kept it."""
        stored = None if self.temporary else kept_arrays(self._outcome_file(number))
        if stored is None:
            return None
        names, weights = stored["names"].tolist(), stored.get("step_weights")
        steps = [
            Step(None if weights is None else weights[k], dict(zip(names, map(float, row), strict=True)))
            for k, row in enumerate(stored["figures"])
        ]
        objective, bound, gap = map(float, stored["values"])
        return Outcome(
            Status[str(stored["status"])],
            stored["weights"],
            stored.get("dual"),
            *(objective, bound, gap, stored["bias"], steps, stored.get("scores"), stored.get("inverse")),
            extra={name.removeprefix("extra_"): value for name, value in stored.items() if name.startswith("extra_")},
        )

    def sync(self) -> None:
        """Return when the outcomes that this process keeps are on the disk."""
        if self._unsynced:
            with reporting_full_disk(self.path):
                sync_tree(self.path)
        self._unsynced = False

    def _outcome_file(self, number: int) -> Path:
        return self.path / f"outcome-{number}.npz"

    def prepared(self, number: int) -> Prepared:
        """The files of a preparation; none in a temporary folder, which no later run reads."""
        return Prepared(None if self.temporary else self.path, number)

    def check_shared(self) -> None:
        """Raise InputError if a worker cannot reach the folder."""
        check_shared(self.path, "where the state of this work is kept")

    def discard(self) -> None:
        """Remove the state, and preparations that no state names."""
        # state.json goes last: where it is missing, no preparation is left.
        files = (self.path / name for name in (_BEFORE, "statistics.npz", _STATE))
        for file in [*self.path.glob("prepared-*.npz"), *files]:
            file.unlink(missing_ok=True)
        self.state = {}

    def remove_temporary(self) -> None:
        """Remove the temporary folders that a killed process left in this folder."""
        for left in self.path.glob("dmkl-*"):
            shutil.rmtree(left, ignore_errors=True)

    def close(self) -> None:
        """Remove a temporary folder."""
        # A task that an interruption left running may write another file meanwhile.
        for _ in range(50 if self.temporary and "path" in vars(self) else 0):
            shutil.rmtree(self.path, ignore_errors=True)
            if not self.path.exists():
                break
            time.sleep(0.1)

    def save_statistics(self, chains: list[Fitted]) -> list[list[dict[str, Any]]]:
        """Write the statistics of each fold's steps; `load_statistics` takes the description that is returned."""
        arrays: dict[str, Array] = {}
        described = []
        for k, chain in enumerate(chains):
            for s, step in enumerate(chain.steps):
                arrays |= {f"{k}.{s}.{name}": value for name, value in step.arrays().items()}
            described.append([step.described() for step in chain.steps])
        save_arrays(self.path / "statistics.npz", arrays)
        return described

    def load_statistics(self, described: list[list[dict[str, Any]]]) -> list[Fitted]:
        """Read the statistics that `save_statistics` wrote."""
        arrays = load_arrays(self.path / "statistics.npz")
        chains = []
        for k, steps in enumerate(described):
            chain = []
            for s, step in enumerate(steps):
                names = [name for name in arrays if name.startswith(f"{k}.{s}.")]
                chain.append(load_step(step, {name.removeprefix(f"{k}.{s}."): arrays[name] for name in names}))
            chains.append(Fitted(tuple(chain)))
        return chains


_OURS = (
    *("state.json.", f"{_BEFORE}.", "fold-", "points-", "scores-", "alpha-", "outcome-", "part-", "statistics.npz"),
    *("extra-", "seen-", "dmkl-", "prepared-"),
)
_MOST_CHANGES = 4  # Number of differences that are written out in full


def _change(name: str, before: str | None, now: str | None) -> str:
    """The old and the new value; for a grid only the parameters that differ, for content no checksums."""
    # Checksums say only that content differs; grids are shown parameter by parameter, since they may be long.
    if before is not None and now is not None:
        if re.fullmatch(r"[0-9a-f]{16,}", before) and re.fullmatch(r"[0-9a-f]{16,}", now):
            return f"{name} had other content"
        if before.startswith("{") and now.startswith("{"):
            with suppress(json.JSONDecodeError):
                old, new = json.loads(before), json.loads(now)
                differing = [key for key in {**old, **new} if old.get(key) != new.get(key)]
                if differing:
                    return "; ".join(f"{key} {_was(_values(old.get(key)), _values(new.get(key)))}" for key in differing)
    return f"{name} {_was(before, now)}"


def _was(*values: Any) -> str:
    before, now = (text if len(text) <= 80 else f"{text[:77]}…" for text in map(str, values))
    return f"was {before} and is {now} now"


def _values(value: Any) -> Any:
    return ", ".join(map(str, value)) if isinstance(value, list) else "not there" if value is None else value


# --- a state as a whole -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SearchState:
    """The progress of a search; false if there is no state."""

    parts: tuple[Mapping[str, Any], ...]  # The stored states: of the search, and of its parts with separate solvers.
    n_outcomes: int = 0  # Number of solved problems with separate files

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
    with suppress(FileNotFoundError):
        parts = []
        for file in _state_files(folder):
            with suppress(OSError, StoreError):
                parts += [content["state"] for content in islice(_stored_states(file.parent), 1)]
        return SearchState(tuple(parts), sum(1 for _ in folder.rglob("outcome-*.npz")))
    return SearchState(())


def _state_files(folder: Path) -> list[Path]:
    """The state files of the search, and of its parts with separate solvers."""
    return [folder / _STATE, *sorted(folder.glob(f"part-*/**/{_STATE}"))]


def _stored_states(folder: Path) -> Iterator[dict[str, Any]]:
    """The content of state.json, and of the state before; only the latter if the former is damaged.

    Raises as `read_state_file` if there is no other than a damaged one.
    """
    if not (folder / _STATE).exists():
        return
    damaged = None
    try:
        yield read_state_file(folder / _STATE)
    except DamagedFileError as error:
        damaged = error
    if (folder / _BEFORE).exists():
        with suppress(StoreError):
            yield read_state_file(folder / _BEFORE)
            return
    if damaged is not None:
        raise damaged


def _is_whole(folder: Path, state: Mapping[str, Any]) -> bool:
    """Whether the files that are new with a state are undamaged."""
    try:
        for name in state.get("files", ()):
            check_plain(folder, name)
            check_file(f"{folder}/{name}")
    except DamagedFileError as error:
        progress.current().note(f"going back to the pass before: {error}")
        return False
    return True


def is_empty(folder: Path) -> bool:
    """Whether the folder exists and has no file."""
    return folder.is_dir() and all(entry.is_dir() for entry in folder.rglob("*"))


def remove_state(folder: Path) -> None:
    """Remove the folder of a state, or of states in folders of their own, if any; InputError if it has other files."""
    if not folder.exists():
        return
    states = [folder] if read_state(folder) or not folder.is_dir() else [*folder.iterdir()]
    if not all(read_state(each) or is_empty(each) for each in states):
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
