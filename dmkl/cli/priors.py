"""Prior knowledge of weights: prices, groups and constraints, from files that name kernels.

A file holds linear constraints; any other convex set is a function that Python alone takes, ``constraints`` of the
learners.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dmkl.errors import InputError

if TYPE_CHECKING:
    from dmkl.arrays import Float

__all__ = ["read_constraints", "read_kernel_groups", "read_prices"]


def read_prices(text: str, kernels: Sequence[str]) -> float | list[float]:
    """One price for all kernels from a number, or that of each, in the order of `kernels`, from a CSV file.

    The file has a kernel and its price a line, and may have a header.
    """
    if _is_number(text):
        return float(text)
    path = Path(text).expanduser()
    if not path.exists():
        msg = f"--sigma takes a number or a file of kernel,price, got {text!r}, which is neither"
        raise InputError(msg)
    lines = _lines(path, "prices")
    found: list[tuple[str, float]] = []
    for number, line in enumerate(lines):
        if len(line) == 2 and _is_number(line[1]):
            found.append((line[0], float(line[1])))
        elif number or len(line) != 2:  # the first may be a header
            msg = f"{path}: expected the name of a kernel and its price a line, such as rbf,0.5, got {','.join(line)!r}"
            raise InputError(msg)
    prices = dict(found)
    _check_names(prices, kernels, str(path))
    if len(prices) < len(found) or len(prices) < len(kernels):
        names = [name for name, _ in found]
        twice = [name for name in names if names.count(name) > 1]
        without = [name for name in kernels if name not in prices]
        msg = (
            f"{path} has {'two prices' if twice else 'no price'} for kernel {(twice or without)[0]!r}, expected one "
            "for each kernel of the set"
        )
        raise InputError(msg)
    return [prices[name] for name in kernels]


def read_kernel_groups(text: str, kernels: Sequence[str]) -> dict[str, Any]:
    """Names of kernels by group, from a CSV file with a kernel and its group a line, or patterns as group=pattern,…."""
    if "=" in text and not Path(text).expanduser().exists():
        pairs = [part.partition("=") for part in text.split(",")]
        if all(group and pattern for group, _, pattern in pairs):
            return {group: pattern for group, _, pattern in pairs}
    path = Path(text).expanduser()
    if not path.exists():
        msg = f"--kernel-groups takes group=pattern,… or a file of kernel,group, got {text!r}, which is neither"
        raise InputError(msg)
    found: dict[str, list[str]] = {}
    for number, line in enumerate(_lines(path, "groups")):
        if len(line) != 2:
            msg = f"{path}: expected the name of a kernel and its group a line, such as rbf,image, got {line}"
            raise InputError(msg)
        if number or line[0] in kernels:  # the first may be a header
            found.setdefault(line[1], []).append(line[0])
    return found


def _lines(path: Path, what: str) -> list[list[str]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return [[cell.strip() for cell in line] for line in csv.reader(file) if line]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        msg = f"the file of {what} {path} cannot be read: {error}"
        raise InputError(msg) from error


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


class _Constraint(BaseModel):
    """Σ coefficient × weight is at least or at most a number."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    weights: dict[str, float] = Field(min_length=1)
    least: float | None = None
    most: float | None = None


class _Constraints(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    constraint: list[_Constraint] = Field(min_length=1)


def read_constraints(file: str | Path, kernels: Sequence[str]) -> tuple[Float, Float]:
    """A and b of linear constraints A d ≥ b from a TOML file, a table for each, as in `parameters.CONSTRAINTS_FORM`.

    A is (rows, kernels), its columns in the order of `kernels`; "most" is the row of the negatives.
    """
    import numpy as np

    from dmkl.files.documents import read_document

    path = Path(file).expanduser()
    content = read_document(path, "constraints")
    try:
        rows = _Constraints.model_validate(content).constraint
    except ValidationError as error:
        problem: Any = error.errors(include_url=False)[0]
        place = [str(part + 1) if isinstance(part, int) else part for part in problem["loc"]]
        _refuse(path, f"{' '.join(place)}: {problem['msg'].lower()}")
    A, b = np.zeros((len(rows), len(kernels))), np.zeros(len(rows))
    for number, row in enumerate(rows):
        if (row.least is None) == (row.most is None):
            _refuse(path, f"constraint {number + 1} has {'neither' if row.least is None else 'both'} of least and most")
        _check_names(row.weights, kernels, f"{path}, constraint {number + 1},")
        sign, bound = (1.0, row.least) if row.least is not None else (-1.0, row.most)
        b[number] = sign * (bound or 0.0)
        for name, coefficient in row.weights.items():
            A[number, kernels.index(name)] = sign * coefficient
    return A, b


def _refuse(path: Path, found: str) -> NoReturn:
    msg = (
        f"{path}, {found}; expected a table [[constraint]] for each, with weights = {{ KERNEL = COEFFICIENT, … }} and "
        "either least = NUMBER or most = NUMBER"
    )
    raise InputError(msg)


def _check_names(names: Iterable[str], kernels: Sequence[str], where: str) -> None:
    for name in names:
        if name not in kernels:
            some = ", ".join(kernels[:10]) + (" …" if len(kernels) > 10 else "")
            msg = f"{where} names kernel {name!r}, which this set does not have; its kernels are {some}"
            raise InputError(msg)
