"""Steps around stored kernels: centering, residualizing, normalizing, taking samples; and chains of them.

    center          K ↦ (I − 11ᵀ/m) K (I − 11ᵀ/m)              mean over the training (column) samples
    residualize     K ↦ PKPᵀ                                    P removes the mean and covariates
    trace           K ↦ K / tr K                                unit trace
    multiplicative  K ↦ K / (tr K/m − 1ᵀK1/m²)                  unit variance in feature space
    cosine          K ↦ D K D,  D_ii = K_ii^(−1/2)              unit norm in feature space (spherical)
    take            K ↦ K[rows, cols]
    weigh           K ↦ S K S,  S_ii = √d_i                     column sample i has the weight d_i

If column samples have weights d, with w = d/Σd, the statistics are those of a set with d_i copies of sample i:
(I − 1wᵀ) K (I − w1ᵀ), K / Σ_i d_iK_ii, and K / (Σ_i w_iK_ii − wᵀKw).

A view of a stored kernel K is a chain of steps, and its products never need the transformed matrix. For the product
with a block of vectors V, V is carried from the last step to the first, to the columns of the raw kernel
(`Fitted.right`), and the raw product from the first step to the last, to the rows of the view (`Fitted.left`).

The statistics of every step (row means, diagonals) are those of the column samples. Rows that are other samples (test
rows) are centered and normalized by them: with r̄ the row means of the column samples, the centered test product is
K(Cv) − 1 r̄ᵀ(Cv), because Cv sums to zero and the other two terms of the centered kernel vanish.

Residualizing: with w as above (1/m each without weights), [1, Z] has a basis Q with Qᵀdiag(w)Q = I
(`dmkl.numerics.covariates.basis`). With G = diag(w)Q the projector is P = I − QGᵀ. It needs T = KG of a kernel, a block
of columns in one pass; centering needs only the first of these columns, the means. For new rows with basis q(x):
[k(x, ·) − q(x)Tᵀ] Pᵀ.

A step that is requested by name is a `Step` with an entry in `STEPS`. With its statistics it is a `FittedStep`, with an
entry in `_FITTED`, which reads it from files.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np

from dmkl.arrays import Array, Index, Mask, plain_repr
from dmkl.errors import DegenerateKernelError, refuse
from dmkl.numerics.covariates import Covariates, basis

OfRows = Any  # an array of statistics of the rows, or None: see the fields of this type


class Step(ABC):
    """A step before it is fitted: the statistics that it needs, and its effect on lists of rows and columns."""

    name: ClassVar[str]
    changes_entries: ClassVar[bool] = True
    needs_training: ClassVar[bool] = False
    """Whether its statistics come from the training kernels, which a store of new samples does not have."""
    needs_means: ClassVar[bool] = False
    """Whether it needs, for each column sample, the mean of its row over the column samples."""
    needs_row_means: ClassVar[bool] = False
    """Whether it needs the means of the rows too, if a later step needs the rows' diagonal."""
    needs_row_diagonal: ClassVar[bool] = False  # whether it needs k(x, x) of the row samples
    forgets_means: ClassVar[bool] = False  # whether the means after it cannot be computed from those before
    weights: Array | None = None
    """(cols,), the weight of each column sample in its statistics; None for equal weights."""

    @property
    def vectors(self) -> Array | None:
        """(cols, b): the block whose products it needs instead of the means; None if it needs the means."""
        return None

    @abstractmethod
    def fit(self, state: ChainState) -> FittedStep:
        """The step with its statistics, for kernels after the steps before it.

        InputError is raised if a statistic is missing, or if a kernel's precision does not resolve it.
        """

    @property
    def keeps_square(self) -> bool:
        """Whether rows that are the column samples remain so."""
        return True

    def training(self) -> Self:
        """The step with the column samples as rows."""
        return self

    def for_rows(self, rows: Index) -> tuple[Self, Index]:
        """The step for some of the rows after it, and the positions of these rows before it."""
        return self, rows

    def for_columns(self, cols: Index) -> tuple[Step, Index]:
        """The step for products with some of the columns of a square view, and their positions before it.

        Its statistics remain those over all columns.
        """
        return self, cols

    def arrays(self, *, rows: bool = True) -> dict[str, Array]:
        """Its arrays by name, as they are saved; without `rows` only those that new samples need."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]
        return {
            name: value
            for name, value in values.items()
            if isinstance(value, np.ndarray) and (rows or not name.startswith("row_"))
        }


class FittedStep(Step):
    """A step with its statistics: a dataclass of arrays.

    The first axis of every array is the kernel, except for the `shared` ones. Arrays called ``row_…`` are statistics of
    the rows, and `fit` replaces them for new samples.
    """

    shared: ClassVar[frozenset[str]] = frozenset()  # names of the arrays that are common to all kernels
    same_for_all: ClassVar[bool] = True  # whether `right` is the same for every kernel
    scales_columns: ClassVar[bool] = False
    """Whether it multiplies columns by factors, which products with some of the columns need beforehand."""
    square: bool = True
    """Whether the rows are the column samples, or need not be: `left` then adds no term that depends on V alone."""

    def fit(self, state: ChainState) -> FittedStep:
        """The same step for the rows of a view of new samples."""
        return self

    def of_samples(self, samples: Array, covariates: Any = None) -> Self:
        """The step for rows that are new samples with these names; InputError if it lacks their covariates.

        `covariates` replaces the covariates that the step has stored, if it removes some.
        """
        return self

    def mirrored(self, places: Index) -> FittedStep:
        """The step between new samples, for single entries; `places` are the positions of the training samples.

        It is the step of a square view over these rows, with the statistics of the training samples among them.
        """
        return self

    def right(self, j: int, v: Array) -> Array:
        """Map V of kernel j from the columns after the step to those before it."""
        return v

    def left(self, j: int, y: Array, v: Array | None = None) -> Array:
        """Map the product Y of kernel j to the rows after the step; its offset is added if V is given."""
        return y

    def elementwise(self, j: int, block: Array, rows: Index, cols: Index) -> Array:
        """Transform entries of kernel j, at these positions after the step."""
        return block

    def diagonal(self, diagonal: Array, *, rows: bool = False) -> Array | None:
        """Transform k(x, x) of the column samples, (kernel, cols), or of the rows; None if it cannot be computed."""
        return diagonal

    def means(self, mean: Array) -> Array:
        """Transform means over the column samples, if they can be computed from those before."""
        return mean

    def scalar(self, j: int) -> float:
        """The factor of kernel j."""
        return 1.0

    def removed(self, removed: Array | float) -> Array | float:
        """See `Fitted.removed`, from its value before the step."""
        return removed

    def select(self, kernels: Index) -> Self:
        """The same step for some of the kernels."""
        of_kernels = {name: value[kernels] for name, value in self.arrays().items() if name not in self.shared}
        return replace(self, **of_kernels)  # type: ignore[type-var]

    def described(self) -> dict[str, Any]:
        """The values that are saved with the arrays, as JSON: see `dmkl.numerics.steps.load_step`."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]
        return {"kind": self.name} | {name: value for name, value in values.items() if isinstance(value, bool)}


@dataclass(frozen=True)
class Fitted:
    """A chain of steps with their statistics."""

    steps: tuple[FittedStep, ...] = ()

    @property
    def same_for_all(self) -> bool:
        """Whether the chain is the same for every kernel up to a factor, so that it can be applied to their sum."""
        return all(step.same_for_all for step in self.steps)

    @property
    def n_bytes(self) -> int:
        """Memory that the statistics take."""
        # Means and scales of a square view are one array for rows and columns, which is counted once.
        return sum({id(array): array.nbytes for step in self.steps for array in step.arrays().values()}.values())

    def select(self, kernels: Index) -> Fitted:
        """The same chain for some of the kernels."""
        return replace(self, steps=tuple(step.select(kernels) for step in self.steps))

    def training(self) -> Fitted:
        """The chain with the column samples as rows."""
        return replace(self, steps=tuple(step.training() for step in self.steps))

    def for_products(self) -> Fitted:
        """The chain without the statistics that products do not need: square centering needs none at all."""
        steps: list[FittedStep] = []
        for step in self.steps:
            if isinstance(step, Centering):
                col_mean = step.col_mean[:, :0].copy() if step.square else step.col_mean
                step = replace(step, col_mean=col_mean, row_mean=None)
            steps.append(step)
        return Fitted(tuple(steps))

    def right_alone(self) -> Fitted:
        """For a chain of some columns: its scaling of V, with a `left` that does not change products."""
        scaling = [step for step in self.steps if isinstance(step, _SampleScaling)]
        return Fitted(tuple(replace(step, row_scale=np.ones_like(step.col_scale[..., :1])) for step in scaling))

    def factor(self, j: int) -> float:
        """Product of the scalar factors of kernel j."""
        return math.prod((step.scalar(j) for step in self.steps), start=1.0)

    def counts(self, n_cols: int) -> Array:
        """The weight of each column sample: d of D^{1/2}KD^{1/2}, ones without sample weights."""
        weights = np.ones(n_cols)
        for step in self.steps:
            weights = weights * step.col_scale**2 if isinstance(step, Weighing) else weights
        return weights

    def right(self, j: int, v: Array) -> tuple[Array, list[Array | None]]:
        """Map V from the view's columns to the raw kernel's; also the V that each step's offset needs, last first."""
        if self.steps:
            # In float32 the centered V would not sum to zero accurately enough for the terms that vanish with the sum.
            v = v.astype(np.float64, copy=False)
        carried: list[Array | None] = []
        for step in reversed(self.steps):
            v = step.right(j, v)
            carried.append(None if step.square else v)
        return v, carried

    def left(self, j: int, y: Array, carried: list[Array | None], *, offsets: bool = True) -> Array:
        """Map the raw product Y, which is overwritten, back to the view's rows.

        All steps are linear in Y except for the offset −1 r̄ᵀ(Cv) of a rectangular centering: if Y is one of several
        parts of a sum, exactly one part may be given `offsets`.
        """
        for step, v in zip(self.steps, reversed(carried), strict=True):
            y = step.left(j, y, v if offsets else None)
        return y

    def positions(self, rows: Index, cols: Index) -> list[tuple[Index, Index]]:
        """Positions of a block of the view before the first step and after each step (first to last)."""
        trail = [(rows, cols)]
        for step in reversed(self.steps):
            rows, cols = (step.rows[rows], step.cols[cols]) if isinstance(step, Take) else (rows, cols)
            trail.append((rows, cols))
        return trail[::-1]

    def elementwise(self, j: int, block: Array, trail: list[tuple[Index, Index]]) -> Array:
        """Transform a raw block (whose rows and columns are `trail[0]`) entry by entry, in float64."""
        block = np.asarray(block, dtype=np.float64)
        for step, (rows, cols) in zip(self.steps, trail[1:], strict=True):
            block = step.elementwise(j, block, rows, cols)
        return block

    def diagonal(self, raw: Array) -> Array:
        """Transform the raw kernels' diagonals, (kernels, samples), of a square view, in float64."""
        values: Any = np.asarray(raw, dtype=np.float64)
        for step in self.steps:
            values = step.diagonal(values)
        return np.asarray(values)

    def apply_to(self, total: Any) -> None:
        """Apply a chain that is the same for all kernels to a sum of them, whose weights have taken in the factors.

        The sum has the methods `center`, `scale` and `take` of `dmkl.numerics.cholesky.LowerTriangle`.
        """
        for step in self.steps:
            if isinstance(step, Centering):
                total.center(step.weights)
            elif isinstance(step, Weighing):
                total.scale(step.row_scale)
            elif isinstance(step, Take):
                total.take(step.rows)

    def removed(self) -> Array | float:
        """Size of the entries that centering removed, in units of the kernels after the steps, (n,).

        The rounding error that centering leaves behind is proportional to it; it is 0 without centering.
        """
        removed: Array | float = 0.0
        for step in self.steps:
            removed = step.removed(removed)
        return removed


def restricted(steps: Sequence[Any], positions: Index, *, rows: bool) -> tuple[tuple[Any, ...], Index]:
    """Steps, fitted or not, for some of the rows (or columns) after them, and the positions before the steps."""
    changed = []
    for step in reversed(steps):
        # From the last step to the first, since each maps positions after it to positions before it.
        step, positions = step.for_rows(positions) if rows else step.for_columns(positions)
        changed.append(step)
    return tuple(changed[::-1]), positions


def unpenalized(steps: Sequence[Any], n_cols: int) -> Array | None:
    """Vectors N (cols, k) with K_jN = 0 for every square kernel after these steps; None if the steps imply none.

    They span what the ridge does not penalize: the constant, and covariates that are removed. Steps need not be fitted.
    """
    vectors: Array | None = None
    for step in steps:
        match step.name:
            case "center":  # CKCᵀw = 0, since Cᵀw = 0 for C = I − 1wᵀ
                weights = step.weights
                vectors = np.ones((n_cols, 1)) if weights is None else (weights / weights.sum())[:, None]
            case "residualize":  # PᵀG = 0 for P = I − QGᵀ, since QᵀG = I
                vectors = step.vectors
            case "weigh":  # SKS(S⁻¹N) = SKN = 0
                vectors = None if vectors is None else vectors / step.col_scale[:, None]
            case "trace" | "multiplicative" | "scale":
                pass
            case _:
                vectors = None
    return vectors


_STATISTICS = {
    "col_mean": "row means of the training samples",
    "diag_cols": "diagonal of the training kernels",
    "diag_rows": "diagonal k(x, x) of the new samples",
}


@dataclass(frozen=True)
class ChainState:
    """The statistics of a view after the steps fitted so far."""

    names: tuple[str, ...]  # the kernels' names, for messages
    diag_cols: Array | None
    diag_rows: Array | None
    """(kernel, cols) and (kernel, rows): k(x, x) of the column and row samples after the steps so far. They are one
    object if the view is square; `diag_rows` is None for new samples without a diagonal."""
    col_mean: Array | None
    row_mean: Array | None
    """(kernel, cols) and (kernel, rows): means over the column samples after the steps so far, if available, with the
    weights of the last step that needed means."""
    square: bool
    resolution: float
    """Relative size below which entries left by centering are rounding error: a multiple of the stored precision."""
    fitted: Fitted = field(default_factory=Fitted)
    zero_constant: bool = False  # whether steps that normalize make constant kernels zero, and do not refuse them

    def step(self, step: Step, col_mean: Array | None = None, row_mean: Array | None = None) -> ChainState:
        """Fit one more step; `col_mean` and `row_mean` are given if a pass had to compute them."""
        col_mean = self.col_mean if col_mean is None else col_mean
        row_mean = self.row_mean if row_mean is None else row_mean
        before = replace(self, col_mean=col_mean, row_mean=col_mean if self.square else row_mean)
        fitted = step.fit(before)
        square = self.square and fitted.keeps_square
        diag_cols, col_mean = before._after(fitted, rows=False)
        # A square view has one object for rows and columns: the steps compute it once, and `n_bytes` counts it once.
        diag_rows, row_mean = (diag_cols, col_mean) if square else before._after(fitted, rows=True)
        chain = Fitted((*self.fitted.steps, fitted))
        diagonals = replace(before, diag_cols=diag_cols, diag_rows=diag_rows)
        return replace(diagonals, col_mean=col_mean, row_mean=row_mean, square=square, fitted=chain)

    def _after(self, step: FittedStep, *, rows: bool) -> tuple[Array | None, Array | None]:
        """Diagonal and means of the columns, or of the rows, after a step."""
        diagonal, mean = (self.diag_rows, self.row_mean) if rows else (self.diag_cols, self.col_mean)
        diagonal = None if diagonal is None else step.diagonal(diagonal, rows=rows)
        return diagonal, None if mean is None or step.forgets_means else step.means(mean)

    def need(self, name: str) -> Array:
        """A statistic that a step needs; InputError if it is missing."""
        value: Array | None = getattr(self, name)
        if value is None:
            way_out = (
                "give it as diagonal= of dmkl.create(None, kernels, symmetric=False, diagonal=…), (kernels, new "
                "samples), take K[test, train] of a set of all samples, or fit without 'cosine'"
                if name == "diag_rows"
                else "center and normalize through a fitted model, which carries the training statistics"
            )
            what = f"the {_STATISTICS[name]}, which kernels of new samples against training samples do not hold"
            refuse(f"this view lacks {what}: {way_out}")
        return value

    def unit_scales(self, diagonal: Array) -> Array:
        """1/√k(x, x), (kernel, samples); zeros for constant kernels if they become zero.

        InputError is raised for k(x, x) that are not positive or are rounding error.
        """
        # Entries after centering are differences of entries of size `removed`, so their error is ε · removed.
        floor = self.resolution * np.broadcast_to(self.fitted.removed(), len(diagonal))
        constant: Mask = np.full(len(diagonal), self.zero_constant)
        constant &= np.all(np.abs(diagonal) <= floor[:, None], axis=1)
        # The negated comparison also rejects NaN.
        bad = np.argwhere(~(diagonal > floor[:, None]) & ~constant[:, None])
        if bad.size:
            j, i = bad[0]
            residualized = any(step.name == "residualize" for step in self.fitted.steps)
            explained = "; covariates explain that sample wholly" if residualized else ""
            refuse(
                "cosine normalization needs a positive k(x, x) that its precision resolves for every sample, but "
                f"kernel {self.names[j]!r} has {diagonal[j, i]:.3g} at position {i}{explained}; use 'trace' or "
                "'multiplicative', or leave out that kernel with select()"
            )
        return np.where(constant[:, None], 0.0, np.where(constant[:, None], 1.0, diagonal) ** -0.5)


def inverse_sizes(
    names: Sequence[str], size: Array, floor: Array | float, what: str, steps: Sequence[Step], *, zero_constant: bool
) -> Array:
    """1/size of kernels after some steps, (n,); 0 for those that are constant up to a floor, with `zero_constant`."""
    # A size below the rounding error of what centering removed may be any number: its inverse would blow up noise.
    constant = zero_constant & (np.abs(size) <= floor)
    bad = np.flatnonzero(~((size > floor) | constant))
    if bad.size:
        j = bad[0]
        if size[j] < -np.broadcast_to(floor, size.shape)[j]:
            why = "It is not positive semidefinite; repair it with repair='clip', 'flip' or 'shift', or"
        elif any(step.name == "residualize" for step in steps):
            why = "The covariates that residualize takes out explain it wholly, or it is constant;"
        else:
            why = "It is constant, or its diagonal is zero;"
        refuse(
            f"kernel {names[j]!r} cannot be normalized: its {what} over these samples is {size[j]:.3g}, "
            f"expected a positive number that its precision resolves. {why} leave it out with select()",
            kind=DegenerateKernelError,
        )
    return np.divide(1.0, size, out=np.zeros(len(size)), where=~constant)


@dataclass(frozen=True)
class Residualize(Step):
    """Remove the mean and the covariates, by a regression over the column samples."""

    name = "residualize"
    needs_training = needs_means = needs_row_means = True

    covariates: Covariates
    cols: Array
    rows: Array  # both are [1, Z] of the samples, (samples, 1 + covariates)
    weights: Array | None = None

    @cached_property
    def coefficients(self) -> Array:
        return basis(self.cols, self.weights)

    @cached_property
    def vectors(self) -> Array:
        share = np.full(len(self.cols), 1.0 / len(self.cols)) if self.weights is None else self.weights
        return np.asarray((share / share.sum())[:, None] * (self.cols @ self.coefficients))

    def training(self) -> Residualize:
        return replace(self, rows=self.cols)

    def for_rows(self, rows: Index) -> tuple[Residualize, Index]:
        return replace(self, rows=self.rows[rows]), rows

    def fit(self, state: ChainState) -> Residualizing:
        B, covariates, projected = self.coefficients, self.covariates, state.need("col_mean")
        stored = np.array(covariates.samples), covariates.design
        Q = self.cols @ B
        return Residualizing(Q, self.vectors, projected, B, *stored, self.rows @ B, state.row_mean, state.square)


@dataclass(frozen=True)
class Residualizing(FittedStep):
    """Residualize with its statistics."""

    name = "residualize"
    needs_row_means = True
    same_for_all = False
    shared = frozenset({"basis", "dual", "coefficients", "samples", "design", "row_basis"})

    basis: Array  # Q, (cols, rank)
    dual: Array  # G = diag(w)Q, (cols, rank)
    projected: Array  # T = KG, (kernel, cols, rank), of the kernels before this step
    coefficients: Array  # B, (1 + covariates, rank): q(x) = [1, z(x)]B
    samples: Array  # names of the samples with covariates
    design: Array  # their covariates, (samples, covariates)
    row_basis: OfRows = None  # q of each row, (rows, rank); None before the rows are chosen
    row_projected: OfRows = None
    """(kernel, rows, rank): T of the rows; None if the rows differ and it was not needed."""
    square: bool = True  # whether the rows are the column samples

    @property
    def vectors(self) -> Array:
        return self.dual

    def of_samples(self, samples: Array, covariates: Covariates | None = None) -> Residualizing:
        given = covariates or Covariates(tuple(map(str, self.samples)), (), self.design)
        return replace(self, row_basis=given.of(samples) @ self.coefficients, row_projected=None, square=False)

    def fit(self, state: ChainState) -> Residualizing:
        return replace(self, row_projected=state.row_mean, square=False)

    def mirrored(self, places: Index) -> Residualizing:
        dual = np.zeros((len(self.row_basis), self.dual.shape[1]))
        dual[places] = self.dual
        # Samples other than those of training get zero in G, so that they do not influence the regression.
        return replace(self, basis=self.row_basis, dual=dual, projected=self.row_projected, square=True)

    def training(self) -> Residualizing:
        return replace(self, row_basis=self.basis, row_projected=self.projected, square=True)

    def for_rows(self, rows: Index) -> tuple[Residualizing, Index]:
        near, row_basis = (self.projected, self.basis) if self.square else (self.row_projected, self.row_basis)
        near = None if near is None else near[:, rows]
        return replace(self, row_projected=near, row_basis=row_basis[rows], square=False), rows

    def for_columns(self, cols: Index) -> tuple[ProjectedColumns, Index]:
        assert self.square
        return ProjectedColumns(self.projected, self.basis, self.dual, self.basis[cols]), cols

    def right(self, j: int, v: Array) -> Array:
        # Pᵀv = v − G(Qᵀv): P is not symmetric if samples have weights.
        return np.asarray(v - self.dual @ (self.basis.T @ v))

    def left(self, j: int, y: Array, v: Array | None = None) -> Array:
        if self.square:
            y -= self.basis @ (self.dual.T @ y)
        elif v is not None:
            # For new rows −q(x)Tᵀ(Pᵀv) is added; v has been projected by `right` already.
            y -= self.row_basis @ (self.projected[j].T @ v)
        return y

    def elementwise(self, j: int, block: Array, rows: Index, cols: Index) -> Array:
        near, row_basis = (self.projected, self.basis) if self.square else (self.row_projected, self.row_basis)
        inner, q, other = self.dual.T @ self.projected[j], row_basis[rows], self.basis[cols]
        # PKPᵀ = K − QTᵀ − TQᵀ + Q(GᵀT)Qᵀ, entry by entry, with T = KG.
        return np.asarray(block - q @ self.projected[j][cols].T - near[j][rows] @ other.T + q @ inner @ other.T)

    def diagonal(self, diagonal: Array, *, rows: bool = False) -> Array | None:
        near, q = (self.row_projected, self.row_basis) if rows else (self.projected, self.basis)
        if near is None or q is None:
            return None
        # The diagonal of PKPᵀ: K_xx − 2q(x)ᵀT(x) + q(x)ᵀ(GᵀT)q(x).
        inner = np.einsum("ma,nmb->nab", self.dual, self.projected)
        return np.asarray(diagonal - 2 * np.einsum("ma,nma->nm", q, near) + np.einsum("ma,nab,mb->nm", q, inner, q))

    def means(self, mean: Array) -> Array:
        # P removes the constant among others, so that the means vanish.
        return np.zeros(mean.shape[:2])

    def removed(self, removed: Array | float) -> Array | float:
        return np.asarray(removed + np.abs(np.einsum("ma,nma->nm", self.dual, self.projected)).sum(axis=1))


@dataclass(frozen=True)
class ProjectedColumns(FittedStep):
    """Some columns of square kernels that are centered or residualized over all columns.

    The projector changes V in all columns. With V in these columns, P K Pᵀ V = P (KV − T QᵀV), T = KG; for centering Q
    is a column of ones, and G = w.
    """

    name = "projected columns"
    same_for_all = square = False
    shared = frozenset({"basis", "dual", "chosen"})

    projected: Array  # T, (kernel, rows, rank)
    basis: Array  # Q, (rows, rank)
    dual: Array  # G, (rows, rank)
    chosen: Array  # Q of the columns, (cols, rank)

    def left(self, j: int, y: Array, v: Array | None = None) -> Array:
        if v is not None:
            y -= self.projected[j] @ (self.chosen.T @ v)
        y -= self.basis @ (self.dual.T @ y)
        return y


# --- steps with statistics -----------------------------------------------------------------------------------------


def mean_over(values: Array, weights: Array | None) -> Array:
    """The mean over samples, (kernel,), of values (kernel, samples)."""
    return np.asarray(values.mean(axis=1) if weights is None else values @ (weights / weights.sum()))


@dataclass(frozen=True)
class Centering(FittedStep):
    """Subtract the means over the column samples."""

    name = "center"
    needs_row_means = True
    shared = frozenset({"weights"})

    col_mean: Array
    """(kernel, cols): mean over the column samples of each column sample's row, before this step; (kernel, 0) if only
    products with a square kernel are needed."""
    row_mean: OfRows = None  # (kernel, rows): the mean of each row; None if the rows differ and it was not needed
    square: bool = True  # whether the rows are the column samples
    weights: Array | None = None  # w, (cols,), which sums to one; None for equal weights

    def fit(self, state: ChainState) -> Centering:
        return replace(self, row_mean=state.row_mean, square=False)

    def mirrored(self, places: Index) -> Centering:
        # The grand mean is over the training samples: the other rows get no weight.
        weights = np.zeros(self.row_mean.shape[1])
        weights[places] = 1.0 / len(places) if self.weights is None else self.weights
        return Centering(self.row_mean, weights=weights)

    def training(self) -> Centering:
        return replace(self, row_mean=self.col_mean, square=True)

    def for_rows(self, rows: Index) -> tuple[Centering, Index]:
        mean = self.col_mean if self.square else self.row_mean
        return replace(self, row_mean=None if mean is None else mean[:, rows], square=False), rows

    def for_columns(self, cols: Index) -> tuple[ProjectedColumns, Index]:
        assert self.square
        ones = np.ones((self.col_mean.shape[1], 1))
        weights = ones / len(ones) if self.weights is None else self.weights[:, None]
        return ProjectedColumns(self.col_mean[:, :, None], ones, weights, ones[cols]), cols

    def right(self, j: int, v: Array) -> Array:
        if self.weights is None:
            return np.asarray(v - v.mean(axis=0, keepdims=True))
        return np.asarray(v - np.outer(self.weights, v.sum(axis=0)))

    def left(self, j: int, y: Array, v: Array | None = None) -> Array:
        # A square kernel needs no means: C(K(Cᵀv)) subtracts the means of the product instead.
        if self.square:
            # A float32 product is averaged in float64: the mean of many rows would otherwise lose digits.
            y -= y.mean(axis=0, keepdims=True, dtype=np.float64) if self.weights is None else self.weights @ y
            return y
        if v is not None:
            y -= self.col_mean[j] @ v
        return y

    def elementwise(self, j: int, block: Array, rows: Index, cols: Index) -> Array:
        row_mean = self.col_mean if self.square else self.row_mean
        mean = self.col_mean[j]
        grand = mean.mean() if self.weights is None else mean @ self.weights
        # ⟨φ(x) − μ, φ(z) − μ⟩ by the means of the row and of the column, and the grand mean.
        return np.asarray(block - row_mean[j][rows][:, None] - mean[cols][None, :] + grand)

    def diagonal(self, diagonal: Array, *, rows: bool = False) -> Array | None:
        mean = self.row_mean if rows else self.col_mean
        # ‖φ(x) − μ‖² = k(x, x) − 2⟨φ(x), μ⟩ + ‖μ‖², where ⟨φ(x), μ⟩ is the row mean of x and ‖μ‖² the grand mean.
        return None if mean is None else diagonal - 2.0 * mean + mean_over(self.col_mean, self.weights)[:, None]

    def means(self, mean: Array) -> Array:
        return np.zeros_like(mean)

    def removed(self, removed: Array | float) -> Array | float:
        # The entries lose means of this size, and keep the rounding error that they had before.
        return removed + mean_over(np.abs(self.col_mean), self.weights)


@dataclass(frozen=True)
class Scaling(FittedStep):
    """Multiply each kernel by its factor, (kernel,)."""

    name = "scale"

    factor: Array

    def scalar(self, j: int) -> float:
        return float(self.factor[j])

    def left(self, j: int, y: Array, v: Array | None = None) -> Array:
        y *= self.factor[j]
        return y

    def elementwise(self, j: int, block: Array, rows: Index, cols: Index) -> Array:
        return np.asarray(block * self.factor[j])

    def diagonal(self, diagonal: Array, *, rows: bool = False) -> Array:
        return np.asarray(diagonal * self.factor[:, None])

    def means(self, mean: Array) -> Array:
        return np.asarray(mean * self.factor[:, None])

    def removed(self, removed: Array | float) -> Array | float:
        return np.asarray(removed * self.factor)


@dataclass(frozen=True)
class _SampleScaling(FittedStep):
    """Multiply rows and columns by factors of the samples."""

    forgets_means = scales_columns = True

    col_scale: Array  # (kernel, cols), or (cols,) if all kernels have the same factors
    row_scale: OfRows = None  # (kernel, rows) or (rows,); None before the rows are chosen

    def _of(self, j: int, *, rows: bool) -> Array:
        """The factors of kernel j, (samples,)."""
        scale = self.row_scale if rows else self.col_scale
        return np.asarray(scale if scale.ndim == 1 else scale[j])

    def training(self) -> Self:
        return replace(self, row_scale=self.col_scale)

    def for_rows(self, rows: Index) -> tuple[Self, Index]:
        return replace(self, row_scale=self.row_scale[..., rows]), rows

    def for_columns(self, cols: Index) -> tuple[Self, Index]:
        return replace(self, col_scale=self.col_scale[..., cols]), cols

    def right(self, j: int, v: Array) -> Array:
        return np.asarray(v * self._of(j, rows=False)[:, None])

    def left(self, j: int, y: Array, v: Array | None = None) -> Array:
        y *= self._of(j, rows=True)[:, None]
        return y

    def elementwise(self, j: int, block: Array, rows: Index, cols: Index) -> Array:
        down, across = self._of(j, rows=True)[rows], self._of(j, rows=False)[cols]
        return np.asarray(block * down[:, None] * across[None, :])

    def diagonal(self, diagonal: Array, *, rows: bool = False) -> Array:
        scale = self.row_scale if rows else self.col_scale
        return np.asarray(diagonal * scale**2)

    def removed(self, removed: Array | float) -> Array | float:
        return np.asarray(removed * (self.col_scale**2).mean(axis=-1))


class CosineScaling(_SampleScaling):
    """Multiply the rows and the columns of each kernel by factors of its own."""

    name = "cosine"
    needs_row_diagonal = True
    same_for_all = False

    def fit(self, state: ChainState) -> CosineScaling:
        diagonal = state.need("diag_rows")
        # A constant kernel stays zero for new samples, whatever their k(x, x) is.
        constant = ~self.col_scale.any(axis=1, keepdims=True)
        return replace(self, row_scale=np.where(constant, 0.0, state.unit_scales(np.where(constant, 1.0, diagonal))))

    def mirrored(self, places: Index) -> CosineScaling:
        return CosineScaling(self.row_scale, self.row_scale)


class Weighing(_SampleScaling):
    """Multiply rows and columns by factors that are common to all kernels: a step without statistics."""

    name = "weigh"
    shared = frozenset({"col_scale", "row_scale"})


@dataclass(frozen=True)
class Take(FittedStep):
    """Keep some rows and columns: a step without statistics."""

    name = "take"
    changes_entries = False
    shared = frozenset({"rows", "cols", "before"})
    forgets_means = True  # a mean over fewer columns is another mean

    rows: Index
    cols: Index  # both are positions before the step, which may repeat and may be in any order
    before: Index  # the numbers of rows and columns before the step

    @property
    def keeps_square(self) -> bool:
        return np.array_equal(self.rows, self.cols)

    def training(self) -> Take:
        return Take(self.cols, self.cols, self.before[[1, 1]])

    def for_rows(self, rows: Index) -> tuple[Take, Index]:
        return Take(np.arange(len(rows)), self.cols, np.array([len(rows), self.before[1]])), self.rows[rows]

    def for_columns(self, cols: Index) -> tuple[Take, Index]:
        return Take(self.rows, np.arange(len(cols)), np.array([self.before[0], len(cols)])), self.cols[cols]

    def right(self, j: int, v: Array) -> Array:
        wide = np.zeros((self.before[1], v.shape[1]), dtype=v.dtype)
        np.add.at(wide, self.cols, v)  # positions may repeat, and `wide[cols] += v` would add only one of them
        return wide

    def left(self, j: int, y: Array, v: Array | None = None) -> Array:
        return y[self.rows]

    def diagonal(self, diagonal: Array, *, rows: bool = False) -> Array:
        return diagonal[:, self.rows if rows else self.cols]


_FITTED: dict[str, type[FittedStep]] = {
    kind.name: kind for kind in (Centering, Residualizing, Scaling, CosineScaling, Weighing, Take)
}


def load_step(described: Mapping[str, Any], arrays: Mapping[str, Array]) -> FittedStep:
    """The step that was saved by `FittedStep.described` and `FittedStep.arrays`; KeyError or TypeError if none was."""
    kind = _FITTED[described["kind"]]
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    return kind(**arrays, **{name: value for name, value in described.items() if name in names})


# --- steps by name -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Center(Step):
    """Center in feature space, by the means over the column samples."""

    name = "center"
    needs_training = needs_means = needs_row_means = True

    weights: Array | None = None

    def fit(self, state: ChainState) -> Centering:
        weights = None if self.weights is None else self.weights / self.weights.sum()
        return Centering(state.need("col_mean"), state.row_mean, state.square, weights)


@dataclass(frozen=True)
class Trace(Step):
    """Divide by the trace over the column samples."""

    name = "trace"
    needs_training = True

    weights: Array | None = None

    def fit(self, state: ChainState) -> Scaling:
        diagonal = state.need("diag_cols")
        if self.weights is None:
            size, count = diagonal.sum(axis=1), float(diagonal.shape[1])
        else:
            # Σ_i d_iK_ii: the trace of a set with d_i copies of sample i.
            size, count = diagonal @ self.weights, float(self.weights.sum())
        floor = state.resolution * (state.fitted.removed() * count)
        zero = state.zero_constant
        return Scaling(inverse_sizes(state.names, size, floor, "trace", state.fitted.steps, zero_constant=zero))


@dataclass(frozen=True)
class Multiplicative(Step):
    """Divide by the variance in feature space of the column samples."""

    name = "multiplicative"
    needs_training = needs_means = True

    weights: Array | None = None

    def fit(self, state: ChainState) -> Scaling:
        diagonal, mean = state.need("diag_cols"), state.need("col_mean")
        # The variance is the mean of ‖φ(x)‖² minus ‖μ‖²; centering does not change it.
        size = mean_over(diagonal, self.weights) - mean_over(mean, self.weights)
        # The variance is a difference of two means: compare it with the size of the terms that cancel.
        floor = state.resolution * (state.fitted.removed() + mean_over(abs(mean), self.weights))
        what, zero = "variance in feature space", state.zero_constant
        return Scaling(inverse_sizes(state.names, size, floor, what, state.fitted.steps, zero_constant=zero))


@dataclass(frozen=True)
class Cosine(Step):
    """Scale every sample to unit norm in feature space."""

    name = "cosine"
    needs_row_diagonal = forgets_means = True

    def fit(self, state: ChainState) -> CosineScaling:
        # Rows that are other samples are scaled by their own diagonal, which new samples have to bring along.
        columns = CosineScaling(state.unit_scales(state.need("diag_cols")))
        return columns.training() if state.square else columns.fit(state)


STEPS: dict[str, Step] = {step.name: step for step in (Center(), Trace(), Multiplicative(), Cosine())}
"""The steps that can be requested by name."""
NORMALIZATIONS = ("trace", "cosine", "multiplicative")
"""The steps that bring kernels to a common scale."""


def as_steps(steps: str | Covariates | Iterable[str | Covariates] | None) -> tuple[Any, ...]:
    """The names of steps, and covariates, in the order in which they are applied.

    They are names of `STEPS`, or a text with commas or + between them, as "cosine,center"; no step for None, () and
    "none". InputError is raised for anything else.
    """
    if isinstance(steps, str):
        steps = [] if steps.strip() in ("", "none") else [name.strip() for name in re.split("[,+]", steps)]
    names = () if steps is None else tuple(steps) if isinstance(steps, Iterable) else (steps,)
    for name in names:
        if not isinstance(name, Covariates) and name not in [*STEPS]:  # a list, as names may have no hash
            refuse(
                f"steps takes names of steps in the order in which they are applied, of {', '.join(STEPS)}, such as "
                f"('center', 'trace'), or residualize(Z) among them; got {plain_repr(name)}"
            )
    return names
