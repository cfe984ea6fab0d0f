"""`dmkl import`, `dmkl build` and `dmkl combine`: kernel sets from files of kernels or of features, or from sets."""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import dmkl
from dmkl.cli import options
from dmkl.cli.cluster import Resources
from dmkl.cli.interruption import keeping_kernels
from dmkl.cli.options import flag, labels_option, option, samples_option, storage_option
from dmkl.cli.output import refuse_existing, say, say_aside
from dmkl.cli.parsing import parse_names, parse_numbers, parse_value
from dmkl.cli.samples import find_names
from dmkl.description import count
from dmkl.errors import refuse, size_text
from dmkl.features.functions import FUNCTIONS
from dmkl.files.urls import Url, as_place
from dmkl.progress import ConsoleWatch

if TYPE_CHECKING:
    from dmkl.arrays import Index
    from dmkl.inputs.features import Features
    from dmkl.kernelset import KernelSet

_kernels_option = partial(option, panel="Kernels")


@dataclass(frozen=True, kw_only=True)
class NewSet:
    """The options of a set that is made from files; `unknown` and `duplicates` are settings while it is made."""

    labels: options.Labels = None
    samples: Path | None = labels_option("Name of each sample (row).", "FILE")
    splits: Path | None = labels_option("0 training, 1 validation, 2 test, -1 none.", "FILE")
    join: options.Join = "exact"
    unknown: options.Unknown = None
    duplicates: Literal["first", "max", "mean"] | None = storage_option(
        'Take the "first", "max" or "mean" of values of one pair. [default: refuse them]', "HOW"
    )
    repair: Literal["clip", "flip", "shift"] | None = storage_option(
        'Negative eigenvalues: "clip" them to zero, "flip" their sign, or "shift" all.', "HOW"
    )
    tile: int | None = storage_option("Side of a tile in samples.", "N", min=1)
    overwrite: options.Overwrite = False


def import_(
    out: options.NewStore,
    given: NewSet,
    inputs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="INPUTS…",
            help="Files of matrices: .npy, .mat, .h5, .csv …; prefixes of .grm.bin. Features are for dmkl build.",
        ),
    ] = None,
    mgrm: Path | None = option("Prefixes of relationship matrices, one a line.", "FILE", details="As GCTA has it."),
    train_samples: Path | None = labels_option(
        "Name of each training sample (column).", "FILE", details="Of rectangular kernels, new × training samples."
    ),
    order: Path | None = labels_option(
        "Names of the rows of files without names, in order.", "FILE", details="Labels are matched by these."
    ),
    diagonal: Path | None = labels_option("k(x, x) of new samples, for cosine.", "FILE"),
    names: str | None = option("Names of the kernels, in the order of reading.", "A,B,…"),
    variable: list[str] | None = option("Variable of the files with the kernels; repeatable.", "NAME"),
    kernel_axis: int | None = option("Axis of the kernels in three-dimensional arrays.", "AXIS", min=0, max=2),
    rectangular: bool = flag("Square kernels are new × training samples too.", "--rectangular"),
    dtype: Literal["float32", "float64"] | None = storage_option(
        '"float32" or "float64". [default: as in the files]', "TYPE"
    ),
    symmetrize: bool = flag("(K + Kᵀ)/2 if halves differ; mirror a triangle.", "--symmetrize", panel="Storage"),
    add: bool = flag("Add the kernels to those of OUT, in its order.", "--add"),
) -> None:
    """Import kernel matrices from files into a kernel set.

    Files that name their samples are matched by name, in any order; other files by position. With --join outer a sample
    that is missing in a kernel has a row of zeros there after centering. --add keeps the kernels of OUT, and its
    precision unless --dtype says otherwise.

    After an interruption the same command resumes. OUT appears when the set is complete.

    Examples
    --------
        dmkl import kernels.zarr rbf.npy chi2.npy --labels classes.txt
        dmkl import kernels.zarr kernels.mat --variable K --labels labels.csv --order rows.txt --dtype float32
        dmkl import kernels.zarr cells.h5ad --variable obsp/connectivities --labels cells.h5ad:cell_type
        dmkl import kernels.zarr --mgrm list.txt --labels height.phen --join outer
        dmkl import kernels.zarr more.npy --add
        dmkl import new.zarr new_samples.h5 --kernel-axis 0 --samples new.txt --train-samples train.txt
    """
    from dmkl.inputs import open_files
    from dmkl.store.ingest import ingest
    from dmkl.store.zarr_groups import remove

    started = time.monotonic()
    files = [*(inputs or []), *([] if mgrm is None else [mgrm])]
    if not files:
        refuse("dmkl import needs files of kernels; give them after the set, or a list of them by --mgrm FILE")
    place, written, tile = as_place(out), out, given.tile
    if add:
        before = dmkl.open(out)
        # A hidden name, which no set of a user has; always the same one, so that the same command resumes.
        written, dtype = str(place.with_name(f".{place.name}.added")), dtype or before.dtype.name  # type: ignore[assignment]
        tile = before.view.source.tiling.tile
    source, side_data = open_files(
        files,
        kernel_axis=kernel_axis,
        variables=variable,
        names=parse_names(names),
        labels=given.labels,
        samples=given.samples,
        train_samples=train_samples,
        splits=given.splits,
        diagonal=diagonal,
        order=order,
        join=given.join,
        symmetric=False if rectangular else None,
    )
    for note in source.notes:
        say_aside("note", note)
    storing: dict[str, Any] = {"tile": tile, "dtype": dtype, "repair": given.repair, "symmetrize": symmetrize}
    with keeping_kernels(out), ConsoleWatch():
        ingest(written, source, side_data, **storing, overwrite=given.overwrite or add)
        K = dmkl.open(written)
        if add:
            try:
                dmkl.combine(out, out, written, join=given.join, overwrite=True)
            finally:
                added = as_place(written)
                remove(added) if isinstance(added, Url) else shutil.rmtree(added)
    for record in K.provenance:
        half, how = record.get("mirrored"), ""
        if half is not None:
            how = f"mirrored: all entries outside its {half} triangle were 0 or NaN"
        elif symmetrize:
            difference = record["symmetrized"]["largest_asymmetry"]
            how = f"symmetrized: mirrored entries differed by at most {difference:.3g}"
        if how:
            say_aside("note", f"kernel {record['name']!r} was {how}")
    _say_imported(out, started)


def _say_imported(out: str, started: float) -> None:
    _say_written(out, dmkl.open(out), started)
    say(f"Describe it with dmkl info {shlex.quote(out)}, check it with dmkl check {shlex.quote(out)}.")


def combine(
    sets: Annotated[list[str], typer.Argument(metavar="STORE…", help="Kernel sets (folders or URLs).")],
    out: options.NewStore,
    names: str | None = option("New names of all kernels, in order.", "A,B,…"),
    join: options.Join = "exact",
    overwrite: options.Overwrite = False,
) -> None:
    """Write the kernels of several sets as one set, samples matched by name.

    The samples have the order of the first set. Tiles of sets in this order are linked, or copied to another disk;
    features, from which kernels of new samples are computed, are taken over. After an interruption the same command
    resumes. OUT may be one of the sets, with --overwrite.

    Examples
    --------
        dmkl combine first.zarr second.zarr both.zarr
        dmkl combine first.zarr second.zarr common.zarr --join inner
    """
    started = time.monotonic()
    with keeping_kernels(out), ConsoleWatch():
        dmkl.combine(out, *sets, names=parse_names(names), join=join, overwrite=overwrite)
    _say_imported(out, started)


def build(
    out: options.NewStore,
    features: Annotated[
        list[Path],
        typer.Argument(metavar="FEATURES…", help="Files of feature tables: .npz, .h5, .h5ad, .mat, .csv …"),
    ],
    resources: Resources,
    given: NewSet,
    specs: Path | None = _kernels_option("Kernels to compute, a table [[kernel]] each.", "FILE.toml"),
    function: list[str] | None = _kernels_option(f"Instead of a file: {', '.join(FUNCTIONS)}; repeatable.", "NAME"),
    bandwidth: str | None = _kernels_option(
        "Multiples of the mean distance. [default: 1]", "B,B,…", details="There is a kernel for each."
    ),
    feature: list[str] | None = _kernels_option(
        "Tables: X, raw, 'layers/*' …; repeatable. [default: all, of .h5ad X]", "NAME"
    ),
    rank: str | None = _kernels_option(
        "Rank of approximations; auto: by the trace.", "N|auto", details="With auto they keep 99 % of it."
    ),
    transform: str | None = _kernels_option(
        "First, size-factor, log1p, tfidf, grm, grm=vanraden, impute. [default: grm of linear kernels of .bed]",
        "NAME,…",
        details="The first three are for counts, grm for genotypes; impute fills missing values in.",
    ),
    product: list[str] | None = _kernels_option(
        "Product of kernels by entry; repeatable.", "A,B", details="A and B are kernels or tables: an interaction."
    ),
    columns: Path | None = _kernels_option(
        "Sets of columns, a kernel each: .gmt, .bim, .json, .toml.",
        "FILE",
        details="Gene sets are .gmt, chromosomes of variants .bim, lists of names the others.",
    ),
    min_columns: int | None = _kernels_option(
        "Leave out sets of fewer columns.", "N", min=1, details="By default a set of columns without any is refused."
    ),
    against: str | None = _kernels_option(
        "Kernels of new samples against this set.", "STORE", details="It is of dmkl build; its functions are taken."
    ),
    train: Path | None = samples_option(
        "Samples to learn from, one name a line.",
        "FILE",
        details="Mean distances, landmarks and transforms are learnt from them.",
    ),
    split: int | None = samples_option("Learn from this split. [default: 0]", "K", min=0),
    missing: options.Missing = None,
    missing_features: options.MissingFeatures = "refuse",
    transpose: bool = flag("Samples are columns of the tables.", "--transpose", panel="Samples"),
    storage: Literal["auto", "factors", "tiles"] = storage_option(
        '"tiles", "factors" (features alone), or "auto" (default): factors of few columns.',
        "HOW",
        default="auto",
        details="That is, if all kernels are linear or cosine, of fewer columns than half the samples.",
    ),
    dtype: Literal["float16", "float32", "float64"] | None = storage_option(
        '"float32", "float64", or "float16" of factors.', "TYPE"
    ),
) -> None:
    """Compute kernels from feature tables, and store the features with them.

    The files may hold several tables, labels, splits and names of the samples; samples are matched by name. After an
    interruption the same command resumes. With --against the rows of the set are new samples and its
    columns the samples of STORE, with the functions and bandwidths of STORE.

    Examples
    --------
        dmkl build kernels.zarr views.npz --function rbf --bandwidth 0.1,1,10
        dmkl build kernels.zarr expression.csv methylation.csv --specs kernels.toml
        dmkl build kernels.zarr cells.h5ad --function rbf --feature 'layers/*'
        dmkl build kernels.zarr cells.h5ad --function linear --columns hallmark.gmt
        dmkl build kernels.zarr variants.bed --function linear --labels variants.fam
        dmkl build new.zarr new_views.npz --against kernels.zarr
    """
    started = time.monotonic()
    refuse_existing(as_place(out), overwrite=given.overwrite)
    chosen: dict[str, Any] = {"--function": function, "--bandwidth": bandwidth, "--feature": feature}
    chosen |= {"--columns": columns, "--min-columns": min_columns, "--rank": rank, "--transform": transform}
    compute: Callable[..., KernelSet]
    if against is None:
        from dmkl.features.specs import plan

        if missing_features != "refuse":
            refuse("--missing-features is for --against STORE, whose kernels use columns of these names; leave it out")
        kernels = _read_specs(specs, chosen)
        kernels += [{"function": "product", "of": parse_names(names)} for names in product or ()]
        tables = _open_features(features, given, transpose, labels=given.labels, splits=given.splits)
        planned, _ = plan(kernels, tables.blocks)  # dmkl.build warns of what it leaves out
        used = {item.feature for item in planned}
        unused = [name for name, table in tables.blocks.items() if name not in used and not table.by_name]
        if unused:
            tables.notes.append(f"no kernel uses {', '.join(map(repr, unused))}: left out")
        rows = _training_rows(tables, train, split)
        how: dict[str, Any] = {"repair": given.repair, "storage": storage, "tile": given.tile, "dtype": dtype}
        compute = partial(dmkl.build, out, tables, kernels, train=rows, **how)
    else:
        refused = {"--specs": specs, **chosen, "--product": product, "--train": train, "--split": split}
        refused |= {"--splits": given.splits, "--repair": given.repair, "--tile": given.tile, "--dtype": dtype}
        refused["--storage"] = None if storage == "auto" else storage
        _refuse(refused, f"--against takes kernels and training samples from {against}")
        tables = _open_features(features, given, transpose, labels=given.labels)
        compute = partial(dmkl.build_cross, dmkl.open(against), tables, out, missing_features=missing_features)
    for note in tables.notes:
        say_aside("note", note)
    # Threads by default: a build releases Python's lock, and needs no copies between processes.
    with keeping_kernels(out), ConsoleWatch(), resources.computing():
        K = compute(join=given.join, missing=missing, overwrite=given.overwrite)
    _say_written(out, K, started)
    if against is None and any(record.get("training_rows") == K.shape[2] for record in K.provenance):
        what = f"bandwidths (mean distances), landmarks and transforms are taken from all {K.shape[2]:,} samples"
        way_out = "give --splits, or the training samples by --train, to exclude these"
        say_aside("note", f"{what}, including those that folds hold out later; {way_out}")
    quoted = shlex.quote(out)
    learn = "" if K.labels is None else f", learn with dmkl fit {quoted} MODEL"
    say(f"Describe it with dmkl info {quoted}{learn if K.is_square else f', use it with dmkl predict MODEL {quoted}'}.")


def _say_written(out: str, K: KernelSet, started: float) -> None:
    n, rows, cols = K.shape
    summary = f"{count(n, 'kernel')} of {rows:,} × {cols:,}, {K.dtype}, {size_text(K.bytes_per_pass)}"
    say(f"{out}: {summary}, in {time.monotonic() - started:.1f} s")


def _refuse(options: Mapping[str, Any], why: str) -> None:
    given = [option for option, value in options.items() if value not in (None, [])]
    if given:
        refuse(f"{why}; leave out {' and '.join(given)}")


def _read_specs(file: Path | None, chosen: Mapping[str, Any]) -> list[dict[str, Any]]:
    from dmkl.features.specs import read_specs
    from dmkl.numerics.functions import BANDED

    if file is not None:
        _refuse(chosen, f"{file} says which kernels to make")
        return read_specs(file)
    functions, bandwidth, features, columns, min_columns, rank, transform = chosen.values()
    ranks = None if rank is None else [parse_value(text) for text in rank.split(",")]
    if not functions:
        refuse("say which kernels to make: --specs FILE.toml, or --function rbf --bandwidth 0.1,1,10")
    widths = None if bandwidth is None else parse_numbers("bandwidth", "numbers such as 0.1,1,10", bandwidth)
    # If none of the functions has a width, dmkl.build refuses the widths.
    with_width = BANDED.intersection(functions) or functions
    shared = {"feature": features, "columns": columns, "min_columns": min_columns, "rank": ranks}
    shared["transform"] = parse_names(transform)
    return [{"function": name, **shared, "bandwidth": widths if name in with_width else None} for name in functions]


def _open_features(features: list[Path], given: NewSet, transpose: bool, **files: Path | None) -> Features:
    from dmkl.inputs import as_features, read_names
    from dmkl.inputs.label_tables import given_data

    names = None if given.samples is None else read_names(given.samples)
    return as_features(features, samples=names, join=given.join, side_data=given_data(**files), transpose=transpose)


def _training_rows(tables: Features, train: Path | None, split: int | None) -> Index | None:
    """The samples between which distances are averaged; None for the default of `dmkl.build`."""
    import numpy as np

    from dmkl.inputs import read_names

    if train is not None and split is not None:
        refuse("--train and --split exclude each other; give one of them")
    n_samples = next(iter(tables.blocks.values())).shape[0]
    if train is not None:
        names = range(n_samples) if tables.samples is None else tables.samples
        return find_names(np.array([str(name) for name in names]), read_names(train, tables.samples), str(train))
    if split is None:
        return None
    splits = tables.labels.checked(n_samples, n_samples, rectangular=False)["split"]
    n_splits = 0 if splits is None else len(splits)
    if splits is None or split >= n_splits:
        refuse(f"there is no split {split}, the samples have {n_splits}; choose another with --split, or give --splits")
    rows = np.flatnonzero(splits[split] == 0)
    if not len(rows):
        refuse(f"split {split} has no training samples; choose another with --split, or give --train")
    return rows
