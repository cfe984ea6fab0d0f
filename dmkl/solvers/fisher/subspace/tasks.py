"""The work of the subspace solver that runs as tasks, wherever Dask puts them: plain functions of arrays and files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from dmkl.arrays import Array, Float, Index
from dmkl.files.arrays import load_array, load_rows, save_array
from dmkl.numerics.fisher import onto_sphere, uniform_weights
from dmkl.numerics.triangle import refined_and_bounded, rough_factor
from dmkl.passes.blas import blas_threads, pinned_blas
from dmkl.passes.columns import SumColumns
from dmkl.passes.combine import StoredSum
from dmkl.solvers.fisher.subspace.reduced import ReducedProblem, ReducedSolution, solve_reduced
from dmkl.solvers.semidefinite import KernelFacts

__all__ = [
    "Asked",
    "Keeping",
    "ProductFiles",
    "SolveJob",
    "combined_products",
    "keep_products",
    "settle",
    "solve_points",
]


# --- products on disk --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProductFiles:
    """Where K_jV of one fold lies: for each round its groups of kernels, each a file and the kernels in it."""

    rounds: tuple[tuple[tuple[str, tuple[int, ...]], ...], ...]

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


def keep_products(
    products: Array, keeping: Keeping, kernels: tuple[int, ...], tasks_per_machine: int
) -> tuple[Float, Float | None]:
    """Write the products of some kernels to disk; VᵀW_j, (kernels, r, b), comes back, and ZᵀE_j, (kernels, s, b).

    With W_j in single precision VᵀW_j is that of the products in double precision wherever V has some: (K_jV)ᵀU.
    """
    v = load_array(keeping.basis)  # read where it is used, and not copied for each kernel
    m, (first, last) = len(v), keeping.columns
    if keeping.ahead:
        save_array(keeping.ahead, products[:, :m, last - first :])
    products = products[:, :, : last - first]
    save_array(keeping.path, products)
    u = np.ascontiguousarray(v[:, first:last])
    probes = None if keeping.known is None else load_array(keeping.probes)
    cross, errors = np.empty((len(kernels), v.shape[1], last - first)), []
    with pinned_blas(blas_threads(tasks_per_machine)):
        for place, (w, kernel) in enumerate(zip(products, kernels, strict=True)):
            double = w[:m].astype(np.float64, copy=False)
            np.matmul(v.T, double, out=cross[place])
            for (start, stop), files in keeping.double:
                cross[place, start:stop] = files.strip(kernel, slice(0, m)).T @ u
            if probes is not None and keeping.known is not None:
                errors.append(probes.T @ double - keeping.known.strip(kernel, slice(0, m)).T @ u)
    return cross, np.stack(errors) if errors else None


# --- reduced problems --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SolveJob:
    """One point to solve in the subspace.

    Parameters
    ----------
    point
        Its number.
    p
        Its norm.
    beta
        Where to start, (n,); the neighbor solved before it where None.
    tol
        The weights gap to reach.
    kernels
        Positions of the kernels that may have weight; all where None.
    """

    point: int
    p: float
    beta: Float | None
    tol: float
    kernels: Index | None = None


def solve_points(
    gram: str, lam: float, facts: KernelFacts, work: tuple[Float, Float, list[SolveJob]]
) -> list[tuple[int, ReducedSolution]]:
    """Solve points of one fold, target and λ one after another, each from where it was or from the one before it.

    Parameters
    ----------
    gram
        The file of G.
    facts
        What is known of the kernels.
    work
        N = VᵀV, VᵀH, and the points.
    """
    inner, target, jobs = work
    g = load_array(gram)  # all tasks of a machine share these pages
    found: list[tuple[int, ReducedSolution]] = []
    near = uniform_weights(len(g), 2.0)
    # One thread each: the problems are too small for more, which would wait for one another.
    with pinned_blas(1):
        for job in jobs:
            start = near if job.beta is None else job.beta
            solution = _solved(job, start, ReducedProblem(g, inner, target, lam, job.p), facts)
            near = solution.beta
            found.append((job.point, solution))
    return found


def _solved(job: SolveJob, start: Float, problem: ReducedProblem, facts: KernelFacts) -> ReducedSolution:
    """One point, from a start over all kernels; its weights are over all kernels too."""
    every = np.arange(len(start))
    chosen = every if job.kernels is None else job.kernels
    first = np.ones(len(chosen)) if np.isinf(job.p) else onto_sphere(start[chosen], job.p)
    if job.kernels is not None:
        problem = replace(problem, gram=problem.gram[chosen])
    solution = solve_reduced(problem, first, job.tol, facts.select(job.kernels))
    if job.kernels is None:
        return solution
    beta = np.zeros(len(start))
    beta[chosen] = solution.beta
    return replace(solution, beta=beta)


# --- products that need no pass ----------------------------------------------------------------------------------


def combined_products(
    files: ProductFiles, rows: slice, weights: Float, coefficients: Float, *, tasks_per_machine: int
) -> Float:
    """Σ_j w_jk K_jV z_k for every column k over some rows: each K_jV is read once for all columns.

    Parameters
    ----------
    weights
        (n, k)
    coefficients
        z, (r, k)
    """
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
        X, (m, k).
    worth
        (k,), what xᵀM⁻¹x must be at most, by the first solution, for its bound to be worth the products in double
        precision that it takes.
    """

    ridge: float
    columns: Float
    worth: Float


def settle(anchor: StoredSum, tasks_per_machine: int, asked: list[Asked]) -> list[tuple[Float, Float]]:
    """M⁻¹X about, (m, k), and the bounds, (k,), for each ridge; infinite where they are not worth it.

    The factors are in single precision, 4·m² bytes, and twice that where one task has several ridges: the sum is put
    together once then.
    """
    found = []
    exact: SumColumns | None = None  # reads the sum, so only once, and only where a bound is made
    with pinned_blas(blas_threads(tasks_per_machine)):
        single = partial(anchor.matrix, np.float32)
        matrix = _copies(single) if len(asked) > 1 else single
        for one in asked:
            solve = rough_factor(matrix, one.ridge)
            solved, bounds = solve(one.columns), np.full(one.columns.shape[1], np.inf)
            promising = np.sum(solved * one.columns, axis=0) <= one.worth
            if promising.any():
                exact, b = exact or SumColumns(anchor), one.columns[:, promising]
                refined = refined_and_bounded(solved[:, promising], solve, exact.product, one.ridge, b)
                solved[:, promising], bounds[promising] = refined
            found.append((solved, bounds))
    return found


def _copies(
    matrix: Callable[[], tuple[Array, Index | None]],
) -> Callable[[], tuple[Array, Index | None]]:
    """What makes a matrix once, and then copies of it, all in one array: the pages of a new one take their time."""
    whole, order = matrix()
    scratch = np.empty_like(whole)

    def copy() -> tuple[Array, Index | None]:
        np.copyto(scratch, whole)
        return scratch, order

    return copy


def group_file(folder: Path, number: int, block: int, group: int) -> str:
    """The file of the products that one pass has made of a block of the basis, for one group of kernels."""
    return str(folder / f"products-{number}-{block}-{group}.npy")
