"""Smooth convex losses in memory, and beyond it in the subspace that `dmkl.solvers.fisher.subspace` has for MK-FDA.

For α = Va in the span of a basis V, with the products W_j = K_jV and G_j = VᵀW_j at hand and F = Σ_j β_jW_j, P is the
minimum over a of the loss of Fa with the ridge (λ/2) aᵀG(β)a: the problem of `dmkl.solvers.smooth` for given β with the
kernel FG(β)⁻¹Fᵀ = AAᵀ, of few columns, where A = FL⁻ᵀ for G(β) = LLᵀ. So a new weighting W takes no pass, and losses of
any curvature and fixed effects remain what they are in memory. Every β takes a sum of all W_j, which points that are
solved side by side read together. With a = G(β)⁻¹Fᵀu, the derivative of that kernel in β_j is

    D_j u = W_ja + FG(β)⁻¹(W_jᵀu − G_ja),    uᵀD_ju = uᵀK_ju − (u − Va)ᵀK_j(u − Va).

The pair (α, β) is judged by P and u at the best fixed effects for f = Fa. With u = Vc + r, Vᵀr = 0,

    uᵀK_ju = cᵀG_jc + 2rᵀW_jc + rᵀK_jr,    rᵀK_jr ≤ ‖r‖² (tr K_j − tr G_j),

since the eigenvalues of (I − VVᵀ)K_j(I − VVᵀ) add up to its trace. So D is bounded from below without a pass. The u of
the round before bounds the optimum too: the basis contains most of it by now, and r is small. The gap is that of
`dmkl.solvers.smooth`, from the larger of both.

New directions are the residual u − λα, and the solution δ of (I + WK(β)/λ)δ = u − λα by a preconditioner. With the
factor M of I + w̄K, that of (I + w̄K)δ = x leaves (1 − W/w̄)(x − δ) of x, which is the next x.
Products are in double precision.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from typing import Any, ClassVar

import numpy as np

from dmkl.arrays import Array, Float, Index
from dmkl.files.arrays import load_array
from dmkl.numerics.cholesky import Cholesky
from dmkl.numerics.fisher import Certificate
from dmkl.numerics.losses import Loss, Ordinal
from dmkl.passes.blas import blas_threads, pinned_blas
from dmkl.passes.execute import check_memory, machine
from dmkl.passes.view import has_thin_factors
from dmkl.solvers import smooth_factors
from dmkl.solvers.fisher.mkfda import Solution, maximize
from dmkl.solvers.fisher.problem import FisherOptions, FisherProblem
from dmkl.solvers.fisher.subspace import certify, solver
from dmkl.solvers.fisher.subspace.certify import OpenPoint, Restriction
from dmkl.solvers.fisher.subspace.space import (
    TrainingSubspace,
    Unsolved,
    apply_preconditioners,
    basis_task_bytes,
    of_space,
)
from dmkl.solvers.fisher.subspace.tasks import ProductFiles, Strips, run_checked
from dmkl.solvers.in_memory import WithWholeKernels, combined
from dmkl.solvers.interface import CombinedKernel, EachProduct, Outcome, Request, Root, Solver, run_with, spread
from dmkl.solvers.jobs import Context, Job, can_solve, together
from dmkl.solvers.smooth import Column, SmoothOracle, SmoothProblem, gradient, linear_part

_MOST_WEIGHTS = 30  # Most weight vectors that are tried in one subspace
_MOST_DIRECTIONS = 20  # Most directions that a preconditioner gives for each column of a point
_NULL = 1e-12  # Eigenvalues of G(β) below this share of its trace are rounding
_TOGETHER = 8  # Most points that a task solves side by side
_SWEEP_BYTES = 2**26  # Memory of the rows of all W_j that are read at once


@dataclass
class _SmoothPoint(OpenPoint):
    primal: float = np.nan  # P
    bend: Float = field(default_factory=lambda: np.empty((0, 0)))  # The diagonal of W, (m, c)
    more: list[Strips] = field(default_factory=list)
    has_bounds: ClassVar[bool] = False

    @property
    def candidates(self) -> list[Strips]:
        return [self.residual, *([] if self.direction is None else [self.direction]), *self.more]

    @property
    def interval(self) -> tuple[float, float]:
        return self.primal, -self.solution.certificate.upper


@dataclass(eq=False)
class _SmoothRestriction(Restriction):
    """See `Restriction`, for the problems of the points."""

    problems: Sequence[SmoothProblem] = ()
    gradients: dict[int, dict[int, tuple[Float, float]]] = field(default_factory=dict)
    """u, (m, c), and −Σdℓ − uᵀf of each point, in the basis of this width and in the one before."""
    double: ClassVar[bool] = True

    def solve(self, starts: Sequence[Float | None], tols: Mapping[int, float]) -> dict[int, Solution]:
        """See `Restriction`; α of a solution are its coefficients a, (r, c), and the fixed effects, (q, c)."""
        work, own = [], []
        host = machine()
        for f, space in enumerate(self.spaces):
            of_f = list(of_space(self.points, tols, f))
            # More points in a task would leave slots without work, or exceed its memory.
            fair, room = math.ceil(len(tols) / host.slots), host.task_bytes // self.task_bytes(space, space.width)
            count = math.ceil(len(of_f) / max(1, min(_TOGETHER, fair, room)))
            for some in (of_f[place::count] for place in range(count)):
                work.append(partial(_solve_points, space.gram, space.product_files, space.training.n_train))
                own.append([self._given(k, starts[k], tols[k]) for k in some])
        threads = blas_threads(min(host.slots_per_host, len(work)))
        return dict(itertools.chain(*run_checked("restricted-master", work, threads, own=own)))

    def _given(self, k: int, beta: Float | None, tol: float) -> _Given:
        """A point with the solution of the round before as its start."""
        problem, kernels = replace(self.problems[k], tol=tol), self.points[k].kernels
        if beta is not None and k in self.gradients:
            *_, (u, _) = self.gradients[k].values()
            start = problem.weights.start(problem.n_kernels, beta if kernels is None else beta[kernels])
            problem = replace(problem, start=start, dual=u / problem.lam)
        return k, problem, kernels

    def judge(self, solutions: Mapping[int, Solution]) -> dict[int, OpenPoint]:
        """See `Restriction`; the residual is u − λα."""
        opened: dict[int, OpenPoint] = {}
        for f, space in enumerate(self.spaces):
            of_f = of_space(self.points, solutions, f)
            if not of_f:
                continue
            pairs = [(s.beta, s.alpha[0]) for s in of_f.values()]
            products = certify.products(space, pairs)
            alphas = certify.duals(space, [a for _, a in pairs])
            columns: dict[int, list[Column]] = {}
            for (k, solution), alpha, product in zip(of_f.items(), alphas, products, strict=True):
                columns[k] = of = [Column(y, self.problems[k]) for y in self.problems[k].y.T]
                starts = alpha.T, product.array().T, solution.alpha[1].T
                for column, *start in zip(of, *starts, strict=True):
                    column.alpha, column.f, column.b = start
                    column.fit_fixed()
                earlier = [item for item in self.gradients.get(k, {}).items() if item[0] < space.width]
                self.gradients[k] = dict([*earlier[-1:], (space.width, (gradient(of), linear_part(of)))])
            forms = iter(_forms(space, [u for k in columns for u, _ in self.gradients[k].values()]))
            for k, of in columns.items():
                opened[k] = self._point(k, of_f[k], of, [next(forms) for _ in self.gradients[k]])
        return opened

    def _point(self, k: int, solution: Solution, columns: Sequence[Column], forms: Sequence[Float]) -> _SmoothPoint:
        """The best of the lower bounds of the optimum that follow from uᵀK_ju for each u of the point."""
        point, problem = self.points[k], self.problems[k]
        linears = [linear for _, linear in self.gradients[k].values()]
        bounds = [(of_u / (2.0 * problem.lam), linear) for of_u, linear in zip(forms, linears, strict=True)]
        q, linear = min(bounds, key=lambda bound: point.support(bound[0]) + bound[1])
        a, beta, primal = solution.alpha[0], solution.beta, sum(column.primal for column in columns)
        left = abs(primal + linear + float(beta @ q))  # rounding where it is negative
        rest = sum(column.null for column in columns) + linear - left
        certificate = Certificate.of(beta, q, linear, point, left, rest)
        residual = np.stack([c.residual(c.eta) - problem.lam * c.alpha for c in columns], axis=1)
        given = replace(solution, alpha=a, certificate=certificate), Strips.of(residual), left / certificate.scale
        b, eta = (np.stack(of, axis=1) for of in zip(*((c.b, c.eta) for c in columns), strict=True))
        bend = np.stack([problem.loss.bend(c.y, c.eta, problem.d) for c in columns], axis=1)
        return _SmoothPoint(*given, certify.EXACT, {"effects": b, "predictor": eta}, primal=primal, bend=bend)

    def sharpen(self, opened: Sequence[OpenPoint], asked: Sequence[Unsolved], width: int) -> None:
        """See `Restriction`: further directions, of the part of the residual that the last one leaves."""
        columns = [sum(item.columns.width for item in asked if item.space == f) for f in range(len(self.spaces))]
        most = min(_MOST_DIRECTIONS, width // max(1, *columns))
        points = [point for point in opened if isinstance(point, _SmoothPoint)]
        left = [point.residual.array() for point in points]
        for point in points:
            point.more = []
        for _ in range(most - 1 if points else 0):
            for k, point in enumerate(points):
                direction = point.more[-1] if point.more else point.direction
                assert direction is not None
                # M is half of I + K/ρ.
                left[k] = (1.0 - point.bend / point.bend.mean()) * (left[k] - 0.5 * direction.array())
            items = [replace(item, columns=Strips.of(x), worth=-1.0) for item, x in zip(asked, left, strict=True)]
            for point, (x, _) in zip(points, apply_preconditioners(self.spaces, items), strict=True):
                point.more.append(x)

    def arrays(self, numbers: Sequence[int]) -> dict[str, Float]:
        last = {k: list(self.gradients[k].items())[-1] for k in numbers if k in self.gradients}
        ends = {f"end-{k}": np.array([width, linear]) for k, (width, (_, linear)) in last.items()}
        return {f"gradient-{k}": u for k, (_, (u, _)) in last.items()} | ends

    def restore(self, arrays: Mapping[str, Float]) -> None:
        for name in arrays:
            if name.startswith("gradient-"):
                width, linear = arrays[name.replace("gradient", "end")]
                self.gradients[int(name.split("-")[1])] = {int(width): (np.array(arrays[name]), float(linear))}

    def task_bytes(self, space: TrainingSubspace, width: int) -> int:
        """See `Restriction`: F, factors of K(β) and of B, products of a kernel, and those of u with all of them."""
        columns = max(int(problem.y.shape[1]) for problem in self.problems)
        of_rows = 8 * space.training.n_train * (5 * width + 3 * space.n_kernels * columns)
        of_products = 8 * _rows_at_once(space.n_kernels, space.training.n_train, width) * space.n_kernels * width
        return basis_task_bytes(space.n_kernels, width) + of_rows + of_products


def _forms(space: TrainingSubspace, blocks: Sequence[Float]) -> list[Float]:
    """Upper bounds of Σ_k u_kᵀK_ju_k for every kernel, (n,), and each block u, (m, c), exact in the basis."""
    u, ends = np.hstack(blocks), np.cumsum([0, *(block.shape[1] for block in blocks)])[:-1]
    traces = space.training.square.diagonal().sum(axis=1)
    work = [partial(_inner_forms, space.file("basis"), space.gram, traces)]
    ((inside, rest, bounds),) = run_checked("forms", work, own=[u])
    rows = certify.strips(0, len(u), u.shape[1] + len(inside))
    crossing = [partial(_cross_forms, space.product_files, strip, space.n_kernels, inside) for strip in rows]
    cross = run_checked("forms", crossing, own=[rest[strip] for strip in rows])
    return list(np.add.reduceat(bounds + 2.0 * np.sum(cross, axis=0), ends, axis=1).T)


_Given = tuple[int, SmoothProblem, Index | None]
"""A point to solve: its number, its problem, and the kernels as in `Point`."""


@dataclass(frozen=True, eq=False)
class _WeightedSum(Request):
    """Σ_j β_jW_j, (m, r), for some kernels."""

    kernels: Index
    beta: Float


@dataclass(frozen=True, eq=False)
class _EachSide(Request):
    """W_ja, (kernels, m, c), and W_jᵀu, (kernels, r, c), for some kernels."""

    kernels: Index
    a: Float
    u: Float


def _solve_points(
    gram: str, files: ProductFiles, m: int, threads: int, points: Sequence[_Given]
) -> list[tuple[int, Solution]]:
    """Solve points side by side in the subspace, so that the products are read once for all."""
    g = load_array(gram)
    with pinned_blas(threads):
        answers = partial(_answers, files, (m, g.shape[1]))
        return run_with(together([_solve_point(g, point) for point in points]), several=answers)


def _solve_point(g: Array, point: _Given) -> Solver[tuple[int, Solution]]:
    """Solve a point; yields requests for sums of the products and for products of all of them with vectors."""
    number, problem, kernels = point
    restricted = _Restricted(g, np.arange(len(g)) if kernels is None else kernels)
    start = problem.weights.start(problem.n_kernels) if problem.start is None else problem.start
    iteration = maximize(SmoothOracle(problem, np.inf), problem.weights, start, problem.tol, max_steps=_MOST_WEIGHTS)
    solution = yield from restricted.run(iteration)
    alpha, effects, _ = solution.alpha
    if not np.array_equal(restricted.beta, solution.beta):
        yield from restricted.combine(solution.beta)
    pair = restricted.coefficients(alpha), effects
    weights = solution.beta if kernels is None else spread(solution.beta, kernels, len(g))
    return number, replace(solution, beta=weights, alpha=pair, steps=())


class _Restricted:
    """The kernel FG(β)⁻¹Fᵀ = AAᵀ of the last β, and its derivatives; see the module."""

    def __init__(self, g: Array, kernels: Index) -> None:
        self.g, self.kernels, self.beta = g, kernels, np.empty(0)

    def run(self, iteration: Solver[Solution]) -> Solver[Solution]:
        """Run an iteration with this kernel; yields requests for the products W_j."""
        reply: Any = None
        while True:
            try:
                request: Any = iteration.send(reply)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            match request:
                case CombinedKernel():
                    yield from self.combine(request.weights)
                    reply = Root(self.a)
                case EachProduct(block=u):
                    reply = yield from self._derivatives(u)
                case _:
                    reply = request.function(*request.arguments)

    def combine(self, beta: Float) -> Solver[None]:
        """Compute L and A = FL⁻ᵀ."""
        total: Float = yield _WeightedSum(self.kernels, beta)
        system = combined(self.g, spread(beta, self.kernels, len(self.g)))
        # In directions without weight in G(β), F is rounding as well: a small ridge keeps it small.
        system[np.diag_indices(len(system))] += _NULL * np.trace(system) + np.finfo(float).tiny
        self.beta, self.lower = beta, Cholesky.of(system.T)
        self.a = self.lower.half_solve(total.T).T  # in place

    def coefficients(self, u: Float) -> Float:
        """G(β)⁻¹Fᵀu."""
        return np.asarray(self.lower.half_solve(self.a.T @ u, transposed=True))

    def _derivatives(self, u: Float) -> Solver[Float]:
        a = self.coefficients(u)
        products, sides = yield _EachSide(self.kernels, a, u)
        left = np.stack([side - self.g[j] @ a for j, side in zip(self.kernels, sides, strict=True)], axis=1)
        rest = self.a @ self.lower.half_solve(left.reshape(len(a), -1))
        products += rest.reshape(len(rest), -1, u.shape[1]).transpose(1, 0, 2)
        return np.asarray(products)


def _rows_at_once(n: int, m: int, width: int) -> int:
    """Rows of n products W_j, (m, r), that are read at once."""
    return min(m, max(64, _SWEEP_BYTES // (8 * max(1, n) * width)))


def _answers(files: ProductFiles, shape: tuple[int, int], requests: Sequence[_WeightedSum | _EachSide]) -> list[Any]:
    """The answers to requests of several points; the products W_j, (m, r), are read once for all sums and sides."""
    sums = [r for r in requests if isinstance(r, _WeightedSum)]
    sides = [r for r in requests if isinstance(r, _EachSide)]
    used = np.unique(np.concatenate([r.kernels for r in requests]))
    (m, width), n = shape, len(used)
    ends = np.cumsum([0, *(r.a.shape[1] for r in sides)])
    totals, products = np.empty((len(sums), m, width)), np.empty((n, m, ends[-1]))
    crossing = np.zeros((n, width, ends[-1]))
    betas = [spread(r.beta, np.searchsorted(used, r.kernels), n) for r in sums]
    side = _rows_at_once(n, m, width)
    stack = np.empty((n, side, width))
    for start in range(0, m, side):
        rows = slice(start, min(start + side, m))
        part = stack[:, : rows.stop - start]
        for place, j in enumerate(used):
            part[place] = files.strip(int(j), rows)
        if sums:
            totals[:, rows] = np.tensordot(np.stack(betas), part, 1)
        if sides:
            products[:, rows] = part @ np.hstack([r.a for r in sides])
            crossing += part.transpose(0, 2, 1) @ np.hstack([r.u[rows] for r in sides])
    answers: dict[int, Any] = {id(r): total for r, total in zip(sums, totals, strict=True)}
    for r, first, last in zip(sides, ends, ends[1:], strict=False):
        places = np.searchsorted(used, r.kernels)
        answers[id(r)] = tuple(of_all[places, :, first:last] for of_all in (products, crossing))
    return [answers[id(r)] for r in requests]


def _inner_forms(basis: str, gram: str, traces: Float, u: Float) -> tuple[Float, Float, Float]:
    """C and R with u = VC + R, (r, k) and (m, k), and cᵀG_jc + ‖r‖² (tr K_j − tr G_j) of every column, (n, k)."""
    v, g = load_array(basis), load_array(gram)
    with pinned_blas(1):
        inside = v.T @ u
        rest = u - v @ inside
        forms = np.stack([np.sum(inside * (of @ inside), axis=0) for of in g])
    left = np.maximum(traces - np.einsum("jkk->j", g), 1e-12 * traces)  # at least the rounding of the two
    return inside, rest, forms + left[:, None] * np.sum(rest * rest, axis=0)


def _cross_forms(files: ProductFiles, rows: slice, n_kernels: int, inside: Float, rest: Float) -> Float:
    """rᵀK_jVc of every kernel and column over some rows, (n, k)."""
    with pinned_blas(1):
        return np.stack([np.sum(rest * (files.strip(j, rows) @ inside), axis=0) for j in range(n_kernels)])


@dataclass(frozen=True)
class SmoothMethod(WithWholeKernels):
    """Problems in memory as those of `InMemory`, or in passes with the combined kernel here; larger ones in a subspace.

    `solver` is "memory", "factors", "subspace" or "auto", the fastest of those that fit, and `options` are those of the
    subspace.
    """

    factors: bool = True
    together: int = 8  # with more, arithmetic takes the time, and no longer the reading of kernels
    solver: str = "auto"
    options: FisherOptions = field(default_factory=FisherOptions)

    def check(self, jobs: Sequence[Job]) -> None:
        match self._chosen(jobs):
            case "factors":
                smooth_factors.check(jobs)
            case "subspace":
                solver.SOLVER.check(_as_points(jobs))
            case _:
                self._check_memory(jobs)
        # The second derivative of a loss that is no sum over samples may be a matrix, whatever the kernels are.
        sizes = [
            8 * _JOINT * len(job.problem.y) ** 2 for job in jobs if not isinstance(job.problem.loss, Loss | Ordinal)
        ]
        parts = {"its second derivative, with risk sets and roots": max(sizes, default=0)}
        host = machine()
        check_memory("the loss of all samples together", parts, host.task_bytes, "Take fewer samples, or allow more")

    def _check_memory(self, jobs: Sequence[Job]) -> None:
        way_out = (
            "Take solver='subspace', build the set with rank=, which keeps kernels as factors of few columns, or set "
            "dmkl.memory higher"
        )
        content = "combined kernels and factors of them"
        self.check_passes(jobs, "a smooth loss with solver='memory'", content, way_out)

    def passes_bytes(self, job: Job) -> int:
        """K(β), three matrices while B and its factor are made, and products."""
        m, columns = job.problem.y.shape
        return 8 * int(m * (4 * m + 2 * job.n_kernels * columns))

    def _chosen(self, jobs: Sequence[Job]) -> str:
        """The solver by name."""
        if self.solver != "auto":
            return self.solver
        fits, trainings = can_solve(self._check_memory, jobs), {job.training for job in jobs}
        views = [training.square.view for training in trainings]
        if smooth_factors.takes(jobs):
            # A fit in memory takes some twenty times mD² operations; one from sums takes some 20 short passes.
            sizes = [view.shape[1] * int(view.factors.widths[view.kernels].sum()) ** 2 for view in views]
            if max(sizes) > _LARGE or not fits:
                return "factors"
        if not fits:
            return "subspace"
        if any(map(has_thin_factors, views)) or not all(isinstance(job.problem.loss, Loss) for job in jobs):
            return "memory"
        # Operations. In memory each problem takes some ten factors of B. In a subspace a training set takes a dozen
        # blocks of products, and each problem some fifteen weight vectors, with a triangular solve and a factor or two.
        of_memory = sum(10 * job.training.n_train**3 / 3 for job in jobs)
        of_passes = sum(12 * 2 * _WIDTH * t.n_kernels * t.n_train**2 for t in trainings)
        of_points = sum(40 * job.training.n_train * _RANK**2 for job in jobs)
        return "subspace" if of_memory > of_passes + of_points else "memory"

    def chains(self, jobs: Sequence[Job]) -> list[list[Job]]:
        # From equal weights to sparse ones: the solutions of neighboring p are close. Problems with fixed weights, such
        # as plain sums, are apart: a search of one point has the solution of a fit, whatever it is compared with.
        chains: dict[Any, list[Job]] = {}
        for job in sorted(jobs, key=lambda job: -getattr(job.problem.weights, "p", 0.0)):
            is_fixed = job.problem.weights.is_fixed(job.n_kernels)
            key = id(job) if is_fixed else (job.problem.lam, hash(job.problem.y.tobytes()))
            chains.setdefault(key, []).append(job)
        return list(chains.values())

    def solve(self, jobs: Sequence[Job], context: Context) -> list[Outcome]:
        context.solver = self._chosen(jobs)
        if context.solver == "factors":
            return smooth_factors.solve(jobs, context)
        if context.solver == "memory":
            return super().solve(jobs, context)
        restriction = partial(_SmoothRestriction, problems=[job.problem for job in jobs])
        solved = solver.solve_in_subspaces(_as_points(jobs), self.options, context, restriction=restriction)
        outcomes = [job.problem.outcome(outcome) for job, outcome in zip(jobs, solved, strict=True)]
        return solver.finish_open(jobs, outcomes, self.options, context, self._finish)

    def _finish(self, jobs: Sequence[Job], context: Context) -> list[Outcome] | None:
        """Open problems in memory; None where it does not fit."""
        return super().solve(jobs, context) if can_solve(self._check_memory, jobs) else None


_LARGE = 2**32  # mD² of factors (m, D) from which on sums over the samples are faster than factors in memory
_WIDTH, _RANK = 128, 500  # Usual columns of a block, and of a basis when most problems are certified
_JOINT = 8  # Matrices (m, m) that are in memory at once for a loss that is no sum over the samples


def _as_points(jobs: Sequence[Job]) -> list[Job]:
    """Jobs of which the targets are u without kernels, shared by equal ones, and λ is that of ½(I + K/λ) near them."""
    targets: dict[tuple[int, bytes], Float] = {}
    points = []
    for job in jobs:
        problem = job.problem
        columns = [Column(y, problem) for y in problem.y.T]
        u = gradient(columns)
        u = targets.setdefault((id(job.training), sha256(u.tobytes()).digest()), u)
        bend = np.mean([problem.loss.bend(column.y, column.eta, problem.d) for column in columns])
        # Rounded, so that classes and folds share ridges.
        lam = problem.lam / 4.0 ** np.round(np.log(max(float(bend), 1e-6)) / np.log(4.0))
        points.append(replace(job, problem=FisherProblem(u, lam, problem.weights, problem.name, problem.start)))
    return points
