"""MK-FDA restricted to α = V a: the small problem that one point of a grid has in the subspace.

With G_j = VᵀK_jV, N = VᵀV and T = VᵀH the problem

    J_V(β) = min_a Σ_k [ ¼ a_kᵀN a_k + (1/4λ) a_kᵀG(β) a_k − t_kᵀa_k ],   G(β) = Σ_j β_j G_j,

has the form of the full one (`dmkl.numerics.fisher`), so the same Newton master maximizes it. S and F that come out are
those of the full problem at α = V a: G_j and N are computed from the V that is used, orthonormal or not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dmkl.arrays import Array, Float
from dmkl.errors import IndefiniteKernelError
from dmkl.numerics.cholesky import Cholesky
from dmkl.numerics.fisher import relative_gap
from dmkl.solvers.line_search import LineSearch
from dmkl.solvers.masters import ascent_direction, newton_master
from dmkl.solvers.semidefinite import UNKNOWN, KernelFacts, check_forms
from dmkl.solvers.weight_sets.base import WeightSet

__all__ = ["ReducedProblem", "ReducedSolution", "solve_reduced"]


@dataclass(frozen=True)
class ReducedProblem:
    """One point of a grid in the subspace.

    Parameters
    ----------
    gram
        G, (n, r, r)
    inner
        N, (r, r)
    target
        T, (r, c)
    lam, weights
        Ridge, and the weights that may be.
    """

    gram: Array
    inner: Float
    target: Float
    lam: float
    weights: WeightSet


@dataclass(frozen=True)
class ReducedSolution:
    """The pair (a, β), with S and F of the full problem at α = V a, and βᵀq, the part of S that the kernels make."""

    coefficients: Float
    beta: Float
    objective: float
    upper: float
    kernel_part: float
    n_steps: int

    @property
    def weights_gap(self) -> float:
        """The part of the gap that better weights would close, relative to |S|."""
        return relative_gap(self.upper, self.objective, self.objective)

    @property
    def share(self) -> float:
        """βᵀq/|S|, in (0, 1]: for large λ, S hardly depends on the kernels, and a small gap says little of β.

        Where rounding of the products has made βᵀq negative, the share is unknown: as small as it may be.
        """
        tiny = float(np.finfo(np.float64).tiny)
        return min(1.0, max(self.kernel_part / (abs(self.objective) or tiny), tiny))


def solve_reduced(
    problem: ReducedProblem, beta: Float, tol: float, facts: KernelFacts = UNKNOWN, max_steps: int = 60
) -> ReducedSolution:
    """Maximize J_V by Newton's method from β, until F − S ≤ tol · min(|S|, βᵀq).

    Raises
    ------
    IndefiniteKernelError
        If N + G(β)/λ is not positive definite, or a quadratic form αᵀK_jα comes out negative.
    """
    weights, lam, gram = problem.weights, problem.lam, problem.gram
    n, r, _ = gram.shape
    # Of α in the null space of all kernels the quadratic forms are rounding, all of them.
    unit = float(np.finfo(np.float64).eps) * float(np.abs(np.einsum("jkk->jk", gram)).max(initial=0.0))
    best: ReducedSolution | None = None
    ascent: LineSearch | None = None
    for step in range(1, max_steps + 1):
        factor = _factor(problem, beta)
        a = factor.solve(problem.target)
        products = np.matmul(a.T, gram)  # (G_j a)ᵀ
        q = np.einsum("rc,ncr->n", a, products) / (4.0 * lam)
        size = float(np.sum(a * a)) / (4.0 * lam)
        check_forms(q, facts, size, r * unit * size)
        linear = 0.25 * float(np.sum(a * (problem.inner @ a))) - float(np.sum(problem.target * a))
        part = float(beta @ q)
        found = ReducedSolution(a, beta, linear + part, linear + weights.support(q), part, step)
        if best is None or found.weights_gap < best.weights_gap:
            best = found
        if found.weights_gap <= tol * found.share or weights.decided(n):
            break
        if ascent is None or ascent.accepts(found.objective):
            direction = _newton_direction(factor, products, q, beta, problem)
            # Up to the rounding of S.
            ascent = LineSearch(beta, direction, q, found.objective, slack=1e-14 * abs(found.objective))
        else:
            ascent.shorten()
        if ascent.point is None:
            break
        beta = ascent.point
    assert best is not None
    return best


def _factor(problem: ReducedProblem, beta: Float) -> Cholesky:
    n, r, _ = problem.gram.shape
    system = (beta @ problem.gram.reshape(n, r * r)).reshape(r, r)
    system *= 0.5 / problem.lam
    system += 0.5 * problem.inner
    try:
        return Cholesky.of(system.T)  # column-major, so not copied
    except np.linalg.LinAlgError as error:
        msg = (
            f"I + K(β)/λ is not positive definite at λ = {problem.lam:g}: a kernel has an eigenvalue below −λ over "
            "these samples. Run `dmkl check`; mend such kernels with repair='clip', 'flip' or 'shift', leave them out "
            "with select(), or take a larger λ"
        )
        raise IndefiniteKernelError(msg) from error


def _newton_direction(factor: Cholesky, products: Array, q: Float, beta: Float, problem: ReducedProblem) -> Float:
    n, c, r = products.shape
    rows = factor.half_solve(products.reshape(n * c, r).T).T.reshape(n, c * r)  # of each kernel L⁻¹G_j a
    curvature = rows @ rows.T / (4.0 * problem.lam**2)
    aim = newton_master(q, curvature, beta, problem.weights)
    return ascent_direction(aim, q, beta, problem.weights)
