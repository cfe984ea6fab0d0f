"""What the subspace solver takes of memory between its passes, and its tasks beside what it holds meanwhile."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from dmkl import settings
from dmkl.passes.execute import check_memory, keeping, machine
from dmkl.passes.run import pass_bytes
from dmkl.passes.sweep import Columns
from dmkl.solvers.fisher.subspace.problem import Point
from dmkl.solvers.fisher.subspace.rounding import PROBES
from dmkl.solvers.fisher.subspace.space import Subspace, anchor_bytes, basis_task_bytes
from dmkl.solvers.jobs import Job, Training

__all__ = ["anchors_lacking", "check_room", "factor_task_bytes", "fits", "held_bytes"]

_COPIES = 4
"""What a round holds of every point at once, each as large as its α: residuals, products, α, directions."""
_MOST_BLOCKS = 8
"""Blocks of columns that one factor is asked for at most: many points have several ridges, with a factor for each."""


def held_bytes(spaces: Sequence[Subspace], points: Sequence[Point], widths: Sequence[int] | None = None) -> int:
    """Memory that rounds take beside passes and factors, with bases as they are, or of these widths.

    Of the process that runs the solver where its tasks are threads; of tasks that run one after another in others.
    """
    sizes = [space.width for space in spaces] if widths is None else widths
    return _points_bytes(spaces[point.space].targets[point.target].size for point in points) + _bases_bytes(
        [space.training for space in spaces], sizes
    )


def check_room(jobs: Sequence[Job], block: int) -> None:
    """Refuse a budget that has no room for a first block of each basis, and for the tasks that run beside it.

    Raises
    ------
    MemoryBudgetError
        Saying how much would do.
    """
    trainings = list({id(job.training): job.training for job in jobs}.values())
    slots = machine().slots_per_host
    needed = {
        "points": _points_bytes(job.problem.h.size for job in jobs),
        "bases": _bases_bytes(trainings, [block] * len(trainings)),
        "tasks": slots * _pass_task_bytes(trainings[0], block),
    }
    enough = math.ceil(sum(needed.values()) / 2**20)
    check_memory(
        f"solver='subspace' with {len(jobs):,} points",
        needed,
        settings.memory_budget_bytes(),
        f"Set dmkl.memory to {enough} MiB (--memory), or take fewer points, folds or workers at once",
        "on this machine",
    )


def fits(spaces: Sequence[Subspace], points: Sequence[Point], widths: Sequence[int], block: int) -> bool:
    """Whether there is room for bases of these widths, and for the tasks that work on them."""
    with keeping(held_bytes(spaces, points, widths) - held_bytes(spaces, points)):
        where = machine()
        solving = basis_task_bytes(spaces[0].n_kernels, max(widths))
        factor = factor_task_bytes(spaces, points, block) if any(space.anchors for space in spaces) else 0
        extending = _pass_task_bytes(spaces[0].training, block)
        return max(solving, extending) <= where.task_bytes and factor <= where.total_bytes


def anchors_lacking(spaces: Sequence[Subspace], points: Sequence[Point], block: int) -> str:
    """What is said where memory has no room for an anchor, with how much would do; nothing where it has."""
    needed = factor_task_bytes(spaces, points, block)
    if needed <= machine().total_bytes:
        return ""
    with_bases = needed + held_bytes(spaces, points, [block] * len(spaces))
    return f"no room for a combined kernel, which small λ need: set dmkl.memory to {math.ceil(with_bases / 2**20)} MiB"


def factor_task_bytes(spaces: Sequence[Subspace], points: Sequence[Point], block: int) -> int:
    """Memory of a task that solves by an anchor for all points of a space, and for directions that fill a block."""
    columns = [2 * block for _ in spaces]
    for point in points:
        columns[point.space] += spaces[point.space].targets[point.target].shape[1]
    views = [space.training.square.view for space in spaces]
    return max(anchor_bytes(view, min(n, _MOST_BLOCKS * block)) for view, n in zip(views, columns, strict=True))


def _points_bytes(sizes: Iterable[int]) -> int:
    return 8 * _COPIES * sum(sizes)


def _bases_bytes(trainings: Sequence[Training], widths: Sequence[int]) -> int:
    bases = [training.n_train * width for training, width in zip(trainings, widths, strict=True)]
    grams = [training.n_kernels * width**2 for training, width in zip(trainings, widths, strict=True)]
    # V and G_j of one space are widened at a time: the old one and the new one.
    return 8 * (sum(bases) + max(bases) + 2 * max(grams))


def _pass_task_bytes(training: Training, block: int) -> int:
    """The least memory in which a task extends one basis; others ride along where there is more.

    Results of several kernels take up to a quarter of a task's memory, where that holds more than those of one.
    """
    columns = [Columns(np.broadcast_to(0.0, (training.n_train, block + PROBES)), "each", None, np.dtype(np.float64))]
    parts = pass_bytes([training.whole], columns, replace(machine(), task_bytes=0))
    of_one_kernel, rest = parts.pop("results"), sum(parts.values())
    return max(rest + of_one_kernel, math.ceil(rest / 0.75))
