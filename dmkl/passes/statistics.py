"""The statistics that centering and normalizing need, computed in as few passes as possible.

Over all samples of a set no pass is needed, as the diagonal and the row sums are stored. Over a subset, each centering
(and each multiplicative normalization before one) needs the row means over that subset: one pass with one vector.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from dask.base import tokenize
from dask.delayed import Delayed, delayed

from dmkl import progress
from dmkl.arrays import Array, Float, Index
from dmkl.errors import refuse
from dmkl.numerics.steps import ChainState, Fitted, FittedStep
from dmkl.passes.execute import machine
from dmkl.passes.run import pass_graph, run_pass
from dmkl.passes.sweep import Columns
from dmkl.passes.view import Lens, View


@dataclass(frozen=True)
class _Means:
    """A request for row means over the columns, or products with a block of the step, after the steps before it."""

    view: View
    fitted: Any  # The fitted steps before; Delayed if they are not computed yet.
    name: str  # Name of the pass that computes them.
    weights: Array | None = None  # Weight of each column; None for equal weights.
    vectors: Array | None = None  # The block that is multiplied instead of the weights, (cols, b).

    @property
    def can_be_kept(self) -> bool:
        """Whether they are means of a square view before its steps."""
        return self.weights is None and self.vectors is None and not self.view.steps and self.view.is_square

    def kept(self) -> Array | None:
        """The means that the solver for factors, or a pass in `sharing_means`, has computed; None if there are none."""
        source, shared = self.view.source, _SHARED.get()
        kept = _MEANS.get(source, []) + ([] if shared is None else shared.get(source, []))
        for kernels, cols, means in kept if self.can_be_kept else []:
            if np.array_equal(kernels, self.view.kernels) and np.array_equal(cols, self.view.cols):
                return means.T
        return None

    def columns(self, lens: int = 0) -> Columns:
        """The vectors of the pass."""
        block = self.vectors
        if block is None:
            # The mean is a product with one vector that sums to one, in float64 for kernels of any precision.
            weights = np.ones(self.view.shape[2]) if self.weights is None else self.weights
            block = (weights / weights.sum())[:, None]
        return Columns(block, "each", None, np.dtype(np.float64), lens)


_Kept = WeakKeyDictionary[Any, list[tuple[Index, Index, Float]]]
_MEANS: _Kept = WeakKeyDictionary()
"""For each source kernels, samples, and means (samples, kernels) over these, while the source exists."""
_SHARED: ContextVar[_Kept | None] = ContextVar("means that later passes need", default=None)


@contextmanager
def sharing_means() -> Iterator[None]:
    """Keep the means of passes in this context, as of models on the same folds, if they take little memory."""
    with progress.inside(_SHARED, WeakKeyDictionary()):
        yield


def keep_means(means: Sequence[tuple[View, Float]]) -> None:
    """Keep means over the columns of square views of one source before their steps, in place of earlier ones.

    The solver for factors computes them, (samples, kernels), together with dual variables.
    """
    for view, _ in means[:1]:
        _MEANS[view.source] = [(view.kernels, view.cols, values) for view, values in means]


_Fitting = Generator[list[_Means], list[Any], Any]


def _fitting(
    view: View, trained: Sequence[FittedStep] = (), *, elements: bool = False, zero_constant: bool = False
) -> _Fitting:
    """Fit the steps of a view one by one, then apply steps that are `trained` already to its rows as new samples.

    This generator yields the means that the next step needs and that are not available yet, and receives them,
    (kernel, rows) each, computed or Delayed. It returns the final ChainState, Delayed if one of the means was.
    """
    _check(view)
    state: Any = replace(_begin(view), zero_constant=zero_constant)
    square = view.base_is_square
    # The two flags say which means exist. The means themselves may be Delayed, so they cannot be inspected here.
    has_col_mean, has_row_mean = state.col_mean is not None, state.row_mean is not None
    weights: Array | None = None  # of the present means
    steps = [*view.steps, *trained]
    for position, step in enumerate(steps):
        if position == len(view.steps):
            # From here on the rows are new samples: the means of rows and of columns differ.
            state, square = _call(partial(replace, square=False), state), False
        prefix = replace(view, steps=view.steps[:position])
        vectors = step.vectors
        recompute = vectors is not None or step.weights is not weights
        # Means are reused from step to step only if they were taken with the same weights of the samples.
        if (step.needs_means or step.needs_row_means) and recompute:
            state = _call(partial(replace, col_mean=None, row_mean=None), state)
            has_col_mean, has_row_mean, weights = False, False, step.weights
        wanted = {}
        if step.needs_means and not has_col_mean:
            chain = _call(Fitted.training, _call(attrgetter("fitted"), state))
            wanted["col_mean"] = _Means(prefix.training(), chain, "center-pass", step.weights, vectors)
        # Products need no row means: the centered right-hand side sums to zero, so that their term vanishes. They are
        # computed only for single entries and for a later step that needs the diagonal of the rows.
        later = elements or any(following.needs_row_diagonal for following in steps[position + 1 :])
        if step.needs_row_means and later and not has_row_mean and not square:
            wanted["row_mean"] = _Means(
                prefix, _call(attrgetter("fitted"), state), "center-rows-pass", step.weights, vectors
            )
        answers = dict(zip(wanted, (yield list(wanted.values())), strict=True)) if wanted else {}
        state = _call(ChainState.step, state, step, answers.get("col_mean"), answers.get("row_mean"))
        square = square and step.keeps_square
        has_col_mean = (has_col_mean or step.needs_means) and not step.forgets_means
        has_row_mean = has_col_mean if square else (has_row_mean or "row_mean" in wanted) and not step.forgets_means
    return state


def _check(view: View) -> None:
    if not view.source.symmetric and any(step.needs_training for step in view.steps):
        refuse(
            "a rectangular set holds new samples against training samples, not the training kernels whose means and "
            "traces centering and normalizing need: leave its kernels as they are and give it to a fitted model, which "
            "carries those statistics"
        )
    for position, step in enumerate(view.steps):
        if step.changes_entries and not replace(view, steps=view.steps[:position]).shape[2]:
            refuse(
                f"{step.name!r} takes its statistics over the column samples, and this view has none; is a fold empty?"
            )


def _begin(view: View) -> ChainState:
    """The statistics of a view before its steps, from the source."""
    source, n = view.source, view.source.tiling.cols
    diagonal = source.diagonal(view.kernels)
    square = view.base_is_square
    # The stored diagonal of a rectangular set belongs to its rows; the diagonal of its training samples is not stored.
    diag_rows = None if diagonal is None else diagonal[:, view.rows]
    diag_cols = diag_rows if square else (diagonal[:, view.cols] if source.symmetric and diagonal is not None else None)
    col_mean = row_mean = None
    if source.symmetric and len(view.cols) == n and np.array_equal(np.sort(view.cols), np.arange(n)):
        row_sum = source.row_sum(view.kernels)
        # The columns are all samples in some order, so the stored row sums give the means without a pass.
        if row_sum is not None:
            means = row_sum / n
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


def _call(function: Callable[..., Any], *values: Any) -> Any:
    """Call the function, or make a Delayed call if one of its arguments is Delayed."""
    if not any(isinstance(value, Delayed) for value in values):
        return function(*values)
    # `traverse=False` keeps Dask from searching the fields of the dataclasses among the arguments for tasks.
    arguments = [value if isinstance(value, Delayed) else delayed(value, pure=True, traverse=False) for value in values]
    return delayed(function, pure=True)(*arguments)


def _drive(fittings: Sequence[_Fitting], answer: Callable[[list[_Means]], list[Any]]) -> list[Any]:
    """Advance all generators until each has returned; the requests of one round are answered by one pass."""
    states: list[Any] = [None] * len(fittings)
    answers: dict[int, list[Any] | None] = dict.fromkeys(range(len(fittings)))
    while answers:
        wanted: dict[int, list[_Means]] = {}
        for k, answered in answers.items():
            try:
                wanted[k] = fittings[k].send(answered)  # type: ignore[arg-type]  # None starts it
            except StopIteration as end:
                states[k] = end.value
        results = iter(answer([means for means_of_fit in wanted.values() for means in means_of_fit]) if wanted else ())
        answers = {k: [next(results) for _ in means_of_fit] for k, means_of_fit in wanted.items()}
    return states


def chain_statistics(view: View, *, elements: bool = False) -> ChainState | Delayed:
    """Fit the steps of a view without computing: the state if no pass is needed, otherwise a Delayed of it.

    `elements` requests the statistics to transform single entries as well (they need means that products do not).
    """
    (state,) = _drive([_fitting(view, elements=elements)], lambda wanted: [_means_later(means) for means in wanted])
    return state  # type: ignore[no-any-return]


def _means_later(wanted: _Means) -> Delayed:
    fitted, later = (Fitted(), wanted.fitted) if isinstance(wanted.fitted, Delayed) else (wanted.fitted, None)
    token = tokenize(wanted.view, wanted.name, wanted.vectors)
    graph = pass_graph([Lens(wanted.view, fitted)], [wanted.columns()], wanted.name, token, later)
    stacked: Delayed = delayed(_stack, pure=True)([part for _, part in graph.groups], wanted.vectors is None)
    return stacked


def _stack(parts: list[Array], single: bool) -> Array:
    means = np.concatenate(parts).astype(np.float64, copy=False)
    return means[:, :, 0] if single else means


def measure(
    views: Sequence[View], trained: Sequence[FittedStep] = (), *, elements: bool = False, zero_constant: bool = False
) -> tuple[list[Lens], float]:
    """Fit the steps of several views of the same kernels of one source now, in passes that they share.

    The views may be the folds of a cross-validation or the points of a grid over steps; their steps may differ.
    Returns the views with their statistics, and the number of passes. `trained` steps, those of a model, are applied
    after their own to the rows as new samples; the columns are then the training samples, in the order of training.
    `elements` requests the statistics to transform single entries as well (they need means that products do not). With
    `zero_constant` kernels that are constant become zero where they would be normalized; otherwise they are refused.
    """
    n_passes = 0.0

    def answer(wanted: list[_Means]) -> list[Array]:
        nonlocal n_passes
        kept = [means for request in wanted if (means := request.kept()) is not None]
        if len(kept) == len(wanted):
            return kept
        lenses = [Lens(means.view, means.fitted) for means in wanted]
        results, passes = run_pass(lenses, [means.columns(k) for k, means in enumerate(wanted)], "center")
        n_passes += passes
        computed = [r[:, :, 0] if means.vectors is None else r for means, r in zip(wanted, results, strict=True)]
        if (shared := _SHARED.get()) is not None and sum(r.nbytes for r in computed) <= machine().total_bytes // 8:
            for request, values in zip(wanted, computed, strict=True):
                if request.can_be_kept:
                    entry = request.view.kernels, request.view.cols, values.T
                    shared.setdefault(request.view.source, []).append(entry)
        return computed

    fittings = [_fitting(view, trained, elements=elements, zero_constant=zero_constant) for view in views]
    return [Lens(view, state.fitted) for view, state in zip(views, _drive(fittings, answer), strict=True)], n_passes
