"""What each kernel adds: scores without it and with it alone, paired over folds, and Shapley values."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pandas as pd
import xarray as xr

from dmkl.inference.finding import Finding
from dmkl.searching.means import chance_told, mean_and_margin, task_dim
from dmkl.searching.texts import count, with_error

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Importance"]

_TOLD = 3
"""Sources that a summary names."""


class Importance(Finding):
    """What each kernel, and each named group of kernels, adds to a score.

    Made by `dmkl.importance` and by `dmkl.load`. A source is a kernel or a group of them.

    Parameters
    ----------
    data
        A Dataset:

        ================================== ======================== ===================================================
        score[_NAME]                       fold[, task]             of all kernels, by the deciding measure and others
        score_without[_NAME]               source, fold[, task]     refitted without the source
        score_alone[_NAME]                 source, fold[, task]     refitted with the source alone
        loss[_NAME]                        source[, task]           mean over folds of score − score_without
        loss_standard_error[_NAME]         source[, task]           of that mean: s/√n of the differences within folds
        member                             source, kernel           whether the source holds the kernel
        weight, weight_without             [source,] fold, kernel[, task] β
        objective, gap, status[_…]         [source,] fold[, task]   of the three fits, as in `SearchResult.scores`
        name of a parameter                [fold][, task]           its chosen value; with _without and _alone over
                                                                    source where it was chosen anew
        shapley                            player[, task]           mean over orders and folds of what a player adds
        shapley_standard_error             player[, task]           of the mean over the orders that were sampled
        shapley_by_fold                    player, fold[, task]     mean over orders
        part, sample_group                 [fold,] sample           the folds, as in `SearchResult.scores`
        ================================== ======================== ===================================================

        The Shapley values of all players add up to the score of all kernels less `score_of_nothing` (fold[, task]).
        Attributes: estimator, parameters (JSON), scoring, measures (JSON), kind, choose ("held" or "anew"), choice
        ("joint" or "fold"), rows ("validation" or "test"), parameters_searched (JSON), n_fits, n_passes,
        n_search_passes (those among them that the search took; 0 where everything was one plan), n_orders,
        random_state, seconds, solver.

    Notes
    -----
    Standard errors s/√n take folds for independent, which folds that share training rows are not: two of them to either
    side hold the mean over data sets in 71 to 90 of 100 cases. `table`, `summary` and `plot` therefore have half the
    width of 95 % intervals, t · s · √(1/n + n_test/n_train) with Student's t of n − 1 degrees of freedom and the
    correction of Nadeau and Bengio (Machine Learning 52, 2003), which were seen to hold it in 92 to 98 of 100.
    """

    FORMAT = "dmkl-importance"
    TITLE = "importance"
    NEEDED = ("score", "score_without", "score_alone", "loss", "loss_standard_error", "member", "weight", "gap")
    MEANINGS: ClassVar = {
        "score": "score of all kernels",
        "score_without": "score without the source",
        "score_alone": "score of the source alone",
        "score_of_nothing": "score of the same decision for all rows",
        "loss": "mean loss in score without the source",
        "loss_standard_error": "standard error of the mean loss, paired over folds",
        "member": "whether the source holds the kernel",
        "player": "a kernel or group of kernels that joins others",
        "source": "a kernel, or a named group of kernels",
        "weight": "kernel weight",
        "weight_without": "kernel weight without the source",
        "gap": "proven relative gap, NaN where nothing is proven",
        "gap_without": "proven relative gap without the source",
        "gap_alone": "proven relative gap of the source alone",
        "status_without": "how the solver ended without the source",
        "status_alone": "how the solver ended on the source alone",
        "objective": "objective",
        "objective_without": "objective without the source",
        "objective_alone": "objective of the source alone",
        "shapley": "Shapley value: mean over orders of what the player adds to those before it",
        "shapley_standard_error": "standard error of the Shapley value, by the orders that were sampled",
        "shapley_by_fold": "Shapley value in the fold",
    }

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the kernels, then of the groups."""
        return tuple(map(str, self.data["source"].values))

    @property
    def measures(self) -> tuple[str, ...]:
        """Names of the measures, the deciding one first."""
        return tuple(json.loads(self.data.attrs["measures"]))

    def table(self) -> pd.DataFrame:
        """The sources, the largest loss first.

        Returns
        -------
        DataFrame
            source, task (where there are several), loss, loss_standard_error and loss_margin, half the width of its
            95 % interval; alone, the mean score of the source alone, and alone_margin; shapley and
            shapley_standard_error where they were asked for; gap, the largest of its fits. Where there are several
            tasks, those of each source are together.
        """
        data, dim = self.data, task_dim(self.data)
        _, margin = self._mean_and_margin(data["score"] - data["score_without"])
        alone, alone_margin = self._mean_and_margin(data["score_alone"])
        values = data[["loss", "loss_standard_error"]].assign(
            loss_margin=margin.round(12), alone=alone, alone_margin=alone_margin
        )
        if "shapley" in data:
            of_players = data[["shapley", "shapley_standard_error"]].rename(player="source")
            values = values.assign(of_players.reindex(source=data["source"].values))
        gaps = xr.concat([data["gap_without"], data["gap_alone"]], "fit")
        values = values.assign(gap=gaps.max(["fit", "fold"]))
        total = data["loss"] if dim is None else data["loss"].mean(dim)
        order = np.argsort(-total.values, kind="stable")
        by = ["source"] if dim is None else ["source", dim]
        frame = values.isel(source=order).to_dataframe(dim_order=by).reset_index()
        return frame[[*by, *values.data_vars]]

    def summary(self) -> str:
        """A few lines: what was asked, what is lost without which source, what it took."""
        data, attrs = self.data, self.data.attrs
        n_kernels = data.sizes["kernel"]
        n_groups = data.sizes["source"] - n_kernels
        asked = count(n_kernels, "kernel") + (f" and {count(n_groups, 'group')}" if n_groups else "")
        lines = [
            f"Importance of {asked} to {attrs['estimator']}: {count(data.sizes['fold'], 'fold')}, {self._chosen()}"
        ]
        seen = "no choice has seen" if attrs["rows"] == "test" else "the choice has seen"
        score = with_error(*self._mean_and_margin(self._over_tasks(data["score"])))
        lines.append(f"{attrs['scoring']} {score} with all kernels, on {attrs['rows']} rows, which {seen}")
        lines += chance_told(data["score"], data, str(attrs["rows"]))
        loss = self._mean_and_margin(self._over_tasks(data["score"] - data["score_without"]))
        lines.append(f"Lost without: {_largest(*loss)}")
        lines.append(f"Alone: {_largest(*self._mean_and_margin(self._over_tasks(data['score_alone'])))}")
        if data.sizes["fold"] > 1:
            lines.append("± is half the width of a 95 % interval: Student's t, corrected for training rows in common")
        if "shapley" in data:
            shapley, error = (self._over_tasks(data[name]) for name in ("shapley", "shapley_standard_error"))
            told = _largest(shapley.rename(player="source"), error.rename(player="source"))
            lines.append(f"Shapley values by {count(attrs['n_orders'], 'order')}, ± their standard error: {told}")
        lines.append(f"{count(attrs['n_fits'], 'fit')}{self._proven()} in {self._took()}")
        return "\n".join(lines)

    def _chosen(self) -> str:
        """How the parameters of the fits were chosen."""
        names = " and ".join(json.loads(self.data.attrs["parameters_searched"]))
        by = "of all folds together" if self.data.attrs["choice"] == "joint" else "of each fold"
        if self.data.attrs["choose"] == "anew":
            return f"{names} chosen anew for each set of kernels, by the choice {by}"
        return f"{names} held at the choice {by}"

    def _mean_and_margin(self, values: xr.DataArray) -> tuple[xr.DataArray, xr.DataArray]:
        return mean_and_margin(values, self.data, str(self.data.attrs.get("rows", "validation")))

    def _over_tasks(self, values: xr.DataArray) -> xr.DataArray:
        dim = task_dim(self.data)
        return values if dim is None else values.mean(dim)

    def _proven(self) -> str:
        gap = max(float(self.data[name].max()) for name in ("gap", "gap_without", "gap_alone"))
        return f" (largest gap {gap:.1e})" if np.isfinite(gap) else ""

    def _took(self) -> str:
        attrs = self.data.attrs
        of_search = f", {attrs['n_search_passes']:g} of them for the search" if attrs["n_search_passes"] else ""
        return f"{count(self.n_passes_, 'pass')}{of_search}, {attrs['seconds']:.3g} s"

    def plot(self, task: str | None = None) -> Figure:
        """Draw what is lost without each source, and what it reaches alone, with 95 % intervals.

        Left the losses in score, paired over folds, the largest first; groups are darker than kernels. Right the score
        of each source alone beside that of all kernels (the line, with its interval), and then the Shapley
        values, where they were asked for.

        Parameters
        ----------
        task
            Of a multilabel problem, or a target; means over all of them where None.

        Returns
        -------
        Figure
            A matplotlib figure with the 40 sources of the largest losses, if there are more, which its title says.

        Raises
        ------
        InputError
            If there is no such task.
        """
        from dmkl.inference.importance_plot import plot_importance

        return plot_importance(self.data, task)


def _largest(mean: xr.DataArray, error: xr.DataArray) -> str:
    """The sources with the largest means, with their errors."""
    order = np.argsort(-np.nan_to_num(mean.values, nan=-np.inf), kind="stable")
    told = [f"{mean['source'].values[k]} {with_error(mean.values[k], error.values[k])}" for k in order[:_TOLD]]
    return f"{', '.join(told)}{' …' if len(order) > _TOLD else ''}"
