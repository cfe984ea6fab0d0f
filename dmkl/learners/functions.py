"""Learners whose score is a weighted sum of functions that each kernel has learnt alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from dmkl.arrays import Array, Index
from dmkl.learners.learner import KernelLearner
from dmkl.learners.plan import FitOutcome, ScoreFunction, TrainingSet
from dmkl.solvers.jobs import Job


class FunctionOfEachKernel(KernelLearner, abstract=True):
    """A learner with a column of dual variables for each kernel and each score, over "machine": ``kernel: score``.

    Columns of the first score come first. An outcome has ``extra["column_weights"]``, (kernels, columns).
    """

    def _jobs(self, data: TrainingSet, prepared: Any) -> list[Job]:
        # The outcome has a column for each kernel, so that weights of zero select kernels, not the job.
        return [Job(training, self._problem(data, k), None) for k, training in enumerate(data.trainings)]

    def _take(self, outcome: FitOutcome) -> None:
        _, labels = outcome.data.problems.columns
        names = np.array([f"{kernel}: {label}" for label in labels for kernel in outcome.data.given])
        problems = replace(outcome.data.problems, columns=("machine", names))
        super()._take(replace(outcome, data=replace(outcome.data, problems=problems)))

    def _score_function(self, used: Index) -> ScoreFunction:
        n, k = len(self.kernel_names_), self.dual_coef_.shape[1] // len(self.kernel_names_)
        beta = np.broadcast_to(self.weights_.values.reshape(n, -1), (n, k))
        weights = np.zeros((n, k, n))
        weights[np.arange(n), :, np.arange(n)] = beta
        function = super()._score_function(used)
        return replace(function, weights=weights.reshape(n, k * n)[used], sums=np.repeat(np.arange(k), n))

    def _score_labels(self) -> tuple[str, Array]:
        if self.tasks_ is not None:
            return str(self._score_dim()), self.tasks_
        return "class", self.classes_ if self.kind_ == "multiclass" else np.zeros(1)
