"""Lower triangles of symmetric matrices, put together from parts, against the dense matrix."""

from __future__ import annotations

import numpy as np
from helpers.references import dense_view, psd
from hypothesis import given
from hypothesis import strategies as st

from dmkl.numerics.cholesky import Factor, LowerTriangle


def put_together(K, order, side):
    """The parts of the upper triangle of K[order, order], in runs of `side` rows and columns."""
    triangle, m = LowerTriangle(order), len(order)
    runs = [slice(start, min(start + side, m)) for start in range(0, m, side)]
    for i, rows in enumerate(runs):
        for cols in runs[i:]:
            triangle.put(rows, cols, K[np.ix_(order[rows], order[cols])])
    return triangle


@given(
    st.integers(1, 12),
    st.integers(1, 13),
    st.integers(0, 2**16),
    st.lists(st.sampled_from(["center", "take"]), max_size=4),
)
def test_centering_and_taking(m, side, seed, steps):
    rng = np.random.default_rng(seed)
    (K,) = psd(1, m, seed)
    triangle, chain, size = put_together(K, rng.permutation(m), side), [], m
    for step in steps:
        if step == "center":
            triangle.center()
            chain.append(step)
        else:
            positions = rng.integers(0, size, int(rng.integers(1, 14)))
            triangle.take(positions)
            chain.append((positions, positions))
            size = len(positions)
    (expected,) = dense_view(K[None], steps=chain)
    np.testing.assert_allclose(triangle.whole(), expected, atol=1e-12 * np.abs(K).max())


def test_a_factor_solves_in_the_order_of_the_samples():
    rng = np.random.default_rng(0)
    (K,) = psd(1, 9)
    triangle, b = put_together(K, rng.permutation(9), 4), rng.standard_normal((9, 2))
    found = Factor(triangle.entries, 0.3, triangle.order).solve(b)
    np.testing.assert_allclose(0.5 * (found + K @ found / 0.3), b, atol=1e-12)
