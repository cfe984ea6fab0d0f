"""Lower bounds of generalized MKL from all SVMs trained so far, and the weights at which they are attained.

Each u that an SVM has returned is feasible, as is tu for 0 ≤ t ≤ t_u = min C/α, and so is every point of the convex
hull of zero and all t_u u. With those u as columns of U, a their Σα, and V_j = UᵀK_jU,

    T* ≥ max { aᵀλ + bᵀp :  λ, p ≥ 0,  Σ λ_u/t_u ≤ 1,  ½λᵀV_jλ + (Aᵀp)_j ≤ σ_j for all j }.

This is the dual of Varma and Ray over a part of its feasible set, a small conic program. For one SVM it is the bound of
weak duality; several reach the optimum even if no single one does, as around d = 0: there many α have the same Σα, and
the proof that no kernel is worth its price needs a mixture of them with ½uᵀK_ju ≤ σ_j for all j.

If d must also be in a convex set {d : b' − Gx ∈ K, x = (d, …)}, its multipliers z ∈ K* enter: −b'ᵀz in the objective,
(Aᵀp)_j − (Gᵀz)_j in the constraints, and Gᵀz = 0 in the columns of the further variables. From the resulting mixture
the bound is computed again as aᵀλ + min over d of (σ − ½(λᵀV_jλ)_j)ᵀd, whose proof needs the multipliers of that
program alone.

The multipliers of the last constraints are weights d: they minimize over the polyhedron the lower model of T from all
SVMs, σᵀd + max over λ of aᵀλ − ½ Σ_j d_j λᵀV_jλ. An SVM trained there corrects the model where it is lowest.
"""

from __future__ import annotations

import clarabel
import numpy as np

from dmkl.arrays import Float
from dmkl.solvers.cones import ConicError, ConicProgram
from dmkl.solvers.margin.gmkl_problem import GeneralizedProblem, least_cost, row_lengths

__all__ = ["Hull"]

# Largest number of SVMs that are kept; mixtures use few.
_MOST = 40


class Hull:
    """The SVMs of one problem so far."""

    def __init__(self, problem: GeneralizedProblem) -> None:
        m, n = len(problem.y), len(problem.sigma)
        self._problem = problem
        self._U: Float = np.zeros((m, 0))
        self._V: Float = np.zeros((n, 0, 0))
        self._share: Float = np.zeros(0)
        self._mixture: Float = np.zeros(0)

    def add(self, u: Float, products: Float) -> None:
        """Add an SVM: u (m,) and K_ju (n, m)."""
        if len(self._mixture) == _MOST:
            # The SVM with the smallest part in the last mixture is dropped; new ones count as infinite until then.
            kept = np.delete(np.arange(_MOST), np.argmin(self._mixture))
            self._U, self._V = self._U[:, kept], self._V[np.ix_(np.arange(len(self._V)), kept, kept)]
            self._share, self._mixture = self._share[kept], self._mixture[kept]
        used = u != 0
        bounds = np.broadcast_to(self._problem.C, used.shape)
        share = float(np.max(np.abs(u[used]) / bounds[used])) if used.any() else 1.0
        self._U = np.column_stack([self._U, u])
        # One row and one column are added to each V_j: the products K_ju with all u so far are known.
        across = products @ self._U
        V = np.concatenate([self._V, across[:, None, :-1]], axis=1)
        self._V = np.concatenate([V, across[:, :, None]], axis=2)
        self._share, self._mixture = np.append(self._share, share), np.append(self._mixture, np.inf)

    def bound(self, widest: float) -> tuple[float, Float | None]:
        """A lower bound of T*, and the weights that minimize the lower model of T, (n,).

        `widest` bounds Σd at the optimum: if the solver's tolerance leaves violations of up to e in the constraints,
        e·widest is subtracted from the bound. −∞ and None if the program has no solution.
        """
        problem, V = self._problem, self._V
        A, b, sigma = problem.A, problem.b, problem.sigma
        n, r, k = len(sigma), len(self._share), len(problem.b)
        totals = problem.y @ self._U
        size = float(np.abs(totals).max()) or 1.0
        # Variables (λ, p/scale), in units that make constraints and objective of size one. p balances the gradient
        # σ_j − ½uᵀK_ju, which may be much larger than the prices.
        height = row_lengths(A)
        rows, demands = A / height[:, None], b / height
        units = np.maximum(np.einsum("nrr->nr", V).max(axis=1), np.abs(sigma))
        units = np.where(units > 0, units, 1.0)
        scale = float(units.max())
        # The multipliers z ∈ K* of cones b − Gx ∈ K, x = (d, …), are the last variables: Gᵀz is added to σ as Aᵀp is,
        # and is zero in the other columns.
        cones = problem.cones
        extra = 0 if cones is None else len(cones.b)
        more = np.zeros(extra)
        program = ConicProgram(r + k + extra)
        program.at_most(np.hstack([-np.eye(r + k), np.zeros((r + k, extra))]), np.zeros(r + k))
        program.at_most(np.append(self._share, np.zeros(k + extra))[None], 1.0)
        # ½λᵀV_jλ = ½‖root λ‖² enters as a second-order cone; directions of no curvature are left out of the root.
        values, vectors = np.linalg.eigh(V / units[:, None, None])
        first, heads = r + k + 1, []
        G = np.zeros((0, n)) if cones is None else cones.matrix()
        for j in range(n):
            chosen = values[j] > 1e-14 * max(float(values[j, -1]), 1e-300)
            root = np.sqrt(values[j, chosen])[:, None] * vectors[j][:, chosen].T
            root = np.hstack([root, np.zeros((len(root), k + extra))])
            of_cones = more if cones is None else G[:, j] * scale / units[j]
            row = np.concatenate([np.zeros(r), -rows[:, j] * scale / units[j], of_cones])
            program.bounded_square(root, np.zeros(len(root)), row, float(sigma[j] / units[j]))
            heads.append(first)
            first += len(root) + 2
        if cones is not None:
            other = G[:, n:].T
            if height_of_other := len(other):
                none = np.zeros((height_of_other, r + k))
                program.add(np.hstack([none, other]), np.zeros(height_of_other), clarabel.ZeroConeT(height_of_other))
            cones.demand_dual(program, r + k)
            more = -cones.b * scale
        try:
            x, multipliers = program.minimize(-np.concatenate([totals, demands * scale, more]) / size)
        except ConicError:
            return -np.inf, None
        mixture, p = np.maximum(x[:r], 0.0), np.maximum(x[r : r + k], 0.0) * scale
        # The bound is computed from λ and p, not taken from the solver: their simple constraints are made to hold
        # exactly, and the excess of the others is subtracted.
        mixture = mixture / max(1.0, float(self._share @ mixture))
        self._mixture = mixture
        forms = np.einsum("r,nrs,s->n", mixture, V, mixture)
        if cones is None:
            # For any d of the set, aᵀλ + bᵀp ≤ σᵀd + W(d) + excess·Σd.
            excess = max(float(np.max(0.5 * forms + rows.T @ p - sigma)), 0.0)
            lower = float(totals @ mixture + demands @ p) - (excess * widest if excess else 0.0)
        elif np.isfinite(widest):
            lower = float(totals @ mixture) + least_cost(problem, sigma - 0.5 * forms, widest)
        else:
            lower = -np.inf
        # σ_j is in the first two rows of its cone, so its shadow price is the sum of their multipliers.
        d = (multipliers[heads] + multipliers[np.add(heads, 1)]) * size / units
        return lower, np.where(d > 1e-9 * float(d.max(initial=0.0)), d, 0.0)
