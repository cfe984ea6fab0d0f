"""Sentences that the summaries of results share: counts, points of a grid, means, proofs, costs."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dmkl.description import count, listed, number

_MOST_VALUES = 12  # Most values of a parameter that are listed.
_MOST_CLASSES = 6  # Most classes whose values are listed.


def point_text(params: Mapping[str, Any]) -> str:
    """A point of a grid as text."""
    return ", ".join(f"{name}={value_text(value)}" for name, value in params.items())


def value_text(value: Any) -> str:
    """A value of a parameter as text. Values by class are listed; those of many classes have their range and mean.

    Those of many targets are counted.
    """
    if isinstance(value, Mapping):
        if len(value) <= _MOST_CLASSES:
            return ",".join(f"{label}={value_text(of_class)}" for label, of_class in value.items())
        values = list(value.values())
        return f"{min(values)} to {max(values)} by class, {statistics.mean(map(float, values)):.3g} on average"
    if isinstance(value, list | tuple) and len(value) > _MOST_VALUES:
        return _counted(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def chosen_text(name: str, values: Sequence[Any]) -> str:
    """The values of a parameter and how often each was chosen, the most frequent first."""
    return f"{name} = {_counted(values)}"


def _counted(values: Sequence[Any]) -> str:
    counts = Counter(map(value_text, values)).most_common()
    return listed([f"{text} ({n}×)" for text, n in counts], _MOST_VALUES)


def p_text(values: Iterable[float]) -> str:
    """A p-value, or how many of those of several tasks are small; "" where all are NaN."""
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) < 2:
        return f"p = {finite[0]:.2g}" if finite else ""
    return f"p ≤ 0.05 for {sum(value <= 0.05 for value in finite)} of {len(finite)}"


def cost_and_proof(n_passes: float, seconds: float, gap: float) -> str:
    """Passes and seconds; and a sentence about the largest proven relative gap, if anything is proven."""
    proof = f". Proven: each objective is within {100 * gap:.2g} % of the best possible" if math.isfinite(gap) else ""
    return f"{count(n_passes, 'pass')}, {number(seconds)} s{proof}"


def edge_notes(grid: Mapping[str, Sequence[Any]], edges: Mapping[str, Sequence[float]]) -> list[str]:
    """A sentence for each end of a grid of λ or C among `SearchResult.rising_edges`; short grids have no interior."""
    notes = []
    for name in ("lam", "C"):
        values = grid.get(name, ())
        if len(values) < 3:
            continue
        for end, which, beyond in ((min(values), "smallest", "smaller"), (max(values), "largest", "larger")):
            n, n_all = list(edges[name]).count(end), len(edges[name])
            if n:
                choices = "The choice is" if n_all == 1 else f"{n} of {n_all} choices are"
                notes.append(f"{choices} {name} = {end:g}, the {which} of the grid: search {beyond} values too")
    return notes


def approximate_notes(counts: Iterable[tuple[int, int, int]]) -> list[str]:
    """A sentence from the numbers of scores, of approximate ones and of chosen ones among these, of each search."""
    n_all, n, n_chosen = (sum(of_searches) for of_searches in zip(*counts, strict=True))
    if not n:
        return []
    chosen = f"{n_chosen} of these were chosen" if n_chosen else "those that were chosen are exact"
    return [
        f"{n:,} of {n_all:,} scores are approximate, by rules from interpolated leave-one-out scores, which fits there "
        f"would not have; {chosen}"
    ]


def data_notes(attrs: Mapping[str, Any]) -> list[str]:
    """Cautions of the attributes of a result: bandwidths from held-out samples, folds that lack a class."""
    notes = []
    if n := int(attrs.get("bandwidths_from_all_samples", 0)):
        notes.append(
            f"The bandwidths, landmarks or transforms of {count(n, 'kernel')} are taken from all samples of the set, "
            "those held out included; build with splits or training samples to leave these out"
        )
    if n := int(attrs.get("identical_pairs", 0)):
        at_least = "at least " if attrs.get("identical_pairs_incomplete") else ""
        notes.append(
            f"{at_least}{count(n, 'pair')} of samples identical in all kernels, "
            f"{int(attrs['identical_pairs_apart'])} of them in different parts of a fold: keep copies together "
            "(groups=, --groups), or scores are too high"
        )
    if n := int(attrs.get("folds_without_a_class", 0)):
        notes.append(
            f"{count(n, 'fold')} without held-out samples of some class: roc_auc_ovr is the mean over the other "
            "classes there, and other areas over all classes are undefined (NaN)"
        )
    return notes


def p_value_text(data: Any) -> str:
    """The p-value of a score (a dataset), with the number of permutations that scored as high."""
    p, n = float(data["p_value"]), data.sizes["permutation"]
    n_higher = round(p * (n + 1)) - 1
    if not n_higher:
        return f"p = {p:.3g} (no permutation of {n:,} scored as high)"
    return f"p = {p:.3g} ({n_higher:,} of {count(n, 'permutation')} scored as high)"
