"""The wrapper method: MK-FDA with α in the full space, by an α-step for fixed weights and a master in turn.

`AlphaStep` is what the oracles of the solvers "direct" and "cg" share: α for given weights, refined until its residual
no longer hides the gap of the weights. The iteration itself is `dmkl.solvers.fisher.mkfda.maximize`.

`_DirectStep` is the α-step by a Cholesky factor of the combined kernel (solver "direct"); `dmkl.solvers.fisher.cg` has
the one by conjugate gradients.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dmkl.arrays import Array, Float
from dmkl.numerics.cholesky import Factor
from dmkl.numerics.fisher import certify
from dmkl.numerics.semidefinite import UNKNOWN, KernelFacts, check_forms, lowest_on_span, tell_indefinite
from dmkl.passes.execute import check_memory, machine
from dmkl.passes.sums import FactorHandle, direct_bytes
from dmkl.solvers import interface
from dmkl.solvers.fisher.mkfda import DENSE, Evaluation, Oracle, maximize
from dmkl.solvers.fisher.problem import FisherOptions, FisherProblem, FisherSolver
from dmkl.solvers.interface import OfFactor, Outcome, Request, Solver
from dmkl.solvers.jobs import Context, Job
from dmkl.solvers.masters import Factored

_MOST_REFINEMENTS = 5


class AlphaStep(Oracle):
    """An oracle that solves Aα = H, A = ½(I + K(β)/λ), (m, c)."""

    def __init__(self, problem: FisherProblem, facts: KernelFacts = UNKNOWN) -> None:
        self.problem, self.facts = problem, facts
        self.products = 0  # Products with the combined kernel so far
        self.alpha: Float = np.empty((0, 0))  # The last α, (m, c)
        self.each_product: Array = np.empty((0, 0, 0))  # K_jα of it, (n, m, c)

    @abstractmethod
    def begin(self, beta: Float) -> Generator[Request, Any, Float]:
        """Compute α for new weights."""

    @abstractmethod
    def correct(self, residual: Float, target: float) -> Generator[Request, Any, Float]:
        """Compute what the last weights' α lacks, from its true residual, to ‖R‖² of about `target`."""

    def evaluate(self, beta: Float, tol: float, *, careful: bool) -> Generator[Request, Any, Evaluation]:
        problem = self.problem
        given = beta, problem.h, problem.lam, problem.weights
        alpha = yield from self.begin(beta)
        products = yield interface.EachProduct(alpha)
        certificate, residual = certify(alpha, products, *given)
        # The first α-step may be rough: its tolerance is known only once S and the gap of the weights are. Refinement
        # goes on until the error of α no longer hides that gap.
        for _ in range(_MOST_REFINEMENTS):
            check_forms(certificate.gradient, self.facts, float(np.sum(alpha * alpha)) / (4.0 * problem.lam))
            if certificate.alpha_gap <= _allowed_alpha_gap(tol, certificate.weights_gap, careful=careful):
                break
            # A tenth of the allowed residual, so that one refinement is enough in most cases.
            target = 0.1 * _allowed_alpha_gap(tol, 0.0, careful=careful) * certificate.scale
            better = alpha + (yield from self.correct(residual, target))
            better_products = yield interface.EachProduct(better)
            refined, better_residual = certify(better, better_products, *given)
            # Refinement that no longer halves ‖R‖² has reached the accuracy of the arithmetic.
            if not refined.residual_sq < 0.5 * certificate.residual_sq:
                break
            alpha, products, certificate, residual = better, better_products, refined, better_residual
        self.alpha, self.each_product = alpha, products
        return Evaluation(alpha, certificate, counts={"products": self.products})


def _allowed_alpha_gap(tol: float, weights_gap: float, *, careful: bool) -> float:
    """The relative ‖R‖² that an α-step may leave.

    ‖R‖² is of second order in the error of α, the gradient of first order. Where F has kinks (p = 1, or near it) that
    error can show in the gap of the weights: if the gap stops shrinking (`careful`), ‖R‖ itself is kept below it.
    """
    return (0.1 * max(tol, weights_gap)) ** 2 if careful else max(0.1 * tol, 0.01 * weights_gap)


def side_by_side(products: Array) -> Float:
    """The blocks K_jα, (n, m, c), as one block of columns (m, n·c), in float64."""
    n, m, c = products.shape
    return np.ascontiguousarray(products.transpose(1, 0, 2), dtype=np.float64).reshape(m, n * c)


def wrapper(n_kernels: int, step: AlphaStep, options: FisherOptions) -> Generator[Request, Any, Outcome]:
    """Solve the problem of an α-step over n kernels, by the options `tol`, `max_iter` and `master`."""
    problem = step.problem
    start = problem.weights.start(n_kernels) if problem.start is None else problem.start
    how: dict[str, Any] = {"max_steps": options.max_iter, "master": options.master, "name": problem.name}
    solution = yield from maximize(step, problem.weights, start, options.tol, **how)
    # Rayleigh quotients on the span of α bound the lowest eigenvalue of each kernel from above, without a pass.
    inner, forms = step.alpha.T @ step.alpha, step.alpha.T @ step.each_product
    tell_indefinite(lowest_on_span(inner, forms, step.facts), step.facts)
    return solution.outcome()


class _DirectStep(AlphaStep):
    """The α-step by a Cholesky factor of the combined kernel, which one pass adds up."""

    def __init__(self, job: Job) -> None:
        super().__init__(job.problem, job.facts)
        self._factor: FactorHandle | None = None
        self._beta: Float | None = None
        self._unit = job.training.square.unit_vector()

    def begin(self, beta: Float) -> Generator[Request, Any, Float]:
        yield from self._factorize(beta)
        return (yield OfFactor(self._factor, Factor.solve, (self.problem.h,)))  # type: ignore[no-any-return]

    def _factorize(self, beta: Float) -> Generator[Request, Any, None]:
        self._factor = None  # frees the memory of the old factor before the new one is requested
        self._factor = yield interface.CombinedFactor(beta, self.problem.lam)
        self._beta = beta
        self.products += 1

    def correct(self, residual: Float, target: float) -> Generator[Request, Any, Float]:
        # One step of iterative refinement, without a pass.
        return (yield OfFactor(self._factor, Factor.solve, (residual,)))  # type: ignore[no-any-return]

    def curvature(self, evaluation: Evaluation) -> Generator[Request, Any, Float | Factored]:
        # The factor stays where it is: all n·c right-hand sides go there, and a root of C comes back.
        root: Float = yield OfFactor(self._factor, Factor.root_of_forms, (self.each_product,))
        curvature = Factored(root / (2.0 * self.problem.lam))
        return curvature if len(root) > DENSE else curvature.dense()

    def inverse(self, beta: Float) -> Generator[Request, Any, Float]:
        """`Outcome.inverse` for these weights; it takes no pass if they are the last ones."""
        if beta is not self._beta:
            yield from self._factorize(beta)
        solved = [] if self._unit is None else [(yield OfFactor(self._factor, Factor.solve, (self._unit[:, None],)))]
        diagonal: Float = yield OfFactor(self._factor, Factor.inverse_diagonal)  # which overwrites the factor
        return np.column_stack([diagonal, *solved]) if solved else diagonal


def needed_bytes(jobs: Sequence[Job]) -> int:
    """Memory that the largest problem takes."""
    return max(direct_bytes(training.square.view, 1) for training in {job.training for job in jobs})


def check_direct(jobs: Sequence[Job], what: str = "solver='direct'", way_out: str = "solver='cg'") -> None:
    """Raise MemoryBudgetError, with what asked for it and the way out, if the combined kernel does not fit."""
    parts = {"the combined kernel": needed_bytes(jobs)}
    check_memory(what, parts, machine().total_bytes, f"Take {way_out}, or set dmkl.memory higher", "at once")


def _solve(jobs: Sequence[Job], options: FisherOptions, context: Context) -> list[Outcome]:
    def solver_of(job: Job) -> Solver[Outcome]:
        step = _DirectStep(job)
        outcome = yield from wrapper(job.n_kernels, step, options)
        if options.leave_one_out:
            outcome = replace(outcome, inverse=(yield from step.inverse(outcome.weights)))
        return outcome

    # Each running problem holds a factor: as many at once as fit.
    return context.drive(jobs, solver_of, at_once=max(1, machine().total_bytes // needed_bytes(jobs)))


DIRECT = FisherSolver(
    "direct",
    "wrapper method with the combined kernel in memory, one Cholesky factor for each weighting",
    _solve,
    check=check_direct,
)
