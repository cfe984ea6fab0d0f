"""Plans: rows that differ in training rows, targets, steps, points and allowed kernels, all in shared passes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers.references import Counting, digits, in_memory, over

import dmkl
from dmkl.estimators.engine import run
from dmkl.estimators.learner import fitted
from dmkl.estimators.plan import Fit, Plan
from dmkl.numerics.fisher import encode_targets

ROWS = np.random.default_rng(5).permutation(90)
TRAIN, TEST = ROWS[:60], ROWS[60:]


def kernels():
    K, y = digits()
    return in_memory(K, 25), y % 3


def targets_of(y, rows):
    return encode_targets(y[rows], len(rows))


def check(result, model, K, y, test):
    """A row of a plan is the fit by itself."""
    (outcome,) = result.outcomes
    assert outcome.gap <= 1e-4
    assert outcome.objective == pytest.approx(model.objective_, rel=2e-4)
    np.testing.assert_allclose(outcome.weights, model.weights_, atol=2e-2)
    expected = model.decision_function(K)
    np.testing.assert_allclose(result.decision, expected, atol=2e-2 * float(np.abs(expected).max()))


@pytest.mark.parametrize("solver", ["direct", "subspace", "cg", "dual", "interleaved"])
def test_rows_differ_in_training_rows(solver):
    K, y = kernels()
    sets = [TRAIN, ROWS[10:75], ROWS[:40]]
    learner = dmkl.MKFDA(1.5, 1e-2, solver=solver)
    fits = [Fit(learner, rows, targets_of(y, rows), held_out=TEST[-10:]) for rows in sets]
    answers = run(Plan(K, fits))
    for result, rows in zip(answers.fits, sets, strict=True):
        model = dmkl.MKFDA(1.5, 1e-2, solver="direct").fit(K[rows, rows], y[rows])
        check(result, model, K[TEST[-10:], rows], y, TEST)


@pytest.mark.parametrize(
    ("solver", "p"), [("direct", np.inf), ("subspace", 1.0), ("cg", 1.5), ("dual", 1.5), ("interleaved", 1.0)]
)
def test_rows_differ_in_the_kernels_that_may_have_weight(solver, p):
    K, y = kernels()
    learner = dmkl.MKFDA(p, 1e-2, solver=solver)
    sets = [None, np.delete(np.arange(len(K)), 1), np.array([2])]
    targets = targets_of(y, TRAIN)
    fits = [Fit(learner, TRAIN, targets, held_out=TEST, kernels=some) for some in sets]
    for result, some in zip(run(Plan(K, fits)).fits, sets, strict=True):
        chosen = K if some is None else K.select(some)
        model = dmkl.MKFDA(p, 1e-2, solver="direct").fit(chosen[TRAIN, TRAIN], y[TRAIN])
        weights = result.outcomes[0].weights
        if some is not None:
            assert not np.delete(weights, some).any()
            result = replace(result, outcomes=[replace(result.outcomes[0], weights=weights[some])])
        check(result, model, chosen[TEST, TRAIN], y, TEST)


def test_rows_differ_in_steps_and_points():
    """All of them share one pass for statistics, and one for each step of a solver."""
    kernels, y = digits()
    K, source = over(in_memory(kernels, 25), Counting)
    y = y % 3
    targets = targets_of(y, TRAIN)
    learners = [
        dmkl.MKFDA(p, lam, steps=steps, solver="direct")
        for steps in (("center", "trace"), ("cosine",), ("center",))
        for p, lam in ((np.inf, 1e-1), (np.inf, 1.0))
    ]
    source.reads.clear()
    answers = run(Plan(K, [Fit(learner, TRAIN, targets, held_out=TEST) for learner in learners]))
    # Statistics, factors, products, scores.
    assert answers.tally.n_passes == 4
    assert [entry.kind for entry in answers.tally.rounds] == ["statistics", "factor", "products", "products"]
    assert max(source.reads.values()) <= 4
    for result, learner in zip(answers.fits, learners, strict=True):
        model = learner.__class__(**learner.get_params()).fit(K[TRAIN, TRAIN], y[TRAIN])
        check(result, model, K[TEST, TRAIN], y, TEST)
        np.testing.assert_allclose(
            fitted(result).decision_function(K[TEST, TRAIN]), result.decision, atol=1e-9 * np.abs(result.decision).max()
        )


def test_the_cap_on_passes_binds_in_a_search():
    K, y = kernels()
    grid = {"p": [1.0, 1.5], "lam": [1e-6, 1e-4]}
    estimator = dmkl.MKFDA(solver=dmkl.Subspace(finish="report"), max_iter=3)
    few = dmkl.search(estimator, K, y, grid, cv=2, refit=False, baselines="none")
    many = dmkl.search(estimator.set_params(max_iter=200), K, y, grid, cv=2, refit=False, baselines="none")
    # One pass before the solver's is for statistics, and one after them for leave-one-out scores.
    assert few.n_passes_ <= 5 < many.n_passes_
    assert "open" in set(few.table()["status"])
    assert set(many.table()["status"]) == {"certified"}


@pytest.mark.parametrize("max_iter", [2, 100])
def test_what_is_not_proven_is_never_called_so(max_iter):
    K, y = kernels()
    estimator = dmkl.GSMKL(n_groups=1, max_iter=max_iter)
    result = dmkl.search(estimator, K, (y > 0).astype(int), {"C": [0.5, 4.0]}, cv=2, baselines="none")
    assert np.isnan(result.scores["gap"]).all()
    assert set(result.table()["status"]) <= ({"open"} if max_iter == 2 else {"converged", "open"})
    assert np.isnan(result.best_.gap_)
    for text in (result.summary(), result.best_.status_):
        assert "proven" not in text
        assert "certified" not in text
