"""`dmkl.association_test`: score tests of each kernel given covariates, in one pass.

With residuals r = y − μ of the labels on covariates Z and an intercept, by least squares (W = I) or by logistic
regression (W = diag μ(1 − μ)), let z = W^(−½)r, K̃ = W^½KW^½, and P the projector on the complement of W^½[1, Z], of
rank n = m − q. The statistic of a kernel is T = zᵀK̃z/zᵀz, the score of its variance component. Without association z
is normal with the covariance σ²P, exactly or for many samples, and with the n eigenvalues λ_i of PK̃P

    P(T > t) = P(Σ_i (λ_i − t) χ²_i > 0),

which does not depend on σ² (Chen, Chen, Zhao, Wu, Schaid: Small sample kernel association tests for human genetic and
microbiome association studies, Genetic Epidemiology 40, 2016). Where σ² is taken as known it is
P(Σ_i λ_iχ²_i > zᵀK̃z/σ²) (Wu, Lee, Cai, Li, Boehnke, Lin: Rare-variant association testing for sequencing data with the
sequence kernel association test, American Journal of Human Genetics 89, 2011). A kernel of few features has few
eigenvalues that are not 0, those of the inner products of its features.

Of times of an event, r are the martingale residuals of Cox regression on Z, whose covariance is V = AAᵀ, the curvature
of the partial likelihood projected on the complement of Z. T = rᵀKr/rᵀr, and the eigenvalues are those of Aᵀ(K − tI)A;
where the variance is known, of AᵀKA (Plantinga, Zhan, Zhao, Chen, Jenq, Wu: MiRKAT-S: a community-level test of
association between the microbiota and survival times, Microbiome 5, 2017).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr
from scipy.stats import cauchy, false_discovery_control

from dmkl.arrays import Array, Float, Index, check_choice, is_known
from dmkl.description import Column, Description, Figure, Key, Table, count, listed, short_names
from dmkl.errors import refuse
from dmkl.inference import figures
from dmkl.kernelset import Kernels, as_kernel_set, given_labels
from dmkl.learners.checks import check_count
from dmkl.numerics.covariates import Covariates, basis, residualize
from dmkl.numerics.fisher import class_of, encode_targets, encode_values
from dmkl.numerics.losses import Cox, JointLoss, Logistic
from dmkl.numerics.quadratic_forms import upper_tail
from dmkl.numerics.survival import survival_labels
from dmkl.passes.blas import one_blas_thread
from dmkl.passes.elements import combined_kernels
from dmkl.passes.execute import check_memory, machine, run_tasks
from dmkl.passes.view import Lens
from dmkl.store.saved import Result, of_task

Family = Literal["gaussian", "binomial", "cox"]
_ZERO = 1e-10
"""Eigenvalues below this share of the largest are taken as zeros, which are counted and not computed with."""
_TASKS_PER_SLOT = 8
_FEWER = "test some of the samples, K[some, some]"
_MOST_STEPS = 50
_LEVEL = 0.05
_MOST_NAMES = 5


class Association(Result):
    """The result of `dmkl.association_test`.

    Parameters
    ----------
    data
        With n kernels and, of several targets or tasks, that dimension too:

        ================================== ==========================================================================
        excess (kernel)                    T over its mean without association, which is 1
        p_value (kernel)                   of the test of each kernel; NaN for a kernel that is constant given the
                                           covariates
        q_value (kernel)                   the smallest false discovery rate at which the kernel is selected
                                           (Benjamini and Hochberg)
        permutation_p_value (kernel)       from permuted residuals, where asked for
        omnibus_p_value ()                 of all kernels together, by the Cauchy combination
        ================================== ==========================================================================

        Attributes: family, n_samples, n_covariates, small_sample (1 or 0), n_permutations, n_passes, created_by.
    """

    FORMAT, TITLE = "dmkl-association", "association test"
    NEEDED = ("excess", "p_value", "q_value", "omnibus_p_value")
    NEEDED_ATTRIBUTES = ("family", "n_samples", "n_covariates", "n_passes")

    def table(self) -> pd.DataFrame:
        """A row for each kernel, and target or task, the smallest p-value first."""
        names = [name for name in ("excess", "p_value", "q_value", "permutation_p_value") if name in self.data]
        frame = self.data[names].to_dataframe().reset_index()
        return frame.sort_values("p_value", kind="stable", ignore_index=True)

    def describe(self) -> Description:
        """Which kernels are associated, and all of them together; see `Result.describe`."""
        attrs, data = self.data.attrs, self.data
        n, covariates = data.sizes["kernel"], attrs["n_covariates"]
        scope = f"{count(n, 'kernel')}, {count(attrs['n_samples'], 'sample')}, {attrs['family']} labels"
        scope += f", given {count(covariates, 'covariate')}" if covariates else ""
        lines, short = [], short_names(data["kernel"].values)
        for name in self.tasks or (None,):
            part = of_task(data, name)
            frame = part[["p_value", "q_value"]].to_dataframe().sort_values("p_value", kind="stable")
            selected = frame[frame["q_value"] <= _LEVEL]
            names = listed(
                (f"{short[str(kernel)]} (p = {p:.2g})" for kernel, p in selected["p_value"].items()), _MOST_NAMES
            )
            found = f"{len(selected)} of {n} at a false discovery rate of {_LEVEL:g}"
            lines.append(
                f"{'' if name is None else f'{name}: '}{found}{f': {names}' if names else ''}; all kernels "
                f"together p = {float(part['omnibus_p_value']):.2g}"
            )
        note = "each kernel is tested alone: kernels that are alike are associated together"
        sentences: dict[Key, list[str]] = {"kernels": lines, "notes": [note]}
        pictures = {"Associated kernels": Figure(scope, self.plot)}
        return Description(
            "Association of kernels", scope, sentences, tables={"kernels": self._kernels_table}, figures=pictures
        )

    def _kernels_table(self) -> Table:
        titles = {"p_value": "p", "q_value": "q", "permutation_p_value": "p by permutation"}
        frame = self.table()
        columns = [Column(name, titles.get(name), "kernel" if name == "kernel" else None) for name in map(str, frame)]
        return Table(frame, columns, "Associated kernels", kernels=self.data["kernel"].values)

    plot = figures.plot_association


@one_blas_thread
def association_test(
    K: Kernels,
    y: npt.ArrayLike | None = None,
    *,
    covariates: Any = None,
    family: Family | None = None,
    small_sample: bool = True,
    n_permutations: int = 0,
    seed: int = 0,
) -> Association:
    """Test whether each kernel is associated with the labels, given covariates: the score test of SKAT and MiRKAT.

    The p-value of a kernel is the probability of a larger T = rᵀKr/rᵀr, r the residuals of the labels on the
    covariates, where the labels do not depend on the kernel; see `dmkl.inference.association`. It is computed from the
    eigenvalues of the kernel, with a relative error of 1e-9 however small it is. The scale of a kernel and constants
    that are added to it do not matter. One pass over the kernels; it takes m³ operations for each that is no factor.

    Parameters
    ----------
    K
        A square set of kernels, positive semidefinite or not.
    y
        Labels, (m,) or (m, targets); those of the set where missing. Samples without a label are left out.
    covariates
        As in `dmkl.residualize`: a DataFrame by sample or an array, numbers and categories. There is an intercept.
    family
        "gaussian" for numbers, by least squares, "binomial" for two classes, by logistic regression, or "cox" for times
        of an event, labels as in `MKCox`. By default binomial where there are two different labels.
    small_sample
        False takes the variance of the residuals as known, as SKAT does; p-values of few samples are too large then.
    n_permutations
        Residuals are permuted as often, as a check of p-values: 0 for none. The smallest p is one over one more.
    seed
        Seed of the permutations.

    Raises
    ------
    InputError
        If the set is not square, labels are missing or have more than two classes, or covariates determine them.
    MemoryBudgetError
        If a kernel that is no factor does not fit in memory.

    Notes
    -----
    All kernels together: Liu, Xie, Cauchy combination test, JASA 115 (2020). False discovery rates: Benjamini,
    Hochberg, JRSS B 57 (1995).

    Examples
    --------
    >>> import dmkl
    >>> K = dmkl.open("kernels.zarr")
    >>> p_values = dmkl.association_test(K).data["p_value"]
    """
    K = as_kernel_set(K, "association_test")
    if not K.is_square:
        refuse(f"association_test needs a square set, got {K.shape[1]} rows and {K.shape[2]} columns that differ")
    if family is not None:
        check_choice("family", family, get_args(Family))
    check_count("n_permutations", n_permutations, least=0)
    design, n_covariates = np.ones((K.shape[1], 1)), 0
    if covariates is not None:
        step = covariates if isinstance(covariates, Covariates) else residualize(covariates)
        design, n_covariates = step.of(K.samples), len({name.partition("=")[0] for name in step.columns})
    labels, names = given_labels(K, y)
    if labels is None:
        refuse("association_test needs labels: give y, or store them with the kernels (labels=, --labels)")
    m, host = K.shape[1], machine()
    if family == "cox":  # the likelihood has a row for each event
        check_memory("association_test", {"the covariance of residuals": 4 * 8 * m**2}, host.total_bytes, _FEWER)
    chosen, dim, labeled = _by_problem(np.asarray(labels), names, family)
    rng = np.random.default_rng(seed)
    problems = [_problem(rows, value, chosen, design[rows], n_permutations, rng) for rows, value in labeled]
    seen, n_passes = K.measured()
    lens, n = seen.lens(), len(K.names)
    widths = np.full(n, m) if family == "cox" and small_sample else _widths(lens)
    largest = int(np.where(widths < 0, m, widths).max())
    needed = {"a kernel, with its weights and projected": 4 * 8 * m * max(largest, 1)}
    check_memory("association_test", needed, host.task_bytes, "Approximate kernels by factors (rank=)")
    parts = np.array_split(np.arange(n), min(n, _TASKS_PER_SLOT * host.slots))
    work = [partial(_test_kernels, part, small_sample) for part in parts]
    values = np.concatenate(run_tasks("associate", work, lens, problems, task_bytes=seen.bytes_per_pass // len(parts)))
    dims = ("kernel",) if dim is None else ("kernel", dim)
    coords: dict[str, Any] = {"kernel": list(K.names)}
    if dim is not None:
        coords[dim] = [str(k) for k in range(len(problems))] if names is None else list(map(str, names))
    excess, p, by_permutation = np.moveaxis(values if dim else values[:, 0], -1, 0)
    data = xr.Dataset({"excess": (dims, excess), "p_value": (dims, p)}, coords)
    data["q_value"] = (dims, np.apply_along_axis(_on_known, 0, p, false_discovery_control))
    data["omnibus_p_value"] = (dims[1:], np.apply_along_axis(_combined, 0, p))
    if n_permutations:
        data["permutation_p_value"] = (dims, by_permutation)
    counted = {"n_samples": K.shape[1], "n_covariates": n_covariates, "n_permutations": n_permutations}
    data.attrs |= {"family": chosen, "small_sample": int(small_sample), **counted, "n_passes": n_passes + 1.0}
    data.attrs |= {"set": K.origin["set"]}
    return Association(data)


@dataclass(frozen=True, eq=False)
class _Problem:
    """Labels of some samples given covariates, where z has the covariance σ²AAᵀ."""

    rows: Index | slice  # The samples with a label.
    root: Float  # The diagonal of W^½, (m,).
    basis: Float  # An orthonormal basis of W^½[1, Z], (m, q).
    residuals: Float  # z and its permutations, (m, 1 + permutations), orthogonal to the basis.
    variance: float  # σ² where it is taken as known.
    spread: Float | None = None  # A, (m, rank), where it is not the projector on the complement of the basis.

    def project(self, values: Float) -> Float:
        """AᵀB."""
        return values - self.basis @ (self.basis.T @ values) if self.spread is None else self.spread.T @ values


def _by_problem(
    labels: Array, names: Array | None, family: Family | None
) -> tuple[Family, str | None, list[tuple[Index | slice, Float]]]:
    """The family of the labels, the dimension of several targets or tasks, and rows and labels of each of them."""
    if family == "cox":
        times = survival_labels(labels)
        rows = np.flatnonzero(~np.isnan(times))
        return family, None, [(rows, times[rows])]
    m = len(labels)
    known = labels[is_known(labels)]
    if family is None:
        family = "binomial" if len(np.unique(known)) == 2 else "gaussian"
    if labels.ndim == 1 and len(known) < m:
        labels, names = labels[:, None], None
    if family == "gaussian":
        if known.dtype.kind not in "biuf":
            refuse(
                f"association_test takes numbers or two classes, got {len(np.unique(known.astype(str)))} classes; give "
                "a column of 0 and 1 for each class (y=), or numbers"
            )
        targets = encode_values(labels, m, names)
        values = [h[:, 0] for h in targets.problems]
    else:
        targets = encode_targets(labels, m, names)
        if targets.kind == "multiclass":
            refuse(f"the family 'binomial' is of two classes, got {len(targets.classes)}; give a column for each class")
        values = [class_of(h).astype(np.float64) for h in targets.problems]
    rows_of = [slice(None) if rows is None else rows for rows in targets.rows]
    return family, None if labels.ndim == 1 else targets.dim, list(zip(rows_of, values, strict=True))


def _problem(
    rows: Index | slice, value: Float, family: Family, Z: Float, n_permutations: int, rng: np.random.Generator
) -> _Problem:
    Q = Z @ basis(Z) / np.sqrt(len(value))
    root, variance, spread = np.ones(len(value)), 1.0, None
    if family == "cox":
        without_constant = np.linalg.svd(Q - Q.mean(axis=0), full_matrices=False)[0][:, :-1]
        residuals, half = _regress(Cox(), without_constant, value, "order the events, so that Cox regression")
        of_covariates = np.linalg.qr(half.T @ without_constant)[0]
        spread = half - (half @ of_covariates) @ of_covariates.T
    elif family == "gaussian":
        residuals = value - Q @ (Q.T @ value)
    else:
        why_not = "separate the two classes, so that the logistic regression"
        residuals, root = _regress(Logistic(), Q, 2.0 * value - 1.0, why_not)
        residuals = residuals / root
        Q = np.linalg.qr(root[:, None] * Q)[0]
    z = residuals[:, None]
    z = np.hstack([z, *(rng.permutation(z) for _ in range(n_permutations))])
    z -= Q @ (Q.T @ z)
    if family == "gaussian":
        variance = float(z[:, 0] @ z[:, 0]) / (len(z) - Q.shape[1])
    if not np.linalg.norm(z[:, 0]) > 1e-8 * np.linalg.norm(value):
        refuse("the covariates determine the labels, so that nothing is left to test; give fewer covariates")
    return _Problem(rows, root, Q, z, variance, spread)


def _regress(loss: JointLoss, Z: Float, y: Float, why_not: str) -> tuple[Float, Float]:
    """Residuals −∂ℓ/∂η and the root of ∂²ℓ/∂η² (`JointLoss.root`) of the regression on Z, by Newton's method."""
    d, b = np.ones(len(y)), np.zeros(Z.shape[1])
    for _ in range(_MOST_STEPS):
        hessian = Z.T @ loss.product(y, Z @ b, d, Z)
        step = np.linalg.lstsq(hessian, -Z.T @ loss.slope(y, Z @ b, d))[0]
        b = b + step
        if not np.abs(Z @ step).max() > 1e-9:
            root = loss.root(y, Z @ b, d)
            if root.ndim > 1 or root.min() > 1e-6:
                return -loss.slope(y, Z @ b, d), root
            break
    refuse(f"the covariates {why_not} has no optimum; give fewer of them")


def _widths(lens: Lens) -> Index:
    """Columns of the factor of each kernel; −1 for a kernel without one, or after steps."""
    factors = None if lens.fitted.steps else lens.view.source.factors
    return np.full(lens.view.shape[0], -1) if factors is None else factors.widths[lens.view.kernels]


def _test_kernels(kernels: Index, small_sample: bool, lens: Lens, problems: Sequence[_Problem]) -> Float:
    """`_test` of each kernel and problem, (kernels, problems, 3)."""
    results, view = np.empty((len(kernels), len(problems), 3)), lens.view
    for of_kernel, kernel in zip(results, kernels, strict=True):
        is_factor = _widths(lens)[kernel] >= 0
        if is_factor:
            every = view.factors.read(view.kernels[[kernel]], 0, slice(0, view.source.tiling.rows))
            values = every[view.rows].astype(np.float64)
        else:
            (values,) = combined_kernels([(lens, 1.0 * (np.arange(view.shape[0]) == kernel))])
        for place, problem in enumerate(problems):
            rooted = problem.root[:, None] * values[problem.rows]
            rooted = rooted if is_factor else rooted[:, problem.rows] * problem.root
            of_kernel[place] = _test(problem, rooted, is_factor, small_sample)
    return results


def _test(problem: _Problem, values: Float, is_factor: bool, small_sample: bool) -> tuple[float, float, float]:
    """Excess, p-value and p-value by permutations of W^½KW^½, or of W^½F where K = FFᵀ."""
    z, spread, half = problem.residuals, problem.spread, problem.project(values)
    if is_factor:
        forms = np.sum((values.T @ z) ** 2, axis=0)
        # Of AᵀFFᵀA and FᵀAAᵀF, with the same eigenvalues but for zeros, the smaller one that is of use.
        wide = half.shape[0] <= half.shape[1] or (small_sample and spread is not None)
        square = half @ half.T if wide else half.T @ half
    else:
        forms = np.vecdot(z.T, (values @ z).T)
        square = problem.project(half.T)
    eigenvalues = np.linalg.eigvalsh(square)
    size, scale = np.abs(eigenvalues).max(), np.sum(values**2 if is_factor else np.abs(values.diagonal()))
    if not size > _ZERO * scale:
        return math.nan, math.nan, math.nan
    n = len(z) - problem.basis.shape[1]
    kept = eigenvalues[np.abs(eigenvalues) > _ZERO * size][-n:]
    t = forms / np.sum(z**2, axis=0)
    if not small_sample:
        p = upper_tail(kept, forms[0] / problem.variance)
    elif spread is None:
        p = upper_tail(np.append(kept - t[0], -t[0]), 0.0, np.append(np.ones(len(kept)), n - len(kept)))
    else:
        p = upper_tail(np.linalg.eigvalsh(square - t[0] * (spread.T @ spread)), 0.0)
    mean = kept.sum() / (n if spread is None else np.sum(spread**2))
    n_permutations = len(t) - 1
    by_permutation = (1 + np.count_nonzero(t[1:] >= t[0] * (1.0 - 1e-12))) / (1 + n_permutations)
    return float(t[0] / mean), p, float(by_permutation)


def _on_known(values: Float, function: Any) -> Float:
    result = np.full(len(values), np.nan)
    known = ~np.isnan(values)
    if known.any():
        result[known] = function(values[known])
    return result


def _combined(p: Float) -> float:
    """The Cauchy combination: the mean of tan((½ − p)π) has a Cauchy distribution, whatever the dependence is."""
    known = p[~np.isnan(p)]
    return float(cauchy.sf(np.mean(cauchy.isf(np.clip(known, 1e-300, 1.0 - 1e-15))))) if len(known) else math.nan
