"""Learners on the command line: options follow the constructors, in help texts and in fits."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import get_args

import pytest

import dmkl
from dmkl.cli.learners import inspect_class, learners
from dmkl.estimators.saving import MODELS
from dmkl.solvers.fisher.problem import AUTO, SolverName
from dmkl.solvers.fisher.registry import SOLVERS

OWN = [name for name, learner in learners().items() if hasattr(dmkl, learner.name)]
SCREENS = 2 * 50


@pytest.fixture
def narrow(monkeypatch):
    """A terminal of 80 characters."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")


@pytest.fixture
def toy():
    """A learner added by its class alone."""

    class ToyLearner(dmkl.MKFDA):
        """Toy of the tests.

        Parameters
        ----------
        depth
            Number of layers. It does nothing.
        lam, tol
            As in `MKFDA`.
        """

        def __init__(self, lam: float = 0.5, depth: int = 3, *, tol: float = 1e-2) -> None:
            super().__init__(lam=lam, tol=tol)
            self.depth = depth

    yield
    del MODELS["ToyLearner"]


def words(text):
    """The text of a panel, independent of its width."""
    return " ".join(re.sub("[│╭╮╰╯─]", " ", text).split())


@pytest.mark.parametrize("name", OWN)
def test_the_source_declares_what_the_class_has(name):
    read = learners()[name]
    inspected = inspect_class(getattr(dmkl, read.name))
    assert read.title == inspected.title
    assert [*read.signature] == [*inspected.signature]
    assert [*read.parameters] == [*inspected.parameters]
    for name, parameter in read.parameters.items():
        expected = inspected.parameters[name]
        # The types in an ArrayLike are ignored: its option has a reader.
        assert parameter == (replace(expected, kinds=parameter.kinds) if parameter.form.read else expected)
    assert type(read.make()) is getattr(dmkl, read.name)


def test_every_solver_is_among_the_choices():
    assert get_args(SolverName) == (AUTO, *SOLVERS)


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("command", ["fit", "search", "evaluate"])
def test_help_fits_two_screens_and_lists_the_learners(output_of, command):
    out = output_of(command, "--help")
    assert len(out.splitlines()) <= SCREENS
    assert max(map(len, out.splitlines())) <= 80
    listed = out.split("Learners")[1].split(f"dmkl {command} --model NAME --help")[0]
    assert ("kmeans" in listed) == (command == "fit")  # other commands need labels
    named = {line.split()[0] for line in listed.splitlines() if line.split()}
    assert named >= {name for name in OWN if command == "fit" or "kmeans" not in name}
    assert "--max-iter" not in out


def test_every_parameter_is_described_also_where_a_docstring_refers_to_another():
    mkfda, uniform = (learners()[name].parameters for name in ("mkfda", "uniform"))
    assert uniform["lam"].description == mkfda["lam"].description
    assert all(item.description for name in OWN for item in learners()[name].parameters.values())


@pytest.mark.usefixtures("toy")
def test_a_new_learner_is_there_at_once(error_of, json_of, output_of, tmp_path, store):
    assert "Toy of the tests" in output_of("fit", "--help")
    out = words(output_of("fit", "--model", "toy-learner", "--help"))
    assert "--depth <int> Number of layers. [default: 3]" in out
    assert "[default: 0.5]" in out
    given = ["--model", "toy-learner", "--depth", 5]
    printed = json_of("fit", store, tmp_path / "model", *given)
    assert printed["parameters"] == {"lam": 0.5, "depth": 5, "tol": 1e-2}
    more = ["--lam", "0.1,1", "--cv", 2, "--baselines", "none"]
    assert json_of("search", store, tmp_path / "result", *given, *more)["model"]["parameters"]["depth"] == 5
    refusal = "--depth is for --model toy-learner, and mkfda has no such parameter"
    assert refusal in error_of("fit", store, tmp_path / "other", "--depth", 5)


def test_all_ways_to_name_the_learner(run, json_of, tmp_path, store):
    for given in (["--model", "uniform"], ["--model=uniform"], ["--model", "mkfda", "--model=uniform"]):
        assert json_of("fit", *given, store, tmp_path / "model", "--overwrite")["model"] == "Uniform"
    for given in (["--model"], ["--model="], ["--model", "svm"]):
        assert run("fit", store, tmp_path / "none", *given)[0] == 2
