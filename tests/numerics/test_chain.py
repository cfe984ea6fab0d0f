"""The steps as operators around a raw product, without stores and passes."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.references import dense_view, error, psd

from dmkl.errors import InputError
from dmkl.numerics.steps import STEPS, ChainState

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
        computed = through(fitted, 0, small[0] * factor, np.eye(7))
        assert error([computed], dense_view(small, steps=chain)) < 1e-5
        with pytest.raises(InputError, match="'kernel_0'"):
            fit(state_of(noise * factor), chain)
