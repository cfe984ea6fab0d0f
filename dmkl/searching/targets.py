"""Scores of many targets: their distribution, those of the plain sum, and the part of each kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr

from dmkl.arrays import Array, Mask
from dmkl.description import Column, Description, Figure, Table, count, listed, number
from dmkl.pictures import BLUE, GRAY, RED, SKY, bars, dress, panels, set_title
from dmkl.store.saved import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FEW = 12
"""Most targets that are described one by one; of more the distribution is."""
_TOP = 10  # Best targets that a terminal shows.
_TIE = 1e-9  # Parts of two kernels that differ by less, relative to the larger, are equal.
_MOST_POINTS = 1000  # Most points of a picture that are drawn as vectors.


def least_drawn(scoring: str) -> float:
    """The least score with a color or a place of its own in pictures: R² of a few targets may be far below others."""
    return -0.2 if scoring == "r2" else -np.inf


@dataclass(frozen=True)
class ManyTargets:
    """The score of each target, and the part of each kernel."""

    score: xr.DataArray  # (target,)
    scoring: str
    rows: str  # that are scored: "test" or "validation"; empty if nothing is known of them
    parts: xr.DataArray  # (kernel, target)
    of_parts: str  # "part in R²" or "share of the weight"
    of_sum: xr.DataArray | None = None  # the score of the plain sum of the kernels, (target,)

    @property
    def title(self) -> str:
        """The score in words."""
        name = "R²" if self.scoring == "r2" else self.scoring.replace("_", " ")
        return f"{name} in {self.rows}" if self.rows else name

    def _largest(self) -> tuple[Array, Mask]:
        """The kernel with the largest part in each target, and whether it wins the target.

        Nothing wins a target that is not predicted (a score of 0 or less, if others have more), or has two equal parts.
        """
        parts = np.nan_to_num(self.parts.transpose("kernel", "target").values, nan=-1e9)
        second, first = np.sort(parts, axis=0)[[-min(2, len(parts)), -1]]
        predicted = self.score > 0 if bool((self.score > 0).any()) else self.score.notnull()
        is_single = (first - second > _TIE * np.abs(first)) | (len(parts) == 1)
        return parts.argmax(axis=0), predicted.values & is_single

    def tables(self) -> dict[str, Callable[[], Table]]:
        """The targets, the best first, and the number of targets that each kernel wins."""
        return {"targets": self._targets_table, "kernels_of_targets": self._kernels_table}

    def figures(self) -> dict[str, Figure]:
        """The distribution of the scores, and the parts of the kernels."""
        beside = "" if self.of_sum is None else ", and the score of each beside that of the plain sum"
        caption = f"Number of targets by score{beside}."
        figures = {"Scores of targets": Figure(caption, self.plot_scores)} if len(self.score) > FEW else {}
        of_kernels = f"The {self.of_parts} of each kernel, means over the targets."
        return figures | {"Kernels by target": Figure(of_kernels, self.plot_parts)}

    def plot_parts(self, *, ax: Axes | None = None, top: int | None = None) -> Axes:
        """Draw the parts of the kernels, the largest means over the targets first; see `dmkl.pictures.bars`."""
        columns = self.parts.transpose("kernel", "target").values
        columns = columns[:, np.isfinite(columns).all(axis=0)]
        title = f"{self.of_parts[:1].upper()}{self.of_parts[1:]} of each kernel"
        return bars(self.parts["kernel"].values, columns, "target", title, ax=ax, top=top, label=self.of_parts)

    def plot_scores(self) -> Any:
        """Draw the distribution of the scores, and each score against that of the plain sum, if it is known.

        Values of R² below -0.2 are drawn there.
        """
        title, lowest, score = self.title, least_drawn(self.scoring), self.score.values
        sizes = {"the histogram": (3.6, 2.8)} | ({} if self.of_sum is None else {"the plain sum": (3.6, 3.4)})
        axes, known = panels(None, sizes), score[np.isfinite(score)]
        axes[0].hist(np.maximum(known, lowest), bins=min(40, max(10, len(known) // 10)), color=SKY)
        axes[0].axvline(np.median(known), color=RED, linewidth=1.2)
        dress(axes[0], title, "targets", hidden="top right", grid="both")
        if self.of_sum is not None:
            points = np.maximum([self.of_sum.values, score], lowest)
            axes[1].plot(*points, ".", color=BLUE, markersize=3, alpha=0.5, rasterized=len(score) > _MOST_POINTS)
            axes[1].axline((0.0, 0.0), slope=1.0, color=GRAY, linestyle=":", linewidth=1.0, zorder=0)
            dress(axes[1], f"{title}, plain sum of the kernels", title, hidden="top right", grid="both")
        n_low = np.count_nonzero(known < lowest)
        below = f"{n_low:,} below {lowest:g} are drawn there" if n_low else ""
        set_title(axes, f"{title} of {len(score):,} targets (line: the median, {np.median(known):.2g})", below)
        return axes

    def _targets_table(self) -> Table:
        kernel, wins = self._largest()
        names, parts = self.parts["kernel"].values.astype(str), self.parts.transpose("target", "kernel").values
        frame = pd.DataFrame({"target": self.score["target"].values.astype(str), "score": self.score.values})
        columns = [Column("target", form="text"), Column("score", self.title)]
        if self.of_sum is not None:
            frame["plain_sum"] = self.of_sum.values
            columns.append(Column("plain_sum"))
        frame["kernel"] = np.where(wins, names[kernel], "")
        frame["part"] = np.where(wins, parts[np.arange(len(parts)), kernel], np.nan)
        columns += [Column("kernel", "largest", "kernel"), Column("part", self.of_parts)]
        frame = frame.sort_values("score", ascending=False, kind="stable", ignore_index=True)
        return Table(frame, columns, "Best targets", range(min(_TOP, len(frame))), names)

    def _kernels_table(self) -> Table:
        kernel, wins = self._largest()
        names, parts = self.parts["kernel"].values.astype(str), self.parts.transpose("kernel", "target").values
        won = np.bincount(kernel[wins], minlength=len(names))
        frame = pd.DataFrame({"kernel": names, "targets": won})
        frame["mean"], frame["most"] = pd.DataFrame(parts).agg(["mean", "max"], axis=1).to_numpy().T
        columns = [Column("kernel", form="kernel"), Column("targets", "targets won", bar=0.0)]
        columns += [Column("mean", f"{self.of_parts}, mean"), Column("most", "largest")]
        where = " and the score above 0" if bool((self.score > 0).any()) else ""
        note = f"A kernel wins a target where its {self.of_parts} is the largest{where}: "
        note += f"{wins.sum():,} of {count(len(wins), 'target')}."
        if self.of_parts == "share of the weight":
            note += " Held-out samples split R² by kernel: dmkl.evaluate, dmkl.kernel_scores."
        frame = frame.sort_values("targets", ascending=False, kind="stable", ignore_index=True)
        return Table(frame, columns, "Kernels by target", kernels=names, note=note)


class KernelScores(Result):
    """R² and correlation of each target, split by kernel: the result of `dmkl.kernel_scores`.

    Parameters
    ----------
    data
        kernel_r2, kernel_correlation over kernel and target, rest_r2, rest_correlation, total_r2, total_correlation
        over target; without target for a model of one. ``scores["kernel_r2"]`` is ``scores.data["kernel_r2"]``.
    """

    FORMAT, TITLE = "dmkl-kernel-scores", "scores by kernel"
    NEEDED = tuple(f"{part}_{measure}" for part in ("kernel", "rest", "total") for measure in ("r2", "correlation"))

    def __getitem__(self, name: str) -> xr.DataArray:
        return self._data[name]

    def table(self) -> pd.DataFrame:
        """A row for each target and kernel, with all variables; those of the target are repeated."""
        return self._data.to_dataframe(["target", "kernel"][2 - self["kernel_r2"].ndim :]).reset_index()

    @property
    def by_target(self) -> ManyTargets:
        """R² of each target, and the parts of the kernels in it."""
        data = self._data if "target" in self._data.dims else self._data.expand_dims(target=["prediction"])
        return ManyTargets(data["total_r2"], "r2", "", data["kernel_r2"], "part in R²")

    def describe(self) -> Description:
        """R² and its parts, the best targets, and the targets that each kernel wins; see `Result.describe`."""
        means = self._data[["kernel_r2", "rest_r2", "total_r2"]]
        means = means.mean([dim for dim in means.dims if dim != "kernel"])
        parts = [f"{name} {number(part)}" for name, part in means["kernel_r2"].to_series().items()]
        n = len(self.by_target.score)
        over = f", mean of {n:,} targets" if n > 1 else ""
        line = f"R² {number(float(means['total_r2']))}{over}: {listed(parts, FEW)}, intercept and covariates"
        return Description(
            "R² by kernel",
            f"{count(means.sizes['kernel'], 'kernel')}, {count(n, 'target')}",
            {"scores": [f"{line} {number(float(means['rest_r2']))}"]},
            tables=self.by_target.tables(),
            figures=self.by_target.figures(),
        )

    def plot(self, *, ax: Axes | None = None, top: int | None = None) -> Axes:
        """Draw the part of each kernel in R², the largest means over the targets first.

        Bars are means over the targets, with a dot for each of them, or a line from the 5th to the 95th percentile of
        over 20. The `top` 20 kernels are drawn by default, on `ax` if given.
        """
        return self.by_target.plot_parts(ax=ax, top=top)
