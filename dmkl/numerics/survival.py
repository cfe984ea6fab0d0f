"""Times with right censoring: labels, and scores of risks.

The label of a sample is its time s > 0 with a sign: s if the event was seen then, −s if the sample was censored at s,
that is, known to be without the event until then. So there is one number for each sample, as in a regression.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dmkl.arrays import Array, Float, Mask
from dmkl.errors import refuse


def signed_times(time: npt.ArrayLike, event: npt.ArrayLike) -> Float:
    """Labels of times and of whether the event was seen, (m,) each; InputError unless times are positive.

    Examples
    --------
    >>> import dmkl
    >>> dmkl.signed_times([3.0, 5.0], [True, False])
    array([ 3., -5.])
    """
    times, seen = np.asarray(time, dtype=np.float64), np.asarray(event)
    if seen.dtype != bool and not np.isin(seen[~np.isnan(seen.astype(np.float64))], (0, 1)).all():
        refuse(f"event must be 1 where the event was seen and 0 where the sample was censored, got {np.unique(seen)}")
    if (times <= 0).any():
        refuse(f"times must be positive, found {times[times <= 0][0]:g}; leave out samples that were never observed")
    return np.where(seen.astype(bool), times, -times)


def survival_labels(labels: npt.ArrayLike) -> Float:
    """Labels as `signed_times` makes them, from such labels, or from columns of times and events in either order."""
    values = np.asarray(labels, dtype=np.float64)
    if values.ndim == 1 or values.shape[1] == 1:
        return values.reshape(-1)
    is_event = [bool(np.isin(column, (0, 1)).all()) for column in values.T]
    if values.shape[1] != 2 or not any(is_event):
        refuse(
            "survival takes two columns, the time and the event (1 where it was seen, 0 where samples were censored), "
            f"or dmkl.signed_times(time, event); got {values.shape[1]} columns, {sum(is_event)} of them of 0 and 1"
        )
    event = 1 if is_event[1] else 0
    return signed_times(values[:, 1 - event], values[:, event])


def times_and_events(labels: Array) -> tuple[Float, Mask]:
    """Times, and whether the event was seen, from labels."""
    return np.abs(labels), labels > 0


def uncensored_shares(labels: Array) -> Float:
    """P(C > t) of the time C of censoring at the time of each row, (m,): the estimate of Kaplan and Meier.

    Π_{s ≤ t} (1 − c_s/n_s) with c_s of the n_s samples at risk at s censored then; events at the same time come first.
    Kaplan, Meier: Nonparametric estimation from incomplete observations, JASA 53 (1958).
    """
    time, event = times_and_events(labels)
    times, place = np.unique(time, return_inverse=True)
    n_events = np.bincount(place[event], minlength=len(times))
    n_all = np.bincount(place, minlength=len(times))
    at_risk = n_all[::-1].cumsum()[::-1]
    left = at_risk - n_events
    share = np.divide(n_all - n_events, left, out=np.zeros(len(times)), where=left > 0)
    return np.asarray(np.cumprod(1.0 - share)[place])


# --- scores ----------------------------------------------------------------------------------------------------------


def concordance(labels: Array, risk: Float, *, weights: Float | None = None) -> Any:
    """Harrell's concordance index: the share of comparable pairs whose earlier event has the larger risk.

    A pair is comparable if the earlier of its times is an event, or both are equal and one of them is an event. Equal
    risks count one half. NaN without a comparable pair. Risks are (rows,), or (points, rows) for a score of each.
    `weights` (rows,) weigh pairs by their earlier sample. Harrell, Lee, Mark: Multivariable prognostic models,
    Statistics in Medicine 15 (1996).
    """
    time, event = times_and_events(labels)
    total, right = 0.0, np.zeros(risk.shape[:-1])
    for i in np.flatnonzero(event):
        later = (time > time[i]) | ((time == time[i]) & ~event)
        of_later, own, weight = risk[..., later], risk[..., i, None], 1.0 if weights is None else weights[i]
        total += weight * np.count_nonzero(later)
        right += weight * (np.sum(of_later < own, axis=-1) + 0.5 * np.sum(of_later == own, axis=-1))
    values = right / total if total else np.full(right.shape, np.nan)
    return values if values.ndim else float(values)


def concordance_ipcw(labels: Array, risk: Float) -> Any:
    """Uno's concordance index: `concordance` with pairs weighed by 1/G(t)², G the curve of censoring of these rows.

    Unlike Harrell's it does not depend on how samples were censored. Uno, Cai, Pencina, D'Agostino, Wei: On the
    C-statistics for evaluating overall adequacy of risk prediction procedures, Statistics in Medicine 30 (2011).
    """
    remaining = uncensored_shares(labels)
    weights = np.divide(1.0, remaining**2, out=np.zeros(len(labels)), where=remaining > 0)
    return concordance(labels, risk, weights=weights)
