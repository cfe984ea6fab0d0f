"""Findings: problems that the figures of an examination show, how severe they are and what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dmkl.arrays import Float, Index
from dmkl.health.examine import Portrait

__all__ = [
    "SEVERITIES",
    "Finding",
    "findings_of_kernel",
    "findings_of_set",
    "is_constant",
    "negative_part",
    "resolution_of",
]

SEVERITIES = ("error", "warning", "note")
"""From grave to slight: results from a set with an error are wrong, a warning asks for a decision."""


@dataclass(frozen=True)
class Finding:
    """One problem of one kernel, or of the set where `kernel` is empty."""

    severity: str
    kernel: str
    message: str


def resolution_of(dtype: np.dtype[np.floating]) -> float:
    """Relative tolerance below which a difference counts as rounding error."""
    return 32 * float(np.finfo(dtype).eps)


def negative_part(portrait: Portrait) -> float:
    """|λ_min| of a proven negative eigenvalue, relative to the largest |λ|; 0 where none was found."""
    extremes = portrait.extremes
    if extremes is None:
        return 0.0
    # A diagonal entry is a Rayleigh quotient too.
    lowest = min(extremes.lowest, portrait.lowest_diagonal)
    scale = max(abs(lowest), abs(extremes.highest))
    return -lowest / scale if lowest < 0 else 0.0


def is_constant(portrait: Portrait, resolution: float) -> bool:
    """Whether centering leaves nothing but rounding."""
    return bool(abs(portrait.centered_trace) <= resolution * abs(portrait.trace))


def findings_of_kernel(name: str, portrait: Portrait, resolution: float) -> list[Finding]:
    """The problems that one kernel has by itself."""
    return [Finding(severity, name, message) for severity, message in _problems(portrait, resolution)]


def _problems(portrait: Portrait, resolution: float) -> Iterator[tuple[str, str]]:
    """Severity and message of each problem."""
    if portrait.damaged:
        yield (
            "error",
            f"{len(portrait.damaged)} of {portrait.n_tiles} tiles are damaged or missing, and any result "
            f"from this kernel is void: {portrait.damaged[0]}",
        )
    if portrait.not_finite:
        yield (
            "error",
            f"{portrait.not_finite} entries are NaN or infinite; mend the matrix and import it again, or "
            "leave the kernel out with select()",
        )
    if portrait.asymmetry > 0:
        yield (
            "error",
            f"mirrored entries differ by up to {portrait.asymmetry:.3g} (largest entry "
            f"{portrait.largest:.3g}), and a symmetric set must repeat them exactly: the program that wrote "
            "it broke the format. Import it again",
        )
    limit = max(resolution, 1e-10)
    for what, error in (("row sums", portrait.row_sum_error), ("diagonal", portrait.diagonal_error)):
        if error > limit:
            yield (
                "error",
                f"the stored {what} are off by {error:.3g} of their size, and centering and normalizing use "
                "them: the program that wrote the set broke the format. Import it again",
            )
    if portrait.is_labels:
        yield (
            "warning",
            "it is the labels under another name: its entries depend on nothing but the classes of both samples. What "
            "is learned with it says nothing about new samples; leave it out with select()",
        )
    if portrait.extremes is None:
        return
    yield from _spectral(portrait, resolution)
    if is_constant(portrait, resolution):
        yield (
            "warning",
            f"it is constant: of its trace, {portrait.trace:.3g}, centering leaves "
            f"{portrait.centered_trace:.3g}, no more than rounding. It tells no samples apart, and "
            "normalizing it after centering will fail; leave it out with select()",
        )
    if portrait.zero_diagonal:
        yield (
            "note",
            f"{portrait.zero_diagonal} samples have k(x, x) = 0, such as samples without any feature: cosine "
            "normalization will refuse them, the others will not",
        )


def _spectral(portrait: Portrait, resolution: float) -> Iterator[tuple[str, str]]:
    part, extremes = negative_part(portrait), portrait.extremes
    if extremes is None or part <= resolution:
        return
    lowest = min(extremes.lowest, portrait.lowest_diagonal)
    figure = f"it has an eigenvalue of {lowest:.3g} or less, {_percent(part)} of its largest"
    if part <= 1e-6:
        message = f"{figure}: no more than a computation in single precision leaves behind; ignore it"
        yield "note", message
        return
    yield (
        "warning",
        f"{figure}. Learners that need positive semidefinite kernels may refuse it; import it again with "
        "--repair clip, flip or shift (repair= in dmkl.create)",
    )


def _percent(part: float) -> str:
    return f"{100 * part:.2g} %" if part < 0.995 else f"{100 * part:.0f} %"


def findings_of_set(
    names: Sequence[str],
    portraits: Sequence[Portrait],
    resolution: float,
    same: Index,
    factor: Float,
) -> Iterator[Finding]:
    """The problems that kernels have with one another.

    `same` has for each kernel the first one that it repeats (its own position if none), `factor` by which factor.
    """
    for j, first in enumerate(same.tolist()):
        if first == j:
            continue
        how = "the same as" if factor[j] == 1.0 else f"{factor[j]:.6g} times"
        more = "" if factor[j] == 1.0 else " once both are centered"
        yield Finding(
            "warning",
            names[j],
            f"it is {how} kernel {names[first]!r}{more}: learners divide a weight between such kernels as "
            "they please, so that neither weight can be read; leave one out with select()",
        )
    scales = np.array([p.centered_trace if p.extremes else np.nan for p in portraits])
    usable = np.flatnonzero([s > 0 and not is_constant(p, resolution) for s, p in zip(scales, portraits, strict=True)])
    if not usable.size:
        return
    low, high = usable[scales[usable].argmin()], usable[scales[usable].argmax()]
    if scales[high] > 1e3 * scales[low]:
        yield Finding(
            "note",
            "",
            f"the kernels are of very different scales: once centered, the trace of {names[high]!r} "
            f"({scales[high]:.3g}) is {scales[high] / scales[low]:.2g} times that of {names[low]!r} "
            f"({scales[low]:.3g}). Learn with a step that normalizes ('trace', 'multiplicative'), or the "
            "weights mirror the scales",
        )
