"""New basis vectors: the dominant directions of the errors of open points."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import scipy.linalg

from dmkl.arrays import Array, Float
from dmkl.files.arrays import load_array
from dmkl.passes.blas import pinned_blas
from dmkl.solvers.fisher.subspace.certify import OpenPoint, products
from dmkl.solvers.fisher.subspace.preconditioners import rough_ridge
from dmkl.solvers.fisher.subspace.problem import Point, of_space
from dmkl.solvers.fisher.subspace.space import TrainingSubspace, Unsolved, apply_preconditioners
from dmkl.solvers.fisher.subspace.tasks import Strips, keep, numbered
from dmkl.solvers.requests import Solver, Tasks

__all__ = ["Growth", "choose_directions", "dominant_block", "orthonormal_to"]

# --- dominant directions -------------------------------------------------------------------------------------------


_SKETCH = 4
"""X with more than this many times the wanted columns is replaced by random combinations of its columns, twice as many
as are wanted: an SVD of X would cost more than a pass, and the range of the combinations is as good."""


def orthonormal_to(basis: Array, block: Array) -> Array:
    """An orthonormal basis of the part of the span of `block` outside the span of `basis`, in the precision of both.

    Classical Gram-Schmidt in blocks, twice with a Householder QR in between: the first round leaves an error of the
    order of unit roundoff times the cancellation, the second removes it (Giraud, Langou, Rozložník, van den Eshof,
    Numer. Math. 101, 2005). Columns that are inside the span of the basis to the precision are dropped, as what is
    left of them would be rounding.

    Parameters
    ----------
    basis
        (m, r), orthonormal.
    block
        (m, b)

    Returns
    -------
    ndarray
        (m, at most b)
    """
    unit = float(np.finfo(block.dtype).eps)
    sizes = np.linalg.norm(block, axis=0)
    rest = block[:, sizes > 0] / sizes[sizes > 0]
    if not rest.size:
        return np.asarray(rest)
    for _ in range(2):
        rest = rest - basis @ (basis.T @ rest)
        # Pivoting moves columns that depend on others to the end, where they are dropped.
        # One thread: QR is a chain of small products, at each of which threads would wait for one another.
        with pinned_blas(1):
            rest, upper, _ = scipy.linalg.qr(rest, mode="economic", pivoting=True, check_finite=False)
        pivots = np.abs(np.diag(upper))
        rest = rest[:, pivots > 1e3 * unit * np.sqrt(len(basis))]
    return np.asarray(rest - basis @ (basis.T @ rest))


def dominant_block(basis: Array, wanted: Array, width: int, cutoff: float, rng: np.random.Generator) -> Array:
    """The leading left singular vectors of (I − VVᵀ)X, at most `width`: orthonormal and orthogonal to the basis.

    Parameters
    ----------
    basis
        V, (m, r), orthonormal.
    wanted
        X, (m, k), its columns scaled by how much each matters.
    width
        Most columns of the result.
    cutoff
        Singular values below this share of the largest are left out.
    rng
        For the sketch of an X of very many columns.
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
    if wanted.shape[1] <= wanted.shape[0]:
        values, vectors = _eigh(wanted.T @ wanted)
        keep = values > max(cutoff**2 * float(values.max(initial=0.0)), floor)
        leading = wanted @ vectors[:, keep][:, -width:]
    else:
        values, vectors = _eigh(wanted @ wanted.T)
        keep = values > max(cutoff**2 * float(values.max(initial=0.0)), floor)
        leading = vectors[:, keep][:, -width:]
    return orthonormal_to(basis, leading[:, ::-1])


def choose_directions(
    basis: str,
    before: Strips | None,
    width: int,
    seed: Sequence[int],
    path: str | None,
    matrices: Sequence[Strips],
) -> tuple[Float | str, int]:
    """Compute the dominant directions of several matrices, each scaled to unit norm; return them and their number.

    The directions are orthonormal, and orthogonal to a basis.

    Parameters
    ----------
    basis
        The file of V; empty if there is no basis yet.
    before
        Columns that are chosen already, which come first in the result.
    width
        Most columns, including `before`.
    seed
        Seed of the sketch.
    path
        The file for the directions; None if they are returned.
    matrices
        X, each (m, c).
    """
    chosen = [] if before is None else [before.array()]
    v = load_array(basis) if basis else np.zeros((matrices[0].rows, 0))
    v = np.concatenate([v, *chosen], axis=1) if chosen else v
    # Unit norm for each matrix: all open points count the same, whatever the size of their errors.
    sizes = [(x, float(np.linalg.norm(x))) for x in (matrix.array() for matrix in matrices)]
    scaled = [x / size for x, size in sizes if size]
    with pinned_blas(1):
        if scaled:
            room = width - sum(block.shape[1] for block in chosen)
            rng = np.random.default_rng(seed)
            chosen.append(dominant_block(v, np.concatenate(scaled, axis=1), room, 1e-6, rng))
    block = np.concatenate([*chosen, v[:, :0]], axis=1)
    return keep(block, path), block.shape[1]


def _eigh(gram: Array) -> tuple[Array, Array]:
    with pinned_blas(1):
        values, vectors = np.linalg.eigh(gram)
    return values, vectors


# --- the next block ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Growth:
    """Chooses blocks of new basis vectors, orthonormal and orthogonal to the bases.

    Parameters
    ----------
    spaces, points
        The subspaces, and all points.
    width
        Most columns of a block.
    step
        The factor by which ridges are rounded (see `preconditioners`).
    """

    spaces: Sequence[TrainingSubspace]
    points: Sequence[Point]
    width: int
    step: float

    def first_blocks(self, number: int, *, preconditioned: bool) -> Solver[list[Strips]]:
        """The solutions for uniform weights at some ridges; without preconditioners the targets themselves.

        Parameters
        ----------
        number
            The number of the round, which seeds random numbers.
        preconditioned
            Whether every space has a preconditioner, the first of which has uniform reference weights.
        """
        wanted: dict[tuple[int, int, float], Unsolved] = {}
        for point in self.points:
            # At the equal weights of the set, K(β) is `scale` times the sum of all kernels.
            space = self.spaces[point.space]
            n_kernels = space.n_kernels if point.kernels is None else len(point.kernels)
            scale = float(point.weights.start(n_kernels).mean())
            rho = rough_ridge(point.lam, scale, self.step) if preconditioned else 0.0
            h = Strips.of(space.targets[point.target])
            wanted.setdefault((point.space, point.target, rho), Unsolved(point.space, 0, rho, h))
        items = list(wanted.values())
        directions = [item.columns for item in items]
        if preconditioned:
            solved = yield from apply_preconditioners(self.spaces, items)
            directions = [x for x, _ in solved]
        # If the first blocks take several passes, an earlier run may have been killed between them.
        new = [f for f, space in enumerate(self.spaces) if not space.width]
        by_space = {f: [x for item, x in zip(items, directions, strict=True) if item.space == f] for f in new}
        return (yield from self._choose(number, by_space, {}))

    def next_blocks(
        self, number: int, opened: Mapping[int, OpenPoint], more: Mapping[int, Sequence[Strips]]
    ) -> Solver[list[Strips]]:
        """The dominant errors of the open points, and further directions if these do not fill a block.

        Parameters
        ----------
        number
            The number of the round.
        opened
            The open points.
        more
            Further directions of each space from its preconditioners.
        """
        lacking = {f: [r.wanted for r in of_space(self.points, opened, f).values()] for f in range(len(self.spaces))}
        blocks = yield from self._choose(number, lacking, {})
        short = [f for f, block in enumerate(blocks) if lacking[f] and block.width < self._room(self.spaces[f])]
        further: dict[int, Sequence[Strips]] = {}
        for f in short:
            if self.spaces[f].preconditioners:
                further[f] = more.get(f, ())
            else:
                further[f] = yield from self._newest(number, f, blocks[f].width)
        before = {f: blocks[f] for f in short if blocks[f].width}
        return (yield from self._choose(number, further, before, blocks))

    def _room(self, space: TrainingSubspace) -> int:
        """Columns of the next block, at most as many as there are dimensions left."""
        return max(0, min(self.width, space.training.n_train - space.width))

    def _choose(
        self,
        number: int,
        candidates: Mapping[int, Sequence[Strips]],
        before: Mapping[int, Strips],
        blocks: Sequence[Strips] | None = None,
    ) -> Solver[list[Strips]]:
        """Choose for each space a block of the dominant directions of its candidates, after the columns `before`.

        A space without candidates or without room keeps its block of `blocks`, or gets one of no columns.
        """
        chosen = [space.columns(0, 0) for space in self.spaces] if blocks is None else list(blocks)
        spaces = [f for f, matrices in candidates.items() if matrices and self._room(self.spaces[f])]
        work = [self._choosing(number, f, before.get(f)) for f in spaces]
        new = yield Tasks("choose-directions", work, own=[candidates[f] for f in spaces])
        for f, (block, width) in zip(spaces, new, strict=True):
            chosen[f] = Strips((block,), self.spaces[f].training.n_train, (0, width))
        return chosen

    def _choosing(self, number: int, f: int, before: Strips | None) -> partial[tuple[Float | str, int]]:
        space = self.spaces[f]
        basis, path = space.file("basis") if space.width else "", numbered(space.round_file(), 0)
        return partial(choose_directions, basis, before, self._room(space), [number, f], path)

    def _newest(self, number: int, f: int, n_chosen: int) -> Solver[list[Strips]]:
        """Random combinations of the products with the newest basis vectors: the next block of a Krylov space.

        As many as fill a block of which `n_chosen` columns are chosen already. Preconditioners give better directions.
        """
        space = self.spaces[f]
        rng, width = np.random.default_rng([number, f, 1]), self._room(space) - n_chosen
        newest = np.eye(space.width)[:, -min(self.width, space.width) :]
        picked = [newest[:, [u % newest.shape[1]]] for u in range(max(math.ceil(1.5 * width), newest.shape[1]))]
        return (yield from products(space, [(rng.standard_normal(space.n_kernels), column) for column in picked]))
