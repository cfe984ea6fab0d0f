"""Targets, norms, objective and certificate against the formulas and against dense optima."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.optima import bounds, conjugate, norm, slopes, solve, system, value
from helpers.references import dense_view, psd
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dmkl.errors import InputError
from dmkl.numerics import fisher
from dmkl.numerics.cholesky import Factor
from dmkl.solvers.fisher.problem import FisherProblem
from dmkl.solvers.fisher.wrapper import _DirectStep
from dmkl.solvers.interface import FactorSolve, run_with
from dmkl.solvers.weight_sets import Ball

EXPONENTS = [1.0, 1 + 2**-6, 1.25, 1.5, 2.0, 3.0, 8.0, np.inf]

exponents = st.one_of(st.sampled_from(EXPONENTS), st.floats(1, 8))
slope_vectors = st.integers(1, 8).flatmap(lambda n: arrays(float, n, elements=st.floats(0, 10, allow_subnormal=False)))


def targets_of(y, **options):
    return fisher.encode_targets(y, len(y), **options)


# --- targets ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "y",
    [
        [0, 1, 1, 0, 0],
        [-1, 1, 1, -1, -1],
        [False, True, True, False, False],
        [2.0, 7.0, 7.0, 2.0, 2.0],
        ["control", "patient", "patient", "control", "control"],
        np.array(["a", "b", "b", "a", "a"], dtype=object),
        np.array([[0], [1], [1], [0], [0]]),
    ],
)
def test_binary_targets(y):
    encoded = targets_of(y)
    assert encoded.kind == "binary"
    assert list(encoded.classes) == sorted({item for row in np.asarray(y).reshape(-1, 1).tolist() for item in row})
    (h,) = encoded.problems
    np.testing.assert_allclose(h, [[-1 / 3], [1 / 2], [1 / 2], [-1 / 3], [-1 / 3]], rtol=1e-15)


@pytest.mark.parametrize("p", [0.999, np.nan, -np.inf])
def test_p_is_at_least_one_and_infinite_where_large(p):
    assert [fisher.as_exponent(p) for p in (1, 8, 999_999, 1e6, np.inf)] == [1, 8, 999_999, np.inf, np.inf]
    with pytest.raises(InputError, match=r"p must be at least 1 .*got"):
        fisher.as_exponent(p)


def test_multiclass_and_multilabel_targets_are_those_of_eq_18():
    y = np.array(["c", "a", "b", "a", "c", "a", "c", "c"])
    encoded = targets_of(y)
    assert encoded.kind == "multiclass"
    assert list(encoded.classes) == ["a", "b", "c"]
    (h,) = encoded.problems
    m, sizes = 8, {"a": 3, "b": 1, "c": 4}
    for i, label in enumerate(y):
        for k, (name, m_k) in enumerate(sizes.items()):
            expected = np.sqrt(m / m_k) - np.sqrt(m_k / m) if label == name else -np.sqrt(m_k / m)
            assert h[i, k] == pytest.approx(expected, rel=1e-15)
    np.testing.assert_allclose(h.sum(axis=0), 0, atol=1e-14)
    tasks = np.array([[0, 1], [1, 1], [0, 0], [1, 1], [0, 1]])
    encoded = targets_of(tasks)
    assert (encoded.kind, list(encoded.classes)) == ("multilabel", [0, 1])
    for column, h in zip(tasks.T, encoded.problems, strict=True):
        np.testing.assert_array_equal(h, targets_of(column).problems[0])


@pytest.mark.parametrize(
    ("y", "m", "options", "words"),
    [
        ([0, 1, 0], 4, {}, ["(3,)", "(4,)"]),
        (np.zeros((2, 2, 2)), 2, {}, ["(2, 2, 2)", "(2,)"]),
        (np.int64(3), 1, {}, ["()", "(1,)"]),
        ([1.0, np.nan, np.inf], 3, {}, ["1 infinite", "leave those samples out"]),
        ([0.0, np.nan, 1.0], 3, {}, ["1 label", "missing", "leave those samples out", "tasks"]),
        ([[0.0, 1.0], [np.nan, 0.0]], 2, {}, ["task '0'", "only the label 0"]),
        (np.array([1.0, np.nan, 2.0], dtype=object), 3, {}, ["1 label", "leave"]),
        (["x", None, "y"], 3, {}, ["1 label", "leave"]),
        ([[0, 1], [1, 2]], 2, {}, ["0 or 1", "vector"]),
        ([["no", "yes"], ["yes", "no"]], 2, {}, ["0 or 1", "vector"]),
        ([[0, 1], [1, 1]], 2, {"tasks": np.array(["cat", "dog"])}, ["'dog'", "only the label 1", "both 0 and 1"]),
        ([[0, 1], [0, 0]], 2, {}, ["task '0'", "only the label 0"]),
        ([1.0, 2.5, 3.7], 3, {}, ["not whole", "2.5", "integers or strings"]),
        (["a", "a"], 2, {}, ["single class", "a", "at least two"]),
        (np.array([1, "a", 2], dtype=object), 3, {}, ["cannot be sorted", "integers or strings"]),
    ],
)
def test_bad_labels_are_told(y, m, options, words):
    with pytest.raises(InputError) as caught:
        fisher.encode_targets(y, m, **options)
    for word in words:
        assert word in str(caught.value)


# --- norms --------------------------------------------------------------------------------------------------


@given(slope_vectors, exponents, st.integers(0, 2**16))
def test_hoelder(q, p, seed):
    """βᵀq ≤ ‖β‖_p‖q‖_p*, and `steepest` attains it on the unit sphere."""
    beta = np.random.default_rng(seed).standard_normal(len(q))
    bound = fisher.dual_norm(q, p)
    # Negative slopes count as zero; the sum of one more entry may be rounded in another order.
    assert fisher.dual_norm(np.concatenate([q, [-1.0]]), p) == pytest.approx(bound, rel=1e-14)
    for size in (1e300, 1e-300):  # which neither overflow nor vanish
        assert fisher.norm(np.array([size, 0.0, size]), p) == pytest.approx(size * 2 ** (1 / p), rel=1e-12)
    assert bound == pytest.approx(norm(q, conjugate(p)), rel=1e-12)
    assert beta @ q <= fisher.norm(beta, p) * bound * (1 + 1e-12)
    best = fisher.steepest(q, p)
    assert (best >= 0).all()
    assert norm(best, p) == pytest.approx(1, rel=1e-12)
    assert best @ q == pytest.approx(bound, rel=1e-10)


@pytest.mark.parametrize("p", EXPONENTS)
def test_weights_on_the_sphere(p):
    n = 7
    uniform = fisher.uniform_weights(n, p)
    assert np.ptp(uniform) == 0
    assert norm(uniform, p) == pytest.approx(1, rel=1e-14)
    np.testing.assert_array_equal(fisher.onto_sphere(-np.ones(n), p), uniform)
    np.testing.assert_array_equal(fisher.steepest(np.zeros(n), p), uniform)
    cut = fisher.onto_sphere(np.array([-3.0, *np.full(n, 5.0)]), p)
    np.testing.assert_allclose(cut, [0, *uniform], rtol=1e-14)


# --- certificate --------------------------------------------------------------------------------------------


def problem(seed, m=7, n=3, classes=2):
    """Centred kernels of unit trace, one of them of low rank, and targets."""
    rng = np.random.default_rng(seed)
    kernels = dense_view(np.concatenate([psd(n - 1, m, seed), psd(1, m, seed, rank=2)]), steps=("center", "trace"))
    return rng, kernels, targets_of(rng.permutation(np.arange(m) % classes)).problems[0]


@given(st.integers(0, 2**16), exponents, st.floats(-4, 1), st.integers(2, 3))
def test_bounds_of_any_pairs(seed, p, log_lam, classes):
    """S − ‖R‖² ≤ J(β) for any α, and J(β) ≤ F(α) for any β of the ball: they enclose the optimum."""
    rng, kernels, h = problem(seed, classes=classes)
    lam = 10**log_lam
    beta, other = (fisher.onto_sphere(rng.standard_normal(3), p) * rng.uniform(0, 1) for _ in range(2))
    exact, j = solve(kernels, beta, h, lam)
    rounding = 1e-10 * abs(j)
    for alpha in (exact, rng.uniform(-2, 2) * exact + rng.uniform(0, 1) * rng.standard_normal(h.shape)):
        certificate, residual = fisher.certify(alpha, kernels @ alpha, beta, h, lam, Ball(p))
        assert certificate.objective - certificate.residual_sq <= j + rounding
        assert certificate.upper >= max(j, solve(kernels, other, h, lam)[1]) - rounding
        expected = h - system(kernels, beta, lam) @ alpha
        np.testing.assert_allclose(residual, expected, atol=1e-12 * np.abs(alpha).max() / min(lam, 1))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_certificate_by_the_definitions(dtype):
    rng, kernels, h = problem(3, m=30, n=5, classes=3)
    alpha, beta = rng.standard_normal(h.shape), fisher.onto_sphere(rng.standard_normal(5), 1.5)
    products = (kernels @ alpha).astype(dtype)
    certificate, residual = fisher.certify(alpha, products, beta, h, 0.1, Ball(1.5))
    rtol = {np.float32: 1e-6, np.float64: 1e-13}[dtype]
    lower, upper = bounds(kernels, alpha, beta, h, 0.1, 1.5)
    objective = value(kernels, alpha, beta, h, 0.1)
    assert residual.dtype == certificate.gradient.dtype == np.float64
    np.testing.assert_allclose(certificate.gradient, slopes(kernels, alpha, 0.1), rtol=rtol)
    np.testing.assert_allclose(
        [certificate.objective, certificate.upper, certificate.objective - certificate.residual_sq],
        [objective, upper, lower],
        rtol=rtol,
    )
    assert certificate.gap == pytest.approx((upper - lower) / abs(objective), rel=10 * rtol)
    assert certificate.gap == pytest.approx(certificate.weights_gap + certificate.alpha_gap, rel=1e-14)


# --- derivatives of J ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lam", "classes"), [(1e-3, 2), (0.1, 4), (10.0, 2)])
def test_derivatives_of_j(lam, classes):
    """q is the gradient of J(β) = min_α S, −curvature its Hessian, by central differences."""
    rng, kernels, h = problem(5, m=25, n=4, classes=classes)
    beta = rng.uniform(0.2, 1, 4)

    def j(offset):
        return solve(kernels, beta + offset, h, lam)[1]

    step = _DirectStep(FisherProblem(h, lam, Ball(2.0)))
    factor = Factor(np.tensordot(beta, kernels, axes=1), lam)

    def answer(request):
        return request.factor.solve(request.block) if isinstance(request, FactorSolve) else factor

    alpha = run_with(step.begin(beta), answer)
    np.testing.assert_allclose(alpha, solve(kernels, beta, h, lam)[0], rtol=1e-9, atol=1e-12 * np.abs(alpha).max())
    certificate, _ = fisher.certify(alpha, kernels @ alpha, beta, h, lam, Ball(2.0))
    step.each_product = kernels @ alpha
    hessian = -run_with(step.curvature(), answer)

    t, unit = 1e-3, np.eye(4)
    gradient = [(j(t * e) - j(-t * e)) / (2 * t) for e in unit]
    np.testing.assert_allclose(certificate.gradient, gradient, rtol=1e-4)
    expected = [
        [(j(t * (e + f)) - j(t * (e - f)) - j(t * (f - e)) + j(-t * (e + f))) / (4 * t * t) for f in unit] for e in unit
    ]
    np.testing.assert_allclose(hessian, expected, rtol=1e-3, atol=1e-4 * np.abs(hessian).max())
    assert np.linalg.eigvalsh(hessian)[-1] <= 1e-12 * np.abs(hessian).max()
