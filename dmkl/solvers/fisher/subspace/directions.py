"""New basis vectors: the dominant directions of the errors of open points, and the pass that multiplies them.

The pass repeats blocks whose products were too coarse for the certificate. The first block of a subspace is multiplied
in double precision, together with the probes that measure the rounding of later blocks, which are multiplied in the
precision of the kernels (see `rounding`): the first block makes up most of the solutions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy.linalg

from dmkl.arrays import Array, Float
from dmkl.files.arrays import load_array
from dmkl.passes.blas import pinned_blas
from dmkl.passes.execute import again, execute, machine
from dmkl.passes.run import pass_bytes, pass_graph
from dmkl.passes.sweep import Columns, Last
from dmkl.passes.view import Lens
from dmkl.solvers.fisher.subspace import tasks
from dmkl.solvers.fisher.subspace.certify import OpenPoint, products
from dmkl.solvers.fisher.subspace.preconditioners import rough_ridge
from dmkl.solvers.fisher.subspace.rounding import PROBES
from dmkl.solvers.fisher.subspace.space import Block, Point, TrainingSubspace, Unsolved, apply_preconditioners, of_space
from dmkl.solvers.fisher.subspace.tasks import Keeping, Made, ProductFiles, Strips, keep, keep_products, numbered

# --- dominant directions -------------------------------------------------------------------------------------------


_SKETCH = 4
"""X with more than this many times the wanted columns is replaced by random combinations of its columns, twice as many
as are wanted: an SVD of X would cost more than a pass, and the range of the combinations is as good."""


def orthonormal_to(basis: Array, block: Array) -> Array:
    """An orthonormal basis (m, ≤ b) of the part of the span of `block` (m, b) outside that of an orthonormal `basis`.

    Classical Gram-Schmidt in blocks, twice with a Householder QR in between: the first round leaves an error of the
    order of unit roundoff times the cancellation, the second removes it (Giraud, Langou, Rozložník, van den Eshof,
    Numer. Math. 101, 2005). Columns that are inside the span of the basis to the precision are dropped, as what is left
    of them would be rounding. The result has the precision of both.
    """
    unit = float(np.finfo(block.dtype).eps)
    sizes = np.linalg.norm(block, axis=0)
    rest = block[:, sizes > 0] / sizes[sizes > 0]
    if not rest.size:
        return np.asarray(rest)
    for _ in range(2):
        rest = rest - basis @ (basis.T @ rest)
        # Pivoting moves columns that depend on others to the end, where they are dropped.
        rest, upper, _ = scipy.linalg.qr(rest, mode="economic", pivoting=True, check_finite=False)
        pivots = np.abs(np.diag(upper))
        rest = rest[:, pivots > 1e3 * unit * np.sqrt(len(basis))]
    return np.asarray(rest - basis @ (basis.T @ rest))


def dominant_block(basis: Array, wanted: Array, width: int, cutoff: float, rng: np.random.Generator) -> Array:
    """The leading left singular vectors of (I − VVᵀ)X, at most `width`: orthonormal and orthogonal to the basis V.

    The columns of X, (m, k), are scaled by how much each matters. Singular values below the share `cutoff` of the
    largest are left out. `rng` is for the sketch of an X of very many columns.
    """
    if wanted.shape[1] > _SKETCH * width:
        wanted = wanted @ rng.standard_normal((wanted.shape[1], 2 * width))
    # An X inside the span of the basis leaves only rounding, which is no direction.
    floor = 1e-24 * float(np.sum(wanted * wanted))
    # The second projection removes the rounding of the first, relative to what is left.
    for _ in range(2):
        wanted = wanted - basis @ (basis.T @ wanted)
    # The Gram matrix of the smaller side squares the singular values, which a cutoff far above the square root of the
    # unit roundoff allows.
    is_tall = wanted.shape[1] <= wanted.shape[0]
    values, vectors = np.linalg.eigh(wanted.T @ wanted if is_tall else wanted @ wanted.T)
    leading = vectors[:, values > max(cutoff**2 * float(values.max(initial=0.0)), floor)][:, -width:]
    return orthonormal_to(basis, (wanted @ leading if is_tall else leading)[:, ::-1])


def choose_directions(
    basis: str, before: Strips | None, width: int, seed: Sequence[int], path: str | None, matrices: Sequence[Strips]
) -> tuple[Float | str, int]:
    """Compute the dominant directions of several matrices (m, c), each scaled to unit norm, and their number.

    They are orthonormal, and orthogonal to the basis in a file, if there is one. Columns `before` are chosen already:
    they come first in the result, and count in its largest `width`. The result is written to a file if there is a path.
    """
    chosen = [] if before is None else [before.array()]
    v = load_array(basis) if basis else np.zeros((matrices[0].rows, 0))
    # Columns chosen already count as part of the basis, so that the new ones are orthogonal to them too.
    v = np.concatenate([v, *chosen], axis=1) if chosen else v
    # Unit norm for each matrix: all open points count the same, whatever the size of their errors.
    sizes = [(x, float(np.linalg.norm(x))) for x in (matrix.array() for matrix in matrices)]
    # A point that is solved exactly has no direction to add.
    scaled = [x / size for x, size in sizes if size]
    if scaled:
        room, rng = width - sum(block.shape[1] for block in chosen), np.random.default_rng(seed)
        # One thread: QR is a chain of small products, at each of which threads would wait for one another.
        with pinned_blas(1):
            chosen.append(dominant_block(v, np.concatenate(scaled, axis=1), room, 1e-6, rng))
    block = np.concatenate([*chosen, v[:, :0]], axis=1)
    return keep(block, path), block.shape[1]


# --- the next block ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Growth:
    """Chooses blocks of at most `width` new basis vectors; `step` is the factor by which ridges are rounded."""

    spaces: Sequence[TrainingSubspace]
    points: Sequence[Point]
    width: int
    step: float

    def first_blocks(self, number: int, *, preconditioned: bool) -> list[Strips]:
        """The solutions for uniform weights at some ridges; without preconditioners the targets themselves."""
        wanted: dict[tuple[int, int, float], Unsolved] = {}
        for point in self.points:
            # At the equal weights of the set, K(β) is `scale` times the sum of all kernels.
            space = self.spaces[point.space]
            n_kernels = space.n_kernels if point.kernels is None else len(point.kernels)
            # Constraints may leave no weight but zero.
            scale = max(float(point.weights.start(n_kernels).mean()), 1e-12)
            rho = rough_ridge(point.lam, scale, self.step) if preconditioned else 0.0
            h = Strips.of(space.targets[point.target])
            wanted.setdefault((point.space, point.target, rho), Unsolved(point.space, 0, rho, h))
        items = list(wanted.values())
        directions = [item.columns for item in items]
        if preconditioned:
            solved = apply_preconditioners(self.spaces, items)
            directions = [x for x, _ in solved]
        # If the first blocks take several passes, an earlier run may have been killed between them: spaces that have a
        # basis keep it, and only the others get a first block.
        new = [f for f, space in enumerate(self.spaces) if not space.width]
        by_space = {f: [x for item, x in zip(items, directions, strict=True) if item.space == f] for f in new}
        return self._choose(number, by_space)

    def next_blocks(
        self, number: int, opened: Mapping[int, OpenPoint], more: Mapping[int, Sequence[Strips]]
    ) -> list[Strips]:
        """The dominant errors of the open points; where these do not fill a block, also `more` directions."""
        by_space = [of_space(self.points, opened, f).values() for f in range(len(self.spaces))]
        lacking = {f: [x for r in of_f for x in r.candidates] for f, of_f in enumerate(by_space)}
        blocks = self._choose(number, lacking)
        further: dict[int, Sequence[Strips]] = {}
        for f, (space, block) in enumerate(zip(self.spaces, blocks, strict=True)):
            width = self._room(space) - block.width
            if lacking[f] and width > 0 and space.preconditioners:
                further[f] = more.get(f, ())
            elif lacking[f] and width > 0:
                # Random combinations of the products with the newest basis vectors: the next block of a Krylov space.
                rng, newest = np.random.default_rng([number, f, 1]), np.eye(space.width)[:, -self.width :]
                picked = [newest[:, [u % newest.shape[1]]] for u in range(max(math.ceil(1.5 * width), newest.shape[1]))]
                further[f] = products(space, [(rng.standard_normal(space.n_kernels), column) for column in picked])
        return self._choose(number, further, blocks)

    def _room(self, space: TrainingSubspace) -> int:
        """Columns of the next block, at most as many as there are dimensions left."""
        return max(0, min(self.width, space.training.n_train - space.width))

    def _choose(
        self, number: int, candidates: Mapping[int, Sequence[Strips]], blocks: Sequence[Strips] | None = None
    ) -> list[Strips]:
        """Extend the block of each space, of no columns at first, by the dominant directions of its candidates."""
        chosen = [space.columns(0, 0) for space in self.spaces] if blocks is None else list(blocks)
        spaces = [f for f, matrices in candidates.items() if matrices and self._room(self.spaces[f])]
        work = []
        for f in spaces:
            space = self.spaces[f]
            basis, path = space.file("basis") if space.width else "", numbered(space.round_file(), 0)
            before = chosen[f] if chosen[f].width else None
            work.append(partial(choose_directions, basis, before, self._room(space), [number, f], path))
        new = tasks.run_checked("choose-directions", work, own=[candidates[f] for f in spaces])
        for f, (block, width) in zip(spaces, new, strict=True):
            # Blocks stay where the tasks made them: only their widths come back to this process.
            chosen[f] = Strips((block,), self.spaces[f].training.n_train, (0, width))
        return chosen


# --- the pass that extends the bases ----------------------------------------------------------------------------------

_DOUBLE = np.dtype(np.float64)


@dataclass(frozen=True, eq=False)
class _Factor:
    """A block of a basis that a pass multiplies."""

    space: TrainingSubspace
    block: Strips  # U, (m, b)
    columns: tuple[int, int]  # Its columns in the basis
    dtype: np.dtype[Any]  # The precision of the products
    probes: bool = False  # Whether the probes Z, (m, s), are multiplied too

    @property
    def multiplied(self) -> list[Strips]:
        """The block, and the probes if they are multiplied too."""
        return [self.block, *([Strips((self.space.probes,), self.block.rows, (0, PROBES))] if self.probes else [])]


def extend(
    spaces: Sequence[TrainingSubspace], blocks: Sequence[Strips], number: int, passed: Callable[[], None]
) -> None:
    """Extend each basis by its block, and repeat products in double precision where needed, in as few passes as fit."""
    factors = [factor for space, block in zip(spaces, blocks, strict=True) for factor in _factors(space, block)]
    for load in _loads(factors):
        new = {factor.space: factor.block for factor in load if factor.columns[0] == factor.space.width}
        growing = {factor.space: factor.space.width for factor in load}
        widths = growing | {space: space.width + block.width for space, block in new.items()}
        wider = [task for space in widths for task in space.widen_basis(new.get(space), number)]
        tasks.run_checked("widen-basis", wider)
        products = again(partial(_pass, load, number), "extend")
        made_of: dict[TrainingSubspace, list[tuple[Block, Made]]] = {}
        for factor, pair in sorted(zip(load, products, strict=True), key=lambda item: not item[1][0].single):
            made_of.setdefault(factor.space, []).append(pair)
        work, own = list[Any](), list[Any]()
        for space, width in widths.items():
            work += [space.widening(number, width), space.projecting(number)]
            own += [[made for _, made in made_of[space]], space.targets]
        tasks.run_checked("project", work, own=own)
        for space, width in widths.items():
            space.take(number, width, [block for block, _ in made_of[space]])
        number += 1
        passed()


def _factors(space: TrainingSubspace, block: Strips) -> list[_Factor]:
    factors = [
        _Factor(space, space.columns(*space.blocks[k].columns), space.blocks[k].columns, _DOUBLE)
        for k in space.hidden_by_rounding
    ]
    if block.width:
        columns, is_exact = (space.width, space.width + block.width), space.double or not space.blocks
        dtype = _DOUBLE if is_exact else space.training.whole.view.source.dtype
        factors.insert(0, _Factor(space, block, columns, dtype, probes=is_exact and not space.double))
    return factors


def _loads(factors: Sequence[_Factor]) -> list[list[_Factor]]:
    """Group blocks into passes: as many in one as a task has memory for."""
    loads: list[list[_Factor]] = []
    host = machine()
    for factor in factors:
        together = [*loads[-1], factor] if loads else [factor]
        if loads and sum(pass_bytes(*_columns(together), host).values()) <= host.task_bytes:
            loads[-1] = together
        else:
            loads.append([factor])
    return loads


def _columns(load: Sequence[_Factor]) -> tuple[list[Lens], list[Columns]]:
    """Views and shapes of the right-hand sides of a pass; a task of its own reads the vectors."""
    columns = []
    for number, factor in enumerate(load):
        shape = factor.block.rows, sum(part.width for part in factor.multiplied)
        columns.append(Columns(np.broadcast_to(0.0, shape), "each", None, factor.dtype, number))
    return [factor.space.training.whole for factor in load], columns


def _vectors(blocks: Sequence[Sequence[Strips]]) -> list[Array]:
    """Read the right-hand sides of a pass."""
    return [np.concatenate([part.array() for part in parts], axis=1) for parts in blocks]


def _pass(load: Sequence[_Factor], number: int) -> list[tuple[Block, Made]]:
    """Compute VᵀK_jU of each block; tasks write the products K_jU to files, where they stay."""
    slots_per_host, name = machine().slots_per_host, f"extend-pass-{number}"
    cross_bytes = sum(8 * f.space.n_kernels * f.columns[1] * f.block.width for f in load)
    stems = [factor.space.round_file(cross_bytes) for factor in load]
    keepings: dict[int, list[Keeping]] = {}

    def then(group: int, kernels: tuple[int, ...]) -> Last:
        pairs = zip(load, stems, strict=True)
        keepings[group] = [_keeping(factor, number, group, kernels, stem) for factor, stem in pairs]
        return partial(keep_products, keepings=keepings[group], kernels=kernels, tasks_per_machine=slots_per_host)

    # The products, n × rows × b, are by far the largest result. They stay where tasks compute them; only VᵀK_jU,
    # n × r × b, comes back.
    vectors = partial(_vectors, [factor.multiplied for factor in load])
    graph = pass_graph(*_columns(load), name, then=then, vectors=vectors)
    by_group: list[Any] = execute([results for _, results in graph.groups], graph.units, name)
    made = []
    for place, factor in enumerate(load):
        results = [of_group[place] for of_group in by_group]
        files = [(keepings[group][place], kernels) for group, (kernels, _) in enumerate(graph.groups)]
        if factor.probes:
            factor.space.probed = tuple((keeping.ahead.name, kernels) for keeping, kernels in files if keeping.ahead)
        hidden = None if results[0][1] is None else tuple(errors for _, errors in results)
        groups = tuple((keeping.path.name, kernels) for keeping, kernels in files)
        block = Block(factor.columns, groups, factor.dtype != _DOUBLE)
        made.append((block, (factor.columns, tuple(cross for cross, _ in results), hidden)))
    return made


def _keeping(factor: _Factor, number: int, group: int, kernels: tuple[int, ...], stem: str | None) -> Keeping:
    space, single = factor.space, factor.dtype != _DOUBLE
    double = [block for block in space.blocks if single and not block.single]
    return Keeping(
        space.folder / f"products-{number}-{factor.columns[0]}-{group}.npy",
        space.file("basis", number),
        factor.columns,
        space.probes,
        space.folder / f"probed-{number}-{group}.npy" if factor.probes else None,
        ProductFiles(space.folder, (space.probed,)).of(kernels) if single else None,
        tuple((b.columns, ProductFiles(space.folder, (b.groups,)).of(kernels)) for b in double),
        None if stem is None else f"{stem}-{group}",
    )
