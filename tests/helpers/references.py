"""Simple reference implementations in float64, and sources and schedulers for tests."""

import os
import signal
import tracemalloc
from collections import Counter
from contextlib import contextmanager
from functools import cache

import dask
import numpy as np
from distributed import LocalCluster
from sklearn.datasets import load_digits
from sklearn.metrics.pairwise import linear_kernel, polynomial_kernel, rbf_kernel

from dmkl.inputs.labels import Labels
from dmkl.kernelset import KernelSet, set_of
from dmkl.passes.view import View
from dmkl.store.format import Header
from dmkl.store.memory import MemorySet


def psd(n, m, seed=0, rank=None):
    """n positive definite kernels over m samples, well-conditioned unless `rank` is low."""
    features = np.random.default_rng(seed).standard_normal((n, m, rank or m + 7))
    return features @ features.transpose(0, 2, 1)


def dense_view(K, rows=None, cols=None, steps=()):
    """K[rows, cols] after `steps` (names, or positions to select), by their definitions on the column samples."""
    K = np.asarray(K, dtype=np.float64)
    every = np.arange(K.shape[1])
    rows, cols = (every if positions is None else np.asarray(positions) for positions in (rows, cols))
    train, cross = K[:, cols][:, :, cols], K[:, rows][:, :, cols]
    own = np.diagonal(K, axis1=1, axis2=2)[:, rows]  # k(x, x) of the rows
    for step in steps:
        if step == "center":
            means, row_means = train.mean(axis=1), cross.mean(axis=2)
            grand = means.mean(axis=1)[:, None]
            own = own - 2 * row_means + grand
            cross = cross - row_means[:, :, None] - means[:, None, :] + grand[:, :, None]
            train = train - means[:, :, None] - means[:, None, :] + grand[:, :, None]
        elif step in ("trace", "multiplicative"):
            trace = np.trace(train, axis1=1, axis2=2)
            size = trace if step == "trace" else trace / train.shape[1] - train.mean(axis=(1, 2))
            train, cross, own = train / size[:, None, None], cross / size[:, None, None], own / size[:, None]
        elif step == "cosine":
            norm, own_norm = np.sqrt(np.diagonal(train, axis1=1, axis2=2)), np.sqrt(own)
            cross = cross / (own_norm[:, :, None] * norm[:, None, :])
            train = train / (norm[:, :, None] * norm[:, None, :])
            own = np.ones_like(own)
        else:
            take_rows, take_cols = step
            train, cross = train[:, take_cols][:, :, take_cols], cross[:, take_rows][:, :, take_cols]
            own = own[:, take_rows]
    return cross


def ridge_predictions(kernels, y, weights, lam, train, rows, steps=("center", "trace")):
    """Of y for `rows`, by ridge regression with the mean of y as constant on the weighted sum of kernels."""
    square, cross = (np.tensordot(weights, dense_view(kernels, part, train, steps), 1) for part in (train, rows))
    mean = y[train].mean(axis=0)
    return mean + cross @ np.linalg.solve(square + lam * np.eye(len(train)), y[train] - mean)


def stepped(K, steps):
    """Apply the same steps to a KernelSet."""
    for step in steps:
        if step == "center":
            K = K.center()
        elif isinstance(step, str):
            K = K.normalize(step)
        else:
            K = K[step]
    return K


def error(found, expected):
    """The largest relative error of the kernels, in the Frobenius norm."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape
    axes = tuple(range(1, expected.ndim))
    return float(np.max(np.linalg.norm(found - expected, axis=axes) / np.linalg.norm(expected, axis=axes)))


@contextmanager
def raise_if_computes():
    """Use a scheduler that raises at any computation, to test calls that must only build a graph."""

    def refuse(dsk, keys, **kwargs):
        msg = "a graph was computed while it was built"
        raise AssertionError(msg)

    with dask.config.set(scheduler=refuse):
        yield


@contextmanager
def memory_below(n_bytes):
    """Assert that no more bytes are allocated at a time in this context."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < n_bytes
    finally:
        tracemalloc.stop()


def local_cluster(n_workers, **more):
    """A cluster of single-threaded workers on this machine, with a dashboard on the loopback interface."""
    return LocalCluster(
        n_workers=n_workers, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0", **more
    )


# --- wrappers of sources, to observe or fail ----------------------------------------------------------------
class Wrapped:
    """A source of tiles that delegates to another."""

    def __init__(self, source):
        self.source = source

    def __getattr__(self, name):
        if name.startswith("__") or name == "source":
            raise AttributeError(name)
        return getattr(self.source, name)

    def __dask_tokenize__(self):
        return type(self).__name__, self.source.content_id

    def stream(self, keys):
        for key, tile in self.source.stream(keys):
            self.see(key)
            yield key, tile

    def see(self, key):
        """Observe a tile before it is returned."""


class Counting(Wrapped):
    """Counts how often each tile is read."""

    def __init__(self, source):
        super().__init__(source)
        self.reads = Counter()

    def see(self, key):
        self.reads[key] += 1


class Killing(Wrapped):
    """Kills its process at one tile."""

    def __init__(self, source, at):
        super().__init__(source)
        self.at = at

    def see(self, key):
        if key == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


def over(K, wrap, *args):
    """A kernel set with its source wrapped, and the wrapper."""
    source = wrap(K.view.source, *args)
    return KernelSet(View(source, K.view.kernels, K.view.rows, K.view.cols, K.view.steps)), source


def in_memory(K, tile):
    """A KernelSet of symmetric matrices in memory, without checks, that passes read as they read a stored one."""
    n, m, _ = K.shape
    source = MemorySet(Header(m, m, K.dtype.name, tile, symmetric=True, full=False))
    source.begin_kernels({j: {} for j in range(n)})
    for j, kernel in enumerate(K):
        for i, k in source.tiling.pairs():
            source.write_tile(j, i, k, kernel[source.tiling.row_slice(i), source.tiling.col_slice(k)])
        source.end_kernel(j, kernel.sum(axis=1, dtype=np.float64), kernel.diagonal().astype(np.float64))
    source.finish([f"kernel_{j}" for j in range(n)], Labels().checked(m, m, rectangular=False))
    return over(set_of(source), Wrapped)[0]


def few_columns(m=60, seed=0, dtype=np.float64):
    """Tables of few columns and labels of three classes; the first table depends on the classes."""
    rng = np.random.default_rng(seed)
    y = np.arange(m) % 3
    wide = rng.normal(size=(m, 9)) + 1.0
    wide[:, :3] += 0.8 * np.eye(3)[y]
    tables = {"a": wide, "b": rng.normal(size=(m, 4)), "c": rng.normal(size=(m, 2))}
    return {name: table.astype(dtype) for name, table in tables.items()}, y


@cache
def digits():
    """Five nonnegative kernels of 90 digits (all pixels, half of the pixels, noise), and the digits."""
    rng = np.random.default_rng(0)
    x, y = load_digits(return_X_y=True)
    chosen = rng.permutation(len(y))[:90]
    x, y = x[chosen] / 16, y[chosen]
    kernels = [
        rbf_kernel(x, gamma=0.02),
        rbf_kernel(x, gamma=0.5),
        linear_kernel(x[:, :32]),
        polynomial_kernel(x[:, 32:], degree=3),
        rbf_kernel(rng.standard_normal((90, 5)), gamma=0.2),
    ]
    return np.stack(kernels), y


def digit_set(tile=90, kernels=slice(None)):
    """The kernels of `digits`, or some of them, as a set in memory."""
    return in_memory(digits()[0][kernels], tile)


def labels(kind):
    """Labels of the samples of `digits`, for each kind of problem."""
    y = digits()[1]
    return {
        "binary": np.where(y < 5, "small", "large"),
        "multiclass": y % 4,
        "multilabel": np.stack([y < 5, y % 2], axis=1).astype(int),
        "regression": y.astype(float),
        "targets": np.stack([np.sin(y), np.cos(y)], axis=1),
    }[kind]
