"""Checks before long work: the folders, the memory and the versions of each host, and which solvers fit."""

from __future__ import annotations

import math
import platform
import shutil
import socket
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dmkl import settings
from dmkl._version import version
from dmkl.arrays import by_key
from dmkl.errors import DmklError, InputError, first_names, one_line, size_text
from dmkl.passes import execute

if TYPE_CHECKING:
    from dmkl.kernelset import KernelSet

_PACKAGES = ("numpy", "zarr", "dask", "distributed")


@dataclass(frozen=True)
class Host:
    """A machine, or a job of a batch system on one, as a process there describes it."""

    name: str
    job: str  # of a batch system, empty if there is none
    cores: int
    free_bytes: int
    temporary: str  # the folder for temporary files
    temporary_free_bytes: int
    versions: dict[str, str]
    workers: int = 1
    slots: int = 1
    silent: bool = False  # whether its workers give no answer: passes go on without them
    problems: tuple[str, ...] = ()  # sentences with host and path; the host cannot take part
    differences: tuple[str, ...] = ()  # sentences on other versions than those of this process, and too few cores


@dataclass(frozen=True)
class Requirement:
    """Whether a part of a solver fits in memory or on disk, and the numbers that say so."""

    part: str
    fits: bool
    reason: str


# --- hosts ---------------------------------------------------------------------------------------------------------


def inspect_hosts(store: tuple[str, str] | None = None, state: Path | None = None) -> list[Host]:
    """Ask one process of each host, or this process if there is no cluster.

    Every host must see `store`, location and content id of a kernel set, and write in `state` what this process sees.
    """
    client = execute.active_client()
    with _mark_file(state) as mark:
        if client is None:
            return [_compare(_describe(store, mark), "", mark, 1, execute.machine().slots, [None])]
        reports = execute.workers_of(client)  # waits for a worker
        others = execute.workers_of_another_dmkl(client, reports)
        same = {address: reports[address] for address in reports if address not in others}
        by_place = by_key(execute.look_at(client, same), lambda worker: worker.place)
        first = {workers[0].address: workers for workers in by_place.values()}
        answers = execute.ask(client, _describe, store, mark, workers=first)
        alike = [worker.address for workers in first.values() for worker in workers]
        cores = execute.ask(client, settings.bound_cores, workers=alike)
        hosts = []
        for address, workers in first.items():
            if address in answers:
                slots = sum(worker.slots for worker in workers)
                bound = [cores.get(worker.address) for worker in workers]
                hosts.append(_compare(answers[address], workers[0].place[0], mark, len(workers), slots, bound))
        unfit: dict[tuple[str, str], list[str]] = {}  # workers that cannot take part, by host and version of dmkl there
        for address, there in others.items():
            unfit.setdefault((reports[address]["host"], there), []).append(address)
        for (name, there), addresses in unfit.items():
            silent, threads = there == execute.NO_ANSWER, [reports[address]["nthreads"] for address in addresses]
            problem = f"workers on {name} give no answer ({first_names(addresses, 3)}). {execute.NO_WAY_THERE}"
            if not silent:
                way_out = "install the same there, and start its workers again"
                problem = f"{name} runs dmkl {there}, and this process runs dmkl {version()}; {way_out}"
            packages = {} if silent else {"dmkl": there}
            hosts.append(Host(name, "", 0, 0, "", 0, packages, len(threads), sum(threads), silent, (problem,)))
        return hosts


def check_hosts(store: tuple[str, str] | None = None, state: Path | None = None) -> list[str]:
    """Refuse a cluster with a host that answers and cannot take part, and return the differences of all hosts."""
    if execute.active_client() is None:
        return []
    hosts = inspect_hosts(store, state)
    if problems := [problem for host in hosts if not host.silent for problem in host.problems]:
        more = f" (and {len(problems) - 1} more; `dmkl preflight` lists them)" if len(problems) > 1 else ""
        raise InputError(problems[0] + more)
    return [difference for host in hosts for difference in host.differences]


@contextmanager
def _mark_file(state: Path | None) -> Iterator[Path | None]:
    """A temporary file in the folder of the checkpoint, next to which each host writes its own."""
    if state is None:
        yield None
        return
    from dmkl.solvers.workspace import state_folder

    state = state_folder(state)
    made = not state.exists()
    state.mkdir(parents=True, exist_ok=True)
    mark = state / f"seen-{uuid.uuid4().hex}.partial"
    try:
        mark.touch()
        yield mark
    finally:
        for file in state.glob(f"{mark.name}*"):
            file.unlink(missing_ok=True)
        if made:
            state.rmdir()


def _describe(store: tuple[str, str] | None, mark: Path | None) -> Host:
    from dmkl.store.reader import open_root

    name = socket.gethostname()
    problems: list[str] = []
    if store is not None:
        (location, content_id), shared = store, "the path must mean the same folder on every machine"
        try:
            identity = str(open_root(location).attrs.get("content_id"))
            if identity != content_id:
                what = f"sees another kernel set at {location} ({identity}) than this machine ({content_id})"
                problems.append(f"{name} {what}; {shared}")
        except (DmklError, OSError) as error:
            problems.append(f"{name} does not see the kernel set {location} ({one_line(error)}); {shared}")
    if mark is not None:
        folder = f"{mark.parent}, where a search keeps its checkpoint"
        shared = "give a folder on a file system that all machines share"
        try:
            if mark.exists():
                mark.with_name(f"{mark.name}.{name}").write_text(name)
            else:
                problems.append(f"{name} does not see the folder {folder}; {shared}")
        except OSError as error:
            problems.append(f"{name} cannot write in {folder} ({error.strerror}); {shared}")
    temporary, free = tempfile.gettempdir(), 0
    try:
        with tempfile.TemporaryFile() as file:
            file.write(b"dmkl")
        free = shutil.disk_usage(temporary).free
    except OSError as error:
        why = error.strerror or error
        problems.append(f"{name} cannot write temporary files in {temporary} ({why}); set TMPDIR to another folder")
    cores, free_bytes = settings.available_cores(), settings.free_bytes()
    place, versions = settings.machine_name(), versions_of(_PACKAGES)
    return Host(name, place, cores, free_bytes, temporary, free, versions, problems=tuple(problems))


def _compare(
    answer: Host | BaseException, address: str, mark: Path | None, workers: int, slots: int, cores: Sequence[Any]
) -> Host:
    """Complete the description of a host by the differences from this process, and by too few cores for its threads.

    SLURM binds all tasks of a step to one core if ``srun`` is not told how many they need. `cores` has the numbers of
    those to which each worker process is bound; if one is not bound, or has not answered, they are not too few.
    """
    if not isinstance(answer, Host):
        problem = f"a worker on {address} gives no answer ({one_line(answer)}); does it run the same dmkl?"
        return Host(address, "", 0, 0, "", 0, {}, workers, slots, problems=(problem,))
    problems = list(answer.problems)
    if mark is not None and not problems and not mark.with_name(f"{mark.name}.{answer.name}").exists():
        problems.append(f"this machine does not see what {answer.name} writes in {mark.parent}; give a shared folder")
    differences = [
        f"{answer.name} runs {name} {answer.versions.get(name, 'none')}, this machine {version_here}; results may "
        "differ, and messages may not be understood"
        for name, version_here in versions_of(_PACKAGES).items()
        if answer.versions.get(name) != version_here
    ]
    if all(isinstance(numbers, frozenset) for numbers in cores) and (n := len(frozenset().union(*cores))) < slots:
        differences.append(
            f"{answer.name} runs {slots} threads of workers on {n} {'core' if n == 1 else 'cores'}, which makes them "
            "slow; give the workers more cores (in SLURM by srun --cpus-per-task), or start fewer threads"
        )
    return replace(answer, workers=workers, slots=slots, problems=tuple(problems), differences=tuple(differences))


def versions_of(packages: Iterable[str]) -> dict[str, str]:
    """Versions of Python, dmkl and these packages; "none" for one that is not installed."""
    versions = {"python": platform.python_version(), "dmkl": version()}
    for name in packages:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "none"
    return versions


# --- what fits -----------------------------------------------------------------------------------------------------


def solvers_that_fit(K: KernelSet, hosts: Sequence[Host], state: Path | None = None) -> list[Requirement]:
    """Which parts of solvers fit here, for training on all samples of a set, by the solvers' own comparisons."""
    from dmkl.passes.sums import direct_bytes
    from dmkl.settings import block_width
    from dmkl.solvers.fisher.subspace.space import basis_task_bytes, preconditioner_bytes

    cluster, (n, m, _) = execute.machine(), K.shape
    allowed = size_text(cluster.total_bytes)
    alone = {"direct α-step": direct_bytes(K.view, 1), "preconditioners": preconditioner_bytes(K.view, block_width())}
    fits = [
        Requirement(part, needed <= cluster.total_bytes, f"{size_text(needed)} of the {allowed} of one task")
        for part, needed in alone.items()
    ]
    folder = None if state is None else next(path for path in (state, *state.absolute().parents) if path.exists())
    free = hosts[0].temporary_free_bytes if folder is None else shutil.disk_usage(folder).free
    on_disk = free // 2 // (8 * m * (n + 1))
    vectors = min(m, on_disk, math.isqrt(cluster.task_bytes // max(1, basis_task_bytes(n, 1))))
    disk = f"of {size_text(free)} free on the disk of {folder or hosts[0].temporary}"
    reason = f"{vectors:,} vectors, {size_text(8 * vectors * m * (n + 1))} {disk}"
    return [*fits, Requirement("basis", vectors >= min(m, 64), reason)]
