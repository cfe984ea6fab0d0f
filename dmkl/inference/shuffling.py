"""Permuted labels: which rows may change places, and draws of such permutations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from dmkl.arrays import Array, Index
from dmkl.errors import InputError
from dmkl.searching.folds import Fold

__all__ = ["Blocks", "cells_of", "draw"]

Blocks = Literal["within", "whole"]
"""What changes places: labels of rows within a group, or the labels of whole groups."""
_TRIES = 1000


def cells_of(folds: Sequence[Fold], n_samples: int, groups: Array | None) -> Index:
    """The cell of each row, (m,): labels change places within one. −1 for rows that stay as they are.

    The groups where there are any. Otherwise the folds, where each row is held out by one: every training set then
    keeps the numbers of its classes. All rows of the folds otherwise.
    """
    used, times = np.zeros(n_samples, dtype=bool), np.zeros(n_samples, dtype=np.int64)
    held_by = np.zeros(n_samples, dtype=np.int64)
    for number, fold in enumerate(folds):
        used[fold.train] = used[fold.validation] = True
        times[fold.validation] += 1
        held_by[fold.validation] = number
    if groups is not None:
        found = np.unique(groups.astype(str), return_inverse=True)[1]
    elif (times[used] == 1).all():
        found = held_by
    else:
        found = np.zeros(n_samples, dtype=np.int64)
    return np.where(used, found, -1)


def draw(cells: Index, blocks: Blocks, labels: Array | None, folds: Sequence[Fold], seed: int, number: int) -> Index:
    """A permutation: row i takes the label of row order[i], (m,).

    Equal seeds and numbers give equal permutations, however many are drawn. Where some would leave a training set
    without a class, it is drawn from the others: labels that all training sets know stay as likely as one another.

    Parameters
    ----------
    cells
        See `cells_of`.
    blocks
        "within": rows change places within their cell. "whole": cells of one size change places, row by row.
    labels
        (m,) or (m, tasks) of classes; None of a regression, of which every training set will do.

    Raises
    ------
    InputError
        If none is found.
    """
    rng = np.random.default_rng([seed, number])
    for _ in range(_TRIES):
        order = _within(cells, rng) if blocks == "within" else _whole(cells, rng)
        if labels is None or _all_known(labels, labels[order], folds):
            return order
    msg = (
        f"{_TRIES} permutations in a row have left a training set without one of its classes; take fewer folds, larger "
        "groups, or leave classes of few samples out (--drop-classes-below N)"
    )
    raise InputError(msg)


def _within(cells: Index, rng: np.random.Generator) -> Index:
    order = np.arange(len(cells))
    for cell in range(cells.max() + 1):
        rows = np.flatnonzero(cells == cell)
        order[rows] = rng.permutation(rows)
    return order


def _whole(cells: Index, rng: np.random.Generator) -> Index:
    order = np.arange(len(cells))
    members = [np.flatnonzero(cells == cell) for cell in range(cells.max() + 1)]
    for size in sorted({len(rows) for rows in members}):
        alike = [rows for rows in members if len(rows) == size]
        for rows, place in zip(alike, rng.permutation(len(alike)), strict=True):
            order[rows] = alike[place]
    return order


def _all_known(labels: Array, permuted: Array, folds: Sequence[Fold]) -> bool:
    """Whether every training set has as many different labels as it had, of each task."""
    before, after = (values.reshape(len(values), -1) for values in (labels, permuted))
    return all(
        len(np.unique(a[fold.train])) >= len(np.unique(b[fold.train]))
        for fold in folds
        for b, a in zip(before.T, after.T, strict=True)
    )
