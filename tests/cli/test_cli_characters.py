"""Names from files cannot control the terminal: commands print no control characters except line ends."""

import json
import re
import unicodedata
import warnings

import numpy as np
import pytest
from matplotlib import font_manager
from matplotlib.text import Text

import dmkl
from dmkl.cli.main import main
from dmkl.cli.output import plain_warnings
from dmkl.pictures import bars, figure_of, image_of

HARM = "\x1b]0;title\x07\x1b[2J\r\x08\x9b31m\u202e\u2028\n"
"""Characters that set the title, clear the screen, move back, set a color, reverse the text, end lines."""


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
def test_names_are_printed_escaped(tmp_path, monkeypatch, capsys, command):
    for module in ("names", "inputs.labels"):  # older versions wrote such names
        monkeypatch.setattr(f"dmkl.{module}.refuse_control", lambda *_: None)
    samples, harmful = [f"{i}{HARM}" for i in range(20)], tmp_path / f"a{HARM}b.zarr"
    named(harmful, [f"one{HARM}", f"two{HARM}"], samples=samples)
    places = {"SET": str(harmful), "OUT": str(tmp_path / "out"), "LOG": str(tmp_path / "log")}
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


def named(path, names, **more):
    """A set with these names of kernels and classes, as older versions wrote them."""
    r = np.random.default_rng(0)
    y = np.arange(20) % 2
    kernels = [(X := r.normal(size=(20, 3)) + y[:, None]) @ X.T for _ in names]
    dmkl.create(path, kernels, names=names, labels=[f"{names[0]} {k}" for k in y], **more)
    return path


@pytest.mark.filterwarnings("default")
def test_pictures_of_names_without_a_font_give_one_plain_line(tmp_path, run, monkeypatch):
    fonts = [font for font in font_manager.fontManager.ttflist if font.name == "DejaVu Sans"]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", fonts)
    path = named(tmp_path / "named.zarr", ["\u4e2d\u6587", "\u4e2d\u56fd"])
    status, _, err = run("analyze", path, "--plot", tmp_path / "alignments.png")
    assert status == 0, err
    (warning,) = [line for line in err.splitlines() if "warning" in line.lower()]
    assert warning.startswith("dmkl: warning: no font of this machine has ")
    assert "characters of names in a picture, such as \u4e2d" in warning
    assert "Glyph" not in err


def test_a_font_with_the_characters_is_taken():
    ax = bars(["\u24b6 kernel", "another"], np.eye(2)[:1].T, "", "title")  # not in DejaVu Sans, but in STIX
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        image = image_of(ax, "svg").decode()
    assert "STIX" in image
    drawn = [text for text in figure_of(ax).findobj(Text) if "\u24b6" in text.get_text()]
    assert drawn
    assert all("STIXGeneral" in text.get_fontfamily() for text in drawn)


@pytest.mark.filterwarnings("default")
def test_warnings_of_other_libraries_are_plain_lines(capsys):
    with plain_warnings():
        for _ in range(2):
            warnings.warn("first\x1b[2J\nsecond", RuntimeWarning, stacklevel=1)
    assert capsys.readouterr().err == "dmkl: warning: RuntimeWarning: first\\x1b[2J second\n"


def test_format_characters_in_a_report_are_escaped(tmp_path):
    path = named(tmp_path / "named.zarr", ["abc\u202edef", "zero\u200bwidth"])
    for result in (dmkl.analyze(dmkl.open(path)), dmkl.MKFDA().fit(dmkl.open(path))):
        page = dmkl.report(result)
        assert not obeyed(re.sub("<svg.*?</svg>", "", page, flags=re.DOTALL))
        assert "abc\\u202edef" in page
