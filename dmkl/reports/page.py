"""A page of texts, tables and figures in one HTML file, legible on a phone and in print."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from importlib.resources import files
from typing import Any

from dmkl.description import Cell, Table
from dmkl.errors import printable
from dmkl.pictures import image_of

FIRST_ROWS, MOST_ROWS = 10, 200
"""Rows of a table that are shown at once, and after it is unfolded."""
_CSV_BYTES = 2**18  # Most characters of a table that a page holds as a CSV file.
_WRAPPED = 16  # Least width of a column of long texts, in characters; twice that in broad windows.
_ROOM = {"screen": 116, "tablet": 72, "phone": 44, "paper": 80}
"""Characters that fit into a line of a table, with two for the gap next to each column, in broad windows and others."""
_IN_COLUMN = 60  # The same in one of the two columns of a broad window, with three for each gap.
WIDTH = 4.2
"""Inches of the broadest pictures. On a phone of 400 pixels their texts, of 8 pt or more, have 9 pixels."""
LEADS = ("Compared with simpler models", "Variance components")
"""Titles of sections that are read with the answer."""


@dataclass(frozen=True)
class Column:
    """A column of a table as it is shown; numbers are never wrapped."""

    title: str
    number: bool
    least: int  # width in characters
    broad: int  # the same in broad windows
    broken: bool  # a word of the title is broken


@dataclass(frozen=True)
class Section:
    """A part of a page: paragraphs, a table, a picture, code or a command to copy."""

    title: str
    texts: tuple[str, ...] = ()
    table: Table | None = None
    axes: Any = None  # of the picture, or an array of axes
    caption: str = ""  # of the picture, also for readers who do not see it
    code: str = ""

    @cached_property
    def svg(self) -> str:
        """The picture as a part of the page."""
        if self.axes is None:
            return ""
        from matplotlib import rc_context

        # Without a date and with constant names of parts, the same report is the same file.
        with rc_context({"svg.hashsalt": self.title, "svg.fonttype": "path"}):
            text = image_of(self.axes, "svg", metadata={"Date": None}, bbox_inches="tight").decode()
        return text[text.index("<svg") :]

    @cached_property
    def rows(self) -> list[list[Cell]]:
        """The cells of the table as they are shown."""
        return [] if self.table is None else self.table.cells(self.table.frame.head(MOST_ROWS))

    @cached_property
    def columns(self) -> list[Column]:
        """The columns of the table as they are shown."""
        columns = []
        for k, column in enumerate([] if self.table is None else self.table.shown):
            title, number = column.heading, not column.is_text
            broadest = max((len(row[k].text) for row in self.rows), default=0)
            word = max(map(len, title.split()), default=0)
            cells = [broadest if number else min(broadest, most) for most in (_WRAPPED, 2 * _WRAPPED)]
            least, broad = (max(min(word, _WRAPPED), cell) for cell in cells)
            columns.append(Column(title, number, least, broad, word > _WRAPPED))
        return columns

    @property
    def csv(self) -> str:
        """The whole table as the address of a CSV file; empty if there is none, or it is too large for a page."""
        text = "" if self.table is None else self.table.frame.to_csv(index=False)
        return f"data:text/csv;base64,{b64encode(text.encode()).decode()}" if 0 < len(text) <= _CSV_BYTES else ""

    @property
    def layouts(self) -> dict[str, list[list[int]]]:
        """Where tables are shown, and the columns that fit side by side there; all parts begin with the first column.

        Places of the same parts are joined by spaces.
        """
        places: dict[str, list[list[int]]] = {}
        for place, room in _ROOM.items():
            widths = [2 + (column.broad if place == "screen" else column.least) for column in self.columns]
            parts, left = [[0]], room - widths[0]
            for k, width in enumerate(widths[1:], 1):
                if width > left and len(parts[-1]) > 1:
                    parts.append([0])
                    left = room - widths[0]
                parts[-1].append(k)
                left -= width
            same = next((known for known, of in places.items() if of == parts), "")
            places[f"{same} {place}".strip()] = places.pop(same, parts)
        return places

    @property
    def drawn_width(self) -> float:
        """The width of the picture in points."""
        points = re.match(r'<svg[^>]*? width="([0-9.]+)pt"', self.svg)
        return float(points[1]) if points else 0.0

    @property
    def broad(self) -> bool:
        """Whether the section takes the whole width of a broad window."""
        return self.table is not None and sum(column.broad + 3 for column in self.columns) > _IN_COLUMN


@dataclass(frozen=True)
class Page:
    """A report."""

    title: str
    answer: str  # a sentence or two
    facts: Mapping[str, str]  # the question and the data
    warnings: Sequence[str] = ()
    sections: Sequence[Section] = ()  # the first may be one of `LEADS`
    source: str = ""  # where the result is saved, for rows of tables that are not part of the page

    @property
    def lead(self) -> Section | None:
        """The section that is read with the answer, above warnings and facts."""
        return next((section for section in self.sections[:1] if section.title in LEADS), None)

    @property
    def stacks(self) -> list[list[tuple[int, Section]]]:
        """Sections with their places in the page: those of the right and of the left column, and broad ones."""
        stacks: list[list[tuple[int, Section]]] = [[], [], []]
        for place, section in enumerate(self.sections[self.lead is not None :], 1):
            narrow = (place - len(stacks[2]) - 1) % 2
            stacks[2 if section.broad else narrow].append((place, section))
        return stacks


@cache
def _template() -> Any:
    from jinja2 import Environment

    text = files("dmkl.reports").joinpath("page.html").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, finalize=_visible)
    environment.filters["breakable"] = _breakable
    environment.globals["first_rows"] = FIRST_ROWS
    environment.filters["greek"] = partial(re.sub, r"\b[Ll]am\b", "λ")
    return environment.from_string(text)


def _visible(value: Any) -> Any:
    """A text with escapes for characters that reverse or hide others; what is HTML already is unchanged."""
    return printable(value) if type(value) is str else value


def render(page: Page) -> str:
    """The page as HTML that needs no other file."""
    return str(_template().render(page=page))


def sentences(lines: Iterable[str]) -> str:
    """Lines of a summary as sentences; a measure at the beginning is in words."""
    words = [line[:1].upper() + line[1:].removesuffix(".") for line in lines]
    return " ".join(
        f"{first.replace('_', ' ')}{space}{rest}." for first, space, rest in (w.partition(" ") for w in words)
    )


def _breakable(text: str) -> Any:
    """Allow line breaks in a long name after the characters _ and /."""
    from markupsafe import Markup, escape

    text = printable(text)
    return Markup(re.sub("([_/])", r"\1<wbr>", str(escape(text))) if len(text) > _WRAPPED else escape(text))
