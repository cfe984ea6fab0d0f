"""Notes of results on choices at an end of the grid, and on bandwidths computed with held-out samples."""

import numpy as np
import pytest
from helpers.references import digits, in_memory

import dmkl

M = 60
RNG = np.random.default_rng(0)
Y = np.arange(M) % 2
TABLES = {"shape": RNG.normal(size=(M, 4)) + Y[:, None], "color": RNG.normal(size=(M, 3))}
SPECS = [{"function": "rbf", "bandwidth": [0.5, 2]}, {"function": "linear"}]
PARTS = np.where(np.arange(M) < 40, 0, 2)


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
    K, more = in_memory(digits()[0], 90), {"choice": choice, "refit": False, "baselines": "none"}
    result = dmkl.search(learner, K, SMALL, {name: values}, 2, **more)
    edges = list(expected_edges(name, values, result.chosen[name], result.scores["score"]))
    assert result.notes() == edges
    assert [line for line in result.summary().splitlines() if "of the grid" in line] == edges


def test_a_plateau_is_no_edge_and_its_middle_is_chosen():
    """Of equal scores the middle λ is chosen; an end is told only if the score rises towards it beyond its error."""
    K = in_memory(digits()[0], 90)
    lams = [1e-4, 1e-3, 1e-2, 1e-1, 1.0]
    scores = dmkl.search(dmkl.MKFDA(p=2), K, SMALL, {"lam": lams}, 3, refit=False, baselines="none").scores

    def searched(by_lam, spread):
        fold_scores = np.array(by_lam)[:, None] + np.array(spread) * np.linspace(0, 1, 5)[:, None]
        variable = ("lam", "fold"), fold_scores
        return dmkl.SearchResult(scores.drop_vars(["mean_score", "standard_error"]).assign(score=variable))

    flat = searched([0.8] * 5, [0, 0, 0])
    assert flat.best_params_ == {"lam": 1e-2}
    assert flat.notes() == []
    rising = searched([0.5, 0.6, 0.7, 0.8, 0.9], [0, 0, 0])
    assert rising.notes() == ["The choice is lam = 1, the largest of the grid: search larger values too"]
    assert searched([0.8, 0.8, 0.8, 0.8, 0.81], [-0.4, 0.4, 0]).notes() == []


@pytest.mark.parametrize("splits", [None, PARTS])
def test_bandwidths_that_held_out_samples_had_a_part_in_are_told(splits, tmp_path):
    """Notes of searches and evaluations, in memory and loaded; none if splits exclude held-out samples."""
    built = dmkl.build(tmp_path / "set.zarr", TABLES, SPECS, labels=Y, splits=splits)
    note = "The bandwidths, landmarks or transforms of 4 kernels are taken from all samples of the set"
    grid, more = {"lam": [0.1]}, {"baselines": "none"}
    for set_ in (built[:40, :40], dmkl.open(tmp_path / "set.zarr")):
        result = dmkl.search(dmkl.Uniform(), set_, grid=grid, cv=2, refit=False, **more)
        assert (note in result.summary()) is (splits is None)
    result.save(tmp_path / "result")
    assert dmkl.load(tmp_path / "result").notes() == result.notes()
    estimate = dmkl.evaluate(dmkl.Uniform(), built, grid=grid, outer=2, inner=2, **more)
    assert (note in estimate.summary()) is (splits is None)
    linear = dmkl.build(None, TABLES, [{"function": "linear"}, {"function": "rbf", "gamma": 0.1}], labels=Y)
    assert dmkl.search(dmkl.Uniform(), linear, grid=grid, cv=2, refit=False).notes() == []
