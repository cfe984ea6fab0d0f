"""Messages about jobs, and submitted scripts; a stub program replaces the batch system."""

import re
import subprocess
import sys

import dask
import pytest

import dmkl
from dmkl.errors import InputError, NoWorkersError

ENOUGH = {"cores": 4, "memory": "8GiB"}


@pytest.fixture
def sbatch(tmp_path, monkeypatch):
    """A stub of sbatch that stores the submitted script and refuses the job."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "sbatch"
    program.write_text(f'#!/bin/sh\ncp "$2" {tmp_path}/job.sh\necho "sbatch: error: no such account" >&2\nexit 1\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def script_of(tmp_path, where="slurm", **options):
    """The submitted script."""
    with pytest.raises(NoWorkersError, match="no such account"), dmkl.cluster(where, **options):
        pass
    return (tmp_path / "job.sh").read_text()


@pytest.mark.usefixtures("sbatch")
def test_a_script_says_what_was_given_and_then_what_is_configured(tmp_path):
    configured = {
        "queue": "slow", "account": "lab", "cores": 8, "processes": 8, "memory": "64GiB",
        "worker-extra-args": ["--resources", "x=1"],
    }  # fmt: skip
    with dask.config.set({f"jobqueue.slurm.{key}": value for key, value in configured.items()}):
        script = script_of(tmp_path, queue="short", walltime="04:00:00", job_extra_directives=["--exclusive"])
    directives = re.findall(r"^#SBATCH (.*)$", script, re.MULTILINE)
    assert {"-p short", "-A lab", "--cpus-per-task=8", "--mem=64G", "-t 04:00:00", "--exclusive"} <= set(directives)
    assert f"-o {tmp_path}/state/dmkl/jobs/dmkl-%J.out" in directives
    # --host has the address of the scheduler for workers, unless an interface is named.
    for words in ("--nworkers 8", "--resources x=1", "--local-directory ${TMPDIR:-/tmp}", "--host $("):
        assert words in script
    assert (tmp_path / "state" / "dmkl" / "jobs").stat().st_mode & 0o777 == 0o700
    named = script_of(tmp_path, **ENOUGH, interface="ib7", scheduler_interface="lo")
    assert "--interface ib7" in named
    assert "--host" not in named


@pytest.mark.usefixtures("sbatch")
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("toml", 'class = "SLURMCluster"\ncores = 2\nmemory = "4G"\nwalltime = 01:00:00\njob_script_prologue = ["a"]'),
        ("yaml", 'class: slurm\ncores: 2\nmemory: 4GiB\nwalltime: "01:00:00"\njob-script-prologue: [a]\n'),
    ],
)
def test_a_file_describes_jobs_and_options_come_before_it(tmp_path, kind, text):
    file = tmp_path / f"cluster.{kind}"
    file.write_text(text)
    script = script_of(tmp_path, file, cores=3, processes=1)
    for directive in ("--cpus-per-task=3", "-t 01:00:00"):
        assert f"#SBATCH {directive}\n" in script
    assert re.search(r"\nexport MALLOC_TRIM_THRESHOLD_=\d+ MALLOC_MMAP_THRESHOLD_=\d+\na\n", script)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.toml", 'class = "slurm"\n\nquue = "x"\n', r"a\.toml, line 3: slurm takes no 'quue' \(did you mean queue"),
        ("a.yaml", "class: pbs\nsecurity: x\n", r"a\.yaml, line 2: pbs takes no 'security'"),
        ("a.toml", 'class = "slurm"\ncores = "many"\n', r"line 2: cores must be the number of cores .*, got 'many'"),
        ("a.yaml", "class: slurm\nwalltime: 4:00:00\n", r'walltime must be .*in quotes: "04:00:00", got 14400'),
        ("a.toml", 'class = "slurm"\njobs = 2\nminimum = 1\n', r"line 2: give jobs, or minimum and maximum"),
        ("a.toml", 'class = "slurm"\nminimum = 3\nmaximum = 2\n', r"minimum is 3, more than maximum, 2"),
        ("a.toml", 'class = "slurn"\n', r"line 1: class must be one of .*, got 'slurn' \(did you mean slurm"),
        ("a.toml", "cores = \n", r"is not valid TOML"),
        ("a.toml", "class = " + "[" * 20_000 + "]" * 20_000, r"nested deeper than 32 levels"),
        ("a.yaml", "class: !!python/object:os.system x\n", r"is not valid YAML"),
    ],
)
def test_a_description_that_breaks_a_rule_is_told_by_its_line(tmp_path, name, content, words):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=words), dmkl.cluster(tmp_path / name):
        pass


@pytest.mark.usefixtures("sbatch")
def test_what_is_missing_is_told_before_anything_is_submitted(monkeypatch, tmp_path):
    for options, words in (
        ({"memory": "8GiB"}, "needs the cores and the memory of a job, and cores is missing"),
        ({**ENOUGH, "interface": "ib7"}, "ib7 is no network interface of this machine, which has .*lo"),
    ):
        with pytest.raises(InputError, match=words):
            dmkl.cluster("slurm", **options).__enter__()
    assert not (tmp_path / "job.sh").exists()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="submitted with sbatch, which is not on this machine"):
        dmkl.cluster("slurm", **ENOUGH).__enter__()


def test_ctrl_c_still_interrupts():
    """An import of dask-jobqueue alone makes Ctrl-C end the process."""
    code = "import signal; from dmkl.clusters.job_options import batch_system; batch_system('slurm');"
    code += "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.usefixtures("sbatch")
def test_options_of_jobs_on_the_command_line(error_of, store, tmp_path):
    place = "slurm cores=2 queue=short job-extra-directives=--exclusive job-extra-directives='--gres gpu:1'"
    err = error_of("check", store, "--cluster", place, "--memory", "2GiB")
    assert "SLURM refuses these jobs: sbatch: error: no such account. See sinfo" in err
    script = (tmp_path / "job.sh").read_text()
    assert all(f"#SBATCH {words}\n" in script for words in ("-p short", "--mem=2G", "--exclusive", "--gres gpu:1"))
