"""All points of a search in subspaces that its folds, labels and values of p and λ share."""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from sklearn.base import clone

from dmkl._version import __version__
from dmkl.estimators.base import KernelClassifier
from dmkl.estimators.mkfda import MKFDA, Uniform
from dmkl.estimators.solving import basis_bytes, check_resolution
from dmkl.kernelset import KernelSet
from dmkl.numerics.fisher import encode_targets
from dmkl.passes.statistics import measure
from dmkl.passes.view import Lens, covering
from dmkl.searching.grid import points
from dmkl.searching.plan import Found, Plan
from dmkl.solvers.fisher.subspace.engine import SubspaceSolver
from dmkl.solvers.fisher.subspace.problem import Point, SubspaceOptions, Training
from dmkl.solvers.fisher.subspace.workspace import Workspace

__all__ = ["has_subspace", "in_subspace"]

Array = npt.NDArray[Any]


def has_subspace(estimator: KernelClassifier) -> bool:
    """Whether its points can be solved together, and no other solver was asked for."""
    return type(estimator) in (MKFDA, Uniform) and cast(MKFDA, estimator).solver in ("auto", "subspace")


def in_subspace(plan: Plan, state: str | Path | None) -> Found:
    """Solve all points of all folds together (see `dmkl.solvers.fisher.subspace.engine`).

    Parameters
    ----------
    state
        Where the state is kept; temporary where None.
    """
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
        lenses, n_passes = _measured(prepared, workspace, min(lam for _, lam in pairs))
        trainings = [
            Training(f"fold {fold.name}", lens.training(), lens, found.problems)
            for fold, lens, found in zip(plan.folds, lenses, targets, strict=True)
        ]
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
        first = [workspace.state["statistics"]["round"]] if n_passes else []
        rounds = [*first, *(vars(entry) for entry in solver.history)]
    finally:
        workspace.close()
    n, sizes = len(plan.K), (len(grid), len(plan.folds), plan.n_tasks)
    found = Found(
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
    ((p, lam),) = cast(MKFDA, clone(model).set_params(**point))._settings(1)
    return p, lam


def _measured(prepared: list[KernelSet], workspace: Workspace, lam: float) -> tuple[list[Lens], int]:
    """The folds with the statistics of their steps, which are kept: they cost a pass.

    A λ that the precision does not resolve is refused before anything is kept.
    """
    saved = workspace.state.get("statistics")
    if saved is not None:
        chains = workspace.load_statistics(saved["steps"])
        return [Lens(K.view, chain) for K, chain in zip(prepared, chains, strict=True)], int(saved["n_passes"])
    started = time.monotonic()
    lenses, passes = measure([K.view for K in prepared])
    n_passes = int(passes)
    for lens in lenses:
        check_resolution(lens.training(), lam)
    entry = {
        "kind": "statistics",
        "seconds": time.monotonic() - started,
        "n_bytes": n_passes * covering([K.view for K in prepared]).bytes_per_pass,
    }
    steps = workspace.save_statistics([lens.fitted for lens in lenses])
    workspace.commit({"statistics": {"steps": steps, "n_passes": n_passes, "round": entry}})
    return lenses, n_passes


def _identity(plan: Plan) -> dict[str, str]:
    """What makes a search another one, in words where people can tell the difference."""
    model = plan.estimator
    view = plan.K.view
    positions = view.final_positions()
    asked = [array for step in view.steps for array in step.arrays().values()]
    return {
        "dmkl": __version__,
        "the kernels' content": plan.K.content_id,
        "the kernels chosen": ", ".join(plan.K.names),
        "the samples": _digest(*positions, view.rows, view.cols, *asked),
        "the steps before": repr([step.name for step in view.steps]),
        "the labels": _digest(np.array(json.dumps(plan.labels.astype(str).tolist()).encode())),
        "the folds": _digest(*(part for fold in plan.folds for part in (fold.train, fold.validation, fold.test))),
        "the grid": json.dumps({name: [repr(value) for value in values] for name, values in plan.grid.items()}),
        "the estimator": type(model).__name__,
    } | {
        f"parameter {name}": repr(value)
        for name, value in sorted(model.get_params(deep=False).items())
        if name not in _POLICY
    }


_POLICY = ("finish", "basis", "max_iter")
"""Parameters that decide where a search ends, not what it computes: they may change when it goes on."""


def _digest(*arrays: Array) -> str:
    total = hashlib.sha256()
    for array in arrays:
        total.update(repr(array.shape).encode())
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()[:16]
