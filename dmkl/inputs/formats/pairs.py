"""Kernels and distances in lists of pairs: two names and values on each line."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dmkl import settings
from dmkl.arrays import Float, Index
from dmkl.errors import InputError, refuse
from dmkl.inputs.columns import is_number, plain_title
from dmkl.inputs.formats.file_arrays import FileArray
from dmkl.inputs.formats.tables import Text
from dmkl.inputs.names import Individual
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


def pairs_of(text: Text) -> list[FileArray]:
    """Return the matrices in a table that lists pairs of samples, one for each column of values; none if it does not.

    Titles show the columns of names, as in KING's and PLINK's .kin0 and .genome, and in tables of skani and BLAST.
    Other tables list pairs if the first two columns share their names, or if all pairs are there once or twice; their
    values are in the third column. Entries that are zero between samples and themselves, or lacking there, are
    distances; shares of identity in percent, as average nucleotide identities, are also distances 1 − share/100. All
    other matrices are read by name.
    """
    row = next(iter(text.first_rows), [])
    if text.count is not None or text.is_triangle or not 3 <= len(row) == text.n_columns <= _MOST_COLUMNS:
        return []
    titles = list(map(plain_title, text.titles or ()))
    titles = titles or (_BLAST if len(row) == len(_BLAST) and not any(map(is_number, row[:2])) else [])
    names = next(((titles.index(a), titles.index(b)) for a, b in _PAIRS if a in titles and b in titles), None)
    by_title = names is not None and f"{titles[names[0]][:-1]}3" not in titles  # columns of samples are called so too
    at = names if names is not None and by_title else (0, 1)
    families = tuple(map(titles.index, ("fid1", "fid2"))) if by_title and {"fid1", "fid2"} <= set(titles) else ()
    known = [titles.index(title) for title in (*_SIMILARITIES, *_DISTANCES) if title in titles]
    rest = [
        k for k, cell in enumerate(row) if k not in (*at, *families, *known) and is_number(cell, text.decimal_comma)
    ]
    columns = [*known, *rest] if by_title else [k for k in rest if k == 2]
    numeric = all(is_number(row[k]) for k in at)
    if not columns or (numeric and not by_title and len(row) > 3):
        return []
    try:
        samples, first, second, entries = read = _read(text, at, families, columns[0])
    except InputError:
        if by_title:
            raise
        return []  # a table of another kind
    n, n_lines = len(samples), len(first)
    if not by_title:
        # Pairs that are missing are refused when the matrix is read.
        n_shared = np.logical_and(*(np.bincount(places, minlength=n) for places in (first, second))).sum()
        share_names = not numeric and 2 * n_shared > n and n_lines > 2 * n
        each = n_lines in (n * (n + 1) // 2, n * n, n * (n - 1) // 2) and not (numeric and n == 3)
        if n_lines < 4 or not (share_names or (each and np.bincount(first * n + second).max() == 1)):
            return []
        text.notes.append(f"{text.path} was taken for entries of pairs: name, name, value")
    elif titles is _BLAST:
        text.notes.append(f"{text.path} was taken for a table of BLAST (outfmt 6), and its kernel for the bit scores")
    own, similar = entries[first == second], bool(titles) and titles[columns[0]] in _SIMILARITIES
    of_pairs: Any = {"holds": "kernel" if similar or own.any() else "distances"}
    arrays = []
    for k in columns:
        kept = read if k == columns[0] else None
        opened = partial(lambda k, kept: _matrix(text, similar, *(kept or _read(text, at, families, k))), k, kept)
        array = FileArray(text.path, "", (n, n), np.dtype(float), opened, rows=samples, columns=samples, **of_pairs)
        arrays.append(array if len(columns) == 1 else replace(array, name=(text.titles or titles)[k]))
        of_pairs = {"holds": "features", "by_name": True}
    arrays[0] = replace(arrays[0], notes=tuple(text.notes))
    if len(own) and (own == 100).all() and not (entries < 0).any():  # shares of identity in percent
        distances = partial(lambda similarity: 1 - similarity() / 100, arrays[0].open)
        arrays.append(replace(arrays[0], name="distances", open=distances, holds="distances", notes=()))
    return arrays


def _read(
    text: Text, at: tuple[int, int], families: tuple[int, ...], column: int
) -> tuple[tuple[str, ...], Index, Index, Float]:
    """Return the names of the samples, the positions of both in each row, and the entries."""
    import pandas as pd

    frame = text.read_frame([*at, *families], [column])
    keys = [pd.concat([frame[pair[0]], frame[pair[1]]], ignore_index=True) for pair in (families, at) if pair]
    places, levels = pd.factorize(keys[0].fillna("") if len(keys) == 1 else (keys[0] + "\n" + keys[1]).fillna(""))
    pairs = [key.rpartition("\n") for key in map(str.strip, levels.tolist())]
    samples = Individual.of((name for *_, name in pairs), (family for family, *_ in pairs))
    first, second = np.split(places.astype(np.int64), 2)
    return samples if families else tuple(map(str, samples)), first, second, frame[column].to_numpy()


def _matrix(text: Text, similar: bool, samples: tuple[str, ...], rows: Index, cols: Index, entries: Float) -> Float:
    if similar and not (rows == cols).any():
        what = f"{text.path} lists each sample with others and none with itself, which a kernel needs"
        refuse(f"{what}; add a line for each: 0.5 is the kinship with itself without inbreeding, 1 the share of genome")
    return matrix_of_pairs(text.path, len(samples), rows, cols, entries)


def matrix_of_pairs(path: Path, n: int, rows: Index, cols: Index, entries: Float) -> Float:
    """Return the matrix (n, n) of entries at positions from 0, each pair in one order or in both.

    The setting ``dmkl.duplicates`` is the rule for pairs with several values. A diagonal without entries is zero.
    """
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
