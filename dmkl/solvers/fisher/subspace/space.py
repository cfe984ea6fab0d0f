"""The subspace of one training set: its basis, the products of the kernels with it, its anchors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from dmkl.arrays import Float
from dmkl.files.arrays import load_array, save_array
from dmkl.passes.combine import StoredSum, combine_pass
from dmkl.passes.execute import machine
from dmkl.passes.sums import Combination, for_sums, sum_order
from dmkl.solvers.fisher.subspace.anchors import Closeness, closeness
from dmkl.solvers.fisher.subspace.problem import TargetSet
from dmkl.solvers.fisher.subspace.rounding import PROBES
from dmkl.solvers.fisher.subspace.tasks import Asked, ProductFiles, combined_products, settle
from dmkl.solvers.outcome import check_finite
from dmkl.solvers.running import run_tasks
from dmkl.solvers.semidefinite import lowest_on_span

__all__ = ["Anchor", "Block", "Subspace", "Unsolved", "add_anchors", "anchor_bytes", "solve_by_anchors"]

Groups = tuple[tuple[str, tuple[int, ...]], ...]


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
    """The subspace of one training set: its basis V, the K_jV on disk, G_j = VᵀK_jV, and the anchors.

    Parameters
    ----------
    learnt
        The training set and its targets.
    folder
        The folder for its files.
    """

    def __init__(self, learnt: TargetSet, folder: Path) -> None:
        self.training, self.targets, self.folder = learnt.training, learnt.targets, folder
        self.basis: Float = np.zeros((self.training.n_train, 0))
        self.gram = ""
        self.blocks: list[Block] = []
        self.probed: Groups = ()
        """Where the products of the probes lie, by which rounding is measured."""
        self.errors: Float = np.zeros((self.n_kernels, PROBES, 0))
        """ZᵀE_j of the probes Z, (n, s, r): see `rounding`."""
        self.double = self.training.whole.view.source.dtype == np.float64
        """Whether new products are in double precision."""
        self.anchors: list[Anchor] = []

    @property
    def width(self) -> int:
        """Basis vectors, r."""
        return int(self.basis.shape[1])

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

    def widen(self, basis: Float, number: int, made: Sequence[tuple[Block, Float, Float | None]]) -> None:
        """Take in new products, of new basis vectors or in place of those of a block that was there.

        Parameters
        ----------
        basis
            V with the new vectors, (m, r).
        number
            Of the round, for the names of files.
        made
            Blocks U with VᵀK_jU, (n, r, b), and ZᵀE_j (n, s, b), where rounding was measured; those in single precision
            first.
        """
        n, r, before = self.n_kernels, basis.shape[1], self.width
        gram, errors = np.empty((n, r, r)), np.zeros((n, PROBES, r))
        if before:
            gram[:, :before, :before] = load_array(self.gram)
        errors[:, :, :before] = self.errors
        for block, cross, hidden in made:
            check_finite(cross)
            first, last = block.columns
            gram[:, :, first:last] = cross
            gram[:, first:last, :] = cross.transpose(0, 2, 1)
            gram[:, first:last, first:last] += cross[:, first:last]
            gram[:, first:last, first:last] *= 0.5
            errors[:, :, first:last] = 0.0 if hidden is None else hidden
            places = [k for k, there in enumerate(self.blocks) if there.columns == block.columns]
            if places:
                self.blocks[places[0]] = block
            else:
                self.blocks.append(block)
        self.gram, self.basis, self.errors = str(self.folder / f"gram-{number}.npy"), basis, errors
        save_array(self.gram, gram)
        save_array(self.folder / self._beside("errors"), errors)

    def products(self, pairs: Sequence[tuple[Float, Float]], *, held_out: bool) -> list[Float]:
        """Σ_j w_j K_j V Z for pairs of weights w (n,) and coefficients Z (r, c).

        Over the training rows, or over the others. No pass: the K_jV are at hand, and read once for all pairs.
        """
        if not pairs:
            return []
        where, training = machine(), self.training
        weights = np.concatenate([np.repeat(w[:, None], z.shape[1], axis=1) for w, z in pairs], axis=1)
        coefficients = np.concatenate([z for _, z in pairs], axis=1)
        first, last = (training.n_train, training.n_rows) if held_out else (0, training.n_train)
        # A strip's result and one kernel's rows of V and of the result stay within a share of the task's memory.
        side = max(64, min(2048, where.task_bytes // (32 * sum(coefficients.shape))))
        side = max(1, min(side, math.ceil((last - first) / where.slots)))
        strips = [slice(start, min(start + side, last)) for start in range(first, last, side)]
        files = ProductFiles(tuple(block.groups for block in self.blocks))
        work = [partial(combined_products, files, rows, tasks_per_machine=where.slots_per_host) for rows in strips]
        found = run_tasks("scores" if held_out else "residuals", work, weights, coefficients)
        whole = np.concatenate(found) if found else np.zeros((0, coefficients.shape[1]))
        return np.split(whole, np.cumsum([z.shape[1] for _, z in pairs])[:-1], axis=1)

    def lowest(self) -> Float:
        """An upper bound of the lowest eigenvalue of each kernel, (n,), by its first products: the most exact ones."""
        first = slice(*self.blocks[0].columns)
        basis = self.basis[:, first]
        return lowest_on_span(basis.T @ basis, np.array(load_array(self.gram)[:, first, first]))

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

    def nearest(self, beta: Float) -> tuple[int, Closeness] | None:
        """The place of the anchor that serves a weighting best, and how it lies."""
        near = [closeness(beta, anchor.beta) for anchor in self.anchors]
        if not near:
            return None
        best = min(range(len(near)), key=lambda a: (near[a].condition, a))
        return best, near[best]

    def forget_anchors(self, betas: Sequence[Float]) -> bool:
        """Leave out sums that serve none of some weightings, but for the first, which serves any somehow.

        Returns whether there were any. Their files stay until the next state is on disk, which has to be before new
        ones are added.
        """
        used = {0} | {near[0] for beta in betas if (near := self.nearest(beta)) is not None}
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
            self.basis = np.array(load_array(self.folder / self._beside("basis")))
            self.errors = np.array(load_array(self.folder / self._beside("errors")))
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

    def _beside(self, what: str) -> str:
        """The name of what belongs to the present G."""
        return Path(self.gram).name.replace("gram", what)

    def remove_stale(self) -> None:
        """Delete bases, Gram matrices, products and anchors that the state on disk does not name any more."""
        known = {anchor.number for anchor in self.anchors}
        for path in self.folder.glob("anchor-*.npy"):
            if int(path.name.split("-")[1]) not in known:
                path.unlink()
        kept = {Path(self.gram).name, self._beside("basis"), self._beside("errors")}
        kept |= {Path(path).name for block in self.blocks for path, _ in block.groups}
        for what in ("basis", "gram", "errors", "products"):
            for path in self.folder.glob(f"{what}-*.npy"):
                if path.name not in kept:
                    path.unlink()

    def _stem(self, number: int) -> str:
        return str(self.folder / f"anchor-{number}")

    def stem(self, ahead: int) -> tuple[int, str]:
        """The number of a new anchor, `ahead` others being new too, and where its files go."""
        number = max((anchor.number for anchor in self.anchors), default=-1) + 1 + ahead
        return number, self._stem(number)


def _told(groups: Groups) -> list[Any]:
    return [[Path(path).name, list(kernels)] for path, kernels in groups]


def add_anchors(spaces: Sequence[Subspace], chosen: Sequence[tuple[int, Float]]) -> None:
    """Add up the combined kernels of some weightings, (space, β): one pass for all."""
    places = []
    for position, (f, _) in enumerate(chosen):
        places.append(spaces[f].stem(sum(1 for g, _ in chosen[:position] if g == f)))
    lenses = [space.training.square for space in spaces]
    sums = combine_pass(lenses, [Combination(f, beta) for f, beta in chosen], [stem for _, stem in places])
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
    columns: Float
    worth: float = -1.0


def anchor_bytes(space: Subspace, n_columns: int) -> int:
    """Memory that solving by an anchor of a space takes: the factor, and vectors of double precision."""
    square = space.training.square
    m = square.view.shape[1]
    # Where the steps take some of the rows after centering, what they had before is made whole, and copied.
    matrices = 1 if not square.view.takes_samples else 3
    return 4 * len(square.view.rows) ** 2 * matrices + 8 * m * n_columns * 6


def solve_by_anchors(spaces: Sequence[Subspace], wanted: Sequence[Unsolved]) -> list[tuple[Float, Float]]:
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
    asked = {key: _asked(key[2], [wanted[k] for k in some]) for key, some in groups.items()}
    needed = max(anchor_bytes(spaces[key[0]], one.columns.shape[1]) for key, one in asked.items())
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
        solved = [run_tasks("settle", [one], own=[some])[0] for one, some in zip(work, own, strict=True)]
    else:
        solved = run_tasks("settle", work, own=own)
    result: list[Any] = [None] * len(wanted)
    for key, (x, bounds) in zip((key for part in parts for key in part), chain.from_iterable(solved), strict=True):
        cuts = np.cumsum([wanted[k].columns.shape[1] for k in groups[key]])[:-1]
        for k, piece, bound in zip(groups[key], np.split(x, cuts, axis=1), np.split(bounds, cuts), strict=True):
            result[k] = piece, bound
    return result


def _asked(ridge: float, wanted: Sequence[Unsolved]) -> Asked:
    """What is asked of one factor."""
    worth = [np.full(item.columns.shape[1], item.worth) for item in wanted]
    return Asked(ridge, np.concatenate([item.columns for item in wanted], axis=1), np.concatenate(worth))
