"""Learners as their classes declare them: documentation, parameters, defaults.

Help and the reading of a command line need no more than that, and importing the classes takes seconds (scikit-learn,
SciPy, xarray). So learners of dmkl are read from their source files without running these; a class that was made
elsewhere in this process is looked at as it is.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, get_type_hints

import dmkl

__all__ = ["Declaration", "Declared", "declarations", "declared_by", "declared_in_source"]

_ROOT = "KernelLearner"


@dataclass(frozen=True)
class Declared:
    """A parameter of a constructor: its type, as Python evaluates the annotation, and its default."""

    annotation: Any
    default: Any


@dataclass(frozen=True, eq=False)
class Declaration:
    """What a learner says of itself.

    Parameters
    ----------
    name
        Of the class.
    documentation
        Docstrings of the class and of those that it inherits from, nearest first.
    parameters
        Of its constructor, in their order.
    """

    name: str
    documentation: tuple[str, ...]
    parameters: Mapping[str, Declared]

    @property
    def title(self) -> str:
        """The first line of the documentation."""
        return self.documentation[0].partition("\n")[0].rstrip(".")

    def make(self, **values: Any) -> Any:
        """An instance of the class, which is imported for it."""
        made: Any = _made().get(self.name) or getattr(dmkl, self.name)
        return made(**values)


def _made() -> Mapping[str, type]:
    """The classes of learners that this process has, by name."""
    saving = sys.modules.get("dmkl.estimators.saving")  # where they enter themselves
    return {} if saving is None else saving.MODELS


def declarations() -> dict[str, Declaration]:
    """All learners by the names of their classes: those of dmkl, and what else was made in this process."""
    others = {name: declared_by(kind) for name, kind in _made().items() if not kind.__module__.startswith("dmkl.")}
    return {**declared_in_source(), **others}


@cache
def declared_by(kind: type) -> Declaration:
    """What a class says."""
    kinds = [each for each in kind.__mro__ if each is not object]
    hints = get_type_hints(kind.__init__)  # type: ignore[misc]
    parameters = {
        name: Declared(hints.get(name, Any), item.default)
        for name, item in inspect.signature(kind).parameters.items()
        if item.kind not in (item.VAR_POSITIONAL, item.VAR_KEYWORD)
    }
    return Declaration(kind.__name__, tuple(inspect.cleandoc(each.__doc__ or "") for each in kinds), parameters)


@cache
def declared_in_source() -> dict[str, Declaration]:
    """What the learners that ``dmkl/__init__.pyi`` names say, from their source files."""
    offered = ast.parse((files("dmkl") / "__init__.pyi").read_text(encoding="utf-8")).body
    learners = {}
    for node in offered:
        if not (isinstance(node, ast.ImportFrom) and (node.module or "").startswith("estimators.")):
            continue
        for name in (item.name for item in node.names):
            kinds = list(_line(f"dmkl.{node.module}", name))
            if any(kind.name == _ROOT for kind, _ in kinds):
                documentation = tuple(ast.get_docstring(kind) or "" for kind, _ in kinds)
                learners[name] = Declaration(name, documentation, _constructor(kinds))
    return learners


def _line(module: str, name: str) -> Iterator[tuple[ast.ClassDef, str]]:
    """A class and those of dmkl that it inherits from, depth first, each with its module."""
    node = _names(module).get(name)
    if isinstance(node, tuple) and node[0].startswith("dmkl."):
        yield from _line(node[0], str(node[1]))
    elif isinstance(node, ast.ClassDef):
        yield node, module
        for base in node.bases:
            yield from _line(module, ast.unparse(base))


def _constructor(kinds: list[tuple[ast.ClassDef, str]]) -> dict[str, Declared]:
    """The parameters of the first ``__init__`` there is."""
    for kind, module in kinds:
        for node in kind.body:
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                plain, named = [*node.args.posonlyargs, *node.args.args][1:], node.args.kwonlyargs
                missing: list[ast.expr | None] = [None] * (len(plain) - len(node.args.defaults))
                defaults = [*missing, *node.args.defaults, *node.args.kw_defaults]
                return {
                    item.arg: Declared(
                        Any if item.annotation is None else _value(item.annotation, module),
                        inspect.Parameter.empty if default is None else _value(default, module),
                    )
                    for item, default in zip([*plain, *named], defaults, strict=True)
                }
    return {}


def _value(expression: ast.expr, module: str) -> Any:
    return eval(compile(ast.Expression(expression), module, "eval"), {}, _Meanings(module))


class _Meanings(dict[str, Any]):
    """What names mean in a module, found when they are asked for.

    A name that a module of dmkl assigns, as ``Loss = Literal[...]``, has the value of that expression; what comes from
    elsewhere is imported.
    """

    def __init__(self, module: str) -> None:
        super().__init__()
        self._module = module

    def __missing__(self, name: str) -> Any:
        node = _names(self._module).get(name)
        if isinstance(node, ast.expr):
            return _value(node, self._module)
        if isinstance(node, tuple):
            return _imported(*node)
        raise KeyError(name)  # of Python itself


class _ArrayTypes:
    """Stands for `numpy.typing`: on a command line an array is no type of its own, and importing NumPy takes long."""

    def __getattr__(self, name: str) -> Any:
        return Any if name == "ArrayLike" else getattr(importlib.import_module("numpy.typing"), name)


def _imported(module: str, name: str | None) -> Any:
    if name is None:
        return _ArrayTypes() if module == "numpy.typing" else importlib.import_module(module)
    return _Meanings(module)[name] if module.startswith("dmkl.") else getattr(importlib.import_module(module), name)


@cache
def _names(module: str) -> dict[str, ast.ClassDef | ast.expr | tuple[str, str | None]]:
    """What the names of a module of dmkl stand for: a class, an expression, or a module and a name in it."""
    package, _, name = module.rpartition(".")
    found: dict[str, ast.ClassDef | ast.expr | tuple[str, str | None]] = {}
    for node in ast.parse((files(package) / f"{name}.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign):
            found |= {target.id: node.value for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {item.asname or item.name: (node.module, item.name) for item in node.names}
        elif isinstance(node, ast.Import):
            found |= {item.asname: (item.name, None) for item in node.names if item.asname}
    return found
