"""Simulated overhead of one pass of a search on a large cluster, without the cluster and the kernels.

    python pipelines/simulate_scale.py                         # 1,000 kernels of 100,000 samples, 100 nodes of 32 cores
    python pipelines/simulate_scale.py --plan                  # only the graph of the pass, no scheduler
    python pipelines/simulate_scale.py --kernels 5 --samples 12000 --tile 256 --nodes 15 --cores 1

The script plans the pass that multiplies a block of new basis vectors with all kernels, as in a search, and runs its
graph on Dask's scheduler with one worker for each node, all in this process. There are no kernels: a task sleeps and
returns a placeholder with the size of its result. Scheduler and workers count tasks, seconds and bytes moved.
"""

from __future__ import annotations

import argparse
import asyncio
import pickle
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import dask
import numpy as np
import psutil
from dask.sizeof import sizeof
from distributed import Client, LocalCluster, SchedulerPlugin

# This job measures the planning of passes, and so imports private modules; other jobs use public names only.
from dmkl.arrays import Tiling
from dmkl.numerics.steps import Centering, Fitted
from dmkl.passes import run
from dmkl.passes.view import Lens, TileKey, View
from dmkl.solvers.fisher.subspace import directions
from dmkl.solvers.fisher.subspace.space import TrainingSubspace
from dmkl.solvers.fisher.subspace.tasks import Strips, keep
from dmkl.solvers.jobs import Training


class Source:
    """A source of kernels that are never read."""

    def __init__(self, n: int, m: int, tile: int) -> None:
        self.names = tuple(f"kernel{j}" for j in range(n))
        self.samples = self.train_samples = np.arange(m)
        self.dtype, self.tiling, self.symmetric = np.dtype(np.float32), Tiling(m, m, tile, upper=True), True
        self.content_id, self.reads_per_tile, self.scratch_bytes, self.factors = "invented", 1, 0, None

    def stream(self, keys: Sequence[TileKey]) -> Iterator[Any]:
        """Raise: no task reads kernels."""
        raise NotImplementedError

    def diagonal(self, kernels: Any) -> None:
        """Return no diagonal."""

    def row_sum(self, kernels: Any) -> None:
        """Return no row sums."""


class Sized:
    """A placeholder for an array of n_bytes."""

    def __init__(self, n_bytes: int) -> None:
        self.n_bytes = n_bytes


sizeof.register(Sized)(lambda array: array.n_bytes)
EVENTS: dict[str, Any] = {"first": 0.0, "seconds": 1.0}


def send(values: Mapping[str, Any], **_: bool) -> list[None]:
    """Store values for the workers, which are all in this process, instead of sending them."""
    (EVENTS["work"],) = values.values()
    return [None]


def part_bytes(unit: Any, lens: Any, c: Any) -> int:
    """Return the bytes that the task of a unit returns for a column block."""
    if c.want == "project":
        return len(unit.kernels) * c.width**2 * 8
    if c.want == "sum":
        return lens.view.shape[1] * c.width * 8
    n_rows = len(unit.kernels) * lens.view.shape[1] if unit.whole else len(unit.rows(lens.view))
    return n_rows * c.width * c.dtype.itemsize


async def sweep(_: Any, __: Any, number: int, *more: Any) -> Any:
    """Sleep in place of a task that multiplies, and return placeholders."""
    EVENTS["first"] = EVENTS["first"] or time.perf_counter()
    await asyncio.sleep(EVENTS["seconds"] * np.random.default_rng(number).uniform(0.8, 1.2))
    shared = EVENTS["work"]
    unit = shared.units[number]
    parts = [Sized(part_bytes(unit, shared.lenses[c.lens], c)) for c in shared.columns]
    return more[-1](parts) if more and callable(more[-1]) else parts


async def finish(*arguments: Any) -> Any:
    """Replace the task that sums and stores the parts of a kernel's products."""
    return arguments[-1](arguments[-2])


def merge_partials(partials: list[list[Sized]]) -> list[Sized]:
    """Replace the task that sums partial results; assumes that these have no rows in common."""
    return [Sized(sum(part.n_bytes for part in same)) for same in zip(*partials, strict=True)]


def keep_products(_: Any, *, keepings: Sequence[Any], kernels: tuple[int, ...], tasks_per_machine: int) -> list[Any]:
    """Replace the function that writes products."""
    return [(np.zeros((len(kernels), 1, 1)), None) for _ in keepings]


class TaskCounter(SchedulerPlugin):
    """A count of the executed tasks by the prefix of their keys."""

    def __init__(self) -> None:
        self.ran: Counter[str] = Counter()

    def transition(self, key: Any, start: str, finish: str, *_: Any, **__: Any) -> None:
        """Count a task at its end; called by Dask."""
        if start == "processing" and finish == "memory":
            self.ran["-".join(part for part in str(key).split("-")[:4] if not part[:1].isdigit())] += 1


class Sampler(threading.Thread):
    """A thread that measures the peak memory of results on a worker, and of this process."""

    def __init__(self, cluster: LocalCluster) -> None:
        super().__init__(daemon=True)
        self._scheduler, self._done = cluster.scheduler, threading.Event()
        self.held, self.resident = 0, psutil.Process().memory_info().rss

    def run(self) -> None:
        """Sample until the end; called by Thread."""
        while not self._done.wait(0.2):
            self.held = max([self.held, *(worker.nbytes for worker in list(self._scheduler.workers.values()))])
            self.resident = max(self.resident, psutil.Process().memory_info().rss)

    def end(self) -> None:
        """Stop sampling."""
        self._done.set()
        self.join()


def block_list(source: Source, columns: int, folds: int, folder: Path) -> list[Any]:
    """Return the new basis vectors of every fold, or of one training set of all samples."""
    m, n = len(source.samples), len(source.names)
    rng = np.random.default_rng(0)
    blocks = []
    for fold in range(folds):
        train = np.arange(m) if folds == 1 else np.flatnonzero(np.arange(m) % folds != fold)
        rows = np.concatenate([train, np.setdiff1d(np.arange(m), train)])
        view = View(source, np.arange(n), train, train)
        square = Lens(view, Fitted((Centering(np.zeros((n, len(train)))),)))
        mean = np.zeros((n, len(train)))
        whole = Lens(View(source, np.arange(n), rows, train), Fitted((Centering(mean, square=False),)))
        place = folder / f"fold-{fold}"
        place.mkdir()
        space = TrainingSubspace(Training(square, square if folds == 1 else whole), (), place)
        width = columns // folds
        vectors = keep(rng.standard_normal((len(train), width)), str(place / "vectors.npy"))
        strips = Strips((vectors,), len(train), (0, width))
        blocks.append(directions._Factor(space, strips, (0, width), source.dtype))
    return blocks


def plan(options: argparse.Namespace, folder: Path) -> None:
    """Build the graph of the pass, and print its number of tasks and planning time."""
    load = block_list(Source(options.kernels, options.samples, options.tile), options.columns, options.folds, folder)
    started = time.process_time()
    graph = run.pass_graph(*directions._columns(load), "extend-pass")
    spent = time.process_time() - started
    tasks = {
        key for delayed in [*(unit for unit, _ in graph.units), *(d for _, d in graph.groups)] for key in delayed.dask
    }
    print(f"tasks {len(tasks):,}, of which {len(graph.units):,} read kernels; planned in {spent:.1f} s of CPU time")


def simulate(options: argparse.Namespace, folder: Path) -> None:
    """Run the pass, and print its seconds, tasks and bytes."""
    source = Source(options.kernels, options.samples, options.tile)
    load = block_list(source, options.columns, options.folds, folder)
    products = 4 * options.kernels * options.samples * options.columns
    cluster = LocalCluster(
        n_workers=options.nodes,
        threads_per_worker=options.cores,
        processes=False,
        memory_limit=0,
        dashboard_address=None,
    )
    with cluster, Client(cluster):
        counter = TaskCounter()
        cluster.scheduler.add_plugin(counter)
        sampler = Sampler(cluster)
        sampler.start()
        before, clock, spent = sampler.resident, time.perf_counter(), time.process_time()
        planned: list[float] = []
        execute = directions.execute

        def planning(*arguments: Any, **keywords: Any) -> Any:
            planned.append(time.perf_counter() - clock)
            return execute(*arguments, **keywords)

        directions.execute = planning
        directions._pass(load, 1)
        seconds, spent = time.perf_counter() - clock, time.process_time() - spent
        directions.execute = execute
        sampler.end()
        received = [entry for worker in cluster.workers.values() for entry in worker.transfer_incoming_log]
        moved = sum(sum(entry["keys"].values()) for entry in received)
    vectors = sum(file.stat().st_size for file in folder.rglob("vectors.npy"))
    returned = 8 * options.kernels * options.columns**2 // options.folds
    sent = len(pickle.dumps(EVENTS["work"])) * options.nodes
    blocks = f"{options.folds} × {options.columns // options.folds} columns"
    print(f"{options.kernels:,} kernels of {options.samples:,} samples, {blocks}")
    print(f"{options.nodes} nodes of {options.cores} cores; tasks of about {options.seconds:g} s\n")
    ran = counter.ran
    rows = [
        ("tasks of the pass", f"{ran.total():,}  ({', '.join(f'{name} {k:,}' for name, k in ran.most_common(5))})"),
        ("planning", f"{planned[0]:.1f} s"),
        ("until the first task runs", f"{EVENTS['first'] - clock:.1f} s"),
        ("the pass", f"{seconds:.1f} s, {spent:.1f} s of this process's CPU"),
        ("products", f"{products / 1e9:.1f} GB"),
        ("partial products moved", f"{moved / 1e9:.1f} GB, {moved / products:.2f} of the products"),
        ("vectors that all nodes read from disk", f"{options.nodes * vectors / 1e9:.2g} GB"),
        ("task arguments sent by the client", f"{sent / 1e9:.1f} GB"),
        ("results sent to the client", f"{returned / 1e9:.1f} GB"),
        ("peak memory of results on a node", f"{sampler.held / 1e9:.1f} GB"),
        ("scheduler, client, worker bookkeeping", f"{(sampler.resident - before) / 2**20:.0f} MiB more"),
    ]
    for name, value in rows:
        print(f"{name:<42}{value}")


def main() -> None:
    """Read the options, replace the functions that do the work, and simulate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--tile", type=int, default=2048)
    parser.add_argument("--columns", type=int, default=384, help="number of new basis vectors of all folds")
    parser.add_argument("--folds", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--cores", type=int, default=32)
    parser.add_argument("--plan", action="store_true", help="build the graph without running it")
    parser.add_argument("--seconds", type=float, default=5.0, help="mean seconds that a task sleeps")
    options = parser.parse_args()
    import simulate_scale as job  # tasks must refer to functions of a module, not of __main__

    job.EVENTS["seconds"] = options.seconds
    run.merge_partials = job.merge_partials
    run._sweep_part, run._finish, directions.keep_products = job.sweep, job.finish, job.keep_products
    if not options.plan:
        run.send_all = job.send
    settings = {"dmkl.memory": options.nodes * 2**38, "distributed.comm.timeouts.connect": "300s"}
    with dask.config.set(settings), tempfile.TemporaryDirectory() as folder:
        (job.plan if options.plan else job.simulate)(options, Path(folder))


if __name__ == "__main__":
    main()
