"""Variance components against dense algebra, scikit-learn's Gaussian process, and simulation."""

from functools import cache

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import xarray as xr
from helpers.references import in_memory, psd
from helpers.variance import check_maximum, log_likelihood, reml
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.metrics.pairwise import rbf_kernel

import dmkl
from dmkl.cli.main import main
from dmkl.errors import DegenerateKernelError, InputError, MemoryBudgetError
from dmkl.solvers import in_memory as memory


@cache
def made(seed):
    """1 to 6 kernels of mean diagonal one, a target whose components are zero in two cases of five, and covariates."""
    rng = np.random.default_rng(seed)
    n, m = 1 + seed % 6, int(rng.integers(60, 120))
    kernels = psd(n, m, seed, rank=int(1.5 * m))
    kernels /= np.trace(kernels, axis1=1, axis2=2)[:, None, None] / m
    variances = rng.uniform(0.3, 2.0, n) * (rng.random(n) < 0.6)
    y = 3.0 + rng.standard_normal(m)
    for variance, kernel in zip(variances, kernels, strict=True):
        y += np.sqrt(variance) * np.linalg.cholesky(kernel) @ rng.standard_normal(m)
    Z = rng.standard_normal((m, 2)) if seed % 2 else np.zeros((m, 0))
    return kernels, y + Z @ [1.0, -2.0][: Z.shape[1]], Z


def steps_of(Z):
    return (dmkl.residualize(Z),) if Z.shape[1] else ("center",)


def design(Z):
    return np.column_stack([np.ones(len(Z)), Z])


@cache
def known_maximum(seed):
    kernels, y, Z = made(seed)
    return reml(kernels, y, design(Z))


@pytest.mark.parametrize("seed", [*range(10), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(10, 20))])
def test_the_maximum_is_that_of_dense_algebra(seed):
    kernels, y, Z = made(seed)
    model = dmkl.VarianceComponents(steps=steps_of(Z)).fit(in_memory(kernels, 25), y)
    known = known_maximum(seed)
    check_maximum(model, known)
    assert ("On the boundary, zero: 'kernel_" in model.status_) == bool(np.isnan(known.errors[:-1]).any())
    np.testing.assert_allclose(model.weights_, known.variances[:-1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seed", [1, 4])
def test_haseman_elston_is_dense_regression(seed):
    kernels, y, Z = made(seed)
    X, n = design(Z), len(kernels)
    M = np.eye(len(y)) - X @ np.linalg.pinv(X)
    matrices = [M @ kernel @ M for kernel in [*kernels, np.eye(len(y))]]
    columns = np.stack([matrix.ravel() for matrix in matrices], axis=1)
    known = np.linalg.lstsq(columns, np.outer(M @ y, M @ y).ravel())[0]
    model = dmkl.VarianceComponents("he", steps=steps_of(Z)).fit(in_memory(kernels, 25), y)
    estimates = model.components_.variance.values[: n + 1]
    np.testing.assert_allclose(estimates, known, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(model.weights_, np.maximum(estimates[:n], 0.0))
    # The standard errors are those of quadratic forms of normal y.
    V = np.tensordot(model.weights_.values, kernels, 1) + max(known[-1], 1e-6) * np.eye(len(y))
    forms = np.array([[2 * np.trace(a @ V @ b @ V) for b in matrices] for a in matrices])
    inverse = np.linalg.inv(columns.T @ columns)
    errors = np.sqrt(np.diagonal(inverse @ forms @ inverse))
    np.testing.assert_allclose(model.components_.variance_se[: n + 1], errors, rtol=1e-4)


def test_shares_have_the_errors_of_the_delta_method():
    kernels, y, Z = made(14)
    kernels = kernels * np.array([1.0, 2.0, 0.5])[:, None, None]
    for shares, units in (("variance", np.ones(4)), ("diagonal", np.array([1.0, 2.0, 0.5, 1.0]))):
        model = dmkl.VarianceComponents(steps=steps_of(Z), shares=shares).fit(in_memory(kernels, 25), y)
        table = model.components_
        variances, covariance = table.variance.values[:4], np.nan_to_num(table.covariance.values[:4, :4])

        def share_of(v, units=units):
            scaled = units * v
            return np.append(scaled, scaled[:3].sum()) / scaled.sum()

        slopes = np.stack(
            [(share_of(variances + h) - share_of(variances - h)) / 2e-6 for h in 1e-6 * np.eye(4)], axis=1
        )
        np.testing.assert_allclose(table.variance_share, share_of(variances))
        errors = np.sqrt(np.diagonal(slopes @ covariance @ slopes.T))
        is_free = table.boundary.values == 0
        np.testing.assert_allclose(table.variance_share_se[is_free], errors[is_free], rtol=1e-5)
        assert np.isnan(table.variance_share_se[~is_free]).all()


def test_p_values_are_those_of_likelihood_ratios_at_the_boundary():
    kernels, y, Z = made(8)
    X = design(Z)
    model = dmkl.VarianceComponents(steps=steps_of(Z)).fit(in_memory(kernels, 25), y)
    table = model.components_
    full = reml(kernels, y, X).log_likelihood
    for j in range(3):
        without = reml(np.delete(kernels, j, axis=0), y, X).log_likelihood
        assert float(table.likelihood_ratio[j]) == pytest.approx(2 * (full - without), abs=1e-7)
        expected = 0.5 * scipy.stats.chi2.sf(2 * (full - without), 1) if table.boundary[j] == 0 else 1.0
        assert float(table.p_value[j]) == pytest.approx(expected, abs=1e-7)
    residual = y - X @ np.linalg.lstsq(X, y)[0]
    scale = residual @ residual / (len(y) - X.shape[1])
    null = log_likelihood(np.array([0, 0, 0, scale]), kernels, y, X)
    assert float(table.likelihood_ratio[-1]) == pytest.approx(2 * (full - null))
    sizes = np.array([3, 3, 1]) / 8
    assert float(table.p_value[-1]) == pytest.approx(sizes @ scipy.stats.chi2.sf(2 * (full - null), [1, 2, 3]))
    assert np.isnan(table.p_value.sel(term="residual"))


@pytest.mark.slow
def test_probes_come_as_near_as_they_say(monkeypatch):
    monkeypatch.setattr(memory, "_SMALL_BYTES", 0)  # kernels that do not fit in memory
    kernels, y, Z = made(16)
    K = in_memory(kernels, 25)
    exact = dmkl.VarianceComponents(steps=steps_of(Z)).fit(K, y)
    model = dmkl.VarianceComponents(steps=steps_of(Z), traces="probes", n_probes=400).fit(K, y)
    table, free = model.components_, exact.components_.boundary.values == 0
    np.testing.assert_array_equal(table.boundary, exact.components_.boundary)
    distance = np.abs(table.variance - exact.components_.variance).values[free]
    error = table.variance_probe_se.values[free]
    assert (error > 0).all()
    assert (distance < 4 * error).all()
    assert (error < table.variance_se.values[free]).all()
    assert abs(model.objective_ - exact.objective_) < 4 * float(table.log_likelihood_error)
    assert np.isfinite(table.p_value.values[:-2]).all()


@pytest.mark.parametrize("exact", [True, False])
def test_predictions_are_the_best_linear_unbiased_ones(exact, monkeypatch):
    """Standard deviations are by a factor of the covariance, or by conjugate gradients for a few rows at a time."""
    kernels, y, Z = made(3)
    K, X, m = in_memory(kernels, 25), design(Z), len(y)
    train, test = np.arange(80), np.arange(80, m)
    model = dmkl.VarianceComponents(steps=steps_of(Z)).fit(K[train, train], y[train])
    monkeypatch.setattr("dmkl.learners.variance._fits", lambda _: exact)
    monkeypatch.setattr("dmkl.solvers.variance._ROWS", 7)
    variances = model.components_.variance.values[:-1]
    V = np.tensordot(variances[:-1], kernels, 1) + variances[-1] * np.eye(m)
    inverse, cross = np.linalg.inv(V[np.ix_(train, train)]), V[np.ix_(test, train)]
    covariance = np.linalg.inv(X[train].T @ inverse @ X[train])
    effects = covariance @ X[train].T @ inverse @ y[train]
    dual = inverse @ (y[train] - X[train] @ effects)
    whole = np.arange(m)[::-1]  # of which predict finds the training samples by name
    training = K[train, train] if exact else K[whole, whole]
    predicted, deviation = model.predict(K[test, train], return_std=True, training=training)
    np.testing.assert_allclose(predicted, X[test] @ effects + cross @ dual, rtol=1e-8, atol=1e-8)
    gap = X[test].T - X[train].T @ inverse @ cross.T
    error = np.diagonal(V)[test] - np.sum(cross * (cross @ inverse), axis=1) + np.sum(gap * (covariance @ gap), axis=0)
    np.testing.assert_allclose(deviation**2, error, rtol=1e-8 if exact else 1e-6)
    P = inverse - inverse @ X[train] @ covariance @ X[train].T @ inverse
    genetic = np.diagonal(np.tensordot(variances[:-1], kernels, 1))[test]
    reliability = np.sum(cross @ P * cross, axis=1) / genetic
    np.testing.assert_allclose(deviation.reliability, reliability, rtol=1e-7 if exact else 1e-5)
    assert (0 < reliability).all()
    assert (reliability < 1).all()
    u = variances[:-1, None] * (kernels[:, 80:, :80] @ dual)
    contributions = model.contributions(K[test, train])
    np.testing.assert_allclose(contributions, u.T, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(contributions.intercept.values.ravel(), X[test] @ effects, rtol=1e-8)
    moved = model.predict(K[test, train], covariates=Z[test] + [1.0, 0.0])
    np.testing.assert_allclose(moved - predicted, effects[1], rtol=1e-8)
    with pytest.raises(InputError, match=r"return_std needs kernels of the rows .* or features of the rows"):
        model.predict(K[test, train], return_std=True)


def test_estimates_are_written_as_gcta_writes_them(tmp_path):
    kernels, y, Z = made(3)
    model = dmkl.VarianceComponents(steps=steps_of(Z)).fit(dmkl.create(tmp_path / "set.zarr", kernels), y)
    model.save(tmp_path / "model")
    assert main(["export", str(tmp_path / "model"), str(tmp_path / "set.zarr"), str(tmp_path / "x.hsq")]) == 0
    text = (tmp_path / "x.hsq").read_text()
    assert text.startswith("Source\tVariance\tSE\nV(G1)\t")
    assert "\nlogL\t" in text
    assert "\t\n" not in text.partition("logL")[2]
    table = pd.read_csv(tmp_path / "x.hsq", sep="\t", index_col="Source", names=["Source", "Variance", "SE"], header=0)
    known, X = known_maximum(3), design(Z)
    titles = [f"V(G{j})" for j in range(1, len(kernels) + 1)]
    units = np.append(model.components_.share_unit.values[:-2], 1.0)
    np.testing.assert_allclose(table.Variance[[*titles, "V(e)"]], units * known.variances, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(table.SE[[*titles, "V(e)"]], units * known.errors, rtol=1e-3, atol=1e-4)
    shares = [f"{title}/Vp" for title in titles]
    np.testing.assert_allclose(
        table.Variance[shares], (units * known.variances / (units @ known.variances))[:-1], rtol=1e-4
    )
    assert table.Variance["Vp"] == pytest.approx(units @ known.variances, rel=1e-4)
    residual = y - X @ np.linalg.lstsq(X, y)[0]
    alone = np.append(np.zeros(len(kernels)), residual @ residual / (len(y) - X.shape[1]))
    assert table.Variance["logL"] == pytest.approx(known.log_likelihood, abs=1e-4)
    assert table.Variance["logL0"] == pytest.approx(log_likelihood(alone, kernels, y, X), abs=1e-4)
    assert table.Variance[["df", "n"]].tolist() == [len(kernels), len(y)]
    several = dmkl.VarianceComponents(method="he").fit(in_memory(kernels, 25), np.column_stack([y, -y]))
    with pytest.raises(InputError, match="several targets; name one of 0, 1, got None"):
        several.hsq_table()
    assert several.hsq_table("1").set_index("Source").Variance["n"] == len(y)


def test_negative_estimates_have_no_prediction_error():
    # Pairs with equal targets and half of the kernel norms: the regression gives σ_e² = −σ²/2.
    y = np.repeat(np.random.default_rng(0).normal(size=20), 2)
    K = in_memory(0.5 * (np.eye(40) + np.kron(np.eye(20), np.ones((2, 2))))[None], 10)
    model = dmkl.VarianceComponents(method="he", steps=()).fit(K, y)
    with pytest.raises(InputError, match="positive residual variance, found -"):
        model.predict(K, return_std=True, training=K)


def test_one_kernel_is_the_gaussian_process_of_scikit_learn():
    rng = np.random.default_rng(0)
    x = rng.uniform(-3, 3, (80, 1))
    y = np.sin(2 * x[:, 0]) + 0.3 * rng.standard_normal(80)
    kernels = rbf_kernel(x, gamma=0.5)[None]
    K = in_memory(kernels, 30)
    model = dmkl.VarianceComponents(steps=(), tests=False).fit(K[:60, :60], y[:60])
    form = ConstantKernel(1.0) * RBF(1.0, length_scale_bounds="fixed") + WhiteKernel(0.1)
    known = GaussianProcessRegressor(form, n_restarts_optimizer=3, random_state=0).fit(x[:60], y[:60])
    assert float(model.weights_[0]) == pytest.approx(known.kernel_.k1.k1.constant_value, rel=1e-3)
    residual = float(model.components_.variance.sel(term="residual"))
    assert residual == pytest.approx(known.kernel_.k2.noise_level, rel=1e-3)
    assert model.objective_ == pytest.approx(known.log_marginal_likelihood_value_, abs=1e-6)
    predictions = model.predict(K[60:, :60], return_std=True, training=K[:60, :60])
    for ours, theirs in zip(predictions, known.predict(x[60:], return_std=True), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=2e-3)


def test_each_target_has_its_own_rows():
    kernels, y, Z = made(9)
    m = len(y)
    targets = np.column_stack([y, -2 * y, y])
    targets[:30, 1] = np.nan
    K, steps = in_memory(kernels, 25), steps_of(Z)
    model = dmkl.VarianceComponents(steps=steps).fit(K, targets)
    assert model.components_.variance.dims == ("term", "target")
    rows = np.arange(30, m)
    alone = [
        dmkl.VarianceComponents(steps=steps).fit(K, y),
        dmkl.VarianceComponents(steps=steps).fit(K[rows, rows], -2 * y[rows]),
    ]
    for k, single in ((0, alone[0]), (1, alone[1]), (2, alone[0])):
        xr.testing.assert_allclose(
            model.components_.isel(target=k, drop=True), single.components_, rtol=1e-4, atol=1e-6
        )
        xr.testing.assert_allclose(model.fixed_effects_.isel(target=k, drop=True), single.fixed_effects_, rtol=1e-6)
    predictions = model.predict(K, return_std=True, training=K)
    expected = alone[1].predict(K[:, rows], return_std=True, training=K[rows, rows])
    for ours, theirs in zip(predictions, expected, strict=True):
        np.testing.assert_allclose(ours[:, 1], theirs, rtol=1e-4, atol=1e-6)


def test_categories_are_differences_from_the_first_level():
    kernels, y, _ = made(2)
    table = pd.DataFrame({"age": np.linspace(20, 60, len(y)), "site": np.resize(["a", "b", "c"], len(y))})
    model = dmkl.VarianceComponents(steps=(dmkl.residualize(table),)).fit(in_memory(kernels, 25), y)
    X = np.column_stack([np.ones(len(y)), table.age, table.site == "b", table.site == "c"]).astype(float)
    assert model.fixed_effects_.covariate.values.tolist() == ["intercept", "age", "site=b", "site=c"]
    check_maximum(model, reml(kernels, y, X))


def test_binary_traits_have_shares_on_the_liability_scale():
    kernels, y, _ = made(6)
    ill = (y > np.quantile(y, 0.7)).astype(float)
    model = dmkl.VarianceComponents(prevalence=0.1).fit(in_memory(kernels, 25), ill)
    table, cases = model.components_, ill.mean()
    density = scipy.stats.norm.pdf(scipy.stats.norm.ppf(0.9))
    factor = 0.1**2 * 0.9**2 / (density**2 * cases * (1 - cases))
    np.testing.assert_allclose(table.liability_share[[0, 2]], factor * table.variance_share[[0, 2]])
    assert np.isnan(table.liability_share[1])
    unknown = dmkl.VarianceComponents().fit(in_memory(kernels, 25), ill).components_
    density = scipy.stats.norm.pdf(scipy.stats.norm.isf(cases))
    factor = cases * (1 - cases) / density**2
    np.testing.assert_allclose(unknown.liability_share[0], factor * unknown.variance_share[0])
    several = dmkl.VarianceComponents().fit(in_memory(kernels, 25), np.stack([ill, y], axis=1))
    shares = several.components_.liability_share
    np.testing.assert_allclose(shares.isel(target=0), unknown.liability_share, rtol=1e-6)
    assert np.isnan(shares.isel(target=1)).all()
    tables = [several.hsq_table(name).Source.str.endswith("_L") for name in ("0", "1")]
    assert [rows.any() for rows in tables] == [True, False]
    with pytest.raises(InputError, match="prevalence is for traits of two values"):
        dmkl.VarianceComponents(prevalence=0.1).fit(in_memory(kernels, 25), y)


def test_without_variance_of_kernels_the_fixed_effects_predict():
    kernels, _, _ = made(2)
    # The target has no component along the largest eigenvectors, so that every kernel has a variance of zero.
    _, vectors = np.linalg.eigh(kernels.sum(axis=0))
    y = 3 + vectors[:, :20] @ np.ones(20)
    K = in_memory(kernels, 25)
    model = dmkl.VarianceComponents().fit(K, y)
    assert not model.weights_.any()
    assert float(model.components_.p_value.sel(term="total")) == 1
    predicted, deviation = model.predict(K, return_std=True, training=K)
    np.testing.assert_allclose(predicted, y.mean())
    np.testing.assert_allclose(deviation, np.std(y, ddof=1) * np.sqrt(1 + 1 / len(y)))
    assert not model.contributions(K).any()


# --- refusals --------------------------------------------------------------------------------------------------------
def refused(error, match, kernels, y, **options):
    with pytest.raises(error, match=match):
        dmkl.VarianceComponents(**options).fit(in_memory(np.asarray(kernels), 25), y)


def test_what_has_no_answer_is_refused():
    kernels, y, _ = made(8)
    m = len(y)
    ones = np.ones((m, m))
    refused(InputError, "'kernel_0' and 'kernel_3' cannot be distinguished, .* merge", [*kernels, 2 * kernels[0]], y)
    refused(InputError, r"'kernel_3' and the residual \(the identity\) cannot be", [*kernels, np.eye(m)], y)
    refused(DegenerateKernelError, r"no variance of a kernel can be estimated \(2, 'kernel_0' first\)", [ones, ones], y)
    many = np.random.default_rng(0).standard_normal((m, m))
    refused(
        InputError, f"{m + 1} fixed effects of {m} samples, expected fewer", kernels, y, steps=(dmkl.residualize(many),)
    )
    collinear = pd.DataFrame({"age": many[:, 0], "months": 12 * many[:, 0], "size": many[:, 1]})
    message = "fixed effects 'age', 'months' are linearly dependent"
    refused(InputError, message, kernels, y, steps=(dmkl.residualize(collinear),))
    refused(InputError, "may have fixed effects once", kernels, y, steps=("center", dmkl.residualize(many[:, :2])))
    refused(InputError, "prevalence is the share of cases", kernels, y, prevalence=1.5)
    refused(InputError, r"y differs from its fixed effects \(intercept\) by rounding only", kernels, 1e15 + y)
    age = dmkl.residualize(pd.DataFrame({"age": y}))
    refused(InputError, "covariate that is computed from y", kernels, 2 * y + 1, steps=(age,))


@pytest.mark.parametrize("method", ["reml", "he"])
def test_a_mean_much_larger_than_the_spread_changes_nothing(method):
    kernels, y, _ = made(8)
    model, moved = (
        dmkl.VarianceComponents(method=method).fit(in_memory(kernels, 25), target) for target in (y, 1e6 + 1e-3 * y)
    )
    np.testing.assert_allclose(moved.weights_, 1e-6 * model.weights_, rtol=1e-4, atol=1e-12)
    assert moved.intercept_.item() == pytest.approx(1e6 + 1e-3 * model.intercept_.item(), rel=1e-9)


def test_a_factor_that_does_not_fit_is_refused_and_not_taken_by_default(monkeypatch):
    kernels, y, _ = made(2)
    K = in_memory(kernels, 25)
    monkeypatch.setattr("dmkl.learners.variance._factor_bytes", lambda _: 2**60)
    monkeypatch.setattr(memory, "_SMALL_BYTES", 0)
    with pytest.raises(MemoryBudgetError, match=r"traces='exact' holds .* take traces='probes'"):
        dmkl.VarianceComponents(traces="exact").fit(K, y)
    model = dmkl.VarianceComponents(n_probes=10).fit(K, y)
    assert float(model.components_.variance_probe_se.max()) > 0


def test_shares_do_not_depend_on_the_scales_of_kernels():
    kernels, y, _ = made(4)
    scales = 10.0 ** np.arange(-2, 3)[: len(kernels)]
    plain, scaled = (
        dmkl.VarianceComponents(tests=False).fit(in_memory(factors[:, None, None] * kernels, 25), y).components_
        for factors in (np.ones(len(kernels)), scales)
    )
    np.testing.assert_allclose(scaled.variance_share, plain.variance_share, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(scaled.share_unit[:-1], np.append(scales, 1), rtol=1e-6)
    assert (plain.share_unit[:-1] == 1).all()


@pytest.mark.slow
def test_intervals_cover_what_was_simulated():
    """± 1.96 standard errors cover the true variances in 95 of 100 sets, within the accuracy of 200 sets."""
    rng = np.random.default_rng(0)
    m, truth = 300, np.array([0.4, 0.3, 0.3])
    W = rng.standard_normal((2, m, 100))
    kernels = W @ W.transpose(0, 2, 1) / 100
    roots = [W[0] / 10, W[1] / 10, np.eye(m)]
    targets = np.stack(
        [
            sum(np.sqrt(v) * root @ rng.standard_normal(root.shape[1]) for v, root in zip(truth, roots, strict=True))
            for _ in range(200)
        ],
        axis=1,
    )
    table = dmkl.VarianceComponents(tests=False).fit(in_memory(kernels, 150), targets).components_
    assert (table.boundary == 0).all()
    covered = np.abs(table.variance[:3] - truth[:, None]) <= 1.96 * table.variance_se[:3]
    shares = np.abs(table.variance_share[:3] - truth[:, None]) <= 1.96 * table.variance_share_se[:3]
    # Of 200 trials with probability 0.95, 181 to 198 succeed in 99.7 of 100 cases.
    for inside in (covered, shares):
        assert (inside.sum("target") >= 181).all()
        assert (inside.sum("target") <= 198).all()
    np.testing.assert_allclose(table.variance[:3].mean("target"), truth, atol=0.02)
