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


K = da.from_array(np.eye(6), chunks=3)
SOME = da.from_array(np.array([True, True]))


@pytest.mark.parametrize(
    ("kernels", "message"),
    [
        (WithGradient(np.ones((1, 3, 3))), r"detach\(\).cpu\(\)"),
        ([[[1.0, 2.0], [3.0]]], "the rows of a kernel are no matrix, .*; all rows must have the same length"),
        ([K[K[0] >= 0]], r"number of rows of a kernel is unknown; call compute_chunk_sizes\(\)"),
        (da.stack([K, K])[SOME], "number of rows of the array of kernels is unknown"),
        ([dask.delayed(np.eye(6))], "a kernel is a delayed value of Dask; say its shape: dask.array.from_delayed"),
        (dask.delayed(np.ones((2, 6, 6))), "the array of kernels is a delayed value"),
    ],
)
def test_what_cannot_be_read_is_refused(kernels, message):
    with pytest.raises(InputError, match=message):
        dmkl.create(None, kernels)
