"""MATLAB files of versions 5 and 7.3, in the layout of MATLAB."""

import h5py
import numpy as np
import scipy.io
import scipy.sparse

OBJECT = np.array([[0xDD000000, 2, 1, 1, 1, 1]], "u4")
"""What MATLAB writes in the place of an object of any class, whose values are elsewhere."""
_CLASSES = {"uint32": "string", "float64": "double", "float32": "single", "uint8": "logical"}


def write_v5(path, **variables):
    """Write a file of version 5; a list is a column of cells."""
    values = {name: _cells(value) if isinstance(value, list) else value for name, value in variables.items()}
    scipy.io.savemat(path, values, do_compression=True)


def _cells(values):
    cells = np.empty((len(values), 1), dtype=object)
    cells[:, 0] = values
    return cells


def write_v73(path, **variables):
    """Write a file of version 7.3: an HDF5 file behind a block of text, with all axes reversed."""
    with h5py.File(path, "w", userblock_size=512) as file:
        refs = file.create_group("#refs#")
        for name, value in variables.items():
            _put(file, name, value, refs)
    with path.open("r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\x00\x02IM")


def _put(where, name, value, refs):
    if scipy.sparse.issparse(value):
        node = where.create_group(name)
        node.attrs["MATLAB_sparse"] = np.uint64(value.shape[0])
        node["jc"], node["data"] = value.tocsc().indptr.astype("u8"), value.tocsc().data
        return node
    if isinstance(value, dict):
        node, kind = where.create_group(name), "struct"
        for key, part in value.items():
            _put(node, key, part, refs)
    elif isinstance(value, list):  # a column of cells
        parts = [_put(refs, f"{name}{i}", part, refs).ref for i, part in enumerate(value)]
        node, kind = where.create_dataset(name, data=np.array([parts], h5py.ref_dtype), dtype=h5py.ref_dtype), "cell"
    elif isinstance(value, str) and not value:
        node, kind = where.create_dataset(name, data=np.array([0, 0], dtype="u8")), "char"
        node.attrs["MATLAB_empty"] = np.uint8(1)
    elif np.asarray(value).dtype.kind == "U":  # rows of equal length
        rows = np.atleast_1d(value)
        width = max(map(len, rows))
        codes = [np.frombuffer(str(text).ljust(width).encode("utf-16-le"), dtype="u2") for text in rows]
        node, kind = where.create_dataset(name, data=np.array(codes).T), "char"
    else:
        array = np.atleast_2d(value)
        packed = {"chunks": True, "compression": "gzip"} if array.size > 30 else {}
        node, kind = where.create_dataset(name, data=array.T, **packed), array.dtype.name
        kind = _CLASSES.get(kind, kind)
    node.attrs["MATLAB_class"] = np.bytes_(kind)
    return node
