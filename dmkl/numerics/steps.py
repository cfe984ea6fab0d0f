"""The steps: centering, normalizing, taking samples.

    center          K ↦ (I − 11ᵀ/m) K (I − 11ᵀ/m)              mean over the training (column) samples
    residualize     K ↦ PKP, P off the mean and covariates      `dmkl.numerics.residualizing`
    trace           K ↦ K / tr K                                unit trace
    multiplicative  K ↦ K / (tr K/m − 1ᵀK1/m²)                  unit variance in feature space
    cosine          K ↦ D K D,  D_ii = K_ii^(−1/2)              unit norm in feature space (spherical)
    take            K ↦ K[rows, cols]
    weigh           K ↦ S K S,  S_ii = √d_i                     a column sample counts d_i times

Where column samples have weights d, with w = d/Σd, the first three are those of a set in which sample i is repeated d_i
times: (I − 1wᵀ) K (I − w1ᵀ), K / Σ_i d_iK_ii, and K / (Σ_i w_iK_ii − wᵀKw).

A step that is asked for by name is a `Step` with an entry in `STEPS`; what becomes of it once its statistics are known
is a `FittedStep` of `dmkl.numerics.fitted`, with an entry in its `_FITTED`, which reads it back from files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from dmkl.arrays import Array, plain_repr
from dmkl.errors import InputError
from dmkl.numerics.chain import ChainState, Step
from dmkl.numerics.covariates import Covariates
from dmkl.numerics.fitted import Centering, CosineScaling, Scaling, mean_over

__all__ = ["NORMALIZATIONS", "STEPS", "as_step", "as_steps"]


# --- as they are asked for ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Center(Step):
    """Center in feature space, by the means over the column samples."""

    name = "center"
    needs_training = needs_means = needs_row_means = True

    weights: Array | None = None

    def fit(self, state: ChainState) -> Centering:
        weights = None if self.weights is None else self.weights / self.weights.sum()
        return Centering(state.need("col_mean"), state.row_mean, state.square, weights)


@dataclass(frozen=True)
class Trace(Step):
    """Divide by the trace over the column samples."""

    name = "trace"
    needs_training = True

    weights: Array | None = None

    def fit(self, state: ChainState) -> Scaling:
        diagonal = state.need("diag_cols")
        if self.weights is None:
            size, count = diagonal.sum(axis=1), float(diagonal.shape[1])
        else:
            size, count = diagonal @ self.weights, float(self.weights.sum())
        state.check_size(size, state.fitted.removed() * count, "trace")
        return Scaling(1.0 / size)


@dataclass(frozen=True)
class Multiplicative(Step):
    """Divide by the variance in feature space of the column samples."""

    name = "multiplicative"
    needs_training = needs_means = True

    weights: Array | None = None

    def fit(self, state: ChainState) -> Scaling:
        diagonal, mean = state.need("diag_cols"), state.need("col_mean")
        size = mean_over(diagonal, self.weights) - mean_over(mean, self.weights)
        removed = state.fitted.removed() + mean_over(abs(mean), self.weights)
        state.check_size(size, removed, "variance in feature space")
        return Scaling(1.0 / size)


@dataclass(frozen=True)
class Cosine(Step):
    """Bring every sample to unit norm in feature space."""

    name = "cosine"
    needs_row_diagonal = forgets_means = True

    def fit(self, state: ChainState) -> CosineScaling:
        diagonal = state.need("diag_cols")
        state.check_diagonal(diagonal)
        columns = CosineScaling(diagonal**-0.5)
        return columns.training() if state.square else columns.fit(state)


STEPS: dict[str, Step] = {step.name: step for step in (Center(), Trace(), Multiplicative(), Cosine())}
"""The steps that can be asked for by name."""
NORMALIZATIONS = ("trace", "cosine", "multiplicative")
"""Those that bring kernels to one scale."""


def as_step(name: str, weights: Array | None = None) -> Step:
    """A step by its name, with statistics over column samples of these weights, (cols,)."""
    step = STEPS[name]
    return step if weights is None or not step.needs_training else replace(step, weights=weights)  # type: ignore[type-var]


def as_steps(steps: str | Iterable[str | Covariates] | None) -> tuple[Any, ...]:
    """The names of steps, and covariates, in the order in which they are applied.

    Parameters
    ----------
    steps
        Names of `STEPS`, or a text with commas or + between them, as "cosine,center"; no step for None, () and "none".

    Raises
    ------
    InputError
        If a name is none of theirs.
    """
    if isinstance(steps, str):
        steps = [] if steps.strip() in ("", "none") else [name.strip() for name in re.split("[,+]", steps)]
    found = () if steps is None else tuple(steps)
    for name in found:
        if not isinstance(name, Covariates) and name not in STEPS:
            msg = (
                f"steps takes names of steps in the order in which they are applied, of {', '.join(STEPS)}, such as "
                f"('center', 'trace'), or residualize(Z) among them; got {plain_repr(name)}"
            )
            raise InputError(msg)
    return found
