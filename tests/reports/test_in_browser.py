"""Pages of reports in a browser: on a phone, on a screen and on paper nothing is cut off, empty or too small."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from helpers.chromium import chromium, find_chromium
from helpers.reported import MADE

from dmkl.reports.page import Page, Section, render

pytestmark = pytest.mark.browser

PIPELINES = Path(__file__).parents[2] / "pipelines"
FAULTS_OF_PAGE = (Path(__file__).parent / "faults_of_page.js").read_text(encoding="utf-8")
# Pixels; A4 between margins of a centimeter has 718. Letters in figures may be smaller than in text, and on paper,
# which does not scroll, smaller still: 7 pixels are 5 pt there.
VIEWS = {
    "phone": ({"width": 400}, {"smallest": 11, "smallestDrawn": 9}),
    "screen": ({"width": 1400}, {"smallest": 11, "smallestDrawn": 9}),
    "paper": ({"width": 718, "media": "print"}, {"smallest": 11, "smallestDrawn": 7}),
}
SCROLLED = {"div.wide"}
"""Elements that scroll horizontally by design: wide tables."""


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
def test_nothing_of_a_page_is_cut_off_empty_or_too_small(names, kind, view, look, request):
    faults, scrolled = look(request.getfixturevalue(names)(kind), view)
    assert faults == []
    assert scrolled <= (set() if view == "paper" else SCROLLED)


JOBS = {
    "gene_sets.py": ("--cells", "400", "--resamples", "4"),
    "variance_components.py": ("--families", "30"),
    "neuroimaging.py": ("--subjects", "120", "--permutations", "19"),
    "digits.py": ("--samples", "150", "--resamples", "4"),
}
"""Complete pipelines with a report: single cells, quantitative genetics, neuroimaging, machine learning."""


@pytest.fixture(scope="session")
def page_of_job(tmp_path_factory):
    @cache
    def page_of_job(job):
        folder = tmp_path_factory.mktemp("job")
        command = [sys.executable, str(PIPELINES / job), *JOBS[job], "--output", str(folder)]
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=280)
        return (folder / "report.html").read_text(encoding="utf-8")

    return page_of_job


@pytest.mark.parametrize("view", ["phone", "screen"])
@pytest.mark.parametrize("job", JOBS)
def test_pages_of_whole_jobs(job, view, look, browser, page_of_job):
    faults, scrolled = look(page_of_job(job), view)
    assert faults == []
    assert scrolled <= SCROLLED
    width = VIEWS[view][0]["width"]
    assert [box for box in browser.run(BOXES) if box["left"] < 0 or box["right"] > width] == []
    if to := os.environ.get("DMKL_SCREENSHOTS"):
        (Path(to) / f"{job}-{view}.png").write_bytes(browser.picture())


# All elements but the scrolling tables, after all are unfolded.
BOXES = """
(() => {
  document.querySelectorAll("details").forEach((part) => (part.open = true));
  const parts = document.querySelectorAll("body *:not(svg *):not(.wide *):not(.paper):not(.paper *)");
  return [...parts].map((part) => [part, part.getBoundingClientRect()]).filter(([, box]) => box.width)
    .map(([part, box]) => ({ name: part.localName, left: box.left, right: box.right }));
})()
"""


@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("kind", MADE)
def test_all_boxes_are_in_the_window_and_broad_windows_are_used(kind, width, browser, report, tmp_path):
    (tmp_path / "page.html").write_text(report(kind), encoding="utf-8")
    browser.open(tmp_path / "page.html", width=width)
    boxes = browser.run(BOXES)
    assert {"svg", "table", "h1"} & {box["name"] for box in boxes} >= {"svg", "h1"}
    assert [box for box in boxes if box["left"] < 0 or box["right"] > width] == []
    headings = {round(box["left"]) for box in boxes if box["name"] == "h2"}
    assert len(headings) == (1 if width == 400 else 2)
    pictures = [box["right"] - box["left"] for box in boxes if box["name"] == "svg"]
    assert all(250 < side <= width for side in pictures)


PICTURE = '<svg width="300" height="100" viewBox="0 0 300 100"><path d="M0 0H300V100H0z" fill="#fff"/>{}</svg>'
LETTER = '<defs><path id="letter" d="M0 0H60V70H0z"/></defs><path d="M0 50H300V51z"/><g id="text_1"><!-- word -->{}</g>'
DRAWN = '<g transform="translate({} 50) scale({} -{})"><use href="#letter"/></g>'
PLANTED = {
    "the page is 900 px broad": '<div style="width: 884px">x</div>',
    'sticks out of the page: p "left"': '<p style="position: relative; left: -40px">left</p>',
    'cut off: p "a long text': '<p style="width: 50px; overflow: hidden; white-space: nowrap">a long text</p>',
    'cut off: p "many lines': '<p style="height: 10px; overflow: hidden">many lines</p>',
    'text of 9.0 px: b "small"': '<p>large <b style="font-size: 9px">small</b></p>',
    "a picture is missing or empty: gone": '<img alt="gone" src="data:image/png;base64,AAAA">',
    "a picture is empty": f"<div>{PICTURE.format('')}</div>",
    "a part #nothing is missing from a picture": PICTURE.format('<path d="M0 0H9V9z"/><use href="#nothing"/>'),
    'text of 5.0 px in a picture: "word"': PICTURE.format(LETTER.format(DRAWN.format(50, 0.05, 0.05))),
    'text cut off in a picture: "word"': PICTURE.format(LETTER.format(DRAWN.format(290, 0.5, 0.5))),
    'a section is empty: section "Title"': "<section><h2>Title</h2><p></p></section>",
    "a table is empty": "<table><thead><tr><th>a</th></tr></thead><tbody><tr><td> </td></tr></tbody></table>",
    'a column is empty: th "b"': "<table><thead><tr><th>a</th><th>b</th></tr></thead>"
    "<tbody><tr><td>1</td><td></td></tr></tbody></table>",
    "a figcaption is empty": "<figcaption> </figcaption>",
    "the page wants another file: https://elsewhere.invalid/none.css": '<link rel="stylesheet" href="https://elsewhere.invalid/none.css">',
}


def broken(planted):
    page = render(Page("Title", "An answer.", {"asked": "much"}, (), (Section("Part", ("A text.",)),)))
    return page.replace("</body>", f"{planted}</body>")


@pytest.mark.parametrize("fault", PLANTED)
def test_a_fault_that_is_planted_is_found(fault, look):
    faults, _ = look(broken(PLANTED[fault]), "phone")
    assert any(reported.startswith(fault) for reported in faults), faults


def test_a_page_without_faults_has_none_and_what_is_scrolled_is_told(look):
    drawn = PICTURE.format(LETTER.format(DRAWN.format(50, 0.12, 0.12)))
    sound = f'<div class="wide"><div style="width: 884px">{drawn}</div></div>'
    assert look(broken(sound), "phone") == ([], {"div.wide"})
    assert look(broken(sound), "screen") == ([], set())
    faults, scrolled = look(broken(sound), "paper")
    assert faults
    assert scrolled == set()
