"""Limits of a process: simulated control groups, environments of SLURM, resource settings."""

import itertools
import subprocess
import sys
from types import SimpleNamespace

import dask
import psutil
import pytest

from dmkl import settings

MIB = 2**20


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine with 16 cores and 64 GiB free; the returned function writes cgroup files and names the own cgroups."""
    for name in ("CPUS_PER_TASK", "CPUS_ON_NODE", "MEM_PER_NODE", "MEM_PER_CPU", "JOB_ID"):
        monkeypatch.delenv(f"SLURM_{name}", raising=False)
    monkeypatch.setattr(settings, "_VALID_SECONDS", 1e-9)
    monkeypatch.setattr(settings, "cpu_count", lambda: 16)
    free = psutil.virtual_memory()._replace(available=65536 * MIB)
    monkeypatch.setattr(settings.psutil, "virtual_memory", lambda: free)
    monkeypatch.setattr(settings, "_memory_left_by_rlimits", lambda: iter(()))
    monkeypatch.setattr(settings, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(settings, "OWN_CGROUPS", tmp_path / "own")

    def set_up(own, files):
        (tmp_path / "own").write_text(own)
        for name, text in files.items():
            file = tmp_path / "cgroup" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    return set_up


V2 = "0::/slurm/job_7/step_0\n"
V1 = "4:memory:/slurm/uid_0/job_7\n3:cpu,cpuacct:/slurm\n1:name=systemd:/\n"


@pytest.mark.parametrize(
    ("own", "files", "cores", "mib"),
    [
        ("", {}, 16, 65536),
        (V2, {"slurm/job_7/step_0/memory.max": "max", "slurm/job_7/step_0/cpu.max": "max 100000"}, 16, 65536),
        # limits of a step, of its job, and of a container whose own cgroup is the root
        (V2, {"slurm/job_7/step_0/memory.max": f"{1024 * MIB}", "slurm/job_7/cpu.max": "250000 100000"}, 3, 1024),
        (V2, {"slurm/job_7/memory.high": f"{512 * MIB}", "slurm/job_7/step_0/memory.max": f"{1024 * MIB}"}, 16, 512),
        (V2, {"memory.max": f"{300 * MIB}", "cpu.max": "50000 100000"}, 1, 300),
        # used memory counts, without the page cache
        (
            V2,
            {
                "slurm/memory.max": f"{1000 * MIB}",
                "slurm/memory.current": f"{700 * MIB}",
                "slurm/memory.stat": f"anon 1\ninactive_file {100 * MIB}\nactive_file {50 * MIB}\nshmem 5\n",
            },
            16,
            450,
        ),
        (
            V1,
            {
                "memory/slurm/uid_0/memory.limit_in_bytes": f"{2000 * MIB}",
                "memory/slurm/uid_0/memory.usage_in_bytes": f"{1000 * MIB}",
                "memory/slurm/uid_0/memory.stat": f"inactive_file 3\ntotal_inactive_file {200 * MIB}\n",
                "memory/memory.limit_in_bytes": "9223372036854771712",
                "cpu,cpuacct/slurm/cpu.cfs_quota_us": "400000",
                "cpu,cpuacct/slurm/cpu.cfs_period_us": "100000",
                "cpu,cpuacct/cpu.cfs_quota_us": "-1",
            },
            4,
            1200,
        ),
        # version 1 as mounted by Docker: paths of the host, the own group at the root
        ("4:memory:/docker/abc\n", {"memory/memory.limit_in_bytes": f"{100 * MIB}"}, 16, 100),
    ],
)
def test_control_groups(machine, own, files, cores, mib):
    machine(own, files)
    assert (settings.available_cores(), settings.free_bytes()) == (cores, mib * MIB)


@pytest.mark.parametrize(
    ("granted", "cores", "mib"),
    [
        ({"CPUS_PER_TASK": 1, "CPUS_ON_NODE": 4, "MEM_PER_NODE": 1024}, 1, 1024),
        ({"CPUS_ON_NODE": 4, "MEM_PER_CPU": 500}, 4, 2000),
        ({"CPUS_ON_NODE": 64, "MEM_PER_NODE": 0}, 16, 65536),  # more cores than the affinity; all memory
    ],
)
def test_what_slurm_grants(machine, monkeypatch, granted, cores, mib):
    for name, value in granted.items():
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    taken = psutil.Process().memory_info()._replace(rss=24 * MIB)
    monkeypatch.setattr(settings.psutil.Process, "memory_info", lambda _: taken)
    assert settings.available_cores() == cores
    assert settings.free_bytes() == (mib - 24 if mib < 65536 else mib) * MIB
    assert settings.memory_budget_bytes() == int(0.6 * settings.free_bytes())


def test_limits_are_read_again_after_a_tenth_of_a_second(machine, monkeypatch):
    sizes = itertools.count(1)
    monkeypatch.setattr(settings.psutil, "virtual_memory", lambda: SimpleNamespace(available=next(sizes)))
    clock = iter([7.01, 7.02, 7.09, 7.13, 7.19, 9.0])
    monkeypatch.setattr(settings, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(settings, "_VALID_SECONDS", 0.1)
    assert [settings.free_bytes() for _ in range(6)] == [1, 1, 1, 2, 2, 3]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems limit other things")
def test_resource_limits():
    code = (
        "import resource\nfrom dmkl import settings\n"
        "for name in (resource.RLIMIT_AS, resource.RLIMIT_DATA):\n"
        "    before = resource.getrlimit(name)\n"
        "    resource.setrlimit(name, (2**31, before[1]))\n"
        "    print(settings.free_bytes())\n"
        "    resource.setrlimit(name, before)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert all(0 < int(line) < 2**31 for line in done.stdout.split())


@pytest.mark.parametrize(
    ("budget", "tasks"), [("100MiB", 1), ("300MiB", 1), ("600MiB", 2), ("4GiB", 16), ("64GiB", 16)]
)
def test_a_small_budget_has_fewer_tasks_at_once(machine, budget, tasks):
    with dask.config.set({"dmkl.memory": budget}):
        assert settings.tasks_at_once() == tasks
