"""Balls of norms: ‖β‖_p ≤ 1, and Σ_g ‖β_g‖_p ≤ 1 over groups of kernels; and the set of given weights alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import clarabel
import numpy as np

from dmkl.arrays import Float, Index
from dmkl.errors import refuse
from dmkl.numerics.fisher import dual_norm, norm, onto_sphere, steepest, uniform_weights
from dmkl.solvers.weight_sets.base import ConicProgram, Entries, WeightSet

# Fraction of the largest weight below which a weight of an interior point of a sparse solution is set to zero.
_ABSENT = 1e-9


@dataclass(frozen=True)
class Ball(WeightSet):
    """‖β‖_p ≤ 1. S grows with every weight, so that solutions are on the sphere."""

    p: float

    @property
    def smooth(self) -> bool:
        return self.p > 1

    def is_fixed(self, n: int) -> bool:
        return n == 1 or bool(np.isinf(self.p))

    def start(self, n: int, near: Float | None = None) -> Float:
        return uniform_weights(n, self.p) if near is None or np.isinf(self.p) else onto_sphere(near, self.p)

    def support(self, q: Float) -> float:
        return dual_norm(q, self.p)

    def steepest(self, q: Float) -> Float:
        return steepest(q, self.p)

    def select(self, kernels: Index) -> Ball:
        return self

    def new_program(self, n: int) -> ConicProgram:
        p = self.p
        # For a general p there are further variables t_j ≥ β_j^p.
        program = ConicProgram(n if p in (1, 2) or np.isinf(p) else 2 * n)
        program.at_most(_diagonal(n), np.zeros(n))
        if np.isinf(p):
            program.at_most(_diagonal(n, 1.0), np.ones(n))
        elif p == 1:
            program.at_most(_total(0, n), 1.0)
        elif p == 2:
            i, j, signs = _diagonal(n)
            # (1, β) in the second-order cone is ‖β‖_2 ≤ 1.
            program.add((1 + i, j, signs), np.concatenate([[1.0], np.zeros(n)]), clarabel.SecondOrderConeT(n + 1))
        else:
            # (t_j, 1, β_j) in the power cone of exponent 1/p is β_j^p ≤ t_j, so that Σ β_j^p ≤ Σ t_j ≤ 1.
            program.at_most(_total(n, n), 1.0)
            first = 3 * np.arange(n)
            rows = np.append(first, first + 2), np.append(n + np.arange(n), np.arange(n)), np.full(2 * n, -1.0)
            program.add(rows, np.tile([0.0, 1.0, 0.0], n), *[clarabel.PowerConeT(1.0 / p)] * n)
        return program

    def clean(self, x: Float) -> Float:
        # For p = 1 solutions are sparse, and what an interior point leaves of zero weights is cut off; for p > 1 small
        # weights are part of the solution.
        return onto_sphere(_sparse(x) if self.p == 1 else x, self.p)

    def polish(self, aim: Float, q: Float, curvature: Float, x: Float) -> Float:
        if np.isinf(self.p):
            return aim
        return _exact(aim, q, curvature, x) if self.p == 1 else _polish(aim, q, curvature, x, self.p)


@dataclass(frozen=True)
class GroupBall(WeightSet):
    """Σ_g ‖β_g‖_p ≤ 1 with 1 < p ≤ ∞: few groups have weight, and a group's weight is spread over its kernels.

    `groups` are the positions of the kernels of each group; each kernel is in one group.
    """

    p: float
    groups: tuple[tuple[int, ...], ...]

    smooth = False

    def is_fixed(self, n: int) -> bool:
        return n == 1

    def start(self, n: int, near: Float | None = None) -> Float:
        if near is not None:
            return self.clean(near)
        beta = np.zeros(n)
        for group in self._members():
            beta[group] = uniform_weights(len(group), self.p) / len(self.groups)
        return beta

    def support(self, q: Float) -> float:
        return max(dual_norm(q[group], self.p) for group in self._members())

    def steepest(self, q: Float) -> Float:
        # Σ_g s_g‖q_g‖_p* with Σs_g ≤ 1 is largest if one group with the largest dual norm has everything.
        best = max(self._members(), key=lambda group: dual_norm(q[group], self.p))
        beta = np.zeros(len(q))
        beta[best] = steepest(q[best], self.p)
        return beta

    def select(self, kernels: Index) -> Ball | GroupBall:
        place = {int(kernel): position for position, kernel in enumerate(kernels)}
        kept = [[place[j] for j in group if j in place] for group in self.groups]
        return grouped(self.p, [group for group in kept if group])

    def new_program(self, n: int) -> ConicProgram:
        # After β come s_g ≥ ‖β_g‖_p of each group, then t_j ≥ β_j^p/s_g^(p−1) for a general p.
        powers = 0 if self.p == 2 or np.isinf(self.p) else sum(len(group) for group in self.groups if len(group) > 1)
        program = ConicProgram(n + len(self.groups) + powers)
        sizes = n + np.arange(len(self.groups))
        program.at_most(_diagonal(n), np.zeros(n))
        program.at_most(_total(n, len(self.groups)), 1.0)
        last = n + len(self.groups)
        for size, group in zip(sizes, self._members(), strict=True):
            k = len(group)
            each, size_columns = np.arange(k), np.full(k, size)
            if np.isinf(self.p) or k == 1:  # β_j ≤ s_g
                signs = np.repeat([1.0, -1.0], k)
                program.at_most((np.tile(each, 2), np.append(group, size_columns), signs), np.zeros(k))
            elif self.p == 2:
                rows = np.append(0, 1 + each), np.append(size, group), np.full(k + 1, -1.0)
                program.add(rows, np.zeros(k + 1), clarabel.SecondOrderConeT(k + 1))
            else:
                # Σ t_j ≤ s with (t_j, s, β_j) in the power cone of exponent 1/p: t_j s^(p−1) ≥ β_j^p.
                # They are homogeneous in (t, s, β), so that a group with s = 0 has no weight.
                t = last + each
                columns = np.append(t, size)
                program.at_most((np.zeros(k + 1, dtype=np.int64), columns, np.append(np.ones(k), -1.0)), 0.0)
                triples = np.concatenate([3 * each, 3 * each + 1, 3 * each + 2])
                entries = triples, np.concatenate([t, size_columns, group]), np.full(3 * k, -1.0)
                program.add(entries, np.zeros(3 * k), *[clarabel.PowerConeT(1.0 / self.p)] * k)
                last += k
        return program

    def clean(self, x: Float) -> Float:
        # Scaled to the sphere, with tiny groups set to zero.
        x = np.maximum(x, 0.0)
        sizes = np.array([norm(x[group], self.p) for group in self._members()])
        if not (total := float(_sparse(sizes).sum())) > 0:
            return self.start(len(x))
        beta = x / total
        for size, group in zip(sizes, self._members(), strict=True):
            if not size > _ABSENT * float(sizes.max()):
                beta[group] = 0.0
        return beta

    def _members(self) -> list[Index]:
        return [np.array(group) for group in self.groups]


def grouped(p: float, groups: Sequence[Sequence[int]]) -> Ball | GroupBall:
    """The set Σ_g ‖β_g‖_p ≤ 1 over groups that partition the kernels.

    For p = 1, or groups of one kernel each, it is ‖β‖_1 ≤ 1; for a single group it is ‖β‖_p ≤ 1.
    """
    if p == 1 or all(len(group) == 1 for group in groups):
        return Ball(1.0)
    if len(groups) == 1:
        return Ball(p)
    return GroupBall(p, tuple(tuple(int(j) for j in group) for group in groups))


@dataclass(frozen=True)
class GivenWeights(WeightSet):
    """The set of one element β, so that nothing is learnt; masters, and with them conic programs, are never needed."""

    beta: tuple[float, ...]

    p = np.inf
    smooth = True

    def is_fixed(self, n: int) -> bool:
        return True

    def start(self, n: int, near: Float | None = None) -> Float:
        return np.array(self.beta)

    def support(self, q: Float) -> float:
        return float(np.dot(self.beta, q))

    def steepest(self, q: Float) -> Float:
        return np.array(self.beta)

    def select(self, kernels: Index) -> GivenWeights:
        beta = tuple(self.beta[int(j)] for j in kernels)
        if not any(beta):
            refuse(
                "weights are given, and a fit to some of the kernels has only kernels of weight zero; leave these out "
                "of the set by select(), or give them a weight"
            )
        return GivenWeights(beta)


def _diagonal(n: int, sign: float = -1.0) -> Entries:
    return np.arange(n), np.arange(n), np.full(n, sign)


def _total(first: int, n: int) -> Entries:
    return np.zeros(n, dtype=np.int64), first + np.arange(n), np.ones(n)


def _sparse(x: Float) -> Float:
    return np.where(x > _ABSENT * float(x.max()), x, 0.0)


_POLISHING = 5
# Fraction of the largest weight above which a weight takes part in polishing.
_PRESENT = 1e-6


def _polish(aim: Float, q: Float, curvature: Float, beta: Float, p: float) -> Float:
    """The solution of the quadratic model over the ball, 1 < p < ∞, to rounding, from a point near it.

    An interior point that is optimal to g in the objective is optimal only to √g in the weights, and its last digits
    depend on rounding. Newton's method solves the optimality conditions over the weights that are not tiny:

        q − C(b − β) = μ b^(p−1),   Σ b^p = 1.
    """
    there = aim > _PRESENT * float(aim.max())
    # Tiny weights are fixed: b^(p−2) would overflow there for p < 2, and their part of Σb^p is constant.
    b, size = aim[there], float(np.sum(aim[~there] ** p))
    fixed = (q - curvature[:, ~there] @ aim[~there] + curvature @ beta)[there]
    inner = curvature[np.ix_(there, there)]
    powers = b ** (p - 1.0)
    mu = float((fixed - inner @ b) @ powers / (powers @ powers))
    # A multiplier that is not positive means that the constraint is not active: no such system then.
    if mu <= 0:
        return aim
    error = np.inf
    best = aim
    for _ in range(_POLISHING):
        powers = b ** (p - 1.0)
        left = np.append(fixed - inner @ b - mu * powers, (np.sum(b * powers) + size - 1.0) / p)
        # Newton's method converges quadratically: a residual that is not halved is rounding error.
        if not (now := float(np.abs(left).max())) < 0.5 * error:
            break
        best, error = aim.copy(), now
        best[there] = b
        system = np.zeros((len(b) + 1, len(b) + 1))
        system[:-1, :-1] = inner + np.diag(mu * (p - 1.0) * b ** (p - 2.0))
        system[:-1, -1], system[-1, :-1] = powers, -powers
        try:
            step = np.linalg.solve(system, left)
        except np.linalg.LinAlgError:  # powers of small weights that vanish
            break
            # A step that halves a weight may leave β > 0; the best point so far is kept.
        if not np.all(b + step[:-1] > 0.5 * b):
            break
        b, mu = b + step[:-1], mu + float(step[-1])
    return onto_sphere(best, p)


def _exact(aim: Float, q: Float, curvature: Float, beta: Float) -> Float:
    """The solution of the quadratic model over Σ b = 1, b ≥ 0, from an interior point, which errs as above.

    On the kernels that have weight q − C(b − β) is the same for all.
    """
    there = np.flatnonzero(aim > _PRESENT * float(aim.max()))
    system = np.ones((len(there) + 1, len(there) + 1))
    system[:-1, :-1], system[-1, -1] = curvature[np.ix_(there, there)], 0.0
    exact = np.zeros_like(aim)
    exact[there] = np.linalg.lstsq(system, np.append((q + curvature @ beta)[there], 1.0))[0][:-1]
    return onto_sphere(exact, 1.0) if exact.min() >= 0 else aim
