"""Passes over the rows of kernels that are products of factors, K_j = Z_jZ_jᵀ.

Every step is a map of the feature space: it centers, regresses out covariates, or scales the factor of each sample. So
the kernels after the steps have factors too, whose rows follow from single rows of the stored factors once a few sums
over the column samples are known (`RowMap`). Passes over the rows, in any order and on any worker, then give sums such
as ZᵀZ (`gram_matrices`) and products such as the scores of new rows (`row_products`); nothing of size (samples,
components) is ever in memory.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from dmkl.arrays import Array, Float, Index, Mask
from dmkl.errors import refuse
from dmkl.numerics.cholesky import add_gram
from dmkl.numerics.discriminant import null_leverages
from dmkl.numerics.steps import Fitted, Step, Weighing, inverse_sizes
from dmkl.passes.blas import blas_threads, factor_threads, pinned_blas
from dmkl.passes.execute import machine, on_disk, run_tasks, shared_folder, temporary_root
from dmkl.passes.view import READ_BYTES, Lens, View, bytes_of_task, strips

# --- steps on rows ----------------------------------------------------------------------------------------------------

_ROUNDING = 1e-24  # Squares of components below this share of their squares before centering are its rounding error.


@dataclass(frozen=True)
class RowMap:
    """The steps of a view as a map of the rows of its factors: z(x) with k_j(x, x') = z_j(x)ᵀz_j(x') after the steps.

    center          z − μ                   μ = Σ_i w_iz_i over the column samples
    residualize     z − Tᵀq(x)              T = GᵀZ, see `dmkl.numerics.steps`
    trace           z_j / √Σ_i d_i‖z_ij‖²
    multiplicative  z_j / √(Σ_i w_i‖z_ij‖² − ‖μ_j‖²)
    cosine          z_j / ‖z_j‖; 0 for kernels that are zero over the column samples
    weigh           √d_i z_i
    """

    view: View
    statistics: tuple[Array | None, ...] = ()
    """Of the first steps: μ (D,), T (rank, D), a factor for each component (D,), or for "cosine" the rounding error of
    ‖z_j‖² (n,), which is infinite for kernels of zeros; None for a step without."""
    squares: Float | None = None
    """Mean squares of the components before centering, (D,): what it leaves has a rounding error of this size."""

    @property
    def kernel_of(self) -> Index:
        """The kernel of each component, by its position in the view, (D,)."""
        widths = self.view.factors.widths[self.view.kernels]
        return np.repeat(np.arange(len(widths)), widths)

    def places(self, axis: int) -> list[Index]:
        """The places of the rows (axis 0) or columns (axis 1) before each fitted step, then those in the source."""
        steps: Any = self.view.steps[: len(self.statistics)]
        rows, cols = map(np.arange, replace(self.view, steps=steps).shape[1:])
        places = [both[axis] for both in Fitted(steps).positions(rows, cols)]
        return [*places[:-1], (self.view.rows, self.view.cols)[axis][places[0]]]

    def apply(self, Z: Float, places: Sequence[Index], axis: int) -> None:
        """Apply the fitted steps in place to rows of the source whose places before each step are given."""
        step: Any
        statistic: Any
        for step, statistic, at in zip(self.view.steps, self.statistics, places, strict=False):
            match step.name:
                case "center":
                    Z -= statistic
                case "residualize":
                    # PZ = Z − Q(GᵀZ): each row needs its own q and the sum T = GᵀZ alone.
                    Z -= ((step.rows, step.cols)[axis][at] @ step.coefficients) @ statistic
                case "trace" | "multiplicative":
                    Z *= statistic
                case "cosine":
                    sizes = self.by_kernel(Z * Z)
                    unresolved = ~(sizes > statistic)  # also NaN
                    if (refused := unresolved & np.isfinite(statistic)).any():
                        i, j = np.argwhere(refused)[0]
                        refuse(
                            "cosine normalization needs a positive k(x, x) that its precision resolves for every "
                            f"sample, but kernel {self._name(j)!r} has {sizes[i, j]:.3g} at sample "
                            f"{self.view.source.samples[places[-1][i]]!r}; use 'trace' or 'multiplicative', or leave "
                            "out that kernel with select()"
                        )
                    Z /= np.sqrt(np.where(unresolved, np.inf, sizes))[:, self.kernel_of]
                case "weigh":
                    Z *= (step.row_scale, step.col_scale)[axis][at][:, None]

    def _name(self, j: int) -> str:
        return str(self.view.source.names[self.view.kernels[j]])

    # --- fitting -------------------------------------------------------------------------------------------------

    def sums(self, step: Step, Z: Float, at: Index) -> list[Float]:
        """The part of some column samples, at these places, in the sums over samples that the next step needs."""
        if step.name == "residualize":
            assert step.vectors is not None
            return [np.asarray(step.vectors[at].T @ Z), np.array([float(len(at))]), np.sum(Z * Z, axis=0)]
        weights = np.ones(len(at)) if step.weights is None else step.weights[at]
        return [np.array([weights.sum()]), weights @ Z, weights @ (Z * Z)]

    def with_sums(self, step: Step, sums: Sequence[Float] | None) -> RowMap:
        """The map with one more step, from its sums over all column samples; None for a step without statistics."""
        if sums is None:
            return replace(self, statistics=(*self.statistics, None))
        if step.name == "residualize":
            return replace(self, statistics=(*self.statistics, sums[0]), squares=sums[2] / sums[1])
        (count,), total, squares = sums[0], sums[1] / sums[0], sums[2] / sums[0]
        # The trace of K_j is the sum of the squares of its components, and its variance that of Z_j around the mean.
        if step.name == "center":
            return replace(self, statistics=(*self.statistics, total), squares=squares)
        size = self.by_kernel(squares - total**2 if step.name == "multiplicative" else squares)
        floor = np.zeros(len(size)) if self.squares is None else _ROUNDING * self.by_kernel(self.squares)
        if step.name == "cosine":
            constant = size <= floor
            scale = np.where(constant, 0.0, 1.0 / np.where(constant, 1.0, size))[self.kernel_of]
            scaled = None if self.squares is None else self.squares * scale
            return replace(self, statistics=(*self.statistics, np.where(constant, np.inf, floor)), squares=scaled)
        if step.name == "multiplicative":
            floor = floor + _RESOLVED * self.by_kernel(total**2)  # the variance is a difference of these means
        what = {"trace": "trace", "multiplicative": "variance in feature space"}[step.name]
        names = [self._name(j) for j in range(len(size))]
        inverse = inverse_sizes(names, size, floor, what, self.view.steps, zero_constant=True)
        factor = np.sqrt(inverse / (count if step.name == "trace" else 1.0))[self.kernel_of]
        scaled = None if self.squares is None else self.squares * factor**2
        return replace(self, statistics=(*self.statistics, factor), squares=scaled)

    def by_kernel(self, values: Float) -> Float:
        """Sums over the components of each kernel, (..., n), of values (..., D)."""
        widths = self.view.factors.widths[self.view.kernels]
        return np.asarray(np.add.reduceat(values, np.cumsum(widths) - widths, axis=-1))


_WITH_SUMS = ("center", "residualize", "trace", "multiplicative", "cosine")
"""Steps that need sums over the column samples."""


def fit_row_maps(views: Sequence[View]) -> tuple[list[RowMap], float]:
    """The steps of several square views of the same kernels as maps of rows, and the number of passes."""
    maps, n_passes = [RowMap(view) for view in views], 0.0
    for k in range(max((len(view.steps) for view in views), default=0)):
        fitting = [number for number, view in enumerate(views) if k < len(view.steps)]
        needed = [n for n in fitting if views[n].steps[k].name in _WITH_SUMS]
        works = []
        for n in needed:
            places = maps[n].places(1)
            works.append((places[-1], partial(_step_sums, maps[n], places)))
        sums = dict(zip(needed, _over_rows("factor-sums", views[0], works, 1, _sum_of_parts), strict=True))
        for n in fitting:
            maps[n] = maps[n].with_sums(views[n].steps[k], sums.get(n))
        n_passes += bool(works)
    return maps, n_passes


def _step_sums(row_map: RowMap, places: Sequence[Index], total: list[Float] | None, Z: Float, at: Index) -> list[Float]:
    step = row_map.view.steps[len(row_map.statistics)]
    rows = np.empty(Z.shape)
    _map(row_map, places, 1, Z, at, rows)
    sums = row_map.sums(step, rows, at)
    return sums if total is None else [a + b for a, b in zip(total, sums, strict=True)]


# --- sums over rows ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gram:
    """The factors Z after the steps and targets H over the samples of a square view, as sums over the samples."""

    row_map: RowMap
    gram: Float  # ZᵀZ, (D, D)
    targets: Float  # ZᵀH, (D, C)

    @property
    def constant(self) -> Mask:
        """Which kernels are zero over the samples, up to the rounding error of centering, (n,)."""
        row_map = self.row_map
        traces = row_map.by_kernel(np.diagonal(self.gram))
        before = 0.0 if row_map.squares is None else row_map.by_kernel(row_map.squares)
        return np.asarray(traces <= _ROUNDING * row_map.view.shape[2] * before)


def gram_matrices(views: Sequence[View], targets: Sequence[Float]) -> tuple[Iterator[Gram], float]:
    """ZᵀZ and ZᵀH for square views of the same kernels and their targets, (m, C) each, in float64.

    Centering and factors are applied to the sums: a pass then serves the training sets of all folds, which share the
    sums over each held-out part. Other steps are applied to the rows, for each view apart, after passes for their
    statistics. Returns an iterator over the sums, which makes one after another, and the number of passes.
    """
    factors = views[0].factors
    # G − mμμᵀ loses digits where means are large, as of counts: the mean of some rows, which centering removes with
    # the rest, is subtracted first.
    shift = factors.read(views[0].kernels, 1, slice(0, _SHIFT_ROWS)).mean(axis=0, dtype=np.float64)
    on_sums = [number for number, view in enumerate(views) if _acts_on_sums(view)]
    on_rows = [number for number in range(len(views)) if number not in on_sums]
    fitted, n_passes = fit_row_maps([views[n] for n in on_rows])
    maps = dict(zip(on_rows, fitted, strict=True))
    parts = list[_PartSums]()
    for rows, numbers, positions in _parts(views, on_sums):
        # Side by side: a product for each training set would read the rows again.
        columns = np.concatenate([targets[n][at] for n, at in zip(numbers, positions, strict=True)], axis=1)
        parts.append(_PartSums(rows, columns, numbers, partial(_shift, shift), *_earlier_sums(views[0], rows, columns)))
    new = [part for part in parts if part.gram is None]
    for n, row_map in maps.items():
        places = row_map.places(1)
        parts.append(_PartSums(places[-1], targets[n], [n], partial(_map, row_map, places, 1)))
    missing = [part for part in parts if part.product is None]
    works = [
        (part.samples, partial(_part_of_gram, part.targets, part.fill, with_gram=part.gram is None)) for part in missing
    ]
    n_bytes = 8 * sum(part.gram is None for part in missing) * (1 + len(shift)) ** 2
    for part, (gram, product) in zip(
        missing, _over_rows("gram", views[0], works, 1, _sum_of_parts, n_bytes), strict=True
    ):
        part.gram, part.product = gram if part.gram is None else part.gram, product
    if new:
        kept = [replace(part, targets=on_disk(part.targets), gram=on_disk(part.gram)) for part in new]
        _LAST_SUMS[views[0].source] = views[0].kernels.tobytes(), kept
    return _grams(views, parts, maps, shift, [h.shape[1] for h in targets]), bool(works) + n_passes


@dataclass(eq=False)
class _PartSums:
    """Some samples of a source, the targets H (samples, C) of the views that have them, and their sums, if known."""

    samples: Index
    targets: Float
    members: list[int]  # Numbers of the views.
    fill: Callable[[Array, Index, Float], None]  # Writes the rows of the factors after the steps.
    gram: Any = None  # [1, Z]ᵀ[1, Z], (1 + D, 1 + D), its upper triangle.
    product: Any = None  # [1, Z]ᵀH, (1 + D, C)


_LAST_SUMS: WeakKeyDictionary[Any, tuple[bytes, list[_PartSums]]] = WeakKeyDictionary()
"""For each source the kernels of its last pass, and the sums over each part, while the source exists.

The samples of a refit are the parts of the folds together: their products take some hundred times the time of a pass
that reads the rows.
"""


def _earlier_sums(view: View, rows: Index, targets: Float) -> tuple[Float | None, Float | None]:
    """[1, Z]ᵀ[1, Z] and [1, Z]ᵀH over some samples, from parts of the last pass that make these up; None if unknown."""
    kernels, parts = _LAST_SUMS.get(view.source, (b"", []))
    inside = [part for part in parts if np.isin(part.samples, rows).all()]
    if kernels != view.kernels.tobytes() or not inside:
        return None, None
    order = np.argsort(rows)
    if not np.array_equal(np.sort(np.concatenate([part.samples for part in inside])), rows[order]):
        return None, None
    places = [order[np.searchsorted(rows, part.samples, sorter=order)] for part in inside]
    products = [_earlier_product(part, targets[at]) for part, at in zip(inside, places, strict=True)]
    gram = inside[0].gram.copy(order="K")
    for part in inside[1:]:
        gram += part.gram
    present = [product for product in products if product is not None]
    return np.asarray(gram), sum(present[1:], start=present[0]) if len(present) == len(products) else None


def _earlier_product(part: _PartSums, targets: Float) -> Float | None:
    """[1, Z]ᵀH of a part for other targets, if these are linear combinations of its own and of a constant."""
    if np.array_equal(part.targets, targets):
        return np.asarray(part.product)
    if part.targets.shape[1] ** 2 > len(part.gram):
        return None  # finding the combinations would take longer than reading the rows
    # Targets of classes are constant on each class, and centered targets differ between training sets by a constant.
    basis = np.column_stack([np.ones(len(targets)), part.targets])
    coefficients = np.linalg.lstsq(basis, targets)[0]
    error = np.abs(basis @ coefficients - targets).max(initial=0.0)
    if error > _SAME_TARGETS * np.abs(targets).max(initial=0.0):
        return None
    return np.asarray(np.column_stack([part.gram[0], part.product]) @ coefficients)


_SAME_TARGETS = 1e-13  # Relative differences of targets up to this are rounding.


def _grams(
    views: Sequence[View], parts: Sequence[_PartSums], maps: Mapping[int, RowMap], shift: Float, widths: Sequence[int]
) -> Iterator[Gram]:
    """The sums of each view, from those of the parts that it has; `widths` are the columns of the views' targets."""
    for n, view in enumerate(views):
        own = []
        for part in (part for part in parts if n in part.members):
            start = sum(widths[k] for k in part.members[: part.members.index(n)])
            own.append((part.gram, part.product[:, start : start + widths[n]]))
        gram, product = (arrays[0].copy(order="K") for arrays in zip(*own, strict=True))
        for gram_of_part, product_of_part in own[1:]:
            gram += gram_of_part
            product += product_of_part
        for start in range(0, len(gram), _GRAM_COLUMNS):
            # The sums are upper triangles, column after column: some columns at a time need no other large array.
            stop = start + _GRAM_COLUMNS
            square = np.triu(gram[start:stop, start:stop])
            gram[start:stop, start:stop] = square + np.triu(square, 1).T
            gram[stop:, start:stop] = gram[start:stop, stop:].T
        if n in maps:
            yield Gram(maps[n], gram[1:, 1:], product[1:])
            continue
        # Σ(z − μ)(z − μ)ᵀ = Σzzᵀ − mμμᵀ and Σ(z − μ)hᵀ = Σzhᵀ − μΣhᵀ; the first row holds m, the sums of z and of h.
        count, mean = gram[0, 0], gram[0, 1:] / gram[0, 0]
        gram, product = gram[1:, 1:], product[1:] - np.outer(mean, product[0])
        squares = np.diagonal(gram) - count * mean**2
        # Of components that do not vary the difference is rounding error.
        varies = squares > _RESOLVED * np.diagonal(gram)
        squares, factors = np.where(varies, squares, 0.0), varies.astype(np.float64)
        row_map = RowMap(view, (mean + shift,), squares / count + (mean + shift) ** 2)
        for step in view.steps[1:]:
            row_map = row_map.with_sums(step, [np.array([count]), np.zeros(len(mean)), squares * factors**2])
            factor = row_map.statistics[-1]
            assert factor is not None
            factors = factors * factor
        for start in range(0, len(gram), _GRAM_COLUMNS):
            some = slice(start, start + _GRAM_COLUMNS)
            gram[:, some] -= (count * mean)[:, None] * mean[some]
            gram[:, some] *= factors[:, None] * factors[some]
        product *= factors[:, None]
        yield Gram(row_map, gram, product)


_RESOLVED = 32 * float(np.finfo(np.float64).eps)
"""Variances above this share of the mean square are not rounding error."""
_SHIFT_ROWS = 1024
_GRAM_COLUMNS = 256


def _acts_on_sums(view: View) -> bool:
    names = [step.name for step in view.steps]
    return (
        names[:1] == ["center"]
        and set(names[1:]) <= {"trace", "multiplicative"}
        and all(step.weights is None for step in view.steps)
    )


def _parts(views: Sequence[View], numbers: Sequence[int]) -> Iterator[tuple[Index, list[int], list[Index]]]:
    """Parts of the source's samples that lie in the same views: samples, views, and the samples' places in each view.

    If there are more parts than views, as with resampled rows, each view is a part.
    """
    n_samples = views[0].source.tiling.cols
    counts = {n: np.bincount(views[n].cols, minlength=n_samples) for n in numbers}
    # One bit for each view: samples with equal codes lie in the same views. Of the folds of a cross-validation, each
    # held-out part lies in all training sets but one.
    codes = sum(
        (counts[n].astype(np.int64) << bit for bit, n in enumerate(numbers)), start=np.zeros(n_samples, np.int64)
    )
    patterns = np.unique(codes[codes > 0])
    if len(patterns) > len(numbers) or len(numbers) > _MOST_BITS or any(count.max() > 1 for count in counts.values()):
        yield from ((views[n].cols, [n], [np.arange(len(views[n].cols))]) for n in numbers)
        return
    places = {n: np.zeros(n_samples, dtype=np.int64) for n in numbers}
    for n in numbers:
        places[n][views[n].cols] = np.arange(len(views[n].cols))
    for pattern in patterns.tolist():
        rows, inside = np.flatnonzero(codes == pattern), [n for bit, n in enumerate(numbers) if pattern >> bit & 1]
        yield rows, inside, [places[n][rows] for n in inside]


_MOST_BITS = 62


def _shift(shift: Float, Z: Array, at: Index, out: Float) -> None:
    out[:] = Z  # numpy.subtract would convert half precision twice as slowly
    out -= shift


def _map(row_map: RowMap, places: Sequence[Index], axis: int, Z: Array, at: Index, out: Float) -> None:
    out[:] = Z
    row_map.apply(out, [place[at] for place in places], axis)


def weighted_sums(items: Sequence[tuple[RowMap, Float | None, Float]]) -> list[tuple[Float, Float]]:
    """Of rows Z after the steps and columns H, (m, C): ZᵀWZ and ZᵀW^½H for roots W^½ (m,), or nothing and ZᵀH."""
    works: list[_Work] = []
    for row_map, root, columns in items:
        weighted = row_map
        if root is not None:
            view = replace(row_map.view, steps=(*row_map.view.steps, Weighing(root, root)))
            weighted = replace(row_map, view=view, statistics=(*row_map.statistics, None))
        places = weighted.places(1)
        fill = partial(_map, weighted, places, 1)
        works.append((places[-1], partial(_part_of_gram, columns, fill, with_gram=root is not None)))
    n_bytes = sum(8 * (1 + len(row_map.kernel_of)) ** 2 for row_map, root, _ in items if root is not None)
    sums = _over_rows("weighted-sums", items[0][0].view, works, 1, _sum_of_parts, n_bytes)
    return [((np.triu(gram) + np.triu(gram, 1).T)[1:, 1:], product[1:]) for gram, product in sums]


def _part_of_gram(
    targets: Float,
    fill: Callable[[Array, Index, Float], None],
    total: list[Float] | None,
    Z: Array,
    at: Index,
    *,
    with_gram: bool,
) -> list[Float]:
    """Add [1, Z]ᵀ[1, Z], its upper triangle, and [1, Z]ᵀH; `fill` writes the rows after the steps."""
    rows = np.empty((len(Z), 1 + Z.shape[1]))
    rows[:, 0] = 1.0
    fill(Z, at, rows[:, 1:])
    if total is None:
        side = rows.shape[1] if with_gram else 0
        total = [np.zeros((side, side), order="F"), np.zeros((rows.shape[1], targets.shape[1]))]
    if with_gram:
        # Without the interpreter's lock: other tasks multiply, and the next part is read, meanwhile.
        add_gram(total[0], rows)
    total[1] += rows.T @ targets[at]
    return total


# --- functions of rows ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowFunction:
    """A function of the rows after the steps, (r, D), for some rows (axis 0) or columns (axis 1) of a view."""

    row_map: RowMap
    axis: int
    positions: Index  # Positions among all rows, or columns, of the view.
    function: Callable[[Float], Float]
    width: int  # Columns of its results, (r, width).
    file: Path | None = None
    """Where its results are kept, in column-major order; None for memory or, if large, a temporary file."""


def row_products(items: Sequence[RowFunction]) -> tuple[list[Float], float]:
    """The results of functions of rows, (positions, width), and the number of passes.

    Functions of rows and of columns share the pass where these are the same samples, as in symmetric sources.
    Results of more than 1/32 of the memory are mapped from temporary files, in column-major order: solutions are read
    column by column.
    """
    if not items:
        return [], 0.0
    n_bytes = sum(8 * len(item.positions) * item.width for item in items)
    in_files = any(item.file for item in items) or 32 * n_bytes > machine().total_bytes
    results = []
    with shared_folder("where products with factors are written") if in_files else nullcontext() as folder:
        works = []
        for item in items:
            places = [place[item.positions] for place in item.row_map.places(item.axis)]
            works.append((places[-1], partial(_function_of_rows, item, places, folder)))
        tasks = _over_rows("factor-products", items[0].row_map.view, works, items[0].axis, None)
        for item, *blocks_of_tasks in zip(items, *tasks, strict=True):
            shape = (len(item.positions), item.width)
            with nullcontext(item.file) if item.file or not folder else TemporaryFile(dir=temporary_root()) as file:
                # A temporary file stays until the array is gone.
                result: Float = np.memmap(file, np.float64, "w+", shape=shape, order="F") if file else np.empty(shape)
            for at, values in itertools.chain.from_iterable(blocks or () for blocks in blocks_of_tasks):
                result[at] = np.load(values) if folder else values
                if folder:
                    values.unlink()  # the same disk holds the result
            results.append(result)
    return results, 1.0


def _function_of_rows(
    item: RowFunction, places: Sequence[Index], folder: Path | None, blocks: list[Any] | None, Z: Float, at: Index
) -> list[Any]:
    """Add the positions of some rows and the values there, or the file that holds these."""
    # One small array for all rows: page faults of new ones would take longer than the steps.
    parts = list(strips(Z.shape[1], slice(0, len(Z)), _FUNCTION_BYTES))
    rows, blocks_of_rows = np.empty((parts[0].stop, Z.shape[1])), []
    for part in parts:
        some = rows[: part.stop - part.start]
        _map(item.row_map, places, item.axis, Z[part], at[part], some)
        blocks_of_rows.append(item.function(some))
    values: Any = np.concatenate(blocks_of_rows)
    if folder is not None:
        # Each file has one writer: on a network file system, pages that two machines write to would be lost.
        file = folder / f"{uuid.uuid4().hex}.npy"
        np.save(file, values)
        values = file
    return [*(blocks or []), (at, values)]


def means_function(row_map: RowMap) -> RowFunction | None:
    """The means over the columns of a square view, K̄_j(i) = z_ijᵀμ_j, before centering; None without that first step.

    Saved models have these means; as functions of rows they need no pass of their own.
    """
    mean = row_map.statistics[0] if _acts_on_sums(row_map.view) else None
    if mean is None:
        return None
    raw = RowMap(replace(row_map.view, steps=()))
    return RowFunction(raw, 1, np.arange(raw.view.shape[1]), partial(_products, raw, mean), raw.view.shape[0])


def _products(row_map: RowMap, vector: Float, Z: Float) -> Float:
    return row_map.by_kernel(Z * vector)


def inverse_diagonals_by_factors(
    views: Sequence[View],
    weights: Sequence[Float],
    lams: Sequence[tuple[float, ...]],
    vectors: Sequence[Float | None],
) -> tuple[list[Float], float]:
    """The diagonal of A⁻¹ − 2P, A = ½(I + K(β)/λ), at several λ, (λ, 1, m), for square views: see `dmkl.passes.sums`.

    With K(β) = YYᵀ and YᵀY = UDUᵀ it is 2(1 − p_i − Σ_k (YU)_ik²/(λ + D_k)). With a vector v, the same for requests of
    one view, A⁻¹v = 2(v − YU(λ + D)⁻¹UᵀYᵀv) is the second row. Returns the number of passes, too.
    """
    given = {id(view): (view, vector) for view, vector in zip(views, vectors, strict=True)}
    distinct = [view for view, _ in given.values()]
    blocks = [np.empty((view.shape[1], 0)) if v is None else v[:, None] for view, v in given.values()]
    sums, n_passes = gram_matrices(distinct, blocks)
    grams = dict(zip(given, sums, strict=True))
    items = []
    for view, beta, lams_of_view in zip(views, weights, lams, strict=True):
        gram = grams[id(view)]
        root = np.sqrt(beta)[gram.row_map.kernel_of]
        values, directions = np.linalg.eigh(root[:, None] * gram.gram * root)
        shrinkage = 1.0 / (np.maximum(values, 0.0)[:, None] + np.array(lams_of_view))
        turned = root[:, None] * directions
        # UᵀYᵀv/(λ + D) at each λ, for the one vector if there is one.
        images = np.hstack(
            [shrinkage * column[:, None] for column in (turned.T @ gram.targets).T] or [shrinkage[:, :0]]
        )
        function, width = partial(_leverages, turned, shrinkage, images), shrinkage.shape[1] + images.shape[1]
        items.append(RowFunction(gram.row_map, 1, np.arange(view.shape[1]), function, width))
    products, n_more = row_products(items)
    diagonals = []
    for view, vector, of_view, lams_of_view in zip(views, vectors, products, lams, strict=True):
        null = Lens(view).null_vectors()
        projected = 0.0 if null is None else null_leverages(null)[:, None]
        rows = [1.0 - projected - of_view[:, : len(lams_of_view)]]
        rows += [] if vector is None else [vector[:, None] - of_view[:, len(lams_of_view) :]]
        diagonals.append(2.0 * np.stack(rows).transpose(2, 0, 1))
    return diagonals, n_passes + n_more


def _leverages(turned: Float, shrinkage: Float, images: Float, Z: Float) -> Float:
    coordinates = Z @ turned
    return np.hstack([coordinates**2 @ shrinkage, coordinates @ images])


_FUNCTION_BYTES = 2**24  # Bytes of the rows that a function computes with at a time.
_STRIP_BYTES = 2**26
"""Bytes of the rows that each work adds at a time: sums of few rows would take as long as reading the old ones."""


# --- passes over rows -------------------------------------------------------------------------------------------------


_Work = tuple[Index, Callable[[Any, Float, Index], Any]]
"""Positions of samples in the source, and a function of its result so far, of factor rows (r, D) of some of them, and
of the places (r,) of these among all. The rows are as they are stored, and functions compute in double precision: the
least λ of a default grid is 1e-8 of the trace."""


def _over_rows(
    name: str, view: View, works: Sequence[_Work], axis: int, add: Callable[..., Any] | None, result_bytes: int = 0
) -> Any:
    """For each task of a pass over the rows, a result for each work; with `add` the sum over the tasks."""
    if not works:
        return []
    n_rows, n_bytes, host = (view.source.tiling.rows, view.source.tiling.cols)[axis], view.bytes_per_pass, machine()
    # Cut by the data alone, so that sums round equally everywhere; but large sums, of which only some fit in memory,
    # are made by as many tasks as run at once, or one at a time with all cores.
    n_tasks = max(1, round(n_bytes / bytes_of_task(n_bytes)))
    if 4 * result_bytes * n_tasks > host.total_bytes:
        n_tasks = max(1, host.total_bytes // (4 * result_bytes) // host.slots * host.slots)
    cuts = np.linspace(0, n_rows, n_tasks + 1).astype(np.int64)
    chunk = view.factors.chunk_rows
    if n_rows >= n_tasks * chunk:
        cuts[1:-1] -= cuts[1:-1] % chunk  # no chunk is read by two tasks
    orders = [np.argsort(samples, kind="stable") for samples, _ in works]
    sorted_works = [(samples[order], order, work) for (samples, work), order in zip(works, orders, strict=True)]
    n_columns = int(view.factors.widths[view.kernels].sum())
    threads = factor_threads(n_columns) if n_tasks == 1 else blas_threads(min(n_tasks, host.slots_per_host))
    tasks = [partial(_of_range, slice(*ends), threads) for ends in itertools.pairwise(cuts.tolist())]
    results = run_tasks(name, tasks, view, axis, sorted_works, task_bytes=n_bytes // n_tasks, add=add)
    return results if add is None else results[0]


def _of_range(
    rows: slice,
    threads: int,
    view: View,
    axis: int,
    works: Sequence[tuple[Index, Index, Callable[[Any, Float, Index], Any]]],
) -> list[Any]:
    factors, n_columns = view.factors, int(view.factors.widths[view.kernels].sum())
    results: list[Any] = [None] * len(works)
    parts = [
        part
        for part in strips(n_columns, rows, READ_BYTES, view.source.dtype.itemsize, factors.chunk_rows)
        if any(np.ptp(np.searchsorted(work[0], (part.start, part.stop))) for work in works)
    ]
    with pinned_blas(threads), ThreadPoolExecutor(1) as reader:
        # The next part is read while this one is multiplied.
        read = partial(factors.read, view.kernels, axis)
        ahead = [reader.submit(read, part) for part in parts[:1]]
        for part, following in itertools.zip_longest(parts, parts[1:]):
            values = ahead.pop().result()
            if following is not None:
                ahead.append(reader.submit(read, following))
            for strip in strips(n_columns, part, len(works) * _STRIP_BYTES):
                for k, (samples, order, function) in enumerate(works):
                    start, stop = np.searchsorted(samples, (strip.start, strip.stop))
                    if start < stop:
                        Z = values[samples[start:stop] - part.start]
                        results[k] = function(results[k], Z, order[start:stop])
    return results


def _sum_of_parts(parts: list[list[list[Float] | None]]) -> list[list[Float] | None]:
    # New arrays: the results of other tasks must stay as they are, in case Dask runs this task again.
    totals: list[list[Float] | None] = []
    for parts_of_work in zip(*parts, strict=True):
        present = [arrays for arrays in parts_of_work if arrays is not None]  # a task may have no rows of a work
        totals.append([np.asarray(sum(arrays)) for arrays in zip(*present, strict=True)] if present else None)
    return totals
