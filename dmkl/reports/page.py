"""A page that stands alone: texts, tables and figures in one HTML file, legible on a phone and in print."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import pandas as pd

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Page", "Section", "render"]

MOST_ROWS = 40
"""Of a table; the rest is in the data."""


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Parameters
    ----------
    title
        Its heading.
    texts
        Paragraphs above the rest.
    table
        Rows and columns; numbers are rounded as they are shown.
    figure
        A picture, closed once it is drawn.
    caption
        What the picture shows, also for those who do not see it.
    code
        Lines to copy.
    """

    title: str
    texts: tuple[str, ...] = ()
    table: pd.DataFrame | None = None
    figure: Figure | None = None
    caption: str = ""
    code: str = ""

    @property
    def svg(self) -> str:
        """The picture as a part of the page."""
        if self.figure is None:
            return ""
        file = io.StringIO()
        # Without a date and with names of parts that do not change: the same report twice is the same file.
        from matplotlib import rc_context

        with rc_context({"svg.hashsalt": self.title, "svg.fonttype": "path"}):
            self.figure.savefig(file, format="svg", metadata={"Date": None}, bbox_inches="tight")
        text = file.getvalue()
        return text[text.index("<svg") :]

    @property
    def broad(self) -> bool:
        """Whether the picture is too broad for a phone: scrolled there rather than made small."""
        return self.figure is not None and self.figure.get_figwidth() > 7.5

    @property
    def rows(self) -> list[list[str]]:
        """The cells of the table as they are shown."""
        assert self.table is not None
        return [[_told(value) for value in row] for row in self.table.head(MOST_ROWS).itertuples(index=False)]

    @property
    def columns(self) -> list[tuple[str, bool]]:
        """Headings of the table, and whether numbers stand under them."""
        assert self.table is not None
        return [(str(name).replace("_", " "), pd.api.types.is_numeric_dtype(self.table[name])) for name in self.table]

    @property
    def n_more(self) -> int:
        """Rows that are not shown."""
        return 0 if self.table is None else max(0, len(self.table) - MOST_ROWS)


@dataclass(frozen=True)
class Page:
    """What a report tells.

    Parameters
    ----------
    title
        What it is of.
    answer
        What was found, in a sentence or two.
    facts
        What was asked and of which data, by name.
    warnings
        What a reader must know before believing it.
    sections
        The rest.
    """

    title: str
    answer: str
    facts: dict[str, str]
    warnings: tuple[str, ...] = ()
    sections: tuple[Section, ...] = field(default=())


@cache
def _template() -> Any:
    from jinja2 import Environment

    text = files("dmkl.reports").joinpath("page.html").read_text(encoding="utf-8")
    return Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(text)


def render(page: Page) -> str:
    """The page as HTML that needs no other file."""
    return str(_template().render(page=page))


def _told(value: Any) -> str:
    if isinstance(value, float):
        return "–" if value != value else f"{value:.2g}" if abs(value) < 1e-3 else f"{value:.4g}"
    return "none" if value is None else str(value)
