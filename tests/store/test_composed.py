"""Records, joined sets and products of kernels, against dense matrices of all records."""

import dask
import numpy as np
import pytest
from helpers.references import memory_below
from sklearn.base import clone

import dmkl
from dmkl.errors import InputError


@pytest.fixture(scope="module")
def trial():
    """14 genotypes in 4 environments, in no order: the joined set with the interaction, its dense kernels, and a trait.

    The set of genotypes has four tiles, that of environments one.
    """
    r = np.random.default_rng(0)
    of_genotypes, of_environments = r.normal(size=(14, 20)), r.normal(size=(4, 3))
    G, E = of_genotypes @ of_genotypes.T / 20, of_environments @ of_environments.T / 3
    g, e = r.permutation([(g, e) for g in range(14) for e in range(4)]).T
    options = {"dtype": "float64", "tile": 10}
    of_g = dmkl.create(None, G[None], names=["G"], samples=[f"line {k}" for k in range(14)], **options)
    of_e = dmkl.create(None, E[None], names=["E"], samples=[f"place {k}" for k in range(4)], **options)
    with dask.config.set({"dmkl.tile": 10}):
        K = of_g.repeat([f"line {k}" for k in g]).join(of_e.repeat(e)).interaction("G", "E")
    dense = np.stack([G[np.ix_(g, g)], E[np.ix_(e, e)], G[np.ix_(g, g)] * E[np.ix_(e, e)]])
    chol = np.linalg.cholesky(dense[2] + 1e-9 * np.eye(len(g)))
    y = of_genotypes[g, 0] + chol @ r.normal(size=len(g)) + 0.3 * r.normal(size=len(g))
    return K, dmkl.create(None, dense, names=["G", "E", "G:E"], dtype="float64"), y


def test_entries_and_diagonals_are_those_of_dense_products(trial):
    K, dense, _ = trial
    assert K.names == ("G", "E", "G:E")
    np.testing.assert_allclose(K.to_dask().compute(), dense.to_dask().compute(), rtol=1e-14)
    some = np.array([7, 3, 3, 20])
    np.testing.assert_allclose(K[some, some[:2]].to_dask().compute(), dense[some, some[:2]].to_dask().compute())
    found, expected = (each.center().normalize().to_dask().compute() for each in (K, dense))
    np.testing.assert_allclose(found, expected, atol=1e-14)


@pytest.mark.parametrize("options", [{}, {"solver": "cg"}, {"solver": "subspace"}])
def test_fits_and_predictions_are_those_of_dense_products(trial, options):
    K, dense, y = trial
    train, test = np.arange(40), np.arange(40, len(y))
    learner = dmkl.MKRidge(lam=1.0, tol=1e-8, **options)
    model, reference = (clone(learner).fit(each[train, train], y[train]) for each in (K, dense))
    np.testing.assert_allclose(model.weights_, reference.weights_, atol=1e-10)
    predicted = model.predict(K[test, train])
    np.testing.assert_allclose(predicted, reference.predict(dense[test, train]), atol=1e-10)


def test_searches_are_those_of_dense_products_and_keep_the_records_of_a_sample_together(trial):
    K, dense, y = trial
    asked = {"grid": {"lam": [1e-2, 1.0]}, "baselines": "none"}
    search = dmkl.search(dmkl.MKRidge(), K, y, cv=3, **asked)
    folds = list(search.folds.values())
    for train, held_out in folds:
        assert not set(K.samples[train]) & set(K.samples[held_out])
    reference = dmkl.search(dmkl.MKRidge(), dense, y, cv=folds, **asked)
    np.testing.assert_allclose(search.scores["score"], reference.scores["score"], atol=1e-8)


def test_variance_components_are_those_of_dense_products(trial):
    K, dense, y = trial
    found, expected = (dmkl.VarianceComponents().fit(each, y).components_ for each in (K, dense))
    np.testing.assert_allclose(found["variance"], expected["variance"], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found["variance_se"], expected["variance_se"], rtol=1e-8)


def test_what_cannot_be_joined_or_multiplied_is_refused(trial):
    K = trial[0]
    with pytest.raises(InputError, match="two or more kernels"):
        K.interaction("G")
    with pytest.raises(InputError, match="would have the name 'G:E'"):
        K.interaction("G", "E")
    with pytest.raises(InputError, match="before center"):
        K.center().interaction("G", "E", name="again")
    with pytest.raises(InputError, match="expected square sets of 56"):
        K.join(K[:3, :3])
    with pytest.raises(InputError, match="no sample named 'nobody'"):
        K.repeat(["nobody"])


@pytest.mark.slow
def test_no_matrix_of_all_records_is_formed():
    """The peak of a fit to 3,000 records of 500 genotypes in 6 environments is below one kernel of them, 69 MiB."""
    r = np.random.default_rng(0)
    G, E = r.normal(size=(500, 50)), r.normal(size=(6, 3))
    g, e = np.divmod(r.permutation(3000), 6)
    of_g = dmkl.create(None, [G @ G.T / 50], names=["G"], dtype="float64", tile=250)
    of_e = dmkl.create(None, [E @ E.T / 3], names=["E"], dtype="float64")
    with dask.config.set({"dmkl.tile": 250, "dmkl.memory": "60MB"}):
        K = of_g.repeat(g).join(of_e.repeat(e)).interaction("G", "E")
        with memory_below(0.8 * 8 * 3000**2):
            model = dmkl.MKRidge(lam=1.0).fit(K, G[g, 0] * E[e, 0] + r.normal(size=3000))
    assert model.weights_.sel(kernel="G:E") > 0


@pytest.mark.parametrize("stored", [True, False])
def test_new_records_follow_from_their_features(tmp_path, stored):
    r = np.random.default_rng(0)
    lines, places = r.normal(size=(15, 20)), r.normal(size=(4, 3))
    line, place = np.divmod(r.permutation(60), 4)
    of_lines = {"function": "linear", "name": "G"}, {"function": "rbf", "name": "R"}
    L = dmkl.build(tmp_path / "lines" if stored else None, {"line": lines}, of_lines, dtype="float64")
    P = dmkl.build(tmp_path / "places" if stored else None, {"place": places}, {"function": "rbf", "name": "E"})
    K = L.repeat(line).join(P.repeat(place)).interaction("G", "E").interaction("G:E", "R", name="all")
    y = r.normal(size=60)
    model = dmkl.MKRidge(lam=1.0).fit(K[:50, :50], y[:50])
    model.save(tmp_path / "model")
    new = {"line": lines[line[50:]], "place": places[place[50:]]}
    expected = model.predict(K[50:, :50])
    for fitted in (model, dmkl.load(tmp_path / "model")):
        np.testing.assert_allclose(fitted.predict(features=new), expected, rtol=1e-10, atol=1e-12)
    kernel = model.cross_kernels(new)
    assert "all" in kernel.names
    np.testing.assert_allclose(kernel, np.asarray(K[50:, :50].select(kernel.names)), rtol=1e-10)
    other = dmkl.build(None, {"line": places}, {"function": "linear", "name": "E"}).repeat(place)
    with pytest.raises(InputError, match="two joined sets have features 'line' that differ"):
        dmkl.build_cross(L.repeat(line).join(other), new)
