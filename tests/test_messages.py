"""Messages show plain values: 0 and 'a', not np.int64(0) and np.str_('a')."""

import numpy as np
import pytest

import dmkl
from dmkl.arrays import plain_repr
from dmkl.errors import InputError

WORD = np.str_("no")
K = dmkl.create(None, [np.eye(12)], labels=np.repeat(["a", "b"], 6))


@pytest.mark.parametrize(
    ("options", "labels", "expected"),
    [
        ({}, np.array([["1", "no"]] * 12), "give a vector; found 'no'"),
        ({"solver": WORD}, None, "got 'no'"),
        ({"priors": {WORD: 0.5, "b": 0.5}}, None, "numbers for ['no', 'b'], and the classes are ['a', 'b']"),
    ],
)
def test_messages_hold_no_numpy_scalars(options, labels, expected):
    with pytest.raises(InputError) as caught:
        dmkl.MKFDA(**options).fit(K, labels)
    assert expected in str(caught.value)
    assert "np." not in str(caught.value)


def test_parameters_in_words_do_not_depend_on_the_type_of_a_number():
    names = list(K.names)
    numpy = dmkl.MKFDA(p=np.float64(1.5), lam=np.float32(0.5), max_iter=np.int64(7))
    assert numpy._parameter_texts(names) == dmkl.MKFDA(p=1.5, lam=0.5, max_iter=7)._parameter_texts(names)
    assert plain_repr({WORD: [np.int64(0), np.float64(2.5), "x", None]}) == "{'no': [0, 2.5, 'x', None]}"
