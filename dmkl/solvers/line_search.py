"""Line searches: a step that promised more than it brought is shortened (Armijo's rule).

Written for a maximum; who minimizes takes values and gradients with the other sign.
"""

from __future__ import annotations

import numpy as np

from dmkl.arrays import Float

__all__ = ["LineSearch", "rises_enough"]


_SHORTEST = 1e-6


def rises_enough(value: float, before: float, promised: float, *, share: float = 1e-3, slack: float = 0.0) -> bool:
    """Whether a step raised the objective by a share of what gradient times step promised, or may have.

    `slack` is by how much value − before may be too small, for what is not known of either.
    """
    return value >= before + share * promised - slack


class LineSearch:
    """Steps in one direction from the best point so far, one shorter than the other, until the objective rises enough.

    Of the start are given the objective's gradient and value: of an interval that holds the value the lower end, or
    another, which may be too high by `slack`. The first step is `length` times the direction, and a refused one is
    shortened by `factor` where `shorten` is told nothing. `share` is that of `rises_enough`.

    `point` is the point to try next, None when steps have become too short to matter.
    """

    def __init__(
        self,
        start: Float,
        direction: Float,
        gradient: Float,
        value: float,
        *,
        slack: float = 0.0,
        share: float = 1e-3,
        length: float = 1.0,
        factor: float = 0.5,
    ) -> None:
        self._start, self._direction, self._gradient, self._value = start, direction, gradient, value
        self._slack, self._share, self._factor = slack, share, factor
        self._go(length)

    def _go(self, length: float) -> None:
        self._length = length
        self.point: Float | None = None if length < _SHORTEST else self._start + length * self._direction

    def accepts(self, value: float, slack: float = 0.0) -> bool:
        """Whether the objective rises enough from the start to `point`, where it has this value.

        Of an interval that holds the value it is the upper end; `slack` is by how much another may be too low.
        """
        assert self.point is not None
        promised = float(np.vdot(self._gradient, self.point - self._start))
        return rises_enough(value, self._value, promised, share=self._share, slack=self._slack + slack)

    def shorten(self, gradient: Float | None = None) -> None:
        """Shorten a step that was refused: by the factor, or from the gradient at the point.

        With a gradient the step is cut to where the slope along the direction vanishes, if it is linear between the two
        ends, within 0.1 and 0.9 of its length; to half of it where the slope at the point is not negative.
        """
        if gradient is None:
            self._go(self._factor * self._length)
            return
        before, after = float(np.vdot(self._gradient, self._direction)), -float(np.vdot(gradient, self._direction))
        cut = float(np.clip(before / (before + after), 0.1, 0.9)) if after > 0 else 0.5
        self._go(cut * self._length)
