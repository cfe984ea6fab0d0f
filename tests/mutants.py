"""Which changes of a line would no test notice? Operators and numbers are changed at random, and tests are run.

    python tests/mutants.py --number 60 --seed 3          # make mutants
    python tests/mutants.py dmkl/numerics/fisher.py --number 20

Each mutant is a copy of the package with one changed expression. Its tests run until one fails. The
table counts mutants and survivors by module; each survivor is printed with its line before and after. Some change
nothing that matters, such as a tolerance or a block size; the others need a test.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = {
    "dmkl/numerics": ("numerics", "analysis", "health", "learners"),
    "dmkl/solvers": ("solvers", "learners"),
    "dmkl/learners": ("learners", "searching"),
}
"""The folders of tests that should notice a change, in the order in which they run."""
_PAIRS = ("Add Sub", "Mult Div", "Lt LtE", "Gt GtE", "Eq NotEq", "And Or")
OTHER = {
    getattr(ast, one): getattr(ast, other) for pair in map(str.split, _PAIRS) for one, other in (pair, reversed(pair))
}
"""The operator that replaces another one."""


def mutants(text: str) -> Iterator[tuple[int, str]]:
    """The line of each expression that can be changed, and the text of the module with this change."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in OTHER:
            before, node.op = node.op, OTHER[type(node.op)]()
            yield node.lineno, ast.unparse(tree)
            node.op = before
        elif isinstance(node, ast.Compare) and type(node.ops[0]) in OTHER:
            operators, node.ops = node.ops, [OTHER[type(node.ops[0])](), *node.ops[1:]]
            yield node.lineno, ast.unparse(tree)
            node.ops = operators
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
            value, node.value = node.value, node.value * 2 or 1
            yield node.lineno, ast.unparse(tree)
            node.value = value


def survives(module: Path, changed: str, folder: Path, minutes: float) -> bool:
    """Whether the tests of a module pass with a changed text of the module."""
    (folder / module).write_text(changed)
    names = next(names for of, names in TESTS.items() if module.is_relative_to(of))
    tests = [str(ROOT / "tests" / name) for name in names]
    try:
        done = run_python(
            folder, "-m", "pytest", "-n", "0", "-x", "-q", "-p", "no:cacheprovider", *tests, minutes=minutes
        )
    except subprocess.TimeoutExpired:  # a loop that does not end is noticed
        return False
    finally:
        shutil.copy(ROOT / module, folder / module)
    return done.returncode == 0


def run_python(folder: Path, *arguments: str, minutes: float = 1.0) -> subprocess.CompletedProcess[str]:
    """Run Python with the package in `folder`; -P keeps that of the working directory away."""
    return subprocess.run(
        [sys.executable, "-P", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(folder), "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=60 * minutes,
        check=False,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", type=Path, help=f"files; all of {', '.join(TESTS)} by default")
    parser.add_argument("--number", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=15.0, help="after which a mutant counts as noticed")
    options = parser.parse_args()
    every = [path.relative_to(ROOT) for folder in TESTS for path in sorted((ROOT / folder).rglob("*.py"))]
    modules = [path.resolve().relative_to(ROOT) for path in options.modules] or every
    places = [(path, k) for path in modules for k in range(sum(1 for _ in mutants((ROOT / path).read_text())))]
    chosen = random.Random(options.seed).sample(places, min(options.number, len(places)))
    tried, survivors = Counter[Path](), Counter[Path]()
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "dmkl", Path(folder) / "dmkl")
        imported = run_python(Path(folder), "-c", "import dmkl; print(dmkl.__file__)").stdout
        if not imported.startswith(folder):
            sys.exit(f"the tests import {imported.strip()} in place of the copy in {folder}")
        for path, k in chosen:
            line, changed = list(mutants((ROOT / path).read_text()))[k]
            tried[path] += 1
            if survives(path, changed, Path(folder), options.minutes):
                survivors[path] += 1
                before = ast.unparse(ast.parse((ROOT / path).read_text())).splitlines()  # as `changed` is written
                pairs = [(old, new) for old, new in zip(before, changed.splitlines(), strict=True) if old != new]
                print(f"{path}:{line}", *(f"  - {o.strip()}\n  + {n.strip()}" for o, n in pairs), sep="\n", flush=True)
    print(f"\n{'module':44} mutants survivors")
    for path in sorted(tried):
        print(f"{path!s:44} {tried[path]:7} {survivors[path]:9}")
    print(f"{'all':44} {tried.total():7} {survivors.total():9}")


if __name__ == "__main__":
    main()
