"""Grids of parameters: the papers' defaults, checks, and the points in order."""

from __future__ import annotations

import itertools
import numbers
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from dmkl.errors import InputError
from dmkl.kernelset import KernelSet
from dmkl.numerics.fisher import as_exponent
from dmkl.numerics.steps import NORMALIZATIONS, STEPS, as_steps

__all__ = [
    "CHAINS",
    "C_VALUES",
    "LAM_COSINE",
    "LAM_TRACE",
    "MOST_VARIATION",
    "N_GROUPS",
    "P_VALUES",
    "as_grid",
    "diagonal_variation",
    "lams_of",
    "points",
    "shape",
]

P_VALUES = (1.0, *(1 + 2.0**-k for k in range(6, 0, -1)), 2.0, 3.0, 4.0, 8.0, np.inf)
"""The twelve norms of the papers, with ∞ for their 10⁶ (JMLR Section 3.3, CVPR Section 4.1)."""

LAM_TRACE = (1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0)
"""λ for kernels of unit trace (CVPR Section 4.1); on few samples those of them that the stored precision resolves.

Without the smallest a small search is quicker, and worse where labels have no noise (`pipelines/small_ridges.py`).
"""

LAM_COSINE = tuple(4.0**k for k in range(-5, 5))
"""λ for kernels with ones on the diagonal, 4⁻⁵ to 4⁴ (JMLR Section 3.3)."""

CHAINS = (("center", "trace"), ("cosine", "center"))
"""The chains of steps of the papers: that of the defaults (CVPR Section 4.1), and that of JMLR Section 3.3."""

MOST_VARIATION = 0.1
"""Coefficient of variation of a kernel's diagonal up to which the two chains hardly differ but by a factor."""

N_GROUPS = (1, 2, 3, 4, 5)
"""Groups that each class is divided into (GS-MKL Section 5.3)."""

C_VALUES = tuple(2.0**k for k in range(-2, 8))
"""C of the support vector machines of the papers, 2⁻² to 2⁷ (JMLR Section 3.3)."""


def as_grid(grid: Mapping[str, Any] | None, estimator: Any, *, several: bool = False) -> dict[str, tuple[Any, ...]]:
    """Check a grid of parameters, or make the papers' one.

    Parameters
    ----------
    grid
        Values of each parameter, in the order in which they are to be told; a single value stands for a list of one,
        and None for the default values of p, lam or C.
        Where `grid` is None: of what the estimator has, `P_VALUES` for p, `C_VALUES` for C, `N_GROUPS` for n_groups,
        and for lam `LAM_COSINE` if its steps leave k(x, x) near one ("cosine" or "multiplicative" is the last that
        normalizes), `LAM_TRACE` otherwise. Of several chains of steps in the grid, lam has by default the values of
        each.
    estimator
        Names the parameters there are, by its ``get_params()``.
    several
        Whether there are several tasks, which choose each for itself: one number of groups serves all of them then, and
        is not searched by default.

    Returns
    -------
    dict
        Tuples of values by parameter, in the order of `grid`; p and lam as floats, p from 1e6 on as ∞.

    Raises
    ------
    InputError
        If a name is no parameter of the estimator, a list is empty or repeats a value, p is below 1, or lam is not
        positive and finite.

    Notes
    -----
    JMLR: Yan, Kittler, Mikolajczyk, Tahir: Non-sparse multiple kernel Fisher discriminant analysis, JMLR 13 (2012).
    CVPR: Yan, Mikolajczyk, Barnard, Cai, Kittler: ℓp norm multiple kernel Fisher discriminant analysis for object and
    image categorisation, CVPR 2010. GS-MKL: Yang, Li, Tian, Duan, Gao: Group-sensitive multiple kernel learning for
    object categorization, ICCV 2009.
    """
    known, what = estimator.get_params(), type(estimator).__name__
    chosen: Any = grid
    steps = grid.get("steps") if isinstance(grid, Mapping) else None
    chains = [known.get("steps")] if steps is None else _values("steps", steps, known, what)
    lam = tuple(sorted({lam for chain in chains for lam in lams_of(chain)}))
    defaults = {"p": P_VALUES, "lam": lam, "C": C_VALUES}
    if grid is None:
        papers = [*defaults.items(), *([] if several else [("n_groups", N_GROUPS)])]
        # Of two losses, each has a price of its own.
        idle = {"hinge": "lam", "square": "C"}.get(str(known.get("loss")))
        chosen = {name: values for name, values in papers if name in known and name != idle}
        if not chosen:
            msg = f"{what} has neither p nor lam nor C, so there is no default grid; give one"
            raise InputError(msg)
    if not isinstance(chosen, Mapping) or not chosen:
        msg = f"grid must map parameters to their values, as {{'p': [1, 2], 'lam': [0.1, 1]}}, got {grid!r}"
        raise InputError(msg)
    return {
        name: _values(name, defaults.get(name) if values is None else values, known, what)
        for name, values in chosen.items()
    }


def lams_of(steps: Any) -> tuple[float, ...]:
    """The default values of λ for kernels after these steps."""
    scales = [step for step in as_steps(steps) if step in NORMALIZATIONS]
    return LAM_COSINE if scales and scales[-1] != "trace" else LAM_TRACE


def _values(name: str, given: Any, known: Mapping[str, Any], what: str) -> tuple[Any, ...]:
    if name not in known:
        msg = f"{name!r} is no parameter of {what}; its parameters are {', '.join(sorted(known))}"
        raise InputError(msg)
    several = isinstance(given, Iterable) and not isinstance(given, str) and getattr(given, "ndim", 1) > 0
    if several:
        given = list(given)
        if name == "steps" and given and all(isinstance(step, str) and step in STEPS for step in given):
            msg = (
                f"steps={given!r} in a grid may be one chain of steps or several of one step each; write "
                f"{[tuple(given)]!r} or {[(step,) for step in given]!r}"
            )
            raise InputError(msg)
    values = tuple(_value(name, value) for value in (given if several else [given]))
    if not values:
        msg = f"the grid has no values for {name}; give one at least, or leave {name} out"
        raise InputError(msg)
    for position, value in enumerate(values):
        if value in values[:position]:
            note = " (from 1e6 on it counts as infinite)" if name == "p" else ""
            msg = f"the grid has {value!r} twice among the values of {name}{note}; leave one out"
            raise InputError(msg)
    return values


def _value(name: str, value: Any) -> Any:
    """As a plain Python value, checked where the rule is known."""
    if isinstance(value, np.generic | np.ndarray) and np.ndim(value) == 0:
        value = value.item()
    if name == "steps":
        return as_steps(value)
    if name not in ("p", "lam", "C"):
        return value
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        msg = f"the values of {name} must be numbers, got {value!r}"
        raise InputError(msg)
    number = float(value)
    if name == "p":
        return as_exponent(number)
    if not (np.isfinite(number) and number > 0):
        msg = f"the values of {name} must be positive and finite, got {value!r}"
        raise InputError(msg)
    return number


def diagonal_variation(K: KernelSet) -> float:
    """The largest coefficient of variation of a kernel's diagonal k(x, x): its standard deviation over its mean.

    0 where the diagonals are unknown, or the set has steps already. It takes no pass.
    """
    diagonal = K.view.source.diagonal(K.view.kernels)
    if diagonal is None or K.view.steps:
        return 0.0
    own = diagonal[:, K.view.rows]
    size = np.abs(own).mean(axis=1)
    return float((own.std(axis=1) / np.where(size > 0, size, 1.0)).max())


def shape(grid: Mapping[str, tuple[Any, ...]]) -> tuple[int, ...]:
    """The number of values of each parameter."""
    return tuple(len(values) for values in grid.values())


def points(grid: Mapping[str, tuple[Any, ...]]) -> list[dict[str, Any]]:
    """All combinations in C order: the last parameter varies fastest, as in an array of `shape`."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
