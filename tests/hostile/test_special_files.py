"""Pipes, devices and links in the places of files that dmkl reads and writes, and files without end."""

import os

import dask
import numpy as np
import pytest

import dmkl
from dmkl.cli.main import main
from dmkl.cli.parsing import read_kernel_groups
from dmkl.clusters.job_options import read_description
from dmkl.errors import InputError, MemoryBudgetError, StoreError
from dmkl.features.specs import plan
from dmkl.files.writing import lock, lock_path
from dmkl.inputs import as_features, open_files, read_file
from dmkl.job_files import read_job
from dmkl.store.zarr_groups import open_group

pytestmark = pytest.mark.timeout(60)


def to_a_device(path):
    path.symlink_to("/dev/zero")


def to_a_file(path):
    path.with_name("target").write_text("theirs")
    path.symlink_to("target")


def to_nothing(path):
    path.symlink_to("target")


READERS = {
    "labels.csv": read_file,
    "k.npy": open_files,
    "k.csv": open_files,
    "x.csv": as_features,
    "x.parquet": as_features,
    "specs.toml": lambda path: plan(path, as_features({"x": np.ones((3, 2))}).blocks),
    "job.toml": lambda path: read_job(path, ["data"]),
    "cluster.yaml": read_description,
    "groups.csv": lambda path: read_kernel_groups(str(path), ["a", "b"]),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize(("put", "kind"), [(os.mkfifo, "pipe"), (to_a_device, "device")])
def test_inputs_are_regular_files(tmp_path, name, put, kind):
    put(tmp_path / name)
    with pytest.raises(InputError, match=rf"{name} is a {kind}, and only regular files are opened; copy its content"):
        READERS[name](tmp_path / name)


@pytest.mark.parametrize(
    ("put", "kind"), [(os.mkfifo, "pipe"), (to_a_device, "symbolic link"), (to_a_file, "symbolic link")]
)
def test_locks_and_logs_are_regular_files_and_no_links(tmp_path, put, kind, capsys):
    put(lock_path(tmp_path / "out"))
    with pytest.raises(InputError, match=rf"out\.lock is a {kind}, and only regular"), lock(tmp_path / "out"):
        pass
    put(tmp_path / "run.log")
    assert main(["info", str(tmp_path / "nothing"), "--log", str(tmp_path / "run.log")]) == 1
    assert f"run.log is a {kind}, and only regular files are opened" in capsys.readouterr().err
    if put is to_a_file:
        assert (tmp_path / "target").read_text() == "theirs"


def searched(folder):
    K = dmkl.create(None, [np.eye(8) + np.outer(v, v) for v in np.eye(8)[:2]], labels=[0, 1] * 4)
    return dmkl.search(dmkl.MKFDA(), K, grid={"lam": [0.1]}, cv=2, baselines="none", state=folder)


@pytest.mark.parametrize("put", [os.mkfifo, to_a_device, to_a_file, to_nothing])
@pytest.mark.parametrize("name", ["state.json", "fold-0/basis-0.npy"])
def test_a_checkpoint_has_regular_files_and_no_links(tmp_path, put, name):
    path = tmp_path / "state" / name
    path.parent.mkdir(parents=True)
    put(path)
    with pytest.raises(StoreError, match=f"{name} is a (pipe|symbolic link), and only regular"):
        searched(tmp_path / "state")
    assert not (path.parent / "target").exists() or (path.parent / "target").read_text() == "theirs"


def test_documents_of_any_length_are_not_read(tmp_path):
    def endless(path):
        path.parent.mkdir(exist_ok=True)
        with open(path, "wb") as file:
            file.truncate(2**28)

    for name in ("state/state.json", "set.zarr/zarr.json", "groups.csv", "scheduler.json"):
        endless(tmp_path / name)
    with dask.config.set({"dmkl.memory": "64MiB"}):
        for read in (
            lambda: searched(tmp_path / "state"),
            lambda: open_group(tmp_path / "set.zarr"),
            lambda: read_kernel_groups(str(tmp_path / "groups.csv"), ["a"]),
            lambda: dmkl.cluster(str(tmp_path / "scheduler.json")).__enter__(),
        ):
            with pytest.raises(MemoryBudgetError, match=r"takes 1\.07e"):
                read()
