"""Options that say what is searched, how folds choose, and by which measures; shared by several commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from dmkl.cli.options import option
from dmkl.cli.parsing import parse_grid

if TYPE_CHECKING:
    from dmkl.kernelset import KernelSet
    from dmkl.searching.choice import Rule

__all__ = [
    "FOLDS",
    "ChoiceName",
    "Costs",
    "Folds",
    "Grid",
    "Groups",
    "Norms",
    "Ridges",
    "RuleName",
    "Scoring",
    "grid_values",
    "rule_of",
]

_GRID = "Grid"
FOLDS = "Folds and choice"

Norms = Annotated[
    str | None,
    option(
        "Norms of the weights, such as 1,4/3,1+2^-6,inf. [default: 12 from 1 to inf]", "P,P,…", "--p", "-p", panel=_GRID
    ),
]
Ridges = Annotated[str | None, option("Ridges. [default: 10 powers of 10 or 4]", "λ,λ,…", panel=_GRID)]
Costs = Annotated[str | None, option("SVM penalties. [default: 2^-2 to 2^7]", "C,C,…", "--C", "-C", panel=_GRID)]
Grid = Annotated[
    list[str] | None,
    option("Values of another parameter, such as steps=center+trace,none; repeatable.", "NAME=V,V,…", panel=_GRID),
]
Folds = Annotated[
    str | None,
    option(
        'How many, "splits" (stored ones), or a splitter of scikit-learn such as "GroupKFold(5)". '
        "[default: splits with validation samples, else 5]",
        "FOLDS",
        "--cv",
        panel=FOLDS,
    ),
]
Groups = Annotated[
    Path | None, option("Group of each sample, which no fold splits: one a line, or sample,group.", "FILE", panel=FOLDS)
]
Scoring = Annotated[
    list[str] | None,
    option(
        "Measures such as accuracy,matthews; the first chooses.",
        "NAME,…",
        panel=FOLDS,
    ),
]
RuleName = Annotated[
    Literal["best", "one-standard-error"],
    option(
        'Take the "best" point, or the simplest one within "one-standard-error". [default: best]',
        "RULE",
        show_default=False,
        panel=FOLDS,
    ),
]

ChoiceName = Annotated[
    Literal["fold", "joint"] | None,
    option(
        'Each "fold" chooses, or "joint": one for all. [default: fold with test rows]',
        "WHO",
        "--choice",
        panel=FOLDS,
    ),
]


def grid_values(
    estimator: Any, K: KernelSet, p: str | None, lam: str | None, C: str | None, grid: list[str] | None
) -> dict[str, Any]:
    """The grid that the options ask for: the default values of a parameter where its option is missing."""
    from dmkl.searching.grid import as_grid

    several = K.labels is not None and K.labels.ndim == 2
    named = [f"{name}={texts}" for name, texts in (("p", p), ("lam", lam), ("C", C)) if texts is not None]
    return {**as_grid(None, estimator, several=several), **parse_grid([*named, *(grid or ())])}


def rule_of(name: str) -> Rule:
    """The rule of `dmkl.searching.choice` by its name on the command line."""
    return "best" if name == "best" else "one_standard_error"
