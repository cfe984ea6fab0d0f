"""Labels as problems: labels by the names of samples, weights of samples, and the independent problems to solve."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from sklearn.utils.class_weight import compute_sample_weight

from dmkl.arrays import Array, Float, Index, plain_repr
from dmkl.errors import InputError, LabelWarning, warn
from dmkl.features.cross import TrainingFeatures, training_features
from dmkl.inputs.label_tables import matched
from dmkl.inputs.labels import single_samples
from dmkl.kernelset import KernelSet
from dmkl.numerics.fisher import Targets, with_unknown
from dmkl.numerics.steps import FittedStep
from dmkl.unknown import is_known

__all__ = [
    "ClassWeight",
    "Loss",
    "Multiclass",
    "Problems",
    "ScoreFunction",
    "Statistics",
    "as_sample_weight",
    "check_hinge",
    "class_sample_weights",
    "features_of",
    "given_labels",
    "labeled_targets",
    "side_by_side",
    "tell_new_classes",
    "total_sample_weights",
]


def labeled_targets(
    learner: Any, K: KernelSet, y: npt.ArrayLike | None, purpose: str, unknown: Any = None
) -> tuple[Targets, Array | None]:
    """The targets of a learner on square kernels, and the names of the tasks or targets.

    `unknown` is a code of unknown labels.

    Raises
    ------
    InputError
        If `K` is not square, or there are no labels.
    """
    if not K.is_square:
        _, rows, cols = K.shape
        msg = f"{purpose} needs the training kernels, K[train, train], got {rows} rows and {cols} columns that differ"
        raise InputError(msg)
    labels, tasks = given_labels(K, y)
    if labels is None:
        msg = f"{purpose} needs labels: give y, or store them with the kernels (labels=, --labels)"
        raise InputError(msg)
    targets = learner._targets(with_unknown(labels, unknown), K.shape[1], tasks)
    single = None if targets.kind == "regression" else single_samples(targets.labels, K.samples)
    if single is not None:
        warn(f"{purpose}: {single}. Has a line of a file been read as a label by mistake?", LabelWarning)
    return targets, tasks


def tell_new_classes(truth: Array, classes: Array) -> None:
    """Warn if true labels have classes that the model has not learnt, which it can only get wrong."""
    learnt = set(classes.astype(str).tolist())
    new = Counter(name for name in truth.astype(str).tolist() if name not in learnt)
    if new:
        listed = ", ".join(f"{name!r} ({n})" for name, n in new.most_common(3)) + (" …" if len(new) > 3 else "")
        listed_classes = ", ".join(map(repr, sorted(learnt)[:5])) + (" …" if len(learnt) > 5 else "")
        message = (
            f"{new.total()} of the {len(truth)} samples have a class that the model has not learnt, {listed}, and "
            f"count as wrong; it knows {listed_classes}. Train it on samples of that class, or leave them out"
        )
        warn(message, LabelWarning)


def given_labels(K: KernelSet, y: Any) -> tuple[Array | None, Array | None]:
    """Labels of the row samples and names of their tasks: those of `y`, matched by name, or the stored ones.

    Raises
    ------
    InputError
        If `y` has names and lacks a sample of `K`.
    """
    if y is None:
        return K.labels, K.tasks
    table = matched("y", y, K.samples, named=K.view.has_names, stored=K.labels)
    return table.values, None if table.columns is None else np.array(table.columns, dtype=object)


def features_of(K: KernelSet) -> TrainingFeatures | str:
    """The features from which kernels of new samples can be computed, or the reason why there are none."""
    try:
        return training_features(K)
    except InputError as error:
        return str(error)


ClassWeight = Mapping[Any, float] | Literal["balanced"] | None


def as_sample_weight(sample_weight: npt.ArrayLike, n_samples: int) -> Float:
    """Weights of samples as (m,) numbers, refused by InputError if one is not positive and finite."""
    weights = np.asarray(sample_weight, dtype=np.float64)
    if weights.shape != (n_samples,) or not (np.isfinite(weights) & (weights > 0)).all():
        msg = (
            f"sample_weight must be a positive number for each of the {n_samples} samples, got shape {weights.shape}"
            f"{'' if weights.shape != (n_samples,) else f' with {weights.min():g} in it'}; leave out samples of "
            "weight zero"
        )
        raise InputError(msg)
    return weights


def check_hinge(loss: str) -> None:
    """Refuse a loss without weights of samples, by InputError."""
    if loss != "hinge":
        msg = (
            f"weights of samples and classes are for the hinge loss, and this is loss={loss!r}; take "
            "loss='hinge', leave sample_weight and class_weight out, or take MKFDA, whose least squares have weights"
        )
        raise InputError(msg)


def class_sample_weights(class_weight: ClassWeight, targets: Targets) -> list[Float]:
    """The weight of the class of each sample, (m,), for each task of a multilabel problem, or once for all problems.

    Raises
    ------
    InputError
        If `class_weight` is not "balanced", a positive weight for each of some classes, or None.
    """
    labels = targets.labels if targets.kind == "multilabel" else targets.labels[:, None]
    if isinstance(class_weight, Mapping):
        strange = [label for label in class_weight if label not in targets.classes.tolist()]
        if strange or not all(np.isfinite(w) and w > 0 for w in class_weight.values()):
            problem = (
                f"has weights for {plain_repr(strange)}" if strange else "has weights that are not positive and finite"
            )
            msg = f"class_weight maps classes, {targets.classes.tolist()}, to positive weights; {problem}"
            raise InputError(msg)
    elif class_weight not in (None, "balanced"):
        msg = f"class_weight must be 'balanced', a weight for each class, or None, got {plain_repr(class_weight)}"
        raise InputError(msg)
    weight = dict(class_weight) if isinstance(class_weight, Mapping) else class_weight
    weights = np.ones(labels.shape)
    if weight is None:
        return list(weights.T)
    for column, column_weights in zip(labels.T, weights.T, strict=True):
        is_labeled = is_known(column)
        column_weights[is_labeled] = compute_sample_weight(weight, column[is_labeled])
    return list(weights.T)


def total_sample_weights(
    targets: Targets, sample_weight: Float | None, class_weight: ClassWeight
) -> list[Float] | None:
    """The weight of each sample times that of its class, (m,), for each task or target, or once for all problems.

    None if there are neither.
    """
    if sample_weight is None and class_weight is None:
        return None
    given = np.ones(len(targets.labels)) if sample_weight is None else sample_weight
    if class_weight is None:
        return [given] * (1 if targets.dim is None else len(targets.problems))
    return [given * class_weights for class_weights in class_sample_weights(class_weight, targets)]


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
        against another); None for a single problem.
    names
        Names of the problems along that dimension.
    columns
        Dimension and labels of the columns of all dual variables side by side.
    h
        Targets H of each problem, (m, c), or D^{1/2}H if samples have weights; or signs 1 and −1, (m,).
    rows
        The samples of each problem, as positions among its labeled samples; all of them where None.
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
        """Cache of values that learners compute once for all fits of a plan."""
        return {}

    def title(self, number: int) -> str:
        """Name of a problem in messages; empty if there is only one."""
        return "" if self.dim is None else f"{self.names[number]}: "

    @property
    def labeled(self) -> tuple[Index | None, ...]:
        """The samples of each problem whose labels are known; all where None."""
        return (None,) * len(self) if self.targets.all_known else self.targets.rows

    @property
    def weights(self) -> tuple[Float | None, ...]:
        """Weights of the samples of each problem, if its kernels and targets depend on them; one where None."""
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
        # The first class of a pair is the positive one, as in prediction.
        signs_of_pairs = tuple(signs[a][r] for (a, _), r in zip(pairs, rows, strict=True))
        return cls(targets, "pair", names, ("pair", names), signs_of_pairs, rows)


def task_names(targets: Targets, tasks: Array | None) -> Array:
    """The names of the tasks, or their numbers."""
    return np.array([str(task) for task in (range(len(targets.problems)) if tasks is None else tasks)])


@dataclass(frozen=True, eq=False)
class ScoreFunction:
    """Weights, dual variables and bias, which give scores Σ_j w_jk Σ_i k_j(x, x_i) α_ik + b_k.

    Parameters
    ----------
    weights
        w, (n, k), or (n, groups, k).
    dual
        α, (m, k).
    bias
        b, (k,), or one for each row that is scored, (rows, k).
    dim
        Dimension of the columns k: "class", "pair" or "task".
    """

    weights: Float
    dual: Float
    bias: Float
    dim: str

    def of(self, columns: Index, rows: Index | None) -> ScoreFunction:
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
        Positions of the training samples of these statistics; all where None.
    """

    steps: tuple[FittedStep, ...]
    columns: Index
    rows: Index | None = None


def side_by_side(scores: Sequence[Float], columns: Sequence[Index]) -> Float:
    """Scores of several parts, (rows, columns of the part), in the order of their columns."""
    if len(scores) == 1:
        return scores[0]
    return np.concatenate(scores, axis=1)[:, np.argsort(np.concatenate(columns))]
