"""Tiny valid files of every format that is read, and how each is read to its end."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import h5py
import numpy as np
import pandas as pd
import scipy.io
import scipy.sparse
import zarr
from zarr.storage import MemoryStore

import dmkl
from dmkl.cli.parsing import read_constraints, read_prices
from dmkl.cli.samples import read_groups
from dmkl.features.specs import plan
from dmkl.inputs import as_features, open_files, read_file
from dmkl.inputs.labels import Labels
from dmkl.store.features import read_tables
from dmkl.store.ingest import ingest
from helpers.annotated import cells, write
from helpers.fuzzing.containers import mutated_hdf5, mutated_mat5
from helpers.fuzzing.mutations import mutated_bytes, mutated_json, mutated_npy, mutated_npz, mutated_numbers

__all__ = ["FORMATS", "Files", "Format"]

Files = dict[str, bytes]
"""The content of files by their paths in a folder of their own."""
Mutation = Callable[[Random, bytes], bytes]

M = 6
_X = np.random.default_rng(0).normal(size=(M, 3)).round(3)
_K = np.stack([_X @ _X.T + np.eye(M), _X[:, :1] @ _X[:, :1].T + np.eye(M)])
_NAMES = [f"s{i}" for i in range(M)]
_Y = np.array(["a", "b"])[np.arange(M) % 2]


@dataclass(frozen=True)
class Format:
    """Files of one format."""

    make: Callable[[], list[Files]]  # a few valid ones, the same at each call
    read: Callable[[Path], object]
    """Reads them from their folder, as commands do, to the last value."""
    structured: tuple[Mutation, ...] = ()  # mutations that know the format
    suffix: str | tuple[str, ...] = ""  # how the names of the files end that these are for; all by default

    def mutated(self, random: Random, valid: list[Files]) -> Files:
        """Valid files of which one is mutated, or missing."""
        files = dict(random.choice(valid))
        name = random.choice(list(files))
        if len(files) > 2 and random.random() < 0.5:  # the header of a folder more often than its many chunks
            name = random.choice([other for other in files if other.endswith((".json", ".zarray"))] or [name])
        if len(files) > 1 and random.random() < 0.03:
            del files[name]
            return files
        if self.structured and name.endswith(self.suffix) and random.random() < 0.6:
            files[name] = random.choice(self.structured)(random, files[name])
        else:
            other = random.choice(list(random.choice(valid).values()))
            files[name] = mutated_bytes(random, files[name], other)
        return files


# --- readers ---------------------------------------------------------------------------------------------------------


def _only(folder: Path) -> Path:
    return next(iter(sorted(folder.iterdir())))


def _kernels(folder: Path) -> object:
    source, labels = open_files(_only(folder))
    return ingest(MemoryStore(), source, labels, tile=4)


def _features(folder: Path) -> object:
    found = as_features(_only(folder))
    n_rows = next(iter(found.blocks.values())).shape[0]
    found.labels.checked(n_rows, n_rows, rectangular=False)
    return [block.read(slice(0, n_rows)) for block in found.blocks.values()]


def _labels(folder: Path) -> object:
    values = read_file(_only(folder)).values
    return Labels(labels=values).checked(len(values), len(values), rectangular=False) if values.ndim else values


def _splits(folder: Path) -> object:
    source, labels = open_files(folder)  # the splits are found beside the kernels
    return ingest(MemoryStore(), source, labels)


def _groups(folder: Path) -> object:
    return read_groups(_only(folder), np.array(_NAMES, dtype=object), np.arange(M))


def _specs(folder: Path) -> object:
    return plan(folder / "specs.toml", as_features({"x": pd.DataFrame(_X, columns=["u", "v", "w"])}).blocks)


def _columns(folder: Path) -> object:
    specs = {"function": "linear", "columns": str(_only(folder))}
    return plan(specs, as_features({"x": pd.DataFrame(_X, columns=["u", "v", "w"])}).blocks)


def _priors(folder: Path) -> object:
    return read_constraints(_only(folder), ["k0", "k1"])


def _prices(folder: Path) -> object:
    return read_prices(str(_only(folder)), ["k0", "k1"])


def _store(folder: Path) -> object:
    K = dmkl.open(folder / "set.zarr")
    reader = K.view.source
    every = np.arange(len(K))
    found = [reader.diagonal(every), reader.row_sum(every), K.provenance, K.samples[:3], K.labels, K.splits]
    tiles = [tile.sum() for _, tile in reader.stream([(j, a, b) for j in every for a, b in reader.tiling.pairs()])]
    return [*found, *tiles, *(table.read(slice(0, M)) for table in read_tables(str(folder / "set.zarr")).values())]


# --- valid files -----------------------------------------------------------------------------------------------------


def _written(write: Callable[[Path], object], name: str) -> Files:
    """What a function writes at a path, a file or a folder."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / name)
        found = sorted(path for path in Path(folder).rglob("*") if path.is_file())
        return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def _npy() -> list[Files]:
    arrays = (_K, _K[0], np.asfortranarray(_K[1].astype("f4")), _K.transpose(1, 2, 0))
    return [_written(lambda path, array=array: np.save(path, array), "K.npy") for array in arrays]


def _npz() -> list[Files]:
    full = {"rbf": _K[0], "chi2": _K[1], "labels": _Y, "samples": np.array(_NAMES)}
    return [
        _written(lambda path: np.savez(path, **full), "K.npz"),
        _written(lambda path: np.savez_compressed(path, K=_K, y=np.arange(M) % 2), "K.npz"),
    ]


def _mat5() -> list[Files]:
    cells = np.empty((1, 2), dtype=object)
    cells[0, 0], cells[0, 1] = _K
    parts: list[dict[str, object]] = [
        {"K": _K.transpose(1, 2, 0), "y": np.arange(M) % 2, "samples": np.array(_NAMES, dtype=object)},
        {"K1": _K[0], "K2": _K[1].astype("f4"), "s": {"a": 1, "b": "text"}, "name": "text"},
        {"cells": cells, "labels": np.array(_Y, dtype=object)},
    ]
    return [
        _written(lambda path, part=part, squeeze=squeeze: scipy.io.savemat(path, part, do_compression=squeeze), "K.mat")
        for part in parts
        for squeeze in (False, True)
    ]


def _mat73() -> list[Files]:
    def write(path: Path) -> None:
        with h5py.File(path, "w", userblock_size=512) as file:
            for j, kernel in enumerate(_K):
                file.create_dataset(f"K{j}", data=kernel.T).attrs["MATLAB_class"] = np.bytes_(b"double")
            codes = np.frombuffer("abcdef".encode("utf-16-le"), dtype="u2")[:, None]
            node = file.create_dataset("labels", data=codes.reshape(1, 6))
            node.attrs["MATLAB_class"] = np.bytes_(b"char")
            parts = file.create_group("#refs#")
            refs = [parts.create_dataset(name, data=codes[:2]).ref for name in "abcdef"]
            for name in "abcdef":
                parts[name].attrs["MATLAB_class"] = np.bytes_(b"char")
            node = file.create_dataset("samples", data=np.array([refs], dtype=h5py.ref_dtype), dtype=h5py.ref_dtype)
            node.attrs["MATLAB_class"] = np.bytes_(b"cell")
            file.create_group("sparse").attrs["MATLAB_sparse"] = np.uint64(6)

    return [_written(write, "K.mat")]


def _hdf5() -> list[Files]:
    def write(path: Path) -> None:
        with h5py.File(path, "w") as file:
            file.create_dataset("K", data=_K, chunks=(1, 3, 3), compression="gzip", shuffle=True)
            file.create_dataset("labels", data=[*_Y], dtype=h5py.string_dtype())
            file.create_dataset("more/sample", data=np.array(_NAMES, dtype="S2"))

    def plain(path: Path) -> None:
        with h5py.File(path, "w") as file:
            file["a"], file["b"], file["y"] = _K[0], _K[1].astype("f4"), np.arange(M) % 2

    return [_written(write, "K.h5"), _written(plain, "K.h5")]


def _csv() -> list[Files]:
    frame = pd.DataFrame(_K[0], index=_NAMES, columns=_NAMES)
    texts = [
        frame.to_csv(index_label="sample"),
        frame.to_csv(index=False, header=False),
        frame.to_csv(sep=";", decimal=",", quoting=1),
        frame.to_csv(sep="\t", header=False),
    ]
    return [{"K.csv": text.encode()} for text in texts] + [
        {"K.txt": frame.to_string(index=False, header=False).encode()}
    ]


def _tables() -> list[Files]:
    frame = pd.DataFrame(_X, index=_NAMES, columns=["u", "v", "w"])
    labeled = frame.assign(label=_Y)
    texts = (
        frame.to_csv(),
        labeled.to_csv(index_label="sample"),
        frame.to_csv(index=False),
        frame.to_csv(header=False),
    )
    return [{"X.csv": text.encode()} for text in texts] + [{"X.tsv": labeled.to_csv(sep="\t").encode()}]


def _parquet() -> list[Files]:
    frame = pd.DataFrame(_X, index=_NAMES, columns=["u", "v", "w"])
    return [
        _written(frame.to_parquet, "X.parquet"),
        _written(frame.reset_index(drop=True).assign(label=_Y).to_parquet, "X.parquet"),
    ]


def _feature_arrays() -> list[Files]:
    arrays = {"u": _X, "v": _X[:, :2].astype("f4"), "labels": _Y}

    def hdf5(path: Path) -> None:
        with h5py.File(path, "w") as file:
            file["u"], file["v"] = _X, _X[:, :2]

    return [
        _written(lambda path: np.savez(path, **arrays), "X.npz"),
        _written(lambda path: np.save(path, _X), "X.npy"),
        _written(lambda path: scipy.io.savemat(path, {"u": _X, "v": _X[:, :2]}), "X.mat"),
        _written(hdf5, "X.h5"),
    ]


def _zarr() -> list[Files]:
    def write(path: Path, form: int) -> None:
        group = zarr.open_group(path, mode="w", zarr_format=form)
        group.create_array("K", data=_K, chunks=(1, 3, 3))
        group.create_array("labels", data=np.arange(M) % 2)
        if form == 3:
            group.create_array("more/sample", data=np.array(_NAMES, dtype="U2"))

    return [_written(lambda path, form=form: write(path, form), "K.zarr") for form in (2, 3)]


def _values() -> list[Files]:
    texts = {
        "y.txt": "\n".join(_Y),
        "y.csv": pd.DataFrame({"sample": _NAMES, "label": _Y}).to_csv(index=False),
        "labels.csv": pd.DataFrame(np.eye(M, 3, dtype=int), columns=list("abc")).to_csv(),
        "z.txt": "0 1 1.5 1e3 2 7",
    }
    return [{name: text.encode()} for name, text in texts.items()] + [_written(lambda path: np.save(path, _Y), "y.npy")]


def _split_files() -> list[Files]:
    parts = np.array(["train", "train", "test", "validation", "none", "train"])
    table = pd.DataFrame({"sample": _NAMES, "first": parts}).to_csv(index=False)
    texts = {"splits.csv": table.encode(), "splits.txt": b"0 0 0 1 2 -1\n2 1 0 0 0 0\n"}
    kernel = _written(lambda path: np.save(path, _K[0]), "k.npy")
    return [{**kernel, name: text} for name, text in texts.items()]


def _spec_files() -> list[Files]:
    text = """[[kernel]]
function = ["rbf", "laplacian"]
bandwidth = [0.3, 1, 3]
feature = "x"
[[kernel]]
function = "polynomial"
degree = 2
columns = "sets.json"
min_columns = 1
[[kernel]]
function = "pyramid"
levels = [1, 2]
weights = [0.5, 1.0]
[[kernel]]
function = "random_rbf"
copies = 3
seed = 1
name = "noise-{seed}"
"""
    return [{"specs.toml": text.encode(), "sets.json": json.dumps({"a": ["u", "v"], "b": [0, 2]}).encode()}]


def _column_files() -> list[Files]:
    return [
        {"sets.json": json.dumps({"a": ["u", "v"], "b": [0, 2]}).encode()},
        {"sets.toml": b'a = ["u", "v"]\nb = [0, 2]\n'},
        {"sets.gmt": b"a\tfirst\tu\tv\nb\tsecond\tv\tw\n"},
    ]


def _constraint_files() -> list[Files]:
    rows = ("weights = { k0 = 1.0, k1 = -2.5 }\nleast = 0.1\n", "weights = { k1 = 1.0 }\nmost = 3.0\n")
    return [{"A.toml": "".join(f"[[constraint]]\n{row}" for row in rows).encode()}]


def _price_files() -> list[Files]:
    return [{"prices.csv": b"kernel,price\nk0,0.5\nk1,2\n"}]


def _sparse_files() -> list[Files]:
    sparse = scipy.sparse.csr_matrix(np.where(np.abs(_K[0]) > 0.3, _K[0], 0))
    return [
        _written(lambda path: scipy.sparse.save_npz(path, sparse), "K.npz"),
        _written(lambda path: scipy.sparse.save_npz(path, sparse.tocsc(), compressed=False), "K.npz"),
        _written(lambda path: scipy.io.mmwrite(path, sparse), "K.mtx"),
        _written(lambda path: scipy.io.mmwrite(path, _K[0]), "K.mtx"),
    ]


def _relationships() -> list[Files]:
    names = "".join(f"f{i // 2} {name}\n" for i, name in enumerate(_NAMES)).encode()
    lower = _K[0][np.tril_indices(M)]
    text = "".join("\t".join(map(str, row[: i + 1])) + "\n" for i, row in enumerate(_K[0])).encode()
    return [
        {"a.grm.bin": lower.astype("<f4").tobytes(), "a.grm.id": names},
        {"a.rel.bin": _K[0].astype("<f8").tobytes(), "a.rel.id": names},
        {"a.rel": text, "a.rel.id": names},
    ]


def _phenotype_files() -> list[Files]:
    names = [f"f{i // 2} {name}" for i, name in enumerate(_NAMES)]
    one = "".join(f"{name} {1 + i % 2}\n" for i, name in enumerate(names))
    two = "".join(f"{name} {i % 2} {(-9, 1)[i % 2]}\n" for i, name in enumerate(names))
    return [{"y.txt": one.encode()}, {"y.pheno": f"FID IID ill old\n{two}".encode()}]


def _sets() -> list[Files]:
    known = dict(names=["k0", "k1"], samples=_NAMES, labels=_Y, splits=np.arange(M)[None] % 3)

    def built(path: Path) -> None:
        frame = pd.DataFrame(_X, index=_NAMES, columns=["u", "v", "w"])
        dmkl.build(path, {"x": frame}, {"function": "linear"}, tile=4)

    return [
        _written(lambda path: dmkl.create(path, _K, tile=4, **known), "set.zarr"),
        _written(lambda path: dmkl.create(path, _K[:, :3], symmetric=False, tile=4), "set.zarr"),
        _written(built, "set.zarr"),
    ]


def _annotated_files() -> list[Files]:
    data = cells(_NAMES)
    return [_written(lambda path: write(data, path), "x.h5ad"), _written(lambda path: write(data, path), "x.zarr")]


def _annotated(path: Path) -> None:
    _kernels(path)
    _features(path)
    for file in path.iterdir():
        read_file(path / f"{file.name}:cell_type")


FORMATS = {
    "npy": Format(_npy, _kernels, (mutated_npy,)),
    "npz": Format(_npz, _kernels, (mutated_npz,)),
    "MATLAB 5": Format(_mat5, _kernels, (mutated_mat5,)),
    "MATLAB 7.3": Format(_mat73, _kernels, (mutated_hdf5,)),
    "HDF5": Format(_hdf5, _kernels, (mutated_hdf5,)),
    "Zarr": Format(_zarr, _kernels, (mutated_json,), ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")),
    "annotated": Format(_annotated_files, _annotated, (mutated_hdf5,), ".h5ad"),
    "text": Format(_csv, _kernels, (mutated_numbers,)),
    "tables": Format(_tables, _features, (mutated_numbers,)),
    "Parquet": Format(_parquet, _features),
    "features": Format(_feature_arrays, _features),
    "sparse": Format(_sparse_files, _kernels, (mutated_npz,), ".npz"),
    "relationships": Format(_relationships, _kernels, (mutated_numbers,), (".rel", ".id")),
    "phenotypes": Format(_phenotype_files, _labels, (mutated_numbers,)),
    "labels": Format(_values, _labels, (mutated_numbers,)),
    "groups": Format(_values, _groups, (mutated_numbers,)),
    "splits": Format(_split_files, _splits, (mutated_numbers,), ("splits.csv", "splits.txt")),
    "specifications": Format(_spec_files, _specs, (mutated_numbers,)),
    "column sets": Format(_column_files, _columns, (mutated_numbers, mutated_json)),
    "constraints": Format(_constraint_files, _priors, (mutated_numbers,)),
    "prices": Format(_price_files, _prices, (mutated_numbers,)),
    "kernel sets": Format(_sets, _store, (mutated_json,), ("zarr.json",)),
}
"""By name, each with its files."""
