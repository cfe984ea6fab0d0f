"""Cholesky factors that leave the interpreter to other threads while LAPACK computes.

SciPy's functions for them hold its lock: tasks that factorize side by side on threads would wait for one another. The
same routines of the same library are called here through the addresses that `scipy.linalg.cython_lapack` gives.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import scipy.linalg.cython_lapack

from dmkl.arrays import Array

__all__ = ["Cholesky"]

_PREFIX = {np.dtype(np.float32): "s", np.dtype(np.float64): "d"}


@dataclass(frozen=True, eq=False)
class Cholesky:
    """A = LLᵀ of a positive definite matrix, in single or double precision.

    Parameters
    ----------
    lower
        (m, m), column-major; what is above the diagonal means nothing.
    """

    lower: Array

    @classmethod
    def of(cls, matrix: Array) -> Cholesky:
        """Factorize a symmetric matrix of which the lower triangle is read; a column-major one is overwritten.

        Raises
        ------
        LinAlgError
            If it is not positive definite.
        """
        lower = np.asfortranarray(matrix)
        info = _call("potrf", lower, b"L", len(lower), lower, len(lower))
        if info:
            msg = f"the leading minor of order {info} is not positive"
            raise np.linalg.LinAlgError(msg)
        return cls(lower)

    def solve(self, b: Array) -> Array:
        """A⁻¹B for B (m,) or (m, c)."""
        m = len(self.lower)
        solved = np.array(b, dtype=self.lower.dtype, order="F")
        _call("potrs", self.lower, b"L", m, solved.size // max(m, 1), self.lower, m, solved, m)
        return solved

    def half_solve(self, b: Array) -> Array:
        """L⁻¹B for B (m, c), so that (L⁻¹B)ᵀL⁻¹B = BᵀA⁻¹B: half the flops of A⁻¹B; a column-major B is overwritten."""
        m = len(self.lower)
        solved = np.asfortranarray(b, dtype=self.lower.dtype)
        _call("trtrs", self.lower, b"L", b"N", b"N", m, solved.shape[1], self.lower, m, solved, m)
        return solved

    def inverse_columns(self, start: int, stop: int) -> Array:
        """Columns of L⁻¹ from their diagonal on, (m − start, stop − start): above it L⁻¹ is zero."""
        m, width = len(self.lower), stop - start
        columns = np.zeros((m - start, width), self.lower.dtype, order="F")
        columns[np.diag_indices(width)] = 1.0
        corner = self.lower[start:, start:]
        _call("trtrs", self.lower, b"L", b"N", b"N", len(corner), width, corner, m, columns, len(columns))
        return columns


def _call(name: str, like: Array, *arguments: Any) -> int:
    """Call a routine of LAPACK for arrays of this type; returns what it says of its success."""
    info = ctypes.c_int(0)
    passed: list[Any] = []
    for value in arguments:
        if isinstance(value, np.ndarray):
            passed.append(ctypes.c_void_p(value.ctypes.data))
        else:
            passed.append(ctypes.c_char_p(value) if isinstance(value, bytes) else ctypes.byref(ctypes.c_int(value)))
    _routine(_PREFIX[like.dtype] + name, len(arguments) + 1)(*passed, ctypes.byref(info))
    if info.value < 0:
        msg = f"argument {-info.value} of LAPACK's {name} is wrong"
        raise ValueError(msg)
    return info.value


@cache
def _routine(name: str, n_arguments: int) -> Callable[..., None]:
    """A routine by its address; ctypes lets go of the interpreter's lock while it runs."""
    capsules: Mapping[str, Any] = vars(scipy.linalg.cython_lapack)["__pyx_capi__"]
    capsule = capsules[name]
    tell = ctypes.pythonapi.PyCapsule_GetName
    tell.restype, tell.argtypes = ctypes.c_char_p, [ctypes.py_object]
    find = ctypes.pythonapi.PyCapsule_GetPointer
    find.restype, find.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    # Arguments are told as pointers, whatever they point to: byref, c_char_p and c_void_p all pass as such.
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * n_arguments)(find(capsule, tell(capsule)))
