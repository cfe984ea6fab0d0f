"""Columns of a combined kernel on disk against the dense matrix."""

import numpy as np
import pytest

import dmkl
from dmkl.passes.sums import Combination, SumColumns, combine_pass

VIEWS = {
    "as stored": lambda K, some: K,
    "centred": lambda K, some: K.center().normalize("trace"),
    "some, centred": lambda K, some: K[some, some].center().normalize("trace"),
    "centred, some, centred": lambda K, some: K.center()[some, some].center(),
    "repeated": lambda K, some: K.center()[np.r_[some, some[:5]], np.r_[some, some[:5]]],
    "cosine": lambda K, some: K[some, some].normalize("cosine"),
    "centred, cosine": lambda K, some: K.center().normalize("cosine"),
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("tile", [16, 64])
def test_columns_are_those_of_the_dense_matrix(name, tile, tmp_path):
    rng = np.random.default_rng(0)
    features = {"a": rng.random((50, 4)), "b": rng.random((50, 3))}
    K = VIEWS[name](dmkl.build(None, features, {"function": ["rbf", "linear"]}, tile=tile), rng.permutation(50)[:33])
    weights = rng.random(4)
    (total,) = combine_pass([K.lens()], [Combination(0, weights)], [str(tmp_path / "sum")])
    columns, dense = SumColumns(total), np.tensordot(weights, np.asarray(K), axes=1)
    asked = rng.integers(0, len(dense), 9)
    vector = rng.standard_normal(len(dense))
    assert columns.size == len(dense)
    np.testing.assert_allclose(columns(asked), dense[:, asked], atol=1e-13)
    np.testing.assert_allclose(columns.diagonal, dense.diagonal(), atol=1e-13)
    np.testing.assert_allclose(columns.product(vector), dense @ vector, atol=1e-12)
