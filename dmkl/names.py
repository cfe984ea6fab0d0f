"""Names of samples: joining those of several tables, and finding their positions."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from dmkl.arrays import Array, Index
from dmkl.errors import refuse

Join = Literal["exact", "inner", "outer"]
"""Whether tables must name the same samples, or the samples of all tables or of any table are taken."""

Expected = Collection[str] | None
"""Names of the samples, if they are known before a table is read."""

Names = tuple[str, ...] | None
"""Names of rows or columns in order, if they have names."""


class Named(NamedTuple):
    """Names of the rows of a table, and how messages name the table."""

    where: str
    names: Names
    numbers: Sequence[tuple[str, ...]] = ()  # names of the rows if those of another source are the same numbers
    columns: Names = None  # names of the columns: of features, or of the samples of a kernel
    square: bool = True  # whether there are as many rows as columns


class Individual(str):
    """The name of an individual (IID) that knows its family (FID), as GCTA and PLINK write both."""

    __slots__ = ("family",)
    family: str

    @classmethod
    def of(cls, names: Iterable[str], families: Iterable[str]) -> tuple[str, ...]:
        """Return individuals by names and families."""
        individuals = tuple(map(cls, names))
        for individual, family in zip(individuals, families, strict=True):
            individual.family = family
        return individuals


def as_text(value: Any) -> str:
    """Return a name as a string."""
    # NumPy and HDF5 hold strings as bytes, whose str() is "b'...'".
    return value.decode() if isinstance(value, bytes) else value if isinstance(value, Individual) else str(value)


def sample_names(where: str, names: Iterable[Any] | None, length: int | None = None) -> Names:
    """Return names of samples as strings, after a check that they, or pairs, are unique and as many as the rows."""
    if names is None:
        return None
    checked = tuple(map(as_text, names))
    if length is not None and len(checked) != length:
        refuse(f"{where} have {length} rows and {len(checked)} sample names, expected a name for each row")
    name, count = Counter(pair_names(checked)).most_common(1)[0] if checked else ("", 1)
    if count > 1:
        refuse(f"{where}: sample names must be unique, but {name!r} occurs {count} times; average or rename these rows")
    return checked


def unique_names(values: Sequence[Any] | Array | None, length: int, what: str) -> Array:
    """Return names as an array of strings, numbers from 0 by default; messages call the named things `what`."""
    if values is None:
        return np.array([str(i) for i in range(length)], dtype=object)
    given = np.asarray(values)
    if given.ndim != 1:
        refuse(f"{what} names must be a list of {length}, got {values!r:.80}")
    names = [str(as_text(value)) for value in given.tolist()]  # without families
    if len(names) != length:
        refuse(f"{what} names: found {len(names)}, expected one for each of the {length} {what}s")
    for name, count in Counter(names).items():
        refuse_control(name, f"{what} name")
        if count > 1:
            refuse(f"{what} names must be unique, but {name!r} occurs more than once")
    return np.array(names, dtype=object)


def refuse_control(name: str, what: str) -> None:
    """Refuse control characters, which a terminal obeys, and which end names or lines in text files."""
    control = [] if name.isprintable() else [c for c in name if unicodedata.category(c) in ("Cc", "Zl", "Zp")]
    if control:
        refuse(f"{what} {name!r} holds a control character ({control[0]!r}); give it another name")


def listed_names(names: Iterable[str], most: int = 3) -> str:
    """Return the first names as messages list them."""
    shown = list(names)
    return ", ".join(map(repr, shown[:most])) + (" …" if len(shown) > most else "")


def pair_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names FID_IID of individuals; a family of 0, or with the name of the individual, is none."""
    families = [getattr(name, "family", "0") for name in names]
    pairs = zip(families, names, strict=True)
    return tuple(name if family in ("0", name) else f"{family}_{name}" for family, name in pairs)


def names_as_known(names: tuple[str, ...], expected: Iterable[str] | None) -> tuple[str, ...]:
    """Return names of individuals, or FID_IID if more of these are known; if none are known, if the names repeat."""
    names, pairs = tuple(map(str, names)), pair_names(names)
    if expected is None:
        return pairs if len(set(names)) < len(names) else names
    wanted = set(map(str, expected))
    return pairs if len(wanted.intersection(pairs)) > len(wanted.intersection(names)) else names


def all_names(tables: Iterable[Names]) -> set[str]:
    """Return the names in tables, in both forms, IID and FID_IID."""
    return {name for names in tables if names is not None for name in (*names, *pair_names(names))}


def need_families(tables: Sequence[Names]) -> bool:
    """Whether IID alone is not unique: then the pair is the name, as in GCTA and PLINK."""
    pairs = [dict(zip(pair_names(names), names, strict=True)) for names in tables if names is not None]
    families = {pair: name for names in pairs for pair, name in names.items() if pair != name}
    return any(len(set(names.values())) < len(names) for names in (*pairs, families))


def joined(tables: Sequence[Named], join: Join, wanted: Names = None, labeled: Sequence[Named] = ()) -> Names:
    """Join the samples of tables by name; None if no table names them.

    The order is that of `wanted`, or else of the first table, so that data without names in this order still fits; with
    join="outer" the samples of later tables follow. `labeled` are labels and splits: every sample needs one, so they
    never add samples, but join="inner" leaves out the samples that they lack.
    """
    if join not in get_args(Join):
        refuse(f"join must be 'exact', 'inner' or 'outer', got {join!r}")
    checked = [(t.where, sample_names(t.where, t.names)) for t in (*tables, *labeled)]
    everything = [(where, names) for where, names in checked if names is not None]
    own = [table.names for table in tables if table.names is not None]
    if not own:
        return wanted
    first, order = everything[0] if wanted is None else ("samples=", wanted)
    if join == "outer":
        return wanted or tuple(dict.fromkeys(name for names in own for name in names))
    if join == "inner":
        common = set(order).intersection(*(names for _, names in everything))
        if not common:
            shown = dict([(first, order), *everything])
            begins = "; ".join(f"those of {where} begin with {listed_names(shown[where])}" for where in [*shown][:4])
            others = [name for _, names in everything for name in names]
            refuse(f"no sample is in all sources, by name: {begins}. Use the same names{similar_names(order, others)}")
        return tuple(name for name in order if name in common)
    for where, names in everything:
        lacking, more = without(order, names), without(names, order) if wanted is None else []
        if lacking or more:
            differ = [f"lacks {len(lacking)} ({listed_names(lacking)})"] if lacking else []
            differ += [f"has {len(more)} more ({listed_names(more)})"] if more else []
            refuse(
                f"all sources must have the same samples, in any order: compared with the {len(order)} of {first}, "
                f"{where} {' and '.join(differ)}. Give all the same, or take the samples that all have "
                "(join='inner', --join inner), or those that any has (join='outer', --join outer)"
                f"{similar_names(lacking, names, (first, order))}"
            )
    return order


def without(names: Iterable[str], others: Iterable[str]) -> list[str]:
    """Return the names that are not among others, in order."""
    left_out = set(others)
    return [name for name in names if name not in left_out]


def similar_names(missing: Iterable[str], present: Iterable[str], kernels: tuple[str, Sequence[str]] = ("", ())) -> str:
    """Return hints at names that look the same but differ, and at names of kernels that only count."""

    def looks(name: str) -> str:  # without blanks, case, leading zeros and Unicode forms
        plain = "".join(c for c in unicodedata.normalize("NFKC", name) if unicodedata.category(c) != "Cf").casefold()
        plain = re.sub(r"^sub-|_ses-.*$", "", plain)  # of imaging data by the BIDS standard
        if re.fullmatch(r"\d+\.0+|\d(\.\d+)?e\+?\d+", plain):  # a number that a spreadsheet has rewritten
            plain = f"{float(plain):.0f}"
        first, _, second = plain.partition("_")  # P1_P1, where family and individual have one name
        plain = re.sub(r"[\s_]+", "", first if first == second else plain).lstrip("0")
        return re.sub(r"^([a-z]+\d+)\.\d+$", r"\1", plain)  # a version, or the second of equal titles

    forms, (where, names) = {looks(name): name for name in present}, kernels
    pairs = [(name, forms[looks(name)]) for name in missing if forms.get(looks(name), name) != name]
    how = "in blanks, case, zeros, prefixes, suffixes or Unicode form; write them alike"
    hint = "".join(
        f". {first!r} and {second!r} look alike but differ ({first!a} and {second!a}): {how}"
        for first, second in pairs[:1]
    )
    if names and list(names) == [str(i + 1) for i in range(len(names))]:
        hint += f". The names of {where} only count its rows: give those of the rows in order (--order FILE)"
    return hint


def places(names: Sequence[str], wanted: Sequence[str]) -> Index:
    """Return the positions of the wanted names among unique `names`, (wanted,); -1 for missing ones."""
    place = {name: position for position, name in enumerate(names)}
    return np.array([place.get(name, -1) for name in wanted], dtype=np.int64)


def note_of_order(where: str, names: Sequence[str]) -> str:
    """Return the note if only their order shows which names belong to which rows."""
    what = f"row i was taken for the i-th name in {where} ({names[0]} is row 0), since the rows have no names"
    return f"{what}; if they are in another order, give their names in that order (order=, --order FILE)"
