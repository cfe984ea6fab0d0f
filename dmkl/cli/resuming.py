"""Going on with a search, or with an evaluation, that broke off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dmkl.cli.output import say_aside
from dmkl.errors import InputError
from dmkl.progress import ConsoleWatch

__all__ = ["resuming"]


class _Watch(ConsoleWatch):
    """Progress that says first from where the search goes on."""

    def __init__(self, n_passes: int) -> None:
        super().__init__()
        self._n_passes = n_passes

    def begin(self, what: str, total_bytes: int) -> None:
        """See `dmkl.progress.Watch.begin`; by now the state is known to be that of this search."""
        if self._n_passes:
            say_aside("note", f"going on after pass {self._n_passes}")
            self._n_passes = 0
        super().begin(what, total_bytes)


@contextmanager
def resuming(folder: Path) -> Iterator[None]:
    """Show the progress of work that keeps its state in `folder`.

    Where it breaks off, it is said what is kept; where the state belongs to other work, what to do about it.
    """
    from dmkl.searching.state import is_empty, read_state, remove_state

    before = read_state(folder)
    try:
        with _Watch(before.n_passes):
            yield
    except BaseException as error:
        wrong, after = isinstance(error, InputError), read_state(folder)
        if wrong and before and str(folder) in str(error):
            msg = f"{error}; --restart throws it away"
            raise InputError(msg) from error
        if is_empty(folder) or (wrong and not before and after and not after.has_solutions):
            remove_state(folder)  # an argument is to be changed, and that makes it another search
        elif after and (after != before or not wrong):
            say_aside(
                "note", f"what was done is kept in {folder}; the same command goes on after pass {after.n_passes}"
            )
        raise
