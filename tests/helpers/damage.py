"""Damage to stored sets: their tiles, and the bits of files."""


def tile_file(path, *key):
    """The file of tile (i, j) of a kernel; the key is (kernel, i, j)."""
    (matrices,) = path.glob("gram*")
    return matrices.joinpath("c", *map(str, key))


def flip(file, at=9, bits=1):
    data = bytearray(file.read_bytes())
    data[at] ^= bits
    with file.open("r+b") as open_file:  # truncation would crash processes that map the file
        open_file.write(data)


def swap(first, second):
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
