"""Learners whose score is a weighted sum of functions that each kernel has learnt alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr

from dmkl.arrays import Float, Index
from dmkl.kernelset import Kernels
from dmkl.learners.learner import KernelLearner
from dmkl.learners.plan import FitOutcome, ScoreFunction, TrainingSet
from dmkl.solvers.jobs import Job
from dmkl.variables import describe


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

    def contributions(self, K: Kernels | None = None, **new: Any) -> xr.DataArray:
        """Contributions β_j f_j of kernels to the scores of new samples, without the intercepts: see `MKSVM`."""
        of_machines = super().contributions(K, **new)
        n_scores = self.dual_coef_.shape[1] // len(self.kernel_names_)
        dim = self._score_dim() or "class"
        labels = self.tasks_ if self.tasks_ is not None else self.classes_[-n_scores:] if len(self.classes_) else [0]

        def of_scores(values: Float) -> Float:
            return np.asarray(values.reshape(*values.shape[:-1], n_scores, -1).sum(axis=-1))

        coords = {"sample": of_machines.sample.values, "kernel": of_machines.kernel.values, dim: labels}
        result = xr.DataArray(of_scores(of_machines.values), coords, tuple(coords), "contribution", of_machines.attrs)
        result = describe(result.assign_coords(intercept=(dim, of_scores(of_machines.intercept.values))))
        return result if self._score_dim() else result.isel({dim: 0}).drop_vars(dim)
