"""MATLAB files before version 7.3, read by SciPy in a process of its own."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

import numpy as np

from dmkl import settings
from dmkl.errors import InputError, MemoryBudgetError
from dmkl.inputs.formats.reader_process import Reader, asked

__all__ = ["SPARSE", "read_variable", "variables_of"]

SPARSE: Final = object()
"""What a sparse variable is read as."""


def variables_of(path: Path) -> list[tuple[str, tuple[int, ...], str]]:
    """Name, shape and MATLAB's class of each variable.

    Raises
    ------
    InputError
        If the file is damaged.
    MemoryBudgetError
        If even listing takes more memory than is allowed.
    """
    with asked(path) as reader:
        answer = _checked(reader.ask("mat5 list", unpacked_bytes=settings.memory_budget_bytes()), str(path))
        return [(str(name), tuple(shape), str(kind)) for name, shape, kind in answer["variables"]]


def read_variable(path: Path, name: str) -> Any:
    """One variable: an array, an array of objects with the parts of a cell array, `SPARSE`, or None for other classes.

    Raises
    ------
    InputError
        If it is damaged.
    MemoryBudgetError
        If it takes more memory than is allowed.
    """
    with asked(path) as reader:
        # A variable is deflated, and read as a whole.
        found = reader.ask("mat5 read", name, unpacked_bytes=settings.memory_budget_bytes())
        answer = _checked(found, f"variable {name!r} of {path}")
        return _received(answer["variable"], reader)


def _checked(answer: dict[str, Any], what: str) -> dict[str, Any]:
    if "memory" in answer:
        msg = (
            f"{what} takes more memory than the {settings.memory_budget_bytes():.3g} bytes that are allowed (the "
            "setting dmkl.memory), or is damaged; save it as version 7.3, which is read in parts, or allow more"
        )
        raise MemoryBudgetError(msg)
    if "error" in answer:
        msg = f"{what} cannot be read as MATLAB's: {' '.join(answer['error'].split())}"
        raise InputError(msg)
    return answer


def _received(told: dict[str, Any], reader: Reader) -> Any:
    """The arrays that follow an answer."""
    if told["kind"] == "array":
        shape = tuple(told["shape"])
        array = np.empty(shape[::-1] if told["fortran"] else shape, dtype=told["dtype"])
        reader.fill(array)
        return array.T if told["fortran"] else array
    if told["kind"] == "cell":
        cells = np.empty(math.prod(told["shape"]), dtype=object)
        for position, part in enumerate(told["cells"]):
            cells[position] = _received(part, reader)
        return cells.reshape(told["shape"], order="F")
    return SPARSE if told["kind"] == "sparse" else None
