"""AnnData and MuData, as files and in memory: the same numbers and names as from their own libraries."""

import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from helpers.annotated import anndata, cells, modalities, quietly, write
from helpers.conformance import problems
from helpers.containers import write_hdf5
from helpers.reading import imported

import dmkl
from dmkl.errors import FeatureWarning, InputError
from dmkl.inputs import as_features, open_files, read_file

# anndata uses an option of pandas 3 that pandas 4 removes.
pytestmark = pytest.mark.filterwarnings("ignore:The 'future.infer_string' option:Warning")

NAMES = [f"cell{i}" for i in range(12)]
FEATURES = {"X", "layers/scaled", "layers/by_columns", "obsm/X_pca", "obsm/scores"}
SQUARE = {"obsp/dense", "obsp/sparse", "obsp/knn_distances"}


def dense(values):
    return values.toarray() if scipy.sparse.issparse(values) else np.asarray(values)


@pytest.fixture
def data():
    return cells(NAMES)


@pytest.fixture(params=["x.h5ad", "x.zarr", "x2.zarr"], scope="module")
def path(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("annotated")
    return write(cells(NAMES), folder / request.param, 2 if "2" in request.param else 3)


@pytest.fixture
def h5ad(data, tmp_path):
    """A file for this test only."""
    return write(data, tmp_path / "x.h5ad")


def test_features_of_a_file(path, data):
    features, moved = as_features(path), as_features(path, samples=NAMES[9:2:-2])
    assert features.samples == NAMES
    assert set(features.blocks) == FEATURES | SQUARE
    assert {name: block.holds for name, block in features.blocks.items() if block.holds} == {
        "obsp/dense": "kernel",
        "obsp/sparse": "kernel",
        "obsp/knn_distances": "distances",
    }
    for name in FEATURES | SQUARE:
        part, _, key = name.partition("/")
        values = dense(getattr(data, part)[key] if key else data.X)
        for rows in (slice(0, 12), slice(3, 7), slice(11, 12), slice(5, 5)):
            np.testing.assert_array_equal(features.blocks[name].read(rows), values[rows], err_msg=name)
        np.testing.assert_array_equal(moved.blocks[name].read(slice(0, 4)), values[9:2:-2], err_msg=name)
    assert features.blocks["X"].columns == tuple(data.var_names)
    assert features.blocks["obsm/scores"].columns == ("up", "down")
    assert features.blocks["obsm/X_pca"].columns is None
    np.testing.assert_array_equal(features.labels.splits, [np.array([0, 0, 2] * 4)])
    assert features.labels.labels is None
    assert features.notes == []


def test_kernels_of_a_file(path, data, tmp_path):
    K, source = imported(path, tmp_path / "set.zarr", tile=5, labels=f"{path}:cell_type")
    assert K.names == ("dense", "sparse")
    assert list(K.samples) == NAMES
    np.testing.assert_array_equal(K.labels, data.obs["cell_type"])
    np.testing.assert_array_equal(K.splits, [np.array([0, 0, 2] * 4)])
    for j, name in enumerate(K.names):
        np.testing.assert_allclose(np.asarray(K)[j], dense(data.obsp[name]), rtol=1e-12)
    assert "obsp/knn_distances (12 × 12 float64)" in source.notes[0]


def test_columns_of_obs(path, data):
    for column in ("cell_type", "sample", "counts", "doublet"):
        table = read_file(type(path)(f"{path}:{column}"))
        assert table.row_names == tuple(NAMES)
        np.testing.assert_array_equal(table.values, np.asarray(data.obs[column]))
    np.testing.assert_array_equal(read_file(f"{path}:obs_names").values, NAMES)
    with pytest.raises(InputError, match=r"has no column 'kind' in obs; name one of 'cell_type', 'sample', .*:NAME"):
        read_file(f"{path}:kind")
    with pytest.raises(InputError, match="describes its samples in columns; name one of 'cell_type'"):
        read_file(path)
    with pytest.raises(InputError, match="there is no file"):
        read_file(f"{path}x:cell_type")


def test_an_object_is_as_its_file(data, h5ad):
    features, of_file = as_features(data), as_features(h5ad)
    assert features.samples == of_file.samples
    assert list(features.blocks)[:2] == ["X", "layers/scaled"]
    assert set(features.blocks) == FEATURES | SQUARE
    for name, block in features.blocks.items():
        assert block.columns == of_file.blocks[name].columns
        np.testing.assert_array_equal(block.read(slice(2, 9)), of_file.blocks[name].read(slice(2, 9)))
    np.testing.assert_array_equal(features.labels.splits, of_file.labels.splits)
    K = dmkl.create(None, data, labels=data.obs["cell_type"][::-1], splits=None)
    assert K.names == ("dense", "sparse")
    assert list(K.samples) == NAMES
    np.testing.assert_array_equal(K.labels, data.obs["cell_type"])
    np.testing.assert_array_equal(np.asarray(K)[0], np.maximum(data.obsp["dense"], data.obsp["dense"].T))
    with quietly():
        backed = anndata.read_h5ad(h5ad, backed="r")
    np.testing.assert_array_equal(as_features(backed).blocks["X"].read(slice(3, 8)), dense(data.X)[3:8])
    backed.file.close()


def test_labels_and_splits_of_a_build_are_files(h5ad, data):
    spec = {"function": "linear", "feature": "X"}
    K = dmkl.build(None, h5ad, spec, labels=f"{h5ad}:cell_type", splits=h5ad.with_name(f"{h5ad.name}:split"))
    np.testing.assert_array_equal(K.labels, data.obs["cell_type"])
    np.testing.assert_array_equal(K.splits, [np.array([0, 0, 2] * 4)])
    created = dmkl.create(None, data, labels=f"{h5ad}:cell_type")
    np.testing.assert_array_equal(created.labels, data.obs["cell_type"])


def test_what_no_kernel_needs_does_not_disturb(data):
    spec = {"function": "linear", "feature": "X"}
    expected = np.asarray(dmkl.build(None, data, spec))
    data.obsm["notes"] = pd.DataFrame({"text": ["none"] * 12}, index=data.obs_names)
    data.obsm["images"] = np.ones((12, 2, 2))
    data.obsm["X_umap"] = np.full((12, 2), np.nan)
    with quietly():
        data.raw = data.copy()
    np.testing.assert_array_equal(np.asarray(dmkl.build(None, data, spec)), expected)
    left_out = "obsm/notes (12 × 1 object, not numbers), obsm/images (12 × 2 × 2 float64)"
    assert as_features(data).notes == [f"the annotated data: left out {left_out}"]


@pytest.mark.parametrize("form", ["file", "memory"])
def test_x_is_taken_and_the_others_by_name(form, data, tmp_path):
    with quietly():
        whole = cells(NAMES, seed=3)
        data.raw = whole[:, ::-1][:, :5].copy()
    given = write(data, tmp_path / "x.h5ad") if form == "file" else data
    with pytest.warns(FeatureWarning, match=r"left out layers/.*, obsm/X_pca, obsm/scores, raw; name all tables"):
        assert dmkl.build(None, given, {"function": "linear"}).names == ("X-linear",)
    spec = {"function": "linear", "feature": ["raw", "obsm/X_pca"]}
    K = np.asarray(dmkl.build(None, given, spec))
    values = [dense(whole.X)[:, :0:-1], data.obsm["X_pca"]]
    np.testing.assert_allclose(K, [Z @ Z.T for Z in values], rtol=1e-6)
    gene = dmkl.build(None, given, {"function": "linear", "feature": "raw", "columns": ["gene5"]})
    np.testing.assert_allclose(np.asarray(gene)[0], np.outer(values[0][:, 0], values[0][:, 0]))
    del data.X, data.raw
    given = write(data, tmp_path / "without.h5ad") if form == "file" else data
    with pytest.warns(FeatureWarning, match="left out obsm/X_pca, obsm/scores; name"):
        K = dmkl.build(None, given, {"function": "linear"})
    assert set(K.names) == {"layers/scaled-linear", "layers/by_columns-linear"}


@pytest.mark.parametrize("form", ["file", "memory"])
def test_kernels_and_distances_of_obsp_beside_kernels_of_features(form, data, tmp_path):
    given = write(data, tmp_path / "x.h5ad") if form == "file" else data
    specs = [{"function": "linear", "feature": "layers/*"}, {"function": "precomputed"}, {"function": "distance"}]
    order = NAMES[::-1]
    K = dmkl.build(tmp_path / "k.zarr", given, specs, samples=order, labels=data.obs["cell_type"])
    assert not problems(tmp_path / "k.zarr")
    assert set(K.names[:2]) == {"layers/scaled-linear", "layers/by_columns-linear"}
    assert K.names[2:] == ("obsp/dense-precomputed", "obsp/sparse-precomputed", "obsp/knn_distances-distance")
    values = np.asarray(K)
    np.testing.assert_array_equal(values[2], data.obsp["dense"][::-1, ::-1])
    np.testing.assert_array_equal(values[3], dense(data.obsp["sparse"])[::-1, ::-1])
    np.testing.assert_allclose(values[4], np.exp(-dense(data.obsp["knn_distances"])), rtol=1e-6)
    with pytest.raises(InputError, match="given as 'obsp/dense', so kernels of new samples cannot be"):
        dmkl.build_cross(K.select(["obsp/dense-precomputed"]), given)


def test_a_precomputed_kernel_is_square_and_symmetric(data, tmp_path):
    tables = {"a": np.ones((4, 2)), "K": np.arange(16.0).reshape(4, 4)}
    with pytest.raises(InputError, match="the kernel values 'K' are not symmetric: entry"):
        dmkl.build(tmp_path / "k.zarr", tables, [{"function": "precomputed"}])
    with pytest.raises(InputError, match=r"precomputed needs a square matrix of kernel values .* 'a' has the shape"):
        dmkl.build(None, tables, [{"function": "precomputed", "feature": "a"}])
    del data.X, data.layers, data.obsm
    with pytest.raises(InputError, match=r"no tables of features, but dense, sparse, .* the function precomputed"):
        dmkl.build(None, data, [{"function": "rbf"}])
    del data.obsp
    with pytest.raises(InputError, match="no kernels in obsp of this annotated data; compute some of its features"):
        dmkl.create(None, data)


# --- several modalities -----------------------------------------------------------------------------------------------
FIRST, SECOND = NAMES[:10], NAMES[11:2:-1]


@pytest.mark.parametrize("form", ["m.h5mu", "m.zarr", "memory"])
def test_modalities_are_joined_by_name(form, tmp_path):
    data = modalities(FIRST, SECOND)
    given = data if form == "memory" else write(data, tmp_path / form)
    with pytest.raises(InputError, match="all sources must have the same samples"):
        as_features(given)
    features = as_features(given, join="inner")
    assert set(features.blocks) == {f"{part}/{name}" for part in ("rna", "protein") for name in FEATURES | SQUARE}
    assert set(features.samples) == set(FIRST) & set(SECOND)
    for part in ("rna", "protein"):
        frame = data.mod[part].to_df()
        np.testing.assert_array_equal(features.blocks[f"{part}/X"].read(slice(0, 7)), frame.loc[features.samples])


def test_kernels_and_columns_of_modalities(tmp_path):
    data = modalities(FIRST, SECOND)
    path = write(data, tmp_path / "m.h5mu")
    table = read_file(path.with_name("m.h5mu:rna:cell_type"))
    assert table.row_names == tuple(FIRST)
    np.testing.assert_array_equal(table.values, data["rna"].obs["cell_type"])
    source, _ = open_files(path, join="inner")
    K = dmkl.create(None, data, join="inner")
    assert (
        set(K.names) == set(source.names) == {f"{p}/obsp/{n}" for p in ("rna", "protein") for n in ("dense", "sparse")}
    )
    frame = pd.DataFrame(data["protein"].obsp["dense"], SECOND, SECOND).loc[K.samples, K.samples]
    np.testing.assert_allclose(np.asarray(K.select(["protein/obsp/dense"]))[0], frame, rtol=1e-12)


# --- refusals ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("part", "value"), [("indices", 99), ("indptr", -5), ("indptr", 10**9)])
def test_damaged_sparse_matrices(h5ad, part, value):
    with h5py.File(h5ad, "r+") as file:
        file["X"][part][3] = value
    block = as_features(h5ad).blocks["X"]
    with pytest.raises(InputError, match=r"'X' of .* is damaged"):
        block.read(slice(0, 12))


@pytest.mark.parametrize("node", ["obsp/linked", "obs/_index"])
def test_links_to_other_files_are_not_followed(h5ad, tmp_path, node):
    write_hdf5(tmp_path / "other.h5", secret=np.eye(12))
    with h5py.File(h5ad, "r+") as file:
        file.pop(node, None)
        file[node] = h5py.ExternalLink(str(tmp_path / "other.h5"), "secret")
    for read in (open_files, as_features):
        with pytest.raises(InputError, match="keeps its values in other files"):
            read(h5ad)


def test_rows_are_as_many_as_samples(h5ad):
    with h5py.File(h5ad, "r+") as file:
        del file["layers/scaled"]
        file["layers/scaled"] = np.ones((5, 6))
    with pytest.raises(InputError, match="damaged: layers/scaled has 5 rows, and obs names 12 samples"):
        as_features(h5ad)
