"""The search package names no learner and no solver, so that new ones need no change there."""

from __future__ import annotations

import re
from pathlib import Path

import dmkl.searching
from dmkl.estimators.saving import models
from dmkl.solvers.fisher.registry import SOLVERS

SEARCHING = Path(dmkl.searching.__file__).parent


def test_search_names_no_learner_and_no_solver():
    names = [rf"\b{name}\b" for name, kind in models().items() if kind.__module__.startswith("dmkl.")]
    names += [rf"[\"']{name}[\"']" for name in SOLVERS]
    assert len(names) >= 13
    files = sorted(SEARCHING.rglob("*.py"))
    assert len(files) > 8
    result = [
        f"{file.name}:{number}: {line.strip()}"
        for file in files
        for number, line in enumerate(file.read_text().splitlines(), start=1)
        if not line.lstrip().startswith(">>>") and any(re.search(name, line) for name in names)
    ]
    assert not result
