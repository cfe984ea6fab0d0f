"""Labels and probabilities from scores: a decision rule with prior probabilities, learnt from out-of-sample scores.

A `DecisionRule` is learnt from scores of rows that the learner was not trained on: the leave-one-out scores of a fit,
the held-out rows of a search, or rows that are given to `calibrate` (`HeldOut`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy.special import softmax

from dmkl.arrays import Array, Float, Index, plain_repr
from dmkl.errors import InputError
from dmkl.numerics.discriminant import (
    Discriminant,
    directions,
    left_out_densities,
    whitened,
)
from dmkl.numerics.fisher import Targets
from dmkl.numerics.rule_weights import LEAST, weigh
from dmkl.unknown import is_known

__all__ = [
    "GIVEN",
    "LEFT_OUT",
    "SEARCHED",
    "DecisionRule",
    "HeldOut",
    "NotCalibratedError",
    "Priors",
    "by_problem",
    "check_priors",
    "class_index",
    "class_weights",
    "index_of",
    "joined",
    "predicted_labels",
    "prior_probabilities",
]


LEFT_OUT = "leave-one-out scores of the training rows"
SEARCHED = "held-out rows of the folds of a search"
GIVEN = "rows that were given to calibrate"
"""Rows that probabilities are calibrated on."""


class NotCalibratedError(InputError, AttributeError):
    """There are no out-of-sample scores to calibrate probabilities on."""


Priors = Literal["empirical", "uniform"] | Sequence[float] | Mapping[Any, float] | None
"""Prior probabilities of the classes, as in scikit-learn's LinearDiscriminantAnalysis, or by class."""


def check_priors(priors: Any, classes: Array | None = None) -> None:
    """Refuse values that are not prior probabilities.

    Raises
    ------
    InputError
        If they are an unknown word, are not positive, do not sum to one, or are not one for each class.
    """
    if priors is None or (isinstance(priors, str) and priors in ("empirical", "uniform")):
        return
    rule = "priors must be 'empirical' (None), 'uniform', or a positive number for each class that sum to one"
    try:
        values = np.asarray(list(priors.values()) if isinstance(priors, Mapping) else priors, dtype=np.float64)
    except (ValueError, TypeError) as error:
        msg = f"{rule}; got {plain_repr(priors)}"
        raise InputError(msg) from error
    if values.ndim != 1 or not (values > 0).all() or abs(values.sum() - 1.0) > 1e-5:
        msg = f"{rule}; got {plain_repr(priors)}, whose sum is {values.sum():g}"
        raise InputError(msg)
    if classes is None:
        return
    if isinstance(priors, Mapping):
        expected_labels, given = [set(map(str, labels)) for labels in (classes.tolist(), priors)]
        if expected_labels != given or len(given) < len(priors):
            msg = (
                f"priors holds numbers for {plain_repr(list(priors))}, and the classes are {classes.tolist()}; give "
                "one for each"
            )
            raise InputError(msg)
    elif len(values) != len(classes):
        n = len(classes)
        msg = f"priors holds {len(values)} numbers and there are {n} classes; give one for each, classes sorted"
        raise InputError(msg)


def prior_probabilities(priors: Priors, classes: Array, sizes: Float) -> Float:
    """q, (classes,), for classes of these sizes in training; those of a mapping by the text of the class."""
    if priors is None or isinstance(priors, str):
        weights = np.ones(len(sizes)) if priors == "uniform" else sizes
    elif isinstance(priors, Mapping):
        by_text = {str(label): value for label, value in priors.items()}
        weights = np.array([by_text[str(label)] for label in classes.tolist()], dtype=np.float64)
    else:
        weights = np.asarray(priors, dtype=np.float64)
    return np.asarray(weights / weights.sum())


def class_index(kind: str, classes: Array, labels: npt.ArrayLike) -> list[Index]:
    """The class of each row as a number, for each problem: one, or a problem for each task; -1 where it is unknown."""
    values = np.asarray(labels)
    if kind == "multilabel":
        mask = is_known(values)
        return [np.where(k, column, -1).astype(np.int64) for k, column in zip(mask.T, values.T, strict=True)]
    return [index_of(values, classes)]


def index_of(labels: Array, classes: Array) -> Index:
    """The number of each label among the sorted classes.

    Raises
    ------
    InputError
        If a label is none of them.
    """
    index = np.minimum(np.searchsorted(classes, labels), len(classes) - 1)
    unknown = labels[classes[index] != labels]
    if len(unknown):
        msg = (
            f"the labels hold {unknown.tolist()[0]!r}, which is none of the classes learnt, {classes.tolist()}; leave "
            "those rows out, or train on some"
        )
        raise InputError(msg)
    return index


def class_weights(targets: Targets) -> list[Float] | None:
    """Mean weight of the training rows of each class, (classes,), for each problem; None without weights."""
    if targets.weights is None:
        return None
    return [size / count for size, count in zip(targets.sizes, replace(targets, weights=None).sizes, strict=True)]


@dataclass(frozen=True, eq=False)
class DecisionRule:
    """A decision rule: Fisher's rule and the largest score together, for each problem.

    Of scores s the probability of class k is softmax_k of log q_k + a log p(s | k) + b_k s_k, where q are the prior
    probabilities, log p the functions of `Discriminant`, and a and b are those of `dmkl.numerics.rule_weights.weigh`.
    The decision is the class of the largest. Of two classes with one score s the last term is −bs and bs.

    The rules of several fits are one object if scores have a first axis of fits, (fits, rows, columns); its numbers
    then have that axis after the one of the problems. It is not saved.

    Parameters
    ----------
    kind
        "binary", "multiclass" or "multilabel".
    discriminants
        One for each problem: one, or one for each task.
    priors
        q, (problems, classes).
    sharpness
        a, (problems,).
    direct
        b, (columns,) for each problem. None in models that an earlier version saved: they decide by
        a (log q_k + log p(s | k)).
    learnt_on
        The rows whose scores this was learnt from; empty for training scores.
    """

    kind: str
    discriminants: tuple[Discriminant, ...]
    priors: Float
    sharpness: Float
    direct: tuple[Float, ...] | None
    learnt_on: str

    @classmethod
    def learn(
        cls,
        kind: str,
        scores: Sequence[Float],
        index: Sequence[Index],
        priors: Sequence[Float],
        learnt_on: str,
        weights: Sequence[Float | None] | None = None,
        units: Sequence[Float] | None = None,
        *,
        ordered: bool = True,
    ) -> DecisionRule:
        """Learn from scores (rows, columns) of rows with known classes and weights (rows,), for each problem.

        `units` (columns,) for each problem are the factors by which these scores differ from those of the learner, of
        which the largest counts. Decisions need no `ordered` coordinates.
        """
        discriminants, sharp, direct = [], [], []
        weights = [None] * len(scores) if weights is None else weights
        units = [np.ones(part.shape[-1]) for part in scores] if units is None else units
        for part, classes, q, d, unit in zip(scores, index, priors, weights, units, strict=True):
            n_classes = q.shape[-1]
            of_all = whitened(part, classes, n_classes, d)
            discriminants.append(Discriminant.of_whitened(of_all, q) if ordered else Discriminant.unordered(of_all))
            left_out = left_out_densities(part, classes, n_classes, d, of_all)
            scores_in_units = part / unit[..., None, :]
            a, b = weigh(left_out, directions(scores_in_units), classes, d)
            if n_classes == 2:
                # Fisher's functions of one score grow with the class means. Where the mean of the second class is the
                # lower one they would reverse the score, and left-out rows have no use for it: the priors decide.
                reverses = np.asarray(of_all.means[..., 1, 0] <= of_all.means[..., 0, 0])
                least = LEAST / np.maximum(scores_in_units.std(axis=(-2, -1)), np.finfo(np.float64).tiny)
                a, b = np.where(reverses, 0.0, a), np.where(reverses, np.maximum(b, least), b)
            sharp.append(a)
            direct.append(b[..., None] / unit)
        return cls(kind, tuple(discriminants), np.array(priors), np.array(sharp), tuple(direct), learnt_on)

    def scaled(self, factors: Sequence[Float]) -> DecisionRule:
        """The same rule for scores s, learnt from scores s·factor: one factor for each column of each problem."""
        discriminants = tuple(
            discriminant.scaled(factor) for discriminant, factor in zip(self.discriminants, factors, strict=True)
        )
        direct = None if self.direct is None else tuple(b * f for b, f in zip(self.direct, factors, strict=True))
        return replace(self, discriminants=discriminants, direct=direct)

    def decision(self, scores: Float) -> Float:
        """Decision values: (rows, classes), the largest wins; (rows, 1) or (rows, tasks), by the sign."""
        logits = self._logits(scores)
        if self.kind == "multiclass":
            return logits[0]
        return np.stack([values[..., 1] - values[..., 0] for values in logits], axis=-1)

    def probabilities(self, scores: Float) -> Float:
        """(rows, classes), of the second class of each task (rows, tasks)."""
        posteriors = [softmax(logits, axis=-1) for logits in self._logits(scores)]
        return (
            np.stack([values[..., 1] for values in posteriors], axis=-1) if self.kind == "multilabel" else posteriors[0]
        )

    def coordinates(self, scores: Float) -> Float:
        """Discriminant coordinates of all problems side by side, (rows, r)."""
        parts = zip(self.discriminants, by_problem(self.kind, scores), self.priors, strict=True)
        return np.concatenate([discriminant.coordinates(part, q) for discriminant, part, q in parts], axis=-1)

    def _logits(self, scores: Float) -> list[Float]:
        logits = []
        for k, (discriminant, part) in enumerate(zip(self.discriminants, by_problem(self.kind, scores), strict=True)):
            slopes, constants = discriminant.functions()
            sharpness, prior = self.sharpness[k][..., None], np.log(self.priors[k])
            if self.direct is None:
                slopes, constants = sharpness[..., None] * slopes, sharpness * (constants + prior)
            else:
                diagonal = self.direct[k][..., None] * np.eye(part.shape[-1])
                slopes, constants = sharpness[..., None] * slopes + directions(diagonal), sharpness * constants + prior
            logits.append(part @ slopes + constants[..., None, :])
        return logits

    # --- saving --------------------------------------------------------------------------------------------------

    def arrays(self) -> dict[str, Any]:
        """Everything but the priors as arrays with their dimensions, by name."""
        arrays = {
            "decision_means": (
                ("decision_problem", "label", "decision_column"),
                np.stack([discriminant.means for discriminant in self.discriminants]),
            ),
            "decision_scalings": (
                ("decision_problem", "decision_column", "discriminant"),
                np.stack([discriminant.scalings for discriminant in self.discriminants]),
            ),
            "decision_sharpness": (("decision_problem",), self.sharpness),
        }
        if self.direct is not None:
            arrays["decision_direct"] = (("decision_problem", "decision_column"), np.stack(self.direct))
        return arrays

    @classmethod
    def of_arrays(cls, kind: str, arrays: dict[str, Array], priors: Float, learnt_on: str) -> DecisionRule:
        """The rule that `arrays` has written."""
        pairs = zip(arrays["decision_means"], arrays["decision_scalings"], strict=True)
        discriminants = tuple(Discriminant(means, scalings) for means, scalings in pairs)
        direct = tuple(arrays["decision_direct"]) if "decision_direct" in arrays else None
        return cls(kind, discriminants, priors, arrays["decision_sharpness"], direct, learnt_on)


def by_problem(kind: str, scores: Float) -> list[Float]:
    """The scores of each problem."""
    return [scores[..., k : k + 1] for k in range(scores.shape[-1])] if kind == "multilabel" else [scores]


def predicted_labels(kind: str, classes: Array, decision: Array) -> Array:
    """Labels that a decision means: the largest of several classes, the sign for two classes and for tasks.

    `decision` is (rows, classes), (rows, tasks), or (rows,) for two classes.
    """
    if kind == "multilabel":
        return (decision > 0).astype(np.int64)
    index = (decision > 0).astype(np.int64) if kind == "binary" else np.argmax(decision, axis=1)
    return np.asarray(classes[index])


_FEWEST = 2
"""Rows of each class that a rule needs."""


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Scores of rows that a fit has not been trained on, from which a decision rule is learnt.

    Parameters
    ----------
    scores
        (rows, columns).
    index
        The class of each row, for each problem.
    by_class
        Weight of the rows of each class, (classes,), for each problem; one where None.
    units
        Factors by which these scores differ from those of the learner, (columns,) for each problem; one where None.
    """

    scores: Float
    index: Sequence[Index]
    by_class: Sequence[Float] | None = None
    units: Sequence[Float] | None = None

    def scaled(self, units: Sequence[Float], by_class: Sequence[Float] | None) -> HeldOut:
        """The same rows with scores times `units`, in double precision, and with weights of classes."""
        scores = np.multiply(self.scores, np.concatenate(units), dtype=np.float64)
        return replace(self, scores=scores, by_class=by_class, units=units)

    def learn_rule(self, kind: str, priors: Sequence[Float], learnt_on: str) -> DecisionRule:
        """The rule that is learnt from the rows whose class is known; see `DecisionRule.learn`."""
        masks = [index >= 0 for index in self.index]
        parts = [part[mask] for part, mask in zip(by_problem(kind, self.scores), masks, strict=True)]
        index = [index[mask] for index, mask in zip(self.index, masks, strict=True)]
        weights = None if self.by_class is None else [d[i] for d, i in zip(self.by_class, index, strict=True)]
        return DecisionRule.learn(kind, parts, index, priors, learnt_on, weights, self.units)

    def enough_for(self, priors: Sequence[Float] | Float) -> bool:
        """Whether every class of every problem has enough rows to learn a rule."""
        counts = [np.bincount(i[i >= 0], minlength=len(q)).min() for i, q in zip(self.index, priors, strict=True)]
        return bool(min(counts) >= _FEWEST)


def joined(folds: Sequence[HeldOut]) -> HeldOut:
    """The rows of several folds together."""
    index = [np.concatenate(parts) for parts in zip(*(fold.index for fold in folds), strict=True)]
    return replace(folds[0], scores=np.concatenate([fold.scores for fold in folds]), index=index)
