"""Codes for missing values among numbers are refused with the way out, not taken for classes or categories."""

from __future__ import annotations

import re
import warnings

import dask
import numpy as np
import pandas as pd
import pytest

import dmkl
from dmkl.errors import FeatureWarning, InputError
from dmkl.inputs import as_features

M = 40
NAMES = [f"s{k}" for k in range(M)]
X = np.random.default_rng(0).normal(size=(M, 5))
K = dmkl.create(None, {"x": X @ X.T})


def trait(code):
    values = np.random.default_rng(1).normal(50.0, 9.0, M).round(2).astype(str).astype(object)
    values[[3, 17]] = code
    return values


@pytest.mark.parametrize("code", ["-", ".", "?", "n.a.", "missing", "<LOD", "#DIV/0!"])
def test_a_code_in_a_trait_is_named(code, tmp_path):
    with pytest.raises(InputError, match="labels are numbers, but for"):
        dmkl.MKFDA().fit(K, trait(code))
    file = tmp_path / "trait.csv"
    pd.DataFrame({"sample": NAMES, "yield": trait(code)}).to_csv(file, index=False)
    with pytest.raises(InputError, match="labels are numbers, but for"):
        dmkl.create(None, {"x": np.eye(M)}, samples=NAMES, labels=f"{file}:yield")
    covariates = pd.DataFrame({"age": trait(code)}, index=NAMES)
    with pytest.raises(InputError, match="covariate 'age' has numbers, but for"):
        dmkl.residualize(covariates)


def test_a_code_that_is_given_stands_for_a_missing_value():
    columns = np.array([np.arange(M) % 2, np.arange(M) % 3 > 0]).T.astype(int).astype(object)
    columns[3, 0] = "-"
    with pytest.raises(InputError, match="--unknown '-'"):
        dmkl.MKFDA().fit(K, columns)
    expected = columns.copy()
    expected[3, 0] = np.nan
    model, other = dmkl.MKFDA().fit(K, columns, unknown="-"), dmkl.MKFDA().fit(K, expected.astype(float))
    np.testing.assert_array_equal(model.weights_, other.weights_)


def test_names_of_classes_are_no_codes():
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


# --- features, groups and numbers ------------------------------------------------------------------------------------
def numbers(code, n=4):
    """Values between 20 and 80, of which some are a code."""
    values = np.random.default_rng(2).uniform(20, 80, M).round(2)
    values[:n] = code
    return values


def test_a_code_in_features_is_named_and_stands_for_a_missing_value(tmp_path, succeed, error_of):
    file, counts = tmp_path / "x.csv", (np.arange(M) ** 2 % 17).astype(str).astype(object)
    counts[[3, 17]] = "?"
    frame = pd.DataFrame({"a": counts, "b": np.arange(M)}, index=NAMES)
    frame.to_csv(file, index_label="sample")
    build = ["build", tmp_path / "k.zarr", file, "--function", "linear", "--transform", "impute"]
    assert "column 'a' of" in (message := error_of(*build))
    assert "numbers, but for '?': if that stands for a missing value, say so (--unknown '?')" in message
    succeed(*build, "--unknown", "?")
    given = frame.replace("?", np.nan).astype(float)
    expected = dmkl.build(None, given, {"function": "linear", "transform": "impute"})
    np.testing.assert_allclose(np.asarray(dmkl.open(tmp_path / "k.zarr")), np.asarray(expected))


@pytest.mark.parametrize("end", ["csv", "npz", "parquet"])
def test_a_number_stands_for_missing_values_in_every_format(end, tmp_path):
    frame = pd.DataFrame({"a": numbers(-9999.0), "b": numbers(1.0)}, index=NAMES)
    file = tmp_path / f"x.{end}"
    if end == "csv":
        frame.to_csv(file, index_label="sample")
    elif end == "parquet":
        frame.to_parquet(file)
    else:
        np.savez(file, x=frame.to_numpy(), samples=np.array(NAMES))
    with dask.config.set({"dmkl.unknown": ["-9999"]}):
        (block,) = as_features(file).blocks.values()
        values = block.read(slice(0, M))
    np.testing.assert_array_equal(values, frame.replace(-9999, np.nan).to_numpy())


def test_a_code_in_groups_is_named(tmp_path, succeed, error_of):
    file = tmp_path / "g.csv"
    groups = (np.arange(M) % 8).astype(str).astype(object)
    groups[3] = "?"
    pd.DataFrame({"sample": NAMES, "group": groups}).to_csv(file, index=False)
    dmkl.create(tmp_path / "k.zarr", {"x": X @ X.T}, samples=NAMES, labels=np.arange(M) % 2)
    search = ["search", tmp_path / "k.zarr", tmp_path / "r", "--groups", file, "--cv", "GroupKFold(4)"]
    assert f"the groups in {file} are numbers, but for '?'" in error_of(*search)
    assert f"{file} lacks the groups of 1 sample; give each one" in error_of(*search, "--unknown", "?")


@pytest.mark.parametrize("code", [-9999, -999, -9, 99999])
def test_a_number_far_outside_that_repeats_has_a_note(code, tmp_path, notes_of, error_of):
    note = (
        f"{code} occurs 4 times, far from all other values; if it stands for a missing value, say so (--unknown {code})"
    )
    values = numbers(code) if code != -9 else np.r_[[-9.0] * 4, np.arange(M - 4) % 2]
    with pytest.warns(FeatureWarning, match=re.escape(f"the covariate 'age': {note}")):
        dmkl.residualize(pd.DataFrame({"age": values}, index=NAMES))
    if code < 0:
        features = pd.DataFrame({"age": values, "dose": 1.0 + np.arange(M)}, index=NAMES)
        with pytest.warns(FeatureWarning, match=re.escape(f"features 'X', column 'age': {note}")):
            dmkl.build(None, features, {"function": "linear"})
    np.save(tmp_path / "k.npy", np.eye(M))
    pd.Series(values).to_csv(tmp_path / "y.csv", index=False, header=False)
    assert note in notes_of("import", tmp_path / "k.zarr", tmp_path / "k.npy", "--labels", tmp_path / "y.csv")
    labels = ["--labels", tmp_path / "y.csv", "--unknown", code]
    message = error_of("import", tmp_path / "l.zarr", tmp_path / "k.npy", *labels)
    assert "the labels of 4 of the 40 samples are missing" in message


@pytest.mark.parametrize(
    "values", [np.arange(M) % 3, np.r_[[10] * 4, np.arange(M - 4) % 2], np.r_[[1e6], np.arange(M - 1)]]
)
def test_classes_and_single_numbers_are_no_codes(values):
    with warnings.catch_warnings(action="error"):
        dmkl.residualize(pd.DataFrame({"x": values}, index=NAMES))
