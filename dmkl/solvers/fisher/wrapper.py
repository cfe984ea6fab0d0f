"""ℓp MK-FDA by the wrapper method: the α-step for fixed weights and a master for the weights in turn.

JMLR Algorithms 1 and 2, with two changes. The stopping rule is the proven gap of `dmkl.numerics.fisher.Certificate`
instead of the change between two steps. The default master is Newton's (see `dmkl.solvers.masters`): at p = 1 cutting
planes need a hundred α-steps where it needs some five.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from dmkl import progress
from dmkl.numerics.fisher import Certificate, certify, steepest, uniform_weights
from dmkl.passes.combine import FactorHandle
from dmkl.solvers.fisher.block_cg import Directions, block_cg, side_by_side
from dmkl.solvers.masters import CuttingPlane, exact_master, newton_master, taylor_master
from dmkl.solvers.outcome import Status, check_slopes
from dmkl.solvers.requests import CombinedFactor, CombinedProduct, EachProduct, Request

__all__ = ["CGStep", "DirectStep", "Master", "Problem", "Solution", "wrapper"]

Array = npt.NDArray[Any]
Float = npt.NDArray[np.float64]
Master = Literal["newton", "taylor", "exact"]


@dataclass(frozen=True)
class Problem:
    """One problem: its targets H (m, c), ridge and norm."""

    h: Float
    lam: float
    p: float
    name: str = ""


@dataclass
class Step:
    """One α-step as it is recorded."""

    objective: float
    upper: float
    gap: float
    residual_sq: float
    products: int
    beta: Float


@dataclass(frozen=True)
class Solution:
    """What a solver returns: the pair (α, β), its certificate, and how it came about."""

    alpha: Float
    beta: Float
    certificate: Certificate
    status: Status
    steps: list[Step] = field(default_factory=list)


class AlphaStep(Protocol):
    """Solves ½(I + K(β)/λ) α = H for one β after another."""

    def begin(self, beta: Float) -> Generator[Request, Any, Float]:
        """α for a new β."""

    def refine(self, beta: Float, alpha: Float, residual: Float, target: float) -> Generator[Request, Any, Float]:
        """A better α for the same β, from the true residual."""

    def curvature(self, beta: Float, products: Array) -> Generator[Request, Any, Float]:
        """Σ_k W_ikᵀA⁻¹W_jk for the last β and W = K_jα_k, (n, m, c); a model of it where no factor is there."""

    @property
    def products(self) -> int:
        """Products with the combined kernel so far."""


class DirectStep:
    """The α-step by a Cholesky factor of the combined kernel, which one pass adds up."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._factor: FactorHandle | None = None
        self.products = 0

    def begin(self, beta: Float) -> Generator[Request, Any, Float]:
        """See `AlphaStep.begin`."""
        self._factor = None  # the old factor's memory is free before the new one is asked for
        self._factor = yield CombinedFactor(beta, self._problem.lam)
        self.products += 1
        return self._solve(self._problem.h)

    def refine(self, beta: Float, alpha: Float, residual: Float, target: float) -> Generator[Request, Any, Float]:
        """See `AlphaStep.refine`: one step of iterative refinement, which asks for nothing."""
        yield from ()
        return alpha + self._solve(residual)

    def curvature(self, beta: Float, products: Array) -> Generator[Request, Any, Float]:
        """See `AlphaStep.curvature`."""
        n, m, c = products.shape
        yield from ()
        solved = self._solve(side_by_side(products)).reshape(m, n, c)
        return np.tensordot(products, solved, axes=((1, 2), (0, 2)))

    def _solve(self, b: Float) -> Float:
        assert self._factor is not None
        return self._factor.solve(b)


_COMPANIONS = 54


class CGStep:
    """The α-step by blocked conjugate gradients: a pass for each product, and no matrix in memory."""

    def __init__(self, problem: Problem, tol: float, max_products: int = 500) -> None:
        self._problem, self._tol, self._max = problem, tol, max_products
        self._directions = Directions()
        self._scale = float(np.sum(problem.h**2))
        self._companions = np.zeros((len(problem.h), 0))
        self.products = 0

    def begin(self, beta: Float) -> Generator[Request, Any, Float]:
        """See `AlphaStep.begin`."""
        # Always from zero: the directions of a warm start would span too little to model A⁻¹ for the master.
        self._directions = Directions()
        # |S| = ½ tr(Hᵀα) at the solution, and is not known yet: this residual is small for λ that are not tiny, and
        # the certificate asks for more where it must.
        h = self._problem.h
        # Directions in which the model of A⁻¹ failed the master last time ride along: below some 64 columns a pass
        # costs little more for them, and the common space grows by what the master needs.
        size = np.sqrt(self._scale / h.shape[1])
        together = np.concatenate([h, size * self._companions], axis=1)
        x = yield from self._iterate(beta, together, 0.01 * self._tol * self._scale)
        return x[:, : h.shape[1]]

    def refine(self, beta: Float, alpha: Float, residual: Float, target: float) -> Generator[Request, Any, Float]:
        """See `AlphaStep.refine`."""
        return alpha + (yield from self._iterate(beta, residual, target))

    def _iterate(self, beta: Float, b: Float, target: float) -> Generator[Request, Any, Float]:
        solver = block_cg(b, target, self._max, self._directions, self._problem.h.shape[1])
        answer: Any = None
        while True:
            try:
                block = solver.send(answer)
            except StopIteration as stop:
                x, done = stop.value
                self.products += done
                return x  # type: ignore[no-any-return]
            answer = self._system(block, (yield CombinedProduct(block, beta)))

    def curvature(self, beta: Float, products: Array) -> Generator[Request, Any, Float]:
        """See `AlphaStep.curvature`."""
        missing = self._directions.outside(side_by_side(products), _COMPANIONS)
        if missing.shape[1]:
            self._directions.add(missing, self._system(missing, (yield CombinedProduct(missing, beta))))
        self._companions = missing
        return self._directions.curvature(products)

    def _system(self, block: Float, product: Array) -> Float:
        """A S from S and K(β)S."""
        return 0.5 * block + product.astype(np.float64, copy=False) / (2.0 * self._problem.lam)


def wrapper(
    problem: Problem,
    n_kernels: int,
    alpha_step: AlphaStep,
    *,
    master: Master = "newton",
    tol: float = 1e-4,
    max_iter: int = 100,
    names: tuple[str, ...] = (),
    start: Float | None = None,
) -> Generator[Request, Any, Solution]:
    """Solve one problem; yields requests, returns a `Solution`.

    Parameters
    ----------
    problem
        Targets, ridge and norm.
    n_kernels
        n
    alpha_step
        How α is found for fixed weights.
    master
        How the weights are found.
    tol
        The relative gap to prove.
    max_iter
        Most weightings tried.
    names
        The kernels' names, for messages.
    start
        β to begin with, of norm one; uniform weights where missing.

    Raises
    ------
    IndefiniteKernelError
        If a quadratic form αᵀK_jα comes out negative.
    """
    watch = progress.current()
    beta = uniform_weights(n_kernels, problem.p) if start is None else start
    fixed = n_kernels == 1 or np.isinf(problem.p)
    best: Solution | None = None
    steps: list[Step] = []
    cuts: list[CuttingPlane] = []
    candidate, ascent = beta, None
    careful = False
    for _ in range(max_iter):
        alpha, products, certificate = yield from _evaluate(problem, candidate, alpha_step, tol, careful, names)
        steps.append(
            Step(
                certificate.objective,
                certificate.upper,
                certificate.gap,
                certificate.residual_sq,
                alpha_step.products,
                candidate,
            )
        )
        certified = certificate.gap <= tol
        careful = careful or (
            best is not None
            and certificate.gap > 0.5 * best.certificate.gap
            and certificate.alpha_gap > _tolerable(0.0, certificate.weights_gap, careful=True)
        )
        if best is None or certificate.gap < best.certificate.gap:
            status = Status.CERTIFIED if certified else Status.ITERATIONS
            best = Solution(alpha, candidate, certificate, status, steps)
        watch.note(f"{problem.name}α-step {len(steps)}: gap {certificate.gap:.2e}, aim {tol:.0e}")
        if certified:
            return best
        if fixed or certificate.weights_gap <= 0.1 * tol:
            # No other weights would help, and the α-step can do no better.
            return Solution(best.alpha, best.beta, best.certificate, Status.STALLED, steps)
        if master == "newton":
            if ascent is None or ascent.accepts(candidate, certificate):
                curvature = yield from alpha_step.curvature(candidate, products)
                ascent = _Ascent(problem.p, candidate, certificate, curvature / (4.0 * problem.lam**2))
            if (shorter := ascent.next()) is None:
                return Solution(best.alpha, best.beta, best.certificate, Status.STALLED, steps)
            candidate = shorter
        else:
            cuts.append(CuttingPlane(certificate.objective - float(candidate @ certificate.slopes), certificate.slopes))
            candidate = (
                exact_master(cuts, problem.p) if master == "exact" else taylor_master(cuts, candidate, problem.p)
            )
    assert best is not None
    return best


class _Ascent:
    """Newton's step from one accepted point, shortened until the concave J rises enough."""

    def __init__(self, p: float, beta: Float, certificate: Certificate, curvature: Float) -> None:
        self._beta, self._value, self._q = beta, certificate.objective, certificate.slopes
        self._slack = certificate.residual_sq
        self._direction = newton_master(self._q, curvature, beta, p) - beta
        if not self._q @ self._direction > 0:
            # The model sees no way up though the gap is open (its solver's tolerance): go for the steepest corner.
            self._direction = steepest(self._q, p) - beta
        self._length = 2.0

    def next(self) -> Float | None:
        """The next point to try; None when the steps have become too short to matter."""
        self._length *= 0.5
        return None if self._length < 1e-6 else self._beta + self._length * self._direction

    def accepts(self, beta: Float, certificate: Certificate) -> bool:
        """Whether J has risen as a concave function should (Armijo's rule, up to the α-step's own error)."""
        promised = float(self._q @ (beta - self._beta))
        return certificate.objective >= self._value + 1e-3 * promised - self._slack - certificate.residual_sq


def _evaluate(
    problem: Problem, beta: Float, alpha_step: AlphaStep, tol: float, careful: bool, names: tuple[str, ...]
) -> Generator[Request, Any, tuple[Float, Array, Certificate]]:
    """α for these weights, accurate enough that its error does not hide what the weights still lack."""
    alpha = yield from alpha_step.begin(beta)
    products = yield EachProduct(alpha)
    certificate, residual = certify(alpha, products, beta, problem.h, problem.lam, problem.p)
    for _ in range(5):
        check_slopes(certificate.slopes, names)
        if certificate.alpha_gap <= _tolerable(tol, certificate.weights_gap, careful=careful):
            break
        target = 0.1 * _tolerable(tol, 0.0, careful=careful) * abs(certificate.objective)
        better = yield from alpha_step.refine(beta, alpha, residual, target)
        better_products = yield EachProduct(better)
        refined, better_residual = certify(better, better_products, beta, problem.h, problem.lam, problem.p)
        if not refined.residual_sq < 0.5 * certificate.residual_sq:
            break  # as accurate as the arithmetic allows
        alpha, products, certificate, residual = better, better_products, refined, better_residual
    return alpha, products, certificate


def _tolerable(tol: float, weights_gap: float, *, careful: bool) -> float:
    """The relative ‖R‖² that an α-step may leave.

    ‖R‖² is of second order in the error of α, the slopes are of first order. Where F has kinks (p = 1, or near it) that
    error can show in the weights' gap: once the gap stops shrinking (`careful`), ‖R‖ itself is kept below it.
    """
    return (0.1 * max(tol, weights_gap)) ** 2 if careful else max(0.1 * tol, 0.01 * weights_gap)
