"""Models on disk: a Zarr group of labeled arrays and JSON attributes, never pickle."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any, get_args

import numpy as np
import xarray as xr
import zarr

from dmkl._version import version
from dmkl.building import TrainingFeatures
from dmkl.errors import DmklError, FormatVersionError, InputError, StoreError, refuse
from dmkl.learners.checks import decode, encode, is_of_type, parameter_types
from dmkl.learners.decisions import DecisionRule
from dmkl.learners.plan import Statistics
from dmkl.learners.traits import TEXT, FittedAttribute, Form, Kept
from dmkl.names import places
from dmkl.numerics.fisher import Kind
from dmkl.numerics.steps import load_step
from dmkl.store.saved import READERS, Saved, unreadable, write_dataset
from dmkl.store.zarr_groups import check_version, consolidate, pack
from dmkl.variables import describe

FORMAT, FORMAT_VERSION = "dmkl-model", 3
"""Version 1 had parameters ``center`` and ``normalize`` in place of ``steps``, and statistics of one part."""
MODELS: dict[str, type[Any]] = {}
"""Classes of models by name; each class registers itself."""
_OPENED_BY = {
    "dmkl-kernel-set": "; it is a kernel set, open it with dmkl.open",
    "dmkl-combined-kernel": "; it is a weighted kernel, open it with xarray.open_zarr",
    "dmkl-table": "; it is a table, open it with xarray.open_zarr",
}
"""Advice for other formats that dmkl writes."""


def models() -> dict[str, type[Any]]:
    """Classes of models by name, after importing all public names of `dmkl`."""
    import dmkl

    for name in dir(dmkl):
        getattr(dmkl, name)
    return MODELS


def model_class(name: str) -> Any:
    """The class of models of this name, after importing its module alone; None if there is none."""
    import dmkl

    if name in dir(dmkl):
        getattr(dmkl, name)
    return MODELS.get(name)


def write_compact(model: Any, path: Path) -> None:
    """Write what prediction reads of a fitted model as one file at a path that does not exist.

    Kernels without weight and the history are left out; an attribute of the empty history says so.
    """
    used = places(model.kernel_names_, model._kernels_used())
    if model._score_function(used).sums is not None:  # its columns are those of all kernels
        used = np.arange(len(model.kernel_names_))
    of_kernels = {
        name: value.isel(kernel=used)
        for name, value in vars(model).items()
        if isinstance(value, xr.DataArray | xr.Dataset) and "kernel" in value.dims
    }
    compact = copy(model)
    vars(compact).update(of_kernels)
    compact.history_ = xr.Dataset(attrs=model.history_.attrs | {"compact": 1})
    compact.kernel_names_ = tuple(model.kernel_names_[k] for k in used)
    compact.statistics_ = tuple(
        part._replace(steps=tuple(step.select(used) for step in part.steps)) for part in model.statistics_
    )
    with tempfile.TemporaryDirectory(prefix="dmkl-") as folder:
        write_model(compact, Path(folder) / "model")
        pack(Path(folder) / "model", path)


def write_model(model: Any, path: Path) -> None:
    """Write a fitted model as a Zarr group at a path that does not exist."""
    _check_kept(model)
    arrays, further = fitted_attributes(model, "root"), fitted_attributes(model, "array")
    parts = []
    for number, part in enumerate(model.statistics_):
        steps, prefix = [], f"part_{number}_"
        samples, rows = ("sample", None) if part.rows is None else (f"sample_{number}", part.rows.tolist())
        for position, step in enumerate(part.steps):
            steps.append({"kind": step.name})
            for name, value in step.arrays(rows=False).items():
                dims: tuple[str, ...] = (samples,) if name in step.shared else ("model_kernel", samples)
                if step.name == "residualize":  # blocks of columns, and a table of samples of its own
                    dims = tuple(f"{prefix}step_{position}_{name}_{axis}" for axis in range(value.ndim))
                dims = dims[: value.ndim]
                arrays[f"{prefix}step_{position}_{name}"] = (dims, value)
        parts.append({"prefix": prefix, "steps": steps, "columns": part.columns.tolist(), "rows": rows})
    if hasattr(model, "priors_"):
        arrays["priors_"] = (("decision_problem", "label"), model.priors_)
    if hasattr(model, "decider_"):
        arrays |= model.decider_.arrays()
    # A dmkl that does not know a parameter reads models that have it at its default.
    parameters: dict[str, Any] = {}
    defaults: dict[str, Any] = {}
    accepted = inspect.signature(type(model)).parameters
    for name, value in model.get_params(deep=False).items():
        written = encode(value)
        (defaults if written == encode(accepted[name].default) else parameters)[name] = written
    attrs = {
        "format": FORMAT,
        "format_version": 2,
        "created_by": f"dmkl {version()}",
        "model": type(model).__name__,
        "parameters": parameters,
        "defaults": defaults,
        "kind": model.kind_,
        "classes": model.classes_.tolist(),
        "kernel_names": list(model.kernel_names_),
        "tasks": None if model.tasks_ is None else model.tasks_.tolist(),
        "parts": parts,
        "state": model._state(),
        "arrays": list(further),
    }
    features = model.features_
    if isinstance(features, str):
        attrs["features"] = {"none": features}
    else:
        features = features.select(model._kernels_needed())
        attrs["features"] = features.as_json()
        if any(table.dtype == np.float16 for table in features.tables.values()):
            attrs["format_version"] = 3
    dataset = xr.Dataset(arrays, attrs=attrs).assign_coords(train_sample=("sample", model.train_samples_))
    write_dataset(dataset, path, "w-", None)
    write_dataset(model.history_, path, "a", "history")
    for name, table in fitted_attributes(model, "table").items():
        write_dataset(table, path, "a", name.rstrip("_"))
    for name, array in further.items():
        node = name.rstrip("_")
        write_dataset(array.to_dataset(name=node if array.name is None else array.name), path, "a", node)
    if not isinstance(features, str):
        features.save(zarr.open_group(path, mode="r+", zarr_format=3, use_consolidated=False))
    consolidate(path)


_UNDECLARED = FittedAttribute(Form("a DataArray", lambda value: isinstance(value, xr.DataArray)), "array")
"""The declaration of fitted attributes that the class of a model does not declare."""


def fitted_attributes(model: Any, kept: Kept) -> dict[str, Any]:
    """The fitted attributes of a model that are kept in one place, by name, the declared ones in their order."""
    declared = model.traits.fitted
    values = vars(model)
    names = [*declared, *(name for name in values if name.endswith("_") and name not in declared)]
    return {name: values[name] for name in names if name in values and declared.get(name, _UNDECLARED).kept == kept}


def _check_kept(model: Any) -> None:
    """Refuse a fitted attribute that is not as it was declared, and would be lost, by InputError."""
    for kept in ("root", "array", "table", "state"):
        for name, value in fitted_attributes(model, kept).items():
            declared, is_array = model.traits.fitted.get(name, _UNDECLARED), isinstance(value, xr.DataArray)
            if kept == "state":
                value = decode(encode(value.values if is_array else value))
            if not declared.form.accepts(value):
                found = f"{value.dtype} over {value.dims}" if is_array and kept != "state" else f"{value!r:.60}"
                refuse(
                    f"{name} of this {type(model).__name__} must be {declared.form.words}, got {found}; declare in "
                    "traits.fitted of the class what it is"
                )


def decode_parameters(kind: type[Any], written: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a learner from those that `encode` has written, also in an earlier version."""
    parameters: dict[str, Any] = kind._upgrade_parameters({name: decode(value) for name, value in written.items()})
    return parameters


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
    return read(Saved.open(path))


def read(saved: Saved) -> Any:
    """Read a saved model or result, or a part of it; raises as `load`."""
    attrs = saved.attrs
    # The module of a class registers the reader.
    if attrs.get("format") != FORMAT or model_class(str(attrs.get("model"))) is None:
        models()
    reader = READERS.get(str(attrs.get("format")))
    if reader is None:
        hint = _OPENED_BY.get(str(attrs.get("format")), "")
        form = attrs.get("format")
        msg = f"{saved.place} is not a model: its attribute 'format' is {form!r}, expected {FORMAT!r}{hint}"
        raise StoreError(msg)
    return reader(saved)


def _read_model(saved: Saved) -> Any:
    check_version(saved.attrs, saved.place, FORMAT_VERSION, "model")
    attrs = saved.attrs
    if str(attrs.get("model")) not in MODELS:
        of_this_kind = f"of the kind {attrs.get('model')!r}"
        known = f"expected one of {', '.join(sorted(MODELS))}"
        way_out = "import the module of a learner of your own first (--learners FILE.py of a command), or"
        raise _of_newer_dmkl(saved, of_this_kind, f"{known}; {way_out}")
    try:
        return _read(saved, attrs)
    except InputError as error:
        raise unreadable(saved, "model", error) from error
    except DmklError:
        raise
    except Exception as error:  # of as many kinds as there are ways to damage a file
        raise unreadable(saved, "model", error) from error


READERS[FORMAT] = _read_model


def _of_newer_dmkl(saved: Saved, what: str, expected: str = "") -> FormatVersionError:
    msg = (
        f"{saved.place} holds a model {what}, which this dmkl {version()} does not know: it was created by "
        f"{saved.attrs.get('created_by')!r:.60}; {expected} install a newer dmkl"
    )
    return FormatVersionError(" ".join(msg.split()))


def _read(saved: Saved, attrs: dict[str, Any]) -> Any:
    _check_attributes(attrs)
    dataset, history = saved.dataset(), saved.part("history").dataset()
    kind = MODELS[attrs["model"]]
    parameters = decode_parameters(kind, {**attrs.get("defaults", {}), **attrs["parameters"]})
    if attrs["format_version"] == 1:
        chain = ("center" if parameters.pop("center") else None, parameters.pop("normalize"))
        parameters["steps"] = tuple(step for step in chain if step is not None)
        every = list(range(dataset["dual_coef_"].shape[1]))
        attrs = attrs | {"parts": [{"prefix": "", "steps": attrs["steps"], "columns": every, "rows": None}]}
    if unknown := parameters.keys() - inspect.signature(kind).parameters.keys():
        if needed := sorted(unknown & attrs["parameters"].keys()):
            raise _of_newer_dmkl(saved, f"with the {'parameters' if needed[1:] else 'parameter'} {', '.join(needed)}")
        parameters = {name: value for name, value in parameters.items() if name not in unknown}
    model = kind(**parameters)
    _check_parameters(kind, parameters, attrs)
    model.kind_ = attrs["kind"]
    model.classes_ = np.array(attrs["classes"])
    model.kernel_names_ = tuple(attrs["kernel_names"])
    model.tasks_ = None if attrs["tasks"] is None else np.array(attrs["tasks"])
    model.train_samples_ = dataset["train_sample"].values.astype(object).astype(str)
    model.n_features_in_ = len(model.train_samples_)
    model.statistics_ = tuple(_statistics(dataset, part) for part in attrs["parts"])
    for attribute, declared in kind.traits.fitted.items():
        if declared.kept == "root" and (attribute in dataset or declared.needed):
            _whole(dataset, attribute)
            setattr(model, attribute, _named(dataset[attribute]).rename(declared.name))
        elif declared.kept == "table" and (declared.needed or attribute.rstrip("_") in saved.group):
            table = saved.part(attribute.rstrip("_")).dataset().load()
            coords = {str(dim): _named(table[dim])[dim].values for dim in table.coords}
            setattr(model, attribute, table.assign_coords(coords))
        elif declared.kept == "state" and declared.needed and attribute not in attrs["state"]:
            refuse(f"its state lacks {attribute}")
    _check_shapes(model, attrs["parts"])
    model.history_ = history
    for name in attrs.get("arrays", ()):
        if hasattr(kind, name) or not name.endswith("_"):
            refuse(f"it has an array {name!r}, which is no fitted attribute")
        (array,) = saved.part(name.rstrip("_")).dataset().load().data_vars.values()
        setattr(model, name, _named(array))
    features = attrs.get("features", {"none": "this model was saved by a dmkl that kept no features with models"})
    model.features_ = features.get("none") or TrainingFeatures.load(saved, features, model.train_samples_)
    model._set_state(dict(attrs["state"]))
    kernels = {*model.kernel_names_, *model._kernels_needed()}  # those of a product are its factors
    if not features.get("none") and (unknown := model.features_.recipes.keys() - kernels):
        refuse(f"it has recipes of kernels that it does not have, {unknown!r:.60}")
    _check_kept(model)
    if "priors_" in dataset:
        model.priors_ = _whole(dataset, "priors_")
    if "decision_means" in dataset:
        names = [str(name) for name in dataset if str(name).startswith("decision_")]
        decisions = {name: _whole(dataset, name) for name in names}
        model.decider_ = DecisionRule.of_arrays(model.kind_, decisions, model.priors_, model.calibrated_on_ or "")
    for value in vars(model).values():
        if isinstance(value, xr.DataArray | xr.Dataset):
            describe(value)
    return model


# --- checks of what a file says of a model -------------------------------------------------------------------------


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value) and len({*value}) == len(value)


def _is_positions(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _is_part(value: Any) -> bool:
    return (
        isinstance(value["prefix"], str)
        and all(isinstance(step["kind"], str) for step in value["steps"])
        and _is_positions(value["columns"])
        and (value["rows"] is None or _is_positions(value["rows"]))
    )


_OBJECT = Form("an object", lambda value: isinstance(value, dict))
_NAMES = Form("a list of different names", lambda value: _is_names(value) and len(value) > 0)
_FORMS = {
    **{"created_by": TEXT, "parameters": _OBJECT, "state": _OBJECT, "kernel_names": _NAMES},
    "kind": Form(f"one of {', '.join(get_args(Kind))}", lambda value: value in get_args(Kind)),
    "classes": Form(
        "a list of different labels", lambda value: isinstance(value, list) and len({*value} - {None}) == len(value)
    ),
    "tasks": Form(f"null or {_NAMES.words}", lambda value: value is None or _NAMES.accepts(value)),
}
"""The attributes of every model."""
_LATER_FORMS = {
    "parts": Form(
        "a list of parts", lambda value: isinstance(value, list) and value != [] and all(map(_is_part, value))
    ),
    **{"defaults": _OBJECT, "features": _OBJECT, "arrays": Form(_NAMES.words, _is_names)},
}
"""Those of models that newer versions of the format have."""


def _check_attributes(attrs: Mapping[str, Any]) -> None:
    """Refuse attributes of a model that are not what they should be, by InputError or what a damaged value raises."""
    for name, form in (_FORMS | {key: of for key, of in _LATER_FORMS.items() if key in attrs}).items():
        if not form.accepts(attrs[name]):
            refuse(f"its attribute {name} must be {form.words}, got {attrs[name]!r:.60}")


_OPEN = ("steps", "solver")
"""Parameters whose values include names that users have registered; steps and solvers are checked by their names."""


def _check_parameters(kind: Any, parameters: Mapping[str, Any], attrs: Mapping[str, Any]) -> None:
    """Refuse parameters that no fit would take; objects that were written as text, are not read back."""
    written, types = {**attrs.get("defaults", {}), **attrs["parameters"]}, parameter_types(kind)
    for name, value in parameters.items():
        is_text = isinstance(written.get(name), dict) and "text" in written[name]
        if name in types and name not in _OPEN and not is_text and not is_of_type(value, types[name]):
            refuse(f"its parameter {name} must be of the type {types[name]}, got {value!r:.60}")
    kind(**{name: value for name, value in parameters.items() if name != "constraints"})._check_parameters()


def _check_shapes(model: Any, parts: Sequence[Mapping[str, Any]]) -> None:
    """Refuse names, classes and parts that do not go with the weights and the dual variables."""
    sizes, n_classes = model.dual_coef_.sizes, len(model.classes_)
    kernels = model.weights_["kernel"].values.tolist()
    if kernels != list(model.kernel_names_):
        refuse(f"its kernel_names are {model.kernel_names_!r:.60}, and its weights are of {kernels!r:.60}")
    fewest = {"binary": 2, "multilabel": 2, "multiclass": 3, "clusters": 1, "regression": 0}[model.kind_]
    most = n_classes if model.kind_ in ("multiclass", "clusters") else fewest
    several = sizes.get("class", n_classes) if model.kind_ == "multiclass" else n_classes
    if not (fewest <= n_classes <= most and several in (n_classes, n_classes - 1)):
        refuse(f"it has {n_classes} classes, which does not go with its kind, {model.kind_}, and its dual variables")
    n_tasks = 0 if model.tasks_ is None else len(model.tasks_)
    kinds = ("multilabel", "regression") if n_tasks else ("binary", "multiclass", "regression", "clusters")
    if model.kind_ not in kinds or sizes.get("task", sizes.get("target", n_tasks)) not in (n_tasks, 1):
        refuse(
            f"it has {n_tasks} names of tasks, which does not go with its kind, {model.kind_}, and its dual variables"
        )
    if any(len(part["steps"]) != len(model._steps()) for part in parts):
        refuse(f"its parts have other steps than its parameter, {model.steps!r:.60}")
    n_samples, n_columns = model.dual_coef_.shape
    columns = sorted(column for part in parts for column in part["columns"])
    rows = [row for part in parts for row in part["rows"] or ()]
    if n_samples != len(model.train_samples_) or columns != [*range(n_columns)] or max(rows, default=0) >= n_samples:
        refuse(f"its parts have other rows or columns than its {n_samples} × {n_columns} dual variables")


# --- parts of models -----------------------------------------------------------------------------------------------


def _statistics(dataset: xr.Dataset, part: dict[str, Any]) -> Statistics:
    """The statistics of a part of the problems."""
    steps = []
    for position, step in enumerate(part["steps"]):
        prefix = f"{part['prefix']}step_{position}_"
        names = [name for name in dataset if str(name).startswith(prefix)]
        steps.append(load_step(step, {str(name).removeprefix(prefix): _whole(dataset, str(name)) for name in names}))
    further = f"{part['prefix']}step_{len(steps)}_"
    if any(str(name).startswith(further) for name in dataset):
        refuse(f"it has arrays of a step {further!r}, which is not among its steps")
    rows = None if part["rows"] is None else np.array(part["rows"], dtype=np.int64)
    return Statistics(tuple(steps), np.array(part["columns"], dtype=np.int64), rows)


def _whole(dataset: xr.Dataset, name: str) -> Any:
    """The values of an array, refused if a chunk is missing, which reads as NaN."""
    values = dataset[name].values
    if values.dtype.kind in "OTU":
        return values.astype(object).astype(str)
    if not np.isfinite(values).all():
        msg = f"{name} has missing values"
        raise ValueError(msg)
    return values


def _named(array: xr.DataArray) -> xr.DataArray:
    """The array with names as NumPy strings, and without coordinates of other arrays."""
    array = array.drop_vars([name for name in array.coords if name not in array.dims])
    texts = {name: coord.values for name, coord in array.coords.items() if coord.dtype.kind in "OT"}
    return array.assign_coords({name: values.astype(object).astype(str) for name, values in texts.items()})
