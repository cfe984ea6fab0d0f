"""MK-FDA on kernels that are products of factors, K_j = Z_jZ_jᵀ, from sums over the samples.

Linear kernels of few features, random Fourier features and Nyström features have factors Z_j (m, d_j) with D = Σd_j
columns in all, mostly fewer than samples. With Z = [Z_1 … Z_n], b the weight β_j of the kernel of each column and
B = diag(b), the α-step (½I + ZBZᵀ/2λ)α = H has the solution (Woodbury)

    α = 2(H − ZW),   W = B^½ M⁻¹ B^½ T,   M = λI + B^½GB^½,   G = ZᵀZ (D, D),   T = ZᵀH (D, c).

So α needs no sample but H, and with U = Zᵀα = 2(T − GW) the same holds for everything that the Newton iteration takes:

    q_j = ‖U_j‖²/4λ,   ‖α‖² = 4 tr(HᵀH − 2TᵀW + WᵀGW),   tr Hᵀα = 2 tr(HᵀH − TᵀW),
    R = H − ½α − ZBU/2λ = ZE,   E = W − BU/2λ,   ‖R‖² = tr EᵀGE,
    C_ij = (1/2λ²) Σ_k [u_ikᵀG_iju_jk − (B^½G_·iu_ik)ᵀM⁻¹(B^½G_·ju_jk)],

as A⁻¹ = 2(I − ZB^½M⁻¹B^½Zᵀ). The formulas hold for any W, with the α that it defines: the certificate is that of this
α, whatever rounding or a semidefinite G does to W. After one pass for G and T, the whole grid over (p, λ) costs no
further one, and a step D³/3 operations for the factor of M.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from dmkl.arrays import Float, Index
from dmkl.errors import refuse
from dmkl.numerics.cholesky import Cholesky
from dmkl.numerics.fisher import Certificate, as_exponent
from dmkl.passes.blas import blas_threads, pinned_blas
from dmkl.passes.execute import machine, run_tasks
from dmkl.passes.factors import has_thin_factors, stepped_factors
from dmkl.passes.view import Lens, covering
from dmkl.solvers.fisher.mkfda import run_here
from dmkl.solvers.fisher.newton import Evaluation, maximize
from dmkl.solvers.fisher.problem import FisherOptions, FisherProblem, FisherSolver
from dmkl.solvers.jobs import Context, Job, over_all_kernels
from dmkl.solvers.outcome import Outcome
from dmkl.solvers.weight_sets.balls import Ball
from dmkl.solvers.weight_sets.base import WeightSet

__all__ = ["SOLVER", "FactorOracle", "solve_mkfda_on_factors"]


class FactorOracle:
    """α as its coefficients W, S and the gradient from G and T (see `dmkl.solvers.fisher.newton.Oracle`).

    Parameters
    ----------
    gram
        G = ZᵀZ, (D, D), in float64.
    targets
        T = ZᵀH, (D, c).
    size
        tr HᵀH.
    kernel_of
        The kernel of each component, (D,).
    lam
        λ
    weights
        The set of weights.
    """

    def __init__(
        self, gram: Float, targets: Float, size: float, kernel_of: Index, lam: float, weights: WeightSet
    ) -> None:
        self.gram, self.targets, self.size = gram, targets, size
        self.kernel_of, self.lam, self.weights = kernel_of, lam, weights

    def evaluate(self, beta: Float, tol: float, *, careful: bool) -> Generator[Any, Any, Evaluation]:
        """Solve for W by a Cholesky factor of M."""
        # No request is made; the statement makes this function a generator, as `Oracle` requires.
        yield from ()
        b = beta[self.kernel_of]
        root = np.sqrt(b)[:, None]
        system = root * self.gram * root.T
        system[np.diag_indices(len(b))] += self.lam
        factor = Cholesky.of(system.T)  # M ⪰ λI for any G = ZᵀZ, so a factor exists down to λ of the rounding of G
        W = root * factor.solve(root * self.targets)
        # T − GW is small where λ is: its rounding, in units of T, is what a small λ has to stay above.
        image = self.gram @ W
        U = 2.0 * (self.targets - image)
        fitted = float(np.sum(self.targets * W))
        alpha_sq = 4.0 * (self.size - 2.0 * fitted + float(np.sum(W * image)))
        q = self._by_kernel(np.sum(U * U, axis=1), len(beta)) / (4.0 * self.lam)
        E = W - b[:, None] * U / (2.0 * self.lam)
        residual_sq = max(0.0, float(np.sum(E * (self.gram @ E))))
        linear = 0.25 * alpha_sq - 2.0 * (self.size - fitted)
        self._root, self._factor, self._U = root, factor, U
        return Evaluation(W, Certificate.of(beta, q, linear, self.weights, residual_sq))

    def curvature(self, evaluation: Evaluation, beta: Float) -> Generator[Any, Any, Float]:
        """C from the factor of M."""
        yield from ()
        n, (D, c) = len(beta), self._U.shape
        # G_·ju_j of every kernel, (D, n, c)
        products = np.empty((D, n, c))
        for j in range(n):
            of_kernel = self.kernel_of == j
            products[:, j] = self.gram[:, of_kernel] @ self._U[of_kernel]
        forms = self._by_kernel(np.einsum("dc,djc->dj", self._U, products), n)
        half = self._factor.half_solve((self._root[:, :, None] * products).reshape(D, n * c))
        half = half.reshape(D, n, c).transpose(1, 0, 2).reshape(n, D * c)
        # Both terms are nearly equal where λ is small. Rounding may leave eigenvalues below zero, which the conic
        # solver refuses.
        values, vectors = np.linalg.eigh((forms + forms.T) / 2.0 - half @ half.T)
        return np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T / (2.0 * self.lam**2))

    def counts(self) -> dict[str, float]:
        """There is nothing to count."""
        return {}

    def _by_kernel(self, values: Float, n: int) -> Float:
        """Sums over the components of each kernel, (n, ...)."""
        sums = np.zeros((n, *values.shape[1:]))
        np.add.at(sums, self.kernel_of, values)
        return sums


def solve_mkfda_on_factors(
    factors: Sequence[npt.ArrayLike],
    H: npt.ArrayLike,
    p: float = 2.0,
    lam: float = 1e-2,
    *,
    tol: float = 1e-4,
    max_iter: int = 200,
) -> Outcome:
    r"""Solve the problem of `dmkl.solve_mkfda` for kernels K_j = Z_jZ_jᵀ that are given by their factors.

    It takes memory for the factors and for D² numbers, D = Σd_j, and 2mD² + O(D³) operations; no kernel is formed. So
    it is for kernels of few components over many samples: D may also exceed m, but then the kernels are smaller.

    Parameters
    ----------
    factors
        Z_j, (m, d_j) each; their number of columns may differ.
    H
        Targets, (m, c) or (m,).
    p, lam, tol, max_iter
        As in `dmkl.solve_mkfda`.

    Returns
    -------
    dmkl.solvers.outcome.Outcome
        As that of `dmkl.solve_mkfda`. A sample with the row z of [Z_1 … Z_n] has the score Σ_j β_jk_j(x, ·)α = z w,
        with w = 2λW, (D, c), in ``extra["coefficients"]``.

    Raises
    ------
    InputError
        If shapes do not fit, p is below 1 or λ is not positive.

    Examples
    --------
    >>> import numpy as np, dmkl
    >>> factors = list(np.random.default_rng(0).normal(size=(2, 30, 4)))
    >>> H = factors[0][:, :1] - factors[0][:, 0].mean()
    >>> solution = dmkl.solve_mkfda_on_factors(factors, H, p=1, lam=0.1)
    >>> solution.gap <= 1e-4, solution.weights.round(2)
    (True, array([0.93, 0.07]))
    """
    h = np.asarray(H, dtype=np.float64)
    h = h[:, None] if h.ndim == 1 else h
    blocks = [np.asarray(Z, dtype=np.float64) for Z in factors]
    if h.ndim != 2 or not blocks or any(Z.ndim != 2 or len(Z) != len(h) for Z in blocks):
        refuse(f"factors must be (m, d_j) and H (m, c), got {[Z.shape for Z in blocks]} and {np.shape(H)}")
    if not 0 < lam < np.inf:
        refuse(f"lam must be positive and finite, got {lam!r}")
    Z, weights = np.concatenate(blocks, axis=1), Ball(as_exponent(p))
    kernel_of = np.repeat(np.arange(len(blocks)), [block.shape[1] for block in blocks])
    oracle = FactorOracle(Z.T @ Z, Z.T @ h, float(np.sum(h * h)), kernel_of, lam, weights)
    solution = run_here(maximize(oracle, weights, weights.start(len(blocks)), tol, max_steps=max_iter))
    outcome = solution.outcome(extra={"coefficients": 2.0 * lam * solution.alpha})
    return replace(outcome, dual=2.0 * (h - Z @ solution.alpha))


# --- the solver -------------------------------------------------------------------------------------------------------


def _check(jobs: Sequence[Job]) -> None:
    if not all(has_thin_factors(job.training.square.view) for job in jobs):
        refuse(
            "solver='factors' is for kernels that are computed from features as they are read (dmkl.build without a "
            "path, function linear or cosine), with fewer columns in all than training samples, in the memory of a "
            "task; take solver='auto'"
        )


def _solve(jobs: Sequence[Job], options: FisherOptions, context: Context) -> list[Outcome]:
    """One task for each training set, which reads its factors once and solves all of its problems."""
    outcomes = [context.workspace.outcome(number) for number in range(len(jobs))]
    members: dict[tuple[int, bytes], list[int]] = {}
    for number, job in enumerate(jobs):
        if outcomes[number] is None:
            kernels = b"" if job.kernels is None else job.kernels.tobytes()
            members.setdefault((id(job.training.square), kernels), []).append(number)
    started, threads = time.monotonic(), blas_threads(min(machine().slots_per_host, max(1, len(members))))
    work = []
    for numbers in members.values():
        first, problems = jobs[numbers[0]], [jobs[number].problem for number in numbers]
        work.append(partial(_solve_training_set, first.training.square, first.kernels, problems, options, threads))
    for numbers, solved in zip(members.values(), run_tasks("factors", work), strict=True):
        for number, outcome in zip(numbers, solved, strict=True):
            kernels_of_job = jobs[number].kernels
            if kernels_of_job is not None:
                outcome = over_all_kernels(outcome, kernels_of_job, jobs[number].training.n_kernels)
            outcomes[number] = outcome
            context.workspace.keep_outcome(number, outcome)
    if members:
        views = {id(job.training.square): job.training.square.view for job in jobs}
        context.tally.add("factors", 1.0, time.monotonic() - started, covering(list(views.values())).bytes_per_pass)
    return [outcome for outcome in outcomes if outcome is not None]


def _solve_training_set(
    lens: Lens, kernels: Index | None, problems: Sequence[FisherProblem], options: FisherOptions, threads: int
) -> list[Outcome]:
    with pinned_blas(threads):
        Z, kernel_of = stepped_factors(lens, kernels)
        n, gram = int(kernel_of[-1]) + 1, Z.T @ Z
        projected: dict[int, Float] = {}
        outcomes: list[Outcome] = []
        last: dict[tuple[int, Ball], Float] = {}
        for problem in problems:
            h = problem.h
            if id(h) not in projected:  # points of a grid share their targets
                projected[id(h)] = Z.T @ h
            oracle = FactorOracle(gram, projected[id(h)], float(np.sum(h * h)), kernel_of, problem.lam, problem.weights)
            beta = problem.weights.start(n) if problem.start is None else problem.start
            if isinstance(problem.weights, Ball):  # the weights of the last λ of this norm are near those of the next
                beta = last.get((id(h), problem.weights), beta)
            how: dict[str, Any] = {"max_steps": options.max_iter, "master": options.master}
            solution = run_here(maximize(oracle, problem.weights, beta, options.tol, **how))
            if isinstance(problem.weights, Ball):
                last[id(h), problem.weights] = solution.beta
            outcomes.append(replace(solution.outcome(), dual=2.0 * (h - Z @ solution.alpha)))
        return outcomes


SOLVER = FisherSolver(
    "factors",
    "sums over the samples, for kernels of few features that are computed as they are read",
    _solve,
    check=_check,
    leaves_out=True,
)
