"""The engine that runs any plan, in passes that all its fits share.

It knows nothing of learners but what `Learner` says, and answers with one `FitOutcome` a row:

    check       parameters and labels, before anything runs
    statistics  of the steps of all training sets                              one pass, or none
    nested      rows that others depend on, as a plan of their own
    prepare     what fits have in common (groups, cuts), once for all of them
    solve       the jobs of all rows, those of equal methods together
    score       the held-out rows that no solver has scored on the way         one pass

What is done is kept in the workspace, and the same plan goes on from there.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from dmkl import progress, settings
from dmkl.arrays import Float, Index
from dmkl.estimators.plan import Answers, Fit, FitOutcome, Plan, TrainingSet, decision_rule
from dmkl.estimators.problems import Problems, side_by_side
from dmkl.kernelset import KernelSet, measure
from dmkl.passes.damage import looking_for_damage, refuse_damage
from dmkl.passes.view import Lens, covering
from dmkl.solvers.driver import Tally, drive
from dmkl.solvers.jobs import Context, Job, Method, Training
from dmkl.solvers.outcome import Outcome, Round
from dmkl.solvers.requests import Solver
from dmkl.solvers.workspace import Workspace

__all__ = ["least_lam", "run"]


def run(plan: Plan, workspace: Workspace | None = None) -> Answers:
    """Run a plan.

    Parameters
    ----------
    plan
        The fits.
    workspace
        Where the state is kept, and gone on from; a temporary folder where None.

    Raises
    ------
    InputError
        If a parameter, the labels or the kernels break a rule, or workers do not see a folder in which they keep files.
    IndefiniteKernelError
        If a kernel proves not to be positive semidefinite.
    CorruptTileError
        If a tile is damaged, also after it was first read.
    MemoryBudgetError
        If a solver that was asked for does not fit the budget.
    """
    _check(plan)
    tally = Tally()
    with progress.spending() as tally.phases, _open(workspace) as space, looking_for_damage(plan.K.view):
        if _needs_folder(plan):  # found before the first pass, and not at the end of all of them
            space.check_shared()
        sets, trainings, statistics = _training_sets(plan.K, plan.fits, space, tally)
        sets = _decided(plan.K, sets, tally)
        prepared, n_prepared = _prepared(sets, tally)
        methods = _by_method(sets, prepared)
        for method, members in methods.items():
            method.check([job for _, job in members])
        if statistics is not None:  # not before: what is refused leaves nothing behind
            statistics["steps"] = space.save_statistics([training.whole.fitted for training in trainings])
            space.commit({"statistics": statistics})
        outcomes: list[list[Outcome]] = [[] for _ in sets]
        solvers: list[str | None] = [None] * len(sets)
        for place, (method, members) in enumerate(methods.items()):
            part = space if len(methods) == 1 else space.part(str(place))
            context = Context(part, tally, plan.duals)
            for (number, _), outcome in zip(members, method.solve([job for _, job in members], context), strict=True):
                outcomes[number].append(outcome)
                solvers[number] = context.solver
        if not all(np.isfinite(outcome.weights).all() for mine in outcomes for outcome in mine):
            refuse_damage(plan.K.view)
        scores = _scored(sets, outcomes, prepared, tally)
    outcomes = [
        _over_samples(data, mine)
        if plan.duals or data.fit.learner._DECIDES
        else [one if one.dual is None else replace(one, dual=None) for one in mine]
        for data, mine in zip(sets, outcomes, strict=True)
    ]
    found = [
        FitOutcome(*parts, tally.n_passes, n_prepared)
        for parts in zip(sets, outcomes, scores, prepared, solvers, strict=True)
    ]
    return Answers(found, tally)


def _by_method(sets: Sequence[TrainingSet], prepared: Sequence[Any]) -> dict[Method, list[tuple[int, Job]]]:
    """The jobs of each method, with the numbers of their rows."""
    learners = {id(data.fit.learner): data.fit.learner for data in sets}
    own = {key: learner._method() for key, learner in learners.items()}
    methods: dict[Method, list[tuple[int, Job]]] = {}
    for number, (data, mine) in enumerate(zip(sets, prepared, strict=True)):
        learner = data.fit.learner
        methods.setdefault(own[id(learner)], []).extend((number, job) for job in learner._jobs(data, mine))
    return methods


def _check(plan: Plan) -> None:
    """Refuse parameters, labels and kernels that break a rule, before anything runs."""
    # Rows share learners and targets by the thousand.
    for learner in {id(fit.learner): fit.learner for fit in plan.fits}.values():
        learner._check_parameters()
    for fit in {(id(fit.learner), id(fit.targets)): fit for fit in plan.fits}.values():
        fit.learner._check_data(plan.K, fit.targets)
    for fit in plan.fits:
        if fit.sample_weight is not None:
            fit.learner._check_weights()


def _needs_folder(plan: Plan) -> bool:
    """Whether a method of the plan certainly keeps files that all workers must see."""
    targets = Counter((id(fit.train), id(fit.targets)) for fit in plan.fits if _n_kernels(plan, fit) > 1)
    n_points = max(targets.values(), default=0)
    learners = {id(fit.learner): fit.learner for fit in plan.fits}
    return any(learner._method().needs_folder(n_points=n_points) for learner in learners.values())


def _n_kernels(plan: Plan, fit: Fit) -> int:
    return len(plan.K) if fit.kernels is None else len(fit.kernels)


def least_lam(plan: Plan) -> list[float]:
    """The least λ that the stored precision resolves, for each fit of a plan; one pass for the statistics of all.

    Raises
    ------
    InputError
        If a parameter, the labels or the kernels break a rule.
    CorruptTileError
        If a tile is damaged.
    """
    _check(plan)
    with _open(None) as space, looking_for_damage(plan.K.view):
        sets, _, _ = _training_sets(plan.K, plan.fits, space, Tally())
    return [max(data.fit.learner._least_lam(training.square) for training in data.trainings) for data in sets]


@contextmanager
def _open(workspace: Workspace | None) -> Iterator[Workspace]:
    if workspace is not None:
        yield workspace
        return
    temporary = Workspace(None, {})
    try:
        yield temporary
    finally:
        temporary.close()


def _decided(K: KernelSet, sets: Sequence[TrainingSet], tally: Tally) -> list[TrainingSet]:
    """The rows as their nested ones decide them, which are all run as one plan."""
    nested = [list(data.fit.learner._nested(data.fit, K)) for data in sets]
    if not any(nested):
        return list(sets)
    for data, some in zip(sets, nested, strict=True):
        if some:  # what cannot be solved in the end need not begin
            data.fit.learner._method().check(data.fit.learner._jobs(data, None))
    answers = run(Plan(K, [fit for some in nested for fit in some], duals=False))
    tally.n_passes += answers.tally.n_passes
    tally.rounds += answers.tally.rounds
    found = iter(answers.fits)
    return [
        replace(data, fit=data.fit.learner._decided(data.fit, [next(found) for _ in some])) if some else data
        for data, some in zip(sets, nested, strict=True)
    ]


# --- training sets -------------------------------------------------------------------------------------------------


def _training_sets(
    K: KernelSet, fits: Sequence[Fit], workspace: Workspace, tally: Tally
) -> tuple[list[TrainingSet], list[Training], dict[str, Any] | None]:
    """What each row learns from; the training sets that rows share; and what their statistics took, if that is new."""
    sources: dict[type, KernelSet] = {}
    places: dict[Hashable, int] = {}
    whole: list[KernelSet] = []
    owners: list[list[int]] = []
    known: dict[Hashable, list[int]] = {}
    titles: list[str] = []
    problems: dict[Hashable, Problems] = {}
    learnt: list[Problems] = []
    parts: dict[tuple[int, int, int], KernelSet] = {}

    def part_of(source: KernelSet, rows: Index, cols: Index) -> KernelSet:
        # Rows of a plan share these arrays, by the thousand.
        key = (id(source), id(rows), id(cols))
        if key not in parts:
            parts[key] = _part(source, rows, cols)
        return parts[key]

    for fit in fits:
        source = sources.setdefault(type(fit.learner), fit.learner._source(K))
        mine = _problems(fit, problems)
        learnt.append(mine)
        like = (id(mine), id(fit.train), id(fit.held_out), type(fit.learner), fit.learner._steps())
        if like in known:  # rows are alike by the thousand
            owners.append(known[like])
            continue
        found_at: dict[Hashable, int] = {}
        owners.append(known.setdefault(like, []))
        for labeled, weights in zip(mine.labeled, mine.weights, strict=True):
            part = (id(labeled), id(weights))
            if part not in found_at:
                train = fit.train if labeled is None else fit.train[labeled]
                counts = None if weights is None else weights.tobytes()
                rows = (id(source), train.tobytes(), fit.held_out.tobytes(), counts, fit.learner._steps())
                if rows not in places:
                    places[rows] = len(whole)
                    kernels = _part(source, np.concatenate([train, fit.held_out]), train)
                    whole.append(fit.learner._stepped(kernels, weights))
                    titles.append(fit.title)
                found_at[part] = places[rows]
            owners[-1].append(found_at[part])
    lenses, statistics = _measured(whole, workspace, tally)
    trainings = [
        Training(lens if K.is_square else lens.training(), lens, K.names, title)
        for lens, K, title in zip(lenses, whole, titles, strict=True)
    ]
    found = []
    for fit, own, places_of in zip(fits, learnt, owners, strict=True):
        source = sources[type(fit.learner)]
        kernels, new = part_of(source, fit.train, fit.train), part_of(source, fit.held_out, fit.train)
        found.append(TrainingSet(kernels, new, tuple(trainings[place] for place in places_of), own, fit, K.names))
    return found, trainings, statistics


def _problems(fit: Fit, known: dict[Hashable, Problems]) -> Problems:
    """What a row learns; rows that learn the same share the object."""
    learner, targets = fit.learner, fit.learner._weighted(fit.targets, fit.sample_weight)
    # Targets that are weighted have been made for this row.
    counts = None if targets.weights is None else tuple(weights.tobytes() for weights in targets.weights)
    key = (id(fit.targets), counts, type(learner), learner.multiclass)
    if key not in known:
        known[key] = learner._problems(targets, fit.tasks)
    return known[key]


def _part(K: KernelSet, rows: Index, cols: Index) -> KernelSet:
    """K[rows, cols]; K itself where that is all of it, in order."""
    everything = np.arange(K.shape[1])
    whole = np.array_equal(rows, everything) and np.array_equal(cols, everything)
    return K if whole and K.is_square else K[rows, cols]


def _measured(
    sets: Sequence[KernelSet], workspace: Workspace, tally: Tally
) -> tuple[list[Lens], dict[str, Any] | None]:
    """The statistics of all sets, which are kept: they cost a pass."""
    saved = workspace.state.get("statistics")
    if saved is not None:
        tally.n_passes += saved["n_passes"]
        tally.rounds += [_statistics_round(saved)] if saved["n_passes"] else []
        chains = workspace.load_statistics(saved["steps"])
        return [Lens(K.view, chain) for K, chain in zip(sets, chains, strict=True)], None
    started = time.monotonic()
    measured, n_passes = measure(sets)
    lenses = [K.lens() for K in measured]
    bytes_per_pass = covering([K.view for K in sets]).bytes_per_pass
    tally.add("statistics", n_passes, time.monotonic() - started, bytes_per_pass)
    if workspace.temporary:
        return lenses, None
    seconds = time.monotonic() - started
    return lenses, {"n_passes": n_passes, "seconds": seconds, "n_bytes": n_passes * bytes_per_pass}


def _statistics_round(saved: dict[str, Any]) -> Round:
    return Round("statistics", saved["seconds"], saved["n_bytes"])


# --- what fits have in common --------------------------------------------------------------------------------------


def _prepared(sets: Sequence[TrainingSet], tally: Tally) -> tuple[list[Any], float]:
    """What was prepared for each row, and the passes that took.

    Work with equal keys on equal training sets is done once, and all of it together.
    """
    keys: list[Hashable] = []
    wanted: dict[Hashable, tuple[Lens, Solver[Any]]] = {}
    for data in sets:
        preparation = data.fit.learner._preparation(data)
        key: Hashable = None
        if preparation is not None:
            kernels = None if data.fit.kernels is None else data.fit.kernels.tobytes()
            key = (id(data.training), id(data.problems), kernels, type(data.fit.learner), preparation.key)
            wanted.setdefault(key, (data.training.square, preparation.solver))
        keys.append(key)
    found, passes = drive(list(wanted.values()), tally=tally)
    by_key: dict[Hashable, Any] = dict(zip(wanted, found, strict=True))
    return [by_key.get(key) for key in keys], passes


# --- scores of held-out rows ---------------------------------------------------------------------------------------


def _scored(
    sets: Sequence[TrainingSet], outcomes: Sequence[Sequence[Outcome]], prepared: Sequence[Any], tally: Tally
) -> list[Float]:
    """Scores of the held-out rows: those that a solver has found, and the others in passes that all of them share."""
    found: list[Float] = [np.zeros((0, 0)) for _ in sets]
    known: dict[int, list[tuple[Float, list[int]]]] = {}
    asked: list[tuple[int, list[int]]] = []
    solvers, widest = [], 1
    for n, (data, mine) in enumerate(zip(sets, outcomes, strict=True)):
        if not len(data.fit.held_out):
            continue
        # A solver that finds scores may have left some problems to another one, which does not.
        known[n] = [(outcome.scores, [k]) for k, outcome in enumerate(mine) if outcome.scores is not None]
        for part in data.parts:
            members = [int(k) for k in part.members if mine[k].scores is None]
            if members:
                rule = decision_rule([mine[k] for k in members], data.problems)
                solvers.append((part.training.held_out, data.fit.learner._scores(rule, data.new, prepared[n])))
                asked.append((n, members))
                widest = max(widest, rule.dual.shape[1])
    scores, _ = drive(solvers, at_once=max(1, settings.block_width() // widest), tally=tally)
    for (n, members), columns in zip(asked, scores, strict=True):
        known[n].append((columns, members))
    for n, parts in known.items():
        found[n] = side_by_side([columns for columns, _ in parts], [np.asarray(members) for _, members in parts])
    return found


def _over_samples(data: TrainingSet, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Outcomes with the dual variables of samples, over all training rows of the fit.

    Zero where a problem knows no label. Those of D^{1/2}KD^{1/2} are D^{−1/2} times those of K.
    """
    found = []
    for outcome, rows, weights in zip(outcomes, data.problems.labeled, data.problems.weights, strict=True):
        dual = outcome.dual
        assert dual is not None
        if weights is not None:
            dual = dual * np.sqrt(weights)[:, None]
        if rows is not None:
            wide = np.zeros((len(data.fit.train), dual.shape[1]))
            wide[rows] = dual
            dual = wide
        found.append(replace(outcome, dual=dual))
    return found
