"""Descriptions of results in words: a title, and sentences by subject."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Key = Literal[
    "choice",
    "choices",
    "scores",
    "chance",
    "kernels_part",
    "baselines",
    "inner_scores",
    "kernels",
    "losses",
    "notes",
    "costs",
    "time",
]
"""Subjects of sentences: the chosen point, or one line for each of several; scores; their p-values; the score of the
kernels' part given covariates; simpler models; scores in the folds that chose; what is known of the kernels; what is
lost without a kernel, and others that a table has; cautions; fits, passes and the proof; seconds by phase."""


@dataclass(frozen=True)
class Description:
    """A result in words, of which summaries, reports and JSON are renderings.

    Parameters
    ----------
    title
        The kind of the result and its learner, such as "Search of MKFDA".
    scope
        The grid, the folds or the resamples; may be empty.
    sentences
        Lines by subject, in the order of reading. Renderings choose by key, never by words.
    """

    title: str
    scope: str
    sentences: Mapping[Key, Sequence[str]]

    @property
    def headline(self) -> str:
        """Title and scope in a line."""
        return ": ".join(part for part in (self.title, self.scope) if part)

    def lines(self, *keys: Key, without: Collection[Key] = ()) -> list[str]:
        """The sentences of some keys, in the order of these; if none is given, of all but those in `without`."""
        return [
            f"  {line}" if key == "choices" else line
            for key in keys or self.sentences
            if key not in without
            for line in self.sentences.get(key, ())
        ]

    def as_mapping(self) -> dict[str, Any]:
        """Title, scope and sentences by key, for JSON."""
        return {"title": self.title, "scope": self.scope, **{key: list(of) for key, of in self.sentences.items() if of}}

    def __str__(self) -> str:
        return "\n".join([self.headline, *self.lines()])
