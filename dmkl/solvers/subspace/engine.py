"""The subspace solver: a whole grid of MK-FDA problems, over several folds, in a dozen passes.

Each fold keeps an orthonormal basis V of what its solutions have needed so far, and the products K_jV. In that space
every point (target, p, λ) is a small problem, solved exactly (`reduced`); the true residual, and with it the proven gap
of the full problem, follows from the K_jV without touching the kernels. What the open points still lack becomes the
next block of V, and one pass multiplies the blocks of all folds. So a round is

    solve      the open points in the subspace, as tasks                                    no pass
    certify    by ‖R‖², or by the sharper bound of an anchor (`anchors`)                    no pass
    anchor     add up the combined kernels of weightings that no anchor serves well         one pass, not every round
    extend     V by the dominant directions of the preconditioned residuals                 one pass

Where a combined kernel fits the memory of a task, anchors make few rounds of it whatever λ is: the residual of a point
whose weighting is an anchor's gives its exact error; near it the error contracts by the condition number of the two.
Where it does not fit, the residuals themselves, filled up with the dominant directions of the products, extend V: a
Krylov method for all points at once, in which the points of large λ converge first, and tiny λ may need a basis of
nearly m. What is left when the budget of the basis is spent is finished one by one, or reported with its true gap.
"""

from __future__ import annotations

import math
import shutil
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from dask.delayed import Delayed, delayed

from dmkl import progress
from dmkl.blocks.fisher import uniform_weights
from dmkl.errors import MemoryBudgetError
from dmkl.passes.combine import Combination, StoredSum, combine_pass, direct_bytes, fits_in_memory, for_sums
from dmkl.passes.execute import Machine, again, execute, machine, share_all
from dmkl.passes.run import pass_bytes, pass_graph, run_pass
from dmkl.passes.sweep import Columns
from dmkl.passes.view import Lens
from dmkl.solvers.requests import drive
from dmkl.solvers.subspace.anchors import Closeness, choose_anchors, closeness, grid_step, ridge
from dmkl.solvers.subspace.directions import dominant_block
from dmkl.solvers.subspace.reduced import ReducedSolution
from dmkl.solvers.subspace.tasks import (
    ProductFiles,
    SolveJob,
    combined_products,
    group_file,
    keep_products,
    settle,
    solve_points,
)
from dmkl.solvers.subspace.workspace import Workspace, save_array
from dmkl.solvers.wrapper import AlphaStep, CGStep, DirectStep, Problem, Step, wrapper

__all__ = ["Finish", "Point", "PointResult", "Round", "SubspaceOptions", "SubspaceSolver", "Training"]

Array = npt.NDArray[Any]
Float = npt.NDArray[np.float64]
Finish = Literal["auto", "direct", "cg", "report"]

OPEN, CERTIFIED, FINISHED = 2, 0, 1


@dataclass(frozen=True)
class Training:
    """The kernels of one fold and what is to be learnt from them.

    Parameters
    ----------
    name
        For messages.
    square
        K[train, train] with its statistics.
    whole
        K[train then others, train]: the same kernels with the rows whose scores are wanted below. `square` where
        there are none.
    targets
        H of each independent problem, (m, c).
    """

    name: str
    square: Lens
    whole: Lens
    targets: tuple[Float, ...]

    @property
    def n_train(self) -> int:
        """Training rows, m."""
        return self.square.view.shape[1]

    @property
    def n_rows(self) -> int:
        """Rows of `whole`."""
        return self.whole.view.shape[1]


@dataclass(frozen=True)
class Point:
    """One problem to solve: a fold, one of its targets, a norm and a ridge."""

    fold: int
    problem: int
    p: float
    lam: float


@dataclass
class PointResult:
    """How far a point has come.

    Parameters
    ----------
    beta
        Its weights, (n,).
    gap, objective, upper
        The proven relative gap, S(α, β) and F(α).
    status
        0 certified in the subspace, 1 finished by another solver, 2 open: the gap is true, and above the tolerance.
    scores
        Σ_j β_j K_j α on the rows of `Training.whole` beyond the training rows, (rows, c), once it is settled.
    alpha
        (m, c), once it is settled, where it was asked for.
    """

    beta: Float | None = None
    gap: float = np.inf
    objective: float = np.nan
    status: int = OPEN
    scores: Float | None = None
    alpha: Float | None = None
    upper: float = np.nan
    steps: list[Step] = field(default_factory=list)
    """Each round of solving, where `alpha` was asked for."""


@dataclass(frozen=True)
class Round:
    """One pass of the search, for its history."""

    kind: str
    seconds: float
    n_bytes: int
    basis: int
    certified: int
    worst_gap: float


@dataclass(frozen=True)
class SubspaceOptions:
    """How the solver goes about it.

    Parameters
    ----------
    tol
        The relative gap to prove.
    block
        New basis vectors of each fold and pass; by the number of folds where None.
    basis_bytes
        Most bytes that bases and products of all folds may take on disk; half of what is free where None.
    max_passes
        Passes after which the rest is finished by the policy.
    finish
        What becomes of points that are still open then: "direct" or "cg", each by the wrapper method, "auto" the first
        of these that fits, "report" leaves them with their true gap.
    use_anchors
        Whether combined kernels may be held; by memory where None.
    alphas
        Whether α of every point is kept.
    """

    tol: float = 1e-4
    block: int | None = None
    basis_bytes: int | None = None
    max_passes: int = 60
    finish: Finish = "auto"
    use_anchors: bool | None = None
    alphas: bool = False


@dataclass(frozen=True)
class _Anchor:
    number: int
    beta: Float
    total: StoredSum


@dataclass
class _Fold:
    """The state of one fold."""

    training: Training
    basis: Float
    gram: str = ""
    rounds: list[tuple[tuple[str, tuple[int, ...]], ...]] = field(default_factory=list)
    anchors: list[_Anchor] = field(default_factory=list)

    def nearest(self, beta: Float) -> tuple[int, Closeness] | None:
        """The place of the anchor that serves a weighting best, and how it lies."""
        near = [closeness(beta, anchor.beta) for anchor in self.anchors]
        if not near:
            return None
        best = min(range(len(near)), key=lambda a: (near[a].condition, a))
        return best, near[best]

    @property
    def files(self) -> ProductFiles:
        return ProductFiles(tuple(self.rounds))


@dataclass
class _Residual:
    """An open point after a round of solving."""

    solution: ReducedSolution
    residual: Float
    alpha_gap: float
    direction: Float | None = None
    served: float = np.inf
    """Condition number to the anchor that gave `direction`."""

    @property
    def gap(self) -> float:
        return self.solution.weights_gap + self.alpha_gap


class SubspaceSolver:
    """Solve many points over several folds of the same kernels (see the module).

    Parameters
    ----------
    folds
        Their kernels and targets.
    points
        What to solve.
    workspace
        Where the state is kept.
    options
        How.
    names
        The kernels' names, for messages.
    n_passes
        Passes that were needed before (statistics).
    """

    def __init__(
        self,
        folds: Sequence[Training],
        points: Sequence[Point],
        workspace: Workspace,
        options: SubspaceOptions,
        names: tuple[str, ...] = (),
        n_passes: int = 0,
    ) -> None:
        self.points, self.options, self.workspace, self.names = list(points), options, workspace, names
        self.results = [PointResult() for _ in points]
        self.n_passes = n_passes
        self.history: list[Round] = []
        self._folds = [_Fold(training, np.zeros((training.n_train, 0))) for training in folds]
        self._n = len(folds[0].square.view.kernels)
        self._c = max(h.shape[1] for training in folds for h in training.targets)
        self._width = options.block or max(32, min(128, 384 // len(folds)))
        self._step = grid_step([point.lam for point in points])
        self._best_gap: list[float] = []
        workspace.check_shared()
        self._more_state = {name: value for name, value in workspace.state.items() if name != "solver"}
        if "solver" in workspace.state:
            self._restore(workspace.state["solver"])
        else:
            self.save()

    # --- the loop ------------------------------------------------------------------------------------------------

    def run(self) -> list[PointResult]:
        """Solve; what is certified so far is on disk after every pass."""
        while self._open():
            if not self._folds[0].basis.shape[1]:
                blocks = self._first_blocks()
            else:
                open_points = self._solve()
                if not open_points:
                    break
                self._best_gap.append(max(r.gap for r in open_points.values()))
                self._remember(open_points)
                if self._place_anchors(open_points):
                    open_points = self._certify_by_anchors(open_points, new_only=True)
                    if not open_points:
                        break
                blocks = self._next_blocks(open_points)
            if self._spent(blocks):
                self._finish_open()
                break
            self._extend(blocks)
        return self.results

    def _open(self) -> list[int]:
        return [k for k, result in enumerate(self.results) if result.status == OPEN]

    def _spent(self, blocks: list[Float]) -> bool:
        """Whether no further pass is allowed, or would help."""
        if not any(block.shape[1] for block in blocks) or self.n_passes >= self.options.max_passes:
            return True
        # Three rounds that brought nothing: the arithmetic resolves no more.
        stalled = len(self._best_gap) > 4 and min(self._best_gap[-3:]) > 0.9 * min(self._best_gap[:-3])
        more = sum(
            8 * (fold.basis.shape[1] + block.shape[1]) * (self._n * fold.training.n_rows + fold.training.n_train)
            for fold, block in zip(self._folds, blocks, strict=True)
        )
        allowed = self.options.basis_bytes
        if allowed is None:
            kept = sum(
                8 * fold.basis.shape[1] * (self._n * fold.training.n_rows + fold.training.n_train)
                for fold in self._folds
            )
            allowed = (shutil.disk_usage(self.workspace.path).free + kept) // 2
        # A task maps one fold's G and holds a few matrices of its side.
        widest = max(fold.basis.shape[1] + block.shape[1] for fold, block in zip(self._folds, blocks, strict=True))
        return stalled or more > allowed or 8 * widest**2 * (self._n + 4) > machine().task_bytes

    # --- solving in the subspace ---------------------------------------------------------------------------------

    def _solve(self) -> dict[int, _Residual]:
        """Solve the open points, settle those that can be certified; the rest with what they lack."""
        found: dict[int, _Residual] = {}
        fine: set[int] = set()
        todo = self._open()
        # Points that are far from certified are solved roughly: their residual is as good a direction.
        for _ in range(3):
            tols = {k: 0.1 * self.options.tol if k in fine or self.results[k].gap < 30.0 else 1e-2 for k in todo}
            solutions = self._solve_jobs(todo, tols)
            residuals = self._residuals(solutions)
            found |= {k: _Residual(solutions[k], *residuals[k]) for k in todo}
            todo = [
                k
                for k in todo
                if found[k].alpha_gap <= self.options.tol and found[k].gap > self.options.tol and k not in fine
            ]
            fine |= set(todo)
            if not todo:
                break
        for k, r in found.items():
            result = self.results[k]
            result.beta, result.gap, result.objective = r.solution.beta, r.gap, r.solution.objective
            result.upper = r.solution.upper
        return self._certify_by_anchors(self._settle_certified(found))

    def _solve_jobs(self, points: list[int], tols: dict[int, float]) -> dict[int, ReducedSolution]:
        where = machine()
        chunk = max(1, math.ceil(len(points) / (8 * where.slots)))
        work = []
        for f, fold in enumerate(self._folds):
            mine = [k for k in points if self.points[k].fold == f]
            # Neighbors in p follow one another, so that each starts warm from the one before.
            mine.sort(key=lambda k: (self.points[k].problem, self.points[k].lam, -self.points[k].p))
            inner = fold.basis.T @ fold.basis
            for start in range(0, len(mine), chunk):
                jobs = [
                    SolveJob(k, point.problem, point.lam, point.p, self.results[k].beta, tols[k])
                    for k in mine[start : start + chunk]
                    for point in (self.points[k],)
                ]
                targets = {job.problem: fold.basis.T @ fold.training.targets[job.problem] for job in jobs}
                work.append(partial(solve_points, fold.gram, inner, targets, jobs, where.slots_per_host))
        return dict(pair for part in self._run("solve-reduced", work) for pair in part)

    def _residuals(self, solutions: dict[int, ReducedSolution]) -> dict[int, tuple[Float, float]]:
        """R = H − ½α − (1/2λ)K(β)α and ‖R‖²/|S| of every point, at α = V a."""
        found: dict[int, tuple[Float, float]] = {}
        for f, fold in enumerate(self._folds):
            mine = [k for k in solutions if self.points[k].fold == f]
            if not mine:
                continue
            combined = self._products(f, [(solutions[k].beta, solutions[k].coefficients) for k in mine], held_out=False)
            for k, product in zip(mine, combined, strict=True):
                point, solution = self.points[k], solutions[k]
                h = fold.training.targets[point.problem]
                residual = h - 0.5 * (fold.basis @ solution.coefficients) - product / (2.0 * point.lam)
                size = float(np.sum(residual * residual)) / abs(solution.objective)
                found[k] = (residual, size)
        return found

    def _products(self, f: int, pairs: list[tuple[Float, Float]], *, held_out: bool) -> list[Float]:
        """Σ_j w_j K_j V Z for pairs of weights (n,) and coefficients (r, c), over training or held-out rows."""
        if not pairs:
            return []
        fold, where = self._folds[f], machine()
        weights = np.concatenate([np.repeat(w[:, None], z.shape[1], axis=1) for w, z in pairs], axis=1)
        coefficients = np.concatenate([z for _, z in pairs], axis=1)
        first, last = (fold.training.n_train, fold.training.n_rows) if held_out else (0, fold.training.n_train)
        # A strip's result and one kernel's rows of V and of the result stay within a share of the task's memory.
        side = max(64, min(2048, where.task_bytes // (32 * (coefficients.shape[1] + coefficients.shape[0]))))
        side = max(1, min(side, math.ceil((last - first) / where.slots)))
        strips = [slice(start, min(start + side, last)) for start in range(first, last, side)]
        work = [partial(combined_products, fold.files, rows, tasks_per_machine=where.slots_per_host) for rows in strips]
        found = self._run("scores" if held_out else "residuals", work, weights, coefficients)
        whole = np.concatenate(found) if found else np.zeros((0, coefficients.shape[1]))
        return np.split(whole, np.cumsum([z.shape[1] for _, z in pairs])[:-1], axis=1)

    def _settle_certified(self, found: dict[int, _Residual]) -> dict[int, _Residual]:
        """Keep what is certified, with its scores; return the rest."""
        done = [k for k, r in found.items() if r.gap <= self.options.tol]
        for f, fold in enumerate(self._folds):
            mine = [k for k in done if self.points[k].fold == f]
            pairs = [(found[k].solution.beta, found[k].solution.coefficients) for k in mine]
            for k, scores in zip(mine, self._products(f, pairs, held_out=True), strict=True):
                alpha = fold.basis @ found[k].solution.coefficients if self.options.alphas else None
                self._settle(k, found[k].solution, found[k].gap, CERTIFIED, scores, alpha)
        rest = {k: r for k, r in found.items() if k not in set(done)}
        worst = max((r.gap for r in rest.values()), default=0.0)
        progress.current().note(self._note(worst))
        return rest

    def _settle(
        self, k: int, solution: ReducedSolution, gap: float, status: int, scores: Float, alpha: Float | None
    ) -> None:
        steps = self.results[k].steps
        if self.options.alphas:
            bound = (gap - solution.weights_gap) * abs(solution.objective)
            steps = [
                *steps,
                Step(solution.objective, solution.upper, gap, bound, self.n_passes, solution.beta),
            ]
        self.results[k] = PointResult(
            solution.beta, gap, solution.objective, status, scores, alpha, solution.upper, steps
        )

    def _remember(self, found: dict[int, _Residual]) -> None:
        """Keep how open points went, where their history was asked for."""
        if self.options.alphas:
            for k, r in found.items():
                bound = r.alpha_gap * abs(r.solution.objective)
                step = Step(r.solution.objective, r.solution.upper, r.gap, bound, self.n_passes, r.solution.beta)
                self.results[k].steps.append(step)

    # --- anchors -------------------------------------------------------------------------------------------------

    def _anchors_allowed(self, where: Machine) -> bool:
        if self.options.use_anchors is not None:
            return self.options.use_anchors
        m = max(fold.training.n_train for fold in self._folds)
        # The matrix, a factor, and columns.
        return 8 * m * m * (2 + self._taking()) + 16 * m * 8 * self._width <= where.task_bytes

    def _taking(self) -> int:
        """Copies that taking rows after centring costs."""
        fitted = self._folds[0].training.square.fitted
        return 2 if any(step.kind == "take" for step in fitted.steps) else 0

    def _most_anchors(self) -> int:
        """New anchors of a fold in one pass: as many as a task can add up tile by tile."""
        side = self._folds[0].training.square.view.source.tiling.tile
        room = machine().task_bytes // 4 // (8 * side * side)
        return int(max(1, min(8, room // len(self._folds))))

    def _place_anchors(self, found: dict[int, _Residual]) -> bool:
        """Add up the combined kernels of weightings that no anchor serves well; whether there are any."""
        # After one block the weights are too rough to be worth a pass.
        if not self._anchors_allowed(machine()) or len(self._folds[0].rounds) < 2:
            return False
        chosen = []
        for f, fold in enumerate(self._folds):
            mine = [k for k in found if self.points[k].fold == f]
            betas = [found[k].solution.beta for k in mine]
            gaps = [found[k].gap for k in mine]
            self._forget_anchors(fold, betas)
            known = [anchor.beta for anchor in fold.anchors]
            chosen += [(f, beta) for beta in choose_anchors(betas, gaps, known, self._most_anchors())]
        if not chosen:
            return False
        self._add_anchors(chosen)
        return True

    def _forget_anchors(self, fold: _Fold, betas: list[Float]) -> None:
        """Remove the sums that serve no open point, but for the first, which serves any weighting somehow."""
        used = {place for beta in betas if (near := fold.nearest(beta)) is not None for place in (near[0],)} | {0}
        for place, anchor in enumerate(fold.anchors):
            if place not in used:
                anchor.total.remove()
        fold.anchors = [anchor for place, anchor in enumerate(fold.anchors) if place in used]

    def _add_anchors(self, chosen: list[tuple[int, Float]]) -> None:
        started = time.monotonic()
        lenses = [fold.training.square for fold in self._folds]
        numbers: list[int] = []
        for position, (f, _) in enumerate(chosen):
            taken = [anchor.number for anchor in self._folds[f].anchors]
            earlier = sum(1 for g, _ in chosen[:position] if g == f)
            numbers.append(max(taken, default=-1) + 1 + earlier)
        stems = [str(self.workspace.fold(f) / f"anchor-{a}") for (f, _), a in zip(chosen, numbers, strict=True)]
        sums = combine_pass(lenses, [Combination(f, beta) for f, beta in chosen], stems)
        for (f, beta), number, total in zip(chosen, numbers, sums, strict=True):
            self._folds[f].anchors.append(_Anchor(number, beta, total))
        self._record("anchor", started)

    def _certify_by_anchors(self, found: dict[int, _Residual], *, new_only: bool = False) -> dict[int, _Residual]:
        """Apply each open point's nearest anchor to its residual: a sharper bound, and a direction."""
        wanted: list[tuple[int, int, float, bool]] = []  # point, anchor, ridge, whether it bounds
        for k, r in found.items():
            found_near = self._folds[self.points[k].fold].nearest(r.solution.beta)
            if found_near is None or (new_only and found_near[1].condition >= r.served):
                continue
            best, near = found_near
            r.served = near.condition
            wanted.append((k, best, ridge(self.points[k].lam, near.scale, self._step), near.bounds))
        solved = self._settle_columns([(self.points[k].fold, a, s, found[k].residual) for k, a, s, _ in wanted])
        for (k, _, _, bounds), direction in zip(wanted, solved, strict=True):
            r = found[k]
            r.direction = direction
            if bounds:
                bound = 0.5 * float(np.sum(r.residual * direction)) / abs(r.solution.objective)
                r.alpha_gap = min(r.alpha_gap, max(bound, 0.0))
                self.results[k].gap = r.gap
        return self._settle_certified(found) if wanted else found

    def _settle_columns(self, wanted: list[tuple[int, int, float, Float]]) -> list[Float]:
        """M⁻¹X for (fold, anchor, ridge, X): one factorisation for all X of the same three."""
        where = machine()
        groups: dict[tuple[int, int, float], list[int]] = {}
        for position, (f, a, rho, _) in enumerate(wanted):
            groups.setdefault((f, a, rho), []).append(position)
        # The ridges of one anchor share a task, which puts its sum together once, but leave work for every worker.
        most = max(1, len(groups) // (3 * where.slots))
        parts: list[list[tuple[int, int, float]]] = []
        for key in groups:
            if parts and parts[-1][0][:2] == key[:2] and len(parts[-1]) < most:
                parts[-1].append(key)
            else:
                parts.append([key])
        work = [
            partial(
                settle,
                self._folds[part[0][0]].anchors[part[0][1]].total,
                [rho for _, _, rho in part],
                [np.concatenate([wanted[k][3] for k in groups[key]], axis=1) for key in part],
                where.slots_per_host,
            )
            for part in parts
        ]
        found = (block for blocks in self._run("settle", work) for block in blocks)
        result: list[Any] = [None] * len(wanted)
        for key in (key for part in parts for key in part):
            widths = [wanted[k][3].shape[1] for k in groups[key]]
            pieces = np.split(next(found), np.cumsum(widths)[:-1], axis=1)
            for k, piece in zip(groups[key], pieces, strict=True):
                result[k] = piece
        return result

    # --- new directions ------------------------------------------------------------------------------------------

    def _first_blocks(self) -> list[Float]:
        """The solutions for uniform weights at every ridge, or the targets themselves."""
        anchored = self._anchors_allowed(machine())
        if anchored and not self._folds[0].anchors:
            self._add_anchors([(f, np.ones(self._n)) for f in range(len(self._folds))])
        wanted: dict[tuple[int, int, float], tuple[int, int, float, Float]] = {}
        for point in self.points:
            # Through the uniform weighting of this norm: K(β) is `scale` times the sum of all kernels.
            scale = float(uniform_weights(self._n, point.p)[0])
            key = (point.fold, point.problem, ridge(point.lam, scale, self._step))
            h = self._folds[point.fold].training.targets[point.problem]
            wanted.setdefault(key, (point.fold, 0, key[2], h))
        if anchored:
            solved = self._settle_columns(list(wanted.values()))
        else:
            solved = [h for _, _, _, h in wanted.values()]
        blocks = []
        for f, fold in enumerate(self._folds):
            mine = [x / np.linalg.norm(x) for (g, _, _), x in zip(wanted, solved, strict=True) if g == f]
            blocks.append(self._dominant(fold.basis, mine, f, self._wide(fold)))
        return blocks

    def _wide(self, fold: _Fold) -> int:
        """Columns of the next block: never more than there are dimensions left."""
        return int(max(0, min(self._width, fold.training.n_train - fold.basis.shape[1])))

    def _next_blocks(self, found: dict[int, _Residual]) -> list[Float]:
        return [
            self._next_block(f, {k: r for k, r in found.items() if self.points[k].fold == f})
            for f in range(len(self._folds))
        ]

    def _next_block(self, f: int, mine: dict[int, _Residual]) -> Float:
        """What the open points of a fold lack, filled up with what they will ask for next."""
        fold = self._folds[f]
        width = self._wide(fold)
        if not mine or not width:
            return np.zeros((fold.training.n_train, 0))
        columns = [r.residual if r.direction is None else r.direction for r in mine.values()]
        block = self._dominant(fold.basis, [x / np.linalg.norm(x) for x in columns], f, width)
        if block.shape[1] < width:
            more = self._filling(f, mine, width - block.shape[1])
            basis = np.concatenate([fold.basis, block], axis=1)
            block = np.concatenate([block, self._dominant(basis, more, f, width - block.shape[1])], axis=1)
        return block

    def _dominant(self, basis: Float, columns: list[Float], f: int, width: int) -> Float:
        if not columns or width < 1:
            return np.zeros((len(basis), 0))
        rng = np.random.default_rng([len(self.history), f])
        return dominant_block(basis, np.concatenate(columns, axis=1), width, 1e-6, rng)

    def _filling(self, f: int, mine: dict[int, _Residual], width: int) -> list[Float]:
        """Directions for other weights than the present ones: random combinations of the K_jα, through the anchor.

        To first order a change of β changes α by −(1/2λ) A⁻¹ Σ_j δβ_j K_jα.
        """
        fold = self._folds[f]
        rng = np.random.default_rng([len(self.history), f, 1])
        chosen = _spread(sorted(mine, key=lambda k: (self.points[k].problem, self.points[k].lam, self.points[k].p)), 6)
        c = mine[chosen[0]].solution.coefficients.shape[1]
        times = max(1, math.ceil(1.5 * width / (len(chosen) * c)))
        pairs, owners = [], []
        for k in chosen:
            solution = mine[k].solution
            for _ in range(min(times, self._n)):
                pairs.append((rng.standard_normal(self._n), solution.coefficients))
                owners.append(k)
        if not fold.anchors:
            # No preconditioner: what the single kernels make of the last block, too.
            r = fold.basis.shape[1]
            newest = np.eye(r)[:, max(0, r - self._width) :]
            for _ in range(max(1, math.ceil(1.5 * width / newest.shape[1]))):
                pairs.extend((rng.standard_normal(self._n), newest[:, [u]]) for u in range(newest.shape[1]))
            return [x / np.linalg.norm(x) for x in self._products(f, pairs, held_out=False) if x.any()]
        products = self._products(f, pairs, held_out=False)
        wanted = []
        for k, product in zip(owners, products, strict=True):
            found = fold.nearest(mine[k].solution.beta)
            assert found is not None
            place, near = found
            wanted.append((f, place, ridge(self.points[k].lam, near.scale, self._step), product))
        return [x / np.linalg.norm(x) for x in self._settle_columns(wanted) if x.any()]

    # --- passes --------------------------------------------------------------------------------------------------

    def _extend(self, blocks: list[Float]) -> None:
        """Multiply the new blocks of all folds: one pass, or as few as memory allows."""
        riding = [f for f in range(len(self._folds)) if blocks[f].shape[1]]
        where = machine()
        for group in self._loads(riding, blocks, where):
            started = time.monotonic()
            number = len(self.history)
            widened = {f: np.concatenate([self._folds[f].basis, blocks[f]], axis=1) for f in group}
            for f in group:
                save_array(self.workspace.fold(f) / f"basis-{number}.npy", widened[f])
            found, layout = again(partial(self._extend_pass, group, blocks, number), "extend")
            for f, cross, groups in zip(group, found, layout, strict=True):
                fold = self._folds[f]
                fold.basis = widened[f]
                fold.rounds.append(groups)
                self._widen_gram(f, cross, number)
            self._record("extend", started)

    def _loads(self, riding: list[int], blocks: list[Float], where: Machine) -> list[list[int]]:
        loads: list[list[int]] = []
        for f in riding:
            if loads and self._fits([*loads[-1], f], blocks, where):
                loads[-1].append(f)
            else:
                loads.append([f])
        return loads

    def _columns(self, group: list[int], blocks: list[Float]) -> tuple[list[Lens], list[Columns]]:
        lenses = [self._folds[f].training.whole for f in group]
        double = np.dtype(np.float64)
        return lenses, [Columns(blocks[f], "each", None, double, k) for k, f in enumerate(group)]

    def _fits(self, group: list[int], blocks: list[Float], where: Machine) -> bool:
        lenses, columns = self._columns(group, blocks)
        return sum(pass_bytes(lenses, columns, where).values()) <= where.task_bytes

    def _extend_pass(self, group: list[int], blocks: list[Float], number: int) -> tuple[list[Float], list[Any]]:
        where = machine()
        lenses, columns = self._columns(group, blocks)
        name = f"extend-pass-{number}"
        graph = pass_graph(lenses, columns, name)
        sizes = graph.group_sizes()
        starts = np.cumsum([0, *sizes])
        wanted: list[Delayed] = []
        layout = []
        for position, f in enumerate(group):
            folder = self.workspace.fold(f)
            paths = [group_file(folder, number, g) for g in range(len(sizes))]
            basis = str(folder / f"basis-{number}.npy")
            wanted += [
                delayed(keep_products, pure=False)(
                    total,
                    path,
                    basis,
                    where.slots_per_host,
                    dask_key_name=f"{name}-keep-{position}.{g}-{graph.token}",
                )
                for g, (total, path) in enumerate(zip(graph.total(position), paths, strict=True))
            ]
            layout.append(
                tuple((path, tuple(range(int(starts[g]), int(starts[g + 1])))) for g, path in enumerate(paths))
            )
        found = execute(wanted, [(task, size) for _, task, size in graph.units], name)
        per_fold = [np.concatenate(found[k * len(sizes) : (k + 1) * len(sizes)]) for k in range(len(group))]
        return per_fold, layout

    def _widen_gram(self, f: int, cross: Float, number: int) -> None:
        """G of the wider basis from VᵀK_jU of the new block."""
        fold = self._folds[f]
        n, r, b = cross.shape
        before = r - b
        gram = np.empty((n, r, r))
        if before:
            gram[:, :before, :before] = np.load(fold.gram, mmap_mode="r")
        gram[:, :, before:] = cross
        gram[:, before:, :before] = cross[:, :before].transpose(0, 2, 1)
        new = gram[:, before:, before:]
        new += new.transpose(0, 2, 1).copy()
        new *= 0.5
        fold.gram = str(self.workspace.fold(f) / f"gram-{number}.npy")
        save_array(fold.gram, gram)

    # --- the rest ------------------------------------------------------------------------------------------------

    def _finish_open(self) -> None:
        """Finish what the subspace leaves open, as the policy says."""
        how = self.options.finish
        left = self._open()
        folds = [fold.training for fold in self._folds]
        where = machine()
        views = [training.square.view for training in folds]
        fits = all(fits_in_memory(view, 1, where) for view in views)
        if how == "auto":
            how = "direct" if fits else "cg"
        if how == "direct" and not fits:
            msg = (
                "finish='direct' holds a combined kernel in memory, "
                f"{max(direct_bytes(v, 1) for v in views) / 2**30:.3g} GiB, and "
                f"{where.total_bytes / 2**30:.3g} GiB are allowed; use finish='cg' or 'report', or set dmkl.memory "
                "higher"
            )
            raise MemoryBudgetError(msg)
        if how == "report":
            self._report(left)
            return
        solvers = []
        for k in left:
            point, fold = self.points[k], folds[self.points[k].fold]
            problem = Problem(fold.targets[point.problem], point.lam, point.p, f"point {k}: ")
            step: AlphaStep = DirectStep(problem) if how == "direct" else CGStep(problem, self.options.tol)
            start = self.results[k].beta
            solver = wrapper(problem, self._n, step, tol=self.options.tol, names=self.names, start=start)
            solvers.append((fold.square, solver))
        lanes = max(1, where.total_bytes // max(direct_bytes(v, 1) for v in views)) if how == "direct" else None
        started = time.monotonic()
        solutions, passes = drive(solvers, lanes=lanes)
        riding = [
            Columns(s.alpha, "sum", np.repeat(s.beta[:, None], s.alpha.shape[1], axis=1), np.dtype(np.float64), 0)
            for s in solutions
        ]
        found, read = self._held_out(left, riding)
        for k, solution, scores in zip(left, solutions, found, strict=True):
            status = FINISHED if solution.certificate.gap <= self.options.tol else OPEN
            self.results[k] = PointResult(
                solution.beta,
                solution.certificate.gap,
                solution.certificate.objective,
                status,
                scores,
                solution.alpha if self.options.alphas else None,
                solution.certificate.upper,
                [*self.results[k].steps, *solution.steps],
            )
        self._record(f"finish-{how}", started, passes + read)

    def _held_out(self, points: list[int], riding: list[Columns]) -> tuple[list[Float], int]:
        """Scores of the held-out rows for α that are not in the subspace."""
        if all(fold.training.n_rows == fold.training.n_train for fold in self._folds):
            return [np.zeros((0, c.width)) for c in riding], 0
        lenses = [fold.training.whole for fold in self._folds]
        columns = [
            Columns(c.block, c.want, c.weights, c.dtype, self.points[k].fold)
            for k, c in zip(points, riding, strict=True)
        ]
        found, passes = run_pass(lenses, columns, "predict")
        return [
            rows[self._folds[self.points[k].fold].training.n_train :] for k, rows in zip(points, found, strict=True)
        ], passes

    def _report(self, left: list[int]) -> None:
        """Leave points with their true gap, and with the scores they have."""
        tols = {k: 0.1 * self.options.tol for k in left}
        solutions = self._solve_jobs(left, tols)
        for f, fold in enumerate(self._folds):
            mine = [k for k in left if self.points[k].fold == f]
            pairs = [(solutions[k].beta, solutions[k].coefficients) for k in mine]
            residuals = self._residuals({k: solutions[k] for k in mine})
            for k, scores in zip(mine, self._products(f, pairs, held_out=True), strict=True):
                alpha = fold.basis @ solutions[k].coefficients if self.options.alphas else None
                gap = solutions[k].weights_gap + residuals[k][1]
                self._settle(k, solutions[k], gap, OPEN, scores, alpha)

    # --- state ---------------------------------------------------------------------------------------------------

    def _run(self, what: str, work: Sequence[Callable[..., Any]], *shared: Any) -> list[Any]:
        """Run functions as tasks, with arguments that all of them take."""
        if not work:
            return []
        name = f"{what}-{self.n_passes}"

        def run() -> list[Any]:
            token = uuid.uuid4().hex
            held = share_all({f"{name}-shared-{k}-{token}": value for k, value in enumerate(shared)}) if shared else []
            tasks = [
                delayed(function, pure=False)(*held, dask_key_name=f"{name}-{k}-{token}")
                for k, function in enumerate(work)
            ]
            return execute(tasks, [(task, 0) for task in tasks], name)

        return again(run, name)

    def _note(self, worst: float) -> str:
        done = sum(result.status != OPEN for result in self.results)
        basis = max(fold.basis.shape[1] for fold in self._folds)
        left = self._seconds_left(worst)
        return (
            f"pass {self.n_passes}, {basis} basis vectors, {done:,} of {len(self.results):,} points certified, "
            f"worst gap {worst:.1e}" + ("" if left is None else f", about {left:.0f} s left")
        )

    def _seconds_left(self, worst: float) -> float | None:
        """By the rate at which the worst gap has shrunk so far."""
        gaps = [g for g in [*self._best_gap, worst] if 0 < g < np.inf]
        if len(gaps) < 3 or gaps[-1] >= gaps[0] or len(self.history) < 2:
            return None
        rate = math.log(gaps[0] / gaps[-1]) / (len(gaps) - 1)
        rounds = max(0.0, math.log(gaps[-1] / self.options.tol) / rate)
        return rounds * sum(r.seconds for r in self.history) / len(gaps)

    def _record(self, kind: str, started: float, passes: int = 1) -> None:
        """A pass is over: count it, and make its results what a later run goes on with."""
        self.n_passes += passes
        n_bytes = self._folds[0].training.square.view.bytes_per_pass * passes
        gaps = [result.gap for result in self.results if result.status == OPEN]
        self.history.append(
            Round(
                kind,
                time.monotonic() - started,
                n_bytes,
                max(fold.basis.shape[1] for fold in self._folds),
                len(self.results) - len(gaps),
                max(gaps, default=0.0),
            )
        )
        self.save()

    def save(self) -> None:
        """Put the state on disk: what a later run goes on with."""
        number = len(self.history)
        n = self._n
        betas = np.stack([np.full(n, np.nan) if r.beta is None else r.beta for r in self.results])
        points = self.workspace.path / f"points-{number}.npz"
        with open(points, "wb") as file:
            np.savez(
                file,
                beta=betas,
                gap=np.array([r.gap for r in self.results]),
                objective=np.array([r.objective for r in self.results]),
                status=np.array([r.status for r in self.results]),
            )
        for k, result in enumerate(self.results):
            path = self._scores_file(k)
            if result.scores is not None and not path.exists():
                save_array(path, result.scores)
        state = {
            "points": points.name,
            "n_passes": self.n_passes,
            "history": [asdict(entry) for entry in self.history],
            "worst": self._best_gap,
            "folds": [
                {
                    "width": fold.basis.shape[1],
                    "basis": self._last_file(f, "basis"),
                    "gram": Path(fold.gram).name,
                    "rounds": [[[Path(path).name, list(ks)] for path, ks in groups] for groups in fold.rounds],
                    "anchors": [
                        {"number": a.number, "beta": a.beta.tolist(), "tiles": a.total.tiles} for a in fold.anchors
                    ],
                }
                for f, fold in enumerate(self._folds)
            ],
        }
        self.workspace.commit({**self._more_state, "solver": state})
        self._remove_stale(points)

    def _last_file(self, f: int, kind: str) -> str:
        """basis-<n>.npy is written beside gram-<n>.npy."""
        return Path(self._folds[f].gram).name.replace("gram", kind)

    def _scores_file(self, k: int) -> Path:
        return self.workspace.path / f"scores-{k}.npy"

    def _remove_stale(self, points: Path) -> None:
        for path in self.workspace.path.glob("points-*.npz"):
            if path != points:
                path.unlink()
        for f, fold in enumerate(self._folds):
            kept = {Path(fold.gram).name, self._last_file(f, "basis")}
            folder = self.workspace.fold(f)
            for path in [*folder.glob("basis-*.npy"), *folder.glob("gram-*.npy")]:
                if path.name not in kept:
                    path.unlink()

    def _restore(self, state: dict[str, Any]) -> None:
        self.n_passes = state["n_passes"]
        self.history = [Round(**entry) for entry in state["history"]]
        self._best_gap = list(state["worst"])
        with np.load(self.workspace.path / state["points"]) as points:
            for k, result in enumerate(self.results):
                beta = points["beta"][k]
                result.beta = None if np.isnan(beta).any() else beta
                result.gap, result.objective = float(points["gap"][k]), float(points["objective"][k])
                result.status = int(points["status"][k])
                if result.status != OPEN:
                    result.scores = np.load(self._scores_file(k))
        for f, (fold, saved) in enumerate(zip(self._folds, state["folds"], strict=True)):
            if saved["width"]:
                folder = self.workspace.fold(f)
                fold.basis = np.load(folder / saved["basis"])
                fold.gram = str(folder / saved["gram"])
                fold.rounds = [
                    tuple((str(folder / name), tuple(ks)) for name, ks in groups) for groups in saved["rounds"]
                ]
            for anchor in saved["anchors"]:
                stem = str(self.workspace.fold(f) / f"anchor-{anchor['number']}")
                tiles = tuple((int(i), int(j)) for i, j in anchor["tiles"])
                total = StoredSum(stem, tiles, for_sums(fold.training.square))
                fold.anchors.append(_Anchor(anchor["number"], np.array(anchor["beta"]), total))


def _spread(items: list[int], most: int) -> list[int]:
    """At most `most` of them, evenly spread."""
    if len(items) <= most:
        return items
    return [items[round(k)] for k in np.linspace(0, len(items) - 1, most)]
