"""Targets, norms, objective and certificate against the formulas and against dense optima."""

import numpy as np
import pytest
from helpers.optima import conjugate, norm, solve, system
from helpers.references import dense_view, psd
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dmkl.errors import InputError
from dmkl.numerics import fisher
from dmkl.numerics.fisher import relative_gap
from dmkl.solvers.interface import Outcome, Status
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
        ([1.0, np.nan, np.inf], 3, {}, ["1 infinite", "leave those samples out"]),
        ([[0, 1], [1, 2]], 2, {}, ["0 or 1", "vector"]),
        ([[0, 1], [1, 1]], 2, {"tasks": np.array(["cat", "dog"])}, ["'dog'", "only the label 1", "both 0 and 1"]),
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
    np.testing.assert_array_equal(fisher.onto_sphere(-q, p), fisher.uniform_weights(len(q), p))
    best = fisher.steepest(q, p)
    assert (best >= 0).all()
    assert norm(best, p) == pytest.approx(1, rel=1e-12)
    assert best @ q == pytest.approx(bound, rel=1e-10)


# --- certificate --------------------------------------------------------------------------------------------
@given(st.integers(0, 2**16), exponents, st.floats(-4, 1), st.integers(2, 3))
def test_bounds_of_any_pairs(seed, p, log_lam, classes):
    """S − ‖R‖² ≤ J(β) for any α, and J(β) ≤ F(α) for any β of the ball: they enclose the optimum."""
    rng, lam = np.random.default_rng(seed), 10**log_lam
    kernels = dense_view(np.concatenate([psd(2, 7, seed), psd(1, 7, seed, rank=2)]), steps=("center", "trace"))
    (h,) = targets_of(rng.permutation(np.arange(7) % classes)).problems
    beta, other = (fisher.onto_sphere(rng.standard_normal(3), p) * rng.uniform(0, 1) for _ in range(2))
    exact, j = solve(kernels, beta, h, lam)
    rounding = 1e-10 * abs(j)
    for alpha in (exact, rng.uniform(-2, 2) * exact + rng.uniform(0, 1) * rng.standard_normal(h.shape)):
        certificate, residual = fisher.certify(alpha, kernels @ alpha, beta, h, lam, Ball(p))
        assert certificate.objective - certificate.residual_sq <= j + rounding
        assert certificate.upper >= max(j, solve(kernels, other, h, lam)[1]) - rounding
        expected = h - system(kernels, beta, lam) @ alpha
        np.testing.assert_allclose(residual, expected, atol=1e-12 * np.abs(alpha).max() / min(lam, 1))


def test_bounds_that_contradict_each_other_prove_nothing():
    assert relative_gap(1.0, 0.75, 1.0) == 0.25
    assert relative_gap(-1.0, -1.25, -0.5) == 0.5
    assert relative_gap(1.0, 1.0 + 1e-12, 1.0) == 0.0
    assert relative_gap(1.0, 1.1, 1.0) == np.inf
    assert relative_gap(0.0, 0.0, 0.0) == 0.0
    assert relative_gap(np.nan, 0.0, 1.0) == np.inf
    assert relative_gap(1.0, 0.0, np.inf) == np.inf


@pytest.mark.parametrize("gap", [np.nan, np.inf, -1.0])
@pytest.mark.parametrize("status", [Status.CERTIFIED, Status.FINISHED])
def test_nothing_is_certified_without_a_gap(status, gap):
    with pytest.raises(ValueError, match="certified by a finite gap"):
        Outcome(status, np.ones(1), None, 1.0, 1.0, gap)
