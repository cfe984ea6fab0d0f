"""What a permutation test found: p-values of the score and of kernels, and the distributions that they come from."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd
import xarray as xr

from dmkl.inference.finding import Finding
from dmkl.searching.labeled import values_of
from dmkl.searching.texts import count, told

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["PermutationTest", "with_p_values"]

_ROUNDING = 1e-12
"""Statistics that differ by less, relative to their size, tie: sums in another order differ by as much."""
_LEVEL, _MOST_KERNELS = 0.05, 5


class PermutationTest(Finding):
    """What a permutation test found.

    Made by `dmkl.permutation_test` and by `dmkl.load`; everything it knows is in `data`, a Dataset with the dimensions
    "permutation", "kernel", "sample", and "task" ("target" of a regression) where there are several:

    ============================== ====================== ==========================================================
    score                          [task]                 mean validation score at the chosen point
    null_score                     permutation[, task]    the same of permuted labels
    weight_share                   [task,] kernel         β_j/Σβ there, as a mean over the folds
    null_weight_share              permutation[, task],   the same of permuted labels
                                   kernel
    p_value, p_value_error         [task]                 of the score, with its standard error
    kernel_p_value                 [task,] kernel         of the share of each kernel by itself
    kernel_p_value_corrected       [task,] kernel         corrected over the kernels by the maximum statistic
    order                          permutation, sample    the row whose label a row was given
    part, sample_group             [fold,] sample         the folds, as in `SearchResult.scores`
    name of a parameter            [task]                 its chosen value
    ``null_`` and a parameter      permutation[, task]    that of permuted labels
    ============================== ====================== ==========================================================

    Attributes: estimator, scoring, choose, permuted, random_state, parameters_searched (JSON), n_points, n_folds,
    largest_gap (proven, of the chosen points), n_passes, seconds, created_by.

    Notes
    -----
    A p-value is (b + 1)/(B + 1), where b of B permutations have a statistic that is no smaller than that of the labels
    as they are, and its standard error √(p(1 − p)/(B + 1)) tells what more permutations would make of it. The test of a
    kernel asks whether its share is larger than labels without any meaning would make it, given all other kernels and
    the norm: for p → ∞ shares are all alike whatever the labels, and of two kernels that tell the same either may have
    the share of both. Before the maximum over kernels is taken, the shares of each are measured from their mean over
    all permutations in units of their standard deviation, so that no kernel rules the maximum by its scale.
    """

    FORMAT: ClassVar[str] = "dmkl-permutation-test"
    TITLE: ClassVar[str] = "permutation test"
    NEEDED = (
        "score",
        "null_score",
        "weight_share",
        "null_weight_share",
        "p_value",
        "p_value_error",
        "kernel_p_value",
        "kernel_p_value_corrected",
    )
    MEANINGS: ClassVar = {
        "score": "mean validation score at the chosen point",
        "null_score": "mean validation score of permuted labels",
        "weight_share": "share of the kernel weights, mean over folds",
        "null_weight_share": "share of the kernel weights of permuted labels",
        "p_value": "p-value of the score",
        "p_value_error": "standard error of the p-value",
        "kernel_p_value": "p-value of the share of a kernel by itself",
        "kernel_p_value_corrected": "p-value of the share, corrected over the kernels by the maximum",
        "order": "the row whose label a row was given, from 0",
    }

    @property
    def n_permutations(self) -> int:
        """B."""
        return int(self.data.sizes["permutation"])

    @property
    def p_value(self) -> Any:
        """(b + 1)/(B + 1) of the score; over task where there are several."""
        return _number(self.data["p_value"])

    @property
    def p_value_error(self) -> Any:
        """Its standard error."""
        return _number(self.data["p_value_error"])

    @property
    def kernel_p_values(self) -> xr.Dataset:
        """The p-value of each kernel's share of the weight: `raw`, by itself, and `corrected` over the kernels."""
        names = {"kernel_p_value": "raw", "kernel_p_value_corrected": "corrected"}
        return self.data[list(names)].rename(names)

    def table(self) -> pd.DataFrame:
        """The kernels, smallest corrected p-value first.

        Returns
        -------
        DataFrame
            task where there are several, kernel, share of the weight, its mean under permutation, p, corrected p.
        """
        data = self.data
        names = {
            "weight_share": "share",
            "null_mean": "permuted share",
            "kernel_p_value": "p",
            "kernel_p_value_corrected": "corrected p",
        }
        found = data.assign(null_mean=data["null_weight_share"].mean("permutation"))[list(names)].rename(names)
        frame = found.to_dataframe(dim_order=list(data["weight_share"].dims)).reset_index()
        frame = frame.astype(dict.fromkeys(data["weight_share"].dims, object))
        return frame.sort_values(["corrected p", "p"], kind="stable").reset_index(drop=True)

    def summary(self) -> str:
        """A few lines: what was tested, the p-values, what it took."""
        data, attrs = self.data, self.data.attrs
        names = json.loads(attrs["parameters_searched"])
        lines = [
            f"Permutation test of {attrs['estimator']}: {count(self.n_permutations, 'permutation')} "
            f"{attrs['permuted']}, {count(attrs['n_points'], 'point')}, {count(attrs['n_folds'], 'fold')}"
        ]
        dim = next((str(dim) for dim in data["score"].dims), None)
        for k in range(1 if dim is None else data.sizes[dim]):
            one = data if dim is None else data.isel({dim: k})
            null, chosen = one["null_score"], {name: values_of(one[name])[0] for name in names}
            who = "" if dim is None else f"{one[dim].item()}: "
            lines.append(
                f"{who}{attrs['scoring']} {float(one['score']):.4g} at {told(chosen)}; permuted "
                f"{float(null.mean()):.4g}, at most {float(null.max()):.4g}: p = {float(one['p_value']):.3g} ± "
                f"{float(one['p_value_error']):.1g}"
            )
            lines.append(f"{who}{_kernels_told(one)}")
        if attrs["choose"] == "fixed":
            how = "The point was chosen once, by the labels as they are: p-values are too small if there was a choice"
        else:
            how = "The point was chosen anew for each permutation"
        return "\n".join([*lines, how, f"{count(self.n_passes_, 'pass')}, {attrs['seconds']:.3g} s"])

    def plot(self, ax: Axes | None = None, *, task: str | None = None) -> Figure:
        """Draw the scores of permuted labels and the one observed; see `plot_permutations` of `permutation_plot`."""
        from dmkl.inference.permutation_plot import plot_permutations

        return plot_permutations(self.data, ax, task)


def _number(values: xr.DataArray) -> Any:
    return float(values) if values.ndim == 0 else values


def _kernels_told(one: xr.Dataset) -> str:
    corrected = one["kernel_p_value_corrected"].to_series().sort_values(kind="stable")
    found = corrected[corrected <= _LEVEL]
    if found.empty:
        return f"No kernel has more of the weight than under permutation (corrected p > {_LEVEL})"
    shown = ", ".join(f"{name} ({p:.3g})" for name, p in found.items()) if len(found) <= _MOST_KERNELS else ""
    if not shown:
        shown = ", ".join(f"{name} ({p:.3g})" for name, p in found[:_MOST_KERNELS].items()) + " …"
    return f"More of the weight than under permutation (corrected p ≤ {_LEVEL}), {count(len(found), 'kernel')}: {shown}"


def with_p_values(data: xr.Dataset) -> xr.Dataset:
    """With the p-values that the distributions of `data` give."""
    b, size = data.sizes["permutation"], abs(data["score"]) * _ROUNDING
    p = (1.0 + (data["null_score"] >= data["score"] - size).sum("permutation")) / (b + 1.0)
    own, null = data["weight_share"], data["null_weight_share"]
    every = xr.concat([own, null.drop_vars("permutation")], "permutation")
    # By the same measure for all of them, the observed one among them, as the test asks for.
    spread = every.std("permutation")
    spread = spread.where(spread > _ROUNDING, np.inf)
    z_own, z_null = ((values - every.mean("permutation")) / spread for values in (own, null))
    raw = (1.0 + (null >= own - _ROUNDING).sum("permutation")) / (b + 1.0)
    corrected = (1.0 + (z_null.max("kernel") >= z_own - _ROUNDING).sum("permutation")) / (b + 1.0)
    return data.assign(
        p_value=p,
        p_value_error=np.sqrt(p * (1.0 - p) / (b + 1.0)),
        kernel_p_value=raw,
        kernel_p_value_corrected=corrected.transpose(*raw.dims),
    )
