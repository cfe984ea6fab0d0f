"""`dmkl.permutation_test`: whether labels tell more than labels at random would, and which kernels' weights do."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import xarray as xr

from dmkl import progress
from dmkl.arrays import Array, Float, Index
from dmkl.errors import InputError
from dmkl.estimators.checks import check_choice, check_count
from dmkl.estimators.learner import KernelLearner
from dmkl.files.arrays import load_arrays, save_arrays
from dmkl.inference.permutation_result import PermutationTest, with_p_values
from dmkl.inference.shuffling import Blocks, cells_of, draw
from dmkl.passes.blas import one_blas_thread
from dmkl.searching.choice import choose_each, mean_and_error
from dmkl.searching.dataset import fold_data, measured
from dmkl.searching.fits import GridFits, Question, ask, digest, fit_grids, working
from dmkl.searching.folds import make_folds
from dmkl.searching.grid import shape
from dmkl.searching.labeled import as_variable
from dmkl.solvers.workspace import Workspace
from dmkl.stores import Kernels

__all__ = ["permutation_test"]

Choosing = Literal["anew", "fixed"]
_Found = dict[str, Array]
"""Arrays whose first dimension are the permutations."""
_CHUNK_BYTES = 9 * 2**28
"""Scores of held-out rows and dual variables that are kept at once, in bytes: so many permutations share a fit."""
_SCORE_BYTES = 4
"""Solvers of many targets keep scores in single precision."""


@one_blas_thread
def permutation_test(
    estimator: KernelLearner,
    K: Kernels,
    y: npt.ArrayLike | None = None,
    grid: Mapping[str, Any] | None = None,
    n_permutations: int = 199,
    *,
    cv: Any = None,
    groups: npt.ArrayLike | None = None,
    blocks: Blocks = "within",
    scoring: Any = None,
    choose: Choosing = "anew",
    unknown: Any = None,
    random_state: int = 0,
    state: str | Path | None = None,
) -> PermutationTest:
    """Test whether labels are independent of the kernels, by fits to labels that have changed places.

    The statistic is the cross-validated score at the best point of the grid, of the labels as they are and of each
    permutation of them. Statistics of kernels are their shares of the weight there, β_j/Σβ, as means over the folds.
    Permuted labels are further targets of the same fits, which share passes.

    Parameters
    ----------
    estimator, K, y, grid, scoring, unknown
        As in `dmkl.search`; the first measure decides. Folds and what decides labels of held-out rows are its too.
    n_permutations
        B. The smallest p-value is 1/(B + 1).
    cv
        Folds, as in `dmkl.search`. They stay as they are under permutation, and their test rows are not used.
    groups
        (m,) exchangeability blocks, such as the site of a scan, which no fold splits. Without them labels change places
        within the folds where each row is held out once, so that every training set keeps the numbers of its classes,
        and among all rows of the folds otherwise.
    blocks
        What changes places where there are groups: labels "within" each group, or the labels of "whole" groups of one
        size, row by row.
    choose
        "anew": each permutation has the point of the grid that is best for it, so that the test takes the choice into
        account. "fixed": all have the point that the labels as they are have chosen: much cheaper, and the p-value is
        too small if there was a choice.
    random_state
        Seed of the permutations: with equal seeds the first of them are the same, however many there are.
    state
        A folder that all workers see, where what is done is kept; the same call goes on from there after a kill.

    Returns
    -------
    PermutationTest
        p-values of the score and of kernels, and the distributions under permutation.

    Raises
    ------
    InputError
        If an argument breaks a rule, labels cannot be permuted, or `state` holds other work.
    IndefiniteKernelError
        If a kernel proves not to be positive semidefinite.
    WorkerLostError
        If workers died again and again.

    Notes
    -----
    Phipson, Smyth: Permutation p-values should never be zero. Stat. Appl. Genet. Mol. Biol. 9 (2010); Ojala, Garriga:
    Permutation tests for studying classifier performance. JMLR 11 (2010); Westfall, Young: Resampling-based multiple
    testing, 1993, for the correction by the maximum over kernels.
    """
    started = time.monotonic()
    _check(n_permutations, blocks, choose, random_state, groups)
    question, _ = ask(
        "permutation_test",
        estimator,
        K,
        y,
        grid,
        partial(make_folds, cv),
        scoring=scoring,
        groups=groups,
        unknown=unknown,
        refit=False,
    )
    folds = [replace(fold, test=fold.test[:0]) for fold in question.folds]
    name, measure = next(iter(question.metrics.items()))
    question = replace(question, folds=folds, metrics={name: measure})
    orders = _orders(question, n_permutations, blocks, random_state)
    found, n_passes = _fitted(question, orders, choose, state)
    data = _as_dataset(question, orders, found)
    permuted = "within folds or among all rows" if groups is None else f"{blocks} groups"
    data.attrs |= {"choose": choose, "permuted": permuted, "random_state": int(random_state)}
    data.attrs |= {"n_passes": n_passes, "seconds": time.monotonic() - started}
    return PermutationTest(data)


def _check(n_permutations: int, blocks: str, choose: str, random_state: int, groups: Any) -> None:
    check_choice("choose", choose, get_args(Choosing))
    check_choice("blocks", blocks, get_args(Blocks))
    check_count("n_permutations", n_permutations)
    check_count("random_state", random_state, least=0)
    if blocks == "whole" and groups is None:
        msg = "blocks='whole' permutes the labels of whole groups, and there are no groups; give groups"
        raise InputError(msg)


def _orders(question: Question, n_permutations: int, blocks: Blocks, seed: int) -> Index:
    """The permutations, (B + 1, m): that of the labels as they are first."""
    folds, known = question.folds, question.groups
    labels, classes = question.labels, question.targets.kind != "regression"
    cells = cells_of(folds, len(labels), known)
    drawn = [
        draw(cells, blocks, labels if classes else None, folds, seed, number) for number in range(1, n_permutations + 1)
    ]
    if all(np.array_equal(labels[order], labels, equal_nan=labels.dtype.kind == "f") for order in drawn):
        msg = (
            f"no label changes its place under {n_permutations} permutations: groups hold one label each, or no two "
            "of them are of one size; give other groups, or the other of blocks='within' and 'whole'"
        )
        raise InputError(msg)
    return np.stack([np.arange(len(labels)), *drawn])


# --- fitting -------------------------------------------------------------------------------------------------------


def _fitted(question: Question, orders: Index, choose: Choosing, state: str | Path | None) -> tuple[_Found, float]:
    """What became of each permutation, and the passes."""
    asked = {"the permutations": digest(orders), "the choice of points": choose}
    with working(question, state, asked) as workspace:
        workspace.commit(workspace.state)  # what the folder is for, before anything is in it
        parts = list(_chunks(question, orders, choose, workspace))
    together = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return together, float(together.pop("n_passes").sum())


def _chunks(question: Question, orders: Index, choose: Choosing, workspace: Workspace) -> Iterator[_Found]:
    """Permutations some at a time, one after the other; what an earlier run has kept is read back."""
    first, at, chosen = 0, None, None
    if choose == "fixed":
        alone = _chunk(question, orders[:1], None, workspace, first)
        yield alone
        chosen = alone["place"][:1]
        question, at = _only(question, chosen[0])
        first = 1
    most = max(1, int(_CHUNK_BYTES / (_SCORE_BYTES * sum(_kept(question)))))
    # As many each time: what few permutations at the end would share is little.
    times = -(-(len(orders) - first) // most)
    size = -(-(len(orders) - first) // times)
    while first < len(orders):
        found = _chunk(question, orders[first : first + size], at, workspace, first)
        # Of one point for all, its place in the whole grid.
        yield found if chosen is None else found | {"place": np.repeat(chosen, len(found["place"]), axis=0)}
        first += len(found["place"])  # what an earlier run has kept may be other numbers of them
        progress.current().note(f"{min(first, len(orders)) - 1:,} of {len(orders) - 1:,} permutations fitted")


def _kept(question: Question) -> Iterator[int]:
    """Scores of the validation rows of each fold, and dual variables of its training rows, under a permutation."""
    columns = max(len(question.targets.classes), question.n_tasks)
    for fold in question.folds:
        yield (len(fold.validation) + len(fold.train)) * columns * math.prod(shape(question.grid))


def _only(question: Question, place: Index) -> tuple[Question, Index]:
    """The question on the points alone that the tasks have chosen, and where each of them is in its grid."""
    kept = [np.unique(places, return_inverse=True) for places in place]
    pairs = zip(question.grid.items(), kept, strict=True)
    grid = {name: tuple(values[k] for k in some) for (name, values), (some, _) in pairs}
    return replace(question, grid=grid), np.stack([where for _, where in kept])


def _chunk(question: Question, orders: Index, at: Index | None, workspace: Workspace, first: int) -> _Found:
    """What became of some permutations.

    Parameters
    ----------
    at
        (parameter, task), places in the grid; those of the best scores where None.
    """
    file = workspace.path / f"outcome-permutations-{first}.npz"
    if file.exists():
        return dict(load_arrays(file))
    part = workspace.part(str(first))
    permuted = [question.relabeled(order) for order in orders]
    rows, n_passes = [], 0.0
    for each, fits in zip(permuted, fit_grids(permuted, part), strict=True):
        rows.append(_row(each, fits, at))
        n_passes = fits.n_passes
    found = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    found["n_passes"] = np.array([n_passes])
    save_arrays(file, found)
    shutil.rmtree(part.path)
    return found


def _row(question: Question, fits: GridFits, at: Index | None) -> dict[str, Array]:
    """Score (task,), shares of the weight (task, kernel), place in the grid (parameter, task), largest gap."""
    sizes, dim, tasks = shape(question.grid), question.targets.dim, np.arange(question.n_tasks)
    ((scores, _),) = measured(question, fits)
    mean, error = mean_and_error(scores.swapaxes(1, 2))
    if at is None:
        each = sizes if dim is None else (*sizes, len(tasks))
        names = tasks if question.tasks is None else question.tasks
        at = choose_each(
            mean.reshape(each), error.reshape(each), question.grid, whose=lambda t: f"{dim} {str(names[t[0]])!r}"
        ).reshape(len(sizes), -1)
    chosen = np.ravel_multi_index(tuple(at), sizes)
    weight = fits.weights[chosen, :, tasks]
    return {
        "score": mean[chosen, tasks],
        "share": (weight / weight.sum(axis=-1, keepdims=True)).mean(axis=1),
        "place": at,
        "gap": np.nan_to_num(fits.gap[chosen, :, tasks]).max(initial=0.0),
    }


# --- as labeled data -----------------------------------------------------------------------------------------------


def _as_dataset(question: Question, orders: Index, found: _Found) -> xr.Dataset:
    dim = question.targets.dim
    dims: tuple[str, ...] = () if dim is None else (dim,)

    def by_task(values: Float) -> Float:
        """(…, task, …) with the second dimension taken away where there is one task."""
        return values if dims else values[:, 0]

    score, share = by_task(found["score"]), by_task(found["share"])
    variables: dict[str, Any] = {
        "score": (dims, score[0]),
        "null_score": (("permutation", *dims), score[1:]),
        "weight_share": ((*dims, "kernel"), share[0]),
        "null_weight_share": (("permutation", *dims, "kernel"), share[1:]),
        "order": (("permutation", "sample"), orders[1:].astype(np.int32)),
    }
    for k, (name, values) in enumerate(question.grid.items()):
        places = by_task(found["place"][:, k])
        real = [values[int(place)] for place in places[0].ravel()]
        variables[name] = as_variable(name, dims, real, places[0].shape)
        chosen = [values[int(place)] for place in places[1:].ravel()]
        variables[f"null_{name}"] = as_variable(f"null_{name}", ("permutation", *dims), chosen, places[1:].shape)
    coords: dict[str, Any] = {
        "permutation": np.arange(1, len(orders)),
        "kernel": np.array(question.K.names, dtype=str),
        "sample": np.array(question.K.samples, dtype=str),
    }
    if dim is not None:
        coords[dim] = np.array(
            [str(t) for t in (range(question.n_tasks) if question.tasks is None else question.tasks)]
        )
    attrs = {
        "estimator": type(question.estimator).__name__,
        "scoring": next(iter(question.metrics)),
        "parameters_searched": json.dumps(list(question.grid)),
        "n_points": math.prod(shape(question.grid)),
        "n_folds": len(question.folds),
        "largest_gap": float(found["gap"].max()),
    }
    of_folds = fold_data(question, question.folds)
    return with_p_values(xr.Dataset(variables, coords, attrs | of_folds.attrs).merge(of_folds, join="exact"))
