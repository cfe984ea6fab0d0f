"""Machines on factors, against those on their kernel matrix, cvxpy and scikit-learn."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.margin import checked_machine, svm_optimum
from sklearn.base import clone

import dmkl
from dmkl.solvers.margin.svm import solve_dense, solve_linear

M, WIDTHS = 120, np.array([4, 2, 3])


def made(m=M, share=0.4):
    """Concatenated factors, the kernel of each column, and labels that are correlated with the first columns."""
    rng = np.random.default_rng(0)
    y = np.where(rng.random(m) < share, 1.0, -1.0)
    Z = rng.standard_normal((m, WIDTHS.sum())) + 1.0
    Z[:, :3] += 0.5 * y[:, None]
    return Z, np.repeat(np.arange(3), WIDTHS), y


EACH = np.random.default_rng(1).uniform(0.2, 3.0, M)


@pytest.mark.parametrize(("C", "ridge"), [(1e-3, 0.0), (1.0, 0.0), (EACH, 0.0), (1e3, 0.0), (200.0, 0.1)])
@pytest.mark.parametrize("tol", [1e-2, 1e-9])
def test_the_optimum_is_cvxpys(C, ridge, tol):
    Z, _, y = made()
    kernel, machine = Z @ Z.T + ridge * np.eye(M), solve_linear(Z, y, C, tol, ridge)
    checked_machine(replace(machine, free_kernel=None), kernel, y, C)  # which is rounded otherwise
    best = svm_optimum(kernel, y, C)
    assert machine.gap <= tol
    assert machine.dual <= best * (1 + 1e-7)
    assert machine.primal >= best * (1 - 1e-7)


def test_equal_samples_have_no_bounds_to_find():
    Z, _, y = made()
    Z = np.round(Z[:, :2])
    machine = solve_linear(Z, y, 1.0, 1e-9)
    assert machine.gap <= 1e-9
    assert machine.dual == pytest.approx(solve_dense(Z @ Z.T, y, 1.0, 1e-9).dual, rel=1e-8)


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """The same kernels as factors and as tiles."""
    Z, kernel_of, _ = made()
    labels = np.array(["fig", "nut", "oat"])[np.argsort(np.argsort(Z[:, 0])) * 3 // M]
    features = {f"k{k}": Z[:, kernel_of == k] for k in range(3)}
    folder = tmp_path_factory.mktemp("linear")
    return [
        dmkl.build(folder / storage, features, {"function": "linear"}, labels=labels, storage=storage, tile=50)
        for storage in ("factors", "tiles")
    ]


@pytest.mark.parametrize(
    "model",
    [
        dmkl.MKSVM(1.0, 4.0, multiclass="ovo", steps=("center", "cosine"), tol=1e-6),
        dmkl.MKSVM(1.5, 2.0, sharing="classes", class_weight="balanced", tol=1e-6),
        dmkl.GMKL(4.0, 2.0, tol=1e-5),
        dmkl.EasyMKL(0.5),
        dmkl.MKLogistic(1.5, 0.5, sharing="classes", class_weight="balanced", tol=1e-8),
    ],
)
def test_models_are_those_of_tiles(sets, model):
    train, test = np.arange(90), np.arange(90, M)
    on_factors, on_tiles = (clone(model).fit(K[train, train]) for K in sets)
    gap = np.max(on_factors.gap_) + np.max(on_tiles.gap_)
    assert np.max(on_factors.gap_) <= model.tol
    np.testing.assert_allclose(on_factors.objective_, on_tiles.objective_, rtol=2 * gap + 1e-9)
    np.testing.assert_allclose(on_factors.weights_, on_tiles.weights_, atol=3 * gap**0.5)
    scores = [m.decision_function(K[test, train]).values for m, K in zip((on_factors, on_tiles), sets, strict=True)]
    np.testing.assert_allclose(*scores, atol=10 * gap**0.5)
    assert on_factors.n_passes_ <= 4  # none of them for a step
