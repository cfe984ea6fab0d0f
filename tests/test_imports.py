"""The cost of an import of dmkl: modules are imported at their first use."""

import inspect
import subprocess
import sys

import numpy as np
import pytest

import dmkl
from dmkl.cli.commands import COMMANDS, command, line_of_help
from dmkl.cli.learners import learners

HEAVY = "clarabel dask dask.array distributed matplotlib numba numpy pandas scipy sklearn xarray zarr".split()
HEAVY += ["scipy.stats", "sklearn.metrics", "sklearn.model_selection", "dmkl.features.specs"]
LEARNERS = ("mkfda", "single-best", "mkridge")


def loaded(*stages):
    """The heavy modules loaded by a new interpreter after each stage of some code."""
    code = ["import contextlib, io, sys"]
    for stage in stages:
        code += [stage, f"print(*(module for module in {HEAVY!r} if module in sys.modules))"]
    done = subprocess.run([sys.executable, "-c", "\n".join(code)], check=True, capture_output=True, text=True)
    return [set(line.split()) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_what_is_imported_when(tmp_path, stored):
    """dmkl and help load no heavy modules, imports no tables, and small fits only the modules they need."""
    assert learners()  # their options are in a file now
    np.save(tmp_path / "kernel.npy", np.eye(6))
    (tmp_path / "labels.txt").write_text("a\nb\n" * 3)
    imports = [["import", *(str(tmp_path / name) for name in ("set.zarr", "kernel.npy")), "--labels"]]
    imports[0].append(str(tmp_path / "labels.txt"))
    store = str(stored.view.source.location)
    help_of_all = [["--help"], *([name, "--help"] for name in COMMANDS), ["fit", "--model", "gsmkl", "--help"]]
    fits = [["fit", store, str(tmp_path / name), "--model", name] for name in LEARNERS]
    run_all = (
        "with contextlib.redirect_stdout(io.StringIO()) as out:\n"
        "    assert {{cli.main(line) for line in {lines!r}}} == {{0}}\n"
    )
    imported, helped, filled, opened, named, fitted = loaded(
        "import dmkl, dmkl.errors",
        "import dmkl.cli.main as cli\n"
        + run_all.format(lines=help_of_all)
        + f"assert out.getvalue().count('Usage') == {len(help_of_all)}",
        run_all.format(lines=imports),
        "dmkl.open",
        "[getattr(dmkl, name) for name in dir(dmkl) if not name.startswith('plot_')]",
        run_all.format(lines=fits),
    )
    assert imported == set()
    assert helped == set()
    assert filled == opened == {"dask", "numpy", "zarr"}
    never = {"distributed", "matplotlib", "numba"}
    assert not (named | fitted) & never
    alone = [["fit", store, str(tmp_path / "alone"), "--split", "0"], ["predict", str(tmp_path / "alone"), store]]
    (used,) = loaded("import dmkl.cli.main as cli\n" + run_all.format(lines=alone))
    assert not used & (never | {"dmkl.features.specs", "scipy.stats", "sklearn.metrics", "sklearn.model_selection"})


@pytest.mark.parametrize("name", COMMANDS)
def test_the_line_of_help_is_the_first_of_the_command(name):
    assert line_of_help(name) == inspect.getdoc(command(name)).splitlines()[0]


def test_every_public_name_is_there():
    assert {"MKFDA", "create", "open", "search", "errors", "load"} <= set(dir(dmkl))
    for name in dir(dmkl):
        assert getattr(dmkl, name) is not None
    with pytest.raises(AttributeError, match="MKFD"):
        dmkl.MKFD  # noqa: B018


ELSEWHERE = """
import builtins, importlib, os, pkgutil, signal, types
import dmkl

reduced = {}
for module in (os, signal):
    there = reduced[module.__name__] = types.ModuleType(module.__name__)
    vars(there).update({name: value for name, value in vars(module).items() if name not in POSIX_NAMES})

def import_there(name, variables=None, *more, whole=builtins.__import__, **named):
    # Other packages have modules of their own for each system.
    of_dmkl = (variables or {}).get("__name__", "").startswith("dmkl.")
    if of_dmkl and name in POSIX_MODULES:
        raise ModuleNotFoundError(name)
    return reduced[name] if of_dmkl and name in reduced else whole(name, variables, *more, **named)

builtins.__import__ = import_there
for module in pkgutil.walk_packages(dmkl.__path__, "dmkl."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""


@pytest.mark.slow
def test_every_module_is_imported_without_what_only_posix_has():
    modules = "crypt curses fcntl grp nis posix pty pwd readline resource spwd syslog termios tty".split()
    names = "fork getuid geteuid getgid killpg mkfifo nice O_CLOEXEC O_NOFOLLOW O_NONBLOCK pread sched_getaffinity"
    names += " statvfs sync uname SIGHUP SIGKILL SIGUSR1 SIGUSR2 SIGALRM pthread_sigmask"
    code = f"POSIX_MODULES, POSIX_NAMES = {modules!r}, {names.split()!r}\n{ELSEWHERE}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
