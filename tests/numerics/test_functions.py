"""Kernels of features against scikit-learn and the formulas, through `dmkl.build`."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics import pairwise

import dmkl
from dmkl.errors import InputError
from dmkl.features.specs import FUNCTIONS, plan, read_specs
from dmkl.inputs.features import as_features
from dmkl.numerics import functions

pytestmark = pytest.mark.usefixtures("synchronous")

GAMMA = 0.3
WIDTHS, WEIGHTS = (1, 4, 16), (0.25, 0.25, 0.5)


def minimum(X):
    return np.minimum(X[:, None], X[None]).sum(axis=2)


def weighted_minima(X, widths, weights):
    """Σ_l w_l Σ min over the columns of part l, a part at a time."""
    parts = np.split(X, np.cumsum(widths)[:-1], axis=1)
    return sum(weight * minimum(part) for weight, part in zip(weights, parts, strict=True))


def chi2_distance(X):
    return -pairwise.additive_chi2_kernel(X)


SIGNED = {
    "linear": ({}, pairwise.linear_kernel),
    "polynomial": ({}, lambda X: pairwise.polynomial_kernel(X)),
    "polynomial of degree 1": (
        {"degree": 1, "gamma": 2.0, "coef0": 0.5},
        lambda X: pairwise.polynomial_kernel(X, degree=1, gamma=2.0, coef0=0.5),
    ),
    "polynomial of degree 4": (
        {"degree": 4, "gamma": 0.1, "coef0": 0.0},
        lambda X: pairwise.polynomial_kernel(X, degree=4, gamma=0.1, coef0=0.0),
    ),
    "cosine": ({}, pairwise.cosine_similarity),
    "rbf": ({"gamma": GAMMA}, lambda X: pairwise.rbf_kernel(X, gamma=GAMMA)),
    "laplacian": ({"gamma": GAMMA}, lambda X: pairwise.laplacian_kernel(X, gamma=GAMMA)),
}
HISTOGRAMS = {
    "chi2": ({"gamma": GAMMA}, lambda X: pairwise.chi2_kernel(X, gamma=GAMMA)),
    "intersection": ({}, minimum),
    "pyramid": ({"levels": 3}, lambda X: weighted_minima(X, WIDTHS, WEIGHTS)),
    "pyramid with weights": (
        {"levels": [6, 15], "weights": [0.0, 3.0]},
        lambda X: weighted_minima(X, (6, 15), (0, 3)),
    ),
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
    """The entries of a kernel set that nobody has stored."""
    return np.asarray(dmkl.build(None, {"x": X}, specs, **more))


def data(case, m, dtype="f8", seed=0):
    """Histograms with empty bins, or numbers of either sign."""
    rng = np.random.default_rng(seed)
    X = rng.random((m, 21)) * (rng.random((m, 21)) < 0.7) if case in HISTOGRAMS else rng.normal(size=(m, 21))
    return X.astype(dtype)


def close(found, expected, dtype="f8", atol=1e-13):
    scale = max(np.abs(expected).max(), 1e-300)
    np.testing.assert_allclose(found / scale, expected / scale, rtol=0, atol=atol if dtype == "f8" else 2e-6)


# --- every function ------------------------------------------------------------------------------------------


def test_every_function_is_compared():
    assert {case.split()[0] for case in EVERY} | set(CHANGES_SIGN) == set(FUNCTIONS) - {"precomputed"}


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("case", EVERY)
@pytest.mark.parametrize(("m", "tile"), [(10, 1), (50, 7), (50, 64), (64, 64)])
def test_entries_are_those_of_the_formula(case, m, tile, dtype):
    X = data(case, m, dtype)
    (found,) = built(X, spec(case), tile=tile)
    assert found.dtype == np.dtype(dtype)
    close(found, EVERY[case][1](X.astype("f8")), dtype)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("case", EVERY)
def test_kernels_are_symmetric_to_the_last_bit(case, dtype):
    """What a store must hold in its tiles on the diagonal."""
    X = data(case, 150, dtype)
    # Chosen columns reach the arithmetic in another order of memory.
    for asked in (spec(case), spec(case, columns=[*range(20, -1, -1)])):
        source = dmkl.build(None, {"x": X}, asked, tile=131).view.source
        for key in [(0, 0, 0), (0, 1, 1)]:
            _, tile = next(source.stream([key]))
            np.testing.assert_array_equal(tile, tile.T)


@pytest.mark.parametrize("case", EVERY)
def test_kernels_are_positive_semidefinite(case):
    (found,) = built(data(case, 40), spec(case), tile=16)
    values = np.linalg.eigvalsh(found)
    assert values[0] >= -1e-12 * values[-1]


@pytest.mark.parametrize("case", EVERY)
def test_panels_of_columns_change_nothing(case, monkeypatch):
    X = data(case, 17)
    (whole,) = built(X, spec(case), tile=5)
    monkeypatch.setattr(functions, "PANEL", 4)
    (found,) = built(X, spec(case), tile=5)
    close(found, whole)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("case", EVERY)
def test_subsets_of_columns_are_tables_of_these_columns(case, order, monkeypatch):
    rng = np.random.default_rng(1)
    X = np.asarray(np.concatenate([data(case, 20), rng.random((20, 9))], axis=1), order=order)
    columns = rng.permutation(30)[:21]
    monkeypatch.setattr(functions, "PANEL", 8)
    close(built(X, spec(case, columns=columns), tile=8)[0], EVERY[case][1](X[:, columns]))


@pytest.mark.parametrize("case", EVERY)
def test_the_diagonal_of_a_computed_set_is_that_of_its_entries(case):
    K = dmkl.build(None, {"x": data(case, 19)}, spec(case), tile=8)
    close(K.view.source.diagonal(np.arange(1))[0], np.asarray(K)[0].diagonal())


# --- inputs at the edges -------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", EVERY)
def test_zeros(case):
    X = data(case, 20)
    X[[0, 7, 8]] = 0
    X[:, 3] = 0
    close(built(X, spec(case), tile=8)[0], EVERY[case][1](X))
    close(built(np.zeros((6, 21)), spec(case), tile=4)[0], EVERY[case][1](np.zeros((6, 21))))


@pytest.mark.parametrize("case", EVERY)
def test_constant_columns(case):
    X = data(case, 20)
    X[:, ::2] = 2.0
    close(built(X, spec(case), tile=8)[0], EVERY[case][1](X))


@pytest.mark.parametrize("case", EVERY)
def test_one_sample(case):
    X = data(case, 1)
    close(built(X, spec(case))[0], EVERY[case][1](X))


@pytest.mark.parametrize("function", sorted(functions.BANDED - {"random_rbf", "distance"}))
def test_one_sample_has_no_bandwidth(function):
    with pytest.raises(InputError, match=r"but 1 training samples have 'x'; give gamma as a number"):
        built(np.ones((1, 3)), {"function": function})
    with pytest.raises(InputError, match=r"but 1 training samples have 'x'"):
        built(np.ones((4, 3)), {"function": function}, train=[2])


@pytest.mark.parametrize("function", sorted(functions.BANDED - {"random_rbf", "distance"}))
def test_samples_at_one_place_have_no_bandwidth(function):
    X = np.tile(np.random.default_rng(0).random(5), (8, 1))
    with pytest.raises(InputError, match=r"kernel 'x-.*all of them are equal in 'x' \(mean distance 0\)"):
        built(X, {"function": function})
    varied = np.concatenate([X, np.random.default_rng(1).random((8, 5))])
    with pytest.raises(InputError, match="all of them are equal"):
        built(varied, {"function": function}, train=np.arange(8))
    with pytest.raises(InputError, match="all of them are equal in the columns of 'x' that it takes"):
        built(np.concatenate([varied, np.ones((16, 1))], axis=1), {"function": function, "columns": [5]})


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("case", ["rbf", "laplacian", "chi2"])
def test_a_sample_is_exactly_like_itself(case, dtype):
    X = np.abs(data(case, 30, dtype)) + 1000
    X[20:] = X[:10]
    (found,) = built(X, spec(case), tile=11)
    np.testing.assert_array_equal(found.diagonal(), 1)
    assert found.max() <= 1
    np.testing.assert_allclose(found[np.arange(10), np.arange(20, 30)], 1, rtol=1e-9 if dtype == "f8" else 1e-6)
    np.testing.assert_allclose(found[:, 20:], found[:, :10], rtol=1e-9 if dtype == "f8" else 1e-6)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("case", ["rbf", "laplacian"])
def test_far_from_the_origin(case, dtype):
    X = np.random.default_rng(0).normal(1e4, 1, (60, 21)).astype(dtype)
    true = EVERY[case][1](X.astype("f8") - X.astype("f8").mean(axis=0))
    np.testing.assert_allclose(built(X, spec(case), tile=16)[0], true, rtol=1e-5, atol=1e-12)
    distances = np.abs(X.astype("f8")[:, None] - X.astype("f8")[None]) ** (2 if case == "rbf" else 1)
    mean = distances.sum() / (60 * 59)
    K = dmkl.build(None, {"x": X}, {"function": case})
    assert K.provenance[0]["parameters"]["gamma"] == pytest.approx(1 / mean, rel=1e-6)


@given(
    X=arrays("f8", (9, 3), elements=st.floats(-10, 10)),
    tile=st.integers(1, 10),
    case=st.sampled_from(sorted(EVERY)),
)
def test_whatever_the_numbers(X, tile, case):
    X = np.tile(X, 7)
    X[np.abs(X) < 1e-6] = 0  # scikit-learn leaves vectors shorter than 2e-15 as they are
    X = np.abs(X) if case in HISTOGRAMS else X
    (found,) = built(X, spec(case), tile=tile)
    close(found, EVERY[case][1](X), atol=1e-11)
    for side in range(0, 9, tile):
        square = found[side : side + tile, side : side + tile]
        np.testing.assert_array_equal(square, square.T)


@pytest.mark.parametrize("case", HISTOGRAMS)
def test_negative_values_are_no_histogram(case):
    X = data(case, 9)
    X[4, 2] = -0.5
    with pytest.raises(InputError, match=rf"{case.split()[0]} is for histograms.*'x' has -0\.5 at sample 4, column 2"):
        built(X, spec(case))


@pytest.mark.parametrize("gamma", [1e-300, 1e300])
def test_extreme_widths_are_no_error(gamma):
    X = data("rbf", 9)
    (found,) = built(X, {"function": "rbf", "gamma": gamma})
    np.testing.assert_array_equal(found, np.ones((9, 9)) if gamma < 1 else np.eye(9))


def test_precision_can_be_chosen():
    X = data("rbf", 30)
    close(built(X, spec("rbf"), dtype="f4")[0], EVERY["rbf"][1](X), "f4")
    found = built(X.astype("f4"), spec("rbf"), dtype="f8")[0]
    close(found, EVERY["rbf"][1](X.astype("f4").astype("f8")))
    with pytest.raises(InputError, match="stored as float32 or float64, not float16"):
        built(X, spec("rbf"), dtype="f2")


# --- distances -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("tile", [7, 64])
def test_a_matrix_of_distances(tile, dtype):
    D = pairwise.manhattan_distances(data("laplacian", 50)).astype(dtype)
    D = np.maximum(D, D.T)
    (found,) = built(D, {"function": "distance", "gamma": GAMMA}, tile=tile)
    close(found, np.exp(-GAMMA * D.astype("f8")), dtype)
    np.testing.assert_array_equal(np.asarray(found), found.T)
    np.testing.assert_array_equal(found.diagonal(), 1)
    K = dmkl.build(None, {"x": D}, {"function": "distance"}, tile=tile, train=np.arange(10, 30))
    off = D[10:30, 10:30].astype("f8")[~np.eye(20, dtype=bool)]
    assert K.provenance[0]["parameters"]["gamma"] == pytest.approx(1 / off.mean(), rel=1e-6)
    close(np.asarray(K)[0], np.exp(-D.astype("f8") / off.mean()), dtype)


def test_distances_need_not_vanish_on_the_diagonal():
    D = np.abs(np.subtract.outer(np.arange(9.0), np.arange(9.0))) + 0.5
    K = dmkl.build(None, {"x": D}, {"function": "distance", "gamma": 1.0}, tile=4)
    close(np.asarray(K)[0], np.exp(-D))
    close(K.view.source.diagonal(np.arange(1))[0], np.exp(-D.diagonal()))
    K = dmkl.build(None, {"x": D}, {"function": "distance"}, tile=4)
    assert K.provenance[0]["mean_distance"] == pytest.approx(D[~np.eye(9, dtype=bool)].mean())


@pytest.mark.parametrize(("i", "j"), [(1, 2), (6, 0), (0, 6)])
def test_distances_that_are_not_symmetric_are_named(i, j):
    D = np.abs(np.subtract.outer(np.arange(9.0), np.arange(9.0)))
    D[i, j] += 1
    low, high = min(i, j), max(i, j)
    with pytest.raises(InputError, match=rf"'x' are not symmetric: entry \(({low}, {high}|{high}, {low})\) is"):
        built(D, {"function": "distance", "gamma": 1.0}, tile=4)
    with pytest.raises(InputError, match="'x' are not symmetric"):
        built(D, {"function": "distance"}, tile=4)


# --- random kernels ------------------------------------------------------------------------------------------

NAMES = [f"s{i}" for i in range(60)]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_random_rbf_is_the_rbf_of_gaussian_vectors(dtype):
    table = np.ones((60, 1))
    (found,) = built(table, {"function": "random_rbf", "seed": 5, "gamma": 0.1}, samples=NAMES, dtype=dtype)
    vectors = functions.gaussians(functions.sample_keys(np.array(NAMES, object), 5), 16)
    close(found, pairwise.rbf_kernel(vectors, gamma=0.1), dtype)
    K = dmkl.build(None, {"x": table}, {"function": "random_rbf", "dimensions": 3}, train=range(30), dtype=dtype)
    vectors = functions.gaussians(functions.sample_keys(K.samples, 0), 3)
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
    one, two = (kernel[np.triu_indices(60, 1)] for kernel in seeds)
    assert np.abs(np.corrcoef(one, two)[0, 1]) < 0.15


# --- bandwidths ----------------------------------------------------------------------------------------------

DISTANCES = {
    "rbf": lambda X: pairwise.euclidean_distances(X, squared=True),
    "laplacian": pairwise.manhattan_distances,
    "chi2": chi2_distance,
}


def mean_distance(function, X):
    D = DISTANCES[function](X)
    return D[~np.eye(len(D), dtype=bool)].mean()


@pytest.mark.parametrize("tile", [7, 64])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("function", DISTANCES)
def test_bandwidths_are_multiples_of_the_mean_distance(function, dtype, tile):
    X = np.abs(data("chi2", 50, dtype))
    train = np.random.default_rng(2).permutation(50)[:31]
    asked = {"function": function, "bandwidth": [0.1, 1, 10]}
    mean = mean_distance(function, X[train].astype("f8"))
    K = dmkl.build(None, {"x": X}, asked, train=train, tile=tile)
    for bandwidth, entry, found in zip([0.1, 1, 10], K.provenance, np.asarray(K), strict=True):
        assert entry["bandwidth"] == bandwidth
        assert entry["mean_distance"] == pytest.approx(mean, rel=1e-10 if dtype == "f8" else 1e-6)
        assert entry["parameters"]["gamma"] == pytest.approx(1 / (bandwidth * entry["mean_distance"]), rel=1e-14)
        assert entry["training_rows"] == 31
        close(found, np.exp(-DISTANCES[function](X.astype("f8")) / (bandwidth * mean)), dtype)


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
    assert gamma(other) != pytest.approx(gamma(X), rel=1e-3)
    splits = np.where(mask, 0, 2)[None]
    assert gamma(X, splits=splits) == gamma(X, train=train)
    assert gamma(X, splits=splits, train=np.arange(40)) == gamma(X)


@pytest.mark.parametrize("function", DISTANCES)
def test_bandwidths_of_columns_are_theirs(function):
    X = np.abs(data("chi2", 30))
    asked = {"function": function, "columns": {"few": [4, 2], "many": list(range(15))}}
    K = dmkl.build(None, {"x": X}, asked, tile=8)
    for entry, columns in zip(K.provenance, ([4, 2], range(15)), strict=True):
        assert entry["mean_distance"] == pytest.approx(mean_distance(function, X[:, columns]))


@given(
    X=arrays("f8", (8, 2), elements=st.floats(0, 100).map(lambda x: round(x, 3))),
    offset=st.floats(0, 1e6),
    function=st.sampled_from(sorted(DISTANCES)),
)
def test_mean_distances_whatever_the_numbers(X, offset, function):
    X = X + np.round(offset)
    mean = mean_distance(function, X - X.mean(axis=0) if function == "rbf" else X)
    if mean < 1e-9:
        return
    K = dmkl.build(None, {"x": X}, {"function": function}, tile=3)
    assert K.provenance[0]["mean_distance"] == pytest.approx(mean, rel=1e-6)


@pytest.mark.parametrize("train", [[0, 0, 1], [], [-1, 2], [0, 50], [0.5, 1], [[0, 1]], [True, False], "ab"])
def test_training_rows_that_make_no_sense(train):
    with pytest.raises(InputError, match=r"train must be different positions among the 50 samples, or a mask"):
        built(data("rbf", 50), {"function": "rbf"}, train=train)


def test_kernels_that_share_a_statistic_do_not_spoil_it():
    """A stream computes a statistic once for neighbors; each is as if it were alone."""
    X = np.abs(data("chi2", 23))
    specs = [
        {"function": ["rbf", "laplacian", "chi2"], "gamma": [0.1, 2.0]},
        {"function": ["linear", "polynomial", "cosine", "intersection"]},
        {"function": "pyramid", "levels": 3},
        {"function": "linear", "columns": [0, 1], "name": "some"},
    ]
    together = built(X, specs, tile=8)
    names = dmkl.build(None, {"x": X}, specs).names
    planned, _ = plan(read_specs(specs), as_features({"x": X}).blocks)
    order = np.random.default_rng(0).permutation(len(names))
    K = dmkl.build(None, {"x": X}, specs, tile=8).select([names[k] for k in order])
    np.testing.assert_array_equal(np.asarray(K), together[order])
    assert [item.name for item in planned] == list(names)
    for item, kernel in zip(planned, together, strict=True):
        keys = {key: item.parameters[key] for key in ("gamma", "levels", "degree", "coef0") if key in item.parameters}
        alone = {"function": item.function, **keys}
        if item.columns is not None:
            alone["columns"] = list(item.columns)
        if item.function == "pyramid":
            alone["levels"] = 3
        np.testing.assert_array_equal(built(X, alone, tile=8)[0], kernel, err_msg=item.name)
