"""Kill a search's client, a worker, its scheduler with SIGKILL, and show that nothing is lost but the pass under way.

    python pipelines/killed_search.py                      # 12 kernels of 600 digits, the papers' grid, 3 folds
    python pipelines/killed_search.py -m 1797 -n 30        # a larger one
    python pipelines/killed_search.py --keep killed        # keeps sets, states, results and logs in this folder

A scheduler, two workers and the process that searches are processes of their own. Four searches keep their state in
a folder each: one is left alone; of one the searching process is killed after pass 2, of one a worker during pass 3,
of one the scheduler after pass 4. Where that ends the searching process, the same search is started again. All four
must choose the same point and have the same scores, objectives that differ by 1e-4 at most, and the disturbed ones may
begin one pass more than the one left alone. The exit status is 1 where something of this does not hold.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from distributed import Client
from sklearn.datasets import load_digits
from sklearn.metrics.pairwise import euclidean_distances
from sklearn.model_selection import StratifiedKFold

import dmkl

POLL_SECONDS = 0.002
PATIENCE_SECONDS = 600.0
MOST_DIFFERENT = 1e-4
"""Relative difference of objectives."""
SEARCH = "search"
"""First argument of the process that searches."""


def make_set(store: Path, n: int, m: int) -> None:
    """RBF kernels of 16 random pixels each, every third of noise, with 3 stratified folds."""
    rng = np.random.default_rng(0)
    pixels, labels = (array[:m] for array in load_digits(return_X_y=True))

    def kernels() -> Iterator[np.ndarray]:
        for k in range(n):
            chosen, noise = rng.choice(64, 16, replace=False), rng.standard_normal((len(pixels), 16))
            distance = euclidean_distances(noise if k % 3 == 2 else pixels[:, chosen], squared=True)
            yield np.exp(-(0.3, 1.0, 3.0, 10.0)[k % 4] * distance / distance.mean()).astype(np.float32)

    splits = np.zeros((3, len(labels)), dtype=np.int8)
    folds = StratifiedKFold(3, shuffle=True, random_state=0).split(labels, labels)
    for split, (_, validation) in zip(splits, folds, strict=True):
        split[validation] = 1
    dmkl.create(store, kernels(), labels=labels, splits=splits)


# --- the process that searches ---------------------------------------------------------------------------------------


class PassLog(dmkl.ConsoleWatch):
    """Writes a line to a file when a pass begins, and nothing on the terminal."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def begin(self, what: str, total_bytes: int) -> None:
        """Work that reads no kernels is no pass."""
        if total_bytes:
            with open(self.path, "a") as file:
                file.write(f"{what}\n")

    def advance(self, n_bytes: int) -> None:
        """Not told."""

    def end(self) -> None:
        """Not told."""

    def note(self, text: str) -> None:
        """Not told."""


def search(store: Path, folder: Path, scheduler: Path) -> None:
    """Search the papers' grid, or go on with it."""
    try:
        with Client(scheduler_file=str(scheduler)), PassLog(folder / "passes.txt"):
            result = dmkl.search(dmkl.MKFDA(), dmkl.open(store), cv="splits", state=folder / "state", refit=False)
    except dmkl.errors.DmklError as error:
        sys.exit(f"error: {error}")
    result.save(folder / "result.zarr")


# --- the cluster -----------------------------------------------------------------------------------------------------


class Cluster:
    """A scheduler and two workers of one thread, processes that can be killed one by one."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.file = folder / "scheduler.json"
        self.log = open(folder / "log.txt", "w")
        here = ["--host", "127.0.0.1", "--dashboard-address", "127.0.0.1:0", "--scheduler-file", str(self.file)]
        self.scheduler = self._start("scheduler", *here, "--port", "0")
        wait_for(self.file.exists, "the scheduler")
        worker = ["worker", *here, "--no-nanny", "--nthreads", "1", "--memory-limit", "0"]
        self.workers = [self._start(*worker, "--local-directory", str(folder)) for _ in range(2)]
        with Client(scheduler_file=str(self.file)) as client:
            client.wait_for_workers(2, timeout=60)

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-m", "dask", *arguments], stdout=self.log, stderr=self.log)

    def close(self) -> None:
        """End what is left of it."""
        for process in (*self.workers, self.scheduler):
            process.kill()
            process.wait()
        self.log.close()


def wait_for(reached: Callable[[], bool], what: str) -> None:
    """Look every few milliseconds until `reached` says so."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not reached():
        if time.monotonic() > deadline:
            msg = f"{what}: not there after {PATIENCE_SECONDS:g} s"
            raise TimeoutError(msg)
        time.sleep(POLL_SECONDS)


# --- a search that is disturbed --------------------------------------------------------------------------------------


@dataclass
class Run:
    """A search in a folder of its own, with the processes that take part in it."""

    store: Path
    folder: Path
    clusters: list[Cluster] = field(default_factory=list)
    children: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def passes_done(self) -> int:
        """Passes that the state counts."""
        file = self.folder / "state" / "state.json"
        return json.loads(file.read_text())["state"].get("solver", {}).get("n_passes", 0) if file.exists() else 0

    @property
    def passes_begun(self) -> int:
        """Passes that any of the searching processes began."""
        file = self.folder / "passes.txt"
        return len(file.read_text().splitlines()) if file.exists() else 0

    def start_cluster(self) -> Cluster:
        """A new one."""
        self.clusters.append(Cluster(self.folder / f"cluster-{len(self.clusters)}"))
        return self.clusters[-1]

    def start_search(self) -> subprocess.Popen[bytes]:
        """Start, or start again, the process that searches; what it says goes to a file."""
        command = [sys.executable, __file__, SEARCH, self.store, self.folder, self.clusters[-1].file]
        with open(self.folder / f"said-{len(self.children)}.txt", "w") as said:
            self.children.append(subprocess.Popen(command, stdout=said, stderr=said))
        return self.children[-1]

    @property
    def said(self) -> Path:
        """What the searching process started last has said."""
        return self.folder / f"said-{len(self.children) - 1}.txt"

    def close(self) -> None:
        """End all of its processes."""
        for child in self.children:
            child.kill()
            child.wait()
        for cluster in self.clusters:
            cluster.close()


def searched(run: Run, victim: str | None, moment: Callable[[Run], bool]) -> dmkl.SearchResult:
    """Search, kill the victim at that moment, search again where need be."""
    cluster, child = run.start_cluster(), run.start_search()
    if victim is not None:
        wait_for(lambda: moment(run) or child.poll() is not None, f"the moment to kill the {victim}")
        {"client": child, "worker": cluster.workers[0], "scheduler": cluster.scheduler}[victim].kill()
        if child.poll() == 0:
            sys.exit(f"the search ended before the {victim} could be killed; take more samples, -m")
        print(f"  killed with {run.passes_done} passes done and {run.passes_begun} begun", flush=True)
    killed = time.monotonic()
    if child.wait(PATIENCE_SECONDS):
        lines = run.said.read_text().strip().splitlines()
        print(f"  {time.monotonic() - killed:.1f} s later it ended with status {child.returncode}, saying", end=" ")
        print(f"{len(lines)} lines", *(lines if len(lines) <= 3 else [lines[0], "...", lines[-1]]), sep="\n    | ")
        if cluster.scheduler.poll() is not None:
            cluster.close()
            run.start_cluster()
        if run.start_search().wait(PATIENCE_SECONDS):
            sys.exit(f"the search failed when it was started again:\n{run.said.read_text()}")
    return dmkl.load(run.folder / "result.zarr")


def holds(found: dmkl.SearchResult, run: Run, reference: dmkl.SearchResult, passes: int) -> bool:
    """Compare a search with the one left alone, which began so many passes."""
    scores = int((found.scores["score"] != reference.scores["score"]).sum())
    objective = reference.scores["objective"]
    different = float((np.abs(found.scores["objective"] - objective) / np.abs(objective)).max())
    more = run.passes_begun - passes
    checks = {
        "the same point": found.best_params_ == reference.best_params_,
        f"{scores:,} of {objective.size:,} scores differ": not scores,
        f"objectives differ by {different:.1e} at most": different <= MOST_DIFFERENT,
        f"{more:+d} passes begun, {found.n_passes_ - reference.n_passes_:+.0f} in the result": (
            max(more, found.n_passes_ - reference.n_passes_) <= 1
        ),
    }
    for what, fine in checks.items():
        print(f"  {'as it must be' if fine else 'WRONG':<15}{what}")
    return all(checks.values())


def main() -> None:
    """Search once in peace and three times with a kill, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=12, help="kernels")
    parser.add_argument("-m", type=int, default=600, help="samples")
    parser.add_argument("--keep", type=Path, help="a folder that is not there yet, for everything")
    options = parser.parse_args()
    plans: dict[str, tuple[str | None, Callable[[Run], bool]]] = {
        "left alone": (None, lambda _: True),
        "client killed after pass 2": ("client", lambda run: run.passes_done >= 2),
        "worker killed during pass 3": ("worker", lambda run: run.passes_begun >= 3),
        "scheduler killed after pass 4": ("scheduler", lambda run: run.passes_done >= 4),
    }
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch) / "killed"
        folder.mkdir(parents=True)
        make_set(folder / "kernels.zarr", options.n, options.m)
        reference: tuple[dmkl.SearchResult, int] | None = None
        fine = True
        for title, (victim, moment) in plans.items():
            print(title, flush=True)
            run = Run(folder / "kernels.zarr", folder / title.replace(" ", "-"))
            try:
                found = searched(run, victim, moment)
            finally:
                run.close()
            print(f"  {next(line for line in found.summary().splitlines() if ' fits (' in line)}")
            if reference is None:
                reference = found, run.passes_begun
            else:
                fine &= holds(found, run, *reference)
    sys.exit(not fine)


if __name__ == "__main__":
    if sys.argv[1:2] == [SEARCH]:
        search(*map(Path, sys.argv[2:]))
    else:
        main()
