"""Models and results with changed attributes: each change is refused as damage, unless the value makes sense."""

import copy
import json
import math
from contextlib import nullcontext, suppress

import numpy as np
import pytest
from helpers.conformance import unseal

import dmkl
from dmkl.errors import InputError, StoreError
from dmkl.learners.learner import KernelRegressor
from dmkl.learners.saving import models as all_models

DELETE = object()


def unsealed(result, path):
    """Save a model or a result; return its attributes, and a function that loads it with others."""
    result.save(path)
    unseal(path)
    file = path / "zarr.json"
    root = json.loads(file.read_text())

    def load(attributes):
        file.write_text(json.dumps(root | {"attributes": attributes}))
        return dmkl.load(path)

    return root["attributes"], load


def places(value, at=()):
    """The places of all values in nested objects and lists, of which the first item stands for all."""
    if at:
        yield at
    items = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*at, key))


def changed(attributes, place, change):
    """The attributes with another value at a place, or without it."""
    attributes = inner = copy.deepcopy(attributes)
    for key in place[:-1]:
        inner = inner[key]
    if change is DELETE:
        del inner[place[-1]]
    else:
        inner[place[-1]] = change
    return attributes


def changes(value):
    """Values of other types and lengths, NaN, and the absence of a value."""
    others = [None, 3, math.nan, "x", [], ["a", "b", "c"], {"a": 1}]
    lengths = [[*value, *value[:1]], value[:-1]] if isinstance(value, list) else []
    return [*(other for other in [*others, *lengths] if other != value), DELETE]


NUMBERS = (3, math.nan)
MAKE_SENSE = {
    "format_version": (3,),
    "created_by": ("x",),
    "defaults": (DELETE, {"a": 1}),  # of models before there were any; of a newer dmkl
    "tasks": (),
    "arrays": (DELETE,),
    "features": (DELETE,),
    "state.gap_": NUMBERS,
    "state.objective_": NUMBERS,
    "state.weights_error_": (*NUMBERS, DELETE),
    "state.status_": ("x",),
    "state.n_iter_": (3,),
    "state.n_passes_": (3, DELETE),
    "state.solver_": ("x", DELETE),
    "state.calibrated_on_": (None, "x"),
    "parameters.lam": (3, DELETE),
    **{f"defaults.{name}": (3, DELETE) for name in ("max_iter", "p", "sigma", "tol")},
    **{
        f"defaults.{name}": (DELETE,)
        for name in ("class_weight", "constraints", "decision", "sharing", "solver", "steps")
    },
    **{f"defaults.{name}": ([], DELETE) for name in ("priors", "weights")},
    "defaults.kernel_groups": ([], ["a", "b", "c"], DELETE),
    "features.recipes.0.parameters.gamma": (3,),
    "features.tile": (3,),
    "features.recipes": ([],),  # of kernels that were not computed from features
    "features.recipes.0": (DELETE,),
    "classes.0": (*NUMBERS, "x"),
    "parts.0.rows": ([],),
}


FEW = {
    *((name,) for name in ("format_version", "kind", "classes", "kernel_names", "parts", "state", "parameters")),
    ("defaults", "class_weight"),  # a parameter without a rule
    ("defaults", "steps"),
    ("features", "recipes", 0, "parameters", "gamma"),
    ("features", "recipes", 0, "name"),
}


@pytest.mark.parametrize(
    ("wanted", "least"),
    [(FEW.__contains__, 60), pytest.param(lambda place: True, 300, marks=pytest.mark.slow)],
    ids=["few", "all"],
)
def test_each_changed_attribute_is_damage(tmp_path, wanted, least):
    X = np.random.default_rng(0).normal(size=(12, 3))
    K = dmkl.build(tmp_path / "set.zarr", {"x": X}, [{"function": "rbf", "gamma": 1.0}, {"function": "linear"}])
    attributes, load = unsealed(dmkl.MKFDA(lam=0.1).fit(K, np.arange(12) % 2), tmp_path / "model")
    load(attributes)
    n_refused, loaded = 0, []
    for place in filter(wanted, places(attributes)):
        value = attributes
        for key in place:
            value = value[key]
        for change in changes(value):
            name = ".".join(map(str, place))
            makes_sense = any(change is other or change == other for other in MAKE_SENSE.get(name, ()))
            if makes_sense or (name == "features.recipes" and change == value[:-1]):
                load(changed(attributes, place, change))
                continue
            try:
                load(changed(attributes, place, change))
            except StoreError:
                n_refused += 1
            else:
                loaded.append(f"{name} = {change!r}")
    assert loaded == []
    assert n_refused > least


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(all_models()))
def test_each_parameter_of_each_learner_is_of_its_type_or_damage(tmp_path, name):
    X = np.random.default_rng(0).random(size=(16, 3))
    K = dmkl.build(None, {"x": X}, {"function": "rbf", "gamma": [1.0, 3.0]})
    kind = all_models()[name]
    model = kind().fit(K, X[:, 0] if issubclass(kind, KernelRegressor) else np.arange(16) % 2)
    attributes, load = unsealed(model, tmp_path / "model")
    for part in ("parameters", "defaults"):
        for key, value in attributes[part].items():
            for change in changes(value):
                try:
                    model = load(changed(attributes, (part, key), change))
                except StoreError:
                    continue
                repr(model)
                with nullcontext() if key != "offset" else suppress(InputError):  # of other samples
                    model.predict(K)


RESULTS = {
    "search": lambda K: dmkl.search(dmkl.Uniform(), K, grid={"lam": [0.1, 1.0]}, cv=2, baselines="none"),
    "analysis": dmkl.analyze,
}


@pytest.mark.parametrize("kind", [pytest.param("search", marks=pytest.mark.slow), "analysis"])
def test_results_are_refused_or_can_be_summarized(tmp_path, kind):
    X = np.random.default_rng(0).normal(size=(2, 12, 3))
    result = RESULTS[kind](dmkl.create(None, X @ X.swapaxes(1, 2), labels=np.arange(12) % 2))
    attributes, load = unsealed(result, tmp_path / "result")
    n_refused = 0
    for name in attributes:
        for change in (None, math.nan, "x", ["a"], {"a": 1}, DELETE):
            try:
                result = load(changed(attributes, (name,), change))
            except StoreError:
                n_refused += 1
            else:
                result.summary()
                assert change is DELETE or isinstance(change, str), name
                assert change is not DELETE or name not in result.NEEDED_ATTRIBUTES
    assert n_refused > 4 * len(attributes) - 8
