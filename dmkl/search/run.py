"""`dmkl.search`: a grid of parameters, cross-validated."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import xarray as xr
from sklearn.base import clone

from dmkl._version import __version__
from dmkl.blocks.fisher import Targets, as_exponent, encode_targets, onto_sphere
from dmkl.errors import InputError
from dmkl.estimators.base import KernelClassifier, check_kernel_set
from dmkl.estimators.mkfda import MKFDA, Uniform, basis_bytes, check_resolution
from dmkl.kernelset import KernelSet
from dmkl.passes.statistics import measured_together, training_lens
from dmkl.passes.view import Lens
from dmkl.search.choice import Rule, check_rule
from dmkl.search.fanout import fit_points
from dmkl.search.folds import Fold, make_folds
from dmkl.search.grid import as_grid, points, shape
from dmkl.search.refit import refit_models
from dmkl.search.result import SearchResult, as_coordinate
from dmkl.search.scoring import Metric, as_metrics, evaluate
from dmkl.solvers.subspace.engine import SubspaceSolver
from dmkl.solvers.subspace.problem import Point, SubspaceOptions, Training
from dmkl.solvers.subspace.workspace import Workspace

__all__ = ["search"]

Array = npt.NDArray[Any]
Float = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]


def search(
    estimator: KernelClassifier,
    K: KernelSet,
    y: npt.ArrayLike | None = None,
    grid: Mapping[str, Any] | None = None,
    cv: Any = None,
    *,
    scoring: Any = None,
    groups: npt.ArrayLike | None = None,
    refit: bool = True,
    rule: Rule = "best",
    state: str | Path | None = None,
) -> SearchResult:
    """Fit an estimator for every point of a grid and every fold, score the rows held out, and choose.

    For `MKFDA` and `Uniform` all points, folds and tasks are solved in subspaces that grow together: some ten passes
    over the kernels for the whole grid (see `dmkl.solvers.subspace.engine`). Every point ends with a proven gap. With
    solver="direct" or "cg", and for other estimators, each point is fitted by itself; these fits are tasks of their
    own on a cluster.

    Parameters
    ----------
    estimator
        What to fit; its other parameters hold for all points. It is not changed.
    K
        The kernels of all samples, square.
    y
        (m,) labels, or (m, tasks) of 0 and 1; those stored with the kernels where missing. Each task of a multilabel
        problem has weights and a choice of its own.
    grid
        Values by parameter. The papers' by default: p = 1, 1 + 2⁻⁶ … 1 + 2⁻¹, 2, 3, 4, 8, ∞; ten values of λ, 1e-8 to
        10 for kernels of unit trace, 4⁻⁵ to 4⁴ for cosine normalisation (JMLR 3.3, CVPR 4.1).
    cv
        Folds: the stored splits where they have validation rows, 5 otherwise; an integer, a scikit-learn splitter,
        "splits", an iterable of (train, validation) or (train, validation, test), or one such tuple.
    scoring
        A measure by name or a callable, as scikit-learn takes it; the papers' are "mean_class_accuracy",
        "average_precision_voc", "mean_average_precision", "matthews" and their like (`dmkl.search.scoring`). Several in
        a list or a dict; the first decides. Accuracy by default; average precision for multilabel problems.
    groups
        (m,) what must not be split, such as the subject of a scan, for splitters that ask for it.
    refit
        Fit the chosen point anew: on the training and validation rows of each fold where folds have test rows, whose
        scores are then the variable `refit_test_score` and the first of whose models is `best_`; otherwise on all
        rows of the folds.
    rule
        "best", or "one_standard_error": the simplest point within one standard error of the best.
    state
        A folder that all workers see, where the search is kept after every pass; the same call goes on from there
        after a kill, and a folder that holds another search is refused. Temporary where None. For estimators without a
        subspace nothing is kept.

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
    check_kernel_set(K, "search")
    check_rule(rule)
    if not K.is_square:
        msg = (
            f"search needs the kernels of all samples among themselves, got {K.shape[1]} rows and {K.shape[2]} columns"
        )
        raise InputError(msg)
    labels = K.labels if y is None else np.asarray(y)
    if labels is None:
        msg = "search needs labels: give y, or store them with the kernels (labels=, --labels)"
        raise InputError(msg)
    tasks = K.tasks if y is None else None
    everything = encode_targets(labels, K.shape[1], tasks)
    labels = np.asarray(labels)
    values = as_grid(grid, estimator)
    folds = make_folds(cv, labels, splits=K.splits, groups=groups)
    metrics = as_metrics(scoring, everything.kind)
    plan = _Plan(clone(estimator), K, labels, tasks, everything, values, folds, metrics)
    found = _found(plan, state)
    result = SearchResult(_dataset(plan, found, time.monotonic() - started), rule=rule)
    if not refit:
        return result
    return _refitted(plan, result, rule)


@dataclass(frozen=True)
class _Plan:
    """What is searched, checked."""

    estimator: KernelClassifier
    K: KernelSet
    labels: Array
    tasks: Array | None
    targets: Targets
    grid: dict[str, tuple[Any, ...]]
    folds: list[Fold]
    metrics: dict[str, Metric]

    @property
    def n_tasks(self) -> int:
        """Problems that are independent."""
        return len(self.targets.problems)

    def held_out(self, fold: Fold) -> Index:
        """The rows of a fold whose scores are wanted: those of validation, then those of test."""
        return np.concatenate([fold.validation, fold.test])


@dataclass
class _Found:
    """What became of every point: arrays over (point, fold, task), and what it took."""

    weights: Float
    """(point, fold, task, kernel)"""
    gap: Float
    objective: Float
    status: npt.NDArray[np.int8]
    decisions: dict[tuple[int, int], Float]
    """Of (point, fold): scores of the rows held out."""
    classes: list[tuple[str, Array]]
    """Of each fold: kind and classes that its training rows have."""
    n_passes: int
    solver: str
    rounds: list[dict[str, Any]] = field(default_factory=list)


def _found(plan: _Plan, state: str | Path | None) -> _Found:
    """Solve every point: those that differ in p and λ alone together, where their estimator has a subspace for it."""
    inner = {name: values for name, values in plan.grid.items() if name in _SHARED}
    others = [name for name in plan.grid if name not in _SHARED]
    if not others:
        return _in_subspace(plan, state) if _has_subspace(plan.estimator) else _one_by_one(plan)
    grid = points(plan.grid)
    parts: list[tuple[list[int], _Found]] = []
    for number, fixed in enumerate(points({name: plan.grid[name] for name in others})):
        model = clone(plan.estimator).set_params(**fixed)
        folder = None if state is None else Path(state) / f"combination-{number}"
        here = [g for g, point in enumerate(grid) if all(point[name] is value for name, value in fixed.items())]
        parts.append((here, _found(replace(plan, estimator=model, grid=inner), folder)))
    return _merged(parts, len(grid))


_SHARED = ("p", "lam")
"""Parameters whose points have a subspace in common."""


def _merged(parts: list[tuple[list[int], _Found]], n_points: int) -> _Found:
    """What was found for parts of the grid, each with the places of its points, as one."""

    def together(name: str) -> Array:
        arrays = [getattr(found, name) for _, found in parts]
        whole = np.empty((n_points, *arrays[0].shape[1:]), dtype=arrays[0].dtype)
        for (here, _), array in zip(parts, arrays, strict=True):
            whole[here] = array
        return whole

    return _Found(
        together("weights"),
        together("gap"),
        together("objective"),
        together("status"),
        {(here[g], f): scores for here, found in parts for (g, f), scores in found.decisions.items()},
        parts[0][1].classes,
        sum(found.n_passes for _, found in parts),
        ", ".join(dict.fromkeys(found.solver for _, found in parts)),
        [entry for _, found in parts for entry in found.rounds],
    )


def _has_subspace(estimator: KernelClassifier) -> bool:
    return type(estimator) in (MKFDA, Uniform) and cast(MKFDA, estimator).solver in ("auto", "subspace")


# --- all points in one subspace ----------------------------------------------------------------------------------


def _in_subspace(plan: _Plan, state: str | Path | None) -> _Found:
    model = cast(MKFDA, plan.estimator)
    model._check_parameters()
    prepared = [
        model._prepared(plan.K[np.concatenate([fold.train, plan.held_out(fold)]), fold.train]) for fold in plan.folds
    ]
    targets = [encode_targets(plan.labels[fold.train], len(fold.train), plan.tasks) for fold in plan.folds]
    grid = points(plan.grid)
    pairs = [_pair(model, point) for point in grid]
    workspace = Workspace(state, {} if state is None else _identity(plan))
    try:
        lenses, n_passes = _measured(prepared, workspace)
        trainings = [
            Training(f"fold {fold.name}", training_lens(lens), lens, found.problems)
            for fold, lens, found in zip(plan.folds, lenses, targets, strict=True)
        ]
        for training in trainings:
            check_resolution(training.square, min(lam for _, lam in pairs))
        order = list(itertools.product(range(len(plan.folds)), range(plan.n_tasks), range(len(grid))))
        solver = SubspaceSolver(
            trainings,
            [Point(f, t, *pairs[g]) for f, t, g in order],
            workspace,
            SubspaceOptions(tol=model.tol, basis_bytes=basis_bytes(model.basis), finish=model.finish),
            plan.K.names,
            n_passes,
        )
        results = solver.run()
        if any(lens.fitted.steps for lens in lenses) and n_passes:
            first = [{"kind": "statistics", "n_passes": n_passes}]
        else:
            first = []
        rounds = [*first, *(vars(entry) for entry in solver.history)]
    finally:
        workspace.close()
    n, sizes = len(plan.K), (len(grid), len(plan.folds), plan.n_tasks)
    found = _Found(
        np.full((*sizes, n), np.nan),
        np.full(sizes, np.nan),
        np.full(sizes, np.nan),
        np.full(sizes, 2, dtype=np.int8),
        {},
        [(t.kind, t.classes) for t in targets],
        solver.n_passes,
        "subspace",
        rounds,
    )
    for (f, t, g), result in zip(order, results, strict=True):
        assert result.beta is not None
        assert result.scores is not None
        found.weights[g, f, t] = result.beta
        found.gap[g, f, t], found.objective[g, f, t] = result.gap, result.objective
        found.status[g, f, t] = result.status
        before = found.decisions.get((g, f))
        found.decisions[g, f] = result.scores if before is None else np.concatenate([before, result.scores], axis=1)
    return found


def _pair(model: Any, point: Mapping[str, Any]) -> tuple[float, float]:
    """(p, λ) of a point; the estimator's own where the grid has none."""
    (p, lam), *more = cast(MKFDA, clone(model).set_params(**point))._settings(1)
    if more:
        msg = "an estimator with a p or λ for each task cannot be searched; give numbers"
        raise InputError(msg)
    return p, lam


def _measured(prepared: list[KernelSet], workspace: Workspace) -> tuple[list[Lens], int]:
    """The folds with the statistics of their steps, which are kept: they cost a pass."""
    saved = workspace.state.get("statistics")
    if saved is not None:
        chains = workspace.load_statistics(saved["steps"])
        return [Lens(K.view, chain) for K, chain in zip(prepared, chains, strict=True)], int(saved["n_passes"])
    lenses, n_passes = measured_together([K.view for K in prepared])
    steps = workspace.save_statistics([lens.fitted for lens in lenses])
    workspace.commit({"statistics": {"steps": steps, "n_passes": n_passes}})
    return lenses, n_passes


def _identity(plan: _Plan) -> dict[str, str]:
    """What makes a search another one, in words where people can tell the difference."""
    model = plan.estimator
    positions = plan.K.view.final_positions()
    return {
        "dmkl": __version__,
        "the kernels' content": plan.K.content_id,
        "the kernels chosen": ", ".join(plan.K.names),
        "the samples": _digest(*positions),
        "the steps before": repr([step if isinstance(step, str) else "take" for step in plan.K.view.steps]),
        "the labels": _digest(plan.labels.astype(str)),
        "the folds": _digest(*(part for fold in plan.folds for part in (fold.train, fold.validation, fold.test))),
        "the grid": json.dumps({name: [repr(value) for value in values] for name, values in plan.grid.items()}),
        "the estimator": type(model).__name__,
        "its parameters": json.dumps(
            {name: repr(value) for name, value in sorted(model.get_params(deep=False).items()) if name not in _POLICY}
        ),
    }


_POLICY = ("finish", "basis", "max_iter")
"""Parameters that decide where a search ends, not what it computes: they may change when it goes on."""


def _digest(*arrays: Array) -> str:
    total = hashlib.sha256()
    for array in arrays:
        total.update(repr(array.shape).encode())
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()[:16]


# --- point by point ----------------------------------------------------------------------------------------------


def _one_by_one(plan: _Plan) -> _Found:
    grid = points(plan.grid)
    n, sizes = len(plan.K), (len(grid), len(plan.folds), plan.n_tasks)
    found = _Found(
        np.full((*sizes, n), np.nan),
        np.full(sizes, np.nan),
        np.full(sizes, np.nan),
        np.full(sizes, 3, dtype=np.int8),
        {},
        [],
        0,
        str(getattr(plan.estimator, "solver", "own")),
    )
    models = [clone(plan.estimator).set_params(**point) for point in grid]
    fits = [(g, f) for f in range(len(plan.folds)) for g in range(len(grid))]
    rows = [(fold.train, plan.held_out(fold)) for fold in plan.folds]
    y = plan.labels
    for (g, f), fit in zip(fits, fit_points(models, plan.K, y, rows, fits), strict=True):
        for t in range(plan.n_tasks):
            found.weights[g, f, t] = _over(plan.K.names, fit.weights[t])
        found.gap[g, f], found.objective[g, f] = fit.gap, fit.objective
        found.status[g, f] = np.where(np.asarray(fit.gap) <= getattr(plan.estimator, "tol", np.inf), 0, 2)
        found.decisions[g, f] = fit.decision
        found.n_passes += fit.n_passes
        found.rounds.append({"kind": "fit", "seconds": fit.seconds, "n_bytes": 0, "worst_gap": float(np.max(fit.gap))})
        if len(found.classes) <= f:
            found.classes.append((fit.kind, fit.classes))
    return found


def _over(names: Sequence[str], weights: Mapping[str, float]) -> Float:
    """Weights of all kernels: a model of their product has one of its own, which stands for all."""
    if set(weights) <= set(names):
        return np.array([weights.get(name, 0.0) for name in names])
    return np.full(len(names), float(next(iter(weights.values()))))


# --- results -----------------------------------------------------------------------------------------------------


def _dataset(plan: _Plan, found: _Found, seconds: float) -> xr.Dataset:
    """Everything as one labelled data set."""
    sizes, names = shape(plan.grid), list(plan.grid)
    multilabel = plan.targets.kind == "multilabel"
    task = ("task",) if multilabel else ()
    fold_dims = (*names, "fold", *task)

    def by_point(array: Array) -> Array:
        """(point, fold, task, …) with the grid's own dimensions, without the task where there is one."""
        found = array.reshape(*sizes, *array.shape[1:])
        return found if multilabel else np.take(found, 0, axis=len(sizes) + 1)

    variables: dict[str, Any] = {}
    for name, (validation, test) in _scored(plan, found).items():
        end = "" if name == next(iter(plan.metrics)) else f"_{name}"
        variables[f"score{end}"] = (fold_dims, by_point(validation))
        if any(len(fold.test) for fold in plan.folds):
            variables[f"test_score{end}"] = (fold_dims, by_point(test))
    weights = found.weights.swapaxes(2, 3) if multilabel else found.weights[:, :, :1].swapaxes(2, 3)
    weights = weights.reshape(*sizes, *weights.shape[1:])
    variables["weight"] = (
        (*names, "fold", "kernel", *task),
        weights if multilabel else weights[..., 0],
    )
    variables["gap"] = (fold_dims, by_point(found.gap))
    variables["objective"] = (fold_dims, by_point(found.objective))
    variables["status"] = (fold_dims, by_point(found.status))
    for name, key, empty in (
        ("round_kind", "kind", ""),
        ("round_seconds", "seconds", np.nan),
        ("round_bytes", "n_bytes", 0),
        ("round_basis", "basis", 0),
        ("round_certified", "certified", 0),
        ("round_worst_gap", "worst_gap", np.nan),
    ):
        variables[name] = (("round",), np.array([entry.get(key, empty) for entry in found.rounds]))
    coords: dict[str, Any] = {name: as_coordinate(name, values) for name, values in plan.grid.items()}
    coords |= {
        "fold": np.array([fold.name for fold in plan.folds], dtype=str),
        "kernel": np.array(plan.K.names, dtype=str),
    }
    if multilabel:
        coords["task"] = np.array(
            [str(t) for t in (range(plan.n_tasks) if plan.tasks is None else plan.tasks)], dtype=str
        )
    parameters = {name: repr(value) for name, value in plan.estimator.get_params(deep=False).items()}
    return xr.Dataset(
        variables,
        coords=coords,
        attrs={
            "estimator": type(plan.estimator).__name__,
            "parameters": json.dumps(parameters),
            "scoring": next(iter(plan.metrics)),
            "kind": plan.targets.kind,
            "parameters_searched": json.dumps(names),
            "n_passes": found.n_passes,
            "seconds": seconds,
            "n_points": math.prod(sizes) * len(plan.folds) * plan.n_tasks,
            "solver": found.solver,
            "created_by": f"dmkl {__version__}",
        },
    )


def _scored(plan: _Plan, found: _Found) -> dict[str, tuple[Float, Float]]:
    """Validation and test scores of every measure, (point, fold, task)."""
    sizes = (len(points(plan.grid)), len(plan.folds), plan.n_tasks)
    scores = {name: (np.full(sizes, np.nan), np.full(sizes, np.nan)) for name in plan.metrics}
    for (g, f), decision in found.decisions.items():
        fold, (kind, classes) = plan.folds[f], found.classes[f]
        middle = len(fold.validation)
        for part, rows, mine in ((0, fold.validation, decision[:middle]), (1, fold.test, decision[middle:])):
            if len(rows):
                values = evaluate(plan.metrics, cast(Any, kind), classes, plan.labels[rows], _plain(kind, mine))
                for name, value in zip(plan.metrics, values, strict=True):
                    scores[name][part][g, f] = value
    return scores


def _plain(kind: str, decision: Float) -> Float:
    """Scores as `decision_function` gives them: a vector for two classes."""
    return decision[:, 0] if kind == "binary" and decision.ndim == 2 else decision


def _refitted(plan: _Plan, result: SearchResult, rule: Rule) -> SearchResult:
    """With the model of the chosen point, and its scores on test rows that no choice has seen."""
    chosen = result.best_params_
    if plan.targets.kind == "multilabel":
        by_task = list(chosen.values())
        # A task's own value of each parameter; one number where all agree.
        chosen = {name: _together([point[name] for point in by_task]) for name in plan.grid}
    model = clone(plan.estimator).set_params(**chosen)
    tested = any(len(fold.test) for fold in plan.folds)
    sets = [np.union1d(fold.train, fold.validation) for fold in plan.folds]
    if not tested:
        rows = sets[0]
        for more in sets[1:]:
            rows = np.union1d(rows, more)
        sets = [rows]
    models = refit_models(model, plan.K, plan.labels, sets, _starts(plan, result, tested))
    scores = result.scores
    if tested:
        found = np.full((len(plan.folds), plan.n_tasks), np.nan)
        first = {next(iter(plan.metrics)): next(iter(plan.metrics.values()))}
        for f, (fold, fitted, rows) in enumerate(zip(plan.folds, models, sets, strict=True)):
            if len(fold.test):
                decision = fitted.decision_function(plan.K[fold.test, rows]).values
                found[f] = evaluate(first, fitted.kind_, fitted.classes_, plan.labels[fold.test], decision)[0]
        multilabel = plan.targets.kind == "multilabel"
        dims = ("fold", "task") if multilabel else ("fold",)
        scores = scores.assign(refit_test_score=(dims, found if multilabel else found[:, 0]))
    return SearchResult(scores, best=models[0], rule=rule)


def _starts(plan: _Plan, result: SearchResult, tested: bool) -> list[Float]:
    """The weights of the chosen point: of each fold, or where one model is fitted on all rows, of all together."""
    weight = result.scores["weight"]
    if plan.targets.kind == "multilabel":
        index = result.best_index_
        weight = xr.concat([weight.sel(task=task).isel(index[task]) for task in index], dim="task")
    else:
        weight = weight.isel(result.best_index_).expand_dims("task")
    by_fold = weight.transpose("fold", "task", "kernel").values
    chosen = by_fold if tested else by_fold.mean(axis=0, keepdims=True)
    p = result.best_params_
    norms = [_norm(plan, point) for point in (p.values() if plan.targets.kind == "multilabel" else [p])]
    return [onto_sphere(beta, norm) for part in chosen for beta, norm in zip(part, norms, strict=True)]


def _norm(plan: _Plan, point: Mapping[str, Any]) -> float:
    if "p" in point:
        return float(point["p"])
    return as_exponent(cast(float, plan.estimator.p)) if isinstance(plan.estimator, MKFDA) else np.inf


def _together(values: list[Any]) -> Any:
    return values[0] if all(value == values[0] for value in values) else tuple(values)
