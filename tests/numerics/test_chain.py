"""The steps as operators around a raw product, without stores and passes."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.references import dense_view, error, psd

from dmkl.errors import InputError
from dmkl.numerics.steps import STEPS, ChainState, Fitted, Take

M = 13
ROWS, COLS = np.array([12, 3, 3, 7]), np.array([1, 0, 9, 5, 11, 4])


def state_of(K, rows=None, cols=None):
    """What a store knows of K[rows, cols] from its diagonal, means computed here."""
    every = np.arange(K.shape[1])
    rows, cols = (every if p is None else p for p in (rows, cols))
    square = np.array_equal(rows, cols)
    diagonal = np.diagonal(K, axis1=1, axis2=2)
    diag_cols, col_mean = diagonal[:, cols], K[:, cols][:, :, cols].mean(axis=2)
    return ChainState(
        names=tuple(f"kernel_{j}" for j in range(len(K))),
        diag_cols=diag_cols,
        diag_rows=diag_cols if square else diagonal[:, rows],
        col_mean=col_mean,
        row_mean=col_mean if square else K[:, rows][:, :, cols].mean(axis=2),
        square=square,
        resolution=32 * np.finfo(K.dtype).eps,
    )


def fit(state, steps):
    for step in steps:
        state = state.step(STEPS[step] if isinstance(step, str) else step)
    return state


def through(fitted, j, raw, V, parts=1):
    """The view's product, its raw product added up from `parts` parts."""
    carried, kept = fitted.right(j, V)
    cuts = np.array_split(np.arange(raw.shape[1]), parts)
    return sum(fitted.left(j, raw[:, cut] @ carried[cut], kept, offsets=p == 0) for p, cut in enumerate(cuts))


@pytest.fixture(scope="module")
def kernels():
    return psd(3, M)


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("rows", [COLS, ROWS], ids=["square", "other rows"])
@pytest.mark.parametrize(
    "chain",
    [(), ("center",), ("trace", "center"), ("center", "cosine"), ("multiplicative", "center", "trace")],
)
def test_right_and_left_make_the_product_of_the_view(kernels, chain, rows, parts):
    """Whole, and in parts of which one has the offsets."""
    fitted = fit(state_of(kernels, rows, COLS), chain).fitted
    expected = dense_view(kernels, rows, COLS, chain)
    V = np.random.default_rng(0).standard_normal((len(COLS), 2))
    for wanted in (fitted, fitted.for_products()):
        found = [through(wanted, j, K[np.ix_(rows, COLS)], V, parts) for j, K in enumerate(kernels)]
        assert error(found, expected @ V) < 1e-13


@pytest.mark.parametrize("rows", [COLS, ROWS], ids=["square", "other rows"])
def test_entries_are_those_of_the_matrix(kernels, rows):
    take = Take(np.array([1, 0, 1]), np.array([5, 2]), np.array([len(rows), len(COLS)]))
    chain = ("center", "cosine")
    fitted = fit(state_of(kernels, rows, COLS), [*chain, take]).fitted
    expected = dense_view(kernels, rows, COLS, [*chain, (take.rows, take.cols)])
    some_rows, some_cols = np.array([2, 1]), np.array([1])
    trail = fitted.positions(some_rows, some_cols)
    np.testing.assert_array_equal(trail[0][0], [1, 0])
    np.testing.assert_array_equal(trail[0][1], [2])
    np.testing.assert_array_equal(trail[-1][0], some_rows)
    for j, K in enumerate(kernels):
        raw = K[np.ix_(rows[trail[0][0]], COLS[trail[0][1]])]
        np.testing.assert_allclose(fitted.elementwise(j, raw, trail), expected[j][[2, 1]][:, [1]], rtol=1e-12)


def test_diagonals_and_means_are_kept_through_the_steps(kernels):
    for chain in [
        ("center",),
        ("cosine",),
        ("trace", "center"),
        ("center", "multiplicative"),
        ("center", "cosine"),
    ]:
        state = fit(state_of(kernels, ROWS, COLS), chain)
        train, cross = dense_view(kernels, COLS, COLS, chain), dense_view(kernels, ROWS, COLS, chain)
        own = dense_view(kernels, ROWS, ROWS, ["cosine"]) if chain == ("cosine",) else None
        np.testing.assert_allclose(state.diag_cols, np.diagonal(train, axis1=1, axis2=2), rtol=1e-12)
        if own is not None:
            np.testing.assert_allclose(state.diag_rows, np.diagonal(own, axis1=1, axis2=2), rtol=1e-12)
        if chain[-1] == "cosine":
            assert state.col_mean is None
            assert state.row_mean is None
        else:
            np.testing.assert_allclose(state.col_mean, train.mean(axis=2), atol=1e-12)
            np.testing.assert_allclose(state.row_mean, cross.mean(axis=2), atol=1e-12)


def test_test_rows_among_the_training_samples_keep_their_diagonal(kernels):
    """A training sample given as a test row is transformed as in training."""
    state = fit(state_of(kernels, COLS[:3], COLS), ("center", "trace"))
    np.testing.assert_allclose(state.diag_rows, state.diag_cols[:, :3], rtol=1e-12)


def test_taking_forgets_means_and_keeps_diagonals(kernels):
    state = state_of(kernels)
    taken = state.step(Take(ROWS, COLS, np.array([M, M])))
    assert not taken.square
    assert taken.col_mean is None
    assert taken.row_mean is None
    np.testing.assert_array_equal(taken.diag_rows, state.diag_rows[:, ROWS])
    same = state.step(Take(COLS, COLS, np.array([M, M])))
    assert same.square
    assert same.diag_rows is same.diag_cols


@pytest.mark.parametrize(
    "chain",
    [
        ("center", "trace"),
        ("trace", "center", "cosine"),
        ("cosine", "center"),
        ("center", "cosine", "center", "cosine"),
    ],
)
def test_new_samples_are_transformed_by_a_fitted_chain(kernels, chain):
    """Of new samples only their kernels with the training samples and their own k(x, x) are known."""
    trained = state_of(kernels, COLS, COLS)
    state = ChainState(
        names=trained.names,
        diag_cols=None,
        diag_rows=np.diagonal(kernels, axis1=1, axis2=2)[:, ROWS],
        col_mean=None,
        row_mean=None,
        square=False,
        resolution=trained.resolution,
    )
    for position, step in enumerate(chain):
        # A mean that no step has kept has to be computed.
        mean = dense_view(kernels, COLS, COLS, chain[:position]).mean(axis=2)
        trained = trained.step(STEPS[step], mean)
        rows = dense_view(kernels, ROWS, COLS, chain[:position]).mean(axis=2)
        state = state.step(trained.fitted.steps[-1], row_mean=rows if step == "center" else None)
    np.testing.assert_allclose(state.fitted.removed(), trained.fitted.removed(), rtol=1e-12)
    found = [through(state.fitted, j, K[np.ix_(ROWS, COLS)], np.eye(len(COLS))) for j, K in enumerate(kernels)]
    assert error(found, dense_view(kernels, ROWS, COLS, chain)) < 1e-12


def test_scalar_factors_multiply(kernels):
    fitted = fit(state_of(kernels), ("trace", "center", "multiplicative")).fitted
    for j, K in enumerate(kernels):
        scaled = K / np.trace(K)
        variance = np.trace(scaled) / M - scaled.mean()
        assert fitted.factor(j) == pytest.approx(1 / np.trace(K) / variance, rel=1e-12)
    assert Fitted().factor(0) == 1.0


def test_only_cosine_makes_vectors_differ_by_kernel(kernels):
    assert fit(state_of(kernels), ("center", "trace", "multiplicative")).fitted.same_for_all
    assert not fit(state_of(kernels), ("center", "cosine")).fitted.same_for_all


def test_select_keeps_the_statistics_of_the_kernels_chosen(kernels):
    chain = ("center", "cosine", "trace")
    whole = fit(state_of(kernels, ROWS, COLS), chain).fitted
    V = np.random.default_rng(0).standard_normal((len(COLS), 2))
    for place, j in enumerate([2, 0]):
        raw = kernels[j][np.ix_(ROWS, COLS)]
        found = through(whole.select(np.array([2, 0])), place, raw, V)
        # Where arrays lie in memory decides the order in which BLAS adds.
        np.testing.assert_allclose(found, through(whole, j, raw, V), rtol=1e-12, atol=1e-15)


def test_products_travel_without_statistics_that_they_do_not_need(kernels):
    (square,) = fit(state_of(kernels), ["center"]).fitted.for_products().steps
    (cross,) = fit(state_of(kernels, ROWS, COLS), ["center"]).fitted.for_products().steps
    assert square.col_mean is None
    assert cross.col_mean is not None
    assert cross.row_mean is None


@pytest.mark.parametrize(
    ("step", "missing"),
    [
        ("center", {"col_mean"}),
        ("multiplicative", {"col_mean"}),
        ("multiplicative", {"diag_cols"}),
        ("trace", {"diag_cols"}),
        ("cosine", {"diag_cols"}),
        ("cosine", {"diag_rows"}),
    ],
)
def test_a_missing_statistic_is_named(kernels, step, missing):
    state = state_of(kernels, ROWS, COLS)
    for name in missing:
        object.__setattr__(state, name, None)
    with pytest.raises(
        InputError, match=r"this view lacks the (diagonal|row means).*(through a fitted model|diagonal=)"
    ):
        state.step(STEPS[step])


def test_rows_without_a_diagonal_can_be_centred_and_scaled(kernels):
    state = state_of(kernels, ROWS, COLS)
    object.__setattr__(state, "diag_rows", None)
    fitted = fit(state, ("center", "trace")).fitted
    expected = dense_view(kernels, ROWS, COLS, ("center", "trace"))
    found = [through(fitted, j, K[np.ix_(ROWS, COLS)], np.eye(len(COLS))) for j, K in enumerate(kernels)]
    assert error(found, expected) < 1e-13


@pytest.mark.parametrize("kind", ["trace", "multiplicative"])
def test_a_kernel_without_size_is_named(kind):
    K = psd(2, 5)
    K[1] = -K[1]
    with pytest.raises(InputError, match=r"'kernel_1' cannot be normalized: its (trace|variance).* is -\d"):
        state_of(K).step(STEPS[kind])


@pytest.mark.parametrize("factor", [1e-30, 1.0, 1e30])
def test_rounding_noise_is_told_from_small_kernels(factor):
    """Centring leaves 1e-9 of one kernel, rounding noise of the other, whatever their unit."""
    small, noise = psd(1, 7) * 1e-9 + 1, np.full((1, 7, 7), 0.1)
    for chain in [
        ("center", "trace"),
        ("center", "cosine"),
        ("multiplicative",),
        ("center", "trace", "cosine"),
    ]:
        fitted = fit(state_of(small * factor), chain).fitted
        found = through(fitted, 0, small[0] * factor, np.eye(7))
        assert error([found], dense_view(small, steps=chain)) < 1e-5
        with pytest.raises(InputError, match="'kernel_0'"):
            fit(state_of(noise * factor), chain)
