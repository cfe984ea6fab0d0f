"""EasyMKL: weights from the margin between the convex hulls of the classes on the sum of all kernels.

Aiolli and Donini, EasyMKL: a scalable multiple kernel learning algorithm, Neurocomputing 169 (2015). With γ ≥ 0,
Σ γ_i = 1 over each class, v = γ∘y and 0 < λ < 1,

    γ(K) minimizes (1 − λ) vᵀKv + λ vᵀv,          d_j = v(Σ_i K_i)ᵀ K_j v(Σ_i K_i),          η = d/‖d‖_2,

and the classifier is v(Σ_j η_jK_j) with the threshold halfway between the two hulls. The minimum is that of the squared
distance q = vᵀ(K + δI)v between the hulls, δ = λ/(1 − λ): the hard-margin support vector machine on K + δI has
u = (2/q) v, and its dual objective is 2/q. So a feasible primal value P proves q* ≥ 2/P.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np

from dmkl.arrays import Float
from dmkl.numerics.fisher import relative_gap
from dmkl.solvers.margin.svm import as_signs
from dmkl.solvers.outcome import Outcome, Status, Step
from dmkl.solvers.requests import SVM, EachProduct
from dmkl.solvers.semidefinite import UNKNOWN, KernelFacts, check_forms


def easy_mkl(
    y: Float, lam: float, n_kernels: int, *, tol: float = 1e-6, facts: KernelFacts = UNKNOWN
) -> Generator[Any, Any, Outcome]:
    """Solve one binary problem; yields two SVMs and two products with all kernels, returns an `Outcome`.

    y are labels 1 and −1, (m,). λ is between 0 (the hulls of the samples, a hard margin) and 1 (their means), both
    excluded. `tol` is the relative gap of each of the two distances to prove.
    """
    y = as_signs(y, 1.0)
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
