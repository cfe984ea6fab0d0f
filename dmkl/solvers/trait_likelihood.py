"""Covariances of two traits by kernel: restricted maximum likelihood by average information.

The model is that of `dmkl.solvers.trait_covariances`. With the N observations of both traits in one vector, those of
the first trait first, y = Xb + u with X = diag(X_1, X_2) and

    V = Σ_j [ σ_j,11K_j  σ_j,12K_j ; σ_j,12K_j  σ_j,22K_j ] = Σ_j Σ_st σ_j,st D_j,st,  K_e = I

of which each trait has the rows and columns where it is known. So V is linear in the σ_j,st, as that of one trait is in
its variances, and likelihood, gradient and average information are those of `dmkl.solvers.variance` with D_j,st in
place of K_j. The quadratic model of each step is maximized over matrices [σ_j,11 σ_j,12; σ_j,12 σ_j,22] that are
positive semidefinite. Products with D_j,st are those of K_j with two columns for each. Traits are scaled to unit
variance first.

Lee, Yang, Goddard, Visscher, Wray: Estimation of pleiotropy between complex diseases using SNP-derived genomic
relationships and restricted maximum likelihood. Bioinformatics 28 (2012).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

import clarabel
import numpy as np
import scipy.linalg

from dmkl.arrays import Float, Index
from dmkl.passes.execute import machine
from dmkl.solvers.interface import CombinedKernel, CombinedProduct, Root
from dmkl.solvers.trait_covariances import PAIRS, Steps, TraitCovariances, Traits, moment_estimates, term_products
from dmkl.solvers.variance import FLOOR, Point, Probes, System, maximize
from dmkl.solvers.weight_sets import ConicProgram

_SINGULAR = 1e-6  # 1 − r² of a correlation r at and below which the estimate is on the boundary, and has no error.
_MATRIX = [[0, 1], [1, 2]]  # Places of [a b; b c] among (a, b, c).


@dataclass(frozen=True, eq=False)
class _Pair:
    """Two traits as one vector of observations: a `LinearModel` of the variances σ_j,st, in the order (j, `PAIRS`)."""

    traits: Traits
    tol: float
    max_iter: int

    @cached_property
    def rows(self) -> list[Index]:
        """The samples of each trait."""
        return [np.flatnonzero(column) for column in self.traits.known.T]

    def split(self, block: Float) -> list[Float]:
        """Blocks (N, b) as one of each trait over all samples, (m, b), zero where it is unknown."""
        m = len(self.traits.known)
        parts = np.split(block, [len(self.rows[0])])
        wide = [np.zeros((m, block.shape[1])) for _ in parts]
        for whole, rows, part in zip(wide, self.rows, parts, strict=True):
            whole[rows] = part
        return wide

    @cached_property
    def residual(self) -> Float:
        """Residuals of both traits on their fixed effects, (N, 1)."""
        return np.concatenate([self.traits.residuals[rows, t] for t, rows in enumerate(self.rows)])[:, None]

    @cached_property
    def basis(self) -> Float:
        """An orthonormal basis of the fixed effects, (N, r_1 + r_2)."""
        return np.asarray(scipy.linalg.block_diag(*(Q[at] for Q, at in zip(self.traits.bases, self.rows, strict=True))))

    @property
    def degrees(self) -> int:
        """Number of error contrasts."""
        return int(self.basis.shape[0] - self.basis.shape[1])

    def images(self, block: Float) -> Steps:
        """D_j,stB of a block (N, b), (3(n + 1), N, b)."""
        both = np.split((yield from term_products(np.hstack(self.split(block)))), 2, axis=2)
        result = np.zeros((len(both[0]), len(PAIRS), *block.shape))
        n = len(self.rows[0])
        for place, (s, t) in enumerate(PAIRS):
            for row, column in {(s, t), (t, s)}:
                result[:, place, slice(n, None) if row else slice(n)] = both[column][:, self.rows[row]]
        return result.reshape(-1, *block.shape)

    def multiply(self, variances: Float, block: Float) -> Steps:
        """VB of a block (N, b)."""
        values = variances.reshape(-1, len(PAIRS))
        first, second = self.split(block)
        # The columns of K(σ_11)B_1, K(σ_12)B_2, K(σ_12)B_1 and K(σ_22)B_2 in one product.
        columns, weights = np.hstack([first, second, first, second]), values[:, [0, 1, 1, 2]]
        weights = np.repeat(weights, block.shape[1], axis=1)
        products = (yield CombinedProduct(columns, weights[:-1], exact=True)) + weights[-1] * columns
        parts = np.split(products, 4, axis=1)
        return np.concatenate([(parts[0] + parts[1])[self.rows[0]], (parts[2] + parts[3])[self.rows[1]]])

    def model_optimum(self, information: Float, linear: Float, active: Index) -> Float:
        """The active x that maximize xᵀr − ½xᵀAx where the matrices of all terms are positive semidefinite."""
        wide = np.zeros((self.traits.n_kernels + 1) * len(PAIRS))
        wide[active] = np.linalg.lstsq(information, linear)[0]
        floor = np.append(np.zeros(self.traits.n_kernels), FLOOR)
        values = wide.reshape(-1, len(PAIRS))
        if (np.linalg.eigvalsh(values[:, _MATRIX])[:, 0] >= floor).all():
            return np.asarray(wide[active])
        program = ConicProgram(len(wide))
        # (a + c − 2 floor, a − c, 2b) in the second-order cone: no eigenvalue of [a b; b c] is below the floor.
        rows = np.kron(np.eye(len(values)), [[-1.0, 0.0, -1.0], [-1.0, 0.0, 1.0], [0.0, -2.0, 0.0]])
        program.add(
            np.asarray(rows, np.float64),
            np.kron(floor, [-2.0, 0.0, 0.0]),
            *[clarabel.SecondOrderConeT(3)] * len(values),
        )
        if len(idle := np.setdiff1d(np.arange(len(wide)), active)):
            program.add(np.eye(len(wide))[idle], np.zeros(len(idle)), clarabel.ZeroConeT(len(idle)))
        # The objective is divided by its size, since the solver's tolerances are absolute.
        size = float(np.abs(information).max()) or 1.0
        quadratic, toward = np.zeros((len(wide), len(wide))), np.zeros(len(wide))
        quadratic[np.ix_(active, active)], toward[active] = information / size, -linear / size
        x, _ = program.minimize(toward, quadratic)
        return _semidefinite(x.reshape(values.shape), floor).ravel()[active]

    def check_forms(self, forms: Float, sizes: Float) -> None:
        """Nothing: forms of D_j,12 may have either sign, and problems of one trait have checked the kernels."""


def _semidefinite(values: Float, floor: Float) -> Float:
    """The matrices [a b; b c] of all terms, (n, 3), with eigenvalues of at least a floor, (n,)."""
    eigenvalues, vectors = np.linalg.eigh(values[:, _MATRIX])
    raised = (vectors * np.maximum(eigenvalues, floor[:, None])[:, None]) @ vectors.transpose(0, 2, 1)
    return np.asarray(raised[:, [0, 0, 1], [0, 1, 1]])


class _Exact(System):
    """The likelihood of a pair and its derivatives by the inverse of V in memory."""

    _inverse: Float

    def _solve(self, variances: Float, block: Float) -> Steps:
        problem, values = self.problem, variances.reshape(-1, len(PAIRS))
        first, shared, second = values.T
        # Weights of combined kernels are not negative: those of the covariances are a difference of such sums.
        parts = []
        for weights in (first, first + 2.0 * shared + second, second):
            kernel = yield from _combined(np.maximum(weights[:-1], 0.0))
            kernel.flat[:: len(kernel) + 1] += weights[-1]
            parts.append(kernel)
        parts[1] = 0.5 * (parts[1] - parts[0] - parts[2])
        V = np.block([[parts[s + t][np.ix_(problem.rows[s], problem.rows[t])] for t in (0, 1)] for s in (0, 1)])
        factor = scipy.linalg.cho_factor(V, lower=True, overwrite_a=True, check_finite=False)
        self._inverse = scipy.linalg.cho_solve(factor, np.eye(len(V)), overwrite_b=True, check_finite=False)
        return self._inverse @ block, 2.0 * np.log(factor[0].diagonal()).sum(), None

    def _trace(self, point: Point) -> Steps:
        problem, n = self.problem, self.problem.traits.n_kernels
        images = (yield from problem.images(point.dual))[:, :, 0].T
        P = self._inverse - point.solved @ np.linalg.solve(point.gram, point.solved.T)
        wide = np.zeros((2, 2, *[len(problem.traits.known)] * 2))
        starts = (slice(len(problem.rows[0])), slice(len(problem.rows[0]), None))
        for s, t in product((0, 1), repeat=2):
            wide[s, t][np.ix_(problem.rows[s], problem.rows[t])] = P[starts[s], starts[t]]
        traces = np.zeros((n + 1, len(PAIRS)))
        for j in range(n + 1):
            kernel = np.eye(len(problem.traits.known)) if j == n else (yield from _combined(np.eye(n)[j]))
            inner = np.einsum("stab,ab->st", wide, kernel)
            traces[j] = [inner[0, 0], inner[0, 1] + inner[1, 0], inner[1, 1]]
        return images, self._inverse @ images, traces.ravel(), np.zeros((traces.size, traces.size))


def _combined(weights: Float) -> Steps:
    """K(β) over all samples, in memory."""
    answer = yield CombinedKernel(weights)
    return answer.factor @ answer.factor.T if isinstance(answer, Root) else np.array(answer, dtype=np.float64)


def trait_likelihood(traits: Traits, tol: float, max_iter: int, *, tests: bool, exact: bool | None = None) -> Steps:
    """Estimate the (co)variances of two traits by restricted maximum likelihood; returns `TraitCovariances`.

    It is exact where four matrices over the observations of both traits fit in memory, unless `exact` says otherwise.
    Errors are from the inverse of the average information; they are NaN for terms whose estimate is singular. With
    `tests` the likelihood without each covariance is maximized too, unless it is estimated by random vectors.
    """
    degrees = traits.known.sum(axis=0) - [Q.shape[1] for Q in traits.bases]
    scale = np.sqrt(np.sum(traits.residuals**2, axis=0) / degrees)
    traits = replace(traits, residuals=traits.residuals / scale)
    pair = _Pair(traits, tol, max_iter)
    values, inverses = yield from moment_estimates(traits)
    estimable = np.stack([inverses[s, t].diagonal() > 0 for s, t in PAIRS], axis=1)
    n_bytes = 8 * 4 * int(traits.known.sum()) ** 2
    exact = n_bytes <= machine().total_bytes if exact is None else exact
    # As for one trait the start is semidefinite, with a tenth of the variance for the residual.
    moments = np.stack([values[:, s, t] for s, t in PAIRS], axis=1)
    floor = np.append(np.zeros(traits.n_kernels), 0.1)
    start = np.where(estimable, _semidefinite(moments, floor), 0.0)
    system = _Exact(pair) if exact else Probes(pair, traits.n_probes, traits.seed)
    active = np.flatnonzero(estimable.ravel())
    point, information, _, status, _ = yield from maximize(system, start.ravel(), active)
    estimates = point.variances.reshape(-1, len(PAIRS))
    covariance = np.full((estimates.size, estimates.size), np.nan)
    first, shared, second = estimates.T
    inside = (first > 0) & (second > 0) & (first * second - shared**2 > _SINGULAR * first * second)
    free = np.flatnonzero((estimable & inside[:, None]).ravel())
    covariance[np.ix_(free, free)] = np.linalg.inv(information[np.ix_(free, free)])
    units = np.array([scale[s] * scale[t] for s, t in PAIRS])
    covariance = covariance.reshape(*estimates.shape, *estimates.shape) * units[:, None, None] * units
    ratios, places = np.full(len(estimates), np.nan), np.arange(estimates.size)
    for term in np.flatnonzero(estimable[:, 1]) if tests and exact else ():
        at = len(PAIRS) * term + PAIRS.index((0, 1))
        without = np.where(places == at, 0.0, point.variances)
        reduced, *_ = yield from maximize(system, without, active[active != at])
        ratios[term] = 2.0 * max(0.0, point.log_likelihood - reduced.log_likelihood)
    return TraitCovariances(estimates * units, covariance, estimable[:, 1], status, ratios)
