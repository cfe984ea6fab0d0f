"""Groups by probabilistic latent semantic analysis (pLSA) of counts, inside each class.

pLSA models counts n(d, w) ≥ 0 (bags of words) by P(w|d) = Σ_z P(z|d) P(w|z); the group of a document is the topic z
with the largest P(z|d). It is fitted as a factorization. With W_dz ≥ 0 and H_zw ≥ 0, Σ_w H_zw = 1 (the row sums of H
moved into W), the generalized Kullback-Leibler divergence is

    D(n | WH) = Σ_dw [ −n(d, w) log (WH)_dw + (WH)_dw ] + constant
              = Σ_d [ −Σ_w n(d, w) log (WH)_dw + Σ_z W_dz ] + constant.

Row d of W times s changes it by −N_d log s + (s − 1) Σ_z W_dz, N_d = Σ_w n(d, w): at a minimum Σ_z W_dz = N_d. So
W_dz = N_d P(z|d), H_zw = P(w|z), and the rest is −Σ n(d, w) log Σ_z P(z|d)P(w|z), the negative log-likelihood of pLSA:
the minimizers are its maximum likelihood estimates (Gaussier and Goutte, SIGIR 2005). With H fixed the problem is
convex in W: a new sample is folded in without restarts.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from sklearn.decomposition import NMF, non_negative_factorization
from sklearn.exceptions import ConvergenceWarning

from dmkl.arrays import Float
from dmkl.errors import InputError
from dmkl.numerics.grouping.groups import FeatureGroups, as_table, samples_by_class, united

__all__ = ["PLSAGroups", "group_by_plsa"]

_FACTORIZATION: dict[str, Any] = {"solver": "mu", "beta_loss": "kullback-leibler", "max_iter": 2000, "tol": 1e-6}
_TENTHS = 10


@dataclass(frozen=True)
class PLSAGroups(FeatureGroups):
    """pLSA: P(z|d) over the topics of all classes together, with the new sample folded in."""

    model: ClassVar[str] = "plsa"

    def affinities_of(self, new: npt.ArrayLike) -> Float:
        """See `FeatureGroups.affinities_of`."""
        return _fold_in(_counts(self._fitting(new)), self.centers)

    def affinities_apart(self, training: npt.ArrayLike) -> Float:
        """See `FeatureGroups.affinities_apart`; a tenth of the samples is left out at a time instead of one.

        A sample adds n(d, w) P(z|d, w) to the counts that P(w|z) is computed from, with z among its class's topics.
        """
        counts = _counts(self._fitting(training))
        classes = self.classes[self.members]
        shares = np.zeros((len(counts), self.n_groups))
        for label in np.unique(self.classes):
            rows, topics = np.flatnonzero(classes == label), np.flatnonzero(self.classes == label)
            shares[np.ix_(rows, topics)] = _fold_in(counts[rows], self.centers[topics])
        mixed = shares @ self.centers
        ratio = np.divide(counts, mixed, out=np.zeros_like(counts), where=mixed > 0)
        whole = self.centers * (shares.T @ ratio)
        tenths = np.empty(len(counts), dtype=np.intp)
        tenths[np.argsort(self.members, kind="stable")] = np.arange(len(counts)) % _TENTHS
        affinities = np.empty_like(shares)
        for tenth in range(_TENTHS):
            left = tenths == tenth
            # The sums of the other nine tenths by subtraction; rounding below zero is cut off.
            rest = np.maximum(whole - self.centers * (shares[left].T @ ratio[left]), 0.0)
            sizes = rest.sum(axis=1, keepdims=True)
            affinities[left] = _fold_in(counts[left], rest / np.where(sizes > 0, sizes, 1.0))
        return affinities


def group_by_plsa(
    counts: npt.ArrayLike,
    y: npt.ArrayLike | None,
    n_groups: int | Mapping[Any, int],
    *,
    seed: int = 0,
    restarts: int = 10,
) -> PLSAGroups:
    """Cluster each class by pLSA, fitted as a factorization under the Kullback-Leibler divergence (see the module).

    A topic that no sample of its class prefers makes no group. Counts are n(d, w) ≥ 0, (m, d), with a positive sum in
    each row, or InputError is raised; everything else, and other errors, are as in `group_by_kmeans`.
    """
    table = _counts(as_table(counts))
    wanted = samples_by_class(y, n_groups, len(table))
    if (empty := np.flatnonzero(table.sum(axis=1) == 0)).size:
        msg = (
            f"{len(empty)} rows of counts are all zero (the first: {empty[0]}), expected words in each: leave them out"
        )
        raise InputError(msg)
    parts = []
    for label, (rows, count) in wanted.items():
        topics, words = _factorize(table[rows], count, seed, restarts)
        parts.append((label, rows, np.argmax(topics, axis=1), words))
    return united(PLSAGroups, len(table), parts)


def _fold_in(counts: Float, topics: Float) -> Float:
    """P(z|d) of documents (t, d) for fixed P(w|z), (t, G)."""
    if not len(counts):
        return np.zeros((0, len(topics)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # see _factorize
        weights, _, _ = non_negative_factorization(
            counts, H=topics, n_components=len(topics), update_H=False, **_FACTORIZATION
        )
    total = weights.sum(axis=1, keepdims=True)
    # A sample whose words occur in no topic is equally near to all of them.
    shares = np.where(total > 0, weights / np.where(total > 0, total, 1.0), 1.0 / len(topics))
    return np.asarray(shares, dtype=np.float64)


def _factorize(counts: Float, n_topics: int, seed: int, restarts: int) -> tuple[Float, Float]:
    """P(z|d) up to the scale of each row, and P(w|z), from the best of several runs."""
    # The likelihood has many local maxima, so the best of several random starts is kept.
    best, least = None, np.inf
    for number in range(restarts if n_topics > 1 else 1):
        model = NMF(n_topics, init="random", random_state=seed + number, **_FACTORIZATION)
        with warnings.catch_warnings():
            # EM converges slowly at its end, long after the largest P(z|d) have stopped changing.
            warnings.simplefilter("ignore", ConvergenceWarning)
            documents = model.fit_transform(counts)
        if best is None or model.reconstruction_err_ < least:
            best, least = (documents, model.components_), model.reconstruction_err_
    assert best is not None
    documents, words = best
    sizes = words.sum(axis=1)
    return documents * sizes, words / np.where(sizes > 0, sizes, 1.0)[:, None]


def _counts(table: Float) -> Float:
    if (table < 0).any():
        msg = f"pLSA takes counts of words, but one is negative ({table.min():.3g}); use k-means for other features"
        raise InputError(msg)
    return table
