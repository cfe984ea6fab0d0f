"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

__all__ = [
    "LABELS",
    "SAMPLES",
    "STEPS_HELP",
    "STORAGE",
    "Anything",
    "Cluster",
    "DropClasses",
    "Dtype",
    "Every",
    "Join",
    "Json",
    "Kernels",
    "Labels",
    "Memory",
    "Missing",
    "NewCovariates",
    "NewStore",
    "Overwrite",
    "Repair",
    "Restart",
    "Result",
    "Rows",
    "SampleNames",
    "Split",
    "Splits",
    "State",
    "Store",
    "Tile",
    "Train",
    "Unknown",
    "Workers",
    "option",
]

SAMPLES = "Samples"
LABELS = "Labels and names"
STORAGE = "Storage"
_RESOURCES = "Compute resources"
STEPS_HELP = (
    "What is done to the kernels, in order: center, trace (unit trace), cosine (unit norm of each sample), "
    "multiplicative (unit variance), residualize=FILE (in place of center: the covariates of a table by sample taken "
    "out); none leaves them as they are."
)


def option(text: str, metavar: str | None = None, *names: str, panel: str | None = None, **more: Any) -> Any:
    """An option with its help, what stands there for its value, its names, and the panel of help that shows it."""
    return typer.Option(*names, metavar=metavar, help=text, rich_help_panel=panel, **more)


Store = Annotated[str, typer.Argument(metavar="STORE", help="Kernel set (folder or URL).")]
Anything = Annotated[
    str, typer.Argument(metavar="PATH", help="Kernel set (a folder or a URL), model, result, or state of a search.")
]
NewStore = Annotated[str, typer.Argument(metavar="OUT", help="Kernel set to write: a folder or a URL.")]
Result = Annotated[str, typer.Argument(metavar="OUT", help="Folder or URL to save the result at.")]
Json = Annotated[bool, option("Print the result as JSON instead of tables.", None, "--json")]
Overwrite = Annotated[bool, option("Overwrite existing output.", None, "--overwrite")]
State = Annotated[
    Path | None,
    option("Where the state is kept, seen by all workers. [default: OUT.partial]", "DIR"),
]
Restart = Annotated[bool, option("Discard what an interrupted run has kept.", None, "--restart")]
Kernels = Annotated[str | None, option("Only these kernels, by name.", "A,B,…")]

# --- samples and labels --------------------------------------------------------------------------------------------

Split = Annotated[int | None, option("The training part of a stored split.", "K", min=0, panel=SAMPLES)]
Train = Annotated[Path | None, option("Samples in this file, one name a line.", "FILE", panel=SAMPLES)]
Every = Annotated[bool, option("Use all samples.", None, "--all", panel=SAMPLES)]
Labels = Annotated[
    Path | None,
    option(
        "Class or number of each sample, or a table of them; FILE:NAME is a column of a table, or of obs of an .h5ad.",
        "FILE[:NAME]",
        panel=LABELS,
    ),
]
Rows = Annotated[
    str | None,
    option(
        "Take these samples: a file of names, one a line, or of 0 and 1 for each sample; or positions from 0.",
        "FILE|0,5,10:20",
        "--rows",
        panel=SAMPLES,
    ),
]
NewCovariates = Annotated[
    Path | None,
    option(
        "Covariates of new samples, for models that take some out; a table as residualize=FILE has it.",
        "FILE",
        "--covariates",
        panel=SAMPLES,
    ),
]
DropClasses = Annotated[
    int,
    option(
        "Leave smaller classes out.",
        "N",
        "--drop-classes-below",
        min=0,
        panel=SAMPLES,
        show_default=False,
    ),
]
Unknown = Annotated[
    str | None,
    option("Label that means unknown in a task.", "CODE", panel=SAMPLES),
]
SampleNames = Annotated[Path | None, option("Name of each sample (row).", "FILE", panel=LABELS)]
Splits = Annotated[
    Path | None,
    option("Part of each sample: 0 training, 1 validation, 2 test, -1 none.", "FILE[:NAME]", panel=LABELS),
]
Join = Annotated[
    Literal["exact", "inner", "outer"],
    option(
        "Samples are matched by name: all files must name the same ones, or take those that all have, or any has.",
        panel=SAMPLES,
    ),
]
Repair = Annotated[
    Literal["clip", "flip", "shift"] | None,
    option("Set negative eigenvalues to zero, flip their sign, or shift all eigenvalues.", panel=STORAGE),
]
Missing = Annotated[
    Literal["refuse", "zero"] | None,
    option(
        "Samples that lack a feature table: refuse them, or give them zeros in its centered kernels. [default: zero "
        "with --join outer, else refuse]",
        panel=SAMPLES,
    ),
]

# --- storage and resources -----------------------------------------------------------------------------------------

Tile = Annotated[int | None, option("Side of a tile in samples.", "N", min=1, panel=STORAGE)]
Dtype = Annotated[
    Literal["float32", "float64"] | None,
    option("Precision of the stored kernels; that of the files by default.", panel=STORAGE),
]
Cluster = Annotated[
    str | None,
    option(
        '"threads", "local" (processes), "slurm queue=short jobs=4" (and other options), a file .toml or .yaml with '
        "options, or a Dask scheduler's address or file. [default: threads for up to 256 MiB, else local]",
        "PLACE",
        panel=_RESOURCES,
    ),
]
Workers = Annotated[int | None, option("Number of processes or threads. [default: all cores]", "N", panel=_RESOURCES)]
Memory = Annotated[
    str | None,
    option(
        "Memory for arrays, as 2GiB. [default: 60 % of free]",
        "SIZE",
        panel=_RESOURCES,
    ),
]
