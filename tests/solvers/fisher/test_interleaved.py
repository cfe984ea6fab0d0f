"""The interleaved solver: shared passes, and products of tile columns against dense matrices."""

import numpy as np
import pytest
from helpers.optima import case, few_digits
from helpers.references import Counting, dense_view, error, in_memory, over, psd, stepped

import dmkl
from dmkl.solvers.driver import drive
from dmkl.solvers.interface import CombinedEntries, EachProduct, ask


def test_problems_share_what_they_read():
    _, labels, _ = case("multilabel")
    K = in_memory(few_digits()[0], 8)
    together = dmkl.MKFDA(2.0, 1e-2, solver="interleaved").fit(K, labels)
    alone = [dmkl.MKFDA(2.0, 1e-2, solver="interleaved").fit(K, column) for column in labels.T]
    assert max(model.n_passes_ for model in alone) <= together.n_passes_ < sum(model.n_passes_ for model in alone)


SOME = (np.array([7, 1, 3, 0, 12, 5, 9]),) * 2


@pytest.mark.parametrize("steps", [(), ("center", "trace"), ("cosine", "center", SOME, "cosine", "center", "trace")])
def test_columns_and_blocks_of_any_view(steps):
    kernels, rows = psd(3, 31, seed=4), np.random.default_rng(5).permutation(31)[3:21]
    K, source = over(in_memory(kernels, 6), Counting)
    K = stepped(K[rows, rows], steps)
    expected = dense_view(kernels, rows, rows, steps)
    rng, lens = np.random.default_rng(1), K.lens()
    tiles = K.view.final_positions()[0] // 6
    index = np.flatnonzero(np.isin(tiles, tiles[[0, -1]]))
    v, beta = rng.standard_normal((len(index), 2)), np.array([0.7, 0.0, 0.4])
    source.reads.clear()
    (products, block), _ = drive([(lens, ask(r)) for r in (EachProduct(v, index), CombinedEntries(beta, index))])
    used = set(tiles[index].tolist())
    assert all(used & {i, j} for _, i, j in source.reads)
    assert error(products, expected[:, :, index] @ v) < 1e-12
    assert error(block[None], np.tensordot(beta, expected, 1)[index][:, index][None]) < 1e-12
