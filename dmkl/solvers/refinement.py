"""Kernel weights of each target that minimize its squared error in validation, from the weights of a candidate.

With γ_j = exp(δ_j), K(γ) = Σ_j γ_j K_j, and for each fold the target h of its training rows, c = (K(γ) + λI)⁻¹h and the
predictions f = b + K(γ)[new, train] c of its validation rows, the problem of a target is

    min over δ of  E(δ) = Σ over folds of ‖y − f‖² / ‖y − ȳ‖², which is the number of folds times 1 − mean R².

It is a nonlinear least squares problem with the exact derivatives, for G = K(γ)[new, train] (K(γ) + λI)⁻¹,

    ∂f/∂δ_j = γ_j (K_j[new, train] c − G K_j[train, train] c).

Differs from Dupré la Tour, Eickenberg, Nunez-Elizalde, Gallant (NeuroImage 264, 2022, "hyper-gradient"): their gradient
steps take c and G from a few steps of gradient descent and of conjugate gradients. Here a Cholesky factor gives both,
and the steps are those of Gauss and Newton in a trust region. E has several minima: the result depends on the start.
Weights stay within a factor of the start, since E of noise, or of a kernel without use, may fall for ever towards
infinite or zero weights. E falls in part because δ fits the validation rows. Hence errors of refined weights are those
of leaving a validation row out, to first order: r_i/(1 − h_i), with leverages h = diag J(JᵀJ + τI)⁻¹Jᵀ of the
derivatives J at the end, and τ = ‖r‖²/(rows · reach²) for the range of δ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from dmkl.arrays import Float, Index
from dmkl.errors import IndefiniteKernelError
from dmkl.numerics.cholesky import Factor
from dmkl.passes.blas import blas_threads, pinned_blas
from dmkl.passes.elements import combined_kernels
from dmkl.passes.execute import check_memory, machine, run_tasks
from dmkl.passes.view import Lens
from dmkl.solvers.interface import Outcome, Status

_LEAST = 1e-3  # Share of the largest weight from which smaller ones start: from a weight of zero there is no descent.

_REACH = 5.0  # Largest change of the logarithm of a weight: by a factor of at most 148


@dataclass(frozen=True, eq=False)
class RefinedProblem:
    """Targets in one fold, whose weights are refined over all folds."""

    h: Float  # (m, targets)
    offset: Float  # b: (targets,), or (validation rows, targets)
    truth: Float  # y of the validation rows, (rows, targets)
    judge: Callable[[Float, Index], Float]
    """`Fit.judge`, of which the first score decides, and the positions of the targets for it."""
    columns: Index
    lam: Float  # λ, (targets,)
    weights: Float  # γ at the start, (targets, n)
    steps: int  # most steps of a target

    def of(self, at: Index) -> RefinedProblem:
        """The problem of some of the targets."""
        by_column = (self.h[:, at], self.offset[..., at], self.truth[:, at], self.judge, self.columns[at])
        return RefinedProblem(*by_column, self.lam[at], self.weights[at], self.steps)

    @property
    def scale(self) -> Float:
        """1/‖y − ȳ‖, (targets,)."""
        norms = np.linalg.norm(self.truth - self.truth.mean(axis=0), axis=0)
        return 1.0 / np.where(norms > 0.0, norms, 1.0)


def residuals(kernels: Float, h: Float, goal: Float, scale: float, delta: Float, lam: float) -> tuple[Float, Float]:
    """(f − y)/‖y − ȳ‖, (rows,), and its derivatives by δ, (rows, n), of one target in one fold.

    Of `kernels`, (n, m + rows, m), the training rows come first; `h` is (m,), `goal` y − b, and `scale` 1/‖y − ȳ‖.
    """
    weights, m = np.exp(delta), len(h)
    total = np.tensordot(weights, kernels, axes=1)
    factor, new = Factor(total[:m].T, lam), total[m:]  # of (K + λI)/2λ, column-major
    images = weights[:, None] * (kernels @ (factor.solve(h[:, None])[:, 0] / (2.0 * lam)))
    derivatives = images[:, m:].T - new @ factor.solve(images[:, :m].T) / (2.0 * lam)
    return scale * (images[:, m:].sum(axis=0) - goal), scale * derivatives


def refined_weights(
    folds: Sequence[tuple[Float, Float, Float, float]], lam: float, weights: Float, steps: int
) -> tuple[Float, Float, Float]:
    """γ (n,) after at most so many steps from `weights`, and the residuals over all folds before and after.

    These are `weights` where the squared errors of rows that are left out do not fall by more than the standard error
    of their fall, where there is no factor at the start, and where there is none at λ/2 at the end.
    """
    from scipy.optimize import least_squares

    @lru_cache(maxsize=2)
    def at(key: bytes, lam: float = lam) -> tuple[Float, Float]:
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                parts = [residuals(*fold, np.frombuffer(key), lam) for fold in folds]
        except IndefiniteKernelError:  # by rounding, at weights too large for λ: a shorter step follows
            return np.full(sum(len(goal) for _, _, goal, _ in folds), np.inf), np.zeros((0, 0))
        return np.concatenate([r for r, _ in parts]), np.vstack([derivatives for _, derivatives in parts])

    before, _ = at(np.log(np.maximum(weights, np.finfo(float).tiny)).tobytes())
    start = np.log(np.maximum(weights, _LEAST * weights.max()))
    value, derivative = (partial(lambda k, d: at(d.tobytes())[k], k) for k in range(2))
    if not np.isfinite(value(start)).all():
        return weights, before, before
    optimum = least_squares(value, start, derivative, (start - _REACH, start + _REACH), max_nfev=steps + 1)
    after, J = optimum.fun, np.asarray(optimum.jac)
    curvature = J.T @ J
    curvature[np.diag_indices_from(curvature)] += np.mean(after**2) / _REACH**2 + np.finfo(float).tiny
    leverages = np.einsum("rn,nr->r", J, np.linalg.lstsq(curvature, J.T)[0])
    falls = before**2 - (after / np.maximum(1.0 - leverages, np.finfo(float).eps)) ** 2
    # A model of all rows follows, of which the least eigenvalue may be lower than that of a fold: λ/2 leaves room.
    if falls.sum() > np.sqrt(len(falls)) * falls.std() and np.isfinite(at(optimum.x.tobytes(), lam / 2.0)[0]).all():
        return np.exp(optimum.x), before, after
    return weights, before, before


def check_refinement(n_kernels: int, sizes: Sequence[tuple[int, int]]) -> None:
    """Refuse folds, of these numbers of training and validation rows, whose kernels no task can hold."""
    needed = {
        "the kernels of all folds after their steps": sum(8 * n_kernels * (m + new) * m for m, new in sizes),
        "their sums and factors": max(24 * (m + new) * m for m, new in sizes),
    }
    way_out = "Set dmkl.memory higher, take fewer folds, or take more candidates (n_candidates) in place of refine"
    check_memory("refining weights", needed, machine().task_bytes, way_out)


def refine(problems: Sequence[tuple[Lens, RefinedProblem]]) -> list[Outcome]:
    """Refine the weights of all targets, over folds given as K[train then validation, train] and a problem.

    The outcome of a fold has ``extra["weights"]``, the same (targets, n) for all, and ``extra["scores"]``, (targets,).
    A target keeps its weights where `refined_weights` does, and where its mean score does not get better.
    """
    host, n_targets = machine(), len(problems[0][1].lam)
    parts = np.array_split(np.arange(n_targets), min(host.slots, n_targets))
    work = [partial(_refine_task, blas_threads(min(host.slots_per_host, len(parts))))] * len(parts)
    done = run_tasks("refine", work, own=[[(lens, problem.of(at)) for lens, problem in problems] for at in parts])
    weights, scores = np.concatenate([w for w, _ in done]), np.hstack([s for _, s in done])
    return [
        Outcome(Status.CONVERGED, weights.mean(axis=0), None, np.nan, extra={"weights": weights, "scores": of_fold})
        for of_fold in scores
    ]


def _refine_task(threads: int, folds: Sequence[tuple[Lens, RefinedProblem]]) -> tuple[Float, Float]:
    """Weights of some targets, (targets, n), and their scores, (folds, targets)."""
    lenses, problems = zip(*folds, strict=True)
    lam, given = problems[0].lam, problems[0].weights
    stacks = [np.empty((given.shape[1], *lens.view.shape[1:])) for lens in lenses]
    of_fold = [(stack, p.h.T, (p.truth - p.offset).T, p.scale) for stack, p in zip(stacks, problems, strict=True)]
    with pinned_blas(threads):
        for j, single in enumerate(np.eye(given.shape[1])):
            for stack, kernel in zip(stacks, combined_kernels([(lens, single) for lens in lenses]), strict=True):
                stack[j] = kernel
        refined = [
            refined_weights([(K, h[t], y[t], s[t]) for K, h, y, s in of_fold], lam[t], given[t], problems[0].steps)
            for t in range(len(lam))
        ]
    weights, *residuals = map(np.stack, zip(*refined, strict=True))
    cuts = np.cumsum([len(p.truth) for p in problems])[:-1]
    before, after = (
        np.stack(
            [
                p.judge(p.truth + part.T / p.scale, p.columns)[0, 0]
                for p, part in zip(problems, np.split(of_all, cuts, axis=1), strict=True)
            ]
        )
        for of_all in residuals
    )
    better = after.mean(axis=0) > before.mean(axis=0)
    return np.where(better[:, None], weights, given), np.where(better, after, before)
