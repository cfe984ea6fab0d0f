"""Changes on disk during a read are detected and named, also in the processes to which the set was sent."""

import os
import pickle
import shutil
import threading

import numpy as np
import pytest
from helpers.damage import tile_file
from helpers.faults import DAMAGES
from helpers.references import psd

import dmkl
from dmkl.errors import CorruptTileError, StoreError, StoreNotFoundError
from dmkl.store import reader as reading
from dmkl.store.reader import StoreReader

KEY = (0, 1, 1)


@pytest.fixture
def path(tmp_path):
    dmkl.create(tmp_path / "set.zarr", psd(2, 12), tile=5)
    return tmp_path / "set.zarr"


@pytest.fixture
def other(tmp_path):
    dmkl.create(tmp_path / "other.zarr", psd(2, 12, seed=7), tile=5)
    return tmp_path / "other.zarr"


@pytest.fixture(autouse=True)
def _nothing_arrived(monkeypatch):
    monkeypatch.setattr(reading, "_UNPICKLED", type(reading._UNPICKLED)())


def replace(path, other):
    os.replace(tile_file(other, *KEY), tile_file(path, *KEY))


def cut(path, _):
    os.truncate(tile_file(path, *KEY), 20)


@pytest.mark.parametrize(
    ("change", "error", "told"),
    [
        (DAMAGES["flipped"], CorruptTileError, r"tile \(0, 0\) of kernel .* fails its checksum"),
        (replace, CorruptTileError, r"tile \(1, 1\) of kernel .* is not the tile that was written there"),
        (cut, CorruptTileError, r"tile \(1, 1\) of kernel .* has 20 bytes, expected 204"),
        (DAMAGES["missing"], CorruptTileError, r"tile \(0, 0\) of kernel .* is missing"),
        (DAMAGES["exchanged"], StoreError, "set.zarr holds another set now .* open it again"),
        (DAMAGES["deleted"], StoreNotFoundError, "set.zarr is gone from .* Put it back"),
    ],
)
def test_what_changes_after_it_was_read_is_named(path, other, change, error, told):
    reader = StoreReader(path)
    keys = [(k, i, j) for k in range(2) for i, j in reader.tiling.pairs()]
    assert len(list(reader.stream(keys))) == len(keys)
    change(path, other)
    with pytest.raises(error, match=told):
        list(reader.stream(keys))


def test_a_set_that_is_copied_back_goes_on(path, tmp_path):
    reader = StoreReader(path)
    before = next(reader.stream([KEY]))[1].copy()
    shutil.copytree(path, tmp_path / "copy")
    shutil.rmtree(path)
    (tmp_path / "copy").rename(path)
    ((_, tile),) = reader.stream([KEY])
    np.testing.assert_array_equal(tile, before)


# --- sent to other processes -----------------------------------------------------------------------------------------
def test_many_threads_open_one_copy(path):
    arrived, found = pickle.loads(pickle.dumps(StoreReader(path))), []
    threads = [threading.Thread(target=lambda: found.append(next(arrived.stream([KEY]))[1].sum())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
