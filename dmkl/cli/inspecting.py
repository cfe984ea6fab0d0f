"""`dmkl info` and `dmkl check`: kernel sets, models, results, exports and checkpoints, described and checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer
from rich.padding import Padding
from rich.text import Text

import dmkl
from dmkl.cli.cluster import Resources
from dmkl.cli.options import Anything, Json, Kernels, flag, option
from dmkl.cli.output import STYLES, console, facts_table, print_json, say, say_aside, show, table
from dmkl.cli.samples import open_kernels
from dmkl.description import count, listed, number
from dmkl.errors import DmklError, IncompleteStoreError, StoreNotFoundError, size_text
from dmkl.files.urls import Place, as_place, files_in, resolved
from dmkl.progress import ConsoleWatch

if TYPE_CHECKING:
    import xarray as xr

    from dmkl.kernelset import KernelSet


def info(path: Anything, as_json: Json = False) -> None:
    """Describe a kernel set, a model, a result, an exported kernel or table, or a search's checkpoint.

    Examples
    --------
        dmkl info kernels.zarr
        dmkl info kernels.zarr --json
        dmkl info model
    """
    kind, folder = _kind_of(path), as_place(path)
    if kind is not None:
        facts = {"path": path, "kind": kind.title, **kind.facts(folder)}
        facts |= {"bytes_on_disk": sum(files_in(folder).values()), "checksums": _has_checksums(folder, kind)}
        if as_json:
            print_json(facts)
            return
        facts["bytes_on_disk"] = size_text(facts["bytes_on_disk"])
        say(path, style="bold")
        show(facts_table({name.replace("_", " "): _as_text(value) for name, value in list(facts.items())[1:]}))
        return
    try:
        K = dmkl.open(path)
    except IncompleteStoreError as error:
        msg = f"{error}. {_finished_part(path)}"
        raise IncompleteStoreError(msg) from error
    description = _describe_set(K, path)
    if as_json:
        print_json(description)
    else:
        _print_description(description)


def check(
    path: Anything,
    resources: Resources,
    kernels: Kernels = None,
    steps: int = option("Number of products with each kernel to find negative eigenvalues.", default=30, min=1),
    seed: int = option("Seed of the random start vectors.", default=0, min=0),
    strict: bool = flag("Fail on warnings too.", "--strict"),
    as_json: Json = False,
) -> None:
    """Read all of a kernel set, a model, a result, an export or a search's checkpoint, and report problems.

    Compares every file with its checksums. In a kernel set it also finds NaN, asymmetry, negative eigenvalues, constant
    and repeated kernels, kernels that are the labels, and very different scales.
    The exit status is 1 if there are errors (with --strict, or warnings), and 0 otherwise.

    Examples
    --------
        dmkl check kernels.zarr
        dmkl check kernels.zarr --strict --json > report.json
        dmkl check model
        dmkl check result.partial
    """
    kind = _kind_of(path)
    if kind is not None:
        _check_files(path, kind, strict=strict, as_json=as_json)
        return
    from dmkl.health import SEVERITIES
    from dmkl.health import check as check_set

    K = open_kernels(path, kernels)
    with ConsoleWatch(), resources.computing(reading=K):
        report = check_set(K, n_steps=steps, seed=seed)
    columns = (report[name].values.tolist() for name in ("severity", "subject", "message"))
    findings: list[tuple[str, str, str]] = list(zip(*columns, strict=True))
    if as_json:
        figures = report.drop_dims("finding").to_dataframe().rename_axis("name").reset_index()
        listed = [{"severity": kind, "kernel": kernel or None, "message": text} for kind, kernel, text in findings]
        print_json({"content_id": K.content_id, "kernels": figures.to_dict("records"), "findings": listed})
    else:
        _print_report(K, report, findings)
    failing = SEVERITIES[: 2 if strict else 1]
    if any(severity in failing for severity, *_ in findings):
        raise typer.Exit(1)


# --- a kernel set described ----------------------------------------------------------------------------------------

_BOOKKEEPING = {"name", "bytes", "mtime_ns", "n_missing"}
"""Keys of the record of a file that are not shown, or shown elsewhere."""


def _finished_part(path: str) -> str:
    """A sentence on the finished part of an incomplete set: a kernel is finished when its row sums are written."""
    import numpy as np
    import zarr

    from dmkl.store.format import kept_as_factors
    from dmkl.store.zarr_groups import partial_path, zarr_store

    partial = partial_path(resolved(path))
    try:
        group: Any = zarr.open_group(zarr_store(partial if partial.exists() else as_place(path)), mode="r")
        row_sum, kept = group["row_sum"], kept_as_factors(group.attrs["kernels"])
        n_finished = sum(j in kept or not np.isnan(row_sum[j]).any() for j in range(row_sum.shape[0]))
    except (OSError, KeyError, ValueError):
        return "No kernel of it is finished yet"
    n, rows = row_sum.shape
    return f"{n_finished} of {count(n, 'kernel')} over {count(rows, 'sample')} are finished"


def _describe_set(K: KernelSet, path: str) -> dict[str, Any]:
    import numpy as np

    from dmkl.features.stored import FactorReader
    from dmkl.store.features import read_tables
    from dmkl.store.reader import StoreReader

    source = K.view.source
    assert isinstance(source, StoreReader)
    stored = ["full" if source.full else "upper tiles"] if len(source.kept) < len(K) else []
    stored += [f"{count(len(source.kept), 'kernel')} as factors"] if source.kept else []
    kernels, features, splits = [], [], () if K.splits is None else K.splits
    for k, (name, record) in enumerate(zip(K.names, K.provenance, strict=True)):
        kernels.append({"name": name, "made_by": _recipe(record), "samples_missing": record.get("n_missing", 0)})
        n_columns, n_bytes = source.factor_size(k) if isinstance(source, FactorReader) else (0, 0)
        kernels[-1] |= {"factor_columns": n_columns, "factor_bytes": n_bytes} if n_columns else {}
    for name, stored_table in read_tables(source.location).items():
        features.append({"name": name, "columns": stored_table.shape[1], "samples_missing": stored_table.n_missing})
        features[-1] |= {"dtype": stored_table.dtype.name, "column_names": stored_table.columns}
    return {
        "path": path,
        "kernels": kernels,
        "features": features,
        "shape": list(K.shape),
        "dtype": str(K.dtype),
        "tile": source.tiling.tile,
        "symmetric": source.symmetric,
        "stored": ", ".join(stored),
        "bytes_per_pass": K.bytes_per_pass,
        "bytes_on_disk": sum(files_in(as_place(path)).values()),
        "samples_have_names": K.view.has_names,
        **_describe_labels(K),
        "splits": [
            {part: int(np.count_nonzero(split == k)) for k, part in enumerate(("train", "validation", "test"))}
            for split in splits
        ],
        "content_id": K.content_id,
        "created_by": source.attrs.get("created_by"),
        "format_version": source.attrs.get("format_version"),
    }


def _describe_labels(K: KernelSet) -> dict[str, Any]:
    """Kind of the labels, range of a target, and samples of each class, positive ones of each task, or known values."""
    import numpy as np

    labels = K.labels
    if labels is None or (labels.ndim == 1 and labels.dtype.kind == "f"):
        span = None if labels is None else [float(labels.min()), float(labels.max())]
        return {"labels": None, "labels_are": None if span is None else "target", "target_range": span}
    if labels.ndim == 1:
        kind, (names, numbers) = "classes", np.unique(labels, return_counts=True)
    else:
        names = np.arange(labels.shape[1]) if K.tasks is None else np.asarray(K.tasks)
        present = ~np.isnan(labels)
        kind = "tasks" if (np.isin(labels, (0, 1)) | ~present).all() else "targets"
        numbers = np.nansum(labels, axis=0) if kind == "tasks" else np.count_nonzero(present, axis=0)
    by_name = {str(name): int(n) for name, n in zip(names, numbers, strict=True)}
    return {"labels": by_name, "labels_are": kind, "target_range": None}


def _recipe(record: dict[str, Any]) -> dict[str, Any]:
    """How a kernel was made: the record of a build, or that of a file without hashes and time stamps."""
    if {"function", "parameters"} <= record.keys():
        return {key: value for key, value in record.items() if key not in ("name", "identity", "n_missing")}
    if "origin" in record:  # of the kernel of another set, which the identity names
        record = {key: value for key, value in record.items() if key != "identity"}
    flat: dict[str, Any] = {}
    for key, value in record.items():
        if isinstance(value, dict):
            flat |= _recipe(value)
        elif value is not None and key not in _BOOKKEEPING and re.fullmatch(r"[0-9a-f]{32,}", str(value)) is None:
            flat["repair" if key == "method" else key] = value  # the method is one of repair
    return flat


def _print_description(description: dict[str, Any]) -> None:
    n, rows, cols = description["shape"]
    kind, classes, labels = description["labels_are"] or "classes", description["labels"], ""
    if classes is not None:
        labels = f"{len(classes)}: {listed((f'{name} ({n:,})' for name, n in classes.items()), 12)}"
    elif description["target_range"] is not None:
        low, high = description["target_range"]
        labels = f"{rows:,} numbers from {low:.4g} to {high:.4g}"
    titles = {"tasks": "tasks (positive samples)", "targets": "targets (known values)"}
    shape = "symmetric" if description["symmetric"] else "new samples × training samples"
    facts = {
        "kernels": f"{n:,} of {rows:,} × {cols:,}, {description['dtype']}, {shape}",
        "tiles": f"{description['tile']:,} × {description['tile']:,}, {description['stored']}",
        "one pass reads": size_text(description["bytes_per_pass"]),
        "on disk": size_text(description["bytes_on_disk"]),
        "samples": "matched by name" if description["samples_have_names"] else "without names, matched by position",
        titles.get(kind, kind): labels,
        "splits": "; ".join(
            f"{number}: " + ", ".join(f"{n:,} {part}" for part, n in split.items() if n)
            for number, split in enumerate(description["splits"])
        ),
        "written by": f"{description['created_by']}, format version {description['format_version']}",
        "content": description["content_id"],
    }
    incomplete = any(kernel["samples_missing"] for kernel in description["kernels"])
    kernels = []
    for kernel in description["kernels"]:
        recipe = _in_words(kernel["made_by"])
        if "factor_columns" in kernel:
            size = size_text(kernel["factor_bytes"])
            recipe += f", kept as factors of {count(kernel['factor_columns'], 'column')}, {size}"
        missing = [f"{kernel['samples_missing']:,}"] if incomplete else []
        kernels.append([kernel["name"], recipe or Text("not recorded", style="dim"), *missing])
    tables = [table("kernel", "how it was made", numbers=["samples missing"] if incomplete else [], rows=kernels)]
    if features := description["features"]:
        lines = ([each["name"], f"{each['columns']:,}", f"{each['samples_missing']:,}"] for each in features)
        tables.append(table("stored feature", numbers=("columns", "samples missing"), rows=lines))
    say(description["path"], style="bold")
    show(facts_table({name: value or "none" for name, value in facts.items()}), *tables)


def _in_words(record: dict[str, Any]) -> str:
    if not {"function", "parameters"} <= record.keys():
        return ", ".join(_pair(key, value) for key, value in record.items())
    if "approximation" in record:
        made = record["approximation"]
        lost = f"{made['trace_lost']:.2%} of the trace" if "trace_lost" in made else f"{made['frobenius_error']:.2%}"
        return f"{_in_words(made['of'])}, rank {made['rank']} ({made['method']}, {lost} lost)"
    parts = [f"{record['function']} of {record['feature']}" if "feature" in record else record["function"]]
    for key, value in record["parameters"].items():
        why = [_pair(origin, record[origin]) for origin in ("bandwidth", "mean_distance") if origin in record]
        parts.append(_pair(key, value) + (f" ({', '.join(why)})" if key == "gamma" and why else ""))
    return ", ".join([*parts, *([count(len(record["columns"]), "column")] if "columns" in record else [])])


def _pair(key: str, value: Any) -> str:
    values = value if isinstance(value, list) else [value]
    texts = [f"{item:.3g}" if isinstance(item, float) else str(item) for item in values]
    return f"{key.replace('_', ' ')} {'/'.join(texts)}"


# --- a kernel set checked ------------------------------------------------------------------------------------------


def _print_report(K: KernelSet, report: xr.Dataset, findings: Sequence[tuple[str, str, str]]) -> None:
    from dmkl.health import SEVERITIES

    worst: dict[str, str] = {}
    for severity, subject, _ in findings:
        worst.setdefault(subject, severity)  # the most severe come first
    shown = ("largest_entry", "trace", "centered_trace", "lowest_eigenvalue", "highest_eigenvalue")
    rows = []
    for name in report.kernel.values.tolist():
        row = report.sel(kernel=name)
        damaged, tiles, verdict = int(row.damaged_tiles), int(row.tiles), worst.get(name, "ok")
        cell = f"{damaged:,} of {tiles:,} damaged" if damaged else f"{tiles:,}"
        if row.factor_columns:
            cell = f"factors of {count(int(row.factor_columns), 'column')}, {size_text(int(row.factor_bytes))}"
        figures = (number(float(row[key])) for key in shown)
        rows.append([name, cell, *figures, Text(verdict, style=STYLES.get(verdict, "green"))])
    out, numbers = console(), ("tiles", "largest entry", "trace", "centered trace", "lowest eigenvalue", "highest")
    out.print(table("kernel", numbers=numbers, last=[""], rows=rows))
    out.print()
    for severity, subject, message in findings:
        say((severity, STYLES[severity]), " ", (subject or "the set", "bold"))
        out.print(Padding(Text(message), (0, 0, 0, 2)))
    counts = [count(sum(severity == kind for severity, *_ in findings), kind) for kind in SEVERITIES]
    say(f"{count(len(K), 'kernel')} checked: {', '.join(counts)}.", style="bold")


# --- other kinds ---------------------------------------------------------------------------------------------------


class _Kind(NamedTuple):
    """A kind of folder that commands write, other than kernel sets."""

    title: str
    facts: Callable[[Place], dict[str, Any]]


def _kind_of(path: str) -> _Kind | None:
    """The kind of the folder at a path; None for anything else, such as a kernel set."""
    from dmkl.store.zarr_groups import root_attributes

    folder = as_place(path)
    if isinstance(folder, Path):
        if (folder / "state.json").is_file():
            return _STATE
        partial = folder.with_name(f"{folder.name}.partial")
        if not folder.exists() and (partial / "state.json").is_file():
            msg = f"there is nothing at {folder} yet; the checkpoint of an interrupted search of it is {partial}"
            raise StoreNotFoundError(msg)
    return _KINDS.get(str(root_attributes(folder).get("format")))


def _as_text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} = {_as_text(item)}" for key, item in value.items()) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _check_files(path: str, kind: _Kind, *, strict: bool, as_json: bool) -> None:
    """Compare files with their checksums; the exit status is 1 for damage, and with `strict` without checksums."""
    from dmkl.health import damage
    from dmkl.solvers.workspace import damage_of_state
    from dmkl.store.saved import Saved

    folder = as_place(path)
    if kind is _STATE and isinstance(folder, Path):
        messages = list(damage_of_state(folder))
    else:
        messages = list(damage(folder))
        try:
            attrs = Saved.open(folder).attrs
            if not messages and attrs["format"] not in _LABELED:  # which may be larger than memory
                dmkl.load(folder)
        except DmklError as error:
            messages = messages or [str(error)]
    has_checksums = bool(messages) or _has_checksums(folder, kind)
    if as_json:
        findings = [{"severity": "error", "message": message} for message in messages]
        print_json({"path": path, "kind": kind.title, "checksums": has_checksums, "findings": findings})
    else:
        for message in messages:
            say_aside("error", message)
        if not has_checksums:
            say_aside("warning", f"{path} was written by a dmkl that kept no checksums; save it again to have them")
        n_files = len(files_in(folder))
        verdict = f"{count(len(messages), 'damaged part')}" if messages else "no damage found"
        say(f"{path}: a {kind.title}, {count(n_files, 'file')} checked: {verdict}.", style="bold")
    if messages or (strict and not has_checksums):
        raise typer.Exit(1)


def _has_checksums(folder: Place, kind: _Kind) -> bool:
    from dmkl.store.zarr_groups import CHECKSUM, open_group

    return kind is _STATE or CHECKSUM in open_group(folder).attrs


def _model_facts(folder: Place) -> dict[str, Any]:
    import numpy as np

    from dmkl.learners.tables import effects_as_mapping

    model = dmkl.load(folder)
    weights = model.weights_.values.reshape(len(model.kernel_names_), -1)
    return {
        "model": type(model).__name__,
        "parameters": model.get_params(deep=False),
        "learns": model.kind_,
        "classes": ", ".join(map(str, model.classes_)) or "none",
        "training_samples": model.n_features_in_,
        "kernels": len(model.kernel_names_),
        "kernels_with_weight": int(np.count_nonzero(weights.any(axis=1))),
        "features": "none" if isinstance(model.features_, str) else ", ".join(model.features_.tables) or "none",
        "largest_gap": float(np.max(np.asarray(model.gap_))),
        "status": model.status_,
        **effects_as_mapping(model),
    }


def _result_facts(folder: Place) -> dict[str, Any]:
    result = dmkl.load(folder)
    return {"summary": result.summary(), "created_by": result.data.attrs.get("created_by")}


def _labeled_facts(folder: Place) -> dict[str, Any]:
    import xarray as xr

    from dmkl.store.saved import Saved

    saved = Saved.open(folder)
    with xr.open_dataset(xr.backends.ZarrStore(saved.group, mode="r"), chunks=None) as data:
        return {
            "variables": {
                str(name): f"{array.attrs.get('long_name', 'no description')} ({', '.join(map(str, array.dims))})"
                for name, array in data.data_vars.items()
            },
            "sizes": {str(name): size for name, size in data.sizes.items()},
            "created_by": data.attrs.get("created_by"),
        }


def _state_facts(folder: Place) -> dict[str, Any]:
    from dmkl.solvers.workspace import read_state, read_state_file

    assert isinstance(folder, Path)
    content = read_state_file(folder / "state.json")
    state = read_state(folder)
    return {
        "passes_done": state.n_passes,
        "problems_done_by_other_solvers": state.n_outcomes,
        "belongs_to": {
            name: text if len(text := str(value)) <= 60 else f"{text[:57]}…"
            for name, value in content["identity"].items()
        },
        "format_version": content["format_version"],
    }


_STATE = _Kind("checkpoint of a search", _state_facts)
_LABELED = ("dmkl-combined-kernel", "dmkl-table")
_KINDS = {
    "dmkl-model": _Kind("model", _model_facts),
    "dmkl-analysis": _Kind("analysis of kernels", _result_facts),
    "dmkl-search": _Kind("result of a search", _result_facts),
    "dmkl-evaluation": _Kind("result of a nested cross-validation", _result_facts),
    "dmkl-comparison": _Kind("comparison of models", _result_facts),
    "dmkl-importance": _Kind("importance of kernels", _result_facts),
    "dmkl-stability": _Kind("result of resampling", _result_facts),
    "dmkl-association": _Kind("result of association tests", _result_facts),
    "dmkl-kernel-scores": _Kind("scores by kernel", _result_facts),
    "dmkl-permutation-test": _Kind("result of a permutation test", _result_facts),
    "dmkl-combined-kernel": _Kind("weighted kernel", _labeled_facts),
    "dmkl-table": _Kind("table", _labeled_facts),
}
"""By the attribute "format" of the root."""
