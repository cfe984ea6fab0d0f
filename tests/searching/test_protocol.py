"""Selection never uses test rows, nor the same sample twice."""

import numpy as np
import pytest
from helpers.references import in_memory
from sklearn.metrics.pairwise import rbf_kernel

import dmkl
from dmkl.errors import InputError

M = 60
GRID = {"p": [1.0, 2.0], "lam": [1e-3, 0.1, 10.0]}
THREE = np.array_split(np.random.default_rng(1).permutation(M), 3)
MIRRORED = [tuple(THREE), (THREE[0], THREE[2], THREE[1])]
"""Two splits: validation rows of each are test rows of the other."""


KERNELS = in_memory(
    np.array([rbf_kernel(x, gamma=0.2) for x in np.random.default_rng(0).standard_normal((3, M, 5))]), M
)
NOISE = np.random.default_rng(2).integers(2, size=M)
"""Labels that are independent of the kernels."""


def test_one_choice_for_mirrored_splits_is_refused():
    """Its score on random labels would be above chance: half of its validation rows are test rows."""
    arguments, options = (dmkl.MKFDA(), KERNELS, NOISE, GRID), {"refit": False, "baselines": "none"}
    with pytest.raises(InputError, match=r"^20 training and .*fold 0 are test rows of fold 1: .*choice=.fold."):
        dmkl.search(*arguments, MIRRORED, choice="joint")
    with pytest.raises(InputError, match=r"without test rows, or .*choice=.fold. of dmkl.search"):
        dmkl.auto(KERNELS, NOISE, ["sum"], cv=MIRRORED)
    alone = [dmkl.search(*arguments, split, **options).best_params_ for split in MIRRORED]
    assert list(dmkl.search(*arguments, MIRRORED, **options).best_params_.values()) == alone


def test_a_joint_choice_where_no_row_that_chooses_is_tested():
    train, validation, test = THREE
    question = dmkl.MKFDA(), KERNELS, NOISE, GRID, [(train, validation, test), (validation, train, test)]
    result = dmkl.search(*question, choice="joint", refit=False, baselines="none")
    assert result.choosers == ()
    assert set(result.best_params_) == {"p", "lam"}
    mean = result.scores["score"].mean("fold")
    assert float(mean.sel(result.best_params_)) == float(mean.max())
    with pytest.raises(InputError, match="choice must be 'fold' or 'joint', got 'each'"):
        dmkl.search(*question, choice="each")


def test_the_same_sample_in_two_rows_is_the_same_sample():
    rows = np.concatenate([np.arange(40), np.arange(10)])
    K, y = KERNELS[rows, rows], NOISE[rows]
    with pytest.raises(InputError, match="fold 0 has 10 training rows that are validation rows too"):
        dmkl.search(dmkl.MKFDA(), K, y, GRID, (np.arange(40), np.arange(40, 50)))
    with pytest.raises(InputError, match="outer fold 0 has 10 training rows that are test rows too"):
        dmkl.evaluate(dmkl.MKFDA(), K, y, GRID, outer=(np.arange(40), np.arange(40, 50)))
