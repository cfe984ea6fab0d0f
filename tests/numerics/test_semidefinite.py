"""Detection of indefinite kernels, as opposed to rounding of semidefinite ones."""

from __future__ import annotations

import numpy as np
import pytest

import dmkl
from dmkl.errors import IndefiniteKernelError, IndefiniteKernelWarning
from dmkl.numerics.semidefinite import KernelFacts, check_forms


@pytest.mark.parametrize(("q", "name"), [([1e-9, -2e-6, 1e-9], "b"), ([-2e-7, -9e-7, 0.0], "a"), ([0, 0, -1e-3], "c")])
def test_what_rounding_does_not_explain_is_refused(q, name):
    facts = KernelFacts(("a", "b", "c"), np.array([1.0, 10.0, 100.0]), 1e-7)
    with pytest.raises(IndefiniteKernelError, match=rf"kernel '{name}' .*negative.*rounding explains \S+\. Run"):
        check_forms(np.array(q), facts, 1.0)


def of_few_columns(m=120, n=6):
    rng = np.random.default_rng(0)
    y = np.arange(m) % 3
    X = rng.standard_normal((m, 3 * n)) + 0.5 * rng.standard_normal((3, 3 * n))[y]
    return [(X[:, k : k + 3] @ X[:, k : k + 3].T).astype(np.float32) for k in range(0, 3 * n, 3)], y


@pytest.mark.parametrize("solver", ["subspace", "direct"])
def test_kernels_of_few_columns_at_small_ridges(solver):
    kernels, y = of_few_columns()
    grid = {"p": [1.0, 2.0], "lam": [1e-7, 1e-2]}
    model = dmkl.MKFDA(solver=solver, max_iter=6)
    results = dmkl.search(model, kernels, y, grid, cv=2, refit=False, baselines="none")
    assert (results.scores["gap"].sel(lam=1e-2) <= 1e-3).all()


def test_a_search_tells_of_indefinite_kernels():
    kernels, y = of_few_columns(n=4)
    values, vectors = np.linalg.eigh(kernels[2].astype(np.float64))
    spoilt = kernels[2] - 0.02 * values[-1] * vectors[:, :60] @ vectors[:, :60].T
    K = [*kernels[:2], spoilt.astype(np.float32), kernels[3]]
    with pytest.warns(IndefiniteKernelWarning) as caught:
        dmkl.search(dmkl.MKFDA(), K, y, {"lam": [1.0, 10.0]}, cv=2, refit=False, baselines="none")
    assert "1 of 4 kernels are not positive semidefinite, by an eigenvalue of at most: 'kernel_2'" in str(
        caught[-1].message
    )
