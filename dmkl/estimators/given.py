"""What a learner is given: labels by the names of samples, and the features that kernels were computed from."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dmkl.arrays import Array
from dmkl.errors import InputError, LabelWarning, warn
from dmkl.features.cross import TrainingFeatures, training_features
from dmkl.inputs.label_tables import matched
from dmkl.inputs.labels import single_samples
from dmkl.kernelset import KernelSet
from dmkl.numerics.fisher import Targets, with_unknown

if TYPE_CHECKING:
    from dmkl.estimators.learner import KernelLearner

__all__ = ["features_of", "given_labels", "labeled_targets", "tell_new_classes"]


def labeled_targets(
    learner: KernelLearner, K: KernelSet, y: npt.ArrayLike | None, what: str, unknown: Any = None
) -> tuple[Targets, Array | None]:
    """What a learner is to learn from square kernels, and the names of the tasks or targets.

    `unknown` is a code of labels that are unknown.

    Raises
    ------
    InputError
        If `K` is not square, or there are no labels.
    """
    if not K.is_square:
        _, rows, cols = K.shape
        msg = f"{what} needs the training kernels, K[train, train], got {rows} rows and {cols} columns that differ"
        raise InputError(msg)
    labels, tasks = given_labels(K, y)
    if labels is None:
        msg = f"{what} needs labels: give y, or store them with the kernels (labels=, --labels)"
        raise InputError(msg)
    targets = learner._targets(with_unknown(labels, unknown), K.shape[1], tasks)
    single = None if targets.kind == "regression" else single_samples(targets.labels, K.samples)
    if single is not None:
        warn(f"{what}: {single}. Was a line of a file that is no label taken for one?", LabelWarning)
    return targets, tasks


def tell_new_classes(truth: Array, classes: Array) -> None:
    """Warn of true classes that a model has not learnt: it can only be wrong on them."""
    learnt = set(classes.astype(str).tolist())
    new = Counter(name for name in truth.astype(str).tolist() if name not in learnt)
    if new:
        listed = ", ".join(f"{name!r} ({n})" for name, n in new.most_common(3)) + (" …" if len(new) > 3 else "")
        known = ", ".join(map(repr, sorted(learnt)[:5])) + (" …" if len(learnt) > 5 else "")
        message = (
            f"{new.total()} of the {len(truth)} samples have a class that the model has not learnt, {listed}, and "
            f"count as wrong; it knows {known}. Train it on samples of that class, or leave them out"
        )
        warn(message, LabelWarning)


def given_labels(K: KernelSet, y: Any) -> tuple[Array | None, Array | None]:
    """Labels of the row samples and names of their tasks: of `y`, by name where it has names, or else the stored ones.

    Raises
    ------
    InputError
        If a sample of `K` has no label among the names.
    """
    if y is None:
        return K.labels, K.tasks
    table = matched("y", y, K.samples, named=K.view.has_names, stored=K.labels)
    return table.values, None if table.columns is None else np.array(table.columns, dtype=object)


def features_of(K: KernelSet) -> TrainingFeatures | str:
    """What the kernels of new samples can be computed from, or why they cannot."""
    try:
        return training_features(K)
    except InputError as error:
        return str(error)
