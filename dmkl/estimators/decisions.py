"""Labels and probabilities from scores: a decision rule with prior probabilities, learnt from out-of-sample scores.

A `Decider` is learnt from scores of rows that the learner was not trained on: the leave-one-out scores of a fit, the
held-out rows of a search (`HeldOut`), or rows that are given to `calibrate`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import xarray as xr
from scipy.special import softmax

from dmkl.arrays import Array, Float, Index, plain_repr
from dmkl.errors import InputError
from dmkl.estimators.plan import FitOutcome
from dmkl.numerics.discriminant import (
    Discriminant,
    directions,
    excess,
    leave_one_out,
    left_out_densities,
    whitened,
)
from dmkl.numerics.fisher import Targets
from dmkl.numerics.rule_weights import LEAST, weigh
from dmkl.passes.blas import one_blas_thread
from dmkl.unknown import is_known
from dmkl.variables import describe

__all__ = [
    "GIVEN",
    "LEFT_OUT",
    "SEARCHED",
    "Calibrated",
    "Decider",
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
    "regression_scores",
    "regression_units",
]


LEFT_OUT = "leave-one-out scores of the training rows"
SEARCHED = "held-out rows of the folds of a search"
GIVEN = "rows that were given to calibrate"
"""What probabilities can be calibrated on."""


class NotCalibratedError(InputError, AttributeError):
    """There are no honest scores that probabilities could be calibrated on."""


Priors = Literal["empirical", "uniform"] | Sequence[float] | Mapping[Any, float] | None
"""Prior probabilities of the classes, as in scikit-learn's LinearDiscriminantAnalysis, or by class."""


def check_priors(priors: Any, classes: Array | None = None) -> None:
    """Refuse prior probabilities that are none.

    Raises
    ------
    InputError
        If they are no word that is known, not positive, do not sum to one, or are not one for each class.
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
        known, given = [set(map(str, some)) for some in (classes.tolist(), priors)]
        if known != given or len(given) < len(priors):
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
    found = np.asarray(labels)
    if kind == "multilabel":
        known = is_known(found)
        return [np.where(k, column, -1).astype(np.int64) for k, column in zip(known.T, found.T, strict=True)]
    return [index_of(found, classes)]


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
    """What a training row of each class counts on average, (classes,), for each problem; None where all count once."""
    if targets.weights is None:
        return None
    return [size / count for size, count in zip(targets.sizes, replace(targets, weights=None).sizes, strict=True)]


def regression_units(sizes: Sequence[Float], ridges: Sequence[float]) -> list[Float]:
    """What turns scores Σ_j β_j K_j α of each problem into g = P(k | x) − π_k: a factor for each column.

    g = s·f with s of `dmkl.numerics.discriminant.excess` and f the scores divided by 2λ.
    """
    return [excess(size) / (2.0 * lam) for size, lam in zip(sizes, ridges, strict=True)]


def regression_scores(
    targets: Targets, duals: Sequence[Float], inverses: Sequence[Float | None], null_vectors: Sequence[Float | None]
) -> list[Float]:
    """The estimates g = P(k | x) − π_k of the training rows of each problem: those whose class is known.

    By the regression on all other rows where the diagonal of A⁻¹ is known for every problem; otherwise by the
    regression on all rows, s(H − ½D⁻¹α), whose residuals are smaller than those of new rows.

    Parameters
    ----------
    targets
        What was learnt, with weights d of the rows where they have some.
    duals
        α of each problem, over all training rows, (m, columns).
    inverses, null_vectors
        Of each problem, over the rows whose class is known: the diagonal of A⁻¹, and N, as
        `dmkl.numerics.discriminant.leave_one_out` takes them.
    """
    n_classes, estimates = len(targets.classes), []
    indexes = class_index(targets.kind, targets.classes, targets.labels)
    left_out = all(inverse is not None for inverse in inverses)
    parts = zip(targets.problems, duals, inverses, null_vectors, indexes, targets.sizes, strict=True)
    for k, (h, alpha, inverse, null, index, sizes) in enumerate(parts):
        d = None if targets.weights is None else targets.weights[k]
        if len(h) < len(alpha):
            alpha, index = alpha[index >= 0], index[index >= 0]
        if left_out and inverse is not None:
            scores = leave_one_out(alpha, inverse, index, n_classes, null, d)
        else:
            scores = excess(sizes) * (h - 0.5 * (alpha if d is None else alpha / d[:, None]))
        estimates.append(scores.astype(alpha.dtype, copy=False))
    return estimates


@dataclass(frozen=True, eq=False)
class Decider:
    """How scores become decisions and probabilities: Fisher's rule and the largest score together, for each problem.

    Of scores s the probability of class k is softmax_k of log q_k + a log p(s | k) + b_k s_k, where q are the prior
    probabilities, log p the functions of `Discriminant`, and a and b are those of `dmkl.numerics.rule_weights.weigh`.
    The decision is the class of the largest. Of two classes with one score s the last term is −bs and bs.

    Rules of several machines can be one decider, learnt from scores (machines, rows, columns): it decides about such
    scores, and its numbers have that axis behind the one of the problems. It is not saved.

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
        b, (columns,) for each problem. None in models that were saved before scores counted themselves: they decide by
        a (log q_k + log p(s | k)).
    learnt_on
        What the scores were of that this was learnt from; empty where they were training scores.
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
    ) -> Decider:
        """Learn from scores (rows, columns) of rows with known classes and weights (rows,), for each problem.

        `units` (columns,) for each problem say of what multiples of the machine's own scores, whose largest counts,
        these scores are. Decisions do without coordinates that are `ordered`.
        """
        found, sharp, direct = [], [], []
        weights = [None] * len(scores) if weights is None else weights
        units = [np.ones(part.shape[-1]) for part in scores] if units is None else units
        for part, classes, q, d, unit in zip(scores, index, priors, weights, units, strict=True):
            n_classes = q.shape[-1]
            of_all = whitened(part, classes, n_classes, d)
            found.append(Discriminant.of_whitened(of_all, q) if ordered else Discriminant.unordered(of_all))
            left_out = left_out_densities(part, classes, n_classes, d, of_all)
            own = part / unit[..., None, :]
            a, b = weigh(left_out, directions(own), classes, d)
            if n_classes == 2:
                # Fisher's functions of one score grow with the class means. Where the mean of the second class is the
                # lower one they would reverse the score, and left-out rows have no use for it: the priors decide.
                reverses = np.asarray(of_all.means[..., 1, 0] <= of_all.means[..., 0, 0])
                least = LEAST / np.maximum(own.std(axis=(-2, -1)), np.finfo(np.float64).tiny)
                a, b = np.where(reverses, 0.0, a), np.where(reverses, np.maximum(b, least), b)
            sharp.append(a)
            direct.append(b[..., None] / unit)
        return cls(kind, tuple(found), np.array(priors), np.array(sharp), tuple(direct), learnt_on)

    def scaled(self, factors: Sequence[Float]) -> Decider:
        """The same for scores of which those it was learnt from are multiples, column by column of each problem."""
        found = tuple(one.scaled(factor) for one, factor in zip(self.discriminants, factors, strict=True))
        direct = None if self.direct is None else tuple(b * f for b, f in zip(self.direct, factors, strict=True))
        return replace(self, discriminants=found, direct=direct)

    def decision(self, scores: Float) -> Float:
        """What labels are read from: (rows, classes), the largest wins; (rows, 1) or (rows, tasks), by the sign."""
        logits = self._logits(scores)
        if self.kind == "multiclass":
            return logits[0]
        return np.stack([each[..., 1] - each[..., 0] for each in logits], axis=-1)

    def probabilities(self, scores: Float) -> Float:
        """(rows, classes), of the second class of each task (rows, tasks)."""
        found = [softmax(logits, axis=-1) for logits in self._logits(scores)]
        return np.stack([each[..., 1] for each in found], axis=-1) if self.kind == "multilabel" else found[0]

    def coordinates(self, scores: Float) -> Float:
        """Discriminant coordinates of all problems side by side, (rows, r)."""
        parts = zip(self.discriminants, by_problem(self.kind, scores), self.priors, strict=True)
        return np.concatenate([one.coordinates(part, q) for one, part, q in parts], axis=-1)

    def _logits(self, scores: Float) -> list[Float]:
        found = []
        for k, (one, part) in enumerate(zip(self.discriminants, by_problem(self.kind, scores), strict=True)):
            slopes, constants = one.functions()
            sharpness, prior = self.sharpness[k][..., None], np.log(self.priors[k])
            if self.direct is None:
                slopes, constants = sharpness[..., None] * slopes, sharpness * (constants + prior)
            else:
                own = self.direct[k][..., None] * np.eye(part.shape[-1])
                slopes, constants = sharpness[..., None] * slopes + directions(own), sharpness * constants + prior
            found.append(part @ slopes + constants[..., None, :])
        return found

    # --- saving --------------------------------------------------------------------------------------------------

    def arrays(self) -> dict[str, Any]:
        """Everything but the priors as arrays with their dimensions, by name."""
        found = {
            "decision_means": (
                ("decision_problem", "label", "decision_column"),
                np.stack([one.means for one in self.discriminants]),
            ),
            "decision_scalings": (
                ("decision_problem", "decision_column", "discriminant"),
                np.stack([one.scalings for one in self.discriminants]),
            ),
            "decision_sharpness": (("decision_problem",), self.sharpness),
        }
        if self.direct is not None:
            found["decision_direct"] = (("decision_problem", "decision_column"), np.stack(self.direct))
        return found

    @classmethod
    def of_arrays(cls, kind: str, arrays: dict[str, Array], priors: Float, learnt_on: str) -> Decider:
        """What `arrays` told."""
        pairs = zip(arrays["decision_means"], arrays["decision_scalings"], strict=True)
        found = tuple(Discriminant(means, scalings) for means, scalings in pairs)
        direct = tuple(arrays["decision_direct"]) if "decision_direct" in arrays else None
        return cls(kind, found, priors, arrays["decision_sharpness"], direct, learnt_on)


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


class Calibrated:
    """Labels and probabilities from scores, by a `Decider` that a fit, a search or `calibrate` has learnt."""

    priors: Priors = None
    kind_: Any
    classes_: Array
    tasks_: Array | None
    train_samples_: Array
    decider_: Decider
    priors_: Float
    calibrated_on_: str | None
    _DECIDES = False
    """Whether labels follow the decider, or the scores alone."""

    decision_function: Callable[..., xr.DataArray]
    _check_fitted: Callable[[], None]
    _truth: Callable[..., Array]
    _weighted: Callable[..., Targets]

    def labels_of(self, scores: Array) -> Array:
        """Labels that scores of `decision_function` mean, (samples,) or (samples, classes or tasks); see `predict`."""
        return predicted_labels(self.kind_, self.classes_, self.decisions_of(scores))

    def decisions_of(self, scores: Array) -> Float:
        """What labels are read from, in the shape of the scores: the largest class wins, or the second by the sign.

        The scores themselves for machines with margins; for Fisher discriminants log posterior probabilities up to a
        constant for each sample, of two classes their difference.
        """
        if not (self._DECIDES and hasattr(self, "decider_")):
            return scores
        return self.decider_.decision(scores.reshape(len(scores), -1)).reshape(scores.shape)

    @one_blas_thread
    def predict_proba(self, K: Any = None, **new: Any) -> xr.DataArray:
        """Calibrated probabilities of the row samples, (sample, class); (sample, task) for a multilabel problem.

        What they were calibrated on, rows that the machine was not trained on, is told by `calibrated_on_`. See
        `calibrate`.

        Parameters
        ----------
        K, **new
            As in `decision_function`.

        Raises
        ------
        NotCalibratedError
            If there was nothing to calibrate on: an InputError.
        """
        self._check_calibrated()
        return self.probabilities_of(self.decision_function(K, **new))

    def probabilities_of(self, scores: xr.DataArray) -> xr.DataArray:
        """Calibrated probabilities that scores of `decision_function` mean; see `predict_proba`."""
        self._check_calibrated()
        found = self.decider_.probabilities(scores.values.reshape(len(scores), -1))
        dim, labels = ("task", self.tasks_) if self.kind_ == "multilabel" else ("class", self.classes_)
        coords = {"sample": scores.sample.values, dim: labels}
        return describe(xr.DataArray(found, dims=("sample", dim), coords=coords, name="probability"))

    @one_blas_thread
    def calibrate(self, K: Any = None, y: npt.ArrayLike | None = None, *, unknown: Any = None, **new: Any) -> Self:
        """Learn from rows that were not trained on what scores mean.

        The class means of their scores and the covariance within classes give log densities, as in linear discriminant
        analysis. With these and the scores themselves, both weighted for the least log loss, probabilities follow by
        Bayes' rule. The labels that a Fisher discriminant predicts follow from the same; those of a machine with
        margins stay as they are.

        Parameters
        ----------
        K, **new
            As in `decision_function`.
        y
            The true labels; those of `K` where missing.
        unknown
            A code of labels that are unknown, as in `fit`.

        Raises
        ------
        InputError
            If a row was trained on, a label is none of the classes, or a class has fewer than two rows.
        """
        scores = self.decision_function(K, **new)
        truth = self._truth(K, y, "calibrate", unknown)
        trained = scores.sample.values[np.isin(scores.sample.values, self.train_samples_)]
        if len(trained):
            msg = (
                f"calibrate takes rows that the model was not trained on, and sample {str(trained[0])!r} is one of its "
                f"training samples ({len(trained)} are); leave them out: their scores are fitted to their labels"
            )
            raise InputError(msg)
        return self._calibrate(scores.values, np.asarray(truth), GIVEN)

    # --- what a learner says of itself ---------------------------------------------------------------------------

    def _decider(self, found: FitOutcome) -> Decider | None:
        """How labels are read from scores, where that is more than the largest of them or their sign."""
        return None

    def _units(self, targets: Targets) -> list[Float]:
        """For each problem what turns its scores, column by column, into such as do not depend on the training set."""
        return [np.ones(len(targets.classes) if targets.kind == "multiclass" else 1) for _ in targets.problems]

    # --- learning what scores mean -------------------------------------------------------------------------------

    def _calibrate(self, scores: Float, labels: Array, learnt_on: str) -> Self:
        index = class_index(self.kind_, self.classes_, labels)
        for k, one in enumerate(index):
            counts = np.bincount(one[one >= 0], minlength=len(self.classes_))
            if counts.min() < 2:
                of_task = f" of task {self.tasks_[k]}" if self.kind_ == "multilabel" and self.tasks_ is not None else ""
                msg = (
                    f"calibration needs two rows of each class, and class {self.classes_.tolist()[counts.argmin()]!r}"
                    f"{of_task} has {counts.min()}; give more rows"
                )
                raise InputError(msg)
        known = HeldOut(scores.reshape(len(scores), -1), index, np.arange(len(scores)), len(scores))
        self._set_decider(known.decider(self.kind_, list(self.priors_), learnt_on))
        return self

    def _calibrate_on(self, folds: Sequence[HeldOut], targets: Sequence[Targets], own: Targets) -> None:
        """Learn from the validation rows of a search what scores mean, where the fit has not and there are enough.

        `targets` are what the folds have learnt, `own` what this model has.
        """
        if any(not np.array_equal(each.classes, own.classes) for each in targets):
            return
        known = joined([self._comparable(fold, each) for fold, each in zip(folds, targets, strict=True)])
        if self.calibrated_on_ is None and known.enough_for(self.priors_):
            found = known.decider(self.kind_, list(self.priors_), SEARCHED)
            self._set_decider(found.scaled(self._units(own)))

    def _comparable(self, fold: HeldOut, targets: Targets) -> HeldOut:
        """With scores in units that do not depend on the training set, and rows that count as in training."""
        weighted = self._weighted(targets)
        units = self._units(weighted)
        return fold.scaled(units, class_weights(weighted))

    def _set_decider(self, decider: Decider | None) -> None:
        if decider is not None:
            self.decider_ = decider
        self.calibrated_on_ = (decider.learnt_on or None) if decider is not None else None

    def _check_calibrated(self) -> None:
        self._check_fitted()
        if getattr(self, "calibrated_on_", None) is None:
            msg = (
                f"this {type(self).__name__} has no calibrated probabilities: nothing that it was not trained on is at "
                "hand. Call calibrate(K[held_out, train], y) with rows that were left out, choose it with "
                "dmkl.search, or fit a Fisher discriminant with solver='direct', which leaves each row out by itself"
            )
            raise NotCalibratedError(msg)
