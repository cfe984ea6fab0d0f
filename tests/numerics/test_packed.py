"""Packed triangles against dense matrices."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.references import error

from dmkl.numerics import packed
from dmkl.numerics.cholesky import status


def positive(m):
    A = np.random.default_rng(m).standard_normal((m, m))
    return A @ A.T + np.eye(m)


@pytest.mark.parametrize("m", [1, 2, 7, 8, 60])
def test_as_dense_matrices(m):
    A, rng = positive(m), np.random.default_rng(0)
    B = np.asfortranarray(rng.standard_normal((m, 3)))
    matrix = packed.pack(A)
    assert matrix.shape == (m * (m + 1) // 2,)
    assert sorted(matrix[packed.diagonal(m)]) == sorted(np.diag(A))
    assert error(packed.product(m, matrix, B, np.empty((m, m), order="F")), A @ B) < 1e-14
    factor = matrix.copy()
    assert packed.factorize(m, factor)
    assert error(packed.solve(m, factor, B), np.linalg.solve(A, B)) < 1e-11
    half = B.copy(order="F")
    packed.half_solve(m, factor, half)
    assert error(half.T @ half, B.T @ np.linalg.solve(A, B)) < 1e-11
    packed.add_outer(m, 2.0, B, -0.5, matrix)
    assert (
        error(packed.product(m, matrix, np.asfortranarray(np.eye(m)), np.empty((m, m), order="F")), 2 * B @ B.T - A / 2)
        < 1e-14
    )


def test_an_indefinite_matrix_has_no_factor():
    assert not packed.factorize(2, packed.pack(np.diag([1.0, -1.0])))


def test_a_wrong_argument_is_told():
    with pytest.raises(ValueError, match="argument 3 of LAPACK's dpftrf is wrong"):
        status("dpftrf", b"N", b"U", -1, np.ones(1))
