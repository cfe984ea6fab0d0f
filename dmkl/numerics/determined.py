"""Columns and kernels that determine the labels exactly: the labels themselves, under another name.

A column determines labels if it is constant within each class and differs between classes, so that it equals the labels
up to renaming. A kernel does if k(x, z) depends on the classes of x and z alone, up to rounding, and differently for
each class. Both tests are exact: values that vary within a class by more than rounding never count, however
informative they are. A small data set may have such a column by chance, and one with few samples of a class always has.
"""

from __future__ import annotations

import numpy as np

from dmkl.arrays import Array, Index

# Expected number of columns that determine the labels by chance, above which no column is reported.
_EXPECTED = 0.01
_MOST_CLASSES = 2048
_FIRST_ROWS = 16


def label_codes(labels: Array | None) -> list[Index]:
    """The class of each sample as a number, −1 if unknown; one vector for each 0/1 output, and none for regression."""
    if labels is None or (labels.ndim == 1 and labels.dtype.kind == "f"):
        return []
    if labels.ndim == 1:
        return [np.unique(labels, return_inverse=True)[1].astype(np.int64)]
    tasks = [column for column in labels.T if np.isin(column, (0, 1)).sum() == np.count_nonzero(column == column)]
    return [np.where(column == column, column, -1).astype(np.int64) for column in tasks]


def by_chance(codes: Index, n_columns: int) -> bool:
    """Whether one of `n_columns` columns of the same values in random order is likely to determine the labels.

    A column has m!/∏n_c! orders. Of these, ∏ₖ r_k! determine the labels: they exchange classes of equal size, with r_k
    classes of each size.
    """
    sizes = np.bincount(codes[codes >= 0])
    sizes = sizes[sizes > 0]
    if len(sizes) < 2 or len(sizes) > _MOST_CLASSES:
        return True
    # In logarithms, since factorials overflow; the expected number is that of columns times the probability of each.
    log_factorials = np.append(0.0, np.cumsum(np.log(np.arange(1.0, sizes.sum() + 1))))
    log_orders = log_factorials[-1] - log_factorials[sizes].sum()
    log_equal = log_factorials[np.unique(sizes, return_counts=True)[1]].sum()
    return bool(np.log(n_columns) + log_equal - log_orders > np.log(_EXPECTED))


class LabelColumns:
    """Search for the columns of a table that determine the labels, while the table is read strip by strip.

    `codes` (m,) are classes as returned by `label_codes`.
    """

    def __init__(self, codes: Index, n_columns: int) -> None:
        self._codes, self._n_columns = codes, n_columns
        self._columns = np.arange(0 if by_chance(codes, n_columns) else n_columns)
        self._first = np.full(int(codes.max(initial=0)) + 1, -1)  # the row of `_values` of each class that was seen
        self._values = np.empty((0, len(self._columns)))

    def take(self, strip: slice, values: Array) -> None:
        """Use the next rows; rows with NaN are not in the table and are skipped."""
        if not len(self._columns):
            return
        codes = self._codes[strip]
        rows = np.flatnonzero((codes >= 0) & ~np.isnan(values).any(axis=1))
        # In short strips: the first of them with two samples of a class rules out nearly all columns for the rest.
        for part in np.split(rows, [_FIRST_ROWS, *range(_FIRST_ROWS**2, len(rows), _FIRST_ROWS**2)]):
            found = values[np.ix_(part, self._columns)]
            # The first sample of each class is the reference for all later ones of the class.
            classes, first = np.unique(codes[part], return_index=True)
            new = self._first[classes] < 0
            self._first[classes[new]] = len(self._values) + np.arange(np.count_nonzero(new))
            self._values = np.concatenate([self._values, found[first[new]]])
            kept = (found == self._values[self._first[codes[part]]]).all(axis=0)
            self._columns, self._values = self._columns[kept], self._values[:, kept]

    def result(self) -> Index:
        """Columns that determine the labels; all columns if only all together do, as indicators of classes."""
        if not self._values.size:
            return np.arange(0)
        n = len(self._values)
        # A column that was constant within classes determines them if its values in different classes differ.
        alone = [k for k, values in enumerate(self._values.T) if len(np.unique(values)) == n]
        if not alone and len(self._columns) == self._n_columns and len(np.unique(self._values, axis=0)) == n:
            return self._columns
        return self._columns[alone]


class TargetColumns:
    """Search for the columns of a table that equal the target of a regression; used as `LabelColumns`."""

    def __init__(self, target: Array, n_columns: int) -> None:
        self._target, self._columns = target, np.arange(n_columns)

    def take(self, strip: slice, values: Array) -> None:
        """Use the next rows."""
        expected = self._target[strip].astype(values.dtype)[:, None]
        valid = ~(np.isnan(expected[:, 0]) | np.isnan(values).any(axis=1))
        for start in range(0, len(values), _FIRST_ROWS**2):
            part = slice(start, start + _FIRST_ROWS**2)
            agree = (values[part][:, self._columns] == expected[part]) | ~valid[part, None]
            self._columns = self._columns[agree.all(axis=0)]

    def result(self) -> Index:
        """The columns that equal the target."""
        return self._columns


def label_columns(labels: Array | None, n_columns: int) -> list[LabelColumns | TargetColumns]:
    """For each output or target, the search for columns that determine its labels or equal its values."""
    columns: list[LabelColumns | TargetColumns] = [LabelColumns(codes, n_columns) for codes in label_codes(labels)]
    if labels is not None and labels.dtype.kind == "f":
        targets = labels.reshape(len(labels), -1).T
        columns += [TargetColumns(target, n_columns) for target in targets if len(np.unique(target)) > _FIRST_ROWS]
    return columns


class LabelKernel:
    """Test whether a symmetric kernel determines the labels, while its tiles are read.

    `codes` (m,) are classes as returned by `label_codes`; the rounding of entries stored in `dtype` is tolerated.
    """

    def __init__(self, codes: Index, dtype: np.dtype[np.floating]) -> None:
        self._codes = codes
        self._tolerance = 8 * float(np.finfo(dtype).eps)
        self._alive = not by_chance(codes, 1)
        n = int(codes.max(initial=0)) + 1 if self._alive else 0
        self._values, self._largest = np.full((n, n), np.nan), 0.0

    def take(self, rows: slice, cols: slice, block: Array) -> None:
        """Use a tile on or above the diagonal."""
        if not self._alive:
            return
        a, b = self._codes[rows], self._codes[cols]
        if min(a.min(), b.min()) < 0:
            block, a, b = block[np.ix_(a >= 0, b >= 0)], a[a >= 0], b[b >= 0]
        if not block.size:
            return
        (of_a, i), (of_b, j) = (np.unique(codes, return_index=True) for codes in (a, b))
        # The first entry seen for each pair of classes is the reference for all later ones.
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

    def result(self) -> bool:
        """Whether the entries read depend on the classes alone and differ between classes."""
        if not self._alive or not self._largest:
            return False
        there = ~np.isnan(self._values.diagonal())
        # Rows that agree up to rounding become equal after rounding to a grid, and count as one class.
        levels = np.round(self._values[np.ix_(there, there)] / (8 * self._tolerance * self._largest))
        return len(np.unique(levels, axis=0)) == int(there.sum())
