"""Baselines of a search: the plain sum of the kernels, a support vector machine on it, and the best single kernel.

The sum and single kernels are further fits in the passes of the search; the SVM is a separate plan after it. Labels by
the largest score, in place of class means, are a second reading of the same fits.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from itertools import chain
from typing import Any, Literal

import numpy as np
import pandas as pd
import xarray as xr
from dask.base import tokenize
from sklearn.base import clone

import dmkl
from dmkl import settings
from dmkl.arrays import Float, Mask, weight_shares
from dmkl.description import ends_text, number, with_error
from dmkl.errors import IndefiniteKernelError, InputError, MemoryBudgetError, refuse
from dmkl.files.arrays import kept_arrays, save_arrays
from dmkl.learners.engine import run
from dmkl.learners.learner import KernelClassifier
from dmkl.learners.plan import Answers, Fit
from dmkl.passes.execute import check_memory, machine
from dmkl.progress import Tally
from dmkl.searching.fits import SOLVED, GridFits, Question, run_blocks, with_exact_choices
from dmkl.searching.grid import Choice, Rule, best_index, joint_choices, mean_and_margin, mean_over_folds, points
from dmkl.searching.paired import row_test
from dmkl.searching.scoring import limits
from dmkl.searching.texts import point_text
from dmkl.solvers.workspace import Workspace
from dmkl.store.saved import task_dim
from dmkl.variables import describe

Baselines = Literal["sum", "rules", "all", "none"]

SUM, SVM, ALONE, COVARIATES = "sum", "svm", "alone", "covariates"
LARGEST = {"": "largest_own", SUM: "largest_sum", SVM: "largest_svm"}
"""Prefixes of the names of scores; those of the largest score by the prefix of the same fits."""
TITLES = {
    LARGEST[""]: "same learner by the largest score",
    SUM: "plain sum of the kernels",
    LARGEST[SUM]: "plain sum of the kernels by the largest score",
    SVM: "SVM on the sum of kernels",
    LARGEST[SVM]: "SVM on the sum of kernels by the largest score",
    ALONE: "best single kernel",
    COVARIATES: "covariates alone",
}

COSTS = (1.0, 4.0, 16.0)
"""C of the support vector machine on the sum, in units of the inverse mean diagonal of the sum."""

FEW, TRIED = 10, 5
"""Up to `FEW` kernels are all tried alone, in the passes of the search; of more kernels the `TRIED` of the largest
weights are tried after it, in its subspaces, where each needs few passes, but directions of its own."""


def fit_with_baselines(
    question: Question, choice: Choice, rule: Rule, which: Baselines, kept: dict[str, GridFits] | None = None
) -> tuple[GridFits, xr.Dataset, dict[str, xr.Dataset]]:
    """Fit a grid on every fold, together with the baselines of `dmkl.search`.

    Fits of the sum and of single kernels come after those of the search: a state continues with more or fewer of them.

    The first result has the costs of everything, the second the scores of the baselines, NaN for kernels not tried; the
    third are the predictions of the test rows by each baseline at its choice, by prefix. `kept` is for "none", as in
    `fit_with_sum`.
    """
    choosing = joint_choices(choice, len(question.folds))
    if which == "none":
        return fit_with_sum(question, choosing, rule, which, kept)[0], xr.Dataset(), {}
    plain = _plain_question(question, which)
    alone = which == "all" and plain is not None
    later = alone and len(question.K) > FEW
    with question.open_workspace(continued=later) as workspace:
        answers = _fit_blocks(question, plain, workspace, range(len(question.K) if alone and not later else 0))
        tally = answers["search"].tally
        n_passes, candidates = tally.n_passes, np.ones((len(question.folds), len(question.K)), dtype=bool)
        if later:
            candidates = _largest_weights(GridFits.of(question, answers["search"]), choice)
            before = tally.phases
            answers = _fit_blocks(question, plain, workspace, np.flatnonzero(candidates.any(axis=0)).tolist())
            tally = answers["search"].tally
            tally.phases = {name: seconds + before[name] for name, seconds in tally.phases.items()}
        machines, left_out = _fit_machines(question, workspace, answers["search"], which)
        n_passes = tally.n_passes - n_passes
        fits = with_exact_choices(_questions(question, plain, answers), answers, choosing, rule, workspace)
    search = fits["search"]
    baselines = {SUM: fits["sum"]} if "sum" in fits else {}
    baselines = _with_largest(search, baselines | machines, which)
    results = [prefixed(prefix, fits.to_dataset(choice)) for prefix, fits in baselines.items()]
    if alone:
        assert plain is not None
        of_kernels = {key: block for key, block in fits.items() if isinstance(key, int)}
        of_alone = []
        for kernel, of_kernel in of_kernels.items():
            scores = prefixed(ALONE, of_kernel.to_dataset(choice))
            of_alone.append(scores.where(xr.DataArray(candidates[:, kernel], dims="fold")))
        tried = xr.Variable("kernel", np.array(plain.K.names)[list(of_kernels)])
        joined = xr.concat(of_alone, tried, combine_attrs="drop")
        results.append(joined.reindex(kernel=list(plain.K.names)))
        baselines[ALONE] = _alone_fits(plain, of_kernels)
    of_covariates, parts = question.covariates_alone(question.folds)
    results.append(prefixed(COVARIATES, xr.Dataset(of_covariates)))
    attrs = {"n_baseline_passes": n_passes} | ({"svm_left_out": left_out} if left_out else {})
    scores = xr.merge(results, combine_attrs="drop").assign_attrs(attrs)
    by, predictions = ("fold", *question.task_coords())[choice == "joint" :], {COVARIATES: question.predictions(parts)}
    for prefix, of_baseline in baselines.items() if any(len(fold.test) for fold in question.folds) else ():
        asked = of_baseline.question
        asked = replace(asked, grid={name: values for name, values in asked.grid.items() if name != "kernel"})
        with suppress(InputError):  # of no point that can be chosen
            predictions[prefix] = asked.predictions(of_baseline.parts(_chosen_point(scores, prefix, rule, by)[1]))
    return search, scores, predictions


def _with_largest(search: GridFits, baselines: dict[str, GridFits], which: Baselines) -> dict[str, GridFits]:
    """The baselines by prefix; with "rules" also the same fits, and those of the search, by the largest score."""
    by_largest = {}
    for prefix, fits in ({"": search} | baselines if which == "rules" else {}).items():
        estimator = clone(fits.question.estimator).set_params(decision="largest")
        by_largest[LARGEST[prefix]] = _by_largest(fits, replace(fits.question, estimator=estimator))
    return baselines | by_largest


def _by_largest(fits: GridFits, question: Question) -> GridFits:
    """The same fits as answers to a question in which the largest score decides; no further pass."""
    decided: list[Sequence[Float]] = [
        [model.decisions_of(scores) for model, scores in zip(question.models, of_fold, strict=True)]
        for of_fold in fits.decisions
    ]
    tally = copy(fits.tally)
    tally.n_passes = 0.0
    return replace(fits, question=question, decided=decided, approximate=None, tally=tally)


def fit_with_sum(
    question: Question,
    choosing: Sequence[slice],
    rule: Rule,
    which: Baselines,
    kept: dict[str, GridFits] | None = None,
) -> tuple[GridFits, dict[str, GridFits]]:
    """Fit a grid on every fold, and in the same passes the sum of all kernels with weights one, unless "none".

    Each of the slices `choosing` are folds with a joint choice. Returns the baselines by prefix too: no sum if the
    learner has none. If the grid has no parameter of the sum, the sum has the λ and the C of the learner.

    `kept` are fits of other questions on the same folds, to which those in which class means decide are added. A
    question that differs by the rule alone, the largest score, reads them again.
    """
    parameters = question.estimator.get_params(deep=False) | {"decision": None}
    key = tokenize(type(question.estimator), parameters, question.grid, question.chain_lams) if kept is not None else ""
    if kept and key in kept and not question.by_means:
        return _by_largest(kept[key], question), {}
    plain = _plain_question(question, which)
    if plain is not None and not plain.grid:
        params = plain.estimator.get_params(deep=False)
        plain = replace(plain, grid={name: (params[name],) for name in ("lam", "C") if name in params})
    properties = {} if which == "none" else {"the baselines": "none" if plain is None else "sum"}
    with question.open_workspace(properties) as workspace:
        answers = _fit_blocks(question, plain, workspace)
        fits = with_exact_choices(_questions(question, plain, answers), answers, choosing, rule, workspace)
    search = fits["search"]
    if kept is not None and question.by_means:
        kept[key] = replace(search, decided=[])
    return search, _with_largest(search, {SUM: fits["sum"]} if "sum" in fits else {}, which)


def _questions(question: Question, plain: Question | None, answers: Mapping[Any, Answers]) -> dict[Any, Question]:
    """The question of each block of `_fit_blocks`."""
    return {key: question if plain is None or key == "search" else plain for key in answers}


def _plain_question(question: Question, which: Baselines) -> Question | None:
    """The question about the sum of all kernels; None if the learner has no such sum, or for "none"."""
    asked = question.estimator
    means = isinstance(asked, KernelClassifier) and asked._decides_by() == "means" and "decision" not in question.grid
    if which == "rules" and not means:
        refuse(
            "baselines='rules' compares class means of scores with the largest score, and "
            f"{type(asked).__name__} does not decide by class means; take a classifier with decision='means'"
        )
    if which == "rules" and question.probabilistic:
        refuse("baselines='rules' scores labels by the largest score too, which has no probabilities; take 'sum'")
    plain = None if which == "none" else asked._of_plain_sum(question.grid)
    return None if plain is None else replace(question, estimator=plain[0], grid=plain[1])


def _fit_blocks(
    question: Question, plain: Question | None, workspace: Workspace, alone: Sequence[int] = ()
) -> dict[Any, Answers]:
    """The answers of the search ("search"), of the sum ("sum") and of single kernels (by their positions)."""
    blocks: dict[Hashable, list[Fit]] = {"search": question.plan_fits()}
    if plain is None:
        return run_blocks(question.K, blocks, workspace)
    targets = [fit.targets for fit in blocks["search"][:: len(question.models)]]
    texts, needed = (
        [(type(model), model._parameter_texts(question.K.names)) for model in models]
        for models in (question.models, plain.models)
    )
    searched = all(text in texts for text in needed)  # the search has the sum, as at p = ∞
    if not searched:
        blocks["sum"] = plain.plan_fits(targets)
    blocks |= {kernel: plain.plan_fits(targets, np.array([kernel])) for kernel in alone}
    answers = run_blocks(question.K, blocks, workspace)
    if searched:
        fits, places = answers["search"].fits, [texts.index(text) for text in needed]
        of_sum = [fits[first + place] for first in range(0, len(fits), len(texts)) for place in places]
        answers["sum"] = replace(answers["search"], fits=of_sum)
    return answers


def _largest_weights(search: GridFits, choice: Choice) -> Mask:
    """Which kernels are tried alone, (fold, kernel): those with the largest shares of the weight at the smallest p.

    Sparse weights indicate good single kernels. They depend on training rows only, and with separate choices each fold
    has its own kernels, so that no row that is tested on has an influence here.
    """
    p = np.array([point.get("p", 1.0) for point in points(search.question.grid)], dtype=np.float64)
    weights = search.solved["weights"][(p == p.min()) & search.question.fitted]
    shares = weight_shares(weights, -1).mean(axis=(0, 2))
    if choice == "joint":
        shares = np.broadcast_to(shares.mean(axis=0), shares.shape)
    places = np.argsort(-shares, axis=1, kind="stable")[:, :TRIED]
    candidates = np.zeros(shares.shape, dtype=bool)
    np.put_along_axis(candidates, places, True, axis=1)
    return candidates


def _alone_fits(plain: Question, fits: Mapping[int, GridFits]) -> GridFits:
    """The fits of all kernels as those of a grid over kernel and the parameters; empty for kernels not tried."""
    nothing = [[np.empty(0)] * len(plain.models)] * len(plain.folds)

    def joined(name: str) -> list[Any]:
        of_kernels = [getattr(fits[k], name) if k in fits else nothing for k in range(len(plain.K))]
        return [list(chain.from_iterable(of_fold)) for of_fold in zip(*of_kernels, strict=True)]

    question = replace(plain, grid={"kernel": tuple(plain.K.names), **plain.grid})
    decisions, decided = map(joined, ("decisions", "decided"))
    return replace(next(iter(fits.values())), question=question, decisions=decisions, decided=decided)


def prefixed(prefix: str, scores: xr.Dataset) -> xr.Dataset:
    """Scores, gaps and objectives with a prefix before their names."""
    kinds = ("score", "test_score", "gap", "objective", "approximate")
    kept = [str(name) for name in scores.data_vars if str(name).startswith(kinds)]
    return scores[kept].rename({name: f"{prefix}_{name}" for name in kept})


def _fit_machines(
    question: Question, workspace: Workspace, answers: Answers, which: Baselines
) -> tuple[dict[str, GridFits], str]:
    """The SVM on the sum, by its prefix, or the reason why there is none; `answers` get its costs."""
    m, n = max(len(fold.train) for fold in question.folds), len(question.K)
    # The mean diagonal of a kernel of unit trace is 1/m; after other steps it is near one.
    diagonal = n / m if "trace" in question.estimator._steps() else float(n)
    costs = tuple(float(f"{cost / diagonal:.3g}") for cost in COSTS)
    asked = question.estimator
    if not (asked.traits.leaves_one_out and asked.traits.plain_sum):  # others are machines, or sums
        return {}, ""
    shared = {name: getattr(asked, name) for name in ("class_weight", "decision", "steps")}
    learner = dmkl.MKSVM(np.inf, costs[0], **shared)
    by_means = which == "rules" or question.probabilistic
    if by_means:
        learner.set_params(decision="means")
    of_machines = replace(question, estimator=learner, grid={"C": costs})
    n_columns = 1 if question.targets.kind == "binary" else max(question.n_tasks, len(question.targets.classes))
    n_machines, allowed = len(COSTS) * len(question.folds) * n_columns, machine().task_bytes
    try:
        # Kernels that fit in memory are read once, whatever the number of machines. Otherwise machines take two passes
        # for every `settings.block_width` of them, and keep a sum of the kernels.
        if 8 * (n + 4) * m**2 > allowed:
            check_memory("a support vector machine on the sum", {"matrices": 32 * m**2}, allowed, "")
            if n_machines > settings.block_width():
                refuse(
                    f"its {n_machines:,} machines would take more than two passes over kernels that do not fit in "
                    "memory"
                )
        machines = _kept_fits(of_machines, workspace.part(LARGEST[SVM] if by_means else SVM))
    except (InputError, IndefiniteKernelError, MemoryBudgetError) as error:  # the results of the search remain
        return {}, str(error)
    answers.tally.include(machines.tally)
    return {SVM: machines}, ""


def _kept_fits(question: Question, workspace: Workspace) -> GridFits:
    """Fit a grid on every fold, and keep its scores, which solvers of machines do not; no pass if they are there."""
    file = workspace.path / "scores-all.npz"
    if (kept := kept_arrays(file)) is not None:
        folds, of_points = range(len(question.folds)), range(len(question.models))
        return GridFits(
            question,
            {name: kept[name] for name in SOLVED},
            [[kept[f"decision-{f}-{k}"] for k in of_points] for f in folds],
            [list(kept[f"decided-{f}"]) for f in folds],
            [question.targets_of(fold.train) for fold in question.folds],
            Tally(float(kept["n_passes"])),
            "own",
        )
    fits = GridFits.of(question, run(question.K, question.plan_fits(), workspace, duals=False))
    if not workspace.temporary:
        arrays = fits.solved | {"n_passes": np.asarray(fits.tally.n_passes)}
        for f, of_fold in enumerate(fits.decisions):
            arrays |= {f"decision-{f}-{k}": decision for k, decision in enumerate(of_fold)}
            arrays[f"decided-{f}"] = np.stack(fits.decided[f])
        save_arrays(file, arrays, synced=True)
    return fits


def choose_baselines(scores: xr.Dataset, rule: Rule, by: Sequence[str]) -> xr.Dataset | None:
    """The chosen point of each baseline; None if there are no baselines. See `SearchResult.baselines`."""
    by_title = {}
    for prefix, title in TITLES.items():
        if f"{prefix}_score" not in scores or not np.isfinite(scores[f"{prefix}_score"]).any():
            continue
        baseline, index = _chosen_point(scores, prefix, rule, by)
        chosen = baseline.isel(index).drop_vars("approximate", errors="ignore")
        chosen = chosen.reset_coords([name for name in index if name in baseline.coords])
        kernel = chosen["kernel"].drop_attrs() if "kernel" in index else xr.DataArray("")
        best_kernel = kernel.drop_vars("kernel", errors="ignore")
        by_title[title] = chosen.drop_vars("kernel", errors="ignore").assign(best_kernel=best_kernel)
    return concat_baselines(by_title)


def concat_baselines(by_title: Mapping[str, xr.Dataset]) -> xr.Dataset | None:
    """The data of baselines over baseline; None if there are none."""
    if not by_title:
        return None
    titles = xr.Variable("baseline", np.array(list(by_title), dtype=str))
    return describe(xr.concat(list(by_title.values()), titles, data_vars="all").drop_attrs(deep=False))


def _chosen_point(
    scores: xr.Dataset, prefix: str, rule: Rule, by: Sequence[str]
) -> tuple[xr.Dataset, dict[str, xr.DataArray]]:
    """The data of a baseline, and the positions of its chosen point by parameter."""
    names = [str(name) for name in scores.data_vars if str(name).startswith(f"{prefix}_")]
    # In an order that does not depend on how the data were read.
    kinds = ("_test_score", "_score", "_gap", "_objective", "_approximate", "")
    names.sort(key=lambda name: (next(k for k, kind in enumerate(kinds) if kind in name), name))
    baseline = scores[names].rename({name: name.removeprefix(f"{prefix}_") for name in names})
    baseline = baseline.assign({name: values.drop_attrs(deep=False) for name, values in baseline.data_vars.items()})
    parameters = [str(name) for name in baseline["score"].dims if name not in ("fold", task_dim(scores))]
    mean, error = mean_over_folds(baseline["score"])
    if "fold" in by:
        mean, error = baseline["score"], xr.full_like(baseline["score"], np.nan)
    with_means = baseline.assign(mean_score=mean, standard_error=error)
    return baseline, best_index(with_means, parameters, by, rule) if parameters else {}


def comparison(chosen: xr.Dataset, baselines: xr.Dataset | None, names: Sequence[str]) -> pd.DataFrame:
    """The choice and the baselines, with paired differences over the folds; see `GridResult.comparison`."""
    rows = "test" if "test_score" in chosen else "validation"
    score = "test_score" if rows == "test" else "score"
    tasks = [dim for dim in chosen[score].dims if dim != "fold"]
    own = chosen[score].mean(tasks)
    lines: list[tuple[Any, ...]] = [(chosen.attrs["estimator"], "", *mean_over_folds(own), np.nan, np.nan)]
    parts = [] if baselines is None else [baselines.isel(baseline=k) for k in range(baselines.sizes["baseline"])]
    for baseline in parts:
        params: dict[str, Any] = {}  # and the kernel, if folds and tasks agree on them
        for name in ("best_kernel", *dict.fromkeys([*names, "C"])):
            values = baseline[name].values.ravel().tolist() if name in baseline else []
            if values and values[0] != "" and all(value == values[0] for value in values):
                params["kernel" if name == "best_kernel" else name] = values[0]
        # Of several tasks the mean of the differences, of those tasks that both have a score of.
        difference = mean_and_margin((chosen[score] - baseline[score]).mean(tasks), chosen, rows)
        mean = mean_over_folds(baseline[score].mean(tasks))
        lines.append((str(baseline["baseline"].values), point_text(params), *mean, *difference))
    columns = ["model", "parameters", "score", "standard_error", "difference", "margin"]
    frame = pd.DataFrame(lines, columns=columns).astype(dict.fromkeys(columns[2:], float))
    scoring = chosen.attrs["scoring"]
    titles, p_values = zip(("", np.nan), *(row_test(baseline, scoring) for baseline in parts), strict=True)
    frame = frame.assign(test=titles, p_value=p_values)
    frame.attrs |= {"rows": rows, "limits": limits(scoring, of_difference=True)}
    return frame


def compare(compared: pd.DataFrame) -> list[str]:
    """A sentence for each baseline of a `comparison`: its score, and whether the choice has a better one."""
    lines = []
    for row in compared[1:].to_dict("records"):
        point = f" ({row['parameters']})" if row["parameters"] else ""
        value = with_error(row["score"], row["standard_error"])
        of_difference = verdict(row["difference"], row["margin"], compared.attrs["limits"])
        title = f"{row['model'][:1].upper()}{row['model'][1:]}"
        of_rows = f"; these models on these rows: {row['test']} p = {row['p_value']:.2g}" if row["test"] else ""
        lines.append(f"{title}{point}: {value} in {compared.attrs['rows']}; {of_difference}{of_rows}")
    return lines


def verdict(difference: float, margin: float, limits: tuple[float, float], of: str = "the choice") -> str:
    """A paired difference over folds in words, `of` one minus another; `margin` is half the width of its interval."""
    if not np.isfinite(difference):
        return "no difference is known"
    if abs(difference) <= 1e-12:
        return f"it has the same score as {of}"
    lower, upper = abs(difference) - margin, abs(difference) + margin
    cut = lower < limits[0] or upper > limits[1]
    interval = ends_text(lower, upper, limits) if cut else f"±{margin:.2g}"
    by = number(abs(difference)) + (f" (95 %: {interval})" if np.isfinite(margin) else "")
    chance = np.isfinite(margin) and not 0 < margin < abs(difference)
    note = "; between procedures a difference of this size may be chance" if chance else ""
    if difference < 0:
        return f"it scores higher than {of} by {by}, paired over folds{note}"
    return f"{of} scores higher by {by}, paired over folds{note}"
