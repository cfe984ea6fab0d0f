"""Counts, points and means in words, as the summaries of results tell them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["bandwidth_notes", "count", "edge_notes", "told", "value_told", "with_error"]


_MOST_CLASSES = 6
"""Whose values are told one by one."""


def count(n: float, what: str) -> str:
    """A number and its noun; numbers that are not whole with four digits."""
    number = f"{n:,.0f}" if n == round(n) else f"{n:,.4g}"
    return f"{number} {what}" if n == 1 else f"{number} {what}{'es' if what.endswith('s') else 's'}"


def told(params: Mapping[str, Any]) -> str:
    """A point of a grid."""
    return ", ".join(f"{name}={value_told(value)}" for name, value in params.items())


def value_told(value: Any) -> str:
    """A value of a parameter, or of those of the classes: class=value, or of many their range and mean."""
    if isinstance(value, Mapping):
        if len(value) <= _MOST_CLASSES:
            return ",".join(f"{label}={value_told(one)}" for label, one in value.items())
        values = list(value.values())
        return f"{min(values)} to {max(values)} by class, {statistics.mean(map(float, values)):.3g} on average"
    return f"{value:g}" if isinstance(value, float) else str(value)


def with_error(mean: Any, error: Any) -> str:
    """A mean with its standard error where there is one."""
    return f"{float(mean):.4g}" + (f" ± {float(error):.2g}" if math.isfinite(error) else "")


def edge_notes(grid: Mapping[str, Sequence[Any]], chosen: Mapping[str, Sequence[float]]) -> list[str]:
    """A sentence for each end of the grid of λ or C that was chosen, with the number of choices.

    Grids of one or two values have no inside, and are left out.
    """
    notes = []
    for name in ("lam", "C"):
        values = grid.get(name, ())
        if len(values) < 3:
            continue
        for end, which, beyond in ((min(values), "smallest", "smaller"), (max(values), "largest", "larger")):
            n, n_all = list(chosen[name]).count(end), len(chosen[name])
            if n:
                whose = "The choice is" if n_all == 1 else f"{n} of {n_all} choices are"
                notes.append(f"{whose} {name} = {end:g}, the {which} of the grid: search {beyond} values too")
    return notes


def bandwidth_notes(attrs: Mapping[str, Any]) -> list[str]:
    """A sentence where bandwidths were set by the samples that folds hold out too; `attrs` are those of a result."""
    n = int(attrs.get("bandwidths_from_all_samples", 0))
    if n == 0:
        return []
    return [
        f"The bandwidths of {count(n, 'kernel')} are multiples of a mean distance between all samples of the set, "
        "those held out included; build with splits or training samples to leave these out"
    ]
