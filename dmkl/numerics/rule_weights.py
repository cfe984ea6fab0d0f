"""What Fisher's functions and the scores themselves count in a decision: the weights of least log loss.

See `dmkl.numerics.discriminant` for the decision. Rules of many machines are learnt together, by Newton's steps that
all of them take: in single precision as far as that goes, with the last one or two in double.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from dmkl.arrays import Array, Float, Index
from dmkl.numerics.rule_loops import put_moments, put_slopes

__all__ = ["LARGE", "LEAST", "weigh"]

LARGE = 2**17
"""Scores from which on compiled loops are used, which take a tenth of the time; loading them takes a while."""

_Loss = Callable[[Float, Index], tuple[Float, Float, Float]]
LEAST = 1e-6
"""The least weight of what decides, in standard deviations, so that something always does."""
_SINGULAR = 1e-9
"""The least share of the curvature that a step is taken along."""
_MOST_STEPS, _NOTHING, _ENOUGH, _SHORTEST = 100, 1e-8, 1e-4, 1e-6
"""Newton's steps at most, the promised decrease whose step is the last, the least share of a promise that counts as
kept, and the shortest share of a step."""
_CORRECTIONS, _RESOLVED = 5, 1e-14
"""Steps in double precision at most, with the curvature of single precision, and the promise whose step is the last."""
_ROUNDING = 16.0 * float(np.finfo(np.float32).eps)
"""What sums in single precision are exact to: no rise by less counts as one."""


def weigh(densities: Float, scores: Float, index: Index, weights: Float | None = None) -> tuple[Float, Float]:
    """Find a, b ≥ 0 for which softmax_k(log π_k + a L_k + b f_k) has the least log loss, π the shares of the classes.

    Where nothing is ever mistaken the loss falls for ever as a and b grow. So one row more is counted, which nothing is
    known of: spread over all others it is of every class by its share, and the loss of a certain decision is never
    zero (as in Platt: Probabilistic outputs for support vector machines, 1999).

    Parameters
    ----------
    densities
        L, (rows, classes), of `dmkl.numerics.discriminant.left_out_densities`; rows of NaN are left out, for all
        machines alike.
    scores
        f, (rows, classes), of `dmkl.numerics.discriminant.directions`: of rows that the machine was not trained on.
    index
        (rows,), the class of each.
    weights
        (rows,), how often they count; once where None.
    """
    *stack, n_rows, n_classes = densities.shape
    # (machines, classes, rows): sums over the classes, the shorter side, run along memory.
    parts = [each.mT.reshape(-1, n_classes, n_rows) for each in (densities, scores)]
    means = [part.mean(axis=1, keepdims=True) for part in parts]
    d = (np.ones(n_rows) if weights is None else weights).reshape(-1, n_rows)
    shares = d @ np.eye(n_classes)[index] / d.sum(axis=1, keepdims=True)
    kept = np.isfinite(means[0]).all(axis=(0, 1))
    if not kept.any():
        return np.ones(stack), np.zeros(stack)
    if not kept.all():
        parts, means = ([each[..., kept] for each in some] for some in (parts, means))
        d, index = d[:, kept], index[kept]
    one = 1.0 / len(index)
    truth = (np.eye(n_classes)[:, index] + one * shares[..., None]) / (1.0 + one)
    counted, prior = d / d.sum(axis=1, keepdims=True), np.log(shares)[..., None]
    # Steps in single precision take half the time. Where it resolves no more, what is left is mostly one step.
    terms: Array = np.empty((len(parts[0]), 2, *parts[0].shape[1:]), dtype=np.float32)
    for number, (part, mean) in enumerate(zip(parts, means, strict=True)):
        np.subtract(part, mean, out=terms[:, number], casting="same_kind")
    scale = _deviations(terms)
    large = terms.size >= 2 * LARGE
    loss = (_compiled_loss if large else _log_loss)(terms, scale, truth, counted, prior)
    low = np.array([LEAST, 0.0])
    found, curvature = _least(loss, np.zeros((len(terms), 2)), low)
    going = np.arange(len(terms))
    for _ in range(_CORRECTIONS):
        slope = (_compiled_slope if large else _slope)(
            parts, found[going] / scale[going], going, truth, counted, prior
        ) / scale[going]
        step = _newton_step(slope, curvature[going], (found[going] > low) | (slope < 0.0))
        found[going] = np.maximum(found[going] - step, low)
        going = going[(slope * step).sum(axis=1) > _RESOLVED]
        if not len(going):
            break
    found /= scale
    a, b = found.T.reshape(2, *stack)
    return a, b


def _deviations(terms: Array) -> Float:
    """The standard deviations of L and f, in which coefficients count, (machines, 2); one where there is none."""
    flat = terms.reshape(len(terms), 2, -1)
    scale = np.sqrt(np.vecdot(flat, flat) / flat.shape[-1])
    scale[scale == 0.0] = 1.0
    return np.asarray(scale)


def _at_truth(terms: Array, scale: Float, truth: Float, d: Float) -> Float:
    """Sums of L and f over the rows, each of its own class, (machines, 2)."""
    flat = terms.reshape(len(terms), 2, -1)
    true = np.vecdot(flat, (truth * d[:, None]).astype(terms.dtype).reshape(-1, 1, flat.shape[-1]))
    return np.asarray(true / scale)


def _log_loss(terms: Array, scale: Float, truth: Float, d: Float, prior: Float) -> _Loss:
    """The log loss that `weigh` makes least.

    Parameters
    ----------
    terms
        L and f, (machines, 2, classes, rows), the mean over the classes being zero; in single precision.
    scale
        Of `_deviations`.
    truth
        How much each row is of each class, (machines, classes, rows).
    d
        What rows count, (machines, rows); they sum to one.
    prior
        (machines, classes, 1), logarithms. All of these three may be one for all machines.

    Returns
    -------
    function
        Of coefficients (n, 2) and the numbers (n,) of the machines whose they are: the loss up to a constant, (n,), its
        slope and its curvature.
    """
    n_machines, precision = len(terms), terms.dtype
    true = _at_truth(terms, scale, truth, d)
    d, prior = d.astype(precision), prior.astype(precision)
    # Memory that is new at every step costs as much as what is computed in it.
    room = np.empty((2, *terms[:, 0].shape), dtype=precision)

    def loss(coefficients: Float, which: Index) -> tuple[Float, Float, Float]:
        n, every = len(which), len(which) == n_machines
        mine = terms if every else terms[which]
        weight, base = (part if every or len(part) == 1 else part[which] for part in (d, prior))
        likely, product = room[:, :n]
        rows, size = mine.reshape(n, 2, -1), scale[which]
        if coefficients.any():
            np.matmul((coefficients / size)[:, None].astype(precision), rows, out=likely.reshape(n, 1, -1))
            logs = _normalized(likely, base, weight)
        else:  # where it begins, each row is as likely of a class as the class is large
            likely, logs = np.exp(base) * weight[:, None], np.zeros((1, 1), dtype=precision)
        means, curvature = np.empty((n, 2, weight.shape[1]), dtype=precision), np.empty((n, 2, 2))
        for j in range(2):
            np.multiply(mine[:, j], likely, out=product)
            product.sum(axis=1, out=means[:, j])
            for k in range(j + 1):
                curvature[:, j, k] = curvature[:, k, j] = np.vecdot(product.reshape(n, -1), rows[:, k])
        curvature -= _products(means / weight[:, None], means)
        value = (weight * logs).sum(axis=1) - (coefficients * true[which]).sum(axis=1)
        slope = means.sum(axis=2) / size - true[which]
        return value, slope, curvature / (size[:, :, None] * size[:, None])

    return loss


def _compiled_loss(terms: Array, scale: Float, truth: Float, d: Float, prior: Float) -> _Loss:
    """The same by a compiled loop."""
    true = _at_truth(terms, scale, truth, d)
    weights, base = d.astype(terms.dtype), np.ascontiguousarray(prior[..., 0], dtype=terms.dtype)
    powers = np.empty(terms.shape[-1], dtype=np.int32)

    def loss(coefficients: Float, which: Index) -> tuple[Float, Float, Float]:
        size, sums = scale[which], np.empty((len(which), 6))
        put_moments(terms, (coefficients / size).astype(terms.dtype), which, base, weights, powers, sums)
        value = sums[:, 0] - (coefficients * true[which]).sum(axis=1)
        curvature = sums[:, [3, 4, 4, 5]].reshape(-1, 2, 2) / (size[:, :, None] * size[:, None])
        return value, sums[:, 1:3] / size - true[which], curvature

    return loss


def _slope(parts: Sequence[Float], coefficients: Float, which: Index, truth: Float, d: Float, prior: Float) -> Float:
    """The slope of the log loss of some machines in coefficients (n, 2), from L and f, (machines, classes, rows)."""
    parts = [part if len(part) == len(which) else part[which] for part in parts]
    truth, d, prior = (each if len(each) == 1 else each[which] for each in (truth, d, prior))
    first, second = (part * each[:, None, None] for part, each in zip(parts, coefficients.T, strict=True))
    first += second
    _normalized(first, prior, d)
    first -= truth * d[:, None]
    return np.stack([np.vecdot(first.reshape(len(first), -1), part.reshape(len(first), -1)) for part in parts], axis=1)


def _compiled_slope(
    parts: Sequence[Float], coefficients: Float, which: Index, truth: Float, d: Float, prior: Float
) -> Float:
    """The same by a compiled loop."""
    found = np.empty((len(which), 2))
    first, second = parts
    base, powers = np.ascontiguousarray(prior[..., 0]), np.empty(d.shape[-1], dtype=np.int64)
    put_slopes(first, second, coefficients, which, base, d, truth, powers, found)
    return found


def _normalized(logits: Float, prior: Float, d: Float) -> Float:
    """Turn logits less the prior, (machines, classes, rows), into probabilities times d, and return logs of sums."""
    logits += prior
    highest = logits.max(axis=1)
    logits -= highest[:, None]
    np.exp(logits, out=logits)
    total = logits.sum(axis=1)
    logits *= (d / total)[:, None]
    return np.asarray(np.log(total) + highest)


def _least(function: _Loss, start: Float, low: Float) -> tuple[Float, Float]:
    """Where smooth convex functions of a few variables, each above its bound, are least, and their curvatures there.

    Newton's steps in the variables that are free, cut off at the bounds (Bertsekas: Projected Newton methods, SIAM
    Journal on Control and Optimization 20, 1982). All functions take them together, each until its own end.

    Parameters
    ----------
    function
        Values (n,), slopes (n, variables) and curvatures (n, variables, variables), at a point each, of those of some
        positions; in single precision.

    Returns
    -------
    ndarray, ndarray
        (functions, variables); (functions, variables, variables), of the points before the last steps.
    """
    x, active = start.copy(), np.arange(len(start))
    value, slope, curvature = (np.asarray(each, dtype=np.float64) for each in function(x, active))
    for _ in range(_MOST_STEPS):
        step = _newton_step(slope[active], curvature[active], (x[active] > low) | (slope[active] < 0.0))
        size = 1.0 + np.abs(value[active])
        going = (slope[active] * step).sum(axis=1) > _NOTHING * size
        x[active[~going]] = np.maximum(x[active[~going]] - step[~going], low)
        active, step, slack = active[going], step[going], _ROUNDING * size[going]
        if not len(active):
            break
        share, searching = 1.0, active
        while len(searching) and share >= _SHORTEST:
            trial = np.maximum(x[searching] - share * step, low)
            there = function(trial, searching)
            least = _ENOUGH * (slope[searching] * (x[searching] - trial)).sum(axis=1)
            kept = there[0] <= value[searching] - least + slack
            for array, new in zip((x, value, slope, curvature), (trial, *there), strict=True):
                array[searching[kept]] = new[kept]
            searching, step, slack = searching[~kept], step[~kept], slack[~kept]
            share *= 0.5
        if len(searching):
            active = np.setdiff1d(active, searching)
    return x, curvature


def _newton_step(slope: Float, curvature: Float, free: npt.NDArray[np.bool_]) -> Float:
    """The steps down, (functions, variables), in the variables that are free."""
    values, vectors = np.linalg.eigh(curvature * free[:, None] * free[..., None])
    # Where terms are multiples of one another the curvature is singular along the direction that changes nothing.
    kept = values > _SINGULAR * values[:, -1:]
    along = np.einsum("bi,bij->bj", slope, vectors)
    along = np.divide(along, values, out=np.zeros_like(along), where=kept)
    return np.where(free, np.einsum("bij,bj->bi", vectors, along), 0.0)


def _products(some: Float, others: Float) -> Float:
    """Inner products of a few long rows with others."""
    return np.asarray(np.vecdot(some[..., :, None, :], others[..., None, :, :]))
