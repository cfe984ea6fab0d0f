"""Functions as tasks: results in their order, and what comes first begins first."""

from __future__ import annotations

from functools import partial

import dask
import pytest

from dmkl.passes.execute import run_tasks


def begin(number, begun, more=()):
    begun.append(number)
    return number, len(more)


@pytest.mark.parametrize("scheduler", ["synchronous", "threads"])
@pytest.mark.parametrize("own", [None, [[0] * k for k in range(25)]])
def test_the_first_task_begins_first(scheduler, own):
    """On one slot; more than ten tasks, of which names are not in the order of numbers as they are."""
    begun = []
    with dask.config.set(scheduler=scheduler, num_workers=1):
        results = run_tasks("some", [partial(begin, k, begun) for k in range(25)], own=own)
    assert results == [(k, 0 if own is None else k) for k in range(25)]
    assert begun == list(range(25))
