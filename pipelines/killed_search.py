"""Kill the client, a worker or the scheduler of a search with SIGKILL, and check that only the running pass is lost.

    python pipelines/killed_search.py                      # 12 kernels of 600 digits, the papers' grid, 3 folds
    python pipelines/killed_search.py -m 1797 -n 30        # a larger one
    python pipelines/killed_search.py --keep killed        # keeps sets, states, results and logs in this folder

The scheduler, two workers and the client are separate processes. Four searches keep their state in separate folders.
The first runs undisturbed; the others lose the client after pass 2, a worker during pass 3, or the scheduler after
pass 4. If the client ends with an error, the script starts the same search again. All four must choose the same point
and have the same scores, and objectives that differ by at most 1e-4; a disturbed search may begin one pass more than
the first. The exit status is 1 if one of these checks fails.
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
"""Largest allowed relative difference of objectives."""
SEARCH = "search"
"""First argument of the client process."""


def make_set(store: Path, n: int, m: int) -> None:
    """Store RBF kernels of 16 random pixels each, every third of noise, with 3 stratified folds."""
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


# --- the client -------------------------------------------------------------------------------------------------------


class PassLog(dmkl.ConsoleWatch):
    """Write a line to a file when a pass begins, and nothing on the terminal."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def begin(self, what: str, total_bytes: int) -> None:
        """Log a pass; work that reads no kernels is not a pass."""
        if total_bytes:
            with open(self.path, "a") as file:
                file.write(f"{what}\n")

    def advance(self, n_bytes: int) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""

    def note(self, text: str, remark: str = "") -> None:
        """Do nothing."""


def search(store: Path, folder: Path, scheduler: Path) -> None:
    """Search the papers' grid, or resume the search."""
    try:
        with Client(scheduler_file=str(scheduler)), PassLog(folder / "passes.txt"):
            result = dmkl.search(dmkl.MKFDA(), dmkl.open(store), cv="splits", state=folder / "state", refit=False)
    except dmkl.errors.DmklError as error:
        sys.exit(f"error: {error}")
    result.save(folder / "result.zarr")


# --- the cluster -----------------------------------------------------------------------------------------------------


class Cluster:
    """A scheduler and two single-threaded workers, as separate processes."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.file = folder / "scheduler.json"
        self.log = open(folder / "log.txt", "w")
        address = ["--host", "127.0.0.1", "--dashboard-address", "127.0.0.1:0", "--scheduler-file", str(self.file)]
        self.scheduler = self._start("scheduler", *address, "--port", "0")
        wait_for(self.file.exists, "the scheduler")
        worker = ["worker", *address, "--no-nanny", "--nthreads", "1", "--memory-limit", "0"]
        self.workers = [self._start(*worker, "--local-directory", str(folder)) for _ in range(2)]
        with Client(scheduler_file=str(self.file)) as client:
            client.wait_for_workers(2, timeout=60)

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-m", "dask", *arguments], stdout=self.log, stderr=self.log)

    def close(self) -> None:
        """Kill the scheduler and the workers."""
        for process in (*self.workers, self.scheduler):
            process.kill()
            process.wait()
        self.log.close()


def wait_for(condition: Callable[[], bool], label: str) -> None:
    """Poll until `condition` returns True, or raise TimeoutError."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            msg = f"no success after {PATIENCE_SECONDS:g} s of waiting for {label}"
            raise TimeoutError(msg)
        time.sleep(POLL_SECONDS)


# --- the searches ----------------------------------------------------------------------------------------------------


@dataclass
class Run:
    """A search with its folder and its processes."""

    store: Path
    folder: Path
    clusters: list[Cluster] = field(default_factory=list)
    children: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def passes_done(self) -> int:
        """The number of passes in the saved state."""
        file = self.folder / "state" / "state.json"
        return json.loads(file.read_text())["state"].get("solver", {}).get("n_passes", 0) if file.exists() else 0

    @property
    def passes_begun(self) -> int:
        """The number of passes that the clients began."""
        file = self.folder / "passes.txt"
        return len(file.read_text().splitlines()) if file.exists() else 0

    def start_cluster(self) -> Cluster:
        """Start a new cluster."""
        self.clusters.append(Cluster(self.folder / f"cluster-{len(self.clusters)}"))
        return self.clusters[-1]

    def start_search(self) -> subprocess.Popen[bytes]:
        """Start or restart the client, with its output in a file."""
        command = [sys.executable, __file__, SEARCH, self.store, self.folder, self.clusters[-1].file]
        with open(self.folder / f"said-{len(self.children)}.txt", "w") as output:
            self.children.append(subprocess.Popen(command, stdout=output, stderr=output))
        return self.children[-1]

    @property
    def output(self) -> Path:
        """The output file of the client started last."""
        return self.folder / f"said-{len(self.children) - 1}.txt"

    def close(self) -> None:
        """Kill all processes."""
        for child in self.children:
            child.kill()
            child.wait()
        for cluster in self.clusters:
            cluster.close()


def run_search(run: Run, victim: str | None, moment: Callable[[Run], bool]) -> dmkl.SearchResult:
    """Search, kill the victim when `moment` is true, and search again if the client fails."""
    cluster, child = run.start_cluster(), run.start_search()
    if victim is not None:
        wait_for(lambda: moment(run) or child.poll() is not None, f"the moment to kill the {victim}")
        {"client": child, "worker": cluster.workers[0], "scheduler": cluster.scheduler}[victim].kill()
        if child.poll() == 0:
            sys.exit(f"the search ended before the {victim} could be killed; take more samples, -m")
        print(f"  killed with {run.passes_done} passes done and {run.passes_begun} begun", flush=True)
    kill_time = time.monotonic()
    if child.wait(PATIENCE_SECONDS):
        lines = run.output.read_text().strip().splitlines()
        print(f"  {time.monotonic() - kill_time:.1f} s later the client ended with {child.returncode} and", end=" ")
        print(f"{len(lines)} lines:", *(lines if len(lines) <= 3 else [lines[0], "...", lines[-1]]), sep="\n    | ")
        if cluster.scheduler.poll() is not None:
            cluster.close()
            run.start_cluster()
        if run.start_search().wait(PATIENCE_SECONDS):
            sys.exit(f"the search failed when it was started again:\n{run.output.read_text()}")
    return dmkl.load(run.folder / "result.zarr")


def holds(result: dmkl.SearchResult, run: Run, reference: dmkl.SearchResult, passes: int) -> bool:
    """Compare a search with the reference, which began `passes` passes."""
    scores = int((result.scores["score"] != reference.scores["score"]).sum())
    objective = reference.scores["objective"]
    difference = float((np.abs(result.scores["objective"] - objective) / np.abs(objective)).max())
    more = run.passes_begun - passes
    checks = {
        "the same point": result.best_params_ == reference.best_params_,
        f"{scores:,} of {objective.size:,} scores differ": not scores,
        f"objectives differ by {difference:.1e} at most": difference <= MOST_DIFFERENT,
        f"{more:+d} passes begun, {result.n_passes_ - reference.n_passes_:+.0f} in the result": (
            max(more, result.n_passes_ - reference.n_passes_) <= 1
        ),
    }
    for label, passed in checks.items():
        print(f"  {'as expected' if passed else 'WRONG':<15}{label}")
    return all(checks.values())


def main() -> None:
    """Run one search undisturbed and three with a kill, and compare them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=12, help="kernels")
    parser.add_argument("-m", type=int, default=600, help="samples")
    parser.add_argument("--keep", type=Path, help="new folder that keeps all files")
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
        passed = True
        for title, (victim, moment) in plans.items():
            print(title, flush=True)
            run = Run(folder / "kernels.zarr", folder / title.replace(" ", "-"))
            try:
                result = run_search(run, victim, moment)
            finally:
                run.close()
            print(f"  {next(line for line in result.summary().splitlines() if ' fits (' in line)}")
            if reference is None:
                reference = result, run.passes_begun
            else:
                passed &= holds(result, run, *reference)
    sys.exit(not passed)


if __name__ == "__main__":
    if sys.argv[1:2] == [SEARCH]:
        search(*map(Path, sys.argv[2:]))
    else:
        main()
