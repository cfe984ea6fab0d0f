"""Harm to stored sets: their tiles, and the bits of files."""

from __future__ import annotations

__all__ = ["flip", "swap", "tile_file"]


def tile_file(path, *key):
    """The file of tile (i, j) of a kernel, for the key (kernel, i, j)."""
    (matrices,) = path.glob("gram*")
    return matrices.joinpath("c", *map(str, key))


def flip(file, at=9, bits=1):
    """Another value of some bits of a byte."""
    data = bytearray(file.read_bytes())
    data[at] ^= bits
    file.write_bytes(data)


def swap(first, second):
    """Each of two files in place of the other."""
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
