"""Specifications of kernels: their meaning, their names, and the message for each mistake."""

import fnmatch
import itertools
import json
import math
import string

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dmkl.errors import InputError
from dmkl.features.functions import FUNCTIONS
from dmkl.features.specs import Recipe, plan, read_specs
from dmkl.inputs.features import FeatureMatrix


def shaped(shape, columns=None):
    """A table of this shape that nobody reads."""
    return FeatureMatrix("", shape, np.dtype(float), columns, None, None)


BLOCKS = {
    "fou": shaped((10, 4), ("a", "b", "c", "d")),
    "pix": shaped((10, 21)),
    "dsift1": shaped((10, 6)),
    "dsift2": shaped((10, 6)),
    "D": shaped((10, 10)),
}
TABLES = [name for name in BLOCKS if name != "D"]
GENES = shaped((10, 6), ("TP53", "MYC", "KRAS", "BRAF", "MYC", "EGFR"))  # MYC was measured twice


def planned(*specs, blocks=BLOCKS):
    kernels, notes = plan(list(specs), blocks)
    assert notes == []
    return kernels


def names(*specs, blocks=BLOCKS):
    return [kernel.name for kernel in planned(*specs, blocks=blocks)]


def refused(*specs, blocks=BLOCKS):
    with pytest.raises(InputError) as caught:
        plan(list(specs), blocks)
    return str(caught.value)


# --- planned kernels -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("spec", "parameters"),
    [
        ({"function": "linear"}, {}),
        ({"function": "polynomial"}, {"degree": 3, "gamma": 1 / 4, "coef0": 1.0}),
        ({"function": "polynomial", "columns": ["b", "d"]}, {"degree": 3, "gamma": 1 / 2, "coef0": 1.0}),
        ({"function": "rbf"}, {"bandwidth": 1.0}),
        ({"function": "chi2", "bandwidth": None, "gamma": 3}, {"gamma": 3.0}),
        ({"function": "pyramid", "levels": [1, 3]}, {"widths": (1, 3), "weights": (0.5, 0.5)}),
        ({"function": "proximity", "scales": [1, 3], "weights": [2, 0.5]}, {"widths": (1, 3), "weights": (2.0, 0.5)}),
    ],
)
def test_parameters_are_whole(spec, parameters):
    (kernel,) = planned({"feature": "fou", **spec})
    assert (kernel.function, kernel.feature) == (spec["function"], "fou")
    assert kernel.parameters == parameters


def test_arrays_and_scalars_of_numpy_and_pandas_are_plain_numbers():
    for grid in (np.array([0.5, 2]), [np.float32(0.5), np.int64(2)], pd.Series([0.5, 2])):
        kernels = planned({"function": "rbf", "feature": "fou", "bandwidth": grid})
        assert [kernel.parameters for kernel in kernels] == [{"bandwidth": 0.5}, {"bandwidth": 2.0}]
        json.dumps([kernel.parameters for kernel in kernels])
    (kernel,) = planned({"function": "linear", "feature": "fou", "columns": np.array([3, 0])})
    assert kernel.columns == (3, 0)
    assert all(type(position) is int for position in kernel.columns)


# --- features --------------------------------------------------------------------------------------------------------
def test_a_name_with_signs_of_patterns_is_itself_first():
    blocks = {"x[1]": shaped((3, 2)), "x1": shaped((3, 2)), "X1": shaped((3, 2))}
    assert [kernel.feature for kernel in planned({"function": "linear", "feature": "x[1]"}, blocks=blocks)] == ["x[1]"]
    assert [kernel.feature for kernel in planned({"function": "linear", "feature": "x?"}, blocks=blocks)] == ["x1"]


def test_distances_are_computed_from_square_features():
    assert names({"function": "distance"}) == ["D-distance"]


@given(
    blocks=st.lists(st.text("abx12", min_size=1, max_size=4), min_size=1, max_size=6, unique=True),
    patterns=st.lists(st.text("abx12*?", min_size=1, max_size=3), min_size=1, max_size=3),
)
def test_patterns_are_those_of_the_shell(blocks, patterns):
    expected = list(dict.fromkeys(itertools.chain.from_iterable(fnmatch.filter(blocks, p) for p in patterns)))
    infos = {name: shaped((2, 1)) for name in blocks}
    if all(fnmatch.filter(blocks, pattern) for pattern in patterns):
        kernels = planned({"function": "linear", "feature": patterns}, blocks=infos)
        assert [kernel.feature for kernel in kernels] == expected
    else:
        assert "no feature is named" in refused({"function": "linear", "feature": patterns}, blocks=infos)


# --- grids -----------------------------------------------------------------------------------------------------------
PARAMETERS = {
    "degree": st.integers(1, 9),
    "gamma": st.sampled_from([0.125, 0.5, 1, 2.5, 7]),
    "coef0": st.sampled_from([0, 0.25, 1, 3]),
}


@st.composite
def polynomials(draw):
    keys = draw(st.permutations(list(PARAMETERS)).flatmap(lambda k: st.integers(0, 3).map(lambda n: k[:n])))
    return {key: draw(st.lists(PARAMETERS[key], min_size=1, max_size=3, unique=True)) for key in keys}


@given(
    grid=polynomials(),
    features=st.lists(st.sampled_from(TABLES), min_size=1, max_size=3, unique=True),
    subsets=st.dictionaries(
        st.text(string.ascii_letters, min_size=1), st.lists(st.integers(0, 3), min_size=1, unique=True), max_size=3
    ),
)
def test_plans_are_products_with_names_of_their_own(grid, features, subsets):
    functions = ["polynomial"] if grid else ["linear", "polynomial"]
    spec = {**grid, "function": functions, "feature": features, "columns": subsets or None}
    expected = [
        (
            "-".join(
                [feature, function, *([] if subset is None else [subset])]
                + [f"{key}{value:g}" for key, value in zip(grid, values, strict=True) if len(grid[key]) > 1]
            ),
            (function, feature, None if subset is None else tuple(subsets[subset]), values),
        )
        for function in functions
        for feature in features
        for subset in (subsets or [None])
        for values in itertools.product(*grid.values())
    ]
    kernels = planned(spec)
    computed = [(k.name, (k.function, k.feature, k.columns, tuple(k.parameters[key] for key in grid))) for k in kernels]
    assert computed == expected
    assert len({kernel.name for kernel in kernels}) == len(kernels)


@given(seed=st.integers(0, 2**40), copies=st.integers(1, 20), gammas=st.sampled_from([[0.5], [1, 2]]))
def test_copies_count_their_seeds_up(seed, copies, gammas):
    kernels = planned({"function": "random_rbf", "gamma": gammas, "seed": seed, "copies": copies})
    expected = [{"dimensions": 16, "gamma": gamma, "seed": seed + k} for gamma in gammas for k in range(copies)]
    assert [kernel.parameters for kernel in kernels] == expected


# --- columns ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("columns", "name", "positions"),
    [
        (["c", "a"], "fou-linear-c+a", (2, 0)),
        ([3, 0], "fou-linear-3+0", (3, 0)),
        (["a", 3], "fou-linear-a+3", (0, 3)),
        (["b"], "fou-linear-b", (1,)),
        (["a", "b", "c", "d"], "fou-linear-4columns", (0, 1, 2, 3)),
    ],
)
def test_a_list_of_columns_is_one_kernel(columns, name, positions):
    assert planned({"function": "linear", "feature": "fou", "columns": columns}) == [
        Recipe(name, "linear", "fou", positions, {})
    ]


SETS = {"growth": ["MYC", "EGFR", "NRAS"], "guard": ["TP53"], "other": ["BRCA1", "BRCA2"], "mixed": [5, "KRAS", "EGFR"]}


def test_a_mapping_is_one_kernel_for_each_set(tmp_path):
    kernels, notes = plan([{"function": "linear", "columns": SETS, "min_columns": 1}], {"expr": GENES})
    assert [(kernel.name, kernel.columns) for kernel in kernels] == [
        ("expr-linear-growth", (1, 4, 5)),
        ("expr-linear-guard", (0,)),
        ("expr-linear-mixed", (5, 2)),
    ]
    assert notes == [
        "spec 1 of 1 (linear), feature 'expr': ignored 3 of the 8 members of the column sets, which are no columns: "
        "NRAS, BRCA1, BRCA2",
        "spec 1 of 1 (linear), feature 'expr': left out 1 of the 4 column sets, with fewer columns than "
        "min_columns=1: other",
    ]
    # Notes list the first few, and appear once for several functions.
    sets = {"all": [f"G{i}" for i in range(100)] + ["MYC"]}
    kernels, notes = plan([{"function": ["linear", "rbf"], "columns": sets}], {"expr": GENES})
    assert (len(kernels), len(notes)) == (2, 1)
    assert notes[0].endswith("the column sets, which are no columns: G0, G1, G2, G3, G4, … (100 in all)")
    # Sets may lack columns in a feature, and may be empty.
    blocks = {"expr": GENES, "fou": BLOCKS["fou"]}
    kernels, _ = plan([{"function": "linear", "columns": {"x": ["MYC"], "y": ["a"]}}], blocks)
    assert [kernel.name for kernel in kernels] == ["expr-linear-x", "fou-linear-y"]
    (tmp_path / "sets.gmt").write_text("empty\t-\t\nfull\t-\tMYC\n")
    spec = {"function": "linear", "columns": tmp_path / "sets.gmt"}
    # A set without a column in any feature is refused by name, unless the caller allows to leave it out.
    message = r"1 of the 2 column sets have no column of the features: empty\..*min_columns=1"
    with pytest.raises(InputError, match=message):
        plan([spec], {"expr": GENES})


FILES = {
    "sets.json": '{"growth": ["MYC", "EGFR", 2], "guard": ["TP53"]}',
    "sets.toml": 'growth = ["MYC", "EGFR", 2]\nguard = ["TP53"]\n',
    "sets.gmt": "growth\thttp://of.it\tMYC\tEGFR\tKRAS\t\n\nguard\t\tTP53\r\n",
    "SETS.GMT": "\ufeffgrowth\t-\tMYC\tEGFR\tKRAS\nguard\t-\tTP53",
}


@pytest.mark.parametrize("file", FILES)
def test_sets_from_files(tmp_path, file):
    (tmp_path / file).write_text(FILES[file], encoding="utf-8")
    for path in (tmp_path / file, str(tmp_path / file)):
        kernels = planned({"function": "linear", "columns": path}, blocks={"expr": GENES})
        assert [(kernel.name, kernel.columns) for kernel in kernels] == [
            ("expr-linear-growth", (1, 4, 5, 2)),
            ("expr-linear-guard", (0,)),
        ]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("a.json", "[1, 2]", "must map names to lists of columns, got [1, 2]"),
        ("a.json", "{", "a.json is not valid JSON: Expecting"),
        ("a.gmt", "one\t-\tMYC\nMYC TP53\n", "a.gmt is not valid GMT: line 2 must be name, description and members"),
        ("a.gmt", "one\t-\tMYC\n\none\t-\tTP53\n", "got the second set named 'one'"),
        ("a.gmt", b"\xff\xfe", "a.gmt is not valid GMT: 'utf-8'"),
        ("a.bim", "1 rs1 0 5 A\n", "a.bim is not valid BIM: line 1 must be chromosome, id, cM, position and both"),
    ],
)
def test_bad_files_of_sets(tmp_path, file, content, message):
    (tmp_path / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    error = refused({"function": "linear", "columns": tmp_path / file}, blocks={"expr": GENES})
    assert error.startswith("spec 1 of 1 (linear): ")
    assert message in error


# --- names -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"bandwidth": [0.1, 1, 1e-9]}, ["fou-rbf-bandwidth0.1", "fou-rbf-bandwidth1", "fou-rbf-bandwidth1e-09"]),
        ({"gamma": [1 / 3, 2 / 3]}, ["fou-rbf-gamma0.333333", "fou-rbf-gamma0.666667"]),
        ({"function": "pyramid", "levels": [1, 3], "weights": [1, 2]}, ["fou-pyramid"]),
        ({"function": "linear", "min_columns": 5}, ["fou-linear"]),
        ({"name": "{function} of {feature}, {bandwidth}"}, ["rbf of fou, 1"]),
        ({"gamma": [1, 2.5], "name": "{gamma:.2f}{{}}"}, ["1.00{}", "2.50{}"]),
        ({"function": "linear", "columns": {"x": ["a"], "y": ["b"]}, "name": "lin/{columns}"}, ["lin/x", "lin/y"]),
        ({"gamma": [1, 1 + 2**-20], "name": "{gamma:.17g}"}, ["1", f"{1 + 2**-20:.17g}"]),
    ],
)
def test_names_by_default_and_from_templates(spec, expected):
    assert names({"function": "rbf", "feature": "fou", **spec}) == expected


@pytest.mark.parametrize("name", ["{bandwith}", "{", "{}", "{gamma}", "{feature.x}", "{bandwidth:q}"])
def test_templates_that_cannot_be_filled_in(name):
    message = refused({"function": "rbf", "feature": "fou", "name": name})
    assert f"the name {name!r} cannot be filled in" in message
    assert message.endswith("it may hold {feature}, {function}, {bandwidth}, and a literal brace is written twice")


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        (
            [{"function": "linear", "feature": "fou"}, {"function": "rbf"}, {"function": "linear"}],
            "spec 1 of 3 (linear) and spec 3 of 3 (linear) both make a kernel named 'fou-linear'; give one of them ",
        ),
        (
            [{"function": "rbf", "name": "x"}],
            "spec 1 of 1 (x) makes two kernels named 'x'; tell them apart by name=, a template that holds {feature}",
        ),
        (
            [{"function": "rbf", "feature": "fou", "gamma": [1, 1.0]}],
            "spec 1 of 1 (rbf) makes the kernel 'fou-rbf-gamma1' twice; a list of values holds each once",
        ),
    ],
)
def test_names_are_unique_over_all_specs(specs, message):
    assert refused(*specs).startswith(message)


# --- mistakes --------------------------------------------------------------------------------------------------------
FEATURE = "feature must be the name of a feature, a pattern such as 'dsift*', or a list of them, got "
GAMMA = "gamma must be a number > 0 or a list of them, got "
KNOWN = ", ".join(FUNCTIONS)
FOU = {"function": "linear", "feature": "fou"}


def wrong(function, key, message, *values):
    """Specifications with each of these values, which the message shows."""
    return [({"function": function, key: value}, f"{message}{value!r}") for value in values]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        *wrong("rbf", "gamma", GAMMA, "3", True, 0, math.nan, math.inf, []),
        ({"function": "rbf", "gamma": [1, -1, 2]}, GAMMA + "-1"),
        *wrong("rbf", "bandwidth", "bandwidth must be a number > 0 or a list of them, got ", -0.5),
        *wrong("polynomial", "degree", "degree must be an integer ≥ 1 or a list of them, got ", 0, 2.0, False),
        *wrong("polynomial", "coef0", "(a negative one makes kernels that are not positive semidefinite), got ", -1),
        *wrong("random_rbf", "seed", "seed must be an integer ≥ 0 or a list of them, got ", -1),
        *wrong("random_rbf", "copies", "copies must be an integer from 1 to 1,000,000, got ", 0, [1, 2]),
        ({"function": "random_rbf", "copies": 2, "seed": [1, 2]}, "copies=2 counts up from one seed, got seed=[1, 2]"),
        ({"function": "rbf", "gamma": 1, "bandwidth": [1, 2]}, "gamma and bandwidth exclude each other, got gamma=[1"),
        *wrong("pyramid", "levels", "coarse to fine, got ", "3", 0, []),
        ({"function": "pyramid"}, "pyramid needs levels: a number of levels from 1 to 20, or the list of the levels'"),
        *wrong("proximity", "scales", "the list of the scales' numbers of columns, got ", 2.5),
        ({"function": "proximity", "scales": 2, "weights": [1, -1]}, "one for each level or scale, got -1"),
        ({"function": "pyramid", "levels": 2, "weights": [0, 0]}, "must hold at least one number > 0, got [0.0, 0.0]"),
        (
            {"function": "proximity", "scales": [1, 3], "weights": [1]},
            "weights must hold one number for each of the 2 scales, got 1: [1.0]",
        ),
        *wrong("rbf", "columns", " file that holds such a mapping, got ", 3, [], {}),
        ({"function": "rbf", "columns": {"x": [-1]}}, " file that holds such a mapping, got -1"),
        ({"function": "rbf", "columns": "a"}, "file, got 'a'; write a single column as a list too"),
        *wrong("rbf", "min_columns", "min_columns must be an integer ≥ 1, got ", 0),
        *wrong("rbf", "feature", FEATURE, 3, []),
        *wrong("rbf", "name", "name must be a name or a template of names, got ", "", ["a"]),
        (
            {"function": "distance", "columns": [1]},
            "distance takes no 'columns'; its keys are function, name, feature, gamma, bandwidth",
        ),
        ({"function": "linear", 3: 4}, "takes no 3; its keys are function, name, feature, columns, min_columns"),
        ({"function": 3}, f"there is no function 3; the functions are {KNOWN}"),
        # What does not fit the features.
        (
            FOU | {"feature": "foo"},
            ": no feature is named 'foo' (did you mean fou?); the features are: fou, pix, dsift1, ",
        ),
        (FOU | {"function": "distance"}, ": distance needs a square matrix of distances (samples × samples), "),
        (
            FOU | {"columns": ["aa", "a", "zz"]},
            ", feature 'fou': 2 of the 3 columns are not there: aa, zz (did you mean a?); the columns are a, b, c, d",
        ),
        (
            FOU | {"columns": ["a", 0, 2]},
            ", feature 'fou': each column may be listed once, got the columns at 0 several times",
        ),
        (
            FOU | {"columns": {"x": ["a", 4]}},
            ", feature 'fou': positions of columns go from 0 to 3, got 4; a column's name is written as a string",
        ),
        (
            FOU | {"feature": ["pix"], "columns": {"x": ["a"], "y": [0]}},
            ", feature 'pix': columns are chosen by name (a), but the feature has no column names; give positions, ",
        ),
        (
            FOU | {"columns": {"x": ["z"]}, "min_columns": 1},
            ": every set of columns was left out, so there is no kernel to make: a set needs at least 1 (min_columns) ",
        ),
        (
            FOU | {"function": "pyramid", "feature": "pix", "levels": 2},
            ", feature 'pix': levels=2 needs a multiple of 5 columns, got 21; list the number of columns of each part",
        ),
        (FOU | {"function": "pyramid", "levels": [1, 4]}, ": levels=[1, 4] must add up to the 4 columns, got 5"),
    ],
)
def test_every_problem_says_where_what_and_what_is_allowed(spec, message):
    error = refused(FOU | {"name": "first"}, spec)
    assert error.startswith("spec 2 of 2 (")
    assert error.count("spec ") == 1
    assert message in error


def test_without_a_function():
    message = f"spec 1 of 1 (no function): function is missing; it is one of {KNOWN}, or a list of these"
    assert refused({}) == refused({"function": []}) == refused({"function": None}) == message


def test_all_problems_are_told_at_once():
    message = refused(
        {"function": "rbf", "gama": 1, "bandwidth": "wide"},
        {"function": "linear"},
        {"function": ["linear", "rbf", "rdf"], "gamma": 1},
    )
    starts = [
        "spec 1 of 3 (rbf): bandwidth must be a number > 0",
        "spec 1 of 3 (rbf): rbf takes no 'gama' (did you mean gamma?)",
        "spec 3 of 3 (linear, rbf, rdf): linear takes no 'gamma'; its keys are function, name, feature, columns, ",
        f"spec 3 of 3 (linear, rbf, rdf): there is no function 'rdf' (did you mean rbf?); the functions are {KNOWN}",
    ]
    for line, start in zip(message.split("\n"), starts, strict=True):
        assert line.startswith(start)


# --- reading ---------------------------------------------------------------------------------------------------------
def test_specs_as_list_mapping_or_file(tmp_path):
    first, other = {"function": "rbf", "feature": "fou", "bandwidth": [0.5, 1]}, {"function": "random_rbf", "copies": 2}
    (tmp_path / "kernels.toml").write_text(
        '[[kernel]]\nfunction = "rbf"\nfeature = "fou"\nbandwidth = [0.5, 1]\n'
        '[[kernel]]\nfunction = "random_rbf"\ncopies = 2\n'
    )
    assert read_specs(first) == [first]
    for given_as in ([first, other], (first, other), tmp_path / "kernels.toml", str(tmp_path / "kernels.toml")):
        assert read_specs(given_as) == [first, other]
        assert plan(given_as, BLOCKS) == plan([first, other], BLOCKS)
    read_specs(other)[0]["function"] = "linear"
    assert other == {"function": "random_rbf", "copies": 2}


def test_paths_in_a_file_are_relative_to_it(tmp_path, monkeypatch):
    folder = tmp_path / "study"
    (folder / "sets").mkdir(parents=True)
    (folder / "sets" / "hallmark.gmt").write_text("growth\t-\tMYC\n")
    (folder / "kernels.toml").write_text(
        '[[kernel]]\nfunction = "linear"\ncolumns = "sets/hallmark.gmt"\n'
        '[[kernel]]\nfunction = "linear"\ncolumns = ["KRAS"]\n'
        '[[kernel]]\nfunction = "linear"\n[kernel.columns]\nguard = ["TP53"]\n'
        f'[[kernel]]\nfunction = "cosine"\ncolumns = "{(folder / "sets" / "hallmark.gmt").as_posix()}"\n'
    )
    monkeypatch.chdir(tmp_path)
    assert names(*read_specs("study/kernels.toml"), blocks={"expr": GENES}) == [
        "expr-linear-growth",
        "expr-linear-KRAS",
        "expr-linear-guard",
        "expr-cosine-growth",
    ]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("a.json", "{}", "a file of kernel specifications ends in .toml, got "),
        ("a.toml", None, "a.toml cannot be read: No such file or directory"),
        ("a.toml", "[[kernel]", "a.toml is not valid TOML: "),
        ("a.toml", "", "must hold one table [[kernel]] for each specification and nothing else, got an empty file"),
        ("a.toml", "[kernel]\nfunction = 'rbf'\n", "and nothing else, got kernel = {'function': 'rbf'}"),
        ("a.toml", "kernel = [1]\n", "spec 1 of 1 must be a mapping"),
        ("a.toml", "seed = 1\n[[kernel]]\nfunction = 'rbf'\n", "and nothing else, got seed, kernel = "),
    ],
)
def test_bad_files_of_specs(tmp_path, file, content, message):
    if content is not None:
        (tmp_path / file).write_text(content)
    with pytest.raises(InputError) as caught:
        read_specs(tmp_path / file)
    assert message in str(caught.value)


def test_what_is_no_specification():
    with pytest.raises(InputError, match=r"a list of at least one, or the path of a \.toml file, got "):
        read_specs(None)
    with pytest.raises(InputError, match=r"spec 2 of 2 must be a mapping such as .*, got 'rbf'"):
        read_specs([{"function": "rbf"}, "rbf"])
