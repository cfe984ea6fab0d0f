"""What importing dmkl costs: names are imported when they are first used."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import dmkl
from dmkl.cli.commands import COMMANDS, command

HEAVY = (
    "clarabel",
    "dask",
    "distributed",
    "matplotlib",
    "numba",
    "numpy",
    "pandas",
    "scipy",
    "sklearn",
    "xarray",
    "zarr",
)


def loaded(code):
    """The heavy modules that a fresh interpreter has loaded after some code."""
    report = f"{code}; import sys; print(*(m for m in {HEAVY!r} if m in sys.modules))"
    return subprocess.run([sys.executable, "-c", report], check=True, capture_output=True, text=True).stdout.split()


def test_importing_dmkl_imports_nothing_heavy():
    assert loaded("import dmkl, dmkl.errors") == []


def test_help_imports_nothing_heavy():
    help_of_all = [["--help"], *([name, "--help"] for name in COMMANDS), ["fit", "--model", "gsmkl", "--help"]]
    code = "import io, contextlib, dmkl.cli.main as cli\nwith contextlib.redirect_stdout(io.StringIO()) as out:\n"
    code += f"    assert [cli.main(line) for line in {help_of_all!r}] == [0] * {len(help_of_all)}\n"
    code += "assert out.getvalue().count('Usage') == " + str(len(help_of_all)) + "\npass"
    assert loaded(code) == []


@pytest.mark.parametrize("name", COMMANDS)
def test_the_line_of_help_is_the_first_of_the_command(name):
    assert COMMANDS[name][1] == inspect.getdoc(command(name)).splitlines()[0]


def test_opening_a_set_needs_no_learner():
    assert not {"clarabel", "matplotlib", "numba", "sklearn"} & set(loaded("import dmkl; dmkl.open"))


def test_what_only_some_fits_need_waits_for_them():
    assert not {"distributed", "matplotlib", "numba"} & set(
        loaded("import dmkl; [getattr(dmkl, n) for n in dir(dmkl)]")
    )


def test_small_fits_start_no_cluster(tmp_path, stored):
    learners = ["mkfda", "single-best", "mkridge"]
    lines = [["fit", str(stored.view.source.location), str(tmp_path / name), "--model", name] for name in learners]
    code = "import sys; from dmkl.cli.main import main; sys.stdout = sys.stderr; "
    code += f"assert [main(line) for line in {lines!r}] == [0, 0, 0]; sys.stdout = sys.__stdout__"
    assert not {"distributed", "matplotlib", "numba"} & set(loaded(code))


def test_every_public_name_is_there():
    assert {"MKFDA", "create", "open", "search", "errors", "load"} <= set(dir(dmkl))
    for name in dir(dmkl):
        assert getattr(dmkl, name) is not None
    with pytest.raises(AttributeError, match="MKFD"):
        dmkl.MKFD  # noqa: B018
