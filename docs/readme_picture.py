"""The picture of README.md, made by the lines that stand above it: `python docs/readme_picture.py`."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Run the first block of Python in a folder of its own, and keep what it draws."""
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    block = re.search(r"^```python\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)[1]
    shown = re.search(r"^!\[.*\]\((.*)\)$", page, flags=re.MULTILINE)[1]
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        exec(compile(block, "README.md", "exec"), {})
        shutil.copy(Path(shown).name, ROOT / shown)


if __name__ == "__main__":
    main()
