"""Kernels and distances in lists of pairs: two names and values on each line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dmkl import settings
from dmkl.arrays import Float, Index
from dmkl.errors import InputError, refuse
from dmkl.inputs.columns import is_number, plain_title
from dmkl.inputs.formats.file_arrays import FileArray
from dmkl.inputs.formats.tables import Text
from dmkl.names import Individual
from dmkl.settings import check_memory

_PAIRS = [(f"{word}1", f"{word}2") for word in "iid id sample sampleid ind individual name taxon genome".split()]
_PAIRS += [("qseqid", "sseqid"), ("query", "reference"), ("reffile", "queryfile"), ("query", "subject")]
"""Titles of the columns of both names of a pair (see `plain_title`)."""
_SIMILARITIES, _DISTANCES = ("kinship", "pihat", "bitscore", "ani"), ("distance", "dist")
"""Titles of the columns of values that are taken first: of KING and PLINK 2, PLINK, BLAST, skani; of distances."""
_BLAST = "qseqid sseqid pident length mismatch gapopen qstart qend sstart send evalue bitscore".split()
"""The columns of BLAST's outfmt 6, which has no titles."""
_MOST_COLUMNS = 20
_RULES = ("refuse", "first", "max", "mean")


class _Layout(NamedTuple):
    """The columns of a table of pairs, by their positions."""

    names: tuple[int, int]
    families: tuple[int, ...]  # of both names; none if there are no families
    values: list[int]
    titles: Sequence[str]  # of all columns as they are written; none if there are none
    by_title: bool  # whether titles show the columns of names
    numeric: bool  # whether the first names are numbers


def pairs_of(text: Text) -> list[FileArray]:
    """Return the matrices in a table that lists pairs of samples, one for each column of values; none if it does not.

    Titles show the columns of names, as in KING's and PLINK's .kin0 and .genome, and in tables of skani and BLAST.
    Other tables list pairs if the first two columns share their names, or if all pairs are there once or twice; their
    values are in the third column. Entries that are zero between samples and themselves, or lacking there, are
    distances; shares of identity in percent, as average nucleotide identities, are also distances 1 − share/100. All
    other matrices are read by name.
    """
    layout = _layout_of(text)
    if layout is None:
        return []
    try:
        samples, first, second, entries = read = _read(text, layout, layout.values[0])
    except InputError:
        if layout.by_title:
            raise
        return []  # a table of another kind
    n = len(samples)
    if not _are_pairs(layout, n, first, second):
        return []
    if not layout.by_title:
        text.notes.append(f"{text.path} was taken for entries of pairs: name, name, value")
    elif text.titles is None:
        text.notes.append(f"{text.path} was taken for a table of BLAST (outfmt 6), and its kernel for the bit scores")
    own = entries[first == second]
    similar = bool(layout.titles) and plain_title(layout.titles[layout.values[0]]) in _SIMILARITIES
    arrays, names = list[FileArray](), dict[str, Any](rows=samples, columns=samples)
    more: dict[str, Any] = {"holds": "kernel" if similar or own.any() else "distances", "notes": tuple(text.notes)}
    for k in layout.values:
        kept = None if arrays else read
        opened = partial(lambda k, kept: _matrix(text.path, similar, *(kept or _read(text, layout, k))), k, kept)
        name = "" if len(layout.values) == 1 else layout.titles[k]
        arrays.append(FileArray(text.path, name, (n, n), np.dtype(float), opened, **names, **more))
        more = {"holds": "features", "by_name": True}
    if len(own) and (own == 100).all() and not (entries < 0).any():  # shares of identity in percent
        distances = partial(lambda similarity: 1 - similarity() / 100, arrays[0].open)
        arrays.append(replace(arrays[0], name="distances", open=distances, holds="distances", notes=()))
    return arrays


def _layout_of(text: Text) -> _Layout | None:
    """Return the columns that may list pairs; None if none do."""
    row = next(iter(text.first_rows), [])
    if text.count is not None or text.is_triangle or not 3 <= len(row) == text.n_columns <= _MOST_COLUMNS:
        return None
    written = text.titles or (_BLAST if len(row) == len(_BLAST) and not any(map(is_number, row[:2])) else ())
    titles = list(map(plain_title, written))
    names = next(((titles.index(a), titles.index(b)) for a, b in _PAIRS if a in titles and b in titles), (0, 0))
    by_title = names != (0, 0) and f"{titles[names[0]][:-1]}3" not in titles  # columns of samples are called so too
    names = names if by_title else (0, 1)
    families = tuple(map(titles.index, ("fid1", "fid2"))) if by_title and {"fid1", "fid2"} <= set(titles) else ()
    known = [titles.index(title) for title in (*_SIMILARITIES, *_DISTANCES) if title in titles]
    others = [k for k in range(len(row)) if k not in (*names, *families, *known)]
    numbers = [*known, *(k for k in others if is_number(row[k], text.decimal_comma))]
    values = numbers if by_title else [k for k in numbers if k == 2]
    numeric = all(is_number(row[k]) for k in names)
    is_other = not values or (numeric and not by_title and len(row) > 3)
    return None if is_other else _Layout(names, families, values, written, by_title, numeric)


def _are_pairs(layout: _Layout, n: int, first: Index, second: Index) -> bool:
    """Whether the positions of both names of each row among n are pairs of samples, maybe not all of them."""
    n_shared = np.logical_and(*(np.bincount(places, minlength=n) for places in (first, second))).sum()
    if 2 * n_shared > n and (layout.by_title or (not layout.numeric and len(first) > 2 * n)):
        return True
    if layout.by_title and not layout.numeric:  # numbers that are no names are hardly in both columns
        return True
    # In one order or in both, with each sample itself or without.
    lengths = (n * (n + 1) // 2, n * n, n * (n - 1) // 2, n * (n - 1))
    each = len(first) in lengths and not (layout.numeric and n == 3)
    return each and len(first) > 3 and int(np.bincount(first * n + second).max()) == 1


def _read(text: Text, layout: _Layout, column: int) -> tuple[tuple[str, ...], Index, Index, Float]:
    """Return the names of the samples, the positions of both in each row, and the entries."""
    import pandas as pd

    frame = text.read_frame([*layout.names, *layout.families], [column])
    pairs_of_columns = filter(None, (layout.families, layout.names))
    keys = [pd.concat([frame[a], frame[b]], ignore_index=True) for a, b in pairs_of_columns]
    places, levels = pd.factorize(keys[0].fillna("") if len(keys) == 1 else (keys[0] + "\n" + keys[1]).fillna(""))
    pairs = [key.rpartition("\n") for key in map(str.strip, levels.tolist())]
    samples = Individual.of((name for *_, name in pairs), (family for family, *_ in pairs))
    first, second = np.split(places.astype(np.int64), 2)
    return samples if layout.families else tuple(map(str, samples)), first, second, frame[column].to_numpy()


def _matrix(path: Path, similar: bool, samples: tuple[str, ...], rows: Index, cols: Index, entries: Float) -> Float:
    """Return the matrix of samples with entries at positions from 0, each pair in one order or in both.

    The setting ``dmkl.duplicates`` is the rule for pairs with several values. A diagonal without entries is zero, or
    refused if entries are similarities.
    """
    if similar and not (rows == cols).any():
        what = f"{path} lists each sample with others and none with itself, which a kernel needs"
        refuse(f"{what}; add a line for each: 0.5 is the kinship with itself without inbreeding, 1 the share of genome")
    n = len(samples)
    check_memory(f"the matrix of {path}", 16 * n * n, "save it in a binary format, or allow more")
    rule = settings.get("duplicates")
    if rule not in _RULES:
        refuse(f"dmkl.duplicates (--duplicates) must be one of {', '.join(_RULES)}, got {rule!r}")
    if rule != "refuse":
        import pandas as pd

        grouped = pd.Series(entries).groupby(np.minimum(rows, cols) * n + np.maximum(rows, cols))
        values = grouped.agg(rule)
        (rows, cols), entries = divmod(values.index.to_numpy(), n), values.to_numpy()
    matrix = np.full((n, n), np.nan)
    matrix[rows, cols] = entries
    differing = np.flatnonzero((matrix[rows, cols] != entries) & ~np.isnan(entries))
    if len(differing):
        i, k, value = int(rows[differing[0]]), int(cols[differing[0]]), entries[differing[0]]
        what = f"{path} lists the pair of rows {i} and {k} twice, with the values {value:g} and {matrix[i, k]:g}"
        way_out = "remove the wrong lines, or take one of the values or their mean (--duplicates first, max or mean)"
        refuse(f"{what} ({len(differing)} such lines), expected one value for each pair; {way_out}")
    matrix = np.where(np.isnan(matrix), matrix.T, matrix)
    if not (rows == cols).any():
        np.fill_diagonal(matrix, 0)
    missing = np.argwhere(np.isnan(matrix))
    if len(missing):
        i, k = missing[0].tolist()
        refuse(f"{path} lacks {len(missing)} entries of pairs, the first of rows {i} and {k}; give all")
    return matrix
