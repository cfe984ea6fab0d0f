"""What a model says beside scores: its weighted kernel, principal directions, contributions, and feature weights."""

import dask
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from helpers.references import Counting, dense_view, digits, in_memory, labels, over, psd, raise_if_computes
from sklearn.base import clone
from sklearn.decomposition import KernelPCA

import dmkl
from dmkl.errors import InputError, MemoryBudgetError
from dmkl.learners import scikit_learn

M = 40
TRAIN, TEST = np.r_[29:3:-1, 31], np.r_[0:4, 32:40]
EVERY = np.arange(M)
Y = np.arange(M) % 3
KERNELS = psd(3, M)
KERNELS[0] += 30 * (Y[:, None] == Y)

LEARNERS = {
    "several classes": dmkl.MKFDA(p=1.5, lam=0.1),
    "cosine": dmkl.MKFDA(p=2.0, lam=0.1, steps=("cosine", "center", "multiplicative")),
    "sparse": dmkl.MKFDA(p=1.0, lam=0.1),
    "a class each": dmkl.MKSVM(p=1.5, C=1.0),
    "a pair each": dmkl.MKSVM(p=1.5, C=1.0, multiclass="ovo"),
}


def fitted(name, side=7):
    K = in_memory(KERNELS, side)
    return clone(LEARNERS[name]).fit(K[TRAIN, TRAIN], Y[TRAIN]), K


def among(kernels, model):
    """The kernels of all samples, with the statistics of the training samples, by the definitions."""
    whole = np.array(kernels)
    for step in model.steps:
        train = whole[:, TRAIN][:, :, TRAIN]
        if step == "center":
            centering = np.eye(M) - np.isin(EVERY, TRAIN) / len(TRAIN)
            whole = centering @ whole @ centering.T
        elif step == "cosine":
            norm = np.sqrt(np.diagonal(whole, axis1=1, axis2=2))
            whole = whole / norm[:, :, None] / norm[:, None, :]
        else:
            trace = np.trace(train, axis1=1, axis2=2)
            size = trace if step == "trace" else trace / len(TRAIN) - train.mean(axis=(1, 2))
            whole = whole / size[:, None, None]
    return whole


@pytest.mark.parametrize(("name", "side"), [*((name, 7) for name in LEARNERS), ("several classes", 64)])
def test_new_rows_and_all_samples_are_those_of_dense_numpy(name, side):
    model, K = fitted(name, side)
    weights = model.weights_.values.reshape(3, -1)
    dims = tuple(dim for dim in model.weights_.dims if dim != "kernel")
    cross, whole = model.combined_kernel(K[TEST, TRAIN]), model.combined_kernel(K)
    assert cross.dims == (*dims, "sample", "train_sample")
    assert whole.dims == (*dims, "sample", "sample_2")
    expected = np.einsum("nk,nrm->krm", weights, dense_view(KERNELS, TEST, TRAIN, model.steps))
    np.testing.assert_allclose(cross.values.reshape(expected.shape), expected, atol=1e-11 * abs(expected).max())
    expected = np.einsum("nk,nrm->krm", weights, among(KERNELS, model))
    np.testing.assert_allclose(whole.values.reshape(expected.shape), expected, atol=1e-11 * abs(expected).max())
    assert cross.sample.values.tolist() == [str(i) for i in TEST]
    assert cross.train_sample.values.tolist() == model.train_samples_.tolist()


def test_it_is_lazy_and_reads_each_tile_once_for_each_purpose():
    K, source = over(in_memory(KERNELS, 8), Counting)
    train = np.arange(30)
    model = dmkl.MKFDA(p=1.0, lam=0.1, steps=("trace",)).fit(K[train, train], Y[train])
    used = set(np.flatnonzero(model.weights_.values))
    source.reads.clear()
    with raise_if_computes():
        result = model.combined_kernel(K)  # a trace needs no pass
    assert not source.reads
    values = result.values
    assert set(source.reads.values()) == {1}
    assert {kernel for kernel, _, _ in source.reads} == used
    np.testing.assert_array_equal(values, values.T)


def test_tasks_with_unknown_labels_have_kernels_of_their_own_samples():
    K = in_memory(KERNELS, 9)
    labels = np.column_stack([Y == 0, Y == 1]).astype(float)
    labels[TRAIN[:6], 1] = np.nan
    model = dmkl.MKFDA(p=2.0, lam=0.1).fit(K[TRAIN, TRAIN], labels[TRAIN])
    cross, whole = model.combined_kernel(K[TEST, TRAIN]), model.combined_kernel(K)
    for task, rows in enumerate((TRAIN, TRAIN[6:])):
        dense = np.einsum("n,nrm->rm", model.weights_.values[:, task], dense_view(KERNELS, TEST, rows, model.steps))
        np.testing.assert_allclose(cross.values[task][:, len(TRAIN) - len(rows) :], dense, atol=1e-11)
        np.testing.assert_allclose(whole.values[task][np.ix_(TEST, rows)], dense, atol=1e-11)
    assert np.isnan(cross.values[1][:, :6]).all()
    assert np.isfinite(model.kernel_pca(K, 2).values).all()


def test_covariates_are_out_of_all_samples():
    rng = np.random.default_rng(0)
    Z = pd.DataFrame({"age": rng.normal(50, 9, M), "site": rng.choice(list("ab"), M)})
    K = in_memory(KERNELS, 9)
    model = dmkl.MKFDA(p=2.0, lam=0.1, steps=(dmkl.residualize(Z), "trace")).fit(K[TRAIN, TRAIN], Y[TRAIN])
    design = np.column_stack([np.ones(M), Z["age"], Z["site"] == "a"]).astype(float)
    L = np.eye(M) - design @ np.linalg.pinv(design[TRAIN]) @ np.eye(M)[TRAIN]
    whole = L @ KERNELS @ L.T
    whole /= np.trace(whole[:, TRAIN][:, :, TRAIN], axis1=1, axis2=2)[:, None, None]
    expected = np.einsum("n,nrm->rm", model.weights_.values, whole)
    np.testing.assert_allclose(model.combined_kernel(K).values, expected, atol=1e-11)


@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
def test_larger_than_memory_it_goes_to_zarr_block_by_block(tmp_path):
    model, K = fitted("several classes")
    with dask.config.set({"dmkl.memory": 12_000}):  # less than it needs
        model.combined_kernel(K).to_zarr(tmp_path / "combined.zarr", consolidated=False)
        with pytest.raises(MemoryBudgetError, match="Take fewer rows, or write the weighted kernel"):
            model.kernel_pca(K, 2)
    with xr.open_dataarray(tmp_path / "combined.zarr", engine="zarr", consolidated=False) as opened:
        np.testing.assert_array_equal(opened.values, model.combined_kernel(K).values)


def test_principal_directions_are_those_of_scikit_learn():
    model, K = fitted("several classes")
    result = model.kernel_pca(K, 3)
    train = np.einsum("n,nrm->rm", model.weights_.values, dense_view(KERNELS, TRAIN, TRAIN, model.steps))
    cross = np.einsum("n,nrm->rm", model.weights_.values, dense_view(KERNELS, EVERY, TRAIN, model.steps))
    theirs = KernelPCA(3, kernel="precomputed").fit(train)
    expected = theirs.transform(cross)
    signs = np.sign((expected * result.values).sum(axis=0))
    np.testing.assert_allclose(result.values, expected * signs, atol=1e-10)
    np.testing.assert_allclose(result.explained.values, theirs.eigenvalues_ / np.trace(train), rtol=1e-10)
    assert result.is_training.values.tolist() == np.isin(EVERY, TRAIN).tolist()
    alone = model.kernel_pca(K[TEST, TRAIN], 3, training=K[TRAIN, TRAIN])
    np.testing.assert_allclose(alone, result.values[TEST], atol=1e-12)
    assert not alone.is_training.any()


def test_products_have_principal_directions_from_features():
    rng = np.random.default_rng(0)
    tables = {name: rng.normal(size=(36, 3)) for name in "ab"}
    K = dmkl.build(None, tables, {"function": "rbf"}, dtype="float64")
    model = dmkl.Product().fit(K[:30, :30], np.arange(30) % 2)
    expected = model.kernel_pca(K[30:, :30], 2, training=K[:30, :30])
    new = {name: table[30:] for name, table in tables.items()}
    np.testing.assert_allclose(np.abs(model.kernel_pca(features=new)), np.abs(expected), atol=1e-9)


def test_stacks_have_a_weighted_kernel_for_each_task():
    K = in_memory(KERNELS, 9)
    model = dmkl.Stack(steps=()).fit(K[TRAIN, TRAIN], np.column_stack([Y == 0, Y == 1]).astype(float)[TRAIN])
    dense = np.einsum("nt,nrm->trm", model.weights_.values, dense_view(KERNELS, TEST, TRAIN, ()))
    np.testing.assert_allclose(model.combined_kernel(K[TEST, TRAIN]), dense, atol=1e-11)


@pytest.mark.parametrize("estimator", [dmkl.MKFDA(), dmkl.MKSVM()])
def test_fronts_transform_to_principal_components(estimator):
    rng = np.random.default_rng(0)
    X, new, y = rng.standard_normal((40, 5)), rng.standard_normal((9, 5)), np.arange(40) % 3
    front = dmkl.MKLClassifier(estimator, n_components=3).fit(X, y)
    names = front.get_feature_names_out()
    assert front.transform(new).shape == (9, len(names))
    trained, built = front.estimator_, dmkl.build(None, {"X": X}, scikit_learn.DEFAULT_KERNELS)
    kernel = trained.combined_kernel(built).values.reshape(-1, 40, 40)
    pca = [KernelPCA(3, kernel="precomputed").fit(each) for each in kernel]
    expected = np.hstack([each.transform(k) for each, k in zip(pca, kernel, strict=True)])
    computed = front.transform(X)
    np.testing.assert_allclose(computed * np.sign((computed * expected).sum(axis=0)), expected, atol=1e-8)
    assert front.set_output(transform="pandas").transform(new).columns.tolist() == names.tolist()


def test_what_is_refused():
    model, K = fitted("several classes")
    few = TRAIN[:-1]
    for message, compute in (
        ("of which this square set lacks 1, the first being '31'", lambda: model.combined_kernel(K[few, few])),
        ("square set with all training .*, got only new rows", lambda: model.kernel_pca(K[TEST, TRAIN], 2)),
        ("n_components must be from 1 to 26", lambda: model.kernel_pca(K, 27)),
    ):
        with pytest.raises(InputError, match=message):
            compute()


# --- contributions and feature weights ----------------------------------------------------------------------------
FIRST, LAST = np.arange(60), np.arange(60, 90)


@pytest.fixture(scope="module")
def made():
    """A linear and a Gaussian kernel, labels that depend on the first, and the direction of the dependence."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 160)
    direction = rng.standard_normal(12)
    first = rng.standard_normal((160, 12)) + np.outer(2 * y - 1, direction)
    views = {"first": first, "second": rng.standard_normal((160, 5))}
    recipes = [{"function": "linear", "feature": "first"}, {"function": "rbf", "feature": "second"}]
    return dmkl.build(None, views, recipes, labels=y, dtype="float64"), views, y, direction


def test_each_pair_has_contributions_of_its_own():
    K, y = in_memory(digits()[0], 32), labels("multiclass")
    model = dmkl.MKSVM(p=1.5, C=1.0, multiclass="ovo").fit(K[FIRST, FIRST], y[FIRST])
    result = model.contributions(K[LAST, FIRST])
    dense = dense_view(digits()[0], LAST, FIRST, model.steps)
    expected = np.einsum("nrm,nk,mk->rnk", dense, model.weights_.values, model.dual_coef_.values)
    # One against one, the statistics of steps are from all training samples.
    np.testing.assert_allclose(result.values, expected, atol=1e-10)
    assert result.dims == ("sample", "kernel", "pair")


def test_one_kernel_contributes_all_but_the_intercept():
    K, y = in_memory(digits()[0][:1], 32), labels("binary")
    model = dmkl.Stack().fit(K[FIRST, FIRST], y[FIRST])
    shares, scores = model.contributions(K[LAST, FIRST]), model.decision_function(K[LAST, FIRST])
    np.testing.assert_allclose(shares.sum("kernel") + shares.intercept, scores, atol=1e-10)


@pytest.mark.parametrize("steps", [("center", "trace"), ("multiplicative", "center"), ()])
def test_features_behind_a_linear_kernel(made, steps, tmp_path):
    K, views, y, direction = made
    train, test = np.arange(120), np.arange(120, 160)
    model = dmkl.MKFDA(p=2.0, lam=0.1, steps=steps).fit(K[train, train], y[train])
    weights = model.feature_weights("first-linear")
    share = model.contributions(K[test, train]).sel(kernel="first-linear")
    left = share.values - views["first"][test] @ weights.values
    # With centering a constant remains, without centering nothing.
    assert np.ptp(left) < 1e-5 * np.ptp(share.values)
    if not steps:
        np.testing.assert_allclose(left, 0.0, atol=1e-5 * np.ptp(share.values))
    assert np.corrcoef(weights.values, direction)[0, 1] > 0.9
    assert weights.dims == ("feature",)
    model.save(tmp_path / "model.zarr")
    xr.testing.assert_identical(dmkl.load(tmp_path / "model.zarr").feature_weights("first-linear"), weights)


@pytest.mark.parametrize(
    ("name", "steps", "message"),
    [
        ("second-rbf", ("center",), "only linear kernels have weights"),
        ("third", ("center",), "no kernel 'third'"),
        ("first-linear", ("cosine",), "divides each sample by its own norm"),
        ("kernel_0", ("center",), "not computed from features"),
    ],
)
def test_kernels_without_weights_of_features_are_refused(made, name, steps, message):
    K, _, y, _ = made
    kernels = np.asarray(K) if name == "kernel_0" else K
    model = dmkl.MKFDA(lam=0.1, steps=steps).fit(kernels, y)
    with pytest.raises(InputError, match=message):
        model.feature_weights(name)
