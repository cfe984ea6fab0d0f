"""MKSVM and GMKL on stored kernels, against cvxpy, scikit-learn and their certificate by the definitions."""

from __future__ import annotations

import warnings
from functools import cache
from itertools import combinations

import dask
import numpy as np
import pytest
import xarray as xr
from helpers.margin import made, optimum, reference
from helpers.optima import conjugate, norm
from helpers.references import Counting, dense_view, over
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.svm import SVC

import dmkl
from dmkl.errors import ConvergenceWarning, InputError
from dmkl.estimators.margin import votes
from dmkl.solvers.margin import svm
from dmkl.solvers.margin.gmkl_problem import GeneralizedProblem
from dmkl.solvers.outcome import Status

M = 45
STEPS = ("center", "multiplicative")
"""What the machines do with kernels, if not told otherwise."""
TIGHT = 1e-6
"""A gap where objectives are compared to twice as much, and weights, whose error is of first order, to its root."""


@cache
def dense():
    return made(4, M)[0]


@cache
def binary():
    return np.where(made(4, M)[1] > 0, "yes", "no")


@cache
def three():
    """Classes that kernels know something of."""
    score = dense()[0] @ made(4, M)[1] + 0.3 * np.random.default_rng(3).standard_normal(M)
    return np.array(["apple", "pear", "plum"])[np.argsort(np.argsort(score)) * 3 // M]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    """In ragged tiles, 45 = 2 × 16 + 13."""
    return dmkl.create(tmp_path_factory.mktemp("margin") / "set.zarr", dense(), labels=binary(), tile=16)


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """Handwritten digits, 20 of each class: kernels on parts of the picture, and one of noise."""
    X, y = load_digits(return_X_y=True)
    rows = np.concatenate([np.flatnonzero(y == digit)[:20] for digit in range(10)])
    rows = np.random.default_rng(0).permutation(rows)
    pictures, y = X[rows].reshape(-1, 8, 8), y[rows]
    noise = np.random.default_rng(1).standard_normal((len(y), 16))
    parts = {"all": pictures, "top": pictures[:, :4], "bottom": pictures[:, 4:], "left": pictures[..., :4]}
    found = []
    for part in (*parts.values(), noise):
        flat = part.reshape(len(y), -1)
        distances = ((flat[:, None] - flat) ** 2).sum(axis=2)
        found.append(np.exp(-distances / distances.mean()))
    names = [*parts, "noise"]
    return dmkl.create(
        tmp_path_factory.mktemp("margin") / "digits.zarr", np.array(found), names=names, labels=y, tile=64
    )


def problems(model, y):
    """Of a fitted model on labels y: signs and samples of each binary problem, in its order."""
    y = np.asarray(y)
    every = np.arange(len(y))
    if y.ndim == 2:
        return [(np.where(column == 1, 1.0, -1.0), every) for column in y.T]
    if model.kind_ == "binary":
        return [(np.where(y == model.classes_[1], 1.0, -1.0), every)]
    if model.multiclass == "ovr":
        return [(np.where(y == name, 1.0, -1.0), every) for name in model.classes_]
    pairs = [(first, np.flatnonzero((y == first) | (y == second))) for first, second in combinations(model.classes_, 2)]
    return [(np.where(y[rows] == first, 1.0, -1.0), rows) for first, rows in pairs]


def pairs_of(model, K, y):
    """β, u, b, the labels and the kernels of each problem; checks that u is in the dual's box."""
    weights = model.weights_.values.reshape(K.shape[0], -1)
    n = len(model.intercept_)
    for k, ((signs, rows), C) in enumerate(zip(problems(model, y), np.broadcast_to(model.C, n), strict=True)):
        u = model.dual_coef_.values[:, k]
        assert not np.delete(u, rows).any()
        u = u[rows]
        assert (signs * u).min() >= 0
        assert (signs * u).max() <= C
        assert abs(u.sum()) <= 1e-10 * C * len(u)
        yield weights[:, k], u, model.intercept_.values[k], signs, K[:, rows][:, :, rows], C


def check_machines(model, K, y):
    """The gap and the objective of an MKSVM are those of its attributes, on dense kernels."""
    gaps, objectives = np.atleast_1d(model.gap_), np.atleast_1d(model.objective_)
    exponents = np.broadcast_to(model.p, len(gaps))
    for (beta, u, bias, signs, own, C), gap, objective, p in zip(
        pairs_of(model, K, y), gaps, objectives, exponents, strict=True
    ):
        assert beta.min() >= 0
        assert norm(beta, p) == pytest.approx(1, rel=1e-9)
        forms = np.array([u @ kernel @ u for kernel in own])
        hinge = np.maximum(0, 1 - signs * (np.tensordot(beta, own, axes=1) @ u + bias)).sum()
        primal, lower = beta @ forms / 2 + C * hinge, signs @ u - norm(forms, conjugate(p)) / 2
        assert gap == pytest.approx((primal - lower) / primal, abs=1e-9)
        assert objective == pytest.approx(signs @ u - beta @ forms / 2, rel=1e-9)


# --- MKSVM: one problem ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("p", "C"), [(1.0, 16.0), (1.5, 0.25), (np.inf, 4.0)])
def test_the_optimum_is_cvxpys(kernels, scheduler, p, C):
    rows = np.random.default_rng(0).permutation(M)[:38]
    model = dmkl.MKSVM(p, C).fit(kernels[rows, rows])
    K = dense_view(dense(), rows, rows, STEPS)
    best = optimum(K, np.where(binary()[rows] == "yes", 1.0, -1.0), C, p)
    assert model.objective_ == pytest.approx(best, rel=1e-3)
    assert model.gap_ <= model.tol
    assert model.objective_ / (1 - model.gap_) >= best * (1 - 1e-6)
    check_machines(model, K, binary()[rows])
    assert model.status_ == Status.CERTIFIED.advice
    assert model.n_iter_ == len(model.history_.iteration)


@pytest.mark.usefixtures("synchronous")
@pytest.mark.parametrize("steps", [(), ("center", "trace"), ("center", "cosine"), ("cosine", "center"), ("trace",)])
def test_every_chain_of_steps(kernels, steps):
    C = 64.0 if "trace" in steps else 4.0  # kernels of trace one are small
    model = dmkl.MKSVM(1.5, C, steps=steps).fit(kernels)
    K = dense_view(dense(), steps=steps)
    assert model.objective_ == pytest.approx(optimum(K, np.where(binary() == "yes", 1.0, -1.0), C, 1.5), rel=1e-3)
    check_machines(model, K, binary())
    # New rows go through the same steps.
    train, test = np.arange(30), np.arange(30, M)
    model = clone(model).fit(kernels[train, train])
    cross = np.tensordot(model.weights_.values, dense_view(dense(), test, train, steps), axes=1)
    expected = cross @ model.dual_coef_.values[:, 0] + model.intercept_.item()
    np.testing.assert_allclose(model.decision_function(kernels[test, train]), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.usefixtures("synchronous")
def test_rows_in_any_order(kernels):
    order = np.random.default_rng(1).permutation(M)
    plain = dmkl.MKSVM(1.5, 4.0, tol=TIGHT).fit(kernels)
    mixed = dmkl.MKSVM(1.5, 4.0, tol=TIGHT).fit(kernels[order, order])
    np.testing.assert_allclose(mixed.weights_, plain.weights_, atol=3 * np.sqrt(TIGHT))
    assert mixed.dual_coef_.sample.values.tolist() == kernels.samples[order].tolist()
    scores = mixed.decision_function(kernels[:, order])
    np.testing.assert_allclose(scores, plain.decision_function(kernels), atol=1e-2)
    with pytest.raises(InputError, match="in another order"):
        mixed.predict(kernels)


@pytest.mark.usefixtures("synchronous")
@pytest.mark.parametrize("p", [1.0, 2.0, np.inf])
def test_one_kernel_is_a_support_vector_machine(kernels, p):
    model = dmkl.MKSVM(p, 4.0, tol=1e-9).fit(kernels.select([kernels.names[3]]))
    K = dense_view(dense()[3:], steps=STEPS)[0]
    theirs = SVC(kernel="precomputed", C=4.0, tol=1e-8).fit(K, binary())
    np.testing.assert_allclose(model.decision_function(kernels), theirs.decision_function(K), atol=1e-3)
    np.testing.assert_array_equal(model.predict(kernels), theirs.predict(K))
    np.testing.assert_array_equal(model.weights_, [1.0])
    assert model.n_iter_ == 1


@pytest.mark.slow
def test_in_memory_and_out_of_core_agree(kernels, monkeypatch, synchronous):
    asked = []

    def counted(columns, *arguments):
        solution, n_columns = by_columns(columns, *arguments)
        asked.append((n_columns, arguments[4]))
        return solution, n_columns

    by_columns = svm.solve_by_columns
    monkeypatch.setattr(svm, "solve_by_columns", counted)
    # Sums are stored before centring where all kernels have the same steps, and after it where they have not.
    for steps in (("center",), ("center", "multiplicative")):
        model = dmkl.MKSVM(1.5, 1.0, steps=steps, tol=TIGHT)
        with dask.config.set({"dmkl.memory": 36_000}):
            outside = clone(model).fit(kernels)
        assert len(asked) == outside.n_iter_
        assert all(n_columns > 0 and max_bytes < 40 * M * M for n_columns, max_bytes in asked)
        inside = clone(model).fit(kernels)
        assert len(asked) == outside.n_iter_
        assert outside.gap_ <= TIGHT
        assert outside.objective_ == pytest.approx(inside.objective_, rel=2 * TIGHT)
        np.testing.assert_allclose(outside.weights_, inside.weights_, atol=3 * np.sqrt(TIGHT))
        asked.clear()


@pytest.mark.usefixtures("synchronous")
def test_pairs_out_of_core(kernels):
    """Machines on some of the samples take columns of the sum over all of them."""
    inside = dmkl.MKSVM(1.5, 4.0, multiclass="ovo", tol=1e-5).fit(kernels, three())
    with dask.config.set({"dmkl.memory": 36_000}):
        outside = dmkl.MKSVM(1.5, 4.0, multiclass="ovo", tol=1e-5).fit(kernels, three())
    np.testing.assert_allclose(outside.objective_, inside.objective_, rtol=2e-5)
    check_machines(outside, dense_view(dense(), steps=STEPS), three())


# --- MKSVM: several problems -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("multiclass", ["ovr", "ovo"])
def test_classes(kernels, scheduler, multiclass):
    rows = np.random.default_rng(0).permutation(M)[:40]
    model = dmkl.MKSVM(1.5, 4.0, multiclass=multiclass).fit(kernels[rows, rows], three()[rows])
    K = dense_view(dense(), rows, rows, STEPS)
    assert model.gap_.max() <= model.tol
    check_machines(model, K, three()[rows])
    dim = {"ovr": "class", "ovo": "pair"}[multiclass]
    assert model.weights_.dims == ("kernel", dim)
    assert model.gap_.dims == model.objective_.dims == model.intercept_.dims == (dim,)
    assert model.history_["weight"].dims == (dim, "iteration", "kernel")
    for (signs, own), objective in zip(problems(model, three()[rows]), model.objective_.values, strict=True):
        best = optimum(K[:, own][:, :, own], signs, 4.0, 1.5)
        assert objective == pytest.approx(best, rel=1e-3)
    assert model.score(kernels[rows, rows], three()[rows]) > 0.8


@pytest.mark.usefixtures("synchronous")
def test_votes_are_scikit_learns(digits):
    train, test = np.arange(140), np.arange(140, 200)
    model = dmkl.MKSVM(2, 1.0, multiclass="ovo", tol=1e-8).fit(digits.select(["left"])[train, train])
    own, cross = (dense_view(np.asarray(digits.select(["left"])), some, train, STEPS)[0] for some in (train, test))
    theirs = SVC(kernel="precomputed", C=1.0, tol=1e-8, break_ties=True).fit(own, digits.labels[train])
    np.testing.assert_array_equal(model.classes_, theirs.classes_)
    found = model.decision_function(digits[test, train])
    assert found.dims == ("sample", "class")
    np.testing.assert_allclose(found, theirs.decision_function(cross), atol=1e-3)
    np.testing.assert_array_equal(model.predict(digits[test, train]), theirs.predict(cross))


@pytest.mark.usefixtures("synchronous")
def test_tied_votes_go_to_the_larger_sum_of_distances(kernels):
    model = dmkl.MKSVM(1.5, 4.0, multiclass="ovo").fit(kernels, three())
    # Each class beats one of the others: apple pear by 0.1, plum apple by 0.2, pear plum by 0.7.
    assert model.labels_of(votes(np.array([[0.1, -0.2, 0.7]]))) == ["pear"]
    assert model.weights_.pair.values.tolist() == ["apple or pear", "apple or plum", "pear or plum"]


@pytest.mark.usefixtures("synchronous")
def test_tasks_with_p_and_C_of_their_own(kernels):
    tasks = np.stack([three() == name for name in ("apple", "pear", "plum")], axis=1).astype(int)
    p, C = (1.0, 1.5, np.inf), (0.5, 4.0, 16.0)
    model = dmkl.MKSVM(p, C, tol=TIGHT).fit(kernels, tasks)
    check_machines(model, dense_view(dense(), steps=STEPS), tasks)
    singles = [dmkl.MKSVM(p[t], C[t], tol=TIGHT).fit(kernels, tasks[:, t]) for t in range(3)]
    assert model.weights_.dims == ("kernel", "task")
    for t, single in enumerate(singles):
        np.testing.assert_allclose(model.weights_[:, t], single.weights_, atol=3 * np.sqrt(TIGHT))
        assert model.objective_.values[t] == pytest.approx(single.objective_, rel=2 * TIGHT)
    predicted = np.stack([single.predict(kernels) for single in singles], axis=1)
    np.testing.assert_array_equal(model.predict(kernels), predicted)
    assert model.n_passes_ <= max(single.n_passes_ for single in singles) + 2
    one_for_all = dmkl.MKSVM(1.5, 4.0, tol=TIGHT).fit(kernels, tasks)
    assert one_for_all.objective_.values[1] == pytest.approx(singles[1].objective_, rel=2 * TIGHT)


def test_ten_classes_share_their_passes(digits):
    model = dmkl.MKSVM(1.5, 4.0).fit(digits)
    y = digits.labels
    singles = [dmkl.MKSVM(1.5, 4.0).fit(digits, np.where(y == digit, 1, 0)).n_passes_ for digit in range(10)]
    assert model.n_passes_ <= max(singles) + 2
    assert model.score(digits) == 1.0
    assert (model.weights_.sel(kernel="noise") < model.weights_.drop_sel(kernel="noise").max("kernel")).all()


# --- both: saving, features, warnings, parameters --------------------------------------------------------------------


@pytest.mark.usefixtures("synchronous")
def test_saved_and_loaded(kernels, tmp_path):
    tasks = np.stack([three() == "plum", binary() == "yes"], axis=1).astype(int)
    train, test = np.arange(30), np.arange(30, M)
    for number, (model, y) in enumerate(
        [
            (dmkl.MKSVM(np.inf, 4.0), binary()),
            (dmkl.MKSVM(1.0, 4.0, multiclass="ovo"), three()),
            (dmkl.MKSVM((1, 2), (0.5, 4.0), steps=("center", "cosine")), tasks),
            (dmkl.GMKL(4.0, [1.0, 2.0, 3.0, 4.0], A=np.eye(4)[:2], b=[0.1, 0.2], steps=("multiplicative",)), three()),
        ]
    ):
        model.fit(kernels[train, train], y[train])
        path = tmp_path / f"model-{number}"
        model.save(path)
        loaded = dmkl.load(path)
        assert type(loaded) is type(model)
        for name, value in model.get_params().items():
            np.testing.assert_array_equal(loaded.get_params()[name], value)
        K = kernels[test, train]
        xr.testing.assert_equal(loaded.decision_function(K), model.decision_function(K))
        np.testing.assert_array_equal(loaded.predict(K), model.predict(K))
        for name in ("weights_", "dual_coef_", "intercept_", "history_"):
            xr.testing.assert_equal(getattr(loaded, name), getattr(model, name))
        for name in ("gap_", "objective_", "status_", "n_iter_", "n_passes_"):
            np.testing.assert_array_equal(getattr(loaded, name), getattr(model, name))
            assert type(getattr(loaded, name)) is type(getattr(model, name))


@pytest.mark.usefixtures("synchronous")
@pytest.mark.parametrize("multiclass", ["ovr", "ovo"])
def test_prediction_from_features(tmp_path, multiclass):
    X, y = load_digits(n_class=4, return_X_y=True)
    X, y = X[:90], y[:90]
    specs = [{"function": "rbf", "feature": "pixels", "bandwidth": [0.5, 2]}, {"function": "linear", "feature": "*"}]
    train, test = np.arange(60), np.arange(60, 90)
    K = dmkl.build(tmp_path / "set.zarr", {"pixels": X}, specs, train=train, tile=32)
    model = dmkl.MKSVM(1.5, 4.0, multiclass=multiclass).fit(K[train, train], y[train])
    model.save(tmp_path / "model")
    for fitted in (model, dmkl.load(tmp_path / "model")):
        scores = fitted.decision_function(features={"pixels": X[test]})
        np.testing.assert_allclose(scores, fitted.decision_function(K[test, train]), rtol=1e-9, atol=1e-9)
        assert fitted.score(features={"pixels": X[test]}, y=y[test]) > 0.9


@pytest.mark.usefixtures("synchronous")
@pytest.mark.parametrize("make", [dmkl.MKSVM, dmkl.GMKL])
def test_too_few_weightings_are_told(kernels, make):
    model = make(C=4.0, tol=1e-8, max_iter=2)
    with pytest.warns(ConvergenceWarning, match=r"relative gap of .*, above tol=1e-08"):
        model.fit(kernels)
    assert model.status_ == Status.ITERATIONS.advice
    assert model.n_iter_ == 2
    assert model.gap_ > 1e-8
    with pytest.warns(ConvergenceWarning, match=r"\(class (apple|pear|plum)\)"):
        model.fit(kernels, three())
    if make is dmkl.MKSVM:
        check_machines(model, dense_view(dense(), steps=STEPS), three())


def test_parameters_and_clones():
    for model in (dmkl.MKSVM((1, 2), 4.0, multiclass="ovo", tol=1e-5), dmkl.GMKL(2.0, [1, 2], [[1, 0]], [0.5])):
        copied = clone(model)
        assert copied.get_params() == model.get_params()
        assert repr(copied) == repr(model)
        assert model.set_params(C=8.0).C == 8.0
        with pytest.raises(NotFittedError):
            copied.predict(None)


@pytest.mark.usefixtures("synchronous")
def test_what_a_fit_refuses(kernels):
    for model, told in (
        (dmkl.MKSVM(0.5), "p must be at least 1"),
        (dmkl.MKSVM(C=0), "C must be positive"),
        (dmkl.MKSVM(C=np.inf), "C must be positive"),
        (dmkl.MKSVM(C=[1, 2, 3]), "C has 3 values and there are 1 problems"),
        (dmkl.MKSVM(multiclass="one"), "multiclass must be 'ovr'"),
        (dmkl.MKSVM(tol=0), "tol must be positive"),
        (dmkl.MKSVM(max_iter=0), "max_iter must be a whole number, at least 1"),
        (dmkl.MKSVM(steps=("center", "unit")), "steps takes names of steps"),
        (dmkl.GMKL(-1), "C must be"),
        (dmkl.GMKL(C=[1, 2]), "C has 2 values and there are 1 problems"),
        (dmkl.GMKL(sigma=[1, 2]), r"sigma has shape \(2,\), expected one number, or a price for each of the 4 kernels"),
        (dmkl.GMKL(A=np.eye(4)), "A and b define A d"),
        (dmkl.GMKL(A=np.eye(3), b=np.ones(3)), "A has shape"),
        (dmkl.GMKL(sigma=0.0), "without a price"),
        (dmkl.GMKL(method="best"), "method must be 'newton' or 'gradient'"),
    ):
        with pytest.raises(InputError, match=told):
            model.fit(kernels)
        assert not hasattr(model, "weights_")


# --- GMKL ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("constrained", [False, True])
def test_the_optimum_of_varma_and_ray(kernels, scheduler, constrained):
    A, b = [[1.0, -2.0, 0, 0], [0, 0, -1.0, -1.0], [0, 0, 0, 1.0]], [0.0, -0.5, 0.05]
    rows = np.random.default_rng(2).permutation(M)[:40]
    sigma = [0.5, 1.0, 2.0, 1.0]
    model = dmkl.GMKL(4.0, sigma, *((A, b) if constrained else ())).fit(kernels[rows, rows])
    K = dense_view(dense(), rows, rows, STEPS)
    signs = np.where(binary()[rows] == "yes", 1.0, -1.0)
    problem = GeneralizedProblem(signs, 4.0, np.array(sigma), *(map(np.array, (A, b)) if constrained else ()))
    best = reference(K, problem)
    assert model.objective_ == pytest.approx(best, rel=1e-3)
    # What it says of its attributes is so: the primal value, and that it is no further from the optimum than the gap.
    ((d, u, bias, _, _, C),) = pairs_of(model, K, binary()[rows])
    combined = np.tensordot(d, K, axes=1)
    hinge = np.maximum(0, 1 - signs * (combined @ u + bias)).sum()
    assert model.objective_ == pytest.approx(np.array(sigma) @ d + u @ combined @ u / 2 + C * hinge, rel=1e-9)
    assert best * (1 - 1e-6) <= model.objective_ <= best * (1 + 1e-6) / (1 - model.gap_)
    assert model.gap_ <= model.tol
    if constrained:
        assert (np.array(A) @ d - b).min() >= -1e-8
    np.testing.assert_allclose(model.decision_function(kernels[rows, rows]), combined @ u + bias, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("multiclass", ["ovr", "ovo"])
def test_digits_with_prices_and_constraints(digits, multiclass):
    # One against one of ten classes would be 45 problems.
    classes = {"ovr": 10, "ovo": 5}[multiclass]
    rows = np.flatnonzero(digits.labels < classes)
    train, test = np.split(rows, [len(rows) * 7 // 10])
    sigma = np.where(np.array(digits.names) == "all", 1e4, 1.0)
    A, b = np.array([[0, 1.0, -1.0, 0, 0], [0, 0, 0, 0, -1.0]]), np.array([0.0, -0.1])  # top ≥ bottom, noise ≤ 0.1
    model = dmkl.GMKL(10.0, sigma, A, b, multiclass).fit(digits[train, train])
    assert model.weights_.shape == (5, 10)
    assert model.gap_.max() <= model.tol
    assert (A @ model.weights_.values >= b[:, None] - 1e-8).all()
    assert model.weights_.values.min() >= 0
    assert model.weights_.sel(kernel="all").max() <= 1e-4 * model.weights_.sel(kernel="top").max()
    free = dmkl.GMKL(10.0, multiclass=multiclass).fit(digits[train, train])
    assert (free.weights_.sel(kernel="all") > 1e-3).any()
    assert (free.weights_.sel(kernel="top") < free.weights_.sel(kernel="bottom")).any()
    for fitted in (model, free):
        assert fitted.score(digits[test, train]) > 0.85
    # Ten problems side by side take fewer passes than five by themselves.
    pair = np.isin(digits.labels[train], (1, 3))
    single = dmkl.GMKL(10.0).fit(digits[train[pair], train[pair]])
    assert free.n_passes_ < 5 * single.n_passes_


@pytest.mark.usefixtures("synchronous")
def test_the_gradient_method_agrees(kernels):
    newton = dmkl.GMKL(4.0, 2.0, tol=1e-3).fit(kernels)
    gradient = dmkl.GMKL(4.0, 2.0, tol=1e-3, method="gradient").fit(kernels)
    assert gradient.objective_ == pytest.approx(newton.objective_, rel=1e-3)
    assert gradient.gap_ <= 1e-3


@pytest.mark.usefixtures("synchronous")
def test_constraints_that_contradict_each_other_are_named_before_any_pass(kernels):
    K, source = over(kernels, Counting)
    A, b = np.eye(4)[[0, 1, 0]] * [[1], [1], [-1]], [2.0, 0.1, -1.0]  # d_0 ≥ 2 and d_0 ≤ 1
    for rows in (np.arange(M), np.arange(30)):
        with pytest.raises(InputError, match=r"row 0 \(times 1\), row 2 \(times 1\)") as caught:
            dmkl.GMKL(A=A, b=b).fit(K[rows, rows], three()[rows])
        assert "row 1" not in str(caught.value)
    assert not source.reads


@pytest.mark.usefixtures("synchronous")
def test_tasks_with_a_C_of_their_own(kernels):
    tasks = np.stack([three() == "plum", binary() == "yes"], axis=1).astype(int)
    model = dmkl.GMKL((0.5, 4.0), tol=1e-5).fit(kernels, tasks)
    for t, C in enumerate((0.5, 4.0)):
        single = dmkl.GMKL(C, tol=1e-5).fit(kernels, tasks[:, t])
        assert model.objective_.values[t] == pytest.approx(single.objective_, rel=2e-5)


# --- searches --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("synchronous")
@pytest.mark.parametrize("multiclass", ["ovr", "ovo"])
def test_a_search_finds_what_single_fits_do(kernels, multiclass):
    grid = {"p": [1.0, 2.0], "C": [0.5, 4.0]}
    folds = [(np.setdiff1d(np.arange(M), np.arange(f, M, 3)), np.arange(f, M, 3)) for f in range(3)]
    result = dmkl.search(dmkl.MKSVM(multiclass=multiclass, tol=TIGHT), kernels, three(), grid, folds)
    fits, passes = result.scores, 0
    for p in grid["p"]:
        for C in grid["C"]:
            for f, (train, held) in enumerate(folds):
                single = dmkl.MKSVM(p, C, multiclass=multiclass, tol=TIGHT).fit(kernels[train, train], three()[train])
                passes += single.n_passes_ + 1
                at = {"p": p, "C": C, "fold": fits.fold.values[f]}
                assert fits["score"].sel(at) == single.score(kernels[held, train], three()[held])
                np.testing.assert_allclose(
                    fits["weight"].sel(at), single.weights_.mean(axis=1), atol=3 * np.sqrt(TIGHT)
                )
                assert fits["objective"].sel(at).item() == pytest.approx(single.objective_.values.sum(), rel=2 * TIGHT)
                assert fits["gap"].sel(at) <= TIGHT
    assert set(np.unique(fits["status"])) == {0}
    assert result.n_passes_ < passes / 3
    assert result.best_.get_params() == dmkl.MKSVM(**result.best_params_, multiclass=multiclass, tol=TIGHT).get_params()
    check_machines(result.best_, dense_view(dense(), steps=STEPS), three())


@pytest.mark.usefixtures("synchronous")
def test_the_default_grid_and_the_simplest_point(kernels, tmp_path):
    grid = {"p": [2.0, 1.0], "C": [64.0, 0.25, 4.0]}
    result = dmkl.search(dmkl.MKSVM(), kernels, None, grid, 3, rule="one_standard_error")
    mean, error = result.scores["mean_score"], result.scores["standard_error"]
    best = mean.where(mean == mean.max()).stack(point=("C", "p")).dropna("point")
    # Of equally good points the simplest is the best: the smallest C, then the smallest p.
    C, p = min(best.point.values)
    near = mean >= float(mean.sel(C=C, p=p)) - float(error.sel(C=C, p=p)) - 1e-9
    assert result.best_params_ == dict(zip(("C", "p"), min(near.where(near).stack(point=("C", "p")).dropna("point")
                                                        .point.values), strict=True))  # fmt: skip
    result.save(tmp_path / "found")
    loaded = dmkl.load(tmp_path / "found")
    assert loaded.best_params_ == result.best_params_
    np.testing.assert_array_equal(loaded.best_.predict(kernels), result.best_.predict(kernels))
    assert dmkl.search(dmkl.GMKL(), kernels, None, {"C": [0.5, 4]}, 2).best_.gap_ <= 1e-3


@pytest.mark.usefixtures("synchronous")
@pytest.mark.parametrize(
    ("model", "grid"),
    [(dmkl.MKSVM(), {"p": [1.0, 2.0], "C": [0.25, 16.0]}), (dmkl.GMKL(), {"C": [0.25, 16.0]})],
)
def test_tasks_choose_each_for_themselves(tmp_path, model, grid):
    tasks = np.stack([three() == "plum", binary() == "yes", np.arange(M) % 2 == 0], axis=1).astype(int)
    parts = np.where(np.arange(M) % 5 == 4, 2, np.where(np.arange(M) % 5 == 3, 1, 0))
    K = dmkl.create(tmp_path / "set.zarr", dense(), labels=tasks, tasks=["plum", "yes", "even"], splits=parts, tile=16)
    result = dmkl.search(model, K, None, grid, "splits", scoring="roc_auc")
    assert result.tasks == ("plum", "yes", "even")
    train, validation, test = K.split(0)
    for t, task in enumerate(result.tasks):
        alone = dmkl.search(model, K, tasks[:, t], grid, "splits", scoring="roc_auc")
        assert result.best_params_[task] == alone.best_params_
        for name in ("score", "test_score", "refit_test_score"):
            np.testing.assert_allclose(result.scores[name].sel(task=task), alone.scores[name], atol=1e-9)
        np.testing.assert_allclose(result.best_.objective_.values[t], alone.best_.objective_, rtol=2e-3)
    assert result.best_.n_features_in_ == len(train) + len(validation)
    assert result.best_.predict(K[test, np.union1d(train, validation)]).shape == (len(test), 3)


@pytest.mark.usefixtures("synchronous")
def test_a_search_over_steps_of_the_kernels(kernels):
    grid = {"steps": ["center+multiplicative", "center+cosine"], "C": [0.5, 4.0]}
    result = dmkl.search(dmkl.MKSVM(1.5), kernels, None, grid, 2)
    for steps in grid["steps"]:
        part = dmkl.search(dmkl.MKSVM(1.5, steps=steps), kernels, None, {"C": [0.5, 4.0]}, 2)
        np.testing.assert_allclose(result.scores["score"].sel(steps=steps), part.scores["score"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert result.best_.gap_ <= 1e-3
