"""What one task of a pass makes of its tiles and columns."""

from __future__ import annotations

import numpy as np
import pytest

import dmkl
from dmkl.numerics.steps import Fitted
from dmkl.passes.run import run_pass
from dmkl.passes.sweep import Columns
from dmkl.passes.view import Lens


def unaligned(values):
    """A copy that begins at an odd address, as arrays out of a message between processes may."""
    memory = np.empty(values.nbytes + 1, np.uint8)
    found = memory[1:].view(values.dtype).reshape(values.shape)
    found[...] = values
    assert not found.flags.aligned
    return found


@pytest.mark.usefixtures("synchronous")
@pytest.mark.parametrize("want", ["each", "sum", "project"])
def test_where_columns_lie_in_memory_does_not_show_in_products(tmp_path, want):
    rng = np.random.default_rng(0)
    X, V = rng.random((2, 37, 37)), rng.standard_normal((37, 3))
    K = dmkl.create(tmp_path / "set.zarr", X @ X.transpose(0, 2, 1), tile=16)
    weights = np.ones((2, 3)) if want == "sum" else None
    (found,), (expected,) = (
        run_pass([Lens(K.view, Fitted())], [Columns(block, want, weights, np.dtype(np.float64))])[0]
        for block in (unaligned(V), V)
    )
    np.testing.assert_array_equal(found, expected)
