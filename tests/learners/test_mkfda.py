"""ℓp MK-FDA and its baselines: exact optima, certificates, passes, predictions, and errors on bad input."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import dask
import numpy as np
import pytest
from helpers import references
from helpers.optima import proven_gap, solve
from helpers.references import Counting, dense_view, in_memory, over, psd
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics.pairwise import chi2_kernel, rbf_kernel
from sklearn.model_selection import KFold, PredefinedSplit, StratifiedKFold

import dmkl
from dmkl.errors import ConvergenceWarning, IndefiniteKernelError, InputError, MemoryBudgetError
from dmkl.numerics.fisher import encode_targets

SOLVERS = ["direct", "cg"]
STEPS = ("center", "trace")


class Case(NamedTuple):
    """Kernels over all samples, labels, and the training samples."""

    kernels: np.ndarray
    y: np.ndarray
    train: np.ndarray
    test: np.ndarray

    @property
    def set(self):
        return in_memory(self.kernels, 40)

    @property
    def training(self):
        return self.set[self.train, self.train], self.y[self.train]

    @property
    def testing(self):
        return self.set[self.test, self.train]

    def dense(self, rows="train", steps=STEPS):
        return dense_view(self.kernels, getattr(self, rows), self.train, steps)

    @property
    def h(self):
        return encode_targets(self.y[self.train], len(self.train)).problems[0]


DIGITS = Case(*references.digits(), np.arange(60), np.arange(60, 90))
"""Ten classes: 60 samples to train on and 30 to test, kernels of pixels, of half the pixels, and of noise."""
HALVES = DIGITS._replace(y=(DIGITS.y > 6).astype(int))
"""Two unbalanced classes."""
CASES = {"digits": DIGITS, "halves": HALVES}


@cache
def fitted(case, solver="direct", p=2.0, lam=1e-2, **options):
    return dmkl.MKFDA(p, lam, solver=solver, **options).fit(*CASES[case].training)


def proven(model, case, **steps):
    """The gap of a model, recomputed by dense formulas from its attributes."""
    alpha, beta = model.dual_coef_.values, model.weights_.values
    return proven_gap(case.dense(**steps), alpha, beta, case.h, model.lam, float(model.p))


# --- against exact solutions --------------------------------------------------------------------------------
@cache
def many():
    """10 kernels of 600 samples, single precision, and labels of three tasks."""
    labels = np.stack([np.arange(600) % k == 0 for k in (2, 3, 5)], axis=1).astype(int)
    return in_memory(psd(10, 600).astype(np.float32), 256), labels


@pytest.mark.parametrize("p", [1 + 1e-9, 20.0, 1e6 - 1])
def test_extreme_exponents_are_certified(p):
    model = fitted("digits", "direct", p)
    assert model.gap_ <= 1e-4
    assert model.gap_ == pytest.approx(proven(model, DIGITS), abs=1e-9)


# --- masters ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("master", "p"), [("taylor", 1.0), ("taylor", 8.0), ("exact", 1.5), ("exact", 2.0)])
def test_every_master_reaches_the_optimum(master, p):
    newton, model = fitted("halves", p=p), fitted("halves", dmkl.Direct(master=master), p=p, max_iter=500)
    assert model.gap_ <= 1e-4
    assert model.gap_ == pytest.approx(proven(model, HALVES), abs=1e-9)
    assert abs(model.objective_ - newton.objective_) <= 1e-4 * abs(newton.objective_)
    assert model.n_iter_ >= newton.n_iter_


@pytest.mark.parametrize(("master", "solver"), [("newton", "direct"), ("taylor", "cg"), ("exact", "direct")])
def test_an_end_before_the_gap_is_told_with_the_true_gap(master, solver):
    configured = {"direct": dmkl.Direct, "cg": dmkl.CG}[solver](master=master)
    model = dmkl.MKFDA(1.5, solver=configured, max_iter=1)
    with pytest.warns(ConvergenceWarning, match=r"relative gap of .*above tol=0.0001.*raise max_iter") as caught:
        model.fit(*DIGITS.training)
    assert f"gap of {model.gap_:.2e}" in str(caught[0].message)
    assert caught[0].filename == __file__  # the line of the caller
    assert model.gap_ > 1e-4
    assert model.gap_ == pytest.approx(proven(model, DIGITS), rel=1e-9)
    assert model.n_iter_ == model.history_.sizes["iteration"] == 1


@pytest.mark.parametrize("master", ["newton", "exact"])
def test_the_best_pair_is_returned(master):
    """Cutting planes oscillate: the returned weights are those of the smallest gap, not the last ones."""
    with pytest.warns(ConvergenceWarning):
        model = dmkl.MKFDA(1, solver=dmkl.Direct(master=master), max_iter=3, tol=1e-13).fit(*DIGITS.training)
    history = model.history_
    size = abs(history.objective)
    scale = np.minimum(size, np.sum(DIGITS.h**2) - size)
    gaps = (history.upper - history.objective + history.residual_sq) / scale
    np.testing.assert_allclose(history.gap, gaps, rtol=1e-9, atol=1e-14)
    best = history.isel(iteration=int(np.argmin(history.gap.values)))
    assert (model.gap_, model.objective_) == (best.gap, best.objective)
    np.testing.assert_array_equal(model.weights_, best.weight)


# --- multilabel ---------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_a_budget_for_one_factor_takes_the_labels_in_turn():
    K, labels = many()
    together, in_turn = (dmkl.MKFDA(2, solver="direct") for _ in range(2))
    together.fit(K, labels)
    with dask.config.set({"dmkl.memory": "8MB"}):
        in_turn.fit(K, labels)
    assert in_turn.n_passes_ > together.n_passes_
    # The master's tolerance of 1e-10 in its objective allows about its square root in the weights.
    np.testing.assert_allclose(in_turn.weights_, together.weights_, atol=1e-5)


# --- passes -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("solver", SOLVERS)
def test_passes_of_predictions_read_the_kernels_of_weight(solver):
    model = fitted("digits", solver)
    assert DIGITS.training[0].bytes_per_pass == 5 * len(DIGITS.training[0].view.tile_tasks()) * 40 * 40 * 8
    K, source = over(DIGITS.testing, Counting)
    model.decision_function(K)
    used = np.count_nonzero(model.weights_)
    assert source.reads.total() == model.n_prediction_passes_ * used * len(K.view.tile_tasks())


# --- scores -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("solver", SOLVERS)
def test_single_precision(solver):
    """The certificate of a float32 set is valid too, for the kernels as they are stored."""
    single = DIGITS._replace(kernels=DIGITS.kernels.astype(np.float32))
    model = dmkl.MKFDA(1.5, 1e-3, solver=solver, tol=1e-6).fit(*single.training)
    assert model.gap_ <= 1e-6
    assert model.gap_ == pytest.approx(proven(model, single), abs=1e-9)
    double = dmkl.MKFDA(1.5, 1e-3, tol=1e-6).fit(*DIGITS.training)
    assert model.objective_ == pytest.approx(double.objective_, rel=1e-4)


SCALES = [(), ("trace",), ("cosine",), ("multiplicative",)]
CENTERED = [("center", *scale) for scale in SCALES]


@pytest.mark.parametrize(
    ("steps", "name"), [*((s, "digits") for s in [*SCALES, ("cosine", "center")]), *((s, "halves") for s in CENTERED)]
)
@pytest.mark.filterwarnings("ignore::dmkl.errors.TrainingRowsWarning")
def test_scores_are_the_dense_formula(name, steps):
    """Σ_j β_j K_j[test, train] α, test rows centred and normalised by the statistics of the training samples."""
    case = CASES[name]
    model = dmkl.MKFDA(1.5, 1.0, steps=steps).fit(*case.training)
    assert model.gap_ <= 1e-4
    assert model.gap_ == pytest.approx(proven(model, case, steps=steps), abs=1e-9)
    for part in ("test", "train"):
        rows = getattr(case, part)
        combined = np.tensordot(model.weights_.values, case.dense(part, steps), axes=1)
        expected = combined @ model.dual_coef_.values
        labels = model.labels_of(expected if name == "digits" else expected[:, 0])
        view = case.set[rows, case.train]
        scores = model.decision_function(view)
        np.testing.assert_allclose(scores.values.reshape(expected.shape), expected, atol=1e-9 * np.abs(expected).max())
        np.testing.assert_array_equal(scores.sample, case.set.samples[rows])
        np.testing.assert_array_equal(model.predict(view), labels)
        assert model.score(view, case.y[rows]) == np.mean(labels == case.y[rows])


def test_new_samples_in_a_store_of_their_own():
    K, y = DIGITS.training
    model = dmkl.MKFDA(steps=("center", "cosine"), lam=1.0).fit(K, y)
    expected = model.decision_function(DIGITS.testing)
    rectangle, own = DIGITS.kernels[:, DIGITS.test][:, :, DIGITS.train], DIGITS.kernels[:, DIGITS.test, DIGITS.test]
    options = {"names": K.names, "samples": [f"new {i}" for i in DIGITS.test], "train_samples": K.samples}
    new, bare = (
        dmkl.create(None, rectangle, symmetric=False, tile=11, **options, **diagonal)
        for diagonal in ({"diagonal": own}, {})
    )
    scores = model.decision_function(new)
    np.testing.assert_allclose(scores, expected, atol=1e-9 * np.abs(expected).max())
    assert list(scores.sample.values) == options["samples"]
    with pytest.raises(InputError, match=r"lacks the diagonal.*diagonal="):
        model.decision_function(bare)
    traced = dmkl.MKFDA().fit(K, y)
    np.testing.assert_array_equal(traced.decision_function(bare), traced.decision_function(new))


def test_kernels_without_weight_are_not_needed():
    case, model = DIGITS, fitted("digits", p=1.0, lam=1.0)
    used = [name for name, weight in zip(model.kernel_names_, model.weights_.values, strict=True) if weight]
    assert 0 < len(used) < 5
    few = case.testing.select(used[::-1])
    expected = model.decision_function(case.testing)
    np.testing.assert_allclose(model.decision_function(few), expected, atol=1e-12 * np.abs(expected).max())


# --- laws ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("p", [1.0, 1.5, np.inf])
def test_the_order_and_the_scale_of_kernels_do_not_matter(p):
    """Permuted kernels have permuted weights, steps normalize kernels, and c·K with c·λ is the same problem."""
    case, order, sizes = DIGITS, np.array([3, 0, 4, 2, 1]), np.geomspace(1e-4, 1e4, 5)[:, None, None]
    for steps, kernels, lam, places in (
        (STEPS, sizes * case.kernels[order], 1e-2, order),
        (("center",), 7 * case.kernels, 7e-2, np.arange(5)),
    ):
        model = fitted("digits", p=p, tol=1e-6, steps=steps)
        other = dmkl.MKFDA(p, lam, tol=1e-6, steps=steps).fit(*case._replace(kernels=kernels).training)
        np.testing.assert_allclose(other.weights_.values, model.weights_.values[places], atol=1e-2)
        assert other.objective_ == pytest.approx(model.objective_, rel=2e-6)


# --- bad input ----------------------------------------------------------------------------------------------
def check_refusal(words, action, kind=InputError):
    """Check that the message names the input, the actual and expected values, and a solution."""
    with pytest.raises(kind) as caught:
        action()
    for word in words:
        assert word in str(caught.value)


OTHERS = "columns must be the 60 training samples"


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (lambda c, _: dmkl.MKFDA().fit(c.set), ["fit needs labels", "give y", "labels="]),
        (lambda c, model: model.score(c.testing), ["score needs labels", "give y"]),
        (lambda _, model: model.predict("kernels.zarr"), ["prediction takes a kernel set", "got str", "dmkl.open"]),
        (lambda c, _: dmkl.MKFDA().fit(c.testing, c.y[c.test]), ["K[train, train]", "30 rows and 60 columns"]),
        (lambda c, model: model.predict(c.set[c.train, c.test]), [OTHERS, "found 30 others", "take K[test, train]"]),
        (lambda c, model: model.predict(c.set[c.test, c.train[::-1]]), [OTHERS, "the same samples in another order"]),
        (lambda c, model: model.predict(c.testing.select([0, 1])), ["gives weight to kernel 'kernel_2'", "kernel_0"]),
        (lambda c, _: dmkl.MKFDA().predict(c.testing), ["this MKFDA is not fitted yet", "call fit"]),
    ],
)
def test_sets_that_do_not_fit(action, words):
    check_refusal(words, lambda: action(DIGITS, fitted("digits")), (InputError, NotFittedError))


def replaced(kernel, values):
    """The digits with one of the kernels replaced."""
    kernels = DIGITS.kernels.copy()
    kernels[kernel] = values
    return DIGITS._replace(kernels=kernels)


@pytest.mark.parametrize("solver", [*SOLVERS, "subspace", "dual", "interleaved"])
def test_indefinite_kernels(solver):
    features = np.random.default_rng(6).standard_normal((90, 50))
    K, y = replaced(1, (features * np.where(np.arange(50) < 30, 1, -1)) @ features.T).training
    words = ["positive", "dmkl check", "repair=", "select()"]
    check_refusal(words, lambda: dmkl.MKFDA(solver=solver, lam=1e-4).fit(K, y), IndefiniteKernelError)


def test_a_ridge_below_the_precision():
    K, y = DIGITS._replace(kernels=DIGITS.kernels.astype(np.float32)).training
    words = ["lam=1e-11 is below what the stored precision resolves", "float32", "larger lam", "float64"]
    check_refusal(words, lambda: dmkl.MKFDA(lam=1e-11).fit(K, y))
    assert dmkl.MKFDA(lam=1e-11, p=np.inf).fit(*DIGITS.training).gap_ <= 1e-4


def test_the_direct_solver_keeps_the_budget():
    K, labels = many()
    with dask.config.set({"dmkl.memory": "4MB"}):
        words = ["solver='direct'", " MiB", "Take solver='cg'", "dmkl.memory"]
        check_refusal(words, lambda: dmkl.MKFDA(solver="direct").fit(K, labels), MemoryBudgetError)
    assert dmkl.MKFDA(solver="auto").fit(K, labels[:, 0]).solver_ == "direct"


# --- weights where the objective hardly depends on them ----------------------------------------------------------
@pytest.mark.parametrize(
    "learner",
    [
        *(dmkl.MKRidge(1, lam, solver=solver) for lam in (1e3, 1e5, 1e8) for solver in ("direct", "cg", "subspace")),
        *(dmkl.MKSVM(1, C) for C in (1e-6, 1e-4, 1e-2)),
    ],
    ids=repr,
)
def test_one_kernel_knows_the_target_at_any_ridge_and_any_bound(learner):
    """Equal weights have an objective within 1e-4 of the best from λ = 1e3 on.

    For small C the objective is C times the number of samples for any weights, up to rounding.
    """
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4, 60, 3))
    y = X[2, :, 0] > 0 if isinstance(learner, dmkl.MKSVM) else X[2, :, 0] + 0.3 * rng.normal(size=60)
    model = learner.fit(list(X @ X.mT), y)
    np.testing.assert_allclose(model.weights_, [0, 0, 1, 0], atol=1e-6)
    assert model.gap_ <= learner.tol


@pytest.mark.parametrize("p", [1.0, 1.25, 2.0])
def test_weights_of_a_subspace_are_as_accurate_as_is_documented(p):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 300)
    tables = [rng.normal(size=(300, 8)) + 0.2 * j * np.eye(8)[y] for j in range(8)]
    kernels = [F @ F.T for F in tables] + [rbf_kernel(F, gamma=1 / 16) for F in tables]
    exact = dmkl.MKFDA(p=p, lam=0.01, tol=1e-10).fit(kernels, y).weights_
    weights = dmkl.MKFDA(p=p, lam=0.01, solver="subspace").fit(kernels, y).weights_
    assert np.abs(weights - exact).max() <= 3e-3 * exact.max()


STATED = [*(dmkl.MKFDA(2.0, 0.01, solver=of) for of in SOLVERS), *map(dmkl.MKSVM, (1.0, 1.25, 2.0), (1.0, 0.01, 1.0))]
OTHERS = [dmkl.MKFDA(2.0, 0.01, solver=of) for of in ("subspace", "stacked", "anchored", "dual", "interleaved")]


@pytest.mark.parametrize(("seed", "m", "shifts"), [(0, 150, (1.2, 1.3)), (2, 120, 0.2 * np.arange(8))])
@pytest.mark.parametrize("learner", [*STATED, *OTHERS], ids=repr)
def test_weights_are_as_accurate_as_they_are_said_to_be(learner, seed, m, shifts):
    """A gap of 1e-3 alone allows errors of a tenth of the largest weight."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2 if seed else 5, m)
    kernels = [F @ F.T for F in (rng.normal(size=(m, 6)) + shift * np.eye(6)[y] for shift in shifts)]
    sure = clone(learner).set_params(tol=1e-9) if isinstance(learner, dmkl.MKSVM) else dmkl.MKFDA(2.0, 0.01, tol=1e-12)
    exact, model = sure.fit(kernels, y).weights_, learner.fit(kernels, y)
    error = np.abs(model.weights_ - exact).max() / exact.max()
    assert error <= (1e-2 if learner in OTHERS else 1e-3)
    assert hasattr(model, "weights_error_") == (learner not in OTHERS)
    if learner not in OTHERS:
        assert np.max(model.weights_error_) <= 1e-3


# --- baselines: the best single kernel, and the product -----------------------------------------------------------
M = 72
TRAIN, TEST = np.arange(M)[np.arange(M) % 4 > 0], np.arange(M)[np.arange(M) % 4 == 0]
LABELS = {
    "binary": np.array(["no", "yes"])[np.arange(M) // 3 % 2],
    "multiclass": np.arange(M) // 3 % 3,
    "multilabel": np.stack([np.arange(M) // 3 % 2, np.arange(M) // 3 % 3 > 0], axis=1).astype(int),
}


def planted(kind):
    """Five kernels with positive entries, of which only the middle one is strongly related to the labels."""
    rng = np.random.default_rng(0)
    y = LABELS[kind].reshape(M, -1)
    signal = np.hstack([column[:, None] == np.unique(column) for column in y.T]).astype(float)
    kernels = [rbf_kernel(rng.standard_normal((M, 4)), gamma=0.2) for _ in range(4)]
    kernels.insert(2, rbf_kernel(signal + 0.4 * rng.standard_normal(signal.shape), gamma=1.0))
    return np.stack(kernels)


def parts(K):
    return K[TRAIN, TRAIN], K[TEST, TRAIN]


@pytest.mark.parametrize(("kind", "solver"), [("binary", "direct"), ("multiclass", "cg"), ("multilabel", "direct")])
def test_single_best_finds_the_planted_kernel(kind, solver):
    """The scores are those of MK-FDA on each kernel alone, and the fit is that on the best kernel."""
    training, testing = parts(in_memory(planted(kind), 20))
    y = LABELS[kind][TRAIN]
    cv = KFold(3, shuffle=True, random_state=0)
    model = dmkl.SingleBest(0.05, solver=solver, cv=cv).fit(training, y)
    assert model.best_ == "kernel_2"
    for j in range(5):
        # A search classifies held-out rows in the same way.
        if kind != "multilabel":  # a search scores each task separately
            learner, grid = dmkl.MKFDA(1, 0.05, solver=solver), {"lam": [0.05]}
            options = {"cv": cv, "scoring": "accuracy", "refit": False, "baselines": "none"}
            alone = dmkl.search(learner, training.select(j), y, grid, **options).scores["score"]
            np.testing.assert_allclose(model.scores_[j], alone.values.ravel(), atol=1e-12)
    best = dmkl.MKFDA(1, 0.05, solver=solver).fit(training.select(2), y)
    weights = model.weights_.values.reshape(5, -1)
    np.testing.assert_array_equal(weights, np.eye(5)[:, [2] * weights.shape[1]])
    np.testing.assert_allclose(model.dual_coef_, best.dual_coef_, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(model.gap_, best.gap_, atol=1e-12)
    np.testing.assert_array_equal(model.predict(testing), best.predict(testing))
    np.testing.assert_array_equal(model.predict(testing.select("kernel_2")), best.predict(testing))
    assert model.score(testing, LABELS[kind][TEST]) > 0.8


@pytest.mark.parametrize("learner", [dmkl.SingleBest(0.05), dmkl.LPBoost()], ids=["SingleBest", "LPBoost"])
def test_folds_of_a_splitter_without_a_seed_are_made_once(learner):
    """Made twice, they would compare scores of some rows with labels of others."""
    learner.set_params(cv=StratifiedKFold(3, shuffle=True))
    model = learner.fit(in_memory(planted("binary"), 20), LABELS["binary"])
    accuracy = model.accuracy_ if isinstance(learner, dmkl.LPBoost) else model.scores_.mean("fold")
    assert accuracy.sel(kernel="kernel_2") > 0.85


def test_folds_without_a_class_are_refused_before_anything_is_read():
    K, source = over(in_memory(planted("binary"), 20), Counting)
    third = np.arange(M) // 24
    with pytest.raises(InputError, match="fold 0 of cv has no training samples of class"):
        dmkl.SingleBest(cv=PredefinedSplit(third)).fit(K, third)
    assert source.reads.total() == 0


@pytest.mark.parametrize(("kind", "solver"), [("binary", "cg"), ("multiclass", "direct")])
def test_product_is_fda_on_the_geometric_mean(kind, solver):
    rng = np.random.default_rng(1)
    kernels = np.concatenate([planted(kind)[:3], chi2_kernel(rng.random((M, 6)))[None]])
    kernels[0][kernels[0] < np.quantile(kernels[0], 0.05)] = 0  # zeros do not count as negative entries
    mean = np.prod(kernels, axis=0, keepdims=True) ** (1 / 4)
    training, testing = parts(in_memory(kernels, 20))
    y = LABELS[kind][TRAIN]
    model = dmkl.Product(5.0, solver=solver, tol=1e-8).fit(training, y)
    assert model.factors_ == training.names
    assert model.kernel_names_ == ("product",)
    np.testing.assert_array_equal(model.weights_, [1.0])
    h = encode_targets(y, len(TRAIN)).problems[0]
    alpha, objective = solve(dense_view(mean, TRAIN, TRAIN, STEPS), np.ones(1), h, 5.0)
    np.testing.assert_allclose(model.dual_coef_, alpha, atol=1e-5 * np.abs(alpha).max())
    assert model.objective_ == pytest.approx(objective, rel=1e-8)
    scores = (dense_view(mean, TEST, TRAIN, STEPS)[0] @ alpha).reshape(len(TEST), -1)
    given = model.decision_function(testing)
    np.testing.assert_allclose(given.values.reshape(scores.shape), scores, atol=1e-5 * np.abs(scores).max())
    # By name in any order, or as the product itself.
    np.testing.assert_allclose(model.decision_function(testing.select([3, 1, 0, 2])), given, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(model.decision_function(testing.product()), given)
    with pytest.raises(InputError, match=r"learnt with kernel 'kernel_3', which this set does not have"):
        model.predict(testing.select([0, 1, 2]))
