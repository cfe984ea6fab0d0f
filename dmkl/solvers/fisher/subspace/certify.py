"""The open points after each round: their solutions in the subspace, and the proven gap in the full space.

No pass is made: the products K_jV are on disk, and so are the combined kernels of the preconditioners. Tasks read each
K_jV once for all points, and residuals stay where they are computed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from dmkl.arrays import Float
from dmkl.passes.execute import machine
from dmkl.solvers.fisher.mkfda import Solution
from dmkl.solvers.fisher.subspace.preconditioners import ridge, rough_ridge
from dmkl.solvers.fisher.subspace.rounding import Rounding, rounding_of
from dmkl.solvers.fisher.subspace.space import Point, TrainingSubspace, Unsolved, apply_preconditioners, of_space
from dmkl.solvers.fisher.subspace.tasks import Strips, combined_products, numbered, residual_strip, solve_points
from dmkl.solvers.interface import Solver, Tasks

# --- products with the basis ---------------------------------------------------------------------------------------


_STRIPS, _STRIP_ROWS, _STRIP_BYTES = 16, 192, 2**25
"""Most strips of rows that products are combined in, their fewest rows, and the memory of each. Strips of fewer rows
take longer to open than to multiply, since each reads all kernels."""


def scores(space: TrainingSubspace, pairs: Sequence[tuple[Float, Float]]) -> Solver[list[Float]]:
    """Compute Σ_j w_j K_j V Z over the held-out rows, for pairs of weights w (n,) and coefficients Z (r, c)."""
    if not pairs:
        return []
    # Held-out rows follow the training rows in the products K_jV, which are made for both in one pass.
    rows, widths = _strips(space.training.n_train, space.training.n_rows, pairs), _widths(pairs)
    strips = yield from _combined(space, "scores", pairs, rows, None)
    whole = np.concatenate(strips) if strips else np.zeros((0, sum(widths)))
    return np.split(whole, np.cumsum(widths)[:-1], axis=1)


def products(space: TrainingSubspace, pairs: Sequence[tuple[Float, Float]]) -> Solver[list[Strips]]:
    """Compute Σ_j w_j K_j V Z over the training rows, (m, c) for each pair."""
    if not pairs:
        return []
    m, widths = space.training.n_train, _widths(pairs)
    strips = yield from _combined(space, "residuals", pairs, _strips(0, m, pairs), space.round_file())
    return Strips(tuple(strips), m, (0, sum(widths))).split(widths)


def _combined(
    space: TrainingSubspace, what: str, pairs: Sequence[tuple[Float, Float]], strips: Sequence[slice], kept: str | None
) -> Solver[list[Any]]:
    slots, files = machine().slots_per_host, space.product_files
    work = [
        partial(combined_products, files, rows, numbered(kept, k), tasks_per_machine=slots)
        for k, rows in enumerate(strips)
    ]
    return (yield Tasks(what, work, _side_by_side(pairs)))  # type: ignore[no-any-return]


def _strips(first: int, last: int, pairs: Sequence[tuple[Float, Float]]) -> list[slice]:
    """Cut rows into strips.

    The cuts depend on the data alone, not on the number of workers: BLAS rounds differently for strips of another
    height. The result of a strip and the rows of one K_jV take some megabytes.
    """
    sides = len(pairs[0][1]) + sum(_widths(pairs))
    side = max(_STRIP_ROWS, math.ceil((last - first) / _STRIPS))
    side = max(64, min(2048, side, _STRIP_BYTES // (32 * sides)))
    return [slice(start, min(start + side, last)) for start in range(first, last, side)]


def _side_by_side(pairs: Sequence[tuple[Float, Float]]) -> tuple[Float, Float]:
    """Weights (n, k) and coefficients (r, k) of all columns of some pairs."""
    weights = np.repeat(np.stack([w for w, _ in pairs], axis=1), _widths(pairs), axis=1)
    return weights, np.concatenate([z for _, z in pairs], axis=1)


def _widths(pairs: Sequence[tuple[Float, Float]]) -> list[int]:
    return [z.shape[1] for _, z in pairs]


# --- open points ---------------------------------------------------------------------------------------------------


@dataclass
class OpenPoint:
    """An open point: its best pair in the subspace, and the residual of this pair in the full space."""

    solution: Solution
    residual: Strips
    """R, (m, c)"""
    bound: float
    """Upper bound of S(α, β) − min_α S relative to |S|, for exact products"""
    rounding: Rounding
    """Error bounds of rounding: d relative to √|S|, and its effect on F − S relative to |S|"""
    direction: Strips | None = None
    """The preconditioned residual: the first-order error of α"""
    condition: float = np.inf
    """Condition number of the system relative to the preconditioner that gave `direction`"""

    @property
    def alpha_gap(self) -> float:
        """Upper bound of S(α, β) − min_α S relative to |S|, with rounding."""
        return float((np.sqrt(self.bound) + self.rounding.residual) ** 2)

    @property
    def gap(self) -> float:
        """The proven relative gap."""
        return self.solution.certificate.weights_gap + self.rounding.weights + self.alpha_gap

    @property
    def hidden(self) -> float:
        """The part of `left` that rounding hides, and that an exact solution would have too."""
        return (self.rounding.weights + self.rounding.residual**2) / self.solution.certificate.share

    @property
    def left(self) -> float:
        """The gap relative to βᵀq, the part of S that the kernels make, which is never less than the gap.

        Points are solved until this is below the tolerance: for large λ the gap relative to |S| is small for any
        weights.
        """
        return self.gap / self.solution.certificate.share

    @property
    def wanted(self) -> Strips:
        """The direction that the basis needs."""
        return self.residual if self.direction is None else self.direction


def solve_restricted_problems(
    spaces: Sequence[TrainingSubspace],
    points: Sequence[Point],
    starts: Sequence[Float | None],
    tols: Mapping[int, float],
) -> Solver[dict[int, Solution]]:
    """Solve the points that have a tolerance for their weights gap, as tasks, from β of each point if it has one."""
    work, own = [], []
    for f, space in enumerate(spaces):
        chains: dict[tuple[int, float], list[int]] = {}
        for k in sorted((k for k in tols if points[k].space == f), key=lambda k: -points[k].weights.p):
            chains.setdefault((points[k].target, points[k].lam), []).append(k)
        files = (space.gram, space.file("inner"), space.file("projected"))
        ends = np.cumsum([h.shape[1] for h in space.targets]).tolist()
        # A task solves the norms p at one λ in sequence, each from the solution of the one before. The tasks do not
        # depend on the number of workers, so that the results do not.
        for (target, lam), members in chains.items():
            columns = (ends[target] - space.targets[target].shape[1], ends[target])
            work.append(partial(solve_points, files, columns, lam, space.training.facts))
            own.append([(k, points[k].weights, starts[k], tols[k], points[k].kernels) for k in members])
    solved = yield Tasks("restricted-master", work, own=own)
    return dict(pair for chain in solved for pair in chain)


def residuals(
    spaces: Sequence[TrainingSubspace], points: Sequence[Point], solutions: Mapping[int, Solution]
) -> Solver[dict[int, OpenPoint]]:
    """Compute R = H − ½α − (1/2λ)K(β)α of every solution at α = V a; ‖R‖²/|S| bounds what a better α would gain."""
    opened: dict[int, OpenPoint] = {}
    slots = machine().slots_per_host
    for f, space in enumerate(spaces):
        of_f = of_space(points, solutions, f)
        if not of_f:
            continue
        pairs, of_points = [(s.beta, s.alpha) for s in of_f.values()], [points[k] for k in of_f]
        lams, widths = [point.lam for point in of_points], _widths(pairs)
        hidden = [Rounding(0.0, 0.0)] * len(pairs)
        if space.single_blocks:
            bound = partial(rounding_of, space.file("errors"), space.single_blocks)
            (hidden,) = yield Tasks("bound-rounding", [bound], own=[(pairs, lams, of_points)])
        files, kept, strips = space.product_files, space.round_file(), _strips(0, space.training.n_train, pairs)
        work = [
            partial(residual_strip, files, rows, numbered(kept, k), space.file("basis"), tasks_per_machine=slots)
            for k, rows in enumerate(strips)
        ]
        # All targets lie side by side; `chosen` maps the columns of the solutions to them.
        h, starts = np.concatenate(space.targets, axis=1), np.cumsum([0, *(h.shape[1] for h in space.targets)])
        # Several points share a target, so that its columns are sent once and repeated in the tasks.
        chosen = np.concatenate([np.arange(starts[point.target], starts[point.target + 1]) for point in of_points])
        shared = (*_side_by_side(pairs), np.repeat(lams, widths), chosen)
        # Each task gets its rows of H alone, not the whole of it.
        computed = yield Tasks("residuals", work, shared, own=[h[rows] for rows in strips])
        left = Strips(tuple(strip for strip, _ in computed), len(h), (0, len(chosen))).split(widths)
        # ‖R‖² is summed over strips in the order of their rows, whatever the order in which the tasks end.
        squares = np.sum([sums for _, sums in computed], axis=0)
        for (k, solution), residual, unknown in zip(of_f.items(), left, hidden, strict=True):
            # Bounds are kept relative to |S|, as gaps are; d bounds a norm and enters squared, hence the root.
            size, square = abs(solution.certificate.objective), float(squares[slice(*residual.columns)].sum())
            relative = Rounding(unknown.residual / np.sqrt(size), unknown.weights / size)
            opened[k] = OpenPoint(solution, residual, square / size, relative)
    return opened


def sharpen(
    spaces: Sequence[TrainingSubspace],
    points: Sequence[Point],
    opened: Mapping[int, OpenPoint],
    step: float,
    width: int,
    rng: np.random.Generator,
    *,
    rough: bool = False,
    enough: float = np.inf,
) -> Solver[dict[int, list[Strips]]]:
    """Apply the nearest preconditioner to the residual of each point: a sharper bound, and a direction for the basis.

    Points whose nearest preconditioner was applied already stay as they are. Returns for each space further directions
    that fill a block of `width` columns (see `_other_weights`): they cost little once there is a factor. Ridges are
    rounded by powers of `step`; with `rough` fewer factors serve all points, for directions alone, which are hardly
    worse. A bound is computed only for points whose first estimate of it is at most `enough`, relative to |S|.
    """
    sharpened: list[OpenPoint] = []
    wanted: list[Unsolved] = []
    filling: list[Unsolved] = []
    for f, space in enumerate(spaces):
        of_f, served = of_space(points, opened, f), dict[tuple[int, float], list[OpenPoint]]()
        nearest = space.nearest([r.solution.beta for r in of_f.values()])
        for (k, r), (position, near) in zip(of_f.items(), nearest, strict=False):
            # A preconditioner that is no nearer gives the same bound at the same cost.
            if near.condition >= r.condition:
                continue
            r.condition = near.condition
            sharpened.append(r)
            # The bound of S − min_α S is ½ Σ xᵀM⁻¹x over the columns x of R.
            worth = 2.0 * enough * abs(r.solution.certificate.objective) if near.bounds and not rough else -1.0
            # A bound needs M ⪯ A, hence the ridge that `ridge` rounds up; directions alone may use a coarser one.
            rho = (rough_ridge if rough else ridge)(points[k].lam, near.scale, step)
            wanted.append(Unsolved(f, position, rho, r.residual, worth))
            served.setdefault((position, rho), []).append(r)
        if served:
            filling += yield from _other_weights(space, f, served, width, rng)
    if not wanted:
        return {}
    solved = yield from apply_preconditioners(spaces, wanted + filling)
    for r, (direction, squares) in zip(sharpened, solved, strict=False):
        r.direction = direction
        # Bounds of single columns add up; one that was not computed leaves ‖R‖² as the bound.
        if np.isfinite(squares).all():
            r.bound = min(r.bound, 0.5 * float(squares.sum()) / abs(r.solution.certificate.objective))
    more: dict[int, list[Strips]] = {}
    for unsolved, (x, _) in zip(filling, solved[len(wanted) :], strict=True):
        more.setdefault(unsolved.space, []).append(x)
    return more


def _other_weights(
    space: TrainingSubspace,
    f: int,
    groups: Mapping[tuple[int, float], Sequence[OpenPoint]],
    width: int,
    rng: np.random.Generator,
) -> Solver[list[Unsolved]]:
    """Directions that other weights will need: preconditioned random combinations Σ_j ω_j K_jα.

    To first order a change of β changes α by −(1/2λ) A⁻¹ Σ_j δβ_j K_jα. There are none if the residuals fill a block.
    `groups` are the points of the space that each preconditioner and ridge serves.
    """
    # Residuals of many points fill a block by themselves; only a few points leave room for directions of other weights.
    if sum(r.residual.width for members in groups.values() for r in members) >= 2 * width:
        return []
    # One point of each group suffices: α differs little between points that share a factor.
    chosen = {key: members[len(members) // 2] for key, members in groups.items()}
    each = math.ceil(1.5 * width / sum(r.residual.width for r in chosen.values()))
    owners = [key for key in chosen for _ in range(max(1, min(space.n_kernels, each)))]
    pairs = [(rng.standard_normal(space.n_kernels), chosen[key].solution.alpha) for key in owners]
    combined = yield from products(space, pairs)
    return [Unsolved(f, *key, product) for key, product in zip(owners, combined, strict=True)]
