"""How the choice of a search compares with the baselines that were fitted beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from dmkl.searching.choice import Rule
from dmkl.searching.means import best_index, mean_and_error, mean_and_margin, task_dim
from dmkl.searching.texts import told, with_error
from dmkl.variables import describe

__all__ = ["TITLES", "baseline_params", "baselines_of", "baselines_told"]

TITLES = {"sum": "plain sum of the kernels", "svm": "SVM on the sum of kernels", "alone": "best single kernel"}
"""By the beginning of the names of their scores."""


def baselines_of(scores: xr.Dataset, rule: Rule, by: Sequence[str]) -> xr.Dataset | None:
    """The chosen point of each baseline; None where none was fitted. See `SearchResult.baselines`."""
    found = [
        _chosen(scores, what, rule, by)
        for what in TITLES
        if f"{what}_score" in scores and bool(np.isfinite(scores[f"{what}_score"]).any())
    ]
    if not found:
        return None
    titles = [TITLES[what] for what in TITLES if f"{what}_score" in scores]
    whole = xr.concat(found, xr.Variable("baseline", np.array(titles[: len(found)], dtype=str)), data_vars="all")
    return describe(whole.drop_attrs(deep=False))


def _chosen(scores: xr.Dataset, what: str, rule: Rule, by: Sequence[str]) -> xr.Dataset:
    """A baseline at the point that its own validation scores choose, as the search chooses."""
    # In an order that does not depend on how the data were read.
    mine = [str(name) for name in scores.data_vars if str(name).startswith(f"{what}_")]
    mine.sort(key=_place)
    own = scores[mine]
    own = own.rename({name: str(name).removeprefix(f"{what}_") for name in own.data_vars})
    own = own.assign({name: values.drop_attrs(deep=False) for name, values in own.data_vars.items()})
    dim = task_dim(scores)
    names = [str(name) for name in own["score"].dims if name not in ("fold", dim)]
    mean, error = mean_and_error(own["score"])
    if "fold" in by:
        mean, error = own["score"], xr.full_like(own["score"], np.nan)
    index = best_index(own.assign(mean_score=mean, standard_error=error), names, by, rule) if names else {}
    chosen = own.isel(index).reset_coords([name for name in names if name in own.coords])
    kernel = chosen["kernel"].drop_attrs() if "kernel" in names else xr.DataArray("")
    return chosen.drop_vars("kernel", errors="ignore").assign(best_kernel=kernel.drop_vars("kernel", errors="ignore"))


def _place(name: str) -> tuple[int, str]:
    """Scores, test scores, and what is proven of them."""
    return next(k for k, part in enumerate(("_test_score", "_score", "_gap", "_objective")) if part in name), name


def baseline_params(one: xr.Dataset, names: Sequence[str]) -> dict[str, Any]:
    """The chosen values of a baseline, and which kernel it is, where folds and tasks agree on them."""
    found: dict[str, Any] = {}
    for name in ("best_kernel", *dict.fromkeys([*names, "C"])):
        values = one[name].values.ravel().tolist() if name in one else []
        if values and values[0] != "" and all(value == values[0] for value in values):
            found["kernel" if name == "best_kernel" else name] = values[0]
    return found


def baselines_told(chosen: xr.Dataset, baselines: xr.Dataset, names: Sequence[str]) -> list[str]:
    """A sentence for each baseline: how good it is, and whether the search does better.

    By the test rows where there are any, which nothing has chosen on, and the validation rows otherwise.
    """
    rows = "test_score" if "test_score" in chosen else "score"
    where = "in test" if rows == "test_score" else "in validation"
    lines = []
    for title in baselines["baseline"].values:
        one = baselines.sel(baseline=title)
        over = [dim for dim in one[rows].dims if dim != "fold"]
        own = with_error(*mean_and_error(one[rows].mean(over)))
        params = baseline_params(one, names)
        point = f" ({told(params)})" if params else ""
        difference = (chosen[rows] - one[rows]).mean(over)
        mean, margin = map(float, mean_and_margin(difference, chosen, where.removeprefix("in ")))
        lines.append(f"{str(title)[:1].upper()}{str(title)[1:]}{point}: {own} {where}; {_verdict(mean, margin)}")
    return lines


def _verdict(difference: float, margin: float) -> str:
    """A paired difference over folds in words; `margin` is half the width of its 95 % interval."""
    if not np.isfinite(difference):
        return "no difference is known"
    if abs(difference) <= 1e-12:
        return "it does as well as the choice"
    by = f"{abs(difference):.4g}" + (f" (95 %: ±{margin:.2g})" if np.isfinite(margin) else "")
    chance = ", which may be chance" if np.isfinite(margin) and not 0 < margin < abs(difference) else ""
    if difference < 0:
        return f"it does better than the choice, by {by} paired over folds{chance}"
    return f"the choice has {by} more, paired over folds{chance}"
