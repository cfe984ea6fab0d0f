"""Compiled sums of the log loss that decision rules are learnt by: machine by machine, in the first cache levels.

Arrays are (machines, classes, rows): rows lie in one vector register, classes in the loop around.
"""

from __future__ import annotations

import numpy as np

from dmkl.arrays import Array, Float, Index
from dmkl.numerics.compiling import compiled

__all__ = ["put_moments", "put_slopes"]

# Sums may be rearranged, which is what it takes to add up many numbers at once.
_compiled = compiled({"reassoc", "contract", "nsz"})

# exp(v) = 2ⁿ exp(r), r = v − n log 2 between −½ log 2 and ½ log 2, by a polynomial of r and powers of two that are
# written as bits, for many v ≤ 0 at once. That log 2 is rounded errs by |v|ε exp(v), which is less than ε. In single
# precision the polynomial is that of Moshier (Cephes mathematical library, 1989), in double the series.
_LOWEST, _LOWEST_DOUBLE = np.float32(-87.0), -708.0
"""Of less, exponentials are not told from zero."""
_PER_E, _PER_E_DOUBLE = np.float32(1.4426950408889634), 1.4426950408889634
_LOG_2, _LOG_2_DOUBLE = np.float32(0.6931471805599453), 0.6931471805599453
_HALF, _ONE = np.float32(0.5), np.float32(1.0)
_C2, _C3, _C4 = np.float32(5.0000001e-1), np.float32(1.6666666e-1), np.float32(4.1665796e-2)
_C5, _C6, _C7 = np.float32(8.3334519e-3), np.float32(1.3981999e-3), np.float32(1.9875691e-4)


@_compiled
def _put_logits(first: Array, second: Array, a: float, b: float, prior: Array, out: Array, highest: Array) -> None:
    """Put a L_k + b f_k + prior, (classes, rows), to out, and the highest of each row to highest."""
    highest[:] = -np.inf
    for k in range(len(first)):
        x, y, z, shift = first[k], second[k], out[k], prior[k]
        for j in range(len(z)):
            z[j] = a * x[j] + b * y[j] + shift
            highest[j] = max(highest[j], z[j])


@_compiled
def put_moments(
    terms: Array, coefficients: Array, which: Index, prior: Array, weights: Array, powers: Array, out: Float
) -> None:
    """Sums over rows, by the weights w, of the log loss of a L_k + b f_k + prior, its slope and its curvature, to out.

    Parameters
    ----------
    terms
        L and f, (machines, 2, classes, rows), in single precision like all but the results.
    coefficients
        a and b, (n, 2).
    which
        (n,), the machines whose they are.
    prior, weights
        (machines, classes) and (machines, rows), or one for all machines.
    powers
        Memory for powers of two, as integers of 32 bits, (rows,).
    out
        (n, 6): Σ w log Σ_k exp, Σ w E[L], Σ w E[f], Σ w var L, Σ w cov(L, f), Σ w var f, over the classes of a row.
    """
    _, _, classes, rows = terms.shape
    scales = powers.view(np.float32)
    room = np.empty((classes, rows), terms.dtype)
    highest, total = np.empty(rows, terms.dtype), np.empty(rows, terms.dtype)
    sums = np.empty((5, rows), terms.dtype)
    for i in range(len(which)):
        t = which[i]
        base, w = prior[min(t, len(prior) - 1)], weights[min(t, len(weights) - 1)]
        _put_logits(terms[t, 0], terms[t, 1], coefficients[i, 0], coefficients[i, 1], base, room, highest)
        total[:], sums[:] = 0, 0
        s0, s1, s2, s3, s4 = sums[0], sums[1], sums[2], sums[3], sums[4]
        for k in range(classes):
            x, y, z = terms[t, 0, k], terms[t, 1, k], room[k]
            for j in range(rows):
                v = max(z[j] - highest[j], _LOWEST)
                n = np.floor(v * _PER_E + _HALF)
                r = v - n * _LOG_2
                p = ((((_C7 * r + _C6) * r + _C5) * r + _C4) * r + _C3) * r + _C2
                z[j] = p * r * r + r + _ONE
                powers[j] = (np.int32(n) + np.int32(127)) << np.int32(23)
            for j in range(rows):
                e = z[j] * scales[j]
                u, v = e * x[j], e * y[j]
                total[j] += e
                s0[j] += u
                s1[j] += v
                s2[j] += u * x[j]
                s3[j] += u * y[j]
                s4[j] += v * y[j]
        o0, o1, o2, o3, o4, o5 = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
        for j in range(rows):
            share = _ONE / total[j]
            first, second = s0[j] * share, s1[j] * share
            o1 += w[j] * first
            o2 += w[j] * second
            o3 += w[j] * (s2[j] * share - first * first)
            o4 += w[j] * (s3[j] * share - first * second)
            o5 += w[j] * (s4[j] * share - second * second)
        for j in range(rows):
            o0 += w[j] * (np.log(total[j]) + highest[j])
        out[i, 0], out[i, 1], out[i, 2], out[i, 3], out[i, 4], out[i, 5] = o0, o1, o2, o3, o4, o5


@_compiled
def put_slopes(
    first: Float,
    second: Float,
    coefficients: Float,
    which: Index,
    prior: Float,
    weights: Float,
    truth: Float,
    powers: Array,
    out: Float,
) -> None:
    """The slope of the log loss in a and b, in double precision, to out (n, 2).

    Parameters
    ----------
    first, second
        L and f, (machines, classes, rows).
    coefficients, which
        a and b, (n, 2), and the machines whose they are, (n,).
    prior, weights, truth
        (machines, classes), (machines, rows), and how much each row is of each class, (machines, classes, rows); of one
        machine for all.
    powers
        Memory for powers of two, as integers of 64 bits, (rows,).
    """
    _, classes, rows = first.shape
    scales = powers.view(np.float64)
    room, highest, total = np.empty((classes, rows)), np.empty(rows), np.empty(rows)
    for i in range(len(which)):
        t = which[i]
        base, w = prior[min(t, len(prior) - 1)], weights[min(t, len(weights) - 1)]
        true = truth[min(t, len(truth) - 1)]
        _put_logits(first[t], second[t], coefficients[i, 0], coefficients[i, 1], base, room, highest)
        total[:] = 0.0
        for k in range(classes):
            z = room[k]
            for j in range(rows):
                v = max(z[j] - highest[j], _LOWEST_DOUBLE)
                n = np.floor(v * _PER_E_DOUBLE + 0.5)
                r = v - n * _LOG_2_DOUBLE
                p = 1.0 / 479001600.0 + r * (1.0 / 6227020800.0)  # 1/12! + r/13!, and so on to 1 + r
                p = 1.0 / 3628800.0 + r * (1.0 / 39916800.0 + r * p)
                p = 1.0 / 40320.0 + r * (1.0 / 362880.0 + r * p)
                p = 1.0 / 720.0 + r * (1.0 / 5040.0 + r * p)
                p = 1.0 / 24.0 + r * (1.0 / 120.0 + r * p)
                z[j] = 1.0 + r * (1.0 + r * (0.5 + r * (1.0 / 6.0 + r * p)))
                powers[j] = (np.int64(n) + np.int64(1023)) << np.int64(52)
            for j in range(rows):
                z[j] *= scales[j]
                total[j] += z[j]
        for j in range(rows):
            total[j] = w[j] / total[j]
        s0, s1 = 0.0, 0.0
        for k in range(classes):
            x, y, z, true_k = first[t, k], second[t, k], room[k], true[k]
            for j in range(rows):
                apart = z[j] * total[j] - true_k[j] * w[j]
                s0 += apart * x[j]
                s1 += apart * y[j]
        out[i, 0], out[i, 1] = s0, s1
