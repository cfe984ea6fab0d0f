"""`dmkl check`."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import typer
import xarray as xr
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

import dmkl.health
from dmkl.cli.cluster import computing_on
from dmkl.cli.options import Cluster, Json, Memory, Store, Workers
from dmkl.cli.output import console, count, print_json, say, table
from dmkl.health import SEVERITIES
from dmkl.kernelset import KernelSet
from dmkl.progress import ConsoleWatch
from dmkl.stores import open as open_set

__all__ = ["check"]

_STYLES = {"error": "bold red", "warning": "bold yellow", "note": "bold cyan"}


def check(
    store: Store,
    kernels: Annotated[str | None, typer.Option(metavar="A,B,…", help="Only these kernels, by name.")] = None,
    steps: Annotated[
        int, typer.Option(min=1, help="Products with each kernel in search of negative eigenvalues.")
    ] = 30,
    seed: Annotated[int, typer.Option(min=0, help="Of the random start vectors.")] = 0,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings fail the check too.")] = False,
    as_json: Json = False,
    cluster: Cluster = "local",
    workers: Workers = None,
    memory: Memory = None,
) -> None:
    """Read every tile of a kernel set and report what breaks learning or misleads it.

    Damaged tiles, NaN, asymmetry, negative eigenvalues, constant and repeated kernels, scales far apart. Exit
    status 1 when there are errors (with --strict, or warnings), 0 otherwise.

    Examples
    --------
        dmkl check kernels.zarr
        dmkl check kernels.zarr --strict --json > report.json
    """
    K = open_set(store)
    if kernels is not None:
        K = K.select([name.strip() for name in kernels.split(",")])
    with computing_on(cluster, workers=workers, memory=memory), ConsoleWatch():
        report = dmkl.health.check(K, n_steps=steps, seed=seed)
    if as_json:
        print_json(_as_mapping(K, report))
    else:
        _print(console(), K, report)
    failing = SEVERITIES[: 2 if strict else 1]
    if np.isin(report.severity.values, failing).any():
        raise typer.Exit(1)


def _as_mapping(K: KernelSet, report: xr.Dataset) -> dict[str, Any]:
    figures = report.drop_dims("finding")
    return {
        "content_id": K.content_id,
        "kernels": [
            {
                "name": str(name),
                **{str(key): figures[key].sel(kernel=name).item() for key in figures.data_vars},
            }
            for name in figures.kernel.values
        ],
        "findings": [
            {"severity": severity, "kernel": subject or None, "message": message}
            for severity, subject, message in _findings(report)
        ],
    }


def _findings(report: xr.Dataset) -> list[tuple[str, str, str]]:
    columns = (report[name].values.tolist() for name in ("severity", "subject", "message"))
    return list(zip(*columns, strict=True))


def _print(out: Console, K: KernelSet, report: xr.Dataset) -> None:
    worst: dict[str, str] = {}
    for severity, subject, _ in _findings(report):
        worst.setdefault(subject, severity)  # the gravest come first
    figures = table()
    for name in (
        "kernel",
        "tiles",
        "largest entry",
        "trace",
        "centred trace",
        "lowest eigenvalue",
        "highest",
        "",
    ):
        figures.add_column(name, justify="left" if name in ("kernel", "") else "right", overflow="fold")
    for name in report.kernel.values.tolist():
        row = report.sel(kernel=name)
        damaged = int(row.damaged_tiles)
        verdict = worst.get(name, "ok")
        figures.add_row(
            Text(name),
            f"{int(row.tiles):,}" if not damaged else f"{damaged:,} of {int(row.tiles):,} damaged",
            *(
                _figure(float(row[key]))
                for key in (
                    "largest_entry",
                    "trace",
                    "centered_trace",
                    "lowest_eigenvalue",
                    "highest_eigenvalue",
                )
            ),
            Text(verdict, style=_STYLES.get(verdict, "green")),
        )
    out.print(figures)
    out.print()
    for severity, subject, message in _findings(report):
        say((severity, _STYLES[severity]), " ", (subject or "the set", "bold"))
        out.print(Padding(Text(message), (0, 0, 0, 2)))
    found = [count(int(np.count_nonzero(report.severity.values == kind)), kind) for kind in SEVERITIES]
    say(f"{count(len(K), 'kernel')} checked: {', '.join(found)}.", style="bold")


def _figure(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.3g}"
