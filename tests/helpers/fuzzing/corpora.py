"""Tiny valid files of every readable format, with functions that read each one completely."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import h5py
import numpy as np
import pandas as pd
import scipy.io
import scipy.sparse
import xarray as xr
from sklearn.datasets import dump_svmlight_file
from zarr.storage import MemoryStore

import dmkl
from dmkl.cli.parsing import read_constraints, read_prices
from dmkl.cli.samples import read_groups
from dmkl.features.specs import plan
from dmkl.inputs import as_features, open_files, read_covariates, read_file
from dmkl.inputs.labels import Labels
from dmkl.store.features import read_tables
from dmkl.store.ingest import ingest
from helpers.annotated import cells, write
from helpers.containers import write_10x, write_zarr
from helpers.forms import FORMS, WORDS, grm_list, grm_prefix, table_for
from helpers.fuzzing.mutations import (
    PACKERS,
    mutated_bytes,
    mutated_json,
    mutated_npy,
    mutated_npz,
    mutated_numbers,
    mutated_packed,
)
from helpers.matlab import write_v73

Files = dict[str, bytes]
"""The contents of files by their paths in one folder."""
Mutation = Callable[[Random, bytes], bytes]

M = 6
_X = np.random.default_rng(0).normal(size=(M, 3)).round(3)
_K = np.stack([_X @ _X.T + np.eye(M), _X[:, :1] @ _X[:, :1].T + np.eye(M)])
_NAMES = [f"s{i}" for i in range(M)]
_Y = np.array(["a", "b"])[np.arange(M) % 2]
_CODES = np.arange(M) % 2
_FRAME = pd.DataFrame(_X, index=_NAMES, columns=["u", "v", "w"])
_SPARSE = scipy.sparse.csr_matrix(np.where(np.abs(_K[0]) > 0.3, _K[0], 0))


@dataclass(frozen=True)
class Format:
    """Files of one format."""

    make: Callable[[], list[Files]]  # a few valid files, the same at each call
    read: Callable[[Path], object]
    """Reads the files completely from their folder, as commands do."""
    structured: tuple[Mutation, ...] = ()  # format-specific mutations
    suffix: str | tuple[str, ...] = ""  # file extensions for these mutations; all by default

    def mutated(self, random: Random, valid: list[Files]) -> Files:
        """Return valid files with one of them mutated or removed."""
        files = dict(random.choice(valid))
        name = random.choice(list(files))
        if len(files) > 2 and random.random() < 0.5:  # prefer metadata to the many chunks
            name = random.choice([other for other in files if other.endswith((".json", ".zarray"))] or [name])
        if len(files) > 1 and random.random() < 0.03:
            del files[name]
        elif name.endswith(tuple(PACKERS)) and random.random() < 0.6:
            files[name] = mutated_packed(random, files[name])
        elif self.structured and name.endswith(self.suffix) and random.random() < 0.6:
            files[name] = random.choice(self.structured)(random, files[name])
        else:
            other = random.choice(list(random.choice(valid).values()))
            files[name] = mutated_bytes(random, files[name], other)
        return files


# --- readers ---------------------------------------------------------------------------------------------------------
def _only(folder: Path) -> Path:
    """The file that a command is given, beside which others may have the names of its rows."""
    return min(folder.iterdir(), key=lambda path: (path.name.endswith((".id", ".N.bin")), path))


def _kernels(folder: Path) -> object:
    source, labels = open_files(_only(folder))
    return ingest(MemoryStore(), source, labels, tile=4)


def _splits(folder: Path) -> object:
    source, labels = open_files(folder)  # reads splits from the folder of the kernels
    return ingest(MemoryStore(), source, labels)


def _features(folder: Path) -> object:
    tables = as_features(_only(folder))
    n_rows = next(iter(tables.blocks.values())).shape[0]
    tables.labels.checked(n_rows, n_rows, rectangular=False)
    return [block.read(slice(0, n_rows)) for block in tables.blocks.values()]


def _labels(folder: Path) -> object:
    values = read_file(_only(folder)).values
    return Labels(labels=values).checked(len(values), len(values), rectangular=False) if values.ndim else values


def _groups(folder: Path) -> object:
    return read_groups(_only(folder), np.array(WORDS, dtype=object), np.arange(len(WORDS)))


def _specs(folder: Path) -> object:
    return plan(folder / "specs.toml", as_features({"x": _FRAME}).blocks)


def _columns(folder: Path) -> object:
    return plan({"function": "linear", "columns": str(_only(folder))}, as_features({"x": _FRAME}).blocks)


def _annotated(folder: Path) -> None:
    _kernels(folder)
    _features(folder)
    for file in folder.iterdir():
        read_file(folder / f"{file.name}:cell_type")


def _store(folder: Path) -> object:
    K = dmkl.open(folder / "set.zarr")
    reader = K.view.source
    every = np.arange(len(K))
    values = [reader.diagonal(every), reader.row_sum(every), K.provenance, K.samples[:3], K.labels, K.splits]
    tiles = [tile.sum() for _, tile in reader.stream([(j, a, b) for j in every for a, b in reader.tiling.pairs()])]
    return [*values, *tiles, *(table.read(slice(0, M)) for table in read_tables(str(folder / "set.zarr")).values())]


# --- valid files -----------------------------------------------------------------------------------------------------
def _written(name: str, write: Callable[..., object], *contents: Any) -> list[Files]:
    """The files that `write` creates for each content, at the path of a file or folder."""
    made = []
    for content in contents:
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder) / name, content)
            files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
            made.append({str(path.relative_to(folder)): path.read_bytes() for path in files})
    return made


def _texts(texts: dict[str, str]) -> list[Files]:
    return [{name: text.encode()} for name, text in texts.items()]


def _write_npz(path: Path, arrays: dict[str, Any]) -> None:
    np.savez_compressed(path, **arrays) if "y" in arrays else np.savez(path, **arrays)


def _npz() -> list[Files]:
    full = {"rbf": _K[0], "chi2": _K[1], "labels": _Y, "samples": np.array(_NAMES)}
    return _written("K.npz", _write_npz, full, {"K": _K, "y": _CODES})


def _mat5() -> list[Files]:
    kernels = np.empty((1, 2), dtype=object)
    kernels[0, 0], kernels[0, 1] = _K
    parts: list[dict[str, object]] = [
        {"K": _K.transpose(1, 2, 0), "y": _CODES, "samples": np.array(_NAMES, dtype=object)},
        {"K1": _K[0], "K2": _K[1].astype("f4"), "s": {"a": 1, "b": "text"}, "name": "text"},
        {"cells": kernels, "labels": np.array(_Y, dtype=object)},
    ]
    packed = _written("K.mat", lambda path, part: scipy.io.savemat(path, part, do_compression=True), *parts)
    return packed + _written("K.mat", scipy.io.savemat, *parts)


def _mat73() -> list[Files]:
    parts = {"K0": _K[0], "K1": _K[1], "labels": np.array(["abcdef"]), "samples": _NAMES, "sparse": _SPARSE}
    return _written("K.mat", lambda path, part: write_v73(path, **part), parts)


def _write_hdf5(path: Path, nodes: dict[str, Any]) -> None:
    with h5py.File(path, "w") as file:
        for name, values in nodes.items():
            packed = {"chunks": (1, 3, 3), "compression": "gzip", "shuffle": True} if np.ndim(values) == 3 else {}
            file.create_dataset(name, data=values, **packed)


def _hdf5() -> list[Files]:
    full = {"K": _K, "labels": _Y.tolist(), "more/sample": np.array(_NAMES, dtype="S2")}
    return _written("K.h5", _write_hdf5, full, {"a": _K[0], "b": _K[1].astype("f4"), "y": _CODES})


def _feature_arrays() -> list[Files]:
    arrays = {"u": _X, "v": _X[:, :2]}
    return [
        *_written("X.npz", _write_npz, {**arrays, "labels": _Y}),
        *_written("X.npy", np.save, _X),
        *_written("X.mat", scipy.io.savemat, arrays),
        *_written("X.h5", _write_hdf5, arrays),
    ]


def _zarr() -> list[Files]:
    arrays = {"K": _K, "labels": _CODES, "more/sample": np.array(_NAMES)}
    return _written("K.zarr", lambda path, form: write_zarr(path, form, **arrays), 2, 3)


def _of_forms(use: str) -> list[Files]:
    """A file of each form for this use; containers have formats of their own, and paths in a file lead elsewhere."""
    forms = [form for form in FORMS.values() if form.titles != "named" and form.write not in (grm_list, grm_prefix)]
    return _written("", lambda folder, form: form.write(folder, table_for(form, use), use), *forms)


def _nameless() -> list[Files]:
    frame = pd.DataFrame(_K[0])
    texts = {"K.csv": frame.to_csv(index=False, header=False), "K.txt": frame.to_string(index=False, header=False)}
    return _texts(texts | {"quoted.csv": frame.to_csv(sep=";", decimal=",", quoting=1)})


def _values() -> list[Files]:
    kinds = np.array(["a", "b"])[np.arange(len(WORDS)) % 2]
    texts = {
        "y.txt": "\n".join(kinds),
        "labels.csv": pd.DataFrame(np.eye(len(WORDS), 3, dtype=int), columns=list("abc")).to_csv(),
        "z.txt": "0 1 1.5 1e3 2 7 8 9 10 11 12 13",
        "y.pheno": "FID IID ill old\n"
        + "".join(f"f {name} {i % 2} {(-9, 1)[i % 2]}\n" for i, name in enumerate(WORDS)),
    }
    return _texts(texts) + _written("y.npy", np.save, kinds)


def _split_files() -> list[Files]:
    parts = np.array(["train", "train", "test", "validation", "none", "train"])
    table = pd.DataFrame({"sample": _NAMES, "first": parts}).to_csv(index=False)
    kernel = _written("k.npy", np.save, _K[0])[0]
    return [kernel | split for split in _texts({"splits.csv": table, "splits.txt": "0 0 0 1 2 -1\n2 1 0 0 0 0\n"})]


_SPECS = """[[kernel]]
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
_SETS = json.dumps({"a": ["u", "v"], "b": [0, 2]})
_CONSTRAINTS = """[[constraint]]
weights = { k0 = 1.0, k1 = -2.5 }
least = 0.1
[[constraint]]
weights = { k1 = 1.0 }
most = 3.0
"""


def _column_files() -> list[Files]:
    tables = {"sets.toml": 'a = ["u", "v"]\nb = [0, 2]\n', "sets.gmt": "a\tfirst\tu\tv\nb\tsecond\tv\tw\n"}
    return _texts({"sets.json": _SETS, **tables})


def _sparse_files() -> list[Files]:
    return [
        *_written("K.npz", scipy.sparse.save_npz, _SPARSE, _SPARSE.tocsc()),
        *_written("K.mtx", scipy.io.mmwrite, _SPARSE, _K[0]),
    ]


def _cells() -> list[Files]:
    def write(path: Path, counts: Any) -> None:
        write_10x(path, counts, _NAMES, list("uvw"))

    counts = np.abs(_X.T * 3)
    return _written("x", write, counts) + _written("x.h5", write, counts)


def _packed() -> list[Files]:
    files = [*_of_forms("kernels")[:1], *_written("K.npy", np.save, _K), *_sparse_files()[-2:-1], *_hdf5()[:1]]
    pairs = [pair for file in files for pair in file.items()]
    return [{name + end: pack(data)} for name, data in pairs for end, (_, pack, _) in PACKERS.items()]


def _libsvm() -> list[Files]:
    numbered = np.column_stack([np.arange(1, M + 1), _K[0]])
    return [
        *_written("x.svm", lambda path, X: dump_svmlight_file(X, _CODES, str(path), zero_based=False), _X),
        *_written("k.txt", lambda path, K: dump_svmlight_file(K, _CODES, str(path), zero_based=True), numbered),
    ]


def _write_dataset(path: Path, X: Any) -> None:
    coordinates = {"sample": _NAMES, "gene": list("uvw")}
    data = xr.Dataset({"X": (("sample", "gene"), X), "y": ("sample", _CODES.astype("i4"))}, coordinates)
    if path.suffix == ".nc":
        data.to_netcdf(path, engine="scipy")
        return
    data.to_zarr(path.with_suffix(""), consolidated=False)
    shutil.make_archive(str(path.with_suffix("")), "zip", path.with_suffix(""))
    shutil.rmtree(path.with_suffix(""))


def _typed() -> list[Files]:
    lines = "".join(f"{name} {name} 0 {1 + i % 2} {i}.5\n" for i, name in enumerate(_NAMES))
    rows = "".join(f"{name}\t{1 + i % 2}\t{i}.5\n" for i, name in enumerate(_NAMES))
    types = "sample-id\tsex\tbmi\n#q2:types\tcategorical\tnumeric\n"
    return _texts({"o.sample": f"ID_1 ID_2 missing sex bmi\n0 0 0 D P\n{lines}", "q.tsv": types + rows})


def _relationships() -> list[Files]:
    names = "".join(f"f{i // 2} {name}\n" for i, name in enumerate(_NAMES)).encode()
    text = "".join("\t".join(map(str, row[: i + 1])) + "\n" for i, row in enumerate(_K[0])).encode()
    king = [f"f\t{_NAMES[i]}\tf\t{_NAMES[k]}\t9\t{_K[0, i, k]}\n" for i in range(M) for k in range(i + 1)]
    return [
        {"a.rel.bin": _K[0].astype("<f8").tobytes(), "a.rel.id": names},
        {"a.rel": text, "a.rel.id": names},
        {"x.kin0": "".join(["FID1\tID1\tFID2\tID2\tN_SNP\tKinship\n", *king]).encode()},
    ]


def _sets() -> list[Files]:
    more = dict(names=["k0", "k1"], samples=_NAMES, labels=_Y, splits=np.arange(M)[None] % 3)
    linear = {"function": "linear"}
    return [
        *_written("set.zarr", lambda path, K: dmkl.create(path, K, tile=4, **more), _K),
        *_written("set.zarr", lambda path, K: dmkl.create(path, K, symmetric=False, tile=4), _K[:, :3]),
        *_written("set.zarr", lambda path, X: dmkl.build(path, {"x": X}, linear, tile=4), _FRAME),
    ]


def _annotated_files() -> list[Files]:
    return [
        file for name in ("x.h5ad", "x.zarr") for file in _written(name, lambda path, x: write(x, path), cells(_NAMES))
    ]


_JSON = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")
FORMATS = {
    "npy": Format(lambda: _written("K.npy", np.save, _K, _K[0], np.asfortranarray(_K[1])), _kernels, (mutated_npy,)),
    "npz": Format(_npz, _kernels, (mutated_npz,)),
    "MATLAB 5": Format(_mat5, _kernels),
    "MATLAB 7.3": Format(_mat73, _kernels),
    "HDF5": Format(_hdf5, _kernels),
    "Zarr": Format(_zarr, _kernels, (mutated_json,), _JSON),
    "annotated": Format(_annotated_files, _annotated),
    "kernels": Format(lambda: [*_of_forms("kernels"), *_nameless(), *_relationships()], _kernels, (mutated_numbers,)),
    "tables": Format(
        lambda: [*_of_forms("features"), *_texts({"X.csv": _FRAME.assign(label=_Y).to_csv(index=False)})],
        _features,
        (mutated_numbers,),
    ),
    "features": Format(_feature_arrays, _features),
    "sparse": Format(_sparse_files, _kernels, (mutated_npz,), ".npz"),
    "10x": Format(_cells, _features, (mutated_numbers,), (".tsv", ".mtx")),
    "compressed": Format(_packed, _kernels),
    "NetCDF": Format(lambda: _written("x.nc", _write_dataset, _X), _features),
    "zipped": Format(lambda: _written("x.zarr.zip", _write_dataset, _X), _features, (mutated_npz,)),
    "LIBSVM": Format(_libsvm, _features, (mutated_numbers,)),
    "covariates": Format(
        lambda: [*_of_forms("covariates"), *_typed()],
        lambda folder: read_covariates(_only(folder)),
        (mutated_numbers,),
    ),
    "labels": Format(lambda: [*_of_forms("labels"), *_values()], _labels, (mutated_numbers,)),
    "groups": Format(lambda: [*_of_forms("groups"), *_values()], _groups, (mutated_numbers,)),
    "splits": Format(_split_files, _splits, (mutated_numbers,), ("splits.csv", "splits.txt")),
    "specifications": Format(
        lambda: [{"specs.toml": _SPECS.encode(), "sets.json": _SETS.encode()}], _specs, (mutated_numbers,)
    ),
    "column sets": Format(_column_files, _columns, (mutated_numbers, mutated_json)),
    "constraints": Format(
        lambda: _texts({"A.toml": _CONSTRAINTS}),
        lambda folder: read_constraints(_only(folder), ["k0", "k1"]),
        (mutated_numbers,),
    ),
    "prices": Format(
        lambda: _texts({"prices.csv": "kernel,price\nk0,0.5\nk1,2\n"}),
        lambda folder: read_prices(str(_only(folder)), ["k0", "k1"]),
        (mutated_numbers,),
    ),
    "kernel sets": Format(_sets, _store, (mutated_json,), ("zarr.json",)),
}
"""Formats by name."""
