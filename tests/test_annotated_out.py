"""Kernels and scores in annotated data files, read by anndata and mudata."""

import numpy as np
import pytest
import xarray as xr
from helpers.annotated import anndata, cells, modalities, mudata, quietly, write

from dmkl.errors import InputError
from dmkl.outputs import into_annotated

# anndata sets an option of pandas 3 that pandas 4 removes, and the Zarr 3 format has no consolidated metadata yet.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The 'future.infer_string' option:Warning"),
    pytest.mark.filterwarnings("ignore:Consolidated metadata:UserWarning"),
]

NAMES = [f"cell{i}" for i in range(9)]
KNOWN = NAMES[7:1:-1]
K = xr.DataArray(np.arange(36.0).reshape(6, 6), dims=("sample", "train_sample"), coords=[KNOWN, KNOWN])
CLASSES = xr.DataArray(np.array(["a/b", "c"], dtype=object))
LABELS = xr.DataArray(["a/b", "c", "c", "unassigned", "c", "a/b"], dims="sample", coords=[KNOWN])
SCORES = xr.DataArray(np.arange(12.0).reshape(6, 2), dims=("sample", "class"), coords=[KNOWN, ["B", "T"]])


def read(path):
    with quietly():
        if path.suffix == ".zarr":
            return anndata.read_zarr(path)
        return mudata.read_h5mu(path) if path.suffix == ".h5mu" else anndata.read_h5ad(path)


def expected(array):
    """The values by name, NaN for missing names."""
    frame = array.to_pandas()
    return frame.reindex(index=NAMES, columns=NAMES if array is K else frame.columns)


@pytest.mark.parametrize("form", ["x.h5ad", "x.zarr", "m.h5mu", "memory"])
def test_kernels_and_scores_stand_with_their_samples(form, tmp_path):
    data = modalities(NAMES, NAMES) if form == "m.h5mu" else cells(NAMES)
    target = data if form == "memory" else write(data, tmp_path / form)
    with quietly():
        into_annotated(
            target,
            kernels={"combined": K},
            scores={"scores": SCORES, "one": SCORES[:, 0], "paths": SCORES.assign_coords({"class": ["a/b", "c"]})},
            more={"obs/predicted": LABELS, "obs/confidence": SCORES[:, 0], "uns/classes": CLASSES},
            overwrite=True,
        )
    result = data if form == "memory" else read(target)
    np.testing.assert_array_equal(result.obsp["combined"], expected(K))
    scores = result.obsm["scores"]
    assert (list(scores.index), list(scores.columns)) == (NAMES, ["B", "T"])
    np.testing.assert_array_equal(scores, expected(SCORES))
    np.testing.assert_array_equal(result.obsm["one"], expected(SCORES)[["B"]])
    np.testing.assert_array_equal(result.obsm["paths"], expected(SCORES))
    assert list(result.uns["classes"]) == ["a/b", "c"]
    assert list(result.obs["predicted"].astype(object).dropna()) == list(LABELS[::-1].values)
    assert result.obs["predicted"].isna().sum() == len(NAMES) - len(KNOWN)
    np.testing.assert_array_equal(result.obs["confidence"], expected(SCORES)["B"])
    if form != "m.h5mu":
        np.testing.assert_array_equal(result.obsp["dense"], data.obsp["dense"])
        assert list(result.obs["cell_type"]) == list(data.obs["cell_type"])
    assert [entry.name for entry in tmp_path.iterdir()] == ([] if form == "memory" else [form])


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"kernels": {"combined": K.drop_vars("sample")}}, "dimension 'sample' has no names of samples"),
        (
            {"scores": {"new": SCORES.assign_coords(sample=[*KNOWN[1:], "?"])}},
            r"of the 6 samples 1 are no obs_names.*'\?'",
        ),
        ({"kernels": {"rna/combined": K}}, "names in AnnData have no slash, got 'rna/combined'; choose another name"),
        ({"kernels": {"combined": K, "dense": K}}, "obsp/dense exists already; choose another name, or overwrite"),
    ],
)
def test_what_does_not_fit_changes_nothing(more, message, tmp_path):
    path = write(cells(NAMES), tmp_path / "x.h5ad")
    before = path.read_bytes()
    with pytest.raises(InputError, match=message):
        into_annotated(path, **more)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(InputError, match="there is no file"):
        into_annotated(tmp_path / "none.h5ad", **more)
