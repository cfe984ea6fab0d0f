"""JMLR's stopping criterion |1 − S/θ| in the history, against dense solves and a linear program."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.optima import case, slopes, solve, value
from helpers.references import in_memory
from scipy.optimize import linprog

import dmkl

LAM = 1e-2


def planes(kernels, h, weights):
    """The constant and the gradient of S(α, ·) for the α that solves each row of weights."""
    rows = []
    for beta in weights:
        alpha = solve(kernels, beta, h, LAM)[0]
        gradient = slopes(kernels, alpha, LAM)
        rows.append((value(kernels, alpha, beta, h, LAM) - beta @ gradient, gradient))
    return np.array([constant for constant, _ in rows]), np.array([gradient for _, gradient in rows])


@pytest.mark.parametrize("kind", ["binary", "multiclass"])
def test_theta_is_that_of_the_restricted_master(kind):
    """At p = 1 Eq. 16 is a linear program in θ and β, solved here by SciPy."""
    kernels, labels, (h,) = case(kind)
    n = len(kernels)
    model = dmkl.MKFDA(1.0, LAM, solver=dmkl.Direct("exact"), steps=(), tol=1e-5).fit(in_memory(kernels, 20), labels)
    history = model.history_
    assert len(history["iteration"]) > 3
    assert history["violation"].values[0] == 1.0  # θ = −∞
    constants, gradients = planes(kernels, h, history["weight"].values)
    for t in range(1, len(constants)):
        system = np.column_stack([-gradients[:t], np.ones(t)])  # θ − gradientᵀβ ≤ constant
        norm = np.append(np.ones(n), 0.0)
        theta = -linprog(
            np.append(np.zeros(n), -1.0),
            A_ub=np.vstack([system, norm]),
            b_ub=np.append(constants[:t], 1.0),
            bounds=[(0, None)] * n + [(None, None)],
        ).fun
        expected = abs(1 - history["objective"].values[t] / theta)
        assert history["violation"].values[t] == pytest.approx(expected, rel=1e-3, abs=1e-6)  # of conic programs


@pytest.mark.parametrize("solver", [dmkl.Direct(), dmkl.Direct("taylor"), dmkl.CG("exact")], ids=str)
def test_under_every_master_it_is_the_violation_of_earlier_planes(solver):
    kernels, labels, (h,) = case("multiclass")
    model = dmkl.MKFDA(1.5, LAM, solver=solver, steps=(), tol=1e-6).fit(in_memory(kernels, 20), labels)
    history = model.history_
    weights = history["weight"].values
    constants, gradients = planes(kernels, h, weights)
    for t in range(1, len(weights)):
        theta = np.min(constants[:t] + gradients[:t] @ weights[t])
        expected = abs(1 - history["objective"].values[t] / theta)
        assert history["violation"].values[t] == pytest.approx(expected, rel=1e-2, abs=1e-5)
