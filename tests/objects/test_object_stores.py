"""Kernel sets, models, results and predictions at URLs of an object store."""

import csv
from unittest.mock import Mock

import dask
import numpy as np
import pytest
from fsspec.core import url_to_fs
from helpers.faults import interrupted
from helpers.references import psd

import dmkl
from dmkl.cli.main import main
from dmkl.errors import (
    CorruptTileError,
    IncompleteStoreError,
    InputError,
    StoreError,
    StoreExistsError,
    StoreNotFoundError,
)
from dmkl.files.urls import Url
from dmkl.store import tiles
from dmkl.store.writer import StoreWriter

M = 24
MATRICES = psd(2, M)
ROOT = "zarr.json"


def names(url):
    """Objects below a URL."""
    return sorted(Url(url).files())


@pytest.fixture(scope="module")
def on_server(object_store):
    """A set of two kernels with labels, in ragged tiles, on the server; read-only."""
    return _created("s3://data/set.zarr")


@pytest.fixture(scope="module")
def store():
    """The same set in memory."""
    return _created("memory://data/set.zarr")


def _created(url):
    return dmkl.create(url, MATRICES, labels=np.arange(M) % 2, tile=16).view.source.location


# --- kernel sets -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("range_bytes", [700, 2**20])
def test_tiles_come_in_ranges(on_server, monkeypatch, range_bytes):
    monkeypatch.setattr(tiles, "_RANGE_BYTES", range_bytes)
    K, V = dmkl.open(on_server), np.random.default_rng(0).standard_normal((M, 3))
    np.testing.assert_allclose(next(K.view.source.stream([(1, 0, 1)]))[1], MATRICES[1, :16, 16:], rtol=1e-10)
    np.testing.assert_allclose(np.asarray(K.apply(V)), MATRICES @ V, rtol=1e-10)


@pytest.mark.parametrize(
    ("place", "damage", "message"),
    [
        ("on_server", lambda data: data[:9] + bytes([data[9] ^ 1]) + data[10:], "fails its checksum"),
        ("store", lambda data: data[:-3], "has 2049 bytes, expected 2052"),
        ("on_server", None, "is missing"),
    ],
)
def test_damaged_tiles_are_refused(request, place, damage, message):
    store = request.getfixturevalue(place)
    tile = Url(store) / "gram_upper/c/0/0/0"
    before = tile.read_bytes()
    try:
        if damage is None:
            tile.unlink()
        else:
            tile.write_bytes(damage(before))
        with pytest.raises(CorruptTileError, match=message):
            next(dmkl.open(store).view.source.stream([(0, 0, 0)]))
    finally:
        tile.write_bytes(before)


def test_bad_input_leaves_the_old_set(bucket):
    (Url(bucket) / "precious.csv").write_bytes(b"1")
    with pytest.raises(StoreExistsError, match="holds something already"):
        dmkl.create(bucket, MATRICES, overwrite=True)
    assert names(bucket) == ["precious.csv"]
    (Url(bucket) / "precious.csv").unlink()
    dmkl.create(bucket, MATRICES[:1], tile=M)
    before = dmkl.open(bucket).content_id
    with pytest.raises(StoreExistsError, match="exists already"):
        dmkl.create(bucket, MATRICES, tile=M)
    bad = np.array([np.where(np.eye(M), np.nan, MATRICES[0])])
    with pytest.raises(InputError, match="not finite"):
        dmkl.create(bucket, bad, tile=M, overwrite=True)
    assert dmkl.open(bucket).content_id == before
    assert not names(f"{bucket}.partial")
    assert not Url(f"{bucket}.lock").exists()


def test_a_set_killed_while_it_is_moved_is_unfinished_and_goes_on(bucket, monkeypatch):
    dmkl.create(bucket, MATRICES[:1], tile=M)
    with interrupted(Url, "copy_from"):
        dmkl.create(bucket, MATRICES, tile=M, overwrite=True)
    with pytest.raises(IncompleteStoreError, match="not finished"):
        dmkl.open(bucket)
    written = []
    monkeypatch.setattr(StoreWriter, "write_tile", lambda *given: written.append(given))
    K = dmkl.create(bucket, MATRICES, tile=M)
    assert len(K) == 2
    assert not written
    assert not names(f"{bucket}.partial")


@pytest.mark.parametrize(
    ("url", "error", "message"),
    [
        ("s3://data/none", StoreNotFoundError, "there is no kernel set at s3://data/none"),
        ("s3://data", InputError, "whole bucket"),
        ("s3:/data/set.zarr", InputError, "lost a slash"),
        ("nonsense://data/set.zarr", InputError, "fsspec knows no nonsense"),
    ],
)
def test_urls_that_cannot_be_read(object_store, url, error, message):
    with pytest.raises(error, match=message):
        dmkl.open(url)


def test_credentials_that_are_refused_are_told(object_store, monkeypatch):
    monkeypatch.setattr("fsspec.core.url_to_fs", Mock(side_effect=PermissionError("Access Denied")))
    with pytest.raises(StoreError, match=r"s3://data/x.* cannot be read or written: Access Denied; check"):
        dmkl.open("s3://data/x")


def test_options_are_a_setting(on_server, monkeypatch, object_store):
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    with dask.config.set({"dmkl.storage": {"endpoint_url": object_store["AWS_ENDPOINT_URL"]}}):
        assert len(dmkl.open(on_server)) == 2
    with dask.config.set({"dmkl.storage": "s3"}), pytest.raises(InputError, match="must be a mapping"):
        dmkl.open(on_server)


# --- models, results, predictions ------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def model(store):
    """A model at a URL, fitted by the command line on the first samples."""
    assert main(["fit", store, "memory://data/model", "--all", "--cluster", "threads"]) == 0
    return "memory://data/model"


def test_a_model_is_replaced_only_where_it_is_asked(store, bucket, model, tmp_path):
    loaded = dmkl.load(model)
    loaded.save(tmp_path / "model")
    here = dmkl.load(tmp_path / "model")
    K = dmkl.open(store)
    np.testing.assert_array_equal(loaded.decision_function(K), here.decision_function(K))
    with interrupted(Url, "copy_from"):
        loaded.save(bucket)
    with pytest.raises(IncompleteStoreError, match="not finished"):
        dmkl.load(bucket)
    loaded.save(bucket, overwrite=True)
    assert dmkl.load(bucket).kernel_names_ == loaded.kernel_names_
    (Url(bucket) / "old").write_bytes(b"of the model before")
    with pytest.raises(StoreExistsError, match="exists already"):
        loaded.save(bucket)
    loaded.save(bucket, overwrite=True)
    assert "old" not in names(bucket)
    (Url(bucket) / ROOT).unlink()
    with pytest.raises(StoreExistsError, match="is not a model"):
        loaded.save(bucket, overwrite=True)


def test_predictions_go_to_a_url(output_of, error_of, store, model, bucket, tmp_path):
    given = ["predict", model, store, "--rows", "0,1", "--cluster", "threads"]
    output_of(*given, "--out", f"{bucket}.csv")
    output_of(*given, "--out", tmp_path / "here.csv")
    assert Url(f"{bucket}.csv").read_bytes() == (tmp_path / "here.csv").read_bytes()
    assert "exists already" in error_of(*given, "--out", f"{bucket}.csv")


def test_info_and_check_of_what_is_at_urls(run, output_of, json_of, store, model):
    for url in (store, model):
        assert json_of("info", url)["bytes_on_disk"] == sum(Url(url).files().values())
        output_of("check", url, "--cluster", "threads")
    tile = Url(model) / "weights_/c/0"
    before = tile.read_bytes()
    tile.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    assert run("check", model)[0] == 1
    tile.write_bytes(before)


@pytest.mark.slow
def test_everything_on_processes(output_of, object_store, tmp_path):
    """Build, search and predict in processes that share only URLs and the environment with the client."""
    s3, views = f"s3://data/{tmp_path.name}", tmp_path / "views.npz"
    np.savez(views, view=np.random.default_rng(0).standard_normal((40, 3)), label=np.arange(40) % 2)
    own, here = f"{s3}/kernels.zarr", tmp_path / "kernels.zarr"
    processes = ["--cluster", "local", "--workers", "2"]
    output_of("build", own, views, "--function", "rbf", *processes)
    output_of("build", here, views, "--function", "rbf")
    assert dmkl.open(own).content_id == dmkl.open(here).content_id
    search = ["-p", "2", "--lam", "0.01,1", "--cv", "2", "--model", "mkfda"]
    output_of("search", own, f"{s3}/found", *search, "--state", tmp_path / "state", *processes)
    output_of("search", here, tmp_path / "found", *search, "--cluster", "threads")
    scores = [dmkl.load(place).scores.score.values for place in (f"{s3}/found", tmp_path / "found")]
    np.testing.assert_array_equal(*scores)
    assert not (tmp_path / "state").exists()
    output_of("predict", f"{s3}/found", "--features", views, *processes, "--out", f"{s3}/predictions.csv")
    fs, path = url_to_fs(f"{s3}/predictions.csv", use_listings_cache=False)
    assert len(list(csv.reader(fs.cat_file(path).decode().splitlines()))) == 41
