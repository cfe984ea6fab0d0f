"""Chains of steps around stored kernels, and products that never need the transformed matrix.

A view of a stored kernel K is a chain of steps (`dmkl.numerics.steps`). For its product with a block of vectors V, V is
carried from the last step to the first, to the raw kernel's columns (`Fitted.right`), and the raw product from the
first step to the last, to the view's rows (`Fitted.left`).

In every step the statistics (row means, diagonals) are those of the *columns'* samples. Rows that are other samples
(test rows) are centered and normalized by them: with r̄ the column samples' row means, the centered test product is
K(Cv) − 1 r̄ᵀ(Cv), because Cv sums to zero and the two other terms of the centered kernel vanish with it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Protocol, Self

import numpy as np

from dmkl.arrays import Array, Index
from dmkl.errors import DegenerateKernelError, InputError

__all__ = ["ChainState", "Fitted", "FittedStep", "KernelSum", "Step", "restricted"]


class KernelSum(Protocol):
    """A weighted sum of stored kernels, to which a chain that is the same for all of them can be applied."""

    def center(self, weights: Array | None = None) -> None:
        """Center it over its samples, by their weighted mean where weights (m,), that sum to one, are given."""

    def scale(self, factor: Array) -> None:
        """Multiply its rows and its columns by numbers, (m,)."""

    def take(self, positions: Index) -> None:
        """Keep the samples at these positions, as rows and as columns."""


class Step(ABC):
    """A step as it is asked for: what it needs to be fitted, and what it does to lists of rows and columns."""

    name: ClassVar[str]
    changes_entries: ClassVar[bool] = True
    needs_training: ClassVar[bool] = False
    """Whether its statistics come from the training kernels: a store of new samples alone does not have them."""
    needs_means: ClassVar[bool] = False
    """Whether it needs the means over the column samples of each column sample's row."""
    needs_row_means: ClassVar[bool] = False
    """Whether it needs the means over the column samples of each row, where a later step needs the rows' diagonal."""
    needs_row_diagonal: ClassVar[bool] = False
    """Whether it needs k(x, x) of the row samples."""
    forgets_means: ClassVar[bool] = False
    """Whether the means after it do not follow from those before."""
    weights: Array | None = None
    """(cols,), what each column sample counts in its statistics; all alike where None."""

    @property
    def vectors(self) -> Array | None:
        """(cols, b): the block whose products it needs in place of the means; None where it needs the means."""
        return None

    @abstractmethod
    def fit(self, state: ChainState) -> FittedStep:
        """The step with its statistics, for kernels as the steps before it have left them.

        InputError is raised if a statistic is unknown, or is one of a kernel that its precision does not resolve.
        """

    @property
    def keeps_square(self) -> bool:
        """Whether rows that are the column samples are so afterwards."""
        return True

    def shape(self, n_rows: int, n_cols: int) -> tuple[int, int]:
        """Rows and columns after the step."""
        return n_rows, n_cols

    def taken(self, rows: Index, cols: Index) -> tuple[Index, Index]:
        """What the step leaves of a list of rows and one of columns."""
        return rows, cols

    def training(self) -> Self:
        """The step for the column samples as rows."""
        return self

    def for_rows(self, rows: Index) -> tuple[Self, Index]:
        """The step for some of the rows after it, and the positions of these rows before it."""
        return self, rows

    def for_columns(self, cols: Index) -> tuple[Step, Index]:
        """The step for products with some of the columns after it, of a square view, and their positions before it.

        Its statistics remain those over all columns.
        """
        return self, cols

    def arrays(self, *, rows: bool = True) -> dict[str, Array]:
        """Its arrays by name, as they are saved; without `rows` those alone that new samples need."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]
        return {
            name: value
            for name, value in values.items()
            if isinstance(value, np.ndarray) and (rows or not name.startswith("row_"))
        }


class FittedStep(Step):
    """A step with its statistics: a dataclass of arrays.

    The first axis of all but the `shared` ones is the kernel. Arrays called ``row_…`` are statistics of the rows, and
    what `fit` replaces for new samples.
    """

    shared: ClassVar[frozenset[str]] = frozenset()
    """Names of the arrays that all kernels have in common."""
    same_for_all: ClassVar[bool] = True
    """Whether `right` is the same for every kernel."""
    scales_columns: ClassVar[bool] = False
    """Whether it multiplies columns by numbers, which products with some of them need before they are taken."""

    def fit(self, state: ChainState) -> FittedStep:
        """The same step for the rows of a view of new samples."""
        return self

    def of_samples(self, samples: Array, covariates: Any = None) -> Self:
        """The step for rows that are new samples of these names; InputError if it lacks what it must know of them.

        `covariates` are those of samples by name, where it takes some out, in place of those that it has kept.
        """
        return self

    def mirrored(self, places: Index) -> FittedStep:
        """The step between new samples, for single entries: fitted to rows of which `places` are the training samples.

        It is the step of a square view over these rows, by the statistics of the training samples among them.
        """
        return self

    def right(self, j: int, v: Array) -> Array:
        """Carry V of kernel j from the columns after the step to those before it."""
        return v

    @property
    def has_offset(self) -> bool:
        """Whether `left` adds something that depends on V alone."""
        return False

    def left(self, j: int, y: Array, v: Array | None = None) -> Array:
        """Carry the product Y of kernel j to the rows after the step; its offset is added where V is given."""
        return y

    def origins(self, rows: Index, cols: Index) -> tuple[Index, Index]:
        """Positions before the step of positions after it."""
        return rows, cols

    def elementwise(self, j: int, block: Array, rows: Index, cols: Index) -> Array:
        """Transform entries of kernel j, at these positions after the step."""
        return block

    def diagonal(self, diagonal: Array, *, rows: bool = False) -> Array | None:
        """Transform k(x, x) of the column samples, (kernel, cols), or of the rows; None where that is not known."""
        return diagonal

    def means(self, mean: Array) -> Array:
        """Transform means over the column samples, where they follow from those before."""
        return mean

    def scalar(self, j: int) -> float:
        """The number by which kernel j is multiplied."""
        return 1.0

    def counts(self, counts: Array) -> Array:
        """What each column sample of a square view counts after the step, (cols,)."""
        return counts

    def null_vectors(self, vectors: Array | None, n_cols: int) -> Array | None:
        """Vectors (cols, k) that every square kernel maps to zero after the step; None where there are none.

        `vectors` are those before the step.
        """
        return None

    def apply_to(self, total: KernelSum) -> None:
        """Apply the step to a sum of kernels, whose weights have taken in the scalars."""

    def removed(self, removed: Array | float) -> Array | float:
        """See `Fitted.removed`, from its value before the step."""
        return removed

    def for_products(self) -> Self:
        """Without the statistics that products do not need."""
        return self

    def right_alone(self) -> Self:
        """What the step does to V, and a `left` that leaves products as they are, where it scales columns."""
        return self

    def select(self, kernels: Index) -> Self:
        """The same step for some of the kernels."""
        own = {name: value[kernels] for name, value in self.arrays().items() if name not in self.shared}
        return self._with(own)

    def _with(self, arrays: Mapping[str, Any]) -> Self:
        return replace(self, **arrays)  # type: ignore[type-var]

    def described(self) -> dict[str, Any]:
        """What is saved beside the arrays, as JSON values: see `dmkl.numerics.fitted.load_step`."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]
        return {"kind": self.name} | {name: value for name, value in values.items() if isinstance(value, bool)}


@dataclass(frozen=True)
class Fitted:
    """A chain of steps with their statistics."""

    steps: tuple[FittedStep, ...] = ()
    entrywise: bool = False
    """Whether sums of kernels must take them after the steps: their entries are weighted one by one."""

    @property
    def same_for_all(self) -> bool:
        """Whether the chain is the same for every kernel up to a factor, and may be left to a sum of them."""
        return not self.entrywise and all(step.same_for_all for step in self.steps)

    @property
    def n_bytes(self) -> int:
        """Memory that the statistics take."""
        # Means and scales of a square view are those of its rows and of its columns.
        return sum({id(array): array.nbytes for step in self.steps for array in step.arrays().values()}.values())

    def select(self, kernels: Index) -> Fitted:
        """The same chain for some of the kernels."""
        return replace(self, steps=tuple(step.select(kernels) for step in self.steps))

    def training(self) -> Fitted:
        """The chain for the column samples as rows."""
        return replace(self, steps=tuple(step.training() for step in self.steps))

    def for_products(self) -> Fitted:
        """Without the statistics that products do not need: a square centering needs none at all."""
        return Fitted(tuple(step.for_products() for step in self.steps))

    def right_alone(self) -> Fitted:
        """Of a chain for some columns how it scales V, and a `left` that leaves products as they are."""
        return Fitted(tuple(step.right_alone() for step in self.steps if step.scales_columns))

    # --- products ------------------------------------------------------------------------------------------------

    def factor(self, j: int) -> float:
        """Product of the scalar factors of kernel j."""
        value = 1.0
        for step in self.steps:
            value *= step.scalar(j)
        return value

    def counts(self, n_cols: int) -> Array:
        """What each column sample counts: d of D^{1/2}KD^{1/2}, ones where samples have no weights."""
        found = np.ones(n_cols)
        for step in self.steps:
            found = step.counts(found)
        return found

    def null_vectors(self, n_cols: int) -> Array | None:
        """Vectors N (cols, k) with K_jN = 0 for every kernel of a square view; None where the steps imply none.

        They span the directions that the ridge does not penalize: the constant, and covariates that are projected out.
        """
        vectors: Array | None = None
        for step in self.steps:
            vectors = step.null_vectors(vectors, n_cols)
        return vectors

    def right(self, j: int, v: Array) -> tuple[Array, list[Array | None]]:
        """Carry V from the view's columns to the raw kernel's; also what the offset of each step needs, last first."""
        if self.steps:
            v = v.astype(np.float64, copy=False)
        carried: list[Array | None] = []
        for step in reversed(self.steps):
            v = step.right(j, v)
            carried.append(v if step.has_offset else None)
        return v, carried

    def left(self, j: int, y: Array, carried: list[Array | None], *, offsets: bool = True) -> Array:
        """Carry the raw product Y back to the view's rows; it is overwritten.

        Everything here is linear in Y but the offset −1 r̄ᵀ(Cv) of a rectangular centering: when Y is one of several
        parts of a sum, exactly one part may be given `offsets`.
        """
        for step, v in zip(self.steps, reversed(carried), strict=True):
            y = step.left(j, y, v if offsets else None)
        return y

    # --- entries -------------------------------------------------------------------------------------------------

    def positions(self, rows: Index, cols: Index) -> list[tuple[Index, Index]]:
        """Positions of a block of the view before the first step and after each step (first to last)."""
        trail = [(rows, cols)]
        for step in reversed(self.steps):
            trail.append(step.origins(*trail[-1]))
        return trail[::-1]

    def elementwise(self, j: int, block: Array, trail: list[tuple[Index, Index]]) -> Array:
        """Transform a raw block (whose rows and columns are `trail[0]`) entry by entry, in float64."""
        block = np.asarray(block, dtype=np.float64)
        for step, (rows, cols) in zip(self.steps, trail[1:], strict=True):
            block = step.elementwise(j, block, rows, cols)
        return block

    def diagonal(self, raw: Array) -> Array:
        """Transform the raw kernels' diagonals, (kernels, samples), of a square view, in float64."""
        found: Array | None = np.asarray(raw, dtype=np.float64)
        for step in self.steps:
            assert found is not None
            found = step.diagonal(found)
        assert found is not None
        return found

    def apply_to(self, total: KernelSum) -> None:
        """Apply a chain that is the same for all kernels to a sum of them, whose weights have taken in the factors."""
        for step in self.steps:
            step.apply_to(total)

    def removed(self) -> Array | float:
        """Size of the entries that centering took away, in units of the kernels as they are after the steps, (n,).

        It is the measure of the rounding noise that centering leaves behind, and 0 where nothing was centered.
        """
        removed: Array | float = 0.0
        for step in self.steps:
            removed = step.removed(removed)
        return removed


def restricted(steps: Sequence[Any], positions: Index, *, rows: bool) -> tuple[tuple[Any, ...], Index]:
    """Steps, fitted or not, for some of the rows (or columns) after them, and the positions of these before them."""
    found = []
    for step in reversed(steps):
        step, positions = step.for_rows(positions) if rows else step.for_columns(positions)
        found.append(step)
    return tuple(found[::-1]), positions


_STATISTICS = {
    "col_mean": "row means of the training samples",
    "diag_cols": "diagonal of the training kernels",
    "diag_rows": "diagonal k(x, x) of the new samples",
}


@dataclass(frozen=True)
class ChainState:
    """What is known of a view after the steps fitted so far."""

    names: tuple[str, ...]
    """The kernels' names, for messages."""
    diag_cols: Array | None
    diag_rows: Array | None
    """(kernel, cols) and (kernel, rows): k(x, x) of the column and row samples after the steps so far. The same object
    when the view is square; `diag_rows` is None where it is unknown (new samples without a diagonal)."""
    col_mean: Array | None
    row_mean: Array | None
    """(kernel, cols) and (kernel, rows): means over the column samples after the steps so far, where known; weighted
    by what the last step that needed them was."""
    square: bool
    resolution: float
    """Relative size under which what centering leaves is rounding noise: some multiple of the stored precision."""
    fitted: Fitted = field(default_factory=Fitted)

    def step(self, step: Step, col_mean: Array | None = None, row_mean: Array | None = None) -> ChainState:
        """Fit one more step; `col_mean` and `row_mean` are given where a pass had to compute them."""
        col_mean = self.col_mean if col_mean is None else col_mean
        row_mean = self.row_mean if row_mean is None else row_mean
        before = replace(self, col_mean=col_mean, row_mean=col_mean if self.square else row_mean)
        fitted = step.fit(before)
        square = self.square and fitted.keeps_square
        diag_cols, col_mean = before._after(fitted, rows=False)
        diag_rows, row_mean = (diag_cols, col_mean) if square else before._after(fitted, rows=True)
        chain = Fitted((*self.fitted.steps, fitted))
        return ChainState(self.names, diag_cols, diag_rows, col_mean, row_mean, square, self.resolution, chain)

    def _after(self, step: FittedStep, *, rows: bool) -> tuple[Array | None, Array | None]:
        """Diagonal and means of the columns, or of the rows, after a step."""
        diagonal, mean = (self.diag_rows, self.row_mean) if rows else (self.diag_cols, self.col_mean)
        return (
            None if diagonal is None else step.diagonal(diagonal, rows=rows),
            None if mean is None or step.forgets_means else step.means(mean),
        )

    def without_means(self) -> ChainState:
        """The same where the means are of no use: the next step takes others."""
        return replace(self, col_mean=None, row_mean=None)

    def need(self, name: str) -> Array:
        """A statistic that a step needs; InputError if it is unknown."""
        value: Array | None = getattr(self, name)
        if value is None:
            way_out = (
                "give it as diagonal= of dmkl.create(None, kernels, symmetric=False, diagonal=…), (kernels, new "
                "samples), take K[test, train] of a set of all samples, or fit without 'cosine'"
                if name == "diag_rows"
                else "center and normalize through a fitted model, which carries the training statistics"
            )
            msg = (
                f"this view lacks the {_STATISTICS[name]}, which kernels of new samples against training samples do "
                f"not hold: {way_out}"
            )
            raise InputError(msg)
        return value

    @property
    def _residualized(self) -> bool:
        return any(step.name == "residualize" for step in self.fitted.steps)

    def check_diagonal(self, diagonal: Array) -> None:
        """Refuse k(x, x), (kernel, samples), that are not positive, or rounding noise."""
        floor = self.resolution * np.broadcast_to(self.fitted.removed(), len(diagonal))
        bad = np.argwhere(~(diagonal > floor[:, None]))
        if bad.size:
            j, i = bad[0]
            explained = "; covariates explain that sample wholly" if self._residualized else ""
            msg = (
                "cosine normalization needs a positive k(x, x) that its precision resolves for every sample, but "
                f"kernel {self.names[j]!r} has {diagonal[j, i]:.3g} at position {i}{explained}; use 'trace' or "
                "'multiplicative', or leave out that kernel with select()"
            )
            raise InputError(msg)

    def check_size(self, size: Array, removed: Array | float, what: str) -> None:
        """Refuse sizes (n,) by which a kernel cannot be divided; `removed` is what centering took away of each."""
        bad = np.flatnonzero(~(size > self.resolution * removed))
        if bad.size:
            j = bad[0]
            why = (
                "The covariates that residualize takes out explain it wholly, or it is constant"
                if self._residualized
                else "It is constant or has a negative diagonal"
            )
            msg = (
                f"kernel {self.names[j]!r} cannot be normalized: its {what} over these samples is {size[j]:.3g}, "
                f"expected a positive number that its precision resolves. {why}; leave it out with select()"
            )
            raise DegenerateKernelError(msg)
