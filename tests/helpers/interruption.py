"""Interruption of work, for tests of its resumption."""

from contextlib import contextmanager
from unittest.mock import patch

import pytest

from dmkl.solvers.workspace import Workspace


@contextmanager
def cut_off(n_calls, *, before=False, method="commit"):
    """Interrupt the work after `n_calls` committed passes (or kept outcomes), before or after the next commit."""
    original, left, numbers = getattr(Workspace, method), iter(range(n_calls)), set()

    def call_or_end(self, *arguments):
        number = arguments[0].get("solver", {}).get("n_passes") if method == "commit" else arguments[0]
        ends = number not in numbers and next(left, None) is None
        if not (ends and before):
            original(self, *arguments)
        if ends:
            raise KeyboardInterrupt
        numbers.add(number)

    with patch.object(Workspace, method, call_or_end), pytest.raises(KeyboardInterrupt):
        yield
