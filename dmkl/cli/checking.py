"""`dmkl check`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.padding import Padding
from rich.text import Text

from dmkl.cli.cluster import computing_on
from dmkl.cli.options import Anything, Cluster, Json, Kernels, Memory, Workers, option
from dmkl.cli.output import STYLES, console, number, print_json, say, table
from dmkl.cli.samples import open_kernels
from dmkl.cli.saved import check_saved, kind_of
from dmkl.progress import ConsoleWatch
from dmkl.searching.texts import count

if TYPE_CHECKING:
    import xarray as xr

    from dmkl.kernelset import KernelSet

__all__ = ["check"]


def check(
    store: Anything,
    kernels: Kernels = None,
    steps: Annotated[int, option("Number of products with each kernel to find negative eigenvalues.", min=1)] = 30,
    seed: Annotated[int, option("Seed of the random start vectors.", min=0)] = 0,
    strict: Annotated[bool, option("Fail on warnings too.", None, "--strict")] = False,
    as_json: Json = False,
    cluster: Cluster = None,
    workers: Workers = None,
    memory: Memory = None,
) -> None:
    """Read all of a kernel set, a model, a result, an export or a search's state, and report damage and problems.

    Compares every file with its checksums. Of a kernel set it finds NaN, asymmetry, negative eigenvalues, constant and
    repeated kernels, kernels that are the labels, and scales far apart too.
    The exit status is 1 if there are errors (with --strict, or warnings), and 0 otherwise.

    Examples
    --------
        dmkl check kernels.zarr
        dmkl check kernels.zarr --strict --json > report.json
        dmkl check model
        dmkl check found.partial
    """
    kind = kind_of(store)
    if kind is not None:
        check_saved(store, kind, strict=strict, as_json=as_json)
        return
    import numpy as np

    from dmkl.health import SEVERITIES
    from dmkl.health import check as run

    K = open_kernels(store, kernels)
    with ConsoleWatch(), computing_on(cluster, reading=K, workers=workers, memory=memory):
        report = run(K, n_steps=steps, seed=seed)
    if as_json:
        print_json(_as_mapping(K, report))
    else:
        _print(K, report)
    failing = SEVERITIES[: 2 if strict else 1]
    if np.isin(report.severity.values, failing).any():
        raise typer.Exit(1)


def _as_mapping(K: KernelSet, report: xr.Dataset) -> dict[str, Any]:
    figures = report.drop_dims("finding")
    return {
        "content_id": K.content_id,
        "kernels": [
            {"name": name, **{str(key): figures[key].sel(kernel=name).item() for key in figures.data_vars}}
            for name in figures.kernel.values.tolist()
        ],
        "findings": [
            {"severity": severity, "kernel": subject or None, "message": message}
            for severity, subject, message in _findings(report)
        ],
    }


def _findings(report: xr.Dataset) -> list[tuple[str, str, str]]:
    columns = (report[name].values.tolist() for name in ("severity", "subject", "message"))
    return list(zip(*columns, strict=True))


def _print(K: KernelSet, report: xr.Dataset) -> None:
    import numpy as np

    from dmkl.health import SEVERITIES

    worst: dict[str, str] = {}
    for severity, subject, _ in _findings(report):
        worst.setdefault(subject, severity)  # the gravest come first
    figures = table(
        "kernel", numbers=("tiles", "largest entry", "trace", "centered trace", "lowest eigenvalue", "highest")
    )
    figures.add_column("", overflow="fold")
    shown = ("largest_entry", "trace", "centered_trace", "lowest_eigenvalue", "highest_eigenvalue")
    for name in report.kernel.values.tolist():
        row = report.sel(kernel=name)
        damaged, tiles, verdict = int(row.damaged_tiles), int(row.tiles), worst.get(name, "ok")
        figures.add_row(
            Text(name),
            f"{damaged:,} of {tiles:,} damaged" if damaged else f"{tiles:,}",
            *(number(float(row[key])) for key in shown),
            Text(verdict, style=STYLES.get(verdict, "green")),
        )
    out = console()
    out.print(figures)
    out.print()
    for severity, subject, message in _findings(report):
        say((severity, STYLES[severity]), " ", (subject or "the set", "bold"))
        out.print(Padding(Text(message), (0, 0, 0, 2)))
    found = [count(int(np.count_nonzero(report.severity.values == kind)), kind) for kind in SEVERITIES]
    say(f"{count(len(K), 'kernel')} checked: {', '.join(found)}.", style="bold")
