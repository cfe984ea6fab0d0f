"""`dmkl fit` and `dmkl search` with normalized cuts."""

from __future__ import annotations

import json

import numpy as np
import pytest

import dmkl

pytest_plugins = ["helpers.command_line"]

THREADS = ("--cluster", "threads")


def train(store):
    K = dmkl.open(store)
    rows = K.split(0).train
    return K[rows, rows]


def test_weights_of_cuts(run, tmp_path, store):
    path = tmp_path / "model"
    given = ["--model", "ncuts", "--examples", 3, "--C", 4, "--multiclass", "ovo", "--sharing", "joint"]
    status, out, err = run("fit", store, path, *given, *THREADS)
    assert status == 0, err
    assert "Weights: proven optimal to the tolerance." in out
    found = dmkl.load(path)
    expected = dmkl.NCuts(3, C=4.0, multiclass="ovo", sharing="joint").fit(train(store))
    assert found.get_params() == expected.get_params()
    np.testing.assert_allclose(found.weights_, expected.weights_, atol=1e-9)
    lines = out.splitlines()
    for name, weight in zip(found.kernel_names_, found.weights_.values, strict=True):
        assert f"{weight:.4f}" in next(line for line in lines if line.startswith(name))
    K = dmkl.open(store)
    rows, _, test = K.split(0)
    told = json.loads(run("predict", path, store, "--split", 0, "--json", *THREADS)[1])
    assert told["accuracy"] == found.score(K[test, rows])


@pytest.mark.parametrize(("given", "own"), [([], False), (["--sharing", "own"], True)])
def test_the_square_loss(run, tmp_path, store, given, own):
    path = tmp_path / "model"
    status, out, err = run(
        "fit", store, path, "--model", "ncuts", "--loss", "square", "--lam", 0.1, *given, "--json", *THREADS
    )
    assert status == 0, err
    told, found = json.loads(out), dmkl.load(path)
    assert told["model"] == "NCuts"
    assert told["parameters"]["lam"] == 0.1
    assert isinstance(told["weights"]["clear"], dict) == own
    assert len(told["gap"]) == 3
    assert told["passes"] == 2
    assert found.weights_.sizes.get("class", 0) == 3 * own


def test_its_own_parameters_stand_where_nothing_is_given(run, tmp_path, store):
    status, out, err = run("fit", store, tmp_path / "model", "--model", "ncuts", "--json", *THREADS)
    assert status == 0, err
    assert json.loads(out)["parameters"] == {**dmkl.NCuts().get_params(), "steps": []}


def test_what_is_refused(run, tmp_path, store):
    for given, told in (
        (["--examples", 11], "has 10 training samples; take n_examples=10 or fewer"),
        (["--p", 2], "--p is for --model mkfda or mkridge or mksvm, and ncuts has no"),
        (["--loss", "square", "--multiclass", "ovo"], "take multiclass='ovr', or loss='hinge'"),
    ):
        status, out, err = run("fit", store, tmp_path / "model", "--model", "ncuts", *given, *THREADS)
        assert (status, out) == (1, "")
        assert told in err
    status, _, err = run("fit", store, tmp_path / "model", "--model", "mksvm", "--examples", 3, *THREADS)
    assert status == 1
    assert "--examples is for --model ncuts, and mksvm has no" in err


def test_a_search_over_prices(run, tmp_path, store):
    arguments = ["--model", "ncuts", "--C", "0.1,10", "--cv", 3, "--split", 0, "--grid", "sharing=mean,own"]
    status, out, err = run("search", store, tmp_path / "found", *arguments, *THREADS)
    assert status == 0, err
    result = dmkl.load(tmp_path / "found")
    assert result.scores.score.sizes["C"] == 2
    assert set(result.best_params_) == {"C", "sharing"}
    assert "chosen" in out
