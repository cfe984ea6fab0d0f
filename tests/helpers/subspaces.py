"""Grids of problems for the subspace solver, without learners, and the same kernels as dense arrays."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dmkl.numerics.fisher import encode_targets
from dmkl.passes.statistics import measure
from dmkl.solvers.fisher.problem import FisherOptions, FisherProblem
from dmkl.solvers.fisher.subspace.solver import SubspaceSolver, finish_open
from dmkl.solvers.jobs import Context, Job, Training
from dmkl.solvers.weight_sets import Ball
from dmkl.solvers.workspace import Workspace
from helpers.references import dense_view


class Problem(NamedTuple):
    """The input of the solver, and the same kernels as dense arrays."""

    jobs: list
    dense: dict
    held_out: dict

    @classmethod
    def of(cls, K, kernels, labels, folds, ps, lams, steps=("center", "trace")):
        """All points of a grid for pairs of training rows and held-out rows; K is the set of the kernels."""
        lenses, _ = measure([K[np.concatenate(fold), fold[0]].with_steps(steps).view for fold in folds])
        trainings = [Training(lens.training(), lens, K.names, f"fold {f}: ") for f, lens in enumerate(lenses)]
        of_folds = list(zip(trainings, folds, strict=True))
        jobs = [
            Job(training, FisherProblem(h, lam, Ball(p), training.title))
            for training, (train, _) in of_folds
            for h in encode_targets(labels[train], len(train)).problems
            for p in ps
            for lam in lams
        ]
        dense = {training: dense_view(kernels, train, train, steps) for training, (train, _) in of_folds}
        held_out = {training: dense_view(kernels, other, train, steps) for training, (train, other) in of_folds}
        return cls(jobs, dense, held_out)

    def solver(self, folder=None, block=None, use_preconditioners=None, max_passes=200, **options):
        how = {"alphas": True, "block": block, "use_preconditioners": use_preconditioners}
        return SubspaceSolver(self.jobs, Workspace(folder, {}), FisherOptions(max_iter=max_passes, **options), **how)

    def run(self, folder=None, finish="auto", **options):
        """The solver after its run, with the outcomes as `results` and the passes of finishing as `rounds`."""
        solver = self.solver(folder, **options)
        context = Context(solver.workspace)
        try:
            how = FisherOptions(solver.options.tol, finish=finish)
            solver.results = finish_open(self.jobs, solver.run(), how, context)
        finally:
            solver.workspace.close()
        solver.rounds = [*solver.history, *context.tally.rounds]
        return solver

    def parts(self, k):
        """The kernels, targets, ridge and norm of a point."""
        training, problem = self.jobs[k].training, self.jobs[k].problem
        return self.dense[training], problem.h, problem.lam, problem.weights.p
