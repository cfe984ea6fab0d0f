"""Kernels and labels from files: every format in both orders of its axes, what is taken for what, what is refused."""

from __future__ import annotations

import gc
import json
import os
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.io
import scipy.sparse
import zarr
from helpers.conformance import problems
from helpers.references import psd
from hypothesis import given
from hypothesis import strategies as st

import dmkl
from dmkl.errors import InputError
from dmkl.inputs import as_features, open_files, read_vector
from dmkl.inputs.formats.matlab import matlab_arrays
from dmkl.store.ingest import ingest

K = psd(3, 7).round(3)
R = np.random.default_rng(0).normal(size=(3, 4, 7)).round(3)
Y = np.arange(7) % 3
SAMPLES = [f"s{i}" for i in range(7)]
ROWS = [f"new {i}" for i in range(4)]
SPLITS = np.array([[0, 0, 0, 1, 1, 2, 2], [2, 2, 0, 0, 0, 1, -1]])
NAMES = ["rbf", "chi2", "linear"]


def take_in(paths, tmp_path, **more):
    """Import, and give the set and what was noted."""
    source, labels = open_files(paths, **more)
    out = tmp_path / "out" / "set.zarr"
    made = dmkl.open(ingest(out, source, labels, tile=3, overwrite=True))
    assert not problems(out)
    return made, source


def same(made, expected):
    np.testing.assert_array_equal(np.asarray(made), expected)


# --- writing what other programs write -----------------------------------------------------------------------


def write_v73(path, **variables):
    """A MATLAB v7.3 file as MATLAB lays it out: an HDF5 file behind a block of text, every axis order reversed."""
    with h5py.File(path, "w", userblock_size=512) as file:
        refs = file.create_group("#refs#")

        def put(where, name, value):
            if isinstance(value, scipy.sparse.spmatrix | scipy.sparse.sparray):
                group = where.create_group(name)
                group.attrs["MATLAB_sparse"] = np.uint64(value.shape[0])
                group["jc"] = value.tocsc().indptr.astype("u8")
                group["data"] = value.tocsc().data
                return group
            if isinstance(value, dict):
                group = where.create_group(name)
                group.attrs["MATLAB_class"] = np.bytes_("struct")
                for key, part in value.items():
                    put(group, key, part)
                return group
            if isinstance(value, list):  # a column of cells
                parts = [put(refs, f"{name}{i}", part).ref for i, part in enumerate(value)]
                node = where.create_dataset(name, data=np.array([parts], dtype=h5py.ref_dtype), dtype=h5py.ref_dtype)
                kind = "cell"
            elif isinstance(value, str):
                codes = np.frombuffer(value.encode("utf-16-le"), dtype="u2")
                if not len(codes):
                    node = where.create_dataset(name, data=np.array([0, 0], dtype="u8"))
                    node.attrs["MATLAB_empty"] = np.uint8(1)
                else:
                    node = where.create_dataset(name, data=codes[:, None])
                kind = "char"
            elif np.asarray(value).dtype.kind == "U":  # rows of equal length
                width = max(map(len, value))
                rows = [np.frombuffer(text.ljust(width).encode("utf-16-le"), dtype="u2") for text in value]
                node, kind = where.create_dataset(name, data=np.array(rows).T), "char"
            else:
                array = np.atleast_2d(value)
                extra = {"chunks": True, "compression": "gzip"} if array.size > 30 else {}
                node = where.create_dataset(name, data=array.T, **extra)
                kind = {"float64": "double", "float32": "single", "uint8": "logical"}.get(
                    str(array.dtype), str(array.dtype)
                )
            node.attrs["MATLAB_class"] = np.bytes_(kind)
            return node

        for name, value in variables.items():
            put(file, name, value)
    with path.open("r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\x00\x02IM")


def cells(*values):
    held = np.empty((len(values), 1), dtype=object)
    held[:, 0] = values
    return held


def write_v5(path, **variables):
    values = {name: cells(*value) if isinstance(value, list) else value for name, value in variables.items()}
    scipy.io.savemat(path, values, do_compression=True)


MATLAB = pytest.mark.parametrize("write", [write_v5, write_v73])
LAST = K.transpose(1, 2, 0)


# --- NumPy ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("axes", [(0, 1, 2), (1, 2, 0), (1, 0, 2)])
def test_npy_in_any_order(tmp_path, order, axes):
    np.save(tmp_path / "k.npy", np.asarray(K.transpose(axes), order=order))
    made, source = take_in(tmp_path / "k.npy", tmp_path)
    same(made, K)
    assert source.notes == ()
    assert isinstance(next(iter(source.matrices())).array, np.memmap)


def test_npy_of_one_kernel_and_of_rectangular_ones(tmp_path):
    np.save(tmp_path / "one.npy", K[0])
    made, _ = take_in(tmp_path / "one.npy", tmp_path)
    same(made, K[:1])
    assert made.names == ("one",)
    np.save(tmp_path / "wide.npy", R)
    with pytest.raises(InputError, match=r"wide.npy has shape \(3, 4, 7\).*give the axis that counts the kernels"):
        open_files(tmp_path / "wide.npy")
    same(take_in(tmp_path / "wide.npy", tmp_path, kernel_axis=0)[0], R)
    same(take_in(tmp_path / "wide.npy", tmp_path, kernel_axis=2)[0], R.transpose(2, 0, 1))
    with pytest.raises(InputError, match="the kernel axis must be 0, 1 or 2, got 3"):
        open_files(tmp_path / "wide.npy", kernel_axis=3)


def test_a_cube_is_taken_one_way_and_it_is_said(tmp_path):
    cube = psd(4, 4)
    np.save(tmp_path / "k.npy", cube)
    made, source = take_in(tmp_path / "k.npy", tmp_path)
    same(made, cube)
    assert "4 × 4 × 4: its kernels were taken along axis 0" in source.notes[0]
    write_v5(tmp_path / "k.mat", K=cube.transpose(1, 2, 0))
    made, source = take_in(tmp_path / "k.mat", tmp_path)
    same(made, cube)
    assert "taken along axis 2" in source.notes[0]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("axes", [(0, 1, 2), (1, 2, 0)])
def test_npz_with_one_array_and_labels(tmp_path, save, order, axes):
    stack = np.asarray(K.transpose(axes), order=order)
    save(tmp_path / "k.npz", K=stack, y=Y, samples=SAMPLES, split=SPLITS, kernels=NAMES, scale=2.0)
    made, source = take_in(tmp_path / "k.npz", tmp_path)
    same(made, K)
    assert made.names == tuple(NAMES)
    assert list(made.samples) == SAMPLES
    np.testing.assert_array_equal(made.labels, Y)
    np.testing.assert_array_equal(made.splits, SPLITS)
    assert source.notes == ()


def test_npz_with_an_array_a_kernel_keeps_the_order_in_which_they_were_saved(tmp_path):
    np.savez(tmp_path / "k.npz", z=K[0], K10=K[1], K9=K[2], gamma=np.ones((1, 1)), features=np.ones((7, 2)))
    made, source = take_in(tmp_path / "k.npz", tmp_path)
    same(made, K)
    assert made.names == ("z", "K10", "K9")
    assert source.notes == (f"{tmp_path / 'k.npz'}: left out features (7 × 2 float64)",)


def test_variables_can_be_chosen_and_may_be_rectangular(tmp_path):
    np.savez(tmp_path / "k.npz", a=K[0], b=K[1], other=psd(1, 5)[0], r1=R[0], r2=R[1])
    with pytest.raises(InputError, match=r"differ in shape: a 7 × 7, b 7 × 7, other 5 × 5"):
        open_files(tmp_path / "k.npz")
    made, source = take_in(tmp_path / "k.npz", tmp_path, variables=["b", "a"])
    same(made, K[[1, 0]])
    assert "left out other (5 × 5 float64), r1" in source.notes[0]
    same(take_in(tmp_path / "k.npz", tmp_path, variables=["r1", "r2"])[0], R[:2])
    with pytest.raises(InputError, match="has no variable 'c'; it has 'a', 'b', 'other', 'r1', 'r2'"):
        open_files(tmp_path / "k.npz", variables=["c"])


def test_two_stacks_are_not_guessed_between(tmp_path):
    np.savez(tmp_path / "k.npz", train=K, test=R)
    with pytest.raises(InputError, match=r"several arrays that may be kernels: train \(3 × 7 × 7 float64\), test"):
        open_files(tmp_path / "k.npz")
    same(take_in(tmp_path / "k.npz", tmp_path, variables=["train"])[0], K)


def test_of_an_npz_one_kernel_is_in_memory(tmp_path):
    np.savez(tmp_path / "k.npz", K=K)
    np.savez(tmp_path / "each.npz", a=K[0], b=K[1])
    for path, held in ((tmp_path / "k.npz", (7, 7)), (tmp_path / "each.npz", (7, 7))):
        for matrix in open_files(path)[0].matrices():
            member = getattr(matrix, "array", matrix)
            matrix[0:2, 0:2]
            assert member._last[1].shape == held


# --- MATLAB --------------------------------------------------------------------------------------------------


@MATLAB
def test_matlab_stacks_with_labels(tmp_path, write):
    write(
        tmp_path / "k.mat",
        K=LAST,
        y=Y[None, :].astype(float),
        ids=SAMPLES,
        splits=SPLITS.T.astype(float),
        kernel_names=np.array(NAMES),
        lam=0.5,
        options={"gamma": 2.0},
    )
    made, _ = take_in(tmp_path / "k.mat", tmp_path)
    same(made, K)
    assert made.names == tuple(NAMES)
    assert list(made.samples) == SAMPLES
    np.testing.assert_array_equal(made.labels, Y)
    np.testing.assert_array_equal(made.splits, SPLITS)


@MATLAB
def test_matlab_rectangular_kernels_keep_their_rows(tmp_path, write):
    diagonal = np.abs(R[:, :, 0]) + 1
    write(
        tmp_path / "k.mat",
        K=R.transpose(1, 2, 0),
        sample=np.array(ROWS),
        train_samples=[*SAMPLES[:-1], "Zoë"],
        diagonal=diagonal.T,
        target=Y[:4, None],
    )
    made, source = take_in(tmp_path / "k.mat", tmp_path)
    same(made, R)
    assert "taken as 3 rectangular kernels, along MATLAB's last axis" in source.notes[0]
    assert list(made.samples) == ROWS
    assert made.train_samples[-1] == "Zoë"
    np.testing.assert_array_equal(made.view.source.diagonal(np.arange(3)), diagonal)
    np.testing.assert_array_equal(made.labels, Y[:4])
    write(tmp_path / "first.mat", K=R)
    same(take_in(tmp_path / "first.mat", tmp_path, kernel_axis=0)[0], R)


@MATLAB
def test_matlab_matrices_one_a_kernel(tmp_path, write):
    write(tmp_path / "k.mat", K1=K[0].astype("f4"), K2=K[1].astype("f4"), y=np.array(list("abababa")), n=3.0)
    made, source = take_in(tmp_path / "k.mat", tmp_path)
    same(made, K[:2].astype("f4"))
    assert (made.names, made.dtype, source.notes) == (("K1", "K2"), np.dtype("f4"), ())
    assert list(made.labels) == list("abababa")
    write(tmp_path / "r.mat", A=R[0], B=R[1])
    same(take_in(tmp_path / "r.mat", tmp_path, variables=["B", "A"])[0], R[[1, 0]])


@MATLAB
@pytest.mark.parametrize("kernels", [K, R])
def test_matlab_cells_of_kernels(tmp_path, write, kernels):
    write(tmp_path / "k.mat", K=list(kernels), names=["a", "", "c"], y=[*map(float, Y[: kernels.shape[1]])])
    made, _ = take_in(tmp_path / "k.mat", tmp_path)
    same(made, kernels)
    assert made.names == ("a", "", "c")
    np.testing.assert_array_equal(made.labels, Y[: kernels.shape[1]])


@MATLAB
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("label", ["Y", "gt", "label", None])
def test_matlab_cells_of_views_are_features(tmp_path, write, transposed, label):
    views = [np.random.default_rng(d).random((7, d)) for d in (3, 5, 4)]
    given = [view.T for view in views] if transposed else views
    write(tmp_path / "x.mat", X=given, **({} if label is None else {label: Y[:, None] + 1.0}))
    found = as_features(tmp_path / "x.mat")
    assert list(found.blocks) == ["X_0", "X_1", "X_2"]
    for block, view in zip(found.blocks.values(), views, strict=True):
        same(block.read(slice(2, 6)), view[2:6])
    assert label is None or found.labels.labels.tolist() == (Y + 1).tolist()
    why = "equally many in all" if label is None else "as many as labels"
    axis = "columns" if transposed else "rows"
    assert found.notes[0].endswith(f"3 feature matrices, of which the {axis} were taken for samples (7, {why})")


@MATLAB
@pytest.mark.parametrize("column", [True, False])
def test_matlab_cells_of_equal_vectors_are_labels(tmp_path, write, column):
    """As of data sets with a vector of labels for each view."""
    labels = Y[:, None] + 1.0 if column else Y[None] + 1.0
    write(tmp_path / "k.mat", K=list(K), truelabel=[labels] * 3)
    write(tmp_path / "x.mat", X=[np.random.default_rng(d).random((7, d)) for d in (3, 4)], gt=[labels] * 2)
    np.testing.assert_array_equal(read_vector(f"{tmp_path / 'k.mat'}:truelabel"), Y + 1)
    found = as_features(tmp_path / "x.mat")
    assert list(found.blocks) == ["X_0", "X_1"]
    assert found.labels.labels.tolist() == (Y + 1).tolist()
    write(tmp_path / "k.mat", K=list(K), truelabel=[labels, labels + 1])
    with pytest.raises(InputError, match=r"'truelabel' .* is a cell array of parts that differ"):
        read_vector(f"{tmp_path / 'k.mat'}:truelabel")


@MATLAB
def test_matlab_cells_of_views_that_do_not_fit(tmp_path, write):
    write(tmp_path / "x.mat", X=[np.ones((7, 3)), np.ones((6, 3))], gt=np.arange(9.0))
    with pytest.raises(InputError, match=r"X_0 \(7 × 3 .*expected views of 9 rows, or 9 columns, as there are labels"):
        as_features(tmp_path / "x.mat")


@MATLAB
def test_matlab_doubles_of_small_whole_numbers_stay_doubles(tmp_path, write):
    write(tmp_path / "k.mat", K=np.eye(5))
    made, _ = take_in(tmp_path / "k.mat", tmp_path)
    assert made.dtype == np.float64
    same(made, np.eye(5)[None])


@MATLAB
@pytest.mark.parametrize("value", ["sparse", "complex", "mixed cells"])
def test_matlab_kernels_that_cannot_be_taken(tmp_path, write, value):
    held = {
        "sparse": scipy.sparse.csc_matrix(np.eye(5)),
        "complex": np.eye(5) * 1j,
        "mixed cells": [np.eye(5), "text"],
    }[value]
    write(tmp_path / "k.mat", K=held)
    message = {
        "sparse": "variable 'K' of .*k.mat is sparse, but kernels are stored dense; save full",
        "complex": "variable 'K' of .*k.mat is complex, expected real numbers",
        "mixed cells": "there are no kernels in .*K .*a cell array of unlike parts",
    }[value]
    with pytest.raises(InputError, match=message):
        take_in(tmp_path / "k.mat", tmp_path)


def test_matlab_structs_of_v73_are_looked_into(tmp_path):
    write_v73(tmp_path / "k.mat", data={"K": LAST, "labels": Y[:, None].astype(float)})
    made, _ = take_in(tmp_path / "k.mat", tmp_path)
    same(made, K)
    np.testing.assert_array_equal(made.labels, Y)
    write_v5(tmp_path / "s.mat", data={"K": LAST})
    with pytest.raises(InputError, match=r"data .*a struct: save its fields as variables of their own"):
        open_files(tmp_path / "s.mat")


def test_v73_is_read_in_parts(tmp_path):
    write_v73(tmp_path / "k.mat", K=psd(2, 40).transpose(1, 2, 0))
    matrix = next(iter(open_files(tmp_path / "k.mat")[0].matrices()))
    np.testing.assert_array_equal(matrix[3:9, 30:40], psd(2, 40)[0, 3:9, 30:40])


# --- HDF5 and Zarr -------------------------------------------------------------------------------------------


def hierarchy(tmp_path, kind):
    if kind == "hdf5":
        return tmp_path / "k.h5", h5py.File(tmp_path / "k.h5", "w")
    return tmp_path / "k.zarr", zarr.open_group(tmp_path / "k.zarr", mode="w", zarr_format=int(kind[-1]))


def put(group, name, value):
    value = np.asarray(value)
    if isinstance(group, h5py.Group):
        group[name] = value.astype(object) if value.dtype.kind == "U" else value
    else:
        group.create_array(
            name,
            data=value.astype(object) if value.dtype.kind == "U" else value,
        )


HIERARCHIES = pytest.mark.parametrize("kind", ["hdf5", "zarr 2", "zarr 3"])


@HIERARCHIES
def test_nested_groups_in_natural_order(tmp_path, kind):
    path, group = hierarchy(tmp_path, kind)
    inner = group.create_group("kernels")
    for name, kernel in (("K10", K[2]), ("K9", K[1]), ("K1", K[0])):
        put(inner, name, kernel)
    put(group.create_group("meta"), "labels", Y)
    put(group, "splits", SPLITS)
    put(group, "diagonal", np.ones((3, 7)))  # of symmetric kernels the matrices tell it
    if kind == "hdf5":
        group["sample-names"] = SAMPLES
        group["empty"] = h5py.Empty("f8")
        group.close()
    made, source = take_in(path, tmp_path)
    same(made, K)
    assert made.names == ("K1", "K9", "K10")
    np.testing.assert_array_equal(made.labels, Y)
    np.testing.assert_array_equal(made.splits, SPLITS)
    assert list(made.samples) == (SAMPLES if kind == "hdf5" else [str(i) for i in range(7)])
    assert source.notes == ()


@HIERARCHIES
@pytest.mark.parametrize("chunks", [(1, 2, 2), (1, 2, 7), (1, 7, 7), (3, 3, 3), None])
def test_stacks_in_any_chunks(tmp_path, kind, chunks):
    path, group = hierarchy(tmp_path, kind)
    if kind == "hdf5":
        group.create_dataset("K", data=K, chunks=chunks, compression=chunks and "gzip")
        group.close()
    else:
        group.create_array("K", data=K, chunks=chunks or "auto")
    same(take_in(path, tmp_path)[0], K)


def test_kernels_of_one_name_in_two_groups_keep_their_paths(tmp_path):
    with h5py.File(tmp_path / "k.h5", "w") as file:
        file["a/K"], file["b/K"], file["a/y"], file["b/y"] = K[0], K[1], Y, Y[::-1]
    made, source = take_in(tmp_path / "k.h5", tmp_path)
    assert made.names == ("a/K", "b/K")
    assert made.labels is None
    assert "labels: variable 'a/y' of" in source.notes[0]
    assert "differ, so neither was taken" in source.notes[0]


def test_a_zarr_array_alone(tmp_path):
    zarr.create_array(tmp_path / "k.zarr", data=K.transpose(1, 2, 0))
    same(take_in(tmp_path / "k.zarr", tmp_path)[0], K)


def test_kernels_that_a_shape_claims_and_no_chunk_holds_are_refused(tmp_path):
    array = zarr.create_array(tmp_path / "k.zarr", shape=(65536, 5, 5), chunks=(3, 5, 5), dtype="float64")
    array[:3] = K[:3, :5, :5]
    source, _ = open_files(tmp_path / "k.zarr")
    found = source.matrices()
    for expected in K[:3]:
        np.testing.assert_array_equal(next(found)[:, :], expected[:5, :5])
    with pytest.raises(InputError, match="of number 3 along axis 0 nothing was ever written, and it would be zero"):
        next(found)


def test_zarr_chunks_of_no_length_are_damage(tmp_path):
    zarr.create_array(tmp_path / "k.zarr", data=K, chunks=(1, 7, 7), zarr_format=2)
    metadata = tmp_path / "k.zarr" / ".zarray"
    told = json.loads(metadata.read_text())
    metadata.write_text(json.dumps({**told, "chunks": [0, 7, 7]}))
    with pytest.raises(InputError, match=r"k\.zarr"):
        [matrix[:, :] for matrix in open_files(tmp_path / "k.zarr")[0].matrices()]


def test_of_damaged_zarr_the_error_is_all_that_is_told(tmp_path, caplog):
    path, group = hierarchy(tmp_path, "zarr 2")
    for name in "abcd":
        put(group, name, K)
        (path / f"no-array-{name}").mkdir()
    (path / "a" / ".zarray").write_text("{}")
    with pytest.raises(InputError, match=r"k\.zarr cannot be read as Zarr"):
        open_files(path)
    gc.collect()  # asyncio speaks of the failure of a task when nothing refers to it any more
    assert not caplog.records


def test_a_kernel_set_is_not_imported_again(tmp_path):
    dmkl.create(tmp_path / "k.zarr", K)
    with pytest.raises(InputError, match=r"k.zarr is a kernel set already; open it with dmkl.open"):
        open_files(tmp_path / "k.zarr")


# --- text ----------------------------------------------------------------------------------------------------

FRAME = pd.DataFrame(K[0], index=SAMPLES, columns=SAMPLES)


def text(path, what):
    if what == "plain, blanks":
        np.savetxt(path, K[0])
    elif what == "plain, commas":
        np.savetxt(path, K[0], delimiter=",", header="made by savetxt")
    elif what == "tabs, names":
        FRAME.to_csv(path, sep="\t")
    elif what == "header alone":
        FRAME.to_csv(path, index=False)
    elif what == "names alone":
        FRAME.to_csv(path, header=False)
    elif what == "corner with a name":
        FRAME.to_csv(path, index_label="ID", sep=";")
    elif what == "as R writes it":
        lines = [" ".join(f'"{name}"' for name in SAMPLES)]
        lines += [f'"{name}" ' + " ".join(map(repr, row)) for name, row in zip(SAMPLES, K[0].tolist(), strict=True)]
        path.write_text("\n".join(lines))
    elif what == "decimal commas":
        FRAME.to_csv(path, sep=";", decimal=",")
    elif what == "decimal commas, blanks":
        path.write_text("\n".join(" ".join(str(x).replace(".", ",") for x in row) for row in K[0]))
    elif what == "Windows":
        path.write_bytes(b"\xef\xbb\xbf" + FRAME.to_csv(lineterminator="\r\n").encode())
    elif what == "blank lines and comments":
        rows = [",".join(map(repr, row)) for row in K[0].tolist()]
        path.write_text("# first\n\n" + "\n\n% between\n".join(rows) + "\n\n# last\n")
    elif what == "delimiters at the ends":
        path.write_text("".join(",".join(map(repr, row)) + ",\n" for row in K[0].tolist()))
    elif what == "numbers as names":
        pd.DataFrame(K[0]).to_csv(path)
    elif what == "numbers as header":
        pd.DataFrame(K[0]).to_csv(path, index=False)


NAMED = {
    "tabs, names",
    "header alone",
    "names alone",
    "corner with a name",
    "as R writes it",
    "decimal commas",
    "Windows",
}


@pytest.mark.parametrize(
    "what",
    [
        *sorted(NAMED),
        "plain, blanks",
        "plain, commas",
        "decimal commas, blanks",
        "blank lines and comments",
        "delimiters at the ends",
        "numbers as names",
        "numbers as header",
    ],
)
@pytest.mark.parametrize("suffix", [".txt", ".csv"])
def test_text_however_it_is_laid_out(tmp_path, what, suffix):
    path = tmp_path / f"k{suffix}"
    text(path, what)
    made, _ = take_in(path, tmp_path)
    np.testing.assert_allclose(np.asarray(made), K[:1], rtol=1e-15)
    assert made.names == ("k",)
    assert list(made.samples) == (SAMPLES if what in NAMED else [str(i) for i in range(7)])


def test_rectangular_text_names_both_axes(tmp_path):
    for j, name in enumerate(NAMES):
        pd.DataFrame(R[j], index=ROWS, columns=SAMPLES).to_csv(tmp_path / f"{name}.tsv", sep="\t")
    made, _ = take_in([tmp_path / f"{name}.tsv" for name in NAMES], tmp_path)
    same(made, R)
    assert list(made.samples) == ROWS
    assert list(made.train_samples) == SAMPLES
    assert made.names == tuple(NAMES)


def test_text_is_read_a_strip_at_a_time(tmp_path, monkeypatch):
    sizes = []
    monkeypatch.setattr("dmkl.inputs.formats.tables._CHUNK_ROWS", 1)
    loadtxt = np.loadtxt
    monkeypatch.setattr(np, "loadtxt", lambda *a, **k: sizes.append(len(found := loadtxt(*a, **k))) or found)
    np.savetxt(tmp_path / "k.csv", psd(1, 10)[0], delimiter=",")
    take_in(tmp_path / "k.csv", tmp_path)
    assert sizes == [3, 3, 3, 1]


BAD_TEXT = {
    "ragged": ("1,2,3\n2,1,0\n3,0\n", "line 3: found 2 cells, expected 3"),
    "too long": ("1,2,3\n2,1,0\n3,0,1,5\n", "line 3: found 4 cells, expected 3"),
    "short first line": ("1,2\n2,1,0\n3,0,1\n", "line 1: found 2 cells, expected 3"),
    "long header": ("a,b,c,d\n2,1,0\n3,0,1\n1,1,1\n", "line 1: found 4 titles, expected 3 as the next line has"),
    "a word": ("1,2,3\n2,1,0\n# note\n3,zero,1\n", "line 4, column 2: 'zero' is not a number"),
    "a word in the first line": (
        "1,x,3\n2,1,0\n3,0,1\n",
        "line 1: found words and numbers .*title the first column 'sample'",
    ),
    "a word in the first column": ("1,2,3\nx,1,0\n3,0,1\n", "line 2, column 1: 'x' is not a number"),
    "names and numbers": ("x,2,3\ny,1,0\n3,0,1\n", "'x' in the first column is not a number, others .* 'sample'"),
    "a gap": ("1,2,3\n2,,0\n3,0,1\n", r"kernel 'k': entry \(1, 1\) is nan"),
    "thousands": ("1 2 3\n2 1_000 1\n3 1 4\n", "line 2, column 2: '1_000' is not a number"),
    "NaN": ("1,2\n2,nan\n", r"kernel 'k': entry \(1, 1\) is nan"),
    "nothing": ("\n# nothing\n", "holds 1 lines of words and no numbers"),
    "Latin-1": ("a,é\n1,2\n2,1\n".encode("latin-1"), "not written in UTF-8"),
    "binary": (b"1,2\n\0\1\n", "is no text: line 2 holds a zero byte"),
}


@pytest.mark.parametrize("case", BAD_TEXT)
def test_bad_text_is_named_by_line_and_column(tmp_path, case):
    content, message = BAD_TEXT[case]
    (tmp_path / "k.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=message) as caught:
        take_in(tmp_path / "k.csv", tmp_path)
    assert "k.csv" in str(caught.value) or "kernel 'k'" in str(caught.value)


def test_text_kernels_are_matched_by_name(tmp_path):
    FRAME.to_csv(tmp_path / "a.csv")
    FRAME.iloc[::-1, [3, 0, 6, 2, 1, 5, 4]].to_csv(tmp_path / "b.csv")
    made, source = take_in([tmp_path / "a.csv", tmp_path / "b.csv"], tmp_path)
    same(made, np.stack([FRAME, FRAME]))
    assert list(made.samples) == SAMPLES
    assert source.notes == ("kernel 'b': put into the order of the samples, by name",)


@given(
    matrix=st.integers(1, 6).flatmap(
        lambda m: st.lists(st.lists(st.floats(-1e300, 1e300, width=64), min_size=m, max_size=m), min_size=1, max_size=6)
    ),
    delimiter=st.sampled_from([",", "\t", ";", " "]),
    names=st.booleans(),
)
def test_text_comes_back_to_the_last_bit(tmp_path_factory, matrix, delimiter, names):
    path = tmp_path_factory.mktemp("text") / "k.txt"
    frame = pd.DataFrame(matrix, index=[f"r{i}" for i in range(len(matrix))])
    frame.to_csv(path, sep=delimiter, header=False, index=names)
    read = next(iter(open_files(path)[0].matrices()))
    np.testing.assert_array_equal(read[0 : len(matrix), 0 : len(matrix[0])], matrix)


# --- folders and several files -------------------------------------------------------------------------------


def test_a_folder_in_natural_order_with_its_labels(tmp_path):
    folder = tmp_path / "kernels"
    folder.mkdir()
    np.save(folder / "K10.npy", K[2])
    np.savetxt(folder / "K2.csv", K[1], delimiter=",")
    write_v5(folder / "K1.mat", anything=K[0])
    (folder / "labels.csv").write_text("class\n" + "\n".join("abcabca") + "\n")
    (folder / "samples.txt").write_text("\n".join(f"cell line {i}" for i in range(7)))
    (folder / "splits.tsv").write_text("one\ttwo\n" + "\n".join("\t".join(map(str, pair)) for pair in SPLITS.T))
    (folder / "notes.md").write_text("about")
    (folder / ".hidden").write_text("about")
    made, source = take_in(folder, tmp_path)
    np.testing.assert_allclose(np.asarray(made), K)
    assert made.names == ("K1", "K2", "K10")
    assert made.samples[3] == "cell line 3"
    np.testing.assert_array_equal(made.splits, SPLITS)
    assert source.notes[0] == f"{folder}: left out notes.md; expected {source.notes[0].split('expected ')[1]}"
    assert len(source.notes) == 2
    assert "row i was taken for the i-th name in " in source.notes[1]


def test_names_of_a_folder_apply_in_order_and_it_is_said(tmp_path):
    folder = tmp_path / "kernels"
    folder.mkdir()
    for j in range(3):
        np.save(folder / f"K{j}.npy", K[j])
    (folder / "names.txt").write_text("\n".join(NAMES))
    made, source = take_in(folder, tmp_path)
    assert made.names == tuple(NAMES)
    assert source.notes == (
        "the kernels were named in the order in which they stand: K0 is rbf, K1 is chi2, K2 is linear",
    )
    assert take_in(folder, tmp_path, names=["x", "y", "z"])[0].names == ("x", "y", "z")
    (folder / "names.txt").write_text("only one\n")
    with pytest.raises(InputError, match=r"names.txt has 1 names, expected one for each of the 3 kernels"):
        open_files(folder)


def test_several_files_and_folders_in_the_order_given(tmp_path):
    for folder, kernel in (("b", K[0]), ("a", K[1])):
        (tmp_path / folder).mkdir()
        np.save(tmp_path / folder / "K.npy", kernel)
    np.savez(tmp_path / "more.npz", c=K[2], d=K[0])
    np.save(tmp_path / "labels.npy", Y)
    given = [tmp_path / "b", tmp_path / "a" / "K.npy", tmp_path / "more.npz", tmp_path / "labels.npy"]
    made, _ = take_in(given, tmp_path)
    same(made, K[[0, 1, 2, 0]])
    assert made.names == ("b/K", "a/K", "more/c", "more/d")
    np.testing.assert_array_equal(made.labels, Y)


def test_several_stacks_are_numbered(tmp_path):
    np.save(tmp_path / "a.npy", K)
    np.save(tmp_path / "b.npy", K[:2])
    made, _ = take_in([tmp_path / "a.npy", tmp_path / "b.npy"], tmp_path)
    assert made.names == ("a_0", "a_1", "a_2", "b_0", "b_1")
    same(made, np.concatenate([K, K[:2]]))


def test_a_list_of_one_is_that_file(tmp_path):
    np.save(tmp_path / "labels.npy", K)  # whatever it is called
    same(take_in([tmp_path / "labels.npy"], tmp_path)[0], K)


# --- labels --------------------------------------------------------------------------------------------------


def kernels_of_text(tmp_path):
    FRAME.to_csv(tmp_path / "k.csv")
    return tmp_path / "k.csv"


def test_labels_with_names_are_put_into_the_order_of_the_kernels(tmp_path):
    order = [3, 0, 6, 2, 1, 5, 4]
    pd.DataFrame({"class": np.array(list("abcabca"))[order]}, index=np.array(SAMPLES)[order]).to_csv(tmp_path / "l.csv")
    made, source = take_in(kernels_of_text(tmp_path), tmp_path, labels=tmp_path / "l.csv")
    assert list(made.labels) == list("abcabca")
    assert "was put into the order of the samples" in source.notes[0]
    (tmp_path / "l.csv").write_text("s0,a\ns1,b\n")
    with pytest.raises(InputError, match=r"the 7 of kernel 'k', .*l.csv lacks 5 \('s2', 's3', 's4' …\)"):
        open_files(tmp_path / "k.csv", labels=tmp_path / "l.csv")


def test_labels_with_names_name_kernels_that_have_none(tmp_path):
    np.save(tmp_path / "k.npy", K)
    (tmp_path / "labels.csv").write_text("".join(f"{name},{y}\n" for name, y in zip(SAMPLES, Y, strict=True)))
    made, _ = take_in([tmp_path / "k.npy", tmp_path / "labels.csv"], tmp_path)
    assert list(made.samples) == SAMPLES
    np.testing.assert_array_equal(made.labels, Y)


def test_multilabel_tables_name_their_tasks(tmp_path):
    np.save(tmp_path / "k.npy", K)
    table = np.eye(7, 2, dtype=int)
    pd.DataFrame(table, index=SAMPLES, columns=["cat", "dog"]).to_csv(tmp_path / "labels.csv")
    made, _ = take_in([tmp_path / "k.npy", tmp_path / "labels.csv"], tmp_path)
    np.testing.assert_array_equal(made.labels, table)
    assert list(made.tasks) == ["cat", "dog"]


def test_splits_in_words(tmp_path):
    np.save(tmp_path / "k.npy", K)
    (tmp_path / "s.txt").write_text("train\ntrain\nval\ntest\nTest\nnone\nvalidation\n")
    made, _ = take_in(tmp_path / "k.npy", tmp_path, splits=tmp_path / "s.txt")
    np.testing.assert_array_equal(made.splits, [[0, 0, 1, 2, 2, -1, 1]])
    (tmp_path / "s.txt").write_text("train\n" * 6 + "holdout\n")
    with pytest.raises(InputError, match=r"s.txt holds 'holdout', expected train, validation, test or none"):
        open_files(tmp_path / "k.npy", splits=tmp_path / "s.txt")


def test_given_files_take_the_place_of_what_is_found(tmp_path):
    np.savez(tmp_path / "k.npz", K=K, y=Y)
    np.save(tmp_path / "other.npy", Y[::-1])
    np.savetxt(tmp_path / "samples.txt", SAMPLES, "%s")
    (tmp_path / "ids.txt").write_text("\n".join("gfedcba"))
    given = {"labels": tmp_path / "other.npy", "samples": tmp_path / "ids.txt"}
    made, _ = take_in([tmp_path / "k.npz", tmp_path / "samples.txt"], tmp_path, **given)
    np.testing.assert_array_equal(made.labels, Y[::-1])
    assert "".join(made.samples) == "gfedcba"


def test_given_samples_choose_among_those_that_a_file_names(tmp_path):
    np.savez(tmp_path / "k.npz", K=K, y=Y, samples=SAMPLES)
    (tmp_path / "ids.txt").write_text("s5\ns1\ns4\n")
    made, _ = take_in(tmp_path / "k.npz", tmp_path, samples=tmp_path / "ids.txt")
    same(made, K[:, [5, 1, 4]][:, :, [5, 1, 4]])
    np.testing.assert_array_equal(made.labels, Y[[5, 1, 4]])
    (tmp_path / "ids.txt").write_text("\n".join("gfedcba"))
    with pytest.raises(InputError, match=r"the 7 of samples=, kernel 0 lacks 7 \('g', 'f', 'e' …\)"):
        open_files(tmp_path / "k.npz", samples=tmp_path / "ids.txt")


def test_labels_of_the_columns_are_left_out(tmp_path):
    np.savez(tmp_path / "k.npz", K=R, y=Y)
    made, source = take_in(tmp_path / "k.npz", tmp_path, kernel_axis=0)
    assert made.labels is None
    assert "as long as the kernels' columns, and labels belong to their rows" in source.notes[0]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"y": Y[:5]},
            r"variable 'y' of .*k.npz has shape \(5,\), expected \(7,\) or \(7, tasks\)",
        ),
        ({"samples": SAMPLES[:5]}, r"found 5 names of samples, expected one for each of the 7 rows"),
        ({"splits": SPLITS[:, :4]}, r"variable 'splits' .* expected a part for each of the 7 samples"),
        ({"names": ["a"]}, "variable 'names' .* has 1 names, expected one for each of the 3 kernels"),
        ({"y": Y * 1j}, "variable 'y' of .*k.npz"),
    ],
)
def test_labels_that_do_not_fit_are_named(tmp_path, more, message):
    np.savez(tmp_path / "k.npz", K=K, **more)
    if "y" in more and more["y"].dtype.kind == "c":
        made, source = take_in(tmp_path / "k.npz", tmp_path)
        assert made.labels is None
        assert "left out y (7 complex128, complex)" in source.notes[0]
        return
    with pytest.raises(InputError, match=message):
        open_files(tmp_path / "k.npz")


def test_vectors_from_every_kind_of_file(tmp_path):
    np.save(tmp_path / "v.npy", np.array([[1.0, 2.0, 3.0]]))
    np.testing.assert_array_equal(read_vector(tmp_path / "v.npy"), [1, 2, 3])
    assert read_vector(tmp_path / "v.npy").dtype == np.int64
    for content, expected in (
        ("1\n2\n3\n", [1, 2, 3]),
        ("1 2 3\n", [1, 2, 3]),
        ("a b\nc\n", ["a b", "c"]),
        ("a,b,c\n", ["a", "b", "c"]),
        ("0.5\n1.5\n", [0.5, 1.5]),
        ("y\n1\n0\n", [1, 0]),
        ("label\na\nb\n", ["a", "b"]),
        ("sample,y\n1,5\n2,6\n", [5, 6]),
        ("name,y\nn1,5\nn2,6\n", [5, 6]),
        ('"a"\n"b"\n', ["a", "b"]),
        ("0,1\n1,0\n", [[0, 1], [1, 0]]),
    ):
        (tmp_path / "v.csv").write_text(content)
        np.testing.assert_array_equal(read_vector(tmp_path / "v.csv"), expected)
    write_v5(tmp_path / "v.mat", a=[*"xyz"], b=np.ones((3, 3)))
    assert list(read_vector(tmp_path / "v.mat", "a")) == [*"xyz"]
    with pytest.raises(InputError, match=r"v.mat holds 2 arrays, expected one: a \(3 strings\), b"):
        read_vector(tmp_path / "v.mat")
    with pytest.raises(InputError, match=r"v.mat has no variable 'c'"):
        read_vector(tmp_path / "v.mat", "c")
    (tmp_path / "v.csv").write_text("1,2\n1\n3,4\n")
    with pytest.raises(InputError, match=r"v.csv, line 2: found 1 cells, expected 2"):
        read_vector(tmp_path / "v.csv")


# --- what is refused -----------------------------------------------------------------------------------------


def test_missing_and_unknown_files(tmp_path):
    (tmp_path / "k.xlsx").write_bytes(b"PK\3\4\0")
    (tmp_path / "empty").mkdir()
    (tmp_path / "bare.zarr").mkdir()
    for path, message in (
        ("none.npy", "there is no file .*none.npy"),
        ("k.xlsx", r"k.xlsx has the extension '.xlsx', expected .npy, .npz, .mat"),
        ("empty", "there are no kernels in .*empty"),
        ("bare.zarr", "bare.zarr is a folder without Zarr metadata"),
    ):
        with pytest.raises(InputError, match=message):
            open_files(tmp_path / path)
    with pytest.raises(InputError, match="there are no kernels in no files"):
        open_files([])
    np.save(tmp_path / "k.npy", K)
    with pytest.raises(InputError, match=r"there is no file .*none.txt"):
        open_files(tmp_path / "k.npy", labels=tmp_path / "none.txt")


def test_nothing_is_ever_unpickled(tmp_path):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "sprung"),)

    trapped = np.full((7, 7), Trap(), dtype=object)
    np.save(tmp_path / "k.npy", trapped, allow_pickle=True)
    np.savez(tmp_path / "k.npz", K=trapped, labels=trapped[0], fine=np.eye(7))
    for path in (tmp_path / "k.npy", tmp_path / "k.npz"):
        with pytest.raises(InputError, match="holds Python objects, never unpickled"):
            open_files(path)
    for name in ("K", "labels"):
        with pytest.raises(InputError, match="Python objects"):
            read_vector(tmp_path / "k.npz", name)
    (tmp_path / "old.zarr").mkdir()
    (tmp_path / "old.zarr" / ".zarray").write_text(
        '{"zarr_format": 2, "shape": [7, 7], "chunks": [7, 7], "dtype": "|O", "fill_value": null, "order": "C",'
        ' "filters": [{"id": "pickle", "protocol": 5}], "compressor": null}'
    )
    with pytest.raises(InputError, match=r"old.zarr"):
        take_in(tmp_path / "old.zarr", tmp_path)
    assert not (tmp_path / "sprung").exists()


def test_features_are_no_kernels(tmp_path):
    np.savez(tmp_path / "k.npz", hsv=np.ones((7, 30)), y=Y, names=["a"])
    with pytest.raises(InputError, match=r"found hsv \(7 × 30 float64\).*compute the kernel matrices first"):
        open_files(tmp_path / "k.npz")


@pytest.mark.parametrize("values", [np.eye(4) * 1j, np.full((4, 4), "x"), np.full((4, 4), np.datetime64("2020-01-01"))])
def test_what_is_not_real_numbers_is_refused(tmp_path, values):
    np.save(tmp_path / "k.npy", values)
    with pytest.raises(InputError, match=r"k.npy .*expected real numbers"):
        open_files(tmp_path / "k.npy")
    with h5py.File(tmp_path / "k.h5", "w") as file:
        file["K"] = np.eye(4) * 1j
    with pytest.raises(InputError, match=r"variable 'K' of .*k.h5 is complex"):
        open_files(tmp_path / "k.h5")


def test_shapes_that_differ_between_files(tmp_path):
    np.save(tmp_path / "a.npy", K[0])
    np.save(tmp_path / "b.npy", psd(1, 5)[0])
    np.savetxt(tmp_path / "c.txt", psd(1, 6)[0])
    with pytest.raises(InputError, match=r"differ in shape: a.npy 7 × 7, b.npy 5 × 5, c.txt 6 × 6"):
        open_files([tmp_path / "a.npy", tmp_path / "b.npy", tmp_path / "c.txt"])


@pytest.mark.parametrize("name", ["k.npy", "k.npz", "k.mat", "v73.mat", "k.h5", "k.zarr"])
@pytest.mark.parametrize("keep", [0, 40, 600, 0.7])
def test_damaged_files_are_named(tmp_path, name, keep):
    big = psd(2, 40)
    path = tmp_path / name
    if name == "k.npy":
        np.save(path, big)
    elif name == "k.npz":
        np.savez(path, K=big)
    elif name == "k.mat":
        write_v5(path, K=big.transpose(1, 2, 0))
    elif name == "v73.mat":
        write_v73(path, K=big.transpose(1, 2, 0))
    elif name == "k.h5":
        with h5py.File(path, "w") as file:
            file["K"] = big
    else:
        zarr.create_array(path, data=big, chunks=(1, 40, 40))
        path = path / ("zarr.json" if keep != 0.7 else "c/0/0/0")
    data = path.read_bytes()
    path.write_bytes(data[: keep if isinstance(keep, int) else int(keep * len(data))])
    with pytest.raises(InputError) as caught:
        take_in(tmp_path / name, tmp_path)
    assert name in str(caught.value)


def test_a_file_that_hdf5_would_read_without_end_is_damaged(tmp_path, monkeypatch):
    """After an object of a length that is not true, its heap of strings goes on with free objects of no bytes."""
    monkeypatch.setattr("dmkl.inputs.formats.reader_process._SECONDS", 0.5)
    file = tmp_path / "k.h5"
    with h5py.File(file, "w") as made:
        made["labels"] = np.array(["a", "b"], dtype=object)
    assert list(read_vector(file, "labels")) == ["a", "b"]
    content = bytearray(file.read_bytes())
    heap = content.index(b"GCOL")
    last = heap + 16 + 24
    assert content[last] == 2
    content[last + 8] = 9
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"k.h5 is damaged, or made to do harm: the process that read it"):
        read_vector(file, "labels")


def test_an_interrupted_reading_leaves_nothing_to_the_next(tmp_path, monkeypatch):
    """In a notebook, say, where work goes on in the same process."""
    for name, value in (("first", 1.0), ("second", 2.0)):
        scipy.io.savemat(tmp_path / f"{name}.mat", {"K": np.full((3, 3), value)})

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("numpy.lib.format.read_array", interrupted)
        with pytest.raises(KeyboardInterrupt):
            matlab_arrays(tmp_path / "first.mat")[0].read()
    assert np.array_equal(matlab_arrays(tmp_path / "second.mat")[0].read(), np.full((3, 3), 2.0))


def test_what_inflates_to_far_more_has_the_time_for_it(tmp_path, monkeypatch):
    monkeypatch.setattr("dmkl.inputs.formats.reader_process._SECONDS", 0.01)
    scipy.io.savemat(tmp_path / "zeros.mat", {"K": np.zeros((3000, 3000))}, do_compression=True)
    assert not matlab_arrays(tmp_path / "zeros.mat")[0].read().any()


def test_a_damaged_member_of_an_npz_is_told(tmp_path):
    np.savez(tmp_path / "k.npz", K=psd(3, 40))
    data = bytearray((tmp_path / "k.npz").read_bytes())
    data[-5000] ^= 255
    (tmp_path / "k.npz").write_bytes(data)
    with pytest.raises(InputError, match=r"variable 'K' of .*k.npz is damaged: Bad CRC-32"):
        take_in(tmp_path / "k.npz", tmp_path)


def test_other_members_of_an_archive_are_no_arrays(tmp_path):
    np.savez(tmp_path / "k.npz", K=K)
    with zipfile.ZipFile(tmp_path / "k.npz", "a") as archive:
        archive.writestr("readme.txt", "about")
    same(take_in(tmp_path / "k.npz", tmp_path)[0], K)


# --- resuming ------------------------------------------------------------------------------------------------


def test_kernels_are_told_by_file_and_variable(tmp_path):
    np.savez(tmp_path / "k.npz", a=K[0], b=K[1])
    np.save(tmp_path / "stack.npy", K)
    source, _ = open_files([tmp_path / "k.npz", tmp_path / "stack.npy"])
    status = (tmp_path / "k.npz").stat()
    assert source.identity(1) == {
        "path": str(tmp_path / "k.npz"),
        "bytes": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "variable": "b",
    }
    assert source.identity(4)["index"] == 2
    assert source.identity(5) is None
    identities = [str(source.identity(j)) for j in range(5)]
    assert len(set(identities)) == 5
    os.utime(tmp_path / "k.npz", ns=(0, 0))
    assert open_files([tmp_path / "k.npz", tmp_path / "stack.npy"])[0].identity(1) != source.identity(1)


def test_a_zarr_folder_is_told_by_its_chunks(tmp_path):
    array = zarr.create_array(tmp_path / "k.zarr", data=K)
    before = open_files(tmp_path / "k.zarr")[0].identity(0)
    array[0, 0, 0] = 5.0
    assert open_files(tmp_path / "k.zarr")[0].identity(0) != before


def test_a_resumed_import_reads_only_what_is_left(tmp_path, monkeypatch):
    for j in range(3):
        np.save(tmp_path / f"K{j}.npy", K[j])
    np.save(tmp_path / "K2.npy", np.where(np.eye(7) > 0, np.nan, K[2]))
    paths = [tmp_path / f"K{j}.npy" for j in range(3)]
    out = tmp_path / "set.zarr"
    source, labels = open_files(paths)
    with pytest.raises(InputError, match=r"kernel 'K2': entry \(0, 0\) is nan"):
        ingest(out, source, labels, tile=3)
    np.save(tmp_path / "K2.npy", K[2])
    read = []
    original = np.load
    monkeypatch.setattr(np, "load", lambda path, **more: read.append(Path(path).name) or original(path, **more))
    source, labels = open_files(paths)
    same(dmkl.open(ingest(out, source, labels, tile=3)), K)
    assert not problems(out)
