"""Values of options as people write them: norms, numbers of groups, grids, folds, and files that name kernels."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.model_selection import LeaveOneOut, PredefinedSplit, ShuffleSplit, StratifiedKFold

from dmkl.cli.parsing import (
    parse_counts,
    parse_cv,
    parse_grid,
    parse_p,
    read_constraints,
    read_kernel_groups,
    read_prices,
)
from dmkl.errors import InputError
from dmkl.learners.checks import WeightRules

NORMS = {" 1.5 ": 1.5, "4/3": 4 / 3, "1+2^-6": 1 + 2**-6, "1 + 2**3": 9, "∞": np.inf}
COUNTS = {"3": 3, "a=1, b=2": {"a": 1, "b": 2}, "a=b=4,c=1": {"a=b": 4, "c": 1}}
GRID = {
    "p=1, 4/3,inf": [1.0, 4 / 3, np.inf],
    "lam=1e-3,2": [1e-3, 2.0],
    "steps=center+trace,none": [("center", "trace"), ()],
    "max_iter=5,10": [5, 10],
    "tol=1e-2": [1e-2],
    "b=true,False": [True, False],
    "C=1,4": [1.0, 4.0],
}


def test_texts_of_norms_counts_and_grids():
    for parse, values in ((parse_p, NORMS), (parse_counts, COUNTS)):
        assert {text: parse(text) for text in values} == values
    # Whole numbers stay whole.
    assert repr(parse_grid([*GRID])) == repr({text.partition("=")[0]: values for text, values in GRID.items()})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" StratifiedKFold( n_splits = 3 ) ", StratifiedKFold(3)),
        ("ShuffleSplit(2, test_size=0.25)", ShuffleSplit(2, test_size=0.25, random_state=0)),
        ("LeaveOneOut", LeaveOneOut()),
        ("PredefinedSplit([-1, 0, 1])", PredefinedSplit([-1, 0, 1])),
    ],
)  # fmt: skip
def test_splitters_as_text_split_like_their_own(text, expected):
    y = np.arange(12) % 3
    splitter = parse_cv(text)
    assert type(splitter) is type(expected)
    for fold, other in zip(splitter.split(y, y), expected.split(y, y), strict=True):
        np.testing.assert_array_equal(np.concatenate(fold), np.concatenate(other))


NO_VALUES = {
    parse_p: ["", "two", "-1", "0.5", "1/2", "4/0", "1e400", "nan", "1+2^x", "__import__('os')"],
    parse_counts: ["", "0", "1.5", "2,3", "a=1,b", "a=0", "a=1,a=2", "a=x"],
    parse_grid: [["p"], ["=1"], ["p="], ["p=1", "p=2"], ["p=1,,2"], ["lam=one"], ["p=0.5"], ["C=1,many"]],
    parse_cv: [
        "", "KFold(", "kfold(3)", "BaseCrossValidator()", "GridSearchCV", "train_test_split(3)", "KFold(3)(4)",
        "KFold(n_splits=int('3'))", "KFold(**{'n_splits': 3})", "KFold(*[3])", "__import__('os').system('false')",
        "(lambda: KFold(3))()", "sklearn.model_selection.KFold(3)", "KFold(3); 1", "KFold(1)", "KFold(folds=3)",
        "(" * 500 + ")" * 500,
    ],
}  # fmt: skip


@pytest.mark.parametrize(("parse", "text"), [(parse, text) for parse, texts in NO_VALUES.items() for text in texts])
def test_texts_that_are_no_values(parse, text):
    with pytest.raises(InputError, match={parse_counts: "--groups", parse_cv: "--cv"}.get(parse)):
        parse(text)


# --- files that name kernels -----------------------------------------------------------------------------------------
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
    [
        *((read_constraints, *case) for case in NO_CONSTRAINTS),
        *((read_prices, *case) for case in NO_PRICES),
        (read_kernel_groups, "rbf_1\n", "expected the name of a kernel"),
    ],
)
def test_files_that_name_no_kernels(tmp_path, read, text, words):
    path = tmp_path / ("rules.toml" if read is read_constraints else "pairs.csv")
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        read(str(path), ("a", "b"))


def test_groups_of_kernels_are_patterns_or_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("groups.csv").write_text("kernel,group\nrbf_1,image\nrbf_2,image\ntext,rest\n")
    names = ["rbf_1", "rbf_2", "text"]
    for text in ("image=rbf_*,rest=text", "groups.csv"):
        assert WeightRules(read_kernel_groups(text, names)).weights(2.0, names).groups == ((0, 1), (2,))
    with pytest.raises(InputError, match="neither"):
        read_kernel_groups("image=", names)
