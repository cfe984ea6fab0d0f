"""EasyMKL against its two quadratic programs, solved by cvxpy."""

from itertools import combinations

import cvxpy as cp
import numpy as np
import pytest
from helpers.optima import quadratic_form
from helpers.references import dense_view

import dmkl
from dmkl.errors import InputError
from dmkl.solvers import in_memory
from dmkl.solvers.margin import svm

M = 36


@pytest.fixture(scope="module")
def kernels():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(4, M, 5))
    features[:2] += np.array([0.8, 0.3])[:, None, None] * np.eye(5)[classes()]
    return features @ features.transpose(0, 2, 1)


def classes():
    return np.arange(M) % 3


def nearest(kernel, positive, lam):
    """v = γ∘y and the minimum of (1 − λ) vᵀKv + λ vᵀv over γ ≥ 0 that sums to one over each class."""
    gamma, signs = cp.Variable(M, nonneg=True), np.where(positive, 1.0, -1.0)
    v = cp.multiply(signs, gamma)
    cost = (1 - lam) * quadratic_form(kernel, v) + lam * cp.sum_squares(v)
    problem = cp.Problem(cp.Minimize(cost), [cp.sum(gamma[positive]) == 1, cp.sum(gamma[~positive]) == 1])
    problem.solve(solver=cp.CLARABEL)
    return signs * gamma.value, problem.value


STEPS = ("center", "multiplicative")


@pytest.mark.parametrize(
    ("lam", "fits", "steps"), [(0.01, True, ()), (0.1, False, ()), (0.9, True, ()), (0.1, True, STEPS)]
)
def test_weights_and_classifier_are_those_of_the_two_programs(kernels, lam, fits, steps, monkeypatch):
    """A kernel that exceeds the memory of a task is read by columns, to which the ridge λI is also added.

    The published λ is for kernels with a mean diagonal of one, whatever the scale of the stored kernels.
    """
    if not fits:
        monkeypatch.setattr(in_memory, "suits", lambda *_, **__: False)
        monkeypatch.setattr(svm, "dense_bytes", lambda _: 2**60)
    K = 1e3 * kernels if steps else kernels
    model = dmkl.EasyMKL(lam, tol=1e-8, **({} if steps else {"steps": ()})).fit(K, classes())
    kernels, scores = dense_view(K, steps=steps), model.decision_function(K).values
    for k in range(3):
        first, _ = nearest(kernels.sum(axis=0), classes() == k, lam)
        forms = np.einsum("a,jab,b->j", first, kernels, first)
        eta = forms / np.linalg.norm(forms)
        total = np.tensordot(eta, kernels, 1)
        v, value = nearest(total, classes() == k, lam)
        np.testing.assert_allclose(model.weights_[:, k], eta, atol=1e-5)
        np.testing.assert_allclose(model.dual_coef_[:, k], v, atol=1e-4)
        assert model.objective_[k] == pytest.approx(value, rel=1e-5)
        # The threshold is halfway between the nearest points of the two hulls.
        middle = 0.5 * np.abs(v) @ total @ v
        np.testing.assert_allclose(scores[:, k], total @ v - middle, atol=1e-4)
    assert float(model.gap_.max()) <= 1e-8


@pytest.mark.parametrize("steps", [(), ("center", "multiplicative")])
def test_pairs_of_classes_are_fits_on_their_samples_and_vote(kernels, steps):
    """Steps take their statistics from all training samples, as for `MKSVM`."""
    y, rows = classes(), np.arange(M)
    stepped = dense_view(kernels, steps=steps)
    model = dmkl.EasyMKL(0.2, multiclass="ovo", steps=steps, tol=1e-8).fit(kernels, y)
    assert model.weights_.dims == ("kernel", "pair")
    assert model.weights_["pair"].values.tolist() == ["0 or 1", "0 or 2", "1 or 2"]
    votes, sums = np.zeros((2, M, 3))
    for k, (a, b) in enumerate(combinations(range(3), 2)):
        of_pair = rows[(y == a) | (y == b)]
        # The second of two classes is the positive one; of a pair it is the first.
        single = dmkl.EasyMKL(0.2, steps=(), tol=1e-8).fit(stepped[:, of_pair][:, :, of_pair], y[of_pair] == a)
        np.testing.assert_allclose(model.weights_[:, k], single.weights_, atol=1e-6)
        np.testing.assert_allclose(model.dual_coef_[of_pair, k], single.dual_coef_[:, 0], atol=1e-6)
        assert not model.dual_coef_[y == 3 - a - b, k].any()
        scores = single.decision_function(stepped[:, :, of_pair]).values
        votes[:, a] += scores > 0
        votes[:, b] += scores <= 0
        sums += scores[:, None] * ((np.arange(3) == a) * 1.0 - (np.arange(3) == b))
    expected = votes + sums / (3 * (np.abs(sums) + 1))  # the sum of scores breaks ties
    np.testing.assert_allclose(model.decision_function(kernels), expected, atol=1e-5)
    np.testing.assert_array_equal(model.predict(kernels), expected.argmax(axis=1))


def test_pairs_are_a_choice_of_a_search(kernels):
    grid = {"multiclass": ["ovr", "ovo"], "lam": 0.1}
    result = dmkl.search(dmkl.EasyMKL(), kernels, classes(), grid, cv=2, baselines="none")
    assert np.isfinite(result.scores["score"]).all()
    alone = dmkl.search(dmkl.EasyMKL(multiclass="ovo"), kernels, classes(), {"lam": 0.1}, cv=2, baselines="none")
    np.testing.assert_array_equal(result.scores["score"].sel(multiclass="ovo"), alone.scores["score"])


def test_what_is_refused(kernels):
    with pytest.raises(InputError, match="lam must"):
        dmkl.EasyMKL(1.0).fit(kernels, classes())
    with pytest.raises(InputError, match="does not weigh samples"):
        dmkl.EasyMKL().fit(kernels, classes(), sample_weight=np.ones(M))


@pytest.mark.parametrize("grid", [None, {"lam": None}])
def test_the_default_grid_has_values_between_zero_and_one(kernels, grid):
    result = dmkl.search(dmkl.EasyMKL(), kernels, classes(), grid, cv=2)
    assert result.scores["lam"].values.tolist() == [0.02, 0.1, 0.3, 0.6, 0.9]
    assert dmkl.evaluate(dmkl.EasyMKL(), kernels, classes(), grid, outer=2, inner=2).parameters == ("lam", "steps")
