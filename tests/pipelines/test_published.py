"""Jobs on published files, tested on replicas of the files; the page of all experiments; a published simulation."""

from functools import partial
from importlib import import_module
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from scipy import stats
from scipy.io import loadmat
from sklearn.metrics import average_precision_score, matthews_corrcoef

import dmkl

JOBS = Path(__file__).parents[2] / "pipelines"


@pytest.fixture(scope="module")
def jobs():
    """The imported modules of the jobs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(JOBS)
        names = ("experiments", "published_flowers", "published_proteins", "replicas")
        yield {name.removeprefix("published_"): import_module(name) for name in names}


def test_distance_matrices_become_kernels_with_their_splits(jobs, tmp_path):
    jobs["replicas"].flowers(tmp_path, n_features=2)
    K = jobs["flowers"].kernel_set(tmp_path)
    distances, splits = loadmat(tmp_path / "distancematrices.mat"), loadmat(tmp_path / "datasplits.mat")
    assert list(K.names) == ["D_feature1", "D_feature2"]
    D = distances["D_feature2"]
    pairs = D[np.triu_indices(len(D), 1)]
    np.testing.assert_allclose(np.asarray(K)[1], np.exp(-D / pairs.mean()), rtol=1e-6)
    assert np.bincount(K.labels).tolist() == [80] * 10
    for number in (1, 2, 3):
        for rows, part in zip(K.split(number - 1), ("trn", "val", "tst"), strict=True):
            np.testing.assert_array_equal(rows, np.sort(splits[f"{part}{number}"].ravel()) - 1)


@pytest.mark.slow
def test_the_voc_protocol_measures_average_precision_without_interpolation(jobs, tmp_path, monkeypatch):
    """Results agree with a fit for each label on training and validation rows, scored by scikit-learn."""
    monkeypatch.setattr(jobs["experiments"], "NORMS", [1.0])
    monkeypatch.setattr(jobs["experiments"], "LAMS", [1e-3])
    part = jobs["experiments"].voc(jobs["experiments"].Place(tmp_path, 0.1))
    K = dmkl.open(tmp_path / "voc.zarr")
    train, validation, test = K.split(0)
    rows = np.sort(np.concatenate([train, validation]))
    scores = dmkl.MKFDA(p=1.0, lam=1e-3).fit(K[rows, rows]).decision_function(K[test, rows]).values
    expected = [average_precision_score(K.labels[test, k], scores[:, k]) for k in range(10)]
    np.testing.assert_allclose(part.table["MK-FDA ℓ1"][:10], 100 * np.array(expected), rtol=1e-6)


def test_errors_of_proteins_are_those_of_single_fits(jobs, tmp_path):
    """Results agree with a fit for each split, scored by scikit-learn's correlation coefficient."""
    jobs["replicas"].proteins(tmp_path, n=60, n_kernels=3, n_splits=3)
    K, folds = jobs["proteins"].read(tmp_path, 2)
    order = loadmat(tmp_path / "splits.mat")["orders"][1] - 1
    np.testing.assert_array_equal(folds[1][1], np.sort(order[:12]))
    np.testing.assert_array_equal(folds[1][0], np.sort(order[12:]))
    model = dmkl.MKFDA(steps="center,multiplicative", tol=1e-7)
    table = jobs["proteins"].errors(K, folds, model, {"p": [1.0, 2.0], "lam": [1e-3]})
    losses = []
    for train, test in folds:
        fitted = dmkl.MKFDA(2.0, 1e-3, steps="center,multiplicative", tol=1e-7).fit(K[train, train])
        guess = fitted.predict(K[test, train])
        truth = K.labels[test]
        losses.append(1 - np.mean([matthews_corrcoef(truth == k, guess == k) for k in np.unique(truth)]))
    row = table[table["p"] == 2.0].iloc[0]
    assert row["1 − MCC, %"] == pytest.approx(100 * np.mean(losses), abs=1e-6)
    assert row["± s.e."] == pytest.approx(100 * np.std(losses, ddof=1) / np.sqrt(2), abs=1e-6)


@pytest.mark.slow
def test_jobs_on_published_files(jobs, run_job, tmp_path):
    jobs["replicas"].flowers(tmp_path / "flowers", n_features=2)
    grid = ["--ps", 1, "inf", "--lams", "1e-3", "1e-1", "--costs", 1, "--output", "out"]
    run_job("published_flowers.py", "flowers", *grid, cwd=tmp_path)
    table = pd.read_csv(tmp_path / "out/table-cvpr.csv").set_index("method")
    assert (table["largest"] > 30).all()  # ten classes, weak views
    assert (table["means"].drop(["LP-β", "LP-B"]) > 30).all()
    run_job("published_flowers.py", "flowers", *grid, "--figures", "figures", cwd=tmp_path)
    assert {path.stem for path in (tmp_path / "figures").glob("*.png")} == {"weights", "convergence"}
    jobs["replicas"].proteins(tmp_path / "proteins", n=80, n_kernels=3, n_splits=3)
    run_job("published_proteins.py", "proteins", *grid, cwd=tmp_path)
    assert (pd.read_csv(tmp_path / "out/mkfda.csv")["1 − MCC, %"] < 100).all()


@pytest.mark.slow
def test_the_page_has_every_experiment_beside_the_published_figures(run_job, tmp_path):
    options = ["--scale", 0.1, "--only", "proteins", "groups", "cuts", "--output", tmp_path]
    run_job("experiments.py", *options, cwd=tmp_path)
    page = (tmp_path / "experiments.md").read_text(encoding="utf-8")
    sections = page.split("\n## ")[1:]
    assert len(sections) == 3
    for text in sections:
        assert all(f"**{word}:**" in text for word in ("Here", "Published", "What differs"))
        assert text.count("\n|") > 3


@pytest.mark.slow
def test_the_first_norm_drops_kernels_and_the_second_gains_from_weak_ones(run_job, tmp_path):
    """With few kernels both norms have similar errors; with many ℓ2 has a lower error, for fixed and chosen λ."""
    welch = partial(stats.ttest_ind, equal_var=False)
    options = ["--kernels", 1, 5, 30, "--repetitions", 16, "--lams", 0.03, 0.1, "--output", tmp_path]
    run_job("simulation.py", *options, cwd=tmp_path)
    assert {"simulation.png", "examples.png"} <= {path.name for path in tmp_path.iterdir()}
    result = xr.load_dataset(tmp_path / "simulation.nc", engine="scipy")
    ahead = result["error"].sel(p=1) - result["error"].sel(p=2)
    np.testing.assert_array_equal(ahead.sel(kernels=1, lam=["0.03", "0.1"]), 0)
    assert abs(float(ahead.sel(lam="0.03", kernels=5).mean())) < 0.02
    for lam in result["lam"].values:
        few, many = ahead.sel(lam=lam, kernels=5).values, ahead.sel(lam=lam, kernels=30).values
        assert stats.ttest_1samp(many, 0, alternative="greater").pvalue < 0.01
        assert welch(many, few, alternative="greater").pvalue < 0.01
    error = result["error"].sel(lam="chosen")
    assert (abs(error.sel(kernels=1).mean("repetition") - 0.43) < 0.05).all()  # the error in the paper
    for p in result["p"].values:
        five, thirty = (error.sel(p=p, kernels=n).values for n in (5, 30))
        assert welch(five, thirty, alternative="greater").pvalue < 0.01
    weighted = result["weighted"].sel(lam="0.03").mean("repetition")
    assert weighted.sel(kernels=5).min() > 4.5
    assert float(weighted.sel(kernels=30, p=1)) < 25
    assert float(weighted.sel(kernels=30, p=2)) == 30
