"""Messages show plain values: 0 and 'a', not np.int64(0) and np.str_('a')."""

from __future__ import annotations

import numpy as np
import pytest

import dmkl
from dmkl.arrays import plain_repr
from dmkl.errors import InputError
from dmkl.inference.stability import check_threshold
from dmkl.numerics.grouping import group_by_kmeans

WORDS, CODES = np.repeat(["a", "b"], 6), np.repeat([0, 1], 6)
SCALAR, WORD, COUNT = np.float64(2.5), np.str_("no"), np.int64(0)
X = np.random.default_rng(0).normal(size=(12, 3))
K = dmkl.create(None, [X @ X.T, np.exp(-np.abs(X[:, :1] - X[:, 0]))], labels=WORDS)


def search(**options):
    return dmkl.search(dmkl.MKFDA(), K, **{"grid": {"p": [1], "lam": [0.1]}, "cv": 3, "refit": False} | options)


CASES = {
    "one class": (lambda: dmkl.MKFDA().fit(K, CODES * 0), "y holds a single class, 0;"),
    "tasks in words": (lambda: dmkl.MKFDA().fit(K, np.array([["1", "no"]] * 12)), "give a vector; found 'no'"),
    "fold without a class": (
        lambda: dmkl.SingleBest(cv=[(np.arange(6), np.arange(6, 12))]).fit(K, CODES),
        "no training samples of class 1;",
    ),
    "choice": (lambda: dmkl.MKFDA(solver=WORD).fit(K), "got 'no'"),
    "count": (lambda: dmkl.MKFDA(max_iter=SCALAR).fit(K), "max_iter must be a whole number, at least 1, got 2.5"),
    "priors by class": (
        lambda: dmkl.MKFDA(priors={WORD: 0.5, "b": 0.5}).fit(K),
        "priors holds numbers for ['no', 'b'], and the classes are ['a', 'b']",
    ),
    "class weight": (lambda: dmkl.MKFDA(class_weight=SCALAR).fit(K), "or None, got 2.5"),
    "groups by class": (lambda: group_by_kmeans(X, WORDS, {"a": 2}), "class 'b', expected one for each of ['a', 'b']"),
    "scorer": (lambda: search(scoring={"own": lambda *_: np.str_("high")}), "and returned 'high'"),
    "permutations": (lambda: dmkl.permutation_test(dmkl.MKFDA(), K, n_permutations=COUNT), "got 0"),
    "threshold": (lambda: check_threshold(SCALAR), "got 2.5;"),
    "histograms": (
        lambda: dmkl.build(None, {"x": X}, {"function": "chi2"}, labels=WORDS),
        f"at sample {np.unravel_index(X.argmin(), X.shape)[0]}, column {np.unravel_index(X.argmin(), X.shape)[1]};",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_messages_hold_no_numpy_scalars(name):
    call, expected = CASES[name]
    with pytest.raises(InputError) as caught:
        call()
    assert expected in str(caught.value)
    assert "np." not in str(caught.value)


def test_parameters_in_words_do_not_depend_on_the_type_of_a_number():
    names = list(K.names)
    numpy = dmkl.MKFDA(p=np.float64(1.5), lam=np.float32(0.5), max_iter=np.int64(7))
    assert numpy._parameter_texts(names) == dmkl.MKFDA(p=1.5, lam=0.5, max_iter=7)._parameter_texts(names)
    assert plain_repr({WORD: [COUNT, SCALAR, "x", None]}) == "{'no': [0, 2.5, 'x', None]}"
