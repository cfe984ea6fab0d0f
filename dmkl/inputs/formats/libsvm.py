"""Sparse features and precomputed kernels of LIBSVM and SVMlight, lines of LABEL INDEX:VALUE …, by scikit-learn."""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from dmkl.errors import damaged_as
from dmkl.inputs.formats.compressed import unpacked
from dmkl.inputs.formats.file_arrays import FileArray, vector
from dmkl.inputs.formats.tables import lines_of
from dmkl.inputs.labels import LabelTable
from dmkl.inputs.matrices import dense_rows
from dmkl.settings import check_memory

_LINE = re.compile(r"[-+.,\w]+(\s+qid:\d+)?(\s+\d+:[-+.\w]+)*\s*(#.*)?")
_ENTRY_BYTES = 8
"""Memory that a byte of text takes at most: an entry of four bytes is a value, an index, and copies of both."""


def is_libsvm(path: Path) -> bool:
    """Whether the first lines of a text are a label and entries."""
    lines = [text for _, _, text in islice(lines_of(path), 4) if text.strip() and not text.startswith("#")]
    return ":" in "".join(lines) and all(map(_LINE.fullmatch, lines))


def libsvm_arrays(path: Path) -> list[FileArray]:
    """Return the matrix and the labels; a matrix whose column 0 numbers the rows from 1 on is a kernel."""
    from sklearn.datasets import load_svmlight_file
    from sklearn.preprocessing import MultiLabelBinarizer

    file = unpacked(path)
    check_memory(str(path), _ENTRY_BYTES * file.stat().st_size, "save it by scipy.sparse.save_npz, or allow more")
    several = any("," in text.partition(":")[0] for _, _, text in islice(lines_of(path), 9))
    with damaged_as(f"{path} is no table of LIBSVM", Exception):
        matrix, labels = load_svmlight_file(str(file), multilabel=several)
    check_memory(f"a row of {path}", 64 * matrix.shape[1], "number the columns without gaps, or allow more")
    numbers, tasks = matrix[:, [0]].toarray().ravel().tolist(), None
    if several:
        binarizer = MultiLabelBinarizer()
        labels, tasks = binarizer.fit_transform(labels), tuple(f"{own:g}" for own in binarizer.classes_)
    more: dict[str, Any] = {"holds": "features"}
    if len(set(numbers)) == len(numbers) and set(numbers) <= set(range(1, matrix.shape[1])):
        matrix, more["holds"] = matrix[:, 1:], "kernel"
        if numbers != sorted(numbers):
            axes = numbers, range(1, 1 + matrix.shape[1])
            more["rows"], more["columns"] = (tuple(f"{number:g}" for number in own) for own in axes)
    return [
        FileArray(path, "", matrix.shape, np.dtype(float), lambda: dense_rows(matrix), **more),
        FileArray(path, "labels", labels.shape, labels.dtype, lambda: labels, columns=tasks),
    ]


def libsvm_labels(path: Path, _: str | None) -> LabelTable:
    """Return the labels."""
    labels = libsvm_arrays(path)[1]
    return LabelTable(vector(labels.read(), str(path)), None, labels.columns)
