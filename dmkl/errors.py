"""What dmkl raises and warns with: every message states the rule, what was found, what was expected, the way out."""

from __future__ import annotations

import os
import sys
import unicodedata
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sklearn.exceptions import ConvergenceWarning

__all__ = [
    "ConvergenceWarning",
    "CorruptTileError",
    "DamagedFileError",
    "DegenerateKernelError",
    "DiskFullError",
    "DmklError",
    "FormatVersionError",
    "IncompleteStoreError",
    "IndefiniteKernelError",
    "IndefiniteKernelWarning",
    "InputError",
    "LabelWarning",
    "LockedError",
    "MemoryBudgetError",
    "NoWorkersError",
    "SampleOrderWarning",
    "SchedulerLostError",
    "SmallWorkerWarning",
    "StoreError",
    "StoreExistsError",
    "StoreNotFoundError",
    "UninformativeScoresWarning",
    "WorkerLostError",
    "one_line",
    "warn",
]


def __getattr__(name: str) -> Any:
    if name == "ConvergenceWarning":  # scikit-learn's, which takes a second to import
        from sklearn.exceptions import ConvergenceWarning

        return ConvergenceWarning
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)


class DmklError(Exception):
    """The root of everything that dmkl raises on purpose."""


class InputError(DmklError, ValueError):
    """An argument or a data file breaks a rule; nothing on disk was changed."""


class DegenerateKernelError(InputError):
    """A kernel is constant over the samples, or what comes of it is not a finite number."""


class StoreError(DmklError):
    """A kernel set on disk cannot be used as asked."""


class StoreNotFoundError(StoreError, FileNotFoundError):
    """There is no kernel set at this place."""


class StoreExistsError(StoreError, FileExistsError):
    """A finished kernel set is in the way, and overwriting was not asked for."""


class IncompleteStoreError(StoreError):
    """The kernel set was never finished: its import or build was interrupted."""


class FormatVersionError(StoreError):
    """The kernel set is of a format that this version of dmkl does not read."""


class CorruptTileError(StoreError):
    """A stored tile is missing, truncated or fails its checksum."""


class DamagedFileError(StoreError):
    """A file of a kernel set, a model, a result or a state is missing, or is not what was written."""


class DiskFullError(StoreError, OSError):
    """The disk ran full; what was written so far is kept, and the same command goes on from there."""


class LockedError(StoreError):
    """Another process writes to the same output, or goes on with the same search; nothing was changed."""


class IndefiniteKernelError(DmklError, ValueError):
    """A system that needs positive semidefinite kernels met one that is not."""


class MemoryBudgetError(DmklError, MemoryError):
    """The projected memory of a computation exceeds its budget; nothing was run."""


class NoWorkersError(DmklError, TimeoutError):
    """The cluster has given no worker within the time allowed."""


class SchedulerLostError(DmklError, RuntimeError):
    """The cluster's scheduler went away in the middle of the work."""


class WorkerLostError(DmklError, RuntimeError):
    """Workers died too often while running the same task, most often for want of memory."""


class IndefiniteKernelWarning(UserWarning):
    """A kernel is not positive semidefinite."""


class LabelWarning(UserWarning):
    """Labels are taken as they are, and are probably not as they were meant: a class of one sample, or a new one."""


class UninformativeScoresWarning(UserWarning):
    """Scores of rows that were left out do not tell the classes apart: predictions follow the prior probabilities."""


class SampleOrderWarning(UserWarning):
    """A source without names of samples is matched by position with samples that have names."""


class SmallWorkerWarning(UserWarning):
    """Workers of a cluster have far less memory than the others, and are given no tasks."""


def printable(text: str) -> str:
    """A text with all characters but visible ones, spaces and line ends as Python escapes them.

    A name from a file may hold sequences that move the cursor, change the title or hide what follows.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c == "\n" or unicodedata.category(c) == "Zs" else repr(c)[1:-1] for c in text
    )


def one_line(error: BaseException, most: int = 300) -> str:
    """What another library says of an error, as a message quotes it: in one line of at most so many characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    text = printable(text[: most + 1])
    return text if len(text) <= most else f"{text[: most - 2]} …"


def warn(message: str, category: type[Warning]) -> None:
    """Warn on the line of the user's code that called dmkl, however many calls deep the reason was found."""
    inside, depth = os.path.dirname(os.path.abspath(__file__)) + os.sep, 2
    frame = sys._getframe(1)
    while frame.f_back is not None and os.path.abspath(frame.f_code.co_filename).startswith(inside):
        frame, depth = frame.f_back, depth + 1
    warnings.warn(message, category, stacklevel=depth)
