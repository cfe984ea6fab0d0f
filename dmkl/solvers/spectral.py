"""Kernel weights by regularized spectral learning: eigenvalues of the random walk on the combined similarities.

For S = Σ_j β_j K_j with entries ≥ 0, D = diag(S1), the eigenvalues λ_1 ≥ λ_2 ≥ … of D⁻¹S, and c classes with indicators
1_k,

    J(β) = gap − a (λ_c − λ_{c+1})²,   gap = MNCut − (c − Σ_{k≤c} λ_k) ≥ 0,   MNCut = c − Σ_k 1_kᵀS1_k / 1_kᵀD1_k.

For Su = λDu, uᵀDu = 1: ∂λ/∂β_j = uᵀ(K_j − λD_j)u. J depends on the direction of β alone, so that Σ_j β_j ∂J/∂β_j = 0: a
point of the simplex is stationary if no derivative is negative. J is not convex, with kinks at multiple eigenvalues.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.linalg

from dmkl import progress
from dmkl.arrays import Float, Index
from dmkl.errors import refuse
from dmkl.numerics.grouping import one_hot
from dmkl.numerics.semidefinite import UNKNOWN, KernelFacts
from dmkl.solvers.cuts import descend
from dmkl.solvers.interface import CombinedEntries, Outcome, Projection, Solver, Status, Step
from dmkl.solvers.masters import LineSearch


class Spectrum(NamedTuple):
    """The terms of J at some weights."""

    figures: dict[str, float]  # objective, mncut, cut_gap, eigengap
    values: Float  # λ_{c+1}, λ_c, …, λ_1
    vectors: Float  # u, (m, c + 1)


class Criterion(NamedTuple):
    """J for given classes."""

    degrees: Float  # K_j1, (n, m)
    within: Float  # 1_kᵀK_j1_k, (n, c)
    volumes: Float  # 1_kᵀD_j1_k, (n, c)
    a: float

    def at(self, weights: Float, combined: Float) -> Spectrum:
        """J for weights (n,) and S = Σ_j β_j K_j (m, m)."""
        root, c = np.sqrt(weights @ self.degrees), self.within.shape[1]
        last = len(root) - 1
        values, vectors = scipy.linalg.eigh(combined / np.outer(root, root), subset_by_index=(last - c, last))
        mncut = c - float(np.sum((weights @ self.within) / (weights @ self.volumes)))
        gap, eigengap = mncut - c + float(values[1:].sum()), float(values[1] - values[0])
        figures = {"objective": gap - self.a * eigengap**2, "mncut": mncut, "cut_gap": gap, "eigengap": eigengap}
        return Spectrum(figures, values, vectors / root[:, None])

    def gradient(self, weights: Float, spectrum: Spectrum, forms: Float) -> Float:
        """∂J/∂β (n,), from the forms uᵀK_ju, (n, c + 1)."""
        of_values = forms - spectrum.values * (self.degrees @ spectrum.vectors**2)
        volumes = weights @ self.volumes
        of_cut = self.within / volumes - self.volumes * (weights @ self.within) / volumes**2
        of_square = 2.0 * spectrum.figures["eigengap"] * (of_values[:, 1] - of_values[:, 0])
        return np.asarray(of_values[:, 1:].sum(axis=1) - of_cut.sum(axis=1) - self.a * of_square)


def spectral_weights(
    labels: Index, n_kernels: int, a: float, facts: KernelFacts = UNKNOWN, *, tol: float, max_iter: int
) -> Solver[Outcome]:
    """Minimize J over the simplex from equal weights, for classes `labels` (m,); `extra` has its terms.

    Each step goes towards the minimum of a quadratic model over the simplex, with damped BFGS updates, as SciPy's SLSQP
    does (which cannot wait for a pass). It ends if no derivative is below −tol·max(1, |J|), or, mostly at a kink, if
    five steps lower J by at most that. InputError for similarities below zero, samples without any, and no more samples
    than classes.
    """
    everyone, indicators = np.arange(len(labels)), one_hot(labels, int(labels.max()) + 1)
    if len(labels) <= (c := indicators.shape[1]):
        refuse(f"the eigengap of {c} classes needs more samples than classes, got {len(labels)}")
    degrees, within = np.zeros((n_kernels, len(labels))), np.zeros((n_kernels, c))
    for j, single in enumerate(np.eye(n_kernels)):
        kernel = yield CombinedEntries(single, everyone)
        degrees[j] = kernel.sum(axis=1)
        if kernel.min() < 0 or degrees[j].min() == 0:
            content = f"an entry {kernel.min():.3g}" if kernel.min() < 0 else "a sample without any"
            refuse(
                "spectral learning takes similarities, zero or larger, and some larger than zero for each sample; "
                f"kernel {facts.name(j)} has {content}; take steps without 'center', and kernels that are similarities"
            )
        within[j] = np.einsum("mk,mk->k", indicators, kernel @ indicators)
    criterion = Criterion(degrees, within, degrees @ indicators, a)
    weights = np.full(n_kernels, 1.0 / n_kernels)
    spectrum = criterion.at(weights, (yield CombinedEntries(weights, everyone)))
    curvature, step, slope, steps = np.eye(n_kernels), np.zeros(n_kernels), np.zeros(n_kernels), list[Step]()
    while True:
        steps.append(Step(None, spectrum.figures))
        value, before = spectrum.figures["objective"], slope
        progress.current().note(f"step {len(steps)} of the weights: objective {value:.6g}")
        forms = yield Projection(spectrum.vectors)
        slope = criterion.gradient(weights, spectrum, np.einsum("nkk->nk", forms))
        curvature = _updated(curvature, step, slope - before) if len(steps) > 1 else curvature * np.abs(slope).max()
        small = tol * max(1.0, abs(value))
        status = Status.CONVERGED if slope.min() >= -small else Status.FALLING
        if status is Status.FALLING and steps[max(0, len(steps) - 6)].figures["objective"] - value <= small:
            status = Status.SMALL_DECREASE if len(steps) > 5 else status
        if status is not Status.FALLING or len(steps) > max_iter:
            break
        # The model is slopeᵀ(x − β) + ½ (x − β)ᵀB(x − β). As Σx = 1, its linear term is a quadratic one too.
        linear = slope - curvature @ weights
        towards = descend(0.5 * (curvature + np.add.outer(linear, linear)), weights)[0]
        search = LineSearch(weights, towards - weights, -slope, -value, share=1e-4)
        while search.point is not None:
            spectrum = criterion.at(search.point, (yield CombinedEntries(search.point, everyone)))
            if spectrum.figures["objective"] < value and search.accepts(-spectrum.figures["objective"]):
                break
            search.shorten()
        else:
            status = Status.SMALL_DECREASE
            break
        step, weights = search.point - weights, search.point
    extra = {name: np.array(figure) for name, figure in steps[-1].figures.items()}
    return Outcome(status, weights, None, value, steps=steps, extra=extra)


def _updated(curvature: Float, step: Float, change: Float) -> Float:
    """The BFGS update, damped to remain positive definite (Nocedal and Wright, Procedure 18.2)."""
    pulled = curvature @ step
    expected, measured = float(step @ pulled), float(step @ change)
    share = 1.0 if measured >= 0.2 * expected else 0.8 * expected / (expected - measured)
    change = share * change + (1.0 - share) * pulled
    return curvature - np.outer(pulled, pulled) / expected + np.outer(change, change) / (step @ change)
