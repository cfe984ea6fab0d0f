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
"""λ for kernels of unit trace (CVPR Section 4.1); on few samples those that the stored precision resolves.

A small search without the smallest is faster, and worse if labels have no noise (`pipelines/small_ridges.py`).
"""

LAM_COSINE = tuple(4.0**k for k in range(-5, 5))
"""λ for kernels with ones on the diagonal, 4⁻⁵ to 4⁴ (JMLR Section 3.3)."""

CHAINS = (("center", "trace"), ("cosine", "center"))
"""The chains of steps in the papers: the default (CVPR Section 4.1), and JMLR Section 3.3."""

MOST_VARIATION = 0.1
"""Up to this coefficient of variation of a kernel's diagonal, the two chains hardly differ except by a factor."""

N_GROUPS = (1, 2, 3, 4, 5)
"""Numbers of groups in each class (GS-MKL Section 5.3)."""

C_VALUES = tuple(2.0**k for k in range(-2, 8))
"""C of the support vector machines of the papers, 2⁻² to 2⁷ (JMLR Section 3.3)."""


def as_grid(grid: Mapping[str, Any] | None, estimator: Any, *, several: bool = False) -> dict[str, tuple[Any, ...]]:
    """Check a grid of parameters, or make that of the papers.

    Parameters
    ----------
    grid
        Values of each parameter, in the order of the results; a single value means a list of one, and None the default
        values of p, lam or C.
        The default grid has, for the parameters of the estimator, `P_VALUES` for p, `C_VALUES` for C, `N_GROUPS` for
        n_groups, and for lam `LAM_COSINE` if its steps leave k(x, x) near one ("cosine" or "multiplicative" is the last
        step that normalizes), `LAM_TRACE` otherwise. With several chains of steps in the grid, lam has the default
        values of each.
    estimator
        Its ``get_params()`` names the parameters.
    several
        Whether there are several tasks, with separate choices: they share the number of groups, which is then not
        searched by default.

    Returns
    -------
    dict
        Tuples of values by parameter, in the order of `grid`; p and lam as floats, p from 1e6 on as ∞.

    Raises
    ------
    InputError
        If a name is not a parameter of the estimator, a list is empty or repeats a value, p is below 1, or lam is not
        positive and finite.

    Notes
    -----
    JMLR: Yan, Kittler, Mikolajczyk, Tahir: Non-sparse multiple kernel Fisher discriminant analysis, JMLR 13 (2012).
    CVPR: Yan, Mikolajczyk, Barnard, Cai, Kittler: ℓp norm multiple kernel Fisher discriminant analysis for object and
    image categorisation, CVPR 2010. GS-MKL: Yang, Li, Tian, Duan, Gao: Group-sensitive multiple kernel learning for
    object categorization, ICCV 2009.
    """
    parameters, title = estimator.get_params(), type(estimator).__name__
    chosen: Any = grid
    steps = grid.get("steps") if isinstance(grid, Mapping) else None
    chains = [parameters.get("steps")] if steps is None else _values("steps", steps, parameters, title)
    lam = tuple(sorted({lam for chain in chains for lam in lams_of(chain)}))
    defaults = {"p": P_VALUES, "lam": lam, "C": C_VALUES}
    if grid is None:
        papers = [*defaults.items(), *([] if several else [("n_groups", N_GROUPS)])]
        # The hinge loss has C, the square loss λ.
        idle = {"hinge": "lam", "square": "C"}.get(str(parameters.get("loss")))
        chosen = {name: values for name, values in papers if name in parameters and name != idle}
        if not chosen:
            msg = f"{title} has neither p nor lam nor C, so there is no default grid; give one"
            raise InputError(msg)
    if not isinstance(chosen, Mapping) or not chosen:
        msg = f"grid must map parameters to their values, as {{'p': [1, 2], 'lam': [0.1, 1]}}, got {grid!r}"
        raise InputError(msg)
    return {
        name: _values(name, defaults.get(name) if values is None else values, parameters, title)
        for name, values in chosen.items()
    }


def lams_of(steps: Any) -> tuple[float, ...]:
    """The default values of λ for kernels after these steps."""
    scales = [step for step in as_steps(steps) if step in NORMALIZATIONS]
    return LAM_COSINE if scales and scales[-1] != "trace" else LAM_TRACE


def _values(name: str, given: Any, parameters: Mapping[str, Any], title: str) -> tuple[Any, ...]:
    if name not in parameters:
        msg = f"{name!r} is no parameter of {title}; its parameters are {', '.join(sorted(parameters))}"
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
    """The value as plain Python; values of steps, p, lam and C are checked."""
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

    0 if the diagonals are unknown, or the set has steps already. It needs no pass.
    """
    diagonal = K.view.source.diagonal(K.view.kernels)
    if diagonal is None or K.view.steps:
        return 0.0
    shown = diagonal[:, K.view.rows]
    size = np.abs(shown).mean(axis=1)
    return float((shown.std(axis=1) / np.where(size > 0, size, 1.0)).max())


def shape(grid: Mapping[str, tuple[Any, ...]]) -> tuple[int, ...]:
    """The number of values of each parameter."""
    return tuple(len(values) for values in grid.values())


def points(grid: Mapping[str, tuple[Any, ...]]) -> list[dict[str, Any]]:
    """All combinations in C order: the last parameter varies fastest, as in an array of `shape`."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
