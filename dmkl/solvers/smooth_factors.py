"""Smooth losses on kernels that are products of factors, K_j = Z_jZ_jᵀ, from sums over the samples.

With f = Zv for the factors Z = [Z_1 … Z_n] side by side, (m, D), P of `dmkl.solvers.smooth` is a function of v and b,

    P(v, b) = Σ_i d_i ℓ(y_i, z_iᵀv + x_iᵀb) + (λ/2) R(v),    R(v) = min over β of Σ_j ‖v_j‖²/β_j,    v_j = β_jZ_jᵀα.

A step replaces the loss at η by its quadratic model with curvatures W and minimizes model and ridge together. With
GZ = ZᵀWZ − ZᵀWX(XᵀWX)⁻¹XᵀWZ = FᵀF and g = Zᵀu, u = −dℓ′, the model is ½‖F⁻ᵀ(Gv + g) − Fv⁺‖² up to a constant: least
squares over at most D pseudo-samples, whose solution (β, α) is found in memory. The step v⁺ − v is one of a proximal
Newton method (Lee, Sun, Saunders, SIAM Journal on Optimization 24, 2014): P falls along it, by R(v + t(v⁺ − v)) ≤
(1 − t)R(v) + tR(v⁺), also with the curvatures W of other predictors. A full step has λα = u + W(η − η⁺), f = K(β)α, and
the certificate of the module above.

A step takes two passes over the factors, for Zv⁺ and for g, of mD operations each, and new curvatures one of mD². So G
is kept, from one point of a grid to the next, for as long as gaps fall to a quarter. Points of a training set follow
each other from large λ to small ones; training sets and classes share passes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dmkl import progress
from dmkl.arrays import Float
from dmkl.errors import refuse
from dmkl.numerics.fisher import Certificate
from dmkl.numerics.losses import Huber, Logistic, Poisson
from dmkl.passes.blas import factor_threads, pinned_blas
from dmkl.passes.rows import Gram, RowFunction, RowMap, fit_row_maps, row_products, weighted_sums
from dmkl.passes.view import covering, has_thin_factors
from dmkl.solvers.fisher.mkfda import Solution, certificate_step
from dmkl.solvers.interface import Outcome, Root, Status, run_with
from dmkl.solvers.jobs import Context, Job, Training, together
from dmkl.solvers.margin.svm import FactoredKernels
from dmkl.solvers.pseudo_samples import PseudoSamples, times
from dmkl.solvers.smooth import Column, SmoothProblem, linear_part

_ENOUGH = 0.25  # The share of the last gap that a step may leave before its curvatures are computed anew
_FIRST_GAP = 0.1  # The gap that is assumed of the first step of a problem
_SQUARE = Huber(1e100)  # ½r² for all residuals r


def takes(jobs: Sequence[Job]) -> bool:
    """Whether these problems can be solved so."""
    return all(
        job.rows is None
        and isinstance(job.problem.loss, Logistic | Poisson)
        and job.problem.y.shape[1] == 1
        and has_thin_factors(job.training.square.view)
        for job in jobs
    )


def check(jobs: Sequence[Job]) -> None:
    """Raise InputError for problems that cannot be solved so."""
    if not takes(jobs):
        refuse(
            "solver='factors' is for the logistic and the Poisson loss, weights of their own for each class, labels of "
            "all samples, and linear kernels that dmkl.build keeps as factors, with fewer columns in all than training "
            "samples; take solver='auto'"
        )


class _Sums(NamedTuple):
    """A request for the sums ZᵀH of columns H, (m, C), and with the roots of weights, (m,), ZᵀWZ and ZᵀW^½H."""

    row_map: RowMap
    root: Float | None
    columns: Float


_Path = Generator[_Sums | RowFunction, Any, None]


@dataclass(frozen=True, eq=False)
class _QuadraticModel:
    """W and G with its factor F, and the parts of XᵀWX and ZᵀWX that steps need."""

    W: Float
    G: Float
    pseudo: PseudoSamples
    of_fixed: Float  # XᵀWX


def solve(jobs: Sequence[Job], context: Context) -> list[Outcome]:
    """Solve the problems of a training set and labels one after another; training sets and labels share passes."""
    started = time.monotonic()
    outcomes = [context.workspace.outcome(number) for number in range(len(jobs))]
    missing = [number for number, outcome in enumerate(outcomes) if outcome is None]
    paths: dict[tuple[Training, bytes], dict[int, Job]] = {}
    for number in sorted(missing, key=lambda number: -jobs[number].problem.lam):
        job = jobs[number]
        paths.setdefault((job.training, job.problem.y.tobytes()), {})[number] = job
    watch = progress.current()
    watch.solved(len(jobs) - len(missing))
    trainings = list(dict.fromkeys(training for training, _ in paths))
    fitted, n_passes = fit_row_maps([training.square.view for training in trainings])
    maps = dict(zip(trainings, fitted, strict=True))

    def keep(number: int, outcome: Outcome) -> None:
        outcomes[number] = kept = outcome if context.duals else replace(outcome, dual=None)
        context.workspace.keep_outcome(number, kept)
        watch.solved(1)

    def answers(requests: Sequence[_Sums | RowFunction]) -> list[Any]:
        nonlocal n_passes
        context.workspace.sync()
        of_requests, n_more = _answers(requests)
        n_passes += n_more
        return of_requests

    side_by_side = together([_path(of_path, maps[training], keep) for (training, _), of_path in paths.items()])
    run_with(side_by_side, several=answers)
    context.workspace.sync()
    if paths:
        stored = covering([training.square.view for training in trainings]).bytes_per_pass
        context.tally.add("factors", n_passes, time.monotonic() - started, stored)
    return [outcome for outcome in outcomes if outcome is not None]


def _answers(requests: Sequence[_Sums | RowFunction]) -> tuple[list[Any], float]:
    """The answers to the requests of each path, and the number of passes: one for each kind."""
    functions = {k: request for k, request in enumerate(requests) if isinstance(request, RowFunction)}
    products, n_passes = row_products([*functions.values()])
    answers: dict[int, Any] = {k: of[:, 0] for k, of in zip(functions, products, strict=True)}
    sums = {k: request for k, request in enumerate(requests) if isinstance(request, _Sums)}
    for alike in ([k for k, request in sums.items() if (request.root is None) == plain] for plain in (True, False)):
        if alike:
            answers |= zip(alike, weighted_sums([sums[k] for k in alike]), strict=True)
            n_passes += 1.0
    return [answers[k] for k in range(len(requests))], n_passes


def _product(training: Training, row_map: RowMap, v: Float, *, new: bool = False) -> RowFunction:
    """A request for Zv of the training rows, or of the held-out ones."""
    rows = np.arange(training.n_train, training.n_rows) if new else np.arange(training.n_train)
    of_rows = replace(row_map, view=training.whole.view) if new else row_map
    return RowFunction(of_rows, 0 if new else 1, rows, partial(times, v[:, None]), 1)


def _path(jobs: dict[int, Job], row_map: RowMap, keep: Callable[[int, Outcome], None]) -> _Path:
    """Solve problems with the same samples and labels, one after another; `keep` takes the outcome of each."""
    first = next(iter(jobs.values()))
    column, model, v = Column(first.problem.y[:, 0], first.problem), None, np.zeros(len(row_map.kernel_of))
    _, g = yield _Sums(row_map, None, column.residual(column.eta)[:, None])
    for number, job in jobs.items():
        problem, best, steps, last = job.problem, None, [], np.inf
        column.problem, lam, X = problem, problem.lam, problem.fixed
        beta = problem.weights.start(job.n_kernels) if problem.start is None else problem.start
        # R(v) is at most that of other weights, if none of v has weight zero there; infinite otherwise.
        with np.errstate(divide="ignore", invalid="ignore"):
            ridge = float(np.nansum(row_map.by_kernel(v * v) / job.spread(beta)))
        for _ in range(problem.max_iter):
            if is_new := model is None:
                model = yield from _quadratic_model(column, row_map)
            inner, sums = _minimized(job, model, row_map, v, g[:, 0], beta, last)
            beta, weights = inner.weights, job.spread(inner.weights)
            new = weights[row_map.kernel_of] * sums
            f = yield _product(job.training, row_map, new)
            u, value = column.residual(column.eta), column.loss(column.eta)
            before = value + 0.5 * lam * ridge
            # b of the model: XᵀW(η⁺ − η) = Xᵀu = 0.
            delta = np.linalg.lstsq(model.of_fixed, X.T @ (model.W * (column.f - f)), rcond=None)[0]
            toward, ridge_fall = f - column.f + X @ delta, 0.5 * lam * (float(sums @ new) - ridge)
            fall = float(u @ toward) - ridge_fall  # of P, to first order
            full = column.loss(column.eta + toward) + ridge_fall <= value - 0.1 * fall + 1e-14 * abs(value)
            t = 1.0 if full or not np.isfinite(fall) else column.search(toward, ridge_fall)
            column.alpha = (u - model.W * toward) / lam
            v, ridge = v + t * (new - v), float(sums @ new) if t == 1.0 else ridge + 2.0 * t * ridge_fall / lam
            column.f, column.b = column.f + t * (f - column.f), column.b + t * delta
            column.fit_fixed()
            u = column.residual(column.eta)
            _, g = yield _Sums(row_map, None, u[:, None])
            gap = np.inf
            if t == 1.0:
                certificate = _certificate(job, column, row_map, g[:, 0], sums, beta)
                steps.append(certificate_step(certificate, weights))
                gap = certificate.gap
                if best is None or gap < best.certificate.gap:
                    state = column.alpha[:, None], column.b[:, None], column.eta[:, None]
                    status = Status.CERTIFIED if gap <= problem.tol else Status.ITERATIONS
                    best = Solution(state, weights, certificate, status, weights_error=inner.weights_error)
                    best_v = v
            if gap <= problem.tol:
                break
            if is_new and before - column.loss(column.eta) - 0.5 * lam * ridge <= 1e-14 * abs(before):
                best = None if best is None else replace(best, status=Status.STALLED)
                break  # P falls no more: the arithmetic resolves no smaller gap
            model, last = (model if gap < _ENOUGH * last else None), gap
        if best is None:
            refuse(f"{problem.name}no step of the loss could be proven: raise max_iter, or take solver='subspace'")
        scores = None
        if job.training.n_rows > job.training.n_train:
            scores = (yield _product(job.training, row_map, best_v, new=True))[:, None]
        keep(number, problem.solved(replace(best, steps=steps), scores))


def _quadratic_model(column: Column, row_map: RowMap) -> Generator[_Sums, Any, _QuadraticModel]:
    """The quadratic model of the loss at the predictor of a column."""
    problem = column.problem
    W, X = problem.loss.bend(column.y, column.eta, problem.d), problem.fixed
    root = np.sqrt(W)
    G, of_X = yield _Sums(row_map, root, root[:, None] * X)
    of_fixed = X.T @ (W[:, None] * X)
    if X.shape[1]:
        G = G - of_X @ np.linalg.lstsq(of_fixed, of_X.T, rcond=None)[0]
    pseudo = PseudoSamples.of(Gram(row_map, G, np.zeros((len(G), 0))), np.zeros((0, 0)))
    return _QuadraticModel(W, G, pseudo, of_fixed)


def _minimized(
    job: Job, model: _QuadraticModel, row_map: RowMap, v: Float, g: Float, beta: Float, last: float
) -> tuple[Outcome, Float]:
    """The minimum of the model with its ridge, to a tenth of the last gap, and Z_jᵀα, (D,)."""
    pseudo, problem = model.pseudo, job.problem
    target = pseudo.columns((model.G @ v + g)[:, None], np.zeros((0, 1)))
    widths = np.bincount(row_map.kernel_of)
    kernels = FactoredKernels.of(pseudo.factors, widths, job.kernels, None)
    given = target, _SQUARE, problem.lam, problem.weights, np.zeros((len(target), 0)), job.n_kernels
    tol = 0.1 * max(problem.tol, min(last, _FIRST_GAP))
    least_squares = SmoothProblem(*given, start=beta, tol=tol, max_iter=problem.max_iter)
    with pinned_blas(factor_threads(len(model.G))):
        outcome = run_with(least_squares(), partial(_answer_dense, kernels))
    return outcome, np.asarray(pseudo.factors.T @ np.asarray(outcome.dual)[:, 0])


def _answer_dense(kernels: FactoredKernels, request: Any) -> Any:
    """The answer of kernels, with K(β) itself: a Cholesky factor of few rows takes less than an eigendecomposition."""
    answer = kernels.answer(request)
    return answer.factor @ answer.factor.T if isinstance(answer, Root) else answer


def _certificate(job: Job, column: Column, row_map: RowMap, g: Float, alpha_sums: Float, beta: Float) -> Certificate:
    """See `dmkl.solvers.smooth.SmoothOracle`, from g = Zᵀu and Zᵀα."""
    problem, kernels = job.problem, slice(None) if job.kernels is None else job.kernels
    q = row_map.by_kernel(g * g)[kernels] / (2.0 * problem.lam)
    excess = float(beta @ row_map.by_kernel((g - problem.lam * alpha_sums) ** 2)[kernels]) / (2.0 * problem.lam)
    linear = linear_part([column])
    return Certificate.of(beta, q, linear, problem.weights, excess, column.null + linear - excess)
