"""Matrices of other libraries: sparse ones, condensed distances, and those exchanged by DLPack; equal to dense ones."""

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.io
import scipy.sparse
from helpers.reading import kernels_in
from helpers.references import memory_below, psd
from scipy.spatial.distance import pdist, squareform

import dmkl
from dmkl.errors import InputError
from dmkl.inputs import as_features, open_files

M = 7
K = psd(1, M)[0].round(3)
K = np.where(np.abs(K) > 0.2, K, 0) + np.eye(M)


@pytest.mark.parametrize("form", ["csr_matrix", "csc_array", "coo_matrix", "lil_matrix"])
def test_kernels_and_features(form):
    sparse = getattr(scipy.sparse, form)(K)
    np.testing.assert_array_equal(np.asarray(dmkl.create(None, [sparse, K], tile=3)), [K, K])
    np.testing.assert_array_equal(np.asarray(dmkl.create(None, {"a": sparse}, tile=3))[0], K)
    with pytest.raises(InputError, match=r"got a sparse matrix of shape \(7, 7\); give one kernel as \[K\]"):
        dmkl.create(None, sparse)
    built, expected = (dmkl.build(None, {"x": x}, {"function": "rbf"}, tile=3) for x in (sparse, K))
    np.testing.assert_array_equal(np.asarray(built), np.asarray(expected))


def test_no_more_is_made_dense_than_is_asked_for(tmp_path):
    sparse = scipy.sparse.identity(1000, format="csr")
    with memory_below(1000 * 1000 * 8 / 2):
        dmkl.create(tmp_path / "set.zarr", iter([sparse]), tile=100)


@pytest.mark.parametrize("name", ["csr.npz", "csc.npz", "k.mtx", "dense.mtx", "general.mtx"])
def test_files(tmp_path, name):
    path = tmp_path / name
    if name.endswith(".npz"):
        scipy.sparse.save_npz(path, scipy.sparse.csr_matrix(K).asformat(name[:3]))
    else:
        symmetry = "general" if name == "general.mtx" else "symmetric"
        scipy.io.mmwrite(path, K if name == "dense.mtx" else scipy.sparse.coo_matrix(K), symmetry=symmetry)
    np.testing.assert_array_equal(kernels_in(path)[0], [K])
    np.testing.assert_array_equal(as_features(path).blocks[path.stem].read(slice(1, 4)), K[1:4])


def test_damaged_files_are_told(tmp_path):
    sparse = scipy.sparse.csr_matrix(K)
    sparse.indices[0] = 99
    scipy.sparse.save_npz(tmp_path / "k.npz", sparse)
    with pytest.raises(InputError, match=r"k.npz is damaged: .* must be < 7"):
        kernels_in(tmp_path / "k.npz")
    scipy.sparse.save_npz(tmp_path / "k.npz", scipy.sparse.coo_matrix(K).tobsr())
    with pytest.raises(InputError, match=r"sparse matrix of the kind 'bsr'; save K.tocsr"):
        open_files(tmp_path / "k.npz")
    (tmp_path / "k.mtx").write_text("%%MatrixMarket matrix coordinate real general\n5 5 99999999\n1 1 1\n")
    with pytest.raises(InputError, match=r"k.mtx is damaged: it states 5 × 5 and 99999999 entries, and has 65 bytes"):
        open_files(tmp_path / "k.mtx")
    lines = "2 2 4\n1 1 1\n2 2 1\n2 1 3\n2 1 4\n"
    (tmp_path / "k.mtx").write_text(f"%%MatrixMarket matrix coordinate real symmetric\n{lines}")
    with pytest.raises(InputError, match=r"k.mtx lists 2 entries more than once"):
        kernels_in(tmp_path / "k.mtx")


# --- condensed distances ----------------------------------------------------------------------------------------------
X = np.random.default_rng(0).normal(size=(M, 3))


@pytest.mark.parametrize("form", ["file", "memory"])
def test_condensed_distances(form, tmp_path):
    distances = pdist(X, "sqeuclidean")
    np.save(tmp_path / "d.npy", distances)
    given = tmp_path / "d.npy" if form == "file" else {"d": distances}
    block = as_features(given).blocks["d"]
    for rows in (slice(0, 7), slice(2, 5), slice(3, 3)):
        np.testing.assert_array_equal(block.read(rows), squareform(distances)[rows])
    made = dmkl.build(None, given, [{"function": "distance", "gamma": 0.5}])
    np.testing.assert_allclose(np.asarray(made)[0], np.exp(-0.5 * squareform(distances)), rtol=1e-12)
    with pytest.raises(InputError, match=r"no tables of features, but d; .*distance takes distances"):
        dmkl.build(None, given, [{"function": "rbf"}])


def test_condensed_distances_are_no_kernels(tmp_path):
    np.save(tmp_path / "d.npy", pdist(X))
    with pytest.raises(InputError, match=r"distances of the pairs of 7 samples, .* --function dist"):
        open_files(tmp_path / "d.npy")
    np.save(tmp_path / "three.npy", np.ones((3, 1770)))
    source, _ = open_files(tmp_path / "three.npy")
    assert "3 × 1770: taken as a rectangular kernel. If its rows are distances of the pairs of 60" in source.notes[0]


# --- tensors ----------------------------------------------------------------------------------------------------------
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
    kernels, y = np.stack([X @ X.T, (X @ X.T + 1) ** 2]), np.arange(M) % 2
    expected = dmkl.MKFDA().fit(kernels, y).weights_
    for given in (Tensor(kernels), [Tensor(kernel) for kernel in kernels]):
        np.testing.assert_array_equal(dmkl.MKFDA().fit(given, y).weights_, expected)
    built = dmkl.build(None, {"x": Tensor(X)}, {"function": "linear"})
    np.testing.assert_array_equal(dmkl.MKFDA().fit(built, y).weights_, [1.0])


LAZY = da.from_array(np.eye(6), chunks=3)
SOME = da.from_array(np.array([True, True]))


@pytest.mark.parametrize(
    ("kernels", "message"),
    [
        (WithGradient(np.ones((1, 3, 3))), r"detach\(\).cpu\(\)"),
        ([], "needs at least one kernel, got none"),
        ([[[1.0, 2.0], [3.0]]], "the rows of a kernel are no matrix, .*; all rows must have the same length"),
        ([LAZY[LAZY[0] >= 0]], r"number of rows of a kernel is unknown; call compute_chunk_sizes\(\)"),
        (da.stack([LAZY, LAZY])[SOME], "number of rows of the array of kernels is unknown"),
        ([dask.delayed(np.eye(6))], "a kernel is a delayed value of Dask; say its shape: dask.array.from_delayed"),
        (dask.delayed(np.ones((2, 6, 6))), "the array of kernels is a delayed value"),
    ],
)
def test_what_cannot_be_read_is_refused(kernels, message):
    with pytest.raises(InputError, match=message):
        dmkl.create(None, kernels)
