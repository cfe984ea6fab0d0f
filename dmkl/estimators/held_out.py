"""Scores of the held-out rows of folds, from which a model that has no leave-one-out scores is calibrated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dmkl.arrays import Float, Index
from dmkl.estimators.decisions import Decider, by_problem

__all__ = ["HeldOut", "joined"]

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
