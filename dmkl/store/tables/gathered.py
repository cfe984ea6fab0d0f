"""What was found before it is put into order."""

from __future__ import annotations

from dataclasses import dataclass, field

from dmkl.store.files.labels import Found
from dmkl.store.tables.blocks import SourceBlock

__all__ = ["LABEL_ROLES", "Gathered"]

LABEL_ROLES = ("labels", "splits", "tasks")
"""What is kept of what is found beside features, the names of samples apart."""


@dataclass
class Gathered:
    """Blocks, and what was found beside them.

    Parameters
    ----------
    blocks
        Each in the order of its source.
    found
        Labels, splits and names of tasks.
    samples
        Names of the rows of all blocks that carry none.
    notes
        What was left out or taken for what.
    """

    blocks: list[SourceBlock] = field(default_factory=list)
    found: list[Found] = field(default_factory=list)
    samples: tuple[str, ...] | None = None
    notes: list[str] = field(default_factory=list)
