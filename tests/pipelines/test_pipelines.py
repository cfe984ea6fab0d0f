"""Every job of pipelines/ runs to its end on a small set."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dmkl

JOBS = Path(__file__).parents[2] / "pipelines"


def run(job, *arguments, cwd):
    """The output of a job."""
    command = [sys.executable, str(JOBS / job), *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def views(tmp_path_factory):
    """Two views of 120 samples of 3 classes, histograms, with two splits."""
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], 40)
    centers = rng.random((2, 3, 8)) ** 3
    found = {name: rng.random((120, 8)) * 0.3 + centers[k][labels] for k, name in enumerate(("one", "two"))}
    found = {name: (v / v.sum(axis=1, keepdims=True)).astype(np.float16) for name, v in found.items()}
    splits = np.array([rng.permutation(np.tile([0, 0, 1, 2], 30)) for _ in range(2)], dtype=np.int8)
    path = tmp_path_factory.mktemp("views") / "views.npz"
    np.savez(path, **found, label=labels, split=splits)
    return path


@pytest.mark.parametrize("job", [pytest.param("flower17.py", marks=pytest.mark.slow), "uci_digits.py"])
def test_real_data(job, views, tmp_path):
    printed = run(job, views, "--output", tmp_path / "out", cwd=tmp_path)
    kernels = 2 if job == "flower17.py" else 10
    assert f"<KernelSet {kernels} kernels, 120 × 120, float32>" in printed
    assert "MK-FDA p = 1.5" in printed


@pytest.mark.slow
def test_search_grid(tmp_path):
    options = ["-n", 4, "-m", 90, "--ps", 1, 2, "--lams", 0.01, 1, "--output", tmp_path]
    printed = run("search_grid.py", "digits", *options, cwd=tmp_path)
    assert "as it must" in printed


def test_nested(views, tmp_path):
    options = ["--ps", 1, 2, "--lams", 0.01, 1, "--outer", 3, "--inner", 2, "--cold", "--output", tmp_path / "out"]
    printed = run("nested.py", views, *options, cwd=tmp_path)
    assert "largest difference of an outer fold 0.0000" in printed
    assert "Evaluation of MKFDA: 2 p × 2 lam, 3 outer folds × 2 inner" in printed


def test_groups_of_each_class(views, tmp_path):
    options = ["--models", "gsmkl", "gsmkl, across", "--groups", "1,2", "--steps", "multiplicative"]
    run("compare_models.py", views, *options, "--output", tmp_path / "out", cwd=tmp_path)
    table = pd.read_csv(tmp_path / "out" / "table.csv", index_col="model")
    assert table["test"].between(0.4, 1.0).all()
    assert table["one for all"]["gsmkl, across"] == table["test"]["gsmkl, across"]
    assert table["chosen"].str.startswith("n_groups = ").all()


def test_rules(views, tmp_path):
    with np.load(views) as data:
        tables, y = {name: data[name].astype(np.float64) for name in ("one", "two")}, data["label"]
    dmkl.build(tmp_path / "kernels.zarr", tables, {"function": "rbf"}, labels=y)
    np.savez(tmp_path / "groups.npz", group=np.arange(120) // 2)
    options = ("--train", 15, "--validation", 10, "--splits", 3, "--lam", "1e-2", "--groups", "groups.npz")
    printed = run("rules.py", "kernels.zarr", *options, cwd=tmp_path)
    assert len(re.findall(r"^0\.01 .* ± \d\.\d\d$", printed, re.MULTILINE)) == 4


def test_ridge(tmp_path):
    options = ["--targets", 3, "--samples", 80, "--kernels", 3, "--ps", 2, "--lams", 0.01, 0.1, "--n-iter", 5]
    printed = run("ridge.py", *options, cwd=tmp_path)
    assert re.search(r"KernelRidge by [0-9.]+e-1[0-9] at most", printed)
    assert "largest gap" in printed


@pytest.mark.slow
def test_noise_kernels(views, tmp_path):
    options = ["--noise", 0, 2, "--ps", 1, 2, "--lams", 0.01, "--output", tmp_path / "out"]
    printed = run("noise_kernels.py", views, *options, cwd=tmp_path)
    assert "learnt" in printed
    assert (tmp_path / "out" / "noise_kernels.png").stat().st_size > 0


@pytest.mark.slow
def test_missing_samples(views, tmp_path):
    printed = run("missing_samples.py", views, "--repetitions", 1, "--output", tmp_path / "out", cwd=tmp_path)
    assert "kept (outer) 0 120" in printed
    assert "left out (inner)" in printed.splitlines()[-2]


@pytest.mark.slow
def test_large_build(tmp_path):
    printed = run("large_build.py", "-n", 2, "-m", 300, "-d", 5, "--cluster", "threads", cwd=tmp_path)
    assert "floor / measured" in printed


@pytest.mark.slow
def test_ncuts(views, tmp_path):
    options = ["--noise", 0, 2, "--models", "ncuts", "uniform Fisher", "--output", tmp_path / "out"]
    assert "weight of noise" in run("ncuts.py", views, *options, cwd=tmp_path)


@pytest.mark.parametrize("job", sorted(JOBS.glob("*.py")), ids=lambda job: job.name)
def test_jobs_use_public_names_alone(job):
    assert not re.findall(r"^\s*(?:from|import) dmkl\.(?!errors)\S+.*$", job.read_text(), re.MULTILINE)
