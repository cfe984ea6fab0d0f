"""`dmkl.permutation_test`: against searches of labels permuted one by one, its p-values, blocks, states and files."""

from unittest import mock

import numpy as np
import pytest
import xarray as xr
from helpers.faults import interrupted
from scipy import stats
from sklearn.model_selection import KFold, StratifiedKFold

import dmkl
from dmkl.errors import InputError
from dmkl.inference import permutation

GRID = {"p": [1.0, np.inf], "lam": [1e-2, 1.0]}
MODEL = dmkl.MKFDA(tol=1e-6, solver="stacked")


def made(seed, m=48, signal=0.0):
    """Kernels of features, and two classes, which `signal` separates in the first feature."""
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal((m, 6)), np.arange(m) % 2
    x[:, 0] += signal * y
    kernels = np.stack([np.exp(-0.5 * (x[:, [j]] - x[:, j]) ** 2) for j in range(6)])
    return kernels, y


@pytest.fixture(scope="module")
def result():
    K, y = made(0, signal=3.0)
    return dmkl.permutation_test(MODEL, K, y, GRID, 19, cv=3, random_state=7)


# --- against searches ------------------------------------------------------------------------------------------------
def test_it_finds_what_searches_of_permuted_labels_find(result):
    K, y = made(0, signal=3.0)
    folds = list(StratifiedKFold(3).split(y, y))
    orders = [np.arange(len(y)), result.data["order"].values[0]]
    for place, order in enumerate(orders):
        search = dmkl.search(dmkl.MKFDA(tol=1e-6), K, y[order], GRID, folds, refit=False, baselines="none")
        own = result.data.isel(permutation=place - 1) if place else result.data
        end = "null_" if place else ""
        assert float(own[f"{end}score"]) == pytest.approx(search.best_score_, abs=1e-12)
        assert {name: float(own[f"{end}{name}"]) for name in GRID} == search.best_params_
        weight = search.chosen["weight"]
        share = (weight / weight.sum("kernel")).mean("fold")
        np.testing.assert_allclose(own[f"{end}weight_share"], share, atol=1e-3)


def test_one_point_for_all_is_that_of_the_labels_as_they_are(result):
    K, y = made(0, signal=3.0)
    fixed = dmkl.permutation_test(MODEL, K, y, GRID, 3, cv=3, random_state=7, choose="fixed")
    for name in GRID:
        assert set(fixed.data[f"null_{name}"].values) == {float(result.data[name])}
    np.testing.assert_array_equal(fixed.data["order"], result.data["order"][:3])
    assert "too small if there was a choice" in fixed.summary()


@pytest.mark.slow
def test_each_task_has_its_own_p_value():
    K, y = made(1, 36, 4.0)
    labels = np.stack([y, np.random.default_rng(0).permutation(y)], axis=1)
    test = dmkl.permutation_test(dmkl.MKFDA(), K, labels, {"p": [2.0], "lam": [0.1]}, 19, cv=3)
    assert test.p_value[0] == 1 / 20 < test.p_value[1]
    assert len(test.plot()) == 2


# --- p-values --------------------------------------------------------------------------------------------------------
def test_p_values_count_ties_and_correct_by_the_maximum():
    """Scores of few samples tie."""
    K, y = made(0, 30, 1.0)
    data = dmkl.permutation_test(MODEL, K, y, {"lam": [0.1], "p": [1.0]}, 19, cv=3).data
    scores = np.append(data["score"], data["null_score"])
    assert 1 < np.sum(scores == scores[0]) < np.sum(scores >= scores[0]) < 20
    assert float(data["p_value"]) == np.mean(scores >= scores[0])
    shares = np.concatenate([[data["weight_share"]], data["null_weight_share"]])
    np.testing.assert_allclose(data["kernel_p_value"], np.mean(shares >= shares[0], axis=0))
    largest = stats.zscore(shares).max(axis=1)[:, None]
    np.testing.assert_allclose(data["kernel_p_value_corrected"], np.mean(largest >= stats.zscore(shares)[0], axis=0))


# --- blocks ----------------------------------------------------------------------------------------------------------
def test_labels_change_places_within_folds():
    """Every fold has the same classes in training after any permutation, and rows of no fold keep their labels."""
    K, y = made(0)
    folds, rest = list(KFold(3).split(np.arange(30))), np.arange(30, 48)

    def orders(seed):
        grid = {"lam": [0.1], "p": [2.0]}
        return dmkl.permutation_test(MODEL, K, y, grid, 3, cv=folds, random_state=seed).data["order"].values

    first = orders(0)
    for order in first:
        np.testing.assert_array_equal(order[rest], rest)
        for train, validation in folds:
            assert set(order[validation]) == set(validation)
            np.testing.assert_array_equal(np.bincount(y[order][train]), np.bincount(y[train]))
    assert len(np.unique([*first, *orders(1), np.arange(48)], axis=0)) == 7
    np.testing.assert_array_equal(orders(0), first)


def test_no_training_set_loses_a_class_of_known_labels():
    """Of the rare class one sample is trained on and one held out; other labels that are held out are unknown."""
    K, y = made(0, 36)
    rare = np.zeros(36)
    rare[[0, 30]], rare[32:] = 1.0, np.nan
    tasks, fold = np.column_stack([y, rare]), (np.arange(30), np.arange(30, 36))
    test = dmkl.permutation_test(MODEL, K, tasks, {"lam": [0.1]}, 99, cv=fold, scoring="accuracy")
    assert (rare[test.data["order"].values[:, :30]] == 1).any(axis=1).all()


SITES = np.repeat(["north", "south", "west"], 12)
SUBJECTS = np.repeat(np.arange(18), 2)


@pytest.mark.parametrize(
    ("options", "fixed", "permuted"),
    [
        ({"groups": SITES}, [SITES], "within groups"),
        ({"groups": SUBJECTS, "blocks": SITES}, [SITES], "within blocks"),
        ({"groups": SUBJECTS, "blocks": SITES, "exchange": "groups"}, [SITES], "of whole groups within blocks"),
        ({"groups": SUBJECTS, "exchange": "groups"}, [], "of whole groups"),
        ({"groups": SITES, "blocks": np.zeros(36)}, [], "within blocks"),
    ],
)
def test_blocks_say_what_is_exchanged_and_groups_what_no_fold_splits(options, fixed, permuted):
    K, y = made(0, 36, 2.0)
    y = y if options["groups"] is SITES else y[SUBJECTS]
    test = dmkl.permutation_test(MODEL, K, y, {"lam": [0.1]}, 7, cv=3, **options)
    orders, groups = test.data["order"].values, np.asarray(options["groups"])
    for part in test.data["part"].values:
        assert not set(groups[part == 0]) & set(groups[part == 1])
    for order in orders:
        assert sorted(order) == list(range(36))
        assert all(np.array_equal(values[order], values) for values in fixed)
    if options.get("exchange") == "groups":
        assert all(len(set(SUBJECTS[order][subject == SUBJECTS])) == 1 for order in orders for subject in range(18))
    assert any((groups[order] != groups).any() for order in orders) == ("within groups" != permuted)
    assert test.data.attrs["permuted"] == permuted
    if "blocks" in options:
        np.testing.assert_array_equal(test.data["sample_block"], np.asarray(options["blocks"]).astype(str))


# --- states and files ------------------------------------------------------------------------------------------------
def test_what_was_interrupted_goes_on(tmp_path, monkeypatch):
    K, y = made(0, 36, 1.0)
    at_once = 4
    monkeypatch.setattr(permutation, "_CHUNK_BYTES", permutation._SCORE_BYTES * (36 + 72) * 2 * at_once)
    grid = {"p": [1.5], "lam": [0.1]}

    def test(state):
        return dmkl.permutation_test(dmkl.MKFDA(), K, y, grid, 9, cv=3, state=state)

    whole = test(None)
    with interrupted(permutation, "run_blocks", 2):
        test(tmp_path / "state")
    with mock.patch.object(permutation, "run_blocks", wraps=permutation.run_blocks) as blocks:
        xr.testing.assert_identical(test(tmp_path / "state").data.drop_attrs(), whole.data.drop_attrs())
    assert blocks.call_count == 1
    with pytest.raises(InputError, match="the permutations"):
        dmkl.permutation_test(dmkl.MKFDA(), K, y, grid, 8, cv=3, state=tmp_path / "state")


def test_what_was_found_is_told_and_drawn(result):
    assert result.p_value == 1 / 20
    assert result.p_value_error == pytest.approx(np.sqrt(1 / 20 * 19 / 20 / 20))
    assert result.n_passes_ <= 4
    assert "p = 0.05 (no permutation of 19 scored as high)" in result.summary()
    axes = result.plot()
    assert sum(bar.get_height() for bar in axes.patches) == 19
    assert axes.lines[0].get_xdata()[0] == float(result.data["score"])
    with pytest.raises(InputError, match="there is no task 'rna': this permutation test has no tasks"):
        result.plot(task="rna")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_labels_without_meaning_are_significant_as_often_as_they_should_be():
    n_sets, level = 200, 0.05
    score, kernels = [], []
    for seed in range(n_sets):
        K, y = made(seed, 36)
        y = np.random.default_rng(1000 + seed).permutation(y)
        grid = {"p": [1.0, 2.0], "lam": [1e-1]}
        options = {"cv": 3, "scoring": "average_precision", "random_state": seed}
        test = dmkl.permutation_test(dmkl.MKFDA(solver="stacked"), K, y, grid, 19, **options)
        score.append(test.p_value <= level)
        kernels.append(float(test.kernel_p_values["corrected"].min()) <= level)
    error = 2.6 * np.sqrt(level * (1 - level) / n_sets)  # 99 %
    assert abs(np.mean(score) - level) <= error
    assert abs(np.mean(kernels) - level) <= error
