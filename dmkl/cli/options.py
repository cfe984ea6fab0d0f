"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

__all__ = [
    "SAMPLES",
    "SOLVING",
    "Center",
    "Cluster",
    "Constraints",
    "Dtype",
    "Examples",
    "Grouping",
    "Groups",
    "Json",
    "Labels",
    "Loss",
    "Memory",
    "Missing",
    "Model",
    "Multiclass",
    "Normalize",
    "Overwrite",
    "SampleNames",
    "Sharing",
    "Sigma",
    "Splits",
    "Store",
    "Tile",
    "Tol",
    "Workers",
]

SAMPLES = "Which samples"
SOLVING = "How it is solved"
_KNOWN = "What is known of the samples"
_STORING = "How it is stored"
_WHERE = "Where it computes"

Store = Annotated[str, typer.Argument(metavar="STORE", help="A kernel set: a folder or a URL.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON instead of tables.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")]

# --- models ----------------------------------------------------------------------------------------------------------

# Of what a model is made is None where it is not given: each has defaults of its own.
Model = Annotated[
    Literal["mkfda", "mksvm", "gmkl", "gsmkl", "ncuts", "uniform", "single-best", "product"],
    typer.Option(
        help="What learns weights: ℓp MK-FDA, ℓp MK-SVM, GMKL (a support vector machine whose weights have prices and "
        "constraints), GS-MKL (weights for each group of samples), or normalized cuts; or a baseline."
    ),
]
Groups = Annotated[int | None, typer.Option(min=1, help="Groups of each class, for gsmkl. [default: 2]")]
Grouping = Annotated[
    Literal["kernel", "kmeans", "plsa"] | None,
    typer.Option(
        help="What makes gsmkl's groups: kernel k-means on the mean kernel; or k-means, or pLSA, on the features that "
        "the kernels were built from. [default: kernel]"
    ),
]
Loss = Annotated[
    Literal["hinge", "square"] | None,
    typer.Option(help="Of gsmkl and ncuts: support vector machines, or Fisher discriminants. [default: hinge]"),
]
Examples = Annotated[
    int | None,
    typer.Option(min=1, help="Of ncuts: examples that the training samples are divided into. [default: 5]"),
]
Sharing = Annotated[
    Literal["mean", "own", "joint"] | None,
    typer.Option(
        help="Of ncuts with several classes: the mean of their weights for all, weights of its own for each, or "
        "weights from all at once. [default: mean]"
    ),
]
Multiclass = Annotated[
    Literal["ovr", "ovo"] | None,
    typer.Option(
        help="More than two classes for mksvm, gmkl and ncuts: one against the rest, or one against one. [default: ovr]"
    ),
]
Sigma = Annotated[
    str | None,
    typer.Option(
        metavar="PRICE|FILE",
        help="Of gmkl: the price of a unit of weight, a number or a CSV file with kernel,price a line. [default: 1]",
    ),
]
Constraints = Annotated[
    Path | None,
    typer.Option(metavar="FILE.toml", help="Of gmkl: linear constraints on the weights, see above."),
]
Center = Annotated[
    bool | None,
    typer.Option(
        "--center/--no-center", help="Centre kernels in feature space. [default: center; no-center for ncuts]"
    ),
]
Normalize = Annotated[
    Literal["trace", "cosine", "multiplicative", "none"] | None,
    typer.Option(
        help="How kernels are brought to one scale. [default: trace; multiplicative for mksvm, gmkl and gsmkl; cosine "
        "for ncuts]",
    ),
]
Tol = Annotated[
    float | None,
    typer.Option(help="Relative gap to prove. [default: 1e-4; 1e-3 for mksvm and gmkl]", rich_help_panel=SOLVING),
]

# --- samples and features --------------------------------------------------------------------------------------------

Labels = Annotated[Path | None, typer.Option(metavar="FILE", help="Class of each sample.", rich_help_panel=_KNOWN)]
SampleNames = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Name of each sample (row).", rich_help_panel=_KNOWN)
]
Splits = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Part of each sample: 0 train, 1 validation, 2 test, -1 none.",
        rich_help_panel=_KNOWN,
    ),
]
Missing = Annotated[
    Literal["refuse", "zero"],
    typer.Option(
        help="Samples that lack a feature table: refuse them, or give them a row of zeros in its centred kernels.",
        rich_help_panel=_KNOWN,
    ),
]

# --- storing ---------------------------------------------------------------------------------------------------------

Tile = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Side of a tile in samples.", rich_help_panel=_STORING),
]
Dtype = Annotated[
    Literal["float32", "float64"] | None,
    typer.Option(help="Precision; that of the files by default.", rich_help_panel=_STORING),
]

# --- computing -------------------------------------------------------------------------------------------------------

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
