"""Solving the open points in their subspaces, and what of each is proven in the full space.

Nothing here takes a pass: the products K_jV are at hand, and so are the sums of the anchors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from dmkl.arrays import Float
from dmkl.solvers.fisher.newton import Solution
from dmkl.solvers.fisher.subspace.anchors import Closeness, ridge, rough_ridge
from dmkl.solvers.fisher.subspace.problem import Point, of_space
from dmkl.solvers.fisher.subspace.products import products, residual_strips, what_rounding_hides
from dmkl.solvers.fisher.subspace.rounding import Rounding
from dmkl.solvers.fisher.subspace.space import Subspace, Unsolved, solve_by_anchors
from dmkl.solvers.fisher.subspace.strips import Strips
from dmkl.solvers.fisher.subspace.tasks import SolveJob, solve_points
from dmkl.solvers.running import run_tasks

__all__ = ["OpenPoint", "residuals", "sharpen", "solve_reduced_problems"]


@dataclass
class OpenPoint:
    """A point after a round of solving: its best pair in the subspace, and what that pair leaves in the full space."""

    solution: Solution
    residual: Strips
    """R, (m, c)"""
    bound: float
    """What a better α would gain at most, relative to |S|, were the products exact"""
    rounding: Rounding
    """What rounding may hide, d relative to √|S| and what it does to F − S relative to |S|"""
    direction: Strips | None = None
    """The residual through an anchor: the first-order error of α"""
    condition: float = np.inf
    """Condition number to the anchor that gave `direction`"""

    @property
    def alpha_gap(self) -> float:
        """What a better α would gain at most, relative to |S|."""
        return float((np.sqrt(self.bound) + self.rounding.residual) ** 2)

    @property
    def gap(self) -> float:
        """The proven relative gap."""
        return self.solution.certificate.weights_gap + self.rounding.weights + self.alpha_gap

    @property
    def hidden(self) -> float:
        """What would be left, by the same measure as `left`, of an exact solution: the part that rounding hides."""
        return (self.rounding.weights + self.rounding.residual**2) / self.solution.certificate.share

    @property
    def left(self) -> float:
        """What is left relative to the part of S that the kernels make, which is never less than the gap.

        Points are solved until this is below the tolerance: the gap alone would let a large λ go with any weights.
        """
        return self.gap / self.solution.certificate.share

    @property
    def wanted(self) -> Strips:
        """What the basis should gain."""
        return self.residual if self.direction is None else self.direction


def solve_reduced_problems(
    spaces: Sequence[Subspace],
    points: Sequence[Point],
    starts: Sequence[Float | None],
    tols: Mapping[int, float],
) -> dict[int, Solution]:
    """Solve points in their subspaces, each to its tolerance, as tasks.

    Parameters
    ----------
    starts
        β of each point to begin with, as far as it is known.
    tols
        The weights gap to reach, of the points that are to be solved.
    """
    work, own = [], []
    for f, space in enumerate(spaces):
        chains: dict[tuple[int, float], list[int]] = {}
        for k in sorted((k for k in tols if points[k].space == f), key=lambda k: -points[k].weights.p):
            chains.setdefault((points[k].target, points[k].lam), []).append(k)
        files = (space.gram, space.file("inner"), space.file("projected"))
        ends = np.cumsum([h.shape[1] for h in space.targets]).tolist()
        # A task is the sets of weights at one λ, each started warm from the one before: the same tasks wherever they
        # run, so that results do not depend on the number of workers.
        for (target, lam), members in chains.items():
            jobs = [SolveJob(k, points[k].weights, starts[k], tols[k], points[k].kernels) for k in members]
            columns = (ends[target] - space.targets[target].shape[1], ends[target])
            work.append(partial(solve_points, files, columns, lam, space.training.facts))
            own.append(jobs)
    return dict(pair for part in run_tasks("restricted-master", work, own=own) for pair in part)


def residuals(
    spaces: Sequence[Subspace], points: Sequence[Point], solutions: Mapping[int, Solution]
) -> dict[int, OpenPoint]:
    """R = H − ½α − (1/2λ)K(β)α of every solution, at α = V a, and ‖R‖²/|S| as what α leaves."""
    found: dict[int, OpenPoint] = {}
    for f, space in enumerate(spaces):
        mine = of_space(points, solutions, f)
        pairs = [(s.beta, s.alpha) for s in mine.values()]
        lams, sets = [points[k].lam for k in mine], [points[k] for k in mine]
        hidden = what_rounding_hides(space, pairs, lams, sets)
        left = residual_strips(space, pairs, lams, [points[k].target for k in mine])
        for (k, solution), (residual, square), unknown in zip(mine.items(), left, hidden, strict=True):
            size = abs(solution.certificate.objective)
            relative = Rounding(unknown.residual / np.sqrt(size), unknown.weights / size)
            found[k] = OpenPoint(solution, residual, square / size, relative)
    return found


def sharpen(
    spaces: Sequence[Subspace],
    points: Sequence[Point],
    opened: Mapping[int, OpenPoint],
    step: float,
    width: int,
    rng: np.random.Generator,
    *,
    rough: bool = False,
    enough: float = np.inf,
) -> dict[int, list[Strips]]:
    """Take each point's nearest anchor to its residual: a sharper bound of what α leaves, and a direction.

    Points whose nearest anchor has served them already are left as they are. Returns for each space further directions
    to fill up a block of `width` columns (see `_other_weights`): the factors are at hand, and cost most by far.

    Parameters
    ----------
    step
        The factor by which ridges are rounded.
    rough
        Whether few factors are to serve all, for directions alone, which are hardly worse.
    enough
        What α must leave at most, relative to |S| and by the first solution, for its bound to be made.
    """
    asked: list[OpenPoint] = []
    wanted: list[Unsolved] = []
    served: dict[int, dict[tuple[int, float], list[int]]] = {}
    found: dict[int, tuple[int, Closeness]] = {}
    for f, space in enumerate(spaces):
        mine = of_space(points, opened, f)
        found |= zip(mine, space.nearest([r.solution.beta for r in mine.values()]), strict=False)
    for k, r in opened.items():
        if k not in found or found[k][1].condition >= r.condition:
            continue
        place, near = found[k]
        r.condition = near.condition
        asked.append(r)
        worth = 2.0 * enough * abs(r.solution.certificate.objective)
        rho = (rough_ridge if rough else ridge)(points[k].lam, near.scale, step)
        wanted.append(Unsolved(points[k].space, place, rho, r.residual, worth if near.bounds and not rough else -1.0))
        served.setdefault(points[k].space, {}).setdefault((wanted[-1].anchor, wanted[-1].ridge), []).append(k)
    if not wanted:
        return {}
    filling = [one for f, groups in served.items() for one in _other_weights(spaces[f], f, groups, opened, width, rng)]
    solved = solve_by_anchors(spaces, wanted + filling)
    for r, (direction, squares) in zip(asked, solved, strict=False):
        r.direction = direction
        if np.isfinite(squares).all():
            r.bound = min(r.bound, 0.5 * float(squares.sum()) / abs(r.solution.certificate.objective))
    more: dict[int, list[Strips]] = {}
    for one, (x, _) in zip(filling, solved[len(wanted) :], strict=True):
        more.setdefault(one.space, []).append(x)
    return more


def _other_weights(
    space: Subspace,
    f: int,
    groups: Mapping[tuple[int, float], Sequence[int]],
    opened: Mapping[int, OpenPoint],
    width: int,
    rng: np.random.Generator,
) -> list[Unsolved]:
    """Directions for other weights than the present ones: random combinations Σ_j ω_j K_jα, through the anchors.

    To first order a change of β changes α by −(1/2λ) A⁻¹ Σ_j δβ_j K_jα. None are wanted where the residuals themselves
    fill a block.

    Parameters
    ----------
    groups
        The points of the space that each anchor and ridge serves.
    """
    columns = [opened[k].residual.width for members in groups.values() for k in members]
    if sum(columns) >= 2 * width:
        return []
    # One point of each group: α changes little among those that a factor serves.
    chosen = {key: members[len(members) // 2] for key, members in groups.items()}
    each = math.ceil(1.5 * width / sum(opened[k].residual.width for k in chosen.values()))
    owners = [key for key in chosen for _ in range(max(1, min(space.n_kernels, each)))]
    pairs = [(rng.standard_normal(space.n_kernels), opened[chosen[key]].solution.alpha) for key in owners]
    return [Unsolved(f, *key, product) for key, product in zip(owners, products(space, pairs), strict=True)]
