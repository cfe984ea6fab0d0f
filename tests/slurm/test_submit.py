"""A job file as a chain of jobs on a real SLURM."""

import re
import sys

import pytest
from distributed.utils import get_ip
from helpers.faults import assert_same, make_files, result
from helpers.private_slurm import SLOW

from dmkl.cli.main import main

pytestmark = pytest.mark.slurm

JOB = """
[data]
store = "set.zarr"

[model]
solver = "subspace"

[grid]
p = [1, 1.5]
lam = [1e-3, 1e-1]

[folds]
cv = 3
refit = false

[cluster]
place = "slurm"
cores = 1
memory = "1GiB"
interface = "lo"
walltime = "10"
worker_extra_args = "--preload slow.py"
job_script_prologue = ["{python} limit.py &"]

[outputs]
search = "found"
"""

LIMIT = """
import os, subprocess, time
from pathlib import Path
from dmkl.solvers.workspace import read_state

if len(list(Path().glob("job-*.out"))) > 2:
    raise SystemExit
before = read_state(Path("found.partial")).n_passes
while read_state(Path("found.partial")).n_passes < before + {passes}:
    time.sleep(0.01)
subprocess.run(["scancel", "--batch", "--signal={signal}", os.environ["SLURM_JOB_ID"]], check=True)
"""
"""A script that simulates the time limit of a job after a number of passes; the third job has no limit."""


@pytest.fixture
def job(tmp_path):
    """Write a job file with other values of some keys, its kernels, and a script that ends its time after `passes`."""

    def written(passes=1, signal="USR1", **values):
        make_files(tmp_path)
        text = JOB.format(python=sys.executable)
        for key, value in values.items():
            text = re.sub(rf"(?m)^{key} = .*\n", f"{key} = {value}\n" if value else "", text)
        (tmp_path / "job.toml").write_text(text)
        (tmp_path / "limit.py").write_text(LIMIT.format(passes=passes, signal=signal))
        (tmp_path / "slow.py").write_text(SLOW)
        return tmp_path / "job.toml"

    return written


def test_a_search_longer_than_its_walltime_ends_by_itself(output_of, slurm, job, tmp_path, watched):
    file = job()
    assert "Sent as job" in output_of("submit", file)
    content = file.read_text()
    file.write_text("[outputs]")  # queued and continued jobs use a copy
    watched(slurm)
    file.write_text(content)
    printed = [log.read_text() for log in sorted(tmp_path.glob("job-*.out"))]
    assert (tmp_path / "found.job.toml").exists(), "\n".join(printed)
    assert len(printed) == 3
    assert all("goes on" in text and "ended by SIGTERM" in text for text in printed[:-1])
    assert all("going on after pass" in text for text in printed[1:])
    assert not any("srun: " in text for text in printed)
    assert main(["run", str(file), "--into", str(tmp_path / "undisturbed"), "--cluster", "threads"]) == 0
    assert_same(result(tmp_path / "found"), result(tmp_path / "undisturbed" / "found"))
    assert not list(tmp_path.glob(".dmkl-*"))


@pytest.mark.parametrize(("passes", "signal", "told"), [(0, "USR1", "before it had done"), (1, "TERM", "")])
def test_a_job_that_did_nothing_or_is_canceled_is_the_last(
    output_of, slurm, job, tmp_path, watched, passes, signal, told
):
    output_of("submit", job(passes, signal))
    watched(slurm)
    (log,) = tmp_path.glob("job-*.out")
    assert told in log.read_text()
    assert "goes on\n" not in log.read_text()
    assert not (tmp_path / "found").exists()


NODES = "['export -n SLURM_JOB_NUM_NODES', 'SLURM_JOB_NUM_NODES=2']"
"""A prologue that makes a script assume a job of two nodes."""


@pytest.mark.parametrize(("prologue", "address"), [("[]", "127.0.0.1"), (NODES, get_ip())])
def test_without_an_interface_nothing_listens_on_all_of_them(
    slurm, output_of, job, tmp_path, watched, prologue, address
):
    output_of("submit", job(interface="", job_script_prologue=prologue))
    addresses, _ = watched(slurm)
    (log,) = tmp_path.glob("job-*.out")
    assert (tmp_path / "found.job.toml").exists(), log.read_text()
    assert addresses == {"127.0.0.1", address}
    assert "srun: " not in log.read_text()


def test_workers_may_use_all_the_cores_of_their_job(binding, output_of, job, tmp_path, watched):
    output_of("submit", job(cores=2, job_script_prologue=""))
    _, cores = watched(binding)
    (log,) = tmp_path.glob("job-*.out")
    assert (tmp_path / "found.job.toml").exists(), log.read_text()
    assert cores == {2}
    assert "which makes them slow" not in log.read_text()


@pytest.mark.usefixtures("slurm")
def test_what_sbatch_says_is_told(error_of, job):
    words = "SLURM refuses this job: sbatch: error: invalid partition specified: nosuch"
    assert words in error_of("submit", job(walltime='"10"\nqueue = "nosuch"'))
