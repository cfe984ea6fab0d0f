"""Leading eigenvalues of kernels from one pass with random vectors, and their bounds.

With an orthonormal block Q and W = KQ, Nyström's approximation K̂ = W(QᵀW)⁻¹Wᵀ has 0 ⪯ K̂ ⪯ K (Tropp, Yurtsever, Udell,
Cevher, Fixed-rank approximation of a positive-semidefinite matrix from streaming data, NeurIPS 2017). So each of its
eigenvalues λ̂_i is at most λ_i, and trace and norm of K bound the difference:

    Σ_{l=j..i} λ_l ≤ Σ_{l=j..i} λ̂_l + (tr K − Σ_l λ̂_l)             since no other λ_l − λ̂_l is negative,
    Σ_{l=j..i} λ_l² ≤ Σ_{l=j..i} λ̂_l² + (‖K‖_F² − Σ_l λ̂_l²)        likewise,

for every j ≤ i, and λ_i, the smallest of these λ_l, is at most their mean. The second is sharp for eigenvalues above a
long flat spectrum, the first for kernels of low rank.
"""

from __future__ import annotations

import itertools
import uuid
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
from dask.delayed import delayed

from dmkl import settings
from dmkl.arrays import Array, Float
from dmkl.passes.alignment import rounding
from dmkl.passes.execute import again, execute, send_all
from dmkl.passes.run import alone, pass_graph, run_pass
from dmkl.passes.sweep import Columns
from dmkl.passes.view import Lens

_DOUBLE = np.dtype(np.float64)
_COUNTER = itertools.count(1)


# --- the pass --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sketch:
    """Statistics of the products of each kernel with random vectors Z (m, b) and further columns f."""

    projections: Float  # zᵀK_jZ, (n, b, b)
    eigenvalues: Float  # λ̂ of Nyström's approximation from K_jZ, (n, b)
    forms: Float  # fᵀK_jf, (n, columns)
    energies: Float  # (uᵀf)² for the eigenvectors u of Nyström's approximation, (n, b, columns)
    n_passes: int  # number of passes


def sketch_pass(lens: Lens, probes: Float, columns: Float) -> Sketch:
    """Multiply every kernel by random vectors, (m, b), and further columns, (m, columns): one pass, run now.

    Columns beyond the setting ``dmkl.block-width`` take further passes.
    """
    width = settings.block_width()
    room = max(width - probes.shape[1], 0)
    projections, eigenvalues, forms, energies = again(lambda: _first_pass(lens, probes, columns, room), "sketch")
    more = [forms]
    for start in range(room, columns.shape[1], width):
        rest = columns[:, start : start + width]
        (products,), _ = run_pass([lens], [Columns(rest, "project", None, _DOUBLE)], "project")
        more.append(np.einsum("naa->na", products))
    return Sketch(projections, eigenvalues, np.concatenate(more, axis=1), energies, len(more))


def _first_pass(lens: Lens, probes: Float, columns: Float, room: int) -> list[Float]:
    name, token = f"sketch-pass-{next(_COUNTER)}", uuid.uuid4().hex
    block = np.concatenate([probes, columns], axis=1)
    width = probes.shape[1] + min(room, columns.shape[1])
    graph = pass_graph([lens], [Columns(block[:, :width], "each", None, _DOUBLE)], name, token, then=alone)
    shared = send_all({f"{name}-block-{token}": block, f"{name}-rounding-{token}": rounding(lens)})
    resolution = float(np.finfo(lens.view.source.dtype).eps)
    # On the worker with a kernel's product: all products on one worker would be n times the block.
    parts = [
        delayed(_reduce, pure=False)(
            products,
            *shared,
            resolution,
            kernels[0],
            probes.shape[1],
            dask_key_name=f"{name}-reduce-{kernels[0]}-{token}",
        )
        for kernels, products in graph.groups
    ]
    statistics = execute(parts, graph.units, name)
    return [np.concatenate(pieces) for pieces in zip(*statistics, strict=True)]


def _reduce(products: Array, block: Float, rounding: Float, resolution: float, start: int, b: int) -> tuple[Float, ...]:
    """The statistics of some kernels, beginning with that at position `start`."""
    probes, columns, m = block[:, :b], block[:, b:], len(block)
    factors: Any = scipy.linalg.qr(probes, mode="economic", pivoting=True)
    basis, triangle, order = factors
    # With few samples, vectors of random signs may be linearly dependent.
    diagonal = np.abs(triangle.diagonal())
    rank = np.count_nonzero(diagonal > 1e-8 * diagonal[0])
    projections, forms = [], []
    eigenvalues, energies = np.zeros((len(products), b)), np.zeros((len(products), b, columns.shape[1]))
    for place, product in enumerate(products):
        sketched = product[:, :b]
        projections.append(probes.T @ sketched)
        forms.append(np.einsum("mc,mc->c", columns[:, : product.shape[1] - b], product[:, b:]))
        # KQ = (KZ)R⁻¹, on the columns that pivoting puts first.
        turned = scipy.linalg.solve_triangular(triangle[:rank, :rank], sketched[:, order[:rank]].T, trans="T").T
        # E ‖KQ‖_F² = (b/m)‖K‖_F², and rounding each entry of K adds at most its resolution times ‖K‖_F.
        norm = np.linalg.norm(turned) * np.sqrt(m / rank)
        # R⁻¹ enlarges the rounding of products with vectors that are nearly dependent.
        condition = diagonal[0] / diagonal[rank - 1]
        noise = float(max(resolution, 1e-16 * condition) * norm + np.sqrt(m) * rounding[start + place])
        eigenvalues[place, :rank], vectors = nystrom(basis[:, :rank], turned, noise)
        energies[place, :rank] = (vectors.T @ columns) ** 2
    return np.array(projections), eigenvalues, np.array(forms), energies


# --- eigenvalues and their bounds ------------------------------------------------------------------------------------


def nystrom(block: Float, product: Float, noise: float) -> tuple[Float, Float]:
    """λ̂ (b,) and eigenvectors (m, b) of Nyström's approximation from Q and W = KQ, (m, b); NaN where K is not PSD.

    `noise` bounds the spectral norm of the rounding errors of K. At least this shift is added to all eigenvalues during
    the computation, so that rounding does not appear as a negative eigenvalue.
    """
    size = float(np.linalg.norm(product))
    if size == 0.0:
        return np.zeros(block.shape[1]), np.zeros(block.shape)
    shift = noise + float(np.finfo(np.float64).eps) * np.sqrt(len(block)) * size
    shifted = product + shift * block
    core = block.T @ shifted
    try:
        factor = scipy.linalg.cholesky(0.5 * (core + core.T), lower=False)
    except np.linalg.LinAlgError:
        return np.full(block.shape[1], np.nan), np.full(block.shape, np.nan)
    # K̂ + shift·I = BBᵀ with B = (W + shift·Q)R⁻¹, RᵀR the core: no inverse of the core, which is nearly singular.
    root = scipy.linalg.solve_triangular(factor, shifted.T, trans="T", lower=False)
    _, values, vectors = scipy.linalg.svd(root, full_matrices=False)
    return np.maximum(values**2 - shift, 0.0), vectors.T


def upper_bounds(eigenvalues: Float, trace: Float, frobenius: Float | None = None) -> Float:
    """Upper bounds of each λ_i, (n, b), from λ̂ (n, b), tr K (n,) and, if it is known, ‖K‖_F (n,)."""
    bound = _smallest_means(eigenvalues, np.maximum(trace - eigenvalues.sum(axis=1), 0.0))
    if frobenius is not None:
        squares = eigenvalues**2
        left = np.maximum(frobenius**2 - squares.sum(axis=1), 0.0)
        bound = np.minimum(bound, np.sqrt(_smallest_means(squares, left)))
    return bound


def _smallest_means(values: Float, left: Float) -> Float:
    """The smallest of (Σ_{l=j..i} values_l + left)/(i − j + 1) over j ≤ i, (n, b)."""
    sums = np.cumsum(values, axis=1)
    bound = np.empty_like(values)
    for i in range(values.shape[1]):
        before = np.concatenate([np.zeros((len(values), 1)), sums[:, :i]], axis=1)
        bound[:, i] = ((sums[:, i : i + 1] - before + left[:, None]) / np.arange(i + 1, 0, -1)).min(axis=1)
    return bound


def captured(eigenvalues: Float, trace: Float, share: float) -> Float:
    """An upper bound of the number of leading eigenvalues that make up `share` of the trace, (n,), from λ̂.

    NaN if the given eigenvalues make up less.
    """
    enough = np.cumsum(eigenvalues, axis=1) >= share * trace[:, None]
    return np.where(enough.any(axis=1), enough.argmax(axis=1) + 1.0, np.nan)


def relevant_dimensions(energies: Float, total: float, m: int) -> Float:
    """Relevant dimension d, d or NaN where it may be larger, noise and share in front of d, (4, n).

    From z_1 … z_r (n, r), NaN where unknown, and Σ_i z_i; see `dmkl.relevant_dimension`.
    """
    d = np.arange(min(energies.shape[1], m // 2) + 1)
    front = np.cumsum(np.pad(energies, ((0, 0), (1, 0))), axis=1)[:, : len(d)] / total
    signal = front / np.maximum(d, 1)
    noise = np.maximum(1.0 - front, 1e-10) / (m - d)  # less is rounding
    # Cuts with σ₁² ≤ σ₂² are excluded: otherwise a first eigenvector orthogonal to the labels could be the best cut.
    loss = d * np.log(np.maximum(signal, noise)) + (m - d) * np.log(noise)
    best = np.argmin(np.where((signal > noise) | (d == 0), loss, np.inf), axis=1)
    rows = np.arange(len(best))
    most = np.where((best == len(d) - 1) & (best < m // 2), np.nan, best)
    figures = np.stack([best, most, m * noise[rows, best], front[rows, best]])
    return np.where(np.isnan(energies).any(axis=1), np.nan, figures)
