"""Held-out rows of folds, and what is decided about them by rules from rows that no machine was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dmkl.arrays import Float, Index
from dmkl.estimators.decisions import SEARCHED, Decider, by_problem

__all__ = ["HeldOut", "cross_decided", "joined", "of_machines"]

_FEWEST = 2
"""Rows of each class that a rule is learnt from."""


@dataclass(frozen=True, eq=False)
class HeldOut:
    """The held-out rows of one fold.

    Parameters
    ----------
    scores
        (rows, columns), comparable between folds: g for regression scores. Those of several machines are (machines,
        rows, columns): all of them decide together, each by rules of its own, and numbers for each problem may have
        that axis.
    index
        The class of each row, for each problem.
    rows
        Positions of the rows among all samples.
    n_validation
        The first of the rows are for choosing, the others for testing.
    by_class
        What rows of each class count, (classes,), for each problem; once where None.
    units
        Of what multiples of the machine's own scores these are, (columns,) for each problem; they themselves where
        None.
    """

    scores: Float
    index: Sequence[Index]
    rows: Index
    n_validation: int
    by_class: Sequence[Float] | None = None
    units: Sequence[Float] | None = None

    def take(self, chosen: npt.NDArray[np.bool_]) -> HeldOut:
        """Some of the rows, all for choosing."""
        if self.n_validation == len(self.rows) and chosen.all():
            return self
        index = [one[chosen] for one in self.index]
        return replace(
            self,
            scores=self.scores.mT[..., chosen].mT,
            index=index,
            rows=self.rows[chosen],
            n_validation=int(np.count_nonzero(chosen)),
        )

    def machines(self, some: slice) -> HeldOut:
        """The scores of some of several machines."""
        return replace(self, scores=self.scores[some])

    def scaled(self, units: Sequence[Float], by_class: Sequence[Float] | None) -> HeldOut:
        """In units of each problem, (columns,), in double precision, with what rows of each class count."""
        # Columns, the longer ones, run along memory.
        scores = np.multiply(self.scores.mT, np.concatenate(units, axis=-1)[..., None], dtype=np.float64, order="C")
        return replace(self, scores=scores.mT, by_class=by_class, units=units)

    def decider(self, kind: str, priors: Sequence[Float], learnt_on: str, *, ordered: bool = True) -> Decider:
        """The rule that these rows teach, those whose class is known; see `Decider.learn`."""
        known = [index >= 0 for index in self.index]
        parts = [
            part if k.all() else part[..., k, :] for part, k in zip(by_problem(kind, self.scores), known, strict=True)
        ]
        index = [index[k] for index, k in zip(self.index, known, strict=True)]
        weights = None if self.by_class is None else [d[..., i] for d, i in zip(self.by_class, index, strict=True)]
        return Decider.learn(kind, parts, index, priors, learnt_on, weights, self.units, ordered=ordered)

    def enough_for(self, priors: Sequence[Float] | Float) -> bool:
        """Whether every class of every problem has the rows that a rule is learnt from."""
        counts = [np.bincount(i[i >= 0], minlength=q.shape[-1]).min() for i, q in zip(self.index, priors, strict=True)]
        return bool(min(counts) >= _FEWEST)

    @property
    def validation(self) -> HeldOut:
        """The rows for choosing."""
        return self.take(np.arange(len(self.rows)) < self.n_validation)


def cross_decided(kind: str, folds: Sequence[HeldOut], priors: Sequence[Sequence[Float]]) -> list[Float]:
    """Decisions about the held-out rows of each fold, (rows, columns), by rules that were learnt from other rows.

    The rule for the validation rows of a fold is learnt from those of the other folds that it does not hold out; the
    rule for its test rows from its validation rows. With a single fold, or too few rows of a class, validation rows
    of several classes are decided in five parts, each by a rule from the others; of two classes, whose rule on one
    score is a single threshold, all by one from themselves. `priors` are those of each fold, for each problem.
    """
    found = []
    for fold, q in zip(folds, priors, strict=True):
        others = [other.validation for other in folds if other is not fold]
        held = np.zeros(1 + max(int(other.rows.max(initial=0)) for other in folds), dtype=bool)
        held[fold.rows] = True
        rest = joined([other.take(~held[other.rows]) for other in others]) if others else None
        own = fold.validation
        if rest is not None and rest.enough_for(q):
            decided = _shifted(kind, rest, q, own.scores)
        elif kind != "multiclass":
            decided = _shifted(kind, own, q, own.scores)
        else:
            decided = np.empty_like(own.scores)
            part = _fifths(own.index[0])
            for k in range(part.max() + 1):
                mine = part == k
                decided[..., mine, :] = _shifted(kind, own.take(~mine), q, own.scores[..., mine, :])
        tested = fold.scores[..., fold.n_validation :, :]
        if tested.shape[-2]:
            decided = np.concatenate([decided, _shifted(kind, own, q, tested)], axis=-2)
        found.append(decided)
    return found


def joined(some: Sequence[HeldOut]) -> HeldOut:
    """Rows of several folds together, all for choosing."""
    index = [np.concatenate(each) for each in zip(*(one.index for one in some), strict=True)]
    rows = np.concatenate([one.rows for one in some])
    return HeldOut(
        np.concatenate([one.scores.mT for one in some], axis=-1).mT,
        index,
        rows,
        len(rows),
        some[0].by_class,
        some[0].units,
    )


def of_machines(found: Sequence[Sequence[Float] | None]) -> list[Float] | None:
    """Factors of each machine for each problem, as (machines, factors); None stands for ones where some are given."""
    given = next((each for each in found if each is not None), None)
    if given is None:
        return None
    ones = [np.ones_like(one) for one in given]
    return [np.stack(each) for each in zip(*(ones if each is None else each for each in found), strict=True)]


def _fifths(index: Index) -> Index:
    """A part of five for each row, the rows of a class dealt out in turn."""
    part = np.empty(len(index), dtype=np.int64)
    part[np.argsort(index, kind="stable")] = np.arange(len(index)) % 5
    return part


def _shifted(kind: str, learnt: HeldOut, priors: Sequence[Float], scores: Float) -> Float:
    """Decisions by the rule of some rows; of two classes the scores themselves less a threshold, in their own order.

    The scores where there are too few rows for a rule, or where they do not grow from the first class to the second.
    """
    if not learnt.enough_for(priors):
        return scores
    decider = learnt.decider(kind, priors, SEARCHED, ordered=False)
    if kind == "multiclass":
        return decider.decision(scores)
    low, high = [decider.decision(np.full((1, scores.shape[-1]), value)) for value in (0.0, 1.0)]
    slope = high - low
    return np.where(slope > 0, scores + low / np.where(slope > 0, slope, 1.0), scores)
