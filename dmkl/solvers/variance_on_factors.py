"""Variance components of kernels that are products of factors, K_j = Z_jZ_jᵀ, from sums over the samples.

An orthonormal basis of the samples whose first vectors span Z, the fixed effects X and y turns the model into that of
the pseudo-samples (`dmkl.solvers.pseudo_samples`) and of m − s further contrasts, which have variance σ_e² and are zero
in y. These add (m − s) log σ_e² to log|V| and (m − s)/σ_e² to tr P, and nothing to all else. Kernels and fixed effects
are the same for all targets if y takes part by its coordinates in the span of Z and X, and by the norm of the rest,
which is one more pseudo-sample.

With K_jPy = Z_jZ_jᵀPy, one more pass gives Σ_ju_j = ZW, W_j = σ_j²Z_jᵀPy, and Py = (y − Xb − ZW)/σ_e².
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

import numpy as np

from dmkl.arrays import Float
from dmkl.passes.execute import machine
from dmkl.passes.rows import Gram, RowFunction, RowMap, gram_matrices, row_products
from dmkl.passes.view import Lens, View, covering
from dmkl.solvers.driver import Tally
from dmkl.solvers.in_memory import batches
from dmkl.solvers.jobs import Context, Job, Training
from dmkl.solvers.outcome import Outcome
from dmkl.solvers.pseudo_samples import PseudoSamples, times
from dmkl.solvers.workspace import Workspace

Solve = Callable[[Sequence[Job], Context], list[Outcome]]


def solve_on_factors(solve: Solve, jobs: Sequence[Job], context: Context) -> list[Outcome]:
    """Solve `VarianceProblem`s: a pass for sums, `solve` for the problems over pseudo-samples, and a pass for Py."""
    outcomes = [context.workspace.outcome(number) for number in range(len(jobs))]
    groups: dict[tuple[int, bytes], list[int]] = {}
    for number, job in enumerate(jobs):
        if outcomes[number] is None:
            groups.setdefault((id(job.training), job.problem.basis.tobytes()), []).append(number)
    n_bytes = 8 * len(RowMap(jobs[0].training.square.view).kernel_of) ** 2
    for batch in batches(list(groups.values()), [n_bytes] * len(groups), machine().total_bytes // 3):
        started = time.monotonic()
        views = [jobs[numbers[0]].training.square.view for numbers in batch]
        columns = [
            np.hstack([jobs[numbers[0]].problem.basis, *(jobs[number].problem.residual for number in numbers)])
            for numbers in batch
        ]
        grams, n_passes = gram_matrices(views, columns)
        items = zip(batch, grams, columns, strict=True)
        solved = [_solve_group(solve, [jobs[k] for k in numbers], gram, block) for numbers, gram, block in items]
        sums, n_more = row_products([function for _, function in solved])
        for numbers, (solutions, _), block in zip(batch, solved, sums, strict=True):
            for number, solution, u in zip(numbers, solutions, block.T, strict=True):
                problem = jobs[number].problem
                residual = problem.y[:, 0] - problem.basis @ solution.extra["effects"] - u
                variance = max(float(solution.extra["variances"][-1]), problem.floor[-1])
                outcomes[number] = outcome = replace(solution, dual=(residual / variance)[:, None])
                context.workspace.keep_outcome(number, outcome)
        context.tally.add("factors", n_passes + n_more, time.monotonic() - started, covering(views).bytes_per_pass)
    return [outcome for outcome in outcomes if outcome is not None]


def _solve_group(solve: Solve, jobs: Sequence[Job], gram: Gram, columns: Float) -> tuple[list[Outcome], RowFunction]:
    """The outcomes over pseudo-samples of problems on one training set with the same X, and the rows of ZW of all.

    `columns` are Q and the residuals of y, side by side.
    """
    r = jobs[0].problem.basis.shape[1]
    inner = columns[:, :r].T @ columns
    pseudo = PseudoSamples.of(replace(gram, targets=gram.targets[:, :r]), inner[:, :r])
    block = pseudo.columns(gram.targets, inner)
    # What is left of y: its direction is orthogonal to all kernels and fixed effects, so that only its norm matters.
    left = np.maximum(np.sum(columns**2, axis=0) - np.sum(block**2, axis=0), 0.0)
    left[:r] = 0.0
    block = np.vstack([block, np.sqrt(left)])
    lens = replace(pseudo, factors=np.pad(pseudo.factors, ((0, 1), (0, 0)))).lens()
    training = Training(lens, lens, jobs[0].training.names, jobs[0].training.title)
    basis, n_orthogonal = block[:, :r], len(columns) - len(block)
    over_pseudo_samples = []
    for column, job in enumerate(jobs, r):
        y = block[:, [column]] + basis @ (job.problem.basis.T @ job.problem.y)
        problem = replace(job.problem, y=y, basis=basis, n_orthogonal=n_orthogonal, exact=True)
        over_pseudo_samples.append(replace(job, training=training, problem=problem))
    # The checkpoint keeps outcomes over the samples, so that the files of this solver are temporary.
    with closing(Workspace(None, {})) as space:
        solutions = solve(over_pseudo_samples, Context(space, Tally()))
    kernel_of, diagonal = gram.row_map.kernel_of, np.diagonal(gram.gram) / len(columns)
    means = {"mean_diagonal": np.bincount(kernel_of, diagonal, jobs[0].training.n_kernels).astype(np.float64)}
    duals = np.hstack([np.asarray(solution.dual) for solution in solutions])[:-1]
    W = np.stack([solution.weights for solution in solutions], axis=1)[kernel_of] * (pseudo.factors.T @ duals)
    function = RowFunction(gram.row_map, 1, np.arange(len(columns)), partial(times, W), W.shape[1])
    return [replace(solution, extra={**solution.extra, **means}) for solution in solutions], function


def covariances_on_factors(square: View, new: View, weights: Float, design: Float) -> tuple[Lens, Float, Float]:
    """The pseudo-samples of a training set, Σ_jσ_j²k_j(x, ·) between new rows and these, (rows, r), and QᵀX."""
    basis, upper = np.linalg.qr(design)
    (gram,), _ = gram_matrices([square], [basis])
    pseudo, view = PseudoSamples.of(gram, basis.T @ basis), replace(new, steps=square.steps)
    W = weights[gram.row_map.kernel_of][:, None] * pseudo.factors.T
    item = RowFunction(replace(gram.row_map, view=view), 0, np.arange(new.shape[1]), partial(times, W), W.shape[1])
    (covariances,), _ = row_products([item])
    return pseudo.lens(), covariances, pseudo.columns(gram.targets, basis.T @ basis) @ upper
