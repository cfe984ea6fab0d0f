"""Work that ends on the way, for tests of how it goes on."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from dmkl.solvers.workspace import Workspace


class _CutOff(Exception):
    """Where the work ends."""


@contextmanager
def cut_off(n_calls, *, before=False, method="commit"):
    """End the work after so many passes are committed (or outcomes kept) and one more: before or after this is."""
    original, left, numbers = getattr(Workspace, method), iter(range(n_calls)), set()

    def call_or_end(self, *arguments):
        number = arguments[0].get("solver", {}).get("n_passes") if method == "commit" else arguments[0]
        ends = number not in numbers and next(left, None) is None
        if not (ends and before):
            original(self, *arguments)
        if ends:
            raise _CutOff
        numbers.add(number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Workspace, method, call_or_end)
        with pytest.raises(_CutOff):
            yield
