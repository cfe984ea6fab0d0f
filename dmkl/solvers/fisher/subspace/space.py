"""The points of a training set and its subspace on disk: basis, products of the kernels with it, preconditioners."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dmkl.arrays import Float, Index
from dmkl.passes.execute import active_client, machine
from dmkl.passes.sums import StoredSum, for_sums, sum_order
from dmkl.passes.view import View
from dmkl.solvers.fisher.subspace import preconditioners, tasks
from dmkl.solvers.fisher.subspace.tasks import Groups, ProductFiles, Strips
from dmkl.solvers.interface import Outcome, Status, Step
from dmkl.solvers.jobs import Training
from dmkl.solvers.weight_sets import WeightSet

Item = TypeVar("Item")


@dataclass(frozen=True, eq=False)
class Point:
    """One problem: a training set and one of its targets, by number, a set of weights, and a ridge λ."""

    space: int
    target: int
    weights: WeightSet
    lam: float
    kernels: Index | None = None  # Positions of those that may have weight; all where None

    def support(self, q: Float) -> float:
        """The maximum of βᵀq over the set of weights, from q of all kernels."""
        return self.weights.support(q if self.kernels is None else q[self.kernels])


@dataclass
class Progress:
    """The present solution of a point."""

    beta: Float | None = None  # (n,)
    gap: float = np.inf  # The proven relative gap
    objective: float = np.nan  # S(α, β)
    upper: float = np.nan  # F(α)
    settled: bool = False  # Whether it is certified, and has the scores
    scores: Float | None = None  # On the held-out rows, (rows, c)
    alpha: Float | None = None  # (m, c), if it is wanted
    extra: Mapping[str, Float] = field(default_factory=dict)  # `Outcome.extra`
    steps: list[Step] = field(default_factory=list)

    def outcome(self) -> Outcome:
        """Convert to the result of a solver."""
        assert self.beta is not None
        status, bounds = Status.CERTIFIED if self.settled else Status.BASIS, (self.objective, self.upper, self.gap)
        return Outcome(status, self.beta, self.alpha, *bounds, steps=self.steps, scores=self.scores, extra=self.extra)


def of_space(points: Sequence[Point], values: Mapping[int, Item], space: int) -> dict[int, Item]:
    """The values that belong to points of one space, by the number of the point."""
    return {k: value for k, value in values.items() if points[k].space == space}


_OF_A_ROUND = ("basis", "inner", "projected", "gram", "errors")  # Files that are written anew when the basis grows.
WRITTEN_AGAIN = ("inner", "projected")  # Those of them that a run computes again when it continues


@dataclass(frozen=True)
class Block:
    """Columns of a basis whose products were computed in one pass."""

    columns: tuple[int, int]  # The first column, and the one after the last
    groups: Groups  # The names of the files of the products, with the kernels in each
    single: bool  # Whether the products are in single precision


@dataclass(frozen=True)
class Preconditioner:
    """Reference weights β̄, (n,), whose combined kernel K(β̄) is on disk."""

    number: int
    beta: Float
    total: StoredSum


class TrainingSubspace:
    """The subspace of a training set, for all its targets, (m, c): V, K_jV, G_j = VᵀK_jV, preconditioners, on disk."""

    def __init__(self, training: Training, targets: Sequence[Float], folder: Path) -> None:
        self.training, self.targets, self.folder, self.n_kernels = training, targets, folder, training.n_kernels
        self.width = 0  # Basis vectors, r
        self.gram = ""
        """The file of G, (n, r, r); V, N and VᵀH of the same round are in the same folder (see `file`)."""
        self.n_round_files = 0
        self.blocks: list[Block] = []
        self.probes = str(folder / "probes.npy")  # The file of the probes Z, (m, s), which measure rounding
        self.probed: Groups = ()  # The names of the files of their products, with the kernels in each
        self.double = self.training.whole.view.source.dtype == np.float64
        """Whether new products are in double precision."""
        self.preconditioners: list[Preconditioner] = []

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

    def file(self, what: str, number: int | None = None) -> str:
        """The file of V ("basis"), N = VᵀV ("inner"), VᵀH ("projected"), G ("gram") or ZᵀE ("errors").

        It is the file of the round with this number, or of the present one.
        """
        end = Path(self.gram).name.removeprefix("gram") if number is None else f"-{number}.npy"
        return str(self.folder / f"{what}{end}")

    def round_file(self, n_bytes: int = 0) -> str | None:
        """The prefix of a new file of this round; None if tasks run in this process, and their results fit its memory.

        `n_bytes` is the size of all results that would be there at once.
        """
        if active_client() is None and (n_bytes == 0 or 4 * n_bytes <= machine().total_bytes):
            return None
        self.n_round_files += 1
        return str(self.folder / f"round-{self.n_round_files}")

    def forget_round(self) -> None:
        """Delete the files of this round."""
        for path in self.folder.glob("round-*.npy"):
            path.unlink()

    def widen_basis(self, block: Strips | None, number: int) -> list[partial[None]]:
        """The tasks that write V with a new block, and the probes together with the first block."""
        before = self.file("basis") if self.width else ""
        new = Strips((before,), self.training.n_train, (0, 0)) if block is None else block
        work = [partial(tasks.widen_basis, before, self.file("basis", number), new)]
        if not self.width and not self.double:
            work.append(partial(tasks.probe_file, self.probes, self.training.n_train))
        return work

    def widening(self, number: int, width: int) -> partial[None]:
        """The task that writes G and ZᵀE for the V of a round; its argument is the list of new products."""
        gram, errors = ((self.file(what) if self.width else "", self.file(what, number)) for what in ("gram", "errors"))
        return partial(tasks.widen_gram, gram, errors, (self.n_kernels, width))

    def projecting(self, number: int | None = None) -> partial[None]:
        """The task that writes N and VᵀH for the V of a round, or the present one; its argument is the targets."""
        basis, inner, projected = (self.file(what, number) for what in ("basis", "inner", "projected"))
        return partial(tasks.project, basis, inner, projected)

    def take(self, number: int, width: int, blocks: Sequence[Block]) -> None:
        """Change to the files of a round, with blocks that are new or repeated."""
        self.gram, self.width = self.file("gram", number), width
        # A block of columns that are there already replaces their block.
        self.blocks = list({block.columns: block for block in (*self.blocks, *blocks)}.values())

    def columns(self, first: int, last: int) -> Strips:
        """Some columns of V; empty before the first block."""
        return Strips((self.file("basis"),) if self.width else (), self.training.n_train, (first, last))

    @property
    def product_files(self) -> ProductFiles:
        """The files of K_jV."""
        return ProductFiles(self.folder, tuple(block.groups for block in self.blocks))

    @cached_property
    def preconditioner_sizes(self) -> tuple[int, int]:
        """Bytes of the largest tile of a preconditioner's sum, and of all its tiles on disk."""
        lens = self.training.square
        order, tiling = sum_order(for_sums(lens)), lens.view.source.tiling
        runs = [order.run(i) for i in range(tiling.shape[0])]
        sides = np.array([run.stop - run.start for run in runs])
        # Only the tiles on and above the diagonal of a symmetric sum are on disk.
        return int(8 * sides.max() ** 2), int(4 * (sides.sum() ** 2 + np.sum(sides**2)))

    def nearest(self, betas: Sequence[Float]) -> list[tuple[int, preconditioners.Closeness]]:
        """The preconditioner with the lowest condition number for each β, as (position, closeness)."""
        if not self.preconditioners or not betas:
            return []
        references = [reference.beta for reference in self.preconditioners]
        conditions = [preconditioners.conditions(np.array(betas), reference) for reference in references]
        best = np.argmin(conditions, axis=0).tolist()
        return [(a, preconditioners.closeness(beta, references[a])) for a, beta in zip(best, betas, strict=True)]

    def drop_unused_preconditioners(self, betas: Sequence[Float]) -> bool:
        """Drop those that are nearest to none of the weights, except the first; return whether there were any."""
        used = {0} | {position for position, _ in self.nearest(betas)}
        n_before = len(self.preconditioners)
        self.preconditioners = [self.preconditioners[position] for position in sorted(used & set(range(n_before)))]
        return len(self.preconditioners) < n_before

    def described(self) -> dict[str, Any]:
        """The state for `restore`, as JSON."""
        anchors = [{"number": a.number, "beta": a.beta.tolist(), "tiles": a.total.tiles} for a in self.preconditioners]
        described = {"width": self.width, "double": self.double, "gram": Path(self.gram).name, "probed": self.probed}
        return described | {"blocks": [asdict(block) for block in self.blocks], "anchors": anchors}

    def restore(self, saved: dict[str, Any]) -> None:
        """Restore a described state."""
        if saved["width"]:
            self.gram = str(self.folder / saved["gram"])
            self.width, self.double, self.probed = saved["width"], saved["double"], saved["probed"]
            for block in saved["blocks"]:
                first, last = block["columns"]
                self.blocks.append(Block((first, last), block["groups"], block["single"]))
        for reference in saved["anchors"]:
            tiles = tuple((int(i), int(j)) for i, j in reference["tiles"])
            total = StoredSum(self.stem(reference["number"]), tiles, for_sums(self.training.square))
            self.preconditioners.append(Preconditioner(reference["number"], np.array(reference["beta"]), total))

    def remove_stale(self, *states: dict[str, Any]) -> None:
        """Delete bases, Gram matrices, products and preconditioners that none of the described states names."""
        numbers = {anchor["number"] for state in states for anchor in state["anchors"]}
        for path in self.folder.glob("anchor-*.npy"):
            if int(path.name.split("-")[1]) not in numbers:
                path.unlink()
        kept = {name for state in states for name in named_files(state)}
        for what in (*_OF_A_ROUND, "products"):
            for path in self.folder.glob(f"{what}-*.npy"):
                if path.name not in kept:
                    path.unlink()

    def stem(self, number: int) -> str:
        """The prefix of the files of a preconditioner."""
        return str(self.folder / f"anchor-{number}")


def named_files(state: dict[str, Any]) -> set[str]:
    """The names of the files of a state that `TrainingSubspace.described` describes."""
    if not state["width"]:
        return set()
    end = state["gram"].removeprefix("gram")
    groups = itertools.chain(state["probed"], *(block["groups"] for block in state["blocks"]))
    sums = {f"anchor-{anchor['number']}-{i}-{j}.npy" for anchor in state["anchors"] for i, j in anchor["tiles"]}
    probes = {"probes.npy"} if state["probed"] else set()
    return {f"{what}{end}" for what in _OF_A_ROUND} | {name for name, _ in groups} | sums | probes


@dataclass(frozen=True)
class Unsolved:
    """X, (m, k), for which M⁻¹X is wanted, M = ½(I + K(β̄)/ρ) at the ridge ρ, by a preconditioner of a subspace."""

    space: int
    preconditioner: int
    ridge: float
    columns: Strips
    worth: float = -1.0  # The largest xᵀM⁻¹x of a column x for which a bound is wanted too; negative for none


def preconditioner_bytes(view: View, n_columns: int) -> int:
    """Memory of a task that applies a preconditioner: the factor in single precision, and vectors in double."""
    m = view.shape[1]
    # If the steps take some of the rows after centering, the matrix before that is assembled whole, and copied.
    matrices = 1 if not view.takes_samples else 3
    return 4 * len(view.rows) ** 2 * matrices + 8 * m * n_columns * 6


def basis_task_bytes(n_kernels: int, width: int) -> int:
    """Memory of a task that maps G of a subspace, and holds a few matrices (r, r)."""
    return 8 * width**2 * (n_kernels + 4)


def apply_preconditioners(spaces: Sequence[TrainingSubspace], wanted: Sequence[Unsolved]) -> list[tuple[Strips, Float]]:
    """Compute M⁻¹X of each, and bounds of xᵀM⁻¹x of each column x, infinite if they are not wanted.

    One factorization serves all items of one space, preconditioner and ridge, and those of other ridges if that takes
    fewer operations. If factors do not fit in memory side by side, they are computed one after another, each with all
    memory and all cores.
    """
    if not wanted:
        return []
    host = machine()
    widths: Counter[tuple[int, int, float]] = Counter()
    for item in wanted:
        widths[item.space, item.preconditioner, item.ridge] += item.columns.width
    groups: dict[tuple[int, int, float], list[int]] = {}
    for position, item in enumerate(wanted):
        training, beta = spaces[item.space].training, spaces[item.space].preconditioners[item.preconditioner].beta
        trace = np.inf if training.facts.traces is None else float(beta @ training.facts.traces)
        width = widths[item.space, item.preconditioner, item.ridge]
        rho = preconditioners.factor_ridge(item.ridge, trace, width, training.n_train)
        groups.setdefault((item.space, item.preconditioner, rho), []).append(position)
    sizes: dict[str, int] = {}
    for f, place, ridge in groups:
        stem = preconditioners.factor_stem(spaces[f].folder, spaces[f].preconditioners[place].number, ridge)
        sizes[stem] = 0 if np.isinf(ridge) else preconditioners.factor_bytes(spaces[f].training.n_train)
    new = preconditioners.choose_kept([space.folder for space in spaces], sizes)
    requests = []
    for ((f, _, ridge), positions), stem in zip(groups.items(), sizes, strict=True):
        columns = tuple(wanted[k].columns for k in positions)
        items = [(wanted[k].worth, wanted[k].ridge) for k in positions]
        worth, ridges = np.repeat(items, [x.width for x in columns], axis=0).T
        kept = stem if stem in new or preconditioners.is_kept(stem) else None
        path = tasks.numbered(spaces[f].round_file(), 0)
        requests.append(tasks.FactorRequest(ridge, columns, path, worth, ridges, kept))
    views = [spaces[f].training.square.view for f, *_ in groups]
    needed = max(preconditioner_bytes(view, len(r.worth)) for view, r in zip(views, requests, strict=True))
    side_by_side = 1 if needed > host.task_bytes else host.slots_per_host
    work = [partial(tasks.apply_factor, spaces[f].preconditioners[place].total, side_by_side) for f, place, _ in groups]
    if needed > host.task_bytes:
        # One task after another: memory does not allow them side by side.
        solved = []
        for task, argument in zip(work, requests, strict=True):
            solved += tasks.run_checked("precondition", [task], own=[argument])
    else:
        solved = tasks.run_checked("precondition", work, own=requests)
    result: list[Any] = [None] * len(wanted)
    for ((f, *_), positions), (x, bounds) in zip(groups.items(), solved, strict=True):
        parts = Strips.side_by_side([x], spaces[f].training.n_train, [wanted[k].columns.width for k in positions])
        for k, part in zip(positions, parts, strict=True):
            result[k] = part, bounds[slice(*part.columns)]
    return result
