"""Analyzing a kernel set: two passes for everything, or one where an estimate of the alignments will do."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from dmkl._version import __version__
from dmkl.analysis.duplicates import alike, multiples, neighborly_order
from dmkl.analysis.result import Analysis
from dmkl.analysis.sketch import Sketch, sketch_pass
from dmkl.analysis.spectrum import captured, least_captured, participation_ratio, upper_bounds
from dmkl.analysis.targets import Ideal, ideal_kernels, shares_between_classes, target_alignments
from dmkl.arrays import Array, Float
from dmkl.errors import IndefiniteKernelWarning, InputError
from dmkl.inputs.label_tables import matched
from dmkl.kernelset import KernelSet
from dmkl.numerics.alignment import alignments, estimated, inner_products, sign_probes
from dmkl.numerics.covariates import Covariates
from dmkl.numerics.determined import by_chance, label_codes
from dmkl.numerics.steps import as_steps
from dmkl.passes.alignment import check_alignable, gram_pass, rounding
from dmkl.passes.blas import one_blas_thread
from dmkl.passes.damage import refuse_damage
from dmkl.passes.view import Lens
from dmkl.stores import Kernels, as_kernel_set
from dmkl.variables import describe

__all__ = ["analyze"]

_OVERSAMPLING = 10
_LEAST_WIDTH = 64
"""Random vectors for eigenvalues: ten more than are wanted, and so many at least, with which a pass takes little longer
than with one. A flat spectrum would need more; its bounds tell.
"""


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

    Which kernels are alike, which repeat others, how well each alone fits the labels, and how many dimensions it has.
    It takes two passes: one over pairs of tiles for the exact alignments, one with random vectors and the labels for
    all else. With `probes` the alignments are estimated from those vectors too, and one pass is all. Centering over
    some of the samples, or after cosine normalization, takes a pass for its means before.

    Parameters
    ----------
    K
        A square set; kernels are analyzed as this view shows them.
    y
        Labels, (m,) classes or (m, tasks) of 0 and 1; by default those of the set, where it has any.
    steps
        What is done to the kernels before, as in `MKFDA`: those of a learner show what it learns from. Scales alone do
        not change alignments; "cosine" and "center" do.
    targets
        False leaves the labels out.
    n_eigenvalues
        Leading eigenvalues wanted of each kernel, from ten more random vectors, 64 at least; no more than `probes`
        where those are given.
    threshold
        Kernels of at least this alignment are put into one group.
    probes
        Random vectors for an estimate of the alignments, at least 3; exact by default.
    seed
        Of the random vectors.

    Returns
    -------
    Analysis
        Its `data` holds everything, labeled; it draws, tells and lists what is in it.

    Raises
    ------
    InputError
        If the set is not square, the labels do not fit, or an argument is out of range.
    MemoryBudgetError
        If the projected memory exceeds the budget.

    References
    ----------
    Alignments and targets: Cristianini et al., NIPS 2001; centered: Cortes, Mohri, Rostamizadeh, JMLR 13 (2012); their
    picture: Yan et al., JMLR 13 (2012), Fig. 5. Eigenvalues: `dmkl.analysis.spectrum`.
    """
    if n_eigenvalues < 1:
        msg = f"n_eigenvalues must be at least 1, got {n_eigenvalues}"
        raise InputError(msg)
    if not 0 < threshold <= 1:
        msg = f"threshold is an alignment above 0 and up to 1, got {threshold}"
        raise InputError(msg)
    chain = as_steps(steps)
    centered = any(step == "center" or isinstance(step, Covariates) for step in chain)
    K = as_kernel_set(K, "analyze")
    check_alignable(K.view)
    m = K.shape[1]
    labels, tasks = K.labels, K.tasks
    if y is not None:
        table = matched("y", y, K.samples, named=K.view.has_names, stored=K.labels)
        labels, tasks = table.values, None if table.columns is None else np.array(table.columns, dtype=object)
    ideal = None
    if targets and labels is not None:
        ideal = ideal_kernels(labels, m, tasks, centered=centered)
    if probes is None:
        width = min(max(n_eigenvalues + _OVERSAMPLING, _LEAST_WIDTH), m)
        Z = np.linalg.qr(np.random.default_rng(seed).standard_normal((m, width)))[0]
    else:
        Z = sign_probes(m, probes, seed)
    seen, n_passes = K.with_steps(chain).measured()
    lens = seen.lens()
    floor = m * rounding(lens)
    gram = gram_pass(lens) if probes is None else None
    sketch = sketch_pass(lens, Z, np.empty((m, 0)) if ideal is None else ideal.columns)
    n_passes += sketch.n_passes + (probes is None)
    data = _dataset(seen, lens, gram, sketch, ideal, floor, n_eigenvalues, threshold, labels, centered=centered)
    method = "exact" if probes is None else f"estimate from {probes} random probes, seed {seed}"
    return Analysis(
        data.assign_attrs(
            centered=int(centered),
            steps=", ".join(map(str, chain)),
            method=method,
            threshold=float(threshold),
            n_samples=m,
            n_passes=n_passes,
            created_by=f"dmkl {__version__}",
        )
    )


def _tell_indefinite(found: list[str]) -> None:
    if found:
        shown = ", ".join(map(repr, found[:5])) + (" …" if len(found) > 5 else "")
        msg = (
            f"no positive semidefinite kernel: {shown}. Their eigenvalues are NaN here; `dmkl check` tells how "
            "negative they are, and importing with repair='clip', 'flip' or 'shift' mends them"
        )
        warnings.warn(msg, IndefiniteKernelWarning, stacklevel=4)


def _dataset(
    K: KernelSet,
    lens: Lens,
    exact: Float | None,
    sketch: Sketch,
    ideal: Ideal | None,
    floor: Float,
    n_eigenvalues: int,
    threshold: float,
    labels: Array | None,
    *,
    centered: bool,
) -> xr.Dataset:
    """Everything, labeled. `exact` are the inner products of the kernels, where they are not to be estimated."""
    variables: dict[str, Any] = {}

    def put(name: str, dims: tuple[str, ...], values: Array, about: str) -> None:
        variables[name] = (
            dims,
            values,
            {"long_name": about, "units": "1"} if values.dtype.kind in "iuf" else {"long_name": about},
        )

    def measure(name: str, dims: tuple[str, ...], statistic: Any, about: str) -> Float:
        """Compute a statistic of the inner products, with its standard error where these are estimates."""
        if exact is not None:
            value: Float = statistic(exact)
        else:
            value, error = estimated(sketch.projections, statistic)
            put(f"{name}_error", dims, error, f"standard error of the {about}")
        put(name, dims, value, about)
        return value

    alignment = measure("alignment", ("kernel", "kernel_2"), lambda gram: alignments(gram, floor), "alignment")
    coords: dict[str, Any] = {"kernel": np.array(K.names, dtype=str), "kernel_2": np.array(K.names, dtype=str)}
    if ideal is not None:
        dims: tuple[str, ...] = ("kernel",) if ideal.tasks is None else ("kernel", "task")
        factors = ideal

        def of_targets(gram: Float) -> Float:
            found = target_alignments(sketch.forms, _norm(gram, floor), factors)
            return found[:, 0] if factors.tasks is None else found

        measure("target_alignment", dims, of_targets, "alignment with the ideal kernel")
        if ideal.tasks is not None:
            coords["task"] = np.array(ideal.tasks, dtype=str)
    diagonal = lens.diagonal()
    assert diagonal is not None  # symmetric sets have it
    trace: Float = np.asarray(diagonal.sum(axis=1))
    gram = inner_products(sketch.projections) if exact is None else exact
    norm = _norm(gram, floor)
    clear = ~np.isnan(norm)
    put("trace", ("kernel",), trace, "tr K")
    measure("norm", ("kernel",), lambda gram: _norm(gram, floor), "Frobenius norm ‖K‖")
    if ideal is not None and centered:
        shares = shares_between_classes(sketch.forms, trace, ideal)
        put("class_share", dims, shares if ideal.tasks is not None else shares[:, 0], "share of tr K between classes")
        # Of few samples, or of hardly more samples than classes, any kernel may depend on the classes alone by chance.
        few = [not by_chance(codes, 1) for codes in label_codes(labels)]
        several = np.array(few if len(few) == shares.shape[1] else [False])  # targets have no classes
        exact_share = 1 - max(32 * float(np.finfo(K.dtype).eps), 1e-10)
        is_labels = np.asarray(((shares >= exact_share) & several).any(axis=1))
        put("is_labels", ("kernel",), is_labels, "whether the kernel depends on the classes alone")
    about = "effective rank (tr K)²/‖K‖²"
    ratio = measure("effective_rank", ("kernel",), lambda gram: participation_ratio(trace, _norm(gram, floor)), about)
    negative = np.array(K.names)[clear & np.isnan(sketch.eigenvalues[:, 0])].tolist()
    if negative:
        refuse_damage(K.view)
    _tell_indefinite(negative)
    # Of a kernel without a direction they are rounding.
    found = np.where(clear[:, None], sketch.eigenvalues, np.nan)
    bounds = {"below": found, "above": upper_bounds(found, trace, None if exact is None else norm)}
    for (side, values), name in zip(bounds.items(), ("eigenvalue", "eigenvalue_upper"), strict=True):
        put(name, ("kernel", "component"), values[:, :n_eigenvalues], f"leading eigenvalues, proven from {side}")
    n_probes = sketch.projections.shape[1]
    # Below 1e-10 a difference tells nothing whatever the precision: sums over many entries round too.
    relative = max(4 * float(np.finfo(K.dtype).eps), 1e-10)
    # A kernel without a direction is nobody's multiple.
    noise = np.where(clear, n_probes * (relative * np.nan_to_num(norm) + floor), np.inf)
    first = multiples(sketch.projections, noise)
    for share in (90, 99):
        about = f"leading eigenvalues that make up {share} % of the trace, at"
        put(f"components_{share}_least", ("kernel",), least_captured(ratio, share / 100), f"{about} least")
        put(f"components_{share}_most", ("kernel",), captured(found, trace, share / 100), f"{about} most")
    put("group", ("kernel",), alike(alignment, threshold).astype(np.int32), "number of the group of kernels alike")
    repeats = np.array([K.names[f] if f != j else "" for j, f in enumerate(first)], dtype=str)
    put("repeats", ("kernel",), repeats, "earlier kernel that this is a multiple of")
    put("order", ("kernel",), neighborly_order(alignment).astype(np.int32), "positions, those alike side by side")
    coords["component"] = np.arange(1, variables["eigenvalue"][1].shape[1] + 1, dtype=np.int32)
    return describe(xr.Dataset(variables, coords=coords))


def _norm(gram: Float, floor: Float) -> Float:
    """‖K_j‖; NaN for a kernel of which nothing but rounding is left."""
    norm = np.sqrt(gram.diagonal())
    return np.where(norm > floor, norm, np.nan)
