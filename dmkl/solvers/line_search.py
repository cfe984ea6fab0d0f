"""Line searches: a step that raises the objective too little is shortened (Armijo's rule).

The search is for a maximum; for a minimum, negate values and gradients.
"""

from __future__ import annotations

import numpy as np

from dmkl.arrays import Float

__all__ = ["LineSearch", "rises_enough"]


_SHORTEST = 1e-6


def rises_enough(value: float, before: float, promised: float, *, share: float = 1e-3, slack: float = 0.0) -> bool:
    """Whether a step raised the objective by a fraction of gradient times step, up to uncertainty.

    `slack` is the largest amount by which value − before may be too small, if both are known only approximately.
    """
    return value >= before + share * promised - slack


class LineSearch:
    """Successively shorter steps in one direction from the best point so far, until the objective rises enough.

    The start has a gradient and a value of the objective. If only an interval of the value is known, `value` is its
    lower end, or another value that may be too high by `slack`. The first step is `length` times the direction, and a
    refused step is shortened by `factor` unless `shorten` gets a gradient. `share` is that of `rises_enough`.

    `point` is the next point to evaluate, or None when steps have become too short to matter.
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
        """Whether the objective rises enough from the start to `point`, with this value there.

        If only an interval of the value is known, `value` is its upper end; `slack` is the largest amount by which
        another value may be too low.
        """
        assert self.point is not None
        # The uncertainties of both values are added: a step is refused only if it certainly rises too little.
        promised = float(np.vdot(self._gradient, self.point - self._start))
        return rises_enough(value, self._value, promised, share=self._share, slack=self._slack + slack)

    def shorten(self, gradient: Float | None = None) -> None:
        """Shorten a step that was refused: by the factor, or by means of the gradient at the point.

        With a gradient, the derivative along the direction is interpolated linearly between the two ends, and the step
        is cut to its zero, within 0.1 and 0.9 of its length; to half if the derivative at the point is not negative.
        """
        if gradient is None:
            self._go(self._factor * self._length)
            return
        # The derivative along the direction is positive at the start; at the point it is −after.
        before, after = float(np.vdot(self._gradient, self._direction)), -float(np.vdot(gradient, self._direction))
        cut = float(np.clip(before / (before + after), 0.1, 0.9)) if after > 0 else 0.5
        self._go(cut * self._length)
