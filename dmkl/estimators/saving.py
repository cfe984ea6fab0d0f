"""Models on disk: a Zarr group of labeled arrays and JSON attributes, never pickle."""

from __future__ import annotations

import shutil
import uuid
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr

from dmkl._version import __version__
from dmkl.errors import FormatVersionError, StoreError, StoreExistsError, StoreNotFoundError
from dmkl.estimators.decisions import Decider
from dmkl.estimators.problems import Statistics
from dmkl.features.cross import TrainingFeatures
from dmkl.numerics.fitted import load_step

__all__ = [
    "MODELS",
    "READERS",
    "check_version",
    "decode",
    "encode",
    "has_format",
    "load",
    "models",
    "put_in_place",
    "save_model",
    "write_dataset",
    "write_model",
]

FORMAT, FORMAT_VERSION = "dmkl-model", 2
"""Version 1 had parameters ``center`` and ``normalize`` in place of ``steps``, and statistics of one part."""
MODELS: dict[str, type[Any]] = {}
"""The kinds of models by name; each enters itself where its class is made."""
READERS: dict[str, Callable[[Path, dict[str, Any]], Any]] = {}
"""What `load` reads by the attribute "format", from the path and the attributes; each enters itself."""
_ARRAYS = {"weights_": "weight", "dual_coef_": "dual_coef", "intercept_": "intercept", "scores_": "accuracy"}
"""Attributes that are stored, and what their arrays are called in memory."""


def models() -> dict[str, type[Any]]:
    """The kinds of models by name, with everything that `dmkl` offers imported."""
    import dmkl

    for name in dir(dmkl):
        getattr(dmkl, name)
    return MODELS


def save_model(model: Any, path: Any, *, overwrite: bool = False) -> None:
    """See `KernelLearner.save`."""
    put_in_place(path, lambda written: write_model(model, written), FORMAT, "model", overwrite=overwrite)


def put_in_place(path: Any, write: Callable[[Path], None], form: str, what: str, *, overwrite: bool) -> None:
    """Write beside `path` and rename, so that what is there is whole, the old or the new.

    Parameters
    ----------
    write
        Writes a Zarr group at the path that it is given.
    form
        The attribute "format" of what may be replaced.
    what
        Its name in messages.

    Raises
    ------
    StoreExistsError
        If something is at `path` and `overwrite` was not given, or it is of another format.
    """
    final = Path(path).expanduser().absolute()
    if final.exists():
        if not overwrite:
            msg = (
                f"{final} exists already; choose another path, or ask for it to be replaced (overwrite=True, "
                "--overwrite)"
            )
            raise StoreExistsError(msg)
        if not has_format(final, form):
            msg = f"{final} is not a {what}, and nothing else is replaced; choose another path, or move it away"
            raise StoreExistsError(msg)
    token = uuid.uuid4().hex
    written, replaced = (final.with_name(f"{final.name}.{token}.{end}") for end in ("partial", "replaced"))
    written.parent.mkdir(parents=True, exist_ok=True)
    try:
        write(written)
    except BaseException:
        shutil.rmtree(written, ignore_errors=True)
        raise
    if final.exists():
        final.rename(replaced)
    written.rename(final)
    shutil.rmtree(replaced, ignore_errors=True)


def has_format(path: Path, form: str) -> bool:
    """Whether there is a Zarr group at `path` whose attribute "format" is this."""
    try:
        return zarr.open_group(path, mode="r", zarr_format=3).attrs.get("format") == form
    except (OSError, ValueError, KeyError):
        return False


def write_model(model: Any, path: Path) -> None:
    """Write a fitted model as a Zarr group at a path where there is none."""
    arrays: dict[str, Any] = {name: getattr(model, name) for name in _ARRAYS if hasattr(model, name)}
    parts = []
    for number, part in enumerate(model.statistics_):
        steps, prefix = [], f"part_{number}_"
        samples, rows = ("sample", None) if part.rows is None else (f"sample_{number}", part.rows.tolist())
        for position, step in enumerate(part.steps):
            steps.append({"kind": step.name})
            for name, value in step.arrays(rows=False).items():
                dims = (samples,) if name in step.shared else ("model_kernel", samples)[: value.ndim]
                arrays[f"{prefix}step_{position}_{name}"] = (dims, value)
        parts.append({"prefix": prefix, "steps": steps, "columns": part.columns.tolist(), "rows": rows})
    if hasattr(model, "priors_"):
        arrays["priors_"] = (("decision_problem", "label"), model.priors_)
    if hasattr(model, "decider_"):
        arrays |= model.decider_.arrays()
    parameters = {name: encode(value) for name, value in model.get_params(deep=False).items()}
    attrs = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "created_by": f"dmkl {__version__}",
        "model": type(model).__name__,
        "parameters": parameters,
        "kind": model.kind_,
        "classes": model.classes_.tolist(),
        "kernel_names": list(model.kernel_names_),
        "tasks": None if model.tasks_ is None else model.tasks_.tolist(),
        "parts": parts,
        "state": model._state(),
    }
    features = model.features_
    if isinstance(features, str):
        attrs["features"] = {"none": features}
    else:
        features = features.select(model._kernels_needed())
        attrs["features"] = features.as_json()
    dataset = xr.Dataset(arrays, attrs=attrs).assign_coords(train_sample=("sample", model.train_samples_))
    write_dataset(dataset, path, "w-", None)
    write_dataset(model.history_, path, "a", "history")
    if not isinstance(features, str):
        # What xarray consolidated does not show the tables as they are written.
        features.save(zarr.open_group(path, mode="r+", zarr_format=3, use_consolidated=False))


def write_dataset(dataset: xr.Dataset, path: Path, mode: Any, group: str | None) -> None:
    """Write labeled arrays as a Zarr group; the metadata of the root are consolidated."""
    # Names as variable-length strings: Zarr warns of fixed-length ones that their v3 encoding is not settled.
    plain = dataset.assign(
        {
            name: (variable.dims, variable.values.astype(object), variable.attrs)
            for name, variable in dataset.variables.items()
            if variable.dtype.kind == "U"
        }
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Consolidated metadata is currently not part")
        # A chunk that holds the fill value alone is written too, so that one that is missing is damage.
        plain.to_zarr(path, mode=mode, group=group, zarr_format=3, consolidated=group is None, write_empty_chunks=True)


def encode(value: Any) -> Any:
    """A value as JSON; infinity and NaN as words, since JSON has none; a splitter object by its text."""
    if isinstance(value, float | np.floating) and not np.isfinite(value):
        return {"float": str(float(value))}
    if isinstance(value, list | tuple | np.ndarray):
        return [encode(item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {"mapping": [[encode(key), encode(item)] for key, item in value.items()]}
    return value if isinstance(value, str | int | float | bool | type(None)) else {"text": repr(value)}


def decode(value: Any) -> Any:
    """The value that `encode` wrote; lists as tuples."""
    if isinstance(value, dict):
        if "mapping" in value:
            return {decode(key): decode(item) for key, item in value["mapping"]}
        return float(value["float"]) if "float" in value else value["text"]
    return tuple(decode(item) for item in value) if isinstance(value, list) else value


def load(path: Any) -> Any:
    """Read back a model or the result of a search that `save` wrote.

    Raises
    ------
    StoreNotFoundError
        If there is nothing at `path`.
    StoreError
        If it is not a model of dmkl, or damaged.
    FormatVersionError
        If a newer dmkl wrote it.
    """
    final = Path(path).expanduser().absolute()
    try:
        attrs: dict[str, Any] = dict(zarr.open_group(final, mode="r", zarr_format=3).attrs)
    except FileNotFoundError as error:
        msg = f"there is no model at {final}"
        raise StoreNotFoundError(msg) from error
    except (OSError, ValueError) as error:
        msg = f"{final} is not a model: {error}"
        raise StoreError(msg) from error
    _import_reader(attrs)
    reader = READERS.get(str(attrs.get("format")))
    if reader is None:
        hint = "; it is a kernel set, open it with dmkl.open" if attrs.get("format") == "dmkl-kernel-set" else ""
        msg = f"{final} is not a model: its attribute 'format' is {attrs.get('format')!r}, expected {FORMAT!r}{hint}"
        raise StoreError(msg)
    return reader(final, attrs)


def _import_reader(attrs: Mapping[str, Any]) -> None:
    """Import what reads this: models and readers of formats enter themselves where they are made."""
    import dmkl

    if attrs.get("format") == FORMAT and attrs.get("model") in dir(dmkl):
        getattr(dmkl, attrs["model"])
    else:
        models()


def check_version(path: Path, attrs: dict[str, Any], newest: int, what: str) -> None:
    """Refuse what a newer dmkl wrote.

    Raises
    ------
    FormatVersionError
        If the attribute "format_version" is above `newest`.
    """
    if attrs.get("format_version", 0) > newest:
        msg = (
            f"{path} has {what} format version {attrs['format_version']}, and this dmkl reads up to "
            f"{newest}; install a newer dmkl"
        )
        raise FormatVersionError(msg)


def _read_model(path: Path, attrs: dict[str, Any]) -> Any:
    check_version(path, attrs, FORMAT_VERSION, "model")
    if attrs.get("model") not in MODELS:
        msg = (
            f"{path} holds a model of the kind {attrs.get('model')!r}, which this dmkl does not know; expected one "
            f"of {', '.join(sorted(MODELS))}"
        )
        raise StoreError(msg)
    try:
        return _read(path, attrs)
    except (OSError, KeyError, ValueError, TypeError, RuntimeError) as error:
        msg = f"the model at {path} is damaged ({error!r}); save it again"
        raise StoreError(msg) from error


READERS[FORMAT] = _read_model


def _read(path: Path, attrs: dict[str, Any]) -> Any:
    dataset = xr.open_zarr(path, chunks=None, consolidated=False).load()
    history = xr.open_zarr(path, group="history", chunks=None, consolidated=False).load()
    parameters = {name: decode(value) for name, value in attrs["parameters"].items()}
    if attrs["format_version"] == 1:
        chain = ("center" if parameters.pop("center") else None, parameters.pop("normalize"))
        parameters["steps"] = tuple(step for step in chain if step is not None)
        every = list(range(dataset["dual_coef_"].shape[1]))
        attrs = attrs | {"parts": [{"prefix": "", "steps": attrs["steps"], "columns": every, "rows": None}]}
    model = MODELS[attrs["model"]](**parameters)
    model.kind_ = attrs["kind"]
    model.classes_ = np.array(attrs["classes"])
    model.kernel_names_ = tuple(attrs["kernel_names"])
    model.tasks_ = None if attrs["tasks"] is None else np.array(attrs["tasks"])
    model.train_samples_ = dataset["train_sample"].values.astype(object).astype(str)
    model.n_features_in_ = len(model.train_samples_)
    model.statistics_ = tuple(_statistics(dataset, part) for part in attrs["parts"])
    for attribute, name in _ARRAYS.items():
        if attribute in dataset or attribute in ("weights_", "dual_coef_"):
            _whole(dataset, attribute)
            setattr(model, attribute, _named(dataset[attribute]).rename(name))
    model.history_ = history
    features = attrs.get("features", {"none": "this model was saved by a dmkl that kept no features with models"})
    model.features_ = features.get("none") or TrainingFeatures.load(path, features, model.train_samples_)
    model._set_state(dict(attrs["state"]))
    if "priors_" in dataset:
        model.priors_ = _whole(dataset, "priors_")
    if "decision_means" in dataset:
        names = [str(name) for name in dataset if str(name).startswith("decision_")]
        decisions = {name: _whole(dataset, name) for name in names}
        model.decider_ = Decider.of_arrays(model.kind_, decisions, model.priors_, model.calibrated_on_ or "")
    return model


def _statistics(dataset: xr.Dataset, part: dict[str, Any]) -> Statistics:
    """The statistics of some problems, from the names of their arrays."""
    steps = []
    for position, step in enumerate(part["steps"]):
        prefix = f"{part['prefix']}step_{position}_"
        names = [name for name in dataset if str(name).startswith(prefix)]
        steps.append(load_step(step, {str(name).removeprefix(prefix): _whole(dataset, str(name)) for name in names}))
    rows = None if part["rows"] is None else np.array(part["rows"], dtype=np.int64)
    return Statistics(tuple(steps), np.array(part["columns"], dtype=np.int64), rows)


def _whole(dataset: xr.Dataset, name: str) -> Any:
    """The values of an array; a chunk that is missing reads as NaN."""
    values = dataset[name].values
    if not np.isfinite(values).all():
        msg = f"{name} has missing values"
        raise ValueError(msg)
    return values


def _named(array: xr.DataArray) -> xr.DataArray:
    """With names as NumPy strings again, and without the coordinates of other arrays."""
    array = array.drop_vars([name for name in array.coords if name not in array.dims])
    return array.assign_coords(
        {
            name: coord.values.astype(object).astype(str)
            for name, coord in array.coords.items()
            if coord.dtype.kind in "OT"
        }
    )
