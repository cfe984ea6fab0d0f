"""Fixtures of fault tests: input files, results without faults, and folders of each test."""

import shutil
import subprocess

import pytest
from helpers.faults import PHASES, assert_same, disturbed, make_files, result, tasks_before, told
from helpers.power import Disk

from dmkl.cli.main import main


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    return make_files(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory, files):
    """The result of a phase without faults, computed once."""
    folder, results = tmp_path_factory.mktemp("undisturbed"), {}

    def of(phase):
        if phase not in results:
            out = folder / phase.replace(" ", "-")
            assert main(PHASES[phase].command(files, out)) == 0
            results[phase] = result(out)
        return results[phase]

    return of


@pytest.fixture
def places(tmp_path, files, monkeypatch):
    """The input files and output of one test, with a temporary folder that must be empty at the end."""
    own, scratch, out = tmp_path / "files", tmp_path / "scratch", tmp_path / "outputs" / "out"
    shutil.copytree(files, own)
    for folder in (scratch, out.parent):
        folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr("tempfile.tempdir", None)
    yield own, out
    assert [entry.name for entry in scratch.iterdir() if entry.name != "dask-scratch-space"] == []  # folder of Dask


@pytest.fixture
def disturb(run, places):
    """Run the command of a phase, and call a function when some tasks have ended; return status, errors and notes."""

    def call(phase, act, *more, after=None, cluster="threads"):
        with disturbed(act, after or tasks_before(phase)) as acted:
            status, _, err = run(*PHASES[phase].command(*places, cluster), *more)
        assert acted
        return status, *told(err)

    return call


@pytest.fixture
def goes_on(run, places, undisturbed):
    """Run the command of a phase, which has the undisturbed result and leaves nothing else; return its messages."""

    def call(phase, cluster="threads"):
        status, _, err = run(*PHASES[phase].command(*places, cluster))
        assert status == 0, err
        assert_same(result(places[1]), undisturbed(phase))
        assert [entry.name for entry in places[1].parent.iterdir()] == ["out"]
        return err

    return call


@pytest.fixture
def disk(tmp_path):
    """An ext4 file system; the test is skipped where it cannot be mounted."""
    (folder := tmp_path / "disks").mkdir()
    try:
        disk = Disk(folder)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no image can be mounted: {error}")
    yield disk
    disk.close()
