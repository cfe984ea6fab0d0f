"""Kernels of features against scikit-learn and the formulas, through `dmkl.build`."""

import re

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from sklearn.gaussian_process.kernels import RBF, Matern
from sklearn.metrics import pairwise

import dmkl
from dmkl.errors import InputError
from dmkl.features.functions import FUNCTIONS
from dmkl.numerics import functions
from dmkl.numerics.compiling import compiled

GAMMA = 0.3
SCALE = 0.5 + np.arange(21) / 7


def minimum(X):
    return np.minimum(X[:, None], X[None]).sum(axis=2)


def weighted_minima(X, widths, weights):
    """Σ_l w_l Σ min over the columns of part l, a part at a time."""
    parts = np.split(X, np.cumsum(widths)[:-1], axis=1)
    return sum(weight * minimum(part) for weight, part in zip(weights, parts, strict=True))


def similarity(together, apart):
    """together/(together + apart), 1 where both are 0."""
    return np.where(together + apart > 0, together, 1) / np.where(together + apart > 0, together + apart, 1)


def matern(nu):
    return lambda X: Matern(2.0, nu=nu)(X)


SIGNED = {
    "linear": ({}, pairwise.linear_kernel),
    "polynomial": ({}, lambda X: pairwise.polynomial_kernel(X)),
    "polynomial of degree 4": (
        {"degree": 4, "gamma": 0.1, "coef0": 0.0},
        lambda X: pairwise.polynomial_kernel(X, degree=4, gamma=0.1, coef0=0.0),
    ),
    "cosine": ({}, pairwise.cosine_similarity),
    "rbf": ({"gamma": GAMMA}, lambda X: pairwise.rbf_kernel(X, gamma=GAMMA)),
    "laplacian": ({"gamma": GAMMA}, lambda X: pairwise.laplacian_kernel(X, gamma=GAMMA)),
    "tanimoto": ({}, lambda X: similarity(X @ X.T, cdist(X, X, "sqeuclidean"))),
    "matern": ({"gamma": 0.25}, matern(1.5)),
    "matern of nu 0.5": ({"gamma": 0.25, "nu": 0.5}, matern(0.5)),
    "matern of nu 2.5": ({"gamma": 0.25, "nu": 2.5}, matern(2.5)),
    "matern with scales": ({"gamma": 1.0, "scale": SCALE}, lambda X: Matern(SCALE, nu=1.5)(X)),
    "rbf with scales": ({"gamma": 0.5, "scale": SCALE}, lambda X: RBF(SCALE)(X)),
    "laplacian with scales": (
        {"gamma": GAMMA, "scale": SCALE},
        lambda X: pairwise.laplacian_kernel(X / SCALE, gamma=GAMMA),
    ),
}
HISTOGRAMS = {
    "chi2": ({"gamma": GAMMA}, lambda X: pairwise.chi2_kernel(X, gamma=GAMMA)),
    "intersection": ({}, minimum),
    "jaccard": ({}, lambda X: similarity(minimum(X), cdist(X, X, "cityblock"))),
    "pyramid": ({"levels": 3}, lambda X: weighted_minima(X, (1, 4, 16), (0.25, 0.25, 0.5))),
    "pyramid with weights": ({"levels": [6, 15], "weights": [0.0, 3.0]}, lambda X: weighted_minima(X, (6, 15), (0, 3))),
    "proximity": ({"scales": 3}, lambda X: weighted_minima(X, (7, 7, 7), (1, 1, 1))),
    "proximity with weights": (
        {"scales": [1, 20], "weights": [2.0, 0.5]},
        lambda X: weighted_minima(X, (1, 20), (2, 0.5)),
    ),
}
EVERY = {**SIGNED, **HISTOGRAMS}
CHANGES_SIGN = ("random_rbf", "distance")


def spec(case, **more):
    return {"function": case.split()[0], **EVERY[case][0], **more}


def built(X, specs, **more):
    """The entries of a lazy kernel set."""
    return np.asarray(dmkl.build(None, {"x": X}, specs, **more))


def data(case, m, dtype="f8", seed=0):
    """Histograms with empty bins, or numbers of both signs."""
    rng = np.random.default_rng(seed)
    X = rng.random((m, 21)) * (rng.random((m, 21)) < 0.7) if case in HISTOGRAMS else rng.normal(size=(m, 21))
    return X.astype(dtype)


def close(entries, expected, dtype="f8", atol=1e-13):
    scale = max(np.abs(expected).max(), 1e-300)
    np.testing.assert_allclose(entries / scale, expected / scale, rtol=0, atol=atol if dtype == "f8" else 2e-6)


# --- every function ------------------------------------------------------------------------------------------
def test_every_function_is_compared():
    assert {case.split()[0] for case in EVERY} | set(CHANGES_SIGN) == set(FUNCTIONS) - {"precomputed", "product"}


@pytest.mark.parametrize("case", EVERY)
@pytest.mark.parametrize(
    ("table", "m", "tile", "dtype"),
    [
        ("plain", 10, 1, "f8"),
        ("plain", 50, 7, "f4"),
        ("plain", 64, 64, "f8"),
        ("one sample", 1, 8, "f4"),
        ("zeros", 20, 8, "f8"),
        ("constant columns", 20, 8, "f8"),
        ("in panels", 17, 5, "f8"),
        ("subset of columns", 20, 8, "f8"),
        ("subset, column-major", 20, 8, "f8"),
    ],
)
def test_entries_are_those_of_the_formula(case, table, m, tile, dtype, monkeypatch):
    X, more = data(case, m, dtype), {}
    monkeypatch.setattr(functions, "PANEL", {"in panels": 4, "plain": functions.PANEL}.get(table, 8))
    if table == "zeros":
        X[[0, 7, 8]] = 0
        X[:, 3] = 0
        close(built(np.zeros((6, 21)), spec(case), tile=4)[0], EVERY[case][1](np.zeros((6, 21))))
    elif table == "constant columns":
        X[:, ::2] = 2.0
    elif table.startswith("subset"):
        rng = np.random.default_rng(1)
        order = "F" if "major" in table else "C"
        X = np.asarray(np.concatenate([X, rng.random((20, 9))], axis=1), order=order)
        more["columns"] = rng.permutation(30)[:21]
    K = dmkl.build(None, {"x": X}, spec(case, **more), tile=tile)
    (entries,) = np.asarray(K)
    assert entries.dtype == np.dtype(dtype)
    close(entries, EVERY[case][1](X[:, more.get("columns", slice(None))].astype("f8")), dtype)
    close(K.view.source.diagonal(np.arange(1))[0], entries.diagonal(), dtype)
    if dtype == "f8":
        values = np.linalg.eigvalsh(entries)
        assert values[0] >= -1e-12 * values[-1]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("case", EVERY)
def test_kernels_are_symmetric_to_the_last_bit(case, dtype):
    """A store requires symmetric tiles on the diagonal."""
    X = data(case, 150, dtype)
    # Selected columns have another memory layout.
    for asked in (spec(case), spec(case, columns=[*range(20, -1, -1)])):
        source = dmkl.build(None, {"x": X}, asked, tile=131).view.source
        for key in [(0, 0, 0), (0, 1, 1)]:
            _, tile = next(source.stream([key]))
            np.testing.assert_array_equal(tile, tile.T)


@pytest.mark.parametrize("function", ["rbf", "laplacian", "matern"])
def test_bandwidths_of_scaled_columns_are_multiples_of_the_scaled_distances(function):
    X, scale = data("rbf", 30), np.array([0.5, 2.0, 3.0])
    asked = {"function": function, "columns": [4, 0, 7], "bandwidth": [0.5, 2]}
    scaled = np.asarray(dmkl.build(None, {"x": X}, {**asked, "scale": scale}, train=np.arange(20)))
    close(scaled, built(X[:, [4, 0, 7]] / scale, {**asked, "columns": [0, 1, 2]}, train=np.arange(20)))
    with pytest.raises(InputError, match="scale must hold one number for each of the 3 columns, got 2"):
        built(X, {**asked, "scale": [1, 2]})


# --- inputs at the edges -------------------------------------------------------------------------------------
@pytest.mark.parametrize("function", sorted(functions.BANDED - {"random_rbf", "distance"}))
def test_samples_at_one_place_have_no_bandwidth(function):
    asked = {"function": function}
    with pytest.raises(InputError, match=r"but 1 training samples have 'x'; give gamma as a number"):
        built(np.ones((4, 3)), asked, train=[2])
    X = np.tile(np.random.default_rng(0).random(5), (8, 1))
    with pytest.raises(InputError, match=r"kernel 'x-.*all of them are equal in 'x' \(mean distance 0\)"):
        built(X, asked)
    varied = np.concatenate([X, np.random.default_rng(1).random((8, 5))])
    with pytest.raises(InputError, match="all of them are equal in the columns of 'x' that it takes"):
        built(np.concatenate([varied, np.ones((16, 1))], axis=1), {**asked, "columns": [5]})


@pytest.mark.parametrize("scale", [1e200, 1e-160])
def test_mean_distances_that_are_no_numbers_are_refused(scale):
    with pytest.raises(InputError, match=r"that of 'x' is out of range \(mean distance .* Scale these features"):
        built(np.random.default_rng(1).normal(size=(8, 5)) * scale, {"function": "rbf"})


@pytest.mark.parametrize(("case", "dtype"), [("rbf", "f4"), ("laplacian", "f8")])
def test_far_from_the_origin(case, dtype):
    X = np.random.default_rng(0).normal(1e4, 1, (60, 21)).astype(dtype)
    true = EVERY[case][1](X.astype("f8") - X.astype("f8").mean(axis=0))
    (entries,) = built(X, spec(case), tile=16)
    np.testing.assert_allclose(entries, true, rtol=1e-5, atol=1e-12)
    np.testing.assert_array_equal(entries.diagonal(), 1)
    assert entries.max() <= 1
    distances = np.abs(X.astype("f8")[:, None] - X.astype("f8")[None]) ** (2 if case == "rbf" else 1)
    mean = distances.sum() / (60 * 59)
    K = dmkl.build(None, {"x": X}, {"function": case})
    assert K.provenance[0]["parameters"]["gamma"] == pytest.approx(1 / mean, rel=1e-6)


@pytest.mark.parametrize("case", HISTOGRAMS)
def test_negative_values_are_no_histogram(case):
    X = data(case, 9)
    X[4, 2] = -0.5
    with pytest.raises(InputError, match=rf"{case.split()[0]} is for histograms.*'x' has -0\.5 at sample 4, column 2"):
        built(X, spec(case))


# --- distances -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("tile", "dtype"), [(7, "f4"), (64, "f8")])
def test_a_matrix_of_distances(tile, dtype):
    D = pairwise.manhattan_distances(data("laplacian", 50)).astype(dtype)
    D = np.maximum(D, D.T)
    (entries,) = built(D, {"function": "distance", "gamma": GAMMA}, tile=tile)
    close(entries, np.exp(-GAMMA * D.astype("f8")), dtype)
    np.testing.assert_array_equal(np.asarray(entries), entries.T)
    shifted = dmkl.build(None, {"x": D + 1}, {"function": "distance", "gamma": GAMMA}, tile=tile)
    # Distances need not vanish on the diagonal.
    close(shifted.view.source.diagonal(np.arange(1))[0], np.full(50, np.exp(-GAMMA)), dtype)
    K = dmkl.build(None, {"x": D}, {"function": "distance"}, tile=tile, train=np.arange(10, 30))
    off = D[10:30, 10:30].astype("f8")[~np.eye(20, dtype=bool)]
    assert K.provenance[0]["parameters"]["gamma"] == pytest.approx(1 / off.mean(), rel=1e-6)
    close(np.asarray(K)[0], np.exp(-D.astype("f8") / off.mean()), dtype)


@pytest.mark.parametrize(("i", "j"), [(1, 2), (6, 0), (0, 6)])
def test_distances_that_are_not_symmetric_are_named(i, j):
    D = np.abs(np.subtract.outer(np.arange(9.0), np.arange(9.0)))
    D[i, j] += 1
    with pytest.raises(InputError, match=rf"'x' are not symmetric: entry \(({i}, {j}|{j}, {i})\) is"):
        built(D, {"function": "distance"}, tile=4)


def test_the_advice_about_a_triangle_mirrors_it():
    D = np.abs(np.subtract.outer(np.arange(9.0), np.arange(9.0))) + 1.0
    with pytest.raises(InputError, match="are not symmetric") as caught:
        built(np.triu(D), {"function": "distance"})
    (formula,) = re.findall(r"or (D .*) of a triangle", str(caught.value))
    np.testing.assert_array_equal(eval(formula, {"np": np, "D": np.triu(D)}), D)


# --- random kernels ------------------------------------------------------------------------------------------
NAMES = [f"s{i}" for i in range(60)]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_random_rbf_is_the_rbf_of_gaussian_vectors(dtype):
    spec = {"function": "random_rbf", "dimensions": 3, "seed": 5}
    K = dmkl.build(None, {"x": np.ones((60, 1))}, spec, samples=NAMES, train=range(30), dtype=dtype)
    vectors = functions.gaussians(functions.sample_keys(K.samples, 5), 3)
    mean = pairwise.euclidean_distances(vectors[:30], squared=True).sum() / (30 * 29)
    assert K.provenance[0]["parameters"]["gamma"] == pytest.approx(1 / mean, rel=1e-10)
    close(np.asarray(K)[0], pairwise.rbf_kernel(vectors, gamma=1 / mean), dtype)


def test_gaussian_vectors_are_gaussian():
    """Moments of 160,000 numbers, within five standard errors."""
    Z = functions.gaussians(functions.sample_keys(np.arange(10_000), 1), 16)
    for power, moment, variance in [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)]:
        assert np.mean(Z**power) == pytest.approx(moment, abs=5 * np.sqrt(variance / Z.size))
    assert np.abs(np.corrcoef(Z.T) - np.eye(16)).max() < 5 / np.sqrt(10_000)
    assert np.abs(np.corrcoef(Z[:50], Z[50:100]) - np.eye(100)).max() < 5 / np.sqrt(16)


def test_random_kernels_are_functions_of_the_names():
    spec = {"function": "random_rbf", "gamma": 0.1}
    table = np.ones((60, 1))
    (whole,) = built(table, spec, samples=NAMES, tile=16)
    order = np.random.default_rng(0).permutation(60)[:25]
    (some,) = built(table[:25], spec, samples=[NAMES[i] for i in order], tile=7)
    np.testing.assert_allclose(some, whole[np.ix_(order, order)], rtol=1e-12)
    seeds = built(table, {**spec, "seed": [0, 1]}, samples=NAMES)
    np.testing.assert_allclose(seeds[0], whole, rtol=1e-12)
    first, second = (kernel[np.triu_indices(60, 1)] for kernel in seeds)
    assert np.abs(np.corrcoef(first, second)[0, 1]) < 0.15


# --- bandwidths ----------------------------------------------------------------------------------------------
DISTANCES = {
    "rbf": lambda X: pairwise.euclidean_distances(X, squared=True),
    "laplacian": pairwise.manhattan_distances,
    "chi2": lambda X: -pairwise.additive_chi2_kernel(X),
}


@pytest.mark.parametrize(
    ("function", "dtype", "tile"), [("rbf", "f4", 7), ("rbf", "f8", 64), ("laplacian", "f4", 64), ("chi2", "f8", 7)]
)
def test_bandwidths_are_multiples_of_the_mean_distance(function, dtype, tile):
    X = np.abs(data("chi2", 50, dtype))
    train = np.random.default_rng(2).permutation(50)[:31]
    asked = {"function": function, "bandwidth": [0.1, 1, 10]}
    mean = DISTANCES[function](X[train].astype("f8"))[~np.eye(31, dtype=bool)].mean()
    K = dmkl.build(None, {"x": X}, asked, train=train, tile=tile)
    for bandwidth, entry, entries in zip([0.1, 1, 10], K.provenance, np.asarray(K), strict=True):
        assert entry["bandwidth"] == bandwidth
        assert entry["mean_distance"] == pytest.approx(mean, rel=1e-10 if dtype == "f8" else 1e-6)
        assert entry["training_rows"] == 31
        close(entries, np.exp(-DISTANCES[function](X.astype("f8")) / (bandwidth * mean)), dtype)


@pytest.mark.parametrize("function", DISTANCES)
def test_bandwidths_know_nothing_of_other_rows(function):
    X = np.abs(data("chi2", 40))
    train = np.arange(5, 30)
    mask = np.isin(np.arange(40), train)
    other = np.where(mask[:, None], X, 7 * X[::-1])

    def gamma(values, **more):
        K = dmkl.build(None, {"x": values}, {"function": function}, **more)
        return K.provenance[0]["parameters"]["gamma"]

    assert gamma(other, train=train) == pytest.approx(gamma(X, train=train), rel=1e-12)
    assert gamma(X, train=mask) == gamma(X, train=train) == gamma(X, train=train[::-1])
    splits = np.where(mask, 0, 2)[None]
    assert gamma(X, splits=splits) == gamma(X, train=train)
    assert gamma(X, splits=splits, train=np.arange(40)) == gamma(X)


@pytest.mark.parametrize("train", [[0, 0, 1], [], [-1, 2], [0, 50], [0.5, 1], [[0, 1]], [True, False], "ab"])
def test_training_rows_that_make_no_sense(train):
    with pytest.raises(InputError, match=r"train must be different positions among the 50 samples, or a mask"):
        built(data("rbf", 50), {"function": "rbf"}, train=train)


# --- compiled loops --------------------------------------------------------------------------------------------------
def test_loops_run_where_nothing_compiled_can_be_kept(monkeypatch):
    monkeypatch.setattr("numba.core.caching.CacheImpl._locator_classes", [])

    @compiled()
    def add_one(out):
        for i in range(len(out)):
            out[i] += 1

    out = np.zeros(3)
    add_one(out)
    np.testing.assert_array_equal(out, 1)
