"""Exceptions and warnings of dmkl, and helpers for their messages.

A message states the rule, what was found, what was expected and the way out.
"""

from __future__ import annotations

import difflib
import os
import reprlib
import sys
import unicodedata
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from sklearn.exceptions import ConvergenceWarning as ConvergenceWarning


def __getattr__(name: str) -> Any:
    if name == "ConvergenceWarning":  # scikit-learn's, which takes a second to import
        from sklearn.exceptions import ConvergenceWarning

        return ConvergenceWarning
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)


class DmklError(Exception):
    """Base class of all exceptions of dmkl."""


class InputError(DmklError, ValueError):
    """An argument or a data file breaks a rule; nothing on disk was changed."""


class DegenerateKernelError(InputError):
    """A kernel is constant over the samples, or a statistic of it is not finite."""


class StoreError(DmklError):
    """A kernel set on disk cannot be used as asked."""


class StoreNotFoundError(StoreError, FileNotFoundError):
    """There is no kernel set at this place."""


class StoreExistsError(StoreError, FileExistsError):
    """The path holds a finished kernel set already, and overwriting was not asked for."""


class IncompleteStoreError(StoreError):
    """The kernel set was never finished: its import or build was interrupted."""


class FormatVersionError(StoreError):
    """The kernel set has a format version that this dmkl does not read."""


class CorruptTileError(StoreError):
    """A stored tile is missing, truncated or fails its checksum."""


class DamagedFileError(StoreError):
    """A file of a kernel set, a model, a result or a checkpoint is missing, or differs from what was written."""


class DiskFullError(StoreError, OSError):
    """The disk is full; complete parts are kept, and the same command continues from them."""


class LockedError(StoreError):
    """Another process writes to the same output or continues the same search; nothing was changed."""


class IndefiniteKernelError(DmklError, ValueError):
    """A linear system needs positive semidefinite kernels, and a kernel is not."""


class MemoryBudgetError(DmklError, MemoryError):
    """The projected memory of a computation exceeds its budget; nothing was run."""


class NoWorkersError(DmklError, TimeoutError):
    """The cluster provided no worker within the time allowed."""


class SchedulerLostError(DmklError, RuntimeError):
    """The scheduler of the cluster was lost during the computation."""


class WorkerLostError(DmklError, RuntimeError):
    """Workers died repeatedly while running the same task, usually because they ran out of memory."""


class ApproximationWarning(UserWarning):
    """A kernel of low rank is far from the kernel that it approximates."""


class AlignmentWarning(UserWarning):
    """Alignments say little, since most of the norm of a kernel is on its diagonal."""


class IndefiniteKernelWarning(UserWarning):
    """A kernel is not positive semidefinite."""


class ConstantKernelWarning(UserWarning):
    """A kernel is constant over training samples, and gets weight zero."""


class LabelWarning(UserWarning):
    """Labels are used as given, but are probably wrong: a class of one sample, or a new class."""


class UninformativeScoresWarning(UserWarning):
    """Scores of left-out rows do not separate the classes: predictions follow the prior probabilities."""


class CovariateWarning(UserWarning):
    """Covariates determine training samples, so that scores of these without themselves say nothing."""


class TrainingRowsWarning(UserWarning):
    """Samples that are scored have trained the model, so that their scores say nothing about new ones."""


class FeatureWarning(UserWarning):
    """Features are filled in, left out, matched by position or another name, or on another scale than expected."""


class SampleOrderWarning(UserWarning):
    """A source without sample names is matched by position with samples that have names."""


class FontWarning(UserWarning):
    """No font of this machine has some characters of a picture."""


class OtherVersionWarning(UserWarning):
    """Some workers of a cluster run another dmkl than this process, and get no tasks."""


class SilentWorkerWarning(UserWarning):
    """Some workers of a cluster give no answer, and are waited for or get no tasks."""


class SmallWorkerWarning(UserWarning):
    """Some workers of a cluster have far less memory than the others, and get no tasks."""


def printable(text: str) -> str:
    """Escape all characters but visible ones, spaces and line ends, as Python's `repr` does.

    A name from a file may hold sequences that move the cursor, change the title or hide text.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c == "\n" or unicodedata.category(c) == "Zs" else repr(c)[1:-1] for c in text
    )


def one_line(error: BaseException, most: int = 300) -> str:
    """The message of an exception in one line of at most `most` characters, to be quoted in another message."""
    text = " ".join(str(error).split()) or type(error).__name__
    text = printable(text[: most + 1])
    return text if len(text) <= most else f"{text[: most - 2]} …"


def short_repr(value: Any) -> str:
    """The shortened `repr` of a value; tuples are shown as lists."""
    return reprlib.repr(list(value) if isinstance(value, tuple) else value)


def size_text(n_bytes: float) -> str:
    """A number of bytes in three digits, with its unit."""
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while n_bytes >= 1024 and len(units) > 1:
        n_bytes, units = n_bytes / 1024, units[1:]
    return f"{n_bytes:.3g} {units[0]}" if n_bytes < 1000 else f"{n_bytes:.0f} {units[0]}"


def first_names(names: Iterable[Any], count: int = 5) -> str:
    """The first few names, and their number where there are more."""
    listed = [str(name) for name in names]
    return ", ".join(listed[:count]) + (f", … ({len(listed)} in all)" if len(listed) > count else "")


def did_you_mean(word: Any, choices: Iterable[str]) -> str:
    """A hint at choices similar to a word; empty if there are none."""
    choices = list(choices)
    close = difflib.get_close_matches(str(word), choices)
    close = close or [name for name in choices if len(name) > 2 and str(word).startswith(name)]
    return f" (did you mean {' or '.join(close)}?)" if close else ""


def refuse(message: str, cause: BaseException | None = None, kind: type[DmklError] = InputError) -> NoReturn:
    """Raise an error of this kind with this message, in which characters that are not printable are escaped."""
    raise kind(printable(message)) from cause


_EXTRAS = {"anndata": "anndata", "bed-reader": "plink", "dask-jobqueue": "slurm", "h5py": "hdf5", "pyarrow": "parquet"}
"""The extra of dmkl that installs each optional package."""


@contextmanager
def needing(package: str, what: str) -> Iterator[None]:
    """Turn the ImportError of an optional package into InputError, with the command that installs it.

    `what` begins the message, such as "k.h5 is read with".
    """
    try:
        yield
    except ImportError as error:
        refuse(f"{what} {package}, which is not installed or too old; pip install 'dmkl[{_EXTRAS[package]}]'", error)


@contextmanager
def damaged_as(what: str, *errors: type[Exception]) -> Iterator[None]:
    """Raise errors of a library that reads a damaged file as an InputError that begins with `what`."""
    try:
        yield
    except DamagedFileError as error:
        raise InputError(str(error)) from error
    except DmklError:
        raise
    except errors as error:
        refuse(f"{what}: {one_line(error)}", error)


@contextmanager
def damage(
    what: str, way_out: str = "", kind: type[StoreError] = StoreError, but: type[DmklError] | tuple[()] = ()
) -> Iterator[None]:
    """Turn errors of this context into one kind, except those in `but`: Zarr raises many kinds for damaged stores."""
    try:
        yield
    except but:
        raise
    except Exception as error:
        msg = f"{what}: {one_line(error)}{way_out and '; '}{way_out}"
        raise kind(msg) from error


WARNINGS = "dmkl-warnings"
"""Topic of the events by which tasks on a cluster send warnings, as lists: key of the task, message, category."""


def warn(message: str, category: type[Warning]) -> None:
    """Issue a warning at the line of the user's code that called dmkl; that of a task is sent to its client."""
    if (distributed := sys.modules.get("distributed.worker")) is not None:
        with suppress(AttributeError, ValueError, KeyError):  # while it is imported, and outside tasks
            worker = distributed.get_worker()
            worker.log_event(WARNINGS, [str(worker.get_current_task()), message, category.__name__])
            return
    inside, depth = os.path.dirname(os.path.abspath(__file__)) + os.sep, 2
    frame = sys._getframe(1)
    while frame.f_back is not None and os.path.abspath(frame.f_code.co_filename).startswith(inside):
        frame, depth = frame.f_back, depth + 1
    warnings.warn(message, category, stacklevel=depth)
