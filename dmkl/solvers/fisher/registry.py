"""The solvers of MK-FDA by name, the choice between them, and the method that solves the problems of learners.

To add a solver, write a file with a `FisherSolver`, add its module to `SOLVERS` (which the check of the parameter
``solver`` and the documentation of learners use) and its name to `SolverName`. If it has options, add a
`ConfiguredSolver` with the same name to `dmkl.solvers.fisher.problem`.

Leave-one-out scores
--------------------
The leave-one-out residual of row i is α_i/(A⁻¹)_ii, apart from directions that are not penalized
(`dmkl.numerics.discriminant.leave_one_out`). For kernels that are not centered it also takes A⁻¹1, by the factor. The
direct solver has a factor of A. For the other solvers one pass adds up the combined kernels.

- As long as m³ operations for each distinct pair of weights and ridge are affordable, A is factored for each of them,
  in double precision, and the diagonals are exact: those that a fit of that point alone has.
- A larger grid factors A at some of its points, each as far as possible from those before in the coordinates
  log(1 + β_j tr K_j/λ), by which A changes (Gonzalez: Clustering to minimize the maximum intercluster distance,
  Theoretical Computer Science 38, 1985). With d = (A⁻¹)_ii − 2P_ii, s_i = 2(1 − P_ii)/d − 1 is at most
  Σ_j β_j k_j(x_i, x_i)/λ(1 − P_ii), by Jensen's inequality, and nearly that for large λ, where scores depend on small
  differences of d from 2(1 − P_ii). Between the factored points the logarithm of the quotient of both is interpolated
  by radial functions, linear in the distance: scores there are approximate (`Outcome.interpolated`). A search factors
  the points that it may choose, and chooses by their exact scores (`dmkl.searching.fits.with_exact_choices`).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dmkl.arrays import Float, by_key, plain_repr
from dmkl.errors import refuse
from dmkl.files.arrays import kept_arrays, save_arrays
from dmkl.numerics.discriminant import null_leverages
from dmkl.passes.execute import machine
from dmkl.passes.view import Lens, View, has_thin_factors
from dmkl.solvers.driver import drive
from dmkl.solvers.fisher import cg, many
from dmkl.solvers.fisher.descent import ANCHORED, DUAL, INTERLEAVED
from dmkl.solvers.fisher.factors import solver_on_factors
from dmkl.solvers.fisher.problem import AUTO, ConfiguredSolver, FisherOptions, FisherSolver
from dmkl.solvers.fisher.subspace import solver as subspace
from dmkl.solvers.fisher.wrapper import DIRECT
from dmkl.solvers.interface import InverseDiagonals, Outcome, ask
from dmkl.solvers.jobs import Context, Job, Training, can_solve

SOLVERS: dict[str, FisherSolver] = {
    solver.name: solver for solver in (DIRECT, cg.SOLVER, ANCHORED, subspace.SOLVER, INTERLEAVED, DUAL, many.SOLVER)
}


_FEW_PSEUDO_SAMPLES = 2048  # Pseudo-samples up to which a single problem is solved by Cholesky factors


def _solve_pseudo_samples(jobs: Sequence[Job], options: FisherOptions, context: Context) -> list[Outcome]:
    name = choose(jobs, factors=False)
    # Products with factors cost little, and a sum of kernels as much as with any others.
    if name == DIRECT.name and jobs[0].training.n_train > _FEW_PSEUDO_SAMPLES:
        name = subspace.SOLVER.name
    return SOLVERS[name].solve(jobs, options, context)


FACTORS = solver_on_factors(_solve_pseudo_samples)
SOLVERS[FACTORS.name] = FACTORS


def name_of(solver: Any) -> str:
    """The name of a solver, which is `AUTO`, one of `SOLVERS` or a `ConfiguredSolver`; InputError for anything else."""
    if isinstance(solver, ConfiguredSolver):
        return solver.name
    if not isinstance(solver, str) or solver not in (AUTO, *SOLVERS):
        *others, last = map(repr, (AUTO, *SOLVERS))
        refuse(
            f"solver must be {', '.join(others)} or {last}, got {plain_repr(solver)}; to set its options, give an "
            "object such as dmkl.Subspace(basis='8GiB')"
        )
    return solver


def check_solver(name: str, options: FisherOptions, exponents: Sequence[float], beyond: str = "") -> None:
    """Raise InputError, with the parameters that exclude one another, for parameters that a solver cannot take.

    `beyond` is the parameter that makes the set of weights more than a ball of some norm; empty where there is none.
    """
    if name == DUAL.name and 1.0 in exponents:
        refuse(
            "solver='dual' follows the gradient of the dual, which does not exist at p = 1; take "
            "solver='interleaved', 'subspace', 'cg' or 'direct', or a p above 1, such as 1 + 2**-6"
        )
    if beyond and name == DUAL.name:
        refuse(
            f"solver='dual' follows the gradient of the dual, which {beyond} leave without one; take "
            "solver='interleaved', 'subspace', 'anchored', 'cg' or 'direct'"
        )
    if beyond and options.master == "taylor":
        refuse(f"master='taylor' is a form of the norm ‖β‖_p alone, and there are {beyond}; take 'newton' or 'exact'")


@dataclass(frozen=True)
class FisherMethod:
    """Solve MK-FDA problems, by a solver of `SOLVERS` or the one that `choose` finds."""

    solver: str
    options: FisherOptions

    def check(self, jobs: Sequence[Job]) -> None:
        solver = self._solver(jobs)
        solver.check(jobs)
        if solver is not FACTORS:  # which reads the features as they are and checks λ against its sums
            check_resolution(jobs)

    def solve(self, jobs: Sequence[Job], context: Context) -> list[Outcome]:
        solver = self._solver(jobs)
        context.solver = solver.name
        leave_one_out = self.options.leave_one_out and (context.duals or not self.options.only_for_fits)
        options = replace(self.options, leave_one_out=leave_one_out)
        outcomes = solver.solve(jobs, options, context)
        return with_inverse_diagonals(jobs, outcomes, context) if leave_one_out and solver.leaves_out else outcomes

    def factored(
        self, jobs: Sequence[Job], outcomes: Sequence[Outcome], numbers: Sequence[int], context: Context
    ) -> list[Outcome]:
        return with_inverse_diagonals(jobs, outcomes, context, numbers)

    def needs_folder(self, *, n_points: int) -> bool:
        """See `Method.needs_folder`; "auto" takes a solver that keeps files where a target has three points or more."""
        return n_points > _PAIR if self.solver == AUTO else SOLVERS[self.solver].files

    def _solver(self, jobs: Sequence[Job]) -> FisherSolver:
        return SOLVERS[choose(jobs) if self.solver == AUTO else self.solver]


_AMPLE = 1e-3
"""λ/tr K(β) from which descent on the dual takes as many passes as the subspace solver, and half of its time."""
_ROOM = 100  # Directions for which descent needs room
_MANY, _DIRECTIONS = 32, 5
"""Targets from which one factor for all may be better than one for each, and the directions that a column needs."""
_PAIR = 2
"""Points of a target up to which each is solved by its own factors: a search of one point, with the plain sum as a
baseline, then solves that point exactly as `fit` does."""
_SOME = 8  # Targets from which a subspace for all may be as large as the kernels


def choose(jobs: Sequence[Job], *, factors: bool = True) -> str:
    """The solver for some jobs, as `pipelines/compare_solvers.py` has measured them.

    "factors" where all kernels have factors of fewer columns than samples, unless `factors` is False. For many targets
    with several points (p, λ) each, or some whose columns fill the space of the training samples, the stacked solver,
    where all kernels of a training set fit the memory of a task. The anchored solver for many where factors fit, unless
    they have several points and all of them a subspace smaller than the kernels are. The subspace solver where a target
    has several points with weights to learn, whose subspace is one; the direct one where combined kernels fit in
    memory; otherwise descent for a single problem of ample λ, and the subspace solver.
    """
    points = Counter((job.training, id(job.problem.h)) for job in jobs if job.n_kernels > 1)
    targets = Counter(training for training, _ in points)
    several = max(points.values(), default=0) > _PAIR
    # The order of these rules matters: each one assumes that those above it do not apply.
    if factors and _have_factors(jobs):
        return FACTORS.name
    # Whether a subspace for all targets of a training set, so many of each, would be all of its space.
    columns = ((job.training, job.problem.h.shape[1]) for job in jobs if job.n_kernels > 1)
    filled = ((n := targets[t]) >= _SOME and n * c * _DIRECTIONS >= t.n_train for t, c in columns)
    if several and (max(targets.values()) >= _MANY or any(filled)) and can_solve(many.SOLVER.check, jobs):
        return many.SOLVER.name
    # Targets that have several points each are better together in a subspace, unless they fill the space.
    enough = (n >= max(_MANY, several * training.n_train / _DIRECTIONS) for training, n in targets.items())
    if any(enough) and can_solve(ANCHORED.check, jobs):
        return ANCHORED.name
    if several:
        return subspace.SOLVER.name
    if can_solve(DIRECT.check, jobs):
        return DIRECT.name
    if len(jobs) > 1:
        return subspace.SOLVER.name  # one for all problems, where descent keeps directions for each
    lens, problem = jobs[0].training.square, jobs[0].problem
    n, m, _ = lens.view.shape
    if 8 * (n + 1) * m * _ROOM > machine().total_bytes // 2:
        return subspace.SOLVER.name
    # K(β) has about the trace Σ_j β_j tr K_j; below a share of it the small eigenvalues count, and descent is slow.
    trace = float(np.median(lens.diagonal().sum(axis=1)))
    if problem.lam < _AMPLE * trace * float(problem.weights.start(n).sum()):
        return subspace.SOLVER.name
    return DUAL.name if problem.weights.smooth else INTERLEAVED.name


def _have_factors(jobs: Sequence[Job]) -> bool:
    """Whether the kernels of all training sets have factors of fewer columns than samples."""
    trainings = {job.training for job in jobs}  # of a grid, thousands of jobs share a few
    return all(has_thin_factors(training.square.view) for training in trainings)


def least_lam(lens: Lens) -> float:
    """The least λ that does not drown in the rounding of the stored kernels.

    Entries rounded to u relative add a random symmetric matrix whose norm is about u √m times their size: below that,
    I + K/λ may have negative eigenvalues that no kernel has.
    """
    view, fitted = lens.view, lens.fitted
    diagonal = view.source.diagonal(view.kernels)
    assert diagonal is not None  # symmetric sources have one
    unit = 0.5 * float(np.finfo(view.source.dtype).eps)
    # Where the chain differs from kernel to kernel, it has brought the samples to unit norm.
    factors = np.array([fitted.factor(j) for j in range(len(view.kernels))])
    size = float(np.median(np.abs(diagonal).max(axis=1) * factors)) if fitted.same_for_all else 1.0
    # Of D^{1/2}ED^{1/2} the norm is that of its largest row, about √(d_i Σd).
    counts = fitted.counts(view.shape[1])
    return float(unit * np.sqrt(counts.max() * counts.sum()) * size)


def check_resolution(jobs: Sequence[Job]) -> None:
    """Raise InputError for a λ below `least_lam`, which the rounding of the stored kernels exceeds."""
    smallest: dict[Training, float] = {}
    for job in jobs:
        smallest[job.training] = min(smallest.get(job.training, np.inf), job.problem.lam)
    for training, lam in smallest.items():
        noise, dtype = least_lam(training.square), training.square.view.source.dtype
        if lam < noise:
            refuse(
                f"lam={lam:g} is below what the stored precision resolves: rounding to {dtype} alone perturbs these "
                f"kernels by about {noise:.1e}. Take a larger lam, or store the kernels in float64"
            )


# --- leave-one-out scores ---------------------------------------------------------------------------------------------

_OPERATIONS, _NODE_OPERATIONS = 2**36, 2**35
"""Σ m³ of all points up to which each is factored for leave-one-out scores, a second on two cores, and of the points
between which diagonals are interpolated beyond it: a tenth of the time of a search of a thousand samples."""
_RESCORED_OPERATIONS = 2**42
"""Operations for points that a search factors at once before it chooses, a minute on two cores."""
_LEAST_FACTORS, _MOST_FACTORS = 6, 256
"""Factors of each training set between which diagonals are interpolated."""
_LEAST_OPERATIONS = 2**39
"""Operations for these factors, above which there are fewer: three for 5,000 samples, a tenth of a search's time."""
_LEVERAGE_OPERATIONS = 2**41
"""Operations for leverages from factors that leave-one-out scores are worth, half a minute on two cores: with samples
so many for each component, leverages are small."""
_NEARLY_ZERO = 1e-12
"""Lower bound of s and 1 − P_ii, so that quotients and logarithms stay finite in spite of rounding."""


def with_inverse_diagonals(
    jobs: Sequence[Job], outcomes: Sequence[Outcome], context: Context, factored: Sequence[int] | None = None
) -> list[Outcome]:
    """Add `Outcome.inverse` to outcomes; they stay as they are if combined kernels do not fit the memory budget.

    If outcomes have it, A is factored for those with the numbers `factored`, the first of them that take
    `_RESCORED_OPERATIONS`. The diagonals are stored in the checkpoint, so that a continued run needs no pass for them.
    """
    missing, thin = [k for k, outcome in enumerate(outcomes) if outcome.inverse is None], _have_factors(jobs)
    if factored is not None:
        costs = np.cumsum([_operations(jobs[k].training.square.view) for k in factored])
        missing = list(factored[: int(np.searchsorted(costs, _RESCORED_OPERATIONS, side="right"))])
    views = [training.square.view for training in {job.training for job in jobs}]
    # From factors, 2mD² operations for the leverages of each training set.
    operations = (2.0 * v.shape[1] * float(v.factor_widths.sum()) ** 2 for v in views if v.factor_widths is not None)
    if not missing or not (sum(operations) <= _LEVERAGE_OPERATIONS if thin else can_solve(DIRECT.check, jobs)):
        return list(outcomes)
    numbers = {key: str(number) for number, key in enumerate(dict.fromkeys(id(job.training.square) for job in jobs))}
    by_kernels = by_key(missing, lambda k: jobs[k].kernels_key)
    groups = [_ProblemSet.of(jobs, outcomes, members) for members in by_kernels.values()]
    cost = sum(len(group.numbers) * _operations(group.lens.view) for group in groups)
    asked = []  # Choices of kernels may have the same weights, and so the same key
    for group in groups:
        for request, members in group.requests(np.inf if factored is not None else _OPERATIONS, cost):
            content = numbers[id(group.lens)].encode() + request.weights.tobytes() + np.array(request.lams).tobytes()
            asked.append((hashlib.sha256(content).hexdigest()[:32], group.lens, request, members))
    file = context.workspace.path / "inverse-diagonals.npz"
    diagonals = (None if context.workspace.temporary else kept_arrays(file)) or {}
    new = {key: (lens, ask(request)) for key, lens, request, _ in asked if key not in diagonals}
    before = float(diagonals.pop("n_passes", 0.0))
    if factored is None:  # of an earlier run, which includes those of points that it factored later
        context.tally.n_passes += before
    answers, n_passes = drive(list(new.values()), tally=context.tally)
    diagonals |= zip(new, answers, strict=True)
    if new and not context.workspace.temporary:
        save_arrays(file, {**diagonals, "n_passes": np.array(before + n_passes)}, synced=True)
    exact: dict[int, Float] = {}
    for key, *_, members in asked:
        for same, rows in zip(members, diagonals[key], strict=True):
            exact |= dict.fromkeys(same, rows if rows.ndim == 2 else rows[None])  # version 0.1 kept one row
    complete = list(outcomes)
    for group in groups:
        vectors = group.lens.null_vectors()  # the diagonal of 2P is not part of the answers
        projected = 0.0 if vectors is None else 2.0 * null_leverages(vectors)
        for k, (diagonal, *solved) in group.completed(exact, projected).items():
            diagonal = diagonal + projected
            inverse = np.column_stack([diagonal, *solved]) if solved else diagonal
            complete[k] = replace(outcomes[k], inverse=inverse, interpolated=k not in exact)
    return complete


def _operations(view: View) -> float:
    """Operations for the diagonal at one point: m³, or 2mD² and an eigendecomposition for D columns of factors."""
    m, widths = view.shape[1], view.factor_widths
    if not has_thin_factors(view) or widths is None:
        return float(m) ** 3
    width = float(widths.sum())
    return 2.0 * m * width**2 + 10.0 * width**3


@dataclass(frozen=True, eq=False)
class _ProblemSet:
    """Problems of one training set and choice of kernels, by their numbers, with β, (problems, n), and λ of each."""

    lens: Lens
    numbers: list[int]
    weights: Float
    lams: list[float]

    @classmethod
    def of(cls, jobs: Sequence[Job], outcomes: Sequence[Outcome], members: list[int]) -> _ProblemSet:
        """The problems with some numbers."""
        weights, lams = [outcomes[k].weights for k in members], [float(jobs[k].problem.lam) for k in members]
        return cls(jobs[members[0]].training.square, members, np.array(weights), lams)

    def requests(self, most: float, cost: float) -> list[tuple[InverseDiagonals, list[list[int]]]]:
        """Requests for the points whose A is factored, those of equal weights together; all if `cost` is affordable.

        Each has the numbers of the problems at each of its λ.
        """
        places = range(len(self.numbers))
        points = by_key(places, lambda place: (self.weights[place].tobytes(), self.lams[place]))
        firsts = [same[0] for same in points.values()]
        if cost > most:
            least = min(_LEAST_FACTORS, max(1, int(_LEAST_OPERATIONS / _operations(self.lens.view))))
            n_factors = min(_MOST_FACTORS, max(least, int(_NODE_OPERATIONS / cost * len(self.numbers))))
            firsts = [firsts[at] for at in sorted(_spread(self.coordinates()[firsts], n_factors))]
        by_weights = by_key(firsts, lambda place: self.weights[place].tobytes())
        requests = []
        for content, same in by_weights.items():
            lams = tuple(self.lams[place] for place in same)
            members = [[self.numbers[place] for place in points[content, lam]] for lam in lams]
            requests.append((InverseDiagonals(self.weights[same[0]], lams, vector=self.lens.unit_vector()), members))
        return requests

    def coordinates(self) -> Float:
        """log(1 + β_j tr K_j/λ), (problems, n)."""
        trace = self.lens.diagonal().sum(axis=1)
        return np.asarray(np.log1p(np.maximum(self.weights, 0.0) * trace / np.array(self.lams)[:, None]))

    def completed(self, exact: dict[int, Float], projected: Float | float) -> dict[int, Float]:
        """The diagonals of all problems, (1 or 2, m), by their numbers, from those whose A was factored.

        `projected` is the diagonal of 2P. A second row, A⁻¹D^{1/2}1, is interpolated itself.
        """
        others = [place for place, k in enumerate(self.numbers) if k not in exact]
        known = {k: exact[k] for k in self.numbers if k in exact}
        if not others:
            return known
        from scipy.interpolate import RBFInterpolator

        # One problem of each factored point.
        nodes = list({id(known[k]): place for place, k in enumerate(self.numbers) if k in known}.values())
        at_points = [known[self.numbers[place]] for place in nodes]
        free = np.maximum(1.0 - 0.5 * projected, _NEARLY_ZERO)
        # Σ_j β_j k_j(x_i, x_i)/λ(1 − P_ii), (problems, m).
        coordinates, weights = self.coordinates(), np.maximum(self.weights, 0.0) / np.array(self.lams)[:, None]
        largest = np.maximum(weights @ self.lens.diagonal() / free, _NEARLY_ZERO)
        sizes = np.maximum(2.0 * free / np.array([rows[0] for rows in at_points]) - 1.0, _NEARLY_ZERO)
        ratios = np.log(sizes / largest[nodes])
        values = np.stack([ratios, *zip(*(rows[1:] for rows in at_points), strict=True)], axis=1)
        function = RBFInterpolator(coordinates[nodes], values.reshape(len(nodes), -1), kernel="linear")
        at = function(coordinates[others]).reshape(len(others), *values.shape[1:])
        at[:, 0] = 2.0 * free / (1.0 + np.exp(np.minimum(at[:, 0], 0.0)) * largest[others])
        return known | dict(zip((self.numbers[place] for place in others), at, strict=True))


def _spread(points: Float, n: int) -> list[int]:
    """Positions of n points, each the farthest from those before it."""
    chosen, distance = list[int](), np.full(len(points), np.inf)
    at = int(np.argmax(points.sum(axis=1)))
    while len(chosen) < min(n, len(points)):
        chosen.append(at)
        distance = np.minimum(distance, np.abs(points - points[at]).max(axis=1))
        distance[chosen] = -1.0
        at = int(np.argmax(distance))
    return chosen
