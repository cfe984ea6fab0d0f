"""Kernels that are products of factors, K_j = Z_jZ_jᵀ, as kernels of fewer samples with the same inner products.

Linear kernels of few features, random Fourier features and Nyström features have factors Z_j (m, d_j) with D = Σd_j
columns in all, mostly fewer than samples. With an orthonormal Q (m, r) whose span contains Z = [Z_1 … Z_n] and columns
H, the factors QᵀZ and columns QᵀH are those of r pseudo-samples: for α = Qα' norms, inner products and
K_jα = QQᵀZ_j(QᵀZ_j)ᵀα' are equal. With G = ZᵀZ = RᵀR (D, D), where R is triangular, and T = ZᵀH (D, C),

    QᵀZ = [R; 0],   QᵀH = [R⁻ᵀT; S],   SᵀS = HᵀH − TᵀG⁻¹T,

over r ≤ D + C pseudo-samples, for which one pass over the samples is enough.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.linalg import solve_triangular
from scipy.linalg.lapack import dpstrf

from dmkl import settings
from dmkl.arrays import Float, Index
from dmkl.features.recipes import Recipe
from dmkl.features.tiles import FeatureTiles, SampleAxis
from dmkl.passes.blas import factor_threads, pinned_blas
from dmkl.passes.rows import Gram, RowMap
from dmkl.passes.view import Lens, View
from dmkl.store.features import ArrayTable

UNIT = float(np.finfo(np.float64).eps)


def _solved(triangle: Float, right: Float, *, trans: Literal[0, 1] = 0) -> Float:
    """``scipy.linalg.solve_triangular``, also of no rows, which SciPy before 1.14 refuses."""
    return np.asarray(solve_triangular(triangle, right, trans=trans)) if len(triangle) else right


@dataclass(frozen=True, eq=False)
class PseudoSamples:
    """The factors of pseudo-samples, and what maps vectors back to the samples."""

    row_map: RowMap
    factors: Float  # QᵀZ, (r, D)
    order: Index  # the components of Z, pivots first; those after the rank are combinations of those before
    triangle: Float  # R_1, the square part of R of the pivots, (rank, rank)
    image: Float  # R_1⁻ᵀT, (rank, C)
    sizes: Float  # the square roots of the positive eigenvalues of SᵀS
    directions: Float  # their eigenvectors V, (C, r − rank)

    @classmethod
    def of(cls, gram: Gram, inner: Float) -> PseudoSamples:
        """The pseudo-samples of the sums G and T = ZᵀH of a pass, and of HᵀH (C, C)."""
        D = len(gram.gram)
        with pinned_blas(factor_threads(D)):
            # Pivots below rounding end it: the components after them are combinations of those before.
            triangle, pivots, rank, _ = dpstrf(gram.gram, tol=D * UNIT * float(np.diagonal(gram.gram).max(initial=0.0)))
        order, R = pivots - 1, np.triu(triangle)[:rank]
        # With Z_1 the first components and R_1 their square part of R, Q = [Z_1R_1⁻¹, (H − Z_1R_1⁻¹ image)V/√sizes].
        # R_1 is as well conditioned as its pivots are, so that Q is orthonormal up to the square root of the rounding.
        image = _solved(R[:, :rank], gram.targets[order[:rank]], trans=1)
        # The rest of H is orthogonal to all kernels: it changes norms, but no product K_jα.
        left = inner - image.T @ image
        sizes, directions = np.linalg.eigh((left + left.T) / 2.0)
        also = sizes > len(sizes) * UNIT * np.diagonal(inner).max(initial=0.0)
        sizes, directions = np.sqrt(sizes[also]), directions[:, also]
        factors = np.zeros((rank + len(sizes), D))
        factors[:rank, order] = R
        return cls(gram.row_map, factors, order, R[:, :rank], image, sizes, directions)

    def columns(self, products: Float, inner: Float) -> Float:
        """QᵀY, (r, c), of columns Y of the samples, from ZᵀY and HᵀY."""
        image = _solved(self.triangle, products[self.order[: len(self.triangle)]], trans=1)
        return np.concatenate([image, self.directions.T @ (inner - self.image.T @ image) / self.sizes[:, None]])

    def coefficients(self, vectors: Float) -> tuple[Float, Float]:
        """W (D, c) and E (C, c) of Qα' = ZW + HE."""
        rank = len(self.triangle)
        of_columns = (self.directions / self.sizes) @ vectors[rank:]
        of_factors = np.zeros((len(self.order), vectors.shape[1]))
        of_factors[self.order[:rank]] = _solved(self.triangle, vectors[:rank] - self.image @ of_columns)
        return of_factors, of_columns

    def lens(self) -> Lens:
        """The kernels of the pseudo-samples, whose features are their factors."""
        view, samples = self.row_map.view, np.arange(len(self.factors)).astype(str)
        names = [view.source.names[k] for k in view.kernels]
        tables = {}
        for k, name in enumerate(names):
            Z = self.factors[:, self.row_map.kernel_of == k]
            content = hashlib.blake2b(Z.tobytes(), digest_size=16).hexdigest()
            tables[name] = ArrayTable(name, Z.shape, Z.dtype, None, content, np.zeros(Z.shape[1]), 0, Z)
        recipes = [Recipe(name, "linear", name, None, {}) for name in names]
        source = FeatureTiles(
            recipes, SampleAxis(samples, tables), None, np.float64, settings.tile_size(len(samples), None)
        )
        return Lens(View.of(source))


def times(coefficients: Float, Z: Float) -> Float:
    """ZW, a function of the rows of factors for `dmkl.passes.rows.RowFunction`."""
    return np.asarray(Z @ coefficients)
