"""The points of a training set and its subspace on disk: basis, products of the kernels with it, preconditioners.

The state of all subspaces is written after every pass, and the next run continues from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dmkl.arrays import Float, Index
from dmkl.files.arrays import load_array, load_arrays, save_array, save_arrays
from dmkl.passes.execute import active_client, machine
from dmkl.passes.sums import Combination, StoredSum, combine_pass, for_sums, sum_order
from dmkl.passes.view import View
from dmkl.solvers.fisher.subspace.preconditioners import (
    Closeness,
    choose_kept,
    closeness,
    conditions,
    factor_bytes,
    factor_stem,
    is_kept,
)
from dmkl.solvers.fisher.subspace.tasks import (
    FactorRequest,
    ProductFiles,
    Strips,
    apply_factor,
    basis_times,
    lowest,
    numbered,
    probe_file,
    project,
    widen_basis,
    widen_gram,
)
from dmkl.solvers.jobs import Training
from dmkl.solvers.outcome import Outcome, Round, Status, Step
from dmkl.solvers.requests import Pass, Solver, Tasks
from dmkl.solvers.weight_sets.base import WeightSet
from dmkl.solvers.workspace import Workspace

# --- points and their training sets -----------------------------------------------------------------------------------

Item = TypeVar("Item")


TargetSet = tuple[Training, tuple[Float, ...]]
"""A training set and its targets H, (m, c) each, which share a subspace."""


@dataclass(frozen=True, eq=False)
class Point:
    """One problem: a training set and one of its targets, by number, a set of weights of some kernels, and a ridge λ.

    `kernels` are the positions of those that may have weight; all if None.
    """

    space: int
    target: int
    weights: WeightSet
    lam: float
    kernels: Index | None = None

    def support(self, q: Float) -> float:
        """The maximum of βᵀq over the set of weights, from q of all kernels."""
        return self.weights.support(q if self.kernels is None else q[self.kernels])


@dataclass
class Progress:
    """The present solution of a point: weights β (n,), the proven relative gap, S(α, β) and F(α).

    `settled` points are certified: they have scores Σ_j β_j K_j α on the held-out rows, (rows, c), and α (m, c) and the
    history if α is wanted.
    """

    beta: Float | None = None
    gap: float = np.inf
    objective: float = np.nan
    upper: float = np.nan
    settled: bool = False
    scores: Float | None = None
    alpha: Float | None = None
    steps: list[Step] = field(default_factory=list)

    def outcome(self) -> Outcome:
        """Convert to the result of a solver."""
        assert self.beta is not None
        status = Status.CERTIFIED if self.settled else Status.BASIS
        return Outcome(
            status,
            self.beta,
            self.alpha,
            self.objective,
            self.upper,
            self.gap,
            steps=self.steps,
            scores=self.scores,
        )


@dataclass(frozen=True)
class SubspaceOptions:
    """Tolerance and limits of the subspace solver.

    A block has as many new basis vectors of each training set and pass as the number of training sets suggests, if
    `block` is None. All bases and products take at most `basis_bytes` on disk; half of the free space if None. After
    `max_passes` passes open points stay open. Memory decides on preconditioners where `use_preconditioners` is None.
    `alphas` says that α of every point is wanted.
    """

    tol: float = 1e-4
    block: int | None = None
    basis_bytes: int | None = None
    max_passes: float = 200
    use_preconditioners: bool | None = None
    alphas: bool = False


def of_space(points: Sequence[Point], values: Mapping[int, Item], space: int) -> dict[int, Item]:
    """The values that belong to points of one space, by the number of the point."""
    return {k: value for k, value in values.items() if points[k].space == space}


# --- subspaces -----------------------------------------------------------------------------------------------------


Groups = tuple[tuple[str, tuple[int, ...]], ...]

_OF_A_ROUND = ("basis", "inner", "projected", "gram", "errors")
"""Files that are written anew when the basis grows."""


@dataclass(frozen=True)
class Block:
    """Columns of a basis whose products were computed in one pass."""

    columns: tuple[int, int]
    """The first column, and the one after the last."""
    groups: Groups
    """The files of the products, with the kernels in each."""
    single: bool
    """Whether the products are in single precision."""


@dataclass(frozen=True)
class Preconditioner:
    """Reference weights β̄, (n,), whose combined kernel K(β̄) is on disk."""

    number: int
    beta: Float
    total: StoredSum


class TrainingSubspace:
    """The subspace of one training set: its basis V, the K_jV, G_j = VᵀK_jV, all on disk, and the preconditioners.

    It has targets H, (m, c) each, and a folder for its files.
    """

    def __init__(self, training: Training, targets: tuple[Float, ...], folder: Path) -> None:
        self.training, self.targets, self.folder = training, targets, folder
        self.width = 0
        """Basis vectors, r."""
        self.gram = ""
        """The file of G, (n, r, r); V, N and VᵀH of the same round are in the same folder (see `file`)."""
        self.n_round_files = 0
        self.blocks: list[Block] = []
        self.probed: Groups = ()
        """The files of the products of the probes, which measure rounding."""
        self.double = self.training.whole.view.source.dtype == np.float64
        """Whether new products are in double precision."""
        self.preconditioners: list[Preconditioner] = []

    @property
    def n_kernels(self) -> int:
        """Kernels, n."""
        return self.training.n_kernels

    @property
    def single_blocks(self) -> list[tuple[int, int]]:
        """The columns of each block whose products are in single precision."""
        return [block.columns for block in self.blocks if block.single]

    @property
    def hidden_by_rounding(self) -> list[int]:
        """The blocks in single precision whose products have to be repeated in double precision."""
        return [k for k, block in enumerate(self.blocks) if block.single and self.double]

    def disk_bytes(self, width: int) -> int:
        """Bytes on disk of a basis of this width and its products."""
        rows = self.n_kernels * self.training.n_rows
        kept = sum((last - first) * (4 if b.single else 8) for b in self.blocks for first, last in [b.columns])
        more = (width - self.width) * (8 if self.double or not self.blocks else 4)
        return (kept + more) * rows + 8 * width * self.training.n_train

    # --- files ---------------------------------------------------------------------------------------------------

    def file(self, what: str, number: int | None = None) -> str:
        """The file of V ("basis"), N = VᵀV ("inner"), VᵀH ("projected"), G ("gram") or ZᵀE ("errors").

        It is the file of the round with this number, or of the present one.
        """
        end = Path(self.gram).name.removeprefix("gram") if number is None else f"-{number}.npy"
        return str(self.folder / f"{what}{end}")

    @property
    def probes(self) -> str:
        """The file of the probes Z, (m, s)."""
        return str(self.folder / "probes.npy")

    def round_file(self) -> str | None:
        """The prefix of a new file of this round; None if tasks run in this process, which needs no files."""
        if active_client() is None:
            return None
        self.n_round_files += 1
        return str(self.folder / f"round-{self.n_round_files}")

    def forget_round(self) -> None:
        """Delete the files of this round."""
        for path in self.folder.glob("round-*.npy"):
            path.unlink()

    # --- growing -------------------------------------------------------------------------------------------------

    def widen_basis(self, block: Strips | None, number: int) -> list[partial[None]]:
        """The tasks that write V with a new block, and the probes together with the first block."""
        before = self.file("basis") if self.width else ""
        if block is None:
            block = Strips((before,), self.training.n_train, (0, 0))
        work = [partial(widen_basis, before, self.file("basis", number), block)]
        if not self.width and not self.double:
            work.append(partial(probe_file, self.probes, self.training.n_train))
        return work

    def widening(self, number: int, width: int) -> partial[None]:
        """The task that writes G and ZᵀE for the V of a round; its argument is the list of new products."""
        gram, errors = ((self.file(what) if self.width else "", self.file(what, number)) for what in ("gram", "errors"))
        return partial(widen_gram, gram, errors, (self.n_kernels, width))

    def projecting(self, number: int | None = None) -> partial[None]:
        """The task that writes N and VᵀH for the V of a round, or the present one; its argument is the targets."""
        return partial(project, self.file("basis", number), self.file("inner", number), self.file("projected", number))

    def take(self, number: int, width: int, blocks: Sequence[Block]) -> None:
        """Change to the files of a round, with blocks that are new or repeated."""
        self.gram, self.width = self.file("gram", number), width
        for block in blocks:
            repeated = [k for k, before in enumerate(self.blocks) if before.columns == block.columns]
            if repeated:
                self.blocks[repeated[0]] = block
            else:
                self.blocks.append(block)

    def columns(self, first: int, last: int) -> Strips:
        """Some columns of V; empty before the first block."""
        return Strips((self.file("basis"),) if self.width else (), self.training.n_train, (first, last))

    # --- results without a pass ----------------------------------------------------------------------------------

    @property
    def product_files(self) -> ProductFiles:
        """The files of K_jV."""
        return ProductFiles(tuple(block.groups for block in self.blocks))

    def duals(self, coefficients: Sequence[Float]) -> Solver[list[Float]]:
        """Compute α = V a, (m, c), for each a (r, c)."""
        side_by_side = np.concatenate(coefficients, axis=1)
        (whole,) = yield Tasks("dual", [partial(basis_times, self.file("basis"))], own=[side_by_side])
        return np.split(whole, np.cumsum([a.shape[1] for a in coefficients])[:-1], axis=1)

    def lowest(self) -> Solver[Float]:
        """Bound the lowest eigenvalue of each kernel from above, (n,), by its first products, the most exact ones."""
        work = partial(lowest, self.file("inner"), self.gram, self.blocks[0].columns[1])
        (bounds,) = yield Tasks("lowest", [work])
        return np.asarray(bounds)

    # --- preconditioners -----------------------------------------------------------------------------------------

    @cached_property
    def preconditioner_sizes(self) -> tuple[int, int]:
        """Bytes of the largest tile of a preconditioner's sum, and of all its tiles on disk."""
        lens = self.training.square
        order, tiling = sum_order(for_sums(lens)), lens.view.source.tiling
        runs = [order.run(i) for i in range(tiling.shape[0])]
        sides = np.array([run.stop - run.start for run in runs])
        # Only the tiles on and above the diagonal of a symmetric sum are on disk.
        return int(8 * sides.max() ** 2), int(4 * (sides.sum() ** 2 + np.sum(sides**2)))

    def nearest(self, betas: Sequence[Float]) -> list[tuple[int, Closeness]]:
        """The preconditioner with the lowest condition number for each β, as (position, closeness)."""
        if not self.preconditioners or not betas:
            return []
        all_conditions = [conditions(np.array(betas), reference.beta) for reference in self.preconditioners]
        best = np.argmin(all_conditions, axis=0).tolist()
        return [(a, closeness(beta, self.preconditioners[a].beta)) for a, beta in zip(best, betas, strict=True)]

    def drop_unused_preconditioners(self, betas: Sequence[Float]) -> bool:
        """Drop preconditioners that are the nearest of none of the weights, except the first, at uniform weights.

        Returns whether there were any. Their files stay until the next state is on disk, which has to be written before
        new ones are added.
        """
        used = {0} | {position for position, _ in self.nearest(betas)}
        n_before = len(self.preconditioners)
        self.preconditioners = [self.preconditioners[position] for position in sorted(used & set(range(n_before)))]
        return len(self.preconditioners) < n_before

    # --- state ---------------------------------------------------------------------------------------------------

    def described(self) -> dict[str, Any]:
        """The state for `restore`, as JSON."""
        return {
            "width": self.width,
            "double": self.double,
            "gram": Path(self.gram).name,
            "blocks": [
                {"columns": list(block.columns), "single": block.single, "groups": _names_in_groups(block.groups)}
                for block in self.blocks
            ],
            "probed": _names_in_groups(self.probed),
            "anchors": [
                {"number": a.number, "beta": a.beta.tolist(), "tiles": [list(tile) for tile in a.total.tiles]}
                for a in self.preconditioners
            ],
        }

    def restore(self, saved: dict[str, Any]) -> None:
        """Restore a described state."""
        if saved["width"]:
            self.gram = str(self.folder / saved["gram"])
            self.width = int(saved["width"])
            self.double = bool(saved["double"])
            for block in saved["blocks"]:
                first, last = map(int, block["columns"])
                self.blocks.append(Block((first, last), self._groups(block["groups"]), bool(block["single"])))
            self.probed = self._groups(saved["probed"])
        for reference in saved["anchors"]:
            tiles = tuple((int(i), int(j)) for i, j in reference["tiles"])
            total = StoredSum(self._stem(reference["number"]), tiles, for_sums(self.training.square))
            self.preconditioners.append(Preconditioner(reference["number"], np.array(reference["beta"]), total))

    def _groups(self, groups: Any) -> Groups:
        return tuple((str(self.folder / name), tuple(kernels)) for name, kernels in groups)

    def remove_stale(self) -> None:
        """Delete bases, Gram matrices, products and preconditioners that the state on disk does not name any more."""
        numbers = {preconditioner.number for preconditioner in self.preconditioners}
        for path in self.folder.glob("anchor-*.npy"):
            if int(path.name.split("-")[1]) not in numbers:
                path.unlink()
        kept = {Path(self.file(what)).name for what in _OF_A_ROUND}
        kept |= {Path(path).name for block in self.blocks for path, _ in block.groups}
        for what in (*_OF_A_ROUND, "products"):
            for path in self.folder.glob(f"{what}-*.npy"):
                if path.name not in kept:
                    path.unlink()

    def _stem(self, number: int) -> str:
        return str(self.folder / f"anchor-{number}")

    def factor_stem(self, place: int, ridge: float) -> str:
        """The prefix of the files of a preconditioner's factor at a ridge."""
        return factor_stem(self.folder, self.preconditioners[place].number, ridge)

    def stem(self, ahead: int) -> tuple[int, str]:
        """The number of a new preconditioner after `ahead` other new ones, and the prefix of its files."""
        number = max((preconditioner.number for preconditioner in self.preconditioners), default=-1) + 1 + ahead
        return number, self._stem(number)


def _names_in_groups(groups: Groups) -> list[Any]:
    return [[Path(path).name, list(kernels)] for path, kernels in groups]


def add_preconditioners(spaces: Sequence[TrainingSubspace], chosen: Sequence[tuple[int, Float]]) -> Solver[None]:
    """Add up the combined kernels at reference weights, (space, β), in one pass."""
    named = []
    # Numbers follow those on disk, so that a file of an earlier state is never overwritten.
    for position, (f, _) in enumerate(chosen):
        named.append(spaces[f].stem(sum(1 for g, _ in chosen[:position] if g == f)))
    lenses = [space.training.square for space in spaces]
    combinations, stems = [Combination(f, beta) for f, beta in chosen], [stem for _, stem in named]
    sums = yield Pass("anchor", partial(combine_pass, lenses, combinations, stems))
    for (f, beta), (number, _), total in zip(chosen, named, sums, strict=True):
        spaces[f].preconditioners.append(Preconditioner(number, beta, total))


@dataclass(frozen=True)
class Unsolved:
    """X, (m, k), for which M⁻¹X is wanted, M = ½(I + K(β̄)/ρ) at the ridge ρ, by a preconditioner of a subspace.

    `worth` is the largest xᵀM⁻¹x of a column for which a bound is wanted too; negative if none is wanted.
    """

    space: int
    preconditioner: int
    ridge: float
    columns: Strips
    worth: float = -1.0


def preconditioner_bytes(view: View, n_columns: int) -> int:
    """Memory of a task that applies a preconditioner: the factor in single precision, and vectors in double."""
    m = view.shape[1]
    # If the steps take some of the rows after centering, the matrix before that is assembled whole, and copied.
    matrices = 1 if not view.takes_samples else 3
    return 4 * len(view.rows) ** 2 * matrices + 8 * m * n_columns * 6


def basis_task_bytes(n_kernels: int, width: int) -> int:
    """Memory of a task that maps G of a subspace, and holds a few matrices (r, r)."""
    return 8 * width**2 * (n_kernels + 4)


def apply_preconditioners(
    spaces: Sequence[TrainingSubspace], wanted: Sequence[Unsolved]
) -> Solver[list[tuple[Strips, Float]]]:
    """Compute M⁻¹X of each, and bounds of xᵀM⁻¹x of each column x, infinite if they are not wanted.

    One factorization serves all items of one space, preconditioner and ridge. If factors do not fit in memory side by
    side, they are computed one after another, each with all memory and all cores.
    """
    if not wanted:
        return []
    host = machine()
    # Items of equal space, preconditioner and ridge share a factor.
    groups: dict[tuple[int, int, float], list[int]] = {}
    for position, item in enumerate(wanted):
        groups.setdefault((item.space, item.preconditioner, item.ridge), []).append(position)
    kept = _kept(spaces, list(groups))
    requests = {
        key: _request(spaces[key[0]], key[2], [wanted[k] for k in positions], kept[key])
        for key, positions in groups.items()
    }
    needed = max(preconditioner_bytes(spaces[f].training.square.view, r.width) for (f, _, _), r in requests.items())
    side_by_side = 1 if needed > host.task_bytes else host.slots_per_host
    work = [partial(apply_factor, spaces[f].preconditioners[place].total, side_by_side) for f, place, _ in groups]
    own = list(requests.values())
    if needed > host.task_bytes:
        # One request per factor: the driver runs the tasks of a request side by side, which memory does not allow here.
        solved = []
        for task, argument in zip(work, own, strict=True):
            solved += yield Tasks("precondition", [task], own=[argument])
    else:
        solved = yield Tasks("precondition", work, own=own)
    result: list[Any] = [None] * len(wanted)
    for (key, positions), (x, bounds) in zip(groups.items(), solved, strict=True):
        ends = np.cumsum([0, *(wanted[k].columns.width for k in positions)]).tolist()
        whole = Strips((x,), spaces[key[0]].training.n_train, (0, ends[-1]))
        for k, (first, last) in zip(positions, pairwise(ends), strict=True):
            result[k] = whole.part(first, last), bounds[first:last]
    return result


def _kept(
    spaces: Sequence[TrainingSubspace], keys: Sequence[tuple[int, int, float]]
) -> dict[tuple[int, int, float], str | None]:
    """The prefixes of the files of factors by space, preconditioner and ridge; None for factors without room."""
    stems = {key: spaces[key[0]].factor_stem(*key[1:]) for key in keys}
    sizes = {stems[key]: factor_bytes(spaces[key[0]].training.n_train) for key in keys}
    new = choose_kept([space.folder for space in spaces], sizes)
    return {key: stem if stem in new or is_kept(stem) else None for key, stem in stems.items()}


def _request(space: TrainingSubspace, ridge: float, wanted: Sequence[Unsolved], kept: str | None) -> FactorRequest:
    """The request to one factor."""
    worth = np.concatenate([np.full(item.columns.width, item.worth) for item in wanted])
    return FactorRequest(ridge, tuple(item.columns for item in wanted), numbered(space.round_file(), 0), worth, kept)


# --- the checkpoint ------------------------------------------------------------------------------------------------


def save(
    workspace: Workspace,
    spaces: Sequence[TrainingSubspace],
    points: Sequence[Progress],
    history: Sequence[Round],
    n_passes: float,
    worst: Sequence[float],
    ended: dict[str, Any] | None,
) -> None:
    """Save the present state, from which a later run continues, and delete files that only the last state needed.

    `worst` holds the largest gap after each round; `ended` the limits for which the iteration has ended, None if it has
    not.
    """
    # The order of writing makes a kill harmless: first new files, then the state that names them, which replaces the
    # old one at once, then the deletion of files that no state names.
    unknown = np.full(spaces[0].n_kernels, np.nan)
    file = workspace.path / f"points-{_number(workspace) + 1}.npz"
    figures = {
        "beta": np.stack([unknown if r.beta is None else r.beta for r in points]),
        "gap": np.array([r.gap for r in points]),
        "objective": np.array([r.objective for r in points]),
        "upper": np.array([r.upper for r in points]),
        "settled": np.array([r.settled for r in points]),
    }
    save_arrays(file, figures)
    for k, result in enumerate(points):
        for name in _BY_POINT:
            path, values = _file(workspace, name, k), getattr(result, name)
            if result.settled and values is not None and not path.exists():
                save_array(path, values)
    solver = {
        "points": file.name,
        "n_passes": n_passes,
        "history": [asdict(entry) for entry in history],
        "worst": list(worst),
        "ended": ended,
        "spaces": [space.described() for space in spaces],
    }
    workspace.commit({**workspace.state, "solver": solver})
    for path in workspace.path.glob("points-*.npz"):
        if path != file:
            path.unlink()
    for space in spaces:
        space.remove_stale()


def restore(
    workspace: Workspace, spaces: Sequence[TrainingSubspace], points: Sequence[Progress]
) -> tuple[list[Round], float, list[float], dict[str, Any] | None] | None:
    """Restore the state that was saved last, of these points or of the first of them: the others are new.

    Returns history, passes, the largest gap after each round, and the limits for which the iteration has ended; None if
    nothing was saved. With new points the gaps are empty, and the iteration continues.
    """
    saved: dict[str, Any] | None = workspace.state.get("solver")
    longer = False
    if saved is not None:
        stored = load_arrays(workspace.path / saved["points"])
        # A finer grid extends the list of points: the first ones keep their results, and the basis is kept too.
        longer = len(stored["beta"]) < len(points)
        for k, result in enumerate(points[: len(stored["beta"])]):
            beta = stored["beta"][k]
            result.beta = None if np.isnan(beta).any() else beta
            result.gap, result.objective = float(stored["gap"][k]), float(stored["objective"][k])
            result.upper, result.settled = float(stored["upper"][k]), bool(stored["settled"][k])
            if result.settled:
                result.scores = np.array(load_array(_file(workspace, "scores", k)))
                alpha = _file(workspace, "alpha", k)
                result.alpha = np.array(load_array(alpha)) if alpha.exists() else None
        for space, described in zip(spaces, saved["spaces"], strict=True):
            space.restore(described)
    for k, result in enumerate(points):
        if result.scores is None:  # left over from a round that was cut off
            for name in _BY_POINT:
                _file(workspace, name, k).unlink(missing_ok=True)
    if saved is None:
        return None
    history = [Round(**entry) for entry in saved["history"]]
    n_passes = float(saved["n_passes"])
    return (history, n_passes, [], None) if longer else (history, n_passes, list(saved["worst"]), saved["ended"])


def _number(workspace: Workspace) -> int:
    """The number of the file of points that the state on disk names; −1 if it names none."""
    saved = workspace.state.get("solver")
    return -1 if saved is None else int(Path(saved["points"]).stem.split("-")[1])


_BY_POINT = ("scores", "alpha")
"""Arrays that a settled point has in files of its own; α only if it is wanted."""


def _file(workspace: Workspace, name: str, k: int) -> Path:
    return workspace.path / f"{name}-{k}.npy"
