"""Passes: products against dense ones, the graphs that they are, and what breaks under way."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import signal
import threading

import dask
import numpy as np
import pytest
import zarr
from distributed import Client, LocalCluster, get_task_stream
from distributed.comm.core import CommClosedError
from helpers.faults import revived_workers
from helpers.references import (
    Counting,
    Killing,
    Watching,
    dense_view,
    error,
    in_memory,
    over,
    psd,
    raise_if_computes,
    stepped,
    unit_keys,
)
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import ThreadpoolController, threadpool_limits
from zarr.codecs import Crc32cCodec, ZstdCodec

import dmkl
from dmkl import progress
from dmkl.errors import CorruptTileError, InputError, MemoryBudgetError, NoWorkersError, WorkerLostError
from dmkl.passes.blas import blas_threads, pinned_blas
from dmkl.passes.execute import machine, send_all
from dmkl.passes.run import run_pass
from dmkl.passes.sweep import Columns
from dmkl.store.groups import CHECKSUM

M = 23
DOUBLE, SINGLE = np.dtype(np.float64), np.dtype(np.float32)
TRAIN = np.array([20, 3, 7, 0, 15, 11, 8, 22, 4, 18, 13, 1])
TEST = np.array([2, 5, 21, 9])
CHAINS = [(), ("center",), ("trace",), ("cosine",), ("multiplicative",), ("center", "cosine", "trace")]


def block(width, rows=M, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, width))


def lazily(build):
    with raise_if_computes():
        return build()


def make(folder, K, **options):
    return dmkl.create(folder / f"{len(list(folder.iterdir()))}.zarr", K, **options)


# --- against dense products ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE], ids=str)
def test_products_agree_everywhere(tmp_path, dense, dtype, scheduler):
    """Relative to each kernel's result in the Frobenius norm: 1e-12 in double precision, 1e-5 in single."""
    K, tolerance = make(tmp_path, dense.astype(dtype), tile=5), 1e-12 if dtype == DOUBLE else 1e-5
    stored = dense.astype(dtype)
    for chain in CHAINS:
        square, cross = stepped(K[TRAIN, TRAIN], chain), stepped(K[TEST, TRAIN], chain)
        V = block(3, 12)
        results = square.apply(V), cross.apply(V), square.project(V), square.apply(V, dtype=DOUBLE)
        applied, crossed, projected, precise = dask.compute(*results)
        expected, expected_cross = (dense_view(stored, rows, TRAIN, chain) for rows in (TRAIN, TEST))
        assert applied.dtype == crossed.dtype == dtype
        assert projected.dtype == precise.dtype == DOUBLE
        assert error(applied, expected @ V) < tolerance
        assert error(crossed, expected_cross @ V) < tolerance
        assert error(projected, V.T @ expected @ V) < tolerance
        assert error(precise, expected @ V) < 1e-12


@pytest.mark.usefixtures("synchronous", "tasks_of_parts")
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("tile", [1, 4, 11, 12, 100])
def test_products_agree_for_every_tile(tmp_path, tile, full):
    matrices = psd(2, 11)
    K = make(tmp_path, matrices, tile=tile, full=full)
    V = block(2, 11)
    assert error(K.apply(V), matrices @ V) < 1e-12
    assert error(K.project(V), V.T @ matrices @ V) < 1e-12
    rows, cols = np.array([10, 3, 3, 0]), np.array([1, 9, 4, 9, 9])
    assert error(K[rows, cols].apply(V[:5]), matrices[:, rows][:, :, cols] @ V[:5]) < 1e-12
    assert error(K[cols, cols].project(V[:5]), V[:5].T @ matrices[:, cols][:, :, cols] @ V[:5]) < 1e-12


@pytest.mark.usefixtures("synchronous", "tasks_of_parts")
@pytest.mark.parametrize("tile", [1, 3, 7, 50])
@pytest.mark.parametrize("shape", [(4, 13), (13, 4), (7, 7)])
def test_rectangular_products_agree(tmp_path, tile, shape):
    matrices = np.random.default_rng(0).standard_normal((2, *shape))
    K = make(tmp_path, matrices, tile=tile, symmetric=False)
    V = block(3, shape[1])
    assert error(K.apply(V), matrices @ V) < 1e-12
    assert error(K[::-2, 1:3].apply(V[:2]), matrices[:, ::-2, 1:3] @ V[:2]) < 1e-12


@pytest.mark.usefixtures("synchronous")
@pytest.mark.parametrize("width", [1, 2, 64, 300])
def test_any_number_of_columns(stored, dense, width):
    V = block(width)
    applied = lazily(lambda: stored.apply(V))
    projected = lazily(lambda: stored.project(V))
    assert applied.shape == (4, M, width)
    assert projected.shape == (4, width, width)
    assert error(applied, dense @ V) < 1e-12
    assert error(projected, V.T @ dense @ V) < 1e-12


@pytest.mark.usefixtures("synchronous")
def test_one_vector_loses_its_axis(stored, dense):
    v = block(1)[:, 0]
    applied, projected = lazily(lambda: stored.apply(v)), lazily(lambda: stored.project(v))
    assert applied.shape == (4, M)
    assert projected.shape == (4,)
    assert error(applied, dense @ v) < 1e-12
    np.testing.assert_allclose(projected, v @ dense @ v, rtol=1e-12)


@pytest.mark.usefixtures("synchronous")
@pytest.mark.parametrize("chain", CHAINS)
def test_kernels_that_share_a_task(chain):
    matrices, V = psd(100, 6), block(2, 6)
    view = stepped(in_memory(matrices, 4), chain)
    expected = dense_view(matrices, steps=chain)
    assert len(unit_keys(view.apply(V), "apply-pass")) < 100
    assert error(view.apply(V), expected @ V) < 1e-12
    assert error(view.project(V), V.T @ expected @ V) < 1e-12


@pytest.mark.usefixtures("synchronous")
@pytest.mark.parametrize("kind", [np.float32, np.int16, np.uint8, bool])
def test_any_real_type_of_v(stored, dense, kind):
    V = (block(2) > 0).astype(kind)
    assert error(stored.apply(V), dense @ V.astype(float)) < 1e-12


@pytest.mark.usefixtures("synchronous")
def test_single_precision_is_not_asked_of_double_kernels(stored):
    assert stored.apply(block(1), dtype=np.float32).dtype == DOUBLE


# --- laws, for any shape and any tile -----------------------------------------------------------------------

STEPS = st.lists(st.sampled_from(["center", "trace", "multiplicative", "cosine"]), max_size=3)


@st.composite
def views(draw):
    """A square view of a few random kernels, and a generator of vectors."""
    m = draw(st.integers(2, 14))
    seed = draw(st.integers(0, 2**16))
    rng = np.random.default_rng(seed)
    K = in_memory(psd(draw(st.integers(1, 3)), m, seed), draw(st.integers(1, m + 2)))
    rows = rng.permutation(m)[: draw(st.integers(2, m))]
    return stepped(K[rows, rows] if draw(st.booleans()) else K, draw(STEPS)), rng


def products(view, V):
    with dask.config.set(scheduler="synchronous"):
        return view.apply(V).compute()


@given(views())
def test_symmetric(case):
    view, rng = case
    u, v = rng.standard_normal((2, view.shape[1]))
    images = products(view, np.stack([u, v], axis=1))
    scale = np.linalg.norm(images) * (np.linalg.norm(u) + np.linalg.norm(v))
    np.testing.assert_allclose(images[:, :, 0] @ v, images[:, :, 1] @ u, atol=1e-13 * scale)


@given(views(), st.floats(-10, 10), st.floats(-10, 10))
def test_linear(case, a, b):
    view, rng = case
    u, v = rng.standard_normal((2, view.shape[1]))
    images = products(view, np.stack([u, v, a * u + b * v], axis=1))
    expected = a * images[:, :, 0] + b * images[:, :, 1]
    scale = (1 + abs(a) + abs(b)) * np.abs(images).max()
    np.testing.assert_allclose(images[:, :, 2], expected, atol=1e-13 * scale)


@given(views())
def test_positive_semidefinite_and_projected_alike(case):
    view, rng = case
    V = rng.standard_normal((view.shape[1], 3))
    with dask.config.set(scheduler="synchronous"):
        images, small = dask.compute(view.apply(V), view.project(V))
    scale = np.linalg.norm(images, axis=(1, 2)) * np.linalg.norm(V)
    assert (np.linalg.eigvalsh(small)[:, 0] >= -1e-13 * scale).all()
    assert (np.abs(small - V.T @ images) <= 1e-13 * scale[:, None, None]).all()


@given(views())
def test_centring_annihilates_constants(case):
    view, rng = case
    images = products(
        view.center(), np.stack([np.ones(view.shape[1]), *rng.standard_normal((2, view.shape[1]))], axis=1)
    )
    scale = 1e-13 * np.abs(products(view, np.eye(view.shape[1]))).sum(axis=(1, 2))[:, None]
    assert (np.abs(images[:, :, 0]) <= scale).all()
    assert (np.abs(images.sum(axis=1)) <= 10 * scale).all()


@given(st.integers(1, 12), STEPS, st.integers(0, 2**16))
def test_tiles_do_not_show(m, steps, seed):
    """The cut of the kernels changes rounding alone."""
    K, rng = psd(2, m + 1, seed), np.random.default_rng(seed)
    rows, V = rng.permutation(m + 1)[: max(2, m // 2)], rng.standard_normal((m + 1, 2))
    expected = dense_view(K, rows, None, steps) @ V
    for tile in range(1, m + 2):
        assert error(products(stepped(in_memory(K, tile)[rows, :], steps), V), expected) < 1e-11


# --- the graph ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [1, 8])
@pytest.mark.parametrize(
    ("n", "side", "units"),
    # A kernel is 210 tiles of 8 bytes, or 15 of 128, or one of 3,200. A task takes 2,000 to 8,000 bytes.
    [(1, 1, 1), (40, 1, 40), (1, 4, 1), (40, 4, 40), (100, 4, 34), (2000, 4, 500), (1, 20, 1), (500, 20, 250)],
)
def test_tasks_are_few(monkeypatch, n, side, units, slots):
    """Some 32 in all, unless they were too small or too large then; and wherever they run the same."""
    for name, value in (("_TASKS", 32), ("_SMALLEST", 2000), ("_LARGEST", 8000)):
        monkeypatch.setattr(f"dmkl.passes.view.{name}", value)
    K = in_memory(np.repeat(psd(1, 20), n, axis=0), side)
    with dask.config.set(num_workers=slots), raise_if_computes():
        applied, projected = K.apply(block(2, 20)), K.project(block(2, 20))
    assert len(unit_keys(applied, "apply-pass")) == len(unit_keys(projected, "project-pass")) == units
    assert len(dict(applied.__dask_graph__())) <= 8 * units + 10


@pytest.mark.usefixtures("tasks_of_parts")
@pytest.mark.parametrize(("n", "units"), [(1, 15), (3, 15), (5, 15), (20, 20), (640, 16)])
def test_a_kernel_may_take_several_tasks(n, units):
    K = in_memory(np.repeat(psd(1, 20), n, axis=0), 1)
    with raise_if_computes():
        applied = K.apply(block(2, 20))
    assert len(unit_keys(applied, "apply-pass")) == units


@pytest.mark.usefixtures("synchronous", "tasks_of_parts")
def test_each_tile_is_read_once(tmp_path, dense):
    for full, scheduler in itertools.product([False, True], ["synchronous", "threads"]):
        K, source = over(make(tmp_path, dense, tile=5, full=full), Counting)
        upper = {(k, i, j): 1 for k in range(4) for i in range(5) for j in range(i, 5)}
        for run in (K.apply, K.project, K.center().apply):
            source.reads.clear()
            lazily(lambda run=run: run(block(3))).compute(scheduler=scheduler)
            assert source.reads == upper


@pytest.mark.usefixtures("synchronous")
def test_tiles_without_samples_are_not_read(stored):
    K, source = over(stored, Counting)
    view = K.select([2])[[0, 1, 12], [13, 2, 3]]  # tile rows 0 and 2, tile columns 0 and 2
    view.apply(block(1, 3)).compute()
    tiles = {(2, 0, 0): 1, (2, 0, 2): 1, (2, 2, 2): 1}
    assert source.reads == tiles
    assert view.bytes_per_pass == len(tiles) * 25 * 8


@pytest.mark.usefixtures("tasks_of_parts")
def test_names_tell_everything_that_makes_a_difference(tmp_path, dense):
    K, V = make(tmp_path, dense.astype("f4"), tile=5), block(2)
    changed = dense.astype("f4")
    changed[2, 7, 7] += np.float32(1e-3)

    def build():
        with raise_if_computes():
            results = {
                "plain": K.apply(V),
                "vectors": K.apply(V + 1e-9),
                "one vector": K.apply(V[:, 0]),
                "precision": K.apply(V, dtype=DOUBLE),
                "project": K.project(V),
                "kernels": K.select(slice(None, None, -1)).apply(V),
                "rows": K[::-1, :].apply(V),
                "columns": K[:, ::-1].apply(V),
                "centred": K.center().apply(V),
                "normalized": K.normalize().apply(V),
                "order of steps": K.center().normalize().apply(V),
                "other order": K.normalize().center().apply(V),
                "subset centred": K[:12, :12].center().apply(V[:12]),
                "centred subset": K.center()[:12, :12].apply(V[:12]),
                "content": other.apply(V),
                "tiles": tiled.apply(V),
                "matrices": K.to_dask(),
                "chunks": K.to_dask(chunk=7),
            }
            with dask.config.set(num_workers=7):
                results["slots"] = K.apply(V)
        return {name: {result.name, *unit_keys(result, "apply-pass")} for name, result in results.items()}

    other, tiled = make(tmp_path, changed, tile=5), make(tmp_path, dense.astype("f4"), tile=6)
    first, second = build(), build()
    assert first == second
    for (one, names), (two, others) in itertools.combinations(first.items(), 2):
        assert not names & others, f"{one} and {two} share names"


@pytest.mark.usefixtures("tasks_of_parts")
def test_results_built_for_different_numbers_of_threads_go_together():
    matrices = psd(20, 6)
    K, V = in_memory(matrices, 2), block(2, 6)
    results = []
    for slots in (1, 2, 4):
        with dask.config.set(num_workers=slots):
            results.append(K.apply(V))
    for result in dask.compute(*results, scheduler="synchronous"):
        assert error(result, matrices @ V) < 1e-12


@pytest.mark.usefixtures("tasks_of_parts")
def test_keys_read_like_the_algorithm(stored):
    with raise_if_computes():
        result = stored[TRAIN, TRAIN].center().apply(block(1, 12))
    assert unit_keys(result, "apply-pass")
    assert unit_keys(result, "center-pass")
    assert any(key.startswith("apply-pass-finish-") for key in dict(result.__dask_graph__()) if isinstance(key, str))


@pytest.mark.usefixtures("tasks_of_parts")
def test_repeats_are_bit_identical(stored, scheduler):
    view, V = stored[TRAIN, TRAIN].center().normalize("cosine"), block(5, 12)
    first = view.apply(V).compute()
    for _ in range(3):
        np.testing.assert_array_equal(view.apply(V).compute(), first)


# --- several blocks in one pass -----------------------------------------------------------------------------


@pytest.mark.usefixtures("tasks_of_parts")
def test_blocks_of_every_kind_ride_one_pass(stored, dense, scheduler):
    V, U, P = block(3), block(2, seed=1), block(2, seed=2)
    weights = np.random.default_rng(3).random((4, 2))
    view = stored.center()
    columns = [
        Columns(V, "each", None, DOUBLE),
        Columns(U, "sum", weights, DOUBLE),
        Columns(P, "project", None, DOUBLE),
    ]
    (each, total, small), passes = run_pass([view.lens()], columns)
    centred = dense_view(dense, steps=["center"])
    assert passes == 1
    assert error(each, centred @ V) < 1e-12
    assert error(total[None], np.einsum("jab,bc,jc->ac", centred, U, weights)[None]) < 1e-12
    assert error(small, P.T @ centred @ P) < 1e-12


@pytest.mark.usefixtures("synchronous")
@pytest.mark.parametrize(("width", "passes"), [(300, 1), (64, 2), (7, 15), (1, 101)])
def test_blocks_wider_than_a_pass_are_split(stored, dense, width, passes):
    K, source = over(stored, Counting)
    V, P = block(100), block(3, seed=1)
    weights = np.random.default_rng(3).random((4, 100))
    for want, expected in [("each", dense @ V), ("sum", np.einsum("jab,bc,jc->ac", dense, V, weights)[None])]:
        source.reads.clear()
        columns = [
            Columns(V, want, weights if want == "sum" else None, DOUBLE),
            Columns(P, "project", None, DOUBLE),
        ]
        with dask.config.set({"dmkl.block-width": width}):
            (found, small), told = run_pass([K.lens()], columns)
        assert told == passes
        assert set(source.reads.values()) == {told}
        assert error(found if want == "each" else found[None], expected) < 1e-12
        assert error(small, P.T @ dense @ P) < 1e-12


def test_a_public_call_is_never_split(stored):
    with dask.config.set({"dmkl.block-width": 7}), raise_if_computes():
        narrow, wide = stored.apply(block(2)), stored.apply(block(100))
    assert len(unit_keys(narrow, "apply-pass")) == len(unit_keys(wide, "apply-pass"))


class Recorded(progress.Watch):
    def __init__(self):
        self.stages, self.done, self.ended = [], 0, 0

    def begin(self, what, total_bytes):
        self.stages.append((what, total_bytes))

    def advance(self, n_bytes):
        self.done += n_bytes

    def end(self):
        self.ended += 1


@pytest.mark.usefixtures("tasks_of_parts")
def test_a_watch_is_told_every_byte(stored, scheduler):
    with progress.watching(Recorded()) as watch:
        run_pass([stored.lens()], [Columns(block(1), "each", None, DOUBLE)], "gradient")
    ((what, total),) = watch.stages
    assert what.startswith("gradient-pass-")
    assert watch.done == total == stored.bytes_per_pass
    assert watch.ended == 1


# --- reading ahead ------------------------------------------------------------------------------------------


@pytest.fixture
def compressed(tmp_path, dense):
    """The same kernels as `stored`, in chunks that have to be decoded."""
    dmkl.create(tmp_path / "zstd.zarr", dense, tile=5)
    metadata = tmp_path / "zstd.zarr" / "zarr.json"
    root = json.loads(metadata.read_text()) | {"consolidated_metadata": None}
    del root["attributes"][CHECKSUM]
    metadata.write_text(json.dumps(root))
    group = zarr.open_group(tmp_path / "zstd.zarr", mode="r+", zarr_format=3)
    gram = group["gram_upper"]
    matrices, names = gram[...], gram.metadata.dimension_names
    del group["gram_upper"]
    group.create_array(
        "gram_upper",
        shape=matrices.shape,
        chunks=(1, 5, 5),
        dtype=matrices.dtype,
        fill_value=np.nan,
        dimension_names=names,
        filters=None,
        compressors=[ZstdCodec(level=1), Crc32cCodec()],
    )[...] = matrices
    return dmkl.open(tmp_path / "zstd.zarr")


def test_decoded_tiles_are_the_mapped_ones(stored, compressed, scheduler):
    view, V = [TRAIN, TRAIN], block(3, 12)
    mapped, decoded = (stepped(K[tuple(view)], ["center", "cosine"]) for K in (stored, compressed))
    np.testing.assert_array_equal(decoded.apply(V).compute(), mapped.apply(V).compute())
    np.testing.assert_array_equal(decoded.project(V).compute(), mapped.project(V).compute())
    if scheduler != "processes":
        assert any(thread.name.startswith("dmkl-read-ahead") for thread in threading.enumerate())


# --- BLAS threads -------------------------------------------------------------------------------------------


def numpy_threads():
    """BLAS threads of NumPy's own library; some other wheels bring one that knows one thread only."""
    found = [lib for lib in ThreadpoolController().info() if lib["user_api"] == "blas"]
    own = [lib for lib in found if "numpy" in lib["filepath"]]
    return {lib["num_threads"] for lib in own or found}


def test_blas_is_limited_inside_tasks_alone(stored):
    inside = []
    K, _ = over(stored, Watching, lambda: inside.append(numpy_threads()))
    with threadpool_limits(3, "blas"), dask.config.set({"dmkl.blas-threads": 1, "scheduler": "threads"}):
        K.apply(block(2)).compute()
        assert all(threads == {1} for threads in inside)
        assert len(inside) == 60
        assert numpy_threads() == {3}


def test_blas_is_given_back_after_an_error(stored):
    def fail():
        raise OSError

    K, _ = over(stored, Watching, fail)
    with threadpool_limits(3, "blas"), dask.config.set({"dmkl.blas-threads": 1, "scheduler": "synchronous"}):
        with pytest.raises(OSError):  # noqa: PT011 (raised above, without a message)
            K.apply(block(2)).compute()
        assert numpy_threads() == {3}


def test_the_last_of_overlapping_tasks_gives_blas_back():
    second_in, first_out = threading.Event(), threading.Event()
    seen = []

    def second():
        with pinned_blas(1):
            second_in.set()
            first_out.wait(10)
            seen.append(numpy_threads())

    with threadpool_limits(3, "blas"):
        with pinned_blas(1):
            thread = threading.Thread(target=second)
            thread.start()
            second_in.wait(10)
            seen.append(numpy_threads())
        seen.append(numpy_threads())
        first_out.set()
        thread.join(10)
        seen.append(numpy_threads())
    assert seen == [{1}, {1}, {1}, {3}]


def test_who_asks_for_more_threads_has_them_while_it_lasts():
    with threadpool_limits(3, "blas"):
        with pinned_blas(1):
            with pinned_blas(2), pinned_blas(1):
                assert numpy_threads() == {2}
            assert numpy_threads() == {1}
        assert numpy_threads() == {3}


@pytest.mark.filterwarnings("ignore::dmkl.errors.SampleOrderWarning")
def test_what_is_computed_between_tasks_has_one_thread(stored):
    seen = []

    def watched(self, what, total_bytes):
        seen.append(numpy_threads())

    y = np.arange(23) % 2
    with (
        threadpool_limits(3, "blas"),
        pytest.MonkeyPatch.context() as patched,
        dask.config.set(scheduler="synchronous"),
    ):
        patched.setattr(progress.Watch, "begin", watched)
        model = dmkl.MKFDA().fit(stored, y)
        model.predict(stored)
        dmkl.search(dmkl.MKFDA(), stored, y, {"lam": [1.0, 2.0]}, 2, refit=False)
        dmkl.analyze(stored, y)
        assert len(seen) > 4
        assert all(threads == {1} for threads in seen)
        assert numpy_threads() == {3}


@pytest.mark.parametrize(("cores", "tasks", "threads"), [(8, 2, 4), (8, 3, 2), (2, 5, 1), (4, 0, 4)])
def test_tasks_times_threads_stay_within_the_cores(monkeypatch, cores, tasks, threads):
    monkeypatch.setattr("dmkl.settings.available_cores", lambda: cores)
    assert blas_threads(tasks) == 1
    with dask.config.set({"dmkl.blas-threads": "auto"}):
        assert blas_threads(tasks) == threads


# --- refusals -----------------------------------------------------------------------------------------------


def test_memory_is_refused_before_anything_runs(stored):
    K, source = over(stored, Counting)
    with dask.config.set({"dmkl.memory": "1MiB", "num_workers": 2}):
        for call in (K.apply, K.project, K[TRAIN, TRAIN].center().apply):
            message = r"vectors 1\.75 MiB.*512 KiB are allowed\. Set dmkl\.memory higher"
            with pytest.raises(MemoryBudgetError, match=message):
                lazily(lambda call=call: call(np.ones((call.__self__.shape[2], 5000))))
    assert not source.reads
    assert K.apply(np.ones((M, 5000))).shape == (4, M, 5000)


@pytest.mark.parametrize("value", ["plenty", -1, "0B"])
def test_a_meaningless_budget_is_named(stored, value):
    with dask.config.set({"dmkl.memory": value}), pytest.raises(InputError, match=r"dmkl\.memory must be"):
        stored.apply(block(1))


@pytest.mark.parametrize(
    ("V", "message"),
    [
        (np.ones(22), r"V has shape \(22,\), expected \(23, b\)"),
        (np.ones((2, 23)), r"V has shape \(2, 23\), expected \(23, b\)"),
        (np.ones((23, 2, 2)), r"V has shape \(23, 2, 2\)"),
        (np.float64(1), r"V has shape \(\)"),
        (np.array([np.nan, *np.ones(21), np.inf]), "V holds 2 entries that are NaN or infinite"),
        (np.ones(23, dtype=complex), "V must hold real numbers, got complex128"),
        (["1"] * 23, "V must hold real numbers"),
    ],
)
def test_unfit_vectors_are_named(stored, V, message):
    for call in (stored.apply, stored.project):
        with pytest.raises(InputError, match=message):
            lazily(lambda call=call: call(V))


def test_project_needs_a_square_view(stored):
    message = r"got 4 rows and 12 columns; take K\[rows, rows\] first"
    with pytest.raises(InputError, match=message):
        lazily(lambda: stored[TEST, TRAIN].project(block(1, 12)))
    with pytest.raises(InputError, match="same samples as rows and columns"):
        lazily(lambda: stored[TRAIN, TRAIN[::-1]].project(block(1, 12)))


# --- clusters -----------------------------------------------------------------------------------------------


def test_a_client_that_is_there_is_used(stored, dense, client):
    with get_task_stream(client) as building:
        result = stored[TRAIN, TRAIN].center().apply(block(2, 12))
    with get_task_stream(client) as running:
        found = result.compute()
    # What is sent is with all workers then, and nothing else is done.
    assert all(task["key"].startswith("take-") for task in building.data)
    assert error(found, dense_view(dense, TRAIN, TRAIN, ["center"]) @ block(2, 12)) < 1e-12
    workers = {task["worker"] for task in running.data if "apply-pass" in str(task["key"])}
    assert workers
    assert workers <= set(client.nthreads())


def test_results_built_one_after_another_do_not_meet_on_the_scheduler(stored, dense, client, caplog):
    V = block(2, 12)
    logger = logging.getLogger("distributed.scheduler")
    logger.addHandler(caplog.handler)
    try:
        view = stored[TRAIN, TRAIN].center()
        kept = view.apply(V).persist()
        small, again = view.project(V).compute(), view.apply(V).compute()
    finally:
        logger.removeHandler(caplog.handler)
    expected = dense_view(dense, TRAIN, TRAIN, ["center"])
    assert error(kept, expected @ V) < 1e-12
    assert error(again, expected @ V) < 1e-12
    assert error(small, V.T @ expected @ V) < 1e-12
    assert not [
        r.getMessage() for r in caplog.records if "apply-pass" in r.getMessage() or "center-pass" in r.getMessage()
    ]


@pytest.mark.usefixtures("client")
def test_what_the_client_keeps_of_the_workers_is_not_asked(stored, dense, monkeypatch):
    """Its periodic question to the scheduler may replace the list of workers by an empty one at any time."""
    monkeypatch.setattr(Client, "scheduler_info", lambda *_, **__: {"address": "", "workers": {}})
    assert machine().slots == 2
    V = block(2, 12)
    found = stored[TRAIN, TRAIN].center().apply(V).compute()
    assert error(found, dense_view(dense, TRAIN, TRAIN, ["center"]) @ V) < 1e-12


def test_what_never_arrives_is_sent_again(stored, dense, client, monkeypatch):
    """The scheduler waits without end for a worker that takes values and never answers."""
    sent, scatter = [], client._scatter

    async def stuck(*args, **kwargs):
        sent.append(args)
        return await (asyncio.sleep(60) if len(sent) == 1 else scatter(*args, **kwargs))

    monkeypatch.setattr(client, "_scatter", stuck)
    monkeypatch.setattr("dmkl.passes.execute._SECONDS", 0.5)
    V = block(2, 12)
    found = stored[TRAIN, TRAIN].center().apply(V).compute()
    assert error(found, dense_view(dense, TRAIN, TRAIN, ["center"]) @ V) < 1e-12


def test_a_cluster_without_workers(stored):
    with (
        LocalCluster(n_workers=0, host="127.0.0.1", dashboard_address="127.0.0.1:0") as empty,
        Client(empty),
        dask.config.set({"dmkl.workers-timeout": 0.2}),
        pytest.raises(NoWorkersError, match=r"tcp://127\.0\.0\.1:\d+ has given no worker within 0\.2 s"),
    ):
        stored.apply(block(1))


@pytest.mark.parametrize("broadcast", [True, False])
def test_nothing_is_sent_to_a_cluster_without_workers(broadcast):
    with (
        LocalCluster(n_workers=0, host="127.0.0.1", dashboard_address="127.0.0.1:0") as empty,
        Client(empty),
        dask.config.set({"dmkl.workers-timeout": 0.2}),
        pytest.raises(NoWorkersError, match=r"has given no worker within 0\.2 s"),
    ):
        send_all({"value": 1}, broadcast=broadcast)


@pytest.mark.parametrize(
    "raised", [CommClosedError("gone"), KeyError("tcp://127.0.0.1:1"), TimeoutError("No valid workers found")]
)
def test_what_is_sent_while_a_worker_dies_is_sent_again(client, monkeypatch, raised):
    to_raise = [raised]

    def scatter(*values, whole=client.scatter, **options):
        if to_raise:
            raise to_raise.pop()
        return whole(*values, **options)

    monkeypatch.setattr(client, "scatter", scatter)
    (sent,) = send_all({"value": 1})
    assert not to_raise
    assert sent.result() == 1


@pytest.mark.timeout(60)
@pytest.mark.parametrize("which", ["has the values", pytest.param("has yet to get them", marks=pytest.mark.slow)])
def test_a_worker_that_dies_while_values_are_copied_holds_nobody_up(stored, dense, monkeypatch, which):
    """Dask's own copying to all workers would never end, nor would any later one."""
    dying: list[str] = []
    with (
        LocalCluster(n_workers=3, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster) as client,
    ):
        pids = client.run(os.getpid)

        def kill(*args, update=cluster.scheduler.update_data, **options):
            """Between the values' way to one worker and their copies: the scheduler has yet to notice."""
            update(*args, **options)
            holders = set().union(*options["who_has"].values())
            if not dying:
                dying.append((holders if which == "has the values" else pids.keys() - holders).pop())
                os.kill(pids[dying[0]], signal.SIGKILL)

        monkeypatch.setattr(cluster.scheduler, "update_data", kill)
        (sent,) = send_all({"value": 1})
        assert sent.result() == 1
        V = block(2, 12)
        found = stored[TRAIN, TRAIN].center().apply(V).compute()
    assert dying
    assert error(found, dense_view(dense, TRAIN, TRAIN, ["center"]) @ V) < 1e-12


@pytest.mark.parametrize("n_workers", [1, 6, 30])
def test_what_is_sent_is_with_all_workers(n_workers):
    with (
        # It takes copies away again that no task waits for.
        dask.config.set({"distributed.scheduler.active-memory-manager.start": False}),
        # All of them are this process, which may have more memory than a share of it.
        LocalCluster(
            n_workers=n_workers, processes=False, threads_per_worker=1, memory_limit=None, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        sent = send_all({"first": np.ones(3), "second": 2.0})
        assert {len(holders) for holders in client.who_has(sent).values()} == {n_workers}


def test_a_damaged_tile_is_named_from_a_worker(tmp_path, dense, client):
    K = dmkl.create(tmp_path / "damaged.zarr", dense, names=["a", "b", "c", "d"], tile=5)
    file = tmp_path / "damaged.zarr" / "gram_upper" / "c" / "2" / "1" / "3"
    content = bytearray(file.read_bytes())
    content[8] ^= 1
    file.write_bytes(content)
    message = r"tile \(1, 3\) of kernel 'c' in .*damaged\.zarr fails its checksum"
    with pytest.raises(CorruptTileError, match=message):
        K.apply(block(1)).compute()
    with pytest.raises(CorruptTileError, match=message):
        run_pass([K.lens()], [Columns(block(1), "each", None, DOUBLE)])
    assert error(K.select(["a", "b", "d"]).apply(block(1)), dense[[0, 1, 3]] @ block(1)) < 1e-12


@pytest.fixture
def fragile(request):
    """A cluster of its own, whose scheduler gives a task `allowed` deaths of its worker."""
    n_workers, allowed = request.param
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": allowed}),
        revived_workers(n_workers) as client,
    ):
        yield client


@pytest.mark.usefixtures("tasks_of_parts")
@pytest.mark.slow
@pytest.mark.parametrize("fragile", [(2, 3)], indirect=True)
def test_a_worker_that_dies_costs_its_share(stored, dense, fragile, tmp_path):
    (tmp_path / "one death").touch()
    K, _ = over(stored, Killing, (2, 1, 3), tmp_path)
    view = K.center()
    (found,), passes = run_pass([view.lens()], [Columns(block(2), "each", None, DOUBLE)])
    assert not list(tmp_path.iterdir())
    assert passes == 1
    expected = dense_view(dense, steps=["center"]) @ block(2)
    assert error(found, expected) < 1e-12

    fragile.wait_for_workers(2)
    (tmp_path / "another").touch()
    assert error(view.apply(block(2)), expected) < 1e-12
    assert not list(tmp_path.iterdir())

    fragile.wait_for_workers(2)
    held = stored.persist()
    assert error(held.apply(block(2)), dense @ block(2)) < 1e-12
    os.kill(next(iter(fragile.run(os.getpid).values())), signal.SIGKILL)
    assert error(held.apply(block(2)), dense @ block(2)) < 1e-12


@pytest.mark.usefixtures("tasks_of_parts")
@pytest.mark.slow
@pytest.mark.parametrize("fragile", [(1, 1)], indirect=True)
def test_a_cluster_that_dies_whole_costs_one_pass(stored, dense, fragile, tmp_path):
    (tmp_path / "one death").touch()
    K, _ = over(stored, Killing, (2, 1, 3), tmp_path)
    (found,), _ = run_pass([K.lens()], [Columns(block(2), "each", None, DOUBLE)])
    assert error(found, dense @ block(2)) < 1e-12
    assert not list(tmp_path.iterdir())

    always, _ = over(stored, Killing, (2, 1, 3))
    with pytest.raises(WorkerLostError, match=r"workers died 2 times during apply-pass-\d+.*dmkl\.memory"):
        run_pass([always.lens()], [Columns(block(2), "each", None, DOUBLE)])


@pytest.mark.parametrize("fragile", [(2, 0)], indirect=True)
def test_a_task_that_kills_its_worker_is_named(stored, fragile):
    K, _ = over(stored.select([2]), Killing, (2, 1, 3))
    # Its worker may have been the only one with some of what was sent; which of the two is told first is up to Dask.
    with pytest.raises(
        WorkerLostError, match=r"died 1 times (while running|during) .*apply-pass.*Give the workers more"
    ):
        run_pass([K.lens()], [Columns(block(2), "each", None, DOUBLE)])
