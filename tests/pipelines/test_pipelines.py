"""Every job of pipelines/ completes on a small set."""

import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import dmkl

JOBS = Path(__file__).parents[2] / "pipelines"


@pytest.fixture(scope="module")
def views(tmp_path_factory):
    """Histograms of two views of 120 samples of 3 classes, with two splits; their kernels; groups of the samples."""
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], 40)
    centers = rng.random((2, 3, 8)) ** 3
    result = {name: rng.random((120, 8)) * 0.3 + centers[k][labels] for k, name in enumerate(("one", "two"))}
    result = {name: (v / v.sum(axis=1, keepdims=True)).astype(np.float16) for name, v in result.items()}
    splits = np.array([rng.permutation(np.tile([0, 0, 1, 2], 30)) for _ in range(2)], dtype=np.int8)
    folder = tmp_path_factory.mktemp("views")
    np.savez(folder / "views.npz", **result, label=labels, split=splits)
    np.savez(folder / "groups.npz", group=np.arange(120) // 2)
    tables = {name: view.astype(np.float64) for name, view in result.items()}
    dmkl.build(folder / "kernels.zarr", tables, {"function": "rbf"}, labels=labels)
    return folder


PRINTED = {
    "flower17.py views.npz --output out": ["<KernelSet 2 kernels, 120 × 120, float32>", r"MK-FDA p = 1\.5"],
    "uci_digits.py views.npz --output out": ["<KernelSet 10 kernels, 120 × 120, float32>", r"MK-FDA p = 1\.5"],
    "search_grid.py digits -n 4 -m 90 --ps 1 2 --lams 0.01 1 --output out": [
        "as it must",
        r"^wrapper method, point by point: \d+ passes, ",
    ],
    "client_load.py -n 3 -m 120 --workers 1 --keep out --arguments --all -p 1,2 --lam 1e-2,1": [r"120.*\n\Z"],
    "small_ridges.py --sets views --sizes 40 --draws 2": [
        r"^views +40 +5 +0\.\d{4} +0\.\d{4} +[+-]0\.\d{4} ± 0\.\d{4}$"
    ],
    "small_jobs.py": [r"^fit +0\.\d{4} s$", r"^search, default grid +\d", r"^predict, linear +[0-9.]+ ms$"],
    "thin_kernels.py --samples 400 --kernels 3 --features 4 --classes 2 --loss logistic": [
        r"^30 fits \(30 certified\)",
        r"accuracy on 1,000 new samples [01]\.\d{4}$",
    ],
    "growth.py --classes 2 3 --of-classes 40 --samples 40 60 --folds 2 3 --targets 2 3 --kernels 3 101": [
        r"^classes +exponent +-?[0-9.]+",
        r"^kernels +101 ",
        r"^kernels +exponent",
    ],
    "training_times.py --kernels 2 3 --samples 101 120": [
        r"^binary +MK-SVM +1 +14 +120 ",
        r"^multiclass +MK-FDA +2 +3 +101 .* [0-9.]+e-[0-9]+$",
    ],
    "loss_grids.py kernels.zarr --two --folds 2": [r"^MK-FDA +240 .* 240 ", r"^logistic +\d+ +\d+ .*[01]\.\d{4}$"],
    "loss_inference.py --samples 60 --permutations 2 --resamples 2": [
        r"^MK-FDA +permutation test +\d",
        r"^logistic +importance +\d",
        r"^logistic +stability +\d",
    ],
    "compare_solvers.py --sizes 2x100 --norms 1 2 --lams 0.01 --output out": [
        r"1 0\.01 direct, Taylor cuts +\d+ ",
        r"2 0\.01 +dual +\d+ ",
    ],
    "importance.py views.npz --ps 2 --lams 0.01 --loop 2 --shapley 2 --output out": [r"to the loop.s: \d\.\de-0[5-9]$"],
    "permutations.py views.npz --permutations 9 --quick": ["p = "],
    "large_fit.py -n 2 -m 200 --cluster threads": ["passes"],
    "large_margin.py -n 2 -m 200 --cluster threads": ["passes"],
    "nested.py views.npz --ps 1 2 --lams 0.01 1 --outer 3 --inner 2 --cold --output out": [
        r"largest difference of an outer fold 0\.0000",
        "Evaluation of MKFDA: 2 p × 2 lam, 3 outer folds × 2 inner",
    ],
    "ridge.py --targets 3 --samples 80 --kernels 3 --ps 2 --lams 0.01 0.1 --n-iter 5": [
        r"KernelRidge by [0-9.]+e-1[0-9] at most",
        "largest gap",
    ],
    "missing_samples.py views.npz --repetitions 1 --output out": [
        r"kept \(outer\) 0 120",
        r"left out \(inner\).*\n.*\n\Z",
    ],
    "choice_rules.py --sets --npz views.npz --models sum mkfda --most 90 --repetitions 2 --output out": [
        r"^views +(\d\.\d{3} +){13}\d\.\d{3}$",
        r"^paired error +[01]\.\d+ ",
        r"^two errors ×2 +[01]\.\d+ ",
    ],
    "alignments.py --samples 120 --output out": [r"^unit norm, centered +-?0\.\d+ ", "over 91 pairs: "],
    # T is convex, and no point of the grid is below the optimum of GMKL.
    "two_weights.py --points 5 --output out": [
        r"T = \d\S+, (\d\.\de[+-]\d\d|-\d\.\de-0[6-9]) above$",
        r"by (0\.0e\+00|\d\.\de-(0[6-9]|1\d)) of itself",
    ],
    "training_sizes.py kernels.zarr --sizes 10 --runs 2 --output out": [r"^SS-MKL +\d+\.\d$", r"^UMK +\d+\.\d$"],
    "brain_scans.py --repetitions 2 --output out": [r"^ *NCuts +[6-9]\d\.\d+ ", r"of 28 kernels on average$"],
    "ncuts_figures.py --panels b c --pairs 1 --draws 1 --output out": [r"^ *patterns +12 +\d", r"^ *all +30 +\d"],
    "large_build.py -n 2 -m 300 -d 5 --cluster threads": ["floor / measured"],
    "ncuts.py views.npz --noise 0 2 --models ncuts 'uniform Fisher' --output out": ["weight of noise"],
    "noise_kernels.py views.npz --noise 0 2 --ps 1 2 --lams 0.01 --output out": ["learnt"],
    "stability.py views.npz --ps 1 --resamples 4 --loop 2 --output out": [
        "Stability of MKFDA: 4 half-samples, 2 kernels"
    ],
    "variance_components.py --samples 300 --kernels 2 --output out --traces probes --no-tests": [
        r"passes\. ",
        "peak memory",
    ],
    "simulate_scale.py --plan --kernels 500 --samples 50000 --columns 8": ["tasks 3,501, of which 3,000 read kernels"],
    # Each of four nodes reads 384 columns of 4,000 samples, in double precision.
    "simulate_scale.py --kernels 5 --samples 4000 --tile 256 --nodes 4 --cores 1 --seconds 0.2": [
        r"^vectors that all nodes read from disk +0\.049 GB$"
    ],
    "compare_models.py views.npz --models gsmkl 'gsmkl, across' --groups 1,2 --steps multiplicative --output o": [
        r"^ *gsmkl, across +(0\.[4-9]|1\.0)\d+ .* n_groups = "
    ],
    "rules.py kernels.zarr --train 15 --validation 10 --splits 3 --lam 1e-2 --groups groups.npz": [
        r"(^0\.01 .* ± \d\.\d\d\n){4}"
    ],
    # With equal weights every half of the samples selects the narrow kernel of noise.
    "flat_spectra.py views.npz --seeds 1 --ps 1 --lams 0.01 --output .": [
        r"^ *0\.01 +equal +1 .*\n.* dimension .*\n.* null ",
        "views.npz: test accuracy",
    ],
    "single_cell.py --cells 150 --output out": [r"(\$ dmkl[^$]*){4}", "obsp/neighborhood-precomputed"],
    "relationship_matrices.py --families 40 --output out": [r"(\$ dmkl[^$]*){4}"],
    "variance_components.py --families 30 --output out": [r"(\$ dmkl[^$]*){4}", "on the boundary"],
    "genetic_correlations.py --samples 80 --markers 40 --repetitions 2 --output out": [
        r"^correlation +total +0\.\d+ ",
        "80 individuals, 2 repetitions",
    ],
    "many_targets.py --samples 200 --targets 40 --candidates 8 --noise 0.3 --output out": [
        r"(\$ dmkl[^$]*){2}",
        "of 40 targets above 0",
        r"true one for ([7-9]\d|100) % of the targets",
    ],
    "ridge.py --targets 30 --samples 80 --kernels 3 --candidates 4 --output out": [r"^dmkl .* 4 candidates$"],
    "thin_kernels.py --samples 600 --features 5": [r"360 fits \(\d+ certified", ", factors\n", r"new samples 0\.[4-9]"],
    "gene_sets.py --cells 400 --resamples 4 --output out": [r"(\$ \S+ -m dmkl [^$]*){5}"],
    "neuroimaging.py --subjects 120 --permutations 19 --output out": [r"(\$ dmkl[^$]*){5}", r"p = 0\.05"],
    "digits.py --samples 150 --resamples 4 --output out": ["Stability of MKFDA: 4 half-samples, 12 kernels"],
    "calibration.py --sets iris --models MKLogistic MKFDA --ps 2 --output out": [
        r"^iris 150 +MKLogistic +0\.\d+ ",
        r"^ +MKFDA +0\.\d+ ",
    ],
    "matlab_views.py --samples 210 --output out": [r"(\$ dmkl[^$]*){4}", r"[7-9]\d\.\d %"],
}
"""What a small run of each job prints, as patterns by its command line."""


@pytest.mark.slow
@pytest.mark.parametrize("command", PRINTED)
def test_what_jobs_print(command, views, run_job, tmp_path):
    shutil.copytree(views, tmp_path, dirs_exist_ok=True)
    printed = run_job(*shlex.split(command), cwd=tmp_path)
    for pattern in PRINTED[command]:
        assert re.search(pattern, printed, re.MULTILINE), printed


@pytest.mark.slow
def test_each_split_has_bandwidths_of_its_own_training_rows(views, run_job, tmp_path):
    options = ["--function", "rbf", "--models", "ncuts", "--output", tmp_path]
    run_job("compare_models.py", views / "views.npz", *options, cwd=tmp_path)
    with np.load(views / "views.npz") as data:
        one = data["one"].astype(np.float64)
    sets = [dmkl.open(path) for path in sorted(tmp_path.glob("kernels-*.zarr"))]
    assert len(sets) == 2
    for K in sets:
        train = K.split(0).train
        view = (one - one[train].mean(axis=0)) / one[train].std(axis=0)
        distances = ((view[:, None] - view[None]) ** 2).sum(axis=2)
        mean = distances[np.ix_(train, train)].sum() / (len(train) * (len(train) - 1))
        np.testing.assert_allclose(np.asarray(K)[0], np.exp(-distances / mean), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_survival_without_scikit_survival_names_the_way_out(run_job, tmp_path):
    (tmp_path / "sksurv.py").write_text("raise ImportError", encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    assert "pip install scikit-survival" in run_job("survival.py", cwd=tmp_path, status=1, PYTHONPATH=path)


def test_jobs_use_public_names_alone():
    private = {"simulate_scale.py"}  # it uses the division of passes into tasks, which is not public
    for job in {*JOBS.glob("*.py")} - {JOBS / name for name in private}:
        text = job.read_text(encoding="utf-8")
        assert not re.findall(r"^\s*(?:from|import) dmkl\.(?!errors)\S+.*$", text, re.MULTILINE), job
