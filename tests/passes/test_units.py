"""Division of a pass into tasks: few tasks, which return little more than the products."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.model_selection import KFold

import dmkl
from dmkl.numerics.tiling import Tiling
from dmkl.passes.sweep import Columns, lanes_of
from dmkl.passes.view import Lens, View, units_of


def test_tasks_of_a_set_of_terabytes_are_few_and_return_little():
    """1,000 kernels of 100,000 samples: tasks return at most about twice the products, and have similar sizes."""
    n, m = 1000, 100_000
    tiling = Tiling(m, m, 2048, upper=True)
    source = SimpleNamespace(tiling=tiling, dtype=np.dtype(np.float32), reads_per_tile=1, symmetric=True, factors=None)
    view = View(source, np.arange(n), np.arange(m), np.arange(m))
    units = units_of(view)
    assert len(units) + len(view.kernels) <= 10_000
    assert len(units) >= 3000  # work for some thousands of cores
    returned = sum(len(unit.rows(view)) for unit in units[: len(units) // n])
    assert returned <= 2.1 * m
    sizes = [len(unit.tiles) for unit in units]
    assert max(sizes) <= 1.2 * min(sizes)


# --- how the columns of a pass share the products of each tile ------------------------------------------------------


M, WIDTH = 3000, 128


@pytest.fixture(scope="module")
def kernels():
    X = np.random.default_rng(0).standard_normal((2, M, 4)).astype(np.float32)
    return dmkl.create(None, X @ X.transpose(0, 2, 1), tile=1500)


def multiplications(lane):
    """The multiplications of a whole matrix, from the number of samples of each part."""
    rows, cols = (np.diff(axis.bounds, axis=1).sum(axis=0) for axis in (lane.rows, lane.cols))
    widths = (sum(part.stop - part.start for part in block.vectors) for block in lane.blocks)
    return sum(
        int(rows[slice(*block.rows)].sum()) * int(cols[block.cols]) * width
        for block, width in zip(lane.blocks, widths, strict=True)
    )


@pytest.mark.parametrize(("n", "rows"), [(2, "all"), (3, "train"), (5, "all")])
def test_wide_blocks_of_folds_take_the_operations_of_the_floor(kernels, n, rows):
    folds = KFold(n, shuffle=True, random_state=0).split(np.arange(M))
    lenses = [Lens(kernels[np.concatenate(fold) if rows == "all" else fold[0], fold[0]].view) for fold in folds]
    columns = [
        Columns(np.ones((lens.view.shape[2], WIDTH)), "each", None, np.dtype(np.float32), number)
        for number, lens in enumerate(lenses)
    ]
    lanes = lanes_of(lenses, columns)
    floor = sum(np.prod(lens.view.shape[1:]) * WIDTH for lens in lenses)
    assert sum(multiplications(lane) for lane in lanes) == floor
    if rows == "all":
        assert [len(np.diff(lane.cols.bounds[0])) for lane in lanes] == [n]
