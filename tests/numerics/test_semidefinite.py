"""Ends of spectra against dense eigenvalues, and indefinite kernels as opposed to rounding of semidefinite ones."""

import numpy as np
import pytest
from helpers.references import few_columns
from hypothesis import given
from hypothesis import strategies as st

import dmkl
from dmkl.errors import IndefiniteKernelError, IndefiniteKernelWarning
from dmkl.numerics.semidefinite import KernelFacts, check_forms, extreme_eigenvalues


@pytest.mark.parametrize(("q", "name"), [([1e-9, -2e-6, 1e-9], "b"), ([-2e-7, -9e-7, 0.0], "a"), ([0, 0, -1e-3], "c")])
def test_what_rounding_does_not_explain_is_refused(q, name):
    facts = KernelFacts(("a", "b", "c"), np.array([1.0, 10.0, 100.0]), 1e-7)
    with pytest.raises(IndefiniteKernelError, match=rf"kernel '{name}' .*negative.*rounding explains \S+\. Run"):
        check_forms(np.array(q), facts, 1.0)


@pytest.mark.parametrize("solver", ["subspace", "direct"])
def test_kernels_of_few_columns_at_small_ridges(solver):
    rng, y = np.random.default_rng(0), np.arange(120) % 3
    X = rng.standard_normal((120, 18)) + 0.5 * rng.standard_normal((3, 18))[y]
    kernels = [(Z @ Z.T).astype(np.float32) for Z in np.split(X, 6, axis=1)]
    grid = {"p": [1.0, 2.0], "lam": [1e-7, 1e-2]}
    model = dmkl.MKFDA(solver=solver, max_iter=6)
    results = dmkl.search(model, kernels, y, grid, cv=2, refit=False, baselines="none")
    assert (results.scores["gap"].sel(lam=1e-2) <= 1e-3).all()


def test_a_search_tells_of_indefinite_kernels():
    tables, y = few_columns()
    kernels = [X @ X.T for X in tables.values()]
    values, vectors = np.linalg.eigh(kernels[1])
    kernels[1] -= 0.02 * values[-1] * vectors[:, :30] @ vectors[:, :30].T
    with pytest.warns(IndefiniteKernelWarning) as caught:
        dmkl.search(dmkl.MKFDA(), kernels, y, {"lam": [1.0, 10.0]}, cv=2, refit=False, baselines="none")
    assert "1 of 3 kernels are not positive semidefinite, by an eigenvalue of at most: 'kernel_1'" in str(caught[-1])


@given(st.integers(2, 60), st.integers(1, 12), st.integers(0, 10**6))
def test_few_steps_stay_inside_the_spectrum_and_their_bounds_hold(size, n_steps, seed):
    rng = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(rng.standard_normal((size, size)))
    matrix = (basis * rng.choice([-1.0, 1.0], size) * 10.0 ** rng.uniform(-2, 0, size)) @ basis.T
    computed = extreme_eigenvalues(matrix.__matmul__, size, n_steps=n_steps, rng=rng)
    exact = np.linalg.eigvalsh(matrix)
    rounding = 1e-12 * np.abs(exact).max()
    assert exact[0] - rounding <= computed.lowest <= computed.highest <= exact[-1] + rounding
    assert np.abs(exact - computed.lowest).min() <= computed.lowest_bound + rounding
    assert np.abs(exact - computed.highest).min() <= computed.highest_bound + rounding
