"""README.md: every block of Python in it runs as it is copied."""

import re
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=[f"block {k}" for k in range(len(BLOCKS))])
def test_a_block_runs_in_an_empty_folder(block, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    found = {}
    exec(compile(block, "README.md", "exec"), found)
    printed = capsys.readouterr().out
    assert printed.count("\n") >= block.count("print(") > 0


def test_paths_named_in_commands_are_there():
    root = Path(__file__).parents[1]
    paths = re.findall(r"(?:python(?: -m pytest)?) ((?:pipelines|tests|storage)[\w/.]*)", README)
    assert len(paths) > 5
    assert [path for path in paths if not (root / path).exists()] == []
