"""Folds of a cross-validation as positions of rows, checked before anything runs."""

from __future__ import annotations

import numbers
import reprlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.model_selection import check_cv

from dmkl.arrays import Array, Index
from dmkl.errors import InputError
from dmkl.numerics.positions import positions

__all__ = ["Fold", "make_folds"]


DEFAULT_FOLDS = 5
TRAIN, VALIDATION, TEST = 0, 1, 2
"""The parts of a stored split."""


@dataclass(frozen=True)
class Fold:
    """Positions among the rows of a kernel set."""

    name: str
    """The number of the fold or stored split."""
    train: Index
    validation: Index
    test: Index
    """Empty where the fold has no test rows."""


def make_folds(cv: Any, labels: npt.ArrayLike, *, splits: Array | None = None, groups: Any = None) -> list[Fold]:
    """Turn any description of a cross-validation into checked folds.

    Parameters
    ----------
    cv
        One of

        - None: the stored splits if any of them has a validation part, 5 folds otherwise;
        - "splits": the stored splits, one fold each;
        - an integer: so many folds in the order of the rows, stratified where the labels are classes;
        - a splitter of scikit-learn, such as ``StratifiedGroupKFold(5)``;
        - an iterable of (train, validation) or (train, validation, test), each part positions or a boolean mask;
        - a tuple of such parts, (train, validation) or (train, validation, test): an explicit validation set.
    labels
        (m,) classes, or (m, tasks) of 0 and 1.
    splits
        The stored splits, (split, m): 0 train, 1 validation, 2 test, -1 in no part (`KernelSet.splits`).
    groups
        (m,) what must not be split between training and validation, for splitters that ask for it.

    Returns
    -------
    list of Fold
        Named "0", "1" … in the order of `cv`.

    Raises
    ------
    InputError
        If `cv` is none of these, the splits or groups that it needs are missing or of another length, or a fold has no
        training or no validation rows, rows in training that are also in validation or test, positions outside, fewer
        than two classes in training (of the set, or of a task), or a class in validation or test that training lacks.
    """
    y = np.asarray(labels)
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if cv is None:
        cv = "splits" if splits is not None and (splits == VALIDATION).any() else DEFAULT_FOLDS
    splitter = _as_splitter(cv, y)
    if groups is not None:
        groups = np.asarray(groups)
        if groups.shape != (len(y),):
            msg = f"groups has shape {groups.shape}, expected ({len(y)},): a group for each row"
            raise InputError(msg)
        if splitter is not cv:
            msg = f"groups are used by splitters alone and cv={cv!r} would ignore them; give cv=GroupKFold(5), say"
            raise InputError(msg)
    if splitter is not None:
        found = _split(splitter, y, groups)
    elif isinstance(cv, str):
        found = _stored(cv, splits)
    elif isinstance(cv, tuple) and len(cv) in (2, 3) and all(map(_is_vector, cv)):
        found = [cv]
    elif isinstance(cv, Iterable):
        found = list(cv)
    else:
        msg = (
            "cv must be a number of folds, a splitter of scikit-learn, 'splits', or folds as (train, validation) or "
            f"(train, validation, test), got {cv!r}"
        )
        raise InputError(msg)
    if not found:
        msg = "cv has no folds; give at least one pair of training and validation rows"
        raise InputError(msg)
    what = "stored split" if isinstance(cv, str) else "fold"
    folds = [_as_fold(str(k), f"{what} {k}", parts, len(y)) for k, parts in enumerate(found)]
    for fold in folds:
        _check(fold, f"{what} {fold.name}", y)
    return folds


def _as_splitter(cv: Any, y: Array) -> Any:
    """The splitter that `cv` is or stands for, None where it holds the folds themselves."""
    if not isinstance(cv, numbers.Integral):
        return cv if hasattr(cv, "split") and not isinstance(cv, str | type) else None
    try:
        return check_cv(int(cv), _plain(y), classifier=y.ndim == 1)
    except ValueError as error:
        msg = f"cv={cv!r} is no number of folds: {error}"
        raise InputError(msg) from error


def _plain(y: Array) -> Array:
    """Labels that scikit-learn takes for classes whatever they are stored as: strings and objects by their number."""
    return np.unique(y, return_inverse=True)[1] if y.ndim == 1 and y.dtype.kind in "OT" else y


def _split(splitter: Any, y: Array, groups: Array | None) -> list[Any]:
    try:
        return list(splitter.split(np.zeros(len(y)), _plain(y), groups))
    except (ValueError, TypeError) as error:
        name = type(splitter).__name__
        # Scikit-learn's say so in various words, and some of its versions not at all.
        if groups is None and "group" in f"{name} {error}".lower():
            msg = f"{name} splits by groups; give groups=, one for each of the {len(y)} rows"
        else:
            hint = "; labels of several tasks are not stratified, use KFold or give the folds" if y.ndim == 2 else ""
            msg = f"{name} cannot split these {len(y)} rows: {error}{hint}"
        raise InputError(msg) from error


def _stored(cv: str, splits: Array | None) -> list[Any]:
    if cv != "splits":
        msg = f"cv={cv!r} is unknown; the one word that cv takes is 'splits', for the splits stored with the kernels"
        raise InputError(msg)
    if splits is None:
        msg = "cv='splits' needs splits stored with the kernels (splits=, --splits), and there are none; give cv=5, say"
        raise InputError(msg)
    return [tuple(np.flatnonzero(split == part) for part in (TRAIN, VALIDATION, TEST)) for split in splits]


def _is_vector(part: Any) -> bool:
    """Whether this is a vector of positions or a mask (and no pair of such)."""
    try:
        array = np.asarray(part)
    except ValueError:  # ragged
        return False
    return array.ndim == 1 and (array.dtype.kind in "iub" or array.size == 0)


def _as_fold(name: str, where: str, parts: Any, m: int) -> Fold:
    if (
        not isinstance(parts, Sequence | np.ndarray)
        or len(parts) not in (2, 3)
        or not all(_is_vector(part) for part in parts)
    ):
        msg = (
            f"{where} must be (train, validation) or (train, validation, test), vectors of positions or boolean masks "
            f"each, got {reprlib.repr(parts)}; an explicit validation set is a tuple, cv=(train, validation)"
        )
        raise InputError(msg)
    found = []
    for part, values in zip(("train", "validation", "test"), parts, strict=False):
        try:
            found.append(positions(values, m, "row"))
        except InputError as error:
            msg = f"{where}, {part}: {error}"
            raise InputError(msg) from error
    train, validation, test = (*found, np.empty(0, dtype=np.int64))[:3]
    return Fold(name, train, validation, test)


def _check(fold: Fold, where: str, y: Array) -> None:
    for part, rows in (("training", fold.train), ("validation", fold.validation)):
        if not len(rows):
            msg = f"{where} has no {part} rows; each needs rows to learn from and rows to validate on"
            raise InputError(msg)
    held_out = {"validation": fold.validation, "test": fold.test}
    for part, rows in held_out.items():
        shared = np.intersect1d(fold.train, rows)
        if len(shared):
            msg = (
                f"{where} has {len(shared)} training rows that are {part} rows too, row {shared[0]} first; what is "
                "held out must not be learnt from"
            )
            raise InputError(msg)
    for k, column in enumerate(y.reshape(len(y), -1).T):
        of_task = f" in task {k}" if y.ndim == 2 else ""
        learnt = np.unique(column[fold.train])
        for part, rows in held_out.items():
            missing = np.setdiff1d(column[rows], learnt).tolist()
            if missing:
                msg = (
                    f"{where} has no training rows of class {missing[0]!r}{of_task}, of which it has {part} rows; use "
                    "fewer or stratified folds, or leave that class out"
                )
                raise InputError(msg)
        if len(learnt) < 2:
            msg = (
                f"{where} has training rows of a single class, {learnt.tolist()[0]!r}{of_task}, and needs two at "
                "least; use fewer or stratified folds"
            )
            raise InputError(msg)
