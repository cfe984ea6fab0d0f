"""Weights of Fisher's functions and of the scores in a decision, which have the least log loss.

See `dmkl.numerics.discriminant` for the decision. The rules of many machines are learnt together: all of them take
Newton's steps at once, in single precision as far as that goes, and the last ones in double.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from dmkl.arrays import Array, Float, Index

__all__ = ["LEAST", "weigh"]

_Loss = Callable[[Float, Index], tuple[Float, Float, Float]]
LEAST = 1e-6
"""The least weight of Fisher's functions, in standard deviations: a decision always has a reason."""
_SINGULAR = 1e-9
"""The least share of the curvature that a step is taken along."""
_MOST_STEPS, _ENOUGH, _SHORTEST = 100, 1e-4, 1e-6
"""Most of Newton's steps, the least share of the expected decrease, and the shortest share of a step."""
_ROUGH, _RESOLVED = 1e-8, 1e-14
"""The expected decrease whose step is the last, in single and in double precision."""


def weigh(densities: Float, scores: Float, index: Index, weights: Float | None = None) -> tuple[Float, Float]:
    """Find a, b ≥ 0 for which softmax_k(log π_k + a L_k + b f_k) has the least log loss, π the shares of the classes.

    Without mistakes the loss would fall for ever as a and b grow. So one more row is counted, which belongs to each
    class by its share and is spread over all rows: the loss of a certain decision is never zero (as in Platt:
    Probabilistic outputs for support vector machines, 1999).

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
        Sample weights, (rows,); all alike where None.
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
    scale = _deviations(terms)
    coefficients = np.zeros((len(terms), 2))
    # Exponentials and sums in single precision take half the time; they lead so near that two steps are left.
    for dtype, last in ((np.float32, _ROUGH), (np.float64, _RESOLVED)):
        loss = _log_loss(terms.astype(dtype, copy=False), scale, truth, counted, prior)
        rounding = 16.0 * float(np.finfo(dtype).eps)
        coefficients = _minimize(loss, coefficients, np.array([LEAST, 0.0]), last, rounding)
    a, b = (coefficients / scale).T.reshape(2, *stack)
    return a, b


def _deviations(terms: Array) -> Float:
    """The standard deviations of L and f, in which coefficients count, (machines, 2); one where there is none."""
    flat = terms.reshape(len(terms), 2, -1)
    scale = np.sqrt(np.vecdot(flat, flat) / flat.shape[-1])
    scale[scale == 0.0] = 1.0
    return np.asarray(scale)


def _log_loss(terms: Array, scale: Float, truth: Float, d: Float, prior: Float) -> _Loss:
    """The log loss that `weigh` makes least.

    Parameters
    ----------
    terms
        L and f, (machines, 2, classes, rows), the mean over the classes being zero; losses have their precision.
    scale
        Of `_deviations`.
    truth
        The probability of each class for each row, (machines, classes, rows).
    d
        Weights of the rows, (machines, rows); they sum to one.
    prior
        (machines, classes, 1), logarithms. All of these three may be one for all machines.

    Returns
    -------
    function
        Of coefficients (n, 2) of the machines of some numbers (n,): the loss up to a constant, (n,), its gradient and
        its curvature.
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
            logs = _normalized(likely, base, weight)
        else:  # at the start the probabilities are the shares of the classes
            likely, logs = np.exp(base) * weight[:, None], np.zeros((1, 1), dtype=precision)
        means, curvature = np.empty((n, 2, weight.shape[1]), dtype=precision), np.empty((n, 2, 2))
        for j in range(2):
            np.multiply(of_some[:, j], likely, out=product)
            product.sum(axis=1, out=means[:, j])
            for k in range(j + 1):
                curvature[:, j, k] = curvature[:, k, j] = np.vecdot(product.reshape(n, -1), rows[:, k])
        curvature -= _products(means / weight[:, None], means)
        value = (weight * logs).sum(axis=1) - (coefficients * true[which]).sum(axis=1)
        gradient = means.sum(axis=2) / size - true[which]
        return value, gradient, curvature / (size[:, :, None] * size[:, None])

    return loss


def _normalized(logits: Float, prior: Float, d: Float) -> Float:
    """Turn logits less the prior, (machines, classes, rows), into probabilities times d, and return logs of sums."""
    logits += prior
    highest = logits.max(axis=1)
    logits -= highest[:, None]
    np.exp(logits, out=logits)
    total = logits.sum(axis=1)
    logits *= (d / total)[:, None]
    return np.asarray(np.log(total) + highest)


def _minimize(function: _Loss, start: Float, low: Float, last: float, rounding: float) -> Float:
    """Minimize smooth convex functions of a few variables, each variable above its bound; (functions, variables).

    Newton's steps in the variables that are free, cut off at the bounds (Bertsekas: Projected Newton methods, SIAM
    Journal on Control and Optimization 20, 1982). All functions take them together, each until its own end.

    Parameters
    ----------
    function
        Values (n,), gradients (n, variables) and curvatures (n, variables, variables) of the functions of some numbers,
        at a point each.
    last
        The expected decrease, relative to one plus the value, whose step is the last.
    rounding
        Relative error of the values: a rise by less is none.
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


def _products(rows: Float, others: Float) -> Float:
    """Inner products of a few long rows with others."""
    return np.asarray(np.vecdot(rows[..., :, None, :], others[..., None, :, :]))
