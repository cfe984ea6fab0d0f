"""Groups of samples inside each class: what group-sensitive weights are weights of.

Yang, Li, Tian, Duan, Gao, ICCV 2009 (GS-MKL), section 5.3: the training samples of each class are clustered into a few
groups, by k-means or by probabilistic latent semantic analysis (pLSA); a group belongs to one class. Three models:

`group_by_kmeans`
    k-means on features.
`group_by_plsa`
    pLSA on counts n(d, w) ≥ 0 (bags of words), P(w|d) = Σ_z P(z|d) P(w|z); the group is the z of the largest P(z|d).
`group_by_kernel`
    kernel k-means, for a kernel known by its products with vectors alone.

The group of a new sample
-------------------------
The decision function (Eq. 4) needs c(x) of a new x, whose class is not known; the paper does not say where from. Here
the model that made the groups decides: `labels_of(new)` is the group with the nearest center (the largest P(z|d)) among
the groups of all classes. `affinities_of(new)` has the values that are compared, larger being nearer, and
`labels_of(new, among=…)` picks among the groups of some classes only.

The training samples of groups inside classes were grouped by another rule, which knew their class, and a classifier
with weights for each group can read the class off the group (see `dmkl.solvers.groups`). `Groups.as_new(training)`
groups them by the rule for new samples, and each of them as if no center had been made of it: a sample is nearer to a
center that it has its share in than any new sample of its kind. With n members, the center c without x lies at

    ‖x − c₋ₓ‖² = (n/(n − 1))² ‖x − c‖².

(On 680 images of 17 classes, one group each by a mean kernel of which 58 % of new images get the group of their class,
80 % of the training images would get it from the whole centers.) Groups across classes (y = None) need none of this.

pLSA as a factorization
-----------------------
With W_dz ≥ 0 and H_zw ≥ 0, Σ_w H_zw = 1 (the sums moved into W), the generalized Kullback-Leibler divergence is

    D(n | WH) = Σ_dw [ −n(d, w) log (WH)_dw + (WH)_dw ] + constant
              = Σ_d [ −Σ_w n(d, w) log (WH)_dw + Σ_z W_dz ] + constant.

Row d of W times s changes it by −N_d log s + (s − 1) Σ_z W_dz, N_d = Σ_w n(d, w): at a minimum Σ_z W_dz = N_d. So
W_dz = N_d P(z|d), H_zw = P(w|z), and what is left is −Σ n(d, w) log Σ_z P(z|d)P(w|z), minus the log-likelihood of pLSA:
the minimizers are its maximum likelihood estimates (Gaussier and Goutte, SIGIR 2005). With H fixed the problem is
convex in W: a new sample is folded in without restarts.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from sklearn.cluster import KMeans
from sklearn.decomposition import NMF, non_negative_factorization
from sklearn.exceptions import ConvergenceWarning

from dmkl.errors import InputError

__all__ = [
    "Groups",
    "KMeansGroups",
    "KernelGroups",
    "PLSAGroups",
    "group_by_kernel",
    "group_by_kmeans",
    "group_by_plsa",
    "groups_from_arrays",
    "one_hot",
]

Array = npt.NDArray[Any]
Float = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]
Products = Callable[[Float], Float]


def one_hot(labels: Index, n_groups: int) -> Float:
    """The (m, G) matrix with a one in each row, in the column of the row's group."""
    return np.asarray(np.eye(n_groups)[labels])


@dataclass(frozen=True)
class Groups(ABC):
    """Groups of the training samples, and how new ones get theirs.

    Parameters
    ----------
    labels
        (m,), the group of each training sample, 0 … G − 1.
    classes
        (G,), the class that each group belongs to.
    centers
        What the model compares new samples with: (G, d) centers (k-means), (G, d) P(w|z) (pLSA), (G,) squared norms of
        the centers (kernel k-means).
    members
        (m,), the samples' groups that the centers were made of: `labels`, unless these were chosen anew by `as_new`.
    """

    labels: Index
    classes: Array
    centers: Float
    members: Index
    model: ClassVar[str]

    @property
    def n_groups(self) -> int:
        """The number of groups, G."""
        return len(self.classes)

    @abstractmethod
    def affinities_of(self, new: Any) -> Float:
        """How near each new sample is to each group, (t, G): larger is nearer."""

    def labels_of(self, new: Any, among: npt.ArrayLike | None = None) -> Index:
        """The group of each new sample, (t,).

        Parameters
        ----------
        new
            (t, d) features or counts; for `KernelGroups` a callable that multiplies the (t, m) kernel between new and
            training samples by an (m, G) matrix.
        among
            Classes, to choose among their groups only; all where missing.

        Raises
        ------
        InputError
            If `among` names no class of a group, or the features do not fit.
        """
        affinities = self.affinities_of(new)
        if among is not None:
            allowed = np.isin(self.classes, among)
            if not allowed.any():
                msg = f"among={among!r} names no class that has groups; the classes are {list(np.unique(self.classes))}"
                raise InputError(msg)
            affinities = np.where(allowed, affinities, -np.inf)
        return np.asarray(np.argmax(affinities, axis=1), dtype=np.intp)

    @abstractmethod
    def affinities_apart(self, training: Any, squares: Float | None = None) -> Float:
        """How near each training sample is to each group, made without that sample, (m, G).

        Parameters
        ----------
        training
            The training samples, as `labels_of` takes new ones.
        squares
            (m,), ‖φ(x)‖² = K_ii of the training samples; `KernelGroups` need it.
        """

    def as_new(self, training: Any, squares: Float | None = None) -> Groups:
        """The same centers, but each training sample in the group that a new sample like it would get.

        `labels` then tells no more of the class than it will for new samples (see the module). Groups that nobody is in
        any more keep their center, so that G and the numbers stay.

        Parameters
        ----------
        training, squares
            As in `affinities_apart`.
        """
        apart = self.affinities_apart(training, squares)
        return replace(self, labels=np.asarray(np.argmax(apart, axis=1), dtype=np.intp))

    def arrays(self) -> dict[str, Array]:
        """All there is, as plain arrays by name: `groups_from_arrays` makes the same groups of them."""
        stored = {key: getattr(self, key) for key in ("labels", "classes", "centers", "members")}
        return {"model": np.array(self.model), **stored}

    def _stretched(self, squared: Float) -> Float:
        """Squared distances from centers as they are without each sample, from those as they are; see the module."""
        sizes = np.bincount(self.members, minlength=self.n_groups)[self.members].astype(np.float64)
        alone = sizes == 1
        own = np.arange(len(self.members)), self.members
        stretched = squared.copy()
        stretched[own] *= (sizes / np.where(alone, 1.0, sizes - 1.0)) ** 2
        stretched[own[0][alone], own[1][alone]] = np.inf
        return stretched

    def _fitting(self, new: Any) -> Float:
        table: Float = np.asarray(new, dtype=np.float64)
        if table.ndim != 2 or table.shape[1] != self.centers.shape[1]:
            msg = f"new samples have shape {table.shape}, expected (samples, {self.centers.shape[1]}) as in training"
            raise InputError(msg)
        return table


@dataclass(frozen=True)
class KMeansGroups(Groups):
    """k-means: −‖x − center‖²."""

    model: ClassVar[str] = "kmeans"

    def affinities_of(self, new: Any) -> Float:
        """See `Groups.affinities_of`."""
        new = self._fitting(new)
        apart = np.sum(new**2, axis=1)[:, None] - 2.0 * new @ self.centers.T + np.sum(self.centers**2, axis=1)
        return -np.asarray(apart)

    def affinities_apart(self, training: Any, squares: Float | None = None) -> Float:
        """See `Groups.affinities_apart`."""
        return -self._stretched(-self.affinities_of(training))


@dataclass(frozen=True)
class PLSAGroups(Groups):
    """pLSA: P(z|d) over the topics of all classes side by side, the new sample folded in."""

    model: ClassVar[str] = "plsa"

    def affinities_of(self, new: Any) -> Float:
        """See `Groups.affinities_of`."""
        return _fold_in(_counts(self._fitting(new)), self.centers)

    def affinities_apart(self, training: Any, squares: Float | None = None) -> Float:
        """See `Groups.affinities_apart`; here without a tenth of the samples at a time, the sample among them.

        A sample adds n(d, w) P(z|d, w) to the counts of which P(w|z) is made, with z among its own class's topics.
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
        found = np.empty_like(shares)
        for tenth in range(_TENTHS):
            left = tenths == tenth
            rest = np.maximum(whole - self.centers * (shares[left].T @ ratio[left]), 0.0)
            sizes = rest.sum(axis=1, keepdims=True)
            found[left] = _fold_in(counts[left], rest / np.where(sizes > 0, sizes, 1.0))
        return found


_TENTHS = 10


def _fold_in(counts: Float, topics: Float) -> Float:
    """P(z|d) of documents (t, d) for P(w|z) as they are, (t, G)."""
    if not len(counts):
        return np.zeros((0, len(topics)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # see _factorize
        weights, _, _ = non_negative_factorization(
            counts,
            H=topics,
            n_components=len(topics),
            update_H=False,
            solver="mu",
            beta_loss="kullback-leibler",
            max_iter=_PLSA_STEPS,
            tol=_PLSA_TOL,
        )
    total = weights.sum(axis=1, keepdims=True)
    # A sample without a word that any topic knows is as near to all of them.
    shares = np.where(total > 0, weights / np.where(total > 0, total, 1.0), 1.0 / len(topics))
    return np.asarray(shares, dtype=np.float64)


@dataclass(frozen=True)
class KernelGroups(Groups):
    """Kernel k-means: −‖φ(x) − center‖² without ‖φ(x)‖², which no comparison needs."""

    model: ClassVar[str] = "kernel"

    def affinities_of(self, new: Any) -> Float:
        """See `Groups.affinities_of`."""
        sizes = np.bincount(self.members, minlength=self.n_groups)
        return np.asarray(2.0 * new(one_hot(self.members, self.n_groups) / sizes) - self.centers)

    def affinities_apart(self, training: Any, squares: Float | None = None) -> Float:
        """See `Groups.affinities_apart`.

        Raises
        ------
        InputError
            If `squares` is missing.
        """
        if squares is None:
            msg = "groups by kernel k-means need squares=, the diagonal of the training kernel, to leave a sample out"
            raise InputError(msg)
        return squares[:, None] - self._stretched(squares[:, None] - self.affinities_of(training))


_MODELS: dict[str, type[Groups]] = {made.model: made for made in (KMeansGroups, PLSAGroups, KernelGroups)}


def groups_from_arrays(arrays: Mapping[str, Array]) -> Groups:
    """The groups that `Groups.arrays` was called on."""
    made = _MODELS[str(arrays["model"])]
    labels, members = (np.asarray(arrays[key], dtype=np.intp) for key in ("labels", "members"))
    return made(labels, np.asarray(arrays["classes"]), np.asarray(arrays["centers"]), members)


# --- making groups -----------------------------------------------------------------------------------------------


def _wanted(
    y: npt.ArrayLike | None, n_groups: int | Mapping[Any, int], m: int
) -> tuple[Array, dict[Any, tuple[Index, int]]]:
    """The labels, and for each class its samples and how many groups they are to make."""
    labels = np.zeros(m, dtype=int) if y is None else np.asarray(y)
    if labels.shape != (m,):
        msg = f"y has shape {labels.shape}, expected ({m},): each sample's class, or None for groups across classes"
        raise InputError(msg)
    wanted: dict[Any, tuple[Index, int]] = {}
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        if isinstance(n_groups, Mapping) and label not in n_groups:
            msg = f"n_groups has no entry for class {label!r}, expected one for each of {list(np.unique(labels))}"
            raise InputError(msg)
        count = n_groups[label] if isinstance(n_groups, Mapping) else n_groups
        if not 1 <= count <= len(rows):
            msg = f"class {label!r} has {len(rows)} samples and is to make {count} groups, expected 1 to {len(rows)}"
            raise InputError(msg)
        wanted[label] = rows, int(count)
    return labels, wanted


def _together(kind: type[Groups], m: int, parts: list[tuple[Any, Index, Index, Float]]) -> Groups:
    """One set of groups from (class, its rows, their groups, the centers); empty groups are left out."""
    labels = np.empty(m, dtype=np.intp)
    classes: list[Any] = []
    centers: list[Float] = []
    for label, rows, found, own in parts:
        kept, numbered = np.unique(found, return_inverse=True)
        labels[rows] = len(classes) + numbered
        classes.extend([label] * len(kept))
        centers.append(own[kept])
    return kind(labels, np.array(classes), np.concatenate(centers), labels)


def group_by_kmeans(
    features: npt.ArrayLike,
    y: npt.ArrayLike | None,
    n_groups: int | Mapping[Any, int],
    *,
    seed: int = 0,
    restarts: int = 10,
) -> KMeansGroups:
    """Cluster each class by k-means (scikit-learn's, from k-means++).

    Parameters
    ----------
    features
        (m, d)
    y
        (m,), the classes; None for groups across all classes (see the module).
    n_groups
        Groups of each class: a number, or a mapping from classes to numbers.
    seed
        Fixes all that is random.
    restarts
        Runs of each class, the best of which is kept.

    Raises
    ------
    InputError
        If features and labels do not fit together, or a class has fewer samples than groups.
    """
    table = _table(features)
    labels, wanted = _wanted(y, n_groups, len(table))
    parts = []
    for label, (rows, count) in wanted.items():
        distinct = min(count, len(np.unique(table[rows], axis=0)))  # identical samples cannot be told apart
        found = KMeans(distinct, n_init=restarts, random_state=seed).fit(table[rows])
        parts.append((label, rows, found.labels_.astype(np.intp), found.cluster_centers_.astype(np.float64)))
    return _together(KMeansGroups, len(labels), parts)  # type: ignore[return-value]


_PLSA_STEPS = 2000
_PLSA_TOL = 1e-6


def group_by_plsa(
    counts: npt.ArrayLike,
    y: npt.ArrayLike | None,
    n_groups: int | Mapping[Any, int],
    *,
    seed: int = 0,
    restarts: int = 10,
) -> PLSAGroups:
    """Cluster each class by pLSA, fitted as a factorization under the Kullback-Leibler divergence (see the module).

    A topic that no sample of its class prefers makes no group.

    Parameters
    ----------
    counts
        (m, d), n(d, w) ≥ 0, a positive sum in each row.
    y, n_groups, seed, restarts
        As in `group_by_kmeans`.

    Raises
    ------
    InputError
        As `group_by_kmeans`, and if a count is negative or a row has none.
    """
    table = _counts(_table(counts))
    labels, wanted = _wanted(y, n_groups, len(table))
    if (empty := np.flatnonzero(table.sum(axis=1) == 0)).size:
        msg = (
            f"{len(empty)} rows of counts are all zero (the first: {empty[0]}), expected words in each: leave them out"
        )
        raise InputError(msg)
    parts = []
    for label, (rows, count) in wanted.items():
        topics, words = _factorize(table[rows], count, seed, restarts)
        parts.append((label, rows, np.argmax(topics, axis=1), words))
    return _together(PLSAGroups, len(labels), parts)  # type: ignore[return-value]


def _factorize(counts: Float, n_topics: int, seed: int, restarts: int) -> tuple[Float, Float]:
    """P(z|d) up to the scale of each row, and P(w|z), of the best of several runs."""
    best, least = None, np.inf
    for number in range(restarts if n_topics > 1 else 1):
        model = NMF(
            n_topics,
            init="random",
            solver="mu",
            beta_loss="kullback-leibler",
            max_iter=_PLSA_STEPS,
            tol=_PLSA_TOL,
            random_state=seed + number,
        )
        with warnings.catch_warnings():
            # EM's end is slow, and long before it the largest P(z|d) no longer change.
            warnings.simplefilter("ignore", ConvergenceWarning)
            documents = model.fit_transform(counts)
        if best is None or model.reconstruction_err_ < least:
            best, least = (documents, model.components_), model.reconstruction_err_
    assert best is not None
    documents, words = best
    sizes = words.sum(axis=1)
    return documents * sizes, words / np.where(sizes > 0, sizes, 1.0)[:, None]


def group_by_kernel(
    products: Products,
    diagonal: npt.ArrayLike,
    y: npt.ArrayLike | None,
    n_groups: int | Mapping[Any, int],
    *,
    seed: int = 0,
    restarts: int = 10,
    max_iter: int = 100,
) -> KernelGroups:
    """Cluster each class by kernel k-means, from products of the kernel with blocks of vectors.

    With o_g the indicator of group g and n_g its size, ‖φ(x_i) − center_g‖² = K_ii − 2 (K o_g)_i/n_g + o_gᵀK o_g/n_g².
    All classes and restarts share each product: at most (largest n_groups) + max_iter + 1, of restarts·G columns.

    Parameters
    ----------
    products
        Multiplies the (m, m) kernel by an (m, b) matrix.
    diagonal
        (m,), K_ii.
    y, n_groups, seed, restarts
        As in `group_by_kmeans`.
    max_iter
        Most rounds of reassignment.

    Raises
    ------
    InputError
        As `group_by_kmeans`.
    """
    diagonal = np.asarray(diagonal, dtype=np.float64)
    if diagonal.ndim != 1:
        msg = f"the diagonal has shape {diagonal.shape}, expected (m,): K_ii of each sample"
        raise InputError(msg)
    m = len(diagonal)
    _, wanted = _wanted(y, n_groups, m)
    runs: list[tuple[Any, Index, _Lloyd]] = [
        (label, rows, _lloyd(diagonal[rows], count, np.random.default_rng([seed, number, place]), max_iter))
        for place, (label, (rows, count)) in enumerate(wanted.items())
        for number in range(restarts if count > 1 else 1)
    ]
    ended: dict[int, tuple[float, Index, Float]] = {}
    asked = {k: next(run) for k, (_, _, run) in enumerate(runs)}
    while asked:
        widths = np.cumsum([block.shape[1] for block in asked.values()])
        together = np.zeros((m, widths[-1]))
        for last, (k, block) in zip(widths, asked.items(), strict=True):
            together[runs[k][1], last - block.shape[1] : last] = block
        answers = np.split(products(together), widths[:-1], axis=1)
        still: dict[int, Float] = {}
        for k, answer in zip(asked, answers, strict=True):
            _, rows, run = runs[k]
            try:
                still[k] = run.send(answer[rows])
            except StopIteration as stop:
                ended[k] = stop.value
        asked = still
    parts = []
    for label, (rows, _) in wanted.items():
        best = min((k for k, run in enumerate(runs) if run[0] == label), key=lambda k: ended[k][0])
        parts.append((label, rows, ended[best][1], ended[best][2]))
    return _together(KernelGroups, m, parts)  # type: ignore[return-value]


_Lloyd = Generator[Float, Float, tuple[float, Index, Float]]


def _lloyd(diagonal: Float, count: int, rng: np.random.Generator, max_iter: int) -> _Lloyd:
    """One run in one class: yields blocks V (r, b), is sent KV, returns the scatter, the groups, the centers' norms."""
    r = len(diagonal)
    # k-means++: the next center is a sample, drawn in proportion to its squared distance from the nearest so far.
    apart = np.empty((r, 0))
    chosen = int(rng.integers(r))
    for _ in range(count):
        column = (yield one_hot(np.array([chosen]), r).T)[:, 0]
        apart = np.column_stack([apart, np.maximum(diagonal + diagonal[chosen] - 2.0 * column, 0.0)])
        near = apart.min(axis=1)
        chosen = int(rng.choice(r, p=near / near.sum())) if near.any() else int(rng.integers(r))
    found = np.argmin(apart, axis=1)
    scatter, norms = np.inf, np.zeros(count)
    for _ in range(max_iter):
        sizes = np.maximum(np.bincount(found, minlength=count), 1)
        means = one_hot(found, count) / sizes
        inner = yield means
        norms = np.sum(means * inner, axis=0)
        apart = diagonal[:, None] - 2.0 * inner + norms
        # A group that lost its last sample stays empty: its center would be the origin, which is no sample's neighbor.
        apart[:, np.bincount(found, minlength=count) == 0] = np.inf
        now = float(apart[np.arange(r), found].sum())
        better = np.argmin(apart, axis=1)
        if (better == found).all() or not now < scatter:
            return now, found, norms
        scatter, found = now, better
    means = one_hot(found, count) / np.maximum(np.bincount(found, minlength=count), 1)
    inner = yield means
    norms = np.sum(means * inner, axis=0)
    return float(diagonal.sum() - np.bincount(found, minlength=count) @ norms), found, norms


# --- input -------------------------------------------------------------------------------------------------------


def _table(features: npt.ArrayLike) -> Float:
    table = np.asarray(features, dtype=np.float64)
    if table.ndim != 2 or not np.isfinite(table).all():
        msg = f"features have shape {table.shape}, expected finite numbers (samples, features)"
        raise InputError(msg)
    return table


def _counts(table: Float) -> Float:
    if (table < 0).any():
        msg = f"pLSA takes counts of words, and one is negative ({table.min():.3g}); use k-means for other features"
        raise InputError(msg)
    return table
