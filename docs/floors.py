"""The floors of ARCHITECTURE.md, from the layers in pyproject.toml and the docstrings: `python docs/floors.py`."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def floors() -> str:
    """A line for each folder and module, from the top; those of one floor do not import each other."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    lines = []
    for layer in settings["tool"]["importlinter"]["contracts"][0]["layers"]:
        names = [name.removeprefix("dmkl.") for name in layer.split(" | ")]
        marks = [" "] if len(names) == 1 else ["┌", *"│" * (len(names) - 2), "└"]
        for mark, name in zip(marks, names, strict=True):
            folder = ROOT / "dmkl" / name
            module = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
            purpose = (ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or "").split("\n")[0]
            lines.append(f"    {mark} {name + '/' * folder.is_dir():12} {purpose}\n")
    return "".join(lines)


def main() -> None:
    """Replace the floors in ARCHITECTURE.md."""
    page = ROOT / "ARCHITECTURE.md"
    text = page.read_text(encoding="utf-8")
    page.write_text(re.sub(r"(?:^    .*\n)+", lambda _: floors(), text, count=1, flags=re.MULTILINE), encoding="utf-8")


if __name__ == "__main__":
    main()
