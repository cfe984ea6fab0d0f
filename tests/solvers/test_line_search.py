"""Line searches on functions of known shape."""

from __future__ import annotations

import numpy as np
import pytest

from dmkl.solvers.masters import LineSearch, rises_enough


def test_a_share_of_the_promise_must_be_kept():
    assert rises_enough(1.0, 0.0, 100.0, share=5e-3)
    assert not rises_enough(1.0, 0.0, 100.0, share=0.02)
    assert rises_enough(1.0, 0.0, 100.0, share=0.02, slack=1.1)
    assert rises_enough(1.0, 1.0, 0.0)
    assert not rises_enough(1.0, 1.0, 1e-9)


def test_steps_are_halved_until_the_objective_rises():
    """f(x) = −x² from x = −1 by steps of 8: 7, 3, then 1 and 0 give −1 and 0."""
    search = LineSearch(np.array([-1.0]), np.array([8.0]), np.array([2.0]), -1.0)
    tried = []
    while not search.accepts(-float(search.point[0] ** 2)):
        tried.append(float(search.point[0]))
        search.shorten()
    assert tried == [7.0, 3.0, 1.0]
    assert search.point == 0.0


def test_a_refused_step_is_cut_to_where_the_slope_vanishes():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(3, 3))
    hessian, start, direction = root @ root.T, rng.normal(size=3), rng.normal(size=3)
    gradient = -hessian @ start
    direction *= np.sign(gradient @ direction)
    best = (gradient @ direction) / (direction @ hessian @ direction)
    search = LineSearch(start, direction, gradient, -0.5 * start @ hessian @ start, length=3.0 * best)
    search.shorten(-hessian @ search.point)
    np.testing.assert_allclose(search.point, start + best * direction)
    assert search.accepts(-0.5 * search.point @ hessian @ search.point)


@pytest.mark.parametrize(("slope", "length"), [(-1e3, 0.1), (-1e-3, 0.9), (0.0, 0.5), (2.0, 0.5)])
def test_how_far_a_step_is_cut(slope, length):
    search = LineSearch(np.zeros(1), np.ones(1), np.ones(1), 0.0)
    search.shorten(np.array([slope]))
    assert search.point == pytest.approx(length)


def test_what_is_not_known_of_the_values_counts_for_the_step():
    search = LineSearch(np.zeros(1), np.ones(1), np.ones(1), 5.0, slack=0.2)
    assert not search.accepts(4.7)
    assert search.accepts(4.7, slack=0.2)


def test_arrays_of_any_shape():
    gradient = np.arange(6.0).reshape(2, 3)
    search = LineSearch(np.ones((2, 3)), gradient, gradient, 0.0, share=0.5)
    assert search.point.shape == (2, 3)
    assert search.accepts(0.5 * 55.0)
    assert not search.accepts(0.5 * 55.0 - 1e-9)


@pytest.mark.parametrize("factor", [0.5, 0.3])
def test_steps_too_short_to_matter_end_it(factor):
    search = LineSearch(np.zeros(2), np.ones(2), np.ones(2), 0.0, factor=factor)
    shortenings = 0
    while search.point is not None:
        search.shorten()
        shortenings += 1
    assert shortenings == int(np.ceil(np.log(1e-6) / np.log(factor)))
    assert LineSearch(np.zeros(2), np.ones(2), np.ones(2), 0.0, length=0.0).point is None
