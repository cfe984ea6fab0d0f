"""The lowest versions that pyproject.toml allows, as requirements of pip: those of dmkl and of its tests.

Those of object stores are left out: they ask for exact versions of one another, which pip takes very long to find.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

_APART = ("moto", "s3fs")


def lowest() -> list[str]:
    """A line for each package, such as ``numpy==2.0``."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    return [re.sub(r"(\[.*\])?>=", "==", line) for line in needed if not line.startswith(_APART)]


if __name__ == "__main__":
    print(*lowest(), sep="\n")
