"""Jobs of pipelines/ in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def run_job():
    """A function that runs a job in a folder and returns what it prints, or its error."""

    def run(job, *arguments, cwd, status=0, **variables):
        script = Path(__file__).parents[2] / "pipelines" / job
        command, env = [sys.executable, str(script), *map(str, arguments)], os.environ | variables
        done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=250, check=False)
        assert done.returncode == status, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stderr if status else done.stdout

    return run
