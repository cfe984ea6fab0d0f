"""Kernels by a function of the user's own, and products of kernels, in sets, models and predictions."""

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import RBF
from sklearn.metrics.pairwise import laplacian_kernel, rbf_kernel

import dmkl
from dmkl.errors import InputError

RNG = np.random.default_rng(0)
X, NEW = RNG.normal(size=(60, 5)), RNG.normal(size=(7, 5))
Y = X[:, 0] + 0.1 * RNG.normal(size=60)


@pytest.mark.parametrize("tile", [7, 64])
@pytest.mark.parametrize("function", [rbf_kernel, RBF(2.0), lambda a, b: laplacian_kernel(a[:, :2], b[:, :2])])
def test_entries_are_what_the_function_returns(function, tile):
    K = dmkl.build(None, {"x": X}, {"function": function, "columns": [3, 0, 1]}, tile=tile)
    expected = function(X[:, [3, 0, 1]], X[:, [3, 0, 1]])
    np.testing.assert_allclose(np.asarray(K)[0], expected, rtol=1e-12)
    np.testing.assert_allclose(K.view.source.diagonal(np.arange(1))[0], expected.diagonal(), rtol=1e-12)


def test_new_samples_take_a_function_that_was_given_here_or_again(tmp_path):
    kernels, own = dmkl.build(tmp_path / "k", {"x": X}, {"function": rbf_kernel}), lambda a, b: a @ b.T
    model = dmkl.MKRidge(lam=0.1).fit(kernels, Y)
    model.save(tmp_path / "model")
    assert kernels.names == ("x-rbf_kernel",)
    assert kernels.provenance[0]["parameters"]["path"] == "sklearn.metrics.pairwise:rbf_kernel"
    expected = model.predict({kernels.names[0]: rbf_kernel(NEW, X)})
    for fitted in (model, dmkl.load(tmp_path / "model")):
        np.testing.assert_allclose(fitted.predict(features={"x": NEW}), expected, rtol=1e-10)

    dmkl.build(tmp_path / "own", {"x": X}, {"function": own, "name": "mine"})
    again = dmkl.open(tmp_path / "own")
    model = dmkl.MKRidge(lam=0.1).fit(again, Y)
    with pytest.raises(InputError, match=r"'mine' .*<lambda>, and nothing is imported .*functions=\{'mine': "):
        model.predict(features={"x": NEW})
    with pytest.raises(InputError, match=r"functions= has mein, by which no kernel is computed; .* are mine"):
        model.predict(features={"x": NEW}, functions={"mein": own})
    given = model.predict(features={"x": NEW}, functions={"mine": own})
    np.testing.assert_allclose(given, model.predict({"mine": NEW @ X.T}), rtol=1e-10)
    np.testing.assert_allclose(
        dmkl.build_cross(again, {"x": NEW}, functions={"mine": own})[:, :], [NEW @ X.T], rtol=1e-10
    )


def test_a_file_runs_no_function_that_it_names(tmp_path):
    """A path in a file is a choice of whoever wrote it, also where the module is loaded."""
    dmkl.build(tmp_path / "k", {"x": X}, {"function": laplacian_kernel})
    root = tmp_path / "k" / "zarr.json"
    text = root.read_text().replace("pairwise:laplacian_kernel", "pairwise:linear_kernel")
    root.write_text(text.replace("metadata_crc32c", "no_crc32c"))
    with pytest.raises(InputError, match="pairwise:linear_kernel, and nothing is imported because a file names it"):
        dmkl.build_cross(dmkl.open(tmp_path / "k"), {"x": NEW})


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda a, b: a, r"must return numbers of shape \(n, m\) .* here \(60, 60\), got float64 of shape \(60, 5\)"),
        (lambda a, b: np.full((len(a), len(b)), np.nan), "entries that are NaN or infinite"),
        (lambda a, b: a @ (2 * b + 1).T, "is not symmetric, so it is no kernel"),
        ("sigmoid", "is not positive semidefinite, so it is no kernel; take rbf or polynomial"),
    ],
)
def test_what_is_no_kernel_is_refused(function, message):
    with pytest.raises(InputError, match=message):
        np.asarray(dmkl.build(None, {"x": X}, {"function": function}))


def test_two_functions_of_one_name_are_told_apart(tmp_path):
    """An interrupted build continues with kernels of the same values, not of the same name."""
    two = [lambda a, b: a @ b.T, lambda a, b: 3 * a @ b.T]
    first, other = (dmkl.build(None, {"x": X}, {"function": function, "name": "k"}) for function in two)
    assert first.content_id != other.content_id
    once, thrice = np.asarray(dmkl.build(None, {"x": X}, [{"function": f, "name": str(f)} for f in two]))
    np.testing.assert_allclose(thrice, 3 * once)


# --- products --------------------------------------------------------------------------------------------------------
PRODUCT = [
    {"function": "linear", "feature": "g", "name": "G"},
    {"function": "rbf", "feature": "e", "name": "E"},
    {"function": "product", "of": ["G", "E"]},
]


def tables(n, seed):
    r = np.random.default_rng(seed)
    return {"g": r.normal(size=(n, 40)), "e": r.normal(size=(n, 3))}


@pytest.mark.parametrize("storage", ["auto", "factors", "tiles", None])
def test_products_are_those_of_dense_kernels(tmp_path, storage):
    path, more = (None, {}) if storage is None else (tmp_path / "k", {"storage": storage})
    K = dmkl.build(path, tables(50, 0), PRODUCT, tile=16, **more)
    G, E, both = np.asarray(K)
    assert K.names == ("G", "E", "G:E")
    np.testing.assert_allclose(both, G * E, rtol=1e-13)
    np.testing.assert_allclose(K.view.source.diagonal(np.array([2, 0])), [(G * E).diagonal(), G.diagonal()], rtol=1e-12)
    dense = dmkl.create(None, np.stack([G, E, G * E]), names=K.names)
    y = np.random.default_rng(2).normal(size=50)
    model, reference = (dmkl.MKRidge(lam=1.0, tol=1e-9).fit(each, y) for each in (K, dense))
    np.testing.assert_allclose(model.weights_, reference.weights_, atol=1e-7)
    cross = np.asarray(dmkl.build_cross(K, tables(6, 1)))
    np.testing.assert_allclose(cross[2], cross[0] * cross[1], rtol=1e-13)
    if path is not None:
        only = dmkl.build_cross(K.select("G:E"), tables(6, 1), tmp_path / "new")
        np.testing.assert_allclose(np.asarray(only), cross[2:], rtol=1e-13)
        model.save(tmp_path / "model")
        model = dmkl.load(tmp_path / "model")
        assert (tmp_path / "k" / "gram_upper" / "c" / "2").exists() == (storage == "tiles")
    np.testing.assert_allclose(
        model.predict(features=tables(6, 1)), model.predict(dict(zip(K.names, cross, strict=True))), rtol=1e-9
    )


def test_products_of_products_of_low_rank_and_of_samples_that_lack_a_table():
    specs = [*PRODUCT, {"function": "linear", "feature": "g", "rank": 39, "name": "low"}]
    specs.append({"function": "product", "of": ["G:E", "low"], "name": "all"})
    given = tables(50, 0)
    K = dmkl.build(None, given, specs)
    G, E, low, _, whole = np.asarray(K)
    np.testing.assert_allclose(whole, G * E * low, rtol=1e-12)
    cross = np.asarray(dmkl.build_cross(K, tables(4, 1)))
    np.testing.assert_allclose(cross[4], cross[0] * cross[1] * cross[2], rtol=1e-12)
    given["e"][:5] = np.nan
    G, E, both = np.asarray(dmkl.build(None, given, PRODUCT, missing="zero"))
    np.testing.assert_allclose(both, G * E, rtol=1e-12)


def test_products_that_cannot_be_made_are_refused():
    for spec, message in [
        ({"of": ["G", "H"]}, r"there is no kernel 'H'.* the kernels are G, E; make it by another specification"),
        ({"of": ["G"]}, "of must be a list of the names of two or more kernels"),
        ({"of": ["G", "E"], "name": "G"}, "there is a kernel 'G' already"),
        ({}, "product needs of: a list of the names"),
    ]:
        with pytest.raises(InputError, match=message):
            dmkl.build(None, tables(9, 0), [*PRODUCT[:2], {"function": "product", **spec}])
