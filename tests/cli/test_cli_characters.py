"""Names from files cannot control the terminal: commands print no control characters except line ends."""

from __future__ import annotations

import json
import unicodedata

import numpy as np
import pytest

import dmkl
from dmkl.cli.main import main

HARM = "\x1b]0;title\x07\x1b[2J\r\x08\x9b31m\u202e\u2028\n"
"""Characters that set the title, clear the screen, move back, set a color, reverse the text, end lines."""


@pytest.fixture
def harmful(tmp_path, monkeypatch):
    """A set with harmful names of all kinds, as older versions wrote them, in a folder with a harmful name."""
    for module in ("names", "labels"):
        monkeypatch.setattr(f"dmkl.inputs.{module}.refuse_control", lambda *_: None)
    r = np.random.default_rng(0)
    y = np.arange(20) % 2
    kernels = [(X := r.normal(size=(20, 3)) + y[:, None]) @ X.T for _ in range(2)]
    folder = tmp_path / f"a{HARM}b.zarr"
    dmkl.create(
        folder,
        kernels,
        names=[f"one{HARM}", f"two{HARM}"],
        samples=[f"{i}{HARM}" for i in range(20)],
        labels=[f"class {k}{HARM}" for k in y],
    )
    return str(folder)


COMMANDS = [
    ["info", "SET"],
    ["info", "SET", "--json"],
    ["check", "SET", "--json"],
    ["analyze", "SET"],
    ["fit", "SET", "OUT", "--lam", "0.1", "--log", "LOG"],
    ["search", "SET", "OUT", "--baselines", "none", "--cv", "2", "-p", "2", "--lam", "0.1"],
    ["evaluate", "SET", "OUT", "--baselines", "none", "--outer", "2", "--inner", "2", "-p", "2", "--lam", "1"],
    ["info", "nothing\x1b[2J"],
]


def obeyed(text):
    return sorted({c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp") and c != "\n"})


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_names_are_printed_escaped(tmp_path, harmful, capsys, command):
    places = {"SET": harmful, "OUT": str(tmp_path / "out"), "LOG": str(tmp_path / "log")}
    main([places.get(word, word) for word in command])
    out, err = capsys.readouterr()
    assert not obeyed(out)
    assert not obeyed(err)
    assert "\\x1b" in out + err or "\\u001b" in out
    if "--json" in command:
        assert "\x1b" in repr(json.loads(out)) or "\\x1b" in repr(json.loads(out))
    if "LOG" in command:
        text = (tmp_path / "log").read_text()
        assert text
        assert not obeyed(text)
