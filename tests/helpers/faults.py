"""Faults during commands: the phases, the faults, and the conditions that hold afterwards."""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np
import psutil
import pytest
from distributed import Client

import dmkl
from dmkl.files import writing
from dmkl.progress import ConsoleWatch
from helpers.damage import flip
from helpers.references import local_cluster

M, N_NEW = 36, 6
POINT = ("-p", "1.5", "--lam", "0.1")
GRID = ("-p", "1,1.5", "--lam", "1e-3,1e-1", "--cv", "2")


_TOLD = ("score", "weight", "weight_share", "null_score", "null_weight_share", "score_without", "objective_without")
"""Variables of results that are compared, if present."""


@dataclass(frozen=True)
class Phase:
    """A command on the files of `make_files`; OUT in its arguments is its output."""

    arguments: tuple[str, ...]
    state: bool = False  # whether it keeps finished work in OUT.partial

    def command(self, files: Path, out: Path, cluster: str = "threads") -> list[str]:
        """The arguments with the paths of all files."""
        named = {"OUT": out, **{file.name: file for file in files.iterdir()}}
        paths = [str(named.get(argument, argument)) for argument in self.arguments]
        return paths if self.arguments[0] == "import" else [*paths, "--cluster", cluster]


PHASES = {
    "import": Phase(("import", "OUT", "kernels.npy", "--tile", "9"), state=True),
    "build": Phase(
        ("build", "OUT", "features.npz", "--function", "rbf", "--bandwidth", "0.3,1", "--tile", "9"), state=True
    ),
    "analyze": Phase(("analyze", "set.zarr", "--output", "OUT")),
    "fit direct": Phase(("fit", "set.zarr", "OUT", *POINT, "--solver", "direct")),
    "fit cg": Phase(("fit", "set.zarr", "OUT", *POINT, "--solver", "cg")),
    "fit subspace": Phase(("fit", "set.zarr", "OUT", *POINT, "--solver", "subspace")),
    "fit machines": Phase(("fit", "set.zarr", "OUT", "--model", "mksvm", "-p", "1.5", "-C", "1")),
    "search": Phase(("search", "set.zarr", "OUT", *GRID, "--solver", "subspace", "--no-refit"), state=True),
    "refit": Phase(("search", "set.zarr", "OUT", *GRID, "--solver", "direct"), state=True),
    "evaluate": Phase(
        ("evaluate", "set.zarr", "OUT", "-p", "1.5", "--lam", "1e-3,1e-1", "--outer", "2", "--inner", "2"), state=True
    ),
    "permute": Phase(("permute", "set.zarr", "OUT", *GRID, "--permutations", "5"), state=True),
    "stability": Phase(
        ("stability", "set.zarr", "OUT", *POINT, "--resamples", "4", "--solver", "subspace"), state=True
    ),
    "importance": Phase(("importance", "set.zarr", "OUT", *GRID), state=True),
    "predict": Phase(("predict", "model", "new.zarr", "--out", "OUT")),
}


def make_files(folder: Path) -> Path:
    """Write kernels, features, two kernel sets and a model."""
    rng, labels = np.random.default_rng(0), np.arange(M) % 3
    near = rng.standard_normal((3, 4))[labels] * 2 + rng.standard_normal((M, 4))
    tables = {"near": near, "far": rng.standard_normal((M, 9))}
    np.save(folder / "kernels.npy", np.stack([table @ table.T for table in tables.values()]))
    np.savez(folder / "features.npz", **tables)
    rbf = {"function": "rbf", "bandwidth": [0.3, 1]}
    K = dmkl.build(folder / "set.zarr", tables, rbf, tile=9, labels=labels)
    dmkl.MKFDA(p=1.5, lam=0.1).fit(K).save(folder / "model")
    new = {name: table[:N_NEW] + 0.1 for name, table in tables.items()}
    dmkl.build_cross(K, new, folder / "new.zarr")
    return folder


def result(out: Path) -> dict[str, np.ndarray]:
    """The numbers of an output, by name."""
    if out.is_file():
        return {"predicted": np.array(out.read_text().splitlines())}
    if (out / "analysis.nc").exists():
        import xarray as xr

        with xr.open_dataset(out / "analysis.nc", engine="scipy") as data:
            return {"alignment": data["alignment"].values, "trace": data["trace"].values}
    try:
        return {"kernels": np.asarray(dmkl.open(out))}
    except dmkl.errors.StoreError:
        loaded = dmkl.load(out)
    if hasattr(loaded, "weights_"):
        return {"weights": np.asarray(loaded.weights_), "dual": np.asarray(loaded.dual_coef_)}
    data = loaded.data if hasattr(loaded, "data") else loaded.scores
    return {str(name): values.values for name, values in data.data_vars.items() if name in _TOLD}


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """Assert that two results are equal up to rounding."""
    assert found.keys() == expected.keys()
    assert found
    for name, values in expected.items():
        if values.dtype.kind in "fi":
            np.testing.assert_allclose(found[name], values, rtol=1e-10, atol=1e-12)
        else:
            np.testing.assert_array_equal(found[name], values)


@contextmanager
def revived_workers(n_workers=2):
    """A client of single-threaded worker processes, which their nannies restart without log messages."""
    with local_cluster(n_workers, silence_logs=logging.CRITICAL) as cluster, Client(cluster) as client:
        yield client


# --- conditions ------------------------------------------------------------------------------------------------------
def told(err):
    """Return the errors and notes of a command; its other lines must be progress."""
    lines = [line for line in err.strip().splitlines() if not line.startswith("dmkl: note: dashboard of")]
    errors = [line for line in lines if line.startswith("dmkl: error: ")]
    notes = [line for line in lines if line.startswith("dmkl: note: ")]
    progress = [
        line for line in lines if re.match(r"((fold )?\d+: )?(pass \d|\d+/\d|\d+ of \d|error [≤>]|step \d|cut)", line)
    ]
    assert len(errors) + len(notes) + len(progress) == len(lines), err
    return errors, notes


def left(out, phase):
    """Whether a failed command left a checkpoint beside its output; no other file may be there."""
    there = {entry.name for entry in out.parent.iterdir()}
    assert there <= ({"out.partial"} if PHASES[phase].state else set()), there
    return bool(there)


def tasks_before(phase):
    """Number of tasks that end before the fault; predictions have few tasks."""
    return 1 if phase == "predict" else 3


# --- faults ----------------------------------------------------------------------------------------------------------
@contextmanager
def disturbed(act: Callable[[], None], after: int = 3):
    """Call `act` once, when `after` tasks of a command have ended; yield a list that is non-empty after the call."""
    n_ended, acted, whole = 0, [], ConsoleWatch.advance

    def advance(self: ConsoleWatch, n_bytes: int) -> None:
        nonlocal n_ended
        n_ended += 1
        if n_ended == after:
            acted.append(True)
            act()
        whole(self, n_bytes)

    with patch.object(ConsoleWatch, "advance", advance):
        yield acted


@contextmanager
def interrupted(owner, name: str, after: int = 0):
    """Raise KeyboardInterrupt in the callers of a function after `after` calls."""
    calls, whole = itertools.count(), getattr(owner, name)

    def call(*given, **named):
        if next(calls) >= after:
            raise KeyboardInterrupt
        return whole(*given, **named)

    with patch.object(owner, name, call), pytest.raises(KeyboardInterrupt):
        yield


@contextmanager
def disk_that_fills():
    """Yield a function that simulates a full disk: no file of this process can grow after its call."""
    before, ignored = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (16, before[1]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


@contextmanager
def one_gib_more():
    """Limit the address space, so that excessive allocations raise MemoryError."""
    before, held = resource.getrlimit(resource.RLIMIT_AS), psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_AS, (held + 2**30, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def each_tile(change: Callable[[Path], object]) -> Callable[[Path, Path], None]:
    """Return a function that changes each tile of a set."""

    def damage(store: Path, _: Path) -> None:
        for tile in [file for file in store.glob("gram*/c/**/*") if file.is_file()]:
            change(tile)

    return damage


def cut(tile: Path) -> None:
    part = tile.read_bytes()[:40]
    tile.unlink()  # truncation would crash processes that map the file
    tile.write_bytes(part)


def delete(store: Path, _: Path) -> None:
    # Atomic: a reader of a partly deleted folder could raise either of two errors.
    shutil.rmtree(store.rename(store.with_name("deleted.zarr")))


def exchange(store: Path, other: Path) -> None:
    copy = shutil.copytree(other, store.with_name("copied.zarr"))
    store.rename(store.with_name("before.zarr"))
    copy.rename(store)


DAMAGES = {
    "deleted": delete,
    "cut": each_tile(cut),
    "flipped": each_tile(lambda tile: flip(tile, 7, 64)),
    "missing": each_tile(Path.unlink),
    "exchanged": exchange,
}


def lock_by(path: Path, **changes: object) -> None:
    """Write the lock file of another process."""
    here = psutil.Process().parent()
    holder = {
        "host": socket.gethostname(),
        "machine": writing._machine(),
        "pid": here.pid,
        "started": writing._start(here.pid),
        "since": "2026-01-02 03:04:05",
        "token": "theirs",
    }
    writing.lock_path(path).write_text(json.dumps({**holder, **changes}))


# --- commands in other processes -------------------------------------------------------------------------------------
_CHILD = """
import os, signal, sys
from dmkl.cli.main import main
from helpers.faults import disturbed

name, victim, after = sys.argv[1], int(sys.argv[2]) or os.getpid(), int(sys.argv[3])

def act():
    os.kill(victim, getattr(signal, name))

print("begins", flush=True)
with disturbed(act, after):
    status = main(sys.argv[4:])
if after < 0:
    act()
sys.exit(status)
"""


def child(command: list[str], name: str = "SIGKILL", after: int = 0, victim: int = 0) -> subprocess.Popen[str]:
    """Start a command in a process that prints a line when its modules are imported, and sends a signal.

    To `victim`, by default itself, when so many tasks have ended; never for 0; at its own end for -1.
    """
    arguments = [name, str(victim), str(after), *command]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    out = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", _CHILD, *arguments], env=environment, **out)


# --- clusters --------------------------------------------------------------------------------------------------------
class Processes:
    """A scheduler and two workers without nannies, in processes that can be killed one by one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.file = folder / "scheduler.json"
        self.workers: list[subprocess.Popen[bytes]] = []
        self.scheduler = self._start("scheduler", "--port", "0", "--dashboard-address", "127.0.0.1:0")
        self.add_workers()

    def add_workers(self) -> None:
        here = ("--no-nanny", "--nthreads", "1", "--memory-limit", "0", "--local-directory", str(self._folder))
        self.workers += [self._start("worker", *here) for _ in range(2)]
        with Client(scheduler_file=str(self.file)) as client:
            client.wait_for_workers(2, timeout=60)

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "dask", *arguments, "--host", "127.0.0.1", "--scheduler-file", str(self.file)]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill(self, *victims: subprocess.Popen[bytes]) -> None:
        for victim in victims:
            victim.kill()
            victim.wait()
