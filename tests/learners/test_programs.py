"""EasyMKL, LP-β, weights that classes share, alignments and given weights, against cvxpy and scikit-learn."""

from itertools import combinations

import cvxpy as cp
import numpy as np
import pytest
import xarray as xr
from helpers.margin import optimum
from helpers.optima import quadratic_form
from helpers.references import dense_view
from sklearn.kernel_ridge import KernelRidge
from sklearn.model_selection import StratifiedKFold
from sklearn.svm import SVC

import dmkl
from dmkl.errors import InputError
from dmkl.solvers import in_memory
from dmkl.solvers.margin import svm

M, NAMES = 48, ("a", "b", "c", "d")
WEIGHTS = np.array([0.5, 0.0, 2.0, 1.0])
THREE = np.arange(M) % 3
SIGNS = np.where(THREE[:, None] == np.arange(3), 1.0, -1.0)
RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(4, M, 5))
FEATURES[:2] += np.array([1.2, 0.7])[:, None, None] * np.eye(5)[THREE]
FEATURES[2] = FEATURES[1] + 0.3 * RNG.normal(size=(M, 5))
KERNELS = FEATURES @ FEATURES.transpose(0, 2, 1)
"""Two kernels of features that are shifted by class, one that is similar to the second, and one of noise."""
K = dmkl.create(None, KERNELS, names=NAMES)


# --- EasyMKL -------------------------------------------------------------------------------------------------------
def nearest(kernel, positive, lam):
    """v = γ∘y and the minimum of (1 − λ) vᵀKv + λ vᵀv over γ ≥ 0 that sums to one over each class."""
    gamma, signs = cp.Variable(M, nonneg=True), np.where(positive, 1.0, -1.0)
    v = cp.multiply(signs, gamma)
    cost = (1 - lam) * quadratic_form(kernel, v) + lam * cp.sum_squares(v)
    problem = cp.Problem(cp.Minimize(cost), [cp.sum(gamma[positive]) == 1, cp.sum(gamma[~positive]) == 1])
    problem.solve(solver=cp.CLARABEL)
    return signs * gamma.value, problem.value


@pytest.mark.parametrize(
    ("lam", "fits", "steps"),
    [(0.01, True, ()), (0.1, False, ()), (0.9, True, ()), (0.1, True, ("center", "multiplicative"))],
)
def test_weights_and_classifier_are_those_of_the_two_programs(lam, fits, steps, monkeypatch):
    """A kernel that exceeds the memory of a task is read by columns, to which the ridge λI is also added.

    The published λ is for kernels with a mean diagonal of one, whatever the scale of the stored kernels.
    """
    if not fits:
        monkeypatch.setattr(in_memory, "suits", lambda *_, **__: False)
        monkeypatch.setattr(svm, "dense_bytes", lambda _: 2**60)
    scaled = 1e3 * KERNELS if steps else KERNELS
    model = dmkl.EasyMKL(lam, tol=1e-8, **({} if steps else {"steps": ()})).fit(scaled, THREE)
    dense, scores = dense_view(scaled, steps=steps), model.decision_function(scaled).values
    for k in range(3):
        first, _ = nearest(dense.sum(axis=0), THREE == k, lam)
        forms = np.einsum("a,jab,b->j", first, dense, first)
        eta = forms / np.linalg.norm(forms)
        total = np.tensordot(eta, dense, 1)
        v, value = nearest(total, THREE == k, lam)
        np.testing.assert_allclose(model.weights_[:, k], eta, atol=1e-5)
        np.testing.assert_allclose(model.dual_coef_[:, k], v, atol=1e-4)
        assert model.objective_[k] == pytest.approx(value, rel=1e-5)
        # The threshold is halfway between the nearest points of the two hulls.
        middle = 0.5 * np.abs(v) @ total @ v
        np.testing.assert_allclose(scores[:, k], total @ v - middle, atol=1e-4)
    assert float(model.gap_.max()) <= 1e-8


@pytest.mark.parametrize("steps", [(), ("center", "multiplicative")])
def test_pairs_of_classes_are_fits_on_their_samples_and_vote(steps):
    """Steps take their statistics from all training samples, as for `MKSVM`."""
    y, rows = THREE, np.arange(M)
    stepped = dense_view(KERNELS, steps=steps)
    model = dmkl.EasyMKL(0.2, multiclass="ovo", steps=steps, tol=1e-8).fit(KERNELS, y)
    assert model.weights_.dims == ("kernel", "pair")
    assert model.weights_["pair"].values.tolist() == ["0 or 1", "0 or 2", "1 or 2"]
    votes, sums = np.zeros((2, M, 3))
    for k, (a, b) in enumerate(combinations(range(3), 2)):
        of_pair = rows[(y == a) | (y == b)]
        # The second of two classes is the positive one; of a pair it is the first.
        single = dmkl.EasyMKL(0.2, steps=(), tol=1e-8).fit(stepped[:, of_pair][:, :, of_pair], y[of_pair] == a)
        np.testing.assert_allclose(model.weights_[:, k], single.weights_, atol=1e-6)
        np.testing.assert_allclose(model.dual_coef_[of_pair, k], single.dual_coef_[:, 0], atol=1e-6)
        assert not model.dual_coef_[y == 3 - a - b, k].any()
        scores = single.decision_function(stepped[:, :, of_pair]).values
        votes[:, a] += scores > 0
        votes[:, b] += scores <= 0
        sums += scores[:, None] * ((np.arange(3) == a) * 1.0 - (np.arange(3) == b))
    expected = votes + sums / (3 * (np.abs(sums) + 1))  # the sum of scores breaks ties
    np.testing.assert_allclose(model.decision_function(KERNELS), expected, atol=1e-5)
    np.testing.assert_array_equal(model.predict(KERNELS), expected.argmax(axis=1))


@pytest.mark.parametrize("grid", [None, {"lam": None}])
def test_the_default_grid_has_values_between_zero_and_one(grid):
    result = dmkl.search(dmkl.EasyMKL(), KERNELS, THREE, grid, cv=2)
    assert result.scores["lam"].values.tolist() == [0.02, 0.1, 0.3, 0.6, 0.9]
    assert dmkl.evaluate(dmkl.EasyMKL(), KERNELS, THREE, grid, outer=2, inner=2).parameters == ("lam", "steps")


# --- LP-β and LP-B -------------------------------------------------------------------------------------------------
def machine(kernel, signs, C, new):
    return SVC(C=C, kernel="precomputed", tol=1e-5).fit(kernel, signs).decision_function(new)


def out_of_sample(kernels, y, C, cv):
    """Scores of each kernel for each class against the rest, (n, m, classes); one column for two classes."""
    labels = np.unique(y)[1:] if len(np.unique(y)) == 2 else np.unique(y)
    scores = np.empty((len(kernels), M, len(labels)))
    for train, test in cv.split(y, y):
        for j, kernel in enumerate(kernels):
            for k, label in enumerate(labels):
                signs = np.where(y[train] == label, 1, -1)
                scores[j, test, k] = machine(kernel[np.ix_(train, train)], signs, C, kernel[np.ix_(test, train)])
    return scores


def program(scores, y, nu, sharing):
    """β of the linear program, (n, classes), and its minimum."""
    n, _, k = scores.shape
    beta, slack, rho = cp.Variable((n, k), nonneg=True), cp.Variable(M, nonneg=True), cp.Variable()
    rules = [cp.sum(beta, axis=0) == 1]
    if k == 1:
        rules += [(2 * y[i] - 1) * (scores[:, i, 0] @ beta[:, 0]) + slack[i] >= rho for i in range(M)]
    elif sharing == "classes":
        shared = cp.Variable(n, nonneg=True)
        rules = [cp.sum(shared) == 1, beta == cp.vstack([shared] * k).T]
    for i in range(M if k > 1 else 0):
        for c in set(range(k)) - {y[i]}:
            rules.append(scores[:, i, y[i]] @ beta[:, y[i]] - scores[:, i, c] @ beta[:, c] + slack[i] >= rho)
    problem = cp.Problem(cp.Minimize(-rho + cp.sum(slack) / (nu * M)), rules)
    problem.solve(solver=cp.CLARABEL)
    return beta.value, problem.value


@pytest.mark.parametrize(("n_classes", "sharing"), [(2, "classes"), (3, "classes"), (3, "none")])
def test_weights_and_scores_are_those_of_the_machines_and_the_program(n_classes, sharing):
    y, nu, C, cv = np.arange(M) % n_classes, 0.4, 2.0, StratifiedKFold(3)
    model = dmkl.LPBoost(C, nu, sharing=sharing, steps=(), tol=1e-8, cv=cv).fit(KERNELS, y)
    beta, value = program(out_of_sample(KERNELS, y, C, cv), y, nu, sharing)
    assert model.objective_ == pytest.approx(value, rel=1e-4)
    weights = model.weights_.values.reshape(4, -1)
    np.testing.assert_allclose(np.broadcast_to(weights, beta.shape), beta, atol=1e-3)
    scores = model.decision_function(KERNELS).values.reshape(M, -1)
    for k, label in enumerate([1] if n_classes == 2 else range(3)):
        of_kernels = np.array([machine(kernel, np.where(y == label, 1, -1), C, kernel) for kernel in KERNELS])
        np.testing.assert_allclose(scores[:, k], np.broadcast_to(weights, beta.shape)[:, k] @ of_kernels, atol=1e-3)
    assert model.gap_ <= 1e-8


def test_each_kernel_takes_the_penalty_of_best_accuracy():
    # Without the kernel of noise, whose machines have few free vectors: their biases are not unique.
    some, y, cv = KERNELS[:3], THREE, StratifiedKFold(3)
    model = dmkl.LPBoost([0.1, 2.0], steps=(), tol=1e-6, cv=cv).fit(some, y)
    accuracies = np.array([(out_of_sample(some, y, C, cv).argmax(axis=2) == y).mean(axis=1) for C in (0.1, 2.0)])
    np.testing.assert_allclose(model.accuracy_, accuracies.max(axis=0))
    np.testing.assert_array_equal(model.C_, np.array([0.1, 2.0])[accuracies.argmax(axis=0)])


def test_each_class_has_weights_that_sum_to_one():
    """No linear machine separates the middle class: with one simplex for all classes it had no weight."""
    x = np.array([-3.0, 3.0, 0.0])[THREE] + np.random.default_rng(0).normal(size=(2, M))
    kernels = x[:, :, None] * x[:, None, :]
    model = dmkl.LPBoost(2.0, 0.3, sharing="none", steps=(), cv=3).fit(kernels, THREE)
    np.testing.assert_allclose(model.weights_.sum("kernel"), np.ones(3))
    assert model.score(kernels, THREE) > 0.8


# --- weights that classes share, or not -----------------------------------------------------------------------------
@pytest.mark.parametrize(("p", "C"), [(1, 1.0), (1.5, 0.2), (2, 10.0), (np.inf, 1.0)])
def test_shared_weights_reach_the_optimum_of_all_classes_together(p, C):
    model = dmkl.MKSVM(p, C, sharing="classes", steps=(), tol=1e-6).fit(KERNELS, THREE)
    exact = optimum(KERNELS, SIGNS, C, p)
    assert model.objective_ == pytest.approx(exact, rel=1e-5)
    assert model.gap_ <= 1e-6
    assert model.weights_.dims == ("kernel",)
    assert np.linalg.norm(model.weights_, p) == pytest.approx(1.0)
    # The certificate from the definitions: P − D, with P the primal at the model's scores.
    u = model.dual_coef_.values
    forms = np.einsum("mc,nmk,kc->n", u, KERNELS, u)
    losses = np.maximum(0.0, 1.0 - SIGNS * model.decision_function(KERNELS).values).sum()
    primal = 0.5 * float(model.weights_.values @ forms) + C * losses
    assert primal >= exact - 1e-6 * abs(exact)
    assert primal == pytest.approx(exact, rel=1e-5)
    np.testing.assert_allclose(u.sum(axis=0), 0.0, atol=1e-9)


@pytest.mark.slow
def test_shared_weights_take_weights_of_classes_and_some_kernels():
    weight = {0: 3.0, 1: 1.0, 2: 0.5}
    model = dmkl.MKSVM(1.5, 1.0, sharing="classes", class_weight=weight, steps=(), tol=1e-6).fit(KERNELS, THREE)
    C = np.array([weight[label] for label in THREE])
    assert model.objective_ == pytest.approx(optimum(KERNELS, SIGNS, C, 1.5), rel=1e-5)
    without = dmkl.importance(dmkl.MKSVM(1.5, 1.0, sharing="classes", steps=()), KERNELS, THREE, cv=2).data
    assert (without["weight_without"].where(without["member"], 0.0) == 0.0).all()  # a kernel left out has no weight


@pytest.mark.parametrize("class_weight", [None, "balanced"])
def test_classes_with_weights_of_their_own_are_problems_of_their_own(class_weight):
    lam = [0.1, 0.3, 1.0]
    model = dmkl.MKFDA(1.5, lam, sharing="none", class_weight=class_weight, steps=(), tol=1e-8).fit(KERNELS, THREE)
    assert model.weights_.dims == ("kernel", "class")
    share = 1.0 / 3
    H = np.where(SIGNS > 0, share**-0.5 - share**0.5, -(share**0.5))
    for k in range(3):
        alone = dmkl.solve_mkfda(KERNELS, H[:, k], 1.5, lam[k], tol=1e-8)
        np.testing.assert_allclose(model.weights_[:, k], alone.weights, atol=1e-5)
        np.testing.assert_allclose(model.dual_coef_[:, k], alone.dual[:, 0], atol=1e-4)
        assert model.objective_[k] == pytest.approx(alone.objective, rel=1e-7)


def test_scores_of_left_out_rows_are_those_of_fits_without_them():
    """The weights are equal at p = ∞: every class has the plain sum."""
    equal = dmkl.MKFDA(np.inf, [0.3] * 3, sharing="none", solver="direct").fit(KERNELS, THREE)
    shared = dmkl.MKFDA(np.inf, 0.3, solver="direct").fit(KERNELS, THREE)
    assert equal.calibrated_on_ == shared.calibrated_on_ != ""
    np.testing.assert_allclose(equal.predict_proba(KERNELS), shared.predict_proba(KERNELS), rtol=1e-6)


# --- given weights, and those of alignments --------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("solver", "given"),
    [
        ("direct", WEIGHTS),
        ("cg", list(WEIGHTS)),
        ("subspace", dict(zip(NAMES, WEIGHTS, strict=True))),
        ("dual", xr.DataArray(WEIGHTS, {"kernel": list(NAMES)})),
    ],
)
def test_a_discriminant_at_given_weights_is_that_of_their_sum(given, solver):
    model = dmkl.Weighted(given, dmkl.MKFDA(lam=0.3, steps=(), solver=solver, tol=1e-10)).fit(K, THREE)
    alone = dmkl.MKFDA(lam=0.3, steps=(), solver="direct", tol=1e-10).fit(
        np.tensordot(WEIGHTS, KERNELS, 1)[None], THREE
    )
    np.testing.assert_array_equal(model.weights_, WEIGHTS)
    np.testing.assert_allclose(model.dual_coef_, alone.dual_coef_, atol=1e-4)
    assert model.objective_ == pytest.approx(alone.objective_, rel=1e-8)
    assert model.gap_ <= 1e-8


def test_ridge_at_given_weights_is_that_of_scikit_learn():
    y = np.random.default_rng(2).normal(size=M)
    model = dmkl.Weighted(WEIGHTS, dmkl.MKRidge(lam=0.7, steps=())).fit(K, y)
    theirs = KernelRidge(alpha=0.7, kernel="precomputed").fit(np.tensordot(WEIGHTS, KERNELS, 1), y)
    np.testing.assert_allclose(model.dual_coef_[:, 0], theirs.dual_coef_, atol=1e-8)


@pytest.mark.parametrize("sharing", ["none", "classes"])
def test_a_machine_at_given_weights_is_that_of_scikit_learn(sharing):
    learner = dmkl.MKSVM(C=0.4, steps=(), sharing=sharing, tol=1e-8)
    model = dmkl.Weighted(WEIGHTS, learner).fit(K, THREE)
    total = np.tensordot(WEIGHTS, KERNELS, 1)
    for k in range(3):
        theirs = SVC(C=0.4, kernel="precomputed", tol=1e-10).fit(total, THREE == k)
        np.testing.assert_allclose(model.decision_function(K)[:, k], theirs.decision_function(total), atol=1e-5)
    assert np.max(model.gap_) <= 1e-8


@pytest.mark.slow
def test_given_weights_are_searched_saved_and_restricted(tmp_path):
    learner = dmkl.Weighted(xr.DataArray(WEIGHTS, {"kernel": list(NAMES)}))
    result = dmkl.search(learner, K, THREE, {"lam": [0.1, 1.0]}, cv=2)
    np.testing.assert_array_equal(result.best_.weights_, WEIGHTS)
    assert "sum_score" in result.scores  # the plain sum is another model
    result.best_.save(tmp_path / "model")
    loaded = dmkl.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(K), result.best_.predict(K))
    assert loaded.weights == dict(zip(NAMES, WEIGHTS, strict=True))
    some = dmkl.importance(dmkl.Weighted([1.0, 2.0, 3.0, 4.0]), K, THREE, cv=2).data["weight_without"]
    assert some.sel(source="a", kernel=["a", "c"]).min(["fold"]).values.tolist() == [0.0, 3.0]
    with pytest.raises(InputError, match="only kernels of weight zero"):
        dmkl.importance(learner, K, THREE, cv=2)


@pytest.mark.parametrize("method", ["align", "alignf", "cka", "statis"])
def test_weights_from_alignments_follow_their_definitions(method):
    weights = dmkl.aligned_weights(K, THREE, method=method)
    dense = dense_view(KERNELS, steps=("center", "trace"))
    indicators = np.eye(3)[THREE]
    indicators = indicators / np.linalg.norm(indicators, axis=0)
    (ideal,) = dense_view((indicators @ indicators.T)[None], steps=("center", "trace"))
    gram, target = np.einsum("iab,jab->ij", dense, dense), np.einsum("iab,ab->i", dense, ideal)
    norms = np.sqrt(np.diag(gram))
    if method == "align":
        exact = target / norms
    elif method == "cka":
        exact = np.linalg.solve(gram, target)
    elif method == "alignf":
        w = cp.Variable(4, nonneg=True)
        scale = 1.0 / np.linalg.norm(target)
        cp.Problem(cp.Minimize(cp.quad_form(w, gram / norms.max() ** 2) - 2 * scale * target @ w)).solve(
            solver=cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12
        )
        exact = w.value
        exact[exact < 1e-6 * exact.max()] = 0.0
    else:
        m, sums = dense.shape[1], dense.sum(axis=2) - np.diagonal(dense, axis1=1, axis2=2)
        U = (
            dense
            - (sums[:, :, None] + sums[:, None, :]) / (m - 2)
            + sums.sum(axis=1)[:, None, None] / ((m - 1) * (m - 2))
        )
        U *= ~np.eye(m, dtype=bool)  # of which unbiased alignments are the correlations
        _, vectors = np.linalg.eigh(np.corrcoef(U.reshape(4, -1)))
        leading = vectors[:, -1] * np.sign(vectors[:, -1].sum())
        exact = np.maximum(leading, 0) / norms
    np.testing.assert_allclose(weights, exact / np.linalg.norm(exact), atol=1e-5)


def test_weights_of_tasks_and_rules():
    tasks = np.stack([THREE == 0, THREE == 1], axis=1).astype(int)
    both = dmkl.aligned_weights(K, tasks)
    assert both.dims == ("kernel", "task")
    np.testing.assert_allclose(both[:, 0], dmkl.aligned_weights(K, tasks[:, 0]), atol=1e-10)
    groups = ["x", "x", "y", "y"]
    for message, action in (
        ("needs labels", lambda: dmkl.aligned_weights(K)),
        ("method must be one of", lambda: dmkl.aligned_weights(K, THREE, method="sum")),
        ("begin with 'center'", lambda: dmkl.aligned_weights(K, THREE, steps=())),
        ("nothing to restrict", lambda: dmkl.MKFDA(weights=WEIGHTS, kernel_groups=groups).fit(K, THREE)),
        ("has no parameter weights", lambda: dmkl.Weighted(WEIGHTS, dmkl.GMKL())),
        ("4 finite numbers", lambda: dmkl.Weighted([1.0, 2.0]).fit(K, THREE)),
        ("none negative", lambda: dmkl.Weighted([1.0, -1.0, 0.0, 0.0]).fit(K, THREE)),
        ("lacks the kernel 'b'", lambda: dmkl.Weighted({"a": 1.0}).fit(K, THREE)),
        ("kernel 'e', which this set does not have", lambda: dmkl.Weighted({"e": 1.0}).fit(K, THREE)),
    ):
        with pytest.raises(InputError, match=message):
            action()
