"""Models and results on a small kernel set, by kind, for tests of reports."""

from __future__ import annotations

import numpy as np

import dmkl


def search(K):
    return dmkl.search(dmkl.MKFDA(tol=1e-3), K, grid={"p": [1, 2, np.inf], "lam": [1e-4, 1e-2, 1]}, cv=3)


def permuted(K):
    return dmkl.permutation_test(dmkl.MKFDA(p=2), K, grid={"lam": [1e-2]}, n_permutations=9, cv=3)


MADE = {
    "search": lambda K, found: found(),
    "model": lambda K, found: found().best_,
    "machine": lambda K, found: dmkl.MKSVM().fit(K),
    "groups": lambda K, found: dmkl.GSMKL(n_groups=2).fit(K),
    "evaluation": lambda K, found: dmkl.evaluate(dmkl.MKFDA(), K, grid={"lam": [1e-2, 1]}, outer=2, inner=2),
    "analysis": lambda K, found: dmkl.analyze(K),
    "permutation test": lambda K, found: permuted(K),
    "variance components": lambda K, found: dmkl.VarianceComponents().fit(K, np.arange(60) % 3 + np.sin(np.arange(60))),
    "several": lambda K, found: [found(), dmkl.stability(dmkl.MKFDA(lam=1e-2), K, n_resamples=4), permuted(K)],
}
"""Functions of a kernel set and of a function that returns its search."""
