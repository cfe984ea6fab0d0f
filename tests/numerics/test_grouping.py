"""Groups of samples against scikit-learn, EM and the definitions."""

import numpy as np
import pytest
from sklearn.cluster import KMeans

from dmkl.errors import InputError
from dmkl.numerics.grouping import group_by_kernel, group_by_kmeans, group_by_plsa, one_hot
from dmkl.solvers.interface import ask, run_with


def blobs(seed, m=60):
    rng = np.random.default_rng(seed)
    y = np.repeat(["cat", "dog"], m // 2)
    hidden = np.tile(np.arange(3), m // 3)
    return rng, 6 * np.eye(4)[hidden + (y == "dog")] + rng.normal(size=(m, 4)), y


def words(seed, m=80, size=40):
    """Counts from four topics, two in each class."""
    rng = np.random.default_rng(seed)
    topics = rng.dirichlet(np.full(size, 0.2), size=4)
    y = np.repeat([0, 1], m // 2)
    hidden = 2 * y + np.tile([0, 1], m // 2)
    mixed = 0.9 * one_hot(hidden, 4) + 0.1 * one_hot(hidden ^ 1, 4)
    return rng.poisson(60 * mixed @ topics) + 0.0, y, hidden


def em(counts, p_zd, p_wz, steps, fold=False):
    """Hofmann's EM for pLSA; the log-likelihoods too."""
    computed = []
    for _ in range(steps):
        ratio = counts / np.maximum(p_zd @ p_wz, 1e-300)
        computed.append(np.sum(counts * np.log(np.maximum(p_zd @ p_wz, 1e-300))))
        new = p_zd * (ratio @ p_wz.T)
        if not fold:
            p_wz = p_wz * (p_zd.T @ ratio)
            p_wz = p_wz / p_wz.sum(axis=1, keepdims=True)
        p_zd = new / new.sum(axis=1, keepdims=True)
    return p_zd, p_wz, computed


def test_kmeans_is_scikit_learns_in_each_class():
    _, X, y = blobs(0)
    groups = group_by_kmeans(X, y, {"cat": 3, "dog": 2}, seed=4)
    assert groups.n_groups == 5
    assert list(groups.classes) == ["cat"] * 3 + ["dog"] * 2
    np.testing.assert_array_equal(groups.classes[groups.labels], y)
    expected = KMeans(3, n_init=10, random_state=4).fit(X[y == "cat"])
    np.testing.assert_array_equal(groups.labels[y == "cat"], expected.labels_)
    np.testing.assert_allclose(groups.affinities_of(X)[:, :3], -(expected.transform(X) ** 2), atol=1e-9)


@pytest.mark.parametrize("seed", range(2))
def test_kernel_kmeans_on_a_linear_kernel_is_kmeans(seed):
    rng, X, y = blobs(seed)
    K = X @ X.T
    plain = group_by_kmeans(X, y, 3, seed=seed)
    groups = run_with(group_by_kernel(ask, K.diagonal(), y, 3, seed=seed), K.__matmul__)

    def scatter(labels):
        return sum(((X[labels == g] - X[labels == g].mean(0)) ** 2).sum() for g in np.unique(labels))

    assert scatter(groups.labels) == pytest.approx(scatter(plain.labels), rel=1e-9)
    new = rng.normal(size=(20, 4)) * 4
    centers = np.array([X[groups.labels == g].mean(0) for g in range(6)])
    nearest = np.argmin(((new[:, None] - centers) ** 2).sum(-1), axis=1)
    np.testing.assert_array_equal(groups.labels_of(new @ X.T @ groups.means), nearest)
    without = np.array(
        [X[(groups.labels == groups.labels[i]) & (np.arange(len(X)) != i)].mean(0) for i in range(len(X))]
    )
    apart = ((X[:, None] - centers) ** 2).sum(-1)
    apart[np.arange(len(X)), groups.labels] = ((X - without) ** 2).sum(-1)
    np.testing.assert_array_equal(groups.as_new(K @ groups.means, K.diagonal()).labels, np.argmin(apart, axis=1))


def test_plsa_is_maximum_likelihood():
    """EM finds no better likelihood, neither from the factorization nor from random starts."""
    counts, y, hidden = words(0)
    groups = group_by_plsa(counts, y, 2)
    rng = np.random.default_rng(0)
    for k in (0, 1):
        rows, topics = counts[y == k], groups.centers[groups.classes == k]
        np.testing.assert_allclose(topics.sum(axis=1), 1.0, rtol=1e-9)
        shares, _, folded = em(rows, np.full((len(rows), 2), 0.5), topics, 3000, fold=True)
        np.testing.assert_array_equal(np.argmax(shares, axis=1), groups.labels[y == k] - 2 * k)
        _, _, further = em(rows, shares, topics, 500)
        assert further[-1] - folded[-1] <= 1e-6 * abs(folded[-1])  # within the tolerance of the factorization
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


def test_wrong_groups():
    _, X, y = blobs(0)
    groups, empty = group_by_kmeans(X, y, 2), np.vstack([np.zeros(4), np.ones((59, 4))])
    for message, make in (
        ("features have shape", lambda: group_by_kmeans(X[:, 0], y, 2)),
        ("but one is negative", lambda: group_by_plsa(X, y, 2)),
        ("1 rows of counts are all zero", lambda: group_by_plsa(empty, y, 2)),
        ("new samples have shape", lambda: groups.labels_of(X[:, :2])),
    ):
        with pytest.raises(InputError, match=message):
            make()
