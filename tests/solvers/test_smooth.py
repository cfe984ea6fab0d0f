"""Smooth convex losses: optima by cvxpy, certificates of random problems, weights, covariates, a loss of one's own."""

import itertools

import cvxpy as cp
import dask
import numpy as np
import pytest
from distributed import Client
from helpers.references import local_cluster

import dmkl
from dmkl.numerics.cholesky import Cholesky
from dmkl.numerics.losses import LOSSES

pytestmark = pytest.mark.filterwarnings("ignore:Solution may be inaccurate")  # cvxpy's, compared to 1e-6 here

LAMBDAS = (10.0, 1.0, 0.1, 0.01)
PS = (1, 1.25, 2, 8, np.inf)


def problem(seed: int, m: int = 60, n: int = 4, width: int = 3):
    """Features of each kernel, labels of each loss, covariates, and weights of samples with zeros."""
    rng = np.random.default_rng(seed)
    X, Z = rng.normal(size=(n, m, width)), rng.normal(size=(m, 2))
    eta = X[0, :, 0] + 0.5 * X[-1, :, -1] + 0.3 * Z[:, 0]
    signs = np.where(eta + rng.logistic(size=m) > 0.5, 1.0, -1.0)
    numbers = eta + rng.standard_t(2, size=m)
    labels = dict.fromkeys(LOSSES, numbers) | dict.fromkeys(("logistic", "squared_hinge"), signs)
    labels["poisson"] = rng.poisson(np.exp(np.clip(eta, -3, 2))).astype(float)
    times, censored = rng.exponential(np.exp(-np.clip(eta, -3, 3))), rng.exponential(3, size=m)
    labels["cox"] = dmkl.signed_times(np.ceil(5 * np.minimum(times, censored)), times <= censored)  # with ties
    d = rng.integers(0, 3, size=m).astype(float)
    labels["cox"][d > 0] = np.where(np.arange((d > 0).sum()) == 0, 1, labels["cox"][d > 0])  # at least one event
    labels["ordinal"] = np.digitize(eta + rng.logistic(size=m), (-1.0, 0.5, 1.5)).astype(float)
    return X, labels, Z, d


def cox(y, eta, d):
    """The partial likelihood after Efron: a logarithm for each event, of which those of tied ones leave parts out."""
    loss = -cp.sum(cp.multiply((d * (y > 0)), eta))
    for t in np.unique(y[(y > 0) & (d > 0)]):
        risk, events = (np.abs(y) >= t) & (d > 0), (y == t) & (d > 0)
        for part in range(events.sum()):
            shares = d * (risk - part / events.sum() * events)
            at = np.flatnonzero(shares > 0)
            loss += d[events].mean() * cp.log_sum_exp(eta[at] + np.log(shares[at]))
    return loss


def ordinal(y, eta, d):
    """The cumulative logit and thresholds, with the constraints t ≥ −log(1 − exp(−width)) of the levels between."""
    levels = np.unique(y[d > 0])
    theta, t, loss = cp.Variable(len(levels) - 1), cp.Variable(len(levels)), 0.0
    for k, level in enumerate(levels):
        rows = np.flatnonzero((y == level) & (d > 0))
        if k < len(levels) - 1:
            loss += d[rows] @ cp.logistic(eta[rows] - theta[k])
        if k > 0:
            loss += d[rows] @ cp.logistic(theta[k - 1] - eta[rows])
        loss += d[rows].sum() * t[k]
    inner = range(1, len(levels) - 1)
    return loss, [t >= 0, *(cp.log_sum_exp(cp.hstack([-t[k], theta[k - 1] - theta[k]])) <= 0 for k in inner)]


def total(name: str, y, eta, d):
    """The loss in cvxpy's atoms, and its constraints."""
    if name in ("ordinal", "cox"):
        return ordinal(y, eta, d) if name == "ordinal" else (cox(y, eta, d), [])
    r = eta - y
    of_each = {
        "logistic": lambda: cp.logistic(-cp.multiply(y, eta)),
        "squared_hinge": lambda: 0.5 * cp.square(cp.pos(1 - cp.multiply(y, eta))),
        "poisson": lambda: cp.exp(eta) - cp.multiply(y, eta) + (y * np.log(np.maximum(y, 1e-300)) - y),
        "huber": lambda: 0.5 * cp.huber(r, 1.0),
        "squared_epsilon_insensitive": lambda: 0.5 * cp.square(cp.pos(cp.abs(r) - 0.1)),
        # |r|/2 smoothed for |r| ≤ h is Huber's function divided by 2h, plus h/4.
        "quantile": lambda: cp.huber(r, 0.1) / 0.4 + 0.025,
    }[name]()
    return cp.sum(cp.multiply(d, of_each)), []


def optimum(name: str, X, y, Z, d, p: float, lam: float) -> float:
    """The minimum over functions w_j of the features of each kernel, f_j = X_jw_j, and b, by a conic program."""
    w, b, b0 = [cp.Variable(X.shape[2]) for _ in X], cp.Variable(max(1, Z.shape[1])), cp.Variable()
    r = 2.0 if np.isinf(p) else 2 * p / (p + 1)
    eta = sum(x @ of for x, of in zip(X, w, strict=True)) + (Z @ b if Z.size else 0.0) + b0
    size = cp.pnorm(cp.hstack([cp.norm(of) for of in w]), r)
    loss, constraints = total(name, y, eta, d)
    objective = loss + 0.5 * lam * cp.square(size)
    options = {f"tol_{key}": 1e-9 for key in ("gap_abs", "gap_rel", "feas")}
    return cp.Problem(cp.Minimize(objective), constraints).solve(solver=cp.CLARABEL, **options)


@pytest.mark.parametrize(
    ("name", "p", "lam"),
    [
        *zip(LOSSES, (1, 1.25, 2, 8, np.inf, 2, 1.5, 1.25), (1, 0.1, 10, 0.01, 1, 1, 0.5, 0.1), strict=True),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in itertools.product(LOSSES, PS, LAMBDAS)),
    ],
)
def test_optimum_is_that_of_a_conic_program(name, p, lam):
    X, labels, Z, d = problem(1)
    y, kernels = labels[name], X @ X.transpose(0, 2, 1)
    solution = dmkl.solve_mkglm(kernels, y, name, p, lam, covariates=Z, sample_weight=d, tol=1e-8)
    expected = optimum(name, X, y, Z, d, p, lam)
    assert solution.status.word == "certified"
    assert solution.objective == pytest.approx(expected, rel=1e-6)
    # The objective follows from the returned numbers alone.
    f = np.tensordot(solution.weights, kernels, 1) @ solution.dual[:, 0]
    fixed = np.column_stack([np.ones((len(y), int(LOSSES[name].has_intercept))), Z])
    eta = f + fixed @ solution.extra["effects"][:, 0]
    returned = LOSSES[name]().total(y, eta, d) + 0.5 * lam * solution.dual[:, 0] @ f
    assert solution.objective == pytest.approx(returned, rel=1e-9)
    assert np.linalg.norm(solution.weights, p) <= 1 + 1e-9


@pytest.mark.parametrize("seed", [pytest.param(k, marks=[] if 1 <= k < 4 else pytest.mark.slow) for k in range(303)])
def test_bounds_hold_wherever_a_fit_ends(seed):
    """A fit that ends early is proven to be no better than it is."""
    rng = np.random.default_rng(seed)
    m, n, width = (int(rng.integers(*ends)) for ends in ((8, 40), (1, 7), (1, 6)))
    X, labels, Z, d = problem(seed, m, n, width)
    name, p, lam = rng.choice(list(LOSSES)), float(rng.choice([1, 1.5, 4, np.inf])), 10.0 ** rng.uniform(-3, 4)
    X *= 10.0 ** rng.uniform(-2, 2, size=(len(X), 1, 1))
    given = X @ X.transpose(0, 2, 1), labels[name], name, p, lam
    more = {"covariates": Z[:, : rng.integers(0, 3)], "sample_weight": d if d.any() else None}
    best = dmkl.solve_mkglm(*given, **more, tol=1e-8)
    early = dmkl.solve_mkglm(*given, **more, tol=1e-8, max_iter=int(rng.integers(1, 4)))
    rounding = 1e-9 * max(abs(best.objective), 1.0)
    for solution in (best, early):
        assert np.isfinite(solution.gap)
        assert solution.bound <= best.objective + rounding
        assert solution.objective >= best.bound - rounding
    # Where fixed effects determine the labels the optimum is 0, of which rounding is no small part.
    assert best.gap < 1e-4 or best.objective - best.bound < rounding


@pytest.mark.parametrize("p", [1.5, np.inf])
@pytest.mark.parametrize("name", LOSSES)
def test_ridges_far_below_the_kernels_are_certified(name, p):
    """λ is 1e-8 of the largest eigenvalue: the rounding of a step must be relative to what the last one left."""
    X, labels, _, _ = problem(1, 30, 4, 20)
    solution = dmkl.solve_mkglm(X @ X.transpose(0, 2, 1), labels[name], name, p, 1e-6, tol=1e-6)
    assert solution.gap <= 1e-6
    assert len(solution.steps) <= 6


@pytest.mark.parametrize("seed", [1, 8, 10])
@pytest.mark.parametrize("lam", [1e-4, 1e-6])
def test_levels_that_are_far_apart_are_no_proof_of_anything_else(seed, lam):
    """Predictors beyond all numbers ended in an error of the SVD, or in an infinite loss with a gap of zero."""
    X = 100 * np.random.default_rng(seed).standard_normal((2, 30, 10))
    X -= X.mean(axis=1, keepdims=True)
    solution = dmkl.solve_mkglm(X @ X.transpose(0, 2, 1), np.arange(30) % 3, "ordinal", 2.0, lam)
    assert 0 < solution.objective < 0.01
    assert solution.bound <= solution.objective
    assert solution.gap < 0.02


def test_whole_weights_are_copies_of_samples():
    """Copies of an event are ties, which Breslow counts as events one after another."""
    X, labels, Z, d = problem(3)
    y, loss = labels["cox"], dmkl.Cox(ties="breslow")
    K, copies = X @ X.transpose(0, 2, 1), np.repeat(np.arange(len(d)), d.astype(int))
    weighted = dmkl.solve_mkglm(K, y, loss, lam=3.0, covariates=Z, sample_weight=d, tol=1e-9)
    of_copies = K[:, copies[:, None], copies], y[copies], loss
    copied = dmkl.solve_mkglm(*of_copies, lam=3.0, covariates=Z[copies], tol=1e-9)
    assert weighted.objective == pytest.approx(copied.objective, rel=1e-8)
    np.testing.assert_allclose(weighted.weights, copied.weights, atol=1e-5)
    np.testing.assert_allclose(weighted.extra["effects"], copied.extra["effects"], atol=1e-4)


def test_problems_that_share_weights_add_up():
    X, labels, _, _ = problem(4)
    y, K = labels["logistic"], X @ X.transpose(0, 2, 1)
    one, two = (dmkl.solve_mkglm(K, of, p=1.5, lam=2.0, tol=1e-9) for of in (y, np.column_stack([y, y])))
    np.testing.assert_allclose(two.weights, one.weights, atol=1e-4)
    assert two.objective == pytest.approx(2 * one.objective, rel=1e-7)


def test_what_does_not_fit_is_refused():
    X, labels, Z, _ = problem(5, m=12)
    K = X @ X.transpose(0, 2, 1)
    for arguments, more, message in [
        ((K, labels["huber"]), {}, "the labels of Logistic are 1 and -1"),
        ((K[:, :5], labels["logistic"]), {}, "kernels must have the shape"),
        ((K, labels["logistic"], "hinge"), {}, "loss must be 'logistic'"),
        ((K, labels["cox"] - labels["cox"][0], "cox"), {}, "the labels of Cox are times"),
        ((K, labels["cox"], dmkl.Cox(strata=[0, 1])), {}, "strata are those of the samples, 12, got 2"),
        ((K, labels["logistic"]), {"lam": 0.0}, "lam must be positive"),
        ((K, labels["logistic"]), {"sample_weight": -np.ones(12)}, "sample_weight must be"),
        ((K, labels["logistic"]), {"sample_weight": np.ones(5)}, r"sample_weight must be 12 .* got the shape \(5,\)"),
        ((K, labels["logistic"]), {"offset": np.ones(5)}, "offset must be a finite number, or 12 of them"),
        ((K, labels["logistic"]), {"covariates": Z.T}, r"covariates must be finite numbers, \(12, q\)"),
    ]:
        with pytest.raises(dmkl.errors.InputError, match=message):
            dmkl.solve_mkglm(*arguments, **more)


def test_sums_over_the_samples_have_the_optimum_of_a_conic_program():
    X, labels, _, d = problem(7, 45, 3, 6)
    K = dmkl.build(None, dict(zip("abc", X, strict=True)), {"function": "linear"}, dtype="float64")
    model = dmkl.MKGLM("poisson", np.inf, 2.0, solver="factors", tol=1e-8, steps=()).fit(K, labels["poisson"], d)
    expected = optimum("poisson", X, labels["poisson"], np.zeros((45, 0)), d, np.inf, 2.0)
    assert model.objective_ == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("rounds")
@pytest.mark.parametrize("name", ["logistic", "cox"])
def test_every_path_has_the_optimum_of_a_conic_program(name, tmp_path):
    """Kernels in memory, in passes, as factors, in a subspace here and in that of two processes."""
    X, labels, _, d = problem(7, 45, 3, 6)
    tables, y = dict(zip("abc", X, strict=True)), labels[name]
    dense = dmkl.create(tmp_path / "set", dict(zip("abc", X @ X.transpose(0, 2, 1), strict=True)), dtype="float64")
    factors = dmkl.build(None, tables, {"function": "linear"}, dtype="float64")
    make = {"logistic": dmkl.MKLogistic, "cox": dmkl.MKCox}[name]
    optima = {(p, lam): optimum(name, X, y, np.zeros((45, 0)), d, p, lam) for p in (1, 2, np.inf) for lam in (3.0, 0.3)}

    def check(K, solver, points=optima):
        for p, lam in points:
            model = make(p, lam, steps=(), solver=solver, tol=1e-7).fit(K, y, d)
            assert model.solver_ == solver
            assert model.gap_ <= 1e-7
            assert model.objective_ == pytest.approx(optima[p, lam], rel=1e-6)

    check(dense, "memory")
    check(factors, "memory")
    check(dense, "subspace")
    with dask.config.set({"dmkl.memory": "100KB"}):  # less than all kernels
        check(dense, "memory", [(2, 0.3)])
    with local_cluster(2) as cluster, Client(cluster):
        check(dense, "subspace", [(2, 0.3)])


def test_a_factor_serves_several_newton_steps(monkeypatch):
    X, labels, Z, _ = problem(2)
    factorize, factors = Cholesky.of, []
    monkeypatch.setattr(Cholesky, "of", staticmethod(lambda matrix: (factors.append(1), factorize(matrix))[1]))
    solution = dmkl.solve_mkglm(
        X @ X.transpose(0, 2, 1), labels["logistic"], p=np.inf, lam=0.01, covariates=Z, tol=1e-9
    )
    assert solution.gap <= 1e-9
    assert len(factors) <= 3
