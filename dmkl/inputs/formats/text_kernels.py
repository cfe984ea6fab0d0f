"""Kernels in text: matrices, triangles (PHYLIP), pairs, and Matrix Market; relationship matrices of GCTA and PLINK."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from dmkl.arrays import Array, Float, Lazy, is_numeral
from dmkl.errors import damaged_as, refuse
from dmkl.files.reader_process import run
from dmkl.inputs.columns import Columns, counts, find_names, is_number
from dmkl.inputs.formats.compressed import COMPRESSED, content_name, unpacked
from dmkl.inputs.formats.file_arrays import FileArray, array_of
from dmkl.inputs.formats.pairs import pairs_of
from dmkl.inputs.formats.tables import Text, lines_of
from dmkl.inputs.matrices import dense_rows
from dmkl.names import Individual, Names
from dmkl.settings import check_memory

_LISTS = (".id", ".sampleIDs.txt", ".fam", ".tfam", ".psam")  # Ends of files that list the individuals of a matrix.
_ENTRY_BYTES = 64  # Memory that reading takes for an entry at most: its position and value, as they come and in rows.


def text_arrays(path: Path) -> list[FileArray]:
    """Return the matrix in a text file, with the names of its rows and columns."""
    text = Text(path)
    if pairs := pairs_of(text):
        return pairs
    if text.is_ragged:
        return [_ragged_matrix(text)]
    if text.titles is None and text.n_rows == text.n_columns + 1 and all(map(str.isdecimal, text.head_row())):
        text.take_first_row_as_titles()
    if text.count not in (None, text.n_rows):
        refuse(f"{path} states {text.count} rows in its first line, and has {text.n_rows}; it is not whole")
    # Reading all rows of a kernel for the types of its columns would take long.
    text.numeric = [is_number(cell, text.decimal_comma) for cell in text.head_row()]
    matrix = labelled(text)
    words = [name for name in matrix.rows or () if not is_numeral(name)]
    if text.titles is None and 0 < len(words) < text.n_rows:
        way_out = "if they are names, add a line of titles with 'sample' above them"
        refuse(f"{path}: {words[0]!r:.60} in the first column is not a number, others in it are; {way_out}")
    # PHYLIP's distances and TASSEL's kinships are written alike, but for the diagonal.
    has_distances = text.count is not None and len(set(matrix.shape)) == 1 and not matrix.open()[0:1, 0:1].any()
    return [replace(matrix, holds="distances" if has_distances else "")]


def labelled(table: Columns) -> FileArray:
    """Return the matrix in a table, with names of its rows and columns that do not only count these."""
    rows, columns = _row_names(table)
    if not isinstance(table, Text):  # a word among the numbers of a text file is refused when its line is read
        columns = [at for at in columns if table.numeric[at]]
    if not columns:
        what = f"{table.n_rows} lines of words and no numbers, expected a matrix; labels and names of samples"
        refuse(f"{table.where} holds {what} are given as such (labels=, samples=, --labels, --samples)")
    written = titles = table.titles_of(columns)
    # Names that pandas and R write if there are none.
    if counts(titles or (), 1, "V") or counts(titles or (), 1, "X"):
        titles, rows = None, None if counts(rows or (), 1) else rows
    titles, rows = (None if counts(names or ()) else names for names in (titles, rows))
    if table.n_rows == len(columns) and rows is not None and titles is not None and set(rows) != set(titles):
        # R's data frames begin titles with a letter and write a dot for all other signs (make.names).
        made = {re.sub(r"^(?=[\d_]|\.\d)", "X", re.sub(r"[^\w.]", ".", name)): name for name in rows}
        titles = tuple(made[title] for title in titles) if set(made) == set(titles) else titles
    if rows is None and titles is None and written is not None and not counts(written):
        what = f"{table.where}: its names of rows and columns only count, as R writes those of a matrix without names"
        table.notes.append(f"{what}; give the names of the rows in their order with --order FILE (order=)")
    return array_of(table, columns, rows, titles, notes=tuple(table.notes))


def _row_names(table: Columns) -> tuple[Names, list[int]]:
    """Return the names of the rows, from a column with a title or from the columns before the numbers, and the rest."""
    more = table.n_columns - table.n_rows
    if not isinstance(table, Text) or table.titles is not None:
        names, rest = find_names(table, frozenset(table.titles or ()))
        return (tuple(table.texts([0])[0]), rest[1:]) if names is None and more == 1 and rest[0] == 0 else (names, rest)
    n_names = [*table.numeric, True].index(True)
    if n_names == 0 and more in (1, 2) and all(map(str.isdecimal, table.head_row()[:more])):
        n_names, what = more, f"{table.where}: {table.title(more - 1)}"
        table.notes.append(f"{what} was taken for names of the rows, since as many numbers follow")
    elif n_names == 0 and more == 2 and not table.numeric[1]:
        n_names = 2
    cells, rest = table.texts(range(n_names)), list(range(n_names, table.n_columns))
    if n_names == 2 and not counts(cells[0]) and not counts(cells[0], 1):
        return Individual.of(cells[1], cells[0]), rest
    return tuple(cells[-1]) if cells else None, rest


def _ragged_matrix(text: Text) -> FileArray:
    """Return a triangle of a line a row, or a matrix whose rows PHYLIP has wrapped; it is read as a whole."""
    rows, comma, n = text.ragged(), text.decimal_comma, text.count or 0
    if not text.is_triangle:
        cells = [cell for row in rows for cell in row]
        if len(cells) != n * (n + 1):
            refuse(f"{text.path} states {n} rows and holds {len(cells)} cells, expected {n + 1} for each row")
        rows = [cells[start : start + n + 1] for start in range(0, len(cells), n + 1)]
    named = not text.is_triangle or not is_number(rows[-1][0], comma)
    values = _matrix_of_rows(text.path, [row[named:] for row in rows], decimal_comma=comma)
    names = tuple(row[0] for row in rows) if named else None
    # Rows of distances end before the diagonal, or are zero there.
    of_distances = len(rows[0]) == named or not values.diagonal().any()
    more: Any = {"rows": names, "notes": tuple(text.notes), "holds": "distances" if of_distances else ""}
    return FileArray(text.path, "", values.shape, values.dtype, lambda: values, **more)


def _matrix_of_rows(path: Path, rows: Sequence[Sequence[str]], *, decimal_comma: bool = False) -> Float:
    """Return the symmetric matrix whose rows end before the diagonal (which is 0), at it, or are whole."""
    n = len(rows)
    check_memory(f"the matrix of {path}", 16 * n * n, "save it in a binary format, which is read in parts")
    has_diagonal = bool(n) and len(rows[0]) > 0
    values = np.zeros((n, n))
    for i, row in enumerate(rows):
        if len(row) not in (to_diagonal := i + has_diagonal, n):
            refuse(f"{path}, row {i + 1}: found {len(row)} numbers, expected {to_diagonal}, to the diagonal, or {n}")
        with damaged_as(f"expected numbers in {path}, row {i + 1}", ValueError):
            values[i, : len(row)] = [float(cell.replace(",", ".") if decimal_comma else cell) for cell in row]
        if len(rows[0]) < n:
            values[: len(row), i] = values[i, : len(row)]
    return values


def binary_arrays(path: Path) -> list[FileArray]:
    """Return the relationship matrix of GCTA in NAME.grm.bin or PLINK in NAME.rel.bin.

    GCTA writes the lower triangle as float32, row after row: entry (i, k), i ≥ k from 0, is number i(i + 1)/2 + k.
    PLINK writes this or the square matrix, as float64 or float32, which the size of the file shows.
    """
    names, of_plink = _individuals(path), path.name.lower().endswith(".rel.bin")
    n, size = len(names), path.stat().st_size
    lengths, dtypes = (n * (n + 1) // 2, n * n)[: 1 + of_plink], ("<f4", "<f8")[: 1 + of_plink]
    forms = {length * np.dtype(kind).itemsize: (length, np.dtype(kind)) for length in lengths for kind in dtypes}
    if size not in forms:
        sizes = " or ".join(map(str, sorted(forms)))
        refuse(f"{path} has {size} bytes, expected {sizes} for the {n} individuals of the .id file beside it")
    length, dtype = forms[size]

    def entries(key: tuple[slice, slice]) -> Array:
        if length == n * n:
            return np.asarray(np.memmap(path, dtype, "r", 0, (n, n))[key])
        rows, cols = (np.arange(n)[part] for part in key)
        low, high = np.minimum(rows[:, None], cols), np.maximum(rows[:, None], cols)
        return np.asarray(np.memmap(path, dtype, "r")[high * (high + 1) // 2 + low])

    return [FileArray(path, "", (n, n), dtype, partial(Lazy, (n, n), dtype, entries), rows=names)]


def gcta_text_arrays(path: Path) -> list[FileArray]:
    """Return the relationship matrix of GCTA in lines of row, column and entry, each pair of individuals once.

    NAME.grm.gz lists all pairs and counts individuals from 1, with the number of variants before the entry. The sparse
    NAME.grm.sp counts them from 0 and leaves out pairs whose entry is zero.
    """
    import scipy.sparse

    names, is_whole = _individuals(path), path.name.lower().endswith(".gz")
    n, text = len(names), Text(path)
    n_pairs, n_columns = n * (n + 1) // 2, 4 if is_whole else 3
    if is_whole and (text.n_columns != n_columns or text.n_rows != n_pairs):
        expected = f"{n_pairs} of 4 (row, column, variants, entry), one for each pair of the {n} individuals of the .id"
        refuse(f"{path} has {text.n_rows} lines of {text.n_columns} cells, expected {expected} file beside it")
    *at, entries = text.read_frame([], [0, 1, n_columns - 1]).to_numpy().T
    if not np.isin(at, np.arange(is_whole, n + is_whole)).all():
        places = f"{int(is_whole)} to {n + is_whole - 1}"
        refuse(f"{path} has positions outside {places}, the individuals of the .id file beside it")
    cols, rows = np.sort(np.array(at, np.int64) - is_whole, axis=0)
    half = scipy.sparse.csr_array((entries, (rows, cols)), shape=(n, n))
    half.sum_duplicates()  # SciPy 1.13 keeps entries of a pair apart
    if not np.isfinite(entries).all() or half.nnz < len(entries):
        refuse(f"{path} lacks a value, or lists a pair more than once; expected each pair once; write it again")
    matrix = half + half.T - scipy.sparse.diags_array(half.diagonal())
    return [FileArray(path, "", (n, n), matrix.dtype, partial(dense_rows, matrix), rows=names)]


def plink_text_arrays(path: Path) -> list[FileArray]:
    """Return the relationship matrix of PLINK in NAME.rel or NAME.rel.gz: rows up to the diagonal, or whole rows."""
    names = _individuals(path)
    n = len(names)
    check_memory(str(path), 64 * n * n, "save it with --make-rel bin, which is read in parts, or allow more")
    rows = [text.split() for _, _, text in lines_of(path)]
    if len(rows) != n:
        refuse(f"{path} has {len(rows)} lines, expected {n}: one for each individual of the .id file beside it")
    matrix = _matrix_of_rows(path, rows)
    return [FileArray(path, "", (n, n), matrix.dtype, lambda: matrix, rows=names)]


def matrix_of_prefix(path: Path) -> Path | None:
    """Return the relationship matrix of a prefix, as in GCTA's option --grm; None if there is none."""
    endings = (".grm.bin", ".grm.gz", ".rel.bin", ".rel", ".rel.gz")
    files = (path.with_name(path.name + ending) for ending in endings)
    return next((file for file in files if path.name and file.is_file()), None)


def _individuals(path: Path) -> tuple[str, ...]:
    """Return IID, with FID if there are both, from the .id file of the matrix."""
    if part := re.search(r"\.part_(\d+)_(\d+)\.", path.name):
        whole, pattern = (path.name.replace(part[0], text) for text in (".", f".part_{part[1]}_*."))
        way_out = f"put all parts and their .grm.id files together: cat {pattern} > {whole}"
        refuse(f"{path} is part {int(part[2])} of {part[1]} of a relationship matrix of GCTA, not the whole; {way_out}")
    id_file = path.with_name(re.sub(r"(?i)\.(gz|bin|sp)$", "", path.name) + ".id")
    if not id_file.is_file():
        refuse(f"{path} needs {id_file.name} beside it, which names its individuals, and there is none; copy it there")
    names = _listed_individuals(id_file)
    if not names:
        refuse(f"{id_file} names no individuals, expected a line of FID and IID for each")
    return names


def _listed_individuals(file: Path) -> tuple[str, ...]:
    """Return the names at the beginning of lines: FID and IID, or one; under a title IID the first is the name."""
    lines = [cells for _, _, text in lines_of(file) if (cells := text.split()) and not cells[0].startswith("##")]
    title = lines[0][0].lstrip("#") if lines else ""
    rows = lines[title in ("FID", "IID") :]
    if title == "IID" or any(len(row) == 1 for row in rows):
        return tuple(row[0 if title == "IID" else -1] for row in rows)
    return Individual.of((row[1] for row in rows), (row[0] for row in rows))


def names_beside(path: Path, lengths: Collection[int], notes: list[str]) -> tuple[str, ...]:
    """Return the names in a list next to a matrix, if it has as many lines as a side of it; else none.

    PLINK and GCTA write MATRIX.id, SAIGE MATRIX.sampleIDs.txt, CellRanger barcodes.tsv with matrix.mtx; a list of the
    individuals of a study is STUDY.fam, .tfam or .psam.
    """
    files = [f"{name}{end}" for end in _LISTS for name in dict.fromkeys((path.name, path.stem))]
    files += [path.name[:-10] + f"barcodes.tsv{end}" for end in ("", ".gz") if path.name.endswith("matrix.mtx")]
    for file in map(path.with_name, files):
        if file.is_file() and len(names := _listed_individuals(file)) in lengths:
            notes.append(f"{path}: {file.name} was taken for names of the samples, of which it lists as many")
            return names
    return ()


# --- Matrix Market ---------------------------------------------------------------------------------------------------


def mtx_arrays(path: Path) -> list[FileArray]:
    """Return the matrix of a .mtx file, or of a folder of 10x Genomics; a sparse one stays sparse in memory."""
    path = matrix_of_10x(path) or path
    file = unpacked(path)
    (n_rows, n_cols, n_entries, _, field, _), _ = run(_header, str(path), file)
    size = file.stat().st_size
    if min(n_rows, n_cols) < 1 or not 0 <= n_entries <= size:  # an entry takes two characters at least
        refuse(f"{path} is damaged: it states {n_rows} × {n_cols} and {n_entries} entries, and has {size} bytes")
    check_memory(str(path), _ENTRY_BYTES * n_entries + 8 * (n_rows + n_cols), "save it as .h5, or allow more")
    cells, genes = _names_of_10x(path, (n_rows, n_cols))

    def opened() -> Any:
        import scipy.sparse

        n_repeated, arrays = run(_matrix, str(path), file)
        if n_repeated:
            refuse(f"{path} lists {n_repeated} entries more than once, expected each once; remove the wrong lines")
        if len(arrays) == 1:
            return arrays[0].T if cells else arrays[0]
        matrix = scipy.sparse.csr_array(tuple(arrays), (n_rows, n_cols))
        return dense_rows(matrix.T if cells else matrix)

    problem = "complex" if field == "complex" else ""
    array = FileArray(path, "", (n_rows, n_cols), np.dtype(float), opened, problem=problem)
    return [of_10x(array, (n_cols, n_rows), cells, genes) if cells else array]


def of_10x(
    array: FileArray, shape: tuple[int, int], cells: tuple[str, ...], genes: Sequence[Sequence[str]]
) -> FileArray:
    """Return counts of 10x Genomics as features (cells, genes), called by their symbols if unique, or identifiers."""
    note = f"{array.where}: genes × cells, as 10x Genomics writes them, were transposed; the barcodes name the samples"
    columns = next((tuple(names) for names in genes if len(set(names)) == shape[1]), None)
    return replace(array, shape=shape, rows=cells, columns=columns, holds="features", notes=(note,))


def matrix_of_10x(folder: Path) -> Path | None:
    """Return the one matrix of 10x Genomics in a folder that also has its barcodes."""
    matrices = [file for file in folder.glob("*matrix.mtx*") if content_name(file.name).endswith("matrix.mtx")]
    return matrices[0] if len(matrices) == 1 and _list_of_10x(matrices[0], "barcodes") else None


def _list_of_10x(matrix: Path, *names: str) -> list[list[str]]:
    """Return the lines of a list next to a matrix of 10x Genomics; names of files may begin with that of a sample."""
    begin = re.sub(r"matrix\.mtx.*", "", matrix.name)
    files = (matrix.with_name(f"{begin}{name}.tsv{end}") for name in names for end in ("", *COMPRESSED))
    return next(([text.split("\t") for _, _, text in lines_of(file)] for file in files if file.is_file()), [])


def _names_of_10x(path: Path, shape: tuple[int, int]) -> tuple[tuple[str, ...], list[list[str]]]:
    """Return the barcodes, and symbols and ids of genes, in the lists next to a matrix (genes, cells)."""
    genes, cells = _list_of_10x(path, "features", "genes"), _list_of_10x(path, "barcodes")
    if "matrix.mtx" not in path.name or (len(genes), len(cells)) != shape:
        return (), []
    return tuple(row[0] for row in cells), [[row[min(at, len(row) - 1)] for row in genes] for at in (1, 0)]


def _header(file: str) -> tuple[tuple[Any, ...], list[Array]]:
    """Return the numbers of rows, columns and entries, and the format, field and symmetry (in the child process)."""
    import scipy.io

    return scipy.io.mminfo(file), []


def _matrix(file: str) -> tuple[int, list[Array]]:
    """Return how many entries repeat others, and a matrix, a sparse one in compressed rows (in the child process)."""
    import scipy.io
    import scipy.sparse

    with threadpool_limits(1, user_api="scipy"):  # each thread reserves memory, which is limited
        matrix = scipy.io.mmread(file)
    if not scipy.sparse.issparse(matrix):
        return 0, [np.asarray(matrix, dtype=float)]
    rows = matrix.tocsr().astype(float)
    return matrix.nnz - rows.nnz, [rows.data, rows.indices, rows.indptr]
