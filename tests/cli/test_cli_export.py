"""`dmkl export`: files are read back unchanged; predictions in several formats."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from helpers.damage import flip

import dmkl
from dmkl.errors import InputError, StoreError
from dmkl.outputs import write_kernel


@pytest.fixture(scope="module")
def weighted(store, model):
    return dmkl.load(model).combined_kernel(dmkl.open(store)).compute()


def test_npy_and_zarr(error_of, json_of, output_of, tmp_path, store, model, weighted):
    export, estimator, K = ("export", model, store), dmkl.load(model), dmkl.open(store)
    assert "The weighted kernel of 45 × 45 samples" in output_of(*export, tmp_path / "k.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "k.npy"), weighted.values)
    assert json_of(*export, tmp_path / "k.zarr")["shape"] == [45, 45]
    with xr.open_zarr(tmp_path / "k.zarr") as opened:
        np.testing.assert_array_equal(opened["combined"].values, weighted.values)
        assert opened["sample_2"].values.tolist() == weighted["sample"].values.tolist()
    output_of(*export, tmp_path / "k.csv")
    table = pd.read_csv(tmp_path / "k.csv", index_col="sample", dtype=str).astype(np.float64)  # as exact as float()
    np.testing.assert_array_equal(table, weighted.values)
    assert list(table.index) == list(table.columns) == list(weighted["sample"].values)
    assert "k.npy exists already" in error_of(*export, tmp_path / "k.npy")
    output_of(*export, tmp_path / "k.zarr", "--overwrite")
    printed = json_of(*export, tmp_path / "weights.csv", "--weights")
    assert (printed["dims"], printed["out"]) == (["kernel"], str(tmp_path / "weights.csv"))
    of_kernels = pd.read_csv(tmp_path / "weights.csv", index_col="kernel")["weight"]
    np.testing.assert_allclose(of_kernels[list(K.names)], estimator.weights_, rtol=1e-8)
    output_of(*export, tmp_path / "rows.npy", "--rows", "40:,3")  # columns: the training samples
    expected = estimator.combined_kernel(K[[40, 41, 42, 43, 44, 3], K.split(0).train]).values
    np.testing.assert_array_equal(np.load(tmp_path / "rows.npy"), expected)


def test_a_relationship_matrix_reads_back_as_a_kernel(error_of, output_of, tmp_path, store, model, weighted):
    output_of("export", model, store, tmp_path / "k.grm.bin")
    output_of("import", tmp_path / "k.zarr", tmp_path / "k.grm.bin")
    back = dmkl.open(tmp_path / "k.zarr")
    assert back.samples.tolist() == weighted["sample"].values.tolist()
    np.testing.assert_array_equal(np.asarray(back)[0], weighted.values.astype(np.float32))
    assert np.fromfile(tmp_path / "k.grm.N.bin", "<f4").tolist() == [1.0] * (45 * 46 // 2)
    assert "k.grm.id exists already" in error_of("export", model, store, tmp_path / "k.grm.bin")
    spaced = weighted.assign_coords(sample=[f"s {i}" for i in range(45)])
    with pytest.raises(InputError, match="one sample is called 's 0'; give it another name"):
        write_kernel(tmp_path / "other.grm.bin", spaced)


@pytest.mark.filterwarnings("ignore:The .future.infer_string. option")  # anndata sets this option
def test_anndata_by_the_names_of_observations(output_of, tmp_path, store, model, weighted):
    anndata = pytest.importorskip("anndata")
    names = [*weighted["sample"].values[::-1], "new"]
    cells = anndata.AnnData(np.ones((46, 2), dtype=np.float32), obs=pd.DataFrame(index=names))
    with anndata.settings.override(allow_write_nullable_strings=True):
        cells.write_h5ad(tmp_path / "cells.h5ad")
    both = tmp_path / "both.h5ad"
    output_of("export", model, store, both, "--anndata", tmp_path / "cells.h5ad", "--key", "weighted")
    expected = np.pad(weighted.values[::-1, ::-1], (0, 1), constant_values=np.nan)
    np.testing.assert_array_equal(anndata.read_h5ad(both).obsp["weighted"], expected)
    predict = ("predict", model, store, "--rows", "40:45", "--anndata", both)
    out = output_of(*predict)
    assert "Scores are in obsm['dmkl'], and more in obs['predicted'], obs['confidence'], uns['dmkl_classes']" in out
    estimator, K = dmkl.load(model), dmkl.open(store)
    scores = estimator.decision_function(K[40:45, K.split(0).train])
    data = anndata.read_h5ad(both)
    np.testing.assert_allclose(data.obsm["dmkl"].loc[scores["sample"].values], scores)
    largest = estimator.probabilities_of(scores).max("class")
    limit = float(np.median(largest))
    output_of(*predict, "--overwrite", "--unassigned-below", limit)
    predicted = anndata.read_h5ad(both).obs["predicted"].loc[scores["sample"].values]
    assert (predicted == "unassigned").tolist() == (largest < limit).values.tolist()


def test_coordinates_as_csv_parquet_and_zarr(output_of, tmp_path, store, model):
    expected = dmkl.load(model).kernel_pca(dmkl.open(store), 3)
    for name in ("c.csv", "c.parquet", "c.zarr"):
        text = output_of("transform", model, store, "--out", tmp_path / name, "--components", 3)
    assert "3 coordinates of 45 samples" in text
    drawn = tmp_path / "c.png"
    output_of("transform", model, store, "--out", tmp_path / "two.csv", "--plot", drawn)
    assert drawn.read_bytes().startswith(b"\x89PNG")
    csv, parquet = pd.read_csv(tmp_path / "c.csv"), pd.read_parquet(tmp_path / "c.parquet")
    assert csv.columns.tolist() == parquet.columns.tolist() == ["sample", *(f"component {k}" for k in (1, 2, 3))]
    np.testing.assert_allclose(csv.iloc[:, 1:], expected.values, rtol=1e-8)
    np.testing.assert_array_equal(parquet.iloc[:, 1:], expected.values)
    with xr.open_zarr(tmp_path / "c.zarr") as opened:
        np.testing.assert_array_equal(opened["principal"].values, expected.values)
    output_of("transform", model, store, "--out", tmp_path / "some.csv", "--components", 1, "--rows", "7")
    # The command of earlier versions.
    assert "coordinate of 1 sample" in output_of(
        "export", model, store, tmp_path / "former.csv", "--coordinates", 1, "--rows", "7"
    )
    assert (tmp_path / "former.csv").read_text() == (tmp_path / "some.csv").read_text()
    some = pd.read_csv(tmp_path / "some.csv")
    assert some["sample"].tolist() == ["s07"]
    np.testing.assert_allclose(some["component 1"], expected.values[7, 0], rtol=1e-8)


def test_coordinates_of_new_samples_by_their_features(error_of, output_of, tmp_path):
    x = np.random.default_rng(0).normal(size=(40, 3)) + np.arange(40)[:, None] % 2
    built = dmkl.build(tmp_path / "built.zarr", {"x": x[:30]}, {"function": "linear"}, labels=np.arange(30) % 2)
    dmkl.MKFDA(lam=0.1).fit(built).save(tmp_path / "m")
    np.savez(tmp_path / "new.npz", x=x[30:])
    transform = ("transform", tmp_path / "m", "--out", tmp_path / "new.csv")
    assert "2 coordinates of 10 samples" in output_of(*transform, "--features", tmp_path / "new.npz")
    everything = dmkl.build(None, {"x": x}, {"function": "linear"})
    expected = dmkl.load(tmp_path / "m").kernel_pca(everything)[30:]
    np.testing.assert_allclose(pd.read_csv(tmp_path / "new.csv").iloc[:, 1:], expected, rtol=1e-6, atol=1e-9)
    assert "samples come from either STORE or --features FILE" in error_of(*transform, "--overwrite")


def test_a_class_of_several(error_of, output_of, tmp_path, store):
    output_of("fit", store, tmp_path / "m", "--model", "mksvm", "--split", 0)
    export = ("export", tmp_path / "m", store, tmp_path / "k.npy")
    assert "k.npy holds one matrix, and there is one for each class; choose one (--of)" in error_of(*export)
    assert "--of takes one of apple, pear, plum; got 'fig'" in error_of(*export, "--of", "fig")
    output_of(*export, "--of", "pear")
    expected = dmkl.load(tmp_path / "m").combined_kernel(dmkl.open(store))
    np.testing.assert_array_equal(np.load(tmp_path / "k.npy"), expected.sel({"class": "pear"}).values)


# --- predictions -----------------------------------------------------------------------------------------------------
def test_contributions_to_a_file(output_of, tmp_path, store, model):
    estimator, K = dmkl.load(model), dmkl.open(store)
    expected = estimator.contributions(K[[2, 40], K.split(0).train])
    command = ("predict", model, store, "--rows", "2,40", "--contributions")
    output_of(*command, tmp_path / "c.csv")
    table = pd.read_csv(tmp_path / "c.csv")
    assert table.columns.tolist() == ["sample", "class", *estimator.kernel_names_]
    assert table["sample"].tolist() == ["s02"] * 3 + ["s40"] * 3
    np.testing.assert_allclose(table.iloc[:, 2:].values.reshape(2, 3, -1), expected.transpose(..., "kernel"), rtol=1e-8)


def test_rows_by_position_name_and_mask(output_of, tmp_path, store, model):
    mask = np.zeros(45, dtype=int)
    mask[[4, 41]] = 1
    np.savetxt(tmp_path / "mask.txt", mask, fmt="%d")
    (tmp_path / "names.txt").write_text("s41\ns04\n")
    wanted = {"4,41": [4, 41], ":2,44": [0, 1, 44], "mask.txt": [4, 41], "names.txt": [41, 4]}
    for number, (text, rows) in enumerate(wanted.items()):
        given = tmp_path / text if text.endswith(".txt") else text
        out = tmp_path / f"{number}.csv"
        output_of("predict", model, store, "--rows", given, "--out", out)
        assert pd.read_csv(out)["sample"].tolist() == [f"s{k:02}" for k in rows]


def test_what_messages_about_splits_advise(error_of, output_of, tmp_path, plain):
    """Each command that a message suggests succeeds."""
    output_of("fit", plain, tmp_path / "model", "--all")
    command = ("predict", tmp_path / "model", plain)
    err = error_of(*command)
    assert "trained on all 45 samples of this set, and there are no others to predict" in err
    assert "give a set or --features of new samples, or choose samples with --rows FILE or 0,5,10:20" in err
    output_of(*command, "--rows", "0,5,10:20")
    words = "there is no split 0: this set has no splits; leave out --split, or choose samples by --rows"
    assert words in error_of(*command, "--split", 0)


# --- info and check of exported files --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "command", "kind", "variable", "sizes"),
    [
        ("k.zarr", "export", "weighted kernel", "combined", {"sample": 45, "sample_2": 45}),
        ("p.zarr", "predict", "table", "score", {"sample": 5, "class": 3}),
    ],
)
def test_info_and_check_know_what_was_exported(
    run, json_of, output_of, tmp_path, store, model, name, command, kind, variable, sizes
):
    path = tmp_path / name
    output_of(command, model, store, *(["--rows", "0:5", "--out"] if command == "predict" else []), path)
    printed = json_of("info", path)
    assert (printed["kind"], printed["sizes"], printed["checksums"]) == (kind, sizes, True)
    assert kind in output_of("info", path)
    assert f"a {kind}, " in output_of("check", path, "--strict")
    with pytest.raises(StoreError, match=f"it is a {kind}, open it with xarray.open_zarr"):
        dmkl.load(path)

    flip(path / variable / "c" / "0" / "0", 20)
    status, _, err = run("check", path)
    assert status == 1
    assert f"{variable} is damaged in chunk 0/0" in err
