"""Names of samples in containers, in coordinates and in files beside the matrix, whatever they are called."""

import itertools
import re

import numpy as np
import pandas as pd
import pytest
import scipy.io
import scipy.sparse
import xarray as xr
from helpers.containers import write_hdf5, write_mat, write_zarr

import dmkl
from dmkl.errors import InputError
from dmkl.inputs import open_files

N = 12
RNG = np.random.default_rng(11)
X = RNG.normal(size=(N, 4))
KERNEL = X @ X.T
NAMES = np.array([f"S{i:02}" for i in range(N)])
SHUFFLED = RNG.permutation(N)
LABELS = pd.Series(np.where(X[:, 0] > 0, "pat", "con"), NAMES, name="dx")
TITLES = "subject participant_id barcodes cells obs_names iid rownames subjectIDs Label_of_row".split()
WRITERS = {".npz": np.savez, ".h5": write_hdf5, ".mat": write_mat, ".zarr": write_zarr}


@pytest.fixture
def labels(tmp_path):
    """A sheet of labels in another order than the kernels."""
    LABELS.iloc[SHUFFLED].to_csv(tmp_path / "labels.csv", index_label="sample")
    return tmp_path / "labels.csv"


@pytest.mark.parametrize(("suffix", "title"), [*zip(itertools.cycle(WRITERS), TITLES)])
def test_names_of_any_title_order_the_labels(tmp_path, labels, suffix, title):
    WRITERS[suffix](tmp_path / f"set{suffix}", K=KERNEL, **{title: NAMES})
    source, known = open_files(tmp_path / f"set{suffix}", labels=labels)
    assert known.labels.tolist() == LABELS.tolist()
    assert list(known.samples) == NAMES.tolist()
    assert any(repr(title) in note and "names of the samples" in note for note in source.notes)
    assert not any("left out" in note for note in source.notes)


def test_columns_of_features_that_are_samples_are_refused(tmp_path, labels):
    np.savez(tmp_path / "x.npz", X=X.T, barcodes=NAMES)
    with pytest.raises(InputError, match=r"the columns bear the names of the samples.*--transpose"):
        dmkl.build(None, tmp_path / "x.npz", {"function": "linear"}, labels=labels)


def test_dataset_written_by_xarray(tmp_path, labels):
    dims = ("modality", "subject", "subject_2")
    coordinates = {"modality": ["mri", "pet"], "subject": NAMES, "subject_2": NAMES}
    kernels = xr.DataArray(np.stack([KERNEL, 2 * KERNEL]), coordinates, dims, name="k")
    kernels.to_dataset().to_zarr(tmp_path / "ds.zarr", zarr_format=2)
    source, known = open_files(tmp_path / "ds.zarr", labels=labels)
    in_memory = dmkl.create(None, kernels, labels=LABELS.iloc[SHUFFLED])
    assert known.labels.tolist() == in_memory.labels.tolist() == LABELS.tolist()
    assert list(source.names) == list(in_memory.names) == ["mri", "pet"]


def test_other_coordinate_of_a_dimension_holds_the_names():
    kernels = xr.DataArray(
        np.stack([KERNEL, 2 * KERNEL]),
        {"source": ("kernel", ["mri", "pet"]), "subject": ("row", NAMES), "sex": ("row", ["f", "m"] * (N // 2))},
        ("kernel", "row", "column"),
    )
    K = dmkl.create(None, kernels, labels=LABELS.iloc[SHUFFLED])
    assert K.labels.tolist() == LABELS.tolist()
    assert list(K.names) == ["mri", "pet"]


def test_several_names_that_disagree_are_refused(tmp_path, labels):
    file = tmp_path / "two.npz"
    np.savez(file, K=KERNEL, subject=NAMES, barcode=NAMES[::-1])
    with pytest.raises(InputError, match=r"'subject' and 'barcode' .*differ.*--order"):
        open_files(file, labels=labels)
    _, known = open_files(file, labels=labels, order=f"{file}:subject")
    assert known.labels.tolist() == LABELS.tolist()
    np.savez(file, K=KERNEL, scan=np.array([f"scan{i}.nii" for i in range(N)]), subject=NAMES, rows=NAMES)
    assert open_files(file, labels=labels)[1].labels.tolist() == LABELS.tolist()  # titles of names come first


def test_numbers_are_names_by_their_title_or_if_labels_bear_them(tmp_path):
    numbers = 1000 + 7 * np.arange(N)
    LABELS.set_axis(numbers).iloc[SHUFFLED].to_csv(tmp_path / "labels.csv", index_label="sample")
    for key, suffix in [("subject", ".npz"), ("run", ".npz"), ("run", ".h5"), ("run", ".mat"), ("run", ".zarr")]:
        file = tmp_path / f"{key}{suffix}"
        WRITERS[suffix](file, K=KERNEL, age=np.arange(N), **{key: numbers})
        assert open_files(file, labels=tmp_path / "labels.csv")[1].labels.tolist() == LABELS.tolist()
    assert open_files(tmp_path / "run.npz")[1].samples is None
    np.savez(tmp_path / "x.npz", X=X, run=numbers)
    K = dmkl.build(None, tmp_path / "x.npz", {"function": "linear"}, labels=tmp_path / "labels.csv")
    assert K.labels.tolist() == LABELS.tolist()


def test_individuals_of_families_in_containers(tmp_path):
    families, own = np.repeat(["F1", "F2"], N // 2), np.tile(NAMES[: N // 2], 2)
    np.savez(tmp_path / "set.npz", K=KERNEL, fid=families, iid=own)
    table = pd.DataFrame({"FID": families, "IID": own, "dx": LABELS.to_numpy()}).iloc[SHUFFLED]
    table.to_csv(tmp_path / "labels.txt", sep=" ", index=False)
    _, known = open_files(tmp_path / "set.npz", labels=tmp_path / "labels.txt")
    assert np.ravel(known.labels).tolist() == LABELS.tolist()


# --- files beside the matrix -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("file", "beside", "line"),
    [
        ("x.mibs", "x.mibs.id", "0 {}"),
        ("x.king", "x.king.id", "0 {}"),
        ("x.grm.raw", "x.grm.id", "0 {}"),
        ("x.npy", "x.fam", "0 {} 0 0 1 -9"),
        ("x.sparseGRM.mtx", "x.sparseGRM.mtx.sampleIDs.txt", "{}"),
        ("matrix.mtx", "barcodes.tsv", "{}"),
        ("x.txt", "x.psam", "{}\t1"),
    ],
)
def test_names_in_a_file_beside_the_matrix(tmp_path, labels, file, beside, line):
    if file.endswith(".npy"):
        np.save(tmp_path / file, KERNEL)
    elif file.endswith(".mtx"):
        scipy.io.mmwrite(tmp_path / file, scipy.sparse.coo_array(KERNEL))
    else:
        np.savetxt(tmp_path / file, KERNEL)
    lines = [*(["#IID\tSEX"] if file == "x.txt" else []), *map(line.format, NAMES)]
    (tmp_path / beside).write_text("\n".join(lines) + "\n")
    source, known = open_files(tmp_path / file, labels=labels)
    assert np.ravel(known.labels).tolist() == LABELS.tolist()
    assert any(re.search(rf"{re.escape(beside)} was taken for", note) for note in source.notes)
    (tmp_path / beside).write_text("\n".join(lines[:-1]) + "\n")  # as many names as rows, or none
    assert list(open_files(tmp_path / file)[1].samples or ()) == []


def test_names_of_features_beside_their_matrix(tmp_path, labels):
    np.save(tmp_path / "x.npy", X)
    np.savetxt(tmp_path / "x.txt", X)
    (tmp_path / "x.id").write_text("".join(f"{name} {name}\n" for name in NAMES))
    for file in ("x.npy", "x.txt"):
        K = dmkl.build(None, tmp_path / file, {"function": "linear"}, labels=labels)
        assert K.labels.tolist() == LABELS.tolist()
