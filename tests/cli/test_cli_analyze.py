"""`dmkl analyze`: tables, files, what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
import xarray as xr

import dmkl

pytest_plugins = ["helpers.command_line"]

FILES = {"analysis.nc", "alignment.png", "spectra.png", "targets.png"}


@pytest.fixture
def analyze(run, store):
    """Run the command on threads; status, output, errors."""
    return lambda *more: run("analyze", store, "--cluster", "threads", *more)


def test_it_explains_itself(run):
    status, out, _ = run("analyze", "--help")
    assert status == 0
    assert "dmkl analyze kernels.zarr" in out.split("Examples")[1]


@pytest.mark.filterwarnings("ignore:.*netcdf_file:RuntimeWarning")
def test_tables_and_files(analyze, store, tmp_path):
    status, out, _ = analyze("--all", "--output", tmp_path / "found")
    assert status == 0
    expected = dmkl.analyze(dmkl.open(store))
    for j, name in enumerate(expected.names):
        assert f"{name} " in out
        assert f"{expected.data.target_alignment.values[j]:.3f} " in out
    assert "Alignments" in out
    assert f"{expected.data.alignment.values[0, 1]:.3f}" in out
    assert expected.summary().split("\n")[0] in out
    assert "Analyzed 45 samples (all)" in out
    assert f"Written to {tmp_path / 'found'}: analysis.nc, alignment.png, spectra.png, targets.png." in out
    assert {file.name for file in (tmp_path / "found").iterdir()} == FILES
    read = xr.load_dataset(tmp_path / "found" / "analysis.nc", engine="scipy")
    xr.testing.assert_allclose(read, expected.data)
    for file in FILES - {"analysis.nc"}:
        assert (tmp_path / "found" / file).read_bytes().startswith(b"\x89PNG")


def test_json_and_options(analyze, store):
    """Training samples of the split by default; steps, kernels and probes as they are asked for."""
    K = dmkl.open(store)
    train = K.split(0).train
    status, out, _ = analyze("--json")
    assert status == 0
    found = json.loads(out)
    expected = dmkl.analyze(K[train, train])
    np.testing.assert_allclose(found["alignment"], expected.data.alignment, atol=1e-12)
    assert found["n_samples"] == len(train)
    assert found["alignment_error"] is None
    assert found["tasks"] is None
    assert [kernel["name"] for kernel in found["kernels"]] == ["clear", "fair", "poor", "noise"]
    np.testing.assert_allclose([k["eigenvalue"] for k in found["kernels"]], expected.data.eigenvalue, atol=1e-9)

    options = ("--steps", "cosine", "--kernels", "noise,clear", "--probes", "40", "--seed", "3", "--all")
    status, out, _ = analyze("--json", *options, "--eigenvalues", "5", "--no-targets")
    found = json.loads(out)
    seen = K.select(["noise", "clear"]).normalize("cosine")
    expected = dmkl.analyze(seen, steps=(), probes=40, seed=3, n_eigenvalues=5, targets=False)
    np.testing.assert_allclose(found["alignment"], expected.data.alignment, atol=1e-12)
    np.testing.assert_allclose(found["alignment_error"], expected.data.alignment_error, atol=1e-12)
    assert found["n_passes"] == expected.n_passes_
    assert "target_alignment" not in found["kernels"][0]
    assert len(found["kernels"][0]["eigenvalue"]) == 5


def test_estimates_are_told_with_their_errors(analyze):
    status, out, _ = analyze("--probes", "50")
    assert status == 0
    assert "estimate from 50 random probes" in out
    assert " ± " in out


def test_many_kernels_are_told_by_pairs(run, tmp_path):
    rng = np.random.default_rng(0)
    features = rng.standard_normal((13, 30, 4))
    dmkl.create(tmp_path / "many.zarr", features @ features.transpose(0, 2, 1))
    status, out, _ = run("analyze", tmp_path / "many.zarr", "--cluster", "threads")
    assert status == 0
    assert "Most similar pairs" in out
    assert "fit to labels" not in out
    status, _, _ = run("analyze", tmp_path / "many.zarr", "--cluster", "threads", "--output", tmp_path / "out")
    assert status == 0
    assert {file.name for file in (tmp_path / "out").iterdir()} == FILES - {"targets.png"}


def test_files_are_replaced_only_when_asked(analyze, tmp_path):
    folder = tmp_path / "out"
    assert analyze("--output", folder)[0] == 0
    before = (folder / "analysis.nc").read_bytes()
    status, out, err = analyze("--output", folder, "--steps", "none", "--no-targets")
    assert (status, out) == (1, "")
    assert "analysis.nc exists already; choose another folder, or replace it with --overwrite" in err
    assert (folder / "analysis.nc").read_bytes() == before
    (folder / "notes.txt").write_text("mine")
    assert analyze("--output", folder, "--steps", "none", "--no-targets", "--overwrite")[0] == 0
    assert (folder / "analysis.nc").read_bytes() != before
    # Pictures of the analysis that was replaced are gone, what is somebody's own is not.
    assert {file.name for file in folder.iterdir()} == FILES - {"targets.png"} | {"notes.txt"}


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--probes", "2"], 2, "--probes"),
        (["--threshold", "1.5"], 1, "threshold is an alignment above 0 and up to 1, got 1.5"),
        (["--kernels", "clear,blue"], 1, "there is no kernel named 'blue'"),
        (["--split", "0", "--all"], 1, "exclude one another"),
    ],
)
def test_what_is_wrong_is_told(analyze, arguments, status, message):
    found, out, err = analyze(*arguments)
    assert (found, out) == (status, "")
    assert message in err
