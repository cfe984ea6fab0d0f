"""The kernel functions that can be asked for by name."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import reduce
from typing import Any

FUNCTIONS: dict[str, str] = {
    "linear": "x·y",
    "polynomial": "(gamma x·y + coef0)^degree; degree=3, gamma=1/columns, coef0=1",
    "cosine": "x·y / (‖x‖‖y‖), 0 where a norm is 0",
    "rbf": "exp(−gamma ‖x − y‖²); gamma or bandwidth=1",
    "laplacian": "exp(−gamma ‖x − y‖₁); gamma or bandwidth=1",
    "matern": "(1 + d) exp(−d), d = √(2 nu gamma) ‖x − y‖; nu=1.5, or 0.5: exp(−d), or 2.5: (1 + d + d²/3) exp(−d); "
    "gamma or bandwidth=1",
    "chi2": "exp(−gamma Σ (x − y)² / (x + y)) for x, y ≥ 0; gamma or bandwidth=1",
    "distance": "exp(−gamma D(x, y)) of a square matrix D of distances; gamma or bandwidth=1",
    "precomputed": "the entries of a square matrix that is a kernel already",
    "tanimoto": "x·y / (‖x‖² + ‖y‖² − x·y), 1 where both norms are 0",
    "jaccard": "Σ min(x, y) / Σ max(x, y) for x, y ≥ 0, 1 where both are 0",
    "intersection": "Σ min(x, y) for x, y ≥ 0",
    "pyramid": "Σ_l w_l Σ min(x, y) over the columns of level l, coarse to fine, for x, y ≥ 0; levels, "
    "weights=(2^−L, then 2^(l−L−1)) (Lazebnik, Schmid, Ponce 2006)",
    "proximity": "Σ_s w_s Σ min(x, y) over the columns of scale s, for x, y ≥ 0; scales, weights=1 (Ling, Soatto 2007)",
    "product": "the entrywise product of other kernels; of=[NAME, NAME, …]",
    "random_rbf": "rbf of Gaussian random vectors, no feature; seed=0, copies=1, dimensions=16, gamma or bandwidth=1",
}
"""Every function: k(x, y) of two rows of a feature table, and its parameters with their defaults.

A bandwidth b means gamma = 1/(b · mean distance over pairs of training rows); gamma multiplies the same distance, for
`matern` ‖x − y‖². The functions rbf, laplacian and matern take `scale`, a number for each column that divides it first.
"""


def import_path(function: Callable[..., Any]) -> str:
    """MODULE:NAME of a function, or its name alone where it cannot be imported again: a lambda, one of a script."""
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", type(function).__qualname__)
    inside: Any = sys.modules.get(module) if module != "__main__" else None
    is_there = reduce(lambda place, part: getattr(place, part, None), name.split("."), inside) is function
    return f"{module}:{name}" if is_there else name


WORDS = {"distance": "distances", "precomputed": "kernel values"}
"""The entries of the square matrices that a function takes."""
