"""The result of a search: the choice, text and tables, notes, pictures, files."""

import json
import shutil
import sys
from unittest.mock import patch

import numpy as np
import pytest
import xarray as xr
from helpers.conformance import unseal
from helpers.references import digit_set, digits, in_memory, psd
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from matplotlib.figure import Figure

import dmkl
from dmkl.errors import FormatVersionError, InputError, StoreError, StoreExistsError
from dmkl.searching import search as search_module
from dmkl.searching.fits import as_variable
from dmkl.searching.grid import choose, within_one_standard_error
from dmkl.searching.search import SearchResult
from dmkl.solvers.interface import WORDS
from dmkl.store import saved as saved_module

P = (1.0, 1 + 2.0**-6, 1.5, 2.0, np.inf)
LAM = (1e-8, 1e-3, 0.1, 10.0)
SHAPE = (len(P), len(LAM))
TASKS = ["bird", "boat", "bus"]


def make(grid=None, *, folds=3, kernels=4, tasks=None, means=None, seed=0):
    """Scores in the form of a search: `means` (…[, task]), by default random, plus fold effects of mean zero."""
    grid = {"p": P, "lam": LAM} if grid is None else grid
    rng = np.random.default_rng(seed)
    task = ["task"] if tasks else []
    sizes = [len(values) for values in grid.values()]
    points, by_task = (*sizes, folds), [len(tasks)] if tasks else []
    shape = (*points, *by_task)
    effects = 0.01 * (np.arange(folds) - (folds - 1) / 2)
    means = rng.uniform(0.5, 0.9, (*sizes, *by_task)) if means is None else np.asarray(means, dtype=float)
    score = np.expand_dims(means, len(sizes)) + effects.reshape(-1, *[1] * len(by_task))
    dims = [*grid, "fold", *task]
    variables = {
        "score": (dims, score),
        "test_score": (dims, rng.random(shape)),
        "weight": ([*grid, "fold", "kernel", *task], rng.random((*points, kernels, *by_task))),
        "gap": (dims, 10.0 ** rng.uniform(-6, -4, shape)),
        "objective": (dims, -rng.random(shape)),
        "status": (dims, np.zeros(shape, dtype=np.int8)),
        "refit_test_score": (["fold", *task], rng.random((folds, *by_task))),
    }
    coords = {name: as_variable(name, (name,), values) for name, values in grid.items()}
    coords |= {"fold": [str(f) for f in range(folds)], "kernel": [f"kernel_{j}" for j in range(kernels)]}
    attrs = {
        "estimator": "MKFDA",
        "scoring": "mean_class_accuracy",
        "kind": "multilabel" if tasks else "binary",
        "parameters_searched": json.dumps(list(grid)),
        "n_passes": 7,
        "seconds": 12.5,
        "n_points": int(np.prod(sizes)),
        "solver": "subspace",
    }
    return xr.Dataset(variables, coords | ({"task": tasks} if tasks else {}), attrs)


def planted(*at, shape=SHAPE, value=0.9):
    means = np.full(shape, 0.5)
    for place in at:
        means[place] = value
    return means


# --- the rules ----------------------------------------------------------------------------------------------
def reference(mean, error, lam, p, rule):
    """A plain version of the rule: allowed points sorted by preference."""
    points = [
        (index, mean[index], error[index], lam[index], p[index])
        for index in np.ndindex(mean.shape)
        if np.isfinite(mean[index])
    ]
    simplest = lambda these: min(these, key=lambda point: (-point[3], point[4], point[0]))  # noqa: E731
    tied = [point for point in points if point[1] == max(other[1] for other in points)]
    lams = sorted({point[3] for point in tied})
    best = simplest([point for point in tied if point[3] == lams[len(lams) // 2]])
    if rule == "best":
        return best[0]
    allowed = 0.0 if np.isnan(best[2]) else best[2]
    return simplest([point for point in points if point[1] >= best[1] - allowed])[0]


# Multiples of 1/8, so that sums and differences are exact and ties are frequent.
EIGHTHS = st.integers(-16, 16).map(lambda k: k / 8)
SHAPES = hnp.array_shapes(min_dims=1, max_dims=3, max_side=5)


@st.composite
def grids(draw):
    shape = draw(SHAPES)
    mean = draw(hnp.arrays(np.float64, shape, elements=EIGHTHS | st.just(np.nan)))
    error = draw(hnp.arrays(np.float64, shape, elements=EIGHTHS.map(abs) | st.just(np.nan)))
    lam = draw(hnp.arrays(np.float64, shape, elements=st.sampled_from([0.01, 0.1, 1.0])))
    p = draw(hnp.arrays(np.float64, shape, elements=st.sampled_from([1.0, 2.0, np.inf])))
    place = draw(st.tuples(*(st.integers(0, n - 1) for n in shape)))
    mean[place] = draw(EIGHTHS)
    return mean, error, lam, p


@given(grids(), st.sampled_from(["best", "one_standard_error"]))
def test_the_rules_by_their_words(grid, rule):
    mean, error, lam, p = grid
    assert choose(mean, error, rule, lam=lam, p=p) == reference(mean, error, lam, p, rule)
    best = reference(mean, error, lam, p, "best")
    near = within_one_standard_error(mean, error, lam=lam, p=p)
    np.testing.assert_array_equal(near, mean >= mean[best] - np.nan_to_num(error[best]))


def test_ties_without_a_ridge_go_to_the_smallest_c_then_to_the_order_of_the_grid():
    grid = {"C": [2.0, 1.0, 4.0], "solver": ["b", "a"], "p": [np.inf, 1.0]}
    result = SearchResult(make(grid, means=np.full([3, 2, 2], 0.5)))
    assert result.best_params_ == {"C": 2.0, "solver": "b", "p": 1.0}  # the middle of a plateau
    assert result.choose("one_standard_error") == {"C": 1.0, "solver": "b", "p": 1.0}


def test_means_that_differ_by_rounding_tie():
    folds = np.array([0.1, 0.7, 0.9])
    mean = np.array([sum(folds[[0, 1, 2]]) / 3, sum(folds[[2, 1, 0]]) / 3])
    assert mean[0] != mean[1]
    for order in ([0, 1], [1, 0]):
        assert choose(mean[order], np.zeros(2), lam=[0.1, 1.0]) == (1,)


# --- the choice ---------------------------------------------------------------------------------------------
def test_means_are_over_the_folds_with_a_score():
    scores = make(folds=4)
    score = scores["score"].values
    score[1, 2, 3] = score[0, 0, 1:] = score[4, 3, :] = np.nan
    result = SearchResult(scores).scores
    assert result.mean_score.dims == result.standard_error.dims == ("p", "lam")
    masked = np.ma.masked_invalid(score)
    error = masked.std(axis=2, ddof=1) / np.sqrt(masked.count(axis=2))
    np.testing.assert_allclose(result.mean_score, masked.mean(axis=2).filled(np.nan), rtol=1e-14)
    np.testing.assert_allclose(result.standard_error, error.filled(np.nan), rtol=1e-12)


def test_one_fold_has_no_standard_error():
    result = SearchResult(make(folds=1, means=planted((0, 1), (2, 1))))
    assert np.isnan(result.scores.standard_error).all()
    assert result.best_params_ == result.choose("one_standard_error") == {"p": 1.0, "lam": 1e-3}
    assert "±" not in result.summary()


def test_tasks_choose_each_for_itself():
    means = np.stack([planted((0, 1)), planted((4, 2)), planted((2, 0), (2, 3), (3, 3))], axis=-1)
    scores = make(tasks=TASKS, means=means)
    result = SearchResult(scores)
    assert result.tasks == tuple(TASKS)
    assert result.best_params_ == {
        "bird": {"p": 1.0, "lam": 1e-3},
        "boat": {"p": np.inf, "lam": 0.1},
        "bus": {"p": 1.5, "lam": 10.0},
    }
    assert {name: at.sel(task="boat") for name, at in result.best_index_.items()} == {"p": 4, "lam": 2}
    assert result.best_score_ == pytest.approx(dict.fromkeys(TASKS, 0.9))
    assert f"boat: p=inf, lam=0.1, {scores.attrs['scoring']} 0.9" in repr(result)
    scores["score"][..., 1] = np.nan
    with pytest.raises(InputError, match="task 'boat': no point of the grid can be chosen"):
        _ = SearchResult(scores).best_params_


def test_folds_choose_each_for_itself():
    scores = make()
    scores["score"][...] = 0.5
    for fold, place in enumerate([(2, 1), (4, 2), (2, 1)]):
        scores["score"][(*place, fold)] = 0.9
    result = SearchResult(scores.assign_attrs(choice="fold"))
    assert result.choosers == ("fold",)
    points = [{"p": 1.5, "lam": 1e-3}, {"p": np.inf, "lam": 0.1}, {"p": 1.5, "lam": 1e-3}]
    assert result.best_params_ == dict(zip("012", points, strict=True))
    assert result.best_score_ == dict.fromkeys("012", 0.9)
    xr.testing.assert_equal(result.best_index_["p"], xr.DataArray([2, 4, 2], {"fold": list("012")}, name="p"))
    chosen = result.chosen
    expected = [scores["test_score"].values[(*place, fold)] for fold, place in enumerate([(2, 1), (4, 2), (2, 1)])]
    np.testing.assert_array_equal(chosen["test_score"], expected)
    assert result.table().loc[[0, 20, 40], ["fold", "p"]].to_numpy().tolist() == [["0", 1.5], ["1", np.inf], ["2", 1.5]]
    assert f"mean_class_accuracy {np.mean(expected):#.3g} ± " in result.summary()
    surface, *_ = drawn(result.plot_scores()).axes
    assert rings(surface) == [(2.5, 1.5), (4.5, 2.5)]
    (ax,) = drawn(result.plot_weights()).axes
    assert_weights(ax, shares(chosen["weight"]).mean("fold").values)


def test_the_chosen_point_prints_as_a_short_table():
    result = SearchResult(make(means=planted((2, 1))))
    header, row, *others = str(result.chosen).splitlines()
    assert header.split() == ["p", "lam", "mean_score", "standard_error"]
    assert row.split()[:3] == ["1.5", "0.001", "0.9"]
    assert len(others) == 1
    assert "weight" in others[0]
    tasks = [f"voxel {k}" for k in range(500)]
    of_tasks = SearchResult(make({"lam": LAM}, tasks=tasks)).chosen
    lines = str(of_tasks).splitlines()
    assert len(lines) < 16
    assert "voxel 499" in lines[-2]
    assert "voxel 3" in str(of_tasks.sel(task=["voxel 3"]))  # a part of it is a table too
    assert "<xarray" in str(of_tasks[["weight"]])
    axes = result.plot_scores()
    assert axes.figure is axes[0].figure


def test_statuses_of_an_older_file_are_translated():
    given = make()
    given["status"].attrs["flag_meanings"] = "certified finished open failed"
    given["status"][0, 0] = [0, 1, 2]
    scores = SearchResult(given).scores
    assert list(scores["status"].values[0, 0]) == [0, 1, WORDS.index("open")]
    assert scores["status"].dtype == scores["status"].attrs["flag_values"].dtype == np.int8
    assert scores["status"].attrs["flag_meanings"] == "certified finished converged open"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: SearchResult(make().drop_vars("weight")), r"search must have score, weight, .*found .*dmkl\.load"),
        (lambda: SearchResult(make().isel(fold=0)), r"the score over 'fold' .*found .*dmkl\.search and dmkl\.load"),
        (lambda: SearchResult(make(), rule="median"), "rule must be 'best' or 'one_standard_error', got 'median'"),
        (lambda: SearchResult(make()).best_, "refit=False; search with refit=True, or fit an estimator with best_para"),
    ],
)
def test_what_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()


# --- text and tables ----------------------------------------------------------------------------------------
def test_table():
    scores = make(means=planted((2, 1)) + 0.01 * planted((0, 0), value=1.5))
    scores["score"][4, 0] = np.nan
    scores["gap"][2, 1] = [1e-6, 3e-3, 1e-5]
    scores["status"][2, 1] = [0, 3, 1]
    table = SearchResult(scores).table()
    assert list(table.columns) == ["p", "lam", "mean_score", "standard_error", "gap", "status"]
    assert table.loc[0, ["p", "lam", "gap", "status"]].tolist() == [1.5, 1e-3, 3e-3, "open"]
    assert table.loc[1, ["p", "lam"]].tolist() == [1.0, 1e-8]
    assert table.mean_score[:19].is_monotonic_decreasing
    assert table.loc[19, ["p", "lam"]].tolist() == [np.inf, 1e-8]
    assert np.isnan(table.mean_score[19])


def test_summary():
    scores = make(means=planted((2, 1)))
    scores["status"][0, 0] = [2, 2, 3]
    scores["test_score"][2, 1] = [0.7, 0.8, 0.9]
    scores["refit_test_score"][:] = [0.75, 0.85, 0.95]
    scores["gap"][0, 0, 0] = 0.5
    result = SearchResult(scores)
    assert repr(result) == result.summary()
    assert result.summary().split("\n") == [
        "Search of MKFDA: 5 p × 4 lam, 3 folds",
        "Chosen: p=1.5, lam=0.001",
        "mean_class_accuracy 0.900 ± 0.0058 in validation",
        "mean_class_accuracy 0.800 ± 0.058 in test",
        "mean_class_accuracy 0.850 ± 0.058 in test, refitted with the validation rows",
        "60 fits (57 certified, 2 converged, 1 open) in 7 passes, 12.5 s. "
        "Proven: each objective is within 50 % of the best possible",
    ]
    scores["status"][...], scores["gap"][...] = WORDS.index("converged"), np.nan  # no proven gap
    summary = SearchResult(scores).summary()
    assert "60 fits (60 converged) in 7 passes" in summary
    assert "gap" not in summary
    assert "<b>" not in SearchResult(make(tasks=["<b>", "c"]))._repr_html_()


def test_the_summary_of_many_targets_is_a_distribution():
    names = [f"y{k}" for k in range(40)]
    scores = make({"lam": [0.1, 1.0]}, tasks=names, means=np.stack([np.linspace(-0.2, 0.5, 40), np.full(40, -1.0)]))
    scores = scores.rename(task="target").assign_attrs(scoring="r2", kind="regression")
    lines = SearchResult(scores).summary().splitlines()
    assert lines[1:3] == [
        "Chosen by each target: lam = 0.1 (40×)",
        "Mean R² 0.150 in validation (quartiles -0.0250, 0.150, 0.325); 28 of 40 targets above 0",
    ]


# --- notes --------------------------------------------------------------------------------------------------
def expected_edges(name, values, chosen, scores):
    """Yield the expected notes: of an end to which the score rises by more than its standard error over the folds."""
    at_ends = (("smallest", "smaller", *sorted(values)[:2]), ("largest", "larger", *sorted(values)[:-3:-1]))
    for which, beyond, value, before in at_ends if len(values) > 2 else ():  # both of two are ends
        n = int(np.sum(np.ravel(chosen) == value))
        rise = (scores.sel({name: value}) - scores.sel({name: before})).values
        if n and rise.mean() > rise.std(ddof=1) / np.sqrt(len(rise)):
            whose = "The choice is" if np.size(chosen) == 1 else f"{n} of {np.size(chosen)} choices are"
            yield f"{whose} {name} = {value:g}, the {which} of the grid: search {beyond} values too"


SMALL = digits()[1] < 5


@pytest.mark.parametrize(
    ("learner", "name", "values", "choice"),
    [
        (dmkl.MKFDA(p=2), "lam", [1e-9, 1e-8, 1e-2], "joint"),
        (dmkl.MKFDA(p=2), "lam", [1e-2, 1e4, 1e5], "fold"),
        (dmkl.MKFDA(p=2), "lam", [1e-3, 1e-1, 1e1], "joint"),
        (dmkl.MKSVM(p=2), "C", [1e-6, 1e-5, 1e-4], "joint"),
        (dmkl.MKSVM(p=2), "C", [1e-6, 1e-5], "joint"),
    ],
)
def test_a_choice_at_an_end_of_the_grid_is_told(learner, name, values, choice):
    K, more = digit_set(), {"choice": choice, "refit": False, "baselines": "none"}
    result = dmkl.search(learner, K, SMALL, {name: values}, 2, **more)
    edges = list(expected_edges(name, values, result.chosen[name], result.scores["score"]))
    assert result.notes() == edges
    assert [line for line in result.summary().splitlines() if "of the grid" in line] == edges


def test_a_plateau_is_no_edge_and_its_middle_is_chosen():
    """Of equal scores the middle λ is chosen; an end is told only if the score rises towards it beyond its error."""

    def searched(by_lam, spread):
        fold_scores = np.array(by_lam)[:, None] + np.array(spread) * np.linspace(0, 1, 5)[:, None]
        return SearchResult(make({"lam": [1e-4, 1e-3, 1e-2, 1e-1, 1.0]}).assign(score=(("lam", "fold"), fold_scores)))

    flat = searched([0.8] * 5, [0, 0, 0])
    assert flat.best_params_ == {"lam": 1e-2}
    assert flat.notes() == []
    rising = searched([0.5, 0.6, 0.7, 0.8, 0.9], [0, 0, 0])
    assert rising.notes() == ["The choice is lam = 1, the largest of the grid: search larger values too"]
    assert searched([0.8, 0.8, 0.8, 0.8, 0.81], [-0.4, 0.4, 0]).notes() == []


@pytest.mark.parametrize("splits", [None, np.repeat([0, 2], [40, 20])])
def test_bandwidths_that_held_out_samples_had_a_part_in_are_told(splits, tmp_path):
    """Notes of searches and evaluations, in memory and loaded; none if splits exclude held-out samples."""
    rng, y = np.random.default_rng(0), np.arange(60) % 2
    tables = {"shape": rng.normal(size=(60, 4)) + y[:, None], "color": rng.normal(size=(60, 3))}
    specs = [{"function": "rbf", "bandwidth": [0.5, 2]}, {"function": "linear"}]
    built = dmkl.build(tmp_path / "set.zarr", tables, specs, labels=y, splits=splits)
    note = "The bandwidths, landmarks or transforms of 4 kernels are taken from all samples of the set"
    grid, more = {"lam": [0.1]}, {"baselines": "none"}
    for set_ in (built[:40, :40], dmkl.open(tmp_path / "set.zarr")):
        result = dmkl.search(dmkl.Uniform(), set_, grid=grid, cv=2, refit=False, **more)
        assert (note in result.summary()) is (splits is None)
    result.save(tmp_path / "result")
    assert dmkl.load(tmp_path / "result").notes() == result.notes()
    estimate = dmkl.evaluate(dmkl.Uniform(), built, grid=grid, outer=2, inner=2, **more)
    assert (note in estimate.summary()) is (splits is None)
    linear = dmkl.build(None, tables, [{"function": "linear"}, {"function": "rbf", "gamma": 0.1}], labels=y)
    assert dmkl.search(dmkl.Uniform(), linear, grid=grid, cv=2, refit=False).notes() == []


# --- files --------------------------------------------------------------------------------------------------
M = 24


def train_set():
    return in_memory(psd(4, M), 12)


def fitted():
    return dmkl.MKFDA(1.5, 0.5).fit(train_set(), np.arange(M) % 2)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "search"
    SearchResult(make(), best=fitted()).save(path)
    return path


def test_round_trip_of_values_of_any_kind(tmp_path):
    grid = {"solver": ("größe", None), "center": (True, False), "max_iter": (10, 200), "p": (1, np.inf), "cv": ("a",)}
    scores = make(grid, means=planted((1, 1, 1, 1, 0), shape=(2, 2, 2, 2, 1)))
    scores["score"][0, 1, 0] = np.nan
    result = SearchResult(scores, best=fitted(), rule="one_standard_error")
    assert list(result.scores["solver"].values) == ["größe", "None"]
    assert result.scores["max_iter"].dtype.kind == "i"
    result.save(tmp_path / "deep" / "search.zarr")
    loaded = dmkl.load(str(tmp_path / "deep" / "search.zarr"))
    xr.testing.assert_identical(loaded.scores, result.scores)
    assert (type(loaded), loaded.rule, repr(loaded)) == (SearchResult, "one_standard_error", repr(result))
    xr.testing.assert_identical(*(each.best_.decision_function(train_set()) for each in (loaded, result)))
    for each in (result, loaded):
        assert each.grid == {name: list(values) for name, values in grid.items()}
        assert each.best_params_ == {"solver": None, "center": False, "max_iter": 200, "p": np.inf, "cv": "a"}
        assert [type(value) for value in each.best_params_.values()] == [type(None), bool, int, float, str]


def test_others_read_it(saved):
    result = dmkl.load(saved)
    with xr.open_zarr(saved) as opened:
        np.testing.assert_array_equal(opened.score.sel(p=1.5, fold="1"), result.scores.score.sel(p=1.5, fold="1"))
        assert (opened.attrs["format"], opened.attrs["format_version"]) == ("dmkl-search", 2)
    xr.testing.assert_identical(dmkl.load(saved / "best").weights_, result.best_.weights_)
    with xr.open_datatree(saved, engine="zarr") as tree:
        np.testing.assert_array_equal(tree["best"]["weights_"], result.best_.weights_)


def test_overwriting(tmp_path):
    """A failed save keeps the old search."""
    path, model = tmp_path / "search", fitted()
    old, new = SearchResult(make(seed=1), best=model), SearchResult(make(seed=2))
    old.save(path)
    with pytest.raises(StoreExistsError, match=r"search exists already; .*overwrite=True"):
        new.save(path)
    for module, part in ((saved_module, "write_dataset"), (search_module, "write_model")):
        full = patch.object(module, part, side_effect=OSError("no space left on device"))
        with full, pytest.raises(OSError, match="no space left"):
            SearchResult(make(seed=2), best=model).save(path, overwrite=True)
    xr.testing.assert_identical(dmkl.load(path).scores, old.scores)
    new.save(path, overwrite=True)
    xr.testing.assert_identical(dmkl.load(path).scores, new.scores)
    assert not hasattr(dmkl.load(path), "best_")
    assert not (path / "best").exists()
    assert [entry.name for entry in tmp_path.iterdir()] == ["search"]


def test_a_newer_format_and_a_choice_by_no_rule(tmp_path, saved):
    path = shutil.copytree(saved, tmp_path / "search")
    unseal(path, rule="median")
    with pytest.raises(StoreError, match=r"the search at .* is damaged .*median"):
        dmkl.load(path)
    unseal(path, format_version=8)
    with pytest.raises(FormatVersionError, match="has search format version 8, and this dmkl reads up to 2; install"):
        dmkl.load(path)


OF_MODEL = ["weights_", "weights_/c/0", "dual_coef_/c", "part_0_step_0_col_mean", "history", "history/gap/c/0"]


@pytest.mark.parametrize("part", ["score", "fold/c", *(f"best/{part}" for part in OF_MODEL)])
def test_a_search_with_a_part_missing_or_cut_short(tmp_path, saved, part):
    """Or its model, which is read alone as well."""
    path = shutil.copytree(saved, tmp_path / "search")
    if (path / part).is_file():
        (path / part).write_bytes((path / part).read_bytes()[:-5])
    else:
        (path / part).rename(tmp_path / "lost")
    for kind, at in [("search|model", path), *([("model", path / "best")] if "best" in part else [])]:
        with pytest.raises(StoreError, match=rf"the ({kind}) at .*search.* is damaged .*save it again"):
            dmkl.load(at)


# --- pictures -----------------------------------------------------------------------------------------------
def rings(ax):
    return sorted(tuple(map(float, line.get_xydata()[0])) for line in ax.lines if line.get_label() == "chosen")


def labels(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def title_of(ax):
    return " ".join(ax.figure.get_suptitle().split())


def assert_weights(ax, expected):
    """Assert that bars and labels show these weights, the largest first."""
    order = np.argsort(-expected, kind="stable")
    np.testing.assert_allclose([bar.get_width() for bar in ax.patches], expected[order])
    assert labels(ax.yaxis) == [f"kernel_{j}" for j in order]


def drawn(axes):
    """Draw the figure of some axes without warnings, and return it."""
    figure = np.ravel(axes)[0].figure
    figure.canvas.draw()
    return figure


def test_map_and_curve():
    means = planted((2, 1))
    means[4, 2:] = 0.895, np.nan  # nothing is drawn at a point without a score
    scores = make(means=means)
    surface, curve, bar = drawn(SearchResult(scores).plot_scores()).axes
    assert rings(surface) == [(2.5, 1.5)]
    assert rings(curve) == [(2, pytest.approx(0.9))]
    (mesh,) = surface.collections
    np.testing.assert_allclose(mesh.get_array().filled(np.nan), means.T)
    assert labels(surface.xaxis) == labels(curve.xaxis) == ["1", "1+2$^{-6}$", "1.5", "2", "∞"]
    assert labels(surface.yaxis) == ["1e-8", "1e-3", "0.1", "10"]
    assert (surface.get_xlabel(), surface.get_ylabel(), curve.get_xlabel()) == ("norm p", "ridge λ", "norm p")
    assert (bar.get_ylabel(), curve.get_ylabel()) == ("mean class accuracy", "mean class accuracy, best λ")
    validation, test = curve.containers
    np.testing.assert_allclose(validation[0].get_ydata(), np.nanmax(means, axis=1))
    tested = scores["test_score"].values[np.arange(5), np.nanargmax(means, axis=1)]  # at the best validation score
    np.testing.assert_allclose(test[0].get_ydata(), tested.mean(axis=1))
    for bars, spread in ((validation, np.full(5, 0.01)), (test, tested.std(axis=1, ddof=1))):
        lengths = [np.ptp(segment[:, 1]) for segment in bars[2][0].get_segments()]
        np.testing.assert_allclose(lengths, 2 * spread / 3**0.5)
    (dots,) = (line for line in surface.lines if line.get_label() != "chosen")
    np.testing.assert_array_equal(dots.get_xydata(), [[2.5, 1.5], [4.5, 2.5]])


def test_no_pyplot_and_no_display(monkeypatch):
    """Notebooks show the axes, and scripts create no global figures."""
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # an import fails
    for axes in (SearchResult(make()).plot_scores(), SearchResult(make()).plot_weights()):
        assert axes._repr_png_().startswith(b"\x89PNG")


def test_the_two_longest_of_three_parameters():
    """Numbers are sorted on the axes."""
    grid = {"max_iter": (10, 30, 20), "solver": ("trace", "cosine", "multiplicative", None), "lam": (0.1, 1.0)}
    surface, curve, _ = drawn(SearchResult(make(grid, means=planted((1, 1, 0), shape=(3, 4, 2)))).plot_scores()).axes
    assert (surface.get_xlabel(), surface.get_ylabel()) == ("solver", "max_iter")
    assert labels(surface.xaxis) == ["trace", "cosine", "multiplicative", "None"]
    assert labels(surface.yaxis) == ["10", "20", "30"]
    assert rings(surface) == [(1.5, 2.5)]
    assert rings(curve) == [(1, pytest.approx(0.9))]
    assert surface.get_title(loc="left").startswith("λ = 0.1; ring: chosen")


def test_chains_of_steps_have_maps_of_their_own_values():
    grid = {"p": (1.0, 2.0), "lam": (1e-3, 0.1, 0.5, 10.0, 50.0), "steps": ("center+trace", "cosine+center")}
    means = planted((1, 2, 1), shape=(2, 5, 2))
    means[:, [1, 3], 0], means[:, [0, 2], 1] = np.nan, np.nan
    means[1, 1, 1] = 0.9
    first, second, curve, *_ = drawn(SearchResult(make(grid, means=means)).plot_scores()).axes
    assert (labels(first.yaxis), labels(second.yaxis)) == (["1e-3", "0.5", "50"], ["0.1", "10", "50"])
    for ax, k, rows in ((first, 0, [0, 2, 4]), (second, 1, [1, 3, 4])):
        np.testing.assert_allclose(ax.collections[0].get_array(), means[:, rows, k].T)
    assert (rings(first), rings(second)) == ([], [(1.5, 0.5)])
    assert "cosine+center" in second.get_title(loc="left")
    assert rings(curve) == [(1, pytest.approx(0.9))]


MEANS_OF_TASKS = np.stack([planted((0, 1)), planted((4, 2)), planted((0, 1))], axis=-1)


def test_tasks_have_rings_and_weights_each():
    result = SearchResult(make(tasks=TASKS, means=MEANS_OF_TASKS))
    surface, curve, bar = drawn(result.plot_scores()).axes
    np.testing.assert_allclose(surface.collections[0].get_array(), MEANS_OF_TASKS.mean(axis=-1).T)
    assert rings(surface) == [(0.5, 1.5), (4.5, 2.5)]
    assert [text.get_text() for text in surface.texts] == [text.get_text() for text in curve.texts] == ["2"]
    assert bar.get_ylabel() == "mean class accuracy, mean of 3 tasks"
    surface, curve, bar = drawn(result.plot_scores(task="boat")).axes
    assert (rings(surface), rings(curve)) == ([(4.5, 2.5)], [(4, pytest.approx(0.9))])
    assert bar.get_ylabel() == "mean class accuracy, boat"
    weight = result.scores.weight
    own = [shares(part) for part in (weight[0, 1, :, :, 0], weight[4, 2, :, :, 1], weight[0, 1, :, :, 2])]
    (ax,) = drawn(result.plot_weights()).axes
    assert title_of(ax).endswith("each task at its own choice, mean of 9 fits (dots)")
    assert_weights(ax, np.mean(own, axis=(0, 1)))
    (ax,) = drawn(result.plot_weights("boat")).axes
    assert_weights(ax, own[1].mean("fold").values)
    assert title_of(ax).startswith("Kernel weights of boat at p = ∞, λ = 0.1")
    with pytest.raises(InputError, match="there is no task 'cat': this search has the tasks bird, boat, bus"):
        result.plot_weights("cat")


def test_many_targets_have_few_rings_and_no_color_of_the_worst_points():
    rng, grid = np.random.default_rng(0), {"candidate": tuple(range(20)), "lam": LAM}
    means = rng.uniform(0.0, 0.5, (20, 4, 60))
    means[3] = -30.0
    scores = make(grid, tasks=[str(k) for k in range(60)], means=means).assign_attrs(scoring="r2")
    surface, curve, _ = drawn(SearchResult(scores).plot_scores()).axes
    assert len(rings(surface)) == 12
    assert len(rings(curve)) <= 12
    assert surface.collections[0].get_clim()[0] == -0.2
    assert "the 12 chosen most" in " ".join(surface.get_title(loc="left").split())


def test_axes_of_ones_own():
    axes, single = Figure(layout="constrained").subplots(2, 1), Figure().subplots()
    result = SearchResult(make(means=planted((2, 1))))
    assert result.plot_scores(axes).tolist() == axes.tolist()
    with pytest.raises(InputError, match="ax must hold 2 axes, map and curve, got 1"):
        result.plot_scores(single)
    curve = SearchResult(make({"p": (2.0,), "lam": LAM}, means=[[0.6, 0.8, 0.9, 0.7]], folds=1)).plot_scores(single)
    assert curve is single
    assert rings(curve) == [(2, pytest.approx(0.9))]
    assert (curve.get_xlabel(), curve.get_ylabel()) == ("ridge λ", "mean class accuracy")


def shares(weights):
    return weights / weights.sum("kernel")


def test_bars_are_mean_weights():
    for folds, scaled, label in ((1, lambda w: w, "kernel weight β"), (3, shares, "share of the weight in each fold")):
        result = SearchResult(make(folds=folds, means=planted((2, 1))))
        weights = scaled(result.scores.weight.sel(p=1.5, lam=1e-3)).values
        (ax,) = drawn(result.plot_weights()).axes
        assert_weights(ax, weights.mean(axis=0))
        assert ax.get_xlabel() == label
        assert title_of(ax).startswith("Kernel weights at p = 1.5, λ = 1e-3")
        order = np.argsort(-weights.mean(axis=0), kind="stable")
        np.testing.assert_array_equal([line.get_xdata() for line in ax.lines], weights[:, order] if folds > 1 else [])
    (ax,) = drawn(result.plot_weights(at={"p": np.inf})).axes
    assert_weights(ax, shares(result.scores.weight.sel(p=np.inf, lam=1e-3)).mean("fold").values)
    with pytest.raises(InputError, match=r"p=3 is not in the grid; its values of p are \[1\.0, "):
        result.plot_weights(at={"p": 3})


def test_weights_over_p_are_those_at_the_best_of_the_others():
    scores = make(means=planted((0, 1), (1, 3), (3, 2), (4, 2), value=0.8))
    scores["score"][2] = np.nan
    result = SearchResult(scores)
    ax, _ = drawn(result.plot_weights_over()).axes
    at = shares(result.scores["weight"]).values[np.arange(5), [1, 3, 0, 2, 2]].mean(axis=1)  # (p, kernel)
    relative = np.ma.array(at / at.max(axis=1, keepdims=True), mask=np.arange(5)[:, None] == [2] * 4).T
    order = np.argsort(-relative.mean(axis=1))
    part = ax.collections[0].get_array()
    np.testing.assert_array_equal(part.mask, relative.mask)
    np.testing.assert_allclose(part, relative[order])
    assert labels(ax.xaxis) == ["1", "1+2$^{-6}$", "1.5", "2", "∞"]
    assert labels(ax.yaxis) == [f"kernel_{j}" for j in order]
    at = shares(result.scores["weight"]).values[0, 1].mean(axis=0)
    drawn_weights = result.plot_weights_over("lam").collections[0].get_array()[:, 1]
    np.testing.assert_allclose(np.sort(drawn_weights), np.sort(at / at.max()))
    with pytest.raises(InputError, match=r"over two values of C or more, and this search has 0; it has p \(5\), lam"):
        result.plot_weights_over("C")


def test_of_many_kernels_the_largest_weights_and_the_sum_of_the_others_are_drawn():
    """A small weight of the others is not called zero."""
    scores = make(kernels=60)
    scores["weight"][...] = weight = np.random.default_rng(5).permutation(60)
    for top, n in ((None, 20), (40, 40)):
        ax = Figure().subplots()
        assert SearchResult(scores).plot_weights(ax=ax, top=top) is ax
        widths = [bar.get_width() for bar in ax.patches]
        np.testing.assert_allclose(np.multiply(widths, 1770), [*range(59, 59 - n, -1), sum(range(60 - n))])
        assert labels(ax.yaxis) == [*(f"kernel_{j}" for j in np.argsort(-weight)[:n]), f"{60 - n} others"]
    with pytest.raises(InputError, match="1 or more, got 0"):
        SearchResult(scores).plot_weights(top=0)
    for of_others, said in ((1e-7, "less than 1 %"), (0.0, "0 %"), (0.5, "33 %")):
        scores["weight"][...] = np.r_[np.ones(40), np.full(20, 2 * of_others)]
        assert f"the others have {said} of the weight" in title_of(SearchResult(scores).plot_weights(top=40))


def test_what_all_names_share_is_in_the_title_and_not_in_labels():
    names = ["log-rbf-T_$CELL", "log-rbf-B_CELL", "log-rbf-1e-3", "log-rbf-1e-4"]
    scores = make().assign_coords(kernel=names)
    scores["weight"][...] = [0.4, 0.3, 0.2, 0.1]
    (ax,) = drawn(SearchResult(scores).plot_weights()).axes
    assert labels(ax.yaxis) == [r"T_\$CELL", "B cell", "1e-3", "1e-4"]
    assert title_of(ax).endswith("Kernels: log-rbf-…")
