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

from dmkl.arrays import Array, Float, Index, is_known, plain_repr
from dmkl.errors import InputError, refuse
from dmkl.kernelset import KernelSet, identical_samples, positions

DEFAULT_FOLDS = 5
INNER_FOLDS = 3
TRAIN, VALIDATION, TEST = 0, 1, 2
"""Codes of the parts of a stored split, and their names."""
NAMES = ("train", "validation", "test")
SPLITS = "splits"
"""The only word for folds: those stored with the kernels."""


@dataclass(frozen=True)
class Fold:
    """Positions among the rows of a kernel set."""

    name: str  # The name in results: the number of the fold, its group, or its key in a mapping.
    title: str  # The name in messages, such as "stored split 1".
    train: Index
    validation: Index  # Empty in the outer folds of an evaluation, which choose by inner folds.
    test: Index  # Empty where the fold has no test rows.
    counts: Float | None = None  # How often each training row was drawn; None if each was drawn once.
    splitter: str = ""
    """The text of the scikit-learn splitter that made the fold; "splits" for stored splits, "" for given rows."""
    inner: tuple[Fold, ...] = ()  # Of a fold that tests, the folds of its training rows that choose its point.

    @property
    def seen(self) -> Index:
        """The training and validation rows, which a choice by this fold depends on."""
        return np.union1d(self.train, self.validation)


def make_folds(cv: Any, labels: npt.ArrayLike, **of_rows: Any) -> list[Fold]:
    """Turn `cv` of `dmkl.search` into checked folds, of the `_Rows` of these labels.

    An integer means folds in the order of the rows, stratified by classes or by events of survival, of whole groups
    where there are groups, and of whole samples where samples have several rows. Folds are named "0", "1" … in the
    order of `cv`, by the keys of its mapping, or by the groups if a splitter holds out one of them in each fold.
    """
    rows = _Rows.of(labels, **of_rows)
    if cv is None:
        cv = SPLITS if rows.has_validation else DEFAULT_FOLDS
    title = "stored split" if isinstance(cv, str) else "fold"
    splitter, parts_by_name = _read_folds(cv, rows, "cv")
    return [_as_fold(name, f"{title} {name}", parts, rows, NAMES, splitter) for name, parts in parts_by_name.items()]


def parts_of(folds: Sequence[Fold], m: int) -> npt.NDArray[np.int8]:
    """The part of each of m rows in each fold, (folds, m): 0 train, 1 validation, 2 test, -1 none, as stored splits."""
    parts = np.full((len(folds), m), -1, dtype=np.int8)
    for row, fold in zip(parts, folds, strict=True):
        row[fold.train], row[fold.validation], row[fold.test] = TRAIN, VALIDATION, TEST
    return parts


def copies_between_folds(K: KernelSet, folds: Sequence[Fold]) -> dict[str, int]:
    """Attributes of a result: pairs of samples identical in all kernels, and those in different parts of a fold."""
    source, at = K.view.source, K.view.final_positions()[0]
    place = np.full(len(source.samples), -1)
    place[at] = np.arange(len(at))
    identical, complete = identical_samples(K)
    pairs = place[identical]
    parts = parts_of(folds, len(at))[:, pairs[(pairs >= 0).all(axis=1)]]
    apart = ((parts >= 0).all(axis=2) & (parts[..., 0] != parts[..., 1])).any(axis=0)
    counts = {"identical_pairs": len(apart), "identical_pairs_apart": int(apart.sum())} if len(apart) else {}
    return counts | ({"identical_pairs_incomplete": 1} if counts and not complete else {})


def nest_folds(outer: Any, inner: Any, labels: npt.ArrayLike, **of_rows: Any) -> list[Fold]:
    """Folds that test, with the folds of their training rows that choose a point, from arguments of `dmkl.evaluate`."""
    rows = replace(_Rows.of(labels, **of_rows), least=3)
    outer = DEFAULT_FOLDS if outer is None else outer
    stored, by_validation = isinstance(outer, str), inner is None or (isinstance(inner, str) and inner == SPLITS)
    if stored and by_validation and rows.has_validation:
        folds = make_folds(outer, labels, **of_rows)
        for fold in folds:
            if not len(fold.test):
                refuse(f"{fold.title} has no test rows; an evaluation needs them in every outer fold")
        return [replace(fold, train=fold.seen, validation=fold.test[:0], inner=(fold,)) for fold in folds]
    inner = INNER_FOLDS if inner is None else inner
    if _as_splitter(inner, rows, "inner") is None:
        refuse(
            "inner must be a number of folds or a splitter of scikit-learn, which splits the training rows of each "
            f"outer fold, or None, got {plain_repr(inner)}; 'splits' goes with outer='splits' where splits have "
            "validation rows"
        )
    nested = []
    splitter, parts_by_name = _read_folds(outer, rows, "outer")
    for name, parts in parts_by_name.items():
        title = f"stored split {name}" if stored else f"outer fold {name}"
        pair = (np.union1d(parts[0], parts[1]), parts[2]) if stored else parts
        fold = _as_fold(name, title, pair, rows, ("train", "test"), splitter)
        at, groups = fold.train, None if rows.groups is None else rows.groups[fold.train]
        try:
            strata = None if rows.strata is None else rows.strata[at]
            inside = replace(rows, y=rows.y[at], groups=groups, numbers=rows.numbers[at], splits=None, strata=strata)
            made_by, inner_parts = _read_folds(inner, inside, "inner")
        except InputError as error:
            refuse(f"{title}: {error}", error)
        inner_folds = (
            _as_fold(number, f"{title}, inner fold {number}", (at[train], at[validation]), rows, NAMES[:2], made_by)
            for number, (train, validation) in inner_parts.items()
        )
        nested.append(replace(fold, inner=tuple(inner_folds)))
    return nested


@dataclass(frozen=True, eq=False)
class _Rows:
    """Labels and groups of the rows that folds are made of."""

    y: Array
    """(m,) classes, (m, tasks) of 0 and 1, or numbers. Rows whose label is unknown are in no fold of that task."""
    splits: Array | None
    """The stored splits, (split, m): 0 train, 1 validation, 2 test, -1 in no part (`KernelSet.splits`)."""
    groups: Array | None  # (m,) groups of rows that no fold may split. They are passed to splitters that need groups.
    numbers: Index  # A number for each row, equal for rows that are the same sample by its name.
    classes: bool
    """Whether labels are classes: a number of folds is then stratified, and folds are checked for classes."""
    least: int = 2
    """The fewest samples of a class from which folds can hold one out and learn: one more if folds are nested."""
    strata: Array | None = None
    """(m,) values of which each of a number of folds has an equal share, in place of classes: events of survival."""

    @classmethod
    def of(
        cls,
        labels: npt.ArrayLike,
        splits: Array | None = None,
        groups: Any = None,
        samples: Array | None = None,
        classes: bool = True,
        strata: Array | None = None,
    ) -> _Rows:
        y = np.asarray(labels)
        y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
        groups = None if groups is None else np.asarray(groups)
        if groups is not None and groups.shape != (len(y),):
            refuse(f"groups has shape {groups.shape}, expected ({len(y)},): a group for each row")
        numbers = np.arange(len(y)) if samples is None else sample_numbers(samples)
        return cls(y, splits, groups, numbers, classes, strata=strata)

    @property
    def stratified_by(self) -> Array:
        """(m,) strata or labels, of a type that scikit-learn accepts as classes: strings and objects as numbers."""
        y = self.y if self.strata is None else self.strata
        return np.unique(y, return_inverse=True)[1] if y.ndim == 1 and y.dtype.kind in "OT" else y

    @property
    def together(self) -> Array | None:
        """(m,) what folds keep whole: groups, or the samples where some have several rows."""
        repeats = len(np.unique(self.numbers)) < len(self.numbers)
        return self.numbers if self.groups is None and repeats else self.groups

    @property
    def has_validation(self) -> bool:
        """Whether a stored split has validation rows."""
        return self.splits is not None and bool((self.splits == VALIDATION).any())


def sample_numbers(samples: Array) -> Index:
    """A number for each row, equal for rows that are the same sample by its name."""
    return np.asarray(np.unique(samples.astype(str), return_inverse=True)[1])


def _read_folds(cv: Any, rows: _Rows, argument: str) -> tuple[str, dict[str, Any]]:
    """`Fold.splitter`, and the parts of each fold by its name, not checked."""
    splitter, made_by = _as_splitter(cv, rows, argument), ""
    if splitter is not None:
        folds, made_by = _split(splitter, rows), repr(splitter)
        groups = None if rows.groups is None else rows.groups.astype(str)
        held_out = [() if groups is None else tuple(set(groups[test].tolist())) for _, test in folds]
        if set(map(len, held_out)) == {1} and len(set(held_out)) == len(folds):
            return made_by, {group: parts for (group,), parts in zip(held_out, folds, strict=True)}
    elif isinstance(cv, str):
        if cv != SPLITS:
            refuse(
                f"{argument}={cv!r} is unknown; the only word that it accepts is 'splits', for the splits stored with "
                "the kernels"
            )
        if rows.splits is None:
            refuse(
                f"{argument}='splits' needs splits stored with the kernels (splits=, --splits), and there are none; "
                f"give {argument}=5, say"
            )
        folds = [tuple(np.flatnonzero(split == part) for part in (TRAIN, VALIDATION, TEST)) for split in rows.splits]
        made_by = SPLITS
    elif isinstance(cv, Mapping):
        folds = list(cv.values())
    elif isinstance(cv, tuple) and len(cv) in (2, 3) and all(map(_is_vector, cv)):
        folds = [cv]
    elif isinstance(cv, Iterable):
        folds = list(cv)
    else:
        refuse(
            f"{argument} must be a number of folds, a splitter of scikit-learn, 'splits', or folds as (train, "
            f"validation) or (train, validation, test), got {plain_repr(cv)}"
        )
    if not folds:
        refuse(f"{argument} has no folds; give at least one pair of training and validation rows")
    names = cv if isinstance(cv, Mapping) else range(len(folds))
    return made_by, dict(zip(map(str, names), folds, strict=True))


def _as_splitter(cv: Any, rows: _Rows, argument: str) -> Any:
    """The splitter that `cv` is or stands for; None if it holds the folds."""
    if not isinstance(cv, numbers.Integral):
        return cv if hasattr(cv, "split") and not isinstance(cv, str | type) else None
    stratified = rows.strata is not None or (rows.classes and rows.y.ndim == 1)
    n_groups = int(cv) if rows.together is None else len(np.unique(rows.together))
    if n_groups < int(cv):
        fewer = f"{argument}={n_groups} (--{argument} {n_groups}) or fewer" if n_groups > 1 else "rows of more groups"
        refuse(f"{argument}={cv} folds of whole groups need as many groups, and there are {n_groups}: give {fewer}")
    try:
        if rows.together is not None:
            return (StratifiedGroupKFold if stratified else GroupKFold)(int(cv))
        return check_cv(int(cv), rows.stratified_by, classifier=stratified)
    except ValueError as error:
        refuse(f"{argument}={plain_repr(cv)} is no number of folds: {error}", error)


def _split(splitter: Any, rows: _Rows) -> list[Any]:
    y, groups = rows.y, rows.together
    try:
        with warnings.catch_warnings():
            # Splitters without groups warn that they ignore them; whether they split a group is checked later.
            warnings.filterwarnings("ignore", message="The groups parameter is ignored")
            if rows.strata is not None:  # which need not be in all folds
                warnings.filterwarnings("ignore", message="The least populated class")
            return list(splitter.split(np.zeros(len(y)), rows.stratified_by, groups))
    except (ValueError, TypeError) as error:
        name = type(splitter).__name__
        # The messages of scikit-learn's splitters about missing groups differ between splitters and versions.
        if groups is None and "group" in f"{name} {error}".lower():
            msg = f"{name} splits by groups; give groups=, one for each of the {len(y)} rows"
        else:
            hint = "; labels of several tasks are not stratified, use KFold or give the folds" if y.ndim == 2 else ""
            msg = f"{name} cannot split these {len(y)} rows: {error}{hint}"
        raise InputError(msg) from error


def _is_vector(part: Any) -> bool:
    """Whether this is a vector of positions or a mask, not a pair of them."""
    try:
        array = np.asarray(part)
    except ValueError:  # ragged
        return False
    return array.ndim == 1 and (array.dtype.kind in "iub" or array.size == 0)


def _as_fold(name: str, title: str, parts: Any, rows: _Rows, names: Sequence[str], splitter: str) -> Fold:
    """A fold, from the names of its parts: train and test, or train, validation and, optionally, test."""
    if (
        not isinstance(parts, Sequence | np.ndarray)
        or not 2 <= len(parts) <= len(names)
        or not all(_is_vector(part) for part in parts)
    ):
        forms = " or ".join(f"({', '.join(names[:n])})" for n in range(2, len(names) + 1))
        refuse(
            f"{title} must be {forms}, vectors of positions or boolean masks each, got {reprlib.repr(parts)}; a single "
            f"fold is a tuple, ({', '.join(names[:2])})"
        )
    of_parts = dict.fromkeys(NAMES, np.empty(0, dtype=np.int64))
    for part, values in zip(names, parts, strict=False):
        try:
            of_parts[part] = positions(values, len(rows.y), "row")
        except InputError as error:
            refuse(f"{title}, {part}: {error}", error)
    held_out = names[1]
    if not len(of_parts[held_out]):
        use = "validate" if held_out == "validation" else "test"
        refuse(f"{title} has no {held_out} rows; each needs rows to learn from and rows to {use} on")
    fold = Fold(name, title, of_parts["train"], of_parts["validation"], of_parts["test"], splitter=splitter)
    _check_fold(fold, rows)
    return fold


def _check_fold(fold: Fold, rows: _Rows) -> None:
    """Refuse a fold whose parts share rows or groups, or whose training rows have one class or lack one held out."""
    y, groups, numbers = rows.y, rows.groups, rows.numbers
    title, parts = fold.title, {"training": fold.train, "validation": fold.validation, "test": fold.test}
    if not len(fold.train):
        refuse(f"{title} has no training rows; each needs rows to learn from and rows to hold out")
    for first, second in itertools.combinations(parts, 2):
        shared = np.flatnonzero(np.isin(numbers[parts[first]], numbers[parts[second]]))
        training = first == "training"
        why = "held-out rows must not train" if training else "rows that choose must not test"
        if len(shared):
            refuse(
                f"{title} has {len(shared)} {first} rows that are {second} rows too, row {parts[first][shared].min()} "
                f"first; {why}"
            )
        both = [] if groups is None else np.intersect1d(groups[parts[first]], groups[parts[second]]).tolist()
        if both:
            refuse(
                f"{title} has {len(both)} groups with rows in {first} and in {second}, {both[0]!r} first; {why}. Take "
                "a splitter that keeps groups whole, such as StratifiedGroupKFold(5), or leave groups out"
            )
    for k, column in enumerate(y.reshape(len(y), -1).T):
        of_task = f" in {'task' if rows.classes else 'target'} {k}" if y.ndim == 2 else ""
        labeled = is_known(column)
        learnt = np.unique(column[fold.train[labeled[fold.train]]])
        for part in ("validation", "test") if rows.classes else ():
            held_out = parts[part][labeled[parts[part]]]
            if missing := np.setdiff1d(column[held_out], learnt).tolist():
                refuse(
                    f"{title} has no training rows of class {missing[0]!r}{of_task}, of which it has {part} rows; "
                    f"{_advice(column, missing[0], of_task, rows.least)}"
                )
        if len(learnt) < 2:
            noun = "class" if rows.classes else "value"
            which = f"of a single {noun}, {learnt.tolist()[0]!r}" if len(learnt) else f"without a known {noun}"
            refuse(f"{title} has training rows {which}{of_task}, and needs two at least; use fewer or stratified folds")


def _advice(column: Array, label: Any, of_task: str, least: int) -> str:
    """The way out if a fold holds out a class that its training rows lack."""
    if of_task:
        return "use fewer or stratified folds, or leave that task out"
    size = int(np.count_nonzero(column == label))
    fewest = max(least, size + 1)
    drop = (
        f"leave classes of fewer than {fewest} samples out: --drop-classes-below {fewest}, or in Python K[rows, rows] "
        "and y[rows] with the rows of the others"
    )
    return f"that class has {size} in all; {drop}" if size < least else f"use fewer or stratified folds, or {drop}"
