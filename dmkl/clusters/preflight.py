"""Before anything long: what each host of a cluster sees, has, and runs, and what fits there."""

from __future__ import annotations

import math
import platform
import shutil
import socket
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dmkl import limits
from dmkl._version import __version__
from dmkl.errors import DmklError, InputError, one_line
from dmkl.passes.execute import active_client, look_at, machine, told_workers

if TYPE_CHECKING:
    from dmkl.kernelset import KernelSet

__all__ = ["Fitting", "Host", "as_mapping", "check_hosts", "hosts", "versions_of", "what_fits"]

_PACKAGES = ("numpy", "zarr", "dask", "distributed")


@dataclass(frozen=True)
class Host:
    """A machine, or a job of a batch system on one, as a process that computes there finds it."""

    name: str
    job: str  # of the batch system; empty where there is none
    cores: int
    free_bytes: int
    temporary: str  # the folder for temporary files
    temporary_free_bytes: int
    versions: dict[str, str]
    workers: int = 1
    slots: int = 1
    problems: tuple[str, ...] = field(default=())
    """What is wrong there, in a sentence each with host and path; nothing long should begin before it is mended."""
    differences: tuple[str, ...] = field(default=())
    """What is not as expected, in a sentence each: versions that are not this process's, and too few cores."""


@dataclass(frozen=True)
class Fitting:
    """Whether a way to solve fits, and what says so."""

    what: str
    fits: bool
    told: str


# --- hosts ---------------------------------------------------------------------------------------------------------


def hosts(store: tuple[str, str] | None = None, state: Path | None = None) -> list[Host]:
    """Ask one process of each host, or this one where there is no cluster.

    Parameters
    ----------
    store
        The location of a kernel set that must be seen, and its content id.
    state
        A folder in which every host must be able to write what this process sees.

    Raises
    ------
    NoWorkersError
        If the cluster has no worker in time.
    """
    client = active_client()
    with _marked(state) as mark:
        if client is None:
            slots = machine().slots
            return [_judged(_look(store, mark), "", mark, 1, slots)]
        machine()  # waits for a worker
        workers = look_at(client, told_workers(client))
        places: dict[tuple[str, str], list[Any]] = {}
        for worker in workers:
            places.setdefault(worker.place, []).append(worker)
        asked = {mine[0].address: mine for mine in places.values()}
        found = client.run(_look, store, mark, workers=list(asked), on_error="return")
        cores = client.run(limits.bound_cores, on_error="return")
        hosts_seen = []
        for address, mine in asked.items():
            if address in found:
                slots = sum(worker.slots for worker in mine)
                host = _judged(found[address], mine[0].place[0], mark, len(mine), slots)
                hosts_seen.append(_with_shared_cores(host, [cores.get(worker.address) for worker in mine]))
        return hosts_seen


def check_hosts(store: tuple[str, str] | None = None, state: Path | None = None) -> list[str]:
    """Refuse to begin on a cluster with a host that cannot take part; the other sentences of `hosts` are returned.

    Raises
    ------
    InputError
        If a host does not see the kernel set or another one, or cannot write where it must.
    """
    if active_client() is None:
        return []
    found = hosts(store, state)
    problems = [problem for host in found for problem in host.problems]
    if problems:
        more = f" (and {len(problems) - 1} more; `dmkl preflight` lists them)" if len(problems) > 1 else ""
        raise InputError(problems[0] + more)
    return [difference for host in found for difference in host.differences]


@contextmanager
def _marked(state: Path | None) -> Iterator[Path | None]:
    """A file in the folder of the state, beside which hosts put theirs; all of them are gone afterwards."""
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


def _look(store: tuple[str, str] | None, mark: Path | None) -> Host:
    """On a host: what is there."""
    name = socket.gethostname()
    problems: list[str] = []
    if store is not None:
        problems += _of_store(name, *store)
    if mark is not None:
        problems += _of_state(name, mark)
    temporary, free = tempfile.gettempdir(), 0
    try:
        with tempfile.TemporaryFile() as file:
            file.write(b"dmkl")
        free = shutil.disk_usage(temporary).free
    except OSError as error:
        why = error.strerror or error
        problems.append(f"{name} cannot write temporary files in {temporary} ({why}); set TMPDIR to another folder")
    return Host(
        name,
        limits.machine_name(),
        limits.available_cores(),
        limits.free_bytes(),
        temporary,
        free,
        versions_of(_PACKAGES),
        problems=tuple(problems),
    )


def _of_store(name: str, location: str, content_id: str) -> Iterator[str]:
    from dmkl.store.reader import Root

    shared = "the path must mean the same folder on every machine"
    try:
        found = str(Root(location).open().attrs.get("content_id"))
    except (DmklError, OSError) as error:
        yield f"{name} does not see the kernel set {location} ({one_line(error)}); {shared}"
        return
    if found != content_id:
        yield f"{name} sees another kernel set at {location} ({found}) than this machine ({content_id}); {shared}"


def _of_state(name: str, mark: Path) -> Iterator[str]:
    shared = "give a folder on a file system that all machines share"
    if not mark.exists():
        yield f"{name} does not see the folder {mark.parent}, where a search keeps its state; {shared}"
        return
    try:
        mark.with_name(f"{mark.name}.{name}").write_text(name)
    except OSError as error:
        yield f"{name} cannot write in {mark.parent}, where a search keeps its state ({error.strerror}); {shared}"


def _judged(found: Host | BaseException, address: str, mark: Path | None, workers: int, slots: int) -> Host:
    """What a host said, with what it means beside this process."""
    if not isinstance(found, Host):
        problem = f"a worker on {address} gives no answer ({one_line(found)}); does it run the same dmkl?"
        return Host(address, "", 0, 0, "", 0, {}, workers, slots, (problem,))
    problems, mine = list(found.problems), versions_of(_PACKAGES)
    if mark is not None and not problems and not mark.with_name(f"{mark.name}.{found.name}").exists():
        problems.append(f"what {found.name} writes in {mark.parent} is not seen here; give a folder that all share")
    differences = tuple(
        f"{found.name} runs {name} {found.versions.get(name, 'none')}, this machine {here}; results may differ, and "
        "what is sent may not be understood"
        for name, here in mine.items()
        if found.versions.get(name) != here
    )
    return replace(found, workers=workers, slots=slots, problems=tuple(problems), differences=differences)


def _with_shared_cores(host: Host, cores: Sequence[Any]) -> Host:
    """Add a difference where the workers of a host have more threads than cores.

    SLURM binds all tasks of a step to one core where ``srun`` is not told how many they need.

    Parameters
    ----------
    cores
        The numbers of the cores to which each of its worker processes is bound. Of hosts where one is not bound, or has
        not answered, nothing is said: whoever starts more threads than a machine has cores knows that.
    """
    n_cores = len(frozenset[int]().union(*(some for some in cores if isinstance(some, frozenset))))
    if n_cores >= host.slots or not all(isinstance(some, frozenset) for some in cores):
        return host
    told = (
        f"{host.name} runs {host.slots} threads of workers on {n_cores} {'core' if n_cores == 1 else 'cores'}, which "
        "makes them slow; give the workers more cores (in SLURM by srun --cpus-per-task), or start fewer threads"
    )
    return replace(host, differences=(*host.differences, told))


def versions_of(packages: Iterable[str]) -> dict[str, str]:
    """Versions of Python, dmkl and these packages; "none" of one that is not installed."""
    found = {"python": platform.python_version(), "dmkl": __version__}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    return found


# --- what fits -----------------------------------------------------------------------------------------------------


def what_fits(K: KernelSet, found: Sequence[Host], state: Path | None = None) -> list[Fitting]:
    """Which ways to solve fit here, for training on all samples of a set.

    As the solvers compare it themselves: with what a task may take that runs alone, and what every task may take.
    """
    from dmkl.passes.sums import direct_bytes
    from dmkl.settings import block_width
    from dmkl.solvers.fisher.subspace.space import basis_task_bytes, preconditioner_bytes

    where, (n, m, _) = machine(), K.shape
    alone = (("direct α-step", direct_bytes(K.view, 1)), ("anchors", preconditioner_bytes(K.view, block_width())))
    told = [
        Fitting(what, needed <= where.total_bytes, f"{_gib(needed)} of the {_gib(where.total_bytes)} of one task")
        for what, needed in alone
    ]
    folder = _existing(state)
    free = found[0].temporary_free_bytes if folder is None else shutil.disk_usage(folder).free
    on_disk = free // 2 // (8 * m * (n + 1))
    vectors = min(m, on_disk, math.isqrt(where.task_bytes // max(1, basis_task_bytes(n, 1))))
    place = f"of {_gib(free)} free on the disk of {folder or found[0].temporary}"
    told.append(
        Fitting("basis", vectors >= min(m, 64), f"{vectors:,} vectors, {_gib(8 * vectors * m * (n + 1))} {place}")
    )
    return told


def _existing(folder: Path | None) -> Path | None:
    while folder is not None and not folder.exists() and folder != folder.parent:
        folder = folder.absolute().parent
    return folder


def _gib(n_bytes: float) -> str:
    return f"{n_bytes / 2**30:.3g} GiB"


def as_mapping(found: Sequence[Host], fitting: Sequence[Fitting]) -> Mapping[str, Any]:
    """Both as plain data."""
    return {"hosts": [asdict(host) for host in found], "fits": [asdict(one) for one in fitting]}
