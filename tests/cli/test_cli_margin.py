"""`dmkl fit` and `dmkl search` of support vector machines: options, files of prices and constraints, tables."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from rich.console import Console

import dmkl
from dmkl.cli.learners import learners
from dmkl.cli.parsing import parse_counts, read_constraints, read_kernel_groups, read_prices
from dmkl.cli.tables import weights_table
from dmkl.errors import InputError
from dmkl.estimators.checks import WeightRules

NAMES = ("clear", "fair", "poor", "noise")


@pytest.fixture(scope="module")
def prices(tmp_path_factory):
    path = tmp_path_factory.mktemp("prices") / "prices.csv"
    path.write_text("kernel,price\npoor,0.5\nclear,1\nnoise,2e3\nfair,1\n")
    return path


@pytest.fixture(scope="module")
def rules(tmp_path_factory):
    path = tmp_path_factory.mktemp("rules") / "rules.toml"
    path.write_text(
        "[[constraint]]  # fair weighs at least twice as much as clear\n"
        "weights = { fair = 1, clear = -2 }\nleast = 0\n\n"
        "[[constraint]]\nmost = 0.1\n[constraint.weights]\npoor = 1.0\n"
    )
    return path


def train(store):
    K = dmkl.open(store)
    rows = K.split(0).train
    return K[rows, rows]


def rendered(table, width=80):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text()


# --- dmkl fit --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("multiclass", ["ovr", "ovo"])
def test_a_machine_for_every_class_or_pair(json_of, output_of, tmp_path, store, multiclass):
    path = tmp_path / "model"
    out = output_of("fit", store, path, "--model", "mksvm", "--p", "4/3", "--C", 4, "--multiclass", multiclass)
    assert "Trained on 30 samples (the training part of split 0). The gap is proven" in out
    model = dmkl.load(path)
    expected = dmkl.MKSVM(4 / 3, 4.0, multiclass=multiclass).fit(train(store))
    assert model.get_params() == expected.get_params()
    np.testing.assert_allclose(model.objective_, expected.objective_, rtol=2e-3)
    lines = out.splitlines()
    labels = ["apple", "pear", "plum"] if multiclass == "ovr" else ["apple or pear", "apple or plum", "pear or plum"]
    assert all(label in lines[0] for label in labels)
    for name in NAMES:
        shown = next(line for line in lines if line.startswith(name))
        assert all(f"{weight:.4f}" in shown for weight in model.weights_.sel(kernel=name).values)
    assert "solver" not in out
    K = dmkl.open(store)
    rows, _, test = K.split(0)
    assert json_of("predict", path, store, "--split", 0)["accuracy"] == model.score(K[test, rows])


def test_prices_and_constraints(json_of, tmp_path, store, prices, rules):
    given = ["--sigma", prices, "--constraints", rules, "--steps", "multiplicative", "-C", 10]
    printed = json_of("fit", store, tmp_path / "model", "--model", "gmkl", *given)
    assert printed["model"] == "GMKL"
    expected = {"sigma": [1, 1, 0.5, 2e3], "A": [[-2, 1, 0, 0], [0, 0, -1, 0]], "b": [0, -0.1], "tol": 1e-3}
    assert expected.items() <= printed["parameters"].items()
    assert printed["parameters"]["steps"] == ["multiplicative"]
    assert printed["solver"] is None
    assert len(printed["gap"]) == 3
    assert max(printed["gap"]) <= 1e-3
    weights = dmkl.load(tmp_path / "model").weights_.to_pandas()
    assert printed["weights"] == weights.T.to_dict()
    assert (weights.loc["fair"] >= 2 * weights.loc["clear"] - 1e-8).all()
    assert (weights.loc["poor"] <= 0.1 + 1e-8).all()
    assert (weights.loc["noise"] < 1e-3).all()
    other = json_of("fit", store, tmp_path / "other", "--model", "gmkl", "--sigma", 0.5, "--tol", 0.1)
    assert other["parameters"]["sigma"] == 0.5


def test_the_form_that_help_shows_is_read(output_of, tmp_path):
    lines = [line.strip() for line in output_of("fit", "--model", "gmkl", "--help").splitlines()]
    assert "[[constraint]]" not in output_of("fit", "--help")
    path = tmp_path / "rules.toml"
    path.write_text("\n".join(lines[lines.index("[[constraint]]") : lines.index("most = 0.1") + 1]))
    A, b = read_constraints(path, ("rbf", "noise", "chi2"))
    np.testing.assert_array_equal(A, [[1, 0, -2], [0, -1, 0]])
    np.testing.assert_array_equal(b, [0, -0.1])


@pytest.mark.parametrize(
    ("model", "option", "others"),
    [
        (
            "mksvm",
            "--lam",
            "easy-mkl or gsmkl or mkfda or mkridge or ncuts or product or single-best or spectral-learning or uniform",
        ),
        ("gmkl", "--groups", "gsmkl"),
        ("mksvm", "--solver", "mkfda or mkridge or product"),
        ("mksvm", "--sigma", "gmkl or mkfda or mkridge"),
        ("mksvm", "--constraints", "gmkl"),
        ("mksvm", "--examples", "ncuts"),
        ("mkfda", "--C", "gmkl or gsmkl or localized-mkl or lpboost or mksvm or ncuts or spectral-learning"),
        ("mkfda", "--multiclass", "gmkl or mksvm or ncuts or spectral-learning"),
        ("ncuts", "--p", "mkfda or mkridge or mksvm"),
        ("product", "--kernel-groups", "mkfda"),
    ],
)
def test_options_of_other_models_are_refused(error_of, tmp_path, store, rules, model, option, others):
    value = {"--solver": "cg", "--constraints": rules, "--multiclass": "ovo", "--kernel-groups": "a=*"}.get(option, 2)
    arguments = [store, tmp_path / "out", "--model", model, option, value]
    words = f"{option} is for --model {others}"
    assert words in error_of("fit", *arguments)
    if option in ("--p", "--lam", "--C"):
        words = f"'{option[2:]}' is no parameter of {learners()[model].name}"
    if option != "--groups":  # a search uses --groups for groups of samples
        assert words in error_of("search", *arguments)
    assert not (tmp_path / "out").exists()


def test_values_that_cannot_be_read(error_of, tmp_path, store):
    for option, value, words in (
        ("--sigma", "dear", "--sigma takes a number or a file of kernel,price, got 'dear'"),
        ("--constraints", tmp_path / "none.toml", "cannot be read"),
    ):
        assert words in error_of("fit", store, tmp_path / "out", "--model", "gmkl", option, value)


@pytest.mark.filterwarnings("default")
def test_an_open_gap_is_told(notes_of, tmp_path, store):
    arguments = ["--model", "mksvm", "--C", 64, "--tol", "1e-9", "--max-iter", 1]
    err = notes_of("fit", store, tmp_path / "model", *arguments)
    assert "warning: MKSVM ended with a relative gap of" in err
    assert dmkl.load(tmp_path / "model").gap_.max() > 1e-9


def test_normalized_cuts(json_of, output_of, tmp_path, store):
    given = ["--model", "ncuts", "--examples", 3, "--C", 4, "--multiclass", "ovo", "--sharing", "joint"]
    assert "Weights: proven optimal to the tolerance." in output_of("fit", store, tmp_path / "model", *given)
    model = dmkl.load(tmp_path / "model")
    expected = dmkl.NCuts(3, C=4.0, multiclass="ovo", sharing="joint").fit(train(store))
    assert model.get_params() == expected.get_params()
    np.testing.assert_allclose(model.weights_, expected.weights_, atol=1e-9)
    for own in ([], ["--sharing", "own"]):
        square = ["--model", "ncuts", "--loss", "square", "--lam", 0.1, *own, "--overwrite"]
        printed = json_of("fit", store, tmp_path / "model", *square)
        assert printed["parameters"]["lam"] == 0.1
        assert isinstance(printed["weights"]["clear"], dict) == bool(own)
        assert len(printed["gap"]) == 3
        assert printed["passes"] == 2
    arguments = ["--C", "0.1,10", "--cv", 2, "--split", 0, "--grid", "sharing=mean,own", "--baselines", "none"]
    output_of("search", store, tmp_path / "result", "--model", "ncuts", *arguments)
    assert set(dmkl.load(tmp_path / "result").best_params_) == {"C", "sharing"}


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["kernel,price\n2,2\n1,1\n", "1,1\n2,2\n", "\ufeffkernel, price\r\n1, 1e0\r\n\r\n2, 2\r\n", '"1",1\n"2",2'],
)
def test_tables_of_prices(tmp_path, text):
    """Kernel names may be numbers."""
    path = tmp_path / "prices.csv"
    path.write_text(text, encoding="utf-8")
    assert read_prices(str(path), ("1", "2")) == [1.0, 2.0]


NO_CONSTRAINTS = [
    ("", "constraint: not a list of tables"),
    ("[[constraint]]\nleast = 1\n", "constraint 1 has no weights"),
    ("[[constraint]]\nweights = {}\nleast = 1\n", "constraint 1 has no weights"),
    ("[[constraint]]\nweights = {a = 1}\n", "constraint 1 has neither of least and most"),
    ("[[constraint]]\nweights = {a = 1}\nleast = 0\nmost = 1\n", "constraint 1 has both of least and most"),
    ("[[constraint]]\nweights = {a = 'one'}\nleast = 0\n", "constraint 1 a: 'one' is no finite number"),
    ("[[constraint]]\nweights = {a = inf}\nleast = 0\n", "constraint 1 a: inf is no finite number"),
    ("[[constraint]]\nweights = {a = 1}\nat_least = 0\n", "constraint 1 has weights, at_least"),
    ("[[constraint]]\nweights = {a = 1}\nleast = 0\n[[constraint]]\nweights = {c = 1}\nleast = 0\n",
     "constraint 2, names kernel 'c', which this set does not have; its kernels are a, b"),
    ("[[row]]\n", "constraint: not a list of tables"),
    ("[[constraint]\n", "is not valid TOML"),
]  # fmt: skip
NO_PRICES = [
    ("a,1\n", "has no price for kernel 'b'"),
    ("a,1\nb,2\na,3\n", "has two prices for kernel 'a'"),
    ("a,1\nb,2\nc,3\n", "names kernel 'c', which this set does not have; its kernels are a, b"),
    ("", "has no price for kernel 'a'"),
    ("a,1,2\nb,2,3\n", "expected the name of a kernel and its price a line, such as rbf,0.5, got 'a,1,2'"),
    ("1\n2\n", "expected the name of a kernel and its price a line, such as rbf,0.5, got '1'"),
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


@pytest.mark.parametrize(("dim", "several"), [("class", "classes"), ("pair", "pairs"), ("task", "tasks")])
def test_weights_of_many_are_told_by_their_mean_and_the_largest(dim, several):
    labels = np.arange(3, 13)
    weights = xr.DataArray(
        np.random.default_rng(0).random((4, 10)), dims=("kernel", dim), coords={"kernel": list(NAMES), dim: labels}
    )
    header, *lines = rendered(weights_table(weights)).splitlines()
    shares = weights / weights.sum("kernel")
    assert header.split("  ")[0] == "kernel"
    assert f"share, mean of 10 {several}" in header
    assert "largest" in header
    assert header.split()[-1] == dim
    for name, line in zip(NAMES, lines, strict=True):
        row = shares.sel(kernel=name)
        assert line.startswith(name)
        assert f"{row.mean():.4f}" in line
        assert f"{row.max():.4f}" in line
        assert line.split()[-1] == str(labels[row.values.argmax()])
    few = rendered(weights_table(weights[:, :4]))
    assert "mean" not in few
    assert few.splitlines()[0].split() == ["kernel", "3", "4", "5", "6"]
    assert max(map(len, few.splitlines())) <= 80
    grouped = weights.expand_dims(group=7).transpose("kernel", ...)
    assert f"mean of 7 groups × 10 {several}" in rendered(weights_table(grouped), width=120)


# --- dmkl search -----------------------------------------------------------------------------------------------------


def test_weights_of_groups(json_of, output_of, tmp_path, store):
    command = ["fit", store, tmp_path / "model", "--model", "gsmkl", "--groups", 2, "--C", 2, "--max-iter", 3]
    printed, model = json_of(*command), dmkl.load(tmp_path / "model")
    weight = model.weights_.sel({"kernel": NAMES[0], "group": 0, "class": "apple"})
    assert printed["weights"][NAMES[0]]["apple, group 0"] == weight
    assert "none" in output_of(*command, "--overwrite")
    grid = ["--grid", "n_groups=1,2", "--C", 1, "--tol", 0.1, "--max-iter", 2, "--cv", 2, "--baselines", "none"]
    text = output_of("search", store, tmp_path / "result", "--model", "gsmkl", *grid)
    result = dmkl.load(tmp_path / "result")
    assert set(result.parameters) == {"n_groups", "C"}
    counts = result.best_params_["n_groups"]
    assert result.best_.n_groups == counts
    numbers = ",".join(f"{label}={count}" for label, count in counts.items())
    assert numbers in text
    # The same groups by number, with all other options of a learner of groups.
    rest = ["--weighting", "softmax", "--no-regroup", "--restarts", 2, "--max-iter", 2]
    output_of("fit", store, tmp_path / "again", "--model", "gsmkl", "--groups", numbers, *rest)
    model = dmkl.load(tmp_path / "again")
    assert (model.n_groups, model.weighting, model.regroup, model.restarts) == (counts, "softmax", False, 2)


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
