"""Pages of reports in a browser: on a phone, on a screen and on paper nothing is cut off, empty or too small."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from helpers.chromium import chromium, find_chromium
from helpers.reported import MADE

from dmkl.reports.page import Page, Section, render

pytestmark = pytest.mark.browser

FAULTS_OF_PAGE = (Path(__file__).parent / "faults_of_page.js").read_text(encoding="utf-8")
# Pixels; A4 between margins of a centimeter has 718. Letters in figures may be smaller than in text, and on paper,
# which does not scroll, smaller still: 7 pixels are 5 pt there.
VIEWS = {
    "phone": ({"width": 400}, {"smallest": 11, "smallestDrawn": 9}),
    "screen": ({"width": 1400}, {"smallest": 11, "smallestDrawn": 9}),
    "paper": ({"width": 718, "media": "print"}, {"smallest": 11, "smallestDrawn": 7}),
}


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    program = find_chromium()
    if program is None:
        message = (
            "this machine has no Chromium: `make test-browser` installs Debian's as root; or install chromium yourself"
        )
        (pytest.fail if os.environ.get("DMKL_REQUIRE_CHROMIUM") else pytest.skip)(message)
    with chromium(program, tmp_path_factory.mktemp("chromium")) as running:
        yield running


@pytest.fixture
def look(browser, tmp_path):
    """A function that shows a page in a view and returns its faults and the elements that scroll horizontally."""

    def look(text, view):
        path = tmp_path / "page.html"
        path.write_text(text, encoding="utf-8")
        window, limits = VIEWS[view]
        browser.open(path, **window)
        seen = browser.run(f"({FAULTS_OF_PAGE})({json.dumps(limits)})")
        return seen["faults"], set(seen["scrolled"])

    return look


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("names", ["report", "unwieldy_report"])
def test_nothing_of_a_page_is_cut_off_empty_or_too_small(names, kind, view, look, browser, request):
    faults, scrolled = look(request.getfixturevalue(names)(kind), view)
    assert faults == []
    assert scrolled <= (set() if view == "paper" else {"div.wide"})  # wide tables scroll by design
    lefts = '[...document.querySelectorAll("h2")].map((heading) => heading.getBoundingClientRect().left)'
    assert len(set(browser.run(lefts))) == (2 if view == "screen" else 1)  # columns


PICTURE = '<svg width="300" height="100" viewBox="0 0 300 100"><path d="M0 0H300V100H0z" fill="#fff"/>{}</svg>'
LETTER = '<defs><path id="letter" d="M0 0H60V70H0z"/></defs><path d="M0 50H300V51z"/><g id="text_1"><!-- word -->{}</g>'
DRAWN = '<g transform="translate({} 50) scale({} -{})"><use href="#letter"/></g>'
PLANTED = {
    "the page is 900 px broad": '<div style="width: 884px">x</div>',
    'cut off: p "a long text': '<p style="width: 50px; overflow: hidden; white-space: nowrap">a long text</p>',
    'text of 9.0 px: b "small"': '<p>large <b style="font-size: 9px">small</b></p>',
    "a picture is empty": f"<div>{PICTURE.format('')}</div>",
    'text of 5.0 px in a picture: "word"': PICTURE.format(LETTER.format(DRAWN.format(50, 0.05, 0.05))),
    'text cut off in a picture: "word"': PICTURE.format(LETTER.format(DRAWN.format(290, 0.5, 0.5))),
    'a section is empty: section "Title"': "<section><h2>Title</h2><p></p></section>",
    "a table is empty": "<table><thead><tr><th>a</th></tr></thead><tbody><tr><td> </td></tr></tbody></table>",
    "the page wants another file: https://elsewhere.invalid/none.css": '<link rel="stylesheet" href="https://elsewhere.invalid/none.css">',
}


def test_faults_that_are_planted_are_found(look):
    page = render(Page("Title", "An answer.", {"asked": "much"}, (), (Section("Part", ("A text.",)),)))
    assert look(page, "phone") == ([], set())
    faults, _ = look(page.replace("</body>", "".join(PLANTED.values()) + "</body>"), "phone")
    for fault in PLANTED:
        assert any(reported.startswith(fault) for reported in faults), faults
