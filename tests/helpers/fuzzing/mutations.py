"""Mutations of files: bytes, numbers in text, JSON, and headers of NumPy files."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import re
import struct
import zipfile
from collections.abc import Iterator
from random import Random
from typing import Any

from numcodecs import Zstd

EXTREMES = (0, 1, -1, 2, *(2**k - less for k in (7, 8, 15, 16, 31, 32, 40, 63, 64) for less in (1, 0)))
_WORDS = (
    *map(str, EXTREMES),
    *"1e9 1e-320 1e308 1e400 -1e309 inf -inf nan 0x10 1_000 null true [] {} .. /etc/passwd \u221e '' \" \\ ;".split(),
    *("", "\t", "9" * 400, "9" * 5000, "[" * 300, "{" * 300),
)


# --- bytes -----------------------------------------------------------------------------------------------------------
def mutated_bytes(random: Random, data: bytes, other: bytes = b"") -> bytes:
    """Apply one to three mutations; parts of the file `other` may be inserted."""
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        data = _mutated_once(random, data, other)
    return data


def _mutated_once(random: Random, data: bytes, other: bytes) -> bytes:
    at = _place(random, data)
    length = random.choice((1, 4, 8, 64, 512))
    match random.choice("flip flip cut insert repeat remove number number head splice text".split()):
        case "flip":
            flipped = bytearray(data or b"\0")
            flipped[min(at, len(flipped) - 1)] ^= 1 << random.randrange(8)
            return bytes(flipped)
        case "cut":
            return data[:at]
        case "insert":
            return data[:at] + random.randbytes(length) + data[at:]
        case "repeat":
            return data[: at + length] + data[at : at + length] * random.choice((1, 2, 50)) + data[at + length :]
        case "remove":
            return data[:at] + data[at + length :]
        case "number":
            code, size = random.choice((("B", 1), ("<H", 2), ("<I", 4), (">I", 4), ("<Q", 8), (">Q", 8)))
            at -= at % size
            return data[:at] + struct.pack(code, random.choice(EXTREMES) % 2 ** (8 * size)) + data[at + size :]
        case "head":
            return other[:length] + data[length:]
        case "splice":
            return data[:at] + other[_place(random, other) :]
        case _:
            return mutated_numbers(random, data)


def _place(random: Random, data: bytes) -> int:
    """A random position in a file, often near its beginning or end, where formats have their metadata."""
    end, near = len(data), min(len(data), 256)
    return random.choice((random.randrange(near + 1), end - random.randrange(near + 1), random.randrange(end + 1)))


def mutated_numbers(random: Random, data: bytes) -> bytes:
    """Replace a number or a word in a file by an extreme value."""
    words = list(re.finditer(rb"[-+]?\d[\d.eE+-]*|[A-Za-z_]+", data))
    if not words:
        return data
    word = random.choice(words)
    return data[: word.start()] + random.choice(_WORDS).encode() + data[word.end() :]


# --- JSON ------------------------------------------------------------------------------------------------------------
_NAMES = ("", "a", "/", "..", "../outside", "float64", "string", "bool", "blosc", "gzip", "zstd", "numcodecs.pickle")
_VALUES = (
    *EXTREMES, *_NAMES, 10**12, -(10**12), 10**30, 0.5, -1e308, float("inf"), float("nan"), None, True, False, [], {},
    [1], [10**12, 10**12], [0, 0, 0], {"name": "x"}, {"name": "gzip", "configuration": {"level": 5}}, [[[[[1]]]]],
    json.loads("[" * 200 + "]" * 200), "x" * 10_000,
)  # fmt: skip


def mutated_json(random: Random, data: bytes) -> bytes:
    """Change a value, or remove or add a key, of a JSON document."""
    try:
        content = json.loads(data)
    except ValueError:
        return data
    for _ in range(random.choice((1, 1, 2))):
        places = list(_places(content))
        if not places:
            break
        parent, key = random.choice(places)
        what = random.random()
        if what < 0.15:
            del parent[key]
        elif what < 0.25:
            parent[key] = [parent[key]] * random.choice((1, 2, 100))
        elif what < 0.3 and isinstance(parent, dict):
            parent[random.choice(("x", "", "name", "shape"))] = parent[key]
        else:
            parent[key] = random.choice(_VALUES)
    return json.dumps(content).encode()


def _places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the container and the key of each value in a document."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield node, key
        yield from _places(value)


# --- NumPy -----------------------------------------------------------------------------------------------------------
_TYPES = (
    *"<f8 <f4 >f8 <f2 <i8 |u1 |b1 |O <U3 |S9 <c16 <f16 |V8 <M8[s] <m8[D] <U0 |S0 |V0 <U999999999".split(),
    *("", "<f8, <f8", [("a", "<f8")], [("a", "|O")], [("a" * 70_000, "<f8")]),
)
_SHAPES = (
    *("()", "(0,)", "(0, 0)", "(6,)", "(6, 6)", "(2, 6, 6)", "(-1, 6)", "(-6, -6)", "(6.0, 6)", "[6, 6]", "(6, 6, 6)"),
    *("(10**12,)", "(1000000, 1000000)", "(4294967296, 4294967296)", "(9223372036854775807, 2)", "(1000000000000,)"),
    *(f"({'1, ' * 70})", f"({10**400}, 1)", "(True, True)", "None", "(1e3, 1)", f"{'(' * 250}{')' * 250}"),
)


def npy_header(text: str, version: int = 1, length: int | None = None) -> bytes:
    """The header of a .npy file with this text, and with a wrong length if one is given."""
    padded = text.encode() + b" " * (-(len(text) + 11) % 64) + b"\n"
    length = len(padded) if length is None else length
    size = struct.pack("<H", length % 2**16) if version == 1 else struct.pack("<I", length % 2**32)
    return b"\x93NUMPY" + bytes((version, 0)) + size + padded


def mutated_npy(random: Random, data: bytes) -> bytes:
    """An array with a wrong header."""
    keys = [
        f"'descr': {random.choice(_TYPES)!r}",
        f"'fortran_order': {random.choice(('False', 'True', 'None', '1'))}",
        f"'shape': {random.choice(_SHAPES)}",
    ]
    what = random.random()
    if what < 0.1:
        keys.pop(random.randrange(3))
    elif what < 0.2:
        keys.append(random.choice(("'x': 1", "'shape': (3,)", "**{}", "__import__('os')")))
    length = random.choice(EXTREMES) if random.random() < 0.05 else None
    return npy_header(f"{{{', '.join(keys)}}}", random.choice((1, 1, 1, 2, 3)), length) + data[128:]


def mutated_npz(random: Random, data: bytes) -> bytes:
    """An archive with mutated members, and with a directory that is valid or corrupted."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = random.choice(list(members))
    changes = (mutated_json if name.endswith(".json") else mutated_npy, mutated_bytes, lambda *_: b"\0" * 3_000_000)
    change = random.choice(changes)
    members[name] = change(random, members[name])
    if random.random() < 0.3:
        members[random.choice(("../x.npy", "/x.npy", ".npy", "a/b.npy", "é.npy"))] = members[name]
    file = io.BytesIO()
    method = random.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
    with zipfile.ZipFile(file, "w", method) as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    mutated = file.getvalue()
    if random.random() < 0.4:  # wrong sizes and offsets in the directory
        at = mutated.find(b"PK\x01\x02") + random.choice((8, 10, 16, 20, 24, 28, 30, 42))
        return mutated[:at] + struct.pack("<I", random.choice(EXTREMES) % 2**32) + mutated[at + 4 :]
    return mutated


def mutated_packed(random: Random, data: bytes) -> bytes:
    """A compressed file of mutated content, or of blanks without end."""
    pack, unpack = next(codec for begin, *codec in PACKERS.values() if data.startswith(begin))
    content = unpack(data)
    return pack(random.choice((mutated_bytes, mutated_numbers, lambda *_: b" " * 3_000_000))(random, content))


PACKERS: dict[str, tuple[bytes, Any, Any]] = {
    ".gz": (b"\x1f\x8b", gzip.compress, gzip.decompress),
    ".bz2": (b"BZh", bz2.compress, bz2.decompress),
    ".xz": (b"\xfd7zXZ", lambda data: lzma.compress(data, preset=0), lzma.decompress),  # which needs little memory
    ".zst": (b"\x28\xb5\x2f\xfd", Zstd().encode, lambda data: bytes(Zstd().decode(data))),
}
"""The first bytes of compressed files, the compression and its inverse, by their extension."""
