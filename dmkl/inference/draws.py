"""Rows that resamples train on, and those that they leave out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from sklearn.model_selection import GroupKFold, KFold, StratifiedGroupKFold, StratifiedKFold

from dmkl.arrays import Array, Index
from dmkl.errors import InputError
from dmkl.searching.folds import Fold, make_folds

__all__ = ["N_RESAMPLES", "How", "draw", "n_distinct"]

How = Literal["half", "bootstrap", "folds"]
N_RESAMPLES: dict[How, int] = {"half": 100, "bootstrap": 100, "folds": 10}
"""How many resamples there are by default."""
_MAX_DRAWS = 100
"""Draws of one resample before a class counts as impossible to keep on both sides."""


def draw(
    how: How,
    n_resamples: int,
    seed: int,
    labels: npt.ArrayLike,
    *,
    splits: Array | None = None,
    groups: Array | None = None,
    samples: Array | None = None,
    classes: bool = True,
) -> list[Fold]:
    """Draw the training rows of resamples.

    Classes keep their shares where each row has one label and there are no groups. Halves of groups have equal shares
    of the groups by their most frequent class; a bootstrap of groups keeps shares on average alone. A draw that lacks
    a class, or leaves out no row, is rejected and drawn again.

    Parameters
    ----------
    how
        "half": pairs of halves that share no row, 2b and 2b + 1 being a pair. "bootstrap": m rows with replacement, or
        as many groups as there are, each with all of its rows. "folds": all but one of `n_resamples` folds.
    n_resamples
        Even for "half".
    labels, splits, groups, samples, classes
        As in `make_folds`; splits play no part.

    Returns
    -------
    list of Fold
        Named "0", "1" …; what is left out validates. Those of a bootstrap say how often each row was drawn.

    Raises
    ------
    InputError
        If halves are not pairs, or every one of 100 draws of a resample lacks a class that it leaves out, or rows to
        leave out.
    """
    if how == "half" and n_resamples % 2:
        msg = f"n_resamples must be even for how='half', whose halves come in pairs, got {n_resamples}"
        raise InputError(msg)
    y, rng = np.asarray(labels), np.random.default_rng(seed)
    stratified = classes and y.ndim == 1
    make = partial(make_folds, labels=y, groups=groups, samples=samples, classes=classes)

    def draw_once() -> list[Fold]:
        if how == "bootstrap":
            counts = _counts(rng, y, groups, stratified=stratified)
            (fold,) = make((np.flatnonzero(counts), np.flatnonzero(counts == 0)))
            return [replace(fold, counts=counts[fold.train].astype(np.float64))]
        if how == "half" and groups is not None:
            half = _half_of_groups(rng, y, groups, stratified=stratified)
            return make([(np.flatnonzero(half == k), np.flatnonzero(half != k)) for k in range(2)])
        k, shuffled = 2 if how == "half" else n_resamples, {"shuffle": True, "random_state": int(rng.integers(2**31))}
        return make(_SPLITTERS[stratified, groups is not None](k, **shuffled))

    folds: list[Fold] = []
    while len(folds) < n_resamples:
        for attempt in range(_MAX_DRAWS):
            try:
                folds += draw_once()
                break
            except InputError as error:
                if attempt == _MAX_DRAWS - 1:
                    msg = f"how={how!r}: {error}"
                    raise InputError(msg) from error
    return [replace(fold, name=str(k), title=f"resample {k}") for k, fold in enumerate(folds)]


def n_distinct(folds: Sequence[Fold]) -> int:
    """How many of the resamples differ in their rows, or in how often a row was drawn."""
    return len({(fold.train.tobytes(), None if fold.counts is None else fold.counts.tobytes()) for fold in folds})


_SPLITTERS: dict[tuple[bool, bool], Any] = {
    (True, True): StratifiedGroupKFold,
    (True, False): StratifiedKFold,
    (False, True): GroupKFold,
    (False, False): KFold,
}
"""By whether classes keep their shares, and whether there are groups."""


def _half_of_groups(rng: np.random.Generator, y: Array, groups: Array, *, stratified: bool) -> Index:
    """The half, 0 or 1, of each row: groups in random order, those of one class together, are dealt out in turn.

    `StratifiedGroupKFold` is no help here: it assigns groups greedily by their class counts, and shuffling only breaks
    its ties, so that it draws the same few halves again and again.
    """
    _, unit = np.unique(groups, return_inverse=True)
    order = rng.permutation(int(unit.max()) + 1)
    if stratified:
        _, index = np.unique(y.astype(str) if y.dtype == object else y, return_inverse=True)
        table = np.zeros((len(order), int(index.max()) + 1))
        np.add.at(table, (unit, index), 1)
        of_class = rng.permutation(table.shape[1])[table.argmax(axis=1)]  # which half has the odd group varies
        order = order[np.argsort(of_class[order], kind="stable")]
    half = np.empty(len(order), dtype=np.int64)
    half[order] = np.arange(len(order)) % 2
    return half[unit]


def _counts(rng: np.random.Generator, y: Array, groups: Array | None, *, stratified: bool) -> Index:
    """How often a bootstrap draws each row, (m,)."""
    if groups is not None:
        _, unit = np.unique(groups, return_inverse=True)
        return _drawn(rng, int(unit.max()) + 1)[unit]
    if not stratified:
        return _drawn(rng, len(y))
    counts = np.zeros(len(y), dtype=np.int64)
    _, index = np.unique(y, return_inverse=True)
    for k in range(int(index.max()) + 1):
        rows = np.flatnonzero(index == k)
        counts[rows] = _drawn(rng, len(rows))
    return counts


def _drawn(rng: np.random.Generator, n: int) -> Index:
    """How often each of n is among n that are drawn with replacement."""
    return rng.multinomial(n, np.full(n, 1.0 / n))
