"""Files of several named arrays, and 10x Genomics' of counts; words are written as each format has them."""

from functools import partial

import h5py
import numpy as np
import scipy.io
import scipy.sparse
import zarr

from helpers.matlab import write_v5, write_v73


def write(path, content):
    """Write text, one array, or named arrays in the format of the extension; v73.mat is of MATLAB 7.3."""
    if isinstance(content, str | bytes):
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    elif isinstance(content, dict):
        of_matlab = write_v73 if path.stem == "v73" else write_v5
        of_zarr = partial(write_zarr, zarr_format=3)
        writers = {".npz": np.savez, ".h5": write_hdf5, ".mat": of_matlab, ".zarr": of_zarr}
        writers[path.suffix](path, **content)
    elif path.suffix == ".npy":
        np.save(path, content)
    else:
        zarr.create_array(path, data=content)


def write_hdf5(path, **arrays):
    with h5py.File(path, "w") as file:
        file.update(_lists_of_words(arrays))


def write_mat(path, **arrays):
    write_v5(path, **_lists_of_words(arrays))


def _lists_of_words(arrays):
    return {name: np.asarray(v).tolist() if np.asarray(v).dtype.kind == "U" else v for name, v in arrays.items()}


def write_zarr(path, zarr_format=2, **arrays):
    """Write a group with chunks of half the length of each axis; words of format 3 are of any length."""
    group = zarr.open_group(path, mode="w", zarr_format=zarr_format)
    for name, values in {name: np.asarray(values) for name, values in arrays.items()}.items():
        if values.dtype.kind == "U" and zarr_format == 3:
            group.create_array(name, shape=values.shape, dtype=str)[...] = values.astype(object)
        else:
            group.create_array(name, data=values, chunks=tuple(max(1, n // 2) for n in values.shape))


def write_10x(path, counts, cells, genes, version=3):
    """Write counts of genes × cells as CellRanger does, in one .h5 or in a folder of three files."""
    counts = scipy.sparse.csc_matrix(counts.astype(int))
    if path.suffix == ".h5":
        group, *lists = {2: ("GRCh38", "genes", "gene_names"), 3: ("matrix", "features/id", "features/name")}[version]
        parts = {part: getattr(counts, part) for part in ("data", "indices", "indptr", "shape")}
        parts |= {"barcodes": np.array(cells, "S"), **dict.fromkeys(lists, np.array(genes, "S"))}
        parts |= {"features/feature_type": np.array(["Gene Expression"] * len(genes), "S")} if version == 3 else {}
        write_hdf5(path, **{f"{group}/{part}": values for part, values in parts.items()})
        return
    path.mkdir()
    scipy.io.mmwrite(path / "matrix.mtx", counts)
    (path / "barcodes.tsv").write_text("".join(f"{cell}\n" for cell in cells))
    lines = (f"E{k}\t{gene}\tGene Expression\n" for k, gene in enumerate(genes))
    (path / f"{'genes' if version == 2 else 'features'}.tsv").write_text("".join(lines))
