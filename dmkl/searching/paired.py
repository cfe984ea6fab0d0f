"""`dmkl.compare_predictions`: McNemar's and DeLong's tests and paired losses of two models on the same rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from scipy.special import bdtr, ndtr, ndtri, stdtr
from scipy.stats import rankdata

from dmkl.arrays import Float, Index, Mask, is_known
from dmkl.errors import refuse
from dmkl.learners.saving import model_class
from dmkl.store.saved import task_dim
from dmkl.variables import describe

TESTS = {"mcnemar": "McNemar", "delong": "DeLong", "paired_loss": "paired losses"}
"""Titles of the tests by the prefix of their results."""


_LOSSES = ("r2", "correlation", "explained_variance", "neg_log_loss", "neg_brier_score")
"""Scorers of losses, besides errors."""


def row_test(tests: xr.Dataset, scoring: str) -> tuple[str, float]:
    """The title and the p-value of the test that suits a scorer; "" and NaN if there is none."""
    test = "paired_loss" if scoring in _LOSSES or "error" in scoring else "mcnemar"
    if "roc_auc" in scoring or "average_precision" in scoring:
        test = "delong"
    values = tests.get(f"{test}_p_value", xr.DataArray(np.nan))
    p = values.values[np.isfinite(values.values)]
    if not p.size:
        return "", np.nan
    title = TESTS[test] + (f" (smallest of {p.size} {values.dims[0]}s, Bonferroni)" if values.dims else "")
    return title, min(1.0, p.size * float(p.min()))


def compare_predictions(first: xr.Dataset, second: xr.Dataset) -> xr.Dataset:
    """Test whether two models predict the same held-out rows equally well, row by row.

    Of classes, McNemar's exact test of the rows that one model predicts rightly and the other wrongly, b and c of them:

        p = min(1, 2 P(X ≤ min(b, c))),    X binomial with b + c trials of probability 1/2.

    Of two classes, DeLong's test of the areas A = Σ_i V_i/n₊ under the ROC curves, with the share V_i of the negative
    rows whose score is below that of the positive row i (equal ones count half), and W_j likewise of the negative rows:

        z = (A₁ − A₂)/s,    s² = var(V₁ − V₂)/n₊ + var(W₁ − W₂)/n₋.

    Scores of different models are not comparable, so that A₁ − A₂ is the mean over the folds, and s² their mean over
    the number of folds. Of losses l, which are −log p of the true class or (y − f)², Student's t of the paired
    differences, t = d̄/(s/√n).

    All three compare the models that were fitted, as if rows were independent. Folds train on one another's rows, by
    which the variance of sums over the folds is up to twice that of independent rows (`dmkl.searching.chance`). With
    several folds, the normal deviates of p-values are therefore divided by √2. In simulations of two equally good
    learners, tests at 5 % rejected in up to 7 of 100 cases, and in up to 19 without the factor. Intervals over folds
    (`dmkl.SearchResult.comparison`) compare the learners, which other training rows would fit differently.

    Parameters
    ----------
    first, second
        `predictions` of two searches or evaluations with the same held-out rows, in any order.

    Returns
    -------
    Dataset
        Over task or target if there are several; without tests that do not apply. p-values and standard errors are NaN
        for rows that are not independent: groups, and samples that are held out several times.

        ============================ ================================================================================
        paired_rows                  number of rows with a known label
        mcnemar_first                rows that only the first model predicts rightly
        mcnemar_second               rows that only the second model predicts rightly
        mcnemar_p_value              p of McNemar's test
        delong_difference            A₁ − A₂
        delong_standard_error        its standard error s
        delong_p_value               p of DeLong's test
        paired_loss_difference       mean loss of the first minus that of the second; negative if the first is better
        paired_loss_standard_error   its standard error s/√n
        paired_loss_p_value          p of the t test of losses
        ============================ ================================================================================

    Raises
    ------
    InputError
        If the predictions are not of the same rows, their true labels differ, or they are log hazard ratios.

    Notes
    -----
    McNemar: Note on the sampling error of the difference between correlated proportions or percentages. Psychometrika
    12 (1947). DeLong, DeLong, Clarke-Pearson: Comparing the areas under two or more correlated receiver operating
    characteristic curves. Biometrics 44 (1988), by midranks as in Sun, Xu, IEEE Signal Processing Letters 21 (2014).
    Dietterich: Approximate statistical tests for comparing supervised classification learning algorithms. Neural
    Computation 10 (1998).

    Examples
    --------
    >>> import dmkl
    >>> K = dmkl.open("kernels.zarr")
    >>> grid = {"lam": [0.1, 1]}
    >>> learned = dmkl.evaluate(dmkl.MKFDA(p=2), K, grid=grid, outer=3, inner=2)
    >>> machine = dmkl.evaluate(dmkl.MKSVM(p=2), K, grid={"C": [1, 10]}, outer=3, inner=2)
    >>> tests = dmkl.compare_predictions(learned.predictions, machine.predictions)
    >>> bool(0 <= tests["mcnemar_p_value"] <= 1)
    True
    """
    ordered = []
    for each in (first, second):
        if "true_label" not in each or "sample_fold" not in each:
            refuse(
                "compare_predictions takes the predictions of two searches or evaluations, result.predictions, got a "
                f"Dataset of {', '.join(map(str, each.data_vars)) or 'nothing'}"
            )
        kind = model_class(str(each.attrs.get("estimator")))
        if kind is not None and not kind._has_errors():
            refuse(
                "log hazard ratios are not compared with times row by row; compare the models by the concordance index "
                "over folds, as dmkl.compare does"
            )
        ordered.append(each.isel(sample=np.lexsort((_codes(each["sample_fold"]), _codes(each["sample"])))))
    names, others = (each["sample"].values for each in ordered)
    if not np.array_equal(names, others):
        refuse(
            f"the predictions are of other rows: {len(names)} and {len(others)}, of which "
            f"{len(np.intersect1d(names, others))} samples are in both; give both evaluations the same folds, "
            "outer=other.folds"
        )
    truth, other = (each["true_label"].values for each in ordered)
    known = is_known(truth)
    if not np.array_equal(known, is_known(other)) or not np.array_equal(truth[known], other[known]):
        refuse("the predictions have other true labels: both must be of the same labels of the same samples")
    return describe(paired_tests(*ordered))


def paired_tests(*pair: xr.Dataset) -> xr.Dataset:
    """The tests of `compare_predictions`, of predictions in one order."""
    folds = np.unique(np.stack([_codes(each["sample_fold"]) for each in pair]), axis=1, return_inverse=True)[1].ravel()
    dim, units, of_tasks = task_dim(pair[0]), pair[0].get("sample_group", pair[0]["sample"]).values, []
    for k in range(1 if dim is None else pair[0].sizes[dim]):
        results = _independent_tests([each if dim is None else each.isel({dim: k}) for each in pair], folds)
        for name in results:
            if len(np.unique(units)) < len(units) and name.endswith(("_p_value", "_standard_error")):
                results[name] = np.nan
            elif folds.min() < folds.max() and name.endswith("_p_value"):
                results[name] = 2.0 * float(ndtr(ndtri(results[name] / 2.0) / np.sqrt(2.0)))
        of_tasks.append(results)
    if dim is None:
        return xr.Dataset(of_tasks[0])
    coords = {dim: pair[0][dim].values}
    return xr.Dataset({name: (dim, [of[name] for of in of_tasks]) for name in of_tasks[0]}, coords)


def paired_variables(first: xr.Dataset, baselines: Mapping[str, xr.Dataset]) -> dict[str, Any]:
    """The tests of predictions against those of each baseline, by the prefix of the baseline before their names."""
    return {
        f"{prefix}_{name}": values.variable
        for prefix, second in baselines.items()
        if first.sizes and second.sizes
        for name, values in paired_tests(first, second).data_vars.items()
    }


def _codes(values: xr.DataArray) -> Index:
    return np.unique(values.values, return_inverse=True)[1]


def _independent_tests(pair: Sequence[xr.Dataset], folds: Index) -> dict[str, Any]:
    truth = pair[0]["true_label"].values
    known = np.asarray(is_known(truth))
    truth, folds, pair = truth[known], folds[known], [each.isel(sample=known) for each in pair]
    tests: dict[str, Any] = {"paired_rows": len(truth)}
    if "prediction" in pair[0]:
        return tests | _losses(*((truth - each["prediction"].values) ** 2 for each in pair))
    right = [each["predicted_label"].values == truth for each in pair]
    tests |= mcnemar(*right)
    labels = np.unique(np.concatenate([truth, *(each["predicted_label"].values for each in pair)]))
    if pair[0]["score"].ndim == 1:  # of the second of two classes
        tests |= delong(truth == labels[-1], np.stack([each["score"].values for each in pair]), folds)
    if all("probability" in each for each in pair):
        classes = pair[0]["class"].values if "class" in pair[0].coords else np.array([0, 1])  # of a task
        index, losses = np.searchsorted(classes, truth), []
        for p in (each["probability"].values for each in pair):  # or that of the second of two
            of_classes = p if p.ndim > 1 else np.stack([1.0 - p, p], axis=1)
            of_true = of_classes[np.arange(len(index)), index]
            losses.append(-np.log(np.clip(of_true, np.finfo(np.float64).eps, 1.0)))
        tests |= _losses(*losses)
    return tests


def mcnemar(first: Mask, second: Mask) -> dict[str, Any]:
    """The exact test of the rows that only the first, or only the second model predicts rightly."""
    counts = [int(np.count_nonzero(only)) for only in (first & ~second, second & ~first)]
    p = min(1.0, 2.0 * float(bdtr(min(counts), sum(counts), 0.5))) if sum(counts) else 1.0
    return {"mcnemar_first": counts[0], "mcnemar_second": counts[1], "mcnemar_p_value": p}


def delong(positive: Mask, scores: Float, folds: Index) -> dict[str, Any]:
    """The test of the areas under the ROC curves of two models, from scores (model, row); means over the folds.

    In O(m log m): of a positive row with the midranks r among all rows and r₊ among positive ones V = (r − r₊)/n₋.
    Folds with less than two rows of a class do not count.
    """
    areas, variances = [], []
    for fold in np.unique(folds):
        is_positive, of_fold = positive[folds == fold], scores[:, folds == fold]
        sizes = np.array([np.count_nonzero(is_positive), np.count_nonzero(~is_positive)])
        if sizes.min() < 2:
            continue
        ranks = rankdata(of_fold, axis=1)
        above, below = (
            (ranks[:, part] - rankdata(of_fold[:, part], axis=1)) / n
            for part, n in zip((is_positive, ~is_positive), sizes[::-1], strict=True)
        )
        differences = above[0] - above[1], below[1] - below[0]
        areas.append(differences[0].mean())
        variances.append(sum(np.var(each, ddof=1) / len(each) for each in differences))
    if not areas:
        return dict.fromkeys(("delong_difference", "delong_standard_error", "delong_p_value"), np.nan)
    difference, error = float(np.mean(areas)), float(np.sqrt(np.sum(variances)) / len(areas))
    p = 2.0 * float(ndtr(-abs(difference) / error)) if error > 0 else float(difference == 0)
    return {"delong_difference": difference, "delong_standard_error": error, "delong_p_value": p}


def _losses(first: Float, second: Float) -> dict[str, Any]:
    """Student's t of the paired differences of losses."""
    difference, n = first - second, len(first)
    mean = float(difference.mean()) if n else np.nan
    error = float(difference.std(ddof=1) / np.sqrt(n)) if n > 1 else np.nan
    p = 2.0 * float(stdtr(n - 1, -abs(mean) / error)) if error > 0 else float(mean == 0) if n > 1 else np.nan
    return {"paired_loss_difference": mean, "paired_loss_standard_error": error, "paired_loss_p_value": p}
