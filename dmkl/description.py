"""Descriptions of results: sentences, facts, tables and figures by key, of which all outputs are renderings."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from os.path import commonprefix
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from dmkl.errors import printable

if TYPE_CHECKING:
    import pandas as pd

Key = Literal[
    "choice",
    "choices",
    "scores",
    "coverage",
    "chance",
    "kernels_part",
    "baselines",
    "inner_scores",
    "kernels",
    "losses",
    "notes",
    "costs",
    "time",
]
"""Subjects of sentences: the chosen point, or one line for each of several; scores; prediction sets or intervals; the
p-values of scores; the score of the kernels' part given covariates; simpler models; scores in the folds that chose;
what is known of the kernels; what is lost without a kernel, and others that a table has; cautions; fits, passes and the
proof; seconds by phase."""
Form = Literal["number", "exact", "signed", "gap", "share", "mark", "text", "kernel"]
"""Three significant digits, values of parameters, a plus before the number, a proven gap, percent, the heading where it
is true, texts, and names of kernels."""
MOST_ROWS = 30
"""Rows of a table that are shown at once."""


# --- texts ---------------------------------------------------------------------------------------------------------


def number(value: Any, sign: Literal["", "+"] = "") -> str:
    """Three significant digits, and all those before the point; a dash where there is no number."""
    if value != value:
        return "–"
    whole = isinstance(value, int) or 1e3 <= abs(value) < 1e6
    return f"{value:{sign},.0f}" if whole else f"{value:{sign}#.3g}".rstrip(".")


def count(n: float, noun: str) -> str:
    """A number and its noun; a number that is not whole has four digits."""
    number = f"{n:,.0f}" if n == round(n) else f"{n:,.4g}"
    return f"{number} {noun}" if n == 1 else f"{number} {noun}{'es' if noun.endswith('s') else 's'}"


def listed(names: Iterable[object], most: int) -> str:
    """Names as a list, at most so many."""
    texts = list(map(str, names))
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more


def with_error(mean: Any, error: Any, sign: Literal["", "+"] = "") -> str:
    """A mean, with its standard error if that is finite."""
    return number(float(mean), sign) + (f" ± {float(error):.2g}" if math.isfinite(error) else "")


def with_interval(mean: float, margin: float, limits: tuple[float, float], sign: Literal["", "+"] = "") -> str:
    """A mean ± half the width of its interval; its two ends where the `limits` of the score cut it off."""
    lower, upper = mean - margin, mean + margin
    if not (lower < limits[0] or upper > limits[1]):
        return with_error(mean, margin, sign)
    return f"{number(mean, sign)} ({ends_text(lower, upper, limits)})"


def ends_text(lower: float, upper: float, limits: tuple[float, float]) -> str:
    """The ends of an interval, cut off at the limits of the score."""
    return f"{max(lower, limits[0]):.2g} to {min(upper, limits[1]):.2g}"


_SHARED_START = re.compile(r"[/|:,; ]|(?<!\de)-")
"""Where a part of a name ends that all names share; not in a number such as 1e-3."""
_COLLECTION = re.compile(r"(?:.*[^A-Za-z])?[A-Z]{2,}_")
"""A beginning that ends with the name of a collection of gene sets, such as HALLMARK_."""
_SMALL_WORDS = frozenset({"AND", "BY", "FOR", "IN", "OF", "ON", "THE", "TO", "UP", "VIA", "WITH"})


def human_names(names: Iterable[Any]) -> tuple[list[str], str, str]:
    """Names of kernels without the beginning and the end that all share, and these two.

    Names are parted at / | : , ; - and spaces, so that numbers stay whole, and after the name of a collection of gene
    sets. Names of such sets are in lower case, except short words and those with digits or without vowels.
    """
    names = list(map(str, names))
    if len(set(names)) < 2:
        return names, "", ""
    start = _common_start(names)
    collection = _COLLECTION.match(start)
    ends = [match.end() for match in _SHARED_START.finditer(start)] + ([collection.end()] if collection else [])
    start = start[: max(ends, default=0)]
    rests = [name[len(start) :] for name in names]
    end = _common_start([rest[::-1] for rest in rests])[::-1]
    end = end[parted.start() :] if (parted := _SHARED_START.search(end)) else ""
    labels = [rest[: len(rest) - len(end)] for rest in rests]
    human = [_human(label, of_collection=start.endswith("_")) for label in labels]
    return (human if len(set(human)) == len(set(labels)) else labels), start, end


def short_names(names: Iterable[Any]) -> dict[str, str]:
    """The label of each kernel by its name, of all kernels; see `human_names`."""
    every = list(map(str, names))
    return dict(zip(every, human_names(every)[0], strict=True))


def _common_start(names: Sequence[str]) -> str:
    """The longest common beginning of all names, shorter than any name."""
    return commonprefix(names)[: min(map(len, names)) - 1]  # noqa: RUF071  by characters


def _human(label: str, *, of_collection: bool) -> str:
    if not re.fullmatch(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)*" if of_collection else r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+", label):
        return label
    first, *others = (
        word if re.search(r"\d|^[^AEIOUY]+$", word) or (len(word) < 4 and word not in _SMALL_WORDS) else word.lower()
        for word in label.split("_")
    )
    return " ".join([first[0].upper() + first[1:], *others])


# --- tables --------------------------------------------------------------------------------------------------------


class Figure(NamedTuple):
    """A figure that is drawn when it is needed, with a caption for readers who do not see it."""

    caption: str
    draw: Callable[[], Any]


class Cell(NamedTuple):
    """A cell as it is shown; the full name of a kernel, if that is longer; the filled share of a bar, if it has one."""

    text: str
    full: str = ""
    bar: float = math.nan


@dataclass(frozen=True)
class Column:
    """How a column of a table is shown."""

    value: str  # its name in the data
    title: str | None = None  # the heading; the name with spaces for underscores if None
    form: Form | None = None  # by default "text" if the data are texts, and "number" otherwise
    error: str = ""  # name of the column with the standard error, or half the width of an interval
    upper: str = ""  # name of the column with the upper end of an interval whose lower end is `value`
    limits: tuple[float, float] = (-math.inf, math.inf)  # which cut intervals off
    bar: float | None = None  # the value whose bar is full, 0 for the largest; None for no bar

    @property
    def heading(self) -> str:
        """The title as it is shown."""
        return self.title if self.title is not None else {"lam": "λ"}.get(self.value, self.value.replace("_", " "))

    @property
    def is_text(self) -> bool:
        """Whether it is aligned to the left, and may be wrapped."""
        return self.form in ("mark", "text", "kernel")

    def texts(self, frame: pd.DataFrame) -> list[str]:
        """The cells of some rows."""
        values, others = frame[self.value].tolist(), frame[self.error or self.upper or self.value].tolist()
        text_of = self._with_error if self.error else self._between if self.upper else self._text
        return list(map(text_of, values, others))

    def _with_error(self, mean: float, error: float) -> str:
        sign: Literal["", "+"] = "+" if self.form == "signed" else ""
        return "" if mean != mean else with_interval(mean, error, self.limits, sign)

    def _between(self, lower: Any, upper: Any) -> str:
        low, high = self._text(lower), self._text(upper)
        if lower != lower or lower >= upper or low == high:
            return low if lower != lower else high
        return f"≥ {low}" if upper != upper else f"{low} to {high}"

    def _text(self, value: Any, _: Any = None) -> str:
        if self.form == "mark":
            return self.heading if value else ""
        if self.form == "gap":
            return "none" if value != value else "< 1e-12" if value < 1e-12 else f"{value:.1e}"
        if self.form == "share":
            return "–" if value != value else f"{number(100 * value)} %"
        if self.form in ("number", "signed") and isinstance(value, float | int):
            return number(value)
        return (
            "none" if value is None else "" if value != value else f"{value:g}" if type(value) is float else str(value)
        )


@dataclass(frozen=True)
class Table:
    """Labeled data, and how they are shown."""

    frame: pd.DataFrame  # the data, a row for each item
    columns: Sequence[Column] = ()  # those that are shown; all by default
    title: str = ""  # a line above the table
    rows: Iterable[int] | None = None  # positions of the rows that a terminal shows; the first by default
    kernels: Iterable[Any] = ()  # all names of kernels, whose common beginning and end cells of kernels leave out
    note: str = ""  # sentences below the table

    @cached_property
    def shown(self) -> list[Column]:
        """The columns, each with its form; without those that are empty."""
        from pandas.api.types import is_numeric_dtype

        columns = self.columns or [Column(str(name)) for name in self.frame]
        columns = [column for column in columns if len(self.frame) == 0 or (self.frame[column.value] != "").any()]
        return [
            column
            if column.form
            else replace(column, form="number" if is_numeric_dtype(self.frame[column.value]) else "text")
            for column in columns
        ]

    @property
    def first_rows(self) -> pd.DataFrame:
        """The rows that a terminal shows."""
        return self.frame.head(MOST_ROWS) if self.rows is None else self.frame.iloc[list(self.rows)]

    def cells(self, frame: pd.DataFrame) -> list[list[Cell]]:
        """The cells of some rows of the data, as they are shown."""
        short, columns = short_names(self.kernels), []
        for column in self.shown:
            texts = column.texts(frame)
            cells = [Cell(text) for text in texts]
            if column.form == "kernel":
                cells = [Cell(short.get(text, text), "" if short.get(text, text) == text else text) for text in texts]
            elif column.bar is not None:
                full = column.bar or float(self.frame[column.value].max())
                shares = (value / full if full > 0 else 0.0 for value in frame[column.value])
                cells = [Cell(text, bar=share) for text, share in zip(texts, shares, strict=True)]
            columns.append(cells)
        return [list(row) for row in zip(*columns, strict=True)]

    @property
    def names(self) -> str:
        """The common parts of the names of all kernels, if cells leave them out."""
        labels, start, end = human_names(self.kernels)
        if all(column.form != "kernel" for column in self.shown) or labels == list(map(str, self.kernels)):
            return ""
        words = all(map(str.__eq__, (start + label + end for label in labels), map(str, self.kernels)))
        return f"Names of kernels: {start}…{end}{'' if words else ', in capitals, with _ for spaces'}"

    @property
    def notes(self) -> list[str]:
        """The note, what names have in common, and the number of rows that a terminal omits."""
        n_more = len(self.frame) - len(self.first_rows)
        more = f"… and {n_more:,} more {'row' if n_more == 1 else 'rows'} in the result" if n_more else ""
        return [line for line in (self.note, self.names, more) if line]

    def as_html(self) -> str:
        """The first rows in HTML; names in full are titles of their cells."""
        head = "".join(f"<th>{_escaped(column.heading)}</th>" for column in self.shown)
        rows = (
            "".join(f'<td title="{_escaped(cell.full)}">{_escaped(cell.text)}</td>' for cell in row)
            for row in self.cells(self.first_rows)
        )
        body = "".join(f"<tr>{row}</tr>" for row in (head, *rows))
        notes = "<br>".join(map(_escaped, self.notes))
        return f"<table><caption>{_escaped(self.title)}</caption>{body}</table><div>{notes}</div>"


def _escaped(text: str) -> str:
    return html.escape(printable(text))


# --- descriptions --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Description:
    """A result in words, data, tables and figures, of which summaries, printed tables, reports and JSON are renderings.

    Renderings choose sentences by key, never by words.
    """

    title: str  # the kind of the result and its learner, such as "Search of MKFDA"
    scope: str  # the grid, the folds or the resamples; may be empty
    sentences: Mapping[Key, Sequence[str]]  # lines by subject, in the order of reading
    facts: Callable[[], Mapping[str, Any]] = dict  # data by key
    tables: Mapping[str, Callable[[], Table]] = field(default_factory=dict)
    figures: Mapping[str, Figure] = field(default_factory=dict)  # that of the title of a table belongs to the table
    code: Mapping[str, str] = field(default_factory=dict)  # lines to copy that repeat it, by their title

    @property
    def headline(self) -> str:
        """Title and scope in a line."""
        return ": ".join(part for part in (self.title, self.scope) if part)

    def lines(self, *keys: Key, without: Collection[Key] = ()) -> list[str]:
        """The sentences of some keys, in the order of these; if none is given, of all but those in `without`."""
        return [
            f"  {line}" if key == "choices" else line
            for key in keys or self.sentences
            if key not in without
            for line in self.sentences.get(key, ())
        ]

    def as_mapping(self) -> dict[str, Any]:
        """Title, scope and sentences by key, for JSON."""
        return {"title": self.title, "scope": self.scope, **{key: list(of) for key, of in self.sentences.items() if of}}

    def as_data(self) -> dict[str, Any]:
        """Tables as lists of rows, and facts, by key, for JSON; names of kernels are in full."""
        facts = dict(self.facts())
        return {k: make().frame.to_dict("records") for k, make in self.tables.items() if k not in facts} | facts

    def __str__(self) -> str:
        return "\n".join([self.headline, *self.lines()])

    def _repr_html_(self) -> str:
        lines = "<br>".join(_escaped(line) for line in (self.headline, *self.lines()))
        return f"<div>{lines}</div>{''.join(make().as_html() for make in self.tables.values())}"
