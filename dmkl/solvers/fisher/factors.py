"""MK-FDA on kernels that are products of factors, K_j = Z_jZ_jᵀ, from sums over the samples.

Linear kernels of few features, random Fourier features and Nyström features have factors Z_j (m, d_j) with D = Σd_j
columns in all, mostly fewer than samples. Any orthonormal Q (m, r) whose span contains Z = [Z_1 … Z_n] and the targets
H turns the problem into the same one over r pseudo-samples, with the factors QᵀZ, the targets QᵀH and α = Qα': norms,
inner products and K_jα = QQᵀZ_j(QᵀZ_j)ᵀα' are equal, and so are the objective, the weights and the certificate of every
α'. With G = ZᵀZ = UΛUᵀ (D, D) and T = ZᵀH (D, C),

    QᵀZ = [Λ^½Uᵀ; 0],   QᵀH = [Λ^−½UᵀT; R],   RᵀR = HᵀH − TᵀUΛ⁻¹UᵀT,

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

from dmkl import settings
from dmkl.arrays import Float
from dmkl.errors import refuse
from dmkl.features.specs import Recipe
from dmkl.features.tiles import FeatureTiles, SampleAxis
from dmkl.passes.execute import machine
from dmkl.passes.rows import Gram, gram_matrices, has_thin_factors, row_products
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
    title = "sums over the samples, for kernels of few features that are computed as they are read"
    return FisherSolver("factors", title, partial(_solve, solve), check=_check, leaves_out=True)


def _check(jobs: Sequence[Job]) -> None:
    views = {id(job.training): job.training.square.view for job in jobs}
    if not all(map(has_thin_factors, views.values())):
        refuse(
            "solver='factors' is for kernels that are computed from features as they are read (dmkl.build without a "
            "path, function linear or cosine), with fewer columns in all than training samples, whose inner products "
            "fit in memory; take solver='auto'"
        )


def _solve(solve: Solve, jobs: Sequence[Job], options: FisherOptions, context: Context) -> list[Outcome]:
    """Passes for the sums of some training sets, for scores of their held-out rows, and for α where it is wanted."""
    outcomes = [context.workspace.outcome(number) for number in range(len(jobs))]
    wants_duals, inner = context.duals or options.leave_one_out, replace(options, leave_one_out=False)
    for batch in _batches(jobs, [number for number, outcome in enumerate(outcomes) if outcome is None]):
        started, views = time.monotonic(), [part.training.square.view for part in batch]
        grams, n_passes = gram_matrices(views, [part.targets for part in batch])
        sets = [_PseudoSamples(part, gram) for part, gram in zip(batch, grams, strict=True)]
        for pseudo in sets:
            pseudo.solve(solve, jobs, inner)
        scores = _on_rows(sets, 0)
        duals = _on_rows(sets, 1) if wants_duals else [None] * len(sets)
        for pseudo, scores_of_set, duals_of_set in zip(sets, scores, duals, strict=True):
            for number, outcome in pseudo.outcomes(scores_of_set, duals_of_set):
                outcomes[number] = outcome
                context.workspace.keep_outcome(number, outcome)
        n_passes += any(s is not None for s in scores) + wants_duals
        context.tally.add("factors", n_passes, time.monotonic() - started, covering(views).bytes_per_pass)
    return [outcome for outcome in outcomes if outcome is not None]


@dataclass(frozen=True, eq=False)
class _Part:
    """A training set with some of its targets."""

    training: Training
    blocks: list[tuple[Float, list[int]]]
    """Targets (m, c), and the numbers of the jobs that have them."""

    @cached_property
    def targets(self) -> Float:
        """All targets side by side, (m, C)."""
        return np.concatenate([h for h, _ in self.blocks], axis=1)


def _batches(jobs: Sequence[Job], numbers: Sequence[int]) -> Iterator[list[_Part]]:
    """The jobs by training set and targets, as many together as their sums fit in memory.

    A part has not many more targets than components, since each target may add a pseudo-sample.
    """
    by_set: dict[int, tuple[Training, dict[int, tuple[Float, list[int]]]]] = {}
    for number in numbers:
        job = jobs[number]
        _, blocks = by_set.setdefault(id(job.training), (job.training, {}))
        blocks.setdefault(id(job.problem.h), (job.problem.h, []))[1].append(number)
    batch: list[_Part] = []
    n_bytes = 0
    for training, blocks in by_set.values():
        widths = training.square.view.factor_widths
        assert widths is not None
        n_columns, part = int(widths.sum()), list[tuple[Float, list[int]]]()
        for block in blocks.values():
            if part and sum(h.shape[1] for h, _ in part) + block[0].shape[1] > max(n_columns, _TARGETS):
                batch.append(_Part(training, part))
                part = []
            part.append(block)
        batch.append(_Part(training, part))
        n_bytes += 8 * n_columns**2
        if 3 * n_bytes > machine().total_bytes:
            yield batch
            batch, n_bytes = [], 0
    if batch:
        yield batch


class _PseudoSamples:
    """The problems of a training set over pseudo-samples, and their solutions over its samples."""

    def __init__(self, part: _Part, gram: Gram) -> None:
        self.part, self.gram, H, T = part, gram, part.targets, gram.targets
        values, vectors = np.linalg.eigh(gram.gram)
        kept = values > len(values) * _UNIT * values[-1]
        self._unit = _UNIT * np.sqrt(len(values)) * values[-1]
        roots = np.sqrt(values[kept])
        self._basis = vectors[:, kept] / roots  # Q = [Z basis, (H − Z basis image) rest]
        self._image = self._basis.T @ T
        left = H.T @ H - self._image.T @ self._image
        sizes, directions = np.linalg.eigh((left + left.T) / 2.0)
        also = sizes > len(sizes) * _UNIT * max(float(np.abs(np.diagonal(H.T @ H)).max(initial=0.0)), 0.0)
        self._rest = directions[:, also] / np.sqrt(sizes[also])
        self.factors = np.zeros((len(roots) + np.count_nonzero(also), len(values)))
        self.factors[: len(roots)] = roots[:, None] * vectors[:, kept].T
        self.targets = np.concatenate([self._image, np.sqrt(sizes[also])[:, None] * directions[:, also].T])
        self._numbers: list[int] = []
        self._solutions: list[Outcome] = []

    def solve(self, solve: Solve, jobs: Sequence[Job], options: FisherOptions) -> None:
        """Solve the problems of the jobs over the pseudo-samples."""
        training, column, jobs_here = self._training(), 0, []
        for h, numbers in self.part.blocks:
            h_here = self.targets[:, column : column + h.shape[1]]
            column += h.shape[1]
            for number in numbers:
                if jobs[number].problem.lam < self._unit:
                    refuse(
                        f"lam={jobs[number].problem.lam:g} is below what sums in double precision resolve: rounding "
                        f"perturbs these kernels by about {self._unit:.1e}. Take a larger lam"
                    )
                problem = replace(jobs[number].problem, h=h_here)
                jobs_here.append(replace(jobs[number], training=training, problem=problem))
                self._numbers.append(number)
        space = Workspace(None, {})
        try:
            self._solutions = solve(jobs_here, options, Context(space, Tally()))
        finally:
            space.close()

    def _training(self) -> Training:
        """The training set of the pseudo-samples, whose features are their factors."""
        view, samples = self.gram.row_map.view, np.arange(len(self.factors)).astype(str)
        names = [view.source.names[k] for k in view.kernels]
        tables = {}
        for k, name in enumerate(names):
            Z = self.factors[:, self.gram.row_map.kernel_of == k]
            content = hashlib.blake2b(Z.tobytes(), digest_size=16).hexdigest()
            tables[name] = ArrayTable(name, Z.shape, Z.dtype, None, content, np.zeros(Z.shape[1]), 0, Z)
        recipes = [Recipe(name, "linear", name, None, {}) for name in names]
        tile = settings.tile_size(len(samples), None)
        source = FeatureTiles(recipes, SampleAxis(samples, tables), None, np.float64, tile)
        rows = np.arange(len(samples))
        lens = Lens(View(source, np.arange(len(names)), rows, rows))
        return Training(lens, lens, self.part.training.names, self.part.training.title)

    def coefficients(self, axis: int) -> Float:
        """W (D, …): the scores of held-out rows (axis 0) are ZW, the dual variables (axis 1) ZW + HE, see `rest`."""
        columns = []
        for solution in self._solutions:
            dual = solution.dual
            assert dual is not None
            if axis == 0:
                columns.append(solution.weights[self.gram.row_map.kernel_of][:, None] * (self.factors.T @ dual))
            else:
                n_basis = self._basis.shape[1]
                columns.append(self._basis @ (dual[:n_basis] - self._image @ (self._rest @ dual[n_basis:])))
        return np.concatenate(columns, axis=1)

    def outcomes(self, scores: Float | None, duals: Float | None) -> Iterator[tuple[int, Outcome]]:
        """The solutions with their scores and dual variables, by the numbers of the jobs."""
        column, n_basis = 0, self._basis.shape[1]
        for number, solution in zip(self._numbers, self._solutions, strict=True):
            assert solution.dual is not None
            columns = slice(column, column := column + solution.dual.shape[1])
            dual = None
            if duals is not None:
                dual = duals[:, columns] + self.part.targets @ (self._rest @ solution.dual[n_basis:])
            yield number, replace(solution, dual=dual, scores=None if scores is None else scores[:, columns])


def _on_rows(sets: Sequence[_PseudoSamples], axis: int) -> list[Float | None]:
    """The products of held-out rows (axis 0) or training rows (axis 1) with `coefficients`; None for no rows."""
    items, products = [], list[Float | None]([None] * len(sets))
    for k, pseudo in enumerate(sets):
        training = pseudo.part.training
        positions = np.arange(training.n_train, training.n_rows) if axis == 0 else np.arange(training.n_train)
        if len(positions):
            row_map = replace(pseudo.gram.row_map, view=(training.whole if axis == 0 else training.square).view)
            items.append((k, (row_map, axis, positions, partial(_times, pseudo.coefficients(axis)))))
    for (k, _), product in zip(items, row_products([item for _, item in items]) if items else [], strict=True):
        products[k] = product
    return products


def _times(coefficients: Float, Z: Float) -> Float:
    return np.asarray(Z @ coefficients)
