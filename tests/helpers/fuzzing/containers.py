"""Mutations of the structure of HDF5 and MATLAB files."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from random import Random
from typing import Any

import h5py
import numpy as np

from helpers.fuzzing.mutations import EXTREMES, mutated_bytes

__all__ = ["OUTSIDE", "mutated_hdf5", "mutated_mat5"]

OUTSIDE = "../outside"
"""A folder beside that of the mutated file, of which nothing may be read."""


def mutated_hdf5(random: Random, data: bytes) -> bytes:
    """An HDF5 file with other attributes, data sets of absurd shapes, or such that lie in other files."""
    file = io.BytesIO(data)
    try:
        with h5py.File(file, "r+") as opened:
            for _ in range(random.choice((1, 1, 2))):
                random.choice(_ON_HDF5)(random, opened)
    except (ValueError, TypeError, OSError, KeyError, RuntimeError, OverflowError, AttributeError):
        pass  # what the library itself refuses to write
    found = file.getvalue()
    return mutated_bytes(random, found, data) if random.random() < 0.2 else found


def _any_name(random: Random, file: h5py.File) -> str:
    names: list[str] = []
    file.visit(names.append)
    return random.choice(names or ["x"])


def _attribute(random: Random, file: h5py.File) -> None:
    key = random.choice(("MATLAB_class", "MATLAB_empty", "MATLAB_sparse", "MATLAB_int_decode", "x"))
    values: list[Any] = [
        *(0, 1, -1, 2**63 - 1, 1.5, "char", "double", "cell", "struct", "logical", ""),
        *(
            np.bytes_(b"char"),
            np.bytes_(b"cell"),
            np.bytes_(b"\xff\xfe"),
            np.arange(3),
            np.zeros((0,)),
            h5py.Empty("f8"),
        ),
    ]
    file[_any_name(random, file)].attrs[key] = random.choice(values)


def _absurd(random: Random, file: h5py.File) -> None:
    """A data set of which nothing is written, of any shape, type and chunks."""
    shape = random.choice(
        ((10**6, 10**6), (2**40,), (0, 0), (6, 6), (2, 6, 6), (10**9, 6), (6,), (), (1,) * 32, (2**62, 2))
    )
    types = (
        "f8",
        ">f4",
        "i1",
        "u8",
        "f2",
        "c16",
        "S5",
        "V7",
        h5py.string_dtype(),
        h5py.ref_dtype,
        h5py.regionref_dtype,
    )
    more = [
        *types,
        h5py.vlen_dtype("f8"),
        h5py.enum_dtype({"a": 1}),
        np.dtype([("real", "f8"), ("imag", "f8")]),
        "S9999",
    ]
    options: dict[str, Any] = {}
    if random.random() < 0.5 and shape:
        options["chunks"] = tuple(min(length or 1, random.choice((1, 3, 6, 1000, 16_000))) for length in shape)
        options["maxshape"] = tuple(None for _ in shape)
        options["compression"] = random.choice((None, "gzip", "lzf"))
        options["fletcher32"] = random.random() < 0.3
    dtype: Any = random.choice(more)
    if random.random() < 0.2:
        options["fillvalue"] = 0
    _put(random, file, lambda name: file.create_dataset(name, shape, dtype, **options))


def _put(random: Random, file: h5py.File, make: Callable[[str], Any]) -> None:
    name = _any_name(random, file) if random.random() < 0.7 else random.choice(("K", "labels", "a/b", "sample", "é"))
    attributes = dict(file[name].attrs) if name in file else {}
    if name in file:
        del file[name]
    made = make(name)
    if made is not None and random.random() < 0.7:
        for key, value in attributes.items():
            made.attrs[key] = value


def _elsewhere(random: Random, file: h5py.File) -> None:
    shape, kind = (
        random.choice(((6, 6), (2, 6, 6), (6,), (6, 1))),
        random.choice(("link", "storage", "virtual", "soft")),
    )
    if kind == "link":
        _put(
            random,
            file,
            lambda name: file.__setitem__(name, h5py.ExternalLink(f"{OUTSIDE}/other.h5", random.choice(("/", "K")))),
        )
    elif kind == "storage":
        parts = [(f"{OUTSIDE}/other.bin", 0, h5py.h5f.UNLIMITED)]
        _put(random, file, lambda name: file.create_dataset(name, shape, random.choice(("f8", "u1")), external=parts))
    elif kind == "virtual":
        layout = h5py.VirtualLayout(shape, "f8", maxshape=random.choice((None, (None,) * len(shape))))
        layout[...] = h5py.VirtualSource(f"{OUTSIDE}/other.h5", "K", shape, maxshape=layout.maxshape)
        _put(random, file, lambda name: file.create_virtual_dataset(name, layout))
    else:
        target = random.choice(("/", "/nowhere", "/K", "."))
        _put(random, file, lambda name: file.__setitem__(name, h5py.SoftLink(target)))


def _groups(random: Random, file: h5py.File) -> None:
    """Groups within groups, or in themselves."""
    if random.random() < 0.5:
        file.create_group(random.choice(("loop", "a/b"))).attrs["MATLAB_class"] = np.bytes_(b"struct")
        file["loop/again"] = file["/"]
    else:
        file.create_group("/".join("d" * random.choice((30, 300))))


def _references(random: Random, file: h5py.File) -> None:
    """Cells that refer to themselves, to groups, to nothing."""
    targets = [h5py.Reference(), file.ref, file[_any_name(random, file)].ref]
    chosen = [random.choice(targets) for _ in range(random.choice((1, 2, 6)))]
    made = file.create_dataset("cells", data=np.array([chosen], dtype=h5py.ref_dtype), dtype=h5py.ref_dtype)
    made.attrs["MATLAB_class"] = np.bytes_(b"cell")


def _values(random: Random, file: h5py.File) -> None:
    node = file[_any_name(random, file)]
    if isinstance(node, h5py.Dataset) and node.dtype.kind in "fiu" and 0 < node.size < 10_000:
        values = np.asarray(node[...])
        values.flat[random.randrange(values.size)] = random.choice(
            (np.nan, np.inf, 1e308, -1, 0, 65535) if values.dtype.kind == "f" else (0, 1, 100)
        )
        node[...] = values


_ON_HDF5 = (_attribute, _attribute, _absurd, _absurd, _elsewhere, _groups, _references, _values)


def mutated_mat5(random: Random, data: bytes) -> bytes:
    """A MATLAB v5 file mutated inside its compressed elements, whose checksums and lengths are made to fit."""
    found, at = data[:128], 128
    while at + 8 <= len(data):
        kind, length = struct.unpack("<II", data[at : at + 8])
        body = data[at + 8 : at + 8 + length]
        at += 8 + length
        if kind == 15:
            inner = zlib.decompress(body)
            body = zlib.compress(_element(random, inner))
        elif random.random() < 0.5:
            inner = _element(random, struct.pack("<II", kind, length) + body)
            body, kind = inner[8:], struct.unpack("<I", inner[:4])[0] if len(inner) >= 8 else kind
            body += b"\0" * (-len(body) % 8)
        found += struct.pack("<II", kind, len(body)) + body
    return found


def _element(random: Random, data: bytes) -> bytes:
    """An element of which one word of four bytes (a tag, a length, a flag, a dimension) is another."""
    if random.random() < 0.2:
        return mutated_bytes(random, data, data)
    at = random.randrange(0, min(len(data), 400), 4)
    value = random.choice((*EXTREMES, *range(1, 19), 1 << 16 | 5, 4 << 16 | 1))
    return data[:at] + struct.pack("<I", value % 2**32) + data[at + 4 :]
