"""Support vector machines on combined kernels: one pass adds up the kernels, tasks train the machines.

The sums go to disk tile by tile, half a matrix each, and are gone when their machines are trained. A task holds the
whole matrix where that fits its memory, and otherwise the columns of a working set.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dmkl.passes.blas import blas_threads, pinned_blas
from dmkl.passes.columns import SumColumns
from dmkl.passes.combine import Combination, StoredSum, combine_pass
from dmkl.passes.execute import check_shared, machine
from dmkl.passes.view import Lens
from dmkl.solvers.running import run_tasks
from dmkl.solvers.svm.machine import SVMSolution, dense_bytes, solve_by_columns, solve_dense

__all__ = ["Wanted", "train_together"]

Float = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]


class Wanted(Protocol):
    """A machine that is asked for."""

    @property
    def weights(self) -> Float:
        """β, (n,)"""

    @property
    def y(self) -> Float:
        """(m,), 1 and −1"""

    @property
    def C(self) -> float:
        """The bound on α."""

    @property
    def tol(self) -> float:
        """The relative gap to reach."""

    @property
    def start(self) -> Float | None:
        """u to begin with, (m,)"""

    @property
    def rows(self) -> Index | None:
        """The samples that it is trained on; all where missing."""


def train_together(lenses: Sequence[Lens], wanted: Sequence[tuple[int, Wanted]]) -> tuple[list[SVMSolution], int]:
    """Train several machines, each through one of the lenses.

    Machines with the same weights share a sum; sums share a pass, as many as a task can add up side by side.

    Returns
    -------
    tuple
        The machines in order, and the number of passes over the stored kernels.
    """
    where = machine()
    sums: dict[tuple[int, bytes], list[int]] = {}
    for number, (place, request) in enumerate(wanted):
        sums.setdefault((place, request.weights.tobytes()), []).append(number)
    side = lenses[0].view.source.tiling.tile
    most = max(1, where.task_bytes // 4 // (8 * side * side))
    groups = list(sums.values())
    found: dict[int, SVMSolution] = {}
    batches = [groups[start : start + most] for start in range(0, len(groups), most)]
    for batch in batches:
        with tempfile.TemporaryDirectory(prefix="dmkl-sums-") as folder:
            way_out = "set TMPDIR to a folder on a file system that all machines share"
            check_shared(Path(folder), "where the combined kernels of this step are written", way_out)
            first = [wanted[group[0]] for group in batch]
            combinations = [Combination(place, request.weights) for place, request in first]
            totals = combine_pass(lenses, combinations, [f"{folder}/sum-{k}" for k in range(len(batch))])
            members = [(k, number) for k, group in enumerate(batch) for number in group]
            work = [
                partial(_train, totals[k], where.task_bytes, where.slots_per_host, _as_tuple(wanted[number][1]))
                for k, number in members
            ]
            machines = run_tasks("train", work)
        found |= {number: trained for (_, number), trained in zip(members, machines, strict=True)}
    return [found[number] for number in range(len(wanted))], len(batches)


def _as_tuple(request: Wanted) -> tuple[Any, ...]:
    return request.y, request.C, request.tol, request.start, request.rows


def _train(total: StoredSum, task_bytes: int, tasks_per_machine: int, asked: tuple[Any, ...]) -> SVMSolution:
    y, C, tol, start, rows = asked
    n_sum = total.lens.view.shape[1]
    # The matrix, once more where rows are taken from it, and what the machine needs beside it.
    needed = 8 * n_sum**2 * (1 if rows is None else 2) + dense_bytes(len(y))
    with pinned_blas(blas_threads(tasks_per_machine)):
        if needed <= task_bytes:
            kernel = total.whole()
            return solve_dense(kernel if rows is None else kernel[np.ix_(rows, rows)], y, C, tol, start)
        columns = SumColumns(total)
        if rows is None:
            return solve_by_columns(columns, columns.diagonal, y, C, tol, task_bytes // 2, start)[0]
        some = lambda index: columns(rows[index])[rows]  # noqa: E731
        return solve_by_columns(some, columns.diagonal[rows], y, C, tol, task_bytes // 2, start)[0]
