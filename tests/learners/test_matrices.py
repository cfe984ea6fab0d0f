"""Matrices in memory are accepted wherever a kernel set is."""

import tempfile
from functools import partial

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from dask.callbacks import Callback
from helpers.references import digits, in_memory
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score

import dmkl
from dmkl.errors import InputError

# Arrays without names are used with data frames with names here.
pytestmark = pytest.mark.filterwarnings("ignore::dmkl.errors.SampleOrderWarning")

TRAIN, TEST = np.arange(60), np.arange(60, 90)
NAMES = ["wide", "narrow", "linear", "cubic", "noise"]


def forms(rows, cols):
    """The kernels between some samples, in every form."""
    kernels = digits()[0][:, rows][:, :, cols]
    frames = [pd.DataFrame(k, index=[f"s{r}" for r in rows], columns=[f"s{c}" for c in cols]) for k in kernels]
    return {
        "an array": kernels,
        "a list": list(kernels),
        "a mapping": dict(zip(NAMES, kernels, strict=True)),
        "data frames": dict(zip(NAMES, frames, strict=True)),
        "xarray": xr.DataArray(kernels, dims=("kernel", "row", "column"), coords={"kernel": NAMES}),
    }


@pytest.mark.parametrize(
    ("learner", "form"), [*((dmkl.MKFDA(1.5), form) for form in forms(TRAIN, TRAIN)), (dmkl.MKSVM(2.0, 4.0), "a list")]
)
def test_a_fit_and_its_predictions(form, learner):
    y = digits()[1] % 3
    K = in_memory(digits()[0], 25)
    expected = clone(learner).fit(K[TRAIN, TRAIN], y[TRAIN])
    model = learner.fit(forms(TRAIN, TRAIN)[form], y[TRAIN])
    new = forms(TEST, TRAIN)[form]
    scores = expected.decision_function(K[TEST, TRAIN]).values
    # The two halves of these matrices differ in the last bits, and masters are solved to about 1e-6.
    np.testing.assert_allclose(model.decision_function(new), scores, atol=1e-5 * np.abs(scores).max())
    np.testing.assert_array_equal(model.predict(new), expected.predict(K[TEST, TRAIN]))
    assert model.score(new, y[TEST]) == expected.score(K[TEST, TRAIN], y[TEST])
    named = form in ("a mapping", "data frames", "xarray")
    assert list(model.weights_.kernel) == (NAMES if named else [f"kernel_{k}" for k in range(5)])


def test_columns_with_names_are_put_in_order():
    y = digits()[1] % 3
    model = dmkl.MKFDA().fit(forms(TRAIN, TRAIN)["data frames"], y[TRAIN])
    new = forms(TEST, TRAIN)["data frames"]
    shuffled = {name: frame.iloc[:, np.random.default_rng(0).permutation(60)] for name, frame in new.items()}
    np.testing.assert_array_equal(model.decision_function(shuffled), model.decision_function(new))


def test_a_small_fit_makes_no_graph_and_no_files(tmp_path, monkeypatch):
    kernels, y = digits()[0][:, TRAIN][:, :, TRAIN], digits()[1][TRAIN] % 3
    learners = (dmkl.MKFDA(), dmkl.MKFDA(4 / 3, solver="cg"), dmkl.MKRidge())
    stored = dmkl.create(tmp_path / "K.zarr", kernels)
    expected = [clone(learner).fit(stored, y) for learner in learners]
    monkeypatch.setattr(tempfile, "mkdtemp", lambda **_: pytest.fail("the disk takes longer than the fit"))
    tasks = []
    with Callback(posttask=lambda key, *_: tasks.append(key)):
        models = [learner.fit(kernels, y) for learner in learners]
    assert not tasks
    for model, of_stored in zip(models, expected, strict=True):
        np.testing.assert_array_equal(model.weights_, of_stored.weights_)
        np.testing.assert_array_equal(model.dual_coef_, of_stored.dual_coef_)
        assert model.n_passes_ == of_stored.n_passes_


@pytest.mark.parametrize(
    "model",
    [dmkl.Uniform(), dmkl.MKRidge(lam=0.1), dmkl.KernelKMeans(3), dmkl.VarianceComponents(shares="diagonal")],
    ids=repr,
)
def test_arrays_in_give_arrays_and_names_on_demand(model):
    kernels, y = digits()
    y = y % 3 if isinstance(model, dmkl.Uniform) else y.astype(float)
    arrays, K = kernels[:, 60:, :60], in_memory(kernels, 25)[TEST, TRAIN]
    model.fit(kernels[:, :60, :60], *([] if isinstance(model, dmkl.KernelKMeans) else [y[:60]]))
    plain = model.predict(arrays)
    assert type(plain) is np.ndarray
    named = model.predict(K, as_xarray=True)
    assert named["sample"].values.tolist() == K.samples.tolist()
    np.testing.assert_allclose(named, plain, rtol=1e-8)  # tiles of another size round differently
    np.testing.assert_array_equal(model.predict(arrays, as_xarray=True), plain)
    assert isinstance(model.predict(K), np.ndarray) == (not isinstance(model, dmkl.MKRidge | dmkl.VarianceComponents))


@pytest.mark.parametrize("table", [np.ones((6, 3)), pd.DataFrame(np.ones((6, 3)))], ids=["array", "frame"])
def test_a_table_of_features_is_no_kernel(table):
    with pytest.raises(InputError, match=r"table of shape \(6, 3\); make kernels .* dmkl.build, take dmkl.MKLClass"):
        dmkl.MKFDA().fit(table, [0, 1] * 3)
    with pytest.raises(InputError, match=r"\(6, 3\); give features of new samples as features=, or give a single kern"):
        dmkl.MKFDA().fit([np.eye(6)], [0, 1] * 3).predict(table)


def test_a_kernel_set_tells_scikit_learn_what_to_use():
    """scikit-learn would count the kernels of a set as samples."""
    K = dmkl.create(None, np.stack([np.eye(6)] * 6))
    for fit in (GridSearchCV(dmkl.MKFDA(), {"p": [1, 2]}).fit, partial(cross_val_score, dmkl.MKFDA())):
        with pytest.raises(InputError, match=r"dmkl\.search\(dmkl\.MKFDA\(\), K, y\)"):
            fit(K, [0, 1] * 3)
    assert len(K) == 6
    assert not hasattr(K, "predict")
