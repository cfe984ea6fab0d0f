"""Clusters of samples from several kernels, without labels: kernel k-means, and multiple kernel k-means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist
from sklearn.base import ClusterMixin
from sklearn.metrics import normalized_mutual_info_score
from sklearn.metrics.cluster import contingency_matrix
from sklearn.preprocessing import normalize

from dmkl.arrays import Array
from dmkl.errors import IndefiniteKernelWarning, refuse, warn
from dmkl.inputs.label_tables import label_table, matched_to
from dmkl.kernelset import Kernels, KernelSet
from dmkl.learners.checks import RULES, Given, check_count, given_weights
from dmkl.learners.learner import KernelLearner, labelled
from dmkl.learners.plan import FitOutcome, Problems, TrainingSet
from dmkl.learners.traits import labeled_array
from dmkl.numerics.fisher import Targets
from dmkl.numerics.grouping import group_by_kmeans
from dmkl.passes.blas import one_blas_thread
from dmkl.solvers.in_memory import InMemory
from dmkl.solvers.jobs import SideBySide
from dmkl.solvers.kmeans import kernel_k_means


def cluster_agreement(labels: npt.ArrayLike, y: npt.ArrayLike) -> dict[str, float]:
    """Agreement of clusters with classes, both (m,), that they were not made from.

    ``nmi`` is the mutual information over the mean of both entropies, ``purity`` the share of samples in the largest
    class of their cluster, ``accuracy`` that in the class of their cluster if each cluster is assigned another class,
    by the best assignment. `y` is matched to `labels_` of a model by name if both have names of samples. InputError if
    the lengths differ.
    """
    table = label_table(y)  # labels of a set come without names, in its order
    classes = (table.values if table.row_names is None else matched_to(labels, table)).astype(str)
    clusters = np.asarray(labels)
    if clusters.ndim != 1 or clusters.shape != classes.shape:
        refuse(f"labels have shape {clusters.shape} and y {classes.shape}; expected a cluster and a class per sample")
    shares = contingency_matrix(classes, clusters) / len(classes)
    accuracy = float(shares[linear_sum_assignment(shares, maximize=True)].sum())
    nmi = float(normalized_mutual_info_score(classes, clusters))
    return {"nmi": nmi, "purity": float(shares.max(axis=0).sum()), "accuracy": accuracy}


@dataclass(eq=False, repr=False)
class KernelKMeans(ClusterMixin, KernelLearner):  # type: ignore[misc]
    """Kernel k-means on a sum of kernels: clusters of the samples without labels, relaxed to eigenvectors.

    max over HᵀH = I of tr HᵀK_wH, K_w = Σ_j w_j K_j, by k leading eigenvectors H. The clusters are those of k-means on
    the rows of H, scaled to unit norm. `fit` ignores labels; `dmkl.cluster_agreement` compares them with the clusters.

    Parameters
    ----------
    n_clusters
        Number of clusters, 2 or more, and of eigenvectors.
    weights
        w, as in `MKFDA`, also those of a fitted model; all one where missing. `MultipleKernelKMeans` starts from them.
    restarts
        Number of starts of k-means, of which the best is kept.
    steps
        As in `MKFDA`. Kernels of unequal traces do not count equally.
    tol
        Largest residual of an eigenvector relative to the largest eigenvalue, and change of a γ_j in the last step
        relative to the largest γ.
    max_iter
        Most blocks of vectors for the eigenvectors, and most changes of γ.
    random_state
        Seed of the first vectors and of k-means.

    Attributes
    ----------
    labels_ : DataArray
        Cluster of each sample, from 0.
    weights_ : DataArray
        w, over kernel.
    embedding_, centers_ : DataArray
        H, (sample, component), and centers of its rows at unit norm, (cluster, component).
    objective_ : float
        tr K_w − tr HᵀK_wH; nothing is proven about it, and `gap_` is NaN.
    dual_coef_, status_, n_passes_, n_iter_, history_, train_samples_, kernel_names_
        As in `MKFDA`; `dual_coef_` is HΛ⁻¹ with the eigenvalues Λ.

    Notes
    -----
    Eigenvectors do not depend on a multiple of the identity, so that an indefinite sum has clusters too, with a warning
    (IndefiniteKernelWarning). A kernel with a negative trace is refused.

    Zha, He, Ding, Gu, Simon, Spectral relaxation for k-means clustering, NIPS 2001. It takes one pass if the kernels
    fit in memory, else one for each block of vectors.

    Examples
    --------
    >>> import dmkl
    >>> K = dmkl.open("kernels.zarr")
    >>> model = dmkl.KernelKMeans(3).fit(K)
    >>> dmkl.cluster_agreement(model.labels_, K.labels)["nmi"] > 0.5
    True
    """

    _alternates = False
    """Whether weights are learnt, in turn with the clusters."""

    n_clusters: int = 8
    _: KW_ONLY
    weights: Given = None
    restarts: int = 10
    steps: str | Sequence[str] = ("center", "trace")
    tol: float = 1e-5
    max_iter: int = 100
    random_state: int = 0

    traits = KernelLearner.traits.but(
        needs_labels=False,
        learns_weights=False,  # not from labels, at no p or λ
        rules=RULES | {"restarts": check_count},
        fitted={
            "labels_": labeled_array("sample", root="cluster_label"),
            "embedding_": labeled_array("sample", "component", root="embedding"),
            "centers_": labeled_array("cluster", "component", root="center"),
        },
    )

    def _check_data(self, K: KernelSet, targets: Targets) -> None:
        super()._check_data(K, targets)
        if self.n_clusters > K.shape[1]:
            refuse(f"n_clusters is {self.n_clusters}, and there are {K.shape[1]} samples; expected at most that many")

    def _targets(self, labels: npt.ArrayLike, n_samples: int, tasks: Array | None) -> Targets:
        n_clusters = check_count("n_clusters", self.n_clusters, least=2)
        none = np.zeros((n_samples, n_clusters))
        return Targets("clusters", np.arange(n_clusters), (none,), none[:, 0], (None,), np.zeros(0))

    def _problems(self, targets: Targets, tasks: Array | None) -> Problems:
        return Problems(targets, None, np.zeros(1), ("component", targets.classes), targets.problems, (None,))

    def _method(self) -> SideBySide:
        return InMemory()

    def _problem(self, data: TrainingSet, number: int) -> Any:
        diagonal = data.training.square.diagonal()[data.positions]
        weights = np.ones(len(diagonal)) if self.weights is None else given_weights(self.weights, data.names)
        start = np.random.default_rng(self.random_state).standard_normal((diagonal.shape[1], self.n_clusters))
        rule = partial(kernel_k_means, learns=self._alternates, tol=self.tol, max_iter=self.max_iter)
        return partial(rule, diagonal.sum(axis=1), start, weights, data.facts)

    def _set_attributes(self, outcome: FitOutcome) -> None:
        if least := float(outcome.outcomes[0].extra["least"]):
            warn(
                f"the weighted sum of the kernels has an eigenvalue of {least:.3g} or less: a kernel is not positive "
                "semidefinite. The eigenvectors are those of the sum plus a multiple of the identity; `dmkl check` "
                "names such kernels, and importing with repair= repairs them",
                IndefiniteKernelWarning,
            )
        H = outcome.outcomes[0].extra["embedding"]
        groups = group_by_kmeans(normalize(H), None, self.n_clusters, seed=self.random_state, restarts=self.restarts)
        self.embedding_ = self.dual_coef_.copy(data=H).rename("embedding")
        self.labels_ = self.embedding_[:, 0].drop_vars("component").copy(data=groups.labels).rename("cluster_label")
        coords = {"cluster": np.arange(groups.n_groups), "component": self.embedding_["component"].values}
        self.centers_ = xr.DataArray(groups.centers, coords, ("cluster", "component"), name="center")

    def _score_dim(self) -> str | None:
        return "class"

    @one_blas_thread
    def decision_function(self, K: Kernels | None = None, **new: Any) -> xr.DataArray:
        """Coordinates k_w(x, ·)HΛ⁻¹ of the row samples, (sample, component); those of training samples are H.

        Kernels or features are given as in `KernelClassifier.decision_function`.
        """
        scores = self._decision(K, **new).rename({"class": "component"})
        return scores.assign_coords(self.dual_coef_["component"].coords)

    @one_blas_thread
    def predict(self, K: Kernels | None = None, *, as_xarray: bool = False, **new: Any) -> Any:
        """The cluster of the nearest center of each row sample, (samples,), as in the `predict` of a classifier."""
        scores = self.decision_function(K, **new)
        labels = self.labels_of(scores.values)
        return labelled(labels, scores, "cluster_label") if as_xarray else labels

    def labels_of(self, scores: Array) -> Array:
        """Clusters of coordinates of `decision_function`, (samples,)."""
        return np.asarray(np.argmin(cdist(normalize(scores), self.centers_.values), axis=1))


class MultipleKernelKMeans(KernelKMeans):
    """Multiple kernel k-means (MKKM): weights of the kernels and clusters of the samples, without labels.

        min over γ ≥ 0, Σγ = 1, and HᵀH = I of  tr K_γ(I − HHᵀ),   K_γ = Σ_j γ_j² K_j,

    in turn for H, leading eigenvectors of K_γ, and γ_j ∝ 1/tr K_j(I − HHᵀ). Clusters, parameters and attributes are as
    in `KernelKMeans`; `weights_` are γ², whose roots sum to one. Each change of γ takes a pass more.

    Notes
    -----
    Huang, Chuang, Chen, Multiple kernel fuzzy clustering, IEEE Transactions on Fuzzy Systems 20 (2012); in this form
    Gönen, Margolin, NIPS 2014, section 2. See `dmkl.solvers.kmeans`.

    Weights are large for kernels with most of their trace in few eigenvalues, whether these show clusters or not; a
    kernel of rank `n_clusters` or less takes all. Compare with `KernelKMeans`, whose plain sum is often better.

    Examples
    --------
    >>> import dmkl
    >>> weights = dmkl.MultipleKernelKMeans(3).fit(dmkl.open("kernels.zarr")).weights_
    """

    _alternates = True
