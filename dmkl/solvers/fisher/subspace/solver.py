"""The subspace solver: a whole grid of MK-FDA problems, over several training sets, in a dozen passes.

Each training set has an orthonormal basis V of the directions that its solutions have needed so far, and the products
K_jV. In this space every point (target, p, λ) is a small problem, solved to high accuracy (`mkfda.solve_restricted`).
The true residual, and with it the proven gap of the full problem, follows from the K_jV without reading the kernels.
The residuals of the open points determine the next block of V, and one pass multiplies the blocks of all training sets.
A round is

    solve          the open points in the subspace, as tasks                                 no pass
    certify        by ‖R‖², or by the sharper bound of a preconditioner                      no pass
    precondition   add up the combined kernels at new reference weights                      one pass, in some rounds
    extend         V by the dominant directions of the preconditioned residuals              one pass

If a combined kernel fits the memory in single precision, preconditioners make the rounds few, whatever λ is: the
residual of a point at the reference weights gives its exact error; near them the error contracts by the condition
number between the two. If it does not fit, the residuals themselves, with random combinations of the newest products,
extend V: a block Krylov method for all points at once, in which the points of large λ converge first, and tiny λ may
need a basis of nearly m vectors. For few training samples V is the identity, and one round solves all points. Points
that are open when the disk space for the basis is used up are returned with their true gap.
"""

from __future__ import annotations

import itertools
import math
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dmkl import progress, settings
from dmkl.arrays import Float
from dmkl.errors import IndefiniteKernelError
from dmkl.files.arrays import load_array, load_arrays, save_array, save_arrays
from dmkl.numerics.semidefinite import tell_indefinite
from dmkl.passes.execute import active_client, check_memory, keeping, machine
from dmkl.passes.run import pass_bytes
from dmkl.passes.sums import Combination, combine_pass
from dmkl.passes.sweep import Columns
from dmkl.passes.view import covering
from dmkl.progress import Round
from dmkl.solvers.fisher import cg
from dmkl.solvers.fisher.mkfda import certificate_step
from dmkl.solvers.fisher.problem import FisherOptions, FisherSolver
from dmkl.solvers.fisher.subspace import preconditioners
from dmkl.solvers.fisher.subspace.certify import OpenPoint, Restriction, duals, other_weights, scores
from dmkl.solvers.fisher.subspace.directions import Growth, extend
from dmkl.solvers.fisher.subspace.rounding import PROBES
from dmkl.solvers.fisher.subspace.space import (
    WRITTEN_AGAIN,
    Point,
    Preconditioner,
    Progress,
    TrainingSubspace,
    Unsolved,
    apply_preconditioners,
    named_files,
    of_space,
    preconditioner_bytes,
)
from dmkl.solvers.fisher.subspace.tasks import Strips, lowest, run_checked
from dmkl.solvers.fisher.wrapper import DIRECT, check_direct
from dmkl.solvers.interface import Outcome, Status
from dmkl.solvers.jobs import Context, Job, Training, can_solve
from dmkl.solvers.workspace import Workspace

# --- memory --------------------------------------------------------------------------------------------------------


_COPIES = 4  # Arrays as large as α that a round holds of every point at once: residuals, products, α, directions.
_MOST_BLOCKS = 8
"""Most blocks of columns that one factor solves for: many points have several ridges, with a factor for each."""


def held_bytes(spaces: Sequence[TrainingSubspace], points: Sequence[Point], widths: Sequence[int] | None = None) -> int:
    """Memory in bytes that rounds take in addition to passes and factors, with the present bases or these widths.

    If tasks are threads it is memory of the process that runs the solver; otherwise of tasks that run one by one.
    """
    sizes = [space.width for space in spaces] if widths is None else widths
    of_points = 8 * _COPIES * sum(spaces[point.space].targets[point.target].size for point in points)
    trainings = [space.training for space in spaces]
    return of_points + _bases_bytes(trainings, sizes) + _crosses_bytes(trainings, sizes, machine().total_bytes)


def fits(
    spaces: Sequence[TrainingSubspace], points: Sequence[Point], widths: Sequence[int], block: int, solving: int
) -> bool:
    """Whether there is room for bases of these widths, and for tasks on them, which solve points in `solving` bytes."""
    with keeping(held_bytes(spaces, points, widths) - held_bytes(spaces, points)):
        host = machine()
        factor = factor_task_bytes(spaces, points, block) if any(space.preconditioners for space in spaces) else 0
        extending = _pass_task_bytes(spaces[0].training, block)
        return max(solving, extending) <= host.task_bytes and factor <= host.total_bytes


def factor_task_bytes(spaces: Sequence[TrainingSubspace], points: Sequence[Point], block: int) -> int:
    """Memory of a task that applies a preconditioner to all points of a space, and to directions that fill a block."""
    columns = [2 * block for _ in spaces]
    for point in points:
        columns[point.space] += spaces[point.space].targets[point.target].shape[1]
    views = [space.training.square.view for space in spaces]
    return max(preconditioner_bytes(view, min(n, _MOST_BLOCKS * block)) for view, n in zip(views, columns, strict=True))


def _bases_bytes(trainings: Sequence[Training], widths: Sequence[int]) -> int:
    bases = [training.n_train * width for training, width in zip(trainings, widths, strict=True)]
    return 8 * (sum(bases) + max(bases))  # V is widened one space at a time, which holds the old array and the new one


def _crosses_bytes(trainings: Sequence[Training], widths: Sequence[int], total_bytes: int) -> int:
    """Memory of the products VᵀK_jU of all spaces, which are in this process if they fit a quarter of the memory."""
    grams = [training.n_kernels * width**2 for training, width in zip(trainings, widths, strict=True)]
    return 0 if active_client() else min(8 * sum(grams), total_bytes // 4)


def _pass_task_bytes(training: Training, block: int) -> int:
    """The least memory in which a task extends one basis; with more, one pass extends several."""
    columns = [Columns(np.broadcast_to(0.0, (training.n_train, block + PROBES)), "each", None, np.dtype(np.float64))]
    parts = pass_bytes([training.whole], columns, replace(machine(), task_bytes=0))
    of_one_kernel, rest = parts.pop("results"), sum(parts.values())
    # One kernel at a time is the least; results of more kernels are limited to a quarter of the memory.
    return max(rest + of_one_kernel, math.ceil(rest / 0.75))


# --- the iteration -------------------------------------------------------------------------------------------------


_ROUGH = 1e-2
"""Weights gap to which points far from certified are solved: a closer solution gives no better direction."""
_FINE = 0.01
"""Share of the tolerance to which the weights of other points are solved: one Newton step more than is needed, so that
weights and scores depend on the problem and not on the path of the iteration."""
_WHOLE = 384
"""Training samples up to which the first block is the identity: one pass then solves all points, where rounds would
span most of the space too."""
_WIDEST, _NARROWEST, _COLUMNS = 128, 96, 640
"""Columns of a block: most, fewest, and the total over all blocks. The number of rounds depends on the width of each
block: with 76 the grid over five training sets took a third more time than with 128. Blocks that do not fit in memory
together are multiplied in one pass after another."""
_MOST_PRECONDITIONERS, _FEWEST_PRECONDITIONERS, _PRECONDITIONER_ROWS = 8, 2, 6000
"""New preconditioners of a space in one round: most, fewest, and the total rows of their combined kernels. Each needs a
factor at every ridge, m³/3 operations, whereas a pass takes about m² for each kernel and column: many preconditioners
cost most for large m, few make more rounds for small m. For 50 kernels of 3,000 samples, 2 instead of 8 took a quarter
less time in as many passes; for 1,797 samples, a fifth more time and two passes more."""
_HIDDEN = 0.5  # Share of the tolerance that rounding may hide; beyond it, products are repeated in double precision.
_FAR = 30.0  # A point whose gap was above this is far from certified
_FIGURES, _BY_POINT = ("gap", "objective", "upper", "settled"), ("scores", "alpha")
"""Attributes of a point that are saved: β, figures, and arrays that a settled point has in files; α if wanted."""


def block_width(n_sets: int) -> int:
    """Columns of each block, one for each of so many training sets."""
    # All blocks share a pass: its width grows with the number of training sets, until the arithmetic limits the pass.
    return max(_NARROWEST, min(_WIDEST, _COLUMNS // n_sets))


class SubspaceSolver:
    """Solve many points over several training sets of the same kernels (see the module).

    The workspace is the folder of the checkpoint; a checkpoint that it contains is continued. `progress` holds the
    present solution of each point, `history` an entry for each pass or for the passes of one step, and `n_passes`
    counts them, those made before included. All bases and products take at most `basis_bytes` of the options on disk,
    half of the free space if None. `alphas` says that α of every point is wanted; a block has `block` columns, and
    memory decides on preconditioners, where these are None. `restriction` makes what solves and judges the points.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        workspace: Workspace,
        options: FisherOptions,
        n_passes: float = 0.0,
        *,
        alphas: bool,
        block: int | None = None,
        use_preconditioners: bool | None = None,
        restriction: Callable[[Sequence[TrainingSubspace], Sequence[Point]], Restriction] = Restriction,
    ) -> None:
        targets, self.points = points_of(jobs)
        self.options, self.workspace = options, workspace
        self._alphas, self._use_preconditioners = alphas, use_preconditioners
        self.progress = [Progress() for _ in jobs]
        self.history: list[Round] = []
        self.n_passes = n_passes
        self._spaces = [TrainingSubspace(t, hs, workspace.fold(f)) for f, (t, hs) in enumerate(targets.items())]
        self._restriction = restriction(self._spaces, self.points)
        for space in self._spaces:
            space.double = space.double or self._restriction.double
        step = preconditioners.grid_step([job.problem.lam for job in jobs])
        self._growth = Growth(self._spaces, self.points, block or block_width(len(targets)), step)
        self._worst: list[float] = []  # The largest gap after each round
        self._started = 0.0  # When the present pass began
        self._more: dict[int, list[Strips]] = {}
        """Directions of each space from its preconditioners in this round, in addition to those of the residuals."""
        self._lacking = ""  # The note on preconditioners for which there is no room
        self._n_noted = 0  # Points whose solutions have been noted
        workspace.check_shared()
        self._ended = False
        self._restore()

    # --- the loop ------------------------------------------------------------------------------------------------

    def run(self) -> list[Outcome]:
        """Solve all points; those that the allowed basis or passes do not certify have their true gap."""
        # N and VᵀH are not part of the checkpoint, since they follow from V and the targets.
        self._note(np.inf)
        restored = [space for space in self._spaces if space.width]
        run_checked("project", [space.projecting() for space in restored], own=[space.targets for space in restored])
        while self._open():
            # Passes and tasks are planned with the memory that the arrays of this round leave.
            with keeping(held_bytes(self._spaces, self.points)):
                if self._ended:
                    self._end()
                    break
                if not self._round():
                    break
        # The first products of each basis are the most exact ones.
        work = [
            partial(lowest, space.file("inner"), space.gram, space.blocks[0].columns[1], space.training.facts)
            for space in self._spaces
        ]
        for space, bounds in zip(self._spaces, run_checked("lowest", work), strict=True):
            space.forget_round()
            tell_indefinite(bounds, space.training.facts)
        return [point.outcome() for point in self.progress]

    def _round(self) -> bool:
        """Solve, certify and extend; return whether points are left."""
        number = len(self.history)
        if not all(space.width for space in self._spaces):
            blocks = self._first_blocks(number)
        else:
            try:
                opened = self._solve_round()
            except IndefiniteKernelError:
                # The rounding of single precision, which exceeds a tiny λ, may be the only reason.
                if not (coarse := [space for space in self._spaces if space.single_blocks]):
                    raise
                for space in coarse:
                    space.double = True
                blocks = [space.columns(0, 0) for space in self._spaces]
            else:
                if not opened:
                    return False
                self._worst.append(max(r.gap for r in opened.values()))
                self._note_steps(opened)
                for k, r in opened.items():
                    # Products in double precision, where rounding hides too much of a gap.
                    if r.gap < 1.0 and r.hidden > _HIDDEN * self.options.tol:
                        self._spaces[self.points[k].space].double = True
                blocks = self._growth.next_blocks(number, opened, self._more)
        # Without a first block there would be no solution to return.
        if all(space.width for space in self._spaces) and self._is_spent(blocks):
            self._end()
            return False
        self._started = time.monotonic()
        wider = [space.disk_bytes(space.width + b.width) for space, b in zip(self._spaces, blocks, strict=True)]
        preconditioners.make_room([space.folder for space in self._spaces], 2 * sum(wider))
        extend(self._spaces, blocks, number, lambda: self._record("extend"))
        return True

    def _open(self) -> list[int]:
        return [k for k, point in enumerate(self.progress) if not point.settled]

    def _solve_round(self) -> dict[int, OpenPoint]:
        """Solve the open points, settle those that are certified, and return the rest."""
        self._more.clear()
        for space in self._spaces:
            space.forget_round()
        opened = self._solve()
        self._settle_certified(opened)
        self._sharpen(opened)
        if opened and self._add_preconditioners(opened):
            self._sharpen(opened)
        return opened

    def _is_spent(self, blocks: list[Strips]) -> bool:
        """Whether no further pass is allowed or useful."""
        again = any(space.hidden_by_rounding for space in self._spaces)
        if not (again or any(block.width for block in blocks)) or self.n_passes >= self.options.max_iter:
            return True
        # Three rounds without progress: the arithmetic resolves no more.
        if not again and len(self._worst) > 4 and min(self._worst[-3:]) > 0.9 * min(self._worst[:-3]):
            return True
        widths = [space.width + block.width for space, block in zip(self._spaces, blocks, strict=True)]
        return not self._has_room(widths, self._growth.width)

    def _has_room(self, widths: Sequence[int], block: int) -> bool:
        """Whether the disk has room for bases of these widths, and the memory for tasks with blocks of columns."""
        allowed = self.options.basis_bytes
        if allowed is None:
            allowed = (self._free_on_disk() + sum(space.disk_bytes(space.width) for space in self._spaces)) // 2
        on_disk = sum(space.disk_bytes(width) for space, width in zip(self._spaces, widths, strict=True))
        solving = max(map(self._restriction.task_bytes, self._spaces, widths))
        return on_disk <= allowed and fits(self._spaces, self.points, widths, block, solving)

    def _limits(self) -> dict[str, Any]:
        """The limits of an iteration that ended for lack of room: with other limits it continues."""
        return {"basis_bytes": self.options.basis_bytes, "max_passes": self.options.max_iter}

    def _end(self) -> None:
        """Settle the points that can be certified, and store the best pairs of the others."""
        self._ended = True
        opened = self._solve()
        self._settle_certified(opened)
        self._sharpen(opened, last=True)
        self._take(opened, settled=False)
        self._save()

    # --- solving and certifying ----------------------------------------------------------------------------------

    def _solve(self) -> dict[int, OpenPoint]:
        """Solve every open point in the subspace, and compute its residual in the full space."""
        points: dict[int, OpenPoint] = {}
        todo, fine, tol = self._open(), set[int](), self.options.tol
        while todo:
            tols = {k: _FINE * tol if k in fine or self.progress[k].gap < _FAR else _ROUGH for k in todo}
            starts = [point.beta for point in self.progress]
            solutions = self._restriction.solve(starts, tols)
            points |= self._restriction.judge(solutions)
            # Solve again the points that only their rough weights keep from being certified.
            todo = [k for k in todo if k not in fine and points[k].gap > tol and points[k].alpha_gap <= tol]
            fine |= set(todo)
        for k, r in points.items():
            point = self.progress[k]
            point.beta, point.gap = r.solution.beta, r.gap
            point.objective, point.upper = r.interval
        return points

    def _sharpen(self, opened: dict[int, OpenPoint], *, last: bool = False) -> None:
        """Apply the nearest preconditioner to the residual of each point: a sharper bound, and a direction.

        Points whose nearest preconditioner was applied already stay as they are. Further directions fill a block (see
        `other_weights`): they cost little once there is a factor. A bound is computed only for points that are not far
        from certified; in the `last` call for all points, and without directions.
        """
        # Seeded by the number of passes, so that a continued run draws the same numbers.
        rng = np.random.default_rng([len(self.history), 1])
        # With one block hardly any point can be certified: fewer factors serve all points, for directions alone, which
        # are hardly worse.
        rough = not last and max(len(space.blocks) for space in self._spaces) < 2
        width, enough = (0, np.inf) if last else (self._growth.width, _FAR)
        sharpened, wanted, filling = list[OpenPoint](), list[Unsolved](), list[Unsolved]()
        for f, space in enumerate(self._spaces):
            of_f, served = of_space(self.points, opened, f), dict[tuple[int, float], list[OpenPoint]]()
            nearest = space.nearest([r.solution.beta for r in of_f.values()])
            for (k, r), (position, near) in zip(of_f.items(), nearest, strict=False):
                # A preconditioner that is no nearer gives the same bound at the same cost.
                if near.condition >= r.condition:
                    continue
                r.condition = near.condition
                sharpened.append(r)
                # The bound of S − min_α S is ½ Σ xᵀM⁻¹x over the columns x of R.
                bounds = near.bounds and r.has_bounds and not rough
                worth = 2.0 * enough * r.solution.certificate.scale if bounds else -1.0
                # A bound needs M ⪯ A, hence the ridge that `ridge` rounds up; directions alone may use a coarser one.
                rounded = preconditioners.rough_ridge if rough else preconditioners.ridge
                rho = rounded(self.points[k].lam, near.scale, self._growth.step)
                wanted.append(Unsolved(f, position, rho, r.residual, worth))
                served.setdefault((position, rho), []).append(r)
            if served:
                filling += other_weights(space, f, served, width, rng)
        solved = apply_preconditioners(self._spaces, wanted + filling)
        for r, (direction, squares) in zip(sharpened, solved, strict=False):
            r.direction = direction
            # Bounds of single columns add up; one that was not computed leaves ‖R‖² as the bound.
            if np.isfinite(squares).all():
                r.bound = min(r.bound, 0.5 * float(squares.sum()) / r.solution.certificate.scale)
        self._restriction.sharpen(sharpened, wanted, width)
        for unsolved, (x, _) in zip(filling, solved[len(wanted) :], strict=True):
            self._more.setdefault(unsolved.space, []).append(x)
        for k, r in opened.items():
            self.progress[k].gap = r.gap
        self._settle_certified(opened)

    def _settle_certified(self, opened: dict[int, OpenPoint]) -> None:
        """Move certified points from the open ones to the settled ones, with their scores."""
        certified = [k for k, r in opened.items() if r.gap <= self.options.tol]
        self._take({k: opened.pop(k) for k in certified}, settled=True)
        self._note(max((r.gap for r in opened.values()), default=0.0))

    def _take(self, opened: dict[int, OpenPoint], *, settled: bool) -> None:
        """Compute the results of points from their pairs in the subspace."""
        for f, space in enumerate(self._spaces):
            of_f = of_space(self.points, opened, f)
            pairs = [(r.solution.beta, r.solution.alpha) for r in of_f.values()]
            of_rows = scores(space, pairs)
            alphas: list[Any] = [None] * len(pairs)
            if self._alphas and pairs:
                alphas = duals(space, [a for _, a in pairs])
            for k, rows, alpha in zip(of_f, of_rows, alphas, strict=True):
                point = self.progress[k]
                point.settled, point.scores, point.alpha, point.extra = settled, rows, alpha, opened[k].extra
        self._note_steps(opened)

    def _note_steps(self, opened: dict[int, OpenPoint]) -> None:
        """Record a step of the history of points, if it is wanted."""
        for k, r in opened.items() if self._alphas else ():
            # The history shows the bound of α that was used, which a preconditioner may have made less than ‖R‖².
            certificate = r.solution.certificate
            left = max(r.gap - certificate.weights_gap, 0.0) * certificate.scale
            shown = replace(certificate, residual_sq=left)
            self.progress[k].steps.append(certificate_step(shown, r.solution.beta, products=self.n_passes))

    # --- preconditioners -----------------------------------------------------------------------------------------

    def _may_precondition(self) -> bool:
        if self._use_preconditioners is not None:
            return self._use_preconditioners
        there = all(space.preconditioners for space in self._spaces)
        needed = factor_task_bytes(self._spaces, self.points, self._growth.width)
        return needed <= machine().total_bytes and (there or self._preconditioners_with_room() > 0)

    def _free_on_disk(self) -> int:
        """Bytes for bases and sums: factors on disk are deleted when they need the room."""
        kept = preconditioners.kept_bytes(space.folder for space in self._spaces)
        return shutil.disk_usage(self.workspace.path).free + kept

    def _add_sums(self, chosen: Sequence[tuple[int, Float]]) -> None:
        """Add up the combined kernels of new preconditioners, (space, β), in one pass."""
        spaces = self._spaces
        needed = sum(spaces[f].preconditioner_sizes[1] for f, _ in chosen)
        preconditioners.make_room([space.folder for space in spaces], 2 * needed)
        # Numbers follow those on disk, so that a file of an earlier state is never overwritten.
        following = [itertools.count(1 + max((p.number for p in s.preconditioners), default=-1)) for s in spaces]
        numbers = [next(following[f]) for f, _ in chosen]
        stems = [spaces[f].stem(number) for number, (f, _) in zip(numbers, chosen, strict=True)]
        sums = combine_pass([Combination(spaces[f].training.square, beta) for f, beta in chosen], stems)
        for (f, beta), number, total in zip(chosen, numbers, sums, strict=True):
            spaces[f].preconditioners.append(Preconditioner(number, beta, total))
        self._record("anchor")

    def _preconditioners_with_room(self) -> int:
        """New preconditioners of each space for which there is room in half of what is free on the disk."""
        return self._free_on_disk() // 2 // sum(space.preconditioner_sizes[1] for space in self._spaces)

    def _first_blocks(self, number: int) -> list[Strips]:
        sizes = [space.training.n_train for space in self._spaces]
        if max(sizes) <= _WHOLE and self._has_room(sizes, max(sizes)):
            # An earlier run may have been killed between the passes of this round: spaces with a basis keep it.
            return [
                space.columns(0, 0) if space.width else Strips.of(np.eye(m))
                for space, m in zip(self._spaces, sizes, strict=True)
            ]
        preconditioned, width = self._may_precondition(), self._growth.width
        needed = factor_task_bytes(self._spaces, self.points, width)
        if self._use_preconditioners is None and needed > machine().total_bytes:
            enough = math.ceil((needed + held_bytes(self._spaces, self.points, [width] * len(self._spaces))) / 2**20)
            self._lacking = f"no room for a combined kernel, which small λ need: set dmkl.memory to {enough} MiB"
        if preconditioned and not self._spaces[0].preconditioners:
            self._started, uniform = time.monotonic(), np.ones(self._spaces[0].n_kernels)
            self._add_sums([(f, uniform) for f in range(len(self._spaces))])
        return self._growth.first_blocks(number, preconditioned=preconditioned)

    def _add_preconditioners(self, opened: dict[int, OpenPoint]) -> bool:
        """Add preconditioners for weights that are far from all reference weights; return whether there were any."""
        # With one block the weights are too rough to be worth a pass.
        if not self._may_precondition() or max(len(space.blocks) for space in self._spaces) < 2:
            return False
        self._started, chosen = time.monotonic(), list[tuple[int, Float]]()
        by_space = [list(of_space(self.points, opened, f).values()) for f in range(len(self._spaces))]
        pairs = list(zip(self._spaces, by_space, strict=True))
        # A list, not a generator: every space drops its unused preconditioners.
        if any([space.drop_unused_preconditioners([r.solution.beta for r in points]) for space, points in pairs]):
            self._save()  # makes room on the disk
        # As many in one pass as a task can add up and the disk can hold.
        room = machine().task_bytes // 2 // sum(space.preconditioner_sizes[0] for space in self._spaces)
        rows = max(space.training.n_train for space in self._spaces)
        wanted = min(_MOST_PRECONDITIONERS, max(_FEWEST_PRECONDITIONERS, _PRECONDITIONER_ROWS // rows))
        most = min(wanted, max(1, room), self._preconditioners_with_room())
        for f, (space, points) in enumerate(pairs):
            betas, left = [r.solution.beta for r in points], [r.gap for r in points]
            references = [preconditioner.beta for preconditioner in space.preconditioners]
            chosen += [(f, beta) for beta in preconditioners.choose_reference_weights(betas, left, references, most)]
        if chosen:
            self._add_sums(chosen)
        return bool(chosen)

    # --- progress and state --------------------------------------------------------------------------------------

    def _note(self, worst: float) -> None:
        """Report the points that are solved, the largest error of the others, and how many passes are expected."""
        watch, n_settled = progress.current(), sum(point.settled for point in self.progress)
        if n_settled > self._n_noted:
            watch.solved(n_settled - self._n_noted)
            self._n_noted = n_settled
        # The rate at which the worst gap shrinks is extrapolated; a pass that reduces it to a third is assumed before.
        first, *_, last = np.log(np.clip([*self._worst[:1], worst, worst], self.options.tol, 100.0))
        rate = (math.log(3.0) + first - last) / (len(self._worst) + 1)
        watch.expect(float((last - math.log(self.options.tol)) / max(rate, 0.01)))
        texts = [progress.error_text(worst) if 0 < worst < np.inf else "", self._lacking]
        if any(texts):
            watch.note(*filter(None, texts))

    def _record(self, kind: str) -> None:
        """Count a pass that is over, and save the state."""
        self.n_passes += 1
        gaps = [point.gap for point in self.progress if not point.settled]
        # The history records what the pass cost and how far the points are.
        entry = Round(
            kind,
            time.monotonic() - self._started,
            covering([space.training.whole.view for space in self._spaces]).bytes_per_pass,
            max(space.width for space in self._spaces),
            len(self.progress) - len(gaps),
            max(gaps, default=0.0),
        )
        self.history.append(entry)
        self._save()
        self._started = time.monotonic()

    def _save(self) -> None:
        """Save the state, from which a later run continues, and delete files that only the last state needed."""
        # The order of writing makes a kill harmless: first new files, then the state that names them, which replaces
        # the old one at once, then the deletion of files that neither of the two names.
        folder, saved = self.workspace.path, self.workspace.state.get("solver")
        number = 0 if saved is None else int(Path(saved["points"]).stem.split("-")[1]) + 1
        file, unknown = folder / f"points-{number}.npz", np.full(self._spaces[0].n_kernels, np.nan)
        betas = np.stack([unknown if point.beta is None else point.beta for point in self.progress])
        figures = {name: np.array([getattr(point, name) for point in self.progress]) for name in _FIGURES}
        save_arrays(file, {"beta": betas, **figures, **self._restriction.arrays(self._open())})
        new = [file.name]
        for k, point in enumerate(self.progress):
            for name in _BY_POINT:
                path, values = folder / f"{name}-{k}.npy", getattr(point, name)
                if point.settled and values is not None and not path.exists():
                    save_array(path, values)
                    new.append(path.name)
            path = folder / f"extra-{k}.npz"
            if point.settled and point.extra and not path.exists():
                save_arrays(path, dict(point.extra))
                new.append(path.name)
        solver = {
            "points": file.name,
            "n_passes": self.n_passes,
            "history": [asdict(entry) for entry in self.history],
            "worst": list(self._worst),
            "ended": self._limits() if self._ended else None,
            "spaces": [space.described() for space in self._spaces],
        }
        states = [solver] if saved is None else [solver, saved]
        of_spaces: list[Any] = list(zip(self._spaces, *(state["spaces"] for state in states), strict=True))
        for space, *described in of_spaces:
            now, *before = [named_files(of_state) for of_state in described]
            names = sorted(name for name in now.difference(*before) if not name.startswith(WRITTEN_AGAIN))
            new += [f"{space.folder.name}/{name}" for name in names]
        self.workspace.commit({**self.workspace.state, "solver": solver, "files": new})
        for path in folder.glob("points-*.npz"):
            if path.name not in [state["points"] for state in states]:
                path.unlink()
        for space, *described in of_spaces:
            space.remove_stale(*described)

    def _restore(self) -> None:
        """Restore the state that was saved last, of these points or of the first of them: the others are new."""
        folder, saved = self.workspace.path, self.workspace.state.get("solver")
        if saved is not None:
            stored = load_arrays(folder / saved["points"])
            n_stored = len(stored["beta"])
            self._restriction.restore(stored)
            # A finer grid extends the list of points: the first ones keep their results, and the basis is kept too.
            for k, point in enumerate(self.progress[:n_stored]):
                point.beta = None if np.isnan(stored["beta"][k]).any() else stored["beta"][k]
                for name in _FIGURES:
                    setattr(point, name, stored[name][k].item())
                if point.settled:
                    for name in _BY_POINT:
                        path = folder / f"{name}-{k}.npy"
                        setattr(point, name, np.array(load_array(path)) if path.exists() else None)
                    extra = folder / f"extra-{k}.npz"
                    point.extra = load_arrays(extra) if extra.exists() else {}
            for space, described in zip(self._spaces, saved["spaces"], strict=True):
                space.restore(described)
            self.history = [Round(**entry) for entry in saved["history"]]
            self.n_passes = float(saved["n_passes"])
            if n_stored >= len(self.points):
                # A run that ended at its limits stays ended unless these are raised.
                self._worst, self._ended = list(saved["worst"]), saved["ended"] == self._limits()
        for k, point in enumerate(self.progress):
            if point.scores is None:  # left over from a round that was cut off
                for name in _BY_POINT:
                    (folder / f"{name}-{k}.npy").unlink(missing_ok=True)
                (folder / f"extra-{k}.npz").unlink(missing_ok=True)
            if self._alphas:
                point.settled = point.settled and point.alpha is not None  # version 0.1 kept the scores alone


def points_of(jobs: Sequence[Job]) -> tuple[dict[Training, list[Float]], list[Point]]:
    """The targets of each training set, which share a subspace, and problems as points, of which some share targets."""
    targets: dict[Training, list[Float]] = {}
    places: dict[tuple[Training, int], tuple[int, int]] = {}
    for training, h in ((job.training, job.problem.h) for job in jobs):
        if (training, id(h)) not in places:
            of_training = targets.setdefault(training, [])
            places[training, id(h)] = list(targets).index(training), len(of_training)
            of_training.append(h)
    points = [
        Point(*places[job.training, id(job.problem.h)], job.problem.weights, job.problem.lam, job.kernels)
        for job in jobs
    ]
    return targets, points


def _check(jobs: Sequence[Job]) -> None:
    """Raise MemoryBudgetError unless memory suffices for a first block of each basis and for the tasks of a pass."""
    trainings = list(dict.fromkeys(job.training for job in jobs))
    block = block_width(len(trainings))
    needed = {
        "points": 8 * _COPIES * sum(job.problem.h.size for job in jobs),
        "bases": _bases_bytes(trainings, [block] * len(trainings)),
        "tasks": machine().slots_per_host * _pass_task_bytes(trainings[0], block),
    }
    needed["products"] = _crosses_bytes(trainings, [block] * len(trainings), sum(needed.values()) * 4 // 3)
    enough = math.ceil(sum(needed.values()) / 2**20)
    check_memory(
        f"solver='subspace' with {len(jobs):,} points",
        needed,
        settings.memory_budget_bytes(),
        f"Set dmkl.memory to {enough} MiB (--memory), or take fewer points, folds or workers at once",
        "on this machine",
    )


def solve_in_subspaces(jobs: Sequence[Job], options: FisherOptions, context: Context, **how: Any) -> list[Outcome]:
    """The outcomes of problems in subspaces, of which some may be open; `how` are arguments of `SubspaceSolver`."""
    alphas = context.duals or options.leave_one_out
    solver = SubspaceSolver(jobs, context.workspace, options, context.tally.n_passes, alphas=alphas, **how)
    outcomes = solver.run()
    context.tally.n_passes = solver.n_passes
    context.tally.rounds += solver.history
    return outcomes


def _solve(jobs: Sequence[Job], options: FisherOptions, context: Context) -> list[Outcome]:
    return finish_open(jobs, solve_in_subspaces(jobs, options, context), options, context)


def finish_open(
    jobs: Sequence[Job],
    outcomes: Sequence[Outcome],
    options: FisherOptions,
    context: Context,
    finish: Callable[[Sequence[Job], Context], list[Outcome] | None] | None = None,
) -> list[Outcome]:
    """Solve the open points by another solver, each from its weights in the subspace.

    `finish` is that solver, which returns None where it cannot; that of the options for problems of MK-FDA.
    """
    outcomes = list(outcomes)
    left = [k for k, outcome in enumerate(outcomes) if outcome.status.word == "open"]
    if not left or options.finish == "report":
        return outcomes
    # The weights of the subspace are nearly optimal: the finishing solver starts there and often only proves them.
    rest = []
    for k in left:
        start = outcomes[k].weights[slice(None) if jobs[k].kernels is None else jobs[k].kernels]
        rest.append(replace(jobs[k], problem=replace(jobs[k].problem, start=start)))
    apart = replace(context, workspace=context.workspace.part("finish"), duals=True)
    finished = _finish(rest, options, apart) if finish is None else finish(rest, apart)
    for k, outcome in zip(left, finished, strict=True) if finished is not None else ():
        certified = outcome.status is Status.CERTIFIED
        steps = [*outcomes[k].steps, *outcome.steps]
        outcomes[k] = replace(outcome, status=Status.FINISHED if certified else outcome.status, steps=steps)
    return outcomes


def _finish(jobs: Sequence[Job], options: FisherOptions, context: Context) -> list[Outcome]:
    if options.finish == DIRECT.name:
        check_direct(jobs, "finish='direct'", "finish='cg' or 'report'")
    by_factors = options.finish == DIRECT.name or (options.finish == "auto" and can_solve(DIRECT.check, jobs))
    return (DIRECT if by_factors else cg.SOLVER).solve(jobs, options, context)


SOLVER = FisherSolver(
    "subspace",
    "a basis that all problems share, certified problem by problem, out of core",
    _solve,
    check=_check,
    leaves_out=True,
    files=True,
)
