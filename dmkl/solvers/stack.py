r"""A ridge regression on each kernel alone, and weights of their sum from leave-one-out predictions.

With vectors N that the steps project out of the kernels (K_jN = 0: the constant, covariates; weighted where samples
have weights) and P = N(NᵀN)⁻¹Nᵀ, the regression of y on [K_j, N] with ridge λ has, for K_j = U diag(σ) Uᵀ,

    ŷ = Hy,    H = P + U diag(σ/(σ + λ)) Uᵀ,    c = (y − ŷ)/λ.

Without the samples of a set B (one, or a group) the regression errs there by (I − H_BB)⁻¹(y − ŷ)_B and the one on N
alone by o_B = (I − P_BB)⁻¹(y − Py)_B, so that the part of the prediction that the kernel makes is the difference g_j of
the two. The statistics of normalizing steps stay as they are. λ has the least sum of squared errors; then

    w = argmin over w ≥ 0 of ‖o − Σ_j w_j g_j‖²,

over all columns of y together (Breiman: Stacked regressions. Machine Learning 24, 1996). Samples that N determines have
no such errors, and take no part in either. A kernel with eigenvalues below zero has a regression where λ is larger than
their size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from dmkl.arrays import Float, Index, Mask
from dmkl.errors import IndefiniteKernelError
from dmkl.numerics.discriminant import is_determined
from dmkl.numerics.semidefinite import UNKNOWN, WAY_OUT, KernelFacts
from dmkl.solvers.in_memory import WithWholeKernels
from dmkl.solvers.interface import CombinedKernel, Outcome, Root, Solver, Status, Step
from dmkl.solvers.jobs import Job

_ROUNDING = 1e-12  # Share of the largest eigenvalue below which one is zero
_STEPS = 30  # Most steps of the non-negative least squares, for each kernel


@dataclass(frozen=True, eq=False)
class StackProblem:
    """Columns y (m, c) that share the weights, and `lams` to choose from for each kernel.

    If `relative`, λ are in units of the trace of each kernel. Those below `least` are left out, unless all are.
    `mean` is the intercept of each column, (c,), and `null_vectors` are N, (m, k), or None. `groups` are the group of
    each sample, (m,), whose samples are left out together; one by one where None. Of `n_kernels`, those of `kernels`
    may have weight; `facts` are theirs.
    """

    y: Float
    lams: Sequence[float]
    relative: bool
    least: float
    n_kernels: int
    kernels: Index
    mean: Float
    null_vectors: Float | None = None
    groups: Index | None = None
    facts: KernelFacts = UNKNOWN

    def __call__(self) -> Solver[Outcome]:
        """Solve the problem; yields a request for each kernel.

        The dual variables are c, (m, columns · kernels), those of the first column first. `extra` has the λ of each
        kernel, "lam" (n,), "column_weights", and "lowest", the lowest eigenvalue of each of `kernels` where it is
        negative beyond rounding; the objective is the mean squared leave-one-out error. IndefiniteKernelError is raised
        if no λ is larger than the size of that eigenvalue.
        """
        m, n_columns = self.y.shape
        q = np.zeros((m, 0)) if self.null_vectors is None else np.linalg.qr(self.null_vectors)[0]
        sets = None if self.groups is None else [np.flatnonzero(self.groups == g) for g in np.unique(self.groups)]
        kept = ~_are_determined(q, sets)
        y = self.y - q @ (q.T @ self.y)
        alone = _left_out(y, q, np.ones(q.shape[1]), sets)
        duals, parts, lams = np.zeros((n_columns, self.n_kernels, m)), [], np.zeros(self.n_kernels)
        allowed, lowest = self.facts.allowed, np.zeros(len(self.kernels))
        for place, j in enumerate(self.kernels):
            answer = yield CombinedKernel(np.eye(self.n_kernels)[j])
            values, U = _spectrum(answer, np.inf if allowed is None else float(allowed[place]))
            errors, coordinates, lowest[place] = np.inf, U.T @ y, values.min(initial=0.0)
            unit = float(values[values > 0].sum()) if self.relative and values.any() else 1.0
            lams_of_kernel = [lam * unit for lam in self.lams]
            resolved = [lam for lam in lams_of_kernel if lam >= self.least] or [max(lams_of_kernel)]
            if max(resolved) <= -lowest[place]:
                msg = (
                    f"kernel {self.facts.name(place)} is not positive semidefinite: it has an eigenvalue of "
                    f"{lowest[place]:.3g}, and lams none larger than its size. {WAY_OUT}"
                )
                raise IndefiniteKernelError(msg)
            for lam in [lam for lam in resolved if lam > -lowest[place]]:
                shares = values / (values + lam)
                residuals = y - U @ (shares[:, None] * coordinates)
                left = _left_out(residuals, np.hstack([q, U]), np.append(np.ones(q.shape[1]), shares), sets)
                if (size := float((left[kept] ** 2).sum())) < errors:
                    errors, lams[j], part = size, lam, alone - left
                    duals[:, j] = residuals.T / lam
            parts.append(part[kept].ravel())
        target, weights = alone[kept].ravel(), np.zeros(self.n_kernels)
        weights[self.kernels], residual = nnls(np.stack(parts, axis=1), target, maxiter=_STEPS * len(parts))
        objective = float(residual**2 / max(1, kept.sum()))
        bias = np.zeros((n_columns, self.n_kernels))
        bias[:, 0] = self.mean
        extra = {"lam": lams, "column_weights": np.tile(np.diag(weights), n_columns), "lowest": lowest}
        steps = [Step(weights, {"objective": objective})]
        dual = (duals * (weights > 0)[:, None]).reshape(-1, m).T
        return Outcome(Status.CONVERGED, weights, dual, objective, bias=bias.ravel(), steps=steps, extra=extra)


def _spectrum(answer: Float | Root, allowed: float) -> tuple[Float, Float]:
    """Eigenvalues above rounding, or below −`allowed`, and their vectors, (m, r)."""
    if isinstance(answer, Root):
        U, roots, _ = np.linalg.svd(answer.factor, full_matrices=False)
        values = roots**2
    else:
        values, U = np.linalg.eigh(answer)
    kept = (values > _ROUNDING * max(values.max(initial=0.0), np.finfo(np.float64).tiny)) | (values < -allowed)
    return values[kept], U[:, kept]


def _left_out(residuals: Float, U: Float, shares: Float, sets: Sequence[Index] | None) -> Float:
    """(I − H_BB)⁻¹r_B for H = U diag(shares) Uᵀ and every set B of samples, each alone where None: (m, c)."""
    if sets is None:
        free = 1.0 - (U**2) @ shares
        return residuals / np.where(free > 0, free, np.inf)[:, None]
    left = np.empty_like(residuals)
    for rows in sets:
        block = np.eye(len(rows)) - (U[rows] * shares) @ U[rows].T
        left[rows] = np.linalg.lstsq(block, residuals[rows])[0]
    return left


def _are_determined(q: Float, sets: Sequence[Index] | None) -> Mask:
    """Which samples the projected vectors determine where they, or their whole group, are left out: (m,)."""
    if sets is None:
        return is_determined((q**2).sum(axis=1))
    largest = np.zeros(len(q))
    for rows in sets if q.size else ():
        largest[rows] = np.linalg.norm(q[rows], 2) ** 2
    return is_determined(largest)


class StackMethod(WithWholeKernels):
    """Problems in memory as those of `InMemory`; others in passes, with one kernel and its decomposition here."""

    def check(self, jobs: Sequence[Job]) -> None:
        way_out = (
            "Build the set with rank=, which keeps kernels as factors of few columns, take MKFDA or MKRidge, which "
            "learn from kernels of any size, or set dmkl.memory higher"
        )
        self.check_passes(jobs, "a stack", "a kernel and its decomposition", way_out)

    def passes_bytes(self, job: Job) -> int:
        """A kernel, its eigenvectors, room for them, and functions of all kernels."""
        m, columns = job.problem.y.shape
        return 8 * int(m * (4 * m + 3 * job.problem.n_kernels * columns))
