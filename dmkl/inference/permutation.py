"""`dmkl.permutation_test`: p-values of a score and of kernel weights, from fits to permuted labels."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from dmkl import progress
from dmkl.arrays import Array, Index, check_choice, weight_shares
from dmkl.description import Column, Description, Figure, Key, Table, count, listed, number
from dmkl.errors import refuse
from dmkl.files.arrays import kept_arrays, save_arrays
from dmkl.inference import figures
from dmkl.inputs.label_tables import matched
from dmkl.kernelset import Kernels
from dmkl.learners.checks import check_count
from dmkl.learners.learner import KernelLearner
from dmkl.passes.blas import one_blas_thread
from dmkl.searching.fits import Arguments, GridFits, Question, as_variable, digest, make_question, run_blocks, values_of
from dmkl.searching.folds import Fold, make_folds
from dmkl.searching.grid import choose_each, mean_and_error, shape
from dmkl.searching.texts import cost_and_proof, p_value_text, point_text
from dmkl.solvers.workspace import Workspace
from dmkl.store.saved import Result, task_dim

Exchange = Literal["samples", "groups"]
"""Samples exchange their labels, or whole groups do."""
Choosing = Literal["anew", "fixed"]
Statistics = dict[str, Array]
"""Arrays whose first dimension are the permutations."""
_CHUNK_BYTES = 9 * 2**28
"""Bytes of held-out scores and dual variables at a time; they limit the permutations that share a fit."""
_SCORE_BYTES = 4  # Solvers of many targets keep scores in single precision.
_TRIES = 1000  # Permutations in a row that may leave a training set without a class.
_ROUNDING = 1e-12  # Statistics with a smaller relative difference tie: the order of a sum changes it by as much.
_LEVEL, _MOST_KERNELS = 0.05, 5


class PermutationTest(Result):
    """The result of a permutation test.

    `dmkl.permutation_test` and `dmkl.load` make it; everything is in `data`, a Dataset with the dimensions
    "permutation", "kernel", "sample", and "task" ("target" of a regression) if there are several:

    ============================== ====================== ==========================================================
    score                          [task]                 mean validation score at the chosen point
    null_score                     permutation[, task]    the same of permuted labels
    weight_share                   [task,] kernel         β_j/Σβ there, as a mean over the folds
    null_weight_share              permutation[, task],   the same of permuted labels
                                   kernel
    p_value, p_value_error         [task]                 of the score, with its standard error
    kernel_p_value                 [task,] kernel         of the share of each single kernel
    kernel_p_value_corrected       [task,] kernel         corrected over the kernels by the maximum statistic
    order                          permutation, sample    the row whose label a row was given
    part, sample_group             [fold,] sample         the folds, as in `SearchResult.scores`
    sample_block                   sample                 the blocks of the exchange, if they are given
    name of a parameter            [task]                 its chosen value
    ``null_`` and a parameter      permutation[, task]    that of permuted labels
    ============================== ====================== ==========================================================

    Attributes: estimator, parameters (JSON), scoring, choose, permuted, random_state, parameters_searched (JSON),
    n_points, n_folds, largest_gap (proven, of the chosen points), n_approximate (scores by rules from interpolated
    leave-one-out scores), n_passes, seconds, created_by.

    Notes
    -----
    A p-value is (b + 1)/(B + 1), where b of B permutations have a statistic at least as large as that of the original
    labels. Its standard error √(p(1 − p)/(B + 1)) shows how much more permutations would change it. The test of a
    kernel asks whether its share is larger than under meaningless labels, given all other kernels and the norm: for p →
    ∞ all shares are equal whatever the labels, and of two kernels with the same information either may have the share
    of both. Before the maximum over kernels is taken, the shares of each are standardized by their mean and standard
    deviation over all permutations, so that the scale of a kernel does not dominate the maximum.
    """

    FORMAT, TITLE = "dmkl-permutation-test", "permutation test"
    NEEDED: ClassVar[tuple[str, ...]] = ("score", "null_score", "weight_share", "null_weight_share")
    NEEDED += ("p_value", "p_value_error", "kernel_p_value", "kernel_p_value_corrected")
    MEANINGS: ClassVar = {
        "score": "mean validation score at the chosen point",
        "null_score": "mean validation score of permuted labels",
        "weight_share": "share of the kernel weights, mean over folds",
        "null_weight_share": "share of the kernel weights of permuted labels",
        "p_value": "p-value of the score",
        "p_value_error": "standard error of the p-value",
        "kernel_p_value": "p-value of the share of a kernel by itself",
        "kernel_p_value_corrected": "p-value of the share, corrected over the kernels by the maximum",
        "order": "the row whose label a row was given, from 0",
    }

    @property
    def n_permutations(self) -> int:
        """B."""
        return int(self.data.sizes["permutation"])

    @property
    def p_value(self) -> Any:
        """(b + 1)/(B + 1) of the score; over task if there are several."""
        p = self.data["p_value"]
        return p if p.ndim else float(p)

    @property
    def p_value_error(self) -> Any:
        """Its standard error."""
        error = self.data["p_value_error"]
        return error if error.ndim else float(error)

    @property
    def kernel_p_values(self) -> xr.Dataset:
        """The p-values of the shares of kernels: `raw`, of each kernel, and `corrected` over the kernels."""
        names = {"kernel_p_value": "raw", "kernel_p_value_corrected": "corrected"}
        return self.data[list(names)].rename(names)

    def table(self) -> pd.DataFrame:
        """The kernels, smallest corrected p-value first.

        task if there are several, kernel, share of the weight, its mean under permutation, p, corrected p.
        """
        data = self.data
        names = {"weight_share": "share", "null_mean": "permuted share"}
        names |= {"kernel_p_value": "p", "kernel_p_value_corrected": "corrected p"}
        values = data.assign(null_mean=data["null_weight_share"].mean("permutation"))[list(names)].rename(names)
        dims = list(data["weight_share"].dims)
        frame = values.to_dataframe(dim_order=dims).reset_index().astype(dict.fromkeys(dims, object))
        return frame.sort_values(["corrected p", "p"], kind="stable").reset_index(drop=True)

    def describe(self) -> Description:
        """The test, the p-values, the costs; see `Result.describe`."""
        data, attrs, dim = self.data, self.data.attrs, task_dim(self.data)
        searched = json.loads(attrs["parameters_searched"])
        scope = (
            f"{count(self.n_permutations, 'permutation')} {attrs['permuted']}, {count(attrs['n_points'], 'point')}, "
            f"{count(attrs['n_folds'], 'fold')}"
        )
        lines = []
        for k in range(1 if dim is None else data.sizes[dim]):
            of_task = data if dim is None else data.isel({dim: k})
            null, chosen = of_task["null_score"], {name: values_of(of_task[name])[0] for name in searched}
            task = "" if dim is None else f"{of_task[dim].item()}: "
            lines.append(
                f"{task}{attrs['scoring']} {number(float(of_task['score']))} at {point_text(chosen)}; permuted "
                f"{number(float(null.mean()))}, at most {number(float(null.max()))}: {p_value_text(of_task)}"
            )
            corrected = of_task["kernel_p_value_corrected"].to_series().sort_values(kind="stable")
            significant = corrected[corrected <= _LEVEL]
            of_kernels = f"No kernel has more of the weight than under permutation (corrected p > {_LEVEL})"
            if n := len(significant):
                names = listed((f"{name} ({p:.3g})" for name, p in significant.items()), _MOST_KERNELS)
                start = f"More of the weight than under permutation (corrected p ≤ {_LEVEL})"
                of_kernels = f"{start}, {count(n, 'kernel')}: {names}"
            lines.append(f"{task}{of_kernels}")
        if attrs["choose"] == "fixed":
            how = "The point was chosen once, by the original labels: p-values are too small if there was a choice"
        else:
            how = "The point was chosen anew for each permutation"
        if n := int(attrs.get("n_approximate", 0)):
            n_all = data["null_score"].size + data["score"].size
            how += (
                f". {n:,} of {n_all:,} scores are by rules from interpolated leave-one-out scores, of permuted labels "
                "as of those given, so that p-values hold; dmkl search has the exact score"
            )
        costs = cost_and_proof(self.n_passes_, attrs["seconds"], math.nan)
        sentences: dict[Key, list[str]] = {"chance": lines, "notes": [how], "costs": [costs]}
        facts = {"choose": attrs["choose"], "permutations": self.n_permutations}
        facts |= {name: data[name].values for name in ("score", "p_value", "p_value_error")}
        title = f"Permutation test of {attrs['estimator']}"
        pictures = {"Scores of permuted labels": Figure(scope, self.plot)}
        return Description(title, scope, sentences, lambda: facts, {"kernels": self._kernels_table}, pictures)

    def _kernels_table(self) -> Table:
        frame = self.table()
        columns = [Column(name, form="kernel" if name == "kernel" else None) for name in map(str, frame)]
        return Table(frame, columns, "Shares of the weight", kernels=self.data["kernel"].values)

    plot = figures.plot_permutations


def with_p_values(data: xr.Dataset) -> xr.Dataset:
    """Add the p-values of the statistics in `data`."""
    b, size = data.sizes["permutation"], abs(data["score"]) * _ROUNDING
    p = (1.0 + (data["null_score"] >= data["score"] - size).sum("permutation")) / (b + 1.0)
    share, null = data["weight_share"], data["null_weight_share"]
    every = xr.concat([share, null.drop_vars("permutation")], "permutation")
    # Standardized alike, the observed shares among them, as the exchangeability of the test requires.
    spread = every.std("permutation")
    spread = spread.where(spread > _ROUNDING, np.inf)
    z, z_null = ((values - every.mean("permutation")) / spread for values in (share, null))
    raw = (1.0 + (null >= share - _ROUNDING).sum("permutation")) / (b + 1.0)
    corrected = (1.0 + (z_null.max("kernel") >= z - _ROUNDING).sum("permutation")) / (b + 1.0)
    return data.assign(
        p_value=p,
        p_value_error=np.sqrt(p * (1.0 - p) / (b + 1.0)),
        kernel_p_value=raw,
        kernel_p_value_corrected=corrected.transpose(*raw.dims),
    )


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
    blocks: npt.ArrayLike | None = None,
    exchange: Exchange = "samples",
    scoring: Any = None,
    choose: Choosing = "anew",
    unknown: Any = None,
    random_state: int = 0,
    state: str | Path | None = None,
) -> PermutationTest:
    """Test whether labels are independent of the kernels, by fits to permuted labels.

    The statistic is the cross-validated score at the best point of the grid, of the original labels and of each
    permutation. The statistics of kernels are their shares of the weight there, β_j/Σβ, as means over the folds.
    Permuted labels are further targets of the same fits, which share passes.

    Parameters
    ----------
    estimator, K, y, grid, scoring, unknown
        As in `dmkl.search`; the first scorer decides. Folds and decision rules are those of `dmkl.search` too.
    n_permutations
        B. The smallest p-value is 1/(B + 1).
    cv
        Folds, as in `dmkl.search`. They do not change under permutation, and their test rows are not used.
    groups
        (m,) groups of samples that no fold splits, such as the subject or the site of a scan.
    blocks
        (m,) blocks within which labels are exchanged, such as sites with subjects as groups; those of `groups` if None.
        Without both, labels change places within the folds if each row is held out once, so that every training set
        keeps the sizes of its classes, and among all rows of the folds otherwise. One block for all exchanges freely.
    exchange
        "samples" of a block exchange their labels; or "groups" of equal size do, row by row, within their block, and
        among all groups without `blocks`. If a group has one label, such as the diagnosis of a subject with several
        scans, its samples are not exchangeable: p-values of "samples" within larger blocks would be too small.
    choose
        "anew": each permutation has its best point of the grid, so that the test accounts for the choice. "fixed": all
        have the choice of the original labels: much cheaper, and the p-value is too small if there was a choice.
    random_state
        Seed of the permutations: with equal seeds the first of them are the same, whatever their number.
    state
        As in `dmkl.search`.

    Raises
    ------
    InputError
        If an argument breaks a rule, labels cannot be permuted, or `state` has other work.
    IndefiniteKernelError, WorkerLostError
        As in `dmkl.search`.

    Notes
    -----
    Phipson, Smyth: Permutation p-values should never be zero. Stat. Appl. Genet. Mol. Biol. 9 (2010); Ojala, Garriga:
    Permutation tests for studying classifier performance. JMLR 11 (2010); Westfall, Young: Resampling-based multiple
    testing, 1993, for the correction by the maximum over kernels.
    """
    started = time.monotonic()
    check_choice("choose", choose, get_args(Choosing))
    check_choice("exchange", exchange, get_args(Exchange))
    check_count("n_permutations", n_permutations)
    check_count("random_state", random_state, least=0)
    if exchange == "groups" and groups is None:
        refuse("exchange='groups' exchanges the labels of whole groups, and there are no groups; give groups")
    arguments = Arguments(estimator, K, y, grid, scoring, groups, unknown, state)
    question, _ = make_question("permutation_test", arguments, partial(make_folds, cv))
    folds = [replace(fold, test=fold.test[:0]) for fold in question.folds]
    name, metric = next(iter(question.metrics.items()))
    question = replace(question, folds=folds, metrics={name: metric})
    K = question.K
    of_rows = None if blocks is None else matched("blocks", blocks, K.samples, named=K.view.has_names).values
    orders = _draw_orders(question, n_permutations, of_rows, exchange, random_state)
    properties = {"the permutations": digest(orders), "the choice of points": choose}
    with question.open_workspace(properties) as workspace:
        workspace.commit(workspace.state)  # the purpose of the folder, before its content
        chunks = list(_fit_chunks(question, orders, choose, workspace))
    statistics = {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}
    n_passes = float(statistics.pop("n_passes").sum())
    options = {"choose": choose, "exchange": exchange, "random_state": int(random_state)}
    data = _to_dataset(question, orders, statistics)
    data = question.with_folds(data, question.folds, n_permutations=n_permutations, **options)
    if of_rows is not None:
        data["sample_block"] = ("sample", of_rows.astype(str))
    within = "within folds or among all rows" if groups is None else "within groups"
    within = "within blocks" if blocks is not None else "of whole groups" if exchange == "groups" else within
    permuted = f"of whole groups {within}" if exchange == "groups" and blocks is not None else within
    data.attrs |= {"choose": choose, "permuted": permuted, "random_state": int(random_state)}
    data.attrs |= {"n_passes": n_passes, "seconds": time.monotonic() - started}
    return PermutationTest(data)


def _draw_orders(question: Question, n_permutations: int, blocks: Array | None, exchange: Exchange, seed: int) -> Index:
    """The permutations, (B + 1, m), the identity first."""
    folds, labels, groups = question.folds, question.labels, question.groups
    units = None
    if exchange == "groups" and groups is not None:
        units = np.unique(groups.astype(str), return_inverse=True)[1]
        blocks = np.zeros(len(labels)) if blocks is None else blocks
        split = np.unique(groups[[len(set(blocks[units == unit])) > 1 for unit in units]]).tolist()
        if split:
            refuse(
                f"whole groups exchange their labels within blocks, and {len(split)} groups have rows in several "
                f"blocks, {split[0]!r} first; give each group one block, or take exchange='samples'"
            )
    alike = exchangeable(folds, len(labels), groups if blocks is None else blocks, units)
    drawn = [draw_permutation(question, alike, [seed, number]) for number in range(1, n_permutations + 1)]
    if all(np.array_equal(labels[order], labels, equal_nan=labels.dtype.kind == "f") for order in drawn):
        refuse(
            f"no label changes its place under {n_permutations} permutations: blocks or groups have one label each, or "
            "no two groups of a block have the same size; give other blocks, or the other of exchange='samples' and "
            "'groups'"
        )
    return np.stack([np.arange(len(labels)), *drawn])


def exchangeable(folds: Sequence[Fold], n_samples: int, blocks: Array | None, units: Index | None) -> list[Index]:
    """Rows that change places: arrays (units, size) of which each unit may take the labels of another, row by row.

    Units are single rows, or groups of the same size, of the same block. Without `blocks` (m,) they are of the same
    fold if each row is held out by one, so that every training set keeps the sizes of its classes; otherwise of all
    rows of the folds.
    """
    used, held_out_by = np.zeros(n_samples, dtype=bool), np.zeros(n_samples, dtype=np.int64)
    for f, fold in enumerate(folds):
        used[fold.train] = used[fold.validation] = True
        held_out_by[fold.validation] = f
    times = np.bincount(np.concatenate([fold.validation for fold in folds]), minlength=n_samples)
    if blocks is not None:
        cells = np.unique(blocks.astype(str), return_inverse=True)[1]
    else:
        cells = held_out_by if (times[used] == 1).all() else np.zeros(n_samples, dtype=np.int64)
    alike = list[Index]()
    for cell in range(cells[used].max() + 1):
        rows = np.flatnonzero(used & (cells == cell))
        groups = rows[:, None] if units is None else [rows[units[rows] == unit] for unit in np.unique(units[rows])]
        sizes = sorted(set(map(len, groups)))
        alike += [np.array([group for group in groups if len(group) == size]) for size in sizes]
    return alike


def draw_permutation(question: Question, alike: Sequence[Index], seed: Sequence[int]) -> Index:
    """A permutation: row i takes the label of row order[i], (m,), among the rows that are `exchangeable`.

    Equal seeds give equal permutations. Those that would leave a training set without a class are rejected, InputError
    after many in a row; the others are equally likely. A regression accepts every training set.
    """
    rng, labels, folds = np.random.default_rng(seed), question.labels, question.folds
    for _ in range(_TRIES):
        order = np.arange(len(labels))
        for units in alike:
            order[units] = units[rng.permutation(len(units))]
        # No training set may lose a class, in any task.
        if question.targets.kind == "regression" or all(
            _n_classes(permuted[fold.train]) >= _n_classes(column[fold.train])
            for column, permuted in zip(np.atleast_2d(labels.T), np.atleast_2d(labels[order].T), strict=True)
            for fold in folds
        ):
            return order
    refuse(
        f"{_TRIES} permutations in a row have left a training set without one of its classes; take fewer folds, larger "
        "groups, or leave classes of few samples out (--drop-classes-below N)"
    )


def _n_classes(labels: Array) -> int:
    known = labels[~np.isnan(labels)] if labels.dtype.kind == "f" else labels
    return len(np.unique(known))


def _fit_chunks(question: Question, orders: Index, choose: Choosing, workspace: Workspace) -> Iterator[Statistics]:
    """Statistics of the permutations, a chunk at a time; chunks that an earlier run has saved are read."""
    first, at, chosen = 0, None, None
    if choose == "fixed":
        original = _fit_chunk(question, orders[:1], None, workspace, first)
        yield original
        chosen = original["place"][:1]
        # Only the chosen points of the tasks are fitted, at their places in a grid of these.
        values, places = zip(*(np.unique(of, return_inverse=True) for of in chosen[0]), strict=True)
        pairs = zip(question.grid.items(), values, strict=True)
        grid = {name: tuple(of_name[k] for k in kept) for (name, of_name), kept in pairs}
        question, at = replace(question, grid=grid), np.stack(places)
        first = 1
    # Each fold keeps its validation scores and its dual variables.
    n_rows = sum(len(fold.validation) + len(fold.train) for fold in question.folds)
    n_columns = max(len(question.targets.classes), question.n_tasks) * math.prod(shape(question.grid))
    most = max(1, int(_CHUNK_BYTES / (_SCORE_BYTES * n_rows * n_columns)))
    # Chunks of equal size: a small chunk at the end would share its passes between few permutations.
    n_chunks = -(-(len(orders) - first) // most)
    size = -(-(len(orders) - first) // n_chunks)
    while first < len(orders):
        progress.current().part(f"{max(first - 1, 0):,} of {len(orders) - 1:,} permutations fitted")
        statistics = _fit_chunk(question, orders[first : first + size], at, workspace, first)
        # With one point for all, its place is that in the whole grid.
        n = len(statistics["place"])
        yield statistics if chosen is None else statistics | {"place": np.repeat(chosen, n, axis=0)}
        first += n  # chunks of an earlier run may have another size


def _fit_chunk(question: Question, orders: Index, at: Index | None, workspace: Workspace, first: int) -> Statistics:
    """Statistics of some permutations, at the places `at` (parameter, task) in the grid; at the best scores if None."""
    file = workspace.path / f"outcome-permutations-{first}.npz"
    if (kept := kept_arrays(file)) is not None:
        return kept
    part = workspace.part(str(first))
    permuted = dict(enumerate(question.relabel(order) for order in orders))
    answers = run_blocks(question.K, {k: of_order.plan_fits() for k, of_order in permuted.items()}, part)
    rows = [_statistics(GridFits.of(of_order, answers[k]), at) for k, of_order in permuted.items()]
    statistics = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    statistics["n_passes"] = np.array([answers[0].tally.n_passes])
    save_arrays(file, statistics, synced=True)
    shutil.rmtree(part.path)
    return statistics


def _statistics(fits: GridFits, at: Index | None) -> dict[str, Array]:
    """Score (task,), shares of the weight (task, kernel), place in the grid (parameter, task), largest gap.

    And whether the score is approximate, (task,): exact rules of all permutations would take a factor for each.
    """
    question = fits.question
    sizes, dim, tasks = shape(question.grid), question.targets.dim, np.arange(question.n_tasks)
    ((scores, _),) = fits.scores()
    mean, error = mean_and_error(scores.swapaxes(1, 2))
    if at is None:
        of_grid = sizes if dim is None else (*sizes, len(tasks))
        names = question.task_names
        at = choose_each(
            mean.reshape(of_grid), error.reshape(of_grid), question.grid, chooser=lambda t: f"{dim} {names[t[0]]!r}"
        ).reshape(len(sizes), -1)
    chosen = np.ravel_multi_index(tuple(at), sizes)
    weight, approximate = fits.solved["weights"][chosen, :, tasks], fits.approximate
    return {
        "score": mean[chosen, tasks],
        # All weights are zero where every variance component is on the boundary.
        "share": weight_shares(weight, -1).mean(axis=1),
        "place": at,
        "gap": np.nan_to_num(fits.solved["gap"][chosen, :, tasks]).max(initial=0.0),
        "approximate": tasks < 0 if approximate is None else approximate[chosen, :, tasks].any(axis=1),
    }


def _to_dataset(question: Question, orders: Index, statistics: Statistics) -> xr.Dataset:
    score, share = statistics["score"], statistics["share"]
    variables: dict[str, Any] = {
        "score": question.variable(("task",), score[0]),
        "null_score": question.variable(("permutation", "task"), score[1:]),
        "weight_share": question.variable(("task", "kernel"), share[0]),
        "null_weight_share": question.variable(("permutation", "task", "kernel"), share[1:]),
        "order": (("permutation", "sample"), orders[1:].astype(np.int32)),
    }
    for k, (name, values) in enumerate(question.grid.items()):
        places = statistics["place"][:, k]
        for of_which, dims, at in ((name, ("task",), places[0]), (f"null_{name}", ("permutation", "task"), places[1:])):
            kept, at = question.variable(dims, at)
            variables[of_which] = as_variable(of_which, kept, [values[int(place)] for place in at.ravel()], at.shape)
    coords = {"permutation": np.arange(1, len(orders)), "kernel": list(question.K.names), **question.task_coords()}
    attrs = {
        **question.attrs,
        "parameters_searched": json.dumps(list(question.grid)),
        "n_points": math.prod(shape(question.grid)),
        "n_folds": len(question.folds),
        "largest_gap": float(statistics["gap"].max()),
        "n_approximate": int(statistics["approximate"].sum()),
    }
    return with_p_values(xr.Dataset(variables, coords, attrs))
