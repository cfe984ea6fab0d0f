"""Columns and kernels that determine the labels exactly: the labels themselves, under another name.

A column determines labels if it is constant within each class and different between classes, so that one is the other
up to renaming. A kernel does if k(x, z) depends on the classes of x and z alone, up to rounding, and differently for
each class. Both are exact: values that vary within a class by more than rounding, however informative, never count.
A small data set may have such a column by chance, and one with hardly two samples of a class always has.
"""

from __future__ import annotations

import numpy as np
from scipy.special import gammaln

from dmkl.arrays import Array, Float, Index

__all__ = ["LabelColumns", "LabelKernel", "TargetColumns", "by_chance", "label_codes", "label_columns"]

_EXPECTED = 0.01
"""Columns that may be expected to determine the labels by chance: where there may be more, none is taken for labels."""
_MOST_CLASSES = 2048
_FIRST_ROWS = 16


def label_codes(labels: Array | None) -> list[Index]:
    """The class of each sample as a number, −1 where unknown; of each task of 0 and 1, and none of targets."""
    if labels is None or (labels.ndim == 1 and labels.dtype.kind == "f"):
        return []
    if labels.ndim == 1:
        return [np.unique(labels, return_inverse=True)[1].astype(np.int64)]
    tasks = [column for column in labels.T if np.isin(column, (0, 1)).sum() == np.count_nonzero(column == column)]
    return [np.where(column == column, column, -1).astype(np.int64) for column in tasks]


def by_chance(codes: Index, n_columns: int) -> bool:
    """Whether `n_columns` columns of the same values, in random order, may well hold one that determines the labels.

    Of the m!/∏n_c! orders of a column, those ∏ₖ r_k! determine them that exchange classes of equal size, of which there
    are r_k for each size.
    """
    sizes = np.bincount(codes[codes >= 0])
    sizes = sizes[sizes > 0]
    if len(sizes) < 2 or len(sizes) > _MOST_CLASSES:
        return True
    log_orders = gammaln(sizes.sum() + 1) - gammaln(sizes + 1).sum()
    log_equal = gammaln(np.unique(sizes, return_counts=True)[1] + 1).sum()
    return bool(np.log(n_columns) + log_equal - log_orders > np.log(_EXPECTED))


class LabelColumns:
    """Which columns of a table determine the labels, found as the table is read strip by strip.

    Parameters
    ----------
    codes
        (m,), the classes as `label_codes` has them.
    n_columns
        Columns of the table.
    """

    def __init__(self, codes: Index, n_columns: int) -> None:
        self._codes, self._n_columns = codes, n_columns
        self._columns = np.arange(0 if by_chance(codes, n_columns) else n_columns)
        self._first = np.full(int(codes.max(initial=0)) + 1, -1)  # the row of `_values` of each class that was seen
        self._values: Float | None = None

    def take(self, strip: slice, values: Array) -> None:
        """Some rows; those with NaN lack the table and tell nothing."""
        if not len(self._columns):
            return
        codes = self._codes[strip]
        rows = np.flatnonzero((codes >= 0) & ~np.isnan(values).any(axis=1))
        # Two samples of one class rule out nearly all columns before anything is kept of them.
        classes, first, counts = np.unique(codes[rows], return_index=True, return_counts=True)
        if len(classes) and counts.max() > 1:
            of_one = rows[codes[rows] == classes[counts.argmax()]][:2]
            self._keep((values[of_one[0]] == values[of_one[1]])[self._columns])
        values = values[:, self._columns]
        new = self._first[classes] < 0
        known = np.empty((0, values.shape[1])) if self._values is None else self._values
        self._first[classes[new]] = len(known) + np.arange(int(new.sum()))
        self._values = np.concatenate([known, values[rows[first[new]]]])
        for start in range(0, len(rows), _FIRST_ROWS**2):
            part = rows[start : start + _FIRST_ROWS**2]
            agree = values[part] == self._values[self._first[codes[part]]]
            values = values[:, self._keep(agree.all(axis=0))]

    def _keep(self, kept: Array) -> Array:
        self._columns = self._columns[kept]
        if self._values is not None:
            self._values = self._values[:, kept]
        return kept

    def found(self) -> Index:
        """Columns that determine the labels; all of them where only all together do, as indicators of classes."""
        if self._values is None or not len(self._columns):
            return np.arange(0)
        n = len(self._values)
        alone = [k for k, values in enumerate(self._values.T) if len(np.unique(values)) == n]
        if not alone and len(self._columns) == self._n_columns and len(np.unique(self._values, axis=0)) == n:
            return self._columns
        return self._columns[alone]


class TargetColumns:
    """Which columns of a table are the target of a regression itself; as `LabelColumns`."""

    def __init__(self, target: Array, n_columns: int) -> None:
        self._target, self._columns = target, np.arange(n_columns)

    def take(self, strip: slice, values: Array) -> None:
        """Some rows."""
        expected = self._target[strip].astype(values.dtype)[:, None]
        known = ~(np.isnan(expected[:, 0]) | np.isnan(values).any(axis=1))
        for start in range(0, len(values), _FIRST_ROWS**2):
            part = slice(start, start + _FIRST_ROWS**2)
            agree = (values[part][:, self._columns] == expected[part]) | ~known[part, None]
            self._columns = self._columns[agree.all(axis=0)]

    def found(self) -> Index:
        """The columns that are."""
        return self._columns


def label_columns(labels: Array | None, n_columns: int) -> list[LabelColumns | TargetColumns]:
    """What finds the columns of a table that determine the labels, or equal a target, of each task or target."""
    if labels is not None and labels.dtype.kind == "f":
        targets = [target for target in labels.reshape(len(labels), -1).T if len(np.unique(target)) > _FIRST_ROWS]
        found: list[LabelColumns | TargetColumns] = [TargetColumns(target, n_columns) for target in targets]
        return found + [LabelColumns(codes, n_columns) for codes in label_codes(labels)]
    return [LabelColumns(codes, n_columns) for codes in label_codes(labels)]


class LabelKernel:
    """Whether a symmetric kernel determines the labels, found as its tiles are read.

    Parameters
    ----------
    codes
        (m,), the classes as `label_codes` has them.
    dtype
        Type of the stored entries, whose rounding is let pass.
    """

    def __init__(self, codes: Index, dtype: np.dtype[np.floating]) -> None:
        self._codes = codes
        self._tolerance = 8 * float(np.finfo(dtype).eps)
        self._alive = not by_chance(codes, 1)
        n = int(codes.max(initial=0)) + 1 if self._alive else 0
        self._values, self._largest = np.full((n, n), np.nan), 0.0

    def take(self, rows: slice, cols: slice, block: Array) -> None:
        """A tile on or above the diagonal."""
        if not self._alive:
            return
        a, b = self._codes[rows], self._codes[cols]
        if min(a.min(), b.min()) < 0:
            block, a, b = block[np.ix_(a >= 0, b >= 0)], a[a >= 0], b[b >= 0]
        if not block.size:
            return
        (of_a, i), (of_b, j) = (np.unique(codes, return_index=True) for codes in (a, b))
        seen = self._values[np.ix_(of_a, of_b)]
        self._values[np.ix_(of_a, of_b)] = values = np.where(np.isnan(seen), block[np.ix_(i, j)], seen)
        self._values[np.ix_(of_b, of_a)] = values.T
        for part in (slice(0, _FIRST_ROWS), slice(_FIRST_ROWS, None)):  # a few rows rule out nearly all kernels
            entries = block[part]
            if not entries.size:
                continue
            self._largest = max(self._largest, float(np.abs(entries).max()))
            apart = np.abs(entries - self._values[a[part]][:, b]).max()
            if not apart <= self._tolerance * self._largest:
                self._alive = False
                return

    def found(self) -> bool:
        """Whether all that was read depends on the classes alone, and tells them apart."""
        if not self._alive or not self._largest:
            return False
        there = ~np.isnan(self._values.diagonal())
        levels = np.round(self._values[np.ix_(there, there)] / (8 * self._tolerance * self._largest))
        return len(np.unique(levels, axis=0)) == int(there.sum())
