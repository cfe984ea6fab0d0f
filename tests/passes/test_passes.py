"""Passes: products against dense ones, their graphs, and failures during a pass."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import re
import signal
import threading
from types import SimpleNamespace
from unittest.mock import DEFAULT, patch

import dask
import numpy as np
import pytest
from distributed import Client
from distributed.comm.core import CommClosedError
from helpers.damage import flip, tile_file
from helpers.faults import revived_workers
from helpers.references import (
    Counting,
    Killing,
    Wrapped,
    dense_view,
    error,
    local_cluster,
    over,
    psd,
    raise_if_computes,
    stepped,
)
from threadpoolctl import ThreadpoolController, threadpool_limits

import dmkl
from dmkl import progress
from dmkl.arrays import Tiling
from dmkl.errors import CorruptTileError, InputError, MemoryBudgetError, NoWorkersError, WorkerLostError
from dmkl.passes.blas import blas_threads, factor_threads, pinned_blas
from dmkl.passes.execute import send_all
from dmkl.passes.run import run_pass
from dmkl.passes.sweep import Columns
from dmkl.passes.view import View, units_of

M = 23
DOUBLE, SINGLE = np.dtype(np.float64), np.dtype(np.float32)
TRAIN = np.array([20, 3, 7, 0, 15, 11, 8, 22, 4, 18, 13, 1])
TEST = np.array([2, 5, 21, 9])
CHAINS = [(), ("trace",), ("multiplicative", "center"), ("center", "cosine", "trace")]


def block(width, rows=M, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, width))


def lazily(build):
    with raise_if_computes():
        return build()


def make(folder, K, **options):
    return dmkl.create(folder / f"{len(list(folder.iterdir()))}.zarr", K, **options)


# --- against dense products ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("dtype", "scheduler"),
    [(SINGLE, "synchronous"), (DOUBLE, "synchronous"), (SINGLE, "threads"), (DOUBLE, "processes")],
    indirect=["scheduler"],
)
def test_products_agree_everywhere(tmp_path, dense, dtype, scheduler):
    """Relative errors in the Frobenius norm of each kernel's result are at most 1e-12, or 1e-5 in single precision."""
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


@pytest.mark.usefixtures("cutting", "tasks_of_parts")
@pytest.mark.parametrize(("tile", "full"), [(1, False), (4, True), (11, False), (12, True), (100, False)])
def test_products_agree_for_every_tile(tmp_path, tile, full):
    matrices = psd(2, 11)
    K = make(tmp_path, matrices, tile=tile, full=full)
    V = block(2, 11)
    assert error(K.apply(V), matrices @ V) < 1e-12
    assert error(K.project(V), V.T @ matrices @ V) < 1e-12
    for part in (matrices[:, :4], matrices[:, :, :4]):  # more columns of tiles than rows, and more rows
        some = make(tmp_path, part, tile=tile, symmetric=False)
        assert error(some.apply(V[: part.shape[2]]), part @ V[: part.shape[2]]) < 1e-12
        assert error(some[::-2, 1:3].apply(V[:2]), part[:, ::-2, 1:3] @ V[:2]) < 1e-12
    rows, cols = np.array([10, 3, 3, 0]), np.array([1, 9, 4, 9, 9])
    assert error(K[rows, cols].apply(V[:5]), matrices[:, rows][:, :, cols] @ V[:5]) < 1e-12
    assert error(K[cols, cols].project(V[:5]), V[:5].T @ matrices[:, cols][:, :, cols] @ V[:5]) < 1e-12


def test_vectors_of_any_real_type_and_one_vector(stored, dense):
    for kind in (np.float32, np.int16, np.uint8, bool):
        V = (block(2) > 0).astype(kind)
        assert error(stored.apply(V), dense @ V.astype(float)) < 1e-12
    v = block(1)[:, 0]
    applied, projected = lazily(lambda: stored.apply(v, dtype=SINGLE)), lazily(lambda: stored.project(v))
    assert (applied.shape, projected.shape) == ((4, M), (4,))
    assert applied.dtype == DOUBLE  # kernels in double precision are not combined with single precision
    assert error(applied, dense @ v) < 1e-12
    np.testing.assert_allclose(projected, v @ dense @ v, rtol=1e-12)


@pytest.mark.parametrize("want", ["each", "sum", "project"])
def test_where_columns_lie_in_memory_does_not_show_in_products(tmp_path, want):
    """Arrays from a message between processes may begin at an odd address."""
    K, V = make(tmp_path, psd(2, 37), tile=16), block(3, 37)
    odd = np.empty(V.nbytes + 1, np.uint8)[1:].view(V.dtype).reshape(V.shape)
    odd[...] = V
    assert not odd.flags.aligned
    weights = np.ones((2, 3)) if want == "sum" else None
    (computed,), (expected,) = (run_pass([K.lens()], [Columns(each, want, weights, DOUBLE)])[0] for each in (odd, V))
    np.testing.assert_array_equal(computed, expected)


# --- the graph ----------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("tasks_of_parts")
def test_each_tile_is_read_once(tmp_path, dense):
    for full, scheduler in [(False, "threads"), (True, "synchronous")]:
        K, source = over(make(tmp_path, dense, tile=5, full=full), Counting)
        upper = {(k, i, j): 1 for k in range(4) for i in range(5) for j in range(i, 5)}
        for run in (K.apply, K.project, K.center().apply):
            source.reads.clear()
            lazily(lambda run=run: run(block(3))).compute(scheduler=scheduler)
            assert source.reads == upper


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
        return {
            name: {result.name, *(key for key in dict(result.__dask_graph__()) if is_unit(str(key)))}
            for name, result in results.items()
        }

    is_unit = re.compile(r"apply-pass-\d+(-|$)").match
    other, tiled = make(tmp_path, changed, tile=5), make(tmp_path, dense.astype("f4"), tile=6)
    first, second = build(), build()
    assert first == second
    for (left, names), (right, others) in itertools.combinations(first.items(), 2):
        assert not names & others, f"{left} and {right} share names"


def view_of(n, m):
    """The view of a set of n kernels over m samples in single precision."""
    tiling = Tiling(m, m, 2048, upper=True)
    source = SimpleNamespace(tiling=tiling, dtype=SINGLE, reads_per_tile=1, symmetric=True, factors=None)
    return View(source, np.arange(n), np.arange(m), np.arange(m))


def test_tasks_of_a_set_of_terabytes_are_few_and_return_little():
    """1,000 kernels of 100,000 samples: tasks return at most about twice the products, and have similar sizes."""
    n, m = 1000, 100_000
    view = view_of(n, m)
    units = units_of(view)
    assert 3000 <= len(units) <= 10_000 - n  # work for some thousands of cores
    returned = sum(len(unit.rows(view)) for unit in units[: len(units) // n])
    assert returned <= 2.1 * m
    sizes = [len(unit.tiles) for unit in units]
    assert max(sizes) <= 1.2 * min(sizes)


def test_kernels_of_some_tasks_bytes_stay_whole():
    """8 kernels of 6,144 samples: the halves of a kernel would return its products twice."""
    assert [unit.whole for unit in units_of(view_of(8, 6144))] == [True] * 8


# --- progress, and reading ahead ----------------------------------------------------------------------------
@pytest.mark.usefixtures("scheduler", "tasks_of_parts")
def test_progress_counts_every_byte(stored, monkeypatch):
    done = []
    monkeypatch.setattr(progress.Watch, "advance", lambda _, n_bytes: done.append(n_bytes))
    with progress.watching(progress.Watch()):
        run_pass([stored.lens()], [Columns(block(1), "each", None, DOUBLE)], "gradient")
    assert sum(done) == stored.bytes_per_pass


# --- BLAS threads -------------------------------------------------------------------------------------------
def numpy_threads():
    """BLAS threads of NumPy's library; some wheels include a library with one thread only."""
    computed = [lib for lib in ThreadpoolController().info() if lib["user_api"] == "blas"]
    own = [lib for lib in computed if "numpy" in lib["filepath"]]
    return {lib["num_threads"] for lib in own or computed}


def test_blas_is_limited_inside_tasks_alone(stored):
    """The number of threads is restored at the end, also after an error."""
    inside = []

    def look(_):
        inside.append(numpy_threads())
        if len(inside) > 60:
            raise OSError

    K, source = over(stored, Wrapped)
    source.see = look
    with threadpool_limits(3, "blas"), dask.config.set({"dmkl.blas-threads": 1, "scheduler": "threads"}):
        K.apply(block(2)).compute()
        assert all(threads == {1} for threads in inside)
        assert len(inside) == 60
        assert numpy_threads() == {3}
        with pytest.raises(OSError):  # noqa: PT011 (raised above, without a message)
            K.apply(block(2)).compute()
        assert numpy_threads() == {3}


def test_the_last_of_overlapping_tasks_gives_blas_back():
    second_in, first_out, seen = threading.Event(), threading.Event(), []

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
        first_out.set()
        thread.join(10)
        assert [*seen, numpy_threads()] == [{1}, {1}, {3}]


@pytest.mark.parametrize(("cores", "tasks", "threads"), [(8, 2, 4), (8, 3, 2), (2, 5, 1), (4, 0, 4)])
def test_tasks_times_threads_stay_within_the_cores(monkeypatch, cores, tasks, threads):
    monkeypatch.setattr("dmkl.settings.available_cores", lambda: cores)
    assert blas_threads(tasks) == factor_threads(1024, tasks) == 1
    assert factor_threads(8192, tasks) == threads
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


# --- clusters -----------------------------------------------------------------------------------------------
def test_results_built_one_after_another_do_not_meet_on_the_scheduler(stored, dense, client, caplog):
    V = block(2, 12)
    with patch.object(logging.getLogger("distributed"), "propagate", True):
        view = stored[TRAIN, TRAIN].center()
        kept = view.apply(V).persist()
        small, again = view.project(V).compute(), view.apply(V).compute()
    expected = dense_view(dense, TRAIN, TRAIN, ["center"])
    assert error(kept, expected @ V) < 1e-12
    assert error(again, expected @ V) < 1e-12
    assert error(small, V.T @ expected @ V) < 1e-12
    assert not any(name in r.getMessage() for r in caplog.records for name in ("apply-pass", "center-pass"))


def test_what_never_arrives_is_sent_again(stored, dense, client, monkeypatch):
    """The scheduler waits forever for a worker that accepts values and never answers."""
    sent, scatter = [], client._scatter

    async def stuck(*args, **kwargs):
        sent.append(args)
        return await (asyncio.sleep(60) if len(sent) == 1 else scatter(*args, **kwargs))

    monkeypatch.setattr(client, "_scatter", stuck)
    monkeypatch.setattr("dmkl.passes.execute._SECONDS", 0.5)
    V = block(2, 12)
    computed = stored[TRAIN, TRAIN].center().apply(V).compute()
    assert error(computed, dense_view(dense, TRAIN, TRAIN, ["center"]) @ V) < 1e-12


def test_a_cluster_without_workers(stored):
    """Nothing is computed or sent."""
    with local_cluster(0) as empty, Client(empty), dask.config.set({"dmkl.workers-timeout": 0.2}):
        for ask in (
            lambda: stored.apply(block(1)),
            lambda: send_all({"value": 1}, broadcast=True),
            lambda: send_all({"value": 1}, broadcast=False),
        ):
            with pytest.raises(NoWorkersError, match=r"tcp://127\.0\.0\.1:\d+ has given no worker within 0\.2 s"):
                ask()


@pytest.mark.parametrize(
    "raised", [CommClosedError("gone"), KeyError("tcp://127.0.0.1:1"), TimeoutError("No valid workers found")]
)
def test_what_is_sent_while_a_worker_dies_is_sent_again(client, raised):
    with patch.object(client, "scatter", wraps=client.scatter, side_effect=[raised, DEFAULT]) as scatter:
        (sent,) = send_all({"value": 1})
    assert scatter.call_count == 2
    assert sent.result() == 1


@pytest.mark.timeout(60)
@pytest.mark.slow
@pytest.mark.parametrize("which", ["has the values", "has yet to get them"])
def test_a_worker_that_dies_while_values_are_copied_holds_nobody_up(stored, dense, monkeypatch, which):
    """Dask's copying to all workers would never end."""
    dying: list[str] = []
    with local_cluster(3) as cluster, Client(cluster) as client:
        pids = client.run(os.getpid)

        def kill(*args, update=cluster.scheduler.update_data, **options):
            """Kill a worker after the first worker has the values and before they are copied."""
            update(*args, **options)
            holders = set().union(*options["who_has"].values())
            if not dying:
                dying.append((holders if which == "has the values" else pids.keys() - holders).pop())
                os.kill(pids[dying[0]], signal.SIGKILL)

        monkeypatch.setattr(cluster.scheduler, "update_data", kill)
        (sent,) = send_all({"value": 1})
        assert sent.result() == 1
        V = block(2, 12)
        computed = stored[TRAIN, TRAIN].center().apply(V).compute()
    assert dying
    assert error(computed, dense_view(dense, TRAIN, TRAIN, ["center"]) @ V) < 1e-12


def test_a_damaged_tile_is_named_from_a_worker(tmp_path, dense, client):
    K = dmkl.create(tmp_path / "damaged.zarr", dense, names=["a", "b", "c", "d"], tile=5)
    flip(tile_file(tmp_path / "damaged.zarr", 2, 1, 3))
    message = r"tile \(1, 3\) of kernel 'c' in .*damaged\.zarr fails its checksum"
    with pytest.raises(CorruptTileError, match=message):
        K.apply(block(1)).compute()
    with pytest.raises(CorruptTileError, match=message):
        run_pass([K.lens()], [Columns(block(1), "each", None, DOUBLE)])
    assert error(K.select(["a", "b", "d"]).apply(block(1)), dense[[0, 1, 3]] @ block(1)) < 1e-12


@pytest.fixture
def fragile(request):
    """A separate cluster, whose scheduler allows `allowed` deaths of a task's worker."""
    n_workers, allowed = request.param
    with dask.config.set({"distributed.scheduler.allowed-failures": allowed}), revived_workers(n_workers) as client:
        yield client


@pytest.mark.slow
@pytest.mark.parametrize("fragile", [(2, 3)], indirect=True)
def test_tiles_that_a_dead_worker_held_are_read_again(stored, dense, fragile):
    """`tests/faults` kills workers in the middle of every command."""
    held = stored.persist()
    os.kill(next(iter(fragile.run(os.getpid).values())), signal.SIGKILL)
    assert error(held.apply(block(2)), dense @ block(2)) < 1e-12


@pytest.mark.usefixtures("fragile")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("fragile", "message"),
    [
        ((1, 1), r"workers died 2 times during apply-pass-\d+.*dmkl\.memory"),
        # Its worker may have been the only one with some of the sent data: Dask reports one of the two errors.
        ((2, 0), r"died 1 times (while running|during) .*apply-pass.*Give the workers more"),
    ],
    indirect=["fragile"],
)
def test_a_task_that_kills_its_worker_is_named(stored, message):
    K, _ = over(stored.select([2]), Killing, (2, 1, 3))
    with pytest.raises(WorkerLostError, match=message):
        run_pass([K.lens()], [Columns(block(2), "each", None, DOUBLE)])
