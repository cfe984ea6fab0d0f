"""Steps: saved statistics, missing statistics, and small kernels as opposed to rounding noise."""

import numpy as np
import pytest
from helpers.references import dense_view, error, in_memory, psd, stepped

from dmkl.errors import InputError
from dmkl.numerics.steps import Take, load_step

M = 11
ROWS, COLS = np.array([10, 3, 0]), np.array([1, 9, 5, 2, 7])


def test_steps_of_earlier_files_are_read():
    """Models have the arrays for prediction only; earlier versions wrote `square` for every kind of step."""
    for kind, name in (("center", "col_mean"), ("scale", "factor"), ("cosine", "col_scale")):
        step = load_step({"kind": kind, "square": False}, {name: np.ones(2) if name == "factor" else np.ones((2, 5))})
        assert list(step.arrays()) == [name]
    take = load_step({"kind": "take", "square": False}, {"rows": ROWS, "cols": COLS, "before": np.array([12, M])})
    assert isinstance(take, Take)
    assert take.right(0, np.ones((5, 1))).shape == (M, 1)


@pytest.mark.parametrize("kind", ["trace", "multiplicative"])
def test_a_kernel_without_size_is_named(kind):
    with pytest.raises(InputError, match=r"'kernel_1' cannot be normalized: its (trace|variance).* is -\d"):
        in_memory(psd(2, 5) * [[[1]], [[-1]]], 5).normalize(kind).apply(np.ones(5)).compute()


@pytest.mark.parametrize("factor", [1e-30, 1.0, 1e30])
def test_rounding_noise_is_told_from_small_kernels(factor):
    """Centring leaves 1e-9 of one kernel and rounding noise of the other, in any unit."""
    small, noise = psd(1, 7) * 1e-9 + 1, np.full((1, 7, 7), 0.1)
    for chain in [("center", "trace"), ("center", "cosine"), ("multiplicative",), ("center", "trace", "cosine")]:
        computed = stepped(in_memory(small * factor, 7), chain).apply(np.eye(7))
        assert error(computed, dense_view(small, steps=chain)) < 1e-5
        with pytest.raises(InputError, match="'kernel_0'"):
            stepped(in_memory(noise * factor, 7), chain).apply(np.eye(7)).compute()
