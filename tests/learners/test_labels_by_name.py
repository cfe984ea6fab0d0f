"""Labels given to fit, search, score and analyze: matched by name with the samples of the kernels."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from helpers.references import psd
from sklearn.model_selection import GroupKFold

import dmkl
from dmkl.errors import InputError, SampleOrderWarning

M = 24
KERNELS = psd(3, M)
SAMPLES = [f"s{i}" for i in range(M)]
Y = pd.Series(np.tile(["a", "b", "c"], 8), SAMPLES)
TASKS = pd.DataFrame(np.random.default_rng(3).integers(0, 2, (M, 2)), SAMPLES, ["cat", "dog"])
MIXED = np.random.default_rng(0).permutation(SAMPLES)
NAMED, UNNAMED = (dmkl.create(None, KERNELS, tile=10, **names) for names in ({"samples": SAMPLES}, {}))
TRAIN = np.array([3, 1, 8, 20, 11, 5, 6, 13, 22])

# Arrays without names are used with data frames with names.
pytestmark = pytest.mark.filterwarnings(
    "ignore::dmkl.errors.SampleOrderWarning", "ignore::dmkl.errors.TrainingRowsWarning"
)


@pytest.mark.parametrize(
    "of",
    [lambda y: y, lambda y: y.to_frame(), lambda y: xr.DataArray(y, dims="sample")],
    ids=["series", "frame", "xarray"],
)
def test_fit_takes_labels_by_name(of):
    expected = dmkl.MKFDA(p=2).fit(NAMED, Y.to_numpy())
    result = dmkl.MKFDA(p=2).fit(NAMED, of(Y[MIXED]))
    xr.testing.assert_identical(result.dual_coef_, expected.dual_coef_)
    assert result.score(NAMED, of(Y[MIXED])) == expected.score(NAMED, Y.to_numpy())
    # Labels of more samples: those of the current samples are selected.
    part = dmkl.Uniform().fit(NAMED[TRAIN, TRAIN], of(Y[MIXED]))
    xr.testing.assert_identical(
        part.dual_coef_, dmkl.Uniform().fit(NAMED[TRAIN, TRAIN], Y.to_numpy()[TRAIN]).dual_coef_
    )


def test_tasks_keep_the_names_of_their_columns():
    model = dmkl.Uniform().fit(NAMED, TASKS.loc[MIXED])
    assert list(model.tasks_) == ["cat", "dog"]
    xr.testing.assert_allclose(
        model.dual_coef_.drop_vars("task"), dmkl.Uniform().fit(NAMED, TASKS.to_numpy()).dual_coef_.drop_vars("task")
    )
    assert list(dmkl.analyze(NAMED, TASKS.loc[MIXED]).data.task.values) == ["cat", "dog"]


def test_search_takes_labels_and_groups_by_name():
    groups = pd.Series(np.arange(M) // 3, SAMPLES)
    grid = {"lam": [0.1, 1.0]}
    results = [
        dmkl.search(dmkl.Uniform(), NAMED, y, grid, GroupKFold(3), groups=g, refit=False)
        for y, g in ((Y.to_numpy(), groups.to_numpy()), (Y[MIXED], groups[MIXED[::-1]]))
    ]
    np.testing.assert_array_equal(*(result.scores["score"] for result in results))


def test_a_sample_without_a_label_is_named():
    with pytest.raises(InputError, match=r"y lacks 2 of the 24 samples \('s4', 's7'\)"):
        dmkl.Uniform().fit(NAMED, Y.drop(["s7", "s4"]))
    with pytest.raises(InputError, match="y: sample names must be unique, but 's0' occurs 2 times"):
        dmkl.Uniform().fit(NAMED, pd.concat([Y, Y[:1]]))


def test_kernels_without_names_go_by_positions():
    expected = dmkl.Uniform().fit(UNNAMED[TRAIN, TRAIN], Y.to_numpy()[TRAIN])
    with pytest.warns(SampleOrderWarning, match="y carries names of samples.*but the kernels have none"):
        result = dmkl.Uniform().fit(UNNAMED[TRAIN, TRAIN], Y.iloc[TRAIN])
    xr.testing.assert_identical(result.dual_coef_, expected.dual_coef_)
