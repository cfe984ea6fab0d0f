"""Groups of samples with separate kernel weights, for group-sensitive MKL.

Yang, Li, Tian, Duan, Gao, ICCV 2009 (GS-MKL), section 5.3: the training samples of each class are clustered into a few
groups, by k-means or by probabilistic latent semantic analysis; a group belongs to one class.

The group of a new sample
-------------------------
The decision function (Eq. 4) needs c(x) of a new x with unknown class; the paper does not define it. Here the rule that
made the groups decides: the group of x is the one with the nearest center (the largest P(z|d) of pLSA) among the groups
of all classes.

The training samples were grouped inside their classes by another rule, which used the class, and a classifier with
weights for each group could read the class off the group (see `dmkl.solvers.groups`). `as_new` groups them by the rule
for new samples, and removes each sample from its center first: a sample is closer to a center that it contributed to
than any similar new sample is. With n members, the distance from the center c without x is

    ‖x − c₋ₓ‖² = (n/(n − 1))² ‖x − c‖².

(On 680 images of 17 classes, with one group per class by a mean kernel, 58 % of new images get the group of their
class; 80 % of the training images would get it from the centers they contributed to.) Groups across classes (y = None)
need none of this.

Kernel k-means
--------------
It uses a kernel through products with vectors alone, which a generator of the caller computes. So the groupings of
several sets of samples can share the passes over stored kernels.

Probabilistic latent semantic analysis
--------------------------------------
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
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import numpy.typing as npt
from sklearn.cluster import KMeans
from sklearn.decomposition import NMF, non_negative_factorization
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics.pairwise import euclidean_distances
from threadpoolctl import threadpool_limits

from dmkl.arrays import Array, Float, Index
from dmkl.errors import refuse
from dmkl.numerics.covariates import facts_of

_RESTARTS = 10  # Runs from several starts, of which the best is kept
_ROUNDS = 100  # Most reassignments of kernel k-means


def one_hot(labels: Index, n_groups: int) -> Float:
    """The (m, G) matrix with a one in each row, in the column of the row's group."""
    return np.asarray(np.eye(n_groups)[labels])


@dataclass(frozen=True)
class SampleGroups(ABC):
    """Groups of the training samples, and the rule that assigns new samples to them."""

    labels: Index  # (m,), the group of each training sample, 0 … G − 1
    classes: Array  # (G,), the class that each group belongs to
    centers: Float
    """The values that new samples are compared with: (G, d) centers (k-means), (G, d) P(w|z) (pLSA), (G,) squared norms
    of the centers (kernel k-means)."""
    members: Index
    """(m,), the groups that the centers were computed from: `labels`, unless `as_new` has assigned these anew."""
    model: ClassVar[str]

    @property
    def n_groups(self) -> int:
        """The number of groups, G."""
        return len(self.classes)

    def arrays(self) -> dict[str, Array]:
        """The groups as plain arrays by name, from which `groups_from_arrays` makes the same groups."""
        stored = {key: getattr(self, key) for key in ("labels", "classes", "centers", "members")}
        return {"model": np.array(self.model), **stored}

    def _stretched(self, squared: Float) -> Float:
        """Squared distances from the centers without each sample, from those with it; see the module."""
        sizes = np.bincount(self.members, minlength=self.n_groups)[self.members].astype(np.float64)
        at = np.arange(len(self.members)), self.members
        # Only the distance of a sample from its own center changes: it contributed to no other. A group of one sample
        # has no center without it: the sample must go elsewhere.
        stretched = squared.copy()
        own = squared[at] * (sizes / np.maximum(sizes - 1.0, 1.0)) ** 2
        stretched[at] = np.where(sizes == 1, np.inf, own)
        return stretched


_NEEDED = "every sample needs a group by its name, in grouping= of the learner", "predict (groups=)"
"""The beginning and the end of messages about samples without a group."""


class GivenGroups(SampleGroups):
    """Groups that are given for each sample by name; `classes` holds the names of the groups."""

    model: ClassVar[str] = "given"

    @classmethod
    def of_samples(cls, groups: Mapping[str, Any], samples: Array) -> Self:
        """The groups of training samples; InputError if one has none."""
        names, labels = np.unique(facts_of(samples, groups, None, str, *_NEEDED), return_inverse=True)
        return cls(labels, names, np.zeros(len(names)), labels)

    def labels_of(self, groups: Mapping[str, Any], samples: Array) -> Index:
        """The group of each new sample, (t,); InputError if it has none, or none of those in training."""
        names = np.array(facts_of(samples, groups, None, str, *_NEEDED))
        if not np.isin(names, self.classes).all():
            new = names[~np.isin(names, self.classes)][0]
            refuse(f"group {new!r} has no training samples; the groups of training are {self.classes.tolist()}")
        return np.searchsorted(self.classes, names)


class FeatureGroups(SampleGroups):
    """Groups by features, a row of numbers for each sample."""

    @abstractmethod
    def affinities_of(self, new: npt.ArrayLike) -> Float:
        """The affinity of each new sample to each group, (t, G): larger is nearer."""

    @abstractmethod
    def affinities_apart(self, training: npt.ArrayLike) -> Float:
        """The affinity of each training sample to each group without that sample, (m, G)."""

    def labels_of(self, new: npt.ArrayLike) -> Index:
        """The group of each new sample, (t,), from its features or counts, (t, d)."""
        return np.asarray(np.argmax(self.affinities_of(new), axis=1))

    def as_new(self, training: npt.ArrayLike) -> Self:
        """The same centers, with each training sample (m, d) in the group that a similar new sample would get.

        `labels` then carries as much information on the class as it does for new samples (see the module). Groups
        without members keep their center, so that G and the numbering do not change.
        """
        return replace(self, labels=np.argmax(self.affinities_apart(training), axis=1))

    def _fitting(self, new: npt.ArrayLike) -> Float:
        table: Float = np.asarray(new, dtype=np.float64)
        if table.ndim != 2 or table.shape[1] != self.centers.shape[1]:
            refuse(f"new samples have shape {table.shape}, expected (samples, {self.centers.shape[1]}) as in training")
        return table


Made = TypeVar("Made", bound=SampleGroups)
Counts = int | str | Mapping[Any, int | str]
"""A number of groups of each class, or "samples", or one of both for each class."""


def samples_by_class(y: npt.ArrayLike | None, n_groups: Counts, m: int) -> dict[Any, tuple[Index, int]]:
    """For each class its samples, and the number of groups to make of them; "samples" is a group for each sample."""
    labels = np.zeros(m, dtype=int) if y is None else np.asarray(y)
    wanted: dict[Any, tuple[Index, int]] = {}
    for label in np.unique(labels).tolist():
        rows = np.flatnonzero(labels == label)
        count = n_groups[label] if isinstance(n_groups, Mapping) else n_groups
        count = len(rows) if count == "samples" else int(count)
        if not 1 <= count <= len(rows):
            refuse(f"class {label!r} has {len(rows)} samples and is to make {count} groups, expected 1 to {len(rows)}")
        wanted[label] = rows, count
    return wanted


def united(kind: type[Made], m: int, parts: list[tuple[Any, Index, Index, Float]]) -> Made:
    """Groups of all classes, from (class, rows, groups, centers) for each class; empty groups are left out."""
    labels = np.empty(m, dtype=np.intp)
    classes: list[Any] = []
    centers: list[Float] = []
    for label, rows, groups, centers_of_class in parts:
        # Groups without samples would have no kernel statistics; the others are numbered over all classes.
        kept, numbered = np.unique(groups, return_inverse=True)
        labels[rows] = len(classes) + numbered
        classes.extend([label] * len(kept))
        centers.append(centers_of_class[kept])
    return kind(labels, np.array(classes), np.concatenate(centers), labels)


def as_table(features: npt.ArrayLike) -> Float:
    """Features as float64, (samples, features); InputError unless they are a table of finite numbers."""
    table = np.asarray(features, dtype=np.float64)
    if table.ndim != 2 or not np.isfinite(table).all():
        refuse(f"features have shape {table.shape}, expected finite numbers (samples, features)")
    return table


class KMeansGroups(FeatureGroups):
    """k-means: −‖x − center‖²."""

    model: ClassVar[str] = "kmeans"

    def affinities_of(self, new: npt.ArrayLike) -> Float:
        return -np.asarray(euclidean_distances(self._fitting(new), self.centers, squared=True))

    def affinities_apart(self, training: npt.ArrayLike) -> Float:
        return -self._stretched(-self.affinities_of(training))


def group_by_kmeans(
    features: npt.ArrayLike, y: npt.ArrayLike | None, n_groups: Counts, *, seed: int = 0, restarts: int = _RESTARTS
) -> KMeansGroups:
    """Cluster the features (m, d) of each class by k-means (scikit-learn's, from k-means++).

    y (m,) holds the classes, or is None for groups across all classes (see `dmkl.numerics.grouping`); n_groups
    is a number of groups for each class, or a mapping from classes to numbers. The best of `restarts` runs is kept;
    `seed` makes the result reproducible.
    """
    table = as_table(features)
    wanted = samples_by_class(y, n_groups, len(table))
    parts = []
    for label, (rows, count) in wanted.items():
        distinct = min(count, len(np.unique(table[rows], axis=0)))  # identical samples cannot be in different groups
        with threadpool_limits(1, "openmp"):  # several threads add up in any order
            clustering = KMeans(distinct, n_init=restarts, random_state=seed).fit(table[rows])
        parts.append((label, rows, clustering.labels_.astype(np.intp), clustering.cluster_centers_.astype(np.float64)))
    return united(KMeansGroups, len(table), parts)


class KernelGroups(SampleGroups):
    """Kernel k-means: −‖φ(x) − center‖² without ‖φ(x)‖², which is the same for all centers."""

    model: ClassVar[str] = "kernel"

    @property
    def means(self) -> Float:
        """The block (m, G) whose product with a kernel between samples and the training samples shows their groups."""
        return np.asarray(one_hot(self.members, self.n_groups) / np.bincount(self.members, minlength=self.n_groups))

    def labels_of(self, products: Float) -> Index:
        """The group of each new sample, (t,), from the products with `means`, (t, G)."""
        return np.asarray(np.argmax(2.0 * products - self.centers, axis=1))

    def as_new(self, products: Float, squares: Float) -> KernelGroups:
        """See `FeatureGroups.as_new`, from the products with `means`, (m, G), and ‖φ(x)‖² = K_ii, (m,)."""
        apart = squares[:, None] - 2.0 * products + self.centers
        return replace(self, labels=np.argmin(self._stretched(apart), axis=1))


def group_by_kernel(
    multiply: Callable[[Float], Generator[Any, Any, Float]],
    diagonal: Float,
    y: npt.ArrayLike | None,
    n_groups: Counts,
    *,
    seed: int = 0,
) -> Generator[Any, Any, KernelGroups]:
    """Cluster each class by kernel k-means, with products of the kernel and blocks of vectors by `multiply`.

    With o_g the indicator of group g and n_g its size, ‖φ(x_i) − center_g‖² = K_ii − 2 (K o_g)_i/n_g + o_gᵀK o_g/n_g².
    All classes and restarts share each product: at most (largest n_groups) + `_ROUNDS` + 1, of `_RESTARTS`·G columns.
    The diagonal is K_ii, (m,); the rest is as in `group_by_kmeans`.
    """
    m = len(diagonal)
    wanted = samples_by_class(y, n_groups, m)
    runs = [
        (label, rows, _lloyd(diagonal[rows], count, np.random.default_rng([seed, number, place])))
        for place, (label, (rows, count)) in enumerate(wanted.items())
        for number in range(_RESTARTS if count > 1 else 1)
    ]
    ended: dict[int, _Clustering] = {}
    answers: dict[int, Any] = dict.fromkeys(range(len(runs)))
    while answers:
        requests: dict[int, Float] = {}
        for k, answer in answers.items():
            try:
                requests[k] = runs[k][2].send(answer)
            except StopIteration as stop:
                ended[k] = stop.value
        if not requests:
            break
        widths = np.cumsum([block.shape[1] for block in requests.values()])
        # Each run yields vectors over its class; they are put side by side, with zeros elsewhere, for one product.
        together = np.zeros((m, widths[-1]))
        for last, (k, block) in zip(widths, requests.items(), strict=True):
            together[runs[k][1], last - block.shape[1] : last] = block
        products = np.split((yield from multiply(together)), widths[:-1], axis=1)
        answers = {k: product[runs[k][1]] for k, product in zip(requests, products, strict=True)}
    parts = []
    for label, (rows, _) in wanted.items():
        best = min((k for k, run in enumerate(runs) if run[0] == label), key=lambda k: ended[k][0])
        parts.append((label, rows, ended[best][1], ended[best][2]))
    return united(KernelGroups, m, parts)


# The scatter, the group of each sample, and the squared norms of the centers
_Clustering = tuple[float, Index, Float]


def _lloyd(diagonal: Float, count: int, rng: np.random.Generator) -> Generator[Float, Float, _Clustering]:
    """Cluster one class once, from centers of k-means++; yields blocks, and receives their products with the kernel."""
    r = len(diagonal)
    if count == r:  # each sample is a group
        return 0.0, np.arange(r), diagonal
    # k-means++: the next center is a sample, drawn in proportion to its squared distance from the nearest so far.
    apart = np.empty((r, 0))
    chosen = int(rng.integers(r))
    for _ in range(count):
        column = (yield one_hot(np.array([chosen]), r).T)[:, 0]
        # ‖φ(x) − φ(c)‖² = K_xx + K_cc − 2K_xc; rounding may take it below zero.
        apart = np.column_stack([apart, np.maximum(diagonal + diagonal[chosen] - 2.0 * column, 0.0)])
        near = apart.min(axis=1)
        chosen = int(rng.choice(r, p=near / near.sum())) if near.any() else int(rng.integers(r))
    groups = np.argmin(apart, axis=1)
    scatter = np.inf
    for number in range(_ROUNDS + 1):
        sizes = np.bincount(groups, minlength=count)
        means = one_hot(groups, count) / np.maximum(sizes, 1)
        inner = yield means
        norms = np.sum(means * inner, axis=0)
        apart = diagonal[:, None] - 2.0 * inner + norms
        # A group that lost its last sample stays empty: its center would be the origin, which is near no sample.
        apart[:, sizes == 0] = np.inf
        now = float(apart[np.arange(r), groups].sum())
        better = np.argmin(apart, axis=1)
        # Every reassignment lets the scatter fall in exact arithmetic; where it does not, rounding decides: the end.
        if (better == groups).all() or not now < scatter or number == _ROUNDS:
            break
        scatter, groups = now, better
    return now, groups, norms


_FACTORIZATION: dict[str, Any] = {"solver": "mu", "beta_loss": "kullback-leibler", "max_iter": 2000, "tol": 1e-6}
_TENTHS = 10


class PLSAGroups(FeatureGroups):
    """pLSA: P(z|d) over the topics of all classes together, with the new sample folded in."""

    model: ClassVar[str] = "plsa"

    def affinities_of(self, new: npt.ArrayLike) -> Float:
        return _fold_in(_counts(self._fitting(new)), self.centers)

    def affinities_apart(self, training: npt.ArrayLike) -> Float:
        """A tenth of the samples is left out at a time instead of one.

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


def group_by_plsa(counts: npt.ArrayLike, y: npt.ArrayLike | None, n_groups: Counts, *, seed: int = 0) -> PLSAGroups:
    """Cluster each class by pLSA, fitted as a factorization under the Kullback-Leibler divergence (see the module).

    A topic that no sample of its class prefers makes no group. Counts are n(d, w) ≥ 0, (m, d), with a positive sum in
    each row, or InputError is raised; everything else, and other errors, are as in `group_by_kmeans`.
    """
    table = _counts(as_table(counts))
    wanted = samples_by_class(y, n_groups, len(table))
    if (empty := np.flatnonzero(table.sum(axis=1) == 0)).size:
        refuse(
            f"{len(empty)} rows of counts are all zero (the first: {empty[0]}), expected words in each: leave them out"
        )
    parts = []
    for label, (rows, count) in wanted.items():
        topics, words = _factorize(table[rows], count, seed)
        parts.append((label, rows, np.argmax(topics, axis=1), words))
    return united(PLSAGroups, len(table), parts)


def _fold_in(counts: Float, topics: Float) -> Float:
    """P(z|d) of documents (t, d) for fixed P(w|z), (t, G)."""
    if not len(counts):
        return np.zeros((0, len(topics)))
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):  # see _factorize
        weights, _, _ = non_negative_factorization(
            counts, H=topics, n_components=len(topics), update_H=False, **_FACTORIZATION
        )
    total = weights.sum(axis=1, keepdims=True)
    # A sample whose words occur in no topic is equally near to all of them.
    shares = np.where(total > 0, weights / np.where(total > 0, total, 1.0), 1.0 / len(topics))
    return np.asarray(shares, dtype=np.float64)


def _factorize(counts: Float, n_topics: int, seed: int) -> tuple[Float, Float]:
    """P(z|d) up to the scale of each row, and P(w|z), from the best of several runs."""
    # The likelihood has many local maxima, so the best of several random starts is kept.
    seeds = range(seed, seed + (_RESTARTS if n_topics > 1 else 1))
    models = [NMF(n_topics, init="random", random_state=number, **_FACTORIZATION) for number in seeds]
    # EM converges slowly at its end, long after the largest P(z|d) have stopped changing.
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        documents = [model.fit_transform(counts) for model in models]
    best = int(np.argmin([model.reconstruction_err_ for model in models]))
    words = models[best].components_
    sizes = words.sum(axis=1)
    return documents[best] * sizes, words / np.where(sizes > 0, sizes, 1.0)[:, None]


def _counts(table: Float) -> Float:
    if (table < 0).any():
        refuse(f"pLSA takes counts of words, but one is negative ({table.min():.3g}); use k-means for other features")
    return table


_MODELS: dict[str, type[SampleGroups]] = {
    kind.model: kind for kind in (KMeansGroups, PLSAGroups, KernelGroups, GivenGroups)
}


def groups_from_arrays(arrays: Mapping[str, Array]) -> SampleGroups:
    """Restore the groups that `SampleGroups.arrays` was called on."""
    labels, members = (np.asarray(arrays[key], dtype=np.intp) for key in ("labels", "members"))
    kind = _MODELS[str(arrays["model"])]
    return kind(labels, np.asarray(arrays["classes"]), np.asarray(arrays["centers"]), members)
