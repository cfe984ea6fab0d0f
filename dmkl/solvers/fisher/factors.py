"""MK-FDA on kernels that are products of factors, K_j = Z_jZ_jᵀ, from sums over the samples.

The targets H and the factors of pseudo-samples (`dmkl.solvers.pseudo_samples`) make the same problem: the objective,
the weights and the certificate of every α = Qα' are equal. Any solver of MK-FDA then solves the whole grid over (p, λ).
New rows z have the scores Σ_jβ_jz_jᵀ(Z_jᵀα), Z_jᵀα = (QᵀZ_j)ᵀα'; all of them take one more pass.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from dmkl.arrays import Float, Mask
from dmkl.errors import refuse
from dmkl.passes.blas import factor_threads, pinned_blas
from dmkl.passes.execute import machine
from dmkl.passes.rows import Gram, RowFunction, RowMap, gram_matrices, means_function, row_products
from dmkl.passes.statistics import keep_means
from dmkl.passes.view import View, covering, has_thin_factors
from dmkl.progress import Tally
from dmkl.solvers.fisher.problem import FisherOptions, FisherSolver, Solve
from dmkl.solvers.in_memory import batches
from dmkl.solvers.interface import Outcome
from dmkl.solvers.jobs import Context, Job, Training, check_constant, tell_constant
from dmkl.solvers.pseudo_samples import UNIT, PseudoSamples, times
from dmkl.solvers.workspace import Workspace

_TARGETS = 1024
"""Targets that are solved together even if there are fewer components: the stacked solver shares work between them."""


def solver_on_factors(solve: Solve) -> FisherSolver:
    """The solver "factors"; `solve` solves the problems over pseudo-samples."""
    title = "sums over the samples, for kernels of few features that are kept as factors"
    return FisherSolver("factors", title, partial(_solve, solve), check=_check, leaves_out=True)


def _check(jobs: Sequence[Job]) -> None:
    if not all(has_thin_factors(training.square.view) for training in {job.training for job in jobs}):
        refuse(
            "solver='factors' is for linear and cosine kernels that dmkl.build keeps as factors, with fewer columns in "
            "all than training samples, whose inner products fit in memory; take solver='auto'"
        )


def _solve(solve: Solve, jobs: Sequence[Job], options: FisherOptions, context: Context) -> list[Outcome]:
    """A pass for the sums of some training sets, and one for scores of held-out rows and, where it is wanted, for α."""
    outcomes = [context.workspace.outcome(number) for number in range(len(jobs))]
    axes, means = (0, 1) if context.duals or options.leave_one_out else (0,), list[tuple[View, Float]]()
    for batch in _batches(jobs, [number for number, outcome in enumerate(outcomes) if outcome is None]):
        started, views = time.monotonic(), [part.training.square.view for part in batch]
        grams, n_passes = gram_matrices(views, [part.targets for part in batch])
        # Only the coefficients of the solutions are kept: the matrices of one training set are in memory at a time.
        for part, gram in zip(batch, grams, strict=True):
            part.solve(solve, gram, jobs, options)
        tell_constant({part.training: part.constant for part in batch})
        functions = [(part, axis, *function) for part in batch for axis in axes for function in part.functions(axis)]
        by_training = {part.training: means_function(part.row_map) for part in batch if context.duals}
        of_means = [function for function in by_training.values() if function is not None]
        products, n_more = row_products([*(function for *_, function in functions), *of_means])
        n_passes += n_more
        for (part, axis, group, _), block in zip(functions, products[: len(functions)], strict=True):
            part.take(axis, group, block)
        means += zip([f.row_map.view for f in of_means], products[len(functions) :], strict=True)
        for part in batch:
            for number, outcome in part.outcomes.items():
                kept = outcome if 1 in axes else replace(outcome, dual=None)
                outcomes[number] = kept
                context.workspace.keep_outcome(number, kept)
        context.workspace.sync()
        context.tally.add("factors", n_passes, time.monotonic() - started, covering(views).bytes_per_pass)
    keep_means(means)
    return [outcome for outcome in outcomes if outcome is not None]


def _batches(jobs: Sequence[Job], numbers: Sequence[int]) -> Iterator[list[_TargetPart]]:
    """The jobs by training set and targets, as many together as their sums fit in memory.

    A part has not many more targets than components, since each target may add a pseudo-sample.
    """
    by_set: dict[Training, dict[int, tuple[Float, list[int]]]] = {}
    for number in numbers:
        h = jobs[number].problem.h
        by_set.setdefault(jobs[number].training, {}).setdefault(id(h), (h, []))[1].append(number)
    parts, sizes = list[_TargetPart](), list[int]()
    for training, blocks in by_set.items():
        of_kernels, widths = training.square.view.factor_widths, [h.shape[1] for h, _ in blocks.values()]
        assert of_kernels is not None
        n_columns = int(of_kernels.sum())
        for part in batches(list(blocks.values()), widths, max(n_columns, _TARGETS)):
            parts.append(_TargetPart(training, part))
            sizes.append(8 * n_columns**2)
    return batches(parts, sizes, machine().total_bytes // 2)


@dataclass(eq=False)
class _TargetPart:
    """A training set with some of its targets, and their solutions, from which scores and dual variables follow."""

    training: Training
    blocks: list[tuple[Float, list[int]]]  # H of each target, (m, c), and the numbers of the jobs that have it
    outcomes: dict[int, Outcome] = field(default_factory=dict)  # By the number of the job
    coefficients: tuple[list[Float], list[Float]] = field(default_factory=lambda: ([], []))
    """W (D, c) of each outcome: held-out rows have the scores zW, and training rows the dual variables zW + hE."""
    rest: list[Float] = field(default_factory=list)  # E (C, c) of each outcome
    row_map: RowMap = field(init=False)
    constant: Mask = field(init=False)  # Which of the kernels that may have weight are constant over the samples, (n,)

    @cached_property
    def targets(self) -> Float:
        return np.concatenate([h for h, _ in self.blocks], axis=1)

    def functions(self, axis: int) -> Iterator[tuple[slice, RowFunction]]:
        """The functions of the held-out rows (axis 0) or of the training rows (axis 1), each with its solutions."""
        training, (D, width) = self.training, self.coefficients[axis][0].shape
        m, view = training.n_train, (training.square if axis else training.whole).view
        positions = np.arange(m) if axis else np.arange(m, training.n_rows)
        # The products of some rows with several solutions together are about as large as the rows.
        n_together = max(1, D // max(1, width))
        for start in range(0, len(self.outcomes) if len(positions) else 0, n_together):
            group = slice(start, start + n_together)
            W = np.concatenate(self.coefficients[axis][group], axis=1)
            yield group, RowFunction(replace(self.row_map, view=view), axis, positions, partial(times, W), W.shape[1])

    def take(self, axis: int, group: slice, products: Float) -> None:
        """Take the products of some solutions as scores or as dual variables."""
        ends, numbers = np.cumsum([W.shape[1] for W in self.coefficients[axis][group]])[:-1], list(self.outcomes)
        for k, block in enumerate(np.split(products, ends, axis=1), group.start):
            more: dict[str, Any] = {"dual": block + self.targets @ self.rest[k]} if axis else {"scores": block}
            self.outcomes[numbers[k]] = replace(self.outcomes[numbers[k]], **more)

    def solve(self, solve: Solve, gram: Gram, jobs: Sequence[Job], options: FisherOptions) -> None:
        """Solve the problems over pseudo-samples."""
        H, D, kernel_of = self.targets, len(gram.gram), gram.row_map.kernel_of
        least_lam = UNIT * float(np.trace(gram.gram))
        # The pseudo-samples of the rest of H are needed: ‖α‖² and tr Hᵀα depend on it, and so objective and gap.
        squares = H.T @ H
        pseudo = PseudoSamples.of(gram, squares)
        lens = pseudo.lens()
        training = Training(lens, lens, self.training.names, self.training.title)
        ends = np.cumsum([h.shape[1] for h, _ in self.blocks])[:-1]
        blocks = np.split(pseudo.columns(gram.targets, squares), ends, axis=1)
        of_job = {number: block for block, (_, some) in zip(blocks, self.blocks, strict=True) for number in some}
        if (lam := min(jobs[number].problem.lam for number in of_job)) < least_lam:
            refuse(
                f"lam={lam:g} is below what sums in double precision resolve: rounding perturbs these kernels by about "
                f"{least_lam:.1e}. Take a larger lam"
            )
        constant = gram.constant
        check_constant(self.training, constant)
        inner = [
            replace(job, training=training, problem=replace(job.problem, h=block))
            for job, block in ((_without(constant, jobs[number]), block) for number, block in of_job.items())
        ]
        weighed = np.zeros(len(constant), dtype=bool)
        for number in of_job:
            kernels = jobs[number].kernels
            weighed[slice(None) if kernels is None else kernels] = True
        # The checkpoint keeps outcomes over the samples, so that the files of this solver are temporary.
        with closing(Workspace(None, {})) as space:
            solutions = solve(inner, replace(options, leave_one_out=False), Context(space, Tally()))
        self.row_map, self.outcomes = gram.row_map, dict(zip(of_job, solutions, strict=True))
        self.constant = constant & weighed
        weights, duals = self.coefficients
        # The product of one solution alone would be limited by memory; some side by side are not larger than G.
        n_together = max(1, D // max(1, H.shape[1]))
        for some in (solutions[start : start + n_together] for start in range(0, len(solutions), n_together)):
            dual = np.concatenate([np.asarray(solution.dual) for solution in some], axis=1)
            with pinned_blas(factor_threads(D)):
                # Z_jᵀα, and the parts of α in the span of the factors and in that of the targets.
                products, (of_factors, of_targets) = pseudo.factors.T @ dual, pseudo.coefficients(dual)
            ends = np.cumsum([np.asarray(solution.dual).shape[1] for solution in some])[:-1]
            for solution, product in zip(some, np.split(products, ends, axis=1), strict=True):
                weights.append(solution.weights[kernel_of][:, None] * product)
            duals += np.split(of_factors, ends, axis=1)
            self.rest += np.split(of_targets, ends, axis=1)


def _without(constant: Mask, job: Job) -> Job:
    """The job without constant kernels, unless it has no others."""
    kernels = np.arange(len(constant)) if job.kernels is None else job.kernels
    kept = np.flatnonzero(~constant[kernels])
    if len(kept) in (0, len(kernels)):
        return job
    start, weights = job.problem.start, job.problem.weights.select(kept)
    start = None if start is None else weights.start(len(kept), start[kept])
    return replace(job, kernels=kernels[kept], problem=replace(job.problem, weights=weights, start=start))
