"""What samples count: weights of samples that a fit is given, times those of their classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from sklearn.utils.class_weight import compute_sample_weight

from dmkl.arrays import Float, plain_repr
from dmkl.errors import InputError
from dmkl.numerics.fisher import Targets
from dmkl.unknown import is_known

__all__ = ["ClassWeight", "as_sample_weight", "by_class", "check_hinge", "counts"]

ClassWeight = Mapping[Any, float] | Literal["balanced"] | None


def as_sample_weight(sample_weight: npt.ArrayLike, n_samples: int) -> Float:
    """Weights of samples as (m,) numbers, refused by InputError where they are not positive and finite."""
    weights = np.asarray(sample_weight, dtype=np.float64)
    if weights.shape != (n_samples,) or not (np.isfinite(weights) & (weights > 0)).all():
        msg = (
            f"sample_weight must be a positive number for each of the {n_samples} samples, got shape {weights.shape}"
            f"{'' if weights.shape != (n_samples,) else f' with {weights.min():g} in it'}; leave samples of no weight "
            "out"
        )
        raise InputError(msg)
    return weights


def check_hinge(loss: str) -> None:
    """Refuse a loss whose samples all count once, by InputError."""
    if loss != "hinge":
        msg = (
            f"weights of samples and classes are prices of the hinge loss, and this is loss={loss!r}; take "
            "loss='hinge', leave sample_weight and class_weight out, or take MKFDA, whose least squares have weights"
        )
        raise InputError(msg)


def by_class(class_weight: ClassWeight, targets: Targets) -> list[Float]:
    """What the class of each sample counts, (m,), for each task of a multilabel problem, or once for all problems.

    Raises
    ------
    InputError
        If `class_weight` is not "balanced", a positive weight for each of some classes, or None.
    """
    labels = targets.labels if targets.kind == "multilabel" else targets.labels[:, None]
    if isinstance(class_weight, Mapping):
        strange = [label for label in class_weight if label not in targets.classes.tolist()]
        if strange or not all(np.isfinite(w) and w > 0 for w in class_weight.values()):
            told = (
                f"has weights for {plain_repr(strange)}" if strange else "has weights that are not positive and finite"
            )
            msg = f"class_weight maps classes, {targets.classes.tolist()}, to positive weights; {told}"
            raise InputError(msg)
    elif class_weight not in (None, "balanced"):
        msg = f"class_weight must be 'balanced', a weight for each class, or None, got {plain_repr(class_weight)}"
        raise InputError(msg)
    weight = dict(class_weight) if isinstance(class_weight, Mapping) else class_weight
    found = np.ones(labels.shape)
    if weight is None:
        return list(found.T)
    for column, own in zip(labels.T, found.T, strict=True):
        known = is_known(column)
        own[known] = compute_sample_weight(weight, column[known])
    return list(found.T)


def counts(targets: Targets, sample_weight: Float | None, class_weight: ClassWeight) -> list[Float] | None:
    """What each sample counts, (m,), for each task or target, or once for all problems; None if all count once.

    The weight that it is given, times that of its class.
    """
    if sample_weight is None and class_weight is None:
        return None
    given = np.ones(len(targets.labels)) if sample_weight is None else sample_weight
    if class_weight is None:
        return [given] * (1 if targets.dim is None else len(targets.problems))
    return [given * own for own in by_class(class_weight, targets)]
