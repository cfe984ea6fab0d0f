"""`dmkl.stability`: kernel weights over resamples of the rows, in passes that all resamples share."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import xarray as xr
from sklearn.base import clone

from dmkl.arrays import Array, plain_repr
from dmkl.errors import InputError
from dmkl.estimators.checks import check_choice, check_count
from dmkl.estimators.engine import run
from dmkl.estimators.learner import KernelLearner
from dmkl.estimators.plan import Answers, Fit, Plan
from dmkl.inference.draws import N_RESAMPLES, How, draw, n_distinct
from dmkl.inference.selection import agreement, check_threshold, select
from dmkl.inference.stability import Stability
from dmkl.passes.blas import one_blas_thread
from dmkl.searching.dataset import fold_data
from dmkl.searching.fits import Question, ask_once, per_task, working
from dmkl.searching.labeled import STATUS_FLAGS
from dmkl.searching.refit import scored
from dmkl.stores import Kernels

__all__ = ["stability"]


@one_blas_thread
def stability(
    estimator: KernelLearner,
    K: Kernels,
    y: npt.ArrayLike | None = None,
    n_resamples: int | None = None,
    *,
    how: How = "half",
    n_selected: int | None = None,
    threshold: float = 0.9,
    groups: npt.ArrayLike | None = None,
    scoring: Any = None,
    unknown: Any = None,
    random_state: int = 0,
    state: str | Path | None = None,
) -> Stability:
    """Fit an estimator to resamples of the rows, and tell how far its kernel weights can be trusted.

    All resamples share passes over the kernels: a hundred fits take little more of them than one. Each is a fit of its
    own, with statistics of its own rows, and is scored on the rows that it leaves out.

    Parameters
    ----------
    estimator
        What to fit, with the parameters that it has. It is not changed. Parameters that a search has chosen on the same
        rows make scores look better than they are; `dmkl.evaluate` estimates those.
    K, y
        As in `dmkl.search`.
    n_resamples
        100 by default, and 10 folds; an even number of halves.
    how
        What a resample trains on:

        - "half": one of two random halves of the rows, the other half being the next resample. What stability selection
          is proven for.
        - "bootstrap": as many rows as there are, drawn with replacement. A row counts as often as it was drawn, by
          `sample_weight`; the learner must take weights. See its `fit` for what they mean: with MKFDA and MKRidge all
          is as with repeated rows; machines with margins measure the kernels on each row once.
        - "folds": all rows but those of one of `n_resamples` folds, as a cross-validation fits them.

        Classes keep their shares where each row has one label. Draws that lack a class, or leave out no row, are
        rejected and drawn again.
    n_selected
        How many kernels, those of the largest weights, each resample selects. By default those with more than a
        hundredth of its largest weight, which says something under sparse norms (p near 1).
    threshold
        Share π of the resamples, above 1/2, that must select a kernel for it to count as stable.
    groups
        (m,) what no resample may split: whole groups are drawn. Few groups have few halves: the summary, and
        ``data.n_distinct``, say how many of the resamples differ.
    scoring, unknown
        As in `dmkl.search`.
    random_state
        Seed of the draws.
    state
        A folder that all workers see, where what is done is kept; the same call goes on from there.

    Returns
    -------
    Stability
        Weights, their intervals and ranks, selection frequencies with a bound of false selections, and scores.

    Raises
    ------
    InputError
        If an argument breaks a rule, or `state` holds other work.
    IndefiniteKernelError
        If a kernel proves not to be positive semidefinite.
    WorkerLostError
        If workers died again and again.

    Notes
    -----
    Meinshausen, Bühlmann: Stability selection. Journal of the Royal Statistical Society B 72 (2010). Shah, Samworth:
    Variable selection with error control: another look at stability selection. Journal of the Royal Statistical Society
    B 75 (2013). Weights of half-samples, as those of a bootstrap, vary around the fit to all rows as much as that one
    varies around its limit, where weights depend smoothly on the rows (the delete-d jackknife with d = m/2: Shao, Wu: A
    general theory for jackknife variance estimation. Annals of Statistics 17 (1989)); weights at zero do not.

    Correlated kernels share their weight, or take it from one another from resample to resample: a kernel that is
    seldom selected need not be useless (`dmkl.analyze` shows which kernels are alike).

    Examples
    --------
    >>> import dmkl, numpy as np
    >>> y = np.arange(24) % 2
    >>> F = np.random.default_rng(0).normal(size=(3, 24, 4)) + np.array([2, 0, 0])[:, None, None] * y[:, None]
    >>> found = dmkl.stability(dmkl.MKFDA(p=1), F @ F.transpose(0, 2, 1), y, n_resamples=10, n_selected=1)
    >>> float(found.data.selection_frequency[0])
    1.0
    """
    started = time.monotonic()
    check_choice("how", how, get_args(How))
    n_resamples = N_RESAMPLES[how] if n_resamples is None else n_resamples
    check_count("n_resamples", n_resamples, least=2)
    check_count("random_state", random_state, least=0)
    check_threshold(threshold)
    if n_selected is not None:
        check_count("n_selected", n_selected, least=1)
    if how == "bootstrap" and not estimator._TAKES_WEIGHTS:
        msg = (
            f"how='bootstrap' counts rows as often as they are drawn, and {type(estimator).__name__} does not weigh "
            "samples; take how='half'"
        )
        raise InputError(msg)
    question, folds = ask_once(
        "stability",
        estimator,
        K,
        y,
        partial(draw, how, n_resamples, random_state),
        scoring=scoring,
        groups=groups,
        unknown=unknown,
    )
    model = clone(question.estimator)
    fits = [
        Fit(
            model,
            fold.train,
            question.targets_of(fold.train),
            question.tasks,
            fold.validation,
            title=f"{fold.title}: ",
            sample_weight=fold.counts,
        )
        for fold in folds
    ]
    with working(question, state, {"what is asked": "stability"}) as workspace:
        answers = run(Plan(question.K, fits), workspace)
    attrs: dict[str, Any] = {
        "how": how,
        "n_selected": n_selected or 0,
        "threshold": float(threshold),
        "random_state": random_state,
    }
    attrs |= {"n_distinct": n_distinct(folds), "default_price": question.estimator._default_price()}
    data = _as_dataset(question, answers, how, n_selected)
    of_folds = fold_data(question, folds).rename_dims(fold="resample").drop_vars("fold")
    if how == "bootstrap":
        counts = np.zeros(of_folds["part"].shape, dtype=np.int32)
        for row, fold in zip(counts, folds, strict=True):
            row[fold.train] = fold.counts
        of_folds["n_drawn"] = (("resample", "sample"), counts)
    attrs |= {"asked": of_folds.attrs["asked"], "seconds": time.monotonic() - started}
    return Stability(data.merge(of_folds).assign_attrs(attrs))


def _as_dataset(question: Question, answers: Answers, how: How, n_selected: int | None) -> xr.Dataset:
    """What the fits have found, with what their weights say of the kernels."""
    dim, found = question.targets.dim, answers.fits
    task = () if dim is None else (dim,)
    weight, gap, objective, status = per_task(found, len(question.K), question.n_tasks)
    chosen = np.stack([select(weight[:, k], n_selected) for k in range(question.n_tasks)], axis=1)
    spread = weight.std(axis=0, ddof=1)
    if how == "folds":  # resamples that share nearly all rows vary too little
        spread = weight.std(axis=0) * np.sqrt(len(found) - 1)
    lower, upper = np.quantile(weight, (0.025, 0.975), axis=0)

    def of_kernels(values: Array, *first: str) -> tuple[tuple[str, ...], Array]:
        """(…, task, kernel) as (…, kernel) or (…, kernel, task)."""
        return (*first, "kernel", *task), np.take(values, 0, axis=-2) if dim is None else values.swapaxes(-1, -2)

    def of_fits(values: Array, *first: str) -> tuple[tuple[str, ...], Array]:
        """(…, task) as (…,) or (…, task)."""
        return (*first, *task), values[..., 0] if dim is None else values

    variables: dict[str, Any] = {
        "weight": of_kernels(weight, "resample"),
        "mean_weight": of_kernels(weight.mean(axis=0)),
        "standard_error": of_kernels(spread),
        "lower": of_kernels(lower),
        "upper": of_kernels(upper),
        "selected": of_kernels(chosen, "resample"),
        "selection_frequency": of_kernels(chosen.mean(axis=0)),
        "rank_agreement": of_fits(np.array([agreement(weight[:, k]) for k in range(question.n_tasks)])),
        "gap": of_fits(gap, "resample"),
        "objective": of_fits(objective, "resample"),
        "status": (*of_fits(status.astype(np.int8), "resample"), STATUS_FLAGS),
        "n_train": ("resample", np.array([len(fold.train) for fold in question.folds])),
        "n_test": ("resample", np.array([len(fold.validation) for fold in question.folds])),
    }
    variables |= {f"score{end}": (("resample", *task), values) for end, values in scored(question, found).items()}
    coords: dict[str, Any] = {"kernel": np.array(question.K.names, dtype=str)}
    if dim is not None:
        names = range(question.n_tasks) if question.tasks is None else question.tasks
        coords[dim] = np.array([str(name) for name in names], dtype=str)
    parameters = {name: plain_repr(value) for name, value in question.estimator.get_params(deep=False).items()}
    attrs = {
        "estimator": type(question.estimator).__name__,
        "parameters": json.dumps(parameters),
        "scoring": next(iter(question.metrics)),
        "measures": json.dumps(list(question.metrics)),
        "kind": question.targets.kind,
        "n_passes": answers.tally.n_passes,
        "solver": ", ".join(dict.fromkeys(one.solver or "own" for one in found)),
    }
    return xr.Dataset(variables, coords, attrs)
