"""`dmkl analyze`: tables, files, errors."""

import numpy as np
import pytest
import xarray as xr

import dmkl

PICTURES = {"alignment.png", "spectra.png", "targets.png"}


@pytest.mark.filterwarnings("ignore:.*netcdf_file:RuntimeWarning")
def test_tables_and_files(error_of, output_of, store, tmp_path):
    folder, pictures = tmp_path / "result", tmp_path / "pictures"
    command = ("analyze", store, "--output", folder, "--plot", pictures)
    expected = dmkl.analyze(dmkl.open(store))
    out = output_of(*command, "--all")
    for name, alignment in zip(expected.names, expected.data.target_alignment.values, strict=True):
        assert f"{name} " in out
        assert f"{alignment:#.3g} " in out
    assert f"{expected.data.alignment.values[0, 1]:#.3g}" in out
    assert expected.summary().split("\n")[0] in out
    assert "Analyzed 45 samples (all)" in out
    assert [file.name for file in folder.iterdir()] == ["analysis.nc"]
    assert {file.name for file in pictures.iterdir()} == PICTURES
    xr.testing.assert_allclose(xr.load_dataset(folder / "analysis.nc", engine="scipy"), expected.data)

    before, other = (folder / "analysis.nc").read_bytes(), ("--steps", "none", "--no-targets")
    words = "analysis.nc exists already; choose another folder, or replace it with --overwrite"
    assert words in error_of(*command, *other)
    assert (folder / "analysis.nc").read_bytes() == before
    assert "alignment.png exists already" in error_of("analyze", store, "--plot", pictures)
    (pictures / "notes.txt").write_text("mine")
    output_of(*command, *other, "--overwrite")
    assert (folder / "analysis.nc").read_bytes() != before
    # Pictures of the replaced analysis are removed; files of the user remain.
    assert {file.name for file in pictures.iterdir()} == PICTURES - {"targets.png"} | {"notes.txt"}


def test_json_and_options(json_of, output_of, store):
    """Training samples of the split by default; steps, kernels and probes by options."""
    K = dmkl.open(store)
    train = K.split(0).train
    printed, expected = json_of("analyze", store), dmkl.analyze(K[train, train])
    np.testing.assert_allclose(printed["alignment"], expected.data.alignment, atol=1e-12)
    assert printed["n_samples"] == len(train)
    assert [kernel["name"] for kernel in printed["kernels"]] == ["clear", "fair", "poor", "noise"]
    np.testing.assert_allclose([k["eigenvalue"] for k in printed["kernels"]], expected.data.eigenvalue, atol=1e-9)

    options = ("--steps", "cosine", "--kernels", "noise,clear", "--probes", "40", "--seed", "3", "--all")
    command = ("analyze", store, *options, "--eigenvalues", "5", "--no-targets")
    printed, seen = json_of(*command), K.select(["noise", "clear"]).normalize("cosine")
    expected = dmkl.analyze(seen, steps=(), probes=40, seed=3, n_eigenvalues=5, targets=False)
    np.testing.assert_allclose(printed["alignment"], expected.data.alignment, atol=1e-12)
    np.testing.assert_allclose(printed["alignment_error"], expected.data.alignment_error, atol=1e-12)
    assert "target_alignment" not in printed["kernels"][0]
    assert len(printed["kernels"][0]["eigenvalue"]) == 5
    assert "estimate from 50 random probes" in output_of("analyze", store, "--probes", "50")


def test_many_kernels_are_told_by_pairs(output_of, tmp_path):
    features = np.random.default_rng(0).standard_normal((13, 30, 4))
    dmkl.create(tmp_path / "many.zarr", features @ features.transpose(0, 2, 1))
    assert "Most similar pairs" in output_of("analyze", tmp_path / "many.zarr", "--plot", tmp_path / "map.svg")
    assert b"<svg" in (tmp_path / "map.svg").read_bytes()


def test_relevant_dimensions(output_of, error_of, store):
    out = output_of("analyze", store, "--all", "--relevant-dimension")
    data = dmkl.analyze(dmkl.open(store)).data
    assert "label noise  relevant dimension" in out
    assert f"{data.label_noise.values[0]:.3g} " in out
    words = "--relevant-dimension needs stored labels and steps with center"
    assert words in error_of("analyze", store, "--relevant-dimension", "--no-targets")
