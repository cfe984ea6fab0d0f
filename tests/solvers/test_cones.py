"""Conic programs against their optima by hand."""

from __future__ import annotations

import clarabel
import numpy as np
import pytest

from dmkl.solvers.weight_sets.base import ConicError, ConicProgram


def test_the_minimizer_and_the_multipliers_of_its_rows():
    """min ½‖x − a‖² over Σx ≤ 1, x ≥ 0: the nearest point of a simplex."""
    a = np.array([0.9, 0.5, -0.2])
    program = ConicProgram(3)
    program.at_most(np.ones((1, 3)), 1.0)
    program.at_most(-np.eye(3), np.zeros(3))
    x, multipliers = program.minimize(-a, np.eye(3))
    np.testing.assert_allclose(x, [0.7, 0.3, 0.0], atol=1e-8)
    np.testing.assert_allclose(multipliers, [0.2, 0.0, 0.0, 0.4], atol=1e-8)


def test_a_bounded_square():
    """max x₁ + x₂ under ½‖x − c‖² ≤ ½: c + (1, 1)/√2."""
    shift = np.array([2.0, -1.0])
    program = ConicProgram(2)
    program.bounded_square(np.eye(2), shift, np.zeros(2), 0.5)
    np.testing.assert_allclose(program.minimize(-np.ones(2))[0], shift + np.sqrt(0.5), atol=1e-6)


def test_no_rows_demand_nothing():
    program = ConicProgram(2)
    program.at_most(np.zeros((0, 2)), np.zeros(0))
    program.add(np.eye(2), [3.0, 4.0], clarabel.ZeroConeT(2))
    np.testing.assert_allclose(program.minimize(np.zeros(2))[0], [3.0, 4.0], atol=1e-8)


@pytest.mark.parametrize(("b", "status"), [([-1.0, 0.0], "PrimalInfeasible"), ([1.0, 0.0], "DualInfeasible")])
def test_programs_without_a_solution(b, status):
    """x ≤ −1 against x ≥ 0; y, which falls for ever, without a row."""
    program = ConicProgram(2)
    program.at_most(np.array([[1.0, 0.0], [-1.0, 0.0]]), b)
    with pytest.raises(ConicError, match=status):
        program.minimize(np.array([0.0, 1.0]) if status == "DualInfeasible" else np.zeros(2))
