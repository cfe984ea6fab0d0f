"""Commands that are disturbed in the middle of their work: the phases, the faults, and what must hold afterwards."""

from __future__ import annotations

import itertools
import logging
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from distributed import Client

import dmkl
from dmkl.progress import ConsoleWatch
from helpers.damage import flip
from helpers.references import local_cluster

M, N_NEW = 36, 6
POINT = ("-p", "1.5", "--lam", "0.1")
GRID = ("-p", "1,1.5", "--lam", "1e-3,1e-1", "--cv", "2")


_TOLD = ("score", "weight", "weight_share", "null_score", "null_weight_share", "score_without", "objective_without")
"""Variables of results that are compared, where a result has them."""


@dataclass(frozen=True)
class Phase:
    """A command over the files of `make_files`, in whose arguments OUT is its output."""

    arguments: tuple[str, ...]
    passes: bool = True  # whether it reads kernels, on a cluster where it is told to
    state: bool = False  # whether it keeps what is done in OUT.partial

    def command(self, files: Path, out: Path, cluster: str = "threads") -> list[str]:
        """Its arguments, where everything is."""
        named = {"OUT": out, **{file.name: file for file in files.iterdir()}}
        found = [str(named.get(argument, argument)) for argument in self.arguments]
        return found if self.arguments[0] == "import" else [*found, "--cluster", cluster]


PHASES = {
    "import": Phase(("import", "OUT", "kernels.npy", "--tile", "9"), passes=False, state=True),
    "build": Phase(
        ("build", "OUT", "features.npz", "--function", "rbf", "--bandwidth", "0.3,1", "--tile", "9"),
        passes=False,
        state=True,
    ),
    "analyze": Phase(("analyze", "set.zarr", "--output", "OUT")),
    "fit direct": Phase(("fit", "set.zarr", "OUT", *POINT, "--solver", "direct")),
    "fit cg": Phase(("fit", "set.zarr", "OUT", *POINT, "--solver", "cg")),
    "fit subspace": Phase(("fit", "set.zarr", "OUT", *POINT, "--solver", "subspace")),
    "fit machines": Phase(("fit", "set.zarr", "OUT", "--model", "mksvm", "-p", "1.5", "-C", "1")),
    "search": Phase(("search", "set.zarr", "OUT", *GRID, "--solver", "subspace", "--no-refit"), state=True),
    "refit": Phase(("search", "set.zarr", "OUT", *GRID, "--solver", "direct"), state=True),
    "evaluate": Phase(
        ("evaluate", "set.zarr", "OUT", "-p", "1.5", "--lam", "1e-3,1e-1", "--outer", "2", "--inner", "2"),
        state=True,
    ),
    "permute": Phase(("permute", "set.zarr", "OUT", *GRID, "--permutations", "5"), state=True),
    "stability": Phase(
        ("stability", "set.zarr", "OUT", *POINT, "--resamples", "4", "--solver", "subspace"), state=True
    ),
    "importance": Phase(("importance", "set.zarr", "OUT", *GRID), state=True),
    "predict": Phase(("predict", "model", "new.zarr", "--out", "OUT")),
}
READING = [name for name, phase in PHASES.items() if phase.passes]


def make_files(folder: Path) -> Path:
    """Kernels in files, features, two kernel sets, a model."""
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
        found = dmkl.load(out)
    if hasattr(found, "weights_"):
        return {"weights": np.asarray(found.weights_), "dual": np.asarray(found.dual_coef_)}
    data = found.data if hasattr(found, "data") else found.scores
    return {str(name): values.values for name, values in data.data_vars.items() if name in _TOLD}


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """Results are equal, whatever they were disturbed by."""
    assert found.keys() == expected.keys()
    assert found
    for name, values in expected.items():
        if values.dtype.kind in "fi":
            np.testing.assert_allclose(found[name], values, rtol=1e-10, atol=1e-12)
        else:
            np.testing.assert_array_equal(found[name], values)


@contextmanager
def revived_workers(n_workers=2):
    """A client of worker processes of one thread, which their nannies start again, quietly, when they die."""
    with local_cluster(n_workers, silence_logs=logging.CRITICAL) as cluster, Client(cluster) as client:
        yield client


# --- what must hold --------------------------------------------------------------------------------------------------


def told(err):
    """The one error, and the notes, of what a command said; nothing else may be there."""
    lines = [line for line in err.strip().splitlines() if not line.startswith("dmkl: note: dashboard of")]
    errors = [line for line in lines if line.startswith("dmkl: error: ")]
    notes = [line for line in lines if line.startswith("dmkl: note: ")]
    progress = [
        line for line in lines if re.match(r"(fold \d+: )?(pass \d|\d+/\d|\d+ of \d|error [≤>]|step \d|cut)", line)
    ]
    assert len(errors) + len(notes) + len(progress) == len(lines), err
    return errors, notes


def left(out, phase):
    """What stands beside an output that was not reached: nothing but what the same command goes on with."""
    there = {entry.name for entry in out.parent.iterdir()}
    assert there <= ({"out.partial"} if PHASES[phase].state else set()), there
    return bool(there)


def assert_goes_on(run, phase, own, out, undisturbed):
    status, _, err = run(*PHASES[phase].command(own, out))
    assert status == 0, err
    assert_same(result(out), undisturbed(phase))
    assert [entry.name for entry in out.parent.iterdir()] == ["out"]


# --- faults ----------------------------------------------------------------------------------------------------------


@contextmanager
def disturbed(act: Callable[[], None], after: int = 3):
    """Act once, when a command has been told of so many tasks that ended; yields whether it came to that."""
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
    """Interrupt what calls a function, once it was called so many times."""
    calls, whole = itertools.count(), getattr(owner, name)

    def call(*given, **named):
        if next(calls) >= after:
            raise KeyboardInterrupt
        return whole(*given, **named)

    with patch.object(owner, name, call), pytest.raises(KeyboardInterrupt):
        yield


@contextmanager
def disk_that_fills():
    """Yields what fills the disk: no file of this process can grow any more."""
    before, ignored = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (16, before[1]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


def _tiles(store: Path) -> list[Path]:
    (folder,) = store.glob("gram*")
    return [file for file in (folder / "c").rglob("*") if file.is_file()]


def delete(store: Path, _: Path) -> None:
    # At once: a reader that finds some files of a folder and not others may say of either what is wrong.
    shutil.rmtree(store.rename(store.with_name("deleted.zarr")))


def cut(store: Path, _: Path) -> None:
    for tile in _tiles(store):
        part = tile.read_bytes()[:40]
        tile.unlink()  # a file that shrinks while it is mapped kills who reads it
        tile.write_bytes(part)


def flip_all(store: Path, _: Path) -> None:
    for tile in _tiles(store):
        flip(tile, 7, 64)


def lose(store: Path, _: Path) -> None:
    for tile in _tiles(store):
        tile.unlink()


def exchange(store: Path, other: Path) -> None:
    copy = shutil.copytree(other, store.with_name("copied.zarr"))
    store.rename(store.with_name("before.zarr"))
    copy.rename(store)


DAMAGES = {"deleted": delete, "cut": cut, "flipped": flip_all, "missing": lose, "exchanged": exchange}


def by_signal(name: str) -> None:
    """What a batch system or a user sends, to this process."""
    os.kill(os.getpid(), getattr(signal, name))


# --- clusters --------------------------------------------------------------------------------------------------------


class Processes:
    """A scheduler and two workers that nobody starts again, in processes that can be killed one by one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.file = folder / "scheduler.json"
        self.workers: list[subprocess.Popen[bytes]] = []
        self.scheduler = self._start("scheduler", "--port", "0", "--dashboard-address", "127.0.0.1:0")
        deadline = time.monotonic() + 60
        while not self.file.exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        self.add_workers()

    def add_workers(self) -> None:
        """Start two workers, and wait for them."""
        here = ("--no-nanny", "--nthreads", "1", "--memory-limit", "0", "--local-directory", str(self._folder))
        self.workers += [self._start("worker", *here) for _ in range(2)]
        with Client(scheduler_file=str(self.file)) as client:
            client.wait_for_workers(2, timeout=60)

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "dask", *arguments, "--host", "127.0.0.1", "--scheduler-file", str(self.file)]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill(self, *victims: subprocess.Popen[bytes]) -> None:
        """End some of them at once."""
        for victim in victims:
            victim.kill()
            victim.wait()
