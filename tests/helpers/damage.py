"""Harm to stored sets: their tiles, and the bits of files."""

from __future__ import annotations


def tile_file(path, *key):
    """The file of tile (i, j) of a kernel, for the key (kernel, i, j)."""
    (matrices,) = path.glob("gram*")
    return matrices.joinpath("c", *map(str, key))


def flip(file, at=9, bits=1):
    """Another value of some bits of a byte."""
    data = bytearray(file.read_bytes())
    data[at] ^= bits
    with file.open("r+b") as open_file:  # not cut short meanwhile: that kills who has it mapped
        open_file.write(data)


def swap(first, second):
    """Each of two files in place of the other."""
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
