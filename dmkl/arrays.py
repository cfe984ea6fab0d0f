"""Types of arrays, those read in parts, division into tiles and by keys, and questions to arrays of any library."""

from __future__ import annotations

import ast
import hashlib
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from dmkl.errors import refuse

Array = npt.NDArray[Any]
Float = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Key = TypeVar("Key")
Item = TypeVar("Item")

UNKNOWN_TEXTS = frozenset({"", "NA", "N/A", "n/a", "<NA>", "#N/A", "NaN", "nan", "NULL", "null", "None", "NaT"})
"""Texts that stand for an unknown label, as tables and the printing of pandas, R and SQL have them."""

_MOST_CODES, _MOST_CODED, _MOST_LEVELS = 2, 0.1, 10
"""Most different codes of missing values in a column, the largest share of its values that they are, and the number of
different numbers beyond which they are no classes."""


def is_instance(value: Any, library: str, *kinds: str) -> bool:
    """Whether a value is of one of these classes of a library, which is not imported: nobody has made one without."""
    module = sys.modules.get(library)
    return module is not None and isinstance(value, tuple(getattr(module, kind) for kind in kinds))


def plain_repr(value: Any) -> str:
    """`repr`, with NumPy's scalars as Python's: 0 and 'a', not np.int64(0) and np.str_('a'), in containers too."""
    with np.printoptions(legacy="1.25"):
        return repr(value)


def check_choice(name: str, value: Any, choices: Sequence[str | None]) -> None:
    """Refuse a value that is not among the choices, by an InputError that names them."""
    if value not in choices:
        *others, last = map(repr, choices)
        refuse(f"{name} must be {', '.join(others)} or {last}, got {plain_repr(value)}")


def parse_call(text: str) -> tuple[str, list[Any], dict[str, Any]]:
    """The name and the arguments of a call with plain values, such as a splitter's `repr`, or of a name alone.

    The text is never evaluated; the name is empty if it is anything else.
    """
    try:
        expression = ast.parse(text, mode="eval").body
        call = expression if isinstance(expression, ast.Call) else ast.Call(expression, [], [])
        name = call.func.id if isinstance(call.func, ast.Name) and all(each.arg for each in call.keywords) else ""
        positional = [ast.literal_eval(value) for value in call.args]
        named = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return "", [], {}
    return name, positional, named


def weight_shares(weights: Array, axis: int) -> Array:
    """Kernel weights divided by the sum of their sizes over the kernels: the scale on which fits are averaged.

    Weights have unit p-norm, and therefore another scale at each p. An array of zeros stays zero.
    """
    total = np.abs(weights).sum(axis=axis, keepdims=True)
    return np.asarray(weights / np.where(total > 0, total, 1.0))


def unmasked(values: Array) -> Array:
    """Return an array of NumPy whose masked entries are missing ones: NaN among numbers, None among others."""
    if not np.ma.is_masked(values):
        return np.asarray(values)
    is_number = values.dtype.kind in "biuf"
    entries = np.array(values, dtype=np.result_type(values.dtype, np.float32) if is_number else object)
    entries[np.ma.getmaskarray(values)] = np.nan if is_number else None
    return entries


def is_known(labels: npt.ArrayLike) -> Mask:
    """Which labels are known: all but NaN, None, pandas's NA and the texts that stand for them."""
    values = np.asarray(labels)
    if values.dtype.kind in "biuf":
        return np.asarray(~np.isnan(values), dtype=bool)
    entries = values.ravel().tolist()
    texts = [not (isinstance(value, str) and value.strip() in UNKNOWN_TEXTS) for value in entries]
    written: Mask = np.array(texts, dtype=bool).reshape(values.shape)
    if all(isinstance(value, str) for value in entries):
        return written
    import pandas as pd

    return np.asarray(written & ~pd.isna(values), dtype=bool)


def is_numeral(text: str) -> bool:
    """Whether a text is a number as Python writes it, without thousands separators."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def note_of_code(what: str, values: npt.ArrayLike) -> str:
    """Return the note on a whole number that most likely stands for missing values; "" if there is none.

    It is the least or the largest number, not zero, repeats in at most half of the values, and is further from the
    others than three times their range. It has only nines, as -9 and -999, or there are more than ten others.
    """
    numbers = np.asarray(values, dtype=float).ravel()
    numbers = numbers[np.isfinite(numbers)]
    for code in (numbers.min(), numbers.max()) if len(numbers) else ():
        others, text = numbers[numbers != code], f"{code:.0f}"
        n, width = len(numbers) - len(others), np.ptp(others) if len(others) else 0.0
        if not (2 <= n <= len(others) and code.is_integer() and np.abs(others - code).min() > 3 * width > 0):
            continue
        if not text.strip("-9") or (code and len(np.unique(others)) > _MOST_LEVELS):
            far = f"{what}: {text} occurs {n} times, far from all other values"
            return f"{far}; if it stands for a missing value, say so (--unknown {text}), or write NA"
    return ""


def refuse_dates(values: Array) -> None:
    """Refuse dates and durations as labels: they would be numbers of an unknown unit, or names of classes."""
    if values.dtype.kind in "Mm":
        way_out = "give numbers in a unit of yours, such as (y - y.min()) / np.timedelta64(1, 'D')"
        refuse(f"the labels are dates or durations ({values.dtype}), expected classes or numbers; {way_out}")


def refuse_codes(what: str, values: npt.ArrayLike, way_out: str) -> None:
    """Refuse texts among numbers that most likely stand for missing values: "-", ".", "<LOD", "#DIV/0!".

    They are one or two different ones in at most a tenth of the values. Words among a few different whole numbers are
    accepted, since all of them may be names of classes.
    """
    entries = [str(value).strip() for value in np.ravel(np.asarray(values)).tolist() if not isinstance(value, float)]
    texts = [text for text in entries if text not in UNKNOWN_TEXTS]
    numbers, others = [float(text) for text in texts if is_numeral(text)], [t for t in texts if not is_numeral(t)]
    if not 0 < len(set(others)) <= _MOST_CODES or len(others) > _MOST_CODED * len(texts):
        return
    may_be_classes = all(number.is_integer() for number in numbers) and 2 * len(set(numbers)) <= len(numbers)
    codes = [text for text in dict.fromkeys(others) if not (may_be_classes and any(map(str.isalnum, text)))]
    if codes:
        refuse(
            f"{what} numbers, but for {' and '.join(map(repr, codes))}: if that stands for a missing value, "
            f"{way_out.format(code=codes[0])}; if it is a class or a category, give all of them names with letters"
        )


def by_key(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Lists of the items of equal keys, in the order of the items."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def n_bytes(shape: Sequence[int], itemsize: int) -> int:
    """Return the bytes of an array as a Python integer, which does not overflow."""
    return math.prod(map(int, shape)) * int(itemsize)


class Matrix(Protocol):
    """A matrix, or several in one array, that is read in parts: NumPy, memory maps, h5py, Zarr."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(rows, cols) of a matrix."""

    @property
    def dtype(self) -> Any:
        """Type of the entries."""

    def __getitem__(self, key: Any) -> Any:
        """Read a part, as anything that `numpy.asarray` accepts."""


class Lazy:
    """An array whose parts a function computes by their key."""

    def __init__(self, shape: Iterable[int], dtype: Any, read: Callable[[Any], Any], chunks: Any = None) -> None:
        self.shape: tuple[int, ...] = tuple(shape)
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.chunks, self._read = chunks, read

    def __getitem__(self, key: Any) -> Array:
        return np.asarray(self._read(key))


def fingerprint(matrix: Matrix) -> str:
    """Return a digest of a matrix: BLAKE2b over its type, shape and rows."""
    digest = hashlib.blake2b(f"{np.dtype(matrix.dtype).str} {tuple(matrix.shape)}".encode(), digest_size=16)
    rows, cols = matrix.shape
    step = max(1, 2**20 // max(1, cols))  # a few megabytes at a time: the matrix may be a memory map
    for start in range(0, rows, step):
        digest.update(np.ascontiguousarray(matrix[start : min(start + step, rows), 0:cols]).tobytes())
    return digest.hexdigest()


TileKey = tuple[int, int, int]
"""(kernel, tile row, tile column)"""


@dataclass(frozen=True)
class Tiling:
    """A rows × cols matrix cut into tiles of side `tile`; the last row and column of tiles may be ragged."""

    rows: int
    cols: int  # the shape of the matrix, in samples
    tile: int  # side of a tile, in samples
    upper: bool  # whether only the tiles on and above the diagonal exist (a symmetric matrix)

    @property
    def shape(self) -> tuple[int, int]:
        """Tiles along the rows and along the columns."""
        return -(-self.rows // self.tile), -(-self.cols // self.tile)

    def row_slice(self, i: int) -> slice:
        """Rows of the matrix that the i-th row of tiles covers."""
        return slice(i * self.tile, min((i + 1) * self.tile, self.rows))

    def col_slice(self, j: int) -> slice:
        """Columns of the matrix that the j-th column of tiles covers."""
        return slice(j * self.tile, min((j + 1) * self.tile, self.cols))

    def tile_shape(self, i: int, j: int) -> tuple[int, int]:
        """Rows and columns of tile (i, j), without padding."""
        r, c = self.row_slice(i), self.col_slice(j)
        return r.stop - r.start, c.stop - c.start

    def pairs(self) -> Iterator[tuple[int, int]]:
        """The tiles that exist, row by row."""
        n_i, n_j = self.shape
        for i in range(n_i):
            for j in range(i if self.upper else 0, n_j):
                yield i, j
