"""The files that disturbed commands work on, what comes out undisturbed, and places of a test's own."""

from __future__ import annotations

import shutil

import pytest
from helpers.faults import PHASES, make_files, result

from dmkl.cli.main import main


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    return make_files(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory, files):
    """The result of a phase that nothing disturbs, computed once."""
    folder, known = tmp_path_factory.mktemp("undisturbed"), {}

    def of(phase):
        if phase not in known:
            out = folder / phase.replace(" ", "-")
            assert main(PHASES[phase].command(files, out)) == 0
            known[phase] = result(out)
        return known[phase]

    return of


@pytest.fixture
def places(tmp_path, files, monkeypatch):
    """Files of this test's own, its output, and its folder for temporary files, which must be empty in the end."""
    own, scratch, out = tmp_path / "files", tmp_path / "scratch", tmp_path / "outputs" / "out"
    shutil.copytree(files, own)
    for folder in (scratch, out.parent):
        folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr("tempfile.tempdir", None)
    yield own, out
    assert [entry.name for entry in scratch.iterdir() if entry.name != "dask-scratch-space"] == []  # Dask's own stays
