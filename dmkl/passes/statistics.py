"""The statistics that centring and normalising need, with as few passes as possible.

Over all samples none is needed: diagonal and row sums are stored. Over some of them, each centring (and each
multiplicative normalisation before one) needs the row means over those samples: one pass with a single vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from dask.base import tokenize
from dask.delayed import Delayed, delayed

from dmkl.errors import InputError
from dmkl.numerics.chain import ChainState, Fitted, Take
from dmkl.passes.run import pass_graph, run_pass
from dmkl.passes.sweep import Columns
from dmkl.passes.view import Lens, View

__all__ = ["chain_statistics", "means_of", "measured_together", "training_lens"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class _Plan:
    """Which steps need means from a pass: of the columns (training samples), of the rows."""

    col_pass: tuple[bool, ...]
    row_pass: tuple[bool, ...]


def _covers_all(view: View) -> bool:
    n = view.source.tiling.cols
    return len(view.cols) == n and np.array_equal(np.sort(view.cols), np.arange(n))


def _plan(view: View, *, elements: bool) -> _Plan:
    """Follow what is known of the means through the steps, without their values."""
    known = known_rows = _covers_all(view) and view.source.row_sum(view.kernels[:1]) is not None
    square = view.base_is_square
    cols, rows = [], []
    for position, step in enumerate(view.steps):
        wants = step in ("center", "multiplicative")
        cols.append(wants and not known)
        # Rows that are other samples need their own means for a later cosine, or for single entries.
        later = elements or "cosine" in view.steps[position + 1 :]
        rows.append(step == "center" and not square and not known_rows and later)
        known = known or wants
        known_rows = known_rows or rows[-1]
        if isinstance(step, Take):
            square = square and np.array_equal(step.rows, step.cols)
        if isinstance(step, Take) or step == "cosine":
            known = known_rows = False
    return _Plan(tuple(cols), tuple(rows))


def chain_statistics(view: View, *, elements: bool = False) -> ChainState | Delayed:
    """Fit the steps of a view.

    Parameters
    ----------
    view
        What the steps apply to.
    elements
        Whether single entries will be transformed (they need means that products do without).

    Returns
    -------
    ChainState or Delayed
        The state itself where no pass is needed, a Delayed of it otherwise; nothing is computed.
    """
    _check(view)
    state: Any = _begin(view)
    plan = _plan(view, elements=elements)
    for position, step in enumerate(view.steps):
        prefix = replace(view, steps=view.steps[:position])
        col_mean = _means(prefix.training(), state, "center-pass") if plan.col_pass[position] else None
        row_mean = _means(prefix, state, "center-rows-pass") if plan.row_pass[position] else None
        if isinstance(state, ChainState) and col_mean is None and row_mean is None:
            state = state.step(step, None, None)
        else:
            state = delayed(_advance, pure=True)(state, _Held(step), col_mean, row_mean)
    return state  # type: ignore[no-any-return]


def _check(view: View) -> None:
    if (
        not view.source.symmetric
        and view.steps
        and any(step != "cosine" and not isinstance(step, Take) for step in view.steps)
    ):
        msg = (
            "a rectangular set holds new samples against training samples, not the training kernels whose means and "
            "traces centring and normalising need: leave its kernels as they are and give it to a fitted model, which "
            "carries those statistics"
        )
        raise InputError(msg)
    n_cols = len(view.cols)
    for step in view.steps:
        if isinstance(step, Take):
            n_cols = len(step.cols)
        elif n_cols == 0:
            msg = f"{step!r} takes its statistics over the column samples, and this view has none; is a fold empty?"
            raise InputError(msg)


@dataclass(frozen=True)
class _Held:
    """Keeps a step from being taken apart by dask.delayed."""

    step: Any


def _advance(state: ChainState, held: _Held, col_mean: Array | None, row_mean: Array | None) -> ChainState:
    return state.step(held.step, col_mean, row_mean)


def _begin(view: View) -> ChainState:
    source = view.source
    diagonal = source.diagonal(view.kernels)
    square = view.base_is_square
    # Of a rectangular set the stored diagonal is that of its rows; the training samples' is not there.
    diag_rows = None if diagonal is None else diagonal[:, view.rows]
    diag_cols = diag_rows if square else (diagonal[:, view.cols] if source.symmetric and diagonal is not None else None)
    col_mean = row_mean = None
    if _covers_all(view) and source.symmetric:
        row_sum = source.row_sum(view.kernels)
        if row_sum is not None:
            means = row_sum / source.tiling.cols
            col_mean, row_mean = means[:, view.cols], means[:, view.rows]
    return ChainState(
        names=tuple(source.names[k] for k in view.kernels),
        diag_cols=diag_cols,
        diag_rows=diag_cols if square else diag_rows,
        col_mean=col_mean,
        row_mean=col_mean if square else row_mean,
        square=square,
        resolution=32 * float(np.finfo(source.dtype).eps),
    )


def _means(view: View, state: Any, name: str) -> Delayed:
    """Row means over the columns of a view whose steps are fitted in `state`: K 1/m."""
    n_cols = view.shape[2]
    vector = np.full((n_cols, 1), 1.0 / n_cols)
    # In the training view every step is square; the statistics fitted so far are those of the columns.
    fitted = delayed(_training_chain if view.is_square else _chain, pure=True)(state)
    graph = pass_graph(
        [Lens(view, Fitted())],
        [Columns(vector, "each", None, np.dtype(np.float64))],
        name,
        tokenize(view, name),
        fitted,
    )
    stacked: Delayed = delayed(_stack, pure=True)(graph.total(0))
    return stacked


def _chain(state: ChainState) -> Any:
    return state.fitted


def _training_chain(state: ChainState) -> Any:
    return _as_training(state.fitted)


def _as_training(fitted: Fitted) -> Fitted:
    """The chain for the column samples as rows."""
    steps = tuple(
        replace(
            step,
            square=True,
            row_scale=step.col_scale,
            take=None
            if step.take is None
            else Take(step.take.cols, step.take.cols, step.take.cols_before, step.take.cols_before),
        )
        for step in fitted.steps
    )
    return replace(fitted, steps=steps)


def training_lens(lens: Lens) -> Lens:
    """The square lens of the column samples, in which the steps took their statistics."""
    return Lens(lens.view.training(), _as_training(lens.fitted))


def _stack(parts: list[Array]) -> Array:
    return np.concatenate(parts)[:, :, 0].astype(np.float64, copy=False)


def means_of(view: View, state: ChainState) -> Array:
    """Row means over the columns of a view whose steps are fitted in `state`, (kernel, rows): one pass, run now."""
    (means,), _ = _means_now([Lens(view, state.fitted)])
    return means


def measured_together(views: Sequence[View]) -> tuple[list[Lens], int]:
    """Fit the steps of several views of the same kernels, run now: one pass for all where one of them needs it.

    Parameters
    ----------
    views
        With the same kinds of steps in the same order, such as the folds of a cross-validation.

    Returns
    -------
    tuple
        The views with their statistics, and the number of passes that took.
    """
    for view in views:
        _check(view)
    states = [_begin(view) for view in views]
    plans = [_plan(view, elements=False) for view in views]
    n_passes = 0
    for position in range(len(views[0].steps)):
        wanted: list[tuple[int, bool, Lens]] = []
        for k, (view, state, plan) in enumerate(zip(views, states, plans, strict=True)):
            prefix = replace(view, steps=view.steps[:position])
            if plan.col_pass[position]:
                wanted.append((k, True, Lens(prefix.training(), _training_chain(state))))
            if plan.row_pass[position]:
                wanted.append((k, False, Lens(prefix, state.fitted)))
        found: dict[tuple[int, bool], Array] = {}
        if wanted:
            means, passes = _means_now([lens for _, _, lens in wanted])
            found = {(k, cols): mean for (k, cols, _), mean in zip(wanted, means, strict=True)}
            n_passes += passes
        states = [
            state.step(view.steps[position], found.get((k, True)), found.get((k, False)))
            for k, (view, state) in enumerate(zip(views, states, strict=True))
        ]
    return [Lens(view, state.fitted) for view, state in zip(views, states, strict=True)], n_passes


def _means_now(lenses: list[Lens]) -> tuple[list[Array], int]:
    """Row means over the columns, (kernel, rows), through each lens."""
    columns = []
    for number, lens in enumerate(lenses):
        n_cols = lens.view.shape[2]
        vector = np.full((n_cols, 1), 1.0 / n_cols)
        columns.append(Columns(vector, "each", None, np.dtype(np.float64), number))
    found, passes = run_pass(lenses, columns, "center")
    return [means[:, :, 0] for means in found], passes
