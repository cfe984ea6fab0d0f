"""Columns of a combined kernel on disk against the dense matrix, and unaligned columns in memory."""

import numpy as np
import pytest

import dmkl
from dmkl.numerics.steps import Fitted
from dmkl.passes.run import run_pass
from dmkl.passes.sums import Combination, SumColumns, combine_pass
from dmkl.passes.sweep import Columns
from dmkl.passes.view import Lens

VIEWS = {
    "as stored": lambda K, some: K,
    "centred": lambda K, some: K.center().normalize("trace"),
    "some, centred": lambda K, some: K[some, some].center().normalize("trace"),
    "centred, some, centred": lambda K, some: K.center()[some, some].center(),
    "repeated": lambda K, some: K.center()[np.r_[some, some[:5]], np.r_[some, some[:5]]],
    "cosine": lambda K, some: K[some, some].normalize("cosine"),
    "centred, cosine": lambda K, some: K.center().normalize("cosine"),
}


@pytest.mark.parametrize(("name", "tile"), list(zip(VIEWS, [16, 16, 64, 16, 64, 16, 16], strict=True)))
def test_columns_are_those_of_the_dense_matrix(name, tile, tmp_path):
    rng = np.random.default_rng(0)
    features = {"a": rng.random((50, 4)), "b": rng.random((50, 3))}
    K = VIEWS[name](dmkl.build(None, features, {"function": ["rbf", "linear"]}, tile=tile), rng.permutation(50)[:33])
    weights = rng.random(4)
    (total,) = combine_pass([Combination(K.lens(), weights)], [str(tmp_path / "sum")])
    columns, dense = SumColumns(total), np.tensordot(weights, np.asarray(K), axes=1)
    asked = rng.integers(0, len(dense), 9)
    vector = rng.standard_normal(len(dense))
    assert columns.size == len(dense)
    np.testing.assert_allclose(columns(asked), dense[:, asked], atol=1e-13)
    np.testing.assert_allclose(columns.diagonal, dense.diagonal(), atol=1e-13)
    np.testing.assert_allclose(columns.product(vector), dense @ vector, atol=1e-12)


def unaligned(values):
    """A copy at an odd address, as arrays from a message between processes may have."""
    memory = np.empty(values.nbytes + 1, np.uint8)
    computed = memory[1:].view(values.dtype).reshape(values.shape)
    computed[...] = values
    assert not computed.flags.aligned
    return computed


@pytest.mark.parametrize("want", ["each", "sum", "project"])
def test_where_columns_lie_in_memory_does_not_show_in_products(tmp_path, want):
    rng = np.random.default_rng(0)
    X, V = rng.random((2, 37, 37)), rng.standard_normal((37, 3))
    K = dmkl.create(tmp_path / "set.zarr", X @ X.transpose(0, 2, 1), tile=16)
    weights = np.ones((2, 3)) if want == "sum" else None
    (computed,), (expected,) = (
        run_pass([Lens(K.view, Fitted())], [Columns(block, want, weights, np.dtype(np.float64))])[0]
        for block in (unaligned(V), V)
    )
    np.testing.assert_array_equal(computed, expected)
