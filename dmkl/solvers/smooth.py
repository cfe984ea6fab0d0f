"""Multiple kernel learning with a smooth convex loss: the oracle of `dmkl.solvers.fisher.mkfda.maximize` for it.

With labels y, weights d of the samples and fixed effects X (an intercept, covariates), which are not penalized,

    P(f, b) = Σ_i d_i ℓ(y_i, f_i + x_iᵀb) + (λ/2) R(f),    R = min over β of the set of Σ_j ‖f_j‖²/β_j,    f = Σ_j f_j

is minimized (Yan et al., JMLR 13, 2012, Eqs. 23 to 35). For given β, f = K(β)α and R = αᵀK(β)α. At any (α, b) whose
gradient u = −dℓ′ has Xᵀu = 0, convexity, ℓ(η*) ≥ ℓ(η) + ℓ′(η* − η), bounds P at any other point:

    P* ≥ D(u) = Σ_i d_i ℓ_i + uᵀf − (1/2λ) max over β of uᵀK(β)u,

without the conjugate of ℓ. As a problem of `maximize`, S(u, β) = −Σdℓ − uᵀf + βᵀq with q_j = (1/2λ) uᵀK_ju, whose
maximum F over β is −D(u); and −P(α, b, β) = S − (1/2λ)(u − λα)ᵀK(β)(u − λα), which takes the place of S − ‖R‖². So the
gap is P − D = (λ/2)R + (1/2λ) max uᵀK(β)u − uᵀf, computed from the returned numbers, for every loss, and the iteration,
the line search and the status are those of MK-FDA. At the minimum over (α, b), with W = dℓ″,

    −∂²J/∂β_i∂β_j = (1/λ) (K_iu)ᵀ[M − MX(XᵀMX)⁻¹XᵀM](K_ju),    M = (K(β) + λW⁻¹)⁻¹ = W^½B⁻¹W^½/λ, B = I + W^½K(β)W^½/λ.

For given β, (α, b) are found by Newton's method, λα + W(K(β)(α − α₀) + X(b − b₀)) = u₀, Xᵀα = 0, one factor of B a
step, or for several near the minimum, with an exact search along it: P along a line takes m operations. B needs no
inverse of W, so that curvatures and weights of samples may be zero. Several columns of labels share β: P is their sum.

For kernels kept as factors, K(β) = AAᵀ with A (m, D), and with Y = RᵀA, w = (λI + YᵀY)⁻¹Yᵀv,

    B⁻¹v = v − Yw,    vᵀB⁻¹v = ‖v − Yw‖² + λ‖w‖².
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from dmkl.arrays import Array, Float
from dmkl.errors import refuse
from dmkl.numerics.cholesky import Cholesky, compressed, definite_factor
from dmkl.numerics.fisher import Certificate, as_exponent, gap_scale
from dmkl.numerics.losses import JointLoss, as_loss
from dmkl.numerics.semidefinite import UNKNOWN, KernelFacts, check_forms
from dmkl.solvers.fisher.mkfda import DENSE, Evaluation, Solution, checked_arrays, first_weights, maximize
from dmkl.solvers.in_memory import answer
from dmkl.solvers.interface import CombinedKernel, EachProduct, Outcome, Root, Step, run_with
from dmkl.solvers.masters import Factored
from dmkl.solvers.weight_sets import Ball, WeightSet

_ROUNDING = 4 * float(np.finfo(np.float64).eps)
_KEPT = 0.03  # Largest share of the excess that a step leaves if its factor serves the next one too
_MOST_STEPS = 100  # Most Newton steps for one β; two or three are usual after the first β


@dataclass(frozen=True, eq=False)
class SmoothProblem:
    """One problem: y (m, c) are the labels, `fixed` are X, (m, q), with linearly independent columns or without any.

    `sample_weight` are d, (m,), 0 or more, and `offset` is added to the predictor, (m,) or a number. `start` is the
    initial β, a member of the set of weights, `dual` the initial α, (m, c), and `name` begins messages. `new` are the
    fixed effects X of held-out rows, (rows, q), from which their `bias` follows with their `new_offset`; X is the
    intercept where None.
    """

    y: Float
    loss: JointLoss
    lam: float
    weights: WeightSet
    fixed: Float
    n_kernels: int
    sample_weight: Float | float = 1.0
    offset: Float | float = 0.0
    name: str = ""
    start: Float | None = None
    tol: float = 1e-4
    max_iter: int = 200
    facts: KernelFacts = UNKNOWN
    new: Float | None = None
    new_offset: Float | float = 0.0
    dual: Float | None = None

    def __sizeof__(self) -> int:
        return sum(value.nbytes for value in vars(self).values() if isinstance(value, np.ndarray))

    @cached_property
    def d(self) -> Float:
        """The weights of the samples, (m,)."""
        return np.broadcast_to(np.asarray(self.sample_weight, dtype=np.float64), len(self.y))

    def outcome(self, outcome: Outcome) -> Outcome:
        """An outcome of P and D with the bias that follows from its effects, also in its scores, and the history."""
        effects = outcome.extra["effects"]
        of_intercept = effects[0] if len(effects) else np.zeros(effects.shape[1])
        bias = of_intercept if self.new is None else self.new @ effects + np.reshape(self.new_offset, (-1, 1))
        scores, steps = outcome.scores, [_step(step) for step in outcome.steps]
        return replace(outcome, bias=bias, scores=None if scores is None else scores + bias, steps=steps)

    def near(self, outcome: Outcome) -> SmoothProblem:
        """The problem with the solution of a similar one as its start, unless it has one."""
        start = self.weights.start(self.n_kernels, outcome.weights)
        return replace(self, start=start, dual=outcome.dual) if self.start is None else self

    def __call__(self) -> Generator[Any, Any, Outcome]:
        """Solve the problem; yields requests for the combined kernel and for products with all kernels.

        `objective` of the outcome is P, `bound` D below the optimum, `dual` α; `extra` has the "effects" b, (q, c), and
        the "predictor" η of the samples, (m, c).
        """
        start = self.weights.start(self.n_kernels) if self.start is None else self.start
        how: dict[str, Any] = {"max_steps": self.max_iter, "name": self.name}
        return self.solved((yield from maximize(SmoothOracle(self), self.weights, start, self.tol, **how)))

    def solved(self, solution: Solution, scores: Float | None = None) -> Outcome:
        """The outcome of a solution, of which α has α, b and η, with P and D, and scores without the bias."""
        (alpha, effects, eta), c = solution.alpha, solution.certificate
        outcome = replace(solution, alpha=alpha).outcome(extra={"effects": effects, "predictor": eta}, scores=scores)
        return self.outcome(replace(outcome, objective=c.residual_sq - c.objective, bound=-c.upper))


class _Whole:
    """K = K(β), (m, m), and factors of B = I + RᵀKR/λ for a root R of W."""

    def __init__(self, K: Float) -> None:
        self.K = K

    def __matmul__(self, v: Float) -> Float:
        return np.asarray(self.K @ v)

    def factor(self, root: Float, lam: float) -> Cholesky | _ThinFactor:
        system = _times(root.T, _times(root.T, self.K).T)
        system /= lam
        system[np.diag_indices(len(system))] += 1.0
        return definite_factor(system.T, lam)


class _Thin(_Whole):
    """K = AAᵀ, for A (m, D); see `_Whole`."""

    def __matmul__(self, v: Float) -> Float:
        return np.asarray(self.K @ (self.K.T @ v))

    def factor(self, root: Float, lam: float) -> Cholesky | _ThinFactor:
        Y = _times(root.T, self.K)
        system = Y.T @ Y
        # Rounding of YᵀY must not exceed λ.
        lam = max(lam, _ROUNDING * float(np.trace(system)))
        system[np.diag_indices(len(system))] += lam
        return _ThinFactor(Y, lam, definite_factor(system.T, lam))


@dataclass(frozen=True, eq=False)
class _ThinFactor:
    """B⁻¹ of the module, from Y, λ and the Cholesky factor of λI + YᵀY."""

    Y: Float
    lam: float
    inner: Cholesky

    def solve(self, v: Float) -> Float:
        """B⁻¹v."""
        return np.asarray(v - self.Y @ self.inner.solve(self.Y.T @ v))

    def half_solve(self, v: Float) -> Float:
        """Vectors (m + D, ...) of which the inner products are those of L⁻¹v, B = LLᵀ."""
        w = self.inner.solve(self.Y.T @ v)
        return np.concatenate([v - self.Y @ w, np.sqrt(self.lam) * w])


class Column:
    """(α, b) of one column of labels, with f = K(β)α at the last β, and the factor of the last Newton step there."""

    def __init__(self, y: Float, problem: SmoothProblem) -> None:
        self.y, self.problem = y, problem
        self.alpha, self.f, self.b = (np.zeros(n) for n in (len(y), len(y), problem.fixed.shape[1]))
        self.factor: tuple[Float, Cholesky | _ThinFactor, Float] | None = None
        self.excess = np.inf  # That before the last Newton step
        self.fit_fixed()
        self.null = self.loss(self.eta)  # The minimum of P over b for f = 0

    @property
    def eta(self) -> Float:
        """F + Xb, with the offset."""
        return np.asarray(self.f + self.problem.fixed @ self.b + self.problem.offset)

    @property
    def primal(self) -> float:
        """P at these (α, b)."""
        return self.loss(self.eta) + 0.5 * self.problem.lam * float(self.alpha @ self.f)

    def loss(self, eta: Float) -> float:
        """Σ_i d_i ℓ(y_i, η_i)."""
        return self.problem.loss.total(self.y, eta, self.problem.d)

    def residual(self, eta: Float) -> Float:
        """The dual variables u = −dℓ′, (m,)."""
        return -self.problem.loss.slope(self.y, eta, self.problem.d)

    def product(self, eta: Float, V: Float) -> Float:
        """WV, in the shape of V."""
        return self.problem.loss.product(self.y, eta, self.problem.d, V)

    def search(self, toward: Float, slope: float = 0.0, bend: float = 0.0) -> float:
        """The length t of a step along which P falls most, for the predictor η + t·toward.

        `slope` and `bend` are the derivatives of (λ/2)R at t = 0.
        """
        eta = self.eta

        def along(t: float) -> tuple[float, float, float]:
            at = eta + t * toward
            first = float(-self.residual(at) @ toward) + slope + t * bend
            return self.loss(at) + t * (slope + 0.5 * t * bend), first, float(toward @ self.product(at, toward)) + bend

        return minimize_convex(along)

    def fit_fixed(self) -> None:
        """Minimize P over b: Xᵀu = 0 to rounding, which the certificate takes for granted."""
        X, least = self.problem.fixed, np.inf
        for _ in range(_MOST_STEPS if X.shape[1] else 0):
            eta = self.eta
            u, W = self.residual(eta), self.problem.loss.bend(self.y, eta, self.problem.d)
            slope, system = X.T @ u, X.T @ self.product(eta, X)
            size = float(np.abs(slope).max())
            step = np.linalg.lstsq(system, slope, rcond=None)[0] if system.any() else slope
            # Newton's steps converge quadratically: the last ones, whose fall of P is rounding, need no search.
            is_last = step @ slope <= 1e-12 * abs(self.loss(eta))
            rounding = _ROUNDING * float(np.abs(u).sum() + W @ np.abs(eta))
            if size <= rounding or (is_last and size > 0.5 * least):
                return
            step, least = step if step @ slope > 0 else slope, size
            self.b = self.b + (step if is_last else self.search(X @ step) * step)

    def begin(self, K: _Whole) -> None:
        """Start at other weights: (α, b) of the last ones, α times a number, since f = K(β)α may have become large."""
        along, self.f, self.factor = K @ self.alpha, np.zeros_like(self.f), None
        t = self.search(along, 0.0, self.problem.lam * float(self.alpha @ along))
        self.alpha, self.f = t * self.alpha, t * along
        self.fit_fixed()

    def newton(self, K: _Whole, excess: float) -> bool:
        """One step of Newton's method at K = K(β), P at most `excess` above its minimum; whether P may fall further."""
        problem, lam, before = self.problem, self.problem.lam, self.primal
        # After a step that left little of the excess, W hardly changes.
        kept, self.excess = self.factor if excess <= _KEPT * self.excess else None, excess
        u, (root, factor, basis) = self.residual(self.eta), kept or self._factorized(K)

        def solve(v: Float) -> Float:
            """λMv."""
            return _times(root, factor.solve(_times(root.T, v)))

        # λ(α − α₀) = r − M(Kr + λXδ) with r = u − λα₀, δ = b − b₀ and Xᵀα = 0; for T = L⁻¹W^½X, λXᵀMX = TᵀT. The
        # rounding of the step is relative to r, which vanishes at the minimum.
        r = u - lam * self.alpha
        step = r - solve(K @ r) / lam
        balance = problem.fixed.T @ (step + lam * self.alpha)
        delta = np.linalg.lstsq(basis.T @ basis, balance, rcond=None)[0] if basis.size else self.b
        step = (step - solve(problem.fixed @ delta)) / lam
        along = K @ step
        bend = max(lam * float(step @ along), 0.0)
        t = self.search(along + problem.fixed @ delta, lam * float(self.alpha @ along), bend)
        self.alpha, self.b, self.f = self.alpha + t * step, self.b + t * delta, self.f + t * along
        self.fit_fixed()
        falls = before - self.primal > _ROUNDING * abs(before)
        if kept and not falls:
            self.factor = None
        return falls or kept is not None

    def _factorized(self, K: _Whole) -> tuple[Float, Cholesky | _ThinFactor, Float]:
        """W^½, the factor of B, and L⁻¹W^½X."""
        X, root, self.factor = self.problem.fixed, self.problem.loss.root(self.y, self.eta, self.problem.d), None
        factor = K.factor(root, self.problem.lam)
        made = root, factor, factor.half_solve(_times(root.T, X)) if X.size else X
        # Of several columns none is kept: each is as large as a kernel.
        self.factor = made if self.problem.y.shape[1] == 1 else None
        return made

    def curvature_root(self, K: _Whole, products: Array) -> Float:
        """R with RRᵀ = C, (n, m), from K_ju, (n, m)."""
        root, factor, basis = self.factor or self._factorized(K)
        self.factor = None
        rows = factor.half_solve(_times(root.T, products.T))
        if basis.size:
            Q = np.linalg.svd(basis, full_matrices=False)[0]
            rows = rows - Q @ (Q.T @ rows)
        return np.asarray(rows.T / self.problem.lam)


def _times(root: Float, V: Float) -> Float:
    """RV, for a matrix R or the diagonal of one."""
    return np.asarray((root * V.T).T if root.ndim == 1 else root @ V)


def minimize_convex(along: Callable[[float], tuple[float, float, float]]) -> float:
    """A t > 0 near the minimum of a convex function that falls at 0; `along` has its value and two derivatives.

    Newton's steps from t = 1 within the interval that the signs of derivatives leave, until the derivative is a tenth
    of that at 0 and the function has fallen.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        value, first, _ = along(0.0)
        low, high, t = 0.0, np.inf, 1.0
        for _ in range(_MOST_STEPS if first < 0 else 0):
            at, slope, bend = along(t)
            is_finite = np.isfinite(at + slope)  # not where predictors are too far apart for numbers
            falls = slope <= 0 or at <= value + _ROUNDING * abs(value)
            if is_finite and falls and abs(slope) <= 0.1 * abs(first):
                return t
            low, high = (low, t) if slope > 0 or not is_finite else (t, high)
            newton = t - slope / bend if bend > 0 else np.nan
            wide = 10.0 * max(t, 1e-300) if np.isinf(high) else high
            inside = low + 0.05 * (wide - low) < newton < wide - 0.05 * (wide - low)
            t = newton if inside else (2.0 * t if np.isinf(high) else 0.5 * (low + high))
        return low


def gradient(columns: Sequence[Column]) -> Float:
    """The dual variables u of all columns, (m, c)."""
    return np.stack([column.residual(column.eta) for column in columns], axis=1)


def linear_part(columns: Sequence[Column]) -> float:
    """−Σdℓ − uᵀf over all columns."""
    return -sum(column.loss(column.eta) + float(column.residual(column.eta) @ column.f) for column in columns)


class SmoothOracle:
    """α, b, S and its gradient for a smooth loss, from the combined kernel in memory (see `Oracle`).

    `noise` is that of `check_forms`: infinite for kernels whose derivatives in β may be negative.
    """

    def __init__(self, problem: SmoothProblem, noise: float = 0.0) -> None:
        self.problem, self._noise = problem, noise
        self.columns = [Column(y, problem) for y in problem.y.T]
        self.null = sum(column.null for column in self.columns)
        for column, alpha in zip(self.columns, () if problem.dual is None else problem.dual.T, strict=False):
            column.alpha = alpha

    def evaluate(self, beta: Float, tol: float, *, careful: bool) -> Generator[Any, Any, Evaluation]:
        """Minimize P over (α, b) at β, until what is left of it is far below the gap to prove."""
        problem, lam = self.problem, self.problem.lam
        kernel = yield CombinedKernel(beta)
        K = _Thin(kernel.factor) if isinstance(kernel, Root) else _Whole(kernel)
        for column in self.columns:
            column.begin(K)
        for _ in range(_MOST_STEPS):
            _, _, excess = self._excess(K)
            primal = sum(column.primal for column in self.columns)
            share = ((0.1 * tol) ** 2 if careful else 1e-3 * tol) / len(self.columns)
            allowed = share * gap_scale(abs(primal), self.null - primal)
            steps = [column.newton(K, of) for column, of in zip(self.columns, excess, strict=True) if of > allowed]
            if not any(steps):
                break
        alpha, u, excess = self._excess(K)
        products = yield EachProduct(u)
        q = np.einsum("mc,nmc->n", u, products, dtype=np.float64) / (2.0 * lam)
        check_forms(q, problem.facts, float(np.sum(u * u)) / (2.0 * lam), self._noise)
        linear = linear_part(self.columns)
        left = float(np.abs(excess).sum())  # a negative form is rounding, of which it shows the size
        # With P = left − S: rest + βᵀq is P at f = 0 less P, which is what kernels, and so their weights, change.
        certificate = Certificate.of(beta, q, linear, problem.weights, left, self.null + linear - left)
        pairs = zip(self.columns, products.transpose(2, 0, 1), strict=True)
        root = np.hstack([column.curvature_root(K, of) for column, of in pairs])
        b, eta = (np.stack(of, axis=1) for of in zip(*((each.b, each.eta) for each in self.columns), strict=True))
        return Evaluation((alpha, b, eta), certificate, root)

    def _excess(self, K: _Whole) -> tuple[Float, Float, Float]:
        """α and u, (m, c), and (1/2λ)(u − λα)ᵀK(β)(u − λα), (c,): P less its minimum for this β is at most that."""
        alpha = np.stack([column.alpha for column in self.columns], axis=1)
        u = gradient(self.columns)
        left = u - self.problem.lam * alpha
        return alpha, u, np.asarray(np.einsum("mc,mc->c", left, K @ left) / (2.0 * self.problem.lam))

    def curvature(self, evaluation: Evaluation) -> Generator[Any, Any, Float | Factored]:
        """C; see the module."""
        yield from ()
        rows = evaluation.state
        return rows @ rows.T if len(rows) <= DENSE else Factored(compressed(rows))


def _step(step: Step) -> Step:
    """A step of the history with P and D, in place of S and F, which are negative."""
    objective, upper, residual_sq = (step.figures[name] for name in ("objective", "upper", "residual_sq"))
    return Step(step.weights, {"objective": residual_sq - objective, "lower": -upper, "gap": step.figures["gap"]})


def solve_mkglm(
    kernels: npt.ArrayLike,
    y: npt.ArrayLike,
    loss: str | JointLoss = "logistic",
    p: float = 2.0,
    lam: float = 1.0,
    *,
    covariates: npt.ArrayLike | None = None,
    intercept: bool = True,
    sample_weight: npt.ArrayLike | None = None,
    offset: npt.ArrayLike = 0.0,
    tol: float = 1e-6,
    max_iter: int = 200,
    start: npt.ArrayLike | None = None,
) -> Outcome:
    r"""Solve ℓp-norm multiple kernel learning with a smooth convex loss on plain arrays.

    With labels y, weights d of the samples and covariates z the problem is

    .. math::
        \min_{β ≥ 0,\; ‖β‖_p ≤ 1} \; \min_{α, b} \; \sum_i d_i\, ℓ(y_i, f_i + b_0 + z_i^⊤b + o_i)
        + \tfrac{λ}{2} α^⊤K(β)α, \quad f = K(β)α, \quad K(β) = \sum_j β_j K_j.

    The score of a sample x is Σ_j β_j Σ_i k_j(x, x_i) α_i + b_0 + zᵀb. `MKLogistic`, `MKGLM` and `MKCox` solve the same
    problem on stored kernels.

    Parameters
    ----------
    kernels
        K_j, (n, m, m), symmetric and positive semidefinite.
    y
        Labels, (m,), or (m, c) of c problems that share the weights: the sum over them is minimized.
    loss
        "logistic", "squared_hinge" (labels 1 and −1), "poisson" (counts), "huber", "squared_epsilon_insensitive",
        "quantile" (numbers), "ordinal" (levels), "cox" (`signed_times`), or a `Loss`, such as
        ``dmkl.Huber(delta=2.0)`` or one of your own.
    p
        Norm of the weights, 1 ≤ p ≤ ∞.
    lam
        λ > 0, in units of the loss times the kernels' eigenvalues.
    covariates
        Z, (m, q): fixed effects, which are not penalized, in their own units. They need not be independent.
    intercept
        Whether there is b_0.
    sample_weight
        d, (m,), 0 or more: a whole number is the same as so many copies of the sample.
    offset
        o, (m,) or a number, added to the predictor, such as the logarithm of an exposure.
    tol
        Relative gap to prove.
    max_iter
        Most weights β that are tried.
    start
        β ≥ 0 to begin with, (n,), scaled to ‖β‖_p = 1; equal weights where None.

    Returns
    -------
    dmkl.solvers.interface.Outcome
        With `weights` β, `dual` α, ``extra["effects"]`` (b_0, b), `objective` P, its `bound` from below, the proven
        `gap` relative to what kernels change of P, or to P if that is smaller, `status` and the history `steps`.

    Raises
    ------
    InputError
        If shapes do not fit, a number is not finite, a kernel is not symmetric, labels are not those of the loss, p is
        below 1, λ is not positive, `max_iter` is below 1, or a weight of `start` is negative.
    IndefiniteKernelError
        If a kernel proves not to be positive semidefinite.

    Examples
    --------
    >>> import numpy as np, dmkl
    >>> X = np.random.default_rng(0).normal(size=(2, 60, 3))
    >>> kernels = X @ X.transpose(0, 2, 1)
    >>> counts = np.round(np.exp(0.5 * X[0, :, 0]))
    >>> solution = dmkl.solve_mkglm(kernels, counts, "poisson", p=1, lam=5.0)
    >>> solution.gap <= 1e-6, solution.weights.round(2)
    (True, array([1., 0.]))
    """
    K, labels = checked_arrays(kernels, y, "y", lam, max_iter)
    kind, m = as_loss(loss), len(labels)
    if not kind.accepts(labels):
        refuse(f"the labels of {type(kind).__name__} are {kind.labels}; y has others")
    d = np.asarray(1.0 if sample_weight is None else sample_weight, dtype=np.float64)
    if d.shape not in ((), (m,)) or not (np.isfinite(d).all() and (d >= 0).all() and d.any()):
        refuse(f"sample_weight must be {m} finite numbers, 0 or more and not all 0, got the shape {d.shape}")
    o = np.asarray(offset, dtype=np.float64)
    if o.shape not in ((), (m,)) or not np.isfinite(o).all():
        refuse(f"offset must be a finite number, or {m} of them, got the shape {o.shape}")
    design = np.zeros((m, 0)) if covariates is None else np.asarray(covariates, dtype=np.float64)
    design = design[:, None] if design.ndim == 1 else design
    if design.ndim != 2 or len(design) != m or not np.isfinite(design).all():
        refuse(f"covariates must be finite numbers, ({m}, q), got the shape {design.shape}")
    weights = Ball(as_exponent(p))
    intercept = intercept and kind.has_intercept
    design = np.hstack([np.ones((m, 1)), design]) if intercept else design
    # Columns of equal length, of which independent combinations are kept.
    size = np.linalg.norm(design, axis=0)
    left, values, right = np.linalg.svd(design / np.where(size > 0, size, 1.0), full_matrices=False)
    kept = values > 1e-10 * values.max(initial=0.0)
    begin = first_weights(start, weights, len(K))
    problem = SmoothProblem(labels, kind, lam, weights, left[:, kept], len(K), d, o, "", begin, tol, max_iter)
    outcome = run_with(replace(problem, new=problem.fixed[:0])(), partial(answer, K))
    effects = (right[kept].T / values[kept]) @ outcome.extra["effects"] / np.where(size > 0, size, 1.0)[:, None]
    return replace(outcome, bias=effects[0] if intercept else 0.0, extra={"effects": effects})
