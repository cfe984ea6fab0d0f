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
from dataclasses import replace
from typing import Any

import numpy as np

from dmkl.arrays import Array, Float
from dmkl.numerics.fisher import Certificate, relative_gap
from dmkl.numerics.semidefinite import UNKNOWN, KernelFacts, check_forms
from dmkl.solvers.fisher.mkfda import Evaluation, Oracle, maximize
from dmkl.solvers.interface import SVM, EachProduct, Outcome, Status, Step, Task
from dmkl.solvers.margin.svm import Bounds, SVMSolution, best_bias, curvature, hinge
from dmkl.solvers.masters import CuttingPlane, exact_master
from dmkl.solvers.weight_sets import WeightSet


class MarginCertificate(Certificate):
    """The largest possible distance of a pair (u, β) from the optimum J*, proven from the pair alone, as that of −J*.

    J(β) is the minimum of the primal, so P(β, u, b) = ½ Σ_j β_jv_j + C Σ_i max(0, 1 − y_i(Σ_j β_jK_ju + b)_i) ≥ J(β)
    ≥ J* for any b. For any u of the dual's box, J* ≥ min over β of the dual D(u; β) = Σα − ½ Σ_j β_jv_j, which is
    Σα − ½‖v‖_p*. So S = −D, F = ½‖v‖_p* − Σα, and P − D takes the place of ‖R‖². Gaps are relative to
    min(P, ½ Σ_j β_jv_j): for small C the objective is almost the number of samples times C for any weights.
    """

    @property
    def size(self) -> float:
        """P(β, u, b)."""
        return self.residual_sq - self.objective


def certify_margin(
    u: Float, products: Array, beta: Float, y: Float, C: Bounds, weights: WeightSet
) -> tuple[MarginCertificate, Float]:
    """Certify a pair of u (m, c), 0 ≤ y_iu_i ≤ C and Σu = 0 in each column, and β (n,) of a set of weights.

    The certificate is computed in float64 from u and its products K_ju (n, m, c) alone; labels (m, c) are 1 and −1. The
    bias, (c,), is the minimizer of P.
    """
    forms = np.einsum("nmc,mc->n", products, u, dtype=np.float64)
    # Scores and forms from the same products: the upper and the lower bound then refer to the same u.
    scores = np.tensordot(beta, products, axes=1)
    bias = np.array([best_bias(f, of_problem, C) for f, of_problem in zip(scores.T, y.T, strict=True)])
    losses = sum(hinge(f, float(b), signs, C) for f, b, signs in zip(scores.T, bias, y.T, strict=True))
    total, energy = float(np.sum(y * u)), 0.5 * float(beta @ forms)
    # P − D, at least 0 up to rounding; infinite for a u outside the box.
    primal, dual = energy + losses, total - energy
    apart = relative_gap(primal, dual, primal) * primal
    rest = np.inf if weights.is_fixed(len(beta)) else 0.0  # given weights change nothing of P
    return MarginCertificate.of(beta, 0.5 * forms, -total, weights, apart, rest), bias


_UNKNOWN_GAP = 0.3
_KINK = 1e-8  # While the gap is open, a smooth P falls by more than this share of the part that weights change
_FINEST_MACHINE = 1e-13


class MarginOracle(Oracle):
    """u and the bias, −D and its gradient ½v of machines with labels (m, c), one for each column (see `Oracle`)."""

    def __init__(self, y: Float, C: Bounds, weights: WeightSet, facts: KernelFacts) -> None:
        self.y, self.C, self.weights, self.facts = y, C, weights, facts
        self.planes: list[CuttingPlane] = []
        self.points: list[Float] = []
        """The u of each plane −D(u; β), which is at least −J(β)."""
        self._gap, self._share = _UNKNOWN_GAP, 1.0
        self._starts: Sequence[Float | None] = [None] * y.shape[1]

    def evaluate(self, beta: Float, tol: float, *, careful: bool) -> Generator[Any, Any, Evaluation]:
        """Train the machines so accurately that their gaps hide no gap of the weights."""
        # For an SVM with a gap of g, v has a relative error of some √g: the tolerance is the square of the accuracy
        # that weights of the last gap need. At fixed weights it is all of tol, except for a margin for rounding. Gaps
        # of machines are relative to P, those of the weights to a share of it.
        fixed = self.weights.is_fixed(len(beta))
        accuracy = 0.9 * tol if fixed else (0.03 * max(tol, self._gap)) ** 2
        for _ in range(2):
            machines, u = yield from self.machines(beta, self._share * accuracy, self._starts)
            # The next machines start from these u, which are feasible for all weights: the box does not depend on them.
            self._starts = list(u.T)
            products = yield EachProduct(u)
            evaluation = self.certified(u, products, beta)
            certificate = evaluation.certificate
            self._gap, self._share = min(certificate.weights_gap, _UNKNOWN_GAP), certificate.scale / certificate.size
            # Where the machines alone leave the gap open, they are trained once more, as accurately as it needs.
            accuracy = 0.1 * tol
            if fixed or certificate.gap <= tol or certificate.weights_gap > accuracy:
                break
        self.planes.append(CuttingPlane(-float(np.sum(self.y * u)), certificate.gradient))
        self.points.append(u)
        of_free = [machine.of_free(products[:, :, k]) for k, machine in enumerate(machines)]
        return replace(evaluation, state=of_free)

    def machines(
        self, beta: Float, accuracy: float, starts: Sequence[Float | None]
    ) -> Generator[Any, Any, tuple[Sequence[SVMSolution], Float]]:
        """The machine of each problem at β to a relative gap, and their u, (m, c)."""
        given = beta, max(accuracy, _FINEST_MACHINE)
        requests = tuple(SVM(beta, y, self.C, given[1], u) for y, u in zip(self.y.T, starts, strict=True))
        machines = (yield requests) if len(requests) > 1 else [(yield requests[0])]
        return machines, np.stack([machine.u for machine in machines], axis=1).astype(np.float64)

    def certified(self, u: Float, products: Array, beta: Float) -> Evaluation:
        """The certificate of u and β."""
        certificate, bias = certify_margin(u, products, beta, self.y, self.C, self.weights)
        size = float(np.sum(u * u))
        check_forms(2.0 * certificate.gradient, self.facts, size)
        return Evaluation((u, bias), certificate)

    def curvature(self, evaluation: Evaluation) -> Generator[Any, Any, Float | None]:
        """The sum over the machines that have a curvature."""
        curved: Float | None = yield Task("curvature", _curvature, (evaluation.state,))
        return curved


def _curvature(of_free: Sequence[tuple[Float | None, Float]]) -> Float | None:
    parts = [part for arguments in of_free if (part := curvature(*arguments)) is not None]
    return np.sum(parts, axis=0) if parts else None


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
) -> Generator[Any, Any, Outcome]:
    """Solve one problem of ℓp MK-SVM: a generator that requests in each step an SVM on K(β), and K_ju of all kernels.

    y are labels 1 and −1, (m,), or (m, c) of c problems that share the weights, and C is the bound on α, or one for
    each sample, (m,). `weights` are a `Ball`, or `GivenWeights` that are not learnt.

    The method is Newton's over the ball, as for MK-FDA (`dmkl.solvers.fisher.mkfda.maximize`), on −J. If an SVM has no
    curvature, the step is that of a closed form (`dmkl.solvers.masters.newton_direction`), along which J always falls,
    slowly near p = 1. Where u is not unique J may have a kink, at which Newton's steps end; cutting planes go on from
    there (`_by_planes`).

    The objective of the outcome is the dual D(u; β), and `bound` is below the optimum. The primal of each step, which
    is above the optimum, is in the history as "upper". Raises IndefiniteKernelError if a form uᵀK_ju is negative.
    """
    oracle = MarginOracle(y.reshape(len(y), -1), C, weights, facts)
    how: dict[str, Any] = {"max_steps": max_iter, "kink": _KINK, "name": title}
    solution = yield from maximize(oracle, weights, weights.start(n_kernels), tol, **how)
    best = Evaluation(solution.alpha, solution.certificate)
    steps = [
        _step(step.weights, *(step.figures[name] for name in ("objective", "residual_sq", "gap")))
        for step in solution.steps
    ]
    outcome = replace(_outcome(best, solution.beta, steps, solution.status), weights_error=solution.weights_error)
    if solution.status == Status.CERTIFIED or weights.is_fixed(n_kernels) or len(steps) == max_iter:
        return outcome
    return (yield from _by_planes(oracle, outcome, steps, tol, max_iter))


def _step(beta: Float | None, objective: float, apart: float, gap: float) -> Step:
    return Step(beta, {"objective": -objective, "upper": apart - objective, "gap": gap})


def _outcome(evaluation: Evaluation, beta: Float, steps: Sequence[Step], status: Status) -> Outcome:
    (u, bias), c = evaluation.alpha, evaluation.certificate
    return Outcome(status, beta, u, -c.objective, -c.upper, c.gap, bias, steps)


def _by_planes(
    oracle: MarginOracle, best: Outcome, steps: list[Step], tol: float, max_iter: int
) -> Generator[Any, Any, Outcome]:
    """Continue by cutting planes: β that minimizes the maximum of D(u; β) over the u so far, and the mean of these u.

    With the multipliers of the planes as its shares, D of the mean is at least the mean of D for every β: the dual box
    is convex, and the forms are convex in u.
    """
    planes = oracle.planes
    while len(steps) < max_iter:
        beta, shares = yield Task("restricted-master", exact_master, (planes, oracle.weights))
        mean = np.tensordot(shares, oracle.points, axes=1)
        _, u = yield from oracle.machines(beta, _FINEST_MACHINE, list(mean.T))
        products = yield EachProduct(np.hstack([u, mean]))
        for point, of_point in zip((u, mean), np.split(products, 2, axis=2), strict=True):
            evaluation = oracle.certified(point, of_point, beta)
            c = evaluation.certificate
            if point is u:
                planes.append(CuttingPlane(-float(np.sum(oracle.y * u)), c.gradient))
                oracle.points.append(u)
            if c.gap < best.gap:
                best = _outcome(evaluation, beta, steps, Status.CERTIFIED if c.gap <= tol else Status.ITERATIONS)
        steps.append(_step(beta, c.objective, c.residual_sq, c.gap))
        if best.status == Status.CERTIFIED:
            return best
        heights = [plane.constant + float(plane.gradient @ beta) for plane in planes]
        if heights[-1] >= min(heights[:-1]) - _FINEST_MACHINE * abs(heights[-1]):
            # The planes have touched J at their own minimum: the arithmetic resolves no more.
            return replace(best, status=Status.STALLED)
    return best


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
