"""Division of a pass into tasks: few tasks, which return little more than the products."""

from types import SimpleNamespace

import numpy as np

from dmkl.arrays import Tiling
from dmkl.passes.view import View, units_of


def view_of(n, m):
    """The view of a set of n kernels over m samples in single precision."""
    tiling = Tiling(m, m, 2048, upper=True)
    source = SimpleNamespace(tiling=tiling, dtype=np.dtype(np.float32), reads_per_tile=1, symmetric=True, factors=None)
    return View(source, np.arange(n), np.arange(m), np.arange(m))


def test_tasks_of_a_set_of_terabytes_are_few_and_return_little():
    """1,000 kernels of 100,000 samples: tasks return at most about twice the products, and have similar sizes."""
    n, m = 1000, 100_000
    view = view_of(n, m)
    units = units_of(view)
    assert len(units) + len(view.kernels) <= 10_000
    assert len(units) >= 3000  # work for some thousands of cores
    returned = sum(len(unit.rows(view)) for unit in units[: len(units) // n])
    assert returned <= 2.1 * m
    sizes = [len(unit.tiles) for unit in units]
    assert max(sizes) <= 1.2 * min(sizes)


def test_kernels_of_some_tasks_bytes_stay_whole():
    """8 kernels of 6,144 samples: the halves of a kernel would return its products twice."""
    assert [unit.whole for unit in units_of(view_of(8, 6144))] == [True] * 8
