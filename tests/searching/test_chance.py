"""Scores on labels of noise are those of chance, whatever reports them.

Classes are of equal size in every fold, so that a prediction that knows nothing of the labels of held-out rows is right
in one of `n_classes` cases, exactly.
"""

from __future__ import annotations

import numpy as np
import pytest
from helpers.references import in_memory
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import StratifiedKFold

import dmkl

N_SETS = 40
POINT = {"p": [1.5], "lam": [1e-2]}
GRID = {"p": [1.0, 2.0], "lam": [1e-4, 1e-1]}


def noise(n_classes, seed):
    """Kernels of noise, and labels that are unrelated to them."""
    rng = np.random.default_rng([n_classes, seed])
    m = 200 if n_classes == 10 else 60
    kernels = [rbf_kernel(x, gamma=1 / 20) for x in rng.standard_normal((3, m, 10))]
    return in_memory(np.stack(kernels), m), rng.permutation(np.arange(m) % n_classes)


def of_search(K, y, grid, folds):
    result = dmkl.search(dmkl.MKFDA(), K, y, grid, cv=folds, refit=False, baselines="none")
    yield "search", float(result.scores["score"].mean())


def of_test_rows(K, y, grid, folds):
    """Each fold is tested on the rows that the next one validates on."""
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
OF_A_GRID = (of_search, of_test_rows, of_evaluate)  # a choice among points sees the rows that importance is scored on


@pytest.mark.slow
@pytest.mark.parametrize(
    ("grid", "n_classes", "route"),
    [
        *((POINT, n_classes, route) for route in AT_A_POINT for n_classes in (2, 10)),
        *((POINT, n_classes, of_search) for n_classes in (3, 4)),
        *((GRID, 3, route) for route in OF_A_GRID),
    ],
)
def test_noise_is_scored_as_chance(grid, n_classes, route):
    scores_of = {}
    for seed in range(N_SETS):
        K, y = noise(n_classes, seed)
        folds = list(StratifiedKFold(5, shuffle=True, random_state=seed).split(y, y))
        for name, score in route(K, y, grid, folds):
            scores_of.setdefault(name, []).append(score)
    for name, scores in scores_of.items():
        error = np.std(scores, ddof=1) / np.sqrt(N_SETS)
        assert abs(np.mean(scores) - 1 / n_classes) < 3 * error, name
