"""The dual of generalized MKL as one conic program: a reference for small problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import clarabel
import numpy as np
import numpy.typing as npt
import scipy.linalg

from dmkl.errors import InputError
from dmkl.numerics.arrays import Float
from dmkl.solvers.cones import ConicError, ConicProgram
from dmkl.solvers.margin.gmkl_problem import GeneralizedProblem

__all__ = ["ConicOptimum", "conic_optimum"]


@dataclass(frozen=True)
class ConicOptimum:
    """The optimum of a small problem: its value T*, d (n,), u (m,) and the bias."""

    value: float
    weights: Float
    u: Float
    bias: float


def conic_optimum(kernels: Sequence[npt.ArrayLike], problem: GeneralizedProblem) -> ConicOptimum:
    """Solve the dual of Varma and Ray as it stands, a second-order cone program, by an interior-point method.

        max Σα + bᵀp   over   0 ≤ α ≤ C,  αᵀy = 0,  p ≥ 0,   ½ uᵀK_ju + (Aᵀp)_j ≤ σ_j  for all j,   u = α∘y

    The multipliers of the last constraints are the weights. For small sets: it factors each kernel, K_j = L_jL_jᵀ,
    holds all of the factors, up to n m² numbers, and its time grows as n m³.

    Parameters
    ----------
    kernels
        n matrices (m, m), positive semidefinite; eigenvalues below 1e-12 of the largest are left out.
    problem
        Labels, prices and constraints.

    Raises
    ------
    InputError
        If the kernels do not fit the problem, or the solver finds no optimum.
    """
    m, n, k = len(problem.y), len(problem.sigma), len(problem.b)
    shapes = {np.shape(K) for K in kernels}
    if len(kernels) != n or shapes != {(m, m)}:
        msg = (
            f"got {len(kernels)} kernels of shapes {sorted(shapes)}, expected {n} of ({m}, {m}), as sigma and y have it"
        )
        raise InputError(msg)
    program = ConicProgram(m + k)
    none = np.zeros((m, k))
    program.add(np.concatenate([np.ones(m), np.zeros(k)])[None], 0.0, clarabel.ZeroConeT(1))
    signs = np.diag(problem.y)
    program.at_most(np.hstack([-signs, none]), np.zeros(m))
    program.at_most(np.hstack([signs, none]), np.full(m, problem.C))
    program.at_most(np.hstack([none.T, -np.eye(k)]), np.zeros(k))
    heads, first = [], 1 + 2 * m + k
    for j, K in enumerate(kernels):
        values, vectors = scipy.linalg.eigh(np.asarray(K, dtype=np.float64))
        kept = values > 1e-12 * values[-1]
        root = (np.sqrt(values[kept]) * vectors[:, kept]).T
        row = np.concatenate([np.zeros(m), -problem.A[:, j]])
        root = np.hstack([root, np.zeros((len(root), k))])
        program.bounded_square(root, np.zeros(len(root)), row, float(problem.sigma[j]))
        heads.append(first)
        first += len(root) + 2
    try:
        x, z = program.minimize(-np.concatenate([problem.y, problem.b]))
    except ConicError as error:
        msg = "the conic dual ended without a solution: scale the kernels to unit trace, or use gmkl"
        raise InputError(msg) from error
    u, p = x[:m], x[m:]
    # σ_j stands in the first two rows of its cone, so what a unit of it is worth, d_j, is the sum of their multipliers.
    weights = np.maximum(z[heads] + z[np.asarray(heads) + 1], 0.0)
    return ConicOptimum(float(problem.y @ u + problem.b @ p), weights, u, float(z[0]))
