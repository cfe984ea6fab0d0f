"""`dmkl.importance`: scores without each kernel and with it alone, and Shapley values, in the passes of a search."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr
from sklearn.base import clone

from dmkl.arrays import Index, check_choice
from dmkl.description import Column, Description, Figure, Key, Table, count, short_names, with_interval
from dmkl.errors import refuse
from dmkl.inference import figures
from dmkl.kernelset import Kernels
from dmkl.learners.checks import check_count, check_is_learner
from dmkl.learners.learner import KernelLearner
from dmkl.passes.blas import one_blas_thread
from dmkl.searching.fits import Arguments, GridFits, Question, make_question, run_blocks, with_exact_choices
from dmkl.searching.folds import make_folds
from dmkl.searching.grid import Choice, Rule, as_choice, chance_notes, joint_choices, mean_and_margin, mean_over_folds
from dmkl.searching.scoring import limits
from dmkl.searching.search import SearchResult, chance_of_search, held_out_parts, shared_value
from dmkl.searching.texts import cost_and_proof
from dmkl.solvers.workspace import Workspace
from dmkl.store.saved import Result, task_dim

Choose = Literal["held", "anew"]
"""Fits with fewer kernels have the parameters of the search, or choose their parameters."""
Subset = tuple[int, ...]
"""Positions of the kernels that may have weight, ascending."""
_MOST_NAMES = 3  # Kernel groups that a summary names.


class Importance(Result):
    """The contributions of kernels, and of named groups of kernels, to a score.

    `dmkl.importance` and `dmkl.load` make it. A source is a single kernel or a group of kernels.

    Parameters
    ----------
    data
        A Dataset:

        ================================== ======================== ===================================================
        score[_NAME]                       fold[, task]             of all kernels, by the first scorer and others
        score_without[_NAME]               source, fold[, task]     refitted without the source
        score_alone[_NAME]                 source, fold[, task]     refitted with the source alone
        loss[_NAME]                        source[, task]           mean over folds of score − score_without
        loss_standard_error[_NAME]         source[, task]           of that mean: s/√n of the differences within folds
        member                             source, kernel           whether the source contains the kernel
        weight, weight_without             [source,] fold, kernel[, task] β
        objective, gap, status[_…]         [source,] fold[, task]   of the three fits, as in `SearchResult.scores`
        name of a parameter                [fold][, task]           its chosen value; with _without and _alone over
                                                                    source if it was chosen anew
        shapley                            player[, task]           mean over orders and folds of the gain by a player
        shapley_standard_error             player[, task]           of the mean over the sampled orders
        shapley_by_fold                    player, fold[, task]     mean over orders
        part, sample_group                 [fold,] sample           the folds, as in `SearchResult.scores`
        chance_p_value, chance_score …     [task]                   of all kernels, as in `SearchResult.scores`
        ================================== ======================== ===================================================

        A player is a source that joins others; the Shapley values of all players add up to the score of all kernels
        less `score_of_nothing` (fold[, task]).
        Attributes: estimator, parameters (JSON), scoring, measures (JSON), kind, choose ("held" or "anew"), choice
        ("joint" or "fold"), rows ("validation" or "test"), parameters_searched (JSON), n_fits, n_passes,
        n_search_passes (the passes of the search among them; 0 if everything was one plan), n_orders,
        random_state, seconds, solver.

    Notes
    -----
    Standard errors s/√n assume independent folds; folds that share training rows are not. `table`, `summary` and `plot`
    have half the width of 95 % intervals instead, t · s · √(1/n + n_test/n_train), with Student's t of n − 1 degrees of
    freedom and the correction of Nadeau and Bengio (`dmkl.searching.grid.mean_and_margin` has the coverage of both).
    """

    FORMAT, TITLE = "dmkl-importance", "importance"
    NEEDED = ("score", "score_without", "score_alone", "loss", "loss_standard_error", "member", "weight", "gap")
    MEANINGS: ClassVar = {
        "score": "score of all kernels",
        "score_of_nothing": "score of the same decision for all rows",
        "loss": "mean loss in score without the source",
        "loss_standard_error": "standard error of the mean loss, paired over folds",
        "member": "whether the source contains the kernel",
        "player": "a kernel or group of kernels that joins others",
        "source": "a kernel, or a named group of kernels",
        "shapley": "Shapley value: mean over orders of the gain when the player joins",
        "shapley_standard_error": "standard error of the Shapley value, by the sampled orders",
        "shapley_by_fold": "Shapley value in the fold",
    }

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the kernels, then of the groups."""
        return tuple(map(str, self.data["source"].values))

    @property
    def measures(self) -> tuple[str, ...]:
        """Names of the scorers; the first decides."""
        return tuple(json.loads(self.data.attrs["measures"]))

    def table(self) -> pd.DataFrame:
        """The sources, the largest loss first; the tasks of a source are together.

        source, task (if there are several), loss, loss_standard_error and loss_margin, half the width of its 95 %
        interval; alone, the mean score of the source alone, and alone_margin; shapley and shapley_standard_error if
        computed; gap, the largest of its fits.
        """
        data, dim = self.data, task_dim(self.data)
        _, margin = self._mean_and_margin(data["score"] - data["score_without"])
        alone, alone_margin = self._mean_and_margin(data["score_alone"])
        values = data[["loss", "loss_standard_error"]].assign(
            loss_margin=margin.round(12), alone=alone, alone_margin=alone_margin
        )
        if "shapley" in data:
            of_players = data[["shapley", "shapley_standard_error"]].rename(player="source")
            values = values.assign(of_players.reindex(source=data["source"].values))
        gaps = xr.concat([data["gap_without"], data["gap_alone"]], "fit")
        values = values.assign(gap=gaps.max(["fit", "fold"]))
        total = data["loss"] if dim is None else data["loss"].mean(dim)
        order = np.argsort(-total.values, kind="stable")
        by = ["source"] if dim is None else ["source", dim]
        frame = values.isel(source=order).to_dataframe(dim_order=by).reset_index()
        return frame[[*by, *values.data_vars]]

    def describe(self) -> Description:
        """The question, the largest losses, the costs; see `Result.describe`."""
        data, attrs = self.data, self.data.attrs
        n_kernels = data.sizes["kernel"]
        n_groups = data.sizes["source"] - n_kernels
        sources = count(n_kernels, "kernel") + (f" and {count(n_groups, 'group')}" if n_groups else "")
        names = " and ".join(json.loads(attrs["parameters_searched"]))
        by = "of all folds together" if attrs["choice"] == "joint" else "of each fold"
        anew = f"{names} chosen anew for each set of kernels, by the choice {by}"
        chosen = anew if attrs["choose"] == "anew" else f"{names} held at the choice {by}"
        depends = "no choice depends on" if attrs["rows"] == "test" else "the choice depends on"
        mean, margin = map(float, self._mean_and_margin(self._over_tasks(data["score"])))
        score = with_interval(mean, margin, limits(attrs["scoring"]))
        of_score = f"{attrs['scoring']} {score} with all kernels, on {attrs['rows']} rows, which {depends}"
        loss = self._mean_and_margin(self._over_tasks(data["score"] - data["score_without"]))
        largest_of = partial(_largest, short_names(data["kernel"].values))
        losses = [f"Lost without: {largest_of(*loss, limits(attrs['scoring'], of_difference=True))}"]
        alone = self._mean_and_margin(self._over_tasks(data["score_alone"]))
        losses.append(f"Alone: {largest_of(*alone, limits(attrs['scoring']))}")
        interval = (
            "± is half the width of a 95 % interval, of procedures: Student's t, corrected for training rows in "
            "common; its ends where the limits of the score cut it off"
        )
        if "shapley" in data:
            shapley, error = (self._over_tasks(data[name]) for name in ("shapley", "shapley_standard_error"))
            largest = largest_of(shapley.rename(player="source"), error.rename(player="source"))
            losses.append(f"Shapley values by {count(attrs['n_orders'], 'order')}, ± their standard error: {largest}")
        gap = max(float(data[name].max()) for name in ("gap", "gap_without", "gap_alone"))
        of_search = f". The search took {attrs['n_search_passes']:g} of the passes" if attrs["n_search_passes"] else ""
        costs = cost_and_proof(self.n_passes_, attrs["seconds"], gap)
        sentences: dict[Key, list[str]] = {
            "scores": [of_score],
            "chance": chance_notes(data["score"], data, attrs["rows"]),
            "losses": losses,
            "notes": [interval] if data.sizes["fold"] > 2 else [],
            "costs": [f"{count(attrs['n_fits'], 'fit')} in {costs}{of_search}"],
        }
        title = f"Importance of {sources} to {attrs['estimator']}"
        scope = f"{count(data.sizes['fold'], 'fold')}, {chosen}"
        facts = {name: attrs[name] for name in ("rows", "choose", "choice")}
        pictures = {"Losses and scores alone": Figure(scope, self.plot)}
        return Description(title, scope, sentences, lambda: facts, {"sources": self._sources_table}, pictures)

    def _sources_table(self) -> Table:
        frame, dim, scoring = self.table(), task_dim(self.data), str(self.data.attrs["scoring"])
        columns = [
            Column("source", form="kernel"),
            *([] if dim is None else [Column(dim)]),
            Column("loss", "loss without", error="loss_margin", limits=limits(scoring, of_difference=True)),
            Column("alone", error="alone_margin", limits=limits(scoring)),
            *([Column("shapley", error="shapley_standard_error")] if "shapley" in frame else []),
        ]
        return Table(frame, columns, "Losses and scores alone", kernels=self.data["kernel"].values)

    def _mean_and_margin(self, values: xr.DataArray) -> tuple[xr.DataArray, xr.DataArray]:
        return mean_and_margin(values, self.data, str(self.data.attrs.get("rows", "validation")))

    def _over_tasks(self, values: xr.DataArray) -> xr.DataArray:
        dim = task_dim(self.data)
        return values if dim is None else values.mean(dim)

    plot = figures.plot_importance


def _largest(
    short: Mapping[str, str], mean: xr.DataArray, error: xr.DataArray, ends: tuple[float, float] = (-np.inf, np.inf)
) -> str:
    """The sources with the largest means, by their labels, with their errors, as intervals between `ends`."""
    order = np.argsort(-np.nan_to_num(mean.values, nan=-np.inf), kind="stable")
    names, means, errors = mean["source"].values, mean.values, error.values
    labels = [short.get(name, name) for name in names]
    largest = [f"{labels[k]} {with_interval(means[k], errors[k], ends)}" for k in order[:_MOST_NAMES]]
    return f"{', '.join(largest)}{' …' if len(order) > _MOST_NAMES else ''}"


@one_blas_thread
def importance(
    estimator: KernelLearner,
    K: Kernels,
    y: npt.ArrayLike | None = None,
    grid: Mapping[str, Any] | None = None,
    *,
    cv: Any = None,
    kernel_groups: Mapping[str, Sequence[str]] | None = None,
    choose: Choose = "held",
    shapley: int = 0,
    random_state: int = 0,
    scoring: Any = None,
    groups: npt.ArrayLike | None = None,
    unknown: Any = None,
    rule: Rule = "best",
    choice: Choice | None = None,
    state: str | Path | None = None,
) -> Importance:
    """Estimate the contribution of each kernel, and of each named group of kernels, to the score.

    A grid is searched by cross-validation; then every source, a single kernel or a group, is left out (β_j = 0 for its
    kernels) and tried alone, on the same folds. The loss is the score of all kernels less that without the source, in
    each fold, and its mean. Fits without a kernel are further points in the subspaces of the search: they take few more
    passes, or none, and have the same certificates.

    Parameters
    ----------
    estimator, K, y, grid, cv, scoring, groups, unknown
        As in `dmkl.search`; `groups` are groups of samples that no fold may split.
    kernel_groups
        Names of kernels by the name of their group, such as all bandwidths of one feature. Similar kernels replace each
        other, and little is lost without one of them: group them.
    choose
        "held": all fits have the parameters that the search chooses for all kernels, so that losses depend on the
        kernels only. "anew": parameters are chosen for each set of kernels, as with these kernels only; the plan is
        larger by the number of points in the grid.
    shapley
        Number of sampled orders for Shapley values of the groups, and of the kernels in none; 0 for none. They divide
        the whole score among sources that replace each other. With n players each order takes n − 2 fits of each fold.
    random_state
        Seed of the orders.
    rule, choice, state
        As in `dmkl.search`; with choice="fold" each fold holds its own choice.

    Returns
    -------
    Importance
        Scores, losses with standard errors, weights and gaps as labeled data. Test rows, which no choice depends on,
        are scored if folds have any, otherwise validation rows.

    Raises
    ------
    InputError
        If an argument breaks a rule, there are fewer than two kernels, the learner has no kernel weights, or `state`
        has other work.
    IndefiniteKernelError, WorkerLostError
        As in `dmkl.search`.

    Notes
    -----
    Castro, Gómez, Tejada: Polynomial calculation of the Shapley value based on sampling. Computers & Operations
    Research 36 (2009), Section 3: the mean over orders π of v(those before i in π and i) − v(those before i), where v
    is the score. Without any kernel it is that of one decision for all rows, by the shares of the classes in training
    or the mean target.

    Examples
    --------
    >>> import dmkl
    >>> K = dmkl.open("kernels.zarr")
    >>> result = dmkl.importance(dmkl.MKFDA(), K, grid={"p": [1, 2], "lam": [0.01, 0.1]}, cv=3)
    >>> result.table().head(3)  # doctest: +SKIP
    """
    started = time.monotonic()
    check_choice("rule", rule, get_args(Rule))
    check_choice("choose", choose, get_args(Choose))
    check_count("shapley", shapley, least=0)
    check_count("random_state", random_state, least=0)
    check_is_learner(estimator, "importance")
    if not estimator.traits.takes_subsets:
        refuse(
            f"{type(estimator).__name__} does not weigh kernels, so that no kernel can be left out; take a learner "
            "that does, such as MKFDA or MKSVM"
        )
    arguments = Arguments(estimator, K, y, grid, scoring, groups, unknown, state)
    question, folds = make_question("importance", arguments, partial(make_folds, cv), refit=True)
    choice = as_choice(choice, folds, question.K.individuals)
    sources = as_kernel_groups(question.K.names, kernel_groups)
    every = tuple(range(len(question.K)))
    without = {name: tuple(k for k in every if k not in of) for name, of in sources.items()}
    players = _players(question.K.names, sources) if shapley else []
    orders = draw_orders(len(players), shapley, random_state)
    # The kernels of the players that have joined, after each player of every order.
    coalitions = [
        [tuple(sorted(k for place in order[: n + 1] for k in sources[players[place]])) for n in range(len(order))]
        for order in orders
    ]
    properties = {
        "the question": "importance",
        "the groups of kernels": json.dumps(sources),
        "choose": choose,
        "rule and choice": f"{rule}, {choice}",
        "shapley": f"{shapley} orders of seed {random_state}",
    }
    subsets = dict.fromkeys([*without.values(), *sources.values(), *chain.from_iterable(coalitions)])
    subsets.pop(every, None)  # the search itself
    with question.open_workspace(properties, continued=True) as workspace:
        results = _fit_subsets(question, rule, choice, [*subsets], workspace, anew=choose == "anew")
    how = {"choose": choose, "choice": choice, "random_state": random_state}
    options = {**how, "kernel_groups": kernel_groups, "shapley": shapley, "rule": rule}
    data = _to_dataset(question, results, sources, without, choose)
    data = question.with_folds(data, folds, **options)
    if shapley:
        data = data.assign(_shapley(question, results, players, orders, coalitions))
    return Importance(data.assign_attrs({**how, "n_orders": shapley, "seconds": time.monotonic() - started}))


def as_kernel_groups(names: Sequence[str], kernel_groups: Any) -> dict[str, Subset]:
    """The kernels of each source by its name: every kernel, then the groups; InputError for groups that are wrong."""
    if len(names) < 2:
        refuse(f"the importance of kernels needs two kernels at least, and there is {len(names)}; take a set of more")
    if kernel_groups is not None and not isinstance(kernel_groups, Mapping):
        refuse(f"kernel_groups must map names to names of kernels, as {{'shape': ['a', 'b']}}, got {kernel_groups!r}")
    place = {name: k for k, name in enumerate(names)}
    members: dict[str, Subset] = {name: (k,) for name, k in place.items()}
    for group, of_group in (kernel_groups or {}).items():
        if not isinstance(group, str) or not group or group in place:
            why = "the name of a kernel" if isinstance(group, str) and group else "no name"
            refuse(f"a group of kernels needs a name of its own, and {group!r} is {why}; choose another")
        if isinstance(of_group, str) or not all(isinstance(name, str) for name in of_group):
            refuse(f"the group {group!r} must be a list of names of kernels, got {of_group!r}")
        if unknown := [name for name in of_group if name not in place]:
            kernels = ", ".join(list(place)[:10])
            refuse(f"the group {group!r} names {unknown[0]!r}, which is no kernel; those are {kernels}")
        members[group] = tuple(sorted({place[name] for name in of_group}))
        if len(members[group]) in (0, len(place)):
            which = "all kernels, and nothing is left without it" if members[group] else "no kernel"
            refuse(f"the group {group!r} has {which}; give it some of the {len(place)} kernels")
    return members


def _players(names: Sequence[str], sources: Mapping[str, Subset]) -> list[str]:
    """Names of the groups, and of the kernels in none; InputError if groups share a kernel."""
    groups = [name for name in sources if name not in names]
    grouped = [k for name in groups for k in sources[name]]
    shared = {k for k in grouped if grouped.count(k) > 1}
    if shared:
        refuse(
            f"Shapley values divide the score among groups that share no kernel, and {names[min(shared)]!r} is in "
            f"{' and '.join(repr(group) for group in groups if min(shared) in sources[group])}; leave it out "
            "of all but one, or take shapley=0"
        )
    return [*groups, *(name for k, name in enumerate(names) if k not in grouped)]


def draw_orders(n_players: int, n_orders: int, seed: int) -> Index:
    """Orders in which players join, (order, player), drawn uniformly and independently."""
    rng = np.random.default_rng(seed)
    return np.array([rng.permutation(n_players) for _ in range(n_orders)], dtype=np.int64).reshape(n_orders, n_players)


def _fit_subsets(
    question: Question, rule: Rule, choice: Choice, subsets: Sequence[Subset], workspace: Workspace, *, anew: bool
) -> dict[Subset, xr.Dataset]:
    """Search over all kernels and, in the same subspaces and folds, fit subsets of the kernels.

    If `anew`, subsets are fitted at every point, to choose anew, otherwise at the point that the search chooses. Their
    rows follow those of the search in one plan, which continues from the end of the search.

    The results of all kernels, the first, and of each subset are at their chosen points: score (of test rows, if there
    are any), gap, objective and status (fold[, task]), weight (fold, kernel[, task]), and the parameters. The first has
    the variables of `chance_of_search`, and costs as attributes: n_fits, n_passes, and n_search_passes, the passes of
    the search if it ends before the fits of subsets begin.
    """
    search, choosing = question.plan_fits(), joint_choices(choice, len(question.folds))
    targets, every = [fit.targets for fit in search[:: len(question.models)]], tuple(range(len(question.K)))
    cases = whole = [(question, list(range(len(targets))))]
    n_search_passes, results = 0.0, dict[Subset, xr.Dataset]()

    def chosen_of(case: Question, fits: GridFits) -> xr.Dataset:
        scores = fits.to_dataset(choice)
        chosen = SearchResult(scores, rule=rule).chosen if case.grid else scores
        tested = {f"test_score{end}": f"score{end}" for end in case.name_ends if "test_score" in chosen}
        named = chosen.drop_vars(tested.values()).rename(tested).transpose("fold", "kernel", ...)
        return xr.Dataset(named.data_vars, named.coords, named.attrs)  # no `ChosenPoint`, which prints as a table

    if not anew and len(question.models) > 1:
        answers = run_blocks(question.K, {"": search}, workspace)
        n_search_passes = answers[""].tally.n_passes
        fits = with_exact_choices({"": question}, answers, choosing, rule, workspace)
        cases = list(_held_cases(question, SearchResult(fits[""].to_dataset(choice), rule=rule)))
    cases_of = {every: whole} | dict.fromkeys(subsets, cases)
    blocks: dict[Any, Any] = {(every, 0): search}
    for subset in subsets:
        kernels = np.array(subset, dtype=np.int64)
        blocks |= {(subset, k): case.plan_fits(targets, kernels) for k, (case, _) in enumerate(cases)}
    by_block = run_blocks(question.K, blocks, workspace)
    questions = {(subset, k): cases_of[subset][k][0] for subset, k in by_block}
    of_blocks = with_exact_choices(questions, by_block, choosing, rule, workspace)
    for subset, of_subset in cases_of.items():
        parts = [chosen_of(case, of_blocks[subset, k]).isel(fold=folds) for k, (case, folds) in enumerate(of_subset)]
        joined = xr.concat(parts, "fold", data_vars="all") if len(parts) > 1 else parts[0]
        results[subset] = joined.sel(fold=[fold.name for fold in question.folds])
    searched = of_blocks[every, 0]
    of_folds = held_out_parts(searched, SearchResult(searched.to_dataset(choice), rule=rule))
    chance = chance_of_search(searched, of_folds, by_fold=choice == "fold")
    n_fits = sum(len(outcome.outcomes) for answers in by_block.values() for outcome in answers.fits)
    costs = {"n_fits": n_fits, "n_passes": by_block[every, 0].tally.n_passes, "n_search_passes": n_search_passes}
    results[every] = results[every].assign(chance).assign_attrs(costs)
    return results


def _held_cases(question: Question, result: SearchResult) -> Iterator[tuple[Question, list[int]]]:
    """The chosen point as a learner with its parameters, and the folds that chose it; one for each chosen point.

    With separate choices, decision rules are learnt from rows of other folds, so each learner is fitted on all folds.
    If classes have separate choices of a parameter, it has the one value that all of them had in the search.
    """
    index = xr.Dataset(result.best_index_)
    by_point: dict[tuple[tuple[int, ...], ...], list[int]] = {}
    for f in range(len(question.folds)):
        of_fold = index.isel(fold=f) if "fold" in index.dims else index
        places = tuple(tuple(map(int, np.ravel(of_fold[name].values))) for name in question.grid)
        by_point.setdefault(places, []).append(f)
    for places, folds in by_point.items():
        pairs = zip(question.grid.items(), places, strict=True)
        params = {name: shared_value(name, [values[k] for k in at]) for (name, values), at in pairs}
        yield replace(question, estimator=clone(question.estimator).set_params(**params), grid={}), folds


def _to_dataset(
    question: Question,
    results: Mapping[Subset, xr.Dataset],
    sources: Mapping[str, Subset],
    without: Mapping[str, Subset],
    choose: Choose,
) -> xr.Dataset:
    everything, *_ = results.values()
    chance = {name: of.variable for name, of in everything.items() if str(name).startswith("chance_")}
    data = _kept(question, everything, list(question.grid)).assign(chance)
    for end, subsets in (("without", without), ("alone", sources)):
        chosen = list(question.grid) if choose == "anew" else []
        parts = [_kept(question, results[subset], chosen) for subset in subsets.values()]
        stacked = xr.concat(parts, "source", combine_attrs="drop_conflicts")
        stacked = stacked.drop_vars("weight") if end == "alone" and choose == "held" else stacked
        for name, values in stacked.data_vars.items():
            ended = str(name).replace("score", f"score_{end}", 1) if str(name).startswith("score") else f"{name}_{end}"
            data[ended] = values
    member = [[k in members for k in range(len(question.K))] for members in sources.values()]
    data = data.assign_coords(source=np.array(list(sources), dtype=str))
    data = data.assign(member=(("source", "kernel"), np.array(member)))
    for end in question.name_ends:
        loss, error = mean_over_folds(data[f"score{end}"] - data[f"score_without{end}"])
        # Means of equal scores in another order differ by rounding.
        data[f"loss{end}"], data[f"loss_standard_error{end}"] = loss.round(12), error.round(12)
    kept = ("estimator", "parameters", "scoring", "kind", "parameters_searched", "solver")
    data.attrs = {name: everything.attrs[name] for name in (*kept, "n_fits", "n_passes", "n_search_passes")} | {
        "measures": json.dumps(list(question.metrics)),
        "rows": "test" if any(len(fold.test) for fold in question.folds) else "validation",
    }
    return data


def _kept(question: Question, scores: xr.Dataset, parameters: Sequence[str]) -> xr.Dataset:
    names = [*(f"score{end}" for end in question.name_ends), "weight", "gap", "objective", "status", *parameters]
    kept = scores.reset_coords([name for name in question.grid if name in scores.coords])[names]
    for variable in kept.data_vars.values():
        variable.attrs = {name: value for name, value in variable.attrs.items() if name != "long_name"}
    return kept


def _shapley(
    question: Question,
    results: Mapping[Subset, xr.Dataset],
    players: Sequence[str],
    orders: Index,
    coalitions: Sequence[Sequence[Subset]],
) -> dict[str, Any]:
    of_all = next(iter(results.values()))["score"]
    nothing = question.constant_scores(question.folds).reshape(of_all.shape)
    # v(S ∪ {i}) − v(S) for every order and player i, where S joined before.
    gains = np.empty((*orders.shape, *of_all.shape))
    for row, order, joined in zip(gains, orders, coalitions, strict=True):
        row[order] = np.diff([nothing, *(results[subset]["score"].values for subset in joined)], axis=0)
    dims = ("order", "player", *map(str, of_all.dims))
    by_order = xr.DataArray(gains, dims=dims, coords={"player": np.array(players, dtype=str)})
    n_orders = len(orders)
    spread = by_order.mean("fold").std("order", ddof=1) if n_orders > 1 else np.nan * by_order.mean(["fold", "order"])
    return {
        "shapley": by_order.mean(["order", "fold"]),
        "shapley_standard_error": spread / np.sqrt(n_orders),
        "shapley_by_fold": by_order.mean("order"),
        "score_of_nothing": (of_all.dims, nothing),
    }
