"""The options --cluster, --workers and --memory, and `dmkl preflight`."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

import dmkl
from dmkl.cli.options import Json, Store, option, resources_option
from dmkl.cli.output import STYLES, learner_files, print_json, say, say_aside, show, table
from dmkl.description import count
from dmkl.errors import DmklError, refuse, size_text

if TYPE_CHECKING:
    from distributed import Client

    from dmkl.kernelset import KernelSet

_SMALL_BYTES = 256 * 2**20
"""Sets that are at most this large are computed in threads by default: that is faster than starting processes."""


def parse_backend(given: str | Mapping[str, Any]) -> Mapping[str, Any]:
    """The keywords of `dmkl.cluster` for a value of --cluster; job files have them by key."""
    if isinstance(given, Mapping):
        return given
    if Path(given).exists():  # a path may have spaces
        return {"where": given}
    try:
        backend, *words = shlex.split(given)
    except ValueError as error:
        msg = f"--cluster takes a backend and options such as queue=short, got {given!r} ({error})"
        raise DmklError(msg) from error  # the command line would replace the message of a ValueError
    options: dict[str, list[str]] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not (key and equals and value):
            msg = f"after the backend --cluster takes options such as queue=short, got {word!r}"
            raise DmklError(msg)
        options.setdefault(key.replace("-", "_"), []).append(value)
    return {"where": backend, **{key: values[0] if len(values) == 1 else values for key, values in options.items()}}


@dataclass(frozen=True, kw_only=True)
class Resources:
    """The options that say where a command computes."""

    cluster: Annotated[
        Mapping[str, Any] | None,
        resources_option(
            '"threads", "local" (processes), "slurm queue=short jobs=4", a .toml or .yaml file of these, or a Dask '
            "scheduler. [default: local from 256 MiB on]",
            "BACKEND",
            parser=parse_backend,
        ),
    ] = None
    workers: Annotated[int | None, resources_option("Processes or threads. [default: all cores]", "N")] = None
    memory: Annotated[str | None, resources_option("Memory, as 2GiB. [default: 60 % of free]", "SIZE")] = None

    @contextmanager
    def computing(
        self, reading: KernelSet | None = None, state: Path | None = None, *, check: bool = True
    ) -> Iterator[Client | None]:
        """Let computations inside this context run on the backend, and check its hosts first unless `check` is false.

        Every host must see the kernel set `reading` and `state`, the folder of a checkpoint. By default the backend is
        "threads" where a pass reads few bytes of `reading`, else "local".
        """
        small = reading is None or reading.bytes_per_pass <= _SMALL_BYTES
        options = {"where": "threads" if small else "local", **(self.cluster or {})}
        for key, value in {"workers": self.workers, "memory": self.memory}.items():
            if value is not None and key in options:
                refuse(f"--{key} {value} and {key}={options[key]} in --cluster say the same; leave one out")
            if value is not None:
                options[key] = value
        with dmkl.cluster(**options) as client:
            if client is not None:
                for file in learner_files.get():
                    client.upload_file(str(file))
                if check:
                    from dmkl.clusters.preflight import check_hosts

                    for difference in check_hosts(None if reading is None else _location(reading), state):
                        say_aside("warning", difference)
                if client.dashboard_link:
                    needs = "" if find_spec("bokeh") else "; it needs bokeh: pip install 'dask[diagnostics]'"
                    say_aside("note", f"dashboard of the cluster: {client.dashboard_link}{needs}")
            yield client


def _location(K: KernelSet) -> tuple[str, str] | None:
    """Where a kernel set is stored, and its content id; None for a set in memory, which other processes cannot see."""
    location = getattr(K.view.source, "location", None)
    return (location, K.content_id) if isinstance(location, str) else None


def preflight(
    store: Store,
    resources: Resources,
    state: Path | None = option("Folder where a search will keep its checkpoint.", "DIR"),
    as_json: Json = False,
) -> None:
    """Show the memory, the versions and the folders that each host of a cluster has, and which solvers fit.

    Each host opens STORE, which must be the same set there, and writes in the folder of the checkpoint and in that for
    temporary files, as commands that read kernels do before they begin. For training on all samples it says whether the
    direct solver, preconditioners for small lambda, and the basis of the subspace solver fit. The exit status is 1 if a
    host cannot take part.

    Examples
    --------
        dmkl preflight kernels.zarr --cluster slurm --state results
        dmkl preflight kernels.zarr --cluster scheduler.json --json
    """
    from dataclasses import asdict

    from dmkl.clusters.preflight import inspect_hosts, solvers_that_fit

    K = dmkl.open(store)
    with resources.computing(check=False):
        hosts = inspect_hosts(_location(K), state)
        fits = solvers_that_fit(K, hosts, state)
    bad = [host for host in hosts if host.problems]
    if as_json:
        print_json({"hosts": [asdict(host) for host in hosts], "fits": [asdict(fit) for fit in fits]})
    else:
        answers = {True: Text("yes", style="green"), False: Text("no", style=STYLES["warning"])}
        by_host = []
        for host in hosts:
            name = Text(host.name, style=STYLES["error"] if host.problems else "")
            counts = map(str, (host.workers, host.slots, host.cores))
            free = map(size_text, (host.free_bytes, host.temporary_free_bytes))
            by_host.append((name, host.job, host.temporary, *counts, *free))
        numbers = ("workers", "slots", "cores", "free memory", "free there")
        packages = list(dict.fromkeys(name for host in hosts for name in host.versions))
        n_hosts = Counter(tuple(host.versions.get(name, "–") for name in packages) for host in hosts)
        show(
            table("host", "job", "temporary files", numbers=numbers, rows=by_host),
            table(*packages, numbers=("hosts",), rows=((*versions, str(n)) for versions, n in n_hosts.items())),
            table("for all samples", "fits", "", rows=((fit.part, answers[fit.fits], fit.reason) for fit in fits)),
        )
        for host in hosts:
            for style, sentences in [("error", host.problems), ("warning", host.differences)]:
                for sentence in sentences:
                    say((style, STYLES[style]), " ", sentence)
        say(f"{count(len(hosts), 'host')} checked, {len(bad) or 'none'} that cannot take part.", style="bold")
    if bad:
        raise typer.Exit(1)
