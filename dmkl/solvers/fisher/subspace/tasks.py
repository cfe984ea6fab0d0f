"""Tasks of the subspace solver: they read and write the files of a subspace, and need no pass over the kernels.

Matrices with a row for each sample stay where tasks make them, as arrays of this process or files that all workers see
(`Strips`); the process that runs the solver knows only where their rows lie.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dmkl.arrays import Array, Float, Index
from dmkl.errors import DamagedFileError
from dmkl.files.arrays import load_array, load_rows, save_array
from dmkl.numerics.cholesky import RoughFactor, refined_and_bounded
from dmkl.numerics.fisher import uniform_weights
from dmkl.passes.blas import blas_threads, pinned_blas
from dmkl.passes.sums import StoredSum, SumColumns
from dmkl.passes.sweep import Buffers
from dmkl.solvers.fisher.mkfda import MemoryOracle, solve_restricted
from dmkl.solvers.fisher.newton import Solution
from dmkl.solvers.fisher.subspace.preconditioners import is_kept, read_factor, save_factor
from dmkl.solvers.fisher.subspace.rounding import PROBES
from dmkl.solvers.outcome import check_finite
from dmkl.solvers.semidefinite import KernelFacts, lowest_on_span
from dmkl.solvers.weight_sets.base import WeightSet

__all__ = [
    "Asked",
    "Keeping",
    "Made",
    "ProductFiles",
    "SolveJob",
    "Strips",
    "basis_times",
    "combined_products",
    "keep",
    "keep_products",
    "lowest",
    "numbered",
    "probe_file",
    "project",
    "residual_strip",
    "settle",
    "solve_points",
    "widen_basis",
    "widen_gram",
]

# --- matrices in strips of rows ------------------------------------------------------------------------------------


def keep(array: Float, path: str | None) -> Float | str:
    """Write an array to a file that all workers see, and return its path; the array itself where there is no path."""
    if path is None:
        return array
    save_array(path, array)
    return path


def numbered(kept: str | None, number: int) -> str | None:
    """The file of one of several parts of what is kept, where it is kept."""
    return None if kept is None else f"{kept}-{number}.npy"


@dataclass(frozen=True, eq=False)
class Strips:
    """Some columns of a matrix, in strips of rows: arrays of this process, or files where tasks run in others.

    Parameters
    ----------
    parts
        The strips from the first row to the last, each (rows, k) or a file that holds it.
    rows
        How many all strips have.
    columns
        The first column, and the one after the last.
    """

    parts: tuple[Array | str, ...]
    rows: int
    columns: tuple[int, int]

    @classmethod
    def of(cls, array: Array) -> Strips:
        """All of an array (rows, columns)."""
        return cls((array,), len(array), (0, array.shape[1]))

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.rows, self.columns[1] - self.columns[0]

    @property
    def width(self) -> int:
        """Columns."""
        return self.shape[1]

    @property
    def held_bytes(self) -> int:
        """What the strips take of the memory of this process."""
        return sum(part.nbytes for part in self.parts if not isinstance(part, str))

    def __sizeof__(self) -> int:
        return self.held_bytes

    def part(self, first: int, last: int) -> Strips:
        """Some of the columns, counted from the first of these."""
        return replace(self, columns=(self.columns[0] + first, self.columns[0] + last))

    def array(self) -> Float:
        """The columns themselves, (rows, columns): not to be written to."""
        chosen = slice(*self.columns)
        found = [(load_array(part) if isinstance(part, str) else part)[:, chosen] for part in self.parts]
        return found[0] if len(found) == 1 else np.concatenate(found)


# --- widening the basis --------------------------------------------------------------------------------------------


def probe_file(path: str, n_rows: int) -> None:
    """Draw the probes Z, (m, s), and write them."""
    save_array(path, np.random.default_rng(n_rows).standard_normal((n_rows, PROBES)))


def widen_basis(before: str, path: str, block: Strips) -> None:
    """Write V with a block of new columns, (m, r)."""
    parts = [load_array(before)] if before else []
    save_array(path, np.concatenate([*parts, block.array()], axis=1))


def basis_times(basis: str, coefficients: Float) -> Float:
    """α = V a, (m, c)."""
    with pinned_blas(1):
        return np.asarray(load_array(basis) @ coefficients)


def project(basis: str, inner: str, projected: str, targets: Sequence[Float]) -> None:
    """Write N = VᵀV, (r, r), and VᵀH of all targets side by side, (r, columns)."""
    v = load_array(basis)
    with pinned_blas(1):
        save_array(inner, v.T @ v)
        save_array(projected, np.concatenate([v.T @ h for h in targets], axis=1))


@dataclass(frozen=True, eq=False)
class Made:
    """Products of one pass with some columns of a basis, as they are projected onto it.

    Parameters
    ----------
    columns
        The first, and the one after the last.
    cross
        VᵀK_jU, (n, r, b), in groups of kernels: arrays, or files.
    hidden
        ZᵀE_j, (n, s, b), in the same groups; None where rounding was not measured.
    """

    columns: tuple[int, int]
    cross: tuple[Float | str, ...]
    hidden: tuple[Float | str, ...] | None


def widen_gram(gram: tuple[str, str], errors: tuple[str, str], shape: tuple[int, int], made: Sequence[Made]) -> None:
    """Write G_j and ZᵀE_j with new products, of new basis vectors or in place of those of a block that was there.

    Parameters
    ----------
    gram, errors
        The files of before, empty where there are none, and the new ones.
    shape
        Kernels n and basis vectors r.
    made
        The products, those in single precision first.
    """
    n, r = shape
    g, e = np.empty((n, r, r)), np.zeros((n, PROBES, r))
    if gram[0]:
        known = load_array(gram[0])
        g[:, : known.shape[1], : known.shape[2]] = known
        known = load_array(errors[0])
        e[:, :, : known.shape[2]] = known
    for one in made:
        first, last = one.columns
        start = 0
        for part in one.cross:
            cross = _there(part)
            check_finite(cross)
            kernels = slice(start, start + len(cross))
            g[kernels, :, first:last] = cross
            g[kernels, first:last, :] = cross.transpose(0, 2, 1)
            g[kernels, first:last, first:last] += cross[:, first:last]
            g[kernels, first:last, first:last] *= 0.5
            start += len(cross)
        e[:, :, first:last] = 0.0 if one.hidden is None else np.concatenate([_there(part) for part in one.hidden])
    save_array(gram[1], g)
    save_array(errors[1], e)


def _there(part: Array | str) -> Array:
    return load_array(part) if isinstance(part, str) else part


def lowest(inner: str, gram: str, width: int) -> Float:
    """An upper bound of the lowest eigenvalue of each kernel, (n,), by the first columns of its basis."""
    n, g = load_array(inner)[:width, :width], load_array(gram)[:, :width, :width]
    return lowest_on_span(np.array(n), np.array(g))


# --- products, restricted problems and preconditioners -------------------------------------------------------------


@dataclass(frozen=True)
class ProductFiles:
    """Where K_jV of one fold lies: for each round its groups of kernels, each a file and the kernels in it."""

    rounds: tuple[tuple[tuple[str, tuple[int, ...]], ...], ...]

    def of(self, kernels: Sequence[int]) -> ProductFiles:
        """Those of some kernels alone."""
        wanted = set(kernels)
        return ProductFiles(tuple(tuple((path, ks) for path, ks in some if wanted & set(ks)) for some in self.rounds))

    def strip(self, kernel: int, rows: slice) -> Array:
        """Some rows of K_jV, (rows, r)."""
        blocks = []
        for groups in self.rounds:
            path, place = next((path, ks.index(kernel)) for path, ks in groups if kernel in ks)
            blocks.append(load_rows(path, place, rows))
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks, axis=1)


@dataclass(frozen=True)
class Keeping:
    """What becomes of the products W_j = K_jU of a block U of the basis.

    Parameters
    ----------
    path
        The file that keeps them.
    basis
        The file of V, (m, r), U being some of its columns.
    columns
        Which.
    probes
        The file of the probes Z, (m, s); empty where rounding is not measured.
    ahead
        The file for K_jZ, which come with these products, after those of U; empty where they do not.
    known
        K_jZ, where they came before.
    double
        Other blocks of the basis in double precision: their columns, and where their products lie.
    """

    path: str
    basis: str
    columns: tuple[int, int]
    probes: str = ""
    ahead: str = ""
    known: ProductFiles | None = None
    double: tuple[tuple[tuple[int, int], ProductFiles], ...] = ()
    results: str | None = None
    """The beginning of the names of files for what comes back, where it is not to come back itself."""


def keep_products(
    products: Sequence[Array],
    buffers: Buffers,
    *,
    keepings: Sequence[Keeping],
    kernels: tuple[int, ...],
    tasks_per_machine: int,
) -> list[tuple[Float | str, Float | str | None]]:
    """Keep the products of some kernels with several blocks; what `_kept` returns of each."""
    return [
        _kept(w, buffers, keeping, kernels, tasks_per_machine) for w, keeping in zip(products, keepings, strict=True)
    ]


def _kept(
    products: Array, buffers: Buffers, keeping: Keeping, kernels: tuple[int, ...], tasks_per_machine: int
) -> tuple[Float | str, Float | str | None]:
    """Write the products of some kernels to disk; VᵀW_j, (kernels, r, b), comes back, and ZᵀE_j, (kernels, s, b).

    With W_j in single precision VᵀW_j is that of the products in double precision wherever V has some: (K_jV)ᵀU.
    """
    v = load_array(keeping.basis)  # read where it is used, and not copied for each kernel
    m, (first, last) = len(v), keeping.columns
    if keeping.ahead:
        save_array(keeping.ahead, products[:, :m, last - first :])
    products = products[:, :, : last - first]
    save_array(keeping.path, products)
    u = v[:, first:last]
    probes = None if keeping.known is None else load_array(keeping.probes)
    cross, errors = np.empty((len(kernels), v.shape[1], last - first)), []
    single = _between([columns for columns, _ in keeping.double], v.shape[1])
    double = buffers.take("double", cross.dtype, m, last - first)
    with pinned_blas(blas_threads(tasks_per_machine)):
        for place, (w, kernel) in enumerate(zip(products, kernels, strict=True)):
            np.copyto(double, w[:m])
            for start, stop in single:
                np.matmul(v[:, start:stop].T, double, out=cross[place, start:stop])
            for (start, stop), files in keeping.double:
                np.matmul(files.strip(kernel, slice(0, m)).T, u, out=cross[place, start:stop])
            if probes is not None and keeping.known is not None:
                errors.append(probes.T @ double - keeping.known.strip(kernel, slice(0, m)).T @ u)
    cross_file, errors_file = (keeping.results and f"{keeping.results}-{what}.npy" for what in ("cross", "errors"))
    return keep(cross, cross_file), keep(np.stack(errors), errors_file) if errors else None


def _between(parts: Sequence[tuple[int, int]], end: int) -> list[tuple[int, int]]:
    """What some parts of 0 … end, each a first place and the one after the last, leave over."""
    edges = [0, *itertools.chain(*sorted(parts)), end]
    return [(start, stop) for start, stop in zip(edges[::2], edges[1::2], strict=True) if start < stop]


# --- reduced problems --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SolveJob:
    """One point to solve in the subspace.

    Parameters
    ----------
    point
        Its number.
    weights
        The weights that may be.
    beta
        Where to start, (n,); the neighbor solved before it where None.
    tol
        The weights gap to reach.
    kernels
        Positions of the kernels that may have weight; all where None.
    """

    point: int
    weights: WeightSet
    beta: Float | None
    tol: float
    kernels: Index | None = None


def solve_points(
    files: tuple[str, str, str], columns: tuple[int, int], lam: float, facts: KernelFacts, jobs: list[SolveJob]
) -> list[tuple[int, Solution]]:
    """Solve points of one fold, target and λ one after another, each from where it was or from the one before it.

    Parameters
    ----------
    files
        Those of G, N = VᵀV, and VᵀH of all targets side by side.
    columns
        The first column of this target, and the one after its last.
    facts
        What is known of the kernels.
    jobs
        The points.
    """
    g, inner, targets = map(load_array, files)  # all tasks of a machine share these pages
    h = np.ascontiguousarray(targets[:, slice(*columns)])
    solutions: list[tuple[int, Solution]] = []
    near = uniform_weights(len(g), 2.0)
    # One thread each: the problems are too small for more, which would wait for one another.
    with pinned_blas(1):
        for job in jobs:
            start = near if job.beta is None else job.beta
            chosen = np.arange(len(g)) if job.kernels is None else job.kernels
            some = g if job.kernels is None else g[chosen]
            oracle = MemoryOracle(some, h, lam, job.weights, inner, facts.select(job.kernels))
            solution = solve_restricted(oracle, job.weights.start(len(chosen), start[chosen]), job.tol)
            near = np.zeros(len(g))
            near[chosen] = solution.beta
            solutions.append((job.point, replace(solution, beta=near)))
    return solutions


# --- products that need no pass ----------------------------------------------------------------------------------


def combined_products(
    files: ProductFiles, rows: slice, path: str | None, weights: Float, coefficients: Float, *, tasks_per_machine: int
) -> Float | str:
    """Σ_j w_jk K_jV z_k for every column k over some rows: each K_jV is read once for all columns.

    Parameters
    ----------
    path
        The file that keeps them, where there is one.
    weights
        (n, k)
    coefficients
        z, (r, k)
    """
    return keep(_combined(files, rows, weights, coefficients, tasks_per_machine), path)


def residual_strip(
    files: ProductFiles,
    rows: slice,
    path: str | None,
    basis: str,
    weights: Float,
    coefficients: Float,
    lams: Float,
    chosen: Index,
    targets: Float,
    *,
    tasks_per_machine: int,
) -> tuple[Float | str, Float]:
    """R = H − ½Va − (1/2λ) Σ_j β_j K_jV a over some rows, and the sum of the squares in each column, (k,).

    Parameters
    ----------
    path
        The file that keeps R, where there is one.
    basis
        The file of V.
    weights, coefficients, lams
        β (n, k), a (r, k) and λ (k,) of each column.
    chosen
        Which column of the targets each is of, (k,).
    targets
        H over these rows, (rows, all columns of all targets).
    """
    products = _combined(files, rows, weights, coefficients, tasks_per_machine)
    with pinned_blas(blas_threads(tasks_per_machine)):
        alpha = load_array(basis)[rows] @ coefficients
    residual = targets[:, chosen] - 0.5 * alpha - products / (2.0 * lams)
    return keep(residual, path), np.sum(residual * residual, axis=0)


def _combined(files: ProductFiles, rows: slice, weights: Float, coefficients: Float, tasks_per_machine: int) -> Float:
    total = np.zeros((rows.stop - rows.start, coefficients.shape[1]))
    with pinned_blas(blas_threads(tasks_per_machine)):
        for j in np.flatnonzero(np.any(weights, axis=1)):
            used = np.flatnonzero(weights[j])
            strip = files.strip(int(j), rows).astype(np.float64, copy=False)
            if len(used) == coefficients.shape[1]:
                total += strip @ (coefficients * weights[j])
            else:
                total[:, used] += strip @ (coefficients[:, used] * weights[j, used])
    return total


# --- anchors -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    """What is asked of one factor: M⁻¹X about, with M = ½(I + K(β̄)/ρ), and bounds of xᵀM⁻¹x of some columns.

    Parameters
    ----------
    ridge
        ρ
    columns
        X, (m, k), side by side.
    path
        The file that keeps M⁻¹X, where there is one.
    worth
        (k,), what xᵀM⁻¹x must be at most, by the first solution, for its bound to be worth the products in double
        precision that it takes.
    kept
        The beginning of the names of the files in which the factor is, or may be kept; None where it may not.
    """

    ridge: float
    columns: tuple[Strips, ...]
    path: str | None
    worth: Float
    kept: str | None = None

    @property
    def width(self) -> int:
        """Columns, k."""
        return len(self.worth)

    def __sizeof__(self) -> int:
        # By its size it is decided how it travels to a worker.
        return sum(part.held_bytes for part in self.columns)


def settle(anchor: StoredSum, tasks_per_machine: int, asked: list[Asked]) -> list[tuple[Float | str, Float]]:
    """M⁻¹X about, (m, k), and the bounds, (k,), for each ridge; infinite where they are not worth it.

    The factors are in single precision, 4·m² bytes, and twice that where one task has several ridges: the sum is put
    together once then.
    """
    found = []
    exact: SumColumns | None = None  # reads the sum, so only once, and only where a bound is made
    with pinned_blas(blas_threads(tasks_per_machine)):
        matrices = _Matrices(anchor, len(asked))
        for one in asked:
            solve = _factor(matrices, one).solve
            columns = np.concatenate([part.array() for part in one.columns], axis=1)
            solved, bounds = solve(columns), np.full(one.width, np.inf)
            promising = np.sum(solved * columns, axis=0) <= one.worth
            if promising.any():
                exact, b = exact or SumColumns(anchor), columns[:, promising]
                refined = refined_and_bounded(solved[:, promising], solve, exact.product, one.ridge, b)
                solved[:, promising], bounds[promising] = refined
            found.append((keep(solved, one.path), bounds))
    return found


def _factor(matrices: _Matrices, one: Asked) -> RoughFactor:
    """The factor of one that is asked for: read where it is kept, and else made, and kept where it may be."""
    if one.kept is not None and is_kept(one.kept):
        with suppress(DamagedFileError):  # it can be made again
            return read_factor(one.kept, matrices.scratch(one.columns[0].rows))
    factor = RoughFactor.of(matrices.sum, one.ridge)
    if one.kept is not None:
        save_factor(one.kept, factor)
    return factor


class _Matrices:
    """The matrices of a task that has several factors of one anchor, one after another in the same memory.

    The sum is put together once, and copied for each; the pages of new memory take their time.
    """

    def __init__(self, anchor: StoredSum, n_factors: int) -> None:
        self._anchor, self._once = anchor, n_factors == 1
        self._whole: tuple[Array, Index | None] | None = None
        self._scratch: Array | None = None

    def scratch(self, m: int) -> Array:
        """Memory for one matrix, (m, m) in single precision and column-major."""
        if self._scratch is None:
            self._scratch = np.empty((m, m), np.float32, order="F")
        return self._scratch

    def sum(self) -> tuple[Array, Index | None]:
        """The anchor's sum, to be overwritten, and the order of its rows."""
        if self._once:
            return self._anchor.matrix(np.float32)
        if self._whole is None:
            self._whole = self._anchor.matrix(np.float32)
        whole, order = self._whole
        scratch = self.scratch(len(whole))
        np.copyto(scratch, whole)
        return scratch, order


def group_file(folder: Path, number: int, block: int, group: int) -> str:
    """The file of the products that one pass has made of a block of the basis, for one group of kernels."""
    return str(folder / f"products-{number}-{block}-{group}.npy")
