"""Kernel k-means and multiple kernel k-means against eigenvectors of dense matrices, and scikit-learn's k-means."""

from functools import partial

import numpy as np
import pytest
from helpers.references import dense_view
from sklearn.cluster import KMeans
from sklearn.metrics import normalized_mutual_info_score

import dmkl
from dmkl.errors import DegenerateKernelError, IndefiniteKernelError, IndefiniteKernelWarning, InputError

M, N_CLUSTERS = 60, 3
CLASSES = np.arange(M) % N_CLUSTERS
STEPS = ("center", "trace")
RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(4, M, 12))
FEATURES += np.array([3.0, 1.0, 0.5, 0.0])[:, None, None] * RNG.normal(size=(4, N_CLUSTERS, 12))[:, CLASSES]
BLOBS = np.exp(-np.sum((FEATURES[:, :, None] - FEATURES[:, None]) ** 2, axis=-1) / 40)
"""Kernels with clear, fair and poor clusters, and a kernel of noise."""


def alternate(K, k, gamma):
    """Weights, eigenvectors and objectives by the definitions, until convergence."""
    objectives = []
    for _ in range(1000):
        H = np.linalg.eigh(np.tensordot(gamma**2, K, 1))[1][:, -k:]
        d = np.trace(K, axis1=1, axis2=2) - np.einsum("mk,nml,lk->n", H, K, H)
        objectives.append(gamma**2 @ d)
        last, gamma = gamma, 1 / d / np.sum(1 / d)
        if np.abs(gamma - last).max() < 1e-13:
            break
    return gamma**2, H, np.array(objectives)


@pytest.mark.parametrize("start", [None, [4.0, 1.0, 0.0, 9.0]])
def test_weights_and_objective_are_those_of_eigenvectors_of_dense_matrices(start):
    model = dmkl.MultipleKernelKMeans(N_CLUSTERS, weights=start, tol=1e-9).fit(BLOBS)
    dense = dense_view(BLOBS, steps=STEPS)
    roots = np.sqrt(np.ones(4) if start is None else start)
    weights, H, objectives = alternate(dense, N_CLUSTERS, roots / roots.sum())
    np.testing.assert_allclose(model.weights_, weights, atol=1e-8)
    assert model.objective_ == pytest.approx(objectives[-1], rel=1e-10)
    np.testing.assert_allclose(model.embedding_.values @ model.embedding_.values.T, H @ H.T, atol=1e-6)
    falling = model.history_.objective.values
    assert (np.diff(falling) <= 1e-15).all()
    # Clear clusters have few large eigenvalues, so that their kernel has the largest weight, and noise the smallest.
    assert model.weights_.values.argmax() == 0
    assert model.weights_.values.argmin() == 3
    assert dmkl.cluster_agreement(model.labels_, CLASSES) == pytest.approx({"nmi": 1, "purity": 1, "accuracy": 1})


@pytest.mark.parametrize("k", [2, 3, 7])
def test_given_weights(k):
    weights = np.array([1.0, 0.0, 2.0, 0.5])
    model = dmkl.Weighted(weights, dmkl.KernelKMeans(k, tol=1e-9)).fit(BLOBS)
    values, vectors = np.linalg.eigh(np.tensordot(weights, dense_view(BLOBS, steps=STEPS), 1))
    assert model.objective_ == pytest.approx(values[:-k].sum(), rel=1e-8)
    projector = vectors[:, -k:] @ vectors[:, -k:].T
    np.testing.assert_allclose(model.embedding_.values @ model.embedding_.values.T, projector, atol=1e-5)
    np.testing.assert_array_equal(model.weights_, weights)


def test_well_separated_clusters_are_those_of_scikit_learn():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(M, 6)) + 30 * rng.normal(size=(N_CLUSTERS, 6))[CLASSES]
    expected = KMeans(N_CLUSTERS, n_init=10, random_state=0).fit_predict(X)
    model = dmkl.KernelKMeans(N_CLUSTERS)
    assert normalized_mutual_info_score(expected, model.fit_predict([X @ X.T])) == pytest.approx(1)


def test_new_samples():
    K = dmkl.create(None, BLOBS)
    train, test = np.arange(45), np.arange(45, M)
    for model in (dmkl.KernelKMeans(N_CLUSTERS), dmkl.MultipleKernelKMeans(N_CLUSTERS)):
        model.fit(K[train, train])
        np.testing.assert_allclose(model.decision_function(K[train, train]), model.embedding_, atol=1e-4)
        np.testing.assert_array_equal(model.predict(K[train, train]), model.labels_)
        assert dmkl.cluster_agreement(model.predict(K[test, train]), CLASSES[test])["accuracy"] == 1


def test_a_kernel_of_low_rank_takes_all_weight():
    X = np.random.default_rng(0).normal(size=(M, 2))
    model = dmkl.MultipleKernelKMeans(N_CLUSTERS).fit([*BLOBS, X @ X.T])
    assert model.weights_.values[-1] == pytest.approx(1)
    assert model.objective_ == pytest.approx(0, abs=1e-8)
    # The third eigenvalue is zero, so that new samples have no coordinate there.
    assert not model.embedding_.values[:, 2].any()
    assert np.isfinite(model.dual_coef_).all()


@pytest.mark.parametrize("kind", [dmkl.KernelKMeans, dmkl.MultipleKernelKMeans])
def test_what_is_refused(kind, tmp_path):
    K = dmkl.create(tmp_path / "set.zarr", BLOBS, labels=CLASSES)
    questions = (dmkl.search, dmkl.evaluate, dmkl.permutation_test, dmkl.stability, dmkl.importance)
    for message, action in (
        *(("learns without labels", partial(question, kind(2), K)) for question in questions),
        ("predicts clusters; compare them", lambda: dmkl.assess(kind(2).fit(K), K)),
        ("a cluster and a class per sample", lambda: dmkl.cluster_agreement(CLASSES, CLASSES[1:])),
    ):
        with pytest.raises(InputError, match=message):
            action()


@pytest.mark.filterwarnings("ignore::dmkl.errors.IndefiniteKernelWarning")
@pytest.mark.parametrize("kind", [dmkl.KernelKMeans, dmkl.MultipleKernelKMeans])
@pytest.mark.parametrize("steps", [(), ("center", "trace")])
def test_a_kernel_of_negative_trace_is_not_positive_semidefinite_and_not_constant(kind, steps):
    with pytest.raises(
        (IndefiniteKernelError, DegenerateKernelError), match=r"'kernel_4'.*not positive semidefinite.*repair="
    ) as caught:
        kind(2, steps=steps).fit([*BLOBS, -BLOBS[0]])
    assert "constant" not in str(caught.value)


@pytest.mark.filterwarnings("ignore::dmkl.errors.IndefiniteKernelWarning")
def test_indefinite_kernels():
    """Eigenvectors do not depend on a multiple of the identity; weights need traces that are not negative."""
    with pytest.warns(IndefiniteKernelWarning, match=r"weighted sum of the kernels has an eigenvalue of -0\.0"):
        model = dmkl.KernelKMeans(N_CLUSTERS, steps="center").fit(BLOBS[:1] - 0.1 * np.eye(M))
    same = dmkl.KernelKMeans(N_CLUSTERS, steps="center").fit(BLOBS[:1])
    np.testing.assert_array_equal(model.labels_, same.labels_)
    assert model.objective_ == pytest.approx(same.objective_ - 0.1 * (M - 1 - N_CLUSTERS))
    U = np.linalg.qr(np.random.default_rng(0).normal(size=(M, M)))[0]
    indefinite = U * np.r_[10.0 * M, 10.0 * M, -np.ones(M - 2)] @ U.T
    with pytest.raises(IndefiniteKernelError, match="kernel 'kernel_4' is not positive semidefinite"):
        dmkl.MultipleKernelKMeans(N_CLUSTERS, steps=()).fit([*BLOBS, indefinite])
    with pytest.raises(InputError, match=r"'kernel_4' is constant .*, or not positive semidefinite: its trace"):
        dmkl.KernelKMeans(N_CLUSTERS, steps=()).fit([*BLOBS, BLOBS[0] - np.eye(M)])


def test_agreement_by_the_best_assignment():
    """Clusters 0 and 1 have most samples of class b, but only one of them can be assigned to it."""
    labels, y = [0, 0, 0, 1, 1, 2, 2, 2], ["b", "b", "a", "b", "b", "c", "c", "a"]
    agreement = dmkl.cluster_agreement(labels, y)
    assert agreement["purity"] == pytest.approx(6 / 8)
    assert agreement["accuracy"] == pytest.approx((1 + 2 + 2) / 8)
    assert agreement["nmi"] == pytest.approx(normalized_mutual_info_score(y, labels))


def test_commands(output_of, json_of, error_of, tmp_path, store):
    path = tmp_path / "model"
    out = output_of("fit", store, path, "--model", "multiple-kernel-kmeans", "--n-clusters", 3)
    assert "Agreement of the clusters with the stored labels, which were not used: nmi" in out
    printed = json_of("fit", store, path, "--model", "kernel-kmeans", "--n-clusters", 3, "--overwrite")
    K, model = dmkl.open(store), dmkl.load(path)
    train, _, test = K.split(0)
    assert printed["agreement"] == dmkl.cluster_agreement(model.labels_, K.labels[train])
    scores = json_of("predict", path, store, "--split", 0)["scores"]
    assert scores == dmkl.cluster_agreement(model.predict(K[test, train]), K.labels[test])
    for options in (("--probabilities", "--out", tmp_path / "out.csv"), ("--plot", tmp_path / "out.png")):
        assert "KernelKMeans predicts clusters" in error_of("predict", path, store, "--split", 0, *options)
    dmkl.create(tmp_path / "unlabeled.zarr", np.asarray(K[train, train])[:1])
    output_of("fit", tmp_path / "unlabeled.zarr", tmp_path / "other", "--model", "kernel-kmeans", "--n-clusters", 2)
