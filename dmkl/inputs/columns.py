"""Tables of columns: which of them names the samples, and the values of the others."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from dmkl import settings
from dmkl.arrays import UNKNOWN_TEXTS, Array, Lazy, is_instance, is_numeral
from dmkl.errors import refuse
from dmkl.names import Expected, Individual, Names, as_text, pair_names

if TYPE_CHECKING:
    import pandas as pd

_NAMES_OF_ROLES = {
    "labels": "label labels y gt target targets",
    "samples": "sample samples samplename samplenames sampleid sampleids id ids",
    "train_samples": "trainsample trainsamples trainsamplenames",
    "splits": "split splits",
    "tasks": "task tasks tasknames",
    "names": "name names kernel kernels kernelname kernelnames",
    "diagonal": "diagonal",
}
ROLES = {name: role for role, names in _NAMES_OF_ROLES.items() for name in names.split()}
"""Roles of variables, columns and files by their names (see `plain_title`)."""
_NAMES = {name for name, role in ROLES.items() if role == "samples"} | {"iid", "eid", "individualid", "indid", "id1"}
"""Titles of columns that name the samples."""
_UNIQUE_NAMES = set(
    "name names rowname rownames subject subjects subjectid subjectkey subj subjid usubjid participant participantid "
    "patient patientid pid ptid recordid record individual indiv taxa taxon strain accession line barcode cell cellid "
    "animal animalid genotype specimen specimenid donor donorid case caseid mrn key index unnamed0".split()
)
"""Titles of columns that name the samples if no name repeats; else they are groups of samples."""
_FAMILIES = {"fid", "family", "familyid", "famid"}
_WORDS = {*ROLES, *"class classes group groups fid1 iid1".split()} - {"name", "names", "kernel", "kernels"}
"""Titles that are unlikely as values of a cell."""
_FEW_COLUMNS = 64  # Up to this number of columns of numbers, each is searched for names of samples.
_PHENOTYPES = (".phen", ".pheno", ".fam", ".covar", ".qcovar", ".eigenvec")


class Columns:
    """A table in a data frame; `dmkl.inputs.formats.tables.Text` is one in a text file."""

    def __init__(self, where: str, frame: pd.DataFrame) -> None:
        if codes := settings.get("unknown"):
            frame = frame.mask(frame.isin([*codes, *(float(code) for code in codes if is_numeral(str(code)))]))
        self.where, self.frame = where, frame  # `where` names it in messages
        self.titles = axis_names(frame, 1)  # of all columns
        self.index = axis_names(frame, 0)  # names of the rows outside the columns
        self.n_rows, self.n_columns = frame.shape
        self.notes: list[str] = []

    @cached_property
    def numeric(self) -> list[bool]:
        """Whether each column holds numbers."""
        return [dtype.kind in "biuf" for dtype in self.frame.dtypes]

    def title(self, at: int) -> str:
        """Return the title of a column, or its number from 1, as messages show them."""
        return f"column {at + 1 if self.titles is None else repr(self.titles[at])}"

    def titles_of(self, columns: Sequence[int]) -> Names:
        """Return the titles of some columns."""
        return None if self.titles is None else tuple(self.titles[at] for at in columns)

    def texts(self, columns: Sequence[int]) -> list[list[str]]:
        """Return the cells of some columns as they are written; "" for empty ones."""
        parts = [self.frame.iloc[:, at] for at in columns]
        return [["" if empty else as_text(v) for v, empty in zip(part, part.isna(), strict=True)] for part in parts]

    def numbers(self, columns: Sequence[int]) -> Lazy:
        """Return some columns of numbers as a matrix that is read in parts."""
        frame = self.frame.iloc[:, list(columns)]
        # Types of pandas state the NumPy type of their numbers.
        kinds = {np.dtype(getattr(d, "numpy_dtype", getattr(d, "subtype", d))) for d in frame.dtypes}
        if any(kind.kind not in "fiub" for kind in kinds):
            refuse(f"{self.where} holds {sorted(map(str, kinds))}, expected real numbers")
        dtype = np.result_type(*map(float_dtype, kinds), np.float32)
        return Lazy(frame.shape, dtype, lambda key: frame.iloc[key].to_numpy(dtype, na_value=np.nan))

    def values(self, columns: Sequence[int]) -> Array:
        """Return some columns as one array (rows, columns) of numbers or words."""
        return self.frame.iloc[:, list(columns)].to_numpy()


def float_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the stored type of real numbers: float32 if it loses nothing and they are narrow, else float64."""
    return np.dtype(np.float32 if dtype.itemsize <= (4 if dtype.kind == "f" else 2) else np.float64)


def axis_names(values: Any, axis: int) -> Names:
    """Return the names along an axis of an object of pandas or xarray; None if it has none, or they only count."""
    if axis >= getattr(values, "ndim", 0):
        return None
    if is_instance(values, "pandas", "Series", "DataFrame"):
        index = values.axes[axis]
        if [str(level).casefold() for level in index.names] == ["fid", "iid"]:  # levels titled as in GCTA and PLINK
            families, individuals = (map(as_text, index.get_level_values(level)) for level in (0, 1))
            return Individual.of(individuals, families)
        only_counts = is_instance(index, "pandas", "RangeIndex") and index.start == 0 and index.step == 1
        return None if only_counts else tuple(map(as_text, index))
    if not is_instance(values, "xarray", "DataArray"):
        return None
    dim = values.dims[axis]
    if dim in values.coords:
        return tuple(map(as_text, values.coords[dim].to_numpy().tolist()))
    along = {str(key): v.to_numpy() for key, v in values.coords.items() if v.dims == (dim,)}
    return names_among(f"dimension {dim!r}", along, values.shape[axis])[0]


def names_among(where: str, vectors: Mapping[str, Array], length: int) -> tuple[Names, list[str]]:
    """Return the names of `length` rows or columns among vectors by their titles, and the titles of those taken.

    Names are as many different values, in vectors with a title for names before any others of words, as in tables (see
    `find_names`); numbers that only count are none. Vectors of the same rank that differ are refused.
    """
    cells = {title: tuple(map(as_text, np.ravel(values).tolist())) for title, values in vectors.items()}
    plain = {title: plain_title(title.rpartition("/")[2]) for title in cells}
    family = next((title for title in cells if plain[title] in _FAMILIES), "")
    for title in cells:
        if plain[title] == "iid" and len(cells.get(family, ())) == len(cells[title]):
            cells[title] = Individual.of(cells[title], cells[family])
    fitting = {t: own for t, own in cells.items() if len(own) == length == len(set(pair_names(own)))}
    named = [title for title in fitting if plain[title] in _NAMES]
    others = [title for title, own in fitting.items() if not counts(own) and not counts(own, 1)]
    named = named or [title for title in others if {plain[title], plain[title].removesuffix("s")} & _UNIQUE_NAMES]
    named = named or [title for title in others if np.asarray(vectors[title]).dtype.kind in "OSTU" and title != family]
    if differing := [title for title in named if fitting[title] != fitting[named[0]]]:
        what = f"{named[0]!r} and {differing[0]!r} may both be the names of the {length} rows or columns, and differ"
        refuse(f"{where}: {what}; call the right one 'samples', or name it (--order FILE:NAME, order=)")
    return (fitting[named[0]] if named else None), named


def find_names(table: Columns, expected: Expected = None) -> tuple[Names, list[int]]:
    """Return the names of the rows of a table, and the columns of values.

    The names are in the column whose values are the `expected` names, at any position and with any title; else in the
    column with a title for names; else in the first column of words without repetition. A column that only counts the
    rows holds none if another column holds names. The other columns hold values, except for families. Choices that
    could have been otherwise go into the notes of the table.
    """
    titles, columns = [plain_title(title) for title in table.titles or ()], list(range(table.n_columns))
    if columns == [0] and table.index is None and titles != ["iid"]:
        return None, columns
    words = [at for at in columns if not table.numeric[at]]
    numbers = [at for at in columns if table.numeric[at]] if expected else []
    by_title = [at for at, title in enumerate(titles) if title in _NAMES | _UNIQUE_NAMES | _FAMILIES]
    searched = [*words, *(numbers if len(numbers) <= _FEW_COLUMNS else numbers[:2])]
    read = sorted({*columns[:2], *by_title, *searched})
    cells = dict(zip(read, table.texts(read), strict=True))
    unique = {at for at in read if len(set(cells[at])) == table.n_rows}
    family, individual = _pair(table, titles, cells, expected)
    titled = [] if individual is None else [individual]
    titled += [at for at in by_title if titles[at] in _NAMES]
    titled += [at for at in by_title if titles[at] in _UNIQUE_NAMES and at in unique]
    counting = [0] if titles[:1] == [""] and (counts(cells[0]) or counts(cells[0], 1)) else []
    chosen: int | None = None
    if expected:
        shares = {at: matched_share(cells[at], expected) for at in [*titled, *searched]}
        if family is not None and individual is not None:
            pairs = pair_names(Individual.of(cells[individual], cells[family]))
            shares[individual] = max(shares[individual], matched_share(pairs, expected))
        index_share = matched_share(table.index or (), expected)
        best = max(shares, key=lambda at: shares[at], default=None)
        if best is not None and shares[best] > index_share and (shares[best] > 0.5 or best in titled):
            chosen = best
            if best not in titled and titles and titles[best]:
                _note(table, best, ", since its values are those of the others")
        elif index_share > 0.5:
            return table.index, columns
    if chosen is None and titled:
        chosen = titled[0]
    if chosen is None and table.index is not None:
        return table.index, columns
    if chosen is None and titles[:1] == [""] and not counting:
        chosen = 0
    if chosen is None and table.n_rows > 1:
        chosen = next((at for at in words if at in unique), None)
        if chosen and not counting:
            _note(table, chosen)
        if chosen is None and words and not counting and 0 in unique and all(map(str.isdecimal, cells[0])):
            chosen = 0
            _note(table, chosen, ", since all are different whole numbers")
    if chosen is None:
        return None, [at for at in columns if at not in counting]
    names, used = tuple(cells[chosen]), {chosen, *counting}
    if chosen == individual and family is not None:
        names, used = Individual.of(names, cells[family]), {*used, family}
    return names, [at for at in columns if at not in used]


def _pair(
    table: Columns, titles: Sequence[str], cells: Mapping[int, Sequence[str]], expected: Expected
) -> tuple[int | None, int | None]:
    """Return the columns of family and individual, with which lines of geneticists begin, also without titles."""
    if titles:
        family = next((at for at, title in enumerate(titles) if title in _FAMILIES), None)
        return (family, titles.index("iid")) if "iid" in titles else (None, None)
    if table.n_columns < (2 if expected else 3):
        return None, None
    families, individuals = cells[0], cells[1]
    if table.n_columns == 2:
        # A list of individuals to keep, named by the second column or by both.
        pairs = pair_names(Individual.of(individuals, families))
        both = max(matched_share(individuals, expected), matched_share(pairs, expected))
        return (0, 1) if both > 0.5 and matched_share(families, expected) <= both else (None, None)
    if len(set(zip(families, individuals, strict=True))) < table.n_rows or table.n_rows < 2:
        return None, None
    of_genetics = table.where.lower().endswith(_PHENOTYPES) or families == individuals
    if of_genetics or matched_share(individuals, expected) > 0.5:
        return 0, 1
    # A sample in both columns shows pairs of samples.
    if getattr(table, "delimiter", ",") not in (None, "\t") or set(families).intersection(individuals):
        return None, None
    are_values = are_numbers(individuals, comma=getattr(table, "decimal_comma", False))
    may_be_pairs = not are_values and all(table.numeric[2:]) and not matched_share(families, expected)
    return (0, 1) if may_be_pairs and len(set(individuals)) >= len(set(families)) else (None, None)


def _note(table: Columns, at: int, why: str = "") -> None:
    table.notes.append(f"{table.where}: {table.title(at)} was taken for names of the samples{why}")


def counts(names: Sequence[str], first: int = 0, letter: str = "") -> bool:
    """Whether names only count the rows or columns from a number on."""
    return list(names) == [f"{letter}{i + first}" for i in range(len(names))]


def name_rows(titles: Names, rows: Sequence[Sequence[str]], expected: Expected) -> bool:
    """Whether a column names the rows: all its cells differ, and are words, have a title for names, or are known."""
    columns = zip(*rows, strict=True)
    for title, cells in zip(titles or [None] * len(rows[0]), columns, strict=True):
        titled = title is not None and plain_title(title) in {"", *_NAMES, *_UNIQUE_NAMES}
        if all(cells) and len(set(cells)) == len(cells) > 1:
            if titled or not are_numbers(cells) or matched_share(cells, expected) > 0.5:
                return True
    return False


def matched_share(values: Sequence[str], expected: Expected) -> float:
    """Return the share of known names among as many as possible; 0 if values repeat."""
    distinct = set(values)
    if not expected or not values or len(distinct) < len(values):
        return 0.0
    return len(distinct.intersection(expected)) / min(len(distinct), len(expected))


def plain_title(title: str) -> str:
    """Return a title without case, blanks and punctuation."""
    return re.sub(r"[\W_]+", "", title.casefold())


def is_title(cell: str) -> bool:
    """Whether a cell is most likely the title of a column."""
    return plain_title(cell) in _NAMES | _FAMILIES | _WORDS | (_UNIQUE_NAMES - {"index"})


def without_codes(values: Any) -> Any:
    """Return an array with NaN, or NA among words, in place of the setting ``dmkl.unknown``; unchanged without it."""
    codes = list(map(str, settings.get("unknown")))
    if not codes or (array := np.asarray(values)).dtype.kind not in "fiuOUT":
        return values
    numbers = [float(code) for code in codes if is_numeral(code)]
    if array.dtype.kind in "fiu":
        hits = np.isin(array, numbers)
        return np.where(hits, np.nan, array) if hits.any() else array
    texts = array.astype(str).ravel().tolist()
    are_codes = [text in codes or (is_numeral(text) and float(text) in numbers) for text in texts]
    return np.where(np.reshape(are_codes, array.shape), "NA", array)


def is_number(cell: str, comma: bool = False) -> bool:
    """Whether a cell is a number, with `comma` one with a decimal comma, or unknown."""
    return cell in UNKNOWN_TEXTS or is_numeral(cell.replace(",", ".") if comma else cell)


def are_numbers(cells: Iterable[str], comma: bool = False) -> bool:
    """Whether all known cells are numbers."""
    return all(is_number(cell, comma) for cell in cells)
