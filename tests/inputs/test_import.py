"""Kernels and labels from files: every format in both orders of its axes, the role of each array, refusals."""

import gzip
import re
import struct
from functools import partial

import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.io
import scipy.sparse
import zarr
from helpers.containers import write, write_hdf5, write_zarr
from helpers.damage import flip
from helpers.faults import interrupted
from helpers.matlab import OBJECT, write_v5, write_v73
from helpers.reading import imported, kernels_in
from helpers.references import memory_below, psd
from hypothesis import given
from hypothesis import strategies as st

import dmkl
from dmkl.errors import InputError
from dmkl.inputs import as_features, open_files, read_file
from dmkl.store.ingest import ingest
from dmkl.store.tiles import TileWriter

K = psd(3, 7).round(3)
CUBE = psd(4, 4)
R = np.random.default_rng(0).normal(size=(3, 4, 7)).round(3)
Y = np.arange(7) % 3
SAMPLES = [f"s{i}" for i in range(7)]
ROWS = [f"new {i}" for i in range(4)]
SPLITS = np.array([[0, 0, 0, 1, 1, 2, 2], [2, 2, 0, 0, 0, 1, -1]])
NAMES = ["rbf", "chi2", "linear"]
FRAME = pd.DataFrame(K[0], index=SAMPLES, columns=SAMPLES)
LABELED = {"labels": Y, "samples": SAMPLES, "splits": SPLITS, "names": NAMES}


def check_taken(paths, out, more, expected):
    """Compare an import with the expected "kernels", "notes" (patterns) and attributes of the set."""
    made, source = imported(paths, out, **more)
    for name, value in expected.items():
        if name == "kernels":
            np.testing.assert_array_equal(made, value)
        elif name == "diagonal":
            np.testing.assert_array_equal(made.view.source.diagonal(np.arange(len(made))), value)
        elif name == "notes":
            assert len(source.notes) == len(value)
            assert all(map(re.search, value, source.notes))
        else:
            np.testing.assert_array_equal(getattr(made, name), value)


def written(folder, files, more=None):
    """Write files by name; return the paths of those to import, and `more` with the paths of its files."""
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        write(folder / name, content)
    more = {key: folder / value if key in ("labels", "samples") else value for key, value in (more or {}).items()}
    return [path for name in files if (path := folder / name) not in more.values()], more


# --- contents of files ---------------------------------------------------------------------------------------
def taken(files, given=None, **expected):
    """Files, the options of the import, and the expected result."""
    return files, given or {}, expected


def refused(files, message, given=None):
    return files, given or {}, message


STACK = {"K": K, "y": Y, "samples": SAMPLES, "split": SPLITS, "kernels": NAMES, "scale": 2.0}
MATRICES = {"a": K[0], "b": K[1], "other": psd(1, 5)[0], "r1": R[0], "r2": R[1]}
MANY = np.random.default_rng(0).normal(size=(600, 2))
OTHERS = {"z": K[0], "K10": K[1], "K9": K[2], "gamma": np.ones((1, 1)), "features": np.ones((7, 2))}
TAKEN = {
    "C order": taken({"k.npy": K}, kernels=K, notes=[]),
    "Fortran order": taken({"k.npy": np.asfortranarray(K.transpose(1, 2, 0))}, kernels=K, notes=[]),
    "kernels in the middle": taken({"k.npy": K.transpose(1, 0, 2)}, kernels=K, notes=[]),
    "one kernel": taken({"one.npy": K[0]}, kernels=K[:1], names=["one"]),
    "rectangular, first axis": taken({"k.npy": R}, {"kernel_axis": 0}, kernels=R),
    "rectangular, last axis": taken({"k.npy": R}, {"kernel_axis": 2}, kernels=R.transpose(2, 0, 1)),
    "a cube": taken({"k.npy": CUBE}, kernels=CUBE, notes=["4 × 4 × 4: its kernels were taken along axis 0"]),
    "labeled": taken({"k.npz": STACK}, kernels=K, notes=[], **LABELED),
    "in the order in which they were saved": taken(
        {"k.npz": OTHERS}, kernels=K, names=["z", "K10", "K9"], notes=[r"k\.npz: left out features \(7 × 2 float64\)$"]
    ),
    "chosen variables": taken(
        {"k.npz": MATRICES},
        {"variables": ["b", "a"]},
        kernels=K[[1, 0]],
        notes=[r"left out other \(5 × 5 float64\), r1"],
    ),
    "chosen rectangular variables": taken({"k.npz": MATRICES}, {"variables": ["r1", "r2"]}, kernels=R[:2]),
    "labels of columns": taken(
        {"k.npz": {"K": R, "y": Y}},
        {"kernel_axis": 0},
        labels=None,
        notes=["as long as the kernels' columns, and labels belong to their rows"],
    ),
    "one name in two groups": taken(
        {"k.h5": {"a/K": K[0], "b/K": K[1], "a/y": Y, "b/y": Y[::-1]}},
        names=["a/K", "b/K"],
        labels=None,
        notes=["(?s)labels: variable 'a/y' of.*so neither was taken"],
    ),
    "a Zarr array": taken({"k.zarr": K.transpose(1, 2, 0)}, kernels=K),
    "files and folders in the order given": taken(
        {"b/K.npy": K[0], "a/K.npy": K[1], "more.npz": {"c": K[2], "d": K[0]}, "labels.npy": Y},
        kernels=K[[0, 1, 2, 0]],
        names=["b/K", "a/K", "more/c", "more/d"],
        labels=Y,
    ),
    "several stacks": taken(
        {"a.npy": K, "b.npy": K[:2]}, kernels=[*K, *K[:2]], names=["a_0", "a_1", "a_2", "b_0", "b_1"]
    ),
    "text with names on both axes": taken(
        {f"{name}.csv": pd.DataFrame(R[j], ROWS, SAMPLES).to_csv() for j, name in enumerate(NAMES)},
        kernels=R,
        samples=ROWS,
        train_samples=SAMPLES,
        names=NAMES,
    ),
    "tasks": taken(
        {
            "k.npy": K,
            "samples.txt": "\n".join(SAMPLES),
            "labels.csv": pd.DataFrame(np.eye(7, 2, dtype=int), SAMPLES, ["cat", "dog"]).iloc[::-1].to_csv(),
        },
        labels=np.eye(7, 2),
        tasks=["cat", "dog"],
    ),
    "a title above words": taken(
        {"k.npy": K, "labels.txt": "diagnosis\n" + "\n".join("abcabca")},
        labels=list("abcabca"),
        notes=[r"its first line \('diagnosis'\) was taken for a header, since 7 values follow it"],
    ),
    "splits in words": taken(
        {"k.npy": K, "splits.txt": "train\ntrain\nval\ntest\nTest\nnone\nvalidation\n"}, splits=[[0, 0, 1, 2, 2, -1, 1]]
    ),
    "given files in place of others": taken(
        {
            "k.npz": {"K": K, "y": Y},
            "samples.txt": "\n".join(SAMPLES),
            "y.npy": Y[::-1],
            "ids.txt": "\n".join("gfedcba"),
        },
        {"labels": "y.npy", "samples": "ids.txt"},
        labels=Y[::-1],
        samples=list("gfedcba"),
    ),
    "given samples of those that a file names": taken(
        {"k.npz": {"K": K, "y": Y, "samples": SAMPLES}, "ids.txt": "s5\ns1\ns4\n"},
        {"samples": "ids.txt"},
        kernels=K[:, [5, 1, 4]][:, :, [5, 1, 4]],
        labels=Y[[5, 1, 4]],
    ),
    "more lines than are read at once": taken(
        {"k.csv": "\n".join(",".join(map(repr, row)) for row in MANY.tolist())}, kernels=[MANY]
    ),
}
LINES = [",".join(map(repr, row)) for row in K[0].tolist()]
TEXT = {
    "header alone": FRAME.to_csv(index=False),
    "commas after a comment": "\n".join(["# made by savetxt", *LINES]),
    "decimal commas, blanks": "\n".join(" ".join(str(x).replace(".", ",") for x in row) for row in K[0]),
    "blank lines and comments": "# first\n\n" + "\n\n% between\n".join(LINES) + "\n\n# last\n",
    "delimiters at the ends": "".join(f"{line},\n" for line in LINES),
    "numbers as names": pd.DataFrame(K[0]).to_csv(),
    "numbers as header": FRAME.set_axis(range(1003, 1010), axis=1).to_csv(index=False),
}
"""Layouts of text; `test_forms` has those with names of rows."""
NAMED = {"header alone": SAMPLES, "numbers as header": [str(i) for i in range(1003, 1010)]}
for layout, text in TEXT.items():
    file = "k.csv" if "comma" in layout or "header" in layout else "k.txt"
    samples = NAMED.get(layout, [str(i) for i in range(7)])
    TAKEN[layout] = taken({file: text}, kernels=K[:1], names=["k"], samples=samples)
SINGLE = K[:2].astype("f4")
DIAGONAL = np.abs(R[:, :, 0]) + 1
TAKEN_OF_MATLAB = {
    "a stack with labels": taken(
        {
            "K": K.transpose(1, 2, 0),
            "y": Y[None, :].astype(float),
            "ids": SAMPLES,
            "splits": SPLITS.T.astype(float),
            "kernel_names": np.array(NAMES),
            "lam": 0.5,
            "options": {"gamma": 2.0},
        },
        kernels=K,
        **LABELED,
    ),
    "a cube": taken({"K": CUBE.transpose(1, 2, 0)}, kernels=CUBE, notes=["taken along axis 2"]),
    "rectangular": taken(
        {
            "K": R.transpose(1, 2, 0),
            "diagonal": DIAGONAL.T,
            "target": Y[:4, None],
            "sample": np.array(ROWS),
            "train_samples": [*SAMPLES[:-1], "Zoë"],
        },
        kernels=R,
        diagonal=DIAGONAL,
        samples=ROWS,
        train_samples=[*SAMPLES[:-1], "Zoë"],
        labels=Y[:4],
        notes=["taken as 3 rectangular kernels, along MATLAB's last axis", "2 of the 3 classes have one sample each"],
    ),
    "rectangular, first axis": taken({"K": R}, {"kernel_axis": 0}, kernels=R),
    "matrices": taken(
        {"K1": SINGLE[0], "K2": SINGLE[1], "y": np.array(list("abababa")), "n": 3.0},
        kernels=SINGLE,
        names=["K1", "K2"],
        dtype=np.dtype("f4"),
        notes=[],
        labels=list("abababa"),
    ),
    "cells": taken(
        {"K": list(K), "names": ["a", "", "c"], "y": [*map(float, Y)]}, kernels=K, names=["a", "", "c"], labels=Y
    ),
    "rectangular cells": taken({"K": list(R), "y": [*map(float, Y[:4])]}, kernels=R, labels=Y[:4]),
    "doubles of whole numbers": taken({"K": np.eye(5)}, kernels=np.eye(5)[None], dtype=np.dtype("f8")),
}
for case, (variables, options, expected) in TAKEN_OF_MATLAB.items():
    for file in ("v5.mat", "v73.mat"):
        TAKEN[f"{case}, {file}"] = taken({file: variables}, options, **expected)


@pytest.mark.parametrize("case", TAKEN)
def test_what_is_taken_from_files(tmp_path, case):
    files, given, expected = TAKEN[case]
    paths, more = written(tmp_path, files, given)
    check_taken(paths if len(paths) > 1 else paths[0], tmp_path / "set.zarr", more, expected)


def test_one_kernel_of_a_file_is_in_memory(tmp_path):
    many = psd(12, 100)
    np.savez(tmp_path / "k.npz", K=many)
    source, _ = open_files(tmp_path / "k.npz")
    with memory_below(5 * many[0].nbytes):
        for matrix in source.matrices():
            matrix[0:2, 0:2]


# --- MATLAB --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("write", "transposed", "label"),
    [(write_v5, True, "Y"), (write_v5, False, None), (write_v73, False, "gt"), (write_v73, True, "label")],
)
def test_matlab_cells_of_views_are_features(tmp_path, write, transposed, label):
    views = [np.random.default_rng(d).random((7, d)) for d in (3, 5, 4)]
    cells = [view.T for view in views] if transposed else views
    write(tmp_path / "x.mat", X=cells, **({} if label is None else {label: Y[:, None] + 1.0}))
    features = as_features(tmp_path / "x.mat")
    assert list(features.blocks) == ["X_0", "X_1", "X_2"]
    for block, view in zip(features.blocks.values(), views, strict=True):
        np.testing.assert_array_equal(block.read(slice(2, 6)), view[2:6])
    assert label is None or features.labels.labels.tolist() == (Y + 1).tolist()
    why = "equally many in all" if label is None else "as many as labels"
    axis = "columns" if transposed else "rows"
    assert features.notes[0].endswith(f"3 feature matrices, of which the {axis} were taken for samples (7, {why})")


def test_matlab_cells_of_equal_vectors_are_labels(tmp_path):
    """Some data sets have a vector of labels for each view."""
    labels = Y[None] + 1.0
    write_v5(tmp_path / "x.mat", X=[np.random.default_rng(d).random((7, d)) for d in (3, 4)], gt=[labels] * 2)
    features = as_features(tmp_path / "x.mat")
    assert list(features.blocks) == ["X_0", "X_1"]
    assert features.labels.labels.tolist() == (Y + 1).tolist()
    write_v5(tmp_path / "k.mat", K=list(K), truelabel=[labels, labels + 1])
    with pytest.raises(InputError, match=r"'truelabel' .* is a cell array of parts that differ"):
        read_file(f"{tmp_path / 'k.mat'}:truelabel")


def test_objects_of_matlab_are_left_out_and_no_labels(tmp_path):
    """String arrays and tables, for example, in whose place are numbers that only MATLAB understands."""
    write_v73(tmp_path / "v73.mat", K=K[0], labels=OBJECT, names=[OBJECT, OBJECT])
    scipy.io.savemat(tmp_path / "v5.mat", {"K": K[0]})
    scipy.io.savemat(tmp_path / "numbers.mat", {"x": OBJECT})

    def element(kind, content):
        return struct.pack("<II", kind, len(content)) + content.ljust(-(-len(content) // 8) * 8, b"\0")

    # mxOPAQUE_CLASS as MATLAB writes it: flags, no shape, the names of the variable, the system and the class, numbers.
    parts = [element(6, struct.pack("<II", 17, 0)), *(element(1, name) for name in (b"labels", b"MCOS", b"string"))]
    with open(tmp_path / "v5.mat", "ab") as file:
        file.write(element(14, b"".join(parts) + (tmp_path / "numbers.mat").read_bytes()[128:]))
    for name in ("v73.mat", "v5.mat"):
        kernels, source, known = kernels_in(tmp_path / name)
        np.testing.assert_array_equal(kernels, K[:1])
        assert known.labels is None
        assert re.search(r"left out .*object whose values only MATLAB reads: save cellstr\(x\)", source.notes[0])
    for name in ("v73.mat:labels", "v73.mat:names"):
        with pytest.raises(InputError, match=r"is a .*string, an object whose values only MATLAB reads: save cellstr"):
            read_file(tmp_path / name)


# --- HDF5 and Zarr -------------------------------------------------------------------------------------------
NESTED = {"kernels/K10": K[2], "kernels/K9": K[1], "kernels/K1": K[0], "meta/labels": Y, "splits": SPLITS}
NESTED |= {"diagonal": np.ones((3, 7)), "sample-names": SAMPLES}  # that of symmetric kernels is redundant


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("k.h5", partial(write_hdf5, empty=h5py.Empty("f8"))),
        ("k.zarr", write_zarr),
        ("k.zarr", partial(write_zarr, zarr_format=3)),
    ],
)
def test_nested_groups_in_natural_order(tmp_path, name, write):
    write(tmp_path / name, **NESTED)
    expected = {"kernels": K, "names": ["K1", "K9", "K10"], "labels": Y, "splits": SPLITS, "samples": SAMPLES}
    check_taken(tmp_path / name, tmp_path / "set.zarr", {}, {**expected, "notes": []})


@pytest.mark.parametrize("zarr_format", [None, 2, 3])
@pytest.mark.parametrize("chunks", [(1, 2, 2), (1, 2, 7), (3, 3, 3)])
def test_stacks_in_any_chunks(tmp_path, zarr_format, chunks):
    if zarr_format is None:
        with h5py.File(tmp_path / "k.h5", "w") as file:
            file.create_dataset("K", data=K, chunks=chunks, compression="gzip")
    else:
        zarr.open_group(tmp_path / "k.zarr", zarr_format=zarr_format).create_array("K", data=K, chunks=chunks)
    (path,) = tmp_path.iterdir()
    np.testing.assert_array_equal(imported(path, tmp_path / "set.zarr")[0], K)


def test_kernels_that_a_shape_claims_and_no_chunk_holds_are_refused(tmp_path):
    array = zarr.create_array(tmp_path / "k.zarr", shape=(65536, 5, 5), chunks=(3, 5, 5), dtype="float64")
    array[:3] = K[:3, :5, :5]
    matrices = open_files(tmp_path / "k.zarr")[0].matrices()
    for expected in K[:3]:
        np.testing.assert_array_equal(next(matrices)[:, :], expected[:5, :5])
    with pytest.raises(InputError, match="nothing was ever written at position 3 of axis 0, which would be zero"):
        next(matrices)


# --- text ----------------------------------------------------------------------------------------------------
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
    np.testing.assert_array_equal(kernels_in(path)[0], [matrix])


# --- folders, and labels beside kernels ----------------------------------------------------------------------
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
    made, source = imported(folder, tmp_path / "set.zarr")
    np.testing.assert_allclose(made, K)
    assert made.names == ("K1", "K2", "K10")
    assert made.samples[3] == "cell line 3"
    np.testing.assert_array_equal(made.splits, SPLITS)
    assert len(source.notes) == 2
    assert source.notes[0].startswith(f"{folder}: left out notes.md; expected ")
    assert "row i was taken for the i-th name in " in source.notes[1]


def test_names_of_a_folder_apply_in_order_and_it_is_said(tmp_path):
    folder = tmp_path / "kernels"
    written(tmp_path, {**{f"kernels/K{j}.npy": K[j] for j in range(3)}, "kernels/names.txt": "\n".join(NAMES)})
    note = "^the kernels were named in the order in which they stand: K0 is rbf, K1 is chi2, K2 is linear$"
    check_taken(folder, tmp_path / "set.zarr", {}, {"names": NAMES, "notes": [note]})
    assert open_files(folder, names=["x", "y", "z"])[0].names == ["x", "y", "z"]
    (folder / "names.txt").write_text("only one\n")
    with pytest.raises(InputError, match=r"names.txt has 1 names, expected one for each of the 3 kernels"):
        open_files(folder)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("1\n2\n3\n", [1, 2, 3]),
        ("1 2 3\n", [1, 2, 3]),
        ("a b\nc\n", ["a b", "c"]),
        ("a,b,c\n", ["a", "b", "c"]),
        ("height\n1.5\nNA\n2\n", [1.5, np.nan, 2]),
        ("sample,y\n1,5\n2,6\n", [5, 6]),
        ("sample,y\na,01\nb,1\nc,02\n", ["01", "1", "02"]),
        ("sample y\na 1\nb\nc 3\nd 4\n", [1, np.nan, 3, 4]),
        ("0,a\n1,b\n2,a\n", ["a", "b", "a"]),
        ('"a"\n"b"\n', ["a", "b"]),
        ("0,1\n1,0\n", [[0, 1], [1, 0]]),
    ],
)
def test_vectors_in_text(tmp_path, content, expected):
    (tmp_path / "v.csv").write_text(content)
    np.testing.assert_array_equal(read_file(tmp_path / "v.csv").values, expected)


def test_vectors_from_other_kinds_of_file(tmp_path):
    np.save(tmp_path / "v.npy", np.array([[1.0, 2.0, 3.0]]))
    np.testing.assert_array_equal(read_file(tmp_path / "v.npy").values, [1, 2, 3])
    assert read_file(tmp_path / "v.npy").values.dtype == np.int64
    write_v5(tmp_path / "v.mat", a=[*"xyz"], b=np.ones((3, 3)))
    assert list(read_file(tmp_path / "v.mat", "a").values) == [*"xyz"]
    with pytest.raises(InputError, match=r"v.mat holds 2 arrays, expected one: a \(3 strings\), b.*v.mat:NAME"):
        read_file(tmp_path / "v.mat")
    with pytest.raises(InputError, match=r"v.mat has no variable 'c'"):
        read_file(f"{tmp_path / 'v.mat'}:c")
    (tmp_path / "v.csv").write_text("sample,bmi\na,20.5\nb,22\n")
    with pytest.raises(InputError, match=r"v.csv has no column 'weight'; it has 'sample', 'bmi'"):
        read_file(f"{tmp_path / 'v.csv'}:weight")
    (tmp_path / "a:b.txt").write_text("1\n2\n")
    np.testing.assert_array_equal(read_file(tmp_path / "a:b.txt").values, [1, 2])


# --- refusals ------------------------------------------------------------------------------------------------
FEATURES = {"hsv": np.ones((7, 30)), "y": Y, "names": ["a"]}
REFUSED = {
    "no axis": refused({"k.npy": R}, r"k.npy has shape \(3, 4, 7\).*give the axis that counts the kernels"),
    "another axis": refused({"k.npy": R}, "the kernel axis must be 0, 1 or 2, got 3", {"kernel_axis": 3}),
    "no variable": refused(
        {"k.npz": MATRICES}, "has no variable 'c'; it has 'a', 'b', 'other', 'r1', 'r2'", {"variables": ["c"]}
    ),
    "two stacks": refused(
        {"k.npz": {"train": K, "test": R}}, r"several arrays that may be kernels: train \(3 × 7 × 7 float64\), test"
    ),
    "few samples": refused(
        {"k.npz": {"K": K, "samples": SAMPLES[:5]}}, r"found 5 names of samples, expected one for each of the 7 rows"
    ),
    "short splits": refused(
        {"k.npz": {"K": K, "splits": SPLITS[:, :4]}}, r"variable 'splits' .* expected .splits, 7.: a part for each"
    ),
    "another word in splits": refused(
        {"k.npy": K, "splits.txt": "train\n" * 6 + "holdout\n"},
        "splits.txt holds 'holdout', expected train, validation",
    ),
    "few names": refused(
        {"k.npz": {"K": K, "names": ["a"]}}, "variable 'names' .* has 1 names, expected one for each of the 3 kernels"
    ),
    "features": refused({"k.npz": FEATURES}, r"found hsv \(7 × 30 float64\).*a table of features is for dmkl build"),
    "four axes": refused({"k.npz": {"K": np.ones([2] * 4)}}, "expected one kernel .* or several", {"variables": ["K"]}),
    "complex numbers": refused({"k.npy": np.eye(4) * 1j}, "k.npy .*expected real numbers"),
    "no file of labels": refused({"k.npy": K}, "there is no file .*none.txt", {"labels": "none.txt"}),
    "shapes of files": refused(
        {"a.npy": K[0], "b.npy": psd(1, 5)[0], "c.npy": psd(1, 6)[0]},
        r"differ in shape: a.npy 7 × 7, b.npy 5 × 5, c.npy 6 × 6",
    ),
}


BAD_TEXT = {
    "ragged": ("1,2,3\n2,1,0\n3,0\n", "line 3: found 2 cells, expected 3"),
    "long header": ("a,b,c,d\n2,1,0\n3,0,1\n1,1,1\n", "line 1: found 4 titles, expected 3 as in the next line"),
    "a word": ("1,2,3\n2,1,0\n# note\n3,zero,1\n", "line 4, column 2: 'zero' is not a number"),
    "a word in the first line": (
        "1,x,3\n2,1,0\n3,0,1\n",
        "line 1: found words and numbers .*title the first column 'sample'",
    ),
    "names and numbers": ("x,2,3\ny,1,0\n3,0,1\n", "'x' in the first column is not a number, others .* 'sample'"),
    "a gap": ("1,2,3\n2,,0\n3,0,1\n", r"kernel 'k': entry \(1, 1\) is nan"),
    "thousands": ("1 2 3\n2 1_000 1\n3 1 4\n", "line 2, column 2: '1_000' is not a number"),
    "fewer rows than stated": ("4\na 1 2 3 4\nb 2 1 2 3\nc 3 2 1 2\n", "states 4 rows in its first line, and has 3"),
    "fewer cells than stated": ("2\na 1 2\n3\nb 2 1\n4\n", "states 2 rows and holds 8 cells, expected 3 for each row"),
    "nothing": ("\n# nothing\n", "holds 1 lines of words and no numbers"),
    "Latin-1": ("a,é\n1,2\n2,1\n".encode("latin-1"), "not written in UTF-8"),
    "binary": (b"1,2\n\0\1\n", "is no text: line 2 holds a zero byte"),
}
BAD_MATLAB = {
    "sparse": ({"K": scipy.sparse.csc_matrix(np.eye(5))}, "'K' of .*mat is sparse, but kernels are stored dense"),
    "complex": ({"K": np.eye(5) * 1j}, "variable 'K' of .*mat is complex, expected real numbers"),
    "cells": ({"K": [np.eye(5), "text"]}, "there are no kernels in .*K .*a cell array of unlike parts"),
}
REFUSED |= {case: refused({"k.csv": text}, message) for case, (text, message) in BAD_TEXT.items()}
for file in ("v5.mat", "v73.mat"):
    REFUSED |= {f"{case}, {file}": refused({file: values}, message) for case, (values, message) in BAD_MATLAB.items()}
for case, data in {"gzip, cut short": gzip.compress(LINES[0].encode())[:-10], "no gzip": b"1,2\n3,4\n"}.items():
    REFUSED[case] = refused({"k.csv.gz": data}, "k.csv.gz is not a whole .gz file")


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(tmp_path, case):
    files, given, message = REFUSED[case]
    paths, more = written(tmp_path, files, given)
    with pytest.raises(InputError, match=message) as caught:
        imported(paths if len(paths) > 1 else paths[0], tmp_path / "set.zarr", **more)
    assert "k.csv" not in files or re.search("k.csv|kernel 'k'", str(caught.value))


def test_missing_and_unknown_files(tmp_path):
    (tmp_path / "k.png").write_bytes(b"PK\3\4\0")
    (tmp_path / "empty").mkdir()
    (tmp_path / "bare.zarr").mkdir()
    dmkl.create(tmp_path / "set.zarr", K)
    for path, message in (
        ("none.npy", "there is no file .*none.npy"),
        ("k.png", r"k.png has the extension '.png', expected .npy, .npz, .mat"),
        ("empty", "there are no kernels in .*empty"),
        ("bare.zarr", "bare.zarr is a folder without Zarr metadata"),
        ("set.zarr", "set.zarr is a kernel set already; open it with dmkl.open"),
    ):
        with pytest.raises(InputError, match=message):
            open_files(tmp_path / path)
    with pytest.raises(InputError, match="there are no kernels in no files"):
        open_files([])


BIG = psd(2, 40)
DAMAGED = {"k.npy": BIG, "k.zarr": BIG, **{name: {"K": BIG} for name in ("k.npz", "k.mat", "v73.mat", "k.h5")}}


@pytest.mark.parametrize("name", DAMAGED)
@pytest.mark.parametrize("keep", [0, 600, 0.7])
def test_damaged_files_are_named(tmp_path, name, keep):
    written(tmp_path, {name: DAMAGED[name]})
    path = tmp_path / name
    if path.is_dir():
        path = path / ("zarr.json" if keep != 0.7 else "c/0/0/0")
    data = path.read_bytes()
    path.write_bytes(data[: keep if isinstance(keep, int) else int(keep * len(data))])
    with pytest.raises(InputError) as caught:
        imported(tmp_path / name, tmp_path / "set.zarr")
    assert name in str(caught.value)


def test_a_file_that_hdf5_would_read_without_end_is_damaged(tmp_path, monkeypatch):
    """After an object with a wrong length, the heap of strings continues with free objects of zero bytes."""
    monkeypatch.setattr("dmkl.files.reader_process._SECONDS", 0.5)
    file = tmp_path / "k.h5"
    write_hdf5(file, labels=np.array(["a", "b"]))
    assert list(read_file(file, "labels").values) == ["a", "b"]
    content = bytearray(file.read_bytes())
    heap = content.index(b"GCOL")
    last = heap + 16 + 24
    assert content[last] == 2
    content[last + 8] = 9
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"k.h5 is damaged, or made to do harm: the process that read it"):
        read_file(file, "labels")


def test_an_interrupted_reading_leaves_nothing_to_the_next(tmp_path):
    """In a notebook, for example, the process continues after an interruption."""
    for name, value in (("first", 1.0), ("second", 2.0)):
        scipy.io.savemat(tmp_path / f"{name}.mat", {"K": np.full((3, 3), value)})
    with interrupted(np.lib.format, "read_array"):
        kernels_in(tmp_path / "first.mat")
    np.testing.assert_array_equal(kernels_in(tmp_path / "second.mat")[0], np.full((1, 3, 3), 2.0))


def test_what_inflates_to_far_more_has_the_time_for_it(tmp_path, monkeypatch):
    monkeypatch.setattr("dmkl.files.reader_process._SECONDS", 0.01)
    scipy.io.savemat(tmp_path / "zeros.mat", {"K": np.zeros((3000, 3000))}, do_compression=True)
    assert not kernels_in(tmp_path / "zeros.mat")[0][0].any()


def test_a_damaged_member_of_an_archive_is_named(tmp_path):
    np.savez(tmp_path / "k.npz", K=psd(3, 40))
    flip(tmp_path / "k.npz", -5000, 255)
    with pytest.raises(InputError, match=r"variable 'K' of .*k.npz is damaged: Bad CRC-32"):
        kernels_in(tmp_path / "k.npz")


@pytest.mark.parametrize("narrow", [0, 1, 2])
def test_the_widest_type_of_all_files_is_stored(tmp_path, narrow):
    kernels = [kernel.astype("f4" if j == narrow else "f8") for j, kernel in enumerate(K)]
    for j, kernel in enumerate(kernels):
        np.save(tmp_path / f"{j}.npy", kernel)
    made, _ = imported([tmp_path / f"{j}.npy" for j in range(3)], tmp_path / "set.zarr")
    np.testing.assert_array_equal(made, kernels)
    for forms in (kernels, [kernels[0].tolist(), *kernels[1:]], [pd.DataFrame(kernel) for kernel in kernels]):
        np.testing.assert_array_equal(dmkl.create(None, forms), kernels)
    labels = [0, 1] * 3 + [0]
    assert dmkl.Uniform().fit(kernels, labels).n_features_in_ == 7


# --- resuming ------------------------------------------------------------------------------------------------
def test_a_resumed_import_stores_what_is_left_or_changed(tmp_path, monkeypatch):
    paths = [tmp_path / name for name in ("k.npz", "stack.npy", "k.zarr", "last.npy")]
    np.savez(paths[0], x=K[0], z=K[1])
    np.save(paths[1], K)
    array = zarr.create_array(paths[2], data=K)
    np.save(paths[3], np.where(np.eye(7) > 0, np.nan, K[2]))
    out = tmp_path / "set.zarr"
    with pytest.raises(InputError, match=r"kernel 'last.npy': entry \(0, 0\) is nan"):
        ingest(out, *open_files(paths), tile=3)
    np.savez(paths[0], x=K[0], z=2 * K[1])
    array[0] = 3 * K[0]
    np.save(paths[3], K[2])
    stored, write = set(), TileWriter.write
    monkeypatch.setattr(TileWriter, "write", lambda self, j, *tile: stored.add(j) or write(self, j, *tile))
    made, _ = imported(paths, out)
    np.testing.assert_array_equal(made, [K[0], 2 * K[1], *K, 3 * K[0], *K[1:], K[2]])
    assert stored == {0, 1, 5, 6, 7, 8}
