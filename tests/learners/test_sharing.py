"""One set of weights for all classes, or one for each: `MKSVM(sharing="classes")` and `MKFDA(sharing="none")`."""

import cvxpy as cp
import numpy as np
import pytest
from helpers.optima import conjugate, power_norm, quadratic_form, to_optimality

import dmkl
from dmkl.errors import InputError

M, N_CLASSES = 40, 4


@pytest.fixture(scope="module")
def kernels():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(4, M, 5))
    # The first three tables contain class means, each with a different class most separated.
    features[:3, np.arange(M), labels()] += np.array([1.0, 1.5, 2.0])[:, None]
    return features @ features.transpose(0, 2, 1)


def labels():
    return np.arange(M) % N_CLASSES


def signs():
    return np.where(labels()[:, None] == np.arange(N_CLASSES), 1.0, -1.0)


def shared_optimum(kernels, C, p):
    """max over U of Σ_k y_kᵀu_k − ½‖v‖_p*, v_j = Σ_k u_kᵀK_ju_k, 0 ≤ y_iku_ik ≤ C_i, Σ_i u_ik = 0, by Clarabel."""
    u = cp.Variable((M, N_CLASSES))
    forms = cp.hstack([quadratic_form(kernel, u, 1e-10) for kernel in kernels])
    size = {1: cp.max, np.inf: cp.sum}.get(p, lambda v: power_norm(v, conjugate(p)))(forms)
    signed = cp.multiply(signs(), u)
    bounds = np.broadcast_to(np.reshape(C, (-1, 1)), (M, N_CLASSES))
    problem = cp.Problem(
        cp.Maximize(cp.sum(signed) - 0.5 * size), [signed >= 0, signed <= bounds, cp.sum(u, axis=0) == 0]
    )
    return to_optimality(problem, f"p = {p}")


@pytest.mark.parametrize(("p", "C"), [(1, 1.0), (1.5, 0.2), (2, 10.0), (np.inf, 1.0)])
def test_shared_weights_reach_the_optimum_of_all_classes_together(kernels, p, C):
    model = dmkl.MKSVM(p, C, sharing="classes", steps=(), tol=1e-6).fit(kernels, labels())
    exact = shared_optimum(kernels, C, p)
    assert model.objective_ == pytest.approx(exact, rel=1e-5)
    assert model.gap_ <= 1e-6
    assert model.weights_.dims == ("kernel",)
    assert np.linalg.norm(model.weights_, p) == pytest.approx(1.0)
    # The certificate from the definitions: P − D, with P the primal at the model's scores.
    u = model.dual_coef_.values
    forms = np.einsum("mc,nmk,kc->n", u, kernels, u)
    losses = np.maximum(0.0, 1.0 - signs() * model.decision_function(kernels).values).sum()
    primal = 0.5 * float(model.weights_.values @ forms) + C * losses
    assert primal >= exact - 1e-6 * abs(exact)
    assert primal == pytest.approx(exact, rel=1e-5)
    np.testing.assert_allclose(u.sum(axis=0), 0.0, atol=1e-9)


@pytest.mark.slow
def test_shared_weights_take_weights_of_classes_and_some_kernels(kernels):
    weight = {0: 3.0, 1: 1.0, 2: 1.0, 3: 0.5}
    model = dmkl.MKSVM(1.5, 1.0, sharing="classes", class_weight=weight, steps=(), tol=1e-6).fit(kernels, labels())
    C = np.array([weight[label] for label in labels()])
    assert model.objective_ == pytest.approx(shared_optimum(kernels, C, 1.5), rel=1e-5)
    without = dmkl.importance(dmkl.MKSVM(1.5, 1.0, sharing="classes", steps=()), kernels, labels(), cv=2).data
    assert (without["weight_without"].where(without["member"], 0.0) == 0.0).all()  # a kernel left out has no weight


@pytest.mark.parametrize("class_weight", [None, "balanced"])
def test_classes_with_weights_of_their_own_are_problems_of_their_own(kernels, class_weight):
    lam = [0.1, 0.3, 1.0, 3.0]
    model = dmkl.MKFDA(1.5, lam, sharing="none", class_weight=class_weight, steps=(), tol=1e-8).fit(kernels, labels())
    assert model.weights_.dims == ("kernel", "class")
    share = 1.0 / N_CLASSES
    H = np.where(signs() > 0, share**-0.5 - share**0.5, -(share**0.5))
    for k in range(N_CLASSES):
        alone = dmkl.solve_mkfda(kernels, H[:, k], 1.5, lam[k], tol=1e-8)
        np.testing.assert_allclose(model.weights_[:, k], alone.weights, atol=1e-5)
        np.testing.assert_allclose(model.dual_coef_[:, k], alone.dual[:, 0], atol=1e-4)
        assert model.objective_[k] == pytest.approx(alone.objective, rel=1e-7)


def test_scores_of_left_out_rows_are_those_of_fits_without_them(kernels):
    """The weights are equal at p = ∞: every class has the plain sum."""
    equal = dmkl.MKFDA(np.inf, [0.3] * N_CLASSES, sharing="none", solver="direct").fit(kernels, labels())
    shared = dmkl.MKFDA(np.inf, 0.3, solver="direct").fit(kernels, labels())
    assert equal.calibrated_on_ == shared.calibrated_on_ != ""
    np.testing.assert_allclose(equal.predict_proba(kernels), shared.predict_proba(kernels), rtol=1e-6)


def test_rules_of_sharing(kernels):
    with pytest.raises(InputError, match="take multiclass='ovr'"):
        dmkl.MKSVM(sharing="classes", multiclass="ovo").fit(kernels, labels())
    with pytest.raises(InputError, match="tasks of a multilabel problem have their own weights"):
        dmkl.MKSVM(sharing="classes").fit(kernels, signs() > 0)
