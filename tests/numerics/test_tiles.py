"""Tiles: products and traces against dense ones, in both precisions, of sizes that tiles do and do not divide."""

from __future__ import annotations

import numpy as np
import pytest

from dmkl.numerics.tile_loops import put_dots
from dmkl.numerics.tiles import Dense, Tiles


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 1e-5)])
@pytest.mark.parametrize(
    ("n", "c", "m", "rows", "t"),
    [
        (3, 2, 64, 64, 1),
        (4, 4, 33, 70, 80),
        (5, 9, 5, 6, 3),
        (30, 1, 16, 20, 8),
        (1, 3, 1, 2, 1),
        (2, 2, 1100, 1103, 5),
    ],
)
def test_products_and_traces_are_the_dense_ones(n, c, m, rows, t, dtype, tolerance):
    rng = np.random.default_rng(m)
    a = rng.standard_normal((n, m, m))
    kernels = np.concatenate([a + a.transpose(0, 2, 1), rng.standard_normal((n, rows - m, m))], axis=1)
    weights, x = rng.standard_normal((t, n)), rng.standard_normal((t, c, m))
    tiles = Tiles(n, m, rows - m, dtype)
    for j, kernel in enumerate(kernels):
        tiles.put(j, kernel[:m], kernel[m:])
    everything = np.einsum("tj,jrm,tcm->tcr", weights, kernels, x, optimize=True)
    near = {"rtol": tolerance, "atol": tolerance * np.abs(everything).max()}
    np.testing.assert_allclose(tiles.products(weights, x), everything[:, :, :m], **near)
    np.testing.assert_allclose(tiles.held_out(weights, x), everything[:, :, m:], **near)
    traces = np.einsum("tcr,jrm,tcm->tj", x, kernels[:, :m], x, optimize=True)
    np.testing.assert_allclose(tiles.traces(x), traces, rtol=tolerance, atol=tolerance * np.abs(traces).max())
    dense = Dense(kernels[0].astype(dtype))
    np.testing.assert_allclose(dense.products(x), x @ kernels[0].T, **near)
    np.testing.assert_allclose(tiles.sum(weights[0]), np.tensordot(weights[0], kernels[:, :m], 1), **near)
    np.testing.assert_allclose(tiles.each(x[0]), x[0] @ kernels[:, :m], **near)


def test_what_a_call_leaves_does_not_reach_the_next():
    rng = np.random.default_rng(0)
    a = rng.standard_normal((2, 20, 20))
    tiles = Tiles(2, 20, 7, np.float64)
    for j, kernel in enumerate(a + a.transpose(0, 2, 1)):
        tiles.put(j, kernel, kernel[:7])
    weights, x = rng.standard_normal((6, 2)), rng.standard_normal((6, 5, 20))
    alone = [f(weights[:1], x[:1, :2]) for f in (tiles.products, tiles.held_out)]
    tiles.products(weights, np.full_like(x, np.inf))
    tiles.products(weights, x)
    again = [f(weights[:1], x[:1, :2]) for f in (tiles.products, tiles.held_out)]
    for one, other in zip(alone, again, strict=True):
        np.testing.assert_array_equal(one, other)


def test_squares_that_single_precision_cannot_hold_count():
    x = np.full((2, 3, 40), 1e-30, dtype=np.float32)
    found = np.empty((2, 3))
    put_dots(x, x, found)
    np.testing.assert_allclose(found, 40 * np.float64(np.float32(1e-30)) ** 2, rtol=1e-14)
