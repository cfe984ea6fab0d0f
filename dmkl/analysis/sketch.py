"""The pass over random vectors and labels: every product of a kernel is reduced to a few numbers where it was made."""

from __future__ import annotations

import itertools
import uuid
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
from dask.delayed import delayed

from dmkl import settings
from dmkl.analysis.spectrum import nystrom_eigenvalues
from dmkl.arrays import Array, Float
from dmkl.passes.alignment import rounding
from dmkl.passes.execute import again, execute, send_all
from dmkl.passes.run import alone, pass_graph, run_pass
from dmkl.passes.sweep import Columns
from dmkl.passes.view import Lens

__all__ = ["Sketch", "sketch_pass"]

_DOUBLE = np.dtype(np.float64)
_COUNTER = itertools.count(1)


@dataclass(frozen=True)
class Sketch:
    """Products of each kernel with random vectors Z (m, b) and further columns f, reduced to a few numbers."""

    projections: Float  # zᵀK_jZ, (n, b, b)
    eigenvalues: Float  # λ̂ of Nyström's approximation from K_jZ, (n, b)
    forms: Float  # fᵀK_jf, (n, columns)
    n_passes: int  # passes that it took


def sketch_pass(lens: Lens, probes: Float, columns: Float) -> Sketch:
    """Multiply every kernel by random vectors, (m, b), and further columns, (m, columns): one pass, run now.

    Columns beyond the setting ``dmkl.block-width`` ride further passes.
    """
    width = settings.block_width()
    room = max(width - probes.shape[1], 0)
    projections, eigenvalues, forms = again(lambda: _first(lens, probes, columns[:, :room]), "sketch")
    more = [forms]
    for start in range(room, columns.shape[1], width):
        rest = columns[:, start : start + width]
        (products,), _ = run_pass([lens], [Columns(rest, "project", None, _DOUBLE)], "project")
        more.append(np.einsum("naa->na", products))
    return Sketch(projections, eigenvalues, np.concatenate(more, axis=1), len(more))


def _first(lens: Lens, probes: Float, columns: Float) -> tuple[Float, Float, Float]:
    name, token = f"sketch-pass-{next(_COUNTER)}", uuid.uuid4().hex
    block = np.concatenate([probes, columns], axis=1)
    graph = pass_graph([lens], [Columns(block, "each", None, _DOUBLE)], name, then=alone)
    held = send_all({f"{name}-block-{token}": block, f"{name}-rounding-{token}": rounding(lens)})
    resolution = float(np.finfo(lens.view.source.dtype).eps)
    # Where a kernel's product was put together: all of them in one place would be n times the block.
    parts = [
        delayed(_reduce, pure=False)(
            products,
            *held,
            resolution,
            kernels[0],
            probes.shape[1],
            dask_key_name=f"{name}-reduce-{kernels[0]}-{token}",
        )
        for kernels, products in graph.groups
    ]
    found = execute(parts, graph.units, name)
    projections, eigenvalues, forms = (np.concatenate(pieces) for pieces in zip(*found, strict=True))
    return projections, eigenvalues, forms


def _reduce(
    products: Array, block: Float, rounding: Float, resolution: float, start: int, b: int
) -> tuple[Float, Float, Float]:
    """The projections, eigenvalues and forms of some kernels, the first of which is the one at `start`."""
    probes, columns, m = block[:, :b], block[:, b:], len(block)
    factors: Any = scipy.linalg.qr(probes, mode="economic", pivoting=True)
    basis, triangle, order = factors
    # Few samples have few vectors of signs, and some may be the same.
    diagonal = np.abs(triangle.diagonal())
    rank = np.count_nonzero(diagonal > 1e-8 * diagonal[0])
    projections, forms = [], []
    eigenvalues = np.zeros((len(products), b))
    for place, product in enumerate(products):
        sketched = product[:, :b]
        projections.append(probes.T @ sketched)
        forms.append(np.einsum("mc,mc->c", columns, product[:, b:]))
        # KQ = (KZ)R⁻¹, on the columns that pivoting has put first.
        turned = scipy.linalg.solve_triangular(triangle[:rank, :rank], sketched[:, order[:rank]].T, trans="T").T
        # E ‖KQ‖_F² = (b/m)‖K‖_F², and rounding each entry of K adds no more than its resolution times ‖K‖_F.
        norm = np.linalg.norm(turned) * np.sqrt(m / rank)
        noise = float(resolution * norm + np.sqrt(m) * rounding[start + place])
        eigenvalues[place, :rank] = nystrom_eigenvalues(basis[:, :rank], turned, noise)
    return np.array(projections), eigenvalues, np.array(forms)
