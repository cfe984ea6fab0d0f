"""Variance components: restricted maximum likelihood by average information, and Haseman-Elston regression.

The model is y = Xb + Σ_j u_j + e with u_j ~ N(0, σ_j²K_j) and e ~ N(0, σ_e²I), so that y has the covariance
V = Σ_j σ_j²K_j + σ_e²I. Let Q (m, r) be an orthonormal basis of the columns of X. With

    P = V⁻¹ − V⁻¹Q(QᵀV⁻¹Q)⁻¹QᵀV⁻¹

the log-likelihood of the m − r error contrasts, its gradient and the average information are (K_e = I)

    ℓ = −½[(m − r) log 2π + log|V| + log|QᵀV⁻¹Q| + yᵀPy]
    ∂ℓ/∂σ_j² = ½(yᵀPK_jPy − tr PK_j)
    A_jk = ½ yᵀPK_jPK_kPy

Each step maximizes the quadratic model gᵀd − ½dᵀAd over variances that are not negative, which is a problem of
nonnegative least squares. Start values are those of Haseman and Elston: the regression of Myyᵀ M on the MK_jM and M,
M = I − QQᵀ.

Traces and determinants are exact if a factor of V fits in memory. Otherwise solutions come from conjugate gradients,
and traces from random vectors z of signs: tr PK_j is the mean of zᵀPK_jz, and log|V| that of zᵀ(log V)z, by the
quadrature of Lanczos, whose coefficients are those of the conjugate gradients.

With kernels that are products of factors, K_j = Z_jZ_jᵀ, the same follows from sums over the samples. An orthonormal
basis of the samples whose first vectors span Z, the fixed effects X and y turns the model into that of the
pseudo-samples (`dmkl.solvers.pseudo_samples`) and of m − s further contrasts, which have variance σ_e² and are zero in
y. These add (m − s) log σ_e² to log|V| and (m − s)/σ_e² to tr P, and nothing to all else. Kernels and fixed effects are
the same for all targets if y takes part by its coordinates in the span of Z and X, and by the norm of the rest, which
is one more pseudo-sample.

With K_jPy = Z_jZ_jᵀPy, one more pass gives Σ_ju_j = ZW, W_j = σ_j²Z_jᵀPy, and Py = (y − Xb − ZW)/σ_e².

Gilmour, Thompson, Cullis: Average information REML. Biometrics 51 (1995). Haseman, Elston: Behavior Genetics 2 (1972).
Ubaru, Chen, Saad: Fast estimation of tr f(A) via stochastic Lanczos quadrature. SIAM J. Matrix Anal. Appl. 38 (2017).
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import scipy.linalg
from scipy.optimize import nnls

from dmkl.arrays import Float, Index, by_key
from dmkl.errors import DegenerateKernelError, IndefiniteKernelError, refuse
from dmkl.numerics.alignment import sign_probes
from dmkl.numerics.cholesky import Factor
from dmkl.numerics.semidefinite import WAY_OUT
from dmkl.passes.execute import machine
from dmkl.passes.rows import Gram, RowFunction, RowMap, gram_matrices, row_products
from dmkl.passes.view import Lens, View, covering
from dmkl.solvers import interface
from dmkl.solvers.in_memory import batches
from dmkl.solvers.interface import Outcome, Status, Step
from dmkl.solvers.jobs import Context, Job, Training, on_kernels
from dmkl.solvers.masters import LineSearch
from dmkl.solvers.pseudo_samples import PseudoSamples, times
from dmkl.solvers.trait_covariances import DEPENDENT, Steps, Traits, moment_traces, term_products
from dmkl.solvers.workspace import Workspace

Solve = Callable[[Sequence[Job], Context], list[Outcome]]

FLOOR = 1e-6
"""Least σ_e², in units of the variance of y: V has to be positive definite also for kernels of low rank."""
_CONSTANT = 1e-6  # Share of a kernel that rounding leaves of a kernel which fixed effects explain
_RESIDUAL = 1e-7  # Relative residual of conjugate gradients
_MOST_PRODUCTS = 2000
_ROWS = 1024  # Rows of new samples that are solved for at once


def combined(variances: Float, block: Float) -> Steps:
    """VB of a block (m, b)."""
    return (yield interface.CombinedProduct(block, variances[:-1], exact=True)) + variances[-1] * block


@dataclass(frozen=True, eq=False)
class VarianceProblem:
    """One target y, (m, 1), and the fixed effects q(x)ᵀb, by an orthonormal basis Q, (m, r), of their columns.

    `new_basis` are q(x)ᵀ of the held-out rows, (rows, r), and `names` those of the kernels that may have weight;
    `title` begins messages. `method` is "reml" or "he". The iteration ends when the last quadratic model promises an
    increase of the log-likelihood of at most `tol`, or after `max_iter` steps. With `tests` the likelihood without each
    component is maximized too; not with probes, of which there are `n_probes` if it is not `exact`. `n_orthogonal`
    counts further contrasts of the samples, which have variance σ_e² and are zero in y: those orthogonal to y, the
    fixed effects and all kernels, where the samples are pseudo-samples.
    """

    y: Float
    basis: Float
    new_basis: Float
    names: tuple[str, ...]
    title: str
    method: str
    tol: float
    max_iter: int
    tests: bool
    exact: bool
    n_probes: int
    seed: int
    n_orthogonal: int = 0

    def __call__(self) -> Steps:
        """Estimate the variances of a problem; returns an `Outcome`.

        Kernels that are constant, or that the fixed effects explain, have the variance zero; DegenerateKernelError if
        all are. The arrays `extra` are: `kernels` (n,), the positions of the others; `variances` (n + 1,), σ_j² of
        these and σ_e²; `covariance` (n + 1, n + 1) of these estimates, NaN for components on the boundary;
        `probe_covariance`, the part of it that random probes add; `statistics` (n + 1,), twice the log-likelihood's
        loss without each kernel and without all, NaN where not computed; `effects` (r,) and `effects_covariance`, b in
        coordinates of Q; `log_likelihood_error`.
        """
        gram, moments, kernels = yield from _haseman_elston(self)
        some = replace(self, names=tuple(self.names[j] for j in kernels))
        solver, n = _solve(some, gram, moments), len(self.names)
        outcome = yield from solver if len(kernels) == n else on_kernels(solver, kernels, n)
        return replace(outcome, extra={**outcome.extra, "kernels": kernels})

    def project(self, block: Float) -> Float:
        """MB, M = I − QQᵀ."""
        return np.asarray(block - self.basis @ (self.basis.T @ block))

    @property
    def residual(self) -> Float:
        """The residuals of y on the fixed effects, (m, 1)."""
        return self.project(self.project(self.y))  # twice, since a mean of y much larger than its spread takes digits

    @property
    def degrees(self) -> int:
        """Number of error contrasts, m − r."""
        return int(len(self.y) - self.basis.shape[1] + self.n_orthogonal)

    @property
    def scale(self) -> float:
        """The estimate of σ_e² without kernels."""
        return float(np.sum(self.residual**2)) / self.degrees

    @property
    def floor(self) -> Float:
        """The least variances, (n + 1,)."""
        return np.append(np.zeros(len(self.names)), FLOOR * self.scale)

    images, multiply = staticmethod(term_products), staticmethod(combined)

    def model_optimum(self, information: Float, linear: Float, active: Index) -> Float:
        """The active variances x that maximize xᵀr − ½xᵀAx, at least their floors."""
        return _nonnegative(information, linear, self.floor[active])

    def check_forms(self, forms: Float, sizes: Float) -> None:
        """Raise IndefiniteKernelError if a form vᵀK_jv is negative; `sizes` are ‖v‖‖K_jv‖, (n + 1,)."""
        negative = np.flatnonzero(forms < -1e-5 * sizes)
        if len(negative):
            msg = (
                f"{self.title}kernel {self.names[negative[0]]!r} is not positive semidefinite: a vector v has "
                f"vᵀKv = {forms[negative[0]]:.3g}, which no covariance has. {WAY_OUT}"
            )
            raise IndefiniteKernelError(msg)


def _solve(problem: VarianceProblem, gram: Float, moments: Float) -> Steps:
    """Estimate the variances, all of which can be, from the normal equations."""
    system = _Exact(problem) if problem.exact else Probes(problem, problem.n_probes, problem.seed)
    if problem.method == "he":
        return (yield from _by_regression(problem, system, gram, moments))
    # Haseman-Elston estimates are unbiased but may be negative, and σ_e² = 0 would make V singular: the start has no
    # negative variance, and a tenth of the variance without kernels for the residual.
    start = _nonnegative(gram, moments, np.zeros(len(gram)))
    start[-1] = max(start[-1], 0.1 * problem.scale)
    every = np.arange(len(start))
    point, information, probe_noise, status, steps = yield from maximize(system, start, every)
    n, variances = len(problem.names), point.variances
    statistics = np.full(n + 1, np.nan)
    if problem.tests and problem.exact:
        without_kernels = -0.5 * problem.degrees * (np.log(2.0 * np.pi * problem.scale) + 1.0)
        statistics[n] = 2.0 * max(0.0, point.log_likelihood - without_kernels)
        for j in range(n):
            # On the boundary the component is absent already, so that the likelihood without it is the same.
            if variances[j] <= 0:
                statistics[j] = 0.0
            elif n == 1:
                statistics[j] = statistics[n]
            else:
                without = np.where(every == j, 0.0, variances)
                reduced, *_ = yield from maximize(system, without, np.delete(every, j))
                statistics[j] = 2.0 * max(0.0, point.log_likelihood - reduced.log_likelihood)
    # Components on the boundary have no covariance: the average information describes the likelihood inside the set.
    free = np.ix_(variances > problem.floor, variances > problem.floor)
    covariance, probe_covariance = np.full((2, n + 1, n + 1), np.nan)
    inverse = np.linalg.inv(information[free])
    covariance[free] = inverse
    # A gradient with the error covariance N moves the zero of the gradient by I⁻¹ times it: the covariance I⁻¹NI⁻¹.
    probe_covariance[free] = inverse @ probe_noise[free] @ inverse
    extra = {"covariance": covariance, "probe_covariance": probe_covariance, "statistics": statistics}
    return _outcome(problem, point, status, steps, extra)


def _outcome(
    problem: VarianceProblem, point: Point, status: Status, steps: Sequence[Step], extra: dict[str, Float]
) -> Outcome:
    effects = point.effects + problem.basis.T @ problem.y
    extra = extra | {
        "variances": extra.get("variances", point.variances),
        "effects": effects[:, 0],
        "effects_covariance": np.linalg.inv(point.gram),
        "log_likelihood_error": np.array(point.error),
    }
    bias = problem.new_basis @ effects
    weights, value = point.variances[:-1].copy(), point.log_likelihood
    return Outcome(status, weights, point.dual, value, bias=bias, steps=steps, extra=extra)


# --- Haseman-Elston regression ---------------------------------------------------------------------------------------


def _haseman_elston(problem: VarianceProblem) -> Steps:
    """The normal equations, ⟨MK_iM, MK_jM⟩ and yᵀMK_jMy, with the identity last, and the positions of their kernels.

    Kernels that fixed effects explain are left out. InputError if the matrices of the others are linearly dependent.
    """
    Q, residual = problem.basis, problem.residual
    products = yield interface.EachProduct(np.hstack([residual, Q]))
    moments = np.append(products[:, :, 0] @ residual[:, 0], np.sum(residual**2))
    gram = yield interface.InnerProducts(Q, np.ascontiguousarray(products[:, :, 1:]))
    gram[-1, -1] += problem.n_orthogonal
    # ‖MKM‖ is the difference of ‖K‖ and of what the fixed effects remove, which cancels where they explain the kernel.
    size = np.sqrt(np.maximum(gram.diagonal()[:-1], 0.0))
    kernels = np.flatnonzero(size > _CONSTANT * np.sqrt(np.sum(products[:, :, 1:] ** 2, axis=(1, 2))))
    if not len(kernels):
        msg = (
            f"{problem.title}no variance of a kernel can be estimated ({len(problem.names):,}, {problem.names[0]!r} "
            "first): all are constant or zero over these samples, or the covariates explain them. Give other kernels"
        )
        raise DegenerateKernelError(msg)
    kept = np.append(kernels, len(size))
    gram = gram[np.ix_(kept, kept)]
    size = np.sqrt(gram.diagonal())
    values, vectors = np.linalg.eigh(gram / np.outer(size, size))
    if values[0] <= DEPENDENT:
        # The eigenvector of the smallest eigenvalue is the combination of the matrices, of unit norm each, that
        # vanishes.
        share = np.abs(vectors[:, 0])
        names = [*(repr(problem.names[j]) for j in kernels), "the residual (the identity)"]
        involved = [names[k] for k in np.flatnonzero(share > 0.05 * share.max())]
        refuse(
            f"{problem.title}the variances of {', '.join(involved[:-1])} and {involved[-1]} cannot be distinguished, "
            "since their matrices are linearly dependent over these samples; leave one of them out with select(), or "
            "merge them into one kernel"
        )
    return gram, moments[kept], kernels


def _nonnegative(gram: Float, moments: Float, floor: Float) -> Float:
    """The x ≥ floor that minimizes ½xᵀGx − xᵀr for a positive definite G."""
    size = np.sqrt(gram.diagonal())
    # With G = RᵀR and x = floor + z the objective is ½‖Rz − R⁻ᵀ(r − G floor)‖² up to a constant: nonnegative least
    # squares. Columns are scaled to unit diagonal, and the tiny ridge keeps the factor real after rounding.
    upper = scipy.linalg.cholesky(gram / np.outer(size, size) + 1e-13 * np.eye(len(gram)))
    shifted = (moments - gram @ floor) / size
    return np.asarray(floor + nnls(upper, scipy.linalg.solve_triangular(upper, shifted, trans="T"))[0] / size)


def _by_regression(problem: VarianceProblem, system: System, gram: Float, moments: Float) -> Steps:
    """The estimates of Haseman-Elston regression, which may be negative; the model takes them as zero."""
    estimates = np.linalg.solve(gram, moments)
    point = yield from system.evaluate(np.maximum(estimates, problem.floor))
    variances, kernels, known = point.variances, np.arange(len(problem.names)), np.ones((len(problem.y), 1))
    of_trait = problem.residual, known, [problem.basis], kernels, len(kernels), problem.n_probes, problem.seed
    traces = (yield from moment_traces(Traits(*of_trait), variances[:, None, None]))[0, 0, 0, 0]
    # Cov(yᵀMK_iMy, yᵀMK_jMy) = 2 tr(MK_iM V MK_jM V) for normal y.
    covariance = traces + traces.T
    covariance[-1, -1] += 2.0 * problem.n_orthogonal * variances[-1] ** 2
    # The estimates are G⁻¹ times the moments yᵀMK_jMy, so their covariance is that of the moments between two G⁻¹.
    inverse = np.linalg.inv(gram)
    extra = {
        "variances": estimates,
        "covariance": inverse @ covariance @ inverse,
        "probe_covariance": np.zeros_like(gram),
        "statistics": np.full(len(estimates), np.nan),
    }
    return _outcome(problem, point, Status.CONVERGED, [_step(point, 0.0)], extra)


# --- average information ---------------------------------------------------------------------------------------------


LinearModel = Any
"""A model whose covariance V is linear in some variances: a `VarianceProblem`, or one with its methods."""


@dataclass(frozen=True, eq=False)
class Point:
    """The likelihood at some variances."""

    variances: Float  # (n + 1,), σ_e² last
    log_likelihood: float
    dual: Float  # Py, (m, 1)
    solved: Float  # V⁻¹Q, (m, r)
    gram: Float  # QᵀV⁻¹Q, (r, r)
    effects: Float  # b in coordinates of Q, (r, 1), less those of least squares
    error: float = 0.0  # standard error of the log-likelihood that random probes leave
    probes: Float | None = None  # V⁻¹ times the random probes, (m, probes)

    def project(self, solved: Float, basis: Float) -> Float:
        """PB from V⁻¹B."""
        return np.asarray(solved - self.solved @ np.linalg.solve(self.gram, basis.T @ solved))


class System(ABC):
    """The likelihood of a model at some variances, and its derivatives there."""

    def __init__(self, problem: LinearModel) -> None:
        self.problem = problem

    @abstractmethod
    def _solve(self, variances: Float, block: Float) -> Steps:
        """V⁻¹B of a block, log|V| or estimates of it from each probe, and V⁻¹ times the probes or None."""

    @abstractmethod
    def _trace(self, point: Point) -> Steps:
        """W = [K_jPy], V⁻¹W, tr PK_j, and the covariance of these that probes leave, at the point evaluated last."""

    def evaluate(self, variances: Float) -> Steps:
        """The likelihood at these variances."""
        problem, Q = self.problem, self.problem.basis
        solved, log_determinants, probes = yield from self._solve(variances, np.hstack([problem.residual, Q]))
        of_basis = solved[:, 1:]
        gram = Q.T @ of_basis
        gram = 0.5 * (gram + gram.T)
        # Py = PMy, where a large mean of y does not cancel.
        effects = np.asarray(np.linalg.solve(gram, Q.T @ solved[:, :1]), dtype=np.float64)
        dual = solved[:, :1] - of_basis @ effects
        quadratic = float(problem.residual[:, 0] @ dual[:, 0])
        # The restricted likelihood has log|QᵀV⁻¹Q| in addition to log|V|. Q is orthonormal: its scale adds nothing.
        constant = problem.degrees * np.log(2.0 * np.pi) + np.linalg.slogdet(gram)[1]
        value = -0.5 * (constant + np.mean(log_determinants) + quadratic)
        n = np.size(log_determinants)
        error = 0.5 * float(np.std(log_determinants, ddof=1)) / np.sqrt(n) if n > 1 else 0.0
        return Point(variances, float(value), dual, of_basis, gram, effects, error, probes)

    def derive(self, point: Point) -> Steps:
        """Gradient, average information, and the covariance of the gradient that probes leave, at the last point."""
        images, solved, traces, noise = yield from self._trace(point)
        dual = point.dual[:, 0]
        quadratic = images.T @ dual
        self.problem.check_forms(quadratic, np.linalg.norm(dual) * np.linalg.norm(images, axis=0))
        information = 0.5 * images.T @ point.project(solved, self.problem.basis)
        # The gradient has half of the trace, hence a quarter of the variance of the mean.
        return 0.5 * (quadratic - traces), 0.5 * (information + information.T), 0.25 * noise


class _Exact(System):
    """The likelihood and its derivatives by a factor of V."""

    _factor: Any = None

    def _solve(self, variances: Float, block: Float) -> Steps:
        problem, lam = self.problem, float(variances[-1])
        self._factor = None  # frees the memory of the old factor before the new one is requested
        # The factor is that of A = ½(I + K(β)/λ), V = 2λA.
        self._factor = yield interface.CombinedFactor(variances[:-1], lam)
        of_block = interface.OfFactor(self._factor, Factor.solve, (block,))
        solved, log_determinant = yield of_block, interface.OfFactor(self._factor, Factor.log_determinant)
        log_determinant = log_determinant + len(problem.y) * np.log(2.0 * lam) + problem.n_orthogonal * np.log(lam)
        return solved / (2.0 * lam), log_determinant, None

    def _trace(self, point: Point) -> Steps:
        block = np.hstack([point.dual, point.solved])
        products, traces = yield interface.EachProduct(block), interface.FactorTraces(self._factor)
        products = np.concatenate([products, block[None]])
        scale = 2.0 * point.variances[-1]
        # tr PK = tr V⁻¹K − tr (QᵀV⁻¹Q)⁻¹ QᵀV⁻¹KV⁻¹Q
        # P = V⁻¹ − V⁻¹Q(QᵀV⁻¹Q)⁻¹QᵀV⁻¹: the factor gives the trace of the first part, r vectors that of the second.
        inner = np.einsum("ma,nmb->nab", point.solved, products[:, :, 1:])
        traces = traces / scale - np.trace(np.linalg.solve(point.gram, inner), axis1=1, axis2=2)
        traces[-1] += self.problem.n_orthogonal / point.variances[-1]
        images = products[:, :, 0].T
        solved = (yield interface.OfFactor(self._factor, Factor.solve, (images,))) / scale
        return images, solved, traces, np.zeros((len(traces), len(traces)))


class Probes(System):
    """The likelihood and its derivatives by conjugate gradients and random probes, the same ones at all points."""

    def __init__(self, problem: LinearModel, n_probes: int, seed: int) -> None:
        super().__init__(problem)
        self._probes = sign_probes(len(problem.basis), n_probes, seed)

    def _solve(self, variances: Float, block: Float) -> Steps:
        multiply, width = partial(self.problem.multiply, variances), block.shape[1]
        solved, quadratures = yield from _conjugate_gradients(multiply, np.hstack([block, self._probes]))
        return solved[:, :width], len(block) * quadratures[width:], solved[:, width:]

    def _trace(self, point: Point) -> Steps:
        problem = self.problem
        assert point.probes is not None
        block = np.hstack([point.dual, point.project(point.probes, problem.basis)])
        products = yield from problem.images(block)
        # zᵀPK_jz estimates tr PK_j. The same probes at every point make the estimated likelihood a smooth function, so
        # that the line search compares like with like.
        samples = np.einsum("ms,nms->ns", self._probes, products[:, :, 1:])
        images = products[:, :, 0].T
        solved, _ = yield from _conjugate_gradients(partial(problem.multiply, point.variances), images)
        return images, solved, samples.mean(axis=1), np.cov(samples) / samples.shape[1]


def _step(point: Point, gain: float) -> Step:
    *weights, residual = point.variances
    figures = {"log_likelihood": point.log_likelihood, "residual_variance": float(residual), "predicted_gain": gain}
    return Step(np.array(weights), figures)


def maximize(system: System, start: Float, active: Index) -> Steps:
    """Maximize the likelihood over the active variances, from `start`, in which the others are zero.

    Returns the last point whose likelihood rose, the average information and the noise of the gradient there, the
    status, and the steps.
    """
    problem = system.problem
    point = yield from system.evaluate(start)
    steps: list[Step] = []
    while True:
        gradient, information, noise = yield from system.derive(point)
        # Average information: the mean of observed and expected information, which needs no trace of two matrices. It
        # is positive semidefinite, so that the quadratic model has a maximum over the variances above their floors.
        slope, curvature = gradient[active], information[np.ix_(active, active)]
        present = point.variances[active]
        target = problem.model_optimum(curvature, slope + curvature @ present, active)
        direction = target - present
        gain = float(slope @ direction - 0.5 * direction @ curvature @ direction)
        steps.append(_step(point, gain))
        if gain <= problem.tol or len(steps) >= problem.max_iter:
            return point, information, noise, Status.CONVERGED if gain <= problem.tol else Status.FALLING, steps
        # The model may overshoot far from the optimum: steps are halved until the likelihood rises (Armijo).
        best, search = point, LineSearch(present, direction, slope, point.log_likelihood, share=1e-4)
        while search.point is not None:
            trial = best.variances.copy()
            trial[active] = target if search.length == 1.0 else search.point  # on the boundary to the last bit
            point = yield from system.evaluate(trial)
            # Rounding of the log-likelihood, and the error of the probes, hide smaller changes.
            if search.accepts(point.log_likelihood, max(1e-12 * abs(best.log_likelihood), 2.0 * point.error)):
                break
            search.shorten()
        else:
            return best, information, noise, Status.SMALL_DECREASE, steps


def _conjugate_gradients(multiply: Callable[[Float], Steps], block: Float) -> Steps:
    """V⁻¹B, column by column, and bᵀ(log V)b/bᵀb of each column b by the quadrature of Lanczos."""
    solution, residual = np.zeros_like(block), block.copy()
    direction = residual.copy()
    squares = np.sum(residual**2, axis=0)
    limit = _RESIDUAL**2 * squares
    coefficients: list[list[Any]] = [[] for _ in squares]
    running = np.flatnonzero(squares > 0)
    for _ in range(_MOST_PRODUCTS):
        if not len(running):
            break
        p = np.ascontiguousarray(direction[:, running])
        image = yield from multiply(p)
        curvature = np.sum(p * image, axis=0)
        if (curvature <= 0).any():
            msg = (
                "Σσ_j²K_j + σ_e²I is not positive definite: a kernel has negative eigenvalues. Run `dmkl check`; "
                "repair such kernels by repair='clip', 'flip' or 'shift', or leave them out with select()"
            )
            raise IndefiniteKernelError(msg)
        # Columns are independent systems: a block method would couple them, and lose the coefficients for log|V|.
        length = squares[running] / curvature
        solution[:, running] += length * p
        residual[:, running] -= length * image
        after = np.sum(residual[:, running] ** 2, axis=0)
        ratio = after / squares[running]
        direction[:, running] = residual[:, running] + ratio * p
        squares[running] = after
        for column, *pair in zip(running, length, ratio, strict=True):
            coefficients[column].append(pair)
        running = running[after > limit[running]]
    return solution, np.array([_quadrature(np.array(pairs)) for pairs in coefficients])


def _quadrature(coefficients: Float) -> float:
    """e₁ᵀ(log T)e₁ of the tridiagonal matrix T of Lanczos, from a and b of each step of conjugate gradients, (k, 2)."""
    if not len(coefficients):
        return 0.0
    # Conjugate gradients are Lanczos' method: T has the diagonal 1/a_k + b_{k−1}/a_{k−1} and √b_k/a_k off it, from
    # the step lengths a and the ratios b (Golub and Meurant, Matrices, Moments and Quadrature, 2010).
    inverse, ratio = 1.0 / coefficients[:, 0], coefficients[:-1, 1]
    diagonal = inverse.copy()
    diagonal[1:] += ratio * inverse[:-1]
    values, vectors = scipy.linalg.eigh_tridiagonal(diagonal, np.sqrt(ratio) * inverse[:-1])
    return float(vectors[0] ** 2 @ np.log(values))


def explained_variances(variances: Float, covariances: Any, design: Float, new_design: Float, *, exact: bool) -> Steps:
    """vᵀV⁻¹v − gᵀ(XᵀV⁻¹X)⁻¹g with g = x − XᵀV⁻¹v for the covariances v (rows, m) of new samples, and that with x = 0.

    The result is (2, rows): what is explained of the prediction, and of its part by kernels alone (vᵀPv).
    `covariances` may be a lazy array; some of its rows are computed at a time.
    """
    factor = (yield interface.CombinedFactor(variances[:-1], float(variances[-1]))) if exact else None

    def solve(block: Float) -> Steps:
        if factor is None:
            return (yield from _conjugate_gradients(partial(combined, variances), block))[0]
        return (yield interface.OfFactor(factor, Factor.solve, (block,))) / (2.0 * variances[-1])

    of_design = yield from solve(design)
    gram = design.T @ of_design
    parts = []
    for start in range(0, len(new_design), _ROWS):
        v = np.asarray(covariances[start : start + _ROWS]).T
        solved = yield from solve(v)
        own, of_training = new_design[start : start + _ROWS].T, design.T @ solved
        squares = [np.sum(gap * np.linalg.solve(gram, gap), axis=0) for gap in (own - of_training, of_training)]
        parts.append(np.sum(v * solved, axis=0) - squares)
    return np.concatenate([np.zeros((2, 0)), *parts], axis=1)


# --- kernels that are products of factors ----------------------------------------------------------------------------


def solve_on_factors(solve: Solve, jobs: Sequence[Job], context: Context) -> list[Outcome]:
    """Solve `VarianceProblem`s: a pass for sums, `solve` for the problems over pseudo-samples, and a pass for Py."""
    outcomes = [context.workspace.outcome(number) for number in range(len(jobs))]
    missing = [number for number, outcome in enumerate(outcomes) if outcome is None]
    groups = by_key(missing, lambda number: (id(jobs[number].training), jobs[number].problem.basis.tobytes()))
    n_bytes = 8 * len(RowMap(jobs[0].training.square.view).kernel_of) ** 2
    for batch in batches(list(groups.values()), [n_bytes] * len(groups), machine().total_bytes // 3):
        started = time.monotonic()
        views = [jobs[numbers[0]].training.square.view for numbers in batch]
        columns = [
            np.hstack([jobs[numbers[0]].problem.basis, *(jobs[number].problem.residual for number in numbers)])
            for numbers in batch
        ]
        grams, n_passes = gram_matrices(views, columns)
        items = zip(batch, grams, columns, strict=True)
        solved = [_solve_group(solve, [jobs[k] for k in numbers], gram, block) for numbers, gram, block in items]
        sums, n_more = row_products([function for _, function in solved])
        for numbers, (solutions, _), block in zip(batch, solved, sums, strict=True):
            for number, solution, u in zip(numbers, solutions, block.T, strict=True):
                problem = jobs[number].problem
                residual = problem.y[:, 0] - problem.basis @ solution.extra["effects"] - u
                variance = max(float(solution.extra["variances"][-1]), problem.floor[-1])
                outcomes[number] = outcome = replace(solution, dual=(residual / variance)[:, None])
                context.workspace.keep_outcome(number, outcome)
        context.workspace.sync()
        context.tally.add("factors", n_passes + n_more, time.monotonic() - started, covering(views).bytes_per_pass)
    return [outcome for outcome in outcomes if outcome is not None]


def _solve_group(solve: Solve, jobs: Sequence[Job], gram: Gram, columns: Float) -> tuple[list[Outcome], RowFunction]:
    """The outcomes over pseudo-samples of problems on one training set with the same X, and the rows of ZW of all.

    `columns` are Q and the residuals of y, side by side.
    """
    r = jobs[0].problem.basis.shape[1]
    inner = columns[:, :r].T @ columns
    pseudo = PseudoSamples.of(replace(gram, targets=gram.targets[:, :r]), inner[:, :r])
    block = pseudo.columns(gram.targets, inner)
    # What is left of y: its direction is orthogonal to all kernels and fixed effects, so that only its norm matters.
    left = np.maximum(np.sum(columns**2, axis=0) - np.sum(block**2, axis=0), 0.0)
    left[:r] = 0.0
    block = np.vstack([block, np.sqrt(left)])
    lens = replace(pseudo, factors=np.pad(pseudo.factors, ((0, 1), (0, 0)))).lens()
    training = Training(lens, lens, jobs[0].training.names, jobs[0].training.title)
    basis, n_orthogonal = block[:, :r], len(columns) - len(block)
    over_pseudo_samples = []
    for column, job in enumerate(jobs, r):
        y = block[:, [column]] + basis @ (job.problem.basis.T @ job.problem.y)
        problem = replace(job.problem, y=y, basis=basis, n_orthogonal=n_orthogonal, exact=True)
        over_pseudo_samples.append(replace(job, training=training, problem=problem))
    # The checkpoint keeps outcomes over the samples, so that the files of this solver are temporary.
    with closing(Workspace(None, {})) as space:
        solutions = solve(over_pseudo_samples, Context(space))
    kernel_of, diagonal = gram.row_map.kernel_of, np.diagonal(gram.gram) / len(columns)
    means = {"mean_diagonal": np.bincount(kernel_of, diagonal, jobs[0].training.n_kernels).astype(np.float64)}
    duals = np.hstack([np.asarray(solution.dual) for solution in solutions])[:-1]
    W = np.stack([solution.weights for solution in solutions], axis=1)[kernel_of] * (pseudo.factors.T @ duals)
    function = RowFunction(gram.row_map, 1, np.arange(len(columns)), partial(times, W), W.shape[1])
    return [replace(solution, extra={**solution.extra, **means}) for solution in solutions], function


def covariances_on_factors(square: View, new: View, weights: Float, design: Float) -> tuple[Lens, Float, Float]:
    """The pseudo-samples of a training set, Σ_jσ_j²k_j(x, ·) between new rows and these, (rows, r), and QᵀX."""
    basis, upper = np.linalg.qr(design)
    (gram,), _ = gram_matrices([square], [basis])
    pseudo, view = PseudoSamples.of(gram, basis.T @ basis), replace(new, steps=square.steps)
    W = weights[gram.row_map.kernel_of][:, None] * pseudo.factors.T
    item = RowFunction(replace(gram.row_map, view=view), 0, np.arange(new.shape[1]), partial(times, W), W.shape[1])
    (covariances,), _ = row_products([item])
    return pseudo.lens(), covariances, pseudo.columns(gram.targets, basis.T @ basis) @ upper
