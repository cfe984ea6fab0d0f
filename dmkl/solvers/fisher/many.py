"""MK-FDA of many targets on kernels in memory: solver "stacked".

Hundreds of unlike targets, such as permuted labels, span the space of the training samples, so that a subspace for all
of them would be as large as the kernels are. If the kernels fit in memory, all targets share the work at each λ.

Let A(β) = ½(I + K(β)/λ) and let A(β°) = LLᵀ be the factor at equal weights β°. With x = Lᵀα, h = L⁻¹H and the whitened
kernels Ã_j = L⁻¹K_jL⁻ᵀ/2λ the α-step, the gradient and the objective (`dmkl.numerics.fisher`) are

    A(β)α = H  ⇔  W(β)x = h,   W(β) = I + Σ_j (β_j − β°_j)Ã_j,   q_j = ½ tr xᵀÃ_jx,
    S(α, β) = ½‖x‖² − tr hᵀx + Σ_j (β_j − β°_j)q_j.

The condition of W is that of the ratios of weights, however small λ is, so that single precision is enough. At each
norm p, from the largest to the smallest,

1. one target, the reference, is solved by factors in double precision. Its weights, and its curvature C = −∂q/∂β,
   predict the weights and curvatures of the other targets;
2. the mean W̄ of the matrices W at the predicted weights is inverted once. Conjugate gradients, preconditioned by W̄⁻¹,
   solve W(β)x = h for each target. With W ⪰ μW̄, S(α, β) is at most rᵀW̄⁻¹r/2μ above min_α S, where r = h − Wx;
3. `dmkl.solvers.fisher.mkfda.maximize` finds the weights, one iteration for each target. The iterations advance in
   lockstep, so that all α-steps of a round are computed together.

No operation of the order m³ is made for a single target, except for targets far from the mean, which are solved by a
factor for each weight vector.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dmkl.arrays import Array, Float
from dmkl.errors import IndefiniteKernelError, refuse
from dmkl.files.arrays import kept_arrays, save_arrays
from dmkl.numerics.cholesky import definite_factor
from dmkl.numerics.fisher import DEPENDENT, Certificate, onto_sphere, uniform_weights
from dmkl.numerics.semidefinite import KernelFacts, check_forms
from dmkl.passes.blas import blas_threads, pinned_blas
from dmkl.passes.elements import combined_kernels
from dmkl.passes.execute import check_memory, machine, run_tasks, shared_folder
from dmkl.passes.view import Lens, covering
from dmkl.solvers.fisher.mkfda import Evaluation, MemoryOracle, Solution, maximize, run_here, solve_restricted
from dmkl.solvers.fisher.problem import FisherOptions, FisherSolver
from dmkl.solvers.in_memory import batches
from dmkl.solvers.interface import Outcome, Status, Step, Task, check_finite
from dmkl.solvers.jobs import Context, Job, Training
from dmkl.solvers.masters import LEAST_LOG, MODEL_ERROR, MODEL_STEP, MODEL_STEPS, Factored, ascent_direction, positive
from dmkl.solvers.weight_sets import Ball

_SHARED_STEPS = 8  # Most weights that are tried for a target by shared factors
_CG_STEPS = 20  # Most steps of conjugate gradients; a target that needs more is too far from the mean of the others.
_ALPHA_SHARE = 0.5  # Share of the tolerance for the error of α
_RESOLVED = 0.3  # Share of the tolerance for the rounding of the gradient
_TRUST = 3.0  # Trust region of a prediction for the next norm, in log β
_SMOOTH = 1 + 2**-14  # The norm whose weights are predicted for p = 1
_TARGETS_PER_TASK = 256  # Most targets of a task. More targets share more work and need more memory.
_TASKS, _WORTH = 4, 64
"""Tasks of a training set, enough to keep all slots busy, and the fewest targets that are worth another task."""
_COPIES, _SQUARES, _VECTORS = 2.5, 8, 16
"""Memory of a task: copies of the kernels (original, whitened, and temporary ones while reading), matrices (m, m), and
matrices (m, c) of every target."""
_FINE = 0.5
"""Share of the tolerance to which points are solved, so that weights do not depend on the path of the iteration."""
_TARGETS, _ROWS = 16, 32
"""Targets and rows of the kernels in one product, whose result fits the second cache level."""
_TINY, _LEAST = float(np.finfo(np.float64).tiny), 1e-30
"""Lower limits: of gradients and weights before a logarithm, and of μ in W ⪰ μW̄."""
_SECOND_ORDER, _FIRST_ORDER = 4.0, 5.0
"""Factors of the allowed error of α: of p − 1, and of the tolerance at p = 1. Larger ones cause more Newton steps."""
_FLOOR = 1e-3  # Lower limit of the mean weights, relative to the largest
_NO_FALL = 1e-8  # Share of the expected decrease of the gradient below which the observed decrease is rounding.

_Point = tuple[float, float]


def solve_grid(
    kernels: Float,
    held_out: Float,
    targets: Sequence[Float],
    points: Sequence[_Point],
    tol: float,
    max_steps: int,
    facts: KernelFacts,
    duals: npt.DTypeLike | None = None,
) -> dict[str, Array]:
    """Solve targets H, (m, c) each, at all points (p, λ), to a gap of `tol` relative to βᵀq.

    K_j are given over the training rows, (n, m, m), and of the held-out rows, (n, rows, m). At most `max_steps` weights
    are tried for a target at a point. Returns arrays over targets and points: "weights", "objective" S(α, β), "upper"
    F(α), "gap", which follows from these, ‖H‖² and a bound of S(α, β) − min_α S, "scores", Σ_j β_jK_jα on the held-out
    rows in single precision, (…, rows, c), and "dual", α of the precision `duals` if there is one.
    """
    shape, (n, rows, m), c = (len(targets), len(points)), held_out.shape, targets[0].shape[1]
    tables: dict[str, Array] = {name: np.empty(shape) for name in ("objective", "upper", "gap")}
    tables |= {"weights": np.empty((*shape, n)), "scores": np.empty((*shape, rows, c), np.float32)}
    tables |= {} if duals is None else {"dual": np.empty((*shape, m, c), duals)}
    # Targets are replaced by as few independent columns as they have, of unit norm, and solutions are turned back at
    # the end: fewer columns in every product, and no underflow of squares in single precision.
    turned, back, squares = _independent(np.stack(targets))
    problems = _Problems(kernels, held_out, turned, facts, tol, max_steps)
    for lam in sorted({lam for _, lam in points}):
        # From the largest norm, where weights are nearly equal for all targets, to the smallest, where they are most
        # unlike: each norm starts from the solutions of the one before.
        norms = sorted({p for p, at in points if at == lam}, reverse=True)
        for p, white, solutions in _solve_norms(problems, norms, lam):
            g, betas = points.index((p, lam)), np.stack([solution.beta for solution in solutions])
            x = np.stack([solution.alpha for solution in solutions])
            certificates = [solution.certificate for solution in solutions]
            tables["weights"][:, g], tables["scores"][:, g] = betas, white.scores(betas, x) @ back
            tables["objective"][:, g] = squares * [certificate.objective for certificate in certificates]
            tables["upper"][:, g] = squares * [certificate.upper for certificate in certificates]
            tables["gap"][:, g] = [certificate.gap for certificate in certificates]
            if duals is not None:
                tables["dual"][:, g] = white.duals(x) @ back
    return tables


def _independent(targets: Float) -> tuple[Float, Float, Float]:
    """HQᵀ/s of each target, (t, m, r), sQ, (t, r, c), and s², (t,), for s = ‖H‖, QQᵀ = I and HQᵀQ = H.

    S depends on α and H through ααᵀ and Hαᵀ alone, so that the solution of H is that of HQᵀ/s times sQ, and S grows
    with s². Targets of c classes have rank c − 1. Squares of tiny units would vanish in single precision.
    """
    _, values, rows = np.linalg.svd(targets, full_matrices=False)
    # One rank for all targets, so that they form an array (t, c, m).
    ranks = np.count_nonzero(values > DEPENDENT * values.max(axis=1, keepdims=True), axis=1)
    Q, s = rows[:, : max(1, int(ranks.max()))], np.linalg.norm(values, axis=1)[:, None, None]
    s = np.where(s > 0, s, 1.0)
    return targets @ Q.mT / s, s * Q, s[:, 0, 0] ** 2


@dataclass(frozen=True, eq=False)
class _Problems:
    """The targets of a training set, and the solution of a single one; see `solve_grid`."""

    kernels: Float
    held_out: Float
    targets: Float
    facts: KernelFacts
    tol: float
    max_steps: int

    def solve(self, t: int, p: float, lam: float, start: Float) -> Solution:
        """Solve a target with a factor for each weight vector."""
        return solve_restricted(self._oracle(t, p, lam), start, self.tol, self.max_steps)

    def solve_reference(self, t: int, p: float, lam: float, start: Float) -> tuple[Solution, Float]:
        """Solve a target, and return also its curvature at the solution, which takes one more factor."""
        solution, oracle = self.solve(t, p, lam, start), self._oracle(t, p, lam)
        evaluation = run_here(oracle.evaluate(solution.beta, self.tol, careful=False))
        curvature = run_here(oracle.curvature(evaluation))
        return solution, curvature.dense() if isinstance(curvature, Factored) else curvature

    def _oracle(self, t: int, p: float, lam: float) -> MemoryOracle:
        return MemoryOracle(self.kernels, self.targets[t], lam, Ball(p), facts=self.facts)


# --- iterations in lockstep ------------------------------------------------------------------------------------------


class _TargetOracle:
    """The oracle of one of many targets for `dmkl.solvers.fisher.mkfda.maximize`.

    Its curvature is one model for all weights: the curvature of the reference target, scaled by the gradient of this
    target, and updated (BFGS) by the gradients at all weights tried.
    """

    def __init__(self, curvature: Float) -> None:
        self._curvature = curvature
        self._last: tuple[Float, Float] | None = None

    def evaluate(self, beta: Float, tol: float, *, careful: bool) -> Generator[Any, Any, Evaluation]:
        # The α-step at these weights is computed for all targets together.
        evaluation: Evaluation = yield beta
        q = evaluation.certificate.gradient
        if self._last is not None:
            # The gradient is q = ∂J/∂β and the curvature is −∂q/∂β: the gradient falls along a step.
            step, fall = beta - self._last[0], self._last[1] - q
            along = self._curvature @ step
            expected, seen = float(step @ along), float(step @ fall)
            if expected > 0 and seen > _NO_FALL * expected:  # J is concave: otherwise it is rounding
                self._curvature = self._curvature - np.outer(along, along) / expected + np.outer(fall, fall) / seen
        self._last = beta, q
        return evaluation

    def curvature(self, evaluation: Evaluation) -> Generator[Any, Any, Float]:
        yield from ()
        return self._curvature


def _run_in_lockstep(
    runs: Sequence[Generator[Any, Any, Any]], evaluate: Callable[[list[int], Float], list[Evaluation]]
) -> list[Any]:
    """Run iterations in lockstep; return their results in order.

    Restricted masters are solved first. Then all iterations wait for an α-step, and `evaluate` computes these together,
    from the numbers of the iterations and their weights.
    """
    results: dict[int, Any] = {}
    waiting: dict[int, Float] = {}
    answers: dict[int, Any] = dict.fromkeys(range(len(runs)))
    while answers:
        masters: dict[int, Task] = {}
        for k, answer in answers.items():
            try:
                request = runs[k].send(answer)
            except StopIteration as stop:
                results[k] = stop.value
            else:
                (masters if isinstance(request, Task) else waiting)[k] = request
        answers = dict(zip(masters, _solve_masters(list(masters.values())), strict=True))
        if waiting and not answers:
            answers = dict(zip(waiting, evaluate(list(waiting), np.stack(list(waiting.values()))), strict=True))
            waiting = {}
    return [results[k] for k in range(len(runs))]


def _solve_masters(tasks: Sequence[Task]) -> list[Any]:
    """Solve Newton's restricted masters over one ball; for 1 < p < ∞ all of them in one batch."""
    if len(tasks) < 2 or tasks[0].arguments[3].p == 1:
        return [task.function(*task.arguments) for task in tasks]
    ball: Ball = tasks[0].arguments[3]
    q, curvatures, betas = (np.stack([task.arguments[k] for task in tasks]) for k in range(3))
    # At p = 1 weights may be zero, which logarithms exclude; those masters are solved one by one above.
    aims = _maximize_models(positive(q), curvatures, betas, ball.p)
    return [ascent_direction(*model, ball) for model in zip(aims, q, betas, strict=True)]


# --- targets together ------------------------------------------------------------------------------------------------


def _solve_norms(
    problems: _Problems, norms: Sequence[float], lam: float
) -> Iterator[tuple[float, _Whitened, list[Solution]]]:
    """Solve all targets at decreasing norms, with x as α; change to double precision when single is not enough."""
    left, dtypes = list(norms), iter([np.float32, np.float64])
    while left:
        try:
            together = _Together(problems, left[0], lam, next(dtypes))
            for p in tuple(left):
                yield p, together.white, together.solve(p)
                left.remove(p)
        except _RoundingError:
            continue


class _RoundingError(ArithmeticError):
    """Single precision is not enough for the tolerance."""


class _Together:
    """All targets at one λ, from the largest norm, whose equal weights give the coordinates, to the smallest.

    The constructor and the methods raise `_RoundingError` if single precision is not enough.
    """

    def __init__(self, problems: _Problems, largest: float, lam: float, dtype: npt.DTypeLike) -> None:
        self._problems, self._lam = problems, lam
        equal, n_targets = uniform_weights(len(problems.kernels), largest), len(problems.targets)
        self.white = white = _Whitened(problems, lam, equal, dtype)
        # At equal weights x = h.
        betas = np.repeat(equal[None], n_targets, axis=0)
        evaluations = white.certify(white.h, white.h, betas, Ball(largest), np.zeros(n_targets))
        self._last = [Solution(start.alpha, equal, start.certificate, Status.STALLED) for start in evaluations]
        logs = np.log(self._gradients())
        self._reference = int(np.argmin(np.sum((logs - logs.mean(axis=0)) ** 2, axis=1)))
        """The target whose gradient is nearest to the mean."""
        self._model = problems.solve_reference(self._reference, np.inf, lam, equal)
        """The solution and curvature of the reference at the last norm."""
        self._check_rounding(self._last[self._reference].certificate)

    def solve(self, p: float) -> list[Solution]:
        """Solve all targets at a norm, which must not exceed the last one."""
        if np.isinf(p) or len(self.white.beta) == 1:
            return self._last
        problems, before = self._problems, self._last
        self._last = self._solve_shared(p)
        for t, solution in enumerate(self._last):
            gap = solution.certificate.gap
            if gap > problems.tol:  # too far from the others
                start = solution.beta if gap < 1.0 else onto_sphere(before[t].beta, p)
                single = problems.solve(t, p, self._lam, start)
                self._last[t] = replace(single, alpha=self.white.coordinates(single.alpha))
        return self._last

    def _gradients(self) -> Float:
        return positive(np.stack([solution.certificate.gradient for solution in self._last]))

    def _check_rounding(self, certificate: Certificate) -> None:
        """Compare the gradient of the reference target with that in double precision."""
        exact = self._model[0].certificate.gradient
        error = np.abs(certificate.gradient - exact).max() / exact.max(initial=_TINY)
        if error > _RESOLVED * self._problems.tol and self.white.dtype == np.float32:
            raise _RoundingError

    def _solve_shared(self, p: float) -> list[Solution]:
        """Solve all targets at a norm 1 ≤ p < ∞ with one preconditioner, at most `_SHARED_STEPS` weights each."""
        problems, white, ball, reference = self._problems, self.white, Ball(p), self._reference
        starts, curvatures = self._predict(p)
        mean = _Mean(white, starts.mean(axis=0))
        x = mean.apply(white.h)
        x[reference] = white.coordinates(self._model[0].alpha)
        # The error of the gradient is of the order √(S − min_α S). Its effect on F is of first order for p = 1, where
        # F depends on the largest entry alone, and of second order divided by p − 1 otherwise.
        share = _ALPHA_SHARE * min(1.0, max(_SECOND_ORDER * (p - 1.0), _FIRST_ORDER * problems.tol))
        allowed = share * problems.tol * np.sum(starts * self._gradients(), axis=1)

        def evaluate(numbers: list[int], betas: Float) -> list[Evaluation]:
            h = white.h[numbers]
            x[numbers], excess = mean.solve(betas, h, x[numbers], allowed[numbers])
            evaluations = white.certify(x[numbers], h, betas, ball, excess)
            for k, beta, evaluation in zip(numbers, betas, evaluations, strict=True):
                if k == reference and np.array_equal(beta, self._model[0].beta):
                    self._check_rounding(evaluation.certificate)
            return evaluations

        most = min(_SHARED_STEPS, problems.max_steps)
        runs = [
            maximize(_TargetOracle(curvature), ball, start, problems.tol, max_steps=most, of_kernels=True)
            for start, curvature in zip(starts, curvatures, strict=True)
        ]
        return _run_in_lockstep(runs, evaluate)

    def _predict(self, p: float) -> tuple[Float, Float]:
        """Predict weights (t, n) and curvatures (t, n, n) of all targets at a norm.

        The weights maximize the models of the last norm. The error of this prediction for the reference target, whose
        solution at the new norm is computed, corrects the predictions of all targets.
        """
        reference, (last, curvature) = self._reference, self._model
        q, betas = self._gradients(), np.stack([solution.beta for solution in self._last])
        start = _aims(last.certificate.gradient[None], curvature[None], last.beta[None], p)[0]
        self._model = now, curvature_now = self._problems.solve_reference(reference, p, self._lam, start)
        # C_ij grows with the parts of the kernels i and j in S.
        sizes = np.sqrt(q / q[reference])
        sizes = sizes[:, :, None] * sizes[:, None, :]
        starts = _aims(q, curvature * sizes, betas, p)
        if p > 1:
            logs = _logs(starts) + _logs(now.beta) - _logs(starts[reference])
            starts = _normalized(logs, p)
        starts[reference] = now.beta
        return starts, curvature_now * sizes


class _Whitened:
    """The whitened kernels at one λ and weights β°, with products for many targets by BLAS.

    Each Ã_j = U_j + U_jᵀ is stored as its upper triangle U_j with half the diagonal, in blocks of rows that begin at
    the diagonal. This halves the memory, and the work of sums and traces.
    """

    def __init__(self, problems: _Problems, lam: float, beta: Float, dtype: npt.DTypeLike) -> None:
        kernels, held_out = problems.kernels, problems.held_out
        n, m, _ = kernels.shape
        self.lam, self.beta, self.dtype, self._facts = lam, beta, np.dtype(dtype), problems.facts
        system = np.tensordot(beta * (0.5 / lam), kernels, 1)
        system[np.diag_indices(m)] += 0.5
        self._factor = definite_factor(system.T, lam)
        self.root: Array = np.tril(self._factor.lower).T.astype(dtype)  # Lᵀ, (m, m)
        self._upper = [np.empty((n, min(_ROWS, m - start), m - start), dtype) for start in range(0, m, _ROWS)]
        self._held_out: Array = np.empty(held_out.shape, dtype)
        for j in range(n):
            white = self._factor.congruent(kernels[j].T) * (0.5 / lam)
            for start, rows in zip(range(0, m, _ROWS), self._upper, strict=True):
                size = rows.shape[1]
                rows[j] = white[start : start + size, start:]
                rows[j, :, :size] *= 0.5
            self._held_out[j] = self._factor.half_solve(held_out[j].T.copy(order="F")).T
        targets = np.concatenate([h.T for h in problems.targets])
        self.h: Array = self._factor.half_solve(targets.T).T.astype(dtype).reshape(len(problems.targets), -1, m)
        """h = L⁻¹H of each target, (t, c, m)."""

    def coordinates(self, alpha: Float) -> Array:
        """Compute x = Lᵀα, (c, m)."""
        return self._factor.half_product_transposed(alpha).T.astype(self.dtype)

    def duals(self, x: Array) -> Float:
        """Compute α = L⁻ᵀx of some targets, (t, m, c)."""
        t, c, m = x.shape
        alpha = self._factor.half_solve(x.reshape(t * c, m).T.astype(np.float64), transposed=True)
        return np.asarray(alpha.T.reshape(t, c, m).mT)

    def scores(self, betas: Float, x: Array) -> Array:
        """Compute Σ_j β_jK_jα on the held-out rows for targets at weights (t, n), (t, rows, c)."""
        n, n_rows, m = self._held_out.shape
        scores = np.empty((len(x), n_rows, x.shape[1]), self.dtype)
        for start in range(0, n_rows, _ROWS):
            rows = self._held_out[:, start : start + _ROWS].reshape(n, -1)
            for group in _groups(len(x)):
                combined = (betas[group].astype(self.dtype) @ rows).reshape(len(x[group]), -1, m)
                scores[group, start : start + _ROWS] = combined @ x[group].mT
        return scores

    def system(self, beta: Float) -> Array:
        """W at weights (n,), (m, m)."""
        m = len(self.root)
        system = np.zeros((m, m), self.dtype)
        for start, rows in zip(range(0, m, _ROWS), self._upper, strict=True):
            system[start : start + rows.shape[1], start:] = np.tensordot((beta - self.beta).astype(self.dtype), rows, 1)
        system += system.T.copy()
        system[np.diag_indices(m)] += 1.0
        return system

    def products(self, betas: Float, x: Array) -> Array:
        """Wx of each target at weights (t, n), (t, c, m)."""
        products = x.copy()
        n, m = len(self.beta), x.shape[2]
        for group in _groups(len(x)):
            weights, vectors, sums = (betas[group] - self.beta).astype(self.dtype), x[group], products[group]
            for start, rows in zip(range(0, m, _ROWS), self._upper, strict=True):
                stop = start + rows.shape[1]
                combined = (weights @ rows.reshape(n, -1)).reshape(len(weights), stop - start, m - start)
                sums[:, :, start:stop] += vectors[:, :, start:] @ combined.mT
                sums[:, :, start:] += vectors[:, :, start:stop] @ combined
        return products

    def gradients(self, x: Array) -> Float:
        """q_j = ½ tr xᵀÃ_jx of some targets, (t, n)."""
        n, m = len(self.beta), x.shape[2]
        gradients = np.zeros((len(x), n))
        for group in _groups(len(x)):
            vectors = x[group]
            for start, rows in zip(range(0, m, _ROWS), self._upper, strict=True):
                outer = vectors[:, :, start : start + rows.shape[1]].mT @ vectors[:, :, start:]
                gradients[group] += outer.reshape(len(vectors), -1) @ rows.reshape(n, -1).T
        return gradients

    def certify(self, x: Array, h: Array, betas: Float, ball: Ball, excess: Float) -> list[Evaluation]:
        """The certificates of targets with x and h (t, c, m) at weights (t, n); S(α, β) − min_α S ≤ `excess`, (t,)."""
        q = self.gradients(x)
        # ‖α‖² is not computed from α: with x = Lᵀα and q° = Σ_j β°_jq_j, ½‖x‖² = ½αᵀA(β°)α = ¼‖α‖² + q°.
        squares, inner = _dots(x, x), _dots(x, h)
        fixed = 0.5 * squares - q @ self.beta  # ¼‖α‖²
        size = np.maximum(fixed, 0.0) / self.lam
        # Ã_j is at most I/β°_j, since β°_jÃ_j ⪯ I. So rounding changes q_j by up to the unit times ‖x‖²/β°_j.
        noise = float(np.finfo(self.dtype).eps) * squares / self.beta.min()
        evaluations = []
        for t, beta in enumerate(betas):
            check_forms(q[t], self._facts, float(size[t]), float(noise[t]))
            linear = float(fixed[t] - inner[t])
            rest = max(0.0, 1.0 + linear)  # targets have unit norm
            certificate = Certificate.of(beta, q[t], linear, ball, float(excess[t]), rest)
            evaluations.append(Evaluation(x[t], certificate))
        return evaluations


class _Mean:
    """The preconditioner W̄⁻¹ at the mean weights β̄ of some targets."""

    def __init__(self, white: _Whitened, beta: Float) -> None:
        self._white, self._beta = white, np.maximum(beta, _FLOOR * float(beta.max()))
        # The floor keeps W̄ positive definite where a weight is zero for all targets. The inverse, not the factor, is
        # kept: one product with it takes less time than two triangular solves with many right-hand sides.
        try:
            self._inverse = definite_factor(white.system(self._beta).T, white.lam).inverse()
        except IndefiniteKernelError as error:
            raise _RoundingError if white.dtype == np.float32 else error from None

    def apply(self, r: Array) -> Array:
        """W̄⁻¹r of each, (t, c, m)."""
        return np.asarray((r.reshape(-1, r.shape[2]) @ self._inverse).reshape(r.shape))

    def solve(self, betas: Float, h: Array, x: Array, allowed: Float) -> tuple[Array, Float]:
        """Solve W(β)x = h from x, (t, c, m), by conjugate gradients; also return bounds of S(α, β) − min_α S, (t,).

        Each target stops at its `allowed` bound. The residual r = h − Wx gives two of them: rᵀW̄⁻¹r/2μ, since W ⪰ μW̄
        with μ = min_j β_j/β̄_j ≤ 1, and ‖R‖² with R = Lr, which is useful if a weight is zero.
        """
        white, x, tiny = self._white, x.copy(), np.finfo(x.dtype).tiny
        # W(β) − μW̄ = (1 − μ)(I − Σ_j β°_jÃ_j) + Σ_j (β_j − μβ̄_j)Ã_j ⪰ 0 for μ ≤ 1, as both parts are.
        least = np.clip((betas / self._beta).min(axis=1), _LEAST, 1.0)
        excess, going = np.zeros(len(x)), np.arange(len(x))
        r = h - white.products(betas, x)
        directions, last = np.zeros_like(r), np.ones(r.shape[:2], r.dtype)
        for step in range(_CG_STEPS + 1):
            z = self.apply(r)
            # Each column of a target has its own step length: the systems share only the preconditioner.
            squares = np.maximum(np.vecdot(r, z), tiny)
            bound = squares.sum(axis=1, dtype=np.float64) / (2.0 * least[going])
            # The second bound costs a product with L: it is computed for targets that the first does not settle.
            open_ = np.flatnonzero(bound > allowed[going])
            residuals = r[open_] @ white.root
            bound[open_] = np.minimum(bound[open_], _dots(residuals, residuals))
            excess[going] = bound
            left = bound > allowed[going]
            if step == _CG_STEPS or not left.any():
                break
            # Converged targets leave the iteration; the others become smaller arrays, not masked ones.
            going, r, squares = going[left], r[left], squares[left]
            directions = z[left] + (squares / last[left])[:, :, None] * directions[left]
            products = white.products(betas[going], directions)
            lengths = (squares / np.maximum(np.vecdot(directions, products), tiny))[:, :, None]
            x[going] += lengths * directions
            r -= lengths * products
            last = squares
        return x, excess


# --- models of the gradient ------------------------------------------------------------------------------------------


def _aims(q: Float, curvatures: Float, betas: Float, p: float) -> Float:
    """Weights that maximize the models of targets over the ball of a norm, (t, n), within a trust region.

    Far from its own weights a model may set weights to zero that the optimum needs, and they would stay zero. For p = 1
    the weights of a norm slightly above 1 are used, whose objective differs by less than the tolerance.
    """
    # The step is limited in logarithms, in which a weight cannot become zero within finitely many steps.
    change = _logs(_maximize_models(positive(q), curvatures, betas, max(p, _SMOOTH))) - _logs(betas)
    return _normalized(_logs(betas) + np.clip(change, -_TRUST, _TRUST), p)


def _maximize_models(q: Float, curvatures: Float, betas: Float, p: float) -> Float:
    """Weights b > 0 with ‖b‖_p = 1, (t, n), that are optimal by models of the gradient, for 1 < p < ∞.

    No weight of the optimum with a positive gradient is zero: b is optimal if q(b) is proportional to b^(p−1). With the
    model log q_j(b) = log q_j − [C(b − β)]_j/q_j of positive gradients q at weights β, (t, n) each, and positive
    semidefinite curvatures C, (t, n, n),

        log q_j(b) = log μ + (p − 1) log b_j,   Σ_j b_j^p = 1

    is solved by Newton's method for log b and log μ. In these variables tiny weights, as for p near 1, are not special,
    and the gradient stays positive for steps of any length.
    """
    t, n = q.shape
    relative = curvatures / q[:, :, None]
    # Gradients are divided by the largest, since only their ratios matter: log μ absorbs the factor, and logarithms of
    # tiny gradients lose no digits.
    fixed = np.log(q / q.max(axis=1, keepdims=True)) + np.einsum("tij,tj->ti", relative, betas)
    u, v = _logs(betas), np.zeros(t)
    u -= np.log(np.sum(np.exp(p * u), axis=1, keepdims=True)) / p
    system, every = np.zeros((t, n + 1, n + 1)), np.arange(n)
    for _ in range(MODEL_STEPS):
        b, powers = np.exp(u), np.exp(p * u)
        size = powers.sum(axis=1, keepdims=True)
        left = np.hstack([fixed - np.einsum("tij,tj->ti", relative, b) - v[:, None] - (p - 1.0) * u, -np.log(size) / p])
        # Newton's matrix: the derivative of C b/q by log b is C_ij b_j/q_i, that of (p − 1) log b is diagonal, and the
        # last row and column belong to the constraint and to log μ.
        system[:, :n, :n] = relative * b[:, None, :]
        system[:, every, every] += p - 1.0
        system[:, :n, n] = 1.0
        system[:, n, :n] = powers / size
        step = np.linalg.solve(system, left[:, :, None])[:, :, 0]
        # A logarithm may rise by the largest step, and fall by any.
        length = np.minimum(1.0, MODEL_STEP / np.maximum(step[:, :n].max(axis=1), MODEL_STEP))
        u = np.maximum(u + length[:, None] * step[:, :n], LEAST_LOG)
        v += length * step[:, n]
        if float(np.abs(b * step[:, :n]).max()) < MODEL_ERROR:
            break
    return _normalized(u, p)


def _normalized(logs: Float, p: float) -> Float:
    """Weights on the sphere by their logarithms up to a constant, (t, n)."""
    betas = np.exp(logs - logs.max(axis=1, keepdims=True))
    return np.asarray(betas / np.sum(betas**p, axis=1, keepdims=True) ** (1.0 / p))


def _logs(beta: Float) -> Float:
    """Logarithms of weights; those of zeros are finite."""
    return np.asarray(np.log(np.maximum(beta, _TINY)))


def _groups(n_targets: int) -> list[slice]:
    return [slice(start, start + _TARGETS) for start in range(0, n_targets, _TARGETS)]


def _dots(a: Array, b: Array) -> Float:
    """Inner products of a and b, (t, c, m), in double precision, (t,)."""
    return np.array([np.vdot(x.astype(np.float64), y.astype(np.float64)) for x, y in zip(a, b, strict=True)])


# --- the solver ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Chunk:
    """Some targets of a training set, at some points of the grid: the work of a task."""

    number: int
    example: Job  # A job with the training set and the kernels of all
    targets: list[Float]
    points: list[_Point]
    numbers: list[dict[_Point, int]]
    """Of each target the number of the job at each point, also at those of other chunks."""


def _kernel_bytes(training: Training) -> int:
    return 8 * training.n_kernels * training.n_rows * training.n_train


def _check(jobs: Sequence[Job]) -> None:
    if not all(isinstance(job.problem.weights, Ball) for job in jobs):
        refuse(
            "solver='stacked' learns weights in the ball of a norm only; for groups of kernels, prices and constraints "
            "use another solver, such as solver='subspace'"
        )
    kernels = max(_kernel_bytes(job.training) for job in jobs)
    square, target = max(8 * job.training.n_train**2 for job in jobs), max(8 * job.problem.h.size for job in jobs)
    needed = round(_COPIES * kernels + _SQUARES * square + _VECTORS * _TARGETS_PER_TASK * target)
    host, way_out = machine(), "Take solver='subspace', or set dmkl.memory higher"
    check_memory("solver='stacked'", {"all kernels of a training set": needed}, host.task_bytes, way_out)
    check_memory("solver='stacked'", {"kernels on disk": kernels}, host.total_bytes // 2, way_out, "at once")


def _solve(jobs: Sequence[Job], options: FisherOptions, context: Context) -> list[Outcome]:
    chunks = _chunks(jobs)
    trainings = list(dict.fromkeys(chunk.example.training for chunk in chunks))
    outcomes: dict[int, Outcome] = {}
    for batch in batches(trainings, list(map(_kernel_bytes, trainings)), machine().total_bytes // 2):
        some = [chunk for chunk in chunks if chunk.example.training in batch]
        outcomes |= _solve_batch(some, jobs, options, context)
    return [outcomes[number] for number in range(len(jobs))]


def _chunks(jobs: Sequence[Job]) -> list[_Chunk]:
    """Targets of one training set with the same kernels and points, at some λ each; the same chunks in every run."""
    by_target: dict[tuple[int, bytes, int], dict[_Point, int]] = {}
    for number, job in enumerate(jobs):
        key = *job.kernels_key, id(job.problem.h)
        by_target.setdefault(key, {})[job.problem.weights.p, job.problem.lam] = number
    groups: dict[tuple[int, bytes, tuple[_Point, ...]], list[dict[_Point, int]]] = {}
    for (training_id, kernels, _), numbers in by_target.items():
        groups.setdefault((training_id, kernels, tuple(numbers)), []).append(numbers)
    chunks: list[_Chunk] = []
    for (*_, points), members in groups.items():
        lams = sorted({lam for _, lam in points})
        n_ridges = min(_TASKS, len(lams)) if len(members) >= _WORTH else 1
        n_parts = max(-(-len(members) // _TARGETS_PER_TASK), min(_TASKS // n_ridges, len(members) // _WORTH))
        for part in range(n_parts):
            numbers_of = members[part * len(members) // n_parts : (part + 1) * len(members) // n_parts]
            of_targets = [jobs[next(iter(numbers.values()))] for numbers in numbers_of]
            for ridge in range(n_ridges):
                # Small λ take more time than large ones: each chunk has some of both.
                at = [point for point in points if point[1] in lams[ridge::n_ridges]]
                targets = [job.problem.h for job in of_targets]
                chunks.append(_Chunk(len(chunks), of_targets[0], targets, at, numbers_of))
    return chunks


def _solve_batch(
    chunks: Sequence[_Chunk], jobs: Sequence[Job], options: FisherOptions, context: Context
) -> dict[int, Outcome]:
    """Outcomes of some chunks, by the number of the job; one pass. Chunks whose file exists are not solved again."""
    workspace = context.workspace
    files = [None if workspace.temporary else workspace.path / f"outcome-{chunk.number}.npz" for chunk in chunks]
    # For leave-one-out scores, of which a permutation test needs thousands, α in single precision is enough.
    duals = np.float64 if context.duals else np.float32 if options.leave_one_out else None
    arrays = [(kept_arrays(file) if file is not None else None) or {} for file in files]
    # Version 0.1 kept no dual variables.
    missing = [k for k, tables in enumerate(arrays) if ("weights" if duals is None else "dual") not in tables]
    with shared_folder("where the kernels of training sets are written") as folder:
        kernel_files = _read((chunks[k].example.training for k in missing), folder, context)
        # BLAS threads are divided among the tasks of a machine; a single task gets all of them.
        threads = blas_threads(min(machine().slots_per_host, max(1, len(missing))))
        fine, work = replace(options, tol=_FINE * options.tol), list[Any]()
        for k in missing:
            example, paths = chunks[k].example, kernel_files[chunks[k].example.training]
            some = paths if example.kernels is None else [paths[j] for j in example.kernels]
            work.append(partial(_solve_chunk, some, chunks[k].points, fine, threads, duals, example.facts, files[k]))
        solved = run_tasks("solve-stacked", work, own=[chunks[k].targets for k in missing])
    for k, tables in zip(missing, solved, strict=True):
        arrays[k] = tables
    outcomes: dict[int, Outcome] = {}
    for chunk, tables in zip(chunks, arrays, strict=True):
        for t, numbers in enumerate(chunk.numbers):
            for g, point in enumerate(chunk.points):
                outcomes[numbers[point]] = _outcome(tables, t, g, jobs[numbers[point]], options)
    return outcomes


def _read(trainings: Iterable[Training], folder: Path, context: Context) -> dict[Training, list[Path]]:
    """Write the kernels of each training set to files, (rows, m) after the steps; one pass for all."""
    distinct = list(dict.fromkeys(trainings))
    if not distinct:
        return {}
    started, lenses = time.monotonic(), [training.whole for training in distinct]
    n_kernels, bytes_per_pass = distinct[0].n_kernels, covering([lens.view for lens in lenses]).bytes_per_pass
    # Each file has one writer: pages that two machines write to would be lost on a network's file system.
    files = {t: [folder / f"kernel-{k}-{place}" for k in range(n_kernels)] for place, t in enumerate(distinct)}
    work = [partial(_write, k, of_kernel) for k, of_kernel in enumerate(zip(*files.values(), strict=True))]
    run_tasks("read-pass", work, lenses, task_bytes=bytes_per_pass // n_kernels)
    context.tally.add("load", 1.0, time.monotonic() - started, bytes_per_pass)
    return files


def _write(kernel: int, files: Sequence[Path], lenses: Sequence[Lens]) -> None:
    single = 1.0 * (np.arange(lenses[0].view.shape[0]) == kernel)
    with pinned_blas(1):
        for file, entries in zip(files, combined_kernels([(lens, single) for lens in lenses]), strict=True):
            check_finite(entries)
            entries.tofile(file)  # without a header: CPython 3.11 may fail where two threads parse one


def _solve_chunk(
    kernel_files: Sequence[Path],
    points: list[_Point],
    options: FisherOptions,
    threads: int,
    duals: type[np.floating[Any]] | None,
    facts: KernelFacts,
    file: Path | None,
    targets: list[Float],
) -> dict[str, Array]:
    """Solve some targets at all points; arrays over (target, point), which are kept in the file, if any."""
    m = len(targets[0])
    whole = [np.fromfile(path).reshape(-1, m) for path in kernel_files]
    # Rows of the training samples come first in each file, held-out rows after them (`Training.whole`).
    square, held_out = np.stack([kernel[:m] for kernel in whole]), np.stack([kernel[m:] for kernel in whole])
    del whole
    with pinned_blas(threads):
        tables = solve_grid(square, held_out, targets, points, options.tol, max(1, options.max_iter), facts, duals)
    if file is not None:
        save_arrays(file, tables, synced=True)
    return tables


def _outcome(arrays: dict[str, Array], t: int, g: int, job: Job, options: FisherOptions) -> Outcome:
    """The outcome of a target at a point, by their positions."""
    weights = job.spread(arrays["weights"][t, g])
    objective, upper, gap = (float(arrays[name][t, g]) for name in ("objective", "upper", "gap"))
    status = Status.CERTIFIED if arrays["gap"][t, g] <= options.tol else Status.ITERATIONS
    dual = arrays["dual"][t, g] if "dual" in arrays else None
    step = Step(weights, {"objective": objective, "upper": upper, "gap": gap})
    return Outcome(status, weights, dual, objective, upper, gap, steps=[step], scores=arrays["scores"][t, g])


SOLVER = FisherSolver(
    "stacked",
    "whole grids of many targets, which share factors; all kernels in the memory of a task",
    _solve,
    check=_check,
    leaves_out=True,
    files=True,
)
