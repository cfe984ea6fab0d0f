"""The part of every learner that knows what scores mean: labels, probabilities, calibration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import xarray as xr

from dmkl.arrays import Array, Float
from dmkl.errors import InputError
from dmkl.estimators.decisions import (
    GIVEN,
    SEARCHED,
    Decider,
    NotCalibratedError,
    Priors,
    class_index,
    class_weights,
    predicted_labels,
)
from dmkl.estimators.held_out import HeldOut, joined
from dmkl.estimators.plan import FitOutcome
from dmkl.numerics.fisher import Targets
from dmkl.passes.blas import one_blas_thread
from dmkl.variables import describe

__all__ = ["Calibrated"]


class Calibrated:
    """Labels and probabilities from scores, by a `Decider` that a fit, a search or `calibrate` has learnt."""

    priors: Priors = None
    kind_: Any
    classes_: Array
    tasks_: Array | None
    train_samples_: Array
    decider_: Decider
    priors_: Float
    calibrated_on_: str | None
    _DECIDES = False
    """Whether labels follow the decider, or the scores alone."""

    decision_function: Callable[..., xr.DataArray]
    _check_fitted: Callable[[], None]
    _truth: Callable[..., Array]
    _weighted: Callable[..., Targets]

    def labels_of(self, scores: Array) -> Array:
        """Labels that scores of `decision_function` mean, (samples,) or (samples, classes or tasks); see `predict`."""
        return predicted_labels(self.kind_, self.classes_, self.decisions_of(scores))

    def decisions_of(self, scores: Array) -> Float:
        """What labels are read from, in the shape of the scores: the largest class wins, or the second by the sign.

        The scores themselves for machines with margins; for Fisher discriminants log posterior probabilities up to a
        constant for each sample, of two classes their difference.
        """
        if not (self._DECIDES and hasattr(self, "decider_")):
            return scores
        return self.decider_.decision(scores.reshape(len(scores), -1)).reshape(scores.shape)

    @one_blas_thread
    def predict_proba(self, K: Any = None, **new: Any) -> xr.DataArray:
        """Calibrated probabilities of the row samples, (sample, class); (sample, task) for a multilabel problem.

        What they were calibrated on, rows that the machine was not trained on, is told by `calibrated_on_`. See
        `calibrate`.

        Parameters
        ----------
        K, **new
            As in `decision_function`.

        Raises
        ------
        NotCalibratedError
            If there was nothing to calibrate on: an InputError.
        """
        self._check_calibrated()
        return self.probabilities_of(self.decision_function(K, **new))

    def probabilities_of(self, scores: xr.DataArray) -> xr.DataArray:
        """Calibrated probabilities that scores of `decision_function` mean; see `predict_proba`."""
        self._check_calibrated()
        found = self.decider_.probabilities(scores.values.reshape(len(scores), -1))
        dim, labels = ("task", self.tasks_) if self.kind_ == "multilabel" else ("class", self.classes_)
        coords = {"sample": scores.sample.values, dim: labels}
        return describe(xr.DataArray(found, dims=("sample", dim), coords=coords, name="probability"))

    @one_blas_thread
    def calibrate(self, K: Any = None, y: npt.ArrayLike | None = None, *, unknown: Any = None, **new: Any) -> Self:
        """Learn from rows that were not trained on what scores mean.

        The class means of their scores and the covariance within classes give log densities, as in linear discriminant
        analysis. With these and the scores themselves, both weighted for the least log loss, probabilities follow by
        Bayes' rule. The labels that a Fisher discriminant predicts follow from the same; those of a machine with
        margins stay as they are.

        Parameters
        ----------
        K, **new
            As in `decision_function`.
        y
            The true labels; those of `K` where missing.
        unknown
            A code of labels that are unknown, as in `fit`.

        Raises
        ------
        InputError
            If a row was trained on, a label is none of the classes, or a class has fewer than two rows.
        """
        scores = self.decision_function(K, **new)
        truth = self._truth(K, y, "calibrate", unknown)
        trained = scores.sample.values[np.isin(scores.sample.values, self.train_samples_)]
        if len(trained):
            msg = (
                f"calibrate takes rows that the model was not trained on, and sample {str(trained[0])!r} is one of its "
                f"training samples ({len(trained)} are); leave them out: their scores are fitted to their labels"
            )
            raise InputError(msg)
        return self._calibrate(scores.values, np.asarray(truth), GIVEN)

    # --- what a learner says of itself ---------------------------------------------------------------------------

    def _decider(self, found: FitOutcome) -> Decider | None:
        """How labels are read from scores, where that is more than the largest of them or their sign."""
        return None

    def _units(self, targets: Targets) -> list[Float]:
        """For each problem what turns its scores, column by column, into such as do not depend on the training set."""
        return [np.ones(len(targets.classes) if targets.kind == "multiclass" else 1) for _ in targets.problems]

    # --- learning what scores mean -------------------------------------------------------------------------------

    def _calibrate(self, scores: Float, labels: Array, learnt_on: str) -> Self:
        index = class_index(self.kind_, self.classes_, labels)
        for k, one in enumerate(index):
            counts = np.bincount(one[one >= 0], minlength=len(self.classes_))
            if counts.min() < 2:
                of_task = f" of task {self.tasks_[k]}" if self.kind_ == "multilabel" and self.tasks_ is not None else ""
                msg = (
                    f"calibration needs two rows of each class, and class {self.classes_.tolist()[counts.argmin()]!r}"
                    f"{of_task} has {counts.min()}; give more rows"
                )
                raise InputError(msg)
        known = HeldOut(scores.reshape(len(scores), -1), index, np.arange(len(scores)), len(scores))
        self._set_decider(known.decider(self.kind_, list(self.priors_), learnt_on))
        return self

    def _calibrate_on(self, folds: Sequence[HeldOut], targets: Sequence[Targets], own: Targets) -> None:
        """Learn from the validation rows of a search what scores mean, where the fit has not and there are enough.

        `targets` are what the folds have learnt, `own` what this model has.
        """
        if any(not np.array_equal(each.classes, own.classes) for each in targets):
            return
        known = joined([self._comparable(fold, each) for fold, each in zip(folds, targets, strict=True)])
        if self.calibrated_on_ is None and known.enough_for(self.priors_):
            found = known.decider(self.kind_, list(self.priors_), SEARCHED)
            self._set_decider(found.scaled(self._units(own)))

    def _comparable(self, fold: HeldOut, targets: Targets) -> HeldOut:
        """With scores in units that do not depend on the training set, and rows that count as in training."""
        weighted = self._weighted(targets)
        units = self._units(weighted)
        return fold.scaled(units, class_weights(weighted))

    def _set_decider(self, decider: Decider | None) -> None:
        if decider is not None:
            self.decider_ = decider
        self.calibrated_on_ = (decider.learnt_on or None) if decider is not None else None

    def _check_calibrated(self) -> None:
        self._check_fitted()
        if getattr(self, "calibrated_on_", None) is None:
            msg = (
                f"this {type(self).__name__} has no calibrated probabilities: nothing that it was not trained on is at "
                "hand. Call calibrate(K[held_out, train], y) with rows that were left out, choose it with "
                "dmkl.search, or fit a Fisher discriminant with solver='direct', which leaves each row out by itself"
            )
            raise NotCalibratedError(msg)
