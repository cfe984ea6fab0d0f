"""The engine runs a plan in passes that all its fits share.

It calls the hooks of `dmkl.learners.learner.KernelLearner` in this order, and returns a `FitOutcome` for each row:

    check       parameters and labels, before the first pass
    statistics  of the steps of all training sets                              one pass, or none
    nested      rows that other rows depend on, as a plan of their own
    prepare     work that fits share (groups, cuts), once for all of them
    solve       the jobs of all rows, those of equal methods together
    score       the held-out rows that no solver has scored                    one pass

Finished work is kept in the workspace, from which a later run of the same plan continues.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
from dask import threaded
from dask.base import tokenize
from dask.local import get_sync

from dmkl import progress, settings
from dmkl.arrays import Float, Index, Mask
from dmkl.errors import InputError, MemoryBudgetError
from dmkl.kernelset import KernelSet, measure
from dmkl.learners.plan import Answers, Fit, FitOutcome, Problems, TrainingSet, score_function, side_by_side
from dmkl.passes.execute import computing_here, machine, scheduler
from dmkl.passes.run import looking_for_damage, refuse_damage
from dmkl.passes.view import Lens, View, covering, has_thin_factors
from dmkl.progress import Round, Tally
from dmkl.solvers.driver import drive
from dmkl.solvers.interface import Outcome, Solver, spread
from dmkl.solvers.jobs import Context, Job, Method, Training, check_constant, tell_constant
from dmkl.solvers.workspace import Workspace
from dmkl.store.memory import MemorySet

_SMALL_BYTES = 4 * 2**20
"""Bytes of kernels whose passes take less time than graphs of Dask, and threads that share Python's lock."""


def _computing_small(view: View) -> AbstractContextManager[Any]:
    """Run the passes of this context in this thread if the kernels are small and in memory, here and on no cluster."""
    is_small = isinstance(view.source, MemorySet) and view.bytes_per_pass <= _SMALL_BYTES
    return computing_here(machine()) if is_small and scheduler() in (threaded.get, get_sync) else nullcontext()


def run(K: KernelSet, fits: Sequence[Fit], workspace: Workspace | None = None, *, duals: bool = True) -> Answers:
    """Run a plan, fits on the kernels of all samples, from the state of the workspace; a temporary one if None.

    Without `duals` outcomes have scores of held-out rows, and what decision rules are learnt from, in less memory.
    Errors are those of `KernelLearner.fit`.
    """
    _check(K, fits)
    tally = Tally()
    opened = closing(Workspace(None, {})) if workspace is None else nullcontext(workspace)
    with progress.spending() as tally.phases, opened as space, looking_for_damage(K.view), _computing_small(K.view):
        if _needs_folder(K, fits):  # refused before the first pass
            space.check_shared()
        sets, trainings, statistics = _training_sets(K, fits, space, tally)
        constant = _constant(K, sets)
        sets = _run_nested(K, [_without(constant, data) for data in sets], tally)
        if statistics is not None:
            space.discard()
            files = []
            if "steps" not in statistics:
                statistics["steps"] = space.save_statistics([training.whole.fitted for training in trainings])
                files = ["statistics.npz"]
            space.commit({"statistics": statistics, "files": files})
        try:
            prepared, n_prepared = _prepare(sets, space, tally)
            methods = _by_method(sets, prepared)
            for method, members in methods.items():
                method.check([job for *_, job in members])
        except (InputError, MemoryBudgetError):
            if statistics is not None:  # a plan that is refused leaves no files
                space.discard()
            raise
        progress.current().plan(sum(map(len, methods.values())))
        outcomes: list[list[Outcome]] = [[] for _ in sets]
        solvers: list[str | None] = [None] * len(sets)
        for place, (method, members) in enumerate(methods.items()):
            part = space if len(methods) == 1 else space.part(str(place))
            context = Context(part, tally, duals)
            solved = method.solve([job for *_, job in members], context)
            for (number, _, job), outcome in zip(members, solved, strict=True):
                mask = constant.get(job.training)
                if mask is not None and len(sets[number].parts) > 1:  # constant for some of the problems alone
                    outcome = replace(outcome, weights=np.where(mask, 0.0, outcome.weights.T).T)
                outcomes[number].append(outcome)
                solvers[number] = context.solver
        if not all(np.isfinite(outcome.weights).all() for row_outcomes in outcomes for outcome in row_outcomes):
            refuse_damage(K.view)
        scores = _score(sets, outcomes, prepared, tally)
    outcomes = [
        _expand_duals(data, row_outcomes)
        if duals or data.fit.learner.traits.leaves_one_out
        else [solution if solution.dual is None else replace(solution, dual=None) for solution in row_outcomes]
        for data, row_outcomes in zip(sets, outcomes, strict=True)
    ]
    answers = [
        FitOutcome(*parts, tally.n_passes, n_prepared)
        for parts in zip(sets, outcomes, scores, prepared, solvers, strict=True)
    ]
    return Answers(answers, tally)


def _by_method(sets: Sequence[TrainingSet], prepared: Sequence[Any]) -> dict[Method, list[tuple[int, int, Job]]]:
    """The jobs of each method, with the numbers of their rows and of their problems."""
    learners = {id(data.fit.learner): data.fit.learner for data in sets}
    of_learner = {key: learner._method() for key, learner in learners.items()}
    methods: dict[Method, list[tuple[int, int, Job]]] = {}
    for number, (data, preparation) in enumerate(zip(sets, prepared, strict=True)):
        jobs, method = data.fit.learner._jobs(data, preparation), of_learner[id(data.fit.learner)]
        methods.setdefault(method, []).extend((number, problem, job) for problem, job in enumerate(jobs))
    return methods


def _check(K: KernelSet, fits: Sequence[Fit]) -> None:
    """Refuse parameters, labels and kernels that break a rule."""
    # Thousands of rows share learners and targets.
    for learner in {id(fit.learner): fit.learner for fit in fits}.values():
        learner._check_parameters()
    for fit in {(id(fit.learner), id(fit.targets)): fit for fit in fits}.values():
        fit.learner._check_data(K, fit.targets)
    for fit in fits:
        if fit.sample_weight is not None:
            fit.learner._check_weights()


def _needs_folder(K: KernelSet, fits: Sequence[Fit]) -> bool:
    """Whether a method of these fits keeps files that all workers must see."""
    learning = [fit for fit in fits if len(K if fit.kernels is None else fit.kernels) > 1]
    targets = Counter((id(fit.train), id(fit.targets)) for fit in learning)
    n_points = max(targets.values(), default=0)
    learners = {id(fit.learner): fit.learner for fit in fits}
    return any(learner._method().needs_folder(n_points=n_points) for learner in learners.values())


def factored(
    K: KernelSet, fits: Sequence[FitOutcome], wanted: Sequence[tuple[int, int]], tally: Tally, workspace: Workspace
) -> list[FitOutcome]:
    """The outcomes of a plan that has run in the workspace, some of them with exact leave-one-out scores.

    `wanted` are the numbers of fits and of their problems, the most important ones first: a method that limits the
    work takes the first of them (`Method.factored`). The passes are added to the tally.
    """
    by_fit = [list(fit.outcomes) for fit in fits]
    methods = _by_method([fit.data for fit in fits], [fit.prepared for fit in fits])
    with progress.spending() as phases, looking_for_damage(K.view), _computing_small(K.view):
        for place, (method, members) in enumerate(methods.items()):
            part = workspace if len(methods) == 1 else workspace.part(str(place))
            at = {(number, problem): k for k, (number, problem, _) in enumerate(members)}
            outcomes = [by_fit[number][problem] for number, problem in at]
            some = [at[key] for key in wanted if key in at]
            better = method.factored([job for *_, job in members], outcomes, some, Context(part, tally))
            for (number, problem), outcome in zip(at, better, strict=True):
                by_fit[number][problem] = outcome
    tally.phases = {name: seconds + phases[name] for name, seconds in tally.phases.items()}
    return [replace(fit, outcomes=outcomes) for fit, outcomes in zip(fits, by_fit, strict=True)]


def least_lam(K: KernelSet, fits: Sequence[Fit]) -> list[float]:
    """The least λ that the stored precision resolves, for each fit of a plan; one pass for the statistics of all."""
    _check(K, fits)
    with closing(Workspace(None, {})) as space, looking_for_damage(K.view):
        sets, _, _ = _training_sets(K, fits, space, Tally())
    return [max(data.fit.learner._least_lam(training.square) for training in data.trainings) for data in sets]


def _run_nested(K: KernelSet, sets: list[TrainingSet], tally: Tally) -> list[TrainingSet]:
    """The rows after their nested rows, which are all run as one plan, equal ones once."""
    nested = [data.fit.learner._nested(data.fit, K) for data in sets]
    if not any(nested):
        return sets
    for data, rows in zip(sets, nested, strict=True):
        # Refuse a row that cannot be solved before its nested rows are; jobs that need a preparation are refused later.
        if rows and not data.fit.learner.traits.prepared_by:
            data.fit.learner._method().check(data.fit.learner._jobs(data, None))
    tokens = [{key: tokenize(fit) for key, fit in rows.items()} for rows in nested]
    distinct = {of[key]: fit for of, rows in zip(tokens, nested, strict=True) for key, fit in rows.items()}
    answers = run(K, list(distinct.values()), duals=False)
    tally.n_passes += answers.tally.n_passes
    tally.rounds += answers.tally.rounds
    outcomes = dict(zip(distinct, answers.fits, strict=True))
    return [
        replace(data, fit=data.fit.learner._apply_nested(data.fit, {key: outcomes[of[key]] for key in of}))
        if of
        else data
        for data, of in zip(sets, tokens, strict=True)
    ]


# --- training sets -------------------------------------------------------------------------------------------------


def _training_sets(
    K: KernelSet, fits: Sequence[Fit], workspace: Workspace, tally: Tally
) -> tuple[list[TrainingSet], list[Training], dict[str, Any] | None]:
    """The training set of each row, the kernels that rows share, and the cost of their statistics if it is new."""
    sources: dict[type, KernelSet] = {}
    problems: dict[Hashable, Problems] = {}
    places: dict[Hashable, int] = {}
    whole: list[KernelSet] = []
    titles: list[str] = []
    parts: dict[tuple[int, int, int], KernelSet] = {}
    alike: dict[Hashable, tuple[KernelSet, KernelSet, list[int], Problems]] = {}
    rows = []

    def part_of(source: KernelSet, rows: Index, cols: Index) -> KernelSet:
        # Thousands of rows share these arrays.
        key = (id(source), id(rows), id(cols))
        if key not in parts:
            parts[key] = _part(source, rows, cols)
        return parts[key]

    for fit in fits:
        source = sources.setdefault(type(fit.learner), fit.learner._source(K))
        row_problems = _problems(fit, problems)
        like = (id(row_problems), id(fit.train), id(fit.held_out), type(fit.learner), fit.learner._steps())
        if like not in alike:  # thousands of rows are alike
            of_samples: dict[Hashable, int] = {}
            numbers = []
            for labeled, weights in zip(row_problems.labeled, row_problems.weights, strict=True):
                samples = (id(labeled), id(weights))
                if samples not in of_samples:
                    train = fit.train if labeled is None else fit.train[labeled]
                    counts = None if weights is None else weights.tobytes()
                    key = (id(source), train.tobytes(), fit.held_out.tobytes(), counts, fit.learner._steps())
                    if key not in places:
                        places[key] = len(whole)
                        kernels = _part(source, np.concatenate([train, fit.held_out]), train)
                        whole.append(fit.learner._with_steps(kernels, weights))
                        titles.append(fit.title)
                    of_samples[samples] = places[key]
                numbers.append(of_samples[samples])
            own, new = part_of(source, fit.train, fit.train), part_of(source, fit.held_out, fit.train)
            alike[like] = own, new, numbers, row_problems
        rows.append(alike[like])
    lenses, statistics = _measure(whole, workspace, tally)
    trainings = [
        Training(lens if K.is_square else lens.training(), lens, K.names, title)
        for lens, K, title in zip(lenses, whole, titles, strict=True)
    ]
    sets = [
        TrainingSet(own, new, tuple(trainings[place] for place in numbers), row_problems, fit, K.names)
        for fit, (own, new, numbers, row_problems) in zip(fits, rows, strict=True)
    ]
    return sets, trainings, statistics


def _problems(fit: Fit, cache: dict[Hashable, Problems]) -> Problems:
    """The problems of a row; rows with the same targets share the object."""
    learner, targets = fit.learner, fit.learner._weighted(fit.targets, fit.sample_weight)
    # Weighted targets have been made for this row, so that their identity cannot be the key.
    counts = None if targets.weights is None else tuple(weights.tobytes() for weights in targets.weights)
    key = (id(fit.targets), counts, type(learner), learner.multiclass, learner.sharing)
    if key not in cache:
        cache[key] = learner._problems(targets, fit.tasks)
    return cache[key]


def _part(K: KernelSet, rows: Index, cols: Index) -> KernelSet:
    """K[rows, cols]; K itself where that is all of it, in order."""
    everything = np.arange(K.shape[1])
    whole = np.array_equal(rows, everything) and np.array_equal(cols, everything)
    return K if whole and K.is_square else K[rows, cols]


def _measure(sets: Sequence[KernelSet], workspace: Workspace, tally: Tally) -> tuple[list[Lens], dict[str, Any] | None]:
    """The statistics of all sets, from the workspace if they are there: they cost a pass."""
    saved = workspace.state.get("statistics")
    if saved is not None and saved["steps"] is not None:
        tally.n_passes += saved["n_passes"]
        if saved["n_passes"]:
            tally.rounds.append(Round("statistics", saved["seconds"], saved["n_bytes"]))
        chains = workspace.load_statistics(saved["steps"])
        return [Lens(K.view, chain) for K, chain in zip(sets, chains, strict=True)], None
    if all(has_thin_factors(K.view.training()) for K in sets):
        # The solver for factors computes its own statistics, of the factors; those of the kernels, (n, m) numbers for
        # each training set, are computed if another solver or a saved model needs them.
        @cache
        def later() -> list[KernelSet]:
            measured, n_passes = measure(sets, zero_constant=True)
            tally.n_passes += n_passes
            return measured

        none = None if saved else {"n_passes": 0.0, "seconds": 0.0, "n_bytes": 0, "steps": None}
        return [Lens(K.view, partial(lambda k: later()[k].lens().fitted, k)) for k, K in enumerate(sets)], none
    started = time.monotonic()
    measured, n_passes = measure(sets, zero_constant=True)
    lenses = [K.lens() for K in measured]
    bytes_per_pass = covering([K.view for K in sets]).bytes_per_pass
    tally.add("statistics", n_passes, time.monotonic() - started, bytes_per_pass)
    if workspace.temporary:
        return lenses, None
    seconds = time.monotonic() - started
    return lenses, {"n_passes": n_passes, "seconds": seconds, "n_bytes": n_passes * bytes_per_pass}


def _constant(K: KernelSet, sets: Sequence[TrainingSet]) -> dict[Training, Mask]:
    """The kernels that are constant over the samples of each training set, (n,), of which one warning tells."""
    # Of zeros on the diagonal alone it does not follow that an indefinite kernel is zero.
    indefinite = [kernel["name"] for kernel in K.provenance if "indefinite" in kernel]
    diagonal, sums = (of(K.view.kernels) for of in (K.view.source.diagonal, K.view.source.row_sum))
    if diagonal is not None and sums is not None:
        indefinite += np.array(K.names)[~diagonal.any(axis=1) & sums.any(axis=1)].tolist()
    constant: dict[Training, Mask] = {}
    weighed: dict[Training, Mask] = {}
    for data in sets:
        learner, kernels = data.fit.learner, data.fit.kernels
        for training in data.trainings:
            if training not in constant and learner._needs_statistics(training.square):
                constant[training] = training.constant & ~np.isin(training.names, indefinite)
                weighed[training] = np.zeros(training.n_kernels, dtype=bool)
                check_constant(training, constant[training])
            if training in constant and learner.traits.takes_subsets:
                weighed[training][slice(None) if kernels is None else kernels] = True
    tell_constant({training: mask & weighed[training] for training, mask in constant.items()})
    return constant


def _without(constant: Mapping[Training, Mask], data: TrainingSet) -> TrainingSet:
    """A row without kernels that are constant for all of its problems."""
    masks = [constant[training] for training in data.trainings if training in constant]
    if not masks or not data.fit.learner.traits.takes_subsets:
        return data
    everywhere = np.logical_and.reduce(masks)
    kept = data.positions[~everywhere[data.positions]]
    # A fit on constant kernels alone, such as one of a single kernel, has constant scores.
    return data if len(kept) in (0, data.n_kernels) else replace(data, fit=replace(data.fit, kernels=kept))


# --- work that fits share --------------------------------------------------------------------------------------------


def _prepare(sets: Sequence[TrainingSet], workspace: Workspace, tally: Tally) -> tuple[list[Any], float]:
    """The results of `KernelLearner._prepare` for each row, one for each part, and the passes that all of them took.

    Work with equal parameters on equal training sets is done once; all of it shares passes.
    """
    keys: list[list[Hashable]] = []
    wanted: dict[Hashable, tuple[Lens, Solver[Any]]] = {}
    for data in sets:
        keys.append([])
        learner = data.fit.learner
        if not learner.traits.prepared_by:
            continue
        kernels = None if data.fit.kernels is None else data.fit.kernels.tobytes()
        values = repr([getattr(learner, name) for name in learner.traits.prepared_by])
        for part in data.parts:
            key = (id(part.training), id(data.problems), kernels, type(learner), values)
            keys[-1].append(key)
            if key not in wanted:
                wanted[key] = part.training.square, learner._prepare(data, part, workspace.prepared(len(wanted)))
    made, passes = drive(list(wanted.values()), tally=tally)
    results = dict(zip(wanted, made, strict=True))
    return [[results[key] for key in row] or None for row in keys], passes


# --- scores of held-out rows ---------------------------------------------------------------------------------------


def _score(
    sets: Sequence[TrainingSet], outcomes: Sequence[Sequence[Outcome]], prepared: Sequence[Any], tally: Tally
) -> list[Float]:
    """Scores of the held-out rows: those of the solvers, and the missing ones in passes that all rows share."""
    parts: list[list[tuple[Float, list[int]]]] = [[] for _ in sets]
    requested: list[tuple[int, list[int]]] = []
    solvers, widest = [], 1
    for n, (data, row_outcomes) in enumerate(zip(sets, outcomes, strict=True)):
        if not len(data.fit.held_out) or data.fit.judge is not None:
            continue
        # A solver that returns scores may have left some problems to another one that does not.
        parts[n] = [(outcome.scores, [k]) for k, outcome in enumerate(row_outcomes) if outcome.scores is not None]
        for place, part in enumerate(data.parts):
            members = [int(k) for k in part.members if row_outcomes[k].scores is None]
            if members:
                function = score_function([row_outcomes[k] for k in members], data.problems)
                own = prepared[n] and prepared[n][place]
                solvers.append((part.training.held_out, data.fit.learner._scores(function, data.new, own)))
                requested.append((n, members))
                widest = max(widest, function.dual.shape[1])
    scores, _ = drive(solvers, at_once=max(1, settings.block_width() // widest), tally=tally)
    for (n, members), columns in zip(requested, scores, strict=True):
        parts[n].append((columns, members))
    return [
        data.fit.learner._response(
            side_by_side([columns for columns, _ in of_row], [np.asarray(members) for _, members in of_row]),
            data,
            row_outcomes,
        )
        if of_row
        else np.zeros((0, 0))
        for data, of_row, row_outcomes in zip(sets, parts, outcomes, strict=True)
    ]


def _expand_duals(data: TrainingSet, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Outcomes with dual variables over all training rows of the fit, zero where a label is unknown.

    The dual variables for K are D^{1/2} times those for D^{1/2}KD^{1/2}.
    """
    over_samples = []
    for outcome, rows, weights in zip(outcomes, data.problems.labeled, data.problems.weights, strict=True):
        dual = outcome.dual
        if dual is None:  # of a search, in which the largest score decides
            over_samples.append(outcome)
            continue
        if weights is not None:
            dual = dual * np.sqrt(weights)[:, None]
        if rows is not None:
            dual = spread(dual, rows, len(data.fit.train))
        over_samples.append(replace(outcome, dual=dual))
    return over_samples
