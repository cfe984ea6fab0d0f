"""A registry of variables and coordinates: meaning, type, dimensions and units in sets, models and results."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

if TYPE_CHECKING:
    import xarray as xr

Labeled = TypeVar("Labeled", bound="xr.Dataset | xr.DataArray")


@dataclass(frozen=True)
class Variable:
    """A kind of variable or coordinate."""

    meaning: str  # the attribute "long_name"
    kinds: str  # of the dtype, as NumPy's letters
    dims: tuple[str, ...] = ()  # those that are always present; others depend on the problem
    units: str = "1"  # the attribute "units": "1" for dimensionless numbers, none for names


NAMES, NUMBERS, COUNTS, VALUES = "UOT", "f", "iuf", "iufUOTb"


def _names(meaning: str, *dims: str) -> Variable:
    return Variable(meaning, NAMES, dims, "")


VARIABLES: Final = {
    # --- coordinates ---
    "kernel": _names("kernel", "kernel"),
    "kernel_2": _names("the other kernel", "kernel_2"),
    "model_kernel": _names("kernel with statistics in the model", "model_kernel"),
    "sample": _names("sample", "sample"),
    "sample_2": _names("the other sample", "sample_2"),
    "train_sample": _names("training sample"),
    "class": Variable("class", VALUES, units=""),
    "pair": _names("pair of classes", "pair"),
    "task": Variable("task", VALUES, ("task",), ""),
    "target": _names("target of a regression", "target"),
    "target_2": _names("the other target", "target_2"),
    "machine": _names("kernel and class of a machine", "machine"),
    "label": Variable("label", VALUES, units=""),
    "true": Variable("class that is true", VALUES, ("true",), ""),
    "predicted": Variable("class that was predicted", VALUES, ("predicted",), ""),
    "class_share": Variable("share of tr K between the classes", NUMBERS),
    "is_labels": Variable("whether the kernel depends on the classes only", "b", ("kernel",)),
    "group": Variable("number of a group of samples or of similar kernels", COUNTS),
    "feature": _names("feature", "feature"),
    "fold": Variable("fold", VALUES, ("fold",), ""),
    "split": Variable("stored split", VALUES, ("split",), ""),
    "model": _names("model", "model"),
    "seconds": Variable("time that the model took", NUMBERS, ("model",), "s"),
    "row_p_value": Variable("p-value of the model and the best one on the same rows", NUMBERS, ("model",)),
    "model_score": Variable("validation score of the model at its chosen point", NUMBERS, ("model",)),
    "auto_model": _names("model that the inner folds chose", "fold"),
    "measure": _names("scorer of predictions", "measure"),
    "phase": _names("phase of the search", "phase"),
    "permutation": Variable("permutation of the labels", COUNTS, ("permutation",)),
    "level": Variable("ordered level of the label", NUMBERS, ("level",), "level of the labels"),
    "threshold": Variable("predictor from which on the level is more likely than not", NUMBERS, ("level",), "score"),
    "time": Variable("time since the start of observation", NUMBERS, ("time",), "time of the labels"),
    "iteration": Variable("iteration", COUNTS, ("iteration",)),
    "component": Variable("place of an eigenvalue, the largest first", COUNTS, ("component",)),
    "discriminant": Variable("discriminant direction", COUNTS, ("discriminant",)),
    "resample": Variable("resample", COUNTS, ("resample",)),
    "round": Variable("pass of a search", COUNTS, ("round",)),
    "held_out": Variable("row of the out-of-fold predictions", COUNTS, ("held_out",)),
    "gating_feature": _names("gating feature: a training sample, or a column of the table", "gating_feature"),
    # --- parameters ---
    "p": Variable("norm of the weights", VALUES),
    "lam": Variable("ridge λ", VALUES),
    "C": Variable("cost C of errors", VALUES),
    "n_groups": Variable("groups of samples", VALUES),
    "intercept": Variable("constant of the score", NUMBERS, units="score"),
    # --- fits ---
    "weight": Variable("kernel weight β", NUMBERS, ("kernel",)),
    "gating_slope": Variable("slope of the gating function", NUMBERS, ("kernel", "gating_feature")),
    "gating_constant": Variable("constant of the gating function", NUMBERS, ("kernel",)),
    "dual_coef": Variable("coefficient of the training sample in the score", NUMBERS, ("sample",)),
    "cluster": Variable("cluster", COUNTS, ("cluster",)),
    "cluster_label": Variable("cluster of the sample", COUNTS, ("sample",)),
    "labels_": Variable("cluster of the sample", COUNTS, ("sample",)),
    "embedding": Variable("coordinate in the leading eigenvectors of the combined kernel", NUMBERS, ("sample",)),
    "center": Variable("center of the cluster, among rows of unit norm", NUMBERS, ("cluster",)),
    "covariate": _names("covariate, or the level of one that is a category", "covariate"),
    "covariate_effect": Variable("change of the prediction by one unit of the covariate", NUMBERS, ("covariate",)),
    "term": _names("kernel, residual, or the total of all kernels", "term"),
    "term_2": _names("the other term", "term_2"),
    "variance": Variable("variance component σ²", NUMBERS, ("term",), "target² per unit of the kernel"),
    "variance_share": Variable("share of the variance", NUMBERS, ("term",)),
    "share_unit": Variable("factor of the variance in shares: 1, or the mean diagonal", NUMBERS, ("term",)),
    "liability_share": Variable("share of the variance of the liability", NUMBERS, ("term",)),
    "variance_probe_se": Variable(
        "standard error of the variance from random probes", NUMBERS, ("term",), "as variance"
    ),
    "likelihood_ratio": Variable("twice the log-likelihood that the term adds", NUMBERS, ("term",)),
    "excess": Variable("score statistic over its mean without association", NUMBERS),
    "q_value": Variable("smallest false discovery rate that selects", NUMBERS),
    "permutation_p_value": Variable("p-value from permuted residuals", NUMBERS),
    "omnibus_p_value": Variable("p-value of all kernels together", NUMBERS),
    "p_value": Variable("p-value", NUMBERS),
    "boundary": Variable("whether the estimate is on the boundary, zero", COUNTS, ("term",)),
    "covariance": Variable("covariance of the variances", NUMBERS, ("term", "term_2"), "as variance, squared"),
    "trait_covariance": Variable(
        "covariance of two targets",
        NUMBERS,
        ("term", "target", "target_2"),
        "product of targets per unit of the kernel",
    ),
    "trait_correlation": Variable("correlation of targets", NUMBERS, ("term", "target", "target_2")),
    "trait_p_value": Variable("p-value of no covariance of two targets", NUMBERS, ("term", "target", "target_2")),
    "effect": Variable("change of the prediction by one unit of the covariate", NUMBERS, ("covariate",)),
    "log_likelihood": Variable("restricted log-likelihood", NUMBERS),
    "residual_variance": Variable("variance of the residual", NUMBERS),
    "predicted_gain": Variable("gain of the log-likelihood that the quadratic model predicts", NUMBERS),
    "standard_deviation": Variable("standard deviation of the error of the prediction", NUMBERS),
    "reliability": Variable("share of the variance by kernels that the prediction explains", NUMBERS),
    "scores_": Variable("accuracy of the kernel alone", NUMBERS, ("kernel", "fold")),
    "accuracy": Variable("accuracy of the kernel alone", NUMBERS, ("kernel",)),
    "priors_": Variable("prior probability of the label", NUMBERS, ("label",)),
    "stratum": Variable("stratum with a baseline hazard of its own", NAMES, ("stratum",), ""),
    "baseline_hazard": Variable("cumulative hazard where the log hazard ratio is 0", NUMBERS, ("time",)),
    "survival": Variable("probability of no event until the time", NUMBERS, ("sample", "time")),
    "brier_score": Variable("mean squared error of the predicted survival", NUMBERS, ("time",)),
    "dynamic_auc": Variable("area under the ROC curve of events until the time", NUMBERS, ("time",)),
    "integrated_brier_score": Variable("mean Brier score over the times", NUMBERS),
    "mean_dynamic_auc": Variable("mean area over the times, weighted by falls of survival", NUMBERS),
    "gap": Variable("proven relative gap, NaN where nothing is proven", NUMBERS),
    "objective": Variable("objective", NUMBERS),
    "weights_error": Variable("estimated error of a weight relative to the largest weight", NUMBERS),
    "upper": Variable("upper bound of the best objective", NUMBERS),
    "lower": Variable("lower bound of the best objective", NUMBERS),
    "violation": Variable("relative violation of the constraints, |1 − S/θ|", NUMBERS),
    "residual_sq": Variable("squared norm of the residual of the linear system", NUMBERS),
    "passes": Variable("passes over the kernels so far", NUMBERS),
    "products": Variable("products of all kernels with a vector so far", COUNTS),
    "mncut": Variable("multiway normalized cut of the classes", NUMBERS),
    "cut_gap": Variable("multiway normalized cut of the classes minus its relaxed minimum", NUMBERS),
    "eigengap": Variable("eigenvalue c minus eigenvalue c + 1, for c classes", NUMBERS),
    "value": Variable("value of the cut", NUMBERS),
    "bound": Variable("proven bound of the value of the cut", NUMBERS),
    "ratio": Variable("Σ u/v of the learnt kernel", NUMBERS),
    "reciprocal": Variable("Σ v/u of the learnt kernel", NUMBERS),
    "relaxed": Variable("value of the relaxed cut", NUMBERS),
    "rounded": Variable("value after rounding", NUMBERS),
    "descended": Variable("value after local descent", NUMBERS),
    "iterations": Variable("iterations of the semidefinite program", COUNTS),
    "proof": Variable("how the bound is proven", VALUES, units=""),
    "status": Variable("how the solver ended", "iu"),
    # --- decision rules ---
    "decision_direct": Variable("weight of the score itself", NUMBERS, ("decision_problem",)),
    "decision_means": Variable("mean score of each class", NUMBERS, ("decision_problem", "label"), "score"),
    "decision_scalings": Variable("directions of the discriminant space", NUMBERS, ("decision_problem",)),
    "decision_sharpness": Variable("sharpness of the decision", NUMBERS, ("decision_problem",)),
    # --- searches and evaluations ---
    "score": Variable("score: validation score of a search, decision value of a sample", NUMBERS),
    "mean_score": Variable("mean validation score", NUMBERS),
    "standard_error": Variable("standard error of the mean validation score", NUMBERS),
    "test_score": Variable("test score", NUMBERS),
    "refined_score": Variable("validation score at the refined weights", NUMBERS, ("fold",)),
    "refined_weight": Variable("weight of the kernel after refinement", NUMBERS, ("kernel",)),
    "refit_test_score": Variable("test score after refitting on training and validation rows", NUMBERS),
    "residual_score": Variable("score of the kernels' part against y without the part of covariates", NUMBERS),
    "inner_score": Variable("mean score of the inner folds at the chosen point", NUMBERS),
    "best_kernel": _names("single kernel; empty for the sum of all"),
    "baseline": _names("baseline of a search", "baseline"),
    "approximate": Variable("1 where the score is by an approximate decision rule", "iu", units=""),
    "class_score": Variable("validation average precision of a class against the rest", NUMBERS, ("class",)),
    "confusion": Variable("number of test rows by true and predicted class", "iu", ("true", "predicted")),
    "recall": Variable("share of the class that was predicted as it", NUMBERS),
    "precision": Variable("share of the predictions of the class that are right", NUMBERS),
    "support": Variable("samples of the class", COUNTS),
    "part": Variable("part of the sample: 0 train, 1 validation, 2 test, -1 none", "iu", ("sample",)),
    "sample_group": Variable("group of the sample, which no fold splits", VALUES, ("sample",), ""),
    "sample_block": _names("block of the sample, within which labels are exchanged", "sample"),
    "constant_score": Variable("score of one decision for all rows", NUMBERS),
    "chance_p_value": Variable("p-value of the held-out score under permuted labels", NUMBERS),
    "chance_score": Variable("mean held-out score of permuted labels", NUMBERS),
    "residual_p_value": Variable("p-value of the kernels' part given covariates", NUMBERS),
    "chance_permutations": Variable("permutations of the held-out labels; 0 if they take too long", COUNTS),
    "paired_rows": Variable("held-out rows with a known label", COUNTS),
    "mcnemar_first": Variable("rows that only the first model predicts rightly", COUNTS),
    "mcnemar_second": Variable("rows that only the second model predicts rightly", COUNTS),
    "mcnemar_p_value": Variable("p-value of McNemar's test", NUMBERS),
    "delong_difference": Variable("difference of the areas under the ROC curves", NUMBERS),
    "delong_standard_error": Variable("standard error of this difference", NUMBERS),
    "delong_p_value": Variable("p-value of DeLong's test", NUMBERS),
    "paired_loss_difference": Variable("mean difference of log losses or squared errors", NUMBERS),
    "paired_loss_standard_error": Variable("standard error of this difference", NUMBERS),
    "paired_loss_p_value": Variable("p-value of the paired losses", NUMBERS),
    "n_drawn": Variable("number of draws of the sample", "iu", ("resample", "sample")),
    "n_train": Variable("training rows", COUNTS),
    "n_test": Variable("test rows", COUNTS),
    "round_kind": _names("kind of pass", "round"),
    "round_seconds": Variable("time of the pass", NUMBERS, ("round",), "s"),
    "round_bytes": Variable("bytes that the pass read", COUNTS, ("round",), "byte"),
    "round_basis": Variable("size of the largest basis", COUNTS, ("round",)),
    "round_certified": Variable("fits certified so far", COUNTS, ("round",)),
    "round_worst_gap": Variable("largest proven relative gap so far", NUMBERS, ("round",)),
    "phase_seconds": Variable("time of the phase of the search", NUMBERS, ("phase",), "s"),
    # --- analyses and checks of kernels ---
    "alignment": Variable("alignment of two kernels", NUMBERS, ("kernel", "kernel_2")),
    "unbiased_alignment": Variable("alignment without the bias of the diagonals", NUMBERS, ("kernel", "kernel_2")),
    "diagonal_share": Variable("share of the diagonal in the squared norm of a kernel", NUMBERS, ("kernel",)),
    "target_alignment": Variable("alignment with the ideal kernel of the labels", NUMBERS, ("kernel",)),
    "trace": Variable("tr K", NUMBERS, ("kernel",)),
    "relevant_dimension": Variable("leading eigenvectors with the labels", NUMBERS, ("kernel",)),
    "relevant_dimension_most": Variable("the same, NaN where it may be larger", NUMBERS, ("kernel",)),
    "label_noise": Variable("share of the labels that is noise", NUMBERS, ("kernel",)),
    "label_explained": Variable("share of the labels in the relevant dimensions", NUMBERS, ("kernel",)),
    "norm": Variable("Frobenius norm ‖K‖", NUMBERS, ("kernel",)),
    "effective_rank": Variable("effective rank (tr K)²/‖K‖²", NUMBERS, ("kernel",)),
    "eigenvalue": Variable("leading eigenvalues, proven from below", NUMBERS, ("kernel", "component")),
    "eigenvalue_upper": Variable("leading eigenvalues, proven from above", NUMBERS, ("kernel", "component")),
    "repeats": _names("earlier kernel that this is a multiple of", "kernel"),
    "order": Variable("positions in an order by similarity", "iu"),
    "finding": Variable("number of a finding, the most severe first", COUNTS, ("finding",)),
    "severity": _names("severity: error, warning or note", "finding"),
    "subject": _names("kernel of the finding; empty for the whole set", "finding"),
    "message": _names("problem and way out", "finding"),
    # --- predictions ---
    "probability": Variable("probability of the class", NUMBERS, ("sample",)),
    "prediction_set": _names("labels in the prediction set", "sample"),
    "in_set": Variable("whether the label is in the prediction set", "b", ("sample",)),
    "nonconformity": Variable("one minus the probability of the class, or the error", NUMBERS, ("held_out",)),
    "problem": Variable("number of the task or target", COUNTS, ("held_out",)),
    "true_class": Variable("number of the class that is true", COUNTS, ("held_out",)),
    "row_group": Variable("number of the group that folds keep together", COUNTS, ("held_out",)),
    "coordinate": Variable("coordinate in the discriminant space", NUMBERS, ("sample",)),
    "kernel_r2": Variable("part of each kernel in R²", NUMBERS, ("kernel",)),
    "kernel_correlation": Variable("part of each kernel in the correlation", NUMBERS, ("kernel",)),
    "rest_r2": Variable("part of intercept and covariates in R²", NUMBERS),
    "rest_correlation": Variable("part of intercept and covariates in the correlation", NUMBERS),
    "total_r2": Variable("R² of the predictions", NUMBERS),
    "total_correlation": Variable("correlation of the predictions with the truth", NUMBERS),
    "contribution": Variable("share of each kernel in the score", NUMBERS, ("sample", "kernel"), "score"),
    "feature_weight": Variable("weight of a feature in the score", NUMBERS, ("feature",), "score per unit of it"),
    "is_training": Variable("whether the model was trained on the sample", "b", ("sample",), ""),
    "gram": Variable("entries of the kernels", NUMBERS, ("kernel",)),
    "combined": Variable("entries of the weighted kernel Σ_j β_j K_j", NUMBERS, ("sample",)),
    "true_label": Variable("true label or number", VALUES, ("sample",), ""),
    "sample_fold": Variable("fold that holds the sample out", VALUES, ("sample",), ""),
    "predicted_label": Variable("predicted label", VALUES, ("sample",), ""),
    "prediction": Variable("predicted number", NUMBERS, ("sample",)),
    "covariate_prediction": Variable("number predicted by least squares on covariates", NUMBERS, ("sample",)),
    "kernel_prediction": Variable("predicted number without the part of covariates", NUMBERS, ("sample",)),
    "principal": Variable("coordinate in the principal directions of the weighted kernel", NUMBERS, ("sample",)),
    "share": Variable("share of the centered trace that the covariates explain", NUMBERS, ("kernel",)),
    "explained": Variable("share of the trace of the weighted kernel over the training samples", NUMBERS),
}

PATTERNS: Final = {
    r"sum_((?:test_|inner_)?score|gap|objective|approximate)": Variable("{0} of the plain sum of the kernels", NUMBERS),
    r"svm_(score|test_score|gap|objective)": Variable("{0} of the SVM on the sum of kernels", NUMBERS, ("C",)),
    r"alone_(score|test_score|gap|objective)": Variable("{0} of the kernel alone", NUMBERS, ("kernel",)),
    r"largest_(own|sum|svm)_(.+)": Variable("{1} by the largest score, of the {0} fits", VALUES),
    r"sum_(score|test_score)_(.+)": Variable("{0} of the plain sum of the kernels, by the measure {1}", NUMBERS),
    r"svm_(score|test_score)_(.+)": Variable("{0} of the SVM on the sum, by the measure {1}", NUMBERS, ("C",)),
    r"alone_(score|test_score)_(.+)": Variable("{0} of the kernel alone, by the measure {1}", NUMBERS, ("kernel",)),
    r"(score|weight|gap|objective|status)_without": Variable("{0} without the source", COUNTS, ("source",)),
    r"(score|weight|gap|objective|status)_alone": Variable("{0} of the source alone", COUNTS, ("source",)),
    r"score_without_(.+)": Variable("score without the source, by the measure {0}", NUMBERS, ("source",)),
    r"score_alone_(.+)": Variable("score of the source alone, by the measure {0}", NUMBERS, ("source",)),
    r"loss_standard_error_(.+)": Variable("standard error of the loss, by the measure {0}", NUMBERS, ("source",)),
    r"loss_(.+)": Variable("mean loss in score without the source, by the measure {0}", NUMBERS, ("source",)),
    r"(.+)_without": Variable("{0} that is chosen without the source", VALUES, ("source",)),
    r"(.+)_alone": Variable("{0} that is chosen for the source alone", VALUES, ("source",)),
    r"(sum|svm|alone|covariates)_((mcnemar|delong|paired)_.+)": Variable("{1} of the choice and the baseline", COUNTS),
    r"covariates_(score|test_score)": Variable("{0} of the covariates alone", NUMBERS),
    r"covariates_(score|test_score)_(.+)": Variable("{0} of the covariates alone, by the measure {1}", NUMBERS),
    r"residual_score_(.+)": Variable("score of the kernels' part against y − Zb, by the measure {0}", NUMBERS),
    r"(score|test_score|refit_test_score|mean_score|standard_error)_(.+)": Variable("{0}, by the measure {1}", NUMBERS),
    r"sum_(.+)": Variable("{0} of the plain sum of the kernels, chosen by its scores", VALUES),
    r"components_(\d+)_(least|most)": Variable(
        "leading eigenvalues that make up {0} % of the trace, at {1}", NUMBERS, ("kernel",)
    ),
    r"held_out_(.+)": Variable("{0} of the rows that folds hold out", VALUES, ("held_out",)),
    r"null_(.+)": Variable("{0} that is chosen with permuted labels", VALUES),
    r"(.+)_error": Variable("standard error of {0}", NUMBERS),
    r"(variance|variance_share|liability_share|effect|trait_(?:covariance|correlation))_se": Variable(
        "standard error of the {0}", NUMBERS
    ),
    r"sample_(\d+)": _names("training sample of the problems of part {0}"),
    r"part_(\d+)_step_(\d+)_(\w+)": Variable("{2} of step {1}, of the problems of part {0}", VALUES),
}


def variable(name: str) -> Variable | None:
    """The entry of a name in the registry; None if there is none."""
    for key in (name, re.sub("s?_$", "", name)):  # an attribute of a learner, such as weights_, is a variable, weight
        if key in VARIABLES:
            return VARIABLES[key]
    for pattern, entry in PATTERNS.items():
        if match := re.fullmatch(pattern, name):
            return replace(entry, meaning=entry.meaning.format(*(text.replace("_", " ") for text in match.groups())))
    return None


def describe(data: Labeled) -> Labeled:
    """Add long_name and units to every variable and coordinate without them, in place.

    Dimensions that count things, such as "round", are numbered from 0 where they have no coordinate.
    """
    import xarray as xr

    for dim in data.dims:
        entry = VARIABLES.get(str(dim))
        if dim not in data.coords and entry is not None and (entry.kinds, entry.dims) == (COUNTS, (dim,)):
            data.coords[dim] = np.arange(data.sizes[dim])
    parts: dict[Any, Any] = dict(data.variables if isinstance(data, xr.Dataset) else data.coords)
    if isinstance(data, xr.DataArray):
        parts[data.name] = data
    for name, part in parts.items():
        entry = variable(str(name))
        if entry is None:
            continue
        part.attrs.setdefault("long_name", entry.meaning)
        if entry.units and part.dtype.kind in "iuf":
            part.attrs.setdefault("units", entry.units)
    return data
