"""Times with right censoring: labels, the curves of Kaplan and Meier and of Breslow, and scores of risks.

The label of a sample is its time s > 0 with a sign: s if the event was seen then, −s if the sample was censored at s,
that is, known to be without the event until then. So there is one number for each sample, as in a regression.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import chdtrc

from dmkl.arrays import Array, Float, Mask, is_instance
from dmkl.errors import refuse
from dmkl.numerics.fisher import as_numbers


def signed_times(time: npt.ArrayLike, event: npt.ArrayLike) -> Float:
    """Labels of times and of whether the event was seen, (m,) each; InputError unless times are positive.

    Where a time or an event is NaN the label is NaN, which stands for an unknown one. Events in a series of pandas are
    put into the order of the times, if both are series.

    Examples
    --------
    >>> import dmkl
    >>> dmkl.signed_times([3.0, 5.0], [True, False])
    array([ 3., -5.])
    """
    given: tuple[Any, Any] = time, event
    if all(is_instance(values, "pandas", "Series") for values in given):
        event = given[1].reindex(given[0].index)
    times, seen = np.asarray(time, dtype=np.float64), np.asarray(event, dtype=np.float64)
    if not np.isin(seen[~np.isnan(seen)], (0, 1)).all():
        refuse(f"event must be 1 where the event was seen and 0 where the sample was censored, got {np.unique(seen)}")
    if (times <= 0).any():
        refuse(f"times must be positive, found {times[times <= 0][0]:g}; leave out samples that were never observed")
    return np.where(np.isnan(seen), np.nan, np.where(seen == 1, times, -times))


def survival_labels(labels: npt.ArrayLike) -> Float:
    """Labels as `signed_times` makes them, from such labels, or from columns of times and events in either order."""
    values = as_numbers(np.asarray(labels), "survival takes numbers: times with a sign, or beside a column of 0 and 1")
    if values.ndim == 1 or values.shape[1] == 1:
        return values.reshape(-1)
    is_event = [bool(np.isin(column[~np.isnan(column)], (0, 1)).all()) for column in values.T]
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


class Steps(NamedTuple):
    """A function that is constant between `times`, with these `values` from each of them on, and `first` before."""

    times: Float
    values: Float
    first: float = 1.0

    def __call__(self, at: npt.ArrayLike) -> Float:
        """The values at some times."""
        return np.append(self.first, self.values)[np.searchsorted(self.times, np.asarray(at), side="right")]


def kaplan_meier(labels: Array, *, censoring: bool = False) -> Steps:
    """The product-limit estimate of P(T > t), Π_{s ≤ t} (1 − d_s/n_s), d_s events among n_s samples at risk at s.

    With `censoring` that of the time of censoring, where events at the same time come first. Kaplan, Meier:
    Nonparametric estimation from incomplete observations, JASA 53 (1958).
    """
    time, event = times_and_events(labels)
    times, place = np.unique(time, return_inverse=True)
    n_events = np.bincount(place[event], minlength=len(times))
    n_all = np.bincount(place, minlength=len(times))
    at_risk = n_all[::-1].cumsum()[::-1]
    lost, at_risk = (n_all - n_events, at_risk - n_events) if censoring else (n_events, at_risk)
    share = np.divide(lost, at_risk, out=np.zeros(len(times)), where=at_risk > 0)
    return Steps(times, np.cumprod(1.0 - share))


def cumulative_hazard(labels: Array, risk: Float, weights: Float | float = 1.0) -> Steps:
    """H(t) = Σ_{s ≤ t} d_s/Σ_{at risk at s} d_i exp(risk_i) at the times of events, d_s their weight at s.

    Then P(T > t) = exp(−H(t)exp(risk)). Breslow, in the discussion of Cox, JRSS B 34 (1972).
    """
    time, event = times_and_events(labels)
    d, largest = np.broadcast_to(weights, time.shape), float(risk.max())
    times, place = np.unique(time, return_inverse=True)
    n_events = np.bincount(place[event], d[event], minlength=len(times))
    at_risk = np.bincount(place, d * np.exp(risk - largest), minlength=len(times))[::-1].cumsum()[::-1]
    seen = n_events > 0
    return Steps(times[seen], np.exp(-largest) * np.cumsum(n_events[seen] / at_risk[seen]), 0.0)


def concordance(labels: Array, risk: Float, *, weights: Float | None = None) -> Any:
    """Harrell's concordance index: the share of comparable pairs whose earlier event has the larger risk.

    A pair is comparable if the earlier of its times is an event, or both are equal and one of them is an event. Equal
    risks count one half. NaN without a comparable pair. Risks are (rows,), or (points, rows) for a score of each.
    `weights` (rows,) weigh pairs by their earlier sample. Harrell, Lee, Mark: Multivariable prognostic models,
    Statistics in Medicine 15 (1996).
    """
    time, event = times_and_events(labels)
    at, own = time[event, None], risk[..., event, None]
    later = (time > at) | ((time == at) & ~event)
    weight = np.ones(len(at)) if weights is None else np.asarray(weights)[event]
    right = np.zeros(risk.shape[:-1])
    for point in np.ndindex(right.shape):  # of which all pairs together would take much memory
        of_all, of_events = risk[point], own[point]
        higher = np.count_nonzero(later & (of_all < of_events), axis=1)
        right[point] = weight @ (higher + 0.5 * np.count_nonzero(later & (of_all == of_events), axis=1))
    total = weight @ np.count_nonzero(later, axis=1)
    values = right / total if total else np.full(right.shape, np.nan)
    return values if values.ndim else float(values)


def concordance_ipcw(labels: Array, risk: Float) -> Any:
    """Uno's concordance index: `concordance` with pairs weighted by 1/G(t)², G the curve of censoring of these rows.

    Unlike Harrell's it does not depend on how samples were censored. Uno, Cai, Pencina, D'Agostino, Wei: On the
    C-statistics for evaluating overall adequacy of risk prediction procedures, Statistics in Medicine 30 (2011).
    """
    remaining = kaplan_meier(labels, censoring=True)(np.abs(labels))
    weights = np.divide(1.0, remaining**2, out=np.zeros(len(labels)), where=remaining > 0)
    return concordance(labels, risk, weights=weights)


def brier_scores(labels: Array, survival: Float, times: Float, trained: Array) -> Float:
    """BS(t) of curves of survival s, (rows, times), at these times: (times,).

    See `dmkl.survival_scores`; G is the curve of censoring of the labels `trained`, and scores are NaN where it is 0.
    Graf, Schmoor, Sauerbrei, Schumacher: Assessment and comparison of prognostic classification schemes for survival
    data, Statistics in Medicine 18 (1999).
    """
    time, event = times_and_events(labels)
    remaining = kaplan_meier(trained, censoring=True)
    with np.errstate(divide="ignore"):
        at_own, at_times = 1.0 / remaining(time), 1.0 / remaining(times)
    is_over, goes_on = event[:, None] & (time[:, None] <= times), time[:, None] > times
    weights = np.where(is_over, at_own[:, None], np.where(goes_on, at_times, 0.0))
    known = np.isfinite(weights).all(axis=0)  # G > 0
    errors = np.where(known, weights, 0.0) * np.where(is_over, survival, 1.0 - survival) ** 2
    return np.asarray(np.where(known, errors.mean(axis=0), np.nan))


def dynamic_auc(labels: Array, risk: Float, times: Float, trained: Array) -> Float:
    """The area under the ROC curve of events until t against rows that go on after t, at some times: (times,).

    Events are weighted by 1/G(t_i), with the curve G of censoring of the labels `trained`. `risk` is (rows,), or (rows,
    times). NaN without rows on one side. Uno, Cai, Tian, Wei: Evaluating prediction rules for t-year survivors with
    censored regression models, JASA 102 (2007).
    """
    time, event = times_and_events(labels)
    remaining = kaplan_meier(trained, censoring=True)(time)
    weights = np.divide(event, remaining, out=np.zeros(len(time)), where=remaining > 0)
    values, risks = np.full(len(times), np.nan), np.broadcast_to(risk.T, (len(times), len(time)))
    for k, (t, at_time) in enumerate(zip(times, risks, strict=True)):
        cases, controls = (weights > 0) & (time <= t), at_time[time > t]
        of_cases, weight = at_time[cases, None], weights[cases]
        lower, equal = (np.count_nonzero(compare(controls, of_cases), axis=1) for compare in (np.less, np.equal))
        if total := weight.sum() * len(controls):
            values[k] = weight @ (lower + 0.5 * equal) / total
    return values


def mean_over_times(values: Float, times: Float, labels: Array) -> float:
    """The mean of values at times where they are no NaN, weighted by the falls of the curve of Kaplan and Meier."""
    defined = ~np.isnan(values)
    falls = -np.diff(kaplan_meier(labels)(times[defined]), prepend=1.0)
    return float(values[defined] @ falls / falls.sum()) if falls.any() else float("nan")


def mean_dynamic_auc(labels: Array, risk: Float) -> float:
    """The mean of `dynamic_auc` over the times of events, with the curve of censoring of these rows."""
    times = np.unique(labels[labels > 0])
    return mean_over_times(dynamic_auc(labels, risk, times, labels), times, labels)


def log_rank(labels: Array, groups: Array) -> float:
    """The p-value of the hypothesis that groups of rows, (m,), have one curve of survival.

    With the differences u = Σ_t (d_t − d n_t/n) of events and those expected by the shares of rows at risk at t, and
    their covariance V, uᵀV⁺u is about χ² of one degree less than there are groups. Mantel: Evaluation of survival data
    and two new rank order statistics arising in its consideration, Cancer Chemotherapy Reports 50 (1966).
    """
    time, event = times_and_events(labels)
    names, place = np.unique(groups, return_inverse=True)
    members, u, V = np.eye(len(names))[place], np.zeros(len(names)), np.zeros((len(names), len(names)))
    for t in np.unique(time[event]):
        at_risk, seen = members[time >= t].sum(axis=0), members[event & (time == t)].sum(axis=0)
        n, d = at_risk.sum(), seen.sum()
        share = at_risk / n
        u += seen - d * share
        V += d * (n - d) / max(n - 1.0, 1.0) * (np.diag(share) - np.outer(share, share))
    return float(chdtrc(len(names) - 1, u @ np.linalg.pinv(V) @ u))
