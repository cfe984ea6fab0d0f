"""The format on disk: the checker finds damage, other readers open a set, old archives stay readable."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
import xarray as xr
import zarr
from helpers.conformance import STORAGE, check_store, problems, unseal
from helpers.damage import flip, swap, tile_file
from helpers.references import psd
from hypothesis import given
from hypothesis import strategies as st
from zarr.codecs import Crc32cCodec

import dmkl
from dmkl.health import damage
from dmkl.solvers.workspace import damage_of_state
from dmkl.store.format import NODES
from dmkl.store.reader import StoreReader

ARCHIVES = [STORAGE / "archives" / "v1" / f"{name}.zarr" for name in ("rectangular", "symmetric")]
FACTORS = STORAGE / "archives" / "v2"
SEALED = STORAGE / "archives" / "sealed"


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sound")
    labels = {"labels": list("xyxyxyxyx"), "splits": [[0] * 5 + [1] * 2 + [2] * 2], "tile": 4}
    dmkl.create(folder / "symmetric.zarr", psd(2, 9), names=["a", "b"], **labels)
    dmkl.create(folder / "full.zarr", psd(2, 9), names=["a", "b"], full=True, **labels)
    dmkl.create(
        folder / "rectangular.zarr",
        np.random.default_rng(0).normal(size=(2, 9, 6)),
        names=["a", "b"],
        diagonal=np.ones((2, 9)),
        **{**labels, "labels": np.eye(9, 2, dtype=int)},
    )
    dmkl.create(folder / "numbers.zarr", psd(2, 9), labels=np.arange(18).reshape(9, 2) / 4, tasks=["height", "weight"])
    return folder


# --- the checker ---------------------------------------------------------------------------------------------
@given(
    data=st.one_of(st.binary(max_size=300), st.integers(0, 20_000).map(lambda n: bytes(range(256)) * (n // 256 + 1)))
)
def test_its_checksum_is_crc32c(data):
    assert check_store.crc32c(data) == google_crc32c.value(data)


def test_it_declares_the_same_nodes_as_dmkl():
    assert {name: node.dims for name, node in NODES.items()} == check_store.DIMENSIONS


def test_the_command_tells_by_its_exit_code(sound, tmp_path):
    run = [sys.executable, STORAGE / "check_store.py"]
    good = subprocess.run([*run, sound / "symmetric.zarr", sound / "full.zarr"])
    assert good.returncode == 0
    bad = subprocess.run([*run, sound / "symmetric.zarr", tmp_path / "none.zarr"], capture_output=True, text=True)
    assert bad.returncode == 1
    assert "there is nothing at" in bad.stdout
    assert "dmkl" not in {
        line.split()[1]
        for line in (STORAGE / "check_store.py").read_text().splitlines()
        if line.startswith(("import ", "from "))
    }


def attributes(**changes):
    return lambda path: unseal(path, **changes)


def on_tile(harm, *key, **more):
    """A damage function for one tile."""
    return lambda path: harm(tile_file(path, *key), **more)


def below(path):
    tile_file(path, 0, 1).mkdir(exist_ok=True)
    shutil.copy(tile_file(path, 0, 0, 1), tile_file(path, 0, 1, 0))


def write(node, key, value):
    def change(path):
        zarr.open_group(path, mode="r+", use_consolidated=False)[node][key] = value

    return change


def replaced(node, values=None, **changes):
    """Write a node again with other properties."""

    def change(path):
        group = zarr.open_group(path, mode="r+", use_consolidated=False)
        old = group[node]
        new = old[...] if values is None else values
        as_before = {"dtype": old.dtype, "fill_value": old.fill_value, "dimension_names": old.metadata.dimension_names}
        codecs = {"filters": None, "compressors": [Crc32cCodec()]}
        kept = {"shape": new.shape, "chunks": new.shape, **as_before, **codecs}
        group.create_array(node, overwrite=True, **kept | changes)[...] = new
        unseal(path)

    return change


def removed(node):
    return lambda path: shutil.rmtree(path / node)


def other_metadata(path):
    metadata = path / "row_sum" / "zarr.json"
    metadata.write_text(metadata.read_text().replace('"sum over all', '"Sum over all'))


def flipped(pattern):
    def change(path):
        file = [candidate for candidate in sorted(path.glob(pattern)) if candidate.is_file()][-1]
        flip(file, file.stat().st_size // 2, 4)

    return change


def without(pattern):
    return lambda path: max(path.glob(pattern)).unlink()


BROKEN = {
    "another format": (attributes(format="x"), "format is 'x', must be 'dmkl-kernel-set'"),
    "a newer version": (attributes(format_version=3), "format_version is 3, must be 1 or 2"),
    "another tile": (attributes(tile=3), r"has chunks (1, 4, 4), must be (1, 3, 3)"),
    "another kind": (attributes(symmetric=False), "gram_upper holds symmetric matrices"),
    "incomplete": (attributes(complete=False), "complete is False, must be true: the set was never finished"),
    "other provenance": (attributes(kernels=[{"name": "b"}, {"name": "a"}]), "the attribute kernels lists ['b', 'a']"),
    "another content id": (attributes(content_id="sha256:0"), "content_id is sha256:0, must be sha256:"),
    "a stray": (lambda path: (path / "row_sum" / "zarr.12.partial").write_text(""), "row_sum/zarr.12.partial"),
    "no matrices": (removed("gram_upper"), "exactly one of gram_upper and gram must be there, found neither"),
    "a missing tile": (on_tile(Path.unlink, 1, 0, 2), "tile (0, 2) of kernel 1 is missing"),
    "a truncated tile": (
        on_tile(os.truncate, 1, 0, 1, length=50),
        "tile (0, 1) of kernel 1 has 50 bytes, must have 132",
    ),
    "a damaged byte": (on_tile(flip, 0, 1, 1), "tile (1, 1) of kernel 0 is damaged"),
    "swapped tiles": (
        lambda path: swap(tile_file(path, 0, 0, 1), tile_file(path, 1, 0, 1)),
        "tile (0, 1) of kernel 0 has the checksum",
    ),
    "a tile below the diagonal": (below, "0/1/0 must not be there: it is below the diagonal"),
    "NaN": (write("gram_upper", (0, 2, 3), np.nan), "tile (0, 0) of kernel 0 holds nan at (2, 3)"),
    "an asymmetric tile": (write("gram_upper", (0, 2, 3), 5.0), "tile (0, 0) of kernel 0 is not symmetric"),
    "another diagonal": (write("diagonal", (1, 4), 7.0), "diagonal of kernel 1 is 7.0 for sample 4, must be"),
    "another row sum": (write("row_sum", (1, 4), 7.0), "row_sum of kernel 1 is 7.0 for sample 4, must be"),
    "no row sum": (write("row_sum", (1, 4), np.nan), "row_sum of kernel 1 is nan for sample 4"),
    "no diagonal": (removed("diagonal"), "diagonal is missing"),
    "a damaged node": (lambda path: flip(path / "row_sum" / "c" / "0" / "0"), "row_sum cannot be read"),
    "a table below": (write("tile_crc32c", (0, 1, 0), 7), "must be 0 below the diagonal"),
    "equal kernels": (write("kernel", slice(None), np.array(["a", "a"], dtype=object)), "kernel 'a' occurs 2 times"),
    "equal samples": (write("sample", slice(0, 2), np.array(["z", "z"], dtype=object)), "sample 'z' occurs 2 times"),
    "renamed kernels": (write("kernel", 0, "c"), "content_id is"),
    "split 7": (write("split", (0, 0), 7), "split must hold -1, 0, 1 and 2"),
    "other dimensions": (replaced("row_sum", dimension_names=("kernel", "row")), "must be ('kernel', 'sample')"),
    "another length": (
        replaced("sample", values=np.array(list("abc"), dtype=object), dtype=str),
        "sample has shape (3,)",
    ),
    "another type": (replaced("split", dtype="int16", fill_value=-1), "split is of type int16, must be int8"),
    "other chunks": (replaced("gram_upper", chunks=(1, 9, 9)), "has chunks (1, 9, 9), must be (1, 4, 4)"),
    "fill value 0": (replaced("gram_upper", chunks=(1, 4, 4), fill_value=0), "is 0.0, must be NaN"),
    "fractions as labels": (
        replaced("label", values=np.linspace(0, 1, 9), dtype="float64", fill_value=0),
        "label is of type float64",
    ),
    "other metadata": (other_metadata, "row_sum is not as the consolidated metadata say"),
    # Of other sets, and of what is saved.
    "halves that differ": (
        "full.zarr",
        write("gram", (0, 8, 0), 9.0),
        "tile (2, 0) of kernel 0 is not the transpose of tile (0, 2)",
    ),
    "label 3": ("rectangular.zarr", write("label", (0, 0), 3), "label (sample, task) must hold 0 and 1"),
    "lost tasks": ("rectangular.zarr", removed("task"), "task must name the 2 columns of label"),
    "infinite target": ("numbers.zarr", write("target", (0, 0), np.inf), "target must hold numbers"),
    "lost targets": ("numbers.zarr", removed("task"), "task must name the 2 columns of target"),
    "changed root": (SEALED / "model", flipped("zarr.json"), "FAIL the folder is a Zarr v3 group"),
    "damaged features": (
        SEALED / "symmetric.zarr",
        flipped("features/0/values/c/0/0"),
        "features/0/values cannot be read",
    ),
    "missing chunk": (SEALED / "evaluation", without("search-1/score/c/*/*"), "chunks of search-1/score are missing"),
    "version 9": (SEALED / "model", attributes(format_version=9), "format_version is 9, must be"),
    "no rule": (SEALED / "search", attributes(rule=None), "rule is missing"),
    "broken state": (
        SEALED / "state",
        lambda path: (path / "state.json").write_text("{"),
        "it cannot be read: Expecting",
    ),
    "changed state": (SEALED / "state", flipped("state.json"), "FAIL state.json"),
    "damaged products": (SEALED / "state", flipped("fold-0/products-*.npy"), "is damaged in block 0"),
    "damaged checksums": (
        SEALED / "state",
        lambda path: flip(min(path.glob("points-*.npz")), -1),
        "ends with checksums that are not those that were written",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_it_names_what_is_broken(sound, tmp_path, case):
    *place, change, message = BROKEN[case]
    path = shutil.copytree(sound / Path(*place or ["symmetric.zarr"]), tmp_path / "copy")
    change(path)
    assert message in problems(path)


def test_an_unfinished_set_is_told(sound, tmp_path):
    shutil.copytree(sound / "symmetric.zarr", tmp_path / "set.zarr.partial")
    assert "there is an unfinished set at" in problems(tmp_path / "set.zarr")


def test_unknown_nodes_and_attributes_pass(sound, tmp_path):
    symmetric = shutil.copytree(sound / "symmetric.zarr", tmp_path / "set.zarr")
    attributes(invented=3)(symmetric)
    zarr.create_array(symmetric / "novelty", shape=(3,), dtype="f4")
    assert problems(symmetric) == ""
    assert np.asarray(dmkl.open(symmetric)).shape == (2, 9, 9)


# --- other readers -------------------------------------------------------------------------------------------
def test_xarray_opens_a_set_with_named_dimensions(sound):
    with xr.open_zarr(sound / "symmetric.zarr") as dataset:
        assert dataset["gram_upper"].dims == ("kernel", "sample", "sample_2")
        assert list(dataset["kernel"].values) == ["a", "b"]
        assert dataset["label"].dims == ("sample",)
        tile_of_b = dataset["gram_upper"].sel(kernel="b").isel(sample=slice(0, 4), sample_2=slice(4, 8))
        np.testing.assert_array_equal(tile_of_b, psd(2, 9)[1, :4, 4:8])
        assert np.isnan(dataset["gram_upper"][0, 4:, :4]).all()  # tiles below the diagonal are not stored
    with xr.open_zarr(sound / "rectangular.zarr") as dataset:
        assert dataset["gram"].dims == ("kernel", "sample", "train_sample")


# --- archives ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_archives_stay_readable(archive):
    assert problems(archive) == ""
    K = dmkl.open(archive)
    i, k = np.ogrid[: K.shape[1], : K.shape[2]]
    formulas = {"min": 1 + np.minimum(i, k), "linear": 1 + i * k, "ridge": 1 + 2 * (i == k)}
    np.testing.assert_array_equal(K, [formulas[name] for name in K.names])
    assert K.train_samples[-1] == "Ørsted"
    if K.is_square:
        assert "".join(K.labels) == "xyxyxyz"
        np.testing.assert_array_equal(K.split(1).train, [2, 3, 4])
        assert K.splits[1, 6] == -1
    else:
        np.testing.assert_array_equal(K.labels, [[1, 0], [0, 0], [1, 1]])
        assert list(K.tasks) == ["odd", "tall"]
        own = StoreReader(archive).diagonal(np.arange(K.shape[0]))
        np.testing.assert_array_equal(own, np.diagonal(np.asarray(K), axis1=1, axis2=2))


@pytest.mark.parametrize(("name", "dtype"), [("factors.zarr", "float32"), ("mixed.zarr", "float64")])
def test_archives_of_factors_stay_readable(output_of, name, dtype):
    assert problems(FACTORS / name) == ""
    K = dmkl.open(FACTORS / name)
    square, both = np.arange(9.0)[:, None] ** 2, np.arange(18.0).reshape(9, 2) / 16
    unit = both / np.maximum(np.linalg.norm(both, axis=1), 1e-9)[:, None]
    distances = ((both[:, None] - both[None]) ** 2).sum(axis=2)
    second = unit @ unit.T if name == "factors.zarr" else np.exp(-0.5 * distances)
    np.testing.assert_allclose(K, [square @ square.T, second], atol=1e-6)
    assert K.dtype == dtype
    assert K.samples[-1] == "Ørsted"
    output_of("check", FACTORS / name, "--strict")


@pytest.mark.parametrize("name", ["symmetric.zarr", "model", "search", "evaluation", "state"])
def test_archives_with_checksums_stay_readable(name, tmp_path):
    assert problems(SEALED / name) == ""
    if name == "symmetric.zarr":
        K = dmkl.open(SEALED / name)
        square = np.arange(9.0) ** 2
        np.testing.assert_array_equal(np.asarray(K)[0], np.outer(square, square))
        assert StoreReader(SEALED / name).has_checksum
    elif name == "state":  # `test_a_state_of_before_is_gone_on_with` reads it
        assert not list(damage_of_state(SEALED / name))
    else:
        assert not list(damage(SEALED / name))
        saved = dmkl.load(SEALED / name)
        kinds = {"model": dmkl.Uniform, "search": dmkl.SearchResult, "evaluation": dmkl.EvaluationResult}
        assert type(saved) is kinds[name]
        if name == "model":
            new = {"square": np.array([[4.0]]), "both": np.array([[0.25, 0.5]])}
            assert saved.predict(features=new).shape == (1,)


def test_a_state_of_before_is_gone_on_with(tmp_path):
    shutil.copytree(SEALED / "state", tmp_path / "state")
    K = dmkl.open(SEALED / "symmetric.zarr")[:8, :8]
    grid = {"p": [2.0], "lam": [0.1, 1.0]}
    more = {"cv": 2, "refit": False, "baselines": "none"}  # which searches did not have at that time
    result = dmkl.search(dmkl.MKFDA(solver="subspace"), K, None, grid, state=tmp_path / "state", **more)
    saved = dmkl.load(SEALED / "search")
    # The state lacks dual variables, from which rules are learnt: its points are solved again, in the basis that it
    # holds, each to its own proven gap.
    ours, theirs = result.scores, saved.scores
    allowed = (ours["gap"].values + theirs["gap"].values) * np.abs(theirs["objective"].values)
    assert (np.abs(ours["objective"].values - theirs["objective"].values) <= allowed).all()
    np.testing.assert_allclose(ours["weight"], theirs["weight"], atol=1e-2)  # √gap
    # One more pass, for leave-one-out scores.
    assert result.scores.attrs["n_passes"] <= saved.scores.attrs["n_passes"] + 1


@pytest.mark.parametrize("name", ["model", "search"])
def test_what_was_saved_without_checksums_is_read(run, notes_of, name):
    path = STORAGE / "archives" / "v1" / name
    assert problems(path) == ""
    dmkl.load(path)
    assert "kept no checksums" in notes_of("check", path)
    assert run("check", path, "--strict")[0] == 1


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("model", {"kind": "model", "model": "Uniform", "training_samples": 8, "features": "square, both"}),
        ("search", {"kind": "result of a search"}),
        ("evaluation", {"kind": "result of a nested cross-validation"}),
        ("state", {"kind": "checkpoint of a search", "format_version": 4}),
    ],
)
def test_info_and_check_tell_what_a_path_is(run, output_of, json_of, tmp_path, name, expected):
    path = shutil.copytree(SEALED / name, tmp_path / name)
    assert expected["kind"] in output_of("info", path)
    assert json_of("info", path).items() >= {**expected, "checksums": True}.items()
    assert f"a {expected['kind']}, " in output_of("check", path, "--strict")
    flipped({"state": "points-*.npz", "model": "weights_/c/0"}.get(name, "gap/c/**/0"))(path)
    status, out, _ = run("check", path, "--json")
    report = json.loads(out)
    assert (status, report["kind"], len(report["findings"])) == (1, expected["kind"], 1)


def test_a_compact_model_is_described_checked_and_predicts_the_same(output_of, json_of, tmp_path):
    model, file = dmkl.load(SEALED / "model"), tmp_path / "model.zip"
    output_of("compact", SEALED / "model", file)
    assert problems(file) == ""
    assert json_of("info", file).items() >= {"kind": "model", "model": "Uniform", "features": "square, both"}.items()
    assert "a model, 1 file checked: no damage found" in output_of("check", file, "--strict")
    new = {"square": np.array([[4.0]]), "both": np.array([[0.25, 0.5]])}
    xr.testing.assert_identical(dmkl.load(file).decision_function(features=new), model.decision_function(features=new))


def test_a_state_is_told_where_its_result_is_not_there_yet(error_of, tmp_path):
    shutil.copytree(SEALED / "state", tmp_path / "found.partial")
    assert "the checkpoint of an interrupted search of it is" in error_of("info", tmp_path / "found")
