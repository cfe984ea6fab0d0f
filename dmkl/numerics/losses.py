"""Smooth convex losses ℓ(y, η) of a label y and a linear predictor η = f + b, one class each.

The curvature ℓ″ may be zero, and jump, as those of Huber's and of the squared hinge loss do. To add a loss, subclass
`Loss`; an object of it is given where a name is.

Sources: Hastie, Tibshirani, Friedman: The elements of statistical learning, 2009, Table 12.1. McCullagh, Nelder:
Generalized linear models, 1989. He, Pan, Tan, Zhou: Smoothed quantile regression, Journal of Econometrics 232 (2023).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.special import expit, xlogy

from dmkl.arrays import Float, plain_repr
from dmkl.errors import refuse

_LARGEST = 700.0
"""exp(η) is that of this η above it: no number overflows."""


class Loss(ABC):
    """A loss that is convex in η and has a continuous derivative.

    All functions take labels y and predictors η of equal shape (m,), in double precision, and return (m,). `labels`
    says in messages which labels the loss is for.
    """

    labels: ClassVar[str] = "numbers"

    @abstractmethod
    def value(self, y: Float, eta: Float) -> Float:
        """ℓ(y, η), at least 0."""

    @abstractmethod
    def gradient(self, y: Float, eta: Float) -> Float:
        """∂ℓ/∂η."""

    @abstractmethod
    def curvature(self, y: Float, eta: Float) -> Float:
        """∂²ℓ/∂η² ≥ 0, from either side where it jumps."""

    def accepts(self, y: Float) -> bool:
        """Whether these are labels of the loss."""
        return bool(np.isfinite(y).all())

    def prediction(self, eta: Float) -> Float:
        """The prediction of y in its own units, such as its mean: η itself by default."""
        return eta


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

    With exposures e, such as persons × years, the model log E(y) = log e + η is that of the rates y/e with e as weights
    of the samples.
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
class _OfResidual(Loss):
    """A loss of the residual η − y."""

    def value(self, y: Float, eta: Float) -> Float:
        return self._value(eta - y)

    def gradient(self, y: Float, eta: Float) -> Float:
        return self._slope(eta - y)

    def curvature(self, y: Float, eta: Float) -> Float:
        return np.asarray(self._bend(eta - y), dtype=np.float64)

    def _value(self, r: Float) -> Float:
        raise NotImplementedError

    def _slope(self, r: Float) -> Float:
        raise NotImplementedError

    def _bend(self, r: Float) -> Any:
        raise NotImplementedError


@dataclass(frozen=True)
class Huber(_OfResidual):
    """½r² for residuals |r| ≤ δ, δ|r| − ½δ² beyond: outliers have the influence δ. δ, `delta`, in units of y."""

    delta: float = 1.0

    def __post_init__(self) -> None:
        _check("delta", self.delta)

    def _value(self, r: Float) -> Float:
        near = np.minimum(np.abs(r), self.delta)
        return np.asarray(near * (np.abs(r) - 0.5 * near))

    def _slope(self, r: Float) -> Float:
        return np.asarray(np.clip(r, -self.delta, self.delta))

    def _bend(self, r: Float) -> Any:
        return np.abs(r) <= self.delta


@dataclass(frozen=True)
class SquaredEpsilonInsensitive(_OfResidual):
    """½ max(0, |r| − ε)² of residuals r: those up to ε, `epsilon`, in units of y, do not count."""

    epsilon: float = 0.1

    def __post_init__(self) -> None:
        _check("epsilon", self.epsilon)

    def _value(self, r: Float) -> Float:
        return np.asarray(0.5 * self._slope(r) ** 2)

    def _slope(self, r: Float) -> Float:
        return np.asarray(np.sign(r) * np.maximum(np.abs(r) - self.epsilon, 0.0))

    def _bend(self, r: Float) -> Any:
        return np.abs(r) > self.epsilon


@dataclass(frozen=True)
class SmoothedQuantile(_OfResidual):
    """The quantile loss max(τ(y − η), (τ − 1)(y − η)), smoothed for residuals up to `width` h, in units of y.

    For |r| ≤ h it is r²/4h + (½ − τ)r + h/4, r = η − y. τ is `level`, between 0 and 1.
    """

    level: float = 0.5
    width: float = 0.1

    def __post_init__(self) -> None:
        _check("width", self.width)
        if not 0 < self.level < 1:
            refuse(f"level must be between 0 and 1, got {plain_repr(self.level)}")

    def _value(self, r: Float) -> Float:
        h = self.width
        smooth = np.where(np.abs(r) <= h, (np.clip(r, -h, h) ** 2 + h * h) / (4.0 * h), 0.5 * np.abs(r))
        return np.asarray(smooth + (0.5 - self.level) * r)

    def _slope(self, r: Float) -> Float:
        return np.asarray(np.clip(r / (2.0 * self.width), -0.5, 0.5) + 0.5 - self.level)

    def _bend(self, r: Float) -> Any:
        return (np.abs(r) <= self.width) / (2.0 * self.width)


def _check(name: str, value: float) -> None:
    if not 0 < value < np.inf:
        refuse(f"{name} must be positive and finite, got {plain_repr(value)}")


LOSSES: dict[str, type[Loss]] = {
    "logistic": Logistic,
    "squared_hinge": SquaredHinge,
    "poisson": Poisson,
    "huber": Huber,
    "squared_epsilon_insensitive": SquaredEpsilonInsensitive,
    "quantile": SmoothedQuantile,
}
"""Losses by the name that stands for them with the defaults of their options."""


def as_loss(loss: str | Loss) -> Loss:
    """The loss of a name or of an object; InputError for anything else."""
    if isinstance(loss, Loss):
        return loss
    if loss not in LOSSES:
        refuse(f"loss must be {', '.join(map(repr, LOSSES))}, or a Loss such as dmkl.Huber(), got {plain_repr(loss)}")
    return LOSSES[loss]()
