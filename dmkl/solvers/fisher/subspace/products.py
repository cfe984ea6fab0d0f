"""Products with the basis of a subspace that are at hand: no pass is taken.

Tasks read the K_jV, each once for all that is asked, and residuals and products stay where they are made.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from dmkl.arrays import Float
from dmkl.numerics.fisher import Support
from dmkl.passes.execute import machine
from dmkl.solvers.fisher.subspace.rounding import Rounding, rounding_of
from dmkl.solvers.fisher.subspace.space import Subspace
from dmkl.solvers.fisher.subspace.strips import Strips, numbered
from dmkl.solvers.fisher.subspace.tasks import combined_products, residual_strip
from dmkl.solvers.running import run_tasks

__all__ = ["products", "residual_strips", "scores", "what_rounding_hides"]

_STRIPS, _STRIP_ROWS, _STRIP_BYTES = 16, 192, 2**25
"""Tasks that products at hand are combined in, and the memory of each. Strips of fewer rows take longer to open than to
multiply: each reads all kernels."""


def scores(space: Subspace, pairs: Sequence[tuple[Float, Float]]) -> list[Float]:
    """Σ_j w_j K_j V Z over the held-out rows, for pairs of weights w (n,) and coefficients Z (r, c).

    No pass: the K_jV are at hand, and read once for all pairs.
    """
    if not pairs:
        return []
    first, last = space.training.n_train, space.training.n_rows
    found = _combined(space, "scores", pairs, _strips(first, last, pairs), None)
    whole = np.concatenate(found) if found else np.zeros((0, sum(z.shape[1] for _, z in pairs)))
    return np.split(whole, _ends(pairs)[:-1], axis=1)


def products(space: Subspace, pairs: Sequence[tuple[Float, Float]]) -> list[Strips]:
    """Σ_j w_j K_j V Z over the training rows, (m, c) of each pair."""
    if not pairs:
        return []
    m = space.training.n_train
    found = _combined(space, "residuals", pairs, _strips(0, m, pairs), space.round_file())
    whole, ends = Strips(tuple(found), m, (0, _ends(pairs)[-1])), [0, *_ends(pairs)]
    return [whole.part(first, last) for first, last in pairwise(ends)]


def _combined(
    space: Subspace, what: str, pairs: Sequence[tuple[Float, Float]], strips: Sequence[slice], kept: str | None
) -> list[Any]:
    slots, files = machine().slots_per_host, space.product_files
    work = [
        partial(combined_products, files, rows, numbered(kept, k), tasks_per_machine=slots)
        for k, rows in enumerate(strips)
    ]
    return run_tasks(what, work, *_side_by_side(pairs))


def residual_strips(
    space: Subspace, pairs: Sequence[tuple[Float, Float]], lams: Sequence[float], targets: Sequence[int]
) -> list[tuple[Strips, float]]:
    """R = H − ½α − (1/2λ)K(β)α and ‖R‖² for pairs of β (n,) and a (r, c), at α = V a, of these targets."""
    if not pairs:
        return []
    slots, files, kept = machine().slots_per_host, space.product_files, space.round_file()
    strips = _strips(0, space.training.n_train, pairs)
    work = [
        partial(residual_strip, files, rows, numbered(kept, k), space.file("basis"), tasks_per_machine=slots)
        for k, rows in enumerate(strips)
    ]
    h, starts = np.concatenate(space.targets, axis=1), np.cumsum([0, *(h.shape[1] for h in space.targets)])
    chosen = np.concatenate([np.arange(starts[t], starts[t + 1]) for t in targets])
    ridges = np.repeat(lams, [z.shape[1] for _, z in pairs])
    own = [h[rows] for rows in strips]
    found = run_tasks("residuals", work, *_side_by_side(pairs), ridges, chosen, own=own)
    whole = Strips(tuple(part for part, _ in found), len(h), (0, len(chosen)))
    squares = np.sum([sums for _, sums in found], axis=0)
    cuts = list(pairwise([0, *_ends(pairs)]))
    return [(whole.part(first, last), float(squares[first:last].sum())) for first, last in cuts]


def what_rounding_hides(
    space: Subspace, pairs: Sequence[tuple[Float, Float]], lams: Sequence[float], sets: Sequence[Support]
) -> list[Rounding]:
    """What rounding may hide of points with these pairs of β and a."""
    if not space.single_blocks or not pairs:
        return [Rounding(0.0, 0.0) for _ in pairs]
    work = partial(rounding_of, space.file("errors"), space.single_blocks)
    found: list[Rounding] = run_tasks("bound-rounding", [work], own=[(pairs, lams, sets)])[0]
    return found


def _strips(first: int, last: int, pairs: Sequence[tuple[Float, Float]]) -> list[slice]:
    """Rows cut by the data alone, as BLAS rounds strips of another height otherwise.

    A strip's result and one kernel's rows of V and of the result stay within some megabytes.
    """
    sides = len(pairs[0][1]) + _ends(pairs)[-1]
    side = max(_STRIP_ROWS, math.ceil((last - first) / _STRIPS))
    side = max(64, min(2048, side, _STRIP_BYTES // (32 * sides)))
    return [slice(start, min(start + side, last)) for start in range(first, last, side)]


def _side_by_side(pairs: Sequence[tuple[Float, Float]]) -> tuple[Float, Float]:
    """Weights (n, k) and coefficients (r, k) of all columns of some pairs."""
    weights = np.concatenate([np.repeat(w[:, None], z.shape[1], axis=1) for w, z in pairs], axis=1)
    return weights, np.concatenate([z for _, z in pairs], axis=1)


def _ends(pairs: Sequence[tuple[Float, Float]]) -> list[int]:
    """Where the columns of each pair end."""
    return [int(end) for end in np.cumsum([z.shape[1] for _, z in pairs])]
