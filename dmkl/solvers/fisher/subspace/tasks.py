"""Tasks of the subspace solver: they read and write the files of a subspace, and need no pass over the kernels.

Matrices with a row for each sample stay where tasks make them, as arrays of this process or files that all workers see
(`Strips`); the process that runs the solver knows only where their rows lie.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dmkl.arrays import Array, Float, Index
from dmkl.errors import DamagedFileError
from dmkl.files.arrays import load_array, load_rows, save_array, save_parts
from dmkl.numerics.cholesky import RoughFactor, Solve, refined_and_bounded
from dmkl.numerics.fisher import uniform_weights
from dmkl.numerics.semidefinite import KernelFacts, lowest_on_span
from dmkl.passes.blas import blas_threads, pinned_blas
from dmkl.passes.execute import run_tasks
from dmkl.passes.sums import StoredSum, SumColumns
from dmkl.passes.sweep import Buffers
from dmkl.solvers.fisher.mkfda import MemoryOracle, Solution, solve_restricted
from dmkl.solvers.fisher.subspace.preconditioners import is_kept, read_factor, save_factor
from dmkl.solvers.fisher.subspace.rounding import PROBES
from dmkl.solvers.interface import check_finite
from dmkl.solvers.weight_sets import WeightSet


def run_checked(
    name: str, work: Sequence[Callable[..., Any]], *shared: Any, own: Sequence[Any] | None = None
) -> list[Any]:
    """The results of `dmkl.passes.execute.run_tasks`; DegenerateKernelError if an array among them is not finite."""
    results = run_tasks(name, work, *shared, own=own)
    check_finite(results)
    return results


# --- matrices in strips of rows ------------------------------------------------------------------------------------


def keep(array: Float, path: str | None) -> Float | str:
    """Write an array to a file that all workers see, and return its path; return the array if there is no path."""
    if path is None:
        return array
    save_array(path, array)
    return path


def numbered(kept: str | None, number: int) -> str | None:
    """The file of one of several parts; None if they are not written to files."""
    return None if kept is None else f"{kept}-{number}.npy"


@dataclass(frozen=True, eq=False)
class Strips:
    """Columns of a matrix in strips of rows: arrays of this process, or files if tasks run in other processes."""

    parts: tuple[Array | str, ...]  # The strips from the first row to the last, each an array (rows, k) or its file
    rows: int  # Of all strips
    columns: tuple[int, int]  # The first column, and the one after the last

    @classmethod
    def of(cls, array: Array) -> Strips:
        """All of an array (rows, columns)."""
        return cls((array,), len(array), (0, array.shape[1]))

    @property
    def width(self) -> int:
        """Columns."""
        return self.columns[1] - self.columns[0]

    def __sizeof__(self) -> int:
        return sum(part.nbytes for part in self.parts if not isinstance(part, str))

    @classmethod
    def side_by_side(cls, parts: Sequence[Array | str], rows: int, widths: Iterable[int]) -> list[Strips]:
        """Several matrices of these widths, of which each strip has the columns one after another."""
        ends = np.cumsum([0, *widths]).tolist()
        return [cls(tuple(parts), rows, columns) for columns in itertools.pairwise(ends)]

    def array(self) -> Float:
        """The columns as an array (rows, columns), which must not be written to."""
        chosen = slice(*self.columns)
        strips = [_loaded(part)[:, chosen] for part in self.parts]
        return strips[0] if len(strips) == 1 else np.concatenate([*strips, np.zeros((0, self.width))])


# --- widening the basis --------------------------------------------------------------------------------------------


def probe_file(path: str, n_rows: int) -> None:
    """Draw the probes Z, (m, s), and write them."""
    save_array(path, np.random.default_rng(n_rows).standard_normal((n_rows, PROBES)))


def widen_basis(before: str, path: str, block: Strips) -> None:
    """Write V with a block of new columns, (m, r)."""
    parts = [load_array(before)] if before else []
    save_array(path, np.concatenate([*parts, block.array()], axis=1))


def basis_times(basis: str, coefficients: Float) -> Float:
    """Compute α = V a, (m, c)."""
    with pinned_blas(1):
        return np.asarray(load_array(basis) @ coefficients)


def project(basis: str, inner: str, projected: str, targets: Sequence[Float]) -> None:
    """Write N = VᵀV, (r, r), and VᵀH of all targets side by side, (r, columns)."""
    v = load_array(basis)
    with pinned_blas(1):
        save_array(inner, v.T @ v)
        save_array(projected, np.concatenate([v.T @ h for h in targets], axis=1))


Made = tuple[tuple[int, int], tuple[Float | str, ...], tuple[Float | str, ...] | None]
"""Products of a pass with a block U of a basis, projected onto the basis: the columns of U in it, VᵀK_jU, (n, r, b), in
groups of kernels, as arrays or files, and ZᵀE_j, (n, s, b), in the same groups; None if rounding is not measured."""


def widen_gram(gram: tuple[str, str], errors: tuple[str, str], shape: tuple[int, int], made: Sequence[Made]) -> None:
    """Write G_j and ZᵀE_j with the products of new basis vectors, or with repeated products of a block.

    The present files, empty before the first block, come before the new ones. `shape` is that of n kernels and r basis
    vectors. Products in single precision come first.
    """
    n, r = shape
    before = load_array(gram[0]) if gram[0] else np.empty((n, 0, 0))
    # Some kernels at a time: G of thousands of kernels is larger than all vectors of a search.
    save_parts(gram[1], (n, r, r), before.dtype, _widened(before, r, made))
    e = np.zeros((n, PROBES, r))
    if errors[0]:
        before = load_array(errors[0])
        e[:, :, : before.shape[2]] = before
    for (first, last), _, hidden in made:
        e[:, :, first:last] = 0.0 if hidden is None else np.concatenate([_loaded(part) for part in hidden])
    save_array(errors[1], e)


def _widened(before: Array, width: int, made: Sequence[Made]) -> Iterator[Array]:
    """G_j, (kernels, r, r), of one group of kernels after another; all products of a pass have the same groups."""
    start = 0
    for crosses in zip(*(map(_loaded, parts) for _, parts, _ in made), strict=True):
        kernels = slice(start, start + len(crosses[0]))
        g = np.empty((len(crosses[0]), width, width))
        g[:, : before.shape[1], : before.shape[2]] = before[kernels]
        for ((first, last), _, _), cross in zip(made, crosses, strict=True):
            check_finite(cross)
            g[:, :, first:last] = cross
            g[:, first:last, :] = cross.transpose(0, 2, 1)
            # UᵀK_jU is symmetric but for rounding: the mean with its transpose keeps G_j exactly symmetric.
            g[:, first:last, first:last] += cross[:, first:last]
            g[:, first:last, first:last] *= 0.5
        yield g
        start = kernels.stop


def _loaded(part: Array | str) -> Array:
    return load_array(part) if isinstance(part, str) else part


def lowest(inner: str, gram: str, width: int, facts: KernelFacts) -> Float:
    """Bound the lowest eigenvalue of each kernel from above, (n,), on the span of the first columns of the basis."""
    with pinned_blas(1):
        return lowest_on_span(load_array(inner)[:width, :width], load_array(gram)[:, :width, :width], facts)


Groups = Sequence[tuple[str, Sequence[int]]]  # The names of some files, and the kernels in each


@dataclass(frozen=True)
class ProductFiles:
    """The files of K_jV of one training set, in a folder, for each round by groups of kernels."""

    folder: Path
    rounds: tuple[Groups, ...]

    def of(self, kernels: Sequence[int]) -> ProductFiles:
        """The files that contain some kernels."""
        wanted = set(kernels)
        rounds = (tuple((name, ks) for name, ks in groups if wanted & set(ks)) for groups in self.rounds)
        return ProductFiles(self.folder, tuple(rounds))

    def strip(self, kernel: int, rows: slice) -> Array:
        """Read some rows of K_jV, (rows, r)."""
        blocks = []
        for groups in self.rounds:
            name, position = next((name, ks.index(kernel)) for name, ks in groups if kernel in ks)
            blocks.append(load_rows(self.folder / name, position, rows))
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks, axis=1)


@dataclass(frozen=True)
class Keeping:
    """Files for the products W_j = K_jU of a block U of the basis, and for what is computed from them."""

    path: Path  # That of W_j
    basis: str  # That of V, (m, r), which contains U as some columns
    columns: tuple[int, int]
    probes: str = ""  # That of Z, (m, s); empty if rounding is not measured
    ahead: Path | None = None  # That of K_jZ, if the columns of Z follow those of U in this pass
    probed: ProductFiles | None = None  # Those of K_jZ of an earlier pass, otherwise
    double: tuple[tuple[tuple[int, int], ProductFiles], ...] = ()
    """The columns of other blocks in double precision, with the files of their products."""
    results: str | None = None  # The prefix of files for results that are not returned


def keep_products(
    products: Sequence[Array],
    buffers: Buffers,
    *,
    keepings: Sequence[Keeping],
    kernels: tuple[int, ...],
    tasks_per_machine: int,
) -> list[tuple[Float | str, Float | str | None]]:
    """Write the products of some kernels with several blocks; return the results of `_keep_block` for each."""
    pairs = zip(products, keepings, strict=True)
    return [_keep_block(w, buffers, keeping, kernels, tasks_per_machine) for w, keeping in pairs]


def _keep_block(
    products: Array, buffers: Buffers, keeping: Keeping, kernels: tuple[int, ...], tasks_per_machine: int
) -> tuple[Float | str, Float | str | None]:
    """Write the products of some kernels to disk; return VᵀW_j, (kernels, r, b), and ZᵀE_j, (kernels, s, b).

    For W_j in single precision the rows of VᵀW_j that belong to a block with products in double precision are (K_jV)ᵀU,
    which has the smaller error.
    """
    v = load_array(keeping.basis)  # read where it is used, and not copied for each kernel
    m, (first, last) = len(v), keeping.columns
    if keeping.ahead:
        save_array(keeping.ahead, products[:, :m, last - first :])
    products = products[:, :, : last - first]
    save_array(keeping.path, products)
    u = v[:, first:last]
    is_identity = v.shape == (m, m) and np.array_equal(v, np.eye(m))  # the block of few training samples: VᵀW = W
    probes = None if keeping.probed is None else load_array(keeping.probes)
    cross, errors = np.empty((len(kernels), v.shape[1], last - first)), []
    single = _between([columns for columns, _ in keeping.double], v.shape[1])
    double = buffers.take("double", cross.dtype, m, last - first)
    with pinned_blas(blas_threads(tasks_per_machine)):
        for position, (w, kernel) in enumerate(zip(products, kernels, strict=True)):
            np.copyto(double, w[:m])
            for start, stop in single:
                if is_identity:
                    cross[position, start:stop] = double[start:stop]
                else:
                    np.matmul(v[:, start:stop].T, double, out=cross[position, start:stop])
            # K_j is symmetric: V_bᵀK_jU = (K_jV_b)ᵀU for a block V_b whose products are in double precision.
            for (start, stop), files in keeping.double:
                np.matmul(files.strip(kernel, slice(0, m)).T, u, out=cross[position, start:stop])
            if probes is not None and keeping.probed is not None:
                errors.append(probes.T @ double - keeping.probed.strip(kernel, slice(0, m)).T @ u)
    cross_file, errors_file = (keeping.results and f"{keeping.results}-{what}.npy" for what in ("cross", "errors"))
    return keep(cross, cross_file), keep(np.stack(errors), errors_file) if errors else None


def _between(parts: Sequence[tuple[int, int]], end: int) -> list[tuple[int, int]]:
    """The ranges of 0 … end that lie between the given ranges, each (first, one after the last)."""
    edges = [0, *itertools.chain(*sorted(parts)), end]
    return [(start, stop) for start, stop in zip(edges[::2], edges[1::2], strict=True) if start < stop]


SolveJob = tuple[int, WeightSet, Float | None, float, Index | None]
"""A point to solve in the subspace: its number, its set of weights, β, (n,), to start from, or None for the solution of
the point before it, the weights gap to reach, and the kernels as in `Point`."""


def solve_points(
    files: tuple[str, str, str], columns: tuple[int, int], lam: float, facts: KernelFacts, jobs: list[SolveJob]
) -> list[tuple[int, Solution]]:
    """Solve points of one fold, target and λ in sequence, each from its present β or from the point before it.

    The files are those of G, N = VᵀV, and VᵀH of all targets side by side, of which this target has some columns.
    """
    g, inner, targets = map(load_array, files)  # all tasks of a machine share these pages
    h = np.ascontiguousarray(targets[:, slice(*columns)])
    solutions: list[tuple[int, Solution]] = []
    # Each point starts from the solution at the norm before it, which is nearer than equal weights.
    near = uniform_weights(len(g), 2.0)
    # One thread for each task: the problems are too small for more, which would wait for one another.
    with pinned_blas(1):
        for number, weights, beta, tol, kernels in jobs:
            start = near if beta is None else beta
            chosen = np.arange(len(g)) if kernels is None else kernels
            some = g if kernels is None else g[chosen]
            oracle = MemoryOracle(some, h, lam, weights, inner, facts.select(kernels))
            solution = solve_restricted(oracle, weights.start(len(chosen), start[chosen]), tol)
            near = np.zeros(len(g))
            near[chosen] = solution.beta
            solutions.append((number, replace(solution, beta=near)))
    return solutions


def combined_products(
    files: ProductFiles, rows: slice, path: str | None, weights: Float, coefficients: Float, *, tasks_per_machine: int
) -> Float | str:
    """Compute Σ_j w_jk K_jV z_k for every column k over some rows; each K_jV is read once for all columns.

    Weights are (n, k), and the coefficients z (r, k). The result is written to a file if there is a path.
    """
    total = np.zeros((rows.stop - rows.start, coefficients.shape[1]))
    with pinned_blas(blas_threads(tasks_per_machine)):
        for j in np.flatnonzero(np.any(weights, axis=1)):
            used = np.flatnonzero(weights[j])
            strip = files.strip(int(j), rows).astype(np.float64, copy=False)
            # Points at p = 1 have few kernels: columns without weight for kernel j are left out of its product.
            if len(used) == coefficients.shape[1]:
                total += strip @ (coefficients * weights[j])
            else:
                total[:, used] += strip @ (coefficients[:, used] * weights[j, used])
    return keep(total, path)


def residual_strip(
    files: ProductFiles,
    basis: str,
    rows: slice,
    path: str | None,
    weights: Float,
    coefficients: Float,
    lams: Float,
    chosen: Index,
    targets: Float,
    *,
    tasks_per_machine: int,
) -> tuple[Float | str, Float]:
    """Compute R = H − ½Va − (1/2λ) Σ_j β_j K_jV a over some rows, and the sum of squares of each column, (k,).

    β (n, k), a (r, k) and λ (k,) belong to the columns, and `chosen` (k,) is the column of the targets, H over these
    rows, that each belongs to. R is written to a file if there is a path.
    """
    products: Any = combined_products(files, rows, None, weights, coefficients, tasks_per_machine=tasks_per_machine)
    with pinned_blas(blas_threads(tasks_per_machine)):
        alpha = load_array(basis)[rows] @ coefficients
    residual = targets[:, chosen] - 0.5 * alpha - products / (2.0 * lams)
    return keep(residual, path), np.sum(residual * residual, axis=0)


@dataclass(frozen=True)
class FactorRequest:
    """A request to one factor: M⁻¹X, M = ½(I + K(β̄)/ρ), and bounds of xᵀM⁻¹x for some columns."""

    ridge: float  # That of the factor, which is ½I if it is infinite
    columns: tuple[Strips, ...]  # X, (m, k), side by side
    path: str | None  # The file for M⁻¹X, if any
    worth: Float
    """(k,): a bound, with products in double precision, is computed where the first estimate is at most that."""
    ridges: Float  # ρ of each column, (k,); those that differ from the factor's are refined
    kept: str | None = None  # The prefix of the files of the factor on disk; None if it is not kept

    def __sizeof__(self) -> int:
        # Dask decides by this size how the request is sent to a worker.
        return sum(part.__sizeof__() for part in self.columns)


def apply_factor(
    preconditioner: StoredSum, tasks_per_machine: int, request: FactorRequest
) -> tuple[Float | str, Float]:
    """Compute M⁻¹X, (m, k), and the bounds, (k,); a bound that is not computed is infinite."""
    with pinned_blas(blas_threads(tasks_per_machine)):
        solve = _solve(preconditioner, request)
        columns = np.concatenate([part.array() for part in request.columns], axis=1)
        solved, bounds = solve(columns), np.full(len(request.worth), np.inf)
        # xᵀM⁻¹x from the rough solve decides whether the exact bound can be small enough to be worth its products.
        promising = np.sum(solved * columns, axis=0) <= request.worth
        chosen = promising | (request.ridges != request.ridge)
        if chosen.any():
            # The factor is in single precision: a bound holds only after refinement with the exact sum, from disk.
            exact, b, bounded = SumColumns(preconditioner), columns[:, chosen], promising[chosen]
            ridges = request.ridges[chosen]
            refined, of_chosen = refined_and_bounded(solved[:, chosen], solve, exact.product, ridges, b, bounded)
            solved[:, chosen], bounds[chosen] = refined, np.where(bounded, of_chosen, np.inf)
        return keep(solved, request.path), bounds


def _solve(preconditioner: StoredSum, request: FactorRequest) -> Solve:
    """Read the factor from disk, or compute it and write it to disk if there is room."""
    if np.isinf(request.ridge):
        return partial(np.multiply, 2.0)
    if request.kept is not None and is_kept(request.kept):
        with suppress(DamagedFileError):  # a damaged file is computed again
            m = request.columns[0].rows
            return read_factor(request.kept, np.empty((m, m), np.float32, order="F")).solve
    factor = RoughFactor.of(lambda: preconditioner.matrix(np.float32), request.ridge)
    if request.kept is not None:
        save_factor(request.kept, factor)
    return factor.solve
