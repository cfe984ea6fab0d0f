"""Folds of a cross-validation as positions of rows, checked before anything runs."""

from __future__ import annotations

import itertools
import numbers
import reprlib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.model_selection import GroupKFold, StratifiedGroupKFold, check_cv

from dmkl.arrays import Array, Float, Index, plain_repr
from dmkl.errors import InputError
from dmkl.numerics.positions import positions
from dmkl.unknown import is_known

__all__ = ["Fold", "OuterFold", "check_joint", "make_folds", "nest_folds", "parts_of"]


DEFAULT_FOLDS = 5
INNER_FOLDS = 3
TRAIN, VALIDATION, TEST = 0, 1, 2
"""The parts of a stored split."""
SPLITS = "splits"
"""The one word that stands for folds: those stored with the kernels."""


@dataclass(frozen=True)
class Fold:
    """Positions among the rows of a kernel set."""

    name: str
    """What it is called in results: its number, or the name that was given."""
    title: str
    """What it is called in messages, such as "stored split 1"."""
    train: Index
    validation: Index
    """Empty in the outer folds of an evaluation, which choose by folds of their own."""
    test: Index
    """Empty where the fold has no test rows."""
    counts: Float | None = None
    """How often each training row was drawn; None where each was once."""
    splitter: str = ""
    """The splitter of scikit-learn that made the fold, as its text; "splits" for stored splits, "" for given rows."""

    @property
    def seen(self) -> Index:
        """The rows that a choice by this fold has seen: those that train and those that validate."""
        return np.union1d(self.train, self.validation)


@dataclass(frozen=True)
class OuterFold:
    """A fold that tests, and the folds of its training rows that choose for it."""

    fold: Fold
    inner: list[Fold]


def make_folds(
    cv: Any,
    labels: npt.ArrayLike,
    *,
    splits: Array | None = None,
    groups: npt.ArrayLike | None = None,
    samples: Array | None = None,
    classes: bool = True,
) -> list[Fold]:
    """Turn any description of a cross-validation into checked folds.

    Parameters
    ----------
    cv
        One of

        - None: the stored splits if any of them has a validation part, 5 folds otherwise;
        - "splits": the stored splits, one fold each;
        - an integer: so many folds in the order of the rows, stratified where the labels are classes, of whole groups
          where there are groups;
        - a splitter of scikit-learn, such as ``StratifiedGroupKFold(5)``;
        - an iterable of (train, validation) or (train, validation, test), each part positions or a boolean mask; or a
          mapping of names to such;
        - a tuple of such parts, (train, validation) or (train, validation, test): an explicit validation set.
    labels
        (m,) classes, (m, tasks) of 0 and 1, or numbers. Rows whose label is unknown (see
        `dmkl.numerics.fisher.is_known`) are in no fold of that task.
    splits
        The stored splits, (split, m): 0 train, 1 validation, 2 test, -1 in no part (`KernelSet.splits`).
    groups
        (m,) what no fold may split. Splitters that ask for groups are given them.
    samples
        (m,) names of the samples, where rows may be the same sample; all rows differ where None.
    classes
        Whether labels are classes, and not numbers: a number of folds is then stratified, and folds are checked for
        classes.

    Returns
    -------
    list of Fold
        Named "0", "1" … in the order of `cv`, or as in its mapping.

    Raises
    ------
    InputError
        If `cv` is none of these, the splits or groups that it needs are missing or of another length, or a fold has no
        training or no validation rows, rows or groups that are in two of its parts, positions outside, fewer than two
        classes in training (of the set, or of a task), or a class in validation or test that training lacks.
    """
    known = _known(labels, groups, samples, classes=classes)
    if cv is None:
        cv = SPLITS if splits is not None and (splits == VALIDATION).any() else DEFAULT_FOLDS
    what, called = "stored split" if isinstance(cv, str) else "fold", ("train", "validation", "test")
    splitter, found = _described(cv, known.y, splits, known.groups, "cv", classes=classes)
    return [
        _checked(_as_fold(name, f"{what} {name}", parts, len(known.y), called, splitter), known)
        for name, parts in found.items()
    ]


def parts_of(folds: Sequence[Fold], m: int) -> npt.NDArray[np.int8]:
    """The part of each of m rows in each fold, (folds, m): 0 train, 1 validation, 2 test, -1 none, as stored splits."""
    found = np.full((len(folds), m), -1, dtype=np.int8)
    for row, fold in zip(found, folds, strict=True):
        for part, rows in ((TRAIN, fold.train), (VALIDATION, fold.validation), (TEST, fold.test)):
            row[rows] = part
    return found


def nest_folds(
    outer: Any,
    inner: Any,
    labels: npt.ArrayLike,
    *,
    splits: Array | None = None,
    groups: npt.ArrayLike | None = None,
    samples: Array | None = None,
    classes: bool = True,
) -> list[OuterFold]:
    """Folds that test, and in the training rows of each the folds that choose for it.

    Parameters
    ----------
    outer
        As `cv` of `make_folds`, with (train, test) as parts; 5 folds where None. Of "splits", training and validation
        rows train, and test rows test.
    inner
        A number of folds or a splitter, made anew in the training rows of each outer fold; 3 folds where None. With
        the stored splits as outer folds, None or "splits" stands for their own training and validation rows.
    labels, splits, groups, samples, classes
        As in `make_folds`; groups hold in both loops.

    Raises
    ------
    InputError
        As in `make_folds`, and if `inner` is something else.
    """
    known = replace(_known(labels, groups, samples, classes=classes), least=3)
    outer = DEFAULT_FOLDS if outer is None else outer
    stored, own = isinstance(outer, str), inner is None or (isinstance(inner, str) and inner == SPLITS)
    if stored and own and splits is not None and (splits == VALIDATION).any():
        return [
            OuterFold(Fold(one.name, one.title, one.seen, one.test[:0], _tested(one), splitter=SPLITS), [one])
            for one in make_folds(outer, labels, splits=splits, groups=groups, samples=samples, classes=classes)
        ]
    inner = INNER_FOLDS if inner is None else inner
    if _as_splitter(inner, known.y, known.groups, "inner", classes=classes) is None:
        msg = (
            "inner must be a number of folds or a splitter of scikit-learn, which splits the training rows of each "
            f"outer fold, or None, got {plain_repr(inner)}; 'splits' goes with outer='splits' where splits have "
            "validation rows"
        )
        raise InputError(msg)
    found = []
    splitter, described = _described(outer, known.y, splits, known.groups, "outer", classes=classes)
    for name, parts in described.items():
        title = f"stored split {name}" if stored else f"outer fold {name}"
        pair = (np.union1d(parts[0], parts[1]), parts[2]) if stored else parts
        fold = _checked(_as_fold(name, title, pair, len(known.y), ("train", "test"), splitter), known)
        found.append(OuterFold(fold, _inner_folds(inner, fold, known)))
    return found


def _inner_folds(inner: Any, fold: Fold, known: _Known) -> list[Fold]:
    """Folds of the training rows of another one, as positions among all rows."""
    rows = fold.train
    try:
        groups = None if known.groups is None else known.groups[rows]
        splitter, found = _described(inner, known.y[rows], None, groups, "inner", classes=known.classes)
    except InputError as error:
        msg = f"{fold.title}: {error}"
        raise InputError(msg) from error
    folds = []
    for name, (train, validation) in found.items():
        pair, title = (rows[train], rows[validation]), f"{fold.title}, inner fold {name}"
        folds.append(_checked(_as_fold(name, title, pair, len(known.y), ("train", "validation"), splitter), known))
    return folds


def _tested(fold: Fold) -> Index:
    if not len(fold.test):
        msg = f"{fold.title} has no test rows; an evaluation needs them in every outer fold"
        raise InputError(msg)
    return fold.test


# --- what describes folds ------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Known:
    """What is known of the rows: their labels, their groups, and a number for each, equal for the same sample."""

    y: Array
    groups: Array | None
    numbers: Index
    classes: bool
    least: int = 2
    """Samples of a class that stratified folds can hold out and learn from: one more where folds are nested."""


def _known(labels: npt.ArrayLike, groups: npt.ArrayLike | None, samples: Array | None, *, classes: bool) -> _Known:
    y = np.asarray(labels)
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    own = None if groups is None else np.asarray(groups)
    if own is not None and own.shape != (len(y),):
        msg = f"groups has shape {own.shape}, expected ({len(y)},): a group for each row"
        raise InputError(msg)
    return _Known(y, own, np.arange(len(y)) if samples is None else _numbered(samples), classes)


def _numbered(samples: Array) -> Index:
    """A number for each row, equal for rows that are the same sample."""
    found: Index = np.unique(samples.astype(str), return_inverse=True)[1]
    return found


def _described(
    cv: Any, y: Array, splits: Array | None, groups: Array | None, argument: str, *, classes: bool
) -> tuple[str, dict[str, Any]]:
    """`Fold.splitter`, and the parts of each fold by its name, not checked."""
    splitter, made_by = _as_splitter(cv, y, groups, argument, classes=classes), ""
    if splitter is not None:
        found, made_by = _split(splitter, y, groups), repr(splitter)
    elif isinstance(cv, str):
        found, made_by = _stored(cv, splits, argument), SPLITS
    elif isinstance(cv, Mapping):
        return made_by, _some({str(name): parts for name, parts in cv.items()}, argument)
    elif isinstance(cv, tuple) and len(cv) in (2, 3) and all(map(_is_vector, cv)):
        found = [cv]
    elif isinstance(cv, Iterable):
        found = list(cv)
    else:
        msg = (
            f"{argument} must be a number of folds, a splitter of scikit-learn, 'splits', or folds as (train, "
            f"validation) or (train, validation, test), got {plain_repr(cv)}"
        )
        raise InputError(msg)
    return made_by, _some({str(k): parts for k, parts in enumerate(found)}, argument)


def _some(found: dict[str, Any], argument: str) -> dict[str, Any]:
    if not found:
        msg = f"{argument} has no folds; give at least one pair of training and validation rows"
        raise InputError(msg)
    return found


def _as_splitter(cv: Any, y: Array, groups: Array | None, argument: str, *, classes: bool) -> Any:
    """The splitter that `cv` is or stands for, None where it holds the folds themselves."""
    if not isinstance(cv, numbers.Integral):
        return cv if hasattr(cv, "split") and not isinstance(cv, str | type) else None
    stratified = classes and y.ndim == 1
    try:
        if groups is not None:
            return (StratifiedGroupKFold if stratified else GroupKFold)(int(cv))
        return check_cv(int(cv), _plain(y), classifier=stratified)
    except ValueError as error:
        msg = f"{argument}={plain_repr(cv)} is no number of folds: {error}"
        raise InputError(msg) from error


def _plain(y: Array) -> Array:
    """Labels that scikit-learn takes for classes whatever they are stored as: strings and objects by their number."""
    return np.unique(y, return_inverse=True)[1] if y.ndim == 1 and y.dtype.kind in "OT" else y


def _split(splitter: Any, y: Array, groups: Array | None) -> list[Any]:
    try:
        with warnings.catch_warnings():
            # Splitters that do not ask for groups say that they ignore them; whether they split one is checked anyway.
            warnings.filterwarnings("ignore", message="The groups parameter is ignored")
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


def _stored(cv: str, splits: Array | None, argument: str) -> list[Any]:
    if cv != SPLITS:
        msg = (
            f"{argument}={cv!r} is unknown; the one word that it takes is 'splits', for the splits stored with the "
            "kernels"
        )
        raise InputError(msg)
    if splits is None:
        msg = (
            f"{argument}='splits' needs splits stored with the kernels (splits=, --splits), and there are none; give "
            f"{argument}=5, say"
        )
        raise InputError(msg)
    return [tuple(np.flatnonzero(split == part) for part in (TRAIN, VALIDATION, TEST)) for split in splits]


def _is_vector(part: Any) -> bool:
    """Whether this is a vector of positions or a mask (and no pair of such)."""
    try:
        array = np.asarray(part)
    except ValueError:  # ragged
        return False
    return array.ndim == 1 and (array.dtype.kind in "iub" or array.size == 0)


def _as_fold(name: str, title: str, parts: Any, m: int, called: Sequence[str], splitter: str) -> Fold:
    """A fold of parts that are called so: train and test, or train, validation and, if it is there, test."""
    least = 2
    if (
        not isinstance(parts, Sequence | np.ndarray)
        or not least <= len(parts) <= len(called)
        or not all(_is_vector(part) for part in parts)
    ):
        forms = " or ".join(f"({', '.join(called[:n])})" for n in range(least, len(called) + 1))
        msg = (
            f"{title} must be {forms}, vectors of positions or boolean masks each, got {reprlib.repr(parts)}; a single "
            f"fold is a tuple, ({', '.join(called[:least])})"
        )
        raise InputError(msg)
    found = dict.fromkeys(("train", "validation", "test"), np.empty(0, dtype=np.int64))
    for part, values in zip(called, parts, strict=False):
        try:
            found[part] = positions(values, m, "row")
        except InputError as error:
            msg = f"{title}, {part}: {error}"
            raise InputError(msg) from error
    if not len(found[called[1]]):
        msg = f"{title} has no {called[1]} rows; each needs rows to learn from and rows to {_USES[called[1]]}"
        raise InputError(msg)
    return Fold(name, title, found["train"], found["validation"], found["test"], splitter=splitter)


_USES = {"validation": "validate on", "test": "test on"}


# --- what folds must hold ------------------------------------------------------------------------------------------


def _checked(fold: Fold, known: _Known) -> Fold:
    """A fold that keeps its parts apart, and learns every class that it holds out."""
    y, groups, rows = known.y, known.groups, known.numbers
    where, parts = fold.title, {"training": fold.train, "validation": fold.validation, "test": fold.test}
    if not len(fold.train):
        msg = f"{where} has no training rows; each needs rows to learn from and rows to hold out"
        raise InputError(msg)
    for first, second in itertools.combinations(parts, 2):
        shared = np.flatnonzero(np.isin(rows[parts[first]], rows[parts[second]]))
        why = (
            "what is held out must not be learnt from" if first == "training" else "what chooses must not be tested on"
        )
        if len(shared):
            msg = (
                f"{where} has {len(shared)} {first} rows that are {second} rows too, row {parts[first][shared].min()} "
                f"first; {why}"
            )
            raise InputError(msg)
        both = [] if groups is None else np.intersect1d(groups[parts[first]], groups[parts[second]]).tolist()
        if both:
            msg = (
                f"{where} has {len(both)} groups with rows in {first} and in {second}, {both[0]!r} first; {why}. Take "
                "a splitter that keeps groups whole, such as StratifiedGroupKFold(5), or leave groups out"
            )
            raise InputError(msg)
    for k, column in enumerate(y.reshape(len(y), -1).T):
        of_task = f" in {'task' if known.classes else 'target'} {k}" if y.ndim == 2 else ""
        _check_labels(fold, column, of_task, classes=known.classes, least=known.least)
    return fold


def _check_labels(fold: Fold, column: Array, of_task: str, *, classes: bool, least: int) -> None:
    known = is_known(column)
    where, learnt = fold.title, np.unique(column[fold.train[known[fold.train]]])
    for part, rows in (("validation", fold.validation), ("test", fold.test)):
        missing = np.setdiff1d(column[rows[known[rows]]], learnt).tolist() if classes else []
        if missing:
            msg = (
                f"{where} has no training rows of class {missing[0]!r}{of_task}, of which it has {part} rows; "
                f"{_advice(column, missing[0], of_task, least)}"
            )
            raise InputError(msg)
    if len(learnt) < 2:
        what = "class" if classes else "value"
        told = f"of a single {what}, {learnt.tolist()[0]!r}" if len(learnt) else f"without a known {what}"
        msg = f"{where} has training rows {told}{of_task}, and needs two at least; use fewer or stratified folds"
        raise InputError(msg)


def _advice(column: Array, label: Any, of_task: str, least: int) -> str:
    """What helps where a fold does not learn a class that it holds out."""
    if of_task:
        return "use fewer or stratified folds, or leave that task out"
    size = int(np.count_nonzero(column == label))
    fewest = max(least, size + 1)
    drop = (
        f"leave classes of fewer than {fewest} samples out: --drop-classes-below {fewest}, or in Python K[rows, rows] "
        "and y[rows] with the rows of the others"
    )
    return f"that class has {size} in all; {drop}" if size < least else f"use fewer or stratified folds, or {drop}"


def check_joint(folds: Sequence[Fold], samples: Array) -> None:
    """Refuse one choice for all folds where it would be tested on samples that it has seen.

    Raises
    ------
    InputError
        If training or validation rows of one fold are test rows of another, with their number.
    """
    rows = _numbered(samples)
    testing = [fold for fold in folds if len(fold.test)]
    for one, other in itertools.product(folds, testing):
        shared = np.intersect1d(rows[one.seen], rows[other.test])
        if len(shared):
            msg = (
                f"{len(shared)} training and validation rows of {one.title} are test rows of {other.title}: one choice "
                'for all folds would be tested on rows that it has seen; let each fold choose for itself, choice="fold"'
            )
            raise InputError(msg)
