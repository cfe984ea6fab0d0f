"""Tiles: products and traces against dense ones, in both precisions, of sizes that tiles do and do not divide."""

from __future__ import annotations

import numpy as np
import pytest

from dmkl.numerics.tiles import Tiles


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 1e-5)])
@pytest.mark.parametrize(("m", "rows", "t"), [(64, 64, 1), (33, 70, 40), (5, 6, 3)])
def test_products_and_traces_are_the_dense_ones(m, rows, t, dtype, tolerance):
    rng = np.random.default_rng(m)
    a = rng.standard_normal((3, m, m))
    kernels = np.concatenate([a + a.transpose(0, 2, 1), rng.standard_normal((3, rows - m, m))], axis=1)
    weights, x = rng.standard_normal((t, 3)), rng.standard_normal((t, 2, m))
    tiles = Tiles(kernels[:, :m], kernels[:, m:], dtype)
    everything = np.einsum("tj,jrm,tcm->tcr", weights, kernels, x)
    near = {"rtol": tolerance, "atol": tolerance * np.abs(everything).max()}
    np.testing.assert_allclose(tiles.products(weights, x), everything[:, :, :m], **near)
    np.testing.assert_allclose(tiles.held_out(weights, x), everything[:, :, m:], **near)
    traces = np.einsum("tcr,jrm,tcm->tj", x, kernels[:, :m], x)
    np.testing.assert_allclose(tiles.traces(x), traces, rtol=tolerance, atol=tolerance * np.abs(traces).max())
