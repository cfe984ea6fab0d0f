"""`dmkl fit` and `dmkl search` with normalized cuts."""

from __future__ import annotations

import numpy as np
import pytest

import dmkl

pytest_plugins = ["helpers.command_line"]


def test_weights_of_cuts(json_of, output_of, tmp_path, store):
    path = tmp_path / "model"
    given = ["--model", "ncuts", "--examples", 3, "--C", 4, "--multiclass", "ovo", "--sharing", "joint"]
    out = output_of("fit", store, path, *given)
    assert "Weights: proven optimal to the tolerance." in out
    K, model = dmkl.open(store), dmkl.load(path)
    rows, _, test = K.split(0)
    expected = dmkl.NCuts(3, C=4.0, multiclass="ovo", sharing="joint").fit(K[rows, rows])
    assert model.get_params() == expected.get_params()
    np.testing.assert_allclose(model.weights_, expected.weights_, atol=1e-9)
    lines = out.splitlines()
    for name, weight in zip(model.kernel_names_, model.weights_.values, strict=True):
        assert f"{weight:.4f}" in next(line for line in lines if line.startswith(name))
    assert json_of("predict", path, store, "--split", 0)["accuracy"] == model.score(K[test, rows])


@pytest.mark.parametrize(("given", "own"), [([], False), (["--sharing", "own"], True)])
def test_the_square_loss(json_of, tmp_path, store, given, own):
    path = tmp_path / "model"
    printed = json_of("fit", store, path, "--model", "ncuts", "--loss", "square", "--lam", 0.1, *given)
    assert printed["model"] == "NCuts"
    assert printed["parameters"]["lam"] == 0.1
    assert isinstance(printed["weights"]["clear"], dict) == own
    assert len(printed["gap"]) == 3
    assert printed["passes"] == 2
    assert dmkl.load(path).weights_.sizes.get("class", 0) == 3 * own


def test_a_search_over_prices(output_of, tmp_path, store):
    arguments = ["--C", "0.1,10", "--cv", 2, "--split", 0, "--grid", "sharing=mean,own", "--baselines", "none"]
    assert "chosen" in output_of("search", store, tmp_path / "result", "--model", "ncuts", *arguments)
    result = dmkl.load(tmp_path / "result")
    assert result.scores.score.sizes["C"] == 2
    assert set(result.best_params_) == {"C", "sharing"}
