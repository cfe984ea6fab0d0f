"""Jobs of pipelines/ in processes of their own."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def run_job():
    """A function that runs a job in a folder and returns what it prints."""

    def run(job, *arguments, cwd):
        script = Path(__file__).parents[2] / "pipelines" / job
        command = [sys.executable, str(script), *map(str, arguments)]
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=250, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout

    return run
