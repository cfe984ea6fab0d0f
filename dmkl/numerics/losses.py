"""Smooth convex losses ℓ(y, η) of a label y and a linear predictor η = f + b, one class each.

The curvature ℓ″ may be zero, and jump, as those of Huber's and of the squared hinge loss do. To add a loss, subclass
`Loss`; an object of it is given where a name is.

Sources: Hastie, Tibshirani, Friedman: The elements of statistical learning, 2009, Table 12.1. McCullagh, Nelder:
Generalized linear models, 1989. He, Pan, Tan, Zhou: Smoothed quantile regression, Journal of Econometrics 232 (2023).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Self

import numpy as np
from scipy.special import expit, logit, xlogy

from dmkl.arrays import Float, Index, check_choice, plain_repr
from dmkl.errors import refuse
from dmkl.numerics.cholesky import pivoted_root

_MOST_LEVELS = 50
_LARGEST = 700.0  # exp(η) is that of this η above it: no number overflows


class JointLoss(ABC):
    """A convex loss ℓ(y, η) of all samples together, with weights d of the samples; a sum over them is a `Loss`.

    All functions take labels y, predictors η and weights d, (m,) each, in double precision; messages call y `labels`.
    """

    labels: ClassVar[str] = "numbers"
    has_intercept: ClassVar[bool] = True
    """Whether a constant that is added to η changes the loss."""

    @abstractmethod
    def total(self, y: Float, eta: Float, d: Float) -> float:
        """ℓ(y, η)."""

    @abstractmethod
    def slope(self, y: Float, eta: Float, d: Float) -> Float:
        """∂ℓ/∂η, (m,)."""

    @abstractmethod
    def bend(self, y: Float, eta: Float, d: Float) -> Float:
        """A diagonal that is at least ∂²ℓ/∂η², (m,)."""

    @abstractmethod
    def product(self, y: Float, eta: Float, d: Float, V: Float) -> Float:
        """∂²ℓ/∂η² V, in the shape of V, (m,) or (m, columns)."""

    @abstractmethod
    def root(self, y: Float, eta: Float, d: Float) -> Any:
        """R with RRᵀ = ∂²ℓ/∂η²: its diagonal (m,), or (m, rank), of which products with R and R.T are computed."""

    def accepts(self, y: Float) -> bool:
        """Whether these are labels of the loss."""
        return bool(np.isfinite(y).all())

    def prediction(self, eta: Float) -> Float:
        """The prediction of y in its own units, such as its mean: η itself by default."""
        return eta


class Loss(JointLoss):
    """A loss that is a sum over the samples, convex in η with a continuous derivative.

    `value`, `gradient` and `curvature` take labels y and predictors η, (m,) each in double precision, and return (m,).
    """

    @abstractmethod
    def value(self, y: Float, eta: Float) -> Float:
        """ℓ(y, η), at least 0."""

    @abstractmethod
    def gradient(self, y: Float, eta: Float) -> Float:
        """∂ℓ/∂η."""

    @abstractmethod
    def curvature(self, y: Float, eta: Float) -> Float:
        """∂²ℓ/∂η² ≥ 0, from either side where it jumps."""

    def total(self, y: Float, eta: Float, d: Float) -> float:
        """Σ_i d_i ℓ(y_i, η_i)."""
        return float(np.sum(d * self.value(y, eta)))

    def slope(self, y: Float, eta: Float, d: Float) -> Float:
        return np.asarray(d * self.gradient(y, eta))

    def bend(self, y: Float, eta: Float, d: Float) -> Float:
        """The second derivative itself."""
        return np.asarray(d * self.curvature(y, eta))

    def product(self, y: Float, eta: Float, d: Float, V: Float) -> Float:
        return np.asarray((self.bend(y, eta, d) * V.T).T)

    def root(self, y: Float, eta: Float, d: Float) -> Float:
        return np.asarray(np.sqrt(self.bend(y, eta, d)))


class _OfSigns(Loss):
    labels = "1 and -1"

    def accepts(self, y: Float) -> bool:
        return bool(np.isin(y, (-1.0, 1.0)).all())


@dataclass(frozen=True)
class Logistic(_OfSigns):
    """log(1 + exp(−yη)) for y of 1 and −1: the negative log likelihood where P(y = 1) = 1/(1 + exp(−η))."""

    def value(self, y: Float, eta: Float) -> Float:
        return np.asarray(np.logaddexp(0.0, -y * eta))

    def gradient(self, y: Float, eta: Float) -> Float:
        return np.asarray(-y * expit(-y * eta))

    def curvature(self, y: Float, eta: Float) -> Float:
        return np.asarray(expit(eta) * expit(-eta))


@dataclass(frozen=True)
class SquaredHinge(_OfSigns):
    """½ max(0, 1 − yη)² for y of 1 and −1: a margin, and no probabilities."""

    def value(self, y: Float, eta: Float) -> Float:
        return np.asarray(0.5 * np.maximum(1.0 - y * eta, 0.0) ** 2)

    def gradient(self, y: Float, eta: Float) -> Float:
        return np.asarray(-y * np.maximum(1.0 - y * eta, 0.0))

    def curvature(self, y: Float, eta: Float) -> Float:
        return (y * eta < 1.0).astype(np.float64)


@dataclass(frozen=True)
class Poisson(Loss):
    """exp(η) − yη + y log y − y for counts y, half the deviance of a Poisson distribution of mean exp(η).

    With exposures e (persons × years), the model log E(y) = log e + η is that of the rates y/e with sample weights e.
    """

    labels = "counts or rates, 0 or more"

    def accepts(self, y: Float) -> bool:
        return bool(np.isfinite(y).all() and (y >= 0).all())

    def value(self, y: Float, eta: Float) -> Float:
        return np.asarray(self.prediction(eta) - y * eta + xlogy(y, y) - y)

    def gradient(self, y: Float, eta: Float) -> Float:
        return self.prediction(eta) - y

    def curvature(self, y: Float, eta: Float) -> Float:
        return self.prediction(eta)

    def prediction(self, eta: Float) -> Float:
        return np.asarray(np.exp(np.minimum(eta, _LARGEST)))


@dataclass(frozen=True)
class Huber(Loss):
    """½r² for residuals r from −δ to δ, δ·abs(r) − ½δ² beyond, δ the influence of outliers, `delta`, in units of y."""

    delta: float = 1.0

    def __post_init__(self) -> None:
        _check("delta", self.delta)

    def value(self, y: Float, eta: Float) -> Float:
        size = np.abs(eta - y)
        near = np.minimum(size, self.delta)
        return np.asarray(near * (size - 0.5 * near))

    def gradient(self, y: Float, eta: Float) -> Float:
        return np.asarray(np.clip(eta - y, -self.delta, self.delta))

    def curvature(self, y: Float, eta: Float) -> Float:
        return (np.abs(eta - y) <= self.delta).astype(np.float64)


@dataclass(frozen=True)
class SquaredEpsilonInsensitive(Loss):
    """½ max(0, abs(r) − ε)² of residuals r: those up to ε, `epsilon`, in units of y, do not count."""

    epsilon: float = 0.1

    def __post_init__(self) -> None:
        _check("epsilon", self.epsilon)

    def value(self, y: Float, eta: Float) -> Float:
        return np.asarray(0.5 * self.gradient(y, eta) ** 2)

    def gradient(self, y: Float, eta: Float) -> Float:
        return np.asarray(np.sign(eta - y) * np.maximum(np.abs(eta - y) - self.epsilon, 0.0))

    def curvature(self, y: Float, eta: Float) -> Float:
        return (np.abs(eta - y) > self.epsilon).astype(np.float64)


@dataclass(frozen=True)
class SmoothedQuantile(Loss):
    """The quantile loss max(τ(y − η), (τ − 1)(y − η)), smoothed for residuals up to `width` h, in units of y.

    For r from −h to h it is r²/4h + (½ − τ)r + h/4, r = η − y. τ is `level`, between 0 and 1.
    """

    level: float = 0.5
    width: float = 0.1

    def __post_init__(self) -> None:
        _check("width", self.width)
        if not 0 < self.level < 1:
            refuse(f"level must be between 0 and 1, got {plain_repr(self.level)}")

    def value(self, y: Float, eta: Float) -> Float:
        r, h = eta - y, self.width
        smooth = np.where(np.abs(r) <= h, (np.clip(r, -h, h) ** 2 + h * h) / (4.0 * h), 0.5 * np.abs(r))
        return np.asarray(smooth + (0.5 - self.level) * r)

    def gradient(self, y: Float, eta: Float) -> Float:
        return np.asarray(np.clip((eta - y) / (2.0 * self.width), -0.5, 0.5) + 0.5 - self.level)

    def curvature(self, y: Float, eta: Float) -> Float:
        return np.asarray((np.abs(eta - y) <= self.width) / (2.0 * self.width))


@dataclass(frozen=True, eq=False)
class Cox(JointLoss):
    """The negative logarithm of Cox's partial likelihood of times with right censoring, exp(η) the hazard ratio.

    Labels are times s > 0 with a sign: s if the event was seen then, −s if the sample was censored at s. With e_i =
    d_i exp(η_i), the samples R_t at risk at t, the events D_t at t, n of them of mean weight d̄, and their shares
    c_l = l/n for `ties` "efron" or 0 for "breslow",

        ℓ = Σ_t [d̄ Σ_{l<n} log(Σ_{R_t} e_i − c_l Σ_{D_t} e_i) − Σ_{D_t} d_i η_i].

    With `strata`, the stratum of each sample, ℓ is the sum over them, each with times and samples at risk of its own.

    Cox: Regression models and life-tables, JRSS B 34 (1972). Efron: The efficiency of Cox's likelihood function for
    censored data, JASA 72 (1977). Breslow, in the discussion of Cox (1972).
    """

    ties: str = "efron"
    strata: Any = field(default=None, repr=False)

    labels = "times, negative for samples that were censored, of which one is positive"
    has_intercept = False

    def __post_init__(self) -> None:
        check_choice("ties", self.ties, ("efron", "breslow"))

    def accepts(self, y: Float) -> bool:
        return bool(np.isfinite(y).all() and (y != 0).all() and (y > 0).any())

    def total(self, y: Float, eta: Float, d: Float) -> float:
        _, sums, weights, shifts = self._terms(y, eta, d)
        return float(weights @ (np.log(sums) + shifts) - np.sum((d * eta)[y > 0]))

    def slope(self, y: Float, eta: Float, d: Float) -> Float:
        return self.bend(y, eta, d) - np.where(y > 0, d, 0.0)

    def bend(self, y: Float, eta: Float, d: Float) -> Float:
        """The sum of the shares of each sample in the risks."""
        shares, _, weights, _ = self._terms(y, eta, d)
        return np.asarray(weights @ shares)

    def product(self, y: Float, eta: Float, d: Float, V: Float) -> Float:
        shares, _, weights, _ = self._terms(y, eta, d)
        return np.asarray(((weights @ shares) * V.T).T - shares.T @ (weights * (shares @ V).T).T)

    def root(self, y: Float, eta: Float, d: Float) -> Float:
        """A pivoted Cholesky factor, (m, rank)."""
        return pivoted_root(self.product(y, eta, d, np.eye(len(y))))

    @cached_property
    def _codes(self) -> bytes | None:
        """Numbers of the strata."""
        return None if self.strata is None else np.unique(self.strata, return_inverse=True)[1].astype(np.intp).tobytes()

    def _terms(self, y: Float, eta: Float, d: Float) -> tuple[Float, Float, Float, Float]:
        """Of each logarithm: the share of each sample in its sum, (terms, m), the sum, its weight, and its shift of η.

        Sums are of exp(η − shift), the largest η of the term, so that none is 0 however far predictors are apart.
        """
        if self.strata is not None and len(self.strata) != len(y):
            refuse(f"strata are those of the samples, {len(y)}, got {len(self.strata)}")
        at_risk, weights = _risk_sets(y.tobytes(), d.tobytes(), self._codes, self.ties)
        of_terms = np.where(at_risk * d > 0, eta, -np.inf)
        shifts = of_terms.max(axis=1)
        hazards = at_risk * d * np.exp(of_terms - shifts[:, None])
        sums = hazards.sum(axis=1)
        return hazards / sums[:, None], sums, weights, shifts


@lru_cache(4)
def _risk_sets(labels: bytes, weights: bytes, strata: bytes | None, ties: str) -> tuple[Float, Float]:
    """1 for samples at risk, less c_l for events, of each logarithm, (terms, m); and its weight d̄, (terms,)."""
    y, d = np.frombuffer(labels), np.frombuffer(weights)
    stratum = np.zeros(len(y), dtype=np.intp) if strata is None else np.frombuffer(strata, dtype=np.intp)
    rows, means = [], []
    for k, t in np.unique(np.stack([stratum, y])[:, (y > 0) & (d > 0)], axis=1).T:
        events = (stratum == k) & (y == t) & (d > 0)
        n = int(np.count_nonzero(events))
        portions = np.arange(n) / n if ties == "efron" else np.zeros(n)
        rows.append(((stratum == k) & (np.abs(y) >= t)) - portions[:, None] * events)
        means.append(np.full(n, d[events].mean()))
    return np.concatenate(rows), np.concatenate(means)


@dataclass(frozen=True)
class Ordinal(JointLoss):
    """The negative log likelihood of levels l_0 < l_1 < …, minimized over thresholds θ: the cumulative logit.

    P(y ≥ l_k) = σ(η − θ_k), θ_0 = −∞ and θ increasing, σ(x) = 1/(1 + exp(−x)). A label of level k has, with a = θ_k − η
    and b = θ_(k+1) − η (∞ for the last level), since σ(b) − σ(a) = σ(b)σ(−a)(1 − exp(a − b)),

        −log P(y = l_k) = −log σ(b) − log σ(−a) − log(1 − exp(θ_k − θ_(k+1))),

    jointly convex in (η, θ), so that ℓ(η) = min over θ is convex. Its derivative is that of the sum at the best θ,
    and ∂²ℓ/∂η² = D − US⁻¹Uᵀ with the diagonal D and the blocks U = ∂²/∂η∂θ, S = ∂²/∂θ² (tridiagonal) of the sum.

    McCullagh: Regression models for ordinal data, JRSS B 42 (1980).
    """

    labels = f"numbers, of 2 to {_MOST_LEVELS} levels"
    has_intercept = False  # the thresholds are

    def accepts(self, y: Float) -> bool:
        return super().accepts(y) and 2 <= len(np.unique(y)) <= _MOST_LEVELS

    def thresholds(self, y: Float, eta: Float, d: Float) -> tuple[Float, Float]:
        """The levels among labels of weight, and their θ, −∞ first."""
        return np.unique(y[d > 0]), np.append(-np.inf, self._best(y, eta, d).theta)

    @staticmethod
    def median(eta: Float, levels: Float, theta: Float) -> Float:
        """The largest level with P(y ≥ level) > ½, in the shape of η."""
        return np.asarray(levels[np.count_nonzero(eta[..., None] > theta, axis=-1) - 1])

    def total(self, y: Float, eta: Float, d: Float) -> float:
        return self._best(y, eta, d).value

    def slope(self, y: Float, eta: Float, d: Float) -> Float:
        best = self._best(y, eta, d)
        return np.asarray(d * (expit(-best.upper) - expit(best.lower)))

    def bend(self, y: Float, eta: Float, d: Float) -> Float:
        """D."""
        return np.asarray(self._best(y, eta, d).bends.sum(axis=0))

    def product(self, y: Float, eta: Float, d: Float, V: Float) -> Float:
        best = self._best(y, eta, d)
        return np.asarray((best.bends.sum(axis=0) * V.T).T - best.mixed @ best.solve(best.mixed.T @ V))

    def root(self, y: Float, eta: Float, d: Float) -> Any:
        """D^½(I − Q(I − (I − Σ²)^½)Qᵀ) with QΣPᵀ = D^−½US^−½."""
        best = self._best(y, eta, d)
        scale = np.sqrt(best.bends.sum(axis=0))
        inverse = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0)
        Q, sizes, _ = np.linalg.svd((inverse * (best.mixed @ best.half).T).T, full_matrices=False)
        shares = 1.0 - np.sqrt(np.maximum(1.0 - sizes**2, 0.0))
        return _Deflated(scale, Q, shares)

    @staticmethod
    def _best(y: Float, eta: Float, d: Float) -> _Thresholds:
        return _best_thresholds(y.tobytes(), eta.tobytes(), d.tobytes())


@dataclass(frozen=True, eq=False)
class _Deflated:
    """diag(a)(I − Q diag(c) Qᵀ), (m, m), or its transpose, of which only products are computed."""

    a: Float
    Q: Float
    c: Float
    transposed: bool = False
    ndim: ClassVar[int] = 2

    @property
    def T(self) -> Self:
        return replace(self, transposed=not self.transposed)

    def __matmul__(self, V: Float) -> Float:
        V = (self.a * V.T).T if self.transposed else V
        V = V - self.Q @ (self.c * (V.T @ self.Q)).T
        return np.asarray(V if self.transposed else (self.a * V.T).T)


_MOST_STEPS = 100  # most Newton steps for the thresholds; some six are usual


class _Thresholds:
    """θ, increasing, with the sum over samples there and its derivatives; see `Ordinal`. `level` is that of each."""

    def __init__(self, theta: Float, level: Index, eta: Float, d: Float) -> None:
        self.theta, self.level = theta, level
        ends, most = np.concatenate([[-np.inf], theta, [np.inf]]), len(theta) + 2
        a, b, width = ends[level] - eta, ends[level + 1] - eta, ends[level + 1] - ends[level]
        with np.errstate(over="ignore"):
            odds = 1.0 / np.expm1(width)
        self.lower, self.upper = a, b
        self.value = float(np.sum(d * (np.logaddexp(0.0, -b) + np.logaddexp(0.0, a) - np.log(-np.expm1(-width)))))
        # The second derivatives dσ(1 − σ) at a and at b, (2, m), whose sum is D.
        self.bends = d * np.stack([expit(a) * expit(-a), expit(b) * expit(-b)])

        def by_end(at_lower: Float, at_upper: Float) -> Float:
            return np.asarray(np.bincount(level, at_lower, most) + np.bincount(level + 1, at_upper, most))[1:-1]

        coupling = np.bincount(level, d * odds * (1.0 + odds), len(theta) + 1)
        self.inner = np.diag(by_end(*self.bends) + coupling[:-1] + coupling[1:])  # S
        self.inner -= np.diag(coupling[1:-1], 1) + np.diag(coupling[1:-1], -1) if len(theta) else 0.0
        self.slope = by_end(d * (expit(a) + odds), -d * (expit(-b) + odds))
        # Eigenvalues of S are taken to be at least that: all samples may be far from a threshold.
        self.least = 1e-13 * float(d.sum())

    @cached_property
    def mixed(self) -> Float:
        """U, (m, thresholds)."""
        of_ends, rows = np.zeros((len(self.level), len(self.theta) + 2)), np.arange(len(self.level))
        of_ends[rows, self.level], of_ends[rows, self.level + 1] = -self.bends
        return of_ends[:, 1:-1]

    @cached_property
    def half(self) -> Float:
        """A matrix H with HHᵀ = S⁻¹."""
        values, vectors = np.linalg.eigh(self.inner)
        return np.asarray(vectors / np.sqrt(np.maximum(values, self.least)))

    def solve(self, V: Float) -> Float:
        """S⁻¹V."""
        return np.asarray(self.half @ (self.half.T @ V))


@lru_cache(8)
def _best_thresholds(labels: bytes, predictor: bytes, weights: bytes) -> _Thresholds:
    """The minimum over θ by Newton's method from the shares of the levels, with steps halved until it falls."""
    y, eta, d = map(np.frombuffer, (labels, predictor, weights))
    levels = np.unique(y[d > 0])
    level = np.minimum(np.searchsorted(levels, y), len(levels) - 1)
    shares = np.cumsum(np.bincount(level, d))[:-1] / d.sum()
    point = _Thresholds(logit(shares) + np.average(eta, weights=d), level, eta, d)
    for _ in range(_MOST_STEPS):
        step = -point.solve(point.slope)
        # Newton's steps converge quadratically: after the last one the rest is rounding.
        is_last = -point.slope @ step <= 1e-12 * max(point.value, 1e-300)
        for _ in range(_MOST_STEPS):
            theta = point.theta + step
            if (np.diff(theta) > 0).all():
                following = _Thresholds(theta, level, eta, d)
                if is_last or following.value < point.value:
                    break
            step = 0.5 * step
        else:
            return point
        point = following
        if is_last:
            break
    return point


def _check(name: str, value: float) -> None:
    if not 0 < value < np.inf:
        refuse(f"{name} must be positive and finite, got {plain_repr(value)}")


LOSSES: dict[str, type[JointLoss]] = {
    "logistic": Logistic,
    "squared_hinge": SquaredHinge,
    "poisson": Poisson,
    "huber": Huber,
    "squared_epsilon_insensitive": SquaredEpsilonInsensitive,
    "quantile": SmoothedQuantile,
    "cox": Cox,
    "ordinal": Ordinal,
}
"""Losses by the name that stands for them with the defaults of their options."""


def as_loss(loss: str | JointLoss) -> JointLoss:
    """The loss of a name or of an object; InputError for anything else."""
    if isinstance(loss, JointLoss):
        return loss
    if loss not in LOSSES:
        refuse(f"loss must be {', '.join(map(repr, LOSSES))}, or a Loss such as dmkl.Huber(), got {plain_repr(loss)}")
    return LOSSES[loss]()
