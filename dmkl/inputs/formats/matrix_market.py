"""Matrices in Matrix Market files, .mtx, sparse or dense, read by SciPy in a child process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from dmkl.arrays import Array
from dmkl.errors import refuse
from dmkl.inputs.formats.file_arrays import FileArray
from dmkl.inputs.formats.reader_process import run
from dmkl.inputs.matrices import dense_rows
from dmkl.settings import check_memory

_ENTRY_BYTES = 64
"""Memory that reading takes for an entry at most: its position and value, as they come and in rows."""


def mtx_arrays(path: Path) -> list[FileArray]:
    """Return the matrix of a .mtx file; a sparse one stays sparse in memory."""
    (n_rows, n_cols, n_entries, _, field, _), _ = run(_header, str(path), path)
    size = path.stat().st_size
    if min(n_rows, n_cols) < 1 or not 0 <= n_entries <= size:  # an entry takes two characters at least
        refuse(f"{path} is damaged: it states {n_rows} × {n_cols} and {n_entries} entries, and has {size} bytes")
    check_memory(str(path), _ENTRY_BYTES * n_entries + 8 * n_rows, "save it as .h5, or allow more")

    def opened() -> Any:
        import scipy.sparse

        _, arrays = run(_matrix, str(path), path)
        return arrays[0] if len(arrays) == 1 else dense_rows(scipy.sparse.csr_array(tuple(arrays), (n_rows, n_cols)))

    problem = "complex" if field == "complex" else ""
    return [FileArray(path, "", (n_rows, n_cols), np.dtype(float), opened, problem=problem)]


def _header(file: str) -> tuple[tuple[Any, ...], list[Array]]:
    """Return the numbers of rows, columns and entries, and the format, field and symmetry (in the child process)."""
    import scipy.io

    return scipy.io.mminfo(file), []


def _matrix(file: str) -> tuple[None, list[Array]]:
    """Return a dense matrix, or the three vectors of a sparse one in compressed rows (in the child process)."""
    import scipy.io
    import scipy.sparse

    with threadpool_limits(1, user_api="scipy"):  # each thread reserves memory, which is limited
        matrix = scipy.io.mmread(file)
    if not scipy.sparse.issparse(matrix):
        return None, [np.asarray(matrix, dtype=float)]
    rows = matrix.tocsr().astype(float)
    return None, [rows.data, rows.indices, rows.indptr]
