"""ℓp MK-FDA against exact optima, its certificate, its passes, its predictions, and what bad input gets."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import dask
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optima import bounds, optimum, solve, value
from references import Counting, dense_view, in_memory, over, psd
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.exceptions import NotFittedError
from sklearn.metrics import accuracy_score
from sklearn.metrics.pairwise import laplacian_kernel, linear_kernel, polynomial_kernel, rbf_kernel
from sklearn.preprocessing import scale

import dmkl
from dmkl.blocks.fisher import encode_targets
from dmkl.errors import ConvergenceWarning, IndefiniteKernelError, InputError, MemoryBudgetError

EXPONENTS = [1.0, 1 + 2**-6, 1.5, 2.0, 8.0, np.inf]
LAMBDAS = [1e-4, 1e-2, 1.0]
SOLVERS = ["direct", "cg"]
STEPS = ("center", "trace")

pytestmark = pytest.mark.usefixtures("synchronous")


class Case(NamedTuple):
    """Kernels over all samples, labels, and which samples are for training."""

    kernels: np.ndarray
    y: np.ndarray
    train: np.ndarray
    test: np.ndarray

    @property
    def set(self):
        return in_memory(self.kernels, 25)

    @property
    def training(self):
        return self.set[self.train, self.train], self.y[self.train]

    @property
    def testing(self):
        return self.set[self.test, self.train]

    def dense(self, rows="train", steps=STEPS):
        return dense_view(self.kernels, getattr(self, rows), self.train, steps)

    @property
    def h(self):
        return encode_targets(self.y[self.train], len(self.train)).problems[0]


@cache
def digits():
    """Ten classes: 60 samples to train on and 40 to test, kernels of pixels, of half the pixels, and of noise."""
    x, y = load_digits(return_X_y=True)
    x = x / 16
    chosen = np.concatenate([np.flatnonzero(y == label)[:10] for label in range(10)])
    x, y = x[chosen], y[chosen]
    noise = np.random.default_rng(0).standard_normal((len(y), 5))
    kernels = np.stack(
        [
            rbf_kernel(x, gamma=0.02),
            rbf_kernel(x, gamma=0.5),
            linear_kernel(x[:, :32]),
            polynomial_kernel(x[:, 32:], degree=3),
            rbf_kernel(noise, gamma=0.2),
        ]
    )
    part = np.arange(len(y)) % 10
    return Case(kernels, y, np.flatnonzero(part < 6), np.flatnonzero(part >= 6))


@cache
def cancer():
    """Two classes, unbalanced: 80 samples to train on and 60 to test."""
    x, y = load_breast_cancer(return_X_y=True)
    x, y = scale(x)[:140], y[:140]
    noise = np.random.default_rng(1).standard_normal((140, 5))
    kernels = np.stack(
        [
            rbf_kernel(x[:, :10], gamma=0.05),
            laplacian_kernel(x[:, 10:20], gamma=0.1),
            linear_kernel(x[:, 20:]),
            polynomial_kernel(x, degree=2, gamma=0.1),
            rbf_kernel(noise, gamma=0.2),
            linear_kernel(noise),
        ]
    )
    order = np.random.default_rng(2).permutation(140)
    return Case(kernels, y, order[:80], order[80:])


CASES = {"digits": digits, "cancer": cancer}


@cache
def fitted(case, solver="direct", p=2.0, lam=1e-2, **options):
    return dmkl.MKFDA(p, lam, solver=solver, **options).fit(*CASES[case]().training)


def proven(model, case, **steps):
    """The gap of what a model returned, recomputed densely from its attributes."""
    alpha, beta = model.dual_coef_.values, model.weights_.values
    kernels = case.dense(**steps)
    lower, upper = bounds(kernels, alpha, beta, case.h, model.lam, float(model.p))
    return (upper - lower) / abs(value(kernels, alpha, beta, case.h, model.lam))


# --- against exact solutions --------------------------------------------------------------------------------


@pytest.mark.parametrize("lam", LAMBDAS)
@pytest.mark.parametrize("p", EXPONENTS)
@pytest.mark.parametrize("name", CASES)
def test_optimum_and_its_proof(name, p, lam):
    """Both solvers reach the exact optimum to 1e-4, prove it truly, and agree."""
    case = CASES[name]()
    best = optimum(case.dense(), case.h, lam, p)
    direct, cg = (fitted(name, solver, p, lam) for solver in SOLVERS)
    for model in (direct, cg):
        assert abs(model.objective_ - best) <= 1e-4 * abs(best)
        assert 0 <= model.gap_ <= 1e-4
        assert model.gap_ == pytest.approx(proven(model, case), abs=1e-9)
        assert (model.weights_.values >= 0).all()
        assert np.linalg.norm(model.weights_, p) <= 1 + 1e-12
    np.testing.assert_allclose(direct.weights_, cg.weights_, atol=1e-3)
    np.testing.assert_array_equal(direct.predict(case.testing), cg.predict(case.testing))


@cache
def many():
    """600 digits and 10 kernels of random pixels, single precision."""
    rng = np.random.default_rng(3)
    x, y = load_digits(return_X_y=True)
    order = rng.permutation(len(y))[:700]
    x, y = x[order] / 16, y[order]
    kernels = np.stack([rbf_kernel(x[:, rng.permutation(64)[:24]], gamma=gamma) for gamma in np.geomspace(0.01, 1, 10)])
    return Case(kernels.astype(np.float32), y, np.arange(600), np.arange(600, 700))


@pytest.mark.parametrize("p", [1.0, 2.0])
def test_solvers_agree_on_larger_data(p):
    case = many()
    K, y = in_memory(case.kernels, 256)[: len(case.train), : len(case.train)], case.y[case.train]
    K = in_memory(case.kernels, 256)[case.train, case.train]
    direct, cg = (dmkl.MKFDA(p, 1e-2, solver=solver).fit(K, y) for solver in SOLVERS)
    assert direct.solver_ == "direct"
    assert cg.solver_ == "cg"
    for model in (direct, cg):
        assert model.gap_ <= 1e-4
        assert model.gap_ == pytest.approx(proven(model, case), abs=1e-7)
    assert abs(direct.objective_ - cg.objective_) <= 1e-4 * abs(direct.objective_)
    np.testing.assert_allclose(direct.weights_, cg.weights_, atol=5e-3)
    test = in_memory(case.kernels, 256)[case.test, case.train]
    np.testing.assert_array_equal(direct.predict(test), cg.predict(test))
    assert direct.score(test, case.y[case.test]) > 0.9
