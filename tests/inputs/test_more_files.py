"""Compressed text, Parquet, condensed distances, and files that are refused with a recipe."""

from __future__ import annotations

import gzip

import numpy as np
import pandas as pd
import pytest
from helpers.references import psd
from scipy.spatial.distance import pdist, squareform

import dmkl
from dmkl.errors import InputError
from dmkl.inputs import as_features, open_files, read_file
from dmkl.store.ingest import ingest

NAMES = [f"s{i}" for i in range(7)]
K = pd.DataFrame(psd(1, 7)[0], NAMES, NAMES)
X = pd.DataFrame(np.random.default_rng(0).normal(size=(7, 3)), NAMES, ["a", "b", "c"])
KINDS = pd.DataFrame({"kind": list("aabbccc"), "age": np.arange(7)}, pd.Index(NAMES, name="sample"))


def imported(path, tmp_path, **more):
    source, labels = open_files(path, **more)
    return dmkl.open(ingest(tmp_path / "out.zarr", source, labels, tile=3)), source


# --- compressed text --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("suffix", "separator"), [(".csv.gz", ","), (".tsv.gz", "\t"), (".txt.gz", " ")])
def test_compressed_kernels(suffix, separator, tmp_path):
    path = tmp_path / f"first{suffix}"
    K.to_csv(path, sep=separator)
    made, _ = imported(path, tmp_path)
    assert made.names == ("first",)
    assert list(made.samples) == NAMES
    np.testing.assert_array_equal(np.asarray(made)[0], K)


@pytest.mark.parametrize(("suffix", "separator"), [(".csv.gz", ","), (".TSV.GZ", "\t")])
def test_compressed_features_and_labels(suffix, separator, tmp_path):
    path, labels = tmp_path / f"X{suffix}", tmp_path / f"labels{suffix}"
    X.to_csv(path, sep=separator, compression="gzip")
    KINDS[["kind"]].iloc[::-1].to_csv(labels, sep=separator, compression="gzip")
    found = as_features(tmp_path)
    assert list(found.blocks) == ["X"]
    assert found.blocks["X"].columns == ("a", "b", "c")
    np.testing.assert_array_equal(found.blocks["X"].read(slice(1, 6)), X[1:6])
    assert list(found.labels.labels) == list("aabbccc")


def test_a_compressed_file_that_is_cut_short(tmp_path):
    (tmp_path / "K.csv.gz").write_bytes(gzip.compress(K.to_csv().encode())[:-40])
    (tmp_path / "text.csv.gz").write_bytes(b"1,2\n3,4\n")
    for name in ("K.csv.gz", "text.csv.gz"):
        for read in (open_files, as_features):
            with pytest.raises(InputError, match=f"{name} is not a whole gzip file"):
                read(tmp_path / name)


# --- Parquet ----------------------------------------------------------------------------------------------------------


def test_parquet_kernels(tmp_path):
    K.to_parquet(tmp_path / "K.parquet")
    moved = K.iloc[::-1, ::-1].rename_axis("sample").reset_index()
    moved.to_parquet(tmp_path / "moved.parquet", index=False)
    made, _ = imported([tmp_path / "K.parquet", tmp_path / "moved.parquet"], tmp_path)
    assert made.names == ("K", "moved")
    assert list(made.samples) == NAMES
    np.testing.assert_array_equal(np.asarray(made), [K, K])


def test_parquet_labels(tmp_path):
    KINDS.to_parquet(tmp_path / "y.parquet")
    KINDS.reset_index().to_parquet(tmp_path / "z.parquet")
    for name in ("y", "z"):
        table = read_file(tmp_path / f"{name}.parquet:kind")
        assert (table.row_names, table.values.tolist()) == (tuple(NAMES), list("aabbccc"))
        with pytest.raises(InputError, match=r"has no column 'kin'; it has .*'kind', 'age'"):
            read_file(tmp_path / f"{name}.parquet:kin")
    KINDS[["age"]].to_parquet(tmp_path / "age.parquet")
    assert read_file(tmp_path / "age.parquet").values.tolist() == list(range(7))


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
