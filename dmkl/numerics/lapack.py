"""Routines of LAPACK and BLAS that leave the interpreter to other threads while they compute.

SciPy's functions hold its lock: tasks that factorize side by side on threads would wait for one another. The same
routines of the same library are called here through the addresses that `scipy.linalg.cython_lapack` and `cython_blas`
give. Matrices are column-major, and are overwritten where the routine says so.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import scipy.linalg.cython_blas
import scipy.linalg.cython_lapack

from dmkl.arrays import Array

__all__ = ["call", "status"]

Argument = Array | bytes | int | float


def call(name: str, *arguments: Argument) -> None:
    """Call a routine, such as "dsymm", that says nothing of its success; what is float is double precision."""
    _routine(name, len(arguments))(*map(_pointer, arguments))


def status(name: str, *arguments: Argument) -> int:
    """Call a routine, such as "dpotrf", whose last argument, which is not given, says how it went: 0, or what failed.

    Raises
    ------
    ValueError
        If an argument is wrong.
    """
    info = ctypes.c_int(0)
    _routine(name, len(arguments) + 1)(*map(_pointer, arguments), ctypes.byref(info))
    if info.value < 0:
        msg = f"argument {-info.value} of LAPACK's {name} is wrong"
        raise ValueError(msg)
    return info.value


def _pointer(value: Argument) -> Any:
    if isinstance(value, np.ndarray):
        return ctypes.c_void_p(value.ctypes.data)
    if isinstance(value, bytes):
        return ctypes.c_char_p(value)
    return ctypes.byref(ctypes.c_int(value) if isinstance(value, int) else ctypes.c_double(value))


@cache
def _routine(name: str, n_arguments: int) -> Callable[..., None]:
    """A routine by its address; ctypes lets go of the interpreter's lock while it runs."""
    lapack, blas = (vars(module)["__pyx_capi__"] for module in (scipy.linalg.cython_lapack, scipy.linalg.cython_blas))
    capsule = lapack[name] if name in lapack else blas[name]
    tell = ctypes.pythonapi.PyCapsule_GetName
    tell.restype, tell.argtypes = ctypes.c_char_p, [ctypes.py_object]
    find = ctypes.pythonapi.PyCapsule_GetPointer
    find.restype, find.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    # Arguments are told as pointers, whatever they point to: byref, c_char_p and c_void_p all pass as such.
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * n_arguments)(find(capsule, tell(capsule)))
