"""`dmkl build`."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import dmkl
from dmkl.cli import options
from dmkl.cli.cluster import computing_on
from dmkl.cli.options import SAMPLES, option
from dmkl.cli.output import refuse_existing, say, say_aside, size
from dmkl.cli.parsing import parse_numbers
from dmkl.cli.resuming import keeping_kernels
from dmkl.cli.samples import positions
from dmkl.errors import InputError
from dmkl.features.functions import FUNCTIONS
from dmkl.files.urls import as_place
from dmkl.progress import ConsoleWatch
from dmkl.searching.texts import count

if TYPE_CHECKING:
    from dmkl.arrays import Index
    from dmkl.inputs.features import Features
    from dmkl.inputs.names import Join
    from dmkl.kernelset import KernelSet

__all__ = ["build"]

_KERNELS = "Kernels"


def build(
    out: options.NewStore,
    features: Annotated[
        list[Path],
        typer.Argument(
            metavar="FEATURES…", help="Files of feature tables: .npz, .npy, .h5, .zarr, .h5ad, .mat, .csv, .parquet …"
        ),
    ],
    specs: Annotated[
        Path | None, option("Kernels to compute, a table [[kernel]] for each.", "FILE.toml", panel=_KERNELS)
    ] = None,
    function: Annotated[
        list[str] | None, option(f"Instead of a file: {', '.join(FUNCTIONS)}; repeatable.", "NAME", panel=_KERNELS)
    ] = None,
    bandwidth: Annotated[
        str | None,
        option(
            "Bandwidths as multiples of the mean distance, a kernel for each. [default: 1]", "B,B,…", panel=_KERNELS
        ),
    ] = None,
    feature: Annotated[
        list[str] | None,
        option("Feature tables to use, by name or pattern; repeatable. [default: all]", "NAME", panel=_KERNELS),
    ] = None,
    against: Annotated[
        str | None,
        option(
            "Compute the kernels of this set, which dmkl build made, between new samples and its own.",
            "STORE",
            panel=_KERNELS,
        ),
    ] = None,
    train: Annotated[
        Path | None,
        option(
            "Average distances between the samples named in this file, one a line (positions, if samples have no "
            "names).",
            "FILE",
            panel=SAMPLES,
        ),
    ] = None,
    split: Annotated[
        int | None,
        option(
            "Average distances in the training part of this split. [default: 0, or all samples without splits]",
            "K",
            min=0,
            panel=SAMPLES,
        ),
    ] = None,
    labels: options.Labels = None,
    samples: options.SampleNames = None,
    splits: options.Splits = None,
    join: options.Join = "exact",
    missing: options.Missing = None,
    transpose: Annotated[
        bool, option("Take columns for samples: tables of features × samples.", None, "--transpose", panel=SAMPLES)
    ] = False,
    repair: options.Repair = None,
    tile: options.Tile = None,
    dtype: options.Dtype = None,
    overwrite: options.Overwrite = False,
    # What a build does lets go of the interpreter: threads save the start of processes, and copies between them.
    cluster: options.Cluster = "threads",
    workers: options.Workers = None,
    memory: options.Memory = None,
) -> None:
    """Compute kernels from feature tables, and keep the features beside them.

    The files may hold several tables, and labels, splits and names of the samples, by which these are matched. After an
    interruption the same command goes on where it stopped. With --against the set has new samples as rows and those of
    STORE as columns, with the functions and bandwidths of STORE.

    Examples
    --------
        dmkl build kernels.zarr views.npz --function rbf --bandwidth 0.1,1,10
        dmkl build kernels.zarr expression.csv methylation.csv --specs kernels.toml --labels y.csv --split 0
        dmkl build kernels.zarr cells.h5ad --function rbf --feature X --feature 'layers/*' --labels cells.h5ad:cell_type
        dmkl build new.zarr new_views.npz --against kernels.zarr
    """
    started = time.monotonic()
    refuse_existing(as_place(out), overwrite=overwrite)
    chosen = {"--function": function, "--bandwidth": bandwidth, "--feature": feature}
    compute: Callable[..., KernelSet]
    if against is None:
        wanted = _specs(specs, chosen)
        found = _open(features, samples, join, transpose, labels=labels, splits=splits)
        _note_what_is_left_out(wanted, found)
        rows = _training_rows(found, train, split)
        compute = partial(dmkl.build, out, found, wanted, train=rows, repair=repair, tile=tile, dtype=dtype)
    else:
        own = {
            "--train": train,
            "--split": split,
            "--splits": splits,
            "--repair": repair,
            "--tile": tile,
            "--dtype": dtype,
        }
        _refuse({"--specs": specs, **chosen, **own}, f"--against takes kernels and training samples from {against}")
        found = _open(features, samples, join, transpose, labels=labels)
        compute = partial(dmkl.build_cross, dmkl.open(against), found, out)
    for note in found.notes:
        say_aside("note", note)
    with keeping_kernels(out), ConsoleWatch(), computing_on(cluster, workers=workers, memory=memory):
        K = compute(join=join, missing=missing, overwrite=overwrite)
    n, n_rows, n_cols = K.shape
    what = f"{count(n, 'kernel')} of {n_rows:,} × {n_cols:,}, {K.dtype}, {size(K.bytes_per_pass)}"
    say(f"{out}: {what}, in {time.monotonic() - started:.1f} s")
    if against is None and any(made.get("training_rows") == n_cols for made in K.provenance):
        say_aside(
            "note",
            f"bandwidths are multiples of the mean distance between all {n_cols:,} samples, also those that folds hold "
            "out later; give --splits, or the training samples by --train, to leave these out",
        )
    named = shlex.quote(out)
    learn = "" if K.labels is None else f", learn with dmkl fit {named} MODEL"
    say(f"Look at it with dmkl info {named}{learn if K.is_square else f', use it with dmkl predict MODEL {named}'}.")


def _refuse(options: Mapping[str, Any], why: str) -> None:
    given = [option for option, value in options.items() if value not in (None, [])]
    if given:
        msg = f"{why}; leave out {' and '.join(given)}"
        raise InputError(msg)


# --- kernels -------------------------------------------------------------------------------------------------------


def _specs(file: Path | None, chosen: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What kernels to make, from a file or from the options that stand for a small one."""
    from dmkl.features.specs import read_specs
    from dmkl.numerics.functions import BANDED

    if file is not None:
        _refuse(chosen, f"{file} says which kernels to make")
        return read_specs(file)
    functions, bandwidth, features = chosen.values()
    if not functions:
        msg = "say which kernels to make: --specs FILE.toml, or --function rbf --bandwidth 0.1,1,10"
        raise InputError(msg)
    widths = None if bandwidth is None else parse_numbers("bandwidth", "numbers such as 0.1,1,10", bandwidth)
    # Where none of the functions has a width, reading the specs says so.
    with_width = BANDED.intersection(functions) or functions
    return [
        {"function": name, "feature": features, "bandwidth": widths if name in with_width else None}
        for name in functions
    ]


def _note_what_is_left_out(specs: list[dict[str, Any]], found: Features) -> None:
    from dmkl.features.specs import plan

    planned, notes = plan(specs, found.blocks)
    used = {item.feature for item in planned}
    unused = [name for name in found.blocks if name not in used]
    if unused:
        found.notes.append(f"no kernel is made of {', '.join(map(repr, unused))}: left out")
    found.notes += notes


# --- samples -------------------------------------------------------------------------------------------------------


def _open(features: list[Path], samples: Path | None, join: Join, transpose: bool, **files: Path | None) -> Features:
    """The features, and what the other files say of the samples; what these do not say, the features may."""
    from dmkl.inputs import as_features, read_file, read_names
    from dmkl.inputs.labels import SideData

    names = None if samples is None else read_names(samples)
    given = [
        SideData(role, str(path), partial(read_file, path, None)) for role, path in files.items() if path is not None
    ]
    return as_features(features, samples=names, join=join, beside=given, transpose=transpose)


def _training_rows(found: Features, train: Path | None, split: int | None) -> Index | None:
    """The samples between which distances are averaged; None for those that `dmkl.build` takes by itself."""
    import numpy as np

    from dmkl.inputs import read_names

    if train is not None and split is not None:
        msg = "--train and --split exclude each other; give one of them"
        raise InputError(msg)
    n_samples = next(iter(found.blocks.values())).shape[0]
    if train is not None:
        names = range(n_samples) if found.samples is None else found.samples
        return positions(np.array([str(name) for name in names]), read_names(train, found.samples), str(train))
    if split is None:
        return None
    splits = found.labels.checked(n_samples, n_samples, rectangular=False)["split"]
    n_splits = 0 if splits is None else len(splits)
    if splits is None or split >= n_splits:
        msg = f"there is no split {split}, the samples have {n_splits}; choose another with --split, or give --splits"
        raise InputError(msg)
    rows = np.flatnonzero(splits[split] == 0)
    if not len(rows):
        msg = f"split {split} has no training samples; choose another with --split, or give --train"
        raise InputError(msg)
    return rows
