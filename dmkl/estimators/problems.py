"""What is learnt from labels: the independent problems of a classification, and the rule that their solutions make."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np

from dmkl.arrays import Array, Float, Index
from dmkl.numerics.fisher import Targets

__all__ = ["DecisionRule", "Loss", "Multiclass", "Problems"]

Multiclass = Literal["ovr", "ovo"]
Loss = Literal["hinge", "square"]


@dataclass(frozen=True, eq=False)
class Problems:
    """A classification as independent problems.

    Parameters
    ----------
    targets
        The encoded labels.
    dim
        Dimension that labels the problems: "task", "class" (one class against the rest) or "pair" (one class against
        another); None where there is a single problem.
    names
        Of the problems, along that dimension.
    columns
        Dimension and labels of the columns of all dual variables side by side.
    h
        What each problem is learnt from: targets H, (m, c), or signs 1 and −1, (m,).
    rows
        The samples of each; all where None.
    """

    targets: Targets
    dim: str | None
    names: Array
    columns: tuple[str, Array]
    h: tuple[Float, ...]
    rows: tuple[Index | None, ...]

    def __len__(self) -> int:
        return len(self.h)

    def title(self, number: int) -> str:
        """What a problem is called in messages; nothing where there is one alone."""
        return "" if self.dim is None else f"{self.names[number]}: "

    @classmethod
    def of_classes(cls, targets: Targets, tasks: Array | None) -> Self:
        """One problem for all classes; for a multilabel set one for each task."""
        everything = (None,) * len(targets.problems)
        if targets.kind == "multilabel":
            names = task_names(targets, tasks)
            return cls(targets, "task", names, ("task", names), targets.problems, everything)
        labels = targets.classes if targets.kind == "multiclass" else targets.classes[1:]
        return cls(targets, None, labels[:1], ("class", labels), targets.problems, everything)

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
        b, (k,)
    dim
        What the columns k are: "class", "pair" or "task".
    """

    weights: Float
    dual: Float
    bias: Float
    dim: str
