"""Weighted sums of all kernels as matrices: factorized in memory (the direct α-step), or kept on disk.

One pass adds up the kernels tile by tile, in tasks that take some tiles each. For a factor one central task puts the
tiles together, centers the sum and factorizes A = ½(I + K(β)/λ).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from dask.delayed import delayed

from dmkl.arrays import Array, Float, Index
from dmkl.files.arrays import read_array, save_array
from dmkl.numerics.triangle import Factor, RoughFactor
from dmkl.passes.blas import factor_threads, pinned_blas
from dmkl.passes.execute import active_client, again, execute
from dmkl.passes.sending import send_all
from dmkl.passes.sums import Combination, Share, SumPlan, SumTile, add_tiles, put_together, sum_order
from dmkl.passes.view import Lens, TileTask, View

__all__ = [
    "FactorHandle",
    "StoredSum",
    "combine_pass",
    "diagonals_of_inverses",
    "direct_bytes",
    "factor_pass",
    "inverse_diagonals_pass",
    "solve_by_factors",
]


_PANEL = 256
"""Columns whose squares are added up at once."""


# --- factors in memory -------------------------------------------------------------------------------------------


def direct_bytes(view: View, n_systems: int) -> int:
    """Bytes that one process holds at the height of the direct α-step for `n_systems` weightings at once."""
    m, base = view.shape[1], len(view.rows)
    # The matrix, and the tiles of its upper half: a good half of it, diagonal tiles being whole. Where the steps take
    # some of the rows after centering, both its halves are made once more, and what is taken comes on top.
    tiles = 0.5 * base * (base + view.source.tiling.tile)
    taking = 2 * base * base + m * m if view.takes_samples else 0
    return int(8 * n_systems * (tiles + base * base + taking))


@dataclass(eq=False)
class FactorHandle:
    """A factor where it lies: in this process, or, as a future, on the worker that made it.

    A worker that leaves takes its factors along, and Dask has forgotten the pass that led to them: the handle keeps
    what that pass needs, and `held` is then what it makes again.
    """

    held: Any
    lens: Lens
    combination: Combination
    lam: float


def solve_by_factors(factors: Sequence[FactorHandle], blocks: Sequence[Float]) -> list[Float]:
    """A⁻¹B of each factor for its B (m, c)."""
    return _by_factors("solve", Factor.solve, factors, blocks)


def diagonals_of_inverses(factors: Sequence[FactorHandle]) -> list[Float]:
    """The diagonal of A⁻¹ of each factor, (m,)."""
    return _by_factors("diagonal", Factor.inverse_diagonal, factors)


def _by_factors(
    name: str, function: Callable[..., Float], factors: Sequence[FactorHandle], *blocks: Sequence[Float]
) -> list[Float]:
    """What a function of each factor and its blocks returns: on a cluster where the factors lie, all at once."""
    client = active_client()
    if client is None:
        return [_pinned(function, factor.held, *own) for factor, *own in zip(factors, *blocks, strict=True)]

    def run() -> list[Float]:
        lost = [factor for factor in factors if factor.held.status != "finished"]
        for factor, made in zip(lost, _made_again(lost), strict=True):
            factor.held = made.held
        sent = [send_all({f"{name}-{k}": b for k, b in enumerate(some)}, broadcast=False) for some in blocks]
        found = [
            client.submit(_pinned, function, factor.held, *own, pure=False, key=f"alpha-{name}-{uuid.uuid4().hex}")
            for factor, *own in zip(factors, *sent, strict=True)
        ]
        return list(client.gather(found))

    return again(run, f"alpha-{name}")


def _made_again(lost: Sequence[FactorHandle]) -> list[FactorHandle]:
    """Factors that went with their workers, by one more pass for all of them."""
    if not lost:
        return []
    combinations = [replace(factor.combination, lens=number) for number, factor in enumerate(lost)]
    return factor_pass([factor.lens for factor in lost], combinations, [factor.lam for factor in lost])


def _pinned(function: Callable[..., Float], factor: Factor, *blocks: Float) -> Float:
    with pinned_blas(factor_threads(factor.size)):
        return function(factor, *blocks)


def factor_pass(
    lenses: Sequence[Lens], combinations: Sequence[Combination], lams: Sequence[float]
) -> list[FactorHandle]:
    """Factorize A for several weightings at once, each through one of the lenses and with its λ: one pass.

    The lenses are square views of the same kernels. IndefiniteKernelError if one of them is not positive definite.
    """
    made = _of_sums(_factor, "cholesky", lenses, combinations, lams, keep=True)
    return [FactorHandle(held, lenses[c.lens], c, lam) for held, c, lam in zip(made, combinations, lams, strict=True)]


def inverse_diagonals_pass(
    lenses: Sequence[Lens], combinations: Sequence[Combination], lams: Sequence[tuple[float, ...]], *, single: bool
) -> list[Float]:
    """The diagonal of A⁻¹ − 2P at some λ of each combination, (λ, m): one pass, and no factor is kept.

    P is the projection onto the vectors that the steps project out of the kernels (`Fitted.null_vectors`), on which
    A⁻¹ = 2I. In single precision where `single`. Where rounding leaves A indefinite a multiple of the identity is
    added to it.
    """
    function = partial(_inverse_diagonals, np.float32 if single else np.float64)
    return list(_of_sums(function, "inverse-diagonal", lenses, combinations, lams, keep=False))


def _of_sums(
    function: Callable[..., Any],
    name: str,
    lenses: Sequence[Lens],
    combinations: Sequence[Combination],
    arguments: Sequence[Any],
    *,
    keep: bool,
) -> list[Any]:
    """What a function makes of each combination and its argument: one pass, and a central task for each combination."""

    def run() -> list[Any]:
        plan = SumPlan.of(lenses, combinations)
        tasks = plan.tasks(_sum_tiles)
        parts = [part for part, _ in tasks]
        wanted = list(enumerate(zip(combinations, arguments, strict=True)))
        threads = max(factor_threads(plan.lenses[c.lens].view.shape[1]) for c in combinations)
        if active_client() is None and threads > 1:  # one after another, each on all cores
            found = execute(parts, tasks, plan.name)
            return [function(found, number, plan.lenses, c.lens, argument) for number, (c, argument) in wanted]
        task = delayed(function, pure=False)
        results = [
            task(parts, number, plan.sent[0], c.lens, argument, dask_key_name=f"{name}-{number}-{plan.token}")
            for number, (c, argument) in wanted
        ]
        return list(execute(results, tasks, plan.name, keep=keep))

    return list(again(run, "combine"))


def _sum_tiles(
    lenses: Sequence[Lens], combinations: Sequence[Combination], tiles: tuple[TileTask, ...], share: Share
) -> list[list[SumTile]]:
    """For each combination its tiles that one task adds up."""
    found = [totals for _, totals in add_tiles(lenses, combinations, tiles, share)]
    return [[totals[number] for totals in found] for number in range(len(combinations))]


def _factor(parts: list[list[list[SumTile]]], number: int, lenses: Sequence[Lens], lens: int, lam: float) -> Factor:
    """Put the tiles of one combination together and factorize: the one central task of the direct α-step."""
    with pinned_blas(factor_threads(lenses[lens].view.shape[1])):
        total = put_together((tile for part in parts for tile in part[number]), lenses[lens])
        return Factor(total.entries, lam, total.order)


def _inverse_diagonals(
    dtype: npt.DTypeLike,
    parts: list[list[list[SumTile]]],
    number: int,
    lenses: Sequence[Lens],
    lens: int,
    lams: tuple[float, ...],
) -> Float:
    with pinned_blas(factor_threads(lenses[lens].view.shape[1])):
        total = put_together((tile for part in parts for tile in part[number]), lenses[lens], dtype)
        lower, order = total.entries, total.order
        samples = slice(None) if order is None else order
        own = np.empty((2, len(lower)))
        own[:, samples] = np.diagonal(lower), _row_squares(lower)
        size, null, projected = own[0].sum(), lenses[lens].fitted.null_vectors(len(lower)), np.zeros(len(lower))
        if null is not None:
            # Rounding leaves KN = 0 to a few ε‖K‖, which is as large as a small λ. So P is added to K on the scale of
            # K, and 2P/(1 + tr K/λ), which it leaves in the inverse, is subtracted.
            q = np.linalg.qr(null)[0]
            projected = np.einsum("mk,mk->m", q, q)
            lower += size * (q[samples].astype(dtype) @ q[samples].T.astype(dtype))

        def matrix() -> tuple[Array, Index | None]:
            return lower.copy(order="F"), order

        def at(lam: float) -> Float:
            if lower.dtype == np.float32 and lam >= size:
                # 1 − ½(A⁻¹)_ii = K_ii/λ − (K²)_ii/λ² + … is lost in the rounding of A⁻¹; the fraction has these terms.
                return np.asarray(2.0 - 2.0 * projected - 2.0 * own[0] / (lam + own[1] / own[0]))
            inverse = RoughFactor.of(matrix, lam).inverse_diagonal()
            return np.asarray(inverse - 2.0 * projected / (1.0 + size / lam))

        return np.stack([at(lam) for lam in lams])


def _row_squares(lower: Array) -> Float:
    """Σ_k K_ik² of each row of a symmetric matrix whose lower triangle is right, (m,)."""
    squares = np.zeros(len(lower))
    for start in range(0, len(lower), _PANEL):
        panel = np.tril(lower[start:, start : start + _PANEL]).astype(np.float64) ** 2
        squares[start:] += panel.sum(axis=1)
        squares[start : start + panel.shape[1]] += panel.sum(axis=0)
    return np.asarray(squares - np.diagonal(lower).astype(np.float64) ** 2)


# --- sums kept on disk -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StoredSum:
    """A combination that a pass has written to disk, tile by tile: larger together than the memory of a worker."""

    stem: str
    """Of its files: ``<stem>-<tile row>-<tile column>.npy``."""
    tiles: tuple[tuple[int, int], ...]
    """Which tiles there are."""
    lens: Lens
    """What it was seen through."""

    def matrix(self, dtype: npt.DTypeLike = np.float64) -> tuple[Array, Index | None]:
        """K(β), of which the lower triangle is right, and the position of each of its rows among the samples."""
        total = put_together(self.read(), self.lens, dtype)
        return total.entries, total.order

    def whole(self) -> Float:
        """K(β) over the samples of the view in their order, (m, m), both triangles."""
        return put_together(self.read(), self.lens).whole()

    def read(self) -> Iterator[SumTile]:
        """The tiles, before the steps where the chain is left to the whole sum; each is gone when the next is taken."""
        order, entries = sum_order(self.lens), np.empty(0)
        for i, j in self.tiles:
            entries = read_array(_tile_file(self.stem, i, j), entries)
            yield SumTile(order.run(i), order.run(j), entries)


def _tile_file(stem: str, i: int, j: int) -> str:
    return f"{stem}-{i}-{j}.npy"


def combine_pass(lenses: Sequence[Lens], combinations: Sequence[Combination], stems: Sequence[str]) -> list[StoredSum]:
    """Add up several combinations and write them to disk: one pass, and a tile of each in memory.

    The lenses are square views of the same kernels; the stems say where each combination goes, in a folder that all
    workers see (see `StoredSum`).
    """

    def run() -> SumPlan:
        plan = SumPlan.of(lenses, combinations)
        tasks = plan.tasks(_write_tiles, list(stems))
        execute([task for task, _ in tasks], tasks, plan.name)
        return plan

    plan = again(run, "combine")
    tiles = tuple((tile.i, tile.j) for _, some, _ in plan.cuts for tile in some)
    return [StoredSum(stem, tiles, plan.lenses[c.lens]) for c, stem in zip(combinations, stems, strict=True)]


def _write_tiles(
    lenses: Sequence[Lens],
    combinations: Sequence[Combination],
    tiles: tuple[TileTask, ...],
    share: Share,
    stems: Sequence[str],
) -> None:
    for tile, totals in add_tiles(lenses, combinations, tiles, share):
        for stem, total in zip(stems, totals, strict=True):
            save_array(_tile_file(stem, tile.i, tile.j), total.entries)
