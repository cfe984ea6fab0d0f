"""What each host of a cluster sees is looked at before anything long; what one does not see is told in a line."""

from __future__ import annotations

import json
import os
import shutil
import socket
from pathlib import Path

import numpy as np
import pytest
from helpers.references import psd

import dmkl
from dmkl.clusters import preflight
from dmkl.errors import StoreNotFoundError

pytest_plugins = ["helpers.command_line"]

HERE = Path("/proc/self/cwd")
"""A path that means another folder in each process: where that process works."""
HOST = socket.gethostname()

pytestmark = pytest.mark.skipif(not HERE.exists(), reason="this system has no /proc/self/cwd")


@pytest.fixture
def apart(client, tmp_path, monkeypatch):
    """The folder of the workers, and that of this process, which has a set; both are HERE."""
    theirs, mine = tmp_path / "theirs", tmp_path / "mine"
    theirs.mkdir()
    mine.mkdir()
    dmkl.create(mine / "set.zarr", psd(3, 12), labels=np.arange(12) % 2, tile=5)
    before = client.run(os.getcwd)
    client.run(os.chdir, str(theirs))
    monkeypatch.chdir(mine)
    yield theirs, mine
    for address, folder in before.items():
        client.run(os.chdir, folder, workers=[address])


def test_a_worker_that_does_not_see_the_set_names_host_and_path(apart):
    K = dmkl.open(HERE / "set.zarr")
    with pytest.raises(StoreNotFoundError, match=f"no kernel set at {HERE}/set.zarr on {HOST}, where a task"):
        dmkl.MKFDA(p=1.5).fit(K)


def test_one_that_sees_it_only_later_goes_on(apart):
    theirs, mine = apart
    K = dmkl.open(HERE / "set.zarr")
    with pytest.raises(StoreNotFoundError):
        K.apply(np.ones((12, 1))).compute()
    shutil.copytree(mine / "set.zarr", theirs / "set.zarr")
    assert np.isfinite(K.apply(np.ones((12, 1))).compute()).all()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (None, f"{HOST} does not see the kernel set {HERE}/set.zarr"),
        ("other", f"{HOST} sees another kernel set at {HERE}/set.zarr"),
        ("same", f"{HOST} does not see the folder {HERE}/found.partial, where a search keeps its state"),
    ],
)
def test_commands_look_before_they_begin(run, apart, client, given, told):
    theirs, mine = apart
    if given == "other":
        dmkl.create(theirs / "set.zarr", psd(3, 12, seed=5), tile=5)
    if given == "same":
        shutil.copytree(mine / "set.zarr", theirs / "set.zarr")
    arguments = [HERE / "set.zarr", "--cluster", client.scheduler.address]
    status, _, err = run("search", *arguments[:1], HERE / "found", *arguments[1:], "--cv", "2", "-p", "1", "--lam", "1")
    (line,) = err.splitlines()
    assert (status, line[: len(told) + 13]) == (1, f"dmkl: error: {told}")
    assert sorted(os.listdir(mine)) == ["set.zarr"]
    status, out, err = run("preflight", *arguments, "--state", HERE / "found.partial", "--json")
    assert (status, err) == (1, "")
    (host,) = json.loads(out)["hosts"]
    assert host["problems"][(given != "same" and -2) or -1].startswith(told)
    assert (host["name"], host["workers"], host["slots"]) == (HOST, 2, 2)
    assert sorted(os.listdir(mine)) == ["set.zarr"]


def test_a_build_that_workers_do_not_see_is_refused(run, apart, client):
    theirs, mine = apart
    np.savez(mine / "features.npz", table=np.random.default_rng(0).random((9, 2)))
    arguments = ["build", HERE / "new.zarr", HERE / "features.npz", "--function", "linear"]
    status, _, err = run(*arguments, "--cluster", client.scheduler.address)
    assert status == 1
    assert f"do not see {HERE}/new.zarr.partial, where the kernels are written; write to a file system" in err
    assert not list(theirs.iterdir())


def test_what_fits_where_all_is_well(run, stored, client, tmp_path, monkeypatch):
    arguments = ["preflight", stored.view.source.location, "--cluster", client.scheduler.address, "--state", tmp_path]
    status, out, err = run(*arguments)
    assert (status, err) == (0, "")
    for told in (HOST, np.__version__, "direct α-step    yes", "1 host looked at, none that cannot take part."):
        assert told in out
    assert not list(tmp_path.iterdir())
    versions = {**preflight.versions_of(["zarr"]), "zarr": "99"}
    monkeypatch.setattr(preflight, "versions_of", lambda _: versions)
    assert f"warning {HOST} runs zarr " in run(*arguments)[1]
    status, _, err = run("check", *arguments[1:4])
    assert f"dmkl: warning: {HOST} runs zarr " in err


def test_a_folder_for_temporary_files_that_cannot_be_written(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    (host,) = preflight.hosts()
    assert [f"{HOST} cannot write temporary files in {tmp_path / 'nowhere'} (No such file" in host.problems[0]] == [
        True
    ]


def test_what_does_not_fit_is_told(stored):
    import dask

    (host,) = preflight.hosts()
    with dask.config.set({"dmkl.memory": "1KiB"}):
        fits = {one.what: one.fits for one in preflight.what_fits(stored, [host])}
    assert fits == {"direct α-step": False, "anchors": False, "basis": False}
