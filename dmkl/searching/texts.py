"""Counts, points and means in words, as the summaries of results tell them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["count", "told", "value_told", "with_error"]


def count(n: float, what: str) -> str:
    """A number and its noun; numbers that are not whole with four digits."""
    number = f"{n:,.0f}" if n == round(n) else f"{n:,.4g}"
    return f"{number} {what}" if n == 1 else f"{number} {what}{'es' if what.endswith('s') else 's'}"


def told(params: Mapping[str, Any]) -> str:
    """A point of a grid."""
    return ", ".join(f"{name}={value_told(value)}" for name, value in params.items())


def value_told(value: Any) -> str:
    """A value of a parameter."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def with_error(mean: Any, error: Any) -> str:
    """A mean with its standard error where there is one."""
    return f"{float(mean):.4g}" + (f" ± {float(error):.2g}" if np.isfinite(float(error)) else "")
