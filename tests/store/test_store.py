"""Creating kernel sets: storage, refusals, interruptions; reading damaged sets."""

import itertools
import os
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from helpers.conformance import problems, recode, tree, unseal
from helpers.damage import flip, swap, tile_file
from helpers.faults import DAMAGES, interrupted
from helpers.references import psd
from hypothesis import given
from hypothesis import strategies as st
from zarr.codecs import BytesCodec, Crc32cCodec, ZstdCodec
from zarr.storage import LocalStore, MemoryStore, _local

import dmkl
from dmkl.errors import (
    CorruptTileError,
    FormatVersionError,
    IncompleteStoreError,
    IndefiniteKernelWarning,
    InputError,
    StoreError,
    StoreExistsError,
    StoreNotFoundError,
)
from dmkl.files import writing
from dmkl.inputs.kernels import KernelSource
from dmkl.store import tiles, zarr_groups
from dmkl.store.reader import StoreReader
from dmkl.store.tiles import TileWriter

K = psd(3, 11).astype("f4")
R = np.random.default_rng(0).normal(size=(2, 5, 11))


def entries(location):
    return np.asarray(dmkl.open(location))


def upper(stack):
    """The symmetric matrices with the upper triangles of matrices whose halves differ by rounding."""
    return np.triu(stack) + np.triu(stack, 1).transpose(0, 2, 1)


# --- from everything that holds matrices ---------------------------------------------------------------------
@pytest.mark.parametrize(
    ("dtype", "stored"),
    [("f2", "f4"), ("f4", "f4"), (">f4", "f4"), ("f8", "f8"), ("i2", "f8"), ("u1", "f8"), ("?", "f8")],
)
def test_every_real_type_keeps_its_values(tmp_path, dtype, stored):
    whole = np.array([[[2, 1, 0], [1, 2, 1], [0, 1, 2]], np.eye(3)]).astype(dtype)
    made = dmkl.create(tmp_path / "set.zarr", whole, tile=2)
    assert made.dtype == np.dtype(stored)
    np.testing.assert_array_equal(made, whole.astype(stored))


def sources():
    names = ("a", "b", "c")
    yield "array", K, {}
    yield "list", list(K), {}
    yield "generator", iter(K), {}
    yield "nested lists", K.tolist(), {"dtype": "f4"}
    yield "mapping", dict(zip(names, K, strict=True)), {}
    yield "Dask, odd chunks", da.from_array(K, chunks=(2, (3, 1, 7), (5, 6))), {}
    yield "Zarr", zarr.create_array(MemoryStore(), data=K, chunks=(2, 5, 3)), {}
    yield "transposed view", np.ascontiguousarray(K.transpose(1, 2, 0)).transpose(2, 0, 1), {}


@pytest.mark.parametrize(
    ("kernels", "more", "tile"),
    [*(pytest.param(k, m, 4, id=i) for i, k, m in sources()), (K, {}, 11), (iter(K), {}, 1000)],
)
def test_every_source_gives_the_same_set(tmp_path, kernels, more, tile):
    made = dmkl.create(tmp_path / "set.zarr", kernels, tile=tile, **more)
    np.testing.assert_array_equal(made, upper(K))
    assert made.names == (("a", "b", "c") if isinstance(kernels, dict) else ("kernel_0", "kernel_1", "kernel_2"))
    assert not problems(tmp_path / "set.zarr")


@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 9)),
    tile=st.integers(1, 10),
    form=st.sampled_from(["symmetric", "full", "rectangular"]),
    dtype=st.sampled_from(["f4", "f8"]),
)
def test_any_shape_and_tile_is_stored_whole(tmp_path_factory, shape, tile, form, dtype):
    path = tmp_path_factory.mktemp("any") / "set.zarr"
    if form == "rectangular":
        kernels = np.random.default_rng(0).normal(size=shape).astype(dtype)
        made = dmkl.create(path, kernels, tile=tile, symmetric=False)
    else:
        kernels = upper(psd(*shape[:2])).astype(dtype)
        made = dmkl.create(path, kernels, tile=tile, full=form == "full")
    np.testing.assert_array_equal(made, kernels)
    assert not problems(path)


def test_any_zarr_store_is_a_location(tmp_path):
    for location in (MemoryStore(), LocalStore(tmp_path / "set.zarr")):
        for kernels in (K, K[:1]):
            dmkl.create(location, kernels, tile=4, overwrite=len(kernels) < 3)
            np.testing.assert_array_equal(entries(location), upper(kernels))


def test_a_set_in_memory_is_that_on_disk_without_zarr(tmp_path, monkeypatch):
    mixed = list(K.copy())
    square = {"kernels": mixed, "tile": 4, "labels": list("xyxyxyxyxyx"), "splits": [[0, 1, 2, -1, *[0] * 7]]}
    diagonal = np.arange(10.0).reshape(2, 5)
    cross = {"kernels": R, "tile": 4, "diagonal": diagonal, "labels": np.eye(5, 3), "tasks": list("abc")}
    cross |= {"samples": list("abcde"), "train_samples": range(11)}
    stored = [dmkl.create(tmp_path / str(k), **kinds) for k, kinds in enumerate((square, cross))]
    assert not problems(tmp_path / "1")
    assert list(stored[1].samples) == list("abcde")
    assert list(stored[1].train_samples) == [str(i) for i in range(11)]
    np.testing.assert_array_equal(stored[1].view.source.diagonal(np.arange(2)), diagonal)
    monkeypatch.setattr(zarr, "open_group", lambda *_, **__: pytest.fail("a set in memory is a set of arrays"))
    for on_disk, kinds in zip(stored, (square, cross), strict=True):
        held = pickle.loads(pickle.dumps(dmkl.create(None, **kinds)))
        for name in ("names", "dtype", "shape", "is_square", "content_id", "bytes_per_pass"):
            assert getattr(held, name) == getattr(on_disk, name)
        for name in ("samples", "train_samples", "labels", "tasks", "splits"):
            np.testing.assert_array_equal(getattr(held, name), getattr(on_disk, name))
        for name in ("diagonal", "row_sum"):
            of_sets = [getattr(made.view.source, name)(np.arange(len(made))) for made in (held, on_disk)]
            np.testing.assert_array_equal(*of_sets)
        np.testing.assert_array_equal(held, on_disk)
    held = dmkl.create(None, mixed, tile=4)
    mixed[0][:] = 0
    np.testing.assert_array_equal(held, stored[0])


def test_tiles_in_a_folder_are_written_and_mapped_without_zarr(tmp_path, monkeypatch):
    """Zarr copies each tile twice; its release decides whether its codecs are recognized."""
    through_zarr = []

    def record(method, whole):
        monkeypatch.setattr(
            zarr.Array, method, lambda array, *given: through_zarr.append(array.path) or whole(array, *given)
        )

    record("__setitem__", zarr.Array.__setitem__)
    dense = psd(2, 9)
    K = dmkl.create(tmp_path / "set.zarr", dense, tile=4)
    record("__getitem__", zarr.Array.__getitem__)
    np.testing.assert_allclose(K.apply(np.eye(9)).compute(), dense)
    assert through_zarr
    assert not [path for path in through_zarr if path.startswith("gram")]


def test_labels_of_every_kind_come_back(tmp_path):
    unknown = np.eye(11, 3)
    unknown[2:5, 1] = np.nan
    numbers = np.arange(33).reshape(11, 3) / 7
    kinds = (np.arange(11) % 2, np.array(list("abababababa")), np.eye(11, 3, dtype=int), [1.0] * 11)
    for labels in (*kinds, np.arange(11) / 7, unknown, numbers, np.where(numbers > 3, np.nan, numbers)):
        made = dmkl.create(tmp_path / "set.zarr", K[:1], tile=6, labels=labels, overwrite=True)
        np.testing.assert_array_equal(made.labels, labels)
        assert not problems(tmp_path / "set.zarr")
    assert dmkl.create(tmp_path / "set.zarr", K[:1], overwrite=True).labels is None
    made = dmkl.create(tmp_path / "bytes.zarr", K, names=[b"a", b"b", b"c"], labels=np.array([b"x"] * 11))
    assert (made.names, set(made.labels)) == (("a", "b", "c"), {"x"})


def test_symmetry_is_judged_by_the_largest_entry_wherever_it_stands(tmp_path):
    kernel = np.eye(9)
    kernel[1, 0] = kernel[7, 1] = 1e-6  # within 1e-8 of the largest entry, which comes last
    kernel[2, 3] = kernel[3, 2] = 0.5  # no triangle, which would be mirrored
    kernel[8, 8] = 1000.0
    made = dmkl.create(tmp_path / "set.zarr", kernel[None], tile=3)
    np.testing.assert_array_equal(made, upper(kernel[None]))  # where halves differ, the upper half counts
    kernel[8, 8] = 1.0
    with pytest.raises(InputError, match=r"entry \(7, 1\) is 1e-06 and entry \(1, 7\) is 0"):
        dmkl.create(tmp_path / "other.zarr", kernel[None], tile=3)
    dmkl.create(tmp_path / "other.zarr", kernel[None], tile=3, symmetry_tol=1e-5)


class Asked:
    """A matrix that records the blocks that are read."""

    def __init__(self, matrix):
        self.matrix, self.blocks = matrix, []
        self.shape, self.dtype = matrix.shape, matrix.dtype

    def __getitem__(self, key):
        block = self.matrix[key]
        self.blocks.append(block.shape)
        return block


def test_a_source_is_asked_for_one_tile_at_a_time(tmp_path):
    matrix = Asked(psd(1, 23)[0])
    dmkl.create(tmp_path / "set.zarr", iter([matrix]), tile=5)
    assert max(matrix.blocks) == (5, 5)
    assert sum(rows * cols for rows, cols in matrix.blocks) == 23 * 23


# --- refusals, which change nothing --------------------------------------------------------------------------
def spoiled(i, j, value):
    kernels = psd(2, 7)
    kernels[1, i, j] = value
    return kernels


REFUSED = {
    "NaN": (spoiled(5, 6, np.nan), {}, r"kernel 'b': entry \(5, 6\) is nan, which is not finite"),
    "overflow": (spoiled(0, 0, 1e300), {"dtype": "f4"}, r"overflows float32; store it as float64"),
    "asymmetric": (spoiled(6, 1, 99.0), {}, r"'b' is not symmetric: entry \(1, 6\) is .* and entry \(6, 1\) is 99"),
    "other shape": ([np.eye(7), np.eye(6)], {}, "kernel 'b' is 6 × 6, expected 7 × 7 as the first"),
    "complex": ([np.eye(7), np.eye(7) * 1j], {}, "kernel 'b' holds complex128, expected real numbers"),
    "wider type": (iter([np.eye(7, dtype="f4"), np.eye(7)]), {}, "kernel 'b' is float64, but the set would be stored"),
    "rectangular": (np.ones((2, 7, 5)), {"symmetric": True}, "a symmetric set needs square kernels"),
    "empty": (np.ones((2, 0, 0)), {}, "at least one row and one column"),
    "nothing yielded": (iter([]), {}, "at least one kernel, got none"),
    "no matrices": (3.0, {}, "kernels must be an array"),
    "equal names": (psd(2, 7), {"names": ["a", "a"]}, "kernel names must be unique, but 'a' occurs"),
    "few names": (psd(2, 7), {"names": ["a"]}, "found 1, expected one for each of the 2 kernels"),
    "many names, generator": (iter(psd(2, 7)), {"names": ["a", "b", "c"]}, "found 2 kernels but 3 names"),
    "escape sequence": (
        psd(2, 7),
        {"names": ["a", "b\x1b[31m"]},
        r"kernel name 'b\\x1b\[31m' holds a control character",
    ),
    "equal samples": (psd(2, 7), {"samples": list("aabcdef")}, "sample names must be unique, but 'a'"),
    "NaN label": (psd(2, 7), {"labels": [0, 1, np.nan, 0, 0, 0, 0]}, r"labels of 1 of the 7 samples are missing \('2'"),
    "infinite label": (psd(2, 7), {"labels": np.full((7, 2), np.inf)}, "sample 0 in column 0 is infinite"),
    "splits": (psd(2, 7), {"splits": [[0, 1, 2, 3, 0, 0, 0]]}, r"found \[0, 1, 2, 3\]"),
    "tile": (psd(2, 7), {"tile": 0}, "tile must be a positive number of samples"),
    "diagonal": (np.ones((2, 7, 5)), {"diagonal": np.ones((2, 5))}, r"diagonal has shape \(2, 5\), expected \(2, 7\)"),
    "repair": (np.ones((2, 7, 5)), {"repair": "clip"}, "repair='clip' is for symmetric kernels"),
    "other repair": (psd(2, 7), {"repair": "mend"}, "repair must be 'clip', 'flip', 'shift' or None, got 'mend'"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "set.zarr"
    dmkl.create(path, K, tile=4)
    return path


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_named_and_changes_nothing(tmp_path, whole, case):
    kernels, more, message = REFUSED[case]
    shutil.copytree(whole, tmp_path / "set.zarr")
    before = tree(tmp_path)
    more = {"names": ["a", "b"], **more} if case not in ("nothing yielded", "no matrices") else more
    for path, overwrite in ((tmp_path / "set.zarr", True), (tmp_path / "new.zarr", False)):
        if not isinstance(kernels, list | np.ndarray) and overwrite:
            continue  # an iterator can be read once
        with pytest.raises(InputError, match=message):
            dmkl.create(path, kernels, overwrite=overwrite, **more)
    assert {name: data for name, data in tree(tmp_path).items() if ".partial" not in name} == before
    assert not (tmp_path / "new.zarr").exists()


def test_bad_input_leaves_no_unfinished_set_that_nothing_can_be_made_of(tmp_path):
    with pytest.raises(InputError):
        dmkl.create(tmp_path / "set.zarr", iter(spoiled(1, 1, np.nan)))
    assert not list(tmp_path.iterdir())
    with pytest.raises(InputError):
        dmkl.create(tmp_path / "set.zarr", spoiled(1, 1, np.nan))
    assert [entry.name for entry in tmp_path.iterdir()] == ["set.zarr.partial"]  # its first kernel is whole
    with pytest.raises(IncompleteStoreError, match="Run the same command again"):
        dmkl.open(tmp_path / "set.zarr")


def test_nothing_is_replaced_unasked(tmp_path, whole):
    before = tree(whole)
    with pytest.raises(StoreExistsError, match=r"overwrite=True, --overwrite"):
        dmkl.create(whole, 2 * K)
    assert tree(whole) == before
    (tmp_path / "set.zarr.partial").mkdir()
    (tmp_path / "set.zarr.partial" / "thesis.txt").write_text("the only copy")
    for overwrite in (False, True):
        with pytest.raises(StoreExistsError, match=r"set.zarr.partial holds something already.*move it away"):
            dmkl.create(tmp_path / "set.zarr", K, overwrite=overwrite)
    assert (tmp_path / "set.zarr.partial" / "thesis.txt").read_text() == "the only copy"
    (tmp_path / "file.zarr.partial").write_text("the only copy")
    with pytest.raises(StoreExistsError):
        dmkl.create(tmp_path / "file.zarr", K)
    store = MemoryStore()
    zarr.create_array(store, shape=(1,), dtype="f8")
    before = dict(store._store_dict)
    with pytest.raises(StoreExistsError):
        dmkl.create(store, K)
    assert dict(store._store_dict) == before


# --- repair and warnings -------------------------------------------------------------------------------------
@pytest.mark.parametrize(("repair", "lowest", "shift"), [("clip", 0.0, 0.0), ("flip", 2.0, 0.0), ("shift", 0.0, 2.0)])
def test_repair_mends_the_spectrum_and_says_so(tmp_path, repair, lowest, shift):
    q, _ = np.linalg.qr(np.random.default_rng(3).normal(size=(8, 8)))
    rest = np.array([0.1, 1, 2, 3, 4, 5, 6])
    kernel = (q * [-2.0, *rest]) @ q.T
    made = dmkl.create(tmp_path / "set.zarr", (kernel + kernel.T)[None] / 2, repair=repair, tile=3)
    np.testing.assert_allclose(np.linalg.eigvalsh(np.asarray(made)[0]), sorted([lowest, *(rest + shift)]), atol=1e-12)
    noted = made.provenance[0]["repair"]
    assert noted["method"] == repair
    np.testing.assert_allclose(noted["lowest_eigenvalue"], -2.0)
    made = dmkl.create(tmp_path / "definite.zarr", psd(1, 6), repair=repair)
    np.testing.assert_array_equal(made, upper(psd(1, 6)))


def test_an_indefinite_kernel_is_proven_so(tmp_path):
    kernel = np.diag([1.0, 4.0, 1.0, 1.0, 1.0])
    kernel[1, 4] = kernel[4, 1] = 5.0
    with pytest.warns(IndefiniteKernelWarning, match="kernel 'bad'.*samples 4 and 1 alone prove") as caught:
        dmkl.create(tmp_path / "set.zarr", kernel[None], names=["bad"], tile=2)
    bound = float(str(caught[0].message).split("at most ")[1].split(" ")[0])
    assert np.linalg.eigvalsh(kernel)[0] <= bound + 1e-3 < 0
    with pytest.warns(IndefiniteKernelWarning, match="sample 1 alone proves an eigenvalue of at most -3 "):
        dmkl.create(tmp_path / "other.zarr", np.diag([5.0, -3.0, 1.0])[None], tile=2)


@given(seed=st.integers(0, 2**32 - 1), rank=st.integers(1, 12), scale=st.sampled_from([1e-6, 1.0, 1e6]))
def test_no_positive_semidefinite_kernel_is_accused(tmp_path_factory, seed, rank, scale):
    kernel = scale * psd(1, 10, seed, rank=rank).astype("f4")
    kernel[0, 3], kernel[0, :, 3] = kernel[0, 2], kernel[0, :, 2]  # two equal samples reach the bound
    kernel[0, 3, 3] = kernel[0, 2, 3] = kernel[0, 3, 2] = kernel[0, 2, 2]
    dmkl.create(tmp_path_factory.mktemp("psd") / "set.zarr", kernel, tile=4)  # a warning would be an error


# --- interruption --------------------------------------------------------------------------------------------
RESUMABLE = {"tile": 4, "labels": np.arange(11) % 2, "samples": list("abcdefghijk"), "splits": [[0] * 11]}


@pytest.mark.slow
def test_an_import_resumes_from_every_single_write(tmp_path, monkeypatch):
    kernels, more = K[:2], {**RESUMABLE, "tile": 8}
    put, number, killed_at = _local._put, itertools.count(1), np.inf

    def put_some(path, value, exclusive=False):
        if next(number) >= killed_at:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.with_suffix(".0.partial").write_bytes(b"half")  # as after a killed write
            raise RuntimeError("killed")  # KeyboardInterrupt would end the thread in which Zarr writes
        return put(path, value, exclusive)

    def open_some(path, mode):  # tiles are written without Zarr
        if next(number) >= killed_at:
            raise RuntimeError("killed")
        return open(path, mode)

    monkeypatch.setattr(_local, "_put", put_some)
    monkeypatch.setattr(tiles, "open", open_some, raising=False)
    dmkl.create(tmp_path / "whole.zarr", kernels, **more)
    for n in range(1, next(number)):
        path = tmp_path / str(n) / "set.zarr"
        number, killed_at = itertools.count(1), n
        with pytest.raises(RuntimeError, match="killed"):
            dmkl.create(path, kernels, **more)
        killed_at = np.inf
        dmkl.create(path, kernels, **more)
        assert tree(path) == tree(tmp_path / "whole.zarr"), n
        assert [entry.name for entry in path.parent.iterdir()] == ["set.zarr"]
        shutil.rmtree(path.parent)


def test_a_set_killed_before_its_last_renaming_is_finished(tmp_path):
    dmkl.create(tmp_path / "whole.zarr", K, **RESUMABLE)
    (tmp_path / "whole.zarr").rename(tmp_path / "set.zarr.partial")
    dmkl.create(tmp_path / "set.zarr", K, **RESUMABLE)
    dmkl.create(tmp_path / "whole.zarr", K, **RESUMABLE)
    assert tree(tmp_path / "set.zarr") == tree(tmp_path / "whole.zarr")


@pytest.mark.parametrize("exchanges", [True, False])
def test_a_replacement_killed_between_its_renamings_is_finished(tmp_path, monkeypatch, exchanges):
    path = tmp_path / "set.zarr"
    dmkl.create(path, K, tile=4)
    if not exchanges:
        monkeypatch.setattr(writing, "_exchange", lambda *_: False)
    with interrupted(Path, "rename", 0 if exchanges else 1):
        dmkl.create(path, 2 * K, tile=4, overwrite=True)
    np.testing.assert_array_equal(entries(path), (2 if exchanges else 1) * upper(K))  # the old set is not lost
    dmkl.create(path, 2 * K, tile=4, overwrite=True)
    np.testing.assert_array_equal(entries(path), 2 * upper(K))
    assert [entry.name for entry in tmp_path.iterdir()] == ["set.zarr"]


def test_a_wider_type_replaces_what_was_begun_in_a_narrower_one(tmp_path):
    """The message about an overflow asks for it."""
    kernels = psd(2, 7)
    kernels[1] *= 1e60
    with pytest.raises(InputError, match="overflows float32; store it as float64"):
        dmkl.create(tmp_path / "set.zarr", kernels, dtype="float32")
    assert (tmp_path / "set.zarr.partial").exists()
    dmkl.create(tmp_path / "set.zarr", kernels, dtype="float64")
    np.testing.assert_array_equal(entries(tmp_path / "set.zarr"), upper(kernels))


def create_until(n, *arguments, **more):
    """Create a set, and stop before the n-th tile is written."""
    with interrupted(TileWriter, "write", n):
        dmkl.create(*arguments, **more)


def test_only_kernels_of_the_same_content_are_skipped(tmp_path):
    create_until(12, tmp_path / "set.zarr", list(psd(3, 9)), tile=4)
    changed = psd(3, 9)
    changed[0] *= 2
    asked = []

    class Noting(KernelSource):
        def matrices(self):
            for matrix in super().matrices():
                asked.append(Asked(matrix))
                yield asked[-1]

    dmkl.create(tmp_path / "set.zarr", Noting(list(changed)), tile=4)
    np.testing.assert_array_equal(entries(tmp_path / "set.zarr"), upper(changed))
    assert [j for j, noted in enumerate(asked) if noted.blocks] == [0, 2]


def test_a_generator_starts_anew_whatever_its_length(tmp_path):
    create_until(24, tmp_path / "set.zarr", iter(psd(5, 9)), tile=4)
    dmkl.create(tmp_path / "set.zarr", iter(psd(2, 9)), tile=4)
    np.testing.assert_array_equal(entries(tmp_path / "set.zarr"), upper(psd(2, 9)))
    assert not problems(tmp_path / "set.zarr")


def test_an_unfinished_set_of_another_make_is_kept_unless_it_may_be_replaced(tmp_path):
    path = tmp_path / "set.zarr"
    create_until(12, path, psd(3, 9), tile=4)
    with pytest.raises(InputError, match=r"another kind.*tile 4 there, 3 here"):
        dmkl.create(path, psd(3, 9), tile=3)
    dmkl.create(path, psd(3, 9), tile=3, overwrite=True)
    assert not problems(path)


def test_leftovers_of_an_earlier_attempt_do_not_stay(tmp_path):
    dmkl.create(tmp_path / "whole.zarr", K, tile=4)
    with interrupted(zarr_groups, "consolidate"):  # after the labels were written
        dmkl.create(tmp_path / "set.zarr", K, **RESUMABLE)
    assert (tmp_path / "set.zarr.partial" / "label").exists()
    assert dmkl.create(tmp_path / "set.zarr", K, tile=4).labels is None
    assert tree(tmp_path / "set.zarr") == tree(tmp_path / "whole.zarr")


def test_a_diagonal_that_changes_is_not_taken_from_an_earlier_attempt(tmp_path):
    create_until(1, tmp_path / "set.zarr", R, diagonal=np.ones((2, 5)))
    made = dmkl.create(tmp_path / "set.zarr", R)
    assert StoreReader(tmp_path / "set.zarr").diagonal(np.arange(2)) is None
    np.testing.assert_array_equal(made, R)


# --- reading incomplete sets ---------------------------------------------------------------------------------
@pytest.fixture
def damaged(tmp_path):
    path = tmp_path / "set.zarr"
    dmkl.create(path, K, names=["a", "b", "c"], tile=4)
    return path


DAMAGE = {
    "a flipped bit": (lambda tile, _: flip(tile), "fails its checksum"),
    "a bit of the padding": (lambda tile, _: flip(tile, 62), "fails its checksum"),
    "a missing tile": (lambda tile, _: tile.unlink(), "is missing"),
    "a truncated tile": (lambda tile, _: os.truncate(tile, 40), "has 40 bytes, expected 68"),
    "a tile of another kernel": (swap, "is not the tile that was written"),
}


@pytest.mark.parametrize("when", ["before it is opened", "after it was read", "where Zarr decodes it"])
@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_tile_is_named(damaged, case, when):
    harm, message = DAMAGE[case]
    key = (2, 2) if "padding" in case else (0, 1)
    if when == "where Zarr decodes it":
        recode(damaged, 4, **CODECS["compressed"])
        message = message if harm is swap or "missing" in case else "cannot be read"
    before = dmkl.open(damaged)
    np.asarray(before)
    harm(tile_file(damaged, 1, *key), tile_file(damaged, 2, *key))
    opened = before if when == "after it was read" else dmkl.open(damaged)
    with pytest.raises(CorruptTileError, match=rf"tile \({key[0]}, {key[1]}\) of kernel 'b' in .*{message}"):
        np.asarray(opened.select("b"))
    if harm is not swap:  # the others can be read
        np.testing.assert_array_equal(opened.select(["a", "c"]), upper(K)[[0, 2]])


@pytest.mark.parametrize(
    ("change", "error", "told"),
    [
        ("exchanged", StoreError, "set.zarr holds another set now .* open it again"),
        ("deleted", StoreNotFoundError, "set.zarr is gone from .* Put it back"),
    ],
)
def test_a_set_that_is_gone_after_it_was_read_is_told_and_can_be_copied_back(damaged, tmp_path, change, error, told):
    opened = dmkl.open(damaged)
    before = np.asarray(opened)
    shutil.copytree(damaged, tmp_path / "copy")
    dmkl.create(tmp_path / "other.zarr", 2 * K, tile=4)
    DAMAGES[change](damaged, tmp_path / "other.zarr")
    with pytest.raises(error, match=told):
        np.asarray(opened)
    shutil.rmtree(damaged, ignore_errors=True)
    (tmp_path / "copy").rename(damaged)
    np.testing.assert_array_equal(opened, before)


def test_many_threads_of_a_process_open_one_copy_of_a_sent_set(damaged):
    arrived = pickle.loads(pickle.dumps(StoreReader(damaged)))
    with ThreadPoolExecutor(8) as pool:
        tiles = list(pool.map(lambda _: next(arrived.stream([(0, 1, 1)]))[1], range(8)))
    np.testing.assert_array_equal(tiles, [upper(K)[0, 4:8, 4:8]] * 8)


@pytest.mark.parametrize(
    ("node", "read", "message"),
    [
        ("row_sum", lambda reader: reader.row_sum(np.arange(3)), "row_sum"),
        ("diagonal", lambda reader: reader.diagonal(np.arange(3)), "diagonal"),
        ("tile_crc32c", lambda reader: next(reader.stream([(0, 0, 0)])), "kernel 'a'"),
    ],
)
def test_missing_statistics_are_named(damaged, node, read, message):
    next(file for file in sorted((damaged / node / "c").rglob("*")) if file.is_file()).unlink()
    with pytest.raises(StoreError, match=message):
        read(StoreReader(damaged))


@pytest.mark.parametrize("node", ["kernel", "sample", "gram_upper"])
def test_missing_and_damaged_names_are_named(damaged, node):
    if node != "gram_upper":
        flip(damaged / node / "c" / "0", -1)
        with pytest.raises(StoreError, match="names or labels cannot be read"):
            dmkl.open(damaged)
    shutil.rmtree(damaged / node)
    unseal(damaged)  # without consolidated metadata, which would still list it
    with pytest.raises(StoreError, match="is damaged: it has no"):
        dmkl.open(damaged)


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"format_version": 3}, FormatVersionError, "format version 3, and this dmkl reads up to 2; install a newer"),
        ({"format_version": 0}, StoreError, "is damaged: its format version is 0, expected 1 to 2"),
        ({"format": "other"}, StoreError, "not a kernel set: its attribute 'format' is 'other'"),
        ({"complete": False}, IncompleteStoreError, "is not finished"),
        ({"tile": None}, StoreError, "is damaged: it has no 'tile'"),
    ],
)
def test_other_versions_and_unfinished_sets_are_refused(damaged, changes, kind, message):
    unseal(damaged, **changes)
    with pytest.raises(kind, match=message):
        dmkl.open(damaged)


def test_places_without_a_set_are_told(tmp_path):
    (tmp_path / "file.txt").write_text("x")
    (tmp_path / "folder").mkdir()
    zarr.create_array(tmp_path / "array.zarr", shape=(1,), dtype="f8")
    for name in ("nothing.zarr", "file.txt", "folder"):
        with pytest.raises(StoreNotFoundError, match="there is no kernel set at"):
            dmkl.open(tmp_path / name)
    with pytest.raises(StoreError, match="is not a Zarr group"):
        dmkl.open(tmp_path / "array.zarr")


def test_verification_can_be_left_out_or_repeated(damaged):
    reader = StoreReader(damaged)
    next(reader.stream([(0, 0, 0)]))
    file = tile_file(damaged, 0, 0, 0)
    before = file.stat()
    flip(file, 5)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    next(reader.stream([(0, 0, 0)]))  # verified before
    with dask.config.set({"dmkl.verify": "always"}), pytest.raises(CorruptTileError):
        next(reader.stream([(0, 0, 0)]))
    with dask.config.set({"dmkl.verify": "never"}):
        next(StoreReader(damaged).stream([(0, 0, 0)]))


CODECS = {
    "compressed": {"compressors": [ZstdCodec(level=1), Crc32cCodec()]},
    "sharded": {"compressors": [Crc32cCodec()], "shards": (1, 12, 12)},
    "big-endian": {"serializer": BytesCodec(endian="big"), "compressors": [Crc32cCodec()]},
}


@pytest.mark.usefixtures("scheduler")
@pytest.mark.parametrize("codecs", CODECS)
def test_other_codecs_are_read(damaged, codecs):
    # The same content at the same place, of an earlier test, is known to workers with its codecs.
    damaged = damaged.rename(damaged.with_name(f"{codecs}.zarr"))
    recode(damaged, 4, **CODECS[codecs])
    np.testing.assert_array_equal(entries(damaged), upper(K))
    vectors = np.random.default_rng(0).normal(size=(11, 3))
    np.testing.assert_allclose(dmkl.open(damaged).apply(vectors, dtype="f8"), upper(K) @ vectors, atol=1e-11)
    assert not problems(damaged)
