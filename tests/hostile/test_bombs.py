"""Small files that declare enormous sizes: refused before memory is allocated or anything is written."""

import gzip
import json
import shutil
import zipfile
import zlib

import dask
import google_crc32c
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from helpers.conformance import unseal
from helpers.containers import write_mat
from helpers.fuzzing.mutations import npy_header
from helpers.reading import imported

import dmkl
from dmkl.clusters.job_options import read_description
from dmkl.errors import DmklError, InputError, MemoryBudgetError
from dmkl.features.specs import plan
from dmkl.files.arrays import json_crc32c
from dmkl.inputs import as_features, open_files, read_file
from dmkl.inputs.formats.tables import parquet_columns
from dmkl.store.zarr_groups import CHECKSUM


@pytest.fixture(autouse=True)
def _budget():
    with dask.config.set({"dmkl.memory": "64MiB"}):
        yield


def header(shape, descr="<f8"):
    return npy_header(str({"descr": descr, "fortran_order": False, "shape": shape}))


def regular(*lengths):
    return {"name": "regular", "configuration": {"chunk_shape": list(lengths)}}


def refused(kind, match, path, tmp_path):
    with pytest.raises(kind, match=match) as caught:
        imported(path, tmp_path / "out" / "set.zarr", tile=None)
    assert str(caught.value).isprintable()
    assert not list(tmp_path.glob("out/*"))


@pytest.mark.parametrize(("shape", "descr"), [((10**6, 10**6), "<f8"), ((10**12,), "|S0"), ((2**40, 2**40), "<f8")])
def test_headers_of_arrays_that_the_file_does_not_hold(tmp_path, shape, descr):
    (tmp_path / "k.npy").write_bytes(header(shape, descr) + b"\0" * 800)
    refused(InputError, "k.npy is damaged: its header states", tmp_path / "k.npy", tmp_path)
    with zipfile.ZipFile(tmp_path / "k.npz", "w") as archive:
        archive.writestr("K.npy", header(shape, descr) + b"\0" * 800)
    refused(InputError, "'K' of .*k.npz is damaged: its header states", tmp_path / "k.npz", tmp_path)


@pytest.mark.parametrize(("name", "write"), [("k.npz", np.savez_compressed), ("k.mat", write_mat)])
def test_arrays_that_unpack_beyond_memory(tmp_path, name, write):
    write(tmp_path / name, K=np.zeros((3000, 3000)))
    assert (tmp_path / name).stat().st_size < 100_000
    refused(MemoryBudgetError, f"'K' of .*{name} takes 7.2e.07 bytes", tmp_path / name, tmp_path)


def test_lines_that_cells_of_do_not_fit(tmp_path):
    (tmp_path / "k.csv").write_bytes(b"1," * 3_000_000)
    refused(MemoryBudgetError, "a line of .*k.csv takes", tmp_path / "k.csv", tmp_path)
    for read in (as_features, read_file):
        with pytest.raises(MemoryBudgetError, match=r"a line of .*k\.csv takes"):
            read(tmp_path / "k.csv")


def chunked(path, chunk):
    """A matrix of one compressed chunk with the given content."""
    with h5py.File(path, "w") as file:
        node = file.create_dataset("K", (5, 5), "f8", chunks=(5, 5), compression="gzip")
        node.id.write_direct_chunk((0, 0), chunk)
    return path


def test_hdf5_shapes_and_chunks_of_nothing(tmp_path):
    with h5py.File(tmp_path / "k.h5", "w") as file:
        file.create_dataset("K", (10**6, 10**6), "f8", chunks=(100, 100))
    refused(DmklError, "the names in a set of 1 kernels of 1,000,000 × 1,000,000 take", tmp_path / "k.h5", tmp_path)
    with h5py.File(tmp_path / "c.h5", "w") as file:
        node = file.create_dataset("K", (5, 5), "f8", chunks=(4000, 4000), maxshape=(None, None), compression="gzip")
        node[...] = np.eye(5)
    refused(MemoryBudgetError, "a part of variable 'K' of .*c.h5 takes 1.28e.08 bytes", tmp_path / "c.h5", tmp_path)
    with h5py.File(tmp_path / "n.h5", "w") as file:
        file.create_dataset("K", (5, 5), "f8")
    refused(InputError, "but none of its values was ever written", tmp_path / "n.h5", tmp_path)


def test_hdf5_chunks_that_inflate_beyond_their_size(tmp_path):
    path = chunked(tmp_path / "k.h5", zlib.compress(bytes(10**8)))
    refused(InputError, r"its chunk at \(0, 0\) inflates to more than the 200 bytes", path, tmp_path)


def test_hdf5_chunks_larger_than_their_file(tmp_path):
    path = chunked(tmp_path / "k.h5", bytes(12345))
    sizes = (12345).to_bytes(4, "little"), (10**9).to_bytes(4, "little")
    assert path.read_bytes().count(sizes[0]) == 1  # in the index of the chunks
    path.write_bytes(path.read_bytes().replace(*sizes))
    refused(InputError, r"its chunk at \(0, 0\) has 1000000000 bytes, the whole file", path, tmp_path)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"shape": [10**12, 3, 3], "chunk_grid": regular(10**6, 3, 3)}, "the list of 1,000,000,000,000 kernels takes"),
        ({"shape": [10**12, 10**12]}, "the names in a set of 1 kernels"),
        ({"chunk_grid": regular(10**6, 10**6)}, "takes 8e.12 bytes"),
        ({"shape": [50_000, 50_000], "chunk_grid": regular(1, 1)}, r"lies in \S+ chunks of shape \(1, 1\)"),
    ],
)
def test_zarr_metadata_of_anything(tmp_path, change, match):
    zarr.create_array(tmp_path / "k.zarr", data=np.eye(6), chunks=(3, 3))
    metadata = tmp_path / "k.zarr" / "zarr.json"
    metadata.write_text(json.dumps(json.loads(metadata.read_text()) | change))
    refused(DmklError, match, tmp_path / "k.zarr", tmp_path)


@pytest.mark.parametrize("codec", [zarr.codecs.BloscCodec(), zarr.codecs.ZstdCodec()])
def test_zarr_chunks_that_claim_to_unpack_to_anything(tmp_path, codec):
    zarr.create_array(tmp_path / "k.zarr", data=np.eye(6), chunks=(6, 6), compressors=codec)
    chunk = tmp_path / "k.zarr" / "c" / "0" / "0"
    data = bytearray(chunk.read_bytes())
    if isinstance(codec, zarr.codecs.BloscCodec):
        data[4:8] = (2**31 - 17).to_bytes(4, "little")
    else:
        data = bytearray(b"\x28\xb5\x2f\xfd\xc0\x58" + (2**40).to_bytes(8, "little"))
    chunk.write_bytes(data)
    refused(InputError, r"its chunk \(0, 0\) claims to unpack to \d{10,} bytes", tmp_path / "k.zarr", tmp_path)


@pytest.mark.parametrize(
    ("name", "change", "match"),
    [
        ("sample", {"shape": [10**12]}, r"'sample' has the shape \(1000000000000,\), expected \(6,\)"),
        ("sample", {"chunk_grid": regular(10**12)}, "a chunk of 'sample' takes 6.4e.13 bytes"),
        ("gram_upper", {"shape": [2, 10**12, 10**12]}, "expected"),
        ("gram_upper", {"chunk_grid": regular(1, 1, 1)}, r"chunks \(1, 1, 1\), expected \(1, 4, 4\)"),
        ("kernel", {"data_type": "float64", "fill_value": 0.0}, "'kernel' holds float64, expected text"),
    ],
)
def test_sets_whose_sealed_metadata_tell_of_anything(tmp_path, name, change, match):
    path = tmp_path / "set.zarr"
    dmkl.create(path, np.stack([np.eye(6), np.ones((6, 6))]), tile=4)
    file, root = path / name / "zarr.json", json.loads((path / "zarr.json").read_text())
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    root["consolidated_metadata"]["metadata"][name] |= change
    del root["attributes"][CHECKSUM]
    root["attributes"][CHECKSUM] = json_crc32c(root)
    (path / "zarr.json").write_text(json.dumps(root))
    with pytest.raises(DmklError, match=match):
        dmkl.open(path)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("[[kernel]]\nfunction = 'random_rbf'\ncopies = 900_000", "the list of 900,000 kernels takes"),
        (f"kernel = {'[' * 20_000}{']' * 20_000}", "nested deeper than 32 levels"),
        (f"{'.'.join('a' * 20_000)} = 1", "nested deeper than 32 levels"),
        ("x = [" + "1," * 2_000_000 + "]", "the file of specifications .* takes"),
    ],
)
def test_specifications_of_anything(tmp_path, text, match):
    tables = as_features({"x": np.ones((3, 2))}).blocks
    (tmp_path / "specs.toml").write_text(text)
    with pytest.raises(DmklError, match=match):
        plan(tmp_path / "specs.toml", tables)
    (tmp_path / "sets.json").write_text("[" * 100_000 + "]" * 100_000)
    with pytest.raises(InputError, match="nested deeper than 32 levels"):
        plan({"function": "linear", "columns": str(tmp_path / "sets.json")}, tables)


@pytest.mark.timeout(30)
def test_descriptions_of_clusters_with_aliases_of_aliases(tmp_path):
    levels = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)]
    (tmp_path / "c.yaml").write_text("\n".join(["class: slurm", "a0: &a0 [x]", *levels]))
    with pytest.raises(InputError, match=r"c\.yaml is not valid YAML: it has aliases \(\*name\), which are not read"):
        read_description(tmp_path / "c.yaml")


def parquet(path, columns, n_groups=8):
    """A table of equal groups of rows."""
    table = pa.table(columns)
    with pq.ParquetWriter(path, table.schema, store_schema=False) as writer:
        for _ in range(n_groups):
            writer.write_table(table)
    assert path.stat().st_size < 100_000


def test_parquet_of_millions_of_equal_values(tmp_path):
    parquet(tmp_path / "k.parquet", {"a": np.zeros(10**6), "b": np.zeros(10**6)})
    for read in (as_features, read_file, open_files):
        with pytest.raises(MemoryBudgetError, match=r"the table in .*k\.parquet takes 2\.56e\+08 bytes"):
            read(tmp_path / "k.parquet")


def test_parquet_of_a_long_text_that_is_repeated(tmp_path):
    text, pool = "x" * 2**14, pa.default_memory_pool()
    parquet(tmp_path / "k.parquet", {"name": pa.DictionaryArray.from_arrays(np.zeros(10**4, "i4"), [text])}, 1)
    watched = pa.proxy_memory_pool(pool)
    pa.set_memory_pool(watched)
    try:
        # The table may be in the memory of the pool, which must outlive it.
        last = parquet_columns(tmp_path / "k.parquet").frame["name"].iloc[-1]
    finally:
        pa.set_memory_pool(pool)
    assert 0 < watched.max_memory() < 2**24
    assert last == text


@pytest.mark.parametrize(("form", "match"), [("utf-8", "positions of the rows"), ("utf-16", "k.csv.gz in UTF-16")])
def test_compressed_tables_that_unpack_to_millions_of_rows(tmp_path, form, match):
    text = "1\n2\n" * 2**18
    (tmp_path / "k.csv.gz").write_bytes(gzip.compress(text.encode(form)))
    for read in (as_features, read_file):
        with dask.config.set({"dmkl.memory": "3MiB"}), pytest.raises(MemoryBudgetError, match=match):
            read(tmp_path / "k.csv.gz")


def test_models_whose_arrays_take_more_than_memory(tmp_path):
    path = tmp_path / "model"
    dmkl.MKFDA().fit(dmkl.create(None, [np.eye(6) + 1]), [0, 1] * 3).save(path)
    unseal(path)
    codecs = [zarr.codecs.ZstdCodec(), zarr.codecs.Crc32cCodec()]
    group = zarr.open_group(path / "history", mode="a")
    group.create_array("zeros", data=np.zeros(10**7), compressors=codecs, dimension_names=["zero"])
    assert sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) < 50_000
    with pytest.raises(MemoryBudgetError, match=r"model/history takes 8e\+07 bytes of memory"):
        dmkl.load(path)
    shutil.rmtree(path / "history" / "zeros")
    dmkl.load(path)
    chunk = path / "weights_" / "c" / "0"
    data = b"\x28\xb5\x2f\xfd\xc0\x58" + (2**40).to_bytes(8, "little")
    chunk.write_bytes(data + google_crc32c.value(data).to_bytes(4, "little"))
    with pytest.raises(DmklError, match=r"its chunk \(0,\) claims to unpack to \d{10,} bytes"):
        dmkl.load(path)


def test_a_set_larger_than_the_disk(tmp_path):
    specs = [{"function": "random_rbf", "copies": 20_000}, {"function": "linear"}]
    with pytest.raises(InputError, match=r"a set of 20,001 kernels of 60,000 × 60,000 takes .* the whole disk"):
        dmkl.build(tmp_path / "out.zarr", {"x": np.ones((60_000, 1), dtype="f4")}, specs)
    assert not list(tmp_path.iterdir())
