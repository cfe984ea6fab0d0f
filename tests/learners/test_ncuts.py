"""Weights by normalized cuts and by spectra against dense NumPy and scikit-learn, and what the learners refuse."""

from functools import partial
from types import SimpleNamespace

import dask
import numpy as np
import pytest
from helpers.references import Counting, dense_view, digits, in_memory, over, psd
from sklearn.model_selection import StratifiedKFold
from sklearn.svm import SVC

import dmkl
from dmkl.errors import IndefiniteKernelError, IndefiniteKernelWarning, InputError
from dmkl.passes.execute import Machine
from dmkl.solvers.cuts import best_cut
from dmkl.solvers.in_memory import answer
from dmkl.solvers.interface import run_with
from dmkl.solvers.margin.svm import solve_dense
from dmkl.solvers.spectral import spectral_weights

TRAIN, TEST = np.arange(60), np.arange(60, 90)


@pytest.fixture(autouse=True)
def threads():
    with dask.config.set(scheduler="threads"):
        yield


def dense_ratios(K, sides, examples):
    """u and v of each example by their definition: means over pairs, of kernels (n, m, m)."""
    u, v = [], []
    for g in range(examples.max() + 1):
        p, q = np.flatnonzero((examples == g) & (sides > 0)), np.flatnonzero((examples == g) & (sides < 0))
        u.append([kernel[np.ix_(p, q)].mean() for kernel in K])
        v.append([kernel[np.ix_(p, p)].mean() + kernel[np.ix_(q, q)].mean() for kernel in K])
    return np.array(u), np.array(v)


def examples_of(y, n_examples, seed=0):
    result = np.zeros(len(y), dtype=int)
    folds = StratifiedKFold(n_examples, shuffle=True, random_state=seed).split(y, y)
    for number, (_, rows) in enumerate(folds):
        result[rows] = number
    return result


def training(tile=32, steps=()):
    K, y = digits()
    return in_memory(K, tile), y, dense_view(K, TRAIN, TRAIN, steps)


S, Y, DENSE = training()


# --- ratios ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("tile", "scheduler"), [(16, "synchronous"), (37, "threads")])
def test_weights_from_dense_sums_whatever_the_tiles(tile, scheduler):
    S, y, dense = training(tile)
    target = y[TRAIN] > 4
    with dask.config.set(scheduler=scheduler):
        result = dmkl.NCuts(3, random_state=5).fit(S[TRAIN, TRAIN], target)
    u, v = dense_ratios(dense, np.where(target, 1, -1), examples_of(target, 3, 5))
    expected = best_cut(u, v, 1e-4)
    np.testing.assert_allclose(result.weights_.values, expected.weights, atol=1e-6)
    assert float(result.cuts_.value) == pytest.approx(expected.objective, rel=1e-5)


@pytest.mark.parametrize("multiclass", ["ovr", "ovo"])
def test_how_several_classes_share_weights(multiclass):
    y = Y % 3
    if multiclass == "ovr":  # one program over each part of the partition
        parts = [dense_ratios(DENSE, np.where(y[TRAIN] == a, 1, -1), examples_of(y[TRAIN], 2)) for a in range(3)]
        rows = [np.flatnonzero((examples_of(y[TRAIN], 2) == g) & (y[TRAIN] == a)) for a in range(3) for g in (0, 1)]
        v = np.array([[kernel[np.ix_(p, p)].mean() for kernel in DENSE] for p in rows])
        u = np.concatenate([u for u, _ in parts])
        result = dmkl.NCuts(2, sharing="partition").fit(S[TRAIN, TRAIN], y[TRAIN])
        expected = best_cut(u, v, 1e-4)
        np.testing.assert_allclose(result.weights_.values, expected.weights, atol=1e-6)
        alpha = result.weights_.values
        assert float(result.cuts_.ratio) == pytest.approx(float(np.sum((u @ alpha) / (v @ alpha))), rel=1e-5)
        assert float(result.cuts_.reciprocal) == pytest.approx(float(np.sum((v @ alpha) / (u @ alpha))), rel=1e-5)
    pairs = [(0, 1), (0, 2), (1, 2)] if multiclass == "ovo" else [(0, None), (1, None), (2, None)]
    cut = []
    for a, b in pairs:
        sides = np.where(y[TRAIN] == a, 1, -1 if b is None else np.where(y[TRAIN] == b, -1, 0))
        cut.append(dense_ratios(DENSE, sides, examples_of(y[TRAIN], 2)))
    own = np.array([best_cut(u, v, 1e-4).weights for u, v in cut])
    joint = best_cut(np.concatenate([u for u, _ in cut]), np.concatenate([v for _, v in cut]), 1e-4).weights
    for sharing, expected in (("own", own.T), ("mean", own.mean(axis=0)), ("joint", joint)):
        result = dmkl.NCuts(2, sharing=sharing, multiclass=multiclass).fit(S[TRAIN, TRAIN], y[TRAIN])
        np.testing.assert_allclose(result.weights_.values, expected, atol=1e-6, err_msg=sharing)
        assert result.weights_.dims == (("kernel", "class" if multiclass == "ovr" else "pair")[: expected.ndim])
        assert result.cuts_.value.shape == (() if sharing == "joint" else (3,))
        assert result.n_passes_ == 2


def test_one_pass_whatever_the_number_of_examples(monkeypatch):
    K, labels = psd(4, 60).astype(np.float32), np.arange(60) % 2
    S, source = over(in_memory(K, 20), Counting)
    with dask.config.set({"dmkl.block-width": 8}):
        model = dmkl.NCuts(20, steps=()).fit(S, labels)
    # One pass for the ratios and one for the combined kernel.
    assert (model.n_cut_passes_, model.n_passes_) == (1, 2)
    assert max(source.reads.values()) == 2
    monkeypatch.setattr("dmkl.learners.ncuts.machine", lambda: Machine(1, 1, 32 * 4 * 4**2, 2**20))  # 4 columns a block
    np.testing.assert_allclose(dmkl.NCuts(20, steps=()).fit(S, labels).weights_, model.weights_, atol=1e-6)


# --- classifiers -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("several", [False, True])
def test_the_square_loss_is_the_fisher_discriminant(several):
    """Scores equal those of `MKFDA` with fixed weights on the combined kernel, up to a factor."""
    K, _ = digits()
    labels = Y % 3 if several else Y > 4
    result = dmkl.NCuts(2, loss="square", lam=0.5).fit(S[TRAIN, TRAIN], labels[TRAIN])
    combined = in_memory(np.tensordot(result.weights_.values, K, axes=1)[None], 32)
    other = dmkl.MKFDA(np.inf, 0.5, steps=("center",), tol=1e-10).fit(combined[TRAIN, TRAIN], labels[TRAIN])
    # α of the discriminant is 2λ times the coefficients of least squares, which have the same minimum.
    np.testing.assert_allclose(other.dual_coef_.values, 2 * 0.5 * result.dual_coef_.values, atol=1e-9)
    scores, others = result.decision_function(S[TEST, TRAIN]), other.decision_function(combined[TEST, TRAIN])
    np.testing.assert_allclose(others.values, 2 * 0.5 * scores.values, atol=1e-8)
    largest = others.values.argmax(axis=1) if several else others.values > 0
    np.testing.assert_array_equal(result.predict(S[TEST, TRAIN]), largest)
    assert np.max(result.gap_) <= 1e-8


# --- noise -----------------------------------------------------------------------------------------------------------
def test_cosine_of_entries_beyond_the_diagonal_is_told():
    """Cosine normalization makes entries of random matrices larger than those of the kernels."""
    noise = np.random.default_rng(0).exponential(1.0, (2, 40, 40))
    K, y = np.concatenate([psd(2, 40), np.tril(noise) + np.tril(noise, -1).transpose(0, 2, 1)]), np.arange(40) % 2
    with pytest.warns(IndefiniteKernelWarning, match="not positive semidefinite"):
        S = dmkl.create(None, list(K))
    with pytest.warns(IndefiniteKernelWarning, match=r"2 kernels have entries .* kernel_2, kernel_3"):
        dmkl.NCuts(2, steps=("cosine",)).fit(S, y)
    dmkl.NCuts(2, steps=("cosine",)).fit(S.select(range(2)), y)  # warnings raise errors here


def test_nothing_is_proven_of_machines_on_indefinite_kernels():
    """A feasible dual point is above the reported optimum: the gap P − D is a bound for concave duals only."""
    rng = np.random.default_rng(4)
    A, y = rng.standard_normal((10, 10)), np.arange(10) % 2
    K, signs = A + A.T, 2.0 * y - 1.0
    with pytest.warns(IndefiniteKernelWarning):
        S = dmkl.create(None, [K])
    model = dmkl.NCuts(1, steps=()).fit(S, y)
    starts = np.random.default_rng(1).uniform(0, 10, (50, 10)) * signs
    best = max(solve_dense(K.astype(S.dtype), signs, 10.0, 1e-6, start).dual for start in starts)
    assert best > 1.05 * model.objective_
    assert np.isnan(model.gap_)
    assert "better ones may exist" in model.status_
    assert "proven to be within" not in model.status_
    with pytest.raises(IndefiniteKernelError, match="larger lam, or loss='hinge'"):
        dmkl.NCuts(1, loss="square", lam=1e-3, steps=()).fit(S, y)


def test_machines_on_kernels_of_low_rank_are_proven():
    rng = np.random.default_rng(0)
    X, y = rng.uniform(size=(3, 80, 4)), np.arange(80) % 2
    model = dmkl.NCuts(2, steps=()).fit(dmkl.create(None, list(X @ X.transpose(0, 2, 1)), dtype=np.float32), y)
    assert model.gap_ <= model.tol
    assert model.status_.startswith("The gap is proven")


def test_what_does_not_fit_the_memory_is_not_proven(monkeypatch):
    """The kernel is not examined where a machine is trained on columns of it."""
    monkeypatch.setattr("dmkl.solvers.margin.svm.dense_bytes", lambda m: 2**62)
    model = dmkl.NCuts(2).fit(S[TRAIN, TRAIN], Y[TRAIN] > 4)
    assert np.isnan(model.gap_)
    assert "not known to be positive semidefinite" in model.status_


# --- spectral learning ------------------------------------------------------------------------------------------------
def dense_weights(K, labels, a=10.0):
    labels = np.unique(labels, return_inverse=True)[1]
    return run_with(spectral_weights(labels, len(K), a, tol=1e-6, max_iter=100), partial(answer, K))


@pytest.mark.parametrize("in_passes", [False, True])
@pytest.mark.parametrize("kind", ["binary", "multiclass", "multilabel"])
def test_spectral_weights_and_machines_are_those_on_dense_kernels(kind, in_passes, monkeypatch):
    S, y, dense = training(37, ("cosine",))
    y = {"binary": y > 4, "multiclass": y % 3, "multilabel": np.column_stack([y > 4, y % 2]).astype(int)}[kind]
    if in_passes:
        monkeypatch.setattr("dmkl.learners.ncuts.machine", lambda: SimpleNamespace(task_bytes=0))
    model = dmkl.SpectralLearning(C=3.0, steps=("cosine",), tol=1e-6).fit(S[TRAIN, TRAIN], y[TRAIN])
    columns = y.T if kind == "multilabel" else [y]
    expected = [dense_weights(dense, column[TRAIN]) for column in columns]
    weights = model.weights_.values.reshape(len(dense), -1).T
    np.testing.assert_allclose(weights, [cut.weights for cut in expected], atol=1e-4)
    assert model.weights_.dims == (("kernel", "task") if kind == "multilabel" else ("kernel",))
    objectives = [cut.objective for cut in expected]
    np.testing.assert_allclose(model.cuts_.objective.values, np.squeeze(objectives), atol=1e-6)
    assert np.isnan(model.gap_).all()
    assert "nothing is proven" in model.status_
    assert (model.n_cut_passes_ == 1) != in_passes
    cross = dense_view(digits()[0], TEST, TRAIN, ("cosine",))
    scores = model.decision_function(S[TEST, TRAIN]).values.reshape(len(TEST), -1)
    of_class = [y == k for k in range(3)] if kind == "multiclass" else columns
    for k, positive in enumerate(of_class):
        own = weights[k % len(weights)]
        machine = SVC(kernel="precomputed", C=3.0, tol=1e-8).fit(np.tensordot(own, dense, 1), positive[TRAIN])
        np.testing.assert_allclose(scores[:, k], machine.decision_function(np.tensordot(own, cross, 1)), atol=1e-3)


def test_a_search_learns_the_weights_once_for_all_costs():
    grid = {"eigengap_weight": [0.0, 10.0], "C": [1.0, 10.0]}
    weights = dmkl.search(dmkl.SpectralLearning(steps=()), S, Y % 2, grid, [(TRAIN, TEST)], refit=False).scores.weight
    np.testing.assert_array_equal(weights.isel(C=0), weights.isel(C=1))
    for a in (0.0, 10.0):
        alone = dmkl.SpectralLearning(a, steps=()).fit(S[TRAIN, TRAIN], Y[TRAIN] % 2)
        np.testing.assert_allclose(weights.sel(eigengap_weight=a).isel(C=1).squeeze(), alone.weights_, atol=1e-9)


def test_similarities_may_be_indefinite():
    K, y = digits()
    noise = np.random.default_rng(0).exponential(1.0, (90, 90))
    K = np.stack([K[0], np.tril(noise) + np.tril(noise, -1).T])
    with pytest.warns(IndefiniteKernelWarning):
        S = dmkl.create(None, list(K))
    model = dmkl.SpectralLearning(0.0, tol=1e-6).fit(S[TRAIN, TRAIN], y[TRAIN] > 4)
    expected = dense_weights(K[:, :60, :60], y[TRAIN] > 4, 0.0)
    np.testing.assert_allclose(model.weights_, expected.weights, atol=1e-3)


@pytest.mark.parametrize(
    ("rows", "columns", "value", "message"),
    [
        ([3, 4], [4, 3], -0.5, "kernel 'kernel_1' has an entry -0.5"),
        ([3], slice(None), 0.0, "kernel 'kernel_1' has a sample without any"),
    ],
)
@pytest.mark.filterwarnings("ignore::dmkl.errors.IndefiniteKernelWarning")
def test_what_spectral_learning_refuses(rows, columns, value, message):
    K, y = digits()
    K = np.array(K[:2, :60, :60])
    K[1, rows, columns] = K[1, columns, rows] = value
    with pytest.raises(InputError, match=message):
        dmkl.SpectralLearning(steps=()).fit(in_memory(K, 32), y[TRAIN])
