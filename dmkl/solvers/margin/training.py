"""Support vector machines on combined kernels: one pass adds up the kernels, tasks train the machines.

The sums go to disk tile by tile, half a matrix each, and are gone when their machines are trained. A task holds the
whole matrix where that fits its memory, and otherwise the columns of a working set.
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
    lenses: Sequence[Lens], asked: Sequence[tuple[int, Classifier]]
) -> tuple[list[SVMSolution | SquareSolution], int]:
    """Train several machines, each with the place of the lens that it sees the kernels through, in their order.

    Machines with the same weights share a sum; sums share a pass, as many as a task can add up side by side. Also
    returns the number of passes over the stored kernels.
    """
    where = machine()
    sums: dict[tuple[int, bytes, bytes], list[int]] = {}
    for number, (place, request) in enumerate(asked):
        groups = b"" if isinstance(request, SVM) else request.groups.tobytes()
        sums.setdefault((place, request.weights.tobytes(), groups), []).append(number)
    # Entries of composite kernels are weighted one by one, after the steps: through lenses of their own.
    seen = [*lenses, *(Lens(lens.view, replace(lens.fitted, entrywise=True)) for lens in lenses)]
    side = lenses[0].view.source.tiling.tile
    most = max(1, where.task_bytes // 4 // (8 * side * side))
    shared = list(sums.values())
    found: dict[int, SVMSolution | SquareSolution] = {}
    batches = [shared[start : start + most] for start in range(0, len(shared), most)]
    for batch in batches:
        with shared_folder("where the combined kernels of this step are written") as folder:
            combinations = [_combination(*asked[numbers[0]], len(lenses)) for numbers in batch]
            totals = combine_pass(seen, combinations, [f"{folder}/sum-{k}" for k in range(len(batch))])
            members = [(k, number) for k, numbers in enumerate(batch) for number in numbers]
            # Few machines share the memory of all: one alone may hold what a task among others may not.
            allowed = max(where.task_bytes, where.total_bytes // min(len(members), where.slots_per_host))
            work = [
                partial(_train, totals[k], allowed, where.slots_per_host, asked[number][1]) for k, number in members
            ]
            machines = run_tasks("train", work)
        found |= {number: trained for (_, number), trained in zip(members, machines, strict=True)}
    return [found[number] for number in range(len(asked))], len(batches)


def _combination(place: int, request: Classifier, n_lenses: int) -> Combination:
    if isinstance(request, SVM):
        return Combination(place, request.weights)
    return Combination(n_lenses + place, np.ones(len(request.weights)), request.weights[:, request.groups])


def train(kernel: Float, request: Classifier) -> SVMSolution | SquareSolution:
    """Train a machine, or fit least squares, on the combined kernel of its samples, (m, m)."""
    if isinstance(request, GroupClassifier) and request.lam is not None:
        return fit_square(kernel, request.y, request.lam)
    assert request.C is not None
    noise = request.noise if isinstance(request, SVM) else None
    concave = None if noise is None else is_concave(kernel, noise)  # before K_FF takes memory
    return replace(solve_dense(kernel, request.y, request.C, request.tol, request.start), concave=concave)


def _train(
    total: StoredSum, task_bytes: int, tasks_per_machine: int, request: Classifier
) -> SVMSolution | SquareSolution:
    y, tol, start = request.y, request.tol, request.start
    rows = request.rows if isinstance(request, SVM) else None
    n_sum = total.lens.view.shape[1]
    # The matrix, twice where its rows are put into another order, and what the machine needs beside it.
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
        columns = SumColumns(total)
        if rows is None:
            return solve_by_columns(columns, columns.diagonal, y, request.C, tol, task_bytes // 2, start)[0]
        some = lambda index: columns(rows[index])[rows]  # noqa: E731
        return solve_by_columns(some, columns.diagonal[rows], y, request.C, tol, task_bytes // 2, start)[0]
