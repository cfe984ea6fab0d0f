"""Groups of samples with separate kernel weights, for group-sensitive MKL.

Yang, Li, Tian, Duan, Gao, ICCV 2009 (GS-MKL), section 5.3: the training samples of each class are clustered into a few
groups, by k-means or by probabilistic latent semantic analysis; a group belongs to one class. Each rule has a module.

The group of a new sample
-------------------------
The decision function (Eq. 4) needs c(x) of a new x with unknown class; the paper does not define it. Here the rule that
made the groups decides: the group of x is the one with the nearest center (the largest P(z|d) of pLSA) among the groups
of all classes, or of some.

The training samples were grouped inside their classes by another rule, which used the class, and a classifier with
weights for each group could read the class off the group (see `dmkl.solvers.groups`). `as_new` groups them by the rule
for new samples, and removes each sample from its center first: a sample is closer to a center that it contributed to
than any similar new sample is. With n members, the distance from the center c without x is

    ‖x − c₋ₓ‖² = (n/(n − 1))² ‖x − c‖².

(On 680 images of 17 classes, with one group per class by a mean kernel, 58 % of new images get the group of their
class; 80 % of the training images would get it from the centers they contributed to.) Groups across classes (y = None)
need none of this.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import numpy.typing as npt

from dmkl.arrays import Array, Float, Index
from dmkl.errors import InputError

__all__ = ["FeatureGroups", "SampleGroups", "as_table", "one_hot", "samples_by_class", "united"]


def one_hot(labels: Index, n_groups: int) -> Float:
    """The (m, G) matrix with a one in each row, in the column of the row's group."""
    return np.asarray(np.eye(n_groups)[labels])


@dataclass(frozen=True)
class SampleGroups(ABC):
    """Groups of the training samples, and the rule that assigns new samples to them."""

    labels: Index
    """(m,), the group of each training sample, 0 … G − 1."""
    classes: Array
    """(G,), the class that each group belongs to."""
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

    def nearest(self, affinities: Float, among: npt.ArrayLike | None = None) -> Index:
        """The group of each sample, (t,), from its affinity to each group, (t, G).

        `among` restricts the groups to those of these classes; InputError if none of the classes has a group.
        """
        if among is not None:
            allowed = np.isin(self.classes, among)
            if not allowed.any():
                classes = np.unique(self.classes).tolist()
                msg = f"among={among!r} names no class that has groups; the classes are {classes}"
                raise InputError(msg)
            affinities = np.where(allowed, affinities, -np.inf)
        return np.asarray(np.argmax(affinities, axis=1), dtype=np.intp)

    def arrays(self) -> dict[str, Array]:
        """The groups as plain arrays by name, from which `groups_from_arrays` makes the same groups."""
        stored = {key: getattr(self, key) for key in ("labels", "classes", "centers", "members")}
        return {"model": np.array(self.model), **stored}

    def _relabeled(self, affinities: Float) -> Self:
        """The same centers, with each training sample in its nearest group.

        Groups without members keep their center, so that G and the numbering do not change.
        """
        return replace(self, labels=self.nearest(affinities))

    def _stretched(self, squared: Float) -> Float:
        """Squared distances from the centers without each sample, from those with it; see the module."""
        sizes = np.bincount(self.members, minlength=self.n_groups)[self.members].astype(np.float64)
        alone = sizes == 1
        at = np.arange(len(self.members)), self.members
        # A group of one sample has no center without it: the sample must go elsewhere.
        stretched = squared.copy()
        # Only the distance of a sample from its own center changes: it contributed to no other.
        stretched[at] *= (sizes / np.where(alone, 1.0, sizes - 1.0)) ** 2
        stretched[at[0][alone], at[1][alone]] = np.inf
        return stretched


class FeatureGroups(SampleGroups):
    """Groups by features, a row of numbers for each sample."""

    @abstractmethod
    def affinities_of(self, new: npt.ArrayLike) -> Float:
        """The affinity of each new sample to each group, (t, G): larger is nearer."""

    @abstractmethod
    def affinities_apart(self, training: npt.ArrayLike) -> Float:
        """The affinity of each training sample to each group without that sample, (m, G)."""

    def labels_of(self, new: npt.ArrayLike, among: npt.ArrayLike | None = None) -> Index:
        """The group of each new sample, (t,), from its features or counts, (t, d); `among` as in `nearest`."""
        return self.nearest(self.affinities_of(new), among)

    def as_new(self, training: npt.ArrayLike) -> Self:
        """The same centers, with each training sample (m, d) in the group that a similar new sample would get.

        `labels` then carries as much information on the class as it does for new samples (see the module).
        """
        return self._relabeled(self.affinities_apart(training))

    def _fitting(self, new: npt.ArrayLike) -> Float:
        table: Float = np.asarray(new, dtype=np.float64)
        if table.ndim != 2 or table.shape[1] != self.centers.shape[1]:
            msg = f"new samples have shape {table.shape}, expected (samples, {self.centers.shape[1]}) as in training"
            raise InputError(msg)
        return table


# --- making groups -----------------------------------------------------------------------------------------------

Made = TypeVar("Made", bound=SampleGroups)


def samples_by_class(
    y: npt.ArrayLike | None, n_groups: int | Mapping[Any, int], m: int
) -> dict[Any, tuple[Index, int]]:
    """For each class its samples, and the number of groups to make of them.

    InputError is raised if the length of y is not m, or a class has no number of groups or fewer samples than groups.
    """
    labels = np.zeros(m, dtype=int) if y is None else np.asarray(y)
    if labels.shape != (m,):
        msg = f"y has shape {labels.shape}, expected ({m},): each sample's class, or None for groups across classes"
        raise InputError(msg)
    wanted: dict[Any, tuple[Index, int]] = {}
    classes = np.unique(labels).tolist()
    for label in classes:
        rows = np.flatnonzero(labels == label)
        if isinstance(n_groups, Mapping) and label not in n_groups:
            msg = f"n_groups has no entry for class {label!r}, expected one for each of {classes}"
            raise InputError(msg)
        count = n_groups[label] if isinstance(n_groups, Mapping) else n_groups
        if not 1 <= count <= len(rows):
            msg = f"class {label!r} has {len(rows)} samples and is to make {count} groups, expected 1 to {len(rows)}"
            raise InputError(msg)
        wanted[label] = rows, int(count)
    return wanted


def united(kind: type[Made], m: int, parts: list[tuple[Any, Index, Index, Float]]) -> Made:
    """Groups of all classes, from (class, rows, groups, centers) for each class; empty groups are left out."""
    labels = np.empty(m, dtype=np.intp)
    classes: list[Any] = []
    centers: list[Float] = []
    for label, rows, groups, centers_of_class in parts:
        # Groups without samples would have no kernel statistics; the others are numbered consecutively over all
        # classes.
        kept, numbered = np.unique(groups, return_inverse=True)
        labels[rows] = len(classes) + numbered
        classes.extend([label] * len(kept))
        centers.append(centers_of_class[kept])
    return kind(labels, np.array(classes), np.concatenate(centers), labels)


def as_table(features: npt.ArrayLike) -> Float:
    """Features as float64, (samples, features); InputError unless they are a table of finite numbers."""
    table = np.asarray(features, dtype=np.float64)
    if table.ndim != 2 or not np.isfinite(table).all():
        msg = f"features have shape {table.shape}, expected finite numbers (samples, features)"
        raise InputError(msg)
    return table
