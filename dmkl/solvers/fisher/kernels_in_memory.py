"""Kernels of a training set in memory, and what one factor for each vector of weights tells of a target: all of it.

With K(β) factored, α and the slopes q are exact, and what is left to prove is F − S. Sums and slopes of several targets
are products of one matrix that has the packed kernels as its rows, which costs a tenth of the products K_jα.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dmkl.arrays import Array, Float
from dmkl.errors import IndefiniteKernelError
from dmkl.numerics import packed
from dmkl.numerics.cholesky import Cholesky
from dmkl.numerics.fisher import dual_norm, relative_gap
from dmkl.solvers.semidefinite import KernelFacts, check_forms

__all__ = ["KernelStack", "OwnFactors", "Solved"]


@dataclass(eq=False)
class Solved:
    """The best pair of a target at a point, and what is proven of it.

    Parameters
    ----------
    beta, slopes
        β and q, (n,).
    objective, upper
        S(α, β) and F(α).
    excess
        At most so much is S(α, β) above the least over α: ‖R‖², or a closer bound; ∞ where it was not computed, because
        more is left in any case.
    share
        βᵀq/|S|, the part of S that the kernels make.
    alpha
        (m, c); None once it is solved, where dual variables are not asked for.
    scores
        Of the held-out rows, (rows, c), once it is solved.
    """

    beta: Float
    slopes: Float
    objective: float
    upper: float
    excess: float
    share: float
    alpha: Float | None
    scores: Array | None = None

    @classmethod
    def of(cls, beta: Float, h: Float, alpha: Float, q: Float, p: float, excess: float) -> Solved:
        """S, F and what the kernels make of S, by α and the slopes at it."""
        # Both are in memory column by column.
        linear = 0.25 * float(np.vdot(alpha.T, alpha.T)) - float(np.vdot(h.T, alpha.T))
        return cls.by_slopes(beta, q, linear, p, excess, alpha)

    @classmethod
    def by_slopes(
        cls, beta: Float, q: Float, linear: float, p: float, excess: float, alpha: Float | None = None
    ) -> Solved:
        """The same by ¼‖α‖² − tr Hᵀα and the slopes."""
        part = float(beta @ q)
        objective = linear + part
        share = min(1.0, max(part / (abs(objective) or 1.0), float(np.finfo(np.float64).tiny)))
        return cls(beta, q, objective, linear + dual_norm(q, p), excess, share, alpha)

    def scaled(self, factor: float) -> Solved:
        """The same in units in which S is `factor` times as large."""
        objective, upper, excess = (factor * value for value in (self.objective, self.upper, self.excess))
        return replace(self, slopes=factor * self.slopes, objective=objective, upper=upper, excess=excess)

    @property
    def gap(self) -> float:
        """(F − S + excess)/|S|."""
        return relative_gap(self.upper, self.objective, self.objective) + self.excess / (abs(self.objective) or 1.0)

    @property
    def left(self) -> float:
        """What is left relative to the part of S that the kernels make."""
        return self.gap / self.share


class KernelStack:
    """The kernels of a training set in memory, (n, rows, m): training rows first, then those held out.

    Sums and slopes take the triangles alone, in LAPACK's rectangular full packed form, which halves what is read.
    """

    def __init__(self, kernels: Float, facts: KernelFacts, together: int) -> None:
        self.n, _, self.m = kernels.shape
        self.facts = facts
        self.together = together
        self.kernels, self.square = kernels, kernels[:, : self.m]
        self.packed: Float = np.stack([packed.pack(kernel.T) for kernel in self.square])
        self.diagonal = packed.diagonal(self.m)
        squares = 2.0 * np.sum(self.packed**2, axis=1) - np.sum(self.packed[:, self.diagonal] ** 2, axis=1)
        self.norms = np.sqrt(squares)
        """‖K_j‖ in the norm of Frobenius, (n,), which no eigenvalue exceeds."""
        # Taken once: memory that is new for every step costs more than what is computed in it.
        self._sums, self.work = np.empty((2, together, self.packed.shape[1]))
        self._whole = np.empty((self.m, self.m), order="F")

    def systems(self, betas: Float, lam: float) -> Float:
        """A = ½(I + K(β)/λ) of each, packed, in memory that the next call takes again."""
        systems = np.matmul(betas * (0.5 / lam), self.packed, out=self._sums[: len(betas)])
        systems[:, self.diagonal] += 0.5
        return systems

    def factorize(self, system: Float, place: Float, lam: float) -> None:
        """Put the Cholesky factor of A, packed, in another place.

        Raises
        ------
        IndefiniteKernelError
            If there is none.
        """
        place[:] = system
        if not packed.factorize(self.m, place):
            msg = (
                f"I + K(β)/λ is not positive definite at λ = {lam:g}: a kernel has an eigenvalue below −λ over these "
                "samples. Run `dmkl check`; mend such kernels with repair='clip', 'flip' or 'shift', leave them out "
                "with select(), or take a larger λ"
            )
            raise IndefiniteKernelError(msg)

    def factor(self, beta: Float, lam: float) -> Cholesky:
        """The Cholesky factor of A."""
        (system,), place = self.systems(beta[None], lam), self.work[0]
        self.factorize(system, place, lam)
        return Cholesky(np.asfortranarray(packed.unpack(self.m, place).T))

    def residual_sq(self, system: Float, h: Float, alpha: Float) -> float:
        """‖H − Aα‖²."""
        residual = h - packed.product(self.m, system, alpha, self._whole)
        return float(np.sum(residual * residual))

    def curvature(self, beta: Float, h: Float, lam: float) -> Float:
        """C = (1/4λ²) Σ_k (K_iα_k)ᵀA⁻¹(K_jα_k), (n, n), of a target at these weights."""
        (system,), factor = self.systems(beta[None], lam), self.work[0]
        self.factorize(system, factor, lam)
        alpha = packed.solve(self.m, factor, h)
        # The rows of a kernel are the columns of its product.
        products = np.matmul(np.ascontiguousarray(alpha.T), self.square)
        packed.half_solve(self.m, factor, products.reshape(-1, self.m).T)
        rows = products.reshape(self.n, -1)
        return np.asarray(rows @ rows.T / (4.0 * lam**2))


class OwnFactors:
    """Targets at a point, each with a factor of its own for every vector of weights that is tried.

    Parameters
    ----------
    stack
        The kernels.
    targets
        H of each, (m, c).
    p, lam
        The point.
    enough
        Where more is left, rounding is not looked at.
    """

    lost: frozenset[int] = frozenset()
    """Targets that cannot be solved so: none."""

    def __init__(self, stack: KernelStack, targets: Sequence[Float], p: float, lam: float, enough: float) -> None:
        self.stack, self.targets, self.p, self.lam, self.enough = stack, targets, p, lam, enough

    def evaluate(self, betas: Float, which: Sequence[int]) -> list[Solved]:
        """α, q and what they prove, of some targets at weights (t, n)."""
        found = []
        for start in range(0, len(which), self.stack.together):
            some = slice(start, start + self.stack.together)
            found += self._evaluate(betas[some], [self.targets[t] for t in which[some]], self.enough)
        return found

    def told(self, one: Solved, t: int) -> Solved:
        """The same with all that is left of it."""
        return self._evaluate(one.beta[None], [self.targets[t]], np.inf)[0]

    def curvature(self, beta: Float, t: int) -> Float:
        """C of a target at these weights, (n, n)."""
        return self.stack.curvature(beta, self.targets[t], self.lam)

    def _evaluate(self, betas: Float, targets: Sequence[Float], enough: float) -> list[Solved]:
        stack, lam = self.stack, self.lam
        systems, work = stack.systems(betas, lam), stack.work[: len(betas)]
        alphas = []
        for system, place, h in zip(systems, work, targets, strict=True):
            stack.factorize(system, place, lam)
            alpha = packed.solve(stack.m, place, h)
            # Each product of two rows of α stands once there and twice in the trace, but for those on the diagonal.
            packed.add_outer(stack.m, 2.0, alpha, 0.0, place)
            alphas.append(alpha)
        work[:, stack.diagonal] *= 0.5
        slopes = work @ stack.packed.T / (4.0 * lam)
        found = []
        for beta, h, q, alpha, system in zip(betas, targets, slopes, alphas, systems, strict=True):
            check_forms(q, stack.facts, float(np.sum(alpha * alpha)) / (4.0 * lam))
            one = Solved.of(beta.copy(), h, alpha, q, self.p, 0.0)
            one.excess = stack.residual_sq(system, h, alpha) if one.left <= enough else np.inf
            found.append(one)
        return found
