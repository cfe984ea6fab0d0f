"""`dmkl.search`: scores against separate fits, independence of folds from held-out rows, resumption."""

import re
from functools import partial

import cvxpy as cp
import numpy as np
import pytest
from dask.base import tokenize
from helpers.interruption import cut_off
from helpers.references import digit_set, digits, in_memory, labels
from sklearn.base import clone
from sklearn.model_selection import KFold

import dmkl
from dmkl.errors import InputError

pytestmark = pytest.mark.usefixtures("rounds")

TIGHT = 1e-7
"""The tolerance of fits whose scores are compared."""
CLOSE = 1e-3
"""The resulting error of the scores, relative to the largest."""
GRID = {"p": [1.0, 1.5, np.inf], "lam": [1e-2, 1.0]}
NAMES = ["smooth", "sharp", "upper", "lower", "noise"]
FOLDS, TWO = (KFold(n, shuffle=True, random_state=0) for n in (3, 2))


search = partial(dmkl.search, baselines="none")  # test_baselines_of_results.py tests baselines


# --- data, and reference fits of each point -----------------------------------------------------------------
def margin(estimator, X, y):
    """The margin of the true class over the mean score, which is sensitive to small differences."""
    return float(margins(np.asarray(estimator.decision_function(X)), y, estimator.classes_))


def margins(decisions, y, classes):
    """The margin of the true class, of each task if there are several."""
    if decisions.ndim == 1 or y.ndim == 2:
        return np.mean(np.where(y == classes[1], decisions, -decisions), axis=0)
    return np.mean(decisions[np.arange(len(y)), np.searchsorted(classes, y)] - decisions.mean(axis=1))


SCORING = {"accuracy": "accuracy", "margin": margin}
SINGLE_FITS = {}


def check_scores(result, estimator, K, y, folds, part=1, prefix="score"):
    """Assert that every score of a search equals that of a separate fit on the fold; return the passes of the fits."""
    scores, names, n_passes = result.scores, list(result.parameters), 0
    for place in np.ndindex(*(scores.sizes[name] for name in names)):
        at = dict(zip(names, place, strict=True))
        params = {name: result.grid[name][k] for name, k in at.items()}
        given = {"solver": "direct"} | params if hasattr(estimator, "solver") else params
        learner = clone(estimator).set_params(**given)
        key = tokenize(type(learner), learner.get_params(), K.view, y, folds)
        if key not in SINGLE_FITS:  # many searches need the same fits
            SINGLE_FITS[key] = [clone(learner).fit(K[fold[0], fold[0]], y[fold[0]]) for fold in folds]
        for f, (fold, model) in enumerate(zip(folds, SINGLE_FITS[key], strict=True)):
            point = scores.isel({**at, "fold": f})
            measures = [point[prefix], point[f"{prefix}_margin"]]
            check_measures(measures, model, K[fold[part], fold[0]], y[fold[part]])
            weights, objective = model.weights_, model.objective_
            if "pair" in weights.dims:
                weights, objective = weights.mean("pair"), objective.sum("pair")
            if list(weights.kernel.values) == list(scores.kernel.values):
                np.testing.assert_allclose(point["weight"], weights, atol=1e-2)
            np.testing.assert_allclose(point["objective"], objective, rtol=2 * TIGHT)
            n_passes += model.n_passes_ + 1
    return n_passes


def check_measures(measures, model, X, y):
    """Assert that accuracy and margin are those of a model, up to the effect of small differences of its scores."""
    np.testing.assert_allclose(measures[0], np.mean(model.predict(X) == y, axis=0), rtol=1e-12)
    scores = model.decision_function(X).values.reshape(len(y), -1)
    moved = scores + CLOSE * np.abs(scores).max() * np.random.default_rng(0).choice([-1.0, 1.0], scores.shape)
    # The rules that are learnt from scores may amplify the differences.
    decisions, others = (model.decisions_of(each).squeeze() for each in (scores, moved))
    # Without errors on its rows the slope of a rule is undetermined, and log odds are in the hundreds.
    if len(measures) > 1 and np.abs(decisions).max() < 50:
        size = np.abs(others - decisions).max()
        classes = np.array([0, 1]) if y.ndim == 2 else model.classes_
        np.testing.assert_allclose(measures[1], margins(decisions, y, classes), rtol=CLOSE, atol=size)


# --- scores -------------------------------------------------------------------------------------------------
OF_STEPS = {"steps": [("center", "trace"), (), ("cosine", "center")], "lam": [1e-1, 1.0], "max_iter": [300]}
OF_LAM = {"lam": [1e-2, 1.0]}


@pytest.mark.parametrize(
    ("model", "kind", "grid"),
    [
        *((dmkl.MKFDA(tol=TIGHT), kind, GRID) for kind in ("binary", "multiclass", "multilabel")),
        (dmkl.MKFDA(1.5, tol=TIGHT), "multilabel", OF_STEPS),
        (dmkl.MKFDA(1.5, tol=TIGHT, solver="direct"), "binary", OF_STEPS),
        (dmkl.Uniform(tol=TIGHT), "multilabel", OF_LAM),
        (dmkl.SingleBest(tol=TIGHT), "multiclass", OF_LAM),
        (dmkl.Product(tol=TIGHT), "binary", OF_LAM),
        (dmkl.MKFDA(kernel_groups=list("aabbb"), sigma=[2.0, 1.0, 1.0, 0.5, 1.0], tol=TIGHT), "binary", GRID),
        (dmkl.MKFDA(constraints=lambda d: [d[0] >= 2 * d[1], cp.sum(d) <= 3], tol=TIGHT), "multiclass", GRID),
        (dmkl.MKSVM(multiclass="ovo", tol=TIGHT), "multiclass", {"p": [1.0, 2.0], "C": [0.5, 4.0]}),
    ],
)
def test_scores_are_those_of_fits_one_by_one(model, kind, grid):
    """Points with different normalisation have different kernels; each equals a separate fit."""
    K, y = digit_set(40), labels(kind)
    result = search(model, K, y, grid, TWO, scoring=SCORING, refit=False)
    assert result.grid == grid
    assert result.n_passes_ < check_scores(result, model, K, y, list(TWO.split(y))) / 3
    if grid is GRID:
        assert result.scores.attrs["solver"] == "subspace"
        assert result.scores["gap"].max() <= TIGHT
        assert (result.scores["status"] == 0).all()


# --- folds --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("solver", "steps"), [("auto", ("cosine",)), ("direct", ())])
def test_folds_never_see_what_they_hold_out(tmp_path, solver, steps):
    kernels, _ = digits()
    y, rng = labels("multiclass"), np.random.default_rng(2)
    order = rng.permutation(90)
    held_out = order[60:]
    folds = [(order[:45], held_out[:20]), (order[15:60], held_out[10:], held_out[:5]), (order[:60], held_out)]
    # Still positive definite: held-out rows are other combinations of training rows, plus independent parts.
    mixed = np.linalg.qr(rng.standard_normal((90, 90)))[0]
    mixed[order[:60]] = np.eye(90)[order[:60]]
    mixed[np.ix_(held_out, held_out)] = 0
    changed = mixed @ kernels @ mixed.T
    changed[:, held_out, held_out] += 0.5
    others = y.copy()
    others[held_out] = rng.permutation(others[held_out])
    results = []
    for name, matrices, truth in (("one", kernels, y), ("other", changed, others)):
        K = dmkl.create(tmp_path / f"{name}.zarr", matrices, names=NAMES, tile=25)
        for step in steps:
            K = K.normalize(step)
        results.append(dmkl.search(dmkl.MKFDA(solver=solver), K, truth, GRID, folds, refit=False).scores)
    for name in ("weight", "objective", "gap"):
        np.testing.assert_allclose(results[0][name], results[1][name], rtol=1e-10, atol=1e-10)
    assert (results[0]["score"] != results[1]["score"]).any()


@pytest.mark.parametrize(("solver", "kind"), [("direct", "multiclass"), ("auto", "multilabel")])
def test_stored_splits_with_test_rows(tmp_path, kind, solver):
    """Test scores of all points, and of the chosen point refitted on training and validation rows."""
    rng = np.random.default_rng(3)
    parts = np.stack([rng.permutation(np.repeat([0, 1, 2, -1], [50, 20, 15, 5])) for _ in range(2)])
    y, tasks = labels(kind), {"tasks": ["low", "odd"]} if kind == "multilabel" else {}
    K = dmkl.create(tmp_path / "set.zarr", digits()[0], names=NAMES, labels=y, splits=parts, tile=25, **tasks)
    folds = [K.split(k) for k in range(2)]
    model = dmkl.MKFDA(1.5, tol=TIGHT, solver=solver)
    result = search(model, K, grid={"lam": [1e-2, 1.0]}, scoring=SCORING)
    assert list(result.scores.fold.values) == ["0", "1"]
    check_scores(result, model, K, y, folds)
    check_scores(result, model, K, y, folds, part=2, prefix="test_score")
    assert result.tasks == (("low", "odd") if kind == "multilabel" else None)
    for k, (train, validation, test) in enumerate(folds):
        own = result.best_params_[str(k)]
        lam = [p["lam"] for p in own.values()] if kind == "multilabel" else own["lam"]
        rows = np.union1d(train, validation)
        again = dmkl.MKFDA(1.5, lam, tol=TIGHT, solver="direct").fit(K[rows, rows], y[rows])
        check_measures([result.scores["refit_test_score"].isel(fold=k)], again, K[test, rows], y[test])
        if k == 0:
            np.testing.assert_array_equal(result.best_.train_samples_, again.train_samples_)
            np.testing.assert_allclose(result.best_.weights_, again.weights_, atol=1e-2)
            np.testing.assert_allclose(result.best_.objective_, again.objective_, rtol=2 * TIGHT)


@pytest.mark.parametrize("solver", ["auto", "direct"])
def test_a_class_may_be_missing_from_a_fold(solver):
    """The first fold has two classes, the second three; each fold learns its own classes."""
    K, y = digit_set(40), digits()[1] % 3
    few = np.flatnonzero(y != 2)
    folds = [(few[:40], few[40:]), (np.arange(60), np.arange(60, 90))]
    model = dmkl.MKFDA(1.5, tol=TIGHT, solver=solver)
    check_scores(search(model, K, y, {"lam": [1e-2]}, folds, scoring=SCORING, refit=False), model, K, y, folds)


@pytest.mark.parametrize("solver", ["auto", "direct"])
def test_sets_with_steps_and_of_some_samples(solver):
    """Steps applied before the folds keep their statistics; rows refer to the set passed to the search."""
    rng = np.random.default_rng(4)
    some = rng.permutation(90)[:70]
    K = digit_set(40).normalize("cosine")[some, some].center()[:50, :50].select([3, 0, 2])
    y = labels("multiclass")[some][:50]
    model = dmkl.MKFDA(1.5, tol=TIGHT, solver=solver)
    result = search(model, K, y, {"lam": [1e-1]}, TWO, scoring=SCORING)
    check_scores(result, model, K, y, list(TWO.split(y)))
    assert list(result.scores.kernel.values) == list(K.names)
    assert result.best_.n_features_in_ == len(y)


def test_the_same_sample_in_two_rows_is_the_same_sample():
    rows = np.concatenate([np.arange(40), np.arange(10)])
    K, y, parts = digit_set(40)[rows, rows], labels("binary")[rows], (np.arange(40), np.arange(40, 50))
    with pytest.raises(InputError, match="fold 0 has 10 training rows that are validation rows too"):
        search(dmkl.MKFDA(), K, y, GRID, parts)
    with pytest.raises(InputError, match="outer fold 0 has 10 training rows that are test rows too"):
        dmkl.evaluate(dmkl.MKFDA(), K, y, GRID, outer=parts)


# --- the choice ---------------------------------------------------------------------------------------------
def test_each_task_has_its_own_choice():
    noise = np.random.default_rng(0).permutation(digits()[1] % 3 == 0)  # another point is best for it
    K, y = digit_set(40), np.column_stack([labels("multilabel"), noise])
    result = search(dmkl.MKFDA(tol=TIGHT), K, y, GRID, FOLDS, scoring="average_precision")
    chosen = result.best_params_
    assert list(chosen) == ["0", "1", "2"]
    for task, params in chosen.items():
        mean = result.scores["mean_score"].sel(task=task)
        assert mean.sel(params) == pytest.approx(mean.max().item())
        alone = dmkl.MKFDA(**params, tol=TIGHT).fit(K, y[:, int(task)])
        np.testing.assert_allclose(result.best_.weights_.sel(task=task), alone.weights_, atol=1e-2)
        np.testing.assert_allclose(result.best_.objective_.sel(task=task), alone.objective_, rtol=2 * TIGHT)
    assert len({tuple(params.values()) for params in chosen.values()}) > 1, "the case should tell the tasks apart"


THREE = np.array_split(np.random.default_rng(1).permutation(90), 3)
MIRRORED = [tuple(THREE), (THREE[0], THREE[2], THREE[1])]
"""Two splits: validation rows of each are test rows of the other."""
NOISE = np.random.default_rng(2).integers(2, size=90)
OF_TEST = "test_score|mcnemar|paired_loss|chance|constant|confusion|true_label|seconds"
"""Variables that depend on the labels of test rows."""


@pytest.mark.parametrize("question", ["search", "evaluate"])
def test_rows_that_are_tested_on_choose_nothing(question):
    """Neither a point, nor the ridge and the single kernel of a baseline: scores of these rows alone are others."""
    train, validation, test = THREE
    y, model = labels("multiclass"), dmkl.MKFDA(tol=TIGHT)
    others = y.copy()
    others[test] = (others[test] + 1) % 4
    more = {"cv": tuple(THREE), "baselines": "all", "refit": False}
    if question == "evaluate":
        more = {"outer": (np.concatenate([train, validation]), test), "inner": TWO}
    first, other = (getattr(dmkl, question)(model, digit_set(40), each, GRID, **more) for each in (y, others))
    for one, two in ((first.scores, other.scores), (first.baselines, other.baselines)):
        differ = {str(name) for name, values in one.variables.items() if not values.equals(two[name].variable)}
        assert "test_score" in differ
        assert [name for name in differ if not re.search(OF_TEST, name)] == []


def test_one_choice_for_mirrored_splits_is_refused():
    """Its score on random labels would be above chance: half of its validation rows are test rows."""
    question = dmkl.MKFDA(), digit_set(40), NOISE, GRID
    with pytest.raises(InputError, match=r"^30 training and .*fold 0 are test rows of fold 1: .*choice=.fold."):
        search(*question, MIRRORED, choice="joint")
    with pytest.raises(InputError, match=r"without test rows, or .*choice=.fold. of dmkl.search"):
        dmkl.auto(digit_set(40), NOISE, ["sum"], cv=MIRRORED)
    alone = [search(*question, split, refit=False).best_params_ for split in MIRRORED]
    assert list(search(*question, MIRRORED, refit=False).best_params_.values()) == alone


def test_a_joint_choice_where_no_row_that_chooses_is_tested():
    train, validation, test = THREE
    question = dmkl.MKFDA(), digit_set(40), NOISE, GRID, [(train, validation, test), (validation, train, test)]
    result = search(*question, choice="joint", refit=False)
    assert result.choosers == ()
    assert set(result.best_params_) == {"p", "lam"}
    mean = result.scores["score"].mean("fold")
    assert float(mean.sel(result.best_params_)) == float(mean.max())
    with pytest.raises(InputError, match="choice must be 'fold' or 'joint', got 'each'"):
        search(*question, choice="each")


# --- resumption ---------------------------------------------------------------------------------------------
def test_a_state_of_another_search_is_refused(tmp_path):
    """Also of one on the same samples of the same set, which were selected after centering over others."""
    folder, y = tmp_path / "state", (digits()[1][:60] < 5).astype(np.int64)
    first, others = np.arange(80), np.concatenate([np.arange(60), np.arange(70, 90)])
    options = {"grid": {"p": [1.0, 2.0]}, "cv": FOLDS, "state": folder, "refit": False, "baselines": "none"}

    def given(K=None, rows=first):
        return (digit_set(40) if K is None else K)[rows, rows].center()[:60, :60]

    with cut_off(2):
        dmkl.search(dmkl.MKFDA(tol=1e-5, solver="subspace"), given(), y, **options)
    before = sorted(folder.rglob("*"))
    other = y.copy()
    other[0] = 1 - y[0]
    kernels = digits()[0].copy()
    kernels[0, 3, 3] += 1e-6
    for what, change in (
        (r"the grid\..* p was 1\.0, 2\.0 and is 1\.0, 3\.0 now", {"grid": {"p": [1.0, 3.0]}}),
        (r"the labels\..* the labels had other content", {"y": other}),
        ("the folds", {"cv": 3}),
        ("content", {"K": given(in_memory(kernels, 25))}),
        ("the kernels chosen", {"K": given(digit_set(40).select([1, 0, 2, 3, 4]))}),
        ("the samples", {"K": given()[1:, 1:], "y": y[1:]}),
        ("the samples", {"K": given(rows=others)}),
        ("the steps before", {"K": given().center()}),
        ("tol", {"estimator": dmkl.MKFDA(tol=1e-3)}),
        ("steps", {"estimator": dmkl.MKFDA(tol=1e-5, steps=("center",))}),
        ("solver", {"estimator": dmkl.MKFDA(tol=1e-5)}),
        ("the estimator", {"estimator": dmkl.Uniform(tol=1e-5), "grid": {"lam": [1e-2]}}),
    ):
        arguments = {"estimator": dmkl.MKFDA(tol=1e-5, solver="subspace"), "K": given(), "y": y}
        with pytest.raises(InputError, match=f"holds the state of a search that differs in: .*{what}"):
            dmkl.search(**{**arguments, **options, **change})
    assert sorted(folder.rglob("*")) == before
    # Equal labels of another type, and options without effect on the results, belong to the same search.
    for solver, max_iter in ((dmkl.Subspace(finish="report"), 200), (dmkl.Subspace("1GiB"), 200), ("subspace", 7)):
        estimator = dmkl.MKFDA(tol=1e-5, solver=solver, max_iter=max_iter)
        result = dmkl.search(estimator, given(), y.astype(np.int8), **options)
        assert result.scores["gap"].max() <= 1e-5
