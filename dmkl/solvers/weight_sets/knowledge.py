"""Prior knowledge of weights, written with cvxpy, as sets that cones describe: the one place that imports cvxpy."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp

from dmkl.arrays import Float
from dmkl.errors import InputError
from dmkl.solvers.cones import ConicError
from dmkl.solvers.weight_sets.conic import Cones, ConicSet, UnboundedSetError

__all__ = ["Constraints", "NamedWeights", "conic_set", "digest", "norm_constraints", "rows_and_cones"]

Constraints = Callable[[Any], Any]
"""Makes constraints of cvxpy, or one, from the weights d."""


class NamedWeights(cp.Variable):  # type: ignore[misc]
    """d, (n,): d["rna"], d[["rna", "dna"]], d[0], and d itself, a vector, in expressions of cvxpy."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(len(names), name="d")
        self._place = {name: position for position, name in enumerate(names)}

    def __getitem__(self, key: Any) -> Any:
        """The weight of a kernel by its name, those of several by a list of names, or as in cvxpy."""
        if isinstance(key, str):
            return super().__getitem__(self._position(key))
        if isinstance(key, list | tuple) and key and all(isinstance(name, str) for name in key):
            return super().__getitem__([self._position(name) for name in key])
        return super().__getitem__(key)

    def _position(self, name: str) -> int:
        if name not in self._place:
            known = ", ".join(list(self._place)[:10]) + (" …" if len(self._place) > 10 else "")
            msg = f"constraints name the kernel {name!r}, which this set does not have; its kernels are {known}"
            raise InputError(msg)
        return self._place[name]


def norm_constraints(d: Any, p: float, groups: Sequence[Sequence[int]], sigma: Sequence[float]) -> list[Any]:
    """Σ_g ‖σ_g∘d_g‖_p ≤ 1; one group of all kernels is a ball."""
    sizes, found = [], []
    for group in groups:
        b = cp.multiply(np.array([sigma[j] for j in group]), d[np.array(group)])
        if p in (1, 2) or np.isinf(p):
            sizes.append(cp.norm(b, "inf" if np.isinf(p) else int(p)))
            continue
        # b_j^p ≤ t_j s^(p−1) with Σ t_j ≤ s, by power cones.
        t, s = cp.Variable(len(group)), cp.Variable()
        found += [cp.PowCone3D(t, s * np.ones(len(group)), b, 1.0 / p), cp.sum(t) <= s]
        sizes.append(s)
    return [*found, sum(sizes) <= 1]


def conic_set(
    constraints: Constraints, names: Sequence[str], more: Callable[[Any], list[Any]] | None = None
) -> ConicSet:
    """The set d ≥ 0 that a function of d describes, with `more` constraints beside.

    Raises
    ------
    InputError
        If what the function returns are no constraints, or none that are convex, or if they contradict each other: an
        irreducible set of them is named, of which any could be dropped.
    UnboundedSetError
        If weights may grow without end.
    """
    d = NamedWeights(names)
    given = _constraints(constraints, d)
    every = [*given, *(more(d) if more else [])]
    key = _content(every)
    if key in _KNOWN:
        return _KNOWN[key]
    found = _canonical(d, every)
    try:
        total = found.total
    except UnboundedSetError:
        raise
    except ConicError as error:
        conflict = _conflict(d, given)
        together = _contradiction(conflict, names)
        if not conflict:
            together = f"these cannot be met within the norm's ball: {_listed(given, names)}. Loosen one"
        msg = f"no weights d ≥ 0 satisfy all constraints, for {together}"
        raise InputError(msg) from error
    if total < 1e-9:
        msg = f"constraints leave every kernel without weight: {_listed(given, names)}; loosen one"
        raise InputError(msg)
    if len(_KNOWN) >= _MOST:
        del _KNOWN[next(iter(_KNOWN))]
    return _KNOWN.setdefault(key, found)


_MOST = 64
_KNOWN: dict[str, ConicSet] = {}
"""The latest sets by what describes them: a search asks for few of them, and thousands of times."""


def _content(constraints: Sequence[Any]) -> str:
    """What constraints say, with all their numbers: of texts, arrays are cut short."""
    total = hashlib.sha256()
    for one in constraints:
        total.update(f"{one}; ".encode())
        for leaf in (*one.constants(), *one.parameters()):
            value = leaf.value
            total.update(np.ascontiguousarray(value.toarray() if hasattr(value, "toarray") else value).tobytes())
        total.update(repr([variable.shape for variable in one.variables()]).encode())
    return total.hexdigest()


def digest(constraints: Constraints, names: Sequence[str]) -> str:
    """What tells constraints from others, the same in every process: of the cones that they make."""
    d = NamedWeights(names)
    found = _canonical(d, _constraints(constraints, d))
    total = hashlib.sha256(repr((found.n, found.width, found.cones)).encode())
    for array in (*found.rows, found.b):
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()[:16]


def _constraints(constraints: Constraints, d: NamedWeights) -> list[Any]:
    """What the function returns, checked one by one."""
    made = constraints(d)
    given = list(made) if isinstance(made, list | tuple) else [made]
    for number, one in enumerate(given):
        if not isinstance(one, cp.Constraint):
            msg = (
                "constraints must return constraints of cvxpy, such as lambda d: [d['rna'] >= d['noise']], and number "
                f"{number} is {one!r}"
            )
            raise InputError(msg)
        if not one.is_dcp():
            msg = (
                f"constraints must describe a convex set of weights by cvxpy's rules (DCP), and {one} does not: write "
                "convex ≤ concave, or affine == affine"
            )
            raise InputError(msg)
    return given


def rows_and_cones(
    constraints: Constraints, names: Sequence[str]
) -> tuple[Float, Float, tuple[str, ...], Cones | None]:
    """A, b of A d ≥ b, and each row in words, of the constraints that are linear, and the cones of the others.

    Raises
    ------
    InputError
        If the function returns no convex constraints of cvxpy, or if those that are not linear cannot be met.
    """
    d = NamedWeights(names)
    rows, demands, texts = [np.zeros((0, len(names)))], [np.zeros(0)], list[str]()
    given, others = _constraints(constraints, d), []
    for one in given:
        found = _canonical(d, [one], nonnegative=False)
        if found.width > found.n or any(name not in ("zero", "nonnegative") for name, _ in found.cones):
            others.append(one)
            continue
        i, j, values = found.rows
        matrix = sp.coo_array((values, (i, j)), shape=(len(found.b), found.n)).toarray()
        n_equal = next((int(str(told[0])) for name, told in found.cones if name == "zero"), 0)
        # b − Gd ≥ 0, and of an equation b − Gd ≤ 0 too.
        rows += [-matrix, matrix[:n_equal]]
        demands += [-found.b, found.b[:n_equal]]
        texts += [_listed([one], names)] * (len(found.b) + n_equal)
    if others and (conflict := _conflict(d, given)):
        msg = f"no weights d ≥ 0 satisfy all constraints, for {_contradiction(conflict, names)}"
        raise InputError(msg)
    cones = _canonical(d, others, nonnegative=False) if others else None
    return np.concatenate(rows), np.concatenate(demands), tuple(texts), cones


def _canonical(d: NamedWeights, constraints: Sequence[Any], *, nonnegative: bool = True) -> ConicSet:
    """The cones that cvxpy makes of constraints, and of d ≥ 0."""
    n = d.size
    # Of the objective cvxpy keeps the coefficients: they tell the columns of d.
    problem = cp.Problem(cp.Minimize(np.arange(1.0, n + 1.0) @ d), [*([d >= 0] if nonnegative else []), *constraints])
    try:
        data, _, _ = problem.get_problem_data(cp.CLARABEL)
    except cp.error.SolverError as error:
        msg = f"constraints are none that Clarabel, the solver, can take: {error}"
        raise InputError(msg) from error
    first = np.flatnonzero(data["c"])
    columns = np.empty(n, dtype=np.int64)
    columns[data["c"][first].astype(np.int64) - 1] = first
    matrix = sp.coo_array(data["A"])
    place = np.empty(matrix.shape[1], dtype=np.int64)
    place[np.concatenate([columns, np.setdiff1d(np.arange(matrix.shape[1]), columns)])] = np.arange(matrix.shape[1])
    rows = matrix.row.astype(np.int64), place[matrix.col], matrix.data.astype(np.float64)
    b, dims = np.asarray(data["b"], dtype=np.float64), data["dims"]
    return ConicSet(n, rows, b, _cones(dims), matrix.shape[1])


def _cones(dims: Any) -> tuple[tuple[str, tuple[object, ...]], ...]:
    """The cones in the order in which cvxpy has the rows."""
    found: list[tuple[str, tuple[object, ...]]] = [("zero", (int(dims.zero),))] if dims.zero else []
    found += [("nonnegative", (int(dims.nonneg),))] if dims.nonneg else []
    found += [("second order", (int(k),)) for k in dims.soc]
    found += [("semidefinite", (int(k),)) for k in dims.psd]
    found += [("exponential", ())] * int(dims.exp)
    found += [("power", (float(alpha),)) for alpha in dims.p3d]
    found += [("powers", (list(map(float, alphas)), 1)) for alphas in getattr(dims, "pnd", ())]
    return tuple(found)


def _conflict(d: NamedWeights, constraints: Sequence[Any]) -> list[Any]:
    """Constraints that no d ≥ 0 satisfies, though it does when any one is left out; empty where all agree."""
    if _agree(d, constraints):
        return []
    kept = list(constraints)
    for one in constraints:
        rest = [other for other in kept if other is not one]
        if not _agree(d, rest):
            kept = rest
    return kept


def _contradiction(conflict: Sequence[Any], names: Sequence[str]) -> str:
    return f"these contradict each other: {_listed(conflict, names)}. Drop or loosen one, and the others agree"


def _agree(d: NamedWeights, constraints: Sequence[Any]) -> bool:
    try:
        _ = _canonical(d, constraints).total
    except UnboundedSetError:
        return True
    except ConicError:
        return False
    return True


def _listed(constraints: Sequence[Any], names: Sequence[str]) -> str:
    """The constraints with names of kernels in place of their positions."""

    def named(found: re.Match[str]) -> str:
        return f"d[{', '.join(repr(names[int(j)]) for j in found[1].split(','))}]"

    return "; ".join(re.sub(r"\bd\[(\d+(?:, \d+)*)\]", named, str(one)) for one in constraints)
