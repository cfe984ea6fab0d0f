"""Two experiments of the papers, at small sizes, tested by paired differences on the same draws."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from scipy import stats

JOBS = Path(__file__).parents[2] / "pipelines"


def run(job, *arguments, output):
    """Run a job; return its output and its data set, and check that its picture exists."""
    command = [sys.executable, str(JOBS / job), *map(str, arguments), "--output", str(output)]
    done = subprocess.run(command, cwd=output, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    stem = Path(job).stem
    assert (output / f"{stem}.png").read_bytes()[:4] == b"\x89PNG"
    return done.stdout, xr.load_dataset(output / f"{stem}.nc", engine="scipy")


def surely_positive(values, level=0.01):
    """Whether the mean of independent values is positive, by a one-sided t-test."""
    return stats.ttest_1samp(values, 0, alternative="greater").pvalue < level


def surely_larger(first, second, level=0.01):
    """Whether the mean of `first` is above that of `second`, by Welch's t-test on independent draws."""
    return stats.ttest_ind(first, second, equal_var=False, alternative="greater").pvalue < level


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    options = ["--kernels", 1, 5, 30, "--repetitions", 16, "--lams", 0.03, 0.1]
    return run("simulation.py", *options, output=tmp_path_factory.mktemp("simulation"))


@pytest.mark.slow
def test_more_kernels_favor_the_second_norm(simulated):
    """With few kernels both norms have similar errors; with many ℓ2 has a lower error, for fixed and chosen λ."""
    _, result = simulated
    ahead = result["error"].sel(p=1) - result["error"].sel(p=2)
    assert abs(float(ahead.sel(lam="0.03", kernels=5).mean())) < 0.02
    for lam in result["lam"].values:
        few, many = ahead.sel(lam=lam, kernels=5).values, ahead.sel(lam=lam, kernels=30).values
        assert surely_positive(many)
        assert surely_larger(many, few)


@pytest.mark.slow
def test_many_weak_kernels_are_strong(simulated):
    """The error of one kernel is that of the paper; the errors of both norms decrease with the number of kernels."""
    _, result = simulated
    error = result["error"].sel(lam="chosen")
    assert (abs(error.sel(kernels=1).mean("repetition") - 0.43) < 0.05).all()
    for p in result["p"].values:
        assert surely_larger(error.sel(p=p, kernels=5).values, error.sel(p=p, kernels=30).values)


@pytest.mark.slow
def test_the_first_norm_drops_kernels(simulated):
    """Five kernels all have nonzero weights under both norms; thirty kernels only under ℓ2."""
    _, result = simulated
    weighted = result["weighted"].sel(lam="0.03").mean("repetition")
    assert weighted.sel(kernels=5).min() > 4.5
    assert float(weighted.sel(kernels=30, p=1)) < 25
    assert float(weighted.sel(kernels=30, p=2)) == 30


@pytest.mark.slow
def test_one_kernel_has_no_norm(simulated):
    """With one kernel the norms have identical results; the table shows differences of zero."""
    printed, result = simulated
    alone = result.sel(kernels=1, lam=["0.03", "0.1"])
    np.testing.assert_array_equal(alone["error"].sel(p=1), alone["error"].sel(p=2))
    assert printed.count("+0.0000 ± 0.0000") >= 2
    assert set(result.dims) == {"kernels", "repetition", "p", "lam"}


@pytest.mark.slow
def test_sparse_weights_bear_noise(tmp_path):
    """Thirty kernels of noise reduce the accuracy of the uniform sum, and hardly that of ℓ1 weights and NCuts."""
    options = ["--samples", 400, "--noise", 0, 30, "--ps", 1, "inf", "--lams", 1e-2, "--costs", 10]
    printed, result = run("noise_kernels.py", "digits", *options, output=tmp_path)
    assert "learnt" in printed
    lost = result["test"].sel(noise=0) - result["test"].sel(noise=30)
    for model in ("p = 1", "NCuts"):
        assert abs(float(lost.sel(model=model).mean())) < 0.02
        more = (lost.sel(model="p = inf") - lost.sel(model=model)).values
        # Random splits overlap: the variance of their mean is (1/J + test/train) times their variance (Nadeau, Bengio:
        # Inference for the generalization error, Machine Learning 52, 2003).
        t = more.mean() / (more.std(ddof=1) * np.sqrt(1 / len(more) + 100 / 200))
        assert stats.t.sf(t, len(more) - 1) < 0.05
