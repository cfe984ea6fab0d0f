"""What becomes of points that the subspace leaves open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dmkl.errors import MemoryBudgetError
from dmkl.passes.combine import direct_bytes, fits_in_memory
from dmkl.passes.execute import machine
from dmkl.passes.run import run_pass
from dmkl.passes.sweep import Columns
from dmkl.solvers.driver import drive
from dmkl.solvers.fisher.subspace.problem import Finish, Point, Training
from dmkl.solvers.fisher.wrapper import AlphaStep, CGStep, DirectStep, Problem, Solution, wrapper

__all__ = ["choose_finish", "finish_points"]

Float = npt.NDArray[np.float64]


def choose_finish(how: Finish, folds: Sequence[Training]) -> Finish:
    """What "auto" means here.

    Raises
    ------
    MemoryBudgetError
        If "direct" was asked for and does not fit.
    """
    views, where = [fold.square.view for fold in folds], machine()
    fits = all(fits_in_memory(view, 1, where) for view in views)
    if how == "auto":
        return "direct" if fits else "cg"
    if how == "direct" and not fits:
        msg = (
            "finish='direct' holds a combined kernel in memory, "
            f"{max(direct_bytes(view, 1) for view in views) / 2**30:.3g} GiB, and "
            f"{where.total_bytes / 2**30:.3g} GiB are allowed; use finish='cg' or 'report', or set dmkl.memory higher"
        )
        raise MemoryBudgetError(msg)
    return how


def finish_points(
    how: Finish,
    folds: Sequence[Training],
    points: Sequence[Point],
    starts: Sequence[Float | None],
    tol: float,
    names: tuple[str, ...],
) -> tuple[list[Solution], list[Float], int]:
    """Solve points by the wrapper method from the weights that the subspace has found, all sharing the passes.

    Returns
    -------
    tuple
        Their solutions, their scores of the rows held out, and the passes.
    """
    jobs: list[Any] = []
    for point, start in zip(points, starts, strict=True):
        fold = folds[point.fold]
        problem = Problem(
            fold.targets[point.problem], point.lam, point.p, f"{fold.name} p={point.p:g} lam={point.lam:g}: "
        )
        step: AlphaStep = DirectStep(problem) if how == "direct" else CGStep(problem, tol)
        n = len(fold.square.view.kernels)
        jobs.append((fold.square, wrapper(problem, n, step, tol=tol, names=names, start=start)))
    lanes = None
    if how == "direct":
        lanes = max(1, machine().total_bytes // max(direct_bytes(fold.square.view, 1) for fold in folds))
    solutions, passes = drive(jobs, lanes=lanes)
    scores, read = _held_out(folds, points, solutions)
    return solutions, scores, passes + read


def _held_out(
    folds: Sequence[Training], points: Sequence[Point], solutions: Sequence[Solution]
) -> tuple[list[Float], int]:
    if all(fold.n_rows == fold.n_train for fold in folds):
        return [np.zeros((0, solution.alpha.shape[1])) for solution in solutions], 0
    double = np.dtype(np.float64)
    columns = [
        Columns(s.alpha, "sum", np.repeat(s.beta[:, None], s.alpha.shape[1], axis=1), double, point.fold)
        for point, s in zip(points, solutions, strict=True)
    ]
    found, passes = run_pass([fold.whole for fold in folds], columns, "predict")
    return [rows[folds[point.fold].n_train :] for point, rows in zip(points, found, strict=True)], passes
