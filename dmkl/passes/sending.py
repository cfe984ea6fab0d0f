"""Making a value available to many tasks: a node of their graph, or sent to the workers of a cluster once."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any

from dask.delayed import delayed
from dask.sizeof import sizeof

from dmkl.passes.execute import active_client, machine, workers_of

if TYPE_CHECKING:
    from distributed import Client, Future

__all__ = ["send", "send_all"]

_SECONDS, _BYTES_PER_SECOND = 30.0, 1e6
"""How long sending may take: so much, and a second for so many bytes to each worker."""
_BRANCHING = 4
"""How many workers each one that has the values gives them to, in each round."""


def send(value: Any, name: str) -> Any:
    """Make a value available to many tasks: sent to a cluster's workers once, a node of the graph otherwise."""
    return send_all({name: value})[0]


def send_all(values: Mapping[str, Any], *, broadcast: bool = True) -> list[Any]:
    """Make several such values available, by name, with one message to the cluster for all of them.

    Without `broadcast` each value goes to one worker: for values that one task takes, too large for the graph itself.
    """
    client = active_client()
    if client is None:
        return [delayed(value, name=name, traverse=False) for name, value in values.items()]
    given = list(values.values())
    seconds = _SECONDS + sizeof(given) / _BYTES_PER_SECOND
    for pause_seconds in (0.2, 1.0, 5.0, None):
        allowed = machine().workers  # waits for one, and says so if none comes
        try:
            # Dask's own timeout is for finding workers: a worker that never answers is waited for without end.
            sent = list(client.sync(client.scatter, given, workers=allowed, hash=False, callback_timeout=seconds))
            if broadcast:
                _spread(client, sent, list(allowed or workers_of(client)), sizeof(given))
            return sent
        # A worker has died, and the scheduler has yet to notice, has just noticed, or knows no other that has the
        # values; an error of a connection that ends is an OSError, and so is a TimeoutError.
        except (OSError, KeyError, CancelledError):
            if pause_seconds is None or client.status != "running":
                raise
            time.sleep(pause_seconds)
    raise AssertionError


def _spread(client: Client, sent: Sequence[Future[Any]], addresses: Sequence[str], n_bytes: int) -> None:
    """Copy what one worker each has to all of these, in rounds, in each of which those who have it give it on.

    It is only done ahead for speed: tasks fetch what their worker lacks. Dask would send tasks to the few workers that
    have what they take first, and those would then give it to all others at once.

    Dask's own `broadcast` tries without end to reach a worker that died meanwhile, and holds a lock of the scheduler
    that every later one waits for. A task that takes the values needs no lock, and runs elsewhere if its worker dies.
    """
    from distributed import wait

    start, stop = 0, 1 + _BRANCHING
    while start < len(addresses):
        taken = [
            client.submit(
                _take, *sent, workers=[address], allow_other_workers=True, key=f"take-{uuid.uuid4().hex}", pure=False
            )
            for address in addresses[start:stop]
        ]
        try:
            wait(taken, timeout=_SECONDS + len(taken) * n_bytes / _BYTES_PER_SECOND)
        except TimeoutError:  # a worker neither answers nor dies; whoever needs the values fetches them
            return
        start, stop = stop, stop * (1 + _BRANCHING)


def _take(*_: Any) -> None:
    """On a worker: nothing but to have had the arguments there."""
