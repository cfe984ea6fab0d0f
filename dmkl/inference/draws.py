"""Rows that resamples train on, and those that they leave out."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from sklearn.model_selection import GroupKFold, KFold, StratifiedGroupKFold, StratifiedKFold

from dmkl.arrays import Array, Index
from dmkl.errors import InputError
from dmkl.searching.folds import Fold, make_folds

__all__ = ["N_RESAMPLES", "How", "draw"]

How = Literal["half", "bootstrap", "folds"]
N_RESAMPLES: dict[How, int] = {"half": 100, "bootstrap": 100, "folds": 10}
"""How many resamples there are by default."""


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

    Classes keep their shares where each row has one label and there are no groups; with groups nearly so, and in a
    bootstrap by chance.

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
        If halves are not pairs, or a resample lacks a class that it leaves out, or rows to leave out.
    """
    if how == "half" and n_resamples % 2:
        msg = f"n_resamples must be even for how='half', whose halves come in pairs, got {n_resamples}"
        raise InputError(msg)
    y, rng = np.asarray(labels), np.random.default_rng(seed)
    stratified = classes and y.ndim == 1
    make = partial(make_folds, labels=y, groups=groups, samples=samples, classes=classes)
    found: list[Fold] = []
    try:
        if how == "bootstrap":
            for _ in range(n_resamples):
                counts = _counts(rng, y, groups, stratified=stratified)
                (fold,) = make((np.flatnonzero(counts), np.flatnonzero(counts == 0)))
                found.append(replace(fold, counts=counts[fold.train].astype(np.float64)))
        else:
            times, k = (n_resamples // 2, 2) if how == "half" else (1, n_resamples)
            for _ in range(times):
                shuffled = {"shuffle": True, "random_state": int(rng.integers(2**31))}
                found += make(_SPLITTERS[stratified, groups is not None](k, **shuffled))
    except InputError as error:
        msg = f"how={how!r}: {error}"
        raise InputError(msg) from error
    return [replace(fold, name=str(k), title=f"resample {k}") for k, fold in enumerate(found)]


_SPLITTERS: dict[tuple[bool, bool], Any] = {
    (True, True): StratifiedGroupKFold,
    (True, False): StratifiedKFold,
    (False, True): GroupKFold,
    (False, False): KFold,
}
"""By whether classes keep their shares, and whether there are groups."""


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
