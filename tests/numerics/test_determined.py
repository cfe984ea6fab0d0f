"""Detection of labels under another name, without false positives."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics.pairwise import rbf_kernel

from dmkl.numerics.determined import LabelKernel, by_chance, label_codes, label_columns

M = 60
RNG = np.random.default_rng(0)
Y = RNG.permutation(np.arange(M) % 3)


def columns_found(labels, values, side=17):
    watching = label_columns(labels, values.shape[1])
    for start in range(0, len(values), side):
        for each in watching:
            each.take(slice(start, start + side), values[start : start + side])
    return sorted({int(k) for each in watching for k in each.result()})


def kernel_is_labels(labels, K, side=17):
    finders = [LabelKernel(codes, K.dtype) for codes in label_codes(labels)]
    parts = [slice(start, start + side) for start in range(0, len(K), side)]
    for i, rows in enumerate(parts):
        for cols in parts[i:]:
            for each in finders:
                each.take(rows, cols, K[rows, cols])
    return any(each.result() for each in finders)


def test_indicators_of_classes_are_the_labels_together():
    assert columns_found(Y, np.eye(3)[Y]) == [0, 1, 2]
    lacking = np.where(np.arange(M)[:, None] == 3, np.nan, np.eye(3)[Y])  # a sample without the table is ignored
    assert columns_found(Y, lacking) == [0, 1, 2]
    assert columns_found(Y, np.eye(3)[Y][:, :1]) == []  # one class against two
    assert columns_found(Y, np.column_stack([np.eye(3)[Y], RNG.normal(size=M)])) == []


def test_tasks_and_targets():
    tasks = np.column_stack([Y == 0, RNG.permutation(M) % 2]).astype(float)
    tasks[::5, 1] = np.nan
    values = np.column_stack([RNG.normal(size=M), np.nan_to_num(tasks[:, 1], nan=9), 1 - tasks[:, 0]])
    assert columns_found(tasks, values) == [1, 2]
    target = RNG.normal(size=M)
    values = np.column_stack([target, target + 1e-9, 2 * target, RNG.normal(size=M)])
    assert columns_found(target, values) == [0]
    assert columns_found(target, values.astype(np.float32)[:, [0, 3]]) == [0]


@given(st.integers(0, 10**6), st.sampled_from([1e-6, 1e-3, 1.0]), st.sampled_from([np.float32, np.float64]))
def test_informative_columns_and_kernels_are_never_taken_for_labels(seed, noise, dtype):
    """Values that vary within a class by more than rounding are data, even if they separate the classes well."""
    r = np.random.default_rng(seed)
    X = (Y[:, None] + noise * r.normal(size=(M, 4))).astype(dtype)
    assert columns_found(Y, X) == []
    for K in (X @ X.T, rbf_kernel(X, gamma=1 / noise)):
        assert not kernel_is_labels(Y, K.astype(dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_kernels_of_labels_are_found(dtype):
    y = Y[:, None].astype(float)
    for K in (rbf_kernel(y, gamma=0.3), y @ y.T + 1, np.equal(y, y.T), (3 - y) * np.equal(y, y.T)):
        rounding = 1 + np.finfo(dtype).eps * RNG.integers(-1, 2, size=(M, M))
        K = np.triu(K * rounding) + np.triu(K * rounding, 1).T
        assert kernel_is_labels(Y, K.astype(dtype))
        assert not kernel_is_labels(RNG.permutation(Y), K.astype(dtype))
    assert not kernel_is_labels(Y, np.ones((M, M), dtype))
    assert not kernel_is_labels(Y, np.zeros((M, M), dtype))
    assert not kernel_is_labels(Y, (Y == 0)[:, None] * (Y == 0.0)[None].astype(dtype))  # one class against two
    assert not kernel_is_labels(Y, np.eye(M, dtype=dtype) + np.equal(y, y.T))


def test_what_happens_by_chance_is_no_finding():
    """The reference is the number of orders, counted by hand."""
    assert by_chance(np.arange(M), 1)  # each sample a class of its own
    assert by_chance(np.zeros(M, dtype=int), 1)
    for m, n_columns in ((8, 1), (12, 1), (12, 10), (20, 100), (20, 10**4), (60, 10**6)):
        orders = math.comb(m, m // 2) / 2
        assert by_chance(np.arange(m) % 2, n_columns) == (n_columns / orders > 0.01)
    r = np.random.default_rng(1)
    y = np.arange(12) % 2
    many = r.integers(0, 2, size=(12, 50_000)).astype(float)
    assert ((many == y[:, None]).all(axis=0) | (many == 1 - y[:, None]).all(axis=0)).any()
    assert columns_found(y, many) == []
