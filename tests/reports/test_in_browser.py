"""Pages of reports in a browser: on a phone, on screens and on paper nothing is cut off, empty or too small."""

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from dmkl.reports.page import Page, Section, render

pytestmark = pytest.mark.browser

FAULTS_OF_PAGE = (Path(__file__).parent / "faults_of_page.js").read_text(encoding="utf-8")
# Pixels; A4 between margins of a centimeter has 718. Letters in figures may be smaller than in text, and on paper,
# which does not scroll, smaller still: 7 pixels are 5 pt there.
VIEWS = {
    "phone": (390, {"smallest": 11, "smallestDrawn": 9}),
    "tablet": (768, {"smallest": 11, "smallestDrawn": 9}),
    "screen": (1280, {"smallest": 11, "smallestDrawn": 9}),
    "paper": (718, {"smallest": 11, "smallestDrawn": 7}),
}
OPTIONS = (
    "--headless",
    "--dump-dom",
    "--no-sandbox",  # no sandbox for root or in containers; only files of the tests are opened
    "--disable-dev-shm-usage",  # containers have little shared memory
    "--disable-gpu",
    "--hide-scrollbars",  # the page uses the full width of its window, as on a phone
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND",  # no network access for pages
)
# Windows of headless browsers have at least 500 pixels; frames may be smaller.
FRAME = """<body><iframe style="border: 0; width: {width}px; height: 1000px" srcdoc="{page}"></iframe><script>
onload = () => {{
  const seen = document.querySelector("iframe").contentWindow.eval({code})({limits});
  document.body.textContent = JSON.stringify(seen);
}};
</script>"""


@pytest.fixture
def look(tmp_path):
    """A function that shows a page in a view; returns its faults, the elements that scroll, the number of columns."""
    names = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
    program = next(filter(None, map(shutil.which, names)), None)
    if program is None:
        message = "this machine has no Chromium; `make test-browser`, as root, installs it from Debian packages"
        (pytest.fail if os.environ.get("DMKL_REQUIRE_CHROMIUM") else pytest.skip)(message)

    def look(text, view):
        width, limits = VIEWS[view]
        if view == "paper":  # a frame has the media of the screen; this applies the rules for paper
            text = text.replace("@media screen", "@media speech").replace("@media print", "@media all")
        script = {"code": json.dumps(f"({FAULTS_OF_PAGE})"), "limits": json.dumps(limits)}
        file = tmp_path / "frame.html"
        file.write_text(FRAME.format(width=width, page=html.escape(text), **script), encoding="utf-8")
        command = [program, *OPTIONS, f"--user-data-dir={tmp_path / 'profile'}", file.as_uri()]
        shown = subprocess.run(command, check=True, capture_output=True, encoding="utf-8", timeout=200).stdout
        seen = json.loads(html.unescape(re.search(r"<body>(.*)</body>", shown, re.DOTALL)[1]))
        return seen["faults"], set(seen["scrolled"]), seen["columns"]

    return look


def check(text, view, look):
    faults, scrolled, columns = look(text, view)
    assert faults == []
    assert scrolled == set()  # a table that scrolls has columns that are cut
    assert columns == (min(2, text.count("<h2>")) if view == "screen" else 1)


@pytest.mark.parametrize("view", VIEWS)
def test_nothing_of_a_page_is_cut_off_empty_or_too_small(every_kind, view, look, report):
    check(report(every_kind), view, look)


@pytest.mark.parametrize("view", VIEWS)
def test_nothing_is_where_names_are_unwieldy(kind, view, look, unwieldy_report):
    check(unwieldy_report(kind), view, look)


PICTURE = '<svg width="300" height="100" viewBox="0 0 300 100"><path d="M0 0H300V100H0z" fill="#fff"/>{}</svg>'
LETTER = '<defs><path id="letter" d="M0 0H60V70H0z"/></defs><path d="M0 50H300V51z"/><g id="text_1"><!-- word -->{}</g>'
DRAWN = '<g transform="translate({} 50) scale({} -{})"><use href="#letter"/></g>'
PLANTED = {
    "the page is 900 px broad": '<div style="width: 884px">x</div>',
    'cut off: p "a long text': '<p style="width: 50px; overflow: hidden; white-space: nowrap">a long text</p>',
    'text of 9.0 px: b "small"': '<p>large <b style="font-size: 9px">small</b></p>',
    'text of 5.0 px in a picture: "word"': PICTURE.format(LETTER.format(DRAWN.format(50, 0.05, 0.05))),
    'text cut off in a picture: "word"': PICTURE.format(LETTER.format(DRAWN.format(290, 0.5, 0.5))),
    'a section is empty: section "Title"': "<section><h2>Title</h2><p></p></section>",
    'its content is broader: td.number "a long number"': (
        '<table style="table-layout: fixed; width: 30px"><tr><td class="number">a long number</table>'
    ),
    'parts overlap: section "One two" and section "Three"': (
        '<section><p>One two</p></section><section style="margin-top: -20px"><p>Three</p></section>'
    ),
    'texts overlap in a picture: "word" and "other"': PICTURE.format(
        LETTER.format(DRAWN.format(50, 0.5, 0.5)) + f'<g id="text_2"><!-- other -->{DRAWN.format(60, 0.5, 0.5)}</g>'
    ),
    "the page wants another file: https://elsewhere.invalid/none.css": '<link rel="stylesheet" href="https://elsewhere.invalid/none.css">',
}


def test_faults_that_are_planted_are_found(look):
    page = render(Page("Title", "An answer.", {"asked": "much"}, (), (Section("Part", ("A text.",)),)))
    assert look(page, "phone") == ([], set(), 1)
    faults, *_ = look(page.replace("</body>", "".join(PLANTED.values()) + "</body>"), "phone")
    assert [fault for fault in PLANTED if not any(reported.startswith(fault) for reported in faults)] == []
