"""Arrays of other libraries, which exchange them by DLPack."""

import dask
import dask.array as da
import numpy as np
import pytest

import dmkl
from dmkl.errors import InputError


class Tensor:
    """As a tensor of PyTorch: a type of its own, and DLPack."""

    dtype = "torch.float64"

    def __init__(self, values):
        self.values, self.shape = values, values.shape

    def __len__(self):
        return len(self.values)

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype)

    def __dlpack__(self, **options):
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()


class WithGradient(Tensor):
    def __dlpack__(self, **options):
        raise BufferError("Can't export tensors that require gradient")


def test_tensors_are_arrays():
    X = np.random.default_rng(0).normal(size=(30, 4))
    kernels, y = np.stack([X @ X.T, (X @ X.T + 1) ** 2]), np.arange(30) % 2
    expected = dmkl.MKFDA().fit(kernels, y).weights_
    for given in (Tensor(kernels), [Tensor(K) for K in kernels]):
        np.testing.assert_array_equal(dmkl.MKFDA().fit(given, y).weights_, expected)
    built = dmkl.build(None, {"x": Tensor(X)}, {"function": "linear"})
    np.testing.assert_array_equal(dmkl.MKFDA().fit(built, y).weights_, [1.0])


def test_a_tensor_that_cannot_be_read_is_refused():
    with pytest.raises(InputError, match=r"detach\(\).cpu\(\)"):
        dmkl.create(None, WithGradient(np.ones((1, 3, 3))))


def test_rows_of_unlike_lengths_are_refused():
    with pytest.raises(InputError, match=r"the rows of a kernel are no matrix, .*; all rows must have the same length"):
        dmkl.create(None, [[[1.0, 2.0], [3.0]]])


def test_arrays_of_dask_whose_shape_is_unknown_are_refused():
    K = da.from_array(np.eye(6), chunks=3)
    unknown = K[da.from_array(np.arange(6) >= 0, chunks=3)]
    for kernels, words in [
        ([unknown], r"number of rows of a kernel is unknown; call compute_chunk_sizes\(\)"),
        (da.stack([K, K])[da.from_array(np.array([True, True]))], "number of rows of the array of kernels is unknown"),
        ([dask.delayed(np.eye(6))], "a kernel is a delayed value of Dask; say its shape: dask.array.from_delayed"),
        (dask.delayed(np.ones((2, 6, 6))), "the array of kernels is a delayed value"),
    ]:
        with pytest.raises(InputError, match=words):
            dmkl.create(None, kernels)
