"""Files in the formats of dmkl: atomic writes, checksums, and locks between processes."""

import errno
import itertools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading

import numpy as np
import psutil
import pytest
import xarray as xr
from helpers.damage import flip
from helpers.faults import disk_that_fills, lock_by

import dmkl
from dmkl.errors import DamagedFileError, DiskFullError, LockedError
from dmkl.files import writing
from dmkl.files.arrays import check_file, load_array, load_arrays, load_rows, save_array, save_arrays
from dmkl.files.writing import lock, lock_path, replacing, write_whole
from dmkl.outputs import write_kernel


# --- arrays ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "array",
    [
        np.arange(7.0),
        np.zeros((0, 3)),
        np.random.default_rng(0).normal(size=(3, 70, 40))[:, :60, :15],
        np.arange(300_000.0),  # several blocks
        np.zeros(2**17 - 16),  # full blocks
    ],
    ids=["vector", "empty", "strided", "blocks", "full"],
)
def test_arrays_come_back_and_numpy_reads_them(tmp_path, array):
    path = tmp_path / "array.npy"
    save_array(path, array)
    check_file(path)
    np.testing.assert_array_equal(load_array(path), array)
    np.testing.assert_array_equal(np.load(path), array)
    assert [file.name for file in tmp_path.iterdir()] == ["array.npy"]


def test_some_rows_are_read_and_checked_alone(tmp_path):
    path, array = tmp_path / "array.npy", np.random.default_rng(0).normal(size=(3, 500, 300))
    save_array(path, array)
    np.testing.assert_array_equal(load_rows(path, 1, slice(100, 400)), array[1, 100:400])
    flip(path, 128 + 8 * 500 * 300 * 2)  # in the last matrix
    np.testing.assert_array_equal(load_rows(path, 0, slice(0, 300)), array[0, :300])
    with pytest.raises(DamagedFileError, match=r"array.npy is damaged: bytes 2,097,152 to 3,145,728 have the checksum"):
        load_rows(path, 2, slice(0, 10))
    arrays = tmp_path / "arrays.npz"
    save_arrays(arrays, {"one": np.arange(3), "two": np.array("x")})
    assert load_arrays(arrays)["one"].tolist() == [0, 1, 2]
    flip(arrays, 40)
    with pytest.raises(DamagedFileError, match=r"arrays.npz is damaged"):
        load_arrays(arrays)


@pytest.mark.parametrize("keep", [0, 5, 100, -1])
def test_what_is_cut_or_gone_is_told(tmp_path, keep):
    path = tmp_path / "array.npy"
    save_array(path, np.arange(10))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DamagedFileError, match=r"array.npy is damaged"):
        load_array(path)
    path.unlink()
    with pytest.raises(DamagedFileError, match=r"array.npy is missing"):
        load_array(path)


# --- full disks ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "write", [lambda path: save_array(path, np.zeros(9000)), lambda path: write_whole(path, bytes(9000))]
)
def test_a_full_disk_leaves_what_was_there(tmp_path, write):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with disk_that_fills() as fill:
        fill()
        with pytest.raises(DiskFullError, match=r"no space left while writing .*file \([\d,.]+ MiB free on its disk\)"):
            write(path)
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_other_errors_are_as_they_are(tmp_path):
    with pytest.raises(IsADirectoryError), replacing(tmp_path / "file"):
        raise IsADirectoryError(errno.EISDIR, "another")
    assert not list(tmp_path.iterdir())


# --- links -----------------------------------------------------------------------------------------------------------
def link_target(kind, path):
    """The number that was written last to the target of a link."""
    if kind == "set":
        return np.asarray(dmkl.open(path))[0, 0, 0]
    return dmkl.load(path).lam if kind == "model" else int(path.read_text())


WRITE = {
    "set": lambda out, number: dmkl.create(out, [number * np.eye(4)], overwrite=True),
    "model": lambda out, number: (
        dmkl.Uniform(lam=number).fit(dmkl.create(None, [np.eye(4)]), [0, 1, 0, 1]).save(out, overwrite=True)
    ),
    "file": lambda out, number: write_whole(out, str(number).encode()),
}


@pytest.mark.parametrize("kind", WRITE)
@pytest.mark.parametrize("dangling", [False, True])
def test_a_link_stays_and_its_target_is_written(tmp_path, kind, dangling):
    (tmp_path / "inner").mkdir()
    target, link = tmp_path / "inner" / "target", tmp_path / "link"
    link.symlink_to("inner/target")
    if not dangling:
        WRITE[kind](target, 1)
    with lock(link):  # the lock of the link is that of its target
        with lock(target):
            WRITE[kind](link, 2)
        assert lock_path(target).exists()
    assert os.readlink(link) == "inner/target"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["inner", "link"]
    assert [entry.name for entry in (tmp_path / "inner").iterdir()] == ["target"]
    assert link_target(kind, target) == 2


# --- replacement -----------------------------------------------------------------------------------------------------
@pytest.fixture
def at_each_step(monkeypatch):
    """Call a function before and after each renaming and removal: then a process may be killed."""

    def arrange(look):
        def looking(function):
            def call(*given, **named):
                look()
                result = function(*given, **named)
                look()
                return result

            return call

        for owner, name in (
            *((writing, name) for name in ("_exchange", "sync", "sync_tree")),
            *((os, name) for name in ("replace", "rename")),
            *((pathlib.Path, name) for name in ("rename", "replace")),
            (shutil, "rmtree"),
        ):
            monkeypatch.setattr(owner, name, looking(getattr(owner, name)))

    return arrange


@pytest.mark.parametrize("exchanges", [True, False])
@pytest.mark.parametrize("kind", ["set", "model"])
def test_an_output_that_is_replaced_is_always_there(tmp_path, at_each_step, monkeypatch, kind, exchanges):
    path, numbers, gaps, files = tmp_path / "out", [], [], [None]
    if not exchanges:
        monkeypatch.setattr(writing, "_exchange", lambda *_: False)
        monkeypatch.setattr(writing, "_GAP_SECONDS", 0.0)
    elif not writing._exchange(*(pathlib.Path(tempfile.mkdtemp(dir=tmp_path)) for _ in range(2))):
        pytest.skip("this file system cannot exchange names")

    def look():
        gaps.append(not path.exists())
        files.append({file: (file.stat().st_ino, file.stat().st_mtime_ns) for file in path.rglob("*")})
        if files[-1] != files[-2]:
            numbers.append(link_target(kind, path))

    WRITE[kind](path, 1)
    at_each_step(look)
    WRITE[kind](path, 2)
    assert numbers[0] == 1
    assert numbers[-1] == 2
    assert set(numbers) == {1, 2}
    assert any(gaps) != exchanges


@pytest.mark.parametrize("names_before", [None, ["a", "b"]])
def test_files_of_a_kernel_appear_together(tmp_path, at_each_step, names_before):
    out, folders = tmp_path / "out", []
    out.mkdir()
    files = [out / f"kernel.grm{end}" for end in (".bin", ".N.bin", ".id")]

    def write(names):
        kernel = xr.DataArray(len(names) * np.eye(len(names)), {"sample": names}, ("sample", "sample_2"), name="k")
        write_kernel(files[0], kernel, overwrite=True)

    def look():
        if files[0].exists():
            assert contents(out) in known
        folders.append(shutil.copytree(out, tmp_path / f"{len(folders)}", copy_function=shutil.copyfile))

    def contents(folder):
        return [(folder / file.name).read_bytes() for file in files]

    known = []
    for names in [names_before, ["a", "b", "c"]] if names_before else [["a", "b", "c"]]:
        write(names)
        known.append(contents(out))
    for file in files:
        file.unlink()
    if names_before:
        write(names_before)
    at_each_step(look)
    write(["a", "b", "c"])
    assert len(folders) > 6
    for folder in folders:
        writing.remove_leftovers(folder / files[0].name)
        there = {entry.name for entry in folder.iterdir()}
        if names_before:
            assert there == {file.name for file in files}
            assert contents(folder) in known
        else:
            assert files[0].name not in there or contents(folder) in known


# --- locks -----------------------------------------------------------------------------------------------------------
def test_an_output_belongs_to_one_process(tmp_path):
    out = tmp_path / "out"
    with lock(out), lock(out):  # locks are reentrant
        assert json.loads(lock_path(out).read_text())["pid"] == os.getpid()
    assert not list(tmp_path.iterdir())
    lock_by(out)
    message = rf"out is being written by process {os.getppid()} on .* since 2026-01-02 03:04:05; wait .*out\.lock"
    with pytest.raises(LockedError, match=message), lock(out):
        pass
    assert json.loads(lock_path(out).read_text())["token"] == "theirs"


@pytest.mark.parametrize(
    ("holder", "lives"),
    [
        ({"pid": 2**22 + 1}, False),  # no such process
        ({"started": 1.0}, False),  # a reused process number
        ({"host": "elsewhere", "machine": "elsewhere"}, True),
        ({"host": "elsewhere", "machine": "elsewhere"}, False),
        # Machines may share a host name and a process number.
        ({"machine": "another boot", "pid": 2**22 + 1}, True),
    ],
)
def test_a_lock_is_taken_over_unless_its_holder_lives_or_touches_it(tmp_path, monkeypatch, holder, lives):
    monkeypatch.setattr(writing, "_BEAT", 0.05)
    out = tmp_path / "out"
    lock_by(out, **holder)
    if lives:
        beats = itertools.count(1)
        monkeypatch.setattr(writing.time, "sleep", lambda seconds: os.utime(lock_path(out), (0, next(beats))))
        words = f"on {holder['host']} since" if "host" in holder else "is being written by"
        with pytest.raises(LockedError, match=words), lock(out):
            pass
    else:
        with lock(out):
            assert json.loads(lock_path(out).read_text())["pid"] == os.getpid()
        assert not list(tmp_path.iterdir())


def test_a_lock_that_was_taken_meanwhile_is_put_back(tmp_path):
    out = tmp_path / "out"
    lock_by(out, token="old")
    judged = writing._read(lock_path(out))
    lock_by(out, token="new")
    writing._remove(lock_path(out), judged)
    assert json.loads(lock_path(out).read_text())["token"] == "new"


def test_a_lock_that_was_made_twice_is_held(tmp_path, monkeypatch):
    """NFS repeats a call whose answer was lost, and the second finds the link of the first."""
    make = os.link

    def twice(*paths):
        make(*paths)
        make(*paths)

    monkeypatch.setattr(os, "link", twice)
    with lock(tmp_path / "out"):
        assert json.loads(lock_path(tmp_path / "out").read_text())["pid"] == os.getpid()
    assert not list(tmp_path.iterdir())


def test_a_lock_that_a_killed_process_left_does_not_stay(tmp_path, error_of, stored):
    """It was killed after its output was complete: the same command finds the output, and removes the lock."""
    (tmp_path / "out").mkdir()
    for pid, stays in ((2**22 + 1, False), (os.getppid(), True)):
        lock_by(tmp_path / "out", pid=pid)
        assert "exists already" in error_of("fit", stored.view.source.location, tmp_path / "out")
        assert lock_path(tmp_path / "out").exists() == stays


def test_one_of_many_that_lock_at_once_holds_the_lock(tmp_path):
    file, made = lock_path(tmp_path / "out"), []
    holders = [writing._Holder("elsewhere", "", 1, 0.0, "today", str(k)) for k in range(8)]
    threads = [threading.Thread(target=lambda h=h: made.append(writing._make(file, h))) for h in holders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == [False] * 7 + [True]


def test_a_step_of_the_clock_does_not_end_a_holder(tmp_path, monkeypatch):
    """The start time of a process by psutil, in seconds of the wall clock, changes when the clock is set."""
    code = "import sys; from dmkl.files.writing import lock\nwith lock(sys.argv[1]): print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "out")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        other.stdout.readline()
        create_time = psutil.Process.create_time
        monkeypatch.setattr(psutil.Process, "create_time", lambda process: create_time(process) + 3600)
        with pytest.raises(LockedError, match=f"process {other.pid} on"), lock(tmp_path / "out"):
            pass
        other.communicate("\n")


@pytest.mark.parametrize("lost", ["taken over", "removed"])
@pytest.mark.parametrize("kind", WRITE)
def test_who_has_lost_its_lock_changes_nothing(tmp_path, monkeypatch, kind, lost):
    """The case of a suspended process whose lock was taken over by another process."""
    monkeypatch.setattr(writing, "_BEAT", 0.05)
    out = tmp_path / "out"
    WRITE["set" if kind == "file" else kind](out, 1)
    before = {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    with lock(out):
        if lost == "removed":
            lock_path(out).unlink()
        else:
            lock_by(out)
        with pytest.raises(LockedError, match=r"does not belong to this process any more: .* run it again"):
            WRITE[kind](out / "state.json" if kind == "file" else out, 2)
        assert not lock_path(out).exists() or json.loads(lock_path(out).read_text())["token"] == "theirs"
    assert {file: file.read_bytes() for file in out.rglob("*") if file.is_file()} == before
    assert (lost == "taken over") == lock_path(out).exists()  # the new holder removes it


@pytest.mark.parametrize("moment", range(1, 9))
def test_a_set_whose_lock_is_lost_while_it_is_written_is_not_put_in_place(tmp_path, monkeypatch, moment):
    out = tmp_path / "out"
    dmkl.create(out, [np.eye(4)])
    identity = dmkl.open(out).content_id
    calls = itertools.count(1)

    def check_lock(path, check_lock=writing.check_lock):
        if next(calls) == moment:
            lock_by(out)
        check_lock(path)

    monkeypatch.setattr("dmkl.store.writer.check_lock", check_lock)
    with pytest.raises(LockedError):
        dmkl.create(out, [2 * np.eye(4)], tile=2, overwrite=True)
    assert dmkl.open(out).content_id == identity


@pytest.mark.filterwarnings("ignore::dmkl.errors.LabelWarning")
def test_a_command_removes_what_a_killed_one_has_left_of_its_output(output_of, tmp_path, stored):
    kernels, model, table = stored.view.source.location, tmp_path / "model", tmp_path / "table.csv"
    output_of("fit", kernels, model)
    (tmp_path / f"table.csv.{'0' * 32}.partial").write_text("half of a ta")
    (tmp_path / "table.csv.mine.partial").write_text("of somebody else")
    output_of("predict", model, kernels, "--out", table)
    assert {entry.name for entry in tmp_path.iterdir()} == {"model", "table.csv", "table.csv.mine.partial"}
