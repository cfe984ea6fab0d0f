"""Features matched by name: tables, labels and splits in any order make the same kernels."""

import numpy as np
import pandas as pd
import pytest
from helpers.conformance import problems, tree

import dmkl
from dmkl.errors import InputError

M = 17
SAMPLES = [f"s{i}" for i in range(M)]
RNG = np.random.default_rng(0)
A, B = (pd.DataFrame(RNG.random((M, n)), SAMPLES) for n in (4, 3))
D = pd.DataFrame(np.linalg.norm(A.to_numpy()[:, None] - A.to_numpy(), axis=2), SAMPLES, SAMPLES)
Y = pd.Series(list("ab" * 9)[:M], SAMPLES)
SPLITS = pd.DataFrame({"first": [0, 0, 0, 1, 2] * 3 + [0, 0]}, SAMPLES)
MIXED = [np.random.default_rng(seed).permutation(SAMPLES) for seed in range(1, 5)]
SPECS = [
    {"function": "rbf", "feature": ["a", "b"], "bandwidth": 1.0},
    {"function": "distance", "feature": "d", "bandwidth": 1.0},
]


def test_shuffled_tables_are_the_sorted_ones(tmp_path):
    dmkl.build(tmp_path / "a.zarr", {"a": A, "b": B, "d": D}, SPECS, labels=Y, splits=SPLITS, tile=6)
    mixed = {"a": A, "b": B.loc[MIXED[0]], "d": D.loc[MIXED[1], MIXED[2]]}
    more = {"labels": Y[MIXED[3]], "splits": SPLITS.loc[MIXED[0]], "tile": 6}
    dmkl.build(tmp_path / "b.zarr", mixed, SPECS, **more)
    mixed["a"] = A.loc[MIXED[3]]
    dmkl.build(tmp_path / "c.zarr", mixed, SPECS, samples=SAMPLES, **more)
    assert tree(tmp_path / "a.zarr") == tree(tmp_path / "b.zarr") == tree(tmp_path / "c.zarr")


def test_distances_of_new_samples_are_matched_with_the_training_samples():
    new = pd.DataFrame(RNG.random((3, M)), ["x", "y", "z"], SAMPLES)
    K = dmkl.build(None, {"d": D}, SPECS[1:])
    expected = np.asarray(dmkl.build_cross(K, {"d": new}))
    np.testing.assert_array_equal(dmkl.build_cross(K, {"d": new[MIXED[0]]}), expected)


def test_samples_of_tables_are_joined(tmp_path):
    tables = {"a": A.iloc[:14], "b": B.loc[MIXED[0]].drop(["s0", "s1"])}
    more = {"labels": Y, "splits": SPLITS, "tile": 6}
    with pytest.raises(InputError, match=r"features 'b' lacks 2 \('s0', 's1'\) and has 3 more"):
        dmkl.build(tmp_path / "no.zarr", tables, SPECS[:1], labels=Y.iloc[:14])
    inner = dmkl.build(None, tables, SPECS[:1], join="inner", **more)
    assert list(inner.samples) == SAMPLES[2:14]
    np.testing.assert_array_equal(inner.labels, Y[2:14])
    outer = dmkl.build(tmp_path / "outer.zarr", tables, SPECS[:1], join="outer", samples=SAMPLES, **more)
    assert not problems(tmp_path / "outer.zarr")
    assert [made["n_missing"] for made in outer.provenance] == [3, 2]
    by_rows = {name: table.reindex(SAMPLES) for name, table in tables.items()}
    dmkl.build(tmp_path / "rows.zarr", by_rows, SPECS[:1], missing="zero", **more)
    assert tree(tmp_path / "outer.zarr") == tree(tmp_path / "rows.zarr")
    # Models read the filled tables, and new samples are joined in the same way.
    scores = dmkl.Uniform().fit(outer).decision_function(features=tables, join="outer")
    assert scores.sizes["sample"] == M
