"""Options that accept no URL refuse one in a single line, and write nothing."""

import inspect
from pathlib import Path
from typing import get_args

import pytest
from typer.models import OptionInfo

import dmkl
from dmkl.cli.commands import COMMANDS, command
from dmkl.errors import InputError

URL = "s3://bucket/name"


def options_of_files():
    """Yield each option that takes a file or a folder, with its command."""
    for name in COMMANDS:
        for parameter in inspect.signature(command(name), eval_str=True).parameters.values():
            kind, *info = get_args(parameter.annotation) or (None,)
            if Path in (kind, *get_args(kind)) and isinstance(info[0], OptionInfo):
                flags = [flag for flag in (info[0].default, *(info[0].param_decls or ())) if isinstance(flag, str)]
                yield name, [*flags, f"--{parameter.name.replace('_', '-')}"][0]


@pytest.mark.parametrize(("name", "option"), list(options_of_files()))
def test_options_that_take_files_refuse_urls(error_of, tmp_path, monkeypatch, name, option):
    monkeypatch.chdir(tmp_path)
    commands_of_one = "info check analyze associate predict preflight run submit report".split()
    needed = {"demo": 0, "export": 3, **dict.fromkeys(commands_of_one, 1)}
    words = f"{URL} is a URL, and what stands there has to be a file or folder of this machine"
    required = ["--out", "nothing.csv"] if name == "transform" else []
    assert words in error_of(name, *["nothing"] * needed.get(name, 2), *required, option, URL)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["import", "out", URL], "is a URL, and what stands there has to be a file"),
        (["build", "out", URL, "--function", "rbf"], "is a URL, and what stands there has to be a file"),
        (["search", "STORE", URL], "say which with --state FOLDER"),
        (["evaluate", "STORE", URL], "say which with --state FOLDER"),
    ],
)
def test_arguments_refuse_urls(error_of, store, tmp_path, monkeypatch, given, words):
    monkeypatch.chdir(tmp_path)
    assert words in error_of(*(store if each == "STORE" else each for each in given))
    assert not list(tmp_path.iterdir())


def test_a_state_is_at_no_url(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for state in (URL, Path(URL)):
        with pytest.raises(InputError, match="the state of a search has to be a file or folder of this machine"):
            dmkl.search(dmkl.MKFDA(), dmkl.open(store), None, {"p": [2]}, 2, state=state)
    assert not list(tmp_path.iterdir())
