"""Groups by kernel k-means, inside each class, for a kernel that is used through products with vectors alone.

Functions that need such products are generators: they yield a block of vectors V (m, b), receive KV, and return their
result. So the groupings of several sets of samples can share the passes over stored kernels.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from dmkl.arrays import Float, Index
from dmkl.errors import InputError
from dmkl.numerics.grouping.groups import SampleGroups, one_hot, samples_by_class, united

__all__ = ["KernelGroups", "group_by_kernel"]

Result = TypeVar("Result")
ByProducts = Generator[Float, Float, Result]


@dataclass(frozen=True)
class KernelGroups(SampleGroups):
    """Kernel k-means: −‖φ(x) − center‖² without ‖φ(x)‖², which is the same for all centers."""

    model: ClassVar[str] = "kernel"

    def affinities_of_new(self) -> ByProducts[Float]:
        """The affinity of each new sample to each group, (t, G): larger is nearer.

        Yields one block, (m, G), and receives its product with the (t, m) kernel between new and training samples.
        """
        sizes = np.bincount(self.members, minlength=self.n_groups)
        product = yield one_hot(self.members, self.n_groups) / sizes
        return np.asarray(2.0 * product - self.centers)

    def labels_of_new(self, among: npt.ArrayLike | None = None) -> ByProducts[Index]:
        """The group of each new sample, (t,), from one product as in `affinities_of_new`; `among` as in `nearest`."""
        return self.nearest((yield from self.affinities_of_new()), among)

    def as_new(self, squares: Float) -> ByProducts[KernelGroups]:
        """The same centers, with each training sample in the group that a similar new sample would get.

        `labels` then carries as much information on the class as it does for new samples (see
        `dmkl.numerics.grouping.groups`). Yields one block, (m, G), and receives its product with the training kernel;
        squares are ‖φ(x)‖² = K_ii, (m,).
        """
        affinities = yield from self.affinities_of_new()
        return self._relabeled(squares[:, None] - self._stretched(squares[:, None] - affinities))


def group_by_kernel(
    diagonal: npt.ArrayLike,
    y: npt.ArrayLike | None,
    n_groups: int | Mapping[Any, int],
    *,
    seed: int = 0,
    restarts: int = 10,
    max_iter: int = 100,
) -> ByProducts[KernelGroups]:
    """Cluster each class by kernel k-means; yields blocks of vectors and receives their products with the kernel.

    With o_g the indicator of group g and n_g its size, ‖φ(x_i) − center_g‖² = K_ii − 2 (K o_g)_i/n_g + o_gᵀK o_g/n_g².
    All classes and restarts share each product: at most (largest n_groups) + max_iter + 1, of restarts·G columns, with
    at most max_iter rounds of reassignment. The diagonal holds K_ii, (m,); everything else, and the errors, are as in
    `group_by_kmeans`.
    """
    diagonal = np.asarray(diagonal, dtype=np.float64)
    if diagonal.ndim != 1:
        msg = f"the diagonal has shape {diagonal.shape}, expected (m,): K_ii of each sample"
        raise InputError(msg)
    m = len(diagonal)
    wanted = samples_by_class(y, n_groups, m)
    runs: list[tuple[Any, Index, ByProducts[_Clustering]]] = [
        (label, rows, _lloyd(diagonal[rows], count, np.random.default_rng([seed, number, place]), max_iter))
        for place, (label, (rows, count)) in enumerate(wanted.items())
        for number in range(restarts if count > 1 else 1)
    ]
    ended: dict[int, _Clustering] = {}
    requests = {k: next(run) for k, (_, _, run) in enumerate(runs)}
    while requests:
        widths = np.cumsum([block.shape[1] for block in requests.values()])
        # Each run yields vectors over its class; they are put side by side, with zeros elsewhere, for one product.
        together = np.zeros((m, widths[-1]))
        for last, (k, block) in zip(widths, requests.items(), strict=True):
            together[runs[k][1], last - block.shape[1] : last] = block
        answers = np.split((yield together), widths[:-1], axis=1)
        still: dict[int, Float] = {}
        for k, answer in zip(requests, answers, strict=True):
            _, rows, run = runs[k]
            try:
                still[k] = run.send(answer[rows])
            except StopIteration as stop:
                ended[k] = stop.value
        requests = still
    parts = []
    for label, (rows, _) in wanted.items():
        best = min((k for k, run in enumerate(runs) if run[0] == label), key=lambda k: ended[k][0])
        parts.append((label, rows, ended[best][1], ended[best][2]))
    return united(KernelGroups, m, parts)


# The scatter, the group of each sample, and the squared norms of the centers
_Clustering = tuple[float, Index, Float]


def _lloyd(diagonal: Float, count: int, rng: np.random.Generator, max_iter: int) -> ByProducts[_Clustering]:
    """Cluster one class once, with k-means++ starting centers."""
    r = len(diagonal)
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
    scatter, norms = np.inf, np.zeros(count)
    for _ in range(max_iter):
        sizes = np.maximum(np.bincount(groups, minlength=count), 1)
        means = one_hot(groups, count) / sizes
        inner = yield means
        norms = np.sum(means * inner, axis=0)
        apart = diagonal[:, None] - 2.0 * inner + norms
        # A group that lost its last sample stays empty: its center would be the origin, which is near no sample.
        apart[:, np.bincount(groups, minlength=count) == 0] = np.inf
        now = float(apart[np.arange(r), groups].sum())
        better = np.argmin(apart, axis=1)
        # The scatter falls with every reassignment in exact arithmetic; if it does not, rounding decides, and the
        # iteration ends.
        if (better == groups).all() or not now < scatter:
            return now, groups, norms
        scatter, groups = now, better
    means = one_hot(groups, count) / np.maximum(np.bincount(groups, minlength=count), 1)
    inner = yield means
    norms = np.sum(means * inner, axis=0)
    return float(diagonal.sum() - np.bincount(groups, minlength=count) @ norms), groups, norms
