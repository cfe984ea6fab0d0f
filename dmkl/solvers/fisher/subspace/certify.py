"""The open points after each round: their solutions in the subspace, and the proven gap in the full space.

No pass is made: the products K_jV are on disk, and so are the combined kernels of the preconditioners. Tasks read each
K_jV once for all points, and residuals stay where they are computed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar

import numpy as np

from dmkl.arrays import Float, by_key
from dmkl.passes.execute import machine
from dmkl.solvers.fisher.mkfda import Solution
from dmkl.solvers.fisher.subspace import tasks
from dmkl.solvers.fisher.subspace.rounding import Rounding, rounding_of
from dmkl.solvers.fisher.subspace.space import Point, TrainingSubspace, Unsolved, basis_task_bytes, of_space
from dmkl.solvers.fisher.subspace.tasks import Strips, numbered

_LEAST_STRIPS, _STRIPS, _STRIP_ROWS, _STRIP_BYTES = 4, 16, 1024, 2**25
"""Least and most strips of rows that products are combined in, rows of a strip between these, and the memory of each.
Each strip reads all kernels: many strips of few rows take longer to open than to multiply, and a single strip leaves no
tasks to run in parallel."""


def scores(space: TrainingSubspace, pairs: Sequence[tuple[Float, Float]]) -> list[Float]:
    """Compute Σ_j w_j K_j V Z over the held-out rows, for pairs of weights w (n,) and coefficients Z (r, c)."""
    # Held-out rows follow the training rows in the products K_jV, which are made for both in one pass.
    rows = space.training.n_train, space.training.n_rows
    return [part.array() for part in _combined(space, "scores", pairs, rows, None)]


def products(space: TrainingSubspace, pairs: Sequence[tuple[Float, Float]]) -> list[Strips]:
    """Compute Σ_j w_j K_j V Z over the training rows, (m, c) for each pair."""
    return _combined(space, "residuals", pairs, (0, space.training.n_train), space.round_file())


def duals(space: TrainingSubspace, coefficients: Sequence[Float]) -> list[Float]:
    """Compute α = V a of some points, (m, c) each."""
    work, together = [partial(tasks.basis_times, space.file("basis"))], np.concatenate(coefficients, axis=1)
    (whole,) = tasks.run_checked("dual", work, own=[together])
    return np.split(whole, np.cumsum([a.shape[1] for a in coefficients])[:-1], axis=1)


def _combined(
    space: TrainingSubspace, what: str, pairs: Sequence[tuple[Float, Float]], rows: tuple[int, int], kept: str | None
) -> list[Strips]:
    if not pairs:
        return []
    compute = partial(tasks.combined_products, space.product_files, tasks_per_machine=machine().slots_per_host)
    columns = _side_by_side(pairs)
    cuts = strips(*rows, sum(columns[1].shape))
    work = [partial(compute, strip, numbered(kept, k)) for k, strip in enumerate(cuts)]
    return Strips.side_by_side(tasks.run_checked(what, work, *columns), rows[1] - rows[0], _widths(pairs))


def strips(first: int, last: int, sides: int) -> list[slice]:
    """Cut rows into strips, of which results and products have so many columns.

    The cuts depend on the data alone, not on the number of workers: BLAS rounds differently for strips of another
    height. The result of a strip and the rows of one K_jV take some megabytes.
    """
    side = math.ceil((last - first) / min(_STRIPS, max(_LEAST_STRIPS, round((last - first) / _STRIP_ROWS))))
    side = max(64, min(2048, side, _STRIP_BYTES // (32 * sides)))
    return [slice(start, min(start + side, last)) for start in range(first, last, side)]


def _side_by_side(pairs: Sequence[tuple[Float, Float]]) -> tuple[Float, Float]:
    """Weights (n, k) and coefficients (r, k) of all columns of some pairs."""
    weights = np.repeat(np.stack([w for w, _ in pairs], axis=1), _widths(pairs), axis=1)
    return weights, np.concatenate([z for _, z in pairs], axis=1)


def _widths(pairs: Sequence[tuple[Float, Float]]) -> list[int]:
    return [z.shape[1] for _, z in pairs]


EXACT = Rounding(0.0, 0.0)  # That of products in double precision


@dataclass
class OpenPoint:
    """An open point: its best pair in the subspace, and the residual of this pair in the full space."""

    solution: Solution
    residual: Strips  # R, (m, c)
    bound: float  # Upper bound of S(α, β) − min_α S relative to the scale of the certificate, for exact products
    rounding: Rounding
    """Error bounds of rounding: d relative to the root of the scale, and its effect on F − S relative to the scale"""
    extra: Mapping[str, Float] = field(default_factory=dict)  # `Outcome.extra`
    direction: Strips | None = None  # The preconditioned residual: the first-order error of α
    condition: float = np.inf  # Condition number of the system relative to the preconditioner that gave `direction`
    has_bounds: ClassVar[bool] = True
    """Whether a preconditioned residual bounds the error, as that of least squares does"""

    @property
    def candidates(self) -> list[Strips]:
        """Directions that the basis lacks."""
        return [self.direction or self.residual]

    @property
    def interval(self) -> tuple[float, float]:
        """The objective of the pair, and the bound of the optimum from the other side."""
        return self.solution.certificate.objective, self.solution.certificate.upper

    @property
    def alpha_gap(self) -> float:
        """Upper bound of S(α, β) − min_α S relative to the scale of the certificate, with rounding."""
        return float((np.sqrt(self.bound) + self.rounding.residual) ** 2)

    @property
    def gap(self) -> float:
        """The proven relative gap."""
        return self.solution.certificate.weights_gap + self.rounding.weights + self.alpha_gap

    @property
    def hidden(self) -> float:
        """The part of the gap that rounding hides, and that an exact solution would have too."""
        return self.rounding.weights + self.rounding.residual**2


@dataclass(eq=False)
class Restriction:
    """Problems restricted to a basis: how they are solved in it, and what is proven in the full space; of MK-FDA."""

    spaces: Sequence[TrainingSubspace]
    points: Sequence[Point]
    double: ClassVar[bool] = False  # Whether all products are in double precision, so that rounding needs no bound

    def solve(self, starts: Sequence[Float | None], tols: Mapping[int, float]) -> dict[int, Solution]:
        """Solve the points that have a tolerance for their weights gap, from β of each point if it has one."""
        work, own, points = [], [], self.points
        for f, space in enumerate(self.spaces):
            ordered = sorted((k for k in tols if points[k].space == f), key=lambda k: -points[k].weights.p)
            chains = by_key(ordered, lambda k: (points[k].target, points[k].lam))
            files = (space.gram, space.file("inner"), space.file("projected"))
            ends = np.cumsum([h.shape[1] for h in space.targets]).tolist()
            # A task solves the norms p at one λ in sequence, each from the solution of the one before. The tasks do not
            # depend on the number of workers, so that the results do not.
            for (target, lam), members in chains.items():
                columns = (ends[target] - space.targets[target].shape[1], ends[target])
                work.append(partial(tasks.solve_points, files, columns, lam, space.training.facts))
                own.append([(k, points[k].weights, starts[k], tols[k], points[k].kernels) for k in members])
        return dict(pair for chain in tasks.run_checked("restricted-master", work, own=own) for pair in chain)

    def judge(self, solutions: Mapping[int, Solution]) -> dict[int, OpenPoint]:
        """The residual and the gap of every solution in the full space, without a pass.

        For MK-FDA R = H − ½α − (1/2λ)K(β)α of every solution at α = V a; ‖R‖² bounds what a better α would gain.
        """
        opened: dict[int, OpenPoint] = {}
        slots, points = machine().slots_per_host, self.points
        for f, space in enumerate(self.spaces):
            of_f = of_space(points, solutions, f)
            if not of_f:
                continue
            pairs, of_points = [(s.beta, s.alpha) for s in of_f.values()], [points[k] for k in of_f]
            lams, widths = [point.lam for point in of_points], _widths(pairs)
            hidden = [EXACT] * len(pairs)
            if space.single_blocks:
                bound = partial(rounding_of, space.file("errors"), space.single_blocks)
                (hidden,) = tasks.run_checked("bound-rounding", [bound], own=[(pairs, lams, of_points)])
            columns = _side_by_side(pairs)
            kept, cuts = space.round_file(), strips(0, space.training.n_train, sum(columns[1].shape))
            compute = partial(tasks.residual_strip, space.product_files, space.file("basis"), tasks_per_machine=slots)
            work = [partial(compute, rows, numbered(kept, k)) for k, rows in enumerate(cuts)]
            # All targets lie side by side; `chosen` maps the columns of the solutions to them.
            h, starts = np.concatenate(space.targets, axis=1), np.cumsum([0, *(h.shape[1] for h in space.targets)])
            # Several points share a target, so that its columns are sent once and repeated in the tasks.
            chosen = np.concatenate([np.arange(starts[point.target], starts[point.target + 1]) for point in of_points])
            shared = (*columns, np.repeat(lams, widths), chosen)
            # Each task gets its rows of H alone, not the whole of it.
            computed = tasks.run_checked("residuals", work, *shared, own=[h[rows] for rows in cuts])
            left = Strips.side_by_side([strip for strip, _ in computed], len(h), widths)
            # ‖R‖² is summed over strips in the order of their rows, whatever the order in which the tasks end.
            squares = np.sum([sums for _, sums in computed], axis=0)
            for (k, solution), residual, unknown in zip(of_f.items(), left, hidden, strict=True):
                # The gap in the full space is relative to a part of ‖H‖², which the subspace does not know.
                c, norm_sq = solution.certificate, float(np.sum(space.targets[points[k].target] ** 2))
                certificate = replace(c, rest=max(0.0, norm_sq + (c.objective - c.kernel_part)))
                # Bounds are kept relative to the scale, as gaps are; d bounds a norm, which enters squared: the root.
                scale, square = certificate.scale, float(squares[slice(*residual.columns)].sum())
                relative = Rounding(unknown.residual / np.sqrt(scale), unknown.weights / scale)
                opened[k] = OpenPoint(replace(solution, certificate=certificate), residual, square / scale, relative)
        return opened

    def sharpen(self, opened: Sequence[OpenPoint], asked: Sequence[Unsolved], width: int) -> None:
        """Add to the candidates of points, for which preconditioners gave a direction, up to `width` of a space."""

    def arrays(self, numbers: Sequence[int]) -> dict[str, Float]:
        """Arrays that a continued run needs of some points, by name."""
        return {}

    def restore(self, arrays: Mapping[str, Float]) -> None:
        """Take the arrays of an earlier run."""

    def task_bytes(self, space: TrainingSubspace, width: int) -> int:
        """Memory of a task that solves a point in a basis of this width."""
        return basis_task_bytes(space.n_kernels, width)


def other_weights(
    space: TrainingSubspace,
    f: int,
    groups: Mapping[tuple[int, float], Sequence[OpenPoint]],
    width: int,
    rng: np.random.Generator,
) -> list[Unsolved]:
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
    combined = products(space, pairs)
    return [Unsolved(f, *key, product) for key, product in zip(owners, combined, strict=True)]
