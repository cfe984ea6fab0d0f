"""Ridge regression of many targets on shared candidates of weights, which may be refined, against dense algebra."""

import dask
import numpy as np
import pandas as pd
import pytest
from helpers.references import dense_view, ridge_predictions
from scipy.optimize import approx_fprime, minimize
from sklearn.metrics import make_scorer, r2_score
from sklearn.model_selection import KFold

import dmkl
from dmkl.errors import IndefiniteKernelError, IndefiniteKernelWarning, InputError, LabelWarning, MemoryBudgetError

M, N, T = 48, 4, 7
LAMS = [1e-3, 1e-2, 0.1]
FOLDS = KFold(3)
FEATURES = np.random.default_rng(0).normal(size=(N, M, 5)) * np.array([1.0, 3.0, 0.2, 1.0])[:, None, None] + 0.5
DENSE = FEATURES @ FEATURES.transpose(0, 2, 1) + 0.1 * np.eye(M)
K = dmkl.create(None, DENSE)


def targets():
    """Sums of functions in the spaces of the kernels, to different degrees, and noise."""
    rng = np.random.default_rng(1)
    roots = np.linalg.cholesky(DENSE / np.trace(DENSE, axis1=1, axis2=2)[:, None, None])
    parts = roots @ rng.normal(size=(N, M, T)) * rng.integers(1, 5, (N, 1, T))
    return 5.0 + parts.sum(axis=0) + 0.2 * rng.normal(size=(M, T))


Y = targets()


def shared(**parameters):
    return dmkl.MKRidge(**{"weights": "shared", "n_candidates": 6, "random_state": 3} | parameters)


def reference_scores(dense, Y, steps, weights):
    """Mean R² of each target in validation, (candidate, λ, target)."""
    scores = [
        r2_score(Y[rows], ridge_predictions(dense, Y, w, lam, train, rows, steps), multioutput="raw_values")
        for train, rows in FOLDS.split(Y)
        for w in weights
        for lam in LAMS
    ]
    return np.reshape(scores, (3, len(weights), len(LAMS), -1)).mean(axis=0)


@pytest.mark.parametrize("steps", [("center", "trace"), ("center",), ("cosine", "center")])
def test_a_search_chooses_and_fits_as_dense_algebra_does(steps):
    result = dmkl.search(shared(steps=steps), K, Y, {"lam": LAMS}, FOLDS)
    assert result.parameters == ("candidate", "lam")
    weights = result.scores["weight"].isel(lam=0, fold=0).transpose("candidate", "kernel").values
    np.testing.assert_allclose(weights[0], 1 / N)
    np.testing.assert_allclose(weights.sum(axis=1), 1.0)
    scores = reference_scores(DENSE, Y, steps, weights)
    mean = result.scores["mean_score"].transpose("candidate", "lam", "target")
    np.testing.assert_allclose(mean, scores, rtol=0, atol=1e-10)
    c, k = np.unravel_index(scores.reshape(-1, T).argmax(axis=0), scores.shape[:2])
    model = result.best_
    np.testing.assert_array_equal(result.chosen["candidate"], c)
    np.testing.assert_array_equal(model.lam, np.array(LAMS)[k])
    np.testing.assert_array_equal(model.weights_, weights[c].T)
    square = dense_view(DENSE, steps=steps)
    for t in range(T):
        A = np.tensordot(weights[c[t]], square, 1) + LAMS[k[t]] * np.eye(M)
        np.testing.assert_allclose(model.dual_coef_[:, t], np.linalg.solve(A, Y[:, t] - Y[:, t].mean()), rtol=1e-8)
    assert model.gap_.max() <= 1e-8
    assert model.intercept_.values == pytest.approx(Y.mean(axis=0))


def test_candidates_are_those_of_dirichlet_distributions_in_turn():
    learner, K = shared(n_candidates=7, steps=()), dmkl.create(None, np.stack([np.eye(9)] * 5))
    fits = [learner.set_params(candidate=c, lam=1.0).fit(K, np.arange(9.0)).weights_.values for c in range(7)]
    rng = np.random.RandomState(3)
    sparse, flat = rng.dirichlet([0.1] * 5, 4), rng.dirichlet([1.0] * 5, 4)
    np.testing.assert_array_equal(fits[0], np.full(5, 0.2))
    np.testing.assert_array_equal(fits[1:], [flat[0], sparse[1], flat[1], sparse[2], flat[2], sparse[3]])


@pytest.mark.parametrize("given", ["weights of samples", "covariates"])
def test_a_fit_of_one_candidate_is_that_of_its_weights(given):
    rng = np.random.default_rng(4)
    Z = pd.DataFrame(rng.normal(size=(M, 2)), [str(i) for i in range(M)])
    steps = ("center", "trace") if given != "covariates" else (dmkl.residualize(Z), "trace")
    weights = rng.uniform(0.5, 2.0, M) if given == "weights of samples" else None
    model = shared(candidate=4, lam=0.02, steps=steps).fit(K, Y, weights)
    ordinary = dmkl.MKRidge(weights=model.weights_[:, 0].values, lam=0.02, steps=steps, solver="direct", tol=1e-12)
    ordinary.fit(K, Y, weights)
    np.testing.assert_allclose(model.dual_coef_, ordinary.dual_coef_, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(model.objective_, ordinary.objective_, rtol=1e-9)
    np.testing.assert_allclose(model.predict(K), ordinary.predict(K), rtol=1e-9)


@pytest.mark.parametrize("scoring", ["r2", ["correlation", "neg_mean_squared_error"], make_scorer(r2_score)])
def test_scores_are_those_of_predictions(scoring):
    train, rows = next(iter(FOLDS.split(Y)))
    result = dmkl.search(shared(), K, Y, {"lam": LAMS}, [(train, rows[:8], rows[8:])], scoring=scoring, refit=False)
    model = shared(candidate=2, lam=LAMS[1]).fit(K[train, train], Y[train])
    at = {"candidate": 2, "lam": 1, "fold": 0}
    for part, name in ((rows[:8], "score"), (rows[8:], "test_score")):
        expected = dmkl.assess(model, K[part, train], Y[part], scoring=scoring)["score"]
        for measure, end in zip(expected["measure"].values, ("", "_neg_mean_squared_error"), strict=False):
            np.testing.assert_allclose(result.scores[f"{name}{end}"].isel(at), expected.sel(measure=measure), rtol=1e-9)


def test_targets_are_fitted_on_their_known_values():
    unknown = Y.copy()
    unknown[:10, [2, 5]] = np.nan
    result = dmkl.search(shared(), K, unknown, {"lam": LAMS}, FOLDS)
    kept = np.arange(10, M)
    folds = [
        (np.searchsorted(kept, np.intersect1d(a, kept)), np.searchsorted(kept, np.intersect1d(b, kept)))
        for a, b in FOLDS.split(Y)
    ]
    alone = dmkl.search(shared(), K[kept, kept], Y[kept][:, [2, 5]], {"lam": LAMS}, folds)
    np.testing.assert_allclose(result.scores["score"].isel(target=[2, 5]), alone.scores["score"], rtol=1e-9)
    np.testing.assert_allclose(result.best_.weights_[:, [2, 5]], alone.best_.weights_)
    each = np.where(np.eye(M, 12, dtype=bool), np.nan, np.random.default_rng(0).normal(size=(M, 12)))
    with pytest.warns(LabelWarning, match="12 patterns of unknown values"):
        dmkl.search(shared(), K, each, {"lam": [0.1]}, FOLDS, refit=False)


@pytest.mark.parametrize("refine", [0, 200])
def test_an_evaluation_tests_rows_that_no_choice_has_seen(refine):
    learner, few = shared(refine=refine), Y[:, :4]
    evaluation = dmkl.evaluate(learner, K, few, {"lam": LAMS}, outer=KFold(2), inner=FOLDS, baselines="none")
    for f, (train, rows) in enumerate(KFold(2).split(few)):
        model = dmkl.search(learner, K[train, train], few[train], {"lam": LAMS}, FOLDS, baselines="none").best_
        np.testing.assert_allclose(list(evaluation.models_.values())[f].weights_, model.weights_, rtol=1e-6)
        scores = r2_score(few[rows], model.predict(K[rows, train]), multioutput="raw_values")
        np.testing.assert_allclose(evaluation.scores["test_score"].isel(fold=f), scores, rtol=1e-6 if refine else 1e-9)


def test_the_baseline_is_the_first_candidate_the_plain_sum():
    sums, searched = (dmkl.search(shared(n_candidates=n), K, Y, {"lam": LAMS}, FOLDS, refit=False) for n in (1, 6))
    np.testing.assert_allclose(searched.scores["sum_score"], sums.scores["score"].isel(candidate=0), rtol=1e-12)


# --- refined weights -------------------------------------------------------------------------------------------------
def mean_error(dense, y, lam):
    """1 − R², mean over the folds, as a function of the logarithms of the weights."""
    folds = [([dense_view(dense, of, a, ("center", "trace")) for of in (a, b)], y[a], y[b]) for a, b in FOLDS.split(y)]

    def error(delta):
        parts = []
        for kernels, known, truth in folds:
            square, cross = (np.tensordot(np.exp(delta), part, 1) for part in kernels)
            dual = np.linalg.solve(square + lam * np.eye(len(known)), known - known.mean())
            parts.append(np.sum((truth - known.mean() - cross @ dual) ** 2) / np.sum((truth - truth.mean()) ** 2))
        return np.mean(parts)

    return error


def test_refined_weights_are_those_of_a_minimizer_of_the_dense_error():
    found = dmkl.search(shared(n_candidates=3, refine=200), K, Y, {"lam": LAMS}, FOLDS)
    chosen, refined, scores = found.chosen, found.scores["refined_weight"], found.scores["refined_score"]
    model, square = found.best_, dense_view(DENSE, steps=("center", "trace"))
    changed = (refined != chosen["weight"].isel(fold=0)).any("kernel").values
    assert changed.sum() >= 2
    for t in range(T):
        lam, start = float(chosen["lam"][t]), chosen["weight"].isel(fold=0, target=t).values
        end = refined.isel(target=t).values
        score = float(scores.isel(target=t).mean())
        error = mean_error(DENSE, Y[:, t], lam)
        assert 1.0 - score == pytest.approx(error(np.log(end)), abs=1e-9)
        assert score >= float(chosen["mean_score"][t]) - 1e-12
        np.testing.assert_array_equal(model.weights_[:, t], end)
        total = np.tensordot(end, square, 1) + lam * np.eye(M)
        dual = np.linalg.solve(total, Y[:, t] - Y[:, t].mean())
        np.testing.assert_allclose(model.dual_coef_[:, t], dual, rtol=1e-7, atol=1e-10)
        if not changed[t]:
            continue
        # With several minima: the nearest one, and one about as good as that found from the candidate.
        start = np.log(np.maximum(start, 1e-3 * start.max()))
        box = np.c_[start - 5, start + 5]
        nearest, best = (minimize(error, at, bounds=box, tol=1e-9) for at in (np.log(end), start))
        assert 1.0 - score == pytest.approx(nearest.fun, abs=1e-6)
        assert 1.0 - score == pytest.approx(best.fun, abs=1e-3)
        inside = np.abs(np.log(end) - start) < 4.9
        assert inside.sum() >= 2
        assert np.abs(approx_fprime(np.log(end), error, 1e-6))[inside].max() < 1e-3
    assert model.gap_.max() <= 1e-8


def test_no_target_gets_worse_by_the_scorer_that_chooses():
    """Steps lower squared errors; a target whose correlation they do not raise keeps its candidate."""
    targets = np.random.default_rng(5).standard_t(3, size=(M, 12))
    result = dmkl.search(
        shared(n_candidates=3, refine=200), K, targets, {"lam": LAMS}, FOLDS, scoring="correlation", refit=False
    )
    plain = dmkl.search(shared(n_candidates=3), K, targets, {"lam": LAMS}, FOLDS, scoring="correlation", refit=False)
    assert result.best_params_ == plain.best_params_
    before, after = result.chosen["mean_score"].values, result.scores["refined_score"].mean("fold").values
    kept = (result.scores["refined_weight"] == result.chosen["weight"].isel(fold=0)).all("kernel").values
    assert 0 < kept.sum() < 12
    np.testing.assert_allclose(after[kept], before[kept], rtol=1e-9)
    assert (after[~kept] > before[~kept]).all()
    assert f"better for {12 - kept.sum()} of 12 choices" in result.summary()


@pytest.mark.parametrize("seed", [0, 1, 4])
def test_refined_weights_stay_near_the_candidate_and_noise_keeps_it(seed):
    rng = np.random.default_rng([18, seed])
    features = rng.normal(size=(6, 120, 8)).astype(np.float32)
    K = dmkl.create(None, features @ features.transpose(0, 2, 1), dtype="float32")
    noise, train, test = rng.normal(size=(120, 30)), np.arange(80), np.arange(80, 120)
    Y = np.c_[noise, features[0] @ rng.normal(size=(8, 2)) + 0.3 * noise[:, :2]]
    plain, refined = (
        dmkl.search(shared(n_candidates=4, refine=n), K[train, train], Y[train], {"lam": [1e-2, 0.1]}, KFold(3)).best_
        for n in (0, 20)
    )
    candidate = np.maximum(plain.weights_, 1e-3 * plain.weights_.max("kernel"))
    changed = (refined.weights_ != plain.weights_).any("kernel").values
    assert changed[30:].all()
    assert changed[:30].sum() <= 10
    assert (np.abs(np.log(refined.weights_ / candidate)).values[:, changed] <= 5.0 + 1e-9).all()
    before, after = (
        r2_score(Y[test], model.predict(K[test, train]), multioutput="raw_values") for model in (plain, refined)
    )
    assert (after[30:] > before[30:]).all()
    assert after[:30].mean() > before[:30].mean() - 0.01  # -0.05 if each noise target is refined


def test_weights_that_leave_a_kernel_indefinite_end_no_target():
    """The first kernel has eigenvalues of about -2e-3, so that a large weight of it is impossible at λ = 0.01."""
    rng = np.random.default_rng(0)
    features, rounding = rng.normal(size=(2, M, 5)), rng.normal(size=(M, M))
    dense = features @ features.transpose(0, 2, 1) / M
    dense[0] += 2e-3 * (rounding + rounding.T) / np.sqrt(8 * M)
    Y = np.c_[features[0] @ rng.normal(size=5), features[1] @ rng.normal(size=5) + rng.normal(size=M)]
    result = dmkl.search(
        shared(steps=(), n_candidates=2, refine=20), dmkl.create(None, dense), Y, {"lam": [0.01]}, KFold(3)
    )
    least = np.linalg.eigvalsh(np.tensordot(result.best_.weights_.values.T, dense, 1))[:, 0]
    assert (least > -0.01).all()
    assert (result.scores["refined_weight"] != result.chosen["weight"].isel(fold=0)).any("kernel").any()


def test_one_target_and_folds_that_choose_alone():
    """Each fold refines on its validation rows, and tests the model of all its training and validation rows."""
    parts = [np.split(np.roll(np.arange(M), 16 * k), [24, 36]) for k in range(2)]
    result = dmkl.search(shared(n_candidates=3, refine=200), K, Y[:, 0], {"lam": LAMS}, parts)
    for f, (train, rows, test) in enumerate(parts):
        weights = result.scores["refined_weight"].isel(fold=f).values
        lam = float(result.chosen["lam"][f])
        expected = r2_score(Y[rows, 0], ridge_predictions(DENSE, Y[:, 0], weights, lam, train, rows))
        assert float(result.scores["refined_score"][f]) == pytest.approx(expected, abs=1e-9)
        seen = np.sort(np.r_[train, rows])
        expected = r2_score(Y[test, 0], ridge_predictions(DENSE, Y[:, 0], weights, lam, seen, test))
        assert float(result.scores["refit_test_score"][f]) == pytest.approx(expected, abs=1e-8)


@pytest.mark.slow
def test_sets_larger_than_the_memory_budget(tmp_path):
    rng = np.random.default_rng(5)
    features = rng.normal(size=(40, 120, 8))
    K = dmkl.create(tmp_path / "set.zarr", features @ features.transpose(0, 2, 1), tile=32)
    Y = features[:3].mean(axis=0) @ rng.normal(size=(8, 60))
    results = [dmkl.search(shared(), K, Y, {"lam": LAMS}, FOLDS)]
    with dask.config.set({"dmkl.memory": "1.2MB"}):  # a third of the kernels
        results.append(dmkl.search(shared(), K, Y, {"lam": LAMS}, FOLDS))
    assert results[1].n_passes_ > results[0].n_passes_
    np.testing.assert_array_equal(*(r.scores["score"] for r in results))
    np.testing.assert_array_equal(*(r.best_.dual_coef_ for r in results))
    with dask.config.set({"dmkl.memory": "100kB"}), pytest.raises(MemoryBudgetError, match=r"Set dmkl\.memory higher"):
        dmkl.search(shared(), K, Y, {"lam": LAMS}, FOLDS)


@pytest.mark.parametrize("refine", [0, 20])
def test_a_search_is_saved_and_goes_on(tmp_path, refine):
    learner = shared(refine=refine)
    first = dmkl.search(learner, K, Y, {"lam": LAMS}, FOLDS, state=tmp_path / "state")
    again = dmkl.search(learner, K, Y, {"lam": LAMS}, FOLDS, state=tmp_path / "state")
    np.testing.assert_array_equal(first.scores["score"], again.scores["score"])
    assert again.n_passes_ < first.n_passes_
    with pytest.raises(InputError, match="random_state"):
        dmkl.search(shared(refine=refine, random_state=4), K, Y, {"lam": LAMS}, FOLDS, state=tmp_path / "state")
    first.save(tmp_path / "found")
    loaded = dmkl.load(tmp_path / "found")
    assert loaded.summary() == first.summary()
    assert loaded.best_.candidate == first.best_.candidate
    np.testing.assert_array_equal(loaded.best_.predict(K), first.best_.predict(K))


@pytest.mark.slow
def test_commands(tmp_path, output_of, error_of):
    store, out = tmp_path / "set.zarr", tmp_path / "found"
    names = [f"s{i}" for i in range(M)]
    splits = pd.DataFrame({"split": np.where(np.arange(M) < 36, "train", "test")}, names)
    dmkl.create(store, DENSE, samples=names, labels=pd.DataFrame(np.tile(Y, 5), names), splits=splits)
    printed = output_of(*("search", store, out, "--model", "mkridge", "--weights", "shared", "--n-candidates", 6),
                        *("--random-state", 3, "--lam", "1e-3,1e-2,0.1", "--cv", "KFold(3)", "--split", 0))  # fmt: skip
    assert "6 candidate × 3 lam, 3 folds, 35 targets" in printed
    K, train, test = dmkl.open(store), np.arange(36), np.arange(36, M)
    result = dmkl.search(shared(), K[train, train], None, {"lam": LAMS}, FOLDS)
    assert dmkl.load(out).best_params_ == result.best_params_
    page = tmp_path / "page.html"
    output_of("predict", out / "best", store, "--split", 0, "--kernel-scores", tmp_path / "r2.csv", "--report", page)
    assert "targets won" in page.read_text()
    table = pd.read_csv(tmp_path / "r2.csv").set_index(["target", "kernel"])
    parts = dmkl.kernel_scores(
        result.best_.contributions(K[test, train]), pd.DataFrame(K.labels[test], K.samples[test])
    )
    np.testing.assert_allclose(table["kernel_r2"], parts["kernel_r2"].transpose("target", "kernel").values.ravel())
    dmkl.create(tmp_path / "classes.zarr", DENSE, labels=np.arange(M) % 2, splits=(np.arange(M) > 30) * 2)
    output_of("fit", tmp_path / "classes.zarr", tmp_path / "classifier")
    refused = error_of("predict", tmp_path / "classifier", tmp_path / "classes.zarr", "--kernel-scores", "r2.csv")
    assert "MKFDA predicts no numbers" in refused


def test_what_a_search_refuses():
    with pytest.raises(InputError, match=r"target '7' has a single value, 1, .* leave it out"):
        dmkl.search(shared(), K, np.c_[Y, np.ones(M)], cv=FOLDS)
    with pytest.warns(IndefiniteKernelWarning):
        indefinite = dmkl.create(None, DENSE - 5.0 * np.eye(M))
    with pytest.raises(IndefiniteKernelError, match=r"not positive definite at λ = 0\.001"):
        dmkl.search(shared(steps=()), indefinite, Y, {"lam": LAMS}, FOLDS)
    unknown = np.where(np.arange(M * T).reshape(M, T) == 0, np.nan, Y)
    with pytest.raises(InputError, match="refine takes targets without unknown values; fill them in"):
        dmkl.search(shared(refine=5), K, unknown, {"lam": LAMS}, FOLDS)
    needed = 3 * 8 * N * 48 * 32
    with dask.config.set({"dmkl.memory": f"{needed}B"}), pytest.raises(MemoryBudgetError, match="take fewer folds"):
        dmkl.search(shared(refine=5), K, Y, {"lam": LAMS}, FOLDS)


# --- scores by kernel ------------------------------------------------------------------------------------------------
def product_measure(y, parts):
    """Himalaya's `r2_score_split` and `correlation_score_split`, for y of mean zero."""
    joint = parts.sum(axis=0)
    r2 = ((2 * y * parts - parts * joint) / (y**2).sum(axis=0)).sum(axis=1)
    deviations = parts - parts.mean(axis=1, keepdims=True)
    return r2, (y * deviations).mean(axis=1) / (y.std(axis=0) * joint.std(axis=0))


def test_scores_by_kernel_are_those_of_the_product_measure():
    train, rows = np.arange(32), np.arange(32, M)
    model = dmkl.search(shared(), K[train, train], Y[train], {"lam": LAMS}, FOLDS).best_
    contributions = model.contributions(K[rows, train])
    y = Y[rows] - Y[rows].mean(axis=0)
    without = contributions.assign_coords(intercept=("target", np.zeros(T)))
    parts = dmkl.kernel_scores(without, y)
    r2, correlation = product_measure(y, contributions.transpose("kernel", "sample", "target").values)
    np.testing.assert_allclose(parts["kernel_r2"], r2, rtol=1e-10)
    np.testing.assert_allclose(parts["kernel_correlation"], correlation, rtol=1e-10)
    np.testing.assert_allclose(parts["rest_r2"], 0.0, atol=1e-12)


def test_scores_by_kernel_sum_to_those_of_predictions():
    """Also with covariates and unknown values."""
    train, rows = np.arange(32), np.arange(32, M)
    Z = pd.DataFrame(np.random.default_rng(0).normal(size=(M, 2)), [str(i) for i in range(M)])
    model = dmkl.MKRidge(steps=(dmkl.residualize(Z), "trace"), lam=0.01).fit(K[train, train], Y[train])
    predicted, truth = model.predict(K[rows, train]).values, Y[rows].copy()
    truth[:5, 3] = np.nan
    parts = dmkl.kernel_scores(model.contributions(K[rows, train]), truth)
    for t in range(T):
        known = ~np.isnan(truth[:, t])
        of_target = parts.data.isel(target=t)
        assert float(of_target["total_r2"]) == pytest.approx(r2_score(truth[known, t], predicted[known, t]), rel=1e-10)
        r = np.corrcoef(truth[known, t], predicted[known, t])[0, 1]
        assert float(of_target["total_correlation"]) == pytest.approx(r, rel=1e-10)
    with pytest.raises(InputError, match="y has 2 targets"):
        dmkl.kernel_scores(model.contributions(K[rows, train]), truth[:, :2])
