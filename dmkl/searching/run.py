"""`dmkl.search`: a grid of parameters, cross-validated."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy.typing as npt

from dmkl.estimators.checks import check_choice
from dmkl.estimators.learner import KernelLearner
from dmkl.passes.blas import one_blas_thread
from dmkl.searching.baselines import Baselines, search_beside_baselines
from dmkl.searching.choice import Choice, Rule, as_choice
from dmkl.searching.dataset import as_dataset
from dmkl.searching.fits import ask, fit_grid
from dmkl.searching.folds import make_folds
from dmkl.searching.refit import refitted
from dmkl.searching.result import SearchResult
from dmkl.stores import Kernels

__all__ = ["search"]


@one_blas_thread
def search(
    estimator: KernelLearner,
    K: Kernels,
    y: npt.ArrayLike | None = None,
    grid: Mapping[str, Any] | None = None,
    cv: Any = None,
    *,
    scoring: Any = None,
    groups: npt.ArrayLike | None = None,
    unknown: Any = None,
    refit: bool = True,
    rule: Rule = "best",
    choice: Choice | None = None,
    baselines: Baselines = "sum",
    state: str | Path | None = None,
) -> SearchResult:
    """Fit an estimator for every point of a grid and every fold, score the rows held out, and choose.

    All points, folds and tasks share passes over the kernels, whatever the estimator. Discriminants are solved in
    spaces that grow together: some ten passes for the papers' whole grid, each point with a proven gap. What does not
    depend on the point (weights by cuts, groups of samples) is found once for each fold.

    Parameters
    ----------
    estimator
        What to fit; its other parameters hold for all points. It is not changed.
    K
        The kernels of all samples, square: a set, or matrices in memory as `dmkl.create` takes them.
    y
        (m,) labels, or (m, tasks) of 0 and 1, matched by name where it carries names of samples; those stored with the
        kernels where missing. Each task of a multilabel problem, and each target of a
        regression, has weights and a choice of its own.
    grid
        Values by parameter. The papers' by default: p = 1, 1 + 2⁻⁶ … 1 + 2⁻¹, 2, 3, 4, 8, ∞; ten values of λ, 1e-8 to
        10 for kernels of unit trace, 4⁻⁵ to 4⁴ for cosine normalization (JMLR 3.3, CVPR 4.1). Of those ten the ones
        that kernels stored in single precision do not resolve are left out, which on some 200 samples is the smallest.
        None for a parameter stands for these values. With several chains of steps, as in
        ``{"p": None, "lam": None, "steps": ["center+trace", "cosine+center"]}``, each chain has values of λ of its own,
        and the points of the others are not fitted (NaN). Where samples differ in k(x, x) (the diagonal of a kernel has
        a coefficient of variation above 0.1) and the default steps are taken, the summary says that this comparison,
        of twice the fits in the same passes, may pay.
    cv
        Folds: the stored splits where they have validation rows, 5 otherwise; an integer, a scikit-learn splitter,
        "splits", an iterable of (train, validation) or (train, validation, test), one such tuple, or a mapping of
        names to such.
    scoring
        A measure by name or a callable, as scikit-learn takes it; the papers' are "mean_class_accuracy",
        "average_precision_voc", "mean_average_precision", "matthews" and their like (`searching.scoring`). Several in
        a list or a dict; the first decides. Accuracy by default; average precision for multilabel problems, R² for
        regressions.
    groups
        (m,) what no fold may split, such as the subject of a scan. An integer `cv` then makes folds of whole groups.
    unknown
        A code of labels that are unknown, beside NaN, as in the `fit` of every learner.
    refit
        Fit the chosen point anew: on the training and validation rows of each fold where folds have test rows or choose
        for themselves, whose scores are then the variable `refit_test_score` and the first of whose models is `best_`;
        otherwise on all rows of the folds.
    rule
        "best", or "one_standard_error": the simplest point within one standard error of the best.
    choice
        "fold": each fold chooses by its own validation rows, as the papers do with predefined splits. "joint": all
        choose one point, by the mean over the folds, which is refused where a training or validation row of one fold
        is a test row of another. By default "fold" where several folds have test rows.
    baselines
        What is fitted beside the grid, with the best of its λ (or C, and whatever else does not concern weights), to
        compare with (`SearchResult.baselines`): "sum", the plain sum of the kernels, which costs next to nothing, and
        beside a discriminant the support vector machine on that sum, at three C, in three or four passes after the
        search (left out with a note where it needs more memory than the budget, or many passes); "all", the best single
        kernel too, which takes a few passes more, and several times the seconds; "none".
    state
        A folder that all workers see, where the search is kept after every pass; the same call goes on from there
        after a kill, and a folder that holds another search is refused. Temporary where None.

    Returns
    -------
    SearchResult
        Scores of every point and fold, weights, gaps, passes; the choice; the refitted model.

    Raises
    ------
    InputError
        If an argument breaks a rule, or `state` holds another search.
    IndefiniteKernelError
        If a kernel proves not to be positive semidefinite.
    WorkerLostError
        If workers died again and again.
    """
    started = time.monotonic()
    check_choice("rule", rule, get_args(Rule))
    check_choice("baselines", baselines, get_args(Baselines))
    question, folds = ask(
        "search",
        estimator,
        K,
        y,
        grid,
        partial(make_folds, cv),
        scoring=scoring,
        groups=groups,
        unknown=unknown,
        refit=refit,
    )
    choice = as_choice(choice, folds, question.K.samples)
    if baselines == "none":
        found, beside = fit_grid(question, state), None
    else:
        found, beside = search_beside_baselines(question, choice, state, baselines)
    scores = as_dataset(question, found, choice, time.monotonic() - started)
    if beside is not None:
        fitted_beside = {name: values.variable for name, values in beside.data_vars.items()}
        coords = {name: values.variable for name, values in beside.coords.items() if name not in scores.coords}
        scores = scores.assign(fitted_beside).assign_coords(coords).assign_attrs(beside.attrs)
    if question.hint:
        scores.attrs["hint"] = question.hint
    result = SearchResult(scores, rule=rule)
    return refitted(question, found, result, state) if refit else result
