"""A private SLURM of one node on the loopback interface; its daemons are child processes."""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from distributed.utils import open_port

SLOW = """\
import time
from dmkl.store.reader import StoreReader

def stream(self, keys, whole=StoreReader.stream):
    for pair in whole(self, keys):
        time.sleep(0.02)
        yield pair

StoreReader.stream = stream
"""
"""A preload script that makes workers slow on each tile, so that jobs end during a pass."""

_CLIENTS = ("sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun")

# `config_overrides`: more CPUs than the machine has, so that jobs of one core run in parallel on any machine.
# `NoInAddrAny`, `NoCtldInAddrAny`: daemons listen on the address of their node only.
# `cgroup.conf` in the same folder prevents slurmd from reading /etc.
_CONF = """\
ClusterName=private
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
AuthInfo=socket={folder}/munge.socket
PluginDir={plugins}
PlugStackConfig={folder}/plugstack.conf
StateSaveLocation={folder}/controller
SlurmdSpoolDir={folder}/node
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin={task}
PriorityType=priority/basic
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
PropagateResourceLimits=NONE
EnforcePartLimits=ANY
ReturnToService=2
KillWait=2
MinJobAge=60
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} {cores}RealMemory=8000 State=UNKNOWN
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName=closed Nodes=ALL MaxTime=INFINITE State=DOWN
"""


@dataclass(frozen=True)
class PrivateSlurm:
    """A running SLURM with partitions ``debug`` and ``closed``; jobs of ``closed`` never start."""

    folder: Path
    bin: Path
    """A folder for PATH, with sbatch, squeue … of this SLURM."""

    def __call__(self, program: str, *arguments: object) -> str:
        """Run a program of this SLURM, and return its output."""
        command = [str(self.bin / program), *map(str, arguments)]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout.strip()

    def jobs(self, state: str = "PENDING,RUNNING") -> list[int]:
        return sorted(map(int, self("squeue", "--noheader", "--format=%A", f"--states={state}").split()))


def find_programs(unpacked: Path) -> Path | None:
    """The root of a SLURM installation: a folder of unpacked packages, or ``/``; None if there is none."""
    roots = (unpacked, Path("/"))
    return next((root for root in roots if _program(root, "slurmctld") and _program(root, "munged")), None)


def _program(root: Path, name: str) -> Path | None:
    """Find a program by its name or, in Debian packages, by its name with the suffix ``-wlm``."""
    folders = ("usr/sbin", "usr/bin", "usr/local/sbin", "usr/local/bin")
    found = (root / folder / (name + suffix) for suffix in ("", "-wlm") for folder in folders)
    return next((path for path in found if path.exists()), None)


@contextmanager
def private_slurm(root: Path, folder: Path, *, cpus: int = 4, bind: bool = False) -> Iterator[PrivateSlurm]:
    """Run a SLURM with programs below `root` and files in `folder`, whose path must be short.

    With `bind` the tasks of a step are bound to the requested cores, out of `cpus`.
    """
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    for name in ("bin", "controller", "node"):
        (folder / name).mkdir()
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    plugins = next(root.glob("usr/lib/*-linux-gnu/slurm-wlm"))
    if root != Path("/"):
        environment["LD_LIBRARY_PATH"] = f"{plugins}:{plugins.parent}"
    (folder / "slurm.conf").write_text(
        _CONF.format(
            host=socket.gethostname().split(".")[0],
            user=getpass.getuser(),
            folder=folder,
            plugins=plugins,
            cpus=cpus,
            task="task/affinity" if bind else "task/none",
            cores=f"Boards=1 SocketsPerBoard=1 CoresPerSocket={cpus} ThreadsPerCore=1 CpuBind=core " if bind else "",
            ports=[open_port("127.0.0.1") for _ in range(2)],
        )
    )
    (folder / "plugstack.conf").touch()
    (folder / "cgroup.conf").write_text("CgroupPlugin=autodetect\n")
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(1024))
    for name in _CLIENTS:
        # Wrappers need no environment variables of the caller, and pass none of their own to jobs.
        variables = f"SLURM_CONF='{folder}/slurm.conf' LD_LIBRARY_PATH='{environment.get('LD_LIBRARY_PATH', '')}'"
        wrapper = folder / "bin" / name
        wrapper.write_text(f"#!/bin/sh\n{variables} exec '{_program(root, name)}' \"$@\"\n")
        wrapper.chmod(0o755)
    slurm = PrivateSlurm(folder, folder / "bin")
    munge = ["--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket"]
    munge += [f"--pid-file={folder}/munged.pid", f"--seed-file={folder}/munged.seed", "--num-threads=2"]
    with ExitStack() as daemons:
        for name, options in {
            "munged": munge,  # --force: accept a folder without access for others
            "slurmctld": ["-D", "-f", f"{folder}/slurm.conf"],
            "slurmd": ["-D", "-f", f"{folder}/slurm.conf", "-d", str(_program(root, "slurmstepd"))],
        }.items():
            daemons.enter_context(_daemon(_program(root, name), options, folder / f"{name}.log", environment))
        _wait_until_idle(slurm)
        try:
            yield slurm
        finally:
            # The processes of jobs would outlive the daemons.
            slurm("scancel", f"--user={getpass.getuser()}")
            deadline = time.monotonic() + 15
            while slurm("squeue", "--noheader") and time.monotonic() < deadline:
                time.sleep(0.1)


@contextmanager
def _daemon(program: Path, options: list[str], log: Path, environment: dict[str, str]) -> Iterator[None]:
    with_us = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []
    with log.open("w") as out:
        running = subprocess.Popen(
            [*with_us, str(program), *options], env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
    try:
        yield
    finally:
        running.terminate()
        try:
            running.wait(10)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


def _wait_until_idle(slurm: PrivateSlurm) -> None:
    for _ in range(300):
        with suppress(subprocess.CalledProcessError):  # the controller does not answer yet
            if slurm("sinfo", "--noheader", "--format=%T", "--partition=debug") == "idle":
                return
        time.sleep(0.1)
    logs = "\n".join(f"{log.name}: {log.read_text()[-1500:]}" for log in sorted(slurm.folder.glob("*.log")))
    msg = f"the node of a private SLURM is not idle after 30 s\n{logs}"
    raise RuntimeError(msg)
