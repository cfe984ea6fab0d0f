"""The state of the subspace solver on disk: written after every pass, gone on with by the next run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from dmkl.files.arrays import load_array, load_arrays, save_array, save_arrays
from dmkl.solvers.fisher.subspace.problem import Progress
from dmkl.solvers.fisher.subspace.space import Subspace
from dmkl.solvers.outcome import Round
from dmkl.solvers.workspace import Workspace

__all__ = ["restore", "save"]


def save(
    workspace: Workspace,
    spaces: Sequence[Subspace],
    points: Sequence[Progress],
    history: Sequence[Round],
    n_passes: float,
    worst: Sequence[float],
    ended: dict[str, Any] | None,
) -> None:
    """Make the present state what a later run goes on with; what the state before it needed alone is removed.

    Parameters
    ----------
    worst
        The largest gap after each round.
    ended
        The limits for which the work has ended; None where it goes on.
    """
    unknown = np.full(spaces[0].n_kernels, np.nan)
    file = workspace.path / f"points-{_number(workspace) + 1}.npz"
    figures = {
        "beta": np.stack([unknown if r.beta is None else r.beta for r in points]),
        "gap": np.array([r.gap for r in points]),
        "objective": np.array([r.objective for r in points]),
        "upper": np.array([r.upper for r in points]),
        "settled": np.array([r.settled for r in points]),
    }
    save_arrays(file, figures)
    for k, result in enumerate(points):
        for name in _BY_POINT:
            path, values = _file(workspace, name, k), getattr(result, name)
            if result.settled and values is not None and not path.exists():
                save_array(path, values)
    solver = {
        "points": file.name,
        "n_passes": n_passes,
        "history": [asdict(entry) for entry in history],
        "worst": list(worst),
        "ended": ended,
        "spaces": [space.described() for space in spaces],
    }
    workspace.commit({**workspace.state, "solver": solver})
    for path in workspace.path.glob("points-*.npz"):
        if path != file:
            path.unlink()
    for space in spaces:
        space.remove_stale()


def restore(
    workspace: Workspace, spaces: Sequence[Subspace], points: Sequence[Progress]
) -> tuple[list[Round], float, list[float], dict[str, Any] | None] | None:
    """Go back to the state that was saved last, of these points or of the first of them: those behind are new.

    Returns
    -------
    tuple or None
        History, passes, the largest gap after each round, and the limits for which the work has ended; None where
        nothing was saved. Of new points no round is known, and the work goes on.
    """
    saved: dict[str, Any] | None = workspace.state.get("solver")
    longer = False
    if saved is not None:
        stored = load_arrays(workspace.path / saved["points"])
        longer = len(stored["beta"]) < len(points)
        for k, result in enumerate(points[: len(stored["beta"])]):
            beta = stored["beta"][k]
            result.beta = None if np.isnan(beta).any() else beta
            result.gap, result.objective = float(stored["gap"][k]), float(stored["objective"][k])
            result.upper, result.settled = float(stored["upper"][k]), bool(stored["settled"][k])
            if result.settled:
                result.scores = np.array(load_array(_file(workspace, "scores", k)))
                alpha = _file(workspace, "alpha", k)
                result.alpha = np.array(load_array(alpha)) if alpha.exists() else None
        for space, described in zip(spaces, saved["spaces"], strict=True):
            space.restore(described)
    for k, result in enumerate(points):
        if result.scores is None:  # left over from a round that was cut off
            for name in _BY_POINT:
                _file(workspace, name, k).unlink(missing_ok=True)
    if saved is None:
        return None
    history = [Round(**entry) for entry in saved["history"]]
    n_passes = float(saved["n_passes"])
    return (history, n_passes, [], None) if longer else (history, n_passes, list(saved["worst"]), saved["ended"])


def _number(workspace: Workspace) -> int:
    """The number in the name of the file of points that the state on disk names; −1 where it names none."""
    saved = workspace.state.get("solver")
    return -1 if saved is None else int(Path(saved["points"]).stem.split("-")[1])


_BY_POINT = ("scores", "alpha")
"""Arrays that a settled point keeps in files of their own; α where it was asked for."""


def _file(workspace: Workspace, name: str, k: int) -> Path:
    return workspace.path / f"{name}-{k}.npy"
