"""Names of samples: reading them from objects, joining those of several sources, and finding their positions."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, NoReturn, get_args

import numpy as np
import pandas as pd
import xarray as xr

from dmkl.arrays import Array, Index
from dmkl.errors import InputError, SampleOrderWarning, warn

__all__ = [
    "Join",
    "LabelTable",
    "Named",
    "as_text",
    "axis_names",
    "check_join",
    "in_order",
    "index_names",
    "joined",
    "left_out",
    "listed_names",
    "named_by_position",
    "names_as_known",
    "names_of_pairs",
    "need_families",
    "note_of_positions",
    "only_counts",
    "places",
    "refuse_control",
    "refuse_without_names",
    "same_order",
    "sample_names",
    "taken_by_position",
    "unique_names",
    "warn_of_positions",
]

Join = Literal["exact", "inner", "outer"]
"""Whether sources must name the same samples, or those that all have are taken, or those that any has."""


class Named(NamedTuple):
    """Names of samples, and whose they are, as messages say it."""

    where: str
    names: tuple[str, ...]
    families: tuple[str, ...] | None = None  # of individuals (FID), where the source has them


@dataclass(frozen=True)
class LabelTable:
    """Labels, names or splits as they were given, with the names beside and above them."""

    values: Array  # (rows,) or (rows, columns)
    row_names: tuple[str, ...] | None = None  # the names of the rows, where they have any
    columns: tuple[str, ...] | None = None  # the names of the columns, where they have any
    families: tuple[str, ...] | None = None  # of the rows, where they have any
    notes: tuple[str, ...] = ()  # choices that could have been otherwise
    is_table: bool = False  # whether names could have stood in it: text and data frames, no arrays


# --- names as text -------------------------------------------------------------------------------------------------


def as_text(value: Any) -> str:
    """A name as a string."""
    # NumPy and HDF5 hold strings as bytes, whose str() is "b'...'".
    return value.decode() if isinstance(value, bytes) else str(value)


def only_counts(index: pd.Index[Any]) -> bool:
    """Whether an index is that of a data frame without names of rows."""
    return isinstance(index, pd.RangeIndex) and index.start == 0 and index.step == 1


def index_names(index: pd.Index[Any]) -> tuple[str, ...] | None:
    """The names in an index of pandas; None where it only counts."""
    return None if only_counts(index) else tuple(map(as_text, index))


def axis_names(array: xr.DataArray, axis: int) -> tuple[str, ...] | None:
    """The coordinate of an axis of an xarray array; None where it has none."""
    if axis >= array.ndim or array.dims[axis] not in array.coords:
        return None
    return tuple(map(as_text, array.coords[array.dims[axis]].to_numpy().tolist()))


def sample_names(where: str, names: Iterable[Any] | None, length: int | None = None) -> tuple[str, ...] | None:
    """Names of samples as strings, checked to be unique and as many as the rows."""
    if names is None:
        return None
    checked = tuple(map(as_text, names))
    if length is not None and len(checked) != length:
        msg = f"{where} have {length} rows and {len(checked)} sample names, expected a name for each row"
        raise InputError(msg)
    if len(set(checked)) < len(checked):
        name, count = Counter(checked).most_common(1)[0]
        msg = (
            f"{where}: sample names must be unique, but {name!r} occurs {count} times; "
            "drop or average the rows of one name, or rename them"
        )
        raise InputError(msg)
    return checked


def unique_names(values: Sequence[Any] | Array | None, length: int, what: str) -> Array:
    """Names as an array of strings, numbers from 0 where there are none; `what` they are of, as messages say it."""
    if values is None:
        return np.array([str(i) for i in range(length)], dtype=object)
    given = np.asarray(values)
    if given.ndim != 1:
        msg = f"{what} names must be a list of {length}, got {values!r:.80}"
        raise InputError(msg)
    names = [as_text(value) for value in given.tolist()]
    if len(names) != length:
        msg = f"{what} names: found {len(names)}, expected one for each of the {length} {what}s"
        raise InputError(msg)
    seen: set[str] = set()
    for name in names:
        if name in seen:
            msg = f"{what} names must be unique, but {name!r} occurs more than once"
            raise InputError(msg)
        refuse_control(name, f"{what} name")
        seen.add(name)
    return np.array(names, dtype=object)


def refuse_control(name: str, what: str) -> None:
    """Refuse control characters, which a terminal obeys, and which end names or lines in files of text."""
    control = [] if name.isprintable() else [c for c in name if unicodedata.category(c) in ("Cc", "Zl", "Zp")]
    if control:
        msg = f"{what} {name!r} holds a control character ({control[0]!r}); give it another name"
        raise InputError(msg)


# --- families and individuals --------------------------------------------------------------------------------------


def need_families(sources: Iterable[Named]) -> bool:
    """Whether individuals are told apart by their families alone: as in GCTA and PLINK, the pair is the name.

    A family of 0, or called as the individual, is none.
    """
    families: dict[str, str] = {}
    for source in sources:
        if source.families is None:
            continue
        if len(set(source.names)) < len(source.names):
            return True
        for family, own in zip(source.families, source.names, strict=True):
            if family not in ("0", own) and families.setdefault(own, family) != family:
                return True
    return False


def names_of_pairs(names: tuple[str, ...], families: tuple[str, ...] | None) -> tuple[str, ...]:
    """Names FID_IID of individuals; those without a family keep their own."""
    if families is None:
        return names
    pairs = zip(families, names, strict=True)
    return tuple(own if family in ("0", own) else f"{family}_{own}" for family, own in pairs)


def names_as_known(
    names: tuple[str, ...], families: tuple[str, ...] | None, known: Iterable[str] | None
) -> tuple[str, ...]:
    """Names of individuals, or FID_IID where more of these are known; where none are known, if the names repeat."""
    pairs = names_of_pairs(names, families)
    if known is None:
        return pairs if len(set(names)) < len(names) else names
    return pairs if len(set(known).intersection(pairs)) > len(set(known).intersection(names)) else names


# --- joining -------------------------------------------------------------------------------------------------------


def check_join(join: str) -> None:
    """Refuse a way to join that does not exist."""
    if join not in get_args(Join):
        msg = f"join must be 'exact', 'inner' or 'outer', got {join!r}"
        raise InputError(msg)


def joined(
    sources: Sequence[Named], join: Join, wanted: tuple[str, ...] | None = None, beside: Sequence[Named] = ()
) -> tuple[str, ...] | None:
    """The samples that sources make together, by name; None where nothing names them.

    They stand in the order of `wanted`, or else of the first source, so that what has no names and stands in that order
    still fits; with join="outer" those that only later sources have follow. `beside` are labels and splits: every
    sample needs one, so they never add samples, but join="inner" leaves out the samples that they lack.

    InputError is raised where names repeat, where join="exact" finds other samples in one source than in another, or
    where join="inner" leaves none.
    """
    check_join(join)
    for where, names, _ in (*sources, *beside):
        sample_names(where, names)
    if not sources:
        return wanted
    first = sources[0] if wanted is None else Named("samples=", wanted)
    if join == "outer":
        return wanted or tuple(dict.fromkeys(name for source in sources for name in source.names))
    if join == "exact":
        for other in (*sources, *beside):
            _check_same(first, other, exactly=wanted is None)
        return first.names
    common = set(first.names).intersection(*(source.names for source in (*sources, *beside)))
    if not common:
        everyone = [first, *(source for source in (*sources, *beside) if source is not first)]
        begins = "; ".join(f"those of {where} begin with {listed_names(names)}" for where, names, _ in everyone[:4])
        others = [name for source in everyone[1:] for name in source.names]
        msg = f"no sample is in all sources, by name: {begins}. Use the same names{_alike(first.names, others)}"
        raise InputError(msg)
    return tuple(name for name in first.names if name in common)


def _check_same(first: Named, other: Named, *, exactly: bool) -> None:
    """Refuse another set of samples; where it need not be the same `exactly`, there may be more of them."""
    if first.names == other.names:
        return
    theirs, ours = set(other.names), set(first.names)
    lacking = [name for name in first.names if name not in theirs]
    more = [name for name in other.names if name not in ours] if exactly else []
    if not lacking and not more:
        return
    differ = [f"lacks {len(lacking)} ({listed_names(lacking)})"] if lacking else []
    differ += [f"has {len(more)} more ({listed_names(more)})"] if more else []
    msg = (
        f"all sources must have the same samples, in any order: compared with the {len(ours)} of {first.where}, "
        f"{other.where} {' and '.join(differ)}. Give all the same, or take the samples that all have "
        "(join='inner', --join inner), or those that any has (join='outer', --join outer)"
        f"{_alike(lacking, other.names)}{_only_numbers(first)}"
    )
    raise InputError(msg)


def _only_numbers(named: Named) -> str:
    """The way out where the names of kernels are only numbers of their rows, as R writes them."""
    if list(named.names) != [str(i + 1) for i in range(len(named.names))]:
        return ""
    return (
        f". The names of {named.where} only count its rows: give the names of the rows in the order in which they "
        "stand (--order FILE)"
    )


def _alike(missing: Iterable[str], present: Iterable[str]) -> str:
    """A hint at names that look the same but are not: Unicode forms, blanks, case, zeros in front."""
    forms = {_look(name): name for name in present}
    for name in missing:
        twin = forms.get(_look(name))
        if twin is not None and twin != name:
            return (
                f". {name!r} and {twin!r} look alike but differ ({name!a} and {twin!a}): in blanks, case, "
                "zeros in front or Unicode form; write them alike"
            )
    return ""


def _look(name: str) -> str:
    plain = "".join(c for c in unicodedata.normalize("NFKC", name) if unicodedata.category(c) != "Cf")
    return "".join(plain.split()).casefold().lstrip("0")


def listed_names(names: Iterable[str], most: int = 3) -> str:
    """The first of some names, as messages list them."""
    shown = list(names)
    return ", ".join(map(repr, shown[:most])) + (" …" if len(shown) > most else "")


def _few(wheres: Sequence[str]) -> str:
    return ", ".join(wheres[:3]) + (" …" if len(wheres) > 3 else "")


def left_out(sources: Sequence[Named], samples: Sequence[str] | None) -> list[str]:
    """The note on samples that some source lacks, and that join="inner" leaves out; nothing where all are kept."""
    everyone, kept = dict.fromkeys(name for source in sources for name in source.names), set(samples or ())
    lost = [name for name in everyone if name not in kept]
    lacking = [f"{s.where} lacks {len(everyone) - len(s.names)}" for s in sources if len(s.names) < len(everyone)]
    if samples is None or not lost or not lacking:
        return []
    return [f"{len(lost)} of {len(everyone)} samples left out ({listed_names(lost)}), as asked for: {_few(lacking)}"]


def same_order(names: Sequence[str], samples: Sequence[str]) -> bool:
    """Whether the samples stand in `names` one after another, though there may be others between them."""
    wanted = set(samples)
    return [name for name in names if name in wanted] == list(samples)


def places(names: Sequence[str], wanted: Sequence[str]) -> Index:
    """Where the wanted names stand among unique `names`, (wanted,); -1 for those that are not there."""
    index, asked = (pd.Index(np.array(each, dtype=object)) for each in (names, wanted))
    return np.asarray(index.get_indexer(asked), dtype=np.int64)


# --- labels and the like in the order of the samples ---------------------------------------------------------------


def in_order(where: str, table: LabelTable, samples: Sequence[str] | None) -> LabelTable:
    """Labels or splits with a row for each of the samples, found by name; as they are where one side has no names.

    InputError is raised where a sample is missing, or where a table of several columns has no names; rows of others are
    left out.
    """
    names = table.row_names
    if names is None and samples is not None and table.is_table and table.values.ndim == 2:
        refuse_without_names(where, table.values.shape[1], samples)
    if names is None or samples is None or names == tuple(samples):
        return table
    names = names_as_known(names, table.families, samples)
    sample_names(where, names)
    values = table.values
    if values.ndim == 2 and len(values) != len(names):
        values = values.T  # a row for each split
    if len(values) != len(names):
        return table  # the check of shapes refuses it
    at = places(names, samples)
    missing = [name for name, place in zip(samples, at, strict=True) if place < 0]
    if missing:
        msg = (
            f"{where} lacks {len(missing)} of the {len(samples)} samples ({listed_names(missing)}); its names begin "
            f"with {listed_names(names)}. Give each sample a value, or leave those samples out"
            f"{_alike(missing, names)}{_only_numbers(Named('the set', tuple(samples)))}"
        )
        raise InputError(msg)
    return LabelTable(values[at], tuple(samples), table.columns, notes=table.notes)


def refuse_without_names(where: str, n_columns: int, samples: Iterable[str]) -> NoReturn:
    """Refuse a table of several columns in which nothing names the samples, where these have names."""
    msg = (
        f"{where} is a table of {n_columns} columns, none of which names the samples, and the samples have names "
        f"({listed_names(samples)}); expected a column of these names, since rows are matched by name. Title it "
        "'sample', and give one column of values or its name (FILE:NAME)"
    )
    raise InputError(msg)


def named_by_position(table: LabelTable, names: Sequence[str] | None) -> LabelTable:
    """Labels with names for their rows where they have none, one after another, if there are as many.

    A table of several columns has to have names.
    """
    several = table.is_table and table.values.ndim == 2
    if table.row_names is not None or names is None or several or len(names) not in table.values.shape:
        return table
    return replace(table, row_names=tuple(names))


def taken_by_position(where: str, names: Sequence[str]) -> str:
    """The note where only their order shows which names belong to which rows."""
    return (
        f"row i was taken for the i-th name in {where} ({names[0]} is row 0), since the rows have no names; if they "
        "stand in another order, give their names in that order (order=, --order FILE)"
    )


def note_of_positions(without: Collection[str], sources: Sequence[Named], samples: Sequence[str] | None) -> list[str]:
    """The note on sources without names where others have some; nothing where there are none."""
    if not without or not sources or samples is None:
        return []
    return [
        f"{_few(list(without))} without names of samples: row i is taken for sample i ({samples[0]!r} is row 0) of "
        f"{_few([source.where for source in sources])}, which has names. Give names (a column of them, or the index of "
        "a Series or data frame) to be safe"
    ]


def warn_of_positions(without: Collection[str], sources: Sequence[Named], samples: Sequence[str] | None) -> None:
    """Warn where something has no names, and others have."""
    for message in note_of_positions(without, sources, samples):
        warn(message, SampleOrderWarning)
