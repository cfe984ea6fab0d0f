"""`dmkl.assess`: scores of a fitted model on labeled samples, confusion matrices, and recall and precision by class."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from dmkl.arrays import Array, Float, is_known
from dmkl.description import Column, Table
from dmkl.errors import refuse
from dmkl.inputs.label_tables import matched_to
from dmkl.kernelset import Kernels
from dmkl.learners.learner import KernelClassifier, KernelRegressor
from dmkl.learners.predicting import beside_features
from dmkl.numerics.survival import brier_scores, dynamic_auc, mean_over_times, survival_labels
from dmkl.passes.blas import one_blas_thread
from dmkl.searching.targets import KernelScores
from dmkl.variables import describe


@one_blas_thread
def assess(
    model: KernelClassifier | KernelRegressor,
    K: Kernels | None = None,
    y: npt.ArrayLike | None = None,
    *,
    scoring: Any = None,
    unknown: Any = None,
    **new: Any,
) -> xr.Dataset:
    """Score a fitted model on samples whose labels are known.

    The caller chooses the samples: scores of rows that trained the model (a `TrainingRowsWarning`), or that its
    parameters were chosen on, do not estimate the performance on new rows. `dmkl.search` and `dmkl.evaluate` keep such
    rows apart.

    Parameters
    ----------
    model
        A fitted model.
    K, **new
        As in `KernelClassifier.decision_function`: ``K[test, train]``, or `features` of new samples.
    y
        (rows,) labels, or (rows, tasks) of 0 and 1, matched by name if they have names of samples; by default those of
        `K`.
    scoring, unknown
        As in `dmkl.search`.

    Returns
    -------
    Dataset
        score over measure (and task, or target of a regression). For classes also confusion over true and predicted
        (and task), and recall, precision and support over class, or over task for the label 1. For a regression on
        covariates also residual_score, of predictions and y without the part that covariates predict.

    Raises
    ------
    InputError
        If there are no labels, their number is wrong, a label is not one of the learnt classes, or as in
        `decision_function`.
    """
    decisions, truth, _ = model._scored_rows("assess", K, y, unknown, **new)
    regression, decision = isinstance(model, KernelRegressor), decisions.values
    truth = truth.reshape(len(truth), -1)[:, 0] if model.tasks_ is None else truth
    scores = measures_of(model, decision, truth, scoring)
    tasks = None if model.tasks_ is None else np.array([str(task) for task in model.tasks_])
    dim = "target" if regression else "task"
    coords: dict[str, Any] = {"measure": list(scores)} | ({} if tasks is None else {dim: tasks})
    assessed = xr.Dataset({"score": xr.DataArray(np.array(list(scores.values())), coords)})
    if isinstance(model, KernelRegressor):
        part = model._covariate_part(decisions["sample"].values, **beside_features(new))
        if part is not None:
            without = measures_of(model, decision - part, truth - part, scoring)
            assessed["residual_score"] = assessed["score"].dims, np.array(list(without.values()))
        return describe(assessed)
    counts = confusion(truth, model.labels_of(decision), model.classes_, tasks)
    return describe(assessed.assign(confusion=counts).merge(class_scores(counts)))


def measures_of(model: Any, decision: Float, truth: Array, scoring: Any) -> dict[str, Any]:
    """Scores of a fitted model's decisions by the name of the scorer: a number, or (task,)."""
    from dmkl.searching.scoring import OfProbabilities, as_metrics, evaluate

    probabilistic = getattr(model, "calibrated_on_", None) is not None
    scoring = model.traits.scorer if scoring is None else scoring
    metrics, decisions = as_metrics(scoring, model.kind_, probabilistic=probabilistic), model.decisions_of(decision)
    logits = model.decider_.decision(decision.reshape(len(decision), -1)) if probabilistic else decisions
    scores = {}
    for name, metric in metrics.items():
        values = logits.reshape(decisions.shape) if isinstance(metric, OfProbabilities) else decisions
        (scores[name],) = evaluate({name: metric}, model.kind_, model.classes_, truth, values)
    return scores


def survival_scores(
    survival: xr.DataArray | npt.ArrayLike, y: npt.ArrayLike, y_train: npt.ArrayLike | None = None, times: Any = None
) -> xr.Dataset:
    """Brier scores and areas under ROC curves of predicted survival, weighted for censoring.

    With the curve G of censoring, Σ_i over n rows, and the predicted s_i(t) = P(T_i > t),

        BS(t) = 1/n Σ_i [s_i(t)² 1(t_i ≤ t, event)/G(t_i) + (1 − s_i(t))² 1(t_i > t)/G(t)],

    and the area at t compares rows with an event until t, of weight 1/G(t_i), with rows that are observed beyond t: the
    share of pairs in which the first has the smaller s(t).

    Parameters
    ----------
    survival
        Curves of rows that no model was trained on, (sample, time): ``model.predict_survival(K[test, train])``, or an
        array with its `times`.
    y
        Labels of these rows, matched by name if both have names of samples: two columns, or `dmkl.signed_times`.
    y_train
        Labels of the training rows, from which G is estimated; `y` by default.
    times
        The times of an array, increasing.

    Returns
    -------
    Dataset
        brier_score and dynamic_auc over time; integrated_brier_score, the mean of the first over the interval of the
        times by the trapezoidal rule; mean_dynamic_auc, the mean of the second weighted by the falls of the curve of
        Kaplan and Meier. NaN where nothing is known, such as after the last time that a training row was observed.

    Raises
    ------
    InputError
        If shapes do not fit, labels are no survival labels, or there are fewer than two times, or they do not increase.

    Notes
    -----
    Graf, Schmoor, Sauerbrei, Schumacher, Statistics in Medicine 18 (1999). Uno, Cai, Tian, Wei, JASA 102 (2007). Equal
    to scikit-survival's `brier_score` and `cumulative_dynamic_auc` where these are defined.

    Examples
    --------
    >>> import dmkl
    >>> y = dmkl.signed_times([1.0, 2.0, 3.0, 4.0], [True, True, False, True])
    >>> scores = dmkl.survival_scores([[0.2, 0.1], [0.6, 0.3], [0.7, 0.6], [0.9, 0.8]], y, times=[1.0, 2.0])
    >>> scores.dynamic_auc.values.tolist(), round(float(scores.integrated_brier_score), 5)
    ([1.0, 1.0], 0.075)
    """
    labels, curves = survival_labels(matched_to(survival, y)), np.asarray(survival, dtype=np.float64)
    trained = labels if y_train is None else survival_labels(y_train)
    at = np.asarray(survival["time"] if isinstance(survival, xr.DataArray) else times, dtype=np.float64).reshape(-1)
    if curves.shape != (len(labels), len(at)) or len(at) < 2 or not (np.diff(at) > 0).all():
        refuse(
            f"survival_scores takes curves (rows, times) of two increasing times or more, got {curves.shape} for "
            f"{len(labels)} labels and {len(at)} times; predict_survival gives them, or name the times (times=)"
        )
    brier, areas = brier_scores(labels, curves, at, trained), dynamic_auc(labels, 1.0 - curves, at, trained)
    data = xr.Dataset({"brier_score": ("time", brier), "dynamic_auc": ("time", areas)}, {"time": at})
    integrated = float(np.trapezoid(brier, at) / (at[-1] - at[0]))
    return describe(data.assign(integrated_brier_score=integrated, mean_dynamic_auc=mean_over_times(areas, at, labels)))


def kernel_scores(contributions: xr.DataArray, y: npt.ArrayLike) -> KernelScores:
    """R² and correlation of predictions, split by kernel: the product measure.

    With contributions f_ij of kernels j, f_i = Σ_j f_ij, the rest b_i (intercept and covariates) and p_i = b_i + f_i,

        R²_j = Σ_i (2(y_i − b_i) − f_i) f_ij / Σ(y_i − ȳ)²,     r_j = Σ_i (y_i − ȳ) f_ij / √(Σ(y_i − ȳ)² Σ(p_i − p̄)²).

    With the parts of the rest, 1 − Σ(y_i − b_i)²/Σ(y_i − ȳ)² and Σ(y_i − ȳ)b_i/√…, they sum to R² and r.

    Parameters
    ----------
    contributions
        Those of a regression to samples that it was not trained on, ``model.contributions(K[test, train])``.
    y
        (rows,) or (rows, targets), matched by name if they have names of samples. Unknown values (NaN) do not count.

    Returns
    -------
    KernelScores
        kernel_r2, kernel_correlation over kernel and target, rest_r2, rest_correlation, total_r2, total_correlation
        over target; without target for a model of one. NaN where the true values are constant. ``plot()`` draws the
        parts, `dmkl.report` writes a page of them, and ``data`` is the Dataset.

    Raises
    ------
    InputError
        If the contributions are those of a classifier, or `y` has another number of samples or targets.

    Notes
    -----
    Dupré la Tour, Eickenberg, Nunez-Elizalde, Gallant, NeuroImage 264 (2022), Section 2.4: himalaya's `r2_score_split`
    and `correlation_score_split`, for any mean of the true values and any intercept.

    Examples
    --------
    >>> import dmkl
    >>> K = dmkl.open("kernels.zarr")
    >>> train, _, test = K.split(0)
    >>> y = K.labels.astype(float)
    >>> model = dmkl.MKRidge().fit(K[train, train], y[train])
    >>> parts = dmkl.kernel_scores(model.contributions(K[test, train]), y[test])
    >>> bool(abs(parts["kernel_r2"].sum() + parts["rest_r2"] - parts["total_r2"]) < 1e-12)
    True
    """
    several = "target" in contributions.dims
    if not several and contributions.ndim != 2:
        refuse(f"kernel_scores takes contributions to a regression, got those over {contributions.dims}")
    shares = contributions if several else contributions.expand_dims("target")
    truth = matched_to(contributions, y).astype(np.float64).reshape(contributions.sizes["sample"], -1)
    if truth.shape[1] != shares.sizes["target"]:
        refuse(f"y has {truth.shape[1]} targets, and the contributions have {shares.sizes['target']}")
    is_labeled = ~np.isnan(truth)
    rest = np.asarray(contributions.coords.get("intercept", 0.0))
    b = np.where(is_labeled, rest[:, None] if rest.ndim and not several else rest, 0.0)
    f = np.where(is_labeled[:, None], shares.transpose("sample", "kernel", "target").values, 0.0)
    joint, error = f.sum(axis=1), np.where(is_labeled, truth - b, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        y_less_mean, p_less_mean = (
            np.where(is_labeled, values - values.sum(axis=0) / is_labeled.sum(axis=0), 0.0)
            for values in (error + b, joint + b)
        )
        total = np.sum(y_less_mean**2, axis=0)
        scale = np.sqrt(total * np.sum(p_less_mean**2, axis=0))
        parts = {
            "kernel_r2": np.einsum("mt,mkt->kt", 2.0 * error - joint, f) / total,
            "rest_r2": 1.0 - np.sum(error**2, axis=0) / total,
            "kernel_correlation": np.einsum("mt,mkt->kt", y_less_mean, f) / scale,
            "rest_correlation": np.sum(y_less_mean * b, axis=0) / scale,
        }
    coords = {name: shares[name].values for name in ("kernel", "target") if name in shares.coords}
    scores = xr.Dataset({name: (("kernel", "target")[-v.ndim :], v) for name, v in parts.items()}, coords)
    for name in ("r2", "correlation"):
        scores[f"total_{name}"] = scores[f"kernel_{name}"].sum("kernel", skipna=False) + scores[f"rest_{name}"]
    return KernelScores((scores if several else scores.isel(target=0)).assign_attrs(n_passes=0.0))


def confusion(
    truth: npt.ArrayLike, predicted: npt.ArrayLike, classes: npt.ArrayLike, tasks: Array | None = None
) -> xr.DataArray:
    """Count how often samples of each class are predicted as each; rows with an unknown true label do not count.

    `truth` and `predicted` are (rows,) labels, counted over (true, predicted) of `classes` and further labels of the
    truth; or (rows, tasks) of 0 and 1, counted over (task, true, predicted) by the names `tasks`.
    """
    truth, predicted = np.asarray(truth), np.asarray(predicted)
    if truth.ndim == 2:
        columns = zip(truth.T, predicted.T, is_known(truth).T, strict=True)
        counts = [confusion(t[rows].astype(np.int64), p[rows].astype(np.int64), [0, 1]) for t, p, rows in columns]
        names = np.arange(truth.shape[1]) if tasks is None else tasks
        return xr.concat(counts, xr.Variable("task", names.astype(str)))
    labels = np.union1d(classes, truth)
    true, called = (np.searchsorted(labels, values.astype(labels.dtype)) for values in (truth, predicted))
    # Scikit-learn's metrics take longer to import than a prediction.
    table = np.bincount(len(labels) * true + called, minlength=len(labels) ** 2).reshape(len(labels), -1)
    labels = labels.astype(str) if labels.dtype.kind in "OTU" else labels
    return xr.DataArray(table, {"true": labels, "predicted": labels}, name="confusion")


def class_scores(counts: xr.DataArray) -> xr.Dataset:
    """Recall, precision and support over class; of the counts of several tasks over task, of the label 1.

    N_kl samples of class k are predicted as l: recall_k = N_kk / Σ_l N_kl, precision_k = N_kk / Σ_l N_lk, support_k =
    Σ_l N_kl. The recall of a class without samples is NaN, and so is the precision of one that is never predicted.
    """
    names = counts["true"].values
    # Places, not labels: booleans would be a mask.
    at: Any = 1 if "task" in counts.dims else xr.DataArray(np.arange(len(names)), {"class": names})
    right = counts.isel(true=at, predicted=at).drop_vars(["true", "predicted"])
    support = counts.sum("predicted").isel(true=at).drop_vars("true")
    called = counts.sum("true").isel(predicted=at).drop_vars("predicted")
    recall, precision = right / support.where(support > 0), right / called.where(called > 0)
    return describe(xr.Dataset({"recall": recall, "precision": precision, "support": support}))


def class_tables(counts: xr.DataArray) -> dict[str, Callable[[], Table]]:
    """The measures of each class, or task, and the confusion matrix of classes."""

    def of_classes() -> Table:
        frame = class_scores(counts).to_dataframe().reset_index()
        shown = [Column(str(frame.columns[0]), form="text"), Column("recall"), Column("precision")]
        return Table(frame, [*shown, Column("support", "samples", "exact")], "Classes")

    def matrix() -> Table:
        named = [(f"predicted {label}", str(label)) for label in counts["predicted"].values]
        frame = pd.DataFrame(counts.transpose("true", ...).values.astype(int), columns=[name for name, _ in named])
        frame.insert(0, "true", counts["true"].values.astype(str))
        note = "Samples of each true class (rows) by the predicted class."
        shown = [Column("true", "true \\ predicted"), *(Column(*of_class) for of_class in named)]
        return Table(frame, shown, "Confusion matrix", note=note)

    return {"classes": of_classes} | ({} if "task" in counts.dims else {"confusion": matrix})


def class_facts(counts: xr.DataArray) -> dict[str, Any]:
    """Class-wise measures, and the confusion matrix as a row of counts for each true class (or task)."""
    classes, rows = class_scores(counts), "task" if "task" in counts.dims else "true"
    (dim,) = classes["recall"].dims
    return {
        "classes": records(classes.rename({dim: "name"})),
        "confusion": {str(label): counts.sel({rows: label}).values for label in counts[rows].values},
    }


def records(data: xr.Dataset | None) -> list[dict[Hashable, Any]]:
    """A mapping for each combination of labels, such as baseline, fold and task."""
    return [] if data is None else data.to_dataframe().reset_index().to_dict("records")
