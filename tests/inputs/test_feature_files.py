"""Features from all supported inputs: equal numbers, reads in parts, order of samples, refusals."""

from uuid import uuid4

import dask
import dask.array as da
import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import xarray as xr
import zarr
from helpers.containers import write
from hypothesis import given
from hypothesis import strategies as st

from dmkl.errors import InputError
from dmkl.inputs.features import as_features

RNG = np.random.default_rng(0)
A = RNG.normal(size=(7, 3))
B = RNG.normal(size=(7, 5)).astype(np.float32)
SAMPLES = [f"s{i}" for i in range(7)]
Y = np.arange(7) % 3
SPLITS = np.array([[0, 0, 0, 1, 1, 2, 2], [2, 2, 0, 0, 0, 1, -1]], dtype=np.int8)
SHUFFLED = [3, 0, 6, 1, 5, 2, 4]


def same(block, expected):
    """Check that the block gives the expected values for any selection of rows."""
    assert block.shape == expected.shape
    assert block.dtype == (expected.dtype)
    for rows in (slice(0, len(expected)), slice(2, 5), slice(6, 7), slice(4, 4)):
        part = block.read(rows)
        assert part.dtype == block.dtype
        np.testing.assert_array_equal(part, expected[rows])


class Counting:
    """An array that records the rows that were read."""

    def __init__(self, values):
        self.values, self.shape, self.dtype, self.read = values, values.shape, values.dtype, []

    def __getitem__(self, key):
        rows = key[0]
        self.read += list(range(*rows.indices(len(self.values)))) if isinstance(rows, slice) else rows.tolist()
        return self.values[key]


# --- in memory -----------------------------------------------------------------------------------------------
ARRAYS = {
    "numpy": lambda values, _: values,
    "fortran": lambda values, _: np.asfortranarray(values),
    "lists": lambda values, _: values.tolist(),
    "dask": lambda values, _: da.from_array(values, chunks=(3, 2)),
    "masked": lambda values, _: np.ma.masked_array(values),
    "frame": lambda values, _: pd.DataFrame(values),
    "xarray": lambda values, _: xr.DataArray(values),
    "hdf5": lambda values, path: h5py.File(path / f"{uuid4()}.h5", "w").create_dataset("a", data=values),
    "zarr": lambda values, path: zarr.create_array(path / f"{uuid4()}.zarr", data=values, chunks=(2, 2)),
    "counting": lambda values, _: Counting(values),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_every_kind_of_array(tmp_path, kind):
    make = ARRAYS[kind]
    features = as_features({"a": make(A, tmp_path), "b": B})
    assert list(features.blocks) == ["a", "b"] == [block.name for block in features.blocks.values()]
    assert features.samples is None
    same(features.blocks["a"], A)
    same(features.blocks["b"], B)
    shuffled = pd.DataFrame(B[SHUFFLED], index=[SAMPLES[i] for i in SHUFFLED])
    features = as_features({"a": make(A, tmp_path), "b": shuffled}, samples=SAMPLES)
    same(features.blocks["a"], A)
    same(features.blocks["b"], B)
    expected = np.where((Y > 0)[:, None], A, np.nan)
    same(as_features({"a": make(A, tmp_path)}, present={"a": Y > 0}).blocks["a"], expected)
    if kind in ("numpy", "dask", "xarray", "hdf5", "zarr", "counting"):
        features = as_features(make(A, tmp_path))
        assert list(features.blocks) == ["X"]
        same(features.blocks["X"], A)


def test_only_the_rows_asked_for_are_read():
    counting, named = Counting(A), Counting(B)
    features = as_features({"a": counting, "b": named}, present={"b": ~np.isin(np.arange(7), [2, 3])})
    assert counting.read == named.read == []
    features.blocks["a"].read(slice(2, 4))
    assert counting.read == [2, 3]
    features.blocks["b"].read(slice(2, 5))
    assert named.read == [4]
    features.blocks["b"].read(slice(2, 4))
    assert named.read == [4]
    chunks = []
    lazy = da.from_array(A, chunks=(2, 3)).map_blocks(
        lambda part: chunks.append(len(part)) or part, dtype=A.dtype, meta=np.empty((0, 0))
    )
    np.testing.assert_array_equal(as_features(lazy).blocks["X"].read(slice(2, 4)), A[2:4])
    assert chunks == [2]


@pytest.mark.parametrize(
    ("given", "expected"),
    [(t, "f4") for t in ("f2", "f4", "?", "i1", "u1", "i2", "u2")]
    + [(t, "f8") for t in ("f8", "i4", "u4", "i8", "u8", "g")],
)
def test_types(given, expected):
    values = np.arange(12).reshape(4, 3).astype(given)
    for form in (values, pd.DataFrame(values.astype("f8") if given == "g" else values)):
        block = as_features(form).blocks["X"]
        assert block.dtype == expected
        np.testing.assert_array_equal(block.read(slice(0, 4)), values.astype(expected))


def test_masked_arrays():
    mask = np.zeros(A.shape, dtype=bool)
    mask[2] = True
    for values in (np.ma.masked_array(A, mask), np.ma.masked_array((100 * A).astype("i2"), mask)):
        for form in (values, da.from_array(values, chunks=3)):
            read = as_features(form).blocks["X"].read(slice(1, 7))
            assert np.isnan(read).all(axis=1).tolist() == [False, True, False, False, False, False]
            np.testing.assert_array_equal(read[2:], np.asarray(values[3:], dtype=read.dtype))


def test_data_frames():
    frame = pd.DataFrame(A, columns=["age", "height", 3], index=pd.Index(range(10, 17)))
    features = as_features(frame)
    assert features.blocks["X"].columns == ("age", "height", "3")
    assert features.samples == [str(i) for i in range(10, 17)]
    same(features.blocks["X"], A)
    assert as_features(frame.reset_index(drop=True)).samples is None
    mixed = pd.DataFrame(
        {"a": pd.array([1, None, 3], dtype="Int8"), "b": np.float32([1.5, 2, 3]), "c": [True, True, False]}
    )
    np.testing.assert_array_equal(
        as_features(mixed).blocks["X"].read(slice(0, 3)), np.float32([[1, 1.5, 1], [np.nan, 2, 1], [3, 3, 0]])
    )
    assert as_features(mixed).blocks["X"].dtype == np.float32
    assert as_features(mixed.assign(d=[1, 2, 3])).blocks["X"].dtype == np.float64
    sparse = pd.DataFrame(np.eye(3)).astype(pd.SparseDtype("float64", 0.0))
    same(as_features(sparse).blocks["X"], np.eye(3))


def test_xarray():
    labeled = xr.DataArray(A, dims=("who", "gene"), coords={"who": SAMPLES, "gene": list("abc")})
    features = as_features({"a": labeled})
    assert (features.samples, features.blocks["a"].columns) == (SAMPLES, ("a", "b", "c"))
    dataset = xr.Dataset(
        {"a": labeled, "b": (("who", "pixel"), B), "y": ("who", Y), "split": (("split_number", "who"), SPLITS)},
        coords={"weight": ("gene", np.ones(3))},
    )
    features = as_features(dataset)
    same(features.blocks["a"], A)
    same(features.blocks["b"], B)
    assert list(features.blocks) == ["a", "b"]
    assert features.samples == SAMPLES
    assert features.blocks["b"].columns is None
    np.testing.assert_array_equal(features.labels.labels, Y)
    np.testing.assert_array_equal(features.labels.splits, SPLITS)
    assert features.notes == ["the dataset: left out weight (3 float64)"]
    tasks = xr.Dataset({"a": (("n", "d"), A), "labels": (("n", "task"), Y[:, None] == [0, 1]), "ids": ("n", SAMPLES)})
    features = as_features(tasks.assign_coords(task=["cat", "dog"]))
    assert features.samples == SAMPLES
    assert list(features.labels.tasks) == ["cat", "dog"]
    np.testing.assert_array_equal(features.labels.labels, Y[:, None] == [0, 1])


# --- order of samples ----------------------------------------------------------------------------------------
@st.composite
def named_blocks(draw):
    pool = draw(st.lists(st.text("abcxyz", min_size=1, max_size=3), min_size=1, max_size=12, unique=True))
    some = st.lists(st.sampled_from(pool), min_size=1, unique=True)
    orders = draw(st.lists(some, min_size=1, max_size=3))
    return orders, draw(st.none() | some), draw(st.sampled_from([pd.DataFrame, xr.DataArray]))


@given(named_blocks(), st.sampled_from(["exact", "inner", "outer"]), st.data())
def test_blocks_are_joined_and_put_in_order_by_name(case, join, data):
    orders, samples, kind = case
    samples, sets = samples if join == "outer" else None, list(map(set, orders))
    every = list(dict.fromkeys(name for order in orders for name in order))
    common = [name for name in orders[0] if name in set.intersection(*sets)]
    wanted = {"exact": orders[0], "inner": common, "outer": samples or every}[join]
    frames = {
        f"b{j}": pd.DataFrame(np.arange(2.0 * len(order)).reshape(-1, 2) + 100 * j, index=order, columns=["u", "v"])
        for j, order in enumerate(orders)
    }
    given = {name: kind(frame) for name, frame in frames.items()}
    if not all(names & set(wanted) for names in sets) or (join == "exact" and any(names != sets[0] for names in sets)):
        with pytest.raises(InputError, match=r"have none of the|no sample is in all|must have the same samples"):
            as_features(given, samples=samples, join=join)
        return
    features = as_features(given, samples=samples, join=join)
    assert features.samples == wanted
    rows = slice(*sorted((data.draw(st.integers(0, len(wanted))), data.draw(st.integers(0, len(wanted))))))
    for name, frame in frames.items():
        expected = frame.reindex(wanted).to_numpy()
        np.testing.assert_array_equal(features.blocks[name].read(slice(0, len(wanted))), expected)
        np.testing.assert_array_equal(features.blocks[name].read(rows), expected[rows])


def test_what_is_missing_is_noted():
    a, b = pd.DataFrame(A, index=SAMPLES), pd.DataFrame(B[:3], index=["s2", "new", "s4"])
    features = as_features({"a": a, "b": b}, samples=["s4", "s0"], join="outer")
    assert features.notes == [
        "features 'a': left out 5 rows that are none of the samples",
        "features 'b' lack 1 of the 2 samples",
        "features 'b': left out 2 rows that are none of the samples",
    ]
    with pytest.raises(InputError, match="'b' have none of the 1 samples: their names begin with 's2', 'new', 's4'"):
        as_features({"b": b}, samples=["s0"], join="outer")
    # A mask is combined with missing names.
    some = as_features({"a": a.iloc[:4]}, samples=SAMPLES, present={"a": np.arange(7) != 1}, join="outer")
    same(some.blocks["a"], np.where(np.isin(np.arange(7), [0, 2, 3])[:, None], A, np.nan))


# --- files ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["x.npz", "v5.mat", "v73.mat", "x.h5", "x.zarr"])
def test_arrays_of_a_file(tmp_path, name):
    path = tmp_path / name
    labeled = {"a": A, "b": B, "label": Y, "splits": SPLITS, "sample": SAMPLES}
    write(path, {**labeled, "ages": np.arange(7.0), "cube": np.ones((2, 2, 2))})
    features = as_features(path)
    assert list(features.blocks) == ["a", "b"]
    same(features.blocks["a"], A)
    same(features.blocks["b"], B)
    assert features.samples == SAMPLES
    np.testing.assert_array_equal(features.labels.labels, Y)
    np.testing.assert_array_equal(features.labels.splits, SPLITS)
    (note,) = features.notes
    assert all(part in note for part in ("left out", "ages", "cube"))
    some = as_features(str(path), samples=["s5", "s0", "s3"])
    same(some.blocks["a"], A[[5, 0, 3]])
    assert some.labels.labels.tolist() == Y[[5, 0, 3]].tolist()


def test_files_of_a_folder(tmp_path):
    np.save(tmp_path / "hog.npy", B)
    frame = pd.DataFrame(A, SAMPLES, ["a", "b", "c"]).iloc[::-1]
    frame.to_csv(tmp_path / "X.TSV.GZ", sep="\t", compression="gzip")
    (tmp_path / "samples.txt").write_text("\n".join(SAMPLES))
    labels = pd.DataFrame({"kind": list("aabbccc")}, pd.Index(SAMPLES, name="sample")).iloc[::-1]
    labels.to_csv(tmp_path / "labels.csv.gz", compression="gzip")
    (tmp_path / "notes.md").write_text("read me")
    features = as_features(tmp_path, samples=[SAMPLES[i] for i in SHUFFLED])
    assert set(features.blocks) == {"X", "hog"}
    assert features.blocks["X"].columns == ("a", "b", "c")
    same(features.blocks["X"], A[SHUFFLED])
    same(features.blocks["hog"], B[SHUFFLED])
    assert list(features.labels.labels) == ["aabbccc"[i] for i in SHUFFLED]
    assert any("notes.md" in note for note in features.notes)


def test_several_files_name_their_blocks(tmp_path):
    order = np.array(SAMPLES)[SHUFFLED]
    np.savez(tmp_path / "views.npz", a=A, b=B, ids=np.array(SAMPLES))
    np.savez(tmp_path / "more.npz", a=A[SHUFFLED] + 1, ids=order, y=Y[SHUFFLED])
    features = as_features([tmp_path / "views.npz", tmp_path / "more.npz"])
    assert list(features.blocks) == ["views/a", "views/b", "more"]
    same(features.blocks["more"], A + 1)
    assert features.labels.labels.tolist() == Y.tolist()


# --- tables --------------------------------------------------------------------------------------------------
FRAME = pd.DataFrame(A, columns=["u", "v", "w"])


def test_columns_that_are_called_labels_are_no_features(tmp_path, monkeypatch):
    monkeypatch.setattr("dmkl.inputs.formats.tables._STRIP_CELLS", 8)  # two rows at once
    path = tmp_path / "hog.csv"
    frame = FRAME.assign(id=[f"{i:03}" for i in range(7)], label=Y, split=["train"] * 4 + ["test"] * 3)
    frame.to_csv(path, index=False)
    features = as_features(path)
    assert features.samples == [f"{i:03}" for i in range(7)]
    same(features.blocks["hog"], A)
    assert features.labels.labels.tolist() == Y.tolist()
    assert np.ravel(features.labels.splits).tolist() == [0] * 4 + [2] * 3
    assert features.notes[:2] == [
        f"column 'label' of {path} was taken for labels, not for a feature",
        f"column 'split' of {path} was taken for splits, not for a feature",
    ]


def test_parquet_of_other_programs(tmp_path):
    from pyarrow import array, int8, parquet, table

    path = tmp_path / "x.parquet"
    FRAME.astype(np.float32).assign(w=[True, False] * 3 + [True]).to_parquet(path)
    features = as_features(path)
    assert features.samples is None  # the index only numbers the rows
    assert features.blocks["x"].dtype == np.float32
    assert features.blocks["x"].read(slice(0, 2))[:, 2].tolist() == [1, 0]
    parquet.write_table(table({"u": array([1, None, 3], int8()), "who": ["a", "b", "c"]}), path)
    features = as_features(path)
    assert features.samples == ["a", "b", "c"]
    same(features.blocks["x"], np.float64([[1], [np.nan], [3]]))


@pytest.mark.parametrize(
    ("text", "columns", "names", "values"),
    [
        ("1.5,2\n3,4\n", None, None, [[1.5, 2], [3, 4]]),
        ("0,1\n3,4\n", ("0", "1"), None, [[3, 4]]),
        (",7,9\na,1,2\n", ("7", "9"), ["a"], [[1, 2]]),
        (",u,v\n001,1.5,2\n02,3,4\n", ("u", "v"), ["001", "02"], [[1.5, 2], [3, 4]]),
        (",u,v\n10,1.5,2\n11,3,4\n", ("u", "v"), ["10", "11"], [[1.5, 2], [3, 4]]),
        (",u,v\n0,1.5,2\n1,3,4\n", ("u", "v"), None, [[1.5, 2], [3, 4]]),  # which only numbers the rows
        ("sample,7,9\n1,1,2\n", ("7", "9"), ["1"], [[1, 2]]),
        ("a,0.5,2\nb,3,4\n", None, ["a", "b"], [[0.5, 2], [3, 4]]),
        ('"u","v"\n"a",1,2\n"b",3,4\n', ("u", "v"), ["a", "b"], [[1, 2], [3, 4]]),
        ("\ufeffs1,1.5,2\ns2,2.5,1\n", None, ["s1", "s2"], [[1.5, 2], [2.5, 1]]),
        ("who,u\na,1\nb,\n", ("u",), ["a", "b"], [[1], [np.nan]]),
        ("3\t0,5\n7\t1,25\n3\t2,5\n", None, None, [[3, 0.5], [7, 1.25], [3, 2.5]]),
        ("id;u\na b;1\na b c;2\n", ("u",), ["a b", "a b c"], [[1], [2]]),  # no triangle of cells between blanks
        ("who,u\na,1\n,\nb,2\n,\n", ("u",), ["a", "b"], [[1], [2]]),  # as spreadsheets write emptied rows
        ("u,v\n1,2\n,\n3,4\n", ("u", "v"), None, [[1, 2], [np.nan, np.nan], [3, 4]]),
    ],
)
def test_headers(tmp_path, text, columns, names, values):
    (tmp_path / "x.csv").write_text(text, encoding="utf-8")
    features = as_features(tmp_path / "x.csv")
    assert features.blocks["x"].columns == columns
    assert features.samples == names
    np.testing.assert_array_equal(features.blocks["x"].read(slice(0, 9)), values)
    assert (columns is None) == any("its columns have no names" in note for note in features.notes)


UNLIKE = {"X": [np.ones((7, 3)), np.ones((6, 3))], "gt": np.arange(9.0)}
REFUSED_FILES = [
    *(
        ("a.csv", f"age\n{lines}", "may be numbers with decimal commas")
        for lines in ("1,5\n-0,25\n2,75", "1,5\n1,7", "1,05\n3,5")
    ),
    ("x.csv", "who,u,city\na,1,Rome\nb,2,Rome\n", r"column 'city' is not numeric, expected numbers; encode them"),
    ("x.csv", "", "holds no lines"),
    ("x.csv", "u,v\n", "has columns but no rows"),
    ("x.csv", "a b\nc d\ne f\ng\n", "has no column of numbers, found"),
    ("x.csv", "gene,7,9\na,1,2\n", "title the first column 'sample'"),
    ("x.csv", "id,u\na,1\na,2\n", "sample names must be unique, but 'a' occurs 2 times"),
    ("x.parquet", b"1 2\n3 4\n\0", "cannot be read as a table"),
    ("v5.mat", {"a": scipy.sparse.csc_matrix(A)}, r"variable 'a' of .* is sparse"),
    ("v5.mat", UNLIKE, r"X_0 \(7 × 3 .*expected views of 9 rows, or 9 columns, as there are labels"),
    ("v73.mat", UNLIKE, r"X_0 \(7 × 3 .*expected views of 9 rows, or 9 columns, as there are labels"),
    ("x.npz", {"v": Y}, "there are no features in"),
    ("x.npz", {"a": A, "samples": np.array(SAMPLES[:5])}, "features 'a' have 7 rows and 5 sample names"),
    ("x.npz", {"a": A, "y": Y[:5]}, r"variable 'y' of .* has shape \(5,\), expected \(7,\)"),
]


@pytest.mark.parametrize(("name", "content", "message"), REFUSED_FILES)
def test_files_that_are_refused(tmp_path, name, content, message):
    write(tmp_path / name, content)
    with pytest.raises(InputError, match=message):
        as_features(tmp_path / name)


# --- refusals ------------------------------------------------------------------------------------------------
REFUSED = [
    ({"a": A * 1j}, "features 'a' hold complex128, expected real numbers; give real and imaginary"),
    ({"a": A.astype(object)}, r"features 'a' hold Python objects.*astype\(float\)"),
    ({"a": A.astype(str)}, r"features 'a' hold <U32.*astype\(float\)"),
    ({"a": A.astype("M8[s]")}, "features 'a' hold datetime64"),
    ({"a": np.ones(7)}, r"have shape \(7,\), expected two dimensions.*reshape\(-1, 1\)"),
    ({"a": np.ones((2, 3, 4))}, r"have shape \(2, 3, 4\), expected two dimensions, \(samples, columns\)$"),
    ({"a": [[1.0], [1.0, 2.0]]}, "features 'a' are no matrix"),
    ({"a": np.ones((7, 0))}, "have 7 rows and 0 columns"),
    ({"a": da.from_array(A)[da.from_array(Y) > 0]}, r"number of rows.*compute_chunk_sizes\(\)"),
    ({"a": dask.delayed(A)}, "features 'a' is a delayed value of Dask; say its shape"),
    ({"a": pd.DataFrame({"u": [1.0], "city": ["Rome"]})}, "features 'a': column 'city' is not numeric.*set_index"),
    ({"a": pd.DataFrame({str(i): ["x"] for i in range(9)})}, r"column '0', .*'7', … \(9 in all\) are not numeric"),
    ({"a": A, "b": B[:5]}, "features 'b' have 5 rows, 'a' have 7 rows"),
    ({"a": pd.DataFrame(A, index=SAMPLES), "b": B[:5]}, "features 'b' have 5 rows, there are 7 samples"),
    ({}, "at least one matrix"),
    ({"a": "hog.npy"}, "features 'a' are the path hog.npy; give a list of paths"),
    (3, "features must be arrays .*got int"),
    ([A, B], "features must be arrays .*got list"),
    (xr.Dataset({"a": (("n", "d"), A), "b": (("m", "e"), B)}),
     r"features 'b' have the dimensions \('m', 'e'\), 'a' begins with 'n'"),
]  # fmt: skip
REFUSED_OPTIONS = [
    ({"samples": SAMPLES[:5]}, "features 'a' have 7 rows, there are 5 samples"),
    ({"samples": [*SAMPLES[:6], "s0"]}, "samples: sample names must be unique, but 's0' occurs 2 times"),
    ({"present": {"b": Y > 0}}, "present names 'b', but the features are 'a'"),
    ({"present": {"a": Y}}, r"present\['a'\] is int64 of shape \(7,\), expected booleans of shape \(7,\)"),
]


@pytest.mark.parametrize(
    ("features", "more", "message"),
    [*((f, {}, message) for f, message in REFUSED), *(({"a": A}, *case) for case in REFUSED_OPTIONS)],
)
def test_features_and_options_that_are_refused(features, more, message):
    with pytest.raises(InputError, match=message):
        as_features(features, **more)
