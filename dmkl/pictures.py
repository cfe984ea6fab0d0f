"""Helpers that all figures share: an empty figure, and shortened names."""

from __future__ import annotations

import io

from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

__all__ = ["picture", "shortened"]


class _Picture(Figure):
    """Shows itself in a notebook also where pyplot, which would see to it, was never imported."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png")
        return file.getvalue()


def picture(width: float, height: float) -> Figure:
    """An empty figure, its size in inches."""
    # Inches around each panel.
    return _Picture(figsize=(width, height), dpi=110, layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08))


def shortened(name: str, longest: int) -> str:
    """Shorten a long name in its middle, and escape it from mathematical markup."""
    half = (longest - 1) // 2
    short = name if len(name) <= longest else f"{name[:half]}…{name[-half:]}"
    return short.replace("$", r"\$")
