"""Mutations of bytes that know nothing of the format, and of the structures that several formats share."""

from __future__ import annotations

import io
import json
import re
import struct
import zipfile
from collections.abc import Callable
from random import Random
from typing import Any

__all__ = ["EXTREMES", "mutated_bytes", "mutated_json", "mutated_npy", "mutated_npz", "mutated_numbers"]

EXTREMES = (
    0,
    1,
    -1,
    2,
    7,
    127,
    255,
    256,
    2**15,
    2**16,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**40,
    2**63 - 1,
    2**63,
    2**64 - 1,
)
_WORDS = (
    *map(str, EXTREMES),
    *("1e9", "1e-320", "1e308", "1e400", "-1e309", "inf", "-inf", "nan", "0x10", "1_000", "9" * 400, "9" * 5000),
    *(
        "",
        '""',
        "null",
        "true",
        "[]",
        "{}",
        "..",
        "/etc/passwd",
        "\u221e",
        "[" * 300,
        "{" * 300,
        "'",
        '"',
        "\\",
        "\t",
        ";",
    ),
)


def mutated_bytes(random: Random, data: bytes, other: bytes = b"") -> bytes:
    """One to three mutations; `other` is a file that heads are swapped with."""
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        data = random.choice(_ON_BYTES)(random, data, other)
    return data


def _place(random: Random, data: bytes) -> int:
    """A place in a file, often near its beginning or its end, where formats keep what matters."""
    where = random.random()
    if where < 0.4:
        return random.randrange(min(len(data), 256) + 1)
    if where < 0.55:
        return max(0, len(data) - random.randrange(min(len(data), 256) + 1))
    return random.randrange(len(data) + 1)


def _flip(random: Random, data: bytes, other: bytes) -> bytes:
    found = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 8))):
        if found:
            found[min(_place(random, data), len(found) - 1)] ^= 1 << random.randrange(8)
    return bytes(found)


def _cut(random: Random, data: bytes, other: bytes) -> bytes:
    return data[: _place(random, data)]


def _insert(random: Random, data: bytes, other: bytes) -> bytes:
    at = _place(random, data)
    return data[:at] + random.randbytes(random.choice((1, 4, 8, 64, 1000))) + data[at:]


def _double(random: Random, data: bytes, other: bytes) -> bytes:
    start = _place(random, data)
    stop = min(len(data), start + random.choice((1, 8, 64, 512)))
    return data[:stop] + data[start:stop] * random.choice((1, 2, 50)) + data[stop:]


def _remove(random: Random, data: bytes, other: bytes) -> bytes:
    start = _place(random, data)
    return data[:start] + data[start + random.choice((1, 4, 8, 100)) :]


def _extreme(random: Random, data: bytes, other: bytes) -> bytes:
    code, size = random.choice((("B", 1), ("<H", 2), ("<I", 4), (">I", 4), ("<Q", 8), (">Q", 8)))
    at = _place(random, data) // size * size
    value = random.choice(EXTREMES) % 2 ** (8 * size)
    return data[:at] + struct.pack(code, value) + data[at + size :]


def _swap_head(random: Random, data: bytes, other: bytes) -> bytes:
    length = random.choice((4, 8, 16, 128, 512))
    return other[:length] + data[length:]


def _splice(random: Random, data: bytes, other: bytes) -> bytes:
    return data[: _place(random, data)] + other[_place(random, other) :]


def _in_text(random: Random, data: bytes, other: bytes) -> bytes:
    return mutated_numbers(random, data)


_ON_BYTES = (_flip, _flip, _cut, _insert, _double, _remove, _extreme, _extreme, _swap_head, _splice, _in_text)


def mutated_numbers(random: Random, data: bytes) -> bytes:
    """A number, or a word, that stands written in a file replaced by an extreme one."""
    found = list(re.finditer(rb"[-+]?\d[\d.eE+-]*|[A-Za-z_]+", data))
    if not found:
        return data
    match = random.choice(found)
    return data[: match.start()] + random.choice(_WORDS).encode() + data[match.end() :]


# --- JSON ------------------------------------------------------------------------------------------------------------


def mutated_json(random: Random, data: bytes) -> bytes:
    """JSON of which a value is another one, a key is missing, or one is new."""
    try:
        content = json.loads(data)
    except ValueError:
        return data
    for _ in range(random.choice((1, 1, 2))):
        places: list[tuple[Any, Any]] = []
        _collect(content, places)
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
            parent[key] = random.choice(_values(random))
    return json.dumps(content).encode()


def _collect(node: Any, places: list[tuple[Any, Any]]) -> None:
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        places.append((node, key))
        _collect(value, places)


def _values(random: Random) -> list[Any]:
    names = ("", "a", "/", "..", "../outside", "float64", "string", "bool", "blosc", "gzip", "zstd", "numcodecs.pickle")
    return [
        *EXTREMES, 10**12, -(10**12), 10**30, 0.5, -1e308, float("inf"), float("nan"), None, True, False,
        [], {}, [1], [10**12, 10**12], [0, 0, 0], {"name": "x"}, {"name": "gzip", "configuration": {"level": 5}},
        _nested(random.choice((5, 200))), "x" * 10_000, *names,
    ]  # fmt: skip


def _nested(depth: int) -> Any:
    found: Any = 1
    for _ in range(depth):
        found = [found]
    return found


# --- NumPy -----------------------------------------------------------------------------------------------------------

_TYPES = (
    "<f8",
    "<f4",
    ">f8",
    "<f2",
    "<i8",
    "|u1",
    "|b1",
    "|O",
    "<U3",
    "|S9",
    "<c16",
    "<f16",
    "|V8",
    "<M8[s]",
    "<m8[D]",
    "",
)
_TYPES += (
    "<U0",
    "|S0",
    "|V0",
    "<U999999999",
    "[('a', '<f8')]",
    "[('a', '|O')]",
    "<f8, <f8",
    "[('" + "a" * 70_000 + "', '<f8')]",
)
_SHAPES = (
    *(
        "()",
        "(0,)",
        "(0, 0)",
        "(6,)",
        "(6, 6)",
        "(2, 6, 6)",
        "(-1, 6)",
        "(-6, -6)",
        "(6.0, 6)",
        "[6, 6]",
        "(6, 6, 6, 1)",
    ),
    *(
        "(1000000000000,)",
        "(1000000, 1000000)",
        "(4294967296, 4294967296)",
        "(9223372036854775807, 2)",
        "(2, 0, 10**18)",
    ),
    *(
        f"({'1, ' * 64})",
        f"({'1, ' * 70})",
        f"({10**400}, 1)",
        "(True, True)",
        "None",
        "(1e3, 1)",
        f"{'(' * 250}{')' * 250}",
    ),
)


def mutated_npy(random: Random, data: bytes) -> bytes:
    """An array of which the header says something else."""
    version = random.choice((1, 1, 1, 2, 3))
    quote = random.choice(_TYPES)
    descr = quote if quote.startswith("[") else repr(quote)
    fortran = random.choice(("False", "True", "None", "1"))
    keys = [f"'descr': {descr}", f"'fortran_order': {fortran}", f"'shape': {random.choice(_SHAPES)}"]
    what = random.random()
    if what < 0.1:
        keys.pop(random.randrange(3))
    elif what < 0.2:
        keys.append(random.choice(("'x': 1", "'shape': (3,)", "**{}", "__import__('os')")))
    header = ("{" + ", ".join(keys) + "}").encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    length = random.choice(EXTREMES) if random.random() < 0.05 else len(header)
    size = struct.pack("<H", length % 2**16) if version == 1 else struct.pack("<I", length % 2**32)
    return b"\x93NUMPY" + bytes((version, 0)) + size + header + data[128:]


def mutated_npz(random: Random, data: bytes) -> bytes:
    """An archive whose members say something else, and whose directory holds for them; or of which it does not."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = random.choice(list(members))
    on_member: tuple[Callable[[Random, bytes], bytes], ...] = (
        mutated_npy,
        mutated_bytes,
        lambda _, __: b"\0" * 3_000_000,
    )
    members[name] = random.choice(on_member)(random, members[name])
    if random.random() < 0.3:
        members[random.choice(("../x.npy", "/x.npy", ".npy", "a/b.npy", "é.npy"))] = members[name]
    file = io.BytesIO()

    method = random.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
    with zipfile.ZipFile(file, "w", method) as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    found = file.getvalue()
    if random.random() < 0.4:  # the directory lies of sizes and offsets
        at = found.find(b"PK\x01\x02") + random.choice((8, 10, 16, 20, 24, 28, 30, 42))
        return found[:at] + struct.pack("<I", random.choice(EXTREMES) % 2**32) + found[at + 4 :]
    return found
