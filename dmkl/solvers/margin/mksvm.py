"""ℓp MK-SVM, kernel weights and a support vector machine that are learned together; and EasyMKL.

For labels y and the bound C (Yan et al., JMLR 13, 2012, Eq. 1, whose α is u = α∘y here; CVPR 2010; Kloft, Brefeld,
Sonnenburg, Zien, JMLR 12, 2011),

    minimize over β ≥ 0, ‖β‖_p ≤ 1 of  J(β) = max over 0 ≤ α ≤ C, Σu = 0 of  Σα − ½ Σ_j β_j uᵀK_ju.

J is convex and decreases in every weight, with gradient −½v, v_j = uᵀK_ju. It is piecewise smooth: while the same
vectors are free, its second derivatives are those of `dmkl.solvers.margin.svm.curvature`.

Several binary problems, such as each class against the rest, may share the weights (Sonnenburg, Rätsch, Schäfer,
Schölkopf, JMLR 7, 2006): J, its gradient and its bounds are then sums over the problems, v_j = Σ_k u_kᵀK_ju_k.

EasyMKL
-------
The weights come from the margin between the convex hulls of the classes on the sum of all kernels.

Aiolli and Donini, EasyMKL: a scalable multiple kernel learning algorithm, Neurocomputing 169 (2015). With γ ≥ 0,
Σ γ_i = 1 over each class, v = γ∘y and 0 < λ < 1,

    γ(K) minimizes (1 − λ) vᵀKv + λ vᵀv,          d_j = v(Σ_i K_i)ᵀ K_j v(Σ_i K_i),          η = d/‖d‖_2,

and the classifier is v(Σ_j η_jK_j) with the threshold halfway between the two hulls. The minimum is that of the squared
distance q = vᵀ(K + δI)v between the hulls, δ = λ/(1 − λ): the hard-margin support vector machine on K + δI has
u = (2/q) v, and its dual objective is 2/q. So a feasible primal value P proves q* ≥ 2/P.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dmkl import progress
from dmkl.arrays import Array, Float
from dmkl.numerics.fisher import gap_scale, onto_sphere, relative_gap
from dmkl.numerics.semidefinite import UNKNOWN, KernelFacts, check_forms
from dmkl.solvers.interface import SVM, EachProduct, Outcome, Status, Step, Task
from dmkl.solvers.margin.svm import Bounds, SVMSolution, best_bias, curvature, hinge
from dmkl.solvers.masters import (
    FLAT,
    WEIGHTS_ERROR,
    CuttingPlane,
    LineSearch,
    ascent_direction,
    exact_master,
    newton_master,
)
from dmkl.solvers.weight_sets import ConicError, WeightSet


@dataclass(frozen=True, eq=False)
class MarginCertificate:
    """The largest possible distance of a pair (u, β) from the optimum J*, proven from the pair alone.

    J(β) is the minimum of the primal, so P(β, u, b) = ½ Σ_j β_jv_j + C Σ_i max(0, 1 − y_i(Σ_j β_jK_ju + b)_i) ≥ J(β)
    ≥ J* for any b. For any u of the dual's box, J* ≥ min over β of the dual, which is Σα − ½‖v‖_p*.
    """

    upper: float  # P(β, u, b)
    objective: float  # D(u; β) = Σα − ½ Σ_j β_jv_j, at most J(β)
    lower: float  # Σα − ½‖v‖_p*, or D(u; β) if weights are given
    bias: Float  # b, the minimizer of P, (c,)
    forms: Float  # v, (n,)
    part: float  # ½ Σ_j β_jv_j, the part of P that weights can change; infinite if weights are given

    @property
    def gap(self) -> float:
        """(P − lower)/min(P, ½ Σ_j β_jv_j): the relative gap, of the SVM and of the weights together.

        For small C the objective is almost the number of samples times C for any weights, which change ½ Σ_j β_jv_j.
        """
        return relative_gap(self.upper, self.lower, self.upper, self.part)

    @property
    def weights_gap(self) -> float:
        """The part of the gap that better weights would close, or a u that is closer to that of such weights."""
        return relative_gap(self.objective, self.lower, self.upper, self.part)

    @property
    def share(self) -> float:
        """The part of P to which gaps are relative, in (0, 1]."""
        return gap_scale(1.0, self.part / (abs(self.upper) or 1.0))


def certify_margin(
    u: Float, products: Array, beta: Float, y: Float, C: Bounds, weights: WeightSet
) -> MarginCertificate:
    """Certify a pair of u (m, c), 0 ≤ y_iu_i ≤ C and Σu = 0 in each column, and β (n,) of a set of weights.

    The certificate is computed in float64 from u and its products K_ju (n, m, c) alone; labels (m, c) are 1 and −1.
    """
    forms = np.einsum("nmc,mc->n", products, u, dtype=np.float64)
    # Scores and forms from the same products: the upper and the lower bound then refer to the same u.
    scores = np.tensordot(beta, products, axes=1)
    bias = np.array([best_bias(f, of_problem, C) for f, of_problem in zip(scores.T, y.T, strict=True)])
    # ½βᵀv is at most ½‖v‖_p* over the ball: D at the best weights for this u is a lower bound of the optimum.
    losses = sum(hinge(f, float(b), signs, C) for f, b, signs in zip(scores.T, bias, y.T, strict=True))
    total, energy = float(np.sum(y * u)), 0.5 * float(beta @ forms)
    lower, part = total - 0.5 * weights.support(forms), np.inf if weights.is_fixed(len(beta)) else energy
    return MarginCertificate(energy + losses, total - energy, lower, bias, forms, part)


def mk_svm(
    y: Float,
    C: Bounds,
    weights: WeightSet,
    n_kernels: int,
    *,
    title: str = "",
    tol: float = 1e-3,
    max_iter: int = 100,
    facts: KernelFacts = UNKNOWN,
) -> Generator[SVM | EachProduct | Task | tuple[SVM, ...], Any, Outcome]:
    """Solve one problem of ℓp MK-SVM: a generator that requests in each step an SVM on K(β), and K_ju of all kernels.

    y are labels 1 and −1, (m,), or (m, c) of c problems that share the weights, and C is the bound on α, or one for
    each sample, (m,). `weights` are a `Ball`, or `GivenWeights` that are not learnt.

    The method is Newton's over the ball: the quadratic model of J at the best weights so far is minimized exactly
    (`dmkl.solvers.masters.newton_master`), and a step along which J does not fall enough is shortened to the zero of
    the interpolated derivative. If an SVM has no curvature, the step is that of a closed form (`_direction`), along
    which J always falls, slowly near p = 1. Where u is not unique J may have a kink, at which Newton's steps end;
    cutting planes go on from there (`_by_planes`). As for MK-FDA, it ends when the gap is proven and Newton's next step
    is at most `WEIGHTS_ERROR` of the largest weight, or J falls by no more than the gaps of machines.

    The objective of the outcome is the dual D(u; β), and `bound` is below the optimum. The primal of each step, which
    is above the optimum, is in the history as "upper". Raises IndefiniteKernelError if a form uᵀK_ju is negative.
    """
    watch, y = progress.current(), y.reshape(len(y), -1)
    # With one kernel or p = ∞ the weights are known, and a single SVM solves the problem.
    candidate, fixed = weights.start(n_kernels), weights.is_fixed(n_kernels)
    best: Outcome | None = None
    steps: list[Step] = []
    search: LineSearch | None = None
    planes: list[CuttingPlane] = []
    points: list[Float] = []
    last = np.inf
    starts: list[Float | None] = [None] * y.shape[1]
    gap, share = _UNKNOWN_GAP, 1.0
    for _ in range(max_iter):
        # For an SVM with a gap of g, v has a relative error of some √g: the tolerance is the square of the accuracy
        # that weights of the last gap need. At fixed weights it is all of tol, except for a margin for rounding. Gaps
        # of machines are relative to P, those of the weights to a share of it.
        accuracy = max(share * (0.9 * tol if fixed else (0.03 * max(tol, gap)) ** 2), _FINEST_MACHINE)
        machines, u = yield from _machines(candidate, y, C, accuracy, starts)
        # The next SVMs start from these u, which are feasible for all weights: the box does not depend on them.
        starts = list(u.T)
        products = yield EachProduct(u)
        certificate = certify_margin(u, products, candidate, y, C, weights)
        check_forms(certificate.forms, facts, float(np.sum(u * u)))
        planes.append(_plane(y, u, certificate))
        points.append(u)
        gap, share = min(certificate.weights_gap, _UNKNOWN_GAP), certificate.share
        figures = {"objective": certificate.objective, "upper": certificate.upper, "gap": certificate.gap}
        steps.append(Step(candidate, figures))
        certified = certificate.gap <= tol
        # The pair with the smallest proven gap is returned, which need not be the last point of the descent; once the
        # gap is proven, the last one from which a step was made.
        if best is None or (best.status != Status.CERTIFIED and certificate.gap < best.gap):
            best = _outcome(certificate, candidate, u, steps, Status.CERTIFIED if certified else Status.ITERATIONS)
        watch.note(f"{title}{progress.error_text(certificate.gap)}")
        if certified and fixed:
            return best
        # An SVM that was solved less accurately than the weights need may still close the gap: the loop goes on then.
        solved = accuracy <= max((0.9 if fixed else 0.1) * tol * share, _FINEST_MACHINE)
        if best.status != Status.CERTIFIED and solved and (fixed or certificate.weights_gap <= 0.1 * tol):
            # No other weights would reduce the gap, and the SVM cannot be solved more accurately.
            return replace(best, status=Status.STALLED)
        if search is None or search.accepts(-certificate.objective):
            # Where u is not unique, as of kernels with equal rows, J has a kink: no model of one u leads on from it.
            if not certified and last - certificate.upper <= _KINK * certificate.upper * share:
                break
            last, v = certificate.upper, certificate.forms
            of_free = [machine.of_free(products[:, :, k]) for k, machine in enumerate(machines)]
            direction, has_model = yield Task("restricted-master", _direction, (weights, candidate, v, of_free))
            if certified:
                best = _outcome(certificate, candidate, u, steps, Status.CERTIFIED)
                if not has_model:  # the direction is not Newton's
                    return best
                best = replace(best, weights_error=float(np.abs(direction).max() / candidate.max()))
                if best.weights_error <= WEIGHTS_ERROR or certificate.weights_gap <= FLAT:
                    return best
            # Line search for a maximum of −J, whose value here is between −upper and −objective.
            search = LineSearch(candidate, direction, 0.5 * v, -certificate.upper)
        else:
            search.shorten(0.5 * certificate.forms)
        if search.point is None:
            best = best if best.status == Status.CERTIFIED else replace(best, status=Status.STALLED)
            break
        candidate = search.point
    assert best is not None
    if best.status == Status.CERTIFIED or fixed or len(steps) == max_iter:
        return best
    return (yield from _by_planes(y, C, weights, planes, points, best, steps, tol, max_iter, facts))


def _machines(
    beta: Float, y: Float, C: Bounds, accuracy: float, starts: Sequence[Float | None]
) -> Generator[SVM | tuple[SVM, ...], Any, tuple[Sequence[SVMSolution], Float]]:
    """The machine of each problem at β, and their u, (m, c)."""
    requests = tuple(SVM(beta, signs, C, accuracy, start) for signs, start in zip(y.T, starts, strict=True))
    machines = (yield requests) if len(requests) > 1 else [(yield requests[0])]
    return machines, np.stack([machine.u for machine in machines], axis=1).astype(np.float64)


def _plane(y: Float, u: Float, certificate: MarginCertificate) -> CuttingPlane:
    """−D(u; β), which is at least −J(β), as a function of β."""
    return CuttingPlane(-float(np.sum(y * u)), 0.5 * certificate.forms)


def _by_planes(
    y: Float,
    C: Bounds,
    weights: WeightSet,
    planes: list[CuttingPlane],
    points: list[Float],
    best: Outcome,
    steps: list[Step],
    tol: float,
    max_iter: int,
    facts: KernelFacts,
) -> Generator[Any, Any, Outcome]:
    """Continue by cutting planes: β that minimizes the maximum of D(u; β) over the u so far, and the mean of these u.

    With the multipliers of the planes as its shares, D of the mean is at least the mean of D for every β: the dual box
    is convex, and the forms are convex in u.
    """
    while len(steps) < max_iter:
        beta, shares = yield Task("restricted-master", exact_master, (planes, weights))
        mean = np.tensordot(shares, points, axes=1)
        _, u = yield from _machines(beta, y, C, _FINEST_MACHINE, list(mean.T))
        products = yield EachProduct(np.hstack([u, mean]))
        for point, of_point in zip((u, mean), np.split(products, 2, axis=2), strict=True):
            certificate = certify_margin(point, of_point, beta, y, C, weights)
            check_forms(certificate.forms, facts, float(np.sum(point * point)))
            if point is u:
                planes.append(_plane(y, u, certificate))
                points.append(u)
            if certificate.gap < best.gap:
                status = Status.CERTIFIED if certificate.gap <= tol else Status.ITERATIONS
                best = _outcome(certificate, beta, point, steps, status)
        figures = {"objective": certificate.objective, "upper": certificate.upper, "gap": certificate.gap}
        steps.append(Step(beta, figures))
        if best.status == Status.CERTIFIED:
            return best
        heights = [plane.constant + float(plane.gradient @ beta) for plane in planes]
        if heights[-1] >= min(heights[:-1]) - _FINEST_MACHINE * abs(heights[-1]):
            # The planes have touched J at their own minimum: the arithmetic resolves no more.
            return replace(best, status=Status.STALLED)
    return best


def _outcome(c: MarginCertificate, beta: Float, u: Float, steps: Sequence[Step], status: Status) -> Outcome:
    return Outcome(status, beta, u, c.objective, c.lower, c.gap, c.bias, steps)


_UNKNOWN_GAP = 0.3
_KINK = 1e-8  # A fall of P relative to its part that weights change, with an open gap, that no smooth function has
_FINEST_MACHINE = 1e-13


def _direction(
    weights: WeightSet, beta: Float, v: Float, of_free: Sequence[tuple[Float | None, Float]]
) -> tuple[Float, bool]:
    """Newton's direction from β on −J, whose gradient is v/2, and whether there is a model of the curvature.

    `of_free` are the arguments of `curvature` for each machine. Machines that have none are left out of the sum;
    without any the direction is the step to the closed form.
    """
    q, parts = 0.5 * v, [part for arguments in of_free if (part := curvature(*arguments)) is not None]
    # β_j ∝ (β_j²v_j)^(1/(p+1)) are the best weights for the present w_j, ‖w_j‖² = β_j²v_j (Kloft et al. 2011, Eq. 25).
    # They need no conic program: the way on if Clarabel fails or the SVM has no curvature. The scale of the squares
    # cancels on the sphere; dividing by the largest keeps the power in [0, 1].
    squares = beta**2 * np.maximum(v, 0.0)
    aim = onto_sphere((squares / (squares.max() or 1.0)) ** (1.0 / (weights.p + 1.0)), weights.p)
    if parts:
        with suppress(ConicError):
            aim = newton_master(q, np.sum(parts, axis=0), beta, weights)
    return ascent_direction(aim, q, beta, weights), bool(parts)


def easy_mkl(
    y: Float, lam: float, n_kernels: int, *, tol: float = 1e-6, facts: KernelFacts = UNKNOWN
) -> Generator[Any, Any, Outcome]:
    """Solve one binary problem; yields two SVMs and two products with all kernels, returns an `Outcome`.

    y are labels 1 and −1, (m,). λ is between 0 (the hulls of the samples, a hard margin) and 1 (their means), both
    excluded. `tol` is the relative gap of each of the two distances to prove.
    """
    delta = lam / (1.0 - lam)
    # α is below this bound: at the optimum Σα = uᵀ(K + δI)u ≥ δ‖α‖² ≥ δ(Σα)²/m, hence ‖α‖ ≤ √m/δ.
    bound = 2.0 * np.sqrt(len(y)) / delta

    def nearest(weights: Float) -> Generator[Any, Any, tuple[Float, Float, float]]:
        """v, the products K_jv, (n, m), and the lower bound of q."""
        # A soft margin whose bound is above every α is a hard margin.
        machine = yield SVM(weights, y, bound, tol, ridge=delta)
        v = machine.u / np.sum(machine.u[y > 0])
        products = (yield EachProduct(v[:, None]))[:, :, 0]
        return v, np.asarray(products, dtype=np.float64), 2.0 / machine.primal

    def distance(v: Float, products: Float, weights: Float) -> float:
        return float(weights @ (products @ v)) + delta * float(v @ v)

    uniform = np.ones(n_kernels)
    v, products, lower = yield from nearest(uniform)
    forms = products @ v
    check_forms(forms, facts, float(v @ v))
    first = relative_gap(distance(v, products, uniform), lower, lower)
    size = float(np.linalg.norm(forms))
    weights = np.maximum(forms, 0.0) / size if size > 0 else uniform / np.sqrt(n_kernels)
    v, products, lower = yield from nearest(weights)
    q = distance(v, products, weights)
    gap = max(first, relative_gap(q, lower, lower))
    # Halfway between γ⁺ᵀKv and γ⁻ᵀKv, the scores of the nearest points of the two hulls.
    bias = -0.5 * float(np.abs(v) @ np.tensordot(weights, products, 1))
    objective = (1.0 - lam) * q
    status = Status.CERTIFIED if gap <= tol else Status.STALLED
    steps = [Step(weights, {"objective": objective, "gap": gap})]
    return Outcome(status, weights, v[:, None], objective, (1.0 - lam) * lower, gap, np.array([bias]), steps)
