"""Files that lead elsewhere, have no end, contain code, or crash the process that reads them."""

import json
import os
import pickle
import re
from pathlib import Path

import dask
import h5py
import numpy as np
import pytest
import scipy.io
import scipy.sparse
import zarr
from helpers.containers import write_hdf5
from helpers.reading import kernels_in

import dmkl
from dmkl.cli.main import main
from dmkl.cli.parsing import read_kernel_groups
from dmkl.clusters.job_options import read_description
from dmkl.errors import InputError, MemoryBudgetError, StoreError
from dmkl.features.specs import plan
from dmkl.files.writing import lock, lock_path
from dmkl.health import check
from dmkl.inputs import as_features, open_files, read_file
from dmkl.job_files import read_job
from dmkl.store.zarr_groups import open_group

pytestmark = pytest.mark.timeout(60)
K = np.eye(6) + 1
SECRET = "root:x:0:0"


def link(file):
    file["K"] = h5py.ExternalLink("other.h5", "K")


def storage(file):
    file.create_dataset("K", K.shape, "f8", external=[("other.bin", 0, h5py.h5f.UNLIMITED)])


def virtual(file):
    layout = h5py.VirtualLayout(K.shape, "f8")
    layout[...] = h5py.VirtualSource("other.h5", "K", K.shape)
    file.create_virtual_dataset("K", layout)


@pytest.mark.parametrize("point", [link, storage, virtual])
@pytest.mark.parametrize("name", ["k.h5", "k.mat"])
def test_other_files_are_not_read_unasked(tmp_path, monkeypatch, point, name):
    path = tmp_path / name
    write_hdf5(tmp_path / "other.h5", K=K)
    (tmp_path / "other.bin").write_bytes(K.tobytes())
    monkeypatch.chdir(tmp_path)  # where external storage is searched for
    with h5py.File(path, "w", userblock_size=512 if name.endswith(".mat") else 0) as file:
        point(file)
    message = r"variable 'K' of .*k\..* other files, which are not read by default.*dmkl.external"
    for reader in (open_files, as_features, read_file):
        with pytest.raises(InputError, match=message):
            reader(path)
    with dask.config.set({"dmkl.external-files": True}):
        np.testing.assert_array_equal(kernels_in(path)[0], [K])


def test_groups_that_hold_themselves_are_gone_through_once(tmp_path):
    for name in ("k.h5", "k.mat"):
        with h5py.File(tmp_path / name, "w") as file:
            file["K"] = K
            file["inner/again"] = file["/"]
        assert open_files(tmp_path / name)[0].n_kernels == 1


# --- pipes, devices and links in the places of files -----------------------------------------------------------------
def to_a_file(path):
    secret = next(folder for folder in path.parents if folder.name == "here").with_name("secret")
    secret.write_text(SECRET)
    path.symlink_to(secret)


def to_a_device(path):
    path.symlink_to("/dev/zero")


def to_nothing(path):
    path.symlink_to("target")


@pytest.fixture
def here(tmp_path):
    """A folder beside which `to_a_file` puts a secret, which stays as it is."""
    (tmp_path / "here").mkdir()
    yield tmp_path / "here"
    assert not (tmp_path / "secret").exists() or (tmp_path / "secret").read_text() == SECRET


READERS = {
    "labels.csv": read_file,
    "k.npy": open_files,
    "k.csv": open_files,
    "x.csv": as_features,
    "x.parquet": as_features,
    "specs.toml": lambda path: plan(path, as_features({"x": np.ones((3, 2))}).blocks),
    "job.toml": lambda path: read_job(path, ["data"]),
    "cluster.yaml": read_description,
    "groups.csv": lambda path: read_kernel_groups(str(path), ["a", "b"]),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize(("put", "kind"), [(os.mkfifo, "pipe"), (to_a_device, "device")])
def test_inputs_are_regular_files(here, name, put, kind):
    put(here / name)
    with pytest.raises(InputError, match=rf"{name} is a {kind}, and only regular files are opened; copy its content"):
        READERS[name](here / name)


@pytest.mark.parametrize(
    ("put", "kind"), [(os.mkfifo, "pipe"), (to_a_device, "symbolic link"), (to_a_file, "symbolic link")]
)
def test_locks_and_logs_are_regular_files_and_no_links(here, put, kind, capsys):
    put(lock_path(here / "out"))
    with pytest.raises(InputError, match=rf"out\.lock is a {kind}, and only regular"), lock(here / "out"):
        pass
    put(here / "run.log")
    assert main(["info", str(here / "nothing"), "--log", str(here / "run.log")]) == 1
    assert f"run.log is a {kind}, and only regular files are opened" in capsys.readouterr().err


def searched(folder):
    K = dmkl.create(None, [np.eye(8) + np.outer(v, v) for v in np.eye(8)[:2]], labels=[0, 1] * 4)
    return dmkl.search(dmkl.MKFDA(), K, grid={"lam": [0.1]}, cv=2, baselines="none", state=folder)


@pytest.mark.parametrize("put", [os.mkfifo, to_a_device, to_a_file, to_nothing])
@pytest.mark.parametrize("name", ["state.json", "fold-0/basis-0.npy"])
def test_a_checkpoint_has_regular_files_and_no_links(here, put, name):
    path = here / "state" / name
    path.parent.mkdir(parents=True)
    put(path)
    with pytest.raises(StoreError, match=f"{name} is a (pipe|symbolic link), and only regular"):
        searched(here / "state")
    assert not (path.parent / "target").exists()


ENDLESS = {
    "state/state.json": lambda path: searched(path.parent),
    "set.zarr/zarr.json": lambda path: open_group(path.parent),
    "groups.csv": lambda path: read_kernel_groups(str(path), ["a"]),
    "scheduler.json": lambda path: dmkl.cluster(str(path)).__enter__(),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_documents_of_any_length_are_not_read(here, name):
    (here / name).parent.mkdir(exist_ok=True)
    with open(here / name, "wb") as file:
        file.truncate(2**28)
    with dask.config.set({"dmkl.memory": "64MiB"}), pytest.raises(MemoryBudgetError, match=r"takes 1\.07e"):
        ENDLESS[name](here / name)


# --- stores ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("at", ["zarr.json", "k/zarr.json"])
@pytest.mark.parametrize("attributes", ["scale_factor", ["a"], 3])
def test_attributes_of_zarr_that_are_no_table_are_refused(tmp_path, at, attributes):
    zarr.open_group(tmp_path / "x.zarr", mode="w").create_array("k", data=np.eye(4))
    file = tmp_path / "x.zarr" / at
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {"attributes": attributes}))
    for read in (as_features, open_files, read_file):
        with pytest.raises(InputError, match="attributes"):
            read(tmp_path / "x.zarr")


def to_itself_elsewhere(path):
    """A link to the same file in another folder."""
    path.symlink_to(path.with_name(f"{path.name}.moved"))


PUT = [
    *(pytest.param(put, "a symbolic link", id=put.__name__) for put in (to_a_file, to_a_device, to_itself_elsewhere)),
    pytest.param(os.mkfifo, "a pipe", id="mkfifo"),
]


def exchange(file, put):
    file.rename(file.with_name(f"{file.name}.moved"))
    put(file)


@pytest.mark.parametrize(
    ("put", "kind", "name"),
    [
        *((to_a_file, "a symbolic link", name) for name in ("zarr.json", "kernel/c/0", "sample/c/0", "row_sum/c/0/0")),
        *((to_itself_elsewhere, "a symbolic link", name) for name in ("gram_upper", "gram_upper/c/0", "kernel")),
        *((*put.values, "gram_upper/c/0/0/0") for put in PUT),
        (os.mkfifo, "a pipe", "zarr.json"),
    ],
)
def test_of_a_kernel_set_only_regular_files_are_read(here, put, kind, name):
    dmkl.create(here / "set.zarr", [K], samples=list("abcdef"), labels=[0, 1] * 3)
    (here / "link.zarr").symlink_to("set.zarr")  # which is followed to a complete set
    np.testing.assert_array_equal(dmkl.open(here / "link.zarr"), [K])
    exchange(here / "set.zarr" / name, put)
    with pytest.raises(StoreError, match=rf"{name} is {kind}, and only regular files") as caught:
        dmkl.MKFDA().fit(dmkl.open(here / "set.zarr"))
    assert SECRET not in str(caught.value)
    if name.endswith("0/0/0"):
        report = check(dmkl.open(here / "set.zarr"))
        assert any("only regular files" in message for message in report.message.values.tolist())


@pytest.mark.parametrize(("put", "kind"), PUT)
def test_of_a_model_only_regular_files_are_read(here, put, kind):
    dmkl.MKFDA().fit(dmkl.create(None, [K]), [0, 1] * 3).save(here / "model")
    chunk = next(file for file in sorted((here / "model").rglob("*")) if file.is_file() and "/c/" in str(file))
    exchange(chunk, put)
    with pytest.raises(StoreError, match=f"is {kind}, and only regular|has missing values") as caught:
        dmkl.load(here / "model")
    assert SECRET not in str(caught.value)


def features_in(path):
    return as_features(path).blocks["K"].read(slice(0, 6))


@pytest.mark.parametrize(("zarr_format", "name"), [(2, "K/.zarray"), (2, "K/0.0"), (3, "K/zarr.json"), (3, "K/c/0/0")])
@pytest.mark.parametrize(
    ("put", "kind", "reader"),
    [(*put.values, kernels_in) for put in PUT] + [(to_a_file, "a symbolic link", r) for r in (features_in, read_file)],
)
def test_of_a_zarr_folder_only_regular_files_are_read(here, put, kind, name, zarr_format, reader):
    group = zarr.open_group(here / "k.zarr", mode="w", zarr_format=zarr_format)
    group.create_array("K", data=K, chunks=K.shape)
    exchange(here / "k.zarr" / name, put)
    # Without metadata no array is listed there.
    match = "." if name in ("K/.zarray", "K/zarr.json") else f"is {kind}, and only regular files"
    with pytest.raises(InputError, match=match) as caught:
        reader(here / "k.zarr")
    assert SECRET not in str(caught.value)


def test_an_array_of_a_zarr_folder_is_no_link(here):
    zarr.open_group(here / "other.zarr", mode="w").create_array("K", data=K)
    zarr.open_group(here / "k.zarr", mode="w")
    (here / "k.zarr" / "K").symlink_to(here / "other.zarr" / "K")
    with pytest.raises(InputError, match="K is a symbolic link"):
        open_files(here / "k.zarr")


@pytest.mark.parametrize("compressed", [True, False])
def test_a_chunk_larger_than_any_of_its_array_is_refused(here, compressed):
    group = zarr.open_group(here / "k.zarr", mode="w")
    group.create_array("K", data=K, chunks=K.shape, compressors="auto" if compressed else None)
    with open(here / "k.zarr" / "K" / "c" / "0" / "0", "r+b") as file:
        file.truncate(2**40)  # takes no space on the disk
    with pytest.raises(InputError, match=r"its chunk \(0, 0\) has \d+ bytes, expected at most"):
        kernels_in(here / "k.zarr")


def test_a_file_of_a_kernel_set_larger_than_the_memory_is_refused(here):
    dmkl.create(here / "set.zarr", [K])
    with open(here / "set.zarr" / "kernel" / "c" / "0", "r+b") as file:
        file.truncate(2**42)
    with pytest.raises(StoreError, match="more than a computation may hold in memory"):
        dmkl.open(here / "set.zarr")


# --- MATLAB ----------------------------------------------------------------------------------------------------------
def test_a_file_that_kills_its_reader_is_told(tmp_path):
    texts = np.empty((1, 2), dtype=object)
    texts[0, 0], texts[0, 1] = "ab", "cd"
    scipy.io.savemat(tmp_path / "k.mat", {"c": texts})
    data = bytearray((tmp_path / "k.mat").read_bytes())
    data[144] = 14  # the class of the variable: for some unknown classes SciPy writes to invalid memory
    (tmp_path / "k.mat").write_bytes(data)
    with pytest.raises(InputError, match=r"k\.mat is damaged, or made to do harm: .* died \(SIGSEGV\)"):
        read_file(tmp_path / "k.mat")
    scipy.io.savemat(tmp_path / "good.mat", {"K": K})
    assert open_files(tmp_path / "good.mat")[0].n_kernels == 1  # another process replaces it


# --- code ------------------------------------------------------------------------------------------------------------
class Harm:
    """An object that writes a file when it is unpickled."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return Path.touch, (self.trace,)


@pytest.fixture
def trace(tmp_path):
    trace = tmp_path / "trace"
    yield trace
    assert not trace.exists()


@pytest.mark.parametrize("reader", [open_files, as_features, read_file])
def test_pickled_objects_are_never_unpickled(tmp_path, trace, reader):
    harm = np.array([[Harm(trace)]], dtype=object)
    np.save(tmp_path / "k.npy", harm, allow_pickle=True)
    np.savez(tmp_path / "k.npz", K=harm)
    group = zarr.open_group(tmp_path / "k.zarr", mode="w", zarr_format=2)
    group.create_array("K", data=np.eye(2), chunks=(2, 2), compressors=None)
    metadata = tmp_path / "k.zarr" / "K" / ".zarray"
    text = metadata.read_text().replace('"<f8"', '"|O"').replace('"filters": null', '"filters": [{"id": "pickle"}]')
    metadata.write_text(text)
    (tmp_path / "k.zarr" / "K" / "0.0").write_bytes(pickle.dumps(harm))
    for name in ("k.npy", "k.npz", "k.zarr"):
        with pytest.raises(InputError, match=r"objects|Python|cannot be read|damaged|no features|arrays"):
            reader(tmp_path / name)


def test_a_codec_that_unpickles_is_refused(tmp_path, trace):
    dmkl.create(tmp_path / "set.zarr", [K], tile=6)
    for file in (tmp_path / "set.zarr").rglob("zarr.json"):
        file.write_text(file.read_text().replace('"crc32c"', '"numcodecs.pickle"'))
    (tmp_path / "set.zarr" / "kernel" / "c" / "0").write_bytes(pickle.dumps(Harm(trace)))
    with pytest.raises(StoreError):
        dmkl.open(tmp_path / "set.zarr")


UNPICKLES = r"allow_pickle=True|pickle\.loads?\b|import pickle|joblib\.load|torch\.load|\beval\(|\bexec\(|read_pickle"


def test_no_module_unpickles_or_evaluates():
    root = Path(dmkl.__file__).parent
    files = list(root.rglob("*.py"))
    assert files
    assert not [path for path in files if re.search(UNPICKLES, path.read_text(encoding="utf-8"))]
