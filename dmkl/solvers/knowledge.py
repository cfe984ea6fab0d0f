"""Prior knowledge about weights, written with cvxpy, as sets described by cones; the only module that imports cvxpy."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from dask.base import tokenize

from dmkl.arrays import Float
from dmkl.errors import refuse
from dmkl.solvers.weight_sets import Cones, ConicError, ConicSet, UnboundedSetError, dual_cone

Constraints = Callable[[Any], Any]  # Makes one or several cvxpy constraints from the weights d


class NamedWeights(cp.Variable):  # type: ignore[misc]
    """The weights d, (n,), in cvxpy expressions: d["rna"], d[["rna", "dna"]], d[0], or d itself, a vector."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(len(names), name="d")
        self._place = {name: position for position, name in enumerate(names)}

    def __getitem__(self, key: Any) -> Any:
        """The weight of a kernel by its name, those of several by a list of names, or any other index of cvxpy."""
        if isinstance(key, str):
            return super().__getitem__(self._position(key))
        if isinstance(key, list | tuple) and key and all(isinstance(name, str) for name in key):
            return super().__getitem__([self._position(name) for name in key])
        return super().__getitem__(key)

    def _position(self, name: str) -> int:
        if name not in self._place:
            kernels = ", ".join(list(self._place)[:10]) + (" …" if len(self._place) > 10 else "")
            refuse(f"constraints name the kernel {name!r}, which this set does not have; its kernels are {kernels}")
        return self._place[name]


def norm_constraints(d: Any, p: float, groups: Sequence[Sequence[int]], sigma: Sequence[float]) -> list[Any]:
    """Σ_g ‖σ_g∘d_g‖_p ≤ 1; for a single group of all kernels it is a ball."""
    sizes, cones = [], []
    for group in groups:
        b = cp.multiply(np.array([sigma[j] for j in group]), d[np.array(group)])
        if p in (1, 2) or np.isinf(p):
            sizes.append(cp.norm(b, "inf" if np.isinf(p) else int(p)))
            continue
        # b_j^p ≤ t_j s^(p−1) with Σ t_j ≤ s, by power cones.
        t, s = cp.Variable(len(group)), cp.Variable()
        cones += [cp.PowCone3D(t, s * np.ones(len(group)), b, 1.0 / p), cp.sum(t) <= s]
        sizes.append(s)
    return [*cones, sum(sizes) <= 1]


def conic_set(
    constraints: Constraints, names: Sequence[str], more: Callable[[Any], list[Any]] | None = None
) -> ConicSet:
    """The set d ≥ 0 that a function of d describes, with the constraints of `more` added.

    Raises InputError if the function does not return constraints, if one of them is not convex, or if they contradict
    each other: the message names an irreducible set of them, of which any could be dropped. Raises UnboundedSetError if
    weights may grow without bound.
    """
    d = NamedWeights(names)
    given = _constraints(constraints, d)
    every = [*given, *(more(d) if more else [])]
    # The numbers of constraints, since the text of an expression abbreviates arrays.
    leaves = [[leaf.value for leaf in (*c.constants(), *c.parameters())] for c in every]
    shapes = [[variable.shape for variable in c.variables()] for c in every]
    key = str(tokenize(list(map(str, every)), leaves, shapes))
    if key in _KNOWN:
        return _KNOWN[key]
    # Reduction by cvxpy takes milliseconds and is repeated for every fit of a search, hence the cache above.
    result = _canonical(d, every)
    try:
        total = result.total
    except UnboundedSetError:
        raise
    except ConicError as error:
        conflict = _conflict(d, given)
        together = _contradiction(conflict, names)
        if not conflict:
            together = f"these cannot be met within the norm's ball: {_listed(given, names)}. Loosen one"
        refuse(f"no weights d ≥ 0 satisfy all constraints, for {together}", error)
    # `total` is the largest Σd over the set: at zero every kernel is excluded.
    if total < 1e-9:
        refuse(f"constraints leave every kernel without weight: {_listed(given, names)}; loosen one")
    if len(_KNOWN) >= _MOST:
        del _KNOWN[next(iter(_KNOWN))]
    return _KNOWN.setdefault(key, result)


_MOST = 64
# The latest sets by the content of their constraints: a search needs few of them, but thousands of times.
_KNOWN: dict[str, ConicSet] = {}


def digest(constraints: Constraints, names: Sequence[str]) -> str:
    """A hash of the cones that constraints make: equal in every process, different for different constraints."""
    d = NamedWeights(names)
    cones = _canonical(d, _constraints(constraints, d))
    total = hashlib.sha256(repr((cones.n, cones.width, cones.cones)).encode())
    for array in (*cones.rows, cones.b):
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()[:16]


def _constraints(constraints: Constraints, d: NamedWeights) -> list[Any]:
    """The constraints that the function returns, each checked."""
    made = constraints(d)
    given = list(made) if isinstance(made, list | tuple) else [made]
    for number, constraint in enumerate(given):
        if not isinstance(constraint, cp.Constraint):
            refuse(
                "constraints must return constraints of cvxpy, such as lambda d: [d['rna'] >= d['noise']], and number "
                f"{number} is {constraint!r}"
            )
        if not constraint.is_dcp():
            refuse(
                f"constraints must describe a convex set of weights by cvxpy's rules (DCP), and {constraint} does not: "
                "write convex ≤ concave, or affine == affine"
            )
    return given


def rows_and_cones(
    constraints: Constraints, names: Sequence[str]
) -> tuple[Float, Float, tuple[str, ...], Cones | None]:
    """A, b of A d ≥ b for the linear constraints, each row as text, and the cones of the other constraints."""
    d = NamedWeights(names)
    rows, demands, texts = [np.zeros((0, len(names)))], [np.zeros(0)], list[str]()
    given, others = _constraints(constraints, d), []
    for constraint in given:
        # Each constraint is reduced alone: those that need no auxiliary variable and no other cone are linear rows.
        reduced = _canonical(d, [constraint], nonnegative=False)
        if reduced.width > reduced.n or any(name not in ("zero", "nonnegative") for name, _ in reduced.cones):
            others.append(constraint)
            continue
        i, j, values = reduced.rows
        matrix = sp.coo_array((values, (i, j)), shape=(len(reduced.b), reduced.n)).toarray()
        n_equal = next((int(str(arguments[0])) for name, arguments in reduced.cones if name == "zero"), 0)
        # A row means b − Gd ≥ 0; an equation also means b − Gd ≤ 0.
        rows += [-matrix, matrix[:n_equal]]
        demands += [-reduced.b, reduced.b[:n_equal]]
        texts += [_listed([constraint], names)] * (len(reduced.b) + n_equal)
    if others and (conflict := _conflict(d, given)):
        refuse(f"no weights d ≥ 0 satisfy all constraints, for {_contradiction(conflict, names)}")
    cones = _canonical(d, others, nonnegative=False) if others else None
    return np.concatenate(rows), np.concatenate(demands), tuple(texts), cones


def _canonical(d: NamedWeights, constraints: Sequence[Any], *, nonnegative: bool = True) -> ConicSet:
    """The cones to which cvxpy reduces the constraints, and d ≥ 0."""
    n = d.size
    # The objective Σ j d_j has a different coefficient for each weight, by which the columns of d are identified in
    # the reduced problem.
    problem = cp.Problem(cp.Minimize(np.arange(1.0, n + 1.0) @ d), [*([d >= 0] if nonnegative else []), *constraints])
    try:
        data, _, _ = problem.get_problem_data(cp.CLARABEL)
    except cp.error.SolverError as error:
        refuse(f"the solver, Clarabel, cannot take these constraints: {error}", error)
    first = np.flatnonzero(data["c"])
    # cvxpy may reorder the variables: d is moved to the first columns, auxiliary variables follow in their order.
    columns = np.empty(n, dtype=np.int64)
    columns[data["c"][first].astype(np.int64) - 1] = first
    matrix = sp.coo_array(data["A"])
    place = np.empty(matrix.shape[1], dtype=np.int64)
    place[np.concatenate([columns, np.setdiff1d(np.arange(matrix.shape[1]), columns)])] = np.arange(matrix.shape[1])
    rows = matrix.row.astype(np.int64), place[matrix.col], matrix.data.astype(np.float64)
    b, dims = np.asarray(data["b"], dtype=np.float64), data["dims"]
    # The cones in the order of cvxpy's rows.
    cones: list[tuple[str, tuple[Any, ...]]] = [("zero", (int(dims.zero),))] if dims.zero else []
    cones += [("nonnegative", (int(dims.nonneg),))] if dims.nonneg else []
    cones += [("second order", (int(k),)) for k in dims.soc]
    cones += [("semidefinite", (int(k),)) for k in dims.psd]
    cones += [("exponential", ())] * int(dims.exp)
    cones += [("power", (float(alpha),)) for alpha in dims.p3d]
    cones += [("powers", (list(map(float, alphas)), 1)) for alphas in getattr(dims, "pnd", ())]
    if (n_known := sum(dual_cone(*cone)[0] for cone in cones)) != len(b):
        refuse(
            f"cvxpy {cp.__version__} reduces these constraints to {len(b)} rows of cones, of which {n_known} are of "
            "cones that dmkl knows; write them with norms, sums of squares, geometric means, entropies or eigenvalues"
        )
    return ConicSet(n, rows, b, tuple(cones), matrix.shape[1])


def _conflict(d: NamedWeights, constraints: Sequence[Any]) -> list[Any]:
    """Constraints that no d ≥ 0 satisfies, though it satisfies any of their proper subsets; empty if all agree."""
    if _agree(d, constraints):
        return []
    # A deletion filter: each constraint is dropped if the others still conflict without it.
    kept = list(constraints)
    for constraint in constraints:
        rest = [other for other in kept if other is not constraint]
        if not _agree(d, rest):
            kept = rest
    return kept


def _contradiction(conflict: Sequence[Any], names: Sequence[str]) -> str:
    return f"these contradict each other: {_listed(conflict, names)}. Drop or loosen one, and the others agree"


def _agree(d: NamedWeights, constraints: Sequence[Any]) -> bool:
    try:
        _ = _canonical(d, constraints).total
    except ConicError as error:
        return isinstance(error, UnboundedSetError)
    return True


def _listed(constraints: Sequence[Any], names: Sequence[str]) -> str:
    """The constraints with names of kernels instead of positions."""

    def named(match: re.Match[str]) -> str:
        return f"d[{', '.join(repr(names[int(j)]) for j in match[1].split(','))}]"

    return "; ".join(re.sub(r"\bd\[(\d+(?:, \d+)*)\]", named, str(constraint)) for constraint in constraints)
