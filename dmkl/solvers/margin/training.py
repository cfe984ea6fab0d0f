"""Support vector machines on combined kernels: one pass adds up the kernels, and tasks train the SVMs.

The sums are written to disk tile by tile, half a matrix each, and are removed when their SVMs are trained. A task loads
the whole matrix if that fits its memory, and otherwise the columns of a working set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from dmkl.arrays import Float
from dmkl.passes.blas import blas_threads, pinned_blas
from dmkl.passes.execute import check_memory, machine, shared_folder
from dmkl.passes.sums import Combination, StoredSum, SumColumns, combine_pass
from dmkl.passes.view import Lens
from dmkl.solvers.margin.decomposition import solve_by_columns
from dmkl.solvers.margin.dense import dense_bytes, solve_dense
from dmkl.solvers.margin.machine import SVMSolution, is_concave
from dmkl.solvers.margin.square import SquareSolution, fit_square
from dmkl.solvers.requests import SVM, GroupClassifier
from dmkl.solvers.running import run_tasks

__all__ = ["train", "train_together"]

Classifier = SVM | GroupClassifier


def train_together(
    lenses: Sequence[Lens], requests: Sequence[tuple[int, Classifier]]
) -> tuple[list[SVMSolution | SquareSolution], int]:
    """Train several SVMs, each with the position of its lens; returns the solutions in their order.

    SVMs with the same weights share a sum; sums share a pass, as many as a task can add up at once. Also returns the
    number of passes over the stored kernels.
    """
    host = machine()
    sums: dict[tuple[int, bytes, bytes], list[int]] = {}
    for number, (place, request) in enumerate(requests):
        groups = b"" if isinstance(request, SVM) else request.groups.tobytes()
        sums.setdefault((place, request.weights.tobytes(), groups), []).append(number)
    # Entries of composite kernels have their own weights, which apply after the steps: through separate lenses.
    seen = [*lenses, *(Lens(lens.view, replace(lens.fitted, entrywise=True)) for lens in lenses)]
    side = lenses[0].view.source.tiling.tile
    most = max(1, host.task_bytes // 4 // (8 * side * side))
    shared = list(sums.values())
    solutions: dict[int, SVMSolution | SquareSolution] = {}
    batches = [shared[start : start + most] for start in range(0, len(shared), most)]
    for batch in batches:
        with shared_folder("where the combined kernels of this step are written") as folder:
            combinations = [_combination(*requests[numbers[0]], len(lenses)) for numbers in batch]
            # Sums are written by the workers, so the folder must be one that all of them can reach.
            totals = combine_pass(seen, combinations, [f"{folder}/sum-{k}" for k in range(len(batch))])
            members = [(k, number) for k, numbers in enumerate(batch) for number in numbers]
            # A machine with few tasks gives each of them more than its usual share of memory.
            allowed = max(host.task_bytes, host.total_bytes // min(len(members), host.slots_per_host))
            work = [
                partial(_train, totals[k], allowed, host.slots_per_host, requests[number][1]) for k, number in members
            ]
            machines = run_tasks("train", work)
        solutions |= {number: trained for (_, number), trained in zip(members, machines, strict=True)}
    return [solutions[number] for number in range(len(requests))], len(batches)


def _combination(place: int, request: Classifier, n_lenses: int) -> Combination:
    if isinstance(request, SVM):
        return Combination(place, request.weights)
    return Combination(n_lenses + place, np.ones(len(request.weights)), request.weights[:, request.groups])


def train(kernel: Float, request: Classifier) -> SVMSolution | SquareSolution:
    """Train an SVM, or fit least squares, on the combined kernel of its samples, (m, m)."""
    if isinstance(request, GroupClassifier) and request.lam is not None:
        return fit_square(kernel, request.y, request.lam)
    assert request.C is not None
    noise = request.noise if isinstance(request, SVM) else None
    concave = None if noise is None else is_concave(kernel, noise)  # its copy is freed before K_FF takes memory
    return replace(solve_dense(kernel, request.y, request.C, request.tol, request.start), concave=concave)


def _train(
    total: StoredSum, task_bytes: int, tasks_per_machine: int, request: Classifier
) -> SVMSolution | SquareSolution:
    y, tol, start = request.y, request.tol, request.start
    rows = request.rows if isinstance(request, SVM) else None
    n_sum = total.lens.view.shape[1]
    # The matrix, a second time if its rows are reordered, and the working memory of the SVM.
    needed = 16 * n_sum**2 + dense_bytes(len(y))
    with pinned_blas(blas_threads(tasks_per_machine)):
        if isinstance(request, GroupClassifier) and request.lam is not None:
            way_out = "Set dmkl.memory higher, give the workers more memory, or take loss='hinge'"
            check_memory("least squares on the combined kernel", {"matrices": needed}, task_bytes, way_out)
            return train(total.whole(), request)
        assert request.C is not None
        if needed <= task_bytes:
            kernel = total.whole()
            return train(kernel if rows is None else kernel[np.ix_(rows, rows)], request)
        # The solver gets half of the memory: the other half is for tiles of the sum and for the columns of a request.
        columns = SumColumns(total)
        if rows is None:
            return solve_by_columns(columns, columns.diagonal, y, request.C, tol, task_bytes // 2, start)[0]
        of_rows = lambda index: columns(rows[index])[rows]  # noqa: E731
        return solve_by_columns(of_rows, columns.diagonal[rows], y, request.C, tol, task_bytes // 2, start)[0]
