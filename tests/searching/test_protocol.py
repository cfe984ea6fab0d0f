"""Selection never uses test rows, so that scores on random labels are at chance level."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.references import in_memory
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import StratifiedKFold

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


N_SETS = 40
POINT = {"p": [1.5], "lam": [1e-2]}
SMALL = {"p": [1.0, 2.0], "lam": [1e-4, 1e-1]}


def unrelated(n_classes, seed):
    """Kernels of noise and independent labels, with classes of equal size in every fold.

    Predictions that are independent of the labels of held-out rows have an expected accuracy of 1/`n_classes`.
    """
    rng = np.random.default_rng([n_classes, seed])
    m = 200 if n_classes == 10 else 60
    kernels = [rbf_kernel(x, gamma=1 / 20) for x in rng.standard_normal((3, m, 10))]
    return in_memory(np.stack(kernels), m), rng.permutation(np.arange(m) % n_classes)


def of_search(K, y, grid, folds):
    result = dmkl.search(dmkl.MKFDA(), K, y, grid, cv=folds, refit=False, baselines="none")
    yield "search", float(result.scores["score"].mean())


def of_test_rows(K, y, grid, folds):
    """The test rows of each fold are the validation rows of the next."""
    validation = [rows for _, rows in folds]
    thirds = [
        (np.setdiff1d(train, following), rows, following)
        for (train, rows), following in zip(folds, [*validation[1:], validation[0]], strict=True)
    ]
    scores = dmkl.search(dmkl.MKFDA(), K, y, grid, cv=thirds, baselines="none").scores
    yield "test_score", float(scores["test_score"].mean())
    yield "refit_test_score", float(scores["refit_test_score"].mean())


def of_evaluate(K, y, grid, folds):
    result = dmkl.evaluate(dmkl.MKFDA(), K, y, grid, outer=folds, inner=3, baselines="none")
    yield "evaluate", float(result.scores["test_score"].mean())


def of_importance(K, y, grid, folds):
    data = dmkl.importance(dmkl.MKFDA(), K, y, grid, cv=folds).data
    for name in ("score", "score_without", "score_alone"):
        yield f"importance, {name}", float(data[name].mean())


def of_single_best(K, y, grid, folds):
    yield "single best", float(dmkl.SingleBest(cv=folds).fit(K, y).scores_.mean())


AT_A_POINT = (of_search, of_test_rows, of_evaluate, of_importance, of_single_best)
OF_A_GRID = (of_search, of_test_rows, of_evaluate)  # importance would choose a point by the rows that it scores


@pytest.mark.slow
@pytest.mark.parametrize(
    ("grid", "n_classes", "route"),
    [
        *((POINT, n_classes, route) for route in AT_A_POINT for n_classes in (2, 10)),
        *((POINT, n_classes, of_search) for n_classes in (3, 4)),
        *((SMALL, 3, route) for route in OF_A_GRID),
    ],
)
def test_noise_is_scored_as_chance(grid, n_classes, route):
    scores_of = {}
    for seed in range(N_SETS):
        K, y = unrelated(n_classes, seed)
        folds = list(StratifiedKFold(5, shuffle=True, random_state=seed).split(y, y))
        for name, score in route(K, y, grid, folds):
            scores_of.setdefault(name, []).append(score)
    for name, scores in scores_of.items():
        error = np.std(scores, ddof=1) / np.sqrt(N_SETS)
        assert abs(np.mean(scores) - 1 / n_classes) < 3 * error, name
