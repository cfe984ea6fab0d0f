"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["Cluster", "Json", "Memory", "Overwrite", "Store", "Workers"]

_WHERE = "Where it computes"

Store = Annotated[str, typer.Argument(metavar="STORE", help="A kernel set: a folder or a URL.")]
Cluster = Annotated[
    str,
    typer.Option(
        "--cluster",
        metavar="local|threads|ADDRESS",
        help="Processes on this machine, threads of this process, or the address of a Dask scheduler.",
        rich_help_panel=_WHERE,
    ),
]
Workers = Annotated[
    int | None,
    typer.Option("--workers", metavar="N", help="Processes or threads; all cores by default.", rich_help_panel=_WHERE),
]
Memory = Annotated[
    str | None,
    typer.Option(
        "--memory",
        metavar="SIZE",
        help="Memory for the arrays on one machine, such as 2GiB; 60 % of what is free by default.",
        rich_help_panel=_WHERE,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON instead of tables.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")]
