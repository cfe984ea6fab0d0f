"""The subspace of one training set on disk: its basis, the products of the kernels with it, its preconditioners.

The state of all subspaces is written after every pass, and the next run continues from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from dmkl.arrays import Float
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
from dmkl.solvers.fisher.subspace.problem import Progress, TargetSet
from dmkl.solvers.fisher.subspace.tasks import (
    Asked,
    ProductFiles,
    Strips,
    basis_times,
    lowest,
    numbered,
    probe_file,
    project,
    settle,
    widen_basis,
    widen_gram,
)
from dmkl.solvers.outcome import Round
from dmkl.solvers.requests import Pass, Solver, Tasks
from dmkl.solvers.workspace import Workspace

__all__ = [
    "Anchor",
    "Block",
    "Subspace",
    "Unsolved",
    "add_anchors",
    "anchor_bytes",
    "basis_task_bytes",
    "restore",
    "save",
    "solve_by_anchors",
]

# --- subspaces -----------------------------------------------------------------------------------------------------


Groups = tuple[tuple[str, tuple[int, ...]], ...]

_OF_A_ROUND = ("basis", "inner", "projected", "gram", "errors")
"""Files that are written anew when the basis grows."""


@dataclass(frozen=True)
class Block:
    """Columns of a basis whose products were made in one pass."""

    columns: tuple[int, int]
    """The first, and the one after the last."""
    groups: Groups
    """Where the products lie."""
    single: bool
    """Whether they were made in single precision."""


@dataclass(frozen=True)
class Anchor:
    """A weighting whose combined kernel is on disk."""

    number: int
    beta: Float
    total: StoredSum


class Subspace:
    """The subspace of one training set: its basis V, the K_jV, G_j = VᵀK_jV, all on disk, and the anchors.

    Parameters
    ----------
    learnt
        The training set and its targets.
    folder
        The folder for its files.
    """

    def __init__(self, learnt: TargetSet, folder: Path) -> None:
        self.training, self.targets, self.folder = learnt.training, learnt.targets, folder
        self.width = 0
        """Basis vectors, r."""
        self.gram = ""
        """The file of G, (n, r, r); what belongs to it lies beside it (see `file`)."""
        self.n_round_files = 0
        self.blocks: list[Block] = []
        self.probed: Groups = ()
        """Where the products of the probes lie, by which rounding is measured."""
        self.double = self.training.whole.view.source.dtype == np.float64
        """Whether new products are in double precision."""
        self.anchors: list[Anchor] = []

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
        """The blocks in single precision that are to be multiplied again: those of a space that needs double."""
        return [k for k, block in enumerate(self.blocks) if block.single and self.double]

    def disk_bytes(self, width: int) -> int:
        """What a basis of so many vectors and its products take."""
        rows = self.n_kernels * self.training.n_rows
        kept = sum((last - first) * (4 if b.single else 8) for b in self.blocks for first, last in [b.columns])
        more = (width - self.width) * (8 if self.double or not self.blocks else 4)
        return (kept + more) * rows + 8 * width * self.training.n_train

    # --- files ---------------------------------------------------------------------------------------------------

    def file(self, what: str, number: int | None = None) -> str:
        """The file of V ("basis"), N = VᵀV ("inner"), VᵀH ("projected"), G ("gram") or ZᵀE ("errors").

        That of a round, or the present one.
        """
        end = Path(self.gram).name.removeprefix("gram") if number is None else f"-{number}.npy"
        return str(self.folder / f"{what}{end}")

    @property
    def probes(self) -> str:
        """The file of the probes Z, (m, s)."""
        return str(self.folder / "probes.npy")

    def round_file(self) -> str | None:
        """The beginning of the names of files of this round; None where tasks and their results are in this process."""
        if active_client() is None:
            return None
        self.n_round_files += 1
        return str(self.folder / f"round-{self.n_round_files}")

    def forget_round(self) -> None:
        """Delete what tasks have kept for one another since the last call."""
        for path in self.folder.glob("round-*.npy"):
            path.unlink()

    # --- growing -------------------------------------------------------------------------------------------------

    def widen_basis(self, block: Strips | None, number: int) -> list[partial[None]]:
        """The tasks that write V with a new block, and the probes with the first one."""
        before = self.file("basis") if self.width else ""
        if block is None:
            block = Strips((before,), self.training.n_train, (0, 0))
        work = [partial(widen_basis, before, self.file("basis", number), block)]
        if not self.width and not self.double:
            work.append(partial(probe_file, self.probes, self.training.n_train))
        return work

    def widening(self, number: int, width: int) -> partial[None]:
        """The task that writes G and ZᵀE for the V of a round, of so many columns; it takes what was made of each."""
        gram, errors = ((self.file(what) if self.width else "", self.file(what, number)) for what in ("gram", "errors"))
        return partial(widen_gram, gram, errors, (self.n_kernels, width))

    def projecting(self, number: int | None = None) -> partial[None]:
        """The task that writes N and VᵀH for the V of a round, or the present one; it takes the targets."""
        return partial(project, self.file("basis", number), self.file("inner", number), self.file("projected", number))

    def take(self, number: int, width: int, blocks: Sequence[Block]) -> None:
        """Go over to the files of a round, with blocks that are new or made again."""
        self.gram, self.width = self.file("gram", number), width
        for block in blocks:
            places = [k for k, there in enumerate(self.blocks) if there.columns == block.columns]
            if places:
                self.blocks[places[0]] = block
            else:
                self.blocks.append(block)

    def columns(self, first: int, last: int) -> Strips:
        """Some columns of V; none before there are any."""
        return Strips((self.file("basis"),) if self.width else (), self.training.n_train, (first, last))

    # --- what needs no pass --------------------------------------------------------------------------------------

    @property
    def product_files(self) -> ProductFiles:
        """Where K_jV lies."""
        return ProductFiles(tuple(block.groups for block in self.blocks))

    def duals(self, coefficients: Sequence[Float]) -> Solver[list[Float]]:
        """α = V a, (m, c), of each a (r, c)."""
        side_by_side = np.concatenate(coefficients, axis=1)
        (whole,) = yield Tasks("dual", [partial(basis_times, self.file("basis"))], own=[side_by_side])
        return np.split(whole, np.cumsum([a.shape[1] for a in coefficients])[:-1], axis=1)

    def lowest(self) -> Solver[Float]:
        """An upper bound of the lowest eigenvalue of each kernel, (n,), by its first products: the most exact ones."""
        work = partial(lowest, self.file("inner"), self.gram, self.blocks[0].columns[1])
        (bounds,) = yield Tasks("lowest", [work])
        return np.asarray(bounds)

    # --- anchors -------------------------------------------------------------------------------------------------

    @cached_property
    def anchor_sizes(self) -> tuple[int, int]:
        """Bytes of the largest tile of an anchor's sum, and of all its tiles on disk."""
        lens = self.training.square
        order, tiling = sum_order(for_sums(lens)), lens.view.source.tiling
        runs = [order.run(i) for i in range(tiling.shape[0])]
        sides = np.array([run.stop - run.start for run in runs])
        # Of a symmetric sum the tiles on and above the diagonal.
        return int(8 * sides.max() ** 2), int(4 * (sides.sum() ** 2 + np.sum(sides**2)))

    def nearest(self, betas: Sequence[Float]) -> list[tuple[int, Closeness]]:
        """For each weighting the place of the anchor that serves it best, and how it lies; none without anchors."""
        if not self.anchors or not betas:
            return []
        best = np.argmin([conditions(np.array(betas), anchor.beta) for anchor in self.anchors], axis=0).tolist()
        return [(a, closeness(beta, self.anchors[a].beta)) for a, beta in zip(best, betas, strict=True)]

    def forget_anchors(self, betas: Sequence[Float]) -> bool:
        """Leave out sums that serve none of some weightings, but for the first, which serves any somehow.

        Returns whether there were any. Their files stay until the next state is on disk, which has to be before new
        ones are added.
        """
        used = {0} | {place for place, _ in self.nearest(betas)}
        before = len(self.anchors)
        self.anchors = [anchor for place, anchor in enumerate(self.anchors) if place in used]
        return len(self.anchors) < before

    # --- state ---------------------------------------------------------------------------------------------------

    def described(self) -> dict[str, Any]:
        """What `restore` needs, as JSON."""
        return {
            "width": self.width,
            "double": self.double,
            "gram": Path(self.gram).name,
            "blocks": [
                {"columns": list(block.columns), "single": block.single, "groups": _told(block.groups)}
                for block in self.blocks
            ],
            "probed": _told(self.probed),
            "anchors": [
                {"number": a.number, "beta": a.beta.tolist(), "tiles": [list(tile) for tile in a.total.tiles]}
                for a in self.anchors
            ],
        }

    def restore(self, saved: dict[str, Any]) -> None:
        """Go back to a state that was described."""
        if saved["width"]:
            self.gram = str(self.folder / saved["gram"])
            self.width = int(saved["width"])
            self.double = bool(saved["double"])
            self.blocks = [
                Block((int(one["columns"][0]), int(one["columns"][1])), self._found(one["groups"]), bool(one["single"]))
                for one in saved["blocks"]
            ]
            self.probed = self._found(saved["probed"])
        for anchor in saved["anchors"]:
            tiles = tuple((int(i), int(j)) for i, j in anchor["tiles"])
            total = StoredSum(self._stem(anchor["number"]), tiles, for_sums(self.training.square))
            self.anchors.append(Anchor(anchor["number"], np.array(anchor["beta"]), total))

    def _found(self, groups: Any) -> Groups:
        return tuple((str(self.folder / name), tuple(kernels)) for name, kernels in groups)

    def remove_stale(self) -> None:
        """Delete bases, Gram matrices, products and anchors that the state on disk does not name any more."""
        known = {anchor.number for anchor in self.anchors}
        for path in self.folder.glob("anchor-*.npy"):
            if int(path.name.split("-")[1]) not in known:
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
        """The beginning of the names of the files of an anchor's factor at a ridge."""
        return factor_stem(self.folder, self.anchors[place].number, ridge)

    def stem(self, ahead: int) -> tuple[int, str]:
        """The number of a new anchor, `ahead` others being new too, and where its files go."""
        number = max((anchor.number for anchor in self.anchors), default=-1) + 1 + ahead
        return number, self._stem(number)


def _told(groups: Groups) -> list[Any]:
    return [[Path(path).name, list(kernels)] for path, kernels in groups]


def add_anchors(spaces: Sequence[Subspace], chosen: Sequence[tuple[int, Float]]) -> Solver[None]:
    """Add up the combined kernels of some weightings, (space, β): one pass for all."""
    places = []
    for position, (f, _) in enumerate(chosen):
        places.append(spaces[f].stem(sum(1 for g, _ in chosen[:position] if g == f)))
    lenses = [space.training.square for space in spaces]
    combinations, stems = [Combination(f, beta) for f, beta in chosen], [stem for _, stem in places]
    sums = yield Pass("anchor", partial(combine_pass, lenses, combinations, stems))
    for (f, beta), (number, _), total in zip(chosen, places, sums, strict=True):
        spaces[f].anchors.append(Anchor(number, beta, total))


@dataclass(frozen=True)
class Unsolved:
    """X for which M⁻¹X is wanted, M = ½(I + K(β̄)/ρ).

    Parameters
    ----------
    space, anchor
        Which subspace, and which of its anchors.
    ridge
        ρ
    columns
        X, (m, k).
    worth
        The largest xᵀM⁻¹x of a column of which a bound is wanted too; below zero where none is.
    """

    space: int
    anchor: int
    ridge: float
    columns: Strips
    worth: float = -1.0


def anchor_bytes(view: View, n_columns: int) -> int:
    """Memory that solving by an anchor takes, of training samples that are a view: the factor, and double vectors."""
    m = view.shape[1]
    # Where the steps take some of the rows after centering, what they had before is made whole, and copied.
    matrices = 1 if not view.takes_samples else 3
    return 4 * len(view.rows) ** 2 * matrices + 8 * m * n_columns * 6


def basis_task_bytes(n_kernels: int, width: int) -> int:
    """Memory of a task that maps a space's G, and holds a few matrices of its side."""
    return 8 * width**2 * (n_kernels + 4)


def solve_by_anchors(spaces: Sequence[Subspace], wanted: Sequence[Unsolved]) -> Solver[list[tuple[Strips, Float]]]:
    """Of each M⁻¹X about, and bounds of xᵀM⁻¹x of each column x, infinite where they are not wanted.

    One factorization serves all that have space, anchor and ridge in common. Where a factor does not fit a task side by
    side with others, they are made one after another, each with all memory and all cores.
    """
    if not wanted:
        return []
    where = machine()
    groups: dict[tuple[int, int, float], list[int]] = {}
    for position, item in enumerate(wanted):
        groups.setdefault((item.space, item.anchor, item.ridge), []).append(position)
    kept = _kept(spaces, list(groups))
    asked = {key: _asked(spaces[key[0]], key[2], [wanted[k] for k in some], kept[key]) for key, some in groups.items()}
    needed = max(anchor_bytes(spaces[key[0]].training.square.view, one.width) for key, one in asked.items())
    alone = needed > where.task_bytes
    # The ridges of one anchor share a task, which puts its sum together once, but leave work for every worker.
    most = max(1, len(groups) // (3 * where.slots)) if 2 * needed <= where.task_bytes else 1
    parts: list[list[tuple[int, int, float]]] = []
    for key in groups:
        if parts and parts[-1][0][:2] == key[:2] and len(parts[-1]) < most:
            parts[-1].append(key)
        else:
            parts.append([key])
    side_by_side = 1 if alone else where.slots_per_host
    work = [partial(settle, spaces[part[0][0]].anchors[part[0][1]].total, side_by_side) for part in parts]
    own = [[asked[key] for key in part] for part in parts]
    if alone:
        solved = []
        for one, some in zip(work, own, strict=True):
            solved += yield Tasks("settle", [one], own=[some])
    else:
        solved = yield Tasks("settle", work, own=own)
    result: list[Any] = [None] * len(wanted)
    for key, (x, bounds) in zip((key for part in parts for key in part), chain.from_iterable(solved), strict=True):
        ends = np.cumsum([0, *(wanted[k].columns.width for k in groups[key])]).tolist()
        whole = Strips((x,), spaces[key[0]].training.n_train, (0, ends[-1]))
        for k, (first, last) in zip(groups[key], pairwise(ends), strict=True):
            result[k] = whole.part(first, last), bounds[first:last]
    return result


def _kept(
    spaces: Sequence[Subspace], keys: Sequence[tuple[int, int, float]]
) -> dict[tuple[int, int, float], str | None]:
    """Where the factors of some spaces, anchors and ridges are kept, or are to be; None for those without room."""
    stems = {key: spaces[key[0]].factor_stem(*key[1:]) for key in keys}
    sizes = {stems[key]: factor_bytes(spaces[key[0]].training.n_train) for key in keys}
    new = choose_kept([space.folder for space in spaces], sizes)
    return {key: stem if stem in new or is_kept(stem) else None for key, stem in stems.items()}


def _asked(space: Subspace, ridge: float, wanted: Sequence[Unsolved], kept: str | None) -> Asked:
    """What is asked of one factor."""
    worth = np.concatenate([np.full(item.columns.width, item.worth) for item in wanted])
    return Asked(ridge, tuple(item.columns for item in wanted), numbered(space.round_file(), 0), worth, kept)


# --- the checkpoint ------------------------------------------------------------------------------------------------


def save(
    workspace: Workspace,
    spaces: Sequence[Subspace],
    points: Sequence[Progress],
    history: Sequence[Round],
    n_passes: float,
    worst: Sequence[float],
    ended: dict[str, Any] | None,
) -> None:
    """Make the present state what a later run goes on with; what the state before it needed alone is removed.

    Parameters
    ----------
    worst
        The largest gap after each round.
    ended
        The limits for which the work has ended; None where it goes on.
    """
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
    workspace: Workspace, spaces: Sequence[Subspace], points: Sequence[Progress]
) -> tuple[list[Round], float, list[float], dict[str, Any] | None] | None:
    """Go back to the state that was saved last, of these points or of the first of them: those behind are new.

    Returns
    -------
    tuple or None
        History, passes, the largest gap after each round, and the limits for which the work has ended; None where
        nothing was saved. Of new points no round is known, and the work goes on.
    """
    saved: dict[str, Any] | None = workspace.state.get("solver")
    longer = False
    if saved is not None:
        stored = load_arrays(workspace.path / saved["points"])
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
    """The number in the name of the file of points that the state on disk names; −1 where it names none."""
    saved = workspace.state.get("solver")
    return -1 if saved is None else int(Path(saved["points"]).stem.split("-")[1])


_BY_POINT = ("scores", "alpha")
"""Arrays that a settled point keeps in files of their own; α where it was asked for."""


def _file(workspace: Workspace, name: str, k: int) -> Path:
    return workspace.path / f"{name}-{k}.npy"
