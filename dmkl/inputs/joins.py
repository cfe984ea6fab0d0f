"""Matching samples by name: which samples several sources make together, and the places of names in another order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple, get_args

import numpy as np
import pandas as pd

from dmkl.arrays import Index
from dmkl.errors import InputError, SampleOrderWarning, warn
from dmkl.inputs.labels import LabelTable, sample_names

__all__ = [
    "Join",
    "Named",
    "check_join",
    "in_order",
    "joined",
    "left_out",
    "named_by_position",
    "places",
    "same_order",
    "warn_of_positions",
]

Join = Literal["exact", "inner", "outer"]
"""Whether sources must name the same samples, or those that all have are taken, or those that any has."""


class Named(NamedTuple):
    """Names of samples, and whose they are, as messages say it."""

    where: str
    names: tuple[str, ...]


def check_join(join: str) -> None:
    """Refuse what is no way to join."""
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
    for where, names in (*sources, *beside):
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
    common = set(first.names).intersection(*(names for _, names in (*sources, *beside)))
    if not common:
        msg = (
            f"no sample is in all of {_few([where for where, _ in (*sources, *beside)])}; the names of {first.where} "
            f"begin with {_listed(first.names)}, those of {sources[-1].where} with {_listed(sources[-1].names)}. Use "
            "the same names"
        )
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
    differ = [f"lacks {len(lacking)} ({_listed(lacking)})"] if lacking else []
    differ += [f"has {len(more)} more ({_listed(more)})"] if more else []
    msg = (
        f"all sources must have the same samples, in any order: compared with the {len(ours)} of {first.where}, "
        f"{other.where} {' and '.join(differ)}. Give all the same, or take the samples that all have "
        "(join='inner', --join inner), or those that any has (join='outer', --join outer)"
    )
    raise InputError(msg)


def _few(wheres: Sequence[str]) -> str:
    return ", ".join(wheres[:3]) + (" …" if len(wheres) > 3 else "")


def _listed(names: Iterable[str], most: int = 3) -> str:
    shown = list(names)
    return ", ".join(map(repr, shown[:most])) + (" …" if len(shown) > most else "")


def left_out(sources: Sequence[Named], samples: Sequence[str] | None) -> list[str]:
    """What is said of samples that some source lacks, and that join="inner" leaves out; nothing where all are kept."""
    everyone, kept = dict.fromkeys(name for _, names in sources for name in names), set(samples or ())
    lost = [name for name in everyone if name not in kept]
    lacking = [f"{where} lacks {len(everyone) - len(names)}" for where, names in sources if len(names) < len(everyone)]
    if samples is None or not lost or not lacking:
        return []
    return [f"{len(lost)} of {len(everyone)} samples left out ({_listed(lost)}), as asked for: {_few(lacking)}"]


def same_order(names: Sequence[str], samples: Sequence[str]) -> bool:
    """Whether the samples stand in `names` one after another, though there may be others between them."""
    wanted = set(samples)
    return [name for name in names if name in wanted] == list(samples)


def places(names: Sequence[str], wanted: Sequence[str]) -> Index:
    """Where the wanted names stand among unique `names`, (wanted,); -1 for those that are not there."""
    index, asked = (pd.Index(np.array(each, dtype=object)) for each in (names, wanted))
    return np.asarray(index.get_indexer(asked), dtype=np.int64)


def in_order(where: str, table: LabelTable, samples: Sequence[str] | None) -> LabelTable:
    """Labels or splits with a row for each of the samples, found by name; as they are where one side has no names.

    InputError is raised where a sample is missing; rows of others are left out.
    """
    names = table.row_names
    if names is None or samples is None or names == tuple(samples):
        return table
    sample_names(where, names)
    values = table.values
    if values.ndim == 2 and len(values) != len(names):
        values = values.T  # a row for each split
    if len(values) != len(names):
        return table  # who checks shapes tells it
    at = places(names, samples)
    missing = [name for name, place in zip(samples, at, strict=True) if place < 0]
    if missing:
        msg = (
            f"{where} lacks {len(missing)} of the {len(samples)} samples ({_listed(missing)}); its names begin with "
            f"{_listed(names)}. Give each sample a value, or leave those samples out"
        )
        raise InputError(msg)
    return LabelTable(values[at], tuple(samples), table.columns)


def named_by_position(table: LabelTable, names: Sequence[str] | None) -> LabelTable:
    """A table with names for its rows where it has none, one after another, if there are as many."""
    if table.row_names is not None or names is None or len(names) not in table.values.shape:
        return table
    return replace(table, row_names=tuple(names))


def warn_of_positions(without: Iterable[str], sources: Sequence[Named], samples: Sequence[str] | None) -> None:
    """Warn where something has no names, and names have changed the order of something else.

    Where all names stand in the order of the samples, positions can mean but one thing.
    """
    by_position = list(without)
    moved = [where for where, names in sources if samples is not None and names != tuple(samples)]
    if by_position and moved:
        message = (
            f"{_few(by_position)} without names of samples: matched by position with samples into whose order "
            f"{_few(moved)} was put by name. Give names (the index of a data frame) to be safe"
        )
        warn(message, SampleOrderWarning)
