"""Sets combined into one: entries, names, labels and features against those of the sets, and what is refused."""

import os
import shutil
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from helpers.conformance import problems
from helpers.faults import interrupted

import dmkl
from dmkl.errors import InputError, SampleOrderWarning, StoreExistsError
from dmkl.store.writer import StoreWriter

M = 7
NAMES = [f"s{i}" for i in range(M)]
SPLITS = [[0] * 5 + [2] * 2]
LABELS = np.array(["a", "b"])[np.arange(M) % 2]
OTHER = np.random.default_rng(0).permutation(M)


def gram(seed, m=M):
    X = np.random.default_rng(seed).normal(size=(m, 3))
    return X @ X.T


@pytest.fixture
def sets(tmp_path, monkeypatch):
    """Two kernels, and one of the same samples in another order."""
    monkeypatch.chdir(tmp_path)
    dmkl.create("a.zarr", {"a": gram(1), "b": gram(2)}, samples=NAMES, labels=LABELS, splits=SPLITS, tile=3)
    dmkl.create("b.zarr", {"c": gram(3)}, samples=[NAMES[i] for i in OTHER], labels=LABELS[OTHER], tile=3)
    return "a.zarr", "b.zarr"


def links(folder):
    return os.stat(f"{folder}/gram_upper/c/0/0/0").st_nlink


def test_kernels_of_two_sets_are_matched_by_name_and_linked(sets):
    K = dmkl.combine("both.zarr", *sets)
    assert (K.names, list(K.samples), list(K.labels)) == (("a", "b", "c"), NAMES, list(LABELS))
    back = np.argsort(OTHER)
    np.testing.assert_array_equal(K, [gram(1), gram(2), gram(3)[np.ix_(back, back)]])
    np.testing.assert_array_equal(K.splits, SPLITS)
    assert (links("a.zarr"), links("both.zarr")) == (2, 2)
    assert not problems("both.zarr")
    shutil.rmtree("a.zarr")
    np.testing.assert_array_equal(np.asarray(dmkl.open("both.zarr"))[0], gram(1))
    with pytest.raises(StoreExistsError):
        dmkl.combine("both.zarr", "b.zarr")
    renamed = dmkl.combine("both.zarr", "both.zarr", dmkl.open("both.zarr").select("c"), names="pqrs", overwrite=True)
    assert renamed.names == ("p", "q", "r", "s")
    np.testing.assert_array_equal(np.asarray(renamed)[2], np.asarray(renamed)[3])


def test_an_interrupted_call_leaves_the_sets_and_resumes(sets):
    with interrupted(StoreWriter, "link_kernel", 1):
        dmkl.combine("a.zarr", *sets, overwrite=True)
    assert dmkl.open("a.zarr").names == ("a", "b")
    with patch.object(StoreWriter, "link_kernel", autospec=True, side_effect=StoreWriter.link_kernel) as linked:
        assert dmkl.combine("a.zarr", *sets, overwrite=True).names == ("a", "b", "c")
    assert [call.args[1] for call in linked.call_args_list] == [1]  # the one that was linked is not linked again
    assert not problems("a.zarr")


@pytest.mark.slow
def test_features_are_taken_over_and_factors_kept_if_all_kernels_have_features(sets):
    rng = np.random.default_rng(4)
    tables, new = ({name: rng.normal(size=(n, 2)) for name in "xy"} for n in (M, 3))
    linear = [{"function": "linear"}]
    for name in "xy":
        dmkl.build(f"{name}.zarr", {name: tables[name]}, linear, samples=NAMES, storage="factors")
    expected = [X @ X.T for X in tables.values()]
    K = dmkl.combine("xy.zarr", "x.zarr", "y.zarr")
    mixed = dmkl.combine("mixed.zarr", "x.zarr", sets[0], "y.zarr")
    for made, kernels in ((K, [0, 1]), (mixed, [0, 3])):
        np.testing.assert_allclose(np.asarray(made)[kernels], expected)
        cross = dmkl.build_cross(made.select(kernels), new)
        np.testing.assert_allclose(cross, [new[name] @ tables[name].T for name in "xy"])
        assert not problems(made.view.source.location)
    assert [record.get("storage") for record in K.provenance] == ["factors", "factors"]
    assert not any("storage" in record for record in mixed.provenance)


@pytest.mark.slow
def test_new_samples_against_training_samples_are_combined(tmp_path):
    rng, kernels = np.random.default_rng(5), {}
    for name, rows in (("a", [0, 1, 2]), ("b", [2, 0, 1])):
        kernels[name] = rng.normal(size=(3, M))
        dmkl.create(
            tmp_path / name, {name: kernels[name][rows]}, samples=[f"n{i}" for i in rows], train_samples=NAMES,
            diagonal=[np.array(rows) + 1.0],
        )  # fmt: skip
    K = dmkl.combine(tmp_path / "new", tmp_path / "a", tmp_path / "b")
    np.testing.assert_array_equal(K, [*kernels.values()])
    np.testing.assert_array_equal(K.view.source.diagonal(np.arange(2)), [[1, 2, 3]] * 2)


@pytest.mark.slow
def test_what_cannot_be_combined_is_refused(sets, tmp_path):
    A, B = map(dmkl.open, sets)
    fewer = dmkl.create("fewer.zarr", {"d": gram(6, 4)}, samples=NAMES[:4], tile=3)
    with pytest.raises(InputError, match="must have the same samples"):
        dmkl.combine("out.zarr", A, fewer)
    with pytest.raises(InputError, match="unique"):
        dmkl.combine("out.zarr", A, A)
    with pytest.raises(InputError, match="sample 's1' has"):
        dmkl.combine("out.zarr", A, dmkl.create("c.zarr", {"d": gram(6)}, samples=NAMES, labels=["a"] * M))
    for other in (A.center(), A[:3, :3], A.join(B), dmkl.create(None, {"d": gram(6)})):
        with pytest.raises(InputError, match="takes stored sets"):
            dmkl.combine("out.zarr", A, other)
    assert not os.path.exists("out.zarr")
    inner = dmkl.combine("inner.zarr", A, fewer, join="inner")
    np.testing.assert_array_equal(inner, [*np.asarray(A)[:, :4, :4], gram(6, 4)])
    unnamed = dmkl.create("unnamed.zarr", {"d": gram(7)}, tile=3)
    with pytest.warns(SampleOrderWarning):
        assert list(dmkl.combine("out.zarr", A, unnamed).samples) == NAMES


@pytest.mark.slow
def test_import_adds_kernels_to_a_set(sets, output_of, error_of, json_of):
    np.savez("more.npz", more=gram(8).astype(np.float32))
    Path("names.txt").write_text("\n".join(NAMES))
    Path("a.zarr.added").mkdir()  # of the user
    assert "3 kernels of 7" in output_of("import", "a.zarr", "more.npz", "--add", "--samples", "names.txt")
    K = dmkl.open("a.zarr")
    assert (K.names, K.dtype) == (("a", "b", "more"), np.float64)
    np.testing.assert_array_equal(np.asarray(K)[2], gram(8).astype(np.float32))
    assert "4 kernels" in output_of("combine", "a.zarr", "b.zarr", "all.zarr")
    made = [kernel["made_by"] for kernel in json_of("info", "all.zarr")["kernels"]]
    assert Path(made[2]["path"]).name == "more.npz"  # the file that it was read from, after two more sets
    assert [of.keys() for of in made] == [set(), set(), {"path", "variable"}, set()]  # others are of arrays in memory
    assert "unique" in error_of("import", "a.zarr", "more.npz", "--add", "--samples", "names.txt")
    assert sorted(os.listdir()) == ["a.zarr", "a.zarr.added", "all.zarr", "b.zarr", "more.npz", "names.txt"]
