"""MKSVM and GMKL on stored kernels, against cvxpy, scikit-learn and their certificate by the definitions."""

from itertools import combinations

import dask
import numpy as np
import pytest
from helpers.margin import made, optimum, reference
from helpers.optima import conjugate, norm
from helpers.references import Counting, dense_view, over
from sklearn.base import clone
from sklearn.svm import SVC

import dmkl
from dmkl.errors import ConvergenceWarning, InputError
from dmkl.solvers.interface import Status
from dmkl.solvers.margin.gmkl import PricedSet

M = 45
STEPS = ("center", "multiplicative")
"""The default steps of the machines."""
TIGHT = 1e-6
"""The gap; objectives are compared to within twice of it, and weights, whose error is of first order, to its root."""


DENSE, SIGNS = made(4, M)
BINARY = np.where(SIGNS > 0, "yes", "no")
SCORE = DENSE[0] @ SIGNS + 0.3 * np.random.default_rng(3).standard_normal(M)
THREE = np.array(["apple", "pear", "plum"])[np.argsort(np.argsort(SCORE)) * 3 // M]
"""Three classes that depend on the kernels."""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    """The kernel set with ragged tiles, 45 = 2 × 16 + 13."""
    return dmkl.create(tmp_path_factory.mktemp("margin") / "set.zarr", DENSE, labels=BINARY, tile=16)


def problems(model, y):
    """Signs and samples of each binary problem of a model fitted on labels y, in its order."""
    y = np.asarray(y)
    every = np.arange(len(y))
    if model.kind_ == "binary":
        return [(np.where(y == model.classes_[1], 1.0, -1.0), every)]
    if model.multiclass == "ovr":
        return [(np.where(y == name, 1.0, -1.0), every) for name in model.classes_]
    pairs = [(first, np.flatnonzero((y == first) | (y == second))) for first, second in combinations(model.classes_, 2)]
    return [(np.where(y[rows] == first, 1.0, -1.0), rows) for first, rows in pairs]


def pairs_of(model, K, y):
    """Yield β, u, b, the labels, the kernels and C of each problem; check that u is in the dual's box."""
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
    """Check that the gap and the objective of an MKSVM are those of its attributes, on dense kernels."""
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
        # At p = ∞ and with one kernel weights change nothing, and the gap is relative to the objective.
        part = primal if np.isinf(p) or len(beta) == 1 else min(primal, beta @ forms / 2)
        assert gap == pytest.approx((primal - lower) / part, abs=1e-9)
        assert objective == pytest.approx(signs @ u - beta @ forms / 2, rel=1e-9)


# --- MKSVM: one problem ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("scheduler", "p", "C"),
    [
        ("synchronous", 1.0, 16.0),
        ("synchronous", 1.0625, 64.0),
        ("synchronous", 2.0, 64.0),
        ("synchronous", 8.0, 0.25),
        ("threads", 1.5, 0.25),
        pytest.param("processes", np.inf, 4.0, marks=pytest.mark.slow),
    ],
    indirect=["scheduler"],
)
def test_the_optimum_is_cvxpys(kernels, scheduler, p, C):
    rows = np.random.default_rng(0).permutation(M)[:38]
    model = dmkl.MKSVM(p, C).fit(kernels[rows, rows])
    K = dense_view(DENSE, rows, rows, STEPS)
    best = optimum(K, np.where(BINARY[rows] == "yes", 1.0, -1.0), C, p)
    assert model.objective_ == pytest.approx(best, rel=1e-3)
    assert model.gap_ <= model.tol
    assert model.objective_ / (1 - model.gap_) >= best * (1 - 1e-6)
    check_machines(model, K, BINARY[rows])
    assert model.status_ == Status.CERTIFIED.advice


@pytest.mark.parametrize("steps", [("center",), STEPS])
def test_pairs_out_of_core(kernels, steps):
    """Machines on some of the samples use columns of the sum over all of them.

    Sums are stored before centering if all kernels have the same steps, and after it otherwise.
    """
    model = dmkl.MKSVM(1.5, 4.0, multiclass="ovo", tol=1e-5, steps=steps)
    inside = clone(model).fit(kernels, THREE)
    with dask.config.set({"dmkl.memory": 36_000}):
        outside = clone(model).fit(kernels, THREE)
    np.testing.assert_allclose(outside.objective_, inside.objective_, rtol=2e-5)
    check_machines(outside, dense_view(DENSE, steps=steps), THREE)


# --- MKSVM: several problems -----------------------------------------------------------------------------------------
def test_votes_are_scikit_learns(kernels):
    train, test = np.arange(30), np.arange(30, M)
    K, y = kernels.select([kernels.names[3]]), THREE
    model = dmkl.MKSVM(2, 1.0, multiclass="ovo", tol=1e-8).fit(K[train, train], y[train])
    own, cross = (dense_view(DENSE[3:], rows, train, STEPS)[0] for rows in (train, test))
    reference = SVC(kernel="precomputed", C=1.0, tol=1e-8, break_ties=True).fit(own, y[train])
    scores = model.decision_function(K[test, train])
    assert scores.dims == ("sample", "class")
    np.testing.assert_allclose(scores, reference.decision_function(cross), atol=1e-3)
    np.testing.assert_array_equal(model.predict(K[test, train]), reference.predict(cross))


def test_the_gap_of_machines_that_end_early_is_theirs(kernels):
    model = dmkl.MKSVM(C=4.0, tol=1e-8, max_iter=2)
    with pytest.warns(ConvergenceWarning, match=r"relative gap of .* \(class (apple|pear|plum)\), above tol=1e-08"):
        model.fit(kernels, THREE)
    assert model.n_iter_ == 2
    check_machines(model, dense_view(DENSE, steps=STEPS), THREE)


# --- GMKL ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("scheduler", "constrained"),
    [("threads", False), ("synchronous", True), pytest.param("processes", True, marks=pytest.mark.slow)],
    indirect=["scheduler"],
)
def test_the_optimum_of_varma_and_ray(kernels, scheduler, constrained):
    A, b = [[1.0, -2.0, 0, 0], [0, 0, -1.0, -1.0], [0, 0, 0, 1.0]], [0.0, -0.5, 0.05]
    rows = np.random.default_rng(2).permutation(M)[:40]
    sigma = [0.5, 1.0, 2.0, 1.0]
    model = dmkl.GMKL(4.0, sigma, *((A, b) if constrained else ())).fit(kernels[rows, rows])
    K = dense_view(DENSE, rows, rows, STEPS)
    signs = np.where(BINARY[rows] == "yes", 1.0, -1.0)
    best = reference(K, signs, 4.0, PricedSet(np.array(sigma), *(map(np.array, (A, b)) if constrained else ())))
    assert model.objective_ == pytest.approx(best, rel=1e-3)
    # Its attributes are correct: the primal value, and its distance to the optimum is within the gap.
    ((d, u, bias, _, _, C),) = pairs_of(model, K, BINARY[rows])
    combined = np.tensordot(d, K, axes=1)
    hinge = np.maximum(0, 1 - signs * (combined @ u + bias)).sum()
    assert model.objective_ == pytest.approx(np.array(sigma) @ d + u @ combined @ u / 2 + C * hinge, rel=1e-9)
    assert best * (1 - 1e-6) <= model.objective_ <= best * (1 + 1e-6) / (1 - model.gap_)
    assert model.gap_ <= model.tol
    if constrained:
        assert (np.array(A) @ d - b).min() >= -1e-8
    np.testing.assert_allclose(model.decision_function(kernels[rows, rows]), combined @ u + bias, rtol=1e-9, atol=1e-10)


def test_constraints_that_contradict_each_other_are_named_before_any_pass(kernels):
    K, source = over(kernels, Counting)
    A, b = np.eye(4)[[0, 1, 0]] * [[1], [1], [-1]], [2.0, 0.1, -1.0]  # d_0 ≥ 2 and d_0 ≤ 1
    with pytest.raises(InputError, match=r"row 0 \(times 1\), row 2 \(times 1\)") as caught:
        dmkl.GMKL(A=A, b=b).fit(K, THREE)
    assert "row 1" not in str(caught.value)
    assert not source.reads
