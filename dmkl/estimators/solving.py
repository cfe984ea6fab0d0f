"""Solving fits of the Fisher discriminants side by side: which solver, and how each of them is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from dask.utils import parse_bytes

from dmkl.errors import InputError
from dmkl.estimators.base import TrainingSet
from dmkl.numerics.fisher import Certificate
from dmkl.passes.combine import direct_bytes
from dmkl.passes.execute import Machine, check_memory, machine
from dmkl.passes.view import Lens
from dmkl.solvers.driver import drive
from dmkl.solvers.fisher.descent import Steps, descend, least_columns
from dmkl.solvers.fisher.dual import GradientSteps
from dmkl.solvers.fisher.interleaved import BlockSteps
from dmkl.solvers.fisher.subspace.engine import SubspaceSolver
from dmkl.solvers.fisher.subspace.problem import Point, SubspaceOptions, Training
from dmkl.solvers.fisher.subspace.workspace import Workspace
from dmkl.solvers.fisher.working_sets import working_sets
from dmkl.solvers.fisher.wrapper import AlphaStep, CGStep, DirectStep, Problem, Solution, wrapper
from dmkl.solvers.outcome import Status
from dmkl.solvers.requests import Solver

if TYPE_CHECKING:
    from dmkl.estimators.fisher import _FisherClassifier

__all__ = ["Fit", "basis_bytes", "check_resolution", "out_of_core", "solve_together"]

Float = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Fit:
    """One fit of several that are solved together: an estimator, its training set, and (p, λ) of its problems."""

    model: _FisherClassifier
    training: TrainingSet
    pairs: list[tuple[float, float]]

    @property
    def lens(self) -> Lens:
        """What it sees the kernels through."""
        return self.training.kernels.lens()


# --- which solver ----------------------------------------------------------------------------------------------------

_AMPLE = 1e-3
"""λ by tr K(β) from which descent on the dual takes no more passes than the subspace solver, and half of its time."""
_ROOM = 100
"""Directions that it should have room for."""


def out_of_core(fits: Sequence[Fit], where: Machine) -> str:
    """The solver for kernels whose sum does not fit in memory, as `pipelines/compare_solvers.py` has measured them."""
    if len(fits) > 1 or len(fits[0].pairs) > 1:
        return "subspace"  # one for all problems, where descent keeps directions for each
    (fit,), ((p, lam),) = fits, fits[0].pairs
    n, m, _ = fit.lens.view.shape
    diagonal = fit.lens.diagonal()
    if diagonal is None or 8 * (n + 1) * m * _ROOM > where.total_bytes // 2:
        return "subspace"
    trace = float(np.median(diagonal.sum(axis=1)))
    # Uniform weights of norm one are n^(−1/p).
    if lam < _AMPLE * trace * n ** (1.0 - 1.0 / p):
        return "subspace"
    return "dual" if p > 1 else "interleaved"


# --- asking them -----------------------------------------------------------------------------------------------------


def solve_together(
    fits: Sequence[Fit], solver: str, starts: Sequence[Float] | None = None
) -> tuple[list[list[Solution]], float]:
    """Solve several fits on the same kernels, which share every pass.

    Parameters
    ----------
    fits
        With equal parameters but for p and λ.
    solver
        "direct", "cg", "subspace", "interleaved" or "dual".
    starts
        β to begin with, one for every problem of every fit in turn.

    Returns
    -------
    tuple
        The solutions of each fit, and the passes that all took together, parts of a pass as parts.
    """
    lenses = [fit.lens for fit in fits]
    for fit, lens in zip(fits, lenses, strict=True):
        check_resolution(lens, min(lam for _, lam in fit.pairs))
    solve = {"subspace": _by_subspace, "interleaved": _by_descent, "dual": _by_descent}.get(solver, _by_wrapper)
    solutions, passes = solve(fits, lenses, solver, starts)
    found, first = [], 0
    for fit in fits:
        found.append(solutions[first : first + len(fit.pairs)])
        first += len(fit.pairs)
    return found, passes


def _by_wrapper(
    fits: Sequence[Fit], lenses: Sequence[Lens], solver: str, starts: Sequence[Float] | None
) -> tuple[list[Solution], float]:
    jobs: list[tuple[Lens, Solver[Solution]]] = []
    for fit, lens in zip(fits, lenses, strict=True):
        model, training = fit.model, fit.training
        for k, (h, (p, lam)) in enumerate(zip(training.targets.problems, fit.pairs, strict=True)):
            problem = Problem(h, lam, p, "" if model.tasks_ is None else f"{model.tasks_[k]}: ")
            step: AlphaStep = DirectStep(problem) if solver == "direct" else CGStep(problem, model.tol)
            job = wrapper(
                problem,
                len(training.kernels),
                step,
                master=model._master(),
                tol=model.tol,
                max_iter=model.max_iter,
                names=training.kernels.names,
                start=None if starts is None else starts[len(jobs)],
            )
            jobs.append((lens, job))
    lanes = None
    if solver == "direct":
        # Each running problem holds a factor: as many at once as fit.
        lanes = max(1, machine().total_bytes // max(direct_bytes(lens.view, 1) for lens in lenses))
    return drive(jobs, lanes=lanes)


def _by_subspace(
    fits: Sequence[Fit], lenses: Sequence[Lens], solver: str, starts: Sequence[Float] | None
) -> tuple[list[Solution], float]:
    """See `dmkl.solvers.fisher.subspace.engine`."""
    model = fits[0].model
    options = SubspaceOptions(
        tol=model.tol,
        basis_bytes=basis_bytes(model.basis),
        max_passes=model.max_iter,
        finish=model.finish,
        alphas=True,
    )
    folds = [Training("", lens, lens, fit.training.targets.problems) for fit, lens in zip(fits, lenses, strict=True)]
    points = [Point(f, k, p, lam) for f, fit in enumerate(fits) for k, (p, lam) in enumerate(fit.pairs)]
    workspace = Workspace(None, {})
    try:
        engine = SubspaceSolver(folds, points, workspace, options, model.kernel_names_)
        results = engine.run()
    finally:
        workspace.close()
    solutions = []
    for result in results:
        assert result.alpha is not None
        assert result.beta is not None
        bound = max(result.gap * abs(result.objective) - max(result.upper - result.objective, 0.0), 0.0)
        certificate = Certificate(result.objective, result.upper, bound, result.beta)
        status = Status.CERTIFIED if result.gap <= model.tol else Status.BASIS
        solutions.append(Solution(result.alpha, result.beta, certificate, status, result.steps))
    return solutions, engine.n_passes


_COLUMNS = 400
"""More directions than this make the small problem slower, and the convergence hardly faster."""


def _by_descent(
    fits: Sequence[Fit], lenses: Sequence[Lens], solver: str, starts: Sequence[Float] | None
) -> tuple[list[Solution], float]:
    """See `dmkl.solvers.fisher.descent`.

    Half of the memory is for the directions and their products; the interleaved solver's factors may take a quarter.
    """
    problems = [
        (fit, lens, k, h, *pair)
        for fit, lens in zip(fits, lenses, strict=True)
        for k, (h, pair) in enumerate(zip(fit.training.targets.problems, fit.pairs, strict=True))
    ]
    widest = max((h for _, _, _, h, _, _ in problems), key=lambda h: h.size)
    n, (m, c) = len(fits[0].training.kernels), widest.shape
    column_bytes, budget = 8 * (n + 1) * m, machine().total_bytes
    steps: Steps = GradientSteps(c) if solver == "dual" else BlockSteps([], 1.0, c, 1)
    least_bytes = column_bytes * least_columns(c, steps.width)
    check_memory(
        f"solver={solver!r}",
        {"the least number of directions and their products": least_bytes},
        budget // 2,
        "Set dmkl.memory higher, or take solver='subspace', which keeps them on disk, or 'cg'",
    )
    lanes = min(len(problems), budget // 2 // least_bytes)
    capacity = min(_COLUMNS + c, budget // 2 // lanes // column_bytes)
    jobs: list[tuple[Lens, Solver[Solution]]] = []
    for fit, lens, k, h, p, lam in problems:
        model = fit.model
        c = h.shape[1]
        if solver == "interleaved":
            sets = working_sets(lens, largest=int(np.sqrt(budget / 256)))
            factor_bytes = 8 * max(len(one.index) for one in sets) ** 2
            steps = BlockSteps(sets, lam, c, max(1, budget // 4 // lanes // factor_bytes))
        else:
            steps = GradientSteps(c)
        job = descend(
            Problem(h, lam, p, "" if model.tasks_ is None else f"{model.tasks_[k]}: "),
            n,
            steps,
            capacity=capacity,
            tol=model.tol,
            max_passes=model.max_iter,
            mu=model.mu,
            names=fit.training.kernels.names,
            start=None if starts is None else starts[len(jobs)],
        )
        jobs.append((lens, job))
    return drive(jobs, lanes=lanes)


# --- what they take --------------------------------------------------------------------------------------------------


def basis_bytes(value: int | str | None) -> int | None:
    """The parameter `basis` in bytes.

    Raises
    ------
    InputError
        If it is no size.
    """
    if value is None:
        return None
    try:
        size = int(parse_bytes(value))
    except (ValueError, TypeError) as error:
        msg = f"basis must be a size such as '8GiB' or a number of bytes, got {value!r}"
        raise InputError(msg) from error
    if size <= 0:
        msg = f"basis must be positive, got {value!r}"
        raise InputError(msg)
    return size


def check_resolution(lens: Lens, lam: float) -> None:
    """Refuse a λ that drowns in the rounding of the stored kernels.

    Entries rounded to u relative add a random symmetric matrix whose norm is about u √m times their size: below that,
    I + K/λ may have negative eigenvalues that no kernel has.

    Raises
    ------
    InputError
        If λ is that small.
    """
    view, fitted = lens.view, lens.fitted
    unit = 0.5 * float(np.finfo(view.source.dtype).eps)
    diagonal = view.source.diagonal(view.kernels)
    if diagonal is None:
        return
    factors = np.array([fitted.factor(j) for j in range(len(view.kernels))])
    # Where the chain differs from kernel to kernel, it has brought the samples to unit norm.
    size = 1.0 if not fitted.same_for_all else float(np.median(np.abs(diagonal).max(axis=1) * factors))
    noise = unit * np.sqrt(view.shape[1]) * size
    if lam < noise:
        msg = (
            f"lam={lam:g} is below what the stored precision resolves: rounding to {view.source.dtype} alone perturbs "
            f"these kernels by about {noise:.1e}. Take a larger lam, or store the kernels in float64"
        )
        raise InputError(msg)
