"""Going on with a search, an evaluation, an import or a build that broke off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dmkl.cli.ending import Ended
from dmkl.cli.output import claim_output, say_aside
from dmkl.errors import InputError, NoWorkersError, SchedulerLostError, StoreExistsError, WorkerLostError
from dmkl.files.urls import Place, Url, resolved
from dmkl.progress import ConsoleWatch

__all__ = ["keeping_kernels", "resuming", "state_of"]


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


def state_of(out: Place, what: str, kind: str, given: Path | None, *, overwrite: bool) -> Path:
    """The folder of the state of work whose result goes to `out`: the one that was given, or one beside it.

    Refused before anything runs, and not after hours, is what is in the way: with StoreExistsError what exists, unless
    it is a result of this `kind` of file, and may be replaced. `what` is the result, as messages say it. At a URL there
    can be no state, and InputError asks for a folder.
    """
    from dmkl.store.saved import has_format

    if given is None and isinstance(out, Url):
        msg = (
            f"{out} is a URL, and what an interrupted run goes on from needs a folder that all workers see; say which "
            "with --state FOLDER"
        )
        raise InputError(msg)
    claim_output(out, overwrite=overwrite)
    if out.exists() and not has_format(out, kind):
        msg = f"{out} is not {what}, and nothing else is replaced; choose another path, or move it away"
        raise StoreExistsError(msg)
    if given is not None:
        return given.expanduser().absolute()
    assert isinstance(out, Path)
    return out.with_name(f"{out.name}.partial")


@contextmanager
def keeping_kernels(out: str) -> Iterator[None]:
    """Say what is kept of a kernel set where its import or build is ended from outside."""
    from dmkl.store.groups import partial_path

    try:
        yield
    except (KeyboardInterrupt, Ended, NoWorkersError, SchedulerLostError, WorkerLostError):
        place = resolved(out)
        if partial_path(place).exists() or isinstance(place, Url):
            say_aside("note", f"what was done is kept beside {out}; the same command goes on from there")
        raise


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
