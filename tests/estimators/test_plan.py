"""Plans: rows that differ in training rows, targets, steps, points and allowed kernels, all in shared passes."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.references import Counting, digits, in_memory, over

import dmkl
from dmkl.estimators.engine import run
from dmkl.estimators.learner import fitted
from dmkl.estimators.plan import Fit, Plan
from dmkl.numerics.fisher import encode_targets

pytestmark = pytest.mark.usefixtures("synchronous")
ROWS = np.random.default_rng(5).permutation(90)
TRAIN, TEST = ROWS[:60], ROWS[60:]


def kernels():
    K, y = digits()
    return in_memory(K, 25), y % 3


def targets_of(y, rows):
    return encode_targets(y[rows], len(rows))


def check(found, model, K, y, test):
    """A row of a plan is the fit by itself."""
    (outcome,) = found.outcomes
    assert outcome.gap <= 1e-4
    assert outcome.objective == pytest.approx(model.objective_, rel=2e-4)
    np.testing.assert_allclose(outcome.weights, model.weights_, atol=2e-2)
    expected = model.decision_function(K)
    np.testing.assert_allclose(found.decision, expected, atol=2e-2 * float(np.abs(expected).max()))


@pytest.mark.parametrize("solver", ["direct", "subspace", "cg", "dual", "interleaved"])
def test_rows_differ_in_training_rows(solver):
    K, y = kernels()
    sets = [TRAIN, ROWS[10:75], ROWS[:40]]
    learner = dmkl.MKFDA(1.5, 1e-2, solver=solver)
    fits = [Fit(learner, rows, targets_of(y, rows), held_out=TEST[-10:]) for rows in sets]
    answers = run(Plan(K, fits))
    for found, rows in zip(answers.fits, sets, strict=True):
        model = dmkl.MKFDA(1.5, 1e-2, solver="direct").fit(K[rows, rows], y[rows])
        check(found, model, K[TEST[-10:], rows], y, TEST)


@pytest.mark.parametrize("solver", ["direct", "subspace", "cg"])
def test_rows_differ_in_targets(solver):
    """As labels that were permuted do."""
    K, y = kernels()
    rng = np.random.default_rng(0)
    several = [y, *(rng.permutation(y) for _ in range(3))]
    learner = dmkl.MKFDA(2.0, 1e-1, solver=solver)
    fits = [Fit(learner, TRAIN, targets_of(labels, TRAIN), held_out=TEST) for labels in several]
    for found, labels in zip(run(Plan(K, fits)).fits, several, strict=True):
        model = dmkl.MKFDA(2.0, 1e-1, solver="direct").fit(K[TRAIN, TRAIN], labels[TRAIN])
        check(found, model, K[TEST, TRAIN], labels, TEST)


@pytest.mark.parametrize("solver", ["direct", "subspace", "cg", "dual", "interleaved"])
@pytest.mark.parametrize("p", [1.0, 1.5, np.inf])
def test_rows_differ_in_the_kernels_that_may_have_weight(solver, p):
    if solver == "dual" and p == 1:
        pytest.skip("the dual solver needs p above 1")
    K, y = kernels()
    learner = dmkl.MKFDA(p, 1e-2, solver=solver)
    sets = [None, *(np.delete(np.arange(len(K)), j) for j in range(3)), np.array([2])]
    targets = targets_of(y, TRAIN)
    fits = [Fit(learner, TRAIN, targets, held_out=TEST, kernels=some) for some in sets]
    for found, some in zip(run(Plan(K, fits)).fits, sets, strict=True):
        chosen = K if some is None else K.select(some)
        model = dmkl.MKFDA(p, 1e-2, solver="direct").fit(chosen[TRAIN, TRAIN], y[TRAIN])
        weights = found.outcomes[0].weights
        if some is not None:
            assert not np.delete(weights, some).any()
            found = fitted_over(found, some)
        check(found, model, chosen[TEST, TRAIN], y, TEST)


def fitted_over(found, some):
    """The outcome with the weights of some kernels alone."""
    from dataclasses import replace

    (outcome,) = found.outcomes
    return replace(found, outcomes=[replace(outcome, weights=outcome.weights[some])])


@pytest.mark.parametrize(
    "learner", [dmkl.MKSVM(1.5, 4.0), dmkl.GMKL(4.0, 0.01), dmkl.NCuts(3, steps=("center", "cosine"))]
)
def test_machines_leave_kernels_out(learner):
    K, y = kernels()
    some, labels = np.array([0, 1, 3]), (y > 0).astype(int)
    targets = targets_of(labels, TRAIN)
    fits = [Fit(learner, TRAIN, targets, held_out=TEST, kernels=kept) for kept in (None, some)]
    whole, part = run(Plan(K, fits)).fits
    np.testing.assert_array_equal(np.delete(part.outcomes[0].weights, some), 0.0)
    for found, chosen in ((whole, K), (part, K.select(some))):
        model = learner.__class__(**learner.get_params()).fit(chosen[TRAIN, TRAIN], labels[TRAIN])
        expected = model.decision_function(chosen[TEST, TRAIN]).values
        np.testing.assert_allclose(found.decision, expected, atol=2e-2 * np.abs(expected).max())


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
    for found, learner in zip(answers.fits, learners, strict=True):
        model = learner.__class__(**learner.get_params()).fit(K[TRAIN, TRAIN], y[TRAIN])
        check(found, model, K[TEST, TRAIN], y, TEST)
        np.testing.assert_allclose(
            fitted(found).decision_function(K[TEST, TRAIN]), found.decision, atol=1e-9 * np.abs(found.decision).max()
        )


def test_a_search_of_cuts_takes_one_pass_for_all_of_them(monkeypatch):
    """The weights do not depend on C: over 10 C × 5 folds one pass, and one program for each fold and class."""
    from dmkl.solvers import cuts

    kernels, y = digits()
    K, _ = over(in_memory(kernels, 25), Counting)
    programs, solved = [], cuts.best_cut

    def counted(*arguments):
        programs.append(arguments)
        return solved(*arguments)

    monkeypatch.setattr("dmkl.estimators.ncuts.best_cut", counted)
    grid = {"C": [2.0**k for k in range(-3, 7)]}
    found = dmkl.search(dmkl.NCuts(2), K, (y < 5).astype(int), grid, cv=5, refit=False)
    assert len(programs) == 5
    kinds = list(found.scores["round_kind"].values)
    # Statistics, the cuts of all folds, one sum for each fold's machines, scores.
    assert kinds.count("products") - kinds[-1:].count("products") == 1
    assert kinds[:2] == ["statistics", "products"] or kinds[0] == "products"


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


def test_a_subclass_keeps_the_shared_subspace(models):
    class Renamed(dmkl.MKFDA):
        """A learner of a user's own."""

    assert models["Renamed"] is Renamed
    K, y = kernels()
    grid = {"p": [1.0, 2.0], "lam": [1e-2, 1.0]}
    own, plain = (dmkl.search(kind(), K, y, grid, cv=2, refit=False) for kind in (Renamed, dmkl.MKFDA))
    assert own.scores.attrs["solver"] == "subspace"
    assert own.n_passes_ == plain.n_passes_
    np.testing.assert_allclose(own.scores["score"], plain.scores["score"])


@pytest.mark.parametrize("max_iter", [2, 100])
def test_what_is_not_proven_is_never_called_so(max_iter):
    K, y = kernels()
    estimator = dmkl.GSMKL(n_groups=1, max_iter=max_iter)
    found = dmkl.search(estimator, K, (y > 0).astype(int), {"C": [0.5, 4.0]}, cv=2)
    assert np.isnan(found.scores["gap"]).all()
    assert set(found.table()["status"]) <= ({"open"} if max_iter == 2 else {"converged", "open"})
    assert np.isnan(found.best_.gap_)
    for text in (found.summary(), found.best_.status_):
        assert "proven" not in text
        assert "certified" not in text


def test_a_plan_goes_on_where_it_stopped(tmp_path):
    """Solvers that run side by side keep each problem that is done."""
    kernels, y = digits()
    K, source = over(in_memory(kernels, 25), Counting)
    grid, state = {"p": [1.5, 2.0], "lam": [1e-2, 1.0]}, tmp_path / "state"
    first = dmkl.search(dmkl.MKFDA(solver="direct"), K, y % 3, grid, cv=2, refit=False, baselines="none", state=state)
    assert len(list(state.glob("outcome-*.npz"))) == 8
    (state / "outcome-3.npz").unlink()
    source.reads.clear()
    again = dmkl.search(dmkl.MKFDA(solver="direct"), K, y % 3, grid, cv=2, refit=False, baselines="none", state=state)
    assert again.n_passes_ < first.n_passes_
    np.testing.assert_allclose(again.scores["score"], first.scores["score"])
    np.testing.assert_allclose(again.scores["gap"], first.scores["gap"], atol=1e-6)
