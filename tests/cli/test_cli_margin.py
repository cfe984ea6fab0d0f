"""`dmkl fit` and `dmkl search` of support vector machines: options, files of prices and constraints, tables."""

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import dmkl
from dmkl.cli.parsing import parse_counts, read_constraints, read_kernel_groups, read_prices
from dmkl.errors import InputError
from dmkl.learners.checks import WeightRules
from dmkl.learners.tables import weights_table

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


@pytest.mark.parametrize(
    ("model", "option", "value", "words"),
    [
        (
            "mksvm",
            "--solver",
            "cg",
            "--solver is for --model mkcox or mkfda or mkglm or mklogistic or mkridge or product",
        ),
        ("ncuts", "--p", 2, "--p is for --model mkcox or mkfda or mkglm or mklogistic or mkridge or mksvm"),
        ("gmkl", "--sigma", "dear", "--sigma takes a number or a file of kernel,price, got 'dear'"),
        ("gmkl", "--constraints", "none.toml", "cannot be read"),
    ],
)
def test_options_that_are_refused(error_of, tmp_path, store, model, option, value, words):
    arguments = [store, tmp_path / "out", "--model", model, option, value]
    assert words in error_of("fit", *arguments)
    if option == "--p":
        words = "'p' is no parameter of NCuts"
    assert words in error_of("search", *arguments)
    assert not (tmp_path / "out").exists()


# --- files -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("text", ["1,1\n2,2\n", "\ufeffkernel, price\r\n1, 1e0\r\n\r\n2, 2\r\n", '"1",1\n"2",2'])
def test_tables_of_prices(tmp_path, text):
    """Kernel names may be numbers."""
    path = tmp_path / "prices.csv"
    path.write_text(text, encoding="utf-8")
    assert read_prices(str(path), ("1", "2")) == [1.0, 2.0]


NO_CONSTRAINTS = [
    ("", "constraint: not a list of tables"),
    ("[[constraint]]\nleast = 1\n", "constraint 1 has no weights"),
    ("[[constraint]]\nweights = {a = 1}\nleast = 0\nmost = 1\n", "constraint 1 has both of least and most"),
    ("[[constraint]]\nweights = {a = inf}\nleast = 0\n", "constraint 1 a: inf is no finite number"),
    ("[[constraint]]\nweights = {a = 1}\nat_least = 0\n", "constraint 1 has weights, at_least"),
    ("[[constraint]]\nweights = {a = 1}\nleast = 0\n[[constraint]]\nweights = {c = 1}\nleast = 0\n",
     "constraint 2, names kernel 'c', which this set does not have; its kernels are a, b"),
    ("[[constraint]\n", "is not valid TOML"),
]  # fmt: skip
NO_PRICES = [
    ("a,1\n", "has no price for kernel 'b'"),
    ("a,1\nb,2\na,3\n", "has two prices for kernel 'a'"),
    ("a,1\nb,2\nc,3\n", "names kernel 'c', which this set does not have; its kernels are a, b"),
    ("a,1,2\nb,2,3\n", "expected the name of a kernel and its price a line, such as rbf,0.5, got 'a,1,2'"),
    ("a,1\nb,dear\n", "got 'b,dear'"),
]


@pytest.mark.parametrize(
    ("read", "text", "words"),
    [*((read_constraints, *case) for case in NO_CONSTRAINTS), *((read_prices, *case) for case in NO_PRICES)],
)
def test_constraints_and_prices_that_are_none(tmp_path, read, text, words):
    path = tmp_path / ("prices.csv" if read is read_prices else "rules.toml")
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        read(str(path) if read is read_prices else path, ("a", "b"))


# --- tables ----------------------------------------------------------------------------------------------------------
def test_weights_of_many_classes_are_told_by_their_mean_and_the_largest():
    coords = {"kernel": list(NAMES), "class": np.arange(3, 13)}
    weights = xr.DataArray(np.random.default_rng(0).random((4, 10)), dims=("kernel", "class"), coords=coords)
    table = weights_table(weights, 4)
    titles = ["share, mean of 10 classes", "standard deviation", "smallest", "largest", "class of the largest", "wins"]
    assert [column.heading for column in table.shown] == ["kernel", *titles]
    shares = (weights / weights.sum("kernel")).values
    shares = shares[np.argsort(-shares.mean(axis=1))]
    for k, (row, (_, mean, _, _, largest, label, wins)) in enumerate(
        zip(shares, table.cells(table.frame), strict=True)
    ):
        assert (mean.text, largest.text) == (f"{row.mean():#.3g}", f"{row.max():#.3g}")
        assert label.text == str(3 + row.argmax())
        assert wins.text == str(np.count_nonzero(shares.argmax(axis=0) == k))


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


def test_numbers_of_groups():
    for text, value in (("3", 3), ("a=1, b=2", {"a": 1, "b": 2}), ("a=b=4,c=1", {"a=b": 4, "c": 1})):
        assert parse_counts(text) == value
    for text in ("", "0", "1.5", "2,3", "a=1,b", "a=0", "a=1,a=2", "a=x"):
        with pytest.raises(InputError, match="--groups"):
            parse_counts(text)


def test_groups_of_kernels_are_patterns_or_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("groups.csv").write_text("kernel,group\nrbf_1,image\nrbf_2,image\ntext,rest\n")
    Path("odd.csv").write_text("rbf_1\n")
    names = ["rbf_1", "rbf_2", "text"]
    for text in ("image=rbf_*,rest=text", "groups.csv"):
        assert WeightRules(read_kernel_groups(text, names)).weights(2.0, names).groups == ((0, 1), (2,))
    for text, words in (("image=", "neither"), ("odd.csv", "expected the name of a kernel")):
        with pytest.raises(InputError, match=words):
            read_kernel_groups(text, ["rbf_1"])
