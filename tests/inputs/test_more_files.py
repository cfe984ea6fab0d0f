"""Compressed text, condensed distances, and files that are refused with a recipe."""

from __future__ import annotations

import gzip

import numpy as np
import pandas as pd
import pytest
from helpers.references import psd
from scipy.spatial.distance import pdist, squareform

import dmkl
from dmkl.errors import InputError
from dmkl.inputs import as_features, open_files

NAMES = [f"s{i}" for i in range(7)]
K = pd.DataFrame(psd(1, 7)[0], NAMES, NAMES)
X = pd.DataFrame(np.random.default_rng(0).normal(size=(7, 3)), NAMES, ["a", "b", "c"])
KINDS = pd.DataFrame({"kind": list("aabbccc"), "age": np.arange(7)}, pd.Index(NAMES, name="sample"))


# --- compressed text --------------------------------------------------------------------------------------------------


def test_compressed_features_and_labels(tmp_path):
    X.to_csv(tmp_path / "X.TSV.GZ", sep="\t", compression="gzip")
    KINDS[["kind"]].iloc[::-1].to_csv(tmp_path / "labels.csv.gz", compression="gzip")
    features = as_features(tmp_path)
    assert list(features.blocks) == ["X"]
    assert features.blocks["X"].columns == ("a", "b", "c")
    np.testing.assert_array_equal(features.blocks["X"].read(slice(1, 6)), X[1:6])
    assert list(features.labels.labels) == list("aabbccc")


def test_a_compressed_file_that_is_cut_short(tmp_path):
    (tmp_path / "K.csv.gz").write_bytes(gzip.compress(K.to_csv().encode())[:-40])
    (tmp_path / "text.csv.gz").write_bytes(b"1,2\n3,4\n")
    for name in ("K.csv.gz", "text.csv.gz"):
        for read in (open_files, as_features):
            with pytest.raises(InputError, match=f"{name} is not a whole gzip file"):
                read(tmp_path / name)


# --- condensed distances ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["file", "memory"])
def test_condensed_distances(form, tmp_path):
    distances = pdist(X, "sqeuclidean")
    np.save(tmp_path / "d.npy", distances)
    given = tmp_path / "d.npy" if form == "file" else {"d": distances}
    block = as_features(given).blocks["d"]
    for rows in (slice(0, 7), slice(2, 5), slice(3, 3)):
        np.testing.assert_array_equal(block.read(rows), squareform(distances)[rows])
    made = dmkl.build(None, given, [{"function": "distance", "gamma": 0.5}], samples=NAMES)
    np.testing.assert_allclose(np.asarray(made)[0], np.exp(-0.5 * squareform(distances)), rtol=1e-12)
    with pytest.raises(InputError, match=r"no tables of features, but d; .*distance takes distances"):
        dmkl.build(None, given, [{"function": "rbf"}])


def test_condensed_distances_are_no_kernels(tmp_path):
    np.save(tmp_path / "d.npy", pdist(X))
    with pytest.raises(InputError, match=r"distances of the pairs of 7 samples, .* --function dist"):
        open_files(tmp_path / "d.npy")
    np.save(tmp_path / "three.npy", np.ones((3, 1770)))
    source, _ = open_files(tmp_path / "three.npy")
    assert "3 × 1770: taken as a rectangular kernel. If its rows are distances of the pairs of 60" in source.notes[0]
    with pytest.raises(InputError, match=r"shape \(20,\), expected two dimensions"):
        as_features({"d": np.ones(20)})


@pytest.mark.parametrize("name", ["K.rds", "K.RData"])
def test_files_of_r_are_refused_with_a_recipe(name, tmp_path):
    (tmp_path / name).touch()
    with pytest.raises(InputError, match=r"Files of R are not read, .* write.csv\(K, gzfile\(\"K.csv.gz\"\)\)"):
        open_files(tmp_path / name)
