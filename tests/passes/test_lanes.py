"""How the columns of a pass share the products of each tile."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.model_selection import KFold

import dmkl
from dmkl.passes.run import run_pass
from dmkl.passes.sweep import Columns, lanes_of
from dmkl.passes.view import Lens

SINGLE = np.dtype(np.float32)
SIDE, M = 1500, 3000


def stored_set(m, tile):
    X = np.random.default_rng(0).standard_normal((2, m, 4)).astype(SINGLE)
    return dmkl.create(None, X @ X.transpose(0, 2, 1), tile=tile)


@pytest.fixture(scope="module")
def kernels():
    return stored_set(M, SIDE)


def folds(kernels, n, *, rows="all"):
    found = []
    for train, test in KFold(n, shuffle=True, random_state=0).split(np.arange(kernels.shape[1])):
        chosen = np.concatenate([train, test]) if rows == "all" else train
        found.append(Lens(kernels[chosen, train].view))
    return found


def riders(lenses, width, dtype=SINGLE):
    rng = np.random.default_rng(1)
    blocks = [rng.standard_normal((seen.view.shape[2], width)) for seen in lenses]
    return [Columns(block, "each", None, dtype, number) for number, block in enumerate(blocks)]


def multiplications(lane):
    """Of a whole matrix, by counting the samples of each part."""
    rows, cols = (np.diff(axis.bounds, axis=1).sum(axis=0) for axis in (lane.rows, lane.cols))
    widths = (sum(part.stop - part.start for part in block.vectors) for block in lane.blocks)
    return sum(
        int(rows[slice(*block.rows)].sum()) * int(cols[block.cols]) * width
        for block, width in zip(lane.blocks, widths, strict=True)
    )


@pytest.mark.parametrize("rows", ["all", "train"])
@pytest.mark.parametrize("n", [2, 3, 5])
def test_wide_blocks_of_folds_take_the_operations_of_the_floor(kernels, n, rows):
    lenses = folds(kernels, n, rows=rows)
    columns = riders(lenses, 128)
    lanes = lanes_of(lenses, columns)
    floor = sum(np.prod(seen.view.shape[1:]) * 128 for seen in lenses)
    assert sum(multiplications(lane) for lane in lanes) == floor
    if rows == "all":
        assert [len(np.diff(lane.cols.bounds[0])) for lane in lanes] == [n]


def test_a_few_columns_go_through_whole_tiles(kernels):
    lenses = folds(kernels, 3)
    (lane,) = lanes_of(lenses, riders(lenses, 1))
    assert lane.rows.is_whole
    assert lane.cols.is_whole


def test_few_of_the_samples_are_cut_out(kernels):
    rows = np.arange(0, M, 7)
    (lane,) = lanes_of([seen := Lens(kernels[rows, rows].view)], riders([seen], 16))
    np.testing.assert_array_equal(lane.rows.stored, rows)


def test_many_small_parts_are_not_cut_out_together(kernels):
    """Of forty random halves every sample has a part of its own: each costs a product of a single column."""
    rng = np.random.default_rng(2)
    halves = [rng.permutation(M)[: M // 2] for _ in range(40)]
    lenses = [Lens(kernels[half, half].view) for half in halves]
    lanes = lanes_of(lenses, riders(lenses, 64))
    assert max(len(lane.blocks) for lane in lanes) <= 64
    assert sorted(k for lane in lanes for k in lane.columns) == list(range(40))


def test_columns_of_the_same_samples_share_a_product(kernels):
    lenses = [*folds(kernels, 3), *folds(kernels, 3)]
    (lane,) = lanes_of(lenses, riders(lenses, 64))
    assert len(lane.blocks) == 3


@pytest.mark.usefixtures("cutting", "synchronous")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_products_are_the_dense_ones(dtype):
    kernels = stored_set(300, 120)  # how it is cut is told, and does not depend on the size
    lenses = [*folds(kernels, 3), *folds(kernels, 2, rows="train")]
    columns = riders(lenses, 3, np.dtype(dtype))
    found, _ = run_pass(lenses, columns)
    X = np.asarray(kernels, dtype=np.float64)
    for c, products in zip(columns, found, strict=True):
        view = lenses[c.lens].view
        expected = X[:, view.rows][:, :, view.cols] @ c.block
        np.testing.assert_allclose(
            products, expected, atol=(1e-5 if dtype is np.float32 else 1e-12) * np.abs(X).sum(axis=2).max()
        )
