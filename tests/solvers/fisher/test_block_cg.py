"""Blocked conjugate gradients against dense solutions, and the model of the inverse that they leave behind."""

from __future__ import annotations

import tracemalloc

import dask
import numpy as np
import pytest
from helpers.references import dense_view
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.metrics.pairwise import rbf_kernel

import dmkl
from dmkl.errors import IndefiniteKernelError, MemoryBudgetError
from dmkl.numerics.fisher import encode_targets
from dmkl.solvers.fisher.cg import CGStep, InverseModel, block_cg, side_by_side
from dmkl.solvers.fisher.problem import FisherProblem
from dmkl.solvers.weight_sets.balls import Ball


def operator(m, seed=0, spread=4.0):
    """A = ½(I + K/λ) with eigenvalues from ½ to some 10^spread, decaying as those of kernels do."""
    rng = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(rng.standard_normal((m, m)))
    return 0.5 * (np.eye(m) + (basis * 10 ** np.linspace(spread, -4, m)) @ basis.T)


def drive(generator, multiply):
    """Answer every request, and collect the blocks that were asked for."""
    blocks, answer = [], None
    while True:
        try:
            blocks.append(generator.send(answer))
        except StopIteration as stop:
            return *stop.value, blocks
        answer = multiply(blocks[-1])


def solved(a, b, target=None, max_iter=200, multiply=None, **options):
    target = 1e-20 * np.sum(b**2) if target is None else target
    return drive(block_cg(b, target, max_iter, **options), multiply or (lambda s: a @ s))


def plain_cg(a, b, target):
    """Textbook conjugate gradients on each column by itself, in step, until all residuals together are small."""
    x = np.zeros_like(b)
    r = b.copy()
    s, rho, products = r.copy(), np.sum(r * r, axis=0), 0
    while rho.sum() > target:
        t = a @ s
        products += 1
        step = rho / np.sum(s * t, axis=0)
        x, r = x + step * s, r - step * t
        rho, before = np.sum(r * r, axis=0), rho
        s = r + rho / before * s
    return x, products


# --- solutions ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spread", [0.0, 2.0, 5.0])
@pytest.mark.parametrize("columns", [1, 3, 20])
def test_solution(columns, spread):
    a, b = operator(80, spread=spread), np.random.default_rng(1).standard_normal((80, columns))
    x, products, blocks = solved(a, b, max_iter=400)
    assert products == len(blocks) < 400
    np.testing.assert_allclose(x, np.linalg.solve(a, b), rtol=0, atol=1e-9 * np.abs(x).max())


@pytest.mark.parametrize("columns", [40, 41, 100])
def test_as_many_columns_as_rows_and_more(columns):
    """The block spans everything: one product."""
    a, b = operator(40), np.random.default_rng(1).standard_normal((40, columns))
    x, products, blocks = solved(a, b)
    assert products == 1
    assert blocks[0].shape == (40, 40)
    np.testing.assert_allclose(x, np.linalg.solve(a, b), rtol=0, atol=1e-10 * np.abs(x).max())


@given(st.integers(1, 30), st.integers(1, 8), st.integers(0, 8), st.floats(0, 5), st.integers(0, 2**16))
def test_any_rank_of_the_right_hand_sides(m, columns, rank, spread, seed):
    """Dependent columns, zero columns, more columns than the rank."""
    rng = np.random.default_rng(seed)
    b = rng.standard_normal((m, rank)) @ rng.integers(-1, 2, (rank, columns))
    a = operator(m, seed, spread)
    x, products, _ = solved(a, b)
    assert products < 200
    np.testing.assert_allclose(x, np.linalg.solve(a, b), rtol=0, atol=1e-8 * max(np.abs(x).max(), 1e-300))


def test_equal_columns_have_equal_solutions_and_zero_columns_none():
    a, b = operator(50), np.random.default_rng(2).standard_normal((50, 5))
    b[:, 3], b[:, 4] = b[:, 0], 0
    x, _, _ = solved(a, b)
    np.testing.assert_allclose(x[:, 3], x[:, 0], atol=1e-12 * np.abs(x).max())
    np.testing.assert_array_equal(x[:, 4], 0)


def test_nothing_to_solve_costs_nothing():
    x, products, _ = solved(np.eye(4), np.zeros((4, 2)))
    assert products == 0
    np.testing.assert_array_equal(x, 0)


@pytest.mark.parametrize("columns", [1, 2, 5, 10])
@pytest.mark.parametrize("spread", [1.0, 3.0])
def test_no_more_products_than_plain_cg(columns, spread):
    a, b = operator(120, spread=spread), np.random.default_rng(3).standard_normal((120, columns))
    target = 1e-14 * np.sum(b**2)
    x, products, _ = solved(a, b, target)
    other, plain = plain_cg(a, b, target)
    # With one column both are the same iteration, and rounding decides whether a step more is needed.
    assert products <= plain + 1 if columns == 1 else products < plain
    for found in (x, other):
        assert np.sum((b - a @ found) ** 2) <= 1.01 * target


def test_the_cap_of_products_holds():
    a, b = operator(80), np.random.default_rng(1).standard_normal((80, 2))
    _, products, _ = solved(a, b, max_iter=4)
    assert products == 4


def test_companions_help_and_do_not_decide():
    """The wanted columns alone decide when to stop, and are solved in fewer products for what rides along."""
    a, rng = operator(100, spread=3), np.random.default_rng(4)
    b = rng.standard_normal((100, 2))
    target = 1e-16 * np.sum(b**2)
    _, alone, _ = solved(a, b, target)
    x, products, _ = solved(a, np.hstack([b, 1e3 * rng.standard_normal((100, 8))]), target, n_wanted=2)
    assert products < alone
    assert np.sum((b - a @ x[:, :2]) ** 2) <= 1.01 * target


# --- single precision ---------------------------------------------------------------------------------------


def test_refinement_makes_single_precision_products_exact_enough():
    """Products in float32 stall near 1e-7; restarted on the true residual the same method goes on below."""
    a = operator(80, spread=3)
    single = a.astype(np.float32)
    b = np.random.default_rng(5).standard_normal((80, 3))

    def multiply(s):
        return single @ s.astype(np.float32)

    x, errors = np.zeros_like(b), []
    for _ in range(4):
        residual = b - a @ x
        correction, _, _ = solved(a, residual, 1e-8 * np.sum(residual**2), multiply=multiply)
        x += correction
        errors.append(np.linalg.norm(b - a @ x) / np.linalg.norm(b))
    assert errors[0] > 1e-9
    assert errors[-1] < 1e-11


# --- indefinite operators -----------------------------------------------------------------------------------


@pytest.mark.parametrize("lowest", [-1.0, 0.0, 0.3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_indefinite_kernel_is_told(lowest, dtype):
    """Any eigenvalue of A below ½ is one of K below zero."""
    values, vectors = np.linalg.eigh(operator(30, spread=0))
    values[0] = lowest
    a = ((vectors * values) @ vectors.T).astype(dtype)
    b = vectors[:, :3] @ np.random.default_rng(0).standard_normal((3, 3))
    with pytest.raises(IndefiniteKernelError, match=r"Rayleigh quotient .*less than 1.*dmkl check.*repair="):
        solved(a, b, multiply=lambda s: a @ s.astype(dtype))


@pytest.mark.parametrize("spread", [0.0, 4.0, 6.0])
def test_rounding_is_not_taken_for_indefinite(spread):
    a = operator(60, spread=spread)
    single = a.astype(np.float32)
    b = np.random.default_rng(6).standard_normal((60, 4))
    _, products, _ = solved(a, b, 1e-6 * np.sum(b**2), multiply=lambda s: single @ s.astype(np.float32))
    assert products > 0


# --- the model of A⁻¹ ---------------------------------------------------------------------------------------


def exact_curvature(a, products):
    """Σ_k W_ikᵀA⁻¹W_jk."""
    return np.einsum("imk,mr,jrk->ij", products, np.linalg.inv(a), products)


@pytest.mark.parametrize("n_columns", [1, 3])
def test_curvature_is_exact_where_the_directions_span_everything(n_columns):
    a, rng = operator(40, spread=3), np.random.default_rng(7)
    directions = InverseModel()
    _, products, blocks = solved(a, rng.standard_normal((40, 10)), directions=directions)
    assert sum(s.shape[1] for s in blocks) >= 40
    assert products == len(directions.s) == len(directions.t)
    w = rng.standard_normal((5, 40, n_columns))
    np.testing.assert_allclose(directions.curvature(w), exact_curvature(a, w), rtol=1e-6)


def test_directions_keep_pairs_of_s_and_as():
    a, directions = operator(60), InverseModel()
    solved(a, np.random.default_rng(8).standard_normal((60, 4)), directions=directions, max_iter=9)
    for s, t in zip(directions.s, directions.t, strict=True):
        np.testing.assert_allclose(s.T @ s, np.eye(4), atol=1e-12)
        np.testing.assert_allclose(t, a @ s, atol=1e-9 * np.abs(t).max())


def test_curvature_without_directions_is_the_bound():
    """A ⪰ ½I: nothing known, A⁻¹ is modelled by 2I."""
    w = np.random.default_rng(9).standard_normal((3, 20, 2))
    flat = w.reshape(3, -1)
    np.testing.assert_allclose(InverseModel().curvature(w), 2 * flat @ flat.T, rtol=1e-12)


@pytest.mark.parametrize("lam", [1e-4, 1e-2, 1.0])
def test_curvature_of_kernels(lam):
    """What an α-step asks for: near the truth from the directions of its solution, nearer with those that W lacks."""
    features = np.random.default_rng(10).standard_normal((5, 90, 4))
    kernels = np.stack([rbf_kernel(x, gamma=0.1) for x in features])
    kernels = dense_view(kernels, steps=("center", "trace"))
    a = 0.5 * (np.eye(90) + kernels.mean(axis=0) / lam)
    h = encode_targets(np.arange(90) % 3, 90).problems[0]
    directions = InverseModel()
    alpha, _, _ = solved(a, h, 1e-6 * np.sum(h**2), directions=directions)
    w = kernels @ alpha
    exact, wide = exact_curvature(a, w), side_by_side(w)
    scale = np.linalg.norm(exact)
    before = np.linalg.norm(directions.curvature(w) - exact) / scale
    assert before < 0.25

    missing = directions.outside(wide, 54)
    np.testing.assert_allclose(missing.T @ missing, np.eye(missing.shape[1]), atol=1e-6)
    assert np.abs(np.hstack(directions.s).T @ missing).max() < 1e-6
    directions.add(missing, a @ missing)
    curvature = directions.curvature(w)
    assert np.linalg.norm(curvature - exact) / scale < min(0.5 * before, 0.05)
    np.testing.assert_allclose(curvature, curvature.T, rtol=1e-10)
    # W is inside now: there the Galerkin model never exceeds A⁻¹.
    assert np.linalg.eigvalsh(exact - curvature)[0] > -1e-8 * scale


@pytest.mark.parametrize("width", [1, 3, 8, 100])
def test_outside_gives_the_dominant_directions_of_a_width(width):
    rng, directions = np.random.default_rng(12), InverseModel()
    solved(operator(50), rng.standard_normal((50, 3)), directions=directions, max_iter=4)
    w = rng.standard_normal((50, 8)) * 10.0 ** -np.arange(8)[None]
    span = np.hstack(directions.s)
    rest = w - span @ np.linalg.lstsq(span, w)[0]
    expected = np.linalg.svd(rest, full_matrices=False)[0][:, :width]
    found = directions.outside(w, width)
    kept = found.shape[1]
    assert kept >= min(width, 6)
    # Equal up to signs, as far as a Gram matrix resolves.
    cosines = np.abs(np.sum(found[:, ::-1] * expected[:, :kept], axis=0))[:5]
    np.testing.assert_allclose(cosines, 1, atol=1e-4)


def test_nothing_is_outside_where_the_directions_span_everything():
    directions = InverseModel()
    solved(operator(30), np.random.default_rng(13).standard_normal((30, 10)), directions=directions)
    assert directions.outside(np.random.default_rng(14).standard_normal((30, 4)), 54).shape == (30, 0)


def test_side_by_side_keeps_kernels_apart():
    w = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    wide = side_by_side(w)
    assert wide.dtype == np.float64
    np.testing.assert_array_equal(wide, np.hstack(list(w)))


def test_a_model_keeps_no_more_columns_than_its_capacity():
    rng, directions = np.random.default_rng(15), InverseModel(capacity=7)
    a = operator(40)
    _, products, _ = solved(a, rng.standard_normal((40, 3)), directions=directions, max_iter=6)
    assert products > 3
    assert [s.shape[1] for s in directions.s] == [t.shape[1] for t in directions.t] == [3, 3, 1]
    assert all(block.base is None for block in (*directions.s, *directions.t) if block.shape[1] == 1)
    for s, t in zip(directions.s, directions.t, strict=True):
        np.testing.assert_allclose(t, a @ s, atol=1e-9 * np.abs(t).max())


# --- the α-step that uses them ------------------------------------------------------------------------------


def test_alpha_step_counts_its_products_and_refines():
    rng = np.random.default_rng(11)
    m, lam = 40, 0.1
    root = rng.standard_normal((m, m)) / m
    kernel = root @ root.T
    h = rng.standard_normal((m, 2))
    step = CGStep(FisherProblem(h, lam, Ball(2.0)), tol=1e-2)
    exact = np.linalg.solve(0.5 * (np.eye(m) + kernel / lam), h)

    def answer(request):
        np.testing.assert_array_equal(request.weights, [1.0])
        return kernel @ request.block

    alpha, asked = result_of(step.begin(np.ones(1)), answer)
    first = np.linalg.norm(alpha - exact)
    residual = h - 0.5 * (alpha + kernel @ alpha / lam)
    assert np.sum(residual**2) <= 1e-4 * np.sum(h**2)
    better, more = result_of(step.refine(np.ones(1), alpha, residual, 1e-20), answer)
    assert np.linalg.norm(better - exact) < 1e-6 * first
    assert step.products == asked + more


def result_of(generator, answer):
    """The result of a solver whose requests are answered, and how many there were."""
    reply, count = None, 0
    while True:
        try:
            request = generator.send(reply)
        except StopIteration as stop:
            return stop.value, count
        reply, count = answer(request), count + 1


# --- its memory ---------------------------------------------------------------------------------------------


def stored_kernels(folder, m, gamma):
    """Four Gaussian kernels and three classes."""
    X = np.random.default_rng(0).standard_normal((4, m, 3))
    y = (X[0] + 0.3 * X[1]).argmax(axis=1)
    K = dmkl.create(folder / "kernels.zarr", [rbf_kernel(x, gamma=gamma) for x in X], tile=128, dtype="float64")
    return K, y


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::dmkl.errors.ConvergenceWarning")
def test_a_fit_keeps_the_memory_budget(tmp_path):
    """All directions of an α-step would take more than 4 MiB."""
    K, y = stored_kernels(tmp_path, 400, 1.0)
    with dask.config.set({"scheduler": "synchronous", "dmkl.memory": "3MiB"}):
        model = dmkl.MKFDA(1.5, 1e-5, solver="cg", max_iter=1)
        clone(model).fit(K[:100, :100], y[:100])  # imported and compiled before
        tracemalloc.start()
        model.fit(K, y)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak <= 3 * 2**20


def test_a_fit_of_little_memory_finds_the_same(tmp_path):
    K, y = stored_kernels(tmp_path, 120, 0.3)
    with dask.config.set({"scheduler": "synchronous", "dmkl.memory": "1MiB"}):
        found = dmkl.MKFDA(1.5, 1e-3, solver="cg").fit(K, y)
    with (
        dask.config.set({"scheduler": "synchronous", "dmkl.memory": "128KiB"}),
        pytest.raises(MemoryBudgetError, match="solver='cg' would take"),
    ):
        dmkl.MKFDA(1.5, 1e-3, solver="cg").fit(K, y)
    exact = dmkl.MKFDA(1.5, 1e-3, solver="direct", tol=1e-8).fit(K, y)
    assert found.gap_ <= found.tol
    assert found.objective_ == pytest.approx(exact.objective_, rel=found.tol)
