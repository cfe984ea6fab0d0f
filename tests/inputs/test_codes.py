"""Codes for missing values among numbers are refused with the way out, not taken for classes or categories."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import dmkl
from dmkl.errors import InputError

M = 40
CODES = ["-", ".", "?", "n.a.", "missing", "<LOD", "#DIV/0!"]


@pytest.fixture(scope="module")
def K():
    X = np.random.default_rng(0).normal(size=(M, 5))
    return dmkl.create(None, {"x": X @ X.T})


NAMES = [f"s{k}" for k in range(M)]


def trait(code):
    values = np.random.default_rng(1).normal(50.0, 9.0, M).round(2).astype(str).astype(object)
    values[[3, 17]] = code
    return values


@pytest.mark.parametrize("code", CODES)
def test_a_code_in_a_trait_is_named(K, code, tmp_path):
    with pytest.raises(InputError, match="labels are numbers, but for"):
        dmkl.MKFDA().fit(K, trait(code))
    file = tmp_path / "trait.csv"
    pd.DataFrame({"sample": NAMES, "yield": trait(code)}).to_csv(file, index=False)
    with pytest.raises(InputError, match="labels are numbers, but for"):
        dmkl.create(None, {"x": np.eye(M)}, samples=NAMES, labels=f"{file}:yield")
    covariates = pd.DataFrame({"age": trait(code)}, index=NAMES)
    with pytest.raises(InputError, match="covariate 'age' has numbers, but for"):
        dmkl.residualize(covariates)


def test_a_code_that_is_given_stands_for_a_missing_value(K):
    columns = np.array([np.arange(M) % 2, np.arange(M) % 3 > 0]).T.astype(int).astype(object)
    columns[3, 0] = "-"
    with pytest.raises(InputError, match="--unknown '-'"):
        dmkl.MKFDA().fit(K, columns)
    expected = columns.copy()
    expected[3, 0] = np.nan
    model, other = dmkl.MKFDA().fit(K, columns, unknown="-"), dmkl.MKFDA().fit(K, expected.astype(float))
    np.testing.assert_array_equal(model.weights_, other.weights_)


def test_names_of_classes_are_no_codes(K):
    labels = np.array(["1", "2", "3"], dtype=object)[np.arange(M) % 3]
    labels[:2] = "doublet"
    assert dmkl.Uniform(lam=0.1).fit(K, labels).classes_.tolist() == ["1", "2", "3", "doublet"]
    labels[:2] = "?"
    with pytest.raises(InputError, match="labels are numbers, but for '\\?'"):
        dmkl.Uniform(lam=0.1).fit(K, labels)


def test_a_category_of_nearly_all_samples_is_refused():
    with pytest.raises(InputError, match="category of 40 levels for 40 samples"):
        dmkl.residualize(pd.DataFrame({"barcode": NAMES}, index=NAMES))
    site = np.array(["north", "south"])[np.arange(M) % 2]
    assert dmkl.residualize(pd.DataFrame({"site": site}, index=NAMES)).columns == ("site=north", "site=south")
