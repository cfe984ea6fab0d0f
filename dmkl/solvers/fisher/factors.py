"""MK-FDA on kernels that are products of factors, K_j = Z_jZ_jᵀ, from sums over the samples.

Linear kernels of few features, random Fourier features and Nyström features have factors Z_j (m, d_j) with D = Σd_j
columns in all, mostly fewer than samples. Any orthonormal Q (m, r) whose span contains Z = [Z_1 … Z_n] and the targets
H turns the problem into the same one over r pseudo-samples, with the factors QᵀZ, the targets QᵀH and α = Qα': norms,
inner products and K_jα = QQᵀZ_j(QᵀZ_j)ᵀα' are equal, and so are the objective, the weights and the certificate of every
α'. With G = ZᵀZ = RᵀR (D, D), where R is triangular, and T = ZᵀH (D, C),

    QᵀZ = [R; 0],   QᵀH = [R⁻ᵀT; S],   SᵀS = HᵀH − TᵀG⁻¹T,

over r ≤ D + C pseudo-samples, for which one pass over the samples is enough. Any solver of MK-FDA then solves the whole
grid over (p, λ). New rows z have the scores Σ_jβ_jz_jᵀ(Z_jᵀα), Z_jᵀα = (QᵀZ_j)ᵀα'; all of them take one more pass.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
from scipy.linalg import solve_triangular
from scipy.linalg.lapack import dpstrf

from dmkl import settings
from dmkl.arrays import Float, Index
from dmkl.errors import refuse
from dmkl.features.specs import Recipe
from dmkl.features.tiles import FeatureTiles, SampleAxis
from dmkl.passes.blas import factor_threads, pinned_blas
from dmkl.passes.execute import machine
from dmkl.passes.rows import Gram, RowFunction, RowMap, gram_matrices, has_thin_factors, row_products
from dmkl.passes.view import Lens, View, covering
from dmkl.solvers.driver import Tally
from dmkl.solvers.fisher.problem import FisherOptions, FisherSolver, Solve
from dmkl.solvers.jobs import Context, Job, Training
from dmkl.solvers.outcome import Outcome
from dmkl.solvers.workspace import Workspace
from dmkl.store.features import ArrayTable

__all__ = ["solver_on_factors"]

_TARGETS = 1024
"""Targets that are solved together even if there are fewer components: the stacked solver shares work between them."""
_UNIT = float(np.finfo(np.float64).eps)


def solver_on_factors(solve: Solve) -> FisherSolver:
    """The solver "factors"; `solve` solves the problems over pseudo-samples."""
    title = "sums over the samples, for kernels of few features that are kept as factors"
    return FisherSolver("factors", title, partial(_solve, solve), check=_check, leaves_out=True)


def _check(jobs: Sequence[Job]) -> None:
    views = {id(job.training): job.training.square.view for job in jobs}
    if not all(map(has_thin_factors, views.values())):
        refuse(
            "solver='factors' is for linear and cosine kernels that dmkl.build keeps as factors, with fewer columns in "
            "all than training samples, whose inner products fit in memory; take solver='auto'"
        )


def _solve(solve: Solve, jobs: Sequence[Job], options: FisherOptions, context: Context) -> list[Outcome]:
    """Passes for the sums of some training sets, for scores of their held-out rows, and for α where it is wanted."""
    outcomes = [context.workspace.outcome(number) for number in range(len(jobs))]
    axes = (0, 1) if context.duals or options.leave_one_out else (0,)
    for batch in _batches(jobs, [number for number, outcome in enumerate(outcomes) if outcome is None]):
        started, views = time.monotonic(), [part.training.square.view for part in batch]
        grams, n_passes = gram_matrices(views, [part.targets for part in batch])
        # Only the coefficients of the solutions are kept: the matrices of one training set are in memory at a time.
        solved = [_solve_part(solve, part, gram, jobs, options) for part, gram in zip(batch, grams, strict=True)]
        for axis in axes:
            products, n_more = row_products([function for part in solved for function in part.functions(axis)])
            n_passes += n_more
            blocks = iter(products)
            for part in solved:
                part.take(axis, blocks)
        for part in solved:
            for number, outcome in zip(part.numbers, part.solutions, strict=True):
                kept = outcome if 1 in axes else replace(outcome, dual=None)
                outcomes[number] = kept
                context.workspace.keep_outcome(number, kept)
        context.tally.add("factors", n_passes, time.monotonic() - started, covering(views).bytes_per_pass)
    return [outcome for outcome in outcomes if outcome is not None]


@dataclass(frozen=True, eq=False)
class _Unsolved:
    """A training set with some of its targets."""

    training: Training
    blocks: list[tuple[Float, list[int]]]
    """Targets (m, c), and the numbers of the jobs that have them."""

    @cached_property
    def targets(self) -> Float:
        """All targets side by side, (m, C)."""
        return np.concatenate([h for h, _ in self.blocks], axis=1)


def _batches(jobs: Sequence[Job], numbers: Sequence[int]) -> Iterator[list[_Unsolved]]:
    """The jobs by training set and targets, as many together as their sums fit in memory.

    A part has not many more targets than components, since each target may add a pseudo-sample.
    """
    by_set: dict[int, tuple[Training, dict[int, tuple[Float, list[int]]]]] = {}
    for number in numbers:
        job = jobs[number]
        _, blocks = by_set.setdefault(id(job.training), (job.training, {}))
        blocks.setdefault(id(job.problem.h), (job.problem.h, []))[1].append(number)
    batch: list[_Unsolved] = []
    n_bytes = 0
    for training, blocks in by_set.values():
        widths = training.square.view.factor_widths
        assert widths is not None
        n_columns, part = int(widths.sum()), list[tuple[Float, list[int]]]()
        for block in blocks.values():
            if part and sum(h.shape[1] for h, _ in part) + block[0].shape[1] > max(n_columns, _TARGETS):
                batch.append(_Unsolved(training, part))
                part = []
            part.append(block)
        batch.append(_Unsolved(training, part))
        n_bytes += 8 * n_columns**2
        if 3 * n_bytes > machine().total_bytes:
            yield batch
            batch, n_bytes = [], 0
    if batch:
        yield batch


@dataclass(eq=False)
class _Solved:
    """The solutions of a part, and what scores and dual variables are computed from."""

    part: _Unsolved
    row_map: RowMap
    numbers: list[int]
    """The numbers of the jobs."""
    solutions: list[Outcome]
    coefficients: tuple[list[Float], list[Float]]
    """W (D, c) of each solution: held-out rows have the scores zW, and training rows the dual variables zW + hE."""
    rest: list[Float]
    """E (C, c) of each solution."""

    def _groups(self, axis: int) -> list[slice]:
        """The solutions whose products are computed together: those of some rows are about as large as the rows."""
        D, width = self.coefficients[axis][0].shape
        n_together = max(1, D // max(1, width))
        return [slice(start, start + n_together) for start in range(0, len(self.numbers), n_together)]

    def _positions(self, axis: int) -> Index:
        training = self.part.training
        return np.arange(training.n_train) if axis == 1 else np.arange(training.n_train, training.n_rows)

    def functions(self, axis: int) -> Iterator[RowFunction]:
        """The functions of the held-out rows (axis 0) or of the training rows (axis 1)."""
        training = self.part.training
        row_map = replace(self.row_map, view=(training.whole if axis == 0 else training.square).view)
        for group in self._groups(axis) if len(self._positions(axis)) else ():
            W = np.concatenate(self.coefficients[axis][group], axis=1)
            yield RowFunction(row_map, axis, self._positions(axis), partial(_times, W), W.shape[1])

    def take(self, axis: int, products: Iterator[Float]) -> None:
        """Take the results of the functions as scores or as dual variables."""
        for group in self._groups(axis) if len(self._positions(axis)) else ():
            block, column = next(products), 0
            for k in range(*group.indices(len(self.numbers))):
                columns = slice(column, column := column + self.coefficients[axis][k].shape[1])
                if axis == 0:
                    self.solutions[k] = replace(self.solutions[k], scores=block[:, columns])
                else:
                    dual = block[:, columns] + self.part.targets @ self.rest[k]
                    self.solutions[k] = replace(self.solutions[k], dual=dual)


def _times(coefficients: Float, Z: Float) -> Float:
    return np.asarray(Z @ coefficients)


def _solve_part(solve: Solve, part: _Unsolved, gram: Gram, jobs: Sequence[Job], options: FisherOptions) -> _Solved:
    """Solve the problems of a part over pseudo-samples."""
    H, kernel_of = part.targets, gram.row_map.kernel_of
    D, trace = len(gram.gram), float(np.trace(gram.gram))
    least_lam = _UNIT * trace
    with pinned_blas(factor_threads(D)):
        # Pivots below rounding end it: the components after them are combinations of those before.
        triangle, pivots, rank, _ = dpstrf(gram.gram, tol=D * _UNIT * float(np.diagonal(gram.gram).max(initial=0.0)))
    order, R = pivots - 1, np.triu(triangle)[:rank]
    # With Z_1 the first components and R_1 their square part of R, Q = [Z_1R_1⁻¹, (H − Z_1R_1⁻¹ image)V/√sizes].
    # R_1 is as well conditioned as its pivots are, so that Q is orthonormal up to the square root of the rounding.
    image = solve_triangular(R[:, :rank], gram.targets[order[:rank]], trans=1)
    # The rest of H, orthogonal to all kernels, takes no part in K_jα but in ‖α‖² and tr Hᵀα: without its pseudo-samples
    # the objective and the relative gap would be others.
    left = H.T @ H - image.T @ image
    sizes, directions = np.linalg.eigh((left + left.T) / 2.0)
    also = sizes > len(sizes) * _UNIT * np.sum(H * H, axis=0).max()
    sizes, directions = np.sqrt(sizes[also]), directions[:, also]
    factors = np.zeros((rank + len(sizes), D))
    factors[:rank, order] = R
    targets = np.concatenate([image, sizes[:, None] * directions.T])
    training, column, numbers, inner = _training(part, gram, factors), 0, list[int](), list[Job]()
    for h, numbers_of_block in part.blocks:
        block = targets[:, column : column + h.shape[1]]
        column += h.shape[1]
        for number in numbers_of_block:
            problem = jobs[number].problem
            if problem.lam < least_lam:
                refuse(
                    f"lam={problem.lam:g} is below what sums in double precision resolve: rounding perturbs these "
                    f"kernels by about {least_lam:.1e}. Take a larger lam"
                )
            inner.append(replace(jobs[number], training=training, problem=replace(problem, h=block)))
            numbers.append(number)
    # The checkpoint keeps outcomes over the samples, so that the files of this solver are temporary.
    space = Workspace(None, {})
    try:
        solutions = solve(inner, replace(options, leave_one_out=False), Context(space, Tally()))
    finally:
        space.close()
    weights, duals, rest = list[Float](), list[Float](), list[Float]()
    # The product of one solution alone would be limited by memory; those of some side by side are not larger than G.
    n_together = max(1, D // max(1, H.shape[1]))
    for some in (solutions[start : start + n_together] for start in range(0, len(solutions), n_together)):
        dual = np.concatenate([np.asarray(solution.dual) for solution in some], axis=1)
        with pinned_blas(factor_threads(D)):
            # Z_jᵀα, and the parts of α in the span of the factors and in that of the targets.
            products, of_targets = factors.T @ dual, (directions / sizes) @ dual[rank:]
            of_factors = np.zeros_like(products)
            of_factors[order[:rank]] = solve_triangular(R[:, :rank], dual[:rank] - image @ of_targets)
        ends = np.cumsum([np.asarray(solution.dual).shape[1] for solution in some])[:-1]
        for solution, product in zip(some, np.split(products, ends, axis=1), strict=True):
            weights.append(solution.weights[kernel_of][:, None] * product)
        duals += np.split(of_factors, ends, axis=1)
        rest += np.split(of_targets, ends, axis=1)
    return _Solved(part, gram.row_map, numbers, list(solutions), (weights, duals), rest)


def _training(part: _Unsolved, gram: Gram, factors: Float) -> Training:
    """The training set of the pseudo-samples, whose features are their factors."""
    view, samples = gram.row_map.view, np.arange(len(factors)).astype(str)
    names = [view.source.names[k] for k in view.kernels]
    tables = {}
    for k, name in enumerate(names):
        Z = factors[:, gram.row_map.kernel_of == k]
        content = hashlib.blake2b(Z.tobytes(), digest_size=16).hexdigest()
        tables[name] = ArrayTable(name, Z.shape, Z.dtype, None, content, np.zeros(Z.shape[1]), 0, Z)
    recipes = [Recipe(name, "linear", name, None, {}) for name in names]
    source = FeatureTiles(
        recipes, SampleAxis(samples, tables), None, np.float64, settings.tile_size(len(samples), None)
    )
    rows = np.arange(len(samples))
    lens = Lens(View(source, np.arange(len(names)), rows, rows))
    return Training(lens, lens, part.training.names, part.training.title)
