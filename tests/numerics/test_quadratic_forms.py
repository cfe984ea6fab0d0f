"""Tails of weighted sums of χ² variables against distributions that are known and an independent integral."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import chi2, f

from dmkl.numerics.quadratic_forms import upper_tail


@pytest.mark.parametrize("freedom", [1, 2, 5, 1000])
@pytest.mark.parametrize("p", [0.99, 0.5, 1e-3, 1e-6, 1e-100])
def test_one_weight_is_a_chi_square(freedom, p):
    x = chi2.isf(p, freedom)
    assert upper_tail(np.array([3.0]), 3 * x, np.array([freedom])) == pytest.approx(chi2.sf(x, freedom), rel=1e-8)


@pytest.mark.parametrize("freedom", [(1, 8), (2, 3), (5, 50), (10, 1990), (1, 1)])
@pytest.mark.parametrize("p", [0.9, 0.5, 1e-3, 1e-8])
def test_two_weights_of_either_sign_are_a_ratio(freedom, p):
    x = f.isf(p, *freedom)
    found = upper_tail(np.array([1 / freedom[0], -x / freedom[1]]), 0.0, np.array(freedom))
    assert found == pytest.approx(f.sf(x, *freedom), rel=1e-8)


@pytest.mark.parametrize("share", [0.3, 1.0, 2.0, 3.0])
def test_many_weights_against_the_formula_of_imhof(share):
    w = np.random.default_rng(0).normal(size=12) ** 3
    x = w.sum() + (share - 1) * np.sqrt(2 * w @ w)

    def integrand(u):
        return np.sin(0.5 * np.sum(np.arctan(w * u)) - 0.5 * x * u) / (u * np.prod(1 + (w * u) ** 2) ** 0.25)

    integral, _ = quad(integrand, 0, np.inf, limit=2000, epsabs=1e-11)
    assert upper_tail(w, x) == pytest.approx(0.5 + integral / np.pi, abs=1e-7)


def test_sums_that_cannot_or_must_exceed_a_number():
    negative = np.array([-1.0, -2.0])
    assert (upper_tail(negative, 0.0), upper_tail(negative, -1.0) < 1) == (0.0, True)
    assert upper_tail(-negative, 0.0) == 1.0
    assert upper_tail(negative, -1.0) == pytest.approx(1.0 - upper_tail(-negative, 1.0), rel=1e-9)
