"""Messages: what questions refuse before anything is read; values are plain, 0 and 'a', not np.int64(0)."""

from pathlib import Path

import numpy as np
import pytest
from helpers.references import Counting, digit_set, digits, labels, over
from sklearn.linear_model import LogisticRegression

import dmkl
from dmkl.arrays import plain_repr
from dmkl.errors import InputError

FISHER = dmkl.MKFDA()
QUESTIONS = {
    "search": {"estimator": FISHER, "grid": {"lam": [1.0]}, "cv": 2},
    "evaluate": {"estimator": FISHER, "grid": {"lam": [1.0]}, "outer": 3, "inner": 3},
    "importance": {"estimator": FISHER, "cv": 2},
    "stability": {"estimator": FISHER},
    "permutation_test": {"estimator": FISHER, "grid": {"lam": [0.1]}, "n_permutations": 3, "cv": 3},
    "compare": {},
    "analyze": {},
    "association_test": {},
}
"""The arguments of each question that are not refused, but for kernels and labels."""
M = 90
K, SOURCE = over(digit_set(), Counting)
NAMES = list(K.names)
OVERLAP = {"a": NAMES[:2], "b": NAMES[1:2]}
SITES = np.repeat(["north", "south", "west"], 30)
SPLIT = {"groups": SITES, "blocks": np.repeat(np.arange(45), 2), "exchange": "groups"}
UNEQUAL = np.repeat(np.arange(12), np.arange(2, 14))
THREE_PARTS = np.split(np.arange(M), [40, 60])
X = np.random.default_rng(6).normal(size=M)
CHAINS = {"y": labels("multilabel"), "grid": {"steps": ["center,trace", "multiplicative"]}}
UNKNOWN = np.stack([X > 0, np.where(np.arange(M) == 3, np.nan, X > 0)], axis=1)


@pytest.mark.parametrize(
    ("question", "change", "message"),
    [
        ("search", {"K": Path("kernels.zarr")}, "search takes a kernel set, or matrices"),
        ("search", {"K": K[:60, :]}, r"needs the training kernels, K\[train, train\], got 60 rows and 90 columns"),
        ("search", {"y": None}, "search needs labels: give y"),
        ("search", {"estimator": dmkl.MKFDA(p=(1.0, 2.0, 3.0))}, "takes an estimator with one"),
        ("search", CHAINS, "tasks of a problem have separate choices, and one model has one steps"),
        ("evaluate", {"inner": "splits"}, "inner must be a number of folds or a splitter"),
        ("evaluate", {"outer": 1}, "outer=1 is no number of folds"),
        ("evaluate", {"outer": tuple(THREE_PARTS)}, r"outer fold 0 must be \(train, test\)"),
        ("evaluate", {"groups": X > 0, "inner": 2}, r"outer=3 folds .* are 2: give outer=2 \(--outer 2\) or fewer"),
        ("evaluate", {"groups": X > 0, "outer": 2, "inner": 2}, "inner=2 .* are 1: give rows of more groups"),
        ("evaluate", {"inner": 80}, "outer fold 0: .*cannot split these 60 rows"),
        ("evaluate", {"baselines": "all"}, "baselines must be"),
        ("importance", {"kernel_groups": {"a": ["kernel_0", "noise"]}}, "'a' names 'noise', which is no kernel"),
        ("importance", {"kernel_groups": {"a": NAMES}}, "'a' has all kernels, and nothing is left"),
        ("importance", {"kernel_groups": {"kernel_1": ["kernel_0"]}}, "'kernel_1' is the name of a kernel"),
        ("importance", {"kernel_groups": {"a": "kernel_0"}}, "'a' must be a list of names of kernels, got 'kernel_0'"),
        ("importance", {"kernel_groups": ["kernel_0"]}, "kernel_groups must map names to names of kernels"),
        ("importance", {"kernel_groups": OVERLAP, "shapley": 3}, "'kernel_1' is in 'a' and 'b'"),
        ("importance", {"choose": "again"}, "choose must be 'held' or 'anew'"),
        ("importance", {"shapley": -1}, "shapley"),
        ("importance", {"K": digits()[0][:1]}, "two kernels at least, and there is 1"),
        ("importance", {"estimator": dmkl.Product()}, "Product does not weigh kernels"),
        ("stability", {"how": "thirds"}, "how must be 'half', 'bootstrap' or 'folds', got 'thirds'"),
        ("stability", {"n_resamples": 3}, "n_resamples must be even for how='half'"),
        ("stability", {"threshold": 0.5}, "threshold, the share of the resamples .* got 0.5"),
        ("stability", {"n_selected": 0}, "n_selected must be"),
        ("stability", {"how": "folds", "n_resamples": 80}, "how='folds': .*cannot split these 90 rows"),
        ("stability", {"estimator": dmkl.EasyMKL(), "how": "bootstrap"}, "EasyMKL does not weight .*; take how='half'"),
        ("permutation_test", {"n_permutations": 0}, "n_permutations must be a whole number, at least 1, got 0"),
        ("permutation_test", {"exchange": "groups"}, "there are no groups; give groups"),
        ("permutation_test", {"groups": np.arange(M)}, "each of the 90 samples has a different group"),
        ("permutation_test", {"groups": UNEQUAL, "exchange": "groups"}, "no label changes its place"),
        ("permutation_test", SPLIT, "3 groups have rows in several blocks, 'north'"),
        ("compare", {"models": ["auto"]}, "the choice from the other models"),
        ("compare", {"models": ["mkfda"], "grids": {"sum": {}}}, "none of the models compared: mkfda"),
        ("compare", {"models": ["forest"]}, "there is no model 'forest'"),
        ("compare", {"models": ["mkfda", "mkfda"]}, "'mkfda' twice"),
        ("compare", {"models": ["stack"], "competitors": ["ridge"]}, "no competitor 'ridge' for these labels"),
        *(
            ("compare", {"models": models, "competitors": {name: LogisticRegression()}}, f"'{name}' is both a model")
            for models, name in ((["stack"], "stack"), (["stack", "auto"], "auto"))
        ),
        ("compare", {"models": ["stack"], "competitors": ["logistic"]}, "features .* build the set from features"),
        (
            "compare",
            {"models": ["mkridge"], "y": labels("targets"), "competitors": ["ridge"]},
            "several tasks or targets",
        ),
        ("analyze", {"y": [0, 1]}, "a label for each sample"),
        ("analyze", {"y": np.zeros(M)}, "single class"),
        ("analyze", {"y": UNKNOWN}, "and some are unknown"),
        ("analyze", {"n_eigenvalues": 0}, "n_eigenvalues must be at least 1"),
        ("analyze", {"threshold": 0}, "threshold is an alignment"),
        ("analyze", {"probes": 1}, "at least 3"),
        ("analyze", {"K": K[:5, :], "y": np.arange(5) % 2}, "same samples as rows and columns"),
        ("association_test", {"y": X > 0, "covariates": X}, "separate the two classes"),
        ("association_test", {"y": X, "covariates": X}, "determine the labels"),
        ("association_test", {"y": SITES}, "3 classes; give a column of 0 and 1"),
        ("association_test", {"y": SITES, "family": "cox"}, "survival takes numbers"),
        ("association_test", {"y": [["1", "x"]] * M, "family": "cox"}, "survival takes numbers"),
        ("association_test", {"y": X.argsort().argsort() + 1.0, "covariates": X, "family": "cox"}, "order the events"),
        ("association_test", {"y": None}, "needs labels"),
    ],
)
@pytest.mark.filterwarnings("ignore:The least populated class")
def test_what_is_refused_before_anything_is_read(question, change, message):
    SOURCE.reads.clear()
    with pytest.raises(InputError, match=message) as caught:
        getattr(dmkl, question)(**{"K": K, "y": labels("binary"), **QUESTIONS[question], **change})
    assert "np." not in str(caught.value)
    assert not SOURCE.reads


WORD = np.str_("no")


@pytest.mark.parametrize(
    ("options", "y", "expected"),
    [
        ({}, np.array([["1", "no"]] * 12), "give a vector; found 'no'"),
        ({"solver": WORD}, None, "got 'no'"),
        ({"priors": {WORD: 0.5, "b": 0.5}}, None, "numbers for ['no', 'b'], and the classes are ['a', 'b']"),
    ],
)
def test_messages_hold_no_numpy_scalars(options, y, expected):
    with pytest.raises(InputError) as caught:
        dmkl.MKFDA(**options).fit([np.eye(12)], np.repeat(["a", "b"], 6) if y is None else y)
    assert expected in str(caught.value)
    assert "np." not in str(caught.value)


def test_parameters_in_words_do_not_depend_on_the_type_of_a_number():
    numpy = dmkl.MKFDA(p=np.float64(1.5), lam=np.float32(0.5), max_iter=np.int64(7))
    assert numpy._parameter_texts(NAMES) == dmkl.MKFDA(p=1.5, lam=0.5, max_iter=7)._parameter_texts(NAMES)
    assert plain_repr({WORD: [np.int64(0), np.float64(2.5), "x", None]}) == "{'no': [0, 2.5, 'x', None]}"
