"""Kernels residualized on covariates, against dense NumPy."""

import numpy as np
import pandas as pd
import pytest
from helpers.references import error, in_memory, psd
from hypothesis import given
from hypothesis import strategies as st

import dmkl
from dmkl.errors import ConstantKernelWarning, InputError

M = 24
TRAIN, TEST = np.r_[3:20, 1], np.array([0, 2, 22, 21])


def covariates(seed=0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame({"age": rng.normal(2000, 9, M), "site": np.array(list("abc"))[rng.permutation(M) % 3]})


def coded(Z):
    """[1, Z] with an indicator of each site."""
    columns = [np.ones(M), *(Z[c] - Z[c].mean() if c == "age" else pd.get_dummies(Z[c]) for c in Z)]
    return np.column_stack(columns).astype(np.float64)


def left(design, rows, cols=TRAIN):
    """L of the residualized kernel LKLᵀ: rows less what the regression on the covariates of the columns predicts."""
    every = np.eye(M)
    return every[rows] - design[rows] @ np.linalg.pinv(design[cols], rcond=1e-10) @ every[cols]


def dense(K, Z, rows, cols):
    """K[rows, cols] residualized by the definition, over the columns."""
    return left(coded(Z), rows, cols) @ K @ left(coded(Z), cols, cols).T


@pytest.mark.parametrize(
    ("rows", "side", "after"),
    [(TRAIN, 24, ()), (TRAIN, 5, ("trace",)), (TEST, 5, ()), (TEST, 24, ("trace",)), (TEST, 5, ("cosine",))],
    ids=str,
)
def test_products_and_entries_are_those_of_dense_numpy(rows, side, after):
    K, Z = psd(2, M), covariates()
    L, wanted = left(coded(Z), np.arange(M)), dense(K, Z, rows, TRAIN)
    own = np.einsum("ra,nab,rb->nr", L, K, L)
    if after == ("trace",):
        wanted = wanted / own[:, TRAIN].sum(axis=1)[:, None, None]
    if after == ("cosine",):
        wanted = wanted / np.sqrt(own[:, rows, None] * own[:, None, TRAIN])
    seen = in_memory(K, side)[rows, TRAIN].with_steps((dmkl.residualize(Z), *after))
    V = np.random.default_rng(1).standard_normal((len(TRAIN), 3))
    assert error(seen.apply(V).compute(), wanted @ V) < 1e-10
    assert error(seen.to_dask().compute(), wanted) < 1e-10


@given(seed=st.integers(0, 99), width=st.integers(1, 4))
def test_the_projector_annihilates_covariates_however_they_are_coded(seed, width):
    rng = np.random.default_rng(seed)
    Z = rng.standard_normal((M, width))
    K = in_memory(psd(1, M, seed), 9)[TRAIN, TRAIN]
    seen = K.residualize(Z)
    assert np.abs(seen.apply(np.column_stack([np.ones(M), Z])[TRAIN]).compute()).max() < 1e-9
    recoded = K.residualize(
        np.column_stack([Z @ (rng.standard_normal((width, width)) + 4 * np.eye(width)) + 3, Z[:, 0]])
    )
    assert error(recoded.to_dask().compute(), seen.to_dask().compute()) < 1e-8


def test_without_covariates_it_is_centering():
    K = in_memory(psd(2, M), 9)[TEST, TRAIN]
    assert error(K.residualize(np.zeros((M, 0))).to_dask().compute(), K.center().to_dask().compute()) < 1e-12


def test_a_site_that_no_training_sample_has_is_taken_for_a_mixture_of_those_it_has():
    K, Z = psd(1, M), covariates()
    train, test = np.flatnonzero(Z["site"] != "c"), np.flatnonzero(Z["site"] == "c")
    seen = in_memory(K, 9)[test, train].residualize(Z)
    coded = pd.DataFrame({"age": Z["age"], "between": (Z["site"] == "a") * 1.0 - (Z["site"] == "b")})
    assert error(seen.to_dask().compute(), in_memory(K, 9)[test, train].residualize(coded).to_dask().compute()) < 1e-10


def test_the_share_of_covariates():
    rng = np.random.default_rng(0)
    Z = rng.standard_normal((M, 2))
    C = Z @ Z.T
    P = np.eye(M) - 1 / M
    E = psd(1, M)[0]
    shares = in_memory(np.array([C, E]), 9).covariate_shares(Z)
    left = np.trace(dense(E[None], pd.DataFrame({"a": 0}, index=range(M)), range(M), range(M))[0])
    assert shares.dims == ("kernel",)
    assert abs(float(shares[0]) - 1) < 1e-10
    U = np.linalg.qr(P @ Z)[0]
    assert abs(float(shares[1]) - np.trace(U.T @ E @ U) / left) < 1e-10


STEP = dmkl.residualize(covariates())


def predicted(K, Z, step=STEP):
    return dmkl.MKFDA(steps=(step,)).fit(K[TRAIN, TRAIN], TRAIN % 2).predict(K[TEST, TRAIN], covariates=Z)


REFUSED = {
    "'age' of sample '1' is nan": lambda K: dmkl.residualize(pd.DataFrame({"age": [1.0, np.nan]})),
    "of sample '1' is inf": lambda K: dmkl.residualize(np.array([1.0, np.inf])),
    "'site' of sample '1'": lambda K: dmkl.residualize(pd.DataFrame({"site": ["a", None]})),
    "'x' has several": lambda K: dmkl.residualize(pd.DataFrame({"age": [1.0, 2.0]}, index=["x", "x"])),
    "3 dimensions": lambda K: dmkl.residualize(np.zeros((2, 2, 2))),
    "4 of 24 have no row, the first being '20'": lambda K: K.residualize(covariates()[:20]),
    "leaves nothing of 24 training samples": lambda K: K.residualize(psd(1, M)[0][:, :23]).measured(),
    "covariate 'age', which is not among those given, 'site=a'": lambda K: predicted(K, covariates()[["site"]]),
    "a row for each of the 4 samples to predict": lambda K: predicted(K, np.zeros((3, 2))),
    "MKFDA takes no covariates out; leave them out": lambda K: predicted(K, covariates(), "center"),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_refused(message):
    with pytest.raises(InputError, match=message):
        REFUSED[message](in_memory(psd(1, M), 9))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("step", ["trace", "multiplicative", "cosine"])
def test_a_kernel_that_covariates_explain_wholly_has_no_weight(step, dtype):
    """K = ZZᵀ has no part outside the span of the covariates Z, and is not constant."""
    Z = np.random.default_rng(0).standard_normal((M, 2))
    K = in_memory(np.array([psd(1, M)[0], Z @ Z.T]).astype(dtype), 9)
    steps = (dmkl.residualize(Z), step)
    learner, y = dmkl.MKFDA(steps=steps), np.arange(M) % 2
    with pytest.warns(ConstantKernelWarning, match=r"'kernel_1'.*covariates explain"):
        weights = learner.fit(K, y).weights_
    np.testing.assert_allclose(weights, [float(learner.fit(K.select([0]), y).weights_[0]), 0.0])
    with pytest.raises(InputError, match=r"kernel 'kernel_1' .*covariates.* explain (it|that sample) wholly"):
        K.with_steps(steps).measured()


def test_covariates_of_samples_that_were_not_there_in_training(tmp_path):
    """Covariates passed to the prediction are used as in training; missing ones are looked up."""
    K, Z = psd(2, M), covariates()
    y, new = np.arange(M) % 2, TEST[:3]
    whole, some = (dmkl.MKFDA(p=2, lam=0.1, steps=(dmkl.residualize(z), "trace")) for z in (Z, Z.drop(new)))
    seen = in_memory(K, 9)
    for model in (whole, some):
        model.fit(seen[TRAIN, TRAIN], y[TRAIN])
    train, cross = dense(K, Z, TRAIN, TRAIN), dense(K, Z, TEST, TRAIN)
    scale = np.trace(train, axis1=1, axis2=2)[:, None, None]
    expected = np.einsum("n,nrm,mk->rk", some.weights_.values, cross / scale, some.dual_coef_.values)[:, 0]
    some.save(tmp_path / "model")
    for model in (some, dmkl.load(tmp_path / "model")):
        with pytest.raises(InputError, match="residualize needs the covariates of every sample"):
            model.predict(seen[TEST, TRAIN])
        for given_covariates in (Z.loc[new], Z.assign(other=1.0), dmkl.residualize(Z)):
            computed = model.decision_function(seen[TEST, TRAIN], covariates=given_covariates)
            np.testing.assert_allclose(computed.values, expected, atol=1e-10)
    shares = some.contributions(seen[TEST, TRAIN], covariates=Z.loc[new])
    np.testing.assert_allclose(shares.sum("kernel").values, expected, atol=1e-10)
    assert some.score(seen[TEST, TRAIN], y[TEST], covariates=Z) == whole.score(seen[TEST, TRAIN], y[TEST])
    every = np.arange(M)
    np.testing.assert_allclose(
        some.combined_kernel(seen, covariates=Z).values, whole.combined_kernel(seen[every, every]).values, atol=1e-12
    )


def test_covariates_of_new_samples_of_a_new_site():
    K, Z = psd(1, M), covariates()
    y, seen = np.arange(M) % 2, in_memory(psd(1, M), 9)
    sites = dmkl.MKFDA(lam=0.1, steps=(dmkl.residualize(Z[["site"]]),)).fit(seen[TRAIN, TRAIN], y[TRAIN])
    elsewhere = pd.DataFrame({"site": ["nowhere"] * len(TEST)}, TEST)
    none = sites.decision_function(seen[TEST, TRAIN], covariates=elsewhere)
    sites_of = np.array(pd.get_dummies(Z["site"]), dtype=float)
    sites_of[TEST] = 0.0
    # The shortest coefficients of standardized columns: those of the indicators, which add up to 1, are not unique.
    design = np.column_stack([np.ones(M), (sites_of - sites_of[TRAIN].mean(axis=0)) / sites_of[TRAIN].std(axis=0)])
    cross = left(design, TEST) @ K @ left(design, TRAIN).T
    expected = np.einsum("n,nrm,mk->rk", sites.weights_.values, cross, sites.dual_coef_.values)
    np.testing.assert_allclose(none.values, expected[:, 0], atol=1e-10)
