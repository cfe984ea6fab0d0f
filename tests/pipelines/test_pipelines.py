"""Every job of pipelines/ completes on a small set."""

import ast
import math
import re
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import anndata
import numpy as np
import pandas as pd
import pytest

import dmkl

JOBS = Path(__file__).parents[2] / "pipelines"


def run(job, *arguments, cwd):
    """Run a job and return its output."""
    command = [sys.executable, str(JOBS / job), *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def views(tmp_path_factory):
    """Histograms of two views of 120 samples of 3 classes, with two splits."""
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], 40)
    centers = rng.random((2, 3, 8)) ** 3
    result = {name: rng.random((120, 8)) * 0.3 + centers[k][labels] for k, name in enumerate(("one", "two"))}
    result = {name: (v / v.sum(axis=1, keepdims=True)).astype(np.float16) for name, v in result.items()}
    splits = np.array([rng.permutation(np.tile([0, 0, 1, 2], 30)) for _ in range(2)], dtype=np.int8)
    path = tmp_path_factory.mktemp("views") / "views.npz"
    np.savez(path, **result, label=labels, split=splits)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "patterns"),
    [
        ("flower17.py views.npz --output out", ["<KernelSet 2 kernels, 120 × 120, float32>", r"MK-FDA p = 1\.5"]),
        ("uci_digits.py views.npz --output out", ["<KernelSet 10 kernels, 120 × 120, float32>", r"MK-FDA p = 1\.5"]),
        ("search_grid.py digits -n 4 -m 90 --ps 1 2 --lams 0.01 1 --output out",
         ["as it must", r"^wrapper method, point by point: \d+ passes, "]),
        ("client_load.py -n 3 -m 120 --workers 1 --keep out --arguments --all -p 1,2 --lam 1e-2,1", [r"120.*\n\Z"]),
        ("small_ridges.py --sets views --sizes 40 --draws 2",
         [r"^views +40 +5 +0\.\d{4} +0\.\d{4} +[+-]0\.\d{4} ± 0\.\d{4}$"]),
        ("growth.py --classes 2 3 --of-classes 40 --samples 40 60 --folds 2 3 --targets 2 3 --kernels 3 101",
         [r"^classes +exponent +-?[0-9.]+", r"^kernels +101 ", r"^kernels +exponent"]),
        ("compare_solvers.py --sizes 2x100 --norms 1 2 --lams 0.01 --output out",
         [r"1 0\.01 direct, Taylor cuts +\d+ ", r"2 0\.01 +dual +\d+ "]),
        ("importance.py views.npz --ps 2 --lams 0.01 --loop 2 --shapley 2 --output out",
         [r"to the loop.s: \d\.\de-0[5-9]$"]),
        ("permutations.py views.npz --permutations 9 --quick", ["p = "]),
        ("large_fit.py -n 2 -m 200 --cluster threads", ["passes"]),
        ("large_margin.py -n 2 -m 200 --cluster threads", ["passes"]),
        ("nested.py views.npz --ps 1 2 --lams 0.01 1 --outer 3 --inner 2 --cold --output out",
         [r"largest difference of an outer fold 0\.0000", "Evaluation of MKFDA: 2 p × 2 lam, 3 outer folds × 2 inner"]),
        ("ridge.py --targets 3 --samples 80 --kernels 3 --ps 2 --lams 0.01 0.1 --n-iter 5",
         [r"KernelRidge by [0-9.]+e-1[0-9] at most", "largest gap"]),
        ("missing_samples.py views.npz --repetitions 1 --output out",
         [r"kept \(outer\) 0 120", r"left out \(inner\).*\n.*\n\Z"]),
        ("large_build.py -n 2 -m 300 -d 5 --cluster threads", ["floor / measured"]),
        ("ncuts.py views.npz --noise 0 2 --models ncuts 'uniform Fisher' --output out", ["weight of noise"]),
        ("noise_kernels.py views.npz --noise 0 2 --ps 1 2 --lams 0.01 --output out", ["learnt"]),
        ("stability.py views.npz --ps 1 --resamples 4 --loop 2 --output out",
         ["Stability of MKFDA: 4 half-samples, 2 kernels"]),
        ("variance_components.py --samples 300 --kernels 2 --output out --traces exact --no-tests",
         [r"passes\. ", "peak memory"]),
        ("variance_components.py --samples 300 --kernels 2 --output out --traces probes --no-tests",
         [r"passes\. ", "peak memory"]),
        ("simulate_scale.py --plan --kernels 500 --samples 50000 --columns 8",
         ["tasks 3,501, of which 3,000 read kernels"]),
        # Each of four nodes reads 384 columns of 4,000 samples, in double precision.
        ("simulate_scale.py --kernels 5 --samples 4000 --tile 256 --nodes 4 --cores 1 --seconds 0.2",
         [r"^vectors that all nodes read from disk +0\.049 GB$"]),
    ],
)  # fmt: skip
def test_what_jobs_print(command, patterns, views, tmp_path):
    shutil.copy(views, tmp_path / "views.npz")
    printed = run(*shlex.split(command), cwd=tmp_path)
    for pattern in patterns:
        assert re.search(pattern, printed, re.MULTILINE), printed


def test_shares_of_a_client():
    sys.path.insert(0, str(JOBS))
    try:
        from client_load import Load
    finally:
        sys.path.remove(str(JOBS))
    assert (Load(3.0, 0, 10.0) - Load(1.0, 0, 4.0)).share == 0.25
    assert math.isnan((Load(3.0, 0, 10.0) - Load(3.0, 0, 10.0)).share)


@pytest.mark.slow
@pytest.mark.parametrize("stored", [True, False])
def test_each_split_has_bandwidths_of_its_own_training_rows(views, tmp_path, stored):
    with np.load(views) as data:
        arrays = {name: data[name] for name in data.files if stored or name != "split"}
    np.savez(tmp_path / "data.npz", **arrays)
    options = ["--function", "rbf", "--models", "ncuts", "--train", 12, "--validation", 8, "--output", tmp_path / "out"]
    printed = run("compare_models.py", "data.npz", *options, cwd=tmp_path)
    sets = [dmkl.open(path) for path in sorted((tmp_path / "out").glob("kernels-*.zarr"))]
    assert len(sets) == (2 if stored else 3)
    assert printed.count("<KernelSet 2 kernels, 120 × 120, float32>") == len(sets)
    for K in sets:
        train = K.split(0).train
        view = arrays["one"].astype(np.float64)
        view = (view - view[train].mean(axis=0)) / view[train].std(axis=0)
        distances = ((view[:, None] - view[None]) ** 2).sum(axis=2)
        mean = distances[np.ix_(train, train)].sum() / (len(train) * (len(train) - 1))
        np.testing.assert_allclose(np.asarray(K)[0], np.exp(-distances / mean), rtol=1e-4, atol=1e-6)
    table = pd.read_csv(tmp_path / "out" / "table.csv", index_col="model")
    assert table.loc["ncuts", "test"] > 0.5
    assert len(table.loc["ncuts", "chosen"].removeprefix("C = ").split()) == len(sets)


@pytest.mark.slow
def test_groups_of_each_class(views, tmp_path):
    options = ["--models", "gsmkl", "gsmkl, across", "--groups", "1,2", "--steps", "multiplicative"]
    run("compare_models.py", views, *options, "--output", tmp_path / "out", cwd=tmp_path)
    table = pd.read_csv(tmp_path / "out" / "table.csv", index_col="model")
    assert table["test"].between(0.4, 1.0).all()
    assert table["one for all"]["gsmkl, across"] == table["test"]["gsmkl, across"]
    assert table["chosen"].str.startswith("n_groups = ").all()


@pytest.mark.slow
def test_rules(views, tmp_path):
    with np.load(views) as data:
        tables, y = {name: data[name].astype(np.float64) for name in ("one", "two")}, data["label"]
    dmkl.build(tmp_path / "kernels.zarr", tables, {"function": "rbf"}, labels=y)
    np.savez(tmp_path / "groups.npz", group=np.arange(120) // 2)
    options = ("--train", 15, "--validation", 10, "--splits", 3, "--lam", "1e-2", "--groups", "groups.npz")
    printed = run("rules.py", "kernels.zarr", *options, cwd=tmp_path)
    assert len(re.findall(r"^0\.01 .* ± \d\.\d\d$", printed, re.MULTILINE)) == 4


@pytest.mark.slow
def test_flat_spectra(views, tmp_path):
    printed = run("flat_spectra.py", views, "--seeds", 1, "--ps", 1, "--lams", 0.01, "--output", tmp_path, cwd=tmp_path)
    noise = [line.split() for line in printed.splitlines() if line.strip().startswith("0.01 ")]
    assert [row[1] for row in noise] == ["equal", "dimension", "null"]
    assert float(noise[0][2]) == 1  # every half of the samples selects the narrow kernel of noise
    assert "views.npz: test accuracy" in printed


PRIVATE = {"simulate_scale.py"}
"""Jobs that use the division of passes into tasks, which is not public."""


@pytest.mark.parametrize(
    "job", sorted(set(JOBS.glob("*.py")) - {JOBS / name for name in PRIVATE}), ids=lambda job: job.name
)
def test_jobs_use_public_names_alone(job):
    assert not re.findall(r"^\s*(?:from|import) dmkl\.(?!errors)\S+.*$", job.read_text(), re.MULTILINE)


@pytest.mark.slow
def test_single_cell(tmp_path):
    printed = run("single_cell.py", "--cells", 150, "--output", tmp_path / "out", cwd=tmp_path)
    assert printed.count("$ dmkl ") == 4
    names = dmkl.open(tmp_path / "out" / "kernels.zarr").names
    assert names == ("layers/counts-linear", "layers/log-linear", "obsp/neighborhood-precomputed")
    assert names[2] in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_relationship_matrices(tmp_path):
    printed = run("relationship_matrices.py", "--families", 40, "--output", tmp_path / "out", cwd=tmp_path)
    assert printed.count("$ dmkl ") == 4
    K = dmkl.open(tmp_path / "out" / "kernels.zarr")
    assert K.names == ("chr1", "chr2", "chr3", "chr4")
    phenotypes = pd.read_csv(tmp_path / "out" / "height.pheno", sep=" ", names=["family", "name", "height"])
    known = phenotypes[phenotypes["height"] != -9]
    assert 0 < len(known) < len(phenotypes)
    assert K.samples.tolist() == known["name"].tolist()
    np.testing.assert_array_equal(K.labels, known["height"])
    assert "chr1" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert (tmp_path / "out" / "weighted.grm.bin").stat().st_size == 4 * len(known) * (len(known) + 1) // 2


@pytest.mark.slow
def test_variance_components(tmp_path):
    printed = run("variance_components.py", "--families", 30, "--output", tmp_path / "out", cwd=tmp_path)
    assert printed.count("$ dmkl ") == 4
    assert "on the boundary" in printed
    phenotypes = pd.read_csv(tmp_path / "out" / "height.pheno", sep=" ", names=["family", "name", "height"])
    predicted = pd.read_csv(tmp_path / "out" / "predictions.csv")
    assert predicted["sample"].tolist() == phenotypes["name"][phenotypes["height"] == -9].tolist()
    model = dmkl.load(tmp_path / "out" / "model")
    parts = pd.read_csv(tmp_path / "out" / "components.csv", index_col="sample").sum(axis=1)
    np.testing.assert_allclose(parts + model.intercept_.item(), predicted["predicted"], rtol=1e-6)
    total = model.components_.sel(term="total")
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert f"The kernels explain {float(total.variance_share):.4g} ± {float(total.variance_share_se):.2g} of" in page


@pytest.mark.slow
def test_many_targets(tmp_path):
    options = ("--samples", 200, "--targets", 40, "--candidates", 8, "--noise", 0.3)
    printed = run("many_targets.py", *options, "--output", tmp_path / "out", cwd=tmp_path)
    assert printed.count("$ dmkl ") == 2
    assert "of 40 targets above 0" in printed
    assert "voxel00000 " not in printed.split("kernel ")[0]  # no line for each target
    table = pd.read_csv(tmp_path / "out" / "by_space.csv").groupby("target")
    sums = table["kernel_r2"].sum() + table["rest_r2"].first()
    np.testing.assert_allclose(sums, table["total_r2"].first(), rtol=1e-6)
    assert float(printed.split("true one for ")[1].split(" %")[0]) > 70


@pytest.mark.slow
def test_shared_candidates_beside_himalaya(tmp_path):
    options = ("--targets", 30, "--samples", 80, "--kernels", 3, "--candidates", 4)
    printed = run("ridge.py", *options, "--output", tmp_path / "out", cwd=tmp_path)
    assert re.search(r"^dmkl .* 4 candidates$", printed, re.MULTILINE)
    if find_spec("himalaya") is not None:
        assert "equal for 30 of 30 targets" in printed


@pytest.mark.slow
def test_thin_kernels(tmp_path):
    printed = run("thin_kernels.py", "--samples", 600, "--features", 5, cwd=tmp_path)
    assert ", factors\n" in printed
    # Both states have a proven gap within the tolerance.
    certified, finished = map(int, re.search(r"360 fits \((\d+) certified(?:, (\d+) finished)?\)", printed).groups("0"))
    assert certified + finished == 360
    assert float(printed.split("new samples ")[1].split()[0]) > 0.4


@pytest.mark.slow
def test_gene_sets(tmp_path):
    out = tmp_path / "out"
    printed = run("gene_sets.py", "--cells", 2000, "--resamples", 4, "--output", out, cwd=tmp_path)
    assert printed.count(" -m dmkl ") == 5
    assert "factors" in printed
    weights = dmkl.load(out / "model").weights_
    assert weights.idxmax("kernel").values[:3].tolist() == [f"X-linear-SET_{k}" for k in range(3)]
    predicted = pd.read_csv(out / "predicted.csv", index_col=0)
    truth = anndata.read_h5ad(out / "query.h5ad").obs["cell_type"].astype(str)
    assert (predicted.loc[truth.index, "predicted"] == truth).mean() > 0.8


@pytest.mark.slow
def test_neuroimaging(tmp_path):
    options = ("--subjects", 120, "--permutations", 19, "--output", tmp_path / "out")
    assert run("neuroimaging.py", *options, cwd=tmp_path).count("$ dmkl ") == 5
    site = pd.read_csv(tmp_path / "out" / "sites.csv", index_col=0)["site"]
    estimate, test = (dmkl.load(tmp_path / "out" / name) for name in ("estimate", "significance"))
    for train, held_out in estimate.folds.values():
        names = estimate.scores["sample"].values
        assert not {*site[names[train]]} & {*site[names[held_out]]}
    assert estimate.mean_score_ > 0.7  # chance level 0.5
    assert test.p_value == 1 / 20
    assert test.data["sample_block"].values.tolist() == site[test.data["sample"].values].tolist()
    assert (tmp_path / "out" / "scores.png").stat().st_size > 0


def test_whole_jobs_are_short():
    """Jobs have at most five commands or fifteen lines."""
    trees = {path.stem: ast.parse(path.read_text(encoding="utf-8")) for path in JOBS.glob("*.py")}
    for job in ("gene_sets", "single_cell", "variance_components", "relationship_matrices", "neuroimaging"):
        loops = [node for node in ast.walk(trees[job]) if isinstance(node, ast.For)]
        (steps,) = [loop.iter.elts for loop in loops if ast.unparse(loop.target) == "step"]
        assert 4 <= len(steps) <= 5, job
    (job,) = [node for node in trees["digits"].body if getattr(node, "name", "") == "compare_views"]
    assert len(ast.unparse(job.body[1:]).splitlines()) <= 15


@pytest.mark.slow
def test_digits(tmp_path):
    run("digits.py", "--samples", 150, "--resamples", 4, "--output", tmp_path / "out", cwd=tmp_path)
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    for part in ("Search: Scores", "Score on new samples: Compared with simpler models", "Stability: Picture"):
        assert part in page


@pytest.mark.slow
def test_matlab_views(tmp_path):
    printed = run("matlab_views.py", "--samples", 210, "--output", tmp_path / "out", cwd=tmp_path)
    assert printed.count("$ dmkl ") == 4
    K = dmkl.open(tmp_path / "out" / "kernels.zarr")
    split = np.loadtxt(tmp_path / "out" / "split.txt")
    assert K.split(0).test.tolist() == np.flatnonzero(split == 2).tolist()
    predictions = pd.read_csv(tmp_path / "out" / "predictions.csv")
    right = (predictions["predicted"].to_numpy() == K.labels[split == 2]).mean()
    assert f"{100 * right:.2f} %" in printed
    assert right > 0.7  # chance level 0.1
    assert "X_1-rbf" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
