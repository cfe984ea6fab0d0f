"""Tables of geneticists: phenotypes by family and individual, and the names that both give a sample."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dmkl.errors import InputError
from dmkl.inputs.labels import LabelTable
from dmkl.unknown import UNKNOWN_TEXTS

__all__ = ["individual_names", "phenotypes"]

_SUFFIXES = (".phen", ".pheno", ".fam")
_MISSING = "-9"


def individual_names(pairs: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Names of samples of (family, individual): the individual's, or FID_IID for all where those repeat."""
    alone = tuple(individual for _, individual in pairs)
    return alone if len(set(alone)) == len(alone) else tuple(f"{family}_{own}" for family, own in pairs)


def phenotypes(path: Path, lines: Sequence[str]) -> LabelTable | None:
    """The phenotypes in lines "FID IID value …", parted by white space; None where they are none.

    They are told by a header that begins with FID and IID, by the extensions .phen, .pheno and .fam (whose sixth column
    has the phenotype), or by columns of numbers beside pairs of words without repetition. −9 and NA are missing: NaN.

    InputError is raised where lines differ in length, or a phenotype is no number.
    """
    rows = [line.split() for line in lines]
    header = rows[0] if [cell.casefold().lstrip("#") for cell in rows[0][:2]] == ["fid", "iid"] else None
    if header is not None:
        rows = rows[1:]
    told = header is not None or path.suffix.lower() in _SUFFIXES
    if not rows or not (told or _look_like_phenotypes(rows)):
        return None
    first = 5 if path.suffix.lower() == ".fam" else 2
    width = len(rows[0] if header is None else header)
    short = next((row for row in rows if len(row) != width or width <= first), None)
    if short is not None:
        msg = (
            f"{path}: found {len(short)} cells ({' '.join(short)!r:.60}), expected FID, IID and a value: {width} cells"
        )
        raise InputError(msg)
    values = np.full((len(rows), width - first), np.nan)
    for i, row in enumerate(rows):
        for k, cell in enumerate(row[first:]):
            if cell == _MISSING or cell in UNKNOWN_TEXTS:
                continue
            if not _is_number(cell):
                msg = (
                    f"{path}: the phenotype of {row[1]!r} is {cell!r:.60}, expected a number, or -9 or NA if it is "
                    "missing"
                )
                raise InputError(msg)
            values[i, k] = float(cell)
    names = individual_names([(row[0], row[1]) for row in rows])
    titles = None if header is None else tuple(header[first:])
    return LabelTable(values[:, 0], names) if values.shape[1] == 1 else LabelTable(values, names, titles)


def _look_like_phenotypes(rows: Sequence[Sequence[str]]) -> bool:
    width, pairs = len(rows[0]), {tuple(row[:2]) for row in rows}
    return (
        len(rows) > 1
        and width > 2
        and all(len(row) == width and not any("," in cell or ";" in cell for cell in row) for row in rows)
        and len(pairs) == len(rows)
        and not all(_is_number(row[1]) for row in rows)
        and all(cell in UNKNOWN_TEXTS or _is_number(cell) for row in rows for cell in row[2:])
    )


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
