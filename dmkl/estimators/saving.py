"""Models on disk: a Zarr group of labeled arrays and JSON attributes, never pickle."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import xarray as xr
import zarr

from dmkl._version import version
from dmkl.building import TrainingFeatures
from dmkl.errors import DmklError, FormatVersionError, InputError, StoreError, refuse
from dmkl.estimators.decisions import DecisionRule
from dmkl.estimators.plan import Statistics
from dmkl.numerics.covariates import Covariates
from dmkl.numerics.fisher import Kind
from dmkl.numerics.steps import load_step
from dmkl.solvers.fisher.problem import CONFIGURABLE, ConfiguredSolver
from dmkl.store.saved import READERS, Saved, check_version, unreadable, write_dataset
from dmkl.store.zarr_groups import consolidate
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
_ARRAYS = {
    "weights_": "weight",
    "dual_coef_": "dual_coef",
    "intercept_": "intercept",
    "covariate_effects_": "covariate_effect",
    "scores_": "accuracy",
    "labels_": "cluster_label",
    "embedding_": "embedding",
    "centers_": "center",
}
"""Attributes that are stored as arrays, and the names of these arrays in memory."""
_WRITTEN = {
    *("classes_", "kind_", "tasks_", "kernel_names_", "train_samples_", "n_features_in_", "features_"),
    *("statistics_", "history_", "priors_", "decider_", "n_prediction_passes_"),
}
"""Other attributes of all models that `write_model` writes, or that belong to the last prediction."""


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


def write_model(model: Any, path: Path) -> None:
    """Write a fitted model as a Zarr group at a path that does not exist."""
    arrays: dict[str, Any] = {name: getattr(model, name) for name in _ARRAYS if hasattr(model, name)}
    further = _further_arrays(model)
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
    for name in model._TABLES:
        write_dataset(getattr(model, name), path, "a", name.rstrip("_"))
    for name, array in further.items():
        node = name.rstrip("_")
        write_dataset(array.to_dataset(name=node if array.name is None else array.name), path, "a", node)
    if not isinstance(features, str):
        features.save(zarr.open_group(path, mode="r+", zarr_format=3, use_consolidated=False))
    consolidate(path)


def _further_arrays(model: Any) -> dict[str, xr.DataArray]:
    """Arrays that the fit of a class of models has set, by attribute; InputError for an attribute of another kind."""
    written = {*_ARRAYS, *_WRITTEN, *model._STATE, *model._TABLES, *model._DERIVED}
    further = {name: value for name, value in vars(model).items() if name.endswith("_") and name not in written}
    for name, value in further.items():
        if not isinstance(value, xr.DataArray):
            refuse(
                f"save writes fitted attributes that are labeled arrays, and {name} of this {type(model).__name__} is "
                f"of type {type(value).__name__}: make it an xarray.DataArray, or name it in _STATE of the class if "
                "it is a plain JSON value, in _TABLES if it is a Dataset, or in _DERIVED if _set_state computes it"
            )
    return further


def encode(value: Any) -> Any:
    """A value as JSON: infinity and NaN as text, since JSON lacks them, and a splitter object by its `repr`."""
    if isinstance(value, ConfiguredSolver):
        return {"solver": {"name": value.name} | {name: encode(option) for name, option in vars(value).items()}}
    if isinstance(value, float | np.floating) and not np.isfinite(value):
        return {"float": str(float(value))}
    if isinstance(value, list | tuple | np.ndarray):
        return [encode(item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, xr.DataArray):  # weights over kernel, read back as a mapping
        value = dict(zip(value["kernel"].values.tolist(), value.values.tolist(), strict=True))
    if isinstance(value, Mapping):
        return {"mapping": [[encode(key), encode(item)] for key, item in value.items()]}
    if isinstance(value, Covariates):
        return {"covariates": [list(value.samples), list(value.columns), value.design.tolist()]}
    return value if isinstance(value, str | int | float | bool | type(None)) else {"text": repr(value)}


def decode(value: Any) -> Any:
    """The value that `encode` has written; lists become tuples."""
    if isinstance(value, dict):
        if "mapping" in value:
            return {decode(key): decode(item) for key, item in value["mapping"]}
        if "covariates" in value:
            samples, columns, design = value["covariates"]
            return Covariates(tuple(samples), tuple(columns), np.array(design).reshape(len(samples), len(columns)))
        if "solver" in value:
            options = {name: decode(option) for name, option in value["solver"].items()}
            return CONFIGURABLE[options.pop("name")](**options)
        return float(value["float"]) if "float" in value else value["text"]
    return tuple(decode(item) for item in value) if isinstance(value, list) else value


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
        msg = (
            f"{saved.place} is not a model: its attribute 'format' is {attrs.get('format')!r}, expected "
            f"{FORMAT!r}{hint}"
        )
        raise StoreError(msg)
    return reader(saved)


def _read_model(saved: Saved) -> Any:
    check_version(saved, FORMAT_VERSION, "model")
    attrs = saved.attrs
    if str(attrs.get("model")) not in MODELS:
        of_this_kind = f"of the kind {attrs.get('model')!r}"
        raise _of_newer_dmkl(saved, of_this_kind, f"expected one of {', '.join(sorted(MODELS))}, or")
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
    _check_parameters(kind, parameters)
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
    _check_shapes(model, attrs["parts"])
    model.history_ = history
    for name in model._TABLES:
        table = saved.part(name.rstrip("_")).dataset().load()
        setattr(model, name, table.assign_coords({str(dim): _named(table[dim])[dim].values for dim in table.coords}))
    for name in attrs.get("arrays", ()):
        if hasattr(kind, name) or not name.endswith("_"):
            refuse(f"it has an array {name!r}, which is no fitted attribute")
        (array,) = saved.part(name.rstrip("_")).dataset().load().data_vars.values()
        setattr(model, name, _named(array))
    features = attrs.get("features", {"none": "this model was saved by a dmkl that kept no features with models"})
    model.features_ = features.get("none") or TrainingFeatures.load(saved, features, model.train_samples_)
    _check_state(model, attrs["state"])
    model._set_state(dict(attrs["state"]))
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


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return _is_number(value) and 0 <= value < float("inf")


def _are_numbers(value: Any) -> bool:
    return all(map(_are_numbers, value)) if isinstance(value, tuple) else _is_number(value)


_FORMS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "created_by": ("a text", lambda value: isinstance(value, str)),
    "parameters": ("an object", lambda value: isinstance(value, dict)),
    "kind": (f"one of {', '.join(get_args(Kind))}", lambda value: value in get_args(Kind)),
    "classes": (
        "a list of different labels",
        lambda value: isinstance(value, list) and len({*value} - {None}) == len(value),
    ),
    "kernel_names": ("a list of different names", lambda value: _is_names(value) and len(value) > 0),
    "tasks": (
        "null or a list of different names",
        lambda value: value is None or (_is_names(value) and len(value) > 0),
    ),
    "state": ("an object", lambda value: isinstance(value, dict)),
}
"""The attributes of every model: what they are in words, and whether a value is that."""
_LATER_FORMS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "parts": (
        "a list of parts",
        lambda value: isinstance(value, list) and len(value) > 0 and all(map(_is_part, value)),
    ),
    "defaults": ("an object", lambda value: isinstance(value, dict)),
    "arrays": ("a list of different names", _is_names),
    "features": ("an object", lambda value: isinstance(value, dict)),
}
"""Those of models that newer versions of the format have."""
_STATE_FORMS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("gap_", "objective_", "weights_error_"), ("numbers", _are_numbers)),
    **dict.fromkeys(("status_", "solver_", "best_"), ("a text", lambda value: isinstance(value, str))),
    **dict.fromkeys(("n_iter_", "n_passes_", "n_trainings_", "n_cut_passes_"), ("a count", _is_count)),
    "calibrated_on_": ("null or a text", lambda value: value is None or isinstance(value, str)),
    "factors_": ("a list of names", lambda value: isinstance(value, tuple) and all(isinstance(v, str) for v in value)),
    "converged_": ("true or false", lambda value: isinstance(value, bool)),
}
_ALWAYS = ("gap_", "objective_", "status_", "n_iter_")
"""Fitted attributes in the state of every model."""


def _check_attributes(attrs: Mapping[str, Any]) -> None:
    """Refuse attributes of a model that are not what they should be, by InputError or what a damaged value raises."""
    for name, (form, is_so) in (_FORMS | {key: of for key, of in _LATER_FORMS.items() if key in attrs}).items():
        if not is_so(attrs[name]):
            refuse(f"its attribute {name} must be {form}, got {attrs[name]!r:.60}")


def _check_parameters(kind: type[Any], parameters: Mapping[str, Any]) -> None:
    """Refuse parameters that no fit would take; constraints, which are written as text, are not read back."""
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
    n_samples, n_columns = model.dual_coef_.shape
    columns = sorted(column for part in parts for column in part["columns"])
    rows = [row for part in parts for row in part["rows"] or ()]
    if n_samples != len(model.train_samples_) or columns != [*range(n_columns)] or max(rows, default=0) >= n_samples:
        refuse(f"its parts have other rows or columns than its {n_samples} × {n_columns} dual variables")


def _check_state(model: Any, state: Mapping[str, Any]) -> None:
    """Refuse fitted attributes that are missing or of another type."""
    for name in {*_ALWAYS, *(state.keys() & _STATE_FORMS.keys())}:
        form, is_so = _STATE_FORMS[name]
        if not is_so(value := decode(state[name])):
            refuse(f"{name} in its state must be {form}, got {value!r:.60}")


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
