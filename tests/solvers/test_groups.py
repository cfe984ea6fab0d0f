"""Groups of samples and group-sensitive weights, against scikit-learn, EM and finite differences; what they are for."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.generators import finish
from sklearn.cluster import KMeans
from sklearn.metrics import balanced_accuracy_score
from sklearn.metrics.pairwise import rbf_kernel

from dmkl.errors import InputError
from dmkl.numerics.fisher import encode_targets
from dmkl.numerics.grouping import group_by_kernel, group_by_kmeans, group_by_plsa, groups_from_arrays, one_hot
from dmkl.solvers.groups import (
    GroupProblem,
    best_of,
    composite_kernel,
    group_weights,
    gs_mkl,
    parameter_gradients,
)
from dmkl.solvers.margin.dense import solve_dense
from dmkl.solvers.margin.gmkl_dual import conic_optimum
from dmkl.solvers.margin.gmkl_problem import GeneralizedProblem
from dmkl.solvers.margin.square import fit_square
from dmkl.solvers.outcome import Status
from dmkl.solvers.requests import GroupClassifier, Projection


def answer(request, kernels):
    if isinstance(request, Projection):
        return np.einsum("mg,nmk,kh->ngh", request.block, kernels, request.block, optimize=True)
    assert isinstance(request, GroupClassifier)
    K = composite_kernel(kernels, request.weights, request.groups)
    if request.lam is None:
        return solve_dense(K, request.y, request.C, request.tol)
    return fit_square(K, request.y, request.lam)


def run(solver, kernels):
    """Drive a solver on kernels in memory."""
    return finish(solver, lambda request: answer(request, kernels))


def made(seed, n=4, m=40):
    """RBF kernels of random features, labels that some of them tell, and three groups that mix them."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(m, 2 * n))
    y = np.where(X[:, 0] + X[:, 1] * X[:, 2] + 0.3 * rng.normal(size=m) > 0, 1.0, -1.0)
    kernels = np.array([rbf_kernel(X[:, 2 * j : 2 * j + 2], gamma=0.5) for j in range(n)])
    return rng, kernels, y, rng.permutation(np.arange(m) % 3)


# --- groups ------------------------------------------------------------------------------------------------------


def blobs(seed, m=60):
    rng = np.random.default_rng(seed)
    y = np.repeat(["cat", "dog"], m // 2)
    hidden = np.tile(np.arange(3), m // 3)
    return rng, 6 * np.eye(4)[hidden + (y == "dog")] + rng.normal(size=(m, 4)), y


def words(seed, m=80, size=40):
    """Counts from four topics, two a class."""
    rng = np.random.default_rng(seed)
    topics = rng.dirichlet(np.full(size, 0.2), size=4)
    y = np.repeat([0, 1], m // 2)
    hidden = 2 * y + np.tile([0, 1], m // 2)
    mixed = 0.9 * one_hot(hidden, 4) + 0.1 * one_hot(hidden ^ 1, 4)
    return rng.poisson(60 * mixed @ topics) + 0.0, y, hidden


def em(counts, p_zd, p_wz, steps, fold=False):
    """Hofmann's EM for pLSA; the log-likelihoods too."""
    found = []
    for _ in range(steps):
        ratio = counts / np.maximum(p_zd @ p_wz, 1e-300)
        found.append(np.sum(counts * np.log(np.maximum(p_zd @ p_wz, 1e-300))))
        new = p_zd * (ratio @ p_wz.T)
        if not fold:
            p_wz = p_wz * (p_zd.T @ ratio)
            p_wz = p_wz / p_wz.sum(axis=1, keepdims=True)
        p_zd = new / new.sum(axis=1, keepdims=True)
    return p_zd, p_wz, found


def test_kmeans_is_scikit_learns_in_each_class():
    _, X, y = blobs(0)
    groups = group_by_kmeans(X, y, {"cat": 3, "dog": 2}, seed=4)
    assert groups.n_groups == 5
    assert list(groups.classes) == ["cat"] * 3 + ["dog"] * 2
    np.testing.assert_array_equal(groups.classes[groups.labels], y)
    expected = KMeans(3, n_init=10, random_state=4).fit(X[y == "cat"])
    np.testing.assert_array_equal(groups.labels[y == "cat"], expected.labels_)
    np.testing.assert_array_equal(groups.labels_of(X, among="cat")[y == "cat"], expected.labels_)
    np.testing.assert_allclose(groups.affinities_of(X)[:, :3], -(expected.transform(X) ** 2), atol=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_kernel_kmeans_on_a_linear_kernel_is_kmeans(seed):
    rng, X, y = blobs(seed)
    K = X @ X.T
    widths = []

    def products(block):
        widths.append(block.shape[1])
        return K @ block

    plain = group_by_kmeans(X, y, 3, seed=seed)
    groups = group_by_kernel(products, np.diag(K), y, 3, seed=seed)
    assert max(widths) == 10 * 6  # ten restarts of two classes side by side
    assert len(widths) <= 30

    def scatter(labels):
        return sum(((X[labels == g] - X[labels == g].mean(0)) ** 2).sum() for g in np.unique(labels))

    assert scatter(groups.labels) == pytest.approx(scatter(plain.labels), rel=1e-9)
    new = rng.normal(size=(20, 4)) * 4
    centers = np.array([X[groups.labels == g].mean(0) for g in range(6)])
    nearest = np.argmin(((new[:, None] - centers) ** 2).sum(-1), axis=1)
    np.testing.assert_array_equal(groups.labels_of(lambda block: new @ X.T @ block), nearest)
    without = np.array(
        [X[(groups.labels == groups.labels[i]) & (np.arange(len(X)) != i)].mean(0) for i in range(len(X))]
    )
    apart = ((X[:, None] - centers) ** 2).sum(-1)
    apart[np.arange(len(X)), groups.labels] = ((X - without) ** 2).sum(-1)
    np.testing.assert_array_equal(groups.as_new(products, np.diag(K)).labels, np.argmin(apart, axis=1))


def test_as_new_keeps_the_centers():
    _, X, y = blobs(1)
    K = X @ X.T
    new = np.random.default_rng(0).normal(size=(30, 4)) * 4
    for groups, training, fresh in (
        (group_by_kmeans(X, y, 3), X, new),
        (group_by_kernel(K.__matmul__, np.diag(K), y, 3), K.__matmul__, (new @ X.T).__matmul__),
    ):
        again = groups.as_new(training, np.diag(K))
        assert not np.array_equal(again.labels, groups.labels)
        np.testing.assert_array_equal(again.labels_of(fresh), groups.labels_of(fresh))
        np.testing.assert_array_equal(again.as_new(training, np.diag(K)).labels, again.labels)


@pytest.mark.parametrize("model", ["kmeans", "kernel", "plsa"])
@pytest.mark.parametrize("count", [1, 2])
def test_training_samples_are_grouped_like_new_ones(model, count):
    """Classes that cannot be told apart: of new samples, half get a group of their class.

    With a group for each class so do the training samples; with two, how the others were cut in two still tells some.
    """
    shares, whole = [], []
    for seed in range(10):
        X = np.random.default_rng(seed).poisson(3.0, size=(80, 30)).astype(float)
        y = np.arange(80) % 2
        K, squares = X @ X.T, (X**2).sum(1)
        if model == "kernel":
            groups, training = group_by_kernel(K.__matmul__, squares, y, count, restarts=2), K.__matmul__
        else:
            groups = (group_by_kmeans if model == "kmeans" else group_by_plsa)(X, y, count, restarts=2)
            training = X
        shares.append(np.mean(groups.classes[groups.as_new(training, squares).labels] == y))
        whole.append(np.mean(groups.classes[groups.labels_of(training)] == y))
    error = np.std(shares, ddof=1) / np.sqrt(len(shares))
    print(f"{model}, {count}: {np.mean(shares):.3f} ± {error:.3f}, by whole centers {np.mean(whole):.3f}")
    assert np.mean(whole) > 0.65  # what centers give away that they were made into
    if count == 1:
        assert abs(np.mean(shares) - 0.5) < 3 * error
    else:
        assert np.mean(shares) < np.mean(whole) - 5 * error


def test_a_sample_alone_in_its_group_goes_elsewhere():
    X = np.array([[0.0], [1.0], [10.0], [0.2]])
    groups = group_by_kmeans(X, None, 2)
    assert len(np.unique(groups.labels[[0, 1, 3]])) == 1 != groups.labels[2]
    again = groups.as_new(X)
    assert (again.labels == groups.labels[0]).all()


@pytest.mark.parametrize("seed", range(3))
def test_plsa_is_maximum_likelihood(seed):
    """EM, started where the factorization ended, finds nothing better; and from elsewhere no more than that."""
    counts, y, hidden = words(seed)
    groups = group_by_plsa(counts, y, 2)
    rng = np.random.default_rng(seed)
    for k in (0, 1):
        rows, topics = counts[y == k], groups.centers[groups.classes == k]
        np.testing.assert_allclose(topics.sum(axis=1), 1.0, rtol=1e-9)
        shares, _, folded = em(rows, np.full((len(rows), 2), 0.5), topics, 3000, fold=True)
        np.testing.assert_array_equal(np.argmax(shares, axis=1), groups.labels[y == k] - 2 * k)
        _, _, further = em(rows, shares, topics, 500)
        assert further[-1] - folded[-1] <= 1e-6 * abs(folded[-1])  # what the factorization's own tolerance leaves
        best = max(
            em(rows, rng.dirichlet(np.ones(2), len(rows)), rng.dirichlet(np.ones(40), 2), 800)[2][-1] for _ in range(5)
        )
        assert best - folded[-1] <= 1e-6 * abs(folded[-1])
    # Hidden topics are found, up to their order.
    for g in range(4):
        assert len(np.unique(hidden[groups.labels == g])) == 1


def test_plsa_folds_new_samples_in():
    counts, y, _ = words(3)
    groups = group_by_plsa(counts, y, 2)
    new, _, hidden = words(3, m=40)
    shares = groups.affinities_of(new)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0, rtol=1e-9)
    expected, _, _ = em(new, np.full((len(new), 4), 0.25), groups.centers, 5000, fold=True)
    np.testing.assert_allclose(shares, expected, atol=5e-3)
    for h in range(4):
        assert len(np.unique(groups.labels_of(new)[hidden == h])) == 1


def test_groups_go_through_plain_arrays():
    _, X, y = blobs(2)
    counts, k, _ = words(4)
    K = rbf_kernel(X)
    for groups, new in (
        (group_by_kmeans(X, y, 2), X),
        (group_by_plsa(counts, k, 2), counts),
        (group_by_kernel(K.__matmul__, np.diag(K), None, 3).as_new(K.__matmul__, np.diag(K)), K.__matmul__),
    ):
        arrays = groups.arrays()
        assert all(type(value) is np.ndarray and value.dtype != object for value in arrays.values())
        again = groups_from_arrays(arrays)
        assert type(again) is type(groups)
        np.testing.assert_array_equal(again.labels_of(new), groups.labels_of(new))


def test_groups_repeat():
    _, X, y = blobs(3)
    counts, k, _ = words(5)
    K = rbf_kernel(X, gamma=0.05)
    for make in (
        lambda seed: group_by_kmeans(X, y, 4, seed=seed),
        lambda seed: group_by_plsa(counts, k, 3, seed=seed),
        lambda seed: group_by_kernel(K.__matmul__, np.diag(K), y, 4, seed=seed),
    ):
        np.testing.assert_array_equal(make(7).labels, make(7).labels)


def test_samples_that_are_all_alike():
    X, y = np.ones((12, 3)), np.repeat([0, 1], 6)
    assert group_by_kmeans(X, y, 3).n_groups == 2
    assert group_by_kernel((X @ X.T).__matmul__, np.full(12, 3.0), y, 3).n_groups == 2
    assert 2 <= group_by_plsa(X, y, 3).n_groups <= 6


def test_wrong_groups():
    _, X, y = blobs(0)
    with pytest.raises(InputError, match="30 samples and is to make 31"):
        group_by_kmeans(X, y, 31)
    with pytest.raises(InputError, match="no entry for class"):
        group_by_kmeans(X, y, {"cat": 1})
    with pytest.raises(InputError, match="y has shape"):
        group_by_kmeans(X, y[:-1], 2)
    with pytest.raises(InputError, match="features have shape"):
        group_by_kmeans(X[:, 0], y, 2)
    with pytest.raises(InputError, match="one is negative"):
        group_by_plsa(X, y, 2)
    with pytest.raises(InputError, match="1 rows of counts are all zero"):
        group_by_plsa(np.vstack([np.zeros(4), np.ones((59, 4))]), y, 2)
    with pytest.raises(InputError, match="the diagonal has shape"):
        group_by_kernel(X.__matmul__, X, y, 2)
    groups = group_by_kmeans(X, y, 2)
    with pytest.raises(InputError, match="names no class"):
        groups.labels_of(X, among="bird")
    with pytest.raises(InputError, match="new samples have shape"):
        groups.labels_of(X[:, :2])


# --- the objective -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighting", ["softmax", "root"])
@pytest.mark.parametrize("loss", ["hinge", "square"])
def test_gradients_by_finite_differences(loss, weighting):
    rng, kernels, y, groups = made(0)
    statistics = rng.uniform(0.2, 2, size=(4, 3))
    a, b = rng.normal(size=(2, 4, 3))

    def train(a, b):
        K = composite_kernel(kernels, group_weights(a, b, statistics, weighting), groups)
        return solve_dense(K, y, 2.0, 1e-12) if loss == "hinge" else fit_square(K, y, 0.3)

    block = one_hot(groups, 3) * train(a, b).u[:, None]
    projected = answer(Projection(block), kernels)
    weights = group_weights(a, b, statistics, weighting)
    by_a, by_b = parameter_gradients(weights, statistics, projected, 0.5 if loss == "hinge" else 0.3, weighting)
    for j in range(4):
        for g in range(3):
            step = np.zeros((4, 3))
            step[j, g] = 1e-4
            for gradient, high, low in (
                (by_a, train(a + step, b), train(a - step, b)),
                (by_b, train(a, b + step), train(a, b - step)),
            ):
                change = (high.dual - low.dual) / 2e-4
                assert change == pytest.approx(gradient[j, g], rel=2e-3, abs=2e-4 * np.abs(gradient).max())


def test_the_composite_kernel_is_semidefinite_with_a_unit_diagonal():
    rng, kernels, _, groups = made(1)
    weights = group_weights(rng.normal(size=(4, 3)), rng.normal(size=(4, 3)), np.ones((4, 3)))
    K = composite_kernel(kernels, weights, groups)
    assert np.linalg.eigvalsh(K)[0] >= -1e-10
    np.testing.assert_allclose(np.diag(K), 1.0)
    np.testing.assert_allclose(K[:7, 5:9], composite_kernel(kernels[:, :7, 5:9], weights, groups[:7], groups[5:9]))


@pytest.mark.parametrize("weighting", ["softmax", "root"])
def test_one_group_is_an_svm_on_squared_weights(weighting):
    _, kernels, y, _ = made(2)
    found = run(gs_mkl(GroupProblem(y, np.zeros(40, int), 1, C=2.0), 4, weighting=weighting), kernels)
    svm = solve_dense(np.tensordot(found.weights[:, 0] ** 2, kernels, 1), y, 2.0, 1e-9)
    assert found.objective == pytest.approx(svm.primal, rel=1e-4)
    total = np.sum(found.weights[:, 0] ** (2 if weighting == "root" else 1))
    assert total == pytest.approx(1.0)


@pytest.mark.parametrize("seed", range(5))
def test_one_group_under_root_is_canonical_mkl(seed):
    _, kernels, y, _ = made(seed)
    found = run(gs_mkl(GroupProblem(y, np.zeros(40, int), 1, C=2.0), 4, tol=1e-5), kernels)
    exact = conic_optimum(kernels, GeneralizedProblem(y, 2.0, np.zeros(4), -np.ones((1, 4)), np.array([-1.0])))
    assert found.objective == pytest.approx(exact.value, rel=1e-3)
    np.testing.assert_allclose(found.weights[:, 0] ** 2, exact.weights, atol=0.05)


def test_one_group_under_softmax_has_a_local_minimum_at_each_kernel():
    _, kernels, y, _ = made(3)
    for corner in np.eye(4):
        low = solve_dense(np.tensordot(corner**2, kernels, 1), y, 2.0, 1e-10).dual
        for other in np.eye(4):
            near = 0.98 * corner + 0.02 * other
            assert solve_dense(np.tensordot(near**2, kernels, 1), y, 2.0, 1e-10).dual >= low * (1 - 1e-9)


def test_least_squares_with_a_bias():
    rng, kernels, y, _ = made(4)
    K, lam = kernels[0], 0.2
    found = fit_square(K, y, lam)
    assert found.dual == pytest.approx(found.primal, rel=1e-10)
    assert found.u.sum() == pytest.approx(0.0, abs=1e-10)
    for _ in range(20):
        u, bias = found.u + 0.1 * rng.normal(size=40), found.bias + 0.1 * rng.normal()
        assert np.sum((y - K @ u - bias) ** 2) + lam * u @ K @ u >= found.primal


def test_one_group_on_centered_kernels_is_fisher_discriminant_analysis():
    _, kernels, y, _ = made(5)
    center = np.eye(40) - 1 / 40
    K, lam = center @ kernels[1] @ center, 0.3
    (h,) = encode_targets(y, 40).problems
    alpha = np.linalg.solve(0.5 * (np.eye(40) + K / lam), h)[:, 0]
    found = fit_square(K, h[:, 0], lam)
    np.testing.assert_allclose(2 * lam * found.u, alpha, atol=1e-10)
    assert found.bias == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("weighting", ["softmax", "root"])
@pytest.mark.parametrize("loss", [{"C": 4.0}, {"lam": 0.3}])
def test_each_step_lowers_the_objective(weighting, loss):
    _, kernels, y, groups = made(6)
    solutions = [
        run(gs_mkl(GroupProblem(y, groups, 4, **loss), 4, weighting=weighting, seed=seed), kernels)
        for seed in (None, 0, 1)
    ]
    for found in solutions:
        assert (np.diff([step.figures["objective"] for step in found.steps]) < 0).all()
        assert found.status is Status.CONVERGED
        assert not found.proven
        assert np.isnan([found.gap, found.bound]).all()
        assert found.trainings >= len(found.steps) > 3
        assert np.isfinite(found.weights).all()  # of the fourth group too, which is empty
        K = composite_kernel(kernels, found.weights, groups)
        trained = solve_dense(K, y, 4.0, 1e-9) if "C" in loss else fit_square(K, y, 0.3)
        assert found.objective == pytest.approx(trained.primal, rel=1e-4)
    assert best_of(solutions).objective == min(found.objective for found in solutions)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"groups": np.zeros(3, int)}, "y has shape"),
        ({"groups": np.array([0, 2])}, "groups hold 0 to 2"),
        ({"groups": np.array([0, -1])}, "groups hold -1 to 0"),
        ({"lam": 1.0}, "give C > 0"),
        ({"C": None}, "give C > 0"),
        ({"C": -1.0}, "give C > 0"),
        ({"y": np.array([1.0, 2.0])}, "1 and −1"),
    ],
)
def test_wrong_problems(change, message):
    with pytest.raises(InputError, match=message):
        GroupProblem(**{"y": np.array([1.0, -1.0]), "groups": np.array([0, 1]), "n_groups": 2, "C": 1.0, **change})


# --- what it is for ----------------------------------------------------------------------------------------------


def subcategories(seed, m=150, m_new=600):
    """Two classes with three hidden sub-categories; view s tells the classes apart in sub-category s alone.

    Five views, two of them noise, make a kernel each; a context tells the sub-category, and nothing of the class.
    """
    rng = np.random.default_rng(seed)
    total = m + m_new
    y = np.where(rng.random(total) < 0.5, 1.0, -1.0)
    hidden = rng.integers(0, 3, total)
    views = []
    for v in range(5):
        X = rng.normal(size=(total, 4))
        X[:, 0] += 1.6 * np.where(hidden == v, y, rng.choice([-1.0, 1.0], total))
        views.append(X)
    context = 4 * np.eye(3)[hidden] + 0.7 * rng.normal(size=(total, 3))
    return np.array([rbf_kernel(X, X[:m], gamma=0.1) for X in views]), context, y, m


def accuracy(kernels, y, m, groups, new, n_groups, **options):
    loss = {key: options.pop(key) for key in ("C", "lam") if key in options}
    found = run(
        gs_mkl(GroupProblem(y[:m], groups, n_groups, **loss), len(kernels), tol=1e-3, **options), kernels[:, :m]
    )
    scores = composite_kernel(kernels[:, m:], found.weights, new, groups) @ found.dual[:, 0] + found.bias
    return balanced_accuracy_score(y[m:], np.sign(scores)), found


@pytest.mark.parametrize("options", [{"C": 1.0}, {"C": 1.0, "weighting": "softmax"}, {"lam": 1.0}])
def test_hidden_subcategories_need_groups(options):
    """Over ten seeds, better than one set of weights for all, by far more than the standard error."""
    gains = []
    for seed in range(10):
        kernels, context, y, m = subcategories(seed)
        groups = group_by_kmeans(context[:m], y[:m], 3).as_new(context[:m])
        grouped, _ = accuracy(kernels, y, m, groups.labels, groups.labels_of(context[m:]), 6, **options)
        plain, _ = accuracy(kernels, y, m, np.zeros(m, int), np.zeros(len(y) - m, int), 1, **options)
        gains.append(grouped - plain)
    error = np.std(gains, ddof=1) / np.sqrt(len(gains))
    print(f"{options}: gain {np.mean(gains):.3f} ± {error:.3f}")
    assert np.mean(gains) > 0.15
    assert np.mean(gains) > 10 * error


def test_groups_inside_classes_give_the_labels_away():
    """Groups that know the class of a training sample: a far lower objective, and new samples at random."""
    kernels, context, y, m = subcategories(0)
    groups = group_by_kmeans(context[:m], y[:m], 3)
    new = groups.labels_of(context[m:])
    leaking, easy = accuracy(kernels, y, m, groups.labels, new, 6, C=1.0)
    honest, found = accuracy(kernels, y, m, groups.as_new(context[:m]).labels, new, 6, C=1.0)
    assert easy.objective < 0.2 * found.objective
    between = composite_kernel(kernels[:, :m], easy.weights, groups.labels)[np.ix_(y[:m] > 0, y[:m] < 0)]
    assert np.abs(between).max() < 0.1  # the classes share no kernel
    assert leaking < 0.6 < 0.85 < honest
