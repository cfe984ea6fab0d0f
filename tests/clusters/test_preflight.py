"""Hosts of a cluster are checked before long work; a path that a host does not see is reported in one line."""

import json
import os
import shutil
import socket
from pathlib import Path

import dask
import numpy as np
import pytest
from helpers.references import psd

import dmkl
from dmkl import progress
from dmkl.clusters import preflight
from dmkl.errors import InputError, StoreNotFoundError

HERE = Path("/proc/self/cwd")
"""A path that resolves to the working directory of each process."""
HOST = socket.gethostname()

pytestmark = pytest.mark.skipif(not HERE.exists(), reason="this system has no /proc/self/cwd")


@pytest.fixture
def apart(client, tmp_path, monkeypatch):
    """The working directories of the workers and of this process, which holds a set; both have the path HERE."""
    worker_folder, client_folder = tmp_path / "theirs", tmp_path / "mine"
    worker_folder.mkdir()
    client_folder.mkdir()
    dmkl.create(client_folder / "set.zarr", psd(3, 12), labels=np.arange(12) % 2, tile=5)
    before = client.run(os.getcwd)
    client.run(os.chdir, str(worker_folder))
    monkeypatch.chdir(client_folder)
    yield worker_folder, client_folder
    for address, folder in before.items():
        client.run(os.chdir, folder, workers=[address])


def test_a_worker_that_does_not_see_the_set_names_host_and_path_and_goes_on_later(apart):
    worker_folder, client_folder = apart
    K = dmkl.open(HERE / "set.zarr")
    with pytest.raises(StoreNotFoundError, match=f"no kernel set at {HERE}/set.zarr on {HOST}, where a task"):
        dmkl.MKFDA(p=1.5).fit(K)
    shutil.copytree(client_folder / "set.zarr", worker_folder / "set.zarr")
    assert np.isfinite(K.apply(np.ones((12, 1))).compute()).all()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, f"{HOST} does not see the kernel set {HERE}/set.zarr"),
        ("other", f"{HOST} sees another kernel set at {HERE}/set.zarr"),
        ("same", f"{HOST} does not see the folder {HERE}/found.partial, where a search keeps its checkpoint"),
    ],
)
def test_commands_look_before_they_begin(run, apart, client, given, words):
    worker_folder, client_folder = apart
    if given == "other":
        dmkl.create(worker_folder / "set.zarr", psd(3, 12, seed=5), tile=5)
    if given == "same":
        shutil.copytree(client_folder / "set.zarr", worker_folder / "set.zarr")
    place = ["--cluster", client.scheduler.address]
    grid = ["--cv", "2", "-p", "1", "--lam", "1"]
    status, _, err = run("search", HERE / "set.zarr", HERE / "found", *place, *grid)
    assert status == 1
    assert err.splitlines()[-1].startswith(f"dmkl: error: {words}")  # the first line is the address of the dashboard
    status, out, err = run("preflight", HERE / "set.zarr", *place, "--state", HERE / "found.partial", "--json")
    assert (status, "error" in err) == (1, False)
    (host,) = json.loads(out)["hosts"]
    assert any(problem.startswith(words) for problem in host["problems"])
    assert (host["name"], host["workers"], host["slots"]) == (HOST, 2, 2)
    assert sorted(os.listdir(client_folder)) == ["set.zarr"]


def test_a_build_that_workers_do_not_see_is_refused(run, apart, client):
    worker_folder, client_folder = apart
    np.savez(client_folder / "features.npz", table=np.random.default_rng(0).random((9, 2)))
    arguments = ["build", HERE / "new.zarr", HERE / "features.npz", "--function", "rbf"]
    err = run(*arguments, "--cluster", client.scheduler.address)[2]
    assert f"do not see {HERE}/new.zarr.partial, where the kernels are written; write to a file system" in err
    assert not list(worker_folder.iterdir())


# --- hosts without a common folder for temporary files ----------------------------------------------------------------
@pytest.fixture
def own_temporary(apart, monkeypatch, tmp_path):
    """A kernel set visible to all processes; the workers do not see the TMPDIR of this process."""
    (apart[1] / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(HERE / "tmp"))
    return dmkl.open(apart[1] / "set.zarr")


LEARNERS = {
    "subspace": (dmkl.MKFDA(solver="subspace"), {"p": [1, 2], "lam": [0.1]}),
    "stacked": (dmkl.MKFDA(solver="stacked"), {"p": [1, 2], "lam": [0.1]}),
    "machine": (dmkl.MKSVM(), {"p": [1, 2], "C": [1.0]}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNERS)
def test_refits_keep_their_files_in_the_folder_of_the_state(own_temporary, client, tmp_path, name):
    learner, grid = LEARNERS[name]
    with dask.config.set(scheduler=client):
        result = dmkl.search(learner, own_temporary, grid=grid, state=tmp_path / "state", cv=2)
    with dask.config.set(scheduler="threads"):
        expected = dmkl.search(learner, own_temporary, grid=grid, cv=2)
    np.testing.assert_allclose(result.scores["weight"], expected.scores["weight"], atol=1e-6)
    assert not list((tmp_path / "state").glob("dmkl-*"))


@pytest.mark.parametrize("name", LEARNERS)
def test_a_folder_that_workers_do_not_see_is_found_before_the_first_pass(own_temporary, client, name, monkeypatch):
    learner, grid = LEARNERS[name]
    begun = []
    monkeypatch.setattr(progress.Watch, "begin", lambda self, what, total: begun.append(what))
    K, y = own_temporary[:10, :10], np.arange(10) % 2  # a view whose statistics need a pass
    with dask.config.set(scheduler=client), progress.watching(progress.Watch()):
        for work in (lambda: dmkl.search(learner, K, y, grid=grid, cv=2), lambda: learner.fit(K, y)):
            with pytest.raises(InputError, match=f"do not see {HERE}/tmp/dmkl-.*set TMPDIR to a folder"):
                work()
    assert not begun


def test_files_that_a_killed_refit_has_left_are_removed(stored, tmp_path):
    question = {"grid": {"p": [1], "lam": [0.1]}, "cv": 2, "state": tmp_path / "state", "baselines": "none"}
    first = dmkl.search(dmkl.MKFDA(), stored, **question)
    (tmp_path / "state" / "dmkl-left").mkdir()
    again = dmkl.search(dmkl.MKFDA(), stored, **question)
    np.testing.assert_array_equal(first.scores["score"], again.scores["score"])
    assert not (tmp_path / "state" / "dmkl-left").exists()


def test_what_fits_where_all_is_well(run, stored, client, tmp_path, monkeypatch):
    arguments = ["preflight", stored.view.source.location, "--cluster", client.scheduler.address, "--state", tmp_path]
    status, out, _ = run(*arguments)
    assert status == 0
    for words in (HOST, np.__version__, "direct α-step    yes", "1 host checked, none that cannot take part."):
        assert words in out
    assert not list(tmp_path.iterdir())
    with dask.config.set({"dmkl.memory": "4KiB"}):
        assert "direct α-step    no" in run(*arguments)[1]
    versions = {**preflight.versions_of(["zarr"]), "zarr": "99"}
    monkeypatch.setattr(preflight, "versions_of", lambda _: versions)
    assert f"warning {HOST} runs zarr " in run(*arguments)[1]
    assert f"dmkl: warning: {HOST} runs zarr " in run("check", *arguments[1:4])[2]


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="a machine with one core binds nothing")
def test_workers_that_share_a_core_are_told_of(run, stored, client):
    """The case of a SLURM step without the number of cores of its tasks."""
    before = client.run(os.sched_getaffinity, 0)
    words = f"{HOST} runs 2 threads of workers on 1 core, which makes them slow; give the workers more cores"
    try:
        client.run(os.sched_setaffinity, 0, {min(min(cores) for cores in before.values())})
        _, _, err = run("check", stored.view.source.location, "--cluster", client.scheduler.address)
    finally:
        for address, cores in before.items():
            client.run(os.sched_setaffinity, 0, cores, workers=[address])
    assert f"dmkl: warning: {words}" in err
    assert preflight.inspect_hosts()[0].differences == ()


def test_a_folder_that_cannot_be_written_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    (host,) = preflight.inspect_hosts()
    assert f"{HOST} cannot write temporary files in {tmp_path / 'nowhere'} (No such file" in host.problems[0]
