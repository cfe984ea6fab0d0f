"""Jobs on a real SLURM of one node: from files to predictions, lost jobs, jobs that never start."""

import os
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
from helpers.faults import M, assert_same, disturbed, make_files, result
from helpers.private_slurm import SLOW

import dmkl
from dmkl.cli.main import main

pytestmark = pytest.mark.slurm

JOB = {"cores": 1, "processes": 1, "memory": "1GiB", "interface": "lo"}
PLACE = "slurm cores=1 processes=1 memory=1GiB interface=lo jobs=2"


@pytest.fixture
def slow(tmp_path):
    """Options, after the place of a cluster, that make the workers of jobs slow."""
    file = tmp_path / "slow.py"
    file.write_text(SLOW)
    return f" worker_extra_args='--preload {file}'"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = make_files(tmp_path_factory.mktemp("files"))
    np.savetxt(folder / "labels.txt", np.arange(M) % 3, fmt="%d")
    return folder


GRID = ("-p", "1,1.5", "--lam", "1e-3,1e-1", "--cv", "3", "--solver", "subspace", "--no-refit")


@pytest.fixture(scope="module")
def undisturbed(files):
    """The scores of a search in threads, without faults."""
    assert main(["search", str(files / "set.zarr"), str(files / "found"), *GRID, "--cluster", "threads"]) == 0
    return result(files / "found")


def test_from_files_to_predictions_with_a_job_lost_in_a_pass(output_of, slurm, tmp_path, monkeypatch, files, slow):
    monkeypatch.chdir(tmp_path)
    both = {}
    for place in ("threads", PLACE):
        out = tmp_path / place[:5]
        out.mkdir()
        output_of("import", out / "imported.zarr", files / "kernels.npy", "--tile", 9)
        one, features = ["--cluster", place], [files / "features.npz", "--labels", files / "labels.txt", "--tile", 9]
        output_of("build", out / "built.zarr", *features, "--function", "rbf", "--bandwidth", "0.3,1", *one)
        search = ("search", out / "built.zarr", out / "found", *GRID[:-1], "--cluster")
        if place == "threads":
            output_of(*search, place)
        else:
            with disturbed(lambda: slurm("scancel", slurm.jobs()[0]), after=40) as acted:
                output_of(*search, place + slow)
        predicted = ["--features", files / "features.npz", "--out", out / "predicted.csv"]
        output_of("predict", out / "found", *predicted, *one)
        both[place] = result(out / "found"), (out / "predicted.csv").read_text()
    assert acted
    (expected, table), (scores, table_of_jobs) = both.values()
    assert_same(scores, expected)
    assert table == table_of_jobs
    assert not list(tmp_path.glob("slurm-*"))
    assert list((tmp_path / "state" / "dmkl" / "jobs").glob("dmkl-*.err"))


def test_a_search_goes_on_when_all_jobs_were_lost(notes_of, slurm, run, tmp_path, files, undisturbed, slow):
    out = tmp_path / "found"

    def shut():
        slurm("scontrol", "update", "PartitionName=debug", "State=DOWN")
        slurm("scancel", *slurm.jobs())

    search = ("search", files / "set.zarr", out, *GRID, "--cluster")
    with disturbed(shut, after=40) as acted:
        try:
            status, _, err = run(*search, PLACE + " wait=4s" + slow)
        finally:
            slurm("scontrol", "update", "PartitionName=debug", "State=UP")
    assert acted
    assert status == 1, err
    told = err.strip().splitlines()
    assert "all workers of the jobs have ended, and SLURM has given no other within 4 s: job" in told[-1]
    assert "PENDING (PartitionDown)" in told[-1]
    assert "the same command continues after pass" in told[-2]
    err = notes_of(*search, PLACE)
    assert "going on after pass" in err
    assert_same(result(out), undisturbed)


@pytest.mark.usefixtures("slurm")
def test_jobs_that_never_start_are_one_plain_line(error_of, files):
    for options, told in (
        ("queue=closed wait=2s", "SLURM has given no worker within 2 s: job"),
        ("python=/nosuch/python", "/nosuch/python: No such file or directory"),
    ):
        assert told in error_of("check", files / "set.zarr", "--cluster", f"{PLACE} {options}")


def test_a_job_with_several_workers_is_replaced(slurm):
    with dmkl.cluster("slurm", **{**JOB, "cores": 2, "processes": 2}) as client:
        assert len(client.nthreads()) == 2
        before = slurm.jobs()
        slurm("scancel", *before)
        assert client.submit(sum, [1, 2]).result(60) == 3
        assert not set(before) & set(slurm.jobs())


@pytest.mark.parametrize("interface", ["lo", None])
def test_workers_and_scheduler_listen_on_one_interface(slurm, interface):
    def listening(*processes):
        connections = [one for process in processes for one in process.net_connections(kind="tcp")]
        return [one.laddr.ip for one in connections if one.status == psutil.CONN_LISTEN]

    with dmkl.cluster("slurm", **{**JOB, "interface": interface}) as client:
        host = client.scheduler.address.removeprefix("tcp://").rpartition(":")[0]
        found = set(listening(psutil.Process()))
        (worker,) = client.run(lambda: listening(psutil.Process(), psutil.Process().parent())).values()
    assert len(worker) >= 2
    assert set(worker) == {host, "127.0.0.1"}
    assert found == {host}
    assert interface is None or host == "127.0.0.1"


def test_jobs_end_with_the_context_whatever_ends_it(slurm):
    with suppress(ZeroDivisionError), dmkl.cluster("slurm", **JOB):
        assert len(slurm.jobs()) == 1
        raise ZeroDivisionError
    deadline = time.monotonic() + 10
    while slurm.jobs() and time.monotonic() < deadline:
        time.sleep(0.1)


DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Return a function that adapts a script of `deploy/` to this machine."""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    monkeypatch.setenv("HOME", str(tmp_path))

    def changed(name):
        text = (DEPLOY / name).read_text()
        assert "ib0" in text
        (tmp_path / name).write_text(text.replace("ib0", "lo").replace("processes=4", "processes=1"))
        return tmp_path / name

    return changed


def test_all_in_one_allocation(binding, script, tmp_path, files, watched):
    resources = ["--nodes=1", "--cpus-per-task=2", "--mem=2G", f"--chdir={tmp_path}"]
    binding("sbatch", *resources, script("allocation.sbatch"), "check", files / "set.zarr")
    _, cores = watched(binding)
    (printed,) = tmp_path.glob("dmkl-*.out")
    assert "kernels checked: 0 errors" in printed.read_text()
    assert cores == {2}
    assert "srun: " not in printed.read_text()
    assert not list(tmp_path.glob("dmkl-*.json*"))


def test_a_scheduler_in_a_job_of_its_own(output_of, slurm, script, tmp_path, files):
    resources = ["--mem=1G", f"--chdir={tmp_path}", "--parsable"]
    jobs = [slurm("sbatch", *resources, script("scheduler.sbatch"))]
    try:
        jobs.append(slurm("sbatch", *resources, "--array=1-2", "--cpus-per-task=1", script("workers.sbatch")))
        file = tmp_path / "dmkl-scheduler.json"
        deadline = time.monotonic() + 60
        while not (file.exists() and file.read_text()) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert "0 errors" in output_of("check", files / "set.zarr", "--cluster", file)
    finally:
        slurm("scancel", *jobs)
        while slurm.jobs():
            time.sleep(0.1)
