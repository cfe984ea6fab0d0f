"""How a pass is cut into tasks: few of them, which return little more than the products themselves."""

from types import SimpleNamespace

import numpy as np
import pytest

from dmkl.numerics.tiling import Tiling
from dmkl.passes.view import Unit, View, units_of


def view_of(n, m, tile, *, symmetric=True):
    """Kernels of which there is no entry."""
    tiling = Tiling(m, m, tile, upper=symmetric)
    source = SimpleNamespace(tiling=tiling, dtype=np.dtype(np.float32), reads_per_tile=1, symmetric=symmetric)
    every = np.arange(m)
    return View(source, np.arange(n), every, every)


def by_kernel(units):
    """The units of each kernel."""
    found = {}
    for unit in units:
        for kernel in unit.kernels:
            found.setdefault(int(kernel), []).append(unit)
    return found


@pytest.mark.parametrize(
    ("n", "m", "tile"), [(1000, 100_000, 2048), (10, 100_000, 2048), (1, 60_000, 1024), (3, 8192, 2048), (40, 500, 50)]
)
@pytest.mark.parametrize("symmetric", [True, False])
def test_every_tile_is_in_one_task(n, m, tile, symmetric):
    view = view_of(n, m, tile, symmetric=symmetric)
    wanted = sorted((task.i, task.j) for task in view.tile_tasks())
    for units in by_kernel(units_of(view)).values():
        assert sorted((task.i, task.j) for unit in units for task in unit.tiles) == wanted
        assert [unit.first for unit in units] == [True] + [False] * (len(units) - 1)
        assert all(unit.whole == (len(units) == 1) for unit in units)


def test_tasks_of_a_set_of_terabytes_are_few_and_return_little():
    """1,000 kernels of 100,000 samples: what tasks return is at most twice the products, and one part stays."""
    view = view_of(1000, 100_000, 2048)
    units = units_of(view)
    assert len(units) + len(view.kernels) <= 10_000
    assert len(units) >= 3000  # work for some thousand cores
    returned = sum(len(unit.rows(view)) for unit in units[: len(units) // 1000])
    assert returned <= 2.1 * 100_000
    sizes = [len(unit.tiles) for unit in units]
    assert max(sizes) <= 1.2 * min(sizes)


@pytest.mark.parametrize(("n", "m", "share"), [(1, 60_000, 0.5), (50, 100_000, 0.4), (4, 120_000, 0.4)])
def test_parts_of_a_kernel_reach_few_rows(n, m, share):
    """Beside as many strips of tiles after one another."""
    view = view_of(n, m, 1024)
    units, tiles = by_kernel(units_of(view))[0], view.tile_tasks()
    strips = [
        Unit(np.array([0]), tuple(tiles[t] for t in cut), True) for cut in np.array_split(range(len(tiles)), len(units))
    ]
    reached, by_strips = (sum(len(unit.rows(view)) for unit in some) for some in (units, strips))
    assert reached <= share * by_strips


def test_rows_that_a_task_reaches():
    view = view_of(1, 100, 10)
    unit = units_of(view)[0]
    assert unit.whole
    np.testing.assert_array_equal(unit.rows(view), np.arange(100))
