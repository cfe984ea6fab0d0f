"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

__all__ = [
    "LABELS",
    "SAMPLES",
    "STORAGE",
    "Cluster",
    "Dtype",
    "Every",
    "Json",
    "Kernels",
    "Labels",
    "Memory",
    "Missing",
    "NewStore",
    "Overwrite",
    "SampleNames",
    "Split",
    "Splits",
    "Store",
    "Tile",
    "Train",
    "Workers",
]

SAMPLES = "Samples"
LABELS = "Labels and names"
STORAGE = "Storage"
_RESOURCES = "Compute resources"

Store = Annotated[str, typer.Argument(metavar="STORE", help="Kernel set: a folder or a URL.")]
NewStore = Annotated[str, typer.Argument(metavar="OUT", help="Kernel set to write: a folder or a URL.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON instead of tables.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Overwrite existing output.")]
Kernels = Annotated[str | None, typer.Option(metavar="A,B,…", help="Only these kernels, by name.")]

# --- samples and labels ----------------------------------------------------------------------------------------------

Split = Annotated[
    int | None,
    typer.Option(min=0, metavar="K", help="Use the training part of this stored split.", rich_help_panel=SAMPLES),
]
Train = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Use the samples named in this file, one a line.", rich_help_panel=SAMPLES),
]
Every = Annotated[bool, typer.Option("--all", help="Use all samples.", rich_help_panel=SAMPLES)]
Labels = Annotated[Path | None, typer.Option(metavar="FILE", help="Class of each sample.", rich_help_panel=LABELS)]
SampleNames = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Name of each sample (row).", rich_help_panel=LABELS)
]
Splits = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Part of each sample: 0 training, 1 validation, 2 test, -1 none.", rich_help_panel=LABELS
    ),
]
Missing = Annotated[
    Literal["refuse", "zero"],
    typer.Option(
        help="Samples that lack a feature table: refuse them, or give them zeros in its centered kernels.",
        rich_help_panel=SAMPLES,
    ),
]

# --- storage and resources -------------------------------------------------------------------------------------------

Tile = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Side of a tile in samples.", rich_help_panel=STORAGE)
]
Dtype = Annotated[
    Literal["float32", "float64"] | None,
    typer.Option(help="Precision of the stored kernels; that of the files by default.", rich_help_panel=STORAGE),
]
Cluster = Annotated[
    str,
    typer.Option(
        metavar="PLACE",
        help='"local" (processes on this machine), "threads", or the address of a Dask scheduler.',
        rich_help_panel=_RESOURCES,
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(metavar="N", help="Number of processes or threads. [default: all cores]", rich_help_panel=_RESOURCES),
]
Memory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Memory for arrays on one machine, such as 2GiB. [default: 60 % of what is free]",
        rich_help_panel=_RESOURCES,
    ),
]
