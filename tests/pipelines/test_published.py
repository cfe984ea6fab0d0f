"""Jobs on published files, tested on replicas of the files; the page of all experiments; a published simulation."""

from functools import partial
from importlib import import_module
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from scipy import stats
from scipy.io import loadmat, savemat
from scipy.spatial.distance import cdist
from sklearn.metrics import average_precision_score, balanced_accuracy_score, matthews_corrcoef

import dmkl

JOBS = Path(__file__).parents[2] / "pipelines"


@pytest.fixture(scope="module")
def jobs():
    """The imported modules of the jobs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(JOBS)
        published = ("published_flowers", "published_images", "published_proteins")
        names = ("experiments", "image_files", "replicas", *published)
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


def write_images(folder, kernels, n, **others):
    """Write kernels to a file each: of all images, or (n of them) squares and, transposed in turn, the other rows."""
    folder.mkdir()
    for k, K in enumerate(kernels):
        cross = K[n:, :n] if k % 2 else K[:n, n:]
        savemat(folder / f"kernel{k}.mat", {"K": K[:n, :n]} | ({"cross": cross} if n < len(K) else {}))
    savemat(folder / "labels.mat", others)


def test_kernels_of_images_are_read_whole_and_in_parts(jobs, tmp_path):
    rng = np.random.default_rng(0)
    kernels = [np.exp(-cdist(x, x)) for x in rng.random((2, 30, 3))]
    labels = rng.integers(-1, 2, (30, 4))
    order = rng.permutation(30) + 1
    parts = {"trn1": order[:12], "val1": order[12:20], "tst1": order[20:]}
    write_images(tmp_path / "whole", kernels, 30, labels=labels.T, **parts)
    K = jobs["image_files"].read(tmp_path / "whole", tmp_path / "whole.zarr", n_noise=1)
    np.testing.assert_allclose(np.asarray(K)[:2], kernels, rtol=1e-6)
    assert K.names == ("kernel0-K", "kernel1-K", "noise-0")
    np.testing.assert_array_equal(K.labels, np.where(labels == 0, np.nan, labels == 1))
    for rows, part in zip(K.split(0), parts.values(), strict=True):
        np.testing.assert_array_equal(rows, np.sort(part) - 1)
    write_images(tmp_path / "parts", kernels, 20, labels=np.arange(30) % 3)
    K = jobs["image_files"].read(tmp_path / "parts", tmp_path / "parts.zarr", (12, 8, 10))
    np.testing.assert_allclose(np.asarray(K[:, :20]), np.array(kernels)[:, :, :20], rtol=1e-6)
    assert [len(rows) for rows in K.split(0)] == [12, 8, 10]
    with pytest.raises(SystemExit, match=r"must be 29 images; labels has 30"):
        jobs["image_files"].read(tmp_path / "parts", tmp_path / "other.zarr", (12, 17))
    (tmp_path / "parts" / "kernel1.mat").unlink()
    savemat(tmp_path / "parts" / "more.mat", {"M": kernels[0][:20, :20]})
    with pytest.raises(SystemExit, match=r"as many matrices of other images; it has K \(20, 20\)"):
        jobs["image_files"].read(tmp_path / "parts", tmp_path / "other.zarr", (12, 8, 10))


@pytest.mark.slow
def test_jobs_on_published_kernels_of_images(jobs, run_job, tmp_path):
    """The accuracy of Caltech101 is that of single fits at the λ with the best mean over the splits."""
    views = jobs["replicas"].pairs(120, 3, 8)
    kernels = [np.exp(-D / D.mean()) for D in (cdist(x, x, "sqeuclidean") for x in views.tables.values())]
    parts = {f"{part}1": np.flatnonzero(views.splits[0] == code) + 1 for code, part in enumerate(("trn", "val", "tst"))}
    write_images(tmp_path / "voc", kernels, 120, labels=views.labels, **parts)
    grid = ["--ps", 1, 2, "--lams", 0.01, 1, "--costs", 1]
    run_job("published_images.py", "voc2007", "voc", *grid, cwd=tmp_path)
    table = pd.read_csv(tmp_path / "out/published_images/voc2007.csv").set_index("label")
    assert (table.drop(columns=["p of MK-FDA ℓp", "p of MK-SVM ℓp"]).loc["MAP"] > 20).all()
    run_job("published_images.py", "voc2008", "voc", *grid, "--noise", 0, 3, cwd=tmp_path)
    noisy = pd.read_csv(tmp_path / "out/published_images/voc2008.csv").set_index("noise")
    assert (noisy.loc[0] >= noisy.loc[3]).all()
    classes = views.labels.argmax(axis=1) % 3
    rng = np.random.default_rng(0)
    splits = [np.split(rng.permutation(120), [60]) for _ in range(2)]
    parts = {f"{part}{k + 1}": splits[k][code] + 1 for k in (0, 1) for code, part in enumerate(("trn", "tst"))}
    write_images(tmp_path / "caltech", kernels, 120, labels=classes, **parts)
    run_job("published_images.py", "caltech101", "caltech", *grid, "--noise", 0, 2, cwd=tmp_path)
    table = pd.read_csv(tmp_path / "out/published_images/caltech101.csv").set_index("noise")
    K = dmkl.create(None, kernels, labels=classes)
    best = 0.0
    for lam in (0.01, 1.0):
        scores = []
        for train, test in (map(np.sort, both) for both in splits):
            model = dmkl.MKFDA(2.0, lam, steps=("cosine", "center")).fit(K[train, train])
            scores.append(balanced_accuracy_score(classes[test], model.predict(K[test, train])))
        best = max(best, 100 * np.mean(scores))
    assert table.loc[0, "p = 2"] == pytest.approx(best, abs=2)  # a decision or two of 120


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
