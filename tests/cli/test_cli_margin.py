"""`dmkl fit` and `dmkl search` of support vector machines: options, files of prices and constraints, tables."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from rich.console import Console

import dmkl
from dmkl.cli.learners import learners
from dmkl.cli.parsing import parse_counts, parse_grid, read_constraints, read_kernel_groups, read_prices
from dmkl.cli.tables import summary_table, weights_table
from dmkl.errors import InputError
from dmkl.estimators.checks import WeightRules

pytest_plugins = ["helpers.command_line"]

NAMES = ("clear", "fair", "poor", "noise")
THREADS = ("--cluster", "threads")
MODELS = [name for name, learner in learners().items() if hasattr(dmkl, learner.name) and name != "mkridge"]


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
def test_a_machine_for_every_class_or_pair(run, tmp_path, store, multiclass):
    path = tmp_path / "model"
    arguments = ["--model", "mksvm", "--p", "4/3", "--C", 4, "--multiclass", multiclass, *THREADS]
    status, out, err = run("fit", store, path, *arguments)
    assert status == 0, err
    assert "Trained on 30 samples (the training part of split 0). The gap is proven" in out
    found = dmkl.load(path)
    expected = dmkl.MKSVM(4 / 3, 4.0, multiclass=multiclass).fit(train(store))
    assert found.get_params() == expected.get_params()
    np.testing.assert_allclose(found.objective_, expected.objective_, rtol=2e-3)
    lines = out.splitlines()
    labels = ["apple", "pear", "plum"] if multiclass == "ovr" else ["apple or pear", "apple or plum", "pear or plum"]
    assert all(label in lines[0] for label in labels)
    for name in NAMES:
        shown = next(line for line in lines if line.startswith(name))
        assert all(f"{weight:.4f}" in shown for weight in found.weights_.sel(kernel=name).values)
    assert "solver" not in out
    K = dmkl.open(store)
    rows, _, test = K.split(0)
    told = json.loads(run("predict", path, store, "--split", 0, "--json", *THREADS)[1])
    assert told["accuracy"] == found.score(K[test, rows])


def test_prices_and_constraints(run, tmp_path, store, prices, rules):
    path = tmp_path / "model"
    arguments = [
        "--model",
        "gmkl",
        "-C",
        10,
        "--sigma",
        prices,
        "--constraints",
        rules,
        "--steps",
        "multiplicative",
        *THREADS,
    ]
    status, out, err = run("fit", store, path, *arguments, "--json")
    assert status == 0, err
    told, found = json.loads(out), dmkl.load(path)
    assert told["model"] == "GMKL"
    assert told["parameters"]["sigma"] == [1, 1, 0.5, 2e3]
    assert told["parameters"]["A"] == [[-2, 1, 0, 0], [0, 0, -1, 0]]
    assert told["parameters"]["b"] == [0, -0.1]
    assert told["parameters"]["steps"] == ["multiplicative"]
    assert told["parameters"]["tol"] == 1e-3
    assert told["solver"] is None
    assert len(told["gap"]) == 3
    assert max(told["gap"]) <= 1e-3
    for name in NAMES:
        for label in ("apple", "pear", "plum"):
            assert told["weights"][name][label] == found.weights_.sel({"kernel": name, "class": label}).item()
    weights = {name: np.array(list(told["weights"][name].values())) for name in NAMES}
    assert (weights["fair"] >= 2 * weights["clear"] - 1e-8).all()
    assert (weights["poor"] <= 0.1 + 1e-8).all()
    assert (weights["noise"] < 1e-3).all()
    status, out, _ = run("fit", store, path, "--model", "gmkl", "--sigma", 0.5, "--overwrite", "--json", *THREADS)
    assert json.loads(out)["parameters"]["sigma"] == 0.5


@pytest.mark.parametrize("model", MODELS)
def test_what_is_not_given_is_the_models_own(run, tmp_path, store, model):
    status, out, err = run("fit", store, tmp_path / "model", "--model", model, "--json", *THREADS)
    assert status == 0, err
    own = learners()[model].make().get_params()
    own["steps"] = list(own["steps"])
    assert json.loads(out)["parameters"] == own
    given = ["--steps", "none", "--tol", "0.01", "--max-iter", "7", "--overwrite"]
    status, out, err = run("fit", store, tmp_path / "model", "--model", model, "--json", *given, *THREADS)
    assert status == 0, err
    expected = own | {"steps": [], "tol": 0.01, "max_iter": 7}
    assert json.loads(out)["parameters"] == expected


def test_the_form_that_help_shows_is_read(run, tmp_path):
    help_of_fit = run("fit", "--model", "gmkl", "--help")[1]
    lines = [line.strip() for line in help_of_fit.splitlines()]
    first = lines.index("[[constraint]]")
    path = tmp_path / "rules.toml"
    path.write_text("\n".join(lines[first : lines.index("most = 0.1") + 1]))
    A, b = read_constraints(path, ("rbf", "noise", "chi2"))
    np.testing.assert_array_equal(A, [[1, 0, -2], [0, -1, 0]])
    np.testing.assert_array_equal(b, [0, -0.1])


def test_options_of_other_models_are_refused(run, tmp_path, store, prices, rules):
    for model, given, told in (
        (
            "mksvm",
            ["--lam", 1],
            "--lam is for --model gsmkl or mkfda or mkridge or ncuts or product or single-best or uniform, and mksvm",
        ),
        ("gmkl", ["--groups", 2], "--groups is for --model gsmkl, and gmkl has no"),
        ("mksvm", ["--solver", "cg"], "--solver is for --model mkfda or mkridge or product"),
        ("mksvm", ["--sigma", 1], "--sigma is for --model gmkl or mkfda or mkridge, and mksvm"),
        ("mksvm", ["--constraints", rules], "--constraints is for --model gmkl, and mksvm"),
        ("mkfda", ["--C", 1], "--C is for --model gmkl or gsmkl or mksvm or ncuts, and mkfda"),
        ("mkfda", ["--multiclass", "ovo"], "--multiclass is for --model gmkl or mksvm or ncuts, and mkfda"),
        ("gmkl", ["--p", 2], "--p is for --model mkfda or mkridge or mksvm, and gmkl"),
        ("uniform", ["--p", 2], "--p is for --model mkfda or mkridge or mksvm, and uniform"),
        ("product", ["--kernel-groups", "a=*"], "--kernel-groups is for --model mkfda"),
    ):
        for command in ("fit", "search"):
            if command == "search" and given[0] == "--groups":  # there, groups of samples
                continue
            if command == "search" and given[0] in ("--p", "--lam", "--C"):
                told = f"'{given[0][2:]}' is no parameter of {learners()[model].name}"
            status, out, err = run(command, store, tmp_path / "out", "--model", model, *given, *THREADS)
            assert (status, out) == (1, ""), given
            assert told in err, given
    assert run("search", store, tmp_path / "out", "--model", "mksvm", "--solver", "cg")[0] == 1
    assert not (tmp_path / "out").exists()


def test_values_that_no_machine_takes(run, tmp_path, store):
    impossible = tmp_path / "impossible.toml"
    impossible.write_text(
        "[[constraint]]\nweights = {clear = 1}\nleast = 2\n[[constraint]]\nweights = {clear = 1}\nmost = 1\n"
    )
    for given, told in (
        (["--model", "mksvm", "--C", "-1"], "C must be positive"),
        (["--model", "mksvm", "--p", "0.5"], "p must be at least 1"),
        (["--model", "gmkl", "--sigma", "dear"], "--sigma takes a number or a file of kernel,price, got 'dear'"),
        (["--model", "gmkl", "--sigma", 0], "without a price"),
        (["--model", "gmkl", "--constraints", impossible], "row 0 (times 1), row 1 (times 1)"),
        (["--model", "gmkl", "--constraints", tmp_path / "none.toml"], "cannot be read"),
    ):
        status, out, err = run("fit", store, tmp_path / "out", *given, *THREADS)
        assert (status, out) == (1, ""), given
        assert told in err, given
        assert "Traceback" not in err
    assert run("fit", store, tmp_path / "out", "--model", "mksvm", "--multiclass", "all")[0] == 2


@pytest.mark.filterwarnings("default")
def test_an_open_gap_is_told(run, tmp_path, store):
    arguments = ["--model", "mksvm", "--C", 64, "--tol", "1e-9", "--max-iter", 1, *THREADS]
    status, _, err = run("fit", store, tmp_path / "model", *arguments)
    assert status == 0
    assert "warning: MKSVM ended with a relative gap of" in err
    assert dmkl.load(tmp_path / "model").gap_.max() > 1e-9


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["kernel,price\nb,2\na,1\n", "a,1\nb,2\n", "\ufeffkernel, price\r\na, 1e0\r\n\r\nb, 2\r\n", '"a",1\n"b",2'],
)
def test_tables_of_prices(tmp_path, text):
    path = tmp_path / "prices.csv"
    path.write_text(text, encoding="utf-8")
    assert read_prices(str(path), ("a", "b")) == [1.0, 2.0]


def test_names_of_kernels_that_are_numbers(tmp_path):
    path = tmp_path / "prices.csv"
    path.write_text("1,0.5\n2,0.25\n")
    assert read_prices(str(path), ("2", "1")) == [0.25, 0.5]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a,1\n", "has no price for kernel 'b'"),
        ("a,1\nb,2\na,3\n", "has two prices for kernel 'a'"),
        ("a,1\nb,2\nc,3\n", "names kernel 'c', which this set does not have; its kernels are a, b"),
        ("", "has no price for kernel 'a'"),
        ("a,1,2\nb,2,3\n", "expected the name of a kernel and its price a line, such as rbf,0.5, got 'a,1,2'"),
        ("1\n2\n", "expected the name of a kernel and its price a line, such as rbf,0.5, got '1'"),
        ("a,1\nb,dear\n", "got 'b,dear'"),
    ],
)
def test_tables_that_are_none(tmp_path, text, told):
    path = tmp_path / "prices.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=told):
        read_prices(str(path), ("a", "b"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
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
    ],
)  # fmt: skip
def test_constraints_that_are_none(tmp_path, text, told):
    path = tmp_path / "rules.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=told):
        read_constraints(path, ("a", "b"))


# --- tables ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dim", "several"), [("class", "classes"), ("pair", "pairs"), ("task", "tasks")])
def test_weights_of_many_are_told_by_their_mean_and_the_largest(dim, several):
    labels = np.arange(3, 13)
    weights = xr.DataArray(
        np.random.default_rng(0).random((4, 10)), dims=("kernel", dim), coords={"kernel": list(NAMES), dim: labels}
    )
    header, *lines = rendered(weights_table({"model": weights})).splitlines()
    assert header.split("  ")[0] == "kernel"
    assert f"mean of 10 {several}" in header
    assert "largest" in header
    assert header.split()[-1] == dim
    for name, line in zip(NAMES, lines, strict=True):
        row = weights.sel(kernel=name)
        assert line.startswith(name)
        assert f"{row.mean():.4f}" in line
        assert f"{row.max():.4f}" in line
        assert line.split()[-1] == str(labels[row.values.argmax()])
    few = rendered(weights_table({"model": weights[:, :4]}))
    assert "mean" not in few
    assert few.splitlines()[0].split() == ["kernel", "3", "4", "5", "6"]
    assert max(map(len, few.splitlines())) <= 80


def test_weights_of_groups_are_a_mean_of_groups_and_classes():
    weights = xr.DataArray(
        np.random.default_rng(0).random((4, 7, 5)),
        dims=("kernel", "group", "class"),
        coords={"kernel": list(NAMES), "group": np.arange(7), "class": list("abcde")},
    )
    header, *lines = rendered(weights_table({"model": weights}), width=120).splitlines()
    assert "mean of 7 groups × 5 classes" in header
    for line, row in zip(lines, weights, strict=True):
        assert f"{row.mean():.4f}" in line


def test_models_with_and_without_a_solver(store):
    K = train(store)
    models = {"machine": dmkl.MKSVM().fit(K), "fisher": dmkl.Uniform().fit(K)}
    both = rendered(summary_table(models, {"machine": 1.0, "fisher": 2.0}))
    assert "solver" in both
    assert "direct" in both
    assert "solver" not in rendered(summary_table({"machine": models["machine"]}, {"machine": 1.0}))


# --- dmkl search -----------------------------------------------------------------------------------------------------


def test_a_search_over_p_and_C(run, tmp_path, store):
    out = tmp_path / "found"
    arguments = ["--model", "mksvm", "--p", "1.5,2", "--C", "0.25,1,4", "--cv", 2, "--multiclass", "ovo", *THREADS]
    status, text, err = run("search", store, out, *arguments)
    assert status == 0, err
    found = dmkl.load(out)
    assert found.grid == {"p": [1.5, 2.0], "C": [0.25, 1.0, 4.0]}
    assert found.best_.multiclass == "ovo"
    assert found.best_.steps == ("center", "multiplicative")
    expected = dmkl.search(dmkl.MKSVM(multiclass="ovo"), train(store), None, found.grid, 2)
    np.testing.assert_allclose(found.scores["score"], expected.scores["score"])
    assert text.splitlines()[0].startswith("Search of MKSVM: 2 p × 3 C, 2 folds, on 30 samples")
    for name in NAMES:
        assert f"{found.best_.weights_.sel(kernel=name).values[0]:.4f}" in text
    assert not (tmp_path / "found.partial").exists()
    fewer = ["--model", "mksvm", "--p", 2, "--C", 1, "--cv", 2, "--multiclass", "ovo", *THREADS]
    told = json.loads(run("search", store, out, *fewer, "--overwrite", "--json")[1])
    assert told["grid"] == {"p": [2.0], "C": [1.0]}
    assert told["model"]["weights"]["clear"].keys() == {"apple or pear", "apple or plum", "pear or plum"}
    told = json.loads(run("predict", out, store, "--split", 0, "--json", *THREADS)[1])
    assert told["samples"] == 10


def test_a_search_of_prices(run, tmp_path, store, prices, rules):
    out = tmp_path / "found"
    given = ["--sigma", prices, "--constraints", rules, "--C", "1,10", "--cv", 2, *THREADS]
    status, _, err = run("search", store, out, "--model", "gmkl", *given, "--plot", tmp_path / "pictures")
    assert status == 0, err
    found = dmkl.load(out)
    assert found.grid == {"C": [1.0, 10.0]}
    np.testing.assert_array_equal(found.best_.A, [[-2, 1, 0, 0], [0, 0, -1, 0]])
    assert (tmp_path / "pictures" / "scores.png").exists()


def test_grids_of_C():
    assert parse_grid(["C=0.25,4,1e2"]) == {"C": [0.25, 4.0, 100.0]}
    with pytest.raises(InputError, match=r"--C takes positive numbers such as 0\.25,4, got 'many'"):
        parse_grid(["C=1,many"])


def test_weights_of_groups(run, tmp_path, store):
    options = ["--model", "gsmkl", "--groups", 2, "--C", 2, "--max-iter", 3, "--json", *THREADS]
    status, out, err = run("fit", store, tmp_path / "model", *options)
    assert status == 0, err
    told, found = json.loads(out), dmkl.load(tmp_path / "model")
    assert told["weights"][NAMES[0]]["apple, group 0"] == found.weights_.sel(
        kernel=NAMES[0], group=0, **{"class": "apple"}
    )
    status, out, err = run("fit", store, tmp_path / "model", *options[:-3], "--overwrite", *THREADS)
    assert status == 0, err
    assert "none" in out
    grid = ["--grid", "n_groups=1,2", "--C", "1", "--tol", 0.1, "--cv", 2]
    status, out, err = run("search", store, tmp_path / "found", "--model", "gsmkl", *grid, *THREADS)
    assert status == 0, err
    found = dmkl.load(tmp_path / "found")
    assert set(found.parameters) == {"n_groups", "C"}
    counts = found.best_params_["n_groups"]
    assert found.best_.n_groups == counts
    told = ",".join(f"{label}={count}" for label, count in counts.items())
    assert told in out
    # The same numbers by hand, and everything else that a learner of groups has.
    rest = ["--weighting", "softmax", "--no-regroup", "--restarts", 2, "--max-iter", 2]
    status, out, err = run("fit", store, tmp_path / "again", "--model", "gsmkl", "--groups", told, *rest, *THREADS)
    assert status == 0, err
    model = dmkl.load(tmp_path / "again")
    assert (model.n_groups, model.weighting, model.regroup, model.restarts) == (counts, "softmax", False, 2)
    made = model.group_class_.values.tolist()
    assert {label: made.count(label) for label in counts} == counts


@pytest.mark.parametrize(
    ("text", "value"), [("3", 3), ("a=1, b=2", {"a": 1, "b": 2}), ("a=b=4,c=1", {"a=b": 4, "c": 1})]
)
def test_numbers_of_groups(text, value):
    assert parse_counts(text) == value


@pytest.mark.parametrize("text", ["", "0", "1.5", "2,3", "a=1,b", "a=0", "a=1,a=2", "a=x"])
def test_numbers_of_groups_that_are_none(text):
    with pytest.raises(InputError, match="--groups"):
        parse_counts(text)


@pytest.mark.parametrize("text", ["image=rbf_*,rest=text", "groups.csv"])
def test_groups_of_kernels_are_patterns_or_a_file(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    Path("groups.csv").write_text("kernel,group\nrbf_1,image\nrbf_2,image\ntext,rest\n")
    names = ["rbf_1", "rbf_2", "text"]
    assert WeightRules(read_kernel_groups(text, names)).weights(2.0, names).groups == ((0, 1), (2,))


@pytest.mark.parametrize(("text", "told"), [("image=", "neither"), ("odd.csv", "expected the name of a kernel")])
def test_other_groups_are_refused(tmp_path, monkeypatch, text, told):
    monkeypatch.chdir(tmp_path)
    Path("odd.csv").write_text("rbf_1\n")
    with pytest.raises(InputError, match=told):
        read_kernel_groups(text, ["rbf_1"])
