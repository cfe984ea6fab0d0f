"""Files as other programs write them: 10x Genomics, compressed files, tables of LIBSVM, Oxford and QIIME, NetCDF."""

import gzip
import io
import re
import shutil

import dask
import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.io
import scipy.sparse
import xarray as xr
import zarr
from helpers.containers import write_10x, write_hdf5
from helpers.fuzzing.mutations import PACKERS
from helpers.reading import kernels_in
from sklearn.datasets import dump_svmlight_file

import dmkl
from dmkl.errors import InputError, MemoryBudgetError
from dmkl.inputs import as_features, open_files, read_covariates, read_file

RNG = np.random.default_rng(5)
CELLS, GENES = [f"AC{i}-1" for i in range(6)], ["g0", "g1", "g2", "g3"]
X = RNG.poisson(2, size=(6, 4)).astype(float)
K = X @ X.T + np.eye(6)
Y = np.array([1, -1, -1, 1, -1, 1])


def features(source, **how):
    """The tables of a source as data frames, and the notes."""
    taken = as_features(source, **how)
    rows = slice(0, len(taken.samples)) if taken.samples else slice(0, None)
    return {
        name: pd.DataFrame(block.read(rows), taken.samples, block.columns) for name, block in taken.blocks.items()
    }, taken.notes


COUNTS = pd.DataFrame(X, CELLS, GENES)
PACK = [(end, pack) for end, (_, pack, _) in PACKERS.items()]


@pytest.mark.parametrize("version", [2, 3])
def test_files_and_folders_of_10x_are_cells_by_genes(tmp_path, version):
    folder, file_of_all = tmp_path / "filtered", tmp_path / "x.h5"
    for path in (folder, file_of_all):
        write_10x(path, X.T, CELLS, GENES, version)
    for file in list(folder.iterdir()) if version == 3 else ():
        (folder / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    for path, name in ((folder, "filtered"), (file_of_all, "matrix" if version == 3 else "GRCh38")):
        frames, notes = features(path)
        pd.testing.assert_frame_equal(frames[name], COUNTS)
        assert "genes × cells, as 10x Genomics writes them, were transposed" in notes[0]
    matrix = next(file for file in folder.iterdir() if "matrix" in file.name)
    pd.testing.assert_frame_equal(features(matrix)[0]["matrix"], COUNTS)
    with pytest.raises(InputError, match=r"there are no kernels in .*dmkl build"):
        open_files(folder)


def test_genes_of_10x_whose_symbols_repeat_are_called_by_their_identifiers(tmp_path):
    write_10x(tmp_path / "a", X.T, CELLS, ["A", "B", "B", "C"])
    for file in list((tmp_path / "a").iterdir()):
        file.rename(file.with_name(f"GSM1_{file.name}"))
    assert list(features(tmp_path / "a")[0]["a"]) == ["E0", "E1", "E2", "E3"]


@pytest.mark.parametrize(("end", "pack"), PACK)
def test_compressed_files_are_read_as_their_content(tmp_path, end, pack):
    scipy.io.savemat(tmp_path / "m.mat", {"K": K, "samples": np.array(CELLS, object)})
    scipy.io.mmwrite(tmp_path / "s.mtx", scipy.sparse.csr_matrix(K))
    np.save(tmp_path / "n.npy", K)
    pd.DataFrame(K, CELLS, CELLS).to_csv(tmp_path / "t.csv")
    for file in list(tmp_path.iterdir()):
        packed = tmp_path / f"{file.name}{end}"
        packed.write_bytes(pack(file.read_bytes()))
        file.unlink()
        matrices, _, labels = kernels_in(packed)
        np.testing.assert_allclose(matrices, [K])
        assert labels.samples == (tuple(CELLS) if file.suffix in (".mat", ".csv") else None)
        packed.write_bytes(pack(b"1,2\n" * 1000)[:-9])
        with pytest.raises(InputError, match=rf"{packed.name} is not a whole \{end} file"):
            kernels_in(packed)
        packed.write_bytes(pack(b"damaged"))
        with pytest.raises(InputError, match=re.escape(str(packed))) as caught:
            kernels_in(packed)
        assert "dmkl-unpacked" not in str(caught.value)
    phenotypes = "".join(f"{c} {c} {i}.5\n" for i, c in enumerate(CELLS))
    (tmp_path / f"y.pheno{end}").write_bytes(pack(phenotypes.encode()))
    labels = read_file(tmp_path / f"y.pheno{end}")
    assert (labels.row_names, labels.values[1]) == (tuple(CELLS), 1.5)


@pytest.mark.parametrize(("end", "pack"), PACK)
def test_files_that_unpack_beyond_memory_are_refused(tmp_path, end, pack):
    for name in ("k.npy", "k.mtx", *(["k.csv"] if end == ".zst" else [])):  # other text is read a line at a time
        (tmp_path / f"{name}{end}").write_bytes(pack(b" " * 2**22))
        with dask.config.set({"dmkl.memory": "2MiB"}), pytest.raises(MemoryBudgetError, match=rf"{name}\{end}"):
            kernels_in(tmp_path / f"{name}{end}")


@pytest.mark.parametrize("name", ["x.svm", "x.txt", "x.libsvm.gz", "a9a"])
def test_sparse_features_of_libsvm_have_their_labels(tmp_path, name):
    text = io.BytesIO()
    dump_svmlight_file(X, Y, text, zero_based=False)
    (tmp_path / name).write_bytes(gzip.compress(text.getvalue()) if name.endswith(".gz") else text.getvalue())
    taken = as_features(tmp_path / name)
    (block,) = taken.blocks.values()
    np.testing.assert_array_equal(block.read(slice(0, 6)), X)
    np.testing.assert_array_equal(taken.labels.labels, Y)
    np.testing.assert_array_equal(read_file(tmp_path / name).values, Y)
    with pytest.raises(InputError, match="there are no kernels in"):
        open_files(tmp_path / name)


def test_labels_of_several_classes_in_libsvm_are_tasks(tmp_path):
    (tmp_path / "y.svm").write_text("1,3 1:0.5\n3 2:1\n1 1:2 2:1\n")
    labels = read_file(tmp_path / "y.svm")
    assert (labels.values.tolist(), labels.columns) == ([[1, 1], [0, 1], [1, 0]], ("1", "3"))


@pytest.mark.parametrize("order", [range(6), [3, 0, 5, 1, 2, 4]])
def test_precomputed_kernels_of_libsvm_are_in_the_order_of_their_numbers(tmp_path, order):
    rows = (f"{Y[i]} 0:{i + 1} " + " ".join(f"{k + 1}:{K[i, k]:g}" for k in range(6)) for i in order)
    (tmp_path / "k.txt").write_text("\n".join(rows))
    (matrix,), _, labels = kernels_in(tmp_path / "k.txt")
    wanted = list(order)
    np.testing.assert_array_equal(matrix, K[np.ix_(wanted, wanted)])
    np.testing.assert_array_equal(labels.labels, Y[wanted])


def test_types_below_titles_are_no_samples(tmp_path):
    (tmp_path / "o.sample").write_text(
        "ID_1 ID_2 missing sex bmi\n0 0 0 D P\n"
        + "".join(f"{c} {c} 0 {1 + i % 2} {i}.5\n" for i, c in enumerate(CELLS))
    )
    (tmp_path / "q.tsv").write_text(
        "sample-id\tsex\tbmi\n#q2:types\tcategorical\tnumeric\n"
        + "".join(f"{c}\t{1 + i % 2}\t{i}.5\n" for i, c in enumerate(CELLS))
    )
    for name in ("o.sample", "q.tsv"):
        frame = read_covariates(tmp_path / name, CELLS[::-1])
        assert list(frame.index) == CELLS
        assert frame["sex"].tolist() == ["1", "2"] * 3
        assert frame["bmi"].tolist() == [0.5, 1.5, 2.5, 3.5, 4.5, 5.5]
        assert read_file(f"{tmp_path / name}:sex").values.tolist() == [1, 2] * 3
    (tmp_path / "q.tsv").write_text("sample-id\tsex\tbmi\n#q2:types\tcategorical\tnumeric\n# no rows")
    with pytest.raises(InputError, match=r"q.tsv, line 2 names the types of columns; expected .* rows below"):
        read_covariates(tmp_path / "q.tsv", CELLS)


@pytest.mark.parametrize("name", ["pc.eigenvec", "pc.qcovar"])
@pytest.mark.parametrize("family", ["0", None])
def test_principal_components_without_titles(tmp_path, name, family):
    lines = "".join(f"{family or c} {c} {x:g} {y:g}\n" for c, (x, y) in zip(CELLS, X[:, :2] / 4, strict=True))
    (tmp_path / name).write_text(lines)
    frame = read_covariates(tmp_path / name, CELLS)
    np.testing.assert_array_equal(frame, X[:, :2] / 4)
    assert (list(frame.index), list(frame)) == (CELLS, ["pc_1", "pc_2"])
    np.testing.assert_allclose(features(tmp_path / name)[0]["pc"], X[:, :2] / 4)


@pytest.mark.parametrize("inside", ["", "folder"])
def test_datasets_in_files_of_netcdf_and_zipped_zarr(tmp_path, inside):
    data = xr.Dataset({"x": (("sample", "gene"), X), "y": ("sample", Y.astype("i4"))}, {"sample": CELLS, "gene": GENES})
    data.to_netcdf(tmp_path / "x.nc", engine="scipy")
    data.to_zarr(tmp_path / "zip" / inside, consolidated=False, zarr_format=2)
    shutil.make_archive(str(tmp_path / "x.zarr"), "zip", tmp_path / "zip")
    for name in ("x.nc", "x.zarr.zip"):
        taken = as_features(tmp_path / name)
        frame = pd.DataFrame(taken.blocks["x"].read(slice(0, 6)), taken.samples, taken.blocks["x"].columns)
        pd.testing.assert_frame_equal(frame, COUNTS)
        assert taken.labels.labels.tolist() == Y.tolist()


def test_datasets_in_memory_hold_kernels_and_labels():
    axes = {"subject": CELLS, "subject_2": CELLS}
    square = xr.Dataset({"a": (tuple(axes), K), "b": (tuple(axes), 2 * K), "y": ("subject", Y)}, axes)
    stack = xr.Dataset(
        {"k": (("kernel", *axes), np.stack([K, 2 * K])), "y": ("subject", Y)}, axes | {"kernel": ["a", "b"]}
    )
    for data in (square, stack, square.isel(subject=slice(None, None, -1))):
        made = dmkl.create(None, data, samples=CELLS)
        assert (made.names, list(made.samples), made.labels.tolist()) == (("a", "b"), CELLS, Y.tolist())
        np.testing.assert_array_equal(made.to_dask(), [K, 2 * K])
    others = pd.Series([0, 0, 0, 1, 1, 1], CELLS)
    assert dmkl.create(None, square, labels=others).labels.tolist() == others.tolist()
    with pytest.raises(InputError, match=r"a dataset holds one variable .* got y \('subject',\)"):
        dmkl.create(None, square[["y"]])


def test_packed_variables_of_netcdf_are_refused(tmp_path):
    write_hdf5(tmp_path / "k.nc", k=K, subject=np.array(CELLS, "S"))
    with h5py.File(tmp_path / "packed.nc", "w") as file:
        file["k"] = K.astype("i2")
        file["k"].attrs["scale_factor"] = 0.5
    zarr.create_array(tmp_path / "k.zarr", data=K.astype("i2")).attrs["add_offset"] = 1.0
    (matrix,), _, labels = kernels_in(tmp_path / "k.nc")
    np.testing.assert_array_equal(matrix, K)
    assert labels.samples == tuple(CELLS)
    for name in ("packed.nc", "k.zarr"):
        with pytest.raises(InputError, match=r"packed by NetCDF.*xarray\.open_dataset"):
            kernels_in(tmp_path / name)


def test_stacks_of_connectomes_are_rows_of_their_upper_triangles(tmp_path):
    stack = RNG.normal(size=(6, 4, 4)).round(3)
    stack += stack.transpose(0, 2, 1)
    rows = stack[:, *np.triu_indices(4, 1)]
    np.save(tmp_path / "c.npy", stack)
    np.savez(tmp_path / "c.npz", c=stack, subject=CELLS, labels=Y)
    scipy.io.savemat(tmp_path / "c.mat", {"c": stack.transpose(1, 2, 0), "y": Y})
    for source in (tmp_path / "c.npy", tmp_path / "c.npz", tmp_path / "c.mat", {"c": stack}):
        taken = as_features(source)
        np.testing.assert_array_equal(taken.blocks["c"].read(slice(0, 6)), rows)
        np.testing.assert_array_equal(taken.blocks["c"].read(np.array([4, 1])), rows[[4, 1]])
        assert "'c' are the entries above the diagonals of 6 matrices (4, 4)" in "".join(taken.notes)
        assert taken.labels.labels is None or taken.labels.labels.tolist() == Y.tolist()
    assert as_features(tmp_path / "c.npz").samples == CELLS
    with pytest.raises(InputError, match="not symmetric; give their entries as rows"):
        as_features({"c": RNG.normal(size=(6, 4, 4))}).blocks["c"].read(slice(0, 6))


@pytest.mark.parametrize(
    ("name", "way_out"),
    [
        ("x.xlsx", "read_excel"),
        ("x.feather", "read_feather"),
        ("x.pkl", "savez"),
        ("x.joblib", "savez"),
        ("x.pt", "tensor.numpy"),
        ("x.nii.gz", "NiftiMasker"),
        ("x.loom", "read_loom"),
        ("x.dta", "read_stata"),
        ("x.RData", r"write.csv\(K, gzfile\('K.csv.gz'\)\)"),
        ("x.vcf.gz", "--make-bed"),
        ("x.grm.bin.gz", "unpack it in the folder"),
    ],
)
def test_files_that_are_not_read_have_advice(tmp_path, name, way_out):
    (tmp_path / name).write_bytes(b"content")
    for read in (as_features, open_files, read_file):
        with pytest.raises(InputError, match=f"{name} is not read; .*{way_out}"):
            read(tmp_path / name)
