"""Loops that are compiled when they are first called: most programs call none, and importing numba takes a while."""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Callable, Set
from typing import Any, TypeVar

__all__ = ["compiled"]

Loop = TypeVar("Loop", bound=Callable[..., Any])


def compiled(fastmath: Set[str] = frozenset()) -> Callable[[Loop], Loop]:
    """Compile a function with numba, for each type of its arguments, and keep the result on disk.

    Compiled functions that it names are compiled before it, and called without the interpreter. They are of the same
    file: what is kept is compiled anew when that file changes, and no other.

    It is kept beside the source file, or where that cannot be written in the user's folder for caches (numba's
    NUMBA_CACHE_DIR names another); where nothing can be written it is compiled anew in each process. The function runs
    without the interpreter's lock, and divides as NumPy does: a division by zero is no exception.

    Parameters
    ----------
    fastmath
        What the compiler may assume beyond IEEE 754, by the names of LLVM's flags.
    """

    def decorate(loop: Loop) -> Loop:
        lock, made = threading.Lock(), list[Any]()

        def dispatcher() -> Any:
            if not made:
                with lock:  # threads that come at once wait for one
                    if not made:
                        made.append(_compile(loop, fastmath))
            return made[0]

        @functools.wraps(loop)
        def call(*arguments: Any) -> Any:
            return dispatcher()(*arguments)

        call.dispatcher = dispatcher  # type: ignore[attr-defined]
        return call  # type: ignore[return-value]

    return decorate


def _compile(loop: Callable[..., Any], fastmath: Set[str]) -> Any:
    import numba

    known = {name: loop.__globals__[name] for name in loop.__code__.co_names if name in loop.__globals__}
    if others := {name: value.dispatcher() for name, value in known.items() if hasattr(value, "dispatcher")}:
        # numba calls what the names of a function stand for, which are wrappers otherwise.
        loop = functools.wraps(loop)(types.FunctionType(loop.__code__, loop.__globals__ | others, loop.__name__))
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": set(fastmath)}
    try:
        return numba.njit(cache=True, **options)(loop)
    except RuntimeError:  # numba's, where it finds no folder to write to
        return numba.njit(**options)(loop)
