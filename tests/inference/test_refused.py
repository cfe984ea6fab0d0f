"""What the questions of inference refuse, before anything is read."""

import numpy as np
import pytest
from helpers.references import Counting, digits, in_memory, labels, over

import dmkl
from dmkl.errors import InputError

QUESTIONS = {
    "importance": {"cv": 2},
    "stability": {},
    "permutation_test": {"grid": {"lam": [0.1]}, "n_permutations": 3, "cv": 3},
}
NAMES = [f"kernel_{j}" for j in range(5)]
OVERLAP = {"a": NAMES[:2], "b": NAMES[1:2]}
SITES = np.repeat(["north", "south", "west"], 30)
SPLIT = {"groups": SITES, "blocks": np.repeat(np.arange(45), 2), "exchange": "groups"}
UNEQUAL = np.repeat(np.arange(12), np.arange(2, 14))


@pytest.mark.parametrize(
    ("question", "change", "message"),
    [
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
        ("permutation_test", {"groups": np.arange(90)}, "each of the 90 samples has a different group"),
        ("permutation_test", {"groups": UNEQUAL, "exchange": "groups"}, "no label changes its place"),
        ("permutation_test", SPLIT, "3 groups have rows in several blocks, 'north'"),
    ],
)
@pytest.mark.filterwarnings("ignore:The least populated class")
def test_what_is_refused_before_anything_is_read(question, change, message):
    K, source = over(in_memory(digits()[0], 90), Counting)
    given = {"estimator": dmkl.MKFDA(), "K": K, "y": labels("binary"), **QUESTIONS[question], **change}
    with pytest.raises(InputError, match=message):
        getattr(dmkl, question)(**given)
    assert not source.reads
