"""What dmkl writes and returns is described: meaning and units of every variable and coordinate."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
import zarr

import dmkl
from dmkl.health.check import check
from dmkl.store.schema import NODES
from dmkl.variables import VARIABLES, describe, variable

Y = np.array(["apple", "pear", "plum"])[np.arange(45) % 3]
GRID = {"p": [1, 2], "lam": [0.1, 1.0]}


@pytest.fixture(scope="module")
def K(tmp_path_factory):
    rng = np.random.default_rng(0)
    features = {"shape": rng.normal(size=(45, 4)) + np.arange(45)[:, None] % 3, "color": rng.normal(size=(45, 3))}
    specs = [{"function": "linear"}, {"function": "rbf", "bandwidth": [1]}]
    return dmkl.build(tmp_path_factory.mktemp("variables") / "set.zarr", features, specs, labels=Y)


def undescribed(dataset):
    """Names of what lacks a meaning, or as a number its units; or is not as the registry has it."""
    found = []
    for name, values in dataset.variables.items():
        known = variable(str(name))
        numbers = values.dtype.kind in "iuf" and "flag_values" not in values.attrs
        told = "long_name" in values.attrs and (not numbers or "units" in values.attrs or (known and not known.units))
        right = known is None or (values.dtype.kind in known.kinds and set(known.dims) <= set(values.dims))
        if not told or not right:
            found.append(f"{name} {values.dims} {values.dtype} {values.attrs}")
    return found


LEARNERS = {
    "fisher": lambda K: dmkl.MKFDA().fit(K),
    "tasks": lambda K: dmkl.MKFDA().fit(K, (Y[:, None] == ["apple", "pear"]).astype(int)),
    "ridge": lambda K: dmkl.MKRidge().fit(K, np.arange(45.0)),
    "machine": lambda K: dmkl.MKSVM().fit(K),
    "generalized": lambda K: dmkl.GMKL().fit(K),
    "groups": lambda K: dmkl.GSMKL(n_groups=2).fit(K),
    "cuts": lambda K: dmkl.NCuts().fit(K),
    "single": lambda K: dmkl.SingleBest().fit(K),
}


@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.filterwarnings("ignore::dmkl.errors.ConvergenceWarning")
def test_models_on_disk_and_in_memory(name, K, tmp_path):
    model = LEARNERS[name](K)
    model.save(tmp_path / "model")
    for group in (None, "history"):
        with xr.open_zarr(tmp_path / "model", group=group) as opened:
            assert undescribed(opened) == []
    arrays = [value for key, value in vars(model).items() if key.endswith("_") and isinstance(value, xr.DataArray)]
    arrays += [
        model.contributions(K),
        *([] if name == "groups" else [model.combined_kernel(K), model.kernel_pca(K)]),
        model.decision_function(K) if hasattr(model, "decision_function") else model.weights_,
    ]
    for array in arrays:
        assert undescribed(array.to_dataset(name=array.name)) == []
    loaded = dmkl.load(tmp_path / "model")
    assert loaded.weights_.attrs == model.weights_.attrs


RESULTS = {
    "search": lambda K: dmkl.search(dmkl.MKFDA(), K, grid=GRID, cv=3, scoring=["accuracy", "balanced_accuracy"]),
    "evaluation": lambda K: dmkl.evaluate(dmkl.MKFDA(), K, grid=GRID, outer=2, inner=2),
}


@pytest.mark.parametrize("name", RESULTS)
def test_results_on_disk_and_in_memory(name, K, tmp_path):
    found = RESULTS[name](K)
    found.save(tmp_path / "found")
    with xr.open_zarr(tmp_path / "found") as opened:
        assert undescribed(opened) == []
    assert undescribed(found.scores) == []
    assert found.scores["score_balanced_accuracy" if name == "search" else "test_score"].attrs["units"] == "1"


def test_analyses_checks_and_measures(K):
    model = dmkl.MKFDA(solver="direct").fit(K)
    exact, estimated = dmkl.analyze(K), dmkl.analyze(K, probes=5)
    for found in (exact.data, estimated.data, check(K), dmkl.assess(model, K)):
        assert undescribed(found) == []
    for array in (K.alignment(), K.to_xarray(), model.predict_proba(K), model.transform(K)):
        assert undescribed(array.to_dataset(name=array.name)) == []


def test_kernel_sets(K):
    arrays = dict(zarr.open_group(K.view.source.location, mode="r").arrays())
    assert {"gram_upper", "kernel", "sample", "label"} <= set(arrays)
    for name, array in arrays.items():
        assert array.attrs["long_name"] == NODES[name].doc


def test_what_has_a_meaning_of_its_own_keeps_it():
    data = xr.Dataset({"gap": ("fold", np.zeros(2), {"long_name": "mine", "units": "%"})})
    assert describe(data)["gap"].attrs == {"long_name": "mine", "units": "%"}
    assert variable("nothing of this name") is None


def test_meanings_are_words_and_units_fit():
    for name, known in VARIABLES.items():
        assert known.meaning.strip() == known.meaning != "", name
        assert not (known.kinds == "UOT" and known.units), name
