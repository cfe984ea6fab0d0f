"""Values of options: texts such as norms, grids and folds, and files of prices, groups and constraints of kernels."""

from __future__ import annotations

import csv
import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dmkl.errors import InputError, first_names, refuse

if TYPE_CHECKING:
    from dmkl.arrays import Array, Float
    from dmkl.kernelset import KernelSet


def parse_p(text: str) -> float:
    """A norm of at least 1: 1, 1.5, 4/3, 1+2^-6, inf."""
    from dmkl.numerics.fisher import as_exponent

    plain = text.strip().lower().replace("**", "^").replace(" ", "")
    if plain in ("inf", "infinity", "∞"):
        return float("inf")
    number = r"(\d+(?:\.\d*)?)"
    match = re.fullmatch(rf"{number}(?:/{number}|\+{number}\^(-?\d+))?", plain)
    if match is None or (match[2] and float(match[2]) == 0):
        refuse(f"--p takes a number from 1 to inf, such as 1, 1.5, 4/3, 1+2^-6 or inf, got {text!r}")
    base = float(match[1])
    if match[2]:
        base /= float(match[2])
    elif match[3]:
        base += float(match[3]) ** int(match[4])
    return as_exponent(base)


def sample_names(K: KernelSet) -> Array | None:
    """The names of the samples of a set; None if the samples have no names."""
    return K.samples if K.view.has_names else None


def parse_steps(text: str, samples: Iterable[str] | None = None) -> tuple[Any, ...]:
    """Names of steps, separated by commas or +; "none" is no step.

    ``residualize=FILE`` removes the covariates of a table with names of columns and samples, ``FILE:NAME+NAME`` some of
    its columns, or of obs of an .h5ad, and ``FILE&FILE`` those of several files. The names of `samples` show the column
    of names.
    """
    from dmkl.numerics.steps import STEPS, as_steps

    if "residualize=" not in text:
        return as_steps(text)
    parts: list[str] = []
    for part in map(str.strip, re.split("[,+]", text)):
        if parts and re.match("residualize=.*:", parts[-1]) and part not in STEPS and "=" not in part:
            parts[-1] += f"+{part}"  # one more column of the same file
        else:
            parts.append(part)
    return as_steps([read_covariates(part, samples) if part.startswith("residualize=") else part for part in parts])


def read_covariates(given: str, samples: Iterable[str] | None = None) -> Any:
    """The step that removes the covariates in the file of an option or a step, such as ``residualize=FILE``."""
    import pandas as pd

    from dmkl.inputs import read_covariates
    from dmkl.numerics.covariates import residualize

    try:
        parts = [part.rpartition(":") for part in given.partition("=")[2].split("&")]
        files = [
            f"{file}{colon}{name}" for file, colon, names in parts for name in (names.split("+") if colon else [names])
        ]
        tables = [read_covariates(Path(file), samples) for file in files]
        table = tables[0] if len(tables) == 1 else pd.concat(tables, axis=1, join="inner")
    except InputError as error:
        refuse(f"the covariates of {given} cannot be read: {error}", error)
    return residualize(table)


def read_offset(given: str, samples: Iterable[str] | None = None) -> Any:
    """The numbers of samples in one column of a file: FILE, FILE:NAME, or their logarithms by log(FILE:NAME)."""
    import numpy as np

    of_exposure = re.fullmatch(r"log\((.*)\)", given.strip())
    table = read_covariates(f"--offset={of_exposure[1] if of_exposure else given}", samples)
    if len(table.columns) > 1 or (of_exposure and (table.design <= 0).any()):
        rule = "one column of numbers" + (" above 0" if of_exposure else "")
        least = f"{', '.join(table.columns)} from {table.design.min():g}"
        refuse(f"--offset={given} takes {rule}, got {least}; name it: FILE:NAME")
    logarithms = {"columns": (f"log({table.columns[0]})",), "design": np.log(table.design)} if of_exposure else {}
    return replace(table, **logarithms)


def read_strata(given: str, samples: Iterable[str] | None = None) -> dict[str, Any]:
    """The stratum of each sample in one column of a file: FILE, or FILE:NAME."""
    from dmkl.inputs import read_covariates

    table = read_covariates(Path(given), samples)
    if len(table.columns) > 1:
        refuse(f"--strata={given} takes one column, got {', '.join(table.columns)}; name it: FILE:NAME")
    return dict(table.iloc[:, 0])


def parse_names(text: str | None) -> list[str] | None:
    """Names, separated by commas."""
    return None if text is None else [name.strip() for name in text.split(",")]


def parse_scoring(texts: Sequence[str] | None) -> Any:
    """The argument `scoring` of `dmkl.search`, from texts of names that are separated by commas."""
    names = [name for text in texts or () for name in parse_names(text) or ()]
    return None if not names else names[0] if len(names) == 1 else names


def parse_numbers(option: str, such_as: str, text: str) -> list[float]:
    """Numbers, separated by commas; the error message names the option and an example."""
    try:
        return [float(number) for number in text.split(",")]
    except ValueError as error:
        refuse(f"--{option} takes {such_as}, got {text!r}", error)


def _by_class(option: str, text: str) -> dict[str, float] | None:
    """Numbers by class, from class=number, separated by commas; None if the text has another form."""
    parts = [part.rpartition("=") for part in text.split(",")]
    if not all(equals for _, equals, _ in parts):
        return None
    values = parse_numbers(option, "class=number for each class", ",".join(number for *_, number in parts))
    by_class = dict(zip([name.strip() for name, *_ in parts], values, strict=True))
    if len(by_class) < len(parts):
        refuse(f"--{option} has two numbers for a class, got {text!r}; give one for each")
    return by_class


def parse_counts(text: str) -> int | str | dict[str, int]:
    """A number of groups for all classes, "samples", or class=number, separated by commas."""
    if text.strip() == "samples":
        return "samples"
    rule = "a whole number from 1 on, or class=number for each class"
    by_class = _by_class("groups", text)
    values = parse_numbers("groups", rule, text) if by_class is None else list(by_class.values())
    if (by_class is None and len(values) > 1) or any(value < 1 or value != int(value) for value in values):
        refuse(f"--groups takes {rule}, got {text!r}")
    return int(values[0]) if by_class is None else {label: int(value) for label, value in by_class.items()}


def parse_priors(text: str) -> Any:
    """The argument `priors` of `dmkl.MKFDA`: a word, numbers, or class=number, separated by commas."""
    by_class = _by_class("priors", text)
    if by_class is not None:
        return by_class
    if text.strip() in ("empirical", "uniform"):
        return text.strip()
    return parse_numbers("priors", "empirical, uniform, numbers such as 0.2,0.8, or class=number for each class", text)


def parse_value(text: str) -> Any:
    """None, a truth value, a number, or else the text."""
    word = text.strip()
    if word.lower() in ("none", "true", "false"):
        return {"none": None, "true": True, "false": False}[word.lower()]
    for number in (int, float):
        with suppress(ValueError):
            return number(word)
    return word


def parse_grid(texts: Sequence[str], samples: Iterable[str] | None = None) -> dict[str, list[Any]]:
    """Values by parameter, from texts such as "p=1,4/3,inf", "lam=1e-3,0.1", "steps=center+trace,none"."""
    parsers: dict[str, Callable[[str], Any]] = {
        "p": parse_p,
        "lam": lambda text: parse_numbers("lam", "positive numbers such as 1e-3,0.1", text)[0],
        "C": lambda text: parse_numbers("C", "positive numbers such as 0.25,4", text)[0],
        "steps": partial(parse_steps, samples=samples),
    }
    grid: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, values = (part.strip() for part in text.partition("="))
        if not (name and equals and values):
            refuse(f"--grid takes a parameter and its values, such as steps=center+trace,cosine+center, got {text!r}")
        if name in grid:
            refuse(f"the values of {name} are given twice; give all of them at once, separated by commas")
        grid[name] = [parsers.get(name, parse_value)(value) for value in values.split(",")]
    return grid


# --- folds ---------------------------------------------------------------------------------------------------------


def parse_cv(text: str | None, option: str = "--cv") -> Any:
    """Folds: a number, "splits", or a splitter of scikit-learn with its arguments, as in Python; None for None.

    The text is parsed and never evaluated: a name of ``sklearn.model_selection`` with literal arguments. A splitter
    that shuffles without a random_state gets 0, so that the same text always gives the same folds.
    """
    word = text and text.strip()
    if word is None or word == "splits":
        return word
    with suppress(ValueError):
        return int(word)
    import sklearn.model_selection

    from dmkl.arrays import parse_call

    classes = inspect.getmembers(sklearn.model_selection, inspect.isclass)
    splitters = {name: kind for name, kind in classes if hasattr(kind, "split") and not name.startswith("Base")}
    name, positional, named = parse_call(word)
    if name not in splitters:
        refuse(
            f"{option} takes a number of folds, splits, or a splitter of scikit-learn with plain values as arguments, "
            f'such as "StratifiedKFold(5, shuffle=True)", got {text!r}; the splitters are {", ".join(splitters)}'
        )
    try:
        splitter: Any = splitters[name](*positional, **named)
    except (ValueError, TypeError) as error:
        refuse(f"{option} {text}: {error}", error)
    if getattr(splitter, "random_state", 0) is None and getattr(splitter, "shuffle", True):
        splitter.random_state = 0
    return splitter


# --- prior knowledge of weights: files that name kernels -----------------------------------------------------------


def read_prices(text: str, kernels: Sequence[str]) -> float | list[float]:
    """A number, the price of all kernels, or the price of each, in the order of `kernels`, from a CSV file."""
    from dmkl.arrays import is_numeral

    if is_numeral(text):
        return float(text)
    return _numbers_of_kernels(text, kernels, "--sigma takes a number or a file of kernel,price", "price")


def read_weights(text: str, kernels: Sequence[str]) -> list[float]:
    """The weight of each kernel, in the order of `kernels`, from a CSV file."""
    return _numbers_of_kernels(text, kernels, "--weights takes a file of kernel,weight", "weight")


def _numbers_of_kernels(text: str, kernels: Sequence[str], rule: str, what: str) -> list[float]:
    from dmkl.arrays import is_numeral

    path, lines = _read_pairs(text, rule, what, "rbf,0.5", is_numeral)
    pairs = [(name, float(value)) for name, value in lines if is_numeral(value)]
    values = dict(pairs)
    _check_names(values, kernels, str(path))
    twice = [name for name, n in Counter(name for name, _ in pairs).items() if n > 1]
    if wrong := twice or [name for name in kernels if name not in values]:
        number_of = f"two {what}s" if twice else f"no {what}"
        refuse(f"{path} has {number_of} for kernel {wrong[0]!r}, expected one for each kernel of the set")
    return [values[name] for name in kernels]


def read_kernel_groups(text: str, kernels: Sequence[str]) -> dict[str, Any]:
    """Names of kernels by group, from group=pattern,… or from a CSV file with a kernel and its group on each line."""
    if "=" in text and not Path(text).expanduser().exists():
        pairs = [part.partition("=") for part in text.split(",")]
        if all(group and pattern for group, _, pattern in pairs):
            return {group: pattern for group, _, pattern in pairs}
    rule = "--kernel-groups takes group=pattern,… or a file of kernel,group"
    _, lines = _read_pairs(text, rule, "group", "rbf,image", lambda _: True)
    groups: dict[str, list[str]] = {}
    for number, (kernel, group) in enumerate(lines):
        if number or kernel in kernels:  # the first line may be a header
            groups.setdefault(group, []).append(kernel)
    return groups


def _read_pairs(
    text: str, rule: str, what: str, example: str, is_value: Callable[[str], bool]
) -> tuple[Path, list[list[str]]]:
    """A CSV file and its lines, each the name of a kernel and a value; the first may be a header.

    `rule`, `what` and `example` say in messages what the option takes, what a value is, and how a line looks.
    """
    from dmkl.files.documents import check_size
    from dmkl.files.regular import check_regular

    path = Path(text).expanduser()
    if not path.exists():
        refuse(f"{rule}, got {text!r}, which is {'neither' if ' or ' in rule else 'no file'}")
    try:
        check_size(f"the file of {what}s {path}", check_regular(path))
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = [[cell.strip() for cell in line] for line in csv.reader(file) if line]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        refuse(f"the file of {what}s {path} cannot be read: {error}", error)
    for number, line in enumerate(lines):
        if len(line) != 2 or (number and not is_value(line[1])):
            rule = f"expected the name of a kernel and its {what} a line, such as {example}"
            refuse(f"{path}: {rule}, got {','.join(line)!r}")
    return path, lines


CONSTRAINTS_FORM = """\
File of constraints, a TOML table for each: Σ coefficient × weight is at least, or at most, a number.

    [[constraint]]
    weights = { rbf = 1, chi2 = -2 }  # rbf at least twice chi2
    least = 0

    [[constraint]]
    weights = { noise = 1 }
    most = 0.1"""


def read_constraints(file: str | Path, kernels: Sequence[str]) -> tuple[Float, Float]:
    """A and b of linear constraints A d ≥ b, from a TOML file as `CONSTRAINTS_FORM` shows it.

    A is (rows, kernels), its columns in the order of `kernels`; a row of "most" has the opposite signs.
    """
    import numpy as np

    from dmkl.files.documents import read_document

    path = Path(file).expanduser()
    content = read_document(path, "constraints")
    rows = content.get("constraint") if isinstance(content, dict) and set(content) == {"constraint"} else None
    problem = "constraint: not a list of tables"
    A, b = [], []
    for number, row in enumerate(rows if isinstance(rows, list) else [], 1):
        if problem := _problem_of(row):
            problem = f"constraint {number}{problem}"
            break
        _check_names(row["weights"], kernels, f"{path}, constraint {number},")
        sign, bound = (1.0, row["least"]) if "least" in row else (-1.0, row["most"])
        A.append([sign * row["weights"].get(name, 0.0) for name in kernels])
        b.append(sign * bound)
    if problem:
        refuse(
            f"{path}, {problem}; expected a table [[constraint]] for each, with weights = {{ KERNEL = COEFFICIENT, … }}"
            " and either least = NUMBER or most = NUMBER"
        )
    return np.array(A, dtype=float), np.array(b, dtype=float)


def _problem_of(row: Any) -> str:
    """A rule that a table of constraints breaks; empty if none."""
    if not isinstance(row, Mapping) or not row.keys() <= {"weights", "least", "most"}:
        return f" has {', '.join(map(str, row))}" if isinstance(row, Mapping) else f" is {row!r}"
    if not isinstance(row.get("weights"), Mapping) or not row["weights"]:
        return " has no weights"
    numbers = {**row["weights"], **{key: row[key] for key in ("least", "most") if key in row}}
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e300:
            return f" {name}: {value!r} is no finite number"
    if ("least" in row) == ("most" in row):
        return f" has {'both' if 'least' in row else 'neither'} of least and most"
    return ""


def _check_names(names: Iterable[str], kernels: Sequence[str], source: str) -> None:
    for name in names:
        if name not in kernels:
            available = first_names(kernels, 10)
            refuse(f"{source} names kernel {name!r}, which this set does not have; its kernels are {available}")
