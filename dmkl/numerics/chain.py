"""Centring, normalising and taking rows and columns, as operators around the product with a raw kernel.

A view of a stored kernel K is a chain of steps. The product of the view with a block of vectors V never needs the
transformed matrix: going from the last step to the first, V is carried to the raw kernel's columns (`Fitted.right`);
the raw product is carried back from the first step to the last (`Fitted.left`). The steps are

    center          K ↦ (I − 11ᵀ/m) K (I − 11ᵀ/m)              mean over the training (column) samples
    trace           K ↦ K / tr K                                unit trace
    multiplicative  K ↦ K / (tr K/m − 1ᵀK1/m²)                  unit variance in feature space
    cosine          K ↦ D K D,  D_ii = K_ii^(−1/2)              unit norm in feature space (spherical)
    take            K ↦ K[rows, cols]

In every step the statistics (row means, diagonals) are those of the *columns'* samples. Rows that are other samples
(test rows) are centred and normalised by them: with r̄ the column samples' row means, the centred test product is
K(Cv) − 1 r̄ᵀ(Cv), because Cv sums to zero and the two other terms of the centred kernel vanish with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dmkl.errors import InputError

__all__ = ["KINDS", "ChainState", "Fitted", "FittedStep", "Kind", "Step", "Take"]

Kind = Literal["center", "trace", "multiplicative", "cosine"]
KINDS: tuple[Kind, ...] = ("center", "trace", "multiplicative", "cosine")

Array = npt.NDArray[Any]
Index = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Take:
    """Keep these positions of the previous step's rows and columns (the lengths before are needed to pad)."""

    rows: Index
    cols: Index
    rows_before: int
    cols_before: int


Step = Kind | Take


@dataclass(frozen=True)
class FittedStep:
    """One step with its statistics; the first axis of each array is the kernel.

    `kind` tells which of the others are set: "center" has the means, "scale" the factor (trace and multiplicative
    normalisation alike), "cosine" the row and column scales, "take" the positions.
    """

    kind: Literal["center", "scale", "cosine", "take"]
    square: bool
    """Whether the rows are the column samples themselves."""
    col_mean: Array | None = None
    """(kernel, cols): mean over the column samples of each column sample's row, before this step."""
    row_mean: Array | None = None
    """(kernel, rows): the same for the rows; only there where rows differ and it was needed."""
    factor: Array | None = None
    """(kernel,)"""
    row_scale: Array | None = None
    """(kernel, rows)"""
    col_scale: Array | None = None
    """(kernel, cols)"""
    take: Take | None = None

    def select(self, kernels: Index) -> FittedStep:
        """The same step for some of the kernels."""
        pick = {
            name: value[kernels]
            for name in ("col_mean", "row_mean", "factor", "row_scale", "col_scale")
            if (value := getattr(self, name)) is not None
        }
        return replace(self, **pick)


@dataclass(frozen=True)
class Fitted:
    """A chain of steps with their statistics."""

    steps: tuple[FittedStep, ...] = ()
    entrywise: bool = False
    """Whether sums of kernels must take them after the steps: their entries are weighted one by one."""

    @property
    def shared(self) -> bool:
        """Whether `right` is the same for every kernel (scalar factors enter on the left alone)."""
        return not self.entrywise and all(step.kind != "cosine" for step in self.steps)

    def select(self, kernels: Index) -> Fitted:
        """The same chain for some of the kernels."""
        return replace(self, steps=tuple(step.select(kernels) for step in self.steps))

    def for_products(self) -> Fitted:
        """Without the statistics that products do not need: a square centring needs none at all."""
        return Fitted(
            tuple(
                replace(step, row_mean=None, col_mean=None if step.square else step.col_mean)
                if step.kind == "center"
                else step
                for step in self.steps
            )
        )

    def factor(self, j: int) -> float:
        """Product of the scalar factors of kernel j."""
        value = 1.0
        for step in self.steps:
            if step.factor is not None:
                value *= float(step.factor[j])
        return value

    def right(self, j: int, v: Array) -> tuple[Array, list[Array]]:
        """Carry V from the view's columns to the raw kernel's columns.

        Returns
        -------
        tuple
            The carried block, and the centred blocks at each rectangular centring, last step first: `left` needs them.
        """
        kept: list[Array] = []
        for step in reversed(self.steps):
            if step.kind == "take":
                assert step.take is not None
                wide = np.zeros((step.take.cols_before, v.shape[1]), dtype=v.dtype)
                np.add.at(wide, step.take.cols, v)  # positions may repeat, as in NumPy's indexing
                v = wide
            elif step.kind == "center":
                v = v - v.mean(axis=0, keepdims=True)
                if not step.square:
                    kept.append(v)
            elif step.kind == "cosine":
                assert step.col_scale is not None
                v = v * step.col_scale[j][:, None].astype(v.dtype, copy=False)
        return v, kept

    def left(self, j: int, y: Array, kept: list[Array], *, offsets: bool = True) -> Array:
        """Carry the raw product Y back to the view's rows.

        Everything here is linear in Y but the offset −1 r̄ᵀ(Cv) of a rectangular centring: when Y is one of several
        parts of a sum, exactly one part may be given `offsets`.
        """
        kept = list(kept)
        for step in self.steps:
            if step.kind == "take":
                assert step.take is not None
                y = y[step.take.rows]
            elif step.kind == "center":
                if step.square:
                    y = y - y.mean(axis=0, keepdims=True, dtype=np.float64)
                else:
                    centred = kept.pop()
                    if offsets:
                        assert step.col_mean is not None
                        y = y - step.col_mean[j] @ centred
            elif step.kind == "scale":
                assert step.factor is not None
                y = y * step.factor[j]
            else:
                assert step.row_scale is not None
                y = y * step.row_scale[j][:, None]
        return y

    def positions(self, rows: Index, cols: Index) -> list[tuple[Index, Index]]:
        """Positions of a block of the view before the first step and after each step (first to last)."""
        trail = [(rows, cols)]
        for step in reversed(self.steps):
            if step.take is not None:
                rows, cols = step.take.rows[rows], step.take.cols[cols]
            trail.append((rows, cols))
        return trail[::-1]

    def diagonal(self, raw: Array) -> Array:
        """Transform the raw kernels' diagonals, (kernels, samples), of a square view, in float64."""
        found = np.asarray(raw, dtype=np.float64)
        for step in self.steps:
            if step.kind == "center":
                assert step.col_mean is not None
                found = found - 2.0 * step.col_mean + step.col_mean.mean(axis=1, keepdims=True)
            elif step.kind == "scale":
                assert step.factor is not None
                found = found * step.factor[:, None]
            elif step.kind == "cosine":
                assert step.col_scale is not None
                found = found * step.col_scale**2
            elif step.take is not None:
                found = found[:, step.take.cols]
        return found

    def elementwise(self, j: int, block: Array, trail: list[tuple[Index, Index]]) -> Array:
        """Transform a raw block (whose rows and columns are `trail[0]`) entry by entry, in float64."""
        block = np.asarray(block, dtype=np.float64)
        for step, (rows, cols) in zip(self.steps, trail[1:], strict=True):
            if step.kind == "center":
                assert step.col_mean is not None
                row_mean = step.col_mean if step.square else step.row_mean
                assert row_mean is not None
                grand = step.col_mean[j].mean()
                block = block - row_mean[j][rows][:, None] - step.col_mean[j][cols][None, :] + grand
            elif step.kind == "scale":
                assert step.factor is not None
                block = block * step.factor[j]
            elif step.kind == "cosine":
                assert step.row_scale is not None
                assert step.col_scale is not None
                block = block * step.row_scale[j][rows][:, None] * step.col_scale[j][cols][None, :]
        return block


@dataclass(frozen=True)
class ChainState:
    """What is known of a view after the steps fitted so far; advanced by `step`.

    Parameters
    ----------
    names
        The kernels' names, for messages.
    diag_cols, diag_rows
        (kernel, cols) and (kernel, rows): k(x, x) of the column and row samples after the steps so far. The same
        object when the view is square; `diag_rows` is None where it is unknown (new samples without a diagonal).
    col_mean, row_mean
        (kernel, cols) and (kernel, rows): means over the column samples after the steps so far, where known.
    resolution
        Relative size under which what centring leaves is rounding noise: some multiple of the stored precision.
    removed
        (kernel,): size of the entries that centring took away so far, in units of the kernels as they are now.
    """

    names: tuple[str, ...]
    diag_cols: Array | None
    diag_rows: Array | None
    col_mean: Array | None
    row_mean: Array | None
    square: bool
    resolution: float
    removed: Array | float = 0.0
    fitted: Fitted = field(default_factory=Fitted)

    def _append(self, step: FittedStep, **changes: Any) -> ChainState:
        return replace(self, fitted=Fitted((*self.fitted.steps, step)), **changes)

    def step(self, step: Step, col_mean: Array | None = None, row_mean: Array | None = None) -> ChainState:
        """Fit one more step; `col_mean` and `row_mean` are given where a pass had to compute them."""
        state = replace(
            self,
            col_mean=self.col_mean if col_mean is None else col_mean,
            row_mean=self.row_mean if row_mean is None else row_mean,
        )
        if state.square:
            state = replace(state, row_mean=state.col_mean)
        if isinstance(step, Take):
            return state._take(step)
        return getattr(state, f"_{step}")()  # type: ignore[no-any-return]

    def advance(self, trained: FittedStep, row_mean: Array | None = None) -> ChainState:
        """Append a step with the statistics of a training set, for rows that are other samples.

        Parameters
        ----------
        trained
            The step as it was fitted on the training samples, which are the columns here.
        row_mean
            (kernel, rows): means over the columns, where a cosine step follows.
        """
        step = replace(trained, square=False, row_mean=row_mean)
        if trained.kind == "center":
            mean = self._need(trained.col_mean, "row means of the training samples")
            diag_rows = None
            if self.diag_rows is not None and row_mean is not None:
                diag_rows = self.diag_rows - 2 * row_mean + mean.mean(axis=1, keepdims=True)
            removed = self.removed + np.abs(mean).mean(axis=1)
            return self._append(step, diag_rows=diag_rows, row_mean=None, square=False, removed=removed)
        if trained.kind == "scale":
            assert trained.factor is not None
            diag_rows = None if self.diag_rows is None else self.diag_rows * trained.factor[:, None]
            removed = self.removed * trained.factor
            return self._append(step, diag_rows=diag_rows, row_mean=None, square=False, removed=removed)
        assert trained.col_scale is not None
        diag_rows = self._need(self.diag_rows, "diagonal k(x, x) of the new samples")
        self._check_diagonal(diag_rows)
        step = replace(step, row_scale=diag_rows**-0.5)
        removed = self.removed * (trained.col_scale**2).mean(axis=1)
        return self._append(step, diag_rows=np.ones_like(diag_rows), row_mean=None, square=False, removed=removed)

    def _take(self, step: Take) -> ChainState:
        square = self.square and np.array_equal(step.rows, step.cols)
        diag_cols = None if self.diag_cols is None else self.diag_cols[:, step.cols]
        diag_rows = None if self.diag_rows is None else self.diag_rows[:, step.rows]
        # A mean over fewer columns is another mean: forgotten rather than wrong.
        return self._append(
            FittedStep("take", square, take=step),
            diag_cols=diag_cols,
            diag_rows=diag_cols if square else diag_rows,
            col_mean=None,
            row_mean=None,
            square=square,
        )

    def _center(self) -> ChainState:
        mean = self._need(self.col_mean, "row means of the training samples")
        grand = mean.mean(axis=1, keepdims=True)
        diag_cols = None if self.diag_cols is None else self.diag_cols - 2 * mean + grand
        if self.square:
            diag_rows = diag_cols
        elif self.diag_rows is not None and self.row_mean is not None:
            diag_rows = self.diag_rows - 2 * self.row_mean + grand
        else:
            diag_rows = None
        return self._append(
            FittedStep("center", self.square, col_mean=mean, row_mean=self.row_mean),
            diag_cols=diag_cols,
            diag_rows=diag_rows,
            col_mean=np.zeros_like(mean),
            row_mean=None if self.row_mean is None else np.zeros_like(self.row_mean),
            removed=self.removed + np.abs(mean).mean(axis=1),
        )

    def _scale(self, size: Array) -> ChainState:
        factor = 1.0 / size
        scaled = {
            name: value * factor[:, None]
            for name in ("diag_cols", "diag_rows", "col_mean", "row_mean")
            if (value := getattr(self, name)) is not None
        }
        if self.square:
            scaled["diag_rows"], scaled["row_mean"] = scaled["diag_cols"], scaled.get("col_mean")
        return self._append(FittedStep("scale", self.square, factor=factor), removed=self.removed * factor, **scaled)

    def _trace(self) -> ChainState:
        diagonal = self._need(self.diag_cols, "diagonal of the training kernels")
        size = diagonal.sum(axis=1)
        self._check_positive(size, self.removed * diagonal.shape[1], "trace")
        return self._scale(size)

    def _multiplicative(self) -> ChainState:
        diagonal = self._need(self.diag_cols, "diagonal of the training kernels")
        mean = self._need(self.col_mean, "row means of the training samples")
        size = diagonal.mean(axis=1) - mean.mean(axis=1)
        self._check_positive(size, self.removed + np.abs(mean).mean(axis=1), "variance in feature space")
        return self._scale(size)

    def _cosine(self) -> ChainState:
        diag_cols = self._need(self.diag_cols, "diagonal of the training kernels")
        diag_rows = diag_cols if self.square else self._need(self.diag_rows, "diagonal k(x, x) of the new samples")
        for diagonal in (diag_cols,) if self.square else (diag_cols, diag_rows):
            self._check_diagonal(diagonal)
        step = FittedStep("cosine", self.square, row_scale=diag_rows**-0.5, col_scale=diag_cols**-0.5)
        ones = np.ones_like(diag_cols)
        return self._append(
            step,
            diag_cols=ones,
            diag_rows=ones if self.square else np.ones_like(diag_rows),
            col_mean=None,
            row_mean=None,
            removed=self.removed * (1.0 / diag_cols).mean(axis=1),
        )

    def _check_diagonal(self, diagonal: Array) -> None:
        floor = self.resolution * np.broadcast_to(self.removed, len(diagonal))
        bad = np.argwhere(~(diagonal > floor[:, None]))
        if bad.size:
            j, i = bad[0]
            msg = (
                "cosine normalisation needs a positive k(x, x) that its precision resolves for every sample, but "
                f"kernel {self.names[j]!r} has {diagonal[j, i]:.3g} at position {i}; use 'trace' or "
                "'multiplicative', or leave out that kernel with select()"
            )
            raise InputError(msg)

    def _need(self, value: Array | None, what: str) -> Array:
        if value is None:
            msg = (
                f"this view lacks the {what}: a rectangular store holds only new samples against training samples. "
                "Centre and normalise through a fitted model (it carries the training statistics), or create the "
                "store with diagonal="
            )
            raise InputError(msg)
        return value

    def _check_positive(self, size: Array, removed: Array | float, what: str) -> None:
        # What was taken away is the measure of what rounding left behind.
        bad = np.flatnonzero(~(size > self.resolution * removed))
        if bad.size:
            j = bad[0]
            msg = (
                f"kernel {self.names[j]!r} cannot be normalised: its {what} over these samples is {size[j]:.3g}, "
                "expected a positive number that its precision resolves. It is constant or has a negative diagonal; "
                "leave it out with select()"
            )
            raise InputError(msg)
