"""Options that say what is searched, how folds choose, and by which measures; shared by several commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from dmkl.cli.options import option
from dmkl.cli.parsing import known_names, parse_grid

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    "chains_to_try",
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
        'The "best" point, or the simplest within "one-standard-error". [default: best]',
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
    """The grid that the options ask for: the default values of a parameter where its option is missing.

    The default of lam is None where several chains of steps are searched, for `dmkl.search` to give each its own.
    """
    from dmkl.searching.grid import as_grid

    several = K.labels is not None and K.labels.ndim == 2
    named = [f"{name}={texts}" for name, texts in (("p", p), ("lam", lam), ("C", C)) if texts is not None]
    given = parse_grid([*named, *(grid or ())], known_names(K))
    values: dict[str, Any] = as_grid(None, estimator, several=several)
    if "lam" in values and "steps" in given:
        values["lam"] = None
    return {**values, **given}


def chains_to_try(estimator: Any, K: KernelSet, values: Mapping[str, Any], steps: Any) -> tuple[dict[str, Any], str]:
    """The grid with both chains of steps of the papers where their choice matters, and a note that says so.

    Both are tried where nobody has chosen steps or values of lam, and the diagonal of a kernel varies by more than
    `MOST_VARIATION`. Several tasks have one chain in common, which they cannot choose each for itself.

    Parameters
    ----------
    values
        What `grid_values` has made.
    steps
        What the option --steps says; None where it is not given.
    """
    from dmkl.numerics.steps import as_steps
    from dmkl.searching.grid import CHAINS, MOST_VARIATION, diagonal_variation, lams_of

    chain = as_steps(getattr(estimator, "steps", ()))
    several = K.labels is not None and K.labels.ndim == 2
    if steps is not None or "steps" in values or several or chain != CHAINS[0] or values.get("lam") != lams_of(chain):
        return dict(values), ""
    names = ["+".join(each) for each in CHAINS]
    variation = diagonal_variation(K)
    if variation <= MOST_VARIATION:
        note = f"one chain of steps is tried, {names[0]}; to compare it with another: --grid steps={','.join(names)}"
        return dict(values), note
    note = (
        f"the samples differ in k(x, x), by a coefficient of variation of up to {variation:.2g}, so that the steps "
        f"{' and '.join(names)} are both tried, each with values of lam of its own: twice as many fits, in the same "
        f"passes. --steps {names[0]} tries that chain alone"
    )
    return {**values, "lam": None, "steps": list(CHAINS)}, note


def rule_of(name: str) -> Rule:
    """The rule of `dmkl.searching.choice` by its name on the command line."""
    return "best" if name == "best" else "one_standard_error"
