"""Labels and probabilities from scores: a decision rule with prior probabilities, learnt from out-of-sample scores.

A `DecisionRule` is learnt from scores of rows that the learner was not trained on: the leave-one-out scores of a fit,
folds of its training rows, the held-out rows of a search, or rows that are given to `calibrate` (`HeldOut`).

The weights of Fisher's functions and of the scores (`dmkl.numerics.discriminant`) have the least log loss. The rules
of many machines are learnt together: all take Newton's steps at once, in single precision, and the last in double.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import xarray as xr
from scipy.special import softmax

from dmkl.arrays import Array, Float, Index, is_known, plain_repr
from dmkl.errors import InputError, refuse
from dmkl.learners.checks import by_name
from dmkl.learners.conformal import by_row
from dmkl.numerics.discriminant import Discriminant, directions, left_out_densities, whitened
from dmkl.numerics.fisher import Targets

LEFT_OUT = "leave-one-out scores of the training rows"
INTERPOLATED = f"{LEFT_OUT}, approximate"
IN_FOLDS = "training rows that a fold of them left out"
SEARCHED = "held-out rows of the folds of a search"
GIVEN = "rows that were given to calibrate"
"""Rows that probabilities are calibrated on."""
Decision = Literal["means", "largest"]
"""How scores become labels: by class means of out-of-sample scores with the scores themselves, or by the largest."""


class NotCalibratedError(InputError, AttributeError):
    """There are no out-of-sample scores to calibrate probabilities on."""


Priors = Literal["empirical", "uniform"] | Sequence[float] | Mapping[Any, float] | None
"""Prior probabilities of the classes, as in scikit-learn's LinearDiscriminantAnalysis, or by class."""


def prior_probabilities(priors: Priors, classes: Array, sizes: Float) -> Float:
    """q, (classes,), for classes of these sizes in training; those of a mapping by the text of the class.

    InputError unless `priors` is a word, or positive numbers of sum one.
    """
    if priors is None or (isinstance(priors, str) and priors in ("empirical", "uniform")):
        weights = np.ones(len(sizes)) if priors == "uniform" else sizes
        return np.asarray(weights / weights.sum())
    priors = by_name(priors)
    rule = "priors must be 'empirical' (None), 'uniform', or a positive number for each class that sum to one"
    try:
        values = np.asarray(list(priors.values()) if isinstance(priors, Mapping) else priors, dtype=np.float64)
    except (ValueError, TypeError) as error:
        refuse(f"{rule}; got {plain_repr(priors)}", error)
    if values.ndim != 1 or not (values > 0).all() or abs(values.sum() - 1.0) > 1e-5:
        refuse(f"{rule}; got {plain_repr(priors)}, whose sum is {values.sum():g}")
    if isinstance(priors, Mapping):
        by_text = dict(zip(map(str, priors), values, strict=True))
        if set(map(str, classes.tolist())) != set(by_text) or len(by_text) < len(priors):
            refuse(
                f"priors holds numbers for {plain_repr(list(priors))}, and the classes are {classes.tolist()}; give "
                "one for each"
            )
        values = np.array([by_text[str(label)] for label in classes.tolist()])
    elif len(values) != len(classes):
        n = len(classes)
        refuse(f"priors holds {len(values)} numbers and there are {n} classes; give one for each, classes sorted")
    return np.asarray(values / values.sum())


def class_index(kind: str, classes: Array, labels: npt.ArrayLike) -> list[Index]:
    """The class of each row as a number, for each problem: one, or a problem for each task; -1 where it is unknown."""
    values = np.asarray(labels)
    if kind == "multilabel":
        mask = is_known(values)
        return [np.where(k, column, -1).astype(np.int64) for k, column in zip(mask.T, values.T, strict=True)]
    return [index_of(values, classes)]


def index_of(labels: Array, classes: Array, *, all_learnt: bool = True) -> Index:
    """The number of each label among the sorted classes, −1 of one that is none of them: InputError if `all_learnt`."""
    index = np.minimum(np.searchsorted(classes, labels), len(classes) - 1)
    learnt = np.asarray(classes[index] == labels)
    if all_learnt and not learnt.all():
        refuse(
            f"the labels hold {labels[~learnt].tolist()[0]!r}, which is none of the classes learnt, "
            f"{classes.tolist()}; leave those rows out, or train on some"
        )
    return np.where(learnt, index, -1)


def class_weights(targets: Targets) -> list[Float] | None:
    """Mean weight of the training rows of each class, (classes,), for each problem; None without weights."""
    if targets.weights is None:
        return None
    return [size / count for size, count in zip(targets.sizes, replace(targets, weights=None).sizes, strict=True)]


@dataclass(frozen=True, eq=False)
class DecisionRule:
    """A decision rule: Fisher's rule and the largest score together, for each problem.

    Of scores s the probability of class k is softmax_k of log q_k + a log p(s | k) + b_k s_k, where q are the prior
    probabilities, log p the functions of `Discriminant`, and a and b are those of `dmkl.learners.decisions.weigh`.
    The decision is the class of the largest. Of two classes with one score s the last term is −bs and bs.

    The rules of several fits are one object if scores have a first axis of fits, (fits, rows, columns); its numbers
    then have that axis after the one of the problems. It is not saved.

    `kind` is "binary", "multiclass" or "multilabel", which has a problem for each task; others have one. `priors` are
    q, (problems, classes), `sharpness` a, (problems,), and `direct` b, (columns,) for each problem. It is None in
    models that an earlier version saved: they decide by a (log q_k + log p(s | k)). `learnt_on` names the rows whose
    scores this was learnt from; it is empty for training scores. `nonconformity` has one minus the probability of the
    class of each of these rows, by the class means and the covariance of the others (`dmkl.learners.conformal`).
    """

    kind: str
    discriminants: tuple[Discriminant, ...]
    priors: Float
    sharpness: Float
    direct: tuple[Float, ...] | None
    learnt_on: str
    nonconformity: xr.Dataset | None = None

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
        groups: Sequence[Array] | None = None,
        ordered: bool = True,
    ) -> DecisionRule:
        """Learn from scores (rows, columns) of rows with known classes and weights (rows,), for each problem.

        `units` (columns,) for each problem are the factors by which these scores differ from those of the learner, of
        which the largest counts. `groups` are those of the rows. Decisions need no `ordered` coordinates.
        """
        discriminants, sharp, direct, improbable = [], [], [], []
        weights = [None] * len(scores) if weights is None else weights
        units = [np.ones(part.shape[-1]) for part in scores] if units is None else units
        for part, classes, q, d, unit in zip(scores, index, priors, weights, units, strict=True):
            n_classes = q.shape[-1]
            of_all = whitened(part, classes, n_classes, d)
            discriminants.append(Discriminant.of(of_all, q) if ordered else Discriminant.unordered(of_all))
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
            if part.ndim == 2:
                p = softmax(a * left_out + b * directions(scores_in_units) + np.log(q), axis=1)
                improbable.append(1.0 - p[np.arange(len(classes)), classes])
        nonconformity = None
        if improbable:
            problem = np.repeat(np.arange(len(index)), list(map(len, index)))
            group = np.arange(len(problem)) if groups is None else np.concatenate(groups)
            nonconformity = by_row(np.concatenate(improbable), problem, np.concatenate(index), group, learnt_on)
        parts = tuple(discriminants), np.array(priors), np.array(sharp), tuple(direct)
        return cls(kind, *parts, learnt_on, nonconformity)

    def scaled(self, factors: Sequence[Float]) -> DecisionRule:
        """The same rule for scores s, learnt from scores s·factor: one factor for each column of each problem."""
        discriminants = tuple(of.scaled(factor) for of, factor in zip(self.discriminants, factors, strict=True))
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
        if self.kind != "multilabel":
            return posteriors[0]
        return np.stack([values[..., 1] for values in posteriors], axis=-1)

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
        means, scalings = ([getattr(each, name) for each in self.discriminants] for name in ("means", "scalings"))
        problem, column = "decision_problem", "decision_column"
        arrays = {
            "decision_means": ((problem, "label", column), np.stack(means)),
            "decision_scalings": ((problem, column, "discriminant"), np.stack(scalings)),
            "decision_sharpness": ((problem,), self.sharpness),
        }
        if self.direct is not None:
            arrays["decision_direct"] = ((problem, column), np.stack(self.direct))
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


def predicted_numbers(decisions: Array, n_classes: int) -> Index:
    """Numbers of the classes that decisions mean: the largest on the last axis, or the sign for two and for tasks."""
    return (decisions > 0).astype(np.int64) if n_classes == 2 else np.argmax(decisions, axis=-1)


def predicted_labels(classes: Array, decision: Array) -> Array:
    """Labels that a decision means, (rows,), or (rows, tasks)."""
    return np.asarray(classes[predicted_numbers(decision, len(classes))])


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Scores of rows that a fit has not been trained on, (rows, columns), from which a decision rule is learnt.

    For each problem: `index` is the class of each row, `by_class` the weight of the rows of each class, (classes,), and
    `units` the factors by which these scores differ from those of the learner, (columns,); both are one where None.
    `groups` are the groups of the rows, each its own where None.
    """

    scores: Float
    index: Sequence[Index]
    by_class: Sequence[Float] | None = None
    units: Sequence[Float] | None = None
    groups: Array | None = None

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
        groups = None if self.groups is None else [self.groups[mask] for mask in masks]
        return DecisionRule.learn(kind, parts, index, priors, learnt_on, weights, self.units, groups=groups)

    def enough_for(self, priors: Sequence[Float] | Float) -> bool:
        """Whether every class of every problem has the two rows that a rule needs."""
        counts = [np.bincount(i[i >= 0], minlength=len(q)).min() for i, q in zip(self.index, priors, strict=True)]
        return bool(min(counts) >= 2)


def joined(folds: Sequence[HeldOut]) -> HeldOut:
    """The rows of several folds together."""
    index = [np.concatenate(parts) for parts in zip(*(fold.index for fold in folds), strict=True)]
    of_folds = [fold.groups for fold in folds if fold.groups is not None]
    groups = np.concatenate(of_folds) if of_folds else None
    return replace(folds[0], scores=np.concatenate([fold.scores for fold in folds]), index=index, groups=groups)


# --- weights of the rule ----------------------------------------------------------------------------------------------

_Loss = Callable[[Float, Index], tuple[Float, Float, Float]]
LEAST = 1e-6
"""The least weight of Fisher's functions, in standard deviations: a decision always has a reason."""
_SINGULAR = 1e-9  # The least share of the curvature that a step is taken along.
_MOST_STEPS, _ENOUGH, _SHORTEST = 100, 1e-4, 1e-6
"""Most of Newton's steps, the least share of the expected decrease, and the shortest share of a step."""
_ROUGH, _RESOLVED = 1e-8, 1e-14
"""The expected decrease whose step is the last, in single and in double precision."""


def weigh(densities: Float, scores: Float, index: Index, weights: Float | None = None) -> tuple[Float, Float]:
    """Find a, b ≥ 0 for which softmax_k(log π_k + a L_k + b f_k) has the least log loss, π the shares of the classes.

    Without mistakes the loss would fall for ever as a and b grow. So one more row is counted, which belongs to each
    class by its share and is spread over all rows: the loss of a certain decision is never zero (as in Platt:
    Probabilistic outputs for support vector machines, 1999).

    `densities` L and `scores` f are (…, rows, classes), of `dmkl.numerics.discriminant.left_out_densities` and
    `directions`, of rows that the machine was not trained on; rows of which L is NaN are left out, for all machines
    alike. `index` (rows,) has the class of each row, and `weights` (rows,) its weight, all alike where None.
    """
    *stack, n_rows, n_classes = densities.shape
    # (machines, classes, rows): sums over the classes, the shorter side, run along memory.
    parts = [values.mT.reshape(-1, n_classes, n_rows) for values in (densities, scores)]
    means = [part.mean(axis=1, keepdims=True) for part in parts]
    d = (np.ones(n_rows) if weights is None else weights).reshape(-1, n_rows)
    shares = d @ np.eye(n_classes)[index] / d.sum(axis=1, keepdims=True)
    kept = np.isfinite(means[0]).all(axis=(0, 1))
    if not kept.any():
        return np.ones(stack), np.zeros(stack)
    if not kept.all():
        parts, means = ([values[..., kept] for values in arrays] for arrays in (parts, means))
        d, index = d[:, kept], index[kept]
    spread = 1.0 / len(index)  # of the row more
    truth = (np.eye(n_classes)[:, index] + spread * shares[..., None]) / (1.0 + spread)
    counted, prior = d / d.sum(axis=1, keepdims=True), np.log(shares)[..., None]
    terms = np.stack([part - mean for part, mean in zip(parts, means, strict=True)], axis=1)
    flat = terms.reshape(len(terms), 2, -1)
    scale = np.sqrt(np.vecdot(flat, flat) / flat.shape[-1])  # standard deviations, in which coefficients count
    scale[scale == 0.0] = 1.0
    coefficients = np.zeros((len(terms), 2))
    # Exponentials and sums in single precision take half the time; they lead so near that two steps are left.
    for dtype, last in ((np.float32, _ROUGH), (np.float64, _RESOLVED)):
        loss = _log_loss(terms.astype(dtype, copy=False), scale, truth, counted, prior)
        rounding = 16.0 * float(np.finfo(dtype).eps)
        coefficients = _minimize(loss, coefficients, np.array([LEAST, 0.0]), last, rounding)
    a, b = (coefficients / scale).T.reshape(2, *stack)
    return a, b


def _log_loss(terms: Array, scale: Float, truth: Float, d: Float, prior: Float) -> _Loss:
    """The log loss that `weigh` makes least: a function of coefficients (n, 2) of n of the machines, and their numbers.

    It returns the loss up to a constant, (n,), its gradient and its curvature. `terms` are L and f, (machines, 2,
    classes, rows), whose mean over the classes is zero; losses have their precision. `truth` is the probability of each
    class for each row, (machines, classes, rows); d are the weights of the rows, (machines, rows), which sum to one;
    and `prior` are logarithms, (machines, classes, 1). All of these three may be one for all machines.
    """
    n_machines, precision = len(terms), terms.dtype
    # Sums of L and f over the rows, at their classes.
    weighted = (truth * d[:, None]).astype(precision).reshape(-1, 1, terms[0, 0].size)
    true = np.vecdot(terms.reshape(n_machines, 2, -1), weighted) / scale
    d, prior = d.astype(precision), prior.astype(precision)
    # New memory at every step costs as much as what is computed in it.
    room = np.empty((2, *terms[:, 0].shape), dtype=precision)

    def loss(coefficients: Float, which: Index) -> tuple[Float, Float, Float]:
        n, every = len(which), len(which) == n_machines
        of_some = terms if every else terms[which]
        weight, base = (part if every or len(part) == 1 else part[which] for part in (d, prior))
        likely, product = room[:, :n]
        rows, size = of_some.reshape(n, 2, -1), scale[which]
        if coefficients.any():
            np.matmul((coefficients / size)[:, None].astype(precision), rows, out=likely.reshape(n, 1, -1))
            # Probabilities of the classes times d, and the logarithms of the sums that normalize them.
            likely += base
            highest = likely.max(axis=1)
            likely -= highest[:, None]
            np.exp(likely, out=likely)
            total = likely.sum(axis=1)
            likely *= (weight / total)[:, None]
            logs = np.log(total) + highest
        else:  # at the start the probabilities are the shares of the classes
            likely, logs = np.exp(base) * weight[:, None], np.zeros((1, 1), dtype=precision)
        means, curvature = np.empty((n, 2, weight.shape[1]), dtype=precision), np.empty((n, 2, 2))
        for j in range(2):
            np.multiply(of_some[:, j], likely, out=product)
            product.sum(axis=1, out=means[:, j])
            for k in range(j + 1):
                curvature[:, j, k] = curvature[:, k, j] = np.vecdot(product.reshape(n, -1), rows[:, k])
        curvature -= np.vecdot((means / weight[:, None])[:, :, None], means[:, None])
        value = (weight * logs).sum(axis=1) - (coefficients * true[which]).sum(axis=1)
        gradient = means.sum(axis=2) / size - true[which]
        return value, gradient, curvature / (size[:, :, None] * size[:, None])

    return loss


def _minimize(function: _Loss, start: Float, low: Float, last: float, rounding: float) -> Float:
    """Minimize smooth convex functions of a few variables, each variable above its bound; (functions, variables).

    Newton's steps in the variables that are free, cut off at the bounds (Bertsekas: Projected Newton methods, SIAM
    Journal on Control and Optimization 20, 1982). All functions take them together, each until its own end.

    `function` returns values (n,), gradients (n, variables) and curvatures (n, variables, variables) of the functions
    of some numbers, at a point each. The step whose expected decrease is `last`, relative to one plus the value, is the
    last one. A rise by less than `rounding`, the relative error of the values, is none.
    """
    x, active = start.copy(), np.arange(len(start))
    value, gradient, curvature = (np.asarray(part, dtype=np.float64) for part in function(x, active))
    for _ in range(_MOST_STEPS):
        step = _newton_step(gradient[active], curvature[active], (x[active] > low) | (gradient[active] < 0.0))
        size = 1.0 + np.abs(value[active])
        going = (gradient[active] * step).sum(axis=1) > last * size
        x[active[~going]] = np.maximum(x[active[~going]] - step[~going], low)
        active, step, slack = active[going], step[going], rounding * size[going]
        if not len(active):
            break
        share, searching = 1.0, active
        while len(searching) and share >= _SHORTEST:
            trial = np.maximum(x[searching] - share * step, low)
            at_trial = function(trial, searching)
            least = _ENOUGH * (gradient[searching] * (x[searching] - trial)).sum(axis=1)
            kept = at_trial[0] <= value[searching] - least + slack
            for array, new in zip((x, value, gradient, curvature), (trial, *at_trial), strict=True):
                array[searching[kept]] = new[kept]
            searching, step, slack = searching[~kept], step[~kept], slack[~kept]
            share *= 0.5
        if len(searching):
            active = np.setdiff1d(active, searching)
    return x


def _newton_step(gradient: Float, curvature: Float, free: npt.NDArray[np.bool_]) -> Float:
    """The steps down, (functions, variables), in the variables that are free."""
    values, vectors = np.linalg.eigh(curvature * free[:, None] * free[..., None])
    # Where terms are multiples of one another the curvature is singular along the direction that changes nothing.
    kept = values > _SINGULAR * values[:, -1:]
    along = np.einsum("bi,bij->bj", gradient, vectors)
    along = np.divide(along, values, out=np.zeros_like(along), where=kept)
    return np.where(free, np.einsum("bij,bj->bi", vectors, along), 0.0)
