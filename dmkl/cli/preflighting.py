"""`dmkl preflight`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

import dmkl
from dmkl.cli.cluster import computing_on, stored_at
from dmkl.cli.options import Cluster, Json, Memory, Store, Workers, option
from dmkl.cli.output import STYLES, print_json, say, show, size, table
from dmkl.searching.texts import count

if TYPE_CHECKING:
    from rich.table import Table

    from dmkl.clusters.preflight import Fitting, Host

__all__ = ["preflight"]


def preflight(
    store: Store,
    state: Annotated[
        Path | None, option("Folder that will keep the state of a search, or what is to be beside it.", "DIR")
    ] = None,
    as_json: Json = False,
    cluster: Cluster = None,
    workers: Workers = None,
    memory: Memory = None,
) -> None:
    """Show what each host of a cluster sees, has and runs, and what fits there, before anything long.

    Each host opens STORE, which must be the same set there, and writes in the folder of the state and in that for
    temporary files. Commands that read kernels look at this themselves before they begin. What fits is for training on
    all samples: the direct solver, anchors for small lambda, the basis of the subspace solver. The exit status is 1 if
    a host cannot take part.

    Examples
    --------
        dmkl preflight kernels.zarr --cluster slurm --state results
        dmkl preflight kernels.zarr --cluster scheduler.json --json
    """
    from dmkl.clusters.preflight import as_mapping, hosts, what_fits

    K = dmkl.open(store)
    with computing_on(cluster, workers=workers, memory=memory):
        found = hosts(stored_at(K), state)
        fitting = what_fits(K, found, state)
    if as_json:
        print_json(as_mapping(found, fitting))
    else:
        show(_hosts(found), _versions(found), _fitting(fitting))
        for host in found:
            for style, told in [("error", host.problems), ("warning", host.differences)]:
                for text in told:
                    say((style, STYLES[style]), " ", text)
    n_bad = sum(bool(host.problems) for host in found)
    if not as_json:
        say(f"{count(len(found), 'host')} looked at, {n_bad or 'none'} that cannot take part.", style="bold")
    if n_bad:
        raise typer.Exit(1)


def _hosts(found: list[Host]) -> Table:
    rows = table("host", "job", "temporary files", numbers=("workers", "slots", "cores", "free memory", "free there"))
    for host in found:
        rows.add_row(
            Text(host.name, style=STYLES["error"] if host.problems else ""),
            host.job,
            Text(host.temporary),
            *map(str, (host.workers, host.slots, host.cores)),
            size(host.free_bytes),
            size(host.temporary_free_bytes),
        )
    return rows


def _versions(found: list[Host]) -> Table:
    """A row for each set of versions, with how many hosts run it."""
    names = list(dict.fromkeys(name for host in found for name in host.versions))
    rows, alike = (
        table(*names, numbers=("hosts",)),
        [tuple(host.versions.get(name, "–") for name in names) for host in found],
    )
    for versions in dict.fromkeys(alike):
        rows.add_row(*versions, str(alike.count(versions)))
    return rows


def _fitting(fitting: list[Fitting]) -> Table:
    rows = table("for all samples", "fits", "")
    for one in fitting:
        fits = Text("yes", style="green") if one.fits else Text("no", style=STYLES["warning"])
        rows.add_row(one.what, fits, one.told)
    return rows
