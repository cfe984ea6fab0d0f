"""What is learnt from labels: the independent problems that they make, and the rule that their solutions make."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, Self

import numpy as np

from dmkl.arrays import Array, Float, Index
from dmkl.numerics.fisher import Targets
from dmkl.numerics.steps import FittedStep

__all__ = ["DecisionRule", "Loss", "Multiclass", "Problems", "Statistics", "side_by_side"]

Multiclass = Literal["ovr", "ovo"]
Loss = Literal["hinge", "square"]


@dataclass(frozen=True, eq=False)
class Problems:
    """Labels as independent problems.

    Parameters
    ----------
    targets
        The encoded labels.
    dim
        Dimension that labels the problems: "task", "target", "class" (one class against the rest) or "pair" (one class
        against another); None where there is a single problem.
    names
        Of the problems, along that dimension.
    columns
        Dimension and labels of the columns of all dual variables side by side.
    h
        What each problem is learnt from: targets H, (m, c), D^{1/2}H where samples have weights; or signs 1 and −1,
        (m,).
    rows
        The samples of each, among those whose labels are known to it; all of them where None.
    """

    targets: Targets
    dim: str | None
    names: Array
    columns: tuple[str, Array]
    h: tuple[Float, ...]
    rows: tuple[Index | None, ...]

    def __len__(self) -> int:
        return len(self.h)

    @cached_property
    def computed(self) -> dict[Hashable, Any]:
        """What learners compute of the problems once for all fits of a plan, by what it depends on."""
        return {}

    def title(self, number: int) -> str:
        """What a problem is called in messages; nothing where there is one alone."""
        return "" if self.dim is None else f"{self.names[number]}: "

    @property
    def labeled(self) -> tuple[Index | None, ...]:
        """The samples whose labels are known to each problem, which it is trained on; all where None."""
        return (None,) * len(self) if self.targets.all_known else self.targets.rows

    @property
    def weights(self) -> tuple[Float | None, ...]:
        """What the samples of each problem count, where its kernels and targets take it in; all once where None."""
        return (None,) * len(self) if self.targets.weights is None else self.targets.weights

    @classmethod
    def of_targets(cls, targets: Targets, names: Array | None) -> Self:
        """One regression problem for each target."""
        names = task_names(targets, names)
        everything = (None,) * len(names)
        return cls(targets, targets.dim, names, ("target", names), targets.scaled, everything)

    @classmethod
    def of_classes(cls, targets: Targets, tasks: Array | None) -> Self:
        """One problem for all classes; for a multilabel set one for each task."""
        everything = (None,) * len(targets.problems)
        if targets.kind == "multilabel":
            names = task_names(targets, tasks)
            return cls(targets, "task", names, ("task", names), targets.scaled, everything)
        labels = targets.classes if targets.kind == "multiclass" else targets.classes[1:]
        return cls(targets, None, labels[:1], ("class", labels), targets.scaled, everything)

    @classmethod
    def binary(cls, targets: Targets, tasks: Array | None, multiclass: Multiclass = "ovr") -> Self:
        """Binary problems: each class against the rest ("ovr") or each against each ("ovo"), or each task."""
        signs = tuple(np.where(column > 0, 1.0, -1.0) for h in targets.problems for column in h.T)
        everything = (None,) * len(signs)
        if targets.kind == "multilabel":
            names = task_names(targets, tasks)
            return cls(targets, "task", names, ("task", names), signs, everything)
        if targets.kind == "binary":
            positive = targets.classes[1:]
            return cls(targets, None, positive, ("class", positive), signs, everything)
        if multiclass == "ovr":
            return cls(targets, "class", targets.classes, ("class", targets.classes), signs, everything)
        pairs = list(itertools.combinations(range(len(targets.classes)), 2))
        names = np.array([f"{targets.classes[a]} or {targets.classes[b]}" for a, b in pairs])
        rows = tuple(np.flatnonzero((signs[a] > 0) | (signs[b] > 0)) for a, b in pairs)
        # The first of the two is the positive one, as the machine's sign is read in prediction.
        own = tuple(signs[a][r] for (a, _), r in zip(pairs, rows, strict=True))
        return cls(targets, "pair", names, ("pair", names), own, rows)


def task_names(targets: Targets, tasks: Array | None) -> Array:
    """The names of the tasks; their numbers where they have none."""
    return np.array([str(task) for task in (range(len(targets.problems)) if tasks is None else tasks)])


@dataclass(frozen=True, eq=False)
class DecisionRule:
    """What prediction needs beside the kernels: scores Σ_j w_jk Σ_i k_j(x, x_i) α_ik + b_k.

    Parameters
    ----------
    weights
        w, (n, k), or (n, groups, k).
    dual
        α, (m, k).
    bias
        b, (k,), or one for each row that is scored, (rows, k).
    dim
        What the columns k are: "class", "pair" or "task".
    """

    weights: Float
    dual: Float
    bias: Float
    dim: str

    def of(self, columns: Index, rows: Index | None) -> DecisionRule:
        """Some of the columns, over some of the training rows."""
        dual = self.dual[:, columns] if rows is None else self.dual[rows][:, columns]
        return replace(self, weights=self.weights[..., columns], dual=dual, bias=self.bias[..., columns])


class Statistics(NamedTuple):
    """The statistics of the training kernels that some columns of dual variables were learnt from.

    Parameters
    ----------
    steps
        The learner's steps with their statistics.
    columns
        Positions of the columns.
    rows
        Positions of the training samples whose statistics they are; all where None.
    """

    steps: tuple[FittedStep, ...]
    columns: Index
    rows: Index | None = None


def side_by_side(scores: Sequence[Float], columns: Sequence[Index]) -> Float:
    """Scores of several parts, (rows, columns of the part), in the order of their columns."""
    if len(scores) == 1:
        return scores[0]
    return np.concatenate(scores, axis=1)[:, np.argsort(np.concatenate(columns))]
