"""What is known of a problem on a few directions, and its exact solution there.

For α = D a the products K_jα = (K_jD) a cost nothing once the K_jD are kept. So a solver that has asked for them may
minimize F over all of α = D a at once instead of along a line: the problem in a is a small one of the same form
(`mkfda`), solved with its weights to any accuracy. Such steps are exact for any number of
directions; on a quadratic F, two blocks of directions give block conjugate gradients, and more make up for what changes
of β and limited memory spoil.

D is kept orthonormal by applying the same linear maps to D and to the products, so that K_jD stays what it says. All
sums are in float64, and the certificate is computed from α and K_jα as they are returned: it does not rely on D being
orthonormal.
"""

from __future__ import annotations

import numpy as np
import scipy.linalg

from dmkl.arrays import Array, Float
from dmkl.solvers.fisher.mkfda import MemoryOracle
from dmkl.solvers.semidefinite import KernelFacts
from dmkl.solvers.weight_sets.base import WeightSet

__all__ = ["Span"]


_DEPENDENT = 1e-7
"""Share of a direction that must be new: below it, rounding in the products would be blown up by more than 1e7."""


class Span:
    """Orthonormal directions D, (m, r), with the products K_jD in float64.

    Parameters
    ----------
    h
        H, (m, c).
    n_kernels
        n
    capacity
        The most directions, r; each takes 8 (n + 1) m bytes. Where more come, all but the current α and the latest
        are let go.
    """

    def __init__(self, h: Float, n_kernels: int, capacity: int) -> None:
        m = len(h)
        self._h, self._capacity = h, capacity
        # Directions are rows: the memory is then taken as they come, not all at once.
        self._d, self._w = np.empty((capacity, m)), np.empty((n_kernels, capacity, m))
        self._gram = np.empty((n_kernels, 0, 0))

    @property
    def size(self) -> int:
        """Directions, r."""
        return int(self._gram.shape[1])

    def extend(self, directions: Float, products: Array, coefficients: Float) -> bool:
        """Take in more directions (m, b) with K_jD of them (n, m, b); whether any of them is new.

        Parameters
        ----------
        coefficients
            a of the current α, (r, c), which stays in the span whatever is let go.
        """
        if self.size + directions.shape[1] > self._capacity:
            self._condense(coefficients, directions.shape[1])
        r = self.size
        d, w = directions.T, products.transpose(0, 2, 1)
        size = np.linalg.norm(d, axis=1)
        d, w = d[size > 0] / size[size > 0, None], w[:, size > 0] / size[size > 0, None]
        for _ in range(2):  # twice is enough: what is left after the first is well above rounding
            known = d @ self._d[:r].T
            change = _new_part(d - known @ self._d[:r])
            d = change @ (d - known @ self._d[:r])
            w = change @ (w - known @ self._w[:, :r])
        if not (b := len(d)):
            return False
        self._d[r : r + b], self._w[:, r : r + b] = d, w
        gram = np.empty((len(w), r + b, r + b))
        gram[:, :r, :r] = self._gram
        for j, mine in enumerate(w):
            gram[j, r:] = mine @ self._d[: r + b].T
        gram[:, :r, r:] = gram[:, r:, :r].transpose(0, 2, 1)
        gram[:, r:, r:] = 0.5 * (gram[:, r:, r:] + gram[:, r:, r:].transpose(0, 2, 1))
        self._gram = gram
        return True

    def oracle(self, lam: float, weights: WeightSet, facts: KernelFacts) -> MemoryOracle:
        """The oracle of the problem restricted to the span."""
        d = self._d[: self.size]
        return MemoryOracle(self._gram, d @ self._h, lam, weights, d @ d.T, facts)

    def combine(self, coefficients: Float) -> tuple[Float, Float]:
        """α = D a, (m, c), and K_jα, (n, m, c)."""
        r = self.size
        alpha = self._d[:r].T @ coefficients
        products = np.empty((len(self._w), *alpha.shape))
        for j, mine in enumerate(self._w):
            np.matmul(mine[:r].T, coefficients, out=products[j])
        return alpha, products

    def _condense(self, coefficients: Float, n_more: int) -> None:
        """Keep α and half of the latest directions, as far as there is room for `n_more`."""
        r, c = coefficients.shape
        latest = max(0, (self._capacity - n_more - c) // 2)
        chosen = np.concatenate([coefficients, np.eye(r)[:, r - latest :]], axis=1)
        basis, upper, _ = scipy.linalg.qr(chosen / np.linalg.norm(chosen, axis=0), mode="economic", pivoting=True)
        kept = basis[:, np.abs(np.diag(upper)) > _DEPENDENT].T
        k = len(kept)
        self._d[:k] = kept @ self._d[:r]
        for mine in self._w:
            mine[:k] = kept @ mine[:r]
        self._gram = kept @ self._gram @ kept.T


def _new_part(d: Float) -> Float:
    """The map that makes rows orthonormal, those left out that depend on others or that little is left of."""
    upper, pivots = scipy.linalg.qr(d.T, mode="r", pivoting=True)
    kept = int(np.count_nonzero(np.abs(np.diag(upper)) > _DEPENDENT))
    chosen = np.zeros((kept, len(d)))
    chosen[np.arange(kept), pivots[:kept]] = 1.0
    return np.asarray(scipy.linalg.solve_triangular(upper[:kept, :kept], chosen, trans="T"))
