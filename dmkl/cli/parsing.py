"""Values as people write them on a command line: norms, grids, folds."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dmkl.errors import InputError

if TYPE_CHECKING:
    from dmkl.arrays import Array
    from dmkl.kernelset import KernelSet

__all__ = [
    "known_names",
    "parse_counts",
    "parse_cv",
    "parse_grid",
    "parse_names",
    "parse_numbers",
    "parse_p",
    "parse_priors",
    "parse_scoring",
    "parse_steps",
    "parse_value",
    "read_covariates",
]


def parse_p(text: str) -> float:
    """A norm, 1 at least: 1, 1.5, 4/3, 1+2^-6, inf."""
    from dmkl.numerics.fisher import as_exponent

    plain = text.strip().lower().replace("**", "^").replace(" ", "")
    if plain in ("inf", "infinity", "∞"):
        return float("inf")
    number = r"(\d+(?:\.\d*)?)"
    found = re.fullmatch(rf"{number}(?:/{number}|\+{number}\^(-?\d+))?", plain)
    if found is None or (found[2] and float(found[2]) == 0):
        msg = f"--p takes a number from 1 to inf, such as 1, 1.5, 4/3, 1+2^-6 or inf, got {text!r}"
        raise InputError(msg)
    base = float(found[1])
    if found[2]:
        base /= float(found[2])
    elif found[3]:
        base += float(found[3]) ** int(found[4])
    return as_exponent(base)


def known_names(K: KernelSet) -> Array | None:
    """The names of the samples of a set; None where they are only numbers."""
    return K.samples if K.view.has_names else None


def parse_steps(text: str, samples: Iterable[str] | None = None) -> tuple[Any, ...]:
    """Names of steps with commas or + between them; "none" is no step.

    ``residualize=FILE`` takes out the covariates of a table that names its columns and samples;
    ``residualize=FILE:NAME`` one column of it, or of obs of an .h5ad. `samples` are the names of the set, by which the
    column of names is found.
    """
    from dmkl.numerics.steps import as_steps

    if "residualize=" not in text:
        return as_steps(text)
    parts = [part.strip() for part in re.split("[,+]", text)]
    return as_steps([read_covariates(part, samples) if part.startswith("residualize=") else part for part in parts])


def read_covariates(given: str, samples: Iterable[str] | None = None) -> Any:
    """The covariates in the file of an option or a step, as in ``residualize=FILE``."""
    from dmkl.inputs import read_covariates
    from dmkl.numerics.covariates import residualize

    try:
        table = read_covariates(Path(given.partition("=")[2]), samples)
    except InputError as error:
        msg = f"the covariates of {given} cannot be read: {error}"
        raise InputError(msg) from error
    return residualize(table)


def parse_names(text: str | None) -> list[str] | None:
    """Names with commas between them."""
    return None if text is None else [name.strip() for name in text.split(",")]


def parse_scoring(texts: Sequence[str] | None) -> Any:
    """Measures as `dmkl.search` takes them, from texts of names with commas between them; None where there are none."""
    names = [name for text in texts or () for name in parse_names(text) or ()]
    return None if not names else names[0] if len(names) == 1 else names


def parse_numbers(option: str, such_as: str, text: str) -> list[float]:
    """Numbers with commas between them; the error of what is none names the option and an example."""
    try:
        return [float(number) for number in text.split(",")]
    except ValueError as error:
        msg = f"--{option} takes {such_as}, got {text!r}"
        raise InputError(msg) from error


def _by_class(option: str, text: str) -> dict[str, float] | None:
    """Numbers by class, of class=number with commas between them; None where the text is something else."""
    parts = [part.rpartition("=") for part in text.split(",")]
    if not all(equals for _, equals, _ in parts):
        return None
    values = parse_numbers(option, "class=number for each class", ",".join(number for *_, number in parts))
    found = dict(zip([name.strip() for name, *_ in parts], values, strict=True))
    if len(found) < len(parts):
        msg = f"--{option} has two numbers for a class, got {text!r}; give one for each"
        raise InputError(msg)
    return found


def parse_counts(text: str) -> int | dict[str, int]:
    """A number of groups for all classes, or class=number with commas between them."""
    rule = "a whole number from 1 on, or class=number for each class"
    by_class = _by_class("groups", text)
    values = parse_numbers("groups", rule, text) if by_class is None else list(by_class.values())
    if (by_class is None and len(values) > 1) or any(value < 1 or value != int(value) for value in values):
        msg = f"--groups takes {rule}, got {text!r}"
        raise InputError(msg)
    return int(values[0]) if by_class is None else {label: int(value) for label, value in by_class.items()}


def parse_priors(text: str) -> Any:
    """Prior probabilities as `dmkl.MKFDA` takes them: a word, numbers, or class=number with commas between them."""
    by_class = _by_class("priors", text)
    if by_class is not None:
        return by_class
    if text.strip() in ("empirical", "uniform"):
        return text.strip()
    return parse_numbers("priors", "empirical, uniform, numbers such as 0.2,0.8, or class=number for each class", text)


def parse_value(text: str) -> Any:
    """None, a truth value, a number where it is one, and text otherwise."""
    word = text.strip()
    if word.lower() in ("none", "true", "false"):
        return {"none": None, "true": True, "false": False}[word.lower()]
    for number in (int, float):
        try:
            return number(word)
        except ValueError:
            continue
    return word


def parse_grid(texts: Sequence[str], samples: Iterable[str] | None = None) -> dict[str, list[Any]]:
    """Values by parameter from texts such as "p=1,4/3,inf", "lam=1e-3,0.1", "steps=center+trace,none".

    Norms are read by `parse_p`, λ and C as numbers, steps with + between them, all other parameters by `parse_value`.
    """
    parsers: dict[str, Callable[[str], Any]] = {
        "p": parse_p,
        "lam": lambda text: parse_numbers("lam", "positive numbers such as 1e-3,0.1", text)[0],
        "C": lambda text: parse_numbers("C", "positive numbers such as 0.25,4", text)[0],
        "steps": partial(parse_steps, samples=samples),
    }
    found: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, values = (part.strip() for part in text.partition("="))
        if not (name and equals and values):
            msg = f"--grid takes a parameter and its values, such as steps=center+trace,cosine+center, got {text!r}"
            raise InputError(msg)
        if name in found:
            msg = f"the values of {name} are given twice; give all of them at once, parted by commas"
            raise InputError(msg)
        found[name] = [parsers.get(name, parse_value)(value) for value in values.split(",")]
    return found


# --- folds ---------------------------------------------------------------------------------------------------------


def parse_cv(text: str, option: str = "--cv") -> Any:
    """Folds: a number, "splits", or a splitter of scikit-learn with its arguments, as in Python.

    The text is parsed, never evaluated: a name of ``sklearn.model_selection`` with literal arguments. A splitter that
    shuffles without a random_state gets 0, so that the same text always means the same folds.
    """
    word = text.strip()
    if word == "splits":
        return word
    try:
        return int(word)
    except ValueError:
        pass
    import sklearn.model_selection

    classes = inspect.getmembers(sklearn.model_selection, inspect.isclass)
    splitters = {name: found for name, found in classes if hasattr(found, "split") and not name.startswith("Base")}
    name, positional, named = _call(word)
    if name not in splitters:
        msg = (
            f"{option} takes a number of folds, splits, or a splitter of scikit-learn with plain values as arguments, "
            f'such as "StratifiedKFold(5, shuffle=True)", got {text!r}; the splitters are {", ".join(splitters)}'
        )
        raise InputError(msg)
    try:
        splitter: Any = splitters[name](*positional, **named)
    except (ValueError, TypeError) as error:
        msg = f"{option} {text}: {error}"
        raise InputError(msg) from error
    if getattr(splitter, "random_state", 0) is None and getattr(splitter, "shuffle", True):
        splitter.random_state = 0
    return splitter


def _call(text: str) -> tuple[str, list[Any], dict[str, Any]]:
    """Name, positional and named arguments of a call with literals alone, as text; no name where it is none."""
    try:
        found = ast.parse(text, mode="eval").body
        call = found if isinstance(found, ast.Call) else ast.Call(found, [], [])
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        positional = [ast.literal_eval(value) for value in call.args]
        named = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return "", [], {}
    return name, positional, named
