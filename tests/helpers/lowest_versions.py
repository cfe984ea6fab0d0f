"""The lowest versions that pyproject.toml allows for dmkl and its tests, as requirements of pip.

Packages of object stores are omitted: they pin versions of one another, which makes pip very slow.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path


def lowest() -> list[str]:
    """Return one requirement for each package, such as ``numpy==2.0``."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    return [re.sub(r"(\[.*\])?>=", "==", line) for line in needed if not line.startswith(("moto", "s3fs"))]


if __name__ == "__main__":
    print(*lowest(), sep="\n")
