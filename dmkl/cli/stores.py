"""`dmkl import` and `dmkl info`."""

from __future__ import annotations

import re
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

import dmkl
from dmkl.cli import options
from dmkl.cli.options import LABELS, STORAGE, option
from dmkl.cli.output import number, print_json, say, say_aside, show, size, table
from dmkl.cli.parsing import parse_names
from dmkl.cli.resuming import keeping_kernels
from dmkl.cli.saved import kind_of, show_saved
from dmkl.errors import IncompleteStoreError
from dmkl.files.urls import as_place, files_in, resolved
from dmkl.progress import ConsoleWatch
from dmkl.searching.texts import count

if TYPE_CHECKING:
    from dmkl.arrays import Array
    from dmkl.kernelset import KernelSet

__all__ = ["import_", "info"]

_BOOKKEEPING = {"name", "bytes", "mtime_ns", "n_missing"}
"""What is recorded of a file and means nothing to people, or is shown elsewhere."""


def import_(
    out: options.NewStore,
    inputs: Annotated[
        list[Path],
        typer.Argument(metavar="INPUTS…", help="Files of matrices: .npy, .npz, .mat, .h5, .zarr, .h5ad, .csv …"),
    ],
    labels: options.Labels = None,
    samples: options.SampleNames = None,
    train_samples: Annotated[
        Path | None, option("Name of each training sample (column) of rectangular kernels.", "FILE", panel=LABELS)
    ] = None,
    order: Annotated[
        Path | None,
        option(
            "Names of the rows of the kernels, as they stand in their files: labels are matched by these.",
            "FILE",
            panel=LABELS,
        ),
    ] = None,
    splits: options.Splits = None,
    diagonal: Annotated[
        Path | None,
        option(
            "k(x, x) of each new sample, which cosine normalization of rectangular kernels needs.", "FILE", panel=LABELS
        ),
    ] = None,
    names: Annotated[str | None, option("Names of the kernels, in the order in which they are read.", "A,B,…")] = None,
    variable: Annotated[
        list[str] | None, option("Variable of the files that holds the kernels; repeatable.", "NAME")
    ] = None,
    kernel_axis: Annotated[
        int | None, option("Axis that counts the kernels in three-dimensional arrays.", min=0, max=2)
    ] = None,
    rectangular: Annotated[
        bool, option("Take square kernels too as new samples against training samples.", None, "--rectangular")
    ] = False,
    join: options.Join = "exact",
    tile: options.Tile = None,
    dtype: options.Dtype = None,
    repair: options.Repair = None,
    symmetrize: Annotated[
        bool,
        option(
            "Take (K + Kᵀ)/2 of kernels whose halves differ, and say by how much.", None, "--symmetrize", panel=STORAGE
        ),
    ] = False,
    overwrite: options.Overwrite = False,
) -> None:
    """Import kernel matrices from files into a kernel set.

    Where files name their samples, these are matched by name, whatever their order; other files by position. With
    --join outer a sample that lacks a kernel gets a row of zeros in it once it is centered.

    After an interruption the same command goes on where it stopped. OUT appears when the set is complete.

    Examples
    --------
        dmkl import kernels.zarr rbf.npy chi2.npy --labels classes.txt
        dmkl import kernels.zarr kernels.mat --variable K --labels labels.csv --dtype float32
        dmkl import kernels.zarr cells.h5ad --variable obsp/connectivities --labels cells.h5ad:cell_type
        dmkl import new.zarr new_samples.h5 --rectangular --samples new.txt --train-samples train.txt
    """
    from dmkl.inputs import open_files
    from dmkl.store.ingest import ingest

    started = time.monotonic()
    source, known = open_files(
        inputs,
        kernel_axis=kernel_axis,
        variables=variable,
        names=parse_names(names),
        labels=labels,
        samples=samples,
        train_samples=train_samples,
        splits=splits,
        diagonal=diagonal,
        order=order,
        join=join,
        symmetric=False if rectangular else None,
    )
    for note in source.notes:
        say_aside("note", note)
    with keeping_kernels(out), ConsoleWatch():
        ingest(
            out,
            source,
            known,
            tile=tile,
            dtype=dtype,
            repair=repair,
            symmetrize=symmetrize,
            overwrite=overwrite,
        )
    K = dmkl.open(out)
    for made in K.provenance if symmetrize else ():
        apart = made["symmetrized"]["largest_asymmetry"]
        say_aside("note", f"kernel {made['name']!r} was symmetrized: mirrored entries were at most {apart:.3g} apart")
    n, rows, cols = K.shape
    what = f"{count(n, 'kernel')} of {rows:,} × {cols:,}, {K.dtype}"
    say(f"{out}: {what}, in {time.monotonic() - started:.1f} s")
    say(f"Look at it with dmkl info {shlex.quote(out)}, for problems with dmkl check {shlex.quote(out)}.")


def info(store: options.Anything, as_json: options.Json = False) -> None:
    """Show what a kernel set, a model, a result, an exported kernel or table, or a search's state is and holds.

    Examples
    --------
        dmkl info kernels.zarr
        dmkl info kernels.zarr --json
        dmkl info model
    """
    kind = kind_of(store)
    if kind is not None:
        show_saved(store, kind, as_json=as_json)
        return
    try:
        K = dmkl.open(store)
    except IncompleteStoreError as error:
        msg = f"{error}. {_progress_of(store)}"
        raise IncompleteStoreError(msg) from error
    described = _describe(K, store)
    if as_json:
        print_json(described)
    else:
        _print(described)


def _progress_of(store: str) -> str:
    """How much of an unfinished set is there: a kernel is whole when its row sums stand."""
    import numpy as np
    import zarr

    from dmkl.store.groups import partial_path, zarr_store

    begun = partial_path(resolved(store))
    try:
        group: Any = zarr.open_group(zarr_store(begun if begun.exists() else as_place(store)), mode="r")
        row_sum = group["row_sum"]
        whole = sum(not np.isnan(row_sum[j]).any() for j in range(row_sum.shape[0]))
    except (OSError, KeyError, ValueError):
        return "No kernel of it is whole yet"
    n, rows = row_sum.shape
    return f"{whole} of {count(n, 'kernel')} over {count(rows, 'sample')} are whole"


def _describe(K: KernelSet, store: str) -> dict[str, Any]:
    import numpy as np

    from dmkl.store.features import read_tables
    from dmkl.store.reader import StoreReader

    source = K.view.source
    assert isinstance(source, StoreReader)
    return {
        "path": store,
        "kernels": [
            {"name": name, "made_by": _made_by(made), "samples_missing": made.get("n_missing", 0)}
            for name, made in zip(K.names, K.provenance, strict=True)
        ],
        "features": [
            {
                "name": name,
                "columns": table.shape[1],
                "samples_missing": table.n_missing,
                "dtype": table.dtype.name,
                "column_names": table.columns,
            }
            for name, table in read_tables(source.location).items()
        ],
        "shape": list(K.shape),
        "dtype": str(K.dtype),
        "tile": source.tiling.tile,
        "symmetric": source.symmetric,
        "stored": "full" if source.full else "upper tiles",
        "bytes_per_pass": K.bytes_per_pass,
        "bytes_on_disk": sum(files_in(as_place(store)).values()),
        "samples_have_names": K.view.has_names,
        "labels": _classes(K),
        "labels_are": _kind_of_labels(K),
        "target_range": _range(K.labels) if K.labels is not None and _kind_of_labels(K) == "target" else None,
        "splits": [
            {
                part: int(np.count_nonzero(split == number))
                for number, part in enumerate(("train", "validation", "test"))
            }
            for split in (() if K.splits is None else K.splits)
        ],
        "content_id": K.content_id,
        "created_by": source.attrs.get("created_by"),
        "format_version": source.attrs.get("format_version"),
    }


def _range(values: Array) -> list[float]:
    return [float(values.min()), float(values.max())]


_LABELS = {
    None: "classes",
    "classes": "classes",
    "tasks": "tasks (positive samples)",
    "target": "target",
    "targets": "targets (known values)",
}


def _kind_of_labels(K: KernelSet) -> str | None:
    """What the labels of a set are: classes, tasks with positive samples, a target, or several targets."""
    import numpy as np

    if K.labels is None or K.labels.ndim == 1:
        return None if K.labels is None else "target" if K.labels.dtype.kind == "f" else "classes"
    return "tasks" if (np.isin(K.labels, (0, 1)) | np.isnan(K.labels)).all() else "targets"


def _classes(K: KernelSet) -> dict[str, int] | None:
    """Samples of each class, positive samples of each task, or known values of each target."""
    import numpy as np

    kind = _kind_of_labels(K)
    if K.labels is None or kind == "target":
        return None
    if kind != "classes":
        columns = K.labels.T
        tasks = range(len(columns)) if K.tasks is None else K.tasks
        counts = np.nansum(columns, axis=1) if kind == "tasks" else np.count_nonzero(~np.isnan(columns), axis=1)
        return {str(task): int(count) for task, count in zip(tasks, counts, strict=True)}
    classes, sizes = np.unique(K.labels, return_counts=True)
    return {str(name): int(n) for name, n in zip(classes, sizes, strict=True)}


def _made_by(made: dict[str, Any]) -> dict[str, Any]:
    """How a kernel was made: all that a build notes, and of files what means something to people."""
    if not _is_computed(made):
        return _recipe(made)
    return {key: value for key, value in made.items() if key not in ("name", "identity", "n_missing")}


def _is_computed(made: dict[str, Any]) -> bool:
    return "function" in made and "parameters" in made


def _recipe(made: dict[str, Any]) -> dict[str, Any]:
    """What is recorded of a kernel from a file, without hashes and file stamps."""
    flat: dict[str, Any] = {}
    for key, value in made.items():
        if isinstance(value, dict):
            flat |= _recipe(value)
        elif value is not None and key not in _BOOKKEEPING and re.fullmatch(r"[0-9a-f]{32,}", str(value)) is None:
            flat["repair" if key == "method" else key] = value  # the method is one of repair
    return flat


def _print(described: dict[str, Any]) -> None:
    n, rows, cols = described["shape"]
    target = None
    if described["target_range"] is not None:
        low, high = described["target_range"]
        target = f"{rows:,} numbers from {low:.4g} to {high:.4g}"
    kind = "symmetric" if described["symmetric"] else "new samples × training samples"
    facts = {
        "kernels": f"{n:,} of {rows:,} × {cols:,}, {described['dtype']}, {kind}",
        "tiles": f"{described['tile']:,} × {described['tile']:,}, {described['stored']}",
        "one pass reads": size(described["bytes_per_pass"]),
        "on disk": size(described["bytes_on_disk"]),
        "samples": "matched by name" if described["samples_have_names"] else "without names, matched by position",
        _LABELS[described["labels_are"]]: _listed(described["labels"]) if target is None else target,
        "splits": "; ".join(
            f"{number}: " + ", ".join(f"{n:,} {part}" for part, n in split.items() if n)
            for number, split in enumerate(described["splits"])
        ),
        "written by": f"{described['created_by']}, format version {described['format_version']}",
        "content": described["content_id"],
    }
    about = table("", "")
    about.show_header = False
    about.columns[0].style = "bold"
    for fact, value in facts.items():
        about.add_row(fact, Text(value or "none"))
    say(described["path"], style="bold")
    incomplete = any(kernel["samples_missing"] for kernel in described["kernels"])
    kernels = table("kernel", "how it was made", numbers=["samples missing"] if incomplete else [])
    for kernel in described["kernels"]:
        recipe = _in_words(kernel["made_by"])
        missing = [f"{kernel['samples_missing']:,}"] if incomplete else []
        kernels.add_row(Text(kernel["name"]), Text(recipe or "not recorded", style="" if recipe else "dim"), *missing)
    kept = table("feature kept", numbers=("columns", "samples missing"))
    for feature in described["features"]:
        kept.add_row(Text(feature["name"]), f"{feature['columns']:,}", f"{feature['samples_missing']:,}")
    show(about, kernels, *([kept] if described["features"] else []))


def _in_words(made: dict[str, Any]) -> str:
    if not _is_computed(made):
        return ", ".join(_pair(key, value) for key, value in made.items())
    parts = [f"{made['function']} of {made['feature']}" if "feature" in made else made["function"]]
    for key, value in made["parameters"].items():
        why = [_pair(origin, made[origin]) for origin in ("bandwidth", "mean_distance") if origin in made]
        parts.append(_pair(key, value) + (f" ({', '.join(why)})" if key == "gamma" and why else ""))
    return ", ".join([*parts, *([count(len(made["columns"]), "column")] if "columns" in made else [])])


def _pair(key: str, value: Any) -> str:
    return f"{key.replace('_', ' ')} {_figure(value)}"


def _figure(value: Any) -> str:
    if isinstance(value, list):
        return "/".join(map(_figure, value))
    return number(value) if isinstance(value, float) else str(value)


def _listed(classes: dict[str, int] | None, most: int = 12) -> str:
    if classes is None:
        return ""
    shown = [f"{name} ({n:,})" for name, n in list(classes.items())[:most]]
    more = f", … {len(classes) - most} more" if len(classes) > most else ""
    return f"{len(classes)}: {', '.join(shown)}{more}"
