"""Two experiments of the papers, at small sizes, tested by paired differences on the same draws."""

import numpy as np
import pytest
import xarray as xr
from scipy import stats


def surely_positive(values):
    """Whether the mean of independent values is positive, by a one-sided t-test."""
    return stats.ttest_1samp(values, 0, alternative="greater").pvalue < 0.01


def surely_larger(first, second):
    """Whether the mean of `first` is above that of `second`, by Welch's t-test on independent draws."""
    return stats.ttest_ind(first, second, equal_var=False, alternative="greater").pvalue < 0.01


@pytest.mark.slow
def test_the_first_norm_drops_kernels_and_the_second_gains_from_weak_ones(run_job, tmp_path):
    """With few kernels both norms have similar errors; with many ℓ2 has a lower error, for fixed and chosen λ."""
    options = ["--kernels", 1, 5, 30, "--repetitions", 16, "--lams", 0.03, 0.1, "--output", tmp_path]
    run_job("simulation.py", *options, cwd=tmp_path)
    result = xr.load_dataset(tmp_path / "simulation.nc", engine="scipy")
    ahead = result["error"].sel(p=1) - result["error"].sel(p=2)
    np.testing.assert_array_equal(ahead.sel(kernels=1, lam=["0.03", "0.1"]), 0)
    assert abs(float(ahead.sel(lam="0.03", kernels=5).mean())) < 0.02
    for lam in result["lam"].values:
        few, many = ahead.sel(lam=lam, kernels=5).values, ahead.sel(lam=lam, kernels=30).values
        assert surely_positive(many)
        assert surely_larger(many, few)
    error = result["error"].sel(lam="chosen")
    assert (abs(error.sel(kernels=1).mean("repetition") - 0.43) < 0.05).all()  # the error in the paper
    for p in result["p"].values:
        assert surely_larger(error.sel(p=p, kernels=5).values, error.sel(p=p, kernels=30).values)
    weighted = result["weighted"].sel(lam="0.03").mean("repetition")
    assert weighted.sel(kernels=5).min() > 4.5
    assert float(weighted.sel(kernels=30, p=1)) < 25
    assert float(weighted.sel(kernels=30, p=2)) == 30


@pytest.mark.slow
def test_sparse_weights_bear_noise(run_job, tmp_path):
    """Thirty kernels of noise reduce the accuracy of the uniform sum, and hardly that of ℓ1 weights and NCuts."""
    options = ["--samples", 400, "--noise", 0, 30, "--ps", 1, "inf", "--lams", 1e-2, "--costs", 10]
    run_job("noise_kernels.py", "digits", *options, "--output", tmp_path, cwd=tmp_path)
    result = xr.load_dataset(tmp_path / "noise_kernels.nc", engine="scipy")
    lost = result["test"].sel(noise=0) - result["test"].sel(noise=30)
    for model in ("p = 1", "NCuts"):
        assert abs(float(lost.sel(model=model).mean())) < 0.02
        more = (lost.sel(model="p = inf") - lost.sel(model=model)).values
        # Random splits overlap: the variance of their mean is (1/J + test/train) times their variance (Nadeau, Bengio:
        # Inference for the generalization error, Machine Learning 52, 2003).
        t = more.mean() / (more.std(ddof=1) * np.sqrt(1 / len(more) + 100 / 200))
        assert stats.t.sf(t, len(more) - 1) < 0.05
