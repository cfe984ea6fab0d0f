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
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dmkl import progress
from dmkl.numerics.fisher import uniform_weights
from dmkl.passes.execute import machine
from dmkl.passes.view import covering
from dmkl.solvers.fisher.subspace.anchors import choose_anchors, grid_step, ridge
from dmkl.solvers.fisher.subspace.directions import dominant_block
from dmkl.solvers.fisher.subspace.extend import extend
from dmkl.solvers.fisher.subspace.finish import choose_finish, finish_points
from dmkl.solvers.fisher.subspace.problem import (
    CERTIFIED,
    FINISHED,
    OPEN,
    Point,
    PointResult,
    Round,
    SubspaceOptions,
    Training,
)
from dmkl.solvers.fisher.subspace.reduced import ReducedSolution
from dmkl.solvers.fisher.subspace.space import FoldSpace, Unsolved, add_anchors, solve_by_anchors
from dmkl.solvers.fisher.subspace.tasks import SolveJob, solve_points
from dmkl.solvers.fisher.subspace.workspace import Workspace, save_array
from dmkl.solvers.fisher.wrapper import Step
from dmkl.solvers.running import run_tasks

__all__ = ["SubspaceSolver"]

Float = npt.NDArray[np.float64]

_ROUGH = 1e-2
"""Weights gap to which points are solved that are far from certified: their residual is as good a direction."""
_FINE = 0.01
"""Share of the tolerance to which the weights of other points are solved: one more Newton step than would do, so that
weights and scores depend on the problem and not on the way there."""
_FAR = 30.0
"""A point whose gap was above this is far from certified."""
_FILLED = 6
"""Points of a fold whose sensitivities fill up a block: each costs a factorisation."""


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

    @property
    def left(self) -> float:
        """What is left relative to the part of S that the kernels make, which is never less than the gap.

        Points are solved until this is below the tolerance: the gap alone would let a large λ go with any weights.
        """
        return self.gap / self.solution.share

    @property
    def wanted(self) -> Float:
        """What the basis should gain, of unit size."""
        found = self.residual if self.direction is None else self.direction
        return found / (float(np.linalg.norm(found)) or 1.0)


class SubspaceSolver:
    """Solve many points over several folds of the same kernels (see the module).

    Parameters
    ----------
    folds
        Their kernels and targets.
    points
        What to solve.
    workspace
        Where the state is kept; a state found there is gone on with.
    options
        How.
    names
        The kernels' names, for messages.
    n_passes
        Passes that were needed before (statistics).

    Attributes
    ----------
    results : list of PointResult
        How far each point has come.
    history : list of Round
        One for each pass, or for several that one step took.
    n_passes : int
        Passes so far.

    Raises
    ------
    InputError
        If the workers do not all see the workspace.
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
        self.folds, self.points, self.options, self.workspace, self.names = folds, points, options, workspace, names
        self.results = [PointResult() for _ in points]
        self.history: list[Round] = []
        self.n_passes = n_passes
        self._spaces = [FoldSpace(training, workspace.fold(f)) for f, training in enumerate(folds)]
        self._n = len(folds[0].square.view.kernels)
        self._width = options.block or max(32, min(128, 384 // len(folds)))
        self._step = grid_step([point.lam for point in points])
        self._worst: list[float] = []
        workspace.check_shared()
        if "solver" in workspace.state:
            self._restore(workspace.state["solver"])
        for k, result in enumerate(self.results):
            if result.scores is None:  # left over from a round that was cut off
                self._scores_file(k).unlink(missing_ok=True)

    # --- the loop ------------------------------------------------------------------------------------------------

    def run(self) -> list[PointResult]:
        """Solve; what is certified so far is on disk after every pass.

        Raises
        ------
        IndefiniteKernelError
            If a kernel proves not to be positive semidefinite.
        MemoryBudgetError
            If what is left cannot be finished as asked.
        """
        while self._open():
            if not all(space.width for space in self._spaces):
                # Of several passes that the first blocks took, one may have been the last before a kill.
                blocks = [
                    block[:, :0] if space.width else block
                    for block, space in zip(self._first_blocks(), self._spaces, strict=True)
                ]
            else:
                found = self._certified_by_anchors(self._certified(self._solved()))
                if found and self._anchored(found):
                    found = self._certified_by_anchors(found, new_only=True)
                if not found:
                    break
                self._worst.append(max(r.left for r in found.values()))
                self._remember(found)
                blocks = [self._next_block(f, _of(self.points, found, f)) for f in range(len(self.folds))]
            # One block there must be: without any there is nothing to report.
            if all(space.width for space in self._spaces) and self._spent(blocks):
                self._finish()
                break
            started = time.monotonic()
            for _ in extend(self._spaces, blocks, len(self.history)):
                self._record("extend", started)
                started = time.monotonic()
        return self.results

    def _open(self) -> list[int]:
        return [k for k, result in enumerate(self.results) if result.status == OPEN]

    def _spent(self, blocks: list[Float]) -> bool:
        """Whether no further pass is allowed, or would help."""
        if not any(block.shape[1] for block in blocks) or self.n_passes >= self.options.max_passes:
            return True
        # Three rounds that brought nothing: the arithmetic resolves no more.
        if len(self._worst) > 4 and min(self._worst[-3:]) > 0.9 * min(self._worst[:-3]):
            return True
        widths = [space.width + block.shape[1] for space, block in zip(self._spaces, blocks, strict=True)]
        allowed = self.options.basis_bytes
        if allowed is None:
            kept = sum(space.disk_bytes(space.width) for space in self._spaces)
            allowed = (shutil.disk_usage(self.workspace.path).free + kept) // 2
        on_disk = sum(space.disk_bytes(width) for space, width in zip(self._spaces, widths, strict=True))
        # A task maps one fold's G and holds a few matrices of its side.
        in_task = 8 * max(widths) ** 2 * (self._n + 4)
        return on_disk > allowed or in_task > machine().task_bytes

    # --- solving and certifying ----------------------------------------------------------------------------------

    def _solved(self) -> dict[int, _Residual]:
        """Every open point's best in the subspace, and its residual in the full space."""
        found: dict[int, _Residual] = {}
        todo, fine = self._open(), set[int]()
        for _ in range(3):
            tols = {k: _FINE * self.options.tol if k in fine or self.results[k].gap < _FAR else _ROUGH for k in todo}
            solutions = self._reduced(tols)
            for k, (residual, size) in self._residuals(solutions).items():
                found[k] = _Residual(solutions[k], residual, size)
            # Those that only their rough weights keep from being certified.
            tol = self.options.tol
            todo = [
                k
                for k in todo
                if found[k].alpha_gap <= tol * found[k].solution.share and found[k].left > tol and k not in fine
            ]
            fine |= set(todo)
            if not todo:
                break
        for k, r in found.items():
            result, solution = self.results[k], r.solution
            result.beta, result.gap = solution.beta, r.gap
            result.objective, result.upper = solution.objective, solution.upper
        return found

    def _reduced(self, tols: dict[int, float]) -> dict[int, ReducedSolution]:
        """Solve points in the subspace, each to its tolerance, as tasks."""
        work, own = [], []
        for f, space in enumerate(self._spaces):
            chains: dict[tuple[int, float], list[int]] = {}
            for k in sorted((k for k in tols if self.points[k].fold == f), key=lambda k: -self.points[k].p):
                chains.setdefault((self.points[k].problem, self.points[k].lam), []).append(k)
            inner = space.basis.T @ space.basis
            projected = {t: space.basis.T @ space.training.targets[t] for t in {t for t, _ in chains}}
            # A task is the values of p at one λ, each started warm from the one before: the same tasks wherever they
            # run, so that results do not depend on the number of workers.
            for (problem, lam), members in chains.items():
                jobs = [SolveJob(k, self.points[k].p, self.results[k].beta, tols[k]) for k in members]
                work.append(partial(solve_points, space.gram, lam, self.names))
                own.append((inner, projected[problem], jobs))
        return dict(pair for part in run_tasks("solve-reduced", work, own=own) for pair in part)

    def _residuals(self, solutions: dict[int, ReducedSolution]) -> dict[int, tuple[Float, float]]:
        """R = H − ½α − (1/2λ)K(β)α and ‖R‖²/|S| of every point, at α = V a."""
        found: dict[int, tuple[Float, float]] = {}
        for f, space in enumerate(self._spaces):
            mine = _of(self.points, solutions, f)
            pairs = [(s.beta, s.coefficients) for s in mine.values()]
            for (k, solution), product in zip(mine.items(), space.products(pairs, held_out=False), strict=True):
                point = self.points[k]
                h = space.training.targets[point.problem]
                residual = h - 0.5 * (space.basis @ solution.coefficients) - product / (2.0 * point.lam)
                found[k] = residual, float(np.sum(residual * residual)) / abs(solution.objective)
        return found

    def _certified(self, found: dict[int, _Residual]) -> dict[int, _Residual]:
        """Keep what is certified, with its scores; return the rest."""
        done = {k: r for k, r in found.items() if r.left <= self.options.tol}
        self._settle({k: (r.solution, r.gap) for k, r in done.items()}, CERTIFIED)
        rest = {k: r for k, r in found.items() if k not in done}
        progress.current().note(self._note(max((r.left for r in rest.values()), default=0.0)))
        return rest

    def _settle(self, found: dict[int, tuple[ReducedSolution, float]], status: int) -> None:
        """Take solutions in the subspace and their gaps as the results of points."""
        for f, space in enumerate(self._spaces):
            mine = _of(self.points, found, f)
            pairs = [(solution.beta, solution.coefficients) for solution, _ in mine.values()]
            scores = space.products(pairs, held_out=True)
            for (k, (solution, gap)), rows in zip(mine.items(), scores, strict=True):
                result = self.results[k]
                result.beta, result.gap, result.status, result.scores = solution.beta, gap, status, rows
                result.objective, result.upper = solution.objective, solution.upper
                if self.options.alphas:
                    result.alpha = space.basis @ solution.coefficients
                    result.steps.append(self._as_step(solution, gap))

    def _remember(self, found: dict[int, _Residual]) -> None:
        """Keep how open points went, where their history was asked for."""
        if self.options.alphas:
            for k, r in found.items():
                self.results[k].steps.append(self._as_step(r.solution, r.gap))

    def _as_step(self, solution: ReducedSolution, gap: float) -> Step:
        bound = max(gap - solution.weights_gap, 0.0) * abs(solution.objective)
        return Step(solution.objective, solution.upper, gap, bound, self.n_passes, solution.beta)

    # --- anchors -------------------------------------------------------------------------------------------------

    def _anchors_allowed(self) -> bool:
        if self.options.use_anchors is not None:
            return self.options.use_anchors
        m = max(fold.n_train for fold in self.folds)
        # The matrix, a factor, what taking rows after centring copies, and columns.
        taking = self.folds[0].square.view.takes_samples
        return 8 * m * m * (4 if taking else 2) + 16 * m * 8 * self._width <= machine().task_bytes

    def _most_anchors(self) -> int:
        """New anchors of a fold in one pass: as many as a task can add up tile by tile."""
        side = self.folds[0].square.view.source.tiling.tile
        room = machine().task_bytes // 4 // (8 * side * side)
        return int(max(1, min(8, room // len(self.folds))))

    def _anchored(self, found: dict[int, _Residual]) -> bool:
        """Add up the combined kernels of weightings that no anchor serves well; whether there were any."""
        # After one block the weights are too rough to be worth a pass.
        if not self._anchors_allowed() or max(len(space.rounds) for space in self._spaces) < 2:
            return False
        started, chosen = time.monotonic(), list[tuple[int, Float]]()
        for f, space in enumerate(self._spaces):
            mine = list(_of(self.points, found, f).values())
            betas = [r.solution.beta for r in mine]
            space.forget_anchors(betas)
            known = [anchor.beta for anchor in space.anchors]
            new = choose_anchors(betas, [r.left for r in mine], known, self._most_anchors())
            chosen += [(f, beta) for beta in new]
        if chosen:
            add_anchors(self._spaces, chosen)
            self._record("anchor", started)
        return bool(chosen)

    def _certified_by_anchors(self, found: dict[int, _Residual], *, new_only: bool = False) -> dict[int, _Residual]:
        """Apply each open point's nearest anchor to its residual: a sharper bound, and a direction."""
        asked: list[tuple[int, bool]] = []
        wanted: list[Unsolved] = []
        for k, r in found.items():
            nearest = self._spaces[self.points[k].fold].nearest(r.solution.beta)
            if nearest is None or (new_only and nearest[1].condition >= r.served):
                continue
            r.served = nearest[1].condition
            asked.append((k, nearest[1].bounds))
            wanted.append(self._unsolved(k, *nearest, r.residual))
        if not wanted:
            return found
        for (k, bounds), direction in zip(asked, solve_by_anchors(self._spaces, wanted), strict=True):
            r = found[k]
            r.direction = direction
            if bounds:
                bound = 0.5 * float(np.sum(r.residual * direction)) / abs(r.solution.objective)
                r.alpha_gap = min(r.alpha_gap, max(bound, 0.0))
                self.results[k].gap = r.gap
        return self._certified(found)

    def _unsolved(self, k: int, place: int, near: Any, columns: Float) -> Unsolved:
        point = self.points[k]
        return Unsolved(point.fold, place, ridge(point.lam, near.scale, self._step), columns)

    # --- new directions ------------------------------------------------------------------------------------------

    def _first_blocks(self) -> list[Float]:
        """The solutions for uniform weights at every ridge, or the targets themselves."""
        anchored = self._anchors_allowed()
        if anchored and not self._spaces[0].anchors:
            started = time.monotonic()
            add_anchors(self._spaces, [(f, np.ones(self._n)) for f in range(len(self.folds))])
            self._record("anchor", started)
        wanted: dict[tuple[int, int, float], Unsolved] = {}
        for point in self.points:
            # Through the uniform weighting of this norm: K(β) is `scale` times the sum of all kernels.
            scale = float(uniform_weights(self._n, point.p)[0])
            rho = ridge(point.lam, scale, self._step) if anchored else 0.0
            h = self.folds[point.fold].targets[point.problem]
            wanted.setdefault((point.fold, point.problem, rho), Unsolved(point.fold, 0, rho, h))
        items = list(wanted.values())
        found = solve_by_anchors(self._spaces, items) if anchored else [item.columns for item in items]
        blocks = []
        for f, space in enumerate(self._spaces):
            mine = [x / np.linalg.norm(x) for item, x in zip(items, found, strict=True) if item.fold == f]
            blocks.append(self._dominant(space.basis, mine, f, self._room(space)))
        return blocks

    def _room(self, space: FoldSpace) -> int:
        """Columns of the next block: never more than there are dimensions left."""
        return max(0, min(self._width, space.training.n_train - space.width))

    def _next_block(self, f: int, mine: dict[int, _Residual]) -> Float:
        """What the open points of a fold lack, filled up with what they will ask for next."""
        space = self._spaces[f]
        width = self._room(space)
        if not mine or not width:
            return np.zeros((space.training.n_train, 0))
        block = self._dominant(space.basis, [r.wanted for r in mine.values()], f, width)
        if block.shape[1] < width:
            basis = np.concatenate([space.basis, block], axis=1)
            more = self._filling(f, mine, width - block.shape[1])
            block = np.concatenate([block, self._dominant(basis, more, f, width - block.shape[1])], axis=1)
        return block

    def _dominant(self, basis: Float, columns: list[Float], f: int, width: int) -> Float:
        if not columns or width < 1:
            return np.zeros((len(basis), 0))
        rng = np.random.default_rng([len(self.history), f])
        return dominant_block(basis, np.concatenate(columns, axis=1), width, 1e-6, rng)

    def _filling(self, f: int, mine: dict[int, _Residual], width: int) -> list[Float]:
        """Directions for other weights than the present ones: random combinations Σ_j ω_j K_jα, through the anchor.

        To first order a change of β changes α by −(1/2λ) A⁻¹ Σ_j δβ_j K_jα. Without anchors there is no A⁻¹, and the
        newest basis vectors take the place of the α: what the single kernels make of them is the next Krylov block.
        """
        space = self._spaces[f]
        rng = np.random.default_rng([len(self.history), f, 1])
        wanted = math.ceil(1.5 * width)
        if not space.anchors:
            newest = np.eye(space.width)[:, -min(self._width, space.width) :]
            picked = [newest[:, [u % newest.shape[1]]] for u in range(max(wanted, newest.shape[1]))]
            pairs = [(rng.standard_normal(self._n), column) for column in picked]
            return [x / np.linalg.norm(x) for x in space.products(pairs, held_out=False) if x.any()]
        by_grid = sorted(mine, key=lambda k: (self.points[k].problem, self.points[k].lam, self.points[k].p))
        chosen = _spread(by_grid, _FILLED)
        columns = sum(mine[k].solution.coefficients.shape[1] for k in chosen)
        owners = [k for k in chosen for _ in range(max(1, min(self._n, math.ceil(wanted / columns))))]
        pairs = [(rng.standard_normal(self._n), mine[k].solution.coefficients) for k in owners]
        unsolved = []
        for k, product in zip(owners, space.products(pairs, held_out=False), strict=True):
            nearest = space.nearest(mine[k].solution.beta)
            assert nearest is not None
            unsolved.append(self._unsolved(k, *nearest, product))
        return [x / np.linalg.norm(x) for x in solve_by_anchors(self._spaces, unsolved) if x.any()]

    # --- the rest ------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Finish what the subspace leaves open, as the policy says."""
        rest = self._certified_by_anchors(self._certified(self._solved()))
        # What the kernels make of S may be too small a part to be resolved as well: the gap itself is what was asked.
        done = {k: (r.solution, r.gap) for k, r in rest.items() if r.gap <= self.options.tol}
        self._settle(done, CERTIFIED)
        left = self._open()
        how = choose_finish(self.options.finish, self.folds) if left else "report"
        if how == "report":
            self._settle({k: (rest[k].solution, rest[k].gap) for k in left}, OPEN)
            self._save()
            return
        started = time.monotonic()
        solutions, scores, passes = finish_points(
            how,
            self.folds,
            [self.points[k] for k in left],
            [self.results[k].beta for k in left],
            self.options.tol,
            self.names,
        )
        for k, solution, rows in zip(left, solutions, scores, strict=True):
            result, certificate = self.results[k], solution.certificate
            result.beta, result.gap, result.scores = solution.beta, certificate.gap, rows
            result.objective, result.upper = certificate.objective, certificate.upper
            result.status = FINISHED if certificate.gap <= self.options.tol else OPEN
            if self.options.alphas:
                result.alpha = solution.alpha
                result.steps += solution.steps
        self._record(f"finish-{how}", started, passes)

    # --- progress and state --------------------------------------------------------------------------------------

    def _note(self, worst: float) -> str:
        done = sum(result.status != OPEN for result in self.results)
        basis = max(space.width for space in self._spaces)
        text = f"pass {self.n_passes}, {basis:,} basis vectors, {done:,} of {len(self.results):,} points certified" + (
            f", worst gap {worst:.1e}" if worst > 0 else ""
        )
        left = self._seconds_left(worst)
        return text if left is None else f"{text}, about {left:.0f} s left"

    def _seconds_left(self, worst: float) -> float | None:
        """By the rate at which the worst gap has shrunk so far."""
        gaps = [gap for gap in [*self._worst, worst] if 0 < gap < np.inf]
        if worst <= 0 or len(gaps) < 3 or gaps[-1] >= gaps[0]:
            return None
        rate = math.log(gaps[0] / gaps[-1]) / (len(gaps) - 1)
        rounds = max(0.0, math.log(gaps[-1] / self.options.tol) / rate)
        return rounds * sum(entry.seconds for entry in self.history) / len(gaps)

    def _record(self, kind: str, started: float, passes: int = 1) -> None:
        """A pass is over: count it, and make its results what a later run goes on with."""
        self.n_passes += passes
        gaps = [result.gap for result in self.results if result.status == OPEN]
        entry = Round(
            kind,
            time.monotonic() - started,
            covering([fold.whole.view for fold in self.folds]).bytes_per_pass * passes,
            max(space.width for space in self._spaces),
            len(self.results) - len(gaps),
            max(gaps, default=0.0),
        )
        self.history.append(entry)
        self._save()

    def _save(self) -> None:
        unknown = np.full(self._n, np.nan)
        points = self.workspace.path / f"points-{len(self.history)}.npz"
        with open(points, "wb") as file:
            np.savez(
                file,
                beta=np.stack([unknown if r.beta is None else r.beta for r in self.results]),
                gap=np.array([r.gap for r in self.results]),
                objective=np.array([r.objective for r in self.results]),
                upper=np.array([r.upper for r in self.results]),
                status=np.array([r.status for r in self.results]),
            )
        for k, result in enumerate(self.results):
            path = self._scores_file(k)
            if result.scores is not None and not path.exists():
                save_array(path, result.scores)
        solver = {
            "points": points.name,
            "n_passes": self.n_passes,
            "history": [asdict(entry) for entry in self.history],
            "worst": self._worst,
            "folds": [space.described() for space in self._spaces],
        }
        self.workspace.commit({**self.workspace.state, "solver": solver})
        for path in self.workspace.path.glob("points-*.npz"):
            if path != points:
                path.unlink()
        for space in self._spaces:
            space.remove_stale()

    def _scores_file(self, k: int) -> Path:
        return self.workspace.path / f"scores-{k}.npy"

    def _restore(self, saved: dict[str, Any]) -> None:
        self.n_passes = saved["n_passes"]
        self.history = [Round(**entry) for entry in saved["history"]]
        self._worst = list(saved["worst"])
        with np.load(self.workspace.path / saved["points"]) as points:
            stored = dict(points)
        for k, result in enumerate(self.results):
            beta = stored["beta"][k]
            result.beta = None if np.isnan(beta).any() else beta
            result.gap, result.objective = float(stored["gap"][k]), float(stored["objective"][k])
            result.upper, result.status = float(stored["upper"][k]), int(stored["status"][k])
            if result.status != OPEN:
                result.scores = np.load(self._scores_file(k))
        for space, described in zip(self._spaces, saved["folds"], strict=True):
            space.restore(described)


def _of(points: Sequence[Point], found: dict[int, Any], f: int) -> dict[int, Any]:
    """The points of one fold."""
    return {k: value for k, value in found.items() if points[k].fold == f}


def _spread(items: list[int], most: int) -> list[int]:
    """At most `most` of them, evenly spread."""
    return items if len(items) <= most else [items[round(k)] for k in np.linspace(0, len(items) - 1, most)]
