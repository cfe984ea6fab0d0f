"""`dmkl.analyze`: two passes for everything, or one if alignments are estimated; and `dmkl.relevant_dimension`.

Ideal kernels for two classes: T = yyᵀ with y = ±1 (Cristianini, Shawe-Taylor, Elisseeff, Kandola, On kernel-target
alignment, NIPS 2001). For more classes: T_ab = 1 if samples a and b are of one class, 0 otherwise. For several labels:
one of two classes for each. T = FFᵀ with one column, or one for each class, so that neither T nor its products are
formed:

    ⟨K, T⟩ = tr FᵀKF        ‖T‖ = ‖FᵀF‖        A(K, T) = ⟨K, T⟩/(‖K‖‖T‖)

With centering F becomes CF, and both definitions for two classes agree.

Leading eigenvalues and their bounds come from one pass with random vectors. With an orthonormal block Q and W = KQ,
Nyström's approximation K̂ = W(QᵀW)⁻¹Wᵀ has 0 ⪯ K̂ ⪯ K (Tropp, Yurtsever, Udell, Cevher, Fixed-rank approximation of a
positive-semidefinite matrix from streaming data, NeurIPS 2017). So each of its eigenvalues λ̂_i is at most λ_i, and
trace and norm of K bound the difference:

    Σ_{l=j..i} λ_l ≤ Σ_{l=j..i} λ̂_l + (tr K − Σ_l λ̂_l)             since no other λ_l − λ̂_l is negative,
    Σ_{l=j..i} λ_l² ≤ Σ_{l=j..i} λ̂_l² + (‖K‖_F² − Σ_l λ̂_l²)        likewise,

for every j ≤ i, and λ_i, the smallest of these λ_l, is at most their mean. The second is sharp for eigenvalues above a
long flat spectrum, the first for kernels of low rank.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd
import scipy.cluster.hierarchy
import scipy.linalg
import xarray as xr
from dask.delayed import delayed
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import squareform

from dmkl import settings
from dmkl.analysis import figures
from dmkl.arrays import Array, Float, Index, Mask
from dmkl.description import Column, Description, Figure, Table, count, human_names, listed, number, short_names
from dmkl.errors import IndefiniteKernelWarning, refuse, warn
from dmkl.kernelset import Kernels, KernelSet, as_kernel_set, given_labels
from dmkl.numerics.alignment import (
    alignments,
    estimated,
    proportional_groups,
    sign_probes,
    unbiased_alignments,
    unbiased_projections,
)
from dmkl.numerics.covariates import Covariates
from dmkl.numerics.determined import by_chance, label_codes
from dmkl.numerics.fisher import encode_targets
from dmkl.numerics.steps import as_steps
from dmkl.passes.alignment import check_alignable, gram_pass, rounding
from dmkl.passes.blas import one_blas_thread
from dmkl.passes.execute import again, execute, send_all
from dmkl.passes.run import pass_graph, refuse_damage, run_pass
from dmkl.passes.sweep import Columns
from dmkl.passes.view import Lens
from dmkl.store.saved import Result

_RELEVANT = ("relevant_dimension", "relevant_dimension_most", "label_noise", "label_explained")
"""The variables of `dmkl.relevant_dimension`."""

_OVERSAMPLING = 10
_LEAST_WIDTH = 64
"""Random vectors for eigenvalues: ten more than the eigenvalues, and at least 64, with which a pass takes little longer
than with one. A flat spectrum would need more; its bounds show that.
"""
_MOST_COLUMNS, _MOST_PAIRS, _MOST_LISTED = 10, 15, 200
"""Most kernels with a matrix of alignments; pairs that a terminal shows, and that a table has."""
_MOST_NAMES = 5  # Most names that a sentence lists.
_COUNTER = itertools.count(1)


class Analysis(Result):
    """The result of `dmkl.analyze`: alignments, groups, spectra and fit to the labels of the kernels of a set.

    Parameters
    ----------
    data
        With n kernels and, for a multilabel problem, tasks:

        ==================================== ======================================================================
        alignment (kernel, kernel_2)         ⟨K_i, K_j⟩/(‖K_i‖‖K_j‖)
        unbiased_alignment (kernel,          the same without the bias of diagonals: near 0 for kernels of independent
        kernel_2)                            features, however many (see `numerics.alignment.unbiased_alignments`)
        target_alignment (kernel[, task])    the alignment with the ideal kernel of the labels, if any
        diagonal_share (kernel)              Σ_a k_aa²/‖K‖_F²; near 1 any two kernels have a large alignment
        trace, norm (kernel)                 tr K, ‖K‖_F
        effective_rank (kernel)              participation ratio (tr K)²/‖K‖_F²
        eigenvalue (kernel, component)       leading eigenvalues, proven from below if K is positive
                                             semidefinite …
        eigenvalue_upper                     … and from above
        components_90_least, …_most (kernel) leading eigenvalues that make up 90 % of the trace, between proven bounds
                                             (the lower is an estimate if alignments are); the upper is NaN if the
                                             computed eigenvalues make up less. ``components_99_…`` likewise
        relevant_dimension, …_most,          see `dmkl.relevant_dimension`, for centered kernels and labels
        label_noise, …_explained (kernel)
        group (kernel)                       equal for kernels joined by unbiased alignments of the threshold or more
        repeats (kernel)                     earlier kernel that this is a positive multiple of; empty if none
        order (kernel)                       positions in an order with similar kernels side by side
        ..._error                            standard error of an estimate
        ==================================== ======================================================================

        Attributes: centered (1 or 0), method, threshold, n_samples, n_passes, created_by.
    """

    FORMAT, TITLE = "dmkl-analysis", "analysis"
    NEEDED_ATTRIBUTES = ("centered", "steps", "method", "threshold", "n_samples", "n_passes")
    NEEDED: ClassVar[tuple[str, ...]] = ("alignment", "trace", "norm", "effective_rank", "eigenvalue")
    NEEDED += ("eigenvalue_upper", "group", "repeats", "order")

    @property
    def names(self) -> list[str]:
        """The kernels' names."""
        return [str(name) for name in self.data["kernel"].values]

    @property
    def similarity(self) -> xr.DataArray:
        """The unbiased alignments; the published ones in a result that was saved without."""
        return self.data.get("unbiased_alignment", self.data["alignment"])

    def table(self) -> pd.DataFrame:
        """A row for each kernel, in the order of the set.

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
        """Groups of two or more similar kernels, in the order of the set."""
        group = self.data["group"].values
        members = [[self.names[j] for j in np.flatnonzero(group == g)] for g in dict.fromkeys(group.tolist())]
        return [names for names in members if len(names) > 1]

    def pairs(self, least: float | None = None) -> pd.DataFrame:
        """Pairs of kernels with their alignments, the most similar first, by unbiased alignments.

        Down to an unbiased alignment of `least`, by default the threshold of the analysis.
        """
        least = float(self.data.attrs["threshold"]) if least is None else least
        first, second = np.triu_indices(len(self.names), 1)
        values = self.similarity.values[first, second]
        keep = np.flatnonzero(values >= least)
        keep = keep[np.argsort(-values[keep], kind="stable")]
        names = np.array(self.names)
        published = self.data["alignment"].values[first, second]
        columns = {"unbiased_alignment": values[keep], "alignment": published[keep]}
        return pd.DataFrame({"kernel": names[first[keep]], "kernel_2": names[second[keep]], **columns})

    def describe(self) -> Description:
        """How similar the kernels are, which repeat others, which fit the labels best; see `Result.describe`."""
        data, attrs = self.data, self.data.attrs
        kernels = "centered kernels" if attrs["centered"] else "kernels as they are"
        title = f"{len(self.names)} {kernels} over {attrs['n_samples']:,} samples; alignments: {attrs['method']}; "
        title += count(self.n_passes_, "pass")
        lines, short = [], short_names(self.names)
        for what, matrix in (("alignments", data["alignment"]), ("unbiased alignments", self.similarity)):
            values = matrix.values[np.triu_indices(len(self.names), 1)]
            if np.isfinite(values).any():
                low, middle, high = map(number, np.nanquantile(values, [0, 0.5, 1]))
                lines.append(f"{what} of different kernels from {low} to {high}, median {middle}")
        repeated = [short[name] for name, first in zip(self.names, data["repeats"].values, strict=True) if first]
        if repeated:
            lines.append(f"multiples of earlier kernels: {listed(repeated, _MOST_NAMES)}")
        alike = (listed(map(short.get, names), _MOST_NAMES) for names in self.groups())
        lines += [f"alike ({attrs['threshold']:g} or more): {names}" for names in alike]
        if "is_labels" in data and data["is_labels"].values.any():
            flagged = data["kernel"].values[data["is_labels"].values.astype(bool)].tolist()
            lines.append(f"the labels under another name, to be left out: {listed(flagged, _MOST_NAMES)}")
        if "target_alignment" in data:
            fit = data["target_alignment"] if self.tasks is None else data["target_alignment"].mean("task")
            best = np.argsort(-np.nan_to_num(fit.values, nan=-np.inf), kind="stable")[:3]
            fits = ", ".join(f"{short[self.names[j]]} {number(fit.values[j])}" for j in best)
            lines.append(f"best aligned with the labels{'' if self.tasks is None else ' on average'}: {fits}")
        tables = {"kernels": self._kernels_table, "pairs": self._pairs_table}
        tables |= {"relevant": self._relevant_table} if set(_RELEVANT) <= set(data) else {}
        tables |= {"alignment": self._alignment_table} if len(self.names) <= _MOST_COLUMNS else {}
        pictures = {"Alignments": Figure("Similar kernels are side by side.", self.plot_alignment)}
        if "target_alignment" in data:
            pictures["Fit to the labels"] = Figure("How well each kernel alone fits the labels.", self.plot_targets)
        return Description(title, "", {"kernels": lines}, self._facts, tables, pictures)

    def _facts(self) -> dict[str, Any]:
        data = self.data
        names = [str(key) for key in data.data_vars if "kernel_2" not in data[key].dims]
        of_kernels = [{"name": name, **{k: data[k].values[j] for k in names}} for j, name in enumerate(self.names)]
        return {
            **{str(key): value for key, value in data.attrs.items()},
            "kernels": of_kernels,
            "tasks": data["task"].values.astype(str) if "task" in data.dims else None,
            "alignment": data["alignment"].values,
            "alignment_error": data["alignment_error"].values if "alignment_error" in data else None,
            "unbiased_alignment": self.similarity.values,
            "groups": self.groups(),
        }

    def _with_fit(self, frame: pd.DataFrame) -> tuple[pd.DataFrame, list[Column]]:
        """A table with the alignment with the labels, the mean over tasks if there are several, if it is known."""
        if "target_alignment" not in self.data:
            return frame, []
        by_task, has_error = self.tasks is not None, "target_alignment_error" in self.data and self.tasks is None
        fit = self.data["target_alignment"].mean("task") if by_task else self.data["target_alignment"]
        title = "fit to labels, mean of tasks" if by_task else "fit to labels"
        error, frame = "", frame.assign(target_alignment=fit.values)
        if has_error:
            error = "target_alignment_error"
            frame[error] = self.data[error].values
        return frame, [Column("target_alignment", title, error=error, bar=1.0)]

    def _kernels_table(self) -> Table:
        frame, fit = self._with_fit(self.table().reset_index())
        columns = [
            Column("kernel", form="kernel"),
            *fit,
            Column("trace"),
            Column("effective_rank"),
            Column("largest_share_least", "first eigenvalue", form="share", upper="largest_share_most"),
            Column("components_90_least", "90 % of trace in", "exact", upper="components_90_most"),
            Column("components_99_least", "99 % in", "exact", upper="components_99_most"),
            Column("repeats", "a multiple of", form="kernel"),
        ]
        frame["largest_share_most"] = frame["largest_share_most"].clip(upper=1.0)
        return Table(frame, columns, "Kernels", kernels=self.names)

    def _relevant_table(self) -> Table:
        names = ["label_noise", "relevant_dimension", "relevant_dimension_most"]
        over = [dim for dim in self.data["label_noise"].dims if dim != "kernel"]
        frame, fit = self._with_fit(self.data[names].mean(over, skipna=False).to_dataframe().reset_index())
        dimension = Column("relevant_dimension", form="exact", upper="relevant_dimension_most")
        columns = [Column("kernel", form="kernel"), *fit, Column("label_noise"), dimension]
        return Table(frame, columns, "Relevant dimensions", kernels=self.names)

    def _pairs_table(self) -> Table:
        least, pairs = float(self.data.attrs["threshold"]), self.pairs(least=-1.0)
        n_similar = int((pairs["unbiased_alignment"] >= least).sum())
        columns = [Column("kernel", form="kernel"), Column("kernel_2", "kernel", form="kernel")]
        columns += [Column("unbiased_alignment"), Column("alignment")]
        note = f"{n_similar:,} of {len(pairs):,} pairs have an unbiased alignment of {least:g} or more."
        rows = range(min(_MOST_PAIRS, len(pairs)))
        return Table(pairs.head(_MOST_LISTED), columns, "Most similar pairs", rows, self.names, note)

    def _alignment_table(self) -> Table:
        order, labels = self.data["order"].values, human_names(self.names)[0]
        frame = pd.DataFrame(self.similarity.values[np.ix_(order, order)], columns=[self.names[j] for j in order])
        frame.insert(0, "", [self.names[j] for j in order])
        columns = [Column("", "", form="kernel"), *(Column(self.names[j], labels[j]) for j in order)]
        return Table(frame, columns, "Unbiased alignments", kernels=self.names)

    plot_alignment = figures.plot_alignment
    plot_targets = figures.plot_targets
    plot_spectra = figures.plot_spectra


@one_blas_thread
def analyze(
    K: Kernels,
    y: npt.ArrayLike | None = None,
    *,
    steps: str | Sequence[str] = ("center",),
    targets: bool = True,
    n_eigenvalues: int = 20,
    threshold: float = 0.95,
    probes: int | None = None,
    seed: int = 0,
) -> Analysis:
    """Analyze a kernel set: alignments between kernels and with the labels, near duplicates, spectra.

    It shows which kernels are similar, which repeat others, how well each fits the labels, and its effective number of
    dimensions. It takes two passes: one over pairs of tiles for the exact alignments, one with random vectors and the
    labels for the rest. With `probes` the alignments are estimated from these vectors, in one pass. Centering over some
    of the samples, or after cosine normalization, takes a further pass for its means.

    Parameters
    ----------
    K
        A square set; the kernels of this view are analyzed.
    y
        Labels, (m,) classes or (m, tasks) of 0 and 1; by default those of the set, if any.
    steps
        Steps before the analysis, as in `MKFDA`; with those of a learner the kernels are those that it learns from.
        Scales do not change alignments; "cosine" and "center" do.
    targets
        False leaves the labels out.
    n_eigenvalues
        Number of leading eigenvalues of each kernel, from ten more random vectors, at least 64; at most `probes` if
        these are given.
    threshold
        Kernels with at least this unbiased alignment are in one group.
    probes
        Number of random vectors for an estimate of the alignments, at least 3; exact by default.
    seed
        Seed of the random vectors.

    Raises
    ------
    InputError
        If the set is not square, the labels do not fit, or an argument is out of range.
    MemoryBudgetError
        If the projected memory exceeds the budget.

    References
    ----------
    Alignments and targets: Cristianini et al., NIPS 2001; centered: Cortes, Mohri, Rostamizadeh, JMLR 13 (2012); the
    figure: Yan et al., JMLR 13 (2012), Fig. 5; unbiased: Song et al., JMLR 13 (2012). Eigenvalues:
    `dmkl.analysis.analyze`.
    """
    if n_eigenvalues < 1:
        refuse(f"n_eigenvalues must be at least 1, got {n_eigenvalues}")
    if not 0 < threshold <= 1:
        refuse(f"threshold is an alignment above 0 and up to 1, got {threshold}")
    chain = as_steps(steps)
    centered = any(step == "center" or isinstance(step, Covariates) for step in chain)
    K = as_kernel_set(K, "analyze")
    check_alignable(K.view)
    m, (labels, tasks) = K.shape[1], given_labels(K, y)
    ideal = ideal_kernels(labels, m, tasks, centered=centered) if targets and labels is not None else None
    if probes is None:
        width = min(max(n_eigenvalues + _OVERSAMPLING, _LEAST_WIDTH), m)
        Z = np.linalg.qr(np.random.default_rng(seed).standard_normal((m, width)))[0]
    else:
        Z = sign_probes(m, probes, seed)
    seen, n_passes = K.with_steps(chain).measured()
    lens = seen.lens()
    gram = gram_pass(lens) if probes is None else None
    sketch = sketch_pass(lens, Z, ideal)
    n_passes += sketch.n_passes + (probes is None)
    data = _to_dataset(seen, gram, sketch, n_eigenvalues, threshold, centered=centered)
    method = "exact" if probes is None else f"estimate from {probes} random probes, seed {seed}"
    data.attrs |= {"centered": int(centered), "steps": ", ".join(map(str, chain)), "method": method}
    data.attrs |= {"threshold": float(threshold), "n_samples": m, "n_passes": n_passes, "set": K.origin["set"]}
    return Analysis(data)


def _to_dataset(
    K: KernelSet, exact: Float | None, sketch: Sketch, n_eigenvalues: int, threshold: float, *, centered: bool
) -> xr.Dataset:
    """Everything as labeled data. `exact` are the inner products of the kernels; they are estimated if None."""
    lens, ideal, variables = K.lens(), sketch.ideal, dict[str, Any]()
    floor = K.shape[1] * rounding(lens)

    def measure(name: str, dims: tuple[str, ...], statistic: Any) -> Float:
        """Compute a statistic of the inner products, with its standard error if these are estimates."""
        if exact is not None:
            value: Float = statistic(exact)
        else:
            value, error = estimated(sketch.projections, statistic)
            variables[f"{name}_error"] = dims, error
        variables[name] = dims, value
        return value

    diagonal, sums = lens.diagonal(), sketch.sums if centered else None
    measure("alignment", ("kernel", "kernel_2"), lambda gram: alignments(gram, floor))
    if exact is not None:
        unbiased = unbiased_alignments(exact, diagonal, sums, floor)
    else:
        projections = unbiased_projections(sketch.projections, sketch.probes, diagonal, sums)
        unbiased, error = estimated(projections, lambda gram: alignments(gram, floor))
        variables["unbiased_alignment_error"] = ("kernel", "kernel_2"), error
    variables["unbiased_alignment"] = ("kernel", "kernel_2"), unbiased
    coords: dict[str, Any] = {"kernel": np.array(K.names, dtype=str), "kernel_2": np.array(K.names, dtype=str)}
    dims: tuple[str, ...] = ("kernel",)
    at: Any = np.s_[:, 0]  # of values (n, tasks)
    if ideal is not None and ideal.tasks is not None:
        dims, at, coords["task"] = ("kernel", "task"), np.s_[:], np.array(ideal.tasks, dtype=str)
    if ideal is not None:
        align = partial(ideal.alignments, sketch.forms)
        measure("target_alignment", dims, lambda gram: align(_norm(gram, floor))[at])
    trace: Float = np.asarray(diagonal.sum(axis=1))
    variables["trace"] = "kernel", trace
    norm = measure("norm", ("kernel",), lambda gram: _norm(gram, floor))
    clear = ~np.isnan(norm)
    variables["diagonal_share"] = "kernel", (diagonal**2).sum(axis=1) / norm**2
    # Below 1e-10 a difference is meaningless whatever the precision: sums over many entries round too.
    resolution = float(np.finfo(K.dtype).eps)
    if ideal is not None and centered:
        of_labels = _label_figures(sketch, ideal, trace, clear, max(32 * resolution, 1e-10))
        variables |= {name: (dims, of[at]) if of.ndim > 1 else ("kernel", of) for name, of in of_labels.items()}
    # The participation ratio (Σλ)²/Σλ², m for the identity, 1 for rank one: the effective number of dimensions of the
    # samples in feature space (Bell, Dean, Discussions of the Faraday Society 50, 1970), exact without eigenvalues.
    measure("effective_rank", ("kernel",), lambda gram: trace**2 / _norm(gram, floor) ** 2)
    variables |= _spectra(K, sketch, trace, norm, n_eigenvalues, exact=exact is not None)
    # A kernel that is only rounding error is no multiple of another.
    relative, n_probes = max(4 * resolution, 1e-10), sketch.projections.shape[1]
    noise = np.where(clear, n_probes * (relative * np.nan_to_num(norm) + floor), np.inf)
    # Projections show differences that alignments, which are quadratic in them, round to 1.
    repeats = np.full(len(K), "", dtype=object)
    for first, *others in proportional_groups(sketch.projections, noise):
        repeats[others] = K.names[first]
    # Chains of alignments of at least the threshold connect the kernels of a group.
    linked = csr_array((np.nan_to_num(unbiased, nan=-1.0) >= threshold).astype(np.int8))
    variables["group"] = "kernel", connected_components(linked, directed=False)[1].astype(np.int32)
    variables["repeats"] = "kernel", repeats.astype(str)
    variables["order"] = "kernel", order_by_similarity(unbiased).astype(np.int32)
    coords["component"] = np.arange(1, variables["eigenvalue"][1].shape[1] + 1, dtype=np.int32)
    return xr.Dataset(variables, coords=coords)


def _label_figures(
    sketch: Sketch, ideal: IdealKernels, trace: Float, clear: Mask, resolution: float
) -> dict[str, Array]:
    """Figures of centered kernels and labels, (n, tasks), and whether a kernel depends on the classes only, (n,)."""
    # The share of tr K_j between the classes, tr PK_jP/tr K_j with the projector P on their indicators, is 1 if a
    # positive semidefinite centered kernel depends on the classes only. For several classes the columns of F are
    # centered indicators; their products with a centered kernel are those of the indicators, which are orthogonal.
    between = []
    for factor, of_task in zip(ideal.factors, ideal.split(sketch.forms, 1), strict=True):
        sizes = (factor > 0).sum(axis=0) if factor.shape[1] > 1 else (factor**2).sum(axis=0)
        between.append((of_task / sizes).sum(axis=1))
    # A kernel that is constant has no trace once it is centered, and no share.
    shares = np.stack(between, axis=1) / np.where(trace > 0, trace, np.nan)[:, None]
    # With few samples, or hardly more samples than classes, any kernel may depend on the classes only by chance.
    few = [not by_chance(codes, 1) for codes in ideal.codes]
    several = np.array(few if len(few) == shares.shape[1] else [False])  # targets have no classes
    is_labels = np.asarray(((shares >= 1 - resolution) & several).any(axis=1))
    m, width = len(ideal.columns), sketch.energies.shape[1]
    # The last vectors are far from eigenvectors, unless there are all of them.
    energies = np.where(clear, sketch.energies.T, np.nan).T[:, : width if width == m else -_OVERSAMPLING]
    relevant = [
        relevant_dimensions(of_task.sum(axis=2), float(np.sum(factor**2)), m)
        for of_task, factor in zip(ideal.split(energies, 2), ideal.factors, strict=True)
    ]
    return {"class_share": shares, "is_labels": is_labels, **dict(zip(_RELEVANT, np.stack(relevant, 2), strict=True))}


def _spectra(
    K: KernelSet, sketch: Sketch, trace: Float, norm: Float, n_eigenvalues: int, *, exact: bool
) -> dict[str, tuple[Any, Float]]:
    """Leading eigenvalues between their bounds, and the numbers of those that make up 90 and 99 % of the trace.

    `norm` is `exact` or an estimate, and NaN for a kernel that is only rounding error, whose eigenvalues are
    meaningless.
    """
    clear = ~np.isnan(norm)
    negative = np.array(K.names)[clear & np.isnan(sketch.eigenvalues[:, 0])].tolist()
    if negative:
        refuse_damage(K.view)
        msg = (
            f"no positive semidefinite kernel: {listed(map(repr, negative), _MOST_NAMES)}. Their eigenvalues are NaN "
            "here; `dmkl check` shows how negative they are, and importing with repair='clip', 'flip' or 'shift' "
            "repairs them"
        )
        warn(msg, IndefiniteKernelWarning)
    eigenvalues = np.where(clear[:, None], sketch.eigenvalues, np.nan)
    upper = upper_bounds(eigenvalues, trace, norm if exact else None)
    variables: dict[str, tuple[Any, Float]] = {
        "eigenvalue": (("kernel", "component"), eigenvalues[:, :n_eigenvalues]),
        "eigenvalue_upper": (("kernel", "component"), upper[:, :n_eigenvalues]),
    }
    for share in (90, 99):
        # The sum of k eigenvalues is at most √k‖K‖_F (Cauchy and Schwarz), so share · tr K needs share² (tr K)²/‖K‖_F².
        least = np.ceil((share / 100) ** 2 * (trace**2 / norm**2) * (1 - 1e-12))
        enough = np.cumsum(eigenvalues, axis=1) >= share / 100 * trace[:, None]
        most = np.where(enough.any(axis=1), enough.argmax(axis=1) + 1.0, np.nan)  # NaN if all of them make up less
        variables |= {f"components_{share}_least": ("kernel", least), f"components_{share}_most": ("kernel", most)}
    return variables


def _norm(gram: Float, floor: Float) -> Float:
    """‖K_j‖; NaN for a kernel that is only rounding error."""
    norm = np.sqrt(gram.diagonal())
    return np.where(norm > floor, norm, np.nan)


def relevant_dimension(
    K: Kernels,
    y: npt.ArrayLike | None = None,
    *,
    steps: str | Sequence[Any] = ("center",),
    n_vectors: int = 200,
    seed: int = 0,
) -> xr.Dataset:
    """The number of leading eigenvectors of each kernel in which the labels are, and the noise in the others.

    With z_i = Σ_c (u_iᵀf_c)², eigenvectors u_i of a centered kernel and centered indicators f_c of the classes, it is
    the cut d ≤ m/2 with the least

        d/m · log σ₁² + (m − d)/m · log σ₂²,   σ₁² and σ₂² the means of z_1 … z_d and z_{d+1} … z_m,

    among those with σ₁² > σ₂²; 0 if there are none. InputError without labels, or steps that center.

    Parameters
    ----------
    K, y, steps
        As in `dmkl.analyze`.
    n_vectors, seed
        Number of random vectors for the eigenvectors, and their seed. The result is exact from as many as samples;
        with fewer d is too small and the noise too large, the more so the flatter the spectrum.

    Returns
    -------
    Dataset
        Over kernel (and task): `relevant_dimension` d; `relevant_dimension_most`, d, or NaN where it is the largest
        that the vectors show; `label_noise`, σ₂²m/Σz, the share of noise in the labels; `label_explained`, the share of
        z_1 … z_d in Σz. `dmkl.analyze` has the same from fewer vectors.

    Notes
    -----
    Braun, Buhmann, Müller, On relevant dimensions in kernel feature spaces. JMLR 9 (2008). One pass.

    Examples
    --------
    >>> import dmkl
    >>> noise = dmkl.relevant_dimension(dmkl.open("kernels.zarr")).label_noise
    """
    K = as_kernel_set(K, "relevant_dimension")
    data = analyze(K, y, steps=steps, probes=max(3, min(n_vectors, K.shape[1])), n_eigenvalues=1, seed=seed).data
    if "label_noise" not in data:
        refuse("relevant dimensions need labels and centered kernels: give y, and steps with 'center'")
    return data[list(_RELEVANT)]


def order_by_similarity(alignment: Float) -> Index:
    """An order of the kernels with similar kernels side by side, (n,).

    Average linkage of the distances 1 − A, the leaves in the order with the closest neighbors (Bar-Joseph, Gifford,
    Jaakkola, Bioinformatics 17, 2001). Kernels without alignments come last.
    """
    clear = ~np.isnan(alignment.diagonal())
    order = np.flatnonzero(clear)
    if len(order) > 2:
        distance = 1.0 - alignment[np.ix_(order, order)]
        np.fill_diagonal(distance, 0.0)
        # Rounding of the last digit may differ across the diagonal.
        distances = squareform(0.5 * (distance + distance.T), checks=False)
        tree = scipy.cluster.hierarchy.linkage(distances, "average", optimal_ordering=True)
        order = order[scipy.cluster.hierarchy.leaves_list(tree)]
    return np.concatenate([order, np.flatnonzero(~clear)])


@dataclass(frozen=True)
class IdealKernels:
    """The factors of an ideal kernel or, for a multilabel problem, of one for each task."""

    factors: tuple[Float, ...]  # F of each, (m, columns)
    tasks: tuple[str, ...] | None  # names of the tasks; None where there is one problem
    codes: Sequence[Index]  # classes of the samples, of each task (`label_codes`)

    @property
    def columns(self) -> Float:
        """All factors side by side, (m, columns)."""
        return np.concatenate(self.factors, axis=1)

    def split(self, values: Float, axis: int) -> list[Float]:
        """Values of the columns, cut into those of each ideal kernel."""
        return np.split(values, np.cumsum([factor.shape[1] for factor in self.factors])[:-1], axis)

    def alignments(self, forms: Float, norm: Float) -> Float:
        """A(K_j, T_t), (n, tasks), from fᵀK_jf for each of the columns and ‖K_j‖ (NaN if it is only rounding error)."""
        products = np.stack([of_task.sum(axis=1) for of_task in self.split(forms, 1)], axis=1)
        sizes = np.array([np.linalg.norm(factor.T @ factor) for factor in self.factors])
        return np.asarray(np.clip(products / sizes / norm[:, None], -1.0, 1.0))


def ideal_kernels(y: Array, n_samples: int, tasks: Array | None, *, centered: bool) -> IdealKernels:
    """The ideal kernels of labels, (m,) classes or (m, tasks) of 0 and 1.

    Tasks without names are numbered; `centered` is for the comparison with centered kernels. Raises as
    `encode_targets`, and InputError if a label is unknown.
    """
    targets = encode_targets(y, n_samples, tasks)
    if any(len(h) < n_samples for h in targets.problems):
        refuse(
            "alignments with the labels need a label for each sample, and some are unknown; select the samples with "
            "labels, or leave the labels out (targets=False, --no-targets)"
        )
    # √(m/m_k) − √(m_k/m) is positive only for the class of the sample.
    factors = [np.sign(h) if h.shape[1] == 1 else (h > 0).astype(np.float64) for h in targets.problems]
    if centered:
        factors = [factor - factor.mean(axis=0) for factor in factors]
    names = range(len(factors)) if tasks is None else tasks
    of_tasks = tuple(map(str, names)) if targets.kind == "multilabel" else None
    return IdealKernels(tuple(factors), of_tasks, label_codes(y))


@dataclass(frozen=True)
class Sketch:
    """Statistics of the products of each kernel with random vectors Z and the columns f of ideal kernels."""

    probes: Float  # Z, (m, b)
    ideal: IdealKernels | None
    projections: Float  # zᵀK_jZ, (n, b, b)
    eigenvalues: Float  # λ̂ of Nyström's approximation from K_jZ, (n, b)
    forms: Float  # fᵀK_jf, (n, columns)
    sums: Float  # K_j1, (n, m)
    energies: Float  # (uᵀf)² for the eigenvectors u of Nyström's approximation, (n, b, columns)
    n_passes: int  # number of passes


def sketch_pass(lens: Lens, probes: Float, ideal: IdealKernels | None) -> Sketch:
    """Multiply every kernel by random vectors, (m, b), and the columns of ideal kernels: one pass, run now.

    Columns beyond the setting ``dmkl.block-width`` take further passes.
    """
    columns = np.empty((len(probes), 0)) if ideal is None else ideal.columns
    width = settings.block_width()
    room = max(width - probes.shape[1], 0)
    projections, eigenvalues, forms, sums, energies = again(lambda: _first_pass(lens, probes, columns, room), "sketch")
    more = [forms]
    for start in range(room, columns.shape[1], width):
        rest = columns[:, start : start + width]
        (products,), _ = run_pass([lens], [Columns(rest, "project", None, np.dtype(np.float64))], "project")
        more.append(np.einsum("naa->na", products))
    forms = np.concatenate(more, axis=1)
    return Sketch(probes, ideal, projections, eigenvalues, forms, sums, energies, len(more))


def _first_pass(lens: Lens, probes: Float, columns: Float, room: int) -> list[Float]:
    name, token = f"sketch-pass-{next(_COUNTER)}", uuid.uuid4().hex
    block = np.concatenate([probes, np.ones((len(probes), 1)), columns], axis=1)
    width = probes.shape[1] + 1 + min(room, columns.shape[1])
    of_block = Columns(block[:, :width], "each", None, np.dtype(np.float64))
    graph = pass_graph([lens], [of_block], name, token)
    shared = send_all({f"{name}-block-{token}": block, f"{name}-rounding-{token}": rounding(lens)})
    resolution = float(np.finfo(lens.view.source.dtype).eps)
    # On the worker with a kernel's product: all products on one worker would be n times the block.
    parts = []
    for (first, *_), products in graph.groups:
        key = f"{name}-reduce-{first}-{token}"
        reduce = delayed(_reduce, pure=False)
        parts.append(reduce(products, *shared, resolution, first, probes.shape[1], dask_key_name=key))
    statistics = execute(parts, graph.units, name)
    return [np.concatenate(pieces) for pieces in zip(*statistics, strict=True)]


def _reduce(products: Array, block: Float, rounding: Float, resolution: float, start: int, b: int) -> tuple[Float, ...]:
    """The statistics of some kernels, beginning with that at position `start`."""
    probes, columns, m = block[:, :b], block[:, b + 1 :], len(block)
    factors: Any = scipy.linalg.qr(probes, mode="economic", pivoting=True)
    basis, triangle, order = factors
    # With few samples, vectors of random signs may be linearly dependent.
    diagonal = np.abs(triangle.diagonal())
    rank = np.count_nonzero(diagonal > 1e-8 * diagonal[0])
    projections, forms, sums = [], [], products[:, :, b]
    eigenvalues, energies = np.zeros((len(products), b)), np.zeros((len(products), b, columns.shape[1]))
    for place, product in enumerate(products):
        sketched = product[:, :b]
        projections.append(probes.T @ sketched)
        forms.append(np.einsum("mc,mc->c", columns[:, : product.shape[1] - b - 1], product[:, b + 1 :]))
        # KQ = (KZ)R⁻¹, on the columns that pivoting puts first.
        turned = scipy.linalg.solve_triangular(triangle[:rank, :rank], sketched[:, order[:rank]].T, trans="T").T
        # E ‖KQ‖_F² = (b/m)‖K‖_F², and rounding each entry of K adds at most its resolution times ‖K‖_F.
        norm = np.linalg.norm(turned) * np.sqrt(m / rank)
        # R⁻¹ enlarges the rounding of products with vectors that are nearly dependent.
        condition = diagonal[0] / diagonal[rank - 1]
        noise = float(max(resolution, 1e-16 * condition) * norm + np.sqrt(m) * rounding[start + place])
        eigenvalues[place, :rank], vectors = nystrom(basis[:, :rank], turned, noise)
        energies[place, :rank] = (vectors.T @ columns) ** 2
    return np.array(projections), eigenvalues, np.array(forms), sums, energies


def nystrom(block: Float, product: Float, noise: float) -> tuple[Float, Float]:
    """λ̂ (b,) and eigenvectors (m, b) of Nyström's approximation from Q and W = KQ, (m, b); NaN where K is not PSD.

    `noise` bounds the spectral norm of the rounding errors of K. At least this shift is added to all eigenvalues during
    the computation, so that rounding does not appear as a negative eigenvalue.
    """
    size = float(np.linalg.norm(product))
    if size == 0.0:
        return np.zeros(block.shape[1]), np.zeros(block.shape)
    shift = noise + float(np.finfo(np.float64).eps) * np.sqrt(len(block)) * size
    shifted = product + shift * block
    core = block.T @ shifted
    try:
        factor = scipy.linalg.cholesky(0.5 * (core + core.T), lower=False)
    except np.linalg.LinAlgError:
        return np.full(block.shape[1], np.nan), np.full(block.shape, np.nan)
    # K̂ + shift·I = BBᵀ with B = (W + shift·Q)R⁻¹, RᵀR the core: no inverse of the core, which is nearly singular.
    root = scipy.linalg.solve_triangular(factor, shifted.T, trans="T", lower=False)
    _, values, vectors = scipy.linalg.svd(root, full_matrices=False)
    return np.maximum(values**2 - shift, 0.0), vectors.T


def upper_bounds(eigenvalues: Float, trace: Float, frobenius: Float | None = None) -> Float:
    """Upper bounds of each λ_i, (n, b), from λ̂ (n, b), tr K (n,) and, if it is known, ‖K‖_F (n,)."""
    bound = _smallest_means(eigenvalues, np.maximum(trace - eigenvalues.sum(axis=1), 0.0))
    if frobenius is not None:
        squares = eigenvalues**2
        left = np.maximum(frobenius**2 - squares.sum(axis=1), 0.0)
        bound = np.minimum(bound, np.sqrt(_smallest_means(squares, left)))
    return bound


def _smallest_means(values: Float, left: Float) -> Float:
    """The smallest of (Σ_{l=j..i} values_l + left)/(i − j + 1) over j ≤ i, (n, b)."""
    sums = np.cumsum(values, axis=1)
    bound = np.empty_like(values)
    for i in range(values.shape[1]):
        before = np.concatenate([np.zeros((len(values), 1)), sums[:, :i]], axis=1)
        bound[:, i] = ((sums[:, i : i + 1] - before + left[:, None]) / np.arange(i + 1, 0, -1)).min(axis=1)
    return bound


def relevant_dimensions(energies: Float, total: float, m: int) -> Float:
    """Relevant dimension d, d or NaN where it may be larger, noise and share in front of d, (4, n).

    From z_1 … z_r (n, r), NaN where unknown, and Σ_i z_i; see `dmkl.relevant_dimension`.
    """
    d = np.arange(min(energies.shape[1], m // 2) + 1)
    front = np.cumsum(np.pad(energies, ((0, 0), (1, 0))), axis=1)[:, : len(d)] / total
    signal = front / np.maximum(d, 1)
    noise = np.maximum(1.0 - front, 1e-10) / (m - d)  # less is rounding
    # Cuts with σ₁² ≤ σ₂² are excluded: otherwise a first eigenvector orthogonal to the labels could be the best cut.
    loss = d * np.log(np.maximum(signal, noise)) + (m - d) * np.log(noise)
    best = np.argmin(np.where((signal > noise) | (d == 0), loss, np.inf), axis=1)
    rows = np.arange(len(best))
    most = np.where((best == len(d) - 1) & (best < m // 2), np.nan, best)
    figures = np.stack([best, most, m * noise[rows, best], front[rows, best]])
    return np.where(np.isnan(energies).any(axis=1), np.nan, figures)
