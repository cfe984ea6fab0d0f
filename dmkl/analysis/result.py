"""The result of an analysis: one labeled data set, with tables and figures of it."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import xarray as xr

from dmkl.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Analysis"]

_TOLD = 5
"""Names that a sentence lists."""


class Analysis:
    """The result of `dmkl.analyze`: alignments, groups, spectra and fit to the labels of the kernels of a set.

    Parameters
    ----------
    data
        With n kernels and, of a multilabel problem, tasks:

        ==================================== ======================================================================
        alignment (kernel, kernel_2)         ⟨K_i, K_j⟩/(‖K_i‖‖K_j‖)
        target_alignment (kernel[, task])    the same with the ideal kernel of the labels, where there are some
        trace, norm (kernel)                 tr K, ‖K‖_F
        effective_rank (kernel)              participation ratio (tr K)²/‖K‖_F²
        eigenvalue (kernel, component)       leading eigenvalues, proven from below where K is positive
                                             semidefinite …
        eigenvalue_upper                     … and from above
        components_90_least, …_most (kernel) leading eigenvalues that make up 90 % of the trace, between proven bounds
                                             (of an estimate the lower is one too); the upper is NaN where those that
                                             were computed make up less. ``components_99_…`` likewise
        group (kernel)                       equal for kernels joined by alignments of the threshold or more
        repeats (kernel)                     earlier kernel that this is a positive multiple of; empty if none
        order (kernel)                       positions in an order that puts those alike side by side
        ..._error                            standard error of an estimate
        ==================================== ======================================================================

        Attributes: centered (1 or 0), method, threshold, n_samples, n_passes, created_by.
    """

    def __init__(self, data: xr.Dataset) -> None:
        self.data = data

    @property
    def names(self) -> list[str]:
        """The kernels' names."""
        return [str(name) for name in self.data["kernel"].values]

    @property
    def n_passes_(self) -> int:
        """Passes over the stored kernels that it took."""
        return int(self.data.attrs["n_passes"])

    # --- lists -------------------------------------------------------------------------------------------------------

    def table(self) -> pd.DataFrame:
        """A data frame with a row for each kernel, in the order of the set.

        Alignments with the targets of a multilabel problem have a column for each task.
        """
        data = self.data
        frame = pd.DataFrame(index=pd.Index(self.names, name="kernel"))
        for name in ("target_alignment", "target_alignment_error"):
            if name in data and "task" in data[name].dims:
                for task in data["task"].values:
                    frame[f"{name} {task}"] = data[name].sel(task=task).values
            elif name in data:
                frame[name] = data[name].values
        components = [f"components_{share}_{end}" for share in (90, 99) for end in ("least", "most")]
        for name in ("trace", "norm", "effective_rank", *components):
            frame[name] = data[name].values
        for end, name in (("least", "eigenvalue"), ("most", "eigenvalue_upper")):
            frame[f"largest_share_{end}"] = (data[name].isel(component=0) / data["trace"]).values
        frame["group"], frame["repeats"] = data["group"].values, data["repeats"].values
        return frame

    def groups(self) -> list[list[str]]:
        """Kernels that are nearly the same: groups of two or more, in the order of the set."""
        number = self.data["group"].values
        members = [[self.names[j] for j in np.flatnonzero(number == g)] for g in dict.fromkeys(number.tolist())]
        return [names for names in members if len(names) > 1]

    def pairs(self, least: float | None = None) -> pd.DataFrame:
        """Pairs of kernels with their alignment, the most alike first.

        Parameters
        ----------
        least
            The smallest alignment to list; the threshold of the analysis by default.
        """
        alignment = self.data["alignment"].values
        least = float(self.data.attrs["threshold"]) if least is None else least
        first, second = np.triu_indices(len(alignment), 1)
        values = alignment[first, second]
        keep = np.flatnonzero(values >= least)
        keep = keep[np.argsort(-values[keep], kind="stable")]
        names = np.array(self.names)
        return pd.DataFrame({"kernel": names[first[keep]], "kernel_2": names[second[keep]], "alignment": values[keep]})

    def summary(self) -> str:
        """Summarize in a few lines how similar the kernels are, which repeat others and which fit the labels best."""
        data, attrs = self.data, self.data.attrs
        n, passes = len(self.names), self.n_passes_
        what = "centered kernels" if attrs["centered"] else "kernels as they are"
        lines = [
            f"{n} {what} over {attrs['n_samples']:,} samples; alignments: {attrs['method']}; "
            f"{passes} pass{'' if passes == 1 else 'es'}"
        ]
        others = data["alignment"].values[np.triu_indices(n, 1)]
        if np.isfinite(others).any():
            low, middle, high = np.nanquantile(others, [0, 0.5, 1])
            lines.append(f"alignments of different kernels from {low:.3f} to {high:.3f}, median {middle:.3f}")
        repeated = [name for name, first in zip(self.names, data["repeats"].values, strict=True) if first]
        if repeated:
            lines.append(f"multiples of earlier kernels: {_listed(repeated)}")
        lines += [f"alike ({attrs['threshold']:g} or more): {_listed(names)}" for names in self.groups()]
        if "is_labels" in data and data["is_labels"].values.any():
            names = [name for name, flagged in zip(self.names, data["is_labels"].values, strict=True) if flagged]
            lines.append(f"the labels under another name, to be left out: {_listed(names)}")
        lines += self._target_lines()
        return "\n".join(lines)

    def _target_lines(self) -> list[str]:
        if "target_alignment" not in self.data:
            return []
        fit = self.data["target_alignment"]
        if "task" in fit.dims:
            fit = fit.mean("task")
        best = np.argsort(-np.nan_to_num(fit.values, nan=-np.inf), kind="stable")[:3]
        told = ", ".join(f"{self.names[j]} {fit.values[j]:.3f}" for j in best)
        return [f"best aligned with the labels{' on average' if 'task' in self.data.dims else ''}: {told}"]

    def __repr__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        lines = "<br>".join(map(html.escape, self.summary().split("\n")))
        return f"<div>{lines}</div>{self.data._repr_html_()}"

    # --- pictures ----------------------------------------------------------------------------------------------------

    def plot_alignment(self) -> Figure:
        """Draw the map of alignments, those alike side by side; see `dmkl.analysis.figures.plot_alignment`."""
        from dmkl.analysis.figures import plot_alignment

        return plot_alignment(self.data)

    def plot_targets(self, task: str | None = None) -> Figure:
        """Draw how well each kernel alone fits the labels; see `dmkl.analysis.figures.plot_targets`.

        Raises
        ------
        InputError
            If there were no labels, or there is no such task.
        """
        from dmkl.analysis.figures import plot_targets

        if "target_alignment" not in self.data:
            msg = "this analysis had no labels to align with; give them to dmkl.analyze(K, y)"
            raise InputError(msg)
        tasks = [str(name) for name in self.data["task"].values] if "task" in self.data.dims else []
        if task is not None and task not in tasks:
            found = f"has the tasks {', '.join(tasks[:10])}" if tasks else "has no tasks"
            msg = f"there is no task {task!r}: this analysis {found}; leave task out, or name one of them"
            raise InputError(msg)
        return plot_targets(self.data, task)

    def plot_spectra(self) -> Figure:
        """Draw the leading eigenvalues of each kernel; see `dmkl.analysis.figures.plot_spectra`."""
        from dmkl.analysis.figures import plot_spectra

        return plot_spectra(self.data)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _TOLD} more" if len(names) > _TOLD else ""
    return ", ".join(names[:_TOLD]) + more
