"""Sending a script to SLURM."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from dmkl.clusters.batch_systems import one_line
from dmkl.errors import InputError

__all__ = ["send"]

_ANSWER_SECONDS = 60


def send(script: Path) -> str:
    """Send a script, and return the number of its job.

    Raises
    ------
    InputError
        If there is no sbatch, or it refuses the job: with its words.
    """
    if shutil.which("sbatch") is None:
        msg = (
            "sbatch is not on this machine: submit where it is (a login node), look at the script with --dry-run, or "
            "compute here with dmkl run"
        )
        raise InputError(msg)
    try:
        sent = subprocess.run(
            ["sbatch", "--parsable", str(script)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        msg = f"sbatch does not answer within {_ANSWER_SECONDS} s; see with squeue whether the job was taken"
        raise InputError(msg) from error
    if sent.returncode != 0:
        msg = f"SLURM refuses this job: {one_line(sent.stderr) or f'exit status {sent.returncode}'}"
        raise InputError(msg)
    return sent.stdout.strip().partition(";")[0]
