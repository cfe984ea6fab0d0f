"""The interleaved solver: shared passes, and products of tile columns against dense matrices."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.optima import STEPS, case, few_digits
from helpers.references import Counting, dense_view, error, in_memory, over, psd, stepped

import dmkl
from dmkl.solvers.driver import drive
from dmkl.solvers.fisher.working_sets import working_sets
from dmkl.solvers.requests import CombinedEntries, EachProduct


def single(request):
    """A solver that asks once and returns the answer."""
    return (yield request)


# --- what a step reads ----------------------------------------------------------------------------------------


def test_problems_share_what_they_read():
    _, labels, _ = case("multilabel")
    K = in_memory(few_digits()[0], 8)
    together = dmkl.MKFDA(2.0, 1e-2, solver="interleaved").fit(K, labels)
    alone = [dmkl.MKFDA(2.0, 1e-2, solver="interleaved").fit(K, column) for column in labels.T]
    assert max(one.n_passes_ for one in alone) <= together.n_passes_ < sum(one.n_passes_ for one in alone)
    assert drive([], at_once=2) == ([], 0)


# --- products of tile columns -----------------------------------------------------------------------------------

SHUFFLED = np.random.default_rng(5).permutation(31)


SOME = (np.array([7, 1, 3, 0, 12, 5, 9]),) * 2


@pytest.mark.parametrize(
    "steps",
    [(), ("center", "trace"), ("cosine", "center", "trace"), ("cosine", "center", SOME, "cosine", "center", "trace")],
    ids=["raw", "a training set", "unit norm", "some of unit norm"],
)
def test_columns_and_blocks_of_any_view(steps):
    kernels, rows = psd(3, 31, seed=4), SHUFFLED[3:21]
    K, source = over(in_memory(kernels, 6), Counting)
    K = stepped(K[rows, rows], steps)
    expected = dense_view(kernels, rows, rows, steps)
    rng, lens = np.random.default_rng(1), K.lens()
    tiles = K.view.final_positions()[0] // 6
    index = np.flatnonzero(np.isin(tiles, tiles[[0, -1]]))
    v, beta = rng.standard_normal((len(index), 2)), np.array([0.7, 0.0, 0.4])
    source.reads.clear()
    (products, block), _ = drive([(lens, single(r)) for r in (EachProduct(v, index), CombinedEntries(beta, index))])
    used = set(tiles[index].tolist())
    assert all(used & {i, j} for _, i, j in source.reads)
    assert error(products, expected[:, :, index] @ v) < 1e-12
    assert error(block[None], np.tensordot(beta, expected, 1)[index][:, index][None]) < 1e-12


def test_columns_beside_whole_passes():
    """Both kinds of products in one pass, through two lenses."""
    kernels = psd(3, 31, seed=4)
    K = in_memory(kernels, 6)
    sets = [stepped(K[rows, rows], STEPS) for rows in (SHUFFLED[:14], SHUFFLED[9:])]
    exact = [dense_view(kernels, rows, rows, STEPS) for rows in (SHUFFLED[:14], SHUFFLED[9:])]
    v, index = np.random.default_rng(1).standard_normal((22, 2)), np.array([4, 0, 11])
    lenses = [one.lens() for one in sets]
    jobs = [
        (lenses[0], single(EachProduct(v[:3], index))),
        (lenses[1], single(EachProduct(v))),
        (lenses[1], single(EachProduct(v[:3], index))),
    ]
    answers, passes = drive(jobs)
    assert passes == 1
    assert error(answers[0], exact[0][:, :, index] @ v[:3]) < 1e-12
    assert error(answers[1], exact[1] @ v) < 1e-12
    assert error(answers[2], exact[1][:, :, index] @ v[:3]) < 1e-12


def test_working_sets_follow_the_tiles():
    K = stepped(in_memory(psd(2, 31), 2)[SHUFFLED[:25], SHUFFLED[:25]], STEPS)
    for largest in (1, 4, 10**6):
        sets = working_sets(K.lens(), largest)
        np.testing.assert_array_equal(np.sort(np.concatenate([one.index for one in sets])), np.arange(25))
        tiles = [set((SHUFFLED[one.index] // 2).tolist()) for one in sets]
        assert sum(map(len, tiles)) == len(set().union(*tiles))
        # 16 sets at least where there are as many tile columns, and no set larger than allowed but by whole tiles.
        n_tiles = len(set().union(*tiles))
        assert len(sets) == min(n_tiles, 16 if largest > 1 else n_tiles)
        for one in sets:
            assert 0 < one.block_passes <= one.column_passes <= 1
