"""`dmkl fit` and `dmkl search` of support vector machines: options, files of prices and constraints, tables."""

import numpy as np

import dmkl
from dmkl.cli.parsing import read_constraints

NAMES = ("clear", "fair", "poor", "noise")


# --- dmkl fit --------------------------------------------------------------------------------------------------------
def test_a_machine_for_every_pair(json_of, output_of, tmp_path, store):
    path = tmp_path / "model"
    out = output_of("fit", store, path, "--model", "mksvm", "--p", "4/3", "--C", 4, "--multiclass", "ovo")
    assert "Trained on 30 samples (the training part of split 0). The gap is proven" in out
    model, K = dmkl.load(path), dmkl.open(store)
    rows, _, test = K.split(0)
    expected = dmkl.MKSVM(4 / 3, 4.0, multiclass="ovo").fit(K[rows, rows])
    assert model.get_params() == expected.get_params()
    np.testing.assert_allclose(model.objective_, expected.objective_, rtol=2e-3)
    lines = out.splitlines()
    assert all(label in lines[1] for label in ("apple or pear", "apple or plum", "pear or plum"))
    for name in NAMES:
        shown = next(line for line in lines if line.startswith(name))
        assert all(f"{weight:#.3g}" in shown for weight in model.weights_.sel(kernel=name).values)
    assert json_of("predict", path, store, "--split", 0)["accuracy"] == model.score(K[test, rows])


def test_prices_and_constraints(json_of, tmp_path, store):
    prices, rules = tmp_path / "prices.csv", tmp_path / "rules.toml"
    prices.write_text("kernel,price\npoor,0.5\nclear,1\nnoise,2e3\nfair,1\n")
    rules.write_text(
        "[[constraint]]  # fair weighs at least twice as much as clear\n"
        "weights = { fair = 1, clear = -2 }\nleast = 0\n\n"
        "[[constraint]]\nmost = 0.1\n[constraint.weights]\npoor = 1.0\n"
    )
    given = ["--sigma", prices, "--constraints", rules, "--steps", "multiplicative", "-C", 10]
    printed = json_of("fit", store, tmp_path / "model", "--model", "gmkl", *given)
    assert printed["model"] == "GMKL"
    expected = {"sigma": [1, 1, 0.5, 2e3], "A": [[-2, 1, 0, 0], [0, 0, -1, 0]], "b": [0, -0.1], "tol": 1e-3}
    assert expected.items() <= printed["parameters"].items()
    assert printed["parameters"]["steps"] == ["multiplicative"]
    assert max(printed["gap"]) <= 1e-3
    weights = dmkl.load(tmp_path / "model").weights_.to_pandas()
    assert printed["weights"] == weights.T.to_dict()
    assert (weights.loc["fair"] >= 2 * weights.loc["clear"] - 1e-8).all()
    assert (weights.loc["poor"] <= 0.1 + 1e-8).all()


def test_the_form_that_help_shows_is_read(output_of, tmp_path):
    lines = [line.strip() for line in output_of("fit", "--model", "gmkl", "--help").splitlines()]
    assert "[[constraint]]" not in output_of("fit", "--help")
    path = tmp_path / "rules.toml"
    path.write_text("\n".join(lines[lines.index("[[constraint]]") : lines.index("most = 0.1") + 1]))
    A, b = read_constraints(path, ("rbf", "noise", "chi2"))
    np.testing.assert_array_equal(A, [[1, 0, -2], [0, -1, 0]])
    np.testing.assert_array_equal(b, [0, -0.1])


# --- dmkl search -----------------------------------------------------------------------------------------------------
def test_weights_of_groups(json_of, output_of, tmp_path, store):
    command = ["fit", store, tmp_path / "model", "--model", "gsmkl", "--groups", 2, "--C", 2, "--max-iter", 3]
    printed, model = json_of(*command), dmkl.load(tmp_path / "model")
    weight = model.weights_.sel({"kernel": NAMES[0], "group": 0, "class": "apple"})
    assert printed["weights"][NAMES[0]]["apple, group 0"] == weight
    grid = ["--grid", "n_groups=1,2", "--C", 1, "--tol", 0.1, "--max-iter", 2, "--cv", 2, "--baselines", "none"]
    text = output_of("search", store, tmp_path / "result", "--model", "gsmkl", *grid)
    counts = dmkl.load(tmp_path / "result").best_params_["n_groups"]
    assert ",".join(f"{label}={count}" for label, count in counts.items()) in text
