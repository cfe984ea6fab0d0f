"""The version changes with the files of the package, and is git's name of their folder."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dmkl
from dmkl._version import RELEASE

PACKAGE = Path(dmkl.__file__).parent


@pytest.fixture
def copied(tmp_path):
    """A copy of the package, without git."""
    return shutil.copytree(PACKAGE, tmp_path / "dmkl", ignore=shutil.ignore_patterns("__pycache__"))


def version_of(copied):
    """The version that a new process prints which imports the copy."""
    command = [sys.executable, "-c", "import dmkl; print(dmkl.__version__)"]
    environment = {**os.environ, "PYTHONPATH": str(copied.parent)}
    done = subprocess.run(command, cwd=copied.parent, env=environment, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_it_changes_with_each_file(copied):
    assert version_of(copied) == version_of(copied) == dmkl.__version__  # the second with compiled modules
    module = copied / "numerics" / "steps.py"
    module.write_bytes(module.read_bytes().replace(b"\n", b"\r\n"))
    assert version_of(copied) == dmkl.__version__
    module.write_bytes(module.read_bytes() + b"\n")
    assert version_of(copied) != dmkl.__version__
    assert version_of(copied).startswith(f"{RELEASE}+")


@pytest.mark.skipif(shutil.which("git") is None, reason="this machine has no git")
def test_it_is_the_name_that_git_gives_to_the_folder(copied):
    def git(*arguments):
        return subprocess.run(["git", *arguments], cwd=copied.parent, check=True, capture_output=True, text=True).stdout

    git("init", "--quiet")
    git("add", "dmkl")
    assert git("write-tree", "--prefix=dmkl/").startswith(dmkl.__version__.partition("+")[2])
