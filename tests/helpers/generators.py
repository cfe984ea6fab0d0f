"""Running generators that ask for what they need, in memory."""

from __future__ import annotations

__all__ = ["finish"]


def finish(generator, answer):
    """Answer every request by a function; what the generator returns."""
    reply = None
    while True:
        try:
            request = generator.send(reply)
        except StopIteration as stop:
            return stop.value
        reply = answer(request)
