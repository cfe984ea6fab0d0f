"""What resampling found: kernel weights over resamples, how often each kernel is selected, how far to trust that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd
import xarray as xr

from dmkl.inference.finding import Finding
from dmkl.inference.selection import check_threshold, error_bound, unimodal_error_bound
from dmkl.searching.means import chance_told, task_dim, tasks_of
from dmkl.searching.texts import count

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Stability"]

TITLES = {"half": "half-samples", "bootstrap": "bootstrap samples", "folds": "samples without a fold"}
_TOLD = 10
"""Names that a sentence lists."""
_DEPENDS = (
    "Stable weights need not be right ones: a kernel of noise with many equal eigenvalues wins weight at a small λ in "
    "every resample"
)


class Stability(Finding):
    """Kernel weights over resamples of the rows, and what they tell of the kernels.

    Made by `dmkl.stability` and by `dmkl.load`. With n kernels; of a multilabel problem or a regression of several
    targets everything is over task or target as well:

    ============================= =====================================================================================
    weight (resample, kernel)     β of the fit to the rows of a resample; of several classes against the rest, or pairs,
                                  their mean
    mean_weight (kernel)          their mean over the resamples
    standard_error (kernel)       of the weight of a fit to all rows, by the resamples: their standard deviation, times
                                  √(k − 1) for k folds (the jackknife)
    lower, upper (kernel)         2.5 and 97.5 percent points of the weights over the resamples
    selected (resample, kernel)   whether the resample selects the kernel
    selection_frequency (kernel)  share of the resamples that do
    rank_agreement                Kendall's W of the order of the kernels by weight: 1 where all resamples agree
    score[_NAME] (resample)       on the rows left out, of the deciding measure and of others
    gap, objective, status        of each fit, as in `SearchResult.scores`
    n_train, n_test (resample)    different rows that train, and rows left out
    part (resample, sample)       0 where the sample trains, 1 where it is left out
    n_drawn (resample, sample)    of a bootstrap, how often the sample was drawn
    sample_group (sample)         the groups that no resample splits, where there were some
    constant_score (resample)     of one decision for all rows that were left out
    ============================= =====================================================================================

    Attributes: how, threshold, n_selected (0 where a share of the largest weight decides), random_state, n_distinct
    (how many of the resamples differ; results of older versions lack it), estimator, parameters (JSON), scoring,
    measures (JSON list), kind, n_passes, seconds, solver, asked (JSON, as in `SearchResult.scores`), default_price (a
    sentence where λ or C was the default).
    """

    FORMAT, TITLE = "dmkl-stability", "result of resampling"
    NEEDED = ("weight", "mean_weight", "standard_error", "selected", "selection_frequency", "score", "gap", "status")
    MEANINGS: ClassVar[Mapping[str, str]] = {
        "weight": "kernel weight",
        "mean_weight": "mean kernel weight",
        "standard_error": "standard error of the kernel weight",
        "lower": "2.5 percent point of the kernel weight",
        "upper": "97.5 percent point of the kernel weight",
        "selected": "whether the resample selects the kernel",
        "selection_frequency": "share of the resamples that select the kernel",
        "rank_agreement": "Kendall's W of the order of the kernels",
        "score": "score on the rows left out",
        "gap": "proven relative gap, NaN where nothing is proven",
        "objective": "objective",
        "status": "how the solver ended",
        "n_train": "different training rows",
        "n_test": "rows left out",
    }

    @property
    def tasks(self) -> tuple[str, ...] | None:
        """Names of the tasks of a multilabel problem, or of the targets of a regression of several; None otherwise."""
        return tasks_of(self.data)

    @property
    def threshold(self) -> float:
        """The share π of the resamples that makes a kernel count as stable."""
        return float(self.data.attrs["threshold"])

    def stable(self, threshold: float | None = None) -> xr.DataArray:
        """Whether the share π of the resamples, or more, selects each kernel: (kernel[, task]).

        Parameters
        ----------
        threshold
            π; the one that was asked for by default. `error_bound` holds for one that was chosen beforehand.

        Raises
        ------
        InputError
            If it is not in (1/2, 1].
        """
        return (self.data["selection_frequency"] >= self._threshold(threshold)).drop_attrs().rename("stable")

    def error_bound(self, threshold: float | None = None, *, unimodal: bool = False) -> Any:
        """How many kernels of low selection probability are expected among the stable ones, at most.

        q²/((2π − 1)n), where q is the number of kernels that a half-sample selects on average: of kernels that one
        half-sample selects with probability q/n or less. That assumes independent samples, and no more (whole groups
        drawn as such count as the samples). Where the useless kernels are selected with equal probabilities, and not
        more often than at random, it bounds the number of useless ones. Above n it says nothing; ask for fewer kernels
        of each resample (`n_selected`) or a larger share of the resamples.

        Parameters
        ----------
        threshold
            π; the one that was asked for by default.
        unimodal
            The sharper bound under the assumption that the share of pairs that select a kernel twice has a unimodal
            distribution. See Shah and Samworth (2013), Theorem 2; `dmkl.stability` has the references.

        Returns
        -------
        float or DataArray
            Over task or target where there are some. NaN for resamples that are no half-samples, for which no bound is
            known.

        Raises
        ------
        InputError
            If `threshold` is not in (1/2, 1].
        """
        pi, data = self._threshold(threshold), self.data
        n, n_pairs = data.sizes["kernel"], data.sizes["resample"] // 2

        def bound(q: float) -> float:
            if data.attrs["how"] != "half":
                return float("nan")
            return unimodal_error_bound(q, n, pi, n_pairs) if unimodal else error_bound(q, n, pi)

        q = self.mean_selected_
        if self.tasks is None:
            return bound(q)
        about = {"long_name": "upper bound of the expected number of kernels that are selected falsely", "units": "1"}
        return q.copy(data=[bound(float(one)) for one in q]).rename("error_bound").assign_attrs(about)

    @property
    def mean_selected_(self) -> Any:
        """q: how many kernels a resample selects on average; over task or target where there are some."""
        q = self.data["selected"].sum("kernel").mean("resample").drop_attrs(deep=False)
        q = q.assign_attrs(long_name="kernels that a resample selects on average", units="1")
        return float(q) if self.tasks is None else q

    def _threshold(self, given: float | None) -> float:
        if given is None:
            return self.threshold
        check_threshold(given)
        return float(given)

    # --- as text, tables and pictures --------------------------------------------------------------------------------

    def table(self) -> pd.DataFrame:
        """A row for each kernel (and task): mean_weight, standard_error, lower, upper, selection_frequency."""
        names = ["mean_weight", "standard_error", "lower", "upper", "selection_frequency"]
        dim = task_dim(self.data)
        by = ["kernel"] if dim is None else ["kernel", dim]
        return self.data[names].drop_vars("resample", errors="ignore").to_dataframe(dim_order=by).reset_index()

    def summary(self) -> str:
        """A few lines: what was resampled, how good the fits are, which kernels are stable, what it took."""
        data, attrs = self.data, self.data.attrs
        tasks = "" if self.tasks is None else f", {len(self.tasks)} {task_dim(data)}s"
        resamples = f"{data.sizes['resample']} {TITLES[attrs['how']]}"
        lines = [f"Stability of {attrs['estimator']}: {resamples}, {count(data.sizes['kernel'], 'kernel')}{tasks}"]
        if (n_distinct := attrs.get("n_distinct", data.sizes["resample"])) < data.sizes["resample"]:
            few = "groups or samples as few as these can be drawn in few ways, and more resamples add little"
            lines.append(f"Only {n_distinct} of the {resamples} are distinct: {few}")
        score = data["score"]
        score = score.mean([dim for dim in score.dims if dim != "resample"])
        spread = f"{attrs['scoring']} {float(score.mean()):.4g} on the rows left out"
        lines.append(f"{spread}, standard deviation over the resamples {float(score.std(ddof=1)):.2g}")
        folds = data.rename_dims(resample="fold")
        lines += chance_told(folds["score"], folds, "validation")
        lines.append(_DEPENDS)
        lines += [attrs["default_price"]] if attrs.get("default_price") else []
        lines.append(f"Agreement on the order of the kernels (Kendall's W): {float(data['rank_agreement'].mean()):.2g}")
        lines += self._stable_told()
        gap = float(data["gap"].max())
        proven = f" (largest gap {gap:.1e})" if np.isfinite(gap) else ""
        lines.append(
            f"{count(data.sizes['resample'], 'fit')}{proven} in {count(self.n_passes_, 'pass')}, "
            f"{attrs['seconds']:.3g} s"
        )
        return "\n".join(lines)

    def _stable_told(self) -> list[str]:
        stable, dim = self.stable(), task_dim(self.data)
        share = f"{100 * self.threshold:g} % of the resamples"
        q = float(np.mean(self.mean_selected_))
        each = f"{q:.3g} of {self.data.sizes['kernel']}" + ("" if dim is None else f" on average over the {dim}s")
        if dim is None:
            names = [str(name) for name in stable["kernel"].values[stable.values]]
            more = f" … ({len(names)})" if len(names) > _TOLD else ""
            lines = [f"Selected by {share} or more: {', '.join(names[:_TOLD]) or 'none'}{more}"]
        else:
            often = stable.sum("kernel")
            lines = [f"Selected by {share} or more: {int(often.min())} to {int(often.max())} kernels by {dim}"]
        bound, most = float(np.max(self.error_bound())), int(stable.sum("kernel").max())
        if np.isfinite(bound) and 0 < most <= bound:
            lines.append(
                f"A resample selects q = {each}: too many for a bound of false selections, which is {bound:.2g} for "
                f"{count(most, 'kernel')}; lower n_selected or raise threshold"
            )
        elif np.isfinite(bound):
            lines.append(
                f"A resample selects q = {each}; of kernels that it selects with probability q/n or less, at most "
                f"{bound:.2g} are expected among those selected so often"
            )
        else:
            lines.append(f"A resample selects {each}; there is a bound of false selections for how='half' alone")
        return lines

    def plot(self, *, task: str | None = None) -> Figure:
        """Draw the weights with their intervals, and the selection frequencies beside them.

        Parameters
        ----------
        task
            Of a multilabel problem, or a target. By default means over all of them are drawn.

        Returns
        -------
        Figure
            A matplotlib figure with kernels from top to bottom as they are stored; the 40 of the largest mean weights
            if there are more, which its title says.

        Raises
        ------
        InputError
            If there is no such task.
        """
        from dmkl.inference.stability_plot import plot_stability

        return plot_stability(self, task)
