"""Learners on the command line: options follow the constructors, in help texts and in fits."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from helpers.stand_ins import STAND_INS

import dmkl
from dmkl.cli.commands import COMMANDS
from dmkl.cli.learners import inspect_class, learners
from dmkl.solvers.fisher.problem import AUTO, SolverName
from dmkl.solvers.fisher.registry import SOLVERS

OWN = [name for name, learner in learners().items() if hasattr(dmkl, learner.name)]
LINES = 90
"""Most lines of a help, also where learners of other tests are listed too."""


@pytest.fixture
def narrow(monkeypatch):
    """A terminal of 80 characters."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")


TOY = """
from typing import Literal
import dmkl

class ToyLearner(dmkl.MKFDA):
    \"\"\"Toy of the tests.

    Parameters
    ----------
    depth
        Number of layers. It does nothing.
    share
        Weight of the first kernel.
    lam, tol
        As in `MKFDA`.
    \"\"\"

    def __init__(
        self, lam: float = 0.5, depth: int = 3, *, tol: float = 1e-2, share=0.75, loud=False,
        parts: list[float] | None = (1.0, 2.5), size: int | str = "all", width: float | Literal["all"] = "all",
    ):
        super().__init__(lam=lam, tol=tol)
        self.depth, self.share, self.loud, self.parts, self.size, self.width = depth, share, loud, parts, size, width
"""
"""A learner that its class alone adds."""


def words(text):
    """The text of a panel, independent of its width."""
    return " ".join(re.sub("[│╭╮╰╯─]", " ", text).split())


def test_options_are_those_of_the_class():
    for name in OWN:
        assert learners()[name] == inspect_class(getattr(dmkl, learners()[name].name))
        assert type(learners()[name].make()) is getattr(dmkl, learners()[name].name)


@pytest.mark.slow
def test_a_learner_added_to_the_package_has_the_options_of_its_constructor(tmp_path):
    """Help imports no learner, unless the package has changed, or the file with the options cannot be read."""
    package = shutil.copytree(Path(dmkl.__file__).parent, tmp_path / "dmkl")
    (package / "toys.py").write_text(TOY)
    with (package / "__init__.pyi").open("a") as stub:
        stub.write("from .toys import ToyLearner as ToyLearner\n")
    code = "import sys; from dmkl.cli.main import main; main(sys.argv[1:]); print('sklearn' in sys.modules)"
    cache, call = tmp_path / "cache", [sys.executable, "-c", code, "fit", "--model", "toy-learner", "--help"]

    def helped(default="0.75"):
        given = {"PYTHONPATH": str(tmp_path), "XDG_CACHE_HOME": str(cache), "PYTHONDONTWRITEBYTECODE": "1"}
        out = subprocess.check_output(call, env=os.environ | given, cwd=tmp_path, text=True)
        assert f"--share <str> Weight of the first kernel. [default: {default}]" in words(out)
        assert "--no-loud" in out
        return out.splitlines()[-1] == "True"

    assert [helped(), helped()] == [True, False]
    (file,) = cache.glob("dmkl/*.json")
    file.write_text(file.read_text()[:-9])
    assert [helped(), helped()] == [True, False]
    (package / "toys.py").write_text(TOY.replace("0.75", "0.25"))
    assert [helped("0.25"), helped("0.25")] == [True, False]
    shutil.rmtree(cache)
    cache.write_text("no folder")
    assert helped("0.25")


def test_every_solver_is_among_the_choices():
    assert get_args(SolverName) == (AUTO, *SOLVERS)


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_short_and_has_examples(output_of, command):
    out = output_of(command, "--help")
    assert len(out.splitlines()) <= LINES
    assert f"dmkl {command} " in out.split("Examples")[1]


def test_details_are_in_the_whole_help_alone(output_of):
    short, whole = (words(output_of("build", flag)) for flag in ("--help", "--help-all"))
    for text in ("Product of kernels by entry; repeatable.", "Multiples of the mean distance."):
        assert text in short
        assert text in whole
    assert "A and B are kernels or tables: an interaction." in whole
    assert "an interaction" not in short
    assert "There is a kernel for each. [default: 1]" in whole


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("command", ["fit", "search", "evaluate"])
def test_help_fits_a_terminal_and_lists_the_learners(output_of, command):
    out = output_of(command, "--help")
    assert max(map(len, out.splitlines())) <= 80
    listed, panels = out.split("Learners")[1].split(f"dmkl {command} --model NAME --help")
    assert ("kmeans" in listed) == (command == "fit")  # other commands need labels
    named = set(re.split(r"[,;\s]+", listed))
    assert named >= {name for name in OWN if command == "fit" or "kmeans" not in name}
    assert set(re.findall(r"--\w[\w-]*", listed)) >= {"--steps", "--sharing", "--priors"}
    assert "--max-iter" not in panels


def test_every_parameter_is_described_also_where_a_docstring_refers_to_another():
    mkfda, uniform = (learners()[name].parameters for name in ("mkfda", "uniform"))
    assert uniform["lam"].description == mkfda["lam"].description
    assert all(item.description for name in OWN for item in learners()[name].parameters.values())


@pytest.mark.usefixtures("models", "narrow")
def test_commands_that_need_labels_list_no_learner_without(output_of):
    class Splitting(dmkl.KernelKMeans):
        """Clusters of halves."""

    assert "splitting" in output_of("fit", "--help")
    assert "splitting" not in output_of("search", "--help").split("Learners")[1].split("described by")[0]


@pytest.mark.usefixtures("models")
def test_a_new_learner_is_there_at_once(error_of, json_of, output_of, tmp_path, store):
    exec(TOY, {})
    assert "Toy of the tests" in output_of("fit", "--help")
    out = words(output_of("fit", "--model", "toy-learner", "--help"))
    assert "--depth <int> Number of layers. [default: 3]" in out
    assert "[default: 0.5]" in out
    assert "--depth <int> Number of layers. It does nothing. [default: 3]" in words(output_of("fit", "--help-all"))
    assert "--parts V,V,… [default: 1.0,2.5]" in out
    given = ["--model", "toy-learner", "--depth", 5, "--parts", "0.5,2", "--size", "7", "--width", "0.5"]
    printed = json_of("fit", store, tmp_path / "model", *given)
    typed = {"parts": [0.5, 2], "size": 7, "width": 0.5}
    assert printed["parameters"] == {"lam": 0.5, "depth": 5, "tol": 1e-2, "share": 0.75, "loud": False, **typed}
    more = ["--lam", "0.1,1", "--cv", 2, "--baselines", "none"]
    assert json_of("search", store, tmp_path / "result", *given, *more)["model"]["parameters"]["depth"] == 5
    refusal = "--depth is for --model toy-learner, and mkfda has no such parameter"
    assert refusal in error_of("fit", store, tmp_path / "other", "--depth", 5)


def test_all_ways_to_name_the_learner(run, json_of, tmp_path, store):
    for given in (["--model", "uniform"], ["--model=uniform"], ["--model", "mkfda", "--model=uniform"]):
        assert json_of("fit", *given, store, tmp_path / "model", "--overwrite")["model"] == "Uniform"
    for given in (["--model"], ["--model="], ["--model", "svm"]):
        assert run("fit", store, tmp_path / "none", *given)[0] == 2


@pytest.fixture
def mine(models, tmp_path, monkeypatch):
    """A file with a learner of a page, as a user has it, which nothing has imported."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    STAND_INS["mine.py"](tmp_path / "mine.py")
    yield tmp_path / "mine.py"
    sys.modules.pop("mine", None)


def test_a_learner_in_a_file_of_its_own(json_of, output_of, mine, store, tmp_path):
    given = ["--learners", mine, "--model", "fixed-weights"]
    assert "--share <float> Weight of the first kernel" in words(output_of("fit", *given, "--help"))
    out = output_of("fit", store, tmp_path / "model", *given, "--share", 0.25)
    assert "Weights depend on p" not in out
    (command,) = re.findall("use it with: dmkl (.*)", out)
    assert json_of(*shlex.split(command))["accuracy"] > 0.5
    printed = json_of("search", store, tmp_path / "result", *given, "--grid", "share=0.25,1", "--cv", 2)
    assert printed["model"]["model"] == "FixedWeights"
    job = f'[data]\nstore = "{store}"\n[model]\nname = "fixed-weights"\nshare = 0.5\n[outputs]\nmodel = "m"'
    (tmp_path / "job.toml").write_text(f'{job}\n[cluster]\ncores = 1\nmemory = "1GiB"\nplace = "slurm"')
    assert "share = 0.5" in output_of("run", tmp_path / "job.toml", "--dry-run", "--learners", mine)
    assert f"run {tmp_path}/job-" in (script := output_of("submit", tmp_path / "job.toml", "--dry-run", *given[:2]))
    assert f".toml --learners {mine} --cluster" in script


ON_WORKERS = """

from dmkl.solvers.interface import Task


def double(signs):
    return 2 * signs


class OnWorkers(FixedWeights):
    def _solve(self, signs, n):
        return (yield from super()._solve((yield Task("double", double, (signs,))), n))
"""
"""A learner that asks for a task with a function of its file."""


@pytest.mark.slow
def test_workers_get_the_file_of_a_learner(cluster, json_of, mine, store, tmp_path):
    # A name of its own: the scheduler, in this process, keeps the file in a folder that is first in sys.path.
    ours = mine.with_name("learner_of_workers.py")
    ours.write_text(mine.read_text() + ON_WORKERS)
    given = ["--learners", ours, "--model", "on-workers", "--cluster", cluster.scheduler_address]
    assert json_of("fit", store, tmp_path / "model", *given)["model"] == "OnWorkers"


def test_files_of_learners_that_cannot_be_imported(error_of, mine, tmp_path):
    (tmp_path / "json.py").write_text("")
    (tmp_path / "wrong.py").write_text("1 / 0")
    for name, message in {
        "none.py": "--learners takes a file of Python that is there, as mine.py, got ",
        "json.py": "json.py has the name of another module, ",
        "wrong.py": "wrong.py cannot be imported, ZeroDivisionError: division by zero",
    }.items():
        assert message in error_of("info", "set", "--learners", tmp_path / name)
