"""Many targets at a ridge, in coordinates in which the system at some weights is the identity.

With M̄ = M(β̄) = LLᵀ at weights β̄, x = Lᵀα and Ã_j = L⁻¹K_jL⁻ᵀ/2λ, solutions, slopes and objective are

    M(β)α = H  ⇔  W(β)x = L⁻¹H,  W(β) = I + Σ_j (β_j − β̄_j)Ã_j,   q_j = αᵀK_jα/4λ = ½ xᵀÃ_jx,
    S(α, β) = ½‖x‖² − xᵀL⁻¹H + Σ_j (β_j − β̄_j)q_j.

How small λ is no longer matters: no eigenvalue of W is below the least ratio of weights β_j/β̄_j, so that single
precision is enough for all that is computed of a target.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from dmkl.arrays import Array, Float
from dmkl.numerics.cholesky import Cholesky
from dmkl.numerics.tiles import Tiles
from dmkl.solvers.fisher.kernels_in_memory import KernelStack

__all__ = ["Whitened", "by_columns"]


class Whitened:
    """Targets at a ridge, in the coordinates of weights β̄.

    Parameters
    ----------
    stack
        The kernels.
    targets
        H of each, (t, c, m).
    lam
        λ.
    beta
        β̄ > 0, (n,).
    dtype
        The precision of what is computed of targets.
    """

    def __init__(self, stack: KernelStack, targets: Float, lam: float, beta: Float, dtype: npt.DTypeLike) -> None:
        self.stack, self.targets, self.lam, self.beta, self.dtype = stack, targets, lam, beta, np.dtype(dtype)
        self._factor = stack.factor(beta, lam)
        self.tiles = self._whitened()
        self.h = by_columns(self._factor.half_solve, targets.copy()).astype(self.dtype)
        """L⁻¹H of each, (t, c, m)."""
        self.x = self.h.copy()
        """x of each, (t, c, m), at the weights that it was solved for last: those of the coordinates."""
        self.slopes = np.zeros((len(targets), stack.n))
        """q of each at x, (t, n)."""
        self.sizes = np.ones(len(targets))
        """|S| of each there, (t,)."""
        self.apart: tuple[Float, Array] | None = None
        """By how much weights, (t, n), and x, (t, c, m), differed at the last norm from those of the centers."""

    def _whitened(self) -> Tiles:
        """Ã_j, (m, m) each, and K_jL⁻ᵀ of the held-out rows beside them."""
        n, rows, m = self.stack.kernels.shape
        tiles = Tiles(n, m, rows - m, self.dtype)
        for j, kernel in enumerate(self.stack.kernels):
            white = self._factor.congruent(kernel[:m].T).T * (0.5 / self.lam)
            held_out = self._factor.half_solve(np.array(kernel[m:].T, order="F")).T if rows > m else kernel[m:]
            tiles.put(j, white, held_out)
        return tiles

    def doubled(self) -> Whitened:
        """The same in double precision, from the solutions at the weights of the coordinates on."""
        other = Whitened(self.stack, self.targets, self.lam, self.beta, np.float64)
        other.slopes, other.sizes = self.slopes.copy(), self.sizes.copy()
        return other

    def system(self, beta: Float) -> Array:
        """W at weights (n,), (m, m)."""
        system = self.tiles.sum(beta - self.beta)
        system[np.diag_indices(len(system))] += 1.0
        return system

    def factor(self, beta: Float, system: Array) -> Cholesky:
        """The Cholesky factor of W at weights (n,).

        Raises
        ------
        IndefiniteKernelError
            If there is none.
        LinAlgError
            If rounding hides it.
        """
        try:
            return Cholesky.of(system.T.copy(order="F"))
        except np.linalg.LinAlgError:
            self.stack.factor(beta, self.lam)
            raise

    def scores(self, betas: Float, which: Sequence[int]) -> Array:
        """Σ_j β_jK_jα on the held-out rows, of some targets at weights (t, n), (t, c, rows)."""
        return self.tiles.held_out(betas, self.x[list(which)])

    def alphas(self, which: Sequence[int]) -> Float:
        """α = L⁻ᵀx of some targets, (t, c, m)."""
        return by_columns(self._factor.half_solve_transposed, self.x[list(which)].astype(np.float64))

    def place(self, t: int, alpha: Float) -> None:
        """Begin with α, (m, c), for a target."""
        self.x[t] = self._factor.half_product_transposed(alpha).T

    def curvature(self, beta: Float, t: int) -> Float:
        """C_ij = xᵀÃ_iW⁻¹Ã_jx of a target that is solved at weights β, (n, n): minus the derivative of the slopes."""
        n, m = self.stack.n, self.stack.m
        products = self.tiles.each(self.x[t]).reshape(-1, m)
        factor = self.factor(beta, self.system(beta))
        rows = factor.half_solve(products.T).T.reshape(n, -1).astype(np.float64)
        return np.asarray(rows @ rows.T)


def by_columns(solve: Callable[[Array], Array], b: Array) -> Array:
    """What a function of a matrix of columns makes of B (t, c, m), whose rows are vectors."""
    return solve(b.reshape(-1, b.shape[-1]).T).T.reshape(b.shape)
